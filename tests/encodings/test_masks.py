"""Window and sink masks against the oracle."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import whorl
from dense_flow import attend, tokens
from oracles import masks as oracle

IDS = st.lists(st.integers(-50, 200), min_size=1, max_size=8)


@settings(max_examples=60, deadline=None)
@given(IDS, IDS, st.integers(1, 60), st.integers(1, 10))
def test_against_the_oracle(queries, keys, size, count):
    i, j = torch.tensor(queries), torch.tensor(keys)
    causal = i[:, None] >= j  # hides keys after the query, which these masks leave alone
    window = whorl.Window(size=size).mask(i, j) & causal
    assert window.tolist() == [[oracle.window(a, b, size) for b in keys] for a in queries]
    sinks = whorl.Sinks(size=size, count=count).mask(i, j) & causal
    assert sinks.tolist() == [[oracle.sinks(a, b, size, count) for b in keys] for a in queries]
    both = whorl.Window(size=size, symmetric=True).mask(i, j)
    assert both.tolist() == [[abs(a - b) < size for b in keys] for a in queries]


def test_by_hand():
    ids = torch.arange(10)
    seen = whorl.Window(size=3).mask(ids, ids)[6].nonzero().flatten().tolist()
    assert seen == [4, 5, 6, 7, 8, 9]  # the causal mask hides 7, 8, 9
    assert whorl.Window(size=3, symmetric=True).mask(ids, ids)[6].nonzero().flatten().tolist() == [4, 5, 6, 7, 8]
    assert whorl.Sinks(size=3, count=2).mask(ids, ids)[6].nonzero().flatten().tolist() == [0, 1, 4, 5, 6, 7, 8, 9]
    assert whorl.Sinks(size=2, count=1, symmetric=True).mask(ids, ids)[6].nonzero().flatten().tolist() == [0, 5, 6, 7]


def test_rows_of_a_batch_and_other_dtypes():
    rows = torch.stack((torch.arange(5), torch.arange(5) + 100))
    for encoding in (whorl.Window(size=2), whorl.Sinks(size=2, count=1)):
        both = encoding.mask(rows, rows)
        assert both.shape == (2, 5, 5)
        for row in range(2):
            assert torch.equal(both[row], encoding.mask(rows[row], rows[row]))
        assert torch.equal(encoding.mask(rows[0].int(), rows[0].double()), both[0])


def test_a_window_is_attention_to_the_last_tokens_alone():
    window = whorl.Window(size=4)
    q, k, v = tokens(12)
    ids = torch.arange(12)
    whole = attend(window, q, k, v, ids, ids).out
    for i in range(12):
        last = slice(max(0, i - 3), i + 1)
        alone = attend(whorl.build("none"), q[:, :, i : i + 1], k[:, :, last], v[:, :, last], ids[i : i + 1], ids[last])
        torch.testing.assert_close(whole[:, :, i : i + 1], alone.out, rtol=0, atol=1e-14)


@pytest.mark.parametrize("make", [lambda: whorl.Window(size=100), lambda: whorl.Sinks(size=90, count=10)])
def test_a_window_as_long_as_the_text_changes_nothing(make):
    q, k, v = tokens(90)
    ids = torch.arange(90)
    assert torch.equal(attend(make(), q, k, v, ids, ids).out, attend(whorl.build("none"), q, k, v, ids, ids).out)
