"""Inspection: everything that can be said of a model's positions without its weights, as JSON-ready data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from whorl.analysis.precision import table_errors
from whorl.analysis.wavelengths import turns
from whorl.bridge.linting import Finding, examine
from whorl.bridge.model import Group, Model
from whorl.dialects.reading import Described, Reading, Value
from whorl.encodings.base import Encoding
from whorl.encodings.rope import Rope
from whorl.errors import WhorlError


def inspect(source: str | Path | Mapping[str, Any], assume: str | None = None) -> dict[str, Any]:
    """What a model's file says of its positions, what follows from it, and what the lint finds.

    >>> config = {"model_type": "llama", "hidden_size": 512, "num_attention_heads": 8, "num_hidden_layers": 2}
    >>> found = inspect(config | {"max_position_embeddings": 4096, "rope_theta": 10000.0})
    >>> found["groups"][0]["numbers"]["pairs"], found["groups"][0]["numbers"]["unturned_pairs"]
    (32, 9)
    """
    findings, reading, error = examine(source, assume)
    if reading is None:
        raise error or WhorlError("inspect: the file has no reading.")
    return report(reading, findings)


def report(reading: Reading, findings: list[Finding]) -> dict[str, Any]:
    """The reading with its numbers and findings, as ``whorl inspect --json`` prints it."""
    groups = []
    for group in Model(reading).groups:
        try:
            numbers = _numbers(group, reading)
        except WhorlError as error:  # settings that were read and that no encoding takes
            numbers = None
            findings = [*findings, Finding(rule="cannot-build", severity="error", what=str(error), remedy=CANNOT_BUILD)]
        groups.append(_group(group) | {"numbers": numbers})
    return {
        "dialect": reading.dialect,
        "family": reading.family,
        "standing": reading.standing,
        "trained_length": _value(reading.trained_length),
        "claimed_length": _value(reading.claimed_length),
        "groups": groups,
        "notes": list(reading.notes),
        "findings": [one.to_dict() for one in findings],
    }


CANNOT_BUILD = "Mend the field that the message names: no program can compute these numbers."


def _group(group: Group) -> dict[str, Any]:
    layers = group.layers
    return {
        "kind": layers.kind,
        "layers": None if layers.indices is None else list(layers.indices),
        "attention": layers.attention,
        "encodings": [_described(one) for one in layers.encodings],
        "softcap": _value(layers.softcap),
        "unsupported": list(layers.unsupported),
    }


def _described(one: Described) -> dict[str, Any]:
    settings = {name: _value(value) for name, value in one.settings.items()}
    return {"name": one.name, "settings": settings, "scaling": None if one.scaling is None else _described(one.scaling)}


def _value(value: Value | None) -> dict[str, Any] | None:
    return None if value is None else {"value": value.value, "source": value.source, "field": value.field}


def _numbers(group: Group, reading: Reading) -> dict[str, Any] | None:
    """What follows from the rotation of a group: its frequencies for the claimed length, and what they are good for."""
    rope = _rotation(group.encoding)
    if rope is None:
        return None
    claimed = None if reading.claimed_length is None else reading.claimed_length.value
    trained = None if reading.trained_length is None else reading.trained_length.value
    frequencies = rope.frequencies(claimed).detach().numpy()
    return {
        "length": claimed,
        "pairs": len(frequencies),
        "inverse_frequencies": frequencies.tolist(),
        "attention_factor": float(rope.attention_factor(claimed)),
        "softmax_factor": float(rope.softmax_factor(claimed)),
        "unturned_pairs": None if trained is None else int((turns(frequencies, trained) < 1).sum()),
        "float32_error": None if claimed is None else _float32_error(frequencies, claimed),
    }


def _rotation(encoding: Encoding) -> Rope | None:
    """The rotation of a group on one ladder of frequencies, by itself or joined with others."""
    return next((one for one in encoding.modules() if isinstance(one, Rope)), None)


def _float32_error(frequencies: np.ndarray, length: int) -> float:
    """The largest error of cos and sin over the last positions of a length where angles are float32."""
    last = np.arange(max(0, min(length, 2**50) - 4), min(length, 2**50))
    return float(table_errors(frequencies, last, "float32 angles").max())
