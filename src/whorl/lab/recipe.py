"""Recipes of training, whatever is learned: stages, AdamW, the rate of every step, parts of a batch, precision."""

from __future__ import annotations

import contextlib
import itertools
import math
from typing import Any, ClassVar, Literal

import torch
from torch import nn

from whorl.config import Config, config

ROWS = 100  # of metrics in a training, about


@config
class Recipe(Config):
    """Everything that decides how a model is trained, beside the model and its data.

    stages         (length, batch, steps), one after another; batch counts the rows of one update
    learning_rate, betas, weight_decay, clip   AdamW; no decay on norms, biases and what the encoding learns
    encoding_rate  how many times the rate what the encoding learns is learned at
    warmup         steps up to the full rate; None for 100, or a fifth of the steps where that is less
    final          what the cosine behind it falls to, as a share of the full rate; 1 for a rate that stays
    accumulate     parts that the rows of an update are computed in
    precision      "bfloat16" is autocast

    >>> Recipe(stages=[(16, 2, 100), (32, 2, 50)]).steps
    150
    """

    name: ClassVar[str] = "recipe"
    stages: tuple[tuple[int, ...], ...] = ((64, 32, 500),)
    learning_rate: float = 1e-3
    encoding_rate: float = 1.0
    betas: tuple[float, ...] = (0.9, 0.95)
    weight_decay: float = 0.1
    warmup: int | None = None
    final: float = 0.1
    clip: float = 1.0
    accumulate: int = 1
    precision: Literal["float32", "bfloat16"] = "float32"
    compile: bool = False
    device: Literal["cpu", "cuda"] = "cpu"

    @property
    def steps(self) -> int:
        """Updates in all stages."""
        return sum(steps for _, _, steps in self.stages)

    @property
    def gentler(self) -> str:
        """What to change where the loss is no number."""
        return f"Lower the learning rate, now {self.learning_rate}."

    def stage_at(self, step: int) -> int:
        """The number of the stage that update ``step``, counted from 0, belongs to."""
        for number, (_, _, steps) in enumerate(self.stages):
            if step < steps:
                return number
            step -= steps
        raise AssertionError("a step past the last stage")

    def tokens_until(self, step: int) -> int:
        """How many tokens the first ``step`` updates read."""
        total = 0
        for length, batch, steps in self.stages:
            total += length * batch * min(steps, step)
            step = max(0, step - steps)
        return total

    def is_validated(self, step: int) -> bool:
        """Whether update ``step`` ends a row of metrics with a loss on other text: every fifth row, and the last."""
        return (step + 1) % (5 * max(1, self.steps // ROWS)) == 0 or step + 1 == self.steps

    def is_logged(self, step: int, rows: int) -> bool:
        """Whether update ``step`` ends a row of metrics: about so many rows in all, and the last of each stage."""
        ends = itertools.accumulate(steps for _, _, steps in self.stages)  # so that no row mixes two
        return (step + 1) % max(1, self.steps // rows) == 0 or step + 1 in ends

    def check(self) -> None:
        self.must(self.stages, "stages", "at least one (length, batch, steps)")
        self.check_positive("accumulate")
        for stage in self.stages:
            whole = len(stage) == 3 and min(stage) >= 1
            self.must(whole, "every stage", "(length, batch, steps), each positive", list(stage))
            even = stage[1] % self.accumulate == 0
            self.must(even, "every stage's batch", f"a multiple of accumulate={self.accumulate}", stage[1])
        self.check_positive("learning_rate", "encoding_rate")
        pair = len(self.betas) == 2 and all(0 <= beta < 1 for beta in self.betas)
        self.must(pair, "betas", "two numbers from 0 to below 1", list(self.betas))
        self.must(self.weight_decay >= 0, "weight_decay", "0 or more")
        self.must(0 <= self.final <= 1, "final", "between 0 and 1", remedy="It is a share of the learning rate.")
        self.must(self.clip > 0, "clip", "positive", remedy="Gradients are cut to this norm.")
        warmup = usual_warmup(self.steps) if self.warmup is None else self.warmup
        self.must(0 <= warmup <= self.steps, "warmup", f"between 0 and the {self.steps} steps", warmup)
        object.__setattr__(self, "warmup", warmup)


def usual_warmup(steps: int) -> int:
    """The steps up to the full rate where none are given."""
    return min(100, steps // 5)


def learning_rate(step: int, recipe: Recipe) -> float:
    """The rate of update ``step``, counted from 0: a line up over the warm-up, then a cosine down to the final share.

    >>> recipe = Recipe(stages=[(16, 2, 100)], warmup=10, learning_rate=1.0)
    >>> [round(learning_rate(step, recipe), 3) for step in (0, 9, 10, 54, 99)]
    [0.1, 1.0, 1.0, 0.558, 0.1]
    """
    warmup = recipe.warmup or 0
    if step < warmup:
        return recipe.learning_rate * (step + 1) / warmup
    done = (step - warmup) / max(1, recipe.steps - 1 - warmup)
    return recipe.learning_rate * (recipe.final + (1 - recipe.final) * 0.5 * (1 + math.cos(math.pi * min(1.0, done))))


def set_rate(optimizer: torch.optim.Optimizer, step: int, recipe: Recipe) -> float:
    """The rate of update ``step``, which the optimizer of ``make_optimizer`` is set to."""
    rate = learning_rate(step, recipe)
    for group in optimizer.param_groups:
        group["lr"] = rate * group["times"]
    return rate


def make_optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.AdamW:
    """AdamW that decays weights and embeddings, but no biases, no norms and nothing the encoding learns.

    ``times`` of a group is what multiplies the rate there.
    """
    weights, others, encoding = [], [], []
    for name, parameter in model.named_parameters():
        (encoding if name.startswith("plan.") else weights if parameter.ndim >= 2 else others).append(parameter)
    groups = [
        {"params": weights, "weight_decay": recipe.weight_decay, "times": 1.0},
        {"params": others, "weight_decay": 0.0, "times": 1.0},
        {"params": encoding, "weight_decay": 0.0, "times": recipe.encoding_rate},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=recipe.learning_rate,
        betas=(recipe.betas[0], recipe.betas[1]),
        fused=True,
    )


def autocast(recipe: Recipe) -> contextlib.AbstractContextManager[Any]:
    """The precision that a recipe computes in."""
    return torch.autocast(recipe.device, torch.bfloat16, enabled=recipe.precision == "bfloat16")
