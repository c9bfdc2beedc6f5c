"""The shapes of results: which fields the JSON of a run and of a comparison must have, and what kind each is.

These files may come from anybody, and what reads them (rows, differences, the report) takes every field for what the
lab writes there. So each is held against one description, once, and what does not fit is named by its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

from whorl.errors import is_finite_number, shown


@dataclass(frozen=True)
class Maybe:
    """A field of this shape, or null."""

    shape: Any


@dataclass(frozen=True)
class Each:
    """A dict of any keys, whose values have this shape."""

    shape: Any


@dataclass(frozen=True)
class Has:
    """A dict with at least the fields of ``needed``; those of ``may`` have their shape where they are there."""

    needed: dict[str, Any]
    may: dict[str, Any]


# A number may be NaN or infinite where it is ``Real``, and nothing is asked of an ``object``.
WORDS = {
    str: "a text",
    int: "an integer",
    float: "a number",
    Real: "a number",
    bool: "true or false",
    dict: "an object",
}

REPEATED = Has({"right": [float]}, {})
RETRIEVAL = Has({"right": [float], "depth": [float]}, {"chance": float})
KEPT = {"samples": Each([float]), "scored_bytes": Each(int)}  # sample by sample, by measure
CELL = Has(
    {
        "length": int,
        "ratio": float,
        "bits_per_byte": Each(Maybe(float)),
        "stderr": Each(Maybe(float)),
        "accuracy": Maybe(float),
        "repeated_text_accuracy": Maybe(float),
        "retrieval_accuracy": Maybe(float),
    },
    {**KEPT, "repeated": Maybe(REPEATED), "retrieval": Maybe(RETRIEVAL)},
)
ITEMS = Has({"length": int, "items": int, "exact_match": Maybe(float), "token_accuracy": Maybe(float)}, KEPT)
TASK = Has({"name": str, "by_length": [ITEMS]}, {})
EVALUATION = Has(
    {"variant": str, "fine_tuned_steps": int, "by_length": [CELL]},
    {"per_position": Maybe(Has({"positions": [float], "bits_per_byte": [float]}, {})), "task": Maybe(TASK)},
)

ENCODING = Has({"name": str}, {})
ENCODING.may.update({"parts": [ENCODING], "layers": [ENCODING]})  # joined ones, and those of a plan

RUN = Has(
    {
        **dict.fromkeys(("id", "label"), str),
        "environment": dict,
        "encoding": ENCODING,
        "config": Has({"encoding": ENCODING, "corpus": str, "corpus_digest": str}, {}),  # RunConfig knows the rest
        **dict.fromkeys(("seed", "parameters", "encoding_parameters", "train_length", "steps", "tokens"), int),
        "peak_memory_bytes": int,
        **dict.fromkeys(("train_seconds", "evaluate_seconds"), float),
        **dict.fromkeys(("tokens_per_second", "final_train_loss"), Maybe(float)),
        "stopped_early": Maybe(str),
        "stages": [dict],
        "metrics": [Has({"step": int, "loss": float}, {"bits_per_byte": float})],
        "warnings": [str],
        "evaluations": [EVALUATION],
        "window_baseline": Maybe(Has({"by_length": [CELL]}, {})),
    },
    {
        "task": Maybe(TASK),
        "validation": Maybe([Has({"step": int, "bits_per_byte": Maybe(float)}, {})]),
        "generated": Maybe([Has({}, {"length": int, "prompt": str, "text": str})]),
        "attention_by_distance": Maybe(Has({}, {"distance": [float], "weight": [float], "head": [int]})),
        "claims": Maybe(Each(bool)),
    },
)


DIFFERENCE = Has(
    {
        **dict.fromkeys(("kind", "measure"), str),
        **dict.fromkeys(("row", "other"), (str, str)),  # label and variant
        **dict.fromkeys(("length", "from_length", "seeds", "samples", "scored_bytes"), int),
        **dict.fromkeys(("mean", "low", "high", "p", "least"), Maybe(Real)),
    },
    {},
)
POINTS, VALUES = Maybe([dict]), Maybe([object])
SCORED = Has({}, {"retrieval_by_depth": Maybe(Has({}, {"depth": VALUES, "share": VALUES}))})
ROW = Has(
    {"label": str},
    {
        **dict.fromkeys(("learning_curve", "validation", "generated"), POINTS),
        **dict.fromkeys(("encoding", "claims", "settings"), Maybe(dict)),
        "variant": Maybe(str),
        "seeds": Maybe([int]),
        "warnings": Maybe([str]),
        "by_length": Maybe([SCORED]),
        "task": Maybe(Has({}, {"by_length": POINTS})),
        "window_baseline": Maybe(Has({}, {"by_length": Maybe([SCORED])})),
        "per_position": Maybe(Has({}, {"positions": VALUES, "bits_per_byte": VALUES})),
        "attention_by_distance": Maybe(Has({}, {"distance": VALUES, "weight": VALUES, "head": Maybe([int])})),
    },
)

BYTES = ("train_bytes", "test_bytes", "documents", "left_out_bytes")
COMPARED = Has(
    {"rows": [ROW], "train_length": int},
    {
        "lengths": Maybe([int]),
        "differences": Maybe([DIFFERENCE]),
        **dict.fromkeys(("factors", "results"), Maybe([str])),
        "environment": Maybe(dict),
        "unequal": Maybe(Each([object])),
        "corpus": Maybe(Has({}, {**dict.fromkeys(("name", "digest"), Maybe(str)), **dict.fromkeys(BYTES, Maybe(int))})),
    },
)


def misfit(value: Any, shape: Any, place: str) -> str | None:
    """What in a value of JSON is not of its shape, as a sentence without its end; None where all is.

    >>> misfit({"steps": [1, "2"]}, Has({"steps": [int]}, {}), "result")
    "result.steps[1] must be an integer, got '2'"
    """
    if isinstance(shape, Maybe):
        return None if value is None else misfit(value, shape.shape, place)
    if shape is object:
        return None
    if isinstance(shape, list):
        if not isinstance(value, (list, tuple)):
            return f"{place} must be a list, got {shown(value)}"
        return _first(misfit(one, shape[0], f"{place}[{i}]") for i, one in enumerate(value))
    if isinstance(shape, tuple):
        if not isinstance(value, (list, tuple)) or len(value) != len(shape):
            return f"{place} must be a list of {len(shape)}, got {shown(value)}"
        return _first(misfit(one, own, f"{place}[{i}]") for i, (one, own) in enumerate(zip(value, shape, strict=True)))
    if isinstance(shape, (Each, Has)):
        if not isinstance(value, Mapping):
            return f"{place} must be an object, got {shown(value)}"
        if isinstance(shape, Each):
            return _first(misfit(one, shape.shape, f"{place}.{key}") for key, one in value.items())
        missing = [key for key in shape.needed if key not in value]
        if missing:
            return f"{place} has no {', '.join(missing)}"
        own = {**shape.needed, **{key: one for key, one in shape.may.items() if key in value}}
        return _first(misfit(value[key], one, f"{place}.{key}") for key, one in own.items())
    if shape is float:
        fits = is_finite_number(value)
    else:
        kind = Mapping if shape is dict else shape
        fits = isinstance(value, kind) and (shape is bool or not isinstance(value, bool))
    return None if fits else f"{place} must be {WORDS[shape]}, got {shown(value)}"


def _first(found: Iterable[str | None]) -> str | None:
    return next((one for one in found if one is not None), None)
