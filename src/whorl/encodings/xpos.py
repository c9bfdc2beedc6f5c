"""xPos, rotary position embedding whose pairs fade with the distance, the fast ones sooner.

Sun, Dong, Patra, Ma, Huang, Benhaim, Chaudhary, Song, Wei 2022, "A Length-Extrapolatable Transformer".
    pair i of a query at m is turned by m w_i and multiplied by zeta_i^((m - c) / B)
    pair i of a key at n is turned by n w_i and multiplied by zeta_i^((c - n) / B)
    zeta_i = (2i/d + gamma) / (1 + gamma),   so a pair's part of the score has the factor zeta_i^((m - n) / B)
c is one centre for queries and keys: the middle of the queries of the call. Scores fade to 0 and not to minus infinity:
a far key weighs like one that does not match. Keys after the query grow, so attention must be causal;
where given positions fall from token to token, keys ``query_limit`` or more after the first query of a call grow no
further than those before them.
Position enters in every layer, on queries and keys. No parameters; two multiplications and an addition per element of
q and k.
Keys long before the queries underflow to 0, which is what their part of the score does. Overflow can only come from
the queries of one call lying too far apart: ``query_limit`` says how many neighbours fit a dtype, 32,862 in float32 and
1,134 in float16 with the paper's settings. More are refused, and on the CPU also queries that lie farther apart.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from whorl.config import LARGEST, config
from whorl.constants import numbers_on
from whorl.encodings import parts
from whorl.encodings.base import Claims, Encoding
from whorl.encodings.pairs import check_head
from whorl.encodings.rope import Rope, RopeConfig
from whorl.encodings.rotary import check_heads
from whorl.errors import WhorlError
from whorl.kernels.rotate_checks import check_input
from whorl.kernels.rotate_torch import wide_dtype
from whorl.position_checks import check_positions
from whorl.position_ids import difference, wide
from whorl.rotary.rotation import layout_ends
from whorl.rotary.tables import Tables
from whorl.tracing import may_read_values

# Bits of a dtype's range that are left to q . k itself; the fading takes the rest.
CONTENT_BITS = 12


@config
class XPosConfig(RopeConfig):
    """Everything that makes one xPos differ from another, beside what RoPE has.

    scale_base     B, the distance over which a pair fades by zeta
    gamma          how slowly the fastest pair fades: zeta_0 = gamma / (1 + gamma); without bound this is RoPE
    """

    name: ClassVar[str] = "xpos"
    scale_base: float = 512.0
    gamma: float = 0.4

    def check(self) -> None:
        super().check()
        for name, usual in (("scale_base", 512), ("gamma", 0.4)):
            self.must(getattr(self, name) > 0, name, "positive", remedy=f"The paper uses {usual}.")
        fades = self.rates[0] <= LARGEST
        self.must(fades, "scale_base", "larger", remedy="With this gamma no float has how fast the first pair fades.")

    @property
    def rates(self) -> tuple[float, ...]:
        """What the logarithm of each pair's factor loses per position."""
        return tuple(-each / self.scale_base for each in log_zeta(self.pairs, self.gamma))


def log_zeta(pairs: int, gamma: float) -> list[float]:
    """ln zeta_i of each pair, the first the smallest and none above 0."""
    return [-math.log1p((1 - i / pairs) / (i / pairs + gamma)) for i in range(pairs)]


