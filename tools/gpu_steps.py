"""Times a decoding step of every encoding on a GPU, and compares it with formed scores.

    python tools/gpu_steps.py            errors, and times of a step, padded and not
    python tools/gpu_steps.py --save F   the same, kept in a file
    python tools/gpu_steps.py --sweep    times of other tiles for kernels that do more than a product

Batch 8, 32/8 heads of 128, 2,000 keys and more, bfloat16, each step at a length never met before. Wall time is that of
one call until the device is done, device time what its kernels take. Errors are rms(error) / rms(output) against the
same step in float64: that of the kernels, and that of scores formed in float32 of what bfloat16 keeps.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

import whorl
from whorl.kernels import decode_triton
from whorl.plans import PLANS

BATCH, HEADS, KV_HEADS, DIM, KEPT, ROOM, WIDTH = 8, 32, 8, 128, 2000, 2304, 4096
STEPS, PROFILED = 40, 10
GRID = ("axial_rope", "mixed_rope")  # positions on a grid, or frequencies by head: no text is decoded with them
LIMIT = 2.0  # of the kernels' error over that of formed scores: they round weights too, as every fused kernel does
JOINED = {"dynamic_ntk": None, "rope + log_n": ("rope", "log_n"), "rope + shaw": ("rope", "shaw")}
SWEPT = ("rope", "rerope", "xpos", "fire", "shaw", "cope", "deberta", "forgetting_gate")
TILES = ((64, 4, 3), (64, 4, 2), (32, 4, 2), (32, 8, 2))
PROGRAMS = (1, 2, 4, 8)


def encodings() -> Iterator[tuple[str, whorl.Encoding]]:
    """Every encoding that text is decoded with, its learned numbers drawn."""
    for name in [name for name in whorl.names() if name not in GRID] + list(JOINED):
        yield name, encoding_of(name)


def encoding_of(name: str) -> whorl.Encoding:
    torch.manual_seed(1)
    if name == "dynamic_ntk":
        built: whorl.Encoding = whorl.Rope(head_dim=DIM, scaling=whorl.DynamicNtk(factor=2.0, original_length=1024))
    elif JOINED.get(name):
        built = whorl.Combined(*map(encoding_of, JOINED[name] or ()))
    else:
        built = whorl.build_for(name, heads=HEADS, head_dim=DIM, width=WIDTH, length=1024)
    with torch.no_grad():
        for learned in built.parameters():
            learned.add_(0.02 * torch.randn_like(learned))
    return built.to("cuda")


class Text:
    """A cache with a prompt, and tokens that follow it; the same numbers in any dtype."""

    def __init__(self, encoding: whorl.Encoding, padded: bool, dtype: torch.dtype = torch.bfloat16) -> None:
        generator = torch.Generator("cuda").manual_seed(0)

        def drawn(*shape: int) -> Tensor:
            return torch.randn(*shape, device="cuda", generator=generator).bfloat16().to(dtype)

        reads, sizes = encoding.reads_hidden, (HEADS, KV_HEADS, KV_HEADS)
        self.next = [drawn(BATCH, heads, 1, DIM) for heads in sizes]
        self.more = {"hidden": drawn(BATCH, 1, WIDTH)} if reads else {}
        rows = 37 * torch.arange(BATCH, device="cuda")[:, None]
        mask = torch.arange(KEPT, device="cuda") >= rows if padded else None
        # a prompt of most encodings takes long, and what is kept of it is the same: keys, placed or raw
        direct = reads or encoding.axes > 1
        self.cache = whorl.KVCache(encoding=encoding if direct else whorl.NoPE(), capacity=ROOM)
        hidden = {"hidden": drawn(BATCH, KEPT, WIDTH)} if reads else {}
        self.cache.attend(*(drawn(BATCH, heads, KEPT, DIM) for heads in sizes), key_mask=mask, **hidden)
        if not direct:
            self.cache.change_encoding(encoding)

    def step(self, impl: Literal["auto", "torch"] = "auto") -> Tensor:
        return self.cache.attend(*self.next, impl=impl, **self.more)


def errors_of(encoding: whorl.Encoding, padded: bool) -> tuple[float, float]:
    """The errors of the kernels and of formed scores."""
    exact = Text(deepcopy(encoding).double(), padded, torch.float64).step("torch")
    steps = Text(encoding, padded).step(), Text(encoding, padded).step("torch")
    kernels, formed = (((got.double() - exact).square().mean() / exact.square().mean()).sqrt().item() for got in steps)
    return kernels, formed


def times_of(text: Text) -> tuple[float, float]:
    """Microseconds of a step: the median of calls, and those of the device."""
    for _ in range(3):
        text.step()
    walls = []
    for _ in range(STEPS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        text.step()
        torch.cuda.synchronize()
        walls.append(time.perf_counter() - start)
    return sorted(walls)[STEPS // 2] * 1e6, device_time(text)


def device_time(text: Text) -> float:
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(PROFILED):
            text.step()
        torch.cuda.synchronize()
    events: Any = seen.events()
    return sum(event.device_time for event in events if event.device_type.name == "CUDA") / PROFILED


def report(save: Path | None) -> None:
    print(
        f"{'encoding':20} {'wall':>6} {'device':>7} {'padded':>7} {'device':>7}  {'errors, formed':15}  why not kernels"
    )
    begun, slow, wrong, steps = time.perf_counter(), [], [], {}
    for name, encoding in encodings():
        times, errors, why = [], [], None
        for padded in (False, True):
            errors.append(errors_of(encoding, padded))
            text = Text(encoding, padded)
            times += times_of(text)
            why = why or text.cache.why_not_kernels()
        kernels, formed = max(errors, key=lambda pair: pair[0] / pair[1])
        slow += [name] if max(times) > 1000 else []
        wrong += [name] if kernels > LIMIT * formed else []
        shown = f"{times[0]:6.0f} {times[1]:7.1f} {times[2]:7.0f} {times[3]:7.1f}  {kernels:.1e} {formed:.1e}"
        print(f"{name:20} {shown}  {why or ''}", flush=True)
        named = dict(zip(("wall", "device", "padded_wall", "padded_device"), (round(t, 1) for t in times), strict=True))
        steps[name] = named | {"error": kernels, "formed_error": formed}
    print(
        f"over 1 ms: {', '.join(slow) or 'none'}; error above {LIMIT} x formed: {', '.join(wrong) or 'none'}", end="; "
    )
    print(f"{time.perf_counter() - begun:.0f} s on {torch.cuda.get_device_name()}, torch {torch.__version__}")
    if save is not None:
        method = " ".join((__doc__ or "").split("\n\n")[-1].split())
        kept = {"method": method, "machine": torch.cuda.get_device_name(), "torch": torch.__version__, "steps": steps}
        save.write_text(json.dumps(kept, indent=1) + "\n")


def sweep() -> None:
    """Device times of a step by programs for each multiprocessor, and by tile (keys, warps, stages)."""
    print(f"{'encoding':16}" + "".join(f"{f'{count} programs':>12}" for count in PROGRAMS), end="")
    print("".join(f"{tile!s:>12}" for tile in TILES))
    tile_of, own = decode_triton.tile_of, (decode_triton.PROGRAMS, decode_triton.WAITING_PROGRAMS)
    for name in SWEPT:
        encoding, row = encoding_of(name), []
        for programs, tile in [*((count, None) for count in PROGRAMS), *((None, tile) for tile in TILES)]:
            PLANS.cache_clear()
            decode_triton.PROGRAMS, decode_triton.WAITING_PROGRAMS = (programs, programs) if programs else own
            chosen = decode_triton.Tile(*tile) if tile else None
            decode_triton.tile_of = (lambda *_, chosen=chosen: chosen) if chosen else tile_of
            try:
                text = Text(encoding, False)
                for _ in range(3):
                    text.step()
                row.append(f"{device_time(text):12.1f}")
            except Exception as error:
                row.append(f"{type(error).__name__[:11]:>12}")
        print(f"{name:16}" + "".join(row), flush=True)
    decode_triton.tile_of, (decode_triton.PROGRAMS, decode_triton.WAITING_PROGRAMS) = tile_of, own


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--save", type=Path)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    sweep() if given.sweep else report(given.save)
