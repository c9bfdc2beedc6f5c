"""RoPE, the rotary position embedding.

Su, Lu, Pan, Murtadha, Wen, Liu 2021, "RoFormer: Enhanced Transformer with Rotary Position Embedding".
    pair i of a query or key at position m is turned by the angle m * w_i,   w_i = base^(-2i/d)
    <R_m q, R_n k> = <q, R_(n-m) k>:   scores depend on the distance only
Position enters in every layer, on queries and keys. No parameters; two multiplications and an addition per element of
q and k.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from whorl.config import config
from whorl.encodings.rotary import Rotary
from whorl.encodings.rotary_config import RotaryConfig
from whorl.errors import WhorlError, invalid
from whorl.rotary.frequencies import Ladder
from whorl.rotary.rotation import Layout
from whorl.rotary.scalings.base import Factors, Scaling

DEFAULT_BASE = 10_000.0


@config
class RopeConfig(RotaryConfig):
    """Everything that makes one RoPE differ from another, beside what every rotary config has.

    base           the base of the frequencies, 10,000 unless ``frequencies`` are given
    layout         which two dimensions make a pair
    rotary_dim     how many dimensions are rotated; None for all
    slice          where they lie: "leading", "trailing", or the first one's index
    scaling        a context-extension scheme, or None
    frequencies    w_i given as numbers, in place of a base
    learnable      whether each w_i is multiplied by exp(a_i) with a_i trained from 0
    backwards      whether pairs turn the other way, by -m * w_i, as in nanochat
    """

    name: ClassVar[str] = "rope"
    later: ClassVar[tuple[str, ...]] = ("backwards",)
    base: float | None = None
    layout: Layout = "half"
    rotary_dim: int | None = None
    slice: Literal["leading", "trailing"] | int = "leading"
    scaling: Scaling | None = None
    frequencies: tuple[float, ...] | None = None
    learnable: bool = False
    backwards: bool = False

    def check(self) -> None:
        super().check()
        self._check_dims()
        self._check_frequencies()
        if self.scaling is not None:
            self.scaling.check_ladder(self.ladder())
        if self.learnable and self.angles == "float32":
            raise WhorlError(f"{self.call()}: learnable frequencies have no float32 mode. Use angles='exact'.")

    def replace(self, **changes: Any) -> Self:
        if "head_dim" in changes and self.rotary_dim == self.head_dim:
            changes = {"rotary_dim": None, **changes}  # a whole head stays a whole head
        return super().replace(**changes)

    def _check_dims(self) -> None:
        if self.rotary_dim is None:
            if self.head_dim % 2:
                raise invalid(self.call(), "head_dim", "even", self.head_dim, f"Rotary pairs dimensions{self._near()}.")
            object.__setattr__(self, "rotary_dim", self.head_dim)
        even = self.pairs > 0 and self.rotary_dim == 2 * self.pairs
        self.must(even, "rotary_dim", "even and positive", remedy="Rotary pairs dimensions.")
        placed = not isinstance(self.slice, int) or self.slice >= 0
        self.must(placed, "slice", "'leading', 'trailing' or an index from 0")
        if self.start < 0 or self.start + 2 * self.pairs > self.head_dim:
            raise WhorlError(
                f"{self.call()}: rotary_dim={self.rotary_dim} from dimension {max(self.start, 0)} does not fit "
                f"head_dim={self.head_dim}. Use a smaller rotary_dim or slice='leading'."
            )

    def _near(self) -> str:
        """The sizes nearest to an odd head that work with all other settings, for a message."""
        found, odd = [], self.head_dim
        for name, sizes in (
            ("head_dim", range(odd + 1, odd + 9, 2)),
            ("rotary_dim", range(odd - 1, max(odd - 9, 0), -2)),
        ):
            for size in sizes:
                with suppress(WhorlError):
                    self.replace(**{name: size})
                    found.append(f"{name}={size}")
                    break
        return f"; use {' or '.join(found)}" if found else ""

    def _check_frequencies(self) -> None:
        if self.frequencies is None:
            if self.base is None:
                object.__setattr__(self, "base", DEFAULT_BASE)
            else:
                self.check_base(self.base, "RoFormer uses 10,000.")
            return
        if self.base is not None:
            raise WhorlError(f"{self.call()}: base would be ignored, frequencies are given. Pass base=None.")
        if len(self.frequencies) != self.pairs:
            raise WhorlError(
                f"{self.call()}: frequencies must have rotary_dim / 2 = {self.pairs} numbers, "
                f"got {len(self.frequencies)}. One belongs to each rotated pair."
            )

    @property
    def pairs(self) -> int:
        assert self.rotary_dim is not None
        return self.rotary_dim // 2

    @property
    def start(self) -> int:
        if isinstance(self.slice, int):
            return self.slice
        return 0 if self.slice == "leading" else self.head_dim - 2 * self.pairs

    def ladder(self) -> Ladder:
        """The unscaled frequencies, in the precision of ``angles``."""
        return Ladder(2 * self.pairs, self.base, self.frequencies, self.dtype)

    def scaled_frequencies(self, length: int | None = None) -> Tensor:
        ladder = self.ladder()
        scaled = ladder.frequencies() if self.scaling is None else self.scaling.frequencies(ladder, length)
        return -scaled if self.backwards else scaled

    def served(self, length: int | None) -> int | None:
        return length if self.scaling is None else self.scaling.served(length)

    def factors(self, length: int | None = None) -> Factors:
        return Factors() if self.scaling is None else self.scaling.factors(length)


class Rope(Rotary):
    """Rotary position embedding with any layout, slice, scaling and precision.

    >>> import torch, whorl
    >>> rope = whorl.Rope(head_dim=64, scaling=whorl.Linear(factor=4.0))
    >>> q, k = torch.randn(1, 8, 16, 64), torch.randn(1, 2, 16, 64)
    >>> positions = whorl.positions(16)
    >>> q, k = rope.transform_qk(q, k, positions, positions)
    >>> q.shape, k.shape
    (torch.Size([1, 8, 16, 64]), torch.Size([1, 2, 16, 64]))
    """

    Config = RopeConfig
    config: RopeConfig

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        if self.config.learnable:
            self.log_scale = nn.Parameter(torch.empty(self.config.pairs, dtype=torch.float32))
            self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sets learnable frequencies back to those of the config, as loading through the meta device needs."""
        if self.config.learnable:
            nn.init.zeros_(self.log_scale)

    @classmethod
    def from_hf(cls, config: dict[str, Any], layer_type: str | None = None, **settings: Any) -> Self:
        """The rotary encoding of a transformers config given as a dict, v4 or v5 field names.

        A subclass builds itself, with the ``settings`` that no config holds: ``ReRope.from_hf(config, window=1024)``.
        Rope builds an MRope where the model has one.
        """
        from whorl.encodings.from_hf import rope_from_hf

        return rope_from_hf(config, layer_type, cls, settings)

    @property
    def layout(self) -> Layout:
        return self.config.layout

    @property
    def length_dependent(self) -> bool:
        return self.config.scaling is not None and self.config.scaling.length_dependent

    def _frequencies(self, length: int | None, device: torch.device | None = None) -> Tensor:
        if not self.config.learnable:
            return super()._frequencies(length, device)
        device = device or self.log_scale.device
        return self._constants(length, device) * self.log_scale.to(device).double().exp()
