"""Rotations against the modules of transformers: config class, dict, Rope.from_hf, random queries and keys."""

import importlib
import inspect
import json
import re
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers.models.cohere import modeling_cohere as cohere
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as deepseek_v3
from transformers.models.gemma2 import modeling_gemma2 as gemma2
from transformers.models.gemma3 import modeling_gemma3 as gemma3
from transformers.models.glm import modeling_glm as glm
from transformers.models.gpt_neox import modeling_gpt_neox as gpt_neox
from transformers.models.gpt_oss import modeling_gpt_oss as gpt_oss
from transformers.models.gptj import modeling_gptj as gptj
from transformers.models.llama import modeling_llama as llama
from transformers.models.qwen2_vl import modeling_qwen2_vl as qwen2_vl
from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLTextConfig

from rotary_classes import APART, NAMELESS, config_for, is_new, rotary_modules
from whorl import MRope, Rope, WhorlError
from whorl.dialects.beside import IncompleteRotation
from whorl.dialects.families import UnknownFamily


@dataclass
class Turned:
    """What a module of transformers made of queries and keys, and the tables it used, (…, length, pairs)."""

    q: Tensor
    k: Tensor
    cos: Tensor
    sin: Tensor


# --- how each module is called


def by_llama_rules(module, rotary, q, k, positions, apply="apply_rotary_pos_emb", pairs=slice(None), **kind):
    """A rotary class with (cos, sin) twice as wide as the pairs, and an apply function for q and k."""
    cos, sin = rotary(torch.zeros(1), positions, **kind)
    q, k = getattr(module, apply)(q, k, cos, sin)
    half = cos.shape[-1] // 2
    pairs = slice(half) if pairs == slice(None) else pairs
    return Turned(q, k, cos[..., pairs], sin[..., pairs])


def turn_llama(config, q, k, positions):
    return by_llama_rules(llama, llama.LlamaRotaryEmbedding(config), q, k, positions)


def turn_gpt_neox(config, q, k, positions):
    return by_llama_rules(gpt_neox, gpt_neox.GPTNeoXRotaryEmbedding(config), q, k, positions)


def turn_gptj(config, q, k, positions):
    """GPT-J has a table of all positions in its attention, and takes (batch, length, heads, head_dim)."""
    attention = gptj.GPTJAttention(config, layer_idx=0)
    sin, cos = attention.embed_positions[positions].chunk(2, dim=-1)

    def turn(x):
        x = x.transpose(1, 2)
        turned = gptj.apply_rotary_pos_emb(x[..., : config.rotary_dim], sin, cos)
        return torch.cat((turned, x[..., config.rotary_dim :]), dim=-1).transpose(1, 2)

    return Turned(turn(q), turn(k), cos, sin)


def turn_cohere(config, q, k, positions):
    rotary = cohere.CohereRotaryEmbedding(config)
    return by_llama_rules(cohere, rotary, q, k, positions, pairs=slice(0, None, 2))


def turn_glm(config, q, k, positions):
    return by_llama_rules(glm, glm.GlmRotaryEmbedding(config), q, k, positions)


def turn_deepseek_v3(config, q, k, positions):
    apply = "apply_rotary_pos_emb_interleave" if config.rope_interleave else "apply_rotary_pos_emb"
    return by_llama_rules(deepseek_v3, deepseek_v3.DeepseekV3RotaryEmbedding(config), q, k, positions, apply)


def turn_gemma2(config, q, k, positions):
    return by_llama_rules(gemma2, gemma2.Gemma2RotaryEmbedding(config), q, k, positions)


def turn_gemma3_full(config, q, k, positions):
    rotary = gemma3.Gemma3RotaryEmbedding(config)
    return by_llama_rules(gemma3, rotary, q, k, positions, layer_type="full_attention")


def turn_gemma3_sliding(config, q, k, positions):
    rotary = gemma3.Gemma3RotaryEmbedding(config)
    return by_llama_rules(gemma3, rotary, q, k, positions, layer_type="sliding_attention")


def turn_gpt_oss(config, q, k, positions):
    cos, sin = gpt_oss.GptOssRotaryEmbedding(config)(torch.zeros(1), positions)
    return Turned(*gpt_oss.apply_rotary_pos_emb(q, k, cos, sin), cos, sin)


def turn_qwen2_vl(config, q, k, positions):
    return by_llama_rules(qwen2_vl, qwen2_vl.Qwen2VLRotaryEmbedding(config), q, k, positions)


