"""RoFormer's experiments on the command line: what they print, where they write, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab_runs import write_texts
from whorl.lab import matching_data

TINY = ["--steps", "2", "--set", "layers=1", "--set", "width=16", "--set", "heads=2"]
MATCH = ["lab", "match", *TINY, "--set", "batch=2"]


@pytest.fixture(autouse=True)
def here(tmp_path_factory, monkeypatch):
    """A folder of its own, where runs are kept unless another is named."""
    monkeypatch.chdir(tmp_path_factory.mktemp("here"))


@pytest.fixture
def short_texts(monkeypatch):
    """The stand-in with texts of 16 + 16 tokens in place of 512 + 512, of a few made-up files."""
    files = [f"file {i}: ".encode() + bytes(range(32, 127)) for i in range(20)]
    for name, value in {"HALF": 16, "SPAN": 12, "MENTIONS": 6, "read_documents": lambda _: (files, 0)}.items():
        monkeypatch.setattr(matching_data, name, value)
    matching_data._documents.cache_clear()
    yield
    matching_data._documents.cache_clear()


def write_triples(path: Path, count: int, *, first: int = 0) -> Path:
    rows = [{"A": f"a{i} one two", "B": f"b{i} one two", "C": f"c{i} six"} for i in range(first, first + count)]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


# --- match


def test_the_stand_in_is_matched_by_every_variant_with_evidence_late_and_early(call, short_texts, tmp_path):
    sizes = ["--lengths", "32,16", "--seeds", 2, "--set", "train=6", "--set", "test=4"]
    code, out, err = call(*MATCH, *sizes, "--out", tmp_path / "new" / "found.json")
    assert code == 0, err
    lines = out.splitlines()
    assert lines[0].startswith("evidence late: reading furthest is ")
    assert lines[1].startswith("evidence early: reading furthest is ")
    assert lines[2].split() == ["evidence", "encoding", "tokens", "read", "accuracy", "%"]
    variants = [("rope", "16"), ("rope", "32"), ("learned", "16"), ("shaw", "16")]
    found = [tuple(line.split()[:3]) for line in lines[3:]]
    assert found == [(evidence, *one) for evidence in ("late", "early") for one in variants]
    assert all("±" in line for line in lines[3:])
    assert err.count(" reading ") == 16 and "evidence late, rope reading 16, seed 1: " in err

    report = json.loads((tmp_path / "new" / "found.json").read_text())
    assert report["schema"] == "whorl-lab-match/1" and report["environment"]["torch"]
    assert [one["seed"] for one in report["runs"]] == [0] * 4 + [1] * 4 + [0] * 4 + [1] * 4
    means = {(row["evidence"], row["length"]): row["accuracy"]["mean"] for row in report["summary"][::-1]}
    assert report["gaps"]["late"] == pytest.approx(means["late", 32] - means["late", 16])
    assert str(tmp_path) not in json.dumps(report["runs"])


def test_a_file_is_split_by_seed_and_json_is_all_of_stdout(call, tmp_path):
    path = write_triples(tmp_path / "triples.json", 10)
    options = ["--encodings", "rope", "--lengths", 8, "--tokens", "word", "--json"]
    code, out, err = call(*MATCH, path, *options, "--seeds", 2)
    assert code == 0, err
    report = json.loads(out)
    assert [(one["train_triples"], one["test_triples"]) for one in report["runs"]] == [(8, 2), (8, 2)]
    assert report["runs"][0]["config"]["tokens"] == "word" and report["gaps"] == {}
    assert "trained on and tested on" not in err


def test_a_file_to_test_on_is_used_whole_and_texts_in_both_are_told(call, tmp_path):
    train = write_triples(tmp_path / "train.json", 6)
    apart, both = write_triples(tmp_path / "apart", 3, first=6), write_triples(tmp_path / "both", 3, first=5)
    options = ["--encodings", "rope", "--lengths", 8, "--seeds", 1]
    code, out, err = call(*MATCH, train, "--test", apart, *options, "--json")
    assert code == 0 and "trained on and tested on" not in err
    assert [(one["train_triples"], one["test_triples"]) for one in json.loads(out)["runs"]] == [(6, 3)]
    code, out, err = call(*MATCH, train, "--test", both, *options)
    assert code == 0 and "3 texts are both trained on and tested on" in err
    assert out.splitlines()[-1].split()[:3] == ["unknown", "rope", "8"] and "±" not in out  # one seed, no interval


# --- pretrain


def test_pre_training_tells_every_stage(call, tmp_path):
    texts = write_texts(tmp_path / "texts")
    wanted = ["lab", "pretrain", "--corpus", texts, "--stages", "16x2x3,8x4x2", *TINY[2:]]
    code, out, err = call(*wanted)
    assert code == 0, err
    lines = out.splitlines()
    assert lines[0].split()[:5] == ["length", "batch", "steps", "loss", "accuracy"]
    assert [line.split()[:3] for line in lines[1:]] == [["16", "2", "3"], ["8", "4", "2"]]
    assert lines[1].split()[-1] == "none"  # RoPE has no parameters, so its gradient has no norm
    assert "3 steps of 2 × 16: loss " in err and "rope has no parameters" in err
    code, out, _ = call(*wanted, "--json", "--seed", 3)
    assert code == 0 and json.loads(out)["config"]["seed"] == 3
    learned = json.loads(call(*wanted[:2], "learned", *wanted[2:], "--json")[1])
    assert learned["stages"][0]["gradient_norms"]["encoding"] > 0 and learned["notes"] == []


# --- classify


def test_classifiers_are_compared(call, tmp_path):
    sizes = ["--set", "length=8", "--set", "train=8", "--set", "test=4", "--set", "batch=2", *TINY]
    wanted = ["lab", "classify", "--encodings", "rope,none", "--datasets", "order", "--seeds", 2, *sizes]
    code, out, err = call(*wanted, "--out", tmp_path / "found.json")
    assert code == 0, err
    assert [line.split()[:2] for line in out.splitlines()[1:]] == [["order", "rope"], ["order", "none"]]
    assert "order, none, seed 1: " in err and "95 % interval" in out and " to " in out.splitlines()[1]
    report = json.loads((tmp_path / "found.json").read_text())
    assert report["settings"]["steps"] == 2 and len(report["rows"][0]["accuracies"]) == 2


# --- ablate


@pytest.mark.parametrize(("what", "settings"), [("base", 4), ("norm", 6), ("slopes", 4)])
def test_ablations_keep_their_runs(call, tmp_path, what, settings):
    sizes = [*TINY[2:], "--set", "stages=[[8,2,2]]", "--set", "eval_bytes=64", "--lengths", "8,16", "--seeds", 1]
    wanted = ["lab", "ablate", what, "--corpus", write_texts(tmp_path / "texts"), "--runs", tmp_path / "lab", *sizes]
    code, out, err = call(*wanted, "--out", tmp_path / "found.json")
    assert code == 0, err
    lines = out.splitlines()
    assert lines[0].startswith("bits per byte, same last tokens: ") and lines[1].split()[:3] == [what, "8", "16"]
    assert len(lines) == 2 + settings and ("relativity error" in lines[1]) == (what == "norm")
    assert f"{settings} of {settings} runs done" in err
    assert len(list((tmp_path / "lab" / "runs").glob("*/result.json"))) == settings
    code, again, _ = call(*wanted)
    assert code == 0 and again == out
    assert str(tmp_path) not in json.dumps(json.loads((tmp_path / "found.json").read_text())["settings"])


def test_an_ablation_that_diverges_is_told(call, tmp_path):
    sizes = [*TINY[2:], "--set", "stages=[[8,2,4]]", "--lengths", "8", "--seeds", 1, "--set", "eval_bytes=64"]
    rates = ["--set", "learning_rate=1e30", "--set", "clip=1e30"]
    texts = write_texts(tmp_path / "texts")
    code, _, err = call("lab", "ablate", "base", "--corpus", texts, "--runs", tmp_path / "lab", *sizes, *rates)
    assert code == 2 and "seed 0 stopped: the loss is" in err


# --- what is refused


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["match", "nowhere.json"], "cannot read nowhere.json"),
        (["match", "--test", "x"], "--test would be ignored without FILE"),
        (["match", "--encodings", "rope,shw"], "unknown encoding 'shw'. Did you mean 'shaw'?"),
        (["match", "--encodings", ","], "--encodings must be names"),
        (["match", "--lengths", "512,x"], "--lengths must be positive numbers with commas between them, got '512,x'"),
        (["match", "--lengths", "0"], "--lengths must be positive numbers"),
        (["match", "--seeds", "0"], "lab match: --seeds must be at least 1, got 0"),
        (["match", "--steps", "0"], "steps must be positive, got 0"),
        (["match", "--tokens", "line"], "'line' is not one of"),
        (["match", "--set", "wdth=3"], "lab match: unknown setting 'wdth'. Did you mean 'width'?"),
        (["match", "--set", "seed=3"], "unknown setting 'seed'"),
        (["match", "--set", "width=wide"], "width must be an integer, got 'wide'"),
        (["match", "nowhere.json", "--set", "train=3"], "unknown setting 'train'"),
        (["pretrain", "ropee"], "unknown encoding 'ropee'. Did you mean 'rope'?"),
        (["pretrain", "--stages", "64x8"], "stages must be (length, batch, steps) each"),
        (["pretrain", "--stages", "64,8,1y"], "--stages must be LENGTHxBATCHxSTEPS"),
        (["pretrain", "--stages", "8x1x1", "--factor", "9"], "--factor would be ignored beside --stages"),
        (["pretrain", "--factor", "0"], "factor"),
        (["pretrain", "--corpus", "nowhere"], "nowhere"),
        (["classify", "--datasets", "orders"], "unknown dataset 'orders'. Did you mean 'order'?"),
        (["classify", "--datasets", ""], "--datasets must be names"),
        (["classify", "--datasets", "order", "--data", "x.tsv"], "--datasets would be ignored beside --data"),
        (["classify", "--set", "length=2"], "length must be at least 3"),
        (["ablate", "bases"], "'bases' is not one of"),
        (["ablate", "base", "--steps", "3", "--set", "stages=[[8,1,1]]"], "--steps would be ignored beside"),
        (["ablate", "base", "--set", "repairs=ntk"], "unknown setting 'repairs'"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_status_2(call, tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    code, out, err = call("lab", *words)
    assert code == 2 and out == "" and said in err
    assert "Traceback" not in err and not list(tmp_path.iterdir())


@pytest.mark.parametrize("words", [["match"], ["pretrain"], ["classify"], ["ablate", "base"]])
def test_recorded_results_are_kept(call, tmp_path, words):
    (tmp_path / "old.json").write_text("{}")
    code, _, err = call("lab", *words, "--out", tmp_path / "old.json")
    assert code == 2 and "old.json exists, and recorded results are kept" in err
    code, _, err = call("lab", *words, "--out", tmp_path / "old.json" / "new.json")
    assert code == 2 and "cannot make" in err
    assert (tmp_path / "old.json").read_text() == "{}"


@pytest.mark.parametrize(
    ("words", "made"),
    [
        (["match"], "matching.match_stand_in"),
        (["pretrain"], "mlm.pretrain"),
        (["classify"], "classify.compare_classifiers"),
        (["ablate", "base"], "ablations.base_ablation"),
    ],
)
def test_ctrl_c_says_how_to_go_on(call, tmp_path, monkeypatch, words, made):
    def pressed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"whorl.lab.{made}", pressed)
    code, _, err = call("lab", *words, "--runs", tmp_path / "runs")
    assert code == 130 and f"What was done is saved in {tmp_path / 'runs'}; the same command goes on" in err
