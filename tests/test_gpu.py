"""What must hold on a CUDA device as on the CPU; run with `make test-gpu`."""

import subprocess
import sys

import pytest
import torch

import whorl
from helpers import LAYOUTS, SCALINGS
from registry_cases import NAMES, build, hidden_for, tokens

pytestmark = pytest.mark.gpu

FAR = 16_777_216


@pytest.mark.parametrize("base", [1e2, 1e4, 5e5, 1e6, 1e7])
def test_tables_are_as_exact_on_the_device(base):
    rope = whorl.Rope(head_dim=128, base=base)
    positions = torch.cat((torch.arange(5000), torch.arange(FAR - 5000, FAR + 1)))
    exact = rope.tables(positions, dtype=torch.float64)
    for got, expected in zip(rope.tables(positions.cuda()), exact, strict=True):
        assert got.device.type == "cuda"
        assert float((got.cpu().double() - expected).abs().max()) <= 4.0e-8


@pytest.mark.parametrize("name", SCALINGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rotations_equal_those_of_the_cpu(name, dtype):
    rope = whorl.Rope(head_dim=80, rotary_dim=64, slice=8, scaling=SCALINGS[name])
    x = torch.randn(2, 3, 50, 80, generator=torch.Generator().manual_seed(0)).to(dtype)
    positions = torch.arange(50) * 1001
    got, expected = rope.rotate(x.cuda(), positions.cuda(), 5000).cpu(), rope.rotate(x, positions, 5000)
    torch.testing.assert_close(got, expected, rtol=2**-7 if dtype != torch.float32 else 0, atol=2e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_call_waits_for_the_device(layout):
    """Positions on the device are never read; only the first call of a config copies its frequencies there."""
    rope = whorl.Rope(head_dim=64, layout=layout)
    q, k = torch.randn(1, 4, 16, 64, device="cuda"), torch.randn(1, 2, 16, 64, device="cuda")
    positions = torch.arange(16, device="cuda")
    rope.transform_qk(q, k, positions, positions)
    torch.cuda.set_sync_debug_mode("error")
    try:
        rope.transform_qk(q, k, positions, positions)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_no_call_of_a_cache_waits_for_the_device():
    cache, inputs = whorl.KVCache(encoding=whorl.Rope(head_dim=16)), [t.cuda() for t in tokens(3)]
    mask, rows, ids = torch.ones(2, 3, dtype=torch.bool), torch.tensor([1, 0, 1]), torch.arange(3)
    mask, rows, ids = mask.cuda(), rows.cuda(), ids.cuda()
    for mode in ("default", "error"):  # the first time copies frequencies there
        torch.cuda.set_sync_debug_mode(mode)
        try:
            cache.reset()
            cache.attend(*inputs)
            cache.attend(*inputs, key_mask=mask, positions=ids + 0.5)
            cache.attend(*inputs)
            cache.crop(7)
            cache.reorder(rows)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert len(cache) == 7


@pytest.mark.parametrize("row", [-1, 2])
def test_a_row_that_is_not_there_is_stopped_on_the_device(row):
    """Nobody reads it, so no error names it; what must not happen is that another row is taken in silence."""
    program = f"""
import torch, whorl
cache = whorl.KVCache(encoding=whorl.NoPE())
cache.attend(*torch.randn(3, 2, 1, 1, 8, device="cuda"))
cache.reorder(torch.tensor([0, {row}], device="cuda"))
torch.cuda.synchronize()
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ran.returncode != 0
    assert "device-side assert" in ran.stderr


@pytest.mark.parametrize("name", NAMES)
def test_attention_equals_that_of_the_cpu(name):
    encoding = build(name)
    inputs, more = tokens(33), hidden_for(encoding, 33)
    expected = whorl.attention(*inputs, encoding=encoding, **more)
    there = {key: value.cuda() for key, value in more.items()}
    got = whorl.attention(*(t.cuda() for t in inputs), encoding=encoding.cuda(), **there)
    torch.testing.assert_close(got.cpu(), expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("name", ["t5", "kerple", "fire"])
@pytest.mark.parametrize("length", [37, 200])
def test_flex_has_the_gradients_of_the_dense_path(name, length):
    encoding = build(name).cuda()
    inputs = [t.cuda().requires_grad_() for t in tokens(length, dim=32)]
    wanted = [*inputs, *encoding.parameters()]
    fast = whorl.attention(*inputs, encoding=encoding, impl="flex")
    dense, _ = whorl.attention(*inputs, encoding=encoding, return_lse=True)
    torch.testing.assert_close(fast, dense, rtol=0, atol=1e-4)
    for one, other in zip(*(torch.autograd.grad(out.sin().sum(), wanted) for out in (fast, dense)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=2e-3)
