"""``whorl lab run``, ``plan``, ``sweep``, ``report``, ``migrate`` and ``generate``: make runs, and use what is there.

The experiments of RoFormer are in their own file and registered here.
"""

from pathlib import Path
from typing import Annotated, Any

import typer

from whorl.cli import options, roformer
from whorl.cli.compare import goes_on, run_options, run_settings, show, this_command
from whorl.cli.lists import complete_encoding, names_in, numbers_in
from whorl.cli.output import note, say, say_json, say_lines, say_table
from whorl.cli.plugins import Plugin, named
from whorl.errors import WhorlError

lab = typer.Typer(
    name="lab",
    help="The lab: one run, a grid of runs, a report; and what to do with a trained run.",
    no_args_is_help=True,
)


Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="An encoding by name, with settings as in rope:base=500000, or as a .py file that registers it.",
        autocompletion=complete_encoding,
    ),
]
Seed = Annotated[int, typer.Option(help="What weights and the order of texts are drawn from.")]


@lab.command("run")
def run(
    name: Name,
    corpus: options.Corpus = None,
    train_length: options.TrainLength = None,
    lengths: options.Lengths = None,
    steps: options.Steps = None,
    seed: Seed = 0,
    preset: options.PresetName = None,
    out: options.Out = Path("whorl-lab"),
    repairs: options.Repairs = None,
    fine_tune: options.FineTune = None,
    settings: options.Settings = None,
    retry: options.Retry = False,
    plugin: Plugin = None,
    tensorboard: options.TensorBoard = False,
    as_json: Annotated[bool, typer.Option("--json", help="The result as JSON on stdout.")] = False,
) -> None:
    """Train one encoding and test it by length; the folder of the run is printed last."""
    from whorl.lab import run_one
    from whorl.lab.cost import cost_of
    from whorl.lab.plan import plan
    from whorl.lab.progress import Progress
    from whorl.lab.storage import forget_diverged

    asked = _one_run(
        name, corpus, train_length, lengths, steps, seed, preset, repairs, fine_tune, settings, call="lab run"
    )
    (config,) = plan(out=out, **asked)
    note(str(cost_of(config, out=out)))
    folder = out / "runs" / config.id
    if retry:
        forget_diverged(folder)
    with goes_on(out), Progress() as progress:
        progress(config, {"kind": "planned", "finished": False})
        result = run_one(config, folder, tell=lambda event: progress(config, event), tensorboard=tensorboard)
    if result["stopped_early"]:
        note(f"{result['label']} stopped early: {result['stopped_early']} With --retry it is made anew.")
    for text in result["warnings"]:
        note(text)
    if as_json:
        say_json(result)
    else:
        say(str(folder))
    if result["stopped_early"]:
        raise typer.Exit(1)


@lab.command("plan")
def plan_run(
    name: Name,
    corpus: options.Corpus = None,
    train_length: options.TrainLength = None,
    lengths: options.Lengths = None,
    steps: options.Steps = None,
    seed: Seed = 0,
    preset: options.PresetName = None,
    repairs: options.Repairs = None,
    fine_tune: options.FineTune = None,
    settings: options.Settings = None,
    plugin: Plugin = None,
) -> None:
    """Print the config.json of a run, which torchrun -m whorl.lab.distributed takes; what it costs goes to stderr."""
    from whorl.lab.cost import cost_of
    from whorl.lab.plan import configure

    asked = _one_run(
        name, corpus, train_length, lengths, steps, seed, preset, repairs, fine_tune, settings, call="lab plan"
    )
    (config,) = configure(**asked)
    note(str(cost_of(config)))
    say_json(config.to_dict())


def _one_run(
    name: str,
    corpus: str | None,
    train_length: int | None,
    lengths: str | None,
    steps: int | None,
    seed: int,
    preset: str | None,
    repairs: str | None,
    fine_tune: int | None,
    settings: list[str] | None,
    *,
    call: str,
) -> dict[str, Any]:
    """What ``configure`` makes one run from, as ``run`` and ``plan`` were told it."""
    names = named([name], call)
    if len(names) > 1:
        raise WhorlError(
            f"{call}: {name} registers {', '.join(names)}, and a run has one. Name it, with --plugin {name}."
        )
    return {
        "names": names,
        "preset_name": preset,
        "corpus": corpus,
        "train_length": train_length,
        "lengths": None if lengths is None else numbers_in(lengths, "--lengths", call),
        "steps": steps,
        "seeds": [seed],
        "repairs": None if repairs is None else names_in(repairs),
        **run_settings(settings, fine_tune, call),
    }


@lab.command("sweep")
def sweep(
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="The grid: encodings, seeds, [grid] and [run].")],
    out: options.Out = Path("whorl-lab"),
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
    """Make every run of a grid that is not finished yet, then the report. Exits 1 where a run failed or diverged."""
    from whorl.lab import sweep as make_sweep
    from whorl.lab.progress import Progress

    with goes_on(out), Progress() as progress:
        found = make_sweep(
            file,
            out,
            on,
            lang=lang,
            tell=progress,
            announce=note,
            workers=workers,
            retry=retry,
            baseline=baseline,
            **run_options(on, address, tensorboard, "lab sweep"),
        )
    show(found, as_json=as_json)


