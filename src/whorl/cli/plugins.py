"""``--plugin FILE``: encodings of a user's own, known to a command before it reads its names."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from whorl.plugins import load_plugin


def _load(files: list[Path] | None) -> list[Path] | None:
    for file in files or ():
        load_plugin(file)
    return files


Plugin = Annotated[
    list[Path] | None,
    typer.Option("--plugin", metavar="FILE.py", callback=_load, help="A file that registers encodings of your own."),
]


def named(names: Iterable[str], call: str) -> list[str]:
    """The names of encodings, with those that a file registers in the place of its path."""
    return [one for name in names for one in (load_plugin(name, call=call) if name.endswith(".py") else [name])]
