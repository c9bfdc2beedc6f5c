"""Whole models of transformers configs: what positions do in each layer, as version 4 or 5 or a checkpoint's code says.

The rotation of one kind of layer is ``transformers.py``'s; here stand which layers there are, which of them rotate,
and what acts on positions beside the rotation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from whorl.dialects import values
from whorl.dialects.beside import query_scales, stated, unsupported_beside
from whorl.dialects.checks import check_rotates
from whorl.dialects.families import SLIDING, class_reads, family_name, family_of, standing_of
from whorl.dialects.fields import Fields, fields_of
from whorl.dialects.images import tower_layers
from whorl.dialects.layer_kinds import CHUNKED, SPARSE, WITHOUT_ATTENTION, Kinds, kinds_of
from whorl.dialects.names import LENGTHS
from whorl.dialects.notes import notes_on
from whorl.dialects.parts import text_part, with_defaults
from whorl.dialects.reading import (
    ASSUMED,
    FAMILY_CODE,
    FILE,
    Described,
    Layers,
    Reading,
    Value,
)
from whorl.dialects.rope_dicts import EVERY_LAYER, PASS_TYPE
from whorl.dialects.sizes import READ_ELSEWHERE, UnrotatedError
from whorl.dialects.sources import describe
from whorl.dialects.unread import own_fields
from whorl.dialects.unrotated import layers_without_rotation
from whorl.dialects.values import parts_by_layer, switch, whole_number
from whorl.errors import WhorlError, invalid, shown, unknown

LIST_TYPES = "Say which each layer is in layer_types, by the names: "
ZAMBA2_LONG = 16384  # what its class makes of every maximum length, where the switch is on
NEOMME_LONG = 1024
# Lists with one entry per layer, from which the rotation of a layer takes its own.
PER_LAYER = ("layer_rope_theta", "rope_theta", "partial_rotary_factors")
BIDIRECTIONAL = ("modernbert", "neomme", "ultrabert", "embedding_gemma2", "openai_privacy_filter")


def read(config: dict[str, Any], assume: str | None = None, heeded: Collection[str] = ()) -> Reading:
    """The reading of a transformers config, given as the dict its config.json holds.

    ``heeded`` names fields that count although the family's class in transformers never reads them.
    """
    try:
        return _read(config, assume, heeded)
    except WhorlError as error:  # the readers below name the call that most people know them by
        said = str(error).replace(values.CALL, "read").replace(PASS_TYPE, LIST_TYPES)
        for elsewhere in (READ_ELSEWHERE, EVERY_LAYER):
            said = said.removesuffix(f" {elsewhere}")
        raise WhorlError(said) from None


def _read(config: dict[str, Any], assume: str | None, heeded: Collection[str]) -> Reading:
    dialect, whole = dialect_of(config), config
    config, added = text_part(config)
    if not added:
        config, added = with_defaults(config)
    standing, given = standing_of(config), _given(config, added)
    config = own_fields(config, heeded)
    family = None if assume is None else _assumed(assume)
    if standing == "unknown" and family is not None:
        config = {**config, "model_type": family}
    tower = tower_layers(config, added)
    if tower is not None:
        layers, note = tower
        return Reading(
            dialect=dialect,
            family=family_name(config),
            layers=layers,
            config=given,
            notes=(*((note,) if note else ()), *notes_on(whole, config)),
        )
    layers = layers_without_rotation(config, added)
    if layers is None:
        layers, lengths = _rotated(config, added)
    else:
        lengths = _lengths(config, added, None)
        layers = tuple(_numbered(config, layers))
    if standing == "unknown":
        layers = tuple(_all_assumed(one) for one in layers)
    trained, claimed = lengths
    return Reading(
        dialect=dialect,
        family=family_name(config),
        standing=standing,
        notes=notes_on(whole, config),
        layers=layers,
        trained_length=trained,
        claimed_length=claimed,
        config=given,
    )


def _given(config: Mapping[str, Any], added: frozenset[str]) -> dict[str, Any]:
    """The config as the file has it."""
    return {name: value for name, value in config.items() if name not in added}


def dialect_of(config: Mapping[str, Any]) -> str:
    """Which version of transformers writes a config so: 5 has ``rope_parameters``, 4 what that took the place of."""
    parts = [config, *(value for value in config.values() if isinstance(value, dict))]
    if any("rope_parameters" in part for part in parts):
        return "transformers 5"
    if any("rope_scaling" in part or "rope_theta" in part for part in parts):
        return "transformers 4"
    version = config.get("transformers_version")
    major = version.partition(".")[0] if isinstance(version, str) else ""
    return f"transformers {major}" if major in ("4", "5") else "transformers"


def _assumed(family: str) -> str:
    known = standing_of({"model_type": family}) != "unknown" if isinstance(family, str) else False
    if not known:
        raise unknown("family to assume", family, ("llama", "gptj", "gpt_neox", "deepseek_v3", "qwen2", "mistral"))
    return family


def _all_assumed(layers: Layers) -> Layers:
    """The layers of an unknown family: what its code would settle is assumed."""

    def weaker(described: Described) -> Described:
        settings = {
            name: value if value.source == FILE else dataclasses.replace(value, source=ASSUMED)
            for name, value in described.settings.items()
        }
        return Described(
            name=described.name, settings=settings, scaling=described.scaling and weaker(described.scaling)
        )

    return dataclasses.replace(layers, encodings=tuple(weaker(one) for one in layers.encodings))


# --- layers that rotate


def _rotated(config: dict[str, Any], added: frozenset[str]) -> tuple[tuple[Layers, ...], tuple[Value | None, ...]]:
    check_rotates(config, family_of(config))
    kinds = kinds_of(config)
    groups: dict[Any, list[int] | None] = {}
    views: dict[Any, tuple[dict[str, Any], str | None, bool]] = {}
    own = parts_by_layer(config, "per_layer_config") or _own_windows(config, kinds)
    for index in range(kinds.count) if kinds.count is not None else (None,):
        view, kind, rotates = _view(config, kinds, index, own)
        key = (kind, rotates, *(shown(view.get(name)) for name in (*PER_LAYER, "head_dim", "sliding_window")))
        views.setdefault(key, (view, kind, rotates))
        places = groups.setdefault(key, None if index is None else [])
        if places is not None and index is not None:
            places.append(index)
    layers, lengths = [], None
    for key, places in groups.items():
        view, kind, rotates = views[key]
        indices = None if places is None else tuple(places)
        if kind in WITHOUT_ATTENTION:
            layers.append(Layers(kind=kind or "all", indices=indices, attention=False))
            continue
        fields = _fields(view, added, kind) if rotates else None
        rotation: tuple[Described, ...] = () if fields is None else (describe(fields),)
        layers.append(_with_beside(Layers(kind=kind or "all", indices=indices), view, added, fields, rotation, kinds))
        for one in rotation:
            lengths = _lengths(config, added, one) if lengths is None or one.scaling is not None else lengths
    return tuple(layers), lengths or _lengths(config, added, None)


def _own_windows(config: Mapping[str, Any], kinds: Kinds) -> dict[int, dict[str, Any]]:
    """NeoMME's class gives every second layer with a window a long one, where the file is silent about layers."""
    if family_name(config) != "neomme" or kinds.kinds is None or config.get("per_layer_config") is not None:
        return {}
    windowed = [index for index, kind in enumerate(kinds.kinds) if kind == SLIDING]
    return {index: {"sliding_window": NEOMME_LONG} for index in windowed[1::2]}


