"""Using a trained run: migration to another encoding (what is copied, frozen, and the four losses), and generation."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest
import torch

from lab_runs import tiny
from whorl.cli.app import run as command
from whorl.errors import WhorlError
from whorl.lab import load, migrate, run_one
from whorl.lab.load import make_model
from whorl.lab.migrate import copy_weights, freeze_parts


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """A finished run with learned positions, on texts whose next letter is the one three places back."""
    out, draw = tmp_path_factory.mktemp("source"), random.Random(0)
    (out / "texts").mkdir()
    for number in range(12):
        beats = ("".join(draw.choices("abcdefgh", k=3)) * 20 for _ in range(40))
        (out / "texts" / f"{number}.txt").write_text("".join(beats))
    config = tiny(out / "texts", "learned", stages=((16, 16, 400),), learning_rate=1e-2, lengths=(8, 16, 32))
    folder = out / "runs" / config.id
    run_one(config, folder)
    return folder


def test_all_but_positions_is_copied_and_the_losses_are_in_their_order(source):
    result = migrate(source, "rope", steps=20, learning_rate=3e-3)
    old, new = load(source), load(result["folder"])
    assert result["schema"] == "whorl-lab-migration/1" and {**new.result, "folder": result["folder"]} == result
    assert new.config.encoding["name"] == "rope" and result["from"]["label"] == "learned"
    assert result["keys"]["dropped"] == ["plan.unique.0.table"] and result["keys"]["new"] == []
    assert set(result["keys"]["copied"]) == set(new.model.state_dict())
    assert set(old.model.state_dict()) == {*result["keys"]["copied"], *result["keys"]["dropped"]}

    before, right_after, after, scratch = (
        result["losses"][name] for name in ("before", "right_after", "after", "from_scratch")
    )
    assert before < after < right_after  # the exchange costs, and a little training makes up for some of it
    assert after < scratch  # what was copied is worth something
    own = old.result["evaluations"][0]["by_length"][1]  # at 16, the trained length
    assert before == pytest.approx(own["bits_per_byte"]["non_overlapping"] * math.log(2), abs=1e-6)
    beyond = {name: rows[-1]["bits_per_byte"]["same_last"] for name, rows in result["by_length"].items()}
    assert beyond["before"] is None and beyond["after"] is not None  # a learned table ends, rope does not
    assert [row["step"] for row in result["metrics"]["from_scratch"]][-1] == 20


def test_the_losses_are_those_of_the_models_they_are_said_to_be_of(source):
    """Right after: the old weights without their positions; after: what load returns."""
    from whorl.lab.corpus import open_corpus
    from whorl.lab.evaluate import Evaluation

    result = migrate(source, "rope", steps=2)
    old, new = load(source), load(result["folder"])
    corpus = open_corpus(new.config.corpus, source.parent.parent / "corpus", new.config.corpus_digest)
    swapped = make_model(new.config)
    swapped.load_state_dict({key: old.model.state_dict()[key] for key in result["keys"]["copied"]})
    for model, name in ((swapped, "right_after"), (new.model, "after")):
        rows = Evaluation(model, new.config, corpus).variant()["by_length"]
        assert rows[1]["bits_per_byte"] == result["by_length"][name][1]["bits_per_byte"]


@pytest.mark.parametrize(
    ("freeze", "moves"),
    [
        (["embeddings", "ffn"], {"attention", "norm"}),
        (["attention", "norm"], {"embeddings", "feed_forward"}),
    ],
)
def test_frozen_parts_keep_every_bit_and_the_others_move(source, freeze, moves):
    from whorl.lab.monitor import group_of

    result = migrate(source, "alibi", freeze=freeze, steps=2)
    old, new = load(source).model.state_dict(), load(result["folder"]).model.state_dict()
    moved = {group_of(key) for key in new if not torch.equal(old[key], new[key])}
    assert moved == moves and result["frozen"] == freeze
    assert 0 < result["trained_parameters"] < result["parameters"]


def test_a_new_encoding_with_parameters_may_be_all_that_learns(source):
    everything = ["embeddings", "attention", "ffn", "norm"]
    result = migrate(source, "t5", freeze=everything, steps=2)
    new = load(result["folder"])
    assert result["keys"]["new"] == [key for key in new.model.state_dict() if key.startswith("plan.")] != []
    assert result["trained_parameters"] == sum(one.numel() for one in new.model.plan.parameters())
    with pytest.raises(WhorlError, match=r"nothing is left to train\. rope has no parameters, so with embeddings"):
        migrate(source, "rope", freeze=everything, steps=2)


def test_the_same_call_goes_on_where_it_was_stopped_and_then_only_reads(source, tmp_path):
    whole = migrate(source, "kerple", steps=6)

    class StopError(Exception):
        pass

    def stop(event):
        if event["part"] == "migrated" and event["step"] == 4:
            raise StopError

    again = tmp_path / "runs" / source.name
    again.mkdir(parents=True)
    for name in ("config.json", "checkpoint.safetensors", "result.json"):
        (again / name).write_bytes((source / name).read_bytes())
    with pytest.raises(StopError):
        migrate(again, "kerple", steps=6, tell=stop, save_seconds=0.0)
    heard = []
    result = migrate(again, "kerple", steps=6, tell=heard.append, save_seconds=0.0)
    assert [event["step"] for event in heard if event["part"] == "migrated"] == [4, 5, 6]
    assert result["losses"] == whole["losses"] and result["metrics"] == whole["metrics"]
    assert result["id"] == whole["id"]
    assert migrate(again, "kerple", steps=6, tell=pytest.fail) == result


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"to": "learned"}, "the run has learned already"),
        ({"to": "ropee"}, "unknown encoding 'ropee'. Did you mean 'rope'?"),
        ({"to": "rope", "freeze": ["fnn"]}, "unknown part to freeze 'fnn'. Did you mean 'ffn'?"),
        ({"to": "rope", "freeze": ["head"]}, "Freeze embeddings."),
        ({"to": "rope", "steps": 0}, "steps must be a positive integer, got 0"),
        ({"to": "rope", "learning_rate": -1.0}, "learning_rate must be positive"),
    ],
)
def test_misuse_says_so_before_anything_is_made(source, options, said):
    before = sorted(source.parent.parent.rglob("*"))
    with pytest.raises(WhorlError) as error:
        migrate(source, **options)
    assert said in str(error.value)
    assert sorted(source.parent.parent.rglob("*")) == before


def test_a_run_on_a_task_is_refused(tmp_path, source):
    config = tiny(
        source.parent.parent / "texts",
        corpus="task:copy",
        corpus_digest="",
        vocab=128,
        stages=((4, 4, 1),),
        lengths=(4,),
    )
    run_one(config, tmp_path / "runs" / config.id)
    with pytest.raises(WhorlError, match="task:copy has no text to score"):
        migrate(tmp_path / "runs" / config.id, "alibi")


def test_weights_without_a_place_are_no_migration(source):
    old = load(source)
    with pytest.raises(RuntimeError, match="size mismatch"):
        copy_weights(old.model, make_model(old.config.replace(width=32, encoding={"name": "rope"})))
    model = make_model(old.config)
    freeze_parts(model, ("attention", "ffn", "norm"))
    assert {name for name, one in model.named_parameters() if one.requires_grad} == {
        "embed.weight", "plan.unique.0.table",
    }  # fmt: skip


def test_the_command_lists_keys_and_losses(source, capsys):
    words = ["lab", "migrate", str(source), "--to", "rope", "--freeze", "embeddings,ffn", "--steps", "4"]
    assert command(words) == 0
    said, err = capsys.readouterr()
    lines = said.splitlines()
    assert lines[0].startswith("copied 19: embed.weight, ") and lines[1] == "dropped 1: plan.unique.0.table"
    assert lines[2] == "new 0: none" and lines[3] == "frozen: embeddings, ffn"
    assert [line.split("  ")[0] for line in lines[5:9]] == [
        "before",
        "right after",
        "after 4 steps",
        "from scratch, 4 steps",
    ]
    assert Path(lines[-1]).name == load(lines[-1]).result["id"]
    assert "from scratch: step 4/4" in err
    assert command([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["frozen"] == ["embeddings", "ffn"]
    everything = ["--freeze", "embeddings,attention,ffn,norm"]
    assert command(["lab", "migrate", str(source), "--to", "rope", *everything]) == 2
    assert "nothing is left to train" in capsys.readouterr().err


# -- generation -------------------------------------------------------------------------------------------------------


def test_a_run_goes_on_with_a_text(source, capsys):
    from whorl.lab import generate

    found = load(source)
    text = generate(source, "abc", count=8)
    assert text.startswith("abc") and len(text.encode()) == 11
    tokens = list(b"abc")
    for _ in range(8):  # the likeliest byte by a full pass each time
        tokens.append(int(found.model(torch.tensor([tokens]))[0, -1].argmax()))
    assert text == bytes(tokens).decode()
    drawn = [generate(found, "abc", count=8, temperature=1.0, seed=seed) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert command(["lab", "generate", str(source), "--prompt", "abc", "--count", "8"]) == 0
    assert capsys.readouterr().out == text + "\n"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"prompt": ""}, "prompt must be at least one letter"),
        ({"prompt": "abc", "count": 15}, "at most 17 bytes together"),
        ({"prompt": "abc", "count": -1}, "count must be 0 or more"),
        ({"prompt": "abc", "count": 3, "temperature": -1.0}, "temperature must be 0 or more"),
    ],
)
def test_what_a_run_cannot_go_on_with(source, options, said):
    from whorl.lab import generate

    with pytest.raises(WhorlError) as error:
        generate(source, **options)
    assert said in str(error.value)
