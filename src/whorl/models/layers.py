"""What both models are made of: the transformer block with any encoding, and the checks of settings and tokens.

block:  "post": norm(x + attention(x, the layer's encoding)) ─► norm(x + feed_forward(x));   "pre": x + …(norm(x))
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, relu, silu

from whorl import Encoding, KVCache, LayerPlan, attention, build_for
from whorl.encodings.parts import Input
from whorl.errors import WhorlError, check_counts, invalid, unknown
from whorl.graphs import equals_any
from whorl.position_checks import INTEGERS
from whorl.tracing import may_read_values

Maybe = Tensor | None
Activation = Literal["gelu", "gelu_tanh", "relu", "silu", "swiglu", "geglu"]

# The function, and whether it is the gate of a second projection.
ACTIVATIONS: dict[str, tuple[Callable[[Tensor], Tensor], bool]] = {
    "gelu": (gelu, False),
    "gelu_tanh": (partial(gelu, approximate="tanh"), False),
    "relu": (relu, False),
    "silu": (silu, False),
    "swiglu": (silu, True),
    "geglu": (gelu, True),
}


class SelfAttention(nn.Module):
    """Projections around ``whorl.attention``; the encoding comes with each call."""

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        kv_heads: int,
        head_dim: int,
        bias: bool,
        dropout: float,
        causal: bool,
        rotary_value: bool = False,
    ) -> None:
        super().__init__()
        self.head_dim, self.dropout, self.causal, self.rotary_value = head_dim, dropout, causal, rotary_value
        self.q = nn.Linear(width, heads * head_dim, bias)
        self.k = nn.Linear(width, kv_heads * head_dim, bias)
        self.v = nn.Linear(width, kv_heads * head_dim, bias)
        self.out = nn.Linear(heads * head_dim, width, bias)

    def forward(
        self,
        x: Tensor,
        encoding: Encoding,
        positions: Tensor,
        cache: KVCache | None = None,
        *,
        consecutive: bool = False,
        **options: Any,
    ) -> Tensor:
        """What the tokens of x (batch, length, width) gather from each other, and from those in the cache.

        ``consecutive`` says that positions are 0, 1, 2, …, or go on so from those in the cache, which both then know
        without reading them.
        """
        q, k, v = self.project(x)
        axes = encoding.axes
        if axes > 1 and positions.ndim < 3:  # text among images: one position on every axis
            positions = positions.expand(axes, x.shape[0], -1)
        if self.rotary_value:
            v = encoding.rotate(v, positions, options["length"])  # pyright: ignore[reportCallIssue]
        options |= {
            "positions": None if consecutive and (axes == 1 or cache is not None) else positions,
            "hidden": x if encoding.reads_hidden else None,
        }
        if cache is None:
            dropout = self.dropout if self.training else 0.0
            out = attention(q, k, v, encoding=encoding, causal=self.causal, dropout=dropout, **options)
        else:
            out = cache.attend(q, k, v, **options)
        return self.out(out.transpose(1, 2).flatten(2))

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values (batch, heads, length, head_dim) of x (batch, length, width)."""
        q, k, v = (part(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for part in (self.q, self.k, self.v))
        return q, k, v


class FeedForward(nn.Module):
    """Two projections with an activation between them, three where it is gated."""

    def __init__(self, width: int, hidden: int, activation: Activation, bias: bool) -> None:
        super().__init__()
        self.activation, gated = ACTIVATIONS[activation]
        self.gate = nn.Linear(width, hidden, bias) if gated else None
        self.up, self.down = nn.Linear(width, hidden, bias), nn.Linear(hidden, width, bias)

    def forward(self, x: Tensor) -> Tensor:
        up = self.up(x)
        return self.down(self.activation(up) if self.gate is None else self.activation(self.gate(x)) * up)


class Block(nn.Module):
    """Attention and feed-forward, each added to what goes past it, with a norm before them ("pre") or after."""

    def __init__(
        self, attention: SelfAttention, feed_forward: FeedForward, norm: Callable[[], nn.Module], *, pre: bool
    ) -> None:
        super().__init__()
        self.attention, self.feed_forward = attention, feed_forward
        self.norm_1, self.norm_2 = norm(), norm()
        self.pre, self.dropout = pre, nn.Dropout(attention.dropout)

    def forward(self, x: Tensor, encoding: Encoding, **options: Any) -> Tensor:
        if self.pre:
            x = x + self.dropout(self.attention(self.norm_1(x), encoding, **options))
            return x + self.dropout(self.feed_forward(self.norm_2(x)))
        x = self.norm_1(x + self.dropout(self.attention(x, encoding, **options)))
        return self.norm_2(x + self.dropout(self.feed_forward(x)))


def check_settings(
    call: str, width: int, heads: int, head_dim: int | None, activation: str, dropout: float, **counts: int
) -> dict[str, int]:
    """The sizes that encodings take, or a WhorlError for settings that make no model."""
    if activation not in ACTIVATIONS:
        raise unknown("activation", activation, ACTIVATIONS, call=call)
    if not 0 <= dropout < 1:
        raise invalid(call, "dropout", "at least 0 and below 1", dropout)
    check_counts(call, width=width, heads=heads, head_dim=head_dim or 1, **counts)
    if head_dim is None and width % heads:
        raise invalid(call, "width", f"a multiple of heads={heads}", width)
    return {"heads": heads, "head_dim": head_dim or width // heads, "width": width}


def plan_of(
    call: str, encoding: Encoding | LayerPlan | str, layers: int, sizes: dict[str, int], length: int | None
) -> LayerPlan:
    """The encoding of each layer, from one for all, a plan or a name; each fits the sizes of the model."""
    if isinstance(encoding, str):
        if length is None:
            raise WhorlError(f"{call}: encoding={encoding!r} needs the length it is trained on. Pass length=….")
        encoding = build_for(encoding, **sizes, length=length)
    elif length is not None:
        raise WhorlError(f"{call}: length would be ignored, the encoding is built. Pass its name, or leave length out.")
    plan = LayerPlan.shared(encoding, layers=layers) if isinstance(encoding, Encoding) else encoding
    if not isinstance(plan, LayerPlan) or len(plan) != layers:
        raise invalid(call, "encoding", f"an encoding, its name, or a LayerPlan of {layers} layers", encoding)
    for part in (part for layer in range(layers) for part in plan[layer].parts):
        reads = sizes if isinstance(part, Input) or part.encoding.reads_hidden else ("heads", "head_dim")
        for name in reads:
            size = getattr(part.encoding.config, name, None)
            if size not in (None, sizes[name]):
                what = f"{part.name} has {name}={size} and the model {name}={sizes[name]}"
                raise WhorlError(f"{call}: {what}. Build the encoding with {name}={sizes[name]}.")
    return plan


def check_tokens(call: str, tokens: Tensor, vocab: int, positions: Maybe, documents: Maybe, key_mask: Maybe) -> Tensor:
    """The positions of tokens: as given, or counting the real ones of each row, from 0 in each document."""
    if not isinstance(tokens, Tensor) or tokens.ndim != 2 or tokens.dtype not in INTEGERS or not tokens.numel():
        raise invalid(call, "tokens", "int32 or int64 of shape (batch, length)", tokens)
    if may_read_values(tokens) and not 0 <= int(tokens.min()) <= int(tokens.max()) < vocab:
        raise invalid(call, "tokens", f"between 0 and {vocab - 1}", sorted({int(b) for b in tokens.aminmax()}))
    shape = tuple(tokens.shape)
    shapes = {"key_mask": [shape], "documents": [shape, shape[1:]]}
    for name, value in {"key_mask": key_mask, "documents": documents}.items():
        if value is not None and (not isinstance(value, Tensor) or not equals_any(tuple(value.shape), *shapes[name])):
            raise invalid(call, name, f"of shape {' or '.join(map(str, shapes[name]))}", value)
    if positions is not None:
        if not isinstance(positions, Tensor) or positions.ndim not in (1, 2, 3) or positions.shape[-1] != shape[1]:
            raise invalid(call, "positions", "of shape (length,), (batch, length) or (axes, batch, length)", positions)
        return positions
    real = torch.ones(shape[1], dtype=torch.long, device=tokens.device) if key_mask is None else key_mask.long()
    count = real.cumsum(-1)
    if documents is not None:  # less the real tokens before the document
        new = torch.ones_like(documents, dtype=torch.bool)
        new[..., 1:] = documents[..., 1:] != documents[..., :-1]
        count = count - torch.where(new, count - real, 0).cummax(-1).values
    return (count - 1).clamp(min=0)


def start_weights(model: nn.Module, done: nn.Module) -> None:
    """Draws weights anew as BERT and GPT-2 start them, but for those of the part that is done already."""
    drawn = set(done.modules())
    for part in model.modules():
        if isinstance(part, (nn.Linear, nn.Embedding)) and part not in drawn:
            nn.init.normal_(part.weight, std=0.02)
            if isinstance(part, nn.Linear) and part.bias is not None:
                nn.init.zeros_(part.bias)
