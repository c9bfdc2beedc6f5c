"""whorl: position encodings of transformers, exact and in one house.

Public names load on first use, so that ``import whorl`` costs little more than torch itself.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from whorl.config import Config as Config
    from whorl.encodings.axial_rope import AxialRope as AxialRope
    from whorl.encodings.base import Claims as Claims
    from whorl.encodings.base import Encoding as Encoding
    from whorl.encodings.mixed_rope import MixedRope as MixedRope
    from whorl.encodings.mrope import MRope as MRope
    from whorl.encodings.rope import Rope as Rope
    from whorl.errors import WhorlError as WhorlError
    from whorl.kernels.rotate import rotate as rotate
    from whorl.registry import build as build
    from whorl.registry import build_for as build_for
    from whorl.registry import from_dict as from_dict
    from whorl.registry import names as names
    from whorl.registry import register as register
    from whorl.rotary.cache import TableCache as TableCache
    from whorl.rotary.cache import use_table_cache as use_table_cache
    from whorl.rotary.rerotation import rerotate as rerotate
    from whorl.rotary.scalings.base import factor_for as factor_for
    from whorl.rotary.scalings.dynamic_ntk import DynamicNtk as DynamicNtk
    from whorl.rotary.scalings.linear import Linear as Linear
    from whorl.rotary.scalings.llama3 import Llama3 as Llama3
    from whorl.rotary.scalings.longrope import LongRope as LongRope
    from whorl.rotary.scalings.ntk import Ntk as Ntk
    from whorl.rotary.scalings.ntk_by_parts import NtkByParts as NtkByParts
    from whorl.rotary.scalings.proportional import Proportional as Proportional
    from whorl.rotary.scalings.yarn import Yarn as Yarn

__version__ = "0.1.0"

_HOMES = {
    "Config": "config",
    "WhorlError": "errors",
    "names": "registry",
    "build": "registry",
    "build_for": "registry",
    "from_dict": "registry",
    "register": "registry",
    "Encoding": "encodings.base",
    "Claims": "encodings.base",
    "Rope": "encodings.rope",
    "MRope": "encodings.mrope",
    "AxialRope": "encodings.axial_rope",
    "MixedRope": "encodings.mixed_rope",
    "Linear": "rotary.scalings.linear",
    "Ntk": "rotary.scalings.ntk",
    "DynamicNtk": "rotary.scalings.dynamic_ntk",
    "NtkByParts": "rotary.scalings.ntk_by_parts",
    "Yarn": "rotary.scalings.yarn",
    "LongRope": "rotary.scalings.longrope",
    "Llama3": "rotary.scalings.llama3",
    "Proportional": "rotary.scalings.proportional",
    "factor_for": "rotary.scalings.base",
    "TableCache": "rotary.cache",
    "use_table_cache": "rotary.cache",
    "rotate": "kernels.rotate",
    "rerotate": "rotary.rerotation",
}

__all__ = ["__version__", *_HOMES]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'whorl' has no attribute {name!r}")
    value = getattr(import_module(f"whorl.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
