"""``whorl export``: a model's positions written for one program."""

from pathlib import Path
from typing import Annotated

import typer

from whorl.cli.options import Assume, ModelFile
from whorl.cli.output import note, refuse_existing, say_json, say_lines, warnings_as_notes, write_out
from whorl.errors import WhorlError


def export(
    path: ModelFile,
    target: Annotated[
        str,
        typer.Option(
            "--for", help="hf-v4, hf-v5, hf-both, vllm, sglang, llama.cpp, gguf, megatron, params (Meta's) or onnx."
        ),
    ],
    length: Annotated[int | None, typer.Option(help="Positions to serve; else what the file claims.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write it to this file, which must not exist.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON on stdout, with notes.")] = False,
    assume: Assume = None,
) -> None:
    """The file, flags or JSON that make a program compute this model's positions, read back before it is printed.

    Exits 0 where it does, 1 where the program cannot express them, 2 where the file cannot be read.
    """
    from whorl.bridge.exports import ONNX
    from whorl.bridge.exports import export as write
    from whorl.bridge.inexpressible import InexpressibleError

    refuse_existing(out, "export")
    try:
        with warnings_as_notes():
            if target == ONNX:
                _write_onnx(path, length, out, assume)
                return
            draft = write(path, target, length=length, assume=assume)
    except InexpressibleError as error:
        note(str(error))
        raise typer.Exit(1) from None
    for text in draft.notes:
        if not as_json:
            note(f"note: {text}")
    if out is not None:
        write_out(out, draft.text + "\n", "export")
    if as_json:
        say_json({"target": draft.target, "data": draft.data, "text": draft.text, "notes": list(draft.notes)})
    elif out is None:
        say_lines(draft.text)


def _write_onnx(path: str, length: int | None, out: Path | None, assume: str | None) -> None:
    from whorl.bridge.exports.onnx import export_onnx

    if out is None:
        raise WhorlError("export: onnx is a binary file. Pass --out rotary.onnx.")
    write_out(out, export_onnx(path, length=length, assume=assume).SerializeToString(), "export")
