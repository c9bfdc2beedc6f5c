"""KERPLE, kernelized relative positions: a learned logarithm or power of the distance.

Chi, Fan, Ramadge, Rudnicky 2022, "KERPLE: Kernelized Relative Positional Embedding for Length Extrapolation".
    with d = |i - j| and two positive numbers p, a per head:
    log     -p ln(1 + a d)
    power   -a d^p,   p <= 2
Started from p ~ U(0, 2) and a ~ U(0, 1), and held at 0.01 or more, as in the authors' code. Theirs writes the bound
into the parameters; here a parameter past its bound counts as the bound and keeps its gradient, so it comes back when
the loss asks for it. power with p = 1 is ALiBi with learned slopes. Both fall with the distance whatever is learned.
Distances are taken in whole numbers and used in float32, so those up to 5,000 have different biases, each right to a
millionth of its size: the authors' bfloat16 cannot tell 257 from 256.
Position enters in the scores; the authors share the parameters among all layers, as one encoding given to a model is.
2 heads parameters; one logarithm or power per score.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from whorl.config import Config, config
from whorl.encodings import parts
from whorl.encodings.base import Claims
from whorl.encodings.bias import DistanceBias

LOWEST = 0.01
HIGHEST_POWER = 2.0  # beyond it the kernel is no longer conditionally positive definite


@config
class KerpleConfig(Config):
    """Everything that makes one KERPLE differ from another.

    heads          how many heads
    variant        "log" or "power"
    """

    name: ClassVar[str] = "kerple"
    heads: int
    variant: Literal["log", "power"] = "log"

    def check(self) -> None:
        self.check_positive("heads")


def log_kernel(distance: Tensor, p: Tensor, a: Tensor) -> Tensor:
    """-p ln(1 + a distance)."""
    return -p * torch.log1p(a * distance)


def power_kernel(distance: Tensor, p: Tensor, a: Tensor) -> Tensor:
    """-a distance^p, 0 at distance 0 with gradients of 0 there."""
    here = distance == 0
    # ln 0 would be in the gradient of 0^p, and times zero it is NaN
    return torch.where(here, 0.0, -a * torch.where(here, 1.0, distance) ** p)


def held_within(x: Tensor, low: float, high: float | None = None) -> Tensor:
    """x, not below low nor above high, with the gradient of x itself everywhere."""
    return x.clamp(low, high).detach() + (x - x.detach())  # the bound itself: x less x is 0, and has the gradient


def _wide(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


class Kerple(DistanceBias):
    """A learned logarithm, or power, of the distance for each head.

    >>> import torch, whorl
    >>> kerple = whorl.Kerple(heads=8, variant="log")
    >>> kerple.score_bias(whorl.positions(5), whorl.positions(5)).shape
    torch.Size([8, 5, 5])
    """

    Config = KerpleConfig
    config: KerpleConfig
    claims = Claims(
        relative=True,
        norm_preserving=True,  # queries and keys are left alone
        linear_attention=False,  # a bias inside a softmax
        decays=True,  # p and a are held above zero
        extrapolates=True,  # flat to 8 times the trained length and more, on two corpora
    )

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.p = nn.Parameter(torch.empty(self.config.heads))
        self.a = nn.Parameter(torch.empty(self.config.heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws p and a anew, as loading through the meta device needs."""
        nn.init.uniform_(self.p, 0.0, 2.0)
        nn.init.uniform_(self.a, 0.0, 1.0)

    def declare(self) -> tuple[parts.Part, ...]:
        return (parts.BiasByDistance(self, formula=True, curve=self.config.variant),)

    def curve_numbers(self) -> Tensor:
        """p and a of each head within their bounds, (heads, 2)."""
        numbers = torch.stack((self.p, self.a), dim=1)
        if self.config.variant == "log":  # one bound for both
            return held_within(numbers.to(_wide(numbers)), LOWEST)
        return torch.stack(self._within(*numbers.unbind(1)), dim=1)

    def bias_of(self, head: Tensor, distance: Tensor) -> Tensor:
        p, a = self._within(self.p[head], self.a[head])  # read first: all that follows is elementwise
        kernel = log_kernel if self.config.variant == "log" else power_kernel
        return kernel(distance.abs().to(p.dtype), p, a)

    def _within(self, p: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
        wide = _wide(p)
        highest = None if self.config.variant == "log" else HIGHEST_POWER
        return held_within(p.to(wide), LOWEST, highest), held_within(a.to(wide), LOWEST)
