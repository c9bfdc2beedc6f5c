"""``whorl compare NAMES…``: trains encodings alike, tests them at lengths they never saw, and writes a report."""

import contextlib
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from whorl.cli import options
from whorl.cli.lists import complete_encoding, names_in, numbers_in
from whorl.cli.output import note, say, say_json, say_table, suggest
from whorl.cli.plugins import Plugin, named
from whorl.errors import WhorlError

if TYPE_CHECKING:
    from whorl.lab import Comparison
    from whorl.results import ComparisonResult, Difference


OPTIONS = ("corpus", "train_length", "lengths", "steps", "repairs")  # settings that --set need not say


def compare(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAMES…",
            help="Encodings by name or as a .py file that registers some; settings as in rope:scaling=yarn,factor=4, "
            "joined as in rope+alibi, by layer as in rope*3/none.",
            autocompletion=complete_encoding,
        ),
    ] = None,
    corpus: options.Corpus = None,
    train_length: options.TrainLength = None,
    lengths: options.Lengths = None,
    steps: options.Steps = None,
    seeds: Annotated[int, typer.Option(help="How many seeds; two or more give intervals.")] = 1,
    preset: options.PresetName = None,
    out: options.Out = Path("whorl-lab"),
    repairs: options.Repairs = None,
    fine_tune: options.FineTune = None,
    settings: options.Settings = None,
    lang: options.Lang = "en",
    on: options.On = "here",
    address: options.Address = None,
    workers: options.Workers = None,
    retry: options.Retry = False,
    plugin: Plugin = None,
    tensorboard: options.TensorBoard = False,
    baseline: options.Baseline = None,
    as_json: options.AsJson = False,
) -> None:
    """Train encodings alike, test them past the trained length, write a report. Exits 1 if a run fails or diverges."""
    from whorl.lab import compare as compare_encodings
    from whorl.lab.progress import Progress

    call = "compare"
    with goes_on(out), Progress() as progress:
        found = compare_encodings(
            named(names or [], call),
            corpus=corpus,
            train_length=train_length,
            lengths=None if lengths is None else numbers_in(lengths, "--lengths", call),
            steps=steps,
            seeds=seeds,
            preset=preset,
            out=out,
            repairs=None if repairs is None else names_in(repairs),
            on=on,
            lang=lang,
            tell=progress,
            announce=note,
            workers=workers,
            retry=retry,
            command=this_command(),
            baseline=baseline,
            options=run_options(on, address, tensorboard, call),
            **run_settings(settings, fine_tune, call),
        )
    show(found, as_json=as_json)


def run_settings(settings: list[str] | None, fine_tune: int | None, call: str) -> dict[str, Any]:
    """Further settings of a run, from KEY=VALUE words."""
    from whorl.cli.show import parse_settings
    from whorl.lab.plan import check_names

    found = parse_settings(settings or [], call)
    for key in found:
        if key in OPTIONS:
            raise WhorlError(f"{call}: {key} has an option of its own. Use --{key.replace('_', '-')}.")
    check_names(found, call)
    if fine_tune is None:
        return found
    if "fine_tune_steps" in found:
        raise WhorlError(f"{call}: --fine-tune and --set fine_tune_steps say the same. Leave one out.")
    return {**found, "fine_tune_steps": fine_tune}


def run_options(on: str, address: str | None, tensorboard: bool, call: str) -> dict[str, Any]:
    """How runs are carried out, which does not change what comes out."""
    if address is not None and on != "ray":
        raise WhorlError(f"{call}: --address would be ignored without --on ray. Pass both.")
    found: dict[str, Any] = {"tensorboard": True} if tensorboard else {}
    return found | ({"address": address} if address is not None else {})


@contextlib.contextmanager
def goes_on(out: Path) -> Iterator[None]:
    """Ends with status 130 on Ctrl-C, with a word on what was saved and how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        note(f"stopped. What was done is saved in {out}; the same command goes on from there: {this_command()}")
        raise typer.Exit(130) from None


def this_command() -> str:
    """The command line as it could be typed again."""
    import sys

    return shlex.join(["whorl", *sys.argv[1:]])


def show(found: "Comparison", *, as_json: bool) -> None:
    """Prints what a comparison came to, and where its report is."""
    if as_json:
        say_json(found.data)
    else:
        print_table(found.result)
        say(f"report: {found.report.absolute().as_uri()}")
        suggest(f"whorl lab report {found.out} --lang zh")
    for text in dict.fromkeys(text for row in found.result.rows for text in row.warnings):
        note(text)
    for run, message in found.failed.items():
        note(f"run {run} failed: {message}", lines=True)  # the last words of a process that died
    if found.failed:
        raise typer.Exit(1)


def print_table(found: "ComparisonResult") -> None:
    """Means by length, of the same last tokens with more and more before them or of a task; then paired differences."""
    for line in found.data.get("verdict", {}).get("en", {}).get("unequal", "").splitlines():
        note(line)
    task = next((row.task for row in found.rows if row.task), None)
    measure = "exact_match" if task else "same_last"
    say(f"{f'exact match, {task}' if task else 'bits per byte, same last tokens'}; trained at {found.trained}")
    lengths = [str(length) for length in found.lengths]
    rows = []
    for row in found.rows:
        if not row.beside:
            means = (row.at(measure, length) for length in found.lengths)
            shown = ("-" if mean is None else f"{mean:.3f}" for mean in means)
            rows.append((row.label if row.as_trained else f"  {row.variant}", *shown))
    say_table(("encoding", *lengths), rows, right=lengths)
    for kind, other in (("encoding", found.baseline), ("repair", "the model it repairs")):
        print_differences(found, kind, measure, f"less {other}")


def print_differences(found: "ComparisonResult", kind: str, measure: str, title: str) -> None:
    """The paired differences of a kind with their intervals, and of how many seeds and samples they are."""
    own = [one for one in found.differences if (one.kind, one.measure) == (kind, measure)]
    shown = [one for one in own if (one.low, one.high) != (0.0, 0.0)]  # nothing by construction
    if not shown:
        return
    lengths = sorted({one.length for one in shown})
    by_row: dict[str, dict[int, str]] = {}
    for one in shown:
        label, variant = one.row
        by_row.setdefault(label if kind == "encoding" else f"{label}, {variant}", {})[one.length] = difference_text(one)
    header = (title, *(str(length) for length in lengths))
    say()
    say_table(header, [(name, *(row.get(n, "-") for n in lengths)) for name, row in by_row.items()], right=header[1:])
    if kind == "encoding":
        known = next((one for one in shown if one.low is not None), None)
        if known is None:
            say("one seed and no losses of the same samples: no order is called")
        else:
            seeds = f"{known.seeds} seeds" if known.seeds > 1 else "1 seed (seed noise unknown)"
            text = f" and {known.samples} samples, {known.scored_bytes:,} bytes" if known.samples else ""
            say(f"* told apart, at 95 % for each length; paired over {seeds}{text}")


def difference_text(one: "Difference") -> str:
    """A difference with half its interval, and a star where that leaves 0 out."""
    if one.low is None or one.high is None:
        return f"{one.mean:+.3f}"
    return f"{one.mean:+.3f} ±{(one.high - one.low) / 2:.3f}{'*' if one.sign else ' '}"
