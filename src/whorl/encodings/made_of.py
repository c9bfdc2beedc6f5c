"""Tensors made of what a module has learned, kept until that changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

Made = TypeVar("Made")


class MadeOf(Generic[Made]):
    """Tensors that ``make`` computes of a module's learned numbers, made anew when one of those is another.

    On the CPU the numbers themselves are compared, however they were written. Elsewhere, where looking would wait for
    the device, another is a parameter that was replaced, moved, or written into as optimizers do; what is written in
    place past torch's versions (``.data.copy_``) is not seen there. Nothing made here has gradients.
    """

    def __init__(self, module: nn.Module, make: Callable[[], Made]) -> None:
        self._places = [(part._parameters, name) for part in module.modules() for name in part._parameters]
        self._make = make
        self._made: Made | None = None
        self._of: list[_Learned | None] = []

    def takes_gradients(self) -> bool:
        """Whether one of the learned numbers asks for gradients, which what is kept does not have."""
        for parameters, name in self._places:
            learned = parameters.get(name)
            if learned is not None and learned.requires_grad:
                return True
        return False

    def __call__(self) -> Made:
        """The tensor as of now."""
        if self._made is not None:
            for (parameters, name), seen in zip(self._places, self._of, strict=True):
                learned = parameters.get(name)
                if learned is None or seen is None:
                    if learned is not seen:
                        break
                elif not seen.is_still(learned):
                    break
            else:
                return self._made
        with torch.inference_mode(False), torch.no_grad():
            self._made = self._make()
            now = (parameters.get(name) for parameters, name in self._places)
            self._of = [None if learned is None else _Learned(learned) for learned in now]
        return self._made


class _Learned:
    """A parameter as it was."""

    def __init__(self, x: Tensor) -> None:
        self._x, self._version, self._readable = x, _version(x), type(x) in (Tensor, nn.Parameter)
        # a copy to compare on the CPU; elsewhere the memory, which is held so that its address stays its own
        self._kept = x.detach().clone() if self._readable and x.device.type == "cpu" else x.detach()
        self._compared = self._kept.device.type == "cpu"

    def is_still(self, x: Tensor) -> bool:
        """Whether x is the same parameter with the same numbers, as far as can be told without waiting."""
        if x is not self._x or _version(x) != self._version:
            return False
        if not self._readable:
            return True
        kept = self._kept
        if x.dtype != kept.dtype or x.device != kept.device or x.shape != kept.shape:
            return False
        return torch.equal(x, kept) if self._compared else x.data_ptr() == kept.data_ptr()


def _version(x: Tensor) -> int:
    """How often x was written into; tensors of inference mode do not tell."""
    return 0 if x.is_inference() else x._version
