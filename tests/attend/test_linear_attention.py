"""Linear attention: every form against its definition, chunked, recurrent and parallel alike, linear in the length."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

import whorl
from helpers import LAYOUTS
from oracles import linear_attention as oracle
from oracles import xpos as xpos_oracle
from whorl import Rope, WhorlError
from whorl.attend import linear_forms
from whorl.attend.features import FEATURES, FORMS, feature_map, unit
from whorl.attend.linear import LinearState, linear_attention
from whorl.encodings.base import Claims
from whorl.encodings.combined import Combined
from whorl.encodings.xpos import XPos

RATES = [0.05, 0.4]


def draw(*shape, dtype=torch.float64, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def qkv(length=19, dim=8, value_dim=5, heads=2, key_heads=None, batch=1, dtype=torch.float64, seed=0):
    keys = (batch, heads if key_heads is None else key_heads, length)
    return (
        draw(batch, heads, length, dim, dtype=dtype, seed=seed),
        draw(*keys, dim, dtype=dtype, seed=seed + 1),
        draw(*keys, value_dim, dtype=dtype, seed=seed + 2),
    )


def half_order(x, layout):
    """The dimensions in the order that makes the half layout do what another does: products do not change."""
    return x if layout == "half" else torch.cat((x[..., 0::2], x[..., 1::2]), dim=-1)


def defined(q, k, v, rope=None, positions=None, form="numerator", eps=1e-6, layout="half", key_positions=None, **more):
    """The oracle over a batch, key heads repeated."""
    positions = torch.arange(q.shape[2]) if positions is None else positions
    key_positions = positions if key_positions is None else key_positions
    frequencies = None if rope is None else rope.frequencies().numpy()
    angles = [None if rope is None else p.numpy()[:, None] * frequencies for p in (positions, key_positions)]
    groups = q.shape[1] // k.shape[1]
    q, k = half_order(q, layout), half_order(k.repeat_interleave(groups, 1), layout)
    v = v.repeat_interleave(groups, 1)
    out = np.stack(
        [
            oracle.attention(
                *(x[row].numpy() for x in (q, k, v)), positions.tolist(), key_positions.tolist(), *angles, form=form,
                eps=eps, **more,
            )
            for row in range(len(q))
        ]
    )  # fmt: skip
    return torch.from_numpy(np.stack([oracle.rms_norm(row, eps) for row in out]) if form == "unnormalised" else out)


def dense(
    q, k, v, encoding=None, form="numerator", feature="elu+1", causal=True, decay=None, positions=None, eps=1e-6,
    length=None, key_mask=None, **_,
):  # fmt: skip
    """The definition with whole matrices, for lengths that the oracle's loops are too slow for."""
    groups, rows = q.shape[1] // k.shape[1], torch.arange(q.shape[2])
    p = rows if positions is None else positions
    a, b = feature_map(q, feature), feature_map(k, feature)
    a, b = (unit(a), unit(b)) if form == "one_plus_cosine" else (a, b)
    turned = (a, b) if encoding is None else encoding.transform_qk(a, b, p, p, length)
    plain, top = (x @ y.repeat_interleave(groups, 1).mT for x, y in ((a, b), turned))
    top = 1 + top if form == "one_plus_cosine" else top
    bottom = top if form in ("both", "one_plus_cosine") else plain
    seen = rows[:, None] >= rows if causal else torch.ones(len(rows), len(rows), dtype=torch.bool)
    seen = seen if key_mask is None else seen & key_mask[:, None, None, :]
    fade = seen.to(q.dtype)
    if decay is not None:
        rates = torch.as_tensor(decay, dtype=torch.float64).expand(q.shape[1])[:, None, None]
        fade = fade * (-rates * (p[:, None] - p).abs()).exp()
    out = (top * fade).to(v.dtype) @ v.repeat_interleave(groups, 1)
    if form == "unnormalised":
        return out / (out.square().mean(-1, keepdim=True) + eps).sqrt()
    return out / ((bottom * fade).sum(-1, keepdim=True) + eps)


def in_steps(q, k, v, first=1, **options):
    """The same tokens through a LinearState: some at once, then one by one."""
    state = LinearState(**options)
    cuts = [slice(0, first), *(slice(t, t + 1) for t in range(first, q.shape[2]))]
    return torch.cat([state.step(*(x[:, :, cut] for x in (q, k, v))) for cut in cuts], dim=2)


def close(got, expected, tolerance=1e-12):
    assert got.shape == expected.shape
    assert torch.isfinite(got).all()
    assert (got - expected).abs().max() <= tolerance


# -- the definition ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("form", FORMS)
def test_every_form_and_feature_is_the_oracle(form, feature, causal):
    q, k, v = qkv()
    for layout in LAYOUTS:
        rope = Rope(head_dim=8, layout=layout)
        options = {"form": form, "feature": feature, "causal": causal, "decay": RATES if form == "decay" else None}
        expected = defined(q, k, v, rope, layout=layout, **options)
        # identity features make denominators of both signs, near 0 among them: sums agree, quotients less closely
        size = expected.abs().amax().clamp(min=1.0)
        close(linear_attention(q, k, v, encoding=rope, chunk=4, **options) / size, expected / size, 1e-10)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("form", FORMS)
def test_decay_fades_every_form_and_no_encoding_is_no_rotation(form, causal):
    q, k, v = qkv(seed=10)
    for rope in (None, Rope(head_dim=8)):
        expected = defined(q, k, v, rope, form=form, causal=causal, decay=RATES)
        close(linear_attention(q, k, v, encoding=rope, form=form, causal=causal, decay=RATES, chunk=4), expected)
        if form != "decay":
            expected = defined(q, k, v, rope, form=form, causal=causal)
            close(linear_attention(q, k, v, encoding=rope, form=form, causal=causal, chunk=4), expected)


