"""What every bias encoding has in common: shift and prefix, batches, casts, meta loading, copies, graphs, configs."""

import copy
import pickle
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import flex_attention

import whorl
from whorl import T5, Alibi, Fire, Kerple, Sandwich

HEADS = 6
ENCODINGS = {
    "alibi": Alibi(heads=HEADS),
    "alibi_geometric": Alibi(heads=HEADS, slopes="geometric", scale=0.5),
    "alibi_list": Alibi(heads=HEADS, slopes=[1.0, 0.5, 0.3, 0.2, 0.1, 0.0]),
    "alibi_symmetric": Alibi(heads=HEADS, form="symmetric"),
    "alibi_split": Alibi(heads=HEADS, form="split"),
    "alibi_offset": Alibi(heads=HEADS, form="offset", offset=0.5),
    "alibi_bloom": Alibi(heads=HEADS, rounding="hf_bf16"),
    "alibi_falcon": Alibi(heads=HEADS, rounding="hf_falcon", scale=0.25),
    "t5": T5(heads=HEADS),
    "t5_bidirectional": T5(heads=HEADS, bidirectional=True, buckets=8, max_distance=20),
    "kerple_log": Kerple(heads=HEADS),
    "kerple_power": Kerple(heads=HEADS, variant="power"),
    "fire": Fire(heads=HEADS, length=40, hidden=4),
    "sandwich": Sandwich(heads=HEADS, code_width=8),
}
LEARNED = [name for name, encoding in ENCODINGS.items() if list(encoding.parameters())]
RELATIVE = [name for name, encoding in ENCODINGS.items() if encoding.claims.relative]


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def bias_of(encoding, q_positions, k_positions):
    with torch.no_grad():
        return encoding.score_bias(q_positions, k_positions)


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.integers(0, 5000), min_size=1, max_size=5),
    st.lists(st.integers(0, 5000), min_size=1, max_size=5),
    st.integers(0, 10**6),
)
@pytest.mark.parametrize("name", RELATIVE)
def test_where_claimed_a_shift_of_all_positions_changes_nothing(name, q_positions, k_positions, shift):
    encoding, (q, k) = ENCODINGS[name], (torch.tensor(q_positions), torch.tensor(k_positions))
    torch.testing.assert_close(bias_of(encoding, q + shift, k + shift), bias_of(encoding, q, k), rtol=1e-6, atol=1e-6)


def test_what_is_not_relative_says_so():
    assert set(ENCODINGS) - set(RELATIVE) == {"alibi_bloom", "alibi_falcon", "fire"}
    for name in ("alibi_bloom", "fire"):  # a shift may change more than a row by a constant
        encoding, positions = ENCODINGS[name], torch.arange(300)
        near, far = (bias_of(encoding, positions + s, positions + s).softmax(-1) for s in (0, 777))
        assert not torch.allclose(near, far, atol=1e-4)


