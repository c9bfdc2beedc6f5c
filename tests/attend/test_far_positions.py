"""Positions far from 0 and far apart: distances are exact in every dtype, wherever the text stands."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import whorl
from dense_flow import attend, normal
from oracles import alibi as alibi_oracle
from oracles import kerple as kerple_oracle
from oracles import sandwich as sandwich_oracle
from oracles import softmax_attention
from oracles import t5 as t5_oracle
from whorl.encodings.xpos import from_centre
from whorl.position_ids import difference, from_last_key

# What the softmax's output may be off by: rounding of content, and for half precision of the output itself.
ROUNDED = {torch.float64: 1e-13, torch.float32: 2e-6, torch.bfloat16: 0.02, torch.float16: 0.003}
STARTS = [0, 2**24, 2**31, 2**53, 2**60]
INT32 = [-(2**31), -(2**31) + 1, -5, 0, 2**31 - 2, 2**31 - 1]  # neighbours, and the farthest that int32 has


def by_oracle(x, bias):
    """Causal attention of x (1, heads, length, dim) to itself with a bias (heads, length, length)."""
    x = x.double()[0].numpy()
    allowed = np.tril(np.ones((x.shape[1],) * 2, dtype=bool))
    scores = x @ x.transpose(0, 2, 1) / math.sqrt(x.shape[-1]) + bias
    return torch.from_numpy(softmax_attention.attention(scores, x, allowed)[0])[None]


# -- ALiBi ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("dtype", ROUNDED)
def test_alibi_is_as_exact_at_any_position(start, dtype):
    q, alibi = normal(1, 6, 64, 8, dtype=dtype), whorl.Alibi(heads=6)
    ids = range(64)
    expected = by_oracle(q, alibi_oracle.bias(ids, ids, alibi_oracle.slopes(6)))
    for options in ({}, {"return_lse": True}):  # folded, and formed
        got = whorl.attention(q, q, q, encoding=alibi, positions=torch.arange(64) + start, **options)
        got = got[0] if options else got
        assert float((got.double() - expected).abs().max()) <= ROUNDED[dtype]


@pytest.mark.parametrize("gap", [2**24, 2**31, 2**40])
@pytest.mark.parametrize("heads", [6, 12])  # slopes that are powers of two, and some that are not
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_alibi_tells_neighbours_apart_in_texts_with_a_gap(gap, heads, dtype):
    q, ids = normal(1, heads, 40, 8, dtype=dtype), [*range(20), *range(gap, gap + 20)]
    expected = by_oracle(q, alibi_oracle.bias(ids, ids, alibi_oracle.slopes(heads)))
    got = whorl.attention(q, q, q, encoding=whorl.Alibi(heads=heads), positions=torch.tensor(ids))
    assert float((got.double() - expected).abs().max()) <= ROUNDED[dtype]


@pytest.mark.parametrize("far", [10**6, 2**31 - 1, 2**53, 2**60])
@pytest.mark.parametrize("heads", [8, 12])
@pytest.mark.parametrize("dtype", ROUNDED)
def test_keys_far_away_change_nothing_in_alibi(dtype, heads, far):
    """Six tokens: torch's kernel adds up so small a product in another order than a large one."""
    q, alibi = normal(1, heads, 6, 16, dtype=dtype), whorl.Alibi(heads=heads)
    ids = [0, 1, 2, far, far + 1, far + 2]
    expected = by_oracle(q, alibi_oracle.bias(ids, ids, alibi_oracle.slopes(heads)))
    near = by_oracle(q[:, :, :3], alibi_oracle.bias(range(3), range(3), alibi_oracle.slopes(heads)))
    again = by_oracle(q[:, :, 3:], alibi_oracle.bias(range(3), range(3), alibi_oracle.slopes(heads)))
    options = {"encoding": alibi, "positions": torch.tensor(ids)}
    for causal in (True, "positions"):
        got = whorl.attention(q, q, q, causal=causal, **options)
        assert float((got.double() - expected).abs().max()) <= ROUNDED[dtype]
        assert float((got[:, :, :3].double() - near).abs().max()) <= ROUNDED[dtype]
    packed = whorl.attention(q, q, q, documents=torch.tensor([0, 0, 0, 1, 1, 1]), **options)
    assert float((packed.double() - torch.cat((near, again), dim=2)).abs().max()) <= ROUNDED[dtype]


