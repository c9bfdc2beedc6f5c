"""Attention with any encoding: every path equals the reference, and the reference equals the oracle."""

import weakref

import numpy as np
import pytest
import torch
import torch._dynamo

import whorl
from oracles import softmax_attention as oracle
from registry_cases import HEADS, NAMES, build, hidden_for, tokens
from whorl.attend import blocks, flex, softmax
from whorl.attend.call import checked
from whorl.attend.reference import reference

every_encoding = pytest.mark.parametrize("name", NAMES)


def by_reference(q, k, v, encoding, **options):
    """The call as one dense block in float64."""
    call = checked(*(t.double() for t in (q, k, v)), encoding=encoding, **options)
    return reference(
        call.q,
        call.k,
        call.v,
        encoding,
        call.q_positions,
        call.k_positions,
        scale=call.scale,
        allowed=call.visible.rows(),
        softcap=call.softcap,
        hidden=call.hidden,
        length=call.length,
    )


@pytest.mark.parametrize("causal", [True, False])
def test_the_reference_is_softmax_attention(causal):
    q, k, v = tokens(9, kv_heads=2, dtype=torch.float64)
    rope = whorl.Rope(head_dim=16)
    got = by_reference(q, k, v, rope, causal=causal)
    turned_q, turned_k = rope.transform_qk(q, k, torch.arange(9), torch.arange(9))
    allowed = np.tril(np.ones((9, 9), dtype=bool)) if causal else None
    for row in range(2):
        keys, values = (oracle.grouped(t[row].numpy(), 2) for t in (turned_k, v))
        scores = np.einsum("hqd,hkd->hqk", turned_q[row].numpy(), keys) / 4
        out, weights, lse = oracle.attention(scores, values, allowed)
        np.testing.assert_allclose(got.out[row].numpy(), out, rtol=0, atol=1e-12)
        np.testing.assert_allclose(got.weights[row].numpy(), weights, rtol=0, atol=1e-12)
        np.testing.assert_allclose(got.lse[row].numpy(), lse, rtol=0, atol=1e-12)


@every_encoding
@pytest.mark.parametrize("length", [1, 5, 33])
def test_every_encoding_equals_the_reference(name, length):
    encoding = build(name)
    q, k, v = tokens(length)
    more = hidden_for(encoding, length)
    got = whorl.attention(q, k, v, encoding=encoding, **more)
    expected = by_reference(q, k, v, encoding, **more)
    torch.testing.assert_close(got, expected.out.float(), rtol=0, atol=3e-6)


@every_encoding
def test_blocks_of_queries_change_nothing(name, monkeypatch):
    """The dense path in small blocks: the same values and gradients, whatever the block."""
    encoding = build(name)
    inputs, more = tokens(23, grad=True), hidden_for(encoding, 23)
    wanted = [*inputs, *(p for p in encoding.parameters() if p.requires_grad)]
    results = []
    for scores in (2**24, 2 * HEADS * 23 * 6):
        monkeypatch.setitem(blocks.MOST_SCORES, "cpu", scores)
        out, lse = whorl.attention(*inputs, encoding=encoding, return_lse=True, **more)
        grads = torch.autograd.grad((out.sin().sum() + lse.sum()), wanted, allow_unused=True)
        results.append([out, lse, *(g for g in grads if g is not None)])
    for whole, parts in zip(*results, strict=True):
        torch.testing.assert_close(parts, whole, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("grad", [False, True])
def test_weights_of_a_block_are_let_go_with_it(grad, monkeypatch):
    """Those of all blocks together are as many as the scores, which blocks are there to avoid."""
    made, alive = [], []

    def watched(*args, **options):
        alive.append(sum(ref() is not None for ref in made))
        found = reference(*args, **options)
        made.append(weakref.ref(found.weights))
        return found

    monkeypatch.setattr(softmax, "reference", watched)
    monkeypatch.setitem(blocks.MOST_SCORES, "cpu", 2 * HEADS * 23 * 6)
    whorl.attention(*tokens(23, grad=grad), encoding=whorl.ReRope(head_dim=16, window=4))
    assert len(alive) >= 4 and set(alive) == {0}


@every_encoding
def test_gradients_of_every_path_equal_the_reference(name):
    encoding = build(name)
    inputs, more = tokens(17, grad=True), hidden_for(encoding, 17)
    wanted = [*inputs, *encoding.parameters()]
    fused = whorl.attention(*inputs, encoding=encoding, **more)
    dense, _ = whorl.attention(*inputs, encoding=encoding, return_lse=True, **more)
    for one, other in zip(
        *(torch.autograd.grad(out.sin().sum(), wanted, allow_unused=True) for out in (fused, dense)), strict=True
    ):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["rope", "alibi", "sandwich", "t5"])
def test_half_precision_stays_close(name, dtype):
    encoding = build(name)
    q, k, v = tokens(50, dtype=dtype)
    got, expected = whorl.attention(q, k, v, encoding=encoding), by_reference(q, k, v, encoding)
    assert got.dtype == dtype
    error = ((got.double() - expected.out).square().mean() / expected.out.square().mean()).sqrt().detach()
    assert float(error) < {torch.bfloat16: 6e-3, torch.float16: 1e-3}[dtype]


