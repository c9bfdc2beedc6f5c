"""What holds for every encoding with terms on scores, scales on queries, masks or remapped positions."""

import copy
import json
import pickle

import pytest
import torch
import torch._dynamo

import whorl
from dense_flow import attend, normal, tokens, trained

HEADS, HEAD_DIM, WIDTH = 2, 8, 6

# Windows and clips so small that twelve tokens pass them.
MAKERS = {
    "shaw": lambda: whorl.Shaw(head_dim=HEAD_DIM, clip=3),
    "transformer_xl": lambda: whorl.TransformerXL(heads=HEADS, head_dim=HEAD_DIM),
    "transformer_xl_clamped": lambda: whorl.TransformerXL(heads=HEADS, head_dim=HEAD_DIM, clamp=4),
    "deberta": lambda: whorl.Deberta(heads=HEADS, head_dim=HEAD_DIM, span=4, max_distance=9),
    "deberta_paper": lambda: whorl.Deberta(
        heads=HEADS, head_dim=HEAD_DIM, span=4, max_distance=None, position_to_content="paper"
    ),
    "cope": lambda: whorl.Cope(head_dim=HEAD_DIM, max_position=4),
    "forgetting_gate": lambda: whorl.ForgettingGate(heads=HEADS, width=WIDTH, bias=1.0),
    "xpos": lambda: whorl.XPos(head_dim=HEAD_DIM, scale_base=8.0),
    "log_n": lambda: whorl.LogN(trained_length=4),
    "ssmax": lambda: whorl.SSMax(heads=HEADS, bias=True),
    "llama4_temperature": lambda: whorl.Llama4Temperature(floor_scale=3),
    "window": lambda: whorl.Window(size=4),
    "sinks": lambda: whorl.Sinks(size=4, count=2),
    "rerope": lambda: whorl.ReRope(head_dim=HEAD_DIM, window=4),
    "leaky_rerope": lambda: whorl.LeakyReRope(head_dim=HEAD_DIM, window=4, factor=3.0),
    "self_extend": lambda: whorl.SelfExtend(head_dim=HEAD_DIM, window=4, group=3),
}
NAMES = {
    "shaw", "transformer_xl", "deberta", "cope", "forgetting_gate", "xpos", "log_n", "ssmax", "llama4_temperature",
    "window", "sinks", "rerope", "leaky_rerope", "self_extend",
}  # fmt: skip
COUNTING = ("cope", "forgetting_gate")  # by the order of tokens and not by their positions
every = pytest.mark.parametrize("name", MAKERS)
CLOSE = {"rtol": 0, "atol": 1e-11}


def make(name, dtype=torch.float64):
    return trained(MAKERS[name]()).to(dtype)


def run(encoding, q, k, v, q_positions, k_positions, **options):
    """The dense flow with hidden states where the encoding reads them."""
    hidden = None
    if isinstance(encoding, whorl.ForgettingGate):
        states = normal(q.shape[0], options.pop("tokens", k.shape[-2]), WIDTH, seed=77, dtype=q.dtype)
        first = options.pop("first", 0)
        hidden = encoding.remember(states[:, first : first + k.shape[-2]])
    options.pop("tokens", None), options.pop("first", None)
    return attend(encoding, q, k, v, q_positions, k_positions, hidden=hidden, **options)


@pytest.mark.parametrize("name", sorted(NAMES))
def test_built_by_name_from_the_sizes_of_a_model(name):
    encoding = whorl.build_for(name, heads=8, head_dim=64, width=512, length=1024)
    assert encoding.config.name == name and type(encoding) is type(MAKERS[name]())
    q, k, v = tokens(12, heads=8, dim=64, dtype=torch.float32)
    ids, states = torch.arange(12), normal(1, 12, 512, dtype=torch.float32)
    hidden = encoding.remember(states) if name == "forgetting_gate" else None
    assert bool(torch.isfinite(attend(encoding, q, k, v, ids, ids, hidden=hidden).out).all())
    assert encoding.enters()


@every
def test_config_to_json_and_back(name):
    encoding = MAKERS[name]()
    again = whorl.from_dict(json.loads(json.dumps(encoding.config.to_dict())))
    assert again.config == encoding.config and hash(again.config) == hash(encoding.config)
    assert type(again) is type(encoding)
    assert again.config.call() == type(encoding).__name__
    assert repr(encoding).startswith(type(encoding).__name__)


@every
def test_state_pickle_and_copies(name):
    encoding = make(name)
    q, k, v = tokens(12)
    ids = torch.arange(12)
    expected = run(encoding, q, k, v, ids, ids).out
    again = whorl.from_dict(encoding.config.to_dict()).double()
    again.load_state_dict(encoding.state_dict())
    for other in (again, copy.deepcopy(encoding), pickle.loads(pickle.dumps(encoding))):
        assert torch.equal(run(other, q, k, v, ids, ids).out, expected)
    assert not list(encoding.buffers())


