"""Writing a picture to a file: whole or not at all, and the same bytes for the same picture."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whorl.dialects.documents import kind_of, named
from whorl.errors import WhorlError, invalid

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUFFIXES = (".pdf", ".png", ".svg")
DOTS_PER_INCH, MOST_DOTS = 160, 2400

# The fields of each format that hold a date or a version, left out.
UNDATED: dict[str, dict[str, Any]] = {
    ".pdf": {"CreationDate": None, "Producer": None, "Creator": None},
    ".png": {"Software": None},
    ".svg": {"Date": None, "Creator": None},
}


def check_path(path: str | Path, call: str = "save") -> Path:
    """The path, or a WhorlError where its suffix names no format or its folder does not exist."""
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise invalid(call, "the file's suffix", "one of .png, .svg, .pdf", path.suffix or str(path))
    if kind_of(path.parent, call) != "folder":
        raise WhorlError(f"{call}: there is no folder {path.parent}. Make it first.")
    return path


def save(ax: Axes, path: str | Path, *, dpi: int = DOTS_PER_INCH) -> Path:
    """Writes the figure that an Axes belongs to as .png, .svg or .pdf, and returns the path.

    The file appears whole or not at all, and one there already is replaced. ``dpi`` are a .png's dots per inch.
    """
    import matplotlib

    if not 1 <= dpi <= MOST_DOTS:
        raise invalid("save", "dpi", f"between 1 and {MOST_DOTS}", dpi)
    path = check_path(path)
    suffix = path.suffix.lower()
    figure = ax.get_figure(root=True)
    assert figure is not None
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        # ids in an SVG are random without a salt
        with matplotlib.rc_context({"svg.hashsalt": "whorl", "svg.fonttype": "path"}):
            figure.savefig(part, format=suffix[1:], dpi=dpi, metadata=UNDATED[suffix])
        part.replace(path)
    except OSError as error:
        raise WhorlError(f"save: cannot write {named(path)}: {error.strerror}. Choose another place.") from None
    except ValueError as error:  # between two dollars in a title stands no formula
        raise WhorlError(f"save: a text cannot be drawn: {error}. Write \\$ for a dollar.") from None
    finally:
        with contextlib.suppress(OSError):  # never made
            part.unlink()
    return path
