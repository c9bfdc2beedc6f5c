"""What every encoding of the registry must do, and what each does because it claims to."""

import contextlib
import copy
import itertools
import pickle

import pytest
import torch
import torch._dynamo
from hypothesis import given, settings
from hypothesis import strategies as st

import whorl
from helpers import SCALINGS
from registry_cases import HEAD_DIM, HEADS, LENGTH, NAMES, WIDTH, build, hidden_for, tokens
from whorl.claims import flags

every_encoding = pytest.mark.parametrize("name", NAMES)
AT_THE_INPUT = [name for name in NAMES if "add_to_input" in build(name).enters()]
IN_ATTENTION = [name for name in NAMES if name not in AT_THE_INPUT]


def attend(encoding, inputs, positions=None, **options):
    length = inputs[0].shape[2]
    return whorl.attention(
        *inputs,
        encoding=encoding,
        positions=positions,
        **hidden_for(encoding, length, dtype=inputs[0].dtype),
        **options,
    )


def with_number(name: str, field: str, number: float):
    """The encoding with this number for a field, or for each item of it."""
    count = {"slopes": HEADS, "frequencies": HEAD_DIM // 2}.get(field, 0)
    changes = {field: (number,) * count if count else number}
    changes |= {"frequencies": {"base": None}, "offset": {"form": "offset"}}.get(field, {})
    encoding = build(name)
    return type(encoding).from_config(encoding.config.replace(**changes))


@torch.no_grad()
@every_encoding
def test_every_number_of_a_config_is_refused_or_gives_finite_results(name):
    fields = [
        field for field, given in build(name).config.fields().items() if "float" in given.type.replace("float32", "")
    ]
    for field, number in itertools.product(fields, (1e-320, 1e-30, 1e-12, 1e12, 1e30, 3e38, 1e39, 1.7e308)):
        for signed in (number, -number):
            with contextlib.suppress(whorl.WhorlError):
                encoding, inputs, at = with_number(name, field, signed), tokens(9), torch.arange(9)
                results = [attend(encoding, inputs, impl=impl) for impl in ("auto", "torch")]
                results.append(attend(encoding, inputs, at + 10**9, key_positions=at + 10**9))
                results.append(encoding.add_to_input(torch.zeros(2, 9, WIDTH), at))
                if isinstance(encoding, whorl.Rope):
                    results.append(encoding.rotate(encoding.rotate(inputs[0], at), at, inverse=True))
                assert all(result.isfinite().all() for result in results), (field, signed)


@pytest.mark.parametrize("scaling", [one for one in SCALINGS if one != "none"])
def test_every_number_of_a_scaling_is_refused_or_gives_finite_results(scaling):
    given, inputs, at = SCALINGS[scaling], tokens(9, dim=64), torch.arange(9) + 1000
    for field, number in itertools.product(given.fields(), (1e-320, 1e-30, 1e-12, 1e12, 1e30, 3e38, 1e39, 1.7e308)):
        for angles, value in itertools.product(("exact", "float32"), (number, (number,) * 32)):
            with contextlib.suppress(whorl.WhorlError):
                rope = whorl.Rope(head_dim=64, scaling=given.replace(**{field: value}), angles=angles)
                results = [
                    attend(rope, inputs, impl=impl, length=length)
                    for impl in ("auto", "torch")
                    for length in (None, 1000)
                ]
                results.append(rope.rotate(rope.rotate(inputs[0], at), at, inverse=True))
                assert all(result.isfinite().all() for result in results), (field, value)


@pytest.mark.parametrize("name", [name for name in IN_ATTENTION if build(name).claims.relative])
@settings(max_examples=4, deadline=None)
@given(shift=st.integers(1, 500), seed=st.integers(0, 99))
def test_scores_depend_on_the_distance_only_where_claimed(name, shift, seed):
    """In float64, so that a shift of some hundred positions shows nothing but the encoding."""
    encoding, inputs = build(name).double(), tokens(11, dtype=torch.float64, seed=seed)
    here, there = (attend(encoding, inputs, torch.arange(11) + start) for start in (30, 30 + shift))
    torch.testing.assert_close(there, here, rtol=0, atol=1e-6)


@torch.no_grad()
@pytest.mark.parametrize("name", [name for name in IN_ATTENTION if not build(name).claims.relative])
def test_what_is_not_called_relative_is_not(name):
    if name in ("cope", "forgetting_gate"):  # which shifts leave alone: the tokens between count
        assert flags.relative(build(name), True).verdict.kind == "fails"
        return
    settings = {"sinks": {"size": 4, "count": 2}, "self_extend": {"window": 4, "group": 3}}.get(name, {})
    sizes = {"head_dim": 16} if name == "self_extend" else {}
    encoding = whorl.build(name, **sizes, **settings).double() if settings else build(name).double()
    inputs = tokens(20, dtype=torch.float64)
    here, there = (attend(encoding, inputs, torch.arange(20) + start) for start in (0, 20_000))
    assert float((here - there).abs().max()) > 1e-4


@torch.no_grad()
@every_encoding
def test_interleaved_documents_do_not_see_each_other(name):
    """Queries, keys, values and hidden states of another document change no row, however tokens are ordered."""
    encoding, inputs = build(name), tokens(10)
    documents = torch.tensor([[0, 1, 0, 1, 1, 0, 0, 1, 0, 1], [5, 5, 3, 5, 3, 3, 4, 5, 4, 3]])
    states, positions = hidden_for(encoding, 10), torch.arange(10)
    orders = [True] + [False] * (not encoding.causal_only) + ["positions"] * (encoding.axes == 1)
    for causal in orders:
        placed = (
            {}
            if causal is True
            else {"positions": positions.flip(0).expand(*(encoding.axes,) * (encoding.axes > 1), -1)}
        )
        options = {"encoding": encoding, "documents": documents, "causal": causal, **placed}
        expected = whorl.attention(*inputs, **states, **options)
        for document in documents.unique():
            other = documents != document
            changed = [torch.where(other[:, None, :, None], 3 * x.flip(2), x) for x in inputs]
            hidden = {key: torch.where(other[..., None], 3 * x.flip(1), x) for key, x in states.items()}
            got = whorl.attention(*changed, **hidden, **options)
            own = ~other[:, None, :, None]
            torch.testing.assert_close(torch.where(own, got, 0), torch.where(own, expected, 0), rtol=0, atol=2e-6)


@pytest.mark.parametrize("name", IN_ATTENTION)
def test_norms_of_queries_and_keys_are_kept_where_claimed(name):
    encoding, (q, k, _) = build(name), tokens(13)
    got = encoding.transform_qk(q, k, torch.arange(13) + 600, torch.arange(13) + 600)
    kept = all(
        torch.allclose(after.norm(dim=-1), before.norm(dim=-1), rtol=1e-5)
        for after, before in zip(got, (q, k), strict=True)
    )
    assert kept or not encoding.claims.norm_preserving


@every_encoding
def test_a_prefix_of_long_equals_short(name):
    encoding = build(name)
    inputs = tokens(19)
    more = hidden_for(encoding, 19)
    long = whorl.attention(*inputs, encoding=encoding, **more)
    short = whorl.attention(
        *(t[:, :, :8] for t in inputs), encoding=encoding, **{key: value[:, :8] for key, value in more.items()}
    )
    torch.testing.assert_close(long[:, :, :8], short, rtol=0, atol=5e-6)


@torch.no_grad()
@pytest.mark.parametrize("name", AT_THE_INPUT)
def test_input_encodings_add_a_code_to_each_token(name):
    encoding, x = build(name), torch.randn(2, 9, WIDTH, generator=torch.Generator().manual_seed(0))
    code = encoding.add_to_input(torch.zeros_like(x), whorl.positions(9))
    torch.testing.assert_close(encoding.add_to_input(x, whorl.positions(9)), x + code)
    assert torch.equal(code[0], code[1])
    assert float((code[0, 1:] - code[0, :-1]).abs().amax(-1).min()) > 1e-3  # neighbours differ
    rows = torch.stack((torch.arange(9), torch.arange(9).flip(0)))
    assert torch.equal(encoding.add_to_input(torch.zeros_like(x), rows)[1], code[0].flip(0))
    assert encoding.add_to_input(x.bfloat16(), whorl.positions(9)).dtype == torch.bfloat16


@every_encoding
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_gets_the_float32_answer_rounded(name, dtype):
    encoding, inputs = build(name), tokens(21, dtype=dtype)
    more = hidden_for(encoding, 21)
    if more:
        more["hidden"] = more["hidden"].to(dtype).float()
    got = whorl.attention(*inputs, encoding=encoding, **more).detach()
    expected = whorl.attention(*(t.float() for t in inputs), encoding=encoding, **more).detach()
    assert got.dtype == dtype
    error = ((got.float() - expected).square().mean() / expected.square().mean()).sqrt()
    assert float(error) < {torch.bfloat16: 6e-3, torch.float16: 1.5e-3}[dtype]


@pytest.mark.filterwarnings("ignore:T5. the last bucket")
@every_encoding
def test_configs_and_weights_survive_every_journey(name):
    encoding = build(name)
    again = whorl.from_dict(encoding.config.to_dict())
    assert again.config == encoding.config
    assert type(again) is type(encoding)
    again.load_state_dict(encoding.state_dict())
    with torch.device("meta"):
        loaded = type(encoding).from_config(encoding.config)
    loaded = loaded.to_empty(device="cpu")
    loaded.load_state_dict(encoding.state_dict())
    inputs = tokens(9)
    expected = attend(encoding, inputs)
    for other in (again, loaded, copy.deepcopy(encoding), pickle.loads(pickle.dumps(encoding))):
        assert torch.equal(attend(other, inputs), expected)


# one of each hook; tests/attend/test_compile_sizes.py compiles attention with every encoding, for all sizes
COMPILED = ("alibi", "cope", "forgetting_gate", "learned", "rerope", "rope", "shaw", "sinks", "ssmax", "t5")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in COMPILED else pytest.mark.large) for name in NAMES]
)
def test_attention_compiles_without_a_break(name):
    torch._dynamo.reset()
    encoding, inputs = build(name), tokens(12)
    more = hidden_for(encoding, 12)
    compiled = torch.compile(
        lambda q, k, v, **rest: whorl.attention(q, k, v, encoding=encoding, **rest), fullgraph=True, backend="aot_eager"
    )
    expected = whorl.attention(*inputs, encoding=encoding, **more)
    torch.testing.assert_close(compiled(*inputs, **more), expected, rtol=0, atol=5e-6)


@every_encoding
def test_every_learned_number_gets_a_gradient(name):
    encoding = build(name)
    parameters = dict(encoding.named_parameters())
    if not parameters:
        assert not list(encoding.buffers())  # nothing hidden in state
        return
    if name in AT_THE_INPUT:
        out = encoding.add_to_input(torch.zeros(1, LENGTH, WIDTH), whorl.positions(LENGTH)).sin().sum()
    else:
        out = attend(encoding, tokens(LENGTH)).sin().sum()
    grads = torch.autograd.grad(out, list(parameters.values()))
    for key, grad in zip(parameters, grads, strict=True):
        assert torch.isfinite(grad).all(), key
        assert bool((grad != 0).any()) or key == "b2", key  # a constant on all scores changes nothing


def test_the_registry_covers_the_hooks():
    used = {hook for name in NAMES for hook in build(name).enters()}
    assert used == {
        "add_to_input", "transform_qk", "score_bias", "adjust_scores", "adjust_output", "branches", "mask",
    }  # fmt: skip
    assert HEADS == 4
