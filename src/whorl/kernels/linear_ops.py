"""Causal linear attention as operators of torch: ``whorl::linear_forward`` and ``whorl::linear_backward``.

Compiled graphs see them whole, and their kernels are imported when they first run. Nothing is checked here;
``linear_attention`` is the public call.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from whorl.kernels.ops import no_second_gradient

SETTINGS = "bool interleaved, int start, int blocks, str feature, str denominator, float eps"


@torch.library.custom_op(
    "whorl::linear_forward",
    mutates_args=(),
    schema="(Tensor q, Tensor k, Tensor v, Tensor? cos, Tensor? sin, Tensor? key_mask, "
    f"{SETTINGS}) -> (Tensor out, Tensor scale, Tensor states)",
)
def linear_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    key_mask: Tensor | None,
    interleaved: bool,
    start: int,
    blocks: int,
    feature: str,
    denominator: str,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The output (batch, heads, length, value dim), and two tensors for the backward pass.

    ``cos`` and ``sin`` are (1 or batch, length, pairs) for the dimensions from ``start`` on; ``denominator`` is
    ``"plain"`` for unrotated products, ``"own"`` for those of the numerator, ``"norm"`` for the root of a mean square.
    """
    from whorl.kernels.linear_triton import Rotation
    from whorl.kernels.linear_triton_forward import forward

    rotation = Rotation(cos, sin, interleaved, start, blocks)
    with torch.cuda.device_of(q):
        return forward(q, k, v, rotation, key_mask, feature, denominator, eps)


@linear_forward.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    from whorl.kernels.linear_triton_forward import outputs_of

    return outputs_of(q, k, v)


@torch.library.custom_op(
    "whorl::linear_backward",
    mutates_args=(),
    schema="(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor? cos, Tensor? sin, Tensor? key_mask, "
    f"Tensor out, Tensor scale, Tensor states, {SETTINGS}) -> (Tensor dq, Tensor dk, Tensor dv)",
)
def linear_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    key_mask: Tensor | None,
    out: Tensor,
    scale: Tensor,
    states: Tensor,
    interleaved: bool,
    start: int,
    blocks: int,
    feature: str,
    denominator: str,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v, from that of the output and what the forward pass returned."""
    from whorl.kernels.linear_triton import Rotation
    from whorl.kernels.linear_triton_backward import backward

    rotation = Rotation(cos, sin, interleaved, start, blocks)
    with torch.cuda.device_of(q):
        return backward(grad, q, k, v, rotation, key_mask, out, scale, states, feature, denominator, eps)


@linear_backward.register_fake
def _(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    from whorl.kernels.linear_triton_backward import gradients_of

    return gradients_of(q, k, v)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    q, k, v, cos, sin, key_mask, *settings = inputs
    ctx.save_for_backward(q, k, v, cos, sin, key_mask, *output)
    ctx.settings = settings
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    if grad is None:
        return (None,) * 12
    return *linear_backward(grad, *ctx.saved_tensors, *ctx.settings), *(None,) * 9


linear_forward.register_autograd(_backward, setup_context=_keep)
linear_backward.register_autograd(no_second_gradient("linear_attention"))
