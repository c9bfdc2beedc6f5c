"""What runs cost, in tokens that go through their models, known before anything is trained."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from whorl.lab import probes
from whorl.lab.batches import open_batches
from whorl.lab.evaluate import windows
from whorl.lab.settings import RunConfig
from whorl.result_rows import WINDOW

BACKWARD = 2  # passes forward that one back costs


@dataclass(frozen=True)
class Cost:
    """Tokens that runs are trained on and scored on, and how many tokens every length scores in one of them.

    >>> str(cost_of(RunConfig(encoding={"name": "rope"}, stages=[(64, 32, 500)])))
    '1 run: 1.0 M tokens to train on, 0.6 M tokens to score it; 512 bytes scored at each length'
    """

    runs: int
    trained: int
    evaluated: int
    scored: int
    unit: str

    @property
    def training_share(self) -> float:
        """The part of the time that is training, about."""
        return (1 + BACKWARD) * self.trained / ((1 + BACKWARD) * self.trained + self.evaluated or 1)

    def __str__(self) -> str:
        runs = f"{self.runs} run{'s' if self.runs > 1 else ''}"
        scored = f"; {self.scored:,} {self.unit} scored at each length" if self.scored else ""
        read = f"{self.trained / 1e6:.1f} M tokens to train on, {self.evaluated / 1e6:.1f} M tokens to score"
        return f"{runs}: {read} {'it' if self.runs == 1 else 'them'}{scored}"


def cost_of(*configs: RunConfig, out: Path | None = None) -> Cost:
    """The cost of runs on texts that are packed under ``out``, or else if these are long enough for all samples.

    Fine-tuning is not counted.
    """
    first = configs[0]
    samples = [samples_of(config, out) for config in configs]
    scored = samples[0] * (first.last or 1) if first.text else 0
    trained = sum(config.tokens_until(config.steps) for config in configs)
    evaluated = sum(map(_evaluated, configs, samples))
    return Cost(len(configs), trained, evaluated, scored, first.unit)


def samples_of(config: RunConfig, out: Path | None = None) -> int:
    """How many samples of text a run is scored on: as many as it wants, or as its text has."""
    wanted = -(-config.eval_bytes // max(config.lengths))
    corpus = None if out is None else open_batches(config, out)[1]
    return wanted if corpus is None else min(wanted, corpus.fitting(max(config.lengths)))


def _evaluated(config: RunConfig, samples: int) -> int:
    """Tokens that go through the model to score it as trained, with every repair and with a window."""
    if not config.text:
        return 0
    longer = [length for length in config.lengths if length > config.train_length]
    others = {*config.repairs, WINDOW}
    once, again = (sum(_at(config, length, samples) for length in some) for some in (config.lengths, longer))
    return once + len(others) * again


def _at(config: RunConfig, length: int, samples: int) -> int:
    places = windows(max(config.lengths), length, config.last or 1, slide=config.slides)
    starts = {start for way in config.protocols for start, _ in places[way]}
    asked = min(probes.RETRIEVALS, samples) + min(probes.REPEATED, samples)
    return length * (samples * len(starts) + asked)
