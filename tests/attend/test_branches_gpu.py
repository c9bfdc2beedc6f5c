"""Encodings that place queries and keys several ways: one attention for each, merged, equals the dense path.

On the CPU FlexAttention has no log-sum-exp when compiled, so its function runs there as it is.
"""

from dataclasses import replace

import pytest
import torch
from torch.nn.attention import flex_attention

import whorl
from whorl.attend import branches, flex
from whorl.attend.call import checked
from whorl.plans import PLANS

ENCODINGS = {
    "rerope": whorl.ReRope(head_dim=16, window=5),
    "leaky_rerope": whorl.LeakyReRope(head_dim=16, window=5, factor=4.0),
    "self_extend": whorl.SelfExtend(head_dim=16, window=6, group=2),
    "with log-n": whorl.Combined(whorl.ReRope(head_dim=16, window=5), whorl.LogN(trained_length=4)),
    "with a bias": whorl.Combined(whorl.ReRope(head_dim=16, window=5), whorl.Alibi(heads=4)),
    "with a window": whorl.Combined(whorl.SelfExtend(head_dim=16, window=6, group=2), whorl.Sinks(size=11, count=2)),
}


def tokens(queries, keys, *, dim=16, dtype=torch.float32, device="cpu", grad=False):
    generator = torch.Generator().manual_seed(0)
    shapes = (2, 4, queries, dim), (2, 2, keys, dim), (2, 2, keys, dim)
    made = [torch.randn(shape, generator=generator).to(device, dtype) for shape in shapes]
    return [one.requires_grad_(grad) for one in made]


def dense(q, k, v, **options):
    return whorl.attention(q, k, v, impl="torch", return_lse=True, **options)


@pytest.fixture
def as_it_is(monkeypatch):
    """FlexAttention's function without compiling it, and no block of keys known from another test."""
    monkeypatch.setattr(flex, "_compiled", lambda kind: flex._flex)
    monkeypatch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    monkeypatch.setattr(PLANS, "_used", {})
    monkeypatch.setattr(PLANS, "_before", {})


CALLS = {
    "short": (33, 33, {}),
    "last queries": (7, 33, {}),
    "documents": (33, 33, {"documents": torch.tensor([0] * 20 + [1] * 13)}),
    "positions": (33, 33, {"positions": 3 * torch.arange(33)}),
    "softcap": (33, 33, {"softcap": 2.0}),
    "blocks": (200, 261, {}),
}


@pytest.mark.parametrize(
    ("name", "call"), [*(("rerope", call) for call in CALLS), *((name, "last queries") for name in ENCODINGS)]
)
def test_branches_merged_are_the_softmax_over_all_pairs(name, call, as_it_is):
    queries, keys, options = CALLS[call]
    q, k, v = tokens(queries, keys)
    with torch.no_grad():
        given = checked(q, k, v, encoding=ENCODINGS[name], return_lse=True, **options)
        got = branches.attend_branches(given)
        assert any(settings[0] == "flex blocks" for _, _, settings, *_ in PLANS._used) == (call == "blocks")
        for one, other in zip(got, dense(q, k, v, encoding=ENCODINGS[name], **options), strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=5e-6)


@pytest.mark.parametrize("causal", [True, False, "positions"])
def test_branches_on_both_sides(causal, as_it_is):
    encoding = whorl.ReRope(head_dim=16, window=5, bidirectional=True)
    q, k, v = tokens(140, 140)
    with torch.no_grad():
        given = checked(q, k, v, encoding=encoding, causal=causal, return_lse=True)
        for consecutive in (True, False):
            got = branches.attend_branches(replace(given, consecutive=consecutive))
            for one, other in zip(got, dense(q, k, v, encoding=encoding, causal=causal), strict=True):
                torch.testing.assert_close(one, other, rtol=0, atol=5e-6)


