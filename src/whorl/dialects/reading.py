"""Readings: what a model's file says of its positions, layer by layer, each value with where it comes from.

Every reader of ``dialects/`` returns a ``Reading``; ``whorl.bridge`` makes encodings of it, ``whorl inspect`` prints it
and lints it. Plain data without torch: names of the registry, numbers, strings, tuples.

Four sources:
    file            the file states it, under whatever name, or it follows from what the file states by arithmetic
    class default   the file is silent, and the config class of its framework fills the value in
    family code     the code of the family fixes it; no file can change it
    assumed         nothing says so: whorl took it for want of better knowledge
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from whorl.errors import shown

Source = Literal["file", "class default", "family code", "assumed"]
Standing = Literal["known", "alias", "unknown"]

FILE: Source = "file"
CLASS_DEFAULT: Source = "class default"
FAMILY_CODE: Source = "family code"
ASSUMED: Source = "assumed"


def named(config: Mapping[str, Any]) -> str:
    """The family of a config in its own words."""
    given = config.get("model_type")
    return f"model_type {shown(given)}" if given else "a config without model_type"


@dataclass(frozen=True, kw_only=True)
class Value:
    """A value with its source, and ``field``, the name it has in the file, where it has one."""

    value: Any
    source: Source
    field: str = ""


@dataclass(frozen=True, kw_only=True)
class Described:
    """An encoding or a scaling: its name in the registry, and its settings by the names whorl gives them.

    ``scaling`` is that of a rotary encoding. Settings that are left out are those of whorl's defaults, so leave none
    out that the model's own code might have otherwise.

    >>> yarn = Described(name="yarn", settings={"factor": Value(value=4.0, source="file", field="factor")})
    >>> base = Value(value=10_000.0, source="class default")
    >>> Described(name="rope", settings={"base": base}, scaling=yarn).plain()
    {'base': 10000.0, 'scaling': {'name': 'yarn', 'factor': 4.0}}
    """

    name: str
    settings: Mapping[str, Value] = field(default_factory=dict)
    scaling: Described | None = None

    def value(self, name: str, otherwise: Any = None) -> Any:
        """One setting without its source, and what to take where it is left out."""
        return self.settings[name].value if name in self.settings else otherwise

    def plain(self) -> dict[str, Any]:
        """The settings without their sources."""
        plain = {name: value.value for name, value in self.settings.items()}
        return (
            plain if self.scaling is None else plain | {"scaling": {"name": self.scaling.name, **self.scaling.plain()}}
        )


@dataclass(frozen=True, kw_only=True)
class Layers:
    """What positions do in layers that are alike.

    kind         what the file calls these layers ("full_attention"), or "all"
    indices      which they are, counted from 0; None where the file does not say how many layers there are
    attention    False for layers that have none: convolutions, state spaces, recurrences
    encodings    what acts in them together; empty means that positions do not enter (NoPE)
    softcap      c of c tanh(score / c), where scores are capped
    unsupported  what acts as well and has no encoding in whorl yet, each a name and what it does
    """

    kind: str = "all"
    indices: tuple[int, ...] | None = None
    attention: bool = True
    encodings: tuple[Described, ...] = ()
    softcap: Value | None = None
    unsupported: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What a file says of a model's positions.

    dialect         who writes such files: "transformers 5", "gguf", "meta params.json"
    family          the family whose code the model runs, as the table of families calls it; "" where nothing says
    standing        known: read as its own code computes. alias: another name for a known family.
                    unknown: read by the conventions of Llama, or of the family that was assumed
    layers          every layer once, those that are alike together
    trained_length  positions the model was trained on before any extension of its context; None where nothing says
    claimed_length  positions the file promises; None where it does not say
    config          the part of the file that was read, as plain data: what the lint rules look at
    notes           sentences a reader wants a person to see that no lint rule says
    """

    dialect: str
    family: str = ""
    standing: Standing = "known"
    layers: tuple[Layers, ...] = ()
    trained_length: Value | None = None
    claimed_length: Value | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def named(self) -> str:
        """The family in the words of its file."""
        if self.dialect == "gguf":
            return f"the GGUF architecture {shown(self.family)}"
        if self.dialect == "safetensors":
            return "the header of a safetensors file"
        return named(self.config)
