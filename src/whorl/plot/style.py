"""The style of all pictures: Axes to draw into, colours that everyone can tell apart, titles, labels, panels."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from whorl import Config, Encoding
from whorl.errors import WhorlError, invalid, printable
from whorl.result_rows import AS_TRAINED, WINDOW

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.colorbar import Colorbar
    from matplotlib.image import AxesImage

Encodings = Encoding | Sequence[Encoding]

# Okabe and Ito 2008, "Color Universal Design", in the order of contrast on white; its yellow is too pale for a line.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, BLACK = COLOURS
DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)))
GREY, FAINT, PALE = "#666666", "#B8B8B8", "#E8E8E8"
MARKERS = "osD^v"

SIZE = (7.2, 4.0)  # inches
SMALL, NORMAL, LARGE = 8.0, 9.0, 10.5  # points

SEQUENTIAL = "cividis"


def need_matplotlib() -> None:
    """Raises a WhorlError where matplotlib is missing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise WhorlError('plot: matplotlib is not installed. Run: pip install "whorl[plot]"') from None


def axes(ax: Axes | None, size: tuple[float, float] = SIZE) -> Axes:
    """The Axes to draw into: the one given, else that of a new figure which pyplot knows and nobody shows."""
    need_matplotlib()
    if ax is not None:
        return ax
    from matplotlib import pyplot

    return pyplot.subplots(figsize=size, layout="constrained")[1]


def dress(ax: Axes, title: str, x: str = "", y: str = "", *, grid: bool = True) -> None:
    """Gives an Axes its title, axis labels, a faint grid and no box."""
    set_title(ax, title)
    ax.set_xlabel(x, fontsize=NORMAL)
    ax.set_ylabel(y, fontsize=NORMAL)
    ax.tick_params(which="both", labelsize=SMALL)
    ax.spines[["top", "right"]].set_visible(False)
    if grid:
        ax.grid(True, which="major", color=PALE, linewidth=0.8)
        ax.set_axisbelow(True)


def set_title(ax: Axes, title: str, above: float = 6.0) -> None:
    """Writes a title on the left, ``above`` points over the Axes, in lines of about one length that fit its width."""
    points = ax.get_window_extent().width / ax.figure.dpi * 72
    most = max(20, int(points / (0.52 * LARGE)))  # a letter is about so wide
    lines = math.ceil(len(title) / most)
    ax.set_title(_balanced(title, lines, most), loc="left", fontsize=LARGE, pad=above)


