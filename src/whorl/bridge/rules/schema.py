"""Rules about names and places: the same thing written where one program looks and another does not."""

from __future__ import annotations

from collections.abc import Iterator

from whorl.bridge.rules.facts import Facts, Rules, type_of
from whorl.dialects.names import ORIGINAL
from whorl.errors import shown

RULES = Rules()
BASE = 10_000.0

# What other programs call the types of transformers.
VENDOR_TYPES = {
    "su": "longrope",
    "mrope": "default",
    "deepseek_yarn": "yarn",
    "telechat3-yarn": "yarn",
    "ntk": "dynamic",
    "xdrope": "dynamic",
}
# What other programs call the keys of transformers.
VENDOR_KEYS = {
    "scale": "factor",
    "scaling_factor": "factor",
    "original_context_length": ORIGINAL,
    "original_max_seq_len": ORIGINAL,
    "low_frequency_factor": "low_freq_factor",
    "high_frequency_factor": "high_freq_factor",
}

# Families whose class in transformers 5.22.2 writes the fields of version 4 into one rope dict for each layer type.
BY_LAYER_TYPE = (
    *("gemma3", "gemma3n", "modernbert", "modernbert-decoder", "olmo3", "step3p5", "t5gemma2", "t5gemma2_decoder"),
)


@RULES.add(
    "unknown-family",
    "error",
    "Check the model's own code. If it rotates as Llama does, pass --assume llama.",
)
def unknown_family(facts: Facts) -> Iterator[str]:
    if facts.reading is not None and facts.reading.standing == "unknown":
        header = facts.reading.dialect == "safetensors"
        why = "names no family" if header else "is in no table: layout and defaults are assumed"
        yield f"{facts.reading.named} {why}"


@RULES.add("alias-family", "note", "Nothing to do, where the program that reads the file knows the name too.")
def alias_family(facts: Facts) -> Iterator[str]:
    if facts.reading is not None and facts.reading.standing == "alias":
        yield f"model_type {shown(facts.config.get('model_type'))} runs the code of {facts.reading.family!r}"


@RULES.add(
    "only-version-5",
    "warning",
    "Write rope_theta and rope_scaling beside it, with the same values: programs made for version 4 read only those.",
)
def only_version_5(facts: Facts) -> Iterator[str]:
    given = facts.config.get("rope_parameters")
    old = [facts.config.get(name) for name in ("rope_scaling", "rope_theta")]
    if not isinstance(given, dict) or any(one is not None for one in old):
        return
    for place, rope in facts.ropes.items():
        base = facts.number(rope, "rope_theta")
        if type_of(rope) != "default":
            yield f"{place} has the only word of the scaling {type_of(rope)!r}: elsewhere it vanishes"
        elif base not in (None, BASE):
            yield f"{place} has the only word of the base {base:g}: elsewhere it falls to 10,000"


@RULES.add(
    "only-version-4",
    "note",
    "Programs made for version 5 alone need rope_parameters with both; transformers 5 itself reads the old fields.",
)
def only_version_4(facts: Facts) -> Iterator[str]:
    if facts.config.get("rope_parameters") is None and isinstance(facts.config.get("rope_scaling"), dict):
        yield "rope_scaling stands there without rope_parameters, as version 4 of transformers writes it"


@RULES.add("schemas-differ", "error", "Make them the same: which one counts depends on the program.")
def schemas_differ(facts: Facts) -> Iterator[str]:
    new, old = (facts.ropes.get(name) for name in ("rope_parameters", "rope_scaling"))
    if new and old:
        apart = [
            key
            for key in sorted({*new, *old} - {"rope_theta", "type", "rope_type"}, key=str)
            if new.get(key) != old.get(key)
        ]
        if type_of(new) != type_of(old):
            apart.insert(0, "rope_type")
        if apart:
            yield f"rope_parameters and rope_scaling differ in {', '.join(map(str, apart))}"
    base = facts.number(facts.config, "rope_theta")
    inside = None if new is None else facts.number(new, "rope_theta")
    if base is not None and inside is not None and base != inside:
        yield f"rope_theta is {base:g} beside rope_parameters and {inside:g} inside"


@RULES.add(
    "theta-in-rope-scaling", "error", "Put rope_theta beside rope_scaling: programs made for version 4 look only there."
)
def theta_in_rope_scaling(facts: Facts) -> Iterator[str]:
    given = facts.ropes.get("rope_scaling", {})
    if "rope_theta" in given and facts.config.get("rope_theta") is None:
        yield f"rope_theta={shown(given['rope_theta'])} stands inside rope_scaling alone"


@RULES.add("theta-beside", "warning", "Put rope_theta into rope_parameters, where version 5 looks first.")
def theta_beside(facts: Facts) -> Iterator[str]:
    given = facts.config.get("rope_parameters")
    if isinstance(given, dict) and given and facts.config.get("rope_theta") is not None:
        new = {place: rope for place, rope in facts.ropes.items() if place.startswith("rope_parameters")}
        missing = [place for place, rope in new.items() if rope.get("rope_theta") is None]
        if missing:
            yield f"rope_theta stands beside rope_parameters, and {', '.join(missing)} has none"


@RULES.add(
    "theta-inside",
    "warning",
    "Write rope_theta beside attn_config too, with the same value: transformers 5.22.2 looks only there, and takes its "
    "default where it finds none.",
)
def theta_inside(facts: Facts) -> Iterator[str]:
    inside = facts.config.get("attn_config")
    base = facts.number(inside, "rope_theta") if isinstance(inside, dict) else None
    turned = any("attn_config" in one.settings["base"].field for one in facts.rotations if "base" in one.settings)
    if base is not None and turned and base != BASE:
        yield f"attn_config has the only word of the base {base:g}: elsewhere it falls to 10,000"


