"""ALiBi, attention with linear biases: each head discounts a key by its distance times a slope.

Press, Smith, Lewis 2021, "Train Short, Test Long: Attention with Linear Biases Enables Input Length Extrapolation".
    bias of head h for a query at i and a key at j:   -m_h (i - j)
    slopes="press"       the authors' code, BLOOM, Falcon and MPT: m_h = 2^(-8(h+1)/n) for n heads, n a power of two;
                         for any other n the slopes of the next lower power c, then every other slope of 2c
    slopes="geometric"   the paper's sentence, mlx and attention-gym: m_h = 2^(-8(h+1)/n) for every n
It is added to the scaled scores and not multiplied by 1/sqrt(d) itself. Encoders, where keys follow the query as well:
    form="causal"        m (j - i) everywhere; what comes after the query is left to a mask
    form="symmetric"     -m |i - j|, which cannot tell left from right
    form="split"         the first half of the heads sees the query and what is left of it, the second half the query
                         and what is right of it, -inf elsewhere; both halves have the slopes of heads / 2 heads
    form="offset"        -m (i - j) to the left, -m (j - i + offset) to the right
The distance is taken in whole numbers and multiplied in float32. m j alone differs from m (j - i) by a number per row,
which no softmax sees, and rounds badly: in bfloat16 and with a slope of 1/2, two keys are off each other by up to 1 at
512 keys and by up to 16 at 8192. BLOOM and Falcon compute it so in transformers; ``rounding`` gives what they compute,
for checkpoints that were used with it:
    rounding="hf_bf16"   BLOOM loaded in bfloat16: m j rounded to bfloat16
    rounding="hf_falcon" Falcon in any dtype: m and j rounded to bfloat16, and their product again. Falcon divides the
                         bias by sqrt(d) as well: scale=head_dim**-0.5
Position enters in every layer, in the scores. No parameters; one multiply-add per score, or a few extra dimensions of
queries and keys on any attention kernel (``fold``).
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from whorl.config import LARGEST, Config, config
from whorl.constants import numbers_on
from whorl.encodings import parts
from whorl.encodings.base import Claims
from whorl.encodings.bias import DistanceBias
from whorl.errors import WhorlError, invalid, unknown
from whorl.graphs import held, value_of, with_text
from whorl.position_checks import FLOATS, check_one_axis
from whorl.position_ids import difference, from_last_key
from whorl.tracing import kept_in_graphs, making_graph

RULES = ("press", "geometric")

# Positions are split at this number in half precision: the parts are whole numbers that bfloat16 holds exactly.
SPLIT = 256
FARTHEST = 255 * SPLIT**2  # what three numbers hold in float16; no softmax tells a bias beyond it from none


@config
class AlibiConfig(Config):
    """Everything that makes one ALiBi differ from another.

    heads          how many heads
    slopes         "press", "geometric", or a number for each head (with form="split" for each of the first half)
    form           "causal", "symmetric", "split" or "offset"
    offset         what the right side is further away, for form="offset"
    rounding       "exact", or "hf_bf16" and "hf_falcon": what transformers' BLOOM and Falcon compute
    scale          multiplies the bias: below 1 it stretches the reach, 1 / sqrt(head_dim) is Falcon's
    """

    name: ClassVar[str] = "alibi"
    heads: int
    slopes: str | tuple[float, ...] = "press"
    form: Literal["causal", "symmetric", "split", "offset"] = "causal"
    offset: float | None = None
    rounding: Literal["exact", "hf_bf16", "hf_falcon"] = "exact"
    scale: float = 1.0

    def check(self) -> None:
        call = self.call()
        self.check_positive("heads")
        even, remedy = self.heads % 2 == 0, "Half of the heads looks left, half looks right."
        self.must(even or self.form != "split", "heads", "even for form='split'", remedy=remedy)
        self.check_positive("scale")
        self.check_magnitude("scale", "offset")
        if (self.offset is None) == (self.form == "offset"):
            raise WhorlError(
                f"{call}: offset belongs to form='offset' and only there, got form={self.form!r} and "
                f"offset={self.offset}. Pass form='offset', offset=0.5, say."
            )
        self._check_slopes()
        if self.rounding != "exact" and (self.form, self.slopes) != ("causal", "press"):
            raise WhorlError(
                f"{call}: rounding={self.rounding!r} is what transformers computes, with form='causal' and "
                f"slopes='press', got form={self.form!r} and slopes={self.slopes!r}. Use rounding='exact'."
            )

    def _check_slopes(self) -> None:
        if isinstance(self.slopes, str):
            if self.slopes not in RULES:
                raise unknown("slopes", self.slopes, RULES, call=self.call())
            return
        if len(self.slopes) != self.sloped:
            half = "heads / 2" if self.form == "split" else "heads"
            raise WhorlError(f"{self.call()}: slopes must have {half} = {self.sloped} numbers, got {len(self.slopes)}.")
        self.must(min(self.slopes) >= 0, "slopes", "zero or positive", remedy="A slope discounts distant keys.")
        most = LARGEST / max(1.0, self.scale)
        self.must(
            max(self.slopes) <= most, "slopes", f"at most {most:g}", remedy="Their product with scale is as well."
        )

    @property
    def sloped(self) -> int:
        """How many slopes there are: one for each head, or for each pair of heads that looks left and right."""
        return self.heads // 2 if self.form == "split" else self.heads


def press_slopes(heads: int) -> list[float]:
    """The slope of each head in the authors' rule.

    >>> press_slopes(3)
    [0.0625, 0.00390625, 0.25]
    """
    lower = 1 << (heads.bit_length() - 1)
    return geometric_slopes(lower) + geometric_slopes(2 * lower)[0::2][: heads - lower]


def geometric_slopes(heads: int) -> list[float]:
    """2^(-8/heads), 2^(-16/heads), …, 2^-8.

    >>> geometric_slopes(4)
    [0.25, 0.0625, 0.015625, 0.00390625]
    """
    return [2.0 ** (-8 * (head + 1) / heads) for head in range(heads)]


def transformers_slopes(heads: int) -> list[float]:
    """The slopes of BLOOM and Falcon in transformers: the authors' rule by powers in float32, the last places off."""
    lower = 1 << (heads.bit_length() - 1)

    def powers(count: int, exponents: range) -> list[float]:
        base = torch.full((), 2 ** (-(2 ** -(math.log2(count) - 3))), dtype=torch.float32, device="cpu")
        return torch.pow(base, torch.tensor(exponents, dtype=torch.int32, device="cpu")).tolist()

    return powers(lower, range(1, 1 + lower)) + powers(2 * lower, range(1, 2 * (heads - lower), 2))


