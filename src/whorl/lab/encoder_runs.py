"""What the experiments on encoders share: a RoFormer by the name of an encoding, and a short training loop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from whorl.encodings.layer_plan import LayerPlan
from whorl.errors import WhorlError
from whorl.lab.settings import RunConfig, resolve
from whorl.lab.train import make_optimizer, set_rate
from whorl.models.roformer import RoFormer
from whorl.registry import from_dict

# Weights of 0.02, as BERT starts from, are meant for this width. In a narrow model they leave attention all but
# uniform, and it takes long to find out that positions matter.
BERT_WIDTH = 768

# Of a sinusoidal code that does not say its own: as large as the embeddings at the start, whose deviation is 0.02.
# A code of full size drowns the words; in a short run nothing but positions is seen.
SINUSOIDAL_SCALE = 0.02 * 2**0.5


@dataclass(frozen=True)
class Fitted:
    """The loss of every step in nats, and the seconds taken."""

    losses: list[float]
    seconds: float

    @property
    def loss(self) -> float:
        """The mean over the last tenth of the steps."""
        last = self.losses[-max(1, len(self.losses) // 10) :]
        return sum(last) / len(last)


def make_encoder(
    encoding: dict[str, Any] | str, *, vocab: int, layers: int, width: int, heads: int, length: int, seed: int
) -> RoFormer:
    """An untrained RoFormer with an encoding given by name and settings; texts have at most ``length`` tokens.

    Weights are drawn after the encoding's own parameters from a seed set anew, so that with one seed every encoding
    starts from the same weights. Each layer has its own parameters of an encoding that works inside layers (Shaw).

    >>> encoder = make_encoder("shaw", vocab=50, layers=2, width=16, heads=2, length=32, seed=0)
    >>> len(encoder.plan.unique)
    2
    """
    named = {"name": encoding} if isinstance(encoding, str) else encoding
    if named.get("name") == "sinusoidal":
        named = {"scale": SINUSOIDAL_SCALE, **named}
    full = resolve(named, heads=heads, head_dim=width // heads, width=width, length=length)
    torch.manual_seed(seed)
    one = from_dict(full)
    shared = "add_to_input" in one.enters() or not any(True for _ in one.parameters())
    plan = LayerPlan.shared(one, layers=layers) if shared else LayerPlan.own(lambda: from_dict(full), layers=layers)
    torch.manual_seed(seed)
    encoder = RoFormer(vocab, layers, width, heads, plan)
    with torch.no_grad():
        for part in encoder.blocks.modules():
            if isinstance(part, nn.Linear):
                part.weight *= (BERT_WIDTH / width) ** 0.5
    return encoder


def fit(
    model: nn.Module,
    loss_at: Callable[[int], Tensor],
    *,
    steps: int,
    rate: float,
    after_backward: Callable[[int], None] | None = None,
) -> Fitted:
    """Trains a model in place with the lab's AdamW, warm-up and cosine; ``loss_at(step)`` is the loss of a batch.

    Gradients are cut to a norm of 1 and no weight decays. ``after_backward`` sees them before they are cut.
    """
    schedule = RunConfig(encoding={"name": "none"}, stages=((2, 1, steps),), learning_rate=rate, weight_decay=0.0)
    optimizer = make_optimizer(model, schedule)
    losses: list[float] = []
    begun = time.perf_counter()
    model.train()
    for step in range(steps):
        set_rate(optimizer, step, schedule)
        loss = loss_at(step)
        losses.append(float(loss.detach()))
        if not math.isfinite(losses[-1]):
            raise WhorlError(f"lab: the loss is {losses[-1]} at step {step + 1}. Lower the learning rate, now {rate}.")
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if after_backward is not None:
            after_backward(step)
        nn.utils.clip_grad_norm_(model.parameters(), schedule.clip)
        optimizer.step()
    return Fitted(losses, time.perf_counter() - begun)
