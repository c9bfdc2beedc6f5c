"""Documents: files and folders that anyone may have written, looked at and read within bounds; every room does it here.

Nothing is executed and nothing is unpickled. A pipe, a socket or a device, which may never end, is not opened, and a
file is read up to a limit. JSON with a key twice, with NaN or Infinity, with a number beyond every float, too long or
too deep is refused, since two programs would read it differently, or one for a long time.
"""

from __future__ import annotations

import json
import math
import os
import stat
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal, NoReturn

from whorl.errors import WhorlError, shown

LARGEST_JSON = 16 * 2**20  # bytes; configs of released models have some kilobytes
MOST_COMMAS = 2**17  # of a config or a header; what stands between two of them takes the time to parse
DEEPEST_JSON = 64
LONGEST_NUMBER = 300  # digits
PIPE = "-"
PASS_A_FILE, PASS_CONFIG = "Pass a file that can be read.", "Pass config.json."

Kind = Literal["file", "folder", "other"]
Refuse = Callable[[str], NoReturn]  # raises a WhorlError that gives this reason


def named(path: str | Path) -> str:
    """A path for a message: its two ends where it is long, since the last name tells most."""
    text = str(path)
    return text if len(text) <= 240 else f"{text[:119]}…{text[-119:]}"


def kind_of(path: str | Path, call: str = "read", remedy: str = PASS_A_FILE) -> Kind | None:
    """What a path names, links followed; None where nothing is there. Raises a WhorlError where that cannot be told."""
    found = _status(path, call, remedy)
    if found is None:
        return None
    return "file" if stat.S_ISREG(found.st_mode) else "folder" if stat.S_ISDIR(found.st_mode) else "other"


def size_of(path: str | Path, call: str = "read", remedy: str = PASS_A_FILE) -> int:
    """How many bytes a file says it has; a WhorlError for what is no file, whose reader might wait without end."""
    found = _status(path, call, remedy)
    if found is not None and stat.S_ISREG(found.st_mode):
        return found.st_size
    if found is None:
        why = "No such file or directory"
    else:
        why = "it is a folder" if stat.S_ISDIR(found.st_mode) else "it is a pipe, a socket or a device"
    raise WhorlError(f"{call}: cannot read {named(path)}: {why}. {remedy}")


def _status(path: str | Path, call: str, remedy: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:  # not ours to look at, a name that is too long, links in a circle
        raise WhorlError(f"{call}: cannot look at {named(path)}: {error.strerror}. {remedy}") from None
    except ValueError:  # with a NUL in it, or half a letter
        raise WhorlError(f"{call}: no file can have the name {named(path)}. {remedy}") from None


def names_in(folder: Path, call: str = "read") -> list[str]:
    """The names of what lies in a folder, in their order."""
    try:
        return sorted(os.listdir(folder))
    except OSError as error:
        raise WhorlError(f"{call}: cannot look into {named(folder)}: {error.strerror}. {PASS_A_FILE}") from None


def read_bytes(
    path: str | Path, *, at_most: int, start: int = 0, call: str = "read", remedy: str = PASS_A_FILE
) -> bytes:
    """Bytes of a file from ``start``, no more than ``at_most`` of them."""
    size_of(path, call, remedy)  # which refuses what is no file
    try:
        with open(path, "rb", opener=open_at_once) as file:
            file.seek(start)
            return file.read(at_most) or b""  # None where the system would let its reader wait, as for /proc/kmsg
    except OSError as error:
        raise WhorlError(f"{call}: cannot read {named(path)}: {error.strerror}. {remedy}") from None


def open_at_once(path: str, flags: int) -> int:
    """An opener for ``open`` that never waits, as opening a pipe does for the program at its other end."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0), 0o666)  # the mode that open gives to new files


def read_whole(path: str | Path, what: str, *, at_most: int, call: str = "read", remedy: str = PASS_A_FILE) -> bytes:
    """All bytes of a file; a WhorlError where it has more than ``what`` may have."""
    data = read_bytes(path, at_most=at_most + 1, call=call, remedy=remedy)
    _check_size(data, at_most, f"{call}: {named(path)}", what, remedy)
    return data


def _check_size(data: bytes, at_most: int, where: str, what: str, remedy: str) -> None:
    if len(data) > at_most:
        raise WhorlError(f"{where} has more than {at_most:,} bytes, too many for {what}. {remedy}")


def check_inside(folder: Path, found: Path) -> None:
    """Raises a WhorlError for a link out of the folder, unless it is one of the Hugging Face cache to its blobs."""
    home, target = folder.resolve(), found.resolve()
    blobs = home.parent.parent / "blobs" if home.parent.name == "snapshots" else None
    if home not in target.parents and target.parent != blobs:
        raise WhorlError(
            f"read: {found.name} in {shown(str(folder))} is a link that leaves the folder. "
            f"Pass the file it means: {shown(str(target))}."
        )


def read_pipe() -> bytes:
    """What stands on the standard input, as the text of a config."""
    try:
        data = sys.stdin.buffer.read(LARGEST_JSON + 1)
    except (OSError, AttributeError):  # a folder, or nothing at all
        raise WhorlError("read: nothing can be read from the pipe. Pass a config.json.") from None
    _check_size(data, LARGEST_JSON, "read: the pipe", "a config", PASS_CONFIG)
    return data


def read_json(path: Path) -> dict[str, Any]:
    """The dict that a JSON file holds."""
    return parse_json(read_whole(path, "a config", at_most=LARGEST_JSON, remedy=PASS_CONFIG), shown(str(path)))


def parse_json(data: bytes | str, where: str) -> dict[str, Any]:
    """The dict of a JSON text; ``where`` names it in messages."""

    def refuse(why: str) -> NoReturn:
        raise WhorlError(f"read: {where} is not a config that all programs read alike: {why}. Mend the file.")

    if (data.count(b",") if isinstance(data, bytes) else data.count(",")) > MOST_COMMAS:
        refuse(f"it has more than {MOST_COMMAS:,} commas")
    found = value_of(data, refuse)
    if not isinstance(found, dict):
        refuse(f"it holds {shown(found)} in place of a dict")
    return found


def value_of(data: bytes | str, refuse: Refuse) -> Any:
    """What a JSON text says; ``refuse`` is told what is wrong with it."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) < len(pairs):
            seen: set[str] = set()
            twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # add() gives None
            refuse(f"the key {shown(twice)} stands there twice")
        return made

    def whole(digits: str) -> int:
        if len(digits) > LONGEST_NUMBER:
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
