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

BENCHMARKS: dict[str, str | Benchmark] = {
    "attention": "whorl.benchmarks.attention:attention",
    "bias": "whorl.benchmarks.bias:bias",
    "decode": "whorl.benchmarks.decode:decode",
    "generation": "whorl.benchmarks.generation:generation",
    "linear": "whorl.benchmarks.linear:linear",
    "precision": "whorl.benchmarks.precision:precision",
    "rotary": "whorl.benchmarks.rotary:rotary",
    "tables": "whorl.benchmarks.tables:tables",
    "training": "whorl.benchmarks.training:training",
}


def benchmark(name: str) -> Benchmark:
    """The function behind a benchmark's name."""
    if name not in BENCHMARKS:
        raise unknown("benchmark", name, BENCHMARKS)
    entry = BENCHMARKS[name]
    if not isinstance(entry, str):
        return entry
    module, function = entry.split(":")
    return getattr(import_module(module), function)


def complete_settings(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """All settings of a benchmark, those given in place of its defaults.

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
        settings[key] = kind(value)
    return settings