def from_centre(q_positions: Tensor, k_positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """How far queries lie before the middle of the queries, how far keys after it, and the queries' span; float64.

    Whole numbers are subtracted as such: nothing is rounded, however far from 0 they are.
    """
    low, high = torch.aminmax(wide(q_positions), dim=-1, keepdim=True)
    span = difference(high, low).double()
    half = span / 2
    return difference(high, wide(q_positions)) - half, half - difference(high, wide(k_positions)), span


class XPos(Encoding):
    """Rotary position embedding with exponential fading, for causal attention.

    Every setting of Rope works; a scaling changes the rotation and not the fading. The factors of keys depend on the
    queries they meet, so a cache keeps keys untouched (``key_policy`` is "raw"). A call takes up to
    ``query_limit(dtype)`` queries, counted and not looked at: 32,862 in float32 and bfloat16, 1,134 in float16 with
    the paper's settings, and keys at any distance before them.

    >>> import torch, whorl
    >>> xpos = whorl.XPos(head_dim=64)
    >>> q, k, positions = torch.randn(1, 8, 16, 64), torch.randn(1, 2, 16, 64), whorl.positions(16, offset=1_000_000)
    >>> q, k = xpos.transform_qk(q, k, positions, positions)
    >>> xpos.query_limit(torch.float32)
    32862
    """

    Config = XPosConfig
    config: XPosConfig

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.rope = Rope(**{name: getattr(self.config, name) for name in RopeConfig.fields()})

    def reset_parameters(self) -> None:
        """Sets learnable frequencies back to those of the config, as loading through the meta device needs."""
        self.rope.reset_parameters()

    def declare(self) -> tuple[parts.Part, ...]:
        return (
            parts.Placement(self, rotary=self.rope),
            parts.Fade(self, rates=tuple(-rate for rate in self.config.rates)),
            parts.SoftmaxScale(self),
        )

    @property
    def causal_only(self) -> bool:
        return True

    @property
    def claims(self) -> Claims:
        linear = self.config.rotated_heads is None  # linear_decay is for all heads alike
        return Claims(relative=True, norm_preserving=False, linear_attention=linear, decays=False, extrapolates=False)

    @property
    def length_dependent(self) -> bool:
        return self.rope.length_dependent

    def softmax_scale(self, head_dim: int, length: int | None = None) -> float:
        return self.rope.softmax_scale(head_dim, length)

    def query_limit(self, dtype: torch.dtype) -> int:
        """How many neighbouring queries ``transform_qk`` can place at a time in this dtype."""
        bits = round(math.log2(torch.finfo(dtype).max)) - CONTENT_BITS
        return 1 + math.floor(bits * math.log(2) / max(self.config.rates[0], 2.0**-60))

    def transform_qk(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor, length: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Queries and keys, rotated and faded around the middle of the queries, for causal attention."""
        for x, positions in ((q, q_positions), (k, k_positions)):
            check_input(x, "bhld", "XPos")
            check_head("XPos", x, self.config.head_dim)
            check_positions("XPos", positions, 1)
        check_heads("XPos", self.config.rotated_heads, q, k)
        if not q_positions.numel():
            return self.rope.transform_qk(q, k, q_positions, k_positions, length)
        before, after, span = from_centre(q_positions, k_positions)
        most = self._check_range(q, k, span)
        # A key after the query grows, where it is seen at all: where positions fall in the order of tokens. One so far
        # that its product with the first query could overflow keeps the factor of the last that could not.
        after = torch.minimum(after, (most - 1.0 - span / 2).maximum(span / 2))
        q_tables = self._faded(q, q_positions, before, length)
        k_tables = self._faded(k, k_positions, after, length)
        return self.rope.turn(q, q_tables), self.rope.turn(k, k_tables)

    def linear_qk(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor, length: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Queries and keys rotated and not faded: what linear attention takes, which fades its sums itself."""
        return self.rope.transform_qk(q, k, q_positions, k_positions, length)

    def linear_decay(self) -> tuple[float, ...]:
        """The logarithm of what each rotated dimension's product is multiplied by per position, 0 for the others."""
        own = self.config
        rates = [-rate for rate in own.rates]
        if layout_ends(self.rope.layout)[1] == "half":
            turned = (*rates, *rates)
        else:
            turned = tuple(rate for rate in rates for _ in range(2))
        after = own.head_dim - own.start - len(turned)
        return (0.0,) * own.start + turned + (0.0,) * after

    def _faded(self, x: Tensor, positions: Tensor, distance: Tensor, length: int | None) -> Tables:
        """cos and sin for these positions, each times zeta^(-distance / B)."""
        dtype = wide_dtype(x)
        cos, sin = self.rope._shared_tables(positions, length, dtype)
        rates = numbers_on(self.config.rates, torch.float64, distance.device)
        factor = (distance.unsqueeze(-1) * rates).exp().to(dtype)
        return cos * factor, sin * factor

    def _check_range(self, q: Tensor, k: Tensor, span: Tensor) -> int:
        """The query limit of the narrower dtype, or a WhorlError for queries that do not fit it."""
        dtype = min(q.dtype, k.dtype, key=lambda each: torch.finfo(each).max)
        most, name = self.query_limit(dtype), str(dtype).removeprefix("torch.")
        remedy = "Pass fewer queries at a time, each with all keys before it"
        if self.query_limit(torch.float32) > most:
            remedy += ", or use float32"
        if q.shape[-2] > most:
            raise WhorlError(
                f"XPos: {name} takes at most {most} queries in a call at scale_base={self.config.scale_base:g}, "
                f"got {q.shape[-2]}. {remedy}."
            )
        if may_read_values(span) and (widest := float(span.max())) > most - 1:
            # on a device looking would wait, and the result is not finite there
            raise WhorlError(
                f"XPos: {name} takes queries in a call that lie at most {most - 1} positions apart at "
                f"scale_base={self.config.scale_base:g}, got {widest:g}. {remedy}."
            )
        return most
