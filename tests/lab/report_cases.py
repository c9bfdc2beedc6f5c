"""Comparisons to report on, with numbers of the size that real runs give.

``demo`` is a small model trained at 64 and tested to 512, with repairs of RoPE; ``large`` one trained at 512 and tested
to 8192; ``copying`` a synthetic task; ``with_gaps`` has learned positions and losses that are not finite.
"""

from __future__ import annotations

import math
from typing import Any

BITS = 1 / math.log(2)
DEMO_LENGTHS = (16, 32, 64, 128, 256, 512)

# Nats per byte on the same last tokens, then non-overlapping, at DEMO_LENGTHS; then recall of repeats from 128 on.
DEMO = {
    ("sinusoidal", "as trained"): (
        (1.95, 1.72, 1.614, 2.86, 3.37, 3.69),
        (2.31, 1.93, 1.693, 2.812, 3.350, 3.565),
        (0.11, 0.07, 0.05),
    ),
    ("rope", "as trained"): (
        (1.88, 1.64, 1.522, 1.93, 2.74, 4.12),
        (2.22, 1.84, 1.608, 1.719, 2.237, 3.062),
        (0.48, 0.27, 0.12),
    ),
    ("alibi", "as trained"): (
        (1.93, 1.71, 1.594, 1.601, 1.607, 1.611),
        (2.28, 1.92, 1.685, 1.672, 1.668, 1.665),
        (0.50, 0.50, 0.49),
    ),
    ("kerple", "as trained"): (
        (1.90, 1.66, 1.526, 1.531, 1.544, 1.553),
        (2.24, 1.86, 1.629, 1.616, 1.617, 1.622),
        (0.53, 0.52, 0.50),
    ),
    ("t5", "as trained"): (
        (1.87, 1.63, 1.506, 1.502, 1.531, 1.59),
        (2.20, 1.82, 1.590, 1.576, 1.581, 1.621),
        (0.55, 0.53, 0.49),
    ),
    ("none", "as trained"): (
        (2.35, 2.12, 2.016, 2.21, 2.57, 2.945),
        (2.61, 2.24, 1.966, 2.097, 2.354, 2.609),
        (0.31, 0.25, 0.21),
    ),
    ("rope", "ntk"): (
        (1.88, 1.64, 1.522, 1.62, 2.18, 3.31),
        (2.22, 1.84, 1.608, 1.636, 1.953, 2.700),
        (0.61, 0.44, 0.22),
    ),
    ("rope", "rerope+logn"): (
        (1.88, 1.64, 1.522, 1.472, 1.441, 1.458),
        (2.22, 1.84, 1.608, 1.605, 1.611, 1.624),
        (0.71, 0.76, 0.74),
    ),
    ("rope", "pi"): (
        (1.88, 1.64, 1.522, 2.74, 3.62, 4.31),
        (2.22, 1.84, 1.608, 2.569, 3.437, 3.855),
        (0.14, 0.08, 0.05),
    ),
    ("rope", "window"): (
        (1.88, 1.64, 1.522, 1.523, 1.523, 1.524),
        (2.22, 1.84, 1.608, 1.590, 1.582, 1.577),
        (0.49, 0.49, 0.49),
    ),
}

LARGE_LENGTHS = (512, 1024, 2048, 4096, 8192)

