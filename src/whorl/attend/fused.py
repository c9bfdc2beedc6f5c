"""torch's own attention kernel: what it is given, and which of its backends may run.

On a CUDA device the backend that torch likes best plans anew for every shape it meets, which takes 60 ms and more. A
decoding step has a new number of keys every time, so there that backend is left out.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import pad, scaled_dot_product_attention

from whorl.attend.blocks import Keys, blocks_alike, in_blocks, rows_of_mask, rows_of_window, seen, taken
from whorl.attend.call import Call
from whorl.attend.reference import repeat_heads
from whorl.attend.visibility import closed_keys
from whorl.kernels.ops import no_second_gradient
from whorl.tracing import is_symbol, making_graph, values_are_hidden

# Backends that take any number of keys without planning, the fastest first.
UNPLANNED = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]

# Rows of queries that heads which share keys may have together: one tile of the kernel.
MOST_ROWS = 64

HALF = (torch.bfloat16, torch.float16)


def fused(call: Call, *, folded: bool) -> Tensor:
    """Attention by torch's kernel on placed queries and keys, a separable bias being further dimensions of them."""
    (q, k), v = call.placed_qk(), call.v
    if folded:
        extra_q, extra_k = call.encoding.fold(call.q_positions, call.k_positions, q.dtype, call.scale)
        # in front of the content: summed first, the large terms of the bias cancel before anything small is added
        q = torch.cat((_like(extra_q, q), q), dim=-1)
        k = torch.cat((_like(extra_k, k), k), dim=-1)
    width = v.shape[-1]
    if q.device.type == "cpu":
        q, k, v = same_width(q, k, v)
    rows = rows_of_window(call)
    if rows is not None:
        return _in_windows(call, q, k, v, rows)[..., :width]
    if call.visible.only_causal:
        return _attend(call, q, k, v, None, causal=True)[..., :width]
    if not is_symbol(q.shape[2]) and not is_symbol(k.shape[2]) and rows_of_mask(call) < q.shape[2]:
        return torch.cat(in_blocks(call, _masked_rows, q, k, v, rows=rows_of_mask(call)), dim=2)[..., :width]
    return _attend(call, q, k, v, call.visible.rows())[..., :width]


def _masked_rows(call: Call, q: Tensor, k: Tensor, v: Tensor, start: int, stop: int) -> Tensor:
    """Queries [start, stop) among all keys: blocks are of one shape, for which kernels plan once."""
    return _attend(call, q[:, :, start:stop], k, v, call.visible.rows(start, stop), step=False)


def _in_windows(call: Call, q: Tensor, k: Tensor, v: Tensor, rows: int) -> Tensor:
    """Blocks of queries, each with the keys it can see alone.

    Neighbours that see as many keys are one batch. The last block takes some queries of the one before it, so that
    few shapes are planned.
    """
    outs, queries, done = [], q.shape[2], 0
    while done < queries:
        start = max(0, min(done, queries - rows))
        count = blocks_alike(call, start, rows)
        allowed, keys = seen(call, start, min(start + rows, queries))
        here = (slice(start, min(start + rows, queries)),)
        blocks = (_blocks(x, runs, rows, count) for x, runs in ((q, here), (k, keys), (v, keys)))
        out = _attend(call, *blocks, allowed, step=False)
        if count > 1:
            out = out.unflatten(0, (-1, count)).transpose(1, 2).flatten(2, 3)
        outs.append(out[:, :, done - start :])
        done = start + count * rows
    return torch.cat(outs, dim=2)


def _blocks(x: Tensor, runs: Keys, rows: int, count: int) -> Tensor:
    """The runs of x and those of the next blocks, ``rows`` further each, (batch * count, heads, tokens, dim).

    All but the last run are the same for every block.
    """
    if count == 1:
        return taken(x, runs)
    *fixed, last = runs
    moving = x[:, :, last.start : last.stop + (count - 1) * rows].unfold(2, last.stop - last.start, rows)
    parts = [moving.permute(0, 2, 1, 4, 3)]
    parts[:0] = [x[:, None, :, run].expand(-1, count, -1, -1, -1) for run in fixed]
    return (parts[0] if len(parts) == 1 else torch.cat(parts, dim=3)).flatten(0, 1)


