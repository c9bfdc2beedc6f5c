"""Steps of a cache by the kernels of decoding: equal to the reference, whatever the encoding, padding or heads."""

import pytest
import torch

import whorl
from whorl.kernels.decode_triton import parts_of, tile_of
from whorl.registry import build_for

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # on the CPU kernels run in Triton's interpreter
ENCODINGS = (
    "none", "rope", "alibi", "t5", "kerple", "sandwich", "fire", "window", "sinks", "mrope", "learned", "log_n",
)  # fmt: skip
PROMPT, STEPS, ROOM = 37, 4, 80
HEADS, DIM, BATCH = 4, 16, 2

pytestmark = pytest.mark.filterwarnings("ignore:T5. max_distance")


def encoding_of(name):
    return build_for(name, heads=HEADS, head_dim=DIM, width=HEADS * DIM, length=64).to(DEVICE)


def tokens(count, *, shared=2, dim=DIM, value_dim=DIM, dtype=torch.float32):
    torch.manual_seed(0)
    sizes = (HEADS, dim), (HEADS // shared, dim), (HEADS // shared, value_dim)
    return [torch.randn(BATCH, heads, count, size).to(DEVICE, dtype) for heads, size in sizes]


def padding(padded):
    """Row 1 begins with five tokens of padding."""
    return torch.arange(PROMPT, device=DEVICE) >= torch.tensor([[0], [5]], device=DEVICE) if padded else None


def compared(encoding, text, *, mask=None, new=1, **options):
    """The largest difference between steps by kernels and by the reference, both behind the same prompt."""
    fast, slow = (whorl.KVCache(encoding=encoding, capacity=room) for room in (ROOM, None))
    for cache in (fast, slow):
        cache.attend(*(x[:, :, :PROMPT] for x in text), key_mask=mask)
    worst = 0.0
    for step in range(STEPS):
        at = slice(PROMPT + step * new, PROMPT + (step + 1) * new)
        got = fast.attend(*(x[:, :, at] for x in text), impl="triton", **options)
        wanted = slow.attend(*(x[:, :, at] for x in text), impl="torch", **options)
        assert got.shape == wanted.shape and got.dtype == wanted.dtype
        worst = max(worst, (got - wanted).abs().max().item())
    assert len(fast) == len(slow) == PROMPT + STEPS * new
    assert fast.why_not_kernels() is None
    return worst


@pytest.mark.parametrize("new", [1, 3])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", ENCODINGS)
def test_a_step_equals_the_reference(name, padded, new):
    text = tokens(PROMPT + STEPS * new)
    assert compared(encoding_of(name), text, mask=padding(padded), new=new) < 4e-6


@pytest.mark.parametrize("shared", [1, 2, 4])
@pytest.mark.parametrize(("dim", "value_dim"), [(16, 16), (24, 40), (64, 16)])
def test_heads_of_any_size(dim, value_dim, shared):
    encoding = whorl.Combined(whorl.Rope(head_dim=dim), whorl.Alibi(heads=HEADS), whorl.Window(size=20)).to(DEVICE)
    assert compared(encoding, tokens(PROMPT + STEPS, shared=shared, dim=dim, value_dim=value_dim)) < 4e-6


@pytest.mark.parametrize("name", ["rope", "t5"])
def test_softcap_and_scale(name):
    assert compared(encoding_of(name), tokens(PROMPT + STEPS), softcap=3.0, scale=0.7) < 4e-6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    worst = compared(encoding_of("t5"), tokens(PROMPT + STEPS, dtype=dtype))
    assert worst < (3e-2 if dtype == torch.bfloat16 else 4e-3)  # both round their output once


def test_memory_behind_the_text_is_never_read(poisoned):
    text = tokens(PROMPT + STEPS)
    cache = whorl.KVCache(encoding=encoding_of("alibi"), capacity=ROOM)
    cache.attend(*(x[:, :, :PROMPT] for x in text))
    slots = cache._state.slots
    for memory in (slots.keys, slots.values):
        memory[:, :, PROMPT:] = torch.nan
    out = cache.attend(*(x[:, :, PROMPT : PROMPT + 1] for x in text), impl="triton")
    assert torch.isfinite(out).all()


def test_a_learned_bias_is_read_anew_when_it_changes():
    encoding, text = encoding_of("t5"), tokens(PROMPT + STEPS)
    cache = whorl.KVCache(encoding=encoding, capacity=ROOM)
    cache.attend(*(x[:, :, :PROMPT] for x in text))
    cache.attend(*(x[:, :, PROMPT : PROMPT + 1] for x in text), impl="triton")
    with torch.no_grad():
        encoding.table.mul_(5.0)
    assert compared(encoding, text) < 4e-6
    encoding.table = torch.nn.Parameter(encoding.table.detach() * -1.0)
    assert compared(encoding, text) < 4e-6


@pytest.mark.parametrize("what", ["crop", "reorder", "change_encoding"])
def test_what_happens_to_a_cache_between_steps(what):
    encoding, text = encoding_of("rope"), tokens(PROMPT + STEPS)
    outs = []
    for impl in ("triton", "torch"):
        cache = whorl.KVCache(encoding=encoding, capacity=ROOM)
        cache.attend(*(x[:, :, :PROMPT] for x in text))
        cache.attend(*(x[:, :, PROMPT : PROMPT + 1] for x in text), impl=impl)
        if what == "crop":
            cache.crop(PROMPT - 4)
        elif what == "reorder":
            cache.reorder([1, 0])
        else:
            cache.change_encoding(whorl.Rope(head_dim=DIM, base=500.0).to(DEVICE))
        outs += [cache.attend(*(x[:, :, PROMPT + 1 : PROMPT + 2] for x in text), impl=impl)]
    torch.testing.assert_close(*outs, atol=4e-6, rtol=0)


def test_a_raw_cache_and_given_positions_are_left_to_torch():
    text = tokens(PROMPT + STEPS)
    step = [x[:, :, PROMPT : PROMPT + 1] for x in text]
    raw = whorl.KVCache(encoding=encoding_of("rope"), policy="raw")
    raw.attend(*(x[:, :, :PROMPT] for x in text))
    with pytest.raises(whorl.WhorlError, match="keys are kept raw"):
        raw.attend(*step, impl="triton")
    cache = whorl.KVCache(encoding=encoding_of("rope"), capacity=ROOM)
    cache.attend(*(x[:, :, :PROMPT] for x in text), positions=whorl.positions(PROMPT, offset=100, device=DEVICE))
    with pytest.raises(whorl.WhorlError, match="positions were given"):
        cache.attend(*step, impl="triton")
    with pytest.raises(whorl.WhorlError, match="plain ones only"):
        cache.attend(*step, positions=whorl.positions(1, offset=200, device=DEVICE), impl="triton")


def test_counting_on_the_device():
    encoding, text = encoding_of("rope"), tokens(PROMPT + STEPS)
    fast, slow = (whorl.KVCache(encoding=encoding, capacity=ROOM) for _ in range(2))
    for cache in (fast, slow):
        cache.attend(*(x[:, :, :PROMPT] for x in text))
    clock = fast.count_on_device()
    for at in range(PROMPT, PROMPT + STEPS):
        step = [x[:, :, at : at + 1] for x in text]
        got = fast.attend(*step, impl="triton")
        clock.advance()
        torch.testing.assert_close(got, slow.attend(*step, impl="torch"), atol=4e-6, rtol=0)
    assert len(fast) == PROMPT + STEPS
    for call in (fast.reset, lambda: fast.reorder([1, 0]), lambda: fast.change_encoding(encoding)):
        with pytest.raises(whorl.WhorlError, match="count_on_host"):
            call()
    fast.crop(PROMPT)
    assert len(fast) == PROMPT and int(clock.next) == PROMPT
    fast.count_on_host()
    fast.reorder([1, 0])


@pytest.mark.filterwarnings("ignore:All-NaN slice")  # of the interpreter's numpy, whose NaN this is
@pytest.mark.parametrize("name", ["rope", "alibi"])
def test_a_token_beyond_the_room_is_seen(name):
    text = tokens(PROMPT + 2)
    cache = whorl.KVCache(encoding=encoding_of(name), capacity=PROMPT + 1)
    cache.attend(*(x[:, :, :PROMPT] for x in text))
    clock = cache.count_on_device()
    last = [x[:, :, -1:] for x in text]
    assert torch.isfinite(cache.attend(*last, impl="triton")).all()
    clock.advance()
    assert torch.isnan(cache.attend(*last, impl="triton")).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ENCODINGS)
