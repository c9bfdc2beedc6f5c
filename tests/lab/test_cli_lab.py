"""whorl compare and whorl lab on the command line: what they print, where they write, how they end."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from lab_runs import write_texts
from own_encodings import forget, write_plugin
from whorl.lab import run_many

SMALL = [
    "--train-length", "16", "--steps", "4", "--lengths", "8,16,32", "--set", "layers=1", "--set", "width=16",
    "--set", "heads=2", "--set", "batch=4", "--set", "eval_bytes=256",
]  # fmt: skip


def test_compare_prints_a_table_and_the_path_of_its_report(call, texts, tmp_path):
    wanted = ["compare", "rope", "alibi", "--corpus", texts, "--out", tmp_path / "out", "--workers", 1, *SMALL]
    code, out, err = call(*wanted, "--repairs", "ntk,window")
    assert code == 0, err
    lines = out.splitlines()
    assert lines[0] == "bits per byte, same last tokens; trained at 16"
    assert lines[1].split() == ["encoding", "8", "16", "32"]
    assert [line.split()[0] for line in lines[2:6]] == ["rope", "ntk", "window", "alibi"]
    assert not any("±" in line for line in lines[:6])  # what is not paired tells no order
    assert lines[7].startswith("less ") and lines[7].split()[2:] == ["8", "16", "32"]
    assert lines[-1] == f"report: {(tmp_path / 'out' / 'report.html').as_uri()}"
    assert "alibi: done; 2 of 2 runs done" in err
    code, out, _ = call(*wanted, "--repairs", "ntk,window", "--json")
    assert code == 0 and json.loads(out)["train_length"] == 16  # nothing was made again, and JSON is all of stdout


def test_the_report_is_written_again_in_another_language(call, texts, tmp_path):
    out = tmp_path / "out"
    assert call("lab", "run", "rope:base=100", "--corpus", texts, "--out", out, *SMALL)[0] == 0
    code, said, _ = call("lab", "report", out, "--lang", "zh")
    assert code == 0 and "report:" in said
    page = (out / "report.html").read_text()
    assert any("\u4e00" <= letter <= "\u9fff" for letter in page)
    words = re.sub(r"<style.*?</style>|<[^>]+>", " ", page, flags=re.DOTALL)
    assert "trained" not in words  # the title, too, is in no other language
    code, said, _ = call("lab", "report", out, "--json")
    assert json.loads(said)["rows"][0]["encoding"]["base"] == 100.0


def test_a_report_in_an_unknown_language_leaves_the_one_that_is_there(call, texts, tmp_path):
    out = tmp_path / "out"
    words = ["compare", "rope", "--corpus", texts, "--out", out, "--workers", 1, "--repairs", "ntk,ntk", *SMALL]
    code, said, _ = call(*words)
    assert code == 0 and said.count("ntk") == 2  # a row, and a line of differences
    files = {path: path.read_bytes() for path in out.glob("*.*")}
    code, _, err = call("lab", "report", out, "--lang", "fr")
    assert code == 2 and "unknown lang 'fr'" in err
    assert {path: path.read_bytes() for path in out.glob("*.*")} == files and not (out / "reports").exists()


def test_one_run_prints_its_folder_and_what_to_beware_of(call, texts, tmp_path):
    wanted = ["lab", "run", "t5:max_distance=12,buckets=8", "--corpus", texts, "--out", tmp_path, *SMALL]
    code, out, err = call(*wanted)
    assert code == 0 and (Path(out.strip()) / "result.json").exists()
    assert "max_distance 12 > half the trained length 16" in err
    code, out, _ = call(*wanted, "--json", "--seed", "3")
    assert code == 0 and json.loads(out)["seed"] == 3


def test_a_plan_is_the_config_that_torchrun_takes_and_says_what_it_costs(call, texts, tmp_path):
    from whorl.lab.distributed import read_config

    small = ["layers=2" if word == "layers=1" else word for word in SMALL]
    words = ["rope/none", "--corpus", texts, *small, "--set", "kv_heads=1", "--seed", "3"]
    code, out, err = call("lab", "plan", *words)
    assert code == 0 and err.startswith("1 run: 0.0 M tokens to train on"), err
    (tmp_path / "config.json").write_text(out)
    config = read_config(tmp_path / "config.json")
    code, folder, err = call("lab", "run", *words, "--out", tmp_path / "out")
    assert code == 0 and Path(folder.strip()).name == config.id and "bytes scored at each length" in err


@pytest.mark.parametrize("command", ["run", "plan"])
def test_one_run_takes_a_file_that_registers_its_encoding(call, texts, tmp_path, command):
    words = ["--corpus", texts, *SMALL, *(["--out", tmp_path / "out"] if command == "run" else [])]
    try:
        mine = write_plugin(tmp_path / "mine.py", "mine")
        assert call("lab", command, mine, *words)[0] == 0
        both = write_plugin(tmp_path / "both.py", "one", "two")
        code, _, err = call("lab", command, both, *words)
        assert code == 2 and f"lab {command}: {both} registers one, two, and a run has one." in err
    finally:
        forget("mine", "one", "two")


def test_a_run_that_diverges_ends_with_status_1(call, texts, tmp_path):
    rates = ["--set", "learning_rate=1e30", "--set", "clip=1e30"]
    code, _, err = call("lab", "run", "rope", "--corpus", texts, "--out", tmp_path, *SMALL, *rates)
    assert code == 1 and "rope stopped early: the loss is" in err


def test_a_task_is_shown_by_exact_match_and_has_no_interval_of_text(call, tmp_path):
    sizes = [word for word in SMALL if word not in ("--lengths", "8,16,32")]
    code, out, _ = call("compare", "rope", "--corpus", "task:sort", "--out", tmp_path, "--workers", 1, *sizes)
    lines = out.splitlines()
    assert code == 0 and lines[0] == "exact match, sort; trained at 16" and lines[2].split()[:2] == ["rope", "0.000"]
    assert "±" not in out and "ties" not in out and lines[3].startswith("report:")


def test_a_sweep_reads_its_file(call, texts, tmp_path):
    (tmp_path / "grid.toml").write_text(
        f'encodings = ["rope"]\n[grid]\nbase = [100.0, 10000.0]\n[run]\ncorpus = "{texts}"\ntrain_length = 16\n'
        "steps = 3\nbatch = 4\nlengths = [8, 16]\nlayers = 1\nwidth = 16\nheads = 2\neval_bytes = 256\n"
    )
    words = ["lab", "sweep", tmp_path / "grid.toml", "--out", tmp_path / "out", "--workers", 1, "--baseline", "rope"]
    code, out, err = call(*words)
    assert code == 0 and [line.partition("  ")[0] for line in out.splitlines()[2:4]] == ["rope base=100", "rope"]
    assert "2 runs: " in err.splitlines()[0] and "less rope" in out


def test_a_comparison_in_which_a_run_diverges_ends_with_status_1_and_is_made_anew_on_retry(call, texts, tmp_path):
    wanted = ["compare", "rope", "--corpus", texts, "--out", tmp_path, "--workers", 1, *SMALL]
    wanted += ["--set", "learning_rate=1e30", "--set", "clip=1e30", "--steps", "12"]
    code, _, err = call(*wanted)
    assert code == 1 and "rope: diverged: the loss is" in err
    assert "failed: it diverged: the loss is nan at step" in err and "Lower learning_rate" in err
    assert "With --retry it is made anew." in err and "rope, seed 0: stopped early" in err
    (result,) = tmp_path.glob("runs/*/result.json")
    before = result.stat().st_mtime_ns
    code, _, err = call(*wanted)
    assert code == 1 and "failed: it diverged" in err and result.stat().st_mtime_ns == before
    code, _, err = call(*wanted, "--retry")
    assert code == 1 and "rope: diverged: the loss is" in err and result.stat().st_mtime_ns > before
    code, _, err = call(*wanted[:-6], "--retry")  # at the usual rate
    assert code == 0
    finished = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/result.json")}
    assert call(*wanted[:-6], "--retry")[0] == 0
    assert {path: path.stat().st_mtime_ns for path in finished} == finished  # a sound run is not made again


def test_a_comparison_says_what_to_beware_of(call, texts, tmp_path):
    names = ["rope", "t5:max_distance=12,buckets=8"]
    words = ["compare", *names, "--corpus", texts, "--out", tmp_path, "--workers", 1, "--repairs", "yarn", *SMALL]
    code, _, err = call(*words)
    assert code == 0 and "max_distance 12 > half the trained length 16" in err
    assert err.count("yarn: at trained length 16 the fastest pair turns 3 times") == 1


def test_where_a_run_fails_the_others_are_shown_and_the_status_is_1(call, texts, tmp_path, monkeypatch):
    from whorl.errors import WhorlError

    real = run_many.run_one

    def failing(config, *args, **options):
        if config.encoding["name"] == "rope":
            raise WhorlError("no good")
        return real(config, *args, **options)

    monkeypatch.setattr(run_many, "run_one", failing)
    code, out, err = call("compare", "rope", "alibi", "--corpus", texts, "--out", tmp_path, "--workers", 1, *SMALL)
    assert code == 1 and "alibi" in out and "failed: no good" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["compare", "ropee"], "unknown encoding 'ropee'. Did you mean 'rope'?"),
        (["compare"], "compare: no encodings"),
        (["compare", "rope", "--lengths", "8,x"], "--lengths must be positive numbers with commas"),
        (
            ["compare", "rope", "--fine-tune", "2", "--set", "fine_tune_steps=3"],
            "--fine-tune and --set fine_tune_steps",
        ),
        (["compare", "rope", "--address", "here"], "--address would be ignored without --on ray"),
        (["compare", "rope", "--on", "moon"], "unknown place to run 'moon'"),
        (["compare", "rope", "--set", "wdth=3"], "unknown setting 'wdth'. Did you mean 'width'?"),
        (["compare", "rope", "--preset", "demi"], "unknown preset 'demi'. Did you mean 'demo'?"),
        (["compare", "rope", "--corpus", "/nowhere"], "no corpus at /nowhere"),
        (["compare", "rope", "--lang", "xx"], "unknown lang 'xx'"),
        (["lab", "report", "/nowhere"], "no finished run under /nowhere"),
        (["lab", "sweep", "/nowhere.toml"], "cannot read /nowhere.toml"),
    ],
)
def test_misuse_ends_with_status_2_and_one_line(call, texts, tmp_path, words, said):
    out = [] if words[:2] == ["lab", "report"] else ["--out", tmp_path / "out"]
    text = ["--corpus", texts, *SMALL] if words[0] == "compare" and "--corpus" not in words and len(words) > 1 else []
    clash = [one for one in text if one in words]
    if "--lengths" in clash:
        text = [one for i, one in enumerate(text) if one != "--lengths" and text[i - 1] != "--lengths"]
    code, _, err = call(*words, *text, *out)
    assert code == 2 and said in err and len(err.splitlines()) == 1, err
    assert not (tmp_path / "out" / "runs").exists()


# -- what is concluded ------------------------------------------------------------------------------------------------


def test_runs_that_are_not_alike_make_no_report_unless_it_says_so(call, texts, tmp_path):
    """Two models of other sizes and steps were "ALiBi has the lowest loss … the published order reproduces here"."""
    assert call("lab", "run", "rope", "--corpus", texts, "--out", tmp_path, *SMALL)[0] == 0
    larger = [*SMALL[:2], "--steps", "6", *SMALL[4:6], "--set", "layers=2", *SMALL[8:]]
    assert call("lab", "run", "alibi", "--corpus", texts, "--out", tmp_path, *larger)[0] == 0
    code, out, err = call("lab", "report", tmp_path)
    assert code != 0 and not out and "layers 1 and 2" in err.replace("2 and 1", "1 and 2") and "steps" in err
    assert not (tmp_path / "report.html").exists()
    code, out, err = call("lab", "report", tmp_path, "--unequal")
    assert code == 0 and "These runs are not equal" in err
    assert "These runs are not equal" in (tmp_path / "report.html").read_text()
    data = json.loads((tmp_path / "comparison.json").read_text())
    assert set(data["unequal"]) == {"layers", "steps"} and "not equal" in data["verdict"]["en"]["unequal"]
    assert call("lab", "report", tmp_path, "--factor", "layers", "--factor", "steps")[0] == 0


def test_two_texts_in_one_folder_are_no_comparison(call, texts, tmp_path):
    other = write_texts(tmp_path / "other", seed=7)
    for name, text in (("rope", texts), ("alibi", other)):
        assert call("lab", "run", name, "--corpus", text, "--out", tmp_path / "out", *SMALL)[0] == 0
    code, _, err = call("lab", "report", tmp_path / "out")
    assert code != 0 and "corpus" in err


def test_nothing_that_was_written_is_overwritten(call, texts, tmp_path):
    """A second comparison with the same --out left nothing of the report, the CSV and the JSON of the first."""
    wanted = ["--corpus", texts, "--out", tmp_path, "--workers", 1, *SMALL]
    assert call("compare", "rope", "alibi", *wanted)[0] == 0
    first = {name: (tmp_path / name).read_bytes() for name in ("report.html", "comparison.json", "comparison.csv")}
    assert call("compare", "none", "alibi", *wanted)[0] == 0
    assert call("compare", "none", "alibi", *wanted)[0] == 0
    kept = sorted((tmp_path / "reports").iterdir())
    assert len(kept) == 2 and all(re.match(r"20\d\d-\d\d-\d\dT\d{6}Z", path.name) for path in kept)
    assert {name: (kept[0] / name).read_bytes() for name in first} == first
    assert json.loads((tmp_path / "comparison.json").read_text())["rows"][0]["label"] == "none"


def test_rows_keep_their_order_and_their_colours(call, texts, tmp_path):
    """lab report ordered rows by the alphabet, and with them colours and markers."""
    wanted = ["--corpus", texts, "--out", tmp_path, "--workers", 1, *SMALL]
    assert call("compare", "rope", "none", "alibi", *wanted, "--seeds", 2)[0] == 0
    before = (tmp_path / "report.html").read_text()
    assert call("lab", "report", tmp_path)[0] == 0
    labels = [row["label"] for row in json.loads((tmp_path / "comparison.json").read_text())["rows"]]
    assert labels == ["rope", "none", "alibi"]
    after = (tmp_path / "report.html").read_text()
    assert re.findall(r'class="line (\w+)"', after) == re.findall(r'class="line (\w+)"', before)


def test_a_baseline_is_what_differences_are_taken_to(call, texts, tmp_path):
    wanted = ["compare", "rope", "alibi", "none", "--corpus", texts, "--out", tmp_path, "--workers", 1, *SMALL]
    code, out, _ = call(*wanted, "--baseline", "alibi")
    assert code == 0 and any(line.startswith("less alibi") for line in out.splitlines())
    rows = out.partition("less alibi")[2].splitlines()[1:3]
    assert [row.split()[0] for row in rows] == ["rope", "none"]
    code, out, err = call(*wanted, "--baseline", "alibbi", "--seeds", 2)
    assert code != 0 and "Did you mean 'alibi'" in err
    assert len(list(tmp_path.glob("runs/*/result.json"))) == 3  # nothing was trained for it
