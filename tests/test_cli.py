"""The command line: what it prints where, how it ends, and that help and completion need no torch."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from typing import ClassVar

import pytest
import torch
from typer.main import get_command

import whorl
from whorl import registry
from whorl.cli import output
from whorl.cli.app import app, run
from whorl.cli.show import worth_showing
from whorl.config import Config, config
from whorl.encodings.base import Claims, Encoding
from whorl.encodings.rotary import Rotary

COMMANDS = {
    "": {"--version", "--install-completion", "--show-completion"},
    "list": {"--json", "--table"},
    "show": {
        "name",
        "--head-dim",
        "--base",
        "--scaling",
        "--factor",
        "--original-length",
        "--length",
        "--set",
        "--all",
        "--json",
    },
    "inspect": {"path", "--json", "--lint", "--assume"},
    "families": {"--json"},
    "plot": {"kind", "what", "--out", "--length", "--dim", "--trained", "--method", "--metric"},
    "verify": {"names", "--report", "--json"},
    "compare": {
        "names",
        "--corpus",
        "--train-length",
        "--lengths",
        "--steps",
        "--seeds",
        "--preset",
        "--out",
        "--repairs",
        "--fine-tune",
        "--set",
        "--lang",
        "--on",
        "--address",
        "--workers",
        "--tensorboard",
        "--json",
    },
    "lab": set(),
    "lab run": {
        "name",
        "--corpus",
        "--train-length",
        "--lengths",
        "--steps",
        "--seed",
        "--preset",
        "--out",
        "--repairs",
        "--fine-tune",
        "--set",
        "--tensorboard",
        "--json",
    },
    "lab sweep": {"file", "--out", "--lang", "--on", "--address", "--workers", "--tensorboard", "--json"},
    "lab report": {"folder", "--lang", "--json"},
    "lab migrate": {"run", "--to", "--freeze", "--rate", "--steps", "--json"},
    "lab generate": {"run", "--prompt", "--count", "--temperature", "--top-k", "--seed"},
    "lab match": {
        "file",
        "--test",
        "--encodings",
        "--lengths",
        "--seeds",
        "--steps",
        "--tokens",
        "--set",
        "--out",
        "--json",
    },
    "lab pretrain": {"name", "--corpus", "--stages", "--factor", "--seed", "--set", "--out", "--json"},
    "lab classify": {"--encodings", "--datasets", "--seeds", "--steps", "--set", "--out", "--json"},
    "lab ablate": {"what", "--corpus", "--lengths", "--seeds", "--steps", "--runs", "--set", "--out", "--json"},
    "bench": {"name", "--repeats", "--set", "--out", "--json"},
    "doctor": {"--json"},
}


@pytest.fixture
def call(capsys):
    """Runs a command in this process: (exit status, stdout, stderr)."""

    def call(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run(arguments)
        return code, *capsys.readouterr()

    return call


@pytest.fixture
def answer(call):
    """The JSON a command answers with --json, which must be all of its stdout."""

    def answer(*arguments: str) -> dict:
        code, out, _ = call(*arguments, "--json")
        assert code == 0
        return json.loads(out)

    return answer


def test_the_set_of_commands_and_options_is_frozen():
    command = get_command(app)
    groups = {"": command} | dict(command.commands)  # pyright: ignore[reportAttributeAccessIssue]
    for name, group in list(groups.items()):
        groups |= {f"{name} {below}": one for below, one in getattr(group, "commands", {}).items() if name}
    surface = {
        name: {max(param.opts, key=len) for param in group.params if "--help" not in param.opts}
        for name, group in groups.items()
    }
    assert surface == COMMANDS


def test_help_version_and_completion_import_no_torch():
    script = """
import contextlib, io, os, sys
from whorl.cli.app import run
said = io.StringIO()
with contextlib.redirect_stdout(said):
    commands = ("list", "show", "plot", "compare", "lab", "bench", "doctor")
    for words in (["--help"], ["--version"], *([name, "--help"] for name in commands)):
        assert run(words) == 0, words
    for typed in ("show ya", "show mro", "show rope --scaling dyn", "bench ta", "compare sandw", "plot clo"):
        os.environ.update(_WHORL_COMPLETE="complete_zsh", _TYPER_COMPLETE_ARGS="whorl " + typed)
        run([])