def test_a_step_on_the_cpu_equals_the_reference(name, dtype):
    encoding = build_for(name, heads=HEADS, head_dim=DIM, width=HEADS * DIM, length=64)
    text = [x.to("cpu", dtype).requires_grad_() for x in tokens(PROMPT + STEPS)]
    fast, slow = (whorl.KVCache(encoding=encoding, capacity=ROOM) for _ in range(2))
    for cache in (fast, slow):
        cache.attend(*(x[:, :, :PROMPT] for x in text))
    for at in range(PROMPT, PROMPT + STEPS):
        step = [x[:, :, at : at + 1] for x in text]
        got, wanted = fast.attend(*step), slow.attend(*step, impl="torch")
        torch.testing.assert_close(got, wanted, atol=4e-6, rtol=0)
        assert not got.requires_grad
    assert (fast._ready is None) == (name in ("fire", "sinks"))


def test_a_bias_that_is_the_same_for_every_head():
    """Its formula may leave out the head: it has one row of numbers, where the tables of steps have one for each."""

    class Even(whorl.Alibi):
        def bias_of(self, head, distance):
            return -0.1 * distance

    encoding, text = Even(heads=HEADS).to(DEVICE), tokens(PROMPT + STEPS)
    assert compared(encoding, text) < 4e-6
    fast, slow = (whorl.KVCache(encoding=encoding, capacity=ROOM) for _ in range(2))
    for cache in (fast, slow):
        cache.attend(*(x[:, :, :PROMPT] for x in text))
    step = [x[:, :, PROMPT : PROMPT + 1] for x in text]
    torch.testing.assert_close(fast.attend(*step), slow.attend(*step, impl="torch"), atol=4e-6, rtol=0)


