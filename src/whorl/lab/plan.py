"""From names and a few settings to the configs of all runs of a comparison."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from whorl.errors import WhorlError, invalid, unknown
from whorl.lab import repairs as known_repairs
from whorl.lab.corpus import pack, read_corpus
from whorl.lab.presets import lengths_for, preset
from whorl.lab.runs import RESULT, check_output, space_needed
from whorl.lab.settings import RunConfig
from whorl.registry import encoding_class

USUAL = "laptop"  # whose sizes are taken where no preset is named


def read_name(text: str) -> dict[str, Any]:
    """An encoding as it is written on a command line: its name, settings behind a colon, parts joined by ``+``.

    >>> read_name("rope:base=500000,rotary_dim=16")
    {'name': 'rope', 'base': 500000, 'rotary_dim': 16}
    >>> [part["name"] for part in read_name("rope+alibi")["parts"]]
    ['rope', 'alibi']
    """
    if "+" in text:
        return {"name": "combined", "parts": [read_name(part) for part in text.split("+")]}
    name, _, rest = text.partition(":")
    encoding_class(name)
    settings: dict[str, Any] = {"name": name}
    for pair in filter(None, rest.split(",")):
        key, equals, value = pair.partition("=")
        if not equals:
            raise WhorlError(f"compare: {pair!r} of {text!r} is no setting. Write {name}:key=value,key=value.")
        try:
            settings[key] = json.loads(value)
        except json.JSONDecodeError:
            settings[key] = value
    return settings


def read_names(names: Sequence[str | dict[str, Any]]) -> list[dict[str, Any]]:
    """Encodings given by name, by name and settings in one word, or as dicts."""
    if isinstance(names, (str, bytes)) or not isinstance(names, Sequence):
        raise invalid("compare", "names", "a list of encodings", names, "Write ['rope', 'alibi'].")
    return [dict(name) if isinstance(name, dict) else read_name(name) for name in names]


def with_usual(encoding: dict[str, Any], **sizes: int) -> dict[str, Any]:
    """An encoding with the settings that make a fair comparison at these sizes, where it does not say its own.

    A sinusoidal code is scaled to the size of embeddings, which it would drown. T5's far buckets begin within half the
    trained length: beyond it they would be read before they are trained.

    >>> with_usual({"name": "t5"}, length=64, width=128)
    {'buckets': 32, 'max_distance': 32, 'name': 't5'}
    """
    if encoding["name"] == "combined":
        return {**encoding, "parts": [with_usual(part, **sizes) for part in encoding["parts"]]}
    half = sizes["length"] // 2
    usual: dict[str, dict[str, Any]] = {
        "sinusoidal": {"scale": round(sizes["width"] ** -0.5, 6)},
        "t5": {"buckets": min(32, half), "max_distance": half} if half > 1 else {},
    }
    return {**usual.get(encoding["name"], {}), **encoding}


def plan(
    names: Sequence[str | dict[str, Any]] | None = None,
    *,
    out: str | Path,
    preset_name: str | None = None,
    corpus: str | None = None,
    train_length: int | None = None,
    lengths: Sequence[int] | None = None,
    steps: int | None = None,
    batch: int | None = None,
    stages: Sequence[Sequence[int]] | None = None,
    seeds: int | Sequence[int] = 1,
    repairs: Sequence[str] | None = None,
    **run: Any,
) -> list[RunConfig]:
    """The config of every run of a comparison, all of them checked against the text, which is packed under ``out``.

    What is not given is the preset's. ``run`` are further settings of ``RunConfig``, as layers, width, learning_rate.
    """
    usual = preset(preset_name or USUAL)
    encodings = read_names(usual.encodings if not names and preset_name else names or [])
    if not encodings:
        raise WhorlError("compare: no encodings. Name some, as in rope alibi, or a preset, which has its own.")
    if stages is not None and (train_length or steps or batch):
        raise WhorlError(
            "compare: stages say length, batch and steps already. Leave train_length, steps and batch out."
        )
    stages = stages or [(train_length or usual.train_length, batch or usual.batch, steps or usual.steps)]
    trained = stages[-1][0]
    settings: dict[str, Any] = {
        "layers": usual.layers,
        "width": usual.width,
        "heads": usual.heads,
        "eval_bytes": usual.eval_bytes,
        **(usual.run if preset_name else {}),
        **run,
    }
    for key in settings:
        if key not in RunConfig.fields():
            raise unknown("setting", key, RunConfig.fields(), call="compare")
    settings |= {
        "corpus": corpus or usual.corpus,
        "stages": tuple(tuple(stage) for stage in stages),
        "lengths": tuple(lengths or lengths_for(trained, usual.longest)),
    }
    if settings["corpus"].startswith("task:"):
        settings |= _task_settings(settings, lengths, trained)
    else:
        settings["corpus"] = _absolute(settings["corpus"])
    wanted = usual.repairs if repairs is None and preset_name else tuple(repairs or ())
    for name in wanted:
        known_repairs.check(name)
    sizes = RunConfig(encoding={"name": "none"}, **settings).sizes
    encodings = [with_usual(one, **sizes) for one in encodings]
    configs = [_config(encoding, settings, wanted, seed) for encoding in encodings for seed in _seeds(seeds)]
    return _on_text(configs, Path(out))


def usual_rate(encoding: dict[str, Any], head_dim: int) -> float:
    """How many times the rate what an encoding learns is learned at: ``head_dim`` for T5's table, once for the others.

    T5 does not divide scores by sqrt(d), and a number of its table counts as much as one of d products: at the rate of
    the weights it hardly moves in a short run, and a model with it is one without position.

    >>> usual_rate({"name": "t5"}, head_dim=32), usual_rate({"name": "kerple"}, head_dim=32)
    (32.0, 1.0)
    """
    parts = encoding.get("parts", [encoding])
    return float(head_dim) if any(part["name"] == "t5" and not part.get("scaled") for part in parts) else 1.0


def _config(encoding: dict[str, Any], settings: dict[str, Any], repairs: Sequence[str], seed: int) -> RunConfig:
    rate: dict[str, Any] = {"encoding_rate": usual_rate(encoding, settings["width"] // settings["heads"])}
    plain = RunConfig(encoding=encoding, seed=seed, **rate | settings)
    own = tuple(
        name for name in repairs if plain.encoding["name"] == "rope" and known_repairs.serves(name, plain.encoding)
    )
    return plain.replace(repairs=own) if own and plain.text else plain


def _task_settings(settings: dict[str, Any], lengths: Sequence[int] | None, trained: int) -> dict[str, Any]:
    from whorl.lab.tasks import task

    own = task(settings["corpus"].removeprefix("task:"))
    reached = [trained, *(trained + max(1, trained * share // 20) for share in (1, 2, 4, 6, 10, 20))]
    return {"vocab": own.vocab, "lengths": tuple(lengths or (n for n in reached if n <= (own.most or n)))}


def _absolute(corpus: str) -> str:
    """The same corpus from wherever a worker runs."""
    if corpus in ("stdlib", "site-packages"):
        return corpus
    return str(Path(corpus).expanduser().absolute())


def _seeds(seeds: int | Sequence[int]) -> list[int]:
    if isinstance(seeds, bool) or (isinstance(seeds, int) and seeds < 1):
        raise invalid("compare", "seeds", "how many, or a list of them", seeds)
    return list(range(seeds)) if isinstance(seeds, int) else list(seeds)


def _on_text(configs: list[RunConfig], out: Path) -> list[RunConfig]:
    """The configs with the digest of their text, which is packed under ``out`` once everything is known to fit."""
    from whorl.lab.batches import TextBatches

    corpus, needed = None, 0
    if configs[0].text:
        corpus = read_corpus(configs[0].corpus)
        TextBatches(corpus, configs[0])
        corpus.samples(max(configs[0].lengths), 1)
        configs = [config.replace(corpus_digest=corpus.digest) for config in configs]
        needed = len(corpus.train) + len(corpus.test)
    unfinished = [config for config in configs if not (out / "runs" / config.id / RESULT).exists()]
    check_output(out, needed + sum(space_needed(config) for config in unfinished) if unfinished else 0)
    if corpus is not None:
        pack(corpus, out / "corpus")
    return configs
