"""config.json for transformers: in the words of version 4, of version 5, or of both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from whorl.bridge.exports.draft import Draft, Origin, json_text
from whorl.bridge.inexpressible import InexpressibleError
from whorl.bridge.programs import program_of
from whorl.bridge.text_part import by_kind, text_fields, with_text_fields
from whorl.dialects import transformers_model
from whorl.dialects.families import ELSEWHERE, Family, family_name, family_of
from whorl.dialects.names import BASES, LENGTHS, ORIGINAL
from whorl.dialects.rope_dicts import type_of
from whorl.dialects.sizes import base_of
from whorl.dialects.unread import own_fields
from whorl.dialects.values import whole_number
from whorl.errors import WhorlError

BESIDE = ("rope_theta", "partial_rotary_factor")  # what version 4 looks for beside rope_scaling alone
WORKED_OUT = (ORIGINAL, "factor")  # what version 5 finds by itself and version 4 has to be told
BY_LAYER = ("layer_rope_theta", "partial_rotary_factors", "per_layer_config")
UNCHANGED = "nothing has to be written otherwise: this model has no rotary field that the two versions keep apart"
PHI_3 = ("phi3",)  # whose class in version 4 accepts a type and two lists, and nothing else


def version_5(origin: Origin) -> Draft:
    """config.json with rope_parameters, and without the fields that it took the place of."""
    fields = text_fields(origin.asked)
    if not has_fields(origin):
        return _draft("hf-v5", origin, fields, ("transformers5",), (UNCHANGED,))
    rope, kept = whole_rope(origin, fields), without_rope(origin, fields)
    return _draft("hf-v5", origin, {**kept, "rope_parameters": rope}, ("transformers5",))


def version_4(origin: Origin) -> Draft:
    """config.json with rope_theta and rope_scaling, and without rope_parameters."""
    fields = text_fields(origin.asked)
    if not has_fields(origin):
        return _draft("hf-v4", origin, fields, ("transformers4",), (UNCHANGED,))
    rope, kept = whole_rope(origin, fields), without_rope(origin, fields)
    return _draft("hf-v4", origin, {**kept, **_old_fields(origin, rope, kept)}, ("transformers4",))


def both(origin: Origin) -> Draft:
    """config.json with the fields of both versions, the same values in each."""
    fields, programs = text_fields(origin.asked), ("transformers4", "transformers5")
    if not has_fields(origin):
        return _draft("hf-both", origin, fields, programs, (UNCHANGED,))
    rope, kept = whole_rope(origin, fields), without_rope(origin, fields)
    old = _old_fields(origin, rope, kept)
    if "" in by_kind(rope):  # what version 4 has beside it, version 5 finds there too
        rope = {key: value for key, value in rope.items() if key == "rope_theta" or key not in (*BESIDE, *old)}
        rope |= {key: value for key, value in (old["rope_scaling"] or {}).items() if key in WORKED_OUT}
    return _draft("hf-both", origin, {**kept, **old, "rope_parameters": rope}, programs)


def _draft(
    target: str, origin: Origin, fields: Mapping[str, Any], programs: tuple[str, ...], notes: tuple[str, ...] = ()
) -> Draft:
    config = with_text_fields(origin.asked, fields)
    try:
        readings = {name: program_of(name).read(config, origin.length, origin.assume) for name in programs}
        readings["whorl"] = transformers_model.read(config, origin.assume)
    except WhorlError as error:  # the file was read, so it is this form of it that is not
        raise InexpressibleError(f"export: {target} cannot say this. {error}") from None
    return Draft(
        target=target,
        text=json_text(config),
        data=config,
        notes=(*origin.notes, *notes),
        readings=readings,
        moves_rows=bool(origin.notes),
    )


def has_fields(origin: Origin) -> bool:
    """Whether the model has rotary fields that the two versions of transformers keep in different places."""
    family, fields = family_of(origin.fields), origin.fields
    listed = any(fields.get(name) is not None for name in BY_LAYER) or isinstance(fields.get("rope_theta"), list)
    return bool(origin.rotations) and not (family.fixed or listed or family_name(fields) in ELSEWHERE)


def without_rope(origin: Origin, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields without those that say the base and the scaling."""
    bases = {layer.base_key for layer in family_of(origin.fields).layers.values() if layer.base_key}
    return {
        name: value for name, value in fields.items() if name not in ("rope_parameters", "rope_scaling", *BASES, *bases)
    }