def test_grouped_queries_share_keys():
    q, k, v = tokens(11, kv_heads=2)
    rope = whorl.Rope(head_dim=16)
    repeated = [t.repeat_interleave(2, dim=1) for t in (k, v)]
    torch.testing.assert_close(
        whorl.attention(q, k, v, encoding=rope), whorl.attention(q, *repeated, encoding=rope), rtol=0, atol=1e-6
    )


def test_values_may_be_narrower_or_wider():
    q, k, _ = tokens(11)
    for width in (3, 40):
        other = torch.randn(2, HEADS, 11, width, generator=torch.Generator().manual_seed(width))
        got = whorl.attention(q, k, other, encoding=build("alibi"))
        expected = by_reference(q, k, other, build("alibi")).out.float()
        torch.testing.assert_close(got, expected, rtol=0, atol=3e-6)


@every_encoding
def test_packed_documents_equal_separate_ones(name):
    encoding = build(name)
    lengths = (5, 12, 1)
    q, k, v = tokens(18, batch=1)
    more = hidden_for(encoding, 18, batch=1)
    packed = whorl.attention(
        q, k, v, encoding=encoding, positions=whorl.packed(lengths), documents=whorl.documents(lengths), **more
    )
    start = 0
    for count in lengths:
        part = slice(start, start + count)
        own = {key: value[:, part] for key, value in more.items()}
        alone = whorl.attention(*(t[:, :, part] for t in (q, k, v)), encoding=encoding, **own)
        torch.testing.assert_close(packed[:, :, part], alone, rtol=0, atol=5e-6)
        start += count


@every_encoding
def test_left_padding_changes_nothing(name):
    encoding = build(name)
    q, k, v = tokens(12)
    more = hidden_for(encoding, 12)
    mask = torch.ones(2, 12, dtype=torch.bool)
    mask[1, :5] = False
    positions = whorl.from_mask(mask)
    if encoding.axes > 1:
        positions = positions.expand(encoding.axes, -1, -1)
    for x in (k, v):
        x[1, :, :5] = torch.nan  # what padding holds must not matter
    padded = whorl.attention(q, k, v, encoding=encoding, positions=positions, key_mask=mask, **more)
    own = {key: value[1:, 5:] for key, value in more.items()}
    alone = whorl.attention(*(t[1:, :, 5:] for t in (q, k, v)), encoding=encoding, **own)
    torch.testing.assert_close(padded[1:, :, 5:], alone, rtol=0, atol=5e-6)
    assert torch.isfinite(padded).all()
    assert not padded[1, :, :5].any()  # padding sees nothing and gets zeros


@pytest.mark.parametrize("impl", ["auto", "torch"])
@pytest.mark.parametrize("name", ["rope", "t5", "alibi", "shaw", "rerope", "forgetting_gate"])
def test_what_padding_holds_is_in_no_gradient(name, impl):
    encoding, (q, k, v) = build(name), tokens(9)
    mask, more = torch.arange(9) >= torch.tensor([[4], [0]]), hidden_for(encoding, 9)
    grads = []
    for held in (0.0, torch.nan):
        leaves = [q, *(x.masked_fill(~mask[:, None, :, None], held) for x in (k, v))]
        leaves = [x.detach().requires_grad_() for x in leaves]
        states = {name: x.masked_fill(~mask[..., None], held) for name, x in more.items()}
        out = whorl.attention(*leaves, encoding=encoding, key_mask=mask, impl=impl, **states)
        grads.append(torch.autograd.grad(out.square().sum(), [*leaves, *encoding.parameters()]))
    for one, other in zip(*grads, strict=True):
        assert torch.equal(one, other)


HIDDEN_KEYS = {
    "for all queries": torch.arange(9) != 4,
    "below the diagonal": ~((torch.arange(9) == 4) & (torch.arange(9)[:, None] >= 4)),  # causal order hides the rest
    "for heads that share keys": (torch.arange(9) != 4) | (torch.arange(HEADS)[:, None, None] < 2),
    "by row of the batch": ((torch.arange(9) != 4) | (torch.arange(2)[:, None] == 0))[:, None, None],
}


@pytest.mark.parametrize("where", HIDDEN_KEYS)
@pytest.mark.parametrize("impl", ["auto", "torch"])
@pytest.mark.parametrize("name", ["none", "rope", "t5", "alibi", "cope", "shaw", "rerope", "window"])
def test_what_keys_hold_that_a_mask_hides_from_all_queries_must_not_matter(name, impl, where):
    """In outputs and in gradients; with ``key_mask`` it never did."""
    encoding, (q, _, _), (_, k, v) = build(name), tokens(9), tokens(9, kv_heads=2)
    mask, found = HIDDEN_KEYS[where], []
    mask = mask.expand(*mask.shape[:-2], 9, 9) if mask.ndim > 1 else mask.expand(9, 9)
    hidden = ~mask.tril().reshape(*(1,) * (4 - mask.ndim), *mask.shape).any(-2).expand(2, HEADS, 9)
    hidden = hidden.unflatten(1, (2, -1)).all(2)[..., None]
    assert hidden.any()
    for held in (1.0, torch.nan):
        leaves = [x.detach().requires_grad_() for x in (q, k.masked_fill(hidden, held), v.masked_fill(hidden, held))]
        out = whorl.attention(*leaves, encoding=encoding, mask=mask, impl=impl)
        found.append((out, *torch.autograd.grad(out.square().sum(), leaves)))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other) and one.isfinite().all()


