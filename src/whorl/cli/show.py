"""``whorl show NAME``: one encoding or scaling from the inside: formula, settings, frequencies, factors."""

import itertools
import math
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from whorl import registry
from whorl.cli import examples, listing
from whorl.cli.lists import completing
from whorl.cli.output import GAP, note, say, say_json, say_lines, say_table, suggest
from whorl.cli.plugins import Plugin
from whorl.config import written
from whorl.errors import WhorlError, invalid, unknown

if TYPE_CHECKING:
    from whorl.encodings.base import Encoding
    from whorl.encodings.rotary import Rotary

ENDS = 3  # pairs shown at each end


complete_name = completing(lambda: (*registry.names(), *registry.SCALINGS))
complete_scaling = completing(lambda: registry.SCALINGS)


def show(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="An encoding or a scaling; see whorl list.", autocompletion=complete_name),
    ],
    head_dim: Annotated[int | None, typer.Option(help="Dimensions of a head.")] = None,
    base: Annotated[float | None, typer.Option(help="Base of the frequencies.")] = None,
    scaling: Annotated[
        str | None, typer.Option(metavar="NAME", help="A scaling, such as yarn.", autocompletion=complete_scaling)
    ] = None,
    factor: Annotated[float | None, typer.Option(help="The scaling's factor.")] = None,
    original_length: Annotated[int | None, typer.Option(help="The length trained on.")] = None,
    length: Annotated[int | None, typer.Option(help="The length to serve.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any setting, as in --set scaling.beta_fast=16."),
    ] = None,
    plugin: Plugin = None,
    every: Annotated[bool, typer.Option("--all", help="Every pair, not only where something happens.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="JSON on stdout, every pair.")] = False,
) -> None:
    """One encoding: formula, wavelengths, factors."""
    given = parse_settings(settings or [], "show")
    options = {"head_dim": head_dim, "base": base, "scaling.name": scaling}
    options |= {"scaling.factor": factor, "scaling.original_length": original_length}
    for key, value in options.items():
        option = key.removesuffix(".name").removeprefix("scaling.").replace("_", "-")
        add_setting(given, key, value, f"--{option}")
    encoding, filled = build(name, given)
    answer = describe(encoding, length)
    if filled:
        example = ", ".join(f"{key}={_short(value)}" for key, value in filled.items())
        note(f"filled in as an example: {example}. Choose your own with --set.")
    if as_json:
        say_json({"name": name, "filled_in": filled} | answer)
        return
    print_description(name, answer, every)
    could_scale = answer["config"].get("scaling", "has none") is None
    suggest(f"whorl show {name} --scaling yarn --factor 4" if could_scale else "whorl bench tables")


def build(name: str, given: dict[str, Any]) -> "tuple[Encoding, dict[str, Any]]":
    """The encoding of that name, or a rope with the scaling of that name, and what was filled in."""
    settings = {key: value for key, value in given.items() if not key.startswith("scaling.")}
    scaling = {key.removeprefix("scaling."): value for key, value in given.items() if key not in settings}
    if "scaling" in settings:
        whole = settings.pop("scaling")  # a name, the dict of to_dict(), or null
        if whole is None and scaling:
            raise WhorlError("show: scaling=null leaves its settings without a scaling. Leave one of them out.")
        whole = whole if isinstance(whole, dict) else {"name": whole} if whole is not None else {}
        for key, value in whole.items():
            add_setting(scaling, key, value, f"scaling={_short(whole)}")
    if name in registry.ENCODINGS:
        return examples.build(name, settings, scaling or None)
    if name not in registry.SCALINGS:
        raise unknown("encoding or scaling", name, (*registry.ENCODINGS, *registry.SCALINGS))
    if scaling.setdefault("name", name) != name:
        raise WhorlError(f"show: {name} is a scaling already, got another, {scaling['name']!r}. Leave --scaling out.")
    return examples.build("rope", settings, scaling)


def parse_settings(pairs: list[str], call: str) -> dict[str, Any]:
    """The settings of ``--set key=value …``, each value as JSON where it is JSON, else as a string.

    >>> parse_settings(["layout=half", "rotary_dim=64", "scaling.truncate=false"], "show")
    {'layout': 'half', 'rotary_dim': 64, 'scaling.truncate': False}
    """
    out: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise invalid(call, "--set", "key=value", pair, "As in --set layout=interleaved.")
        if key in out:
            raise WhorlError(f"{call}: --set {key} is given twice. Leave one out.")
        out[key] = written(text)
    return out


def add_setting(settings: dict[str, Any], key: str, value: Any, option: str) -> None:
    """Adds an option that was given; raises where ``--set`` says the same thing."""
    if value is None:
        return
    if key in settings:
        raise WhorlError(f"show: {option} and --set {key} both give {key}. Leave one out.")
    settings[key] = value


def describe(encoding: "Encoding", length: int | None = None) -> dict[str, Any]:
    """All that ``whorl show`` prints of an encoding, as JSON-ready data."""
    from whorl.encodings.rotary import Rotary

    out: dict[str, Any] = {**_texts(type(encoding)), "config": encoding.config.to_dict(), **listing.facts(encoding)}
    scaling = getattr(encoding.config, "scaling", None)
    if scaling is not None:
        out["scaling"] = {"name": scaling.name, **_texts(type(scaling))}
    if isinstance(encoding, Rotary):
        out |= describe_rotary(encoding, length)
    elif length is not None:
        raise WhorlError(
            f"show: --length would be ignored, {encoding.config.name} has no frequencies. Leave --length out."
        )
    return out


def _texts(cls: type) -> dict[str, Any]:
    """The description of an encoding or a scaling, its first line, and its formulas: the indented lines."""
    text = listing.description(cls)
    formulas = [line.strip() for line in text.splitlines() if line.startswith("    ")]
    return {"summary": listing.summary(cls), "description": text, "formula": formulas}


def describe_rotary(encoding: "Rotary", length: int | None) -> dict[str, Any]:
    """The factors and, for each pair, frequency, wavelength and turns within the context.

    The context is the length asked for, else the original length, else an example.
    """
    scaling = getattr(encoding.config, "scaling", None)
    original = getattr(scaling, "original_length", None)
    context = length or original or examples.CONTEXTS.get(encoding.config.name, examples.ORIGINAL_LENGTH)
    return {
        "length": length,
        "context": context,
        "context_is": "asked for" if length else "the original length" if original else "an example",
        "attention_factor": encoding.attention_factor(length),
        "softmax_factor": encoding.softmax_factor(length),
        "axes": encoding.config.axes,
        "pairs": pair_rows(encoding, length, context),
    }


def pair_rows(encoding: "Rotary", length: int | None, context: int) -> list[dict[str, Any]]:
    """One row for each frequency: its pair, its position axis, its head where heads differ.

    With a scaling it says how much slower the pair turns than without.
    """
    from whorl.analysis.scaling_changes import unscaled
    from whorl.rotary.frequencies import wavelengths

    frequencies = encoding.frequencies(length).detach()
    turns = wavelengths(frequencies.abs())
    scaled = getattr(encoding.config, "scaling", None) is not None
    plain = cast("Rotary", unscaled(encoding)).frequencies().detach() if scaled else None
    rows = []
    for at in itertools.product(*(range(size) for size in frequencies.shape)):
        w, turn = float(frequencies[at]), float(turns[at])
        row: dict[str, Any] = dict(zip(("axis", "head", "pair"), at, strict=False))
        if len(at) == 1:
            row = {"pair": at[0], "axis": encoding.config.axis_of_pair[at[0]]}
        row |= {"frequency": w, "wavelength": turn if math.isfinite(turn) else None, "turns": context / turn}
        if plain is not None:
            was = float(plain[at])
            row["slower"] = 1.0 if was == w else was / w if w else None
        rows.append(row)
    return rows


def print_description(name: str, answer: dict[str, Any], every: bool) -> None:
    described = [answer] if name == answer["config"]["name"] else []
    for part in (*described, *([answer["scaling"]] if "scaling" in answer else [])):
        say_lines(f"{part['description']}\n")
    config = dict(answer["config"])
    scaling = config.pop("scaling", None)
    say(f"settings          {_settings(config)}")
    if scaling:
        say(f"scaling           {_settings(scaling)}")
    say(f"position enters   {listing.enters(answer)}")
    say(f"parameters        {listing.parameters(answer['parameters'])}")
    say(f"claims            {listing.claims(answer['claims'])}")
    if "pairs" not in answer:
        return
    say(f"attention factor  {answer['attention_factor']:.6g}   multiplies cos and sin")
    say(f"softmax factor    {answer['softmax_factor']:.6g}   multiplies the softmax scale")
    say(f"context           {answer['context']:,} positions, {answer['context_is']}")
    say()
    print_pairs(answer, every)
    if answer["length_dependent"] and answer["length"] is None:
        note("The frequencies depend on the length served; these serve the original length. Pass --length for more.")


def print_pairs(answer: dict[str, Any], every: bool) -> None:
    rows = answer["pairs"]
    header = ["pair", "frequency", "wavelength", "turns in context"]
    header += ["slower by"] if "slower" in rows[0] else []
    header += ["axis"] if answer["axes"] > 1 else []
    header += ["head"] if "head" in rows[0] else []
    cells, last = [], -1
    for i in range(len(rows)) if every else worth_showing(rows):
        if i != last + 1:
            cells.append([GAP] * len(header))
        cells.append(_cells(rows[i], header))
        last = i
    if last != len(rows) - 1:
        cells.append([GAP] * len(header))
    say_table(header, cells, right=header)
    say()
    slow = sum(row["turns"] < 1 for row in rows)
    what = "pairs" if "head" not in rows[0] else "frequencies"
    along = " along an axis" if answer["axes"] > 1 else ""
    say(f"{slow} of {len(rows)} {what} do not make one turn within {answer['context']:,} positions{along}.")


def worth_showing(rows: list[dict[str, Any]]) -> list[int]:
    """The rows at the ends and where the wavelength passes the context, on each axis of the first head."""
    chosen: set[int] = set()
    for axis in {row["axis"] for row in rows}:
        indices = [i for i, row in enumerate(rows) if row["axis"] == axis and not row.get("head")]
        chosen.update(indices[:ENDS], indices[-ENDS:])
        for i, j in itertools.pairwise(indices):
            if (rows[i]["turns"] < 1) != (rows[j]["turns"] < 1):
                chosen |= {i, j}
    return sorted(chosen)


def _cells(row: dict[str, Any], header: list[str]) -> list[str]:
    keys = {"wavelength": "wavelength", "turns in context": "turns", "slower by": "slower"}
    return [_number(row[keys.get(name, name)]) for name in header]


def _number(value: float | None) -> str:
    if value is None:
        return "∞"
    return str(value) if isinstance(value, int) else f"{value:.6g}"


def _settings(config: dict[str, Any]) -> str:
    return "  ".join(f"{key}={_short(value)}" for key, value in config.items() if value is not None)


def _short(value: Any) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
