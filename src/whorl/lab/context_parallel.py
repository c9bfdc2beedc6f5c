"""Context parallel: one text over many processes, each with a zig-zag shard of its tokens.

Every process has the whole model and embeds, projects and feeds forward its own tokens only. In attention it gathers
the keys and values of all tokens and attends to them from its own queries; ``causal="positions"`` lets each see what
stands before it in the whole text. Zig-zag shards give all processes the same work under that mask.

tokens ─► own shard, positions as in the whole ─► blocks: own queries, all keys and values ─► own share of the mean loss
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import cross_entropy

from whorl import Encoding, KVCache, attention, shard, unshard
from whorl.errors import WhorlError, invalid
from whorl.models.decoder import Decoder
from whorl.models.layers import SelfAttention
from whorl.position_ids import positions as make_positions

Group = Any  # a torch.distributed process group; None is the default one


def context_parallel_loss(
    model: Decoder, inputs: Tensor, targets: Tensor, *, group: Group = None, length: int | None = None
) -> Tensor:
    """The mean loss in nats of whole texts (batch, length), the same in every process of the group.

    Every process passes the same tokens; their length is a multiple of twice the number of processes. Targets of -100
    do not count. ``length`` is what length-dependent encodings serve. ``backward`` leaves in each process the gradients
    of its own share; ``sum_gradients`` makes them those of the whole loss.

        loss = context_parallel_loss(model, inputs, targets)
        loss.backward()
        sum_gradients(model)
    """
    share, _ = own_share(model, inputs, targets, group=group, length=length)
    total = share.detach().clone()
    dist.all_reduce(total, group=group)
    return share + (total - share.detach())  # the value of the whole, the gradient of the own share


def own_share(
    model: Decoder, inputs: Tensor, targets: Tensor, *, group: Group = None, length: int | None = None
) -> tuple[Tensor, Tensor]:
    """What the own tokens of this process add to the mean loss of whole texts, and to the share of right tokens."""
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    if targets.shape != inputs.shape:
        raise invalid("context_parallel_loss", "targets", f"of shape {tuple(inputs.shape)} as inputs", targets)
    whole = make_positions(inputs.shape[-1], device=inputs.device)
    own, wanted, positions = (shard(part, rank=rank, world=world, scheme="zigzag") for part in (inputs, targets, whole))
    with gathered_attention(model, whole, group=group):
        logits = model(own, positions=positions, length=length)
    counted = (targets != -100).sum().clamp(min=1)
    loss = cross_entropy(logits.flatten(0, 1).float(), wanted.flatten(), reduction="sum") / counted
    return loss, (logits.detach().argmax(-1) == wanted).sum() / counted


def sum_gradients(model: torch.nn.Module, *, group: Group = None) -> None:
    """Adds up the gradients that the processes of a group have, in one message per dtype."""
    by_type: dict[torch.dtype, list[Tensor]] = {}
    for parameter in model.parameters():
        if parameter.requires_grad:
            if parameter.grad is None:  # an own shard that does not touch it; another's may
                parameter.grad = torch.zeros_like(parameter)
            by_type.setdefault(parameter.grad.dtype, []).append(parameter.grad)
    for gradients in by_type.values():
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat, group=group)
        for gradient, summed in zip(gradients, flat.split([one.numel() for one in gradients]), strict=True):
            gradient.copy_(summed.view_as(gradient))


@contextlib.contextmanager
def gathered_attention(model: Decoder, positions: Tensor, *, group: Group = None) -> Iterator[Decoder]:
    """The model with attention over the keys and values of all processes, for a while; its weights are untouched.

    ``positions`` (length,) are those of the whole text.
    """
    for encoding in model.plan.unique:
        assert isinstance(encoding, Encoding)
        if encoding.axes > 1:
            raise WhorlError(
                f"context_parallel: {type(encoding).__name__} has positions of {encoding.axes} axes, which have no "
                "order to shard by. Use an encoding with one axis."
            )
    layers = [part for part in model.modules() if isinstance(part, SelfAttention)]
    for layer in layers:
        layer.forward = partial(_attend, layer, whole=positions, group=group)
    try:
        yield model
    finally:
        for layer in layers:
            del layer.forward


def _attend(
    layer: SelfAttention,
    x: Tensor,
    encoding: Encoding,
    positions: Tensor,
    cache: KVCache | None = None,
    *,
    whole: Tensor,
    group: Group,
    length: int | None = None,
    consecutive: bool = False,
    **options: Any,
) -> Tensor:
    """What the own tokens x (batch, own, width) gather from the tokens of all processes."""
    assert not consecutive, "positions are those of a shard"
    given = [name for name, value in {"cache": cache, **options}.items() if value is not None]
    if given:
        raise WhorlError(f"context_parallel: {', '.join(given)} cannot be sharded. Pass tokens alone.")
    q, k, v = layer.project(x)
    if layer.rotary_value:
        v = encoding.rotate(v, positions, length)  # pyright: ignore[reportCallIssue]
    out = attention(
        q,
        gather(k, dim=2, group=group),
        gather(v, dim=2, group=group),
        encoding=encoding,
        causal="positions" if layer.causal else False,
        positions=positions,
        key_positions=whole,
        hidden=gather(x, dim=1, group=group) if encoding.reads_hidden else None,
        dropout=layer.dropout if layer.training else 0.0,
        length=length,
    )
    return layer.out(out.transpose(1, 2).flatten(2))


def gather(x: Tensor, *, dim: int, group: Group = None) -> Tensor:
    """The whole sequence from the zig-zag shards of all processes along an axis, in its order; differentiable."""
    parts = _Gather.apply(x, group)
    return unshard(parts.unbind(0), scheme="zigzag", dim=dim)


class _Gather(torch.autograd.Function):
    """All processes' tensors on a new first axis; back, the sum over processes of the gradients of the own one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, x.contiguous(), group=group)
        return torch.stack(parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        summed = gradients[0].contiguous()
        dist.all_reduce(summed, group=ctx.group)  # gloo reduces to all, or not at all
        return summed[dist.get_rank(ctx.group)], None