@every
def test_casts_autocast_and_call_order_change_nothing_hidden(name):
    encoding = MAKERS[name]()
    q, k, v = tokens(12, dtype=torch.float32)
    ids = torch.arange(12)
    expected = run(encoding, q, k, v, ids, ids).out
    run(encoding, q, k, v, ids + 5000, ids + 5000)
    assert torch.equal(run(encoding, q, k, v, ids, ids).out, expected)
    before = {key: value.clone() for key, value in encoding.state_dict().items()}
    there_and_back = encoding.to(torch.bfloat16).to(torch.float32)
    if not before:
        assert torch.equal(run(there_and_back, q, k, v, ids, ids).out, expected)
    there_and_back.load_state_dict(before)
    assert torch.equal(run(there_and_back, q, k, v, ids, ids).out, expected)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        near = run(encoding, q, k, v, ids, ids).out
    torch.testing.assert_close(near.float(), expected, rtol=0, atol=0.1)


@every
def test_through_the_meta_device(name):
    torch.manual_seed(3)
    expected = MAKERS[name]().state_dict()
    with torch.device("meta"):
        encoding = MAKERS[name]()
    assert all(parameter.is_meta for parameter in encoding.parameters())
    encoding.to_empty(device="cpu")
    for parameter in encoding.parameters():
        parameter.data.fill_(torch.nan)
    torch.manual_seed(3)
    if expected:
        encoding.reset_parameters()
    assert {key: value.shape for key, value in encoding.state_dict().items()} == {
        key: value.shape for key, value in expected.items()
    }
    for key, value in encoding.state_dict().items():
        assert bool(torch.isfinite(value).all()), key
        constant = bool((expected[key] == expected[key].flatten()[0]).all())
        assert not constant or torch.equal(value, expected[key])


@every
def test_a_cached_step_equals_the_last_row(name):
    encoding = make(name)
    q, k, v = tokens(12, batch=2)
    ids = torch.arange(12)
    whole = run(encoding, q, k, v, ids, ids).out
    for stop in (1, 2, 7, 12):
        for size in {1, min(3, stop)}:
            part = slice(stop - size, stop)
            step = run(encoding, q[:, :, part], k[:, :, :stop], v[:, :, :stop], ids[part], ids[:stop], tokens=12).out
            torch.testing.assert_close(step, whole[:, :, part], **CLOSE)


@every
def test_scores_depend_on_the_distance_alone_where_claimed(name):
    encoding = make(name)
    q, k, v = tokens(12)
    ids = torch.arange(12)
    here, there = (run(encoding, q, k, v, ids + shift, ids + shift).out for shift in (0, 1000))
    # what counts tokens stays when positions shift, and is not of the distance alone: the ledger changes tokens between
    assert torch.allclose(here, there, rtol=0, atol=1e-9) == (encoding.claims.relative or name in COUNTING)
    assert not (encoding.claims.relative and name in COUNTING)


@every
def test_position_makes_a_difference(name):
    """A test of the tests: with the keys before it in another order the last row changes."""
    encoding = make(name)
    q, k, v = tokens(12)
    ids, order = torch.arange(12), torch.tensor([*reversed(range(11)), 11])
    here = run(encoding, q[:, :, -1:], k, v, ids[-1:], ids).out
    there = run(encoding, q[:, :, -1:], k[:, :, order], v[:, :, order], ids[-1:], ids).out
    same = torch.allclose(here, there, rtol=0, atol=1e-9)
    assert same == (encoding.enters() == ("transform_qk",) and name != "xpos")  # factors on queries see no key


@every
def test_packed_documents_equal_single_ones(name):
    encoding = make(name)
    q, k, v = tokens(12)
    ids, documents = whorl.packed([5, 7]), torch.tensor([0] * 5 + [1] * 7)
    whole = run(encoding, q, k, v, ids, ids, documents=documents).out
    for start, stop in ((0, 5), (5, 12)):
        part = (x[:, :, start:stop] for x in (q, k, v))
        alone = run(encoding, *part, ids[start:stop], ids[start:stop], tokens=12, first=start).out
        torch.testing.assert_close(whole[:, :, start:stop], alone, **CLOSE)


