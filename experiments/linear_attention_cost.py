"""Time and memory of linear attention at 1k … 128k tokens, written to linear-attention-cost.json.

    python experiments/linear_attention_cost.py [--device cuda] [--threads 1]

Every length is measured in a process of its own. Memory is the most that torch had allocated at once above the inputs,
of a forward pass and of a forward and backward pass, by the profiler's record of every allocation. Time is that of the
process, user + system, which others on the machine change least; on CUDA it is elapsed time.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

import whorl
from whorl.attend.linear import linear_attention

FILE = Path(__file__).with_name("linear-attention-cost.json")
WHAT = (
    "Linear attention by length: user and system time of the process, best of three, and the most memory at once above "
    "the inputs; batch 1, 4 heads of 64, float32, chunk 64."
)
HEADS, DIM = 4, 64
LENGTHS = [2**i for i in range(10, 18)]
ROPE = whorl.Rope(head_dim=DIM)

Call = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

CASES: dict[str, tuple[Call, int]] = {  # and the longest length to try
    "numerator, RoPE": (lambda q, k, v: linear_attention(q, k, v, encoding=ROPE), 2**17),
    "unnormalised, RoPE": (lambda q, k, v: linear_attention(q, k, v, encoding=ROPE, form="unnormalised"), 2**17),
    "decay, RoPE": (lambda q, k, v: linear_attention(q, k, v, encoding=ROPE, form="decay", decay=0.01), 2**17),
    "unnormalised, xPos": (
        lambda q, k, v: linear_attention(q, k, v, encoding=whorl.build("xpos", head_dim=DIM), form="unnormalised"),
        2**17,
    ),
    "numerator, RoPE, bidirectional": (lambda q, k, v: linear_attention(q, k, v, encoding=ROPE, causal=False), 2**17),
    "numerator, RoPE, parallel form": (
        lambda q, k, v: linear_attention(q, k, v, encoding=ROPE, chunk=q.shape[2]),
        2**13,
    ),
    "softmax, torch's fused kernel": (
        lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True),
        2**14,
    ),
}


def measure(case: str, length: int, device: str) -> dict[str, Any]:
    """Seconds, user and system, of the best of three, and MiB above the inputs, of one case at one length."""
    run = CASES[case][0]
    inputs = [torch.randn(1, HEADS, length, DIM, device=device, requires_grad=True) for _ in range(3)]
    small = [x[:, :, :256].detach().requires_grad_() for x in inputs]
    run(*small).sum().backward()  # loads what is loaded on first use
    found = {}
    for name, work in (("forward", lambda: _forward(run, inputs)), ("both", lambda: _both(run, inputs))):
        found[f"{name} MiB"] = _peak_bytes(work, device) / 2**20
        times = []
        for _ in range(3):
            start = _clock(device)
            work()
            times.append([after - before for before, after in zip(start, _clock(device), strict=True)])
        found[f"{name} s"] = min(times, key=sum)
    return found


def _clock(device: str) -> tuple[float, float]:
    if device == "cuda":
        torch.cuda.synchronize()
        return time.perf_counter(), 0.0
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime, used.ru_stime


def _forward(run: Call, inputs: list[torch.Tensor]) -> None:
    with torch.no_grad():
        run(*inputs)


def _both(run: Call, inputs: list[torch.Tensor]) -> None:
    torch.autograd.grad(run(*inputs).sum(), inputs)


def _peak_bytes(work: Callable[[], None], device: str) -> int:
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        work()
        return torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        work()
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        found.export_chrome_trace(file.name)
        events = json.loads(Path(file.name).read_text())["traceEvents"]
    changes = sorted(((e["ts"], e["args"]) for e in events if e["name"] == "[memory]"), key=lambda each: each[0])
    totals = [change["Total Allocated"] for _, change in changes]
    return max(totals) - (totals[0] - changes[0][1]["Bytes"])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--one", nargs=2)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if given.one:
        print(json.dumps(measure(given.one[0], int(given.one[1]), given.device)))
        return
    machine = f"{given.device}, torch {torch.__version__}, {given.threads} thread(s)"
    cases: dict[str, list[dict[str, Any]]] = {}
    for case, (_, longest) in CASES.items():
        for length in (length for length in LENGTHS if length <= longest):
            options = ["--device", given.device, "--threads", str(given.threads), "--one", case, str(length)]
            done = subprocess.run([sys.executable, __file__, *options], capture_output=True, text=True, check=True)
            found = json.loads(done.stdout.splitlines()[-1])
            row: dict[str, Any] = {"length": length}
            row |= {f"{name} ms": [round(1000 * t) for t in found[f"{name} s"]] for name in ("forward", "both")}
            row |= {f"{name} MiB": round(found[f"{name} MiB"]) for name in ("forward", "both")}
            print(case, row, flush=True)
            cases.setdefault(case, []).append(row)
    found = {"what": WHAT, "command": " ".join(["python", *sys.argv]), "machine": machine, "cases": cases}
    FILE.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
