"""Tensors made of what a module has learned, kept until that changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

Made = TypeVar("Made")


class MadeOf(Generic[Made]):
    """Tensors that ``make`` computes of a module's learned numbers, made anew when one of those is another.

    Another is a parameter that was replaced, or written into as optimizers do; what is written past torch's versions
    (``.data``) is not seen. Nothing made here has gradients.
    """

    def __init__(self, module: nn.Module, make: Callable[[], Made]) -> None:
        self._places = [(part._parameters, name) for part in module.modules() for name in part._parameters]
        self._make = make
        self._made: Made | None = None
        self._of: list[tuple[Tensor | None, int]] = []

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
            for (parameters, name), (learned, version) in zip(self._places, self._of, strict=True):
                if parameters.get(name) is not learned or _version(learned) != version:
                    break
            else:
                return self._made
        with torch.inference_mode(False), torch.no_grad():
            self._made = self._make()
        now = (parameters.get(name) for parameters, name in self._places)
        self._of = [(learned, _version(learned)) for learned in now]
        return self._made


def _version(x: Tensor | None) -> int:
    """How often x was written into; tensors of inference mode do not tell, and are not written into."""
    return 0 if x is None or x.is_inference() else x._version
