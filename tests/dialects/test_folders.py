"""Folders of models: which file is read, what is said of the others, and what is refused."""

import json
import re

import pytest

import whorl
from gguf_files import SIZES, write_gguf
from whorl import WhorlError
from whorl.bridge.linting import examine, lint

LLAMA = {"model_type": "llama", "hidden_size": 512, "num_attention_heads": 8, "num_hidden_layers": 2}
LLAMA |= {"max_position_embeddings": 4096}
META = {"dim": 512, "n_layers": 2, "n_heads": 8, "multiple_of": 256, "norm_eps": 1e-5, "vocab_size": -1}
MISTRAL = {"dim": 512, "n_layers": 2, "n_heads": 8, "head_dim": 64, "hidden_dim": 1024, "n_kv_heads": 8}
MISTRAL |= {"norm_eps": 1e-5, "vocab_size": 32000}


def folder(path, **files):
    for name, content in files.items():
        (path / f"{name}.json").write_text(json.dumps(content))
    return path


def differing(path):
    return [one.what for one in lint(path) if one.rule == "two-files-differ"]


# --- config.json beside params.json


@pytest.mark.parametrize("params", [META, MISTRAL], ids=["meta", "mistral"])
def test_a_params_json_with_another_base_is_found_with_both_values(tmp_path, params):
    folder(tmp_path, config=LLAMA | {"rope_theta": 1e6}, params=params | {"rope_theta": 500000.0})
    assert differing(tmp_path) == ["the base is 1e+06 in config.json and 500000 in params.json"]
    assert differing(tmp_path / "config.json") == []  # the file alone was asked for


@pytest.mark.parametrize("params", [META, MISTRAL], ids=["meta", "mistral"])
def test_two_files_that_agree_are_not_found(tmp_path, params):
    folder(tmp_path, config=LLAMA | {"rope_theta": 1e6}, params=params | {"rope_theta": 1e6})
    assert differing(tmp_path) == []


def test_scalings_that_one_file_has_alone_are_found(tmp_path):
    folder(
        tmp_path, config=LLAMA | {"rope_theta": 500000.0}, params=META | {"rope_theta": 5e5, "use_scaled_rope": True}
    )
    assert "the scaling is none in config.json and llama3 in params.json" in differing(tmp_path)


def test_layers_and_windows_that_differ_are_found(tmp_path):
    config = LLAMA | {"model_type": "mistral", "rope_theta": 1e4, "sliding_window": 1024}
    folder(tmp_path, config=config, params=MISTRAL | {"rope_theta": 1e4, "n_layers": 3})
    assert differing(tmp_path) == ["2 layers in config.json and 3 in params.json"]
    folder(tmp_path, params=MISTRAL | {"rope_theta": 1e4, "sliding_window": 512})
    assert differing(tmp_path) == ["the window is 1024 in config.json and 512 in params.json"]


def test_a_params_json_that_is_none_of_a_model_is_left_alone(tmp_path):
    folder(tmp_path, config=LLAMA | {"rope_theta": 1e6}, params={"learning_rate": 1e-4})
    assert lint(tmp_path) == []


def test_a_params_json_that_cannot_be_read_is_noted(tmp_path):
    folder(tmp_path, config=LLAMA | {"rope_theta": 1e6}, params=META | {"rope_theta": "much"})
    _, reading, error = examine(tmp_path)
    assert error is None and reading is not None
    assert any(one.startswith("params.json beside it was not compared. ") for one in reading.notes)


# --- several GGUF files


def gguf(path, name, architecture="llama", **fields):
    return write_gguf(path / name, architecture, SIZES | fields)


def test_a_model_in_several_files_is_read_by_the_first(tmp_path):
    gguf(tmp_path, "big-00001-of-00003.gguf", **{"rope.freq_base": 500000.0})
    for index in (2, 3):
        write_gguf(tmp_path / f"big-0000{index}-of-00003.gguf", "llama", {})
    model = whorl.read(tmp_path)
    assert model.groups[0].encoding.config.base == 500000.0
    assert model.reading.notes[-1] == "big-00001-of-00003.gguf is the first of 3 files of one model."
    (tmp_path / "big-00002-of-00003.gguf").unlink()
    assert whorl.read(tmp_path).reading.notes[-1].endswith("3 files of one model, of which 1 are missing here.")


def test_a_model_whose_first_file_is_missing_is_refused(tmp_path):
    gguf(tmp_path, "a-00002-of-00002.gguf")
    gguf(tmp_path, "mmproj-a.gguf", "clip")
    with pytest.raises(WhorlError, match=r"a-00001-of-00002\.gguf is missing, the first of 2 files"):
        whorl.read(tmp_path)


@pytest.mark.parametrize("name", ["mmproj-model-f16.gguf", "a-projector.gguf"])
def test_a_projector_is_named_and_the_model_read(tmp_path, name):
    """Whichever of the two comes first by name."""
    gguf(tmp_path, "model-Q4_K_M.gguf", "qwen2")
    gguf(tmp_path, name, "clip")
    reading = whorl.read(tmp_path).reading
    assert reading.family == "qwen2"
    assert reading.notes[-1] == f"Beside it: {name}, a projector of images or sound, which was not read."


def test_quantisations_of_one_model_are_read_as_one(tmp_path):
    for name in ("m-Q4_0.gguf", "m-Q8_0.gguf"):
        gguf(tmp_path, name)
    said = whorl.read(tmp_path).reading.notes[-1]
    assert said == "This is m-Q4_0.gguf. Other files state the same of their positions: m-Q8_0.gguf."


def test_models_that_differ_are_refused_by_name(tmp_path):
    gguf(tmp_path, "a.gguf")
    gguf(tmp_path, "b.gguf", **{"rope.freq_base": 20000.0})
    with pytest.raises(WhorlError, match=re.escape("several models that differ: a.gguf, b.gguf. Pass one of them.")):
        whorl.read(tmp_path)


def test_projectors_alone_are_refused(tmp_path):
    for name in ("mmproj-a.gguf", "mmproj-b.gguf"):
        gguf(tmp_path, name, "clip")
    with pytest.raises(WhorlError, match=r"is a model: mmproj-a\.gguf \(a projector of images or sound\), mmproj-b"):
        whorl.read(tmp_path)


def test_a_gguf_file_goes_before_safetensors(tmp_path):
    gguf(tmp_path, "z.gguf", "qwen2")
    (tmp_path / "a.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    assert whorl.read(tmp_path).family == "qwen2"


def test_too_many_files_are_not_opened(tmp_path):
    for index in range(257):
        (tmp_path / f"{index}.gguf").touch()
    with pytest.raises(WhorlError, match=r"holds 257 \.gguf files\. Pass one of them"):
        whorl.read(tmp_path)
