"""The kernels of the rotation against the torch path: values, gradients, views, odd sizes, memory not to be touched."""

import os
import subprocess
import sys

import pytest
import torch

import whorl
from drawn_rotations import draw, same, tables
from helpers import KERNELS, LAYOUTS
from whorl.errors import WhorlError
from whorl.kernels import ops

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]

SIZES = [  # head_dim, pairs, start, blocks
    (16, 8, 0, 1),
    (80, 40, 0, 1),
    (92, 46, 0, 1),
    (24, 8, 8, 2),
    (20, 3, 5, 1),
    (18, 9, 0, 3),
    (6, 1, 2, 1),
]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("order", "inverse"), [("bhld", False), ("blhd", False), ("bhld", True)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_queries_and_keys_turn_as_by_torch(kernel, poisoned, layout, order, inverse, dtype):
    name, device = kernel
    first = LAYOUTS.index(layout) + DTYPES.index(dtype) + (order == "blhd") + 2 * inverse
    for case in {first % len(SIZES), (first + 3) % len(SIZES)} if name == "triton" and device == "cpu" else range(7):
        dim, pairs, start, blocks = SIZES[case]
        shapes = [(2, heads, 3, dim) if order == "bhld" else (2, 3, heads, dim) for heads in (3, 1)]
        q, k = (draw(*shape, dtype=dtype, device=device, seed=i) for i, shape in enumerate(shapes))
        cos, sin = tables(*[(3,), (2, 3), (2, 3, 3)][case % 3], pairs, dtype=dtype, device=device)
        how = {"inverse": inverse, "start": start, "blocks": blocks, "order": order}
        if cos.ndim == 4:  # angles by head
            same(
                whorl.rotate(q, cos, sin, layout, **how, impl=name),
                whorl.rotate(q, cos, sin, layout, **how, impl="torch"),
            )
            continue
        for got, x in zip(whorl.rotate_qk(q, k, cos, sin, layout, **how, impl=name), (q, k), strict=True):
            same(got, whorl.rotate(x, cos, sin, layout, **how, impl="torch"))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_and_their_gradients_are_those_of_torch(kernel, layout):
    name, device = kernel
    cos, sin = tables(2, 2, dtype=torch.float64, device=device)
    q, k = draw(1, 2, 2, 6, device=device).requires_grad_(), draw(1, 1, 2, 6, device=device, seed=5).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: whorl.rotate(x, cos, sin, layout, start=2, impl=name), q, fast_mode=True)
    assert torch.autograd.gradgradcheck(lambda x: whorl.rotate(x, cos, sin, layout, impl=name), q, fast_mode=True)
    found = {}
    for impl in (name, "torch"):
        turned = whorl.rotate_qk(q, k, cos, sin, layout, inverse=True, impl=impl)
        seeds = [draw(*one.shape, device=device, seed=i) for i, one in enumerate(turned)]
        found[impl] = torch.autograd.grad(turned, (q, k), seeds)
        found[impl] += torch.autograd.grad(whorl.rotate_qk(q, k, cos, sin, layout, impl=impl)[1].sum(), (k,))
    for ours, expected in zip(found[name], found["torch"], strict=True):
        same(ours, expected)


def test_many_gradients_at_once(kernel):
    name, device = kernel
    cos, sin = tables(2, 2, dtype=torch.float64, device=device)
    q, k = draw(1, 2, 2, 4, device=device).requires_grad_(), draw(1, 1, 2, 4, device=device, seed=5).requires_grad_()
    seeds = draw(3, 1, 2, 2, 4, device=device), draw(3, 1, 1, 2, 4, device=device)
    turned = whorl.rotate_qk(q, k, cos, sin, impl=name)
    batched = torch.autograd.grad(turned, (q, k), seeds, is_grads_batched=True, retain_graph=True)
    for i in range(3):
        one_by_one = torch.autograd.grad(turned, (q, k), [seed[i] for seed in seeds], retain_graph=True)
        for got, expected in zip(batched, one_by_one, strict=True):
            same(got[i], expected)


