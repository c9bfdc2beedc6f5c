"""Guests of the lab: encodings of a user's own, scaled, by layer; models with shared heads or another activation."""

from __future__ import annotations

import json
import math

import pytest
import torch

import whorl
from lab_runs import SIZES, lasting, tiny
from own_encodings import forget, write_plugin
from whorl.errors import WhorlError
from whorl.lab import compare, load, run_one
from whorl.lab.corpus import read_corpus
from whorl.lab.evaluate import Evaluation, score, serving
from whorl.lab.load import make_model
from whorl.lab.plan import plan, read_name, with_usual
from whorl.lab.repairs import repaired_plan
from whorl.lab.run_many import plugins_of
from whorl.lab.settings import cautions
from whorl.plugins import load_plugin

SMALL = [
    "--train-length", "16", "--steps", "4", "--lengths", "8,16,32", "--set", "layers=2", "--set", "width=16",
    "--set", "heads=2", "--set", "batch=4", "--set", "eval_bytes=256",
]  # fmt: skip
TINY = {**SIZES, "train_length": 16, "steps": 3, "batch": 4, "lengths": [16, 32]}


@pytest.fixture
def mine(tmp_path):
    yield write_plugin(tmp_path / "mine.py", "mine", "other")
    forget("mine", "other")


# -- own encodings ----------------------------------------------------------------------------------------------------


def test_several_of_ones_own_are_compared_from_python(texts, tmp_path, mine):
    found = compare(
        ["mine", "other/none", "rope"],
        plugins=[mine],
        corpus=str(texts),
        out=tmp_path / "out",
        workers=1,
        **TINY | {"layers": 2},
    )
    assert list(found.table()) == ["mine", "other/none", "rope"] and found.failed == {}


@pytest.mark.slow
def test_workers_know_them_and_the_report_opens_without_them(call, texts, tmp_path, mine):
    words = ["compare", mine, "rope", "--corpus", texts, "--out", tmp_path / "out", "--workers", "2", *SMALL]
    code, out, err = call(*words)
    assert code == 0, err
    assert [line.split()[0] for line in out.splitlines()[2:5]] == ["mine", "other", "rope"]
    before = json.loads((tmp_path / "out" / "comparison.json").read_text())
    forget("mine", "other")
    code, out, err = call("lab", "report", tmp_path / "out", "--json")
    assert code == 0, err
    rows = lambda data: sorted(lasting(data["rows"]), key=lambda row: row["label"])  # noqa: E731
    assert rows(json.loads(out)) == rows(before) and rows(before)[0]["claims"]["decays"]


def test_a_run_of_ones_own_names_the_file_that_a_worker_must_load(texts, tmp_path, mine):
    (config,) = plan(load_plugin(mine)[:1], out=tmp_path / "out", corpus=str(texts), lengths=[16])
    assert plugins_of(config) == [str(mine)]
    (config,) = plan(["rope"], out=tmp_path / "out", corpus=str(texts), lengths=[16])
    assert plugins_of(config) == []


@pytest.mark.parametrize(
    "words",
    [
        ["list"],
        ["show", "mine"],
        ["plot", "scores", "mine", "-o", "PICTURE"],
        ["plot", "bias", "MINE", "-o", "PICTURE"],
    ],
)
def test_other_commands_take_them_too(call, tmp_path, mine, words):
    write_plugin(mine, "mine")
    known = {"MINE": str(mine), "PICTURE": str(tmp_path / "a.png")}
    plugin = [] if "MINE" in words else ["--plugin", mine]
    code, out, err = call(*(known.get(word, word) for word in words), *plugin)
    assert code == 0 and ("mine" in out or (tmp_path / "a.png").exists()), err


def test_a_report_asks_the_plugin_for_claims_that_a_result_of_0_1_0_does_not_have(call, texts, tmp_path, mine):
    out = tmp_path / "out"
    compare(["mine"], plugins=[mine], corpus=str(texts), out=out, workers=1, **TINY)
    (file,) = out.glob("runs/*/result.json")
    result = json.loads(file.read_text())
    del result["claims"]
    file.write_text(json.dumps(result))
    forget("mine", "other")
    claims = lambda *words: json.loads(call("lab", "report", out, "--json", *words)[1])["rows"][0]["claims"]  # noqa: E731
    assert claims() == {} and claims("--plugin", mine)["decays"]


def test_a_plugin_that_is_not_there_is_one_line(call, tmp_path):
    for words in (["list", "--plugin", "nowhere.py"], ["compare", "nowhere.py", "--out", tmp_path / "out"]):
        code, _, err = call(*words)
        assert code == 2 and "there is no file 'nowhere.py'" in err and len(err.splitlines()) == 1


# -- scalings and layers on the command line --------------------------------------------------------------------------


def test_a_scaling_is_written_behind_its_encoding_and_is_of_the_trained_length(texts):
    read = read_name("rope:base=100,scaling=yarn,factor=4,beta_fast=8")
    assert read == {"name": "rope", "base": 100, "scaling": {"name": "yarn", "factor": 4, "beta_fast": 8}}
    config = tiny(texts, with_usual(read, length=16, width=16))
    assert config.encoding["scaling"]["original_length"] == 16 and config.encoding["scaling"]["factor"] == 4.0
    assert with_usual(read_name("rope:scaling=linear,factor=2"), length=16, width=16)["scaling"] == {
        "name": "linear",
        "factor": 2,
    }
    with pytest.raises(WhorlError, match="unknown scaling 'yarm'"):
        read_name("rope:scaling=yarm")
    with pytest.raises(WhorlError, match="unknown setting 'facto'"):
        tiny(texts, with_usual(read_name("rope:scaling=linear,facto=2"), length=16, width=16))
    with pytest.raises(WhorlError, match=r"rope with yarn: unknown setting 'factr'. Did you mean 'factor'?"):
        read_name("rope:scaling=yarn,factr=2")


