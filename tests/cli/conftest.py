"""Calls of the command line, for the tests of all commands."""

from __future__ import annotations

import json

import pytest


@pytest.fixture
def call(capsys):
    """Runs a command in this process: (exit status, stdout, stderr)."""

    def call(*arguments: str) -> tuple[int, str, str]:
        from whorl.cli.app import run  # here: without typer its tests are skipped, and this file is still read

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
