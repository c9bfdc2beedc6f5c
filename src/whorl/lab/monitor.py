"""What is watched while a model trains: gradient norms by part of the model, and how spread out attention is."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from whorl import attention
from whorl.models.decoder import Decoder
from whorl.models.layers import SelfAttention

GROUPS = ("embeddings", "attention", "feed_forward", "norm", "head", "encoding")  # in the order they are told

WATCHED_TOKENS = 256  # of the batch, in whole rows: enough for a mean, too few to cost time


def group_of(name: str) -> str:
    """The part of the model that a parameter belongs to, by its name.

    >>> [group_of(name) for name in ("embed.weight", "blocks.0.attention.q.bias", "plan.unique.0.table", "norm.bias")]
    ['embeddings', 'attention', 'encoding', 'norm']
    """
    if name.startswith("plan."):
        return "encoding"
    if name.startswith(("embed.", "head.")):
        return "embeddings"
    for part in ("attention", "feed_forward"):
        if f".{part}." in name:
            return part
    return "norm"


def gradient_norms(model: nn.Module, part_of: Callable[[str], str] = group_of) -> dict[str, float]:
    """The norm of the gradient of each part of the model that has one, in the order of GROUPS.

    ``part_of`` is the part that a parameter belongs to, by its name.
    """
    grouped: dict[str, list[Tensor]] = {}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            grouped.setdefault(part_of(name), []).append(parameter.grad)
    return {group: float(nn.utils.get_total_norm(grouped[group])) for group in GROUPS if group in grouped}


@torch.no_grad()
def attention_entropy(model: Decoder, tokens: Tensor) -> float:
    """The mean entropy of attention in nats over layers, heads and queries, on a few rows of a batch.

    Weights are computed beside a forward pass, from the same queries and keys; nothing random is drawn.
    """
    rows = max(1, WATCHED_TOKENS // tokens.shape[1])
    found: list[Tensor] = []
    training = model.training
    model.eval()
    with _watching(model, lambda weights: found.append(torch.special.entr(weights).sum(-1).mean())):
        model(tokens[:rows])
    model.train(training)
    return float(torch.stack(found).mean())


@torch.no_grad()
def attention_by_distance(model: Decoder, tokens: Tensor) -> dict[str, Any]:
    """How much attention the farthest-looking head of a model pays by distance: {"head", "distance", "weight"}.

    ``weight`` is the mean over the second half of the queries of tokens (rows, length) and over the distances from
    ``distance`` to before the next, which doubles; the last ends at half the length, which all those queries see. The
    head is the one with the largest mean distance, told as [layer, head].
    """
    length = tokens.shape[1]
    by_head: list[Tensor] = []  # (heads, distances) of each layer

    def watch(weights: Tensor) -> None:
        queries = torch.arange(length - length // 2, length, device=weights.device)
        distances = torch.arange(length // 2, device=weights.device)
        seen = weights[:, :, queries[:, None], queries[:, None] - distances]
        by_head.append(seen.float().mean((0, 2)).cpu())

    with _watching(model, watch):
        model(tokens, length=length)
    heads = torch.stack(by_head)
    far = (heads * torch.arange(length // 2)).sum(-1) / heads.sum(-1).clamp(min=1e-9)
    layer, head = divmod(int(far.argmax()), heads.shape[1])
    edges = [0, *(2**n for n in range((length // 2 - 1).bit_length())), length // 2]
    weight = [float(heads[layer, head, start:stop].mean()) for start, stop in itertools.pairwise(edges)]
    return {"head": [layer, head], "distance": edges[:-1], "weight": weight}


@contextlib.contextmanager
def _watching(model: Decoder, watch: Callable[[Tensor], object]) -> Iterator[None]:
    """Has ``watch`` called with the weights (batch, heads, queries, keys) of each layer of every forward pass."""

    def before(module: SelfAttention, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        x, encoding = args
        q, k, v = module.project(x)
        hidden = x if encoding.reads_hidden else None
        seen = {"positions": options["positions"], "hidden": hidden, "length": options.get("length")}
        _, weights = attention(q, k, v, encoding=encoding, causal=module.causal, return_weights=True, **seen)
        watch(weights)

    hooks = [block.attention.register_forward_pre_hook(before, with_kwargs=True) for block in model.blocks]  # pyright: ignore
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
