"""``whorl plot KIND``: a picture of encodings, written to a file."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from whorl import plot as plots
from whorl import registry
from whorl.cli import show
from whorl.cli.lists import completing
from whorl.cli.output import note, suggest
from whorl.cli.plugins import Plugin, named
from whorl.errors import WhorlError, invalid, unknown

if TYPE_CHECKING:
    from whorl.encodings.base import Encoding


class Kind(NamedTuple):
    """A kind of picture: the encodings and dimensions it draws by default, and the options it takes."""

    names: tuple[str, ...]
    dim: int
    options: tuple[str, ...] = ()
    several: bool = False


KINDS = {
    "waves": Kind(("sinusoidal",), 128, ("length",)),
    "codes": Kind(("sinusoidal",), 8, ("length",)),
    "frequencies": Kind(("rope",), 8, ("length",), several=True),
    "similarity": Kind(("sinusoidal",), 64, ("length",)),
    "positions": Kind(("sinusoidal",), 64, ("length", "method")),
    "decay": Kind(("rope",), 128, ("length",), several=True),
    "clocks": Kind(("rope",), 8, ("length",)),
    "bias": Kind(("alibi", "t5", "kerple"), 64, ("length",), several=True),
    "scores": Kind(("rope", "xpos", "alibi"), 64, ("length",), several=True),
    "scaling": Kind(("linear", "ntk", "yarn", "llama3"), 128, ("length",), several=True),
    "context": Kind(("yarn",), 128, ("length", "trained")),
    "precision": Kind(("rope",), 128, ("length",)),
    "losses": Kind((), 0, ("metric", "title", "size")),
}

WIDTHS = ("head_dim", "width", "code_width")  # the names that encodings have for --dim

# the mark keeps the lines as they are
HELP = "\b\nKinds:\n" + "\n".join(f"  {kind:<12} {seen}" for kind, seen in plots.KINDS.items())


complete_kind = completing(lambda: KINDS)


def plot(
    kind: Annotated[
        str, typer.Argument(metavar="KIND", help="What to draw; the kinds are below.", autocompletion=complete_kind)
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write: .png, .svg or .pdf.")],
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="WHAT",
            help="Encodings or scalings, settings as in rope:base=500000,head_dim=64; for losses a comparison.json.",
            autocompletion=show.complete_name,
        ),
    ] = None,
    length: Annotated[int | None, typer.Option(help="How many positions, or the length that a scaling serves.")] = None,
    dim: Annotated[int | None, typer.Option(help="Dimensions of a head or of a code.")] = None,
    trained: Annotated[int | None, typer.Option(help="The length trained on, for context.")] = None,
    method: Annotated[str | None, typer.Option(help="pca or tsne, for positions.")] = None,
    metric: Annotated[str | None, typer.Option(help="same_last, sliding or non_overlapping, for losses.")] = None,
    title: Annotated[str | None, typer.Option(help="In place of the usual title, '' for none, for losses.")] = None,
    size: Annotated[str | None, typer.Option(help="Inches, as in 6,4, for losses.")] = None,
    dpi: Annotated[int | None, typer.Option(help="Dots per inch of a .png.")] = None,
    plugin: Plugin = None,
) -> None:
    """A picture of encodings, as .png, .svg or .pdf."""
    if kind not in KINDS:
        raise unknown("kind", kind, KINDS, call="plot")
    inches = None if size is None else size_in(size)
    given = {"length": length, "trained": trained, "method": method, "metric": metric, "title": title, "size": inches}
    options = {name: value for name, value in given.items() if value is not None}
    for name in options:
        if name not in KINDS[kind].options:
            raise WhorlError(f"plot: --{name} would be ignored by {kind}. Leave it out.")
    from whorl.plot.save_picture import check_path
    from whorl.plot.style import need_matplotlib

    need_matplotlib()
    dots = {} if dpi is None else {"dpi": dpi}
    shown = named(what or [], "plot")
    note(f"written to {write(kind, shown, check_path(out, 'plot'), dim, options, **dots)}")
    suggest("whorl show rope" if kind != "losses" else "whorl plot scores -o scores.png")


def size_in(text: str) -> tuple[float, float]:
    """Width and height in inches, from a text such as ``6,4``."""
    try:
        width, height = (float(one) for one in text.split(","))
    except ValueError:
        raise invalid("plot", "--size", "width and height in inches, as in 6,4", text) from None
    if not (0.5 <= width <= 100 and 0.5 <= height <= 100):
        raise invalid("plot", "--size", "between 0.5 and 100 inches each way", text)
    return width, height


def write(kind: str, what: Sequence[str], out: Path, dim: int | None, options: dict[str, Any], **dots: int) -> Path:
    """Draws the kind into the file, with matplotlib's own settings and no window, whatever the user's are."""
    import matplotlib
    from matplotlib import pyplot

    drawn = comparison(what, dim) if kind == "losses" else encodings(kind, what, dim)
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        pyplot.switch_backend("agg")
        axes = getattr(plots, kind)(drawn, **options)
        try:
            return plots.save(axes, out, **dots)
        finally:
            pyplot.close(axes.figure)


def comparison(what: Sequence[str], dim: int | None) -> str:
    if dim is not None:
        raise WhorlError("plot: --dim would be ignored by losses. Leave it out.")
    if len(what) != 1:
        raise invalid("plot losses", "WHAT", "one comparison.json, as whorl compare writes it", list(what))
    return what[0]


def encodings(kind: str, what: Sequence[str], dim: int | None) -> "Encoding | list[Encoding]":
    """The encodings that are named, or the kind's own; numbers that training sets are drawn from one seed."""
    import torch

    known = KINDS[kind]
    if len(what) > 1 and not known.several:
        raise WhorlError(f"plot: {kind} draws one encoding, got {', '.join(what)}. Leave all but one out.")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        built = [build(text, known.dim if dim is None else dim, dim is not None) for text in what or known.names]
    fresh = [each.config.name for each in built if any(True for _ in each.parameters())]
    if fresh:
        note(f"drawn as initialised, not trained: {', '.join(fresh)}.")
    return built if known.several else built[0]


def build(text: str, dim: int, asked: bool) -> "Encoding":
    """The encoding of a text such as ``rope:base=500000``, in so many dimensions where it has them to choose."""
    name, _, settings = text.partition(":")
    given = show.parse_settings(settings.split(",") if settings else [], "plot")
    if name in registry.SCALINGS:
        fields = registry.scaling_class(name).fields()
        given = {f"scaling.{key}" if key in fields else key: value for key, value in given.items()}
    fields = registry.encoding_class(name if name in registry.ENCODINGS else "rope").Config.fields()
    widths = [width for width in WIDTHS if width in fields]
    for width in widths[:1]:
        if width in given and asked:
            raise WhorlError(f"plot: --dim and {name}:{width}={given[width]} both say it. Leave one out.")
        given.setdefault(width, dim)
    return show.build(name, given)[0]
