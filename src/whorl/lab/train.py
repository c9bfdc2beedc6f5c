"""Training: one loop for everything that the lab trains, in one process or in many.

loss of a step ─► gradients ─► norm cut to clip ─► AdamW at the step's rate ─► a row of metrics, a checkpoint

What is learned is the caller's: ``loss(step)`` computes the batch of an update and leaves its gradients in the model.
With a folder, training goes on from the checkpoint that is there, bit for bit as if it had not been stopped.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from whorl import WhorlError
from whorl.lab.interrupts import heard_later
from whorl.lab.monitor import gradient_norms, group_of
from whorl.lab.processes import folder_of_first
from whorl.lab.recipe import ROWS, Recipe, make_optimizer, set_rate
from whorl.lab.storage import (
    CHECKPOINT,
    METRICS,
    check_optimizer,
    check_weights,
    is_there,
    read_checkpoint,
    read_metrics,
    remove,
    write_atomic,
    write_checkpoint,
)

Tell = Callable[[dict[str, Any]], None]  # hears what happens

# What of a row TensorBoard is told, where the row has it.
EVENTS = (
    "loss", "validation_bits_per_byte", "accuracy", "learning_rate", "gradient_norm", "attention_entropy",
    "tokens_per_second",
)  # fmt: skip
SAVE_SECONDS = 30.0  # between checkpoints, about


class Pass(NamedTuple):
    """What the forward and backward pass of an update came to; its gradients are in the model.

    In a training by many processes, loss and accuracy are the shares of this one, and add up to those of the batch.
    """

    loss: Tensor  # in nats, the mean over the targets that count
    accuracy: Callable[[], Tensor]  # asked for where a row is logged, as is the next
    tokens: int
    more: Callable[[float], dict[str, Any]] = (
        lambda mean: {}
    )  # what else a row holds, from the mean loss since the last


Loss = Callable[[int], Pass]  # of an update, counted from 0


def backward(loss: Tensor, logits: Tensor, wanted: Tensor, tokens: int) -> Pass:
    """The pass of a loss of one batch, with the gradients left in the model."""
    loss.backward()
    return Pass(loss.detach(), lambda: (logits.argmax(-1) == wanted).float().mean(), tokens)


@dataclass
class Trained:
    """What training came to."""

    step: int
    seconds: float
    stopped_early: str | None = None
    metrics: list[dict[str, Any]] = field(default_factory=list)
    pending: list[Tensor] = field(default_factory=list)  # losses of updates since the last row


def train(
    model: nn.Module,
    recipe: Recipe,
    loss: Loss,
    folder: Path | None = None,
    *,
    rank: int = 0,
    world: int = 1,
    rows: int | None = None,
    part_of: Callable[[str], str] | None = group_of,
    tell: Tell | None = None,
    save_seconds: float = SAVE_SECONDS,
    tensorboard: bool = False,
) -> Trained:
    """Trains a model in place and says how it went; goes on from the folder's checkpoint where there is one.

    ``rank`` and ``world`` are those of this process in torch's default group; the first one alone writes and tells.
    ``rows`` is about how many rows of metrics are kept. ``part_of`` names the part of the model that a parameter is in,
    for gradient norms by part; None leaves these out.
    A loss that is no number ends it, with ``stopped_early`` saying where; the last checkpoint stays what it was.
    Ctrl-C in a training by one process ends it after the update, with a checkpoint in the folder.
    """
    optimizer = make_optimizer(model, recipe)
    done = resume(model, optimizer, recipe, folder, world)
    if done.step >= recipe.steps:
        return done
    home = folder if rank == 0 else None
    interrupts = heard_later() if world == 1 else contextlib.nullcontext(lambda: False)
    with Log(home, done.metrics, tensorboard) as log, interrupts as interrupted:
        losses, tokens = done.pending, 0
        begun = saved = logged = time.perf_counter()
        before = done.seconds
        model.train()
        for step in range(done.step, recipe.steps):
            rate = set_rate(optimizer, step, recipe)
            optimizer.zero_grad(set_to_none=True)
            found = loss(step)
            is_logged = recipe.is_logged(step, ROWS if rows is None else rows)
            norms = gradient_norms(model, part_of) if is_logged and part_of is not None else {}
            norm = nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
            optimizer.step()
            losses.append(found.loss)
            tokens += found.tokens
            if is_logged:
                sums = torch.stack([*losses, found.accuracy()])
                if world > 1:
                    dist.all_reduce(sums)
                *values, accuracy = sums.tolist()
                now = time.perf_counter()
                done.stopped_early = _no_number(recipe, step, values, done.metrics)
                if done.stopped_early is not None:
                    break
                done.step, done.seconds = step + 1, before + now - begun
                mean = sum(values) / len(values)
                row = {
                    "step": step + 1,
                    "stage": recipe.stage_at(step),
                    "tokens": recipe.tokens_until(step + 1),
                    "loss": mean,
                    "accuracy": accuracy,
                    "learning_rate": rate,
                    "gradient_norm": finite(float(norm)),
                    **(
                        {}
                        if part_of is None
                        else {"gradient_norms": {part: finite(one) for part, one in norms.items()}}
                    ),
                    **found.more(mean),
                    "tokens_per_second": tokens / (now - logged),
                }
                log.write(row)
                done.metrics.append(row)
                if tell is not None and rank == 0:
                    tell({"kind": "train", "steps": recipe.steps, "seconds": done.seconds, **row})
                losses, tokens = [], 0
            stops = interrupted()
            due = is_logged and time.perf_counter() - saved >= save_seconds
            if home is not None and step + 1 < recipe.steps and (due or stops):
                log.flush()
                write_checkpoint(home, step + 1, model, optimizer, before + time.perf_counter() - begun, losses)
                saved = time.perf_counter()
            if stops and step + 1 < recipe.steps:
                raise KeyboardInterrupt
            if is_logged:
                logged = time.perf_counter()
        if home is not None and done.stopped_early is None:
            write_checkpoint(home, recipe.steps, model, None, done.seconds)
        if interrupted():
            raise KeyboardInterrupt
    if world > 1:
        dist.barrier()
    return done


def resume(
    model: nn.Module, optimizer: torch.optim.Optimizer, recipe: Recipe, folder: Path | None, world: int = 1
) -> Trained:
    """Where the folder's checkpoint stands, with the model and optimizer brought there, in every process."""
    if folder is not None and world > 1:
        with folder_of_first(folder) as own:
            return resume(model, optimizer, recipe, own)
    if folder is None or not is_there(folder / CHECKPOINT):
        if folder is not None:
            remove(folder / METRICS)
        return Trained(0, 0.0)
    saved = read_checkpoint(folder, device=recipe.device)
    check_weights(folder, model.state_dict(), saved.model)
    model.load_state_dict(saved.model)
    parameters = dict(model.named_parameters())
    check_optimizer(folder, parameters, saved.optimizer)
    for key, value in saved.optimizer.items():
        name, _, part = key.rpartition(".")
        # of this process, which has its own
        optimizer.state[parameters[name]][part] = value.to(parameters[name].device)
    torch.set_rng_state(saved.random)
    rows = read_metrics(folder, until=saved.step)
    write_atomic(folder / METRICS, "".join(json.dumps(row) + "\n" for row in rows).encode())
    return Trained(saved.step, saved.seconds, None, rows, list(saved.pending.to(recipe.device)))


def finite(value: float) -> float | None:
    """The value, or None for what JSON has no number for."""
    return value if math.isfinite(value) else None


def _no_number(recipe: Recipe, step: int, values: list[float], rows: list[dict[str, Any]]) -> str | None:
    """What to say where one of the last losses up to update ``step`` is no number, else None; ``rows`` came before."""
    bad = next((i for i, value in enumerate(values) if not math.isfinite(value)), None)
    if bad is None:
        return None
    at = step + 2 - len(values) + bad
    before = values[bad - 1] if bad else rows[-1]["loss"] if rows else None
    last = "from the start" if before is None else f"after {before:.4g} the step before"
    return f"the loss is {values[bad]} at step {at}, {last}. {recipe.gentler}"


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
            norms = {f"gradient_norms/{part}": value for part, value in row.get("gradient_norms", {}).items()}
            for key, value in {**{key: row.get(key) for key in EVENTS}, **norms}.items():
                if value is not None:
                    self._events.add_scalar(key, value, row["step"])

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
