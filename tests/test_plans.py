"""Plans: a kind of call is checked once, kept within a bound, and holds no tensor of the call."""

import gc
import threading
import weakref

import pytest
import torch

import whorl
from drawn_rotations import draw, same, tables
from whorl import plans
from whorl.kernels import append, norm_rotate, rotate
from whorl.plans import PLANS, kind
from whorl.registry import build_for

CALLS = ("rotate", "rows", "into", "in place", "some heads", "rotate_qk", "norm_rotate_qk", "rotate_append")


@pytest.fixture(autouse=True)
def none_kept(monkeypatch):
    monkeypatch.setattr(PLANS, "_used", {})
    monkeypatch.setattr(PLANS, "_before", {})


def call(name, impl, device, seed=0):
    """The results of a public call on numbers of this seed."""
    q = draw(2, 3, 4, 8, dtype=torch.float32, device=device, seed=seed)
    k = draw(2, 1, 4, 8, dtype=torch.float32, device=device, seed=seed + 1)
    cos, sin = tables(4, 4, dtype=torch.float32, device=device, seed=seed + 2)
    rows, slots = torch.tensor([3, 0, 2, 1], device=device), torch.tensor([4, -1, 0, 2], device=device)
    if name in ("norm_rotate_qk", "rotate_append") and impl == "numba":
        impl = "torch"
    if name == "rotate":
        return (whorl.rotate(q, cos, sin, impl=impl),)
    if name == "rows":
        return (whorl.rotate(q, cos, sin, rows=rows, inverse=True, impl=impl),)
    if name == "into":
        return (whorl.rotate(q, cos, sin, out=torch.empty_like(q), impl=impl),)
    if name == "in place":
        return (whorl.rotate(q, cos, sin, out=q, impl=impl),)
    if name == "some heads":
        return (whorl.rotate(q, cos, sin, heads=(0, 2), impl=impl),)
    if name == "rotate_qk":
        return whorl.rotate_qk(q, k, cos, sin, impl=impl)
    if name == "norm_rotate_qk":
        weight = torch.nn.Parameter(draw(8, dtype=torch.float32, device=device, seed=seed + 3))
        return whorl.norm_rotate_qk(q, k, cos, sin, weight, weight.detach(), impl=impl)
    keys, values = torch.zeros(2, 2, 1, 6, 8, device=device)
    return whorl.rotate_append(q, k, k, cos, sin, keys, values, slots, impl=impl), keys, values


@pytest.mark.parametrize("name", CALLS)
def test_a_kind_of_call_is_checked_once(kernel, monkeypatch, name):
    impl, device = kernel
    expected = [call(name, "torch", device, seed) for seed in (0, 10)]
    PLANS.cache_clear()
    first = call(name, impl, device)
    assert len(PLANS) == 1
    for module in (rotate, norm_rotate, append):
        monkeypatch.setattr(module, "checked_rotation", None)  # whoever checks again calls nothing
    second = call(name, impl, device, seed=10)
    assert len(PLANS) == 1
    for got, wanted in zip((*first, *second), (*expected[0], *expected[1]), strict=True):
        same(got.detach(), wanted.detach())


def test_a_backward_pass_keeps_its_launch_too(kernel):
    impl, device = kernel
    cos, sin = tables(4, 4, dtype=torch.float32, device=device)
    for seed in range(3):
        x = draw(2, 3, 4, 8, dtype=torch.float32, device=device, seed=seed).requires_grad_()
        got = torch.autograd.grad(whorl.rotate(x, cos, sin, impl=impl).square().sum(), x)[0]
        same(got, torch.autograd.grad(whorl.rotate(x, cos, sin, impl="torch").square().sum(), x)[0])
        assert len(PLANS) == 3  # forward, backward, and forward by torch


def test_kinds_that_differ_in_anything_have_launches_of_their_own(kernel):
    impl, device = kernel
    x = draw(2, 3, 4, 8, dtype=torch.float32, device=device)
    cos, sin = tables(4, 4, dtype=torch.float32, device=device)
    narrow = tables(4, 2, dtype=torch.float32, device=device)
    kinds = [
        lambda: whorl.rotate(x, cos, sin, impl=impl),
        lambda: whorl.rotate(x.bfloat16(), cos, sin, impl=impl),
        lambda: whorl.rotate(x.transpose(0, 1).contiguous().transpose(0, 1), cos, sin, impl=impl),
        lambda: whorl.rotate(x[:, :2], cos, sin, impl=impl),
        lambda: whorl.rotate(x, cos.t().contiguous().t(), sin, impl=impl),
        lambda: whorl.rotate(x, cos, sin.double(), impl=impl),
        lambda: whorl.rotate(x, cos, sin, "interleaved", impl=impl),
        lambda: whorl.rotate(x, cos, sin, inverse=True, impl=impl),
        lambda: whorl.rotate(x, cos, sin, blocks=2, impl=impl),
        lambda: whorl.rotate(x, *narrow, impl=impl),
        lambda: whorl.rotate(x, *narrow, start=3, impl=impl),
        lambda: whorl.rotate(x, cos, sin, rows=torch.arange(4, device=device), impl=impl),
        lambda: whorl.rotate(x, cos, sin, rows=torch.arange(4, device=device).int(), impl=impl),
    ]
    expected = []
    for one in kinds:
        before = len(PLANS)
        expected.append(one())
        assert len(PLANS) > before
    for one, wanted in zip(kinds, expected, strict=True):
        assert torch.equal(one(), wanted)


