"""Errors of cos and sin far from the start: whorl's tables, and those of every library that is installed.

Each library makes tables of the last positions before a far one, by the call that its models make, and is held against
cosines in extended precision. Rounding to float32 alone makes 3.0e-8, and rounding to bfloat16, which models do
afterwards, 2.0e-3. Only whorl's own rows are judged; other libraries are measured.
"""

from __future__ import annotations

from functools import partial
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor

from whorl import Rope
from whorl.benchmarks.runner import Case, Check, Group
from whorl.benchmarks.tables import LIMIT, Build, error_of, naive
from whorl.errors import invalid
from whorl.rotary.tables import Tables

FAR = (8_191, 131_071, 1_048_575, 16_777_215)


def precision(*, rows: int = 512, head_dim: int = 128, base: float = 10_000.0) -> tuple[Group, ...]:
    """A group for each far position: tables of the ``rows`` positions that end there."""
    if rows > FAR[0]:
        raise invalid("bench precision", "rows", f"at most {FAR[0]:,}", rows)
    builds = {"plain float32": naive(head_dim, base), **_whorl(head_dim, base), **peers(head_dim, base)}
    groups = []
    for last in FAR:
        positions = torch.arange(last - rows + 1, last + 1)

        def case(name: str, build: Build, positions: Tensor = positions) -> Case:
            limit = LIMIT if name == "whorl" else None
            check = partial(_judge, build, positions, head_dim, base, limit)
            return Case(name=name, run=partial(build, positions), check=check, peer=name != "whorl")

        groups.append(
            Group(
                name=f"at {last:,}",
                summary=f"cos and sin of {rows} positions up to {last:,}, {head_dim // 2} pairs of base {base:g}",
                cases=tuple(case(name, build) for name, build in builds.items()),
            )
        )
    return tuple(groups)


def _judge(build: Build, positions: Tensor, head_dim: int, base: float, limit: float | None) -> Check:
    error = error_of(build, positions, head_dim, base)
    ok = limit is None or error <= limit
    return Check(ok=ok, text=f"error {error:.2g}" + ("" if ok else f", over {limit:.1g}"), numbers={"error": error})


def _whorl(head_dim: int, base: float) -> dict[str, Build]:
    return {
        "whorl": Rope(head_dim=head_dim, base=base).tables,
        "whorl, angles='float32'": Rope(head_dim=head_dim, base=base, angles="float32").tables,
    }


def peers(head_dim: int, base: float) -> dict[str, Build]:
    """How each installed library makes cos and sin (positions, pairs), by its name and version."""
    found: dict[str, Build] = {}
    for distribution, make in (
        ("transformers", _transformers),
        ("rotary-embedding-torch", _rotary_embedding_torch),
        ("x-transformers", _x_transformers),
    ):
        try:
            build = make(head_dim, base)
        except ImportError:
            continue
        found[f"{distribution} {version(distribution)}"] = build
    return found


def _transformers(head_dim: int, base: float) -> Build:
    """The rotary embedding of Llama, which most of its models share."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = LlamaConfig(
        hidden_size=head_dim,
        num_attention_heads=1,
        rope_parameters={"rope_type": "default", "rope_theta": base},
    )
    rotary = LlamaRotaryEmbedding(config)

    def build(positions: Tensor) -> Tables:
        cos, sin = rotary(torch.empty(0), positions[None])
        return cos[0, :, : head_dim // 2], sin[0, :, : head_dim // 2]

    return build


def _rotary_embedding_torch(head_dim: int, base: Any) -> Build:  # its base is annotated as an integer
    from rotary_embedding_torch import RotaryEmbedding

    rotary = RotaryEmbedding(dim=head_dim, theta=base)

    def build(positions: Tensor) -> Tables:
        angles = rotary(positions)[:, ::2].detach()
        return angles.cos(), angles.sin()

    return build


def _x_transformers(head_dim: int, base: Any) -> Build:  # and here
    from x_transformers.x_transformers import RotaryEmbedding

    rotary = RotaryEmbedding(head_dim, base=base)

    def build(positions: Tensor) -> Tables:
        angles = rotary(positions)[0][0, :, ::2]
        return angles.cos(), angles.sin()

    return build
