"""What the experiments on encoders share: a RoFormer by the name of an encoding, and its training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from whorl.config import Config
from whorl.encodings.layer_plan import LayerPlan
from whorl.errors import WhorlError
from whorl.lab.recipe import Recipe
from whorl.lab.settings import identity, resolve
from whorl.lab.storage import RESULT, make_once, read_json
from whorl.lab.train import SAVE_SECONDS, Loss, Tell, Trained, train
from whorl.models.roformer import RoFormer
from whorl.registry import from_dict

# Weights of 0.02, as BERT starts from, are meant for this width. In a narrow model they leave attention all but
# uniform, and it takes long to find out that positions matter.
BERT_WIDTH = 768

# Of a sinusoidal code that does not say its own: as large as the embeddings at the start, whose deviation is 0.02.
# A code of full size drowns the words; in a short run nothing but positions is seen.
SINUSOIDAL_SCALE = 0.02 * 2**0.5


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
    loss: Loss,
    *,
    stages: Sequence[tuple[int, ...]],
    rate: float,
    folder: Path | None = None,
    part_of: Callable[[str], str] | None = None,
    tell: Tell | None = None,
    save_seconds: float = SAVE_SECONDS,
) -> Trained:
    """Trains an encoder in place, with a row of metrics for every step; no weight decays.

    The rest is that of ``whorl.lab.train``. A loss that is no number raises a WhorlError.
    """
    recipe = Recipe(stages=tuple(stages), learning_rate=rate, weight_decay=0.0)
    options: dict[str, Any] = {"part_of": part_of, "tell": tell, "save_seconds": save_seconds}
    done = train(model, recipe, loss, folder, rows=recipe.steps, **options)
    if done.stopped_early is not None:
        raise WhorlError(f"lab: {done.stopped_early}")
    return done


def late_loss(done: Trained) -> float:
    """The mean loss over the last tenth of the steps, in nats."""
    losses = [row["loss"] for row in done.metrics]
    last = losses[-max(1, len(losses) // 10) :]
    return sum(last) / len(last)


def made_once(
    settings: Config, data: Any, out: str | Path | None, make: Callable[[Path | None], dict[str, Any]]
) -> dict[str, Any]:
    """The result of a run on some data: made in a folder of its own under ``out``, unless it is there; or in none.

    The folder is named by what the settings and the data hash to: other data are another run.
    """
    if out is None:
        return make(None)
    folder = Path(out) / settings.name / identity({"config": settings.to_dict(), "data": data})
    make_once(folder, settings, lambda: make(folder))
    return read_json(folder / RESULT)
