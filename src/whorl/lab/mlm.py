"""Masked-language-model pre-training of RoFormer in stages of length, batch and steps, as its authors did in Chinese.

Devlin, Chang, Lee, Toutanova 2019, "BERT"; stages as in Su et al. 2021, "RoFormer". Of the tokens 15 % are chosen to be
guessed: 80 % of these read MASK, 10 % a random token, 10 % themselves. Tokens are bytes.
Loss and accuracy of a stage are those on the batches of its last quarter, each seen once, before its update.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from whorl import WhorlError
from whorl.config import config
from whorl.lab.corpus import read_documents, split
from whorl.lab.encoder_runs import EncoderConfig, fit, folder_of
from whorl.lab.monitor import GROUPS, group_of
from whorl.lab.storage import begin, locked, read_metrics
from whorl.lab.tasks import generator_of
from whorl.lab.train import Loss, Pass, backward
from whorl.models.roformer import RoFormerMaskedLM
from whorl.position_ids import whole_number

BYTES, MASK, VOCAB = 256, 256, 257
CHOSEN, MASKED, RANDOM = 0.15, 0.8, 0.1

# (length, batch, steps) of the Chinese RoFormer.
ROFORMER_STAGES = (
    (512, 256, 200_000),
    (1536, 256, 12_500),
    (256, 256, 120_000),
    (128, 512, 80_000),
    (1536, 256, 10_000),
    (512, 512, 30_000),
)


def staged(factor: int = 2000, *, length: int = 8, batch: int = 32) -> tuple[tuple[int, int, int], ...]:
    """RoFormer's six stages with steps divided by ``factor``, and lengths and batches by numbers of their own.

    >>> staged(2000)
    ((64, 8, 100), (192, 8, 6), (32, 8, 60), (16, 16, 40), (192, 8, 5), (64, 16, 15))
    """
    for name, value in {"factor": factor, "length": length, "batch": batch}.items():
        whole_number("staged", name, value, least=1)
    return tuple(
        (max(2, tokens // length), max(1, rows // batch), max(1, steps // factor))
        for tokens, rows, steps in ROFORMER_STAGES
    )


@config
class PretrainConfig(EncoderConfig):
    """Everything that decides what a pre-training comes out as, beside its text.

    stages         (length, batch, steps), one after another; a learned table is as long as the longest of them
    """

    name: ClassVar[str] = "pretrain"
    stages: tuple[tuple[int, ...], ...] = staged()

    def check(self) -> None:
        super().check()
        whole = self.stages and all(len(stage) == 3 and min(stage) >= 1 for stage in self.stages)
        self.must(whole, "stages", "(length, batch, steps) each, all positive")


@dataclass(frozen=True)
class Stage:
    """One stage and how it went; a part of the model without parameters has None for a gradient norm."""

    length: int
    batch: int
    steps: int
    loss: float  # nats per guessed token
    accuracy: float
    gradient_norms: dict[str, float | None]  # by part of the model, mean over the steps, before the cut
    seconds: float


@dataclass(frozen=True)
class Pretrained:
    """A pre-trained model, how every stage went, and what there is to say about it."""

    model: RoFormerMaskedLM
    config: PretrainConfig
    stages: tuple[Stage, ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """All but the weights, as JSON-ready data."""
        stages = [asdict(stage) for stage in self.stages]
        return {"config": self.config.to_dict(), "stages": stages, "notes": list(self.notes)}


def mask_tokens(tokens: Tensor, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Tokens with some hidden, and which of them are to be guessed: 15 %, at least one.

    >>> given, chosen = mask_tokens(torch.zeros(4, 8, dtype=torch.long), torch.Generator().manual_seed(0))
    >>> bool((given[~chosen] == 0).all())
    True
    """
    chance = torch.rand(tokens.shape, generator=draw)
    chosen = (chance < CHOSEN) | (chance == chance.min())  # a small batch could have none below
    fate = torch.rand(tokens.shape, generator=draw)
    random = torch.randint(BYTES, tokens.shape, generator=draw)
    changed = torch.where(fate < MASKED, MASK, torch.where(fate < MASKED + RANDOM, random, tokens))
    return torch.where(chosen, changed, tokens), chosen


