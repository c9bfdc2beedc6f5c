"""llama.cpp: flags beside a GGUF file that its converter has made of the model.

Read in llama.cpp b21e4de, common/arg.cpp. No flag sets a tensor, so lists and divisors for pairs have to be in
the file. Ollama, read at fb30760: docs/modelfile.mdx and api/types.go have num_ctx and nothing about the rotation.
"""

from __future__ import annotations

import shlex
from typing import Any

from whorl.bridge.difference import compare
from whorl.bridge.exports.draft import Draft, Origin
from whorl.bridge.exports.gguf import NO_KEY
from whorl.bridge.gguf_keys import GgufKeys, keys_of, scaling_keys
from whorl.bridge.programs.llama_cpp import converted_keys

FLAGS = {
    "rope.scaling.type": "--rope-scaling",
    "rope.scaling.factor": "--rope-scale",
    "rope.scaling.original_context_length": "--yarn-orig-ctx",
    "rope.freq_base": "--rope-freq-base",
}
TYPES = {bool: "bool", int: "int", float: "float", str: "str"}
NEEDS_FILE = "No flag sets a tensor: write the keys into the file, as whorl export --for gguf prints them."
OLLAMA_PLAIN = "Ollama: PARAMETER num_ctx {} in a Modelfile, which can say no more about positions, and here need not"
OLLAMA = (
    "Ollama: a Modelfile can say PARAMETER num_ctx {} and nothing of the rotation; write the keys into the GGUF file "
    "(whorl export --for gguf)"
)


def flags(origin: Origin) -> Draft:
    """The flags that make llama.cpp compute the model's positions with the file that its converter writes."""
    converted = converted_keys(origin.config, origin.assume, "export")
    wanted = keys_of(origin.reading, origin.fields, scaling_keys)
    apart = {} if _same(origin, converted) else _apart(converted, wanted)
    words: list[str] = [] if origin.length is None else ["--ctx-size", str(origin.length)]
    for key, value in apart.items():
        words += _words(key, value, wanted.architecture)
    meant = GgufKeys(
        architecture=wanted.architecture,
        metadata={**converted.metadata, **apart, **_length(wanted)},
        tensors=converted.tensors,
    )
    said = (OLLAMA if apart else OLLAMA_PLAIN).format(origin.length) if origin.length is not None else ""
    return Draft(
        target="llama.cpp",
        text=" ".join(shlex.quote(word) for word in ["llama-server", "--model", "MODEL.gguf", *words]),
        data={"arguments": words},
        notes=(*origin.notes, *([said] if said else [])),
        readings={"llama.cpp": meant.reading()},
        moves_rows=True,
        remedy=NEEDS_FILE if wanted.tensors != converted.tensors else NO_KEY,
    )


def _same(origin: Origin, converted: GgufKeys) -> bool:
    """Whether the converter's file needs no flag for the rotation."""
    found = compare(origin.reading, converted.reading(), length=origin.length, layouts=False)
    return all(one.equal for one in found.groups)


def _apart(converted: GgufKeys, wanted: GgufKeys) -> dict[str, Any]:
    """The values that the converter's file has otherwise than it should."""
    apart = {
        key: value
        for key, value in wanted.metadata.items()
        if converted.metadata.get(key) != value and type(value) in TYPES and not key.endswith(".context_length")
    }
    log = f"{wanted.architecture}.rope.scaling.yarn_log_multiplier"  # acts beside attn_factor
    return apart | ({log: 0.0} if log in converted.metadata and log not in wanted.metadata else {})


def _length(wanted: GgufKeys) -> dict[str, Any]:
    key = f"{wanted.architecture}.context_length"
    return {key: wanted.metadata[key]} if key in wanted.metadata else {}


def _words(key: str, value: Any, architecture: str) -> list[str]:
    said = f"{value:.9g}" if type(value) is float else str(value)
    flag = FLAGS.get(key.removeprefix(f"{architecture}."))
    return ["--override-kv", f"{key}={TYPES[type(value)]}:{said}"] if flag is None else [flag, said]
