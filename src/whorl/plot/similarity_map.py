"""Inner products of the codes of every two positions."""

from __future__ import annotations

import numpy as np

from whorl import Encoding, Sinusoidal
from whorl.analysis.similarity import codes_of, products
from whorl.plot import style


def similarity(encoding: Encoding | None = None, length: int = 100, *, ax: style.Axes | None = None) -> style.Axes:
    """<p_i, p_j> of the codes of every two positions; of a sinusoidal code of width 64 by default.

    Colours go from -d/2 to d/2 for a sinusoidal code, whose norm is sqrt(d/2), and to the largest product otherwise.
    """
    encoding = Sinusoidal(width=64) if encoding is None else encoding
    style.check_length("similarity", length)
    codes = codes_of(encoding, np.arange(length))
    values = products(codes)
    ax = style.axes(ax, (5.4, 4.6))
    name, width = encoding.config.name, codes.shape[1]
    title = f"{name} code, width {width}: the product of two positions"
    if isinstance(encoding, Sinusoidal):
        limit = encoding.config.scale**2 * width / 2
        title += " depends on their distance alone"
    else:
        limit = float(np.abs(values).max()) or 1.0
    style.signed_map(ax, values, "inner product", limit)
    style.dress_map(ax, title, "position", "position")
    return ax