@lab.command("report")
def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="What --out was: a folder with runs.")],
    lang: options.Lang = "en",
    baseline: options.Baseline = None,
    factor: Annotated[
        list[str] | None, typer.Option(help="A setting that is compared beside encodings, as width; of a sweep known.")
    ] = None,
    unequal: Annotated[
        bool, typer.Option("--unequal", help="Report on runs that are not alike; the report says so at its top.")
    ] = False,
    plugin: Plugin = None,
    as_json: options.AsJson = False,
) -> None:
    """Write the report of the finished runs in a folder again."""
    from whorl.lab.aggregate import aggregate, collect, corpus_facts
    from whorl.lab.compare import write_out
    from whorl.lab.storage import is_there
    from whorl.results import COMPARISON, ComparisonResult

    results = collect(folder)
    before = ComparisonResult.read(folder / COMPARISON) if is_there(folder / COMPARISON) else None
    found = aggregate(
        results,
        corpus=corpus_facts(folder, [one.config for one in results]),
        title=(before and before.title) or "",
        command=(before and before.command) or this_command(),
        baseline=baseline or (before.baseline if before and before.named else None),
        factors=factor or (before.factors if before else ()),
        unequal=unequal,
    )
    show(write_out(found, folder, lang), as_json=as_json)


Run = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, OUT/runs/ID.")]


@lab.command("migrate")
def migrate(
    run: Run,
    to: Annotated[str, typer.Option(help="The encoding to go on with.", autocompletion=complete_encoding)],
    freeze: Annotated[
        str, typer.Option(help="Parts that stay as they are, of embeddings,attention,ffn,norm; with commas.")
    ] = "",
    steps: Annotated[int | None, typer.Option(help="Updates after the exchange; a fifth of the run's.")] = None,
    rate: Annotated[float | None, typer.Option(help="The learning rate; a fifth of the run's.")] = None,
    plugin: Plugin = None,
    as_json: Annotated[bool, typer.Option("--json", help="The result as JSON on stdout.")] = False,
) -> None:
    """Take a trained run to another encoding: copy all but positions, train a little, and compare four losses."""
    from whorl.lab import migrate as make_migration

    def tell(event: dict[str, Any]) -> None:
        if event["step"] * 10 // event["steps"] > (event["step"] - 1) * 10 // event["steps"]:  # at every tenth
            note(f"{event['part']}: step {event['step']}/{event['steps']}, loss {event['loss']:.3f}")

    with goes_on(run.parent.parent):
        result = make_migration(run, to, freeze=names_in(freeze), steps=steps, learning_rate=rate, tell=tell)
    for text in result["warnings"]:
        note(text)
    if as_json:
        say_json(result)
    else:
        _show_migration(result)
    if result["stopped_early"]:
        note(f"stopped early: {result['stopped_early']}")
        raise typer.Exit(1)


def _show_migration(result: dict[str, Any]) -> None:
    for kind, names in result["keys"].items():
        say(f"{kind} {len(names)}: {', '.join(names) or 'none'}")
    say(f"frozen: {', '.join(result['frozen']) or 'nothing'}")
    steps = result["config"]["stages"][0][2]
    lengths = [str(cell["length"]) for cell in result["by_length"]["before"]]
    rows = []
    for name, text in {
        "before": "before",
        "right_after": "right after",
        "after": f"after {steps} steps",
        "from_scratch": f"from scratch, {steps} steps",
    }.items():
        cells = result["by_length"][name] or []
        bits = [cell["bits_per_byte"]["non_overlapping"] for cell in cells] or [None] * len(lengths)
        rows.append((text, *("-" if one is None else f"{one:.3f}" for one in bits)))
    say_table(("bits per byte", *lengths), rows, right=lengths)
    say(result["folder"])


@lab.command("generate")
def generate(
    run: Run,
    prompt: Annotated[str, typer.Option(help="The text to go on with.")],
    count: Annotated[int, typer.Option(help="How many bytes to add.")] = 200,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest byte, 1 draws as the model says.")] = 0.0,
    top_k: Annotated[int | None, typer.Option(help="Draw among so many of the likeliest bytes.")] = None,
    seed: Annotated[int, typer.Option(help="What is drawn from.")] = 0,
    plugin: Plugin = None,
) -> None:
    """Print a text and how a trained run goes on with it."""
    from whorl.lab import generate as make_text

    say_lines(make_text(run, prompt, count=count, temperature=temperature, top_k=top_k, seed=seed))


lab.command("match")(roformer.match)
lab.command("pretrain")(roformer.pretrain)
lab.command("classify")(roformer.classify)
lab.command("ablate")(roformer.ablate)
