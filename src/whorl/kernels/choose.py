"""``impl=``: which implementation runs. A request that cannot be met raises and says why."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Literal, get_args

from whorl.errors import WhorlError, unknown
from whorl.forks import uncut

Impl = Literal["auto", "torch", "triton", "numba", "flex"]

IMPLS: tuple[str, ...] = get_args(Impl)

# The extra of whorl that installs a package.
EXTRAS = {"triton": "triton", "numba": "cpu"}


def choose(impl: Impl, operation: str, kernels: Mapping[str, str | None] | None = None) -> str:
    """The implementation that will run; ``"auto"`` is answered with the one it stands for.

    ``kernels`` maps those an operation has beside torch, the preferred first, to what keeps each from running
    here, or None.

    >>> choose("auto", "rotate", {"triton": "no CUDA device", "numba": None})
    'numba'
    """
    check_impl(impl, operation)
    kernels = kernels or {}
    if impl == "auto":
        return next((name for name, reason in kernels.items() if reason is None), "torch")
    if impl == "torch":
        return "torch"
    reason = kernels.get(impl, f"{operation} has no {impl} kernel")
    if reason is None:
        return impl
    raise WhorlError(f"impl={impl!r} cannot run here: {reason}. Use impl='torch', or run `whorl doctor`.")


def check_impl(impl: Impl, call: str) -> None:
    """Raises a WhorlError unless there is such an implementation."""
    if not isinstance(impl, str) or impl not in IMPLS:
        raise unknown("impl", impl, IMPLS, call=call)


@cache
def why_not_installed(package: str) -> str | None:
    """What keeps a package from being imported, with the remedy, or None."""
    try:
        with uncut:
            import_module(package)
    except ImportError as error:
        return f'{error} (pip install "whorl[{EXTRAS[package]}]")'
    return None
