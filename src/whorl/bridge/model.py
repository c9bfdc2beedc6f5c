"""Models read from files: an encoding for each layer, and where every number of it comes from.

No weights are needed: the encodings have those learned numbers that they start from.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from whorl.dialects.detect import read_document
from whorl.dialects.families import UnknownFamily, unknown_family
from whorl.dialects.reading import Described, Layers, Reading, Standing
from whorl.encodings.base import Encoding
from whorl.encodings.combined import Combined
from whorl.encodings.layer_plan import LayerPlan
from whorl.encodings.none import NoPE
from whorl.errors import WhorlError, printable
from whorl.registry import encoding_class, scaling_class

MOST_NUMBERS = 2**28  # of a learned table: 1 GiB, a hundred times that of GPT-2


def read(source: str | Path | Mapping[str, Any], assume: str | None = None) -> Model:
    """The positions of a model, read from a file, a folder, a pipe ("-") or the dict of a config.

    The dialect of the file is found out. A model of an unknown family is read by the conventions of Llama with a
    warning, or of the family that ``assume`` names without one.

    >>> import whorl
    >>> config = {"model_type": "cohere2", "num_hidden_layers": 4, "hidden_size": 512, "num_attention_heads": 4}
    >>> [type(group.encoding).__name__ for group in whorl.read(config).groups]
    ['Combined', 'NoPE']
    """
    reading = read_document(source, assume)
    warn_of_unknown(reading, assume)
    return Model(reading)


def warn_of_unknown(reading: Reading, assume: str | None) -> None:
    """Warns the caller's caller of a reading whose family is in no table, unless one was named to be assumed."""
    if reading.standing == "unknown" and assume is None:
        warnings.warn(_unknown(reading), UnknownFamily, stacklevel=3)


def _unknown(reading: Reading) -> str:
    """What is said of a reading whose family is unknown, in the words of its dialect."""
    if reading.dialect == "safetensors":
        return f"read: {reading.named} names no family. Pass the config.json of the model."
    remedy = "Check that, and pass assume='llama' if it is so."
    if reading.dialect == "gguf":  # where the converter has moved Llama's rows
        remedy = "Check that, and pass the architecture it runs as: assume='qwen2' (half), 'llama' (interleaved)."
    return unknown_family(reading.named, "read", remedy)


class Group:
    """Layers that are alike: ``layers`` says what was read of them, ``encoding`` is what acts in them."""

    def __init__(self, layers: Layers) -> None:
        self.layers = layers

    @property
    def kind(self) -> str:
        """What the file calls these layers, or "all"."""
        return self.layers.kind

    @property
    def indices(self) -> tuple[int, ...] | None:
        """Which layers these are, counted from 0; None where the file does not say how many there are."""
        return self.layers.indices

    @property
    def unsupported(self) -> tuple[str, ...]:
        """What acts here as well and has no encoding in whorl yet."""
        return self.layers.unsupported

    @cached_property
    def encoding(self) -> Encoding:
        """What acts in these layers as far as whorl has it; ``unsupported`` names the rest."""
        built = [_built(one) for one in self.layers.encodings]
        if not built:
            return NoPE()
        return built[0] if len(built) == 1 else Combined(*built)

    def __repr__(self) -> str:
        return f"Group({printable(self.kind)}, {len(self.indices) if self.indices is not None else '?'} layers)"


class Model:
    """A model's positions: ``groups`` of like layers, the ``plan`` by layer, lengths and the standing of the family."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self.groups = tuple(Group(layers) for layers in reading.layers)

    @property
    def dialect(self) -> str:
        """Who writes files like the one that was read."""
        return self.reading.dialect

    @property
    def family(self) -> str:
        """The family whose code the model runs."""
        return self.reading.family

    @property
    def standing(self) -> Standing:
        """Whether the family is "known", an "alias" of a known one, or "unknown"."""
        return self.reading.standing

    @property
    def trained_length(self) -> int | None:
        """Positions of the training before any extension; None where nothing says."""
        return None if self.reading.trained_length is None else self.reading.trained_length.value

    @property
    def claimed_length(self) -> int | None:
        """Positions that the file promises; None where it does not say."""
        return None if self.reading.claimed_length is None else self.reading.claimed_length.value

    @property
    def unsupported(self) -> tuple[str, ...]:
        """What acts on positions in some layer and has no encoding in whorl yet."""
        return tuple(dict.fromkeys(what for group in self.groups for what in group.unsupported))

    @cached_property
    def plan(self) -> LayerPlan:
        """The encoding of every layer; layers without attention have NoPE. Raises where one cannot be expressed."""
        if self.unsupported:
            raise WhorlError(
                f"Model.plan: not supported yet: {'; '.join(self.unsupported)}. "
                "Model.groups has the encodings without it."
            )
        if any(group.indices is None for group in self.groups):
            raise WhorlError(
                "Model.plan: the file does not say how many layers there are, or has an encoder and a decoder. "
                "Use Model.groups, and LayerPlan.shared(group.encoding, layers=…)."
            )
        by_layer = {index: group.encoding for group in self.groups for index in group.indices or ()}
        return LayerPlan([by_layer[index] for index in sorted(by_layer)])

    def checked(self) -> Model:
        """The model itself, once the encoding of every group is built: raises where no encoding takes its numbers."""
        for group in self.groups:
            _ = group.encoding
        return self

    def __repr__(self) -> str:
        return f"Model({printable(self.family) or '?'}, {self.standing}, {self.dialect}, {list(self.groups)})"


def _built(described: Described) -> Encoding:
    settings = {name: value.value for name, value in described.settings.items()}
    _check_table(described)
    if described.scaling is not None:
        settings["scaling"] = scaling_class(described.scaling.name)(**described.scaling.plain())
    return encoding_class(described.name)(**settings)


def _check_table(described: Described) -> None:
    """Raises a WhorlError for a table that a file asks for and no model has, before its memory is."""
    width, length = described.value("width", 1), described.value("length", 1)
    if described.name == "learned" and width * length > MOST_NUMBERS:
        raise WhorlError(
            f"read: a learned table of {length} positions and width {width} has more than {MOST_NUMBERS:,} numbers. "
            "Check the sizes in the file."
        )