SHARING = {  # strides of (2, 4, 6, 16) whose elements share memory
    "heads a number apart": (40, 1, 2, 1),
    "heads and rows": (40, 1, 1, 1),
    "batch and rows expanded": (1, 16, 0, 1),
    "windows of a text": (1, 0, 1, 1),
    "expanded heads": (96, 0, 16, 1),
    "expanded whole": (0, 0, 0, 0),
    "expanded numbers": (4, 2, 1, 0),
}


@pytest.mark.parametrize("sharing", SHARING)
@pytest.mark.parametrize("name", ["none", "rope", "alibi", "kerple", "window", "sinks", "split", "shaw"])
def test_views_whose_elements_share_memory_are_read_as_what_they_are(name, sharing):
    encoding = whorl.Alibi(heads=HEADS, form="split") if name == "split" else build(name).requires_grad_(False)
    memory = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    view = memory.as_strided((2, HEADS, 6, 16), SHARING[sharing])
    copy = view.clone(memory_format=torch.contiguous_format)
    for options in ({}, {"causal": encoding.causal_only}, {"mask": torch.ones(6, 6, dtype=torch.bool).tril(1)}):
        expected = whorl.attention(copy, copy, copy, encoding=encoding, **options)
        for given in ((view, view, view), (view, copy, copy), (copy, view, copy), (copy, copy, view)):
            got = whorl.attention(*given, encoding=encoding, **options)
            torch.testing.assert_close(got, expected, rtol=0, atol=2e-6)
    few = view[:, :, -1:]  # heads that share keys are rows of one
    expected = whorl.attention(few.clone(memory_format=torch.contiguous_format), copy[:, :2], copy[:, :2])
    torch.testing.assert_close(whorl.attention(few, view[:, :2], view[:, :2]), expected, rtol=0, atol=2e-6)
    linear = whorl.linear_attention(copy, copy, copy)
    torch.testing.assert_close(whorl.linear_attention(view, view, view), linear, rtol=0, atol=2e-6)


@pytest.mark.parametrize("heads", [1, HEADS])
def test_a_mask_without_a_batch_is_that_of_every_row(heads):
    """Two queries of heads that share keys: such are put together as rows, and their masks with them."""
    (q, _, _), (_, k, v) = tokens(2), tokens(6, kv_heads=2)
    mask = torch.rand(heads, 2, 6, generator=torch.Generator().manual_seed(5)) > 0.3
    own, whole = (whorl.attention(q, k, v, mask=each) for each in (mask, mask[None]))
    assert torch.equal(own, whole)
    torch.testing.assert_close(own, whorl.attention(q, k, v, mask=mask, impl="torch"), rtol=0, atol=5e-6)


@pytest.mark.parametrize("name", ["none", "rope", "alibi", "t5", "rerope", "shaw"])
def test_no_queries_among_keys_give_no_output(name):
    encoding = build(name)
    q, k, v = tokens(5, kv_heads=2, grad=True)
    out = whorl.attention(q[:, :, 5:], k, v, encoding=encoding)
    assert out.shape == (2, HEADS, 0, 16)
    out.sum().backward()
    assert not k.grad.any() and not v.grad.any()


def test_a_query_that_sees_nothing_gets_zeros_and_finite_gradients():
    for encoding in (whorl.Rope(head_dim=16), build("t5")):
        q, k, v = tokens(6, grad=True)
        mask = torch.ones(6, 6, dtype=torch.bool)
        mask[2] = False
        out = whorl.attention(q, k, v, encoding=encoding, mask=mask)
        assert not out[:, :, 2].any()
        out.sum().backward()
        assert all(torch.isfinite(t.grad).all() for t in (q, k, v))
    _, lse = whorl.attention(*tokens(6), mask=mask, return_lse=True)
    assert bool((lse[:, :, 2] == -torch.inf).all())


def test_causal_goes_by_order_or_by_positions():
    q, k, v = tokens(8)
    rope, order = whorl.Rope(head_dim=16), torch.tensor([0, 1, 6, 7, 2, 3, 4, 5])
    whole = whorl.attention(q, k, v, encoding=rope)
    shuffled = whorl.attention(*(t[:, :, order] for t in (q, k, v)), encoding=rope, positions=order, causal="positions")
    torch.testing.assert_close(shuffled, whole[:, :, order], rtol=0, atol=2e-6)
    half = whorl.attention(
        q[:, :, order[:4]], k, v, encoding=rope, positions=order[:4], key_positions=torch.arange(8), causal="positions"
    )
    torch.testing.assert_close(half, whole[:, :, order[:4]], rtol=0, atol=2e-6)


def test_the_last_tokens_need_no_positions():
    for name in ("rope", "alibi", "fire"):
        q, k, v = tokens(10)
        encoding = build(name)
        whole = whorl.attention(q, k, v, encoding=encoding)
        last = whorl.attention(q[:, :, 7:], k, v, encoding=encoding)
        torch.testing.assert_close(last, whole[:, :, 7:], rtol=0, atol=2e-6)


