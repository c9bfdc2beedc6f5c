"""``norm_rotate_qk``: RMSNorm of every query and key head, then the rotation, without rounding between them.

Qwen3, Gemma 3 and OLMo 2 normalise queries and keys so. Done one after the other, the two read and write the tensors
twice; a kernel does both in one pass.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from whorl.errors import invalid
from whorl.kernels.choose import Impl, check_impl
from whorl.kernels.ops import TURN, Tensors, gradient, like, no_second_gradient, operator
from whorl.kernels.refusals import choose_fused
from whorl.kernels.rotate_checks import check_pair, checked_rotation
from whorl.kernels.rotate_torch import turn_by_torch, wide_dtype
from whorl.memory import check_dense
from whorl.plans import PLANS, Plan, kind, plan_of
from whorl.rotary.rotation import Layout, Order, Rotation
from whorl.tracing import may_read_memory, operators_are_watched, takes_gradients

CALL = "norm_rotate_qk"

Given = tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]  # q, k, cos, sin, rows


def norm_rotate_qk(
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    layout: Layout = "half",
    *,
    eps: float = 1e-6,
    start: int = 0,
    blocks: int = 1,
    order: Order = "bhld",
    rows: Tensor | None = None,
    impl: Impl = "auto",
) -> tuple[Tensor, Tensor]:
    """Queries and keys, every head scaled to a root mean square of 1 times its weights (head_dim,), then turned.

    Everything else is as in ``rotate_qk``. The triton kernel reads and writes each element once, forward and backward.

    >>> import torch, whorl
    >>> cos, sin = whorl.Rope(head_dim=64).tables(whorl.positions(10))
    >>> q, k = torch.randn(2, 8, 10, 64), torch.randn(2, 2, 10, 64)
    >>> q, k = whorl.norm_rotate_qk(q, k, cos, sin, torch.ones(64), torch.ones(64))
    >>> float(q.square().mean())  # doctest: +ELLIPSIS
    0.9999...
    """
    weights = tuple(w.detach() if type(w) is torch.nn.Parameter else w for w in (q_weight, k_weight))
    key = kind((CALL, layout, eps, start, blocks, order, impl), q, k, cos, sin, rows, *weights)
    plan = PLANS.get(key)
    if plan is None:
        check_impl(impl, CALL)
        rotation = checked_rotation(CALL, layout, False, start, blocks, order)
        check_pair(CALL, q, k, cos, sin, rows, rotation)
        _check_norm(q, q_weight, k_weight, eps)
        kernel = choose_fused(impl, CALL, q, cos, sin)
        plan = PLANS.keep(key, _plan((q, k, cos, sin, rows), rotation, float(eps), kernel, direct=key is not None))
    return plan(q, k, cos, sin, rows, q_weight, k_weight)


def _check_norm(q: Tensor, q_weight: Tensor, k_weight: Tensor, eps: float) -> None:
    """Raises a WhorlError unless there is a weight for each dimension, and a number to add to the mean square."""
    expected = f"a tensor ({q.shape[-1]},) on {q.device}"
    for name, weight in (("q_weight", q_weight), ("k_weight", k_weight)):
        check_dense(CALL, name, weight, expected, "One weight for each dimension of a head.")
        if weight.shape != q.shape[-1:] or weight.device != q.device:
            raise invalid(CALL, name, expected, weight, "One weight for each dimension of a head.")
        if not weight.is_floating_point():
            raise invalid(CALL, name, "floating", weight, f"Pass {name}.float().")
    if isinstance(eps, bool) or not isinstance(eps, (int, float)) or not 0.0 <= eps < 1e30:
        raise invalid(CALL, "eps", "a number from 0", eps, "Models use 1e-6 or 1e-5.")


def _plan(given: Given, rotation: Rotation, eps: float, kernel: str, *, direct: bool) -> Plan:
    """The function of (q, k, cos, sin, rows, q_weight, k_weight) that norms and turns checked tensors."""
    q, k, cos, sin, rows = given
    if kernel == "torch":

        def by_torch(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, rows: Tensor | None, *weights: Tensor) -> Tensors:
            pairs = zip((q, k), weights, strict=True)
            return tuple(turn_by_torch(_normed(x, w, eps), cos, sin, rows, rotation).to(x.dtype) for x, w in pairs)

        return by_torch
    wide, settings = wide_dtype(q), (eps, *rotation, kernel)
    if not direct or cos.dtype != wide or sin.dtype != wide:
        return lambda q, k, cos, sin, *rest: torch.ops.whorl.norm_rotate_qk(
            q, k, cos.to(wide), sin.to(wide), *rest, *settings
        )
    from whorl.kernels.rotate_triton import ready

    run = ready((q, k), cos, sin, like(q, k), rows, rotation, eps=eps)

    def by_kernel(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, rows: Tensor | None, *weights: Tensor) -> Tensors:
        given = (q, k, cos, sin, rows, *weights)
        return NormTurned.apply(run, *given, *settings) if takes_gradients(q, k, *weights) else _norm(run, *given)

    return by_kernel


def _normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.to(wide_dtype(x))
    return wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt() * weight.to(wide.dtype)


def _norm(run: Plan, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, rows: Tensor | None, *weights: Tensor) -> Tensors:
    """What a ready kernel makes of queries and keys."""
    outs = like(q, k)
    run((q, k), cos, sin, outs, rows, tuple(weight.contiguous() for weight in weights))
    return outs


@operator(
    "norm_rotate_qk(Tensor q, Tensor k, Tensor cos, Tensor sin, Tensor? rows, Tensor q_weight, Tensor k_weight, "
    f"float eps, {TURN}) -> (Tensor, Tensor)",
    lambda q, k, *_: like(q, k),
)
def _forward(*given: Any) -> Tensors:
    from whorl.kernels.rotate_triton import ready

    q, k, cos, sin, rows, q_weight, k_weight, eps, *turn = given
    run = plan_of(
        (CALL, eps, *turn),
        (q, k, cos, sin, rows),
        lambda: ready((q, k), cos, sin, like(q, k), rows, Rotation(*turn[:-1]), eps=eps),
    )
    return _norm(run, q, k, cos, sin, rows, q_weight, k_weight)


@operator(
    "norm_rotate_back(Tensor x, Tensor dy, Tensor cos, Tensor sin, Tensor? rows, Tensor weight, float eps, "
    f"{TURN}) -> (Tensor, Tensor)",
    lambda x, dy, cos, sin, rows, weight, *_: like(x, weight),
)
def _backward(*given: Any) -> Tensors:
    from whorl.kernels.norm_rotate_triton import ready_back

    x, dy, cos, sin, rows, weight, eps, *turn = given
    tensors = (x, dy, cos, sin, rows, weight)
    run = plan_of(("norm_rotate_back", eps, *turn), tensors, lambda: ready_back(*tensors, Rotation(*turn[:-1]), eps))
    return run(*tensors)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    *tensors, ctx.eps = inputs[:8]
    ctx.save_for_backward(*tensors)
    ctx.turn = inputs[8:]


def _back(ctx: Any, q_grad: Tensor | None, k_grad: Tensor | None) -> tuple[Any, ...]:
    q, k, cos, sin, rows, q_weight, k_weight = ctx.saved_tensors
    gradients: list[tuple[Any, Any]] = []  # each of a tensor and of its weights
    for x, grad, weight in ((q, q_grad, q_weight), (k, k_grad, k_weight)):
        if grad is None:
            gradients.append((None, None))
            continue
        # with gradients of gradients by the operator, which refuses them when they are asked for
        direct = not operators_are_watched() and may_read_memory(grad) and not torch.is_grad_enabled()
        back = _backward if direct else torch.ops.whorl.norm_rotate_back
        gradients.append(back(x, grad, cos, sin, rows, weight, ctx.eps, *ctx.turn))
    (dq, dq_weight), (dk, dk_weight) = gradients
    return (dq, dk, None, None, None, dq_weight, dk_weight, None, *(None for _ in ctx.turn))


gradient("norm_rotate_qk", _back, _keep)
gradient("norm_rotate_back", no_second_gradient(CALL))


class NormTurned(torch.autograd.Function):
    """The operator and its gradient where nobody traces them, without the dispatcher's share."""

    @staticmethod
    def forward(ctx: Any, run: Plan, *inputs: Any) -> Tensors:
        _keep(ctx, inputs, None)
        ctx.set_materialize_grads(False)
        return _norm(run, *inputs[:7])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        return None, *_back(ctx, *gradients)
