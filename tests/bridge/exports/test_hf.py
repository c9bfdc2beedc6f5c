"""config.json in each schema, as transformers itself reads it."""

import pytest
import torch

import whorl
from optional import optional

optional("transformers")

SIZES = {"hidden_size": 512, "num_attention_heads": 8, "num_hidden_layers": 2, "max_position_embeddings": 32768}
SCALINGS = {
    "none": None,
    "linear": {"type": "linear", "factor": 2.0},
    "llama3": {
        **{"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
        "original_max_position_embeddings": 8192,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192, "attention_factor": 1.1},
}


@pytest.mark.parametrize("target", ["hf-v4", "hf-v5", "hf-both"])
@pytest.mark.parametrize("scaling", SCALINGS)
def test_transformers_5_computes_what_was_exported(scaling, target):
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    given = {"model_type": "llama", **SIZES, "rope_theta": 5e5, "rope_scaling": SCALINGS[scaling]}
    written = {key: value for key, value in whorl.export(given, target).data.items() if key != "model_type"}
    module = LlamaRotaryEmbedding(LlamaConfig(**written))
    rope = whorl.read(given).groups[0].encoding
    torch.testing.assert_close(module.inv_freq.double(), rope.frequencies(), rtol=1e-6, atol=0)
    assert module.attention_scaling == pytest.approx(rope.attention_factor())


def test_a_base_for_each_kind_of_layers_survives_both_schemas():
    from transformers import Gemma3TextConfig

    given = {"model_type": "gemma3_text", **SIZES, "num_hidden_layers": 6, "head_dim": 256, "rope_theta": 1e6}
    written = whorl.export(given | {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}, "hf-both").data
    ropes = Gemma3TextConfig(**{key: value for key, value in written.items() if key != "model_type"}).rope_parameters
    assert (ropes["full_attention"]["rope_theta"], ropes["full_attention"]["factor"]) == (1e6, 8.0)
    assert (ropes["sliding_attention"]["rope_theta"], ropes["sliding_attention"]["rope_type"]) == (1e4, "default")