def pretrain(
    settings: PretrainConfig,
    text: bytes | np.ndarray | None = None,
    *,
    out: str | Path | None = None,
    tell: Callable[[Stage], None] | None = None,
) -> Pretrained:
    """A RoFormer pre-trained on a text, Python's standard library unless given, stage by stage.

    ``tell`` hears each stage when it is done. Kept under ``out``, a pre-training that was stopped goes on where it
    was, and a finished one is not done again.

    >>> done = pretrain(PretrainConfig(layers=1, width=16, stages=[(16, 2, 2), (8, 2, 1)]), bytes(range(256)) * 4)
    >>> [stage.length for stage in done.stages], done.notes[0][:22]
    ([16, 8], 'rope has no parameters')
    """
    longest = max(length for length, _, _ in settings.stages)
    data = _text(text, longest)
    model = RoFormerMaskedLM(settings.encoder(VOCAB, longest))
    folder = None if out is None else folder_of(settings, hashlib.sha256(data.numpy().tobytes()).hexdigest(), out)
    heard: list[dict[str, Any]] = []

    def hear(row: dict[str, Any]) -> None:
        if folder is not None and not heard:
            heard.extend(read_metrics(folder, until=row["step"] - 1))  # of the steps before it was stopped
        heard.append(row)
        stage = settings.stages[row["stage"]]
        if tell is not None and len(own := _rows(heard, row["stage"])) == stage[2]:
            tell(_stage(stage, own))

    with contextlib.nullcontext() if folder is None else locked(folder):
        if folder is not None:
            begin(folder, settings)
        loss = masked_loss(model, settings, data)
        done = fit(model, loss, settings.stages, settings.learning_rate, folder, part_of=part_of, tell=hear)
    stages = tuple(_stage(stage, _rows(done.metrics, number)) for number, stage in enumerate(settings.stages))
    return Pretrained(model, settings, stages, _notes(model))


def masked_loss(model: RoFormerMaskedLM, settings: PretrainConfig, data: Tensor) -> Loss:
    """The loss of the hidden tokens of the rows of a step, drawn from a text."""
    stage_of = [number for number, (_, _, steps) in enumerate(settings.stages) for _ in range(steps)]

    def at(step: int) -> Pass:
        length, batch, _ = settings.stages[stage_of[step]]
        draw = generator_of("mlm", settings.seed, step)
        starts = torch.randint(len(data) - length + 1, (batch, 1), generator=draw)
        tokens = data[starts + torch.arange(length)].long()
        given, chosen = mask_tokens(tokens, draw)
        logits, wanted = model(given)[chosen], tokens[chosen]
        return backward(cross_entropy(logits, wanted), logits, wanted, tokens.numel())

    return at


def _rows(metrics: list[dict[str, Any]], stage: int) -> list[dict[str, Any]]:
    return [row for row in metrics if row["stage"] == stage]


def _stage(stage: tuple[int, ...], rows: list[dict[str, Any]]) -> Stage:
    """How a stage went, from the rows of its steps."""
    length, batch, steps = stage
    late, parts = rows[-max(1, steps // 4) :], [row["gradient_norms"] for row in rows]
    norms = {group: [one[group] for one in parts if group in one] for group in GROUPS}
    return Stage(
        length=length,
        batch=batch,
        steps=steps,
        loss=_mean([row["loss"] for row in late]),
        accuracy=_mean([row["accuracy"] for row in late]),
        gradient_norms={group: _mean(own) if own else None for group, own in norms.items()},
        seconds=sum(length * batch / row["tokens_per_second"] for row in rows),
    )


def part_of(name: str) -> str:
    """The part of a RoFormerMaskedLM that a parameter belongs to, by its name.

    >>> [part_of(name) for name in ("dense.weight", "encoder.embed_types.weight", "encoder.plan.unique.0.table")]
    ['head', 'embeddings', 'encoding']
    """
    if not name.startswith("encoder."):
        return "head"
    return group_of(name.removeprefix("encoder.").replace("embed_types.", "embed."))


def _notes(model: RoFormerMaskedLM) -> tuple[str, ...]:
    name = model.encoder.plan[0].config.name
    if any(True for _ in model.encoder.plan.parameters()):
        return ()
    return (f"{name} has no parameters: there is no gradient of the encoding to show, and none is missing.",)


def _text(text: bytes | np.ndarray | None, longest: int) -> Tensor:
    if text is None:
        text = b"".join(split(read_documents("stdlib")[0])[0])
    data = torch.from_numpy(np.frombuffer(bytes(text), dtype=np.uint8).copy())
    if len(data) < longest:
        raise WhorlError(
            f"pretrain: the text has {len(data)} bytes and the longest stage {longest}. Give more text, "
            "or shorter stages."
        )
    return data


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
