"""TensorRT-LLM checkpoint configs, with the positional fields that its converters write."""

import re

import pytest

import whorl
from whorl import Alibi, Learned, Linear, Llama3, LongRope, Ntk, Rope, WhorlError

BASE = {
    **{"architecture": "LlamaForCausalLM", "dtype": "float16", "hidden_size": 4096, "num_hidden_layers": 4},
    **{"num_attention_heads": 32, "max_position_embeddings": 8192, "mapping": {"tp_size": 1}, "quantization": {}},
}
ROPE = BASE | {"position_embedding_type": "rope_gpt_neox", "rotary_base": 500000.0}
LISTS = {"short_factor": [1.0 + i / 64 for i in range(64)], "long_factor": [1.0 + i for i in range(64)]}
LONG = {
    **{"position_embedding_type": "long_rope", "original_max_position_embeddings": 4096},
    **{f"longrope_scaling_{name}s": values for name, values in LISTS.items()},
}
LLAMA_3 = {"rope_type": "llama3", "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0}


def rope(**settings):
    return Rope(**{"head_dim": 128, "base": 5e5} | settings)


CASES = {
    "llama": (ROPE, rope()),
    "an engine": ({"version": "0.17", "pretrained_config": ROPE, "build_config": {}}, rope()),
    "gpt-j": (
        ROPE | {"position_embedding_type": "rope_gptj", "rotary_pct": 0.25, "head_size": 256},
        rope(head_dim=256, rotary_dim=64, layout="interleaved"),
    ),
    "a stated size of the rotated part": (ROPE | {"rotary_embedding_dim": 32}, rope(rotary_dim=32)),
    "linear": (ROPE | {"rotary_scaling": {"type": "linear", "factor": 4.0}}, rope(scaling=Linear(factor=4.0))),
    "llama 3.2": (ROPE | {"rotary_scaling": LLAMA_3}, rope(scaling=Llama3(factor=32.0, original_length=8192))),
    "hunyuan": (ROPE | {"rotary_scaling": {"type": "dynamic", "alpha": 1000.0}}, rope(scaling=Ntk(factor=1000.0))),
    "default": (ROPE | {"rotary_scaling": {"rope_type": "default"}}, rope()),
    "phi-3": (ROPE | LONG, rope(scaling=LongRope(**LISTS, original_length=4096, factor=2.0))),
    "phi-3-small": (
        ROPE | LONG | {"longrope_short_mscale": 1.25, "longrope_long_mscale": 1.25},
        rope(scaling=LongRope(**LISTS, original_length=4096, attention_factor=1.25)),
    ),
    "bloom": (BASE | {"position_embedding_type": "alibi"}, Alibi(heads=32)),
    "falcon": (BASE | {"position_embedding_type": "alibi_with_scale"}, Alibi(heads=32, scale=128**-0.5)),
    "gpt-2": (BASE | {"position_embedding_type": "learned_absolute"}, Learned(width=4096, length=8192)),
}


@pytest.mark.parametrize("name", CASES)
def test_a_checkpoint_config_is_read_as_its_engines_compute(name):
    config, expected = CASES[name]
    model = whorl.read(config)
    assert model.groups[0].encoding.config.to_dict() == expected.config.to_dict()
    assert (model.dialect, model.family, model.claimed_length) == ("tensorrt-llm checkpoint", "LlamaForCausalLM", 8192)


def test_layers_with_a_window_are_named():
    (said,) = whorl.read(ROPE | {"sliding_window_pattern": 6}).unsupported
    assert said.startswith("layers with a window and a base of their own")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"position_embedding_type": "chatglm"}, "read: position_embedding_type 'chatglm' of TensorRT-LLM"),
        ({"position_embedding_type": "rope"}, "unknown position_embedding_type of read: 'rope'"),
        ({"rotary_scaling": {"type": "yarn", "factor": 4}}, "read: rotary_scaling of type 'yarn' has no reading"),
        ({"rotary_scaling": {"type": "dynamic", "factor": 4}}, "read: rotary_scaling of type 'dynamic' has no reading"),
        ({"rotary_scaling": 4}, "read: rotary_scaling must be a dict by names, or null, got 4."),
        ({"position_embedding_type": "long_rope"}, "read: long_rope needs longrope_scaling_short_factors"),
        (LONG | {"longrope_short_mscale": 1.0, "longrope_long_mscale": 2.0}, "differ, and LongRope has one factor"),
        ({"hidden_size": 16}, "read: num_attention_heads = 32 heads share hidden_size = 16 dimensions. Mend the file."),
        ({"architecture": 4}, "read: architecture must be a string, got 4."),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_reason(changes, why):
    with pytest.raises(WhorlError, match=re.escape(why)):
        whorl.read(ROPE | changes)
