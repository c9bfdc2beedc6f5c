"""A short fine-tune of a trained model with a repair in place, at 4 times the trained length.

The rate is a fifth of that of the training and stays there, nothing decays, and a batch has a quarter of the rows, at
least 2: what a small extension of a checkpoint does. The encoding is that of the length it is tuned at, for every
length it is evaluated at, as it would be served.
"""

from __future__ import annotations

import copy
from typing import Any

import torch

from whorl.encodings.base import Encoding
from whorl.lab.batches import TextBatches
from whorl.lab.corpus import Corpus
from whorl.lab.evaluate import Evaluation, reach, serving
from whorl.lab.repairs import repaired
from whorl.lab.settings import RunConfig
from whorl.lab.train import autocast, loss_of, make_optimizer
from whorl.models.decoder import Decoder

STRETCH = 4
RATE = 0.2


def fine_tuned(model: Decoder, config: RunConfig, evaluation: Evaluation, name: str, corpus: Corpus) -> dict[str, Any]:
    """The scores of a copy of the model after ``config.fine_tune_steps`` with the repair of that name."""
    length = STRETCH * config.train_length
    tuned = copy.deepcopy(model)
    encoding = repaired(name, tuned.plan[0], trained=config.train_length, length=length)
    if length <= reach(encoding):
        _tune(tuned, encoding, config, length, corpus)
    return evaluation.on(tuned).variant(name, fixed=encoding) | {"fine_tuned_steps": config.fine_tune_steps}


def tuning(config: RunConfig) -> RunConfig:
    """The config whose batches a run's model is tuned on."""
    return config.replace(
        stages=((STRETCH * config.train_length, max(2, config.stages[-1][1] // STRETCH), config.fine_tune_steps),),
        weight_decay=0.0,
        accumulate=1,
        warmup=0,
    )


def _tune(model: Decoder, encoding: Encoding, config: RunConfig, length: int, corpus: Corpus) -> None:
    gentle = tuning(config)
    batches = TextBatches(corpus, gentle)
    with serving(model, encoding):
        model.train()
        optimizer = make_optimizer(model, gentle)
        for group in optimizer.param_groups:
            group["lr"] = RATE * config.learning_rate * group["times"]
        for step in range(config.fine_tune_steps):
            inputs, targets = (part.to(config.device) for part in batches(step))
            optimizer.zero_grad(set_to_none=True)
            with autocast(config):
                loss, _ = loss_of(lambda tokens: model(tokens, length=length), inputs, targets)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip)
            optimizer.step()
