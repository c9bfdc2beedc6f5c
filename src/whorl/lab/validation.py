"""Views of a model beside its scores: the loss on test text during training, generated texts, attention of a head."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from whorl.lab.corpus import Corpus
from whorl.lab.evaluate import reach, score
from whorl.lab.monitor import attention_by_distance
from whorl.lab.settings import RunConfig
from whorl.lab.tokens import text_of
from whorl.models.decoder import Decoder

VALIDATED_TOKENS = 2048  # of test text, each time
WRITTEN = 64  # tokens that a model goes on with, at most half the length
SHOWN = 64  # of the text before them
WATCHED_LENGTH, WATCHED_ROWS = 1024, 2  # the most whose attention is read


def validation(model: Decoder, config: RunConfig, corpus: Corpus) -> Callable[[], float]:
    """A call that scores the model as it is then: bits per byte of the same test text, at the trained length."""
    length = config.train_length
    count = max(1, VALIDATED_TOKENS // length)
    tokens = torch.from_numpy(corpus.samples(length, count).astype(np.int64))
    size = float(corpus.samples(length, count, sizes=True)[:, 1:].mean())

    def bits() -> float:
        training = model.training
        model.eval()
        nats, _ = score(model, tokens.to(config.device), config)
        model.train(training)
        return float(nats.double().mean()) / size / math.log(2)

    return bits


def loss_options(model: Decoder, config: RunConfig, corpus: Corpus) -> dict[str, Any]:
    """The options of ``language_loss`` for a text: the loss on its test part, and its bytes per token."""
    return {"validate": validation(model, config, corpus), "bytes_per_token": corpus.bytes_per_token}


def generated_texts(model: Decoder, config: RunConfig, corpus: Corpus) -> list[dict[str, Any]]:
    """Texts that the model generates after a test text, by the likeliest token, up to once and 4 times its length."""
    found = []
    for length in (config.train_length, 4 * config.train_length):
        if length > min(max(config.lengths), reach(model.plan)):
            continue
        count = min(WRITTEN, length // 2)
        given = torch.from_numpy(corpus.samples(max(config.lengths), 1).astype(np.int64))[:, : length - count]
        model.eval()
        out = model.generate(given.to(config.device), count, length=length)[0].tolist()
        before, text = out[-count - SHOWN : -count], out[-count:]
        found.append({"length": length, "prompt": text_of(config, before), "text": text_of(config, text)})
    return found


def one_head(model: Decoder, config: RunConfig, corpus: Corpus) -> dict[str, Any]:
    """Attention by distance of one head of the model, at 4 times the trained length where that was tested."""
    length = int(min(4 * config.train_length, max(config.lengths), reach(model.plan), WATCHED_LENGTH))
    tokens = torch.from_numpy(corpus.samples(length, WATCHED_ROWS).astype(np.int64))[:, :-1]
    model.eval()
    return {"length": length, **attention_by_distance(model, tokens.to(config.device))}
