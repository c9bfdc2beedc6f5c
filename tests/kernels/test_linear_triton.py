"""The kernels of linear attention against the torch path and the definition: values, gradients, views, odd sizes."""

import numpy as np
import pytest
import torch

import whorl
from oracles import linear_attention as oracle
from whorl import Rope, WhorlError, linear_attention

pytest.importorskip("triton")

from triton import knobs

from whorl.kernels import linear_ops, linear_triton
from whorl.kernels.linear import sizes
from whorl.kernels.linear_ops import linear_forward

# rms(error) / rms(expected) of outputs and of gradients. The interpreter rounds to bfloat16 by cutting off.
BOUNDS = {
    ("cpu", torch.float32): (1e-6, 1e-6),
    ("cpu", torch.bfloat16): (2e-2, 2e-2),
    ("cpu", torch.float16): (5e-4, 5e-4),
    ("cuda", torch.float32): (1e-5, 1e-5),
    ("cuda", torch.bfloat16): (3e-3, 5e-3),
    ("cuda", torch.float16): (5e-4, 5e-4),
}


@pytest.fixture(autouse=True)
def short_segments(monkeypatch):
    """Several segments and several steps in each, for lengths that the interpreter is not too slow for."""
    monkeypatch.setattr(linear_triton, "SPLIT", linear_triton.Split(programs=1024, shortest=1))
    if not torch.cuda.is_available():
        monkeypatch.setattr(linear_triton, "tile_of", lambda *_: linear_triton.Tile(rows=64, warps=4, stages=1))
        monkeypatch.setitem(sizes.CHUNK, False, 64)
        for kernel, wide in sizes.TILES:
            rows = 16 if kernel in ("features", "key_sums", "grad_rows") else 32
            monkeypatch.setitem(sizes.TILES, (kernel, wide), sizes.Tile(rows, warps=4, stages=1))


@pytest.fixture(params=[False, True], ids=["computed", "written"])
def design(request, monkeypatch):
    """Features computed wherever they are needed, or written once, whatever the sizes of a call.

    In bfloat16 a GPU takes the design that is made for the sizes: the compiler makes wrong code of the other.
    """
    chosen = linear_ops.features_are_written

    def written(q, v):
        return chosen(q, v) if q.is_cuda and q.dtype == torch.bfloat16 else request.param

    monkeypatch.setattr(linear_ops, "features_are_written", written)


