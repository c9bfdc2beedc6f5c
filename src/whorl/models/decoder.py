"""Decoder: a small language model that takes any encoding, and generates with a KV cache.

tokens ─► embed ─► add_to_input ─► blocks, each with its layer's encoding ─► norm ─► logits
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from whorl import Encoding, LayerPlan
from whorl.attend.cache import KVCache
from whorl.attend.together import together
from whorl.config import MOST_TOKENS
from whorl.errors import WhorlError, check_flags, invalid, is_finite_number
from whorl.models.layers import (
    Activation,
    Block,
    FeedForward,
    Maybe,
    SelfAttention,
    check_name,
    check_settings,
    check_tokens,
    plan_of,
    start_weights,
)
from whorl.models.steps import Steps, cannot_be, why_not_captured
from whorl.tracing import may_read_values

NORMS: dict[str, Callable[..., nn.Module]] = {"layer": nn.LayerNorm, "rms": nn.RMSNorm}


class Decoder(nn.Module):
    """A decoder language model with any encoding: one for all layers, a LayerPlan, or a name.

    An encoding given by its name takes the sizes of the model, and ``length`` as the length it is trained on.
    ``hidden`` is the width inside the feed-forward, ``attention_bias`` the bias of attention where it is not as
    that of the feed-forward, ``tied`` whether logits are read off the token embeddings, ``embedding_norm``
    whether those have a norm of their own (BLOOM).

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
        norm: Literal["layer", "rms"] = "layer",
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
        own = {"kv_heads": kv_heads, "hidden": hidden}
        counts = {"vocab": vocab, "layers": layers}
        sizes = check_settings("Decoder", width, heads, head_dim, activation, eps, dropout, own, **counts)
        kv_heads, hidden = heads if kv_heads is None else kv_heads, 4 * width if hidden is None else hidden
        if heads % kv_heads:
            raise invalid("Decoder", "kv_heads", f"a divisor of heads={heads}", kv_heads)
        check_name("Decoder", "norm", norm, NORMS)
        check_name("Decoder", "norm_position", norm_position, ("pre", "post"))
        attention_bias = bias if attention_bias is None else attention_bias
        flags = {"bias": bias, "attention_bias": attention_bias, "tied": tied, "embedding_norm": embedding_norm}
        check_flags("Decoder", **flags)
        self.plan = plan_of("Decoder", encoding, layers, sizes, length)
        make_norm, pre = partial(NORMS[norm], width, eps=eps), norm_position == "pre"
        shape: dict[str, Any] = {"kv_heads": kv_heads, "head_dim": sizes["head_dim"], "dropout": dropout}
        self.embed, self.dropout = nn.Embedding(vocab, width), nn.Dropout(dropout)
        self.embed_norm = make_norm() if embedding_norm else None
        self.blocks = nn.ModuleList(
            Block(
                SelfAttention(width, heads, **shape, bias=attention_bias, causal=True),
                FeedForward(width, hidden, activation, bias),
                make_norm,
                pre=pre,
            )
            for _ in range(layers)
        )
        self.norm = make_norm() if pre else None
        self.head = None if tied else nn.Linear(width, vocab, bias=False)
        start_weights(self, self.plan)
        for name, weight in self.blocks.named_parameters():
            if name.endswith(("attention.out.weight", "feed_forward.down.weight")):
                weight.data *= (2 * layers) ** -0.5  # so that the sum over layers starts as one part of it, as in GPT-2

    def forward(
        self,
        tokens: Tensor,
        *,
        positions: Maybe = None,
        documents: Maybe = None,
        key_mask: Maybe = None,
        length: int | None = None,
    ) -> Tensor:
        """Logits (batch, length, vocab) of tokens (batch, length).

        Positions count the real tokens of each row, from 0 in each document, unless given as (length,),
        (batch, length) or (axes, batch, length); of (axes, length), as ``multimodal`` gives them, pass
        ``positions[:, None]``. Tokens see their own document only, and no padding, which
        ``key_mask`` (batch, length) marks with False. ``length`` is what length-dependent encodings serve.
        """
        consecutive = positions is None and documents is None and key_mask is None
        positions = check_tokens("Decoder", tokens, self.embed.num_embeddings, positions, documents, key_mask)
        options = {"documents": documents, "key_mask": key_mask, "length": length, "consecutive": consecutive}
        return self._logits(self._hidden(tokens, None, positions=positions, **options))

    def caches(self, *, capacity: int | None = None, length: int | None = None) -> list[KVCache]:
        """An empty cache for each layer, which ``step`` fills; ``length`` is what length-dependent encodings serve."""
        return [KVCache(encoding=self.plan[layer], capacity=capacity, length=length) for layer in range(len(self.plan))]

    @torch.no_grad()
    def step(self, tokens: Tensor, caches: list[KVCache], *, positions: Maybe = None, key_mask: Maybe = None) -> Tensor:
        """Logits of the next tokens (batch, new), which the caches keep: those of a full pass over all tokens so far.

        Where an encoding depends on the length, as dynamic NTK does past the one it was trained on, that is so at one
        ``length``: layers above the first keep what was made at the length of its step.

        Positions go on from the real tokens of each row unless given, and ``key_mask`` is False where new tokens are
        padding. Given positions are not known to go on, so that kernels of decoding do not take such a step.

        >>> import torch, whorl.models
        >>> model = whorl.models.Decoder(vocab=256, layers=2, width=64, heads=4, encoding="rope", length=32)
        >>> tokens, caches = torch.arange(10)[None], model.caches()
        >>> first, rest = model.step(tokens[:, :7], caches), model.step(tokens[:, 7:], caches)
        >>> torch.allclose(torch.cat((first, rest), dim=1), model(tokens), atol=1e-5)
        True
        """
        return self._logits(self._step(tokens, caches, positions, key_mask, consecutive=positions is None))

    @torch.no_grad()
    def generate(
        self,
        tokens: Tensor,
        count: int,
        *,
        temperature: float = 0.0,
        top_k: int | None = None,
        generator: torch.Generator | None = None,
        key_mask: Maybe = None,
        length: int | None = None,
        graph: bool | None = None,
    ) -> Tensor:
        """The tokens (batch, length) with ``count`` more behind them: the likeliest, or drawn at a temperature.

        ``top_k`` draws among the k likeliest. Prompts of unequal length are padded on the left, where
        ``key_mask`` is False. ``length`` is what length-dependent encodings serve, at every step. On a GPU the steps
        are one captured CUDA graph where the encoding allows it; ``graph=True`` raises where it does not, with the
        reason.
        """
        positions = check_tokens("Decoder.generate", tokens, self.embed.num_embeddings, None, None, key_mask)
        _check_sampling(count, temperature, top_k, generator, key_mask, tokens)
        if graph is not None and not isinstance(graph, bool):
            raise invalid("Decoder.generate", "graph", "True, False or None", graph)
        if not count:
            return tokens.clone()
        reason = why_not_captured(tokens, ()) if graph else None
        if reason is not None:  # known before the prompt is read, and however few tokens are to come
            raise cannot_be(reason)
        given, caches = tokens.shape[1], self.caches(capacity=tokens.shape[1] + count, length=length)
        positions = positions.expand(tokens.shape)
        out = torch.cat((tokens, tokens.new_empty(tokens.shape[0], count)), dim=1)
        logits = self._logits(self._step(tokens, caches, positions, key_mask, consecutive=True)[:, -1])
        steps = Steps(self, caches, positions[:, -1:] + 1, graph=graph)
        for place in range(given, given + count):
            new = _choose(logits, temperature, top_k, generator).to(tokens.dtype)
            out[:, place : place + 1] = new
            if place + 1 < given + count:
                logits = steps(new, more=given + count - place - 2)
        return out

    def next_logits(self, tokens: Tensor, caches: list[KVCache], positions: Tensor) -> Tensor:
        """Logits of one more token for each row (batch, 1), whose positions go on from those in the caches.

        Nothing is checked, so that a graph of it can be captured: ``step`` is the call for users.
        """
        x = self._hidden(tokens, caches, positions=positions, key_mask=None, consecutive=True)
        return self._logits(x[:, -1])

    def _step(
        self, tokens: Tensor, caches: list[KVCache], positions: Maybe, key_mask: Maybe, *, consecutive: bool
    ) -> Tensor:
        given = check_tokens("Decoder.step", tokens, self.embed.num_embeddings, positions, None, key_mask)
        _check_caches(caches, len(self.blocks))
        positions = given if positions is not None else caches[0].positions_to_come(tokens, key_mask)
        if self.dropout.p and any(part.training for part in (self, *self.blocks)):
            raise WhorlError("Decoder: dropout would change what a step says. Call model.eval() first.")
        with together(caches):
            return self._hidden(tokens, caches, positions=positions, key_mask=key_mask, consecutive=consecutive)

    def _hidden(self, tokens: Tensor, caches: list[KVCache] | None, *, positions: Tensor, **options: Any) -> Tensor:
        x = self.plan[0].add_to_input(self.embed(tokens), positions)  # once for all layers, as LayerPlan makes sure
        x = self.dropout(x if self.embed_norm is None else self.embed_norm(x))
        for layer, block in enumerate(self.blocks):
            cache = None if caches is None else caches[layer]
            x = block(x, self.plan[layer], cache=cache, positions=positions, **options)
        return x if self.norm is None else self.norm(x)

    def _logits(self, x: Tensor) -> Tensor:
        return linear(x, self.embed.weight) if self.head is None else self.head(x)


