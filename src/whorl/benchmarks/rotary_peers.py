"""Rotary code of other libraries, as their users call it, where they are installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from whorl.rotary.rotation import Layout

Both = Callable[[], tuple[Tensor, Tensor]]


class Peer(NamedTuple):
    """A call to time; and for the check another one, where the first writes into its arguments."""

    run: Both
    afresh: Both | None = None
    layout: Layout = "half"


def plain(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """The form in common use: x cos + rotate_half(x) sin, tables in the dtype of x."""

    def half(x: Tensor) -> Tensor:
        a, b = x.chunk(2, dim=-1)
        return torch.cat((-b, a), dim=-1)

    return q * cos + half(q) * sin, k * cos + half(k) * sin


def peers(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> dict[str, Peer]:
    """Calls that rotate q and k (batch, heads, length, dim) by name.

    ``cos`` and ``sin`` are (length, pairs), those of the base 10,000 from position 0 on, or (batch, length, pairs), in
    float32. Each library gets tables as it makes them itself.
    """
    wide = [torch.cat((t, t), dim=-1).to(q.dtype) for t in (cos, sin)]
    wide = [t if t.ndim == 3 else t[None] for t in wide]
    calls = {"plain torch": Peer(lambda: plain(q, k, wide[0][:, None], wide[1][:, None]))}
    compiled = torch.compile(plain, dynamic=False)
    calls["torch.compile"] = Peer(lambda: compiled(q, k, wide[0][:, None], wide[1][:, None]))
    for add in (_transformers, _liger, _flash, _rotary_embedding_torch):
        try:
            calls |= add(q, k, cos, sin, wide)
        except ImportError:
            continue
    return calls


def _transformers(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, wide: list[Tensor]) -> dict[str, Peer]:
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    return {"transformers": Peer(lambda: apply_rotary_pos_emb(q, k, wide[0], wide[1]))}


def _liger(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, wide: list[Tensor]) -> dict[str, Peer]:
    if q.device.type != "cuda":
        return {}
    from liger_kernel.transformers.rope import liger_rotary_pos_emb  # pyright: ignore[reportMissingImports]

    # it writes into its arguments
    given = heads_side_by_side(q), heads_side_by_side(k)
    return {
        "liger-kernel": Peer(
            run=lambda: liger_rotary_pos_emb(*given, *wide),
            afresh=lambda: liger_rotary_pos_emb(heads_side_by_side(q), heads_side_by_side(k), *wide),
        )
    }


def heads_side_by_side(x: Tensor) -> Tensor:
    """A copy of the tensor in memory of (batch, length, heads, dim), as a projection leaves it.

    Of other memory Liger makes a copy, and of one token of it, (batch, heads, 1, dim), it reads the wrong rows.
    """
    batch, heads, length, dim = x.shape
    return x.new_empty(batch, length, heads, dim).transpose(1, 2).copy_(x)


def _flash(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, wide: list[Tensor]) -> dict[str, Peer]:
    if q.device.type != "cuda" or cos.ndim == 3:
        return {}
    from flash_attn.layers.rotary import apply_rotary_emb  # pyright: ignore[reportMissingImports]

    tables: Any = [t.to(q.dtype) for t in (cos, sin)]

    def run() -> tuple[Tensor, Tensor]:
        turned = [apply_rotary_emb(x.transpose(1, 2), *tables) for x in (q, k)]
        return turned[0].transpose(1, 2), turned[1].transpose(1, 2)

    return {"flash-attn": Peer(run)}


def _rotary_embedding_torch(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, wide: list[Tensor]) -> dict[str, Peer]:
    if cos.ndim == 3:  # it counts positions itself, alike for all rows
        return {}
    from rotary_embedding_torch import RotaryEmbedding

    rotary = RotaryEmbedding(dim=q.shape[-1], cache_max_seq_len=q.shape[-2]).to(q.device)

    def run() -> tuple[Tensor, Tensor]:
        return rotary.rotate_queries_or_keys(q), rotary.rotate_queries_or_keys(k)

    return {"rotary-embedding-torch": Peer(run, layout="interleaved")}
