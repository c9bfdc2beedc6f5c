"""Kinds of decoding steps: all that decides what runs a plain step of a cache, and what does."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from whorl.attend.decoding import Asked, DecodingStep, decoding_step, why_not_decode
from whorl.attend.decoding_cpu import CpuStep, why_not_step
from whorl.attend.slots import State
from whorl.encodings.base import Encoding
from whorl.kernels.choose import Impl
from whorl.kernels.launches import kinds_of
from whorl.tracing import operators_are_watched

Kind = tuple[Any, ...]
Step = DecodingStep | CpuStep

# The types of a length, and of a scale or softcap, that a step is made ready for.
LENGTH = (int, type(None))
NUMBER = (float, int, type(None))


class ReadyStep(NamedTuple):
    """What runs a kind of step."""

    kind: Kind
    encoding: Encoding
    step: Step
    unfit: str | None  # why it is none of a GPU's kernels


def kind_of_step(
    state: State,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    hidden: Tensor | None,
    length: int | None,
    scale: float | None,
    softcap: float | None,
    impl: Impl,
) -> Kind | None:
    """All that decides how a plain step is decoded, but for the encoding; None where kernels never are."""
    slots = state.slots
    if slots is None or operators_are_watched():
        return None
    # what is no number of its kind may equal one: True, 4.0 for a length, an array; the checks refuse it
    if scale is True or softcap is True or type(length) not in LENGTH:
        return None
    if not isinstance(scale, NUMBER) or not isinstance(softcap, NUMBER):
        return None
    try:  # a step waits for this, hence every tensor written out
        if q.is_neg() or k.is_neg() or v.is_neg():  # a kernel would read the numbers without their sign
            return None
        device = q.device
        return (
            q.shape, q.stride(), q.dtype, device, type(q), k.shape, k.stride(), k.dtype, k.device, type(k),
            v.shape, v.stride(), v.dtype, v.device, type(v), hidden is None or kinds_of(hidden),
            slots.keys.shape, slots.keys.dtype, slots.keys.device, slots.values.shape, slots.values.dtype,
            slots.positions.dtype, None if slots.memory is None else slots.memory.dtype,
            slots.padded, slots.counted, slots.follows, state.policy,
            length, scale, softcap, impl, torch.is_autocast_enabled(device.type),
        )  # fmt: skip
    except (AttributeError, RuntimeError):  # no tensors, or without strides: the checks will name it
        return None


def step_for(
    state: State, q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None, asked: Asked, impl: Impl
) -> tuple[Step | None, str | None]:
    """What runs plain steps of this kind, if not ``attention``, and why it is none of a GPU's kernels."""
    encoding, slots, policy = state.encoding, state.slots, state.policy
    if q.is_cuda or impl == "triton":
        unfit = why_not_decode(encoding, slots, q, k, v, asked=asked, policy=policy, hidden=hidden)
        if slots is None or unfit is not None:
            return None, unfit
        return decoding_step(encoding, slots, q, v, asked, policy), None
    if policy == "raw":
        return None, "keys are kept raw and placed anew at every step"
    unfit = why_not_step(encoding, slots, q, v, asked)
    made = CpuStep(encoding, slots, q, asked) if slots is not None and unfit is None and impl == "auto" else None
    return made, unfit or "the tensors are on the CPU"
