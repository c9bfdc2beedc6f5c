"""``whorl advise``: what to set for a longer context, for each program."""

from typing import Annotated

import typer

from whorl.cli.options import Assume, Json, ModelFile
from whorl.cli.output import say, say_json, say_lines, warnings_as_notes


def advise(
    path: ModelFile,
    length: Annotated[int, typer.Option(help="Positions to be served.")],
    data_length: Annotated[
        int | None, typer.Option(help="The longest text that it was trained on, where less than the file says.")
    ] = None,
    fine_tune: Annotated[bool, typer.Option("--fine-tune", help="Training at the new length follows.")] = False,
    program: Annotated[
        str | None,
        typer.Option("--for", help="Only this one: hf-both, vllm, sglang, llama.cpp, gguf, megatron, params."),
    ] = None,
    as_json: Json = False,
    assume: Assume = None,
) -> None:
    """Which scaling to set for a longer context and why, what it costs at the old one, and the change for each program.

    Exits 0 with an advice, 1 where the program that was named has no form for it, 2 where there is none.
    """
    from whorl.bridge.advice import PROGRAMS
    from whorl.bridge.advice import advise as advice_for
    from whorl.errors import unknown

    if program is not None and program not in PROGRAMS:
        raise unknown("program of advise:", program, PROGRAMS)
    with warnings_as_notes():
        found = advice_for(path, length=length, data_length=data_length, fine_tune=fine_tune, assume=assume)
    refused = program is not None and program in found.refusals
    if as_json:
        say_json(found.to_dict())
    else:
        say(f"for {found.length} positions: {found.scheme}" + (f" by {found.factor:g}" if found.factor > 1 else ""))
        for text in (*found.reasons, *(f"cost: {one}" for one in found.cost)):
            say(f"    {text}")
        for name, text in found.changes.items():
            if program in (None, name):
                say()
                say(f"{name}:")
                say_lines(text)
        for name, text in found.refusals.items():
            if program in (None, name):
                say()
                say(f"{name}: {text}")
    if refused:
        raise typer.Exit(1)
