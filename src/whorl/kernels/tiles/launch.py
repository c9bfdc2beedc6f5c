"""Launches of the attention kernels: sizes, strides and constants of a call, and the memory of its results."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from whorl.kernels.tiles import sizes
from whorl.kernels.tiles.backward import grad_keys, grad_queries, row_deltas
from whorl.kernels.tiles.biases import line
from whorl.kernels.tiles.forward import attend
from whorl.kernels.tiles.op import Settings
from whorl.kernels.triton_launch import Launch, power_of_2
from whorl.kernels.triton_side_by_side import Launched, run_all
from whorl.plans import plan_of

LOG2E = math.log2(math.e)

# Those that walk over tiles; the names are those of ``sizes``.
KERNELS = {"forward": attend, "keys": grad_keys, "queries": grad_queries}

# Queries whose deltas one program computes.
DELTA_ROWS = 64


@dataclass(frozen=True)
class Case:
    """All that a kernel is compiled for: one that differs in a field is compiled anew."""

    dim: int
    value_dim: int
    padded: int  # dimensions as many as a matrix product takes
    value_padded: int
    rows: int  # queries of a tile
    keys: int
    groups: int  # heads that share keys
    kind: str  # of the bias
    ends: bool  # whether tiles beyond the end of a table have one number
    causal: bool
    window: bool
    documents: bool
    placed: bool  # at given positions
    capped: bool
    drops: bool
    skips: bool  # keys that ALiBi's line makes too light to count
    margin: float = line.MARGIN
    chunk: int = line.CHUNK
    ordered: bool = False
    goes_on: bool = False  # from other keys
    learned: bool = False
    precise: bool = False  # see backward.py


class Given(NamedTuple):
    """Tensors beside queries, keys and values; see ``tiles_attention``."""

    numbers: Tensor | None = None
    order: Tensor | None = None
    q_tokens: Tensor | None = None
    k_tokens: Tensor | None = None
    seed: Tensor | None = None

    def read(self) -> Given:
        """As kernels read them, heads one after another."""
        if self.numbers is None or self.numbers.is_contiguous():
            return self
        return self._replace(numbers=self.numbers.contiguous())


def skips(asked: Settings) -> bool:
    """Whether far keys can be too light to count; below a cap none is, and documents end before."""
    counted = asked.causal and not asked.documents and not asked.positions
    return asked.kind == "line" and counted and not asked.cap


def laid_out_as(x: Tensor, heads: int, dim: int) -> Tensor:
    """Memory for (batch, heads, length, dim), in which the heads of a token lie together where they do in x."""
    batch, _, length, _ = x.shape
    if x.stride(1) < x.stride(2):
        return x.new_empty(batch, length, heads, dim).transpose(1, 2)
    return x.new_empty(batch, heads, length, dim)


def results_of(q: Tensor, k: Tensor, v: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Memory for the results of ``forward``."""
    lse = q.new_empty(q.shape[:3], dtype=torch.float32)
    reach = q.new_empty(q.shape[:2] if skips(Settings(*others[5:])) else (0,), dtype=torch.int32)
    return laid_out_as(q, q.shape[1], v.shape[3]), lse, reach


def forward(q: Tensor, k: Tensor, v: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor]:
    """The output, the log-sum-exp of each query, and by head how far keys count where ALiBi's line hides the others."""
    results = results_of(q, k, v, *others)
    if results[2].numel():
        results[2].zero_()
    if results[0].numel():
        run_all(kernels_of_results(results, q, k, v, Given(*others[:5]), Settings(*others[5:])))
    return results