def _balanced(text: str, lines: int, most: int) -> str:
    """The text in as few lines as it takes, the longest of them as short as can be."""
    for width in range(max(1, len(text) // max(1, lines)), most):
        found = textwrap.wrap(text, width, break_long_words=False)
        if len(found) <= lines and max(map(len, found), default=0) <= width:
            return "\n".join(found)
    return textwrap.fill(text, most)


def count(value: float) -> str:
    """A number of positions: four digits, or all that are before the point.

    >>> count(62.83185), count(47117.4)
    ('62.83', '47,117')
    """
    return f"{value:.4g}" if value < 1000 else f"{value:,.0f}"


def dress_map(ax: Axes, title: str, x: str, y: str) -> None:
    """Gives an Axes that holds a map its title and labels, and leaves it its box."""
    dress(ax, title, x, y, grid=False)
    ax.spines[["top", "right"]].set_visible(True)


def key(ax: Axes, *, inside: str | None = None) -> None:
    """The legend, to the right of the Axes where it can hide nothing, or inside where a corner is known to be free."""
    place: dict[str, Any] = {"loc": inside} if inside else {"loc": "upper left", "bbox_to_anchor": (1.01, 1.0)}
    legend = ax.legend(fontsize=SMALL, frameon=False, handlelength=2.6, borderaxespad=0.3, **place)
    legend.set_alignment("left")


def plain(text: str) -> str:
    """A text that matplotlib draws letter by letter: no formula in it, and nothing that has no letter.

    >>> plain("a$b")
    'a\\\\$b'
    """
    return printable(text).replace("$", r"\$")


def line_style(index: int, points: int = 0) -> dict[str, Any]:
    """Colour and dashes of a line by its index, thinner where it has many points; dashes change after seven lines."""
    return {
        "color": COLOURS[index % len(COLOURS)],
        "linestyle": DASHES[index // len(COLOURS) % len(DASHES)],
        "linewidth": 1.6 if points <= 300 else 1.1 if points <= 2000 else 0.7,
    }


@dataclass(frozen=True)
class Look:
    """How a row of a comparison is drawn, in pictures and in reports alike."""

    index: int | None  # which dash and marker; None for the grey reference
    colour: int = 0  # of COLOURS
    hollow: bool = False  # a repair


def looks(rows: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Look]:
    """The look of each row by label and variant: models as trained in order, then repairs in any colour but theirs.

    >>> looks([("rope", "as trained"), ("rope", "ntk"), ("alibi", "as trained")])["alibi", "as trained"]
    Look(index=1, colour=1, hollow=False)
    """
    found: dict[tuple[str, str], Look] = {}
    repairs: dict[str, int] = {}
    ordered = sorted(dict.fromkeys(row for row in rows if row[1] != WINDOW), key=lambda row: row[1] != AS_TRAINED)
    for i, (label, variant) in enumerate(ordered):
        base = found.get((label, AS_TRAINED))
        if base is None:
            found[label, variant] = Look(i, i % len(COLOURS))
            continue
        step = repairs[label] = repairs.get(label, 0) + 1
        colour = (base.colour + 1 + (step - 1) % (len(COLOURS) - 1)) % len(COLOURS)
        found[label, variant] = Look(i, colour, hollow=True)
    return found


def signed_map(ax: Axes, values: np.ndarray, label: str, limit: float) -> None:
    """A matrix in blue for negative, white for 0 and vermilion for positive, up to the limit, with its colour bar."""
    from matplotlib.colors import LinearSegmentedColormap

    colours = LinearSegmentedColormap.from_list("whorl_signed", [BLUE, "#FFFFFF", VERMILION])
    colour_bar(ax, show_map(ax, values, cmap=colours, vmin=-limit, vmax=limit), label)


def colour_bar(
    ax: Axes,
    image: ScalarMappable,
    label: str,
    *,
    place: tuple[float, float, float, float] = (1.03, 0.0, 0.035, 1.0),
    extend: Literal["neither", "min"] = "neither",
) -> Colorbar:
    """A colour bar in its own panel at a place (left, bottom, width, height) in shares of the Axes."""
    bar = ax.figure.colorbar(image, cax=ax.inset_axes(place), extend=extend)
    bar.set_label(label, fontsize=NORMAL)
    bar.ax.tick_params(labelsize=SMALL)
    bar.outline.set_visible(False)
    return bar


def panels(
    ax: Axes, title: str, rows: int, columns: int, *, gap: tuple[float, float], right: float = 0.0, above: float = 20.0
) -> list[list[Axes]]:
    """Axes in rows and columns inside an Axes, which keeps nothing but its title.

    ``gap`` (between columns, between rows) and ``right`` (free space on the right) are shares of its width and height.
    The title stands ``above`` points over the first row, because the panels have titles too.
    """
    ax.set_axis_off()
    set_title(ax, title, above)
    wide = (1 - right - gap[0] * (columns - 1)) / columns
    high = (1 - gap[1] * (rows - 1)) / rows

    def panel(row: int, column: int) -> Axes:
        return ax.inset_axes((column * (wide + gap[0]), 1 - high - row * (high + gap[1]), wide, high))

    return [[panel(row, column) for column in range(columns)] for row in range(rows)]


def show_map(ax: Axes, values: Any, **settings: Any) -> AxesImage:
    """A matrix as a picture, first row on top, one cell for each number."""
    return ax.imshow(values, aspect="auto", interpolation="nearest", origin="upper", **settings)


def spread(count: int, most: int) -> list[int]:
    """Up to ``most`` of the indices below count, the first and the last among them, evenly apart.

    >>> spread(4, 8), spread(64, 4)
    ([0, 1, 2, 3], [0, 21, 42, 63])
    """
    if count <= most:
        return list(range(count))
    return [round(i * (count - 1) / (most - 1)) for i in range(most)]


def indices(call: str, name: str, given: Sequence[int] | None, count: int, most: int) -> list[int]:
    """The indices given, each of them below count; up to ``most`` spread over all of them where none are given."""
    chosen = spread(count, most) if given is None else list(given)
    if not chosen or not all(0 <= index < count for index in chosen):
        raise invalid(call, name, f"indices from 0 to {count - 1}", given)
    return chosen


def check_length(call: str, length: int) -> None:
    """Raises a WhorlError where there is nothing to draw."""
    if length < 1:
        raise invalid(call, "length", "at least 1", length)


def encodings_of(call: str, given: Encodings) -> list[Encoding]:
    """One encoding or several, as a list that has at least one."""
    found = [given] if isinstance(given, Encoding) else list(given)
    for each in found:
        if not isinstance(each, Encoding):
            raise invalid(call, "every encoding", "an encoding", each, "Build one by name: whorl.build(…).")
    if not found:
        raise invalid(call, "encodings", "at least one encoding", given)
    return found


def labels(encodings: Sequence[Encoding]) -> list[str]:
    """A name for each encoding, with the settings in which those of one name differ.

    >>> import whorl
    >>> labels([whorl.Alibi(heads=8), whorl.Rope(head_dim=64), whorl.Rope(head_dim=64, base=5e5)])
    ['alibi', 'rope, base 10,000', 'rope, base 500,000']
    """
    names = [_name(each.config) for each in encodings]
    out = []
    for each, name in zip(encodings, names, strict=True):
        same = [other.config for other, its in zip(encodings, names, strict=True) if its == name]
        differ = [key for key in each.config.fields() if len({_text(getattr(one, key)) for one in same}) > 1]
        out.append(", ".join([name, *(f"{_word(key)} {_text(getattr(each.config, key))}" for key in differ)]))
    return out


def _name(config: Config) -> str:
    parts = getattr(config, "parts", None)
    if parts is not None:
        return " + ".join(_name(part) for part in parts)
    scaling = getattr(config, "scaling", None)
    return config.name if scaling is None else f"{config.name} + {scaling.name}"


def _word(key: str) -> str:
    return key.replace("_", " ")


def _text(value: Any) -> str:
    if isinstance(value, Config):
        changed = [key for key, field in value.fields().items() if getattr(value, key) != field.default]
        return " ".join(f"{_word(key)} {_text(getattr(value, key))}" for key in changed)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return f"{value:,.10g}"
