"""docs/checkpoints.md: every command on the page runs on the config above it and prints what the page shows."""

import re
from pathlib import Path

import pytest

from whorl.cli.app import run

PAGE = Path(__file__).parent.parent.parent / "docs" / "checkpoints.md"
BLOCKS = re.findall(r"```(json|console)(?: (\S+))?\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)


def shown():
    """(files by name, command, what it prints, exit code) of every command on the page."""
    files = {}
    before = "console"
    for kind, name, text in BLOCKS:
        if kind == "json":
            files = {**(files if before == "json" else {}), name or "config.json": text}
        else:
            command, printed, code = re.fullmatch(r"\$ whorl (.*?)\n(.*)\$ echo \$\?\n(\d)\n", text, re.DOTALL).groups()
            yield files, command, printed, int(code)
        before = kind


COMMANDS = list(shown())


def test_the_page_answers_by_commands():
    assert len(COMMANDS) >= 8
    assert {code for *_, code in COMMANDS} == {0, 1, 2}
    assert all(files for files, *_ in COMMANDS)
    assert {command.split()[0] for _, command, *_ in COMMANDS} == {"inspect", "diff", "export", "advise"}


# What people ask for, and the command of the section that answers it.
NEEDS = {
    "Does my server compute what I trained?": "diff config.json --as transformers5,vllm",
    "The file is in one schema, and my program reads the other": "export config.json --for hf-both",
    "What do I set for 128k?": "advise config.json --length 131072",
    "The draft model's guesses are all refused": "diff target.json draft.json",
    "The GGUF file is worse than the model it was made of": "export config.json --for gguf",
    "The server multiplies the length by the factor once more": "diff config.json --as transformers5,vllm",
    "Can these two models be merged?": "diff a.json b.json",
}


@pytest.mark.parametrize("need", NEEDS)
def test_every_need_has_a_section_with_a_command(need):
    sections = dict(
        re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    )
    assert f"$ whorl {NEEDS[need]}" in sections[need]
    assert any(command.startswith(NEEDS[need]) for _, command, *_ in COMMANDS)


@pytest.mark.parametrize(("files", "command", "printed", "code"), COMMANDS, ids=range(len(COMMANDS)))
def test_a_command_prints_what_the_page_shows(files, command, printed, code, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, text in files.items():
        Path(name).write_text(text, encoding="utf-8")
    assert run(command.split()) == code
    said = capsys.readouterr()
    assert said.out + said.err == printed


def test_readme_shows_what_the_page_shows():
    readme = (PAGE.parents[1] / "README.md").read_text(encoding="utf-8")
    ((config, printed),) = re.findall(
        r"```json\n(.*?)```\n\nit says\n\n```console\n\$ whorl inspect config.json\n(.*?)```", readme, re.DOTALL
    )
    assert (config, printed) in [
        (given["config.json"], text) for given, command, text, _ in COMMANDS if command == "inspect config.json"
    ]
