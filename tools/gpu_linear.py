"""Times linear attention: both designs beside flash-linear-attention, stage by stage, and sizes of the feature kernel.

Run on a GPU: ``PYTHONPATH=src python3 tools/gpu_linear.py``. The peer is found where it is installed, or in a
folder ``peers``. Every job first runs once in a process of its own, all at the same time: compiling takes longest.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from triton.testing import do_bench

from whorl import Rope, linear_attention
from whorl.kernels import linear_ops
from whorl.kernels.linear import passes, sizes
from whorl.kernels.linear_triton import TurningPairs

BEGIN = time.time()
SHAPES = {128: (4, 16, 8192, 128), 64: (1, 16, 65536, 64)}
WARM = len(sys.argv) > 1  # the name of one job: compile it, say nothing


def milliseconds(run: Callable[[], Any]) -> float:
    if WARM:
        run()
        return 0.0
    return float(do_bench(run, warmup=10, rep=60, return_mode="median"))  # pyright: ignore[reportArgumentType]


def line(*cells: object) -> None:
    if not WARM:
        print("  ".join(f"{cell:.3f}" if isinstance(cell, float) else str(cell) for cell in cells), flush=True)


def drawn(*shape: int) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(shape, device="cuda").bfloat16() for _ in range(4)]


def gradients(inputs: list[Tensor], grad: Tensor, **options: Any) -> list[Tensor]:
    inputs = [x.detach().requires_grad_() for x in inputs]
    out = linear_attention(*inputs, **options)
    return [out.detach(), *torch.autograd.grad(out, inputs, grad)]


def check(form: str, groups: int) -> None:
    """Errors of out, dq, dk and dv."""
    q, k, v, grad = drawn(2, 4, 2000, 128)
    k, v = k[:, : 4 // groups], v[:, : 4 // groups]
    options: dict[str, Any] = {"encoding": Rope(head_dim=128), "form": form}
    truth = gradients([x.double() for x in (q, k, v)], grad.double(), impl="torch", **options)
    found = gradients([q, k, v], grad, impl="triton", **options)
    errors = [float((x.double() - t).norm() / t.norm()) for x, t in zip(found, truth, strict=True)]
    line(f"errors, {form}, groups {groups}", " ".join(f"{e:.1e}" for e in errors))


def ours(dim: int, written: bool) -> None:
    """Forward, and forward with backward."""
    linear_ops.features_are_written = lambda *_: written
    tokens = drawn(*SHAPES[dim])[:3]
    inputs = [x.clone().requires_grad_() for x in tokens]
    options: dict[str, Any] = {"encoding": Rope(head_dim=dim), "impl": "triton"}
    run = torch.no_grad()(lambda: linear_attention(*tokens, **options))

    def train() -> tuple[Tensor, ...]:
        return torch.autograd.grad(linear_attention(*inputs, **options), inputs, tokens[2])

    line(f"dim {dim}", "written" if written else "fused", milliseconds(run), milliseconds(train))


def peer(dim: int) -> None:
    from fla.ops.linear_attn import chunk_linear_attn  # pyright: ignore[reportMissingImports]

    tokens = [x.transpose(1, 2).contiguous() for x in drawn(*SHAPES[dim])[:3]]
    inputs = [x.clone().requires_grad_() for x in tokens]
    run = torch.no_grad()(lambda: chunk_linear_attn(*tokens, normalize=False)[0])

    def train() -> tuple[Tensor, ...]:
        return torch.autograd.grad(chunk_linear_attn(*inputs, normalize=False)[0], inputs, tokens[2])

    line(f"dim {dim}", "flash-linear-attention", milliseconds(run), milliseconds(train))


def stages(dim: int) -> None:
    """Every stage of both passes; then other sizes of the feature kernel, and other numbers of registers."""
    q, k, v, grad = drawn(*SHAPES[dim])
    cos, sin = (table[None] for table in Rope(head_dim=dim).tables(torch.arange(q.shape[2], device="cuda")))
    given = (TurningPairs(cos, sin, False, 0, 1), None, "elu+1", "plain", 1e-6)
    out, scale, sums = passes.forward(q, k, v, *given)
    into, stage = torch.empty_like(q), passes.Pass(q, k, v, *given)
    a, b = stage.features(sums, scale, known=True)
    _, c, later = stage.grad_rows(grad, out, scale, a)
    before, after = stage.states(b, v, reverse=False), stage.states(a, grad, reverse=True)
    runs: dict[str, Callable[[], Any]] = {
        "add_keys": lambda: stage.add_keys(sums),
        "features": lambda: stage.features(sums, scale, known=False),
        "features, known": lambda: stage.features(sums, scale, known=True),
        "states": lambda: stage.states(b, v, reverse=False),
        "states, reversed": lambda: stage.states(a, grad, reverse=True),
        "outputs": lambda: stage.sums(a, b, v, before, into, reverse=False),
        "grad_rows": lambda: stage.grad_rows(grad, out, scale, a),
        "grad_queries": lambda: stage.grad_queries(b, grad, scale, sums, before, into),
        "grad_keys": lambda: stage.grad_keys(a, grad, scale, c, later, after, into),
        "grad_values": lambda: stage.sums(b, a, grad, after, into, reverse=True),
    }
    line(f"dim {dim}", *(f"{name} {milliseconds(run):.3f}" for name, run in runs.items()))
    usual = dict(sizes.TILES)
    for rows, warps, registers in ((64, 4, 168), (64, 4, 128), (64, 8, None), (64, 8, 128), (32, 4, None)):
        for kernel in ("key_sums", "grad_rows"):  # a slot at a time, as features are
            sizes.TILES[kernel, False] = sizes.Tile(rows, warps, 1, registers)
        sizes.TILES["features", False] = sizes.Tile(rows, 1, 1)
        time_slots(dim, f"slots of {rows}, {warps} warps, {registers} registers", given, q, k, v)
        sizes.TILES.update(usual)
    for kernel, registers in (("outputs", None), ("grad_queries", 168), ("grad_keys", 168)):
        default = sizes.TILES[kernel, False]
        sizes.TILES[kernel, False] = sizes.Tile(64, 4, 1, registers)
        line(f"dim {dim}", f"registers {registers}", f"{kernel} {milliseconds(runs[kernel]):.3f}")
        sizes.TILES[kernel, False] = default


def time_slots(dim: int, what: str, given: tuple[Any, ...], q: Tensor, k: Tensor, v: Tensor) -> None:
    """The kernels that take a slot at a time, for slots of another size."""
    stage = passes.Pass(q, k, v, *given)
    _, scale, sums = passes.outputs_of(q, k, v, "plain")
    runs = {
        "add_keys": lambda: stage.add_keys(sums),
        "features": lambda: stage.features(sums, scale, known=False),
        "features, known": lambda: stage.features(sums, scale, known=True),
    }
    times = (f"{name} {milliseconds(run):.3f}" for name, run in runs.items())
    line(f"dim {dim}", what, *times)


JOBS: dict[str, Callable[[], None]] = {
    "numerator": partial(check, "numerator", 1),
    "both": partial(check, "both", 2),
    "written 128": partial(ours, 128, True),
    "peer 128": partial(peer, 128),
    "stages 128": partial(stages, 128),
    "fused 64": partial(ours, 64, False),
    "fused 128": partial(ours, 128, False),
}


def main() -> None:
    sys.path.append("peers")
    if WARM:
        return JOBS[sys.argv[1]]()
    line(torch.cuda.get_device_name())
    for process in [subprocess.Popen([sys.executable, __file__, name], stderr=subprocess.DEVNULL) for name in JOBS]:
        process.wait()
    line("compiled after", time.time() - BEGIN)
    for name, job in JOBS.items():
        try:
            job()
        except Exception as error:  # a peer that is not there, a size that does not fit: the next one
            line(name, type(error).__name__, error)
    line("seconds", time.time() - BEGIN)


if __name__ == "__main__":
    main()