heavy = {"torch", "numpy", "transformers"} & set(sys.modules)
assert not heavy, heavy
print(said.getvalue())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    words = ("--original-length", "yarn", "mrope", "dynamic_ntk", "tables", "sandwich", "clocks")
    for said in (f"whorl {whorl.__version__}", *words):
        assert said in done.stdout


def test_no_command_prints_help_and_ends_as_misuse(call):
    code, out, err = call()
    assert code == 2 and "Usage" in out + err


def test_list_answers_for_the_whole_registry(answer):
    listed = answer("list")
    assert [one["name"] for one in listed["encodings"]] == whorl.names()
    assert {one["name"] for one in listed["scalings"]} == set(registry.SCALINGS)
    rope = next(one for one in listed["encodings"] if one["name"] == "rope")
    assert rope["summary"] == "RoPE, the rotary position embedding"
    assert rope["enters"] == ["transform_qk"] and rope["parameters"] == {}
    assert rope["claims"]["relative"] and not rope["claims"]["decays"]
    mixed = next(one for one in listed["encodings"] if one["name"] == "mixed_rope")
    assert mixed["parameters"] == {"frequencies_2d": [2, 8, 64]}
    dependent = {one["name"] for one in listed["scalings"] if one["length_dependent"]}
    assert dependent == {"dynamic_ntk", "longrope"}


def test_the_table_has_a_row_for_each_encoding(answer, call, monkeypatch):
    from whorl.claims import overview

    monkeypatch.setattr(overview, "ROUNDS", 1)
    assert [one["encoding"] for one in answer("list", "--table")] == whorl.names()
    code, out, _ = call("list", "--table")
    assert code == 0 and len([line for line in out.splitlines() if line.startswith("| ")]) == len(whorl.names()) + 1


def test_list_in_a_pipe_is_one_plain_line_each(call, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "40")
    code, out, err = call("list")
    assert code == 0 and err == "" and "\x1b" not in out
    lines = [line for line in out.splitlines() if line]
    assert [line.split()[0] for line in lines] == [
        "encoding",
        *whorl.names(),
        "scaling",
        *sorted(registry.SCALINGS),
    ]
    assert lines[-1].startswith("yarn") and lines[-1].endswith("no")
    rope = next(line for line in lines if line.startswith("rope "))
    assert "queries and keys" in rope


