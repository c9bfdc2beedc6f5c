"""Attention by tiles on a GPU: errors against float64, speeds of whole calls over plain attention, sizes of tiles.

    python tools/gpu_tiles.py [errors] [calls] [tiles]      all three without a word; ``calls`` below 45 s

Kernels are compiled by several processes first, which leave them in Triton's cache.
"""

from __future__ import annotations

import math
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

import torch
from torch.nn.functional import scaled_dot_product_attention as plain_attention

import whorl
from whorl.kernels.tiles import sizes
from whorl.kernels.tiles.sizes import Tile

DEVICE, HALF, WORKERS = "cuda", torch.bfloat16, 12
HEADS = 16
LENGTHS = (4096, 16384)


def encodings(heads: int, dim: int) -> dict[str, whorl.Encoding]:
    rope = whorl.Rope(head_dim=dim)
    return {
        "alibi": whorl.Alibi(heads=heads),
        "kerple": whorl.Kerple(heads=heads),
        "t5": whorl.T5(heads=heads),
        "sandwich": whorl.build("sandwich", heads=heads),
        "fire": whorl.Fire(heads=heads, length=512),
        "gate": whorl.ForgettingGate(heads=heads, width=64),
        "rope + window": whorl.Combined(rope, whorl.Window(size=1024)),
        "rope + gate": whorl.Combined(rope, whorl.ForgettingGate(heads=heads, width=64)),
        "rerope": whorl.ReRope(head_dim=dim, window=1024),
    }


# Errors


def outcome(inputs, encoding, weight, **options):
    """Output, gradients of q, k, v, and those of everything learned in one."""
    given = [x.detach().requires_grad_() for x in inputs]
    encoding.zero_grad()
    out = whorl.attention(*given, encoding=encoding, **options)
    (out * weight).sum().backward()
    learned = [p.grad.flatten().double() for p in encoding.parameters() if p.grad is not None]
    return [out.detach(), *(x.grad for x in given), torch.cat(learned) if learned else None]


def relative(one, other):
    one, other = one.detach().double(), other.detach().double()
    return float((one - other).norm() / other.norm())


def error_row(given: tuple[int, str, str, bool]) -> str:
    """One line of the table of errors."""
    dim, label, name, placed = given
    length, heads = 515, 4
    made = encodings(heads, dim) | {
        "rope + window": whorl.Combined(whorl.Rope(head_dim=dim), whorl.Window(size=100)),
        "rerope": whorl.ReRope(head_dim=dim, window=100),
    }
    torch.manual_seed(0)
    encoding = made[name].to(DEVICE)
    options = {"positions": torch.arange(length, device=DEVICE) % 300} if placed else {}
    inputs = [torch.randn(2, n, length, dim, device=DEVICE, dtype=HALF) for n in (heads, 2, 2)]
    weight = torch.randn(2, heads, length, dim, device=DEVICE, dtype=HALF)
    hidden = {"hidden": torch.randn(2, length, 64, device=DEVICE)} if encoding.reads_hidden else {}
    mine = options | hidden | ({"impl": "triton"} if placed else {})  # a learned table is not chosen there
    assert whorl.explain_attention(*inputs, encoding=encoding, **mine).startswith("tiles"), label
    got = outcome(inputs, encoding, weight, **mine)
    again = outcome(inputs, encoding, weight, **mine)[-1]
    wide = {name: x.double() for name, x in hidden.items()}
    wanted = outcome([x.double() for x in inputs], encoding.double(), weight.double(), impl="torch", **options, **wide)
    shown = "".join(f"{'-' if b is None else f'{relative(a, b):.1e}':>9}" for a, b in zip(got, wanted, strict=True))
    same = "" if again is None else "  repeats" if torch.equal(again, got[-1]) else "  varies"
    return f"{label + f' ({dim})':28}{shown}{same}"


