"""Each pair as a clock whose hand is turned by the position."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from whorl import Encoding, Rope
from whorl.analysis.wavelengths import angles, frequencies_of, wavelengths
from whorl.plot import style

MOST = 8
COLUMNS = 4
DIAL, CAPTION = 1.25, 0.5  # inches a dial and the words above it take


def clocks(
    encoding: Encoding | None = None,
    length: int = 8,
    pairs: Sequence[int] | None = None,
    *,
    ax: style.Axes | None = None,
) -> style.Axes:
    """The hand of each pair at the positions 0 … length - 1, from the right and counter-clockwise; RoPE by default.

    Later hands are longer, so that hands one over another can be told apart.
    Up to eight pairs are drawn, spread over all of them, unless ``pairs`` says which.
    """
    encoding = Rope(head_dim=8) if encoding is None else encoding
    style.check_length("clocks", length)
    w = frequencies_of(encoding)
    chosen = style.indices("clocks", "pairs", pairs, len(w), MOST)
    hands = angles(w[chosen], np.arange(length))
    columns = min(COLUMNS, len(chosen))
    rows = math.ceil(len(chosen) / columns)
    high = rows * DIAL + (rows - 1) * CAPTION
    ax = style.axes(ax, (7.2, high + 0.95))
    colours = _colours(length)
    shades = colours.to_rgba(np.arange(length))
    title = f"{style.labels([encoding])[0]}: each position turns fast pairs far and slow pairs hardly"
    made = style.panels(ax, title, rows, columns, gap=(0.03, CAPTION / high), right=0.12, above=32.0)
    grid = [panel for row in made for panel in row]
    turns = wavelengths(w)
    rim = np.linspace(0, 2 * math.pi, 181)
    for index, panel in enumerate(grid):
        panel.set_axis_off()
        if index >= len(chosen):
            continue
        panel.plot(np.cos(rim), np.sin(rim), color=style.GREY, linewidth=0.9)
        for position in range(length):
            turned, reach = hands[position, index], 0.35 + 0.65 * (position + 1) / length
            tip = reach * math.cos(turned), reach * math.sin(turned)
            panel.plot([0, tip[0]], [0, tip[1]], color=shades[position], linewidth=1.6, zorder=length - position)
            panel.plot(*tip, "o", color=shades[position], markersize=3.5, zorder=length + 1)
        panel.set_xlim(-1.12, 1.12)
        panel.set_ylim(-1.12, 1.12)
        panel.set_aspect("equal")
        turn = turns[chosen[index]]
        period = f"turns in {style.count(turn)} positions" if np.isfinite(turn) else "does not turn"
        panel.set_title(f"pair {chosen[index]}\n{period}", fontsize=style.SMALL)
    from matplotlib.ticker import MaxNLocator  # here, where matplotlib is known to be installed

    bar = style.colour_bar(ax, colours, "position", place=(0.94, 0.0, 0.025, 1.0))
    bar.ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    return ax


def _colours(length: int) -> style.ScalarMappable:
    """The colours of the positions, the first dark and the last bright."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    return ScalarMappable(Normalize(0, max(1, length - 1)), style.SEQUENTIAL)
