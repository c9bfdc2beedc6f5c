"""Score scaling by position: queries grow with the number of keys they see, so that attention stays sharp.

A query at position i sees n = i + 1 keys. The more keys, the flatter a softmax over them; a factor on the scores that
grows like ln n keeps its entropy about the same. All three act on queries only, so they run on any kernel and join a
rotary encoding.
    log_n                 q_i *= max(1, ln(i + 1) / ln(L))                           L the trained length
        Su 2021 (kexue.fm/archives/8823), with the factor of 1 up to L of his ReRoPE code
    ssmax                 q_i *= s_h ln(i + 1) + b_h                                 s learned by head, b if asked for
        Nakanishi 2025, "Scalable-Softmax Is Superior for Attention"
    llama4_temperature    q_i *= 1 + a ln(1 + floor((i + 1) / f))                    f = 8192, a = 0.1
        Llama 4, on its layers without RoPE; Ministral 3 has it on all, without the + 1, and f its original length
Position enters in every layer, on queries. The scores depend on the query's absolute position. Positions below 0 count
as 0. Only ssmax learns, one number a head or two; one multiplication per element of q.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from whorl.config import Config, config
from whorl.encodings import parts
from whorl.encodings.base import Claims, Encoding
from whorl.errors import WhorlError, invalid
from whorl.memory import check_dense
from whorl.position_checks import check_one_axis


@config
class LogNConfig(Config):
    """Everything that makes one log-n scaling differ from another.

    trained_length  L, up to which nothing is scaled; Su's models have 512
    """

    name: ClassVar[str] = "log_n"
    trained_length: int = 512

    def check(self) -> None:
        self.must(self.trained_length >= 2, "trained_length", "at least 2", remedy="The factor divides by its log.")


@config
class SSMaxConfig(Config):
    """Everything that makes one scalable softmax differ from another.

    heads          how many heads, each with its own s
    scale          what s starts from
    bias           whether b is learned too, from 0; without it b is 0
    """

    name: ClassVar[str] = "ssmax"
    heads: int
    scale: float = 0.43
    bias: bool = False

    def check(self) -> None:
        self.check_positive("heads")
        self.check_magnitude("scale")


@config
class Llama4TemperatureConfig(Config):
    """Everything that makes one temperature of Llama 4 differ from another.

    floor_scale    f, how many positions there are from one step of the factor to the next
    attn_scale     a, how much a step counts
    first          what the first position counts as: 1 in Llama 4, 0 in Ministral 3 and Mistral 4
    """

    name: ClassVar[str] = "llama4_temperature"
    later: ClassVar[tuple[str, ...]] = ("first",)
    floor_scale: int = 8192
    attn_scale: float = 0.1
    first: Literal[0, 1] = 1

    def check(self) -> None:
        self.check_positive("floor_scale")
        self.check_magnitude("attn_scale")


def log_n(positions: Tensor, trained_length: int) -> Tensor:
    """max(1, ln(i + 1) / ln(L)), float64."""
    return (_log_keys(positions) / math.log(trained_length)).clamp(min=1.0)


def ssmax(positions: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """s ln(i + 1) + b, float64; scale and bias broadcast against positions."""
    grown = scale.double() * _log_keys(positions)
    return grown if bias is None else grown + bias.double()


def llama4_temperature(positions: Tensor, floor_scale: int, attn_scale: float, first: int = 1) -> Tensor:
    """1 + a ln(1 + floor((i + first) / f)), float64."""
    steps = torch.floor((positions.double().clamp(min=0.0) + first) / floor_scale)
    return 1.0 + attn_scale * torch.log1p(steps)


def _log_keys(positions: Tensor) -> Tensor:
    return torch.log(positions.double().clamp(min=0.0) + 1.0)


class QueryScale(Encoding):
    """Base of the encodings that multiply queries by a number for each position, or position and head."""

    claims = Claims(relative=False, norm_preserving=False, linear_attention=False, decays=False, extrapolates=False)

    def declare(self) -> tuple[parts.Part, ...]:
        return (parts.QueryScale(self, by_position=True),)

    def query_factor(self, positions: Tensor) -> Tensor:
        """What multiplies a query at each position, float64: (1 or heads, length), a batch of positions in front."""
        raise NotImplementedError

    def transform_qk(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor, length: int | None = None
    ) -> tuple[Tensor, Tensor]:
        call = type(self).__name__
        check_one_axis(call, q_positions)
        expected = "a floating tensor of shape (batch, heads, length, head_dim)"
        check_dense(call, "q", q, expected)
        if q.ndim < 3 or not q.is_floating_point():
            raise invalid(call, "q", expected, q)
        heads = getattr(self.config, "heads", None)  # where each has numbers of its own
        if heads is not None and q.shape[-3] != heads:
            raise invalid(call, "q", expected.replace("heads", f"heads={heads}"), q)
        if q_positions.shape[-1] != q.shape[-2]:
            raise WhorlError(
                f"{call}: positions are for {q_positions.shape[-1]} queries, there are {q.shape[-2]}. "
                "Pass one position per token."
            )
        wide = torch.promote_types(q.dtype, torch.float32)
        factor = self.query_factor(q_positions).to(wide).unsqueeze(-1)
        return (q.to(wide) * factor).to(q.dtype), k


class LogN(QueryScale):
    """Queries past the trained length grow with the logarithm of their position.

    >>> import torch, whorl
    >>> log_n = whorl.LogN(trained_length=512)
    >>> log_n.query_factor(torch.tensor([511, 512**2 - 1])).tolist()
    [[1.0, 2.0]]
    """

    Config = LogNConfig
    config: LogNConfig

    def query_factor(self, positions: Tensor) -> Tensor:
        return log_n(positions.unsqueeze(-2), self.config.trained_length)


class SSMax(QueryScale):
    """Queries grow with the logarithm of their position, by a factor that each head learns.

    ``scale`` is s, ``bias`` b where the config has it. The factor multiplies what attention scales already, as in
    the paper: softmax(s ln(n) q . k / sqrt(d)). Without b it is 0 at position 0, where one
    key is seen.

    >>> import torch, whorl
    >>> whorl.SSMax(heads=2).query_factor(torch.tensor([0, 9])).shape
    torch.Size([2, 2])
    """

    Config = SSMaxConfig
    config: SSMaxConfig

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.scale = nn.Parameter(torch.empty(self.config.heads))
        self.bias = nn.Parameter(torch.empty(self.config.heads)) if self.config.bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sets s and b back to what they start from, as after loading through the meta device."""
        nn.init.constant_(self.scale, self.config.scale)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def query_factor(self, positions: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.unsqueeze(-1)
        return ssmax(positions.unsqueeze(-2), self.scale.unsqueeze(-1), bias)


class Llama4Temperature(QueryScale):
    """Queries grow by steps of the logarithm of their position.

    >>> import torch, whorl
    >>> [f"{x:.5f}" for x in whorl.Llama4Temperature().query_factor(torch.tensor([8190, 8191, 131071]))[0]]
    ['1.00000', '1.06931', '1.28332']
    """

    Config = Llama4TemperatureConfig
    config: Llama4TemperatureConfig

    def query_factor(self, positions: Tensor) -> Tensor:
        c = self.config
        return llama4_temperature(positions.unsqueeze(-2), c.floor_scale, c.attn_scale, c.first)