def test_what_torch_adds_to_memory_is_read_with_it(kernel):
    """A sign that is only noted, and zeros that are nowhere: a kernel that reads memory would miss both."""
    name, device = kernel
    cos, sin = tables(3, 2, dtype=torch.float64, device=device)
    x = draw(1, 2, 3, 4, device=device)
    negative = torch.complex(torch.zeros_like(x), -x).conj().imag
    for given in (negative, negative.detach().requires_grad_()):
        assert given.is_neg()
        same(whorl.rotate(given, cos, sin, impl=name), whorl.rotate(x, cos, sin, impl="torch"))
    x.requires_grad_()
    turned = whorl.rotate(x, cos, sin, impl=name)
    (got,) = torch.autograd.grad(turned, x, negative, retain_graph=True)
    (expected,) = torch.autograd.grad(whorl.rotate(x, cos, sin, impl="torch"), x, negative)
    same(got, expected)
    nothing = torch._efficientzerotensor(x.shape, dtype=x.dtype, device=device)
    assert not bool(torch.autograd.grad(turned, x, nothing)[0].any())


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")  # that sizes become constants, as they do in a trace
def test_tracers_see_the_operator(kernel):
    name, device = kernel
    cos, sin = tables(3, 2, dtype=torch.float64, device=device)
    for grad in (False, True):
        x = draw(1, 2, 3, 4, device=device).requires_grad_(grad)
        traced = torch.jit.trace(lambda x: whorl.rotate(x, cos, sin, impl=name), x, check_trace=False)
        other = draw(1, 2, 3, 4, device=device, seed=7)
        same(traced(other), whorl.rotate(other, cos, sin, impl="torch"))


def test_a_backward_pass_sees_what_was_written_into(kernel):
    name, device = kernel
    cos, sin = tables(3, 2, dtype=torch.float64, device=device)
    memory, weight = (
        draw(1, 2, 3, 4, device=device),
        torch.ones((), device=device, dtype=torch.float64).requires_grad_(),
    )
    loss = (weight * memory).sum()
    with torch.no_grad():
        whorl.rotate(memory, cos, sin, out=memory, impl=name)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_one_token_takes_its_row_of_its_own_tables(kernel):
    name, device = kernel
    x = draw(3, 2, 1, 8, device=device)
    for shape in ((3, 5, 4), (1, 5, 4), (5, 4), (3, 2, 5, 4)):
        cos, sin = tables(*shape, dtype=torch.float64, device=device)
        for rows in (torch.tensor([[1], [4], [2]], device=device), torch.tensor([3], device=device)):
            same(whorl.rotate(x, cos, sin, rows=rows, impl=name), whorl.rotate(x, cos, sin, rows=rows, impl="torch"))


def views(device, dtype):
    """Tensors (2, 3, 5, 8) in bhld order that lie in memory in every way, each with NaN in the gaps around."""
    qkv = draw(2, 5, 3, 3, 8, device=device, dtype=dtype)
    yield "packed qkv", qkv[:, :, 1].transpose(1, 2)
    padded = torch.full((2, 3, 7, 11), float("nan"), device=device, dtype=dtype)
    inside = padded[:, :, 1:6, 2:10]
    inside.copy_(draw(2, 3, 5, 8, device=device))
    yield "inside padding", inside
    yield "dimensions apart", draw(2, 3, 5, 16, device=device, dtype=dtype)[..., ::2]
    yield "dimensions last in memory", draw(8, 5, 3, 2, device=device, dtype=dtype).permute(3, 2, 1, 0)
    yield "one row for all", draw(1, 1, 1, 8, device=device, dtype=dtype).expand(2, 3, 5, 8)
    yield "not aligned", draw(2 * 3 * 5 * 8 + 1, device=device, dtype=dtype)[1:].view(2, 3, 5, 8)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_views_are_read_where_they_lie(kernel, poisoned, layout):
    name, device = kernel
    for dtype in (torch.float32, torch.bfloat16):
        cos, sin = tables(2, 5, 3, dtype=dtype, device=device)
        cos, sin = cos.transpose(1, 2).contiguous().transpose(1, 2), sin  # of unlike strides
        for what, x in views(device, dtype):
            expected = whorl.rotate(x, cos, sin, layout, start=1, impl="torch")
            got = whorl.rotate(x, cos, sin, layout, start=1, impl=name)
            assert not bool(got.isnan().any()), what
            same(got, expected)


def test_tokens_of_packed_documents_take_the_rows_they_name(kernel):
    name, device = kernel
    cos, sin = tables(9, 4, dtype=torch.float32, device=device)
    ids = whorl.packed(cu_seqlens=[0, 3, 7], offsets=[0, 5], total=7).to(device)
    x = draw(7, 2, 8, dtype=torch.float32, device=device)
    got = whorl.rotate(x, cos, sin, order="thd", rows=ids, impl=name)
    same(got, whorl.rotate(x, cos[ids], sin[ids], order="thd", impl="torch"))
    same(got, whorl.rotate(x, cos, sin, order="thd", rows=ids, impl="torch"))
    batched = torch.stack((ids, ids.flip(0))).int()
    x = draw(2, 3, 7, 8, dtype=torch.float32, device=device)
    for tables_ in ((cos, sin), (cos.expand(2, 9, 4), sin.expand(2, 9, 4)), (cos.expand(2, 3, 9, 4),) * 2):
        got = whorl.rotate(x, *tables_, rows=batched, impl=name)
        same(got, whorl.rotate(x, *tables_, rows=batched, impl="torch"))
        same(
            got[1],
            whorl.rotate(
                x[1],
                *(t[1, 0] if t.ndim == 4 else t[..., :9, :].reshape(-1, 9, 4)[-1] for t in tables_),
                rows=ids.flip(0),
                impl="torch",
            ),
        )


