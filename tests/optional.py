"""Packages that not every machine has, or has in another version: what a test may skip for, and what it says then.

The packages are those of the extras in pyproject.toml. An import that fails although the package is there, in a version
that is asked for, is a fault of the test and stays one.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import re
import tomllib
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parent.parent
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
IMPORTED_AS = {"scikit-learn": "sklearn"}  # where it is not the name of the package with underscores
MISSING = "missing package"  # what every reason begins with, so that the summary finds them


def optional_packages() -> dict[str, tuple[str, SpecifierSet]]:
    """The packages by the name they are imported as: their name in an index, and the versions asked for."""
    found = {}
    for wanted in (Requirement(line) for lines in EXTRAS.values() for line in lines):
        found[IMPORTED_AS.get(wanted.name, wanted.name.replace("-", "_"))] = (wanted.name, wanted.specifier)
    found.pop("whorl")  # the extras name each other
    return found


# The versions that a test may be for: those that pyproject.toml asks for, or the one that whorl is developed on.
ASKED_FOR = {module: versions for module, (_, versions) in optional_packages().items()}
DEVELOPED_ON = {
    module: SpecifierSet(f"=={version}")
    for module, version in re.findall(r"^(\w+)==(\S+)$", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE)
}


def why_missing(error: BaseException | None) -> str | None:
    """Why an import failed for want of an optional package in a right version; None for every other error."""
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
    if wanted.contains(version, prereleases=True):
        return None
    return f"{MISSING}: {name} {wanted}, found {version} ({str(error).splitlines()[0]})"


def _importing(error: ImportError) -> Iterator[str]:
    """The packages that an import went through: the one it names, and those whose code was running."""
    yield (error.name or "").partition(".")[0]
    for frame, _ in traceback.walk_tb(error.__traceback__):
        yield frame.f_globals.get("__name__", "").partition(".")[0]


def optional(path: str, *, only: Mapping[str, SpecifierSet] | None = None) -> Any:
    """What ``package.module:name`` names; skips the test where the machine's packages do not have it.

    ``only`` is for tests that go through many classes of a package: those that need them all as they are now are for
    ``DEVELOPED_ON`` only, and those that allow for new ones are for ``ASKED_FOR``.

    >>> optional("pytest:skip") is pytest.skip
    True
    """
    module, _, name = path.partition(":")
    try:
        found = importlib.import_module(module)
        if name and not hasattr(found, name):
            raise ImportError(f"cannot import name {name!r} from {module!r}", name=module)
    except ImportError as error:
        reason = why_missing(error)
        if reason is None:
            raise
        pytest.skip(reason)
    if only is not None:
        version = importlib.metadata.version(module)
        if not only[module].contains(version, prereleases=True):
            pytest.skip(f"{MISSING}: {module} {only[module]}, found {version} (this test goes through all of it)")
    return getattr(found, name) if name else found
