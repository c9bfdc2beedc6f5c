"""Plugins: files that register encodings, run once, and what is wrong with others."""

from __future__ import annotations

import pytest

from own_encodings import forget, write_plugin
from whorl import plugins, registry
from whorl.errors import WhorlError


@pytest.fixture(autouse=True)
def clean():
    yield
    forget("mine", "other")


def test_a_file_is_run_once_and_its_names_are_known(tmp_path):
    file = write_plugin(tmp_path / "mine.py", "mine", "other")
    assert plugins.load_plugin(file) == ["mine", "other"] == plugins.load_plugin(str(file))
    assert plugins.file_of("mine") == file and plugins.file_of("rope") is None
    assert registry.build("mine", heads=2, amount=2.0).config.amount == 2.0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "there is no file"),
        ("1 / 0", "cannot be run, ZeroDivisionError"),
        ("x = 1", "registers no encoding. Call whorl.register"),
    ],
)
def test_a_file_that_registers_nothing_is_an_error(tmp_path, text, said):
    if text is not None:
        (tmp_path / "bad.py").write_text(text)
    with pytest.raises(WhorlError, match=said):
        plugins.load_plugin(tmp_path / "bad.py")
