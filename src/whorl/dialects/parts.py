"""Parts of transformers configs: the text model inside a multimodal one, with what its class fills in.

A config inside another one is saved as its differences from the defaults of its class.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from whorl.dialects.class_defaults import class_defaults, filled
from whorl.dialects.families import class_rope, family_of
from whorl.dialects.names import HEAD_DIMS, HEADS, LAYERS, PARTS, WIDTHS
from whorl.dialects.sizes import WHOLE_CONFIG
from whorl.dialects.values import CALL, DEEPEST, check_fields, word
from whorl.errors import WhorlError

# Shells around a tower of images: what a config under backbone_config is, where it does not say.
BACKBONES = {"sam3_vision_model": "sam3_vit_model"}
SIZES = (*HEAD_DIMS, *WIDTHS, *HEADS, *LAYERS, "qk_rope_head_dim")  # one of them makes a config that of a text model
OF_ATTENTION = ("attn_config", "linear_attn_config")  # sizes of the model's own attention


def text_part(config: dict[str, Any]) -> tuple[dict[str, Any], frozenset[str]]:
    """The config of the text model inside a multimodal one, or the config itself; and what its class filled in.

    A config inside another one is saved as its differences from the defaults of its class.
    """
    added: frozenset[str] = frozenset()
    for _ in range(DEEPEST):
        check_fields(config)
        outer = word(config, "model_type")
        name, parts = inner_part(config), class_defaults(outer).get("parts", {})
        if name is None and parts and not any(key in config for key in SIZES):
            raise WhorlError(
                f"{CALL}: model_type {outer!r} holds its text model under {next(iter(parts))}, which is missing. "
                f"{WHOLE_CONFIG}"
            )
        if name is None:
            return config, added
        own = BACKBONES.get(outer or "") or parts.get(name, outer)
        config, added = with_defaults({"model_type": own, **config[name]})
    raise WhorlError(f"{CALL}: the config holds configs of text models {DEEPEST} levels deep. Pass the innermost one.")


def inner_part(config: Mapping[str, Any]) -> str | None:
    """The name under which a config holds that of its text model, or of the tower it wraps; None for neither."""
    outer = config.get("model_type")
    names = ("backbone_config",) if isinstance(outer, str) and outer in BACKBONES else PARTS
    return next((name for name in names if isinstance(config.get(name), dict) and config[name]), None)


def other_parts(config: Mapping[str, Any]) -> list[str]:
    """Models that a config holds beside its text model, which is a part of it or the config itself, by their paths."""
    found, path = [], ""
    for _ in range(DEEPEST):
        name = inner_part(config)
        parts = [key for key in config if key.endswith("_config") and key not in (name, *OF_ATTENTION)]
        others = [key for key in parts if is_model(config[key])]
        found += [f"{path}{key}" for key in others]
        if name is None:
            break
        config, path = config[name], f"{path}{name}."
    return found


def with_defaults(config: dict[str, Any]) -> tuple[dict[str, Any], frozenset[str]]:
    """The config with what its class fills in, and the names of those fields."""
    check_fields(config)
    word(config, "model_type")
    config, added = filled(config)
    rope = class_rope(config)
    if (
        rope
        and family_of(config).needs_parameters
        and not any(key in config for key in ("rope_parameters", "rope_scaling"))
    ):
        own = family_of(config).theta_beside or rope.get("rope_type") == "axial"
        kept = _without(rope, config) if own else rope
        return {**config, "rope_parameters": kept}, added | {"rope_parameters"}
    return config, added


def _without(rope: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """The rope dict without what the config states beside it, in each of its kinds of layers where it has several."""
    return {
        key: _without(value, config) if isinstance(value, dict) else value
        for key, value in rope.items()
        if key not in config
    }


def is_model(value: object) -> bool:
    """Whether a part of a config describes a model: it has a type or a size of one."""
    return isinstance(value, dict) and any(value.get(key) for key in ("model_type", *HEAD_DIMS, *WIDTHS, *HEADS))
