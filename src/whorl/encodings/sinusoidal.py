"""Sinusoidal positions: fixed waves of each position, added to the token's embedding.

Vaswani et al. 2017, "Attention Is All You Need".
    p_t[2i] = sin(t w_i),   p_t[2i + 1] = cos(t w_i),   w_i = base^(-2i/d)
    p_(t+k) = M_k p_t for one matrix M_k whatever t is, and <p_t, p_(t+k)> = sum_i cos(w_i k), for even d
Two orders are in use, and weights trained with one are useless with the other:
    interleaved    sin cos sin cos …, as in the paper; an odd width has no last cosine
    concatenated   all sines, then all cosines (GPT-NeoX, x-transformers, Transformer-XL); an odd width has
                   (d - 1) / 2 of each and ends in a zero. Exponents are -2i/d in both, with d as given.
A code of an even width has norm sqrt(d/2), far more than embeddings started from N(0, 0.02): the paper multiplies those
by sqrt(d), others the code by d^(-1/2), which ``scale`` is for.
Position enters once, at the input. No parameters; d/2 sines and cosines per position, in float64, and one addition.
"""

from __future__ import annotations

from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from whorl.config import Config, config
from whorl.encodings.base import Claims, Encoding
from whorl.errors import invalid, unknown
from whorl.kernels.tables import exact_tables
from whorl.position_checks import check_embeddings, check_positions
from whorl.rotary.frequencies import Ladder
from whorl.tracing import kept_where_plain

Arrangement = Literal["interleaved", "concatenated"]

DEFAULT_BASE = 10_000.0


@config
class SinusoidalConfig(Config):
    """Everything that makes one sinusoidal code differ from another.

    width          dimensions of a token's embedding
    base           the base of the frequencies
    order          "interleaved" or "concatenated" sines and cosines
    scale          what the code is multiplied by before it is added
    """

    name: ClassVar[str] = "sinusoidal"
    width: int
    base: float = DEFAULT_BASE
    order: Arrangement = "interleaved"
    scale: float = 1.0

    def check(self) -> None:
        self.check_positive("width")
        self.must(self.base > 1, "base", "larger than 1", remedy="The paper uses 10,000.")
        self.check_magnitude("scale")
        self.must(self.scale != 0, "scale", "other than 0", remedy="For no position at all use NoPE.")


def sinusoidal(
    positions: Tensor,
    width: int,
    base: float = DEFAULT_BASE,
    order: Arrangement = "interleaved",
    scale: float = 1.0,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """The code of each position (…), whole or not, shape (…, width): angles in float64, values rounded once.

    >>> sinusoidal(torch.tensor([2]), 8)
    tensor([[ 0.9093, -0.4161,  0.1987,  0.9801,  0.0200,  0.9998,  0.0020,  1.0000]])
    """
    frequencies = frequencies_on(width, base, positions.device)
    if order == "interleaved":
        cos, sin = exact_tables(positions, frequencies, scale, dtype)
        return torch.stack((sin, cos), dim=-1).flatten(-2)[..., :width]
    cos, sin = exact_tables(positions, frequencies[: width // 2], scale, dtype)
    return torch.cat((sin, cos, cos.new_zeros(*cos.shape[:-1], width % 2)), dim=-1)


@kept_where_plain  # on the device: copying them there would wait for it at every call
def frequencies_on(width: int, base: float, device: torch.device) -> Tensor:
    """The frequency of each pair of a code, float64."""
    return Ladder(width, base).frequencies().to(device)


def shift_matrix(width: int, k: float, base: float = DEFAULT_BASE, order: Arrangement = "interleaved") -> Tensor:
    """M_k with p_(t+k) = M_k p_t for every t: float64, shape (width, width), a rotation of each pair.

    >>> codes = sinusoidal(torch.tensor([3, 10]), 8, dtype=torch.float64)
    >>> torch.allclose(shift_matrix(8, 7) @ codes[0], codes[1])
    True
    """
    call = "shift_matrix"
    if order not in get_args(Arrangement):
        raise unknown("order", order, get_args(Arrangement), call=call)
    if width <= 0 or width % 2:
        raise invalid(call, "width", "even and positive", width, "A sine without its cosine cannot be shifted.")
    shift = torch.tensor([k], dtype=torch.float64, device="cpu")
    cos, sin = exact_tables(shift, Ladder(width, base).frequencies(), dtype=torch.float64)
    pair = torch.arange(width // 2, device="cpu")
    first, second = (2 * pair, 2 * pair + 1) if order == "interleaved" else (pair, pair + width // 2)
    out = torch.zeros(width, width, dtype=torch.float64, device="cpu")
    out[first, first] = out[second, second] = cos[0]
    out[first, second], out[second, first] = sin[0], -sin[0]
    return out


class Sinusoidal(Encoding):
    """Sines and cosines of the position, added to the input.

    >>> import torch, whorl
    >>> sinusoidal = whorl.Sinusoidal(width=512, scale=512**-0.5)
    >>> sinusoidal.add_to_input(torch.zeros(2, 5, 512), whorl.positions(5)).shape
    torch.Size([2, 5, 512])
    """

    Config = SinusoidalConfig
    config: SinusoidalConfig
    claims = Claims(
        relative=False,  # codes of two positions are; content times code, which a score has too, is not
        norm_preserving=False,
        linear_attention=True,  # the scores are those of any other input
        decays=False,
        extrapolates=False,  # codes are there for every position, quality is lost just past the trained length
    )

    def codes(self, positions: Tensor, *, dtype: torch.dtype = torch.float32) -> Tensor:
        """What is added at these positions, the scale included, shape (…, width)."""
        check_positions(type(self).__name__, positions, 1)
        own = self.config
        return sinusoidal(positions, own.width, own.base, own.order, own.scale, dtype)

    def add_to_input(self, x: Tensor, positions: Tensor) -> Tensor:
        """x (…, length, width) with the code of each position added, in the dtype of x."""
        check_embeddings(type(self).__name__, x, positions, self.config.width)
        wide = torch.float64 if x.dtype == torch.float64 else torch.float32
        return (x + self.codes(positions, dtype=wide)).to(x.dtype)
