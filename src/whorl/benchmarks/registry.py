"""The benchmarks by name. The table holds import paths, so that listing names needs no torch.

A benchmark is a function of keyword settings, all with defaults, that gives the groups to time
(``whorl.benchmarks.runner.Group``), one after another. Measuring them is the runner's business.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from whorl.errors import invalid, unknown

if TYPE_CHECKING:
    from whorl.benchmarks.runner import Group

Benchmark = Callable[..., "Iterable[Group]"]

# Each is the function of its name in the file of its name.
NAMES = ("attention", "bias", "decode", "generation", "linear", "precision", "rotary", "tables", "training")
BENCHMARKS: dict[str, str | Benchmark] = {name: f"whorl.benchmarks.{name}:{name}" for name in NAMES}

# What several groups say together: of a finished report as data, a title, a header and rows; None where it has none.
CONCLUSIONS = {"decode": "whorl.benchmarks.decode_bars:conclusion"}


def benchmark(name: str) -> Benchmark:
    """The function behind a benchmark's name."""
    if name not in BENCHMARKS:
        raise unknown("benchmark", name, BENCHMARKS)
    entry = BENCHMARKS[name]
    return entry if not isinstance(entry, str) else _imported(entry)


def conclusion(report: Mapping[str, Any]) -> tuple[str, list[str], list[list[str]]] | None:
    """The table that a report's groups make together, if its benchmark has one."""
    path = CONCLUSIONS.get(report["name"])
    return None if path is None else _imported(path)(report)


def _imported(path: str) -> Any:
    module, name = path.split(":")
    return getattr(import_module(module), name)


def complete_settings(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """All settings of a benchmark, those given in place of its defaults; a size is positive as its default is.

    >>> complete_settings("tables", {"length": 4096})["head_dim"]
    128
    """
    settings = {key: parameter.default for key, parameter in inspect.signature(benchmark(name)).parameters.items()}
    for key, value in given.items():
        if key not in settings:
            raise unknown("setting", key, settings, call=f"benchmark {name}")
        kind = type(settings[key])
        if type(value) is not kind and not (kind is float and type(value) is int):
            raise invalid(f"bench {name}", key, f"like {settings[key]!r}", value)
        if kind is int and settings[key] > 0 and value < 1:
            raise invalid(f"bench {name}", key, "positive", value)
        settings[key] = kind(value)
    return settings
