"""The transformer block with any encoding, and RoFormer, the encoder made of it.

Su, Lu, Pan, Murtadha, Wen, Liu 2021, "RoFormer: Enhanced Transformer with Rotary Position Embedding".
BERT with RoPE in every layer in place of learned positions; with another encoding it is that one's control.
tokens + types ─► add_to_input ─► norm ─► blocks ─► hidden states ─► head
block:  norm(x + attention(x, the layer's encoding)) ─► norm(x + feed_forward(x));   "pre": x + …(norm(x)) instead
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, linear, relu, silu

from whorl.attend.cache import KVCache
from whorl.attend.softmax import attention
from whorl.encodings.base import Encoding
from whorl.encodings.combined import Combined
from whorl.encodings.layer_plan import LayerPlan
from whorl.encodings.rope import Rope
from whorl.encodings.rotary import Rotary
from whorl.errors import WhorlError, invalid, unknown
from whorl.position_ids import from_mask
from whorl.position_ids import positions as count_from_0
from whorl.registry import build_for
from whorl.rotary.tables import readable

Activation = Literal["gelu", "gelu_tanh", "relu", "silu", "swiglu", "geglu"]

START = 0.02  # standard deviation of the weights to start from, as in BERT and GPT-2

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
        self, width: int, heads: int, kv_heads: int, head_dim: int, *, bias: bool, dropout: float, **switches: bool
    ) -> None:
        super().__init__()
        self.head_dim, self.dropout = head_dim, dropout
        self.causal, self.rotary_value = switches.get("causal", True), switches.get("rotary_value", False)
        self.q = nn.Linear(width, heads * head_dim, bias)
        self.k = nn.Linear(width, kv_heads * head_dim, bias)
        self.v = nn.Linear(width, kv_heads * head_dim, bias)
        self.out = nn.Linear(heads * head_dim, width, bias)

    def forward(self, x: Tensor, encoding: Encoding, cache: KVCache | None = None, **place: Any) -> Tensor:
        """What the tokens of x (batch, length, width) gather from each other, and from those in the cache."""
        q, k, v = (part(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for part in (self.q, self.k, self.v))
        place["positions"] = on_axes(place["positions"], encoding, len(x))
        if self.rotary_value:
            v = encoding.rotate(v, place["positions"], place["length"])  # pyright: ignore[reportCallIssue]
        place["hidden"] = x if encoding.reads_hidden else None
        if cache is None:
            dropout = self.dropout if self.training else 0.0
            out = attention(q, k, v, encoding=encoding, causal=self.causal, dropout=dropout, **place)
        else:
            out = cache.attend(q, k, v, **place)
        return self.out(out.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """Two projections with an activation between them, three where it is gated."""

    def __init__(self, width: int, hidden: int, activation: Activation, bias: bool) -> None:
        super().__init__()
        self.activation, gated = ACTIVATIONS[activation]
        self.gate = nn.Linear(width, hidden, bias) if gated else None
        self.up = nn.Linear(width, hidden, bias)
        self.down = nn.Linear(hidden, width, bias)

    def forward(self, x: Tensor) -> Tensor:
        if self.gate is None:
            return self.down(self.activation(self.up(x)))
        return self.down(self.activation(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """Attention and feed-forward, each added to what goes past it, with a norm before ("pre") or after."""

    def __init__(
        self, attention: SelfAttention, feed_forward: FeedForward, norm: Callable[[], nn.Module], *, pre: bool
    ) -> None:
        super().__init__()
        self.attention, self.feed_forward = attention, feed_forward
        self.norm_1, self.norm_2 = norm(), norm()
        self.pre, self.dropout = pre, nn.Dropout(attention.dropout)

    def forward(self, x: Tensor, encoding: Encoding, **place: Any) -> Tensor:
        if self.pre:
            x = x + self.dropout(self.attention(self.norm_1(x), encoding, **place))
            return x + self.dropout(self.feed_forward(self.norm_2(x)))
        x = self.norm_1(x + self.dropout(self.attention(x, encoding, **place)))
        return self.norm_2(x + self.dropout(self.feed_forward(x)))


class RoFormer(nn.Module):
    """A BERT-like encoder with RoPE in every layer, or the encoding given: hidden states of tokens.

    ``types`` is how many kinds of tokens there are, ``embedding`` the width of their embeddings where it is not
    that of the model, ``rotary_value`` whether values are rotated too.

    >>> import torch, whorl.models
    >>> encoder = whorl.models.RoFormer(vocab=100, layers=2, width=64, heads=4)
    >>> encoder(torch.arange(10)[None]).shape
    torch.Size([1, 10, 64])
    """

    def __init__(
        self,
        vocab: int,
        layers: int,
        width: int,
        heads: int,
        encoding: Encoding | LayerPlan | str | None = None,
        *,
        hidden: int | None = None,
        embedding: int | None = None,
        types: int = 2,
        activation: Activation = "gelu",
        eps: float = 1e-12,
        rotary_value: bool = False,
        dropout: float = 0.0,
        length: int | None = None,
    ) -> None:
        super().__init__()
        hidden, self.embedding = hidden or 4 * width, embedding or width
        head_dim = check_settings(
            "RoFormer", width, heads, activation, dropout, vocab=vocab, layers=layers, types=types
        )
        if encoding is None:
            encoding = Rope(head_dim=head_dim, layout="interleaved")
        self.plan = plan_of("RoFormer", encoding, layers, heads, head_dim, width, self.embedding, length=length)
        if rotary_value and not all(isinstance(one, Rotary) for one in self.plan.unique):
            raise WhorlError("RoFormer: rotary_value=True needs a rotary encoding in every layer. Use whorl.Rope.")
        self.width, self.eps, self.activation = width, eps, ACTIVATIONS[activation][0]
        self.embed, self.embed_types = nn.Embedding(vocab, self.embedding), nn.Embedding(types, self.embedding)
        self.norm, self.dropout = nn.LayerNorm(self.embedding, eps), nn.Dropout(dropout)
        self.project = None if self.embedding == width else nn.Linear(self.embedding, width)
        self.blocks = nn.ModuleList(
            Block(
                SelfAttention(width, heads, heads, head_dim, bias=True, dropout=dropout, causal=False),
                FeedForward(width, hidden, activation, bias=True),
                partial(nn.LayerNorm, width, eps),
                pre=False,
            )
            for _ in range(layers)
        )
        for block in self.blocks:
            block.attention.rotary_value = rotary_value
        start_weights(self, self.plan)

    def forward(
        self,
        tokens: Tensor,
        *,
        types: Tensor | None = None,
        positions: Tensor | None = None,
        documents: Tensor | None = None,
        key_mask: Tensor | None = None,
        length: int | None = None,
    ) -> Tensor:
        """Hidden states (batch, length, width) of tokens (batch, length), all of type 0 unless ``types`` say more.

        Positions, ``documents``, ``key_mask`` (False for padding) and ``length`` are as in ``Decoder``.
        """
        positions = check_tokens("RoFormer", tokens, self.embed.num_embeddings, positions, documents, key_mask)
        x = self.embed(tokens) + self.embed_types(torch.zeros_like(tokens) if types is None else types)
        x = self.dropout(self.norm(self.plan[0].add_to_input(x, positions)))
        x = x if self.project is None else self.project(x)
        for layer, block in enumerate(self.blocks):
            x = block(x, self.plan[layer], positions=positions, documents=documents, key_mask=key_mask, length=length)
        return x


class RoFormerMaskedLM(nn.Module):
    """An encoder and the logits of what stands at each token, read off its token embeddings."""

    def __init__(self, encoder: RoFormer) -> None:
        super().__init__()
        self.encoder = encoder
        self.dense = nn.Linear(encoder.width, encoder.embedding)
        self.norm = nn.LayerNorm(encoder.embedding, encoder.eps)
        self.bias = nn.Parameter(torch.zeros(encoder.embed.num_embeddings))
        start_weights(self, encoder)

    def forward(self, tokens: Tensor, **options: Any) -> Tensor:
        """Logits (batch, length, vocab); options as in ``RoFormer``."""
        x = self.norm(self.encoder.activation(self.dense(self.encoder(tokens, **options))))
        return linear(x, self.encoder.embed.weight, self.bias)


class RoFormerClassifier(nn.Module):
    """An encoder and the logits of a text's label, read off its first token."""

    def __init__(self, encoder: RoFormer, labels: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.dense = nn.Linear(encoder.width, encoder.width)
        self.out = nn.Linear(encoder.width, labels)
        start_weights(self, encoder)

    def forward(self, tokens: Tensor, **options: Any) -> Tensor:
        """Logits (batch, labels); options as in ``RoFormer``."""
        dropout = self.encoder.dropout
        x = dropout(self.encoder(tokens, **options)[:, 0])
        return self.out(dropout(self.encoder.activation(self.dense(x))))


def plan_of(
    call: str, encoding: Encoding | LayerPlan | str, layers: int, sizes: dict[str, int], length: int | None
) -> LayerPlan:
    """The encoding of each layer, from one for all, a plan or a name; each fits the sizes of the model."""
    if isinstance(encoding, str):
        if length is None:
            raise WhorlError(f"{call}: length missing, which encoding={encoding!r} is trained on. Pass length=….")
        encoding = build_for(encoding, **sizes, length=length)
    elif length is not None:
        raise WhorlError(f"{call}: length would be ignored, the encoding is built. Pass its name, or leave length out.")
    if isinstance(encoding, Encoding):
        encoding = LayerPlan.shared(encoding, layers=layers)
    if not isinstance(encoding, LayerPlan) or len(encoding) != layers:
        raise invalid(call, "encoding", f"an encoding, its name, or a LayerPlan of {layers} layers", encoding)
    for part in encoding.modules():
        if isinstance(part, Encoding) and not isinstance(part, Combined):
            _check_fits(call, part, sizes)
    return encoding


def _check_fits(call: str, part: Encoding, sizes: dict[str, int]) -> None:
    takes_width = "add_to_input" in part.enters() or part.reads_hidden
    for name, size in sizes.items():
        own = getattr(part.config, name, None)
        if own is not None and own != size and (name != "width" or takes_width):
            raise WhorlError(
                f"{call}: {type(part).__name__} has {name}={own}, the model {name}={size}. Build it with {name}={size}."
            )


def check_settings(call: str, width: int, heads: int, activation: str, dropout: float, **counts: int) -> None:
    """Raises a WhorlError for settings that make no model."""
    for name, value in {"width": width, "heads": heads, **counts}.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise invalid(call, name, "a positive integer", value)
    if activation not in ACTIVATIONS:
        raise unknown("activation", activation, ACTIVATIONS, call=call)
    if not 0 <= dropout < 1:
        raise invalid(call, "dropout", "at least 0 and below 1", dropout)


def check_tokens(
    call: str,
    tokens: Tensor,
    vocab: int,
    positions: Tensor | None = None,
    documents: Tensor | None = None,
    key_mask: Tensor | None = None,
) -> Tensor:
    """The positions of tokens: as given, or counting the real ones of each row, from 0 in each document."""
    if not isinstance(tokens, Tensor) or tokens.ndim != 2 or tokens.dtype not in INTEGERS or not tokens.numel():
        raise invalid(call, "tokens", "int32 or int64 of shape (batch, length)", tokens)
    if readable(tokens) and not 0 <= int(tokens.min()) <= int(tokens.max()) < vocab:
        raise invalid(call, "tokens", f"between 0 and vocab - 1 = {vocab - 1}", [int(b) for b in tokens.aminmax()])
    shape, length = tokens.shape, tokens.shape[1]
    if key_mask is not None and (key_mask.dtype != torch.bool or key_mask.shape != shape):
        raise invalid(call, "key_mask", f"bool of the shape of tokens, {tuple(shape)}", key_mask)
    if documents is not None and documents.shape not in (shape, shape[1:]):
        raise invalid(call, "documents", f"of shape ({length},) or {tuple(shape)}", documents, "See whorl.documents.")
    if positions is not None:
        if positions.ndim > 3 or positions.shape[-1] != length:
            raise invalid(call, "positions", "of shape (length,), (batch, length) or (axes, batch, length)", positions)
        return positions
    count = count_from_0(length, device=tokens.device) if key_mask is None else key_mask.cumsum(-1) - 1
    if documents is not None:
        before = count if key_mask is None else count + 1 - key_mask.long()
        new = torch.ones_like(documents, dtype=torch.bool)
        new[..., 1:] = documents[..., 1:] != documents[..., :-1]
        count = count - torch.where(new, before, 0).cummax(-1).values
    return count.clamp(min=0)


def on_axes(positions: Tensor, encoding: Encoding, batch: int) -> Tensor:
    """Positions (length,) or (batch, length) on every axis of an encoding that has several."""
    axes = getattr(encoding.config, "axes", 1)
    return positions if axes == 1 or positions.ndim == 3 else positions.expand(axes, batch, -1)


def start_weights(model: nn.Module, done: nn.Module) -> None:
    """Draws the weights of projections and embeddings anew, but for those of the part that is done already."""
    keep = set(done.modules())
    for part in model.modules():
        if isinstance(part, (nn.Linear, nn.Embedding)) and part not in keep:
            nn.init.normal_(part.weight, std=START)
            if isinstance(part, nn.Linear) and part.bias is not None:
                nn.init.zeros_(part.bias)