def whole_rope(origin: Origin, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The rope dict of version 5 with all that it needs: one for all layers, or one for each kind."""
    filled, family = origin.fields, family_of(origin.fields)
    given = fields.get("rope_parameters") or fields.get("rope_scaling") or filled.get("rope_parameters") or {}
    ropes = by_kind(given)
    if "" in ropes and family.layers:
        ropes = {kind: ropes[""] if layer.scaled else {} for kind, layer in family.layers.items()}
    written = {kind: _whole(origin, family, rope, kind) for kind, rope in ropes.items()}
    if "" in written:
        return written[""]
    return {**{kind: one for kind, one in given.items() if one is None}, **written}


def _whole(origin: Origin, family: Family, rope: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """A rope dict with its type by the present name, and its base."""
    stated = {key: value for key, value in rope.items() if value is not None or key == "factor"}
    kept = {key: value for key, value in stated.items() if key not in ("type", "rope_type", "rope_theta")}
    base = base_of(own_fields(origin.fields), family, stated, kind or None)
    return {"rope_type": type_of(origin.fields, stated, "rope_parameters"), "rope_theta": base, **kept}


def _old_fields(origin: Origin, rope: Mapping[str, Any], kept: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of version 4: a base for each kind of layers that has its own, and one scaling."""
    ropes, family, name = by_kind(rope), family_of(origin.fields), family_name(origin.fields)
    if "" in ropes:
        return _flat(ropes[""], kept, name)
    if not set(ropes) <= set(family.layers):
        raise InexpressibleError(
            f"export: hf-v4 cannot say this: rope_parameters differs by layer type ({', '.join(ropes)}), for which "
            f"version 4 has no fields in model_type {name!r}. Use hf-v5."
        )
    scaled = [_flat(one, kept, name) for kind, one in ropes.items() if family.layers[kind].scaled]
    rest = [_flat(one, kept, name) for kind, one in ropes.items() if not family.layers[kind].scaled]
    scalings = [one["rope_scaling"] for one in scaled]
    if any(one != scalings[0] for one in scalings) or any(one["rope_scaling"] is not None for one in rest):
        raise InexpressibleError(
            "export: hf-v4 cannot say this: rope_parameters has scalings by layer type, and rope_scaling is one for "
            f"{', '.join(kind for kind in ropes if family.layers[kind].scaled)}. Use hf-v5."
        )
    fixed = [kind for kind in ropes if not family.layers[kind].base_key]
    if any(ropes[kind].get("rope_theta") not in (None, family.layers[kind].base) for kind in fixed):
        raise InexpressibleError(
            f"export: hf-v4 cannot say this: version 4 has no field for the base of {', '.join(fixed)} in model_type "
            f"{name!r}. Use hf-v5."
        )
    bases = {family.layers[kind].base_key: one["rope_theta"] for kind, one in ropes.items() if kind not in fixed}
    return {**bases, "rope_scaling": scalings[0] if scalings else None}


def _flat(rope: Mapping[str, Any], kept: Mapping[str, Any], name: str) -> dict[str, Any]:
    """rope_theta, rope_scaling, and what else version 4 looks for beside them, from one rope dict."""
    kind, names = rope["rope_type"], family_of({"model_type": name}).other_names
    beside = {names.get(key, key): rope[key] for key in BESIDE if rope.get(key) is not None}
    inside = {key: value for key, value in rope.items() if key not in (*BESIDE, "rope_type") and value is not None}
    if kind == "longrope":
        original = kept.get(ORIGINAL) or inside.get(ORIGINAL)
        beside |= {ORIGINAL: original} if original else {}
        inside.pop(ORIGINAL, None)
        if name in PHI_3:
            return {**beside, "rope_scaling": _lists(inside)}
    if kind in ("yarn", "llama3"):
        inside |= _worked_out(inside, kept)
    if kind == "default" and not inside:
        return {**beside, "rope_scaling": None}
    return {**beside, "rope_scaling": {"rope_type": kind, "type": kind, **inside}}


def _worked_out(inside: Mapping[str, Any], kept: Mapping[str, Any]) -> dict[str, Any]:
    """The original length, which version 5 takes from beside first, and the factor that it makes of two lengths."""
    original, length = kept.get(ORIGINAL) or inside.get(ORIGINAL), whole_number(kept, LENGTHS)
    found = {} if original is None else {ORIGINAL: original}
    if original and length and "factor" not in inside:
        found["factor"] = length / original
    return found


def _lists(inside: Mapping[str, Any]) -> dict[str, Any]:
    if inside.get("attention_factor") is not None:
        raise InexpressibleError(
            "export: hf-v4 cannot say attention_factor for model_type 'phi3': its class accepts type, short_factor and "
            "long_factor alone. Use hf-v5."
        )
    return {"type": "longrope", **{key: inside[key] for key in ("short_factor", "long_factor")}}
