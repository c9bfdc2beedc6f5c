"""ALiBi: slopes, forms, transformers' roundings, the key form and the fold into extra dimensions."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import FalconConfig
from transformers.models.bloom.modeling_bloom import build_alibi_tensor as bloom_alibi
from transformers.models.falcon.modeling_falcon import FalconAttention
from transformers.models.falcon.modeling_falcon import build_alibi_tensor as falcon_alibi
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

from oracles import alibi as oracle
from whorl import Alibi, WhorlError
from whorl.encodings.alibi import press_slopes, round_to_bfloat16
from whorl.reference import alibi_slopes

POSITIONS = st.lists(st.integers(0, 2**20), min_size=1, max_size=6)
HEADS = [1, 2, 3, 6, 8, 12, 16, 40, 71]


def without_row_constant(bias):
    """A softmax does not see what every key of a query has alike."""
    return bias - bias.mean(-1, keepdim=True)


# -- slopes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("heads", range(1, 129))
def test_slopes_are_those_of_the_oracle_and_the_reference(heads):
    for rule in ("press", "geometric"):
        got = Alibi(heads=heads, slopes=rule).slopes().double().numpy()
        np.testing.assert_allclose(got, oracle.slopes(heads, rule), rtol=2**-24, atol=0)
    np.testing.assert_allclose(press_slopes(heads), alibi_slopes(heads), rtol=1e-15, atol=0)


def test_golden_slopes():
    assert Alibi(heads=8).slopes().tolist() == [2.0**-h for h in range(1, 9)]
    assert np.log2(Alibi(heads=16).slopes().numpy()).round(6).tolist() == [-h / 2 for h in range(1, 17)]
    twelve = [-1, -2, -3, -4, -5, -6, -7, -8, -0.5, -1.5, -2.5, -3.5]
    assert np.log2(Alibi(heads=12).slopes().numpy()).round(6).tolist() == twelve
    assert Alibi(heads=1).slopes().tolist() == [2.0**-8]
    np.testing.assert_allclose(Alibi(heads=3, slopes=[1, 0.1, 0]).slopes().numpy(), [1, 0.1, 0], rtol=2**-24)


def test_the_two_rules_differ_where_heads_are_no_power_of_two():
    for heads in HEADS:
        press, geometric = (Alibi(heads=heads, slopes=rule).slopes() for rule in ("press", "geometric"))
        assert torch.equal(press, geometric) == (heads & (heads - 1) == 0)


# -- forms ------------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(POSITIONS, POSITIONS, st.sampled_from(HEADS), st.sampled_from(["press", "geometric"]))
def test_causal_and_symmetric_forms_are_the_oracle(q_positions, k_positions, heads, rule):
    slopes = oracle.slopes(heads, rule)
    for form in ("causal", "symmetric"):
        encoding = Alibi(heads=heads, slopes=rule, form=form)
        got = encoding.score_bias(torch.tensor(q_positions), torch.tensor(k_positions))
        expected = oracle.bias(q_positions, k_positions, slopes, form)
        assert got.dtype == torch.float32 and got.shape == expected.shape
        np.testing.assert_allclose(got.double().numpy(), expected, rtol=2**-22, atol=0)


@settings(max_examples=40, deadline=None)
@given(POSITIONS, POSITIONS, st.integers(1, 12), st.floats(-4, 4))
def test_split_and_offset_forms_are_the_oracle(q_positions, k_positions, half, offset):
    slopes = oracle.slopes(half)
    queries, keys = torch.tensor(q_positions), torch.tensor(k_positions)
    split = Alibi(heads=2 * half, form="split").score_bias(queries, keys)
    np.testing.assert_allclose(split.double().numpy(), oracle.split(q_positions, k_positions, slopes), rtol=2**-22)
    moved = Alibi(heads=half, form="offset", offset=offset).score_bias(queries, keys)
    expected = oracle.offset(q_positions, k_positions, slopes, offset)
    np.testing.assert_allclose(moved.double().numpy(), expected, rtol=2**-21, atol=1e-7)


def test_forms_by_hand():
    queries, keys = torch.tensor([2]), torch.tensor([0, 2, 3])
    assert Alibi(heads=1, slopes=[0.5]).score_bias(queries, keys).tolist() == [[[-1.0, 0.0, 0.5]]]
    symmetric = Alibi(heads=1, slopes=[0.5], form="symmetric")
    assert symmetric.score_bias(queries, keys).tolist() == [[[-1.0, 0.0, -0.5]]]
    offset = Alibi(heads=1, slopes=[0.5], form="offset", offset=0.25)
    assert offset.score_bias(queries, keys).tolist() == [[[-1.0, 0.0, -0.625]]]
    split = Alibi(heads=2, slopes=[0.5], form="split").score_bias(queries, keys)
    assert split.tolist() == [[[-1.0, 0.0, -math.inf]], [[-math.inf, 0.0, -0.5]]]


def test_every_query_of_a_split_head_sees_itself():
    encoding, positions = Alibi(heads=4, form="split"), torch.arange(50)
    weights = encoding.score_bias(positions, positions).softmax(-1)
    assert torch.isfinite(weights).all()
    assert not weights[:2].triu(1).any() and not weights[2:].tril(-1).any()


@pytest.mark.parametrize("heads", [8, 12])
def test_the_distance_is_exact_where_the_product_of_a_position_is_not(heads):
    """Ten million tokens in, neighbours are told apart as well as at the start."""
    encoding = Alibi(heads=heads)
    near, far = (encoding.score_bias(torch.arange(9) + start, torch.arange(9) + start) for start in (0, 10**9))
    assert torch.equal(near, far)


def test_scale_stretches_the_reach():
    """Slopes times L / L' are the interpolation of arXiv 2310.13017."""
    positions = torch.arange(20)
    plain, scaled = Alibi(heads=6), Alibi(heads=6, scale=0.25)
    expected = plain.score_bias(positions, positions) / 4
    torch.testing.assert_close(scaled.score_bias(positions, positions), expected, rtol=1e-6, atol=0)
    assert torch.equal(scaled.score_bias(4 * positions, 4 * positions), plain.score_bias(positions, positions))