def test_masks_are_formulas_of_one_pair(as_it_is):
    """As a GPU computes them; the CPU's compiler gets a mask of all pairs instead."""
    sinks, ids = whorl.Sinks(size=11, count=2), torch.arange(33)
    q, k, v = tokens(33, 33)
    rules = {"causal": True, "places": None, "allowed": None, "blocks": None, "q_documents": None, "k_documents": None}
    more = {"softcap": None, "scale": 0.25, "wants_lse": False, "bias": None, "placed": None}
    with torch.no_grad():
        got = flex._flex(q, k, v, masks=(sinks,), q_positions=ids, k_positions=ids, **rules, **more)
    torch.testing.assert_close(got, dense(q, k, v, encoding=sinks)[0], rtol=0, atol=5e-6)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("branch", [None, 0, 1])
def test_blocks_are_those_that_hold_a_pair(branch, causal):
    encoding = whorl.ReRope(head_dim=16, window=150, bidirectional=not causal)
    q, k, v = tokens(300, 421)
    call = checked(q, k, v, encoding=encoding, causal=causal)
    allowed = call.visible.rows()
    allowed = torch.ones(300, 421, dtype=torch.bool) if allowed is None else allowed
    if branch is not None:
        allowed = allowed & encoding.branches(call.q_positions, call.k_positions)[branch].allowed
    elif not causal:
        assert flex._blocks_of(call, None) is None  # everything is seen
        return
    found = [t[0, 0] for t in flex._visit(call, branch)]
    for row in range(3):
        own = [set(found[i + 1][row, : found[i][row]].tolist()) for i in (0, 2)]
        for column in range(4):
            tile = allowed[128 * row : 128 * row + 128, 128 * column : 128 * column + 128]
            whole = bool(tile.all()) and tile.shape == (128, 128)
            assert (column in own[1], column in own[0]) == (whole, bool(tile.any()) and not whole)


def test_slabs_of_queries_find_the_same_blocks(monkeypatch):
    call = checked(*tokens(700, 700), encoding=ENCODINGS["rerope"])
    whole = flex._visit(call, 1)
    monkeypatch.setattr(flex, "MOST_PAIRS", 300 * 700)
    for one, other in zip(flex._visit(call, 1), whole, strict=True):
        assert torch.equal(one, other)


def test_blocks_are_known_only_where_positions_are():
    q, k, v = tokens(400, 400)
    call = checked(q, k, v, encoding=ENCODINGS["rerope"])
    for branch in (0, 1, 0):  # what is known of one branch is not taken for another
        for one, other in zip(flex._blocks_of(call, branch), flex._visit(call, branch), strict=True):
            assert torch.equal(one, other)
    assert flex._blocks_of(replace(call, consecutive=False), 0) is None
    documents = checked(q, k, v, encoding=ENCODINGS["rerope"], documents=torch.zeros(400))
    assert flex._blocks_of(documents, 0) is None
    # the order of tokens needs no positions
    ordered = checked(q, k, v, encoding=whorl.Alibi(heads=4))
    assert flex._blocks_of(replace(ordered, consecutive=False), None) is not None


def test_a_query_that_sees_nothing_gets_zeros_and_no_nan():
    out = [torch.zeros(1, 1, 3, 2), torch.ones(1, 1, 3, 2)]
    lse = [torch.tensor([[[-torch.inf, -torch.inf, 0.0]]]), torch.tensor([[[-torch.inf, 1.0, 0.0]]])]
    given = [t.clone().requires_grad_() for t in (*out, *lse)]
    got, z = branches.merged(given[:2], given[2:])
    assert got[0, 0, :, 0].tolist() == [0.5, 1.0, 0.5]  # outputs of what was not seen are 0 in truth
    assert z[0, 0].tolist() == [-torch.inf, 1.0, pytest.approx(0.6931472)]
    seen = z.masked_fill(z == -torch.inf, 0.0)
    for gradient in torch.autograd.grad(got.sin().sum() + seen.sum(), given):
        assert bool(gradient.isfinite().all())


