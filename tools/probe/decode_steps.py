"""Times a decoding step of every encoding on a GPU, and compares it with formed scores.

    python tools/probe/decode_steps.py            errors, and times of a step, padded and not
    python tools/probe/decode_steps.py --sweep    times of other tiles for kernels that do more than a product

Batch 8, 32/8 heads of 128, 2,000 keys and more, bfloat16, each step at a length never met before. Wall time is that of
one call until the device is done, device time what its kernels take.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

import whorl
from whorl.kernels import decode_triton
from whorl.kernels.launches import LAUNCHES

BATCH, HEADS, KV_HEADS, DIM, KEPT, ROOM, WIDTH = 8, 32, 8, 128, 2000, 2304, 4096
STEPS, PROFILED = 40, 10
GRID = ("axial_rope", "mixed_rope")  # positions on a grid, or frequencies by head: no text is decoded with them
LIMIT = 0.03  # of the largest difference over the root mean square of the output: both are rounded to bfloat16
JOINED = {"dynamic_ntk": None, "rope + log_n": ("rope", "log_n"), "rope + shaw": ("rope", "shaw")}
SWEPT = ("rope", "rerope", "xpos", "fire", "shaw", "cope", "deberta", "forgetting_gate")
TILES = ((64, 4, 3), (64, 8, 2), (64, 8, 1), (32, 4, 2), (32, 8, 2), (32, 4, 1))


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
    """A cache with a prompt, and tokens that follow it."""

    def __init__(self, encoding: whorl.Encoding, padded: bool) -> None:
        generator = torch.Generator("cuda").manual_seed(0)
        make = {"device": "cuda", "dtype": torch.bfloat16, "generator": generator}
        self.next = [torch.randn(BATCH, heads, 1, DIM, **make) for heads in (HEADS, KV_HEADS, KV_HEADS)]
        reads = encoding.reads_hidden
        self.more = {"hidden": torch.randn(BATCH, 1, WIDTH, **make)} if reads else {}
        prompt = [torch.randn(BATCH, heads, KEPT, DIM, **make) for heads in (HEADS, KV_HEADS, KV_HEADS)]
        rows = 37 * torch.arange(BATCH, device="cuda")[:, None]
        mask = torch.arange(KEPT, device="cuda") >= rows if padded else None
        # a prompt of most encodings takes long, and what is kept of it is the same: keys, placed or raw
        direct = reads or encoding.axes > 1
        first = encoding if direct else whorl.NoPE()
        self.cache = whorl.KVCache(encoding=first, capacity=ROOM)
        hidden = {"hidden": torch.randn(BATCH, KEPT, WIDTH, **make)} if reads else {}
        self.cache.attend(*prompt, key_mask=mask, **hidden)
        if not direct:
            self.cache.change_encoding(encoding)

    def step(self, impl: Literal["auto", "torch"] = "auto") -> Tensor:
        return self.cache.attend(*self.next, impl=impl, **self.more)


def error_of(encoding: whorl.Encoding, padded: bool) -> float:
    fast, slow = Text(encoding, padded), Text(encoding, padded)
    worst = 0.0
    for _ in range(2):
        got, wanted = fast.step().float(), slow.step("torch").float()
        worst = max(worst, ((got - wanted).abs().max() / wanted.square().mean().sqrt()).item())
    return worst


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


def report() -> None:
    print(f"{'encoding':20} {'wall':>6} {'device':>7} {'padded':>7} {'device':>7} {'errors':>16}  why not kernels")
    begun, slow, wrong = time.perf_counter(), [], []
    for name, encoding in encodings():
        times, errors, why = [], [], None
        for padded in (False, True):
            errors.append(error_of(encoding, padded))
            text = Text(encoding, padded)
            times += times_of(text)
            why = why or text.cache.why_not_kernels()
        slow += [name] if max(times) > 1000 else []
        wrong += [name] if max(errors) > LIMIT else []
        shown = " ".join(f"{error:.1e}" for error in errors)
        print(f"{name:20} {times[0]:6.0f} {times[1]:7.1f} {times[2]:7.0f} {times[3]:7.1f} {shown:>16}  {why or ''}")
    print(f"over 1 ms: {', '.join(slow) or 'none'}; beyond {LIMIT}: {', '.join(wrong) or 'none'}", end="; ")
    print(f"{time.perf_counter() - begun:.0f} s on {torch.cuda.get_device_name()}, torch {torch.__version__}")


def sweep() -> None:
    """Device times of a step by tile (keys, warps, stages), and with more parts of the keys."""
    print(f"{'encoding':16}" + "".join(f"{tile!s:>12}" for tile in TILES) + f"{'2 x parts':>12}{'4 x parts':>12}")
    tile_of = decode_triton.tile_of
    for name in SWEPT:
        encoding, row = encoding_of(name), []
        for programs, tile in [*((1, tile) for tile in TILES), (2, None), (4, None)]:
            LAUNCHES.clear()
            decode_triton.PROGRAMS = programs
            chosen = decode_triton.Tile(*tile) if tile else None
            decode_triton.tile_of = (lambda *_, chosen=chosen, **__: chosen) if chosen else tile_of
            text = Text(encoding, False)
            try:
                for _ in range(3):
                    text.step()
                row.append(f"{device_time(text):12.1f}")
            except Exception as error:
                row.append(f"{type(error).__name__[:11]:>12}")
        decode_triton.tile_of, decode_triton.PROGRAMS = tile_of, 1
        print(f"{name:16}" + "".join(row))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--sweep", action="store_true")
    warnings.simplefilter("ignore")
    sweep() if parser.parse_args().sweep else report()
