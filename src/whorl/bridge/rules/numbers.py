"""Rules about numbers: lengths, factors and bases that do not fit each other."""

from __future__ import annotations

import math
from collections.abc import Iterator

from whorl.bridge.rules.facts import Facts, Rules, pairs_of, type_of
from whorl.dialects.names import LENGTHS, ORIGINAL
from whorl.errors import shown

RULES = Rules()
STRETCHES = ("yarn", "longrope", "llama3")


@RULES.add("odd-length", "warning", "Check the digits: lengths are powers of two nearly always.")
def odd_length(facts: Facts) -> Iterator[str]:
    places = {name: facts.number(facts.config, name) for name in (*LENGTHS, ORIGINAL)}
    places |= {f"{place}.{ORIGINAL}": facts.number(rope, ORIGINAL) for place, rope in facts.ropes.items()}
    for place, length in places.items():
        if length is None or not 2048 <= length < 2**40:
            continue
        near = 2 ** round(math.log2(length))
        # a position or two are kept for special tokens in some models
        if 2 < abs(length - near) <= near // 256:
            yield f"{place}={length:g} is nearly {near}"


@RULES.add(
    "no-original-length",
    "error",
    "Say from which length the context was extended with original_max_position_embeddings; programs fill in the "
    "extended one, and then the wrong pairs are scaled.",
)
def no_original_length(facts: Facts) -> Iterator[str]:
    for place, rope in facts.ropes.items():
        if type_of(rope) in STRETCHES and facts.original(rope) is None and facts.length is not None:
            yield f"{place} of type {type_of(rope)!r} has no original length beside a maximum of {facts.length:g}"


@RULES.add("original-above-claimed", "error", "The original length is the one before extension, the smaller one.")
def original_above_claimed(facts: Facts) -> Iterator[str]:
    for place, rope in facts.ropes.items():
        original = facts.original(rope)
        if original is not None and facts.length is not None and original > facts.length:
            yield f"{place}: original length {original:g} is above the maximum {facts.length:g}"


@RULES.add(
    "factor-mismatch",
    "warning",
    "Set max_position_embeddings to original length * factor if that is what is to be served, or the factor to their "
    "ratio: some programs take the one, some the other.",
)
def factor_mismatch(facts: Facts) -> Iterator[str]:
    for place, ratio, factor in _stretched(facts):
        if abs(ratio - factor) > 0.01 * factor and abs(ratio - factor**2) > 0.01 * factor**2:
            yield f"{place}: factor {factor:g}, but the maximum is {ratio:g} times the original length"


@RULES.add(
    "factor-twice",
    "error",
    "The maximum length is multiplied by the factor twice: write original length * factor.",
)
def factor_twice(facts: Facts) -> Iterator[str]:
    for place, ratio, factor in _stretched(facts):
        if factor > 1.01 and abs(ratio - factor**2) <= 0.01 * factor**2:
            yield f"{place}: the maximum is {ratio:g} = {factor:g}^2 times the original length"


def _stretched(facts: Facts) -> Iterator[tuple[str, float, float]]:
    """The place of each YaRN or LongRoPE, how many times its original length the maximum is, and its factor."""
    for place, rope in facts.ropes.items():
        original, factor = facts.original(rope), facts.number(rope, "factor")
        if type_of(rope) in ("yarn", "longrope") and facts.length is not None and original and factor is not None:
            yield place, facts.length / original, factor


@RULES.add("factor-below-one", "error", "A factor says how many times longer the context is to be, at least 1.")
def factor_below_one(facts: Facts) -> Iterator[str]:
    for place, rope in facts.ropes.items():
        factor = facts.number(rope, "factor")
        if factor is not None and factor < 1:
            yield f"{place} has factor={factor:g}"


@RULES.add("factor-one", "note", "Nothing is stretched by a factor of 1.")
def factor_one(facts: Facts) -> Iterator[str]:
    for place, rope in facts.ropes.items():
        scaled = type_of(rope) in ("linear", "dynamic", "yarn", "llama3") and "alpha" not in rope
        if scaled and facts.number(rope, "factor") == 1:
            yield f"{place} of type {type_of(rope)!r} has factor=1"


@RULES.add("beta-order", "error", "Swap them: beta_fast is the larger number of turns.")
def beta_order(facts: Facts) -> Iterator[str]:
    for place, rope in facts.ropes.items():
        fast, slow = facts.number(rope, "beta_fast") or 32.0, facts.number(rope, "beta_slow") or 1.0
        if type_of(rope) == "yarn" and fast < slow:
            yield f"{place}: beta_fast={fast:g} is below beta_slow={slow:g}"


@RULES.add("betas-equal", "note", "Kimi-K2 means it: a step in place of a ramp. Some programs divide by zero there.")
def betas_equal(facts: Facts) -> Iterator[str]:
    for place, rope in facts.ropes.items():
        fast, slow = facts.number(rope, "beta_fast"), facts.number(rope, "beta_slow")
        if type_of(rope) == "yarn" and fast is not None and fast == slow:
            yield f"{place}: beta_fast and beta_slow are both {fast:g}"


@RULES.add("beta-zero", "warning", "Write the number that is meant: transformers reads 0 as absent, others as 0.")
def beta_zero(facts: Facts) -> Iterator[str]:
    for place, rope in facts.ropes.items():
        for key in ("beta_fast", "beta_slow"):
            if facts.number(rope, key) == 0:
                yield f"{place} has {key}=0"


