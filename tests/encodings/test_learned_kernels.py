"""KERPLE, FIRE and Sandwich: the oracles, golden values, gradients, and what each promises."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import functional_call

from oracles import fire as fire_oracle
from oracles import kerple as kerple_oracle
from oracles import sandwich as sandwich_oracle
from whorl import Alibi, Fire, Kerple, Sandwich
from whorl.encodings.fire import progress, segments
from whorl.encodings.kerple import held_within
from whorl.encodings.sandwich import code_product
from whorl.encodings.sinusoidal import sinusoidal

POSITIONS = st.lists(st.integers(0, 20_000), min_size=1, max_size=5)
SEEDS = st.integers(0, 2**32)


class Biased(torch.nn.Module):
    def __init__(self, encoding):
        super().__init__()
        self.encoding = encoding

    def forward(self, positions):
        return self.encoding.score_bias(positions, positions)


def gradcheck(encoding, positions):
    """Whether the gradients in all parameters are those of finite differences, float64."""
    encoding = encoding.double()
    names, values = zip(*((f"encoding.{name}", value) for name, value in encoding.named_parameters()), strict=True)

    def run(*values):
        return functional_call(Biased(encoding), dict(zip(names, values, strict=True)), (positions,))

    return torch.autograd.gradcheck(run, values)


def numbers(*parameters):
    return [parameter.detach().double().numpy() for parameter in parameters]


# -- KERPLE -----------------------------------------------------------------------------------------------------------


def kerple(variant, heads, seed):
    """With parameters inside their bounds."""
    encoding = Kerple(heads=heads, variant=variant)
    rng = np.random.default_rng(seed)
    with torch.no_grad():
        encoding.p.copy_(torch.from_numpy(rng.uniform(0.02, 1.98, heads)))
        encoding.a.copy_(torch.from_numpy(rng.uniform(0.02, 1.5, heads)))
    return encoding


@settings(max_examples=40, deadline=None)
@given(POSITIONS, POSITIONS, st.integers(1, 6), SEEDS)
def test_kerple_is_the_oracle(q_positions, k_positions, heads, seed):
    for variant in ("log", "power"):
        encoding = kerple(variant, heads, seed)
        p, a = numbers(encoding.p, encoding.a)
        if variant == "log":
            expected = kerple_oracle.log_bias(p, a, q_positions, k_positions)
        else:
            expected = kerple_oracle.power_bias(a, p, q_positions, k_positions)
        got = encoding.score_bias(torch.tensor(q_positions), torch.tensor(k_positions))
        assert got.dtype == torch.float32
        np.testing.assert_allclose(got.detach().numpy(), expected, rtol=4e-6, atol=1e-7)


@pytest.mark.parametrize("variant", ["log", "power"])
def test_kerple_gradients(variant):
    assert gradcheck(kerple(variant, 3, seed=0), torch.tensor([0, 1, 2, 7, 40]))


def test_the_power_at_distance_zero_has_finite_gradients():
    encoding = kerple("power", 2, seed=0)
    encoding.score_bias(torch.arange(3), torch.arange(3)).sum().backward()
    assert torch.isfinite(encoding.p.grad).all() and torch.isfinite(encoding.a.grad).all()
    encoding.zero_grad()
    bias = encoding.score_bias(torch.tensor([5]), torch.tensor([5]))
    assert bias.flatten().tolist() == [0.0, 0.0]
    bias.sum().backward()
    assert not encoding.p.grad.any() and not encoding.a.grad.any()


def test_kerple_parameters_past_their_bounds_count_as_the_bound_and_come_back():
    encoding = Kerple(heads=3, variant="power")
    with torch.no_grad():
        encoding.p.copy_(torch.tensor([-5.0, 2.5, 1.0]))
        encoding.a.copy_(torch.tensor([-1.0, 0.001, 0.5]))
    before = [parameter.detach().clone() for parameter in encoding.parameters()]
    bias = encoding.score_bias(torch.tensor([9]), torch.tensor([0]))
    expected = [-0.01 * 9**0.01, -0.01 * 81, -0.5 * 9]
    np.testing.assert_allclose(bias.detach().flatten().numpy(), expected, rtol=1e-6)
    bias.sum().backward()
    assert (encoding.p.grad != 0).all() and (encoding.a.grad != 0).all()
    assert all(torch.equal(old, new) for old, new in zip(before, encoding.parameters(), strict=True))


def test_held_within_has_the_gradient_of_its_input():
    x = torch.tensor([-1.0, 0.5, 3.0], requires_grad=True)
    held = held_within(x, 0.1, 2.0)
    assert held.tolist() == pytest.approx([0.1, 0.5, 2.0])
    held.sum().backward()
    assert x.grad.tolist() == [1, 1, 1]


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(["log", "power"]), st.integers(1, 8), SEEDS)
def test_kerple_falls_with_distance(variant, heads, seed):
    bias = kerple(variant, heads, seed).double().score_bias(torch.tensor([4000]), torch.arange(4001))[:, 0]
    assert (bias.diff(dim=-1) > 0).all()  # nearer keys weigh more
    assert not bias[:, -1].any()


def test_kerple_with_power_one_is_alibi():
    alibi, encoding = Alibi(heads=8, form="symmetric"), Kerple(heads=8, variant="power")
    with torch.no_grad():
        encoding.p.fill_(1.0)
        encoding.a.copy_(alibi.slopes())  # of 8 heads all but the last two are above the bound
    positions = torch.arange(50)
    got, expected = (each.score_bias(positions, positions).detach()[:6] for each in (encoding, alibi))
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=0)


def test_kerple_starts_within_the_ranges_of_the_paper():
    torch.manual_seed(0)
    encoding = Kerple(heads=10_000)
    for parameter, top in ((encoding.p, 2), (encoding.a, 1)):
        values = parameter.detach()
        assert float(values.min()) >= 0 and top * 0.999 < float(values.max()) <= top
        assert abs(float(values.mean()) - top / 2) < 0.02 * top


def test_bfloat16_parameters_leave_distances_exact():
    """The authors' code casts distances, and cannot tell 257 from 256."""
    encoding = kerple("log", 2, seed=0).to(torch.bfloat16)
    bias = encoding.score_bias(torch.tensor([300]), torch.arange(300)).detach()
    assert bias.dtype == torch.float32 and (bias.diff(dim=-1) > 0).all()
    p, a = numbers(encoding.p, encoding.a)
    np.testing.assert_allclose(bias.numpy(), kerple_oracle.log_bias(p, a, [300], range(300)), rtol=1e-6)


