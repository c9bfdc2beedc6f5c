"""Memory that two tensors share is found from sizes, strides and addresses, and nothing is written into it."""

import random

import pytest
import torch

import whorl
from helpers import ROUNDING
from whorl import WhorlError, memory
from whorl.memory import check_written, overlaps_itself, same_place, span


def addresses(x):
    """Every byte of x, element by element, by plain loops."""
    places = [x.data_ptr()]
    for size, stride in zip(x.shape, x.stride(), strict=True):
        places = [place + i * stride * x.element_size() for place in places for i in range(size)]
    return [place + byte for place in places for byte in range(x.element_size())]


def view(memory, rng):
    """A view of some memory, with random axes, gaps and order."""
    x = memory
    if rng.random() < 0.3:
        x = x.view(rng.choice([torch.float16, torch.int64, torch.float32]))
    shape = rng.choice([(4, 3, 8), (2, 2, 3, 4), (12, 8), (6, 4), (96,), (48,), (24,)])
    count = torch.Size(shape).numel()
    if count > x.numel():
        return x
    begin = rng.randrange(x.numel() - count + 1)
    x = x[begin : begin + count].view(shape)
    for axis in range(x.ndim):
        low = rng.randrange(x.shape[axis])
        x = x.narrow(axis, low, rng.randint(0 if rng.random() < 0.05 else 1, x.shape[axis] - low))
        if rng.random() < 0.3:
            x = x[(slice(None),) * axis + (slice(None, None, 2),)]
    axes = list(range(x.ndim))
    rng.shuffle(axes)
    return x.permute(axes)


def shares(out, other):
    try:
        check_written("test", (("out", out),), (("other", other),))
    except WhorlError:
        return True
    return False


def check_random_views(count):
    rng, found = random.Random(0), {True: 0, False: 0}
    buffer = torch.zeros(100)
    for _ in range(count):
        a, b = view(buffer, rng), view(buffer, rng)
        expected = not set(addresses(a)).isdisjoint(addresses(b))
        assert shares(a, b) == expected, (a.shape, a.stride(), a.data_ptr(), b.shape, b.stride(), b.data_ptr())
        found[expected] += 1
        assert not overlaps_itself(a)
        if a.numel():
            assert span(a) == (min(addresses(a)), max(addresses(a)) + 1)
    assert min(found.values()) > count // 10


def test_random_views_of_one_memory():
    check_random_views(2000)


@pytest.mark.large
def test_many_random_views_of_one_memory():
    check_random_views(60_000)


def test_elements_that_share_memory_are_always_seen():
    rng, buffer, found = random.Random(1), torch.zeros(64), 0
    for _ in range(2000):
        shape = [rng.randint(1, 3) for _ in range(rng.randint(1, 4))]
        x = buffer.as_strided(shape, [rng.randint(0, 8) for _ in shape])
        if len(set(addresses(x))) < len(addresses(x)):
            assert overlaps_itself(x), (x.shape, x.stride())
            found += 1
    assert found > 200


def test_a_search_that_takes_too_long_counts_as_sharing(monkeypatch):
    memory_ = torch.zeros(4, 6)
    assert not shares(memory_[:, ::2], memory_[:, 1::2])
    monkeypatch.setattr(memory, "MOST_STEPS", 0)
    memory._meet.cache_clear()
    assert shares(memory_[:, ::2], memory_[:, 1::2])
    memory._meet.cache_clear()


def test_the_same_elements():
    x = torch.zeros(2, 1, 3, 4)
    assert same_place(x, x) and same_place(x, x[:]) and same_place(x, x.as_strided(x.shape, (12, 99, 4, 1)))
    assert not same_place(x, x.clone()) and not same_place(x, x[:1]) and not same_place(x[0, 0], x.view(-1)[:12])


