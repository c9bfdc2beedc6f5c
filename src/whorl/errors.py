"""The one error class of whorl, and the helpers that word every message.

A message reads: public call, what is wrong, what was given, and a remedy.

    Rope: head_dim must be even, got 33. Rotary pairs dimensions; use head_dim=34 or rotary_dim=32.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from difflib import get_close_matches

# What a terminal obeys instead of showing it (controls, marks that turn the direction of a line), what begins another
# line, and halves of a letter (surrogates), which no encoding of text has.
UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


class WhorlError(ValueError):
    """A request that cannot be met, with the reason and the remedy in its text, which is one line and safe to print."""

    def __str__(self) -> str:
        return printable(super().__str__())


def invalid(call: str, name: str, expected: str, got: object, remedy: str = "") -> WhorlError:
    """The error for a value that breaks a rule: ``call: name must be expected, got …. remedy``."""
    sentence = f"{call}: {name} must be {expected}, got {shown(got)}."
    return WhorlError(f"{sentence} {remedy}".rstrip())


def check_counts(call: str, **counts: object) -> None:
    """Raises a WhorlError unless each of these is a positive integer."""
    for name, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise invalid(call, name, "a positive integer", value)


def check_flags(call: str, **flags: object) -> None:
    """Raises a WhorlError unless each of these is True or False."""
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise invalid(call, name, "True or False", value)


def is_finite_number(value: object) -> bool:
    """Whether a value is an int or float, and no bool, that a float can be.

    >>> is_finite_number(1), is_finite_number(True), is_finite_number(10**400)
    (True, False, False)
    """
    most = sys.float_info.max
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -most <= value <= most


def unknown(what: str, got: object, known: Iterable[str], call: str = "") -> WhorlError:
    """The error for a name that does not exist: suggests the nearest one, else lists what there is."""
    names = sorted(known)
    near = get_close_matches(got, names, n=1) if isinstance(got, str) else []
    hint = f"Did you mean {near[0]!r}?" if near else f"Expected one of: {', '.join(names) or 'nothing'}."
    start = f"{call}: unknown {what}" if call else f"unknown {what}"
    return WhorlError(f"{start} {shown(got)}. {hint}")


def shown(value: object) -> str:
    """A short text of a value for a message: tensors as dtype and shape, long sequences cut.

    >>> shown([1, 2]), shown(10**5000)
    ('[1, 2]', 'an object of type int')
    """
    try:
        if getattr(value, "is_nested", False) is True:  # it has several shapes, and raises where asked for one
            return f"a nested tensor of {value.dtype}"  # pyright: ignore[reportAttributeAccessIssue]
        shape = getattr(value, "shape", None)
        if shape is not None and hasattr(value, "dtype"):
            dtype = str(value.dtype)  # pyright: ignore[reportAttributeAccessIssue]
            owner = type(value).__module__.partition(".")[0]
            return f"{dtype if '.' in dtype else f'{owner}.{dtype}'} of shape {tuple(shape)}"
        text = repr(value)
    except Exception:  # a number of more digits than Python writes, or a class whose own text fails
        return f"an object of type {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."


def printable(text: str, *, lines: bool = False) -> str:
    """The text with all that is unsafe to print written as JSON writes it; ``lines`` keeps ends of lines and tabs.

    >>> printable("a\\x1b[2J")
    'a\\\\u001b[2J'
    """
    kept = "\n\t" if lines else ""
    return UNSAFE.sub(lambda found: found[0] if found[0] in kept else f"\\u{ord(found[0]):04x}", text)


def dtype_name(dtype: object) -> str:
    """A dtype of torch as users write it: bfloat16."""
    return str(dtype).removeprefix("torch.")