@pytest.mark.parametrize("memory", [48, 99, 227])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("dim", [64, 128, 256])
@pytest.mark.parametrize("rows", [16, 128])
def test_tiles_fit_small_cards(rows, dim, dtype, memory):
    tile = tile_of(rows, dim, dim, dtype, memory * 1024)
    taken = tile.stages * tile.keys * 2 * dim * dtype.itemsize
    assert tile.keys >= 16 and tile.stages >= 1
    assert taken <= memory * 1024


def test_every_multiprocessor_has_work():
    assert parts_of(64, 2048, 132) * 64 >= 132
    assert parts_of(1024, 2048, 132) == 1
    assert parts_of(1, 64, 132) == 1


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")  # the one whose capture raises
@pytest.mark.parametrize("name", ["rope", "t5", "alibi", "window", "fire"])
def test_one_graph_serves_a_text_that_grows(name):
    encoding, text = encoding_of(name), tokens(PROMPT + STEPS)
    fast, slow = (whorl.KVCache(encoding=encoding, capacity=ROOM) for _ in range(2))
    for cache in (fast, slow):
        cache.attend(*(x[:, :, :PROMPT] for x in text))
    given = [x[:, :, PROMPT : PROMPT + 1].clone() for x in text]
    with pytest.raises(whorl.WhorlError, match="count_on_device"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        fast.attend(*given)
    fast.attend(*given)
    fast.crop(PROMPT)
    clock, graph = fast.count_on_device(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = fast.attend(*given)
        clock.advance()
    for at in range(PROMPT, PROMPT + STEPS):
        step = [x[:, :, at : at + 1] for x in text]
        for memory, new in zip(given, step, strict=True):
            memory.copy_(new)
        graph.replay()
        torch.testing.assert_close(out, slow.attend(*step, impl="torch"), atol=4e-6, rtol=0)
    assert len(fast) == PROMPT + STEPS
