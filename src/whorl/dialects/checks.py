"""Checks of transformers configs: whether a model rotates queries and keys, whether every rotary field has a place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from whorl.dialects.families import ALIBI, UNROTATED, Family, class_reads, family_name, standing_of, unrotated_kind
from whorl.dialects.images import is_tower
from whorl.dialects.names import BASES, HEAD_DIMS, HEADS, SHARES, WIDTHS
from whorl.dialects.parts import SIZES, is_model
from whorl.dialects.sizes import READ_ELSEWHERE, UnrotatedError
from whorl.dialects.values import CALL, switch, whole_number, word
from whorl.errors import WhorlError, invalid

PART_ENDS = ("_config", "encoder", "decoder")

# a field with rope or rotary in its name that is not here might change the rotation, so it raises
READ = {
    *("rope_parameters", "rope_scaling", *BASES, *SHARES, "rotary_dim", "qk_rope_head_dim", "rope_interleave"),
    *("rope_local_base_freq", "global_rope_theta", "local_rope_theta", "swa_rope_theta", "compress_rope_theta"),
    *("layer_rope_theta", "partial_rotary_factors", "rotary_value", "use_mem_rope"),
    # which layers rotate at all is the layer plan's affair; how they do does not change with it
    *("no_rope_layers", "no_rope_layer_interval"),
    "indexer_rope_interleave",  # how the indexer of sparse attention turns its own keys
}
# what says only that the model rotates as usual, where it says so
AS_USUAL = {"rotary": True, "use_mrope": False, "rotary_emb_interleaved": False, "rope_position_scale": 1}
BAICHUAN_7B = 4096  # the width by which it is told from its larger sister, which has the same model_type


def check_rotates(config: dict[str, Any], family: Family) -> None:
    """Raises a WhorlError for a model that does not rotate its queries and keys, or not only them."""
    name, model = family_name(config), repr(config.get("model_type"))
    if is_tower(config):
        raise WhorlError(
            f"{CALL}: model_type {model} turns images by rows and columns, which a Rope does not. "
            "whorl.read gives its AxialRope."
        )
    parts = [key for key, value in config.items() if key.endswith(PART_ENDS) and is_model(value)]
    if parts and not any(config.get(key) is not None for key in (*HEAD_DIMS, *WIDTHS, *HEADS)) and family.layers:
        raise WhorlError(
            f"{CALL}: model_type {model} is made of several models. Pass one of its parts: {', '.join(parts)}."
        )
    if family.refusal:
        raise WhorlError(f"{CALL}: model_type {model} cannot be read: {family.refusal}.")
    if family.still and whole_number(config, ("qk_rope_head_dim",), least=0) != 0:
        raise UnrotatedError(f"{CALL}: model_type {model} does not rotate: {family.still}. {READ_ELSEWHERE}")
    if switch(config, "alibi"):
        raise UnrotatedError(
            f"{CALL}: alibi is true, so position enters by a bias. Use the encoding 'alibi'. {READ_ELSEWHERE}"
        )
    kind = position_type(config)
    reads = class_reads(config)
    said = kind is not None and (reads is None or "position_embedding_type" in reads)
    if (said or name == "granitemoehybrid") and not rotary_name(kind or ""):
        raise invalid(
            CALL,
            "position_embedding_type",
            "rotary",
            kind,
            f"This model does not rotate queries and keys. {READ_ELSEWHERE}",
        )
    if name == "zamba2" and not switch(config, "use_mem_rope"):
        raise UnrotatedError(
            f"{CALL}: use_mem_rope is not set, so this model does not rotate. Use the encoding 'none'."
        )
    if switch(config, "rotary_value"):
        raise WhorlError(
            f"{CALL}: rotary_value is true, so values are rotated too, which no encoding here does. "
            "Set it to false and rotate them with rope.rotate(v, positions)."
        )
    if name == "chatglm" and config.get("position_encoding_2d") is not None:
        raise WhorlError(
            f"{CALL}: position_encoding_2d is a field of ChatGLM-6B, which turns the two halves of a head by two "
            "positions. No encoding here does that; ChatGLM2 and later are read."
        )
    if name == "baichuan" and whole_number(config, WIDTHS) != BAICHUAN_7B:
        raise UnrotatedError(f"{CALL}: this is Baichuan-13B, whose positions are {ALIBI}. {READ_ELSEWHERE}")
    if name in UNROTATED:
        raise UnrotatedError(
            f"{CALL}: the positions of model_type {model} are {unrotated_kind(config)}. {READ_ELSEWHERE}"
        )
    if standing_of(config) == "unknown" and not any(rotary_name(key) for key in config):
        if not parts and not any(config.get(key) is not None for key in ("model_type", *SIZES)):
            raise WhorlError(f"{CALL}: no field here describes a model. Pass the config.json of one.")
        remedy = f"Pass one of its parts: {', '.join(parts)}." if parts else "If the model rotates, add rope_theta."
        raise UnrotatedError(
            f"{CALL}: no rotary field in the config of model_type {model}. {remedy} "
            "No table here has this family: what else it does with positions is not known."
        )


def position_type(config: Mapping[str, Any]) -> str | None:
    """What the config calls its kind of positions, None where it does not say."""
    names = ("position_embedding_type", "position_embeddings_type")
    return next((word(config, key) for key in names if key in config), None)


def check_names(config: dict[str, Any], family: Family) -> None:
    """Raises a WhorlError for a field that looks rotary and has no place here."""
    for key, value in config.items():
        if value is None or key in READ or (key in family.reads and key not in AS_USUAL) or not rotary_name(key):
            continue
        if key in AS_USUAL and type(value) in (bool, int, float) and value == AS_USUAL[key]:
            continue
        listed = len(value) if isinstance(value, (list, tuple)) else None
        if key == "rope_scaling_layers" and listed == whole_number(config, ("num_hidden_layers",)) is not None:
            continue  # Molmo 2 names the layers that are scaled: here all are
        if key == "use_scaled_rope":
            raise WhorlError(f"{CALL}: use_scaled_rope is a field of Meta's params.json. Pass that file to whorl.read.")
        raise WhorlError(
            f"{CALL}: cannot place the field {key!r}. Read are: {', '.join(sorted({*READ, *family.reads}))}. "
            f"What {key!r} does to the rotation is not known here: look into the model's own code."
        )


def rotary_name(key: str) -> bool:
    """Whether a name speaks of a rotation."""
    return "rope" in key or "rotary" in key