def errors(pool: ProcessPoolExecutor) -> None:
    print(f"{'errors against float64':28}{'out':>9}{'dq':>9}{'dk':>9}{'dv':>9}{'learned':>9}")
    rows = [(dim, name, name, False) for dim in (128, 64) for name in encodings(4, dim)]
    rows += [(128, f"{name}, positions", name, True) for name in ("alibi", "kerple", "t5")]
    print(*pool.map(error_row, rows), sep="\n")
    dropped()


def dropped() -> None:
    """Values that are rows of the identity show what is kept."""
    heads, length, share = 4, 256, 0.3
    encoding = whorl.T5(heads=heads).to(DEVICE)
    torch.manual_seed(0)
    q, k, v, weight = (torch.randn(2, heads, length, 64, device=DEVICE) for _ in range(4))
    eye = torch.eye(length, device=DEVICE).expand(2, heads, -1, -1)

    def seeded(v):
        torch.manual_seed(5)
        return whorl.attention(q, k, v, encoding=encoding, dropout=share)

    with torch.no_grad():
        kept = seeded(eye) != 0
    seen = torch.ones(length, length, dtype=torch.bool, device=DEVICE).tril()
    given = [x.clone().requires_grad_() for x in (q, k, v)]
    torch.manual_seed(5)
    out = whorl.attention(*given, encoding=encoding, dropout=share)
    found = [out, *torch.autograd.grad((out * weight).sum(), [*given, encoding.table])]
    wide = [x.double().requires_grad_() for x in (q, k, v)]
    encoding.double()
    at = torch.arange(length, device=DEVICE)
    scores = wide[0] @ wide[1].mT * encoding.softmax_scale(64) + encoding.score_bias(at, at)
    weights = scores.masked_fill(~seen, -math.inf).softmax(-1) * kept / (1 - share)
    out = weights @ wide[2]
    wanted = [out, *torch.autograd.grad((out * weight.double()).sum(), [*wide, encoding.table])]
    shown = "".join(f"{relative(a, b):>9.1e}" for a, b in zip(found, wanted, strict=True))
    print(f"{'t5, dropout (float32, 64)':28}{shown}  kept {float(kept[..., seen].float().mean()):.4f} of {1 - share}")


# Whole calls


def median(function, rep: int = 40) -> float:
    """Milliseconds of the device, launches included."""
    from triton.testing import do_bench

    return do_bench(function, warmup=15, rep=rep, return_mode="median")


def heads_of(batch, heads, length, dim):
    return [torch.randn(batch, heads, length, dim, device=DEVICE, dtype=HALF, requires_grad=True) for _ in range(3)]


def call_of(name: str, length: int):
    """Functions of one call without gradients, of one with the backward pass, and of what is before that pass."""
    q, k, v = heads_of(1, HEADS, length, 128)
    grad = torch.randn_like(q)
    if name == "plain":
        learned, attend = (), lambda: plain_attention(q, k, v, is_causal=True)
    else:
        encoding, options = encodings(HEADS, 128)[name.partition(",")[0]].to(DEVICE), {}
        if encoding.reads_hidden:
            options["hidden"] = torch.randn(1, length, 64, device=DEVICE)
        if name.endswith("positions"):
            options["positions"] = torch.arange(length, device=DEVICE) % 2048
        if name.endswith("dropout"):
            options["dropout"] = 0.1
        learned, attend = tuple(encoding.parameters()), lambda: whorl.attention(q, k, v, encoding=encoding, **options)

    def infer():
        with torch.no_grad():
            attend()

    return infer, lambda: torch.autograd.grad(attend(), (q, k, v, *learned), grad, allow_unused=True), attend


def warm(given: tuple[str, int]) -> None:
    for each in call_of(*given)[:2]:
        each()
    torch.cuda.synchronize()


