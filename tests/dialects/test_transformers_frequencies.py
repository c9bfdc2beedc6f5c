"""Frequencies, attention factors and tables against transformers and 50-digit values, on 500 random configs.

Every config is a real transformers config object, turned into a dict and read with Rope.from_hf.
"""

import random
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from transformers import Gemma3TextConfig, LagunaConfig, LlamaConfig, MixtralConfig, StableLmConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.gemma3.modeling_gemma3 import Gemma3RotaryEmbedding
from transformers.models.laguna.modeling_laguna import LagunaRotaryEmbedding
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.stablelm.modeling_stablelm import StableLmRotaryEmbedding

from hf_configs import TYPES, draw_parameters
from oracles import rotary_frequencies as oracle
from whorl import Rope

CONFIGS = 500
CHUNKS = [range(start, start + 50) for start in range(0, CONFIGS, 50)]
LAYER_TYPES = ("full_attention", "sliding_attention")
LONGEST = 131072

# a class whose default frequencies heed partial_rotary_factor, and one whose do not; flat, and nested by layer type
FLAT = {True: (StableLmConfig, StableLmRotaryEmbedding), False: (LlamaConfig, LlamaRotaryEmbedding)}
NESTED = {True: (LagunaConfig, LagunaRotaryEmbedding), False: (Gemma3TextConfig, Gemma3RotaryEmbedding)}


# --- the random configs


@dataclass
class Drawn:
    """One rope dict with what it means, as drawn."""

    parameters: dict[str, Any]
    dim: int
    length: int  # max_position_embeddings

    def frequencies(self, length):
        """The 50-digit frequencies when this length is served."""
        p, dim = self.parameters, self.dim
        base, kind = p["rope_theta"], p["rope_type"]
        if kind == "default":
            return oracle.plain(dim, base)
        if kind == "linear":
            return oracle.linear(dim, base, p["factor"])
        if kind == "dynamic":
            return oracle.dynamic_ntk(dim, base, p["factor"], self.length, length)
        if kind == "proportional":
            return oracle.proportional(dim, base, p["partial_rotary_factor"], p.get("factor", 1))
        original = p["original_max_position_embeddings"]
        if kind == "longrope":
            return oracle.longrope(dim, base, p["short_factor"], p["long_factor"], original, length)
        if kind == "llama3":
            return oracle.llama3(dim, base, p["factor"], p["low_freq_factor"], p["high_freq_factor"], original)
        betas = (p.get("beta_fast") or 32, p.get("beta_slow") or 1)
        return oracle.yarn(dim, base, self.factor(), original, *betas, truncate=p.get("truncate", True))

    def attention_factor(self):
        p = self.parameters
        if p["rope_type"] == "yarn":
            given = {key: p.get(key) for key in ("attention_factor", "mscale", "mscale_all_dim")}
            return oracle.yarn_attention_factor(self.factor(), **given)
        if p["rope_type"] == "longrope":
            return p.get("attention_factor") or oracle.longrope_attention_factor(
                self.factor(), p["original_max_position_embeddings"]
            )
        return 1

    def factor(self):
        given = self.parameters.get("factor")
        return self.length / self.parameters["original_max_position_embeddings"] if given is None else given


def draw(pick, kind, head_dim, partial, length):
    """A rope dict of this type; ``pick`` is a seeded random.Random."""
    return Drawn(*draw_parameters(pick, kind, head_dim, partial, length), length)


@dataclass
class Case:
    """One layer type of one random config: what was drawn, transformers' objects, and our Rope."""

    drawn: Drawn
    config: Any
    module: type
    layer_type: str | None
    name: str

    def transformers_forward(self, positions):
        """inv_freq, cos and sin of a fresh module after one forward, and its attention factor."""
        module = self.module(self.config)
        prefix, kind = ("", {}) if self.layer_type is None else (f"{self.layer_type}_", {"layer_type": self.layer_type})
        cos, sin = module(torch.zeros(1), positions, **kind)
        return getattr(module, f"{prefix}inv_freq"), cos, sin, getattr(module, f"{prefix}attention_scaling")

    @property
    def rope(self):
        return Rope.from_hf(self.config.to_dict(), self.layer_type)

    @property
    def float32(self):
        return Rope.from_config(self.rope.config.replace(angles="float32"))


