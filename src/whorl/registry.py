"""Names to classes: every encoding and scaling of whorl, and those a user registers.

The tables hold import paths, so that listing names needs no torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from whorl.errors import WhorlError, invalid, shown, unknown
from whorl.forks import uncut

if TYPE_CHECKING:
    from whorl.encodings.base import Encoding
    from whorl.rotary.scalings.base import Scaling

ENCODINGS: dict[str, str | type] = {
    "alibi": "whorl.encodings.alibi:Alibi",
    "axial_rope": "whorl.encodings.axial_rope:AxialRope",
    "cope": "whorl.encodings.cope:Cope",
    "deberta": "whorl.encodings.deberta:Deberta",
    "fire": "whorl.encodings.fire:Fire",
    "forgetting_gate": "whorl.encodings.forgetting_gate:ForgettingGate",
    "kerple": "whorl.encodings.kerple:Kerple",
    "leaky_rerope": "whorl.encodings.position_remaps:LeakyReRope",
    "learned": "whorl.encodings.learned:Learned",
    "llama4_temperature": "whorl.encodings.score_scaling:Llama4Temperature",
    "log_n": "whorl.encodings.score_scaling:LogN",
    "mixed_rope": "whorl.encodings.mixed_rope:MixedRope",
    "mrope": "whorl.encodings.mrope:MRope",
    "none": "whorl.encodings.none:NoPE",
    "rerope": "whorl.encodings.position_remaps:ReRope",
    "rope": "whorl.encodings.rope:Rope",
    "sandwich": "whorl.encodings.sandwich:Sandwich",
    "self_extend": "whorl.encodings.position_remaps:SelfExtend",
    "shaw": "whorl.encodings.shaw:Shaw",
    "sinks": "whorl.encodings.masks:Sinks",
    "sinusoidal": "whorl.encodings.sinusoidal:Sinusoidal",
    "ssmax": "whorl.encodings.score_scaling:SSMax",
    "t5": "whorl.encodings.t5:T5",
    "transformer_xl": "whorl.encodings.transformer_xl:TransformerXL",
    "window": "whorl.encodings.masks:Window",
    "xpos": "whorl.encodings.xpos:XPos",
}

SCALINGS: dict[str, str | type] = {
    "linear": "whorl.rotary.scalings.linear:Linear",
    "ntk": "whorl.rotary.scalings.ntk:Ntk",
    "dynamic_ntk": "whorl.rotary.scalings.dynamic_ntk:DynamicNtk",
    "ntk_by_parts": "whorl.rotary.scalings.ntk_by_parts:NtkByParts",
    "yarn": "whorl.rotary.scalings.yarn:Yarn",
    "longrope": "whorl.rotary.scalings.longrope:LongRope",
    "llama3": "whorl.rotary.scalings.llama3:Llama3",
    "proportional": "whorl.rotary.scalings.proportional:Proportional",
    "resonance": "whorl.rotary.scalings.resonance:Resonance",
}


# The model that encodings are listed and shown for, where no sizes are given.
MODEL = {"heads": 8, "head_dim": 128, "width": 1024, "length": 4096}

DEEPEST = 16  # levels of a dict: joined encodings, their parts, a scaling inside a scaling, its lists

# Made of other encodings: read back from a dict, but not built by name.
JOINED: dict[str, str | type] = {"combined": "whorl.encodings.combined:Combined"}
PLAN = "plan"  # what runs call encodings that differ between layers

# What whorl can take as a name: no mark that command lines read (: , = + / *), no option, no formula of a table.
NAME = re.compile(r"[^\W\d_]\w*(?:[.-]\w+)*")


def names() -> list[str]:
    """The names of every encoding."""
    return sorted(ENCODINGS)


def encoding_class(name: str) -> type[Encoding]:
    """The class behind an encoding's name."""
    joined = isinstance(name, str) and name in JOINED
    return _find(JOINED if joined else ENCODINGS, "encoding", name)


def scaling_class(name: str) -> type[Scaling]:
    """The class behind a scaling's name."""
    return _find(SCALINGS, "scaling", name)


def build(name: str, **settings: Any) -> Encoding:
    """The encoding of that name with exactly these settings.

    >>> build("rope", head_dim=64).config.base
    10000.0
    """
    return encoding_class(name)(**settings)


def build_for(name: str, *, heads: int, head_dim: int, width: int, length: int, **settings: Any) -> Encoding:
    """The encoding of that name, given those of the model's sizes that it asks for, and these settings.

    >>> build_for("rope", heads=8, head_dim=64, width=512, length=1024, base=500_000.0).config.head_dim
    64
    """
    sizes = {"heads": heads, "head_dim": head_dim, "width": width, "length": length}
    fields = encoding_class(name).Config.fields()
    return build(name, **{size: value for size, value in sizes.items() if size in fields} | settings)


def from_dict(data: dict[str, Any]) -> Encoding:
    """The encoding whose ``config.to_dict()`` this is."""
    _check_depth(data)
    cls = encoding_class(_name_in(data, "encoding"))
    return cls.from_config(cls.Config.from_dict(data))


def scaling_from_dict(data: dict[str, Any]) -> Scaling:
    """The scaling whose ``to_dict()`` this is."""
    return scaling_class(_name_in(data, "scaling")).from_dict(data)


def register(cls: type[Encoding]) -> type[Encoding]:
    """Adds an encoding class under ``cls.Config.name``, for names(), build() and everything that lists encodings."""
    name = cls.Config.name
    if not name:
        raise WhorlError(f"register: {cls.__name__}.Config has no name. Set name: ClassVar[str] = '…' in it.")
    if not isinstance(name, str) or not NAME.fullmatch(name) or name.endswith(".py"):
        expected = "a letter with letters, digits and _ behind it, and - or . between them"
        remedy = "Command lines, tables and file names take such a name as it is."
        raise invalid("register", f"the name of {cls.__name__}", expected, name, remedy)
    known = {**ENCODINGS, **JOINED, **SCALINGS, PLAN: None}
    if known.get(name, cls) is not cls:
        raise WhorlError(f"register: the name {name!r} is taken. Choose another name for {cls.__name__}.")
    ENCODINGS[name] = cls
    return cls


def _name_in(data: dict[str, Any], kind: str) -> str:
    if not isinstance(data, dict) or "name" not in data:
        raise WhorlError(
            f"from_dict: a dict with the {kind}'s name needed, got {shown(data)}. Pass what to_dict() returned."
        )
    return data["name"]


def _check_depth(data: object) -> None:
    """Raises a WhorlError for dicts in dicts without end, as one that holds itself."""
    level = [data]
    for _ in range(DEEPEST):
        inside = {id(item): item for part in level for item in _contents(part) if isinstance(item, (dict, list, tuple))}
        level = list(inside.values())
        if not level:
            return
    raise WhorlError(f"from_dict: the dict holds others more than {DEEPEST} levels deep. Pass what to_dict() returned.")


def _contents(part: object) -> Iterable[object]:
    if isinstance(part, dict):
        return part.values()
    return part if isinstance(part, (list, tuple)) else ()


def _find(table: dict[str, str | type], kind: str, name: str) -> Any:
    if not isinstance(name, str) or name not in table:
        raise unknown(kind, name, table)
    entry = table[name]
    if isinstance(entry, str):
        module, cls = entry.split(":")
        with uncut:
            return getattr(import_module(module), cls)
    return entry
