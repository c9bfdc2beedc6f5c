"""Names of encodings in the lab's comparisons, and the commands that would train them."""

from __future__ import annotations

import shlex
from typing import Any

from whorl import Combined, Config, Encoding, WhorlError, registry
from whorl.plugins import file_of

# Encodings that serve a trained RoPE model: the lab tests them as its repairs, not by training with them.
REPAIRS = {
    "rope+dynamic_ntk": "dynamic-ntk",
    "rope+linear": "pi",
    "rope+ntk": "ntk",
    "rope+yarn": "yarn",
    "leaky_rerope": "leaky-rerope",
    "log_n": "logn",
    "rerope": "rerope",
    "window": "window",
}

# The name in a comparison of an encoding with other settings. What begins to act late by default is given numbers by
# which it acts past the 256 tokens that the command below trains on.
SPELLED = {
    "alibi+hf_bf16": "alibi:rounding=hf_bf16",
    "llama4_temperature": "llama4_temperature:floor_scale=256",
    "self_extend": "self_extend:window=128",
    "sinks": "sinks:size=256",
}

SIZES = ("heads", "head_dim", "width", "length")  # which a model decides


def name_of(encoding: Encoding) -> str | None:
    """The name of an encoding in a comparison: its own with default settings; None for others, and unregistered ones.

    >>> from whorl import Combined, Alibi, Rope, Yarn
    >>> name_of(Combined(Rope(head_dim=8), Alibi(heads=2)))
    'rope+alibi'
    >>> name_of(Rope(head_dim=8, base=500.0))
    """
    if type(encoding) is Combined:
        names = [name_of(each) or "" for each in encoding.joined]
        return "+".join(names) if all(names) else None
    name = encoding.config.name
    own = name in registry.ENCODINGS and registry.encoding_class(name) is type(encoding)
    return name if own and not _differs(encoding.config) else None


def _differs(config: Config) -> dict[str, Any]:
    """The settings of an encoding that are not what they are by default, as plain data; sizes are a model's."""
    fixed = {*SIZES, *config.required()}
    try:
        usual = type(config)(**{key: getattr(config, key) for key in config.fields() if key in fixed}).to_dict()
    except WhorlError:  # these sizes need other settings beside them
        usual = {}
    kept = {key: value for key, value in config.to_dict().items() if key not in (*SIZES, "name")}
    same = {key for key, value in kept.items() if key in usual and value == usual[key] and key not in config.required()}
    return {key: value for key, value in kept.items() if key not in same}


def command_for(name: str) -> str:
    """The comparison that would train an encoding of the ledger, or try it on a trained RoPE model."""
    what = f"rope --repairs {REPAIRS[name]}" if name in REPAIRS else SPELLED.get(name, name)
    if any(isinstance(registry.ENCODINGS.get(part), type) for part in name.split("+")):  # a user's own
        file = file_of(name)
        if file is None:
            return _in_python(name)
        what = shlex.quote(str(file))
    return f"whorl compare {what} --preset laptop --seeds 3"


def command_of(encoding: Encoding) -> str:
    """The same for an encoding with settings of its own."""
    name = name_of(encoding)
    if name is not None:
        return command_for(name)
    settings = _given(encoding)
    if settings["name"] == "rope" and set(settings) == {"name", "scaling"}:
        scaled = f"rope+{settings['scaling']['name']}"
        if scaled in REPAIRS:
            return command_for(scaled)
    return _in_python(settings)


def _given(encoding: Encoding) -> dict[str, Any]:
    if type(encoding) is Combined:
        return {"name": "combined", "parts": [_given(each) for each in encoding.joined]}
    return {"name": encoding.config.name, **_differs(encoding.config)}


def _in_python(encoding: str | dict[str, Any]) -> str:
    return f"whorl.lab.compare([{encoding!r}], preset='laptop', seeds=3)"
