"""Causal linear attention in Triton: the forward and the backward pass, stage by stage.

    out_i = sum_(j <= i) (a_i . b_j) v_j / (sum_(j <= i) p_i . r_j + eps)      a = R p, b = R r, p = f(q), r = f(k)

Features are rotated and written once, queries already divided by their denominators; every product reads them. States
of dim x value dim numbers hold all rows before a chunk, and rows of one chunk see each other by masked products. The
backward pass writes features and states again, which need too much memory to be kept; denominators and running sums of
keys are.

Products do not change when the dimensions of queries and keys are permuted alike, so a head is two halves here: the
first and the second dimension of every pair that turns. Dimensions that do not turn are paired up behind them with
cos 1 and sin 0. A layout is nothing but where the two halves lie in memory.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from whorl.kernels.linear.features import add_keys, write_features
from whorl.kernels.linear.gradients import write_grad_keys, write_grad_queries, write_grad_rows
from whorl.kernels.linear.sizes import BLOCK, CHUNK, WALKS, is_wide, slot_of, tile_of
from whorl.kernels.linear.states import write_states
from whorl.kernels.linear.sums import write_sums
from whorl.kernels.linear_triton import Shape, TurningPairs, mask_arguments, running_sums, table_arguments
from whorl.kernels.triton_side_by_side import Start, run_all


class Pass:
    """One pass over queries, keys and values: their sizes, and every stage as a method that adds its kernels."""

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        turning: TurningPairs,
        key_mask: Tensor | None,
        feature: str,
        denominator: str,
        eps: float,
    ) -> None:
        self.q, self.k, self.turning, self.key_mask = q, k, turning, key_mask
        # hidden values are never read, not even to be multiplied by 0: they may be NaN
        self.v = v if key_mask is None else torch.where(key_mask[:, None, :, None], v, 0)
        self.feature, self.denominator, self.eps = feature, denominator, eps
        self.shape = shape = Shape.of(q, k, v)
        self.wide = is_wide(q.dtype)
        self.groups = shape.heads // max(shape.key_heads, 1)
        self.dtype = torch.float32 if self.wide else torch.bfloat16
        self.chunk, self.slot = CHUNK[self.wide], slot_of(self.wide)
        self.chunks, self.slots = (-(-shape.length // rows) for rows in (self.chunk, self.slot))
        self.dim = 2 * shape.half
        self.cos, self.sin, self.stride_t = table_arguments(turning)
        self.mask, self.stride_m = mask_arguments(key_mask)
        pairs = 0 if turning.cos is None else turning.cos.shape[-1]
        neighbours = turning.interleaved and shape.dim == 2 * pairs == self.dim
        self.head = (shape.dim, shape.half, pairs, turning.start, turning.blocks, turning.interleaved, neighbours)
        self.of_values = {"VALUE_DIM": shape.value_dim, "BLOCK_V": shape.block_v}
        self.of_products = {
            "DOT": tl.float32 if self.wide else tl.bfloat16,
            "PRECISION": "tf32x3" if self.wide else "tf32",
        }
        self.of_features = {"HEAD": self.head, "FEATURE": feature}
        self.of_denominators = {"DENOMINATOR": denominator, **self.of_features}
        self.begin = None if key_mask is None else first_seen(key_mask)
        self.has_mask = {"HAS_MASK": key_mask is not None}
        self.kernels: list[Start] = []

    def over_rows(self, kernel: Any, name: str, heads: int, *given: Any, **constants: Any) -> None:
        """Adds a kernel over tiles of all rows of all heads."""
        tile = tile_of(name, self.wide)
        heads_in_all = self.shape.batch * heads
        programs = heads_in_all * -(-self.shape.length // tile.rows)
        options = {"num_warps": tile.warps, "num_stages": tile.stages, "maxnreg": tile.registers}
        self.kernels.append(Start(kernel, programs, *given, **constants, **options, ROWS=tile.rows))

    def run(self) -> None:
        """Runs what was added, and lets go of its memory."""
        run_all(self.kernels)
        self.kernels.clear()

    def memory(self, *sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(*sizes, dtype=dtype, device=self.q.device)

    def add_keys(self, sums: Tensor) -> None:
        """Writes running sums of plain keys, or of rotated ones where weights are their own denominator, by slot."""
        shape = self.shape
        if self.denominator != "norm":
            self.over_rows(
                *(add_keys, "key_sums", shape.key_heads),
                *(self.k, self.cos, self.sin, self.mask, sums, self.k.stride(), self.stride_t, self.stride_m),
                *(shape.batch * shape.key_heads, shape.key_heads, shape.length, self.slots),
                DOT=self.of_products["DOT"],
                **self.of_denominators,
                **self.has_mask,
            )
            self.kernels.append(running_sums(sums, reverse=False))

    def features(self, sums: Tensor, scale: Tensor, *, known: bool) -> tuple[Tensor, Tensor]:
        """Features of queries, times ``scale``, and of keys; writes ``scale`` unless it is known, or comes later."""
        shape, first = self.shape, "found" if self.denominator == "plain" else "later"
        a = self.memory(shape.batch, shape.heads, shape.length, self.dim, dtype=self.dtype)
        b = self.memory(shape.batch, shape.key_heads, shape.length, self.dim, dtype=self.dtype)
        self.over_rows(
            *(write_features, "features", shape.heads),
            *(self.q, self.k, self.cos, self.sin, self.mask, self.begin, sums, scale, a, b),
            *(self.q.stride(), self.k.stride(), self.stride_t, self.stride_m),
            *(shape.batch * shape.heads, shape.heads, self.groups, shape.length, self.slots, self.eps),
            SCALE="known" if known and self.denominator != "norm" else first,
            **self.of_features,
            **self.has_mask,
        )
        return a, b

    def states(self, x: Tensor, w: Tensor, *, reverse: bool) -> Tensor:
        """The sums of x^T w before every chunk, or after it, (batch * heads, chunks, dim, padded value dim)."""
        heads_in_all, heads, block_v = len(x) * x.shape[1], x.shape[1], self.shape.block_v
        tile, block = tile_of("states", self.wide), BLOCK[self.wide]
        dims, values = min(block.dims, self.dim), min(block.values, block_v)
        walks = heads_in_all * (self.dim // dims) * (block_v // values)
        # a length in two segments is walked along twice, which is as long as once in one
        cuts = min(WALKS // walks, self.chunks)
        segment = self.chunks if cuts < 3 else -(-self.chunks // cuts)
        segments = -(-self.chunks // segment)
        states = self.memory(heads_in_all, self.chunks, self.dim, block_v, dtype=self.dtype)
        sums = self.memory(heads_in_all, segments if segments > 1 else 0, self.dim * block_v)
        walk = partial(
            *(Start, write_states, walks * segments),
            *(x, w, sums, states, x.stride(), w.stride()),
            *(heads_in_all, heads, self.shape.length, self.chunks, segment, segments),
            REVERSE=reverse,
            DIM=self.dim,
            CHUNK=self.chunk,
            DIMS=dims,
            VALUES=values,
            **self.of_values,
            **self.of_products,
            ROWS=tile.rows,
            num_warps=tile.warps,
            num_stages=tile.stages,
        )
        if segments > 1:
            self.kernels += [walk(LAST=False), running_sums(sums, reverse=reverse)]
        self.kernels.append(walk(LAST=True))
        return states

    def sums(
        self, x: Tensor, y: Tensor, w: Tensor, states: Tensor, out: Tensor, *, reverse: bool,
        sums: Tensor | None = None, scale: Tensor | None = None,
    ) -> None:  # fmt: skip
        """Writes outputs, and what they are multiplied by where that comes with them; or gradients of values."""
        heads = self.shape.heads
        self.over_rows(
            *(write_sums, "outputs", heads),
            *(x, y, w, states, self.begin, sums, out, scale, x.stride(), y.stride(), w.stride()),
            *(self.shape.batch * heads, heads, heads // x.shape[1], heads // y.shape[1]),
            *(self.shape.length, self.chunks, self.slots, self.eps),
            DIVIDED="not" if scale is None else self.denominator,
            REVERSE=reverse,
            DIM=self.dim,
            CHUNK=self.chunk,
            SLOT=self.slot,
            **self.has_mask,
            **self.of_values,
            **self.of_products,
        )

    def grad_rows(self, grad: Tensor, out: Tensor, scale: Tensor, a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What takes the place of the outputs' gradient, c, and running sums of c s p from the last row on."""
        shape, norm = self.shape, self.denominator == "norm"
        c = self.memory(*scale.shape)
        sums = self.memory(shape.batch * shape.heads, self.slots, self.dim)
        placed = self.memory(*out.shape, dtype=self.dtype) if norm else grad
        self.over_rows(
            *(write_grad_rows, "grad_rows", shape.heads),
            *(grad, out, scale, self.q, a, c, sums, placed, grad.stride(), self.q.stride()),
            *(shape.batch * shape.heads, shape.heads, shape.length, self.slots),
            **self.of_denominators,
            **self.of_values,
        )
        if not norm:
            self.kernels.append(running_sums(sums, reverse=True))
        return placed, c, sums

    def grad_queries(self, b: Tensor, grad: Tensor, scale: Tensor, sums: Tensor, states: Tensor, dq: Tensor) -> None:
        """Writes the gradient of queries."""
        shape = self.shape
        self.over_rows(
            *(write_grad_queries, "grad_queries", shape.heads),
            *(self.q, self.k, b, self.v, self.cos, self.sin, self.mask, grad, scale, sums, states, dq),
            *(self.q.stride(), self.k.stride(), b.stride(), self.v.stride(), self.stride_t, self.stride_m),
            *(grad.stride(), shape.batch * shape.heads, shape.heads, self.groups, shape.length),
            *(self.chunks, self.slots, self.eps),
            CHUNK=self.chunk,
            SLOT=self.slot,
            **self.of_denominators,
            **self.has_mask,
            **self.of_values,
            **self.of_products,
        )

    def grad_keys(
        self, a: Tensor, grad: Tensor, scale: Tensor, c: Tensor, sums: Tensor, states: Tensor, dk: Tensor
    ) -> None:
        """Writes the gradient of keys by head."""
        shape = self.shape
        self.over_rows(
            *(write_grad_keys, "grad_keys", shape.heads),
            *(self.q, self.k, a, self.v, self.cos, self.sin, self.mask, grad, scale, c, sums, states, dk),
            *(self.q.stride(), self.k.stride(), a.stride(), self.v.stride(), self.stride_t, self.stride_m),
            *(grad.stride(), shape.batch * shape.heads, shape.heads, self.groups, shape.length),
            *(self.chunks, self.slots),
            CHUNK=self.chunk,
            SLOT=self.slot,
            **self.of_denominators,
            **self.has_mask,
            **self.of_values,
            **self.of_products,
        )


