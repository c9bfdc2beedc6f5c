"""A decoding step as a user calls it: one token through ``KVCache``, each at a length that was never met before.

The yardstick is torch's kernel alone on as many keys and values as a step has on average. Times are those of the whole
call, until the device is done with it. Sizes are usual ones of a GPU where there is one, and small ones on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from whorl import Encoding, KVCache, Rope, attention, build_for, rotate_qk
from whorl.benchmarks.judging import judged, not_judged, setting
from whorl.benchmarks.runner import Case, Check, Group
from whorl.errors import dtype_name

LIMIT = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}
ROOM = 128  # tokens decoded before the cache is cropped: more would be another number of keys than the yardstick's
LAYERS = 8  # whose steps share a clock in a graph
COPY = "a copy of as many bytes"  # the yardstick of steps in a graph
CHECKED = 64  # tokens of the text that is compared with float64

# With those that come, a step has 1,024 keys on average.
ON_A_CPU = {"batch": 1, "kept": 1024 - ROOM // 2, "heads": 8, "kv_heads": 2, "head_dim": 64}
ON_A_GPU = {"batch": 8, "kept": 2000, "heads": 32, "kv_heads": 8, "head_dim": 128}
SIZES = ON_A_GPU if torch.cuda.is_available() else ON_A_CPU
BAR, BARRED = 1.6, ("none", "rope", "alibi", "t5")  # of a step on a CPU, over the yardstick


def decode(
    *,
    device: str = "auto",
    dtype: str = "auto",
    batch: int = SIZES["batch"],
    kept: int = SIZES["kept"],
    heads: int = SIZES["heads"],
    kv_heads: int = SIZES["kv_heads"],
    head_dim: int = SIZES["head_dim"],
    encodings: str = "none,rope,alibi,t5,kerple,window,rerope,fire",
) -> Iterator[Group]:
    """The groups to time: steps of the encodings named, with commas between them, without padding and with it."""
    where, kind = setting("bench decode", device, dtype)
    sizes = {"batch": batch, "kept": kept, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
    shapes = [(batch, count, head_dim) for count in (heads, kv_heads, kv_heads)]
    made = {"dtype": kind, "device": where}
    summary = f"batch {batch}, {heads}/{kv_heads} heads of {head_dim}, {kept} tokens kept, {dtype_name(kind)}"
    barred = BARRED if where == "cpu" and sizes == ON_A_CPU else ()
    for padded in (False, True):
        yield _called(encodings, shapes, kept, made, summary, () if padded else barred, padded=padded)
    if where.startswith("cuda"):
        for padded in (False, True):
            yield _in_graphs(encodings, shapes, kept, made, summary, padded=padded)
        yield _placed(shapes, made)


def titles(*, padded: bool) -> tuple[str, str]:
    """The groups of steps called from Python and of steps in a graph, without padding or with it."""
    rows = ", rows of unequal length" if padded else ""
    return f"a step{rows}", f"a step in a replayed graph{rows}, {LAYERS} caches with one clock"


def _called(
    encodings: str, shapes: list[tuple[int, int, int]], kept: int, made: dict[str, Any], summary: str,
    barred: tuple[str, ...], *, padded: bool,
) -> Group:  # fmt: skip
    """Steps called from Python, beside torch's kernel alone."""
    (_, heads, dim), *_ = shapes
    cases = [Case(name="torch's kernel", run=_plain(shapes, kept, made), check=not_judged)]
    for name in encodings.split(","):
        encoding = build_for(name, heads=heads, head_dim=dim, width=heads * dim, length=kept).to(made["device"])
        steps = _Steps(encoding, shapes, made, padded)
        check = judged(steps.got, steps.expected, LIMIT[made["dtype"]])
        cases.append(Case(name=name, run=steps.timed(kept), check=check, bar=BAR if name in barred else None))
    what, _ = titles(padded=padded)
    return Group(name=what, summary=summary, cases=tuple(cases), device=made["device"], host=True)


def _in_graphs(
    encodings: str, shapes: list[tuple[int, int, int]], kept: int, made: dict[str, Any], summary: str, *, padded: bool
) -> Group:
    """Steps of one replayed CUDA graph, beside a copy that moves as many bytes as the keys and values have."""
    (batch, heads, dim), (_, kv_heads, _), _ = shapes
    size = batch * kv_heads * kept * dim  # a copy reads and writes it: as many bytes as keys and values together
    source = torch.zeros(size, **made)
    target = torch.empty_like(source)
    cases = [Case(name=COPY, run=lambda: target.copy_(source), check=not_judged)]
    for name in encodings.split(","):
        encoding = build_for(name, heads=heads, head_dim=dim, width=heads * dim, length=kept).to(made["device"])
        steps = _Steps(encoding, shapes, made, padded)
        run = steps.replayed(kept)
        if run is not None:
            cases.append(Case(name=name, run=run, check=judged(steps.got, steps.expected, LIMIT[made["dtype"]])))
    _, what = titles(padded=padded)
    return Group(
        name=what, summary=f"{summary}; times are of {LAYERS} steps", cases=tuple(cases), device=made["device"]
    )


