"""From names and a few settings to the configs of all runs of a comparison."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from whorl.config import written
from whorl.errors import WhorlError, invalid, unknown
from whorl.lab import repairs as known_repairs
from whorl.lab.corpus import Corpus, pack, read_corpus
from whorl.lab.load import check_device, make_model
from whorl.lab.presets import Preset, lengths_for, preset
from whorl.lab.run_one import check_text
from whorl.lab.settings import MADE_OF, PLAN, RunConfig, leaves
from whorl.lab.storage import RESULT, check_output, is_there, space_needed
from whorl.lab.tasks import task
from whorl.lab.tokens import Tokenizer, open_tokens, tokenized
from whorl.registry import encoding_class, scaling_class

USUAL = "laptop"  # whose sizes are taken where no preset is named

# What of a run is not a setting of its own here, and what it is made from.
MADE_FROM = {
    "encoding": "the encodings that are named",
    "seed": "seeds",
    "corpus_digest": "the text of corpus",
    "tokenizer_digest": "the file of tokenizer",
}
SETTINGS = (*(key for key in RunConfig.fields() if key not in MADE_FROM), "train_length", "steps", "batch")


def check_names(settings: Iterable[str], call: str) -> None:
    """Raises a WhorlError for a name that is no setting of a run, or that another setting decides."""
    for key in settings:
        if key in MADE_FROM:
            raise WhorlError(f"{call}: {key} is no setting of its own. It comes from {MADE_FROM[key]}.")
        if key not in SETTINGS:
            raise unknown("setting", key, SETTINGS, call=call)


def read_name(text: str) -> dict[str, Any]:
    """An encoding as it is written on a command line: its name, settings behind a colon, parts joined by ``+``.

    Behind ``scaling=`` stand settings of the scaling as well. ``/`` stands between layers, ``*`` behind those that come
    several times, and the whole is repeated over the model; with ``*`` alone, ``+`` stands between layers too.

    >>> read_name("rope:base=500000,rotary_dim=16")
    {'name': 'rope', 'base': 500000, 'rotary_dim': 16}
    >>> [part["name"] for part in read_name("rope+alibi")["parts"]]
    ['rope', 'alibi']
    >>> read_name("rope:scaling=yarn,factor=4")["scaling"]
    {'name': 'yarn', 'factor': 4}
    >>> [layer["name"] for layer in read_name("rope*3+none")["layers"]]
    ['rope', 'rope', 'rope', 'none']
    """
    if "/" in text or "*" in text:
        groups = text.split("/") if "/" in text else text.split("+")
        return {"name": PLAN, "layers": [layer for group in groups for layer in _layers(group, text)]}
    if "+" in text:
        return {"name": "combined", "parts": [read_name(part) for part in text.split("+")]}
    name, _, rest = text.partition(":")
    encoding_class(name)
    settings: dict[str, Any] = {"name": name}
    for pair in filter(None, rest.split(",")):
        key, equals, value = pair.partition("=")
        if not equals:
            raise WhorlError(f"compare: {pair!r} of {text!r} is no setting. Write {name}:key=value,key=value.")
        settings[key] = written(value)
    return _with_scaling(settings)


def _layers(group: str, text: str) -> list[dict[str, Any]]:
    name, star, times = group.partition("*")
    if star and not (times.isdecimal() and int(times) > 0):
        raise WhorlError(f"compare: {times!r} in {text!r} is no number of layers. Write rope*3/none, say.")
    return [read_name(name)] * (int(times) if star else 1)


def _with_scaling(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings with those of a scaling that is given by its name moved into it."""
    if not isinstance(settings.get("scaling"), str):
        return settings
    own, scaling = encoding_class(settings["name"]).Config.fields(), {"name": settings["scaling"]}
    fields = scaling_class(scaling["name"]).fields()
    for key in settings:
        if key not in (*own, *fields, "name"):
            raise unknown("setting", key, (*own, *fields), call=f"{settings['name']} with {scaling['name']}")
    moved = {key: value for key, value in settings.items() if key not in own and key in fields}
    kept = {key: value for key, value in settings.items() if key not in moved}
    return {**kept, "scaling": scaling | moved}


def read_names(names: Sequence[str | dict[str, Any]]) -> list[dict[str, Any]]:
    """Encodings given by name, by name and settings in one word, or as dicts."""
    if isinstance(names, (str, bytes)) or not isinstance(names, Sequence):
        raise invalid("compare", "names", "a list of encodings", names, "Write ['rope', 'alibi'].")
    return [_read(name) for name in names]


def _read(name: Any) -> dict[str, Any]:
    if isinstance(name, str):
        return read_name(name)
    if not isinstance(name, dict) or not isinstance(name.get("name"), str):
        raise invalid("compare", "an encoding", "a name, or a dict with one under 'name'", name)
    for key, kind in MADE_OF.items():
        if name["name"] == kind and isinstance(name.get(key), (list, tuple)):
            return {**name, key: [_read(part) for part in name[key]]}
    return dict(name)


