"""The table of all encodings: facts of the registry, claims, results of committed comparisons, and a timing."""

from __future__ import annotations

import time
from collections.abc import Iterable
from statistics import median
from typing import Any

import torch

from whorl import Encoding, registry
from whorl.attend.call import checked
from whorl.attend.softmax import attention, choose_path
from whorl.claims import evidence
from whorl.encodings.parts import Bias, Branches, Input, Part, Placement, QueryScale, ScoreTerm, first

TOKENS = 512  # of the attention that is timed
ROUNDS = 3

HOW_TO_READ = (
    "Every column is of the default settings. extrapolates: how far the loss at the longest length tried lies above "
    "that at the trained length, the worst of the comparisons under experiments/ that go so far (for what serves a "
    "model trained with rope, such as rerope and window, that of such a model), else what the encoding claims, which "
    "training decides. memory: what attention over the length of that model holds at a time on a CPU."
)

# The thing that each hook changes, in words.
PLACES = {
    "add_to_input": "token embeddings",
    "transform_qk": "queries and keys",
    "score_bias": "score bias",
    "adjust_scores": "scores",
    "adjust_output": "values",
    "branches": "remapped positions",
    "mask": "mask",
}

# The family of an encoding, by the first of these hooks that it uses; with none of them it is a mask.
FAMILIES: dict[type[Part], str] = {
    Input: "absolute, at the input",
    Branches: "relative, remapped rotation",
    QueryScale: "temperature by position",
    Placement: "relative, rotation",
    Bias: "relative, bias",
    ScoreTerm: "relative, by content",
    Part: "mask",
}

# What is said of an encoding and is not so; the ledger has each as a claim.
NOT_SO = {
    "alibi": "not so: attention is not scaled by √d (the bias is not, the scores are)",
    "axial_rope": "not so: a Kronecker product (one rotation per axis, side by side)",
    "none": "not so: attention is permutation invariant (equivariant, under a causal mask not even that)",
    "rope": (
        "not so: extrapolates to any length (computable there, quality does not hold); the only relative one for "
        "linear attention (xPos is another)"
    ),
    "shaw": "not so: relative encodings do not suit a KV cache (each step equals a full pass)",
    "sinusoidal": "not so: used by BERT (BERT's are learned)",
    "t5": "not so: stores O(L) biases (one per bucket and head)",
    "xpos": "not so: O(L²), not for linear attention (neither)",
}


def compare_all() -> list[dict[str, Any]]:
    """One row for each encoding, as JSON-ready data."""
    encodings = {name: registry.build_for(name, **registry.MODEL) for name in registry.names()}
    seconds = measure(encodings)
    return [
        {**row(name, encoding), "time": round(seconds[name] / seconds["none"], 2), "remark": NOT_SO.get(name, "")}
        for name, encoding in encodings.items()
    ]


def row(name: str, encoding: Encoding) -> dict[str, Any]:
    """The facts of an encoding, from the registry and from the committed comparisons."""
    claims = encoding.claims
    q = torch.zeros(_shape(registry.MODEL["length"]))  # longer than a window: within one, much is plain attention
    remembered = q.new_zeros(q.shape[:3]) if encoding.reads_hidden else None
    path, _ = choose_path(checked(q, q, q, encoding=encoding, remembered=remembered), "auto")
    return {
        "encoding": name,
        "family": family(encoding),
        "position enters": places(encoding.enters(), encoding.scales_queries_only),
        "relative": claims.relative,
        "norms kept": claims.norm_preserving,
        "linear attention": claims.linear_attention,
        "KV cache": "raw keys" if encoding.key_policy == "raw" else "keys as they are used",
        "bidirectional": not encoding.causal_only,
        "decays": claims.decays,
        "extrapolates": extrapolation(name, claims.extrapolates),
        "parameters": sum(parameter.numel() for parameter in encoding.parameters()),
        "memory": "O(L)" if path in ("sdpa", "alibi", "folded", "flex") else "O(L × block)",
    }


def places(hooks: Iterable[str], queries_only: bool = False) -> str:
    """The places where position enters, in words, by the hooks that an encoding uses.

    ``queries_only`` says that ``transform_qk`` leaves keys as they are.
    """
    words = PLACES | ({"transform_qk": "queries"} if queries_only else {})
    return ", ".join(words.get(hook, hook) for hook in hooks) or "nowhere"


def extrapolation(name: str, claimed: bool) -> str:
    """The largest rise of the loss past the trained length in the committed comparisons, else what is claimed."""
    measured = [one for one in evidence.losses_of(name) if one.rise(1.0) is not None]
    if not measured:
        return "claimed" if claimed else "not claimed"
    far = max(max(one.by_ratio) for one in measured)
    rise = max(rise for one in measured if (rise := one.rise(far)) is not None)
    return f"{round(rise, 2) + 0.0:+.2f} bit/byte at {far:g}×"


def family(encoding: Encoding) -> str:
    """The branch of the family tree that an encoding stands on, by where position enters."""
    return next((family for kind, family in FAMILIES.items() if first(encoding, kind)), "none")


def measure(encodings: dict[str, Encoding]) -> dict[str, float]:
    """The median time of one causal attention call with each encoding, timed in turn in every round."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(_shape(TOKENS), generator=generator) for _ in range(3))
    hidden = torch.randn(1, TOKENS, registry.MODEL["width"], generator=generator)
    times: dict[str, list[float]] = {name: [] for name in encodings}
    with torch.no_grad():
        for _ in range(ROUNDS):
            for name, encoding in encodings.items():
                more: dict[str, Any] = {"hidden": hidden} if encoding.reads_hidden else {}
                start = time.perf_counter()
                attention(q, k, v, encoding=encoding, **more)
                times[name].append(time.perf_counter() - start)
    return {name: median(own) for name, own in times.items()}


def _shape(tokens: int) -> tuple[int, int, int, int]:
    """Of the queries, keys and values of one call."""
    return 1, registry.MODEL["heads"], tokens, registry.MODEL["head_dim"]


def table(rows: list[dict[str, Any]]) -> list[str]:
    """The lines of a Markdown table."""
    header = list(rows[0])
    lines = [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
    return lines + [f"| {' | '.join(cells(one))} |" for one in rows]


def cells(row: dict[str, Any]) -> list[str]:
    """The values of a row as words."""
    return [{True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value) for value in row.values()]


def sizes() -> str:
    """The sizes of the model that parameters are counted for, in words."""
    heads, head_dim, width, length = registry.MODEL.values()
    return f"a model with {heads} heads of {head_dim} dimensions, width {width:,} and length {length:,}"


def how_to_read() -> list[str]:
    """What the columns mean, and the sizes they are counted and measured at."""
    return [
        f"parameters: of {sizes()}. time: one causal attention call of its heads over {TOKENS} tokens, divided by the "
        "same without position, on this machine.",
        HOW_TO_READ,
    ]


def markdown(rows: list[dict[str, Any]]) -> str:
    """The rows as a Markdown table, with the sizes it was measured at."""
    return "\n".join([*table(rows), "", *how_to_read()])
