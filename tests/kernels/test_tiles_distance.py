"""Attention by tiles with biases by distance against the reference in float64: values, gradients, windows."""

import math

import pytest
import torch

import whorl
from helpers import draw, qkv
from whorl.encodings.kerple import held_within
from whorl.plans import PLANS

pytest.importorskip("triton")

from whorl.kernels.tiles.biases import line
from whorl.kernels.tiles.op import Settings, tiles_attention

pytestmark = pytest.mark.usefixtures("small_tiles")

# rms(error) / rms(expected) of outputs, of gradients, and of those of learned numbers, which are sums over all pairs
# that nearly cancel. The interpreter cuts bfloat16 off where a GPU rounds.
BOUNDS = {
    ("cpu", torch.float32): (1e-6, 3e-6, 1e-5),
    ("cpu", torch.bfloat16): (8e-3, 1.5e-2, 3e-4),
    ("cpu", torch.float16): (6e-4, 1e-3, 1e-5),
    ("cuda", torch.float32): (3e-6, 3e-6, 5e-5),
    ("cuda", torch.bfloat16): (2.5e-3, 5e-3, 3e-4),
    ("cuda", torch.float16): (4e-4, 1e-3, 5e-5),
}


def no_bias(encoding, keys):
    return {}


def line_of(encoding, keys):
    return {"kind": "line", "numbers": encoding.slopes()[:, None].float()}


def kerple_of(encoding, keys):
    p, a = held_within(encoding.p, 0.01, 2.0), held_within(encoding.a, 0.01)
    return {"kind": encoding.config.variant, "numbers": torch.stack([p, a], 1)}


def table_of(encoding, keys, farthest=None, lowest=0):
    """The biases at all distances up to the farthest, from the formula itself."""
    distances = torch.arange(lowest, keys if farthest is None else farthest + 1)
    numbers = encoding.bias_of(torch.arange(encoding.heads)[:, None], distances)
    return {"kind": "table", "numbers": numbers.float(), "lowest": lowest}


def short_table_of(encoding, keys):
    return table_of(encoding, keys, farthest=encoding.last_edge)


def t5(**settings):
    return whorl.T5(heads=2, buckets=8, max_distance=20, **settings)


def seeded(build):
    torch.manual_seed(3)
    encoding = build()
    for parameter in encoding.parameters():
        parameter.data.uniform_(0.1, 1.5)
    return encoding


BIASES = {
    "none": (whorl.NoPE, no_bias),
    "line": (lambda: whorl.Alibi(heads=2, slopes=(0.5, 0.05)), line_of),
    "log": (lambda: whorl.Kerple(heads=2), kerple_of),
    "power": (lambda: whorl.Kerple(heads=2, variant="power"), kerple_of),
    "table": (lambda: whorl.Kerple(heads=2), table_of),
    "sandwich": (lambda: whorl.build("sandwich", heads=2, code_width=16), table_of),
    "buckets": (t5, short_table_of),
}

SHAPE = (1, 2, 1, 37, 53, 16, 24)


def outcome(attend, inputs, parameters, grads):
    out, lse = attend(*inputs)
    found = torch.autograd.grad([out, lse], [*inputs, *parameters], grads)
    return [out.detach(), lse.detach(), *found]


def agree(got, expected, dtype, device):
    names = {"out": 0, "lse": 0, "dq": 1, "dk": 1, "dv": 1, "a number": 2, "another": 2}
    for name, one, other in zip(names, got, expected, strict=False):
        assert one.shape == other.shape and bool(one.isfinite().all()), name
        one, other = one.cpu(), other.cpu()  # learned numbers lie where their encoding was made
        error = (one.double() - other).norm() / other.norm()
        assert error <= BOUNDS[device, dtype][names[name]] or (one == other).all(), (name, float(error))


