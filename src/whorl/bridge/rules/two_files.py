"""Rules about two files of a folder that both speak of positions: config.json, and a params.json of Meta or Mistral."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from whorl.bridge.rules.facts import Facts, Rules
from whorl.dialects.reading import Layers, Reading

RULES = Rules()
# Layouts are left out: the rows of queries and keys are moved with the format.
SCALING = ("factor", "original_length", "low_freq_factor", "high_freq_factor")


@RULES.add(
    "two-files-differ",
    "error",
    "Find out which of the two the weights were trained with, and make them the same: which one counts depends on the "
    "program.",
)
def two_files_differ(facts: Facts) -> Iterator[str]:
    if facts.reading is None or facts.beside is None:
        return
    ours, theirs = _by_layer(facts.reading), _by_layer(facts.beside)
    if len(ours) != len(theirs) and _counted(facts.reading) and _counted(facts.beside):
        yield f"{len(ours)} layers in config.json and {len(theirs)} in params.json"
        return
    said: dict[str, str] = {}
    for index in sorted(ours.keys() & theirs.keys()):
        for name in ours[index].keys() | theirs[index].keys():
            pair = [one[index].get(name, "none") for one in (ours, theirs)]
            if pair[0] != pair[1] and name not in said:
                where = "" if index == 0 else f", from layer {index} on"
                said[name] = f"{name} is {_shown(pair[0])} in config.json and {_shown(pair[1])} in params.json{where}"
    claims = [one.claimed_length.value for one in (facts.reading, facts.beside) if one.claimed_length is not None]
    if len(claims) == 2 and claims[0] != claims[1]:
        said["length"] = f"the length is {claims[0]} in config.json and {claims[1]} in params.json"
    yield from (said[name] for name in sorted(said))


def _counted(reading: Reading) -> bool:
    """Whether a file says how many layers there are."""
    return all(group.indices is not None for group in reading.layers)


def _by_layer(reading: Reading) -> dict[int, dict[str, Any]]:
    """What acts in each layer, by words that all files share; layers without a number are taken for the first."""
    return {
        index: _settings(group)
        for group in reading.layers
        if group.attention
        for index in (group.indices if group.indices is not None else (0,))
    }


def _settings(group: Layers) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for one in group.encodings:
        if one.name in ("rope", "mrope"):
            found["the base"] = one.value("base")
            found["the rotated part"] = one.value("rotary_dim") or one.value("head_dim")
            found["the scaling"] = "none" if one.scaling is None else one.scaling.name
            if one.scaling is not None:
                found |= {
                    f"{name} of the scaling": one.scaling.value(name) for name in SCALING if one.scaling.value(name)
                }
        elif one.name == "window":
            found["the window"] = one.value("size")
    return found


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
