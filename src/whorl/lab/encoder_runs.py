"""What the experiments on encoders share: a RoFormer by the name of an encoding, and its training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from whorl import LayerPlan, WhorlError, from_dict
from whorl.config import Config, config
from whorl.encodings.parts import Input, first
from whorl.lab.load import parameters
from whorl.lab.recipe import Recipe
from whorl.lab.settings import identity, resolve
from whorl.lab.storage import make_once, read_made
from whorl.lab.train import Loss, Tell, Trained, train
from whorl.models.roformer import RoFormer
from whorl.result_shapes import Has

# Weights of 0.02, as BERT starts from, are meant for this width. In a narrow model they leave attention all but
# uniform, and it takes long to find out that positions matter.
BERT_WIDTH = 768

# Of a sinusoidal code that does not say its own: as large as the embeddings at the start, whose deviation is 0.02.
# A code of full size drowns the words; in a short run nothing but positions is seen.
SINUSOIDAL_SCALE = 0.02 * 2**0.5


@config
class EncoderConfig(Config):
    """What decides every run of an encoder, whatever it learns.

    encoding       name and settings
    layers, width, heads   the encoder
    learning_rate  the highest; a warm-up before, a cosine behind
    seed           of the weights, and of all else that is drawn
    """

    encoding: str | dict = "rope"
    layers: int = 2
    width: int = 64
    heads: int = 2
    learning_rate: float = 1e-3
    seed: int = 0

    def check(self) -> None:
        self.check_positive("layers", "width", "heads", "learning_rate")

    def encoder(self, vocab: int, length: int) -> RoFormer:
        """An untrained RoFormer; texts have at most ``length`` tokens.

        Weights are drawn after the encoding's own parameters from a seed set anew, so that with one seed every encoding
        starts from the same weights. Each layer has its own parameters of an encoding that works inside layers (Shaw).

        >>> len(EncoderConfig(encoding="shaw", width=16).encoder(vocab=50, length=32).plan.unique)
        2
        """
        named = {"name": self.encoding} if isinstance(self.encoding, str) else self.encoding
        if named.get("name") == "sinusoidal":
            named = {"scale": SINUSOIDAL_SCALE, **named}
        layers, width, heads = self.layers, self.width, self.heads
        full = resolve(named, heads=heads, head_dim=width // heads, width=width, length=length)
        torch.manual_seed(self.seed)
        one = from_dict(full)
        shared = first(one, Input) or not any(True for _ in one.parameters())
        plan = LayerPlan.shared(one, layers=layers) if shared else LayerPlan.own(lambda: from_dict(full), layers=layers)
        torch.manual_seed(self.seed)
        encoder = RoFormer(vocab, layers, width, heads, plan)
        with torch.no_grad():
            for part in encoder.blocks.modules():
                if isinstance(part, nn.Linear):
                    part.weight *= (BERT_WIDTH / width) ** 0.5
        return encoder


def fit(
    model: nn.Module,
    loss: Loss,
    stages: Sequence[tuple[int, ...]],
    rate: float,
    folder: Path | None = None,
    *,
    part_of: Callable[[str], str] | None = None,
    tell: Tell | None = None,
) -> Trained:
    """Trains an encoder in place, with a row of metrics for every step; no weight decays.

    The rest is that of ``whorl.lab.train``. A loss that is no number raises a WhorlError.
    """
    recipe = Recipe(stages=tuple(stages), learning_rate=rate, weight_decay=0.0)
    done = train(model, recipe, loss, folder, rows=recipe.steps, part_of=part_of, tell=tell)
    if done.stopped_early is not None:
        raise WhorlError(f"lab: {done.stopped_early}")
    return done


def facts(settings: EncoderConfig, model: nn.Module, done: Trained) -> dict[str, Any]:
    """What the result of a run says of its model and training; the loss is the mean over the last tenth, in nats."""
    counts, losses = parameters(model), [row["loss"] for row in done.metrics]
    last = losses[-max(1, len(losses) // 10) :]
    return {
        "config": settings.to_dict(),
        "loss": sum(last) / len(last),
        "parameters": counts["all"],
        "encoding_parameters": counts["encoding"],
        "train_seconds": done.seconds,
    }


@torch.no_grad()
def share_right(model: nn.Module, tokens: Tensor, wanted: Tensor, at_once: int) -> float:
    """The share of rows whose likeliest answer is the wanted one; so many rows in a pass."""
    model.eval()
    logits = torch.cat([model(part) for part in tokens.split(at_once)])
    return (logits.argmax(-1) == wanted).double().mean().item()


def made_once(
    settings: EncoderConfig,
    data: Any,
    out: str | Path | None,
    make: Callable[[Path | None], dict[str, Any]],
    shape: Has,
) -> dict[str, Any]:
    """The result of a run on some data: made in a folder of its own under ``out``, unless it is there; or in none.

    ``shape`` is what a result that is there must look like.
    """
    if out is None:
        return make(None)
    folder = folder_of(settings, data, out)
    make_once(folder, settings, lambda: make(folder))
    return read_made(folder, shape)


def folder_of(settings: EncoderConfig, data: Any, out: str | Path) -> Path:
    """The folder of a run, named by what its settings and its data hash to: other data are another run."""
    return Path(out) / settings.name / identity({"config": settings.to_dict(), "data": data})