def test_cross_attention():
    q, (_, k, v) = tokens(4)[0], tokens(9, seed=1)
    rope = whorl.Rope(head_dim=16)
    got = whorl.attention(
        q, k, v, encoding=rope, causal=False, positions=torch.arange(4) * 2, key_positions=torch.arange(9)
    )
    turned = rope.rotate(q.double(), torch.arange(4) * 2) @ rope.rotate(k.double(), torch.arange(9)).mT / 4
    torch.testing.assert_close(got, (turned.softmax(-1) @ v.double()).float(), rtol=0, atol=2e-6)


@pytest.mark.parametrize("form", ["causal", "symmetric"])
@pytest.mark.parametrize("impl", ["auto", "torch"])
def test_more_queries_than_keys_in_blocks(form, impl, monkeypatch):
    """The last query stands at the last key, so whole blocks of the first see nothing."""
    q, k, encoding = torch.randn(1, 2, 13, 8), torch.randn(1, 2, 4, 8), whorl.Alibi(heads=2, form=form)
    places = {"positions": torch.arange(13), "key_positions": torch.arange(4)}
    whole = whorl.attention(q, k, k, encoding=encoding, impl=impl, **places)
    monkeypatch.setitem(blocks.MOST_SCORES, "cpu", 2 * 2 * 4)
    parts = whorl.attention(q, k, k, encoding=encoding, impl=impl, **places)
    assert not parts[:, :, :9].any() and parts[:, :, 9:].all()
    torch.testing.assert_close(parts, whole, rtol=0, atol=1e-6)


def test_softcap_bounds_the_scores():
    q, k, v = tokens(6)
    scores = 30 * torch.tanh((q * 100) @ k.mT / 4 / 30)
    expected = scores.masked_fill(~torch.ones(6, 6, dtype=torch.bool).tril(), -torch.inf).softmax(-1) @ v
    torch.testing.assert_close(whorl.attention(q * 100, k, v, softcap=30.0), expected, rtol=0, atol=1e-5)


def test_softcap_opens_no_key_that_a_bias_closes():
    split = whorl.Alibi(heads=HEADS, form="split")
    q, k, v = tokens(6)
    _, weights = whorl.attention(q, k, v, encoding=split, causal=False, softcap=5.0, return_weights=True)
    left, right = weights[:, : HEADS // 2], weights[:, HEADS // 2 :]
    assert not left.triu(1).any()
    assert not right.tril(-1).any()


def test_dropout_drops_weights_and_keeps_the_mean():
    torch.manual_seed(0)
    q, k, _ = tokens(32)
    v = torch.ones(2, HEADS, 32, 16)
    for options in ({}, {"return_weights": True}):
        runs = [whorl.attention(q, k, v, dropout=0.5, **options) for _ in range(60)]
        outs = torch.stack([run[0] if options else run for run in runs])
        assert float((outs - 1).abs().max()) > 0.1
        assert float(outs.mean()) == pytest.approx(1.0, abs=0.02)


def test_without_position_attention_is_permutation_equivariant():
    q, k, v = tokens(10)
    order = torch.randperm(10, generator=torch.Generator().manual_seed(0))
    plain = whorl.attention(q, k, v, causal=False)
    moved = whorl.attention(*(t[:, :, order] for t in (q, k, v)), causal=False)
    torch.testing.assert_close(moved, plain[:, :, order], rtol=0, atol=1e-6)
    causal = whorl.attention(*(t[:, :, order] for t in (q, k, v)))
    assert float((causal - whorl.attention(q, k, v)[:, :, order]).abs().max()) > 0.1  # not under a causal mask


def test_identical_tokens_without_position_get_uniform_weights():
    q = torch.ones(1, 1, 7, 16)
    _, weights = whorl.attention(q, q, q, return_weights=True)
    expected = torch.ones(7, 7).tril() / torch.arange(1, 8)[:, None]
    torch.testing.assert_close(weights[0, 0], expected)


@pytest.mark.parametrize(
    ("name", "dtype"), [("alibi", torch.float32), ("alibi", torch.bfloat16), ("sandwich", torch.bfloat16)]
)
def test_a_separable_bias_is_as_accurate_as_a_dense_one(name, dtype):
    """Folded into further dimensions, on torch's own kernel: no worse than adding the bias, at any position."""
    encoding = build(name)
    q, k, v = tokens(700, dtype=dtype)
    positions = torch.arange(700) + 50_000
    assert whorl.explain_attention(q, k, v, encoding=encoding).startswith("folded")
    folded = whorl.attention(q, k, v, encoding=encoding, positions=positions)
    dense, _ = whorl.attention(q, k, v, encoding=encoding, positions=positions, return_lse=True)
    exact = by_reference(q, k, v, encoding, positions=positions).out
    folded_error, dense_error = (float((t.double() - exact).square().mean().sqrt()) for t in (folded, dense))
    assert folded_error < 2 * dense_error


@pytest.mark.parametrize("cls", [whorl.ReRope, whorl.LeakyReRope, whorl.SelfExtend])
@pytest.mark.parametrize("joined", [False, True])
def test_within_the_window_a_remapped_rope_is_one_rope(cls, joined):
    encoding, (q, k, v) = cls(head_dim=16, window=9), tokens(9)
    if joined:
        encoding = whorl.Combined(encoding, whorl.LogN(trained_length=4))
    assert whorl.explain_attention(q, k, v, encoding=encoding).startswith("sdpa")
    asked = {"encoding": encoding, "positions": whorl.positions(9)}
    assert whorl.explain_attention(q, k, v, **asked).startswith("dense")
    torch.testing.assert_close(
        whorl.attention(q, k, v, encoding=encoding), whorl.attention(q, k, v, **asked), rtol=0, atol=3e-6
    )
    q, k, v = tokens(10)
    assert whorl.explain_attention(q, k, v, encoding=encoding).startswith("dense")


def test_a_bias_of_many_dimensions_is_added_in_float32():
    q, k, v = tokens(9)
    assert whorl.explain_attention(q, k, v, encoding=build("sandwich")).startswith("masked")


@pytest.mark.parametrize("name", ["sandwich", "kerple", "t5", "fire"])
@pytest.mark.parametrize("options", [{}, {"causal": False}, {"padded": True}], ids=str)
def test_a_bias_as_a_mask_is_that_of_the_reference(name, options, monkeypatch):
    encoding, (q, k, v) = build(name).requires_grad_(False), tokens(9, kv_heads=2)
    if options.pop("padded", False):  # the first text has no key that its first queries may see
        options = {"key_mask": torch.arange(9) >= torch.tensor([[4], [0]])}
    v = v[..., :10]  # values of another width
    monkeypatch.setitem(blocks.MOST_SCORES, "cpu", 2 * HEADS * 9 * 4)  # four queries at a time
    assert whorl.explain_attention(q, k, v, encoding=encoding, **options).startswith("masked")
    got, expected = ([t.clone().requires_grad_() for t in (q, k, v)] for _ in range(2))
    out = whorl.attention(*got, encoding=encoding, **options)
    exact = by_reference(*expected, encoding, **options).out.float()
    torch.testing.assert_close(out, exact, rtol=0, atol=3e-6)
    weigh = torch.randn(out.shape, generator=torch.Generator().manual_seed(0))
    for inputs, result in ((got, out), (expected, exact)):
        (result * weigh).sum().backward()
        assert all(t.grad is not None for t in inputs)
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["alibi", "rope", "t5", "forgetting_gate"])
def test_autocast_changes_nothing_for_input_that_is_given(name):
    encoding, (q, k, v) = build(name), tokens(600)
    hidden = hidden_for(encoding, 600)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = whorl.attention(q, k, v, encoding=encoding, **hidden)
    assert torch.equal(got, whorl.attention(q, k, v, encoding=encoding, **hidden))


