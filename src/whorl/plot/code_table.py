"""The code of each position as a table of numbers on coloured cells."""

from __future__ import annotations

import numpy as np

from whorl import Encoding, Sinusoidal
from whorl.analysis.similarity import codes_of
from whorl.plot import style

MOST_NUMBERS = 160  # more cells than this have no room for their number


def codes(encoding: Encoding | None = None, length: int = 8, *, ax: style.Axes | None = None) -> style.Axes:
    """The codes of the first positions, a row for each; of a sinusoidal code of width 8 by default."""
    encoding = Sinusoidal(width=8) if encoding is None else encoding
    style.check_length("codes", length)
    values = codes_of(encoding, np.arange(length))
    rows, width = values.shape
    ax = style.axes(ax)
    limit = float(np.abs(values).max()) or 1.0
    style.signed_map(ax, values, "value", limit)
    if values.size <= MOST_NUMBERS:
        for row, column in np.ndindex(rows, width):
            value = values[row, column]
            ink = "white" if abs(value) > 0.75 * limit else "black"
            text = f"{value + 0.0:.3f}".replace("-", "−")
            ax.text(column, row, text, ha="center", va="center", fontsize=style.SMALL, color=ink)
        ax.set_xticks(range(width))
        ax.set_yticks(range(rows))
    title = f"The {encoding.config.name} code of width {width}, positions 0 to {rows - 1}"
    if isinstance(encoding, Sinusoidal):
        title += ": left columns turn fast, right ones hardly move"
    style.dress_map(ax, title, "column", "position")
    return ax