def tables(length, pairs, device):
    angles = torch.randn(length, pairs, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return angles.cos().float().to(device), angles.sin().float().to(device)


def by_loops(x, cos, sin):
    """The rotation of pairs (i, i + half), written out in float64."""
    half, wide = cos.shape[-1], x.double()
    a, b = wide[..., :half], wide[..., half : 2 * half]
    return torch.cat((a * cos - b * sin, b * cos + a * sin, wide[..., 2 * half :]), -1)


def exact_or_refused(x, cos, sin, out, impl, **how):
    """Whether the call was refused; where it was not, what it wrote is right."""
    expected = by_loops(x, cos, sin)
    before = [t.clone() for t in (x, out, cos, sin)]
    try:
        got = whorl.rotate(x, cos, sin, out=out, impl=impl, **how)
    except WhorlError as error:
        assert "share" in str(error)
        for t, was in zip((x, out, cos, sin), before, strict=True):
            assert torch.equal(t, was), "a refused call wrote"
        return True
    assert got is out
    bound = 4 * ROUNDING[torch.float32] * float(before[0].abs().max() + 1)
    assert float((out.double() - expected).abs().max()) <= bound
    return False


@pytest.mark.parametrize("impl", ["kernel", "torch"])
@pytest.mark.parametrize("heads", [None, (0, 1)])
def test_out_that_shares_memory(kernel, impl, heads):
    name, device = kernel
    impl = name if impl == "kernel" else impl
    g = torch.Generator().manual_seed(0)
    cos, sin = tables(10, 4, device)
    b = torch.randn(1, 2, 11, 8, generator=g).to(device)
    how = {"impl": impl, "heads": heads}
    assert exact_or_refused(b[:, :, :10], cos, sin, b[:, :, 1:], **how)  # shifted by a token
    assert exact_or_refused(b[:, :, 1:], cos, sin, b[:, :, :10], **how)
    x = torch.randn(1, 2, 8, 8, generator=g).to(device)
    assert exact_or_refused(x, *tables(8, 4, device), x.transpose(2, 3), **how)  # transposed in place
    square = torch.randn(2, 2, 8, 8, generator=g).to(device)
    assert exact_or_refused(square, *tables(8, 4, device), square.transpose(0, 1), **how)
    room = torch.randn(1, 2, 1, 8, generator=g).to(device)
    x = torch.randn(1, 2, 10, 8, generator=g).to(device)
    assert exact_or_refused(x, cos, sin, room.expand(1, 2, 10, 8), **how)  # every row in one
    assert exact_or_refused(room.expand(1, 2, 10, 8), cos, sin, room.expand(1, 2, 10, 8), **how)
    windows = torch.zeros(2 * 17, device=device).as_strided((1, 2, 10, 8), (34, 17, 1, 1))
    assert exact_or_refused(x, cos, sin, windows, **how)  # rows that overlap by all but one element
    joined = torch.cat((x.flatten(), cos.flatten(), sin.flatten()))
    own = joined[160:200].view(10, 4), joined[200:].view(10, 4)
    assert exact_or_refused(x, *own, joined[20:180].view(x.shape), **how)  # the end of out is the begin of cos
    assert exact_or_refused(x, own[1], own[0], joined[60:220].view(x.shape), **how)


@pytest.mark.parametrize("impl", ["kernel", "torch"])
def test_out_that_is_rows(kernel, impl):
    name, device = kernel
    impl = name if impl == "kernel" else impl
    cos, sin = tables(4, 4, device)
    ids = torch.arange(4, device=device)
    x = torch.randn(1, 1, 4, 8, generator=torch.Generator().manual_seed(0)).to(device)
    memory_ = torch.cat((ids, torch.zeros(16, dtype=torch.int64, device=device)))
    out = memory_.view(torch.float32)[:32].view(1, 1, 4, 8)
    with pytest.raises(WhorlError, match="rotate: out shares memory with rows"):
        whorl.rotate(x, cos, sin, rows=memory_[:4], out=out, impl=impl)
    assert memory_[:4].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("impl", ["kernel", "torch"])
def test_out_beside_x_in_one_memory_is_written(kernel, impl):
    """The parts of a fused projection, the two halves of a cache, every second row: none of them is the other's."""
    name, device = kernel
    how = {"impl": name if impl == "kernel" else impl}
    cos, sin = tables(10, 4, device)
    g = torch.Generator().manual_seed(0)
    fused = torch.randn(2, 10, 3, 2, 8, generator=g).to(device).permute(0, 3, 1, 2, 4)
    assert not exact_or_refused(fused[..., 0, :], cos, sin, fused[..., 1, :], **how)
    wide = torch.randn(2, 2, 10, 16, generator=g).to(device)
    assert not exact_or_refused(wide[..., 8:], cos, sin, wide[..., :8], **how)
    rows = torch.randn(2, 2, 20, 8, generator=g).to(device)
    assert not exact_or_refused(rows[:, :, ::2], cos, sin, rows[:, :, 1::2], **how)
    table = torch.stack((*tables(10, 4, device), *tables(10, 4, device)), 1)  # cos and sin among x and out
    assert not exact_or_refused(wide[..., 8:], table[:, 0], table[:, 1], wide[..., :8], **how)
    x = torch.randn(2, 2, 10, 8, generator=g).to(device)
    expected = by_loops(x, cos, sin)
    whorl.rotate(x, cos, sin, out=x.view(2, 2, 10, 8), **how)  # in place, by another object
    assert float((x.double() - expected).abs().max()) <= 1e-5


def check_random_out(count, kernel):
    name, device = kernel
    rng, refused = random.Random(2), 0
    buffer = torch.randn(240, generator=torch.Generator().manual_seed(0)).to(device)
    for _ in range(count):
        heads, length = rng.randint(1, 3), rng.randint(1, 5)
        dim = rng.choice([2, 4, 6])
        axes = rng.choice([(0, 1, 2), (1, 0, 2), (2, 0, 1)])

        def placed(shape, axes=axes):
            sizes = [shape[axis] for axis in axes]
            gap = rng.choice([1, 1, 2])
            count = torch.Size(sizes).numel() * gap
            begin = rng.randrange(0, 240 - count)
            return buffer[begin : begin + count : gap].view(sizes).permute([axes.index(i) for i in range(3)])

        x, out = placed((heads, length, dim)), placed((heads, length, dim), rng.choice([axes, (0, 1, 2)]))
        cos, sin = tables(length, dim // 2, device)
        if rng.random() < 0.3:
            cos = placed((1, length, dim // 2), (0, 1, 2))[0]
        buffer.copy_(torch.randn(240, generator=torch.Generator().manual_seed(rng.randrange(1000))))
        meets = [set(addresses(out)) & set(addresses(t)) for t in (x, cos)]
        apart = not meets[1] and (not meets[0] or same_place(out, x))
        was = exact_or_refused(x, cos, sin, out, name)
        assert was == (not apart)
        refused += was
    assert count // 10 < refused < count - count // 10


def test_random_out_in_one_memory(kernel):
    check_random_out(60 if kernel[0] == "triton" else 400, kernel)


@pytest.mark.large
def test_many_random_outs_in_one_memory(kernel):
    check_random_out(600 if kernel[0] == "triton" else 20_000, kernel)


@pytest.mark.parametrize("impl", ["triton", "torch"])
def test_a_cache_that_shares_memory_is_refused(kernel, impl):
    name, device = kernel
    if name == "numba" and impl == "triton":
        pytest.skip("there is no such kernel")
    g = torch.Generator().manual_seed(0)
    cos, sin = tables(2, 4, device)
    q, k, v = (torch.randn(1, 2, 2, 8, generator=g).to(device) for _ in range(3))
    keys, values = torch.zeros(2, 1, 2, 6, 8, device=device)
    slots = torch.tensor([0, 1], device=device)
    given = {"q": q, "k": k, "v": v, "cos": cos, "sin": sin, "keys": keys, "values": values, "slots": slots}

    def refused(**changed):
        with pytest.raises(WhorlError) as error:
            whorl.rotate_append(**{**given, **changed}, impl=impl)
        return str(error.value)

    assert "keys shares memory with values" in refused(values=keys)
    assert "keys shares memory with k" in refused(k=keys[:, :, 3:5])
    assert "values shares memory with v" in refused(v=values[:, :, 1:3])
    assert "keys shares memory with q" in refused(q=keys[:, :, :2])
    assert "keys shares memory with v" in refused(v=keys[:, :, :2])
    assert "keys shares memory with cos" in refused(cos=keys[0, 0, :2, :4])
    assert "values shares memory with sin" in refused(sin=values[0, 0, :2, :4])
    assert "elements of keys share memory" in refused(keys=keys[:, :, :1].expand(1, 2, 6, 8))
    assert "elements of values share memory" in refused(values=values[:, :1].expand(1, 2, 6, 8))
    assert not keys.any() and not values.any()
    both = torch.zeros(1, 2, 6, 16, device=device)  # keys and values side by side
    whorl.rotate_append(**{**given, "keys": both[..., :8], "values": both[..., 8:]}, impl=impl)
    assert torch.equal(both[:, :, :2, 8:], v) and not both[:, :, 2:].any()
    expected = by_loops(k, cos, sin)
    assert float((both[:, :, :2, :8].double() - expected).abs().max()) <= 1e-5


def test_the_operator_itself_refuses_shared_memory(kernel):
    name, device = kernel
    cos, sin = tables(10, 4, device)
    b = torch.randn(1, 1, 11, 8, device=device)
    with pytest.raises(WhorlError, match="out shares memory with x"):
        torch.ops.whorl.rotate_into(
            b[:, :, 1:], b[:, :, :10], cos, sin, None, "bhld", "half", "half", 0, 1, False, False, name
        )
