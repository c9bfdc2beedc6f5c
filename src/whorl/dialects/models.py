"""Sizes and switches of whole models in transformers configs: what a loader needs beside the rotation."""

from __future__ import annotations

import math
import sys
from typing import Any

from whorl.errors import WhorlError, check_counts, invalid, unknown

# The most that a size of a model may be, so that a file someone else wrote does not ask for more than there is.
MOST = 2**20
MOST_ROWS = 2**31  # of the tables of tokens and positions
TABLES = ("vocab_size", "n_positions", "max_position_embeddings")


class ModelFields:
    """Fields of a transformers config, each of the type it should have; null counts as absent."""

    def __init__(self, call: str, config: dict[str, Any]) -> None:
        self.call, self.config = call, config

    def size(self, *names: str) -> int:
        """The first of these fields that is there, a positive integer."""
        size = self.size_if_given(*names)
        if size is None:
            raise WhorlError(
                f"{self.call}: {names[0]} missing in the config. Pass all of config.json or config.to_dict()."
            )
        return size

    def size_if_given(self, *names: str) -> int | None:
        """The first of these fields that is there, a positive integer; None if none is."""
        for name in names:
            value = self.config.get(name)
            if value is None:
                continue
            check_counts(self.call, **{name: value})
            most = MOST_ROWS if name in TABLES else MOST
            if value > most:
                raise invalid(self.call, name, f"at most {most:,}", value)
            return value
        return None

    @property
    def heads(self) -> int:
        return self.size("num_attention_heads", "n_head")

    @property
    def layers(self) -> int:
        return self.size("num_hidden_layers", "n_layer")

    def common(self, eps: str, otherwise: float, *, tied: bool) -> dict[str, Any]:
        """The settings that every decoder has under the same names."""
        return {
            "vocab": self.size("vocab_size"),
            "layers": self.layers,
            "heads": self.heads,
            "eps": self.number(eps, otherwise),
            "tied": self.switch("tie_word_embeddings", tied),
        }

    def number(self, name: str, otherwise: float) -> float:
        """The field as a number from 0, or what transformers takes where it is absent."""
        value = self.config.get(name)
        if value is None:
            return otherwise
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
            raise invalid(self.call, name, "a number from 0", value)
        if value > sys.float_info.max:  # an integer beyond every float
            raise invalid(self.call, name, "finite", value)
        return float(value)

    def switch(self, name: str, otherwise: bool) -> bool:
        """The field as true or false, or what transformers takes where it is absent."""
        value = self.config.get(name)
        if value is not None and not isinstance(value, bool):
            raise invalid(self.call, name, "true, false or null", value)
        return otherwise if value is None else value

    def activation(self, name: str, otherwise: str, known: dict[str, str]) -> Any:
        """Our name of the activation."""
        value = self.config.get(name)
        value = otherwise if value is None else value
        if not isinstance(value, str) or value not in known:
            raise unknown(name, value, known, call=self.call)
        return known[value]

    def require(self, **values: bool) -> None:
        """Raises a WhorlError where a switch is set to what our models do not do."""
        for name, value in values.items():
            if self.switch(name, value) != value:
                raise invalid(self.call, name, str(value), not value, "The models here have no other form.")