@RULES.add(
    "mscale-all-dim-zero",
    "warning",
    "Check which code serves the model: transformers reads 0 as absent, so that cos and sin are multiplied by "
    "0.1 ln(factor) + 1; DeepSeek's own code takes it as 0.",
)
def mscale_all_dim_zero(facts: Facts) -> Iterator[str]:
    for place, rope in facts.ropes.items():
        if facts.number(rope, "mscale_all_dim") == 0:
            yield f"{place} has mscale_all_dim=0"


@RULES.add(
    "mscale-alone",
    "warning",
    "State both, or attention_factor: transformers passes over one alone, vLLM and mlx do not.",
)
def mscale_alone(facts: Facts) -> Iterator[str]:
    for place, rope in facts.ropes.items():
        there = [key for key in ("mscale", "mscale_all_dim") if rope.get(key) is not None]
        if len(there) == 1:
            yield f"{place} has {there[0]} alone"


@RULES.add("low-high-order", "error", "Swap them: high_freq_factor is the larger one.")
def low_high_order(facts: Facts) -> Iterator[str]:
    for place, rope in facts.ropes.items():
        low, high = facts.number(rope, "low_freq_factor"), facts.number(rope, "high_freq_factor")
        if low is not None and high is not None and low > high:
            yield f"{place}: low_freq_factor={low:g} is above high_freq_factor={high:g}"


@RULES.add("low-high-equal", "note", "Llama 4 means it: a step. flashinfer divides by zero there.")
def low_high_equal(facts: Facts) -> Iterator[str]:
    for place, rope in facts.ropes.items():
        low, high = facts.number(rope, "low_freq_factor"), facts.number(rope, "high_freq_factor")
        if low is not None and low == high:
            yield f"{place}: low_freq_factor and high_freq_factor are both {low:g}"


@RULES.add(
    "dynamic-original",
    "warning",
    "transformers measures dynamic NTK from max_position_embeddings and passes over the original length.",
)
def dynamic_original(facts: Facts) -> Iterator[str]:
    for place, rope in facts.ropes.items():
        original = facts.original(rope)
        if type_of(rope) == "dynamic" and original is not None and original != facts.length:
            yield f"{place} of type 'dynamic' states an original length of {original:g}, the maximum is {facts.length}"


@RULES.add(
    "dynamic-served",
    "note",
    "The base depends on the length of the text: keys in a cache keep the base of their time, and vLLM takes one base "
    "for all lengths.",
)
def dynamic_served(facts: Facts) -> Iterator[str]:
    for place, rope in facts.ropes.items():
        if type_of(rope) == "dynamic" and "alpha" not in rope:
            yield f"{place} is dynamic NTK"


@RULES.add("base-not-a-number", "error", "Write the base as a number above 1; RoFormer uses 10,000.")
def base_not_a_number(facts: Facts) -> Iterator[str]:
    places = {"rope_theta": facts.config.get("rope_theta")}
    places |= {f"{place}.rope_theta": rope.get("rope_theta") for place, rope in facts.ropes.items()}
    for place, base in places.items():
        known = (
            base is None or isinstance(base, list) or (isinstance(base, (int, float)) and base is not True and base > 1)
        )
        if not known:
            yield f"{place} is {shown(base)}"


@RULES.add(
    "base-below-bound",
    "note",
    "Men et al. 2024 find that a base below 0.0424 length^1.628 cannot tell like from unlike keys at every distance: "
    "expect a shorter usable context, or train with a larger base.",
)
def base_below_bound(facts: Facts) -> Iterator[str]:
    layers = () if facts.reading is None else facts.reading.layers
    found = {}
    for group in layers:
        windows = [one.value("size") for one in group.encodings if one.name == "window"]
        length = min([_claimed(facts), *(size for size in windows if type(size) is int)])
        for one in group.encodings:
            base = one.value("base")
            whole = one.name == "rope" and one.value("rotary_dim") in (None, one.value("head_dim"))
            bound = 0.0424 * length**1.628
            if whole and one.scaling is None and isinstance(base, (int, float)) and 1 < base < bound:
                found[f"base {base:g} for {length} positions, the bound is {bound:.2g}"] = True
    yield from found


def _claimed(facts: Facts) -> int:
    """The length that the model promises, 0 where it promises none."""
    claimed = None if facts.reading is None else facts.reading.claimed_length
    return 0 if claimed is None else claimed.value


@RULES.add("list-length", "error", "A list has one number for each rotated pair.")
def list_length(facts: Facts) -> Iterator[str]:
    for one in facts.rotations:
        scaling, pairs = one.scaling, pairs_of(one)
        if scaling is None or scaling.name != "longrope":
            continue
        for name in ("short_factor", "long_factor"):
            listed = scaling.value(name)
            if isinstance(listed, (list, tuple)) and len(listed) != pairs:
                yield f"{name} has {len(listed)} numbers for {pairs} pairs"


@RULES.add("sections-sum", "error", "The sections share the rotated pairs between the axes, so that they sum to them.")
def sections_sum(facts: Facts) -> Iterator[str]:
    for one in facts.rotations:
        sections, pairs = one.value("sections"), pairs_of(one)
        plain = isinstance(sections, (list, tuple)) and all(type(share) is int for share in sections)
        if plain and sum(sections) != pairs:
            yield f"mrope_section {shown(list(sections))} sums to {shown(sum(sections))} for {pairs} pairs"


@RULES.add(
    "precision",
    "note",
    "float32 angles are off by more than bfloat16's own rounding of cos from about 131,072 positions on; whorl's "
    "angles='exact' are not.",
)
def precision(facts: Facts) -> Iterator[str]:
    if facts.rotations and _claimed(facts) > 131_072:
        yield f"{_claimed(facts)} positions are claimed"