def calls(pool: ProcessPoolExecutor) -> None:
    names = [*encodings(HEADS, 128), "t5, positions", "t5, dropout"]
    lengths = {name: LENGTHS[:1] if name.endswith("positions") else LENGTHS for name in names}  # those form scores
    list(pool.map(warm, [(name, length) for length in LENGTHS for name in names if length in lengths[name]]))
    print(f"\n{'share of plain, 16 of 128':28}{'4096':>14}{'16384':>14}   forward / with backward; host µs of the same")
    plain = {length: [median(each) for each in call_of("plain", length)[:2]] for length in LENGTHS}
    for name in names:
        shown = []
        for length in lengths[name]:
            calls = call_of(name, length)[:2]
            once, both = (one / median(each) for one, each in zip(plain[length], calls, strict=True))
            shown.append(f"{once:.2f} / {both:.2f}")
        once, both = host(name)
        print(f"{name:28}{shown[0]:>14}{shown[1] if shown[1:] else '-':>14}{once:>9.0f} / {both:.0f}", flush=True)


def host(name: str) -> list[float]:
    """Microseconds of Python for a call forward, with gradients to follow, and for one forward and backward.

    Of so few tokens that the device waits; two placements need more than are near.
    """
    _, both, once = call_of(name, 1152 if name == "rerope" else 64)
    found = []
    for call in (once, both):
        for _ in range(20):
            call()
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(100):
            call()
        found.append((time.perf_counter() - start) / 100 * 1e6)
        torch.cuda.synchronize()
    return found


# Sizes of tiles


@dataclass(frozen=True)
class Work:
    """One kernel of one kind of bias, and the tiles that are tried: queries, keys, warps, loads ahead."""

    kernel: str
    kind: str
    dim: int
    length: int
    tiles: tuple[tuple[int, int, int, int], ...]

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Heads of 64 as a decoder of 25 M parameters has them."""
        return (16, 8, self.length, 64) if self.dim == 64 else (1, HEADS, self.length, self.dim)


FORWARD = ((64, 64, 4, 3), (128, 64, 8, 3), (128, 128, 8, 2), (128, 64, 4, 3))
KEYS = ((32, 64, 4, 3), (64, 64, 4, 2), (64, 128, 8, 2), (32, 128, 8, 3), (64, 64, 8, 2))
QUERIES = ((64, 64, 4, 2), (64, 32, 4, 3), (128, 64, 8, 2), (128, 32, 8, 3), (128, 32, 4, 2))
WORK = (
    Work("forward", "window", 128, 16384, (*FORWARD, (64, 128, 4, 2), (128, 32, 8, 4))),
    Work("forward", "t5", 128, 4096, FORWARD[:3]),
    Work("forward", "t5", 128, 16384, FORWARD[:3]),
    Work("forward", "gate", 128, 4096, FORWARD[:3]),
    Work("forward", "fire", 128, 4096, (*FORWARD[:2], (64, 32, 4, 3))),
    Work("keys", "window", 128, 16384, KEYS),
    Work("keys", "t5", 128, 4096, KEYS),
    Work("keys", "gate", 128, 4096, KEYS[:4]),
    Work("keys", "fire", 128, 4096, (KEYS[0], *KEYS[3:])),
    Work("queries", "window", 128, 16384, QUERIES),
    Work("queries", "t5", 128, 4096, QUERIES),
    Work("queries", "gate", 128, 4096, QUERIES[:4]),
    Work("queries", "fire", 128, 4096, QUERIES[:4]),
    Work("forward", "t5", 64, 2048, FORWARD),
    Work("keys", "t5", 64, 2048, (*KEYS, (64, 128, 4, 2), (64, 64, 4, 3), (128, 128, 8, 2))),
    Work("queries", "t5", 64, 2048, (*QUERIES, (64, 64, 4, 3), (128, 64, 4, 2))),
)


def launcher(work: Work, tile: tuple[int, int, int, int]):
    """The function that runs one kernel with a tile."""
    from whorl.kernels.tiles.launch import _ready
    from whorl.kernels.tiles.op import Settings

    torch.manual_seed(0)
    batch, heads, length, dim = work.shape
    q, k, v, do = (torch.randn(work.shape, device=DEVICE, dtype=HALF) for _ in range(4))
    made = encodings(heads, dim)
    numbers, asked = None, Settings(scale=dim**-0.5)
    if work.kind == "window":
        asked = asked._replace(before=1023)
    elif work.kind == "t5":
        t5 = made["t5"].to(DEVICE)
        numbers = t5.parts[0].table(torch.arange(t5.last_edge + 1, device=DEVICE)).detach().contiguous()
        asked = asked._replace(kind="table")
    elif work.kind == "gate":
        gate = made["gate"].to(DEVICE)
        kept = gate.remember(torch.randn(batch, length, 64, device=DEVICE))
        numbers, asked = gate.running_sums(kept).detach(), asked._replace(kind="gate")
    elif work.kind == "fire":
        fire = made["fire"].to(DEVICE)
        numbers = fire.line_numbers(torch.arange(length, device=DEVICE), length).detach().contiguous()
        asked = asked._replace(kind="broken", lowest=fire.parts[0].lines)
    out, grads = torch.empty_like(q), [torch.empty_like(q) for _ in range(2)]
    lse = torch.full((batch, heads, length), math.log(length), device=DEVICE)
    delta = torch.cat([torch.zeros_like(lse)[None], lse[None] * math.log2(math.e), torch.zeros_like(lse)[None]])
    sums = lse if numbers is None else torch.zeros_like(numbers)
    given, numbers = numbers, lse if numbers is None else numbers
    usual = sizes.tile_of
    sizes.tile_of = lambda *_: Tile(*tile)
    try:
        if work.kernel == "forward":
            run = _ready("forward", (q, k, v, out), given, asked, (0,), {})
            return lambda: run(q, k, v, out, lse, numbers, lse, lse, lse, lse, lse, lse, lse, lse)
        facts = {"learned": work.kind != "window", "precise": work.kind in ("t5", "fire")}
        mine = (q, k, v, out, *grads) if work.kernel == "keys" else (q, k, v, out, grads[0])
        run = _ready(work.kernel, mine, given, asked, (), facts)
        more = (*grads, sums) if work.kernel == "keys" else (grads[0], sums)
        return lambda: run(q, k, v, do, delta, numbers, lse, lse, lse, lse, *more)
    finally:
        sizes.tile_of = usual


def compile_one(given: tuple[Work, tuple[int, int, int, int]]) -> str | None:
    """Why a kernel cannot run, or None; it stays in Triton's cache."""
    try:
        launcher(*given)()
        torch.cuda.synchronize()
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:60]
    return None


