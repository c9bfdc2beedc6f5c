"""Rotation fused with the norm before it, and with the writes of a decoding step, against the plain way."""

import pytest
import torch
from torch.nn.functional import rms_norm

import whorl
from drawn_rotations import draw, same, tables
from helpers import LAYOUTS
from whorl.errors import WhorlError
from whorl.kernels import append, norm_rotate  # noqa: F401 (their operators)


def impls(name):
    return ("torch", "triton") if name == "triton" else ("torch",)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("order", "dtype"), [("bhld", torch.float32), ("blhd", torch.bfloat16)])
def test_norm_and_rotation(kernel, poisoned, layout, order, dtype):
    name, device = kernel
    for dim, pairs, start, blocks in [(16, 8, 0, 1), (14, 4, 3, 2)]:
        shapes = [(2, heads, 3, dim) if order == "bhld" else (2, 3, heads, dim) for heads in (3, 1)]
        q, k = (draw(*shape, dtype=dtype, device=device, seed=i) for i, shape in enumerate(shapes))
        weights = [draw(dim, dtype=torch.float32, device=device, seed=i) for i in (5, 6)]
        cos, sin = tables(2, 3, pairs, dtype=dtype, device=device)
        how = {"start": start, "blocks": blocks, "order": order}
        for impl in impls(name):
            got = whorl.norm_rotate_qk(q, k, cos, sin, *weights, layout, eps=1e-5, **how, impl=impl)
            for one, x, weight in zip(got, (q, k), weights, strict=True):
                normed = rms_norm(x.double(), (dim,), weight.double(), 1e-5)
                same(one, whorl.rotate(normed, cos.double(), sin.double(), layout, **how, impl="torch").to(dtype))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_of_norm_and_rotation(kernel, layout):
    name, device = kernel
    ids = torch.tensor([2, 0, 1], device=device)
    cos, sin = tables(3, 2, dtype=torch.float64, device=device)
    given = [draw(1, 9, 3, 6, device=device), draw(1, 1, 3, 6, device=device, seed=1)]
    given += [draw(6, device=device, seed=2), draw(6, device=device, seed=3)]
    found = {}
    for impl in (*impls(name), "expected"):
        q, k, q_weight, k_weight = inputs = [one.clone().requires_grad_() for one in given]
        if impl == "expected":
            out = whorl.rotate_qk(
                rms_norm(q, (6,), q_weight, 1e-6),
                rms_norm(k, (6,), k_weight, 1e-6),
                cos,
                sin,
                layout,
                start=1,
                rows=ids,
            )
        else:
            out = whorl.norm_rotate_qk(q, k, cos, sin, q_weight, k_weight, layout, start=1, rows=ids, impl=impl)
        seeds = [draw(*one.shape, device=device, seed=i) for i, one in enumerate(out)]
        found[impl] = torch.autograd.grad(out, inputs, seeds)
    for impl in impls(name):
        for got, expected in zip(found[impl], found["expected"], strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)  # rsqrt is a float32 one on some devices


def test_a_gradient_of_the_gradient_of_norm_and_rotation_is_never_silently_missing(kernel):
    name, device = kernel
    cos, sin = tables(3, 2, dtype=torch.float64, device=device)
    q, k = draw(1, 2, 3, 4, device=device).requires_grad_(), draw(1, 1, 3, 4, device=device, seed=1)
    weight = torch.ones(4, device=device, dtype=torch.float64)
    for impl in impls(name):
        out, _ = whorl.norm_rotate_qk(q, k, cos, sin, weight, weight, impl=impl)
        (slope,) = torch.autograd.grad(out.sin().sum(), q, create_graph=True)
        if impl == "torch":
            assert bool(torch.autograd.grad(slope.square().sum(), q)[0].any())
        else:
            with pytest.raises(WhorlError, match="no gradient of its gradient"):
                torch.autograd.grad(slope.square().sum(), q)