@pytest.mark.parametrize("number", [2**31 - 1, 10**6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_positions_of_padding_change_nothing_in_alibi(dtype, number):
    """Through a cache as well, and where rows of a batch have padding of their own."""
    q, alibi = normal(2, 8, 6, 16, dtype=dtype), whorl.Alibi(heads=8)
    real = torch.tensor([[1, 1, 1, 1, 0, 0], [0, 1, 1, 1, 1, 1]], dtype=torch.bool)
    ids = torch.where(real, whorl.from_mask(real), number)
    expected = [by_oracle(q[:1, :, :4], alibi_oracle.bias(range(4), range(4), alibi_oracle.slopes(8)))]
    expected.append(by_oracle(q[1:, :, 1:], alibi_oracle.bias(range(5), range(5), alibi_oracle.slopes(8))))
    options = {"positions": ids, "key_mask": real}
    for got in (
        whorl.attention(q, q, q, encoding=alibi, **options),
        whorl.KVCache(encoding=alibi).attend(q, q, q, **options),
    ):
        for row, rows in enumerate((slice(0, 4), slice(1, 6))):
            assert float((got[row : row + 1, :, rows].double() - expected[row]).abs().max()) <= ROUNDED[dtype]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_alibi_is_folded_where_positions_are_known_to_be_consecutive_alone(dtype):
    """Whatever they are: a graph cannot look at them, and must take the path of a call outside."""
    q, alibi = normal(1, 2, 6, 8, dtype=dtype), whorl.Alibi(heads=2)
    both = whorl.Combined(whorl.Rope(head_dim=8), alibi)

    def path(encoding, **options):
        return whorl.explain_attention(q, q, q, encoding=encoding, **options).split(":")[0]

    for encoding in (alibi, both):
        assert path(encoding) == path(encoding, documents=whorl.documents([2, 4])) == "folded"
        assert path(encoding, positions=torch.arange(6)) == path(encoding, positions=torch.arange(6.0)) == "masked"


def test_fractions_of_positions_are_kept_far_from_the_last_key():
    """float32 positions are subtracted in float64: 0.1 less a million would be 0.0625 off its place."""
    alibi, ids = whorl.Alibi(heads=2), torch.tensor([0.1, 0.6, 1e6])
    for dtype, tolerance in ((torch.float64, 1e-9), (torch.bfloat16, 2e-3)):
        queries, keys = alibi.fold(ids, ids, dtype)
        product = queries.double() @ keys.double().mT
        gap = (product[:, 0, 1] - product[:, 0, 0]) / alibi.slopes().double()
        torch.testing.assert_close(gap, (ids[1].double() - ids[0].double()).expand(2), rtol=0, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_nan_position_spoils_only_what_sees_it(dtype):
    x = normal(1, 2, 4, 8, dtype=dtype)
    ids = torch.tensor([0.0, 1.0, math.nan, 3.0])
    for encoding in (whorl.Alibi(heads=2), whorl.T5(heads=2), whorl.T5(heads=2, bidirectional=True)):
        out = whorl.attention(x, x, x, encoding=encoding, positions=ids)
        _, lse = whorl.attention(x, x, x, encoding=encoding, positions=ids, return_lse=True)
        assert lse.isnan()[0].tolist() == [[False, False, True, True]] * 2
        expected = whorl.attention(*(x[:, :, :2],) * 3, encoding=encoding, positions=ids[:2])
        torch.testing.assert_close(out[:, :, :2], expected, rtol=0, atol=ROUNDED[dtype])


# -- the others -------------------------------------------------------------------------------------------------------

RELATIVE = {
    "kerple": {"heads": 2},
    "t5": {"heads": 2},
    "sandwich": {"heads": 2},
    "shaw": {"head_dim": 8, "clip": 3},
    "transformer_xl": {"heads": 2, "head_dim": 8},
    "deberta": {"heads": 2, "head_dim": 8, "span": 4, "max_distance": 8},
    "window": {"size": 5},
}


@pytest.mark.parametrize("start", STARTS[1:])
@pytest.mark.parametrize("name", RELATIVE)
def test_what_depends_on_distances_is_the_same_at_any_position(name, start):
    encoding, x = whorl.build(name, **RELATIVE[name]).double(), normal(1, 2, 12, 8)
    ids = torch.arange(12)
    expected = attend(encoding, x, x, x, ids, ids).out
    for options in ({}, {"return_lse": True}):
        got = whorl.attention(x, x, x, encoding=encoding, positions=ids + start, **options)
        torch.testing.assert_close(got[0] if options else got, expected, rtol=0, atol=1e-6)  # biases are float32


@pytest.mark.parametrize("far", [2**40, 2**53 - 3, 2**60 + 1])
@pytest.mark.parametrize("name", RELATIVE)
def test_documents_far_apart_do_not_change_each_other(name, far):
    """A position that others are counted from must not be that of a key which nobody sees."""
    encoding, x = whorl.build(name, **RELATIVE[name]).double(), normal(1, 2, 12, 8)
    ids, texts = torch.cat((torch.arange(6), torch.arange(6) + far)), torch.arange(12) // 6
    got = whorl.attention(x, x, x, encoding=encoding, positions=ids, documents=texts)
    for part in (slice(0, 6), slice(6, 12)):
        alone = whorl.attention(*(x[:, :, part],) * 3, encoding=encoding)
        torch.testing.assert_close(got[:, :, part], alone, rtol=0, atol=1e-6)


@pytest.mark.parametrize("start", STARTS)
def test_the_fading_of_xpos_is_the_same_at_any_position(start):
    before, after, span = from_centre(torch.tensor([start + 3, start + 6]), torch.tensor([start, start + 9]))
    assert (before.tolist(), after.tolist(), span.tolist()) == ([1.5, -1.5], [-4.5, 4.5], [3.0])


@pytest.mark.parametrize("start", STARTS)
def test_the_decay_of_linear_attention_is_the_same_at_any_position(start):
    q, k, v = (normal(2, 2, 30, 8, seed=seed) for seed in range(3))
    ids = torch.arange(30) * 3
    options = {"form": "decay", "decay": [0.1, 0.02], "chunk": 7}
    expected = whorl.linear_attention(q, k, v, positions=ids, **options)
    got = whorl.linear_attention(q, k, v, positions=ids + start, **options)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)
    state = whorl.LinearState(**options)
    steps = [
        state.step(*(x[:, :, i : i + 10] for x in (q, k, v)), positions=(ids + start)[i : i + 10]) for i in (0, 10)
    ]
    state.reorder(torch.tensor([1, 0]))
    rest = state.step(*(x[:, :, 20:].flip(0) for x in (q, k, v)), positions=(ids + start)[20:])
    torch.testing.assert_close(torch.cat((*steps, rest.flip(0)), dim=2), expected, rtol=0, atol=1e-12)


# -- beyond 2^61 ------------------------------------------------------------------------------------------------------

BEYOND = [[0, 2**61 + 1], [-(2**63), 2**63 - 1], [-(2**61) - 1, 0]]


@pytest.mark.parametrize("ids", BEYOND, ids=str)
@pytest.mark.parametrize("name", [*RELATIVE, "alibi", "fire", "rope", "none"])
def test_positions_beyond_2_to_61_are_refused_as_a_cache_does(name, ids):
    sizes = {**RELATIVE, **BY_DISTANCE, "rope": {"head_dim": 8}, "none": {}}[name]
    encoding, x, ids = whorl.build(name, **sizes), normal(1, 2, 2, 8, dtype=torch.float32), torch.tensor(ids)
    wanted = r"attention: positions must be between -2\^61 and 2\^61, got -?\d+\. Count from a nearer start\."
    with pytest.raises(whorl.WhorlError, match=wanted):
        whorl.attention(x, x, x, encoding=encoding, positions=ids)
    with pytest.raises(whorl.WhorlError, match=wanted.replace("positions", "key_positions")):
        whorl.attention(x, x, x, encoding=encoding, positions=torch.arange(2), key_positions=ids)
    with pytest.raises(whorl.WhorlError, match=wanted.replace("attention", "linear_attention")):
        whorl.linear_attention(x, x, x, positions=ids)
    with pytest.raises(whorl.WhorlError, match=wanted.replace("attention", "KVCache")):
        whorl.KVCache(encoding=encoding).attend(x, x, x, positions=ids)


@pytest.mark.parametrize("ids", BEYOND, ids=str)
@pytest.mark.parametrize("name", ["window", "kerple", "t5", "alibi", "sandwich", "shaw"])
def test_in_a_graph_where_nobody_looks_no_distance_wraps_around(name, ids):
    """As on a device: what lies beyond 2^61 stands there, and is as far away as a key can be."""
    sizes = {**RELATIVE, **BY_DISTANCE, "t5": {"heads": 2, "bidirectional": True}}[name]
    encoding, x = whorl.build(name, **sizes).requires_grad_(False), normal(1, 2, 2, 8, dtype=torch.float32)
    run = torch.compile(lambda ids: whorl.attention(x, x, x, encoding=encoding, positions=ids), backend="eager")
    expected = whorl.attention(x, x, x, encoding=encoding, positions=torch.tensor(ids).clamp(-(2**61), 2**61))
    torch.testing.assert_close(run(torch.tensor(ids)), expected, rtol=0, atol=1e-6)
    far = whorl.attention(x, x, x, encoding=encoding, positions=torch.tensor([0, 10**9]))
    if name != "sandwich":  # which never settles
        torch.testing.assert_close(expected, far, rtol=0, atol=2e-2)


# -- int32 ------------------------------------------------------------------------------------------------------------

BY_DISTANCE = {
    **RELATIVE,
    "alibi": {"heads": 2},
    "fire": {"heads": 2},
    "sinks": {"size": 5},
    "rerope": {"head_dim": 8, "window": 3},
    "leaky_rerope": {"head_dim": 8, "window": 3},
    "self_extend": {"head_dim": 8, "window": 3},
    "xpos": {"head_dim": 8},
}


@pytest.mark.parametrize("name", BY_DISTANCE)
def test_int32_positions_are_those_of_int64(name):
    encoding, x = whorl.build(name, **BY_DISTANCE[name]).double(), normal(1, 2, 6, 8)
    ids = torch.tensor(INT32)
    first = 4 if name == "xpos" else 0  # its queries cannot lie so far apart
    expected = attend(encoding, x[:, :, first:], x, x, ids[first:], ids).out
    for positions in (ids, ids.int()):
        places = {"positions": positions[first:], "key_positions": positions}
        got = whorl.attention(x[:, :, first:], x, x, encoding=encoding, **places)
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-6)


def test_queries_of_xpos_too_far_apart_for_int32_are_refused():
    x, ids = normal(1, 2, 2, 8, dtype=torch.float32), torch.tensor([-(2**31), 2**31 - 1], dtype=torch.int32)
    with pytest.raises(whorl.WhorlError, match=r"XPos: float32 takes queries in a call that lie at most 32861"):
        whorl.attention(x, x, x, encoding=whorl.XPos(head_dim=8), positions=ids)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=5))