def _placed(shapes: list[tuple[int, int, int]], made: dict[str, Any]) -> Group:
    """``transform_qk`` of one token, as called, over the rotation that it is."""
    (batch, heads, dim), (_, kv_heads, _), _ = shapes
    rope, positions = Rope(head_dim=dim), torch.full((batch, 1), 1234, device=made["device"])
    q, k = (torch.randn(batch, count, 1, dim, **made) for count in (heads, kv_heads))
    cos, sin = rope.tables(positions)

    def same() -> Check:
        pairs = zip(rope.transform_qk(q, k, positions, positions), rotate_qk(q, k, cos, sin), strict=True)
        equal = all(torch.equal(a, b) for a, b in pairs)
        return Check(ok=equal, text="bit for bit" if equal else "other numbers")

    cases = (
        Case(name="rotate_qk", run=lambda: rotate_qk(q, k, cos, sin), check=not_judged),
        Case(name="transform_qk", run=lambda: rope.transform_qk(q, k, positions, positions), check=same, bar=1.4),
    )
    summary = f"one token, batch {batch}, {heads}/{kv_heads} heads of {dim}"
    return Group(name="placing queries and keys", summary=summary, cases=cases, device=made["device"], host=True)


@dataclass(frozen=True)
class _Steps:
    """Tokens of a text for one encoding: a prompt into a cache, and one token after another."""

    encoding: Encoding
    shapes: list[tuple[int, int, int]]  # batch, heads and dimensions of queries, keys and values
    made: dict[str, Any]  # dtype and device
    padded: bool

    def tokens(self, count: int) -> tuple[list[Tensor], dict[str, Tensor]]:
        drawn = [torch.randn(batch, heads, count, dim, **self.made) for batch, heads, dim in self.shapes]
        batch, heads, dim = self.shapes[0]
        hidden = {"hidden": torch.randn(batch, count, heads * dim, **self.made)} if self.encoding.reads_hidden else {}
        return drawn, hidden

    def mask(self, count: int) -> Tensor | None:
        """Row i begins with i + 1 tokens of padding."""
        if not self.padded:
            return None
        rows = torch.arange(1, self.shapes[0][0] + 1, device=self.made["device"]).clamp(max=count - 1)
        return torch.arange(count, device=self.made["device"]) >= rows[:, None]

    def timed(self, kept: int) -> Callable[[], object]:
        """A function that decodes the next token of a text that grows."""
        cache = KVCache(encoding=self.encoding, capacity=kept + ROOM)
        step, more = self.tokens(1)
        left: int | None = None  # None before the prompt

        def run() -> Tensor:
            nonlocal left
            if left is None:
                prompt, hidden = self.tokens(kept)
                cache.attend(*prompt, key_mask=self.mask(kept), **hidden)
                left = ROOM
            if not left:
                cache.crop(kept)
                left = ROOM
            left -= 1
            out = cache.attend(*step, **more)
            if out.is_cuda:
                torch.cuda.synchronize()
            return out

        return run

    def replayed(self, kept: int) -> Callable[[], object] | None:
        """A function that replays a graph of one step for each of several layers; None where kernels do not decode."""
        caches = [KVCache(encoding=self.encoding, capacity=kept + ROOM) for _ in range(LAYERS)]
        step, more = self.tokens(1)
        prompt, hidden = self.tokens(kept)
        for cache in caches:
            cache.attend(*prompt, key_mask=self.mask(kept), **hidden)
            cache.attend(*step, **more)
            if cache.why_not_kernels() is not None:
                return None
        clock, graph = caches[0].count_on_device(), torch.cuda.CUDAGraph()
        for cache in caches[1:]:
            cache.count_on_device(clock)
        with torch.cuda.graph(graph):
            for cache in caches:
                cache.attend(*step, **more)
            clock.advance()

        left = ROOM - 2

        def run() -> list[KVCache]:
            nonlocal left
            if not left:
                left = ROOM - 2
                clock.next.fill_(kept + 1)
            left -= 1
            graph.replay()
            return caches  # whose memory the graph reads

        return run

    def got(self) -> Tensor:
        """The last step of a short text."""
        torch.manual_seed(0)
        (q, k, v), more = self.tokens(CHECKED)
        cache, last = KVCache(encoding=self.encoding), CHECKED - 1
        mask = self.mask(CHECKED)
        first = {name: x[:, :last] for name, x in more.items()}
        cache.attend(*(x[:, :, :last] for x in (q, k, v)), key_mask=None if mask is None else mask[:, :last], **first)
        return cache.attend(*(x[:, :, last:] for x in (q, k, v)), **{name: x[:, last:] for name, x in more.items()})

    def expected(self) -> Tensor:
        """The last row of a whole pass in float64."""
        torch.manual_seed(0)
        drawn, more = self.tokens(CHECKED)
        mask, rows = self.mask(CHECKED), {name: x.double() for name, x in more.items()}
        if mask is not None:
            rows |= {"key_mask": mask, "positions": (mask.cumsum(-1) - 1).clamp(min=0)}
        with torch.no_grad():
            return attention(*(x.double() for x in drawn), encoding=self.encoding, impl="torch", **rows)[:, :, -1:]


def _plain(shapes: list[tuple[int, int, int]], kept: int, made: dict[str, Any]) -> Callable[[], Tensor]:
    (batch, heads, dim), (_, kv_heads, _), _ = shapes
    q = torch.randn(batch, heads, 1, dim, **made)
    k, v = (torch.randn(batch, kv_heads, kept + ROOM // 2, dim, **made) for _ in range(2))
    grouped = heads != kv_heads
    if not q.is_cuda:
        return lambda: scaled_dot_product_attention(q, k, v, enable_gqa=grouped)
    backends = [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]  # the one that torch likes best plans for every length

    def run() -> Tensor:
        with sdpa_kernel(backends):
            out = scaled_dot_product_attention(q, k, v, enable_gqa=grouped)
        torch.cuda.synchronize()
        return out

    return run
