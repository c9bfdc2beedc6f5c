"""Cost and error of rotary tables against the naive float32 ``outer -> cos, sin``.

The naive table multiplies positions and frequencies in float32, as frameworks do. Ours form angles in
float64 and must still cost about the same: at most 0.9 of it for contiguous positions and 1.5 for ids of
shape (batch, length) and for floating positions. On a GPU arithmetic is nearly free, and the measure is the
time of writing the two tables: at most twice that. Errors are against cosines in extended precision
(numpy's longdouble), from frequencies of its own, on a sample of rows, and near a far position too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from whorl import Rope, TableCache, use_table_cache
from whorl.benchmarks.judging import device_of, not_judged
from whorl.benchmarks.runner import Case, Check, Group
from whorl.errors import invalid
from whorl.rotary.tables import Tables

LIMIT = 4.0e-8  # rounding to float32 alone makes 3.0e-8
ROWS = 512  # rows compared with the reference

Build = Callable[[Tensor], Tables]


def tables(
    *,
    device: str = "auto",
    length: int = 131_072,
    head_dim: int = 128,
    base: float = 10_000.0,
    batch: int = 4,
    far: int = 16_777_216,
) -> tuple[Group, ...]:
    """The groups to time: tables of ``length`` positions, and what keeping them saves."""
    if length % batch:
        raise invalid("bench tables", "length", f"a multiple of batch={batch}", length)
    if far < length:
        raise invalid("bench tables", "far", f"at least length={length}", far)
    rope = Rope(head_dim=head_dim, base=base)
    if device_of("bench tables", device) == "cuda":
        return (_on_device(rope, length, batch, far),)
    return (
        _building(rope, length, batch, far),
        _keeping(rope, length, "cache, whole text"),
        _keeping(rope, 1, "cache, one token", at=length - 1),
    )


@dataclass(frozen=True)
class _Positions:
    """The positions of the tables: in order, shuffled, spread out and between integers, and the far end of each."""

    near: Tensor
    ids: Tensor
    wide: Tensor
    thirds: Tensor
    top: Tensor
    top_ids: Tensor


def _positions(length: int, batch: int, far: int, device: str = "cpu") -> _Positions:
    generator = torch.Generator().manual_seed(0)
    shape = (batch, length // batch)
    rows = min(length, ROWS)
    near, top = torch.arange(length), torch.arange(far - rows + 1, far + 1)
    ids, wide = (torch.randint(0, end, shape, generator=generator) for end in (length, far + 1))
    top_ids = top[torch.randperm(rows, generator=generator)].view(1, rows)
    return _Positions(*(x.to(device) for x in (near, ids, wide, near.double() / 3, top, top_ids)))


def _exact(rope: Rope, bytes_written: int | None) -> Callable[..., Case]:
    """Makes cases of our tables: a name, positions, far ones to be checked as well, and a bar."""

    def case(name: str, positions: Tensor, beyond: Tensor, bar: float | None = None) -> Case:
        check = partial(_judge, rope.tables, positions, beyond, rope, limit=LIMIT)
        return Case(name=name, run=partial(rope.tables, positions), check=check, bar=bar, moves=bytes_written)

    return case


def _on_device(rope: Rope, length: int, batch: int, far: int) -> Group:
    at = _positions(length, batch, far, "cuda")
    written = rope.tables(at.near)
    size = sum(table.nbytes for table in written)
    plain, exact = naive(*_size_and_base(rope), "cuda"), _exact(rope, size)
    plain_error = partial(_judge, plain, at.near, at.top, rope)

    def write() -> None:
        for table in written:
            table.fill_(1.0)

    return Group(
        name="tables",
        summary=f"cos and sin, {length:,} positions × {rope.config.pairs} pairs",
        device="cuda",
        cases=(
            Case(name="writing both tables", run=write, check=not_judged, moves=size),
            exact("exact, contiguous", at.near, at.top, 2.0),
            exact(f"exact, ids {tuple(at.ids.shape)}", at.ids, at.top_ids),
            exact(f"exact, ids {tuple(at.ids.shape)} to {far:,}", at.wide, at.top_ids),
            Case(name="naive float32", run=partial(plain, at.near), check=plain_error, moves=size),
        ),
    )


def _building(rope: Rope, length: int, batch: int, far: int) -> Group:
    plain, exact = naive(*_size_and_base(rope)), _exact(rope, None)
    framework = Rope.from_config(rope.config.replace(angles="float32"))
    at = _positions(length, batch, far)
    plain_error = partial(_judge, plain, at.near, at.top, rope)

    def same_as_naive() -> Check:
        ours, theirs = framework.tables(at.near), plain(at.near)
        if not all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True)):
            return Check(ok=False, text="differs from the naive table, which it must equal bit for bit")
        return _judge(framework.tables, at.near, at.top, rope)

    return Group(
        name="tables",
        summary=f"cos and sin, {length:,} positions × {rope.config.pairs} pairs",
        cases=(
            Case(name="naive float32", run=partial(plain, at.near), check=plain_error),
            exact("exact, contiguous", at.near, at.top, 0.9),
            exact(f"exact, ids {tuple(at.ids.shape)}", at.ids, at.top_ids, 1.5),
            exact(f"exact, ids {tuple(at.ids.shape)} to {far:,}", at.wide, at.top_ids, 1.5),
            exact("exact, floating", at.thirds, at.top.double() - 1 / 3, 1.5),
            Case(name="angles='float32'", run=partial(framework.tables, at.near), check=same_as_naive),
        ),
    )


def _keeping(rope: Rope, count: int, name: str, at: int = 0) -> Group:
    """The cost of a cache hit with the rotation that follows it, as a layer has it."""
    positions = torch.arange(at, at + count)
    x = torch.randn(1, count, rope.config.head_dim, generator=torch.Generator().manual_seed(0))
    given = rope.tables(positions)
    room = 8 * rope.config.pairs * (1 << (at + count).bit_length())

    def rotated(cache: TableCache) -> Tensor:
        before = use_table_cache(cache)
        try:
            return rope.rotate(x, positions)
        finally:
            use_table_cache(before)

    computed = partial(rotated, TableCache("on_the_fly"))

    def case(name: str, run: Callable[[], Tensor]) -> Case:
        def check() -> Check:
            same = torch.equal(run(), computed())
            return Check(ok=same, text="the same bits" if same else "differs from what is computed")

        return Case(name=name, run=run, check=check)

    return Group(
        name=name,
        summary=f"one head rotated at {count:,} position{'s' if count > 1 else ''}",
        cases=(
            Case(name="tables computed (on_the_fly)", run=computed, check=lambda: Check(ok=True, text="the baseline")),
            case("tables kept (full, a hit)", partial(rotated, TableCache("full", max_bytes=room))),
            case("tables given", lambda: rope.turn(x, given)),
        ),
    )


def _size_and_base(rope: Rope) -> tuple[int, float]:
    assert rope.config.base is not None
    return rope.config.head_dim, rope.config.base


def naive(head_dim: int, base: float, device: str = "cpu") -> Build:
    """Tables as frameworks build them: frequencies and angles in float32."""
    frequencies = 1.0 / base ** (torch.arange(0, head_dim, 2, device=device).float() / head_dim)

    def build(positions: Tensor) -> Tables:
        angles = torch.outer(positions.float(), frequencies)
        return angles.cos(), angles.sin()

    return build


def _judge(build: Build, positions: Tensor, beyond: Tensor, rope: Rope, limit: float | None = None) -> Check:
    """The error at these positions and at far ones, within the limit where there is one."""
    near, far = (error_of(build, at, *_size_and_base(rope)) for at in (positions, beyond))
    last, beyond_last = float(positions.max()), float(beyond.max())
    text = f"error {near:.2g} to position {last:,.0f}, {far:.2g} near {beyond_last:,.0f}"
    ok = limit is None or max(near, far) <= limit
    if not ok:
        text += f", over {limit:.1g}"
    return Check(ok=ok, text=text, numbers={"error": near, "error_far": far})


def error_of(build: Build, positions: Tensor, head_dim: int, base: float) -> float:
    """The largest error of cos and sin on a sample of the rows of a whole table."""
    flat = positions.reshape(-1).cpu().numpy()
    chosen = np.unique(np.linspace(0, flat.size - 1, min(flat.size, ROWS)).astype(np.int64))
    true = true_tables(flat[chosen], head_dim, base)
    made = (table.reshape(flat.size, -1).cpu().numpy()[chosen] for table in build(positions))
    return max(float(np.abs(ours - theirs).max()) for ours, theirs in zip(made, true, strict=True))


def true_tables(positions: np.ndarray, head_dim: int, base: float) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin in extended precision; whorl's own code has no part in it."""
    exponents = np.arange(0, head_dim, 2).astype(np.longdouble) / head_dim
    angles = positions.astype(np.longdouble)[:, None] * np.longdouble(base) ** -exponents
    return np.cos(angles), np.sin(angles)