def with_usual(encoding: dict[str, Any], **sizes: int) -> dict[str, Any]:
    """An encoding with the settings that make a fair comparison at these sizes, where it does not say its own.

    A sinusoidal code is divided by the square root of the width, which leaves it some three times as large as new
    embeddings at width 128, and not so large that they drown. T5's far buckets begin within half the trained length:
    beyond it they would be read before they are trained. A scaling is of the trained length.

    >>> with_usual({"name": "t5"}, length=64, width=128)
    {'buckets': 32, 'max_distance': 32, 'name': 't5'}
    """
    for key, name in MADE_OF.items():
        if encoding["name"] == name:
            return {**encoding, key: [with_usual(part, **sizes) for part in encoding.get(key, ())]}
    half = sizes["length"] // 2
    scaling = encoding.get("scaling")
    if isinstance(scaling, dict) and "original_length" in scaling_class(scaling["name"]).required():
        encoding = {**encoding, "scaling": {"original_length": sizes["length"], **scaling}}
    usual: dict[str, dict[str, Any]] = {
        "sinusoidal": {"scale": round(sizes["width"] ** -0.5, 6)},
        "t5": {"buckets": min(32, half), "max_distance": half} if half > 1 else {},
    }
    return {**usual.get(encoding["name"], {}), **encoding}


def plan(
    names: Sequence[str | dict[str, Any]] | None = None, *, out: str | Path, on: str = "here", **settings: Any
) -> list[RunConfig]:
    """The config of every run of a comparison, all of them checked against the text, which is packed under ``out``.

    ``settings`` are those of ``configure``. ``on`` is where runs are to be made.
    """
    return prepare(configure(names, **settings), out, on=on)


