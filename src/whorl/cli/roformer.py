"""``whorl lab match``, ``pretrain``, ``classify`` and ``ablate``: RoFormer's experiments, made small."""

from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from whorl.cli import options
from whorl.cli.compare import goes_on, this_command
from whorl.cli.lists import complete_encoding, names_in, numbers_in
from whorl.cli.output import mean_text, note, refuse_existing, say, say_json, say_table
from whorl.cli.plugins import Plugin
from whorl.errors import WhorlError, invalid, unknown

if TYPE_CHECKING:
    from whorl.lab.classify import Dataset

Show = Callable[[dict[str, Any]], None]
Seeds = Annotated[int, typer.Option(help="How many seeds; two or more give intervals.")]
OutFile = Annotated[Path | None, typer.Option(help="A new file for the JSON.")]
Runs = Annotated[Path, typer.Option(help="The folder for runs; stopped ones go on, finished ones are not made again.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any other setting, as in --set width=128 --set batch=16."),
]


RUNS = Path("whorl-lab")


class Tokens(StrEnum):
    char = "char"
    word = "word"


class Ablation(StrEnum):
    base = "base"
    norm = "norm"
    slopes = "slopes"


def match(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FILE]",
            help="JSON lines as CAIL2019-SCM, with A, B, C and label. Without it, a stand-in is made whose evidence "
            "lies past token 512, and one where it lies before.",
        ),
    ] = None,
    test: Annotated[
        Path | None, typer.Option(help="Another file to test on; else each seed holds out a fifth of FILE.")
    ] = None,
    encodings: Annotated[
        str,
        typer.Option(help="The first reads every one of --lengths; the others are controls, and read the shortest."),
    ] = "rope,learned,shaw",
    lengths: Annotated[str, typer.Option(help="How many tokens of each text are read.")] = "512,1024",
    seeds: Seeds = 3,
    steps: options.Steps = None,
    tokens: Annotated[Tokens, typer.Option(help="What a token is.")] = Tokens.char,
    runs: Runs = RUNS,
    settings: Settings = None,
    out: OutFile = None,
    plugin: Plugin = None,
    as_json: options.Json = False,
) -> None:
    """Which of B and C is closer to A? Accuracy by how many tokens of the long texts are read."""
    call = "lab match"
    if test is not None and file is None:
        raise WhorlError(f"{call}: --test would be ignored without FILE. Pass both, or neither for the stand-in.")
    refuse_existing(out, call)
    from whorl.lab.matching import MatchingConfig, match_stand_in, match_triples
    from whorl.lab.matching_data import read_triples

    names, read = encoding_names(encodings, call), sorted(set(numbers_in(lengths, "--lengths", call)))
    variants = [(names[0], length) for length in read] + [(name, read[0]) for name in names[1:]]
    known = {*MatchingConfig.fields(), *(() if file else ("train", "test"))}
    chosen = read_settings(settings, known - {"encoding", "length", "seed", "steps", "tokens"}, call)
    chosen |= {"tokens": tokens.value} | ({} if steps is None else {"steps": steps})
    chosen |= {"seeds": seed_list(seeds, call), "variants": variants, "out": runs, "tell": _tell_match}
    with goes_on(runs):
        if file is None:
            result = match_stand_in(**chosen)
        else:
            result = match_triples(read_triples(file), None if test is None else read_triples(test), **chosen)
    if (texts := max(run["shared_texts"] for run in result["runs"])) and file is not None:
        note(f"{texts} texts are both trained on and tested on: accuracy on new texts may be lower.")
    report("match", result, out, as_json, _show_match)


def _tell_match(run: dict[str, Any]) -> None:
    what = f"evidence {run['evidence']}, {run['encoding']} reading {run['length']}, seed {run['seed']}"
    note(f"{what}: {100 * run['accuracy']:.1f} %, {run['train_seconds'] + run['test_seconds']:.0f} s")


def _show_match(result: dict[str, Any]) -> None:
    rows = [
        (row["evidence"], row["encoding"], str(row["length"]), mean_text(row["accuracy"], 1))
        for row in result["summary"]
    ]
    for evidence, gap in result["gaps"].items():
        say(f"evidence {evidence}: reading furthest is {gap:+.1f} points from reading least; chance is 50 %")
    say_table(("evidence", "encoding", "tokens read", "accuracy %"), rows, right=("tokens read", "accuracy %"))