@RULES.add(
    "not-by-layer-type",
    "warning",
    "Write rope_parameters with a dict for each layer type, each with its rope_type and rope_theta.",
)
def not_by_layer_type(facts: Facts) -> Iterator[str]:
    name = "" if facts.reading is None else facts.reading.family
    if name not in BY_LAYER_TYPE:
        return
    falls = f"{name}'s class in transformers 5.22.2"
    new = facts.ropes.get("rope_parameters", {})
    if type_of(new) != "default" or new.get("rope_theta") is not None:
        yield f"rope_parameters is one for all layers: {falls} looks for a dict by layer type and passes over the rest"
    old = facts.ropes.get("rope_scaling", {})
    if type_of(old) != "default" and old.get("rope_type") is None and facts.config.get("rope_parameters") is None:
        yield f"rope_scaling has type and no rope_type: {falls} puts rope_type 'default' beside it and scales nothing"


@RULES.add("two-types", "error", "Keep one of the two words, or make them the same.")
def two_types(facts: Facts) -> Iterator[str]:
    for place, rope in facts.ropes.items():
        new, old = (one if isinstance(one, str) else None for one in (rope.get("rope_type"), rope.get("type")))
        if new is not None and old is not None and VENDOR_TYPES.get(new, new) != VENDOR_TYPES.get(old, old):
            yield f"{place} has rope_type {shown(new)} and type {shown(old)}"


@RULES.add("scaling-without-type", "error", "Say which scaling is meant with rope_type, such as 'linear' or 'yarn'.")
def scaling_without_type(facts: Facts) -> Iterator[str]:
    for place, rope in facts.ropes.items():
        factor = facts.number(rope, "factor")
        if type_of(rope) == "default" and factor not in (None, 1.0):
            yield f"{place} has factor={factor:g} and no type that uses it: nothing is scaled"


@RULES.add("vendor-type", "warning", "Write the name that transformers has, as far as the meaning is the same.")
def vendor_type(facts: Facts) -> Iterator[str]:
    for place, rope in facts.ropes.items():
        if type_of(rope) == "mrope" and rope.get("mrope_section") is not None:
            continue  # what the files of Qwen2-VL say, and the sections say the rest
        if type_of(rope) in VENDOR_TYPES:
            usual = VENDOR_TYPES[type_of(rope)]
            yield f"{place} says {type_of(rope)!r}, which transformers knows as {usual!r} or not at all"


@RULES.add("vendor-key", "error", "Write the name that transformers reads; under another it is not read.")
def vendor_key(facts: Facts) -> Iterator[str]:
    for place, rope in facts.ropes.items():
        for key in sorted(VENDOR_KEYS.keys() & rope.keys()):
            yield f"{place} has {key!r}, which transformers calls {VENDOR_KEYS[key]!r}"


@RULES.add(
    "attn-factor",
    "error",
    "attn_factor multiplies YaRN's factor and is vLLM's and the YaRN authors'; transformers reads attention_factor, "
    "which replaces it: write attention_factor = attn_factor * (0.1 ln(factor) + 1).",
)
def attn_factor(facts: Facts) -> Iterator[str]:
    for place, rope in facts.ropes.items():
        if "attn_factor" in rope:
            yield f"{place} has attn_factor={shown(rope['attn_factor'])}"


@RULES.add(
    "ext-factor",
    "error",
    "ext_factor mixes interpolation and extrapolation, from 0 to 1; how far the context is stretched is factor.",
)
def ext_factor(facts: Facts) -> Iterator[str]:
    for place, rope in facts.ropes.items():
        for key in ("ext_factor", "extrapolation_factor"):
            value = facts.number(rope, key)
            if value is not None and (value > 1 or value == facts.number(rope, "factor")):
                yield f"{place} has {key}={value:g}, the size of a factor"
    for key in facts.given:
        value = facts.number(facts.given, key) if str(key).endswith(".yarn_ext_factor") else None  # in a GGUF file
        if value is not None and value > 1:
            yield f"{key}={value:g}, the size of a factor"


@RULES.add(
    "attention-factor-dropped",
    "note",
    "vLLM before vllm#56446 drops attention_factor: compare the two with whorl before you train on one and serve "
    "with the other.",
)
def attention_factor_dropped(facts: Facts) -> Iterator[str]:
    for place, rope in facts.ropes.items():
        if type_of(rope) in ("yarn", "longrope") and rope.get("attention_factor") is not None:
            yield f"{place} states attention_factor={shown(rope['attention_factor'])}"


@RULES.add("not-a-dict", "error", "Write a dict, or null where there is no scaling.")
def not_a_dict(facts: Facts) -> Iterator[str]:
    for name in ("rope_parameters", "rope_scaling"):
        value = facts.config.get(name)
        if value is not None and not isinstance(value, dict):
            yield f"{name} is {type(value).__name__}"


@RULES.add(
    "shares-differ", "error", "Keep one of them, or make them the same: which one counts depends on the program."
)
def shares_differ(facts: Facts) -> Iterator[str]:
    names = ("partial_rotary_factor", "rotary_pct", "rotary_emb_fraction")
    beside = {name: value for name in names if (value := facts.number(facts.config, name)) is not None}
    for place, rope in facts.ropes.items():
        inside = facts.number(rope, "partial_rotary_factor")
        found = beside | ({f"{place}.partial_rotary_factor": inside} if inside is not None else {})
        if place.count(".") == 0 and len(set(found.values())) > 1:
            yield ", ".join(f"{name}={value:g}" for name, value in found.items())
    if not facts.ropes and len(set(beside.values())) > 1:
        yield ", ".join(f"{name}={value:g}" for name, value in beside.items())
