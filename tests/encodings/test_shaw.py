"""Shaw's relative representations against the oracle, by hand, and by what the gather must not do."""

import math

import pytest
import torch

import whorl
from dense_flow import attend, by_parameters, normal, tokens, trained
from oracles import shaw as oracle
from whorl.encodings.pairs import distances
from whorl.encodings.shaw import clipped_index, key_term, value_term

CLOSE = {"rtol": 0, "atol": 1e-12}


def expected(encoding, q, k, v, q_positions, k_positions, causal):
    tables = [None if t is None else t.detach().numpy() for t in (encoding.key_table, encoding.value_table)]
    arrays = [x[0].detach().numpy() for x in (q, k, v)]
    ids = q_positions.tolist(), k_positions.tolist()
    return [torch.tensor(x) for x in oracle.attention(*arrays, *tables, *ids, encoding.config.clip, causal)]


@pytest.mark.parametrize("values", [True, False])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("clip", [1, 3, 16])
def test_against_the_oracle(values, causal, clip):
    shaw = trained(whorl.Shaw(head_dim=8, clip=clip, values=values))
    q, k, v = tokens(9)
    positions = torch.arange(9)
    got = attend(shaw, q, k, v, positions, positions, causal=causal)
    scores, weights, out = expected(shaw, q, k, v, positions, positions, causal)
    seen = torch.isfinite(scores)
    torch.testing.assert_close(got.scores[0][seen], scores[seen], **CLOSE)
    torch.testing.assert_close(got.weights[0], weights, **CLOSE)
    torch.testing.assert_close(got.out[0], out, **CLOSE)


def test_positions_may_be_any_integers():
    shaw = trained(whorl.Shaw(head_dim=8, clip=4))
    q, (_, k, v) = tokens(3)[0], tokens(5, seed=1)
    q_positions, k_positions = torch.tensor([7, -2, 10**9]), torch.tensor([5, 9, -3, 0, 10**9 - 2])
    got = attend(shaw, q, k, v, q_positions, k_positions.int(), causal=False)
    for mine, theirs in zip(got, expected(shaw, q, k, v, q_positions, k_positions, False), strict=True):
        torch.testing.assert_close(mine[0], theirs, **CLOSE)


def test_by_hand():
    shaw = whorl.Shaw(head_dim=1, clip=1).double()
    with torch.no_grad():
        shaw.key_table.copy_(torch.tensor([[1.0], [2.0], [4.0]]).log())
        shaw.value_table.copy_(torch.tensor([[10.0], [20.0], [30.0]]))
    q, k, v = torch.ones(1, 1, 1, 1).double(), torch.zeros(1, 1, 3, 1).double(), torch.tensor([[1.0], [2.0], [3.0]])
    got = attend(shaw, q, k, v.double()[None, None], torch.tensor([5]), torch.tensor([0, 5, 6]), causal=False)
    torch.testing.assert_close(got.weights.flatten(), torch.tensor([1.0, 2, 4]).double() / 7)
    assert float(got.out.detach()) == pytest.approx((1 * 11 + 2 * 22 + 4 * 33) / 7)


def test_the_first_row_is_for_the_farthest_key_before_the_query():
    ids = torch.arange(4)
    assert clipped_index(distances("Shaw", ids, ids), 2).tolist() == [
        [2, 3, 4, 4],
        [1, 2, 3, 4],
        [0, 1, 2, 3],
        [0, 0, 1, 2],
    ]


def test_gradients():
    shaw = trained(whorl.Shaw(head_dim=3, clip=2))
    q, k, v = tokens(4, dim=3, grad=True)
    positions = torch.arange(4)

    def run(q, k, v):
        return attend(shaw, q, k, v, positions, positions).out

    assert torch.autograd.gradcheck(run, (q, k, v))
    call, parameters = by_parameters(shaw, lambda: attend(shaw, q.detach(), k, v, positions, positions).out)
    assert torch.autograd.gradcheck(call, parameters)


def test_no_tensor_grows_with_queries_times_keys_times_dim():
    """The largest tensor made is that of the scores, whatever the dimension."""
    shaw = whorl.Shaw(head_dim=256, clip=4)
    q, positions = normal(1, 1, 64, 256, dtype=torch.float32), torch.arange(64)
    sizes = []

    class Sizes(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            sizes.extend(t.numel() for t in torch.utils._pytree.tree_leaves(out) if isinstance(t, torch.Tensor))
            return out

    with Sizes():
        scores = shaw.adjust_scores(torch.zeros(1, 1, 64, 64), q, q, positions, positions, scale=1.0)
        shaw.adjust_output(q, scores.softmax(-1), q, positions, positions)
    assert max(sizes) == 64 * 256  # queries and values themselves


def test_half_precision_weights_are_summed_in_float32():
    """4096 equal weights below clip: summed in bfloat16 they would stop at 1/16."""
    shaw = whorl.Shaw(head_dim=4, clip=1)
    weights = torch.full((1, 1, 1, 4096), 1 / 4096, dtype=torch.bfloat16)
    index = torch.zeros(1, 4096, dtype=torch.long)
    got = value_term(weights, shaw.value_table, index)
    torch.testing.assert_close(got[0, 0, 0], shaw.value_table[0], rtol=1e-6, atol=1e-6)
    rows = key_term(torch.ones(1, 1, 1, 4, dtype=torch.bfloat16), shaw.key_table, index[:, :1], torch.float32)
    assert rows.dtype == torch.float32
    torch.testing.assert_close(rows.flatten(), shaw.key_table[0].sum()[None])


def test_starting_spread():
    torch.manual_seed(0)
    shaw = whorl.Shaw(head_dim=64, clip=200)
    for table in (shaw.key_table, shaw.value_table):
        assert float(table.detach().std()) == pytest.approx(1 / 8, rel=0.02)
    assert whorl.Shaw(head_dim=64, values=False).value_table is None
    assert math.prod(shaw.key_table.shape) == 401 * 64
