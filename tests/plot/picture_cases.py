"""Every kind of picture at its default, a few beside it, and what the tests read out of a figure."""

from __future__ import annotations

import matplotlib
import torch

matplotlib.use("Agg")

from matplotlib.axes import Axes
from matplotlib.text import Text

import whorl
import whorl.plot

LENGTHS = (16, 32, 64, 128, 256, 512)


def comparison() -> dict:
    """A comparison in the lab's schema, with made-up numbers that fan out past the trained length."""

    def value(row, length):
        mean = 2.2 + 0.03 * row + 0.2 * row * max(0, LENGTHS.index(length) - 2)
        return {"mean": mean, "low": mean - 0.1, "high": mean + 0.2, "n": 3}

    names = ("rope", "alibi", "kerple", "sinusoidal", "none", "t5", "sandwich", "fire")
    rows = [(name, "as trained") for name in names] + [("rope", "rerope+logn")]
    return {
        "schema": "whorl-lab-comparison/1",
        "train_length": 64,
        "lengths": list(LENGTHS),
        "rows": [
            {
                "label": label,
                "variant": variant,
                "by_length": [
                    {"length": length, "bits_per_byte": {"same_last": value(row, length), "sliding": None}}
                    for length in LENGTHS
                ],
            }
            for row, (label, variant) in enumerate(rows)
        ],
    }


def biases():
    torch.manual_seed(0)
    return [whorl.Alibi(heads=8), whorl.T5(heads=8), whorl.Kerple(heads=8)]


def yarns():
    return [whorl.Rope(head_dim=128, scaling=whorl.Yarn(factor=factor, original_length=4096)) for factor in (4.0, 16.0)]


plot = whorl.plot
CASES = {kind: getattr(plot, kind) for kind in plot.KINDS if kind != "losses"} | {
    "losses": lambda ax=None: plot.losses(comparison(), ax=ax),
    "learned codes": lambda ax=None: plot.codes(whorl.Learned(width=16, length=64), length=20, ax=ax),
    "learned waves": lambda ax=None: plot.waves(whorl.Learned(width=16, length=64), (3,), length=20, ax=ax),
    "frequencies of two": lambda ax=None: plot.frequencies(yarns(), ax=ax),
    "a decay of two": lambda ax=None: plot.decay([whorl.Rope(head_dim=64, base=b) for b in (1e4, 5e5)], ax=ax),
    "a decay beside a bias": lambda ax=None: plot.decay([whorl.Rope(head_dim=128), whorl.Alibi(heads=8)], 8192, ax=ax),
    "clocks in two rows": lambda ax=None: plot.clocks(whorl.Rope(head_dim=64), 12, ax=ax),
    "a clock": lambda ax=None: plot.clocks(whorl.Rope(head_dim=64), 3, [5], ax=ax),
    "three biases": lambda ax=None: plot.bias(biases(), ax=ax),
    "both sides": lambda ax=None: plot.bias(whorl.Alibi(heads=2, form="symmetric"), causal=False, ax=ax),
    "one scaling": lambda ax=None: plot.scaling(yarns()[0], ax=ax),
    "scalings of one name": lambda ax=None: plot.scaling(yarns(), ax=ax),
    "context without scaling": lambda ax=None: plot.context(whorl.Rope(head_dim=64), trained=512, ax=ax),
    "precision nearby": lambda ax=None: plot.precision(whorl.Rope(head_dim=64), 5000, ax=ax),
}


def every_axes(ax: Axes) -> list[Axes]:
    """An Axes and all the Axes inside it."""
    return [ax, *(inner for child in ax.child_axes for inner in every_axes(child))]


def figure_axes(ax: Axes) -> list[Axes]:
    """Every Axes of the figure that an Axes belongs to."""
    found = {id(each): each for outer in ax.figure.axes for each in every_axes(outer)}
    return list(found.values())


def written(ax: Axes) -> list[Text]:
    """Every text that is drawn in the figure of an Axes, tick labels in view among them."""
    found: list[Text] = []
    for each in figure_axes(ax):
        found += [each.title, each._left_title, each._right_title, *each.texts]
        legend = each.get_legend()
        found += [] if legend is None else [*legend.get_texts(), legend.get_title()]
        if each.axison:
            for axis in (each.xaxis, each.yaxis):
                found += [axis.label, axis.offsetText]
                found += [label for tick in axis._update_ticks() for label in (tick.label1, tick.label2)]
    return [text for text in found if text.get_visible() and text.get_text().strip()]
