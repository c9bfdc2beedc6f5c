"""Intervals of the lab: of a mean over seeds, of a share, and of a difference paired over seeds and samples of text.

A difference of two models that were trained from the same seeds and scored on the same samples is an array z, seeds by
samples. Its mean over both varies for three reasons, and the analysis of variance of a two-way layout tells them apart:

    variance of the mean = seeds / S + samples / n − rest / (S n)

``seeds`` is the variance over seeds of the means over samples, ``samples`` that over samples of the means over seeds,
and ``rest``, what is left once both means are taken away, is counted in each of them, so it is taken off once. The
degrees of freedom are Satterthwaite's (1946), for which the seeds' part is raised by one over its own: three seeds may
lie close by chance, and would else lend the interval the many degrees of freedom of the text. The interval is
Student's, and where several differences are judged together each is judged by Holm (1979).
tools/simulate_verdicts.py shows what comes of it.

Seeds are few. Where models are alike in how they scatter, their variances are pooled (``pooled``): of E models and S
seeds, each seed a block, (E − 1)(S − 1) degrees of freedom are had in place of S − 1.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from whorl import WhorlError
from whorl.results import LEVEL, holm

POWER = 0.8  # with which the least difference would be found

Found = dict[str, Any]
Array = np.ndarray


@functools.cache
def _stats() -> ModuleType:
    """scipy.stats, which takes half a second to import and is an extra."""
    try:
        from scipy import stats
    except ImportError:
        raise WhorlError('lab: scipy is not installed. Run: pip install "whorl[lab]"') from None
    return stats


def t_quantile(freedom: float, tail: float = LEVEL / 2) -> float:
    """Student's t that is passed with this probability.

    >>> round(t_quantile(2), 3), round(t_quantile(1000), 2)
    (4.303, 1.96)
    """
    return float(_stats().t.isf(tail, freedom))


def interval(values: Sequence[float | None], errors: Sequence[float | None] = ()) -> Found | None:
    """Mean, low, high and n of what seeds gave; None where nothing was measured.

    Of several it is Student's interval over seeds, of one twice its error over samples of text, where that is known.

    >>> interval([1.0, 2.0, 3.0])["n"], interval([1.0], [0.1])["high"]
    (3, 1.2)
    """
    known = [value for value in values if value is not None]
    if not known:
        return None
    mean = statistics.fmean(known)
    if len(known) > 1:
        half = t_quantile(len(known) - 1) * statistics.stdev(known) / math.sqrt(len(known))
    else:
        half = 2 * next((error for error in errors if error is not None), 0.0)
    return {"mean": mean, "low": mean - half, "high": mean + half, "n": len(known)}


def share_interval(values: Sequence[float | None], trials: int) -> Found | None:
    """Mean, low, high, n and trials of shares that seeds got right of so many trials each; None where none did any.

    The wider of two: Clopper and Pearson's exact one over all trials, and Student's over seeds, which alone knows how
    seeds scatter. A trial that is right in part counts as such; its variance is at most that of right and wrong.

    >>> found = share_interval([0.5], 100)
    >>> round(found["low"], 3), round(found["high"], 3)
    (0.398, 0.602)
    """
    found = interval(values)
    if found is None or trials < 1:
        return found
    n, mean = trials * found["n"], min(max(found["mean"], 0.0), 1.0)
    low, high = share_low(mean, n), 1 - share_low(1 - mean, n)
    return found | {
        "low": max(0.0, min(low, found["low"])),
        "high": min(1.0, max(high, found["high"])),
        "trials": trials,
    }


def share_low(share: float, trials: int, judged: int = 1) -> float:
    """The lower end of Clopper and Pearson's interval of a share, one of so many judged together.

    >>> round(share_low(0.5, 100), 3), round(share_low(0.5, 100, judged=72), 3)
    (0.398, 0.331)
    """
    right = share * trials
    return float(_stats().beta.ppf(LEVEL / 2 / judged, right, trials - right + 1)) if right > 0 else 0.0


@dataclass(frozen=True)
class Spread:
    """The variance over seeds of a difference of two means over samples, and its degrees of freedom."""

    variance: float
    freedom: int


def pooled(means: Array) -> Spread | None:
    """The spread of a difference of any two models, pooled over all: ``means`` are theirs, models by seeds.

    Each seed is a block: what it does to all models alike cancels in a difference, and is taken away here. None where
    there are not two models and two seeds.
    """
    models, seeds = means.shape
    freedom = (models - 1) * (seeds - 1)
    if freedom < 1:
        return None
    rest = means - means.mean(1, keepdims=True) - means.mean(0) + means.mean()
    return Spread(2 * float((rest**2).sum()) / freedom, freedom)


@dataclass(frozen=True)
class Estimate:
    """A mean difference, its standard error and degrees of freedom (None where nothing tells them), and of how many."""

    mean: float
    error: float | None
    freedom: float
    seeds: int
    samples: int


def estimate(
    means: Array, samples: Array | None = None, spread: Spread | None = None, *, shares: bool = False
) -> Estimate:
    """The estimate of a paired difference: ``means`` by seed, ``samples`` seeds by samples where they were kept.

    ``spread`` is how its means scatter over seeds where more than its own seeds tell. One seed leaves the text alone,
    no samples the seeds alone, and neither leaves no error at all. ``shares`` are differences of right and wrong.
    """
    seeds, count = len(means), 0 if samples is None else samples.shape[1]
    mean = float(means.mean())
    own = (spread or Spread(float(means.var(ddof=1)), seeds - 1)) if seeds > 1 else None
    if samples is None or count < 2:
        error = None if own is None else math.sqrt(own.variance / seeds)
        return Estimate(mean, error, own.freedom if own else 0, seeds, 0)
    by_sample = samples.mean(0)
    text = (_share_variance(by_sample) if shares else float(by_sample.var(ddof=1))) / count
    if own is None:
        return Estimate(mean, math.sqrt(text), count - 1, seeds, count)
    seed = own.variance / seeds
    left = samples - samples.mean(1, keepdims=True) - samples.mean(0) + samples.mean()
    rest = float((left**2).sum()) / ((seeds - 1) * (count - 1)) / (seeds * count)
    error = math.sqrt(max(seed + text - rest, seed, text))
    part = seed * (1 + 1 / own.freedom)
    below = part**2 / own.freedom + text**2 / (count - 1)
    return Estimate(mean, error, (part + text) ** 2 / below if below else own.freedom, seeds, count)


def _share_variance(values: Array) -> float:
    """The variance of differences of right and wrong as if two pairs more had come out, half of each of the four ways.

    After Agresti and Min (2005): were all found by one and missed by the other, the variance would else be 0. Where no
    pair differs at all it is 0.
    """
    if not values.any():
        return 0.0
    count = len(values) + 2
    return float((values**2).sum() + 1) / count - (float(values.sum()) / count) ** 2


@dataclass(frozen=True)
class Judged:
    """A difference judged among others: its interval, None where nothing tells it, and Holm's p.

    The interval is as wide as Holm's judgment of it takes, so it excludes 0 exactly where p is at most LEVEL. ``least``
    is the smallest difference that would have been found with a probability of POWER.
    """

    estimate: Estimate
    low: float | None
    high: float | None
    p: float | None
    least: float | None


def judge(estimates: Sequence[Estimate]) -> list[Judged]:
    """The differences judged together, so that the chance of one false call or more is at most LEVEL."""
    open_ = [one for one in estimates if one.error]  # without an error there is nothing to test
    chances = [2 * float(_stats().t.sf(abs(one.mean) / (one.error or math.inf), one.freedom)) for one in open_]
    raised = dict(zip(map(id, open_), zip(chances, holm(chances), strict=True), strict=True))
    return [_judged(one, *raised.get(id(one), (1.0, 1.0)), count=len(open_)) for one in estimates]


def _judged(one: Estimate, chance: float, times: float, count: int) -> Judged:
    if one.mean == one.error == 0:
        return Judged(one, 0.0, 0.0, 1.0, 0.0)
    if not one.error:  # unknown, or 0 of a few seeds that differ by the very same, as shares do by chance
        return Judged(one, None, None, None, None)
    half = t_quantile(one.freedom, LEVEL / times / 2) * one.error
    least = (t_quantile(one.freedom, LEVEL / count / 2) + t_quantile(one.freedom, 1 - POWER)) * one.error
    return Judged(one, one.mean - half, one.mean + half, min(1.0, chance * times), least)
