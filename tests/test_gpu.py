"""What must hold on a CUDA device as on the CPU; run with `make test-gpu`."""

import statistics
import subprocess
import sys
import time

import pytest
import torch

import whorl
import whorl.models
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


@pytest.mark.parametrize("order", ["interleaved", "concatenated"])
def test_codes_of_positions_equal_those_of_the_cpu(order):
    sinusoidal, positions = whorl.Sinusoidal(width=10, order=order), torch.arange(50) * 1001
    x = torch.randn(2, 50, 10)
    torch.testing.assert_close(
        sinusoidal.add_to_input(x.cuda(), positions.cuda()).cpu(), sinusoidal.add_to_input(x, positions)
    )
    positions = positions.cuda()
    torch.cuda.set_sync_debug_mode("error")
    try:
        sinusoidal.codes(positions)
    finally:
        torch.cuda.set_sync_debug_mode("default")


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


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"axial_rope", "mixed_rope"}))  # which place images, not texts
def test_a_model_and_its_gradients_equal_those_of_the_cpu(name):
    torch.manual_seed(0)
    model, ids = whorl.models.Decoder(50, 2, 32, 2, name, length=128), torch.arange(40)[None]
    found = []
    for device in ("cpu", "cuda"):
        model = model.to(device)
        model.zero_grad()
        logits = model(ids.to(device))
        logits.sin().sum().backward()
        kept = [logits, *(x.grad for x in model.parameters() if x.grad is not None)]
        found.append([x.detach().cpu().clone() for x in kept])  # moving a model moves its gradients in place
    assert len(found[0]) == len(found[1])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=2e-4)


@pytest.mark.parametrize("name", ["t5", "kerple"])
@pytest.mark.parametrize("length", [37, 200])
def test_flex_has_the_gradients_of_the_dense_path(name, length):
    encoding = build(name).cuda()
    inputs = [t.cuda().requires_grad_() for t in tokens(length, dim=32)]
    wanted = [*inputs, *encoding.parameters()]
    fast = whorl.attention(*inputs, encoding=encoding, impl="flex")
    dense = whorl.attention(*inputs, encoding=encoding, impl="torch")
    torch.testing.assert_close(fast, dense, rtol=0, atol=1e-4)
    for one, other in zip(*(torch.autograd.grad(out.sin().sum(), wanted) for out in (fast, dense)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize("grad", [False, True])
def test_fire_runs_by_tiles(grad):
    """FlexAttention cannot compile it, without gradients at any length, and with them from 4,096 tokens on."""
    fire = whorl.Fire(heads=16, length=512).cuda()
    q, k, v = (torch.randn(1, 16, 4096, 128, device="cuda", dtype=torch.bfloat16, requires_grad=grad) for _ in range(3))
    assert whorl.explain_attention(q, k, v, encoding=fire).startswith("tiles: ")
    with pytest.raises(whorl.WhorlError, match="impl='flex' cannot run here: FlexAttention cannot compile"):
        whorl.attention(q, k, v, encoding=fire, impl="flex")
    with torch.set_grad_enabled(grad):
        out = whorl.attention(q, k, v, encoding=fire)
    if grad:
        out.sum().backward()
        assert all(bool(x.grad.isfinite().all()) for x in (q, *fire.parameters()))
    first = [x[:, :, :300].detach().double() for x in (q, k, v)]
    torch.testing.assert_close(
        out[:, :, :300].double(), whorl.attention(*first, encoding=fire.double(), impl="torch"), rtol=0, atol=2e-2
    )


@pytest.mark.parametrize("mask", [whorl.Window(size=1024), whorl.Sinks(size=1024)])
def test_a_window_takes_memory_like_the_text(mask):
    """A mask of all pairs would be 256 MiB of bools, and several times that on its way into torch's kernel."""
    encoding, length = whorl.Combined(whorl.Rope(head_dim=64), mask), 16_384
    q, k, v = (torch.randn(1, 4, length, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    whorl.attention(q, k, v, encoding=encoding)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    out = whorl.attention(q, k, v, encoding=encoding)
    assert torch.cuda.max_memory_allocated() - before < 150 * 2**20
    last = [x[:, :, -3000:].double() for x in (q, k, v)]  # of a window alone, what is further back makes no difference
    if type(mask) is whorl.Window:
        expected = whorl.attention(*last, encoding=encoding, impl="torch")[:, :, 1024:]
        torch.testing.assert_close(out[:, :, -3000:][:, :, 1024:].double(), expected, rtol=0, atol=2e-2)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_a_new_number_of_keys_costs_what_a_known_one_does(name, padded):
    """torch's first choice of kernel plans for every shape it has not met, which takes a step 60 ms and more."""
    heads, batch, kept, dim = 8, 4, 500, 64
    encoding = whorl.build_for(name, heads=heads, head_dim=dim, width=heads * dim, length=1024).cuda()
    keys = heads if name == "mixed_rope" else 2
    cache = whorl.KVCache(encoding=encoding, capacity=1024)

    def step(count):
        inputs = [torch.randn(batch, n, count, dim, device="cuda", dtype=torch.bfloat16) for n in (heads, keys, keys)]
        more = {}
        if encoding.reads_hidden:
            more["hidden"] = torch.randn(batch, count, heads * dim, device="cuda", dtype=torch.bfloat16)
        if padded and count > 1:
            more["key_mask"] = torch.arange(count, device="cuda") >= torch.arange(batch, device="cuda")[:, None]
        torch.cuda.synchronize()
        begin = time.perf_counter()
        cache.attend(*inputs, **more)
        torch.cuda.synchronize()
        return time.perf_counter() - begin

    step(kept)
    for _ in range(5):
        step(1)
    new, known = [], []
    for _ in range(15):
        new.append(step(1))
        cache.crop(len(cache) - 1)
        known.append(step(1))
    assert statistics.median(new) <= 2 * statistics.median(known) + 2e-4
