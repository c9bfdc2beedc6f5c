"""Matching of long texts: the reader and what it refuses, tokens, the stand-in; what is not read is not known."""

from __future__ import annotations

import json
from collections import Counter

import pytest
import torch

import whorl
from whorl.lab import matching_data
from whorl.lab.corpus import read_documents, split
from whorl.lab.encoder_runs import EncoderConfig, fit
from whorl.lab.matching import MatchingConfig, TripleMatcher, match, match_triples, summarize
from whorl.lab.matching_data import (
    PAD,
    SUBJECTS,
    UNKNOWN,
    Triple,
    Vocabulary,
    encode_triples,
    held_out,
    read_triples,
    stand_in,
    tokenize,
)
from whorl.lab.train import backward
from whorl.models import RoFormer


def write(path, rows) -> str:
    path.write_text("".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows), encoding="utf-8")
    return str(path)


# --- the reader


def test_labels_are_read_as_they_stand(tmp_path):
    rows = [{"A": "甲", "B": "乙", "C": "丙", "label": "C"}, {"A": "a", "B": "b", "C": "c", "label": "B", "more": 1}]
    assert read_triples(write(tmp_path / "x", rows)) == [Triple("甲", "乙", "丙", "C"), Triple("a", "b", "c", "B")]


def test_without_labels_b_is_right_and_half_are_swapped_by_seed(tmp_path):
    rows = [{"A": f"a{i}", "B": f"right{i}", "C": f"wrong{i}"} for i in range(40)]
    path = write(tmp_path / "x", rows)
    triples = read_triples(path, seed=1)
    for i, one in enumerate(triples):
        assert (one.b if one.label == "B" else one.c) == f"right{i}"
        assert (one.c if one.label == "B" else one.b) == f"wrong{i}"
    assert Counter(one.label for one in triples) == {"B": 20, "C": 20}  # a constant answer scores 50 %
    assert triples == read_triples(path, seed=1) != read_triples(path, seed=2)


def test_blank_lines_and_a_byte_order_mark_are_no_matter(tmp_path):
    path = tmp_path / "x"
    path.write_text('\ufeff{"A": "a", "B": "b", "C": "c", "label": null}\n\n  \n', encoding="utf-8")
    assert len(read_triples(path)) == 1


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{oops", "line 2: no JSON, .* at column 2"),
        ("[1, 2]", "line 2: a list where an object"),
        ('{"A": "a", "B": "b"}', "line 2: C must be a text, got None"),
        ('{"A": "a", "B": " ", "C": "c"}', "line 2: B must be a text, got ' '"),
        ('{"A": 3, "B": "b", "C": "c"}', "line 2: A must be a text, got 3"),
        ('{"A": "a", "B": "b", "C": "c", "label": "A"}', "line 2: label must be 'B' or 'C', got 'A'"),
    ],
)
def test_bad_lines_are_named(tmp_path, line, words):
    path = tmp_path / "x"
    path.write_text('{"A": "a", "B": "b", "C": "c"}\n' + line + "\n", encoding="utf-8")
    with pytest.raises(whorl.WhorlError, match=words):
        read_triples(path)


def test_bad_files_are_named(tmp_path):
    with pytest.raises(whorl.WhorlError, match=r"cannot read .*nowhere"):
        read_triples(tmp_path / "nowhere")
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(whorl.WhorlError, match="has no triples"):
        read_triples(tmp_path / "empty")
    (tmp_path / "other").write_bytes('{"A": "债'.encode() + b"\xff")
    with pytest.raises(whorl.WhorlError, match="not UTF-8 at byte 10"):
        read_triples(tmp_path / "other")


def test_a_fifth_is_held_out_by_seed():
    triples = [Triple(f"a{i}", f"b{i}", f"c{i}", "B") for i in range(23)]
    train, test = held_out(triples, seed=1)
    assert len(test) == 4 and [one for one in triples if one not in test] == train
    assert test == held_out(triples, seed=1)[1] != held_out(triples, seed=2)[1]
    assert [len(side) for side in held_out(triples[:2])] == [1, 1]
    with pytest.raises(whorl.WhorlError, match="1 triples cannot be split"):
        held_out(triples[:1])


# --- tokens


def test_tokens():
    assert tokenize("借款 of  12.5 yuan_x\n", "word") == ["借", "款", "of", "12", ".", "5", "yuan_x"]
    assert tokenize("a 债\n", "char") == ["a", " ", "债", "\n"]
    with pytest.raises(whorl.WhorlError, match=r"unknown tokens 'words'\. Did you mean 'word'"):
        tokenize("a", "words")