@pytest.mark.parametrize("order", ["bhld", "blhd", "thd"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_decoding_step_writes_its_slots_and_no_other(kernel, order, layout):
    name, device = kernel
    batch, slots = (1, torch.tensor([4, -1, 0])) if order == "thd" else (2, torch.tensor([[4, -1, 0], [1, 2, 3]]))
    slots = slots.to(device)

    def shaped(heads, length, dim, seed):
        x = draw(batch, heads, length, dim, dtype=torch.bfloat16, device=device, seed=seed)
        return x if order == "bhld" else x.transpose(1, 2) if order == "blhd" else x[0].transpose(0, 1)

    q, k, v = shaped(3, 3, 12, 0), shaped(2, 3, 12, 1), shaped(2, 3, 5, 2)
    cos, sin = tables(*(() if order == "thd" else (2,)), 3, 5, dtype=torch.bfloat16, device=device)
    for impl in impls(name):
        keys, values = shaped(2, 6, 12, 3).clone(), shaped(2, 6, 5, 4).clone()
        before = keys.clone(), values.clone()
        got = whorl.rotate_append(q, k, v, cos, sin, keys, values, slots, layout, start=1, order=order, impl=impl)
        same(got, whorl.rotate(q, cos, sin, layout, start=1, order=order, impl="torch"))
        turned = whorl.rotate(k, cos, sin, layout, start=1, order=order, impl="torch")
        length_first = {"bhld": (0, 2, 1, 3), "blhd": (0, 1, 2, 3)}
        for cache, new, old in ((keys, turned, before[0]), (values, v, before[1])):
            cache, new, old = (t[None] if order == "thd" else t.permute(length_first[order]) for t in (cache, new, old))
            for row in range(batch):
                taken = slots if order == "thd" else slots[row]
                for token, slot in enumerate(taken.tolist()):
                    if slot >= 0:
                        same(cache[row, slot], new[row, token])
                others = [s for s in range(6) if s not in taken.tolist()]
                assert torch.equal(cache[row, others], old[row, others])


def test_a_slot_that_is_not_there_is_not_lost_in_silence(kernel):
    _, device = kernel
    q = k = v = draw(1, 1, 2, 8, dtype=torch.float32, device=device)
    cos, sin = tables(2, 4, dtype=torch.float32, device=device)
    keys, values = torch.zeros(2, 1, 1, 4, 8, device=device)
    slots = torch.tensor([1, 4], device=device)
    if device == "cpu":
        with pytest.raises(WhorlError, match="slots must be below the 4 slots there are, got 4"):
            whorl.rotate_append(q, k, v, cos, sin, keys, values, slots)
    else:
        got = whorl.rotate_append(q, k, v, cos, sin, keys, values, slots)
        assert got[0, 0, 1].isnan().all() and not got[0, 0, 0].isnan().any()
        assert not keys[:, :, [0, 2, 3]].any()


def test_misuse_is_named(kernel):
    _, device = kernel
    x = draw(1, 1, 2, 8, dtype=torch.float32, device=device)
    cos, sin = tables(2, 4, dtype=torch.float32, device=device)
    cache, slots = torch.zeros(1, 1, 4, 8, device=device), torch.tensor([0, 1], device=device)
    with pytest.raises(WhorlError, match=r"q_weight must be a tensor \(8,\)"):
        whorl.norm_rotate_qk(x, x, cos, sin, torch.ones(4, device=device), torch.ones(8, device=device))
    with pytest.raises(WhorlError, match=r"keys must be torch\.float32 of shape"):
        whorl.rotate_append(x, x, x, cos, sin, cache.bfloat16(), cache, slots)
    with pytest.raises(WhorlError, match="slots must be integers of shape"):
        whorl.rotate_append(x, x, x, cos, sin, cache, cache, slots[:1])
    with pytest.raises(WhorlError, match="keys have 4 slots and values 3"):
        whorl.rotate_append(x, x, x, cos, sin, cache, cache[:, :, :3], slots)


def test_the_fused_operators_pass_torchs_own_checks(kernel):
    name, device = kernel
    if name != "triton":
        pytest.skip("there is no such kernel")
    q, k = draw(1, 2, 2, 8, dtype=torch.float32, device=device), draw(1, 1, 2, 8, dtype=torch.float32, device=device)
    cos, sin = tables(2, 4, dtype=torch.float32, device=device)
    weight = torch.ones(8, device=device, requires_grad=True)
    how = ("bhld", "half", "half", 0, 1, False, False, "triton")
    torch.library.opcheck(
        torch.ops.whorl.norm_rotate_qk.default,
        (q.requires_grad_(), k.requires_grad_(), cos, sin, None, weight, weight.detach().clone(), 1e-6, *how),
    )
    cache, slots = torch.zeros(2, 1, 1, 4, 8, device=device), torch.tensor([0, 1], device=device)
    torch.library.opcheck(
        torch.ops.whorl.rotate_append.default,
        (q.detach(), k.detach(), k.detach(), cos, sin, None, *cache.unbind(0), slots, *how[:5]),
        test_utils=("test_schema", "test_faketensor", "test_autograd_registration"),
    )


@pytest.mark.gpu
def test_norm_and_rotation_of_more_than_two_to_the_31_elements():
    q = torch.randn(1, 8, 2**21 + 3, 144, device="cuda", dtype=torch.bfloat16)
    assert q.numel() > 2**31
    k = q[:, -1:]
    weight = draw(144, dtype=torch.float32, device="cuda")
    cos, sin = whorl.Rope(head_dim=144).tables(torch.arange(q.shape[2], device="cuda"))
    got, _ = whorl.norm_rotate_qk(q, k, cos, sin, weight, weight, impl="triton")
    for some in (slice(0, 9), slice(-9, None)):
        part = q[:, -1:, some]
        expected, _ = whorl.norm_rotate_qk(part, part, cos[some], sin[some], weight, weight, impl="torch")
        same(got[:, -1:, some], expected)


@pytest.mark.gpu
def test_a_decoding_step_into_a_cache_of_more_than_two_to_the_31_elements():
    keys, values = (torch.zeros(2, 8, 2**20 + 8, 136, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    assert keys.numel() > 2**31
    q, k, v = (draw(2, 8, 1, 136, dtype=torch.bfloat16, device="cuda", seed=seed) for seed in range(3))
    cos, sin = whorl.Rope(head_dim=136).tables(torch.tensor([2**20 + 7], device="cuda"))
    slots = torch.full((2, 1), 2**20 + 7, device="cuda")
    got = whorl.rotate_append(q, k, v, cos, sin, keys, values, slots, impl="triton")
    same(got, whorl.rotate(q, cos, sin, impl="torch"))
    same(keys[:, :, -1:], whorl.rotate(k, cos, sin, impl="torch"))
    assert torch.equal(values[:, :, -1:], v)
    assert not keys[:, :, :-1].any() and not values[:, :, :-1].any()
