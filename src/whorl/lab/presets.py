"""Presets: complete recipes of a comparison, from some minutes on two cores to a graphics card.

demo     0.6 M parameters, trained at 64, tested to 512: at most 5 minutes on 2 cores
laptop   1.9 M parameters, trained at 256, tested to 2048: some 10 minutes on 8 cores
gpu      10.7 M parameters, trained at 512, tested to 8192: at most 8 minutes on one H200

Every length scores the same last tokens of each sample, as many as the trained length: 8,192 bytes in the demo, 81,920
and 163,840 in the others. The models of the demo are too small to find a key of letters, so a quarter of the rows they
are trained on carries a mark to be found again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from whorl.errors import unknown


@dataclass(frozen=True, kw_only=True)
class Preset:
    """What a comparison takes where it is not told otherwise."""

    encodings: tuple[str, ...]
    train_length: int
    longest: int  # times the trained length, the shortest being a quarter of it
    batch: int
    steps: int
    eval_bytes: int
    repairs: tuple[str, ...]
    layers: int
    width: int
    heads: int
    corpus: str = "stdlib"
    run: dict[str, Any] = field(default_factory=dict)  # further settings of every run

    @property
    def lengths(self) -> tuple[int, ...]:
        """A quarter of the trained length, and doubled up to the longest."""
        return lengths_for(self.train_length, self.longest)


def lengths_for(train_length: int, longest: int) -> tuple[int, ...]:
    """The lengths evaluated: a quarter, a half, once, twice … up to ``longest`` times the trained one.

    >>> lengths_for(64, 8)
    (16, 32, 64, 128, 256, 512)
    """
    found = [train_length // 4, train_length // 2, train_length]
    while found[-1] * 2 <= longest * train_length:
        found.append(found[-1] * 2)
    return tuple(length for length in found if length >= 2)


SAME: dict[str, Any] = {"protocols": ["same_last"]}  # the one that tells whether more context is used

PRESETS = {
    "demo": Preset(
        encodings=("sinusoidal", "rope", "alibi", "kerple", "t5", "none"),
        train_length=64,
        longest=8,
        batch=20,
        steps=400,
        eval_bytes=65_536,
        repairs=("ntk", "rerope+logn", "window"),
        layers=3,
        width=128,
        heads=4,
        run={"learning_rate": 4e-3, "recall": 0.25, **SAME},  # four times the usual rate: its steps are few
    ),
    "laptop": Preset(
        encodings=("sinusoidal", "rope", "alibi", "kerple", "sandwich", "t5", "none"),
        train_length=256,
        longest=8,
        batch=16,
        steps=800,
        eval_bytes=655_360,
        repairs=("pi", "ntk", "yarn", "yarn-beta8", "rerope", "rerope+logn", "window"),
        layers=4,
        width=192,
        heads=6,
        run=SAME,
    ),
    "gpu": Preset(
        encodings=("sinusoidal", "rope", "alibi", "kerple", "sandwich", "t5", "none"),
        train_length=512,
        longest=16,
        batch=64,
        steps=1500,
        eval_bytes=2_621_440,
        repairs=("pi", "ntk", "yarn", "yarn-beta8", "logn", "rerope", "rerope+logn", "window"),
        layers=6,
        width=384,
        heads=6,
        corpus="site-packages",
        run={"precision": "bfloat16", "compile": True, "device": "cuda", **SAME},
    ),
}


def preset(name: str) -> Preset:
    """The preset of that name."""
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS, call="compare")
    return PRESETS[name]