def _view(
    config: dict[str, Any], kinds: Kinds, index: int | None, own: Mapping[int, dict[str, Any]]
) -> tuple[dict[str, Any], str | None, bool]:
    """The config as one layer has it, its kind, and whether it rotates by the lists of the file."""
    if index is None:
        return config, None, True
    kind = kinds.kinds[index] if kinds.kinds is not None else None
    view = {**config, "layer_types": kinds.names} if kinds.kinds is not None else dict(config)
    for name in PER_LAYER:
        listed = config.get(name)
        if isinstance(listed, (list, tuple)):
            if index >= len(listed):
                raise WhorlError(
                    f"{values.CALL}: {name} has {len(listed)} entries for {kinds.count} layers. Name each."
                )
            view[name], view["layer_types"] = [listed[index]], [kind or "all"]
    if "sliding_window" in own.get(index, {}):
        view["sliding_window"] = own[index]["sliding_window"]
    if "head_dim" in own.get(index, {}):
        size = own[index]["head_dim"]
        view |= {"head_dim": size, "per_layer_config": {"0": {"head_dim": size}}, "layer_types": [kind or "all"]}
    return view, kind, kinds.rotates is None or kinds.rotates[index]


def _fields(view: dict[str, Any], added: frozenset[str], kind: str | None) -> Fields | None:
    """The rotary fields of a layer; None where it does not rotate."""
    listed = any(isinstance(view.get(name), list) for name in PER_LAYER)
    try:
        return fields_of(view, added, kind or ("all" if listed else None))
    except UnrotatedError:
        return None


# --- what acts beside the rotation


def _with_beside(
    layers: Layers,
    config: Mapping[str, Any],
    added: frozenset[str],
    fields: Fields | None,
    rotation: tuple[Described, ...],
    kinds: Kinds,
) -> Layers:
    """The layers with their rotation, and with windows, temperatures, caps and what has no encoding here."""
    kind = layers.kind
    windows = _window(config, added, kind, kinds)
    unsupported = [*_unsupported(config, fields, kind), *_unplaced_window(config, kinds)]
    if any(one.name == "mrope" for one in rotation):  # a window counts tokens, which positions on axes do not say
        unsupported += [_counted_window(one) for one in windows]
        windows = []
    return dataclasses.replace(
        layers,
        encodings=(*rotation, *windows, *query_scales(config, added, fields)),
        softcap=_softcap(config, added),
        unsupported=tuple(unsupported),
    )