SMALL = {"hidden_size": 512, "num_attention_heads": 4, "num_hidden_layers": 2}
LLAMA31 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
DEEPSEEK = {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "beta_fast": 32, "beta_slow": 1}
DEEPSEEK |= {"mscale": 1.0, "mscale_all_dim": 1.0}
LINEAR = {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0}
GEMMA3 = transformers.Gemma3TextConfig(
    **SMALL,
    head_dim=256,
    rope_parameters={"full_attention": LINEAR, "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}},
    layer_types=["full_attention", "sliding_attention"],
)


@dataclass
class Model:
    """A model of transformers, how it turns queries and keys, and what Rope.from_hf is to read from its config."""

    config: Any
    turn: Any
    layout: str
    rotary_dim: int
    head_dim: int = 128
    layer_type: str | None = None
    axes: int = 1


PUBLIC = {
    "llama": Model(transformers.LlamaConfig(**SMALL), turn_llama, "half", 128),
    "llama 3.1": Model(
        transformers.LlamaConfig(
            **SMALL,
            max_position_embeddings=131072,
            rope_parameters=LLAMA31 | {"original_max_position_embeddings": 8192},
        ),
        turn_llama,
        "half",
        128,
    ),
    "gpt-neox": Model(transformers.GPTNeoXConfig(**SMALL), turn_gpt_neox, "half", 32),
    "gpt-j": Model(
        transformers.GPTJConfig(n_embd=512, n_head=4, n_layer=2, rotary_dim=64, n_positions=8192),
        turn_gptj,
        "interleaved",
        64,
    ),
    "cohere": Model(transformers.CohereConfig(**SMALL), turn_cohere, "interleaved", 128),
    "glm": Model(transformers.GlmConfig(**SMALL, num_key_value_heads=2), turn_glm, "interleaved", 64),
    "deepseek-v3": Model(
        transformers.DeepseekV3Config(max_position_embeddings=163840, rope_scaling=dict(DEEPSEEK)),
        turn_deepseek_v3,
        "interleaved_to_half",
        64,
        head_dim=64,
    ),
    "deepseek-v3 in half layout": Model(
        transformers.DeepseekV3Config(rope_interleave=False), turn_deepseek_v3, "half", 64, head_dim=64
    ),
    "gemma 2": Model(transformers.Gemma2Config(**SMALL, head_dim=256), turn_gemma2, "half", 256, head_dim=256),
    "gemma 3, full": Model(GEMMA3, turn_gemma3_full, "half", 256, head_dim=256, layer_type="full_attention"),
    "gemma 3, sliding": Model(GEMMA3, turn_gemma3_sliding, "half", 256, head_dim=256, layer_type="sliding_attention"),
    "gpt-oss": Model(transformers.GptOssConfig(), turn_gpt_oss, "half", 64, head_dim=64),
    "qwen2-vl": Model(Qwen2VLTextConfig(**SMALL), turn_qwen2_vl, "half", 128, axes=3),
}


def rope_of(model, angles):
    """The Rope of the model's config.json."""
    rope = Rope.from_hf(json.loads(model.config.to_json_string(use_diff=False)), model.layer_type)
    return type(rope).from_config(rope.config.replace(angles=angles))


def random_input(model, seed=0):
    """Queries and keys of different head counts, and positions that differ by batch row and axis, up to 8191."""
    generator = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(2, heads, 33, model.head_dim, generator=generator) for heads in (4, 2))
    positions = torch.randint(0, 8192, (model.axes, 2, 33), generator=generator)
    return q, k, positions if model.axes > 1 else positions[0]


# --- the public conventions


@pytest.mark.parametrize("model", PUBLIC.values(), ids=PUBLIC)
def test_config_is_read_in_the_convention_of_the_model(model):
    config = rope_of(model, "exact").config
    assert (config.layout, config.head_dim, config.rotary_dim) == (model.layout, model.head_dim, model.rotary_dim)
    assert config.axes == model.axes


@pytest.mark.parametrize("model", PUBLIC.values(), ids=PUBLIC)
def test_float32_angles_rotate_as_the_module_does(model):
    q, k, positions = random_input(model)
    theirs = model.turn(model.config, q, k, positions)
    ours = rope_of(model, "float32").transform_qk(q, k, positions, positions)
    for turned, expected in zip(ours, (theirs.q, theirs.k), strict=True):
        assert turned.dtype == expected.dtype == torch.float32
        assert float((turned - expected).abs().max()) <= 1e-6
        assert float((turned - (q if turned.shape == q.shape else k)).abs().max()) > 1


@pytest.mark.parametrize("model", PUBLIC.values(), ids=PUBLIC)
def test_exact_angles_differ_by_no_more_than_the_table_error_of_the_module(model):
    q, k, positions = random_input(model, seed=1)
    theirs, rope = model.turn(model.config, q, k, positions), rope_of(model, "exact")
    true = true_tables(rope, positions)
    table_error = max(float((a - b).abs().max()) for a, b in zip((theirs.cos, theirs.sin), true, strict=True))
    assert 1e-6 < table_error < 1e-3  # float32 angles at position 8191: otherwise there is nothing to bound
    ours = rope.transform_qk(q, k, positions, positions)
    rounding = 4 * 2**-24 * rope.attention_factor()  # of our tables and of both rotations
    for turned, expected, x in zip(ours, (theirs.q, theirs.k), (q, k), strict=True):
        # a turned element is x1 cos - x2 sin: two products, each off by the error of its table entry
        bound = 2 * float(x.abs().max()) * (table_error + rounding)
        assert float((turned - expected).abs().max()) <= bound


