"""Log-n, scalable softmax and Llama 4's temperature: factors on queries, against the oracle and transformers."""

import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import whorl
from dense_flow import attend, by_parameters, tokens, trained
from oracles import score_scaling as oracle

POSITIONS = [0, 1, 2, 510, 511, 512, 8190, 8191, 8192, 131_071, 1_048_575, 2**24 + 1, 10**9]
CLOSE = {"rtol": 1e-14, "atol": 0}


def factors(encoding, positions=None):
    return encoding.query_factor(torch.tensor(POSITIONS if positions is None else positions))


@pytest.mark.parametrize("length", [2, 512, 4096])
def test_log_n(length):
    want = [oracle.log_n(p, length) for p in POSITIONS]
    torch.testing.assert_close(factors(whorl.LogN(trained_length=length))[0].tolist(), want, **CLOSE)


@pytest.mark.parametrize("bias", [False, True])
def test_ssmax(bias):
    ssmax = trained(whorl.SSMax(heads=3, bias=bias))
    s, b = ssmax.scale.tolist(), ssmax.bias.tolist() if bias else [0.0] * 3
    got = factors(ssmax).detach()
    want = torch.tensor([[oracle.ssmax(p, s[h], b[h]) for p in POSITIONS] for h in range(3)], dtype=torch.float64)
    torch.testing.assert_close(got, want, **CLOSE)
    assert whorl.SSMax(heads=2, scale=0.5).scale.tolist() == [0.5, 0.5]
    assert whorl.SSMax(heads=2).scale.tolist() == pytest.approx([0.43, 0.43])


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**12), st.integers(1, 10**6), st.floats(0.0, 2.0))
@example(0, 2, 0.5)
def test_llama4(position, floor_scale, attn_scale):
    encoding = whorl.Llama4Temperature(floor_scale=floor_scale, attn_scale=attn_scale)
    want = oracle.llama4(position, floor_scale, attn_scale)
    assert factors(encoding, [position]).item() == pytest.approx(want, rel=1e-14)


@pytest.mark.parametrize(("floor_scale", "attn_scale"), [(16384, 0.1), (3, 0.5)])
def test_ministral_counts_its_positions_from_zero(floor_scale, attn_scale):
    from transformers.models.ministral3.modeling_ministral3 import get_llama_4_attn_scale

    positions = torch.tensor([[0, 1, 2, 3, 16383, 16384, 32767, 262143]])
    encoding = whorl.Llama4Temperature(floor_scale=floor_scale, attn_scale=attn_scale, first=0)
    theirs = get_llama_4_attn_scale(positions, attn_scale, floor_scale)[0, 0, :, 0]
    torch.testing.assert_close(factors(encoding, positions[0].tolist())[0].float(), theirs)


def test_golden_values():
    got = factors(whorl.Llama4Temperature(), [0, 8190, 8191, 131_071, 1_048_575])[0].tolist()
    assert got == pytest.approx([1.0, 1.0, 1.06931, 1.28332, 1.48598], abs=6e-6)
    assert factors(whorl.LogN(trained_length=512), [0, 511, 512**2 - 1])[0].tolist() == [1.0, 1.0, 2.0]
    assert factors(whorl.SSMax(heads=1), [0, 9])[0].tolist() == pytest.approx([0, 0.43 * math.log(10)], rel=1e-7)


def test_llama4_against_transformers():
    """The model's own lines, through its attention: layers without RoPE scale queries so."""
    from transformers import Llama4TextConfig
    from transformers.models.llama4.modeling_llama4 import Llama4TextAttention

    config = Llama4TextConfig(
        hidden_size=16,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=8,
        num_hidden_layers=4,
        no_rope_layers=[0, 0, 0, 0],
        attn_temperature_tuning=True,
        floor_scale=3,
        attn_scale=0.5,
        use_qk_norm=False,
        attention_bias=False,
    )
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    module = Llama4TextAttention(config, layer_idx=0).eval()
    hidden = torch.randn(1, 11, 16)
    mask = torch.full((11, 11), -math.inf).triu(1)[None, None]
    with torch.no_grad():
        theirs, _ = module(hidden, (None, None), mask)
        q, k, v = (
            getattr(module, f"{name}_proj")(hidden).view(1, 11, 2, 8).transpose(1, 2) for name in ("q", "k", "v")
        )
        ids = torch.arange(11)
        ours = attend(whorl.Llama4Temperature(floor_scale=3, attn_scale=0.5), q, k, v, ids, ids).out
        ours = module.o_proj(ours.transpose(1, 2).flatten(-2))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


