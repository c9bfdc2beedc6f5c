"""What runs cost, in tokens that go through their models, known before anything is trained."""

from __future__ import annotations

from dataclasses import dataclass

from whorl.lab import probes
from whorl.lab.evaluate import windows
from whorl.lab.settings import RunConfig
from whorl.results import WINDOW

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


def cost_of(*configs: RunConfig) -> Cost:
    """The cost of runs, if their text is long enough for all samples; fine-tuning is not counted."""
    first = configs[0]
    scored = samples_of(first) * (first.last or 1) if first.text else 0
    trained = sum(config.tokens_until(config.steps) for config in configs)
    return Cost(len(configs), trained, sum(map(_evaluated, configs)), scored, first.unit)


def samples_of(config: RunConfig) -> int:
    """How many samples of text a run is scored on."""
    return -(-config.eval_bytes // max(config.lengths))


def _evaluated(config: RunConfig) -> int:
    """Tokens that go through the model to score it as trained, with every repair and with a window."""
    if not config.text:
        return 0
    longer = [length for length in config.lengths if length > config.train_length]
    others = {*config.repairs, WINDOW}
    return sum(_at(config, length) for length in config.lengths) + len(others) * sum(_at(config, n) for n in longer)


def _at(config: RunConfig, length: int) -> int:
    places = windows(max(config.lengths), length, config.last or 1, slide=config.slides)
    starts = {start for way in config.protocols for start, _ in places[way]}
    asked = min(probes.RETRIEVALS, samples_of(config)) + min(probes.REPEATED, samples_of(config))
    return length * (samples_of(config) * len(starts) + asked)