def _choose(logits: Tensor, temperature: float, top_k: int | None, generator: torch.Generator | None) -> Tensor:
    """The next token of each row, (batch, 1)."""
    if may_read_values(logits) and not bool(logits.amax(-1).isfinite().all()):  # on a device, looking would wait for it
        raise WhorlError(
            "Decoder.generate: the model gives NaN or infinity for a logit, or −inf for all. Look at its weights."
        )
    if temperature == 0:
        return logits.argmax(-1, keepdim=True)
    kept, ids = logits.double().topk(min(top_k or logits.shape[-1], logits.shape[-1]))
    # less the largest, which comes first: then no temperature is too low, and float32 would round some of them to 0
    weights = ((kept - kept[:, :1]) / float(temperature)).softmax(-1)
    return ids.gather(-1, torch.multinomial(weights, 1, generator=generator))


def _check_caches(caches: list[KVCache], layers: int) -> None:
    call = "Decoder.step"
    if not isinstance(caches, (list, tuple)) or not all(isinstance(cache, KVCache) for cache in caches):
        raise invalid(call, "caches", "a list of one KVCache per layer", caches, "Use caches().")
    if len(caches) != layers:
        raise invalid(call, "caches", f"{layers}, one per layer", len(caches), "Use caches().")
    if len(set(caches)) < layers:
        raise WhorlError(f"{call}: some layers have one and the same cache. Use caches(), which makes one for each.")
    filled = sorted({len(cache) for cache in caches})
    if len(filled) > 1:
        raise WhorlError(f"{call}: some layers' caches hold {filled[0]} tokens and some {filled[-1]}. Crop all alike.")


