"""Comparisons: what a name stands for, how seeds become intervals, and the whole of it on a tiny text."""

from __future__ import annotations

import io
import json

import pytest

from lab_runs import SIZES, lasting, tiny
from whorl.errors import WhorlError
from whorl.lab import compare, run_one
from whorl.lab.aggregate import aggregate, collect
from whorl.lab.load import make_model
from whorl.lab.plan import plan, read_name, with_usual
from whorl.lab.presets import PRESETS
from whorl.lab.progress import Progress
from whorl.lab.settings import RunConfig
from whorl.results import RunResult

TINY = {**SIZES, "train_length": 16, "steps": 4, "batch": 4, "lengths": [8, 16, 32, 64], "workers": 1}


@pytest.fixture(scope="module")
def found(texts, tmp_path_factory):
    names = ["rope", "t5", "learned", "rope:base=100"]
    return compare(
        names, corpus=str(texts), out=tmp_path_factory.mktemp("out"), seeds=2, repairs=["ntk", "window"], **TINY
    )


# -- the whole --------------------------------------------------------------------------------------------------------


def test_a_comparison_has_a_row_for_each_encoding_and_repair(found, texts):
    data = found.data
    assert data["schema"] == "whorl-lab-comparison/1" and data["train_length"] == 16
    rows = {(row["label"], row["variant"]): row for row in data["rows"]}
    assert set(rows) == {
        *((label, variant) for label in ("rope", "rope base=100") for variant in ("as trained", "ntk", "window")),
        ("t5", "as trained"),
        ("learned", "as trained"),
    }
    for row in rows.values():
        assert row["seeds"] == [0, 1] and [cell["length"] for cell in row["by_length"]] == [8, 16, 32, 64]
        assert row["claims"]["relative"] == (row["label"] != "learned")
    assert rows["t5", "as trained"]["encoding"]["max_distance"] == 8
    assert rows["t5", "as trained"]["encoding_parameters"] == 16 and rows["rope", "ntk"]["encoding_parameters"] == 0
    assert rows["t5", "as trained"]["window_baseline"]["by_length"][3]["bits_per_byte"]["same_last"]["n"] == 2
    assert "window_baseline" not in rows["rope", "as trained"]  # it has a row of its own
    far = rows["learned", "as trained"]["by_length"][3]
    assert far["bits_per_byte"]["same_last"] is None and far["repeated_text_accuracy"] is None
    assert data["corpus"]["documents"] == 12 and data["interval"] == "seeds" and data["baseline"] in found.table()
    assert found.failed == {} and len(data["results"]) == 8
    assert all((found.out / path).exists() for path in data["results"])
    assert found.table()["learned"][64] is None and found.table("sliding")["rope, ntk"][8] > 3


def test_the_report_and_its_tables_are_written(found):
    assert found.report == found.out / "report.html"
    page = found.report.read_text()
    assert "<html" in page and "rope" in page and "<script" not in page
    assert json.loads((found.out / "comparison.json").read_text()) == found.data
    assert (found.out / "comparison.csv").read_text().count("\n") > 8


def test_collecting_the_runs_of_a_folder_gives_the_same_comparison(found):
    again = aggregate(collect(found.out)).data
    rows = lambda data: sorted(lasting(data["rows"]), key=lambda row: (row["label"], row["variant"]))  # noqa: E731
    assert rows(again) == rows(found.data) and again["baseline"] == found.data["baseline"]
    assert again["differences"] == found.data["differences"]


def test_an_empty_folder_has_nothing_to_compare(tmp_path):
    with pytest.raises(WhorlError, match="no finished run under"):
        collect(tmp_path)


def test_a_task_is_compared_by_exact_match(tmp_path):
    found = compare(
        ["none", "alibi"], corpus="task:copy", out=tmp_path, train_length=3, steps=3, batch=4, lengths=[2, 3], seeds=2,
        layers=1, width=16, heads=2, workers=1,
    )  # fmt: skip
    for row in found.data["rows"]:
        assert row["by_length"] == [] and row["task"]["name"] == "copy"
        assert row["task"]["by_length"][0]["exact_match"]["n"] == 2
    assert found.data["corpus"] == {"name": "task:copy"}