def draw(*shape, dtype=torch.float32, device="cpu", seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


def qkv(length=150, heads=(1, 1), dims=(16, 16), batch=1, dtype=torch.float32, device="cpu"):
    shapes = [(batch, h, length, d) for h, d in zip((heads[0], *heads[1:] * 2), (dims[0], *dims), strict=True)]
    return [draw(*shape, dtype=dtype, device=device, seed=i) for i, shape in enumerate(shapes)]


def with_grads(inputs, grad, **options):
    inputs = [x.detach().requires_grad_() for x in inputs]
    out = linear_attention(*inputs, **options)
    return [out.detach(), *torch.autograd.grad(out, inputs, grad)]


def agrees(got, inputs, grad, bounds, **options):
    """Whether an output and its gradients are those of the torch path in float64."""
    expected = with_grads([x.double() for x in inputs], grad.double(), impl="torch", **options)
    for name, one, other, x in zip(("out", "dq", "dk", "dv"), got, expected, (inputs[2], *inputs), strict=True):
        assert one.dtype == x.dtype and one.shape == other.shape, name
        assert bool(one.isfinite().all()), name
        error = (one.double() - other).square().mean().sqrt() / other.square().mean().sqrt()
        assert error <= bounds[name != "out"], (name, float(error))


def half(**settings):
    return Rope(layout="half", **settings)


def mixed(**settings):
    return Rope(layout="interleaved", **settings)


CASES = {
    "plain": {},
    "rope": {"encoding": half(head_dim=16)},
    "neighbours": {"encoding": mixed(head_dim=32), "dims": (32, 16)},
    "deepseek": {"encoding": Rope(head_dim=32, layout="interleaved_to_half"), "dims": (32, 16), "length": 40},
    "odd sizes": {"encoding": half(head_dim=33, rotary_dim=22, slice=3), "dims": (33, 5), "length": 131},
    "leading": {"encoding": mixed(head_dim=20, rotary_dim=8), "dims": (20, 17), "length": 70},
    "trailing": {"encoding": half(head_dim=48, rotary_dim=16, slice="trailing"), "dims": (48, 8), "length": 65},
    "shared keys": {"encoding": half(head_dim=16), "heads": (4, 2), "batch": 2, "length": 30},
    "positions by row": {"encoding": half(head_dim=16), "batch": 2, "length": 66, "by_row": True},
    "grid": {"encoding": whorl.AxialRope(head_dim=32), "dims": (32, 16), "length": 64, "grid": True},
    "padding": {"encoding": half(head_dim=16), "batch": 2, "length": 140, "hidden": 0.4},
    "padding, own weights": {"batch": 2, "length": 70, "hidden": 0.4},
    "both": {"encoding": half(head_dim=16, scaling=whorl.Yarn(factor=4.0, original_length=64)), "form": "both"},
    "unnormalised": {"encoding": half(head_dim=16), "form": "unnormalised", "dims": (16, 20)},
    "relu": {"encoding": half(head_dim=16), "feature": "relu", "form": "unnormalised", "length": 65},
    "squared relu": {"encoding": half(head_dim=16), "feature": "squared_relu", "form": "unnormalised", "length": 65},
    "identity": {"encoding": half(head_dim=16), "feature": "identity", "form": "unnormalised", "length": 65},
    "two tokens": {"encoding": half(head_dim=16), "length": 2},
    "bfloat16": {"encoding": half(head_dim=64), "dims": (64, 64), "dtype": torch.bfloat16, "heads": (2, 1)},
    "bfloat16 without": {"dims": (64, 32), "dtype": torch.bfloat16, "length": 70},
    "float16": {"encoding": mixed(head_dim=64), "dims": (64, 64), "dtype": torch.float16, "length": 70},
    # several heads: the first key's gradient is what is left of two terms, and in one head it can be all of the error
    "wide": {
        "encoding": half(head_dim=128),
        "dims": (128, 128),
        "dtype": torch.bfloat16,
        "length": 70,
        "heads": (2, 2),
    },
    "wide keys": {"encoding": half(head_dim=128), "dims": (128, 64), "dtype": torch.bfloat16, "heads": (2, 1)},
    "wide values": {"encoding": half(head_dim=64), "dims": (64, 128), "dtype": torch.bfloat16, "heads": (2, 1)},
    "wide float32": {"encoding": half(head_dim=128), "dims": (128, 128), "length": 70},
}


@pytest.mark.parametrize("name", CASES)
def test_outputs_and_gradients_are_those_of_torch(device, poisoned, design, name):
    case = dict(CASES[name])
    sizes = {key: case.pop(key) for key in ("length", "heads", "dims", "batch", "dtype") if key in case}
    inputs = qkv(**sizes, device=device)
    batch, length = inputs[0].shape[0], inputs[0].shape[2]
    if case.pop("by_row", False):
        case["positions"] = torch.stack([torch.arange(length) * 7, torch.arange(length).flip(0)]).to(device)
    if case.pop("grid", False):
        case["positions"] = whorl.grid(8, length // 8).to(device)
    if hidden := case.pop("hidden", None):
        mask = draw(batch, length, seed=9).sigmoid() > hidden
        mask[:, :3], mask[0, :70] = False, False  # queries that see no key, a whole step of them
        case["key_mask"] = mask.to(device)
        for x in inputs[1:]:  # hidden keys and values are never read
            x.masked_fill_(~case["key_mask"][:, None, :, None], float("nan"))
    grad = draw(*inputs[0].shape[:3], inputs[2].shape[3], dtype=inputs[0].dtype, device=device, seed=5)
    got = with_grads(inputs, grad, impl="triton", **case)
    if hidden:
        inputs = [x.nan_to_num() for x in inputs]
    agrees(got, inputs, grad, BOUNDS[device, inputs[0].dtype], **case)


def test_a_gradient_of_the_gradient_is_never_silently_missing(device, design):
    inputs = [x.requires_grad_() for x in qkv(length=5, device=device)]
    out = linear_attention(*inputs, impl="triton")
    slopes = torch.autograd.grad(out.sin().sum(), inputs, create_graph=True)
    with pytest.raises(WhorlError, match="no gradient of its gradient"):
        torch.autograd.grad(sum(slope.square().sum() for slope in slopes), inputs)


def test_it_is_the_definition(device, design):
    q, k, v = qkv(length=130, dims=(8, 4), device=device)
    rope = Rope(head_dim=8)
    angles = np.arange(130)[:, None] * rope.frequencies().numpy()
    rows = [x[0].double().cpu().numpy() for x in (q, k, v)]
    for form in ("numerator", "both", "unnormalised"):
        expected = oracle.attention(*rows, range(130), range(130), angles, angles, form=form, eps=1e-6)
        expected = oracle.rms_norm(expected, 1e-6) if form == "unnormalised" else expected
        got = linear_attention(q, k, v, encoding=rope, form=form, impl="triton")[0].double().cpu().numpy()
        assert np.abs(got - expected).max() <= 2e-5 * np.abs(expected).max()


def views(device):
    """Tensors (1, 2, 70, 16) that lie in memory in every way, each with NaN in the gaps around."""
    yield draw(1, 70, 3, 2, 16, device=device)[:, :, 1].transpose(1, 2)  # packed qkv
    padded = torch.full((1, 2, 72, 19), float("nan"), device=device)
    padded[:, :, 1:71, 2:18] = draw(1, 2, 70, 16, device=device)
    yield padded[:, :, 1:71, 2:18]
    yield draw(1, 2, 70, 32, device=device)[..., ::2]
    yield draw(16, 70, 2, 1, device=device).permute(3, 2, 1, 0)
    yield draw(1, 1, 70, 16, device=device).expand(1, 2, 70, 16)


@pytest.mark.parametrize("which", range(5))
def test_views_are_read_where_they_lie(device, poisoned, design, which):
    x = list(views(device))[which]
    others = qkv(length=70, heads=(2, 2), device=device)
    inputs = [*others[:which], x, *others[which + 1 :]] if which < 3 else [x, others[1], x]
    grad = draw(1, 1, 70, 1, device=device, seed=8).expand(1, 2, 70, 16) if which % 2 else x
    encoding = Rope(head_dim=16, layout=("half", "interleaved")[which % 2])
    got = with_grads(inputs, grad, encoding=encoding, impl="triton")
    agrees(got, inputs, grad, BOUNDS[device, torch.float32], encoding=encoding)


@pytest.mark.parametrize("apart", ["heads", "rows"])
def test_strides_beyond_32_bits(device, design, apart):
    """Heads and rows so far apart that 32 bits cannot count the way, over memory that is never touched."""
    shape, strides = ((1, 2, 3, 16), (0, 2**32, 16, 1)) if apart == "heads" else ((1, 1, 3, 16), (0, 0, 2**31, 1))
    x = torch.empty(2**32 + 4096, dtype=torch.bfloat16, device=device).as_strided(shape, strides)
    x.copy_(draw(*shape))
    grad = draw(*shape, dtype=torch.bfloat16, device=device, seed=1)
    agrees(with_grads([x, x, x], grad, impl="triton"), [x.clone()] * 3, grad, (5e-2, 5e-2))


@pytest.mark.parametrize("shape", [(0, 2, 5, 16), (1, 0, 5, 16), (1, 2, 0, 16)])
def test_nothing_to_attend_to(device, design, shape):
    inputs = [torch.randn(shape, device=device, requires_grad=True) for _ in range(3)]
    if not shape[1]:
        inputs[1:] = [torch.randn(1, 1, 5, 16, device=device, requires_grad=True) for _ in range(2)]
    out = linear_attention(*inputs, encoding=Rope(head_dim=16), impl="triton")
    assert out.shape == shape
    for x, grad in zip(inputs, torch.autograd.grad(out.sum(), inputs), strict=True):
        assert grad.shape == x.shape and not grad.any()


@pytest.mark.parametrize("form", ["numerator", "both", "unnormalised"])
def test_a_query_that_sees_no_key_is_zero_without_eps_too(form, device, design):
    inputs = qkv(length=5, device=device)
    mask = torch.tensor([[False, False, True, True, False]], device=device)
    grad = torch.ones_like(inputs[2])
    out, dq, dk, dv = with_grads(inputs, grad, key_mask=mask, eps=0.0, form=form, impl="triton")
    assert not out[:, :, :2].any() and not dq[:, :, :2].any()
    assert not dk[:, :, ~mask[0]].any() and not dv[:, :, ~mask[0]].any()
    agrees([out, dq, dk, dv], inputs, grad, (1e-5, 1e-5), key_mask=mask, eps=0.0, form=form)


def test_nan_stays_nan(device, design):
    for feature in ("elu+1", "relu", "squared_relu", "identity"):
        q, k, v = qkv(length=4, device=device)
        k[0, 0, 2, 3] = float("nan")
        out = linear_attention(q, k, v, feature=feature, impl="triton")
        assert out[:, :, 2:].isnan().all() and not out[:, :, :2].isnan().any(), feature


def operands(device, encoding=True):
    q, k, v = qkv(length=20, heads=(2, 1), device=device)
    cos, sin = (t[None] for t in Rope(head_dim=16).tables(torch.arange(20, device=device)))
    settings = (False, 0, 1, "elu+1", "plain", 1e-6)
    return (q, k, v, cos, sin, None) if encoding else (q, k, v, None, None, None), settings


def test_the_operators_pass_torchs_own_checks(device, design):
    (q, k, v, *rest), settings = operands(device)
    wanted = [x.requires_grad_() for x in (q, k, v)]
    torch.library.opcheck(torch.ops.whorl.linear_forward.default, (*wanted, *rest, *settings))
    with torch.no_grad():
        kept = linear_forward(*wanted, *rest, *settings)
        given = [x.detach() for x in wanted]
        torch.library.opcheck(torch.ops.whorl.linear_backward.default, (kept[0], *given, *rest, *kept, *settings))


def test_compiled_in_one_graph_for_every_length(device, design):
    rope = Rope(head_dim=16)

    def attend(q, k, v):
        return linear_attention(q * 2, k, v, encoding=rope, impl="triton") + 1

    torch._dynamo.reset()
    compiled = torch.compile(attend, fullgraph=True, dynamic=True, backend="aot_eager")
    for length in (17, 40):
        inputs = [x.requires_grad_() for x in qkv(length=length, device=device)]
        got, expected = compiled(*inputs), attend(*inputs)
        assert torch.equal(got, expected)
        for one, other in zip(*(torch.autograd.grad(out.sin().sum(), inputs) for out in (got, expected)), strict=True):
            torch.testing.assert_close(one, other)
    torch._dynamo.reset()


REFUSED = {
    "not causal": ({"causal": False}, "it goes from token to token"),
    "form": ({"form": "one_plus_cosine"}, "it has no form='one_plus_cosine'"),
    "decay": ({"decay": 0.1}, "it has no decay"),
    "xpos": ({"encoding": whorl.XPos(head_dim=16)}, "it has no decay"),
    "chunk": ({"chunk": 16}, "chunk=… is a setting of impl='torch'"),
    "stats": ({"return_stats": True}, "it counts nothing for return_stats=True"),
    "some heads": ({"encoding": Rope(head_dim=16, rotated_heads=(0,))}, "it turns all heads alike, Rope does not"),
    "learned": ({"encoding": Rope(head_dim=16, learnable=True)}, "the tables need gradients"),
    "head dim": ({"encoding": Rope(head_dim=8)}, "Rope is for heads of 8 dimensions, q has 16"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_kernels_cannot_do_is_said(device, name):
    options, reason = REFUSED[name]
    options = {key: value.to(device) if key == "encoding" else value for key, value in options.items()}
    with pytest.raises(WhorlError, match="impl='triton' cannot run here: ") as caught:
        linear_attention(*qkv(length=4, device=device), impl="triton", **options)
    assert reason in str(caught.value) and "Use impl='torch'" in str(caught.value)


def test_other_dtypes_and_dims_are_refused(device):
    with pytest.raises(WhorlError, match=r"it has no torch\.float64"):
        linear_attention(*qkv(length=4, dtype=torch.float64, device=device), impl="triton")
    with pytest.raises(WhorlError, match="it has heads of up to 128 dimensions"):
        linear_attention(*qkv(length=4, dims=(16, 130), device=device), impl="triton")


def test_transforms_and_forward_derivatives_go_by_torch(device):
    q, k, v = qkv(length=6, device=device)
    tangent = draw(1, 1, 6, 16, device=device, seed=7)
    _, expected = torch.func.jvp(lambda x: linear_attention(x, k, v, impl="torch"), (q,), (tangent,))
    _, got = torch.func.jvp(lambda x: linear_attention(x, k, v), (q,), (tangent,))
    assert expected.abs().sum() > 0 and torch.equal(got, expected)
    with pytest.raises(WhorlError, match=r"torch\.func transforms"):
        torch.func.jvp(lambda x: linear_attention(x, k, v, impl="triton"), (q,), (tangent,))


@pytest.mark.gpu
def test_auto_takes_the_kernels_where_they_can_run():
    inputs = qkv(length=300, dims=(64, 64), dtype=torch.bfloat16, device="cuda")
    assert torch.equal(linear_attention(*inputs), linear_attention(*inputs, impl="triton"))
    assert not torch.equal(linear_attention(*inputs), linear_attention(*inputs, impl="torch"))
    linear_attention(*inputs, causal=False)
    linear_attention(*(x.double() for x in inputs))


@pytest.mark.gpu
@pytest.mark.parametrize("encoding", [None, Rope(head_dim=64)], ids=["plain", "rope"])
def test_long_rows_are_as_exact_as_their_rounding(encoding):
    inputs = qkv(length=20_000, heads=(2, 1), dims=(64, 64), dtype=torch.bfloat16, device="cuda")
    grad = draw(1, 2, 20_000, 64, dtype=torch.bfloat16, device="cuda", seed=5)
    agrees(with_grads(inputs, grad, encoding=encoding), inputs, grad, (3e-3, 5e-3), encoding=encoding)


@pytest.mark.gpu
@pytest.mark.parametrize("dim", [64, 128])
def test_nothing_is_compiled_for_a_length(monkeypatch, dim):
    rope, compiled = Rope(head_dim=dim), []

    def attend(length):
        inputs = qkv(length=length, heads=(2, 1), dims=(dim, dim), dtype=torch.bfloat16, device="cuda")
        with_grads(inputs, inputs[0], encoding=rope)

    attend(1000)
    monkeypatch.setattr(knobs.runtime, "jit_post_compile_hook", lambda **details: compiled.append(details))
    for length in (1, 16, 77, 128, 1008, 5000):
        attend(length)
    assert not compiled


@pytest.mark.gpu
def test_more_than_two_to_the_31_elements():
    length = 2**24 + 3
    x = torch.randn(1, 2, length, 64, device="cuda", dtype=torch.bfloat16)
    assert x.numel() > 2**31
    rope = Rope(head_dim=64)
    got = linear_attention(x, x, x, encoding=rope)
    start = length - 40  # the last rows again, from a state that the rows before them make
    state = whorl.LinearState(encoding=rope)
    for begin in range(0, start, 2**20):
        part = x[:, :, begin : min(begin + 2**20, start)].float()
        last = state.step(part, part, part)
    assert last.isfinite().all()
    tail = x[:, :, start:].float()
    expected = state.step(tail, tail, tail)
    error = (got[:, :, start:].float() - expected).square().mean().sqrt() / expected.square().mean().sqrt()
    assert error <= 4e-3  # queries, keys, states and outputs are each rounded once: 1.7e-3 four times over is 3.3e-3


@pytest.mark.gpu
def test_denominators_of_long_texts_are_not_rounded():
    """Sums of keys over a long text are nearly equal in all dimensions: rounded, they would be off by one factor."""
    q, k, v = qkv(length=2**16, dims=(64, 64), dtype=torch.bfloat16, device="cuda")
    rope = Rope(head_dim=64)
    cos, sin = (table[None] for table in rope.tables(torch.arange(2**16, device="cuda")))
    _, scale, _ = linear_forward(q, k, v, cos, sin, None, False, 0, 1, "elu+1", "plain", 1e-6)
    p, r = (torch.nn.functional.elu(x.double()) + 1 for x in (q, k))
    error = scale.double() * ((p * r.cumsum(2)).sum(-1) + 1e-6) - 1
    assert error.square().mean().sqrt() <= 5e-4 and error[..., 2**15 :].mean().abs() <= 1e-4


@pytest.mark.gpu
def test_a_captured_graph_attends_to_what_lies_there_when_it_is_replayed():
    inputs = qkv(length=700, dims=(64, 64), dtype=torch.bfloat16, device="cuda")
    rope = Rope(head_dim=64)
    linear_attention(*inputs, encoding=rope)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = linear_attention(*inputs, encoding=rope)
    inputs[0].copy_(draw(*inputs[0].shape, seed=11))
    graph.replay()
    assert torch.equal(out, linear_attention(*inputs, encoding=rope))
