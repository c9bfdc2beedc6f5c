"""Meta's params.json and those of ExecuTorch, with the positional fields of published files."""

import re

import pytest

import whorl
from whorl import Llama3, Llama4Temperature, Rope, WhorlError

LLAMA_2 = {"dim": 4096, "multiple_of": 256, "n_heads": 32, "n_layers": 32, "norm_eps": 1e-05, "vocab_size": -1}
LLAMA_3 = LLAMA_2 | {"n_kv_heads": 8, "vocab_size": 128256, "ffn_dim_multiplier": 1.3, "rope_theta": 500000.0}
LLAMA_4 = {
    **{"dim": 5120, "n_layers": 8, "n_heads": 40, "n_kv_heads": 8, "head_dim": 128, "norm_eps": 1e-05},
    **{"multiple_of": 2048, "rope_theta": 500000.0, "use_scaled_rope": True, "nope_layer_interval": 4},
    **{"attention_chunk_size": 8192, "attn_temperature_tuning": True, "moe_args": {"num_experts": 16}},
}
QWEN3_IN_EXECUTORCH = {
    **{"dim": 1024, "ffn_dim_multiplier": 1, "hidden_dim": 3072, "n_heads": 16, "head_dim": 128, "n_layers": 28},
    **{"norm_eps": 1e-06, "rope_theta": 1000000.0, "use_scaled_rope": False, "use_hf_rope": True},
}


def only(config):
    (group,) = whorl.read(config).groups
    return group


@pytest.mark.parametrize(
    ("config", "rope", "dialect"),
    [
        (LLAMA_2, Rope(head_dim=128, layout="interleaved"), "meta params.json"),
        (LLAMA_3, Rope(head_dim=128, base=5e5, layout="interleaved"), "meta params.json"),
        (LLAMA_2 | {"vocab_size": 128256}, Rope(head_dim=128, base=5e5, layout="interleaved"), "meta params.json"),
        (
            LLAMA_3 | {"use_scaled_rope": True},
            Rope(head_dim=128, base=5e5, layout="interleaved", scaling=Llama3(factor=8.0, original_length=8192)),
            "meta params.json",
        ),
        (QWEN3_IN_EXECUTORCH, Rope(head_dim=128, base=1e6), "executorch params"),
        (
            QWEN3_IN_EXECUTORCH | {"partial_rotary_factor": 0.75},
            Rope(head_dim=128, rotary_dim=96, base=1e6),
            "executorch params",
        ),
        (
            LLAMA_3 | {"use_scaled_rope": True, "rope_scale_factor": 32},
            Rope(head_dim=128, base=5e5, layout="interleaved", scaling=Llama3(factor=32.0, original_length=8192)),
            "executorch params",
        ),
        (
            LLAMA_2 | {"rope_freq_base": 20000.0},
            Rope(head_dim=128, base=2e4, layout="interleaved"),
            "executorch params",
        ),
    ],
)
def test_a_params_json_is_read_as_its_own_code_does(config, rope, dialect):
    model = whorl.read(config)
    assert (model.dialect, model.family, model.standing) == (dialect, "llama", "known")
    assert only(config).encoding.config == rope.config
    assert only(config).indices == tuple(range(config["n_layers"]))


def test_llama_4_leaves_every_fourth_layer_unturned():
    local, still = whorl.read(LLAMA_4).groups
    scaling = Llama3(factor=16.0, original_length=8192, high_freq_factor=1.0)
    assert local.encoding.config == Rope(head_dim=128, base=5e5, layout="interleaved", scaling=scaling).config
    assert (local.kind, local.indices) == ("chunked_attention", (0, 1, 2, 4, 5, 6))
    assert local.unsupported[0].startswith(
        "chunked attention (attention_chunk_size): a query sees its own chunk of 8192"
    )
    assert (still.encoding.config, still.indices) == (Llama4Temperature().config, (3, 7))
    assert whorl.read(LLAMA_4 | {"attn_temperature_tuning": False}).groups[1].layers.encodings == ()


def test_sources_tell_the_file_from_the_code():
    settings = only(LLAMA_3 | {"use_scaled_rope": True}).layers.encodings[0]
    said = {name: (value.source, value.field) for name, value in settings.settings.items()}
    assert said == {
        "head_dim": ("file", "dim / n_heads"),
        "base": ("file", "rope_theta"),
        "layout": ("family code", ""),
    }
    assert {value.source for value in settings.scaling.settings.values()} == {"family code"}
    assert whorl.read(LLAMA_3 | {"use_scaled_rope": True}).trained_length == 8192


def test_what_two_programs_read_differently_is_noted():
    assert whorl.read(LLAMA_2).reading.notes == (
        "rope_theta is absent: base 10,000 as in Llama 2's code; code for Llama 3 would take 500,000",
    )
    (note,) = whorl.read(LLAMA_3 | {"use_scaled_rope": True, "dim": 2048}).reading.notes
    assert note.startswith("Meta's code has factor 8 here, where transformers' configs of Llama 3.2 1B and 3B say 32")
    config = QWEN3_IN_EXECUTORCH | {"use_scaled_rope": True}
    assert only(config).encoding.config.scaling is None
    (note,) = whorl.read(config).reading.notes
    assert note == "use_scaled_rope is set and ExecuTorch leaves it out where use_hf_rope is set as well"
    assert whorl.read(LLAMA_3).reading.notes == ()


def test_layers_that_executorch_may_leave_unturned_are_named():
    assert whorl.read(QWEN3_IN_EXECUTORCH | {"no_rope_layer_interval": 4}).unsupported == (
        "layers without rotation (no_rope_layer_interval = 4): not read by every attention",
    )


def test_a_folder_with_a_params_json_is_read(tmp_path):
    (tmp_path / "params.json").write_text(
        '{"dim": 64, "n_layers": 2, "n_heads": 4, "norm_eps": 1e-5, "multiple_of": 8}'
    )
    assert whorl.read(tmp_path).groups[0].encoding.config.head_dim == 16


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"n_heads": 0}, "read: n_heads must be a positive integer below 2^63, got 0."),
        ({"dim": None}, "read: dim is missing. Pass the whole file."),
        ({"dim": 10**400}, "read: dim must be a positive integer below 2^63"),
        ({"n_layers": 10**9}, "read: n_layers must be at most 16384 layers"),
        ({"rope_theta": "500000"}, "read: rope_theta must be a finite number, below 2^63, got '500000'."),
        ({"use_scaled_rope": "yes"}, "read: use_scaled_rope must be true or false, got 'yes'."),
    ],
)
def test_what_cannot_be_meant_is_refused_with_the_reason(changes, why):
    with pytest.raises(WhorlError, match=re.escape(why)):
        whorl.read(LLAMA_3 | changes)
