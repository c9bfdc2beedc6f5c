"""Kinds of layers in transformers configs: full, sliding or chunked attention, none at all, with rotation or without.

A file names the kind of each layer, or gives a rule by which its class makes the list, or is silent and the class has
a rule of its own. The rules are those of the config classes of transformers 5.22.2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from whorl.dialects.class_defaults import class_defaults
from whorl.dialects.families import CROSS, FULL, SLIDING, family_name
from whorl.dialects.names import LAYERS
from whorl.dialects.reading import CLASS_DEFAULT, FILE, Source
from whorl.dialects.values import CALL, layer_types, number_per_layer, switch, whole_number
from whorl.errors import WhorlError, invalid, shown

MOST_LAYERS = 4096
LINEAR, CHUNKED, HYBRID = "linear_attention", "chunked_attention", "hybrid"

# What older files call the kinds.
RENAMED = {
    "mamba": LINEAR,
    "attention": FULL,
    "deepseek_sparse_attention": "indexed_attention",
    "qwen_sparse_attention": "indexed_attention",
}
# What classes have where a file is silent.
MLLAMA_CROSSING = (3, 8, 13, 18, 23, 28, 33, 38)
ZAMBA2 = tuple(HYBRID if i in (6, 12, 18, 24, 30, 36, 42, 47, 51) else LINEAR for i in range(54))
# DeepSeek-V4: the kind of a layer by how far it compresses what lies outside its window.
COMPRESSION = {0: SLIDING, 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}
# Kinds of attention that hide keys by more than a window.
SPARSE = {
    "compressed_sparse_attention": "keys beyond a window compressed, and of those the most alike",
    "heavily_compressed_attention": "keys beyond a window compressed",
    "reference_sliding_attention": "all of the prompt, and a window of what was generated",
    "window_attention": "windows that do not overlap",
}
WITHOUT_ATTENTION = {LINEAR, "conv", "moe", "mlp", "recurrent", "mamba2"}


@dataclass(frozen=True, kw_only=True)
class Kinds:
    """The kind of each layer, whether it rotates, and where that is said; ``kinds`` is None where nothing says.

    rotates  False for the layers that a list of the file takes the rotation from
    """

    count: int | None
    kinds: tuple[str, ...] | None
    rotates: tuple[bool, ...] | None
    source: Source

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Each kind once."""
        return tuple(dict.fromkeys(self.kinds or ()))


def kinds_of(config: Mapping[str, Any]) -> Kinds:
    """The kinds of the layers of a config whose class has filled in what it lacks."""
    count = whole_number(config, LAYERS)
    if count is not None and count > MOST_LAYERS:
        raise invalid(CALL, "num_hidden_layers", f"at most {MOST_LAYERS:,}", count)
    kinds, source = _stated(config, count), FILE
    rotates = _rotates(config, count if kinds is None else len(kinds))
    if kinds is None and rotates is not None:
        kinds = _by_rotation(config, rotates)
    if kinds is None and count is not None:
        kinds = _by_family(config, count) or _by_rule(config, count)
    if kinds is None and count is not None:
        repeated = class_defaults(config.get("model_type")).get("layer_types")
        kinds = tuple(repeated[i % len(repeated)] for i in range(count)) if repeated else None
        source = CLASS_DEFAULT
    if kinds is not None:
        kinds = tuple(RENAMED.get(kind, kind) for kind in kinds)
        count = len(kinds)
    return Kinds(count=count, kinds=kinds, rotates=rotates, source=source)


def _stated(config: Mapping[str, Any], count: int | None) -> tuple[str, ...] | None:
    """The kinds that the file lists one by one; a list longer than the model is cut, as transformers does."""
    name, kinds = "layer_types", layer_types(config)
    if not kinds and config.get("hybrid_override_pattern") is not None:
        return _letters(config, "hybrid_override_pattern")  # as many layers as letters, whatever the count says
    if not kinds and config.get("compress_ratios") is not None:
        name, kinds = "compress_ratios", _compressed(config, "compress_ratios")
    if not kinds:
        name, kinds = "layers_block_type", layer_types(config, "layers_block_type")
    if not kinds or count is None or len(kinds) == count or name == "layers_block_type":
        return kinds or None
    if len(kinds) < count:
        raise WhorlError(
            f"{CALL}: {name} names {len(kinds)} layers, the model has {count}. Name the kind of each layer."
        )
    return kinds[:count]


# --- rules by which classes make the list


def _by_rule(config: Mapping[str, Any], count: int) -> tuple[str, ...] | None:
    for name, rule in RULES.items():
        if config.get(name) is not None:
            kinds = rule(config, name, count)
            if kinds is not None:
                return tuple(kinds)
    return None


