"""Synthetic tasks: items that are what they say, batches by seed and step, scores that greedy decoding gives too."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import whorl
from whorl.lab import tasks
from whorl.lab.tasks import BOS, END, KEY, PAD, SEP, TaskBatches, score, task
from whorl.models import Decoder

LENGTHS = {"passkey": 40, "multikey_retrieval": 40}
EVERY = ["associative_recall", "copy", "counting", "multikey_retrieval", "passkey", "reverse", "sort"]


def length_of(name: str) -> int:
    return LENGTHS.get(name, 6)


def answered(tokens: list[int]) -> list[int]:
    """The right answer of an item by the task's own words, read off its tokens alone."""
    at = tokens.index(SEP)
    body, query = tokens[1:at], tokens[at + 1 :]
    if KEY in body:
        starts = [i for i, token in enumerate(body) if token == KEY]
        if len(starts) == 1:
            return body[starts[0] + 1 : starts[0] + 6]
        return [body[i + 2] for i in starts if body[i + 1] == query[0]]
    raise AssertionError


RIGHT = {
    "copy": lambda tokens: tokens[1 : tokens.index(SEP)],
    "reverse": lambda tokens: tokens[1 : tokens.index(SEP)][::-1],
    "sort": lambda tokens: sorted(tokens[1 : tokens.index(SEP)]),
    "counting": lambda tokens: [*tokens[1 : tokens.index(SEP)], END],
    "passkey": answered,
    "multikey_retrieval": answered,
    "associative_recall": lambda tokens: [
        value
        for key, value in zip(tokens[1 : tokens.index(SEP) : 2], tokens[2 : tokens.index(SEP) : 2], strict=True)
        if key == tokens[tokens.index(SEP) + 1]
    ],
}


def test_the_tasks():
    assert sorted(tasks.TASKS) == EVERY
    with pytest.raises(whorl.WhorlError, match="Did you mean 'passkey'"):
        task("paskey")


@pytest.mark.parametrize("name", EVERY)
def test_answers_are_right_and_stand_last(name):
    one = task(name)
    items = one.items(length_of(name), 50, seed=3)
    assert items.tokens.dtype == torch.int64 and int(items.tokens.max()) < one.vocab and int(items.tokens.min()) > PAD
    assert items.tokens.shape == items.answer.shape == (50, one.total(length_of(name)))
    for tokens, answer in zip(items.tokens.tolist(), items.answer.tolist(), strict=True):
        assert tokens[0] == BOS and tokens.count(SEP) == 1
        wanted = [token for token, counts in zip(tokens, answer, strict=True) if counts]
        assert wanted == RIGHT[name](tokens) and answer == sorted(answer)


@pytest.mark.parametrize("name", EVERY)
def test_a_seed_gives_the_same_items_and_another_seed_others(name):
    one, length = task(name), length_of(name)
    same = one.items(length, 8, seed=1).tokens
    assert torch.equal(same, one.items(length, 8, seed=1).tokens)
    assert not torch.equal(same, one.items(length, 8, seed=2).tokens)


@pytest.mark.parametrize("name", ["passkey", "multikey_retrieval"])
def test_lengths_of_retrieval_count_all_tokens_and_keys_lie_anywhere(name):
    length, blocks = 30, {"passkey": 1, "multikey_retrieval": 4}[name]
    items = task(name).items(length, 4000, seed=0)
    assert items.tokens.shape[1] == length
    places = (items.tokens == KEY).nonzero()[:, 1]
    assert len(places) == 4000 * blocks
    counts = Counter(places.tolist())
    if name == "passkey":  # with one key every place has the same chance: 18 of them, 222 each, standard deviation 15
        assert set(counts) == set(range(1, 19)) and all(150 < count < 300 for count in counts.values())
    else:  # the first key can stand first, the last of the four last
        assert min(counts) == 1 and max(counts) == length - 2 - 1 - 2 - 1
    keys = items.tokens[:, 1:].masked_select(items.tokens[:, :-1] == KEY).view(4000, blocks)
    assert all(len(set(row)) == blocks for row in keys.tolist())


@pytest.mark.parametrize(
    ("name", "length", "words"),
    [
        ("passkey", 12, "at least 13 tokens, got 12"),
        ("multikey_retrieval", 15, "at least 16 tokens, got 15"),
        ("associative_recall", 65, "at most 64 pairs, got 65"),
        ("copy", 0, "length"),
        ("sort", 2.5, "length"),
    ],
)
def test_impossible_lengths_are_refused(name, length, words):
    with pytest.raises(whorl.WhorlError, match=words):
        task(name).items(length, 2)
    with pytest.raises(whorl.WhorlError, match=words):
        TaskBatches(name, (length, length), batch=2)


