"""Safetensors headers: what the shapes of the weights say of positions, without a byte of the weights.

A file begins with the length of its header (8 bytes) and the header, a JSON dict of dtype, shape and place of each
tensor. Shapes tell sizes: a norm or a sink per head tells the size of a head, latent attention (DeepSeek) tells its
rotated part. They do not tell a base, a scaling or a family; what the names of the weights suggest of the layout is
given as candidates. Beside a config.json that is read instead, and the shapes are held against it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from whorl.dialects import transformers_model
from whorl.dialects.documents import kind_of, parse_json, read_bytes, read_json
from whorl.dialects.folders import find_document
from whorl.dialects.reading import Layers, Reading
from whorl.errors import WhorlError, shown

LARGEST_HEADER = 4 * 2**20  # bytes; 30,000 tensors take about 4 MB
MOST_SIZE = 2**48
MOST_LAYERS = 2**14
HEAD_DIMS = (32, 48, 64, 72, 80, 96, 112, 120, 128, 160, 192, 256, 512)  # what released models have

LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d{1,5})\.(.+)$")
TRANSFORMERS = ("self_attn.q_proj.weight", "self_attn.k_proj.weight")
META = ("attention.wq.weight", "attention.wk.weight")  # Meta's and Mistral's own files
# The projection to the latent and the rotated key together, and the norm of the latent alone.
LATENT = (
    ("self_attn.kv_a_proj_with_mqa.weight", "self_attn.kv_a_layernorm.weight"),
    ("attn.wkv_a.weight", "attn.kv_norm.weight"),
)
PER_HEAD = ("self_attn.q_norm.weight", "self_attn.k_norm.weight")  # one number for each dimension of a head
SINKS = "self_attn.sinks"  # one number for each head
ALONE = "Pass the config.json of the model, or assume='llama' if its family is Llama's."

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, kw_only=True)
class Header:
    """The shapes by the names of the tensors, and how many bytes the file lacks of what its header promises."""

    shapes: Shapes
    missing: int


@dataclass(frozen=True, kw_only=True)
class Heads:
    """What shapes say of the heads of a model: ``rotated`` is a size that is certain, with what said so.

    ``candidates`` are sizes of a head that fit where none is certain; ``layouts`` those that models with such names of
    weights have.
    """

    layers: int
    rows: tuple[int, int] | None = None
    rotated: int | None = None
    why: str = ""
    candidates: tuple[int, ...] = ()
    layouts: tuple[str, ...] = ()


def recognises(head: bytes) -> bool:
    """Whether a file that begins so is a safetensors file: a length below 2^40, then a dict."""
    return head[8:9] == b"{" and int.from_bytes(head[:8], "little") < 2**40


def read(path: Path, assume: str | None = None) -> Reading:
    """The reading of a safetensors file, by the config.json beside it where there is one."""
    header = read_header(path)
    heads = heads_of(header.shapes)
    short = (f"the file ends {header.missing:,} bytes before its weights do",) if header.missing else ()
    if kind_of(path.parent / "config.json") == "file":
        from whorl.dialects.detect import read_config  # which knows this dialect among the others

        reading = read_config(read_json(find_document(path.parent).path), assume)
        return dataclasses.replace(reading, notes=(*reading.notes, *_against(reading, heads), *short))
    if heads is None:
        raise WhorlError(
            f"read: {shown(str(path))} has no weights of queries and keys under a name that is known. "
            "Pass the config.json of the model."
        )
    if assume is not None and heads.rotated is not None:
        reading = transformers_model.read({"head_dim": heads.rotated, "num_hidden_layers": heads.layers}, assume)
        return dataclasses.replace(reading, dialect="safetensors", notes=(*_said(heads), *short))
    unsaid = "a rotation, or none: the header of a safetensors file has no base, no scaling and no family"
    return Reading(
        dialect="safetensors",
        standing="unknown",
        layers=(Layers(indices=tuple(range(heads.layers)), unsupported=(f"{unsaid}. {ALONE}",)),),
        notes=(*_said(heads), *short),
    )


def read_header(path: Path) -> Header:
    """The header of a safetensors file, every shape checked."""
    size = int.from_bytes(read_bytes(path, at_most=8), "little")
    if not 2 <= size <= LARGEST_HEADER:
        _refuse(path, f"it claims a header of {size:,} bytes, where {LARGEST_HEADER:,} are allowed")
    data = read_bytes(path, at_most=size, start=8)
    if len(data) < size:
        _refuse(path, f"it ends within its header, {size - len(data):,} bytes early")
    shapes, end = {}, 0
    for name, record in parse_json(data, f"the header of {shown(str(path))}").items():
        if name == "__metadata__":
            continue
        shape, places = _checked(path, name, record)
        shapes[name], end = shape, max(end, places[1])
    try:
        held = path.stat().st_size - 8 - size
    except OSError as error:
        _refuse(path, f"it cannot be measured: {error.strerror}")
    return Header(shapes=shapes, missing=max(0, end - held))


def _checked(path: Path, name: str, record: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    fields = record if isinstance(record, dict) else {}
    shape, places = (_sizes(fields.get(key)) for key in ("shape", "data_offsets"))
    if shape is None or places is None or len(places) != 2 or places[0] > places[1]:
        _refuse(path, f"the tensor {shown(name)} has no shape and place, but {shown(record)}")
    return shape, places


def _sizes(values: Any) -> tuple[int, ...] | None:
    """The sizes of a list; None for what is no list of sizes."""
    fine = isinstance(values, list) and all(type(one) is int and 0 <= one < MOST_SIZE for one in values)
    return tuple(values) if fine else None


def _refuse(path: Path, why: str) -> NoReturn:
    raise WhorlError(
        f"read: {shown(str(path))} is not a safetensors file that can be trusted: {why}. Download it again."
    )


# --- what shapes say


def heads_of(shapes: Shapes) -> Heads | None:
    """What the weights of the first layer that has attention say of its heads; None where none has a known name.

    >>> heads_of({"model.layers.0.self_attn.q_proj.weight": (2048, 1024),
    ...           "model.layers.0.self_attn.k_proj.weight": (1024, 1024),
    ...           "model.layers.0.self_attn.q_norm.weight": (128,)}).rotated
    128
    """
    by_layer: dict[int, dict[str, tuple[int, ...]]] = {}
    for name, shape in shapes.items():
        found = LAYER.search(name)
        if found is not None and int(found[1]) < MOST_LAYERS:
            by_layer.setdefault(int(found[1]), {})[found[2]] = shape
    count = max(by_layer, default=-1) + 1
    for index in sorted(by_layer):
        found = _latent(by_layer[index], count) or _separate(by_layer[index], count)
        if found is not None:
            return found
    return None


def _latent(layer: Shapes, count: int) -> Heads | None:
    for joined, latent in LATENT:
        both, alone = layer.get(joined, ()), layer.get(latent, ())
        if len(both) == 2 and len(alone) == 1 and both[0] > alone[0]:
            why = f"{joined} has {both[0]} rows and {latent} {alone[0]}"
            return Heads(layers=count, rotated=both[0] - alone[0], why=why, layouts=("interleaved",))
    return None


def _separate(layer: Shapes, count: int) -> Heads | None:
    for names, layouts in ((TRANSFORMERS, ("half", "interleaved")), (META, ("interleaved",))):
        queries, keys = (layer.get(name, ()) for name in names)
        if len(queries) != 2 or len(keys) != 2 or not queries[0] or not keys[0]:
            continue
        rows = (queries[0], keys[0])
        size, why = _certain(layer, rows)
        fitting = tuple(dim for dim in HEAD_DIMS if rows[0] % dim == rows[1] % dim == 0)
        candidates = fitting if size is None else ()
        return Heads(layers=count, rows=rows, rotated=size, why=why, candidates=candidates, layouts=layouts)
    return None


def _certain(layer: Shapes, rows: tuple[int, int]) -> tuple[int | None, str]:
    """The size of a head where a weight has one number for each of its dimensions, or one for each head."""
    for name in PER_HEAD:
        shape = layer.get(name, ())
        if len(shape) == 1 and 0 < shape[0] < min(rows) and rows[0] % shape[0] == rows[1] % shape[0] == 0:
            return shape[0], f"{name} has {shape[0]} numbers"
    sinks = layer.get(SINKS, ())
    if len(sinks) == 1 and sinks[0] and rows[0] % sinks[0] == 0:
        return rows[0] // sinks[0], f"{SINKS} has {sinks[0]} numbers for {rows[0]} rows of queries"
    return None, ""


def _said(heads: Heads) -> list[str]:
    """What was found, for a person to read."""
    if heads.rotated is not None:
        size = f"heads have {heads.rotated} dimensions that may be rotated, since {heads.why}"
    elif heads.candidates:
        size = f"heads have one of {', '.join(map(str, heads.candidates))} dimensions, to fit the rows {heads.rows}"
    else:
        size = f"no usual size of a head fits the rows of queries and keys, {heads.rows}"
    return [size, f"layouts that models with such names of weights have: {', '.join(heads.layouts)}"]


def _against(reading: Reading, heads: Heads | None) -> list[str]:
    """Where the shapes and the config beside them do not agree."""
    sizes = {one.value("head_dim") for group in reading.layers for one in group.encodings if "head_dim" in one.settings}
    found = []
    if heads is None or not sizes:
        return found
    if heads.rotated is not None and heads.rotated not in sizes:
        found.append(f"config.json has heads of {sorted(sizes)} dimensions, but {heads.why}")
    if heads.rows is not None and not any(type(size) is int and size and not heads.rows[0] % size for size in sizes):
        found.append(f"config.json has heads of {sorted(sizes)} dimensions, but queries have {heads.rows[0]} rows")
    return found