@cache
def cases(index):
    """The cases of config number ``index``: one, or one per layer type."""
    pick = random.Random(1000 + index)
    nested, partial = pick.random() < 0.4, pick.random() < 0.4
    head_dim, length = pick.choice((32, 40, 64, 80, 96, 128, 192, 256)), 2 ** pick.randint(11, 16)
    sizes = {"hidden_size": 4 * head_dim, "num_attention_heads": 4, "num_key_value_heads": 4, "num_hidden_layers": 2}
    sizes |= {"max_position_embeddings": length, "head_dim": head_dim}
    kinds = [TYPES[index % len(TYPES)], pick.choice(TYPES)]
    drawn = [draw(pick, kind, head_dim, partial, length) for kind in kinds]
    if not nested:
        cls, module = FLAT[partial]
        config = cls(**sizes, rope_parameters=dict(drawn[0].parameters))
        return [Case(drawn[0], config, module, None, f"config {index}")]
    cls, module = NESTED[partial]
    for one in drawn:
        one.parameters.pop("truncate", None)  # transformers looks for it elsewhere when nested: see below
    dicts = {kind: dict(one.parameters) for kind, one in zip(LAYER_TYPES, drawn, strict=True)}
    config = cls(**sizes, layer_types=list(LAYER_TYPES), rope_parameters=dicts)
    return [
        Case(one, config, module, kind, f"config {index}, {kind}") for kind, one in zip(LAYER_TYPES, drawn, strict=True)
    ]


def lengths(case):
    """The lengths to look at: the original one, and where the length matters one beyond."""
    return (None, LONGEST) if case.drawn.parameters["rope_type"] in ("dynamic", "longrope") else (None,)


def init_frequencies(case, length):
    """What transformers computes for a length: inv_freq and attention factor."""
    kind = case.drawn.parameters["rope_type"]
    settings = {} if case.layer_type is None else {"layer_type": case.layer_type}
    if kind == "default":
        return case.module.compute_default_rope_parameters(case.config, **settings)
    served = None if length is None else torch.tensor(length)
    return ROPE_INIT_FUNCTIONS[kind](case.config, torch.device("cpu"), seq_len=served, **settings)


def ulps(a, b):
    """The number of float32 values between two tensors of non-negative float32 numbers, at most."""
    return int((a.view(torch.int32).long() - b.view(torch.int32).long()).abs().max())


def to_float32(numbers):
    return torch.tensor([float(number) for number in numbers], dtype=torch.float64).float()


# --- exact mode


@pytest.mark.parametrize("chunk", CHUNKS, ids=str)
def test_exact_frequencies_are_within_one_ulp_of_fifty_digits(chunk):
    for case in (case for index in chunk for case in cases(index)):
        for length in lengths(case):
            ours, true = case.rope.frequencies(length).float(), to_float32(case.drawn.frequencies(length))
            assert ulps(ours, true) <= 1, case.name


@pytest.mark.parametrize("chunk", CHUNKS, ids=str)
def test_exact_frequencies_are_within_a_millionth_of_transformers(chunk):
    """Save where transformers itself is further off.

    Pairs that yarn and llama3 blend are a sum of w / s and w with float32 weights. A weight that should be
    small is wrong by 2^-24 of 1, not of itself, and stands before a term s times the other: an error of up
    to s * 2^-24 that neither the true value nor ours has.
    """
    for case in (case for index in chunk for case in cases(index)):
        for length in lengths(case):
            ours, theirs = case.rope.frequencies(length), init_frequencies(case, length)[0].double()
            true = torch.tensor([float(w) for w in case.drawn.frequencies(length)], dtype=torch.float64)
            apart = (ours - theirs).abs() > 1e-6 * true
            assert not (apart & ~blended(case, true)).any(), case.name
            assert ((ours - true).abs()[apart] <= 1e-14 * true[apart]).all(), case.name
            room = 1e-6 + float(case.drawn.factor() or 1) * 2**-24 if apart.any() else 1e-6
            assert ((theirs - true).abs() <= room * true).all(), case.name


