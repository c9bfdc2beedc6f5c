"""What is watched while a model trains: gradient norms by part of the model, and how spread out attention is."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from whorl.attend.softmax import attention
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
    with _watching(model, found):
        model(tokens[:rows])
    return float(torch.stack(found).mean())


@contextlib.contextmanager
def _watching(model: Decoder, found: list[Tensor]) -> Iterator[None]:
    def watch(module: SelfAttention, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        x, encoding = args
        found.append(_entropy(module, x, encoding, options))

    hooks = [block.attention.register_forward_pre_hook(watch, with_kwargs=True) for block in model.blocks]  # pyright: ignore
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _entropy(module: SelfAttention, x: Tensor, encoding: Any, options: dict[str, Any]) -> Tensor:
    q, k, v = module.project(x)
    hidden = x if encoding.reads_hidden else None
    _, weights = attention(
        q,
        k,
        v,
        encoding=encoding,
        causal=module.causal,
        positions=options["positions"],
        hidden=hidden,
        length=options.get("length"),
        return_weights=True,
    )
    return torch.special.entr(weights).sum(-1).mean()
