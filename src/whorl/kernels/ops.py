"""The rotation as operators of torch: schemas, shapes for tracing, gradients.

A rotation is linear, so its gradient is a rotation: the angles turn back, and what was written is read. A call that
nobody traces goes to the kernel directly (``rotate``), with ``Turned`` for its gradient, because passing through the
dispatcher costs more than a decoding step's kernel takes, and gradients of operators several times as much.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from whorl.errors import WhorlError
from whorl.memory import check_written, same_place
from whorl.tracing import is_transformed, making_graph, may_read_memory, operators_are_watched

# How a rotation reads, turns and writes: the arguments of every operator behind its tensors.
TURN = "str order, str reads, str writes, int start, int blocks, bool conjugate, bool divide, str kernel"

# A kernel made ready for a call (``ready_kernel``), and the last arguments of its operator.
Ready = tuple[Callable[..., Any], tuple[Any, ...]]

LIBRARY = torch.library.Library("whorl", "FRAGMENT")
LIBRARY.define(f"rotate(Tensor x, Tensor cos, Tensor sin, Tensor? rows, {TURN}) -> Tensor")
LIBRARY.define(f"rotate_qk(Tensor q, Tensor k, Tensor cos, Tensor sin, Tensor? rows, {TURN}) -> (Tensor, Tensor)")
LIBRARY.define(f"rotate_into(Tensor(a!) out, Tensor x, Tensor cos, Tensor sin, Tensor? rows, {TURN}) -> ()")


def run_kernel(
    xs: tuple[Tensor, ...], cos: Tensor, sin: Tensor, outs: tuple[Tensor, ...], rows: Tensor | None, *turn: Any
) -> None:
    """Writes the tensors, turned, into ``outs`` by the kernel that the last argument names."""
    *how, kernel = turn
    if kernel == "triton":
        from whorl.kernels.rotate_triton import turn as turn_all

        turn_all(xs, cos, sin, outs, rows, *how)
        return
    from whorl.kernels.rotate_numba import turn as turn_one

    for x, out in zip(xs, outs, strict=True):
        turn_one(x, cos, sin, out, rows, *how)


def ready_kernel(
    xs: tuple[Tensor, ...], cos: Tensor, sin: Tensor, outs: tuple[Tensor, ...], rows: Tensor | None, *turn: Any
) -> Callable[..., None]:
    """The function of (xs, cos, sin, outs, rows) that ``run_kernel`` is for tensors of these shapes and strides."""
    *how, kernel = turn
    if kernel == "triton":
        from whorl.kernels.rotate_triton import ready

        return ready(xs, cos, sin, outs, rows, *how)

    from whorl.kernels.rotate_numba import ready as ready_one

    turns = [ready_one(x, cos, sin, out, rows, *how) for x, out in zip(xs, outs, strict=True)]
    if len(turns) == 1:
        turn_it = turns[0]
        return lambda xs, cos, sin, outs, rows: turn_it(xs[0], cos, sin, outs[0], rows)

    def run(xs: tuple[Tensor, ...], cos: Tensor, sin: Tensor, outs: tuple[Tensor, ...], rows: Tensor | None) -> None:
        for turn, x, out in zip(turns, xs, outs, strict=True):
            turn(x, cos, sin, out, rows)

    return run


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, rows: Tensor | None, *turn: Any) -> Tensor:
    out = torch.empty_like(x)
    run_kernel((x,), cos, sin, (out,), rows, *turn)
    return out


def _rotate_qk(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, rows: Tensor | None, *turn: Any
) -> tuple[Tensor, Tensor]:
    outs = torch.empty_like(q), torch.empty_like(k)
    run_kernel((q, k), cos, sin, outs, rows, *turn)
    return outs


def _rotate_into(out: Tensor, x: Tensor, cos: Tensor, sin: Tensor, rows: Tensor | None, *turn: Any) -> None:
    check_into(out, x, cos, sin, rows, *turn[1:3])
    run_kernel((x,), cos, sin, (out,), rows, *turn)


def check_into(out: Tensor, x: Tensor, cos: Tensor, sin: Tensor, rows: Tensor | None, reads: str, writes: str) -> None:
    """Raises a WhorlError unless out is x itself, element by element, or has memory apart from all that is read."""
    in_place = same_place(out, x)
    if in_place and reads != writes:
        raise not_in_place()
    read = (("x", None if in_place else x), ("cos", cos), ("sin", sin), ("rows", rows))
    check_written("rotate", (("out", out),), read)


def not_in_place() -> WhorlError:
    """The error for a rotation whose pairs lie elsewhere afterwards, asked for in place."""
    return WhorlError(
        "rotate: layout='interleaved_to_half' writes where it has yet to read, so not in place. "
        "Pass other memory as out=."
    )


for _device in ("CPU", "CUDA"):
    LIBRARY.impl("rotate", _rotate, _device)
    LIBRARY.impl("rotate_qk", _rotate_qk, _device)
    LIBRARY.impl("rotate_into", _rotate_into, _device)


@torch.library.register_fake("whorl::rotate", lib=LIBRARY)
def _(x: Tensor, *rest: Any) -> Tensor:
    return torch.empty_like(x)


@torch.library.register_fake("whorl::rotate_qk", lib=LIBRARY)
def _(q: Tensor, k: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(q), torch.empty_like(k)


@torch.library.register_fake("whorl::rotate_into", lib=LIBRARY)
def _(*given: Any) -> None:
    return None


def backwards(turn: tuple[Any, ...]) -> tuple[Any, ...]:
    """The rotation that carries gradients back through another: its transpose."""
    order, reads, writes, start, blocks, conjugate, divide, kernel = turn
    return order, writes, reads, start, blocks, not conjugate, divide, kernel


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    tensors = 1 if isinstance(output, Tensor) else 2
    cos, sin, rows, *turn = inputs[tensors:]
    ctx.save_for_backward(cos, sin, rows)
    ctx.turn = tuple(turn)


def _back(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
    turned = _turned_back(ctx, gradients)
    return (*turned, None, None, None, *(None for _ in ctx.turn))


def _turned_back(ctx: Any, gradients: tuple[Tensor | None, ...]) -> list[Tensor | None]:
    given = tuple(gradient for gradient in gradients if gradient is not None)
    cos, sin, rows = ctx.saved_tensors
    turned = iter(_turn_any(given, cos, sin, rows, backwards(ctx.turn)) if given else ())
    return [None if gradient is None else next(turned) for gradient in gradients]


def _turn_any(
    xs: tuple[Tensor, ...], cos: Tensor, sin: Tensor, rows: Tensor | None, turn: tuple[Any, ...]
) -> tuple[Tensor, ...]:
    if operators_are_watched() or not all(map(may_read_memory, xs)):
        given = (cos, sin, rows, *turn)
        operators = torch.ops.whorl
        return operators.rotate_qk(*xs, *given) if len(xs) == 2 else (operators.rotate(xs[0], *given),)

    def run(xs: tuple[Tensor, ...], cos: Tensor, sin: Tensor, outs: tuple[Tensor, ...], rows: Tensor | None) -> None:
        run_kernel(xs, cos, sin, outs, rows, *turn)

    return turn_ready((run, turn), xs, cos, sin, rows)


def turn_ready(
    ready: Ready, xs: tuple[Tensor, ...], cos: Tensor, sin: Tensor, rows: Tensor | None
) -> tuple[Tensor, ...]:
    """One or two tensors turned by the kernel made ready for them, past the dispatcher: nobody may be tracing."""
    run, turn = ready
    if torch.is_grad_enabled():
        for x in xs:
            if x.requires_grad:
                return Turned.apply(run, turn, cos, sin, rows, *xs)
    outs = (torch.empty_like(xs[0]),) if len(xs) == 1 else (torch.empty_like(xs[0]), torch.empty_like(xs[1]))
    run(xs, cos, sin, outs, rows)
    return outs


def no_second_gradient(call: str) -> Callable[..., None]:
    """The gradient of a gradient that a kernel does not have; raised when it is asked for, not before."""

    def refuse(ctx: Any, *gradients: Tensor | None) -> None:
        raise WhorlError(f"{call}: its kernel has no gradient of its gradient. Pass impl='torch'.")

    return refuse


def why_not_memory(name: str, x: Tensor) -> str | None:
    """What keeps a kernel from the memory of a tensor, or None: a subclass may keep its numbers elsewhere."""
    if type(x) is Tensor or type(x) is torch.nn.Parameter or making_graph():
        return None
    return f"{name} is a {type(x).__name__}, whose memory a kernel cannot read"


def why_not_transformed() -> str | None:
    """What keeps a kernel from a call inside torch.func or forward-mode differentiation, or None."""
    if is_transformed():
        return "torch.func transforms and forward-mode derivatives see through torch's own operations only"
    return None


class Turned(torch.autograd.Function):
    """Tensors turned by a kernel made ready for them (``ready_kernel``), with their gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        run: Callable[..., None],
        turn: tuple[Any, ...],
        cos: Tensor,
        sin: Tensor,
        rows: Tensor | None,
        *xs: Tensor,
    ) -> tuple[Tensor, ...]:
        ctx.save_for_backward(cos, sin, rows)
        ctx.turn = turn
        ctx.set_materialize_grads(False)
        outs = tuple(torch.empty_like(x) for x in xs)
        run(xs, cos, sin, outs, rows)
        return outs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        return None, None, None, None, None, *_turned_back(ctx, gradients)


torch.library.register_autograd("whorl::rotate", _back, setup_context=_keep, lib=LIBRARY)
torch.library.register_autograd("whorl::rotate_qk", _back, setup_context=_keep, lib=LIBRARY)
