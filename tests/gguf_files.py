"""GGUF files for tests, written by the package of llama.cpp itself."""

from pathlib import Path
from typing import Any

import numpy as np

from optional import optional

SIZES = {
    **{"context_length": 4096, "embedding_length": 4096, "block_count": 4, "attention.head_count": 32},
    "attention.head_count_kv": 8,
}


def write_gguf(
    path: Path, architecture: str, fields: dict[str, Any], tensors: dict[str, Any] | None = None, **kwargs: Any
) -> Path:
    """A file with these fields after the name of the architecture, each in the type of its Python value."""
    gguf = optional("gguf")
    writer = gguf.GGUFWriter(path, architecture, **kwargs)
    for name, value in fields.items():
        _add(writer, f"{architecture}.{name}", value)
    for name, values in (tensors or {}).items():
        writer.add_tensor(name, np.asarray(values, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: Any, key: str, value: Any) -> None:
    kinds = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    kinds.get(type(value), writer.add_array)(key, value)