def test_smallest_items_are_whole():
    assert task("passkey").items(13, 2).tokens.shape == (2, 13)
    assert task("multikey_retrieval").items(16, 2).tokens.shape == (2, 16)
    assert task("associative_recall").items(64, 2).tokens.shape == (2, 1 + 128 + 1 + 1 + 1)


def test_other_bad_settings_are_refused():
    with pytest.raises(whorl.WhorlError, match="batch"):
        TaskBatches("copy", 5, batch=0)
    with pytest.raises(whorl.WhorlError, match=r"\(shortest, longest\), got \(9, 5\)"):
        TaskBatches("copy", (9, 5), batch=2)
    with pytest.raises(whorl.WhorlError, match="count"):
        task("copy").items(3, 0)


# --- batches


def test_batches_have_every_length_up_to_the_longest_and_padding_counts_for_nothing():
    batches = TaskBatches("copy", 5, batch=600, seed=0)
    tokens, wanted = batches.at(0)
    assert tokens.shape == (600, 12) and wanted.shape == (600, 11) and tokens.dtype == torch.int64
    lengths = (tokens == SEP).nonzero()[:, 1] - 1
    counts = Counter(lengths.tolist())
    assert set(counts) == {1, 2, 3, 4, 5} and min(counts.values()) > 80  # 120 each, standard deviation 10
    for row, counted, length in zip(tokens.tolist(), wanted.tolist(), lengths.tolist(), strict=True):
        assert row[2 * length + 2 :] == [PAD] * (12 - 2 * length - 2)
        assert [i + 1 for i, counts in enumerate(counted) if counts] == list(range(length + 2, 2 * length + 2))


def test_tasks_for_one_length_are_trained_on_it_alone():
    tokens, wanted = TaskBatches("passkey", 32, batch=16).at(0)
    assert tokens.shape == (16, 32) and not (tokens == PAD).any() and wanted.sum(1).tolist() == [5] * 16


def test_a_batch_is_a_function_of_seed_and_step():
    one, again, other = (TaskBatches("sort", 4, batch=8, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(one.at(7)[0], again.at(7)[0])
    assert not torch.equal(one.at(7)[0], one.at(8)[0]) and not torch.equal(one.at(7)[0], other.at(7)[0])


# --- scores


@pytest.fixture(scope="module")
def halfway() -> Decoder:
    """A model that has learned counting about halfway, so that some answers are right and some are not."""
    torch.manual_seed(0)
    model = Decoder(task("counting").vocab, 1, 32, 2, "alibi", length=16)
    batches = TaskBatches("counting", 4, batch=32, seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    for step in range(50):
        tokens, wanted = batches.at(step)
        optimizer.zero_grad()
        cross_entropy(model(tokens[:, :-1])[wanted], tokens[:, 1:][wanted]).backward()
        optimizer.step()
    return model.eval()


def test_exact_match_is_that_of_greedy_decoding(halfway):
    seen = set()
    for length in (1, 2, 3, 4, 6):
        items = task("counting").items(length, 64, seed=9)
        prompt = int((~items.answer[0]).sum())
        decoded = halfway.generate(items.tokens[:, :prompt], items.tokens.shape[1] - prompt)
        greedy = (decoded == items.tokens).all(1).double().mean().item()
        assert score(halfway, "counting", length=length, items=64, seed=9)["exact_match"] == greedy
        seen.add(greedy)
    assert any(0 < share < 1 for share in seen)


def test_scores_by_hand():
    class Says(nn.Module):
        """A model that copies right but for the second token of what it says."""

        def __init__(self):
            super().__init__()
            self.unused = nn.Parameter(torch.zeros(()))

        def forward(self, tokens):
            length = (tokens.shape[1] - 1) // 2
            said = tokens.roll(length, 1)
            said[:, length + 2 : length + 3] = PAD
            return nn.functional.one_hot(said, 105).float()

    model = Says().train()
    assert score(model, "copy", length=4, items=10) == {
        "length": 4,
        "exact_match": 0.0,
        "token_accuracy": 0.75,
        "items": 10,
        "samples": {"exact_match": [0] * 10},
    }
    short = score(model, "copy", length=1, items=10)
    assert short["token_accuracy"] == short["exact_match"] == 1.0
    assert model.training


def test_each_item_is_told_beside_the_mean(halfway):
    found = score(halfway, "counting", length=3, items=20)
    assert set(found["samples"]["exact_match"]) <= {0, 1}
    assert sum(found["samples"]["exact_match"]) / 20 == found["exact_match"]


def test_scores_do_not_depend_on_how_many_items_fit_at_once(halfway, monkeypatch):
    before = score(halfway, "counting", length=3, items=20)
    monkeypatch.setattr(tasks, "TOKENS_AT_ONCE", 30)
    assert score(halfway, "counting", length=3, items=20) == before
