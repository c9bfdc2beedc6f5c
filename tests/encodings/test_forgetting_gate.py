"""The forgetting gate against the oracle, as ALiBi where it is constant, and exact over long texts."""

import math

import pytest
import torch

import whorl
from dense_flow import attend, by_parameters, normal, tokens, trained
from oracles import alibi
from oracles import forgetting as oracle
from whorl.encodings.forgetting_gate import by_document, forgotten

CLOSE = {"rtol": 0, "atol": 1e-12}


def make(heads=2, width=6):
    return trained(whorl.ForgettingGate(heads=heads, width=width))


@pytest.mark.parametrize("queries", [9, 4, 1])
def test_against_the_oracle(queries):
    fox = make()
    q, k, v = tokens(9)
    hidden, ids = normal(1, 9, 6, seed=3), torch.arange(9)
    kept = fox.remember(hidden)
    assert kept.shape == (1, 2, 9)
    gates = torch.nn.functional.logsigmoid(hidden[0] @ fox.gate.weight.T + fox.gate.bias).T.detach()
    torch.testing.assert_close(kept[0], gates, **CLOSE)
    got = attend(fox, q[:, :, -queries:], k, v, ids[-queries:], ids, hidden=kept)
    bias = torch.tensor(oracle.bias(gates.numpy(), range(9 - queries, 9), range(9)))
    want = (q[:, :, -queries:] @ k.mT) * 8**-0.5 + bias
    torch.testing.assert_close(got.scores, want, **CLOSE)


def test_a_constant_gate_is_alibi():
    slopes = alibi.slopes(6)
    gates = torch.tensor(-slopes)[None, :, None].expand(1, 6, 12)
    for dtype in (torch.float64, torch.float32):
        got = forgotten(gates.to(dtype), 5)[0]
        want = torch.tensor(alibi.bias(range(7, 12), range(12), slopes))
        torch.testing.assert_close(got, want.to(dtype), rtol=1e-6, atol=0)


def test_a_constant_gate_is_our_alibi_in_attention():
    """Zero weights leave the bias alone: log f = -slope of each head."""
    heads, width = 8, 4
    fox, ours = whorl.ForgettingGate(heads=heads, width=width).double(), whorl.build("alibi", heads=heads)
    slopes = torch.tensor(alibi.slopes(heads))
    with torch.no_grad():
        fox.gate.weight.zero_()
        fox.gate.bias.copy_(-torch.log(torch.expm1(slopes)))  # sigmoid(b) = e^-slope
    q, k, v = tokens(7, heads=heads)
    ids, hidden = torch.arange(7), normal(1, 7, width)
    got = attend(fox, q, k, v, ids, ids, hidden=fox.remember(hidden)).out
    torch.testing.assert_close(got, attend(ours, q, k, v, ids, ids).out, rtol=0, atol=1e-6)  # ALiBi's bias is float32


def test_remembering_token_by_token_is_remembering_all():
    fox = make()
    hidden = normal(2, 7, 6)
    parts = torch.cat([fox.remember(hidden[:, i : i + 1]) for i in range(7)], dim=-1)
    torch.testing.assert_close(parts, fox.remember(hidden), **CLOSE)


def test_near_keys_are_exact_however_long_the_text():
    """One float32 running sum would be off by 6e-4 at 100,000 tokens."""
    gates = torch.nn.functional.logsigmoid(normal(1, 1, 100_000))
    exact = forgotten(gates, 1)[0, 0, 0]
    total = gates.float().cumsum(-1)
    plain = (total[..., -1:] - total)[0, 0]
    near = slice(-1000, None)
    got = forgotten(gates.float(), 1)[0, 0, 0]
    assert got.dtype == torch.float32
    error, naive = (float((x[near].double() - exact[near]).abs().max()) for x in (got, plain))
    assert error < 1e-4 and naive > 10 * error
    torch.testing.assert_close(got.double(), exact, rtol=3e-7, atol=3e-5)


def test_starts_by_keeping_nearly_all():
    fox = whorl.ForgettingGate(heads=4, width=32)
    assert fox.gate.bias.tolist() == [5.0] * 4
    assert float(fox.gate.weight.detach().std()) < 0.05
    kept = fox.remember(torch.zeros(1, 1, 32))
    assert kept.flatten().tolist() == pytest.approx([math.log(1 / (1 + math.exp(-5)))] * 4, rel=1e-6)
    assert whorl.ForgettingGate(heads=1, width=2, bias=2.0).gate.bias.tolist() == [2.0]


def test_half_precision_hidden_states_give_float32_gates():
    fox = whorl.ForgettingGate(heads=2, width=8).bfloat16()
    kept = fox.remember(normal(1, 3, 8, dtype=torch.bfloat16))
    assert kept.dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert whorl.ForgettingGate(heads=2, width=8).remember(normal(1, 3, 8).float()).dtype == torch.float32


