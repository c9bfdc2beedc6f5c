"""Calls of ``attention`` that were made before: what their sizes and their encoding decide is asked once.

A plain causal call of queries and keys of the same tokens on a GPU is two launches where torch's own kernel, without
gradients, or ours by tiles computes it. Checks and choices take longer than both, so the first call of a kind leaves a
function for the next. It keeps none of the tensors it was made for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from whorl.attend.blocks import rows_of_window
from whorl.attend.branches import places_by_branch
from whorl.attend.call import Call
from whorl.attend.tiles import branch_settings, tiles_of
from whorl.encodings.base import Encoding
from whorl.encodings.made_of import MadeOf
from whorl.encodings.parts import Branches, Placement, QueryScale, first, lone_rotation
from whorl.kernels.launches import kinds_of
from whorl.kernels.rotate import rotate_qk
from whorl.kernels.tiles.op import branches_attention
from whorl.tracing import operators_are_watched, takes_gradients

Kind = tuple[Any, ...]
Ready = Callable[[Tensor, Tensor, Tensor, Any], Tensor]  # of queries, keys, values, and hidden states or None

MOST_KINDS = 256  # of one encoding


def kind_of(
    q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None, scale: float | None, length: int | None
) -> Kind | None:
    """All that decides how a plain call runs but for its encoding; None where nothing is kept for it."""
    if not (type(q) is type(k) is type(v) is Tensor and q.is_cuda) or operators_are_watched():
        return None
    if not (hidden is None or type(hidden) is Tensor) or torch.is_autocast_enabled("cuda"):
        return None
    grad = torch.is_grad_enabled()
    if grad and torch.are_deterministic_algorithms_enabled():  # which may refuse what is learned, asked at every call
        return None
    tensors = (q, k, v) if hidden is None else (q, k, v, hidden)
    modes = grad, torch.is_inference_mode_enabled()  # what is kept may be a tensor of inference mode
    return *kinds_of(*tensors), scale, length, *modes, takes_gradients(q, k, v)


def find(encoding: Encoding, kind: Kind) -> Ready | None:
    """The function for a kind of call, or None where it is new or goes another way."""
    return encoding._calls.get(kind)


def keep(kind: Kind, call: Call, path: str) -> None:
    """Keeps a function for calls like this one, where they are plain."""
    made = None
    if call.consecutive and call.visible.causal is True and call.q.shape[2] == call.k.shape[2]:
        given = call.q, call.k, call.v
        made = _by_tiles(call) if path == "tiles" else None
        if path == "sdpa" and call.hidden is None and not takes_gradients(*given):
            made = _by_torch(call)
    if made is None:
        return
    if len(call.encoding._calls) >= MOST_KINDS:
        call.encoding._calls.clear()
    call.encoding._calls[kind] = made


def _by_torch(call: Call) -> Ready | None:
    place = _place(call)
    if place is None or not call.visible.only_causal or rows_of_window(call) is not None:
        return None
    grouped, scale = call.q.shape[1] != call.k.shape[1], call.scale

    def attend(q: Tensor, k: Tensor, v: Tensor, _: Any) -> Tensor:
        q, k = place(q, k)
        return scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=grouped)

    return attend


def _by_tiles(call: Call) -> Ready | None:
    encoding, branches = call.encoding, first(call.encoding, Branches)
    if branches is not None:
        return _by_branches(call, branches)
    place = _place(call)
    if place is None:
        return None
    attend = tiles_of(call)
    make = attend.numbers
    if make is None:
        return lambda q, k, v, _: attend(*place(q, k), v, None)[0]
    if call.hidden is not None:

        def with_memory(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None) -> Tensor:
            assert hidden is not None
            return attend(*place(q, k), v, make(encoding.remember(hidden)))[0]

        return with_memory
    made = MadeOf(encoding, lambda: make(None))

    def with_numbers(q: Tensor, k: Tensor, v: Tensor, _: Any) -> Tensor:
        numbers = make(None) if torch.is_grad_enabled() and made.takes_gradients() else made()
        return attend(*place(q, k), v, numbers)[0]

    return with_numbers


def _by_branches(call: Call, branches: Branches) -> Ready:
    encoding, positions, length = call.encoding, call.q_positions, call.length
    near, far = places_by_branch(encoding, positions, call.k_positions)[:2]
    settings = branch_settings(call, branches)

    def attend(q: Tensor, k: Tensor, v: Tensor, _: Any) -> Tensor:
        q = encoding.scale_queries(q, positions, length)
        placed = *encoding.transform_branch(q, k, *near, length), *encoding.transform_branch(q, k, *far, length)
        return branches_attention(*placed, v, **settings)[0]

    return attend


def _place(call: Call) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None:
    """The function that places queries and keys at 0, 1, 2, …, or None where it takes more than a rotation."""
    if first(call.encoding, Placement, QueryScale) is None:
        return lambda q, k: (q, k)
    rotary, count = lone_rotation(call.encoding), call.q.shape[2]
    if rotary is None or call.q.dtype == torch.float64:
        return None
    tables = rotary.counted_tables(count, call.length, call.q.device)
    if tables is None:
        return None
    layout, start, blocks = rotary.layout, rotary.config.start, rotary.config.blocks

    def turn(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return rotate_qk(q, k, tables.cos[:count], tables.sin[:count], layout, start=start, blocks=blocks)

    return turn
