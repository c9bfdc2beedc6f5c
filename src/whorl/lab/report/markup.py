"""HTML and SVG written as strings: elements made of escaped attributes and of children that are markup already."""

from __future__ import annotations

from html import escape

from whorl.lab.report.numbers import number


def text(value: object) -> str:
    """The value as text on the page, escaped."""
    return escape(str(value), quote=False)


def element(name: str, *children: str, **attributes: object) -> str:
    """One element around children that are markup; an attribute that is None is left out.

    >>> element("p", text("a < b"), class_="lead"), element("line", x1=1.50, stroke_width=2)
    ('<p class="lead">a &lt; b</p>', '<line x1="1.5" stroke-width="2"/>')
    """
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_plain(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if not children and name in EMPTY:
        return f"<{name}{given}/>"
    return f"<{name}{given}>{''.join(children)}</{name}>"


EMPTY = {"circle", "line", "path", "rect"}  # SVG elements that need no closing tag


def _plain(value: object) -> str:
    """Coordinates with two decimals at most: a hundredth of a pixel is nobody's business."""
    return coordinate(value) if isinstance(value, float) else str(value)


def coordinate(value: float) -> str:
    plain = number(value).replace("−", "-")
    return plain.rstrip("0").rstrip(".") if "." in plain else plain