@pytest.mark.parametrize(
    ("text", "names", "label"),
    [
        ("rope/none", ["rope", "none", "rope", "none"], "rope/none"),
        ("rope*3+none", ["rope", "rope", "rope", "none"], "rope*3/none"),
        ("rope*3/none", ["rope", "rope", "rope", "none"], "rope*3/none"),
        ("rope:base=100+alibi/none", ["combined", "none", "combined", "none"], "rope:base=100+alibi/none"),
    ],
)
def test_a_plan_gives_each_layer_its_encoding_and_equal_ones_are_one(texts, tmp_path, text, names, label):
    (config,) = plan([text], out=tmp_path, corpus=str(texts), **TINY | {"layers": 4, "heads": 2})
    model = make_model(config)
    assert [layer["name"] for layer in model.plan.to_list()] == names and len(model.plan.unique) == 2
    result = run_one(config, tmp_path / "runs" / config.id)
    assert result["label"] == label and result["claims"]["relative"]
    assert json.loads(json.dumps(config.to_dict()))["encoding"] == config.encoding
    assert load(tmp_path / "runs" / config.id).config == config


def test_a_plan_longer_than_the_model_and_one_that_cannot_be_read_are_errors(texts, tmp_path):
    for text, said in {
        "rope*3/none": "a plan of at most the model's 1 layers, got 'rope\\*3/none'",
        "rope*x/none": "'x' in 'rope\\*x/none' is no number of layers",
        "ropp/none": "unknown encoding 'ropp'",
        "rope*0/none": "'0' in 'rope\\*0/none' is no number of layers",
    }.items():
        with pytest.raises(WhorlError, match=said):
            plan([text], out=tmp_path / "out", corpus=str(texts), **TINY)
    assert not (tmp_path / "out").exists()


def test_repairs_reach_the_rotary_layers_of_a_plan_and_windows_all(texts, tmp_path):
    config = tiny(texts, {"name": "plan", "layers": [{"name": "rope"}, {"name": "none"}]}, layers=2, repairs=("ntk",))
    model, corpus = make_model(config), read_corpus(str(texts))
    evaluation = Evaluation(model, config, corpus)
    ntk = evaluation.variant("ntk")
    assert [layer["name"] for layer in ntk["settings"]["layers"]] == ["rope", "none"]
    assert ntk["settings"]["layers"][0]["scaling"]["factor"] == 4.0
    own = whorl.LayerPlan([whorl.Rope(head_dim=8, scaling=whorl.Ntk(factor=4.0)), whorl.NoPE()])
    with serving(model, own):
        nats, _ = score(model, evaluation.samples, config)
    bits = float(nats[:, -config.last :].mean()) / math.log(2)
    assert ntk["by_length"][-1]["bits_per_byte"]["same_last"] == pytest.approx(bits, rel=1e-5)
    window = repaired_plan("window", model.plan, trained=16, length=64)
    assert [layer["name"] for layer in window.to_list()] == ["combined", "combined"]
    assert cautions(config.replace(repairs=("yarn",)))[0].startswith("yarn: at trained length 16")


def test_compare_takes_all_of_it(call, texts, tmp_path):
    names = ["rope/none", "rope:scaling=linear,factor=2", "alibi"]
    words = ["compare", *names, "--corpus", texts, "--out", tmp_path, "--workers", 1, *SMALL]
    code, out, err = call(*words, "--set", "kv_heads=1", "--set", "activation=swiglu", "--set", "dropout=0.1")
    assert code == 0, err
    assert [line.split()[0] for line in out.splitlines()[2:5]] == ["rope/none", "rope", "alibi"]


# -- the model --------------------------------------------------------------------------------------------------------


def test_shared_heads_activation_and_dropout_are_those_of_the_model(texts, tmp_path):
    config = tiny(texts, kv_heads=1, activation="swiglu", dropout=0.25)
    model = make_model(config)
    assert model.blocks[0].attention.k.weight.shape == (8, 16) and model.blocks[0].feed_forward.gate is not None
    assert model.dropout.p == 0.25
    first, again = run_one(config, tmp_path / "a"), run_one(config, tmp_path / "b")
    assert lasting(first) == lasting(again) and first["steps"] == 6
    plain = tiny(texts)
    assert len({config.id, plain.id, plain.replace(kv_heads=1).id, plain.replace(dropout=0.1).id}) == 4


def test_watching_with_dropout_draws_nothing(texts):
    from whorl.lab.monitor import attention_entropy

    model = make_model(tiny(texts, dropout=0.5)).train()
    state = torch.get_rng_state()
    attention_entropy(model, torch.randint(256, (4, 16), generator=torch.Generator().manual_seed(0)))
    assert torch.equal(torch.get_rng_state(), state) and model.training


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kv_heads": 3}, "kv_heads must be a divisor of heads=2, got 3"),
        ({"kv_heads": 0}, "kv_heads must be positive"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1"),
        ({"activation": "gleu"}, "unknown activation 'gleu'. Did you mean 'gelu'"),
        ({"recall": 1.5}, "recall must be a share of the rows of a text, 0 to 1, got 1.5"),
    ],
)
def test_what_makes_no_model_is_an_error(texts, change, said):
    with pytest.raises(WhorlError) as error:
        tiny(texts, **change)
    assert said in str(error.value)
