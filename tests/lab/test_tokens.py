"""Tokens in place of bytes: every byte counted once, losses per byte, and the whole from a file to generated text."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import whorl
from lab_runs import SIZES, tiny
from optional import optional
from whorl.encodings.layer_plan import LayerPlan
from whorl.errors import WhorlError
from whorl.lab import compare, generate, load
from whorl.lab.corpus import read_corpus
from whorl.lab.evaluate import Evaluation
from whorl.lab.plan import plan
from whorl.lab.storage import read_metrics
from whorl.lab.tokens import Tokenizer, tokenized
from whorl.lab.validation import validation

TINY = {**SIZES, "train_length": 16, "steps": 5, "batch": 4, "lengths": [16, 32, 64], "workers": 1}


def write_tokenizer(path: Path, texts: Path, *, words: bool = False) -> Path:
    """A small tokenizer of those texts: pairs of bytes joined, or whole words between spaces."""
    tokenizers = optional("tokenizers")
    models, pre, trainers = tokenizers.models, tokenizers.pre_tokenizers, tokenizers.trainers
    if words:
        made = tokenizers.Tokenizer(models.WordLevel(unk_token="?"))
        made.pre_tokenizer = pre.Whitespace()
        trainer = trainers.WordLevelTrainer(special_tokens=["?"], show_progress=False)
    else:
        made = tokenizers.Tokenizer(models.BPE())
        made.pre_tokenizer = pre.ByteLevel(add_prefix_space=False)
        made.decoder = tokenizers.decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=300, initial_alphabet=pre.ByteLevel.alphabet(), show_progress=False, special_tokens=[]
        )
    made.train_from_iterator((file.read_text() for file in sorted(texts.iterdir())), trainer)
    made.save(str(path))
    return path


@pytest.fixture(scope="module")
def file(texts, tmp_path_factory):
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json", texts)


@pytest.mark.parametrize("words", [False, True])
def test_the_bytes_of_tokens_add_up_to_the_text(texts, tmp_path, words):
    tokenizer = Tokenizer(write_tokenizer(tmp_path / "tokenizer.json", texts, words=words))
    for text in (
        "abc  def\n\tgh\n",
        "naïve café 日本 🎉 ab",
        "x" * 200_000 + "\nabc\n" * 40_000,
        "ab \n ",
        " \n" * 40_000 + "ab" + " \n" * 80_000,
    ):
        ids, sizes = tokenizer.encode(text.encode())
        assert len(ids) == len(sizes) and int(sizes.sum(dtype=np.int64)) == len(text.encode())
    assert tokenizer.encode(b"")[0].shape == (0,)
    corpus = read_corpus(str(texts))
    found = tokenized(corpus, tokenizer)
    assert found.test_sizes is not None and int(found.test_sizes.sum(dtype=np.int64)) == len(corpus.test)
    assert len(found.train) < len(corpus.train) and found.bytes_per_token == len(corpus.train) / len(found.train)
    assert len(found.test_documents) == len(corpus.test_documents)


class Even(nn.Module):
    """Finds every token equally likely."""

    def __init__(self, vocab: int) -> None:
        super().__init__()
        self.plan, self.vocab = LayerPlan.shared(whorl.NoPE(), layers=1), vocab

    def forward(self, tokens, length=None):
        return torch.zeros(*tokens.shape, self.vocab)


def test_losses_are_bits_per_byte(texts, file):
    tokenizer = Tokenizer(file)
    known = {"tokenizer": str(file), "tokenizer_digest": tokenizer.digest, "vocab": tokenizer.vocab}
    config = tiny(texts, lengths=(8, 16, 32), **known)
    corpus = tokenized(read_corpus(str(texts)), tokenizer)
    model = Even(tokenizer.vocab)
    sizes = corpus.samples(32, 16, sizes=True)
    for row in Evaluation(model, config, corpus).variant()["by_length"]:  # pyright: ignore[reportArgumentType]
        for way, first in (("same_last", 33 - config.last), ("non_overlapping", 1)):
            scored = sizes[:, first:]
            per_byte = math.log2(tokenizer.vocab) * scored.size / scored.sum()
            assert row["bits_per_byte"][way] == pytest.approx(per_byte, rel=1e-6)
            assert row["scored_bytes"][way] == round(scored.sum() / len(sizes))
    bits = validation(model, config, corpus)()  # pyright: ignore[reportArgumentType]
    held = corpus.samples(16, 128, sizes=True)[:, 1:]
    assert bits == pytest.approx(math.log2(tokenizer.vocab) / held.mean(), rel=1e-6)


def test_a_comparison_reads_tokens_and_writes_text(texts, tmp_path, file):
    found = compare(["rope", "alibi"], corpus=str(texts), tokenizer=str(file), out=tmp_path / "out", **TINY)
    assert found.failed == {} and 2 < (found.table()["rope"][16] or 0) < 8
    folder = tmp_path / "out" / found.data["results"][0].removesuffix("/result.json")
    run = load(folder)
    assert run.config.vocab == 300 and run.config.tokenizer_digest == Tokenizer(file).digest
    assert run.result is not None and run.result["evaluations"][0]["by_length"][-1]["retrieval"]["chance"] == 1 / 26
    row = read_metrics(folder)[-1]
    corpus = tokenized(read_corpus(str(texts)), Tokenizer(file))
    assert row["bits_per_byte"] == pytest.approx(row["loss"] / math.log(2) / corpus.bytes_per_token)
    assert found.result.rows[0].curve[-1] == pytest.approx((row["step"], row["bits_per_byte"] * math.log(2)))
    assert row["validation_bits_per_byte"] == run.result["validation"][-1]["bits_per_byte"]
    assert generate(folder, "abc", count=3).startswith("abc")
    assert isinstance(run.result["generated"][0]["text"], str)
    changed = tmp_path / "changed.json"
    changed.write_text(file.read_text() + " ")
    with pytest.raises(WhorlError, match="has changed: its digest is"):
        Tokenizer(changed, run.config.tokenizer_digest)


def test_words_have_no_letters_to_hide_a_key_in(texts, tmp_path):
    file = write_tokenizer(tmp_path / "words.json", texts, words=True)
    assert Tokenizer(file).letters is None
    found = compare(["rope"], corpus=str(texts), tokenizer=str(file), out=tmp_path / "out", **TINY)
    assert found.failed == {} and "retrieval_accuracy" not in found.result.rows[0].cells


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tokenizer": "/nowhere.json"}, "cannot read /nowhere.json: No such file"),
        ({"tokenizer": "BAD"}, "is no tokenizer"),
        ({"tokenizer": "GOOD", "vocab": 300}, "vocab comes from the tokenizer"),
        ({"tokenizer": "GOOD", "recall": 0.5}, "a tokenizer would be ignored, recall marks bytes"),
        ({"tokenizer": "GOOD", "corpus": "task:copy"}, "a tokenizer would be ignored, a task has tokens of its own"),
        ({"tokenizer_digest": "abc"}, "tokenizer_digest is no setting of its own. It comes from the file of tokenizer"),
        ({"tokenizer": 3}, "tokenizer must be a tokenizer.json, got 3"),
    ],
)
def test_what_is_no_tokenizer_is_an_error_before_anything_is_written(texts, tmp_path, file, change, said):
    (tmp_path / "bad.json").write_text("{}")
    known = {"GOOD": str(file), "BAD": str(tmp_path / "bad.json")}
    change = {key: known.get(value, value) if isinstance(value, str) else value for key, value in change.items()}
    settings = {key: value for key, value in TINY.items() if key != "workers"}
    with pytest.raises(WhorlError) as error:
        plan(["rope"], out=tmp_path / "out", **{"corpus": str(texts), **settings, **change})
    assert said in str(error.value) and not (tmp_path / "out").exists()
