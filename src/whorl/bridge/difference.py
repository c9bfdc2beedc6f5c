"""Differences: what positions do otherwise in two models, or in one model as two programs read it.

Numbers are compared, not words: Llama 3's scaling and the divisors that a GGUF file has for it are equal. Two rotations
are equal where every inverse frequency and both factors agree to a millionth, which is beyond what float32 tables keep.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from whorl.analysis.wavelengths import Array
from whorl.bridge.aligned_layers import TURNING, aligned, rotation_of
from whorl.bridge.model import Group, Model, read
from whorl.bridge.programs import program_of, read_as
from whorl.dialects.reading import Described, Reading
from whorl.encodings.rope import Rope
from whorl.errors import WhorlError, check_counts, invalid

TOLERANCE = 1e-6
UNCLAIMED = 4096  # positions that are compared where neither file claims a length
STEP = 8  # between two lengths of the table of differences
MOST_POSITIONS = 4096  # at which cosines are compared; a longer text is sampled
ROTATION = ("rotary_dim", "layout", "slice", "rotated_heads", "sections", "arrangement", "learnable")
MOVED = "the layouts differ by the rows of queries and keys that llama.cpp's converter moves: not compared"


@dataclass(frozen=True, kw_only=True)
class Unlike:
    """A setting that two readings have otherwise."""

    name: str
    a: Any
    b: Any


@dataclass(frozen=True, kw_only=True)
class Turned:
    """Two rotations side by side, where they serve ``length`` positions.

    first_pair  the first pair whose frequency differs, None where none does
    cosines     (positions, the largest |cos a - cos b| of any pair within them), without the factors
    """

    length: int
    pairs: tuple[int, int]
    first_pair: int | None
    frequencies: tuple[float, float] | None
    attention_factor: tuple[float, float]
    softmax_factor: tuple[float, float]
    cosines: tuple[tuple[int, float], ...]

    @property
    def equal(self) -> bool:
        """Whether tables and softmax scale are the same."""
        factors = (self.attention_factor, self.softmax_factor)
        return self.first_pair is None and all(_close(*one) for one in factors)


@dataclass(frozen=True, kw_only=True)
class GroupDifference:
    """Layers that are alike in both: which they are, the settings they have otherwise, and their rotations."""

    kind: str
    layers: tuple[int, ...] | None
    settings: tuple[Unlike, ...] = ()
    rotations: tuple[Turned, ...] = ()

    @property
    def equal(self) -> bool:
        """Whether positions act alike in these layers."""
        return not self.settings and all(one.equal for one in self.rotations)


@dataclass(frozen=True, kw_only=True)
class Difference:
    """What positions do otherwise in ``a`` and ``b``; ``equal`` where nothing is."""

    a: str
    b: str
    claimed_length: tuple[int | None, int | None]
    groups: tuple[GroupDifference, ...]
    notes: tuple[str, ...] = ()

    @property
    def same_claim(self) -> bool:
        """Whether both promise one length, or one of them promises none."""
        return None in self.claimed_length or self.claimed_length[0] == self.claimed_length[1]

    @property
    def equal(self) -> bool:
        """Whether positions act alike in every layer, and both promise one length."""
        return self.same_claim and all(one.equal for one in self.groups)

    @property
    def largest(self) -> float:
        """The largest |cos a - cos b| of all layers."""
        return max((value for one in self.groups for turned in one.rotations for _, value in turned.cosines), default=0)

    def to_dict(self) -> dict[str, Any]:
        """The difference as JSON-ready data."""
        groups = [{**dataclasses.asdict(one), "equal": one.equal} for one in self.groups]
        return {"equal": self.equal, **dataclasses.asdict(self), "groups": groups}


def diff(
    a: str | Path | Mapping[str, Any],
    b: str | Path | Mapping[str, Any] | None = None,
    *,
    programs: str | Sequence[str] | None = None,
    length: int | None = None,
    assume: str | None = None,
) -> Difference:
    """What positions do otherwise in two files, or in one file as two programs read it.

    ``programs`` names one program for both or one for each; without it a file is read as its own model's code does.
    ``length`` is what both are to serve, by default the longer of the lengths that they claim.

    >>> config = {"model_type": "llama", "head_dim": 64, "num_hidden_layers": 2, "max_position_embeddings": 4096}
    >>> found = diff({**config, "rope_theta": 1e4}, {**config, "rope_theta": 5e5})
    >>> found.equal, found.groups[0].rotations[0].first_pair
    (False, 1)
    """
    names = (programs, programs) if isinstance(programs, str) else tuple(programs or (None, None))
    if len(names) != 2:
        raise invalid("diff", "programs", "one name or two", programs)
    if b is None and names[0] == names[1]:
        raise WhorlError(
            "diff: one file and one reader have nothing to differ in. Pass a second file, or two programs."
        )
    if length is not None:
        check_counts("diff", length=length)
    sources = (a, a if b is None else b)
    readings = [_read(source, name, length, assume) for source, name in zip(sources, names, strict=True)]
    letters = ("a", "a" if b is None else "b")
    labels = [_label(*one) for one in zip(sources, names, letters, strict=True)]
    return compare(*readings, labels=(labels[0], labels[1]), length=length)


def _read(source: Any, program: str | None, length: int | None, assume: str | None) -> Reading:
    if program is None:
        return read(source, assume).reading
    return read_as(source, program, length=length, assume=assume)


def _label(source: Any, program: str | None, letter: str) -> str:
    name = str(source) if isinstance(source, (str, Path)) else letter
    return name if program is None else f"{name} as {program_of(program).name}"


def compare(
    a: Reading, b: Reading, *, labels: tuple[str, str] = ("a", "b"), length: int | None = None, layouts: bool = True
) -> Difference:
    """What positions do otherwise in two readings; ``layouts`` whether rows of the weights stand as both say."""
    claims = [None if one.claimed_length is None else one.claimed_length.value for one in (a, b)]
    served = length or max((one for one in claims if one is not None), default=UNCLAIMED)
    notes = [f"{label}: {text}" for label, one in zip(labels, (a, b), strict=True) for text in one.notes]
    moved = _of_gguf(a) != _of_gguf(b)
    if moved and _layouts(a) != _layouts(b):
        notes.append(MOVED)
    lengths = _lengths((a, b), served)
    groups = [
        _group(kind, places, one, other, lengths, ROTATION if layouts and not moved else _WITHOUT_LAYOUT)
        for kind, places, one, other in aligned(Model(a), Model(b))
    ]
    return Difference(
        a=labels[0], b=labels[1], claimed_length=(claims[0], claims[1]), groups=tuple(groups), notes=tuple(notes)
    )


_WITHOUT_LAYOUT = tuple(name for name in ROTATION if name != "layout")


def _layouts(reading: Reading) -> set[Any]:
    return {one.value("layout") for group in reading.layers for one in group.encodings if "layout" in one.settings}


def _of_gguf(reading: Reading) -> bool:
    """Whether the weights are those of a GGUF file, which the converter orders."""
    return reading.dialect.startswith("gguf")


def _lengths(readings: Sequence[Reading], length: int) -> tuple[int, ...]:
    """The lengths to compare at: a scheme that depends on the length is looked at before it sets in, too."""
    scalings = [one.scaling for reading in readings for group in reading.layers for one in group.encodings]
    begins = [
        one.value("original_length") for one in scalings if one is not None and one.name in ("longrope", "dynamic_ntk")
    ]
    return tuple(sorted({length, *(one for one in begins if isinstance(one, int) and one < length)}))


def sentence(found: Difference) -> str:
    """What differs, in one sentence: settings, factors, and how far cosines are apart."""
    said = []
    if not found.same_claim:
        said.append(f"a claimed length of {found.claimed_length[1]} against {found.claimed_length[0]}")
    for group in found.groups:
        where = "" if len(found.groups) == 1 else f" in {group.kind}"
        said += [f"{one.name} {in_words(one.b)} against {in_words(one.a)}{where}" for one in group.settings]
        for turned in group.rotations:
            if not _close(*turned.attention_factor):
                said.append(f"{turned.attention_factor[1]:.6g} against {turned.attention_factor[0]:.6g} on cos and sin")
            if not _close(*turned.softmax_factor):
                said.append(f"{turned.softmax_factor[1]:.6g} against {turned.softmax_factor[0]:.6g} on the softmax")
            if turned.first_pair is not None:
                largest = turned.cosines[-1][1]
                said.append(f"cosines up to {largest:.2g} apart within {turned.length} positions{where}")
    return ", ".join(dict.fromkeys(said))


def in_words(value: Any) -> str:
    """A setting as a sentence has it.

    >>> in_words({"symmetric": True, "size": 65, "offset": False}), in_words([]), in_words(4.0)
    ('symmetric, size 65', 'none', '4.0')
    """
    if isinstance(value, dict):
        return ", ".join(name if one is True else f"{name} {one}" for name, one in value.items() if one is not False)
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return "; ".join(value) or "none"
    return "none" if value is None else str(value)


# --- one group of layers


def _group(
    kind: str, places: tuple[int, ...] | None, a: Group, b: Group, lengths: Sequence[int], names: Sequence[str]
) -> GroupDifference:
    turning = [rotation_of(group) for group in (a, b)]
    settings = [*_beside(a, b, lengths[-1]), *_rotation_settings(turning[0], turning[1], names)]
    rotations = ()
    if turning[0] is not None and turning[1] is not None:
        ropes = [_rope(group) for group in (a, b)]
        rotations = tuple(_turned(ropes[0], ropes[1], length) for length in lengths)
        if not all(one.equal for one in rotations):
            settings = [*_why(turning[0], turning[1]), *settings]
    return GroupDifference(kind=kind, layers=places, settings=tuple(settings), rotations=rotations)


def _rope(group: Group) -> Rope:
    return next(one for one in group.encoding.modules() if isinstance(one, Rope))


def _rotation_settings(a: Described | None, b: Described | None, names: Sequence[str]) -> list[Unlike]:
    if a is None or b is None:
        return [] if a is b else [Unlike(name="rotation", a=_named(a), b=_named(b))]
    unlike = [Unlike(name="rotation", a=a.name, b=b.name)] if a.name != b.name else []
    values = {name: [_rotated(one, name) for one in (a, b)] for name in names}
    return unlike + [Unlike(name=name, a=one, b=other) for name, (one, other) in values.items() if one != other]


def _named(one: Described | None) -> str:
    return "none" if one is None else one.name


_USUAL = {"slice": "leading", "layout": "half", "learnable": False}


def _rotated(one: Described, name: str) -> Any:
    value = one.value(name, _USUAL.get(name))
    if name == "rotary_dim":
        return value or one.value("head_dim")
    return list(value) if isinstance(value, tuple) else value


def _why(a: Described, b: Described) -> list[Unlike]:
    """The base and the scaling, in words, of two rotations whose numbers differ."""
    unlike = []
    if a.value("base") != b.value("base"):
        unlike.append(Unlike(name="base", a=a.value("base"), b=b.value("base")))
    one, other = (None if x.scaling is None else x.scaling for x in (a, b))
    if _named(one) != _named(other):
        return [*unlike, Unlike(name="scaling", a=_named(one), b=_named(other))]
    if one is None or other is None:
        return unlike
    names = sorted({*one.settings, *other.settings} - {"attention_factor"})
    return unlike + [
        Unlike(name=f"scaling.{name}", a=one.value(name), b=other.value(name))
        for name in names
        if None not in (one.value(name), other.value(name))
        and one.value(name) != other.value(name)
        and not isinstance(one.value(name), (list, tuple))
    ]


_UNSAID: dict[str, dict[str, Any]] = {"window": {"symmetric": False}}  # what some dialects leave to the default


def _beside(a: Group, b: Group, length: int) -> list[Unlike]:
    """What acts beside the rotation and is otherwise in the two."""
    if a.layers.attention != b.layers.attention:
        return [Unlike(name="attention", a=a.layers.attention, b=b.layers.attention)]
    parts = [
        {one.name: _UNSAID.get(one.name, {}) | one.plain() for one in group.layers.encodings if one.name not in TURNING}
        for group in (a, b)
    ]
    for part in parts:  # a window that holds the whole text hides nothing
        if part.get("window", {}).get("size", 0) >= length:
            del part["window"]
    unlike = [
        Unlike(name=name, a=parts[0].get(name, "none"), b=parts[1].get(name, "none"))
        for name in {**parts[0], **parts[1]}
        if parts[0].get(name) != parts[1].get(name)
    ]
    caps = [group.layers.softcap and group.layers.softcap.value for group in (a, b)]
    if caps[0] != caps[1]:
        unlike.append(Unlike(name="softcap", a=caps[0], b=caps[1]))
    kinds = [[text.partition(" (")[0].partition(":")[0] for text in group.unsupported] for group in (a, b)]
    if kinds[0] != kinds[1]:
        unlike.append(Unlike(name="beside the rotation", a=list(a.unsupported), b=list(b.unsupported)))
    return unlike


# --- numbers


def _close(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=TOLERANCE)


def _turned(a: Rope, b: Rope, length: int) -> Turned:
    one, other = (rope.frequencies(length).detach().numpy() for rope in (a, b))
    count = min(len(one), len(other))
    larger = np.maximum(np.abs(one[:count]), np.abs(other[:count]))
    apart = np.flatnonzero(np.abs(one[:count] - other[:count]) > TOLERANCE * larger)
    first = int(apart[0]) if len(apart) else None if len(one) == len(other) else count
    shown = first if first is not None and first < count else None
    return Turned(
        length=length,
        pairs=(len(one), len(other)),
        first_pair=first,
        frequencies=None if shown is None else (float(one[shown]), float(other[shown])),
        attention_factor=(float(a.attention_factor(length)), float(b.attention_factor(length))),
        softmax_factor=(float(a.softmax_factor(length)), float(b.softmax_factor(length))),
        cosines=cosine_differences(one[:count], other[:count], length),
    )


def cosine_differences(a: Array, b: Array, length: int) -> tuple[tuple[int, float], ...]:
    """(positions, the largest |cos a - cos b| of any pair within them), up to ``length``.

    >>> cosine_differences(np.array([1.0]), np.array([1.0]), 10)
    ((1, 0.0), (8, 0.0), (10, 0.0))
    """
    within = [STEP**power for power in range(64) if STEP**power < length] + [length]
    positions = np.unique(np.concatenate([np.linspace(0, one - 1, MOST_POSITIONS // 8).astype(int) for one in within]))
    apart = np.abs(np.cos(np.outer(positions, a)) - np.cos(np.outer(positions, b))).max(axis=1, initial=0.0)
    return tuple((one, float(apart[positions < one].max(initial=0.0))) for one in within)
