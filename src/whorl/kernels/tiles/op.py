"""Attention by tiles as operators of torch: ``whorl::tiles_…`` with one placement, ``whorl::branches_…`` with two.

Compiled graphs see them whole, and their kernels are imported when they first run. A call that nobody traces runs the
kernels directly. Nothing is checked here; ``attention`` is the public call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor

from whorl.kernels.ops import gradient, no_second_gradient, operator
from whorl.tracing import may_read_memory, operators_are_watched, takes_gradients

Pair = tuple[Tensor, Tensor]  # of queries and of keys


class Settings(NamedTuple):
    """What is asked for beside tensors.

    kind        of the bias: "none", "line", "log", "power", "table", "broken" or "gate"
    lowest      the distance of a table's first number, or how many lines a broken one has
    scale       of products of queries and keys
    cap         the soft limit of scores, or 0
    causal      whether keys after the query are hidden
    before      how many positions back a query sees, or -1
    first       the first keys of a text that every query sees beside
    documents   whether tokens see those of their own document only
    positions   whether the bias goes by given positions
    dropout     the share of weights that values do not see
    """

    kind: str = "none"
    lowest: int = 0
    scale: float = 1.0
    cap: float = 0.0
    causal: bool = True
    before: int = -1
    first: int = 0
    documents: bool = False
    positions: bool = False
    dropout: float = 0.0


def tiles_attention(
    q: Tensor, k: Tensor, v: Tensor, *, numbers: Tensor | None = None, order: Tensor | None = None,
    documents: Pair | None = None, positions: Pair | None = None, seed: Tensor | None = None, **settings: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The output (batch, heads, queries, value dim) and the log-sum-exp (batch, heads, queries), with gradients.

    q is (batch, heads, queries, dim), k and v have as many heads or fewer, and the last query stands at the last key.
    ``settings`` are those of ``Settings``. ``numbers``, float32, are those of the bias: (heads, count), of a line its
    slope, of KERPLE p and a, of a table the biases at the distances from ``lowest`` on, of FIRE what
    ``Fire.line_numbers`` has, with ``lowest`` lines; of a gate (batch * heads, 2 * keys), its running sums and what
    they were rounded by. ``order`` names the heads, int32, those with most work first. ``documents`` and ``positions``
    are (batch, length) in int64. ``seed``, int64, is what dropout draws from.
    """
    facts = [pair for pair in (documents, positions) if pair is not None]
    tokens = [side[0] if len(side) == 1 else torch.stack(side) for side in zip(*facts, strict=True)] or [None, None]
    asked = Settings(**settings, documents=documents is not None, positions=positions is not None)
    return TILES((q, k, v, numbers, order, *tokens, seed), asked)


def branches_attention(
    q: Tensor, k: Tensor, far_q: Tensor, far_k: Tensor, v: Tensor, *, scale: float, near: int, cap: float = 0.0
) -> tuple[Tensor, Tensor]:
    """The causal output and log-sum-exp, with gradients: keys ``near`` positions back and more are met as far ones."""
    return BRANCHES((q, k, far_q, far_k, v), (scale, cap, near))


class Direct(torch.autograd.Function):
    """Results of a kernel past the dispatcher, with their gradients: an operator's cost more than small kernels run."""

    @staticmethod
    def forward(ctx: Any, kernels: Kernels, settings: tuple[Any, ...], *tensors: Tensor | None) -> tuple[Tensor, ...]:
        results = kernels.forward(*tensors, *settings)
        ctx.save_for_backward(*tensors, *results)
        ctx.kernels, ctx.settings = kernels, settings
        ctx.set_materialize_grads(False)
        return results[:2]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        needed = ctx.needs_input_grad[2:]
        return None, None, *ctx.kernels.back(gradients, ctx.saved_tensors, needed, ctx.settings)


