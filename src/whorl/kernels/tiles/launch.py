"""Launches of the attention kernels: sizes, strides and constants of a call, and the memory of its results."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from whorl.kernels.launches import prepared
from whorl.kernels.tiles import sizes
from whorl.kernels.tiles.backward import grad_keys, grad_queries, row_deltas
from whorl.kernels.tiles.biases import line
from whorl.kernels.tiles.forward import attend
from whorl.kernels.tiles.visits import CAUSAL, DOCUMENTS, WINDOW
from whorl.kernels.triton_launch import Launch, power_of_2

LOG2E = math.log2(math.e)

# Those that walk over tiles; the names are those of ``sizes``.
KERNELS = {"forward": attend, "keys": grad_keys, "queries": grad_queries}

# Queries whose deltas one program computes.
DELTA_ROWS = 64


class Settings(NamedTuple):
    """What is asked for beside tensors.

    kind        of the bias: "none", "line", "log", "power", "table", or "broken"
    lowest      the distance of a table's first number, or how many lines a broken one has
    scale       of products of queries and keys
    cap         the soft limit of scores, or 0
    causal      whether keys after the query are hidden
    before      how many positions back a query sees, or -1
    first       the first keys of a text that every query sees beside
    documents   whether tokens see those of their own document only
    """

    kind: str
    lowest: int
    scale: float
    cap: float
    causal: bool
    before: int
    first: int
    documents: bool = False

    @property
    def skips(self) -> bool:
        """Whether far keys can be too light to count; below a cap none is, and documents end before."""
        return self.kind == "line" and self.causal and not self.cap and not self.documents

    @property
    def constants(self) -> tuple[str, int, bool, bool]:
        """What all kernels are compiled for: the kind of the bias; which keys are seen; capped; keys left out."""
        rules = self.causal * CAUSAL.value | (self.before >= 0) * WINDOW.value | self.documents * DOCUMENTS.value
        return self.kind, rules, bool(self.cap), self.skips


# Of queries and keys, (batch, length) int64, contiguous; both or none.
Documents = tuple[Tensor | None, Tensor | None]


class Shape(NamedTuple):
    """The sizes of a call."""

    batch: int
    heads: int
    queries: int
    dim: int
    key_heads: int
    keys: int
    value_dim: int

    @staticmethod
    def of(q: Tensor, k: Tensor, v: Tensor) -> Shape:
        return Shape(q.shape[0], q.shape[1], q.shape[2], q.shape[3], k.shape[1], k.shape[2], v.shape[3])

    @property
    def groups(self) -> int:
        return self.heads // self.key_heads

    @property
    def padded(self) -> tuple[int, int]:
        """Dimensions of a head and of a value, as many as a matrix product takes."""
        return max(16, power_of_2(self.dim)), max(16, power_of_2(self.value_dim))

    @property
    def dims(self) -> tuple[int, int, int, int]:
        """Dimensions of a head and of a value, each with its padded number."""
        return self.dim, self.padded[0], self.value_dim, self.padded[1]

    @property
    def chunks(self) -> int:
        """How many programs look at the norms of the keys of a head."""
        return -(-self.keys // line.CHUNK)


def _or(documents: Documents, nothing: Tensor) -> list[Tensor]:
    """The documents; what a kernel does not read stands for none."""
    return [nothing if each is None else each for each in documents]


def laid_out_as(x: Tensor, heads: int, dim: int) -> Tensor:
    """Memory for (batch, heads, length, dim), in which the heads of a token lie together where they do in x."""
    batch, _, length, _ = x.shape
    if x.stride(1) < x.stride(2):
        return x.new_empty(batch, length, heads, dim).transpose(1, 2)
    return x.new_empty(batch, heads, length, dim)


def forward(
    q: Tensor, k: Tensor, v: Tensor, numbers: Tensor | None, q_documents: Tensor | None, k_documents: Tensor | None,
    order: Tensor | None, *settings: Any,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The output, the log-sum-exp of each query, and by head how far keys count where ALiBi's line hides the others."""
    asked = Settings(*settings)
    found = out, lse, reach = outputs_of(q, k, v, *settings)
    if asked.skips:
        reach.zero_()
    if out.numel():
        attend_into(out, lse, reach, q, k, v, numbers, order, asked, documents=(q_documents, k_documents))
    return found