def test_the_vocabulary_has_the_commonest_tokens_in_an_order_that_nothing_decides():
    vocabulary = Vocabulary.of(["b a c", "c b", "c"], "word", most=2)
    assert vocabulary.words == ("c", "b") and len(vocabulary) == 4
    assert vocabulary.encode("a b c c", 3) == [UNKNOWN, 3, 2]
    assert vocabulary.encode("   ", 3) == [UNKNOWN]
    assert Vocabulary.of(["ab", "ba"], "char") == Vocabulary.of(["ba", "ab"], "char")
    with pytest.raises(whorl.WhorlError, match="no words"):
        Vocabulary.of(["  "], "word")


def test_triples_are_cut_and_padded():
    vocabulary = Vocabulary("char", ("a", "b", "c"))
    tokens, answers = encode_triples([Triple("abc", "b", "ca", "C"), Triple("a", "a", "abcab", "B")], vocabulary, 4)
    assert tokens.tolist() == [
        [[2, 3, 4, PAD], [3, PAD, PAD, PAD], [4, 2, PAD, PAD]],
        [[2, PAD, PAD, PAD], [2, PAD, PAD, PAD], [2, 3, 4, 2]],
    ]
    assert answers.tolist() == [1, 0]


# --- the stand-in


@pytest.mark.parametrize("kind", ["char", "word"])
@pytest.mark.parametrize("evidence", ["late", "early"])
def test_the_evidence_lies_where_it_is_said_and_decides(kind, evidence):
    triples = stand_in(20, evidence=evidence, side="test", kind=kind, seed=4)
    assert Counter(one.label for one in triples) == {"B": 10, "C": 10}
    for one in triples:
        texts = [tokenize(text, kind) for text in (one.a, one.b, one.c)]
        assert [len(text) for text in texts] == [1024] * 3
        found = [[(i, token) for i, token in enumerate(text) if token in SUBJECTS] for text in texts]
        for places in found:
            assert len(places) == 64 and places[-1][0] - places[0][0] < 256
            assert all((i >= 512) == (evidence == "late") for i, _ in places)
        a, b, c = ({token for _, token in places} for places in found)
        right, wrong = (b, c) if one.label == "B" else (c, b)
        assert len(a) == 1 and a == right != wrong


def test_texts_to_train_on_and_to_test_on_come_from_different_files():
    files = [[text.decode("utf-8", "ignore") for text in side] for side in split(read_documents("stdlib")[0])]
    for own, side in enumerate(("train", "test")):
        for one in stand_in(3, evidence="late", side=side):
            assert any(one.a[:512] in text for text in files[own])
            assert not any(one.a[:512] in text for text in files[1 - own])


def test_the_stand_in_is_made_from_its_seed():
    first, again, other = (stand_in(3, evidence="late", side="test", seed=seed) for seed in (0, 0, 1))
    assert first == again != other
    with pytest.raises(whorl.WhorlError, match="unknown evidence"):
        stand_in(3, evidence="there", side="test")
    with pytest.raises(whorl.WhorlError, match="unknown side"):
        stand_in(3, evidence="late", side="both")


# --- the model


def test_padding_and_the_order_of_candidates_change_nothing():
    torch.manual_seed(0)
    model = TripleMatcher(RoFormer(vocab=30, layers=2, width=16, heads=2)).eval()
    tokens = torch.randint(2, 30, (3, 3, 12))
    padded = torch.nn.functional.pad(tokens, (0, 5))
    uneven = padded.clone()
    uneven[0, 0, 9:] = PAD
    with torch.no_grad():
        logits = model(tokens)
        torch.testing.assert_close(model(padded), logits)
        torch.testing.assert_close(model(tokens[:, [0, 2, 1]]), logits.flip(1))
        alone = model(uneven[:1, :, :12])
        torch.testing.assert_close(model(uneven)[:1], alone)
        assert not torch.allclose(alone, logits[:1])
        short = model.pooled(uneven[0])[:1]
        torch.testing.assert_close(short, model.encoder(tokens[0, :1, :9]).mean(1))