def test_a_terminal_gets_a_table_without_colour_where_none_is_wanted(call, monkeypatch):
    monkeypatch.setattr(output, "on_terminal", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    code, out, _ = call("list")
    assert code == 0 and "─" in out and "\x1b[3" not in out
    assert max(map(len, out.splitlines())) <= 100


def test_the_next_command_is_said_to_people_only(call, monkeypatch, capsys):
    assert "next:" not in call("list")[2]
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    output.suggest("whorl show rope")
    assert capsys.readouterr().err == "next: whorl show rope\n"


@pytest.fixture
def toy():
    """An encoding of a user's own, that rotates nothing."""

    @config
    class ToyConfig(Config):
        name: ClassVar[str] = "toy"
        heads: int
        slope: float = 1.0

    class Toy(Encoding):
        """A bias that falls with the distance.

        slope * distance
        """

        Config = ToyConfig

        @property
        def claims(self):
            return Claims(relative=True, norm_preserving=True, linear_attention=False, decays=True, extrapolates=True)

        def score_bias(self, q_positions, k_positions, length=None):
            return None

    whorl.register(Toy)
    yield Toy
    del registry.ENCODINGS["toy"]


def test_an_encoding_of_the_users_own_is_listed_and_shown(toy, call, answer):
    listed = next(one for one in answer("list")["encodings"] if one["name"] == "toy")
    assert listed["summary"] == "A bias that falls with the distance" and listed["enters"] == ["score_bias"]
    code, out, err = call("show", "toy", "--set", "slope=0.5")
    assert code == 0 and "slope=0.5" in out and "score bias" in out and "wavelength" not in out
    assert "heads=8" in err
    code, out, err = call("show", "toy", "--length", "8")
    assert code == 2 and out == "" and "--length would be ignored" in err


def test_an_encoding_that_must_be_told_more_is_listed_all_the_same(toy, call, answer, monkeypatch):
    @config
    class HungryConfig(toy.Config):
        name: ClassVar[str] = "hungry"
        taste: str

    class Hungry(toy):
        """Needs to be told."""

        Config = HungryConfig

    monkeypatch.setitem(registry.ENCODINGS, "hungry", Hungry)
    listed = next(one for one in answer("list")["encodings"] if one["name"] == "hungry")
    assert listed["claims"] is None and listed["enters"] == ["score_bias"]
    line = next(line for line in call("list")[1].splitlines() if line.startswith("hungry"))
    assert line.split()[-2:] == ["?", "?"]
    assert call("show", "hungry")[2] == "Hungry: taste missing. Pass taste=….\n"
    assert answer("show", "hungry", "--set", "taste=salt")["config"]["taste"] == "salt"


@pytest.mark.parametrize("name", [*registry.ENCODINGS, *registry.SCALINGS])
def test_show_works_for_every_name_without_options(name, call, answer):
    shown = answer("show", name)
    built = whorl.from_dict(shown["config"])
    assert built.config.to_dict() == shown["config"]
    code, out, err = call("show", name)
    assert code == 0
    if name in registry.SCALINGS:
        assert shown["config"]["scaling"]["name"] == name
        assert out.startswith(shown["scaling"]["summary"])
    else:
        assert out.startswith(shown["summary"])
    for key in shown["filled_in"]:
        assert f"{key}=" in err
    if isinstance(built, Rotary):
        frequencies = built.frequencies().detach().flatten().tolist()
        assert frequencies and [row["frequency"] for row in shown["pairs"]] == frequencies
        assert all(row["turns"] >= 0 for row in shown["pairs"])
        assert "wavelength" in out


def test_show_rope_has_the_numbers_of_the_paper(answer):
    shown = answer("show", "rope", "--head-dim", "64", "--base", "500", "--length", "1000")
    assert shown["config"]["head_dim"] == 64 and shown["config"]["base"] == 500.0
    assert shown["attention_factor"] == shown["softmax_factor"] == 1.0 and shown["context"] == 1000
    assert any("base^(-2i/d)" in line for line in shown["formula"])
    assert len(shown["pairs"]) == 32
    for i, row in enumerate(shown["pairs"]):
        wavelength = 2 * math.pi * 500 ** (2 * i / 64)
        assert row["pair"] == i and row["axis"] == 0
        assert math.isclose(row["wavelength"], wavelength, rel_tol=1e-12)
        assert math.isclose(row["turns"], 1000 / wavelength, rel_tol=1e-12)


def test_show_a_scaling_is_a_rope_with_it(answer):
    shown = answer("show", "yarn")
    assert shown["config"]["name"] == "rope"
    assert shown["config"]["scaling"]["factor"] == 4.0 and shown["config"]["scaling"]["original_length"] == 4096
    assert math.isclose(shown["attention_factor"], 0.1 * math.log(4) + 1)
    assert shown["context"] == 4096 and shown["context_is"] == "the original length"
    assert shown["pairs"][0]["slower"] == 1.0 and math.isclose(shown["pairs"][-1]["slower"], 4.0)
    same = answer("show", "rope", "--scaling", "yarn", "--factor", "4", "--original-length", "4096")
    assert same["config"] == shown["config"] and same["filled_in"] == {"head_dim": 128}


def test_what_does_not_turn_has_no_wavelength_in_json(answer):
    last = answer("show", "proportional")["pairs"][-1]
    assert last["frequency"] == 0.0 and last["wavelength"] is None and last["slower"] is None and last["turns"] == 0.0


def test_frequencies_follow_the_length_served(answer, call):
    at_rest = answer("show", "dynamic_ntk")["pairs"][-1]["slower"]
    served = answer("show", "dynamic_ntk", "--length", "8192")
    assert at_rest == 1.0 and served["context"] == 8192
    assert math.isclose(served["pairs"][-1]["slower"], 4 * 8192 / 4096 - 3)
    assert "depend on the length" in call("show", "dynamic_ntk")[2]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["rope", "--set", "layout=interleaved"], {"layout": "interleaved"}),
        (["rope", "--set", "rotary_dim=64", "--set", "slice=32"], {"rotary_dim": 64, "slice": 32}),
        (["rope", "--set", "slice=trailing", "--set", "rotary_dim=2"], {"slice": "trailing"}),
        (["rope", "--set", "learnable=true"], {"learnable": True}),
        (["rope", "--set", "scaling=null"], {"scaling": None}),
        (["rope", "--head-dim", "4", "--set", "frequencies=[1, 0.5]"], {"frequencies": [1.0, 0.5], "base": None}),
        (["mrope", "--set", "sections=[20, 20, 24]"], {"sections": [20, 20, 24]}),
        (["mrope", "--set", "arrangement=interleaved"], {"sections": [24, 20, 20]}),
        (["mrope", "--set", "arrangement=ernie"], {"sections": [22, 22, 20]}),
        (["mrope", "--set", "rotary_dim=64"], {"sections": [8, 12, 12]}),
        (["axial_rope", "--set", "convention=pixtral"], {"convention": "pixtral", "base": 10_000.0}),
        (["mixed_rope", "--set", "heads=2", "--head-dim", "8"], {"heads": 2, "head_dim": 8}),
    ],
)
def test_every_setting_can_be_set(arguments, expected, answer):
    given = answer("show", *arguments)["config"]
    assert {key: given[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["yarn", "--set", "scaling.beta_fast=16"], {"beta_fast": 16.0, "beta_slow": 1.0}),
        (["yarn", "--set", "scaling.truncate=false"], {"truncate": False}),
        (["rope", "--scaling", "linear", "--factor", "2.5"], {"name": "linear", "factor": 2.5}),
        (["rope", "--set", "scaling=llama3"], {"name": "llama3", "factor": 4.0}),
        (["rope", "--set", 'scaling={"name": "ntk", "factor": 8}'], {"name": "ntk", "factor": 8.0}),
        (["longrope", "--head-dim", "4"], {"short_factor": [1.0, 1.0], "long_factor": [1.0, 4.0], "factor": 4.0}),
        (["longrope", "--head-dim", "4", "--factor", "9"], {"long_factor": [1.0, 9.0], "factor": 9.0}),
        (["longrope", "--set", "scaling.attention_factor=1.5"], {"attention_factor": 1.5, "factor": None}),
        (["proportional", "--factor", "2"], {"fraction": 0.25, "factor": 2.0}),
        (["mrope", "--scaling", "yarn", "--factor", "2"], {"name": "yarn", "factor": 2.0}),
    ],
)
def test_every_setting_of_a_scaling_can_be_set(arguments, expected, answer):
    given = answer("show", *arguments)["config"]["scaling"]
    assert {key: given[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("show ropes", "unknown encoding or scaling 'ropes'. Did you mean 'rope'?"),
        ("show rope --head-dim 33", "Rope: head_dim must be even, got 33."),
        ("show rope --base nan", "Rope: base must be finite, got nan."),
        ("show rope --length 0", "Rope: length must be a positive integer or None, got 0."),
        ("show rope --scaling yran", "unknown scaling 'yran'. Did you mean 'yarn'?"),
        ("show rope --scaling linear --factor 0.5", "Linear: factor must be at least 1, got 0.5."),
        ("show rope --factor 4", "show: no scaling is named to have factor. Pass --scaling yarn, say."),
        ("show rope --scaling linear --original-length 9", "Linear: unknown setting 'original_length'."),
        ("show linear --scaling yarn", "show: linear is a scaling already, got another, 'yarn'."),
        ("show rope --set scaling.name=[1]", "unknown scaling [1]."),
        ("show rope --set scaling=null --factor 4", "show: scaling=null leaves its settings without a scaling."),
        ("show axial_rope --scaling yarn", "AxialRope: unknown setting 'scaling'."),
        ("show rope --set layout", "show: --set must be key=value, got 'layout'."),
        ("show rope --set =1", "show: --set must be key=value, got '=1'."),
        ("show rope --set layuot=half", "Rope: unknown setting 'layuot'. Did you mean 'layout'?"),
        ("show rope --set layout=halve", "Rope: unknown layout 'halve'. Did you mean 'half'?"),
        ("show rope --set base=1e4 --base 1e4", "show: --base and --set base both give base."),
        ("show rope --set base=5 --set base=6", "show: --set base is given twice."),
        ("show yarn --factor 2 --set scaling.factor=2", "show: --factor and --set scaling.factor both give"),
        ("show mrope --set head_dim=many", "MRope: head_dim must be an integer, got 'many'."),
        ("bench table", "unknown benchmark 'table'. Did you mean 'tables'?"),
        ("bench tables --repeats 0", "bench: repeats must be a positive integer, got 0."),
        ("bench tables --set lenght=8", "benchmark tables: unknown setting 'lenght'. Did you mean 'length'?"),
        ("bench tables --set length=many", "bench tables: length must be like 131072, got 'many'."),
        ("bench tables --set length=9", "bench tables: length must be a multiple of batch=4, got 9."),
    ],
)
def test_misuse_is_one_line_on_stderr_and_ends_with_2(arguments, message, call):
    code, out, err = call(*arguments.split())
    assert (code, out) == (2, "")
    assert err.startswith(message) and "Traceback" not in err and err.count("\n") == 1


