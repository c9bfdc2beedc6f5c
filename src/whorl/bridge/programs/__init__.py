"""Programs: how each one reads a transformers config, with the version it was read in and where.

A file says one thing and programs compute several: which fields they look at, what they make of them, and which length
they promise. ``read_as`` gives the reading of a file as one program has it; the rows behind it are ``facts()``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from whorl.bridge.model import warn_of_unknown
from whorl.bridge.programs.llama_cpp import LLAMA_CPP
from whorl.bridge.programs.mlx import MLX
from whorl.bridge.programs.program import Program
from whorl.bridge.programs.sglang import SGLANG
from whorl.bridge.programs.transformers import TRANSFORMERS_4, TRANSFORMERS_5
from whorl.bridge.programs.vllm import VLLM
from whorl.dialects import gguf
from whorl.dialects.detect import JSON_DIALECTS, load, read_loaded
from whorl.dialects.reading import Reading
from whorl.errors import WhorlError, unknown

PROGRAMS: dict[str, Program] = {one.name: one for one in (TRANSFORMERS_4, TRANSFORMERS_5, VLLM, SGLANG, LLAMA_CPP, MLX)}
HEADER = ("program", "field", "what it does", "read in")


def program_of(name: str) -> Program:
    """The program of this name, or a WhorlError that lists them."""
    if name not in PROGRAMS:
        raise unknown("program", name, PROGRAMS)
    return PROGRAMS[name]


def read_as(
    source: str | Path | Mapping[str, Any], program: str, *, length: int | None = None, assume: str | None = None
) -> Reading:
    """The reading of a file as this program has it, where it serves ``length`` positions or what it would by itself.

    >>> config = {"model_type": "llama", "head_dim": 64, "num_hidden_layers": 2, "max_position_embeddings": 4096}
    >>> rope = {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}
    >>> read_as({**config, **rope}, "transformers4").layers[0].encodings[0].value("base")
    10000.0
    """
    by, loaded = program_of(program), load(source)
    if not isinstance(loaded, dict):
        if by is not LLAMA_CPP or loaded.dialect.read is not gguf.read:
            raise WhorlError(
                f"read: {by.name} reads no {loaded.dialect.name} file as whorl knows it. Pass config.json."
            )
        return read_loaded(loaded, assume)
    dialect = next(one for one in JSON_DIALECTS if one.recognises(loaded))
    if dialect.name != "transformers":
        raise WhorlError(
            f"read: {by.name} is asked to read a {dialect.name} file. Pass config.json, or leave --as out."
        )
    reading = by.read(loaded, length, assume)
    warn_of_unknown(reading, assume)
    return reading


def facts() -> list[dict[str, str]]:
    """What each program does with a field, one row each: the program and its version, the field, and where it was read.

    >>> sorted({row["program"].partition(" ")[0] for row in facts()})
    ['SGLang', 'llama.cpp', 'mlx-lm', 'transformers', 'vLLM']
    """
    return [
        dict(zip(HEADER, (f"{one.title} {one.version}", fact.field, fact.does, fact.where), strict=True))
        for one in PROGRAMS.values()
        for fact in one.facts
    ]


def versions_markdown() -> str:
    """The programs with their versions and repositories as Markdown, for the documentation."""
    lines = ["| `--as` | program | version | read in |", "|---|---|---|---|"]
    rows = (f"| `{one.name}` | {one.title} | {one.version} | {one.repository} |" for one in PROGRAMS.values())
    return "\n".join([*lines, *rows])


def markdown() -> str:
    """The table as Markdown, for the documentation."""
    lines = [f"| {' | '.join(HEADER)} |", f"|{'---|' * len(HEADER)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row[name] for name in HEADER)} |" for row in facts())])