def test_encoders_start_from_the_same_weights_and_shaw_has_tables_of_its_own():
    sizes = {"layers": 2, "width": 16, "heads": 2, "seed": 3}
    rope, shaw, learned = (EncoderConfig(encoding=name, **sizes).encoder(20, 8) for name in ("rope", "shaw", "learned"))
    ours = dict(rope.named_parameters())
    for other in (shaw, learned):
        for name, weight in other.named_parameters():
            assert name.startswith("plan.") or torch.equal(weight, ours[name])
    assert len(shaw.plan.unique) == 2 and len(learned.plan.unique) == 1
    again = EncoderConfig(encoding="rope", **sizes | {"seed": 4}).encoder(20, 8)
    assert not torch.equal(rope.embed.weight, again.embed.weight)


def test_a_loss_that_is_no_number_stops_training():
    weight = torch.nn.Linear(1, 1)

    def loss(step):
        value = weight.bias.sum() * (1.0 if step == 0 else float("nan"))
        return backward(value, torch.zeros(1, 2), torch.zeros(1), 1)

    with pytest.raises(whorl.WhorlError, match="the loss is nan at step 2"):
        fit(weight, loss, [(1, 1, 3)], 1e-3)


# --- the experiment, in small


@pytest.fixture
def small(monkeypatch):
    """Texts of 32 + 32 tokens in place of 512 + 512."""
    for name, value in {"HALF": 32, "SPAN": 24, "MENTIONS": 12}.items():
        monkeypatch.setattr(matching_data, name, value)
    matching_data._documents.cache_clear()
    yield
    matching_data._documents.cache_clear()


@pytest.mark.parametrize("evidence", ["late", "early"])
def test_reading_as_far_as_the_evidence_decides(small, evidence):
    train = stand_in(240, evidence=evidence, side="train", seed=0)
    test = stand_in(200, evidence=evidence, side="test", seed=0)
    sizes = {"layers": 1, "width": 32, "steps": 60, "batch": 16, "learning_rate": 4e-3}
    half, whole = (match(MatchingConfig(length=length, **sizes), train, test)["accuracy"] for length in (32, 64))
    assert whole > 0.9
    assert 0.38 < half < 0.62 if evidence == "late" else half > 0.9  # 0.035 is one standard error


def test_a_run_is_decided_by_its_seed(small):
    triples = stand_in(10, evidence="early", side="train")
    settings = MatchingConfig(length=16, layers=1, width=16, steps=4, batch=4, encoding="learned")
    first, again = (match(settings, triples, triples) for _ in range(2))
    assert first["losses"] == again["losses"] != match(settings.replace(seed=1), triples, triples)["losses"]
    assert first["encoding_parameters"] == 16 * 16 and first["answers_b"] == 0.5
    json.dumps(first, allow_nan=False)


def test_nothing_to_match_is_refused():
    with pytest.raises(whorl.WhorlError, match="no triples"):
        match(MatchingConfig(), [], [])
    with pytest.raises(whorl.WhorlError, match="steps must be positive"):
        MatchingConfig(steps=0)


def test_every_seed_has_its_own_split_and_bad_settings_are_found_before_the_first_run():
    triples = [Triple(f"a{i}", f"b{i}", f"c{i}", "BC"[i % 2]) for i in range(10)]
    sizes = {"layers": 1, "width": 16, "steps": 1, "batch": 2}
    heard = []
    found = match_triples(triples, seeds=(0, 1), variants=(("rope", 2), ("rope", 1)), tell=heard.append, **sizes)
    assert heard == found["runs"] and [(one["seed"], one["length"]) for one in heard] == [
        (0, 2),
        (0, 1),
        (1, 2),
        (1, 1),
    ]
    assert found["gaps"]["unknown"] == found["summary"][0]["accuracy"]["mean"] - found["summary"][1]["accuracy"]["mean"]
    assert heard[0]["answers_b"] == sum(one.label == "B" for one in held_out(triples, seed=0)[1]) / 2
    heard.clear()
    with pytest.raises(whorl.WhorlError, match="length must be positive"):
        match_triples(triples, variants=(("rope", 2), ("rope", 0)), tell=heard.append, **sizes)
    assert heard == []


def test_the_summary_by_hand():
    def runs(evidence, length, accuracies):
        return [{"evidence": evidence, "encoding": "rope", "length": length, "accuracy": value} for value in accuracies]

    found = summarize(
        [*runs("late", 512, [0.5, 0.52]), *runs("late", 1024, [0.9, 0.94]), *runs("early", 512, [1.0, 1.0])]
    )
    assert found["gaps"] == pytest.approx({"late": 41.0})
    assert [round(row["accuracy"]["mean"], 6) for row in found["summary"]] == [51.0, 92.0, 100.0]
