"""Migration: a model trained with one encoding goes on with another, everything but positions kept.

trained run ─► copy all but positions ─► freeze parts ─► train a little, gently ─► a run folder of its own

The text is scored four times: by the model as it was, right after the exchange, after the training, and by a model that
learned from scratch with the new encoding for as many steps on the same batches, at the full rate.

    OUT/migrations/<id>/               a run folder, which ``whorl.lab.load`` reads; its result.json tells the story
                        from-scratch/  metrics and checkpoint of the model it is compared with
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from whorl.errors import WhorlError, check_counts, unknown
from whorl.lab.batches import open_batches
from whorl.lab.evaluate import Evaluation
from whorl.lab.language import language_loss
from whorl.lab.load import LabRun, load, make_model, parameters
from whorl.lab.monitor import group_of
from whorl.lab.plan import read_name, with_usual
from whorl.lab.settings import RunConfig, cautions, identity, label_of
from whorl.lab.storage import ENVIRONMENT, RESULT, check_output, is_there, make_once, read_json, read_made, space_needed
from whorl.lab.train import SAVE_SECONDS, Tell, Trained, train
from whorl.models.decoder import Decoder
from whorl.result_rows import PROTOCOLS
from whorl.result_shapes import Each, Has, Maybe

SCHEMA = "whorl-lab-migration/1"
SCORED = Maybe([Has({"length": int, "bits_per_byte": Has({"non_overlapping": Maybe(float)}, {})}, {})])
STORY = Has(  # what its result must look like
    {
        "keys": Each([str]),
        "frozen": [str],
        "warnings": [str],
        "stopped_early": Maybe(str),
        "config": Has({"stages": [(int, int, int)]}, {}),
        "losses": Each(Maybe(float)),
        "by_length": Has({"before": SCORED, "right_after": SCORED, "after": SCORED, "from_scratch": SCORED}, {}),
    },
    {},
)
GENTLE = 0.2  # of the rate the run was trained at
PARTS = {"embeddings": "embeddings", "attention": "attention", "ffn": "feed_forward", "norm": "norm"}


@dataclass(frozen=True)
class Keys:
    """The names of the weights that were copied, of those left behind, and of those that start anew."""

    copied: tuple[str, ...]
    dropped: tuple[str, ...]
    new: tuple[str, ...]


def migrate(
    run: str | Path,
    to: str | dict[str, Any],
    *,
    freeze: Iterable[str] = (),
    steps: int | None = None,
    learning_rate: float | None = None,
    tell: Tell | None = None,
    save_seconds: float = SAVE_SECONDS,
) -> dict[str, Any]:
    """The result of taking a trained run to another encoding; ``folder`` in it is the run folder that was made.

    ``to`` is an encoding as ``whorl compare`` takes it. ``freeze`` names parts that stay as they are: embeddings,
    attention, ffn, norm. ``steps`` are a fifth of the run's unless given, the rate a fifth of its own. ``losses`` of
    the result are before, right_after, after and from_scratch. Stopped midway, the same call goes on; finished, it
    only reads.
    """
    source, folder = load(run), Path(run)
    frozen = check_parts(freeze)
    config = _target(source.config, to, steps, learning_rate)
    model = make_model(config)
    keys = copy_weights(source.model, model)
    freeze_parts(model, frozen)
    out = folder.parent.parent if folder.parent.name in ("runs", "migrations") else folder
    # where the weights come from, and what is done with them
    known = {"from": folder.absolute().name, "of": source.config.id, "to": config.id, "frozen": frozen}
    made = out / "migrations" / identity(known)
    if is_there(made / RESULT):
        return read_made(made, STORY) | {"folder": str(made)}
    check_output(out, 2 * space_needed(config))
    batches, corpus = open_batches(config, out)
    assert corpus is not None  # a run on a task has no text to score, and was refused
    evaluation = Evaluation(model, config, corpus)

    def fit(model: Decoder, config: RunConfig, home: Path, part: str) -> Trained:
        loss, heard = language_loss(model, config, batches, bytes_per_token=corpus.bytes_per_token), _named(tell, part)
        return train(model, config, loss, home, tell=heard, save_seconds=save_seconds)

    def make() -> dict[str, Any]:
        scores: dict[str, list[dict[str, Any]] | None] = {
            "before": _scores(evaluation.on(source.model)),
            "right_after": _scores(evaluation),
        }
        trained = fit(model, config, made, "migrated")
        scores["after"] = None if trained.stopped_early else _scores(evaluation.on(model))
        scratch_config = config.replace(learning_rate=source.config.learning_rate)
        alone = made / "from-scratch"
        alone.mkdir(exist_ok=True)
        scratch = make_model(scratch_config)
        control = fit(scratch, scratch_config, alone, "from scratch")
        scores["from_scratch"] = None if control.stopped_early else _scores(evaluation.on(scratch))
        return {
            "schema": SCHEMA,
            "id": made.name,
            "label": label_of(config.encoding, **config.sizes),
            "from": _origin(folder, source),
            "encoding": config.encoding,
            "config": config.to_dict(),
            "keys": asdict(keys),
            "frozen": list(frozen),
            "parameters": parameters(model)["all"],
            "trained_parameters": sum(one.numel() for one in model.parameters() if one.requires_grad),
            "steps": trained.step,
            "learning_rate": config.learning_rate,
            "from_scratch_learning_rate": scratch_config.learning_rate,
            "stopped_early": trained.stopped_early,
            "train_length": config.train_length,
            "losses": {name: _nats(rows, config.train_length) for name, rows in scores.items()},
            "by_length": scores,
            "metrics": {"migrated": _curve(trained), "from_scratch": _curve(control)},
            "warnings": cautions(config),
            "environment": read_json(made / ENVIRONMENT),
        }

    make_once(made, config, make, device=config.device)
    return read_made(made, STORY) | {"folder": str(made)}  # which is where it is now, and may be moved


def check_parts(freeze: Iterable[str]) -> tuple[str, ...]:
    """The parts of a model to freeze, each once; unknown ones raise.

    >>> check_parts(["ffn", "embeddings", "ffn"])
    ('embeddings', 'ffn')
    """
    given = [freeze] if isinstance(freeze, str) else list(freeze)
    for name in given:
        if name == "head":
            raise WhorlError(
                "migrate: the models of the lab read logits off the token embeddings and have no head of their own. "
                "Freeze embeddings."
            )
        if name not in PARTS:
            raise unknown("part to freeze", name, PARTS, call="migrate")
    return tuple(name for name in PARTS if name in given)


def copy_weights(old: Decoder, new: Decoder) -> Keys:
    """Copies all weights but those of the encoding from one model to another, and says which ones.

    >>> from whorl.models import Decoder
    >>> old = Decoder(256, 1, 8, 2, "learned", length=16)
    >>> copy_weights(old, Decoder(256, 1, 8, 2, "rope", length=16)).dropped
    ('plan.unique.0.table',)
    """
    theirs, own = old.state_dict(), new.state_dict()
    kept = {name: value for name, value in theirs.items() if group_of(name) != "encoding"}
    begun = {name: value for name, value in own.items() if group_of(name) == "encoding"}
    new.load_state_dict(kept | begun)  # strict: weights that have no place would raise
    return Keys(tuple(kept), tuple(name for name in theirs if name not in kept), tuple(begun))


def freeze_parts(model: Decoder, frozen: Iterable[str]) -> None:
    """Keeps training off parts of a model; raises a WhorlError where nothing is left that learns."""
    frozen = tuple(frozen)
    groups = {PARTS[name] for name in frozen}
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(group_of(name) not in groups)
    if any(parameter.requires_grad for parameter in model.parameters()):
        return
    label = model.plan[0].config.name
    raise WhorlError(
        f"migrate: nothing is left to train. {label} has no parameters, so with {', '.join(frozen)} frozen every "
        f"weight stays as it is: freezing all that is not named {label} freezes all. Leave at least attention free."
    )


def _target(source: RunConfig, to: str | dict[str, Any], steps: int | None, rate: float | None) -> RunConfig:
    """The config of the training after the exchange: the last stage's batches, in an order not read before."""
    if not source.text:
        raise WhorlError(f"migrate: {source.corpus} has no text to score. Give a run on text.")
    length, batch, _ = source.stages[-1]
    steps = max(1, source.steps // 5) if steps is None else steps
    check_counts("migrate", steps=steps)
    encoding = with_usual(dict(to) if isinstance(to, dict) else read_name(to), **source.sizes)
    config = source.replace(
        protocols=PROTOCOLS,  # every token is scored, whatever the run itself was scored by
        encoding=encoding,
        stages=((length, batch, steps),),
        lengths=(*source.lengths, length),
        learning_rate=GENTLE * source.learning_rate if rate is None else rate,
        warmup=None,
        repairs=(),
        fine_tune_steps=0,
        seed=(source.seed + 1) % 2**31,
    )
    if config.encoding == source.encoding:
        raise WhorlError(f"migrate: the run has {label_of(config.encoding, **config.sizes)} already. Name another.")
    return config


def _origin(folder: Path, source: LabRun) -> dict[str, Any]:
    config = source.config
    return {
        "run": str(folder),
        "id": config.id,
        "label": label_of(config.encoding, **config.sizes),
        "encoding": config.encoding,
        "steps": config.steps,
        "seed": config.seed,
    }


def _scores(evaluation: Evaluation) -> list[dict[str, Any]]:
    return evaluation.variant()["by_length"]


def _nats(rows: list[dict[str, Any]] | None, length: int) -> float | None:
    """The loss in nats at the trained length, every token of the text scored."""
    (row,) = [row for row in rows or [] if row["length"] == length] or [None]
    bits = None if row is None else row["bits_per_byte"]["non_overlapping"]
    return None if bits is None else bits * math.log(2)


def _curve(trained: Trained) -> list[dict[str, Any]]:
    return [{"step": row["step"], "loss": row["loss"]} for row in trained.metrics]


def _named(tell: Tell | None, part: str) -> Callable[[dict[str, Any]], None] | None:
    return None if tell is None else lambda event: tell({**event, "part": part})