@pytest.mark.parametrize("name", NAMES)
def test_autocast_rounds_nothing_of_any_encoding(name):
    """Whole passes, cached steps and linear attention."""
    encoding, x = build(name), tokens(12)
    hidden = hidden_for(encoding, 12)

    def computed():
        cache, found = whorl.KVCache(encoding=encoding), [whorl.attention(*x, encoding=encoding, **hidden)]
        for now in (slice(0, 7), slice(7, 12)):
            parts = {name: states[:, now] for name, states in hidden.items()}
            found.append(cache.attend(*(t[:, :, now] for t in x), **parts))
        if encoding.claims.linear_attention:
            found.append(whorl.linear_attention(*x, encoding=encoding))
        return found

    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = computed()
    for one, other in zip(got, computed(), strict=True):
        assert torch.equal(one, other)


def test_what_a_users_encoding_remembers_is_not_rounded_either():
    class Remembering(whorl.ForgettingGate):
        def remember(self, hidden):
            return self.gate(hidden).mT

    encoding, (q, k, v) = Remembering(heads=4, width=64), tokens(12)
    hidden = hidden_for(encoding, 12)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = whorl.attention(q, k, v, encoding=encoding, **hidden)
    assert torch.equal(got, whorl.attention(q, k, v, encoding=encoding, **hidden))


@pytest.mark.parametrize("offset", [0, 10_000, 131_072, 16_000_000])
def test_a_folded_bias_does_not_tire_with_the_position(offset):
    alibi, (q, k, v) = build("alibi"), tokens(300, dtype=torch.bfloat16)
    positions = torch.arange(300) + offset
    got = whorl.attention(q, k, v, encoding=alibi, positions=positions)
    exact = by_reference(q, k, v, alibi, positions=positions).out
    assert float((got.double() - exact).abs().max()) < 0.02


def test_evaluating_before_training_leaves_nothing_behind():
    rope = whorl.Rope(head_dim=16, base=777.0)
    with torch.inference_mode():
        rope.rotate(tokens(6)[0], whorl.positions(6))
    q, k, v = tokens(6, grad=True)
    whorl.attention(q, k, v, encoding=rope).sum().backward()
    assert q.grad is not None


def test_combined_encodings_compile_in_one_graph():
    torch._dynamo.reset()
    both = whorl.Combined(whorl.Rope(head_dim=16), build("alibi"), whorl.Window(size=4))
    compiled = torch.compile(
        lambda q, k, v: whorl.attention(q, k, v, encoding=both), fullgraph=True, backend="aot_eager"
    )
    q, k, v = tokens(9)
    torch.testing.assert_close(compiled(q, k, v), whorl.attention(q, k, v, encoding=both), rtol=0, atol=2e-6)