def _attend(
    call: Call, q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None, *, causal: bool = False, step: bool = True
) -> Tensor:
    """``step`` is False for a shape that comes again, and is worth a plan."""
    closed, sees = (None, None) if allowed is None else closed_keys(allowed)
    mask = None if closed is None else ~closed
    cuda, grouped = q.device.type == "cuda", False
    if k.shape[1] != q.shape[1]:  # asked and not computed: torch's kernel takes a bool, and no symbol of a graph
        grouped = cuda
    if not cuda or q.shape[2] == k.shape[2]:
        step = False
    flash = step and mask is None and q.dtype in HALF and q.shape[-1] == v.shape[-1]
    # a graph on the CPU serves every number of queries
    together = (grouped and step and not flash if cuda else not making_graph()) and rows_are_few(q, k)
    if step:
        grouped = grouped and flash
    with sdpa_kernel(UNPLANNED) if step else nullcontext():
        out = torch_kernel(call, q, k, v, mask, together=together, grouped=grouped, causal=causal)
    return out if sees is None else out * sees


def torch_kernel(
    call: Call,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    *,
    together: bool,
    grouped: bool = False,
    causal: bool = False,
) -> Tensor:
    """torch's kernel with a mask or bias.

    Heads that share keys are rows of one where ``together`` says so, left to the kernel where ``grouped`` does: no
    backend but the first has groups. Elsewhere keys and values are repeated.
    """
    _, heads, queries, _ = q.shape
    if together:
        q, mask = _as_rows(q, k.shape[1]), None if mask is None else _mask_as_rows(mask, heads, k.shape[1], queries)
    elif not grouped:
        k, v = repeat_heads(k, heads), repeat_heads(v, heads)
    q = one_after_another(q)
    q, k, v = once_differentiable(q, k, v)
    out = scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=causal, dropout_p=call.dropout, scale=call.scale, enable_gqa=grouped
    )
    return out.unflatten(2, (heads // k.shape[1], queries)).flatten(1, 2) if together else out


def one_after_another(q: Tensor) -> Tensor:
    """Queries as torch's kernel on the CPU reads them, copied where another axis than the last has a stride of 1 too.

    It orders the axes of its output by the strides of queries and writes as if dimensions came last. Two strides of 1,
    where elements share memory, leave the order open; keys and values may share memory in any way.
    """
    *others, last = q.stride()
    return q.contiguous() if last == 1 and 1 in others else q


def rows_are_few(q: Tensor, k: Tensor) -> bool:
    """Whether the queries of heads that share keys fit one tile of a kernel, and keys need not be repeated for them."""
    heads, queries, shared, keys = q.shape[1], q.shape[2], k.shape[1], k.shape[2]
    return heads != shared and queries != keys and queries * heads // shared <= MOST_ROWS


def _as_rows(x: Tensor, shared: int) -> Tensor:
    """(batch, heads, queries, n) as (batch, shared, heads / shared * queries, n)."""
    return x.unflatten(1, (shared, -1)).flatten(2, 3)


def _mask_as_rows(mask: Tensor, heads: int, shared: int, queries: int) -> Tensor:
    """A mask or bias of (batch, heads or 1, queries or 1, keys) for what ``_as_rows`` puts together.

    Of one row of a batch for all, the batch may be left out.
    """
    if mask.ndim == 3:
        mask = mask[None]
    by_head = mask.ndim == 4 and mask.shape[1] == heads
    if mask.shape[-2] == 1 and not by_head:
        return mask  # the same for every row
    mask = mask.expand(*mask.shape[:-2], queries, -1)
    return _as_rows(mask, shared) if by_head else torch.cat([mask] * (heads // shared), dim=-2)


def once_differentiable(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The tensors, whose gradients refuse to be differentiated again: torch's fused kernels cannot be."""
    if not torch.is_grad_enabled() or values_are_hidden():  # torch.func takes no hooks; ``choose_path`` has seen it
        return q, k, v
    return _once(q), _once(k), _once(v)


def _once(x: Tensor) -> Tensor:
    if not x.requires_grad:
        return x
    view = x.view_as(x)  # of our own, so that no hook stays with a tensor of the caller
    view.register_hook(_refuse_a_second)
    return view


def _refuse_a_second(gradient: Tensor) -> Tensor | None:
    if not torch.is_grad_enabled():  # nobody keeps a graph of the gradient
        return None
    made = _OnlyOnce.apply(gradient)
    assert isinstance(made, Tensor)
    return made


class _OnlyOnce(torch.autograd.Function):
    """A gradient as it is, which cannot be differentiated."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.view_as(gradient)

    backward = staticmethod(no_second_gradient("attention"))


def same_width(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Padded with zeros to one size, which the CPU's fused kernel takes for all three."""
    room = max(q.shape[-1], v.shape[-1])
    q, k, v = (t if t.shape[-1] == room else pad(t, (0, room - t.shape[-1])) for t in (q, k, v))
    return q, k, v


def _like(extra: Tensor, x: Tensor) -> Tensor:
    """Further dimensions in x's dtype, for every batch row and head of x."""
    return extra.to(x.dtype).expand(*x.shape[:-1], extra.shape[-1])
