"""The map in CONTRIBUTING.md: every file it names is there, and no walk is longer than twelve of them."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAP = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## The map")[2].partition("\n## ")[0]
WALKS = {text.partition("**")[0]: text for text in re.split(r"\n\*\*(?=[A-Z])", MAP)[1:]}


def test_there_are_five_walks():
    assert list(WALKS) == ["Attention", "A decoding step", "Compare", "Verify", "Read a config"]


@pytest.mark.parametrize("name", WALKS)
def test_a_walk_is_of_files_that_are_there_and_short(name):
    assert all((ROOT / "src" / "whorl" / path).exists() for path in files_in(WALKS[name]))
    before, _, last = WALKS[name].rpartition("─►")
    walk = before + re.split(r"\.\s", last)[0]  # what is beside the walk stands in sentences of its own, behind it
    assert 8 <= len(set(files_in(walk))) <= 12


def files_in(text):
    return re.findall(r"`([a-z0-9_/]+(?:\.py|/))`", text)