def check(bias, shape, device, dtype=torch.float32, causal=True, softcap=None, window=None, **options):
    """Output, log-sum-exp and all gradients of one call against the reference."""
    build, numbers_of = BIASES[bias] if isinstance(bias, str) else bias
    encoding = seeded(build)
    inputs = [x.requires_grad_() for x in qkv(*shape, dtype=dtype, device=device)]
    grads = [draw(*shape[:2], shape[3], shape[6], dtype=dtype, device=device, seed=4)]
    grads.append(draw(*shape[:2], shape[3], device=device, seed=5))
    parameters = list(encoding.parameters())
    if window is not None:
        options |= {"before": window.config.size - 1, "first": getattr(window.config, "count", 0)}

    def by_tiles(q, k, v):
        given = numbers_of(encoding, shape[4])
        given |= {"numbers": given["numbers"].to(device)} if given else {}
        return tiles_attention(q, k, v, scale=0.3, cap=softcap or 0.0, causal=causal, **given, **options)

    got = outcome(by_tiles, inputs, parameters, grads)
    full = encoding if window is None else whorl.Combined(encoding, window)
    encoding.to(device, torch.float64)

    def by_definition(q, k, v):
        return whorl.attention(
            q, k, v, encoding=full, scale=0.3, softcap=softcap, causal=causal, return_lse=True, impl="torch"
        )

    wide = [x.detach().double().requires_grad_() for x in inputs]
    expected = outcome(by_definition, wide, list(encoding.parameters()), [grad.double() for grad in grads])
    agree(got, expected, dtype, device)


@pytest.mark.parametrize("bias", BIASES)
def test_it_is_the_reference(bias, device, poisoned):
    check(bias, SHAPE, device)


@pytest.mark.parametrize("bias", ["none", "log", "buckets"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(bias, dtype, device, poisoned):
    check(bias, SHAPE, device, dtype)


SHAPES = [  # batch, heads, key heads, queries, keys, dim, value dim
    (2, 2, 2, 33, 33, 16, 16),
    (1, 2, 1, 1, 45, 64, 64),
    (1, 2, 2, 64, 64, 32, 8),
    (1, 2, 2, 1, 1, 16, 16),
    (1, 2, 1, 20, 40, 96, 130),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_odd_sizes(shape, device, poisoned):
    check("buckets", shape, device)


@pytest.mark.gpu
@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("dims", [(64, 64), (96, 96), (128, 128), (128, 64), (256, 256)], ids=str)
def test_long_inputs_on_a_gpu(bias, dtype, dims):
    check(bias, (2, 2, 1, 500, 711, *dims), "cuda", dtype)


@pytest.mark.parametrize("bias", ["none", "line", "buckets"])
@pytest.mark.parametrize(
    "window",
    [whorl.Window(size=1), whorl.Window(size=23), whorl.Sinks(size=23, count=3), whorl.Sinks(size=9, count=20)],
    ids=str,
)
def test_windows_and_sinks(bias, window, device, poisoned):
    check(bias, (1, 2, 1, 60, 73, 16, 16), device, window=window)


@pytest.mark.parametrize("bias", ["none", "log", "table"])
def test_not_causal(bias, device, poisoned):
    build, numbers_of = BIASES[bias]
    if bias == "table":
        numbers_of = lambda encoding, keys: table_of(encoding, keys, lowest=1 - keys)  # noqa: E731
    check((build, numbers_of), SHAPE, device, causal=False)


def test_both_ends_of_a_table_are_held(device):
    def numbers_of(encoding, keys):
        return table_of(encoding, keys, farthest=encoding.last_edge, lowest=-encoding.last_edge)

    check((lambda: t5(bidirectional=True), numbers_of), SHAPE, device, causal=False)


@pytest.mark.parametrize("bias", ["line", "log", "buckets"])
def test_softcap(bias, device):
    check(bias, SHAPE, device, softcap=1.5)


@pytest.mark.parametrize("bias", ["log", "buckets"])
def test_softcap_of_learned_numbers_in_half_precision(bias, device, poisoned):
    check(bias, SHAPE, device, torch.float16, softcap=1.5)


def test_heads_of_a_token_may_lie_together(device):
    """As projections leave them; the output and the gradients lie like the queries, keys and values."""
    q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for x in qkv(*SHAPE, device=device))
    out, _ = tiles_attention(q, k, v, scale=0.3)
    assert out.transpose(1, 2).is_contiguous()
    plain = [x.detach().contiguous().requires_grad_() for x in (q, k, v)]
    expected, _ = tiles_attention(*plain, scale=0.3)
    assert expected.is_contiguous()
    torch.testing.assert_close(out, expected, rtol=0, atol=5e-6)
    grad = draw(*out.shape, device=device, seed=6)
    for one, other in zip(
        torch.autograd.grad(out, (q, k, v), grad), torch.autograd.grad(expected, plain, grad), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)


def test_what_a_line_hides_is_not_read(device):
    """Values that are NaN would show, and so would their gradients."""
    q, k, v = qkv(1, 2, 1, 16, 200, 16, 16, device=device)
    slopes = torch.tensor([[1.0], [0.9]], device=device)
    expected, _ = tiles_attention(q, k, v, scale=0.25, kind="line", numbers=slopes)
    v[:, :, :96] = math.nan
    inputs = [x.requires_grad_() for x in (q, k, v)]
    out, _ = tiles_attention(*inputs, scale=0.25, kind="line", numbers=slopes)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-6)
    dq, dk, dv = torch.autograd.grad(out.sum(), inputs)
    assert bool(dq.isfinite().all()) and bool(dv.isfinite().all())
    assert not bool(dk[:, :, :64].any()) and not bool(dv[:, :, :64].any())
    # long keys and queries could weigh anything, wherever they are
    assert bool(tiles_attention(6 * q, 6 * k, v, scale=0.25, kind="line", numbers=slopes)[0].isnan().all())


@pytest.mark.parametrize("norm", [1.0, 5.0])
def test_skipping_changes_nothing(norm, device, monkeypatch):
    q, k, v = (x.requires_grad_() for x in qkv(1, 2, 1, 40, 113, 16, 16, device=device))
    slopes = torch.tensor([[0.9], [0.05]], device=device)
    found = []
    for margin in (line.MARGIN, 1e9):
        monkeypatch.setattr(line, "MARGIN", margin)
        PLANS.cache_clear()
        out, lse = tiles_attention(norm * q, norm * k, v, scale=0.25, kind="line", numbers=slopes)
        found.append((out, lse, *torch.autograd.grad(out.square().sum(), (q, k, v))))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=5e-6 * float(other.detach().abs().max()))


