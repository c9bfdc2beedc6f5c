"""Packages that not every machine has, or has in another version: what a test may skip for, and what it says then.

The packages are those of the extras in pyproject.toml. An import that fails although the package is there, in the
version that is asked for, is a fault of the test and stays one.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import re
import tomllib
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

EXTRAS = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
IMPORTED_AS = {"scikit-learn": "sklearn"}  # where it is not the name of the package with underscores
MISSING = "missing package"  # what every reason begins with, so that the summary finds them


def optional_packages() -> dict[str, tuple[str, str | None]]:
    """The packages by the name they are imported as: their name in an index, and the version asked for, if one is."""
    found = {}
    for wanted in (line for lines in EXTRAS["optional-dependencies"].values() for line in lines):
        name, version = re.match(r"([\w-]+)(?:\[.*\])?(?:==([\w.]+))?", wanted).groups()
        found[IMPORTED_AS.get(name, name.replace("-", "_"))] = (name, version)
    found.pop("whorl")  # the extras name each other
    return found


def why_missing(error: BaseException | None) -> str | None:
    """Why an import failed for want of an optional package in the right version; None for every other error."""
    while error is not None and not isinstance(error, ImportError):
        error = error.__cause__ or error.__context__
    packages = optional_packages()
    package = next((name for name in _importing(error) if name in packages), None) if error is not None else None
    if package is None:
        return None
    name, wanted = packages[package]
    try:
        importlib.import_module(package)
    except ModuleNotFoundError as missing:
        if missing.name == package:
            return f"{MISSING}: {name} is not installed"
    except ImportError:
        pass  # it is there, and what it needs itself is not: a question of versions
    version = importlib.metadata.version(name)
    if wanted in (None, version):
        return None
    return f"{MISSING}: {name} {wanted}, found {version} ({str(error).splitlines()[0]})"


def _importing(error: ImportError) -> Iterator[str]:
    """The packages that an import went through: the one it names, and those whose code was running."""
    yield (error.name or "").partition(".")[0]
    for frame, _ in traceback.walk_tb(error.__traceback__):
        yield frame.f_globals.get("__name__", "").partition(".")[0]


def optional(path: str, *, exact: bool = False) -> Any:
    """What ``package.module:name`` names; skips the test where the machine's packages do not have it.

    ``exact`` is for tests that go through all of a package, so that another version has other contents.

    >>> optional("pytest:skip") is pytest.skip
    True
    """
    module, _, name = path.partition(":")
    try:
        found = importlib.import_module(module)
        if exact and importlib.metadata.version(module) != optional_packages()[module][1]:
            raise ImportError("this test goes through all of it", name=module)
        if name and not hasattr(found, name):
            raise ImportError(f"cannot import name {name!r} from {module!r}", name=module)
    except ImportError as error:
        reason = why_missing(error)
        if reason is None:
            raise
        pytest.skip(reason)
    return getattr(found, name) if name else found