@pytest.mark.parametrize("make", [whorl.LogN, lambda: whorl.SSMax(heads=2), whorl.Llama4Temperature])
def test_only_queries_change_by_their_factor(make):
    encoding = make()
    q, k, _ = tokens(4, batch=2)
    ids = torch.tensor([[0, 5, 9000, 70_000], [3, 4, 5, 6]])
    scaled, same = encoding.transform_qk(q, k, ids, ids)
    assert same is k and encoding.scales_queries_only
    with torch.no_grad():
        expected = q * encoding.query_factor(ids).unsqueeze(-1)
    torch.testing.assert_close(scaled.detach(), expected, **CLOSE)
    alone, _ = encoding.transform_qk(q[1:], k, ids[1], ids)
    assert torch.equal(alone, scaled[1:])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_rounded_once(dtype):
    encoding = whorl.LogN(trained_length=16)
    q, k, _ = tokens(64, dtype=dtype)
    ids = torch.arange(64) + 10**6
    got, _ = encoding.transform_qk(q, k, ids, ids)
    assert got.dtype == dtype
    torch.testing.assert_close(got, (q.double() * encoding.query_factor(ids).unsqueeze(-1)).to(dtype), rtol=0, atol=0)


def test_padding_before_position_0_counts_as_0():
    for encoding in (whorl.LogN(), whorl.SSMax(heads=1), whorl.Llama4Temperature()):
        with torch.no_grad():
            assert torch.equal(factors(encoding, [-5, -1, 0]), factors(encoding, [0, 0, 0]))


def test_scaling_and_rotation_commute():
    rope, log_n = whorl.Rope(head_dim=8), whorl.LogN(trained_length=4)
    q, k, _ = tokens(30)
    ids = torch.arange(30)
    one, _ = log_n.transform_qk(*rope.transform_qk(q, k, ids, ids), ids, ids)
    two, _ = rope.transform_qk(*log_n.transform_qk(q, k, ids, ids), ids, ids)
    torch.testing.assert_close(one, two, rtol=0, atol=1e-14)


def test_log_n_keeps_the_entropy_of_random_scores():
    """What the factor is for: without it attention over 16 times the keys is flatter by ln 16."""
    torch.manual_seed(0)

    def entropy(n, factor):
        weights = (3 * factor * torch.randn(200, n)).softmax(-1)
        return float(-(weights * weights.clamp(min=1e-30).log()).sum(-1).mean())

    at_trained, at_long = entropy(512, 1.0), entropy(8192, 1.0)
    scaled = entropy(8192, oracle.log_n(8191, 512))
    assert at_long - at_trained > 2.0
    assert abs(scaled - at_trained) < 0.6 * (at_long - at_trained)


@pytest.mark.parametrize("bias", [False, True])
def test_gradients(bias):
    ssmax = trained(whorl.SSMax(heads=2, bias=bias))
    q, k, v = tokens(4, dim=3, grad=True)
    ids = torch.tensor([0, 1, 7, 9])
    assert torch.autograd.gradcheck(lambda q, k: attend(ssmax, q, k, v, ids, ids).out, (q, k))
    call, parameters = by_parameters(ssmax, lambda: attend(ssmax, q.detach(), k.detach(), v.detach(), ids, ids).out)
    assert len(parameters) == 1 + bias
    assert torch.autograd.gradcheck(call, parameters)
