"""One run from config to result: train, evaluate by length, repair, and leave everything in the run's folder."""

from __future__ import annotations

import dataclasses
import math
import shutil
import time
from pathlib import Path
from typing import Any

from whorl import LayerPlan, WhorlError
from whorl.lab.batches import TextBatches, open_batches
from whorl.lab.corpus import Corpus
from whorl.lab.evaluate import Evaluation, sees_part, serving, settings_of
from whorl.lab.fine_tune import TUNED, fine_tuned, tuning
from whorl.lab.language import language_loss
from whorl.lab.load import check_device, make_model, parameters
from whorl.lab.repairs import repaired_plan
from whorl.lab.settings import RunConfig, cautions, label_of
from whorl.lab.storage import (
    CONFIG,
    ENVIRONMENT,
    RESULT,
    PeakMemory,
    is_there,
    make_once,
    read_config,
    read_json,
    read_result,
)
from whorl.lab.tasks import score, task
from whorl.lab.train import SAVE_SECONDS, Tell, Trained, train
from whorl.lab.validation import generated_texts, loss_options, one_head
from whorl.models.decoder import Decoder
from whorl.result_rows import AS_TRAINED
from whorl.results import RunResult

MOST_ROWS = 200  # of metrics in a result


def run_one(
    config: RunConfig,
    folder: str | Path,
    *,
    tell: Tell | None = None,
    wait: bool = False,
    save_seconds: float = SAVE_SECONDS,
    tensorboard: bool = False,
) -> dict[str, Any]:
    """The result of a run, made now unless it is there already; one that was stopped goes on from its last checkpoint.

    ``folder`` is its own, OUT/runs/ID; the text is kept beside it, in OUT/corpus. ``tell`` hears each logged step.
    Where another process has the run, BusyError is raised, or with ``wait`` its end awaited.
    """
    folder = Path(folder)
    if not is_there(folder / RESULT):
        check_device(config)
        if is_there(folder / CONFIG) and read_config(folder).id != config.id:
            raise WhorlError(
                f"run_one: {folder} holds another run. Use a folder named after the run's id, {config.id}."
            )

    def make() -> dict[str, Any]:
        return _made(config, folder, tell, save_seconds, tensorboard).to_dict()

    make_once(folder, config, make, device=config.device, wait=wait)
    shutil.rmtree(folder / TUNED, ignore_errors=True)  # what was tuned is scored by now
    return read_result(folder).to_dict()


def _made(config: RunConfig, folder: Path, tell: Tell | None, save_seconds: float, tensorboard: bool) -> RunResult:
    batches, corpus = open_batches(config, folder.parent.parent if folder.parent.name == "runs" else folder)
    if corpus is not None:
        check_text(config, corpus)
    model = make_model(config)
    peak = PeakMemory(config.device)
    options: dict[str, Any] = {"tell": tell, "save_seconds": save_seconds, "tensorboard": tensorboard}
    watch = {} if corpus is None else loss_options(model, config, corpus)
    trained = train(model, config, language_loss(model, config, batches, **watch), folder, **options)
    result: dict[str, Any] = _facts(config, model, trained) | {"peak_memory_bytes": peak.bytes()}
    begun = time.perf_counter()
    if trained.stopped_early is not None:
        result |= {"evaluations": [], "window_baseline": None}
    elif corpus is not None:
        result |= _evaluated(model, config, corpus, folder, tell)
    else:
        tried = [_task_variant(model, config, name) for name in (AS_TRAINED, *config.repairs)]
        result |= {"window_baseline": None, "evaluations": tried if config.repairs else [], "task": tried[0]["task"]}
    seconds = time.perf_counter() - begun
    return RunResult(**result, evaluate_seconds=seconds, environment=read_json(folder / ENVIRONMENT))


def check_text(config: RunConfig, corpus: Corpus) -> None:
    """Raises a WhorlError where a text is too short for the batches of a run or for the lengths it is tested at."""
    TextBatches(corpus, config)
    if config.fine_tune_steps:
        TextBatches(corpus, tuning(config))
    corpus.samples(max(config.lengths), 1)


