"""NoPE, learned positions and sinusoidal codes: against the oracles, golden values, and what is claimed of them."""

import copy
import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GPT2Config
from transformers.models.gpt2.modeling_gpt2 import GPT2Model

import whorl
from helpers import ROUNDING
from oracles import learned as learned_oracle
from oracles import sinusoidal as sinusoidal_oracle
from whorl import Learned, NoPE, Sinusoidal, WhorlError
from whorl.encodings.learned import interpolate, tile
from whorl.encodings.sinusoidal import shift_matrix, sinusoidal

ORDERS = ("interleaved", "concatenated")


def normal(*shape, dtype=torch.float32, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def similarity(distances, width):
    codes = sinusoidal(torch.tensor([0, *distances]), width, dtype=torch.float64)
    return (codes[1:] @ codes[0]).tolist()


# -- NoPE -------------------------------------------------------------------------------------------------------------


def test_nope_changes_nothing():
    none, x, positions = NoPE(), normal(2, 3, 5, 8), torch.arange(5)
    assert none.enters() == () and not list(none.parameters()) and not list(none.buffers())
    assert none.add_to_input(x, positions) is x
    q, k = none.transform_qk(x, x, positions, positions)
    assert q is x and k is x
    assert none.score_bias(positions, positions) is None and none.mask(positions, positions) is None
    assert none.softmax_scale(64) == 0.125
    claims = none.claims
    assert claims.relative and claims.norm_preserving and claims.linear_attention
    assert not claims.decays and not claims.extrapolates


# -- learned ----------------------------------------------------------------------------------------------------------


def test_learned_adds_the_row_of_each_position():
    learned, x = Learned(width=6, length=10), normal(2, 4, 6)
    positions = torch.tensor([[0, 9, 3, 3], [1, 2, 0, 8]])
    expected = x + learned.table[positions]
    torch.testing.assert_close(learned.add_to_input(x, positions), expected, rtol=0, atol=0)
    torch.testing.assert_close(learned.add_to_input(x, positions.int()), expected, rtol=0, atol=0)
    one = learned.add_to_input(x, positions[0])
    torch.testing.assert_close(one, x + learned.table[positions[0]], rtol=0, atol=0)


def test_learned_is_the_position_of_gpt2():
    torch.manual_seed(0)
    gpt2 = GPT2Model(GPT2Config(vocab_size=11, n_positions=16, n_embd=8, n_layer=0, n_head=2)).eval()
    learned = Learned(width=8, length=16)
    learned.load_state_dict({"table": gpt2.wpe.weight.detach()})
    ids = torch.tensor([[3, 1, 4, 1, 5]])
    expected = gpt2(input_ids=ids).last_hidden_state
    got = gpt2.ln_f(learned.add_to_input(gpt2.wte(ids), torch.arange(5)))
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


def test_learned_starts_from_the_spread_of_gpt2_and_bert():
    torch.manual_seed(0)
    table = Learned(width=256, length=1024).table.detach()
    assert abs(float(table.std()) - 0.02) < 2e-4 and abs(float(table.mean())) < 2e-4


def test_learned_gradients():
    learned, x = Learned(width=3, length=5).double(), normal(2, 4, 3, dtype=torch.float64).requires_grad_()
    positions = torch.tensor([0, 4, 4, 1])

    def run(x, table):
        return torch.func.functional_call(Added(learned), {"learned.table": table}, (x, positions))

    assert torch.autograd.gradcheck(run, (x, learned.table))
    learned.add_to_input(x, positions).sum().backward()
    assert learned.table.grad[:, 0].tolist() == [2, 2, 0, 0, 4]  # a batch of 2, position 4 twice


class Added(torch.nn.Module):
    def __init__(self, learned):
        super().__init__()
        self.learned = learned

    def forward(self, x, positions):
        return self.learned.add_to_input(x, positions)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 12), st.integers(1, 40), st.integers(0, 2**32))
