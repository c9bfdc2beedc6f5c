"""The encodings that every group goes through, built small, and seeded tokens for them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

import whorl
from probe.recording import seed_of

HEADS, HEAD_DIM, WIDTH, LENGTH, BATCH = 4, 16, 64, 16, 2
SIZES = {"heads": HEADS, "head_dim": HEAD_DIM, "width": WIDTH, "length": LENGTH}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}

# Settings small enough that a few tokens pass every window, clip and trained length.
SETTINGS: dict[str, dict[str, Any]] = {
    "cope": {"max_position": 5},
    "deberta": {"span": 6, "max_distance": None},
    "fire": {"length": 4},
    "learned": {"length": 64},
    "leaky_rerope": {"window": 3, "factor": 4.0},
    "llama4_temperature": {"floor_scale": 3},
    "log_n": {"trained_length": 3},
    "mrope": {"sections": (2, 3, 3)},
    "rerope": {"window": 3},
    "self_extend": {"window": 4, "group": 2},
    "shaw": {"clip": 3},
    "sinks": {"size": 3, "count": 2},
    "t5": {"buckets": 8, "max_distance": 12},
    "window": {"size": 4},
    "xpos": {"scale_base": 16.0},
}

# Further settings of encodings by name.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "rope interleaved": ("rope", {"layout": "interleaved"}),
    "rope deepseek": ("rope", {"layout": "interleaved_to_half", "rotary_dim": 8, "slice": "trailing"}),
    "rope partial": ("rope", {"rotary_dim": 8}),
    "rope learnable": ("rope", {"learnable": True}),
    "rope some heads": ("rope", {"rotated_heads": (1, 3)}),
    "rope float32": ("rope", {"angles": "float32"}),
    "mrope ernie": ("mrope", {"sections": (3, 3, 2), "arrangement": "ernie"}),
    "mrope interleaved": ("mrope", {"sections": (4, 2, 2), "arrangement": "interleaved"}),
    "axial_rope apex": ("axial_rope", {"convention": "apex"}),
    "rerope bidirectional": ("rerope", {"window": 3, "bidirectional": True}),
    "window symmetric": ("window", {"size": 4, "symmetric": True}),
    "cope both ways": ("cope", {"max_position": 5, "causal": False}),
    "shaw keys": ("shaw", {"clip": 3, "values": False}),
    "t5 both ways": ("t5", {"buckets": 8, "max_distance": 12, "bidirectional": True, "scaled": True}),
    "ssmax bias": ("ssmax", {"bias": True}),
    "deberta paper": ("deberta", {"span": 6, "max_distance": None, "position_to_content": "paper"}),
    "alibi symmetric": ("alibi", {"form": "symmetric"}),
    "alibi split": ("alibi", {"form": "split"}),
    "alibi offset": ("alibi", {"form": "offset", "offset": 2.0, "slopes": "geometric"}),
    "alibi bloom": ("alibi", {"rounding": "hf_bf16"}),
    "alibi falcon": ("alibi", {"rounding": "hf_falcon", "scale": 0.25}),
    "sandwich folded": ("sandwich", {"code_width": 16}),
    "kerple power": ("kerple", {"variant": "power"}),
    "transformer_xl clamp": ("transformer_xl", {"clamp": 5, "width": WIDTH}),
}

# What is joined, by name.
JOINED = (
    "rope + alibi",
    "rope + t5",
    "rope + window",
    "rope + sinks",
    "rope + log_n + window",
    "rope + t5 + window",
    "rope + shaw",
    "rope + cope",
    "rope + kerple",
    "rope + fire",
    "rope + deberta",
    "rope dynamic_ntk + alibi + sinks",
    "rope yarn + log_n",
    "rerope + log_n",
    "self_extend + ssmax + window",
    "leaky_rerope + llama4_temperature",
    "rerope + alibi",
    "alibi + window",
    "kerple + window",
    "kerple + ssmax",
    "sandwich + log_n",
    "xpos + window",
    "xpos + alibi",
    "mrope + none",
    "forgetting_gate + rope",
    "forgetting_gate + alibi",
    "forgetting_gate + window",
    "cope + window",
    "sinusoidal + rope",
    "learned + t5",
)


@cache
def scalings() -> dict[str, Callable[[], Any]]:
    """What builds one of each scaling and of its variants, for eight pairs trained on eight positions."""
    short, long = [1.0 + i / 8 for i in range(8)], [2.0 + i for i in range(8)]
    return {
        "linear": lambda: whorl.Linear(factor=4.0),
        "ntk": lambda: whorl.Ntk(factor=4.0),
        "ntk_fixed": lambda: whorl.Ntk(factor=4.0, variant="fixed"),
        "ntk_mixed": lambda: whorl.Ntk(factor=4.0, variant="mixed", exponent=0.625),
        "dynamic_ntk": lambda: whorl.DynamicNtk(factor=4.0, original_length=8),
        "ntk_by_parts": lambda: whorl.NtkByParts(factor=4.0, original_length=256),
        "ntk_by_parts_v1": lambda: whorl.NtkByParts(factor=4.0, original_length=256, variant="v1"),
        "yarn": lambda: whorl.Yarn(factor=4.0, original_length=256),
        "yarn_smooth": lambda: whorl.Yarn(factor=4.0, original_length=256, truncate=False, extrapolation_factor=0.5),
        "yarn_mscale": lambda: whorl.Yarn(
            factor=40.0, original_length=256, mscale=1.0, mscale_all_dim=0.707, scale_softmax=True
        ),
        "longrope": lambda: whorl.LongRope(short_factor=short, long_factor=long, original_length=8, factor=4.0),
        "llama3": lambda: whorl.Llama3(factor=8.0, original_length=256),
        "proportional": lambda: whorl.Proportional(fraction=0.25),
        "resonance": lambda: whorl.Resonance(inner=whorl.Yarn(factor=4.0, original_length=256)),
    }


@cache
def encodings() -> dict[str, Callable[[], Any]]:
    """What builds each encoding, by a name that says what it is; a builder may raise."""
    plain = [name for name in whorl.names() if name != "combined"]
    scaled = [f"rope {scaling}" for scaling in scalings()]
    return {name: partial(build, name) for name in (*plain, *VARIANTS, *scaled, *JOINED)}


def build(name: str) -> Any:
    """The encoding of this name, with learned numbers moved from their start."""
    if " + " in name:
        return whorl.Combined(*map(build, name.split(" + ")))
    kind, _, scaling = name.partition(" ")
    if name in VARIANTS:
        kind, settings = VARIANTS[name]
    else:
        settings = {"scaling": scalings()[scaling]()} if scaling else SETTINGS.get(name, {})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(name))
        encoding = whorl.build_for(kind, **SIZES | settings)
    with torch.no_grad():
        for key, parameter in encoding.named_parameters():
            parameter += 0.3 * random(key, *parameter.shape).to(parameter)
    return encoding


def random(name: str, *shape: int, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Tensor:
    """Numbers that are the same wherever this name and shape are asked for, rounded from float64."""
    generator = torch.Generator().manual_seed(seed_of(name))
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(device, dtype)


def tokens(
    queries: int,
    keys: int | None = None,
    *,
    batch: int = BATCH,
    kv_heads: int = HEADS,
    value_dim: int = HEAD_DIM,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    salt: str = "",
) -> list[Tensor]:
    """Queries, keys and values."""
    keys = queries if keys is None else keys
    shapes = {"q": (batch, HEADS, queries, HEAD_DIM), "k": (batch, kv_heads, keys, HEAD_DIM)}
    shapes["v"] = (batch, kv_heads, keys, value_dim)
    return [random(name + salt, *shape, dtype=dtype, device=device) for name, shape in shapes.items()]


def hidden_for(encoding: Any, keys: int, batch: int = BATCH, **kind: Any) -> dict[str, Tensor]:
    """Hidden states where the encoding reads them, as keyword arguments of attention."""
    return {"hidden": random("hidden", batch, keys, WIDTH, **kind)} if encoding.reads_hidden else {}


def on_axes(encoding: Any, positions: Tensor) -> Tensor:
    """Positions with an axis in front for encodings of several, which differ from axis to axis."""
    if encoding.axes == 1:
        return positions
    return torch.stack([positions // (axis + 1) + axis for axis in range(encoding.axes)])
