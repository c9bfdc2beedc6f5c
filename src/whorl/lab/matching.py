"""Long-text matching: which of B and C is closer to A, by an encoder that reads the first 512 tokens or 1,024.

Each text goes through the encoder by itself; the mean of its hidden states is projected, and the cosine of A with B and
with C, times a learned factor, are the two logits of a cross-entropy.
    text ─► tokens, cut ─► RoFormer ─► mean ─► projection ─► cosine with A ─► softmax over {B, C}
RoFormer's authors report that 1,024 tokens beat 512 on CAIL2019-SCM, by 1.5 points on its test part.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from whorl import WhorlError
from whorl.config import config
from whorl.lab.aggregate import interval
from whorl.lab.encoder_runs import EncoderConfig, facts, fit, made_once, share_right
from whorl.lab.matching_data import (
    EVIDENCES,
    PAD,
    Evidence,
    Kind,
    Triple,
    Vocabulary,
    encode_triples,
    held_out,
    stand_in,
)
from whorl.lab.tasks import generator_of
from whorl.lab.train import Pass, backward
from whorl.models.layers import start_weights
from whorl.models.roformer import RoFormer
from whorl.result_shapes import Has

START_FACTOR = 10.0  # of the cosines
TRIPLES_AT_ONCE = 8  # scored in one pass
RESULT = Has(dict.fromkeys(("accuracy", "train_seconds", "test_seconds"), float), {})  # what a finished run has

# What is run on the stand-in: RoFormer reading half and all, and two other encodings reading half.
VARIANTS = (("rope", 512), ("rope", 1024), ("learned", 512), ("shaw", 512))

Tell = Callable[[dict[str, Any]], None]  # hears each result


@config
class MatchingConfig(EncoderConfig):
    """Everything that decides what a run of matching comes out as, beside its triples.

    length         tokens of each text that are read; the rest is cut off
    tokens         "char", or "word"
    steps, batch   updates, and triples in each
    """

    name: ClassVar[str] = "matching"
    length: int = 1024
    tokens: Kind = "char"
    steps: int = 50
    batch: int = 8

    def check(self) -> None:
        super().check()
        self.check_positive("length", "steps", "batch")


class TripleMatcher(nn.Module):
    """An encoder, and how close B and C of a triple are to A.

    >>> from whorl.models import RoFormer
    >>> matcher = TripleMatcher(RoFormer(vocab=100, layers=1, width=32, heads=2))
    >>> matcher(torch.randint(2, 100, (4, 3, 50))).shape
    torch.Size([4, 2])
    """

    def __init__(self, encoder: RoFormer) -> None:
        super().__init__()
        self.encoder, self.project = encoder, nn.Linear(encoder.width, encoder.width, bias=False)
        self.log_factor = nn.Parameter(torch.tensor(math.log(START_FACTOR)))
        start_weights(self, encoder)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (triples, 2) of B and C for tokens (triples, 3, length), padded with 0."""
        vectors = normalize(self.project(self.pooled(tokens.flatten(0, 1))), dim=-1).unflatten(0, (-1, 3))
        return (vectors[:, 1:] * vectors[:, :1]).sum(-1) * self.log_factor.exp()

    def pooled(self, tokens: Tensor) -> Tensor:
        """The mean hidden state (texts, width) of the real tokens of texts (texts, length)."""
        real = tokens != PAD
        tokens, real = (part[:, : int(real.sum(1).max())] for part in (tokens, real))  # padding costs as much as text
        if bool(real.all()):
            return self.encoder(tokens).mean(1)  # without a mask attention is faster
        hidden = self.encoder(tokens, key_mask=real) * real.unsqueeze(-1)
        return hidden.sum(1) / real.sum(1, keepdim=True)


def match(
    settings: MatchingConfig, train: Sequence[Triple], test: Sequence[Triple], *, out: str | Path | None = None
) -> dict[str, Any]:
    """The result of training a matcher on triples and testing it on others, as JSON-ready data.

    Kept under ``out``, a run that was stopped goes on where it was, and a finished one is only read.

    >>> from whorl.lab.matching_data import stand_in
    >>> triples = stand_in(4, evidence="early", side="train")
    >>> result = match(MatchingConfig(length=32, steps=1, batch=2, layers=1, width=16), triples, triples)
    >>> 0 <= result["accuracy"] <= 1
    True
    """
    if not train or not test:
        raise WhorlError("match: no triples to train on or to test on. Give at least one of each.")
    data = [[asdict(one) for one in side] for side in (train, test)]
    return made_once(settings, data, out, partial(_matched, settings, train, test), RESULT)