def linear_bias(slope: Tensor, distance: Tensor) -> Tensor:
    """slope * (key - query)."""
    return slope * distance


def offset_bias(slope: Tensor, distance: Tensor, offset: float) -> Tensor:
    """-slope |key - query|, a key after the query being ``offset`` further away; offset 0 is the symmetric form."""
    return slope * torch.where(distance > 0, -(distance + offset), distance)


def split_bias(slope: Tensor, distance: Tensor, looks_right: Tensor) -> Tensor:
    """-slope |key - query| on the side a head looks to, -inf on the other."""
    left = torch.where(looks_right, -distance, distance)
    return torch.where(left <= 0, slope * left, -math.inf)


def round_to_bfloat16(x: Tensor) -> Tensor:
    """float32 numbers rounded to the nearest that bfloat16 has, ties to even, kept as float32.

    On the bits, as a compiler may drop a conversion there and back.
    """
    bits = x.view(torch.int32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000).view(torch.float32)


def key_form(slope: Tensor, position: Tensor, rounding: str) -> Tensor:
    """slope * position in float32, or as transformers rounds it."""
    position = position.to(torch.float32)
    if rounding == "exact":
        return slope * position
    if rounding == "hf_falcon":
        slope, position = round_to_bfloat16(slope), round_to_bfloat16(position)
    return round_to_bfloat16(slope * position)


@held
def slope_numbers(config_text: str) -> tuple[float, ...]:
    """The slopes of a config, times its scale where nothing is rounded before it."""
    settings: AlibiConfig = value_of(config_text)
    if settings.rounding != "exact":
        return tuple(transformers_slopes(settings.sloped))
    slopes = settings.slopes
    if isinstance(slopes, str):
        slopes = {"press": press_slopes, "geometric": geometric_slopes}[slopes](settings.sloped)
    return tuple(slope * settings.scale for slope in slopes)


