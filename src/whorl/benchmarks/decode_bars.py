"""What ``whorl bench decode`` says of a step on a GPU: numbers made from several of its groups, held against bars.

A step called from Python takes the time of its kernels, which a replayed graph shows, and what stands beside them. The
kernels take at least as long as reading the keys and values, at the speed of a copy that moves as many bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from whorl.benchmarks.decode import COPY, LAYERS, ON_A_GPU, titles

LAUNCHES = 3e-6  # seconds that the bound has for two launches, beside reading keys and values

BARS = {"beside the device": 90e-6, "over the bound": 1.4, "over RoPE": 1.3}
BARRED = ("none", "rope", "alibi", "t5", "kerple", "window")  # the others compute more than a step must

Rows = Mapping[str, Mapping[str, Any]]  # the results of a group by their names


@dataclass(frozen=True, kw_only=True)
class Step:
    """A step with one encoding: seconds as called and on the device, the least those could be, and RoPE's."""

    name: str
    padded: bool
    called: float
    device: float
    bound: float
    rope: float | None  # on the device, without padding; None where RoPE was not measured

    def figures(self) -> dict[str, float]:
        """The numbers that have bars: seconds beside the device, and two ratios."""
        own = {"beside the device": self.called - self.device, "over the bound": self.device / self.bound}
        return own if self.rope is None else own | {"over RoPE": self.device / self.rope}

    def missed(self) -> list[str]:
        """The bars that are not met."""
        return [what for what, figure in self.figures().items() if figure > BARS[what]]

    @property
    def label(self) -> str:
        return f"{self.name}, padded" if self.padded else self.name


def steps(groups: Mapping[str, Rows]) -> list[Step]:
    """The steps that a graph replayed, without padding and then with it; none in a report of a CPU."""
    found: list[Step] = []
    _, without_padding = titles(padded=False)
    rope = _seconds(groups.get(without_padding, {})).get("rope")
    for padded in (False, True):
        called, replayed = (_seconds(groups.get(title, {})) for title in titles(padded=padded))
        bound = replayed.pop(COPY, 0.0) + LAUNCHES
        device = {name: seconds / LAYERS for name, seconds in replayed.items() if name in called}
        found += [
            Step(
                name=name,
                padded=padded,
                called=called[name],
                device=seconds,
                bound=bound,
                rope=None if rope is None else rope / LAYERS,
            )
            for name, seconds in device.items()
        ]
    return found


def _seconds(rows: Rows) -> dict[str, float]:
    return {name: row["seconds"] for name, row in rows.items() if row["seconds"] is not None}


def conclusion(report: Mapping[str, Any]) -> tuple[str, list[str], list[list[str]]] | None:
    """A title, a header and rows to print behind the groups of a report; None where no graph was replayed."""
    groups = {group["name"]: {row["name"]: row for row in group["results"]} for group in report["groups"]}
    made = steps(groups)
    if not made:
        return None
    settings = report["settings"]
    usual = all(settings[key] == size for key, size in ON_A_GPU.items() if key != "kept")
    usual = usual and settings["dtype"] in ("auto", "bfloat16")
    header = [f"{what} (≤ {bar * 1e6:.0f} µs)" if bar < 1e-3 else f"{what} (≤ {bar:g})" for what, bar in BARS.items()]
    rows = [[step.label, *_cells(step), _verdict(step) if usual else ""] for step in made]
    return TITLE, ["a step with", *header, "bars"], rows


TITLE = (
    "beside the device: time as called less that in a graph; the bound: reading K and V at the speed of a copy, and "
    f"{LAUNCHES * 1e6:.0f} µs"
)


def _cells(step: Step) -> list[str]:
    figures = step.figures()
    beside = f"{figures.pop('beside the device') * 1e6:.0f} µs"
    ratios = [f"{ratio:.2f}" for ratio in figures.values()]
    return [beside, *ratios, *[""] * (len(BARS) - 1 - len(ratios))]


def _verdict(step: Step) -> str:
    if step.name not in BARRED:
        return ""
    if missed := step.missed():
        return f"not met: {', '.join(missed)}"
    return "met" if len(step.figures()) == len(BARS) else "met, without RoPE"