# Bits per byte of the 10.8 M model, non-overlapping, then on the same last 64 bytes, at LARGE_LENGTHS.
LARGE = {
    ("rope", "as trained"): ((1.144, 1.757, 3.021, 3.976, 4.630), (0.929, 3.409, 4.506, 5.023, 5.383)),
    ("sinusoidal", "as trained"): ((1.229, 3.646, 5.039, 5.801, 6.165), (1.017, 6.102, 6.456, 6.609, 6.245)),
    ("none", "as trained"): ((1.464, 1.790, 3.022, 3.921, 4.517), (1.233, 3.259, 4.500, 4.859, 5.109)),
    ("alibi", "as trained"): ((1.132, 1.060, 1.018, 0.996, 0.985), (0.910, 0.882, 0.874, 0.875, 0.875)),
    ("kerple", "as trained"): ((1.150, 1.080, 1.038, 1.020, 1.014), (0.935, 0.900, 0.875, 0.885, 0.919)),
    ("sandwich", "as trained"): ((1.170, 1.105, 1.065, 1.043, 1.031), (0.972, 0.946, 0.922, 0.923, 0.939)),
    ("t5", "as trained"): ((1.175, 1.108, 1.092, 1.212, 1.728), (0.954, 0.940, 1.010, 1.467, 2.817)),
    ("rope", "pi"): ((1.144, 2.862, 4.471, 5.310, 5.710), (0.929, 2.642, 4.404, 5.341, 5.717)),
    ("rope", "ntk"): ((1.144, 1.166, 1.645, 2.369, 3.147), (0.929, 1.665, 3.515, 4.313, 4.761)),
    ("rope", "yarn"): ((1.144, 1.120, 1.234, 1.516, 2.033), (0.929, 0.949, 1.124, 1.470, 2.295)),
    ("rope", "yarn-beta8"): ((1.144, 1.098, 1.159, 1.347, 1.836), (0.929, 0.926, 1.060, 1.345, 2.289)),
    ("rope", "logn"): ((1.144, 1.718, 2.915, 3.833, 4.497), (0.929, 3.254, 4.333, 4.848, 5.119)),
    ("rope", "rerope"): ((1.144, 1.072, 1.033, 1.036, 1.089), (0.922, 0.892, 0.885, 0.942, 1.099)),
    ("rope", "rerope+logn"): ((1.144, 1.071, 1.025, 1.003, 0.996), (0.922, 0.884, 0.856, 0.861, 0.902)),
    ("rope", "window"): ((1.144, 1.082, 1.051, 1.036, 1.027), (0.929, 0.929, 0.929, 0.929, 0.929)),
}

# Exact match of copying, trained to 20; then token accuracy at the last length.
COPY_LENGTHS = (20, 21, 22, 24, 26, 40)
COPY = {
    "none": ((1.00, 1.00, 0.98, 0.27, 0.00, 0.00), 0.10),
    "alibi": ((1.00, 0.99, 0.86, 0.00, 0.00, 0.00), 0.52),
    "t5": ((1.00, 0.96, 0.80, 0.00, 0.00, 0.00), 0.15),
    "rope": ((0.99, 0.15, 0.00, 0.00, 0.00, 0.00), 0.07),
    "sinusoidal": ((1.00, 0.00, 0.00, 0.00, 0.00, 0.00), 0.05),
}

SETTINGS: dict[str, dict[str, Any]] = {
    "rope": {"head_dim": 32, "base": 10000.0, "layout": "half", "scaling": None},
    "sinusoidal": {"width": 128, "base": 10000.0, "order": "interleaved", "scale": 1.0},
    "alibi": {"heads": 4, "slopes": "press", "form": "causal", "offset": None},
    "kerple": {"heads": 4, "variant": "log"},
    "t5": {"heads": 4, "buckets": 32, "max_distance": 32, "length": 64, "scaled": True},
    "sandwich": {"heads": 4, "width": 128},
    "learned": {"width": 128, "length": 64},
}
FLAGS = {
    "rope": (True, True, True, False, False),
    "sinusoidal": (False, False, True, False, False),
    "alibi": (True, True, False, True, True),
    "kerple": (True, True, False, True, True),
    "t5": (True, True, False, False, False),
    "none": (True, True, True, False, False),
    "sandwich": (True, True, False, True, True),
    "learned": (False, False, True, False, False),
}
SHARES = ("repeated_text_accuracy", "retrieval_accuracy")
CLAIMS = ("relative", "norm_preserving", "linear_attention", "decays", "extrapolates")
ENVIRONMENT = {
    "date": "2026-08-23T10:12:31+00:00",
    "python": "3.11.7",
    "torch": "2.13.0+cpu",
    "numpy": "2.3.1",
    "whorl": "0.1.0",
    "platform": "Linux-6.8-x86_64-with-glibc2.36",
    "cpu": "AMD EPYC 9B14",
    "cores": 2,
    "torch_threads": 2,
    "gpu": None,
    "load": 0.41,
}


def cell(mean: float, half: float = 0.0, n: int = 3) -> dict[str, Any]:
    """A mean with an interval of this half-width."""
    return {"mean": mean, "low": mean - half, "high": mean + half, "n": n}


def row(label: str, variant: str = "as trained", *, seeds: int = 3, **more: Any) -> dict[str, Any]:
    """A row of a comparison, with what every row carries."""
    return {
        "label": label,
        "variant": variant,
        "encoding": {"name": label, **SETTINGS.get(label, {})},
        "seeds": list(range(seeds)),
        "parameters": 613_376,
        "encoding_parameters": {"kerple": 8, "t5": 128, "learned": 8192}.get(label, 0),
        "tokens_per_second": 21_000.0 - 137 * len(label),
        "peak_memory_bytes": 123_456_789,
        "claims": dict(zip(CLAIMS, FLAGS.get(label, (False,) * 5), strict=True)),
        "warnings": [],
        "by_length": [],
        "learning_curve": [],
        "task": None,
        **more,
    }


