"""Files that anyone may have written: what is refused before it is read, and what it says."""

import json
import os
import re

import pytest

import whorl
from whorl import WhorlError
from whorl.dialects import documents
from whorl.dialects.documents import parse_json, read_json
from whorl.dialects.folders import find_document

LLAMA = {"model_type": "llama", "hidden_size": 512, "num_attention_heads": 8, "num_hidden_layers": 2}

TEXTS = {
    "a key twice": ('{"rope_theta": 1, "rope_theta": 2}', "the key 'rope_theta' stands there twice"),
    "a key twice inside": ('{"a": {"b": 1, "b": 1}}', "the key 'b' stands there twice"),
    "NaN": ('{"rope_theta": NaN}', "NaN is not JSON"),
    "Infinity": ('{"rope_theta": -Infinity}', "-Infinity is not JSON"),
    "a float beyond every float": ('{"rope_theta": 1e999}', "the number '1e999' is beyond every float"),
    "a number of 401 digits": (f'{{"rope_theta": {10**400}}}', "a number of 401 digits"),
    "a number of 5000 digits": ('{"rope_theta": ' + "9" * 5000 + "}", "a number of 5000 digits"),
    "a text that ends early": ('{"rope_theta": 1', "Expecting ',' delimiter in line 1, column 17"),
    "nothing": ("", "Expecting value in line 1, column 1"),
    "a list": ("[1]", "it holds [1] in place of a dict"),
    "a number": ("3", "it holds 3 in place of a dict"),
    "dicts without end": ('{"a":' * 100_000 + "1" + "}" * 100_000, "it is nested too deeply"),
    "70 levels": ('{"a":' * 70 + "1" + "}" * 70, "it is nested more than 64 levels deep"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_that_programs_read_differently_is_refused(name):
    text, message = TEXTS[name]
    with pytest.raises(
        WhorlError, match=re.escape(f"read: here is not a config that all programs read alike: {message}")
    ):
        parse_json(text, "here")


def test_a_text_that_is_not_utf_8_is_refused_and_a_byte_order_mark_is_not():
    with pytest.raises(WhorlError, match="it is not UTF-8 text"):
        parse_json(b'{"a": "\xff"}', "here")
    assert parse_json(b'\xef\xbb\xbf{"a": 1}', "here") == {"a": 1}


def test_large_numbers_that_tokenizers_write_are_read():
    assert parse_json('{"model_max_length": 1000000000000000019884624838656}', "here")["model_max_length"] > 10**29


def test_a_file_that_is_too_large_is_not_parsed(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "LARGEST_JSON", 100)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"a": "x" * 200}))
    with pytest.raises(WhorlError, match="has more than 100 bytes, too many for a config"):
        read_json(path)


def test_no_more_than_the_limit_is_read_of_a_file(tmp_path):
    path = tmp_path / "weights"
    path.write_bytes(b"0123456789")
    assert documents.read_bytes(path, at_most=4) == b"0123"
    assert documents.read_bytes(path, at_most=4, start=8) == b"89"


def test_a_folder_is_searched_for_its_config(tmp_path):
    with pytest.raises(WhorlError, match=re.escape("has none of: config.json, params.json")):
        find_document(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert find_document(tmp_path).path.name == "config.json"
    assert whorl.read(tmp_path).family == "llama"


def test_a_link_that_leaves_the_folder_is_refused(tmp_path):
    (tmp_path / "secret.json").write_text(json.dumps(LLAMA))
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").symlink_to(tmp_path / "secret.json")
    with pytest.raises(WhorlError, match=r"config\.json in .* is a link that leaves the folder"):
        whorl.read(folder)
    assert whorl.read(tmp_path / "secret.json").family == "llama"  # named by the user


def test_a_link_inside_the_folder_is_followed(tmp_path):
    (tmp_path / "real.json").write_text(json.dumps(LLAMA))
    (tmp_path / "config.json").symlink_to("real.json")
    assert whorl.read(tmp_path).family == "llama"


def test_the_hugging_face_cache_links_to_its_blobs(tmp_path):
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "abc"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    (blobs / "0123").write_text(json.dumps(LLAMA))
    (snapshot / "config.json").symlink_to("../../blobs/0123")
    assert whorl.read(snapshot).family == "llama"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_what_is_neither_file_nor_folder_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(WhorlError, match="is neither a file nor a folder"):
        whorl.read(tmp_path / "pipe")


def test_a_file_is_never_unpickled(tmp_path):
    path = tmp_path / "model.bin"
    path.write_bytes(b"\x80\x04cos\nsystem\n(S'exit 1'\ntR.")
    with pytest.raises(WhorlError, match="not a config that all programs read alike"):
        whorl.read(path)
