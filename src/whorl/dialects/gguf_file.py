"""GGUF files: the metadata before the weights, and single small tensors, read within bounds.

Layout (ggml's docs/gguf.md, versions 2 and 3): the magic, a version, the number of tensors and of metadata pairs, the
pairs (key, type, value), a record per tensor (name, sizes, type, offset), padding, the weights. Version 1 had counts of
32 bits and is refused.

Why not the package ``gguf``: its ``GGUFReader`` 0.19.0 makes an array of numpy for every string. On a file with a
vocabulary of 128,000 tokens and 280,000 merges it took 28 s and 646 MiB on a core where this reader, which steps over
long arrays, took 0.25 s; ``whorl inspect --lint`` has 0.6 s in all. Nor is it meant for files of strangers: one
array of 2^20 bytes in a file of a megabyte took it 31 s, and a truncated file ends in an IndexError. The tests write
their files with its ``GGUFWriter``.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from whorl.dialects.documents import read_bytes
from whorl.errors import WhorlError, shown

MAGIC = b"GGUF"
VERSIONS = (2, 3)
CHUNK = 8 * 2**20  # bytes that are read at a time
LARGEST_HEADER = 96 * 2**20  # a vocabulary of 262,144 tokens with its merges takes 16 MiB
MOST_PAIRS, MOST_TENSORS = 2**14, 2**15
MOST_STRINGS = 2**21  # in all arrays together
LONGEST_KEPT = 2**12  # elements of an array that is kept; a longer one belongs to the tokenizer
MOST_KEPT = 2**16  # elements of all arrays that are kept
LONGEST_NAME, LONGEST_STRING = 2**16 - 1, 2**22  # chat templates are strings
MOST_DIMS = 4

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
FLOAT32 = 0  # the type of a tensor, as ggml counts them


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """Where a tensor lies: its sizes, the innermost first, its type as ggml counts them, and its first byte."""

    sizes: tuple[int, ...]
    type: int
    start: int


@dataclass(frozen=True, kw_only=True)
class GgufFile:
    """What stands before the weights. Arrays that are long, or of arrays, are left out of ``metadata``."""

    path: Path
    order: str
    metadata: dict[str, Any]
    tensors: dict[str, Tensor]

    def floats(self, name: str, most: int = LONGEST_KEPT) -> tuple[float, ...] | None:
        """The numbers of a small float32 tensor; None where there is no such tensor."""
        tensor = self.tensors.get(name)
        if tensor is None:
            return None
        count = math.prod(tensor.sizes)
        if tensor.type != FLOAT32 or not 0 < count <= most:
            _refuse(self.path, f"the tensor {name!r} is not one of at most {most} float32 numbers")
        data = read_bytes(self.path, at_most=4 * count, start=tensor.start)
        if len(data) < 4 * count:
            _refuse(self.path, f"it ends within the tensor {name!r}")
        values = struct.unpack(f"{self.order}{count}f", data)
        if not all(math.isfinite(value) for value in values):
            _refuse(self.path, f"the tensor {name!r} holds numbers that are not finite")
        return tuple(_shortest(value) for value in values)


def read_gguf(path: Path) -> GgufFile:
    """The metadata and the tensor records of a GGUF file."""
    header = _Header(path)
    if header.take(4) != MAGIC:
        _refuse(path, "its first bytes are not GGUF")
    (version,) = struct.unpack("<I", header.take(4))
    if version & 0xFFFF == 0:  # the other order of bytes, as the files for big-endian machines have it
        header.order, version = ">", version >> 16
        version = (version >> 8 | version << 8) & 0xFFFF
    if version not in VERSIONS:
        _refuse(path, f"version {version} of the format is none of {VERSIONS}")
    tensors, pairs = header.unpack("QQ")
    if tensors > MOST_TENSORS or pairs > MOST_PAIRS:
        _refuse(path, f"it claims {tensors} tensors and {pairs} metadata pairs")
    metadata: dict[str, Any] = {}
    seen: set[str] = set()
    for _ in range(pairs):
        key = header.string(LONGEST_NAME)
        if key in seen:
            _refuse(path, f"the key {shown(key)} stands there twice")
        seen.add(key)
        value = header.value(*header.unpack("I"))
        if value is not None:
            metadata[key] = value
    records = _records(header, tensors)
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or not 0 < alignment <= 2**16 or alignment & (alignment - 1):
        _refuse(path, f"general.alignment is {shown(alignment)} and no power of two up to 65536")
    start = -(-header.at // alignment) * alignment
    moved = {name: Tensor(sizes=one.sizes, type=one.type, start=start + one.start) for name, one in records.items()}
    return GgufFile(path=path, order=header.order, metadata=metadata, tensors=moved)


def _records(header: _Header, count: int) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for _ in range(count):
        name = header.string(LONGEST_NAME)
        if name in found:
            _refuse(header.path, f"the tensor {shown(name)} stands there twice")
        (dims,) = header.unpack("I")
        if dims > MOST_DIMS:
            _refuse(header.path, f"the tensor {shown(name)} has {dims} dimensions")
        sizes = header.unpack("Q" * dims)
        kind, start = header.unpack("IQ")
        if start > 2**62:
            _refuse(header.path, f"the tensor {shown(name)} begins at byte {start}")
        found[name] = Tensor(sizes=sizes, type=kind, start=start)
    return found


class _Header:
    """The bytes before the weights, read as far as they are asked for."""

    def __init__(self, path: Path) -> None:
        self.path, self.order, self.at, self.strings, self.kept = path, "<", 0, 0, 0
        self.data = bytearray()

    def need(self, count: int) -> None:
        """Reads on until ``count`` bytes from here are there."""
        end = self.at + count
        while end > len(self.data):
            if end > LARGEST_HEADER:
                _refuse(self.path, f"its metadata takes more than {LARGEST_HEADER:,} bytes")
            more = read_bytes(self.path, at_most=CHUNK, start=len(self.data))
            if not more:
                _refuse(self.path, "it ends within its metadata")
            self.data += more

    def take(self, count: int) -> bytes:
        self.need(count)
        self.at += count
        return bytes(self.data[self.at - count : self.at])

    def unpack(self, types: str) -> tuple[Any, ...]:
        form = self.order + types
        return struct.unpack(form, self.take(struct.calcsize(form)))

    def string(self, longest: int) -> str:
        (size,) = self.unpack("Q")
        if size > longest:
            _refuse(self.path, f"it has a string of {size} bytes")
        try:
            return self.take(size).decode()
        except UnicodeDecodeError:
            _refuse(self.path, "it has a string that is not UTF-8 text")

    def value(self, kind: int) -> Any:
        """A value of this type; None for an array that is not kept."""
        if kind in SCALARS:
            return self._numbers(kind, 1)[0]
        if kind == STRING:
            return self.string(LONGEST_STRING)
        if kind == ARRAY:
            return self._array()
        _refuse(self.path, f"it has a value of the unknown type {kind}")

    def _numbers(self, kind: int, count: int) -> list[Any]:
        values = self.unpack(f"{count}{SCALARS[kind]}")
        for value in values:
            if type(value) is float and not math.isfinite(value):
                _refuse(self.path, f"it has the number {value}")
        return [_shortest(value) for value in values] if SCALARS[kind] == "f" else list(values)

    def _array(self) -> list[Any] | None:
        kind, count = self.unpack("IQ")
        if kind in SCALARS:
            size = struct.calcsize(f"={SCALARS[kind]}")
            if count > LONGEST_KEPT:
                self.need(count * size)
                self.at += count * size
                return None
            self.kept += count
            if self.kept > MOST_KEPT:
                _refuse(self.path, f"it has more than {MOST_KEPT:,} numbers in short arrays")
            return self._numbers(kind, count)
        if kind == STRING:
            self._skip_strings(count)
            return None
        _refuse(self.path, f"it has an array of type {kind}, where only numbers and strings are understood")

    def _skip_strings(self, count: int) -> None:
        self.strings += count
        if self.strings > MOST_STRINGS:
            _refuse(self.path, f"it claims more than {MOST_STRINGS:,} strings in arrays")
        size_at: Callable[..., tuple[int]] = struct.Struct(f"{self.order}Q").unpack_from
        at, data = self.at, self.data
        for _ in range(count):
            if at + 8 > len(data):
                self.at = at
                self.need(8)
            at += 8 + size_at(data, at)[0]
            if at > len(data):
                self.at = at
                self.need(0)
        self.at = at


def _shortest(value: float) -> float:
    """The shortest decimal number that float32 rounds to this one: 0.1 for 0.10000000149."""
    for digits in (6, 7, 8):
        short = float(f"{value:.{digits}g}")
        if struct.pack("f", short) == struct.pack("f", value):
            return short
    return value


def _refuse(path: Path, why: str) -> NoReturn:
    raise WhorlError(f"read: {shown(str(path))} is not a GGUF file that can be trusted: {why}. Download it again.")
