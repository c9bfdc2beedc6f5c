"""Options that several commands share, most of them those of the lab."""

from pathlib import Path
from typing import Annotated

import typer

Corpus = Annotated[
    str | None,
    typer.Option(help="stdlib, site-packages, a file, a folder, a pattern like 'texts/**/*.txt', or task:NAME."),
]
TrainLength = Annotated[int | None, typer.Option(help="Tokens of a training text.")]
Lengths = Annotated[str | None, typer.Option(help="Lengths to test at, as in 64,256,1024.")]
Steps = Annotated[int | None, typer.Option(help="Updates of each run.")]
PresetName = Annotated[str | None, typer.Option("--preset", help="A complete recipe: demo, laptop or gpu.")]
Out = Annotated[Path, typer.Option(help="The folder for runs and report; what was begun there goes on.")]
Lang = Annotated[str, typer.Option(help="The report's language: en or zh.")]
On = Annotated[str, typer.Option(help="Where runs are made: here or ray.")]
Address = Annotated[str | None, typer.Option(help="A Ray cluster's address; with --on ray.")]
Workers = Annotated[int | None, typer.Option(help="Runs side by side; as many as cores unless given.")]
Repairs = Annotated[
    str | None, typer.Option(help="Context extensions tried on trained RoPE, as in ntk,yarn,rerope+logn,window.")
]
FineTune = Annotated[int | None, typer.Option(help="Steps each repair is also fine-tuned for, at 4 times the length.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any other setting of a run, as in --set width=256."),
]
Baseline = Annotated[
    str | None,
    typer.Option(help="The encoding that differences are taken to; the best at the trained length unless given."),
]
Retry = Annotated[bool, typer.Option("--retry", help="Make runs whose loss was no number anew.")]
TensorBoard = Annotated[bool, typer.Option("--tensorboard", help="Also write TensorBoard events.")]
AsJson = Annotated[bool, typer.Option("--json", help="The comparison as JSON on stdout.")]

ModelFile = Annotated[str, typer.Argument(help="A config.json or another model file, a folder, or - for a pipe.")]
Assume = Annotated[str | None, typer.Option(help="Read a model of unknown family as this one, such as llama.")]
Json = Annotated[bool, typer.Option("--json", help="JSON on stdout.")]
