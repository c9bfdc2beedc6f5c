"""The one error class of whorl, and the helpers that word every message.

A message reads: public call, what is wrong, what was given, and a remedy.

    Rope: head_dim must be even, got 33. Rotary pairs dimensions; use head_dim=34 or rotary_dim=32.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class WhorlError(ValueError):
    """A request that cannot be met, with the reason and the remedy in its text."""


def invalid(call: str, name: str, expected: str, got: object, remedy: str = "") -> WhorlError:
    """The error for a value that breaks a rule: ``call: name must be expected, got …. remedy``."""
    sentence = f"{call}: {name} must be {expected}, got {shown(got)}."
    return WhorlError(f"{sentence} {remedy}".rstrip())


def unknown(what: str, got: object, known: Iterable[str], call: str = "") -> WhorlError:
    """The error for a name that does not exist: suggests the nearest one, else lists what there is."""
    names = sorted(known)
    near = get_close_matches(str(got), names, n=1)
    hint = f"Did you mean {near[0]!r}?" if near else f"Expected one of: {', '.join(names) or 'nothing'}."
    return WhorlError(f"{call}: unknown {what} {got!r}. {hint}" if call else f"unknown {what} {got!r}. {hint}")


def shown(value: object) -> str:
    """A short text of a value for a message: tensors as dtype and shape, long sequences cut."""
    shape = getattr(value, "shape", None)
    if shape is not None and hasattr(value, "dtype"):
        return f"{value.dtype} of shape {tuple(shape)}"  # pyright: ignore[reportAttributeAccessIssue]
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
