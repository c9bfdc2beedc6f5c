"""Every hook and property of every encoding, called by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from probe.cases import BATCH, DTYPES, HEAD_DIM, HEADS, WIDTH, encodings, hidden_for, on_axes, random, tokens
from probe.recording import Probe

KEYS = 9

PROPERTIES = (
    *("claims", "length_dependent", "axes", "causal_only", "counts_tokens", "scales_queries_only", "reads_hidden"),
    *("key_policy", "folds", "fold_dims", "reach"),
)

PLACES: dict[str, Callable[[Any], Tensor]] = {
    "counted": lambda e: on_axes(e, torch.arange(KEYS)),
    "rows": lambda e: on_axes(e, torch.stack([torch.arange(KEYS) + 3, 2 * torch.arange(KEYS)])),
    "fractions": lambda e: on_axes(e, torch.arange(KEYS) + 1) * 0.75,
}


def run(probe: Probe) -> None:
    for name, build in encodings().items():
        with probe.guarded(name):
            encoding = build()
            _ask_once(probe, name, encoding)
            for dtype_name, dtype in DTYPES.items():
                probe.ask(f"{name}/query_limit/{dtype_name}", lambda e=encoding, d=dtype: e.query_limit(d))
                for place, positions in PLACES.items():
                    _ask(probe, f"{name}/{place}/{dtype_name}", encoding, positions(encoding), dtype)


def _ask_once(probe: Probe, name: str, encoding: Any) -> None:
    for one in PROPERTIES:
        probe.ask(f"{name}/{one}", lambda one=one: getattr(encoding, one))
    probe.ask(f"{name}/enters", lambda: encoding.enters())
    for length in (None, 5, 40):
        probe.ask(f"{name}/softmax_scale/{length}", lambda length=length: encoding.softmax_scale(HEAD_DIM, length))
    probe.ask(f"{name}/one_branch", lambda: [encoding.one_branch(keys) for keys in range(1, 9)])


def _ask(probe: Probe, case: str, encoding: Any, positions: Tensor, dtype: torch.dtype) -> None:
    q, k, v = tokens(KEYS, dtype=dtype)
    last, first = positions[..., -4:], positions[..., :6]
    scores, weights = (
        random("scores", BATCH, HEADS, KEYS, KEYS, dtype=dtype),
        random("scores", BATCH, HEADS, KEYS, KEYS),
    )
    weights = weights.softmax(-1).to(dtype)

    def remembered() -> Any:
        hidden = hidden_for(encoding, KEYS, dtype=dtype)
        return encoding.remember(hidden["hidden"]) if hidden else None

    asked: dict[str, Callable[[], Any]] = {
        "add_to_input": lambda: encoding.add_to_input(random("x", BATCH, KEYS, WIDTH, dtype=dtype), positions),
        "transform_qk": lambda: encoding.transform_qk(q, k, positions, positions),
        "transform_qk of others": lambda: encoding.transform_qk(q[:, :, -4:], k[:, :, :6], last, first),
        "transform_qk at a length": lambda: encoding.transform_qk(q, k, positions, positions, 40),
        "transform_branch": lambda: encoding.transform_branch(q, k, positions, positions),
        "scale_queries": lambda: encoding.scale_queries(q, positions),
        "score_bias": lambda: encoding.score_bias(positions, positions),
        "score_bias of others": lambda: encoding.score_bias(last, first),
        "mask": lambda: encoding.mask(positions, positions),
        "mask of others": lambda: encoding.mask(last, first),
        "branches": lambda: encoding.branches(positions, positions),
        "branches of others": lambda: encoding.branches(last, first),
        "remember": remembered,
        "adjust_scores": lambda: encoding.adjust_scores(scores, q, k, positions, positions, remembered(), scale=0.25),
        "adjust_output": lambda: encoding.adjust_output(q, weights, v, positions, positions),
        "fold": lambda: encoding.fold(positions, positions, dtype, 0.25) if encoding.folds else None,
        "linear_qk": lambda: encoding.linear_qk(q, k, positions, positions) if hasattr(encoding, "linear_qk") else None,
        "linear_decay": lambda: encoding.linear_decay() if hasattr(encoding, "linear_decay") else None,
    }
    for hook, call in asked.items():
        probe.ask(f"{case}/{hook}", call)