def test_combined_rotates_then_adds():
    both = whorl.Combined(whorl.Rope(head_dim=16), build("alibi"))
    q, k, v = tokens(13)
    turned = both.encodings[0].transform_qk(q, k, torch.arange(13), torch.arange(13))
    expected = whorl.attention(*turned, v, encoding=build("alibi"))
    torch.testing.assert_close(whorl.attention(q, k, v, encoding=both), expected, rtol=0, atol=2e-6)
    assert whorl.from_dict(both.config.to_dict()).config == both.config


def test_combined_scales_queries_where_they_are_and_not_where_a_branch_puts_them():
    """ReRoPE puts far queries at its window; log-n still counts the tokens before them."""
    q, k, v = tokens(20)
    both = whorl.Combined(whorl.ReRope(head_dim=16, window=5), whorl.LogN(trained_length=4))
    scaled, _ = whorl.LogN(trained_length=4).transform_qk(q, k, torch.arange(20), torch.arange(20))
    expected = whorl.attention(scaled, k, v, encoding=whorl.ReRope(head_dim=16, window=5))
    torch.testing.assert_close(whorl.attention(q, k, v, encoding=both), expected, rtol=0, atol=2e-6)


def test_combined_learned_bias_gets_gradients():
    both = whorl.Combined(whorl.Rope(head_dim=16), build("kerple"), whorl.LogN(trained_length=4), whorl.Window(size=6))
    assert set(both.enters()) == {"transform_qk", "score_bias", "mask"}
    q, k, v = tokens(9)
    out = whorl.attention(q, k, v, encoding=both)
    grads = torch.autograd.grad(out.sin().sum(), list(both.parameters()))
    assert all(bool((g != 0).all()) for g in grads)
    _, weights = whorl.attention(q, k, v, encoding=both, return_weights=True)
    assert not weights[:, :, 8, :3].any()


def test_attention_compiles_in_one_graph():
    rope = whorl.Rope(head_dim=16)
    compiled = torch.compile(
        lambda q, k, v: whorl.attention(q, k, v, encoding=rope), fullgraph=True, backend="aot_eager"
    )
    for length in (7, 12, 20):
        q, k, v = tokens(length)
        torch.testing.assert_close(compiled(q, k, v), whorl.attention(q, k, v, encoding=rope), rtol=0, atol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["alibi", "t5"])
def test_flex_equals_dense_at_odd_lengths(name):
    encoding = build(name)
    with torch.no_grad():
        for length in (5, 37):
            q, k, v = tokens(length, kv_heads=2)
            got = whorl.attention(q, k, v, encoding=encoding, impl="flex")
            torch.testing.assert_close(got, by_reference(q, k, v, encoding).out.float(), rtol=0, atol=5e-6)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("name", ["alibi", "t5", "kerple", "fire", "sandwich", "none", "rope", "window"])
def test_the_score_function_of_flex_equals_dense(name, monkeypatch):
    """The function FlexAttention compiles, run as it is: bias, order, masks, documents and softcap."""
    monkeypatch.setattr(flex, "_compiled", lambda kind: flex._flex)
    encoding = build(name)
    documents = torch.tensor([0] * 9 + [1] * 4)
    with torch.no_grad():
        for options in ({}, {"causal": False}, {"documents": documents}, {"softcap": 2.0}):
            q, k, v = tokens(13, kv_heads=2)
            got = whorl.attention(q, k, v, encoding=encoding, impl="flex", **options)
            expected = by_reference(q, k, v, encoding, **options).out.float()
            torch.testing.assert_close(got, expected, rtol=0, atol=5e-6)


