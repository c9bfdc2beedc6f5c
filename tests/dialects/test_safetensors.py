"""Safetensors headers: sizes from shapes, a config.json beside them, and headers that lie."""

import json
import struct

import pytest
import torch

import whorl
from optional import optional
from whorl import Rope, WhorlError
from whorl.dialects.families import UnknownFamily
from whorl.dialects.safetensors import LARGEST_HEADER, heads_of, read_header

QUERIES, KEYS = "model.layers.{}.self_attn.q_proj.weight", "model.layers.{}.self_attn.k_proj.weight"
QWEN3 = {
    QUERIES.format(0): [64, 32],
    KEYS.format(0): [32, 32],
    "model.layers.0.self_attn.q_norm.weight": [16],
    QUERIES.format(1): [64, 32],
    KEYS.format(1): [32, 32],
}
LLAMA = {QUERIES.format(0): [4096, 4096], KEYS.format(0): [1024, 4096]}
CONFIG = {"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 1}


def write(path, header, weights=0):
    data = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(data)) + data + bytes(weights))
    return path


def records(shapes, places=(0, 0)):
    return {name: {"dtype": "F32", "shape": shape, "data_offsets": list(places)} for name, shape in shapes.items()}


def read_alone(path, **options):
    with pytest.warns(UnknownFamily, match="the header of a safetensors file names no family"):
        return whorl.read(path, **options)


def test_a_file_of_the_package_itself_is_read(tmp_path):
    save = optional("safetensors.torch:save_file")
    path = tmp_path / "model.safetensors"
    save({name: torch.zeros(shape) for name, shape in QWEN3.items()}, path, metadata={"format": "pt"})
    model = read_alone(path)
    assert (model.dialect, model.family, model.standing) == ("safetensors", "", "unknown")
    assert model.groups[0].indices == (0, 1)
    assert model.reading.notes == (
        "heads have 16 dimensions that may be rotated, since self_attn.q_norm.weight has 16 numbers",
        "layouts that models with such names of weights have: half, interleaved",
    )
    assert model.unsupported[0].startswith("a rotation, or none: the header of a safetensors file has no base")


@pytest.mark.parametrize(
    ("shapes", "rotated", "candidates", "layouts"),
    [
        (QWEN3, 16, (), ("half", "interleaved")),
        (LLAMA, None, (32, 64, 128, 256, 512), ("half", "interleaved")),
        ({**LLAMA, "model.layers.0.self_attn.sinks": [64]}, 64, (), ("half", "interleaved")),
        # OLMo 2 has its norm over all heads together, which says nothing of one
        (
            {**LLAMA, "model.layers.0.self_attn.q_norm.weight": [4096]},
            None,
            (32, 64, 128, 256, 512),
            ("half", "interleaved"),
        ),
        (
            {"layers.0.attention.wq.weight": [4096, 4096], "layers.0.attention.wk.weight": [96, 4096]},
            None,
            (32,),
            ("interleaved",),
        ),
        (
            {
                "model.layers.3.self_attn.kv_a_proj_with_mqa.weight": [576, 7168],
                "model.layers.3.self_attn.kv_a_layernorm.weight": [512],
            },
            64,
            (),
            ("interleaved",),
        ),
        ({QUERIES.format(0): [35, 8], KEYS.format(0): [35, 8]}, None, (), ("half", "interleaved")),
    ],
)
def test_shapes_tell_the_size_of_a_head_or_which_fit(shapes, rotated, candidates, layouts):
    heads = heads_of({name: tuple(shape) for name, shape in shapes.items()})
    assert (heads.rotated, heads.candidates, heads.layouts) == (rotated, candidates, layouts)


def test_a_family_that_is_assumed_makes_an_encoding_where_the_size_is_certain(tmp_path):
    model = whorl.read(write(tmp_path / "m.safetensors", records(QWEN3)), assume="llama")
    assert model.plan[0].config == Rope(head_dim=16).config
    assert model.groups[0].layers.encodings[0].settings["base"].source == "assumed"
    with pytest.raises(WhorlError, match="not supported yet"):
        whorl.read(write(tmp_path / "m.safetensors", records(LLAMA)), assume="llama").plan  # noqa: B018