def test_interpolation_is_the_oracle(length, new_length, seed):
    table = normal(length, 3, dtype=torch.float64, seed=seed)
    np.testing.assert_allclose(
        interpolate(table, new_length).numpy(),
        learned_oracle.interpolate(table.numpy(), new_length),
        rtol=0,
        atol=1e-14,
    )


def test_extending_keeps_both_ends_and_makes_a_new_encoding():
    learned = Learned(width=4, length=8)
    longer = learned.extend(29)
    assert longer.config.to_dict() == {"name": "learned", "width": 4, "length": 29}
    assert longer.table.shape == (29, 4) and longer.table.requires_grad and longer.table.is_leaf
    torch.testing.assert_close(longer.table[0], learned.table[0], rtol=0, atol=0)
    torch.testing.assert_close(longer.table[-1], learned.table[-1], rtol=0, atol=0)
    torch.testing.assert_close(longer.table[::4], learned.table, rtol=0, atol=1e-9)  # 28 = 4 * 7: each row is met
    assert learned.table.shape == (8, 4)
    longer.add_to_input(torch.zeros(1, 29, 4), torch.arange(29)).sum().backward()
    assert learned.table.grad is None and longer.table.grad is not None
    assert learned.extend(8).table.tolist() == learned.table.tolist()


def test_extending_by_tiles_repeats_the_table():
    learned = Learned(width=4, length=8)
    longer = learned.extend(20, mode="tile")
    assert longer.table[8:16].tolist() == learned.table.tolist()
    assert longer.table[16:].tolist() == learned.table[:4].tolist()
    assert tile(torch.tensor([[1], [2]]), 5).flatten().tolist() == [1, 2, 1, 2, 1]


def test_extending_keeps_type_mode_and_freezing():
    learned = Learned(width=4, length=8).to(torch.bfloat16).requires_grad_(False).eval()
    longer = learned.extend(16)
    assert longer.table.dtype == torch.bfloat16 and not longer.table.requires_grad and not longer.training
    with torch.device("meta"):
        assert Learned(width=4, length=8).extend(16).table.is_meta


def test_positions_past_the_table_name_the_remedy():
    learned = Learned(width=4, length=8)
    with pytest.raises(
        WhorlError, match=r"Learned: positions must be between 0 and 7, got 8\. A longer table is exten"
    ):
        learned.add_to_input(torch.zeros(9, 4), torch.arange(9))
    assert learned.extend(9).add_to_input(torch.zeros(9, 4), torch.arange(9)).shape == (9, 4)


def test_positions_are_not_read_where_that_would_stall():
    learned = Learned(width=4, length=8).to("meta")
    out = learned.add_to_input(torch.zeros(2, 9, 4, device="meta"), torch.arange(9, device="meta"))
    assert out.shape == (2, 9, 4) and out.is_meta

    @torch.compile(fullgraph=True, backend="eager")
    def run(x, positions):
        return x.add_to_input(torch.zeros(9, 4), positions)

    with pytest.raises((RuntimeError, IndexError)):  # found by the read of the row, not by us
        run(Learned(width=4, length=8), torch.arange(9))


def test_an_empty_input_is_no_error():
    assert Learned(width=4, length=8).add_to_input(torch.zeros(2, 0, 4), torch.arange(0)).shape == (2, 0, 4)


# -- sinusoidal -------------------------------------------------------------------------------------------------------


def test_golden_code_of_n2():
    got = Sinusoidal(width=8).codes(torch.tensor([2]))[0]
    golden = [0.90930, -0.41615, 0.19867, 0.98007, 0.01999867, 0.99980, 0.002, 0.999998]
    np.testing.assert_allclose(got.numpy(), golden, rtol=0, atol=5e-6)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 33),
    st.lists(st.integers(-(2**20), 2**20), min_size=1, max_size=5),
    st.sampled_from(ORDERS),
    st.sampled_from([10_000.0, 100.0, 1e6]),
    st.sampled_from([1.0, 0.125, -3.0]),
)
def test_codes_are_the_oracle(width, positions, order, base, scale):
    encoding = Sinusoidal(width=width, order=order, base=base, scale=scale)
    expected = scale * np.array([sinusoidal_oracle.code(p, width, base, order) for p in positions])
    got = encoding.codes(torch.tensor(positions), dtype=torch.float64)
    np.testing.assert_allclose(got.numpy(), expected, rtol=0, atol=2e-9 * abs(scale))  # 2^20 radians in float64: 1e-10
    np.testing.assert_allclose(
        encoding.codes(torch.tensor(positions)).numpy(), expected, rtol=0, atol=1e-7 * abs(scale)
    )


