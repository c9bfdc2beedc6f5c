"""The oracles of the other encodings against numbers known by hand, identities, and transformers' own modules."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional
from transformers import DebertaV2Config, XLNetConfig
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.deberta_v2.modeling_deberta_v2 import DisentangledSelfAttention, make_log_bucket_position
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor
from transformers.models.t5.modeling_t5 import T5Attention
from transformers.models.xlnet.modeling_xlnet import XLNetModel, XLNetRelativeAttention

from oracles import (
    alibi,
    cope,
    deberta,
    fire,
    forgetting,
    kerple,
    learned,
    linear_attention,
    masks,
    remaps,
    resonance,
    rotary_frequencies,
    rotation,
    sandwich,
    score_scaling,
    shaw,
    sinusoidal,
    softmax_attention,
    t5,
    transformer_xl,
    xpos,
)


def normal(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


def equal(got, expected, tolerance=1e-12):
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)


def ladder(dim, base=10000):
    return [float(w) for w in rotary_frequencies.plain(dim, base)]


def rope_scores(q, k, q_positions, k_positions, frequencies):
    """q and k rotated each by its own position: what a remap that changes nothing has to give."""
    out = np.zeros((len(q), len(q_positions), len(k_positions)))
    for h in range(len(q)):
        for a, i in enumerate(q_positions):
            for b, j in enumerate(k_positions):
                turned_q = rotation.rotate(q[h, a], [i * w for w in frequencies], "half")
                turned_k = rotation.rotate(k[h, b], [j * w for w in frequencies], "half")
                out[h, a, b] = turned_q @ turned_k / math.sqrt(q.shape[2])
    return out


# --- sinusoidal, learned


def test_sinusoidal_width_8_by_hand():
    s, c = math.sin, math.cos
    expected = [s(3), c(3), s(0.3), c(0.3), s(0.03), c(0.03), s(0.003), c(0.003)]
    equal(sinusoidal.code(3, 8), expected, 1e-15)
    equal(sinusoidal.code(3, 8, order="concatenated"), expected[0::2] + expected[1::2], 1e-15)
    decimals = [0.14112001, -0.98999250, 0.29552021, 0.95533649, 0.02999550, 0.99955003, 0.00300000, 0.99999550]
    equal(sinusoidal.code(3, 8), decimals, 1e-8)


def test_sinusoidal_odd_widths():
    w = [1, 10000 ** (-2 / 5), 10000 ** (-4 / 5)]
    sines, cosines = [math.sin(2 * x) for x in w], [math.cos(2 * x) for x in w]
    equal(sinusoidal.code(2, 5), [sines[0], cosines[0], sines[1], cosines[1], sines[2]])
    equal(sinusoidal.code(2, 5, order="concatenated"), [*sines[:2], *cosines[:2], 0])


def test_sinusoidal_at_zero_and_other_base():
    assert sinusoidal.code(0, 6).tolist() == [0, 1, 0, 1, 0, 1]
    assert sinusoidal.code(0, 6, order="concatenated").tolist() == [0, 0, 0, 1, 1, 1]
    equal(sinusoidal.code(1, 4, base=16)[2:], [math.sin(0.25), math.cos(0.25)])


def test_interpolation_by_hand():
    assert learned.interpolate([[0.0], [6.0]], 4).tolist() == [[0], [2], [4], [6]]
    assert learned.interpolate([[1.0], [5.0], [2.0]], 3).tolist() == [[1], [5], [2]]
    assert learned.interpolate([[1.0], [5.0]], 1).tolist() == [[1]]
    assert learned.interpolate([[7.0]], 3).tolist() == [[7], [7], [7]]


@pytest.mark.parametrize("new_length", [1, 2, 5, 7, 12, 20])
def test_interpolation_against_torch(new_length):
    table = normal(7, 3)
    rows = torch.tensor(table).T[None]
    expected = functional.interpolate(rows, size=new_length, mode="linear", align_corners=True)[0].T
    equal(learned.interpolate(table, new_length), expected.numpy())


# --- ALiBi and the forgetting gate


@pytest.mark.parametrize(
    "heads, exponents",
    [
        (1, [-8]),
        (3, [-4, -8, -2]),
        (6, [-2, -4, -6, -8, -1, -3]),
        (8, [-1, -2, -3, -4, -5, -6, -7, -8]),
        (12, [-1, -2, -3, -4, -5, -6, -7, -8, -0.5, -1.5, -2.5, -3.5]),
        (16, [-0.5 * t for t in range(1, 17)]),
    ],
)
def test_press_slopes(heads, exponents):
    equal(np.log2(alibi.slopes(heads)), exponents)


def test_geometric_slopes():
    equal(np.log2(alibi.slopes(12, "geometric")), [-8 * t / 12 for t in range(1, 13)])
    for heads in (1, 2, 4, 8, 16, 64):
        assert alibi.slopes(heads, "geometric").tolist() == alibi.slopes(heads).tolist()
    for heads in (3, 6, 12, 40):
        assert not np.allclose(alibi.slopes(heads, "geometric"), alibi.slopes(heads))


def test_alibi_forms_by_hand():
    assert alibi.bias([2], [0, 2, 3], [0.5]).tolist() == [[[-1.0, 0.0, 0.5]]]
    assert alibi.bias([2], [0, 2, 3], [0.5], "symmetric").tolist() == [[[-1.0, 0.0, -0.5]]]
    assert alibi.offset([2], [0, 2, 3], [0.5], 0.25).tolist() == [[[-1.0, 0.0, -0.625]]]
    left, right = alibi.split([2], [0, 2, 3], [0.5])
    assert left.tolist() == [[-1.0, 0.0, -math.inf]]
    assert right.tolist() == [[-math.inf, 0.0, -0.5]]


def test_alibi_offset_zero_is_symmetric():
    positions, slopes = [0, 3, 4, 9], alibi.slopes(3)
    symmetric = alibi.bias(positions, positions, slopes, "symmetric")
    assert alibi.offset(positions, positions, slopes, 0).tolist() == symmetric.tolist()


@pytest.mark.parametrize("heads", [1, 3, 6, 8, 12, 16, 40, 71])
def test_alibi_against_bloom_and_mpt(heads):
    length = 9
    ours = alibi.bias(range(length), range(length), alibi.slopes(heads))
    bloom = build_alibi_tensor(torch.ones(1, length), heads, torch.float32).reshape(heads, 1, length).double().numpy()
    for theirs in (bloom, build_mpt_alibi_tensor(heads, length).double().numpy()):
        difference = ours - theirs  # constant in every row, which softmax does not see
        equal(difference - difference[:, :, :1], np.zeros_like(ours), 1e-5)


def test_constant_gate_is_alibi():
    slopes = alibi.slopes(6)
    gates = -slopes[:, None] * np.ones(12)
    queries, keys = [3, 7, 11], range(12)
    equal(forgetting.bias(gates, queries, keys), alibi.bias(queries, keys, slopes))


def test_forgetting_is_a_difference_of_running_sums():
    gates = np.log(np.random.default_rng(0).uniform(0.1, 1, (2, 10)))
    total = np.cumsum(gates, axis=1)
    equal(forgetting.bias(gates, range(10), range(10)), total[:, :, None] - total[:, None, :])


def test_forgetting_by_hand():
    gates = [[9.0, -1.0, -2.0, -4.0]]  # the gate of the key itself is not counted
    assert forgetting.bias(gates, [3], [0, 1, 2, 3]).tolist() == [[[-7.0, -6.0, -4.0, 0.0]]]


# --- T5


def test_t5_causal_bucket_starts():
    starts = [16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113]
    expected = list(range(16)) + starts
    for number, start in enumerate(expected):
        assert t5.bucket(-start) == number
        if start:
            assert t5.bucket(-(start - 1)) == number - 1
    assert t5.bucket(-112) == 30 and t5.bucket(-113) == t5.bucket(-(10**6)) == 31
    assert t5.bucket(0) == t5.bucket(1) == t5.bucket(500) == 0


def test_t5_bidirectional_bucket_starts():
    expected = [*range(8), 8, 12, 16, 23, 32, 46, 64, 91]
    for number, start in enumerate(expected):
        assert t5.bucket(-start, bidirectional=True) == number
        if start:
            assert t5.bucket(-(start - 1), bidirectional=True) == number - 1
            assert t5.bucket(start, bidirectional=True) == 16 + number
    assert t5.bucket(0, bidirectional=True) == 0
    assert t5.bucket(10**6, bidirectional=True) == 31


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("buckets, max_distance", [(32, 128), (16, 128), (32, 256), (8, 20), (64, 512), (12, 96)])
def test_t5_against_transformers(buckets, max_distance, bidirectional):
    relative = torch.arange(-2 * max_distance, 2 * max_distance + 1)
    expected = T5Attention._relative_position_bucket(relative, bidirectional, buckets, max_distance)
    assert [t5.bucket(r, buckets, max_distance, bidirectional) for r in relative.tolist()] == expected.tolist()


def test_t5_bias_by_hand():
    table = np.arange(64.0).reshape(32, 2)
    got = t5.bias(table, [20, 200], [0, 19, 21])
    assert got[0].tolist() == [[34.0, 2.0, 0.0], [62.0, 62.0, 62.0]]  # buckets 17 (distance 20), 1, 0; then 31
    assert got[1].tolist() == (got[0] + 1).tolist()
    assert t5.bias(table, [20], [21], bidirectional=True)[0].tolist() == [[34.0]]


# --- DeBERTa


def test_deberta_bucket_golden():
    golden = {0: 0, 1: 1, 127: 127, 128: 128, 150: 143, 200: 169, 256: 192, 511: 255, 512: 256, 600: 270}
    for relative, expected in golden.items():
        assert deberta.bucket(relative, 256, 512) == expected
        assert deberta.bucket(-relative, 256, 512) == -expected
    assert deberta.index(600, 256, 256, 512) == 511
    assert deberta.index(-600, 256, 256, 512) == 0


@pytest.mark.parametrize("buckets, max_distance", [(256, 512), (32, 512), (8, 33), (4, 9)])
def test_deberta_bucket_against_transformers(buckets, max_distance):
    relative = torch.arange(-600, 601)
    expected = make_log_bucket_position(relative, buckets, max_distance).long()
    assert [deberta.bucket(r, buckets, max_distance) for r in relative.tolist()] == expected.tolist()


def test_deberta_scores_by_hand():
    # dim 1, span 2: rows 0, 1, 2, 3 are query - key = -2, -1, 0, 1
    kr, qr = np.array([[[1.0], [2.0], [3.0], [4.0]]]), np.array([[[10.0], [20.0], [30.0], [40.0]]])
    one = np.ones((1, 1, 1))
    root = math.sqrt(3)
    equal(deberta.scores(one, one, kr, qr, [5], [4], 2), [[[(1 + 4 + 20) / root]]])
    equal(deberta.scores(one, one, kr, qr, [5], [4], 2, position_to_content="code"), [[[(1 + 4 + 40) / root]]])
    equal(deberta.scores(one, one, kr, qr, [5], [9], 2), [[[(1 + 1 + 40) / root]]])
    equal(deberta.scores(one, one, kr, None, [5], [5], 2), [[[(1 + 3) / math.sqrt(2)]]])


@pytest.mark.parametrize("buckets", [-1, 8])
def test_deberta_code_form_against_transformers(buckets):
    """The released code reads Qr[delta(i, j)], where the paper writes Qr[delta(j, i)]."""
    heads, dim, length, span = 2, 4, 14, 8
    config = DebertaV2Config(
        hidden_size=heads * dim,
        num_attention_heads=heads,
        relative_attention=True,
        pos_att_type=["c2p", "p2c"],
        position_buckets=buckets,
        max_relative_positions=span if buckets < 0 else 12,
    )
    torch.manual_seed(0)
    module = DisentangledSelfAttention(config).double().eval()
    hidden = torch.randn(1, length, heads * dim, dtype=torch.float64)
    relative = torch.randn(2 * span, heads * dim, dtype=torch.float64)
    mask = torch.ones(1, 1, length, length, dtype=torch.bool)
    with torch.no_grad():
        _, weights = module(hidden, mask, output_attentions=True, rel_embeddings=relative)

        def split(projection, x):
            return projection(x).view(-1, heads, dim).transpose(0, 1).numpy()

        qc, kc = split(module.query_proj, hidden[0]), split(module.key_proj, hidden[0])
        kr, qr = split(module.pos_key_proj, relative), split(module.pos_query_proj, relative)
    place = (range(length), range(length), span)
    how = {"buckets": buckets, "max_distance": 12} if buckets > 0 else {}
    for form, same in (("code", True), ("paper", False)):
        scores = deberta.scores(qc, kc, kr, qr, *place, **how, position_to_content=form)
        _, ours, _ = softmax_attention.attention(scores, kc)
        assert np.allclose(ours, weights[0].numpy(), atol=1e-6) == same, form


# --- Shaw, Transformer-XL


def test_shaw_by_hand():
    q, k, v = np.ones((1, 1, 1)), np.zeros((1, 3, 1)), np.array([[[1.0], [2.0], [3.0]]])
    key_table, value_table = np.log([[1.0], [2.0], [4.0]]), np.array([[10.0], [20.0], [30.0]])
    scores, weights, out = shaw.attention(q, k, v, key_table, value_table, [5], [0, 5, 6], clip=1, causal=False)
    equal(scores, np.log([[[1, 2, 4]]]))
    equal(weights, np.array([[[1, 2, 4]]]) / 7)
    equal(out, [[[(1 * 11 + 2 * 22 + 4 * 33) / 7]]])
    scores, weights, out = shaw.attention(q, k, v, key_table, None, [5], [0, 5, 6], clip=1, causal=True)
    assert scores[0, 0, 2] == -math.inf
    equal(weights, np.array([[[1, 2, 0]]]) / 3)
    equal(out, [[[(1 + 2 * 2) / 3]]])


def test_shaw_with_zero_tables_is_plain_attention():
    q, k, v = normal(2, 4, 6, seed=1), normal(2, 4, 6, seed=2), normal(2, 4, 6, seed=3)
    zero = np.zeros((5, 6))
    _, _, out = shaw.attention(q, k, v, zero, zero, range(4), range(4), clip=2, causal=True)
    expected = functional.scaled_dot_product_attention(*(torch.tensor(x)[None] for x in (q, k, v)), is_causal=True)
    equal(out, expected[0].numpy())


@pytest.mark.parametrize("clamp", [None, 3])
def test_transformer_xl_against_xlnet(clamp):
    heads, dim, length = 2, 4, 6
    config = XLNetConfig(vocab_size=8, d_model=heads * dim, n_layer=1, n_head=heads, d_inner=8, clamp_len=clamp or -1)
    torch.manual_seed(0)
    module = XLNetRelativeAttention(config).eval().double()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)
    codes = XLNetModel(config).relative_positional_encoding(length, length).double()
    q, k = torch.randn(2, length, 1, heads, dim, dtype=torch.float64)
    with torch.no_grad():
        code_keys = torch.einsum("ibh,hnd->ibnd", codes, module.r)
        _, weights = module.rel_attn_core(q, k, k, code_keys, output_attentions=True)
        u, v, w_r = module.r_w_bias.numpy(), module.r_r_bias.numpy(), module.r.permute(1, 2, 0).numpy()
    ours_q, ours_k = (x[:, 0].transpose(0, 1).numpy() for x in (q, k))
    scores = transformer_xl.scores(ours_q, ours_k, u, v, w_r, range(length), range(length), clamp)
    _, ours, _ = softmax_attention.attention(scores, ours_k)
    equal(ours, weights[:, :, 0].permute(2, 0, 1).numpy(), 1e-5)  # their codes are fp32


def test_transformer_xl_by_hand():
    q, k, one = np.array([[[2.0]]]), np.array([[[3.0]]]), np.array([[1.0]])
    w_r = np.array([[[5.0, 7.0]]])  # sin and cos of the distance, frequency 1
    got = transformer_xl.scores(q, k, one, 2 * one, w_r, [9], [5])
    equal(got, [[[3 * 3 + 4 * (5 * math.sin(4) + 7 * math.cos(4))]]])
    assert transformer_xl.scores(q, k, one, one, w_r, [9], [5], clamp=4) == transformer_xl.scores(
        q, k, one, one, w_r, [90], [5], clamp=4
    )


# --- KERPLE, FIRE, Sandwich


def test_kerple_by_hand():
    got = kerple.log_bias([2.0, 1.0], [0.5, 1.0], [4], [0, 4, 6])
    equal(got, [[[-2 * math.log(3), 0, -2 * math.log(2)]], [[-math.log(5), 0, -math.log(3)]]])
    equal(kerple.power_bias([0.5], [1.5], [4], [0, 4, 8]), [[[-4, 0, -4]]])
    assert (kerple.power_bias([0.5], [0.01], [4], [4]) == 0).all()


def test_kerple_power_one_is_symmetric_alibi():
    slopes = alibi.slopes(6)
    positions = [0, 2, 5, 11]
    expected = alibi.bias(positions, positions, slopes, "symmetric")
    equal(kerple.power_bias(slopes, np.ones(6), positions, positions), expected)


@pytest.mark.parametrize(
    "i, j, expected",
    [(100, 99, 0.0241), (100, 0, 0.60628), (1000, 999, 0.02065), (1000, 500, 0.85194), (1000, 0, 1.0)],
)
def test_fire_ratio_golden(i, j, expected):
    assert fire.ratio(i, j, 0.1, 512) == pytest.approx(expected, abs=6e-6)
    # a network of one open ReLU passes the ratio through
    assert fire.bias(0.1, 512, [1.0], [0.0], [[1.0]], [0.0], [i], [j]).item() == fire.ratio(i, j, 0.1, 512)


def test_fire_network_by_hand():
    # at i = 1000, j = 0 the ratio is 1 - 1e-6 / ln(101), here without eps exactly 1
    got = fire.bias(0.1, 512, [2.0, -1.0], [0.5, 0.5], [[1.0, 10.0], [3.0, 1.0]], [0.25, -1], [1000], [0], eps=0)
    equal(got, [[[2.75]], [[6.5]]])
    assert fire.ratio(1000, 0, 0.1, 512, eps=math.log(101)) == 0.5
    assert fire.ratio(7, 9, 0.1, 4) == fire.ratio(7, 5, 0.1, 4) != fire.ratio(9, 7, 0.1, 4)


def test_fire_tends_to_alibi():
    # psi is linear for small c: x = d / L, and one hidden unit of slope -m L makes it ALiBi
    slopes = alibi.slopes(4)
    network = ([1.0], [0.0], -64 * slopes[:, None], np.zeros(4))
    equal(
        fire.bias(1e-7, 64, *network, range(9), range(9), eps=0),
        alibi.bias(range(9), range(9), slopes, "symmetric"),
        1e-4,
    )


@pytest.mark.parametrize("distance, expected", [(0, 64), (1, 62.0937), (8, 45.7205), (64, 30.5201), (512, 14.0432)])
def test_sandwich_golden(distance, expected):
    assert sandwich.kernel(distance) == sandwich.kernel(-distance) == pytest.approx(expected, abs=6e-5)
    got = sandwich.bias(4, [1000], [1000 - distance])[:, 0, 0]
    equal(got, sandwich.kernel(distance) / np.array([2, 4, 6, 8]))


def test_sandwich_is_a_product_of_sinusoidal_codes():
    codes = np.array([sinusoidal.code(i, 16) for i in range(12)])
    equal(sandwich.bias(8, range(12), range(12), width=16)[0], codes @ codes.T)


# --- CoPE


def test_cope_with_open_gates_counts_tokens():
    # scores so large that every gate is 1: p_ij = i - j + 1, at most max_pos - 1
    table = np.array([[0.0], [1.0], [10.0], [100.0]])
    q, k = np.ones((1, 4, 1)), np.full((1, 4, 1), 50.0)
    got = cope.attention_scores(q, k, table)
    expected = [[1.0], [10.0, 1.0], [100.0, 10.0, 1.0], [100.0, 100.0, 10.0, 1.0]]
    for i, row in enumerate(expected):
        equal(got[0, i, : i + 1], np.array(row) + 50)
        assert (got[0, i, i + 1 :] == -math.inf).all()


def test_cope_interpolates():
    # zero keys: every gate is 1/2, so p is 0.5, 1, 1.5, ... counted back from the query
    table = np.array([[0.0], [1.0], [10.0]])
    got = cope.attention_scores(np.full((1, 4, 1), 2.0), np.zeros((1, 4, 1)), table)
    equal(got[0, 3], 2 * np.array([10, 5.5, 1, 0.5]))
    both = cope.attention_scores(np.full((1, 4, 1), 2.0), np.zeros((1, 4, 1)), table, causal=False)
    for a in range(4):
        equal(both[0, a], got[0, 3])


def test_cope_gates_use_the_scaled_score_and_a_step_equals_the_last_row():
    q, k, table = normal(2, 5, 4, seed=1), normal(2, 5, 4, seed=2), normal(3, 4)
    full = cope.attention_scores(q, k, table)
    assert cope.attention_scores(q[:, 3:], k, table).tolist() == full[:, 3:].tolist()
    assert cope.attention_scores(q[:, :3], k[:, :3], table).tolist() == full[:, :3, :3].tolist()
    logit = q[0, 0] @ k[0, 0] / 2
    p = 1 / (1 + math.exp(-logit))
    equal(full[0, 0, 0], logit + (1 - p) * q[0, 0] @ table[0] + p * q[0, 0] @ table[1])


# --- xPos


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_xpos_without_fading_is_rope(layout):
    q, k = normal(8, seed=1), normal(8, seed=2)
    w = ladder(8)
    turned_q = rotation.rotate(q, [9 * x for x in w], layout)
    turned_k = rotation.rotate(k, [4 * x for x in w], layout)
    # gamma without bound makes every zeta 1
    assert xpos.score(q, k, 9, 4, layout=layout, gamma=1e30) == pytest.approx(turned_q @ turned_k, abs=1e-12)
    assert xpos.score(q, k, 4, 4, layout=layout) == pytest.approx(q @ k, abs=1e-12)


def test_xpos_is_the_scaled_product():
    """Each side scaled by its own position, with one centre, as torchscale does it."""
    q, k, m, n = normal(8, seed=1), normal(8, seed=2), 300, 120
    w = ladder(8)
    zeta = [(2 * i + 0.4 * 8) / (1.4 * 8) for i in range(4)]
    assert zeta[0] == pytest.approx(2 / 7)
    for centre in (0, 200):
        scale_q = np.repeat([z ** ((m - centre) / 512) for z in zeta], 2)
        scale_k = np.repeat([z ** (-(n - centre) / 512) for z in zeta], 2)
        left = scale_q * rotation.rotate(q, [m * x for x in w], "interleaved")
        right = scale_k * rotation.rotate(k, [n * x for x in w], "interleaved")
        assert xpos.score(q, k, m, n) == pytest.approx(left @ right, abs=1e-11)


def test_xpos_is_relative_and_never_overflows():
    q, k = normal(1, 2, 8, seed=1), normal(1, 3, 8, seed=2)
    near = xpos.scores(q, k, [5, 6], [0, 3, 4])
    assert near.shape == (1, 2, 3)
    assert xpos.scores(q, k, [10**9 + 5, 10**9 + 6], [10**9, 10**9 + 3, 10**9 + 4]).tolist() == near.tolist()
    assert abs(xpos.score(q[0, 0], k[0, 0], 10**7, 0)) < 1e-300
    # one pair: zeta = 2/7, and 512 steps multiply the rotated product by it once
    got = xpos.score([1.0, 0.0], [1.0, 0.0], 512, 0)
    assert got == pytest.approx(2 / 7 * math.cos(512), rel=1e-12)


# --- score scaling


def test_score_scaling_by_hand():
    assert score_scaling.log_n(0, 512) == score_scaling.log_n(511, 512) == 1
    assert score_scaling.log_n(512**2 - 1, 512) == pytest.approx(2)
    assert score_scaling.ssmax(0, 0.43) == 0
    assert score_scaling.ssmax(9, 0.43, 0.5) == pytest.approx(0.43 * math.log(10) + 0.5)


@pytest.mark.parametrize(
    "position, expected", [(0, 1.0), (8190, 1.0), (8191, 1.06931), (131071, 1.28332), (1048575, 1.48598)]
)
def test_llama4_temperature_golden(position, expected):
    assert score_scaling.llama4(position) == pytest.approx(expected, abs=6e-6)


# --- position remaps, Resonance


def test_remaps_by_hand():
    assert [remaps.rerope(d, 3) for d in (-5, -2, 0, 2, 3, 9)] == [-3, -2, 0, 2, 3, 3]
    assert [remaps.leaky(d, 3, 4) for d in (-5, 2, 3, 4, 11)] == [-3.5, 2, 3, 3.25, 5]
    # group 4, window 6: beyond it i // 4 + 6 - 1 - j // 4
    assert [remaps.self_extend(15, j, 4, 6) for j in (15, 10, 9, 8, 7, 0)] == [0, 5, 6, 6, 7, 8]
    assert [remaps.self_extend(i, 0, 4, 6) for i in (5, 6, 8, 12)] == [5, 6, 7, 8]
    assert [remaps.self_extend(16, j, 4, 6) for j in (11, 10)] == [5, 7]  # distance 6 is grouped already


def test_remaps_that_change_nothing_are_rope():
    q, k, v = normal(2, 4, 6, seed=1), normal(2, 9, 6, seed=2), normal(2, 9, 6, seed=3)
    queries, keys, w = [5, 6, 7, 8], range(9), ladder(6)
    expected = rope_scores(q, k, queries, keys, w)
    nothing = [
        lambda i, j: i - j,
        lambda i, j: remaps.rerope(i - j, 9),
        lambda i, j: remaps.leaky(i - j, 3, 1),
        lambda i, j: remaps.leaky(i - j, 9, 16),
        lambda i, j: remaps.self_extend(i, j, 4, 9),
        lambda i, j: remaps.self_extend(i, j, 1, 3),
    ]
    for relative in nothing:
        scores, _, _ = remaps.attention(q, k, v, w, relative, queries, keys, causal=False)
        equal(scores, expected)
        scores, weights, out = remaps.attention(q, k, v, w, relative, queries, keys)
        seen = np.array([[j <= i for j in keys] for i in queries])
        equal(scores[:, seen], expected[:, seen])
        want_out, want_weights, _ = softmax_attention.attention(expected, v, seen)
        equal(weights, want_weights)
        equal(out, want_out)


def test_rerope_is_two_branches():
    """Beyond the window every key stands at distance `window`: one fixed rotation of the query."""
    q, k, w = normal(1, 8, 6, seed=1), normal(1, 8, 6, seed=2), ladder(6)
    scores, _, _ = remaps.attention(q, k, k, w, lambda i, j: remaps.rerope(i - j, 3), range(8), range(8))
    near = rope_scores(q, k, range(8), range(8), w)
    far = rope_scores(q, k, [3] * 8, [0] * 8, w)
    for i in range(8):
        for j in range(i + 1):
            equal(scores[0, i, j], (near if i - j < 3 else far)[0, i, j])


def test_leaky_rerope_beyond_the_window_is_a_shift_and_a_scale():
    q, k, w = normal(1, 8, 6, seed=1), normal(1, 8, 6, seed=2), ladder(6)
    scores, _, _ = remaps.attention(q, k, k, w, lambda i, j: remaps.leaky(i - j, 3, 4), range(8), range(8))
    far = rope_scores(q, k, [(i + 3 * (4 - 1)) / 4 for i in range(8)], [j / 4 for j in range(8)], w)
    equal(scores[0, 7, 0], far[0, 7, 0])
    equal(scores[0, 3, 0], far[0, 3, 0])


def test_resonance_by_hand():
    got = resonance.frequencies([1.0, 0.1, 0.01, 0.0])
    equal(got, [2 * math.pi / 6, 2 * math.pi / 63, 2 * math.pi / 628, 0.0])
    wavelengths = [2 * math.pi / w for w in resonance.frequencies(ladder(64))]
    equal(wavelengths, np.round(wavelengths))
    equal(wavelengths, [2 * math.pi / w for w in ladder(64)], 0.09)  # half a token in six at most


# --- masks, softmax


def test_masks_by_hand():
    assert [j for j in range(10) if masks.window(6, j, 3)] == [4, 5, 6]
    assert [j for j in range(10) if masks.window(1, j, 3)] == [0, 1]
    assert [j for j in range(10) if masks.sinks(6, j, 3, 2)] == [0, 1, 4, 5, 6]
    assert [j for j in range(10) if masks.sinks(1, j, 3, 4)] == [0, 1]
    assert [j for j in range(10) if masks.sinks(6, j, 3, 0)] == [4, 5, 6]


def test_softmax_by_hand():
    scores = np.log([[[1.0, 3.0, 4.0], [2.0, 2.0, 2.0]]]) + 1000  # no exponential of it is finite
    v = np.array([[[1.0], [2.0], [4.0]]])
    out, weights, logsumexp = softmax_attention.attention(scores, v, [[True, True, False], [False, False, False]])
    equal(weights, [[[0.25, 0.75, 0], [0, 0, 0]]])
    equal(out, [[[1.75], [0]]])
    equal(logsumexp[0, 0], 1000 + math.log(4))
    assert logsumexp[0, 1] == -math.inf
    scores[0, 0, 2] = -math.inf
    again, _, _ = softmax_attention.attention(scores, v)
    equal(again, [[[1.75], [7 / 3]]])


def test_softmax_against_torch_with_grouped_keys():
    q, k, v = normal(6, 5, 4, seed=1), normal(2, 7, 4, seed=2), normal(2, 7, 4, seed=3)
    allowed = np.random.default_rng(0).random((6, 5, 7)) < 0.7
    allowed[:, :, 0] = True
    scores = np.einsum("hid,hjd->hij", q, softmax_attention.grouped(k, 3)) / 2
    out, weights, logsumexp = softmax_attention.attention(scores, softmax_attention.grouped(v, 3), allowed)
    tensors = (torch.tensor(x)[None] for x in (q, k, v))
    expected = functional.scaled_dot_product_attention(*tensors, attn_mask=torch.tensor(allowed), enable_gqa=True)
    equal(out, expected[0].numpy())
    masked = torch.tensor(scores).masked_fill(~torch.tensor(allowed), -math.inf)
    equal(weights, masked.softmax(-1).numpy())
    equal(logsumexp, masked.logsumexp(-1).numpy())


# --- linear attention


def angles_of(positions, dim):
    return np.array([[p * w for w in ladder(dim)] for p in positions])


@pytest.mark.parametrize(
    "name, expected",
    [("elu+1", [math.exp(-2), 1, 4]), ("relu", [0, 0, 3]), ("squared_relu", [0, 0, 9]), ("identity", [-2, 0, 3])],
)
def test_features(name, expected):
    assert [linear_attention.feature(x, name) for x in (-2.0, 0.0, 3.0)] == pytest.approx(expected)


def test_linear_forms_by_hand():
    # one pair, a quarter turn between the two keys: rotated products 1 and 0, plain products 1 and 1
    q, k, v = np.array([[[1.0, 0.0]]]), np.array([[[1.0, 0.0], [1.0, 0.0]]]), np.array([[[6.0], [18.0]]])
    turns = {"q_angles": np.array([[math.pi / 2]]), "k_angles": np.array([[math.pi / 2], [0.0]])}
    place = (q, k, v, [1], [1, 0])

    def out(form, **more):
        return linear_attention.attention(*place, **turns, form=form, feature="identity", **more).item()

    assert out("numerator") == pytest.approx(3)  # 6 / 2
    assert out("numerator", eps=1.0) == pytest.approx(2)  # 6 / 3
    assert out("both") == pytest.approx(6)  # 6 / 1
    assert out("unnormalised", eps=1.0) == pytest.approx(6)
    assert out("one_plus_cosine") == pytest.approx((2 * 6 + 1 * 18) / 3)
    assert out("decay", decay=[math.log(2)]) == pytest.approx(6 / 1.5)
    plain = linear_attention.attention(*place, form="decay", feature="identity", decay=[math.log(2)])
    assert plain.item() == pytest.approx((6 + 18 / 2) / 1.5)
    assert linear_attention.attention(*place, feature="identity").item() == pytest.approx(12)


def test_linear_attention_looks_back_only():
    q, k, v = normal(2, 5, 4, seed=1), normal(2, 5, 4, seed=2), normal(2, 5, 3, seed=3)
    turns = angles_of(range(5), 4)
    for form in linear_attention.FORMS:
        how = {"form": form, "decay": [0.1, 0.5] if form == "decay" else None}
        full = linear_attention.attention(q, k, v, range(5), range(5), turns, turns, **how)
        for n in range(1, 5):
            short = linear_attention.attention(
                q[:, n - 1 : n], k[:, :n], v[:, :n], [n - 1], range(n), turns[n - 1 : n], turns[:n], causal=False, **how
            )
            equal(full[:, n - 1 : n], short)
        unseen = linear_attention.attention(q[:, :1], k, v, [-1], range(5), turns[:1], turns, **how)
        assert (unseen == 0).all()


@pytest.mark.parametrize("feature", ["elu+1", "relu", "squared_relu", "identity"])
def test_linear_attention_is_its_recurrence(feature):
    q, k, v = normal(1, 6, 4, seed=1), normal(1, 6, 4, seed=2), normal(1, 6, 3, seed=3)
    turns = angles_of(range(6), 4)
    got = linear_attention.attention(q, k, v, range(6), range(6), turns, turns, feature=feature, eps=1e-3)
    state, normaliser = np.zeros((4, 3)), np.zeros(4)
    for t in range(6):
        fq, fk = (linear_attention.features(x[:, t : t + 1], feature)[0, 0] for x in (q, k))
        state += np.outer(rotation.rotate(fk, turns[t], "half"), v[0, t])
        normaliser += fk
        equal(got[0, t], rotation.rotate(fq, turns[t], "half") @ state / (fq @ normaliser + 1e-3))


def test_linear_attention_is_relative_and_one_plus_cosine_a_mean():
    q, k, v = normal(1, 5, 4, seed=1), normal(1, 5, 4, seed=2), normal(1, 5, 3, seed=3)
    for form in ("numerator", "both", "one_plus_cosine", "unnormalised"):
        here, there = (
            linear_attention.attention(q, k, v, range(5), range(5), angles_of(p, 4), angles_of(p, 4), form=form)
            for p in (range(5), range(100, 105))
        )
        equal(here, there, 1e-10)
    turns = angles_of(range(5), 4)
    mean = linear_attention.attention(
        q, k, np.ones((1, 5, 1)), range(5), range(5), turns, turns, form="one_plus_cosine"
    )
    equal(mean, np.ones((1, 5, 1)))


def test_rms_norm_by_hand():
    equal(linear_attention.rms_norm([[[3.0, 4.0]]], eps=0.0), np.array([[[3, 4]]]) / math.sqrt(12.5))
    equal(linear_attention.rms_norm([[[3.0, 4.0]]], eps=12.5, weight=[5.0, 10.0]), [[[3, 8]]])
