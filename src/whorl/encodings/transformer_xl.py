"""Transformer-XL's relative attention: queries meet keys and, apart from them, a projected code of the distance.

Dai, Yang, Yang, Carbonell, Le, Salakhutdinov 2019, "Transformer-XL: Attentive Language Models Beyond a
Fixed-Length Context".
    score_ij = ((q_i + u) . k_j + (q_i + v) . W r_(i-j)) / sqrt(d)
    r_t = [sin(t w_0) sin(t w_1) … | cos(t w_0) cos(t w_1) …],   w_k = base^(-2k/width)
Position enters in every layer, on the scores. heads * d * (width + 2) parameters.
Without a clamp no code of a distance is formed. With (a | b) = W^T (q_i + v), the position term is
    sum_k (a_k sin i w_k + b_k cos i w_k) cos j w_k + (b_k sin i w_k - a_k cos i w_k) sin j w_k
which is the query's (b | -a) turned by its own position, against cosines and sines of the key's: what RoPE does
against a key of (1, 0) in every pair. That takes width multiplications a pair and head, memory of
queries * width a head, and any positions. With a clamp there are 2 clamp + 1 codes, and each pair picks its own.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from whorl.config import Config, config
from whorl.encodings import parts
from whorl.encodings.base import Claims
from whorl.encodings.content import ContentTerms, Pairs, RowsByDistance
from whorl.encodings.pairs import check_head, check_pairs, distances, over_heads, products
from whorl.rotary.rotation import turn_pairs
from whorl.rotary.tables import by_distance
from whorl.tracing import kept_where_plain


@config
class TransformerXLConfig(Config):
    """Everything that makes one relative attention of Transformer-XL differ from another.

    heads          how many heads, each with its own u, v and rows of W
    head_dim       dimensions of a head
    width          entries of a distance's code; None for heads * head_dim, the width of the model
    clamp          the distance from which all are alike, on both sides (the released code's clamp_len); None for none
    base           the base of the code's frequencies
    """

    name: ClassVar[str] = "transformer_xl"
    heads: int
    head_dim: int
    width: int | None = None
    clamp: int | None = None
    base: float = 10_000.0

    def check(self) -> None:
        self.check_positive("heads", "head_dim", "width", "clamp")
        if self.width is None:
            object.__setattr__(self, "width", self.heads * self.head_dim)
        self.must(self.width != 1, "width", "at least 2", remedy="A code has a sine and a cosine.")
        self.must(self.base > 1, "base", "larger than 1", remedy="Transformer-XL uses 10,000.")


def waves(positions: Tensor, width: int, base: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and sin of positions times each frequency of a code, shape (…, width // 2)."""
    return by_distance(positions, frequencies_on(width, base, positions.device), dtype)


@kept_where_plain  # on the device: copying them there would wait for it at every call
def frequencies_on(width: int, base: float, device: torch.device) -> Tensor:
    """The frequency of each pair of a code, float64."""
    numbers = [base ** (-2 * k / width) for k in range(width // 2)]
    return torch.tensor(numbers, dtype=torch.float64, device=device)


def codes(distance: Tensor, width: int, base: float, dtype: torch.dtype) -> Tensor:
    """r_t of each distance, shape (…, width): sines, cosines, and a zero where the width is odd."""
    cos, sin = waves(distance, width, base, dtype)
    return pad(torch.cat((sin, cos), dim=-1), (0, width % 2))


def position_term(q: Tensor, weight: Tensor, q_positions: Tensor, k_positions: Tensor, base: float) -> Tensor:
    """q_i . W r_(i-j) of every pair: q (…, heads, queries, d), weight (heads, d, width)."""
    width = weight.shape[-1]
    half = width // 2
    by_sine, by_cosine = (q @ weight[..., : 2 * half]).split(half, dim=-1)
    cos, sin = (_by_head(wave) for wave in waves(q_positions, width, base, q.dtype))
    turned = turn_pairs(torch.cat((by_cosine, -by_sine), dim=-1), cos, sin, "half")
    key = torch.cat(waves(k_positions, width, base, q.dtype), dim=-1)
    # heads are rows of one product: their keys are the same, and a product by head would copy them for each
    rows, columns = turned.flatten(-3, -2), key.mT
    return (rows @ columns).unflatten(-2, turned.shape[-3:-1])


def clamped_position_term(q: Tensor, weight: Tensor, distance: Tensor, clamp: int, base: float) -> Tensor:
    """The same where distances (queries, keys) or (batch, queries, keys) are limited to [-clamp, clamp]."""
    every = torch.arange(-clamp, clamp + 1, device=q.device)
    rows = products(q, codes(every, weight.shape[-1], base, q.dtype) @ weight.mT, q.dtype)
    index = (distance.clamp(-clamp, clamp) + clamp).long()
    return rows.gather(-1, over_heads(index, rows.shape))


def _by_head(wave: Tensor) -> Tensor:
    return wave if wave.ndim == 2 else wave.unsqueeze(-3)


class TransformerXL(ContentTerms):
    """Relative attention with biases on the content and on the position of a query.

    ``content_bias`` is u, ``position_bias`` v, ``projection`` W of shape (heads, head_dim, width): the released
    ``r_w_bias``, ``r_r_bias`` and ``r_net.weight.view(heads, head_dim, width)``. All start with a standard
    deviation of 0.02, as released. A key after the query has the code of a negative distance, so the encoding
    serves encoders too (XLNet), where the released shift leaves those scores undefined.

    >>> import torch, whorl
    >>> xl, x = whorl.TransformerXL(heads=2, head_dim=64), torch.randn(1, 2, 5, 64)
    >>> positions = whorl.positions(5)
    >>> xl.adjust_scores(x @ x.mT / 8, x, x, positions, positions, scale=1 / 8).shape
    torch.Size([1, 2, 5, 5])
    """

    Config = TransformerXLConfig
    config: TransformerXLConfig
    claims = Claims(relative=True, norm_preserving=True, linear_attention=False, decays=False, extrapolates=False)

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        heads, head_dim, width = self.config.heads, self.config.head_dim, self.config.width
        assert width is not None
        self.content_bias = nn.Parameter(torch.empty(heads, head_dim))
        self.position_bias = nn.Parameter(torch.empty(heads, head_dim))
        self.projection = nn.Parameter(torch.empty(heads, head_dim, width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws u, v and W anew, as after loading through the meta device."""
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.02)

    def declare(self) -> tuple[parts.Part, ...]:
        return (parts.ScoreTerm(self, form="rows"),)

    def add_terms(self, pairs: Pairs) -> Tensor:
        scores, q, k, q_positions, k_positions, _, scale = pairs
        own, call = self.config, "TransformerXL"
        for x in (q, k):
            check_head(call, x, own.head_dim, own.heads)
        check_pairs(call, scores, q_positions, k_positions)
        distance = distances(call, q_positions, k_positions, whole=own.clamp is not None)
        # rounded to half precision, sines and cosines that nearly cancel would not
        wide = torch.promote_types(torch.promote_types(q.dtype, scores.dtype), torch.float32)
        u, v, weight = (p.to(wide) for p in (self.content_bias, self.position_bias, self.projection))
        query = q.to(wide) + v[:, None]
        if own.clamp is None:
            position = position_term(query, weight, q_positions, k_positions, own.base)
        else:
            position = clamped_position_term(query, weight, distance, own.clamp, own.base)
        content = (k.to(wide) * u[:, None]).sum(-1)[..., None, :]
        return scores + scale * (content + position)

    def rows_by_distance(self, count: int, first: int = 0) -> RowsByDistance:
        own, weight, stop = self.config, self.projection.float(), first + count
        stop = stop if own.clamp is None else min(stop, own.clamp + 1)
        distance = torch.arange(first, stop, device=weight.device)
        rows = codes(distance, weight.shape[-1], own.base, weight.dtype) @ weight.mT
        return RowsByDistance(query=rows, position=self.position_bias, content=self.content_bias)
