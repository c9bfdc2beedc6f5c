"""RoFormer, the encoder with rotary position embedding in every layer.

Su, Lu, Pan, Murtadha, Wen, Liu 2021, "RoFormer: Enhanced Transformer with Rotary Position Embedding".
BERT with RoPE in every layer in place of learned positions; with another encoding it is that one's control.
tokens + types ─► add_to_input ─► norm ─► blocks ─► hidden states ─► head
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from whorl import Encoding, LayerPlan, Rope, WhorlError
from whorl.attend.inputs import check_device
from whorl.encodings.rotary import Rotary
from whorl.errors import check_flags, invalid
from whorl.models.layers import (
    ACTIVATIONS,
    Activation,
    Block,
    FeedForward,
    Maybe,
    SelfAttention,
    check_ids,
    check_settings,
    check_tokens,
    plan_of,
    start_weights,
)


class RoFormer(nn.Module):
    """A BERT-like encoder with RoPE in every layer, or with the encoding given, as in ``Decoder``.

    ``types`` is how many types of tokens there are, ``embedding`` the width of their embeddings where it is not
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
        own = {"hidden": hidden, "embedding": embedding}
        counts = {"vocab": vocab, "layers": layers, "types": types}
        sizes = check_settings("RoFormer", width, heads, None, activation, eps, dropout, own, **counts)
        check_flags("RoFormer", rotary_value=rotary_value)
        hidden, embedding = 4 * width if hidden is None else hidden, width if embedding is None else embedding
        sizes["width"] = embedding
        if encoding is None:
            encoding = Rope(head_dim=sizes["head_dim"], layout="interleaved")
        self.plan = plan_of("RoFormer", encoding, layers, sizes, length)
        if rotary_value and not all(isinstance(one, Rotary) for one in self.plan.unique):
            raise WhorlError("RoFormer: rotary_value=True needs a rotary encoding in every layer. Use whorl.Rope.")
        self.width, self.eps, self.activation = width, eps, ACTIVATIONS[activation][0]
        self.embed, self.embed_types = nn.Embedding(vocab, embedding), nn.Embedding(types, embedding)
        self.norm, self.dropout = nn.LayerNorm(embedding, eps), nn.Dropout(dropout)
        self.project = None if embedding == width else nn.Linear(embedding, width)
        shape: dict[str, Any] = {"kv_heads": heads, "head_dim": sizes["head_dim"], "bias": True, "dropout": dropout}
        self.blocks = nn.ModuleList(
            Block(
                SelfAttention(width, heads, **shape, causal=False, rotary_value=rotary_value),
                FeedForward(width, hidden, activation, bias=True),
                partial(nn.LayerNorm, width, eps),
                pre=False,
            )
            for _ in range(layers)
        )
        start_weights(self, self.plan)

    def forward(
        self,
        tokens: Tensor,
        *,
        types: Maybe = None,
        positions: Maybe = None,
        documents: Maybe = None,
        key_mask: Maybe = None,
        length: int | None = None,
    ) -> Tensor:
        """Hidden states (batch, length, width) of tokens (batch, length), all of type 0 unless ``types`` say more.

        Positions, ``documents``, ``key_mask`` (False for padding) and ``length`` are as in ``Decoder``.
        """
        consecutive = positions is None and documents is None and key_mask is None
        positions = check_tokens("RoFormer", tokens, self.embed.num_embeddings, positions, documents, key_mask)
        options = {"documents": documents, "key_mask": key_mask, "length": length, "consecutive": consecutive}
        types = torch.zeros_like(tokens) if types is None else types
        check_ids("RoFormer", "types", types, self.embed_types.num_embeddings)
        if types.shape != tokens.shape:
            raise invalid("RoFormer", "types", "of the shape of tokens, one for each", types)
        check_device("RoFormer", "types", types, tokens, "tokens")
        x = self.embed(tokens) + self.embed_types(types)
        x = self.dropout(self.norm(self.plan[0].add_to_input(x, positions)))
        x = x if self.project is None else self.project(x)
        for layer, block in enumerate(self.blocks):
            x = block(x, self.plan[layer], positions=positions, **options)
        return x


class RoFormerMaskedLM(nn.Module):
    """An encoder, and the logits of what stands at each token, read off the token embeddings."""

    def __init__(self, encoder: RoFormer) -> None:
        super().__init__()
        vocab, embedding = encoder.embed.weight.shape
        self.encoder, self.dense = encoder, nn.Linear(encoder.width, embedding)
        self.norm, self.bias = nn.LayerNorm(embedding, encoder.eps), nn.Parameter(torch.zeros(vocab))
        start_weights(self, encoder)

    def forward(self, tokens: Tensor, **options: Any) -> Tensor:
        """Logits (batch, length, vocab); options as in ``RoFormer``."""
        x = self.norm(self.encoder.activation(self.dense(self.encoder(tokens, **options))))
        return linear(x, self.encoder.embed.weight, self.bias)


class RoFormerClassifier(nn.Module):
    """An encoder, and the logits of the label of a text, read off its first token."""

    def __init__(self, encoder: RoFormer, labels: int) -> None:
        super().__init__()
        self.encoder, self.dense = encoder, nn.Linear(encoder.width, encoder.width)
        self.out = nn.Linear(encoder.width, labels)
        start_weights(self, encoder)

    def forward(self, tokens: Tensor, **options: Any) -> Tensor:
        """Logits (batch, labels); options as in ``RoFormer``."""
        x = self.encoder.dropout(self.encoder(tokens, **options)[:, 0])
        return self.out(self.encoder.dropout(self.encoder.activation(self.dense(x))))
