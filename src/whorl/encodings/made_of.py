"""Tensors made of what a module has learned, kept until that changes."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary, ref

import numpy as np
import torch
from torch import Tensor, nn

Made = TypeVar("Made")

MANY = 4096
BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # by the bytes of a number


class MadeOf(Generic[Made]):
    """Tensors that ``make(module)`` computes of learned numbers, made anew when one of those is another.

    On the CPU the numbers themselves are compared, however they were written. Elsewhere, where looking would wait for
    the device, another is a parameter that was replaced, moved, or written into as optimizers do; what is written in
    place past torch's versions (``.data.copy_``) is not seen there. Nothing made here has gradients.

    Plans hold this, and a plan must not keep its encoding alive: the module is held weakly.
    """

    def __init__(self, module: nn.Module, make: Callable[[Any], Made]) -> None:
        self._module = ref(module)
        self._places = [(ref(part), name) for part in module.modules() for name in part._parameters]
        self._make = make
        self._made: Made | None = None
        self._of: list[_Learned | None] = []

    @property
    def bytes(self) -> int:
        """Memory of the tensors."""
        return 0 if self._made is None else sum(x.numel() * x.element_size() for x in _tensors(self._made))

    def is_of(self, module: nn.Module) -> bool:
        """Whether the tensors are this module's."""
        return self._module() is module

    def takes_gradients(self) -> bool:
        """Whether one of the learned numbers asks for gradients, which what is kept does not have."""
        return any(learned is not None and learned.requires_grad for learned in self._learned())

    def __call__(self) -> Made:
        """The tensor as of now."""
        learned = self._learned()
        if self._made is None or not all(map(_is_same, self._of, learned)):
            with torch.inference_mode(False), torch.no_grad():
                self._made = self._take(self._make(self._module()))
                self._of = [None if x is None else _Learned(x) for x in learned]
        return self._made

    def _learned(self) -> list[Tensor | None]:
        return [None if (part := held()) is None else part._parameters.get(name) for held, name in self._places]

    def _take(self, made: Made) -> Made:
        """What is kept of tensors that were just made."""
        return made


class TablesOf(MadeOf[Made]):
    """The same for kernels: numbers made anew are written into the memory of those before.

    A captured CUDA graph reads that memory, and whoever holds this holds it. So no gradient may need what was in it.
    """

    def _take(self, made: Made) -> Made:
        if self._made is None or not _alike(self._made, made):
            return _apart(made, self._learned())
        for x, y in zip(_tensors(self._made), _tensors(made), strict=True):
            x.copy_(y)
        return self._made


# By encoding, and what decides the tables: those that plans hold, shared by all of them. Nothing is kept here.
_TABLES: WeakValueDictionary[Hashable, MadeOf[Any]] = WeakValueDictionary()


def tables_of(encoding: nn.Module, key: Hashable, make: Callable[[Any], Made]) -> TablesOf[Made]:
    """The tables that ``make(encoding)`` computes, under a key that has all that decides them beside the encoding."""
    return _shared(TablesOf, encoding, key, make)


def growing_of(encoding: nn.Module, key: Hashable, make: Callable[[Any], Made]) -> MadeOf[Made]:
    """The same for tables that grow with a text, begun anew where the learned numbers change: no graph reads them."""
    return _shared(MadeOf, encoding, key, make)


def _shared(kind: type[Any], encoding: nn.Module, key: Hashable, make: Callable[[Any], Any]) -> Any:
    own = id(encoding), key
    tables = _TABLES.get(own)
    if tables is None or not tables.is_of(encoding):
        tables = _TABLES[own] = kind(encoding, make)
    return tables


def _tensors(made: Any) -> list[Tensor]:
    return [made] if isinstance(made, Tensor) else [x for x in made if x is not None]


def _alike(a: Any, b: Any) -> bool:
    """Whether tensors that were made at two times fit each other's memory."""
    shapes = [[(x.shape, x.stride(), x.dtype, x.device) for x in _tensors(made)] for made in (a, b)]
    return shapes[0] == shapes[1]


def _apart(made: Any, learned: list[Tensor | None]) -> Any:
    """The tensors, those in a parameter's memory copied: nobody but a parameter's owner writes there."""
    own = {x.untyped_storage().data_ptr() for x in learned if x is not None and type(x) in (Tensor, nn.Parameter)}

    def copied(x: Tensor | None) -> Tensor | None:
        return x.clone() if x is not None and x.untyped_storage().data_ptr() in own else x

    return copied(made) if isinstance(made, Tensor) else type(made)(*map(copied, made))


class _Learned:
    """A parameter as it was."""

    def __init__(self, x: Tensor) -> None:
        self._x, self._version, self._readable = x, _version(x), type(x) in (Tensor, nn.Parameter)
        # a copy to compare on the CPU; elsewhere the memory, which is held so that its address stays its own
        self._kept = x.detach().clone() if self._readable and x.device.type == "cpu" else x.detach()
        self._compared = self._kept.device.type == "cpu"
        # torch compares one number after the other, numpy many at a time, which pays for the way there in large ones
        self._bits = BITS.get(x.itemsize) if self._compared and x.numel() >= MANY else None

    def is_still(self, x: Tensor) -> bool:
        """Whether x is the same parameter with the same numbers, as far as can be told without waiting."""
        if x is not self._x or _version(x) != self._version:
            return False
        if not self._readable:
            return True
        kept = self._kept
        if x.dtype != kept.dtype or x.device != kept.device or x.shape != kept.shape:
            return False
        if self._bits is not None and not x.is_neg():
            return np.array_equal(x.detach().view(self._bits).numpy(), kept.view(self._bits).numpy())
        return torch.equal(x, kept) if self._compared else x.data_ptr() == kept.data_ptr()


def _is_same(seen: _Learned | None, learned: Tensor | None) -> bool:
    return learned is None if seen is None else learned is not None and seen.is_still(learned)


def _version(x: Tensor) -> int:
    """How often x was written into; tensors of inference mode do not tell."""
    return 0 if x.is_inference() else x._version