@pytest.mark.parametrize("name", CALLS)
def test_a_launch_holds_no_tensor_of_the_call_it_was_made_for(kernel, monkeypatch, name):
    impl, device = kernel
    seen = []
    own = plans.kind

    def kind(settings, *tensors):
        seen.extend(weakref.ref(x) for x in tensors if x is not None)
        return own(settings, *tensors)

    for module in (rotate, norm_rotate, append):
        monkeypatch.setattr(module, "kind", kind)
    call(name, impl, device)
    gc.collect()
    assert len(PLANS) and seen
    assert [x() for x in seen if x() is not None] == []


def test_the_cache_is_bounded_and_threads_may_share_it(monkeypatch):
    monkeypatch.setattr(plans, "MOST_PLANS", 6)
    cos, sin = tables(40, 4, dtype=torch.float32, device="cpu")
    wrong = []

    def work(seed):
        for length in range(1, 41):
            x = draw(1, 2, length, 8, dtype=torch.float32, seed=seed)
            got = whorl.rotate(x, cos[:length], sin[:length])
            if not torch.equal(got, whorl.rotate(x, cos[:length], sin[:length], impl="torch")):
                wrong.append((seed, length))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert 0 < len(PLANS) <= 6 + 4  # each thread may have looked before another added


def test_there_is_no_key_where_somebody_watches():
    cos, sin = tables(4, 4, dtype=torch.float32, device="cpu")
    x = draw(1, 2, 4, 8, dtype=torch.float32)
    settings = ("half", False, 0, 1, "bhld", "auto")
    key = kind(settings, x, cos, sin, None)
    assert key is not None and PLANS.get(key) is None
    watched = torch.func.vmap(lambda x: torch.tensor(kind(settings, x, cos, sin, None) is None))
    assert bool(watched(x).all())
    assert PLANS.get(kind((["half"],), x, cos, sin, None)) is None  # a setting without hash
    assert kind(settings, x, cos.requires_grad_(), sin, None) != key


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("name", [name for name in whorl.names() if name not in ("axial_rope", "mixed_rope")])
def test_later_calls_of_attention_give_what_the_first_gave(name, learns, device):
    """The first call is checked and chosen for, the others run its plan; two encodings take turns."""
    sizes = {"heads": 4, "head_dim": 16, "width": 24, "length": 256}
    encodings = [build_for(name, **sizes).to(device) for _ in range(2)]
    with torch.no_grad():
        for encoding in encodings:
            for learned in encoding.parameters():
                learned.add_(0.3 * torch.randn_like(learned))
    q, k, v = (draw(2, heads, 40, 16, dtype=torch.float32, device=device) for heads in (4, 2, 2))
    options = {"hidden": draw(2, 40, 24, dtype=torch.float32, device=device)} if encodings[0].reads_hidden else {}

    def called(encoding, impl="auto"):
        given = [x.clone().requires_grad_(learns) for x in (q, k, v)]
        with torch.set_grad_enabled(learns):
            out = whorl.attention(*given, encoding=encoding, impl=impl, **options)
            return (out, *torch.autograd.grad(out.square().sum(), given)) if learns else (out,)

    wanted = [called(encoding, "torch") for encoding in encodings]
    for _ in range(3):
        for encoding, expected in zip(encodings, wanted, strict=True):
            for got, one in zip(called(encoding), expected, strict=True):
                assert (got - one).norm() <= 1e-5 * one.norm()


def test_thousands_of_kinds_stay_within_a_bound(monkeypatch):
    """Of encodings that live and of those that are gone; what was made for one call is not kept for all."""
    monkeypatch.setattr(plans, "MOST_PLANS", 40)
    living = [whorl.Rope(head_dim=8, base=100.0 + i) for i in range(30)]
    x, most = torch.randn(1, 2, 8, 8), 0
    for i in range(600):
        encoding = living[i % 30] if i % 2 else whorl.Rope(head_dim=8, base=1e4 + i)
        whorl.attention(x, x, x, encoding=encoding, scale=0.1 + i)
        cache = whorl.KVCache(encoding=encoding, length=10 + i)
        for _ in range(3):
            cache.attend(x[:, :, :1], x[:, :, :1], x[:, :, :1])
        most = max(most, len(PLANS))
    assert most <= 40
    gone = weakref.ref(living[0])
    del living, encoding, cache
    gc.collect()
    assert gone() is None
    assert not any(settings[0] in ("attention", "step") for _, _, settings, *_ in (*PLANS._used, *PLANS._before))


def test_tables_of_plans_stay_within_a_bound_on_memory(monkeypatch):
    monkeypatch.setattr(plans, "MOST_BYTES", 2**20)
    dynamic = whorl.Rope(head_dim=64, scaling=whorl.DynamicNtk(factor=2.0, original_length=16))
    x = torch.randn(1, 1, 500, 64)
    for length in range(500, 560):
        whorl.attention(x, x, x, encoding=dynamic, length=length)
    kept = {key: size for key, (_, size, _) in (PLANS._used | PLANS._before).items() if size}
    assert 2 <= len(kept) <= 2 * plans.FEW and sum(kept.values()) <= 2**20 + 2 * plans.FEW * 512 * 32 * 8
