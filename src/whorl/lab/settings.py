"""RunConfig: everything that decides what a run of the lab comes out as, and nothing else.

Two runs with the same config give the same numbers, so the id of a run is a hash of its config. Where it is kept, how
often it is saved and who watches are no part of it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from whorl import registry
from whorl.config import config
from whorl.errors import WhorlError, invalid
from whorl.lab.recipe import Recipe
from whorl.models.layers import Activation
from whorl.registry import PLAN
from whorl.result_rows import PROTOCOLS

MADE_OF = {"parts": "combined", "layers": PLAN}  # what encodings made of others hold them under, and their names
Protocol = Literal["same_last", "sliding", "non_overlapping"]

RATIOS = (0.25, 0.5, 1, 2, 4, 8, 16)  # of the trained length, evaluated unless lengths are given


def identity(data: Any) -> str:
    """The first 12 hexadecimal digits of the hash of JSON data, which runs are named by.

    >>> identity({"b": 1, "a": [2]}) == identity({"a": [2], "b": 1})
    True
    """
    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@config
class RunConfig(Recipe):
    """The identity of one training run and its evaluation.

    encoding       name and settings; the model's sizes are filled in, and what results is kept in full
    layers, width, heads, vocab   the decoder; 256 is bytes
    kv_heads       heads of keys and values, which heads of queries share; None for as many
    activation     of the feed-forward: gelu, gelu_tanh, relu, silu, swiglu or geglu
    dropout        while it trains
    corpus         "stdlib", "site-packages", a file, a folder, or "task:NAME"
    corpus_digest  what the text hashed to, so that another text is another run
    tokenizer      a file of the tokenizers library; "" for bytes. Lengths then count tokens, losses are bits per byte
    tokenizer_digest  what that file hashed to
    stages, learning_rate …, device   how it is trained: see ``whorl.lab.recipe.Recipe``
    lengths        lengths evaluated; () for ¼ to 16 times the trained one
    eval_bytes     text scored at each length, about
    last           how many last tokens the same-last-tokens score reads; None for a quarter of the trained length,
                   at least 16 and at most 64. More than the shortest length are read by windows that slide
    recall         share of the rows of a batch that carry a mark to be found again: see ``whorl.lab.probes``
    protocols      which of the three ways of scoring text are measured
    repairs        context extensions tried on the trained model, for rotary encodings
    fine_tune_steps  steps each repair is trained on as well, at 4 times the length; 0 for none

    >>> config = RunConfig(encoding={"name": "rope"}, stages=[(64, 32, 500)])
    >>> config.encoding["head_dim"], config.train_length, config.lengths
    (32, 64, (16, 32, 64, 128, 256, 512, 1024))
    """

    name: ClassVar[str] = "run"
    later: ClassVar[tuple[str, ...]] = (
        "tokenizer", "tokenizer_digest", "kv_heads", "activation", "dropout", "recall", "protocols",
    )  # fmt: skip
    encoding: dict
    layers: int = 3
    width: int = 128
    heads: int = 4
    vocab: int = 256
    kv_heads: int | None = None
    activation: Activation = "gelu"
    dropout: float = 0.0
    corpus: str = "stdlib"
    corpus_digest: str = ""
    tokenizer: str = ""
    tokenizer_digest: str = ""
    lengths: tuple[int, ...] = ()
    eval_bytes: int = 32_768
    last: int | None = None
    recall: float = 0.0
    protocols: tuple[Protocol, ...] = PROTOCOLS
    repairs: tuple[str, ...] = ()
    fine_tune_steps: int = 0
    seed: int = 0

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def id(self) -> str:
        """The first 12 hexadecimal digits of the hash of the config."""
        return identity(self.to_dict())

    @property
    def train_length(self) -> int:
        """The length of the last stage, which evaluation lengths are measured against."""
        return self.stages[-1][0]

    @property
    def gentler(self) -> str:
        wider = "" if self.precision == "float32" else ", or use precision='float32'"
        return f"Lower learning_rate or lengthen warmup{wider}."

    @property
    def head_dim(self) -> int:
        return self.width // self.heads

    @property
    def sizes(self) -> dict[str, int]:
        """What encodings are built from: the sizes of the model, and the tokens it is trained on at a time."""
        return {"heads": self.heads, "head_dim": self.head_dim, "width": self.width, "length": self._tokens_at_once()}

    def _tokens_at_once(self) -> int:
        if self.text:
            return self.train_length
        from whorl.lab.tasks import task

        return task(self.task_name).total(self.train_length) - 1

    @property
    def slides(self) -> bool:
        """Whether the same last tokens are more than the shortest length holds, and are read by windows that slide."""
        return (self.last or 0) > self.lengths[0]

    @property
    def unit(self) -> str:
        """What lengths of a text count."""
        return "tokens" if self.tokenizer else "bytes"

    @property
    def text(self) -> bool:
        """Whether the run reads a text, rather than a task's made-up sequences."""
        return not self.corpus.startswith("task:")

    @property
    def task_name(self) -> str:
        """The name of the task of a run that reads no text."""
        return self.corpus.removeprefix("task:")

    def check(self) -> None:
        self.check_positive("layers", "width", "heads", "vocab", "kv_heads", "accumulate", "eval_bytes")
        if self.tokenizer and (not self.text or self.recall):
            what = "recall marks bytes" if self.recall else "a task has tokens of its own"
            raise WhorlError(f"{self.call()}: a tokenizer would be ignored, {what}. Leave it out.")
        no_bytes = not self.text or self.tokenizer
        self.must(no_bytes or self.vocab >= 256, "vocab", "at least 256, one for each byte of a text")
        self.must(self.width % self.heads == 0, "width", f"a multiple of heads={self.heads}")
        self.must(self.heads % (self.kv_heads or 1) == 0, "kv_heads", f"a divisor of heads={self.heads}")
        self.must(0 <= self.dropout < 1, "dropout", "at least 0 and below 1")
        super().check()
        shortest = min(length for length, _, _ in self.stages)
        self.must(shortest >= 2, "every stage's length", "at least 2", shortest)
        self.must(self.fine_tune_steps >= 0, "fine_tune_steps", "0 or more")
        marked = 0 <= self.recall <= 1 and (self.text or not self.recall)
        self.must(marked, "recall", "a share of the rows of a text, 0 to 1")
        self.must(0 <= self.seed < 2**31, "seed", "between 0 and 2^31 - 1")
        self._fill_lengths()
        object.__setattr__(self, "encoding", resolve(self.encoding, **self.sizes))
        if len(self.encoding.get("layers", ())) > self.layers:
            most = f"a plan of at most the model's {self.layers} layers"
            raise invalid(self.call(), "encoding", most, label_of(self.encoding))
        self._check_repairs()

    def _fill_lengths(self) -> None:
        trained = self.train_length
        wanted = self.lengths or [int(ratio * trained) for ratio in RATIOS if ratio * trained >= 2]
        self.must(min(wanted) >= 2, "lengths", "at least 2 each", list(wanted))
        object.__setattr__(self, "lengths", tuple(sorted(set(wanted))))
        last = min(max(trained // 4, 16), 64, self.lengths[0]) if self.last is None else self.last
        self.must(1 <= last <= max(self.lengths), "last", "positive and at most the longest length", last)
        object.__setattr__(self, "last", last)
        for length in self.lengths if self.slides else ():  # each needs room before its windows for the others
            room = self.lengths[-1] - length
            self.must(length >= last or last <= room, "last", f"at most {room} for a length of {length}", last)
        once = "same_last" in self.protocols and len(set(self.protocols)) == len(self.protocols)
        self.must(once, "protocols", "same_last and others, each once", list(self.protocols))

    def _check_repairs(self) -> None:
        from whorl.lab import repairs  # which is made of encodings, and none are needed to name a run

        for name in self.repairs:
            repairs.check(name)
            if not repairs.serves(name, self.encoding):
                raise WhorlError(
                    f"Run: repair {name} takes the place of plain rope, not of {self.encoding['name']}. Leave it out."
                )

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """The config that ``to_dict`` described; unknown keys raise."""
        settings = dict(data)
        if settings.pop("name", cls.name) != cls.name:
            raise invalid("Run.from_dict", "name", repr(cls.name), data["name"])
        return cls(**settings)


def resolve(encoding: dict[str, Any] | str, **sizes: int) -> dict[str, Any]:
    """The full settings of an encoding given by name and some settings; sizes are filled in where it asks for them.

    >>> resolve({"name": "alibi"}, heads=4, head_dim=32, width=128, length=64)["heads"]
    4
    """
    if isinstance(encoding, str):
        encoding = {"name": encoding}
    if not isinstance(encoding, dict) or not isinstance(encoding.get("name"), str):
        raise invalid("Run", "encoding", "a name, or a dict with one under 'name'", encoding)
    settings = dict(encoding)
    name = settings.pop("name")
    for key, kind in MADE_OF.items():
        if name == kind:
            inside = settings.pop(key, None)
            if settings or not isinstance(inside, (list, tuple)) or (name == PLAN and not inside):
                what = "a plan" if name == PLAN else name
                raise WhorlError(
                    f"Run: {what} takes {key}=[…], each an encoding by name and settings, and nothing else."
                )
            return {"name": name, key: [resolve(part, **sizes) for part in inside]}
    cls = registry.encoding_class(name).Config
    given = {key: value for key, value in sizes.items() if key in cls.fields()} | settings
    return cls.from_dict({"name": name, **given}).to_dict()


def label_of(encoding: dict[str, Any], **sizes: int) -> str:
    """A short name of an encoding: its own, and the settings that are not what they are by default.

    >>> label_of(resolve({"name": "rope", "base": 500.0}, head_dim=8), head_dim=8)
    'rope base=500'
    >>> label_of({"name": "plan", "layers": [{"name": "none"}, {"name": "none"}, {"name": "window", "size": 8}]})
    'none*2/window:size=8'
    """
    name = encoding["name"]
    if name == "combined":
        return "+".join(_typed(part, **sizes) for part in encoding["parts"])
    if name == PLAN:
        groups = itertools.groupby(_typed(layer, **sizes) for layer in encoding["layers"])
        counted = ((label, len(list(same))) for label, same in groups)
        return "/".join(label if count == 1 else f"{label}*{count}" for label, count in counted)
    # settings without a default say nothing about how an encoding differs from the usual one
    required = {key: encoding[key] for key in registry.encoding_class(name).Config.required()}
    usual = resolve({"name": name, **required}, **sizes)
    differs = {key: value for key, value in encoding.items() if value != usual[key]}
    return " ".join([name, *(f"{key}={_short(value)}" for key, value in differs.items())])


def _typed(encoding: dict[str, Any], **sizes: int) -> str:
    """The label of a part of an encoding as it is typed, without a space: the whole is one name."""
    return label_of(encoding, **sizes).replace(" ", ":", 1).replace(" ", ",")


def _short(value: Any) -> str:
    if isinstance(value, dict):
        rest = ",".join(f"{_short(item)}" for key, item in value.items() if key in ("factor", "fraction"))
        return f"{value['name']}({rest})" if rest else value["name"]
    return f"{value:g}" if isinstance(value, float) else str(value)


def leaves(encoding: dict[str, Any]) -> list[dict[str, Any]]:
    """The single encodings inside an encoding, each once: those that are joined, and those of all layers.

    >>> none, rope = {"name": "none"}, {"name": "rope"}
    >>> leaves({"name": "plan", "layers": [none, {"name": "combined", "parts": [rope, none]}]})
    [{'name': 'none'}, {'name': 'rope'}]
    """
    inside = encoding.get("layers", encoding.get("parts"))
    found = [encoding] if inside is None else [leaf for part in inside for leaf in leaves(part)]
    return [one for place, one in enumerate(found) if one not in found[:place]]


def in_full(stored: Mapping[str, Any]) -> dict[str, Any]:
    """A config as it is stored, with the usual values of the settings that are not in it.

    >>> in_full({"width": 64, "dropout": 0.1})["activation"]
    'gelu'
    """
    fields = RunConfig.fields().items()
    usual = {key: field.default for key, field in fields if field.default is not dataclasses.MISSING}
    return {**usual, **stored}


def cautions(config: RunConfig) -> list[str]:
    """Warnings of settings that mislead: buckets never trained, codes that drown text, a ramp over all pairs."""
    from whorl.lab import repairs

    out, tokens = [], config.sizes["length"]  # of a task more than its length, which counts symbols
    for part in leaves(config.encoding):
        if part["name"] == "t5" and part["max_distance"] > tokens // 2:
            out.append(
                f"t5: max_distance {part['max_distance']} > half the trained length {tokens}: its far "
                f"buckets are hardly trained, and longer texts read them. Use max_distance={tokens // 2}."
            )
        if part["name"] == "sinusoidal" and part["scale"] > 4 * config.width**-0.5:
            out.append(
                f"sinusoidal: a code times {part['scale']:g} is far larger than the embeddings it is added to, and "
                f"trains slowly. Use scale={config.width**-0.5:.3f}."
            )
    turns = config.train_length / math.tau
    for name in config.repairs:
        fast = next((beta for part in name.split("+") if (beta := repairs.beta_fast(part)) is not None), None)
        if fast is not None and fast > turns:
            out.append(
                f"{name}: at trained length {config.train_length} the fastest pair turns {turns:.0f} times, less than "
                f"beta_fast {fast:g}, so every pair but the first is slowed. Use yarn-beta{max(2, int(turns / 2.5))}."
            )
    return out
