"""Drafts: what is exported, what it is made of, and what a target is given in the end."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from whorl.bridge.gguf_keys import family_of_architecture
from whorl.bridge.inexpressible import InexpressibleError
from whorl.bridge.model import read
from whorl.bridge.text_part import filled_fields
from whorl.dialects.detect import JSON_DIALECTS, load
from whorl.dialects.documents import PIPE
from whorl.dialects.families import FAMILIES
from whorl.dialects.names import ORIGINAL
from whorl.dialects.reading import FILE, Described, Reading, Value
from whorl.errors import WhorlError


@dataclass(frozen=True, kw_only=True)
class Origin:
    """What is exported: a transformers config, its reading, and the length that is to be served.

    ``wanted`` is a config that says what is to be computed, where ``config``, the file as it is, says something else.
    """

    name: str
    config: dict[str, Any]
    wanted: dict[str, Any] | None = None
    reading: Reading
    length: int | None = None
    assume: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def asked(self) -> dict[str, Any]:
        """The config that says what is to be computed."""
        return self.config if self.wanted is None else self.wanted

    @cached_property
    def fields(self) -> dict[str, Any]:
        """The fields of the text model, those that its class fills in among them."""
        return filled_fields(self.asked)

    @property
    def rotations(self) -> list[Described]:
        """The rotations of all kinds of layers."""
        return [one for group in self.reading.layers for one in group.encodings if one.name in ("rope", "mrope")]


@dataclass(frozen=True, kw_only=True)
class Draft:
    """What a target is given.

    text        what to write into a file or to type
    data        the same as JSON-ready data
    notes       what a person has to know beside it
    readings    what each program that is meant does with it: must equal what is exported
    moves_rows  whether the target has the rows of queries and keys in another order, so that layouts may differ
    remedy      what to do where the target cannot say it
    """

    target: str
    text: str
    data: Any
    notes: tuple[str, ...] = ()
    readings: Mapping[str, Reading] = field(default_factory=dict)
    moves_rows: bool = False
    remedy: str = ""


def json_text(data: Any) -> str:
    """JSON as config.json has it."""
    return json.dumps(data, indent=2, ensure_ascii=False)


def origin_of(source: str | Path | Mapping[str, Any], length: int | None, assume: str | None) -> Origin:
    """The origin of an export, from a file of any dialect."""
    loaded = load(source)
    name = _model(source)
    if isinstance(loaded, dict):
        dialect = next(one for one in JSON_DIALECTS if one.recognises(loaded))
        _check_json(loaded)
        reading = read(loaded, assume).checked().reading
        if dialect.name == "transformers":
            return serving(Origin(name=name, config=loaded, reading=reading, assume=assume), length)
    else:
        reading = read(source, assume).checked().reading
    config = config_of(reading)
    notes = (f"from a {reading.dialect} file: sizes that it does not have are left out of the config",)
    return serving(Origin(name=name, config=config, reading=reading, assume=assume, notes=notes), length)


def _check_json(config: dict[str, Any]) -> None:
    """Raises a WhorlError for a dict that no JSON file can have held, since it is to be written into one."""
    try:
        json.dumps(config, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        raise WhorlError("export: the config holds what JSON cannot. Pass json.load of config.json.") from None


def _model(source: str | Path | Mapping[str, Any]) -> str:
    """What a server is to be given: the folder of a config, a file of another kind itself."""
    if not isinstance(source, (str, Path)) or str(source) == PIPE:
        return "MODEL"
    path = Path(source)
    return str(path.parent if path.suffix == ".json" else path)


def serving(origin: Origin, length: int | None) -> Origin:
    """The origin with this length to be served in place of the claimed one, which it is by default."""
    claimed = origin.reading.claimed_length
    if length is None:
        return dataclasses.replace(origin, length=None if claimed is None else claimed.value)
    if claimed is not None and length > claimed.value:
        raise WhorlError(
            f"export: the file claims {claimed.value} positions, and {length} are to be served. "
            f"Use whorl advise --length {length}."
        )
    served = Value(value=length, source=FILE, field="" if claimed is None else claimed.field)
    reading = dataclasses.replace(origin.reading, claimed_length=served)
    return dataclasses.replace(origin, reading=reading, length=length)


# --- configs of models that come in another dialect

DIALECT_FAMILIES = {
    "meta params.json": "llama",
    "executorch params": "llama",
    "mistral params.json": "mistral",
    "megatron arguments": "llama",
    "deepseek inference config": "deepseek_v3",
}


def config_of(reading: Reading) -> dict[str, Any]:
    """The transformers config that says what a reading of another dialect does, as far as positions go."""
    family = (
        family_of_architecture(reading.family) if reading.dialect == "gguf" else DIALECT_FAMILIES.get(reading.dialect)
    )
    if family is None:
        of = f"{reading.dialect} file of {reading.named}" if reading.named else f"{reading.dialect} file"
        raise WhorlError(f"export: from a {of} nothing is written yet. Pass config.json.")
    turning = {group.kind: one for group in reading.layers for one in group.encodings if one.name in ("rope", "mrope")}
    if not turning:
        raise InexpressibleError(
            f"export: no layer of this {reading.dialect} file rotates, so there is nothing to write."
        )
    ropes = {kind: rope_parameters(one) for kind, one in turning.items()}
    first, row = next(iter(turning.values())), FAMILIES.get(family)
    alike = len({json.dumps(one) for one in ropes.values()}) == 1 and not (row is not None and row.layers)
    config: dict[str, Any] = {
        "model_type": family,
        "qk_rope_head_dim" if row is not None and row.scale_softmax else "head_dim": first.value("head_dim"),
        "rope_parameters": next(iter(ropes.values())) if alike else ropes,
    }
    if reading.claimed_length is not None:
        config["max_position_embeddings"] = reading.claimed_length.value
    if all(group.indices is not None for group in reading.layers):
        kinds = {index: group.kind for group in reading.layers for index in group.indices or ()}
        config["num_hidden_layers"] = len(kinds)
        if len(reading.layers) > 1 or not alike:
            config["layer_types"] = [kinds[index] for index in sorted(kinds)]
    sizes = [one.value("size") for group in reading.layers for one in group.encodings if one.name == "window"]
    return config | ({"sliding_window": sizes[0]} if sizes else {})


def rope_parameters(rotation: Described) -> dict[str, Any]:
    """The rope dict of transformers 5 for a rotation, or a WhorlError where it has no type for the scaling."""
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": float(rotation.value("base"))}
    dim, head = rotation.value("rotary_dim"), rotation.value("head_dim")
    if dim is not None and dim != head:
        rope["partial_rotary_factor"] = dim / head
    if rotation.value("sections") is not None:
        rope["mrope_section"] = list(rotation.value("sections"))
    if rotation.scaling is None:
        return rope
    scaling = rotation.scaling
    if scaling.name not in ROPE_TYPES:
        raise InexpressibleError(f"export: transformers has no rope_type for the scaling {scaling.name!r}.")
    rope["rope_type"], names = ROPE_TYPES[scaling.name]
    for name in names:
        value = scaling.value(name)
        if value is not None:
            rope[_KEYS.get(name, name)] = list(value) if isinstance(value, (list, tuple)) else value
    return rope


ROPE_TYPES: dict[str, tuple[str, tuple[str, ...]]] = {
    "linear": ("linear", ("factor",)),
    "dynamic_ntk": ("dynamic", ("factor",)),
    "llama3": ("llama3", ("factor", "original_length", "low_freq_factor", "high_freq_factor")),
    "longrope": ("longrope", ("short_factor", "long_factor", "original_length", "factor", "attention_factor")),
    "yarn": (
        "yarn",
        (
            *("factor", "original_length", "beta_fast", "beta_slow", "truncate", "attention_factor", "mscale"),
            "mscale_all_dim",
        ),
    ),
}
_KEYS = {"original_length": ORIGINAL}