@settings(max_examples=40, deadline=None)
@given(st.floats(-1000, 1000), st.integers(1, 16), st.sampled_from(ORDERS))
def test_positions_need_not_be_whole(position, width, order):
    got = Sinusoidal(width=width, order=order).codes(torch.tensor([position], dtype=torch.float64), dtype=torch.float64)
    np.testing.assert_allclose(got[0].numpy(), sinusoidal_oracle.code(position, width, order=order), rtol=0, atol=1e-12)


@pytest.mark.parametrize("width", [1, 2, 5, 8, 9])
def test_the_two_orders_are_a_permutation_but_for_the_odd_one(width):
    positions = torch.arange(7)
    interleaved, concatenated = (Sinusoidal(width=width, order=order).codes(positions) for order in ORDERS)
    half = width // 2
    assert torch.equal(interleaved[:, 0 : 2 * half : 2], concatenated[:, :half])
    assert torch.equal(interleaved[:, 1 : 2 * half : 2], concatenated[:, half : 2 * half])
    if width % 2:
        assert not concatenated[:, -1].any() and interleaved[1:, -1].all()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("k", [0, 1, 7, -3, 500, 2.5])
def test_a_shift_is_one_matrix_for_every_position(order, k):
    """N25: p_(t+k) = M_k p_t."""
    matrix = shift_matrix(16, k, order=order)
    positions = torch.tensor([0.0, 1.0, 13.0, 100.5, 4096.0], dtype=torch.float64)
    codes, shifted = (sinusoidal(p, 16, order=order, dtype=torch.float64) for p in (positions, positions + k))
    torch.testing.assert_close(codes @ matrix.T, shifted, rtol=0, atol=1e-11)
    torch.testing.assert_close(matrix @ matrix.T, torch.eye(16, dtype=torch.float64), rtol=0, atol=1e-14)


def test_products_of_codes():
    """N25: PE(t) . PE(t + k) = sum of cos(w_i k), its golden values, and where it first is negative."""
    np.testing.assert_allclose(
        similarity([0, 1, 2, 8, 64, 256], 128), [64, 62.0937, 57.3819, 45.7205, 30.5201, 20.5248], rtol=0, atol=5e-5
    )
    values = similarity(range(1, 1708), 128)
    assert values[-1] < 0 and min(values[:-1]) > 0  # k = 1707
    far = sinusoidal(torch.tensor([100_000, 100_064]), 128, dtype=torch.float64)
    assert abs(float(far[0] @ far[1]) - similarity([64], 128)[0]) < 1e-8


def test_norm_and_bound_of_a_code():
    """N28: codes are bounded, of one norm, and no two positions share one."""
    codes = sinusoidal(torch.arange(5000), 32, dtype=torch.float64)
    torch.testing.assert_close(codes.norm(dim=-1), torch.full((5000,), 4.0, dtype=torch.float64), rtol=0, atol=1e-12)
    assert float(codes.abs().max()) <= 1
    nearest = torch.cdist(codes[:1], codes[1:]).min()
    assert float(nearest) > 0.1
    # every position has the same distance to its neighbour at a given offset
    steps = (codes[17:] - codes[:-17]).norm(dim=-1)
    assert float(steps.max() - steps.min()) < 1e-11


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_codes_are_added_with_one_rounding(dtype):
    x, positions = normal(2, 50, 16, dtype=dtype), torch.arange(50) * 1001
    got = Sinusoidal(width=16).add_to_input(x, positions)
    expected = x.double() + sinusoidal(positions, 16, dtype=torch.float64)
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), expected, rtol=ROUNDING[dtype], atol=1e-7)


