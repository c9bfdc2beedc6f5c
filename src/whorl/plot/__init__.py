"""Plots: each function takes encodings, draws what ``whorl.analysis`` computes, and returns a matplotlib Axes.

Every function has ``ax=None``: an Axes to draw into, else a new figure of the default size. Nothing is shown and no
setting of matplotlib is changed. matplotlib is the ``plot`` extra and is imported on first use.

    ax = whorl.plot.decay([whorl.Rope(head_dim=128), whorl.Rope(head_dim=128, base=500_000.0)])
    whorl.plot.save(ax, "decay.svg")

>>> sorted(KINDS)[:4]
['bias', 'clocks', 'codes', 'context']
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from whorl.plot.bias_by_head import bias as bias
    from whorl.plot.clock_hands import clocks as clocks
    from whorl.plot.code_table import codes as codes
    from whorl.plot.code_waves import waves as waves
    from whorl.plot.decay_curves import decay as decay
    from whorl.plot.frequency_ladder import frequencies as frequencies
    from whorl.plot.loss_by_length import losses as losses
    from whorl.plot.position_cloud import positions as positions
    from whorl.plot.precision_by_position import precision as precision
    from whorl.plot.save_picture import save as save
    from whorl.plot.scaling_by_pair import scaling as scaling
    from whorl.plot.score_by_distance import scores as scores
    from whorl.plot.similarity_map import similarity as similarity
    from whorl.plot.wavelengths_in_context import context as context

# kind: the file that draws it, and what is seen
KINDS = {
    "waves": ("code_waves", "values of a code by position, a few columns"),
    "codes": ("code_table", "the code of each position as a table"),
    "frequencies": ("frequency_ladder", "frequency and wavelength of each pair"),
    "similarity": ("similarity_map", "inner products of the codes of every two positions"),
    "positions": ("position_cloud", "the codes of all positions in two dimensions, by PCA or t-SNE"),
    "decay": ("decay_curves", "the sum of cosines and mean |S_j| of the Abel bound, by distance"),
    "clocks": ("clock_hands", "each pair as a clock, its hand turned by each position"),
    "bias": ("bias_by_head", "the bias by head, query and key"),
    "scores": ("score_by_distance", "what several encodings do to a score, by distance"),
    "scaling": ("scaling_by_pair", "what a scaling leaves of each pair's speed"),
    "context": ("wavelengths_in_context", "wavelengths against the context, what training saw marked"),
    "precision": ("precision_by_position", "what rounding does to cos and sin, by position"),
    "losses": ("loss_by_length", "loss by length, from a comparison of the lab"),
}

_HOMES = {name: file for name, (file, _) in KINDS.items()} | {"save": "save_picture"}

__all__ = [*_HOMES]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'whorl.plot' has no attribute {name!r}")
    return getattr(import_module(f"whorl.plot.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
