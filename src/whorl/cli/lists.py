"""Lists as they are written on a command line, with commas."""

from __future__ import annotations

from whorl.errors import invalid


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