def _facts(config: RunConfig, model: Decoder, trained: Trained) -> dict[str, Any]:
    counts, rows, key = parameters(model), trained.metrics, "validation_bits_per_byte"
    tokens = rows[-1]["tokens"] if rows else 0
    return {
        "id": config.id,
        "label": label_of(config.encoding, **config.sizes),
        "encoding": config.encoding,
        "seed": config.seed,
        "config": config.to_dict(),
        "parameters": counts["all"],
        "encoding_parameters": counts["encoding"],
        "train_length": config.train_length,
        "steps": trained.step,
        "tokens": tokens,
        "tokens_per_second": tokens / trained.seconds if trained.seconds else None,
        "train_seconds": trained.seconds,
        "stopped_early": trained.stopped_early,
        "final_train_loss": _final_loss(rows),
        "stages": _stages(config, rows),
        "metrics": _thinned(rows),
        "validation": [{"step": row["step"], "bits_per_byte": row[key]} for row in rows if key in row] or None,
        "claims": _claims(model.plan),
        "warnings": cautions(config),
    }


def _claims(plan: LayerPlan) -> dict[str, bool]:
    """What the encodings of all layers say of themselves."""
    stated = [dataclasses.asdict(plan[layer].claims) for layer in range(len(plan))]
    return {key: all(one[key] for one in stated) for key in stated[0]}


def _final_loss(rows: list[dict[str, Any]]) -> float | None:
    """The mean over the last twentieth of the logged steps."""
    last = [row["loss"] for row in rows[-max(1, len(rows) // 20) :]]
    return sum(last) / len(last) if last else None


def _stages(config: RunConfig, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What each stage ended with."""
    out = []
    for number, (length, batch, steps) in enumerate(config.stages):
        own = [row for row in rows if row["stage"] == number]
        end = {"loss": own[-1]["loss"], "accuracy": own[-1]["accuracy"]} if own else {"loss": None, "accuracy": None}
        out.append({"length": length, "batch": batch, "steps": steps, **end})
    return out


def _thinned(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    keys = ("step", "loss", "bits_per_byte", "gradient_norm", "attention_entropy", "tokens_per_second")
    every = math.ceil(len(rows) / MOST_ROWS) or 1
    kept = rows[::-1][::every][::-1]  # the last one always
    return [{key: row[key] for key in keys if key in row} for row in kept]  # a task has no bytes


def _evaluated(model: Decoder, config: RunConfig, corpus: Corpus, folder: Path, tell: Tell | None) -> dict[str, Any]:
    evaluation = Evaluation(model, config, corpus, tell=tell)
    evaluations = [evaluation.variant(name) for name in (AS_TRAINED, *config.repairs)]
    window, plan = None, model.plan
    if all(plan[layer].axes == 1 for layer in range(len(plan))) and not sees_part(plan):
        window = {"by_length": evaluation.variant("window")["by_length"]}
    if config.fine_tune_steps:
        for name in (AS_TRAINED, *config.repairs):
            evaluations.append(fine_tuned(model, config, evaluation, name, corpus, folder))
    return {
        "evaluations": evaluations,
        "window_baseline": window,
        "generated": generated_texts(model, config, corpus),
        "attention_by_distance": one_head(model, config, corpus),
    }


def _task_variant(model: Decoder, config: RunConfig, name: str) -> dict[str, Any]:
    own, plan, rows = task(config.task_name), model.plan, []
    for length in config.lengths:
        tokens = own.total(length) - 1  # which positions count, where a length may count pairs
        plan = repaired_plan(name, model.plan, trained=config.sizes["length"], length=tokens)
        with serving(model, plan):
            rows.append(score(model, own.name, length=length, served=tokens))
    settings = {} if name == AS_TRAINED else settings_of(plan)
    scores = {"name": own.name, "by_length": rows}
    return {"variant": name, "settings": settings, "fine_tuned_steps": 0, "by_length": [], "task": scores}