def tiles(pool: ProcessPoolExecutor) -> None:
    tried = [(work, tile) for work in WORK for tile in work.tiles]
    start = time.perf_counter()
    failed = {each: why for each, why in zip(tried, pool.map(compile_one, tried), strict=True) if why}
    print(
        f"\ntiles (queries x keys/warps/loads ahead), µs; {len(tried)} compiled in {time.perf_counter() - start:.0f} s"
    )
    for work in WORK:
        found = {tile: median(launcher(work, tile), 30) for tile in work.tiles if (work, tile) not in failed}
        best = min(found.values())
        shown = [
            f"{tile[0]}x{tile[1]}/{tile[2]}/{tile[3]} {1e3 * t:.0f}{'*' * (t == best)}" for tile, t in found.items()
        ]
        shown += [f"{tile} {failed[work, tile]}" for tile in work.tiles if (work, tile) in failed]
        print(f"{work.kernel} {work.kind} {work.dim} {work.length}: {'  '.join(shown)}", flush=True)


if __name__ == "__main__":
    asked_for = sys.argv[1:] or ["errors", "calls", "tiles"]
    print(torch.cuda.get_device_name(), torch.__version__)
    with ProcessPoolExecutor(WORKERS, get_context("spawn")) as processes:
        for each in asked_for:
            begun = time.perf_counter()
            {"errors": errors, "calls": calls, "tiles": tiles}[each](processes)
            print(f"({each}: {time.perf_counter() - begun:.0f} s)", flush=True)