# -- transformers -----------------------------------------------------------------------------------------------------

LENGTHS = (7, 300, 2100)


def left_padded(batch, length):
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[0, : length // 3] = 0
    return mask, (mask.cumsum(-1) - 1) * mask


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("length", LENGTHS)
def test_bloom_in_bfloat16_bit_for_bit(heads, length):
    mask, positions = left_padded(2, length)
    theirs = bloom_alibi(mask, heads, torch.bfloat16).view(2, heads, 1, length)
    encoding = Alibi(heads=heads, rounding="hf_bf16")
    assert torch.equal(encoding.key_bias(positions).bfloat16(), theirs[:, :, 0])
    assert torch.equal(encoding.key_bias(positions), theirs[:, :, 0].float())
    assert torch.equal(encoding.score_bias(positions[:, -2:], positions), theirs.float().expand(-1, -1, 2, -1))


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("length", LENGTHS)
def test_falcon_bit_for_bit(heads, length):
    mask, positions = left_padded(2, length)
    for dtype in (torch.bfloat16, torch.float32):
        theirs = falcon_alibi(mask, heads, dtype).view(2, heads, length)
        assert torch.equal(Alibi(heads=heads, rounding="hf_falcon").key_bias(positions), theirs.float())


@pytest.mark.parametrize("heads", HEADS)
def test_bloom_and_mpt_in_float32_but_for_a_number_per_row(heads):
    length = 300
    ours = without_row_constant(Alibi(heads=heads).score_bias(torch.arange(length), torch.arange(length)))
    for theirs in (
        bloom_alibi(torch.ones(1, length), heads, torch.float32).view(heads, 1, length),
        build_mpt_alibi_tensor(heads, length),
    ):
        torch.testing.assert_close(ours, without_row_constant(theirs).expand_as(ours), rtol=0, atol=2e-4)


def test_falcon_divides_its_bias_by_the_root_of_the_head():
    """Falcon's own attention, whose weights are ours with scale=head_dim**-0.5."""
    heads, dim, length = 6, 8, 40
    config = FalconConfig(
        hidden_size=heads * dim, num_attention_heads=heads, alibi=True, multi_query=False, attn_implementation="eager"
    )
    torch.manual_seed(0)
    module = FalconAttention(config, layer_idx=0).eval()
    hidden = torch.randn(1, length, heads * dim)
    causal = torch.full((1, 1, length, length), torch.finfo(torch.float32).min).triu(1)
    alibi = falcon_alibi(torch.ones(1, length, dtype=torch.int64), heads, torch.float32)
    with torch.no_grad():
        _, theirs = module(hidden, alibi=alibi, attention_mask=causal, output_attentions=True)
        q, k, _ = module._split_heads(module.query_key_value(hidden))
        q, k = q.transpose(1, 2), k.transpose(1, 2)
    encoding = Alibi(heads=heads, rounding="hf_falcon", scale=dim**-0.5)
    bias = encoding.score_bias(torch.arange(length), torch.arange(length))
    ours = (q @ k.mT * encoding.softmax_scale(dim) + bias + causal).softmax(-1)
    torch.testing.assert_close(ours, theirs.view_as(ours), rtol=0, atol=1e-6)


def test_what_bfloat16_costs():
    """The error of the key form at slope 1/2, in nats: 1.0 at 512 keys, 8 at 8192; the relative form has none."""
    for length, expected in ((512, 1.0), (2048, 4.0), (8192, 16.0)):
        positions = torch.arange(length)
        exact = oracle.slopes(8)[0] * positions.double()
        rounded = Alibi(heads=8, rounding="hf_bf16").key_bias(positions)[0].double()
        assert float((rounded - exact).abs().max()) == expected / 2
        error = rounded - exact
        assert float(error.max() - error.min()) <= expected  # between two keys


def test_rounding_to_bfloat16_on_the_bits():
    x = torch.randn(10_000, generator=torch.Generator().manual_seed(0)) * 10.0 ** torch.arange(-20, 20).repeat(250)
    ties = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, 0.0, -0.0, -1.00390625, 256.5])
    for values in (x, ties):
        assert torch.equal(round_to_bfloat16(values), values.bfloat16().float())


