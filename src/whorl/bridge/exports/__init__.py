"""Exports: a model's positions written for one program, checked by reading them back as that program.

file ─► reading ─► what the target is given ─► read back as the target has it ─► equal, or refused with the difference
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from whorl.bridge.difference import compare, sentence
from whorl.bridge.exports import gguf, hf, llama_cpp, megatron, params, sglang, vllm
from whorl.bridge.exports.draft import Draft, Origin, origin_of
from whorl.bridge.inexpressible import InexpressibleError
from whorl.errors import WhorlError, check_counts, unknown

# The target "onnx" is a file of its own with an extra, and gives a model instead of text: whorl.bridge.exports.onnx.
TARGETS: dict[str, Callable[[Origin], Draft]] = {
    "hf-v4": hf.version_4,
    "hf-v5": hf.version_5,
    "hf-both": hf.both,
    "vllm": vllm.flags,
    "sglang": sglang.flags,
    "llama.cpp": llama_cpp.flags,
    "gguf": gguf.keys,
    "megatron": megatron.arguments,
    "params": params.file,
}
SERVERS = ("vllm", "sglang", "llama.cpp")
ONNX = "onnx"


def export(
    source: str | Path | Mapping[str, Any], target: str, *, length: int | None = None, assume: str | None = None
) -> Draft:
    """What to give a program so that it computes the positions of this model, or a WhorlError that says why not.

    ``length`` is what it is to serve, by default the length that the file claims. A target that cannot express the
    positions raises ``InexpressibleError`` with the numbers of its nearest form.

    >>> config = {"model_type": "llama", "head_dim": 64, "num_hidden_layers": 2, "max_position_embeddings": 4096}
    >>> export({**config, "rope_theta": 500000.0}, "hf-v5").data["rope_parameters"]
    {'rope_type': 'default', 'rope_theta': 500000.0}
    """
    if target == ONNX:
        raise WhorlError("export: onnx gives a model in place of text. Use whorl.bridge.export_onnx, or --out FILE.")
    if target not in TARGETS:
        raise unknown("target of export:", target, (*TARGETS, ONNX))
    if length is not None:
        check_counts("export", length=length)
        if target not in SERVERS:
            raise WhorlError(f"export: --length is for programs that serve ({', '.join(SERVERS)}). Leave it out.")
    return write(origin_of(source, length, assume), target)


def write(origin: Origin, target: str) -> Draft:
    """The draft for a target, once the program has been seen to read it as it is meant."""
    draft = TARGETS[target](origin)
    for program, reading in draft.readings.items():
        found = compare(
            origin.reading, reading, labels=("the file", program), length=origin.length, layouts=not draft.moves_rows
        )
        if not found.equal:
            raise InexpressibleError(
                f"export: {target} cannot say this. In its nearest form {program} has {sentence(found)}."
                f"{' ' + draft.remedy if draft.remedy else ''}",
                found,
            )
    return draft