def test_unknown_options_end_with_2(call):
    assert call("show", "rope", "--theta", "5")[0] == 2
    assert call("show", "rope", "--head-dim", "wide")[0] == 2
    assert call("sohw")[0] == 2


def test_show_leaves_out_the_middle_and_all_brings_it_back(call):
    few, every = call("show", "rope")[1], call("show", "rope", "--all")[1]
    pairs = [line.split()[0] for line in few.splitlines() if line[:4].strip().isdigit()]
    assert pairs == ["0", "1", "2", "45", "46", "61", "62", "63"]  # 45 turns once within 4096 positions, 46 does not
    assert "18 of 64 pairs do not make one turn within 4,096 positions." in few
    assert sum(line[:4].strip().isdigit() for line in every.splitlines()) == 64 and "…" not in every


def test_rows_worth_showing_are_chosen_by_axis_and_of_the_first_head():
    turns = [9.0, 5.0, 2.0, 0.5, 0.4, 0.3, 0.2, 0.1]
    rows = [
        {"axis": axis, "head": head, "pair": pair, "turns": turn}
        for axis in (0, 1)
        for head in (0, 1)
        for pair, turn in enumerate(turns)
    ]
    chosen = [(rows[i]["axis"], rows[i]["head"], rows[i]["pair"]) for i in worth_showing(rows)]
    assert chosen == [(axis, 0, pair) for axis in (0, 1) for pair in (0, 1, 2, 3, 5, 6, 7)]