def kernels_of_results(
    results: tuple[Tensor, ...], q: Tensor, k: Tensor, v: Tensor, given: Given, asked: Settings,
    earlier: tuple[Tensor, ...] = (),
) -> list[Launched]:  # fmt: skip
    """The kernels that write the results; ``earlier`` is the output, contiguous in float32, and log-sum-exp that the
    last queries have of other keys.
    """
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    (out, lse, reach), given, more = results, given.read(), earlier[1].shape[2] if earlier else 0
    kernels, norms = [], lse
    if skips(asked):
        norms = lse.new_empty(*k.shape[:2], -(-k.shape[2] // line.CHUNK))
        counts = [k.stride()[:3], *k.shape[1:3], norms.shape[2]]
        longest = _small(line.longest_keys, norms.numel(), (k,), counts, (64, line.CHUNK, k.shape[3], padded(k)))
        kernels.append(Launched(longest, (k, norms)))
    facts = {"ordered": given.order is not None, "goes_on": more > 0, "margin": line.MARGIN}
    launch = _over_tiles("forward", (q, k, v, out), given.numbers, asked, more, **facts)
    # what a kernel does not read stands for nothing
    others = [lse if each is None else each for each in given]
    return [*kernels, Launched(launch, (q, k, v, out, lse, *others, norms, reach, *(earlier or (lse, lse))))]


def padded(x: Tensor) -> int:
    """Dimensions as many as a matrix product takes."""
    return max(16, power_of_2(x.shape[3]))


def _small(kernel: Any, programs: int, tensors: tuple[Tensor, ...], numbers: list[Any], constants: Any) -> Any:
    """A kernel that walks over no tiles, for tensors of these strides."""
    return plan_of((kernel, *constants), tensors, lambda: Launch(kernel, (programs, 1, 1), numbers, constants, warps=4))


def _over_tiles(
    name: str, tensors: tuple[Tensor, ...], numbers: Tensor | None, asked: Settings, *more: int, **facts: Any
) -> Any:
    """A kernel that walks over tiles, for tensors of these strides, queries, keys and values first.

    It has further numbers and facts that are its own.
    """
    key = name, asked, more, *facts.values()
    return plan_of(key, (*tensors, numbers), lambda: _ready(name, tensors, numbers, asked, more, facts))


def _ready(
    name: str, tensors: tuple[Tensor, ...], numbers: Tensor | None, asked: Settings, more: tuple[int, ...],
    facts: dict[str, Any],
) -> Launch:  # fmt: skip
    q, k, v = tensors[:3]
    (batch, heads, queries, dim), (_, key_heads, keys, value_dim) = q.shape, (*k.shape[:3], v.shape[3])
    count, lowest = 0 if numbers is None else numbers.shape[1], asked.lowest
    # where a table ends; the last token; or where queries of a broken line begin, see ``biases``
    highest = {"table": lowest + count - 1, "broken": keys - queries}.get(asked.kind, keys - 1)
    most = "short table" if asked.kind == "table" and 2 * (lowest + count) < keys else asked.kind
    tile = sizes.tile_of(name, most, queries, (padded(q), padded(v)), q.dtype, q.device)
    case = Case(
        dim=dim, value_dim=value_dim, padded=padded(q), value_padded=padded(v), rows=tile.rows, keys=tile.keys,
        groups=heads // key_heads, kind=asked.kind, ends=asked.kind == "table" and not asked.positions,
        causal=asked.causal, window=asked.before >= 0, documents=asked.documents, placed=asked.positions,
        capped=bool(asked.cap), drops=bool(asked.dropout), skips=skips(asked), **facts,
    )  # fmt: skip
    programs = key_heads * -(-keys // tile.keys) if name == "keys" else heads * -(-queries // tile.rows)
    counts = [batch, heads, queries, keys, max(asked.before, 0), asked.first, count, lowest, highest]
    scales = [asked.scale * LOG2E, asked.cap * LOG2E, asked.dropout]
    return Launch(
        KERNELS[name],
        (batch * programs, 1, 1),
        [*(x.stride()[:3] for x in tensors), *counts, *scales, *more],
        (case,),
        warps=tile.warps,
        stages=tile.stages,
    )


def gradients_of(grad: Tensor, grad_lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, *others: Any) -> Any:
    """Memory for the results of ``backward``; those of numbers are empty where they are not learned."""
    numbers = others[0] if others[8][3] else q.new_empty(0)
    return *(laid_out_as(x, x.shape[1], x.shape[3]) for x in (q, k, v)), numbers.new_empty(numbers.shape)


def backward(
    grad: Tensor, grad_lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, *others: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of queries, keys, values and of the numbers of the bias."""
    gradients, results = gradients_of(grad, grad_lse, q, k, v, *others), others[5:8]
    if gradients[3].numel():
        gradients[3].zero_()
    if results[0].numel():
        given, asked, learned = Given(*others[:5]), Settings(*others[9:]), others[8][3]
        run_all(kernels_of_gradients(gradients, grad, grad_lse, q, k, v, given, results, asked, learned))
    else:
        for each in gradients:
            each.zero_()
    return gradients


def kernels_of_gradients(
    gradients: tuple[Tensor, ...], grad: Tensor, grad_lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor,
    given: Given, results: tuple[Tensor, ...], asked: Settings, learned: bool = False,
) -> list[Launched]:  # fmt: skip
    """The kernels that write the gradients. The output and log-sum-exp may be those of more keys than are given."""
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    out, given = results[0], given.read()
    if grad.stride() != out.stride():
        grad = torch.empty_like(out).copy_(grad)  # their rows are read side by side
    dq, dk, dv, dnumbers = gradients
    (batch, heads, queries, _), (out, lse, reach) = q.shape, results
    precise = learned and asked.kind != "gate" and q.dtype != torch.float32
    delta = lse.new_empty(3 if precise else 2, *lse.shape)
    constants = DELTA_ROWS, v.shape[3], padded(v), precise, grad_lse is not None
    programs = batch * heads * -(-queries // DELTA_ROWS)
    deltas = _small(row_deltas, programs, (out,), [out.stride()[:3], heads, queries], constants)
    d_lse = lse if grad_lse is None else grad_lse.contiguous()
    numbers, _, *others = [lse if each is None else each for each in given]
    shared, facts = (q, k, v, grad, delta, numbers, *others, reach), {"learned": learned, "precise": precise}
    by_keys = _over_tiles("keys", (q, k, v, out, dk, dv), given.numbers, asked, **facts)
    by_queries = _over_tiles("queries", (q, k, v, out, dq), given.numbers, asked, **facts)
    return [
        Launched(deltas, (grad, out, lse, d_lse, delta)),
        Launched(by_keys, (*shared, dk, dv, dnumbers)),
        Launched(by_queries, (*shared, dq, dnumbers)),  # after the keys: it adds to what they have written
    ]
