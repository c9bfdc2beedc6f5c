"""Transformer-XL's relative attention: both forms against the oracle and against XLNet's module."""

import pytest
import torch
from transformers import XLNetConfig
from transformers.models.xlnet.modeling_xlnet import XLNetModel, XLNetRelativeAttention

import whorl
from dense_flow import attend, by_parameters, tokens, trained
from oracles import transformer_xl as oracle
from whorl.encodings.transformer_xl import codes

CLOSE = {"rtol": 0, "atol": 1e-11}


def make(heads=2, head_dim=8, spread=0.5, **settings):
    return trained(whorl.TransformerXL(heads=heads, head_dim=head_dim, **settings), spread=spread)


def expected(xl, q, k, q_positions, k_positions):
    u, v, w = (p.detach().numpy() for p in (xl.content_bias, xl.position_bias, xl.projection))
    arrays = [x[0].detach().numpy() for x in (q, k)]
    return torch.tensor(oracle.scores(*arrays, u, v, w, q_positions.tolist(), k_positions.tolist(), xl.config.clamp))


@pytest.mark.parametrize("clamp", [None, 1, 3, 100])
@pytest.mark.parametrize("width", [None, 6, 7])
def test_against_the_oracle(clamp, width):
    xl = make(clamp=clamp, width=width)
    q, k, v = tokens(7)
    ids = torch.arange(7)
    got = attend(xl, q, k, v, ids, ids, causal=False)
    torch.testing.assert_close(got.scores[0], expected(xl, q, k, ids, ids), **CLOSE)


@pytest.mark.parametrize("clamp", [None, 5])
def test_positions_may_be_any_integers(clamp):
    xl = make(clamp=clamp)
    q, k = tokens(3)[0], tokens(5, seed=1)[1]
    q_positions, k_positions = torch.tensor([7, -2, 900_000]), torch.tensor([5, 9, -3, 0, 899_990])
    got = attend(xl, q, k, k, q_positions, k_positions, causal=False)
    # the code of 900,003 positions apart: the angle itself is rounded in both, 1e-16 of it
    torch.testing.assert_close(got.scores[0], expected(xl, q, k, q_positions, k_positions), rtol=0, atol=1e-9)


def test_the_two_forms_agree_and_float32_is_exact_at_far_positions():
    free, clamped = make(head_dim=16), make(head_dim=16, clamp=64)
    clamped.load_state_dict(free.state_dict())
    q, k, v = tokens(12, dim=16)
    ids = torch.arange(12) + 1_000_000
    one, two = (attend(xl, q, k, v, ids, ids, causal=False).scores for xl in (free, clamped))
    torch.testing.assert_close(one, two, rtol=0, atol=1e-9)
    free.float()
    got = attend(free, *(x.float() for x in (q, k, v)), ids, ids, causal=False).scores
    torch.testing.assert_close(got.double(), one, rtol=0, atol=2e-5)


@pytest.mark.parametrize("clamp", [None, 3])
def test_against_xlnet(clamp):
    heads, dim, length = 2, 4, 6
    config = XLNetConfig(vocab_size=8, d_model=heads * dim, n_layer=1, n_head=heads, d_inner=8, clamp_len=clamp or -1)
    torch.manual_seed(0)
    module = XLNetRelativeAttention(config).eval().double()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)
    code = XLNetModel(config).relative_positional_encoding(length, length).double()
    q, k = torch.randn(2, length, 1, heads, dim, dtype=torch.float64)
    with torch.no_grad():
        keys = torch.einsum("ibh,hnd->ibnd", code, module.r)
        _, weights = module.rel_attn_core(q, k, k, keys, output_attentions=True)
    xl = whorl.TransformerXL(heads=heads, head_dim=dim, clamp=clamp).double()
    xl.load_state_dict(
        {
            "content_bias": module.r_w_bias.detach(),
            "position_bias": module.r_r_bias.detach(),
            "projection": module.r.detach().permute(1, 2, 0),
        }
    )
    q, k = (x[:, 0].transpose(0, 1)[None] for x in (q, k))
    got = attend(xl, q, k, k, torch.arange(length), torch.arange(length), causal=False)
    torch.testing.assert_close(got.weights[0], weights[:, :, 0].permute(2, 0, 1), rtol=0, atol=1e-5)  # fp32 codes


def test_golden_codes():
    got = codes(torch.tensor([2]), 8, 10_000.0, torch.float64)[0]
    golden = [0.90930, 0.19867, 0.01999867, 0.002, -0.41615, 0.98007, 0.99980, 0.999998]
    torch.testing.assert_close(got, torch.tensor(golden).double(), rtol=0, atol=5e-6)
    assert codes(torch.tensor([0, 5]), 5, 10_000.0, torch.float64)[:, -1].tolist() == [0, 0]


@pytest.mark.parametrize("clamp", [None, 2])
def test_gradients(clamp):
    xl = make(head_dim=3, clamp=clamp)
    q, k, v = tokens(4, dim=3, grad=True)
    ids = torch.tensor([0, 2, 3, 9])

    def run(q, k):
        return attend(xl, q, k, v, ids, ids).weights

    assert torch.autograd.gradcheck(run, (q, k))
    call, parameters = by_parameters(xl, lambda: attend(xl, q.detach(), k.detach(), v, ids, ids).weights)
    assert torch.autograd.gradcheck(call, parameters)


def test_bfloat16_queries_meet_float32_codes():
    xl = whorl.TransformerXL(heads=2, head_dim=16).bfloat16()
    exact = whorl.TransformerXL(heads=2, head_dim=16).double()
    exact.load_state_dict(xl.state_dict())
    q, k, _ = tokens(9, dim=16, dtype=torch.bfloat16)
    ids, scores = torch.arange(9) + 100_000, torch.zeros(1, 2, 9, 9)
    got = xl.adjust_scores(scores, q, k, ids, ids, scale=1.0)
    want = exact.adjust_scores(scores.double(), q.double(), k.double(), ids, ids, scale=1.0)
    torch.testing.assert_close(got.double(), want, rtol=0, atol=2e-6)