def blended(case, true):
    """Which pairs are a mixture of the kept and the interpolated frequency."""
    p = case.drawn.parameters
    if p["rope_type"] not in ("yarn", "llama3"):
        return torch.zeros_like(true, dtype=torch.bool)
    kept = torch.tensor([float(w) for w in oracle.plain(case.drawn.dim, p["rope_theta"])], dtype=torch.float64)
    return ~torch.isclose(true, kept, rtol=1e-12) & ~torch.isclose(true, kept / case.drawn.factor(), rtol=1e-12)


@pytest.mark.parametrize("chunk", CHUNKS, ids=str)
def test_attention_factor_is_that_of_transformers(chunk):
    for case in (case for index in chunk for case in cases(index)):
        for length in lengths(case):
            ours = case.rope.attention_factor(length)
            assert abs(ours - init_frequencies(case, length)[1]) <= 1e-12, case.name
            assert abs(ours - case.drawn.attention_factor()) <= 1e-12, case.name


# --- angles="float32"


@pytest.mark.parametrize("chunk", CHUNKS, ids=str)
def test_float32_frequencies_have_the_bits_of_transformers(chunk):
    for case in (case for index in chunk for case in cases(index)):
        for length in lengths(case):
            theirs = init_frequencies(case, length)[0]
            assert theirs.dtype == torch.float32
            assert torch.equal(case.float32.frequencies(length).float(), theirs), case.name


@pytest.mark.parametrize("chunk", CHUNKS, ids=str)
def test_float32_tables_have_the_bits_of_the_module(chunk):
    """Up to position 131071; dynamic below and above its length, longrope with both lists."""
    for index in chunk:
        for case in cases(index):
            for length in lengths(case):
                positions = draw_positions(index, case, length)
                inv_freq, cos, sin, factor = case.transformers_forward(positions)
                served = int(positions.max()) + 1
                ours = case.float32.tables(positions, served)
                for table, theirs in zip(ours, (cos, sin), strict=True):
                    assert theirs.dtype == torch.float32
                    assert torch.equal(torch.cat((table, table), dim=-1), theirs), case.name
                assert torch.equal(case.float32.frequencies(served).float(), inv_freq), case.name
                assert case.float32.attention_factor(served) == factor, case.name


def draw_positions(index, case, length):
    """(2, 16) random positions, the largest of them one below the length that is served."""
    parameters = case.drawn.parameters
    served = LONGEST
    if length is None and len(lengths(case)) == 2:
        dynamic = parameters["rope_type"] == "dynamic"
        served = case.drawn.length if dynamic else parameters["original_max_position_embeddings"]
    positions = torch.randint(0, served, (2, 16), generator=torch.Generator().manual_seed(index))
    positions[1, 3] = served - 1
    return positions


def test_every_type_is_drawn_flat_and_nested_partial_and_whole():
    drawn = [case for index in range(CONFIGS) for case in cases(index)]
    kinds = {(case.drawn.parameters["rope_type"], case.module) for case in drawn}
    assert kinds == {(kind, module) for kind in TYPES for _, module in (*FLAT.values(), *NESTED.values())}
    assert len({case.drawn.parameters["rope_theta"] for case in drawn}) > 150
    for key, values in {"truncate": {True, False}, "beta_fast": {32, 16.0, 48.5, 0}, "factor": {None, 1.0}}.items():
        assert values <= {case.drawn.parameters[key] for case in drawn if key in case.drawn.parameters}


# --- where transformers is wrong, or was

YARN = {"rope_type": "yarn", "rope_theta": 150000.0, "factor": 32.0, "original_max_position_embeddings": 4096}
SIZES = {"hidden_size": 256, "num_attention_heads": 4, "num_hidden_layers": 2, "max_position_embeddings": 131072}


