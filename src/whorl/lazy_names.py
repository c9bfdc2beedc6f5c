"""Names of a package that load on first use.

They are listed once, in the stub beside its ``__init__.py``, by lines like ``from whorl.errors import WhorlError as
WhorlError``: type checkers read the stub as it is, and the package reads from it which module each name is in.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def homes_of(file: str) -> dict[str, str]:
    """The module that each public name of a package is in, by the stub of its ``__init__.py``."""
    with open(f"{file}i", encoding="utf-8") as stub:
        lines = [line.split() for line in stub if line.startswith("from ")]
    return {name: home for _, home, _, name, *_ in lines}


def loader(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package: imports the module of a name when that is first asked for."""

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        from whorl.forks import uncut

        with uncut:
            if homes[name] == package:  # a module of the package itself
                return import_module(f"{package}.{name}")
            value = getattr(import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return load
