"""Changes by a scaling: the frequency of each pair before and after, and how much slower it turns."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from whorl import Encoding, WhorlError
from whorl.analysis.wavelengths import Array, frequencies_of


class Changes(NamedTuple):
    """Frequencies of each pair without and with the scaling, and after / before: 1 is kept, 1 / s interpolated."""

    before: Array
    after: Array
    kept: Array


def unscaled(encoding: Encoding) -> Encoding:
    """The encoding without its scaling."""
    if not hasattr(encoding.config, "scaling"):
        raise WhorlError(f"unscaled: {encoding.config.name} takes no scaling. Use rope or mrope.")
    plain: dict[str, Any] = {"scaling": None}
    return type(encoding).from_config(encoding.config.replace(**plain))


def changes(encoding: Encoding, length: int | None = None) -> Changes:
    """The frequencies of each pair before and after the encoding's scaling, when it serves this length.

    >>> import whorl
    >>> changes(whorl.Rope(head_dim=4, scaling=whorl.Linear(factor=4.0))).kept.tolist()
    [0.25, 0.25]
    """
    before = frequencies_of(unscaled(encoding))
    after = frequencies_of(encoding, length)
    return Changes(before, after, np.divide(after, before, out=np.ones_like(after), where=before != 0))