def test_a_config_beside_the_file_is_read_instead(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    model = whorl.read(write(tmp_path / "model.safetensors", records(LLAMA)))
    assert (model.family, model.groups[0].encoding.config.head_dim, model.reading.notes) == ("llama", 128, ())


def test_a_config_of_another_dialect_beside_the_file_is_read_as_such(tmp_path):
    config = {"dim": 2048, "inter_dim": 10944, "kv_lora_rank": 512, "n_layers": 1, "n_heads": 16}
    (tmp_path / "config.json").write_text(json.dumps(config))
    shapes = {"layers.0.attn.wkv_a.weight": [576, 2048], "layers.0.attn.kv_norm.weight": [512]}
    model = whorl.read(write(tmp_path / "model.safetensors", records(shapes)))
    assert (model.dialect, model.reading.notes) == ("deepseek inference config", ())


def test_a_config_that_the_shapes_contradict_is_noted(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"num_attention_heads": 30}))
    (note,) = whorl.read(write(tmp_path / "model.safetensors", records(LLAMA))).reading.notes
    assert note == "config.json has heads of [136] dimensions, but queries have 4096 rows"
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    said = {**LLAMA, "model.layers.0.self_attn.q_norm.weight": [64]}
    (note,) = whorl.read(write(tmp_path / "model.safetensors", records(said))).reading.notes
    assert note == "config.json has heads of [128] dimensions, but self_attn.q_norm.weight has 64 numbers"


def test_weights_that_are_cut_off_are_noted(tmp_path):
    path = write(tmp_path / "m.safetensors", records(LLAMA, places=(0, 1000)), weights=600)
    assert read_alone(path).reading.notes[-1] == "the file ends 400 bytes before its weights do"


# --- headers that lie


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (struct.pack("<Q", 2**39) + b"{}", f"it claims a header of {2**39:,} bytes, where {LARGEST_HEADER:,} are"),
        (struct.pack("<Q", 100) + b'{"a": 1}', "it ends within its header, 92 bytes early"),
        (struct.pack("<Q", 0) + b"{", "it claims a header of 0 bytes"),
    ],
)
def test_a_length_that_lies_is_refused(data, why, tmp_path):
    path = tmp_path / "m.safetensors"
    path.write_bytes(data)
    with pytest.raises(WhorlError) as error:
        whorl.read(path)
    assert why in str(error.value)


@pytest.mark.parametrize(
    ("header", "why"),
    [
        (b'{"a": 1}', "the tensor 'a' has no shape and place, but 1"),
        (b'{"a": {"shape": [1], "data_offsets": [4, 0]}}', "the tensor 'a' has no shape and place"),
        (b'{"a": {"shape": [-1], "data_offsets": [0, 4]}}', "the tensor 'a' has no shape and place"),
        (b'{"a": {"shape": [true], "data_offsets": [0, 4]}}', "the tensor 'a' has no shape and place"),
        (b'{"a": {"shape": [1], "data_offsets": [0]}}', "the tensor 'a' has no shape and place"),
        (b'{"a": {"shape": [%d], "data_offsets": [0, 4]}}' % 2**60, "the tensor 'a' has no shape and place"),
        (b'{"a": {}, "a": {}}', "the key 'a' stands there twice"),
        (b'{"a": {"shape": [NaN]}}', "NaN is not JSON"),
        (b'{"a": ' + b"[" * 5000 + b"]" * 5000 + b"}", "nested"),
        (b'{"a\xff": 1}', "it is not UTF-8 text"),
        (b'{"a": [' + b"1," * 2**19 + b"1]}", "it has more than 131,072 commas"),
        (b"{}", "has no weights of queries and keys under a name that is known"),
    ],
)
def test_a_header_that_lies_is_refused(header, why, tmp_path):
    with pytest.raises(WhorlError) as error:
        whorl.read(write(tmp_path / "m.safetensors", header))
    assert why in str(error.value)


def test_the_metadata_of_a_header_is_no_tensor(tmp_path):
    path = write(tmp_path / "m.safetensors", {"__metadata__": {"format": "pt"}, **records(LLAMA)})
    assert set(read_header(path).shapes) == set(LLAMA)
