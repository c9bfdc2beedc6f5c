"""Detection: which dialect a file is written in, and its reading.

A dialect is recognised by what only its files have, in the order of the tables: binary ones by their first bytes, JSON
ones by their keys. What no other dialect recognises is a transformers config.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whorl.dialects import (
    deepseek_inference,
    diffusers,
    gguf,
    megatron,
    meta_params,
    mistral_params,
    safetensors,
    tensorrt_llm,
    transformers_model,
)
from whorl.dialects.documents import PIPE, parse_json, read_bytes, read_json, read_pipe
from whorl.dialects.folders import find_document
from whorl.dialects.other_files import check_is_model
from whorl.dialects.reading import Reading
from whorl.errors import WhorlError, invalid, shown

TRANSFORMERS = "transformers"
HEAD = 16  # the bytes by which a binary dialect is recognised
LFS_POINTER = b"version https://"  # how the text begins that stands in for a file nobody has fetched


@dataclass(frozen=True, kw_only=True)
class JsonDialect:
    """A dialect of JSON files: which dicts are in it, and their reading, where ``assume`` is a family or None."""

    name: str
    recognises: Callable[[Mapping[str, Any]], bool]
    read: Callable[[dict[str, Any], str | None], Reading]


@dataclass(frozen=True, kw_only=True)
class BinaryDialect:
    """A dialect of binary files: which first bytes are in it, and the reading of a file."""

    name: str
    recognises: Callable[[bytes], bool]
    read: Callable[[Path, str | None], Reading]


@dataclass(frozen=True, kw_only=True)
class Binary:
    """A binary file, its dialect, and sentences on what stands beside it in its folder."""

    dialect: BinaryDialect
    path: Path
    notes: tuple[str, ...] = ()


Loaded = dict[str, Any] | Binary

BINARY_DIALECTS: tuple[BinaryDialect, ...] = (
    BinaryDialect(name="gguf", recognises=gguf.recognises, read=gguf.read),
    BinaryDialect(name="safetensors", recognises=safetensors.recognises, read=safetensors.read),
)

# The first that recognises a config reads it, so what is peculiar stands before what is usual.
JSON_DIALECTS: tuple[JsonDialect, ...] = (
    JsonDialect(
        name="deepseek inference config", recognises=deepseek_inference.recognises, read=deepseek_inference.read
    ),
    JsonDialect(name="meta params.json", recognises=meta_params.recognises, read=meta_params.read),
    JsonDialect(name="mistral params.json", recognises=mistral_params.recognises, read=mistral_params.read),
    JsonDialect(name="megatron arguments", recognises=megatron.recognises, read=megatron.read),
    JsonDialect(name="tensorrt-llm checkpoint", recognises=tensorrt_llm.recognises, read=tensorrt_llm.read),
    JsonDialect(name="diffusers", recognises=diffusers.recognises, read=diffusers.read),
    JsonDialect(name=TRANSFORMERS, recognises=lambda config: True, read=transformers_model.read),
)


def read_document(given: str | Path | Mapping[str, Any], assume: str | None = None) -> Reading:
    """The reading of a file, of the config in a folder, of a pipe ("-"), or of a dict that a JSON file held."""
    return read_loaded(load(given), assume)


def read_loaded(loaded: Loaded, assume: str | None = None) -> Reading:
    """The reading of what ``load`` gave."""
    if isinstance(loaded, dict):
        return read_config(loaded, assume)
    reading = loaded.dialect.read(loaded.path, assume)
    return dataclasses.replace(reading, notes=(*reading.notes, *loaded.notes))


def load(given: str | Path | Mapping[str, Any]) -> Loaded:
    """The dict that a JSON file holds, or the binary file that is to be read."""
    if isinstance(given, Mapping):
        return dict(given)
    if not isinstance(given, (str, Path)):
        raise invalid("read", "what is to be read", "a path or a dict", given, "Pass a config.json or its dict.")
    if str(given) == PIPE:
        return load_pipe()
    found = find_document(Path(given))
    path = found.path
    head = read_bytes(path, at_most=HEAD)
    for dialect in BINARY_DIALECTS:
        if dialect.recognises(head):
            return Binary(dialect=dialect, path=path, notes=found.notes)
    if head == LFS_POINTER:
        raise WhorlError(f"read: {shown(str(path))} is a pointer of Git LFS and not the file. Fetch it: git lfs pull.")
    return read_json(path)


def load_pipe() -> dict[str, Any]:
    """The dict that the pipe holds, which can be read once."""
    return parse_json(_text(read_pipe()), "the pipe")


def _text(data: bytes) -> bytes:
    for dialect in BINARY_DIALECTS:
        if dialect.recognises(data[:HEAD]):
            raise WhorlError(
                f"read: the pipe holds a {dialect.name} file, of which only parts are read. Pass its path."
            )
    return data


def read_config(config: dict[str, Any], assume: str | None = None) -> Reading:
    """The reading of a dict that a JSON file held."""
    check_is_model(config)
    return _dialect(config).read(config, assume)


def dialect_of(config: Mapping[str, Any]) -> str:
    """The name of the dialect that a dict of a JSON file is in.

    >>> dialect_of({"_class_name": "FluxTransformer2DModel"})
    'diffusers'
    """
    return _dialect(config).name


def _dialect(config: Mapping[str, Any]) -> JsonDialect:
    return next(one for one in JSON_DIALECTS if one.recognises(config))
