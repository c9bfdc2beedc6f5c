"""causal="positions" with encodings that count tokens: they count by position, in whatever order tokens are given."""

import pytest
import torch

import whorl
from dense_flow import attend, normal
from whorl.shards import shard

HEADS, DIM, WIDTH, LENGTH = 2, 8, 12, 16
ZIGZAG = torch.cat([shard(torch.arange(LENGTH), rank=rank, world=2, scheme="zigzag") for rank in range(2)])


def cope(**settings):
    encoding = whorl.Cope(head_dim=DIM, max_position=5, **settings).double()
    torch.nn.init.normal_(encoding.table, generator=torch.Generator().manual_seed(0))
    return encoding


def gate():
    encoding = whorl.ForgettingGate(heads=HEADS, width=WIDTH, bias=0.0).double()
    torch.nn.init.normal_(encoding.gate.weight, generator=torch.Generator().manual_seed(0))
    return encoding


ENCODINGS = {
    "cope": cope(),
    "cope to the last key": cope(causal=False),
    "gate": gate(),
    "cope with rope": whorl.Combined(whorl.Rope(head_dim=DIM), cope()),
    "gate with alibi in a window": whorl.Combined(gate(), whorl.Alibi(heads=HEADS), whorl.Window(size=9)),
}


def inputs(encoding, batch=1):
    x = [normal(batch, HEADS, LENGTH, DIM, seed=seed) for seed in range(3)]
    return x, {"hidden": normal(batch, LENGTH, WIDTH, seed=7)} if encoding.reads_hidden else {}


def expected(encoding, q, k, v, hidden=None, documents=None):
    """The hooks written out, on tokens in order."""
    kept, ids = None if hidden is None else encoding.remember(hidden), torch.arange(LENGTH)
    return attend(encoding, q, k, v, ids, ids, hidden=kept, documents=documents)


@pytest.mark.parametrize("name", ENCODINGS)
@pytest.mark.parametrize("order", [ZIGZAG, torch.arange(LENGTH).flip(0), torch.arange(LENGTH)], ids=str)
def test_tokens_are_counted_in_the_order_of_their_positions(name, order):
    encoding = ENCODINGS[name]
    (q, k, v), options = inputs(encoding)
    if name == "cope to the last key":  # which closed scores end at the query
        wanted = whorl.attention(q, k, v, encoding=encoding)
    else:
        wanted = expected(encoding, q, k, v, **options).out
    moved = {name: x[:, order] for name, x in options.items()}
    got = whorl.attention(
        *(x[:, :, order] for x in (q, k, v)), encoding=encoding, positions=order, causal="positions", **moved
    )
    torch.testing.assert_close(got, wanted[:, :, order], rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["cope", "gate"])
def test_shards_of_queries_see_the_gathered_keys_in_any_order(name):
    encoding = ENCODINGS[name]
    (q, k, v), options = inputs(encoding)
    wanted = expected(encoding, q, k, v, **options).out
    for rank in range(2):
        own = shard(torch.arange(LENGTH), rank=rank, world=2, scheme="zigzag")
        for order in (torch.arange(LENGTH), ZIGZAG):
            moved = {name: x[:, order] for name, x in options.items()}
            got = whorl.attention(
                q[:, :, own], k[:, :, order], v[:, :, order], encoding=encoding, causal="positions",
                positions=own, key_positions=order, **moved,
            )  # fmt: skip
            torch.testing.assert_close(got, wanted[:, :, own], rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["cope", "gate"])
def test_rows_of_a_batch_have_orders_of_their_own(name):
    """With padding, a mask, and everything that can be asked for; texts of one row in another order are other texts."""
    encoding = ENCODINGS[name]
    x, options = inputs(encoding, batch=2)
    orders = torch.stack((ZIGZAG, torch.randperm(LENGTH, generator=torch.Generator().manual_seed(1))))
    real, mask = torch.ones(2, LENGTH, dtype=torch.bool), torch.ones(LENGTH, LENGTH, dtype=torch.bool)
    real[1, 5], mask[8, 3] = False, False
    asked = {"encoding": encoding, "return_lse": True, "return_weights": True, "softcap": 4.0}
    out, lse, weights = whorl.attention(*x, key_mask=real, mask=mask, **asked, **options)
    rows = torch.arange(2)[:, None]
    got = whorl.attention(
        *(t[rows, :, orders].transpose(1, 2) for t in x),
        positions=orders,
        causal="positions",
        key_mask=real[rows, orders],
        mask=mask[orders[:, :, None], orders[:, None, :]].unsqueeze(1),
        **asked,
        **{name: t[rows, orders] for name, t in options.items()},
    )
    wanted = (
        out[rows, :, orders].transpose(1, 2),
        lse[rows, :, orders].transpose(1, 2),
        torch.stack([weights[row][:, orders[row]][:, :, orders[row]] for row in range(2)]),
    )
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["cope", "gate"])
@pytest.mark.parametrize("batched", [False, True])
def test_documents_are_counted_each_by_itself(name, batched):
    encoding = ENCODINGS[name]
    (q, k, v), options = inputs(encoding)
    positions, documents = whorl.packed([10, 6]), whorl.documents([10, 6])
    wanted = expected(encoding, q, k, v, documents=documents, **options).out
    order = torch.randperm(LENGTH, generator=torch.Generator().manual_seed(2))
    ids = documents[order].expand(1, -1) if batched else documents[order]
    got = whorl.attention(
        *(x[:, :, order] for x in (q, k, v)), encoding=encoding, positions=positions[order], causal="positions",
        documents=ids, **{name: x[:, order] for name, x in options.items()},
    )  # fmt: skip
    torch.testing.assert_close(got, wanted[:, :, order], rtol=0, atol=1e-6)


def test_gradients_go_back_to_where_tokens_came_from():
    encoding, (x, options) = gate(), inputs(ENCODINGS["gate"])
    grads = []
    for order in (torch.arange(LENGTH), ZIGZAG):
        leaves = [t.clone().requires_grad_() for t in (*x, options["hidden"])]
        q, k, v = (t[:, :, order] for t in leaves[:3])
        out = whorl.attention(
            q, k, v, encoding=encoding, positions=order, causal="positions", hidden=leaves[3][:, order]
        )
        out[:, :, order.argsort()].cos().sum().backward()
        grads.append([t.grad for t in leaves])
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


@pytest.mark.parametrize("asked", [{"return_lse": True}, {"softcap": 5.0}])
def test_what_depends_on_the_querys_own_gate_is_refused_where_it_is_not_known(asked):
    (q, k, v), options = inputs(ENCODINGS["gate"])
    with pytest.raises(whorl.WhorlError, match=rf"which keys its queries are, and {next(iter(asked))} depends on it"):
        whorl.attention(
            q[:, :, :4], k, v, encoding=ENCODINGS["gate"], causal="positions",
            positions=torch.arange(4), key_positions=torch.arange(LENGTH), **asked, **options,
        )  # fmt: skip


def test_only_encodings_that_count_say_so():
    counting = {name for name in whorl.names() if build(name).counts_tokens}
    assert counting == {"cope", "forgetting_gate"}
    assert ENCODINGS["cope with rope"].counts_tokens and ENCODINGS["cope to the last key"].counts_tokens
    assert not whorl.Combined(whorl.Shaw(head_dim=DIM), whorl.XPos(head_dim=DIM)).counts_tokens


def build(name):
    return whorl.build_for(name, heads=HEADS, head_dim=DIM, width=HEADS * DIM, length=256)
