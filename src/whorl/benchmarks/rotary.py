"""The rotation against a copy of the same bytes, which nothing that reads and writes them can beat.

On the CPU a copy into memory that is in use and one into fresh pages differ several times, so that each is compared
with its own: into given memory with ``copy_``, out of place with ``clone``. On a GPU: forward, backward, and a
decoding step, replayed in a graph and called from Python. With ``rotary_dim`` only some dimensions turn, the first or
the last; the others are copied, and left alone in place.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from whorl import Rope, rotate, rotate_qk
from whorl.benchmarks.judging import device_of, drawn, dtypes_of, judged, not_judged
from whorl.benchmarks.rotary_peers import Both, peers
from whorl.benchmarks.runner import Case, Group
from whorl.errors import dtype_name, invalid
from whorl.rotary.rotation import Layout, Order

# Rounding the result once, and little more.
LIMIT = {torch.float32: 1e-7, torch.bfloat16: 1.7e-3, torch.float16: 2.2e-4}

# A peer rounds its tables to the dtype of the input, and is timed all the same.
PEER_LIMIT = {torch.float32: 1e-3, torch.bfloat16: 2e-2, torch.float16: 2e-3}

# Ratios to reach: 96 % of the speed of a copy on a GPU, 93 % where only some dimensions turn, 1.3 times copy_ and 1.4
# times clone on the CPU.
GPU_BAR, PARTIAL_BAR, INTO_BAR, OUT_BAR = 1 / 0.96, 1 / 0.93, 1.3, 1.4

GRAPH_CALLS = 100  # in the graph that is replayed
DECODED = 128  # rows of a batch, each at one token


def rotary(
    *,
    device: str = "auto",
    dtype: str = "all",
    batch: int = 1,
    length: int = 4096,
    heads: int = 32,
    kv_heads: int = 8,
    head_dim: int = 128,
    rotary_dim: int = 0,
    start: int = 0,
) -> tuple[Group, ...]:
    """The groups to time; ``rotary_dim`` 0 stands for the whole head, ``start`` is the first dimension that turns."""
    where = device_of("bench rotary", device)
    if (rotary_dim or start) and where == "cpu":
        raise invalid("bench rotary", "rotary_dim", "0 on the CPU", rotary_dim, "Partial rotation is timed on a GPU.")
    rope = Rope(head_dim=head_dim, rotary_dim=rotary_dim or head_dim, slice=start)  # raises where it does not fit
    groups: list[Group] = []
    for kind in dtypes_of("bench rotary", dtype):
        if where == "cpu":
            groups += _on_cpu(kind, batch, length, heads, head_dim)
            continue
        groups += _turned(kind, rope, batch, length, heads, kv_heads)
        if rope.config.rotary_dim == head_dim:
            groups += _decoding(kind, heads, kv_heads, head_dim)
    return tuple(groups)


def _on_cpu(dtype: torch.dtype, batch: int, length: int, heads: int, head_dim: int) -> list[Group]:
    cos, sin = Rope(head_dim=head_dim).tables(torch.arange(length))
    (contiguous,) = drawn((batch, heads, length, head_dim), dtype, "cpu", count=1)
    strided = contiguous.transpose(1, 2).contiguous().transpose(1, 2)
    moves, name = 2 * contiguous.nbytes, dtype_name(dtype)
    into = [Case(name="copy_", run=_copy(contiguous), check=not_judged, moves=moves)]
    out = [Case(name="clone", run=contiguous.clone, check=not_judged, moves=moves)]
    for what, x in (("contiguous", contiguous), ("strided", strided)):
        room = torch.empty_like(x)
        for layout in ("half", "interleaved"):
            truth = _truth(x, cos, sin, layout)
            for cases, run, bar in (
                (into, partial(rotate, x, cos, sin, layout, out=room), INTO_BAR),
                (out, partial(rotate, x, cos, sin, layout), OUT_BAR),
            ):
                check = judged(run, truth, LIMIT[dtype])
                cases.append(Case(name=f"whorl, {layout}, {what}", run=run, check=check, bar=bar, moves=moves))
    (small,), tables = drawn((batch, heads, 1, head_dim), dtype, "cpu", count=1), (cos[:1], sin[:1])
    run = partial(rotate, small, *tables)
    token = [
        Case(name="clone", run=small.clone, check=not_judged),
        Case(name="whorl", run=run, check=judged(run, _truth(small, *tables, "half"), LIMIT[dtype])),
        *_peers(small, small[:, :1], *tables, None),
    ]
    out += _peers(contiguous, contiguous[:, :1], cos, sin, moves)
    shape = f"{tuple(contiguous.shape)}, {name}"
    return [
        Group(name=f"into given memory, {name}", summary=shape, cases=tuple(into)),
        Group(name=f"out of place, {name}", summary=f"{shape}; peers also turn one head of keys", cases=tuple(out)),
        Group(name=f"one token, {name}", summary=f"{tuple(small.shape)}, {name}", cases=tuple(token)),
    ]


def _turned(dtype: torch.dtype, rope: Rope, batch: int, length: int, heads: int, kv_heads: int) -> list[Group]:
    """Both orders, forward and backward, on a GPU; peers beside a whole head, in place beside a part of one."""
    head_dim, start, dims = rope.config.head_dim, rope.config.start, 2 * rope.config.pairs
    cos, sin = rope.tables(torch.arange(length, device="cuda"))
    groups, name, whole = [], dtype_name(dtype), dims == head_dim
    shape = f"({batch}, {length}, {heads}/{kv_heads}, {head_dim})"
    if not whole:
        shape += f", {dims} dimensions turned from {start} on"
    for order in ("bhld", "blhd"):
        q, k = (drawn((batch, length, count, head_dim), dtype, "cuda", count=1)[0] for count in (heads, kv_heads))
        if order == "bhld":
            q, k = (x.transpose(1, 2).contiguous() for x in (q, k))
        moves = 2 * (q.nbytes + k.nbytes)
        copy = Case(name="copy", run=_copy(q, k), check=not_judged, moves=moves)
        forward, backward = [copy], [copy]
        for layout in ("half", "interleaved"):
            for cases, run, turned in (
                (forward, partial(rotate_qk, q, k, cos, sin, layout, order=order, start=start), sin),
                (backward, _gradient(q, k, cos, sin, layout, order, start), -sin),
            ):
                check = judged(run, _truth(q, cos, turned, layout, order, start), LIMIT[dtype], part=0)
                bar = GPU_BAR if whole else PARTIAL_BAR
                cases.append(Case(name=f"whorl, {layout}", run=run, check=check, bar=bar, moves=moves))
            if not whole:
                forward.append(_in_place(q, cos, sin, layout, order, start))
        if order == "bhld" and whole:
            forward += _peers(q, k, cos, sin, moves)
        summary = f"{shape} in order {order}, {name}"
        groups.append(Group(name=f"forward, {order}, {name}", summary=summary, cases=tuple(forward), device="cuda"))
        groups.append(Group(name=f"backward, {order}, {name}", summary=summary, cases=tuple(backward), device="cuda"))
    return groups


def _in_place(x: Tensor, cos: Tensor, sin: Tensor, layout: Layout, order: Order, start: int) -> Case:
    """Queries alone, turned where they are, over and over: only the dimensions that turn are read and written."""

    def turned(room: Tensor) -> Tensor:
        return rotate(room, cos, sin, layout, start=start, order=order, out=room)

    return Case(
        name=f"whorl, {layout}, q in place",
        run=partial(turned, x.clone()),
        check=judged(lambda: turned(x.clone()), _truth(x, cos, sin, layout, order, start), LIMIT[x.dtype]),
        moves=2 * x[..., : 2 * cos.shape[-1]].nbytes,
    )


def _decoding(dtype: torch.dtype, heads: int, kv_heads: int, head_dim: int) -> list[Group]:
    q, k = (drawn((DECODED, count, 1, head_dim), dtype, "cuda", count=1)[0] for count in (heads, kv_heads))
    cos, sin = Rope(head_dim=head_dim).tables(torch.arange(DECODED, device="cuda")[:, None])
    run, name = partial(rotate_qk, q, k, cos, sin, "half", order="bhld"), dtype_name(dtype)
    cases = [
        Case(name="copy", run=_copy(q, k), check=not_judged),
        Case(name="whorl", run=run, check=judged(run, _truth(q, cos, sin, "half"), LIMIT[dtype], part=0)),
        *_peers(q, k, cos, sin, None),
    ]
    shape = f"({DECODED}, 1, {heads}/{kv_heads}, {head_dim}), {name}"
    replayed = tuple(dataclasses.replace(case, run=_graph(case.run)) for case in cases)
    many = f"{GRAPH_CALLS} calls replayed, {shape}"
    return [
        Group(name=f"decoding, in a graph, {name}", summary=many, cases=replayed, device="cuda"),
        Group(name=f"decoding, called, {name}", summary=shape, cases=tuple(cases), device="cuda", host=True),
    ]


def _graph(work: Callable[[], object]) -> Callable[[], None]:
    """Replays a graph of many calls, captured at the first call."""
    captured: list[torch.cuda.CUDAGraph] = []

    def run() -> None:
        if not captured:
            work()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for _ in range(GRAPH_CALLS):
                    work()
            captured.append(graph)
        captured[0].replay()

    return run


def _gradient(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, layout: Layout, order: Order, start: int) -> Both:
    """The backward pass alone, of a forward pass done once; the gradients that come in are q and k themselves."""
    inputs = q.clone().requires_grad_(), k.clone().requires_grad_()
    made = rotate_qk(*inputs, cos, sin, layout, order=order, start=start)

    def run() -> tuple[Tensor, Tensor]:
        back = torch.autograd.grad(made, inputs, (q, k), retain_graph=True)
        return back[0], back[1]

    return run


def _copy(*tensors: Tensor) -> Callable[[], Tensor]:
    x = tensors[0] if len(tensors) == 1 else torch.cat([each.flatten() for each in tensors])
    return partial(torch.empty_like(x).copy_, x)


def _truth(
    x: Tensor, cos: Tensor, sin: Tensor, layout: Layout, order: Order = "bhld", start: int = 0
) -> Callable[[], Tensor]:
    return lambda: rotate(x.double(), cos.double(), sin.double(), layout, order=order, start=start, impl="torch")


def _peers(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, moves: int | None) -> list[Case]:
    cases = []
    for name, peer in peers(q, k, cos, sin).items():
        check = judged(peer.afresh or peer.run, _truth(q, cos, sin, peer.layout), PEER_LIMIT[q.dtype], part=0)
        cases.append(Case(name=name, run=peer.run, check=check, moves=moves, peer=True))
    return cases
