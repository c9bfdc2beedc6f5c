"""Times the first call of every kind on a GPU, where Triton has kept nothing: what compiling costs a user.

    python tools/gpu_first_calls.py            a table
    python tools/gpu_first_calls.py --save F   the same, kept in a file

Each kind is a process of its own with an empty folder for Triton's cache, four of them side by side. Before the clock
starts torch and whorl are imported and torch's own kernels have run, forward and backward. Seconds of a call are those
until the device is done; those of compiling are what Triton counts of each kernel, added up: kernels that are compiled
side by side take less. bfloat16, heads of 128, 16 of queries and 4 of keys, 4,096 tokens.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

SIDE_BY_SIDE = 4
BATCH, HEADS, KV_HEADS, DIM, LENGTH, WIDTH = 1, 16, 4, 128, 4096, 2048
ENCODINGS = (
    "rope", "alibi", "kerple", "t5", "sandwich", "fire", "forgetting_gate", "rope+window", "rerope", "self_extend",
)  # fmt: skip
WITH = ("documents", "dropout", "softcap")
STEPS = ("rope", "alibi", "fire", "forgetting_gate", "rerope", "xpos", "shaw", "deberta")
KINDS = (
    *(f"attention, {name}" for name in ENCODINGS),
    *(f"attention with {what}, alibi" for what in WITH),
    *(f"a step, {name}" for name in STEPS),
    "linear attention, rope",
    "rotate_qk, rope",
)


def first_calls(kind: str) -> dict[str, float]:
    """Seconds of the first forward and backward pass of a kind, or of the first step."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    import whorl

    torch.manual_seed(0)

    def drawn(heads: int, length: int = LENGTH) -> torch.Tensor:
        return torch.randn(BATCH, heads, length, DIM, device="cuda", dtype=torch.bfloat16)

    call, name = kind.split(", ")
    sizes = {"heads": HEADS, "head_dim": DIM, "width": WIDTH, "length": LENGTH}
    parts = [whorl.build_for(each, **sizes) for each in name.split("+")]
    encoding = (whorl.Combined(*parts) if len(parts) > 1 else parts[0]).to("cuda")
    q, k, v = drawn(HEADS), drawn(KV_HEADS), drawn(KV_HEADS)
    hidden = torch.randn(BATCH, LENGTH, WIDTH, device="cuda") if encoding.reads_hidden else None
    learns = q.clone().requires_grad_()
    scaled_dot_product_attention(learns, learns, learns, is_causal=True).sum().backward()
    if call == "a step":
        cache = whorl.KVCache(encoding=encoding, capacity=LENGTH + 8)
        with torch.no_grad():
            cache.attend(q, k, v, hidden=hidden)
        q, k, v = (x[:, :, :1].contiguous() for x in (q, k, v))
        hidden = None if hidden is None else hidden[:, :1]
        with torch.no_grad():
            return timed("step", lambda: cache.attend(q, k, v, hidden=hidden))
    options: dict[str, Any] = {
        "attention with documents": {"documents": torch.arange(LENGTH, device="cuda") // 1000},
        "attention with dropout": {"dropout": 0.1},
        "attention with softcap": {"softcap": 30.0},
    }.get(call, {})
    for x in (q, k, v):
        x.requires_grad_()

    def forward() -> torch.Tensor:
        if call == "rotate_qk":
            return whorl.rotate_qk(q, k, *whorl.Rope(head_dim=DIM).tables(whorl.positions(LENGTH, device="cuda")))[0]
        if call == "linear attention":
            return whorl.linear_attention(q, k, v, encoding=encoding)
        return whorl.attention(q, k, v, encoding=encoding, hidden=hidden, **options)

    outs: list[torch.Tensor] = []
    first = timed("forward", lambda: outs.append(forward()))
    loss = (outs[0] * torch.randn_like(outs[0])).sum()
    return first | timed("backward", loss.backward)


def timed(name: str, run: Callable[[], object]) -> dict[str, float]:
    """Seconds of a call until the device is done, and of compiling in it."""
    import torch
    from triton import knobs

    compiling: list[float] = []
    knobs.compilation.listener = lambda *, times, **_: compiling.append(times.total * 1e-6)
    torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    torch.cuda.synchronize()
    return {name: time.perf_counter() - start, f"{name}, compiling": sum(compiling)}


def in_a_process(kind: str) -> dict[str, float]:
    """``first_calls`` where Triton has kept nothing."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, __file__, "--kind", kind],
            env=os.environ | {"TRITON_CACHE_DIR": folder},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise SystemExit(f"{kind}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save", type=Path)
    parser.add_argument("--kind", choices=KINDS)
    options = parser.parse_args()
    if options.kind:
        print(json.dumps(first_calls(options.kind)))
        return
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        found = dict(zip(KINDS, pool.map(in_a_process, KINDS), strict=True))
    for kind, seconds in found.items():
        print(f"{kind:36}", "  ".join(f"{name} {value:.3f}" for name, value in seconds.items()))
    longest = max(value for seconds in found.values() for name, value in seconds.items() if "compiling" not in name)
    print(f"the longest call: {longest:.2f} s")
    if options.save:
        import torch
        import triton

        machine = f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}"
        record = {
            "what": (__doc__ or "").strip(),
            "machine": machine,
            "date": time.strftime("%Y-%m-%d"),
            "seconds": found,
        }
        options.save.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
