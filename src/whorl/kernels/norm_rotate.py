"""``norm_rotate_qk``: RMSNorm of every query and key head, then the rotation, without rounding between them.

Qwen3, Gemma 3 and OLMo 2 normalise queries and keys so. Done one after the other, the two read and write the tensors
twice; a kernel does both in one pass.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from whorl.errors import invalid
from whorl.kernels.choose import Impl, check_impl, choose
from whorl.kernels.ops import LIBRARY, TURN, no_second_gradient
from whorl.kernels.rotate import Order, check_pair, turn_by_torch, turn_of, why_not, wide_dtype
from whorl.memory import check_dense
from whorl.rotary.rotation import Layout
from whorl.tracing import may_read_memory, operators_are_watched, takes_gradients

NORMED = f"Tensor q_weight, Tensor k_weight, float eps, {TURN}"
LIBRARY.define(
    f"norm_rotate_qk(Tensor q, Tensor k, Tensor cos, Tensor sin, Tensor? rows, {NORMED}) -> (Tensor, Tensor)"
)
LIBRARY.define(
    f"norm_rotate_back(Tensor x, Tensor dy, Tensor cos, Tensor sin, Tensor? rows, Tensor weight, float eps, {TURN})"
    " -> (Tensor, Tensor)"
)


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
    check_impl(impl, "norm_rotate_qk")
    check_pair("norm_rotate_qk", q, k, cos, sin, rows, (layout, False, start, blocks, order))
    expected = f"a tensor ({q.shape[-1]},) on {q.device}"
    for name, weight in (("q_weight", q_weight), ("k_weight", k_weight)):
        check_dense("norm_rotate_qk", name, weight, expected, "One weight for each dimension of a head.")
        if weight.shape != q.shape[-1:] or weight.device != q.device:
            raise invalid("norm_rotate_qk", name, expected, weight, "One weight for each dimension of a head.")
        if not weight.is_floating_point():
            raise invalid("norm_rotate_qk", name, "floating", weight, f"Pass {name}.float().")
    if isinstance(eps, bool) or not isinstance(eps, (int, float)) or not 0.0 <= eps < 1e30:
        raise invalid("norm_rotate_qk", "eps", "a number from 0", eps, "Models use 1e-6 or 1e-5.")
    kernel = choose(impl, "norm_rotate_qk", {"triton": why_not("triton", q, cos, sin)} if impl != "torch" else None)
    if impl == "auto" and q.device.type != "cuda":
        kernel = "torch"
    eps = float(eps)
    if kernel == "torch":
        how: tuple[Any, ...] = (cos, sin, rows, layout, False, start, blocks, order)
        return (
            turn_by_torch(_normed(q, q_weight, eps), *how).to(q.dtype),
            turn_by_torch(_normed(k, k_weight, eps), *how).to(k.dtype),
        )
    cos, sin, turn = cos.to(wide_dtype(q)), sin.to(wide_dtype(q)), turn_of(layout, False, order, start, blocks, kernel)
    given = (q, k, cos, sin, rows, q_weight, k_weight, eps, *turn)
    weights = (weight.detach() for weight in (q_weight, k_weight))  # parameters, most often
    if operators_are_watched() or not all(map(may_read_memory, (q, k, cos, sin, *weights))):
        return torch.ops.whorl.norm_rotate_qk(*given)
    if takes_gradients(q, k, q_weight, k_weight):
        return NormTurned.apply(*given)
    return _forward(*given)


def _normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.to(wide_dtype(x))
    return wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt() * weight.to(wide.dtype)


def _forward(
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    rows: Tensor | None,
    q_weight: Tensor,
    k_weight: Tensor,
    eps: float,
    *turn: Any,
) -> tuple[Tensor, Tensor]:
    from whorl.kernels.rotate_triton import turn as turn_all

    outs, weights = (torch.empty_like(q), torch.empty_like(k)), (q_weight.contiguous(), k_weight.contiguous())
    turn_all((q, k), cos, sin, outs, rows, *turn[:-1], weights=weights, eps=eps)
    return outs


def _backward(
    x: Tensor, dy: Tensor, cos: Tensor, sin: Tensor, rows: Tensor | None, weight: Tensor, eps: float, *turn: Any
) -> tuple[Tensor, Tensor]:
    from whorl.kernels.norm_rotate_triton import back

    return back(x, dy, cos, sin, rows, weight, eps, *turn[:-1])


for _device in ("CPU", "CUDA"):
    LIBRARY.impl("norm_rotate_qk", _forward, _device)
    LIBRARY.impl("norm_rotate_back", _backward, _device)


@torch.library.register_fake("whorl::norm_rotate_qk", lib=LIBRARY)
def _(q: Tensor, k: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(q), torch.empty_like(k)


@torch.library.register_fake("whorl::norm_rotate_back", lib=LIBRARY)
def _(x: Tensor, dy: Tensor, cos: Tensor, sin: Tensor, rows: Tensor | None, weight: Tensor, *rest: Any) -> Any:
    return torch.empty_like(x), torch.empty_like(weight)


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


torch.library.register_autograd("whorl::norm_rotate_qk", _back, setup_context=_keep, lib=LIBRARY)
torch.library.register_autograd("whorl::norm_rotate_back", no_second_gradient("norm_rotate_qk"), lib=LIBRARY)


class NormTurned(torch.autograd.Function):
    """The operator and its gradient where nobody traces them, without the dispatcher's share."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:
        _keep(ctx, inputs, None)
        ctx.set_materialize_grads(False)
        return _forward(*inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        return _back(ctx, *gradients)