@pytest.mark.parametrize("width", [1, 6, 7])
@pytest.mark.parametrize("order", ORDERS)
def test_a_prefix_of_long_equals_short_and_rows_of_a_batch_are_their_own(order, width):
    encoding = Sinusoidal(width=width, order=order)
    long = encoding.codes(torch.arange(3000))
    assert torch.equal(long[:10], encoding.codes(torch.arange(10)))
    rows = torch.stack((torch.arange(4), torch.arange(1000, 1004)))
    assert torch.equal(encoding.codes(rows), torch.stack([encoding.codes(row) for row in rows]))


def test_gradients_reach_the_input_and_positions():
    encoding = Sinusoidal(width=5)
    positions = torch.tensor([0.0, 1.5], dtype=torch.float64, requires_grad=True)
    x = normal(2, 5, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(encoding.add_to_input, (x, positions))


# -- both -------------------------------------------------------------------------------------------------------------

BOTH = {
    "learned": Learned(width=8, length=64),
    "sinusoidal": Sinusoidal(width=8),
    "odd": Sinusoidal(width=7, order="concatenated", scale=0.5, base=500.0),
    "none": NoPE(),
}


def width_of(encoding):
    return getattr(encoding.config, "width", 8)


@pytest.mark.parametrize("name", BOTH)
def test_configs_states_copies_and_pickles_come_back(name):
    encoding = BOTH[name]
    x, positions = normal(2, 5, width_of(encoding)), torch.tensor([0, 3, 1, 60, 2])
    expected = encoding.add_to_input(x, positions)
    again = whorl.from_dict(encoding.config.to_dict())
    assert again.config == encoding.config and type(again) is type(encoding)
    again.load_state_dict(encoding.state_dict())
    for other in (again, copy.deepcopy(encoding), pickle.loads(pickle.dumps(encoding))):
        assert torch.equal(other.add_to_input(x, positions), expected)


@pytest.mark.parametrize("name", BOTH)
def test_a_meta_module_comes_to_life(name):
    with torch.device("meta"):
        encoding = whorl.from_dict(BOTH[name].config.to_dict())
    encoding = encoding.to_empty(device="cpu")
    if hasattr(encoding, "reset_parameters"):
        encoding.reset_parameters()
    encoding.load_state_dict(BOTH[name].state_dict())
    x, positions = normal(5, width_of(encoding)), torch.arange(5)
    assert torch.equal(encoding.add_to_input(x, positions), BOTH[name].add_to_input(x, positions))


@pytest.mark.parametrize("name", BOTH)
def test_one_graph_and_the_same_numbers(name):
    encoding = BOTH[name]
    x, positions = normal(2, 5, width_of(encoding)), torch.tensor([0, 3, 1, 60, 2])
    compiled = torch.compile(encoding.add_to_input, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, positions), encoding.add_to_input(x, positions), rtol=0, atol=1e-7)


@pytest.mark.parametrize("name", ["none", "learned", "sinusoidal"])
def test_build_for_takes_the_sizes_it_needs(name):
    encoding = whorl.build_for(name, heads=8, head_dim=64, width=512, length=1024)
    out = encoding.add_to_input(torch.zeros(1, 4, 512), torch.arange(4))
    assert out.shape == (1, 4, 512)
    assert bool(out.any()) == (name != "none")


def test_casting_a_parameter_free_code_changes_nothing():
    encoding, positions = Sinusoidal(width=8), torch.arange(5000)
    before = encoding.codes(positions)
    encoding.to(torch.bfloat16)
    assert torch.equal(encoding.codes(positions), before)
    assert not list(encoding.parameters()) and not list(encoding.buffers())


def test_claims_of_input_encodings():
    for name in ("learned", "sinusoidal"):
        claims = BOTH[name].claims
        assert claims.linear_attention and not claims.relative and not claims.extrapolates
    assert math.isclose(Sinusoidal(width=8).softmax_scale(64), 0.125)
