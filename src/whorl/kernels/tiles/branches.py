"""Two placements of queries and keys, near and far (ReRoPE, leaky ReRoPE, Self-Extend), as two attentions.

Of a query at i, keys at i - near and before are far, and the others near. Near keys are a window. Far ones are a text
of their own, which begins where that of the keys does and ends ``near`` before it: without the queries that have none,
its last query stands at its last key as in any causal text. The near attention goes on from the output of the far one.

For gradients each pass gets the output and the log-sum-exp over all keys, by which its weights are those of one
softmax, and the gradients of values are added.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from whorl.kernels.tiles.launch import Given, kernels_of_gradients, kernels_of_results, laid_out_as
from whorl.kernels.tiles.op import Settings
from whorl.kernels.triton_side_by_side import run_all


def _settings(scale: float, cap: float, near: int) -> tuple[Settings, Settings]:
    far = Settings(scale=scale, cap=cap)
    return far._replace(before=near - 1), far


def _far(q: Tensor, k: Tensor, near: int) -> tuple[int, Any, Any]:
    """How many queries have far keys, which are the last of them; and slices of those queries and of far keys."""
    count, whole = max(0, min(q.shape[2], k.shape[2] - near)), slice(None)
    return count, (whole, whole, slice(q.shape[2] - count, None)), (whole, whole, slice(max(k.shape[2] - near, 0)))


def results_of(q: Tensor, k: Tensor, far_q: Tensor, far_k: Tensor, v: Tensor, *rules: Any) -> tuple[Tensor, Tensor]:
    """Memory for the results of ``forward``."""
    return laid_out_as(q, q.shape[1], v.shape[3]), q.new_empty(q.shape[:3], dtype=torch.float32)


def forward(
    q: Tensor, k: Tensor, far_q: Tensor, far_k: Tensor, v: Tensor, scale: float, cap: float, near: int
) -> tuple[Tensor, Tensor]:
    """The output and the log-sum-exp of each query."""
    out, lse = results_of(q, k, far_q, far_k, v)
    if not out.numel():
        return out, lse
    (by_near, by_far), kernels, earlier = _settings(scale, cap, near), [], ()
    count, rows, keys = _far(q, k, near)
    if count:
        far_lse = lse.new_empty(*lse.shape[:2], count)
        earlier = far_lse.new_empty(*far_lse.shape, v.shape[3]), far_lse
        kernels = kernels_of_results((*earlier, far_lse), far_q[rows], far_k[keys], v[keys], Given(), by_far)
    run_all([*kernels, *kernels_of_results((out, lse, lse), q, k, v, Given(), by_near, earlier)])
    return out, lse


def gradients_of(grad: Tensor, grad_lse: Tensor | None, *others: Any) -> tuple[Tensor, ...]:
    """Memory for the results of ``backward``."""
    return tuple(laid_out_as(x, x.shape[1], x.shape[3]) for x in others[:5])


def backward(
    grad: Tensor, grad_lse: Tensor | None, q: Tensor, k: Tensor, far_q: Tensor, far_k: Tensor, v: Tensor,
    out: Tensor, lse: Tensor, needed: list[bool], scale: float, cap: float, near: int,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The gradients of near queries and keys, far queries and keys, and values."""
    gradients = dq, dk, far_dq, far_dk, dv = gradients_of(grad, grad_lse, q, k, far_q, far_k, v)
    if not out.numel():
        for each in gradients:
            each.zero_()
        return gradients
    by_near, by_far = _settings(scale, cap, near)
    count, rows, keys = _far(q, k, near)
    far_dq[:, :, : q.shape[2] - count], far_dk[:, :, max(k.shape[2] - near, 0) :] = 0.0, 0.0
    none = q.new_empty(0)
    near_dv = torch.empty_like(dv, dtype=torch.float32) if count else dv  # rounded once, as a sum
    of_near = (dq, dk, near_dv, none), grad, grad_lse, q, k, v, Given(), (out, lse, lse), by_near
    kernels, far_dv = kernels_of_gradients(*of_near), torch.empty_like(near_dv[keys])
    if count:
        cut_lse = None if grad_lse is None else grad_lse[rows]
        kernels += kernels_of_gradients(
            (far_dq[rows], far_dk[keys], far_dv, none), grad[rows], cut_lse, far_q[rows], far_k[keys], v[keys],
            Given(), (out[rows], lse[rows].contiguous(), lse), by_far,
        )  # fmt: skip
    run_all(kernels)
    if count:
        near_dv[keys] += far_dv
        dv.copy_(near_dv)
    return gradients
