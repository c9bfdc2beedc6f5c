"""Batches: the rows of each update by seed and step alone, so that a resumed run reads what it would have read.

The text is cut into pieces of the training length, visited in an order shuffled by the seed; each time round the cuts
lie elsewhere.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from whorl import WhorlError
from whorl.lab.corpus import Corpus, open_corpus
from whorl.lab.probes import mark_rows
from whorl.lab.settings import RunConfig
from whorl.lab.tasks import TaskBatches
from whorl.lab.tokens import open_tokens


def open_batches(config: RunConfig, out: Path) -> tuple[TextBatches | TaskRows, Corpus | None]:
    """The batches of a run, and its text, which is packed under OUT; a task has none."""
    if not config.text:
        return TaskRows(config), None
    corpus = open_corpus(config.corpus, out / "corpus", config.corpus_digest)
    corpus = open_tokens(corpus, config, out / "corpus")
    return TextBatches(corpus, config), corpus


class TextBatches:
    """Inputs and targets of every update of a run on text.

    >>> text = np.arange(2000, dtype=np.uint8)
    >>> corpus = Corpus("numbers", "", text, text, ((0, 2000),), 1)
    >>> batches = TextBatches(corpus, RunConfig(encoding={"name": "none"}, stages=[(16, 4, 10)]))
    >>> inputs, targets = batches(0)
    >>> inputs.shape, bool((targets[:, :-1] == inputs[:, 1:]).all())
    (torch.Size([4, 16]), True)
    """

    def __init__(self, corpus: Corpus, config: RunConfig) -> None:
        self.text, self.config = corpus.train, config
        self._order = lru_cache(maxsize=2)(self._new_order)
        for length, batch, _ in config.stages:
            if len(self.text) < batch * (length + 1):
                raise WhorlError(
                    f"lab: {corpus.name} has {len(self.text):,} {config.unit} to train on, less than one batch of "
                    f"{batch} rows of {length + 1}. Give more text, or a smaller length or batch."
                )

    def __call__(self, step: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets (batch, length) of update ``step``, counted from 0, int64 on the CPU."""
        stage = self.config.stage_at(step)
        length, batch, _ = self.config.stages[stage]
        first = step - sum(steps for _, _, steps in self.config.stages[:stage])
        pieces = (len(self.text) - 1) // length - 1 or 1  # one less than fit, so that the cuts can move
        rows = []
        for place in range(first * batch, (first + 1) * batch):
            order, shift = self._order(stage, place // pieces, pieces, length)
            start = int(order[place % pieces]) * length + shift
            rows.append(self.text[start : start + length + 1])
        stacked = np.stack(rows).astype(np.int64)
        if self.config.recall:
            mark_rows(stacked, self.config.recall, np.random.default_rng([self.config.seed, stage, step, 1]))
        tokens = torch.from_numpy(stacked)
        return tokens[:, :-1], tokens[:, 1:]

    def _new_order(self, stage: int, epoch: int, pieces: int, length: int) -> tuple[np.ndarray, int]:
        random = np.random.default_rng([self.config.seed, stage, epoch])
        room = min(length, len(self.text) - 1 - pieces * length)
        return random.permutation(pieces), int(random.integers(room + 1))


class TaskRows:
    """Inputs and targets of every update of a run on a synthetic task; targets that do not count are -100."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.stages = [
            TaskBatches(config.task_name, length, batch=batch, seed=config.seed) for length, batch, _ in config.stages
        ]

    def __call__(self, step: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets (batch, length) of update ``step``, counted from 0, int64 on the CPU."""
        tokens, wanted = self.stages[self.config.stage_at(step)].at(step)
        return tokens[:, :-1], tokens[:, 1:].masked_fill(~wanted, -100)