def _by_family(config: Mapping[str, Any], count: int) -> tuple[str, ...] | None:
    """Rules that no field of the file names: what the class of the family makes where the file lists nothing."""
    name = family_name(config)
    if name == "exaone4" and _without_window(config):
        return (FULL,) * count
    if name == "flint":
        return tuple(FULL if i < 2 or i % 4 == 1 or i == count - 1 else SLIDING for i in range(count))
    if name in ("muse_glimmer", "muse_spark"):
        return tuple(FULL if _fourth_from_last(i, count) else SLIDING for i in range(count))
    if name == "mllama" and config.get("cross_attention_layers") is None:
        return tuple(CROSS if i in MLLAMA_CROSSING else FULL for i in range(count))
    if name == "recurrent_gemma" and config.get("block_types") is None:
        return tuple(FULL if i % 3 == 2 else "recurrent" for i in range(count))
    if name == "zamba":
        period, offset = (whole_number(config, (f"attn_layer_{one}",), least=0) for one in ("period", "offset"))
        later = (HYBRID if i % (period or 6) == (4 if offset is None else offset) else LINEAR for i in range(count - 3))
        return (LINEAR, LINEAR, HYBRID, *later)[:count]
    if name == "zamba2":
        if count != len(ZAMBA2):
            raise WhorlError(
                f"{CALL}: layers_block_type is missing for {count} layers, of which Zamba 2 has {len(ZAMBA2)}. "
                "Name the kind of each layer."
            )
        return ZAMBA2
    return None


def _fourth_from_last(index: int, count: int) -> bool:
    """Whether a layer of Muse sees everything and does not rotate: the last, and every fourth before it."""
    return (count - 1 - index) % 4 == 0


def _by_rotation(config: Mapping[str, Any], rotates: tuple[bool, ...]) -> tuple[str, ...] | None:
    """Llama 4 has chunks in the layers that rotate, SmolLM3 a window, where it is used, in those that do not."""
    name = family_name(config)
    if name == "llama4":
        return tuple(CHUNKED if turns else FULL for turns in rotates)
    if name == "smollm3":
        windowed = switch(config, "use_sliding_window") and config.get("sliding_window") is not None
        return tuple(SLIDING if windowed and not turns else FULL for turns in rotates)
    return None


def _every(config: Mapping[str, Any], name: str, count: int, others: str) -> list[str] | None:
    """Full attention in every n-th layer, counted from 1."""
    step = whole_number(config, (name,))
    return None if step is None else [others if (i + 1) % step else FULL for i in range(count)]


def _without_window(config: Mapping[str, Any]) -> bool:
    """Whether a file says that there is no window, so that all attention is full."""
    return config.get("sliding_window", 0) is None


def _sliding_pattern(config: Mapping[str, Any], name: str, count: int) -> list[str] | None:
    """Gemma 3, Cohere 2 and EXAONE 4: a number as above, or letters L and G that repeat, the last layer G."""
    letters = config[name]
    if (type(letters) is int and letters == 0) or _without_window(config):
        return [FULL] * count
    if not isinstance(letters, str):
        return _every(config, name, count, SLIDING)
    if not letters or set(letters) - {"L", "G"}:
        raise invalid(CALL, name, "a number, or letters L and G", letters)
    kinds = [FULL if letters[i % len(letters)] == "G" else SLIDING for i in range(count)]
    return [*kinds[:-1], FULL]


def _full_interval(config: Mapping[str, Any], name: str, count: int) -> list[str] | None:
    return _every(config, name, count, LINEAR)


def _global_every(config: Mapping[str, Any], name: str, count: int) -> list[str] | None:
    """ModernBERT: full attention in layer 0 and every n-th after it."""
    step = whole_number(config, (name,)) or 1
    return [SLIDING if i % step else FULL for i in range(count)]


def _window_from(config: Mapping[str, Any], name: str, count: int) -> list[str] | None:
    """Qwen2: a window in the layers from max_window_layers on, where it is used at all.

    Qwen3-MoE has the fields and no kinds of layers: its window is that of all.
    """
    known = class_defaults(config.get("model_type"))
    if known and "layer_types" not in known:
        return None
    first = whole_number(config, ("max_window_layers",), least=0)
    windowed = switch(config, name) and config.get("sliding_window") is not None and first is not None
    return [SLIDING if windowed and first is not None and i >= first else FULL for i in range(count)]


def _indices(others: str) -> Callable[[Mapping[str, Any], str, int], list[str]]:
    def kinds(config: Mapping[str, Any], name: str, count: int) -> list[str]:
        listed = config[name]
        if not isinstance(listed, (list, tuple)) or not all(type(one) is int for one in listed):
            raise invalid(CALL, name, "a list of layers", listed)
        return [FULL if i in listed else others for i in range(count)]

    return kinds


def _kimi(config: Mapping[str, Any], name: str, count: int) -> list[str] | None:
    """Kimi Linear: two lists of layers counted from 1, which together name each layer once."""
    listed = {}
    for key, kind in (("full_attn_layers", FULL), ("kda_layers", LINEAR)):
        layers = config[name].get(key) if isinstance(config[name], dict) else None
        if layers is None:
            return None
        if not isinstance(layers, (list, tuple)) or not all(type(one) is int for one in layers):
            raise invalid(CALL, f"{name}.{key}", "a list of layers", layers)
        listed |= dict.fromkeys(layers, kind)
    if sorted(listed) != list(range(1, count + 1)):
        raise WhorlError(
            f"{CALL}: full_attn_layers and kda_layers in {name} do not name the layers 1 to {count}. Name each once."
        )
    return [listed[i + 1] for i in range(count)]


