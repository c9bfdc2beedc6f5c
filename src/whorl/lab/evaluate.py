"""Evaluation by length: bits per byte three ways, and whether far text is used at all, in bounded memory.

All lengths score the same test text: samples of the longest length, each from one document. A window of a length
stands in a sample, and

    non_overlapping   windows side by side, every token scored: the early tokens of a window have little before them,
                      so longer windows look better even to a model that uses nothing far
    sliding           the last quarter of those windows scored: every token has three quarters of the length before
                      it, or more
    same_last         the last few tokens of the sample scored: the same targets at every length, with more and more
                      before them, which tells whether more context is used. Where they are more than the shortest
                      length, windows slide over them by a quarter of their length

Beside the loss stand two scores of use of far text, ``whorl.lab.probes``. ``repeated_text_accuracy``: a text said again
and again, and the share of tokens right from the second time on. ``retrieval_accuracy``: a random key and value put
somewhere into the text, the key again at its end; the share of the value's letters that are right, or of the marks
where the model was trained to find marks. What each sample and every probe came to is kept beside the means, in the
same order for every run, so that runs can be compared in pairs.
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

from whorl import Encoding, LayerPlan, Learned
from whorl.encodings.parts import Visibility, first
from whorl.lab import probes
from whorl.lab.corpus import Corpus
from whorl.lab.probes import BYTES
from whorl.lab.recipe import autocast
from whorl.lab.repairs import repaired_plan
from whorl.lab.settings import RunConfig
from whorl.lab.storage import PeakMemory
from whorl.lab.tokens import Tokenizer
from whorl.models.decoder import Decoder
from whorl.result_rows import AS_TRAINED, PROTOCOLS

BINS = 32  # of positions in the per-position loss
# A pass holds at most so many tokens, and so many scores of a layer where they are formed: on a CPU, what caches hold.
TOKENS_AT_ONCE = {"cpu": 2**12, "cuda": 2**17}
SCORES_AT_ONCE = {"cpu": 2**23, "cuda": 2**30}
QUERIES_AT_ONCE = 1024  # of a long text where the encoding's own mask would be a square of its length

ACCURACY = {"repeated": "repeated_text_accuracy", "retrieval": "retrieval_accuracy"}

Found = dict[str, Any]


class Evaluation:
    """Scores of a trained model at every length of its run, with its own encodings or others in their place.

    Numbers are kept by encodings and length, so that a repair that changes nothing at a length costs nothing there.
    """

    def __init__(
        self, model: Decoder, config: RunConfig, corpus: Corpus, *, tell: Callable[[Found], None] | None = None
    ) -> None:
        self.model, self.config, self.tell = model, config, tell
        self.longest = max(config.lengths)
        count = math.ceil(config.eval_bytes / self.longest)
        self.samples = torch.from_numpy(corpus.samples(self.longest, count).astype(np.int64))
        self.sizes = torch.from_numpy(corpus.samples(self.longest, count, sizes=True).astype(np.float64))
        self.letters = Tokenizer(config.tokenizer, config.tokenizer_digest).letters if config.tokenizer else BYTES
        self.kept: dict[tuple[str, int], tuple[Found, Tensor | None]] = {}

    def variant(self, name: str = AS_TRAINED, *, fixed: LayerPlan | None = None) -> Found:
        """The scores with one repair, made for each length anew, or with encodings fixed for all of them."""
        rows, positions, plan = [], None, self.model.plan
        for length in self.config.lengths:
            plan = fixed or repaired_plan(name, self.model.plan, trained=self.config.train_length, length=length)
            row, positions = self._at(plan, length, name)
            rows.append(row)
        return {
            "variant": name,
            "settings": {} if name == AS_TRAINED else settings_of(plan),
            "fine_tuned_steps": 0,
            "by_length": rows,
            "per_position": None if positions is None else _binned(positions),
        }

    def on(self, model: Decoder) -> Evaluation:
        """The same evaluation of another model of the same config."""
        again = copy.copy(self)
        again.model, again.kept = model, {}
        return again

    def _at(self, plan: LayerPlan, length: int, name: str) -> tuple[Found, Tensor | None]:
        key = json.dumps(plan.to_list(), sort_keys=True), length
        if key not in self.kept:
            begun, peak = time.perf_counter(), PeakMemory(self.config.device)
            scores, positions = _nothing(), None
            if length <= reach(plan):
                with serving(self.model, plan):
                    scores, positions = self._measured(length)
            found = {"length": length, "ratio": length / self.config.train_length, **scores}
            found |= {"seconds": time.perf_counter() - begun, "peak_memory_bytes": peak.bytes()}
            self.kept[key] = found, positions
            if self.tell is not None:
                bits = found["bits_per_byte"]["same_last"]
                self.tell({"kind": "evaluate", "variant": name, "length": length, "bits_per_byte": bits})
        return self.kept[key]

    def _measured(self, length: int) -> tuple[Found, Tensor]:
        wanted = {
            way: places
            for way, places in windows(self.longest, length, self.config.last or 1, slide=self.config.slides).items()
            if way in self.config.protocols
        }
        starts = sorted({start for places in wanted.values() for start, _ in places})
        tokens = torch.stack([self.samples[:, start : start + length + 1] for start in starts], dim=1)
        nats, right = self._score(tokens.flatten(0, 1))
        shape = len(self.samples), len(starts), length
        nats, right = nats.view(shape), right.view(shape)
        place = {start: i for i, start in enumerate(starts)}
        found = _nothing()
        for way, places in wanted.items():
            scored = torch.cat([nats[:, place[start], length - last :] for start, last in places], dim=1)
            ends = [(start + length + 1 - last, start + length + 1) for start, last in places]
            sizes = torch.cat([self.sizes[:, first:end] for first, end in ends], dim=1).sum(1).mean()
            # by the mean bytes of a sample rather than its own, so that the mean over samples is that over bytes
            per_sample = scored.double().sum(1) / float(sizes) / math.log(2)
            found["bits_per_byte"][way] = float(per_sample.mean())
            found["tokens_scored"][way] = scored.numel()
            found["samples"][way] = per_sample.tolist()
            found["scored_bytes"][way] = round(float(sizes))
            spread = float(per_sample.std()) if len(per_sample) > 1 else math.nan
            found["stderr"][way] = None if math.isnan(spread) else spread / math.sqrt(len(per_sample))
        whole = wanted.get("non_overlapping", wanted["same_last"])  # every token, where that is measured
        hits = torch.cat([right[:, place[start], length - last :] for start, last in whole], dim=1)
        found["accuracy"] = float(hits.float().mean())
        found |= self._far_use(length)
        side = [place[start] for start, _ in whole]
        return found, nats[:, side].double().mean((0, 1)) / float(self.sizes.mean()) / math.log(2)

    def _far_use(self, length: int) -> Found:
        """The two scores of use of far text, each with what every probe came to."""
        found: Found = {}
        hidden = None
        if self.config.recall:
            hidden = probes.marked(self.samples, length)
        elif self.letters is not None:
            hidden = probes.retrieval(self.samples, length, self.letters)
        made = {"repeated": probes.repeated(self.samples, length, self.config.train_length), "retrieval": hidden}
        for name, probe in made.items():
            shares = None if probe is None else self._score(probe.tokens)[1][:, probe.asked :].double().mean(1)
            found[ACCURACY[name]] = None if shares is None else float(shares.mean())
            found[name] = None if shares is None else {"right": shares.tolist()}
        if hidden is not None:
            found["retrieval"] |= {"depth": hidden.depth, "chance": hidden.chance}
        return found

    def _score(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Nats of each target of rows (n, length + 1), and whether it is the likeliest token; a few rows at a time."""
        rows = rows_at_once(self.config, tokens.shape[1])
        parts = [score(self.model, part.to(self.config.device), self.config) for part in tokens.split(rows)]
        return torch.cat([nats for nats, _ in parts]), torch.cat([right for _, right in parts])


