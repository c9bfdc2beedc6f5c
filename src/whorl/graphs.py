"""What compiled graphs take as it is, and how they see sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


def constant_in_graphs(function: Function) -> Function:
    """Marks a function whose result a compiled graph takes as a constant: the compiler calls it, and does not look in.

    What torch.compiler.assume_constant_result does, which would import the whole compiler to do it.

    >>> @constant_in_graphs
    ... def sizes():
    ...     return 1, 2
    >>> sizes()
    (1, 2)
    """
    function._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]
    return function


def equals_any(size: object, *others: object) -> bool:
    """Whether a size or a shape is one of others, which ``size in others`` is not told in a graph with free sizes.

    There a number that is known is not found among symbols, though one of them has that value.

    >>> equals_any(3, 1, 3), equals_any((2, 5), (5,))
    (True, False)
    """
    return any(size == other for other in others)
