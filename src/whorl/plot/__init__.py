"""Plots: each function takes encodings, draws what ``whorl.analysis`` computes, and returns a matplotlib Axes.

Every function has ``ax=None``: an Axes to draw into, else a new figure of the default size. Nothing is shown and no
setting of matplotlib is changed. matplotlib is the ``plot`` extra and is imported on first use; so are the files here,
which ``__init__.pyi`` lists.

    ax = whorl.plot.decay([whorl.Rope(head_dim=128), whorl.Rope(head_dim=128, base=500_000.0)])
    whorl.plot.save(ax, "decay.svg")

>>> sorted(KINDS)[:4]
['bias', 'clocks', 'codes', 'context']
"""

from whorl.lazy_names import homes_of, loader

# kind of picture: what is seen
KINDS = {
    "waves": "values of a code by position, a few columns",
    "codes": "the code of each position as a table",
    "frequencies": "frequency and wavelength of each pair",
    "similarity": "inner products of the codes of every two positions",
    "positions": "the codes of all positions in two dimensions, by PCA or t-SNE",
    "decay": "the sum of cosines and mean |S_j| of the Abel bound, by distance",
    "clocks": "each pair as a clock, its hand turned by each position",
    "bias": "the bias by head, query and key",
    "scores": "what several encodings do to a score, by distance",
    "scaling": "what a scaling leaves of each pair's speed",
    "context": "wavelengths against the context, what training saw marked",
    "precision": "what rounding does to cos and sin, by position",
    "losses": "loss by length, from a comparison of the lab",
}

_HOMES = homes_of(__file__)

__all__ = [*_HOMES]  # pyright: ignore[reportUnsupportedDunderAll]
__getattr__ = loader(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
