"""Overrides of a config for a server: the whole rope dict, since servers set it without looking at the file again."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from typing import Any

from whorl.bridge.difference import compare
from whorl.bridge.exports.draft import Draft, Origin
from whorl.bridge.exports.hf import version_5
from whorl.bridge.inexpressible import InexpressibleError
from whorl.bridge.model import Group
from whorl.bridge.programs.program import Program, claiming, rope_type
from whorl.bridge.text_part import by_kind, joined, nested, text_fields, text_path, with_text_fields
from whorl.dialects.names import LENGTHS, ORIGINAL
from whorl.dialects.reading import Reading
from whorl.dialects.values import whole_number
from whorl.encodings.rope import Rope
from whorl.rotary.scalings.temperature import temperature

REMEDY = "Serve it with transformers, or pass --length up to the original length."


def served(origin: Origin, target: str, program: Program, command: Callable[[dict[str, Any]], list[str]]) -> Draft:
    """The command that makes a server compute the positions of a model: its length, and overrides where it needs them.

    ``command`` gives the words of the command for some overrides.
    """
    config, overrides = origin.config, {}
    reading = program.read(config, origin.length, origin.assume)
    if not _serves(origin, reading) or not _equal(origin, reading):
        fields, overrides = _overridden(origin)
        config = with_text_fields(origin.config, fields)
        reading = program.read(config, origin.length, origin.assume)
    if _serves(origin, reading) and origin.wanted is None:  # a new scaling has to claim its length by itself
        reading = claiming(reading, origin.length, "the flag")
    words = command(nested(overrides, text_path(origin.config)) if overrides else {})
    text = " ".join(shlex.quote(word) for word in words)
    return Draft(
        target=target,
        text=text,
        data={"arguments": words, "overrides": overrides},
        notes=origin.notes,
        readings={program.title: reading},
        moves_rows=bool(origin.notes),
        remedy=REMEDY,
    )


def _serves(origin: Origin, reading: Reading) -> bool:
    claimed = reading.claimed_length
    return origin.length is None or (claimed is not None and claimed.value >= origin.length)


def _equal(origin: Origin, reading: Reading) -> bool:
    found = compare(origin.reading, reading, length=origin.length, layouts=not origin.notes)
    return all(one.equal for one in found.groups)


def _overridden(origin: Origin) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields of the text model as they are after the overrides, and the overrides."""
    draft = version_5(origin)
    fields = text_fields(draft.data)
    rope = fields.get("rope_parameters")
    if not isinstance(rope, dict):
        raise InexpressibleError(
            "export: this model has no rope_parameters that could be overridden. Change config.json."
        )
    ropes = {kind: _adapted(origin, fields, one, kind) for kind, one in by_kind(rope).items()}
    overrides: dict[str, Any] = {"rope_parameters": joined(ropes, rope)}
    old = text_fields(origin.config)
    stated = [name for name in LENGTHS if old.get(name) is not None] or [LENGTHS[0]]
    if origin.length is not None:  # which servers take for the longest text
        overrides |= {name: origin.length for name in stated if (whole_number(old, (name,)) or 0) < origin.length}
    kept = {name: value for name, value in fields.items() if name not in (ORIGINAL, *stated)}
    return {**kept, **{name: old[name] for name in stated if name in old}, **overrides}, overrides


def _adapted(origin: Origin, fields: Mapping[str, Any], rope: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """A rope dict with the factors on cos and sin by the names that vLLM and SGLang read."""
    scaled = [one for one in origin.reading.layers if kind in ("", one.kind)]
    turning = next((one for group in scaled for one in Group(group).encoding.modules() if isinstance(one, Rope)), None)
    kept = dict(rope)
    length = whole_number(origin.fields, LENGTHS)
    if rope_type(rope) in ("yarn", "longrope", "llama3") and kept.get(ORIGINAL) is None:
        kept[ORIGINAL] = origin.fields.get(ORIGINAL) or length
    if turning is None or rope_type(rope) not in ("yarn", "longrope"):
        return kept
    factor = float(turning.attention_factor())
    kept.pop("attention_factor", None)
    if rope_type(rope) == "longrope":
        return {**kept, "short_mscale": factor, "long_mscale": factor}
    stretch = kept["factor"] = kept.get("factor") or getattr(turning.config.scaling, "factor", 1.0)
    if origin.fields.get("qk_rope_head_dim"):
        return kept  # DeepSeek's code has the two weights
    for name in ("mscale", "mscale_all_dim"):
        kept.pop(name, None)
    times = factor / temperature(stretch)
    return kept if abs(times - 1) < 1e-12 else {**kept, "attn_factor": times}


def option(name: str, overrides: Mapping[str, Any]) -> list[str]:
    """An option with JSON after it, where there are overrides."""
    return [name, json.dumps(overrides)] if overrides else []