def test_merging_has_the_gradients_of_one_softmax():
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(1, 1, 5, 9, generator=generator, dtype=torch.float64, requires_grad=True)
    v = torch.randn(1, 1, 9, 3, generator=generator, dtype=torch.float64)
    whole = scores.softmax(-1) @ v
    parts = [scores[..., :4], scores[..., 4:]]
    got, z = branches.merged(
        [part.softmax(-1) @ own for part, own in zip(parts, (v[..., :4, :], v[..., 4:, :]), strict=True)],
        [part.logsumexp(-1) for part in parts],
    )
    expected, lse = torch.autograd.grad(whole.sin().sum(), scores), scores.logsumexp(-1)
    torch.testing.assert_close(got, whole)
    torch.testing.assert_close(z, lse)
    for one, other in zip(torch.autograd.grad(got.sin().sum(), scores), expected, strict=True):
        torch.testing.assert_close(one, other)


def test_on_the_cpu_branches_are_dense():
    q, k, v = tokens(9, 9)
    encoding = ENCODINGS["rerope"]
    assert whorl.explain_attention(q, k, v, encoding=encoding) == "dense: ReRope uses branches"
    with pytest.raises(whorl.errors.WhorlError, match="does not return the log-sum-exp on the CPU"):
        whorl.attention(q, k, v, encoding=encoding, impl="flex")


def cuda(encoding):
    return encoding.to("cuda")


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "sizes"),
    [("rerope", (130, 130)), ("rerope", (200, 200)), *((name, (150, 300)) for name in ENCODINGS)],
    ids=str,
)
def test_on_a_gpu_values_and_gradients_are_those_of_the_dense_path(name, sizes):
    encoding = cuda(ENCODINGS[name])
    inputs = tokens(*sizes, device="cuda", grad=True)
    plain = name not in ("with a bias", "with a window")
    assert whorl.explain_attention(*inputs, encoding=encoding).startswith("tiles: " if plain else "dense: ")
    if not plain:
        assert whorl.explain_attention(*inputs, encoding=encoding, impl="flex") == "flex: asked for"
    impl = "auto" if plain else "flex"
    fast, slow = (
        whorl.attention(*inputs, encoding=encoding, return_lse=True, impl=impl),
        dense(*inputs, encoding=encoding),
    )
    for one, other in zip(fast, slow, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-4)
    gradients = (torch.autograd.grad(out.sin().sum() + lse.cos().sum(), inputs) for out, lse in (fast, slow))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=2e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("call", ["documents", "positions", "softcap"])
def test_on_a_gpu_rules_by_token_are_those_of_the_dense_path(call):
    queries, keys, options = CALLS[call]
    options = {name: one.cuda() if isinstance(one, torch.Tensor) else one for name, one in options.items()}
    inputs = tokens(queries, keys, device="cuda")
    encoding = cuda(ENCODINGS["rerope"])
    for impl in ("auto", "flex"):
        got = whorl.attention(*inputs, encoding=encoding, impl=impl, **options)
        torch.testing.assert_close(got, dense(*inputs, encoding=encoding, **options)[0], rtol=0, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["t5", "alibi", "rope", "window"])
def test_on_a_gpu_the_log_sum_exp_has_gradients(name):
    sizes = {"t5": {"heads": 4}, "alibi": {"heads": 4}, "rope": {"head_dim": 16}, "window": {"size": 50}}[name]
    encoding = cuda(whorl.build(name, **sizes))
    inputs = tokens(200, 200, device="cuda", grad=True)
    assert whorl.explain_attention(*inputs, encoding=encoding, return_lse=True).startswith("tiles: ")
    fast, slow = whorl.attention(*inputs, encoding=encoding, return_lse=True), dense(*inputs, encoding=encoding)
    gradients = (torch.autograd.grad(out.sin().sum() + lse.cos().sum(), inputs) for out, lse in (fast, slow))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=2e-3)


@pytest.mark.gpu
def test_on_a_gpu_memory_grows_with_the_length():
    encoding = cuda(whorl.ReRope(head_dim=64, window=512))
    peaks = []
    for length in (4096, 16384):
        q = torch.randn(1, 2, length, 64, device="cuda", dtype=torch.bfloat16)
        whorl.attention(q, q, q, encoding=encoding)  # compiles, and finds the blocks
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        whorl.attention(q, q, q, encoding=encoding)
        peaks.append(torch.cuda.max_memory_allocated() - before)
    assert peaks[1] < 5 * peaks[0], peaks
