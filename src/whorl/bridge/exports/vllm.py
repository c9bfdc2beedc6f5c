"""vLLM: ``--max-model-len``, and ``--hf-overrides`` where it would read the file otherwise."""

from __future__ import annotations

from whorl.bridge.exports.draft import Draft, Origin
from whorl.bridge.exports.overrides import option, served
from whorl.bridge.programs.vllm import VLLM


def flags(origin: Origin) -> Draft:
    """The command that serves the model with its own positions."""

    def command(overrides: dict) -> list[str]:
        length = [] if origin.length is None else ["--max-model-len", str(origin.length)]
        return ["vllm", "serve", origin.name, *length, *option("--hf-overrides", overrides)]

    return served(origin, "vllm", VLLM, command)
