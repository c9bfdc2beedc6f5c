"""Facts that lint rules look at, and what a rule is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from whorl.dialects.names import LENGTHS, ORIGINAL, PARTS
from whorl.dialects.reading import Described, Reading
from whorl.dialects.values import check_plain
from whorl.errors import WhorlError

Severity = Literal["error", "warning", "note"]
DEEPEST = 8


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A rule of the lint: ``find`` yields a sentence for each place where it is broken."""

    id: str
    severity: Severity
    remedy: str
    find: Callable[[Facts], Iterator[str]]


class Rules(list[Rule]):
    """The rules of a file, in their order."""

    def add(self, id: str, severity: Severity, remedy: str) -> Callable[[Find], Find]:
        """Makes a rule of a function from facts to the sentences that say where the rule is broken."""

        def added(find: Find) -> Find:
            self.append(Rule(id=id, severity=severity, remedy=remedy, find=find))
            return find

        return added


Find = Callable[["Facts"], Iterator[str]]


@dataclass(frozen=True)
class Facts:
    """What a rule may look at: the config as the file has it, and the reading, None where it could not be read.

    ``beside`` is the reading of the params.json that stands in the folder of a config.json, None where there is none.
    """

    given: Mapping[str, Any]
    reading: Reading | None = None
    beside: Reading | None = None

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """The text part of the config, without what its class would fill in."""
        config = self.given
        for _ in range(DEEPEST):
            part = next((config[name] for name in PARTS if isinstance(config.get(name), dict) and config[name]), None)
            if part is None:
                break
            config = part
        return config

    @cached_property
    def ropes(self) -> dict[str, Mapping[str, Any]]:
        """The rope dicts by their place: "rope_scaling", "rope_parameters.full_attention"."""
        found: dict[str, Mapping[str, Any]] = {}
        for name in ("rope_parameters", "rope_scaling"):
            given = self.config.get(name)
            if not isinstance(given, dict) or not _is_plain(name, given):
                continue
            inside = {f"{name}.{key}": value for key, value in given.items() if isinstance(value, dict)}
            found |= inside or {name: given}
        return found

    def number(self, source: Mapping[str, Any], *names: str) -> float | None:
        """The first of these fields that is a finite number."""
        for name in names:
            value = source.get(name)
            if isinstance(value, (int, float)) and not isinstance(value, bool) and -1e300 < value < 1e300:
                return float(value)
        return None

    @cached_property
    def length(self) -> float | None:
        """The length that the file states as the model's."""
        return self.number(self.config, *LENGTHS)

    def original(self, rope: Mapping[str, Any]) -> float | None:
        """The length that the file states as that before extension, beside the rope dict or in it."""
        return self.number(self.config, ORIGINAL) or self.number(rope, ORIGINAL)

    @cached_property
    def rotations(self) -> list[Described]:
        """Every rotary encoding that was read."""
        layers = () if self.reading is None else self.reading.layers
        return [one for group in layers for one in group.encodings if one.name in ("rope", "mrope")]


def pairs_of(rotation: Described) -> int | None:
    """How many pairs a rotation turns; None where its sizes are no sizes."""
    dim = rotation.value("rotary_dim") or rotation.value("head_dim")
    return dim // 2 if type(dim) is int else None


def _is_plain(name: str, given: dict[str, Any]) -> bool:
    """Whether a dict holds what JSON can: any other is refused where it is read, and no rule has to bear it."""
    try:
        check_plain(name, given)
    except WhorlError:
        return False
    return True


def type_of(rope: Mapping[str, Any]) -> str:
    """What a rope dict says its type is, "default" where it does not say."""
    kind = rope.get("rope_type", rope.get("type"))
    return kind if isinstance(kind, str) else "default"