def forward(q: Tensor, k: Tensor, v: Tensor, *given: Any) -> tuple[Tensor, Tensor, Tensor]:
    """The output, what its sums were multiplied by (batch, heads, length), and running sums of keys by slot."""
    stage = Pass(q, k, v, *given)
    out, scale, sums = outputs_of(q, k, v, stage.denominator)
    if not out.numel():
        return out, scale, sums
    stage.add_keys(sums)
    a, b = stage.features(sums, scale, known=False)
    states = stage.states(b, stage.v, reverse=False)
    later = {} if stage.denominator == "plain" else {"sums": sums, "scale": scale}
    stage.sums(a, b, stage.v, states, out, reverse=False, **later)
    stage.run()
    return out, scale, sums


def backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, scale: Tensor, sums: Tensor, *given: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v."""
    dq, dk, dv = gradients_of(q, k, v)
    if not q.numel() or not v.numel():
        return dq.zero_(), dk.zero_(), dv.zero_()
    stage = Pass(q, k, v, *given)
    a, b = stage.features(sums, scale, known=True)
    grad, c, later_sums = stage.grad_rows(grad, out, scale, a)
    stage.grad_queries(b, grad, scale, sums, stage.states(b, stage.v, reverse=False), dq)
    stage.run()  # before memory is taken for the states after each chunk
    # heads that share a key head are added up afterwards: adding as they come would depend on their order
    by_head = [x if stage.groups == 1 else stage.memory(*q.shape[:3], x.shape[-1]) for x in (dk, dv)]
    states = stage.states(a, grad, reverse=True)
    stage.grad_keys(a, grad, scale, c, later_sums, states, by_head[0])
    stage.sums(b, a, grad, states, by_head[1], reverse=True)
    stage.run()
    if stage.groups > 1:
        for x, parts in zip((dk, dv), by_head, strict=True):
            x.copy_(parts.unflatten(1, (stage.shape.key_heads, stage.groups)).sum(2))
    return dq, dk, dv


def outputs_of(q: Tensor, k: Tensor, v: Tensor, denominator: str) -> tuple[Tensor, Tensor, Tensor]:
    """Memory for what ``forward`` returns."""
    shape = Shape.of(q, k, v)
    slots = 0 if denominator == "norm" else -(-shape.length // slot_of(is_wide(q.dtype)))
    out = torch.empty(*q.shape[:3], v.shape[3], dtype=v.dtype, device=v.device)
    scale = torch.empty(q.shape[:3], dtype=torch.float32, device=v.device)
    return out, scale, torch.empty(len(q) * k.shape[1], slots, 2 * shape.half, dtype=torch.float32, device=v.device)


def gradients_of(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Memory for what ``backward`` returns."""
    dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
    return dq, dk, dv


def first_seen(key_mask: Tensor) -> Tensor:
    """The first key of each row that may be seen, or the length where none may."""
    length = key_mask.shape[1]
    places = torch.arange(length, device=key_mask.device)
    return torch.where(key_mask, places, length).amin(1)