def _check_sampling(
    count: int,
    temperature: float,
    top_k: int | None,
    generator: torch.Generator | None,
    key_mask: Maybe,
    tokens: Tensor,
) -> None:
    call = "Decoder.generate"
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise invalid(call, "count", "0 or more", count)
    if tokens.shape[1] + count > MOST_TOKENS:
        raise invalid(call, "tokens and count", f"at most {MOST_TOKENS:,} together", tokens.shape[1] + count)
    if not is_finite_number(temperature) or temperature < 0:
        raise invalid(call, "temperature", "0 or more", temperature, "0 takes the likeliest token.")
    if temperature == 0 and (top_k is not None or generator is not None):
        raise WhorlError(f"{call}: top_k and generator would be ignored, nothing is drawn. Pass a temperature.")
    if generator is not None:
        if not isinstance(generator, torch.Generator):
            raise invalid(call, "generator", "a torch.Generator or None", generator)
        if generator.device.type != tokens.device.type:
            what = f"generator must be on the device of tokens, {tokens.device}, got {generator.device}"
            raise WhorlError(f"{call}: {what}. Make it with torch.Generator({tokens.device.type!r}).")
    if top_k is not None and (isinstance(top_k, bool) or not isinstance(top_k, int) or top_k < 1):
        raise invalid(call, "top_k", "a positive integer or None", top_k)
    if key_mask is not None and may_read_values(key_mask) and not bool(key_mask[:, -1].all()):
        raise WhorlError(
            f"{call}: the last token of every row must be real. Pad prompts on the left, not on the right."
        )
