"""``whorl list``: every encoding and scaling in the registry."""

import dataclasses
import inspect
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from whorl import registry
from whorl.cli import examples
from whorl.cli.output import say, say_json, say_table, suggest
from whorl.cli.plugins import Plugin
from whorl.errors import WhorlError

if TYPE_CHECKING:
    from whorl.encodings.base import Encoding


def list_all(
    plugin: Plugin = None,
    as_table: Annotated[bool, typer.Option("--table", help="Compare encodings side by side, as Markdown.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="JSON on stdout.")] = False,
) -> None:
    """Every encoding and every scaling."""
    if as_table:
        from whorl.claims.overview import compare_all, markdown

        rows = compare_all()
        if as_json:
            say_json(rows)
        else:
            say(markdown(rows))
        return
    encodings = [describe_encoding(name) for name in registry.names()]
    scalings = [describe_scaling(name) for name in sorted(registry.SCALINGS)]
    if as_json:
        say_json({"encodings": encodings, "scalings": scalings})
        return
    rows = [
        (row["name"], row["summary"], enters(row["enters"]), parameters(row["parameters"]), claims(row["claims"]))
        for row in encodings
    ]
    say_table(("encoding", "what it is", "position enters", "parameters", "claims"), rows)
    say()
    rows = [(row["name"], row["summary"], "yes" if row["length_dependent"] else "no") for row in scalings]
    say_table(("scaling", "what it does", "depends on the length served"), rows)
    suggest("whorl show rope")


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


def enters(hooks: list[str]) -> str:
    from whorl.claims.overview import places  # which needs torch

    return places(hooks)


def parameters(shapes: dict[str, list[int]] | None) -> str:
    if shapes is None:
        return "?"
    return ", ".join(f"{name} {'×'.join(map(str, shape))}" for name, shape in shapes.items()) or "none"


def claims(stated: dict[str, bool] | None) -> str:
    if stated is None:
        return "?"
    return ", ".join(name.replace("_", " ") for name, holds in stated.items() if holds) or "none"
