"""Probes of far use: what they say, where, and that enough of them are asked."""

from __future__ import annotations

import torch

from lab_runs import tiny
from whorl.lab.batches import TextBatches
from whorl.lab.corpus import read_corpus
from whorl.lab.evaluate import Evaluation
from whorl.lab.load import make_model
from whorl.lab.presets import PRESETS
from whorl.lab.probes import ASK, KEY, MARKS, REPEATED, RETRIEVALS, VALUE, marked, repeated, retrieval

SAMPLES = torch.randint(256, (128, 513), generator=torch.Generator().manual_seed(0))


def test_a_key_lies_at_every_depth_and_is_said_again_with_its_value_asked_for():
    for length in (64, 256):
        probe = retrieval(SAMPLES, length)
        assert probe is not None and probe.tokens.shape == (RETRIEVALS, length + 1) and RETRIEVALS == 100
        targets = probe.tokens[:, 1:][:, probe.asked :]
        assert targets.shape[1] == VALUE
        room = length + 1 - 2 * (KEY + VALUE + 3)
        for row, depth, value in zip(probe.tokens, probe.depth, targets, strict=True):
            at = round(depth * room)
            said = row[at : at + KEY + VALUE + 3]
            assert said[[0, KEY + 1, -1]].tolist() == [10, 32, 10]
            assert torch.equal(said[KEY + 2 : -1], value) and torch.equal(row[-len(said) + 1 :], said[:-1])
        assert probe.depth[0] == 0 and probe.depth[-1] == 1 and probe.depth == sorted(probe.depth)
    assert retrieval(SAMPLES, 56) is None


def test_a_text_said_again_is_longer_than_the_window_that_would_see_it():
    probe = repeated(SAMPLES, 256, 64)
    assert probe is not None and probe.tokens.shape == (REPEATED, 257) and probe.asked == 64
    assert torch.equal(probe.tokens[:, 65:130], probe.tokens[:, :65])
    assert torch.equal(probe.tokens[:, :65], SAMPLES[:REPEATED, -65:])
    assert repeated(SAMPLES, 12, 64) is None


def test_a_mark_is_said_once_and_asked_for_at_the_end():
    for length in (16, 64):
        probe = marked(SAMPLES.remainder(128), length)
        assert (
            probe is not None
            and probe.tokens.shape == (RETRIEVALS, length + 1)
            and probe.asked == length - 1
            and probe.chance == 0.1
        )
        for row, depth in zip(probe.tokens.tolist(), probe.depth, strict=True):
            at = round(depth * (length - 3))
            assert row[at] == ASK == row[-2] and row[at + 1] == row[-1] and row[-1] in MARKS
            assert row.count(ASK) == 2 and row.count(row[-1]) == 2
        assert len({row[-1] for row in probe.tokens.tolist()}) == len(MARKS)
    assert marked(SAMPLES, 3) is None


def test_no_text_has_the_bytes_of_marks():
    for mark in (ASK, *MARKS):
        assert mark not in "".join(map(chr, range(0x110000))).encode("utf-8", "ignore")


def test_a_share_of_the_rows_that_are_trained_on_is_marked_and_the_same_for_every_encoding(texts):
    config = tiny(texts, stages=((64, 8, 6),), recall=0.25)
    corpus = read_corpus(str(texts))
    plain, marks = TextBatches(corpus, config.replace(recall=0.0)), TextBatches(corpus, config)
    said = set()
    for step in range(6):
        inputs, targets = marks(step)
        before, _ = plain(step)
        assert torch.equal(inputs[2:], before[2:])
        for row, wanted in zip(inputs[:2].tolist(), targets[:2].tolist(), strict=True):
            value = wanted[-1]
            assert row[-1] == ASK and value in MARKS
            places = [i for i, token in enumerate(row[:-1]) if token == ASK]
            assert [row[i + 1] for i in places] == [value] * len(places)
            said.add(len(places))
    assert min(said) >= 1 and max(said) <= 8 and len(said) > 2
    other = TextBatches(corpus, config.replace(encoding={"name": "alibi"}))
    assert all(torch.equal(one, two) for one, two in zip(marks(3), other(3), strict=True))


def test_a_model_that_is_trained_on_marks_is_asked_for_marks(texts):
    config = tiny(texts, recall=0.5)
    corpus = read_corpus(str(texts))
    rows = Evaluation(make_model(config), config, corpus).variant()["by_length"]
    assert [row["retrieval"]["chance"] for row in rows] == [0.1] * 4
    assert (
        Evaluation(make_model(config), config.replace(recall=0.0), corpus).variant()["by_length"][-1]["retrieval"][
            "chance"
        ]
        == 1 / 26
    )


def test_the_demo_scores_8192_bytes_at_every_length_and_asks_a_hundred_times(tmp_path):
    from whorl.lab.plan import configure

    config = configure(preset_name="demo")[0]
    assert config.lengths == PRESETS["demo"].lengths and config.protocols == ("same_last",) and config.recall == 0.25
    samples = read_corpus("stdlib").samples(512, config.eval_bytes // 512)
    assert len(samples) * config.last >= 8192 and len(samples) >= RETRIEVALS
    assert configure(preset_name="demo", corpus="task:copy")[0].recall == 0  # where there are no bytes to mark
    for name, times in (("laptop", 10), ("gpu", 20)):
        other = configure(preset_name=name)[0]
        assert other.eval_bytes // max(other.lengths) * other.last >= times * 8192