def test_repairs_are_tried_on_a_task_as_well(tmp_path):
    found = compare(
        ["rope", "alibi"], corpus="task:copy", out=tmp_path, train_length=3, steps=3, batch=4, lengths=[3, 9], layers=1,
        width=16, heads=2, workers=1, repairs=["ntk", "window"],
    )  # fmt: skip
    rows = {(row["label"], row["variant"]): row["task"] for row in found.data["rows"]}
    assert set(rows) == {("rope", "as trained"), ("rope", "ntk"), ("rope", "window"), ("alibi", "as trained")}
    assert all(row["by_length"][1]["exact_match"]["n"] == 1 for row in rows.values())
    result = RunResult.of(json.loads((found.out / found.data["results"][0]).read_text()))
    assert result.evaluations[1]["settings"]["scaling"]["factor"] == 19 / 7  # tokens of an item, not its symbols
    assert result.task is not None and len(result.task["by_length"][0]["samples"]["exact_match"]) == 256


def test_a_repair_that_no_encoding_here_takes_is_an_error_and_one_that_any_takes_is_not(texts, tmp_path):
    with pytest.raises(WhorlError, match=r"repair yarn takes the place of plain rope, and none is among alibi\. Add"):
        compare(["alibi"], corpus=str(texts), out=tmp_path / "out", repairs=["yarn"], **TINY)
    with pytest.raises(WhorlError, match=r"fine-tuning reads longer text, and a task has none"):
        compare(["rope"], corpus="task:copy", out=tmp_path / "out", fine_tune_steps=3, **TINY | {"lengths": [16]})
    assert not (tmp_path / "out").exists()
    (config,) = plan(["alibi"], corpus=str(texts), out=tmp_path, repairs=["logn"], preset_name="demo", lengths=[16])
    assert config.repairs == ("logn",)
    (config,) = plan(["alibi"], corpus=str(texts), out=tmp_path, preset_name="demo", lengths=[16])
    assert config.repairs == ()  # a preset's own are for what takes them


def test_where_no_run_finishes_the_first_reason_is_given(texts, tmp_path, monkeypatch):
    from whorl.lab import run_many

    def failing(*args, **options):
        raise WhorlError("no good")

    monkeypatch.setattr(run_many, "run_one", failing)
    with pytest.raises(WhorlError, match=r"no run finished\. The first failed with: no good"):
        compare(["rope"], corpus=str(texts), out=tmp_path, **TINY)


def test_a_run_that_stopped_early_is_in_the_comparison_with_the_reason(texts, tmp_path):
    wild = tiny(texts, learning_rate=1e30, clip=1e30, steps=12)
    results = [run_one(config, tmp_path / config.id) for config in (wild, tiny(texts, "alibi", steps=12))]
    data = aggregate([RunResult.of(one) for one in results], unequal=True).data
    assert set(data["unequal"]) == {"learning_rate", "clip"}
    row = next(row for row in data["rows"] if row["label"].startswith("rope"))
    assert row["by_length"] == [] and "stopped early, the loss is" in row["warnings"][0]
    json.dumps(data, allow_nan=False)


# -- from results to rows ---------------------------------------------------------------------------------------------


def test_runs_trained_at_different_lengths_are_not_one_comparison(texts, tmp_path):
    results = [run_one(tiny(texts, stages=((n, 4, 2),)), tmp_path / str(n)) for n in (8, 16)]
    with pytest.raises(WhorlError, match="runs trained at 8, 16 are not one comparison"):
        aggregate([RunResult.of(one) for one in results])


