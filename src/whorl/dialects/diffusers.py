"""Diffusers transformer configs: rotations by the axes of images and video.

Read in diffusers 58eb52c; Flux, HunyuanVideo, Qwen-Image, Wan and Z-Image in public copies of their classes. Each axis
has its own share of the head and its own ladder, pairs are neighbours, and the first axis turns the first of them.
Equal shares are an AxialRope, whose convention "rope_vit" begins with the last axis: positions are passed in reverse.
Unequal ones are an MRope with a ladder for each axis. Other classes are refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from whorl.dialects.reading import CLASS_DEFAULT, FAMILY_CODE, FILE, Described, Layers, Reading, Value
from whorl.dialects.stated import Stated, layer_indices
from whorl.errors import WhorlError, invalid, shown

CENTRED = "Rows and columns count from the middle of the image, text goes on after it on all axes"
REVERSED = "AxialRope turns the last axis first and this model the first: pass positions with their axes in reverse"
FRAMES = "Positions are (frame, row, column), counted in patches from 0"
AFTER_TEXT = "Text counts from 1 along the first axis; an image goes on there after it, rows and columns from 0"
CONVERTED = "Build the rotation of each axis by hand with whorl.Rope, or pass a language model."


@dataclass(frozen=True, kw_only=True)
class Axes:
    """Where a class keeps the widths of its axes and its base, what it takes for them, and which layers it counts."""

    widths_key: str
    widths: tuple[int, ...]
    base: float
    base_key: str = ""
    note: str = ""
    layers: tuple[str, ...] = ("num_layers",)


_BOTH = ("num_layers", "num_single_layers")

WAN = "WanTransformer3DModel"

CLASSES: dict[str, Axes] = {
    WAN: Axes(widths_key="attention_head_dim", widths=(44, 42, 42), base=10_000.0, note=FRAMES),
    "FluxTransformer2DModel": Axes(widths_key="axes_dims_rope", widths=(16, 56, 56), base=10_000.0, layers=_BOTH),
    "Flux2Transformer2DModel": Axes(
        widths_key="axes_dims_rope",
        widths=(32, 32, 32, 32),
        base_key="rope_theta",
        base=2_000.0,
        layers=_BOTH,
    ),
    "HunyuanImageTransformer2DModel": Axes(
        widths_key="rope_axes_dim",
        widths=(64, 64),
        base_key="rope_theta",
        base=256.0,
        layers=_BOTH,
    ),
    "HunyuanVideoTransformer3DModel": Axes(
        widths_key="rope_axes_dim", widths=(16, 56, 56), base_key="rope_theta", base=256.0, layers=_BOTH
    ),
    "HiDreamImageTransformer2DModel": Axes(widths_key="axes_dims_rope", widths=(32, 32), base=10_000.0, layers=_BOTH),
    "Lumina2Transformer2DModel": Axes(widths_key="axes_dim_rope", widths=(32, 32, 32), base=10_000.0),
    "ZImageTransformer2DModel": Axes(
        widths_key="axes_dims",
        widths=(32, 48, 48),
        base_key="rope_theta",
        base=256.0,
        layers=("n_layers",),
        note=AFTER_TEXT,
    ),
    "QwenImageTransformer2DModel": Axes(widths_key="axes_dims_rope", widths=(16, 56, 56), base=10_000.0, note=CENTRED),
}
# What other classes call the widths of their axes, so that a refusal can name them.
WIDTHS = ("axes_dims_rope", "rope_axes_dim", "axes_dim_rope", "axes_dims", "axes_dim")


def recognises(config: Mapping[str, Any]) -> bool:
    """Whether a dict is a config of diffusers."""
    return isinstance(config.get("_class_name"), str) and "model_type" not in config


def read(config: dict[str, Any], assume: str | None = None) -> Reading:
    """The reading of a transformer of diffusers, given as the dict of its config.json."""
    stated = Stated(config)
    name = stated.word("_class_name").value
    if name.endswith("Pipeline"):
        raise WhorlError(f"read: {name} is a pipeline. Pass the config.json in its folder 'transformer'.")
    row = CLASSES.get(name)
    if row is None:
        widths = next((f" ({key} = {shown(config[key])})" for key in WIDTHS if config.get(key) is not None), "")
        raise WhorlError(f"read: {shown(name)} of diffusers{widths} has no reading yet. {CONVERTED}")
    listed = stated.listed(row.widths_key) if name != WAN else _thirds(stated)
    widths = row.widths if listed is None else tuple(int(one) for one in listed)
    if len(widths) < 2 or min(widths) < 2 or any(width % 2 for width in widths):
        raise invalid("read", row.widths_key, "a width of 2 or more, even, for each of 2 or more axes", list(widths))
    source = CLASS_DEFAULT if listed is None else FILE
    base = stated.number(row.base_key) if row.base_key else None
    rope = _rotation(
        widths,
        lambda value: Value(value=value, source=source, field=row.widths_key),
        base or Value(value=row.base, source=CLASS_DEFAULT if row.base_key else FAMILY_CODE),
    )
    notes = [REVERSED] if rope.name == "axial_rope" else []
    return Reading(
        dialect="diffusers",
        family=name,
        layers=tuple(
            Layers(kind=key.removeprefix("num_"), indices=layer_indices(stated.whole(key)), encodings=(rope,))
            for key in row.layers
        ),
        config=config,
        notes=(*notes, *([row.note] if row.note else [])),
    )


def _thirds(stated: Stated) -> tuple[int, ...] | None:
    """Wan's shares of a head: rows and columns have a third each in whole pairs, frames what is left."""
    head = stated.whole("attention_head_dim")
    if head is None:
        return None
    third = 2 * (head.value // 6)
    return (head.value - 2 * third, third, third)


def _rotation(widths: tuple[int, ...], stated: Callable[[Any], Value], base: Value) -> Described:
    """The rotation of axes of these widths, of which ``stated`` makes values with their source."""
    if len(set(widths)) == 1:
        settings = {"convention": Value(value="rope_vit", source=FAMILY_CODE), "axes": stated(len(widths))}
    else:
        settings = {
            "sections": stated(tuple(width // 2 for width in widths)),
            "own_ladders": Value(value=True, source=FAMILY_CODE),
            "layout": Value(value="interleaved", source=FAMILY_CODE),
        }
    name = "axial_rope" if "convention" in settings else "mrope"
    return Described(name=name, settings={"head_dim": stated(sum(widths)), "base": base, **settings})
