"""Documents: bytes of a file or a folder that anyone may have written, read within bounds.

Nothing is executed and nothing is unpickled. A file is read up to a limit. JSON with a key twice, with NaN or Infinity,
with a number beyond every float, or too deep is refused, since two programs would read it differently.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

from whorl.errors import WhorlError, shown

LARGEST_JSON = 16 * 2**20  # bytes; configs of released models have some kilobytes
DEEPEST_JSON = 64
PIPE = "-"


def check_inside(folder: Path, found: Path) -> None:
    """Raises a WhorlError for a link out of the folder, unless it is one of the Hugging Face cache to its blobs."""
    home, target = folder.resolve(), found.resolve()
    blobs = home.parent.parent / "blobs" if home.parent.name == "snapshots" else None
    if home not in target.parents and target.parent != blobs:
        raise WhorlError(
            f"read: {found.name} in {shown(str(folder))} is a link that leaves the folder. "
            f"Pass the file it means: {shown(str(target))}."
        )


def read_bytes(path: Path, *, at_most: int, start: int = 0) -> bytes:
    """Bytes of a file from ``start``, no more than ``at_most`` of them."""
    try:
        with path.open("rb") as file:
            file.seek(start)
            return file.read(at_most)
    except OSError as error:
        raise WhorlError(f"read: cannot read {shown(str(path))}: {error.strerror}.") from None


def read_pipe() -> bytes:
    """What stands on the standard input, as the text of a config."""
    return _within(sys.stdin.buffer.read(LARGEST_JSON + 1), "the pipe")


def read_json(path: Path) -> dict[str, Any]:
    """The dict that a JSON file holds."""
    return parse_json(_within(read_bytes(path, at_most=LARGEST_JSON + 1), shown(str(path))), shown(str(path)))


def _within(data: bytes, where: str) -> bytes:
    if len(data) > LARGEST_JSON:
        raise WhorlError(
            f"read: {where} has more than {LARGEST_JSON:,} bytes, too many for a config. Pass config.json."
        )
    return data


def parse_json(data: bytes | str, where: str) -> dict[str, Any]:
    """The dict of a JSON text; ``where`` names it in messages."""

    def refuse(why: str) -> NoReturn:
        raise WhorlError(f"read: {where} is not a config that all programs read alike: {why}. Mend the file.")

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) < len(pairs):
            names = [name for name, _ in pairs]
            refuse(f"the key {shown(next(name for name in names if names.count(name) > 1))} stands there twice")
        return made

    def whole(digits: str) -> int:
        if len(digits) > 300:
            refuse(f"a number of {len(digits)} digits")
        return int(digits)

    def decimal(digits: str) -> float:
        value = float(digits)
        return value if math.isfinite(value) else refuse(f"the number {shown(digits)} is beyond every float")

    try:
        text = data.decode("utf-8-sig") if isinstance(data, bytes) else data
        found = json.loads(
            text,
            object_pairs_hook=once,
            parse_int=whole,
            parse_float=decimal,
            parse_constant=lambda name: refuse(f"{name} is not JSON"),
        )
    except UnicodeDecodeError:
        refuse("it is not UTF-8 text")
    except json.JSONDecodeError as error:
        refuse(f"{error.msg} in line {error.lineno}, column {error.colno}")
    except RecursionError:
        refuse("it is nested too deeply")
    if not isinstance(found, dict):
        refuse(f"it holds {shown(found)} in place of a dict")
    if _deeper_than(DEEPEST_JSON, [found]):
        refuse(f"it is nested more than {DEEPEST_JSON} levels deep")
    return found


def _deeper_than(levels: int, contents: Iterable[Any]) -> bool:
    for _ in range(levels):
        contents = [
            inside
            for one in contents
            if isinstance(one, (dict, list))
            for inside in (one.values() if isinstance(one, dict) else one)
        ]
        if not contents:
            return False
    return True
