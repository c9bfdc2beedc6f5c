"""Attention by tiles as operators of torch: ``whorl::tiles_…`` with one placement, ``whorl::branches_…`` with two.

Compiled graphs see them whole, and their kernels are imported when they first run. Nothing is checked here;
``attention`` is the public call.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor

from whorl.kernels.ops import gradient, no_second_gradient, operator

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
    out, lse, _ = torch.ops.whorl.tiles_forward(q, k, v, numbers, order, *tokens, seed, *asked)
    return out, lse


def branches_attention(
    q: Tensor, k: Tensor, far_q: Tensor, far_k: Tensor, v: Tensor, *, scale: float, near: int, cap: float = 0.0
) -> tuple[Tensor, Tensor]:
    """The causal output and log-sum-exp, with gradients: keys ``near`` positions back and more are met as far ones."""
    return torch.ops.whorl.branches_forward(q, k, far_q, far_k, v, scale, cap, near)


def _define(name: str, module: str, tensors: str, settings: str, results: str, gradients: str) -> None:
    """Two operators, by the functions of a module: its results, and the gradients of the first of the tensors."""
    count = tensors.count("Tensor")

    def of(function: str) -> Callable[..., Any]:
        return lambda *given: getattr(import_module(module), function)(*given)

    def keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(*inputs[:count], *output)
        ctx.settings = inputs[count:]
        ctx.set_materialize_grads(False)

    def back(ctx: Any, grad: Tensor | None, grad_lse: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
        needed = ctx.needs_input_grad
        if grad is None and grad_lse is None:
            return (None,) * len(needed)
        kept = ctx.saved_tensors
        grad = torch.zeros_like(kept[count]) if grad is None else grad
        found = getattr(torch.ops.whorl, f"{name}_backward")(grad, grad_lse, *kept, list(needed[:count]), *ctx.settings)
        found = [each if need else None for each, need in zip(found, needed, strict=False)]
        return *found, *(None,) * (len(needed) - len(found))

    operator(f"{name}_forward({tensors}, {settings}) -> ({results})", of("results_of"))(of("forward"))
    given = f"Tensor grad, Tensor? grad_lse, {tensors}, {results}, bool[] needed, {settings}"
    operator(f"{name}_backward({given}) -> ({gradients})", of("gradients_of"))(of("backward"))
    gradient(f"{name}_forward", back, keep)
    gradient(f"{name}_backward", no_second_gradient("attention"))


_define(
    "tiles",
    "whorl.kernels.tiles.launch",
    "Tensor q, Tensor k, Tensor v, Tensor? numbers, Tensor? order, Tensor? q_tokens, Tensor? k_tokens, Tensor? seed",
    "str kind, SymInt lowest, float scale, float cap, bool causal, int before, int first, bool documents, "
    "bool positions, float dropout",
    "Tensor out, Tensor lse, Tensor reach",
    "Tensor dq, Tensor dk, Tensor dv, Tensor dnumbers",
)
_define(
    "branches",
    "whorl.kernels.tiles.branches",
    "Tensor q, Tensor k, Tensor far_q, Tensor far_k, Tensor v",
    "float scale, float cap, int near",
    "Tensor out, Tensor lse",
    "Tensor dq, Tensor dk, Tensor far_dq, Tensor far_dk, Tensor dv",
)
