"""``whorl bench NAME``: measures, in one run, against the plain way of doing the same."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from whorl.benchmarks import registry
from whorl.cli.lists import completing
from whorl.cli.options import Json
from whorl.cli.output import json_text, note, refuse_existing, say, say_json, say_table, suggest, write_out
from whorl.cli.show import parse_settings
from whorl.errors import unknown


def bench(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help=f"One of: {', '.join(sorted(registry.BENCHMARKS))}.",
            autocompletion=completing(lambda: registry.BENCHMARKS),
        ),
    ],
    repeats: Annotated[int, typer.Option(help="Rounds; every round times every path once.")] = 15,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Its sizes, as in --set length=4096.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="A new file for the JSON.")] = None,
    as_json: Json = False,
) -> None:
    """Ratios measured in one run, with machine facts. Exits 1 where a path computes the wrong thing."""
    if name not in registry.BENCHMARKS:
        raise unknown("benchmark", name, registry.BENCHMARKS)
    refuse_existing(out, "bench")
    from whorl.benchmarks.runner import Group, Result, group_dict, run

    def show(group: Group, results: tuple[Result, ...]) -> None:
        if not as_json:
            print_group(group_dict(group, results))

    given = parse_settings(settings or [], "bench")
    report = run(name, repeats=repeats, settings=given, tell=note, show=show).to_dict()
    if out is not None:
        write_out(out, json_text(report) + "\n", "bench")
        note(f"written to {out}")
    if as_json:
        say_json(report)
    else:
        print_conclusion(report)
        print_facts(report)
        suggest(f"whorl bench {name} --out benchmarks/results/{report['machine']['date'][:10]}-{name}.json")
    if not report["correct"]:
        note("A path computes the wrong thing; its speed is not shown.")
        raise typer.Exit(1)


def print_group(group: dict[str, Any]) -> None:
    """The rows of a group, as soon as they are there."""
    say(f"{group['name']}: {group['summary']}")
    rows = [_row(result) for result in group["results"]]
    shown = [i for i in range(len(HEADER)) if HEADER[i] not in ("GB/s", "peak") or any(row[i] for row in rows)]
    say_table([HEADER[i] for i in shown], [[row[i] for i in shown] for row in rows], right=HEADER[1:-1])
    say()
    sys.stdout.flush()  # a pipe would hold it back


def print_conclusion(report: dict[str, Any]) -> None:
    """What the groups say together, where the benchmark has such a table."""
    together = registry.conclusion(report)
    if together is None:
        return
    title, header, rows = together
    say(title)
    say_table(header, rows, right=header[1:-1])
    say()


def print_facts(report: dict[str, Any]) -> None:
    """What was measured, on what, and what a ratio is."""
    machine = report["machine"]
    load = " then ".join(f"{machine[key]:.2f}" for key in ("load_before", "load_after") if machine[key] is not None)
    threads = f"{machine['cores']} cores, {machine['torch_threads']} torch threads"
    say(f"ratio: time over that of the first path, median of {report['repeats']} rounds that timed every path in turn.")
    say(f"{report['name']}: {', '.join(f'{key}={value}' for key, value in report['settings'].items())}")
    say(f"{machine['cpu']}, {threads}, load {load or 'unknown'}")
    if machine.get("gpu"):
        say(machine["gpu"])
    say(f"torch {machine['torch']}, numpy {machine['numpy']}, whorl {machine['whorl']}, {machine['date']}")


HEADER = ("path", "ratio", "middle half", "bar", "time", "GB/s", "peak", "check")


def _row(result: dict[str, Any]) -> tuple[str, ...]:
    check = result["check"]
    if result["seconds"] is None:
        return (result["name"], "-", "-", _bar(result), "not timed", "", "", check["text"])
    low, high = result["ratio_spread"]
    return (
        result["name"],
        f"{result['ratio']:.2f}",
        f"{low:.2f}-{high:.2f}",
        _bar(result),
        _time(result["seconds"]),
        "" if result["bandwidth"] is None else f"{result['bandwidth'] / 1e9:,.0f}",
        "" if result["peak_memory"] is None else f"{result['peak_memory'] / 2**20:,.0f} MiB",
        check["text"],
    )


def _bar(result: dict[str, Any]) -> str:
    if result["bar"] is None:
        return ""
    verdict = {True: ", met", False: ", not met", None: ""}[result["met"]]
    return f"≤ {result['bar']:.3g}{verdict}"


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} µs"