# -- the key form and the fold ----------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 4096), min_size=2, max_size=8), st.sampled_from(HEADS))
def test_the_key_form_differs_by_a_number_per_row(positions, heads):
    encoding, ids = Alibi(heads=heads), torch.tensor(positions)
    full = encoding.score_bias(ids, ids).double()
    key = encoding.key_bias(ids).double()[:, None, :].expand_as(full)
    torch.testing.assert_close(without_row_constant(key), without_row_constant(full), rtol=0, atol=1e-3)
    torch.testing.assert_close(key.softmax(-1), full.softmax(-1), rtol=0, atol=1e-3)
    assert encoding.key_bias(torch.stack((ids, ids + 1))).shape == (2, heads, len(positions))


@settings(max_examples=60, deadline=None)
@given(POSITIONS, POSITIONS, st.sampled_from(HEADS), st.sampled_from([1.0, 0.125, 128**-0.5]))
def test_folded_in_wide_types_the_product_is_the_bias(q_positions, k_positions, heads, scale):
    encoding = Alibi(heads=heads)
    for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 2e-7)):
        queries, keys = encoding.fold(torch.tensor(q_positions), torch.tensor(k_positions), dtype, scale)
        assert queries.shape == (heads, len(q_positions), 3) and keys.shape == (1, len(k_positions), 3)
        assert queries.dtype == keys.dtype == dtype
        product = (queries.double() @ keys.double().mT * scale).numpy()
        expected = oracle.bias(q_positions, k_positions, oracle.slopes(heads))
        np.testing.assert_allclose(product, expected, rtol=0, atol=tolerance * 2**20)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 2**17), min_size=1, max_size=8),
    st.sampled_from(HEADS),
    st.sampled_from([1.0, 0.125, 128**-0.5]),
    st.sampled_from([torch.bfloat16, torch.float16]),
)
def test_folded_in_half_precision_it_is_the_bias_but_for_a_number_per_row(positions, heads, scale, dtype):
    encoding, ids = Alibi(heads=heads), torch.tensor(positions)
    queries, keys = encoding.fold(ids, ids, dtype, scale)
    assert queries.shape == (heads, len(positions), 8) and keys.shape == (1, len(positions), 8)
    assert queries.dtype == keys.dtype == dtype
    product = without_row_constant(queries.double() @ keys.double().mT * scale)
    expected = without_row_constant(torch.from_numpy(oracle.bias(positions, positions, oracle.slopes(heads))))
    # the product left out, and a last place of the slope at a far position; float16 ends at 2^-24
    allowed = encoding.slopes().double()[:, None, None] / 128 + (2**-15 if dtype == torch.float16 else 0)
    assert ((product - expected).abs() <= allowed).all()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 255 * 2**16), min_size=1, max_size=8), st.sampled_from([torch.bfloat16, torch.float16]))
