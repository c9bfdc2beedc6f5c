"""T5's bias: whole-number bucket edges, the oracle, transformers' own module, gradients and the warning."""

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import T5Config as TransformersT5Config
from transformers.models.t5.modeling_t5 import T5Attention

import whorl
from oracles import t5 as oracle
from whorl import T5
from whorl.encodings.t5 import bucket_edges

POSITIONS = st.lists(st.integers(0, 3000), min_size=1, max_size=6)
SIZES = [(32, 128), (16, 128), (32, 256), (8, 20), (64, 512), (12, 96), (4, 5), (32, 17), (32, 1024), (6, 1000)]


def buckets(encoding, relative):
    return encoding.bucket(torch.zeros(1, dtype=torch.int64), torch.tensor(relative)).tolist()


def test_golden_edges():
    causal = [16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113]
    assert bucket_edges(32, 128) == [*range(1, 16), *causal]
    assert bucket_edges(16, 128) == [*range(1, 8), 8, 12, 16, 23, 32, 46, 64, 91]
    assert buckets(T5(heads=1), [-112, -113, -(10**6), 0, 1, 500]) == [30, 31, 31, 0, 0, 0]
    both = T5(heads=1, bidirectional=True)
    assert buckets(both, [0, -1, 1, -8, 8, 91, -91, 10**6]) == [0, 1, 17, 8, 24, 31, 15, 31]


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("count, max_distance", SIZES)
def test_buckets_are_the_oracle(count, max_distance, bidirectional):
    encoding = T5(heads=1, buckets=count, max_distance=max_distance, bidirectional=bidirectional)
    relative = list(range(-2 * max_distance, 2 * max_distance + 1))
    expected = [oracle.bucket(r, count, max_distance, bidirectional) for r in relative]
    assert buckets(encoding, relative) == expected
    floats = encoding.bucket(torch.zeros(1), torch.tensor(relative) + 0.0)
    assert floats.tolist() == expected


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 80), st.integers(1, 10**6), st.integers(0, 2**32))
def test_edges_are_where_the_oracle_changes_its_bucket(count, extra, seed):
    max_distance = count // 2 + extra
    edges = bucket_edges(count, max_distance)
    assert len(edges) == count - 1 and edges == sorted(edges) and edges[-1] <= max_distance
    rng = np.random.default_rng(seed)
    for edge in rng.choice(edges, size=3):
        for distance in (int(edge), int(edge) - 1):
            expected = sum(each <= distance for each in edges)
            assert oracle.one_sided(distance, count, max_distance) == expected


@settings(max_examples=40, deadline=None)
@given(POSITIONS, POSITIONS, st.sampled_from(SIZES), st.booleans(), st.integers(1, 5))
def test_the_bias_is_the_oracle(q_positions, k_positions, sizes, bidirectional, heads):
    count, max_distance = sizes
    encoding = T5(heads=heads, buckets=count, max_distance=max_distance, bidirectional=bidirectional)
    got = encoding.score_bias(torch.tensor(q_positions), torch.tensor(k_positions))
    table = encoding.table.detach().numpy()
    expected = oracle.bias(table, q_positions, k_positions, count, max_distance, bidirectional)
    assert got.dtype == torch.float32
    assert got.tolist() == expected.tolist()


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("past", [0, 30])
def test_the_bias_is_that_of_transformers(bidirectional, past):
    torch.manual_seed(0)
    config = TransformersT5Config(d_model=32, num_heads=4, d_kv=8, is_decoder=not bidirectional)
    theirs = T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    encoding = T5(heads=4, bidirectional=bidirectional)
    encoding.load_state_dict({"table": theirs.relative_attention_bias.weight.detach()})
    queries, keys = 300 - past, 300
    expected = theirs.compute_bias(queries, keys, past_seen_tokens=past)[0]
    got = encoding.score_bias(torch.arange(past, 300), torch.arange(300))
    assert torch.equal(got, expected)
    weights = torch.randn(expected.shape)
    own, other = (
        torch.autograd.grad((bias * weights).sum(), parameter)[0]
        for bias, parameter in ((got, encoding.table), (expected, theirs.relative_attention_bias.weight))
    )
    torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-3)


def test_attention_without_scaling_is_that_of_transformers():
    torch.manual_seed(0)
    heads, dim, length = 4, 8, 150
    config = TransformersT5Config(d_model=heads * dim, num_heads=heads, d_kv=dim, is_decoder=False, dropout_rate=0.0)
    config._attn_implementation = "eager"
    module = T5Attention(config, has_relative_attention_bias=True, layer_idx=0).eval()
    encoding = T5(heads=heads, bidirectional=True)
    encoding.load_state_dict({"table": module.relative_attention_bias.weight.detach()})
    hidden = torch.randn(1, length, heads * dim)
    with torch.no_grad():
        expected = module(hidden)[0]
        q, k, v = (part(hidden).view(1, length, heads, dim).transpose(1, 2) for part in (module.q, module.k, module.v))
        scores = q @ k.mT * encoding.softmax_scale(dim)
        scores = scores + encoding.score_bias(torch.arange(length), torch.arange(length))
        got = module.o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)


def test_scores_are_scaled_only_when_asked():
    assert T5(heads=2).softmax_scale(64) == 1.0
    assert T5(heads=2, scaled=True).softmax_scale(64) == 0.125


def test_gradients():
    encoding = T5(heads=3, buckets=6, max_distance=9, bidirectional=True).double()
    positions = torch.tensor([0, 1, 2, 5, 12])
    bias = encoding.score_bias(positions, positions)
    assert bias.dtype == torch.float64

    def run(table):
        return torch.func.functional_call(Biased(encoding), {"encoding.table": table}, (positions,))

    assert torch.autograd.gradcheck(run, (encoding.table,))
    bias.sum().backward()
    assert encoding.table.grad[0].tolist() == [5.0] * 3  # the five pairs of a position with itself
    assert float(encoding.table.grad.sum()) == 75.0


class Biased(torch.nn.Module):
    def __init__(self, encoding):
        super().__init__()
        self.encoding = encoding

    def forward(self, positions):
        return self.encoding.score_bias(positions, positions)


def test_a_warning_where_buckets_stay_untrained():
    with pytest.warns(
        UserWarning, match=r"T5: the last bucket begins at distance 113, .* length=64 .* Use max_distance=32\."
    ):
        T5(heads=2, length=64)
    with pytest.warns(UserWarning, match="begins at distance 113, .* length=113 "):
        whorl.build_for("t5", heads=2, head_dim=8, width=16, length=113)
    with pytest.warns(UserWarning, match=r"begins at distance 24, .* length=24 .* Use fewer buckets"):
        T5(heads=2, length=24, max_distance=24)  # as far as its max_distance
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        T5(heads=2, length=114)
        T5(heads=2)
        T5(heads=2, length=64, max_distance=32)


def test_the_table_starts_as_documented():
    torch.manual_seed(0)
    table = T5(heads=512, buckets=256, max_distance=1000).table.detach()
    assert abs(float(table.std()) - 512**-0.5) < 5e-4


def test_claims():
    claims = T5(heads=2).claims
    assert claims.relative and claims.norm_preserving
    assert claims.extrapolates and not claims.decays and not claims.linear_attention