@every
def test_rows_of_a_batch_have_positions_of_their_own(name):
    encoding = make(name)
    q, k, v = tokens(12, batch=2)
    ids = torch.stack((torch.arange(12), 2 * torch.arange(12) + 3))
    both = run(encoding, q, k, v, ids, ids).out
    for row in range(2):
        part = slice(row, row + 1)
        hidden = None
        if name == "forgetting_gate":
            hidden = encoding.remember(normal(2, 12, WIDTH, seed=77)[part])
        alone = attend(encoding, q[part], k[part], v[part], ids[row], ids[row], hidden=hidden).out
        torch.testing.assert_close(both[part], alone, **CLOSE)


@every
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_near(name, dtype):
    encoding = make(name).to(dtype)
    exact = whorl.from_dict(encoding.config.to_dict()).double()
    exact.load_state_dict(encoding.state_dict())
    q, k, v = tokens(12, dtype=dtype)
    ids = torch.arange(12)
    got = run(encoding, q, k, v, ids, ids)
    assert got.scores.dtype == got.out.dtype == dtype
    want = run(exact, q.double(), k.double(), v.double(), ids, ids)
    allowed = want.weights > 0
    step = {torch.bfloat16: 2**-8, torch.float16: 2**-10}[dtype]  # hidden states are rounded in one of them too
    largest = float(want.scores[allowed].detach().abs().max())
    error = (got.scores.double() - want.scores)[allowed].detach().abs().max()
    assert float(error) <= 6 * step * max(1.0, largest)


@every
def test_compiles_to_one_graph_with_the_same_values_and_gradients(name):
    torch._dynamo.reset()
    encoding = make(name, torch.float32)
    ids = torch.arange(12)
    states = normal(1, 12, WIDTH, dtype=torch.float32)

    def hooks(q, k, v, ids):
        hidden = encoding.remember(states) if name == "forgetting_gate" else None
        placed = []
        branches = encoding.branches(ids, ids)
        if branches is None:
            placed += encoding.transform_qk(q, k, ids, ids)
        else:
            for branch in branches:
                placed += encoding.transform_qk(q, k, branch.q_positions, branch.k_positions)
                placed.append(branch.allowed)
        scores = encoding.adjust_scores(q @ k.mT * 0.3, q, k, ids, ids, hidden, scale=0.3)
        weights = scores.tril().softmax(-1)
        placed += [scores, encoding.adjust_output(weights @ v, weights, v, ids, ids)]
        mask = encoding.mask(ids, ids)
        return placed if mask is None else [*placed, mask]

    results = []
    for call in (hooks, torch.compile(hooks, fullgraph=True, backend="aot_eager")):
        q, k, v = tokens(12, dtype=torch.float32, grad=True)
        out = call(q, k, v, ids)
        loss = sum(t.sin().sum() for t in out if t.is_floating_point())
        wanted = [t for t in (q, k, v, *encoding.parameters()) if t.requires_grad]
        results.append([*out, *torch.autograd.grad(loss, wanted)])
    for expected, got in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=3e-5)


@pytest.mark.parametrize(
    "name", ["shaw", "transformer_xl", "deberta", "cope", "xpos", "ssmax", "sinks", "leaky_rerope"]
)
def test_a_second_length_is_the_last_to_compile(name):
    torch._dynamo.reset()
    encoding, graphs = make(name, torch.float32), []

    def backend(graph, example_inputs):
        graphs.append(graph)
        return graph.forward

    def hooks(q, k, ids):
        branches = encoding.branches(ids, ids)
        place = (ids, ids) if branches is None else branches[-1][:2]
        q, k = encoding.transform_qk(q, k, *place)
        mask = encoding.mask(ids, ids)
        scores = encoding.adjust_scores(q @ k.mT, q, k, ids, ids, scale=0.3)
        return scores if mask is None else scores.masked_fill(~mask, 0)

    compiled = torch.compile(hooks, fullgraph=True, backend=backend)
    for length in (7, 12, 33, 40):
        q, k, _ = tokens(length, dtype=torch.float32)
        torch.testing.assert_close(
            compiled(q, k, torch.arange(length)), hooks(q, k, torch.arange(length)), rtol=1e-5, atol=1e-5
        )
    assert len(graphs) <= 2


@every
def test_claims_and_policies(name):
    encoding = MAKERS[name]()
    claims = encoding.claims
    assert claims.norm_preserving == (name not in ("shaw", "xpos", "log_n", "ssmax", "llama4_temperature"))
    assert claims.decays == (name == "forgetting_gate")
    assert claims.linear_attention == (name == "xpos")
    remapped = ("rerope", "leaky_rerope", "self_extend")
    assert encoding.key_policy == ("raw" if name in ("xpos", *remapped) else "transformed")
    assert getattr(encoding, "causal_only", False) == (name in ("xpos", *COUNTING, *remapped))
    assert getattr(encoding, "scales_queries_only", False) == (name in ("log_n", "ssmax", "llama4_temperature"))
