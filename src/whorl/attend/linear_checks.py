"""What ``linear_attention`` and ``LinearState`` accept, each refusal with its reason and its remedy."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whorl.attend.features import FEATURES, FORMS, Feature, Form, check_encoding, decay_rates, position_axes
from whorl.attend.inputs import with_positions
from whorl.attend.linear_forms import Fade
from whorl.attend.padding import in_order, real_tokens, settled
from whorl.constants import numbers_on
from whorl.encodings.base import Encoding
from whorl.encodings.rotary import check_length
from whorl.errors import WhorlError, invalid, unknown
from whorl.graphs import equals_any
from whorl.position_checks import check_positions
from whorl.position_ids import difference, wide
from whorl.tracing import may_read_values

Decay = float | Sequence[float] | Tensor | None

CHUNK = 64

# The most that rate * span of a chunk may be where dimensions fade: factors of e^40 and e^-40 leave float32 room.
MAX_EXPONENT = 80.0


@dataclass(frozen=True)
class Rule:
    """The settings of a call or of a state, checked."""

    call: str
    encoding: Encoding | None
    feature: Feature
    form: Form
    decay: Decay
    chunk: int | None
    eps: float
    length: int | None

    def __post_init__(self) -> None:
        call = self.call
        if not isinstance(self.feature, str) or self.feature not in FEATURES:
            raise unknown("feature", self.feature, FEATURES, call=call)
        if not isinstance(self.form, str) or self.form not in FORMS:
            raise unknown("form", self.form, FORMS, call=call)
        check_encoding(call, self.encoding)
        if self.form == "decay" and self.decay is None:
            raise WhorlError(f"{call}: form='decay' needs rates. Pass decay=…, one for all heads or one for each.")
        if self.decay is not None:
            _check_decay(call, self.decay)
        if self.chunk is not None and (type(self.chunk) is not int or self.chunk < 1):
            raise invalid(call, "chunk", "a positive integer or None", self.chunk)
        if not _number(self.eps) or not _fits(self.eps):
            raise invalid(call, "eps", "at least 0 and finite", self.eps)
        check_length(self.length, call)

    def head_rates(self, heads: int, key_heads: int, device: torch.device) -> Tensor | None:
        """One rate per head, float64, shape (key heads, groups); None for no decay."""
        if self.decay is None:
            return None
        rates = self.decay
        if not isinstance(rates, Tensor):
            rates = torch.tensor(rates, dtype=torch.float64, device=device)
        if rates.ndim and len(rates) != heads:
            raise WhorlError(
                f"{self.call}: decay must be one number, or one for each of {heads} heads, got {len(rates)}."
            )
        return rates.to(device, torch.float64).expand(heads).unflatten(0, (key_heads, heads // key_heads))


def _check_decay(call: str, decay: Any) -> None:
    if isinstance(decay, Tensor):
        if decay.ndim > 1 or not decay.is_floating_point():
            raise invalid(call, "decay", "a floating tensor of shape (heads,)", decay)
        wrong = may_read_values(decay.detach()) and not bool(((decay >= 0) & decay.isfinite()).all())
    else:
        rates = [decay] if _number(decay) else decay
        if not isinstance(rates, (list, tuple)) or not all(_number(rate) for rate in rates):
            raise invalid(call, "decay", "a number, or one number per head", decay)
        wrong = not all(map(_fits, rates))
    if wrong:
        shown = decay.tolist() if isinstance(decay, Tensor) else decay
        raise invalid(call, "decay", "at least 0 and finite", shown, "Weights are multiplied by e^(-decay * distance).")


def _number(x: Any) -> bool:
    return isinstance(x, numbers.Real) and not isinstance(x, bool)


def _fits(x: Any) -> bool:
    """Whether a number is at least 0, and a float can be it."""
    try:
        return 0 <= float(x) < math.inf
    except OverflowError:
        return False


def place(
    rule: Rule,
    q: Tensor,
    k: Tensor,
    causal: bool,
    positions: Tensor | None,
    key_positions: Tensor | None,
    key_mask: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """The positions of queries and of keys: given, or 0, 1, 2, … of the keys and the last of them.

    Where weights fade, what padding has among them does not count.
    """
    call, queries, keys = rule.call, q.shape[2], k.shape[2]
    if causal and queries != keys:
        raise WhorlError(
            f"{call}: causal order needs one query for each key, got {queries} queries and {keys} keys. "
            "Use causal=False for keys of other tokens, or LinearState to go on from earlier ones."
        )
    if causal and key_positions is not None and key_positions is not positions:
        raise WhorlError(
            f"{call}: key_positions would be ignored, with causal=True queries and keys are the same tokens. "
            "Pass positions alone."
        )
    given = positions is not None or key_positions is not None
    positions, key_positions = with_positions(call, q, keys, positions, key_positions)
    axes = position_axes(rule.encoding)
    for name, ids, count in (("positions", positions, queries), ("key_positions", key_positions, keys)):
        batched = check_positions(call, ids, axes).ndim == 3
        if ids.shape[-1] != count or (batched and not equals_any(ids.shape[-2], 1, q.shape[0])):
            raise invalid(
                call, name, f"of shape (…, {count}), for each row of the batch of {q.shape[0]} or for all", ids
            )
        if ids.device != q.device:
            raise WhorlError(f"{call}: {name} are on {ids.device} and q on {q.device}. Make them on the device of q.")
    if given and axes == 1:
        fades = rule.decay is not None or decay_rates(rule.encoding, rule.form) is not None
        one, key_positions = positions is key_positions, _settled(call, key_positions, key_mask, fades)
        positions = key_positions if one else _settled(call, positions, None, fades)
    return positions, key_positions


def _settled(call: str, positions: Tensor, key_mask: Tensor | None, fades: bool) -> Tensor:
    """Given positions of one axis, checked, with padding where it does no harm."""
    positions = settled(call, "positions", positions, key_mask, axes=1)
    if not fades or key_mask is None:
        return positions
    return in_order(wide(positions), real_tokens(key_mask, positions, axes=1))


def fading(
    rule: Rule,
    q: Tensor,
    k: Tensor,
    causal: bool,
    places: tuple[Tensor, Tensor],
    consecutive: bool,
    after: Tensor | None = None,
    origin: Tensor | None = None,
) -> Fade | None:
    """How weights fade in a call, or None if they do not. ``after`` is the last position of earlier tokens.

    Positions are counted from ``origin`` (1 or batch, 1), the first of the call unless given: float64 holds all
    distances from there.
    """
    call, (positions, key_positions) = rule.call, places
    heads, dims = rule.head_rates(q.shape[1], k.shape[1], q.device), decay_rates(rule.encoding, rule.form)
    if heads is None and dims is None:
        return None
    if dims is not None and not causal:
        raise WhorlError(
            f"{call}: {type(rule.encoding).__name__} fades towards the past and grows towards the future. "
            "Use causal=True, or RoPE with decay=…, which fades both ways."
        )
    if positions is not key_positions:
        raise WhorlError(
            f"{call}: decay needs queries and keys of the same tokens, got {q.shape[2]} queries and {k.shape[2]} keys "
            "with positions of their own. Pass positions alone, or decay=None."
        )
    if position_axes(rule.encoding) > 1 and positions.ndim > 1:
        raise invalid(call, "positions", "of one axis where weights decay", positions, "Pass one position per token.")
    p = wide(torch.atleast_2d(positions))
    p = difference(p, p[:, :1] if origin is None else origin).double()
    if not consecutive:
        falls = (p.diff(dim=-1) < 0).any(-1, keepdim=True)
        if after is not None:
            falls = falls | (p[:, :1] < after.view(-1, 1))
        if may_read_values(positions):
            if bool(falls.any()):
                raise WhorlError(
                    f"{call}: positions must not decrease where weights decay, got {positions.tolist()!s:.60}. "
                    "Pass packed documents as rows of a batch, and padded rows with whorl.from_mask."
                )
        else:  # values on a device are not read: a row that breaks the rule becomes NaN
            p = torch.where(falls, math.nan, p)
    by_dim = None if dims is None else numbers_on(tuple(dims), torch.float64, q.device)
    return Fade(p, consecutive, heads, by_dim)


def chunk_of(rule: Rule, fade: Fade | None) -> int:
    """How many tokens are worked on at a time, few enough that no factor within a chunk overflows."""
    rates = decay_rates(rule.encoding, rule.form)
    fastest = 0.0 if rates is None else max(rates)
    if not fastest or fade is None:
        return rule.chunk or CHUNK
    most = int(min(MAX_EXPONENT / fastest, 2**62)) + 1
    chunk = rule.chunk or min(CHUNK, most)
    name = type(rule.encoding).__name__
    if chunk > most:
        raise invalid(
            rule.call, "chunk", f"at most {most} for {name}", chunk, "It fades so fast that a longer chunk overflows."
        )
    p = fade.positions
    if not fade.consecutive and may_read_values(p) and chunk > 1:
        starts, ends = p[:, ::chunk], torch.cat((p[:, chunk - 1 :: chunk], p[:, -1:]), dim=-1)
        span = float((ends[:, : starts.shape[1]] - starts).max())
        if span * fastest > MAX_EXPONENT:
            raise WhorlError(
                f"{rule.call}: positions span {span:g} within a chunk of {chunk} tokens, and {name} allows "
                f"{MAX_EXPONENT / fastest:g} before a factor overflows. Use a smaller chunk; chunk=1 always works."
            )
    return chunk
