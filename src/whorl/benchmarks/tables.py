"""Cost and error of rotary tables against the naive float32 ``outer -> cos, sin``.

The naive table multiplies positions and frequencies in float32, as frameworks do. Ours form angles in
float64 and must still cost about the same: at most 0.9 of it for contiguous positions and 1.5 for ids of
shape (batch, length) and for floating positions. Errors are against cosines in extended precision
(numpy's longdouble), from frequencies of its own, on a sample of rows, and near a far position too.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from whorl.benchmarks.judging import check_sizes
from whorl.benchmarks.runner import Case, Check, Group
from whorl.encodings.rope import Rope
from whorl.errors import invalid
from whorl.rotary.cache import TableCache, use_table_cache
from whorl.rotary.tables import Tables

LIMIT = 4.0e-8  # rounding to float32 alone makes 3.0e-8
ROWS = 512  # rows compared with the reference

Build = Callable[[Tensor], Tables]


def tables(
    *, length: int = 131_072, head_dim: int = 128, base: float = 10_000.0, batch: int = 4, far: int = 16_777_216
) -> tuple[Group, ...]:
    """The groups to time: tables of ``length`` positions, and what keeping them saves."""
    check_sizes("bench tables", length=length, head_dim=head_dim, batch=batch, far=far)
    if length % batch:
        raise invalid("bench tables", "length", f"a multiple of batch={batch}", length)
    if far < length:
        raise invalid("bench tables", "far", f"at least length={length}", far)
    rope = Rope(head_dim=head_dim, base=base)
    return (
        _building(rope, length, batch, far),
        _keeping(rope, length, "cache, whole text"),
        _keeping(rope, 1, "cache, one token", at=length - 1),
    )


def _building(rope: Rope, length: int, batch: int, far: int) -> Group:
    head_dim, base = rope.config.head_dim, rope.config.base
    assert base is not None
    naive = _naive(head_dim, base)
    framework = Rope(head_dim=head_dim, base=base, angles="float32")
    generator = torch.Generator().manual_seed(0)
    shape = (batch, length // batch)
    rows = min(length, ROWS)
    near = torch.arange(length)
    ids = torch.randint(0, length, shape, generator=generator)
    wide = torch.randint(0, far + 1, shape, generator=generator)
    thirds = near.double() / 3
    top = torch.arange(far - rows + 1, far + 1)
    top_ids = top[torch.randperm(rows, generator=generator)].view(1, rows)

    def exact(name: str, positions: Tensor, beyond: Tensor, bar: float) -> Case:
        def check() -> Check:
            return _judge(rope.tables, positions, beyond, head_dim, base, limit=LIMIT)

        return Case(name=name, run=lambda: rope.tables(positions), check=check, bar=bar)

    def same_as_naive() -> Check:
        ours, theirs = framework.tables(near), naive(near)
        if not all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True)):
            return Check(ok=False, text="differs from the naive table, which it must equal bit for bit")
        return _judge(framework.tables, near, top, head_dim, base)

    return Group(
        name="tables",
        summary=f"cos and sin, {length:,} positions × {head_dim // 2} pairs",
        cases=(
            Case(
                name="naive float32",
                run=lambda: naive(near),
                check=lambda: _judge(naive, near, top, head_dim, base),
            ),
            exact("exact, contiguous", near, top, 0.9),
            exact(f"exact, ids {shape}", ids, top_ids, 1.5),
            exact(f"exact, ids {shape} to {far:,}", wide, top_ids, 1.5),
            exact("exact, floating", thirds, top.double() - 1 / 3, 1.5),
            Case(name="angles='float32'", run=lambda: framework.tables(near), check=same_as_naive),
        ),
    )


def _keeping(rope: Rope, count: int, name: str, at: int = 0) -> Group:
    """What a cache hit costs, with the rotation that follows, which is what a layer asks for."""
    positions = torch.arange(at, at + count)
    x = torch.randn(1, count, rope.config.head_dim, generator=torch.Generator().manual_seed(0))
    given = rope.tables(positions)
    room = 8 * rope.config.pairs * (1 << (at + count).bit_length())

    def through(cache: TableCache) -> Callable[[], Tensor]:
        def turn() -> Tensor:
            before = use_table_cache(cache)
            try:
                return rope.rotate(x, positions)
            finally:
                use_table_cache(before)

        return turn

    computed = through(TableCache("on_the_fly"))

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
            case("tables kept (full, a hit)", through(TableCache("full", max_bytes=room))),
            case("tables given", lambda: rope.turn(x, given)),
        ),
    )


def _naive(head_dim: int, base: float) -> Build:
    """What frameworks do: frequencies and angles in float32."""
    frequencies = 1.0 / base ** (torch.arange(0, head_dim, 2).float() / head_dim)

    def build(positions: Tensor) -> Tables:
        angles = torch.outer(positions.float(), frequencies)
        return angles.cos(), angles.sin()

    return build


def _judge(
    build: Build, positions: Tensor, beyond: Tensor, head_dim: int, base: float, limit: float | None = None
) -> Check:
    """The error at these positions and at far ones, within the limit where there is one."""
    near = error_of(build, positions, head_dim, base)
    far = error_of(build, beyond, head_dim, base)
    last, beyond_last = float(positions.max()), float(beyond.max())
    text = f"error {near:.2g} to position {last:,.0f}, {far:.2g} near {beyond_last:,.0f}"
    ok = limit is None or max(near, far) <= limit
    if not ok:
        text += f", over {limit:.1g}"
    return Check(ok=ok, text=text, numbers={"error": near, "error_far": far})


def error_of(build: Build, positions: Tensor, head_dim: int, base: float) -> float:
    """The largest error of cos and sin on a sample of the rows of a whole table."""
    flat = positions.reshape(-1).numpy()
    chosen = np.unique(np.linspace(0, flat.size - 1, min(flat.size, ROWS)).astype(np.int64))
    true = true_tables(flat[chosen], head_dim, base)
    made = (table.reshape(flat.size, -1).numpy()[chosen] for table in build(positions))
    return max(float(np.abs(ours - theirs).max()) for ours, theirs in zip(made, true, strict=True))


def true_tables(positions: np.ndarray, head_dim: int, base: float) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin in extended precision; whorl's own code has no part in it."""
    exponents = np.arange(0, head_dim, 2).astype(np.longdouble) / head_dim
    angles = positions.astype(np.longdouble)[:, None] * np.longdouble(base) ** -exponents
    return np.cos(angles), np.sin(angles)
