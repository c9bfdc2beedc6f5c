"""GGUF: the metadata keys and rope tensors that make llama.cpp compute a model's positions."""

from __future__ import annotations

from whorl.bridge.exports.draft import Draft, Origin, json_text
from whorl.bridge.gguf_keys import keys_of, scaling_keys

NO_KEY = "llama.cpp has no key for the rest."


def keys(origin: Origin) -> Draft:
    """The keys and tensors as JSON; the rest of the file is the converter's."""
    written = keys_of(origin.reading, origin.fields, scaling_keys)
    data = {"metadata": dict(written.metadata), "tensors": dict(written.tensors)}
    return Draft(
        target="gguf",
        text=json_text(data),
        data=data,
        notes=origin.notes,
        readings={"llama.cpp": written.reading()},
        moves_rows=True,
        remedy=NO_KEY,
    )