def test_biases_of_int32_positions_are_the_oracle(ids):
    positions = torch.tensor(ids, dtype=torch.int32)
    kerple, t5, sandwich = (whorl.build(name, heads=2) for name in ("kerple", "t5", "sandwich"))
    p, a = (each.detach().double().numpy() for each in (kerple.p, kerple.a))
    expected = {
        kerple: kerple_oracle.log_bias(np.maximum(p, 0.01), np.maximum(a, 0.01), ids, ids),
        t5: t5_oracle.bias(t5.table.detach().double().numpy(), ids, ids),
        sandwich: sandwich_oracle.bias(2, ids, ids),
        whorl.Alibi(heads=2): alibi_oracle.bias(ids, ids, alibi_oracle.slopes(2)),
    }
    for encoding, wanted in expected.items():
        got = encoding.score_bias(positions, positions).detach().double().numpy()
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=2e-5)


@settings(max_examples=100, deadline=None)
@given(st.integers(-(2**31), 2**31 - 1), st.integers(-(2**31), 2**31 - 1))
def test_the_difference_of_two_positions_is_exact_in_every_mix_of_types(i, j):
    for one in (torch.int32, torch.int64, torch.float64):
        for other in (torch.int32, torch.int64, torch.float64):
            pair = torch.tensor([i], dtype=one), torch.tensor([j], dtype=other)
            assert difference(*pair).tolist() == [i - j]
            counted = from_last_key(*pair)
            assert [int(each) for each in counted] == [i - j, 0]


def test_whole_numbers_beside_fractions_are_not_rounded_to_float32():
    x, keys = normal(1, 1, 4, 8, dtype=torch.float32), torch.arange(4) + 2**24
    query = torch.tensor([2.0**24 + 2])
    _, weights = whorl.attention(
        x[:, :, :1], x, x, causal="positions", positions=query, key_positions=keys, return_weights=True
    )
    assert (weights[0, 0, 0] > 0).tolist() == [True, True, True, False]  # 2^24 + 1 and + 3 have no float32
    window = whorl.Window(size=2).mask(query, keys)
    assert window.tolist() == [[False, True, True, True]]
