"""The speed that a scaling leaves to each pair."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from whorl import Encoding, Linear, Llama3, Ntk, Rope, WhorlError, Yarn
from whorl.analysis.scaling_changes import changes
from whorl.analysis.wavelengths import turns
from whorl.plot import style


def scaling(
    encodings: style.Encodings | None = None, *, length: int | None = None, ax: style.Axes | None = None
) -> style.Axes:
    """Frequency after over frequency before, for each pair; of four scalings by 4 from 4096 positions by default.

    ``length`` is what a scaling that depends on it is to serve. A dotted line marks the pair that makes one turn
    within the original length of the first scaling that has one.
    """
    drawn = style.encodings_of("scaling", _usual() if encodings is None else encodings)
    for each in drawn:
        if getattr(each.config, "scaling", None) is None:
            raise WhorlError(
                f"scaling: {each.config.name} has no scaling. Pass one, as in whorl.Rope(head_dim=128, "
                "scaling=whorl.Linear(factor=4.0))."
            )
    ax = style.axes(ax)
    lowest = 1.0
    for index, (encoding, label) in enumerate(zip(drawn, style.labels(drawn), strict=True)):
        kept = changes(encoding, length).kept
        look = style.line_style(index)
        marker = style.MARKERS[index % len(style.MARKERS)]
        look |= {"marker": marker, "markersize": 4.5, "markevery": (2 * index % 8, 8)}  # not all over one another
        ax.plot(np.arange(len(kept)), kept, label=label.removeprefix("rope + "), **look)
        lowest = min(lowest, float(kept[kept > 0].min(initial=1.0)))
    _mark_one_turn(ax, drawn)
    ax.set_yscale("log", base=2)
    ax.set_ylim(lowest / 1.25, 1.25)
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:.3g}")
    style.dress(ax, _title(drawn, length), "pair (fast to slow)", "frequency after / before")
    style.key(ax)
    return ax


def _usual() -> list[Encoding]:
    trained = {"factor": 4.0, "original_length": 4096}
    schemes = (Linear(factor=4.0), Ntk(factor=4.0), Yarn(**trained), Llama3(**trained))
    return [Rope(head_dim=128, scaling=scheme) for scheme in schemes]


def _mark_one_turn(ax: style.Axes, drawn: Sequence[Encoding]) -> None:
    for each in drawn:
        original = getattr(each.config.scaling, "original_length", None)  # pyright: ignore[reportAttributeAccessIssue]
        if original is not None:
            pair = int((turns(changes(each).before, original) >= 1).sum()) - 0.5
            label = f"one turn in {original:,} positions"
            ax.axvline(pair, color=style.GREY, linewidth=1.0, linestyle=":", label=label)
            return


def _title(drawn: Sequence[Encoding], length: int | None) -> str:
    served = "" if length is None else f", serving {length:,} positions"
    if len(drawn) > 1:
        return f"How much of its speed each pair keeps{served}: 1 is kept, below is slowed down"
    kept = changes(drawn[0], length).kept
    slowed = int((kept < 1 - 1e-12).sum())
    return f"{style.labels(drawn)[0]}: {slowed} of {len(kept)} pairs are slowed down{served}"
