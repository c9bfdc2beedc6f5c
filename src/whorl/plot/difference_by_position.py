"""Cosines of two rotations that differ, by position."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from whorl import WhorlError
from whorl.plot import style

if TYPE_CHECKING:
    from whorl.bridge.difference import Difference


def differences(compared: Iterable[tuple[str, Difference]], *, ax: style.Axes | None = None) -> style.Axes:
    """The largest |cos a - cos b| of any pair within so many positions, a line for each kind of layers.

    ``compared`` are labels, and what ``whorl.diff`` returns.
    """
    lines = [
        (f"{label}, {group.kind}, serving {one.length:,}", one.cosines)
        for label, difference in compared
        for group in difference.groups
        for one in group.rotations
    ]
    if not lines:
        raise WhorlError("differences: no layers rotate in both. There is nothing to draw.")
    ax = style.axes(ax)
    for index, (label, cosines) in enumerate(lines):
        ax.plot(
            [positions for positions, _ in cosines],
            [value for _, value in cosines],
            label=style.plain(label),
            **style.line_style(index),
        )
    ax.set_xscale("log", base=8)
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    style.dress(ax, "How far two rotations are apart", "within so many positions", "largest |cos a - cos b|")
    style.key(ax)
    return ax