class Kernels:
    """The functions of a module, and two operators that run them: results, and gradients of the first tensors given."""

    def __init__(self, name: str, module: str, tensors: str, settings: str, results: str, gradients: str) -> None:
        self._module, self._count = module, tensors.count("Tensor")
        given = f"Tensor grad, Tensor? grad_lse, {tensors}, {results}, bool[] needed, {settings}"
        operator(f"{name}_forward({tensors}, {settings}) -> ({results})", self._of("results_of"))(self.forward)
        operator(f"{name}_backward({given}) -> ({gradients})", self._of("gradients_of"))(self.backward)
        gradient(f"{name}_forward", self._back_of_operator, self._keep)
        gradient(f"{name}_backward", no_second_gradient("attention"))
        self._forward_operator = getattr(torch.ops.whorl, f"{name}_forward")
        self._backward_operator = getattr(torch.ops.whorl, f"{name}_backward")

    def _of(self, function: str) -> Callable[..., Any]:
        return lambda *given: getattr(self._functions, function)(*given)

    @cached_property
    def _functions(self) -> Any:
        return import_module(self._module)

    def forward(self, *given: Any) -> tuple[Tensor, ...]:
        """The results, without gradients."""
        return self._functions.forward(*given)

    def backward(self, *given: Any) -> tuple[Tensor, ...]:
        """The gradients of the first tensors."""
        return self._functions.backward(*given)

    def __call__(self, tensors: tuple[Tensor | None, ...], settings: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
        """Output and log-sum-exp, with gradients; by the operators where somebody would miss a kernel run directly."""
        if operators_are_watched() or not all(x is None or may_read_memory(x) for x in tensors):
            out, lse, *_ = self._forward_operator(*tensors, *settings)
        elif takes_gradients(*tensors):
            out, lse = Direct.apply(self, settings, *tensors)
        else:
            out, lse, *_ = self.forward(*tensors, *settings)
        return out, lse

    def back(
        self, gradients: tuple[Tensor | None, ...], kept: tuple[Any, ...], needed: Sequence[bool],
        settings: tuple[Any, ...],
    ) -> tuple[Tensor | None, ...]:  # fmt: skip
        """The gradients of the tensors, from those of the output and of the log-sum-exp."""
        grad, grad_lse = gradients[:2]
        if grad is None and grad_lse is None:
            return (None,) * self._count
        grad = torch.zeros_like(kept[self._count]) if grad is None else grad
        seen = operators_are_watched() or takes_gradients(grad, grad_lse, *kept)  # it refuses a second gradient
        direct = not seen and all(x is None or may_read_memory(x) for x in (grad, grad_lse))
        run = self.backward if direct else self._backward_operator
        found = run(grad, grad_lse, *kept, list(needed[: self._count]), *settings)
        found = [each if need else None for each, need in zip(found, needed, strict=False)]
        return *found, *(None,) * (self._count - len(found))

    def _keep(self, ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(*inputs[: self._count], *output)
        ctx.settings = inputs[self._count :]
        ctx.set_materialize_grads(False)

    def _back_of_operator(self, ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        found = self.back(gradients, ctx.saved_tensors, ctx.needs_input_grad, ctx.settings)
        return *found, *(None,) * len(ctx.settings)


TILES = Kernels(
    "tiles",
    "whorl.kernels.tiles.launch",
    "Tensor q, Tensor k, Tensor v, Tensor? numbers, Tensor? order, Tensor? q_tokens, Tensor? k_tokens, Tensor? seed",
    "str kind, SymInt lowest, float scale, float cap, bool causal, int before, int first, bool documents, "
    "bool positions, float dropout",
    "Tensor out, Tensor lse, Tensor reach",
    "Tensor dq, Tensor dk, Tensor dv, Tensor dnumbers",
)
BRANCHES = Kernels(
    "branches",
    "whorl.kernels.tiles.branches",
    "Tensor q, Tensor k, Tensor far_q, Tensor far_k, Tensor v",
    "float scale, float cap, int near",
    "Tensor out, Tensor lse",
    "Tensor dq, Tensor dk, Tensor far_dq, Tensor far_dk, Tensor dv",
)
