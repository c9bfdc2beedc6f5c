"""Fairness: runs that differ in more than what is compared are refused, with the list of it, or said to differ."""

from __future__ import annotations

import pytest

from lab_runs import tiny
from whorl.errors import WhorlError
from whorl.lab.aggregate import labels_of
from whorl.lab.fairness import check_fair, differing


def configs(texts, *changes):
    return [tiny(texts, **change).to_dict() for change in changes]


def test_encodings_and_seeds_may_differ_and_what_follows_from_them(texts):
    found = configs(
        texts,
        {"encoding": "rope", "repairs": ("ntk",)},
        {"encoding": "rope", "seed": 3},
        {"encoding": "alibi"},
        {"encoding": {"name": "t5", "max_distance": 8, "buckets": 8}, "encoding_rate": 8.0},
    )
    assert differing(found) == {} == check_fair(found)


def test_every_other_difference_is_listed_and_refused(texts):
    """A model of 1 layer trained for 20 steps beside one of 2 layers trained for 300 was one comparison."""
    small, large = {"layers": 1, "steps": 20}, {"encoding": "alibi", "layers": 2, "steps": 300, "width": 32}
    found = configs(texts, small, large)
    assert differing(found) == {"layers": [1, 2], "width": [16, 32], "steps": [20, 300]}
    with pytest.raises(WhorlError) as error:
        check_fair(found)
    for piece in ("layers 1 and 2", "width 16 and 32", "steps 20 and 300", "--unequal", "folders of their own"):
        assert piece in str(error.value)
    assert check_fair(found, unequal=True) == differing(found)


def test_two_texts_are_no_comparison_but_one_text_under_two_names_is(texts):
    one, other = configs(texts, {}, {"encoding": "alibi"})
    assert differing([one, {**other, "corpus": "/elsewhere"}]) == {}
    changed = {**other, "corpus": "/elsewhere", "corpus_digest": "another"}
    assert set(differing([one, changed])) == {"corpus", "corpus_digest"}
    assert differing([one, changed], ["corpus"]) == {}


def test_two_tasks_are_no_comparison(texts):
    """Neither has a digest, which made them one text under two names."""
    (one,) = configs(texts, {})
    found = [{**one, "corpus": f"task:{name}", "corpus_digest": ""} for name in ("copy", "recall")]
    assert differing(found) == {"corpus": ["task:copy", "task:recall"]}


def test_a_tokenizer_is_told_by_its_content(texts):
    (one,) = configs(texts, {})
    mine = {**one, "tokenizer": "/mine.json", "tokenizer_digest": "1", "vocab": 300}
    assert differing([mine, {**mine, "tokenizer": "/copy.json"}]) == {}
    assert set(differing([one, mine])) == {"tokenizer", "tokenizer_digest", "vocab"}
    assert differing([one, mine], ["tokenizer"]) == {}


def test_a_rate_that_is_not_the_encodings_usual_one_is_a_difference(texts):
    found = configs(texts, {"encoding": "rope"}, {"encoding": "kerple", "encoding_rate": 5.0})
    assert differing(found) == {"encoding_rate": ["usual", 5.0]}
    found = configs(texts, {"encoding": "rope"}, {"encoding": {"name": "t5", "max_distance": 8, "buckets": 8}})
    assert differing(found) == {}  # one rate for all, though it is not what T5 usually has


def test_named_factors_may_differ_and_misspelt_ones_are_errors(texts):
    found = configs(texts, {"layers": 1}, {"layers": 2})
    assert check_fair(found, ["layers"]) == {}
    with pytest.raises(WhorlError, match=r"unknown factor 'layer'\. Did you mean 'layers'"):
        check_fair(found, ["layer"])


def test_what_an_older_version_did_not_write_has_its_default(texts):
    (one,) = configs(texts, {})
    old = {key: value for key, value in one.items() if key not in ("clip", "final")}
    assert differing([one, old]) == {}


def test_stages_are_told_apart_as_such(texts):
    found = configs(texts, {"stages": ((8, 4, 2), (16, 4, 2))}, {"stages": ((16, 4, 4),)})
    assert set(differing(found)) == {"stages", "batch", "steps", "train_length"}


def test_a_factor_that_older_configs_lack_names_its_rows(texts):
    usual, other = (tiny(texts, activation=name) for name in ("gelu", "swiglu"))
    assert "activation" not in usual.to_dict()
    runs = [("rope", one.to_dict(), one.id) for one in (usual, other)]
    assert labels_of(runs) == ["rope activation=gelu", "rope activation=swiglu"]
