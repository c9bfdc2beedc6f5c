"""Rules about layers: fields that do nothing, lists that do not fit, and what programs leave out."""

from __future__ import annotations

from collections.abc import Iterator

from whorl.bridge.rules.facts import Facts, Rules, type_of
from whorl.dialects.families import class_reads, family_of
from whorl.dialects.names import BASES, LAYERS
from whorl.dialects.reading import CLASS_DEFAULT
from whorl.errors import shown

RULES = Rules()
SIZES = ("qk_rope_head_dim",)  # Kimi Linear has the dimensions and does not turn them
LISTS = ("layer_types", "no_rope_layers", "layer_rope_theta", "partial_rotary_factors")


@RULES.add(
    "dead-rope-fields",
    "warning",
    "The fields do nothing in this model's own code. A program that takes it for Llama's would rotate: check it.",
)
def dead_rope_fields(facts: Facts) -> Iterator[str]:
    if facts.reading is None or facts.rotations or any("axial" in name for name in _names(facts)):
        return
    fields = [
        key
        for key, value in facts.config.items()
        if ("rope" in str(key) or "rotary" in str(key)) and key not in SIZES and _says_something(value)
    ]
    if fields:
        yield f"{', '.join(sorted(fields))} on a model that does not rotate"


@RULES.add(
    "fixed-rotation",
    "warning",
    "Base and scaling are constants in this model's own code, and the fields do nothing there. A program that reads "
    "them would turn otherwise: check it.",
)
def fixed_rotation(facts: Facts) -> Iterator[str]:
    if (
        facts.reading is None
        or not facts.reading.dialect.startswith("transformers")
        or not family_of(facts.config).fixed
    ):
        return
    fields = [key for key in ("rope_parameters", "rope_scaling", *BASES) if _says_something(facts.config.get(key))]
    if fields:
        yield f"{', '.join(fields)} on a model whose base is always 10,000"


def _says_something(value: object) -> bool:
    return value is not None and value is not False and not (isinstance(value, (list, dict)) and not value)


def _names(facts: Facts) -> list[str]:
    return [] if facts.reading is None else [one.name for group in facts.reading.layers for one in group.encodings]


@RULES.add("layers-without-rotation", "note", "A program that rotates every layer is wrong in these.")
def layers_without_rotation(facts: Facts) -> Iterator[str]:
    if facts.reading is None or not facts.rotations:
        return
    for group in facts.reading.layers:
        turned = any(one.name in ("rope", "mrope", "axial_rope") for one in group.encodings)
        if group.attention and not turned and group.indices is not None:
            yield f"{len(group.indices)} layers of kind {group.kind!r} have attention without rotation"


@RULES.add(
    "not-supported",
    "warning",
    "whorl names it and does not compute it yet; what else it reads of these layers stands.",
)
def not_supported(facts: Facts) -> Iterator[str]:
    if facts.reading is not None:
        yield from dict.fromkeys(what for group in facts.reading.layers for what in group.unsupported)


@RULES.add("list-per-layer", "error", "Give one entry for each layer.")
def list_per_layer(facts: Facts) -> Iterator[str]:
    count = facts.number(facts.config, *LAYERS)
    for name in LISTS:
        listed = facts.config.get(name)
        if isinstance(listed, list) and listed and count is not None and len(listed) != count:
            yield f"{name} has {len(listed)} entries for {count:g} layers"


@RULES.add("window-unused", "note", "The window does nothing while use_sliding_window is false.")
def window_unused(facts: Facts) -> Iterator[str]:
    reads = class_reads(facts.config)
    if reads is not None and "use_sliding_window" not in reads:
        return
    if facts.config.get("use_sliding_window") is False and facts.number(facts.config, "sliding_window"):
        yield f"sliding_window={shown(facts.config['sliding_window'])} beside use_sliding_window=false"


@RULES.add("window-above-length", "note", "A window as long as the longest text hides nothing.")
def window_above_length(facts: Facts) -> Iterator[str]:
    window = facts.number(facts.config, "sliding_window")
    if window is not None and facts.length is not None and window >= facts.length and "window" in _names(facts):
        yield f"sliding_window={window:g} for at most {facts.length:g} positions"


@RULES.add("alibi-and-rope", "error", "Say which of the two is meant: the code of the family takes ALiBi.")
def alibi_and_rope(facts: Facts) -> Iterator[str]:
    reads = class_reads(facts.config)
    if reads is not None and "alibi" not in reads:
        return  # it does nothing there
    if facts.config.get("alibi") is True and (facts.ropes or facts.config.get("rope_theta") is not None):
        yield "alibi is true, and there are rope fields"


@RULES.add(
    "filled-in",
    "note",
    "The file is silent and the config class of transformers fills these in: a program that does not know the class "
    "takes other numbers.",
)
def filled_in(facts: Facts) -> Iterator[str]:
    for one in facts.rotations[:1]:
        named = [
            f"{name}={shown(value.value)}"
            for name, value in one.settings.items()
            if value.source == CLASS_DEFAULT and name in ("head_dim", "base") and value.value != 10_000.0
        ]
        if named:
            yield ", ".join(named)


@RULES.add(
    "yarn-with-sections",
    "note",
    "vLLM's M-RoPE takes four times the maximum for YaRN's original length: compare before you serve with it.",
)
def yarn_with_sections(facts: Facts) -> Iterator[str]:
    if any(one.name == "mrope" and one.scaling is not None and one.scaling.name == "yarn" for one in facts.rotations):
        yield "YaRN beside mrope_section"


@RULES.add(
    "truncate-by-layer",
    "note",
    "transformers 5.22.2 passes over truncate inside a layer type; whorl does as the file says.",
)
def truncate_by_layer(facts: Facts) -> Iterator[str]:
    for place, rope in facts.ropes.items():
        if "." in place and type_of(rope) == "yarn" and rope.get("truncate") is False:
            yield f"{place} has truncate=false"


@RULES.add(
    "rotated-part",
    "note",
    "Only a part of each head turns: a program that turns the whole head is wrong for every position but 0.",
)
def rotated_part(facts: Facts) -> Iterator[str]:
    parts = {
        (one.value("rotary_dim"), one.value("head_dim"), str(one.value("slice", "leading")))
        for one in facts.rotations
        if one.value("rotary_dim") not in (None, one.value("head_dim"))
    }
    for rotated, whole, where in sorted(parts, key=str):
        yield f"the {where} {rotated} of {whole} dimensions are rotated"
