"""Constants of compiled graphs, and comparisons that hold where a graph leaves sizes free.

A compiler traces Python line by line. Numbers made of a config are to be constants in the graph, not a hundred lines of
it: ``constant_in_graphs`` has the compiler call a function and take the result, ``held`` keeps that result as well.
Tensors go through ``tracing.kept_in_graphs``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache, wraps
from itertools import count
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import torch
from torch.utils._python_dispatch import _disable_current_modes

from whorl.forks import uncut

Function = TypeVar("Function", bound=Callable[..., Any])

# Results that one function holds, and values that keep their text after the last encoding with them is gone.
MOST_HELD = 1024


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


def held(function: Function) -> Function:
    """A function of hashable arguments that computes each result once, for all calls and graphs.

    Results are made outside of every mode: a tensor made under a fake mode or as an inference tensor must not outlive
    it. What is returned is shared, so nobody may write into it. A graph takes numbers from here, and no tensors.

    >>> @held
    ... def thirds(count):
    ...     return torch.arange(count) / 3
    >>> thirds(4) is thirds(4)
    True
    """

    @lru_cache(maxsize=MOST_HELD)
    def computed(*given: Hashable) -> Any:
        with uncut, _disable_current_modes(), torch.inference_mode(False):  # torch may import a part of itself here
            return function(*given)

    @wraps(function)
    def constant(*given: Hashable) -> Any:
        return computed(*given)

    vars(constant)["cache_clear"] = computed.cache_clear  # as every memo has it, for tests that change a formula
    return constant_in_graphs(constant)  # pyright: ignore[reportReturnType]


# A function that is a constant in graphs can be given a text, and not a config: some releases of torch do not take such
# an object, and with free sizes its numbers would be symbols. So a text stands for a config. Texts are numbered, never
# used again and compared by every graph, so that no graph made for one config serves another.
_BY_TEXT: WeakValueDictionary[str, Any] = WeakValueDictionary()
_NUMBERS = count()


@lru_cache(maxsize=MOST_HELD)
def with_text(value: Hashable) -> tuple[Any, str]:
    """A value equal to the given one, and a text that stands for it in this process as long as somebody keeps it.

    What a value shows of itself would not be enough: the classes of users may share their names, one defined anew has
    the name of the one before.
    """
    text = f"{value!r} {next(_NUMBERS)}"
    _BY_TEXT[text] = value
    return value, text


def value_of(text: str) -> Any:
    """The value that a text stands for."""
    return _BY_TEXT[text]


def equals_any(size: object, *others: object) -> bool:
    """Whether a size or a shape is one of others; in a graph with free sizes ``size in others`` can be wrong.

    There a known number is not found among symbols, though one of them has that value.

    >>> equals_any(3, 1, 3), equals_any((2, 5), (5,))
    (True, False)
    """
    return any(size == other for other in others)
