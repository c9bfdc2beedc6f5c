"""Calls of ``attention`` that were made before: what their sizes and their encoding decide is asked once.

A plain causal call of queries and keys of the same tokens on a GPU, without gradients, is two launches where torch's
own kernel or ours by tiles computes it. Checks and choices take longer than both, so the first call of a kind leaves
a function for the next.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from whorl.attend.blocks import rows_of_window
from whorl.attend.call import Call
from whorl.attend.learned import MadeOf
from whorl.attend.tiles import tiles_of
from whorl.encodings.base import Encoding
from whorl.encodings.parts import Placement, QueryScale, every
from whorl.kernels.rotate import rotate_qk
from whorl.tracing import operators_are_watched, takes_derivatives, takes_gradients

Kind = tuple[Any, ...]
Ready = Callable[[Tensor, Tensor, Tensor], Tensor]

MOST_KINDS = 256  # of one encoding


def kind_of(q: Tensor, k: Tensor, v: Tensor, scale: float | None, length: int | None) -> Kind | None:
    """All that decides how a plain call runs but for its encoding; None where nothing is kept for it."""
    if not (type(q) is type(k) is type(v) is Tensor and q.is_cuda) or operators_are_watched():
        return None
    if takes_derivatives(q, k, v) or torch.is_autocast_enabled("cuda"):
        return None
    return (
        q.shape, q.stride(), q.dtype, q.device, k.shape, k.stride(), k.dtype, k.device, v.shape, v.stride(), v.dtype,
        v.device, scale, length, torch.is_grad_enabled(),
    )  # fmt: skip


def find(encoding: Encoding, kind: Kind) -> Ready | None:
    """The function for a kind of call, or None where it is new or goes another way."""
    return None if encoding._calls is None else encoding._calls.get(kind)


def keep(kind: Kind, call: Call, path: str) -> None:
    """Keeps a function for calls like this one, where they are plain."""
    made = None
    if call.consecutive and call.visible.causal is True and call.q.shape[2] == call.k.shape[2]:
        made = _by_torch(call) if path == "sdpa" else _by_tiles(call) if path == "tiles" else None
    if made is None:
        return
    known = call.encoding._calls
    if known is None or len(known) >= MOST_KINDS:
        known = call.encoding._calls = {}
    known[kind] = made


def _by_torch(call: Call) -> Ready | None:
    place = _place(call)
    if place is None or not call.visible.only_causal or rows_of_window(call) is not None:
        return None
    grouped, scale = call.q.shape[1] != call.k.shape[1], call.scale

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k = place(q, k)
        return scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=grouped)

    return attend


def _by_tiles(call: Call) -> Ready | None:
    place, encoding = _place(call), call.encoding
    if place is None or takes_gradients(*encoding.parameters()):
        return None
    tiles = tiles_of(call)
    numbers = None if tiles.numbers is None else MadeOf(encoding, tiles.numbers)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return tiles(*place(q, k), v, None if numbers is None else numbers())[0]

    return attend


def _place(call: Call) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None:
    """The function that places queries and keys at 0, 1, 2, …, or None where it takes more than a rotation."""
    places = every(call.encoding, Placement, QueryScale)
    if not places:
        return lambda q, k: (q, k)
    only = places[0]
    if len(places) > 1 or not isinstance(only, Placement) or only.rotary is None:
        return None
    rotary, count = only.rotary, call.q.shape[2]
    tables = rotary.counted_tables(count, call.length, call.q.device)
    if tables is None or call.q.dtype == torch.float64:
        return None
    layout, start, blocks = rotary.layout, rotary.config.start, rotary.config.blocks
    cos, sin = tables.cos[:count], tables.sin[:count]

    def turn(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return rotate_qk(q, k, cos, sin, layout, start=start, blocks=blocks)

    turn.holds = tables  # pyright: ignore[reportFunctionMemberAccess]  # shared as long as somebody has them
    return turn
