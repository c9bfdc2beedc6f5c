"""Plans of plain calls of ``attention``: what their sizes and their encoding decide is asked once.

A plain call is causal, and its queries and keys are the same tokens at 0, 1, 2, …. Where torch's own kernel computes
it, or ours by tiles, checks and choices take longer than a short call's kernels, so the first call of a kind leaves a
plan for the next. Every other call is checked and chosen for anew.
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
from whorl.attend.fused import once_differentiable, one_after_another, same_width
from whorl.attend.reference import repeat_heads
from whorl.attend.tiles import branch_settings, source_of, tiles_of
from whorl.encodings.base import Encoding
from whorl.encodings.made_of import MadeOf
from whorl.encodings.parts import Branches, Placement, QueryScale, first, lone_rotation
from whorl.encodings.rotary import Counted
from whorl.kernels.refusals import choose_rotate
from whorl.kernels.rotate import plan_for
from whorl.kernels.tiles.op import branches_attention
from whorl.plans import PLANS, Key, Plan, kind, weakly

Place = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def kind_of(
    encoding: Encoding, q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None, scale: Any, length: Any
) -> Key | None:
    """The key of a plain call; None where nothing is planned for it."""
    if not isinstance(q, Tensor) or torch.is_autocast_enabled(q.device.type):
        return None
    if torch.is_grad_enabled() and torch.are_deterministic_algorithms_enabled():
        return None  # which may refuse what is learned, asked at every call
    return kind(("attention", id(encoding), scale, length), q, k, v, hidden)


def keep(key: Key, call: Call, path: str) -> None:
    """Keeps a plan for calls like this one, where they are plain."""
    same_tokens = call.consecutive and call.visible.causal is True and call.q.shape[2] == call.k.shape[2]
    if same_tokens and one_after_another(call.q) is call.q:
        place, tables = _place(call)
        plan = _by_tiles(call, place) if path == "tiles" else None
        if path == "sdpa" and call.hidden is None:
            plan = _by_torch(call, place)
        if plan is not None:
            PLANS.keep(key, plan, call.encoding, 0 if tables is None else tables.bytes)


def _by_torch(call: Call, place: Place) -> Plan | None:
    if not call.visible.only_causal or rows_of_window(call) is not None:
        return None
    scale, heads, shared, width = call.scale, call.q.shape[1], call.k.shape[1], call.v.shape[3]
    cuda = call.q.device.type == "cuda"

    def attend(q: Tensor, k: Tensor, v: Tensor, _: Any) -> Tensor:
        q, k = place(q, k)
        if not cuda:  # as ``fused`` gives them to torch's kernel
            q, k, v = same_width(q, k, v)
            k, v = repeat_heads(k, heads), repeat_heads(v, heads)
        out = scaled_dot_product_attention(
            *once_differentiable(q, k, v), is_causal=True, scale=scale, enable_gqa=cuda and heads != shared
        )
        return out if cuda else out[..., :width]

    return attend


def _by_tiles(call: Call, place: Place) -> Plan:
    encoding, branches = weakly(call.encoding), first(call.encoding, Branches)
    if branches is not None:
        return _by_branches(call, branches)
    attend = tiles_of(call)
    make = attend.numbers
    if make is None:
        return lambda q, k, v, _: attend(*place(q, k), v, None)[0]
    if call.hidden is not None:

        def with_memory(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None) -> Tensor:
            own = encoding()
            return attend(*place(q, k), v, make(source_of(own), own.remember(hidden)))[0]

        return with_memory
    made = MadeOf(call.encoding, lambda own: make(source_of(own), None))

    def with_numbers(q: Tensor, k: Tensor, v: Tensor, _: Any) -> Tensor:
        learns = torch.is_grad_enabled() and made.takes_gradients()
        own = encoding()
        return attend(*place(q, k), v, make(source_of(own), None) if learns else made())[0]

    return with_numbers


def _by_branches(call: Call, branches: Branches) -> Plan:
    encoding, positions, length = weakly(call.encoding), call.q_positions, call.length
    near, far = places_by_branch(call.encoding, positions, call.k_positions)[:2]
    settings = branch_settings(call, branches)

    def attend(q: Tensor, k: Tensor, v: Tensor, _: Any) -> Tensor:
        own = encoding()
        q = own.scale_queries(q, positions, length)
        near_q, near_k = own.transform_branch(q, k, *near, length)
        far_q, far_k = own.transform_branch(q, k, *far, length)
        return branches_attention(near_q, near_k, far_q, far_k, v, **settings)[0]

    return attend


def _place(call: Call) -> tuple[Place, Counted | None]:
    """The function that places queries and keys at 0, 1, 2, …, and the tables that it reads."""
    if first(call.encoding, Placement, QueryScale) is None:
        return (lambda q, k: (q, k)), None
    rotary, count, q = lone_rotation(call.encoding), call.q.shape[2], call.q
    # tables of float64, and those that are learned, are made at each call
    tables = None if rotary is None or q.dtype == torch.float64 else rotary.counted_tables(count, call.length, q.device)
    if rotary is None or tables is None:
        encoding, length, here, there = weakly(call.encoding), call.length, call.q_positions, call.k_positions
        return (lambda q, k: encoding().transform_qk(q, k, here, there, length)), None
    cos, sin = tables.cos[:count], tables.sin[:count]
    kernel = choose_rotate("auto", q, cos, sin)
    turn = plan_for((q, call.k), cos, sin, None, rotary.rotation(), kernel, direct=True)

    def place(q: Tensor, k: Tensor, _own: Counted = tables) -> tuple[Tensor, Tensor]:  # shared as long as it is held
        q, k = turn((q, k), cos, sin, None)
        return q, k

    return place, tables