def test_a_row_that_is_not_there_gives_nan_and_not_a_neighbour(kernel):
    name, device = kernel
    cos, sin = tables(4, 2, dtype=torch.float32, device=device)
    x = draw(4, 6, dtype=torch.float32, device=device)
    ids = torch.tensor([0, 4, -1, 3], device=device)
    for impl in (name, "torch"):
        got = whorl.rotate(x, cos, sin, rows=ids, impl=impl)
        assert got[[1, 2], :4].isnan().all() and not got[[0, 3]].isnan().any()
        assert torch.equal(got[:, 4:], x[:, 4:])


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_in_place_and_into_given_memory(kernel, layout):
    name, device = kernel
    cos, sin = tables(5, 3, dtype=torch.float32, device=device)
    x = draw(2, 3, 5, 8, dtype=torch.float32, device=device)
    expected, before = whorl.rotate(x, cos, sin, layout, start=2, impl="torch"), x.clone()
    room = torch.full((2, 3, 5, 16), float("nan"), device=device)
    got = whorl.rotate(x, cos, sin, layout, start=2, out=room[..., 4:12], impl=name)
    same(got, expected)
    assert got.data_ptr() == room[..., 4:].data_ptr() and torch.equal(x, before)
    assert room[..., :4].isnan().all() and room[..., 12:].isnan().all()
    whorl.rotate(x, cos, sin, layout, start=2, out=x, impl=name)
    same(x, expected)


@pytest.mark.parametrize("shape", [(0, 3, 5, 8), (2, 0, 5, 8), (2, 3, 0, 8)])
def test_nothing_to_rotate(kernel, shape):
    name, device = kernel
    cos, sin = tables(shape[2], 4, dtype=torch.float32, device=device)
    x = draw(*shape, dtype=torch.float32, device=device).requires_grad_()
    got = whorl.rotate(x, cos, sin, impl=name)
    assert got.shape == shape
    got.sum().backward()
    assert x.grad.shape == shape


def test_strides_beyond_32_bits(kernel):
    """Two heads 2^32 elements apart, of memory that is never touched between them."""
    name, device = kernel
    apart = 2**32
    far = torch.empty(apart + 4096, dtype=torch.bfloat16, device=device)
    x = far.as_strided((1, 2, 3, 8), (0, apart, 8, 1))
    x.copy_(draw(1, 2, 3, 8))
    cos, sin = tables(3, 4, dtype=torch.bfloat16, device=device)
    same(whorl.rotate(x, cos, sin, impl=name), whorl.rotate(x.clone(), cos, sin, impl="torch"))
    whorl.rotate(x.clone(), cos, sin, out=x, impl=name)
    same(x, whorl.rotate(draw(1, 2, 3, 8, dtype=torch.bfloat16, device=device), cos, sin, impl="torch"))


@pytest.mark.parametrize(
    "limits", [{"MOST_TABLE": 1}, {"MOST_TILES": 2}, {"MOST_TABLE": 200, "MOST_TILES": 3}], ids=str
)
@pytest.mark.parametrize("order", ["bhld", "blhd"])
@pytest.mark.parametrize("kernel", [one for one in KERNELS if one.id != "numba"], indirect=True)
def test_groups_of_tokens_and_more_rows_than_an_axis_of_a_grid_has(kernel, poisoned, monkeypatch, limits, order):
    """Both begin at sizes that are slow to test: here they begin at once."""
    from whorl.kernels import rotate_triton
    from whorl.plans import PLANS

    name, device = kernel
    monkeypatch.setattr(PLANS, "_used", {})
    monkeypatch.setattr(PLANS, "_before", {})
    for what, limit in limits.items():
        monkeypatch.setattr(rotate_triton, what, limit)
    shape = (3, 2, 43, 16) if order == "bhld" else (3, 43, 2, 16)
    x = draw(*shape, dtype=torch.float32, device=device)
    cos, sin = tables(3, 43, 8, dtype=torch.float32, device=device)
    same(
        whorl.rotate(x, cos, sin, "half", order=order, impl=name),
        whorl.rotate(x, cos, sin, "half", order=order, impl="torch"),
    )


