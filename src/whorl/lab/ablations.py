"""Ablations: the base of RoPE, a norm of queries and keys before or after the rotation, and random slopes of ALiBi.

Each trains small decoders with the lab's own runs and gives one row per setting, mean and interval over seeds, and the
difference from the usual setting. Within a seed all settings start from the same weights and read the same batches, so
differences are taken seed by seed: they are far more certain than the means.
A rotation keeps the length of a vector, so RMSNorm without a gain is the same before and after it. LayerNorm takes off
a mean that turns with the position, and a gain scales the two dimensions of a pair unequally: after the rotation both
leave scores that depend on where query and key stand, not on their distance alone.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, rms_norm

from whorl import Claims, Encoding, Rope, WhorlError, registry
from whorl.claims.probes import weights_at
from whorl.config import Config, config
from whorl.lab.aggregate import interval
from whorl.lab.load import load
from whorl.lab.plan import plan
from whorl.lab.run_many import Tell, run_many
from whorl.results import RunResult

BASES = (1e2, 1e3, 1e4, 1e5)
NORMS: tuple[dict[str, Any], ...] = (
    {"norm": "none"},
    {"norm": "layer", "place": "before"},
    {"norm": "rms", "place": "before"},
    {"norm": "layer", "place": "after"},
    {"norm": "rms", "place": "after"},
    {"norm": "rms", "place": "after", "gain": True},
)

# Small enough for a minute a run on one core; any of it can be given.
SIZES: dict[str, Any] = {
    "layers": 2,
    "width": 64,
    "heads": 4,
    "stages": ((64, 16, 400),),
    "learning_rate": 2e-3,
    "lengths": (64, 128, 256),
    "eval_bytes": 16_384,
}

SHIFTS = (1, 17, 1000)
WAYS = ("non_overlapping", "same_last")


@config
class NormedRopeConfig(Config):
    """Everything that makes one RoPE with a norm of queries and keys differ from another.

    head_dim       dimensions of a head
    base           of the frequencies
    norm           "none", "layer" (LayerNorm) or "rms" (RMSNorm), over the dimensions of a head
    place          "before" the rotation, or "after" it
    gain           whether each dimension of queries and of keys is multiplied by a learned number behind the norm
    """

    name: ClassVar[str] = "normed_rope"
    head_dim: int
    base: float = 10_000.0
    norm: Literal["none", "layer", "rms"] = "rms"
    place: Literal["before", "after"] = "before"
    gain: bool = False

    def check(self) -> None:
        usual = not self.gain and self.place == "before"
        given = (self.place, self.gain)
        self.must(self.norm != "none" or usual, "place and gain", "as they are by default without a norm", given)


class NormedRope(Encoding):
    """RoPE with queries and keys normed before or after the rotation.

    >>> NormedRope(head_dim=8, norm="layer", place="after").claims.relative
    False
    """

    Config = NormedRopeConfig
    config: NormedRopeConfig

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.rope = Rope(head_dim=self.config.head_dim, base=self.config.base)
        self.gains = nn.Parameter(torch.empty(2, self.config.head_dim)) if self.config.gain else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sets the gains back to 1."""
        if self.gains is not None:
            nn.init.ones_(self.gains)

    @property
    def claims(self) -> Claims:
        own = self.config
        relative = own.place == "before" or (own.norm == "rms" and not own.gain)
        return Claims(
            relative=relative,
            norm_preserving=own.norm == "none",
            linear_attention=relative,
            decays=False,
            extrapolates=False,
        )

    def transform_qk(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor, length: int | None = None
    ) -> tuple[Tensor, Tensor]:
        if self.config.place == "after":
            return self._normed(*self.rope.transform_qk(q, k, q_positions, k_positions, length))
        return self.rope.transform_qk(*self._normed(q, k), q_positions, k_positions, length)

    def _normed(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        if self.config.norm == "none":
            return q, k
        norm = layer_norm if self.config.norm == "layer" else rms_norm
        gains = (None, None) if self.gains is None else self.gains.to(q.dtype)
        return norm(q, q.shape[-1:], gains[0]), norm(k, k.shape[-1:], gains[1])


@contextlib.contextmanager
def registered() -> Iterator[None]:
    """Within it ``NormedRope`` is built by name, so that runs with it can be made and loaded."""
    registry.register(NormedRope)
    try:
        yield
    finally:
        registry.ENCODINGS.pop(NormedRopeConfig.name)


def relativity_error(encoding: Encoding) -> float:
    """The largest change of an attention weight between random tokens when all positions are shifted, in float64.

    >>> broken = NormedRope(head_dim=16, norm="layer", place="after")
    >>> relativity_error(Rope(head_dim=16)) < 1e-12, relativity_error(broken) > 0.1
    (True, True)
    """
    exact = type(encoding).from_config(encoding.config).double()
    exact.load_state_dict(encoding.state_dict())
    positions = torch.arange(12)
    with torch.no_grad():
        here = weights_at(exact, positions)
        return max(float((weights_at(exact, positions + shift) - here).abs().max()) for shift in SHIFTS)


def base_ablation(
    out: str | Path,
    *,
    bases: Sequence[float] = BASES,
    seeds: Sequence[int] = (0, 1, 2),
    tell: Tell | None = None,
    **settings: Any,
) -> list[dict[str, Any]]:
    """A row per base of RoPE; runs are kept under ``out``, ``settings`` are those of RunConfig.

    ``tell`` hears of every run what ``whorl.lab.progress.Progress`` does.
    """
    chosen = {f"{base:g}": {"name": "rope", "base": base} for base in bases}
    usual = "10000" if "10000" in chosen else next(iter(chosen))
    return _rows("base", _runs(chosen, out, seeds, settings, tell), usual)


def norm_ablation(
    out: str | Path,
    *,
    norms: Sequence[dict[str, Any]] = NORMS,
    seeds: Sequence[int] = (0, 1, 2),
    tell: Tell | None = None,
    **settings: Any,
) -> list[dict[str, Any]]:
    """A row per norm of queries and keys, with the relativity error of the trained encoding of the first seed."""
    chosen = {_norm_label(norm): {"name": "normed_rope", **norm} for norm in norms}
    with registered():
        results = _runs(chosen, out, seeds, settings, tell)
        errors = [relativity_error(load(Path(out) / "runs" / runs[0].id).model.plan[0]) for runs in results.values()]
    rows = _rows("norm", results, next(iter(chosen)))
    return [{**row, "relativity_error": error} for row, error in zip(rows, errors, strict=True)]


def slope_ablation(
    out: str | Path,
    *,
    draws: int = 3,
    seeds: Sequence[int] = (0, 1, 2),
    tell: Tell | None = None,
    **settings: Any,
) -> list[dict[str, Any]]:
    """A row for ALiBi's own slopes, and one per draw of random slopes between 0 and 1."""
    heads = {**SIZES, **settings}["heads"]
    chosen: dict[str, dict[str, Any]] = {"press": {"name": "alibi", "slopes": "press"}}
    chosen |= {f"random {draw}": {"name": "alibi", "slopes": random_slopes(heads, draw)} for draw in range(draws)}
    return _rows("slopes", _runs(chosen, out, seeds, settings, tell), "press")


def _norm_label(norm: dict[str, Any]) -> str:
    return " ".join([norm["norm"], norm.get("place", ""), "with gain" if norm.get("gain") else ""]).strip()


def random_slopes(heads: int, draw: int) -> list[float]:
    """Slopes drawn evenly between 0 and 1, steepest first.

    >>> len(random_slopes(4, draw=0))
    4
    """
    source = random.Random(draw)
    return sorted((source.uniform(0.0, 1.0) for _ in range(heads)), reverse=True)


def _runs(
    chosen: dict[str, dict[str, Any]],
    out: str | Path,
    seeds: Sequence[int],
    settings: dict[str, Any],
    tell: Tell | None,
) -> dict[str, list[RunResult]]:
    """The results of every chosen encoding, one per seed; all of it is planned before the first run begins."""
    planned = plan(list(chosen.values()), out=out, seeds=seeds, **{**SIZES, **settings})
    results, failed = run_many(planned, out, tell=tell, workers=1)
    for message in failed.values():
        raise WhorlError(message)
    for result in results:
        if result.stopped_early:
            what = f"{result.label}, seed {result.seed}"
            raise WhorlError(f"ablations: {what} stopped: {result.stopped_early}. Lower the learning rate.")
    by_seed = len(seeds)
    return {label: results[i * by_seed : (i + 1) * by_seed] for i, label in enumerate(chosen)}


def _rows(ablation: str, results: dict[str, list[RunResult]], usual: str) -> list[dict[str, Any]]:
    against = _by_length(results[usual])
    rows = []
    for label, runs in results.items():
        cells = [
            {"length": length}
            | {way: interval(values) for way, values in bits.items()}
            | {"difference": None if label == usual else _differences(bits, against[length])}
            for length, bits in _by_length(runs).items()
        ]
        row = {"ablation": ablation, "setting": label, "usual": usual, "encoding": runs[0].encoding}
        loss = interval([run.final_train_loss for run in runs])
        rows.append({**row, "seeds": [run.seed for run in runs], "final_train_loss": loss, "by_length": cells})
    return rows


def _by_length(runs: list[RunResult]) -> dict[int, dict[str, list[float]]]:
    """Bits per byte by length and way of measuring, one number per seed."""
    tables = [run.evaluations[0]["by_length"] for run in runs]
    return {
        cells[0]["length"]: {way: [cell["bits_per_byte"][way] for cell in cells] for way in WAYS}
        for cells in zip(*tables, strict=True)
    }


def _differences(own: dict[str, list[float]], other: dict[str, list[float]]) -> dict[str, Any]:
    return {way: interval([a - b for a, b in zip(own[way], other[way], strict=True)]) for way in own}
