"""Training: one loop, from a model and batches to a trained model and a row of metrics every few steps.

batch ─► loss (in parts, autocast) ─► gradients ─► norm cut to clip ─► AdamW at the step's rate ─► metrics, checkpoint
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from whorl.errors import WhorlError
from whorl.lab.monitor import attention_entropy, gradient_norms
from whorl.lab.settings import RunConfig
from whorl.lab.storage import CHECKPOINT, METRICS, read_checkpoint, read_metrics, write_atomic, write_checkpoint
from whorl.models.decoder import Decoder

Batches = Callable[[int], tuple[Tensor, Tensor]]  # inputs and targets of an update; targets of -100 are not scored
Tell = Callable[[dict[str, Any]], None]  # hears what happens

SAVE_SECONDS = 30.0  # between checkpoints, about
ROWS = 100  # of metrics in a run, about


@dataclass
class Trained:
    """What training came to."""

    step: int
    seconds: float
    stopped_early: str | None = None
    metrics: list[dict[str, Any]] = field(default_factory=list)


def learning_rate(step: int, config: RunConfig) -> float:
    """The rate of update ``step``, counted from 0: a line up over the warm-up, then a cosine down to the final share.

    >>> config = RunConfig(encoding={"name": "none"}, stages=[(16, 2, 100)], warmup=10, learning_rate=1.0)
    >>> [round(learning_rate(step, config), 3) for step in (0, 9, 10, 54, 99)]
    [0.1, 1.0, 1.0, 0.558, 0.1]
    """
    warmup = config.warmup or 0
    if step < warmup:
        return config.learning_rate * (step + 1) / warmup
    done = (step - warmup) / max(1, config.steps - 1 - warmup)
    return config.learning_rate * (config.final + (1 - config.final) * 0.5 * (1 + math.cos(math.pi * min(1.0, done))))


def set_rate(optimizer: torch.optim.Optimizer, step: int, config: RunConfig) -> float:
    """The rate of update ``step``, which the optimizer of ``make_optimizer`` is set to."""
    rate = learning_rate(step, config)
    for group in optimizer.param_groups:
        group["lr"] = rate * group["times"]
    return rate


def is_watched(step: int, config: RunConfig) -> bool:
    """Whether update ``step`` ends a row of metrics: every hundredth, about, and the last of a stage."""
    every = max(1, config.steps // ROWS)
    ends = itertools.accumulate(steps for _, _, steps in config.stages)  # so that no row mixes two
    return (step + 1) % every == 0 or step + 1 in ends


def make_optimizer(model: nn.Module, config: RunConfig) -> torch.optim.AdamW:
    """AdamW that decays weights and embeddings, but no biases, no norms and nothing the encoding learns.

    ``times`` of a group is what multiplies the rate there.
    """
    weights, others, encoding = [], [], []
    for name, parameter in model.named_parameters():
        (encoding if name.startswith("plan.") else weights if parameter.ndim >= 2 else others).append(parameter)
    groups = [
        {"params": weights, "weight_decay": config.weight_decay, "times": 1.0},
        {"params": others, "weight_decay": 0.0, "times": 1.0},
        {"params": encoding, "weight_decay": 0.0, "times": config.encoding_rate},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=config.learning_rate,
        betas=(config.betas[0], config.betas[1]),
        fused=True,
    )


def autocast(config: RunConfig) -> contextlib.AbstractContextManager[Any]:
    """The precision a run computes in."""
    return torch.autocast(config.device, torch.bfloat16, enabled=config.precision == "bfloat16")


def loss_of(model: Callable[[Tensor], Tensor], inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The mean loss in nats over the targets that count, and the logits."""
    logits = model(inputs)
    return cross_entropy(logits.flatten(0, 1).float(), targets.flatten()), logits


