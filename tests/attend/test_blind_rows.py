"""A bias of minus infinity is visibility: a query that sees nothing by it gets zeros, and no NaN comes up anywhere."""

import math

import numpy as np
import pytest
import torch

import whorl
from dense_flow import normal
from oracles import alibi as alibi_oracle
from oracles import cope as cope_oracle
from oracles import softmax_attention
from whorl.config import Config, config

HEADS, LENGTH = 4, 6
ROUNDED = {torch.float64: 1e-6, torch.float32: 2e-6, torch.bfloat16: 0.02, torch.float16: 0.003}  # biases are float32
IDS = list(range(LENGTH))


@config
class PastOnlyConfig(Config):
    name = "past_only"
    heads: int


class PastOnly(whorl.Encoding):
    """What a user may write: keys before the query only, by a bias."""

    Config = PastOnlyConfig

    def score_bias(self, q_positions, k_positions, length=None):
        before = q_positions[:, None] > k_positions
        return torch.where(before, 0.0, -math.inf).expand(self.config.heads, -1, -1)


SPLIT = whorl.Alibi(heads=HEADS, form="split")
SPLIT_BIAS = alibi_oracle.split(IDS, IDS, alibi_oracle.slopes(HEADS // 2))
ENCODINGS = {
    "split": (SPLIT, SPLIT_BIAS),
    "combined": (whorl.Combined(SPLIT, whorl.LogN(trained_length=512)), SPLIT_BIAS),
    "a user's own": (
        PastOnly(heads=HEADS),
        np.broadcast_to(np.where(np.tril(np.ones((LENGTH,) * 2), -1) > 0, 0.0, -np.inf), (HEADS, LENGTH, LENGTH)),
    ),
}

# The right heads of "split" see their own key at most, and query 3 not even that.
NOT_ITSELF = torch.ones(LENGTH, LENGTH, dtype=torch.bool)
NOT_ITSELF[3, 3] = False
CALLS = {
    "causal": {"causal": True},
    "masked": {"causal": True, "mask": NOT_ITSELF},
    "padded": {"causal": True, "key_mask": torch.tensor([[True, False, True, False, True, True]])},
    "encoder": {"causal": False, "mask": NOT_ITSELF},
    "no rule": {"causal": False},
}


def by_oracle(x, bias, causal, mask=None, key_mask=None, softcap=None):
    x = x.detach().double()[0].numpy()
    allowed = np.tril(np.ones((LENGTH,) * 2, dtype=bool)) if causal else np.ones((LENGTH,) * 2, dtype=bool)
    for rule in (mask, key_mask):
        allowed = allowed if rule is None else allowed & rule.numpy()
    scores = x @ x.transpose(0, 2, 1) / math.sqrt(x.shape[-1]) + bias
    if softcap is not None:
        scores = np.where(scores == -np.inf, scores, softcap * np.tanh(scores / softcap))
    return [torch.from_numpy(part)[None] for part in softmax_attention.attention(scores, x, allowed)]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("softcap", [None, 5.0])
@pytest.mark.parametrize("dtype", ROUNDED)
@pytest.mark.parametrize("name", ENCODINGS)
def test_a_query_that_sees_nothing_gets_zeros(name, dtype, softcap, call):
    (encoding, bias), x = ENCODINGS[name], normal(1, HEADS, LENGTH, 16, dtype=dtype)
    options = {**CALLS[call], "encoding": encoding, "softcap": softcap}
    out, weights, lse = by_oracle(x, bias, softcap=softcap, **CALLS[call])
    tolerance = {"rtol": 0, "atol": ROUNDED[dtype], "check_dtype": False}
    torch.testing.assert_close(whorl.attention(x, x, x, **options), out, **tolerance)
    found = whorl.attention(x, x, x, return_lse=True, return_weights=True, **options)
    for one, other in zip(found, (out, lse, weights), strict=True):
        torch.testing.assert_close(one, other, **tolerance)


def test_the_calls_have_queries_that_see_nothing():
    x, blind = normal(1, HEADS, LENGTH, 16), {}
    for name, (_, bias) in ENCODINGS.items():
        for call, options in CALLS.items():
            blind[name, call] = int((by_oracle(x, bias, **options)[2] == -math.inf).sum())
    assert blind["split", "masked"] and blind["split", "padded"] and blind["a user's own", "no rule"]


@pytest.mark.parametrize("call", ["masked", "padded"])
@pytest.mark.parametrize("extra", [{}, {"return_lse": True}, {"softcap": 5.0}])
def test_gradients_are_finite_and_zero_for_what_a_blind_query_would_have_seen(call, extra):
    x = [normal(1, HEADS, LENGTH, 16, seed=seed, grad=True) for seed in range(3)]
    found = whorl.attention(*x, encoding=SPLIT, **CALLS[call], **extra)
    out = found[0] if isinstance(found, tuple) else found
    total = out.sum()
    if "return_lse" in extra:
        total = total + found[1].masked_fill(found[1] == -math.inf, 0.0).sum()
    total.backward()
    assert all(t.grad.isfinite().all() for t in x)
    blind = (out == 0).all(-1)
    assert blind.any() and not x[0].grad[blind].any()


def test_gradients_of_formed_scores_are_those_of_differences():
    x = [normal(1, 2, 4, 3, seed=seed, grad=True) for seed in range(3)]
    mask = torch.ones(4, 4, dtype=torch.bool)
    mask[2, 2] = False
    split = whorl.Alibi(heads=2, form="split")

    def out(*x):
        return whorl.attention(*x, encoding=split, mask=mask, return_weights=True)[0]

    assert torch.autograd.gradcheck(out, x)


def test_flex_gives_zeros_too():
    x, positions = normal(1, HEADS, 32, 16, dtype=torch.float32), torch.arange(32)
    options = {"encoding": SPLIT, "positions": positions, "key_positions": positions + 16, "causal": "positions"}
    flex = whorl.attention(x, x, x, impl="flex", **options)
    assert not flex[:, :, :16].any() and flex.isfinite().all()
    torch.testing.assert_close(flex, whorl.attention(x, x, x, impl="torch", **options), rtol=0, atol=2e-6)


def test_gates_do_not_count_what_a_bias_hides():
    """CoPE beside split heads: the left heads count up to the query, though CoPE itself counts to the last key."""
    cope, x = whorl.Cope(head_dim=16, max_position=4, causal=False).double(), normal(1, HEADS, LENGTH, 16)
    torch.nn.init.normal_(cope.table)
    both = whorl.Combined(cope, SPLIT)
    out = whorl.attention(x, x, x, encoding=both, causal=False)
    own, table = x[0].numpy(), cope.table.detach().numpy()
    scores = cope_oracle.attention_scores(own, own, table, causal=True) + SPLIT_BIAS
    left = softmax_attention.attention(scores[:2], own[:2])[0]
    np.testing.assert_allclose(out[0, :2].detach().numpy(), left, rtol=0, atol=1e-6)


def test_a_nan_is_not_hidden():
    x = normal(1, HEADS, LENGTH, 16)
    q = x.clone()
    q[0, 0, 2] = math.nan
    out, lse = whorl.attention(q, x, x, encoding=SPLIT, mask=NOT_ITSELF, return_lse=True)
    assert out[0, 0].isnan().any(-1).tolist() == lse[0, 0].isnan().tolist() == [i == 2 for i in IDS]
    assert out[0, 1:].isfinite().all()


def test_no_keys_at_all():
    x = normal(1, HEADS, 2, 16)
    places = {"positions": torch.arange(2), "key_positions": torch.arange(0), "causal": False}
    out, lse = whorl.attention(x, x[:, :, :0], x[:, :, :0], encoding=SPLIT, return_lse=True, **places)
    assert not out.any() and (lse == -math.inf).all()
