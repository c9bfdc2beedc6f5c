"""The codes of all positions in two dimensions."""

from __future__ import annotations

from typing import Literal

import numpy as np

from whorl import Encoding, Sinusoidal
from whorl.analysis.similarity import codes_of, pca, tsne
from whorl.errors import unknown
from whorl.plot import style

METHODS = ("pca", "tsne")


def positions(
    encoding: Encoding | None = None,
    length: int = 100,
    method: Literal["pca", "tsne"] = "pca",
    *,
    ax: style.Axes | None = None,
) -> style.Axes:
    """Each position as a point, near where its code is near; of a sinusoidal code of width 64 by default.

    ``method="tsne"`` needs scikit-learn.
    """
    encoding = Sinusoidal(width=64) if encoding is None else encoding
    if method not in METHODS:
        raise unknown("method", method, METHODS, call="positions")
    style.check_length("positions", length)
    codes = codes_of(encoding, np.arange(length))
    points, shares = pca(codes) if method == "pca" else tsne(codes, perplexity=min(30.0, (length - 1) / 3))
    ax = style.axes(ax, (5.8, 4.6))
    ax.plot(*points.T, color=style.FAINT, linewidth=0.9, zorder=1)
    dots = ax.scatter(*points.T, c=np.arange(length), cmap=style.SEQUENTIAL, s=16, zorder=2)
    name = f"{length} positions of the {encoding.config.name} code, width {codes.shape[1]}"
    if shares is None:
        title = f"{name}, by t-SNE: how far apart groups lie says nothing"
        style.dress(ax, title, "t-SNE 1 (no unit)", "t-SNE 2 (no unit)")
    else:
        held = f"two directions hold {100 * shares.sum():.0f} % of the variance"
        one, two = (f"direction {i + 1} ({100 * share:.0f} % of the variance)" for i, share in enumerate(shares))
        style.dress(ax, f"{name}, by PCA: {held}", one, two)
    ax.set_aspect("equal", adjustable="datalim")
    style.colour_bar(ax, dots, "position")
    return ax
