"""Decoder: a small language model that takes any encoding, and generates with a KV cache.

tokens ─► embed ─► add_to_input ─► blocks ─► norm ─► logits
block:  x + attention(norm(x), the layer's encoding) ─► x + feed_forward(norm(x));   "post": norm(x + …) instead
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
from whorl.errors import WhorlError, invalid, unknown
from whorl.position_ids import from_mask
from whorl.position_ids import positions as count_from_0
from whorl.registry import build_for
from whorl.rotary.tables import readable

Norm = Literal["layer", "rms"]
Activation = Literal["gelu", "gelu_tanh", "relu", "silu", "swiglu", "geglu"]

START = 0.02  # standard deviation of the weights to start from, as in GPT-2 and BERT

NORMS: dict[str, Callable[..., nn.Module]] = {"layer": nn.LayerNorm, "rms": nn.RMSNorm}

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
        head_dim: int,
        kv_heads: int,
        bias: bool,
        dropout: float,
        causal: bool = True,
        rotary_value: bool = False,
    ) -> None:
        super().__init__()
        self.head_dim, self.dropout, self.causal, self.rotary_value = head_dim, dropout, causal, rotary_value
        self.q = nn.Linear(width, heads * head_dim, bias)
        self.k = nn.Linear(width, kv_heads * head_dim, bias)
        self.v = nn.Linear(width, kv_heads * head_dim, bias)
        self.out = nn.Linear(heads * head_dim, width, bias)

    def forward(self, x: Tensor, encoding: Encoding, cache: KVCache | None = None, **place: Any) -> Tensor:
        """What x (batch, length, width) gathers from its tokens, or from those in the cache as well."""
        q, k, v = (project(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for project in (self.q, self.k, self.v))
        place["positions"] = _on_axes(place["positions"], encoding, x.shape[0])
        if self.rotary_value:
            v = encoding.rotate(v, place["positions"], place["length"])  # pyright: ignore[reportCallIssue]
        hidden = x if encoding.reads_hidden else None
        if cache is not None:
            out = cache.attend(q, k, v, hidden=hidden, **place)
        else:
            dropout = self.dropout if self.training else 0.0
            out = attention(q, k, v, encoding=encoding, causal=self.causal, hidden=hidden, dropout=dropout, **place)
        return self.out(out.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """Two projections with an activation between them, or three where it is gated."""

    def __init__(self, width: int, hidden: int, *, activation: Activation, bias: bool) -> None:
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
    """Attention and feed-forward, each beside a path that leaves x as it is."""

    def __init__(
        self, attention: SelfAttention, feed_forward: FeedForward, norms: list[nn.Module], *, pre: bool, dropout: float
    ) -> None:
        super().__init__()
        self.attention, self.feed_forward = attention, feed_forward
        self.norm_1, self.norm_2 = norms
        self.pre, self.dropout = pre, nn.Dropout(dropout)

    def forward(self, x: Tensor, encoding: Encoding, **place: Any) -> Tensor:
        if self.pre:
            x = x + self.dropout(self.attention(self.norm_1(x), encoding, **place))
            return x + self.dropout(self.feed_forward(self.norm_2(x)))
        x = self.norm_1(x + self.dropout(self.attention(x, encoding, **place)))
        return self.norm_2(x + self.dropout(self.feed_forward(x)))


class Decoder(nn.Module):
    """A decoder language model with any encoding: one for all layers, a LayerPlan, or a name.

    An encoding given by its name takes the sizes of the model, and ``length`` as the length it is trained on.
    ``hidden`` is the width inside the feed-forward, ``tied`` whether logits are read off the token embeddings,
    ``embedding_norm`` a norm right after them (BLOOM).

    >>> import torch, whorl.models
    >>> model = whorl.models.Decoder(vocab=256, layers=2, width=64, heads=4, encoding=whorl.Rope(head_dim=16))
    >>> tokens = torch.arange(10)[None]
    >>> model(tokens).shape, model.generate(tokens, 5).shape
    (torch.Size([1, 10, 256]), torch.Size([1, 15]))
    """

    def __init__(
        self,
        vocab: int,
        layers: int,
        width: int,
        heads: int,
        encoding: Encoding | LayerPlan | str,
        *,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        hidden: int | None = None,
        norm: Norm = "layer",
        norm_position: Literal["pre", "post"] = "pre",
        eps: float = 1e-5,
        activation: Activation = "gelu",
        bias: bool = True,
        attention_bias: bool | None = None,
        tied: bool = True,
        embedding_norm: bool = False,
        dropout: float = 0.0,
        length: int | None = None,
    ) -> None:
        super().__init__()
        kv_heads, hidden = heads if kv_heads is None else kv_heads, 4 * width if hidden is None else hidden
        check_sizes("Decoder", vocab=vocab, layers=layers, width=width, heads=heads, kv_heads=kv_heads, hidden=hidden)
        check_choices("Decoder", norm=norm, norm_position=norm_position, activation=activation, dropout=dropout)
        self.vocab, self.head_dim = vocab, head_size("Decoder", width, heads, head_dim)
        if heads % kv_heads:
            raise invalid("Decoder", "kv_heads", f"a divisor of heads={heads}", kv_heads)
        self.plan = plan_of("Decoder", encoding, layers, heads, self.head_dim, width, length=length)
        self.embed = nn.Embedding(vocab, width)
        self.embed_norm = NORMS[norm](width, eps=eps) if embedding_norm else None
        self.dropout = nn.Dropout(dropout)
        sizes: dict[str, Any] = {"head_dim": self.head_dim, "kv_heads": kv_heads, "dropout": dropout}
        self.blocks = nn.ModuleList(
            Block(
                SelfAttention(width, heads, bias=bias if attention_bias is None else attention_bias, **sizes),
                FeedForward(width, hidden, activation=activation, bias=bias),
                [NORMS[norm](width, eps=eps) for _ in range(2)],
                pre=norm_position == "pre",
                dropout=dropout,
            )
            for _ in range(layers)
        )
        self.norm = NORMS[norm](width, eps=eps) if norm_position == "pre" else None
        self.head = None if tied else nn.Linear(width, vocab, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the model's own weights anew; encodings draw theirs when they are built."""
        start_weights(self)

    def forward(
        self,
        tokens: Tensor,
        *,
        positions: Tensor | None = None,
        documents: Tensor | None = None,
        key_mask: Tensor | None = None,
        length: int | None = None,
    ) -> Tensor:
        """Logits (batch, length, vocab) of tokens (batch, length).

        Positions count the real tokens of each row, from 0 in each document, unless given as (length,),
        (batch, length) or (axes, batch, length). Tokens see their own document only, and no padding, which
        ``key_mask`` (batch, length) marks with False. ``length`` is what length-dependent encodings serve.
        """
        check_tokens("Decoder", tokens, self.vocab, positions, documents, key_mask)
        if positions is None:
            positions = positions_of(tokens, documents, key_mask)
        place = {"positions": positions, "documents": documents, "key_mask": key_mask, "length": length}
        return self._logits(self._hidden(tokens, [None] * len(self.blocks), **place))

    def caches(self, *, capacity: int | None = None, length: int | None = None) -> list[KVCache]:
        """An empty KVCache for each layer, for ``step``."""
        return [KVCache(encoding=self.plan[layer], capacity=capacity, length=length) for layer in range(len(self.plan))]

    @torch.no_grad()
    def step(
        self, tokens: Tensor, caches: list[KVCache], *, positions: Tensor, key_mask: Tensor | None = None
    ) -> Tensor:
        """Logits of the next tokens (batch, new), which the caches keep: those of a full pass over all tokens so far.

        >>> import torch, whorl.models
        >>> model = whorl.models.Decoder(vocab=256, layers=2, width=64, heads=4, encoding="rope", length=32)
        >>> tokens, caches = torch.arange(10)[None], model.caches()
        >>> first = model.step(tokens[:, :7], caches, positions=whorl.positions(7))
        >>> rest = model.step(tokens[:, 7:], caches, positions=whorl.positions(3, offset=7))
        >>> torch.allclose(torch.cat((first, rest), dim=1), model(tokens), atol=1e-6)
        True
        """
        return self._logits(self._step(tokens, caches, positions, key_mask))

    @torch.no_grad()
    def generate(
        self,
        tokens: Tensor,
        count: int,
        *,
        temperature: float = 0.0,
        top_k: int | None = None,
        generator: torch.Generator | None = None,
        key_mask: Tensor | None = None,
        length: int | None = None,
    ) -> Tensor:
        """The tokens (batch, length) with ``count`` more behind them: the likeliest, or drawn with a temperature.

        ``top_k`` draws among the k likeliest. Prompts of unequal length are padded on the left, where
        ``key_mask`` is False. ``length`` is what length-dependent encodings serve, at every step.
        """
        check_tokens("Decoder.generate", tokens, self.vocab, key_mask=key_mask)
        _check_sampling(tokens, count, temperature, top_k, generator, key_mask)
        caches = self.caches(capacity=tokens.shape[1] + max(count - 1, 0), length=length)
        positions, new = positions_of(tokens, None, key_mask).expand(tokens.shape), tokens
        for _ in range(count):
            logits = self._logits(self._step(new, caches, positions, key_mask)[:, -1])
            new = _choose(logits, temperature, top_k, generator).unsqueeze(-1)
            tokens = torch.cat((tokens, new), dim=1)
            positions, key_mask = positions[:, -1:] + 1, None
        return tokens

    def _step(self, tokens: Tensor, caches: list[KVCache], positions: Tensor, key_mask: Tensor | None) -> Tensor:
        check_tokens("Decoder.step", tokens, self.vocab, positions, None, key_mask)
        if len(caches) != len(self.blocks):
            raise invalid("Decoder.step", "caches", f"{len(self.blocks)}, one per layer", len(caches), "Use caches().")
        if self.training and self.dropout.p:
            raise WhorlError("Decoder.step: dropout would change what the model says. Call model.eval() first.")
        return self._hidden(tokens, caches, positions=positions, key_mask=key_mask, length=caches[0].length)

    def _hidden(self, tokens: Tensor, caches: list[Any], *, positions: Tensor, **place: Any) -> Tensor:
        x = self.plan[0].add_to_input(self.embed(tokens), positions)  # one for all layers, as LayerPlan makes sure
        x = self.dropout(x if self.embed_norm is None else self.embed_norm(x))
        for layer, (block, cache) in enumerate(zip(self.blocks, caches, strict=True)):
            x = block(x, self.plan[layer], cache=cache, positions=positions, **place)
        return x if self.norm is None else self.norm(x)

    def _logits(self, x: Tensor) -> Tensor:
        return linear(x, self.embed.weight) if self.head is None else self.head(x)
