"""What both models are made of: the transformer block with any encoding, and the checks of settings and tokens.

block:  "post": norm(x + attention(x, the layer's encoding)) ─► norm(x + feed_forward(x));   "pre": x + …(norm(x))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, relu, silu

from whorl import Encoding, KVCache, LayerPlan, attention, build_for
from whorl.attend.inputs import check_device
from whorl.config import check_most
from whorl.encodings.parts import Input
from whorl.errors import WhorlError, check_counts, invalid, is_finite_number, unknown
from whorl.graphs import equals_any
from whorl.memory import is_dense, wrong_tensor
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
        encoding = encoding if cache is None else cache.encoding  # which may have been changed since it was made
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
    call: str,
    width: int,
    heads: int,
    head_dim: int | None,
    activation: str,
    eps: float,
    dropout: float,
    own: dict[str, int | None],
    **counts: int,
) -> dict[str, int]:
    """The sizes that encodings take, or a WhorlError for settings that make no model; ``own`` are counts or None."""
    check_name(call, "activation", activation, ACTIVATIONS)
    if not is_finite_number(eps) or eps < 0:
        raise invalid(call, "eps", "a number from 0", eps)
    if not is_finite_number(dropout) or not 0 <= dropout < 1:
        raise invalid(call, "dropout", "at least 0 and below 1", dropout)
    given = {name: count for name, count in {"head_dim": head_dim, **own}.items() if count is not None}
    counts |= {"width": width, "heads": heads, **given}
    check_counts(call, **counts)
    check_most(call, **counts)
    if head_dim is None and width % heads:
        raise invalid(call, "width", f"a multiple of heads={heads}", width)
    return {"heads": heads, "head_dim": width // heads if head_dim is None else head_dim, "width": width}


def check_name(call: str, what: str, name: str, known: Iterable[str]) -> None:
    """Raises a WhorlError unless a setting is one of the known names."""
    if not isinstance(name, str) or name not in known:
        raise unknown(what, name, known, call=call)


def plan_of(
    call: str, encoding: Encoding | LayerPlan | str, layers: int, sizes: dict[str, int], length: int | None
) -> LayerPlan:
    """The encoding of each layer, from one for all, a plan or a name; each fits the sizes of the model."""
    if isinstance(encoding, str):
        if length is None:
            raise WhorlError(f"{call}: encoding={encoding!r} needs the length it is trained on. Pass length=….")
        check_counts(call, length=length)
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
    check_ids(call, "tokens", tokens, vocab)
    shape = tuple(tokens.shape)
    shapes = {"key_mask": [shape], "documents": [shape, shape[1:]]}
    for name, value in {"key_mask": key_mask, "documents": documents}.items():
        if value is not None:
            if not is_dense(value) or not equals_any(tuple(value.shape), *shapes[name]):
                raise wrong_tensor(call, name, value, f"of shape {' or '.join(map(str, shapes[name]))}")
            check_device(call, name, value, tokens, "tokens")
    if positions is not None:
        fits = is_dense(positions) and positions.ndim in (1, 2, 3) and positions.shape[-1] == shape[1]
        if not fits or (positions.ndim > 1 and not equals_any(positions.shape[-2], 1, shape[0])):
            raise wrong_tensor(
                call,
                "positions",
                positions,
                "of shape (length,), (batch, length) or (axes, batch, length)",
                "Of positions (axes, length) pass positions[:, None].",
            )
        check_device(call, "positions", positions, tokens, "tokens")
        return positions
    real = torch.ones(shape[1], dtype=torch.long, device=tokens.device) if key_mask is None else key_mask.long()
    count = real.cumsum(-1)
    if documents is not None:  # less the real tokens before the document
        new = torch.ones_like(documents, dtype=torch.bool)
        new[..., 1:] = documents[..., 1:] != documents[..., :-1]
        count = count - torch.where(new, count - real, 0).cummax(-1).values
    return (count - 1).clamp(min=0)


def check_ids(call: str, name: str, ids: Tensor, count: int) -> None:
    """Raises a WhorlError unless these are rows of an embedding of so many, (batch, length)."""
    if not is_dense(ids) or ids.ndim != 2 or ids.dtype not in INTEGERS or not ids.numel():
        raise wrong_tensor(call, name, ids, "int32 or int64 of shape (batch, length)")
    if may_read_values(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < count:
        raise invalid(call, name, f"between 0 and {count - 1}", sorted({int(bound) for bound in ids.aminmax()}))


def start_weights(model: nn.Module, done: nn.Module) -> None:
    """Draws weights anew as BERT and GPT-2 start them, but for those of the part that is done already."""
    drawn = set(done.modules())
    for part in model.modules():
        if isinstance(part, (nn.Linear, nn.Embedding)) and part not in drawn:
            nn.init.normal_(part.weight, std=0.02)
            if isinstance(part, nn.Linear) and part.bias is not None:
                nn.init.zeros_(part.bias)
