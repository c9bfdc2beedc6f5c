"""The bridge to checkpoints: what positions do in the models people have, read from the files they have.

file ─► dialect reader ─► reading ─► Model: a plan by layer, with the source of every field ─► inspect, lint, diff,
                                                                                                export, advise

Names load on first use, see ``__init__.pyi``: what needs no torch (``lint``) stays without it.
"""

from whorl.lazy_names import homes_of, loader

_HOMES = homes_of(__file__)

__all__ = sorted(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]
__getattr__ = loader(__name__, _HOMES)


def __dir__() -> list[str]:
    return __all__