# -- FIRE -------------------------------------------------------------------------------------------------------------


def fire(heads, seed, length=40, hidden=5):
    """With c, m and the network away from where they start."""
    encoding = Fire(heads=heads, length=length, hidden=hidden)
    generator = torch.Generator().manual_seed(seed % 2**31)
    with torch.no_grad():
        for parameter in encoding.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return encoding


def fire_expected(encoding, q_positions, k_positions):
    c, m, *network = numbers(encoding.c, encoding.multiplier, encoding.w1, encoding.b1, encoding.w2, encoding.b2)
    threshold = abs(float(m[0]) * encoding.config.length)
    return fire_oracle.bias(float(c[0]), threshold, *network, q_positions, k_positions)


@settings(max_examples=40, deadline=None)
@given(POSITIONS, POSITIONS, st.integers(1, 4), SEEDS)
def test_fire_is_the_oracle_in_all_its_forms(q_positions, k_positions, heads, seed):
    encoding = fire(heads, seed)
    queries, keys = torch.tensor(q_positions), torch.tensor(k_positions)
    expected = fire_expected(encoding, q_positions, k_positions)
    head = torch.arange(heads)[:, None, None]
    scale = max(1.0, float(np.abs(expected).max()))
    for got in (
        encoding.score_bias(queries, keys),
        encoding.bias_at(head, queries[:, None], keys),
    ):
        assert got.dtype == torch.float32
        np.testing.assert_allclose(got.detach().numpy(), expected, rtol=0, atol=2e-5 * scale)


def test_golden_progress():
    i, j = torch.tensor([100, 100, 1000, 1000, 1000]), torch.tensor([99, 0, 999, 500, 0])
    got = progress(i, j, torch.tensor(0.1, dtype=torch.float64), torch.tensor(512.0, dtype=torch.float64))
    np.testing.assert_allclose(got.numpy(), [0.0241, 0.60628, 0.02065, 0.85194, 1.0], rtol=0, atol=5e-5)


def test_fire_gradients():
    assert gradcheck(fire(2, seed=1, length=3, hidden=3), torch.tensor([0, 1, 2, 6, 11]))


