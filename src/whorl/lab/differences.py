"""Differences that a comparison shows, each paired over seeds and samples, at one length, judged among its like.

Judged together, so that one false call or more comes with a chance of 5 % at most, are those of one kind, one measure
and one length: encodings against the baseline, repairs against the model they repair, models against themselves at the
trained length, against their own windows, and the published orders. Where the baseline is not named it is the best at
the trained length; since the numbers themselves chose it, every pair of encodings is judged beside those shown.

Between encodings the seeds' variance of a loss is pooled over the models that are whole at the length; one that is
broken scatters far more, and its differences rest on its own seeds, as do those of shares. What is made of one model (a
repair, a window, another length) is paired with it seed by seed, and rests on its own seeds as well. Samples are paired
where both rows were scored on the same ones.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from whorl.errors import unknown
from whorl.lab.report.published import orders
from whorl.lab.statistics import Array, Spread, estimate, judge, pooled
from whorl.result_rows import AS_TRAINED, RECALL, WHOLE, WINDOW, finite
from whorl.results import Difference

LOSS, EXACT = "same_last", "exact_match"
PROBED: dict[str, str] = dict(zip(RECALL, ("repeated", "retrieval"), strict=True))  # where the probes of a score are

Key = tuple[str, str]  # label and variant


@dataclass(frozen=True)
class Score:
    """What one seed scored at a length: the mean, and sample by sample where that was kept."""

    mean: float
    samples: tuple[float, ...] = ()
    sample_bytes: int = 0


@dataclass(frozen=True)
class Scores:
    """The scores of one row in one measure, by length and seed."""

    key: Key
    name: str  # of its encoding
    at: dict[int, dict[int, Score]] = field(default_factory=dict)
    text: str = ""  # what it was scored on: samples of another text are no pairs

    @property
    def as_trained(self) -> bool:
        return self.key[1] == AS_TRAINED

    def mean(self, length: int) -> float | None:
        """The mean over seeds, or None for a gap."""
        found = self.at.get(length)
        return sum(score.mean for score in found.values()) / len(found) if found else None


@dataclass(frozen=True)
class Paired:
    """Two rows, or one at two lengths, less one another."""

    kind: str
    row: Scores
    other: Scores
    length: int
    from_length: int
    means: Array  # by seed
    samples: Array | None  # seeds by samples
    scored_bytes: int


def score_of(cell: Mapping[str, Any], measure: str) -> Score | None:
    """The score of a measure in an entry of ``by_length``; None for a gap."""
    if measure in (LOSS, EXACT):
        value = cell.get("bits_per_byte", {}).get(measure) if measure == LOSS else cell.get(measure)
        samples = (cell.get("samples") or {}).get(measure)
    else:
        value, samples = cell.get(measure), (cell.get(PROBED[measure]) or {}).get("right")
    mean, known = finite(value), [finite(one) for one in samples or ()]
    if mean is None:
        return None
    whole = tuple(one for one in known if one is not None)
    return Score(mean, whole if len(whole) == len(known) else (), (cell.get("scored_bytes") or {}).get(measure, 0))


def best_label(rows: Iterable[Scores], length: int, *, highest: bool = False) -> str | None:
    """The label of the best model as trained at a length; None where none has a score there."""
    scored = [(mean, row.key[0]) for row in rows if row.as_trained and (mean := row.mean(length)) is not None]
    return (max if highest else min)(scored, key=lambda pair: pair[0], default=(0.0, None))[1]


def differences(rows: Sequence[Scores], measure: str, trained: int, baseline: str, *, named: bool) -> list[Difference]:
    """Every difference of the rows in one measure that a comparison shows."""
    out: list[Difference] = []
    for length in sorted({length for row in rows for length in row.at}):
        known = [row for row in rows if length in row.at]
        models = [row for row in known if row.as_trained]
        spread, whole = _spread(models, length, trained, measure)
        ordered = [two[::-1] if two[0].key[0] == baseline else two for two in itertools.combinations(models, 2)]
        pairs = [pair for row, other in ordered if (pair := _pair("encoding", row, other, length))]
        shown = [pair for pair in pairs if pair.other.key[0] == baseline]
        judged = _judged(shown if named else pairs, measure, spread, whole)
        out += [one for one in judged if one.other[0] == baseline]
        out += _judged(_orders(known, measure, length, trained), measure, spread, whole)
        windows = [row for row in known if row.key[1] == WINDOW]
        others = [row for row in known if row.key[1] != WINDOW]
        repairs = [row for row in others if not row.as_trained]
        out += _judged(_against_own("repair", repairs, models, length), measure)
        out += _judged(_lengths(others, length, trained, measure), measure)
        out += _judged(_against_own("window", others, windows, length), measure)
    return out


def _judged(
    family: Iterable[Paired | None], measure: str, spread: Spread | None = None, whole: frozenset[Key] = frozenset()
) -> list[Difference]:
    """A family of differences judged together; the spread is that of any two whole models."""
    pairs = [pair for pair in family if pair is not None]
    alike = [spread if {pair.row.key, pair.other.key} <= whole else None for pair in pairs]
    shares = measure != LOSS
    estimates = [estimate(pair.means, pair.samples, own, shares=shares) for pair, own in zip(pairs, alike, strict=True)]
    return [
        Difference(
            kind=pair.kind,
            measure=measure,
            row=pair.row.key,
            other=pair.other.key,
            length=pair.length,
            from_length=pair.from_length,
            mean=found.estimate.mean,
            low=found.low,
            high=found.high,
            p=found.p,
            least=found.least,
            seeds=found.estimate.seeds,
            samples=found.estimate.samples,
            scored_bytes=pair.scored_bytes,
        )
        for pair, found in zip(pairs, judge(estimates), strict=True)
    ]


def _pair(kind: str, row: Scores, other: Scores, length: int, from_length: int | None = None) -> Paired | None:
    """The row less the other on the seeds that both have; None where they share none."""
    start = length if from_length is None else from_length
    ours, theirs = row.at.get(length, {}), other.at.get(start, {})
    both = [(ours[seed], theirs[seed]) for seed in sorted(ours.keys() & theirs.keys())]
    if not both:
        return None
    means = np.array([one.mean - two.mean for one, two in both])
    counts = {len(score.samples) for pair in both for score in pair}
    kept = row.text == other.text and len(counts) == 1 and counts != {0}  # the same in the same order, or none at all
    samples = np.array([one.samples for one, _ in both]) - np.array([two.samples for _, two in both]) if kept else None
    scored = both[0][0].sample_bytes * counts.pop() if kept else 0
    return Paired(kind, row, other, length, start, means, samples, scored)


def _spread(models: Sequence[Scores], length: int, trained: int, measure: str) -> tuple[Spread | None, frozenset[Key]]:
    """How the difference of two whole models scatters over the seeds that all of them have, and which those are.

    Shares have no spread in common: near 0 and near 1 they scatter less than between.
    """
    whole = [row for row in models if _is_whole(row, length, trained, measure)]
    seeds = set.intersection(*(set(row.at[length]) for row in whole)) if whole else set()
    means = np.array([[row.at[length][seed].mean for seed in sorted(seeds)] for row in whole])
    alike = all(len(row.at[length]) == len(seeds) for row in whole)  # else each pair has seeds of its own
    common = measure == LOSS and seeds and alike
    return (pooled(means) if common else None), frozenset(row.key for row in whole)


def _is_whole(row: Scores, length: int, trained: int, measure: str) -> bool:
    start, now = row.mean(trained), row.mean(length)
    return measure != LOSS or start is None or now is None or now - start <= WHOLE


def _lengths(rows: Sequence[Scores], length: int, trained: int, measure: str) -> Iterator[Paired | None]:
    """Models against themselves at the trained length, which only the same tokens allow."""
    if measure == LOSS and length > trained:
        yield from (_pair("length", row, row, length, trained) for row in rows)


def _against_own(kind: str, rows: Sequence[Scores], others: Sequence[Scores], length: int) -> list[Paired | None]:
    """Each row less the one of the others that is of the same model, where there is one."""
    own = {other.key[0]: other for other in others}
    return [_pair(kind, row, own[row.key[0]], length) for row in rows if row.key[0] in own]


def _orders(rows: Sequence[Scores], measure: str, length: int, trained: int) -> Iterator[Paired | None]:
    """The worse of each published order less the better, past the trained length."""
    if length <= trained or measure not in (LOSS, EXACT):
        return
    trained_rows = {row.name: row for row in reversed(rows) if row.as_trained}
    base = trained_rows.get("rope")
    variants = {row.key[1]: row for row in rows if base and row.key[0] == base.key[0]}
    for better, worse in orders("encodings" if measure == LOSS else "tasks"):
        if better in trained_rows and worse in trained_rows:
            yield _pair("published", trained_rows[worse], trained_rows[better], length)
    for better, worse in orders("repairs") if measure == LOSS else ():
        if better in variants and worse in variants:
            yield _pair("published", variants[worse], variants[better], length)


def check_baseline(named: str | None, labels: Sequence[str]) -> None:
    """Raises a WhorlError for a baseline that is no label of the comparison."""
    if named is not None and named not in labels:
        raise unknown("baseline", named, labels, call="compare")