@kept_in_graphs  # on the device: copying them there would wait for it at every call
def _slopes_on(config_text: str, device: torch.device) -> Tensor:
    return torch.tensor(slope_numbers(config_text), dtype=torch.float32, device=device)


class Alibi(DistanceBias):
    """Attention with linear biases: every score loses a slope times the distance.

    >>> import torch, whorl
    >>> alibi = whorl.Alibi(heads=8)
    >>> alibi.score_bias(whorl.positions(4), whorl.positions(4))[0]  # a causal mask hides what is above the diagonal
    tensor([[ 0.0000,  0.5000,  1.0000,  1.5000],
            [-0.5000,  0.0000,  0.5000,  1.0000],
            [-1.0000, -0.5000,  0.0000,  0.5000],
            [-1.5000, -1.0000, -0.5000,  0.0000]])
    >>> encoder = whorl.Alibi(heads=8, form="split")
    """

    Config = AlibiConfig
    config: AlibiConfig

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.config, self._text = with_text(self.config)

    def _restore(self) -> None:
        self.config, self._text = with_text(self.config)

    @property
    def claims(self) -> Claims:
        exact = self.config.rounding == "exact"
        return Claims(
            relative=exact,  # m j rounded by itself changes with the place
            norm_preserving=True,  # queries and keys are left alone
            linear_attention=False,  # a bias inside a softmax; exp(-m (i - j)) as a factor is linear_attention's decay
            decays=exact and min(self._numbers) > 0,  # rounded, far neighbours tie
            extrapolates=exact,  # flat to 8 times the trained length and more; not with m j in bfloat16
        )

    @property
    def _numbers(self) -> tuple[float, ...]:
        return slope_numbers(self._text)

    def slopes(self, device: torch.device | None = None) -> Tensor:
        """The slope of each head, float32; of each of the first half of the heads with form="split"."""
        slopes = _slopes_on(self._text, device or torch.device("cpu"))
        return slopes if making_graph() else slopes.clone()  # who asks may write into it

    def bias_at(self, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        if self.config.rounding == "exact":
            return super().bias_at(head, i, j)
        bias = key_form(self.slopes(head.device)[head], j, self.config.rounding) * self.config.scale
        return torch.broadcast_tensors(bias, i)[0]

    def bias_of(self, head: Tensor, distance: Tensor) -> Tensor:
        settings, slopes = self.config, self.slopes(head.device)
        distance = (0 - distance).to(torch.float32)  # key less query, whole numbers exact up to 2^24; no minus zero
        if settings.form == "causal":
            return linear_bias(slopes[head], distance)
        if settings.form == "split":
            looks_right = head >= settings.sloped
            return split_bias(slopes[torch.where(looks_right, head - settings.sloped, head)], distance, looks_right)
        return offset_bias(slopes[head], distance, settings.offset or 0.0)

    def line(self, q_positions: Tensor, k_positions: Tensor, dtype: torch.dtype) -> Tensor:
        """The causal ``score_bias`` in a dtype: float32 rounds slopes that are no powers of two."""
        i, j = self._grid(q_positions, k_positions)
        return linear_bias(numbers_on(self._numbers, dtype, i.device)[:, None, None], difference(j, i).to(dtype))

    def key_bias(self, k_positions: Tensor) -> Tensor:
        """m j, (heads, keys) or (batch, heads, keys): the causal bias but for a number per query, which softmax drops.

        For kernels that take a bias per key. Its rounding error grows with the position, that of ``score_bias``
        with the distance.
        """
        call, settings = f"{type(self).__name__}.key_bias", self.config
        if settings.form != "causal":
            raise invalid(call, "form", "'causal'", settings.form, "A bias per key knows nothing of the query.")
        check_one_axis(call, k_positions)
        slopes = self.slopes(k_positions.device)[:, None]
        bias = key_form(slopes, k_positions[..., None, :], settings.rounding)
        return bias if settings.rounding == "exact" else bias * settings.scale

    def declare(self) -> tuple[parts.Part, ...]:
        if self.config.rounding != "exact":
            return (parts.BiasByPair(self, formula=True),)
        if self.config.form != "causal":  # m (j - i) is a product, what depends on the side is not
            return super().declare()
        return (parts.BiasByDistance(self, formula=True, fold_dims=3, slopes=self._numbers),)

    def fold_fits(self, dtype: torch.dtype, scale: float) -> bool:
        return dtype in FLOATS or SPLIT * max(self._numbers) / scale <= torch.finfo(dtype).max

    def fold(
        self, q_positions: Tensor, k_positions: Tensor, dtype: torch.dtype = torch.float32, scale: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """Extra dimensions whose product, times scale, is the bias: (…, heads, queries, e) and (…, 1, keys, e).

        ``scale`` is what the kernel multiplies all scores by. Positions are counted from the last key, so that those
        of the keys that weigh most are small numbers wherever the text stands. Rows of queries far before that key are
        made of large numbers, whose rounding content shares: ``attention`` folds consecutive positions alone.

        float32 and float64 have e = 3, queries (m i, m, m) and keys (-1, j, what the dtype rounded off j), the whole
        bias. Put them in front of the head: the products then cancel before anything else is added, and what is left
        of the rounding is the same along a row.

        bfloat16 and float16 have e = 8: j in three whole numbers and m in three pieces, each exact in that type, so
        that every product is exact and is summed in the kernel's float32. Keys more than 255 * 2^16 before the last
        count as that far. The smallest of the nine products is left out, m / 512 at most,
        and so is what all keys of a query share, which no softmax sees. Positions that are no whole numbers have one
        more dimension, for their fraction.
        """
        call = f"{type(self).__name__}.fold"
        if not self.folds:
            raise WhorlError(
                f"{call}: only the exact causal bias is a product, got form={self.config.form!r} and "
                f"rounding={self.config.rounding!r}. Use score_bias."
            )
        check_one_axis(call, q_positions)
        check_one_axis(call, k_positions)
        if dtype not in (*FLOATS, torch.bfloat16, torch.float16):
            raise invalid(call, "dtype", "float64, float32, bfloat16 or float16", dtype)
        slopes = tuple(slope / scale for slope in self._numbers)
        queries_at, keys_at = from_last_key(q_positions, k_positions)  # keys that weigh most have small numbers
        if dtype in FLOATS:
            return _fold_wide(queries_at, keys_at, numbers_on(slopes, dtype, keys_at.device))
        if not self.fold_fits(dtype, scale):
            steepest = SPLIT * max(slopes)
            raise WhorlError(f"{call}: 256 slope / scale is {steepest:g}, past {dtype}. Use bfloat16, or score_bias.")
        numbers = numbers_on(slopes, torch.float64, keys_at.device)
        queries, keys = _fold_half(keys_at.clamp(min=-FARTHEST), numbers, dtype)
        return queries.expand(*queries_at.shape[:-1], -1, queries_at.shape[-1], -1), keys


def _fold_wide(i: Tensor, j: Tensor, slopes: Tensor) -> tuple[Tensor, Tensor]:
    """m i * -1 + m * j + m * (what rounding takes from j, which counts where keys lie 2^24 apart)."""
    slope, there = slopes[:, None], j.to(slopes.dtype)
    here = (slope * i[..., None, :]).to(slopes.dtype)  # its rounding is the same for all keys of a query
    same = slope.expand_as(here)
    rest = (j - there.to(j.dtype)).to(slopes.dtype)
    return (
        torch.stack((here, same, same), dim=-1),
        torch.stack((torch.full_like(there, -1.0), there, rest), dim=-1).unsqueeze(-3),
    )


def _fold_half(j: Tensor, slopes: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """256 m * (256 a + b) + m * c for j = 256 (256 a + b) + c; the numbers of keys are whole and have 8 bits each."""
    upper = torch.div(j, SPLIT, rounding_mode="floor")
    top = SPLIT * torch.div(upper, SPLIT, rounding_mode="floor")
    low = j - SPLIT * upper
    coarse, fine = _pieces(SPLIT * slopes, dtype), _pieces(slopes, dtype)[:2]
    queries, keys = [*coarse, *coarse, *fine], [top] * 3 + [upper - top] * 3 + [low.floor()] * 2
    if j.is_floating_point():
        queries, keys = [*queries, fine[0]], [*keys, low - low.floor()]
    return torch.stack(queries, dim=-1)[:, None, :], torch.stack(keys, dim=-1).unsqueeze(-3).to(dtype)


def _pieces(numbers: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Three numbers of a half precision whose sum is a float64 number to 24 bits or more."""
    first = numbers.to(dtype)
    second = (numbers - first.double()).to(dtype)
    return first, second, (numbers - first.double() - second.double()).to(dtype)
