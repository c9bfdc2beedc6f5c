"""Errors of cos and sin by position, for each thing that is rounded."""

from __future__ import annotations

from whorl import Encoding, Rope
from whorl.analysis.precision import BFLOAT16_ROUNDING, MODES, errors_by_octave
from whorl.analysis.wavelengths import frequencies_of
from whorl.plot import style


def precision(encoding: Encoding | None = None, length: int = 2**24 - 1, *, ax: style.Axes | None = None) -> style.Axes:
    """The largest error of cos and sin in each octave of positions up to ``length``, for each thing that is rounded.

    Up to 64 positions of an octave are looked at. A RoPE of 128 dimensions by default.
    """
    encoding = Rope(head_dim=128) if encoding is None else encoding
    style.check_length("precision", length)
    w = frequencies_of(encoding)
    ax = style.axes(ax)
    beyond = None
    for index, (mode, label) in enumerate(MODES.items()):
        ends, errors = errors_by_octave(w, length, mode)
        if mode == "float32 angles" and (errors > BFLOAT16_ROUNDING).any():
            beyond = int(ends[errors > BFLOAT16_ROUNDING][0])
        shown = errors > 0  # where nothing is lost there is nothing to draw on a logarithmic axis
        colour, marker = style.COLOURS[index], style.MARKERS[index]
        ax.plot(ends[shown], errors[shown], color=colour, marker=marker, markersize=3.5, linewidth=1.5, label=label)
    ax.axhline(BFLOAT16_ROUNDING, color=style.GREY, linewidth=1.0, linestyle=":", label="a cosine in bfloat16")
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_ylim(1e-9, 5.0)
    how = f"pass bfloat16 rounding near position {beyond:,}" if beyond else "stay within bfloat16 rounding"
    title = f"float32 angles {how}; in bfloat16 positions fail from 257 on, frequencies at once"
    title = f"{style.labels([encoding])[0]}: {title}"
    style.dress(ax, title, "position (last of its octave)", "largest error of cos and sin")
    style.key(ax)
    return ax