def losses(
    label: str, values: dict[int, float | None], variant: str = "as trained", trained: int = 64, **more: Any
) -> dict[str, Any]:
    """A row with these losses in bits on the same last tokens, for verdicts on crafted cases."""
    by_length = [
        {
            "length": length,
            "ratio": length / trained,
            "bits_per_byte": {"same_last": None if value is None else cell(value)},
            "repeated_text_accuracy": None,
            "retrieval_accuracy": None,
        }
        for length, value in values.items()
    ]
    return row(label, variant, by_length=by_length, **more)


def comparison(rows: list[dict[str, Any]], trained: int = 64, **more: Any) -> dict[str, Any]:
    """A comparison of these rows."""
    lengths = sorted({entry["length"] for row in rows for entry in row["by_length"]})
    return {
        "schema": "whorl-lab-comparison/1",
        "title": "Six encodings on standard-library sources",
        "created": "2026-08-23T10:15:00+00:00",
        "train_length": trained,
        "lengths": lengths,
        "corpus": {"name": "stdlib", "train_bytes": 9_437_184, "test_bytes": 1_048_576, "documents": 412},
        "rows": rows,
        "command": "whorl compare sinusoidal rope alibi kerple t5 none --preset demo --seeds 3",
        "results": [f"runs/{i:012x}/result.json" for i in range(7919, 7919 * 19, 7919)],
        "environment": dict(ENVIRONMENT),
        **more,
    }


def judged(data: dict[str, Any], half: float = 0.07, share: float = 0.05) -> dict[str, Any]:
    """The comparison with paired differences of its means, each with an interval of these half-widths."""
    values: dict[str, dict[tuple[str, str], dict[int, float]]] = {}
    for each in data["rows"]:
        own = (each["label"], each.get("variant", "as trained"))
        tables = {own: [*each.get("by_length", ()), *(each.get("task") or {}).get("by_length", ())]}
        if each.get("window_baseline"):
            tables[own[0], "window"] = each["window_baseline"]["by_length"]
        for key, entries in tables.items():
            for entry in entries:
                scores = {name: entry.get(name) for name in (*SHARES, "exact_match")}
                scores |= {"same_last": entry.get("bits_per_byte", {}).get("same_last")}
                for measure, value in scores.items():
                    mean = value["mean"] if isinstance(value, dict) else value
                    if mean is not None and math.isfinite(mean):
                        values.setdefault(measure, {}).setdefault(key, {})[entry["length"]] = mean
    found, trained = [], data["train_length"]
    base = None
    for measure, rows in values.items():
        lengths = sorted({length for row in rows.values() for length in row})
        start = max((length for length in lengths if length <= trained), default=lengths[0])
        models = [key for key in rows if key[1] == "as trained"]
        sign = 1 if measure == "same_last" else -1
        base = base or min(models, key=lambda key: sign * rows[key].get(start, math.inf), default=None)
        wanted = [("encoding", key, base, n, n) for key in models if key != base for n in lengths]
        for key in rows:
            if key[1] != "window":
                wanted += [("window", key, (key[0], "window"), n, n) for n in lengths]
                wanted += [("length", key, key, n, start) for n in lengths if n > start]
            if key[1] not in ("window", "as trained"):
                wanted += [("repair", key, (key[0], "as trained"), n, n) for n in lengths]
            wanted += [("published", key, other, n, n) for other in rows if other != key for n in lengths]
        for kind, key, other, length, start_at in wanted:
            one, two = rows[key].get(length), rows.get(other, {}).get(start_at)
            if one is not None and two is not None:
                wide = half if measure == "same_last" else share
                found.append(difference(kind, measure, key, other, length, start_at, one - two, wide))
    return {**data, "differences": found, "baseline": base and base[0]}


def difference(kind, measure, row, other, length, start, mean, half) -> dict[str, Any]:  # type: ignore[no-untyped-def]
    """An entry of ``differences``."""
    return {
        "kind": kind,
        "measure": measure,
        "row": list(row),
        "other": list(other),
        "length": length,
        "from_length": start,
        "mean": mean,
        "low": mean - half,
        "high": mean + half,
        "p": 0.01 if abs(mean) > half else 0.5,
        "least": 1.5 * half,
        "seeds": 3,
        "samples": 128,
        "scored_bytes": 8192,
    }