def pretrain(
    name: Annotated[
        str,
        typer.Argument(
            metavar="[NAME]",
            help="An encoding by name, with settings as in rope:base=500000.",
            autocompletion=complete_encoding,
        ),
    ] = "rope",
    corpus: options.Corpus = None,
    stages: Annotated[
        str | None, typer.Option(help="Length, batch and steps of every stage, as in 64x8x100,192x8x6.")
    ] = None,
    factor: Annotated[
        int | None, typer.Option(help="RoFormer's own six stages with steps divided by this; 2000 unless given.")
    ] = None,
    seed: Annotated[int, typer.Option(help="What weights, rows and masks are drawn from.")] = 0,
    runs: Runs = RUNS,
    settings: Settings = None,
    out: OutFile = None,
    plugin: Plugin = None,
    as_json: options.Json = False,
) -> None:
    """Masked-language-model pre-training in RoFormer's stages: loss, accuracy and gradient norms of each."""
    call = "lab pretrain"
    if stages is not None and factor is not None:
        raise WhorlError(f"{call}: --factor would be ignored beside --stages. Leave one out.")
    refuse_existing(out, call)
    from whorl.lab.corpus import read_corpus
    from whorl.lab.mlm import PretrainConfig, Stage, staged
    from whorl.lab.mlm import pretrain as make_model
    from whorl.lab.plan import read_name

    config = PretrainConfig(
        encoding=read_name(name),
        seed=seed,
        stages=read_stages(stages, call) if stages is not None else staged(2000 if factor is None else factor),
        **read_settings(settings, PretrainConfig.fields().keys() - {"encoding", "seed", "stages"}, call),
    )

    def tell(stage: Stage) -> None:
        what = f"{stage.steps} steps of {stage.batch} × {stage.length}"
        note(f"{what}: loss {stage.loss:.3f}, accuracy {100 * stage.accuracy:.1f} %, {stage.seconds:.0f} s")

    with goes_on(runs):
        done = make_model(config, None if corpus is None else read_corpus(corpus).train, out=runs, tell=tell)
    for text in done.notes:
        note(text)
    report("pretrain", done.to_dict(), out, as_json, _show_stages)


def read_stages(text: str, call: str) -> tuple[tuple[int, ...], ...]:
    """Stages written as LENGTHxBATCHxSTEPS with commas between them.

    >>> read_stages("64x8x100,192x8x6", "lab pretrain")
    ((64, 8, 100), (192, 8, 6))
    """
    try:
        return tuple(tuple(int(number) for number in stage.split("x")) for stage in text.split(","))
    except ValueError:
        raise invalid(call, "--stages", "LENGTHxBATCHxSTEPS with commas between", text, "As in 64x8x100.") from None


def _show_stages(result: dict[str, Any]) -> None:
    groups = list(result["stages"][0]["gradient_norms"])
    header = ("length", "batch", "steps", "loss", "accuracy %", *(f"∇ {group}" for group in groups))
    rows = []
    for stage in result["stages"]:
        norms = [stage["gradient_norms"][group] for group in groups]
        sizes = (str(stage[size]) for size in ("length", "batch", "steps"))
        scores = f"{stage['loss']:.3f}", f"{100 * stage['accuracy']:.1f}"
        rows.append((*sizes, *scores, *("none" if norm is None else f"{norm:.3f}" for norm in norms)))
    say_table(header, rows, right=header)


def classify(
    encodings: Annotated[str, typer.Option(help="Encodings by name.")] = "learned,sinusoidal,rope,none",
    datasets: Annotated[
        str | None,
        typer.Option(
            help="source: which package a text is from; order: whether it reads forwards or backwards; both unless "
            "given."
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Texts of your own in their place: lines of JSON with text and label, or of label, tab and text."
        ),
    ] = None,
    seeds: Seeds = 3,
    steps: options.Steps = None,
    runs: Runs = RUNS,
    settings: Settings = None,
    out: OutFile = None,
    plugin: Plugin = None,
    as_json: options.Json = False,
) -> None:
    """Classify short texts: accuracy by encoding, where words tell the answer and where their order does."""
    call = "lab classify"
    refuse_existing(out, call)
    from whorl.lab.classify import LABELS, ClassifyConfig, compare_classifiers

    if data is not None and datasets is not None:
        raise WhorlError(f"{call}: --datasets would be ignored beside --data. Leave one out.")
    wanted = list(LABELS) if datasets is None else some_names(datasets, "--datasets", call)
    for name in wanted:
        if name not in LABELS:
            raise unknown("dataset", name, LABELS, call=call)
    taken = {"encoding", "dataset", "data", "seed", "steps"}
    chosen = read_settings(settings, ClassifyConfig.fields().keys() - taken, call)
    chosen |= {} if steps is None else {"steps": steps}
    chosen |= {} if data is None else {"data": str(data)}

    def tell(run: dict[str, Any]) -> None:
        what = "{dataset}, {encoding}, seed {seed}".format(**run["config"] | ({"dataset": data} if data else {}))
        note(f"{what}: {100 * run['accuracy']:.1f} %, {run['train_seconds']:.0f} s")

    names, numbers = encoding_names(encodings, call), seed_list(seeds, call)
    kinds = cast("list[Dataset]", wanted)
    with goes_on(runs):
        rows = compare_classifiers(datasets=kinds, encodings=names, seeds=numbers, out=runs, tell=tell, **chosen)
    varied = {"name", "encoding", "dataset", "seed"}
    common = {key: value for key, value in ClassifyConfig(**chosen).to_dict().items() if key not in varied}
    report("classify", {"settings": common, "rows": rows}, out, as_json, _show_classes)