def test_doctor_says_what_runs_and_why_the_rest_does_not(call, answer):
    rows = {row["what"]: row for row in answer("doctor")}
    assert rows["torch"]["usable"] and torch.__version__ in rows["torch"]["detail"]
    assert rows["CUDA"]["usable"] == torch.cuda.is_available()
    assert rows["rotate impl=torch"]["usable"] and rows["rotate impl=numba"]["usable"]
    assert "impl='auto'" in rows["rotate impl=triton" if torch.cuda.is_available() else "rotate impl=numba"]["detail"]
    for row in rows.values():
        assert row["usable"] or row["detail"]
    code, out, _ = call("doctor")
    assert code == 0 and "rotate impl=triton" in out


def test_doctor_ends_with_1_where_torch_is_missing(call, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(sys.modules, "numba", None)
    code, out, _ = call("doctor")
    assert code == 1 and "pip install torch" in out and 'pip install "whorl[cpu]"' in out


def test_doctor_ends_with_1_where_torch_is_too_old(call, monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.4.1")
    code, out, _ = call("doctor")
    assert code == 1 and "2.4.1, older than 2.11" in out


TINY = ("--repeats", "2", "--set", "device=cpu", "--set", "length=512", "--set", "head_dim=8", "--set", "far=65536")


def test_bench_answers_with_ratios_and_machine_facts(call, answer, tmp_path):
    kept = tmp_path / "results" / "tables.json"
    report = answer("bench", "tables", *TINY, "--out", str(kept))
    assert json.loads(kept.read_text()) == report
    sizes = {"length": 512, "head_dim": 8, "base": 10_000.0, "batch": 4, "far": 65536}
    assert report["settings"] == {"device": "cpu", **sizes}
    code, out, err = call("bench", "tables", *TINY)
    assert code == 0 and "exact, contiguous" in out and report["machine"]["cpu"] in out
    assert "tables: 6 paths, 2 rounds" in err
    code, out, err = call("bench", "tables", *TINY, "--out", str(kept))
    assert (code, out) == (2, "") and "exists, and recorded results are kept" in err


def test_bench_shows_no_speed_of_wrong_numbers(call, monkeypatch):
    from whorl.rotary import tables

    right = tables.exact
    monkeypatch.setattr(tables, "exact", lambda *given: tuple(table + 1e-6 for table in right(*given)))
    code, out, err = call("bench", "tables", *TINY)
    assert code == 1 and "its speed is not shown" in err
    rows = [line for line in out.splitlines() if line.startswith("exact, ")]
    assert len(rows) == 4 and all("not timed" in row and "over 4e-08" in row for row in rows)
    naive = next(line for line in out.splitlines() if line.startswith("naive"))
    assert "1.00" in naive and "not timed" not in naive