def test_the_order_of_heads_changes_nothing(device):
    inputs = qkv(1, 4, 2, 20, 20, 16, 16, device=device)
    slopes = torch.tensor([[0.5], [0.01], [0.2], [0.1]], device=device)
    order = torch.tensor([1, 3, 2, 0], dtype=torch.int32, device=device)
    one, other = (
        tiles_attention(*inputs, scale=0.25, kind="line", numbers=slopes, order=given)[0] for given in (None, order)
    )
    assert torch.equal(one, other)


@pytest.mark.parametrize("shape", [(0, 2, 2, 5, 5, 16, 16), (1, 2, 2, 0, 5, 16, 16)], ids=str)
def test_nothing_to_attend(shape, device):
    inputs = [x.requires_grad_() for x in qkv(*shape, device=device)]
    out, lse = tiles_attention(*inputs, scale=0.25)
    assert out.shape == (*shape[:2], shape[3], shape[6]) and lse.shape == out.shape[:3]
    assert not any(bool(grad.any()) for grad in torch.autograd.grad(out.sum(), inputs))


def test_it_compiles_in_one_graph_for_all_lengths(device):
    table = draw(2, 9, device=device, seed=7).requires_grad_()

    @torch.compile(fullgraph=True, backend="aot_eager", dynamic=True)
    def compiled(q, k, v, table):
        return tiles_attention(q, k, v, scale=0.3, kind="table", numbers=table)[0]

    for keys in (20, 33):
        inputs = [x.requires_grad_() for x in qkv(1, 2, 2, keys, keys, 16, 16, device=device)]
        expected, _ = tiles_attention(*inputs, scale=0.3, kind="table", numbers=table)
        got = compiled(*inputs, table)
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-6)
        grads = [torch.autograd.grad(out.square().sum(), [*inputs, table]) for out in (got, expected)]
        for one, other in zip(*grads, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-5)


def test_the_operators_are_registered_right(device):
    q, k, v = (x.requires_grad_() for x in qkv(1, 2, 1, 5, 9, 16, 8, device=device))
    numbers = torch.tensor([[0.5], [0.1]], device=device).requires_grad_()
    settings = Settings(kind="line", scale=0.25)
    given = (q, k, v, numbers, None, None, None, None, *settings)
    torch.library.opcheck(torch.ops.whorl.tiles_forward.default, given)
