"""A short fine-tune of a trained model with a repair in place, at 4 times the trained length.

The rate is a fifth of that of the training and stays there, nothing decays, and a batch has a quarter of the rows, at
least 2: what a small extension of a checkpoint does. The encoding is that of the length it is tuned at, for every
length it is evaluated at, as it would be served.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from whorl.lab.batches import TextBatches
from whorl.lab.corpus import Corpus
from whorl.lab.evaluate import Evaluation, reach, serving
from whorl.lab.language import language_loss
from whorl.lab.repairs import repaired_plan
from whorl.lab.settings import RunConfig
from whorl.lab.train import train
from whorl.models.decoder import Decoder

STRETCH = 4
RATE = 0.2
ROWS = 10  # of metrics, behind each of which it may be saved
TUNED = "fine-tuned"  # the folder in a run's own where a fine-tune goes on from


def fine_tuned(
    model: Decoder, config: RunConfig, evaluation: Evaluation, name: str, corpus: Corpus, folder: Path | None = None
) -> dict[str, Any]:
    """The scores of a copy of the model after ``config.fine_tune_steps`` with the repair of that name.

    ``folder`` is that of the run; stopped in the middle, the fine-tune goes on from what it saved there.
    """
    gentle, length = tuning(config), STRETCH * config.train_length
    tuned = copy.deepcopy(model)
    plan = repaired_plan(name, tuned.plan, trained=config.train_length, length=length)
    if length <= reach(plan):
        home = None if folder is None else folder / TUNED / name.replace(" ", "-")
        if home is not None:
            home.mkdir(parents=True, exist_ok=True)
        loss = language_loss(tuned, gentle, TextBatches(corpus, gentle), length=length)
        with serving(tuned, plan):
            train(tuned, gentle, loss, home, rows=ROWS, part_of=None)
    return evaluation.on(tuned).variant(name, fixed=plan) | {"fine_tuned_steps": config.fine_tune_steps}


def tuning(config: RunConfig) -> RunConfig:
    """How the model of a run is tuned, and on which batches."""
    return config.replace(
        stages=((STRETCH * config.train_length, max(2, config.stages[-1][1] // STRETCH), config.fine_tune_steps),),
        learning_rate=RATE * config.learning_rate,
        final=1.0,
        weight_decay=0.0,
        accumulate=1,
        warmup=0,
    )