Q, K, V = tokens(5)
CASES = {
    "impl": (
        lambda: whorl.attention(Q, K, V, impl="flash"),
        "attention: unknown impl 'flash'. Expected one of: auto, flex",
    ),
    "triton": (
        lambda: whorl.attention(Q, K, V, return_weights=True, impl="triton"),
        "impl='triton' cannot run here: attention by tiles has no return_weights",
    ),
    "flex with grad": (
        lambda: whorl.attention(*tokens(5, grad=True), encoding=build("t5"), impl="flex"),
        "impl='flex' cannot run here: FlexAttention has no backward on the CPU. Use impl='torch'.",
    ),
    "flex with log-sum-exp": (
        lambda: whorl.attention(Q, K, V, impl="flex", return_lse=True),
        "impl='flex' cannot run here: FlexAttention does not return the log-sum-exp on the CPU",
    ),
    "flex on content": (
        lambda: whorl.attention(Q, K, V, encoding=build("shaw"), impl="flex"),
        "Shaw uses adjust_scores, which is no function of one score",
    ),
    "encoding by name": (lambda: whorl.attention(Q, K, V, encoding="rope"), "encoding must be an encoding, got 'rope'"),
    "rank": (lambda: whorl.attention(Q[0], K, V), "q must be a floating tensor of shape (batch, heads, length, dim)"),
    "dtype": (lambda: whorl.attention(Q, K.double(), V), "q, k and v must share device and dtype, got torch.float32"),
    "batch": (lambda: whorl.attention(Q[:1], K, V), "q and k must have the same batch and dim, got (1, 4, 5, 16)"),
    "k and v": (lambda: whorl.attention(Q, K, V[:, :, 1:]), "k and v must have the same batch, heads and length"),
    "heads": (lambda: whorl.attention(Q, K[:, :3], V[:, :3]), "4 query heads cannot share 3 key heads equally"),
    "causal": (lambda: whorl.attention(Q, K, V, causal="order"), "causal must be True, False or 'positions', got"),
    "dropout": (lambda: whorl.attention(Q, K, V, dropout=1.0), "dropout must be at least 0 and below 1, got 1.0"),
    "scale": (lambda: whorl.attention(Q, K, V, scale=0.0), "scale must be a positive number, got 0.0"),
    "softcap": (lambda: whorl.attention(Q, K, V, softcap=-1.0), "softcap must be a positive number, got -1.0"),
    "mask dtype": (lambda: whorl.attention(Q, K, V, mask=torch.ones(5, 5)), "mask must be a bool tensor, True where"),
    "mask shape": (
        lambda: whorl.attention(Q, K, V, mask=torch.ones(5, 4, dtype=torch.bool)),
        "mask must be broadcastable to (batch, heads, queries, keys) = (2, 4, 5, 5)",
    ),
    "key mask": (
        lambda: whorl.attention(Q, K, V, key_mask=torch.ones(5, dtype=torch.bool)),
        "key_mask must be a bool tensor of shape (batch, keys) = (2, 5)",
    ),
    "positions": (lambda: whorl.attention(Q, K, V, positions=torch.arange(4)), "positions must be a tensor with 5 on"),
    "positions without keys'": (
        lambda: whorl.attention(Q[:, :, :2], K, V, positions=torch.arange(2)),
        "positions of 2 queries do not tell those of 5 keys. Pass key_positions too.",
    ),
    "more queries than keys": (
        lambda: whorl.attention(Q, K[:, :, :2], V[:, :, :2]),
        "5 queries cannot be the last of 2",
    ),
    "documents": (
        lambda: whorl.attention(Q, K, V, documents=torch.zeros(4)),
        "documents must be of shape (5,) or (2, 5)",
    ),
    "documents of other keys": (
        lambda: whorl.attention(Q[:, :, :2], K, V, documents=torch.zeros(2)),
        "documents need key_documents where keys are other tokens",
    ),
    "documents of keys only": (
        lambda: whorl.attention(Q, K, V, key_documents=torch.zeros(5)),
        "key_documents would be ignored without documents",
    ),
    "hidden missing": (
        lambda: whorl.attention(Q, K, V, encoding=build("forgetting_gate")),
        "ForgettingGate reads hidden states. Pass hidden=… of shape (batch, keys, width).",
    ),
    "hidden ignored": (
        lambda: whorl.attention(Q, K, V, hidden=torch.zeros(2, 5, 64)),
        "hidden would be ignored, NoPE does not read it",
    ),
    "future of a gate": (
        lambda: whorl.attention(Q, K, V, encoding=build("xpos"), causal=False),
        "attention: XPos is defined for keys up to the query only. Use causal=True.",
    ),
    "causal as a number": (
        lambda: whorl.attention(Q, K, V, causal=1),
        "causal must be True, False or 'positions', got 1",
    ),
    "order of several axes": (
        lambda: whorl.attention(Q, K, V, encoding=build("mrope"), causal="positions"),
        "positions of 3 axes have no order. Use causal=True",
    ),
    "mask elsewhere": (
        lambda: whorl.attention(Q, K, V, mask=torch.ones(5, 5, dtype=torch.bool, device="meta")),
        "attention: mask must be on the device of q, cpu, got meta. Move it with .to().",
    ),
    "key_mask elsewhere": (
        lambda: whorl.attention(Q, K, V, key_mask=torch.ones(2, 5, dtype=torch.bool, device="meta")),
        "attention: key_mask must be on the device of q, cpu, got meta. Move it with .to().",
    ),
    "documents elsewhere": (
        lambda: whorl.attention(Q, K, V, documents=torch.zeros(5, dtype=torch.long, device="meta")),
        "attention: documents must be on the device of q, cpu, got meta. Move it with .to().",
    ),
    "key_documents elsewhere": (
        lambda: whorl.attention(
            Q, K, V, documents=torch.zeros(5).long(), key_documents=torch.zeros(5, dtype=torch.long, device="meta")
        ),
        "attention: key_documents must be on the device of q, cpu, got meta. Move it with .to().",
    ),
    "hidden elsewhere": (
        lambda: whorl.attention(
            Q, K, V, encoding=build("forgetting_gate"), hidden=torch.zeros(2, 5, 64, device="meta")
        ),
        "attention: hidden must be on the device of q, cpu, got meta. Move it with .to().",
    ),
    "positions of another batch": (
        lambda: whorl.attention(Q, K, V, encoding=build("kerple"), positions=torch.arange(5).expand(3, -1)),
        "positions are for a batch of 3, q has 2 rows",
    ),
    "heads of the encoding": (
        lambda: whorl.attention(Q, K, V, encoding=whorl.Alibi(heads=1)),
        "attention: Alibi has heads=1, q has 4. Build it with heads=4.",
    ),
    "heads inside": (
        lambda: whorl.attention(Q, K, V, encoding=whorl.Combined(whorl.Rope(head_dim=16), whorl.Alibi(heads=8))),
        "attention: Alibi has heads=8, q has 4.",
    ),
    "hidden of another batch": (
        lambda: whorl.attention(Q, K, V, encoding=build("forgetting_gate"), hidden=torch.zeros(1, 5, 64)),
        "hidden must be of shape (2, 5, width), one row per key",
    ),
    # an encoding that reads no positions would compare rounded ones under causal="positions"
    "positions in half precision": (
        lambda: whorl.attention(Q, K, V, positions=torch.arange(5).bfloat16(), causal="positions"),
        "positions must be int32, int64, float32 or float64, got torch.bfloat16 of shape (5,). Half precision",
    ),
    "key positions in half precision": (
        lambda: whorl.linear_attention(
            Q, K, V, positions=torch.arange(5), key_positions=torch.arange(5).half(), causal=False
        ),
        "key_positions must be int32, int64, float32 or float64, got torch.float16 of shape (5,). Half precision",
    ),
    "length": (
        lambda: whorl.attention(Q, K, V, length="long"),
        "length must be a positive integer or None, got 'long'",
    ),
    "infinite scale": (
        lambda: whorl.attention(Q, K, V, scale=float("inf")),
        "scale must be a positive number, got inf",
    ),
    "axes of parts": (
        lambda: whorl.Combined(build("mrope"), build("alibi")),
        "Combined: positions have one number of axes, but MRope reads 3, Alibi reads 1",
    ),
    "unknown key of combined": (
        lambda: whorl.from_dict({"name": "combined", "parts": [], "colour": 1}),
        "Combined: unknown setting 'colour'",
    ),
    "parts of combined": (
        lambda: whorl.from_dict({"name": "combined", "parts": ["rope"]}),
        "every part must be a dict with a name, got 'rope'",
    ),
    "plan of a number": (lambda: whorl.LayerPlan(5), "LayerPlan: encodings must be a list with one per layer, got 5"),
    "two rotations": (
        lambda: whorl.Combined(whorl.Rope(head_dim=16), whorl.Rope(head_dim=16)),
        "Combined: Rope and Rope both use transform_qk, and which acts first is not defined",
    ),
    "two biases": (
        lambda: whorl.Combined(build("alibi"), build("t5")),
        "Combined: Alibi and T5 both use score_bias",
    ),
    "one part": (lambda: whorl.Combined(build("alibi")), "Combined: encodings must be at least 2, got 1"),
    "no encoding": (lambda: whorl.Combined(build("alibi"), "rope"), "every part must be an encoding, got 'rope'"),
    "empty plan": (lambda: whorl.LayerPlan([]), "LayerPlan: encodings must be one per layer, got []"),
    "plan of names": (lambda: whorl.LayerPlan(["rope"]), "LayerPlan: layer 0 must be an encoding, got 'rope'"),
    "two inputs": (
        lambda: whorl.LayerPlan([build("sinusoidal"), whorl.NoPE()]),
        "LayerPlan: an encoding that adds to the input acts once, before all layers",
    ),
    "no layers": (lambda: whorl.LayerPlan.shared(whorl.NoPE(), layers=0), "LayerPlan.shared: layers must be positive"),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_named(case):
    call, message = CASES[case]
    with pytest.raises(whorl.WhorlError) as caught:
        call()
    assert message in str(caught.value)


def test_a_plan_may_come_from_a_generator():
    assert len(whorl.LayerPlan(whorl.Rope(head_dim=16) for _ in range(4))) == 4


def test_layer_plans_share_or_not():
    shared = whorl.LayerPlan.shared(build("t5"), layers=3)
    own = whorl.LayerPlan.own(lambda: build("t5"), layers=3)
    assert len(list(shared.parameters())) == 1
    assert len(list(own.parameters())) == 3
    assert [len(plan) for plan in (shared, own)] == [3, 3]
    assert shared[0] is shared[2]
    assert own[0] is not own[2]
    assert own.to_list()[1]["name"] == "t5"
    mixed = whorl.LayerPlan.every(2, whorl.NoPE(), whorl.Rope(head_dim=16), layers=5)
    assert [type(mixed[i]).__name__ for i in range(5)] == ["Rope", "NoPE", "Rope", "NoPE", "Rope"]


@pytest.mark.parametrize(("queries", "keys"), [(1, 7), (3, 20), (5, 33)])
def test_flex_on_the_cpu_refuses_what_its_compiler_cannot(queries, keys):
    encoding = whorl.T5(heads=HEADS).requires_grad_(False)
    q, (_, k, v) = tokens(queries)[0], tokens(keys)
    with pytest.raises(whorl.WhorlError, match=r"impl='flex' cannot run here: .* of the same tokens as the keys"):
        whorl.attention(q, k, v, encoding=encoding, impl="flex")


class InDouble(whorl.Alibi):
    """A bias of one's own that is float64 whatever the queries are."""

    def score_bias(self, q_positions, k_positions, length=None):
        bias = super().score_bias(q_positions, k_positions, length)
        return None if bias is None else bias.double()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("options", [{}, {"impl": "torch"}, {"softcap": 3.0}, {"return_lse": True}])
def test_a_bias_in_float64_serves_every_dtype(options, dtype):
    q, k, v = (torch.randn(1, 4, 6, 8, generator=torch.Generator().manual_seed(i)).to(dtype) for i in range(3))
    got = whorl.attention(q, k, v, encoding=InDouble(heads=4), **options)
    expected = whorl.attention(q, k, v, encoding=whorl.Alibi(heads=4), **options)
    torch.testing.assert_close(got, expected, atol=2e-2 if dtype == torch.bfloat16 else 1e-6, rtol=0)