def test_autocast_does_not_round_the_gates():
    fox, hidden = whorl.ForgettingGate(heads=2, width=8), normal(1, 3, 8).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        kept = fox.remember(hidden)
    assert torch.equal(kept, fox.remember(hidden))


def test_gradients():
    fox = make(width=3)
    q, k, v = tokens(4, dim=3, grad=True)
    hidden, ids = normal(1, 4, 3, grad=True), torch.arange(4)

    def run(q, k, hidden):
        return attend(fox, q, k, v, ids, ids, hidden=fox.remember(hidden)).weights

    assert torch.autograd.gradcheck(run, (q, k, hidden))

    def fixed():
        return attend(fox, q.detach(), k.detach(), v, ids, ids, hidden=fox.remember(hidden.detach())).weights

    call, parameters = by_parameters(fox, fixed)
    assert torch.autograd.gradcheck(call, parameters)


def test_the_two_pieces_have_the_gradient_of_one():
    gates = torch.nn.functional.logsigmoid(normal(1, 2, 6)).detach()
    grads = []
    for dtype in (torch.float64, torch.float32):
        leaf = gates.detach().clone().to(dtype).requires_grad_()
        forgotten(leaf, 6).tril().sin().sum().backward()
        grads.append(leaf.grad.double())
    torch.testing.assert_close(*grads, rtol=1e-5, atol=1e-5)


INTERLEAVED = {
    "one for all rows": torch.tensor([0, 1, 0, 1, 1, 0, 2, 1]),
    "one for each row": torch.tensor([[7, 3, 7, 3, 3, 3, 7, 7], [0, 0, 1, 0, 1, 1, 0, 1]]),
}


@pytest.mark.parametrize("which", INTERLEAVED)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_sums_run_over_the_tokens_of_a_document(which, dtype):
    """Whatever lies between: each document gets what it gets alone, by the order of tokens and by positions."""
    fox, documents = make().to(dtype), INTERLEAVED[which]
    q, k, v = tokens(8, batch=2, dtype=dtype)
    hidden = normal(2, 8, 6, dtype=dtype)
    options = {"encoding": fox, "hidden": hidden, "return_lse": True}
    by_order = whorl.attention(q, k, v, documents=documents, **options)
    positions = {"causal": "positions", "positions": torch.arange(8)}
    by_position = whorl.attention(q, k, v, documents=documents, **positions, **options)
    last = {"documents": documents[..., 3:], "key_documents": documents}
    of_the_last = whorl.attention(q[:, :, 3:], k, v, **last, **options)
    close = {"rtol": 0, "atol": 1e-12 if dtype == torch.float64 else 2e-6}
    for i, each in enumerate(by_order):
        torch.testing.assert_close(by_position[i], each, **close)
        torch.testing.assert_close(of_the_last[i], each[:, :, 3:], **close)
    for row, ids in enumerate(documents.expand(2, -1)):
        for document in ids.unique():
            own = (ids == document).nonzero()[:, 0]
            part = [x[row : row + 1, :, own] for x in (q, k, v)]
            alone = whorl.attention(*part, encoding=fox, hidden=hidden[row : row + 1, own], return_lse=True)
            for i, each in enumerate(alone):
                torch.testing.assert_close(by_order[i][row : row + 1, :, own], each, **close)


def test_gradients_of_interleaved_documents_are_those_of_each_alone():
    fox, documents = make(), INTERLEAVED["one for all rows"]
    (q, k, v), hidden = tokens(8), normal(1, 8, 6, grad=True)
    out = whorl.attention(q, k, v, encoding=fox, hidden=hidden, documents=documents)
    (together,) = torch.autograd.grad(out.square().sum(), hidden)
    for document in range(3):
        own = (documents == document).nonzero()[:, 0]
        leaf = hidden.detach()[:, own].requires_grad_()
        alone = whorl.attention(*(x[:, :, own] for x in (q, k, v)), encoding=fox, hidden=leaf)
        torch.testing.assert_close(torch.autograd.grad(alone.square().sum(), leaf)[0], together[:, own], **CLOSE)


def test_sums_of_interleaved_documents_are_exact_however_long_the_text():
    """What a sum grows by from one document to another is as large as the sums, and cancels in float64."""
    gates = torch.nn.functional.logsigmoid(normal(1, 1, 20_000))
    documents = torch.randint(0, 5, (20_000,), generator=torch.Generator().manual_seed(0))
    own = (documents == documents[-1]).nonzero()[:, 0]
    exact = forgotten(gates[..., own], 1)[0, 0, 0]
    got = forgotten(by_document(gates.float(), documents), 1, torch.float32)[0, 0, 0, own]
    torch.testing.assert_close(got.double(), exact, rtol=3e-7, atol=3e-5)
