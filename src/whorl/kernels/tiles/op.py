"""Attention by tiles as operators of torch: ``whorl::tiles_…`` with one placement, ``whorl::branches_…`` with two.

Compiled graphs see them whole, and their kernels are imported when they first run. Nothing is checked here;
``attention`` is the public call.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from whorl.kernels.ops import Tensors, gradient, no_second_gradient, operator

# What both operators take: queries (batch, heads, queries, dim), keys and values with as many heads or fewer, the
# numbers of the bias (heads, count) in float32, and the documents of queries and keys (batch, length), int64; and the
# fields of ``launch.Settings``.
GIVEN = "Tensor q, Tensor k, Tensor v, Tensor? numbers, Tensor? q_documents, Tensor? k_documents"
SETTINGS = "str kind, SymInt lowest, float scale, float cap, bool causal, int before, int first, bool documents"


def tiles_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    numbers: Tensor | None = None,
    kind: str = "none",
    lowest: int = 0,
    order: Tensor | None = None,
    cap: float = 0.0,
    causal: bool = True,
    before: int = -1,
    first: int = 0,
    documents: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """The output (batch, heads, queries, value dim) and the log-sum-exp (batch, heads, queries), with gradients.

    The last query stands at the last key. ``numbers`` (heads, count) are those of the bias: of a line its slope, of
    KERPLE p and a, of a table the biases at the distances from ``lowest`` on, of FIRE what ``Fire.line_numbers`` has,
    with ``lowest`` lines. ``order`` names the heads, int32, those with most work first. ``documents`` are those of
    queries and keys, (batch, length) in int64, where tokens see their own alone.
    """
    settings = (kind, lowest, scale, cap, causal, before, first, documents is not None)
    out, lse, _ = torch.ops.whorl.tiles_forward(q, k, v, numbers, *(documents or (None, None)), order, *settings)
    return out, lse


def _outputs(q: Tensor, k: Tensor, v: Tensor, *others: Any) -> Tensors:
    from whorl.kernels.tiles.launch import outputs_of

    return outputs_of(q, k, v, *others[4:])


@operator(
    f"tiles_forward({GIVEN}, Tensor? order, {SETTINGS}) -> (Tensor out, Tensor lse, Tensor reach)",
    _outputs,
)
def _forward(*given: Any) -> Tensors:
    from whorl.kernels.tiles.launch import forward

    return forward(*given)


def _gradients(
    grad: Tensor, grad_lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, numbers: Tensor | None,
    q_documents: Tensor | None, k_documents: Tensor | None, out: Tensor, lse: Tensor, reach: Tensor, learned: bool,
    *settings: Any,
) -> Tensors:  # fmt: skip
    from whorl.kernels.tiles.launch import gradients_of

    return gradients_of(q, k, v, numbers, learned)


@operator(
    f"tiles_backward(Tensor grad, Tensor? grad_lse, {GIVEN}, Tensor out, Tensor lse, Tensor reach, "
    f"bool learned, {SETTINGS}) -> (Tensor dq, Tensor dk, Tensor dv, Tensor dnumbers)",
    _gradients,
)
def _backward(*given: Any) -> Tensors:
    from whorl.kernels.tiles.launch import backward

    return backward(*given)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
    ctx.save_for_backward(*inputs[:6], *output)
    ctx.settings = inputs[7:]
    ctx.set_materialize_grads(False)


def _back(ctx: Any, grad: Tensor | None, grad_lse: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    if grad is None and grad_lse is None:
        return (None,) * 15
    kept, learned = ctx.saved_tensors, ctx.needs_input_grad[3]
    grad = torch.zeros_like(kept[6]) if grad is None else grad
    *gradients, dnumbers = torch.ops.whorl.tiles_backward(grad, grad_lse, *kept, learned, *ctx.settings)
    return *gradients, dnumbers if learned else None, *(None,) * 11


gradient("tiles_forward", _back, _keep)
gradient("tiles_backward", no_second_gradient("attention"))


# What both operators of two placements take.
PLACED_TWICE = "Tensor q, Tensor k, Tensor far_q, Tensor far_k, Tensor v"
RULES = "float scale, float cap, int near"


def branches_attention(
    q: Tensor, k: Tensor, far_q: Tensor, far_k: Tensor, v: Tensor, *, scale: float, near: int, cap: float = 0.0
) -> tuple[Tensor, Tensor]:
    """The causal output and log-sum-exp, with gradients: keys ``near`` positions back and more are met as far ones."""
    return torch.ops.whorl.branches_forward(q, k, far_q, far_k, v, scale, cap, near)


def _branch_outputs(q: Tensor, k: Tensor, far_q: Tensor, far_k: Tensor, v: Tensor, *rules: Any) -> Tensors:
    from whorl.kernels.tiles.branches import outputs_of

    return outputs_of(q, v)


@operator(f"branches_forward({PLACED_TWICE}, {RULES}) -> (Tensor out, Tensor lse)", _branch_outputs)
def _branches_forward(*given: Any) -> Tensors:
    from whorl.kernels.tiles.branches import forward

    return forward(*given)


def _branch_gradients(grad: Tensor, grad_lse: Tensor | None, *given: Any) -> Tensors:
    from whorl.kernels.tiles.branches import gradients_of

    return gradients_of(*given[:5])


@operator(
    f"branches_backward(Tensor grad, Tensor? grad_lse, {PLACED_TWICE}, Tensor out, Tensor lse, {RULES}) -> "
    "(Tensor dq, Tensor dk, Tensor far_dq, Tensor far_dk, Tensor dv)",
    _branch_gradients,
)
def _branches_backward(*given: Any) -> Tensors:
    from whorl.kernels.tiles.branches import backward

    return backward(*given)


def _keep_branches(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
    ctx.save_for_backward(*inputs[:5], *output)
    ctx.rules = inputs[5:]
    ctx.set_materialize_grads(False)


def _back_branches(ctx: Any, grad: Tensor | None, grad_lse: Tensor | None) -> tuple[Tensor | None, ...]:
    if grad is None and grad_lse is None:
        return (None,) * 8
    kept = ctx.saved_tensors
    grad = torch.zeros_like(kept[5]) if grad is None else grad
    return *torch.ops.whorl.branches_backward(grad, grad_lse, *kept, *ctx.rules), None, None, None


gradient("branches_forward", _back_branches, _keep_branches)
gradient("branches_backward", no_second_gradient("attention"))