@pytest.mark.gpu
@pytest.mark.parametrize("order", ["bhld", "blhd"])
def test_more_batch_rows_than_an_axis_of_a_grid_has(order):
    x = draw(70_000, 2, 2, 16, dtype=torch.float32, device="cuda")
    cos, sin = tables(2, 8, dtype=torch.float32, device="cuda")
    same(
        whorl.rotate(x, cos, sin, "half", order=order, impl="triton"),
        whorl.rotate(x, cos, sin, "half", order=order, impl="torch"),
    )


@pytest.mark.gpu
def test_more_than_two_to_the_31_elements():
    x = torch.randn(1, 8, 2**21 + 3, 144, device="cuda", dtype=torch.bfloat16)
    assert x.numel() > 2**31
    cos, sin = whorl.Rope(head_dim=144).tables(torch.arange(x.shape[2], device="cuda"))
    got = whorl.rotate(x, cos, sin, impl="triton")
    for some in (slice(0, 9), slice(-9, None)):
        same(got[:, -1, some], whorl.rotate(x[:, -1, some], cos[some], sin[some], impl="torch"))


def test_the_operators_pass_torchs_own_checks(kernel):
    name, device = kernel
    cos, sin = tables(4, 3, dtype=torch.float32, device=device)
    q, k = draw(2, 2, 4, 8, dtype=torch.float32, device=device), draw(2, 1, 4, 8, dtype=torch.float32, device=device)
    how = ("bhld", "interleaved", "half", 1, 1, False, False, name)
    rows = torch.arange(4, device=device)
    for ids, grad in ((None, True), (rows, False)):
        x, y = q.clone().requires_grad_(grad), k.clone().requires_grad_(grad)
        torch.library.opcheck(torch.ops.whorl.rotate.default, (x, cos, sin, ids, *how))
        torch.library.opcheck(torch.ops.whorl.rotate_qk.default, (x, y, cos, sin, ids, *how))
    torch.library.opcheck(torch.ops.whorl.rotate_into.default, (torch.empty_like(q), q, cos, sin, None, *how))


def test_compiled_in_one_graph_for_every_length(kernel):
    name, device = kernel

    def both(q, k, cos, sin):
        q, k = whorl.rotate_qk(q * 2, k * 2, cos, sin, impl=name)
        return q + 1, k + 1

    torch._dynamo.reset()
    compiled = torch.compile(both, fullgraph=True, dynamic=True)
    for length in (3, 5, 9):
        cos, sin = tables(length, 4, dtype=torch.float32, device=device)
        q = draw(2, 2, length, 8, dtype=torch.float32, device=device).requires_grad_()
        k = draw(2, 1, length, 8, dtype=torch.float32, device=device).requires_grad_()
        got, expected = compiled(q, k, cos, sin), both(q, k, cos, sin)
        for one, other in zip(got, expected, strict=True):
            same(one.detach(), other.detach())
        grads = [torch.autograd.grad(sum(t.square().sum() for t in out), (q, k)) for out in (got, expected)]
        for one, other in zip(*grads, strict=True):
            same(one, other)


def test_transforms_and_forward_derivatives_go_by_torch(kernel):
    name, device = kernel
    cos, sin = tables(4, 4, dtype=torch.float64, device=device)
    x, tangent = draw(2, 4, 8, device=device), draw(2, 4, 8, device=device, seed=3)
    expected = whorl.rotate(tangent, cos, sin, impl="torch")
    value, pushed = torch.func.jvp(lambda t: whorl.rotate(t, cos, sin), (x,), (tangent,))
    same(pushed, expected)
    with torch.autograd.forward_ad.dual_level():
        dual = whorl.rotate(torch.autograd.forward_ad.make_dual(x, tangent), cos, sin)
        same(torch.autograd.forward_ad.unpack_dual(dual).tangent, expected)
    same(torch.func.vmap(lambda t: whorl.rotate(t, cos, sin))(x), value)
    same(torch.func.grad(lambda t: (whorl.rotate(t, cos, sin) * x).sum())(x), whorl.rotate(x, cos, -sin, impl="torch"))
    with pytest.raises(WhorlError, match=f"impl='{name}' cannot run here: torch.func transforms"):
        torch.func.jvp(lambda t: whorl.rotate(t, cos, sin, impl=name), (x,), (tangent,))


