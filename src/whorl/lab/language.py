"""Language modelling: the loss of the next token over the batches of a run, as the training loop takes it.

batch ─► parts ─► logits (autocast) ─► cross-entropy ─► gradients, each target weighing the same
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from whorl.lab.monitor import attention_entropy
from whorl.lab.recipe import Recipe, autocast
from whorl.lab.train import Loss, Pass, finite
from whorl.models.decoder import Decoder

Batches = Callable[[int], tuple[Tensor, Tensor]]  # inputs and targets of an update; targets of -100 are not scored
Validate = Callable[[], float]  # the loss on other text, in bits per byte
Model = Callable[[Tensor], Tensor]  # tokens (batch, length) to logits


def language_loss(
    model: Decoder,
    recipe: Recipe,
    batches: Batches,
    *,
    length: int | None = None,
    validate: Validate | None = None,
    bytes_per_token: float = 1.0,
) -> Loss:
    """The loss of a decoder on batches in one process; ``validate`` is asked for bits per byte now and then.

    With ``length``, which is what length-dependent encodings serve, it is neither compiled nor watched.
    """
    run = compiled(model, recipe) if length is None else lambda tokens: model(tokens, length=length)

    def at(step: int) -> Pass:
        inputs, targets = (part.to(recipe.device, non_blocking=True) for part in batches(step))
        loss, logits = backward(run, recipe, inputs, targets)
        found = Pass(loss, lambda: _accuracy(logits, targets), inputs.numel())
        if length is not None:
            return found
        return found._replace(more=metrics_of(model, recipe, step, inputs, validate, bytes_per_token))

    return at


def compiled(model: nn.Module, recipe: Recipe) -> Any:
    """The model as it is called in training: compiled where the recipe says so."""
    if not recipe.compile:
        return model
    torch.compiler.reset()  # it stops compiling after a few models, and a sweep makes many
    return torch.compile(model)


def backward(run: Model, recipe: Recipe, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Leaves the gradients of a batch in the model; its mean loss, and the logits of its last part."""
    if recipe.accumulate == 1:
        loss, logits = _loss(run, recipe, inputs, targets)
        loss.backward()
        return loss.detach(), logits.detach()
    total, counted = torch.zeros((), device=inputs.device), (targets != -100).sum()
    logits = inputs
    for part, part_targets in zip(inputs.chunk(recipe.accumulate), targets.chunk(recipe.accumulate), strict=True):
        loss, logits = _loss(run, recipe, part, part_targets)
        loss = loss * ((part_targets != -100).sum() / counted)  # each target weighs the same, whichever part it is in
        loss.backward()
        total += loss.detach()
    return total, logits.detach()


def _loss(run: Model, recipe: Recipe, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The mean loss in nats over the targets that count, and the logits."""
    with autocast(recipe):
        logits = run(inputs)
        return cross_entropy(logits.flatten(0, 1).float(), targets.flatten()), logits


def _accuracy(logits: Tensor, targets: Tensor) -> Tensor:
    """The share of targets that are the likeliest token, over the rows that logits are of."""
    targets = targets[-len(logits) :]
    counted = targets != -100
    return (logits.argmax(-1) == targets)[counted].float().mean()


def metrics_of(
    model: Decoder,
    recipe: Recipe,
    step: int,
    inputs: Tensor,
    validate: Validate | None = None,
    bytes_per_token: float = 1.0,
) -> Callable[[float], dict[str, Any]]:
    """What a row of metrics says of a language model beside the mean loss, of which it is a function."""

    def found(mean: float) -> dict[str, Any]:
        with autocast(recipe):
            entropy = attention_entropy(model, inputs)
        row = {"bits_per_byte": mean / math.log(2) / bytes_per_token, "attention_entropy": finite(entropy)}
        if validate is None or not recipe.is_validated(step):
            return row
        return {**row, "validation_bits_per_byte": finite(validate())}

    return found
