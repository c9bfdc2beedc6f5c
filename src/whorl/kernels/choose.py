"""``impl=``: which implementation runs. A request that cannot be met raises and says why."""

from __future__ import annotations

from typing import Literal, get_args

from whorl.errors import WhorlError, unknown

Impl = Literal["auto", "torch", "triton", "numba", "flex"]

IMPLS: tuple[str, ...] = get_args(Impl)


def choose(impl: Impl, operation: str) -> str:
    """The implementation that will run; ``"auto"`` is answered with the one it stands for.

    >>> choose("auto", "rotate")
    'torch'
    """
    if impl not in IMPLS:
        raise unknown("impl", impl, IMPLS, call=operation)
    if impl in ("auto", "torch"):
        return "torch"
    raise WhorlError(
        f"impl={impl!r} cannot run here: {operation} has no {impl} kernel in this version. Use impl='torch'."
    )