@settings(max_examples=25, deadline=None)
@given(
    length=st.integers(1, 40),
    chunk=st.integers(1, 50),
    form=st.sampled_from(FORMS),
    causal=st.booleans(),
    rate=st.one_of(st.just(0.0), st.floats(1e-3, 30.0)),
    batch=st.integers(1, 2),
    key_heads=st.sampled_from([1, 2, 4]),
)
def test_any_length_chunk_rate_and_sharing_of_heads(length, chunk, form, causal, rate, batch, key_heads):
    q, k, v = qkv(length, dim=4, value_dim=3, heads=4, key_heads=key_heads, batch=batch)
    options = {"encoding": Rope(head_dim=4), "form": form, "decay": [rate, 0.1, rate / 2, 0.0]}
    expected = dense(q, k, v, causal=causal, **options)
    close(linear_attention(q, k, v, chunk=chunk, causal=causal, **options), expected, 1e-9)
    if causal:
        close(in_steps(q, k, v, first=max(1, length // 2), chunk=chunk, **options), expected, 1e-9)


def test_shared_key_heads_are_repeated_key_heads():
    q, k, v = qkv(heads=6, key_heads=2, batch=2)
    rope = Rope(head_dim=8)
    close(linear_attention(q, k, v, encoding=rope), defined(q, k, v, rope))
    for decay in (None, [0.1 * h for h in range(6)]):
        repeated = [x.repeat_interleave(3, 1) for x in (k, v)]
        expected = linear_attention(q, *repeated, encoding=rope, decay=decay, chunk=5)
        close(linear_attention(q, k, v, encoding=rope, decay=decay, chunk=5), expected)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_slices_and_scalings_are_those_of_the_encoding(layout):
    q, k, v = qkv(40)
    for more in (
        {"rotary_dim": 4},
        {"rotary_dim": 4, "slice": "trailing"},
        {"scaling": whorl.Yarn(factor=4.0, original_length=16)},
        {"scaling": whorl.DynamicNtk(factor=2.0, original_length=16)},
        {"rotated_heads": (1,)},
    ):
        rope = Rope(head_dim=8, layout=layout, **more)
        options = {"encoding": rope, "length": 40, "form": "unnormalised"}
        close(linear_attention(q, k, v, chunk=7, **options), dense(q, k, v, **options), 1e-10)
    rope = Rope(head_dim=8, scaling=whorl.DynamicNtk(factor=2.0, original_length=16))
    scaled = [linear_attention(q, k, v, encoding=rope, length=n) for n in (None, 64)]
    assert (scaled[0] - scaled[1]).abs().max() > 1e-3


def test_other_keys_have_positions_of_their_own():
    q, _, _ = qkv(7)
    _, k, v = qkv(12, seed=20)
    rope, mine, theirs = Rope(head_dim=8), torch.arange(3, 10), torch.arange(12) * 2
    for form in ("numerator", "both", "one_plus_cosine", "unnormalised"):
        options = {"form": form, "causal": False, "key_positions": theirs}
        expected = defined(q, k, v, rope, mine, **options)
        close(linear_attention(q, k, v, encoding=rope, positions=mine, **options), expected)
    last = linear_attention(q, k, v, encoding=rope, causal=False)  # queries are the last of the keys unless told
    close(last, defined(q, k, v, rope, torch.arange(5, 12), causal=False, key_positions=torch.arange(12)))


def test_positions_may_leave_gaps_and_repeat():
    q, k, v = qkv(30)
    positions = torch.tensor([0, 0, 0, 1, 5, 5, 7, *range(100, 120), 10**6, 10**6 + 1, 10**6 + 1])
    options = {"encoding": Rope(head_dim=8), "positions": positions, "decay": [0.02, 3.0]}
    for causal in (True, False):
        expected = dense(q, k, v, causal=causal, **options)
        close(linear_attention(q, k, v, causal=causal, chunk=4, **options), expected, 1e-10)


def test_weights_depend_on_distances_only():
    q, k, v = qkv(50)
    rope = Rope(head_dim=8)
    for form in FORMS:
        first, far = (
            linear_attention(q, k, v, encoding=rope, form=form, decay=0.1, positions=whorl.positions(50, offset=offset))
            for offset in (0, 100_000)
        )
        close(far, first, 1e-8)


@pytest.mark.parametrize("name", whorl.names())
def test_every_encoding_works_or_is_refused_by_name(name):
    encoding = whorl.build_for(name, heads=2, head_dim=8, width=16, length=1024).double()
    q, k, v = qkv()
    call = {"causal": True}
    if not encoding.claims.linear_attention:
        for use in (lambda: linear_attention(q, k, v, encoding=encoding), lambda: LinearState(encoding=encoding)):
            with pytest.raises(
                WhorlError, match=f": {type(encoding).__name__} has no linear form: it .*Use RoPE, xPos"
            ):
                use()
        return
    positions = torch.stack((torch.arange(19), torch.arange(19) % 5)) if name in ("axial_rope", "mixed_rope") else None
    call |= {"form": "unnormalised", "encoding": encoding, "positions": positions}
    with torch.no_grad():
        close(linear_attention(q, k, v, chunk=4, **call), dense(q, k, v, **call), 1e-9)
    if not encoding.enters() or encoding.enters() == ("add_to_input",):  # nothing happens to queries and keys
        assert torch.equal(linear_attention(q, k, v, encoding=encoding), linear_attention(q, k, v))


def test_a_combined_encoding_is_refused_for_its_part():
    rope, alibi = Rope(head_dim=8), whorl.build("alibi", heads=2)
    with pytest.raises(WhorlError, match=r"Alibi has no linear form: it adds a bias .* becomes decay=… with its"):
        linear_attention(*qkv(), encoding=Combined(rope, alibi))
    learned = whorl.build("learned", width=16, length=32)
    assert torch.equal(
        linear_attention(*qkv(), encoding=Combined(rope, learned)), linear_attention(*qkv(), encoding=rope)
    )


# -- xPos: rotation and a rate for each dimension ---------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
def test_xpos_is_its_score_in_place_of_the_product(layout):
    q, k, v = qkv(23, dim=4, value_dim=3)
    encoding = XPos(head_dim=4, layout=layout, scale_base=8.0)
    q, k = feature_map(q, "elu+1"), feature_map(k, "elu+1")
    given = "half" if layout == "half" else "interleaved"
    weights = np.stack([xpos_oracle.scores(q[0], k[0], range(23), range(23), scale_base=8.0, layout=given)])
    weights = torch.from_numpy(weights).tril()
    plain = (q @ k.mT).tril()
    for form, bottom in (("numerator", plain), ("both", weights)):
        out = linear_attention(q, k, v, encoding=encoding, form=form, feature="identity", chunk=4)
        close(out, weights @ v / (bottom.sum(-1, keepdim=True) + 1e-6), 1e-9)
    options = {"encoding": encoding, "form": "one_plus_cosine", "decay": RATES}
    close(linear_attention(q, k, v, chunk=4, **options), dense(q, k, v, **options), 1e-9)
    close(in_steps(q, k, v, first=9, **options), dense(q, k, v, **options), 1e-9)


def test_xpos_never_overflows():
    """Where the whole length scaled at once ends at 72,521 in float32, the last row is right at 100,000."""
    length = 100_000
    q, k, v = qkv(length, dim=4, value_dim=2, heads=1, dtype=torch.float32)
    encoding = XPos(head_dim=4)
    out = linear_attention(q, k, v, encoding=encoding, form="unnormalised", feature="relu")
    a, b = encoding.rope.transform_qk(q.relu().double(), k.relu().double(), *[torch.arange(length)] * 2)
    logs = torch.tensor(encoding.linear_decay(), dtype=torch.float64)
    fade = ((length - 1 - torch.arange(length)).double()[:, None] * logs).exp()
    row = ((a[0, 0, -1] * b[0, 0] * fade).sum(-1, keepdim=True) * v[0, 0].double()).sum(0)
    assert torch.isfinite(out).all()
    close(out[0, 0, -1].double(), row / (row.square().mean() + 1e-6).sqrt(), 1e-5)


class Fading(whorl.Encoding):
    """A stand-in that loses a factor of e^(-rate) per position in every dimension, and does nothing else."""

    class Config(whorl.Config):
        name = "fading"

    def __init__(self, rate):
        super().__init__()
        self.rate = rate

    @property
    def claims(self):
        return Claims(relative=True, norm_preserving=False, linear_attention=True, decays=True, extrapolates=True)

    def transform_qk(self, q, k, q_positions, k_positions, length=None):
        raise AssertionError("linear attention takes linear_qk")

    def linear_qk(self, q, k, q_positions, k_positions, length=None):
        return q, k

    def linear_decay(self):
        return (-self.rate,) * 8


@pytest.mark.parametrize("rate", [0.01, 5.0, 100.0, 1e4])
def test_rates_by_dimension_come_to_those_by_head(rate):
    q, k, v = qkv(40, dtype=torch.float32)
    expected = linear_attention(q, k, v, form="both", decay=rate, feature="relu")
    close(linear_attention(q, k, v, encoding=Fading(rate), form="both", feature="relu"), expected, 1e-5)
    stats = linear_attention(q, k, v, encoding=Fading(rate), form="both", feature="relu", return_stats=True)[1]
    assert stats.negative_share == 0


def test_what_a_chunk_cannot_hold_is_refused():
    q, k, v = qkv(40)
    far = torch.cat((torch.arange(20), torch.arange(10**6, 10**6 + 20)))
    with pytest.raises(WhorlError, match=r"chunk must be at most 17 for Fading, got 32\. It fades so fast"):
        linear_attention(q, k, v, encoding=Fading(5.0), chunk=32)
    with pytest.raises(
        WhorlError, match=r"positions span 1\.00002e\+06 within a chunk of 40 tokens, and Fading allows 800 "
    ):
        linear_attention(q, k, v, encoding=Fading(0.1), chunk=40, positions=far)
    expected = linear_attention(q, k, v, form="both", decay=0.1, positions=far)
    for chunk in (1, 10):  # no chunk crosses the gap
        close(linear_attention(q, k, v, encoding=Fading(0.1), form="both", chunk=chunk, positions=far), expected)
    with pytest.raises(WhorlError, match=r"Fading fades towards the past and grows towards the future\. Use"):
        linear_attention(q, k, v, encoding=Fading(0.1), causal=False)


# -- three ways to the same sums --------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_parallel_chunked_and_recurrent_agree_in_float32(form):
    length = {"numerator": 3000, "decay": 1500}.get(form, 500)
    q, k, v = qkv(length, dim=16, value_dim=8, dtype=torch.float32)
    options = {"encoding": Rope(head_dim=16), "form": form, "decay": [0.001, 0.1] if form == "decay" else None}
    chunked = linear_attention(q, k, v, **options)
    close(linear_attention(q, k, v, chunk=length, **options), chunked, 1e-5)
    close(in_steps(q, k, v, **options), chunked, 1e-5)
    close(linear_attention(q, k, v, chunk=37, **options), chunked, 1e-5)


def test_slow_fading_is_no_less_exact_in_steps():
    """A factor just below 1, rounded to float32 and multiplied a thousand times, would drift by 8e-5 here."""
    q, k, v = qkv(1500, dim=16, value_dim=8, dtype=torch.float32)
    encoding = XPos(head_dim=16, scale_base=16384.0)
    exact = linear_attention(*(x.double() for x in (q, k, v)), encoding=encoding, form="unnormalised")
    for out in (in_steps, linear_attention):
        close(out(q, k, v, encoding=encoding, form="unnormalised").double(), exact, 1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_chunks_agree_with_whole_matrices_at_3000(form):
    q, k, v = qkv(3000, dim=16, value_dim=8, heads=1, dtype=torch.float32)
    options = {"encoding": Rope(head_dim=16), "form": form, "decay": 0.01 if form == "decay" else None}
    for causal in (True, False):
        wide = [x.double() for x in (q, k, v)]
        exact = dense(*wide, causal=causal, **options)
        kept = 1.0
        if form == "both":  # a quotient is as uncertain as its denominator has cancelled
            stats = (
                linear_attention(*wide, **{**options, "form": one}, causal=causal, return_stats=True)[1]
                for one in ("both", "numerator")
            )
            rotated, plain = (each.denominators[..., None].abs() for each in stats)
            kept = rotated / plain
            assert kept.min() < 1e-2
        close(linear_attention(q, k, v, causal=causal, **options).double() * kept, exact * kept, 1e-5)


def test_half_precision_is_summed_in_float32():
    q, k, v = qkv(2000, dim=16, dtype=torch.bfloat16)
    options = {"encoding": Rope(head_dim=16), "decay": 0.001}
    exact = linear_attention(*(x.double() for x in (q, k, v)), **options)
    out = linear_attention(q, k, v, **options)
    assert out.dtype == torch.bfloat16
    close(out.double(), exact, float(exact.abs().max()) * 2**-8)
    x = [t.float() for t in (q, k, v)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = linear_attention(*x, **options)
    assert torch.equal(inside, linear_attention(*x, **options))


def test_a_state_goes_on_in_pieces_of_any_size():
    q, k, v = qkv(60, heads=4, key_heads=2, batch=2)
    options = {"encoding": Rope(head_dim=8), "decay": [0.1, 0.2, 0.0, 1.0], "chunk": 4}
    state, outs, at = LinearState(**options), [], 0
    for size in (17, 1, 0, 1, 30, 11):
        outs.append(state.step(*(x[:, :, at : at + size] for x in (q, k, v))))
        at += size
        assert state.position.tolist() == [at]
    close(torch.cat(outs, dim=2), linear_attention(q, k, v, **options))
    assert state.sums.sums.shape == (2, 2, 2, 8, 5) and state.plain.sums.shape == (2, 2, 2, 8, 1)


def test_beams_are_reordered():
    q, k, v = qkv(12, batch=3)
    options = {"encoding": Rope(head_dim=8), "decay": 0.2}
    state, rows = LinearState(**options), torch.tensor([2, 0, 0])
    state.step(*(x[:, :, :8] for x in (q, k, v)))
    state.reorder(rows)
    mixed = [torch.cat((x[rows, :, :8], x[:, :, 8:]), dim=2) for x in (q, k, v)]
    out = state.step(*(x[:, :, 8:] for x in mixed))
    close(out, linear_attention(*mixed, **options)[:, :, 8:])


@pytest.mark.parametrize("form", ["numerator", "unnormalised"])
@pytest.mark.parametrize("where", ["make_terms", "_finish", "position_axes"])
def test_a_step_that_fails_leaves_a_state_as_it_was(form, where, monkeypatch):
    from whorl.attend import linear

    q, k, v = qkv(12, batch=2)
    options = {"encoding": Rope(head_dim=8), "form": form}
    mask = torch.ones(2, 12, dtype=torch.bool)
    mask[0, :9] = False  # the first row has seen no key before the step that fails
    state = LinearState(**options)
    state.step(*(x[:, :, :8] for x in (q, k, v)), key_mask=mask[:, :8])

    def stop(*args, **more):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(linear, where, stop)
        state.step(*(x[:, :, 8:] for x in (q, k, v)))
    out = state.step(*(x[:, :, 8:] for x in (q, k, v)), key_mask=mask[:, 8:])
    close(out, linear_attention(q, k, v, key_mask=mask, **options)[:, :, 8:])


def test_a_state_takes_positions_of_several_axes():
    q, k, v = qkv(12)
    rope = whorl.MRope(head_dim=8, sections=(2, 1, 1))
    ids = torch.stack((torch.arange(12), torch.arange(12) // 3, torch.arange(12) % 3))
    state = LinearState(encoding=rope)
    outs = [state.step(*(x[:, :, t] for x in (q, k, v)), positions=ids[:, t]) for t in (slice(0, 7), slice(7, 12))]
    close(torch.cat(outs, dim=2), linear_attention(q, k, v, encoding=rope, positions=ids))
    with pytest.raises(WhorlError, match="positions of several axes do not tell the next ones"):
        state.step(*(x[:, :, :1] for x in (q, k, v)))


def test_it_compiles_in_one_graph_and_keeps_to_one_device():
    q, k, v = qkv(40, dtype=torch.float32)
    options = {"encoding": Rope(head_dim=8), "decay": RATES, "chunk": 8}
    compiled = torch.compile(lambda q, k, v: linear_attention(q, k, v, **options), backend="eager", fullgraph=True)
    close(compiled(q, k, v), linear_attention(q, k, v, **options), 1e-6)
    torch._dynamo.reset()
    q, k, v = (x.to("meta") for x in qkv(40, batch=2, key_heads=1))
    mask = torch.ones(2, 40, dtype=torch.bool, device="meta")
    for encoding in (None, Rope(head_dim=8), XPos(head_dim=8)):
        for form in FORMS:
            options = {"encoding": encoding, "form": form, "decay": RATES}
            out, stats = linear_attention(q, k, v, chunk=8, key_mask=mask, return_stats=True, **options)
            assert out.shape == (2, 2, 40, 5) and out.is_meta and all(x is None or x.is_meta for x in stats)
            assert in_steps(q, k, v, first=37, **options).is_meta


# -- padding ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_left_padding_changes_nothing(form):
    lengths, total = [5, 21, 13], 21
    q, k, v = qkv(total, batch=3)
    mask = torch.stack([torch.arange(total) >= total - n for n in lengths])
    positions = whorl.left_padded(lengths)
    for x in (k, v):
        x[~mask[:, None].expand(x.shape[:3])] = math.nan  # what padding holds must not matter
    options = {"encoding": Rope(head_dim=8), "form": form, "eps": 0.0 if form == "numerator" else 1e-6}
    options["decay"] = RATES if form == "decay" else None
    for causal in (True, False):
        out = linear_attention(q, k, v, key_mask=mask, positions=positions, causal=causal, chunk=4, **options)
        for row, n in enumerate(lengths):
            alone = linear_attention(*(x[row : row + 1, :, -n:] for x in (q, k, v)), causal=causal, **options)
            close(out[row : row + 1, :, -n:], alone, 1e-11)
            if causal:
                assert torch.equal(out[row, :, :-n], torch.zeros_like(out[row, :, :-n]))
    state = LinearState(chunk=4, **options)
    cuts = [slice(0, 15), slice(15, 16), slice(16, 20)]
    outs = [state.step(*(x[:, :, t] for x in (q, k, v)), positions=positions[:, t], key_mask=mask[:, t]) for t in cuts]
    outs.append(state.step(*(x[:, :, 20:] for x in (q, k, v))))
    whole = linear_attention(q, k, v, key_mask=mask, positions=positions, chunk=4, **options)
    close(torch.cat(outs, dim=2), whole, 1e-11)


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("form", FORMS)
def test_what_padding_holds_is_in_no_gradient(form, feature):
    q, k, v = qkv(9, batch=2)
    mask = torch.arange(9) >= torch.tensor([[4], [0]])
    grads = []
    for held in (0.0, math.nan):
        leaves = [q, *(x.masked_fill(~mask[:, None, :, None], held) for x in (k, v))]
        leaves = [x.detach().requires_grad_() for x in leaves]
        options = {"form": form, "feature": feature, "decay": RATES if form == "decay" else None}
        out = linear_attention(*leaves, encoding=Rope(head_dim=8), key_mask=mask, **options)
        grads.append(torch.autograd.grad(out.sum(), leaves))
    for one, other in zip(*grads, strict=True):
        assert torch.equal(one, other)


def test_keys_left_out_in_the_middle():
    q, k, v = qkv(30, batch=2)
    mask = draw(2, 30, seed=5) > 0
    mask[:, 0] = True
    for options in ({}, {"causal": False}, {"decay": 0.3}, {"decay": 0.3, "causal": False}):
        options = {"encoding": Rope(head_dim=8), "key_mask": mask, **options}
        close(linear_attention(q, k, v, chunk=4, **options), dense(q, k, v, **options))
    nothing = torch.zeros(2, 30, dtype=torch.bool)
    for causal in (True, False):
        out, stats = linear_attention(q, k, v, key_mask=nothing, causal=causal, eps=0.0, return_stats=True)
        assert torch.equal(out, torch.zeros_like(out)) and torch.equal(stats.row_sums, torch.zeros(2, 2, 30).double())
        assert stats.near_zero == 0
        given = [x.detach().requires_grad_() for x in (q, k, v)]
        out = linear_attention(*given, key_mask=nothing, causal=causal, eps=0.0, form="unnormalised")
        assert not out.any() and not any(grad.any() for grad in torch.autograd.grad(out.sum(), given))


def test_no_tokens_give_no_output():
    q, k, v = qkv(0)
    for options in ({}, {"decay": 0.1}, {"causal": False}, {"form": "one_plus_cosine"}):
        assert linear_attention(q, k, v, encoding=Rope(head_dim=8), **options).shape == (1, 2, 0, 5)
    assert torch.equal(
        linear_attention(qkv(3)[0], k, v, causal=False, positions=torch.arange(3), key_positions=torch.arange(0)),
        torch.zeros(1, 2, 3, 5).double(),
    )


# -- gradients --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("causal", [True, False])
def test_gradients_are_those_of_numbers(form, causal, monkeypatch):
    monkeypatch.setattr(linear_forms, "SEGMENT_CHUNKS", 2)  # several segments, computed again in the backward pass
    inputs = [x.requires_grad_() for x in qkv(11, dim=4, value_dim=3, key_heads=1)]
    rates = torch.tensor(RATES, dtype=torch.float64, requires_grad=True)

    def call(q, k, v, rates):
        return linear_attention(q, k, v, encoding=Rope(head_dim=4), form=form, causal=causal, decay=rates, chunk=2)

    assert torch.autograd.gradcheck(call, (*inputs, rates), fast_mode=True)


@pytest.mark.parametrize("feature", FEATURES)
def test_gradients_are_those_of_whole_matrices(feature, monkeypatch):
    monkeypatch.setattr(linear_forms, "SEGMENT_CHUNKS", 3)
    upstream = draw(2, 4, 100, 5, seed=9)
    for form in FORMS:
        if feature == "identity" and form in ("numerator", "both", "decay"):
            continue  # denominators of both signs: no gradient to speak of
        options = {"encoding": Rope(head_dim=8), "form": form, "feature": feature, "decay": 0.1}
        grads = []
        for call, more in ((linear_attention, {"chunk": 8}), (dense, {})):
            inputs = [x.requires_grad_() for x in qkv(100, heads=4, key_heads=2, batch=2)]
            call(*inputs, **options, **more).backward(upstream)
            grads.append([x.grad for x in inputs])
        for got, expected in zip(*grads, strict=True):
            close(got / expected.abs().max(), expected / expected.abs().max(), 1e-9)


def test_gradients_through_xpos_steps_and_functorch(monkeypatch):
    monkeypatch.setattr(linear_forms, "SEGMENT_CHUNKS", 2)
    encoding, inputs = XPos(head_dim=4, scale_base=8.0), [x.requires_grad_() for x in qkv(9, dim=4, value_dim=3)]
    assert torch.autograd.gradcheck(
        lambda *x: linear_attention(*x, encoding=encoding, form="unnormalised", chunk=2), inputs, fast_mode=True
    )
    assert torch.autograd.gradcheck(
        lambda *x: in_steps(*x, first=5, encoding=encoding, decay=0.1), inputs, fast_mode=True
    )
    q, k, v = (x.detach() for x in inputs)
    grad = torch.func.grad(lambda q: linear_attention(q, k, v, encoding=encoding, chunk=2).sum())(q)
    linear_attention(*inputs, encoding=encoding, chunk=2).sum().backward()
    close(grad, inputs[0].grad)


def test_zero_features_have_no_direction_and_no_gradient():
    x = torch.tensor([[0.0, 0.0], [3e-30, 4e-30], [3.0, 4.0]], requires_grad=True)
    out = unit(x)
    close(out.detach(), torch.tensor([[0.0, 0.0], [0.6, 0.8], [0.6, 0.8]]), 1e-6)
    out[0].sum().backward()
    assert torch.isfinite(x.grad).all()
    small = feature_map(torch.tensor(-50.0), "elu+1")
    assert small == pytest.approx(math.exp(-50.0), rel=1e-5)  # elu(x) + 1 is 0 here


# -- linear in the length ---------------------------------------------------------------------------------------------


class Sizes(TorchDispatchMode):
    """The largest tensor any operation returns, and the elements of all of them together."""

    def __init__(self):
        super().__init__()
        self.largest = self.total = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(x, torch.Tensor):
                self.largest, self.total = max(self.largest, x.numel()), self.total + x.numel()
        return out


COSTS = {
    "numerator": {},
    "unnormalised": {"form": "unnormalised"},
    "all keys": {"form": "one_plus_cosine", "causal": False},
    "decay": {"decay": 0.1},
    "decay both ways": {"decay": 0.1, "causal": False},
    "xpos": {"encoding": XPos(head_dim=8), "decay": 0.1},
}


@pytest.mark.parametrize("case", COSTS)
def test_nothing_is_quadratic_forward_or_backward(case):
    found, options = [], COSTS[case]
    for length in (4096, 8192):
        inputs = [x.requires_grad_() for x in qkv(length, value_dim=8, heads=1, dtype=torch.float32)]
        options = {"encoding": Rope(head_dim=8), **options}
        linear_attention(*inputs, **options)  # makes the tables, which are kept
        with Sizes() as sizes:
            linear_attention(*inputs, **options).sum().backward()
        assert all(x.grad is not None for x in inputs)
        found.append(sizes)
    assert found[1].largest <= 64 * 8192 < 8192**2 / 100  # no more than a chunk's products for each query
    assert found[1].total <= 2.05 * found[0].total


def test_looking_at_signs_is_linear_too():
    inputs, rope = qkv(8192, heads=1), Rope(head_dim=8)
    linear_attention(*inputs, encoding=rope)
    with Sizes() as sizes:
        linear_attention(*inputs, encoding=rope, return_stats=True)
    assert sizes.largest <= 64 * 8192


# -- what the weights are like ----------------------------------------------------------------------------------------


def test_stats_are_those_of_the_weights():
    q, k, v = qkv(90)
    rope, p = Rope(head_dim=8), torch.arange(90)
    a, b = feature_map(q, "elu+1"), feature_map(k, "elu+1")
    turned, other = rope.transform_qk(a, b, p, p)
    for causal in (True, False):
        seen = p[:, None] >= p if causal else torch.ones(90, 90, dtype=torch.bool)
        weights, plain = (turned @ other.mT) * seen, (a @ b.mT) * seen
        share = ((weights < 0) & seen).sum() / (2 * seen.sum())
        for form, bottom in (("numerator", plain), ("both", weights)):
            out, stats = linear_attention(q, k, v, encoding=rope, form=form, causal=causal, return_stats=True)
            close(out, linear_attention(q, k, v, encoding=rope, form=form, causal=causal), 1e-10)
            bottom = bottom.sum(-1)
            assert stats.negative_share == share > 0.05
            close(stats.denominators, bottom, 1e-9)
            close(stats.row_sums, weights.sum(-1) / (bottom + 1e-6), 1e-9)
            close(stats.min_denominator, bottom.abs().min(), 1e-9)
            assert stats.near_zero == 0
        out, stats = linear_attention(q, k, v, encoding=rope, form="unnormalised", causal=causal, return_stats=True)
        close(stats.row_sums, weights.sum(-1), 1e-9)
        assert stats.negative_share == share and stats.denominators is stats.min_denominator is stats.near_zero is None


def test_rotated_weights_have_both_signs_and_sum_to_anything_but_plain_ones_are_a_mean():
    q, k, v = qkv(500)
    rotated = linear_attention(q, k, v, encoding=Rope(head_dim=8), return_stats=True)[1]
    assert rotated.negative_share > 0.05 and (rotated.row_sums - 1).abs().max() > 0.2
    for options in ({}, {"decay": 0.1}, {"form": "one_plus_cosine", "encoding": Rope(head_dim=8)}):
        stats = linear_attention(q, k, v, eps=0.0, return_stats=True, **options)[1]
        assert stats.negative_share == 0
        close(stats.row_sums, torch.ones(1, 2, 500).double(), 1e-12)


def test_signs_are_sampled_where_there_are_many_rows():
    q, k, v = qkv(3000, heads=1)
    sampled = linear_attention(q, k, v, encoding=Rope(head_dim=8), return_stats=True)[1].negative_share
    p = torch.arange(3000)
    a, b = Rope(head_dim=8).transform_qk(feature_map(q, "elu+1"), feature_map(k, "elu+1"), p, p)
    exact = ((a @ b.mT).tril() < 0).sum() / (3000 * 3001 / 2)
    assert abs(sampled - exact) < 0.01


def test_a_rotated_weight_can_exceed_the_plain_one():
    """Its bound is |f(q)| |f(k)| and not f(q) . f(k), which is 0 here."""
    rope = Rope(head_dim=2, frequencies=[math.pi / 2])
    q, k = torch.tensor([[0.0, 0.0], [1.0, 0.0]]), torch.tensor([[0.0, 1.0], [0.0, 0.0]])
    v = torch.ones(1, 1, 2, 1)
    out, stats = linear_attention(
        q.view(1, 1, 2, 2), k.view(1, 1, 2, 2), v, encoding=rope, feature="relu", eps=1e-3, return_stats=True
    )
    assert stats.denominators[0, 0, 1] == 0 and stats.near_zero == 2
    assert abs(float(out[0, 0, 1])) == pytest.approx(1000.0, rel=1e-4)


def test_a_denominator_of_both_can_vanish():
    """Two equal keys, the nearer turned by nothing and the other by half a circle, cancel."""
    rope = Rope(head_dim=2, frequencies=[math.pi])
    x, v = torch.ones(1, 1, 4, 2), torch.ones(1, 1, 4, 1)
    stats = linear_attention(x, x, v, encoding=rope, form="both", return_stats=True)[1]
    close(stats.denominators, torch.tensor([[[8.0, 0.0, 8.0, 0.0]]]), 1e-5)
    assert stats.near_zero == 2 and stats.min_denominator < 1e-5
    plain = linear_attention(x, x, v, encoding=rope, form="numerator", return_stats=True)[1]
    assert plain.near_zero == 0
    close(plain.row_sums, torch.tensor([[[1.0, 0.0, 1 / 3, 0.0]]]), 1e-5)


# -- bad input --------------------------------------------------------------------------------------------------------

Q = torch.zeros(2, 4, 6, 8)
MROPE_IDS = torch.zeros(3, 6, dtype=torch.int64)


def call(q=Q, k=Q, v=Q, **options):
    return lambda: linear_attention(q, k, v, **options)


class Sub(torch.Tensor):
    """A subclass that does nothing of its own."""


def moved_on(second, first=Q, **options):
    def use():
        state = LinearState(**options)
        state.step(first, first, first)
        second(state)

    return use


CASES = {
    "unknown form": (call(form="denominator"), "linear_attention: unknown form 'denominator'. Did you mean 'n"),
    "unknown feature": (call(feature="elu"), "linear_attention: unknown feature 'elu'. Did you mean 'relu'?"),
    "feature as function": (call(feature=torch.relu), "unknown feature <built-in method relu"),
    "rates missing": (call(form="decay"), "form='decay' needs rates. Pass decay=…, one for all heads or one for each."),
    "negative rate": (call(decay=-0.1), "decay must be at least 0 and finite, got -0.1. Weights are multiplied by"),
    "one negative rate": (call(decay=[0.1, 0, -2.0, 1]), "decay must be at least 0 and finite, got [0.1, 0, -2.0, 1]"),
    "negative rate in a tensor": (
        call(decay=torch.tensor([0.0, -1.0, 0.0, 0.0])),
        "decay must be at least 0 and finite, got [0.0, -1.0, 0.0, 0.0].",
    ),
    "NaN rate": (call(decay=math.nan), "decay must be at least 0 and finite, got nan."),
    "infinite rate": (call(decay=math.inf), "decay must be at least 0 and finite, got inf."),
    "rate as text": (call(decay="slow"), "decay must be a number, or one number per head, got 'slow'."),
    "rate as bool": (call(decay=True), "decay must be a number, or one number per head, got True."),
    "rates of other heads": (call(decay=[0.1, 0.2]), "decay must be one number, or one for each of 4 heads, got 2."),
    "rates in two axes": (call(decay=torch.ones(4, 1)), "decay must be a floating tensor of shape (heads,), got torch"),
    "rates in integers": (call(decay=torch.ones(4).long()), "decay must be a floating tensor of shape (heads,), got"),
    "chunk of none": (call(chunk=0), "chunk must be a positive integer or None, got 0."),
    "fractional chunk": (call(chunk=64.0), "chunk must be a positive integer or None, got 64.0."),
    "negative eps": (call(eps=-1e-6), "eps must be at least 0 and finite, got -1e-06."),
    "eps as text": (call(eps="1e-6"), "eps must be at least 0 and finite, got '1e-6'."),
    "encoding by name": (call(encoding="rope"), "encoding must be an encoding or None, got 'rope'. Build one by name"),
    "another head size": (call(encoding=Rope(head_dim=16)), "Rope: head_dim is 16, got a tensor with 8 dimensions"),
    "negative length": (call(encoding=Rope(head_dim=8), length=-1), "length must be a positive integer or None"),
    "xPos of some heads": (
        call(encoding=XPos(head_dim=8, rotated_heads=(0,))),
        "XPos has no linear form: with these settings it does not fade all heads alike. Use RoPE",
    ),
    "causal by positions": (call(causal="positions"), "causal must be True or False, got 'positions'. The order is"),
    "causal with other lengths": (
        call(k=Q[:, :, :3], v=Q[:, :, :3]),
        "causal order needs one query for each key, got 6 queries and 3 keys. Use causal=False for keys of",
    ),
    "causal with other positions": (
        call(key_positions=torch.arange(6)),
        "key_positions would be ignored, with causal=True queries and keys are the same tokens. Pass positions alone.",
    ),
    "keys without positions": (
        call(k=Q[:, :, :3], v=Q[:, :, :3], causal=False, positions=torch.arange(6)),
        "positions of 6 queries do not tell those of 3 keys. Pass key_positions too.",
    ),
    "more queries than keys": (
        call(k=Q[:, :, :3], v=Q[:, :, :3], causal=False),
        "6 queries cannot be the last of 3 keys. Pass positions and key_positions.",
    ),
    "decay to other keys": (
        call(q=Q[:, :, :3], causal=False, decay=0.1),
        "decay needs queries and keys of the same tokens, got 3 queries and 6 keys with positions of their own.",
    ),
    "positions that fall": (
        call(positions=torch.tensor([0, 1, 2, 0, 1, 2]), decay=0.1),
        "positions must not decrease where weights decay, got [0, 1, 2, 0, 1, 2]. Pass packed documents as rows",
    ),
    "decay on several axes": (
        call(encoding=whorl.MRope(head_dim=8, sections=(2, 1, 1)), positions=MROPE_IDS, decay=0.1),
        "positions must be of one axis where weights decay, got torch.int64 of shape (3, 6).",
    ),
    "positions as a list": (call(positions=[0, 1, 2, 3, 4, 5]), "positions must be a tensor, got [0, 1, 2, 3, 4, 5]."),
    "positions in bf16": (
        call(positions=torch.arange(6).bfloat16()),
        "positions must be int32, int64, float32 or float64, got torch.bfloat16",
    ),
    "too few positions": (
        call(positions=torch.arange(5)),
        "positions must be of shape (…, 6), for each row of the batch of 2 or for all, got torch.int64 of shape (5,).",
    ),
    "positions of another batch": (call(positions=torch.zeros(3, 6).long()), "for each row of the batch of 2 or for"),
    "positions elsewhere": (
        call(positions=torch.arange(6, device="meta")),
        "positions are on meta and q on cpu. Make them on the device of q.",
    ),
    "no heads axis": (call(q=Q[0]), "q must be a floating tensor of shape (batch, heads, length, dim), got"),
    "integers": (call(v=Q.long()), "v must be a floating tensor of shape (batch, heads, length, dim), got torch.int64"),
    "two dtypes": (call(k=Q.double()), "q, k and v must share device and dtype, got torch.float32 on cpu and k in"),
    "values of other keys": (call(v=Q[:, :, :5]), "k and v must have the same batch, heads and length, got (2, 4"),
    "keys of another size": (call(k=Q[..., :4]), "q and k must have the same batch and dim, got (2, 4, 6, 8) and"),
    "heads that do not divide": (
        call(k=Q[:, :3], v=Q[:, :3]),
        "4 query heads cannot share 3 key heads equally. Use a number of key heads that divides the query heads.",
    ),
    "mask elsewhere": (
        call(key_mask=torch.ones(2, 6, dtype=torch.bool, device="meta")),
        "key_mask must be on the device of q, cpu, got meta. Move it with .to().",
    ),
    "mask as numbers": (call(key_mask=torch.ones(2, 6)), "key_mask must be a bool tensor of shape (batch, keys) = ("),
    "mask of another length": (
        call(key_mask=torch.ones(2, 5, dtype=torch.bool)),
        "key_mask must be a bool tensor of shape (batch, keys) = (2, 6), got torch.bool of shape (2, 5).",
    ),
    "unknown impl": (call(impl="cuda"), "linear_attention: unknown impl 'cuda'."),
    "impl that is not there": (call(impl="numba"), "impl='numba' cannot run here: linear_attention has no numba"),
    "stats of nothing": (
        call(*[Q[:, :, :0]] * 3, return_stats=True),
        "return_stats=True needs at least one query, one key and one dimension.",
    ),
    "state of an unknown form": (lambda: LinearState(form="sum"), "LinearState: unknown form 'sum'."),
    "state without rates": (lambda: LinearState(form="decay"), "LinearState: form='decay' needs rates."),
    "state of another batch": (
        moved_on(lambda state: state.step(Q[:1], Q[:1], Q[:1])),
        "batch, heads and dim of q, k and v must stay ((2, 4, 8), (2, 4, 8), (2, 4, 8)), got ((1, 4, 8),",
    ),
    "state that goes back": (
        moved_on(lambda state: state.step(Q, Q, Q, positions=torch.arange(6)), decay=0.1),
        "LinearState: positions must not decrease where weights decay, got [0, 1, 2, 3, 4, 5].",
    ),
    "rows that are not there": (
        moved_on(lambda state: state.reorder(torch.tensor([0, 5]))),
        "LinearState.reorder: rows must be between 0 and 1, got [0, 5].",
    ),
    "rows of another class that are not there": (
        moved_on(lambda state: state.reorder(torch.tensor([5, 0]).as_subclass(Sub))),
        "LinearState.reorder: rows must be between 0 and 1, got torch.int64 of shape (2,).",
    ),
    "negative rows": (
        moved_on(lambda state: state.reorder(torch.tensor([-1, 0]))),
        "LinearState.reorder: rows must be between 0 and 1, got [-1, 0].",
    ),
    "rows as a mask": (
        moved_on(lambda state: state.reorder(torch.tensor([True, False]))),
        "LinearState.reorder: rows must be a list of row numbers, got torch.bool of shape (2,).",
    ),
    "rows as a list": (
        moved_on(lambda state: state.reorder([0, 0])),
        "LinearState.reorder: rows must be a tensor of 2 row indices, got [0, 0].",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_named(case):
    use, message = CASES[case]
    with pytest.raises(WhorlError) as caught:
        use()
    assert message in str(caught.value)


def test_positions_that_fall_on_a_device_make_their_row_nan(monkeypatch):
    """Values on a device are not read, so the call cannot refuse; it must not return numbers either."""
    from whorl.attend import linear_checks

    monkeypatch.setattr(linear_checks, "may_read_values", lambda positions: False)
    q, k, v = qkv(6, batch=2)
    positions = torch.tensor([[0, 1, 2, 3, 4, 5], [0, 1, 2, 0, 1, 2]])
    out = linear_attention(q, k, v, positions=positions, decay=0.1)
    assert torch.isfinite(out[0]).all() and torch.isnan(out[1]).all()