def configure(
    names: Sequence[str | dict[str, Any]] | None = None,
    *,
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
    """The config of every run of a comparison; no text is read yet, and nothing written.

    What is not given is the preset's. ``run`` are further settings of ``RunConfig``, as layers, width, learning_rate.
    """
    usual = preset(preset_name or USUAL)
    encodings = read_names(usual.encodings if not names and preset_name else names or [])
    if not encodings:
        raise WhorlError("compare: no encodings. Name some, as in rope alibi, or a preset, which has its own.")
    check_names(run, "compare")
    if stages is not None and not train_length is steps is batch is None:
        raise WhorlError(
            "compare: stages say length, batch and steps already. Leave train_length, steps and batch out."
        )
    if stages is None:
        sizes = ((train_length, usual.train_length), (batch, usual.batch), (steps, usual.steps))
        stages = [[own if given is None else given for given, own in sizes]]
    settings: dict[str, Any] = {
        "layers": usual.layers,
        "width": usual.width,
        "heads": usual.heads,
        "eval_bytes": usual.eval_bytes,
        **(_preset_settings(usual, corpus, run) if preset_name else {}),
        **run,
        "corpus": _corpus_name(usual.corpus if corpus is None else corpus),
        "stages": stages,
    }
    settings |= _tokenizer_settings(settings)
    plain = RunConfig(encoding={"name": "none"}, **settings)  # which checks what lengths are measured against
    if lengths is not None and not lengths:
        raise invalid("compare", "lengths", "at least one", lengths)
    settings["lengths"] = lengths_for(plain.train_length, usual.longest) if lengths is None else lengths
    if preset_name and lengths is None and plain.text:
        settings.setdefault("last", plain.train_length)  # so many that a difference can be seen
    if not plain.text:
        settings |= _task_settings(plain, lengths)
    wanted = _repairs(usual.repairs if repairs is None and preset_name else repairs or ())
    plain = RunConfig(encoding={"name": "none"}, **settings)
    settings["lengths"] = plain.lengths
    encodings = [with_usual(one, **plain.sizes) for one in encodings]
    own = _takers(wanted, [plain.replace(encoding=one).encoding for one in encodings], given=repairs is not None)
    if plain.fine_tune_steps and not plain.text:
        raise WhorlError("compare: fine-tuning reads longer text, and a task has none. Leave fine_tune_steps out.")
    configs = []
    for encoding, tried in zip(encodings, own, strict=True):
        rate: dict[str, Any] = {"encoding_rate": usual_rate(encoding, plain.head_dim)}
        configs += [RunConfig(encoding=encoding, seed=one, repairs=tried, **rate | settings) for one in _seeds(seeds)]
    return configs


def usual_rate(encoding: dict[str, Any], head_dim: int) -> float:
    """How many times the rate what an encoding learns is learned at: ``head_dim`` for T5's table, once for the others.

    T5 does not divide scores by sqrt(d), and a number of its table counts as much as one of d products: at the rate of
    the weights it hardly moves in a short run, and a model with it is one without position.

    >>> usual_rate({"name": "t5"}, head_dim=32), usual_rate({"name": "kerple"}, head_dim=32)
    (32.0, 1.0)
    """
    return float(head_dim) if any(one["name"] == "t5" and not one.get("scaled") for one in leaves(encoding)) else 1.0


def _preset_settings(usual: Preset, corpus: str | None, run: dict[str, Any]) -> dict[str, Any]:
    """The further settings of a preset, without marks where there are no bytes to write them in."""
    no_bytes = run.get("tokenizer") or (corpus or usual.corpus).startswith("task:")
    return {key: value for key, value in usual.run.items() if key != "recall" or not no_bytes}


def _tokenizer_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """The file of a tokenizer from wherever a worker runs, what it hashes to, and its vocabulary."""
    file = settings.get("tokenizer")
    if not file:
        return {}
    if "vocab" in settings:
        raise WhorlError("compare: vocab comes from the tokenizer. Leave one of them out.")
    if not isinstance(file, str):
        raise invalid("compare", "tokenizer", "a tokenizer.json", file)
    found = Tokenizer(file)
    path = str(Path(file).expanduser().absolute())
    return {"tokenizer": path, "tokenizer_digest": found.digest, "vocab": found.vocab}


def _takers(names: Sequence[str], encodings: Sequence[dict[str, Any]], *, given: bool) -> list[tuple[str, ...]]:
    """The repairs to try on each encoding: on rotary ones, or on all that can take it where none is rotary.

    A repair that was asked for and that no encoding can take raises a WhorlError.
    """
    own: list[list[str]] = [[] for _ in encodings]
    for name in names:
        able = [place for place, one in enumerate(encodings) if known_repairs.serves(name, one)]
        layers = [encodings[place].get("layers", [encodings[place]]) for place in able]
        rotary = [place for place, own in zip(able, layers, strict=True) if any(one["name"] == "rope" for one in own)]
        if given and not able:
            here = ", ".join(one["name"] for one in encodings)
            raise WhorlError(
                f"compare: repair {name} takes the place of plain rope, and none is among {here}. "
                "Add rope, or leave it out."
            )
        for place in rotary or (able if given else ()):
            own[place].append(name)
    return [tuple(one) for one in own]


def _task_settings(plain: RunConfig, lengths: Sequence[int] | None) -> dict[str, Any]:
    own, trained = task(plain.task_name), plain.train_length
    reached = [trained, *(trained + max(1, trained * share // 20) for share in (1, 2, 4, 6, 10, 20))]
    return {"vocab": own.vocab, "lengths": tuple(lengths or (n for n in reached if n <= (own.most or n)))}


def _repairs(names: Any) -> tuple[str, ...]:
    if isinstance(names, (str, bytes)) or not all(isinstance(name, str) for name in names):
        raise invalid("compare", "repairs", "a list of names", names, "Write ['ntk', 'window'].")
    for name in names:
        known_repairs.check(name)
    return tuple(dict.fromkeys(names))


def _corpus_name(corpus: Any) -> str:
    """The same corpus from wherever a worker runs."""
    if not isinstance(corpus, str) or not corpus:
        raise invalid("compare", "corpus", "a name, a file or a folder", corpus, "Leave it out for the usual text.")
    if corpus in ("stdlib", "site-packages") or corpus.startswith("task:"):
        return corpus
    return str(Path(corpus).expanduser().absolute())


def _seeds(seeds: int | Sequence[int]) -> list[int]:
    many = isinstance(seeds, int) and not isinstance(seeds, bool) and seeds > 0
    if not many and not (isinstance(seeds, (list, tuple, range)) and seeds):
        raise invalid("compare", "seeds", "how many, or a list of them", seeds)
    return list(range(seeds)) if isinstance(seeds, int) else list(seeds)


def prepare(configs: Sequence[RunConfig], out: str | Path, *, on: str = "here") -> list[RunConfig]:
    """The configs with the digest of their text, which is packed under ``out`` once everything is known to fit."""
    out, texts, tokens, found = Path(out), dict[str, Corpus](), dict[str, Corpus](), list[RunConfig]()
    check_output(out, 0)
    for config in configs:
        if on == "here":  # elsewhere there may be what this machine has not
            check_device(config)
        layers = len(config.encoding.get("layers", [config.encoding]))
        make_model(config.replace(layers=layers, device="cpu"))  # parts that cannot be joined are found now
        if config.text:
            corpus = texts.get(config.corpus) or read_corpus(config.corpus)
            texts[config.corpus] = corpus
            config = config.replace(corpus_digest=corpus.digest)
            read = corpus
            if config.tokenizer:
                key = corpus.digest + config.tokenizer_digest
                tokens[key] = read = tokens.get(key) or tokenized(corpus, Tokenizer(config.tokenizer))
            check_text(config, read)
        found.append(config)
    unfinished = [config for config in found if not is_there(out / "runs" / config.id / RESULT)]
    needed = sum(len(corpus.train) + len(corpus.test) for corpus in texts.values())
    check_output(out, needed + sum(space_needed(config) for config in unfinished) if unfinished else 0)
    for corpus in texts.values():
        pack(corpus, out / "corpus")
    for config in found:
        if config.tokenizer:
            made = tokens[config.corpus_digest + config.tokenizer_digest]
            open_tokens(texts[config.corpus], config, out / "corpus", made=made)
    return found
