"""The bridge to checkpoints: what positions do in the models people have, read from the files they have.

file ─► dialect reader ─► reading ─► Model: a plan by layer, with the source of every field ─► inspect, lint, diff,
                                                                                                export, advise

Names load on first use: what needs no torch (``lint``) stays without it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from whorl.bridge.advice import Advice as Advice
    from whorl.bridge.advice import advise as advise
    from whorl.bridge.difference import Difference as Difference
    from whorl.bridge.difference import compare as compare
    from whorl.bridge.difference import diff as diff
    from whorl.bridge.exports import export as export
    from whorl.bridge.exports.onnx import export_onnx as export_onnx
    from whorl.bridge.family_table import families as families
    from whorl.bridge.inexpressible import InexpressibleError as InexpressibleError
    from whorl.bridge.inspection import inspect as inspect
    from whorl.bridge.linting import Finding as Finding
    from whorl.bridge.linting import lint as lint
    from whorl.bridge.model import Group as Group
    from whorl.bridge.model import Model as Model
    from whorl.bridge.model import read as read
    from whorl.bridge.programs import facts as facts
    from whorl.bridge.programs import read_as as read_as

_HOMES = {
    "Advice": "advice",
    "advise": "advice",
    "Difference": "difference",
    "compare": "difference",
    "diff": "difference",
    "InexpressibleError": "inexpressible",
    "export": "exports",
    "export_onnx": "exports.onnx",
    "families": "family_table",
    "inspect": "inspection",
    "Finding": "linting",
    "lint": "linting",
    "Group": "model",
    "Model": "model",
    "read": "model",
    "facts": "programs",
    "read_as": "programs",
}

__all__ = sorted(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'whorl.bridge' has no attribute {name!r}")
    value = getattr(import_module(f"whorl.bridge.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
