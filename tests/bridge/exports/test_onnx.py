"""The model with a RotaryEmbedding node: run, and compared with the rotation it was made of."""

import builtins

import numpy as np
import pytest
import torch

import whorl
from optional import optional
from whorl.bridge import InexpressibleError, export_onnx
from whorl.errors import WhorlError

onnx = optional("onnx")

SIZES = {"hidden_size": 256, "num_attention_heads": 4, "num_hidden_layers": 2, "max_position_embeddings": 64}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
CONFIGS = {
    "llama": {"model_type": "llama", **SIZES, "rope_theta": 1e4, "rope_scaling": YARN},
    "interleaved": {"model_type": "cohere", **SIZES, "rope_theta": 1e4},
    "partial": {"model_type": "gpt_neox", **SIZES, "rotary_pct": 0.5, "rotary_emb_base": 10000},
}


def inputs(rng=0):
    random = np.random.default_rng(rng)
    x = random.standard_normal((2, 4, 8, 64), dtype=np.float32)
    return x, np.stack([np.arange(8), np.arange(50, 58)])


def by_whorl(given, x, ids):
    (group,) = whorl.read(given).groups
    at = torch.tensor(ids)
    return group.encoding.transform_qk(torch.tensor(x), torch.tensor(x), at, at)[0].numpy()


@pytest.mark.parametrize("name", CONFIGS)
def test_the_reference_evaluator_turns_as_whorl_does(name):
    from onnx.reference import ReferenceEvaluator

    x, ids = inputs()
    (turned,) = ReferenceEvaluator(export_onnx(CONFIGS[name])).run(None, {"x": x, "position_ids": ids})
    np.testing.assert_allclose(turned, by_whorl(CONFIGS[name], x, ids), atol=2e-6)


@pytest.mark.parametrize("name", CONFIGS)
def test_onnxruntime_turns_as_whorl_does(name):
    runtime = optional("onnxruntime")
    x, ids = inputs(1)
    session = runtime.InferenceSession(export_onnx(CONFIGS[name]).SerializeToString())
    (turned,) = session.run(None, {"x": x, "position_ids": ids})
    np.testing.assert_allclose(turned, by_whorl(CONFIGS[name], x, ids), atol=2e-6)


def test_tables_end_at_the_length():
    model = export_onnx(CONFIGS["llama"], length=32)
    assert {one.name: list(one.dims) for one in model.graph.initializer} == {"cos": [32, 32], "sin": [32, 32]}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"model_type": "deepseek_v3", **SIZES, "qk_rope_head_dim": 64}, "interleaved_to_half"),
        ({"model_type": "bloom", "n_head": 4, "hidden_size": 256, "n_layer": 2}, "stated|rotates"),
        ({"model_type": "gemma3_text", **SIZES, "head_dim": 64, "num_hidden_layers": 6}, "differ by kind of layer"),
        (
            {"model_type": "qwen2_vl", **SIZES, "rope_scaling": {"type": "mrope", "mrope_section": [8, 12, 12]}},
            "M-RoPE",
        ),
    ],
)
def test_what_the_node_cannot_do_is_refused(given, said):
    with pytest.raises(WhorlError, match=said):
        export_onnx(given)


def test_one_kind_of_layers_at_a_time():
    given = {"model_type": "gemma3_text", **SIZES, "head_dim": 64, "num_hidden_layers": 6}
    full, local = (export_onnx(given, kind=kind) for kind in ("full_attention", "sliding_attention"))
    assert full.graph.initializer[0] != local.graph.initializer[0]
    with pytest.raises(InexpressibleError, match="no layer of kind 'x'"):
        export_onnx(given, kind="x")


def test_without_onnx_the_extra_is_named(monkeypatch):
    real = builtins.__import__

    def absent(name, *args, **kwargs):
        if name.partition(".")[0] == "onnx":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(WhorlError, match=r"whorl\[onnx\]"):
        export_onnx(CONFIGS["llama"])