def train(
    model: Decoder,
    config: RunConfig,
    batches: Batches,
    folder: Path | None = None,
    *,
    tell: Tell | None = None,
    save_seconds: float = SAVE_SECONDS,
    tensorboard: bool = False,
) -> Trained:
    """Trains a model in place and says how it went; goes on from the folder's checkpoint where there is one.

    A loss that is no number ends it, with ``stopped_early`` saying where; the last checkpoint stays what it was.
    """
    optimizer = make_optimizer(model, config)
    done = resume(model, optimizer, config, folder)
    if done.step >= config.steps:
        return done
    if config.compile:
        torch.compiler.reset()  # it stops compiling after a few models, and a sweep makes many
    run = torch.compile(model) if config.compile else model
    with Log(folder, done.metrics, tensorboard) as log:
        losses: list[Tensor] = []
        begun = saved = logged = time.perf_counter()
        before, tokens_logged = done.seconds, 0
        model.train()
        for step in range(done.step, config.steps):
            rate = set_rate(optimizer, step, config)
            inputs, targets = (part.to(config.device, non_blocking=True) for part in batches(step))
            loss, logits = _backward(run, optimizer, config, inputs, targets)
            watched = is_watched(step, config)
            groups = gradient_norms(model) if watched else {}
            norm = nn.utils.clip_grad_norm_(model.parameters(), config.clip)
            optimizer.step()
            losses.append(loss)
            tokens_logged += inputs.numel()
            if not watched:
                continue
            values = torch.stack(losses).tolist()
            now = time.perf_counter()
            done.stopped_early = nan_message(config, step, values, done.metrics)
            if done.stopped_early is not None:
                break
            done.step, done.seconds = step + 1, before + now - begun
            row = metrics_row(
                config,
                step,
                losses=values,
                accuracy=_accuracy(logits, targets),
                rate=rate,
                norm=float(norm),
                norms=groups,
                entropy=entropy_of(model, config, inputs),
                speed=tokens_logged / (now - logged),
            )
            log.write(row)
            done.metrics.append(row)
            if tell is not None:
                tell({"kind": "train", "steps": config.steps, "seconds": done.seconds, **row})
            losses, tokens_logged = [], 0
            if folder is not None and step + 1 < config.steps and time.perf_counter() - saved >= save_seconds:
                log.flush()
                write_checkpoint(folder, step + 1, model, optimizer, done.seconds)
                saved = time.perf_counter()
            logged = time.perf_counter()
    if folder is not None and done.stopped_early is None:
        write_checkpoint(folder, config.steps, model, None, done.seconds)
    return done


def _backward(
    run: Any, optimizer: torch.optim.Optimizer, config: RunConfig, inputs: Tensor, targets: Tensor
) -> tuple[Tensor, Tensor]:
    """Leaves the gradients of a batch in the model; its mean loss, and the logits of its last part."""
    optimizer.zero_grad(set_to_none=True)
    if config.accumulate == 1:
        with autocast(config):
            loss, logits = loss_of(run, inputs, targets)
        loss.backward()
        return loss.detach(), logits.detach()
    total, counted = torch.zeros((), device=inputs.device), (targets != -100).sum()
    logits = inputs
    for part, part_targets in zip(inputs.chunk(config.accumulate), targets.chunk(config.accumulate), strict=True):
        with autocast(config):
            loss, logits = loss_of(run, part, part_targets)
        loss = loss * ((part_targets != -100).sum() / counted)  # each target weighs the same, whichever part it is in
        loss.backward()
        total += loss.detach()
    return total, logits.detach()


def resume(model: Decoder, optimizer: torch.optim.Optimizer, config: RunConfig, folder: Path | None) -> Trained:
    """Where the folder's checkpoint stands, with the model and optimizer brought there."""
    if folder is None or not (folder / CHECKPOINT).exists():
        if folder is not None:
            (folder / METRICS).unlink(missing_ok=True)
        return Trained(0, 0.0)
    saved = read_checkpoint(folder, device=config.device)
    model.load_state_dict(saved.model)
    names = dict(model.named_parameters())
    for key, value in saved.optimizer.items():
        name, _, part = key.rpartition(".")
        # Adam's step counter lives on the CPU or the device as the optimizer is fused; value is where it was
        optimizer.state[names[name]][part] = value
    torch.set_rng_state(saved.random)
    rows = read_metrics(folder, until=saved.step)
    write_atomic(folder / METRICS, "".join(json.dumps(row) + "\n" for row in rows).encode())
    return Trained(saved.step, saved.seconds, None, rows)


def _accuracy(logits: Tensor, targets: Tensor) -> float:
    """The share of targets that are the likeliest token, over the rows that logits are of."""
    targets = targets[-len(logits) :]
    counted = targets != -100
    return float((logits.argmax(-1) == targets)[counted].float().mean())


