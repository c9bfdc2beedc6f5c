"""Short-text classification with learned, sinusoidal and rotary positions, in the kind of the notes' GLUE row.

Texts are pieces of 31 words of the standard library's sources behind a first token that the answer is read off:
    source    which of six packages a piece is from: words tell most of it, their order little
    order     whether a piece that begins where a function begins reads forwards or backwards: order tells everything.
              An encoder without positions sees the same bag of words either way, so half of its answers are right
Pieces to train on and to test on come from different files. Texts of one's own come from a file (``labelled_texts``),
cut to the length; shorter ones are padded, and the padding is not seen.
"""

from __future__ import annotations

import random
import sysconfig
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from whorl import WhorlError
from whorl.config import config
from whorl.lab.corpus import read_documents, split
from whorl.lab.encoder_runs import EncoderConfig, facts, fit, made_once, share_right
from whorl.lab.labelled_texts import Pieces, read_labelled
from whorl.lab.matching_data import PAD, Vocabulary, tokenize
from whorl.lab.statistics import share_interval
from whorl.lab.train import Pass, backward
from whorl.models.roformer import RoFormerClassifier
from whorl.result_shapes import Has

Dataset = Literal["source", "order"]

PACKAGES = ("asyncio", "email", "importlib", "multiprocessing", "unittest", "xml")
LABELS = {"source": len(PACKAGES), "order": 2}
ENCODINGS = ("learned", "sinusoidal", "rope", "none")
ROWS_AT_ONCE = 128

# What a finished classification is known by; one of 0.1.0 has not all of it.
RESULT = Has(
    {
        "config": Has({"dataset": str, "seed": int, "test": int}, {}),
        **dict.fromkeys(("accuracy", "chance", "train_seconds"), float),
    },
    {"most_frequent": float, "tested": int},
)


@config
class ClassifyConfig(EncoderConfig):
    """Everything that decides what a classification comes out as.

    dataset        "source" or "order"
    data           a file of texts with labels in their place
    length         tokens of a text, the first among them
    steps, batch   updates, and texts in each
    train, test    texts there are
    """

    name: ClassVar[str] = "classify"
    dataset: Dataset = "order"
    data: str = ""
    length: int = 32
    steps: int = 300
    batch: int = 32
    train: int = 4000
    test: int = 600

    def check(self) -> None:
        super().check()
        self.check_positive("steps", "batch", "train", "test")
        self.must(self.length >= 3, "length", "at least 3", remedy="A text needs two words behind its start.")

    def to_dict(self) -> dict[str, Any]:
        """The config as JSON-ready data; without the file where there is none, as runs before had none."""
        return {key: value for key, value in super().to_dict().items() if (key, value) != ("data", "")}


def pieces(dataset: Dataset, count: int, *, length: int, side: Literal["train", "test"], seed: int = 0) -> Pieces:
    """``count`` texts of ``length`` words, joined by spaces, and their labels, each label as often as the others.

    >>> text, label = pieces("order", 2, length=8, side="test")[0]
    >>> len(text.split()), label in (0, 1)
    (8, True)
    """
    draw = random.Random(f"{seed}/{dataset}/{side}")
    made: list[tuple[str, int]] = []
    words: list[str] = []
    for i in range(count):
        label = i % LABELS[dataset]
        if dataset == "source":
            words = _piece(draw, _places(PACKAGES[label], side, length, None), length)
        else:  # every piece both ways, so that no word goes with a label
            begins = _places(draw.choice(PACKAGES), side, length, "def")
            words = words[::-1] if label else _piece(draw, begins, length)
        made.append((" ".join(words), label))
    draw.shuffle(made)
    return made


def _piece(draw: random.Random, places: list[tuple[list[str], int]], length: int) -> list[str]:
    document, start = draw.choice(places)
    return document[start : start + length]


@cache
def _places(package: str, side: str, length: int, first: str | None) -> list[tuple[list[str], int]]:
    """Where pieces of a package may begin: everywhere, or at one word."""
    found = [
        (words, start)
        for words in _words(package, side)
        for start in range(len(words) - length + 1)
        if first in (None, words[start])
    ]
    if not found:
        raise WhorlError(f"classify: no {side} file of {package} has {length} words to read. Use shorter texts.")
    return found


@cache
def _words(package: str, side: str) -> list[list[str]]:
    documents, _ = read_documents(str(Path(sysconfig.get_paths()["stdlib"]) / package))
    return [tokenize(text.decode("utf-8", "ignore"), "word") for text in split(documents)[side == "test"]]


