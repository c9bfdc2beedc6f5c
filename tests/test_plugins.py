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


def test_a_file_may_have_annotations_that_are_read_later(tmp_path):
    file = write_plugin(tmp_path / "mine.py", "mine")
    file.write_text(f"from __future__ import annotations\n{file.read_text()}")
    assert plugins.load_plugin(file) == ["mine"]
    assert registry.build("mine", heads=2, amount=2.0).config.to_dict()["amount"] == 2.0


def test_two_files_of_one_name_are_two_modules(tmp_path):
    (tmp_path / "sub").mkdir()
    first, second = (write_plugin(tmp_path / path, name) for path, name in (("a.py", "mine"), ("sub/a.py", "other")))
    assert plugins.load_plugin(first) + plugins.load_plugin(second) == ["mine", "other"]
    assert registry.encoding_class("mine").__module__ != registry.encoding_class("other").__module__


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


def test_a_file_that_is_no_python_is_an_error(tmp_path):
    (tmp_path / "text.txt").write_text("some words")
    with pytest.raises(WhorlError, match=r"text\.txt is no Python file\. Pass a \.py file"):
        plugins.load_plugin(tmp_path / "text.txt")
