"""The rotation as operators of torch: schemas, shapes for tracing, gradients.

A rotation is linear, so its gradient is a rotation: the angles turn back, and what was written is read. A call that
nobody traces goes to the kernel directly, with ``Turned`` for its gradient, because passing through the dispatcher
costs more than a decoding step's kernel takes, and gradients of operators several times as much.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from whorl.errors import WhorlError
from whorl.kernels.rotate_checks import check_into
from whorl.plans import Plan, plan_of
from whorl.rotary.rotation import Rotation
from whorl.tracing import may_read_memory, operators_are_watched

LIBRARY = torch.library.Library("whorl", "FRAGMENT")

# The last arguments of every operator that rotates: the fields of a Rotation, and the kernel that runs. Programs that
# were exported hold them, so they stay as they are.
TURN = "str order, str reads, str writes, int start, int blocks, bool conjugate, bool divide, str kernel"

Tensors = tuple[Tensor, ...]


def operator(
    schema: str, fake: Callable[..., Any], keys: Sequence[str] = ("CPU", "CUDA")
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The decorator that makes a function the operator of a schema; ``fake`` gives its results without their numbers.

    ``keys`` are those of torch's dispatcher: on the CPU too, where Triton's kernels run in its interpreter.
    """

    def define(function: Callable[..., Any]) -> Callable[..., Any]:
        name = schema.partition("(")[0]
        LIBRARY.define(schema)
        for key in keys:
            LIBRARY.impl(name, function, key)
        torch.library.register_fake(f"whorl::{name}", fake, lib=LIBRARY)
        return function

    return define


def gradient(name: str, backward: Callable[..., Any], keep: Callable[..., None] | None = None) -> None:
    """Gives an operator its gradient; ``keep`` holds what the backward pass needs."""
    torch.library.register_autograd(f"whorl::{name}", backward, setup_context=keep, lib=LIBRARY)


def no_second_gradient(call: str) -> Callable[..., None]:
    """The gradient of a gradient that a kernel does not have; raised when it is asked for, not before."""

    def refuse(ctx: Any, *gradients: Tensor | None) -> None:
        raise WhorlError(f"{call}: its kernel has no gradient of its gradient. Pass impl='torch'.")

    return refuse


def like(*tensors: Tensor) -> Tensors:
    """Memory for results that are as the tensors are."""
    return tuple(torch.empty_like(x) for x in tensors)


@operator(f"rotate(Tensor x, Tensor cos, Tensor sin, Tensor? rows, {TURN}) -> Tensor", lambda x, *_: like(x)[0])
def _rotate(x: Tensor, cos: Tensor, sin: Tensor, rows: Tensor | None, *turn: Any) -> Tensor:
    outs = like(x)
    run_kernel((x,), cos, sin, outs, rows, *turn)
    return outs[0]


@operator(
    f"rotate_qk(Tensor q, Tensor k, Tensor cos, Tensor sin, Tensor? rows, {TURN}) -> (Tensor, Tensor)",
    lambda q, k, *_: like(q, k),
)
def _rotate_qk(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, rows: Tensor | None, *turn: Any) -> Tensors:
    outs = like(q, k)
    run_kernel((q, k), cos, sin, outs, rows, *turn)
    return outs


@operator(f"rotate_into(Tensor(a!) out, Tensor x, Tensor cos, Tensor sin, Tensor? rows, {TURN}) -> ()", lambda *_: None)
def _rotate_into(out: Tensor, x: Tensor, cos: Tensor, sin: Tensor, rows: Tensor | None, *turn: Any) -> None:
    _, reads, writes, *_ = turn
    check_into(out, x, cos, sin, rows, moves=reads != writes)
    run_kernel((x,), cos, sin, (out,), rows, *turn)


def run_kernel(xs: Tensors, cos: Tensor, sin: Tensor, outs: Tensors, rows: Tensor | None, *turn: Any) -> None:
    """Writes the tensors, turned, into ``outs``; ``turn`` is what ``TURN`` names."""
    run = plan_of(
        ("run", xs[0] is outs[0], *turn),
        (*xs, *outs, cos, sin, rows),
        lambda: ready_kernel(xs, cos, sin, outs, rows, Rotation(*turn[:-1]), turn[-1]),
    )
    run(xs, cos, sin, outs, rows)


