"""Base, rotated share and head size: numbers of a rotation that stand beside the rope dict of a transformers config.

The names differ by family and version; null stands for absent.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from whorl.dialects.families import FULL, Family
from whorl.dialects.names import BASES, HEAD_DIMS, HEADS, SHARES, WIDTHS
from whorl.dialects.values import CALL, layer_types, number_per_layer, parts_by_layer, whole_number
from whorl.errors import WhorlError, invalid

MOST_RATIO, MOST_BASE = 1e9, 1e200

READ_ELSEWHERE = "whorl.read gives what the model has instead."
WHOLE_CONFIG = "Pass the whole config: transformers.AutoConfig.from_pretrained(…).to_dict()."


def base_of(config: dict[str, Any], family: Family, parameters: dict[str, Any], layer_type: str | None) -> Any:
    """The base of the frequencies: from the rope dict, the fields beside it, or the family."""
    if family.fixed:
        return family.base
    by_layer = _of_layers(config, "layer_rope_theta", layer_type)
    if by_layer is not None:
        return by_layer
    if "rope_theta" in parameters:
        return parameters["rope_theta"]
    layer = family.layers.get(layer_type or "")
    if layer is not None:
        own = _first(config, (layer.base_key,), layer.base)
        return _of_layers(config, layer.base_key, layer_type) if isinstance(own, (list, tuple)) else own
    if family.states_base and not any(config.get(name) is not None for name in BASES):
        raise WhorlError(
            f"{CALL}: rope_theta is missing, and classes of model_type {config.get('model_type')!r} have had several "
            "defaults for it. Add it to the config."
        )
    attention = config.get("attn_config")  # DBRX keeps its base there
    inside = _first(attention if isinstance(attention, dict) else {}, BASES, family.base)
    beside = _first(config, (*BASES, family.base_key), inside)
    if isinstance(beside, (list, tuple)):
        listed = _of_layers(config, "rope_theta", layer_type) if beside is config.get("rope_theta") else None
        if listed is None:
            raise invalid(CALL, "rope_theta", "a number, or a list with one per layer", beside)
        return listed
    plain = isinstance(beside, (int, float)) and abs(beside) < MOST_BASE  # any other is refused where it is used
    return beside * ratio_of(config, family) if family.ratio_key and plain else beside


def ratio_of(config: dict[str, Any], family: Family) -> float:
    """What multiplies the base: the field that ChatGLM has for it, 1 where it is absent."""
    ratio = _first(config, (family.ratio_key,), 1)
    if isinstance(ratio, bool) or not isinstance(ratio, (int, float)) or not 0 < ratio <= MOST_RATIO:
        raise invalid(CALL, family.ratio_key, f"a number above 0, up to {MOST_RATIO:g}", ratio)
    return ratio


def share_of(config: dict[str, Any], parameters: dict[str, Any], layer_type: str | None) -> float | None:
    """The share of the head that the config says is rotated, None where it says nothing."""
    given = {key: config[key] for key in SHARES if config.get(key) is not None}
    by_layer = _of_layers(config, "partial_rotary_factors", layer_type)
    if by_layer is not None:
        given["partial_rotary_factors"] = by_layer
    if "partial_rotary_factor" in parameters:
        given = {"partial_rotary_factor": parameters["partial_rotary_factor"]}
    for key, value in given.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
            raise invalid(CALL, key, "between 0 and 1", value)
    if len(set(given.values())) > 1:
        raise WhorlError(f"{CALL}: {', '.join(f'{key}={value}' for key, value in given.items())} differ. Keep one.")
    return next(iter(given.values()), None)


def sizes_of(config: dict[str, Any], family: Family, share: float | None, layer_type: str | None) -> tuple[int, int]:
    """The dimensions of the tensor that is rotated, and how many of them are."""
    latent = config.get("use_mla") is not False  # DeepSeek-VL2-tiny leaves the sizes of the attention it does not use
    rope_dim = whole_number(config, ("qk_rope_head_dim",), "With 0 its attention is not rotated.") if latent else None
    if rope_dim is not None:
        return _latent_sizes(config, family, share, layer_type, rope_dim)
    head_dim, rotary_dim = _head_dim(config, family, layer_type), whole_number(config, ("rotary_dim",))
    if rotary_dim is not None:
        if share is not None and int(head_dim * share) != rotary_dim:
            raise _two_sizes("rotary_dim", rotary_dim, share)
        return head_dim, rotary_dim
    share = family.partial if share is None else share
    rotary_dim = int(head_dim * share)
    if rotary_dim % 2 or rotary_dim == 0:
        raise WhorlError(
            f"{CALL}: partial_rotary_factor={share:g} of head_dim={head_dim} is {rotary_dim} dimensions, and "
            "rotary pairs them. Make it an even number."
        )
    return head_dim, rotary_dim


def _latent_sizes(
    config: dict[str, Any], family: Family, share: float | None, layer_type: str | None, rope_dim: int
) -> tuple[int, int]:
    """Latent attention (DeepSeek): the rotated dimensions are a tensor of their own, or the end of the head."""
    head_dim = _head_dim(config, family, layer_type) if family.slice == "trailing" else rope_dim
    still = whole_number(config, ("qk_nope_head_dim",), least=0) or 0
    heads = (rope_dim, head_dim, whole_number(config, ("head_dim",)), still + rope_dim)
    if share is not None and share != 1 and rope_dim not in {int(dim * share) for dim in heads if dim}:
        raise _two_sizes("qk_rope_head_dim", rope_dim, share)
    return head_dim, rope_dim


def _two_sizes(name: str, value: int, share: float) -> WhorlError:
    return WhorlError(f"{CALL}: {name}={value} and partial_rotary_factor={share} do not agree. Keep one of them.")


def _head_dim(config: dict[str, Any], family: Family, layer_type: str | None) -> int:
    of_layer = _per_layer_head_dim(config, layer_type)
    by_layer = parts_by_layer(config, "per_layer_config")
    if of_layer is None and layer_type == FULL and family.full_head_dim is not None and not by_layer:
        of_layer = whole_number(config, ("global_head_dim",)) or family.full_head_dim
    head_dim = of_layer or whole_number(config, HEAD_DIMS)
    if head_dim is not None:
        return head_dim
    width, heads = whole_number(config, WIDTHS), whole_number(config, HEADS)
    if width is None or heads is None:
        raise WhorlError(f"{CALL}: head_dim missing, and no hidden_size and num_attention_heads. {WHOLE_CONFIG}")
    return family.head_widths * width // heads


def _per_layer_head_dim(config: dict[str, Any], layer_type: str | None) -> int | None:
    """The head size that per_layer_config gives the layers of this type, None where it is silent."""
    layers = parts_by_layer(config, "per_layer_config")
    sizes = {index: whole_number(part, ("head_dim",)) for index, part in layers.items() if "head_dim" in part}
    if not sizes:
        return None
    kinds = enumerate(layer_types(config))
    return _agreed("head_dim in per_layer_config", [sizes.get(i) for i, kind in kinds if kind == layer_type])


def _of_layers(config: dict[str, Any], key: str, layer_type: str | None) -> Any:
    """The entry that a list with one entry per layer has for this layer type, None where there is no list."""
    values = number_per_layer(config, key)
    if values is None:
        return None
    if layer_type is not None:
        kinds = layer_types(config)
        values = [value for value, kind in zip(values, kinds, strict=False) if kind == layer_type]
        if not any(values):
            raise unrotated(layer_type, f"(0 in {key})")
    return _agreed(key, [value for value in values if value])  # a zero marks a layer without rotation


def _agreed(what: str, values: list[Any]) -> Any:
    if len(set(values)) > 1:
        raise WhorlError(f"{CALL}: {what} differs between the layers asked for. Pass layer_type=…, one of layer_types.")
    return values[0] if values else None


class UnrotatedError(WhorlError):
    """Layers without rotation were asked for theirs: an error for one encoding, an answer for a plan by layer."""


def unrotated(layer_type: str, why: str) -> UnrotatedError:
    """The error for layers that do not rotate."""
    return UnrotatedError(f"{CALL}: layers of type {layer_type!r} {why} do not rotate. {READ_ELSEWHERE}")


def _first(source: dict[str, Any], names: Iterable[str], otherwise: Any) -> Any:
    return next((source[name] for name in names if name and source.get(name) is not None), otherwise)