def _matched(
    settings: MatchingConfig, train: Sequence[Triple], test: Sequence[Triple], folder: Path | None
) -> dict[str, Any]:
    vocabulary = Vocabulary.of((text for one in train for text in (one.a, one.b, one.c)), settings.tokens)
    tokens, answers = encode_triples(train, vocabulary, settings.length)
    model = TripleMatcher(settings.encoder(len(vocabulary), settings.length))

    def loss(step: int) -> Pass:
        chosen = _rows(len(train), settings, step)
        logits, wanted = model(tokens[chosen]), answers[chosen]
        return backward(cross_entropy(logits, wanted), logits, wanted, tokens[chosen].numel())

    stages = [(3 * settings.length, settings.batch, settings.steps)]  # a row is three texts
    done = fit(model, loss, stages, settings.learning_rate, folder)
    begun = time.perf_counter()
    accuracy = share_right(model, *encode_triples(test, vocabulary, settings.length), TRIPLES_AT_ONCE)
    return {
        **facts(settings, model, done),
        "accuracy": accuracy,
        "losses": [round(row["loss"], 4) for row in done.metrics],
        "train_triples": len(train),
        "test_triples": len(test),
        "answers_b": sum(one.label == "B" for one in test) / len(test),
        "vocabulary": len(vocabulary),
        "test_seconds": time.perf_counter() - begun,
    }


def _rows(count: int, settings: MatchingConfig, step: int) -> Tensor:
    """The triples of a step: all of them in turn, in an order drawn anew each time round."""
    places = range(step * settings.batch, (step + 1) * settings.batch)
    orders = {turn: _order(count, settings.seed, turn) for turn in {place // count for place in places}}
    return torch.stack([orders[place // count][place % count] for place in places])


def _order(count: int, seed: int, turn: int) -> Tensor:
    return torch.randperm(count, generator=generator_of("matching", seed, turn))


def match_stand_in(
    *,
    seeds: Sequence[int] = (0, 1, 2),
    variants: Sequence[tuple[str, int]] = VARIANTS,
    train: int = 400,
    test: int = 240,
    out: str | Path | None = None,
    tell: Tell | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Every variant (encoding, tokens read) on the stand-in with the evidence late and early, over seeds.

    {"runs": one result each, "summary": mean accuracy with its interval by variant and evidence, "gaps": how many
    points reading furthest is above reading least}. ``settings`` are those of MatchingConfig, ``out`` is where runs are
    kept, ``tell`` hears each result.
    """
    kind = settings.get("tokens", "char")

    def sides(evidence: Evidence, seed: int) -> tuple[list[Triple], list[Triple]]:
        return (
            stand_in(train, evidence=evidence, side="train", kind=kind, seed=seed),
            stand_in(test, evidence=evidence, side="test", kind=kind, seed=seed),
        )

    return _compared(
        {evidence: partial(sides, evidence) for evidence in EVIDENCES}, seeds, variants, out, tell, settings
    )


def match_triples(
    triples: Sequence[Triple],
    test: Sequence[Triple] | None = None,
    *,
    seeds: Sequence[int] = (0, 1, 2),
    variants: Sequence[tuple[str, int]] = VARIANTS,
    out: str | Path | None = None,
    tell: Tell | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Every variant on given triples, over seeds, in the shape of ``match_stand_in``; where evidence lies is "unknown".

    Without triples to test on, a fifth is drawn by each seed and held out. "shared_texts" of a run counts the texts
    to test on that were also trained on.
    """

    def sides(seed: int) -> tuple[Sequence[Triple], Sequence[Triple]]:
        return (triples, test) if test is not None else held_out(triples, seed=seed)

    return _compared({"unknown": sides}, seeds, variants, out, tell, settings)


def _compared(
    evidences: Mapping[str, Callable[[int], tuple[Sequence[Triple], Sequence[Triple]]]],
    seeds: Sequence[int],
    variants: Sequence[tuple[str, int]],
    out: str | Path | None,
    tell: Tell | None,
    settings: dict[str, Any],
) -> dict[str, Any]:
    """The runs of every variant on the sides that each kind of evidence has by seed, and what they come to."""
    planned = {  # first of all, so that a bad config is found before the first run
        seed: [MatchingConfig(encoding=name, length=length, seed=seed, **settings) for name, length in variants]
        for seed in seeds
    }
    runs = []
    for (evidence, sides), (seed, configs) in itertools.product(evidences.items(), planned.items()):
        train, test = sides(seed)
        shared = len(_texts(train) & _texts(test))
        for one in configs:
            known = {"encoding": one.encoding, "length": one.length, "evidence": evidence, "seed": seed}
            runs.append({**known, **match(one, train, test, out=out), "shared_texts": shared})
            if tell is not None:
                tell(runs[-1])
    return {"runs": runs, **summarize(runs)}


def _texts(triples: Sequence[Triple]) -> set[str]:
    return {text for one in triples for text in (one.a, one.b, one.c)}


def summarize(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Mean accuracy in points with its interval over seeds, and what reading furthest gains over reading least.

    Gaps are those of the first encoding that was read at more than one length.
    """
    groups: dict[tuple[str, str, int], list[float]] = {}
    for run in runs:
        key = run["evidence"], run["encoding"], run["length"]
        groups.setdefault(key, []).append(100 * run["accuracy"])
    summary = [
        {"evidence": evidence, "encoding": encoding, "length": length, "accuracy": interval(values)}
        for (evidence, encoding, length), values in groups.items()
    ]
    gaps: dict[str, float] = {}
    for evidence, encoding, _ in groups:
        means = {key[2]: sum(own) / len(own) for key, own in groups.items() if key[:2] == (evidence, encoding)}
        if len(means) > 1:
            gaps.setdefault(evidence, means[max(means)] - means[min(means)])
    return {"summary": summary, "gaps": gaps}
