"""What people read: answers of the command line, and the messages of wrong calls."""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

import whorl
from probe.recording import Probe

COMMANDS = (
    *("list", "list --table", "list --json", "show rope", "show rope --json", "show alibi"),
    *("show xpos", "show t5 --all", "show rope --scaling yarn --factor 4 --original-length 4096 --length 8192"),
    *("show roep", "show", "verify roep", "nothing"),
)


def run(probe: Probe) -> None:
    for words in COMMANDS:
        probe.ask(f"command {words}", lambda words=words: said(words.split()))
    for name in whorl.names():
        probe.ask(f"command show {name} in short", lambda name=name: said(["show", name]))
    with probe.guarded("wrong"):
        for name, call in wrong_calls().items():
            probe.ask(f"wrong {name}", call)


def said(words: Sequence[str]) -> str:
    """The exit status of a command of whorl, and what it printed on both streams."""
    from whorl.cli.app import run as run_command

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = run_command(list(words))
    table = without_column(out.getvalue(), "time")
    return f"{status}\n{table}\n{err.getvalue()}".replace(whorl.__version__, "VERSION")


def without_column(text: str, name: str) -> str:
    """A text whose first line heads a Markdown table, without the column of this name; any other text as it is."""
    lines = [line.split(" | ") if line.startswith("| ") else [line] for line in text.split("\n")]
    if name not in lines[0]:
        return text
    place, width = lines[0].index(name), len(lines[0])
    return "\n".join(" | ".join(line[:place] + line[place + 1 :] if len(line) == width else line) for line in lines)


