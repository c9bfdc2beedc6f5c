"""SGLang: ``--context-length``, and ``--json-model-override-args`` where it would read the file otherwise."""

from __future__ import annotations

from whorl.bridge.exports.draft import Draft, Origin
from whorl.bridge.exports.overrides import option, served
from whorl.bridge.programs.sglang import SGLANG


def flags(origin: Origin) -> Draft:
    """The command that serves the model with its own positions."""

    def command(overrides: dict) -> list[str]:
        length = [] if origin.length is None else ["--context-length", str(origin.length)]
        start = ["python", "-m", "sglang.launch_server", "--model-path", origin.name]
        return [*start, *length, *option("--json-model-override-args", overrides)]

    return served(origin, "sglang", SGLANG, command)
