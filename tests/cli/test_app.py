"""The command line: its commands and options, how it ends, and that help and completion need no torch."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.main import get_command

import whorl
from whorl.cli.app import app
from whorl.cli.lab import lab

COMMANDS = {
    "": {"--version", "--install-completion", "--show-completion"},
    "list": {"--json", "--table", "--plugin"},
    "show": {
        "name",
        "--head-dim",
        "--base",
        "--scaling",
        "--factor",
        "--original-length",
        "--length",
        "--set",
        "--plugin",
        "--all",
        "--json",
    },
    "inspect": {"path", "--json", "--lint", "--assume"},
    "diff": {"a", "b", "--as", "--length", "--picture", "--json", "--assume"},
    "export": {"path", "--for", "--length", "--out", "--json", "--assume"},
    "advise": {"path", "--length", "--data-length", "--fine-tune", "--for", "--json", "--assume"},
    "families": {"--json"},
    "plot": {
        "kind",
        "what",
        "--out",
        "--length",
        "--dim",
        "--trained",
        "--method",
        "--metric",
        "--title",
        "--size",
        "--plugin",
        "--dpi",
    },
    "verify": {"names", "--report", "--lang", "--json"},
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
        "--retry",
        "--plugin",
        "--tensorboard",
        "--baseline",
        "--json",
    },
    "lab": set(),
    "lab plan": {
        "name",
        "--corpus",
        "--train-length",
        "--lengths",
        "--steps",
        "--seed",
        "--preset",
        "--repairs",
        "--fine-tune",
        "--set",
        "--plugin",
    },
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
        "--retry",
        "--plugin",
        "--tensorboard",
        "--json",
    },
    "lab sweep": {
        "file",
        "--out",
        "--lang",
        "--on",
        "--address",
        "--workers",
        "--tensorboard",
        "--baseline",
        "--json",
        "--retry",
        "--plugin",
    },
    "lab report": {"folder", "--lang", "--baseline", "--factor", "--unequal", "--plugin", "--json"},
    "lab migrate": {"run", "--to", "--freeze", "--rate", "--steps", "--plugin", "--json"},
    "lab generate": {"run", "--prompt", "--count", "--temperature", "--top-k", "--seed", "--plugin"},
    "lab match": {
        "file",
        "--test",
        "--encodings",
        "--lengths",
        "--seeds",
        "--steps",
        "--runs",
        "--tokens",
        "--set",
        "--out",
        "--plugin",
        "--json",
    },
    "lab pretrain": {
        "name",
        "--corpus",
        "--stages",
        "--factor",
        "--seed",
        "--runs",
        "--set",
        "--out",
        "--plugin",
        "--json",
    },
    "lab classify": {
        "--encodings",
        "--datasets",
        "--data",
        "--seeds",
        "--steps",
        "--runs",
        "--set",
        "--out",
        "--plugin",
        "--json",
    },
    "lab ablate": {"what", "--corpus", "--lengths", "--seeds", "--steps", "--runs", "--set", "--out", "--json"},
    "bench": {"name", "--repeats", "--set", "--out", "--json"},
    "doctor": {"--json"},
}


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


def test_no_annotation_of_a_command_is_a_string():
    """typer evaluates strings four times each, and for all commands whenever one is called."""
    functions = [one.callback for one in (*app.registered_commands, *lab.registered_commands)]
    assert len(functions) == len(COMMANDS) - 2
    for function in functions:
        assert not [name for name, value in function.__annotations__.items() if isinstance(value, str)], function


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


def test_the_module_runs_as_the_command_does():
    done = subprocess.run([sys.executable, "-m", "whorl", "--version"], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.strip() == f"whorl {whorl.__version__}", done.stderr


def test_no_command_prints_help_and_ends_as_misuse(call):
    code, out, err = call()
    assert code == 2 and "Usage" in out + err


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
