"""The sums of linear attention, out_i = sum_j e^(-rate |p_i - p_j|) (a_i . b_j) v_j, linear in the length.

chunked    a chunk of tokens sees its own keys by a small masked product, and all keys before it through a state of
           dim x value dim numbers; with one chunk as long as the input this is the parallel form
recurrent  one token at a time: the state alone
all keys   one product where nothing fades, a pass in each direction where something does

Fading is never split into factors of which one grows with the length. Between chunks both are at most 1. Within a
chunk a rate by head is taken at the true distance, and rates by dimension relative to the chunk's middle.

Tensors have axes (batch, key heads, groups, length, dim), b and v one group. Positions and rates are float64.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.checkpoint import checkpoint

from whorl.tracing import in_functorch, takes_gradients

# Chunks worked on at once. Longer inputs go on from state to state, and the backward pass computes a segment again,
# so that it holds the products of one segment at a time.
SEGMENT_CHUNKS = 16

# Rows whose weights are looked at for their signs, and how many neighbours among them at a time.
SIGN_ROWS, SIGN_BLOCK = 1024, 64


class Fade(NamedTuple):
    """Weights fall by e^(-rate) for each position of distance."""

    positions: Tensor  # (1 or batch, length), not decreasing
    consecutive: bool  # whether they are known to be p, p + 1, p + 2, …
    heads: Tensor | None = None  # rates (key heads, groups)
    dims: Tensor | None = None  # rates (dim,)

    @staticmethod
    def by_head(fade: Fade | None) -> Fade | None:
        """The part of it that is the same in every dimension."""
        return None if fade is None or fade.heads is None else fade._replace(dims=None)

    def rates(self) -> Tensor:
        """Both rates added, (key heads or 1, groups or 1, dim or 1)."""
        if self.heads is None:
            assert self.dims is not None
            return self.dims[None, None]
        return self.heads[..., None] if self.dims is None else self.heads[..., None] + self.dims


class State(NamedTuple):
    """All that is kept of the keys so far: sum_j e^(-rate (at - p_j)) b_j v_j^T."""

    sums: Tensor  # (batch, key heads, groups or 1, dim, value dim)
    at: Tensor | None  # (1 or batch, 1, 1, 1), the last position; None where nothing fades


def past_keys(
    a: Tensor, b: Tensor, v: Tensor, fade: Fade | None, chunk: int, state: State | None = None, *, strict: bool = False
) -> tuple[Tensor, State]:
    """Every query over the keys up to its own, or before its own with ``strict``; and the state after the last."""
    now = empty_state(a, b, v, fade) if state is None else state
    if not a.shape[-2]:
        return a.new_zeros(*a.shape[:-1], v.shape[-1]), now
    chunk = min(chunk, a.shape[-2])
    # split, not sliced: the gradient of each slice would be as long as the whole input
    pieces = [x.split(chunk * SEGMENT_CHUNKS, dim=-2) for x in (a, b, v)]
    places = [None] * len(pieces[0]) if fade is None else fade.positions.split(chunk * SEGMENT_CHUNKS, dim=-1)
    learned = takes_gradients(a, b, v, now.sums, None if fade is None else fade.heads)
    again = len(places) > 1 and learned and not in_functorch()  # which has no hooks on what is saved for a backward
    outs = []
    for *piece, p in zip(*pieces, places, strict=True):
        here = None if fade is None or p is None else fade._replace(positions=p)
        given: Any = (*piece, here, chunk, strict, now)
        out, now = _computed_again(*given) if again else _segment(*given)
        outs.append(out)
    return (outs[0] if len(outs) == 1 else torch.cat(outs, dim=-2)), now


def one_token(a: Tensor, b: Tensor, v: Tensor, fade: Fade | None, state: State | None) -> tuple[Tensor, State]:
    """The recurrence: the state fades and takes in the key, the query reads it."""
    sums, at = empty_state(a, b, v, fade) if state is None else state
    if fade is not None and at is not None:
        now = fade.positions[:, None, None, :]
        # in float64: the same factor rounded would be wrong by the same bit at every step
        sums, at = (sums * _fall(now - at, fade.rates()).mT).to(sums.dtype), now
    sums = sums + b.mT @ v
    return a @ sums, State(sums, at)


def go_on(a: Tensor, b: Tensor, v: Tensor, fade: Fade | None, chunk: int, state: State | None) -> tuple[Tensor, State]:
    """The next tokens after those of a state: one by the recurrence, more by chunks."""
    if fade is not None and state is not None and state.at is not None:  # one position for all rows, or one for each
        rows = max(fade.positions.shape[0], state.at.shape[0])
        fade = fade._replace(positions=fade.positions.expand(rows, -1))
        state = state._replace(at=state.at.expand(rows, 1, 1, 1))
    if a.shape[-2] == 1:
        return one_token(a, b, v, fade, state)
    return past_keys(a, b, v, fade, chunk, state)


def all_keys(a: Tensor, b: Tensor, v: Tensor, fade: Fade | None, chunk: int) -> Tensor:
    """Every query over every key; rates are by head here, a rate by dimension has no distance to the future."""
    if fade is None:
        return a @ (b.mT @ v)
    past, _ = past_keys(a, b, v, fade, chunk)
    turned = fade._replace(positions=-fade.positions.flip(-1))
    future, _ = past_keys(a.flip(-2), b.flip(-2), v.flip(-2), turned, chunk, strict=True)
    return past + future.flip(-2)


def sums_of_weights(a: Tensor, b: Tensor, fade: Fade | None, causal: bool, chunk: int) -> Tensor:
    """The same sums for values of 1, shape (batch, key heads, groups, queries)."""
    if fade is None:
        return (a * (b.cumsum(-2) if causal else b.sum(-2, keepdim=True))).sum(-1)
    one = torch.ones_like(b[..., :1])
    return (past_keys(a, b, one, fade, chunk)[0] if causal else all_keys(a, b, one, fade, chunk))[..., 0]


def negative_share(
    a: Tensor, b: Tensor, fade: Fade | None, key_mask: Tensor | None, causal: bool, chunk: int
) -> Tensor:
    """The share of the weights that are negative, in blocks of rows that are evenly spaced: time linear in the keys."""
    queries, keys = a.shape[-2], b.shape[-2]
    rows = min(SIGN_BLOCK, chunk)
    blocks = min(SIGN_ROWS // rows, -(-queries // rows))
    negative = visible = torch.zeros((), dtype=torch.int64, device=a.device)
    for i in range(blocks):
        start = max(0, queries - rows) * i // max(1, blocks - 1) if blocks * rows < queries else i * rows
        stop = min(start + rows, queries)
        here, there = a[..., start:stop, :], b[..., : stop if causal else keys, :]
        if fade is not None and fade.dims is not None:
            away = (fade.positions - fade.positions[:, start : start + 1])[:, None, None, :, None] * fade.dims
            here = here * (-away[..., start:stop, :]).exp().to(a.dtype)
            there = there * away[..., :stop, :].exp().to(a.dtype)
        seen = torch.ones(stop - start, there.shape[-2], dtype=torch.bool, device=a.device)
        seen = seen.tril(start) if causal else seen
        if key_mask is not None:
            seen = seen & key_mask[:, None, None, None, : there.shape[-2]]
        weights = here @ there.mT
        negative = negative + ((weights < 0) & seen).sum()
        visible = visible + seen.expand_as(weights).sum()
    return negative / visible


def empty_state(a: Tensor, b: Tensor, v: Tensor, fade: Fade | None) -> State:
    """The state before any key."""
    groups = a.shape[2] if fade is not None and fade.heads is not None else 1
    sums = v.new_zeros(*b.shape[:2], groups, b.shape[-1], v.shape[-1])
    return State(sums, None if fade is None else fade.positions[:, None, None, :1])


def _segment(
    a: Tensor, b: Tensor, v: Tensor, fade: Fade | None, chunk: int, strict: bool, state: State
) -> tuple[Tensor, State]:
    """Some chunks, given the state before them: their output, and the state after them."""
    length, own = a.shape[-2], -1 if strict else 0
    a, b, v = (_chunks(x, chunk) for x in (a, b, v))  # (batch, key heads, groups, chunks, chunk, dim)
    before, at = state.sums.unsqueeze(-3), state.at
    if fade is None or at is None:
        states = torch.cat((before, b.mT @ v), dim=-3).cumsum(-3)
        out = (a @ b.mT).tril(own) @ v + a @ states[..., :-1, :, :]
        return out.flatten(-3, -2)[..., :length, :], State(states[..., -1, :, :], None)
    dtype, rates, p = a.dtype, fade.rates(), fade.positions
    p = torch.cat((p, p[:, -1:].expand(-1, -length % chunk)), dim=-1).unflatten(-1, (-1, chunk))[:, None, None]
    edges = torch.cat((at, p[..., -1]), dim=-1)  # the state that chunk n reads is that of position edges[n]
    since, until = p - edges[..., :-1, None], edges[..., 1:, None] - p
    added = torch.cat((before, (b * _fall(until, rates).to(dtype)).mT @ v), dim=-3)
    gaps = (edges[..., :, None] - edges[..., None, :]).clamp(min=0.0)
    mix = _fall(gaps, rates).movedim(-1, -3).tril().to(dtype)  # (…, dim or 1, chunks + 1, chunks + 1)
    states = (mix @ added.transpose(-3, -2)).transpose(-3, -2)
    out = _within(a, b, p, fade).tril(own) @ v + (a * _fall(since, rates).to(dtype)) @ states[..., :-1, :, :]
    return out.flatten(-3, -2)[..., :length, :], State(states[..., -1, :, :], edges[..., -1:])


def _computed_again(*given: Any) -> Any:
    """The same, keeping for the backward pass what it was given and nothing it computed."""
    return checkpoint(_segment, *given, use_reentrant=False, preserve_rng_state=False)


def _within(a: Tensor, b: Tensor, p: Tensor, fade: Fade) -> Tensor:
    """The products of a chunk's queries and keys, faded; those of later keys have no meaning."""
    if fade.dims is not None:
        away = (p - (p[..., :1] + p[..., -1:]) / 2)[..., None] * fade.dims
        a, b = a * (-away).exp().to(a.dtype), b * away.exp().to(b.dtype)
    products = a @ b.mT
    if fade.heads is None:
        return products
    p = p[..., :1, :] if fade.consecutive else p  # all chunks have the same distances then
    gaps = (p[..., :, None] - p[..., None, :]).clamp(min=0.0)
    return products * (-gaps * fade.heads[..., None, None, None]).exp().to(a.dtype)


def _fall(distances: Tensor, rates: Tensor) -> Tensor:
    """e^(-rate * distance) of distances (1 or batch, 1, 1, …), the dimensions of the rates on a last axis."""
    heads, groups, dims = rates.shape
    return (-distances[..., None] * rates.reshape(heads, groups, *(1,) * (distances.ndim - 3), dims)).exp()


def _chunks(x: Tensor, chunk: int) -> Tensor:
    short = -x.shape[-2] % chunk
    return (pad(x, (0, 0, 0, short)) if short else x).unflatten(-2, (-1, chunk))
