"""Every config that a test of the readers has in its text: what is written there is evaluated, so none is forgotten."""

from __future__ import annotations

import ast
import functools
import json
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parent
FOLDERS = ("dialects", "bridge", "bridge/exports", "cli")


@functools.cache
def literal_configs() -> tuple[dict[str, Any], ...]:
    """The dicts with a model_type that stand in the tests of readers, of the bridge and of its commands, each once."""
    found: dict[str, dict[str, Any]] = {}
    for folder in FOLDERS:
        for path in sorted((TESTS / folder).glob("test_*.py")):
            found |= {json.dumps(config): config for config in _configs(path)}
    return tuple(found.values())


def _configs(path: Path) -> Iterator[dict[str, Any]]:
    try:
        names = runpy.run_path(str(path))
    except pytest.skip.Exception:  # a file of an extra that is not installed
        return
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not _may_be_config(node):
            continue
        try:
            value = eval(compile(ast.Expression(node), str(path), "eval"), dict(names))
            json.dumps(value, allow_nan=False)
        except Exception:  # it has names of the function that it stands in, or is nothing that a file can hold
            continue
        if isinstance(value, dict) and value.get("model_type"):
            yield value


def _may_be_config(node: ast.AST) -> bool:
    """Whether an expression may make a config: a dict, dicts joined, or a call of a file's own helper."""
    joined = isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr)
    helper = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "config"
    return isinstance(node, ast.Dict) or joined or helper
