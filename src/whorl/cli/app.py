"""The commands in one place, and how they end: 0 fine, 1 a check failed, 2 misuse.

Nothing here or at the top of a command's file imports torch, so that help and completion are instant. Nor do the files
of commands import annotations from the future: typer evaluates each one that is a string four times, for every command,
before any of them runs.
"""

from collections.abc import Sequence
from typing import Annotated

import typer
from typer.main import get_command

from whorl import __version__
from whorl.cli import advise, bench, compare, diff, doctor, export, families, inspect, lab, listing, plot, show, verify
from whorl.cli.output import note
from whorl.errors import WhorlError

app = typer.Typer(
    name="whorl",
    help="Position encodings of transformers: list them, look inside one, measure.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich help costs as much time as everything else
)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"whorl {__version__}")
        raise typer.Exit


@app.callback(epilog="Start with: whorl list")
def whorl(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Position encodings of transformers: list them, look inside one, measure."""


app.command("list")(listing.list_all)
app.command("show")(show.show)
app.command("inspect")(inspect.inspect)
app.command("diff")(diff.diff)
app.command("export")(export.export)
app.command("advise")(advise.advise)
app.command("families")(families.families)
app.command("plot", epilog=plot.HELP)(plot.plot)
app.command("verify")(verify.verify)
app.command("compare")(compare.compare)
app.add_typer(lab.lab)
app.command("bench")(bench.bench)
app.command("doctor")(doctor.doctor)


def run(arguments: Sequence[str] | None = None) -> int:
    """The exit status of these arguments, of the process's own where None.

    A WhorlError is the user's to mend, so its text is the whole answer; anything else is ours and keeps its traceback.
    """
    command = get_command(app)
    try:
        ended = command.main(args=None if arguments is None else list(arguments), prog_name="whorl")
    except WhorlError as error:
        note(str(error))
        return 2
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return ended if isinstance(ended, int) else 0