def test_tables_that_need_gradients_go_by_torch(kernel):
    name, device = kernel
    cos, sin = tables(4, 4, dtype=torch.float64, device=device)
    x = draw(2, 4, 8, device=device)
    cos.requires_grad_()
    whorl.rotate(x, cos, sin).sum().backward()
    assert cos.grad.abs().sum() > 0
    with pytest.raises(WhorlError, match="the tables need gradients"):
        whorl.rotate(x, cos, sin, impl=name)


def test_what_cannot_be_written_into_is_refused(kernel):
    name, device = kernel
    cos, sin = tables(4, 4, dtype=torch.float32, device=device)
    x = draw(4, 8, dtype=torch.float32, device=device)
    with pytest.raises(WhorlError, match="out must be of shape"):
        whorl.rotate(x, cos, sin, out=x[:3], impl=name)
    with pytest.raises(WhorlError, match="out= keeps no gradient"):
        whorl.rotate(x.clone().requires_grad_(), cos, sin, out=x, impl=name)
    with pytest.raises(WhorlError, match="not in place"):
        whorl.rotate(x, cos, sin, "interleaved_to_half", out=x, impl=name)
    with pytest.raises(WhorlError, match="rows must be integers"):
        whorl.rotate(x, cos, sin, rows=torch.arange(3, device=device), impl=name)
    with pytest.raises(WhorlError, match="one dtype, batch, length and head_dim"):
        whorl.rotate_qk(x, x.double(), cos, sin, impl=name)


def test_a_call_seen_before_is_still_checked(kernel):
    """What is kept ready for a kind of call must not serve another kind."""
    name, device = kernel
    cos, sin = tables(4, 4, dtype=torch.float32, device=device)
    x = draw(4, 8, dtype=torch.float32, device=device)
    for _ in range(2):
        whorl.rotate(x, cos, sin, impl=name)
    with pytest.raises(WhorlError, match="tables are for 4 positions"):
        whorl.rotate(x[:3], cos, sin, impl=name)
    same(whorl.rotate(x, cos, sin, inverse=True, impl=name), whorl.rotate(x, cos, sin, inverse=True, impl="torch"))
    same(whorl.rotate(x, cos.double(), sin, impl=name), whorl.rotate(x, cos.double(), sin, impl="torch"))
    assert ops.TURN


def test_the_choice_can_be_asked_for(kernel):
    name, device = kernel
    cos, sin = tables(4, 4, dtype=torch.float32, device=device)
    x = draw(4, 8, dtype=torch.float32, device=device)
    assert whorl.explain_rotate(x, cos, sin, impl=name) == name
    assert whorl.explain_rotate(x, cos, sin) == ("triton" if device == "cuda" else "numba")


@pytest.mark.gpu
def test_a_captured_graph_turns_what_lies_there_when_it_is_replayed():
    cos, sin = tables(1, 64, dtype=torch.bfloat16, device="cuda")
    q, k = (
        draw(8, 4, 1, 128, dtype=torch.bfloat16, device="cuda"),
        draw(8, 2, 1, 128, dtype=torch.bfloat16, device="cuda"),
    )
    whorl.rotate_qk(q, k, cos, sin)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        turned = whorl.rotate_qk(q, k, cos, sin)
    q.copy_(draw(8, 4, 1, 128, seed=7))
    graph.replay()
    same(turned[0], whorl.rotate(q, cos, sin, impl="torch"))


WITHOUT = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("triton", "numba"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocked())
import torch, whorl
cos, sin = whorl.Rope(head_dim=8).tables(whorl.positions(3))
x = torch.randn(3, 8)
print(whorl.explain_rotate(x, cos, sin))
assert torch.equal(whorl.rotate(x, cos, sin), whorl.rotate(x, cos, sin, impl="torch"))
for impl in ("numba", "triton"):
    try:
        whorl.rotate(x, cos, sin, impl=impl)
    except whorl.WhorlError as error:
        print(error)
"""


def said_by(code, **env):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **env})
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_without_numba_and_triton_everything_runs_on_torch_and_says_so():
    auto, numba, triton = said_by(WITHOUT)
    assert auto.startswith("torch: numba cannot run here, No module named 'numba'")
    assert 'pip install "whorl[cpu]"' in numba and 'pip install "whorl[triton]"' in triton


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_triton_says_so():
    code = WITHOUT[: WITHOUT.index("class Blocked")] + WITHOUT[WITHOUT.index("import torch") :]
    _, error = said_by(code, TRITON_INTERPRET="0")
    assert error == "impl='triton' cannot run here: no CUDA device. Use impl='torch', or run `whorl doctor`."
