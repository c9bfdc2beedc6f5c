"""Values of a code by position, one panel for each column."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from whorl import Encoding, Sinusoidal
from whorl.analysis.similarity import codes_of
from whorl.analysis.wavelengths import frequencies_of, wavelengths
from whorl.errors import invalid
from whorl.plot import style


def waves(
    encoding: Encoding | None = None,
    columns: Sequence[int] = (0, 32, 64),
    length: int = 512,
    *,
    ax: style.Axes | None = None,
) -> style.Axes:
    """The value of some columns of a code at each position; of a sinusoidal code of width 128 by default.

    The panels are the ``child_axes`` of the Axes that comes back.
    """
    encoding = Sinusoidal(width=128) if encoding is None else encoding
    style.check_length("waves", length)
    values = codes_of(encoding, np.arange(length))
    width = values.shape[1]
    for column in columns:
        if not 0 <= column < width:
            raise invalid("waves", "columns", f"from 0 to {width - 1}", column)
    ax = style.axes(ax, (7.2, 1.0 + 1.25 * len(columns)))
    name = encoding.config.name
    title = f"The {name} code of width {width}: the value of a few columns by position"
    rows = style.panels(ax, title, len(columns), 1, gap=(0.0, 0.3 / max(len(columns), 1)))
    limit = 1.08 * float(np.abs(values[:, list(columns)]).max())
    for index, ((panel,), column) in enumerate(zip(rows, columns, strict=True)):
        panel.plot(np.arange(length), values[:, column], color=style.COLOURS[index % 7], linewidth=1.1)
        panel.set_xlim(0, max(1, length - 1))
        panel.set_ylim(-limit, limit)
        last = index == len(columns) - 1
        style.dress(panel, "", "position" if last else "", "value")
        panel.set_title(_describe(encoding, column), loc="left", fontsize=style.NORMAL)
        panel.tick_params(labelbottom=last)
    return ax


def _describe(encoding: Encoding, column: int) -> str:
    if not isinstance(encoding, Sinusoidal):
        return f"column {column}"
    pairs = encoding.config.width // 2
    if encoding.config.order == "interleaved":
        pair, wave = column // 2, ("sin", "cos")[column % 2]
    elif column >= 2 * pairs:
        return f"column {column}: always 0"
    else:
        pair, wave = column % pairs, ("sin", "cos")[column // pairs]
    turn = float(wavelengths(frequencies_of(encoding))[pair])
    return f"column {column}: {wave}, one turn in {style.count(turn)} positions"
