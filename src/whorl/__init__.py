"""whorl: position encodings of transformers, exact, fast and measured.

Public names load on first use, so that ``import whorl`` costs little more than torch itself. They are listed in
``__init__.pyi``, rooms among them that are reached by name: whorl.models.Decoder.
"""

from whorl.lazy_names import homes_of, loader

__version__ = "0.2.0"

_HOMES = homes_of(__file__)

__all__ = ["__version__", *(name for name, home in _HOMES.items() if home != __name__)]  # pyright: ignore[reportUnsupportedDunderAll]
__getattr__ = loader(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