def test_all_forms_of_fire_have_the_same_gradients():
    encoding, positions = fire(3, seed=2, length=20).double(), torch.arange(60)
    head = torch.arange(3)[:, None, None]
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(3, 60, 60, generator=generator, dtype=torch.float64)
    first, *others = (
        torch.autograd.grad((bias * weights).sum(), list(encoding.parameters()))
        for bias in (
            encoding.score_bias(positions, positions),
            encoding.bias_at(head, positions[:, None], positions),
        )
    )
    for other in others:
        for one, two in zip(first, other, strict=True):
            torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-9)


@settings(max_examples=40, deadline=None)
@given(SEEDS, st.integers(1, 9))
def test_lines_between_knots_are_the_network(seed, hidden):
    rng = np.random.default_rng(seed)
    w1, b1, b2 = (torch.from_numpy(rng.normal(size=size)) for size in (hidden, hidden, 2))
    w2 = torch.from_numpy(rng.normal(size=(2, hidden)))
    w1[rng.random(hidden) < 0.2] = 0.0  # a unit that does not bend
    x = torch.from_numpy(rng.normal(scale=3, size=200))
    knots, slopes, starts = segments(w1, b1, w2, b2)
    segment = torch.searchsorted(knots, x, right=True)
    got = slopes[segment] * x[:, None] + starts[segment]
    expected = torch.relu(x[:, None] * w1 + b1) @ w2.T + b2
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-10)


def test_the_numbers_that_kernels_read_give_the_bias():
    torch.manual_seed(3)
    encoding, queries, room = Fire(heads=2, hidden=4, length=20).double(), torch.tensor([3, 19, 60]), 8
    numbers = encoding.line_numbers(queries, room).detach().double()
    slopes, starts, knots, last, c, by_query = numbers.split((5, 5, 4, 1, 1, room), dim=1)
    assert last.isinf().all() and by_query[:, 3:].eq(0).all()
    for head in range(2):
        for query, factor in zip(queries, by_query[head], strict=False):
            x = factor * torch.log2(1 + c[head] * (query - torch.arange(int(query) + 1)))
            line = torch.searchsorted(knots[head], x, right=True)
            expected = encoding.bias_at(torch.tensor(head), query, torch.arange(int(query) + 1))
            torch.testing.assert_close(
                slopes[head][line] * x + starts[head][line], expected.detach(), atol=1e-5, rtol=0
            )


def test_fire_starts_as_in_the_paper():
    torch.manual_seed(0)
    encoding = Fire(heads=8)
    assert encoding.config.length == 512 and encoding.config.hidden == 32
    assert encoding.c.tolist() == pytest.approx([0.1]) and encoding.multiplier.tolist() == [1.0]
    assert encoding.w1.shape == (32,) and encoding.w2.shape == (8, 32)
    assert float(encoding.w1.detach().abs().max()) <= 1 and float(encoding.w2.detach().abs().max()) <= 32**-0.5
    assert float(encoding.w2.detach().std()) == pytest.approx(32**-0.5 / 3**0.5, rel=0.1)
    linear = torch.nn.Linear(32, 8)
    assert float(linear.weight.detach().std()) == pytest.approx(float(encoding.w2.detach().std()), rel=0.15)


def test_fire_is_relative_up_to_the_threshold_and_not_beyond():
    encoding = fire(2, seed=3, length=1000)
    near, far = (encoding.score_bias(torch.tensor([i]), torch.tensor([i - 5])).detach() for i in (10, 700))
    assert torch.equal(near, far)
    beyond = encoding.score_bias(torch.tensor([100_000]), torch.tensor([99_995])).detach()
    assert not torch.allclose(near, beyond)
    assert not encoding.claims.relative


def test_fire_that_is_linear_in_the_distance_is_alibi():
    """psi as good as the identity, a fixed threshold, and a network with one unit: a slope times the distance."""
    length, slopes = 64, Alibi(heads=4).slopes()
    encoding = Fire(heads=4, length=length, hidden=1).double()
    with torch.no_grad():
        encoding.c.fill_(1e-9)
        encoding.w1.fill_(1.0)
        for parameter in (encoding.b1, encoding.b2):
            parameter.zero_()
        # x is c d / (c length + 1e-6)
        encoding.w2.copy_(-slopes[:, None] * (1e-9 * length + 1e-6) / 1e-9)
    positions = torch.arange(length)
    got = encoding.score_bias(positions, positions).detach()
    expected = Alibi(heads=4, form="symmetric").score_bias(positions, positions).double()
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)


