"""``whorl inspect``: what a model's file says of its positions, and what is wrong with it."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from whorl.cli.options import Assume, Json, ModelFile
from whorl.cli.output import note, say, say_json, say_table, suggest

if TYPE_CHECKING:
    from whorl.bridge.linting import Finding

SHOWN = 4  # inverse frequencies at each end


def inspect(
    path: ModelFile,
    as_json: Json = False,
    lint: Annotated[bool, typer.Option("--lint", help="Only what is wrong or doubtful; needs no torch.")] = False,
    assume: Assume = None,
) -> None:
    """What positions do in each layer of a model, and what is wrong with its file.

    Exits 0 where no error was found, 1 where one was, 2 where the file cannot be read.
    """
    from whorl.bridge.linting import Finding, examine  # the readers of all dialects, which other commands do without

    findings, reading, error = examine(path, assume)
    if reading is None or lint:
        if findings or as_json or error is None:  # a file that could not be read is not clean
            _say_lint(findings, as_json)
    else:
        from whorl.bridge.inspection import report  # which needs torch

        found = report(reading, findings)
        findings = [Finding(**one) for one in found["findings"]]
        if as_json:
            say_json(found)
        else:
            _say_report(found)
            say()
            _say_lint(findings, as_json=False)
            suggest(f"whorl inspect {path} --json")
    if error is not None:
        note(str(error))
        raise typer.Exit(2)
    if any(one.severity == "error" for one in findings):
        raise typer.Exit(1)


def _say_lint(findings: "list[Finding]", as_json: bool) -> None:
    if as_json:
        say_json({"findings": [one.to_dict() for one in findings]})
        return
    for one in findings:
        say(f"{one.severity}: {one.what} [{one.rule}]")
        say(f"    {one.remedy}")
    if not findings:
        say("nothing found")


def _say_report(found: dict[str, Any]) -> None:
    lengths = {name: found[f"{name}_length"] for name in ("trained", "claimed")}
    said = ", ".join(f"{name} length {_with_source(one)}" for name, one in lengths.items() if one is not None)
    say(f"{found['family'] or 'no family named'} ({found['standing']}), {found['dialect']}")
    say(said or "no length stated")
    for text in found["notes"]:
        say(text)
    say()
    say_table(
        ("layers", "encoding", "base", "rotated", "layout", "scaling", "on cos, sin", "on softmax"),
        [_row(group) for group in found["groups"]],
        right=("base",),
    )
    for group in found["groups"]:
        _say_details(group)


def _row(group: dict[str, Any]) -> tuple[str, ...]:
    if not group["attention"]:
        return (_layers(group), "no attention", *[""] * 6)
    names = [_named(one) for one in group["encodings"]] or ["unsupported" if group["unsupported"] else "none"]
    if group["softcap"] is not None:
        names.append(f"softcap {group['softcap']['value']:g}")
    turning = next((one for one in group["encodings"] if "base" in one["settings"]), None)
    if turning is None:
        return (_layers(group), ", ".join(names), *[""] * 6)
    settings = {name: value["value"] for name, value in turning["settings"].items()}
    dim, whole = settings.get("rotary_dim"), settings.get("head_dim")
    numbers = group["numbers"] or {}
    factors = [f"{numbers[name]:.6g}" if name in numbers else "" for name in ("attention_factor", "softmax_factor")]
    part = f"{whole}" if dim in (None, whole) else f"{settings.get('slice', 'leading')} {dim} of {whole}"
    scaling = _named(turning["scaling"]) if turning["scaling"] else ""
    return (
        _layers(group),
        ", ".join(names),
        _short(settings["base"]),
        part,
        settings.get("layout", ""),
        scaling,
        *factors,
    )


def _named(one: dict[str, Any]) -> str:
    """An encoding or scaling with the one number that people ask for first."""
    first = {"window": "size", "yarn": "factor", "linear": "factor", "llama3": "factor", "dynamic_ntk": "factor"}
    value = one["settings"].get(first.get(one["name"], ""))
    return one["name"] if value is None else f"{one['name']} {_short(value['value'])}"


def _short(value: Any) -> str:
    """A number in few digits; anything else, which a finding is about, as it stands in the file."""
    return f"{value:g}" if isinstance(value, (int, float)) else repr(value)


def _layers(group: dict[str, Any]) -> str:
    places = group["layers"]
    count = "" if places is None else f"{len(places)} "
    return f"{count}{group['kind']}"


def _say_details(group: dict[str, Any]) -> None:
    numbers, lines = group["numbers"], []
    if numbers is not None:
        w = [f"{value:.4g}" for value in numbers["inverse_frequencies"]]
        ladder = w if len(w) <= 2 * SHOWN else [*w[:SHOWN], "…", *w[-SHOWN:]]
        lines.append(f"inverse frequencies of {numbers['pairs']} pairs: {', '.join(ladder)}")
        if numbers["unturned_pairs"] is not None:
            count = numbers["unturned_pairs"]
            some = "1 pair never completes" if count == 1 else f"{count} pairs never complete"
            lines.append(f"{some} a turn within the trained length")
        if numbers["float32_error"] is not None:
            lines.append(f"float32 angles are off by {numbers['float32_error']:.1e} at {numbers['length']} positions")
    for one in group["encodings"]:
        for source, names in _sources(one).items():
            lines.append(f"{one['name']}, {source}: {', '.join(names)}")
    if lines:
        say()
        say(_layers(group))
    for line in lines:
        say(f"    {line}")


def _sources(one: dict[str, Any]) -> dict[str, list[str]]:
    """Settings with a value by their source, those of the scaling among them."""
    out: dict[str, list[str]] = {}
    settings = {
        **one["settings"],
        **{f"scaling.{k}": v for k, v in ((one["scaling"] or {}).get("settings") or {}).items()},
    }
    for name, value in settings.items():
        stated = value["value"] is False and value["source"] == "file"  # what is off in code goes without saying
        if stated or value["value"] not in (None, False):
            shown = value["value"] if not isinstance(value["value"], list) else f"{len(value['value'])} numbers"
            out.setdefault(value["source"], []).append(f"{name}={shown}")
    return out


def _with_source(value: dict[str, Any]) -> str:
    return f"{value['value']} ({value['source']})"
