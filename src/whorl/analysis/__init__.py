"""Analysis: what an encoding's numbers say, as NumPy arrays in float64.

Each file answers one question and can be reached by name, ``whorl.analysis.decay.abel_bound(…)``:
    wavelengths        how fast each pair turns
    decay              what a score can be at a distance
    aliasing           which positions look alike, and at which precision
    similarity         how close the codes of two positions are, and how they lie
    precision          what rounding does to the angles, by position
    bounds             which base serves a context, which dimensions ever finish a turn
    scaling_changes    what a scaling does to each pair
    bias_maps          what a bias says by head, query and key
    scores             what any encoding does to the score of one query and one key
    losses             the curves in a comparison of the lab
"""

from __future__ import annotations

import pkgutil
from importlib import import_module
from types import ModuleType

FILES = sorted(module.name for module in pkgutil.iter_modules(__path__))


def __getattr__(name: str) -> ModuleType:
    if name not in FILES:
        raise AttributeError(f"module 'whorl.analysis' has no attribute {name!r}")
    return import_module(f"whorl.analysis.{name}")


def __dir__() -> list[str]:
    return FILES
