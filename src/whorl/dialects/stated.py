"""Stated values: what a file says under a name, of the type its name asks for, or what stands in where it is silent.

A file is something that anyone may have written: no field is trusted to hold what it should. Null stands for absent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from whorl.dialects.reading import CLASS_DEFAULT, FILE, Source, Value
from whorl.errors import WhorlError, invalid, shown

LARGEST = 2**63 - 1  # what a tensor of sizes or positions can hold
MOST_NUMBERS = 2**31  # of a learned table


class Stated:
    """The fields of a file. ``prefix`` stands before every name in the file, such as ``llama.`` in GGUF.

    Each method returns a ``Value``; where the field is absent, ``otherwise`` with the source ``by``, or None.

    >>> Stated({"llama.context_length": 4096}, prefix="llama.").whole("context_length")
    Value(value=4096, source='file', field='llama.context_length')
    """

    def __init__(self, config: Mapping[str, Any], prefix: str = "") -> None:
        self.config, self.prefix = config, prefix

    def given(self, name: str) -> Any:
        """The field as it stands in the file, None where it is absent."""
        return self.config.get(self.prefix + name)

    def whole(self, *names: str, least: int = 1, otherwise: int | None = None, by: Source = CLASS_DEFAULT) -> Any:
        """The first of these fields that is there, an integer from ``least``."""
        for name in names:
            value = self.given(name)
            if value is None:
                continue
            if type(value) not in (int, float) or not least <= value <= LARGEST or value % 1:
                expected = "a positive integer" if least == 1 else f"an integer from {least}"
                raise invalid("read", self.prefix + name, f"{expected} below 2^63", value)
            return self._value(name, int(value))
        return None if otherwise is None else Value(value=otherwise, source=by)

    def needed(self, *names: str) -> Value:
        """The first of these sizes, without which nothing can be said."""
        value = self.whole(*names)
        if value is None:
            raise WhorlError(f"read: {self.prefix}{names[0]} is missing. Pass the whole file.")
        return value

    def number(self, *names: str, otherwise: float | None = None, by: Source = CLASS_DEFAULT) -> Any:
        """The first of these fields that is there, a finite number."""
        for name in names:
            value = self.given(name)
            if value is None:
                continue
            if type(value) not in (int, float) or not -LARGEST <= value <= LARGEST or not math.isfinite(value):
                raise invalid("read", self.prefix + name, "a finite number, below 2^63", value)
            return self._value(name, float(value))
        return None if otherwise is None else Value(value=otherwise, source=by)

    def switch(self, name: str, *, otherwise: bool | None = None, by: Source = CLASS_DEFAULT) -> Any:
        """The field as true or false."""
        value = self.given(name)
        if value is None:
            return None if otherwise is None else Value(value=otherwise, source=by)
        if type(value) not in (bool, int) or value not in (0, 1):
            raise invalid("read", self.prefix + name, "true or false", value)
        return self._value(name, bool(value))

    def word(self, name: str, *, otherwise: str | None = None, by: Source = CLASS_DEFAULT) -> Any:
        """The field as a string."""
        value = self.given(name)
        if value is None:
            return None if otherwise is None else Value(value=otherwise, source=by)
        if not isinstance(value, str):
            raise invalid("read", self.prefix + name, "a string", value)
        return self._value(name, value)

    def listed(self, name: str, most: int = 2**16) -> tuple[float, ...] | None:
        """The numbers of a list; None where there is no list."""
        values = self.given(name)
        if not isinstance(values, (list, tuple)):
            return None
        if len(values) > most or not all(type(one) in (int, float, bool) and abs(one) <= LARGEST for one in values):
            raise invalid("read", self.prefix + name, f"a list of at most {most} finite numbers", values)
        return tuple(values)

    def part(self, name: str) -> Stated | None:
        """The fields of a dict inside; None where it is absent."""
        value = self.given(name)
        if value is None:
            return None
        if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
            raise invalid("read", self.prefix + name, "a dict by names, or null", value)
        return Inside(value, self.prefix + name)

    def _value(self, name: str, value: Any) -> Value:
        return Value(value=value, source=FILE, field=self.prefix + name)


class Inside(Stated):
    """The fields of a dict that stands under a name in a file; messages and sources name the path."""

    def __init__(self, config: Mapping[str, Any], path: str) -> None:
        super().__init__(config, prefix=f"{path}.")

    def given(self, name: str) -> Any:
        return self.config.get(name)


def layer_indices(count: Value | None, most: int = 2**14) -> tuple[int, ...] | None:
    """The indices of this many layers, None where the file does not say how many there are."""
    if count is None:
        return None
    if count.value > most:
        raise invalid("read", count.field, f"at most {most} layers", count.value)
    return tuple(range(count.value))


def head_size(width: Value, heads: Value) -> Value:
    """The dimensions of a head where a file leaves them to the width of the model and the number of its heads."""
    if width.value < heads.value:
        raise WhorlError(
            f"read: {heads.field} = {heads.value} heads share {width.field} = {width.value} dimensions. Mend the file."
        )
    return Value(value=width.value // heads.value, source=FILE, field=f"{width.field} / {heads.field}")


def table_sizes(width: Value, length: Value) -> dict[str, Value]:
    """Settings of a learned table, once its sizes are those of a table that someone has."""
    if width.value * length.value > MOST_NUMBERS:
        said = f"{length.field} = {shown(length.value)} rows of {width.field} = {shown(width.value)} numbers"
        raise WhorlError(f"read: a table of {said} has more than 2^31. Mend the file.")
    return {"width": width, "length": length}


def in_groups(
    indices: tuple[int, ...] | None, key: Callable[[int], Any], alone: Any
) -> dict[Any, tuple[int, ...] | None]:
    """Layers that are alike, by what ``key`` says of each; ``alone`` where their number is not known.

    >>> in_groups((0, 1, 2, 3), lambda index: index % 2, alone=0)
    {0: (0, 2), 1: (1, 3)}
    """
    if indices is None:
        return {alone: None}
    groups: dict[Any, list[int]] = {}
    for index in indices:
        groups.setdefault(key(index), []).append(index)
    return {one: tuple(places) for one, places in groups.items()}