def _show_classes(result: dict[str, Any]) -> None:
    header = ("dataset", "encoding", "accuracy %", "95 % interval", "texts", "most frequent %")
    rows = []
    for row in result["rows"]:
        found = row["accuracy"]
        scores = f"{found['mean']:.1f}", f"{found['low']:.1f} to {found['high']:.1f}"
        rows.append((row["dataset"], row["encoding"], *scores, str(row["tested"]), f"{row['most_frequent']:.1f}"))
    say_table(header, rows, right=header[2:])


def ablate(
    what: Annotated[
        Ablation,
        typer.Argument(
            help="base: RoPE's, from 100 to 100,000. norm: of queries and keys, before or after the rotation. "
            "slopes: ALiBi's own, and random ones."
        ),
    ],
    corpus: options.Corpus = None,
    lengths: options.Lengths = None,
    seeds: Seeds = 3,
    steps: options.Steps = None,
    runs: Runs = RUNS,
    settings: Settings = None,
    out: OutFile = None,
    as_json: options.Json = False,
) -> None:
    """Change one thing of an encoding and train small decoders with it: bits per byte by length."""
    call = "lab ablate"
    refuse_existing(out, call)
    from whorl.lab.ablations import SIZES, base_ablation, norm_ablation, slope_ablation
    from whorl.lab.progress import Progress
    from whorl.lab.settings import RunConfig

    taken = {"encoding", "seed", "corpus", "corpus_digest", "lengths", "repairs"}
    chosen = read_settings(settings, RunConfig.fields().keys() - taken, call)
    if steps is not None:
        if "stages" in chosen:
            raise WhorlError(f"{call}: --steps would be ignored beside --set stages. Leave one out.")
        chosen["stages"] = [(length, batch, steps) for length, batch, _ in SIZES["stages"]]
    chosen |= {"lengths": numbers_in(lengths, "--lengths", call)} if lengths is not None else {}
    chosen |= {} if corpus is None else {"corpus": corpus}
    make = {Ablation.base: base_ablation, Ablation.norm: norm_ablation, Ablation.slopes: slope_ablation}[what]
    with goes_on(runs), Progress() as progress:
        rows = make(runs, seeds=seed_list(seeds, call), tell=progress, **chosen)
    common = {key: value for key, value in {**SIZES, **chosen}.items() if key != "corpus"}
    report("ablate", {"settings": common, "rows": rows}, out, as_json, _show_ablation)


def _show_ablation(result: dict[str, Any]) -> None:
    rows = result["rows"]
    lengths = [str(cell["length"]) for cell in rows[0]["by_length"]]
    errors = ["relativity error"] if "relativity_error" in rows[0] else []
    say(f"bits per byte, same last tokens: {rows[0]['usual']}, and how far the others are from it, seed by seed")
    shown = []
    for row in rows:
        error = [f"{row['relativity_error']:.1e}"] if errors else []
        shown.append((row["setting"], *(_bits(cell) for cell in row["by_length"]), *error))
    say_table((rows[0]["ablation"], *lengths, *errors), shown, right=[*lengths, *errors])


def _bits(cell: dict[str, Any]) -> str:
    difference = cell["difference"]
    return mean_text(cell["same_last"], 3) if difference is None else mean_text(difference["same_last"], 3, "+")


def encoding_names(text: str, call: str) -> list[str]:
    """The encodings of a list written with commas, each of them known."""
    from whorl.registry import encoding_class

    names = some_names(text, "--encodings", call)
    for name in names:
        encoding_class(name)
    return names


def some_names(text: str, option: str, call: str) -> list[str]:
    """The names of a list written with commas, at least one."""
    if not (names := names_in(text)):
        raise invalid(call, option, "names with commas between them", text)
    return names


def seed_list(count: int, call: str) -> list[int]:
    """The seeds 0, 1, … count - 1."""
    if count < 1:
        raise invalid(call, "--seeds", "at least 1", count)
    return list(range(count))


def read_settings(pairs: Sequence[str] | None, known: set[str], call: str) -> dict[str, Any]:
    """The settings of ``--set``; those that have an option of their own are not among ``known``."""
    from whorl.cli.show import parse_settings

    given = parse_settings(list(pairs or []), call)
    for key in given:
        if key not in known:
            raise unknown("setting", key, known, call=call)
    return given


def report(kind: str, result: dict[str, Any], out: Path | None, as_json: bool, show: Show) -> None:
    """Writes a result with its command, machine and versions where asked to, and prints it as JSON or as a table."""
    from whorl.lab.storage import environment, write_json

    origin = {"schema": f"whorl-lab-{kind}/1", "command": this_command(), "environment": environment()}
    whole = {**origin, **result}
    if out is not None:
        write_json(out, whole)
        note(f"written to {out}")
    (say_json if as_json else show)(whole)
