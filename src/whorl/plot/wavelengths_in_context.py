"""Wavelengths against the context: which pairs finished a turn in training, and which do after scaling."""

from __future__ import annotations

import numpy as np

from whorl import Encoding, Rope, Yarn
from whorl.analysis.scaling_changes import unscaled
from whorl.analysis.wavelengths import frequencies_of, wavelengths
from whorl.errors import invalid
from whorl.plot import style

TRAINED = 4096


def context(
    encoding: Encoding | None = None,
    *,
    trained: int | None = None,
    length: int | None = None,
    ax: style.Axes | None = None,
) -> style.Axes:
    """The wavelength of each pair, with the trained length and what finished a turn within it marked.

    ``trained`` is the scaling's original length unless given, else 4096; ``length`` is what is to be served, the
    factor times as much where there is a factor. A RoPE with YaRN by 4 from 4096 by default.
    """
    if encoding is None:
        encoding = Rope(head_dim=128, scaling=Yarn(factor=4.0, original_length=TRAINED))
    scheme = getattr(encoding.config, "scaling", None)
    factor = getattr(scheme, "factor", None) or 1.0
    start = int(getattr(scheme, "original_length", None) or TRAINED) if trained is None else trained
    served = round(start * factor) if length is None else length
    for name, value in (("trained", start), ("length", served)):
        if value < 1:
            raise invalid("context", name, "positive", value)
    before = wavelengths(frequencies_of(unscaled(encoding) if scheme is not None else encoding))
    ax = style.axes(ax)
    pairs = np.arange(len(before))
    unfinished = int((before > start).sum())
    ax.axhspan(1.0, start, color=style.SKY, alpha=0.18, linewidth=0, label="turns finished in training")
    ax.axhline(start, color=style.BLUE, linewidth=1.2, label=f"trained length, {start:,}")
    if served != start:
        ax.axhline(served, color=style.BLACK, linewidth=1.2, linestyle="--", label=f"length to serve, {served:,}")
    ax.plot(pairs, before, "o", color=style.BLUE, markersize=3.5, label="wavelength" if scheme is None else "before")
    if scheme is not None:
        after = wavelengths(frequencies_of(encoding, length))
        ax.plot(pairs, after, "D", color=style.VERMILION, markersize=3, label=f"after {scheme.name}")
    ax.set_yscale("log")
    finite = before[np.isfinite(before)]
    ax.set_ylim(3.0, max(float(finite.max(initial=start)) * factor, served) * 2)
    ax.set_xlim(-0.5, len(pairs) - 0.5)
    title = f"{unfinished} of {len(before)} pairs never finish a turn within {start:,} positions"
    style.dress(ax, f"{style.labels([encoding])[0]}: {title}", "pair (fast to slow)", "wavelength (positions per turn)")
    style.key(ax)
    return ax
