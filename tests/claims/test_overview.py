"""The encodings side by side: a row for each, from the registry, its claims and committed results."""

import pytest

import whorl
from whorl.claims import overview


@pytest.fixture
def rows(monkeypatch):
    monkeypatch.setattr(overview, "ROUNDS", 1)
    return {one["encoding"]: one for one in overview.compare_all()}


def test_there_is_a_row_for_each_encoding(rows):
    assert list(rows) == whorl.names()
    assert rows["rope"]["family"] == "relative, rotation" and rows["rope"]["relative"] and rows["rope"]["norms kept"]
    assert rows["learned"]["family"] == "absolute, at the input" and rows["learned"]["parameters"] == 4096 * 1024
    assert rows["rerope"]["KV cache"] == "raw keys" and rows["alibi"]["memory"] == "O(L)"
    assert rows["rerope"]["memory"] == rows["self_extend"]["memory"] == "O(L × block)"  # past the window
    assert rows["log_n"]["position enters"] == "queries"
    assert rows["none"]["time"] == 1.0 and "not so:" in rows["rope"]["remark"]


def test_places_are_words_and_an_unknown_hook_is_its_own():
    assert overview.places(["transform_qk", "score_bias"]) == "queries and keys, score bias"
    assert overview.places(["mine"]) == "mine" and overview.places([]) == "nowhere"


def test_the_table_is_markdown_and_says_how_it_is_read(rows):
    lines = overview.markdown(list(rows.values())).splitlines()
    assert len([line for line in lines if line.startswith("| ")]) == len(rows) + 1
    assert "| rope | relative, rotation | queries and keys | yes |" in overview.table([rows["rope"]])[-1]
    assert "8 heads of 128 dimensions, width 1,024 and length 4,096" in lines[-2] and lines[-1] == overview.HOW_TO_READ
