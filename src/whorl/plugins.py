"""Plugins: files of a user's own that register encodings, loaded once in a process.

A process that makes runs for another one is told the files, so that it knows the encodings as well.
"""

from __future__ import annotations

import importlib.util
import itertools
import sys
from pathlib import Path

from whorl import registry
from whorl.dialects.documents import kind_of, named
from whorl.errors import WhorlError

_files: dict[str, Path] = {}  # the file that registered an encoding, by name
_numbers = itertools.count()  # which tell apart files of one name in two folders


def load_plugin(file: str | Path, *, call: str = "plugin") -> list[str]:
    """The names of the encodings that a file registers; it is run unless it was before."""
    path = Path(file).expanduser()
    known = [name for name, home in _files.items() if home == path.absolute() and name in registry.ENCODINGS]
    if known:
        return known
    if kind_of(path, call) != "file":
        raise WhorlError(
            f"{call}: there is no file {named(file)!r}. Pass a file that registers an encoding, or a name."
        )
    before = set(registry.ENCODINGS)
    spec = importlib.util.spec_from_file_location(f"whorl_file_{path.stem}_{next(_numbers)}", path)
    if spec is None or spec.loader is None:
        raise WhorlError(f"{call}: {file} is no Python file. Pass a .py file that registers an encoding, or a name.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module  # where dataclasses look for what annotations mean
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[module.__name__]
        raise WhorlError(f"{call}: {file} cannot be run, {type(error).__name__}: {error}") from error
    added = [name for name in registry.names() if name not in before]
    if not added:
        raise WhorlError(f"{call}: {file} registers no encoding. Call whorl.register(YourEncoding) in it.")
    _files.update(dict.fromkeys(added, path.absolute()))
    return added


def file_of(name: str) -> Path | None:
    """The file that registered an encoding; None for whorl's own and for those that a program registered itself."""
    return _files.get(name)