def nested_config(parameters, **sizes):
    default = {"rope_type": "default", "rope_theta": 10000.0}
    dicts = {"full_attention": parameters, "sliding_attention": default}
    return Gemma3TextConfig(**SIZES | {"head_dim": 64} | sizes, layer_types=list(LAYER_TYPES), rope_parameters=dicts)


def test_truncate_inside_a_layer_type_counts_although_transformers_reads_it_elsewhere():
    parameters = YARN | {"truncate": False}
    nested, flat = nested_config(dict(parameters)), LlamaConfig(**SIZES, rope_parameters=dict(parameters))
    theirs, _ = ROPE_INIT_FUNCTIONS["yarn"](nested, None, layer_type="full_attention")
    right, _ = ROPE_INIT_FUNCTIONS["yarn"](flat, None)
    rope = Rope.from_hf(nested.to_dict(), "full_attention")
    ours = Rope.from_config(rope.config.replace(angles="float32")).frequencies().float()
    assert torch.equal(ours, right)
    assert float((theirs - right).abs().max()) > 1e-4  # transformers 5.22.2 truncates all the same


@pytest.mark.parametrize("kind", ["yarn", "dynamic", "longrope"])
def test_head_dim_null_is_derived_although_transformers_stops(kind):
    parameters = {
        "yarn": YARN,
        "dynamic": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0},
        "longrope": {"rope_type": "longrope", "short_factor": [1.0] * 32, "long_factor": [4.0] * 32, "factor": 4.0},
    }[kind]
    config = MixtralConfig(**SIZES, head_dim=None)
    config.rope_parameters = {"rope_theta": 10000.0, "original_max_position_embeddings": 4096} | parameters
    with pytest.raises(TypeError, match="NoneType"):
        ROPE_INIT_FUNCTIONS[kind](config, None)
    config.head_dim = 64
    right, _ = ROPE_INIT_FUNCTIONS[kind](config, None)
    rope = Rope.from_hf(config.to_dict() | {"head_dim": None})
    assert torch.equal(Rope.from_config(rope.config.replace(angles="float32")).frequencies().float(), right)


def test_nested_longrope_switches_lists_with_the_length_at_every_call():
    """Older versions of transformers stopped at the second long call; 5.22.2 does not, and agrees."""
    lists = {"short_factor": [1.0 + i / 8 for i in range(32)], "long_factor": [2.0 + i for i in range(32)]}
    parameters = {"rope_type": "longrope", "rope_theta": 10000.0, "factor": 32.0, **lists}
    config = nested_config(parameters | {"original_max_position_embeddings": 4096})
    module, rope = Gemma3RotaryEmbedding(config), Rope.from_hf(config.to_dict(), "full_attention")
    rope = Rope.from_config(rope.config.replace(angles="float32"))
    for last in (10_000, 4095, 9_000, 4096, 4095):
        positions = torch.arange(last - 7, last + 1).unsqueeze(0)
        cos, _ = module(torch.zeros(1), positions, layer_type="full_attention")
        assert torch.equal(rope.tables(positions, last + 1)[0], cos[..., :32])


def test_dynamic_depends_on_the_length_alone_although_transformers_remembers_the_longest():
    parameters = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
    config = LlamaConfig(**SIZES | {"max_position_embeddings": 2048}, rope_parameters=parameters)
    rope = Rope.from_config(Rope.from_hf(config.to_dict()).config.replace(angles="float32"))
    used, fresh, zeros = LlamaRotaryEmbedding(config), LlamaRotaryEmbedding(config), torch.zeros(1)
    used(zeros, torch.tensor([[9999]]))
    positions = torch.tensor([[4999]])
    ours = rope.tables(positions, 5000)[0]
    assert torch.equal(fresh(zeros, positions)[0][..., :32], ours)
    assert not torch.equal(used(zeros, positions)[0][..., :32], ours)


def test_dynamic_measures_against_max_position_embeddings_as_transformers_does():
    parameters = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
    with_original = LlamaConfig(**SIZES, rope_parameters=parameters | {"original_max_position_embeddings": 4096})
    assert Rope.from_hf(with_original.to_dict()).config.scaling.original_length == 131072