def test_autocast_does_not_round_the_network_of_fire():
    encoding, positions = fire(4, seed=0, hidden=32), torch.arange(30)
    expected = encoding.score_bias(positions, positions)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = encoding.score_bias(positions, positions)
    assert got.dtype == torch.float32 and torch.equal(got, expected)


# -- Sandwich ---------------------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(POSITIONS, POSITIONS, st.integers(1, 9), st.sampled_from([2, 10, 128]), st.sampled_from([10_000.0, 100.0]))
def test_sandwich_is_the_oracle_in_all_its_forms(q_positions, k_positions, heads, width, base):
    encoding = Sandwich(heads=heads, code_width=width, base=base)
    queries, keys = torch.tensor(q_positions), torch.tensor(k_positions)
    expected = sandwich_oracle.bias(heads, q_positions, k_positions, width, base)
    extra_q, extra_k = encoding.fold(queries, keys, torch.float64, 0.125)
    assert extra_q.shape == (heads, len(q_positions), width) and extra_k.shape == (1, len(k_positions), width)
    for got in (
        encoding.score_bias(queries, keys),
        encoding.bias_at(torch.arange(heads)[:, None, None], queries[:, None], keys),
        (extra_q @ extra_k.mT * 0.125).float(),
    ):
        assert got.dtype == torch.float32
        np.testing.assert_allclose(got.numpy(), expected, rtol=2**-23, atol=1e-7 * heads)


def test_golden_products():
    got = code_product(torch.tensor([0, 1, 2, 8, 64, 256, 512]), 128, 10_000.0)
    golden = [64, 62.0937, 57.3819, 45.7205, 30.5201, 20.5248, 14.0432]
    np.testing.assert_allclose(got.numpy(), golden, rtol=0, atol=5e-5)
    bias = Sandwich(heads=12).score_bias(torch.tensor([8]), torch.tensor([0])).flatten()
    np.testing.assert_allclose(bias.numpy(), [45.7205 * 12 / (8 * h) for h in range(1, 13)], rtol=2e-6)


def test_sandwich_is_the_product_of_sinusoidal_codes():
    positions = torch.arange(30) * 17
    codes = sinusoidal(positions, 128, dtype=torch.float64)
    expected = (codes @ codes.T).float()
    torch.testing.assert_close(Sandwich(heads=8).score_bias(positions, positions)[0], expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    "dtype, tolerance", [(torch.float32, 4e-6), (torch.float16, 1e-2), (torch.bfloat16, 8e-2)], ids=str
)
def test_what_a_fold_rounds(dtype, tolerance):
    encoding, positions = Sandwich(heads=8), torch.arange(0, 4000, 13)
    queries, keys = encoding.fold(positions, positions, dtype, 64**-0.5)
    assert queries.dtype == keys.dtype == dtype
    product = queries.double() @ keys.double().mT * 64**-0.5
    expected = encoding.score_bias(positions, positions).double()
    assert float((product - expected).abs().max()) < tolerance


def test_sandwich_falls_as_a_trend_only():
    bias = Sandwich(heads=8).score_bias(torch.tensor([0]), torch.arange(2000))[0, 0]
    assert int(bias.argmax()) == 0 and float(bias[:10].min()) > float(bias[200:].max())
    assert (bias.diff() > 0).any() and not Sandwich(heads=8).claims.decays


def test_sandwich_far_from_the_start_is_as_exact():
    encoding = Sandwich(heads=8)
    near, far = (encoding.score_bias(torch.arange(9) + start, torch.arange(9) + start) for start in (0, 10**7))
    torch.testing.assert_close(near, far, rtol=2e-7, atol=0)


def test_claims():
    assert Kerple(heads=2).claims.decays and Kerple(heads=2).claims.relative and Kerple(heads=2).claims.extrapolates
    assert Sandwich(heads=2).claims.relative and Sandwich(heads=2).claims.extrapolates and Sandwich(heads=2).folds
    assert not Kerple(heads=2).folds and not Fire(heads=2).folds
    for encoding in (Kerple(heads=2), Fire(heads=2), Sandwich(heads=2)):
        assert encoding.claims.norm_preserving and not encoding.claims.linear_attention
        assert math.isclose(encoding.softmax_scale(64), 0.125)