def curve(end: float, steps: int = 500) -> list[dict[str, float]]:
    """A learning curve from even guessing over bytes down to this loss in nats, with some unrest."""
    start = math.log(256)
    return [
        {
            "step": step,
            "loss": end + (start - end) * math.exp(-step / (0.07 * steps)) + 0.03 * math.sin(step * 1.7) + 0.4 / step,
        }
        for step in range(5, steps + 1, 5)
    ]


def demo(seeds: int = 3) -> dict[str, Any]:
    """Six encodings and four repairs of RoPE, trained at 64."""
    rows = []
    for (label, variant), (same, blocks, recall) in DEMO.items():
        by_length = []
        for i, length in enumerate(DEMO_LENGTHS):
            calm = 0.012 if same[i] < 2 else 0.11
            slide = (2 * same[i] + blocks[i]) / 3
            by_length.append(
                {
                    "length": length,
                    "ratio": length / 64,
                    "bits_per_byte": {
                        "non_overlapping": cell(blocks[i] * BITS, calm, seeds),
                        "sliding": cell(slide * BITS, calm * 1.3, seeds),
                        "same_last": cell(same[i] * BITS, calm * 2, seeds),
                    },
                    "repeated_text_accuracy": cell(recall[i - 3], 0.015, seeds) if i >= 3 else None,
                    "retrieval_accuracy": None,
                }
            )
        learning = curve(blocks[2]) if variant == "as trained" else []
        rows.append(row(label, variant, seeds=seeds, by_length=by_length, learning_curve=learning))
    return comparison(rows, interval="seeds" if seeds > 1 else "documents")


def large() -> dict[str, Any]:
    """Seven encodings and eight repairs of RoPE, trained at 512; one seed."""
    rows = []
    for (label, variant), (blocks, same) in LARGE.items():
        by_length = [
            {
                "length": length,
                "ratio": length / 512,
                "bits_per_byte": {
                    "non_overlapping": cell(block, 0.01, 1),
                    "sliding": cell((block + 2 * last) / 3, 0.01, 1),
                    "same_last": cell(last, 0.02, 1),
                },
                "repeated_text_accuracy": None,
                "retrieval_accuracy": None,
            }
            for length, block, last in zip(LARGE_LENGTHS, blocks, same, strict=True)
        ]
        learning = curve(blocks[0] / BITS, 1500) if variant == "as trained" else []
        rows.append(row(label, variant, seeds=1, by_length=by_length, learning_curve=learning, parameters=10_817_280))
    for each in rows:
        if each["label"] == "t5":
            each["encoding"] |= {"max_distance": 256, "length": 512}
    return comparison(rows, 512, title="10.8 M parameters on Python sources", interval="documents")


def copying() -> dict[str, Any]:
    """The copy task, trained to length 20; no text."""
    rows = []
    for label, (exact, last) in COPY.items():
        by_length = [
            {
                "length": length,
                "exact_match": share,
                "token_accuracy": 1 - (1 - last) * (length - 20) / 20 if share < 1 else 1.0,
                "items": 256,
            }
            for length, share in zip(COPY_LENGTHS, exact, strict=True)
        ]
        task = {"name": "copy", "by_length": by_length}
        rows.append(row(label, seeds=1, task=task, learning_curve=curve(0.05, 2500)))
    return comparison(rows, 20, title="Copying", corpus={"name": "task:copy"})


def with_gaps() -> dict[str, Any]:
    """The demo with learned positions, which end at 64, and a loss that is not finite from 256 on."""
    data = demo()
    base = next(row for row in data["rows"] if row["label"] == "sinusoidal")
    learned = {**base, "label": "learned", "encoding": {"name": "learned", **SETTINGS["learned"]}, "by_length": []}
    learned["warnings"] = ["learned: no position past 64 has a row: longer texts are left out"]
    for entry in base["by_length"]:
        if entry["length"] <= 64:
            learned["by_length"].append(entry)
        else:
            gap = dict.fromkeys(("non_overlapping", "sliding", "same_last"))
            learned["by_length"].append({**entry, "bits_per_byte": gap, "repeated_text_accuracy": None})
    data["rows"].append(learned)
    for entry in base["by_length"]:
        if entry["length"] >= 256:
            for value in entry["bits_per_byte"].values():
                value.update(mean=math.nan, low=math.nan, high=math.inf)
    return data
