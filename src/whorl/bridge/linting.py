"""Lint: what is wrong or doubtful with positions in a model's file, without torch and without weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whorl.bridge.rules import RULES
from whorl.bridge.rules.facts import Facts, Severity
from whorl.dialects.detect import TRANSFORMERS, Loaded, dialect_of, load, read_config, read_loaded
from whorl.dialects.documents import PIPE, check_inside, kind_of, read_json
from whorl.dialects.reading import Reading
from whorl.errors import WhorlError

PARAMS = "params.json"
ORDER: tuple[Severity, ...] = ("error", "warning", "note")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A rule that a file breaks: which, how bad, what was found, and what to do."""

    rule: str
    severity: Severity
    what: str
    remedy: str

    def to_dict(self) -> dict[str, str]:
        """The finding as JSON-ready data."""
        return dataclasses.asdict(self)


def lint(source: str | Path | Mapping[str, Any], assume: str | None = None) -> list[Finding]:
    """What is wrong or doubtful in a file, the worst first; empty where nothing is.

    >>> config = {"model_type": "llama", "head_dim": 64, "rope_scaling": {"type": "yarn", "factor": 4.0}}
    >>> [(one.rule, one.severity) for one in lint(config | {"max_position_embeddings": 32786})][:2]
    [('no-original-length', 'error'), ('odd-length', 'warning')]
    """
    return examine(source, assume)[0]


def examine(
    source: str | Path | Mapping[str, Any], assume: str | None = None
) -> tuple[list[Finding], Reading | None, WhorlError | None]:
    """The findings of a file, its reading, and why it has none. Raises where there is not even a config."""
    loaded = load(source)
    error: WhorlError | None = None
    reading: Reading | None = None
    try:
        reading = read_loaded(loaded, assume)
    except WhorlError as unreadable:
        if not isinstance(loaded, dict):
            raise
        error = unreadable
    beside = _params_beside(source, loaded, assume)
    if isinstance(beside, WhorlError):
        said = f"params.json beside it was not compared. {beside}"
        reading = None if reading is None else dataclasses.replace(reading, notes=(*reading.notes, said))
        beside = None
    given = loaded if isinstance(loaded, dict) else reading.config if reading is not None else {}
    return _findings(Facts(given, reading, beside), assumed=assume is not None), reading, error


def _params_beside(source: object, loaded: Loaded, assume: str | None) -> Reading | WhorlError | None:
    """The reading of the params.json in a folder whose config.json was read, why it has none, or None without one."""
    if not isinstance(source, (str, Path)) or not isinstance(loaded, dict) or dialect_of(loaded) != TRANSFORMERS:
        return None
    path = Path(source)
    if str(source) == PIPE or kind_of(path) != "folder" or kind_of(path / PARAMS) != "file":
        return None
    try:
        check_inside(path, path / PARAMS)
        params = read_json(path / PARAMS)
        return read_config(params, assume) if dialect_of(params).endswith(PARAMS) else None
    except WhorlError as error:
        return error


def _findings(facts: Facts, *, assumed: bool) -> list[Finding]:
    found = [
        Finding(rule=rule.id, severity=rule.severity, what=what, remedy=rule.remedy)
        for rule in RULES
        if not (assumed and rule.id == "unknown-family")  # the user has given the answer
        for what in rule.find(facts)
    ]
    return sorted(found, key=lambda one: ORDER.index(one.severity))