def ready_kernel(
    xs: Tensors, cos: Tensor, sin: Tensor, outs: Tensors, rows: Tensor | None, rotation: Rotation, kernel: str
) -> Plan:
    """The function of (xs, cos, sin, outs, rows) that runs a kernel on one or two tensors of these kinds."""
    if kernel == "triton":
        from whorl.kernels.rotate_triton import ready
    else:
        from whorl.kernels.rotate_numba import ready
    return ready(xs, cos, sin, outs, rows, rotation)


def direct_launch(run: Plan, rotation: Rotation, kernel: str) -> Plan:
    """The function of (xs, cos, sin, rows) that turns by a ready kernel, past the dispatcher: nobody may be tracing."""
    turn = (*rotation, kernel)

    def launch(xs: Tensors, cos: Tensor, sin: Tensor, rows: Tensor | None) -> Tensors:
        if torch.is_grad_enabled():
            for x in xs:
                if x.requires_grad:
                    return Turned.apply(run, turn, cos, sin, rows, *xs)
        outs = (torch.empty_like(xs[0]),) if len(xs) == 1 else (torch.empty_like(xs[0]), torch.empty_like(xs[1]))
        run(xs, cos, sin, outs, rows)
        return outs

    return launch


def mark_written(x: Tensor) -> None:
    """Lets a backward pass see what a kernel wrote into past the dispatcher, as it sees what operators write into."""
    if not x.is_inference():
        torch.autograd.graph.increment_version(x)


def turn_by_operator(
    xs: Tensors, cos: Tensor, sin: Tensor, rows: Tensor | None, rotation: Rotation, kernel: str
) -> Tensors:
    """One or two tensors turned through the dispatcher, which whoever traces or transforms the call sees."""
    turn = (cos, sin, rows, *rotation, kernel)
    return torch.ops.whorl.rotate_qk(*xs, *turn) if len(xs) == 2 else (torch.ops.whorl.rotate(xs[0], *turn),)


class Turned(torch.autograd.Function):
    """Tensors turned by a kernel made ready for them (``ready_kernel``), with their gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        run: Plan,
        turn: tuple[Any, ...],
        cos: Tensor,
        sin: Tensor,
        rows: Tensor | None,
        *xs: Tensor,
    ) -> Tensors:
        ctx.save_for_backward(cos, sin, rows)
        ctx.turn = turn
        ctx.set_materialize_grads(False)
        outs = tuple(torch.empty_like(x) for x in xs)
        run(xs, cos, sin, outs, rows)
        return outs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        return (None,) * 5 + _turned_back(ctx, gradients)


def _turned_back(ctx: Any, gradients: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
    """The gradients of what was turned, from those of the results."""
    given = tuple(gradient for gradient in gradients if gradient is not None)
    if not given:
        return gradients
    cos, sin, rows = ctx.saved_tensors
    *fields, kernel = ctx.turn
    back = Rotation(*fields).transposed()
    if operators_are_watched() or not all(map(may_read_memory, given)):
        turned = iter(turn_by_operator(given, cos, sin, rows, back, kernel))
    else:

        def run(xs: Tensors, cos: Tensor, sin: Tensor, outs: Tensors, rows: Tensor | None) -> None:
            run_kernel(xs, cos, sin, outs, rows, *back, kernel)

        turned = iter(direct_launch(run, back, kernel)(given, cos, sin, rows))
    return tuple(None if gradient is None else next(turned) for gradient in gradients)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    cos, sin, rows, *ctx.turn = inputs[1 if isinstance(output, Tensor) else 2 :]
    ctx.save_for_backward(cos, sin, rows)


def _back(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
    return _turned_back(ctx, gradients) + (None,) * (3 + len(ctx.turn))


gradient("rotate", _back, _keep)
gradient("rotate_qk", _back, _keep)