def _window(config: Mapping[str, Any], added: frozenset[str], kind: str, kinds: Kinds) -> list[Described]:
    """The window of layers that are named sliding; of all layers, where no layer is named and none is excepted."""
    name = family_name(config)
    local = name.startswith("modernbert") and kind == SLIDING
    field = "local_attention" if local and config.get("sliding_window") is None else "sliding_window"
    field = "attention_window_size" if name == "recurrent_gemma" and "sliding_window" not in config else field
    reads = class_reads(config) or ()
    switched_off = switch(config, "use_sliding_window") is False and "use_sliding_window" in reads
    everywhere = name in WINDOWED and not switched_off
    if not (kind in (SLIDING, "hybrid_sliding") or everywhere):
        return []
    size = whole_number(config, (field,), least=0)
    if not size:
        return []
    if name == "mimo_v2_flash" and whole_number(config, ("sliding_window_size",)):  # counted without the query
        field, size = "sliding_window_size", (whole_number(config, ("sliding_window_size",)) or 0) + 1
    symmetric = name in BIDIRECTIONAL
    if field == "local_attention":  # how many are seen on both sides together
        size = size // 2
    if symmetric:
        size += 1  # transformers sees as many on each side beside the query itself
    settings = {"size": stated(config, added, field, size), "symmetric": Value(value=symmetric, source=FAMILY_CODE)}
    return [Described(name="window", settings=settings)]


def _counted_window(window: Described) -> str:
    size, sides = window.settings["size"], " to each side" if window.value("symmetric") else ""
    return f"a window beside an M-RoPE ({size.field}): a query sees {size.value} tokens{sides}, itself counted"


# Families with one window for all layers that attend, or none.
WINDOWED = (
    *("doge", "minimax", "ministral3", "mistral", "mixtral", "phi3", "phi4_multimodal", "phimoe", "qwen3_moe"),
    *("recurrent_gemma", "starcoder2", "voxtral_realtime"),
)


def _softcap(config: Mapping[str, Any], added: frozenset[str]) -> Value | None:
    cap = config.get("attn_logit_softcapping")
    if cap is None:
        return None
    if isinstance(cap, bool) or not isinstance(cap, (int, float)) or not 0 < cap < 2**63:
        raise invalid(values.CALL, "attn_logit_softcapping", "a positive number or null", cap)
    return stated(config, added, "attn_logit_softcapping", float(cap))


def _unsupported(config: Mapping[str, Any], fields: Fields | None, kind: str) -> list[str]:
    found = unsupported_beside(config, fields)
    if kind == CHUNKED:
        size = config.get("attention_chunk_size")
        found.append(f"chunked attention (attention_chunk_size): a query sees its own chunk of {size} keys alone")
    if kind in SPARSE:
        found.append(f"layers of kind {kind!r}: {SPARSE[kind]}")
    if family_name(config) == "phi3small" and config.get("blocksparse_block_size") is not None:
        found.append(
            "block-sparse attention (blocksparse_block_size), in all layers but every n-th "
            "(dense_attention_every_n_layers): a query sees near blocks and some far ones"
        )
    return found


def _unplaced_window(config: Mapping[str, Any], kinds: Kinds) -> list[str]:
    """A window that the file states, in a family of which it is not known here whether and where it acts."""
    placed = kinds.kinds is not None or family_name(config) in WINDOWED
    if (
        placed
        or switch(config, "use_sliding_window") is False
        or not whole_number(config, ("sliding_window",), least=0)
    ):
        return []
    return [f"sliding_window={config['sliding_window']}: where this family uses it is not known here"]


# --- lengths, and layers of models that do not rotate


def _lengths(config: Mapping[str, Any], added: frozenset[str], rotation: Described | None) -> tuple[Value | None, ...]:
    """The trained and the claimed length."""
    claimed = None
    length = whole_number(config, LENGTHS)
    if length is not None:
        claimed = stated(config, added, next(name for name in LENGTHS if config.get(name) is not None), length)
    if family_name(config) == "zamba2" and switch(config, "use_long_context"):
        claimed = Value(value=ZAMBA2_LONG, source=FAMILY_CODE, field="use_long_context")  # the base stays as it is
    scaling = None if rotation is None else rotation.scaling
    if family_name(config) == "qwen" and whole_number(config, ("seq_length",)) is not None:  # from where its NTK begins
        return stated(config, added, "seq_length", whole_number(config, ("seq_length",))), claimed
    if scaling is None:
        return (claimed and dataclasses.replace(claimed, source=ASSUMED)), claimed
    return scaling.settings.get("original_length"), claimed


def _numbered(config: Mapping[str, Any], layers: tuple[Layers, ...]) -> list[Layers]:
    """The layers of a model that does not rotate, those without attention apart."""
    kinds = kinds_of(config)
    if kinds.kinds is None or len(layers) != 1:
        indices = tuple(range(kinds.count)) if kinds.count is not None and len(layers) == 1 else None
        return [dataclasses.replace(one, indices=indices if one.indices is None else one.indices) for one in layers]
    groups: dict[str, list[int]] = {}
    for index, kind in enumerate(kinds.kinds):
        groups.setdefault(kind, []).append(index)
    return [
        dataclasses.replace(layers[0], kind=kind, indices=tuple(places))
        if kind not in WITHOUT_ATTENTION
        else Layers(kind=kind, indices=tuple(places), attention=False)
        for kind, places in groups.items()
    ]
