"""Tables, ``rotate`` and its relatives: every layout, slice, order, scaling, length and implementation."""

from __future__ import annotations

from itertools import product
from typing import Any

import torch
from torch import Tensor

import whorl
from probe.cases import BATCH, DTYPES, HEADS, encodings, random, scalings
from probe.recording import Probe

LAYOUTS = ("half", "interleaved", "interleaved_to_half")
LENGTH, DIM, PAIRS = 7, 24, 4
LENGTHS = (None, 6, 100, 5000)
SHAPES = {
    "bhld": (BATCH, HEADS, LENGTH, DIM),
    "blhd": (BATCH, LENGTH, HEADS, DIM),
    "thd": (LENGTH, HEADS, DIM),
}
PLACES = {"counted": torch.arange(9), "far": torch.arange(9) + 1_000_003, "fractions": torch.arange(9) * 0.37 - 1}


def run(probe: Probe) -> None:
    impls = ("torch", "numba", "auto") if probe.device == "cpu" else ("torch", "triton", "auto")
    for impl in impls:
        for layout, (dtype_name, dtype) in product(LAYOUTS, DTYPES.items()):
            case = f"rotate/{impl}/{layout}/{dtype_name}"
            for start, blocks, inverse, order in product((0, 5, 16), (1, 2), (False, True), SHAPES):
                how = {"start": start, "blocks": blocks, "inverse": inverse, "order": order}
                words = f"from {start}, {blocks} blocks, {order}{', inverse' if inverse else ''}"
                _turn(probe, f"{case}/{words}", dtype, layout=layout, impl=impl, **how)
            _turn_otherwise(probe, case, layout, dtype, impl)
    _scale(probe)
    _encode(probe)


def _tables(probe: Probe, dtype: torch.dtype, *batch: int) -> tuple[Tensor, Tensor]:
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    angles = random("angles", *batch, LENGTH, PAIRS, dtype=torch.float64)
    return (1.1 * angles.cos()).to(probe.device, wide), (1.1 * angles.sin()).to(probe.device, wide)


def _turn(probe: Probe, case: str, dtype: torch.dtype, *, order: str, **how: Any) -> None:
    with probe.guarded(case):
        x = random("x", *SHAPES[order], dtype=dtype, device=probe.device).requires_grad_()
        cos, sin = _tables(probe, dtype)
        probe.add(f"{case}/chosen", whorl.explain_rotate(x, cos, sin, impl=how["impl"]).split(":")[0].split()[0])
        out = whorl.rotate(x, cos, sin, order=order, **how)
        probe.add(f"{case}/out", out)
        probe.add(f"{case}/gradient", torch.autograd.grad(out, x, random("loss", *out.shape).to(out))[0])


def _turn_otherwise(probe: Probe, case: str, layout: str, dtype: torch.dtype, impl: str) -> None:
    kind = {"dtype": dtype, "device": probe.device}
    q, k = random("q", BATCH, HEADS, LENGTH, DIM, **kind), random("k", BATCH, 2, LENGTH, DIM, **kind)
    (cos, sin), own = _tables(probe, dtype), _tables(probe, dtype, BATCH)
    rows = torch.tensor([[3, 1, 0, 6, 6, 2, 5], [0, 1, 2, 3, 4, 5, 6]], device=probe.device)
    how = {"layout": layout, "impl": impl}
    weights = [1 + random(name, DIM, **kind) for name in ("q weight", "k weight")]
    slots = torch.tensor([4, 0, -1, 2, 9, 8, 1], device=probe.device)

    def appended() -> Any:
        keys, values = (torch.zeros(BATCH, 2, 10, DIM, **kind) for _ in range(2))
        return whorl.rotate_append(q, k, k, cos, sin, keys, values, slots, **how), keys, values

    def learned() -> Any:
        tables = [t.clone().requires_grad_() for t in (cos, sin)]
        out = whorl.rotate(q, *tables, layout=layout)
        return out, *torch.autograd.grad(out.square().sum(), tables)

    asked = {
        "rows": lambda: whorl.rotate(q, cos, sin, rows=rows, **how),
        "tables by row": lambda: whorl.rotate(q, *own, **how),
        "some heads": lambda: whorl.rotate(q, cos, sin, heads=(0, 3), **how),
        "into": lambda: whorl.rotate(q, cos, sin, out=torch.empty_like(q), **how),
        "in place": lambda: whorl.rotate(copied := q.clone(), cos, sin, out=copied, **how),
        "qk": lambda: whorl.rotate_qk(q, k, cos, sin, **how),
        "qk rows": lambda: whorl.rotate_qk(q, k, cos, sin, rows=rows, inverse=True, start=3, **how),
        "normed": lambda: whorl.norm_rotate_qk(q, k, cos, sin, *weights, **how),
        "appended": appended,
        "learned tables": learned,
    }
    for name, call in asked.items():
        probe.ask(f"{case}/{name}", call)


def _scale(probe: Probe) -> None:
    """Frequencies, factors and tables of every scaling at every length."""
    for name, angles in product((None, *scalings()), ("exact", "float32")):
        case = f"scaling/{name}/{angles}"
        with probe.guarded(case):
            rope = whorl.Rope(head_dim=16, angles=angles, scaling=name and scalings()[name]())
            for length in LENGTHS:
                own = f"{case}/{length}"
                probe.ask(f"{own}/frequencies", lambda r=rope, n=length: r.frequencies(n))
                probe.ask(f"{own}/factors", lambda r=rope, n=length: (r.attention_factor(n), r.softmax_factor(n)))
                for place, positions in PLACES.items():
                    ids = positions.to(probe.device)
                    probe.ask(f"{own}/tables/{place}", lambda r=rope, n=length, p=ids: r.tables(p, n))
            x = random("x", 1, 2, 9, 16, device=probe.device)
            for place, positions in PLACES.items():
                ids = positions.to(probe.device)
                probe.ask(f"{case}/rotate/{place}", lambda r=rope, x=x, p=ids: r.rotate(x, p, 40))


def _encode(probe: Probe) -> None:
    """The methods of the rotary encodings, and keys moved from one of them to another."""
    positions = torch.arange(9, device=probe.device)
    base = whorl.Rope(head_dim=16).to(probe.device)
    for name, build in encodings().items():
        with probe.guarded(f"encoding/{name}"):
            rope = build().to(probe.device)
            if not hasattr(rope, "tables"):
                continue
            for dtype_name, dtype in DTYPES.items():
                x = random("x", BATCH, HEADS, 9, 16, dtype=dtype, device=probe.device)
                asked = {
                    "tables": lambda r=rope, d=dtype: r.tables(positions, dtype=d),
                    "rotate": lambda r=rope, x=x: r.rotate(x, positions),
                    "back": lambda r=rope, x=x: r.rotate(x, positions, 40, inverse=True),
                    "in another order": lambda r=rope, x=x: r.rotate(x.transpose(1, 2), positions, order="blhd"),
                    "moved": lambda r=rope, x=x: whorl.rerotate(x, base, r, positions, new_positions=None),
                    "moved back": lambda r=rope, x=x: whorl.rerotate(x, r, base, positions, old_length=40),
                }
                for one, call in asked.items():
                    probe.ask(f"encoding/{name}/{dtype_name}/{one}", call)
            probe.ask(f"encoding/{name}/frequencies", lambda r=rope: [r.frequencies(n) for n in LENGTHS])
