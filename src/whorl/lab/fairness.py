"""Fairness: a comparison is of runs that are equal in everything but what is compared.

What is compared is the encoding, the seed, or a factor that is named, as a sweep names those of its grid. Beside the
encoding may differ what follows from it: the repairs tried on it, and the rate that its own numbers are learned at
where that is the usual one; as may the usual warm-up of runs of different steps. A text or a tokenizer may lie under
two names.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from whorl.errors import WhorlError, unknown
from whorl.lab.plan import usual_rate
from whorl.lab.recipe import usual_warmup
from whorl.lab.settings import RunConfig, in_full

COMPARED = ("name", "encoding", "seed", "repairs")
STAGE = ("train_length", "batch", "steps")  # what the numbers of a stage are called where all runs have one
USUAL = ("encoding_rate", "warmup")  # settings whose usual value follows from others
ROTARY = ("base", "scaling")  # factors of a sweep that are settings of the encoding
FOLLOW = {"corpus": ("corpus_digest",), "tokenizer": ("tokenizer_digest", "vocab")}  # what is another with a file
DIGESTS = ("corpus_digest", "tokenizer_digest")
FACTORS = (*(key for key in RunConfig.fields() if key not in (*COMPARED, *DIGESTS)), *STAGE, *ROTARY)

Config = Mapping[str, Any]


def differing(configs: Sequence[Config], factors: Iterable[str] = ()) -> dict[str, list[Any]]:
    """The settings in which runs differ though nobody asked for it, each with its values in the order they occur.

    >>> differing([{"layers": 1, "seed": 0}, {"layers": 2, "seed": 1}])
    {'layers': [1, 2]}
    """
    known = [_settings(config) for config in configs]
    free = {*COMPARED, *factors, *(what for factor in factors for what in FOLLOW.get(factor, ()))}
    free |= {key for key in FOLLOW if _same_file([(config[key], config[f"{key}_digest"]) for config in known])}
    out: dict[str, list[Any]] = {}
    for key in dict.fromkeys(key for config in known for key in config):
        distinct = _distinct(config.get(key) for config in known)
        said = _distinct(config[key] for config in configs if key in config)  # one for all, whatever is usual of each
        if len(distinct) > 1 and not (len(said) == 1 and key in USUAL) and key not in free:
            out[key] = distinct
    return out


def _same_file(found: Sequence[tuple[str, str]]) -> bool:
    """Whether files of (name, digest) are one, whatever they are called; tasks have names alone."""
    return len({digest for _, digest in found}) == 1 and not any(name.startswith("task:") for name, _ in found)


def _distinct(values: Iterable[Any]) -> list[Any]:
    return list({json.dumps(value, sort_keys=True): value for value in values}.values())


def check_fair(
    configs: Sequence[Config], factors: Iterable[str] = (), *, unequal: bool = False
) -> dict[str, list[Any]]:
    """What differs between runs beside what is compared; a WhorlError lists it unless ``unequal`` runs are meant."""
    factors = tuple(factors)
    for factor in factors:
        if factor not in FACTORS:
            raise unknown("factor", factor, FACTORS, call="lab")
    found = differing(configs, factors)
    if found and not unequal:
        said = "; ".join(f"{key} {' and '.join(map(_short, values))}" for key, values in found.items())
        raise WhorlError(
            f"lab: these runs are not equal in all but the encoding: {said}. Keep them in folders of their own, name "
            "what is compared with --factor, or pass --unequal to have the comparison say so at its top."
        )
    return found


def _settings(config: Config) -> dict[str, Any]:
    """The settings of a run with the defaults of what an older version did not write, and one stage by its parts."""
    out = in_full(config)
    stages = out.pop("stages")
    if out["warmup"] == usual_warmup(sum(steps for _, _, steps in stages)):
        out["warmup"] = "usual"
    if len(stages) == 1:
        out |= dict(zip(STAGE, stages[0], strict=True))
    else:
        out["stages"] = stages
    if "encoding" in out and out["encoding_rate"] == usual_rate(out["encoding"], out["width"] // out["heads"]):
        out["encoding_rate"] = "usual"
    return out


def _short(value: Any) -> str:
    said = value if isinstance(value, str) else json.dumps(value)
    return said if len(said) <= 60 else f"{said[:57]}…"
