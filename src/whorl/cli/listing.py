"""``whorl list``: every encoding and scaling in the registry."""

import dataclasses
import inspect
import math
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from whorl import registry
from whorl.cli import examples
from whorl.cli.options import Json
from whorl.cli.output import on_terminal, say, say_json, say_lines, say_table, suggest
from whorl.cli.plugins import Plugin
from whorl.errors import WhorlError

if TYPE_CHECKING:
    from whorl.encodings.base import Encoding

WHAT, ENTERS, DOES = 38, 19, 75  # letters of a column, so that a line has at most 100

# Columns of the comparison that a terminal has no room for.
WIDE = ("family", "position enters", "KV cache", "bidirectional", "memory", "remark")


def list_all(
    plugin: Plugin = None,
    as_table: Annotated[
        bool, typer.Option("--table", help="Compare encodings side by side; in a pipe as Markdown.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Every encoding and every scaling."""
    if as_table:
        compare(as_json)
        return
    encodings = [describe_encoding(name) for name in registry.names()]
    scalings = [describe_scaling(name) for name in sorted(registry.SCALINGS)]
    if as_json:
        say_json({"encodings": encodings, "scalings": scalings})
        return
    rows = [
        (
            row["name"],
            cut(row["summary"], WHAT),
            cut(enters(row), ENTERS),
            "?" if row["parameters"] is None else f"{sum(map(math.prod, row['parameters'].values())):,}",
            "?" if row["claims"] is None else "yes" if row["claims"]["relative"] else "no",
        )
        for row in encodings
    ]
    say_table(("encoding", "what it is", "position enters", "parameters", "relative"), rows, right=("parameters",))
    say(f"parameters: of {sizes()}")
    if not on_terminal():  # where the second header has a rule, and a screen has few lines
        say()
    rows = [(row["name"], cut(row["summary"], DOES), "yes" if row["length_dependent"] else "no") for row in scalings]
    say_table(("scaling", "what it does", "by length"), rows)
    suggest("whorl list --table, or whorl show rope")


def compare(as_json: bool) -> None:
    """Says the table of all encodings: to a terminal in the columns that fit one, to a pipe as Markdown."""
    from whorl.claims import overview  # which needs torch

    rows = overview.compare_all()
    if as_json:
        say_json(rows)
    elif on_terminal():
        header = [name for name in rows[0] if name not in WIDE]
        shown = [overview.cells({name: row[name] for name in header}) for row in rows]
        say_table(header, shown, right=("extrapolates", "parameters", "time"))
        say()
        for line in overview.how_to_read():
            say(line)
        suggest("whorl list --table | cat, which has every column")
    else:
        say_lines(overview.markdown(rows))


def cut(text: str, width: int) -> str:
    """The text in at most so many letters, without marks of code: up to its colon, or whole words and a sign.

    >>> cut("A window, and the first ``count`` positions", 40), cut("A window, and the first ``count`` positions", 26)
    ('A window, and the first count positions', 'A window, and the first …')
    >>> cut("T5's relative bias: one learned number per head", 26)
    "T5's relative bias"
    """
    text = text.replace("``", "")
    if len(text) <= width:
        return text
    head, colon, _ = text.partition(":")
    if colon and width // 2 <= len(head) <= width:
        return head
    return text[: width - 1].rpartition(" ")[0].rstrip(",:") + " …"


def describe_encoding(name: str) -> dict[str, Any]:
    """The facts of an encoding at example sizes, as JSON-ready data.

    One that needs more settings than a model's sizes has None for what depends on them.
    """
    cls = registry.encoding_class(name)
    out: dict[str, Any] = {"name": name, "summary": summary(cls), "enters": list(cls.enters())}
    try:
        encoding, filled = examples.build(name)
    except WhorlError:
        return out | {"example": None, "parameters": None, "claims": None, "length_dependent": None}
    return out | {"example": filled} | facts(encoding)


def facts(encoding: "Encoding") -> dict[str, Any]:
    """The hooks of an encoding, the shapes of its parameters, and its claims."""
    return {
        "enters": list(encoding.enters()),
        "parameters": {key: list(tensor.shape) for key, tensor in encoding.named_parameters()},
        "claims": dataclasses.asdict(encoding.claims),
        "queries_only": encoding.scales_queries_only,
        "length_dependent": encoding.length_dependent,
    }


def describe_scaling(name: str) -> dict[str, Any]:
    cls = registry.scaling_class(name)
    return {"name": name, "summary": summary(cls), "length_dependent": cls.length_dependent}


def description(cls: type) -> str:
    """The text that explains a class: its file's docstring where a file of whorl holds it alone, its own elsewhere."""
    housemates = [path for path in registry.ENCODINGS.values() if str(path).startswith(f"{cls.__module__}:")]
    alone = cls.__module__.startswith("whorl.") and len(housemates) <= 1
    home = sys.modules[cls.__module__] if alone else cls
    return inspect.cleandoc(home.__doc__ or cls.__doc__ or "")


def summary(cls: type) -> str:
    """The first line of the text that explains a class, without its full stop."""
    return description(cls).partition("\n")[0].removesuffix(".")


def enters(facts: dict[str, Any]) -> str:
    from whorl.claims.overview import places  # which needs torch

    return places(facts["enters"], facts.get("queries_only", False))


def sizes() -> str:
    from whorl.claims import overview  # which needs torch

    return overview.sizes()


def parameters(shapes: dict[str, list[int]]) -> str:
    return ", ".join(f"{name} {'×'.join(map(str, shape))}" for name, shape in shapes.items()) or "none"


def claims(stated: dict[str, bool]) -> str:
    return ", ".join(name.replace("_", " ") for name, holds in stated.items() if holds) or "none"
