"""Printing: plain lines in a pipe, tables on a terminal, the next command for people only."""

from __future__ import annotations

import sys

import whorl
from whorl import registry
from whorl.cli import output


def test_list_in_a_pipe_is_one_plain_line_each(call, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "40")
    code, out, err = call("list")
    assert code == 0 and err == "" and "\x1b" not in out
    lines = [line for line in out.splitlines() if line]
    assert [line.split()[0] for line in lines] == [
        "encoding",
        *whorl.names(),
        "parameters:",
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
