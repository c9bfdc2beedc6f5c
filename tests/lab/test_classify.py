"""Short-text classification: texts from different files, both ways, and positions that decide where order does."""

from __future__ import annotations

import json
import random
from collections import Counter

import pytest
import torch
from scipy import stats

import whorl
from whorl.lab.classify import PACKAGES, Classifier, ClassifyConfig, classify, compare_classifiers, pieces
from whorl.lab.encoder_runs import EncoderConfig
from whorl.lab.labelled_texts import read_labelled

TINY = {
    "length": 16,
    "layers": 1,
    "width": 32,
    "steps": 80,
    "batch": 16,
    "train": 400,
    "test": 200,
    "learning_rate": 3e-3,
}


def test_pieces_of_order_come_both_ways_and_begin_with_a_function():
    made = pieces("order", 60, length=12, side="train", seed=2)
    forwards = Counter(text for text, label in made if label == 0)
    backwards = Counter(" ".join(text.split()[::-1]) for text, label in made if label == 1)
    assert forwards == backwards and sum(forwards.values()) == 30
    assert all(text.split()[0] == "def" and len(text.split()) == 12 for text in forwards)


def test_pieces_of_sources_have_every_label_as_often():
    made = pieces("source", 60, length=12, side="test")
    assert Counter(label for _, label in made) == dict.fromkeys(range(len(PACKAGES)), 10)
    assert made == pieces("source", 60, length=12, side="test") != pieces("source", 60, length=12, side="test", seed=1)


def test_order_needs_positions():
    with_positions, without = (classify(ClassifyConfig(encoding=name, **TINY)) for name in ("rope", "none"))
    assert with_positions["accuracy"] > 0.8
    assert without["accuracy"] == 0.5  # the same bag of words for both answers: exactly half are right
    json.dumps(with_positions, allow_nan=False)


def test_sources_are_told_apart_better_than_by_chance():
    found = classify(
        ClassifyConfig(dataset="source", **TINY | {"length": 32, "width": 64, "steps": 60, "batch": 32, "train": 1500})
    )
    assert found["accuracy"] > 2.4 * found["chance"]


def test_a_run_is_decided_by_its_seed():
    few = {**TINY, "steps": 3, "train": 12, "test": 12}
    first, again, other = (classify(ClassifyConfig(**few, seed=seed)) for seed in (0, 0, 1))
    assert first["loss"] == again["loss"] != other["loss"] and first["accuracy"] == again["accuracy"]


def test_rows_have_means_and_intervals_over_seeds():
    heard = []
    small = {**TINY, "steps": 2, "train": 12, "test": 12}
    rows = compare_classifiers(
        datasets=["order"], encodings=["learned", "rope"], seeds=(0, 1), tell=heard.append, **small
    )
    assert [row["encoding"] for row in rows] == ["learned", "rope"] and len(heard) == 4
    for row in rows:
        assert row["accuracy"]["mean"] == pytest.approx(sum(row["accuracies"]) / 2) and row["accuracy"]["n"] == 2


def test_bad_settings_are_refused():
    with pytest.raises(whorl.WhorlError, match="length must be at least 3"):
        ClassifyConfig(length=2)
    with pytest.raises(whorl.WhorlError, match=r"unknown dataset 'orders'\. Did you mean 'order'"):
        ClassifyConfig(dataset="orders")
    with pytest.raises(whorl.WhorlError, match="no test file of asyncio has 1000000 words"):
        pieces("source", 6, length=10**6, side="test", seed=0)


def test_a_sinusoidal_code_starts_as_large_as_the_embeddings():
    sizes = {"layers": 1, "width": 32, "heads": 2, "seed": 0}
    encoder = EncoderConfig(encoding="sinusoidal", **sizes).encoder(500, 64)
    code = encoder.plan[0].add_to_input(torch.zeros(64, 32), whorl.positions(64))
    sizes_of = [float(part.square().mean().sqrt()) for part in (code, encoder.embed.weight.detach())]
    assert sizes_of[0] == pytest.approx(sizes_of[1], rel=0.05)
    given = EncoderConfig(encoding={"name": "sinusoidal", "scale": 1.0}, **sizes).encoder(500, 64)
    assert given.plan[0].config.scale == 1.0


