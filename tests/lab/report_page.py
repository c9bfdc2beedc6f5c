"""A report read back: the page as a tree, and its figures as values by their own ticks."""

from __future__ import annotations

import math
import re
from html.parser import HTMLParser

import pytest

VOID = {"meta", "br", "hr", "img", "input", "link"}


class Node:
    """An element of a parsed page."""

    def __init__(self, name: str, attributes: dict[str, str]) -> None:
        self.name, self.attributes = name, attributes
        self.children: list[Node | str] = []

    def all(self, name: str | None = None, css: str | None = None) -> list[Node]:
        """The elements below with this name and class."""
        found = []
        for child in self.children:
            if isinstance(child, Node):
                if (name is None or child.name == name) and (css is None or css in child.classes):
                    found.append(child)
                found += child.all(name, css)
        return found

    def one(self, name: str | None = None, css: str | None = None) -> Node:
        found = self.all(name, css)
        assert len(found) == 1, (name, css, len(found))
        return found[0]

    @property
    def classes(self) -> list[str]:
        return self.attributes.get("class", "").split()

    @property
    def text(self) -> str:
        return "".join(child if isinstance(child, str) else child.text for child in self.children)

    def number(self, attribute: str) -> float:
        return float(self.attributes[attribute])


class Page(HTMLParser):
    """A page as a tree; tags that do not balance fail."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.source = source
        self.root = Node("root", {})
        self.open = [self.root]
        self.feed(source)
        self.close()
        assert self.open == [self.root], [node.name for node in self.open]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        node = Node(tag, {key: value or "" for key, value in attrs})
        assert len(node.attributes) == len(attrs), f"an attribute twice in {tag}"
        self.open[-1].children.append(node)
        if tag not in VOID:
            self.open.append(node)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1].name == tag, f"</{tag}> closes <{self.open[-1].name}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.open[-1].children.append(data)


def numbers(path: str) -> list[list[tuple[float, float]]]:
    """The points of a path of M and L, a list for each stretch."""
    assert set(re.sub(r"[-\d. z]", "", path)) <= {"M", "L"}, path
    return [
        [tuple(map(float, point.split())) for point in stretch.rstrip("z").split("L")]  # type: ignore[misc]
        for stretch in path.split("M")[1:]
    ]


class Drawn:
    """A panel read back by its own ticks."""

    def __init__(self, svg: Node) -> None:
        self.svg = svg
        self.xs = {
            float(t.text): t.number("x") for t in svg.one("g", "x").all("text") if "times" not in t.classes and t.text
        }
        marks = [(_value(t.text), t.number("y")) for t in svg.one("g", "y").all("text")]
        (first, low), (last, high) = marks[0], marks[-1]
        self.slope = (last - first) / (high - low)
        self.start = first - low * self.slope
        for value, y in marks:
            assert self.value(y) == pytest.approx(value, abs=abs(self.slope) * 0.02)

    def value(self, y: float) -> float:
        return self.start + y * self.slope

    def length(self, x: float) -> float:
        """The length at x; those without a tick lie between in powers of two."""
        places = sorted((place, length) for length, place in self.xs.items())
        (a, low), (b, high) = places[0], places[-1]
        return 2 ** (math.log2(low) + (x - a) / (b - a) * (math.log2(high) - math.log2(low)))

    def series(self, name: str) -> Node:
        found = [node for node in self.svg.all("g", "series") if node.children[0].text == name]  # type: ignore[union-attr]
        assert len(found) == 1, name
        return found[0]

    def line(self, name: str) -> list[list[tuple[float, float]]]:
        """The stretches of a line, as lengths and values."""
        path = self.series(name).one("path", "line").attributes["d"]
        return [[(self.length(x), self.value(y)) for x, y in stretch] for stretch in numbers(path)]

    def band(self, name: str) -> list[list[tuple[float, float]]]:
        bands = self.series(name).all("path", "band")
        return [
            [(self.length(x), self.value(y)) for x, y in stretch]
            for band in bands
            for stretch in numbers(band.attributes["d"])
        ]


def _value(text: str) -> float:
    return float(text.rstrip("%")) / 100 if text.endswith("%") else float(text.replace("−", "-"))


def panels(page: Page) -> dict[str, Drawn]:
    """The panels by the key in their ids."""
    return {svg.one("desc").attributes["id"].removesuffix("-desc"): Drawn(svg) for svg in page.root.all("svg", "panel")}