def true_tables(rope, positions):
    """cos and sin in float64, each pair turned by its own axis."""
    by_axis = positions if positions.ndim == 3 else positions.unsqueeze(0)
    own = by_axis[list(rope.config.axis_of_pair)].movedim(0, -1).double()
    angles = own * rope.frequencies()
    return angles.cos() * rope.attention_factor(), angles.sin() * rope.attention_factor()


@pytest.mark.parametrize("family", ["deepseek_v2", "deepseek_v3", "deepseek_v32", "minicpm3", "longcat_flash", "youtu"])
def test_softmax_factor_is_what_the_attention_of_the_family_multiplies_its_scale_by(family):
    module = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    for keys in (
        {"mscale": 0.707, "mscale_all_dim": 0.707},
        {"mscale": 1.0, "mscale_all_dim": 0.5},
        {"mscale": 1.0},
        {},
    ):
        parameters = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 40, **keys}
        config = {"model_type": family, "qk_rope_head_dim": 64, "max_position_embeddings": 163840}
        rope = Rope.from_hf(config | {"rope_parameters": parameters | {"original_max_position_embeddings": 4096}})
        assert rope.softmax_factor() == pytest.approx(module.yarn_apply_mscale(parameters, 1.0), rel=1e-15)


def test_ministral3_has_the_keys_but_not_the_softmax_factor():
    with pytest.warns(IncompleteRotation, match=r"position \(rope_parameters.llama_4_scaling_beta\). whorl.read gives"):
        rope = Rope.from_hf(transformers.Ministral3Config().to_dict())
    assert (rope.attention_factor(), rope.softmax_factor()) == (1.0, 1.0)


# --- every rotary module of transformers

REFUSED = r"whorl.read gives its AxialRope"
# attention code that slices the rotated part itself
SLICED = ("persimmon", "phi", "stablelm")


def rotate_in(module, rope, rotary, q, positions, layer_type):
    """Queries as the module's own functions turn them."""
    kind = {} if layer_type is None else {"layer_type": layer_type}
    tables = rotary(torch.zeros(1), positions, **kind)
    if isinstance(tables, Tensor):  # complex numbers
        order = (1, 2) if module.__name__.endswith("llama4") else (1, 1)
        return module.apply_rotary_emb(q.transpose(*order), q.transpose(*order), tables)[0].transpose(*order)
    name = "apply_rotary_pos_emb" + ("_interleave" if rope.layout == "interleaved_to_half" else "")
    apply, rest = getattr(module, name), q[..., :0]
    if module.__name__.rsplit("_", 1)[-1] in SLICED:
        q, rest = q[..., : rope.config.rotary_dim], q[..., rope.config.rotary_dim :]
    single = next(iter(inspect.signature(apply).parameters)) == "x"
    turned = apply(q, *tables) if single else apply(q, q.clone(), *tables)[0]
    return torch.cat((turned, rest), dim=-1)


def check_module(module, cls):
    """How a rotary module went: "agrees", "refused", "new", or "apart"."""
    if cls.__name__ in APART:
        return "apart"
    config = config_for(cls)
    if is_new(config):
        return "new"
    rotary, data = cls(config), json.loads(config.to_json_string(use_diff=False))
    types = sorted(rotary.rope_type) if isinstance(rotary.rope_type, dict) and rotary.rope_type else [None]
    for layer_type in types:
        nameless = pytest.warns(UnknownFamily) if cls.__name__ in NAMELESS else nullcontext()
        try:
            with nameless:
                rope = Rope.from_hf(data, layer_type)
        except WhorlError as error:
            assert re.search(REFUSED, str(error)), (cls.__name__, str(error))
            return "refused"
        rope = type(rope).from_config(rope.config.replace(angles="float32"))
        theirs = rotary.inv_freq if layer_type is None else getattr(rotary, f"{layer_type}_inv_freq")
        ours = rope.frequencies().float() * (-1 if rope.config.backwards else 1)  # they turn so where they apply it
        if "Ernie4_5_VL" in cls.__name__:  # keeps the rows' frequencies before the columns'
            ours, theirs = ours.sort().values, theirs.sort().values
        assert torch.equal(ours, theirs), cls.__name__
        q, positions = torch.randn(2, 3, 7, rope.config.head_dim), torch.randint(0, 3000, (rope.config.axes, 2, 7))
        positions = positions if rope.config.axes > 1 else positions[0]
        turned = rope.rotate(q, positions, int(positions.max()) + 1)
        expected = rotate_in(module, rope, rotary, q, positions, layer_type)
        assert float((turned - expected).abs().max()) <= 1e-6, cls.__name__
    return "agrees"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::whorl.dialects.beside.IncompleteRotation")
@pytest.mark.parametrize(("letters", "least"), [("abcd", 31), ("efg", 44), ("hijklm", 42), ("nopqrstuvwxyz", 56)])
def test_every_rotary_module_rotates_as_its_config_is_read(letters, least):
    """The layouts, bases and shares of families.py, against the code of all families at their default configs."""
    torch.manual_seed(0)
    results = [check_module(module, cls) for module, cls in rotary_modules(letters)]
    assert results.count("agrees") >= least


def test_qwen2_vl_is_an_mrope():
    assert isinstance(rope_of(PUBLIC["qwen2-vl"], "exact"), MRope)