@pytest.mark.parametrize("name", ENCODINGS)
def test_a_prefix_of_long_equals_short_and_one_row_equals_its_row(name):
    encoding, positions = ENCODINGS[name], torch.arange(90)
    long = bias_of(encoding, positions, positions)
    assert long.shape == (HEADS, 90, 90) and long.dtype == torch.float32
    # a matrix product may round a row by itself otherwise than among others
    torch.testing.assert_close(long[:, :7, :7], bias_of(encoding, positions[:7], positions[:7]), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(long[:, 50:51], bias_of(encoding, positions[50:51], positions), rtol=1e-6, atol=1e-6)
    assert not encoding.length_dependent


@pytest.mark.parametrize("name", ENCODINGS)
def test_rows_of_a_batch_are_their_own(name):
    encoding = ENCODINGS[name]
    rows, keys = torch.stack((torch.arange(5), torch.arange(5) * 9)), torch.arange(7)
    both = bias_of(encoding, rows, torch.stack((keys, keys + 3)))
    assert both.shape == (2, HEADS, 5, 7)
    torch.testing.assert_close(both[1], bias_of(encoding, rows[1], keys + 3), rtol=1e-6, atol=1e-6)
    # keys or queries without a batch serve every row
    torch.testing.assert_close(bias_of(encoding, rows, keys)[0], bias_of(encoding, rows[0], keys), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(bias_of(encoding, keys, rows)[1], bias_of(encoding, keys, rows[1]), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.int32, torch.float32, torch.float64])
@pytest.mark.parametrize("name", ENCODINGS)
def test_positions_of_every_type(name, dtype):
    encoding, positions = ENCODINGS[name], torch.arange(40)
    got = bias_of(encoding, positions.to(dtype), positions.to(dtype))
    torch.testing.assert_close(got, bias_of(encoding, positions, positions), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ENCODINGS)
def test_element_by_element_it_is_the_dense_bias(name):
    encoding, positions = ENCODINGS[name], torch.tensor([0, 3, 17, 18, 400])
    dense = bias_of(encoding, positions, positions)
    for h, a, b in ((0, 0, 0), (5, 4, 0), (2, 0, 4), (3, 3, 2)):
        one = encoding.bias_at(torch.tensor(h), positions[a], positions[b])
        assert one.shape == () and one.dtype == torch.float32
        torch.testing.assert_close(one.detach(), dense[h, a, b], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", [name for name in ENCODINGS if name not in LEARNED])
def test_without_parameters_casts_change_nothing(name):
    encoding, positions = copy.deepcopy(ENCODINGS[name]), torch.arange(600)
    before = encoding.score_bias(positions, positions)
    encoding.to(torch.bfloat16)
    assert torch.equal(encoding.score_bias(positions, positions), before)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(encoding.score_bias(positions, positions), before)
    assert not encoding.state_dict() and not list(encoding.buffers())


@pytest.mark.parametrize("name", LEARNED)
def test_cast_parameters_are_all_that_is_rounded(name):
    """The bias of a module in bfloat16 is the float32 bias of its rounded parameters."""
    rounded, positions = copy.deepcopy(ENCODINGS[name]).to(torch.bfloat16), torch.arange(600)
    widened = copy.deepcopy(rounded).float()
    got = bias_of(rounded, positions, positions)
    assert got.dtype == torch.float32
    assert torch.equal(got, bias_of(widened, positions, positions))
    assert bias_of(widened.double(), positions, positions).dtype == torch.float64


@pytest.mark.parametrize("name", ENCODINGS)
def test_configs_states_copies_and_pickles_come_back(name):
    encoding, positions = ENCODINGS[name], torch.arange(30)
    expected = bias_of(encoding, positions, positions)
    again = whorl.from_dict(encoding.config.to_dict())
    assert again.config == encoding.config and hash(again.config) == hash(encoding.config)
    again.load_state_dict(encoding.state_dict())
    for other in (again, copy.deepcopy(encoding), pickle.loads(pickle.dumps(encoding))):
        assert torch.equal(bias_of(other, positions, positions), expected)


@pytest.mark.parametrize("name", ENCODINGS)
def test_a_meta_module_comes_to_life(name):
    positions = torch.arange(30)
    with torch.device("meta"):
        encoding = whorl.from_dict(ENCODINGS[name].config.to_dict())
        away = bias_of(encoding, torch.arange(30), torch.arange(30))
    assert away.is_meta and away.shape == (HEADS, 30, 30)
    encoding = encoding.to_empty(device="cpu")
    if name in LEARNED:
        encoding.reset_parameters()
        assert all(torch.isfinite(parameter).all() for parameter in encoding.parameters())
    encoding.load_state_dict(ENCODINGS[name].state_dict())
    assert torch.equal(bias_of(encoding, positions, positions), bias_of(ENCODINGS[name], positions, positions))


@pytest.mark.parametrize("name", ENCODINGS)
def test_one_graph_and_the_same_numbers(name):
    encoding, graphs = ENCODINGS[name], []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    @torch.compile(fullgraph=True, backend=backend)
    def run(q_positions, k_positions):
        return encoding.score_bias(q_positions, k_positions)

    for length in (5, 9, 30, 61):
        positions = torch.arange(length)
        torch.testing.assert_close(
            run(positions, positions), encoding.score_bias(positions, positions), rtol=1e-6, atol=1e-6
        )
    assert len(graphs) <= 2


@pytest.mark.parametrize("name", LEARNED)
def test_compiled_gradients_are_the_same(name):
    encoding, positions = copy.deepcopy(ENCODINGS[name]), torch.arange(23)
    compiled = torch.compile(encoding.score_bias, fullgraph=True, backend="aot_eager")
    parameters = list(encoding.parameters())
    own, plain = (
        torch.autograd.grad(run(positions, positions).sin().sum(), parameters)
        for run in (compiled, encoding.score_bias)
    )
    for one, other in zip(own, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "name", [name for name in ENCODINGS if name not in ("alibi_geometric", "alibi_symmetric", "t5")]
)
def test_inside_flex_attention_it_is_the_dense_bias(name):
    encoding, generator = ENCODINGS[name], torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, HEADS, 21, 8, generator=generator) for _ in range(3))
    rows = torch.stack((torch.arange(21), torch.arange(21) + 100))

    @torch.compile(fullgraph=True, backend="eager")
    def run(q, k, v, rows):
        def score_mod(score, b, h, i, j):
            return score + encoding.bias_at(h, rows[b, i], rows[b, j])

        return flex_attention(q, k, v, score_mod=score_mod)

    with torch.no_grad():
        expected = (q @ k.mT * 8**-0.5 + encoding.score_bias(rows, rows)).softmax(-1) @ v
        torch.testing.assert_close(run(q, k, v, rows), expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("name", ["alibi", "t5", "kerple", "fire", "sandwich"])
def test_build_for_takes_the_sizes_it_needs(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        encoding = whorl.build_for(name, heads=8, head_dim=64, width=512, length=1024)
    assert encoding.score_bias(torch.arange(3), torch.arange(4)).shape == (8, 3, 4)
    assert encoding.enters() == ("score_bias",) and encoding.heads == 8
    assert encoding.key_policy == "transformed"


@pytest.mark.parametrize("name", ENCODINGS)
def test_where_claimed_nearer_keys_weigh_more(name):
    encoding = ENCODINGS[name]
    if not encoding.claims.decays:
        return
    bias = bias_of(encoding, torch.tensor([1000]), torch.arange(1001))[:, 0]
    seen = bias[: HEADS // 2] if name == "alibi_split" else bias
    steps = seen.diff(dim=-1)
    assert (steps > 0).all() if encoding.claims.relative else (steps >= 0).all()


@pytest.mark.parametrize("name", LEARNED)
def test_drawing_anew_changes_the_parameters_and_nothing_else(name):
    encoding = copy.deepcopy(ENCODINGS[name])
    torch.manual_seed(1)
    encoding.reset_parameters()
    first = copy.deepcopy(encoding.state_dict())
    encoding.reset_parameters()
    assert any(not torch.equal(first[key], value) for key, value in encoding.state_dict().items())
    torch.manual_seed(1)
    encoding.reset_parameters()
    assert all(torch.equal(first[key], value) for key, value in encoding.state_dict().items())