def _crossing(config: Mapping[str, Any], name: str, count: int) -> list[str] | None:
    """Llama 3.2 Vision: the listed layers attend to an image, and nothing is turned there."""
    listed = config[name]
    if not isinstance(listed, (list, tuple)) or not all(type(one) is int for one in listed):
        raise invalid(CALL, name, "a list of layers", listed)
    return [CROSS if i in listed else FULL for i in range(count)]


def _letters(config: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """Nemotron-H: M for Mamba, * for attention, - for an MLP, E for experts."""
    meaning = {"M": LINEAR, "*": FULL, "-": "mlp", "E": "moe"}
    letters = config[name]
    if not isinstance(letters, str) or len(letters) > MOST_LAYERS or set(letters) - set(meaning):
        raise invalid(CALL, name, "letters M, *, - and E, one per layer", letters)
    return tuple(meaning[letter] for letter in letters)


def _blocks(config: Mapping[str, Any], name: str, count: int) -> list[str] | None:
    """RecurrentGemma: a few kinds that repeat."""
    blocks = layer_types(config, name)
    return [blocks[i % len(blocks)] for i in range(count)] if blocks else None


def _periodic(config: Mapping[str, Any], name: str, count: int) -> list[str]:
    """Jamba: attention in one layer of each period."""
    step, offset = whole_number(config, (name,)) or 1, whole_number(config, ("attn_layer_offset",), least=0) or 0
    return [FULL if i % step == offset else LINEAR for i in range(count)]


def _ones(config: Mapping[str, Any], name: str, count: int) -> list[str] | None:
    """MiniMax: 1 for a layer with full attention, 0 for one with linear attention."""
    ones = number_per_layer(config, name)
    if ones is None or len(ones) < count or not set(ones) <= {0, 1}:
        raise invalid(CALL, name, "a list of 0 and 1, one per layer", config[name])
    return [FULL if one else LINEAR for one in ones[:count]]


def _hybrid(config: Mapping[str, Any], name: str, count: int) -> list[str]:
    """MiMo-V2's own code: 1 for a layer with a window, 0 for one with full attention."""
    ones = number_per_layer(config, name)
    if ones is None or len(ones) < count or not set(ones) <= {0, 1}:
        raise invalid(CALL, name, "a list of 0 and 1, one per layer", config[name])
    return [SLIDING if one else FULL for one in ones[:count]]


RULES: dict[str, Callable[[Mapping[str, Any], str, int], list[str] | None]] = {
    "block_types": _blocks,
    "cross_attention_layers": _crossing,
    "hybrid_layer_pattern": _hybrid,
    "linear_attn_config": _kimi,
    "full_attn_idxs": _indices("conv"),
    "attn_layer_indices": _indices(LINEAR),
    "attn_type_list": _ones,
    "attn_layer_period": _periodic,
    "full_attention_interval": _full_interval,
    "sliding_window_pattern": _sliding_pattern,
    "_sliding_window_pattern": _sliding_pattern,
    "global_attn_every_n_layers": _global_every,
    "use_sliding_window": _window_from,
}


def _compressed(config: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """DeepSeek-V4: how far each layer compresses what lies outside its window, layers that predict ahead included."""
    ratios = number_per_layer(config, name)
    if ratios is None or not set(ratios) <= set(COMPRESSION):
        raise invalid(CALL, name, "a list of 0, 4 or 128, one per layer", config[name])
    return tuple(COMPRESSION[int(ratio)] for ratio in ratios)


# --- which layers rotate


def _rotates(config: Mapping[str, Any], count: int | None) -> tuple[bool, ...] | None:
    """Llama 4 and SmolLM3: a list with 0 for a layer without rotation, or the step at which such layers come."""
    if family_name(config) in ("muse_glimmer", "muse_spark") and config.get("layer_rope_theta") is None:
        return None if count is None else tuple(not _fourth_from_last(i, count) for i in range(count))
    listed = config.get("no_rope_layers")
    plain = isinstance(listed, (list, tuple)) and all(isinstance(one, (bool, int)) for one in listed)
    if listed is not None and not plain:
        raise invalid(CALL, "no_rope_layers", "a list of 0 and 1, one per layer", listed)
    if listed:
        if count is not None and len(listed) != count:
            raise WhorlError(
                f"{CALL}: no_rope_layers {shown(listed)} is for {len(listed)} layers, the model has {count}. "
                "Say of each layer whether it rotates."
            )
        return tuple(bool(one) for one in listed)
    step = whole_number(config, ("no_rope_layer_interval",))
    if step is None or count is None:
        return None
    return tuple(bool((i + 1) % step) for i in range(count))
