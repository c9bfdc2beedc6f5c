"""A program that reads configs, and the steps that several of them share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from whorl.bridge.model import Model
from whorl.bridge.text_part import SCHEMAS, by_kind, filled_fields, joined, text_fields, with_text_fields
from whorl.dialects import transformers_model
from whorl.dialects.families import family_name, family_of
from whorl.dialects.reading import FAMILY_CODE, Described, Layers, Reading, Value
from whorl.errors import WhorlError, invalid
from whorl.rotary.scalings.temperature import temperature

# Keys of a rope dict that transformers passes over and another program reads.
FOREIGN = (
    *("attn_factor", "extrapolation_factor", "apply_yarn_scaling", "max_trained_positions", "short_mscale"),
    "long_mscale",
)
LATENT = ("deepseek_v2", "deepseek_v3", "deepseek_v32")  # whose code was read in every program
OWN_CODE = ("deepseek_v4",)
KEEPS_MSCALES = ("phimoe",)  # a family whose own code reads two of them


@dataclass(frozen=True)
class Fact:
    """What a program does with a field, and the file in which that was read."""

    field: str
    does: str
    where: str


@dataclass(frozen=True, kw_only=True)
class Program:
    """A program: its ``name`` on the command line, the version it was read in and where, and the reading of a config.

    ``read`` takes the config, the length to be served or None for the program's own, and a family to assume or None.
    """

    name: str
    title: str
    version: str
    repository: str
    read: Callable[[dict[str, Any], int | None, str | None], Reading]
    facts: tuple[Fact, ...]


@dataclass(frozen=True, kw_only=True)
class Seen:
    """A config as a program sees it.

    config   the file with the fields that count, in the words of transformers
    ropes    the rope dict of each kind of layer with every key that it has, "" for all kinds
    fields   the fields of its text model, those that the class fills in among them
    """

    config: dict[str, Any]
    ropes: Mapping[str, Mapping[str, Any]]
    fields: Mapping[str, Any]

    @property
    def latent(self) -> bool:
        """Whether attention is latent and its softmax scaled by YaRN, as DeepSeek's is."""
        return family_of(self.fields).scale_softmax

    def check_read(self, program: str) -> None:
        """Raises a WhorlError for a family with rotary code of its own that was not read in this program."""
        family = family_name(self.fields)
        yarn = any(rope_type(rope) == "yarn" for rope in self.ropes.values())
        if family in OWN_CODE or (self.latent and yarn and family not in LATENT):
            raise WhorlError(
                f"read: the code that {program} has for model_type {family!r} has not been read. Leave {program} out."
            )

    def rope(self, kind: str) -> Mapping[str, Any]:
        """The rope dict of the layers of one kind; empty where they have none."""
        kind = family_of(self.fields).rope_kinds.get(kind, kind)
        return self.ropes.get(kind, self.ropes.get("", {}))


def seen(config: dict[str, Any], fields: Mapping[str, Any]) -> Seen:
    """The config with these fields for its text model, foreign keys out of the way of the reader."""
    ropes, plain = {}, dict(fields)
    kept = FOREIGN if family_name(filled_fields(with_text_fields(config, fields))) not in KEEPS_MSCALES else FOREIGN[:4]
    for name in SCHEMAS:
        given = plain.get(name)
        if not isinstance(given, dict) or not given:
            continue
        ropes = by_kind(given)
        stripped = {kind: {k: v for k, v in one.items() if k not in kept} for kind, one in ropes.items()}
        plain[name] = joined(stripped, given)
    view = with_text_fields(config, plain)
    return Seen(config=view, ropes=ropes, fields=filled_fields(view))


def as_version_5(config: dict[str, Any]) -> Seen:
    """The config as a class of transformers 5 has it, which is what vLLM and SGLang are given too."""
    fields = text_fields(config)
    if all(isinstance(fields.get(name), dict) and fields[name] for name in SCHEMAS):
        fields["rope_parameters"] = fields.pop("rope_scaling")
    return seen(config, fields)


Rescale = Callable[[Described, Mapping[str, Any]], Described | None]


def reading_of(
    view: Seen, program: str, assume: str | None, rescale: Rescale | None = None, heeded: tuple[str, ...] = ()
) -> Reading:
    """The reading of what a program sees, with each scaling as the program computes it.

    ``heeded`` names fields that it reads in families whose class in transformers never does.
    """
    # numbers that no encoding takes are refused before others are made of them
    reading = Model(transformers_model.read(view.config, assume, heeded)).checked().reading
    if rescale is not None:
        reading = dataclasses.replace(
            reading, layers=tuple(_rescaled(one, view.rope(one.kind), rescale) for one in reading.layers)
        )
    return dataclasses.replace(reading, dialect=f"{reading.dialect} as {program} reads it")


def _rescaled(layers: Layers, rope: Mapping[str, Any], rescale: Rescale) -> Layers:
    encodings = tuple(
        one if one.scaling is None else dataclasses.replace(one, scaling=rescale(one.scaling, rope))
        for one in layers.encodings
    )
    return dataclasses.replace(layers, encodings=encodings)


def changed(scaling: Described, drop: tuple[str, ...] = (), **settings: Any) -> Described:
    """The scaling with some settings as the code of a program fixes them, and without some others."""
    kept = {name: value for name, value in scaling.settings.items() if name not in drop}
    fixed = {name: Value(value=value, source=FAMILY_CODE) for name, value in settings.items()}
    return dataclasses.replace(scaling, settings={**kept, **fixed})


def number(rope: Mapping[str, Any], name: str, otherwise: float) -> float:
    """A number of a rope dict that the readers of transformers configs do not look at."""
    value = rope.get(name)
    if value is None:
        return otherwise
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 2**63:
        raise invalid("read", name, "a number from 0", value)
    return float(value)


def rope_type(rope: Mapping[str, Any]) -> str:
    """The type of a rope dict in its own words."""
    return str(rope.get("rope_type", rope.get("type", "default")))


def latent_yarn(scaling: Described, rope: Mapping[str, Any]) -> Described:
    """YaRN of latent attention as vLLM, SGLang and mlx-lm have it: mscale 1 and mscale_all_dim 0 where absent."""
    factor, all_dim = scaling.value("factor"), number(rope, "mscale_all_dim", 0.0)
    times = number(rope, "attn_factor", 1.0)
    on_tables = temperature(factor, number(rope, "mscale", 1.0)) / temperature(factor, all_dim) * times
    settings = {"attention_factor": on_tables, "truncate": True}
    drop = ("mscale", "mscale_all_dim", "scale_softmax")
    if all_dim:
        return changed(scaling, drop, **settings, mscale_all_dim=all_dim, scale_softmax=True)
    return changed(scaling, drop, **settings)


def mixed(scaling: Described, rope: Mapping[str, Any]) -> Described:
    """YaRN with the extrapolation_factor that vLLM and SGLang multiply its ramp by."""
    mix = number(rope, "extrapolation_factor", 1.0)
    return scaling if mix == 1 else changed(scaling, extrapolation_factor=mix)


def long_list(scaling: Described) -> Described:
    """LongRoPE with its long list at every length."""
    return dataclasses.replace(scaling, settings={**scaling.settings, "short_factor": scaling.settings["long_factor"]})


def claiming(reading: Reading, length: float | None, why: str) -> Reading:
    """The reading with the length that a program works out by itself; None where it promises none."""
    if length is None:
        return dataclasses.replace(reading, claimed_length=None)
    old = reading.claimed_length
    if old is not None and old.value == int(length):
        return reading
    return dataclasses.replace(reading, claimed_length=Value(value=int(length), source=FAMILY_CODE, field=why))
