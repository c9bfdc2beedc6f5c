"""Kinds of decoding steps: all that decides what runs a plain step of a cache, and what does."""

from __future__ import annotations

import torch
from torch import Tensor

from whorl.attend.decoding import Asked, DecodingStep, decoding_step, why_not_decode
from whorl.attend.decoding_cpu import CpuStep, why_not_step
from whorl.attend.slots import State
from whorl.kernels.choose import Impl
from whorl.plans import Key, kind

Step = DecodingStep | CpuStep


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
) -> Key | None:
    """The key of a plain step; None where there is no plan for it."""
    slots = state.slots
    if slots is None or not isinstance(q, Tensor):
        return None
    keys, values, memory = slots.keys, slots.values, slots.memory
    autocast = torch.is_autocast_enabled(keys.device.type)
    return kind(
        (
            "step", id(state.encoding), state.policy, length, scale, softcap, impl, autocast,
            keys.shape, keys.dtype, keys.device, values.shape, values.dtype, slots.positions.dtype,
            None if memory is None else memory.dtype, slots.padded, slots.counted, slots.follows,
        ),
        q, k, v, hidden,
    )  # fmt: skip


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
    return made, unfit or CpuStep.unfit
