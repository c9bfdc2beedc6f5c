"""Names on a command line: how they are completed, and lists of them with commas."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from whorl import registry
from whorl.errors import invalid


def completing(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """What a shell is told of a name that is being typed: those of the names that begin so."""
    return lambda incomplete: [name for name in names() if name.startswith(incomplete)]


complete_encoding = completing(registry.names)


def names_in(text: str) -> list[str]:
    """The names of a list.

    >>> names_in("ntk,rerope+logn")
    ['ntk', 'rerope+logn']
    """
    return [name for name in text.split(",") if name]


def numbers_in(text: str, option: str, call: str) -> list[int]:
    """The positive numbers of a list, at least one.

    >>> numbers_in("512,1024", "--lengths", "lab match")
    [512, 1024]
    """
    try:
        numbers = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        raise invalid(call, option, "positive numbers with commas between them", text)
    return numbers
