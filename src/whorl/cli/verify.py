"""``whorl verify``: the ledger of claims, computed now."""

from pathlib import Path
from typing import Annotated

import typer

from whorl import registry
from whorl.cli.lists import complete_encoding
from whorl.cli.options import Json
from whorl.cli.output import json_text, note, say, say_json, say_table, suggest, write_out
from whorl.errors import WhorlError, unknown
from whorl.plugins import load_plugin


def verify(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ENCODING…",
            help="Encodings by name, or a .py file that registers one; the whole ledger if none is given.",
            autocompletion=complete_encoding,
        ),
    ] = None,
    report: Annotated[Path | None, typer.Option(help="A file for all of it: .md, or .json.")] = None,
    lang: Annotated[str, typer.Option(help="The language of table and report: en or zh. JSON holds both.")] = "en",
    as_json: Json = False,
) -> None:
    """What is claimed of encodings, measured. Exits 1 where a verdict is not the expected one."""
    if report is not None and report.suffix not in (".md", ".json"):
        raise WhorlError(f"verify: --report must end in .md or .json, got {str(report)!r}.")
    if lang not in ("en", "zh"):
        raise unknown("language", lang, ("en", "zh"), call="verify")
    asked = [encoding for name in names or [] for encoding in encodings_of(name)]
    from whorl.claims import schema
    from whorl.claims import verify as run
    from whorl.claims.report import markdown, numbers_in_short, rows_of, summary, verdict_of, word

    document = schema.document(run(asked or None))
    if report is not None:
        text = json_text(document) + "\n" if report.suffix == ".json" else markdown(document, lang)
        write_out(report, text, "verify", "--report")
        note(f"written to {report}")
    if as_json:
        say_json(document)
    else:
        rows = [
            (claim["id"], verdict_of(claim, lang), numbers_in_short(claim["numbers"]), claim["statement"][lang])
            for claim in rows_of(document)
        ]
        say_table([word(key, lang) for key in ("claim", "verdict", "values", "statement")], rows)
        say()
        say(f"{summary(document, lang)} {document['seconds']:.1f} s.")
        suggest("whorl verify --report claims.md")
    if document["unexpected"]:
        raise typer.Exit(1)


def encodings_of(name: str) -> list[str]:
    """The registered names that an argument stands for: itself, or those that a file registers."""
    if not name.endswith(".py"):
        registry.encoding_class(name)  # an unknown name is answered before anything is computed
        return [name]
    return load_plugin(name, call="verify")