def test_texts_of_ones_own_are_read_cut_padded_and_told_apart(tmp_path):
    draw = random.Random(0)
    words = ["red", "green", "blue", "round", "flat"]
    lines = []
    for number in range(600):  # which of two words comes first
        filler = [draw.choice(words) for _ in range(draw.randint(2, 6))]
        first, second = (("up", "down"), ("down", "up"))[number % 2]
        text = " ".join([first, *filler, second])
        row = json.dumps({"text": text, "label": number % 2}) if number % 3 else f"{number % 2}\t{text}"
        lines.append(row)
    (tmp_path / "texts.jsonl").write_text("\n".join(lines))
    train, test, labels = read_labelled(tmp_path / "texts.jsonl")
    assert labels == ["0", "1"] and len(train) + len(test) == 600 and 80 < len(test) < 160
    assert not {text for text, _ in train} & {text for text, _ in test}
    few = {**TINY, "length": 8, "data": str(tmp_path / "texts.jsonl")}  # the longest are cut
    with_positions, without = (classify(ClassifyConfig(encoding=name, **few)) for name in ("rope", "none"))
    assert with_positions["accuracy"] > 0.7 and with_positions["chance"] == 0.5
    assert without["accuracy"] < with_positions["accuracy"]
    rows = compare_classifiers(encodings=["rope"], seeds=(0,), **few | {"steps": 2})
    assert [row["dataset"] for row in rows] == [few["data"]]


def test_an_accuracy_knows_of_how_many_texts_it_is_and_how_often_the_most_frequent_label_is(tmp_path):
    """Two seeds that were right in all of 54 texts read 100 ± 0, and labels of which one is rare a chance of 50 %."""
    lines = [f"{'rare' if number % 10 == 0 else 'usual'}\tword {number}" for number in range(300)]
    (tmp_path / "texts.tsv").write_text("\n".join(lines))
    few = {**TINY, "data": str(tmp_path / "texts.tsv"), "steps": 40}
    (row,) = compare_classifiers(encodings=["none"], seeds=(0, 1), **few)
    _, test, _ = read_labelled(few["data"])
    usual = sum(label for _, label in test) / len(test)
    assert row["tested"] == len(test) and row["most_frequent"] == pytest.approx(100 * usual) and row["chance"] == 50
    assert row["accuracies"][0] == row["accuracies"][1] == pytest.approx(100 * usual)  # it always says the same
    exact = stats.binomtest(round(2 * usual * len(test)), 2 * len(test)).proportion_ci(method="exact")
    found = row["accuracy"]
    assert (found["low"], found["high"]) == pytest.approx((100 * exact.low, 100 * exact.high))


def test_padding_is_not_seen():
    torch.manual_seed(0)
    model = Classifier(EncoderConfig(encoding="rope", layers=2, width=16, heads=2, seed=0).encoder(50, 12), 3).eval()
    short = torch.tensor([[0, 5, 6, 7]])
    padded = torch.tensor([[0, 5, 6, 7, 0, 0, 0]])
    assert torch.allclose(model(short), model(padded), atol=1e-6)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "cannot read"),
        ("no tab here", "line 1: no label and text"),
        ('{"text": "a"}', "line 1: no label and text"),
        ('{"text"', "line 1: no JSON"),
        ("a\tone\na\ttwo", "labels must be two or more"),
        ("a\tone\nb\tone", "none of them falls to test on|none of them falls to train on"),
    ],
)
def test_a_file_that_holds_no_labelled_texts_is_an_error(tmp_path, text, said):
    if text is not None:
        (tmp_path / "texts").write_text(text)
    with pytest.raises(whorl.WhorlError, match=said):
        read_labelled(tmp_path / "texts")
