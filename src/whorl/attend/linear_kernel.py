"""Linear attention by its Triton kernels: what keeps them from a call, and the call of them."""

from __future__ import annotations

import torch
from torch import Tensor

from whorl.attend.features import decay_rates
from whorl.attend.linear_checks import Rule
from whorl.encodings.base import Encoding
from whorl.encodings.parts import Placement, QueryScale, every
from whorl.encodings.rotary import Counted, Rotary
from whorl.graphs import constant_in_graphs
from whorl.kernels.refusals import why_not_here, why_not_memory, why_not_transformed
from whorl.plans import PLANS, Key
from whorl.tracing import takes_gradients

LARGEST_DIM = 128
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
FORMS = ("numerator", "both", "unnormalised")


def why_not_triton(
    rule: Rule, q: Tensor, v: Tensor, *, causal: bool, positions: Tensor, return_stats: bool
) -> str | None:
    """What keeps the kernels from a call, or None."""
    elsewhere = why_not_here("triton", q.device.type) or _why_not_device(q.device.index)
    if elsewhere is not None:
        return elsewhere
    fades = rule.decay is not None or decay_rates(rule.encoding, rule.form) is not None
    refusals = (
        (not causal, "it goes from token to token, with causal=True"),
        (rule.form not in FORMS, f"it has no form={rule.form!r}"),
        (fades, "it has no decay"),
        (rule.chunk is not None, "chunk=… is a setting of impl='torch'"),
        (return_stats, "it counts nothing for return_stats=True"),
        (q.dtype not in DTYPES, f"it has no {q.dtype}"),
        (max(q.shape[3], v.shape[3]) > LARGEST_DIM, f"it has heads of up to {LARGEST_DIM} dimensions"),
    )
    for applies, reason in refusals:
        if applies:
            return reason
    return why_not_transformed() or why_not_memory("q", q) or _why_not_tables(rule.encoding, q.shape[3], positions)


def run_triton(rule: Rule, q: Tensor, k: Tensor, v: Tensor, positions: Tensor, key_mask: Tensor | None) -> Tensor:
    """The output of a call that ``why_not_triton`` has nothing against."""
    from whorl.kernels.linear_ops import linear_forward

    cos = sin = None
    rotary = _rotary(rule.encoding)
    if rotary is not None:
        tables = rotary.tables(positions, rule.length)
        cos, sin = (table if table.ndim == 3 else table.unsqueeze(0) for table in tables)
    return linear_forward(q, k, v, cos, sin, key_mask, *_settings(rule, rotary))[0]


def keep(key: Key | None, rule: Rule, q: Tensor) -> None:
    """Keeps a plan for calls like this one, which the kernels have computed: causal, at positions 0, 1, 2, …"""
    if key is None:
        return
    from whorl.kernels.linear_ops import linear_forward, run_forward

    rotary, count = _rotary(rule.encoding), q.shape[2]
    counted = None if rotary is None else rotary.counted_tables(count, rule.length, q.device)
    if rotary is not None and counted is None:
        return  # its angles are learned
    settings = _settings(rule, rotary)
    cos, sin = (None, None) if counted is None else (counted.cos[None, :count], counted.sin[None, :count])

    def attend(q: Tensor, k: Tensor, v: Tensor, _own: Counted | None = counted) -> Tensor:  # shared while it is held
        run = linear_forward if takes_gradients(q, k, v) else run_forward
        return run(q, k, v, cos, sin, None, *settings)[0]

    PLANS.keep(key, attend, rule.encoding, 0 if counted is None else counted.bytes)


def _settings(rule: Rule, rotary: Rotary | None) -> tuple[bool, int, int, str, str, float]:
    """What the operator takes beside tensors."""
    denominator = "own" if rule.form == "both" or rotary is None else "plain"
    if rule.form == "unnormalised":
        denominator = "norm"
    # a layout that writes in another order than it reads is no other: products do not see the order
    interleaved = rotary is not None and rotary.layout != "half"
    start, blocks = (0, 1) if rotary is None else (rotary.config.start, rotary.config.blocks)
    return interleaved, start, blocks, rule.feature, denominator, float(rule.eps)


def _placing(encoding: Encoding | None) -> list[Placement | QueryScale]:
    return [] if encoding is None else every(encoding, Placement, QueryScale)


def _rotary(encoding: Encoding | None) -> Rotary | None:
    """The one rotation that ``_why_not_tables`` has found, or None where nothing is turned."""
    placing = _placing(encoding)
    return placing[0].rotary if placing and isinstance(placing[0], Placement) else None


def _why_not_tables(encoding: Encoding | None, dim: int, positions: Tensor) -> str | None:
    placing = _placing(encoding)
    if not placing:
        return None
    rotary, names = _rotary(encoding), " and ".join(part.name for part in placing)
    if len(placing) > 1 or rotary is None:
        return f"it rotates by one rotary encoding, got {names}"
    if rotary.config.rotated_heads is not None or placing[0].heads is not None:
        return f"it turns all heads alike, {names} does not"
    if rotary.config.head_dim != dim:
        return f"{names} is for heads of {rotary.config.head_dim} dimensions, q has {dim}"
    trained = positions.requires_grad or any(parameter.requires_grad for parameter in rotary.parameters())
    return "the tables need gradients" if trained and torch.is_grad_enabled() else None


@constant_in_graphs
def _why_not_device(index: int | None) -> str | None:
    if index is None:  # the CPU, by Triton's interpreter
        return None
    major, minor = torch.cuda.get_device_capability(index)
    return None if major >= 8 else f"it needs compute capability 8.0, the device has {major}.{minor}"
