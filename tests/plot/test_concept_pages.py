"""The pages that tell the story: claims they name exist, pictures are used, and their commands draw those pictures."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")
from matplotlib import pyplot

import whorl.plot
from whorl import claims
from whorl.cli import plot as command
from whorl.cli.app import run

DOCS = Path(__file__).parent.parent.parent / "docs"
PAGES = [DOCS / "concepts.md", DOCS / "learning-path.md"]
COMMANDS = [words for page in PAGES for words in re.findall(r"`(whorl plot [^`]*?)`", page.read_text(), re.DOTALL)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_claim_that_is_named_exists(page):
    known = {claim.id for claim in claims.every()}
    named = re.findall(r"\[([^\]]+)\]\(claims\.md#[^)]+\)", page.read_text())
    named = [name for name in named if name != "claims.md"]
    assert len(named) > 20 and [name for name in named if name not in known] == []


def test_what_a_page_says_of_a_claim_is_its_verdict():
    expected = {claim.id: claim.expected for claim in claims.every()}
    for page in PAGES:
        text = " ".join(page.read_text().split())
        for name in re.findall(r"\[([^\]]+)\]\(claims\.md#[^)]+\) fails", text):
            assert expected[name] == "fails", name
        for name in re.findall(r"\[([^\]]+)\]\(claims\.md#[^)]+\) holds", text):
            assert expected[name].startswith("holds"), name


def test_every_link_to_a_claim_leads_to_its_place():
    there = set(re.findall(r'<a id="([^"]+)"></a>', (DOCS / "claims.md").read_text()))
    for page in PAGES:
        linked = re.findall(r"\[([^\]]+)\]\(claims\.md#([^)]+)\)", page.read_text())
        assert linked and all(name == place and place in there for name, place in linked)


def test_every_picture_is_shown_and_small():
    shown = re.findall(r"!\[[^\]]+\]\(pictures/([^)]+)\)", (DOCS / "concepts.md").read_text())
    there = sorted(path.name for path in (DOCS / "pictures").iterdir())
    assert sorted(shown) == there
    assert sum((DOCS / "pictures" / name).stat().st_size for name in there) < 1_200_000
    assert {name.partition(".")[0] for name in there} == set(whorl.plot.KINDS)


@pytest.mark.parametrize("words", COMMANDS)
def test_every_command_is_one_that_can_be_given(words, tmp_path, monkeypatch):
    """What is named is built and the options are known; the drawing itself is tested elsewhere."""
    name, _, kind, *rest = shlex.split(words)
    rest[rest.index("-o") + 1] = str(tmp_path / rest[rest.index("-o") + 1])
    if kind == "losses":
        rest[0] = str(tmp_path / rest[0])
    monkeypatch.setitem(whorl.plot.__dict__, kind, lambda what, **options: pyplot.subplots()[1])
    assert name == "whorl" and kind in command.KINDS
    assert run(["plot", kind, *rest]) == 0
