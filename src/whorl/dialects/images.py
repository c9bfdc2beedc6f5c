"""Towers of images in transformers configs: rotations by rows and columns, each by the convention of AxialRope it has.

Checked against the sources of transformers 5.22.2.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from whorl.dialects.layer_kinds import SPARSE
from whorl.dialects.names import HEAD_DIMS, HEADS, LAYERS, WIDTHS
from whorl.dialects.reading import CLASS_DEFAULT, FAMILY_CODE, FILE, Described, Layers, Value
from whorl.dialects.values import layer_types, whole_number
from whorl.errors import WhorlError, invalid

WINDOWED, FULL = "window_attention", "full_attention"
SEE_ALL = (7, 15, 23, 31)  # the layers that see all of an image where a file is silent, in SAM 3 as in Qwen2.5-VL
SAM3 = "sam3_vit_model"
SAM3_SIZES = {"image_size": 1008, "patch_size": 14, "window_size": 24}  # what its class has where a file is silent
FROM_ONE = "Positions count from 1; the class token is not turned."
COLUMNS_FIRST = "Positions are (column, row): pass the column as the first axis."
TIME_FIRST = "Positions are (time, row, column). What three equal shares leave of the head is not turned."
WHOLE = "Positions count from 1. Self-attention alone turns, all heads as one: rotate queries before they are split."
COLUMNS_FROM_ONE = "Positions are (column, row) and count from 1: pass the column as the first axis."
SHRUNK = (
    "In layers of kind 'window_attention' positions count from 0 in each window of {window} x {window} patches. "
    "In layers of kind 'full_attention' those of the whole image are multiplied by window_size over its {columns} "
    "columns: pass whorl.grid({rows}, {columns}) * {window} / {columns}."
)
UNIT_SQUARE = "Positions are those of whorl.normalized_grid, from -1 to 1."


@dataclass(frozen=True, kw_only=True)
class Tower:
    """The convention of a tower, its axes, and what must be known of its positions.

    whole        whether all heads are turned as one
    full_layers  the field that says which layers see all of an image, where the others see a window; "" where all do
    """

    convention: str
    base: float = 10_000.0
    axes: int = 2
    whole: bool = False
    full_layers: str = ""
    note: str = ""


_QWEN = Tower(convention="qwen_vision")
_QWEN2_5 = Tower(convention="qwen_vision", full_layers="fullatt_block_indexes")
_MUSE = Tower(convention="qwen_vision", full_layers="layer_types", note=COLUMNS_FROM_ONE)
_SAM = Tower(convention="rope_vit")
_DINO = Tower(convention="dinov3", base=100.0, note=UNIT_SQUARE)

TOWERS: dict[str, Tower] = {
    **dict.fromkeys(("qwen2_vl_vision", "qwen3_vl_vision", "qwen3_vl_moe_vision", "qwen4_exp_vision"), _QWEN),
    **dict.fromkeys(("qwen3_omni_moe_vision_encoder", "qwen3_5_vision", "qwen3_5_moe_vision"), _QWEN),
    **dict.fromkeys(("qwen2_5_vl_vision", "qwen2_5_omni_vision_encoder", "exaone4_5_vision"), _QWEN2_5),
    **dict.fromkeys(("glm4v_vision", "glm4v_moe_vision", "glm_ocr_vision", "glm5_next_vision"), _QWEN),
    **dict.fromkeys(("ernie4_5_vl_moe_vision", "paddleocr_vl_vision", "cohere_compass_vision"), _QWEN),
    **dict.fromkeys(("mlcd", "mlcd_vision_model", "video_llama_3_vision"), _QWEN),
    **dict.fromkeys(("muse_glimmer_vision", "muse_spark_vision"), _MUSE),
    **dict.fromkeys(("sam2_video", "sam3_tracker_video", "edgetam_video"), _SAM),
    SAM3: Tower(convention="rope_vit", full_layers="global_attn_indexes"),
    **dict.fromkeys(("dinov3_vit", "eomt_dinov3", "sapiens2"), _DINO),
    "efficientloftr": Tower(convention="loftr", whole=True, note=WHOLE),
    "gemma4_vision": Tower(convention="apex", base=100.0, note=COLUMNS_FIRST),
    "kimi_k25_vision": Tower(convention="kimi_vision"),
    "llama4_vision_model": Tower(convention="llama4_vision", note=FROM_ONE),
    "minimax_m3_vl_vision": Tower(convention="minimax_vision", axes=3, note=TIME_FIRST),
    "pixtral": Tower(convention="pixtral"),
    # as vLLM has it, and transformers from 5.23.0 on; 5.22.2 took the row first
    "step3p5_vision": Tower(convention="qwen_vision", note=COLUMNS_FIRST),
}


def is_tower(config: Mapping[str, Any]) -> bool:
    """Whether a config is that of a tower of images."""
    name = config.get("model_type")
    return isinstance(name, str) and name in TOWERS


def tower_layers(config: Mapping[str, Any], added: frozenset[str]) -> tuple[tuple[Layers, ...], str] | None:
    """The layers of a tower and what to know of its positions; None for a config that is no tower."""
    if not is_tower(config):
        return None
    tower = TOWERS[config["model_type"]]
    _check_unscaled(config)
    settings = {
        "head_dim": _width(config, added) if tower.whole else _head_dim(config, added),
        "convention": Value(value=tower.convention, source=FAMILY_CODE),
        "base": _base(config, added, tower),
    }
    if tower.axes != 2:
        settings["axes"] = Value(value=tower.axes, source=FAMILY_CODE)
    count = whole_number(config, ("depth", *LAYERS, "num_attention_layers"))
    indices = None if count is None else tuple(range(min(count, 4096)))
    everywhere = Layers(indices=indices, encodings=(Described(name="axial_rope", settings=settings),))
    if not tower.full_layers:
        return (everywhere,), tower.note
    layers = _split(config, everywhere, tower.full_layers)
    return layers, _shrunk(config) if config["model_type"] == SAM3 else tower.note


def _split(config: Mapping[str, Any], everywhere: Layers, name: str) -> tuple[Layers, ...]:
    """The layers with windows, and those that see all of an image."""
    places = everywhere.indices
    if places is None:
        raise WhorlError("read: the number of layers is missing in the config. Pass all of config.json.")
    full = _full_layers(config, name, len(places))
    split = {WINDOWED: tuple(i for i in places if i not in full), FULL: tuple(i for i in places if i in full)}
    said = {WINDOWED: (f"layers of kind {WINDOWED!r}: {SPARSE[WINDOWED]}",), FULL: ()}
    return tuple(
        dataclasses.replace(everywhere, kind=kind, indices=some, unsupported=said[kind])
        for kind, some in split.items()
        if some
    )


def _full_layers(config: Mapping[str, Any], name: str, count: int) -> set[int]:
    """The layers that see all of an image: named by their kind, or listed."""
    if name == "layer_types":
        kinds = layer_types(config)
        if not kinds:  # Muse: every fourth, and the last
            return {i for i in range(count) if (i + 1) % 4 == 0 or i == count - 1}
        if len(kinds) < count:
            raise WhorlError(f"read: {name} names {len(kinds)} layers, the model has {count}. Name each layer.")
        return {i for i in range(count) if kinds[i] == FULL}
    listed = SEE_ALL if config.get(name) is None else config[name]
    if not isinstance(listed, (list, tuple)) or not all(type(one) is int for one in listed):
        raise invalid("read", name, "a list of layers", listed)
    return set(listed)


def _shrunk(config: Mapping[str, Any]) -> str:
    """What SAM 3's ViT does to positions where a layer sees all; of two sides its class takes the first for columns."""
    window = whole_number(config, ("window_size",)) or SAM3_SIZES["window_size"]
    columns, rows = (_side(config, "image_size", i) // _side(config, "patch_size", i) for i in (0, 1))
    if rows < 1 or columns < 1:
        raise WhorlError("read: image_size is smaller than patch_size, so that there is no patch. Mend the config.")
    return SHRUNK.format(window=window, rows=rows, columns=columns)


def _side(config: Mapping[str, Any], name: str, which: int) -> int:
    """One of the two sides of an image or a patch of SAM 3."""
    value = config.get(name)
    if isinstance(value, (list, tuple)):
        if len(value) != 2:
            raise invalid("read", name, "a number, or two", value)
        value = value[which]
    return whole_number({name: value}, (name,)) or SAM3_SIZES[name]


def _check_unscaled(config: Mapping[str, Any]) -> None:
    inside = config.get("rope_parameters") or config.get("rope_scaling")
    kind = inside.get("rope_type", inside.get("type")) if isinstance(inside, dict) else None
    if kind not in (None, "default", "axial"):
        raise invalid("read", "rope_type of a model of images", "axial or default", kind, "Its code has none.")


def _base(config: Mapping[str, Any], added: frozenset[str], tower: Tower) -> Value:
    inside = config.get("rope_parameters")
    if isinstance(inside, dict) and inside.get("rope_theta") is not None:
        source = CLASS_DEFAULT if "rope_parameters" in added else FILE
        return Value(value=inside["rope_theta"], source=source, field="rope_parameters.rope_theta")
    if config.get("rope_theta") is not None:
        source = CLASS_DEFAULT if "rope_theta" in added else FILE
        return Value(value=config["rope_theta"], source=source, field="rope_theta")
    return Value(value=tower.base, source=CLASS_DEFAULT)


def _width(config: Mapping[str, Any], added: frozenset[str]) -> Value:
    width = whole_number(config, WIDTHS)
    if width is None:
        raise WhorlError(f"read: {WIDTHS[0]} is missing in the config. Pass all of config.json.")
    field = next(name for name in WIDTHS if config.get(name) is not None)
    return Value(value=width, source=CLASS_DEFAULT if field in added else FILE, field=field)


def _head_dim(config: Mapping[str, Any], added: frozenset[str]) -> Value:
    """The size of a head: SAM 2 turns in the attention to its memory, which has sizes of its own."""
    given = whole_number(config, HEAD_DIMS)
    if given is not None:
        field = next(name for name in HEAD_DIMS if config.get(name) is not None)
        return Value(value=given, source=CLASS_DEFAULT if field in added else FILE, field=field)
    memory = (
        "memory_attention_hidden_size",
        "memory_attention_downsample_rate",
        "memory_attention_num_attention_heads",
    )
    if config.get(memory[0]) is not None:
        names, sizes = memory, [whole_number(config, (name,)) for name in memory]
    else:
        names = tuple(
            next((name for name in names if config.get(name) is not None), names[0])
            for names in (("embed_dim", *WIDTHS), HEADS)
        )
        sizes = [whole_number(config, (name,)) for name in names]
    width, *divisors = sizes
    if width is None or None in divisors:
        raise WhorlError(f"read: {names[sizes.index(None)]} is missing in the config. Pass all of config.json.")
    for divisor in divisors:
        width //= divisor or 1
    return Value(value=width, source=CLASS_DEFAULT if set(names) & added else FILE, field=" / ".join(names))