def rows_at_once(config: RunConfig, length: int) -> int:
    """How many rows of a length go through a model in one pass."""
    device, scores = config.device, config.heads * length * length
    return max(1, min(TOKENS_AT_ONCE[device] // length, SCORES_AT_ONCE[device] // scores))


def windows(longest: int, length: int, last: int, *, slide: bool = False) -> dict[str, list[tuple[int, int]]]:
    """Where the windows of a length stand in a sample for each way of scoring, and how many last tokens are scored.

    With ``slide``, no window scores more of the same last tokens than a quarter of its length, as far as there is text
    before them for several windows.

    >>> windows(64, 32, 4)
    {'non_overlapping': [(0, 32), (32, 32)], 'sliding': [(0, 8), (32, 8)], 'same_last': [(32, 4)]}
    >>> windows(64, 16, 8, slide=True)["same_last"]
    [(44, 4), (48, 4)]
    """
    starts = range(0, longest - length + 1, length)
    step = max(1, length // 4) if slide and last <= longest - length else min(last, length)
    ends = range(longest, longest - min(last, longest), -step) if slide else [longest]
    return {
        "non_overlapping": [(start, length) for start in starts],
        "sliding": [(start, max(1, length // 4)) for start in starts],
        "same_last": [(end - length, min(step, last - longest + end)) for end in reversed(ends)],
    }


def settings_of(plan: LayerPlan) -> Found:
    """The settings of the one encoding of a plan, or of those of its layers."""
    return plan[0].config.to_dict() if len(plan.unique) == 1 else {"layers": plan.to_list()}


def reach(encoding: Encoding | LayerPlan) -> float:
    """The longest text that encodings can serve: the rows of a learned table, else any."""
    tables = [part.config.length for part in encoding.modules() if isinstance(part, Learned)]
    return min(tables, default=math.inf)


@contextlib.contextmanager
def serving(model: Decoder, encoding: Encoding | LayerPlan) -> Iterator[Decoder]:
    """The model with another encoding in all layers, or another plan, for a while."""
    own, training = model.plan, model.training
    model.plan = encoding if isinstance(encoding, LayerPlan) else LayerPlan.shared(encoding, layers=len(own))
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
    chunked = length > QUERIES_AT_ONCE and sees_part(model.plan)
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


def sees_part(plan: LayerPlan) -> bool:
    """Whether an encoding of the plan hides keys by a mask of its own."""
    return any(first(plan[layer], Visibility) is not None for layer in range(len(plan)))


def _judged(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    nats = cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="none").view(targets.shape)
    return nats.cpu(), (logits.argmax(-1) == targets).cpu()


def _nothing() -> Found:
    return {
        "bits_per_byte": dict.fromkeys(PROTOCOLS),
        "tokens_scored": dict.fromkeys(PROTOCOLS, 0),
        "stderr": dict.fromkeys(PROTOCOLS),
        "samples": {},
        "scored_bytes": {},
        "accuracy": None,
        "repeated_text_accuracy": None,
        "retrieval_accuracy": None,
        "repeated": None,
        "retrieval": None,
    }


def _binned(bits: Tensor) -> Found:
    """The loss by position in equal bins: edges, one more than there are bins, and means."""
    edges = np.unique(np.linspace(0, len(bits), min(BINS, len(bits)) + 1).astype(int)).tolist()
    means = [float(bits[start:stop].mean()) for start, stop in itertools.pairwise(edges)]
    return {"positions": edges, "bits_per_byte": means}