def entropy_of(model: Decoder, config: RunConfig, inputs: Tensor) -> float:
    """The mean entropy of attention in the precision that a run computes in."""
    with autocast(config):
        return attention_entropy(model, inputs)


def metrics_row(
    config: RunConfig,
    step: int,
    *,
    losses: list[float],
    accuracy: float,
    rate: float,
    norm: float,
    norms: dict[str, float],
    entropy: float | None,
    speed: float,
) -> dict[str, Any]:
    """What is logged after update ``step``: the mean of the losses since the last row, and the rest of this update."""
    mean = sum(losses) / len(losses)
    return {
        "step": step + 1,
        "stage": config.stage_at(step),
        "tokens": tokens_until(config, step + 1),
        "loss": mean,
        "bits_per_byte": mean / math.log(2),
        "accuracy": accuracy,
        "learning_rate": rate,
        "gradient_norm": finite(norm),
        "gradient_norms": {group: finite(value) for group, value in norms.items()},
        "attention_entropy": None if entropy is None else finite(entropy),
        "tokens_per_second": speed,
    }


def finite(value: float) -> float | None:
    """The value, or None for what JSON has no number for."""
    return value if math.isfinite(value) else None


def tokens_until(config: RunConfig, step: int) -> int:
    """How many tokens the first ``step`` updates read."""
    total = 0
    for length, batch, steps in config.stages:
        total += length * batch * min(steps, step)
        step = max(0, step - steps)
    return total


def nan_message(config: RunConfig, step: int, values: list[float], rows: list[dict[str, Any]]) -> str | None:
    """What to say where one of the last losses up to update ``step`` is no number, else None; ``rows`` came before."""
    bad = next((i for i, value in enumerate(values) if not math.isfinite(value)), None)
    if bad is None:
        return None
    at = step + 2 - len(values) + bad
    before = values[bad - 1] if bad else rows[-1]["loss"] if rows else None
    last = "from the start" if before is None else f"after {before:.4g} the step before"
    wider = "" if config.precision == "float32" else ", or use precision='float32'"
    return f"the loss is {values[bad]} at step {at}, {last}. Lower learning_rate or lengthen warmup{wider}."


class Log:
    """metrics.jsonl, one line at a time, and TensorBoard events where they are asked for."""

    def __init__(self, folder: Path | None, rows: list[dict[str, Any]], tensorboard: bool) -> None:
        try:
            self._file = None if folder is None else (folder / METRICS).open("a", encoding="utf-8")
        except OSError as error:
            raise _cannot_write(folder, error) from error
        self._events = None
        if tensorboard and folder is not None:
            self._events = _event_writer(folder / "events", rows)

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):  # a row that could not be written, which write has told of
                self._file.close()
        if self._events is not None:
            self._events.close()

    def write(self, row: dict[str, Any]) -> None:
        if self._file is not None:
            try:
                self._file.write(json.dumps(row) + "\n")
                self._file.flush()
            except OSError as error:
                raise _cannot_write(Path(self._file.name).parent, error) from error
        if self._events is not None:
            for key in ("loss", "accuracy", "learning_rate", "gradient_norm", "attention_entropy", "tokens_per_second"):
                self._add(key, row[key], row["step"])
            for key, value in row["gradient_norms"].items():
                self._add(f"gradient_norms/{key}", value, row["step"])

    def _add(self, key: str, value: float | None, step: int) -> None:
        if self._events is not None and value is not None:
            self._events.add_scalar(key, value, step)

    def flush(self) -> None:
        if self._events is not None:
            self._events.flush()


def _cannot_write(folder: Path | None, error: OSError) -> WhorlError:
    return WhorlError(
        f"lab: cannot write {METRICS} in {folder}: {error.strerror}. "
        "The last checkpoint is whole: once it can be written, the same command goes on from there."
    )


def _event_writer(folder: Path, rows: list[dict[str, Any]]) -> Any:
    try:
        from torch.utils.tensorboard.writer import SummaryWriter
    except ImportError:
        raise WhorlError("lab: TensorBoard is not installed. Run: pip install tensorboard, or leave it out.") from None
    return SummaryWriter(str(folder), purge_step=rows[-1]["step"] + 1 if rows else None)
