"""Evaluation by length: bits per byte three ways, and whether far text is used at all, in bounded memory.

All lengths score the same test text: samples of the longest length, each from one document. A window of a length
stands in a sample, and

    non_overlapping   windows side by side, every token scored: the early tokens of a window have little before them,
                      so longer windows look better even to a model that uses nothing far
    sliding           the last quarter of those windows scored, as of a window that slides over the text: every token
                      has three quarters of the length before it, or more
    same_last         the window that ends with the sample, its last few tokens scored: the same targets at every
                      length, with more and more before them, which tells whether more context is used

Beside the loss stand two scores of use of far text. ``repeated_text_accuracy``: a text said again and again, and the
share of tokens right from the second time on. It is one token longer than the trained length, so that a window of that
length never reaches back to what it heard the last time; below twice the trained length it is half the length.
``retrieval_accuracy``: a random key and value put somewhere into the text, the key again at its end; the share of the
value's letters that are right.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from whorl.encodings.base import Encoding
from whorl.encodings.layer_plan import LayerPlan
from whorl.encodings.learned import Learned
from whorl.encodings.parts import Visibility, first
from whorl.lab.corpus import Corpus
from whorl.lab.recipe import autocast
from whorl.lab.repairs import repaired
from whorl.lab.settings import RunConfig
from whorl.lab.storage import PeakMemory
from whorl.models.decoder import Decoder
from whorl.results import AS_TRAINED, PROTOCOLS

PROBES = 16  # texts that the two scores of far use are measured on
KEY, VALUE = 8, 8  # letters
BINS = 32  # of positions in the per-position loss
# A pass holds at most so many tokens, and so many scores of a layer where they are formed: on a CPU, what caches hold.
TOKENS_AT_ONCE = {"cpu": 2**12, "cuda": 2**17}
SCORES_AT_ONCE = {"cpu": 2**21, "cuda": 2**30}
QUERIES_AT_ONCE = 1024  # of a long text where the encoding's own mask would be a square of its length

Found = dict[str, Any]


class Evaluation:
    """Scores of a trained model at every length of its run, with its own encoding or another in its place.

    Numbers are kept by encoding and length, so that a repair that changes nothing at a length costs nothing there.
    """

    def __init__(
        self, model: Decoder, config: RunConfig, corpus: Corpus, *, tell: Callable[[Found], None] | None = None
    ) -> None:
        self.model, self.config, self.tell = model, config, tell
        self.longest = max(config.lengths)
        self.samples = torch.from_numpy(
            corpus.samples(self.longest, math.ceil(config.eval_bytes / self.longest)).astype(np.int64)
        )
        self.kept: dict[tuple[str, int], tuple[Found, Tensor | None]] = {}

    def variant(self, name: str = AS_TRAINED, *, fixed: Encoding | None = None) -> Found:
        """The scores with one repair, made for each length anew, or with one encoding fixed for all of them."""
        rows, positions, encoding = [], None, self.model.plan[0]
        for length in self.config.lengths:
            encoding = fixed or repaired(name, self.model.plan[0], trained=self.config.train_length, length=length)
            row, positions = self._at(encoding, length, name)
            rows.append(row)
        return {
            "variant": name,
            "settings": {} if name == AS_TRAINED else encoding.config.to_dict(),
            "fine_tuned_steps": 0,
            "by_length": rows,
            "per_position": None if positions is None else _binned(positions),
        }

    def on(self, model: Decoder) -> Evaluation:
        """The same evaluation of another model of the same config."""
        again = copy.copy(self)
        again.model, again.kept = model, {}
        return again

    def _at(self, encoding: Encoding, length: int, name: str) -> tuple[Found, Tensor | None]:
        key = json.dumps(encoding.config.to_dict(), sort_keys=True), length
        if key not in self.kept:
            begun, peak = time.perf_counter(), PeakMemory(self.config.device)
            scores, positions = _nothing(), None
            if length <= reach(encoding):
                with serving(self.model, encoding):
                    scores, positions = self._measured(length)
            found = {"length": length, "ratio": length / self.config.train_length, **scores}
            found |= {"seconds": time.perf_counter() - begun, "peak_memory_bytes": peak.bytes()}
            self.kept[key] = found, positions
            if self.tell is not None:
                bits = found["bits_per_byte"]["same_last"]
                self.tell({"kind": "evaluate", "variant": name, "length": length, "bits_per_byte": bits})
        return self.kept[key]

    def _measured(self, length: int) -> tuple[Found, Tensor]:
        wanted = windows(self.longest, length, self.config.last or 1)
        starts = sorted({start for way in PROTOCOLS for start, _ in wanted[way]})
        tokens = torch.stack([self.samples[:, start : start + length + 1] for start in starts], dim=1)
        nats, right = self._score(tokens.flatten(0, 1))
        nats = nats.view(len(self.samples), len(starts), length)
        place = {start: i for i, start in enumerate(starts)}
        bits: Found = {}
        counts: Found = {}
        errors: Found = {}
        for way in PROTOCOLS:
            scored = torch.cat([nats[:, place[start], length - last :] for start, last in wanted[way]], dim=1)
            per_sample = scored.double().mean(1) / math.log(2)
            bits[way] = float(per_sample.mean())  # samples have equally many tokens, so tokens weigh the same
            counts[way] = scored.numel()
            spread = float(per_sample.std()) if len(per_sample) > 1 else math.nan
            errors[way] = None if math.isnan(spread) else spread / math.sqrt(len(per_sample))
        side = [place[start] for start, _ in wanted["non_overlapping"]]
        hits = right.view(len(self.samples), len(starts), length)[:, side]
        found = {
            "bits_per_byte": bits,
            "tokens_scored": counts,
            "stderr": errors,
            "accuracy": float(hits.float().mean()),
            "repeated_text_accuracy": self._repeated(length),
            "retrieval_accuracy": self._retrieval(length),
        }
        return found, nats[:, side].double().mean((0, 1)) / math.log(2)

    def _repeated(self, length: int) -> float | None:
        trained = self.config.train_length
        block = trained + 1 if length >= 2 * trained else length // 2
        if block < 8:
            return None
        texts = self.samples[:PROBES, -block:]
        tokens = texts.repeat(1, length // block + 2)[:, : length + 1]
        _, right = self._score(tokens)
        return float(right[:, block - 1 :].float().mean())  # targets from the second time on

    def _retrieval(self, length: int) -> float | None:
        needle = KEY + VALUE + 3
        if length < 3 * needle:
            return None
        tokens = self.samples[:PROBES, -length - 1 :].clone()
        random = np.random.default_rng(length)
        room = length + 1 - 2 * needle
        for row, depth in zip(tokens, np.linspace(0, room, len(tokens)).astype(int).tolist(), strict=True):
            letters = torch.from_numpy(random.integers(97, 123, KEY + VALUE))
            said = torch.cat((torch.tensor([10]), letters[:KEY], torch.tensor([32]), letters[KEY:], torch.tensor([10])))
            row[depth : depth + needle] = said
            row[-needle + 1 :] = said[:-1]
        _, right = self._score(tokens)
        return float(right[:, -VALUE:].float().mean())

    def _score(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Nats of each target of rows (n, length + 1), and whether it is the likeliest token; a few rows at a time."""
        device, length = self.config.device, tokens.shape[1]
        scores = self.config.heads * length * length
        rows = max(1, min(TOKENS_AT_ONCE[device] // length, SCORES_AT_ONCE[device] // scores))
        parts = [score(self.model, part.to(device), self.config) for part in tokens.split(rows)]
        return torch.cat([nats for nats, _ in parts]), torch.cat([right for _, right in parts])


def windows(longest: int, length: int, last: int) -> dict[str, list[tuple[int, int]]]:
    """Where the windows of a length stand in a sample for each way of scoring, and how many last tokens are scored.

    >>> windows(64, 32, 4)
    {'non_overlapping': [(0, 32), (32, 32)], 'sliding': [(0, 8), (32, 8)], 'same_last': [(32, 4)]}
    """
    starts = range(0, longest - length + 1, length)
    return {
        "non_overlapping": [(start, length) for start in starts],
        "sliding": [(start, max(1, length // 4)) for start in starts],
        "same_last": [(longest - length, min(last, length))],
    }


def reach(encoding: Encoding) -> float:
    """The longest text an encoding can serve: the rows of a learned table, else any."""
    tables = [part.config.length for part in encoding.modules() if isinstance(part, Learned)]
    return min(tables, default=math.inf)


@contextlib.contextmanager
def serving(model: Decoder, encoding: Encoding) -> Iterator[Decoder]:
    """The model with another encoding in all layers, for a while."""
    own, training = model.plan, model.training
    model.plan = LayerPlan.shared(encoding, layers=len(own))
    try:
        yield model.eval()
    finally:
        model.plan = own
        model.train(training)


@torch.no_grad()
def score(model: Decoder, tokens: Tensor, config: RunConfig) -> tuple[Tensor, Tensor]:
    """Nats of each target of rows (n, length + 1), and whether it is the likeliest token, on the CPU.

    A mask of the encoding's own is made for some queries at a time over a cache, never for the whole square.
    """
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    length = inputs.shape[1]
    chunked = length > QUERIES_AT_ONCE and first(model.plan[0], Visibility) is not None
    with autocast(config):
        if not chunked:
            return _judged(model(inputs, length=length), targets)
        caches = model.caches(capacity=length, length=length)
        parts = []
        for start in range(0, length, QUERIES_AT_ONCE):
            stop = min(length, start + QUERIES_AT_ONCE)
            positions = torch.arange(start, stop, device=tokens.device)
            logits = model.step(inputs[:, start:stop], caches, positions=positions)
            parts.append(_judged(logits, targets[:, start:stop]))
    return torch.cat([nats for nats, _ in parts], dim=1), torch.cat([right for _, right in parts], dim=1)


def _judged(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    nats = cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="none").view(targets.shape)
    return nats.cpu(), (logits.argmax(-1) == targets).cpu()


def _nothing() -> Found:
    empty = dict.fromkeys(PROTOCOLS)
    return {
        "bits_per_byte": dict(empty),
        "tokens_scored": dict.fromkeys(PROTOCOLS, 0),
        "stderr": dict(empty),
        "accuracy": None,
        "repeated_text_accuracy": None,
        "retrieval_accuracy": None,
    }


def _binned(bits: Tensor) -> Found:
    """The loss by position in equal bins: edges, one more than there are bins, and means."""
    edges = np.unique(np.linspace(0, len(bits), min(BINS, len(bits)) + 1).astype(int)).tolist()
    means = [float(bits[start:stop].mean()) for start, stop in itertools.pairwise(edges)]
    return {"positions": edges, "bits_per_byte": means}
