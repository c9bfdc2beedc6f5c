"""Sweeps: every run of a grid that a TOML file describes, as one comparison.

# grid.toml: every combination of what is listed, for each seed
encodings = ["rope", "alibi", {name = "t5", max_distance = 32}]
seeds = 3
[grid]                      # any setting of a run, or base and scaling for rotary encodings
base = [1e4, 5e5]
width = [128, 256]
[run]                       # what all runs share
train_length = 64
steps = 500
"""

from __future__ import annotations

import itertools
import shlex
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from whorl.dialects.documents import read_whole
from whorl.encodings.rotary import Rotary
from whorl.errors import WhorlError, invalid, unknown
from whorl.lab.aggregate import check_lengths
from whorl.lab.compare import Comparison, check_asked, conclude
from whorl.lab.fairness import ROTARY
from whorl.lab.plan import check_names, configure, prepare, read_names
from whorl.lab.run_many import Tell
from whorl.registry import JOINED, encoding_class

LARGEST = 2**24  # bytes of a sweep file


def sweep(
    file: str | Path,
    out: str | Path,
    on: str = "here",
    *,
    lang: str = "en",
    tell: Tell | None = None,
    announce: Callable[[str], object] | None = None,
    workers: int | None = None,
    retry: bool = False,
    baseline: str | None = None,
    **options: Any,
) -> Comparison:
    """The comparison of every run that a sweep file asks for, with its report written to ``out``.

    What its grid lists are the factors of the comparison; runs differ in nothing else. With ``retry``, runs whose loss
    was no number are made anew. ``options`` are those of ``run_one``, or of Ray with ``on="ray"``.
    """
    check_asked(on, lang, workers)
    asked = read_grid(file)
    configs = []
    for choice in combinations(asked.get("grid", {})):
        encodings = _with(read_names(asked["encodings"]), {key: choice.pop(key) for key in ROTARY if key in choice})
        configs += configure(encodings, **{**asked.get("run", {}), **choice}, seeds=asked.get("seeds", 1))
    check_lengths(config.train_length for config in configs)
    configs = prepare(configs, out, on=on)
    command = shlex.join(["whorl", "lab", "sweep", str(file), "--out", str(out)])
    told: dict[str, Any] = {"tell": tell, "announce": announce, "command": command, "title": asked.get("title", "")}
    made: dict[str, Any] = {"on": on, "lang": lang, "workers": workers, "retry": retry}
    return conclude(configs, out, **told, **made, baseline=baseline, factors=tuple(asked.get("grid", {})), **options)


def _with(encodings: list[dict[str, Any]], settings: dict[str, Any]) -> list[dict[str, Any]]:
    """The encodings with rotary settings from a grid, where they have them; the others as they are, once."""
    taken = [{key: value for key, value in settings.items() if _takes(one, key)} for one in encodings]
    for key in settings:
        if not any(key in own for own in taken):
            raise WhorlError(f"sweep: no encoding here takes grid.{key}. List rope, say, or leave {key} out.")
    return [{**one, **own} for one, own in zip(encodings, taken, strict=True)]


def _takes(encoding: dict[str, Any], setting: str) -> bool:
    cls = encoding_class(encoding["name"]) if encoding["name"] not in JOINED else None
    return cls is not None and issubclass(cls, Rotary) and setting in cls.Config.fields()


def read_grid(file: str | Path) -> dict[str, Any]:
    """What a sweep file says: settings that all runs share under ``run``, encodings, seeds and grid."""
    text = read_whole(file, "a sweep", at_most=LARGEST, call="sweep", remedy="Pass a file of TOML.")
    try:
        data = tomllib.loads(text.decode())
    except RecursionError:
        raise WhorlError(f"sweep: {file} is no TOML: it is nested too deeply.") from None
    except ValueError as error:  # no TOML, or no text at all
        raise WhorlError(f"sweep: {file} is no TOML: {error}.") from None
    known = {"title", "encodings", "seeds", "grid", "run"}
    for key in data:
        if key not in known:
            raise unknown("key", key, known, call=f"sweep {file}")
    if not data.get("encodings"):
        raise WhorlError(f'sweep: {file} lists no encodings. Write encodings = ["rope", "alibi"].')
    if not isinstance(data.get("title", ""), str):
        raise invalid(f"sweep {file}", "title", "a text", data["title"])
    for key in ("grid", "run"):
        if not isinstance(data.get(key, {}), dict):
            raise invalid(f"sweep {file}", key, "a table of settings", data[key], f"Begin it with [{key}].")
        if "seeds" in data.get(key, {}):
            raise WhorlError(f"sweep {file}: seeds are no part of [{key}]. Write them above it.")
        check_names((name for name in data.get(key, {}) if key == "run" or name not in ROTARY), f"sweep {file}")
    for key, values in data.get("grid", {}).items():
        if not isinstance(values, list) or not values:
            raise invalid(f"sweep {file}", f"grid.{key}", "a list of values", values)
    return data


def combinations(grid: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """Every choice of one value for each key.

    >>> combinations({"width": [64, 128], "heads": [4]})
    [{'width': 64, 'heads': 4}, {'width': 128, 'heads': 4}]
    """
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