# -- what a name stands for -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rope", {"name": "rope"}),
        ("rope:base=5e5,layout=interleaved", {"name": "rope", "base": 5e5, "layout": "interleaved"}),
        (
            "rope:rotary_dim=4+alibi",
            {"name": "combined", "parts": [{"name": "rope", "rotary_dim": 4}, {"name": "alibi"}]},
        ),
    ],
)
def test_names_carry_settings_and_join(text, expected):
    assert read_name(text) == expected


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["alibbi"], "unknown encoding 'alibbi'. Did you mean 'alibi'"),
        (["rope:base"], "'base' of 'rope:base' is no setting"),
        (["rope:bass=3"], "unknown setting 'bass'. Did you mean 'base'"),
        ([], "no encodings"),
        (None, "no encodings"),
        ("rope", "names must be a list of encodings"),
    ],
)
def test_wrong_names_are_errors(texts, tmp_path, names, said):
    with pytest.raises(WhorlError, match=said):
        compare(names, corpus=str(texts), out=tmp_path / "out", **TINY)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"lengths": [8, 5000]}, "lengths must be below 2000, the longest test document"),
        ({"batch": 5000}, "less than one batch of 5000 rows of 17"),
        ({"width": 15}, "width must be a multiple of heads=2"),
        ({"preset": "huge"}, "unknown preset 'huge'"),
        ({"seeds": 0}, "seeds must be how many"),
        ({"corpus": "/nowhere"}, "no corpus at /nowhere"),
        ({"corpus": "task:juggle"}, "unknown task 'juggle'"),
        ({"repairs": ["nkt"]}, "unknown repair 'nkt'. Did you mean 'ntk'"),
        ({"stages": [(16, 4, 2)]}, "stages say length, batch and steps already"),
        ({"widht": 3}, "unknown setting 'widht'. Did you mean 'width'"),
    ],
)
def test_what_cannot_be_compared_is_an_error_before_anything_is_written(texts, tmp_path, change, said):
    with pytest.raises(WhorlError) as error:
        compare(["rope"], **{"corpus": str(texts), "out": tmp_path / "out", **TINY, **change})
    assert said in str(error.value) and not (tmp_path / "out").exists()


def test_settings_that_make_a_comparison_fair_are_filled_in_and_can_be_said(texts, tmp_path):
    sizes = {"length": 64, "width": 128}
    assert with_usual({"name": "sinusoidal"}, **sizes)["scale"] == pytest.approx(128**-0.5, rel=1e-4)
    assert with_usual({"name": "t5", "max_distance": 128}, **sizes)["max_distance"] == 128
    joined = with_usual({"name": "combined", "parts": [{"name": "rope"}, {"name": "t5"}]}, **sizes)
    assert joined["parts"][1]["max_distance"] == 32
    for length in (4, 8, 16, 64, 512):
        made = RunConfig(encoding=with_usual({"name": "t5"}, length=length, width=128), stages=((length, 2, 1),))
        assert made.encoding["max_distance"] == length // 2


def test_the_presets_are_what_they_say(tmp_path):
    sizes = {}
    for name, own in PRESETS.items():
        run = {key: value for key, value in own.run.items() if key != "device"}
        configs = plan(out=tmp_path, preset_name=name, corpus="stdlib", lengths=[64], device="cpu", **run)
        assert [config.encoding["name"] for config in configs] == list(own.encodings)
        (rope,) = (config for config in configs if config.encoding["name"] == "rope")
        assert rope.repairs == own.repairs and all(not config.repairs for config in configs if config is not rope)
        sizes[name] = sum(p.numel() for p in make_model(rope).parameters())
    assert PRESETS["demo"].lengths == (16, 32, 64, 128, 256, 512)
    assert PRESETS["gpu"].lengths[-1] == 8192
    assert 0.5e6 < sizes["demo"] < 0.7e6 < sizes["laptop"] < 3e6 < 10e6 < sizes["gpu"] < 11e6


# -- progress ---------------------------------------------------------------------------------------------------------


def test_plain_lines_say_how_far_and_how_long(texts, tmp_path, monkeypatch):
    from whorl.lab import progress

    monkeypatch.setattr(progress, "EVERY", 0.0)
    said = io.StringIO()
    with Progress(said) as watching:
        compare(["rope", "alibi"], corpus=str(texts), out=tmp_path, tell=watching, **TINY)
    lines = said.getvalue().splitlines()
    assert any(
        line.startswith("rope: step 2/4, loss 5.") and "tokens/s" in line and " left; 0 of 2" in line for line in lines
    )
    assert any(line.startswith("rope: as trained at 64: ") for line in lines)
    assert lines[-1] == "alibi: done; 2 of 2 runs done, 0 s left"


def test_a_terminal_gets_a_live_table(texts, tmp_path):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    said = Terminal()
    with Progress(said) as watching:
        compare(["rope", "alibi"], corpus=str(texts), out=tmp_path, tell=watching, seeds=[5], **TINY)
    for text in ("rope seed 5", "alibi seed 5", "2 of 2 runs done", "100 %"):
        assert text in said.getvalue()
