"""The bias by head, query and key: one row of maps for each encoding."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from whorl import Alibi
from whorl.analysis.bias_maps import bias_map
from whorl.plot import style

COLUMNS = 4
FLOOR = -10.0  # below this many logits a key has less than 1/20,000 of the weight of one at 0: no need to tell apart


def bias(
    encodings: style.Encodings | None = None,
    length: int = 64,
    heads: Sequence[int] | None = None,
    *,
    causal: bool = True,
    ax: style.Axes | None = None,
) -> style.Axes:
    """The bias of a few heads for every query and key, a row for each encoding; of ALiBi by default.

    Four heads are drawn, from the first to the last, unless ``heads`` says which. Each row has its own colours, cut
    off at -10 logits. With ``causal`` keys after the query are left blank. Learned numbers are drawn as they are.
    """
    drawn = style.encodings_of("bias", Alibi(heads=8) if encodings is None else encodings)
    style.check_length("bias", length)
    maps = [bias_map(each, length, causal=causal) for each in drawn]
    chosen = [style.indices("bias", "heads", heads, len(each), COLUMNS) for each in maps]
    columns = max(map(len, chosen))
    ax = style.axes(ax, (7.2, 1.0 + 1.75 * len(drawn)))
    names = style.labels(drawn)
    title = f"{', '.join(names)}: the bias on the score of a query and a key, by head"
    grid = style.panels(ax, title, len(drawn), columns, gap=(0.03, 0.34 / (len(drawn) + 1)), right=0.13)
    for row, (values, its, name) in enumerate(zip(maps, chosen, names, strict=True)):
        last = row == len(drawn) - 1
        _draw_row(grid[row], values, its, f"{name}\nquery position", "key position" if last else "")
    return ax


def _draw_row(row: Sequence[style.Axes], values: np.ndarray, heads: Sequence[int], y: str, x: str) -> None:
    seen = values[list(heads)]
    finite = seen[np.isfinite(seen)]
    low, high = float(finite.min()), float(finite.max())
    floor = max(low, FLOOR)
    image = None
    for column, panel in enumerate(row):
        if column >= len(heads):
            panel.set_axis_off()
            continue
        image = style.show_map(panel, values[heads[column]], cmap=style.SEQUENTIAL, vmin=floor, vmax=max(high, floor))
        panel.set_facecolor(style.PALE)
        style.dress_map(panel, "", x, y if column == 0 else "")
        panel.set_title(f"head {heads[column]}", fontsize=style.SMALL)
        panel.tick_params(labelbottom=bool(x), labelleft=column == 0)
    assert image is not None
    last, cut = row[len(heads) - 1], "min" if floor > low else "neither"
    style.colour_bar(last, image, "bias (logits)", place=(1.08, 0.0, 0.09, 1.0), extend=cut)