def attend_into(
    out: Tensor, lse: Tensor, reach: Tensor, q: Tensor, k: Tensor, v: Tensor,
    numbers: Tensor | None, order: Tensor | None, asked: Settings, earlier: tuple[Tensor, Tensor] | None = None,
    documents: Documents = (None, None),
) -> None:  # fmt: skip
    """Writes the results; ``earlier`` is the output, contiguous in float32, and log-sum-exp that the last queries have
    of other keys.
    """
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    numbers = _in_powers_of_two(numbers, asked)
    more = 0 if earlier is None else earlier[1].shape[2]
    run = prepared(
        ("tiles_forward", asked, order is None, more),
        (q, k, v, numbers, out),
        lambda: _ready_forward(q, k, v, out, numbers, order is not None, more, Shape.of(q, k, v), asked),
    )
    run(q, k, v, out, lse, numbers, order, reach, earlier or (lse, lse), documents)


def outputs_of(q: Tensor, k: Tensor, v: Tensor, *settings: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Memory for the results of ``forward``."""
    lse = q.new_empty(q.shape[:3], dtype=torch.float32)
    reach = q.new_empty(q.shape[:2] if Settings(*settings).skips else (0,), dtype=torch.int32)
    return laid_out_as(q, q.shape[1], v.shape[3]), lse, reach


def _in_powers_of_two(numbers: Tensor | None, asked: Settings) -> Tensor | None:
    """The numbers as the kernels read them: tables are added to scores as they are."""
    if numbers is None:
        return None
    numbers = numbers.contiguous()
    return numbers * LOG2E if asked.kind == "table" else numbers


def _steps(*tensors: Tensor) -> tuple[int, list[int]]:
    """The unit of strides of batch, heads and length, and all of them in that unit."""
    strides = [stride for x in tensors for stride in x.stride()[:3]]
    unit = 8 if all(stride % 8 == 0 for stride in strides) else 1
    return unit, [stride // unit for stride in strides]


def _over_tiles(
    name: str, tensors: tuple[Tensor, ...], numbers: Tensor | None, shape: Shape, asked: Settings,
    constants: tuple[Any, ...], *more: int,
) -> Launch:  # fmt: skip
    """A kernel that walks over tiles, for tensors of these strides, with constants and numbers that it alone has."""
    count, most = 0 if numbers is None else numbers.shape[1], asked.kind
    lowest, highest = asked.lowest, asked.lowest + count - 1
    if asked.kind == "broken":
        highest = shape.keys - shape.queries  # see ``biases``
    if asked.kind == "none" and asked.before >= 0:
        most = "window"
    elif asked.kind == "table" and 2 * (lowest + count) < shape.keys:
        most = "far table" if 100 * (lowest + count) < shape.keys else "short table"
    tile = sizes.tile_of(name, most, shape.queries, shape.padded, tensors[0].dtype, tensors[0].device)
    programs = shape.heads * -(-shape.queries // tile.rows)
    if name == "keys":
        programs = shape.key_heads * -(-shape.keys // tile.keys)
    unit, steps = _steps(*tensors)
    lengths = [shape.batch, shape.heads, shape.groups, shape.queries, shape.keys, max(asked.before, 0), asked.first]
    return Launch(
        KERNELS[name],
        (shape.batch * programs, 1, 1),
        [*steps, *lengths, count, lowest, highest, asked.scale * LOG2E, asked.cap * LOG2E, *more],
        (unit, *shape.dims, tile.rows, tile.keys, *asked.constants, *constants),
        warps=tile.warps,
        stages=tile.stages,
    )


def _ready_forward(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, numbers: Tensor | None, ordered: bool, earlier: int,
    shape: Shape, asked: Settings,
) -> Callable[..., None]:  # fmt: skip
    """The function that attends with tensors of these shapes and strides."""
    unit, steps = _steps(k)
    norms_of = Launch(
        line.longest_keys,
        (shape.batch * shape.key_heads * shape.chunks, 1, 1),
        [*steps, shape.key_heads, shape.keys, shape.chunks],
        (unit, shape.dim, shape.padded[0], 64, line.CHUNK),
        warps=4,
    )
    constants = ordered, line.MARGIN, line.CHUNK, earlier > 0
    launch = _over_tiles("forward", (q, k, v, out), numbers, shape, asked, constants, earlier)

    def run(
        q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor,
        numbers: Tensor | None, order: Tensor | None, reach: Tensor, earlier: tuple[Tensor, Tensor],
        documents: Documents,
    ) -> None:  # fmt: skip
        norms = lse
        if asked.skips:
            norms = lse.new_empty(shape.batch, shape.key_heads, shape.chunks)
            norms_of(k, norms)
        # what a kernel does not read stands for nothing
        numbers, order = lse if numbers is None else numbers, lse if order is None else order
        launch(q, k, v, out, lse, numbers, order, norms, reach if asked.skips else lse, *earlier, *_or(documents, lse))

    return run


def backward(
    grad: Tensor, grad_lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, numbers: Tensor | None,
    q_documents: Tensor | None, k_documents: Tensor | None, out: Tensor, lse: Tensor, reach: Tensor, learned: bool,
    *settings: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of queries, keys, values and of the numbers of the bias, empty where those are not learned."""
    gradients = gradients_of(q, k, v, numbers, learned)
    gradients[3].zero_()
    if out.numel():
        asked, documents = Settings(*settings), (q_documents, k_documents)
        backward_into(gradients, grad, grad_lse, q, k, v, numbers, out, lse, reach, learned, asked, documents)
    else:
        for each in gradients:
            each.zero_()
    return gradients


def backward_into(
    gradients: tuple[Tensor, Tensor, Tensor, Tensor], grad: Tensor, grad_lse: Tensor | None, q: Tensor, k: Tensor,
    v: Tensor, numbers: Tensor | None, out: Tensor, lse: Tensor, reach: Tensor, learned: bool, asked: Settings,
    documents: Documents = (None, None),
) -> None:  # fmt: skip
    """Writes the gradients. The output and log-sum-exp may be those of more keys than are given."""
    dq, dk, dv, _ = gradients
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    if grad.stride() != out.stride():
        grad = torch.empty_like(out).copy_(grad)  # their rows are read side by side
    grad_lse = None if grad_lse is None else grad_lse.contiguous()
    numbers = _in_powers_of_two(numbers, asked)
    run = prepared(
        ("tiles_backward", asked, learned),
        (q, k, v, numbers, out, grad_lse, dq, dk, dv),
        lambda: _ready_backward(
            q, k, v, out, numbers, (dq, dk, dv), grad_lse is not None, learned, Shape.of(q, k, v), asked
        ),
    )
    run(grad, grad_lse, q, k, v, numbers, out, lse, reach, *gradients, documents)


def gradients_of(
    q: Tensor, k: Tensor, v: Tensor, numbers: Tensor | None, learned: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Memory for the results of ``backward``."""
    dnumbers = numbers.new_empty(numbers.shape) if learned and numbers is not None else q.new_empty(0)
    dq, dk, dv = (laid_out_as(x, x.shape[1], x.shape[3]) for x in (q, k, v))
    return dq, dk, dv, dnumbers


def _ready_backward(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, numbers: Tensor | None, gradients: tuple[Tensor, Tensor, Tensor],
    has_grad_lse: bool, learned: bool, shape: Shape, asked: Settings,
) -> Callable[..., None]:  # fmt: skip
    """The function that computes gradients with tensors of these shapes and strides."""
    dq, dk, dv = gradients
    precise = learned and q.dtype != torch.float32  # see backward.py
    unit, steps = _steps(out)
    deltas = Launch(
        row_deltas,
        (shape.batch * shape.heads * -(-shape.queries // DELTA_ROWS), 1, 1),
        [*steps, shape.heads, shape.queries],
        (unit, shape.value_dim, shape.padded[1], DELTA_ROWS, precise, has_grad_lse),
        warps=4,
    )
    by_keys = _over_tiles("keys", (q, k, v, out, dk, dv), numbers, shape, asked, (precise, shape.groups))
    by_queries = _over_tiles("queries", (q, k, v, out, dq), numbers, shape, asked, (precise, learned))

    def run(
        grad: Tensor, grad_lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, numbers: Tensor | None,
        out: Tensor, lse: Tensor, reach: Tensor, dq: Tensor, dk: Tensor, dv: Tensor, dnumbers: Tensor,
        documents: Documents,
    ) -> None:  # fmt: skip
        delta = lse.new_empty(3 if precise else 2, *lse.shape)
        deltas(grad, out, lse, lse if grad_lse is None else grad_lse, delta)
        numbers, reach = lse if numbers is None else numbers, reach if asked.skips else lse
        of_tokens = _or(documents, lse)
        by_keys(q, k, v, grad, delta, numbers, reach, dk, dv, *of_tokens)
        by_queries(q, k, v, grad, delta, numbers, reach, dq, dnumbers if learned else lse, *of_tokens)

    return run
