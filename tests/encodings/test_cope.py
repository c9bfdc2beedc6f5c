"""CoPE against the oracle: counted positions, interpolation, cached steps."""

import pytest
import torch

import whorl
from dense_flow import attend, by_parameters, normal, tokens, trained
from oracles import cope as oracle
from whorl.encodings.cope import contextual_positions, interpolated

CLOSE = {"rtol": 0, "atol": 1e-12}


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("max_position", [2, 3, 64])
def test_against_the_oracle(causal, max_position):
    cope = trained(whorl.Cope(head_dim=8, max_position=max_position, causal=causal))
    q, k, v = tokens(9)
    ids = torch.arange(9)
    for queries in (9, 4, 1):
        got = attend(cope, q[:, :, -queries:], k, v, ids[-queries:], ids, causal=causal)
        arrays = [x[0].numpy() for x in (q[:, :, -queries:], k)]
        want = torch.tensor(oracle.attention_scores(*arrays, cope.table.detach().numpy(), causal))
        seen = torch.isfinite(want)
        assert int(seen.sum()) == (sum(range(10 - queries, 10)) if causal else 9 * queries) * 2
        torch.testing.assert_close(got.scores[0][seen], want[seen], **CLOSE)


def test_gates_half_open_count_by_halves():
    positions = contextual_positions(torch.zeros(1, 1, 4, 4), 64, causal=True)[0, 0]
    assert positions.tolist() == [[0.5, 0, 0, 0], [1, 0.5, 0, 0], [1.5, 1, 0.5, 0], [2, 1.5, 1, 0.5]]
    assert contextual_positions(torch.zeros(1, 1, 2, 4), 2, causal=False)[0, 0].tolist() == [[1, 1, 1, 0.5]] * 2
    rows = torch.tensor([[0.0, 10.0, 30.0]])
    got = interpolated(rows, torch.tensor([[0.0, 0.25, 1.0, 1.5, 2.0]]))
    assert got.tolist() == [[0.0, 2.5, 10.0, 20.0, 30.0]]


def test_a_key_that_is_hidden_beforehand_is_not_counted():
    """Scores of minus infinity, as padding may have, close the gate."""
    cope = trained(whorl.Cope(head_dim=8))
    q, k, _ = tokens(6)
    ids, scores = torch.arange(6), (q @ k.mT) * 8**-0.5
    hidden = scores.clone()
    hidden[..., 2:4] = -torch.inf
    kept = [0, 1, 4, 5]
    whole = cope.adjust_scores(hidden, q, k, ids, ids, scale=8**-0.5)[..., -1:, kept]
    alone = cope.adjust_scores(scores[..., -1:, kept], q[..., -1:, :], k[..., kept, :], ids[-1:], ids[:4], scale=1.0)
    torch.testing.assert_close(whole, alone, **CLOSE)


def test_starts_as_attention_without_position():
    cope = whorl.Cope(head_dim=8)
    q, k, v = tokens(5, dtype=torch.float32)
    ids = torch.arange(5)
    torch.testing.assert_close(
        attend(cope, q, k, v, ids, ids).out,
        torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True),
        rtol=0,
        atol=1e-6,
    )


@pytest.mark.parametrize("max_position", [3, 16])
def test_gradients(max_position):
    cope = trained(whorl.Cope(head_dim=3, max_position=max_position))
    q, k, v = tokens(5, dim=3, grad=True)
    ids = torch.arange(5)

    def run(q, k):
        return attend(cope, q, k, v, ids, ids).weights

    assert torch.autograd.gradcheck(run, (q, k))
    call, parameters = by_parameters(cope, lambda: attend(cope, q.detach(), k.detach(), v, ids, ids).weights)
    assert torch.autograd.gradcheck(call, parameters)


def test_bfloat16_counts_in_float32():
    """Half precision would stop counting at 256."""
    cope = whorl.Cope(head_dim=4, max_position=4096).bfloat16()
    with torch.no_grad():
        cope.table.copy_(torch.arange(4096)[:, None] / 4)
    q = torch.ones(1, 1, 1, 4, dtype=torch.bfloat16)
    scores = torch.full((1, 1, 1, 2000), 20.0)  # open gates
    got = cope.adjust_scores(scores, q, normal(1, 1, 2000, 4, dtype=torch.bfloat16), None, None, scale=1.0)
    # the table is rounded to bfloat16; the count is not
    assert float(got[0, 0, 0, 0].detach()) == pytest.approx(2020, rel=2**-8)
    assert float(got[0, 0, 0, -1].detach()) == pytest.approx(21)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("causal", [True, False])
def test_one_nan_stays_in_its_own_row(dtype, causal):
    cope, (q, k, v) = trained(whorl.Cope(head_dim=8, causal=causal)), tokens(6, batch=2, dtype=dtype)
    wanted = whorl.attention(q, k, v, encoding=cope, causal=causal)
    spoiled = q.clone()
    spoiled[0, 1, 3, 5] = float("nan")
    got = whorl.attention(spoiled, k, v, encoding=cope, causal=causal)
    assert got[0, 1, 3].isnan().all()
    got[0, 1, 3] = wanted[0, 1, 3]
    assert torch.equal(got, wanted)


def test_inputs_that_overflow_leave_the_rest_of_the_batch_alone():
    cope, (q, k, v) = whorl.Cope(head_dim=8), tokens(6, batch=20, dtype=torch.float32)
    wanted = whorl.attention(q, k, v, encoding=cope)
    q[:19], k[:19] = q[:19] * 1e19, k[:19] * 1e19
    assert not (q[:19] @ k[:19].mT).isfinite().all()
    assert torch.equal(whorl.attention(q, k, v, encoding=cope)[19], wanted[19])