def test_half_precision_holds_every_distance_to_the_last_key_exactly(positions, dtype):
    _, keys = Alibi(heads=1).fold(torch.tensor([0]), torch.tensor(positions), dtype)
    top, upper, low = (keys[0, :, dim].double() for dim in (0, 3, 6))
    assert (256 * (top + upper) + low).tolist() == [position - max(positions) for position in positions]


@pytest.mark.parametrize("heads", [8, 12, 32])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("start", [0, 65_400, 1_000_000])
def test_a_window_of_300_keys_folds_to_a_thousandth_of_the_slope(heads, dtype, start):
    encoding, ids = Alibi(heads=heads), torch.arange(start, start + 300)
    queries, keys = encoding.fold(ids, ids, dtype, 128**-0.5)
    product = without_row_constant(queries.double() @ keys.double().mT * 128**-0.5)
    expected = without_row_constant(encoding.score_bias(ids, ids).double())
    assert ((product - expected).abs() <= 1e-3 * encoding.slopes()[:, None, None]).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_positions_between_two_fold_as_well(dtype):
    encoding, ids = Alibi(heads=6), torch.arange(40) * 7.3
    queries, keys = encoding.fold(ids, ids, dtype)
    assert keys.shape[-1] == (3 if dtype == torch.float32 else 9)
    product = without_row_constant(queries.double() @ keys.double().mT)
    expected = without_row_constant(encoding.score_bias(ids, ids).double())
    torch.testing.assert_close(product, expected, rtol=0, atol=4e-3 if dtype != torch.float32 else 1e-4)


def test_rows_of_a_batch_fold_by_themselves():
    encoding = Alibi(heads=6)
    rows = torch.stack((torch.arange(9), torch.arange(9) * 5))
    for dtype in (torch.float32, torch.bfloat16):
        queries, keys = encoding.fold(rows, rows, dtype)
        assert queries.shape[:3] == (2, 6, 9) and keys.shape[:3] == (2, 1, 9)
        product = without_row_constant(queries.double() @ keys.double().mT)
        expected = without_row_constant(encoding.score_bias(rows, rows).double())
        torch.testing.assert_close(product, expected, rtol=0, atol=1e-3)


@pytest.mark.parametrize("dim", [16, 64])
def test_folded_in_front_a_plain_kernel_has_the_accuracy_of_a_dense_mask(dim):
    """float32, 2048 tokens in: the products of the bias cancel before the content is added."""
    heads, length = 6, 600
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, heads, length, dim, generator=generator) for _ in range(3))
    encoding, positions = Alibi(heads=heads), torch.arange(2048, 2048 + length)
    bias = encoding.score_bias(positions, positions)
    hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
    scores = (q.double() @ k.double().mT / dim**0.5 + bias.double()).masked_fill(hidden, -math.inf)
    expected = scores.softmax(-1) @ v.double()
    queries, keys = encoding.fold(positions, positions, torch.float32, dim**-0.5)
    got = torch.nn.functional.scaled_dot_product_attention(
        torch.cat((queries.expand(1, -1, -1, -1), q), -1),
        torch.cat((keys.expand(1, heads, -1, -1), k), -1),
        torch.nn.functional.pad(v, (0, 3)),  # of one size with the keys, or a kernel runs that rounds j in between
        is_causal=True,
        scale=dim**-0.5,
    )[..., :dim]
    assert float((got.double() - expected).abs().max()) < 5e-6


def test_only_the_exact_causal_bias_folds():
    ids = torch.arange(4)
    assert Alibi(heads=2).folds
    for settings_ in (
        {"form": "symmetric"},
        {"form": "split"},
        {"form": "offset", "offset": 1.0},
        {"rounding": "hf_bf16"},
    ):
        encoding = Alibi(heads=2, **settings_)
        assert not encoding.folds
        with pytest.raises(WhorlError, match=r"Alibi\.fold: only the exact causal bias is a product, got form="):
            encoding.fold(ids, ids)


def test_claims():
    claims = Alibi(heads=8).claims
    assert claims.relative and claims.decays and claims.extrapolates and claims.norm_preserving
    assert not claims.linear_attention
    rounded = Alibi(heads=8, rounding="hf_bf16").claims
    assert not rounded.relative and not rounded.extrapolates
    assert not Alibi(heads=2, slopes=[1.0, 0.0]).claims.decays
