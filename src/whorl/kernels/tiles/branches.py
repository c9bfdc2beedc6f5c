"""Two placements of queries and keys, near and far (ReRoPE, leaky ReRoPE, Self-Extend), as two attentions.

Of a query at i, keys at i - near and before are far, and the others near. Near keys are a window. Far ones are a text
of their own, which begins where that of the keys does and ends ``near`` before it: without the queries that have none,
its last query stands at its last key as in any causal text. The near attention goes on from the output of the far one.

For gradients each pass gets the output and the log-sum-exp over all keys, by which its weights are those of one
softmax, and the gradients of values are added.
"""

from __future__ import annotations

import torch
from torch import Tensor

from whorl.kernels.tiles.launch import Settings, attend_into, backward_into, laid_out_as


def _settings(scale: float, cap: float, near: int) -> tuple[Settings, Settings]:
    far = Settings("none", 0, scale, cap, True, -1, 0)
    return far._replace(before=near - 1), far


def _far_queries(q: Tensor, k: Tensor, near: int) -> int:
    """How many queries have far keys, which are the last of them."""
    return max(0, min(q.shape[2], k.shape[2] - near))


def forward(
    q: Tensor, k: Tensor, far_q: Tensor, far_k: Tensor, v: Tensor, scale: float, cap: float, near: int
) -> tuple[Tensor, Tensor]:
    """The output and the log-sum-exp of each query."""
    out, lse = outputs_of(q, v)
    if not out.numel():
        return out, lse
    by_near, by_far = _settings(scale, cap, near)
    count, far_keys, earlier = _far_queries(q, k, near), k.shape[2] - near, None
    if count:
        far_lse = lse.new_empty(*lse.shape[:2], count)
        earlier = far_lse.new_empty(*far_lse.shape, v.shape[3]), far_lse
        cut_q, cut_k, cut_v = far_q[:, :, -count:], far_k[:, :, :far_keys], v[:, :, :far_keys]
        attend_into(*earlier, far_lse, cut_q, cut_k, cut_v, None, None, by_far)
    attend_into(out, lse, lse, q, k, v, None, None, by_near, earlier)
    return out, lse


def outputs_of(q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Memory for the results of ``forward``."""
    return laid_out_as(q, q.shape[1], v.shape[3]), q.new_empty(q.shape[:3], dtype=torch.float32)


def backward(
    grad: Tensor, grad_lse: Tensor | None, q: Tensor, k: Tensor, far_q: Tensor, far_k: Tensor, v: Tensor,
    out: Tensor, lse: Tensor, scale: float, cap: float, near: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of near queries and keys, far queries and keys, and values."""
    gradients = dq, dk, far_dq, far_dk, dv = gradients_of(q, k, far_q, far_k, v)
    if not out.numel():
        for each in gradients:
            each.zero_()
        return gradients
    by_near, by_far = _settings(scale, cap, near)
    count, far_keys, none = _far_queries(q, k, near), k.shape[2] - near, q.new_empty(0)
    first, last = q.shape[2] - count, max(far_keys, 0)
    far_dq[:, :, :first], far_dk[:, :, last:] = 0.0, 0.0
    near_dv = torch.empty_like(dv, dtype=torch.float32) if count else dv  # rounded once, as a sum
    backward_into((dq, dk, near_dv, none), grad, grad_lse, q, k, v, None, out, lse, lse, False, by_near)
    if count:
        rows, keys = (slice(None), slice(None), slice(first, None)), (slice(None), slice(None), slice(None, last))
        far_dv = torch.empty_like(near_dv[keys])
        cut_lse = None if grad_lse is None else grad_lse[rows]
        backward_into(
            (far_dq[rows], far_dk[keys], far_dv, none), grad[rows], cut_lse, far_q[rows], far_k[keys], v[keys], None,
            out[rows], lse[rows].contiguous(), lse, False, by_far,
        )  # fmt: skip
        near_dv[keys] += far_dv
        dv.copy_(near_dv)
    return gradients


def gradients_of(
    q: Tensor, k: Tensor, far_q: Tensor, far_k: Tensor, v: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Memory for the results of ``backward``."""
    dq, dk, far_dq, far_dk, dv = (laid_out_as(x, x.shape[1], x.shape[3]) for x in (q, k, far_q, far_k, v))
    return dq, dk, far_dq, far_dk, dv
