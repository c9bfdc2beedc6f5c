"""Frequencies of rotary pairs: w_i = base^(-2i/dim), i < dim/2 (Su et al. 2021, RoFormer, section 3.2.2).

Pair 0 turns fastest (one radian per position for every base), the last pair slowest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from whorl.errors import WhorlError


@dataclass(frozen=True)
class Ladder:
    """The unscaled frequencies a scaling starts from.

    ``dtype`` is the precision every step runs in. In float32 the steps and their order are those of the
    frameworks, so the same formula text serves ``angles="exact"`` (float64) and ``angles="float32"``.
    """

    dim: int
    base: float | None
    given: tuple[float, ...] | None = None
    dtype: torch.dtype = torch.float64

    def exponents(self) -> Tensor:
        """2i/dim for every pair."""
        return self.arange(0, self.dim, 2) / self.dim

    def reduced_wavelengths(self, base: float | Tensor | None = None) -> Tensor:
        """wavelength / 2 pi of every pair: base^(2i/dim); another base may be asked for."""
        if self.given is not None:
            return 1.0 / torch.tensor(self.given, dtype=self.dtype, device="cpu")
        base = self.base if base is None else base
        assert base is not None
        return base ** self.exponents()

    def frequencies(self, base: float | Tensor | None = None) -> Tensor:
        """w_i of every pair, in radians per position; another base may be asked for."""
        if self.given is not None:
            return torch.tensor(self.given, dtype=self.dtype, device="cpu")
        return 1.0 / self.reduced_wavelengths(base)

    def need_base(self, call: str) -> float:
        """The base, or a WhorlError from the scaling that cannot work without one."""
        if self.base is None:
            raise WhorlError(
                f"{call}: cannot scale frequencies given as a list, it changes the base. "
                "Use base=…, or a scaling that works on any frequencies: Linear, Llama3, LongRope, NtkByParts."
            )
        return self.base

    def arange(self, *bounds: int) -> Tensor:
        # integers first, then the float type: exact for every dim, and the order frameworks use
        return torch.arange(*bounds, dtype=torch.int64, device="cpu").to(self.dtype)


def wavelengths(frequencies: Tensor) -> Tensor:
    """Positions per full turn of every pair, 2 pi / w_i; infinite where a pair does not turn."""
    return 2 * math.pi / frequencies
