"""whorl: position encodings of transformers, exact, fast and measured.

Public names load on first use, so that ``import whorl`` costs little more than torch itself.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from whorl import analysis as analysis
    from whorl import bridge as bridge
    from whorl import claims as claims
    from whorl import lab as lab
    from whorl import models as models
    from whorl import plot as plot
    from whorl import reference as reference
    from whorl.attend.cache import KVCache as KVCache
    from whorl.attend.linear import LinearState as LinearState
    from whorl.attend.linear import linear_attention as linear_attention
    from whorl.attend.softmax import attention as attention
    from whorl.attend.softmax import explain_attention as explain_attention
    from whorl.bridge.advice import advise as advise
    from whorl.bridge.difference import diff as diff
    from whorl.bridge.exports import export as export
    from whorl.bridge.model import read as read
    from whorl.config import Config as Config
    from whorl.encodings.alibi import Alibi as Alibi
    from whorl.encodings.axial_rope import AxialRope as AxialRope
    from whorl.encodings.base import Claims as Claims
    from whorl.encodings.base import Encoding as Encoding
    from whorl.encodings.combined import Combined as Combined
    from whorl.encodings.cope import Cope as Cope
    from whorl.encodings.deberta import Deberta as Deberta
    from whorl.encodings.fire import Fire as Fire
    from whorl.encodings.forgetting_gate import ForgettingGate as ForgettingGate
    from whorl.encodings.kerple import Kerple as Kerple
    from whorl.encodings.layer_plan import LayerPlan as LayerPlan
    from whorl.encodings.learned import Learned as Learned
    from whorl.encodings.masks import Sinks as Sinks
    from whorl.encodings.masks import Window as Window
    from whorl.encodings.mixed_rope import MixedRope as MixedRope
    from whorl.encodings.mrope import MRope as MRope
    from whorl.encodings.none import NoPE as NoPE
    from whorl.encodings.position_remaps import LeakyReRope as LeakyReRope
    from whorl.encodings.position_remaps import ReRope as ReRope
    from whorl.encodings.position_remaps import SelfExtend as SelfExtend
    from whorl.encodings.rerotation import rerotate as rerotate
    from whorl.encodings.rope import Rope as Rope
    from whorl.encodings.sandwich import Sandwich as Sandwich
    from whorl.encodings.score_scaling import Llama4Temperature as Llama4Temperature
    from whorl.encodings.score_scaling import LogN as LogN
    from whorl.encodings.score_scaling import SSMax as SSMax
    from whorl.encodings.shaw import Shaw as Shaw
    from whorl.encodings.sinusoidal import Sinusoidal as Sinusoidal
    from whorl.encodings.t5 import T5 as T5
    from whorl.encodings.transformer_xl import TransformerXL as TransformerXL
    from whorl.encodings.xpos import XPos as XPos
    from whorl.errors import WhorlError as WhorlError
    from whorl.kernels.append import rotate_append as rotate_append
    from whorl.kernels.norm_rotate import norm_rotate_qk as norm_rotate_qk
    from whorl.kernels.rotate import explain_rotate as explain_rotate
    from whorl.kernels.rotate import rotate as rotate
    from whorl.kernels.rotate import rotate_qk as rotate_qk
    from whorl.multimodal_hf import multimodal_from_hf as multimodal_from_hf
    from whorl.multimodal_hf import segments_from_hf as segments_from_hf
    from whorl.multimodal_ids import Image as Image
    from whorl.multimodal_ids import Text as Text
    from whorl.multimodal_ids import Video as Video
    from whorl.multimodal_ids import decode_offset as decode_offset
    from whorl.multimodal_ids import multimodal as multimodal
    from whorl.multimodal_ids import timestamped as timestamped
    from whorl.position_ids import documents as documents
    from whorl.position_ids import from_mask as from_mask
    from whorl.position_ids import grid as grid
    from whorl.position_ids import left_padded as left_padded
    from whorl.position_ids import normalized_grid as normalized_grid
    from whorl.position_ids import packed as packed
    from whorl.position_ids import pad_rows as pad_rows
    from whorl.position_ids import positions as positions
    from whorl.registry import build as build
    from whorl.registry import build_for as build_for
    from whorl.registry import from_dict as from_dict
    from whorl.registry import names as names
    from whorl.registry import register as register
    from whorl.rotary.cache import TableCache as TableCache
    from whorl.rotary.cache import use_table_cache as use_table_cache
    from whorl.rotary.scalings.base import factor_for as factor_for
    from whorl.rotary.scalings.dynamic_ntk import DynamicNtk as DynamicNtk
    from whorl.rotary.scalings.linear import Linear as Linear
    from whorl.rotary.scalings.llama3 import Llama3 as Llama3
    from whorl.rotary.scalings.longrope import LongRope as LongRope
    from whorl.rotary.scalings.ntk import Ntk as Ntk
    from whorl.rotary.scalings.ntk_by_parts import NtkByParts as NtkByParts
    from whorl.rotary.scalings.proportional import Proportional as Proportional
    from whorl.rotary.scalings.resonance import Resonance as Resonance
    from whorl.rotary.scalings.yarn import Yarn as Yarn
    from whorl.shards import shard as shard
    from whorl.shards import unshard as unshard

__version__ = "0.2.0"

_PUBLIC = {
    "config": ("Config",),
    "errors": ("WhorlError",),
    "registry": ("build", "build_for", "from_dict", "names", "register"),
    "position_ids": (
        "documents",
        "from_mask",
        "grid",
        "left_padded",
        "normalized_grid",
        "packed",
        "pad_rows",
        "positions",
    ),
    "multimodal_ids": ("Image", "Text", "Video", "decode_offset", "multimodal", "timestamped"),
    "multimodal_hf": ("multimodal_from_hf", "segments_from_hf"),
    "shards": ("shard", "unshard"),
    "attend.cache": ("KVCache",),
    "attend.linear": ("LinearState", "linear_attention"),
    "attend.softmax": ("attention", "explain_attention"),
    "bridge.advice": ("advise",),
    "bridge.difference": ("diff",),
    "bridge.exports": ("export",),
    "bridge.model": ("read",),
    "encodings.base": ("Claims", "Encoding"),
    "encodings.combined": ("Combined",),
    "encodings.cope": ("Cope",),
    "encodings.deberta": ("Deberta",),
    "encodings.forgetting_gate": ("ForgettingGate",),
    "encodings.layer_plan": ("LayerPlan",),
    "encodings.masks": ("Sinks", "Window"),
    "encodings.none": ("NoPE",),
    "encodings.learned": ("Learned",),
    "encodings.position_remaps": ("LeakyReRope", "ReRope", "SelfExtend"),
    "encodings.score_scaling": ("Llama4Temperature", "LogN", "SSMax"),
    "encodings.shaw": ("Shaw",),
    "encodings.sinusoidal": ("Sinusoidal",),
    "encodings.alibi": ("Alibi",),
    "encodings.t5": ("T5",),
    "encodings.kerple": ("Kerple",),
    "encodings.fire": ("Fire",),
    "encodings.sandwich": ("Sandwich",),
    "encodings.axial_rope": ("AxialRope",),
    "encodings.mixed_rope": ("MixedRope",),
    "encodings.mrope": ("MRope",),
    "encodings.rerotation": ("rerotate",),
    "encodings.rope": ("Rope",),
    "encodings.transformer_xl": ("TransformerXL",),
    "encodings.xpos": ("XPos",),
    "kernels.append": ("rotate_append",),
    "kernels.norm_rotate": ("norm_rotate_qk",),
    "kernels.rotate": ("explain_rotate", "rotate", "rotate_qk"),
    "rotary.cache": ("TableCache", "use_table_cache"),
    "rotary.scalings.base": ("factor_for",),
    "rotary.scalings.dynamic_ntk": ("DynamicNtk",),
    "rotary.scalings.linear": ("Linear",),
    "rotary.scalings.llama3": ("Llama3",),
    "rotary.scalings.longrope": ("LongRope",),
    "rotary.scalings.ntk": ("Ntk",),
    "rotary.scalings.ntk_by_parts": ("NtkByParts",),
    "rotary.scalings.proportional": ("Proportional",),
    "rotary.scalings.resonance": ("Resonance",),
    "rotary.scalings.yarn": ("Yarn",),
}
_HOMES = {name: module for module, names in _PUBLIC.items() for name in names}

# Rooms that are reached by name: whorl.models.Decoder.
_ROOMS = ("analysis", "bridge", "claims", "lab", "models", "plot", "reference")

__all__ = ["__version__", *_HOMES]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _ROOMS and name not in _HOMES:
        raise AttributeError(f"module 'whorl' has no attribute {name!r}")
    from whorl.forks import uncut

    with uncut:
        if name in _ROOMS:
            return import_module(f"whorl.{name}")
        value = getattr(import_module(f"whorl.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
