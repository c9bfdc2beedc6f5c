"""The attention kernel of ALiBi as an operator of torch: what it can compute, its schema, its shape for tracing."""

from __future__ import annotations

import torch
from torch import Tensor

from whorl.graphs import held
from whorl.kernels.ops import operator
from whorl.kernels.refusals import why_not_here, why_not_memory

KERNEL = "the kernel of ALiBi"  # in reasons why it does not run

DTYPES = (torch.bfloat16, torch.float16, torch.float32)

LARGEST_DIM = 128

# Beyond, float32 does not hold the bias of a block of queries to a thousandth.
STEEPEST = 256.0


@operator(
    "alibi_attention(Tensor q, Tensor k, Tensor v, Tensor slopes, Tensor order, float scale) -> Tensor",
    lambda q, k, v, *_: q.new_empty(*q.shape[:3], v.shape[3]),
)
def _alibi_attention(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor, order: Tensor, scale: float) -> Tensor:
    from whorl.kernels.alibi_triton import alibi_attention

    return alibi_attention(q, k, v, slopes, order, scale)


def alibi_attention(q: Tensor, k: Tensor, v: Tensor, slopes: tuple[float, ...], scale: float) -> Tensor:
    """The causal attention output with a slope for each head, the last query standing at the last key; no gradients."""
    heads = _slopes_on(slopes, q.device), _order_on(slopes, q.device)
    return torch.ops.whorl.alibi_attention(q, k, v, *heads, scale)


def why_not_alibi(q: Tensor, v: Tensor, slopes: tuple[float, ...]) -> str | None:
    """What keeps the kernel from these tensors and slopes, or None."""
    reason = why_not_here("triton", q.device.type) or why_not_memory("q", q)
    if reason is not None:
        return reason
    if q.dtype not in DTYPES:
        return f"{KERNEL} has no {q.dtype}"
    if max(q.shape[-1], v.shape[-1]) > LARGEST_DIM:
        return f"{KERNEL} has heads of up to {LARGEST_DIM} dimensions"
    if max(slopes) > STEEPEST:
        return f"{KERNEL} has slopes of up to {STEEPEST:g}"
    return None


@held  # on the device: copying them there would wait for it at every call
def _slopes_on(slopes: tuple[float, ...], device: torch.device) -> Tensor:
    return torch.tensor(slopes, dtype=torch.float32, device=device)


@held
def _order_on(slopes: tuple[float, ...], device: torch.device) -> Tensor:
    """The heads, those with the gentlest slope first."""
    order = sorted(range(len(slopes)), key=slopes.__getitem__)
    return torch.tensor(order, dtype=torch.int32, device=device)