def wrong_calls() -> dict[str, Callable[[], Any]]:
    x, ids = torch.zeros(2, 4, 5, 16), torch.arange(5)
    cos, sin = torch.ones(5, 8), torch.zeros(5, 8)
    rope = whorl.Rope(head_dim=16)
    mrope = whorl.MRope(head_dim=16, sections=(2, 3, 3))
    cope = whorl.Cope(head_dim=16)

    def attend(**options: Any) -> Callable[[], Any]:
        return lambda: whorl.attention(x, x, x, **{"encoding": rope} | options)

    def linear(**options: Any) -> Callable[[], Any]:
        return lambda: whorl.linear_attention(x, x, x, **{"encoding": rope} | options)

    def cache(does: Callable[[Any], Any], **options: Any) -> Callable[[], Any]:
        def call() -> None:
            kept = whorl.KVCache(**{"encoding": rope} | options)
            kept.attend(x, x, x)
            does(kept)

        return call

    return {
        "odd head": lambda: whorl.Rope(head_dim=33),
        "no head": lambda: whorl.Rope(),
        "head as text": lambda: whorl.Rope(head_dim="64"),
        "rotary dim too large": lambda: whorl.Rope(head_dim=16, rotary_dim=18),
        "NaN base": lambda: whorl.Rope(head_dim=16, base=math.nan),
        "base ignored": lambda: whorl.Rope(head_dim=16, base=1e4, frequencies=[1.0] * 8),
        "unknown layout": lambda: whorl.Rope(head_dim=16, layout="interleave"),
        "unknown setting": lambda: whorl.Rope(head_dim=16, theta=1e4),
        "without a name": lambda: whorl.Linear(4.0),
        "factor below one": lambda: whorl.Ntk(factor=0.5),
        "scaling by name": lambda: whorl.Rope(head_dim=16, scaling="yarn"),
        "unknown encoding": lambda: whorl.build("roep", head_dim=16),
        "dict without a name": lambda: whorl.from_dict({"head_dim": 16}),
        "no heads": lambda: whorl.Alibi(heads=0),
        "slopes": lambda: whorl.Alibi(heads=4, slopes=(1.0,)),
        "sections": lambda: whorl.MRope(head_dim=16, sections=(2, 2, 2)),
        "joined with itself": lambda: whorl.Combined(rope, whorl.Rope(head_dim=16)),
        "joined alone": lambda: whorl.Combined(rope),
        "joined axes": lambda: whorl.Combined(mrope, whorl.Alibi(heads=4)),
        "joined rotations": lambda: whorl.Combined(rope, whorl.ReRope(head_dim=16, window=3)),
        "joined query scale": lambda: whorl.Combined(mrope, whorl.LogN()),
        "joined window": lambda: whorl.Combined(mrope, whorl.Window(size=4)),
        "joined bias": lambda: whorl.Combined(whorl.Alibi(heads=4), whorl.Kerple(heads=4)),
        "joined scores": lambda: whorl.Combined(cope, whorl.Shaw(head_dim=16)),
        "joined text": lambda: whorl.Combined(rope, "alibi"),
        "plan of inputs": lambda: whorl.LayerPlan([whorl.Sinusoidal(width=64), rope]),
        "encoding by name": attend(encoding="rope"),
        "heads": attend(encoding=whorl.Alibi(heads=8)),
        "head dim": attend(encoding=whorl.Rope(head_dim=32)),
        "causal": attend(causal="yes"),
        "causal only": attend(encoding=cope, causal=False),
        "axes have no order": attend(encoding=mrope, causal="positions"),
        "positions": attend(positions=torch.arange(4)),
        "positions of a batch": attend(positions=torch.zeros(3, 5, dtype=torch.long)),
        "key mask": attend(key_mask=torch.ones(2, 4, dtype=torch.bool)),
        "documents alone": attend(key_documents=ids),
        "dropout": attend(dropout=1.5),
        "softcap": attend(softcap=-1.0),
        "length": attend(length=0),
        "impl": attend(impl="cuda"),
        "triton": attend(impl="triton", encoding=whorl.Rope(head_dim=16)),
        "flex": attend(impl="flex", encoding=cope),
        "hidden missing": attend(encoding=whorl.ForgettingGate(heads=4, width=64)),
        "hidden ignored": attend(hidden=torch.zeros(2, 5, 64)),
        "linear with a bias": linear(encoding=whorl.Alibi(heads=4)),
        "linear with a mask": linear(encoding=whorl.Window(size=4)),
        "linear with scores": linear(encoding=cope),
        "linear with branches": linear(encoding=whorl.ReRope(head_dim=16, window=3)),
        "linear with query scales": linear(encoding=whorl.LogN()),
        "linear form": linear(form="half"),
        "linear rates": linear(form="decay"),
        "cache policy": cache(lambda kept: None, policy="transformed", encoding=whorl.ReRope(head_dim=16, window=3)),
        "cache capacity": cache(lambda kept: kept.attend(x, x, x), capacity=8),
        "cache crop": cache(lambda kept: kept.crop(9)),
        "cache rows": cache(lambda kept: kept.reorder([2])),
        "cache heads": cache(lambda kept: kept.change_encoding(whorl.Alibi(heads=8))),
        "cache hidden": cache(lambda kept: kept.change_encoding(whorl.ForgettingGate(heads=4, width=64))),
        "rotate tables": lambda: whorl.rotate(x, cos[:4], sin[:4]),
        "rotate start": lambda: whorl.rotate(x, cos, sin, start=4),
        "rotate order": lambda: whorl.rotate(x, cos, sin, order="bldh"),
        "rotate impl": lambda: whorl.rotate(x, cos, sin, impl="flex"),
        "moved keys": lambda: whorl.rerotate(x, rope, whorl.Alibi(heads=4), ids),
        "learned range": lambda: whorl.Learned(width=8, length=4).add_to_input(torch.zeros(5, 8), ids),
        "shaw fractions": attend(encoding=whorl.Shaw(head_dim=16), positions=ids * 0.5),
        "no rope in config": lambda: whorl.Rope.from_hf({"model_type": "gpt2"}),
        "config as text": lambda: whorl.Rope.from_hf("llama"),
    }