def classify(settings: ClassifyConfig, *, out: str | Path | None = None) -> dict[str, Any]:
    """The result of training a classifier and testing it on texts of other files, as JSON-ready data.

    Kept under ``out``, a run that was stopped goes on where it was, and a finished one is only read.

    >>> result = classify(ClassifyConfig(length=8, layers=1, width=16, steps=1, batch=2, train=8, test=8))
    >>> 0 <= result["accuracy"] <= 1
    True
    """
    if settings.data:
        train, test, names = read_labelled(settings.data)
        draw = random.Random(settings.seed)
        train = draw.sample(train, min(settings.train, len(train)))
        test = draw.sample(test, min(settings.test, len(test)))
        labels = len(names)
    else:
        sizes = {"length": settings.length - 1, "seed": settings.seed}
        train = pieces(settings.dataset, settings.train, side="train", **sizes)
        test = pieces(settings.dataset, settings.test, side="test", **sizes)
        labels = LABELS[settings.dataset]
    return made_once(settings, [train, test], out, partial(_classified, settings, train, test, labels), RESULT)


class Classifier(RoFormerClassifier):
    """The classifier of texts that are padded behind their end to one length."""

    def forward(self, tokens: Tensor, **options: Any) -> Tensor:
        real = tokens != PAD
        real[:, 0] = True  # the first token has that number as well
        return super().forward(tokens, **options, **({} if bool(real.all()) else {"key_mask": real}))


def _classified(
    settings: ClassifyConfig, train: Pieces, test: Pieces, labelled: int, folder: Path | None
) -> dict[str, Any]:
    vocabulary = Vocabulary.of((text for text, _ in train), "word", most=2000)
    model = Classifier(settings.encoder(len(vocabulary), settings.length), labelled)
    often = Counter(label for _, label in test).most_common(1)[0][1]
    tokens, labels = _encoded(train, vocabulary, settings.length)
    draw = torch.Generator().manual_seed(settings.seed)
    rows = [torch.randint(len(tokens), (settings.batch,), generator=draw) for _ in range(settings.steps)]

    def loss(step: int) -> Pass:
        logits, wanted = model(tokens[rows[step]]), labels[rows[step]]
        return backward(cross_entropy(logits, wanted), logits, wanted, settings.batch * settings.length)

    stages = [(settings.length, settings.batch, settings.steps)]
    done = fit(model, loss, stages, settings.learning_rate, folder)
    accuracy = share_right(model, *_encoded(test, vocabulary, settings.length), ROWS_AT_ONCE)
    # labels of one's own need not be equally often, and whoever always says the most frequent one knows nothing
    known = {"chance": 1 / labelled, "most_frequent": often / len(test), "tested": len(test)}
    return {**facts(settings, model, done), "accuracy": accuracy, **known}


def _encoded(texts: Pieces, vocabulary: Vocabulary, length: int) -> tuple[Tensor, Tensor]:
    """Tokens (texts, length), the first of them 0, which no word has, padded by 0 as well, and labels."""
    rows = torch.full((len(texts), length), PAD)
    for row, (text, _) in zip(rows, texts, strict=True):
        numbers = vocabulary.encode(text, length - 1)
        row[1 : len(numbers) + 1] = torch.tensor(numbers)
    return rows, torch.tensor([label for _, label in texts])


def compare_classifiers(
    *,
    datasets: Sequence[Dataset] = ("source", "order"),
    encodings: Sequence[str] = ENCODINGS,
    seeds: Sequence[int] = (0, 1, 2),
    out: str | Path | None = None,
    tell: Callable[[dict[str, Any]], None] | None = None,
    **settings: Any,
) -> list[dict[str, Any]]:
    """A row per dataset and encoding: accuracy in points, its mean, and an interval that knows of seeds and of texts.

    ``settings`` are those of ClassifyConfig, ``out`` is where runs are kept, ``tell`` hears each result. With ``data``
    among them there is one dataset, the file.
    """
    rows = []
    own = settings.get("data")
    for dataset in datasets[:1] if own else datasets:
        for encoding in encodings:
            runs = []
            for seed in seeds:
                one = ClassifyConfig(encoding=encoding, dataset=dataset, seed=seed, **settings)
                runs.append(classify(one, out=out))
                if tell is not None:
                    tell(runs[-1])
            accuracies = [100 * run["accuracy"] for run in runs]
            tested = min(run.get("tested", run["config"]["test"]) for run in runs)  # which 0.1.0 did not write
            row = {
                "dataset": own or dataset,
                "encoding": encoding,
                "chance": 100 * runs[0]["chance"],
                "most_frequent": 100 * max(run.get("most_frequent", run["chance"]) for run in runs),
                "seeds": list(seeds),
                "tested": tested,
            }
            found = share_interval([run["accuracy"] for run in runs], tested)
            points = found and found | {key: 100 * found[key] for key in ("mean", "low", "high")}
            rows.append({**row, "accuracies": accuracies, "accuracy": points})
    return rows
