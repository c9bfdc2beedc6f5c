"""xPos against mpmath at any position, without overflow, from one centre for queries and keys."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import whorl
from dense_flow import attend, normal, tokens
from helpers import LAYOUTS, SCALINGS
from oracles import xpos as oracle

ROUNDING = {torch.float32: 2**-22, torch.bfloat16: 2**-7, torch.float16: 2**-10}


def scores(xpos, q, k, q_positions, k_positions, dtype=torch.float64):
    rq, rk = xpos.transform_qk(q.to(dtype), k.to(dtype), q_positions, k_positions)
    assert rq.dtype == rk.dtype == dtype
    assert bool(torch.isfinite(rq).all()) and bool(torch.isfinite(rk).all())
    return rq.double() @ rk.double().mT


def want(q, k, q_positions, k_positions, layout="half", **how):
    arrays = [x[0].double().numpy() for x in (q, k)]
    return torch.tensor(oracle.scores(*arrays, q_positions.tolist(), k_positions.tolist(), layout=layout, **how))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_against_the_oracle(layout):
    xpos = whorl.XPos(head_dim=8, layout=layout)
    q, k, _ = tokens(5)
    ids = torch.tensor([0, 3, 500, 1000, 1001])
    got = scores(xpos, q, k, ids, ids)[0]
    reads = "interleaved" if layout == "interleaved_to_half" else layout
    expected = want(q, k, ids, ids, reads)
    seen = torch.ones(5, 5, dtype=torch.bool).tril()  # keys after the query are a mask's matter
    torch.testing.assert_close(got[:, seen], expected[:, seen], rtol=0, atol=1e-11)


@settings(max_examples=20, deadline=None)
@given(
    st.integers(-1_000_000, 1_000_000),
    st.lists(st.integers(0, 3000), min_size=2, max_size=4),
    st.floats(0.05, 5.0),
    st.floats(100.0, 2000.0),
)
def test_against_the_oracle_with_other_settings(start, steps, gamma, scale_base):
    xpos = whorl.XPos(head_dim=4, gamma=gamma, scale_base=scale_base, base=500.0)
    ids = start + torch.tensor(steps).cumsum(0)
    q, k, _ = tokens(len(steps), heads=1, dim=4)
    expected = want(q, k, ids, ids, base=500, gamma=gamma, scale_base=scale_base)
    if int(ids[-1] - ids[0]) >= xpos.query_limit(torch.float64):
        with pytest.raises(whorl.WhorlError, match="positions apart"):
            scores(xpos, q, k, ids, ids)
        return
    got = scores(xpos, q, k, ids, ids)[0]
    seen = torch.ones(len(steps), len(steps), dtype=torch.bool).tril()
    torch.testing.assert_close(got[:, seen], expected[:, seen], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_far_positions_in_chunks_of_queries(dtype):
    """Keys 0 … 1,000,000, queries among them a chunk at a time: finite and right, in every dtype."""
    xpos, chunk = whorl.XPos(head_dim=8), 1100
    k_positions = torch.tensor([0, 50_000, 900_000, 990_000, 998_000, 999_000, 999_900, 999_999, 1_000_000])
    k = normal(1, 1, 9, 8, seed=1).to(dtype).double()
    for start in (100, 998_950):
        q_positions = torch.arange(start, start + chunk)
        q = normal(1, 1, chunk, 8, seed=2).to(dtype).double()
        got = scores(xpos, q, k, q_positions, k_positions, dtype)[0, 0]
        for row in (0, 1, chunk // 2, chunk - 1):
            i = int(q_positions[row])
            seen = k_positions <= i
            expected = want(q[:, :, row : row + 1], k[:, :, seen], q_positions[row : row + 1], k_positions[seen])[0, 0]
            size = float(q[0, 0, row].norm() * k.norm(dim=-1).max())
            torch.testing.assert_close(got[row, seen], expected, rtol=0, atol=ROUNDING[dtype] * size)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_the_limit_is_what_fits(dtype):
    """At the limit everything is finite, the products of hidden pairs among it; one query more is refused."""
    xpos = whorl.XPos(head_dim=2)
    most = xpos.query_limit(dtype)
    bits = {torch.float16: 16, torch.float64: 1024}.get(dtype, 128)
    assert most == 1 + math.floor((bits - 12) * 512 / math.log2(3.5))
    ends = torch.tensor([0, most - 1]) + 5_000_000
    x = torch.full((1, 1, 2, 2), 45.0, dtype=dtype)  # q . k = 4050, 12 bits
    q, k = xpos.transform_qk(x, x, ends, ends)
    wide = q.float() if dtype != torch.float64 else q
    product = wide @ k.to(wide.dtype).mT
    assert bool(torch.isfinite(product.to(dtype)).all())
    rows = torch.zeros(1, 1, most + 1, 2, dtype=dtype)
    name = str(dtype).removeprefix("torch.")
    with pytest.raises(whorl.WhorlError, match=rf"XPos: {name} takes at most {most} queries in a call"):
        xpos.transform_qk(rows, rows, torch.arange(most + 1), torch.arange(most + 1))
    with pytest.raises(whorl.WhorlError, match=rf"at most {most - 1} positions apart at scale_base=512, got {most}"):
        xpos.transform_qk(x, x, torch.tensor([0, most]), torch.tensor([0, most]))


def test_the_remedy_names_float32_only_where_it_helps():
    rows, ids = torch.zeros(1, 1, 40_000, 2), torch.arange(40_000)
    xpos = whorl.XPos(head_dim=2)
    for dtype, helps in ((torch.float16, True), (torch.bfloat16, False), (torch.float32, False)):
        with pytest.raises(whorl.WhorlError, match="Pass fewer queries at a time") as caught:
            xpos.transform_qk(rows.to(dtype), rows.to(dtype), ids, ids)
        assert ("or use float32" in str(caught.value)) == helps
    assert xpos.query_limit(torch.float16) == 1134
    assert xpos.query_limit(torch.bfloat16) == xpos.query_limit(torch.float32) == 32_862


def test_keys_after_the_queries_stay_finite():
    """A block of early queries against all keys of a long text, as attention by blocks may ask for."""
    xpos = whorl.XPos(head_dim=8)
    q, k = (normal(1, 1, n, 8, dtype=torch.float32, grad=True) for n in (4, 6))
    k_positions = torch.tensor([0, 1, 2, 3, 500_000, 1_000_000])
    rq, rk = xpos.transform_qk(q, k, torch.arange(4), k_positions)
    assert bool(torch.isfinite(rk).all())
    weights = (rq @ rk.mT).masked_fill(k_positions > torch.arange(4)[:, None], -math.inf).softmax(-1)
    weights.square().sum().backward()
    assert bool(torch.isfinite(q.grad).all()) and bool(torch.isfinite(k.grad).all())
    assert bool((k.grad[:, :, 4:] == 0).all())


def test_without_fading_it_is_rope():
    settings_ = {"head_dim": 16, "rotary_dim": 8, "slice": "trailing", "layout": "interleaved"}
    rope, xpos = whorl.Rope(**settings_), whorl.XPos(**settings_, gamma=1e30)
    q, k, _ = tokens(9, dim=16, dtype=torch.float32)
    ids = torch.arange(9) * 1000
    for got, expected in zip(xpos.transform_qk(q, k, ids, ids), rope.transform_qk(q, k, ids, ids), strict=True):
        assert torch.equal(got, expected)


@pytest.mark.parametrize("name", SCALINGS)
def test_every_scaling_turns_and_none_fades(name):
    scaling = SCALINGS[name]
    rope, xpos = whorl.Rope(head_dim=64, scaling=scaling), whorl.XPos(head_dim=64, scaling=scaling)
    q, k, _ = tokens(3, heads=1, dim=64)
    ids, length = torch.tensor([0, 40, 90]), 1000
    one, two = rope.transform_qk(q, k, ids, ids, length), xpos.transform_qk(q, k, ids, ids, length)
    zeta = torch.tensor([(2 * i + 0.4 * 64) / (1.4 * 64) for i in range(32)], dtype=torch.float64).repeat(2)
    for x, y, sign in ((one[0], two[0], 1), (one[1], two[1], -1)):
        factor = zeta ** (sign * (ids.double() - 45)[:, None] / 512)
        torch.testing.assert_close(y, x * factor, rtol=1e-12, atol=1e-12)
    assert xpos.length_dependent == rope.length_dependent
    assert xpos.softmax_scale(64, length) == rope.softmax_scale(64, length)


def test_heads_and_dimensions_that_are_not_rotated_do_not_fade():
    xpos = whorl.XPos(head_dim=8, rotary_dim=4, rotated_heads=(1,))
    q, k, _ = tokens(3)
    ids = torch.tensor([0, 300, 600])
    rq, rk = xpos.transform_qk(q, k, ids, ids)
    for x, y in ((q, rq), (k, rk)):
        assert torch.equal(x[:, 0], y[:, 0]) and torch.equal(x[..., 4:], y[..., 4:])
        assert not torch.equal(x[:, 1, :, :4], y[:, 1, :, :4])
    assert not xpos.claims.linear_attention


def test_the_centre_changes_nothing_but_rounding():
    """A cached step, a chunk and the whole text agree: what rotated keys in a cache would break."""
    xpos = whorl.XPos(head_dim=8)
    q, k, v = tokens(40, batch=2)
    ids = torch.arange(40) * 50 + 3
    whole = attend(xpos, q, k, v, ids, ids).out
    for start in range(0, 40, 7):
        stop = min(start + 7, 40)
        part = attend(xpos, q[:, :, start:stop], k[:, :, :stop], v[:, :, :stop], ids[start:stop], ids[:stop]).out
        torch.testing.assert_close(part, whole[:, :, start:stop], rtol=0, atol=1e-12)
    assert xpos.key_policy == "raw" and xpos.causal_only


def test_each_row_of_a_batch_has_its_own_centre():
    xpos = whorl.XPos(head_dim=8)
    q, k, _ = tokens(6, batch=2, dtype=torch.float32)
    ids = torch.stack((torch.arange(6), torch.arange(6) + 10**6))
    both = xpos.transform_qk(q, k, ids, ids)
    for row in range(2):
        alone = xpos.transform_qk(q[row : row + 1], k[row : row + 1], ids[row], ids[row])
        for x, y in zip(both, alone, strict=True):
            torch.testing.assert_close(x[row : row + 1], y, rtol=0, atol=1e-6)


def test_a_score_fades_by_zeta_each_scale_base():
    xpos = whorl.XPos(head_dim=2)
    one = torch.tensor([[[[1.0, 0.0]]]])
    got = scores(xpos, one, one, torch.tensor([512]), torch.tensor([0]))
    assert float(got) == pytest.approx(2 / 7 * math.cos(512), rel=1e-9)


def test_no_queries():
    xpos = whorl.XPos(head_dim=2)
    none = torch.zeros(1, 1, 0, 2)
    q, k = xpos.transform_qk(none, torch.ones(1, 1, 3, 2), torch.arange(0), torch.arange(3))
    assert q.shape == (1, 1, 0, 2) and k.shape == (1, 1, 3, 2)


def test_gradients():
    q, k, _ = tokens(3, heads=1, dim=4, grad=True)
    ids = torch.tensor([0, 100, 900])
    xpos = whorl.XPos(head_dim=4)
    assert torch.autograd.gradcheck(lambda q, k: xpos.transform_qk(q, k, ids, ids), (q, k))
    learned = whorl.XPos(head_dim=4, learnable=True).double()
    (learned.transform_qk(q, k, ids, ids)[0].sin().sum()).backward()
    assert bool((learned.rope.log_scale.grad != 0).all())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_linear_decay_is_the_fading_of_transform_qk(layout):
    xpos = whorl.XPos(head_dim=12, rotary_dim=8, slice=2, layout=layout)
    q, k, _ = tokens(1, heads=1, dim=12)
    m, n = torch.tensor([700]), torch.tensor([100])
    decay = torch.tensor(xpos.linear_decay(), dtype=torch.float64)
    assert decay.shape == (12,) and bool((decay <= 0).all())
    whole = (lambda a, b: a * b)(*xpos.transform_qk(q, k, m, n))
    plain = (lambda a, b: a * b)(*xpos.linear_qk(q, k, m, n))
    torch.testing.assert_close(whole, plain * (600 * decay).exp(), rtol=1e-12, atol=1e-12)


def test_golden_zeta():
    xpos = whorl.XPos(head_dim=64)
    per_base = np.exp(512 * np.array(xpos.linear_decay()))
    assert per_base[:3].tolist() == pytest.approx([(2 * k + 25.6) / 89.6 for k in range(3)], rel=1e-12)
    assert per_base[0] == pytest.approx(2 / 7)


@pytest.mark.parametrize("dtype", [torch.float64, *ROUNDING])
@pytest.mark.parametrize("step", [1, 40, 120])
def test_a_row_does_not_depend_on_the_queries_beside_it_where_positions_fall(dtype, step):
    """Keys after the query, which tokens in falling order see, grow as the formula says."""
    xpos, (q, k, v) = whorl.XPos(head_dim=8), tokens(8, dtype=dtype)
    ids = torch.tensor([5, 7, 6, 0, 3, 1, 4, 2]) * step
    scale = 8**-0.5
    expected = want(q, k, ids, ids) * scale
    expected = expected.masked_fill(torch.ones(8, 8, dtype=torch.bool).triu(1), -math.inf).softmax(-1)
    allowed = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 0.3, torch.float16: 0.05}[dtype]
    for queries in (8, 5, 2, 1):
        places = {"positions": ids[-queries:], "key_positions": ids}
        _, weights = whorl.attention(q[:, :, -queries:], k, v, encoding=xpos, return_weights=True, **places)
        assert float((weights[0].double() - expected[:, -queries:]).abs().max()) <= allowed
        out = whorl.attention(q[:, :, -queries:], k, v, encoding=xpos, **places)
        torch.testing.assert_close(out.double(), expected[:, -queries:] @ v.double(), rtol=0, atol=4 * allowed)


def test_keys_that_are_hidden_far_after_the_queries_spoil_nothing():
    """Shards by position: keys a million positions on have no product that overflows, nor a gradient."""
    xpos = whorl.XPos(head_dim=8)
    q, k, v = tokens(4, dtype=torch.float32, grad=True)
    places = {"positions": torch.tensor([0, 1, 2, 3]), "key_positions": torch.tensor([0, 1, 10_000, 1_000_000])}
    out = whorl.attention(q, k, v, encoding=xpos, causal="positions", **places)
    near = {"positions": places["positions"], "key_positions": places["key_positions"][:2]}
    alone = whorl.attention(q, k[:, :, :2], v[:, :, :2], encoding=xpos, causal="positions", **near)
    torch.testing.assert_close(out, alone, rtol=0, atol=1e-6)
    out.sum().backward()
    assert all(t.grad.isfinite().all() for t in (q, k, v))
    assert not k.grad[:, :, 2:].any()


@pytest.mark.parametrize("last", [0, 10, 64, "farthest"])
def test_a_key_too_far_after_the_queries_keeps_the_factor_of_the_last_that_fits(last):
    xpos, ones = whorl.XPos(head_dim=8, scale_base=16.0), torch.ones(1, 1, 1, 8)
    most = xpos.query_limit(torch.float32)
    queries = torch.tensor([0, most - 1 if last == "farthest" else last])

    def length(position):
        """Of the fastest fading pair of a key."""
        keys = xpos.transform_qk(ones.expand(-1, -1, 2, -1), ones, queries, torch.tensor([position]))[1]
        return float(keys[..., ::4].double().norm())

    # the first query stands half the span before the centre, so the last key that fits stands most - 1 after it
    assert length(most - 2) < 0.99 * length(most - 1)
    assert length(most) == pytest.approx(length(most - 1), rel=1e-5) == pytest.approx(length(most + 500), rel=1e-5)


@pytest.mark.parametrize("number", [-(2**63), 2**63 - 1, 10**6, -40_000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_queries_of_padding_do_not_count_in_the_range(dtype, number):
    xpos, real = whorl.XPos(head_dim=8), torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0]], dtype=torch.bool)
    q, k, v = tokens(6, batch=2, dtype=dtype)
    options = {"encoding": xpos, "key_mask": real}
    expected = whorl.attention(q, k, v, positions=whorl.from_mask(real), **options)
    ids = torch.where(real, whorl.from_mask(real), number)
    for places in ({"positions": ids}, {"positions": ids, "key_positions": ids.clone()}):
        got = whorl.attention(q, k, v, **places, **options)
        assert torch.equal(got.transpose(1, 2)[real], expected.transpose(1, 2)[real])
    wide = torch.where(real, 40_000 * torch.arange(6), number)
    with pytest.raises(whorl.WhorlError, match=r"positions apart at scale_base=512, got (120000|160000)"):
        whorl.attention(q, k, v, positions=wide, **options)  # real ones count as before


def test_queries_of_padding_do_not_count_in_blocks_of_queries():
    """More queries than a call places: what pads the last block stands by the tokens before it."""
    xpos, limit = whorl.XPos(head_dim=8), whorl.XPos(head_dim=8).query_limit(torch.float16)
    length = limit + 300
    q, k, v = tokens(length, heads=1, dtype=torch.float16)
    real = torch.arange(length)[None] < length - 100
    expected = whorl.attention(*(x[:, :, :-100] for x in (q, k, v)), encoding=xpos)
    for number in (0, -1, 2**40):
        ids = torch.where(real, torch.arange(length), number)
        got = whorl.attention(q, k, v, encoding=xpos, positions=ids, key_mask=real)
        torch.testing.assert_close(got[:, :, :-100], expected, rtol=0, atol=4e-3)
