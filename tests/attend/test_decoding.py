"""Steps of a cache by the kernels of decoding: equal to the reference, whatever the encoding, padding or heads."""

import gc

import pytest
import torch

import whorl
from whorl import plans
from whorl.encodings import made_of
from whorl.encodings.parts import BiasByDistance
from whorl.kernels import decode_triton
from whorl.kernels.decode_triton import parts_of, tile_of
from whorl.plans import PLANS
from whorl.registry import build_for

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # on the CPU kernels run in Triton's interpreter
# Settings small enough that a short text passes every window, clip and trained length.
SETTINGS = {
    "cope": {"max_position": 5},
    "deberta": {"span": 8, "max_distance": 20},
    "fire": {"length": 8},
    "leaky_rerope": {"window": 9, "factor": 4.0},
    "mrope": {"sections": (2, 3, 3)},
    "rerope": {"window": 9},
    "self_extend": {"window": 8, "group": 2},
    "shaw": {"clip": 3},
    "sinks": {"size": 12, "count": 2},
    "window": {"size": 12},
    "xpos": {"scale_base": 16.0},
}
ENCODINGS = [name for name in whorl.names() if name not in ("axial_rope", "mixed_rope")]  # positions on a grid
PROMPT, ROOM = 37, 80
STEPS = 4 if DEVICE == "cuda" else 2  # the first makes a launch, the second finds it
HEADS, DIM, BATCH, WIDTH = 4, 16, 2, 24

pytestmark = pytest.mark.filterwarnings("ignore:T5. the last bucket")


@pytest.fixture
def split(monkeypatch):
    """Keys of a head are cut into parts, as they are on a device with many multiprocessors."""
    PLANS.cache_clear()
    monkeypatch.setattr(decode_triton, "multiprocessors", lambda device: 64)
    yield
    PLANS.cache_clear()


def encoding_of(name, heads=HEADS):
    torch.manual_seed(1)
    sizes = {"heads": heads, "head_dim": DIM, "width": WIDTH, "length": 64}
    encoding = build_for(name, **sizes | SETTINGS.get(name, {})).to(DEVICE)
    with torch.no_grad():
        for learned in encoding.parameters():  # some of which start at 0
            learned.add_(0.3 * torch.randn_like(learned))
    return encoding


def tokens(count, *, shared=2, dim=DIM, value_dim=DIM, dtype=torch.float32):
    torch.manual_seed(0)
    sizes = (HEADS, dim), (HEADS // shared, dim), (HEADS // shared, value_dim)
    return [torch.randn(BATCH, heads, count, size).to(DEVICE, dtype) for heads, size in sizes]


def padding(padded):
    """Row 1 begins with five tokens of padding."""
    return torch.arange(PROMPT, device=DEVICE) >= torch.tensor([[0], [5]], device=DEVICE) if padded else None


def states(encoding, at):
    """The hidden states of tokens, for encodings that read them."""
    if not encoding.reads_hidden:
        return {}
    generator = torch.Generator().manual_seed(2)
    return {"hidden": torch.randn(BATCH, ROOM, WIDTH, generator=generator).to(DEVICE)[:, at]}


def compared(encoding, text, *, mask=None, new=1, policy="auto", **options):
    """The largest difference between steps by kernels and by the reference, both behind the same prompt."""
    fast, slow = (whorl.KVCache(encoding=encoding, capacity=room, policy=policy) for room in (ROOM, None))
    for cache in (fast, slow):
        cache.attend(*(x[:, :, :PROMPT] for x in text), key_mask=mask, **states(encoding, slice(0, PROMPT)))
    worst = 0.0
    for step in range(STEPS):
        at = slice(PROMPT + step * new, PROMPT + (step + 1) * new)
        here = options | states(encoding, at)
        got = fast.attend(*(x[:, :, at] for x in text), impl="triton", **here)
        wanted = slow.attend(*(x[:, :, at] for x in text), impl="torch", **here)
        assert got.shape == wanted.shape and got.dtype == wanted.dtype
        worst = max(worst, (got - wanted).abs().max().item())
    assert len(fast) == len(slow) == PROMPT + STEPS * new
    assert fast.why_not_kernels() is None
    return worst


@pytest.mark.parametrize("name", ENCODINGS)
def test_a_step_equals_the_reference(name):
    assert compared(encoding_of(name), tokens(PROMPT + STEPS)) < 4e-6


def test_no_softcap_opens_a_key_that_a_bias_hides():
    split = whorl.Alibi(heads=HEADS, form="split").to(DEVICE)
    assert compared(split, tokens(PROMPT + STEPS), softcap=2.0) < 4e-6


@pytest.mark.parametrize("name", ENCODINGS)
def test_padded_rows_and_several_tokens_in_parts(name, split):
    text = tokens(PROMPT + STEPS * 3)
    assert compared(encoding_of(name), text, mask=padding(True), new=3) < 4e-6


@pytest.mark.parametrize("name", ["t5", "rerope", "window", "sinks"])
def test_padding_within_a_row(name, split):
    """A part between two real tokens whose positions grow with the slots has no padding; here some have."""
    mask = torch.ones(BATCH, PROMPT, dtype=torch.bool, device=DEVICE)
    mask[0, 10:12], mask[0, -1], mask[1, :33], mask[1, 35] = False, False, False, False
    assert compared(encoding_of(name), tokens(PROMPT + STEPS), mask=mask) < 4e-6


@pytest.mark.parametrize("name", ["window", "sinks"])
@pytest.mark.parametrize("new", [1, 3])
def test_a_window_of_rows_with_padding_anywhere(name, new, split):
    text = tokens(PROMPT + STEPS * new)
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        mask = torch.rand(BATCH, PROMPT, generator=generator) < torch.tensor([[0.9], [0.5]])
        mask[:, seed * 9 : seed * 9 + 3] = False
        assert compared(encoding_of(name), text, mask=mask.to(DEVICE), new=new) < 4e-6


@pytest.mark.parametrize(("name", "after"), [("window", None), ("window", 8), ("sinks", None)])
def test_what_is_behind_the_window_of_a_padded_row_is_not_visited(name, after, split):
    """Padding is in front, and for a window without first tokens also within what is behind it."""
    text, mask, size = tokens(PROMPT + 1), padding(True), SETTINGS[name]["size"]
    if after is not None:
        mask[1, after] = False
    cache = whorl.KVCache(encoding=encoding_of(name), capacity=ROOM)
    cache.attend(*(x[:, :, :PROMPT] for x in text), key_mask=mask)
    begin = 5 + SETTINGS[name].get("count", 0)
    slots = cache._state.slots
    slots.values[1, :, begin : PROMPT + 1 - size] = torch.nan  # whose weights are 0, but for a kernel that reads them
    assert torch.isfinite(cache.attend(*(x[:, :, PROMPT:] for x in text), impl="triton")).all()


@pytest.mark.parametrize("joined", [
    ("rope", "shaw"), ("rope", "transformer_xl"), ("rerope", "log_n"), ("rope", "forgetting_gate"), ("rope", "cope"),
    ("rerope", "alibi", "window"), ("xpos", "fire"), ("cope", "sinks"), ("forgetting_gate", "sinks"),
    ("log_n", "deberta"),
])  # fmt: skip
def test_joined_encodings(joined, split):
    encoding = whorl.Combined(*map(encoding_of, joined)).to(DEVICE)
    assert compared(encoding, tokens(PROMPT + STEPS * 2), new=2) < 4e-6


@pytest.mark.parametrize("settings", [
    {"layout": "interleaved"}, {"layout": "interleaved_to_half"}, {"layout": "half", "rotary_dim": 8},
    {"layout": "interleaved", "rotary_dim": 8, "slice": "trailing"},
    {"scaling": whorl.DynamicNtk(factor=2.0, original_length=16)},
])  # fmt: skip
def test_raw_keys_are_turned_as_they_are_read(settings):
    encoding = whorl.Rope(head_dim=DIM, **settings).to(DEVICE)
    assert compared(encoding, tokens(PROMPT + STEPS), policy="raw", length=64) < 4e-6
    assert compared(whorl.NoPE(), tokens(PROMPT + STEPS), policy="raw") < 4e-6


@pytest.mark.parametrize("settings", [
    {"span": 8, "max_distance": None}, {"span": 8, "max_distance": 20, "position_to_content": "paper"},
    {"span": 2, "max_distance": 6, "content_to_position": False}, {"span": 8, "position_to_content": None},
])  # fmt: skip
def test_rows_by_distance_of_deberta(settings):
    torch.manual_seed(0)
    encoding = whorl.Deberta(heads=HEADS, head_dim=DIM, width=WIDTH, **{"max_distance": 20} | settings).to(DEVICE)
    with torch.no_grad():
        encoding.relative.mul_(40.0)
    assert compared(encoding, tokens(PROMPT + STEPS)) < 4e-6


def test_rows_by_distance_of_a_clamped_code():
    encoding = whorl.TransformerXL(heads=HEADS, head_dim=DIM, width=WIDTH, clamp=7).to(DEVICE)
    assert compared(encoding, tokens(PROMPT + STEPS)) < 4e-6


def test_a_form_written_over_is_not_passed_by():
    class Mine(whorl.Shaw):
        def add_terms(self, pairs):
            return 2.0 * super().add_terms(pairs)

    encoding = Mine(head_dim=DIM, clip=3).to(DEVICE)
    with pytest.raises(whorl.WhorlError, match="Mine uses adjust_scores"):
        compared(encoding, tokens(PROMPT + STEPS))


@pytest.mark.parametrize(
    ("dim", "value_dim", "shared"),
    [
        pytest.param(dim, value_dim, shared, marks=() if shared == usual else pytest.mark.large)
        for dim, value_dim, usual in ((16, 16, 4), (24, 40, 2), (64, 16, 1))
        for shared in (1, 2, 4)
    ],
)
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


@pytest.mark.parametrize("name", ["alibi", "rerope", "shaw", "cope", "forgetting_gate", "deberta"])
def test_memory_behind_the_text_is_never_read(name, poisoned, split):
    text, encoding = tokens(PROMPT + STEPS), encoding_of(name)
    cache = whorl.KVCache(encoding=encoding, capacity=ROOM)
    cache.attend(*(x[:, :, :PROMPT] for x in text), **states(encoding, slice(0, PROMPT)))
    slots = cache._state.slots
    for memory in (slots.keys, slots.values, *(() if slots.memory is None else (slots.memory.unsqueeze(-1),))):
        memory[:, :, PROMPT:] = torch.nan
    at = slice(PROMPT, PROMPT + 1)
    out = cache.attend(*(x[:, :, at] for x in text), impl="triton", **states(encoding, at))
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


@pytest.mark.parametrize("name", ["transformer_xl", "shaw", "cope", "fire", "deberta"])
def test_learned_terms_are_read_anew_when_they_change(name):
    encoding, text = encoding_of(name), tokens(PROMPT + STEPS)
    assert compared(encoding, text) < 4e-6
    with torch.no_grad():
        for learned in encoding.parameters():
            learned.mul_(-1.5)
    assert compared(encoding, text) < 4e-6


@pytest.mark.parametrize(("name", "what"), [
    ("rope", "crop"), ("rope", "reorder"), ("rope", "change_encoding"), ("rerope", "crop"), ("rerope", "reorder"),
    ("rerope", "change_encoding"), ("forgetting_gate", "crop"), ("forgetting_gate", "reorder"),
])  # fmt: skip
def test_what_happens_to_a_cache_between_steps(name, what):
    encoding, text = encoding_of(name), tokens(PROMPT + STEPS)
    outs = []
    for impl in ("triton", "torch"):
        cache = whorl.KVCache(encoding=encoding, capacity=ROOM)
        cache.attend(*(x[:, :, :PROMPT] for x in text), **states(encoding, slice(0, PROMPT)))
        at = slice(PROMPT, PROMPT + 1)
        cache.attend(*(x[:, :, at] for x in text), impl=impl, **states(encoding, at))
        if what == "crop":
            cache.crop(PROMPT - 4)
        elif what == "reorder":
            cache.reorder([1, 0])
        else:
            cache.change_encoding(whorl.Rope(head_dim=DIM, base=500.0).to(DEVICE))
        at = slice(PROMPT + 1, PROMPT + 2)
        outs += [cache.attend(*(x[:, :, at] for x in text), impl=impl, **states(encoding, at))]
    torch.testing.assert_close(*outs, atol=4e-6, rtol=0)


def test_learned_angles_and_given_positions_are_left_to_torch():
    text = tokens(PROMPT + STEPS)
    step = [x[:, :, PROMPT : PROMPT + 1] for x in text]
    learned = whorl.KVCache(encoding=whorl.Rope(head_dim=DIM, learnable=True).to(DEVICE), policy="raw")
    learned.attend(*(x[:, :, :PROMPT] for x in text))
    with pytest.raises(whorl.WhorlError, match="keeps keys raw, and its angles are learned"):
        learned.attend(*step, impl="triton")
    for name, reason in (("shaw", "terms by distance"), ("rerope", "keeps keys raw, and positions were given")):
        cache = whorl.KVCache(encoding=encoding_of(name), capacity=ROOM)
        cache.attend(*(x[:, :, :10] for x in text), positions=whorl.positions(10, offset=100, device=DEVICE))
        cache.attend(*(x[:, :, 10:PROMPT] for x in text))
        with pytest.raises(whorl.WhorlError, match=reason):
            cache.attend(*step, impl="triton")
    cache = whorl.KVCache(encoding=encoding_of("rope"), capacity=ROOM)
    cache.attend(*(x[:, :, :PROMPT] for x in text), positions=whorl.positions(PROMPT, offset=100, device=DEVICE))
    with pytest.raises(whorl.WhorlError, match="positions were given"):
        cache.attend(*step, impl="triton")
    with pytest.raises(whorl.WhorlError, match="plain ones only"):
        cache.attend(*step, positions=whorl.positions(1, offset=200, device=DEVICE), impl="triton")


def test_a_window_after_positions_that_were_given():
    """Beyond 2^32 they are no numbers of 32 bits, in which they would be the first of a text."""
    encoding, text = encoding_of("sinks"), tokens(PROMPT + STEPS)
    fast, slow = (whorl.KVCache(encoding=encoding, capacity=ROOM) for _ in range(2))
    for cache in (fast, slow):
        far = whorl.positions(5, device=DEVICE) + 2**32
        cache.attend(*(x[:, :, :5] for x in text), positions=far)
        cache.attend(*(x[:, :, 5:PROMPT] for x in text))
    for at in range(PROMPT, PROMPT + STEPS):
        step = [x[:, :, at : at + 1] for x in text]
        torch.testing.assert_close(
            fast.attend(*step, impl="triton"), slow.attend(*step, impl="torch"), atol=4e-6, rtol=0
        )


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


@pytest.mark.parametrize("on_device_first", [False, True])
@pytest.mark.parametrize("name", ["rope", "alibi", "shaw", "xpos", "window"])
def test_several_tokens_counted_on_the_host_and_on_the_device(name, on_device_first):
    """A step made ready for one is taken for the other."""
    encoding, text = encoding_of(name), tokens(PROMPT + 8)
    fast, slow = (whorl.KVCache(encoding=encoding, capacity=ROOM) for _ in range(2))
    for cache in (fast, slow):
        cache.attend(*(x[:, :, :PROMPT] for x in text))
    on_device = on_device_first
    for at in range(PROMPT, PROMPT + 8, 2):
        clock = fast.count_on_device() if on_device else fast.count_on_host()
        step = [x[:, :, at : at + 2] for x in text]
        got = fast.attend(*step, impl="triton")
        if clock is not None:
            clock.advance(2)
        torch.testing.assert_close(got, slow.attend(*step, impl="torch"), atol=4e-6, rtol=0)
        on_device = not on_device


@pytest.mark.parametrize("name", ["window", "sinks"])
def test_a_window_at_negative_positions(name):
    """Where there are no sinks a position below 0 is none."""
    encoding, text = encoding_of(name), tokens(PROMPT + 2)
    fast, slow = (whorl.KVCache(encoding=encoding, capacity=ROOM) for _ in range(2))
    places = torch.arange(-PROMPT - 3, -3, device=DEVICE)
    for cache in (fast, slow):
        cache.attend(*(x[:, :, :PROMPT] for x in text), positions=places)
        cache.attend(*(x[:, :, PROMPT : PROMPT + 1] for x in text), impl="torch")
    step = [x[:, :, PROMPT + 1 :] for x in text]
    torch.testing.assert_close(fast.attend(*step, impl="triton"), slow.attend(*step, impl="torch"), atol=4e-6, rtol=0)


def test_a_clock_goes_on_from_what_it_has_counted():
    text = tokens(PROMPT + 4)
    cache, other = (whorl.KVCache(encoding=encoding_of("rope"), capacity=ROOM) for _ in range(2))
    for each in (cache, other):
        each.attend(*(x[:, :, :PROMPT] for x in text))
    clock = cache.count_on_device()
    for at in range(PROMPT, PROMPT + 2):
        cache.attend(*(x[:, :, at : at + 1] for x in text), impl="triton")
        clock.advance()
    assert int(cache.count_on_device().next) == PROMPT + 2
    for wrong, why in ((5, "clock"), (clock, f"holds {PROMPT}")):
        with pytest.raises(whorl.WhorlError, match=why):
            other.count_on_device(wrong)
    assert len(other) == PROMPT


def test_a_clock_refuses_what_a_captured_graph_would_not_see():
    text, encoding = tokens(PROMPT + 3), encoding_of("rope")
    cache = whorl.KVCache(encoding=encoding, capacity=ROOM)
    cache.attend(*(x[:, :, :PROMPT] for x in text), positions=3 * torch.arange(PROMPT, device=DEVICE))
    cache.attend(*(x[:, :, PROMPT : PROMPT + 1] for x in text), impl="torch")
    clock = cache.count_on_device()
    cache.attend(*(x[:, :, PROMPT + 1 : PROMPT + 2] for x in text), impl="triton")
    clock.advance()
    with pytest.raises(whorl.WhorlError, match="positions were given"):
        cache.crop(PROMPT)
    last = [x[:, :, PROMPT + 2 :] for x in text]
    for impl in ("torch", "auto") if DEVICE == "cpu" else ("torch",):  # on a CPU that is torch's
        with pytest.raises(whorl.WhorlError, match="count_on_host"):
            cache.attend(*last, impl=impl)


@pytest.mark.filterwarnings("ignore:All-NaN slice")  # of the interpreter's numpy, whose NaN this is
@pytest.mark.parametrize("name", ["rope", "alibi", "rerope", "fire", "deberta", "forgetting_gate"])
def test_a_token_beyond_the_room_is_seen(name):
    text, encoding = tokens(PROMPT + 2), encoding_of(name)
    cache = whorl.KVCache(encoding=encoding, capacity=PROMPT + 1)
    cache.attend(*(x[:, :, :PROMPT] for x in text), **states(encoding, slice(0, PROMPT)))
    clock = cache.count_on_device()
    last, more = [x[:, :, -1:] for x in text], states(encoding, slice(0, 1))
    assert torch.isfinite(cache.attend(*last, impl="triton", **more)).all()
    clock.advance()
    assert torch.isnan(cache.attend(*last, impl="triton", **more)).all()


BEYOND = {
    "learned angles": whorl.Rope(head_dim=DIM, learnable=True),
    "angles by head": whorl.Rope(head_dim=DIM, rotated_heads=(0, 1)),
    "rope": whorl.Rope(head_dim=DIM),
    "log_n": whorl.LogN(trained_length=8),
    "fire": whorl.Fire(heads=HEADS, length=8),
}


@pytest.mark.filterwarnings("ignore:All-NaN slice")
@pytest.mark.parametrize("given", [False, True], ids=["counted", "given"])
@pytest.mark.parametrize("name", BEYOND)
def test_a_token_beyond_the_room_is_placed_nowhere(name, given):
    """Where its position is looked up for each step."""
    text, encoding = tokens(PROMPT + 3, shared=1), BEYOND[name].to(DEVICE)
    cache = whorl.KVCache(encoding=encoding, capacity=PROMPT + 5)
    places = {"positions": 2 * torch.arange(PROMPT, device=DEVICE)} if given else {}
    cache.attend(*(x[:, :, :PROMPT] for x in text), **places)
    cache.attend(*(x[:, :, PROMPT : PROMPT + 1] for x in text), impl="torch")
    clock = cache.count_on_device()
    for count in (2, 1):
        assert torch.isfinite(cache.attend(*(x[:, :, -count:] for x in text), impl="triton")).all()
        clock.advance(count)
    both = cache.attend(*(x[:, :, -2:] for x in text), impl="triton")
    assert torch.isfinite(both[:, :, 0]).all() and torch.isnan(both[:, :, 1]).all()
    clock.advance(2)
    assert torch.isnan(cache.attend(*(x[:, :, -1:] for x in text), impl="triton")).all()


RAW = {
    "rerope": whorl.ReRope(head_dim=DIM, window=4),
    "dynamic": whorl.Rope(head_dim=DIM, scaling=whorl.DynamicNtk(factor=4.0, original_length=16)),
    "xpos": whorl.XPos(head_dim=DIM, scale_base=16.0),
    "self_extend": whorl.SelfExtend(head_dim=DIM, window=8, group=2),
}


@pytest.mark.parametrize("impl", ["auto", "triton"])
@pytest.mark.parametrize("name", RAW)
def test_a_step_made_ready_for_one_key_policy_serves_no_other(name, impl):
    """An encoding comes back to keys that another one keeps raw."""
    text, rope, other = tokens(PROMPT + 4), encoding_of("rope"), RAW[name].to(DEVICE)
    cache = whorl.KVCache(encoding=rope, capacity=ROOM)
    wanted = whorl.attention(*(x.double() for x in text), encoding=rope, impl="torch")

    def goes_on(at, **options):
        got = cache.attend(*(x[:, :, at : at + 1] for x in text), **options)
        torch.testing.assert_close(got.double(), wanted[:, :, at : at + 1], atol=4e-6, rtol=0)

    cache.attend(*(x[:, :, :PROMPT] for x in text))
    goes_on(PROMPT, impl=impl)
    goes_on(PROMPT + 1, impl=impl)
    cache.change_encoding(other)
    cache.change_encoding(rope)
    assert cache.policy == "raw"
    goes_on(PROMPT + 2, impl=impl)
    goes_on(PROMPT + 3, impl="torch")
    cache.reset()
    cache.change_encoding(rope)
    assert cache.policy == "transformed"
    cache.attend(*(x[:, :, :PROMPT] for x in text))
    goes_on(PROMPT, impl=impl)
    goes_on(PROMPT + 1, impl="torch")


def test_a_step_made_ready_for_whole_positions_reads_no_fractions():
    text, encoding = tokens(PROMPT + 3), encoding_of("window")
    cache, plain = (whorl.KVCache(encoding=encoding, capacity=ROOM) for _ in range(2))
    steps = [[x[:, :, at : at + 1] for x in text] for at in range(PROMPT, PROMPT + 3)]
    whole = 2 * torch.arange(PROMPT, device=DEVICE)
    for places in (whole, whole * 0.25):
        cache.reset()
        plain.reset()
        for each in (cache, plain):
            each.attend(*(x[:, :, :PROMPT] for x in text), positions=places)
            each.attend(*steps[0], impl="torch")
        if places is whole:
            cache.attend(*steps[1], impl="triton")
            continue
        with pytest.raises(whorl.WhorlError, match="positions were given"):
            cache.attend(*steps[1], impl="triton")
        got, wanted = cache.attend(*steps[1]), plain.attend(*steps[1], impl="torch")
        torch.testing.assert_close(got, wanted, atol=4e-6, rtol=0)


@pytest.mark.parametrize("impl", ["auto", "triton"])
@pytest.mark.parametrize("other", ["dtype", "value dimensions"])
def test_a_step_made_ready_for_other_memory_is_refused(other, impl):
    text, cache = tokens(PROMPT + 2), whorl.KVCache(encoding=encoding_of("alibi"), capacity=ROOM)
    cache.attend(*(x[:, :, :PROMPT] for x in text))
    cache.attend(*(x[:, :, PROMPT : PROMPT + 1] for x in text), impl=impl)
    cache.reset()
    q, k, v = (x[:, :, :PROMPT] for x in text)
    cache.attend(*((q.half(), k.half(), v.half()) if other == "dtype" else (q, k, v[..., :8])))
    with pytest.raises(whorl.WhorlError, match=r"the cache holds (keys in torch\.float16|values of shape)"):
        cache.attend(*(x[:, :, PROMPT : PROMPT + 1] for x in text), impl=impl)
    assert len(cache) == PROMPT


@pytest.mark.parametrize("name", ["rerope", "shaw", "transformer_xl", "alibi"])
def test_what_is_kept_for_steps_does_not_grow_with_lengths_and_scales(name, monkeypatch):
    """What a length or a scale decides is kept within a bound on memory, by kernels and on the CPU."""
    PLANS.cache_clear()
    monkeypatch.setattr(plans, "FEW", 1)
    monkeypatch.setattr(plans, "MOST_BYTES", 2)
    text, encoding = tokens(PROMPT + 8), encoding_of(name)
    exact = whorl.KVCache(encoding=encoding)
    caches = {impl: whorl.KVCache(encoding=encoding, capacity=ROOM) for impl in ("triton", "auto")}
    for cache in (exact, *caches.values()):
        cache.attend(*(x[:, :, :PROMPT] for x in text))
    sizes = []
    for at in range(PROMPT, PROMPT + 8):
        step, options = [x[:, :, at : at + 1] for x in text], {"length": at + 1, "scale": 0.2 + at / 100}
        wanted = exact.attend(*step, impl="torch", **options)
        for impl, cache in caches.items():
            torch.testing.assert_close(cache.attend(*step, impl=impl, **options), wanted, atol=4e-6, rtol=0)
        gc.collect()
        sizes.append(sum(tables.is_of(encoding) for tables in made_of._TABLES.values()))
    assert max(sizes) <= 3  # of a plan, of the one before, and of what a cache's last step holds


def test_a_bias_in_reverse_is_made_once_for_every_length_and_scale(monkeypatch):
    made, usual = [], BiasByDistance.table
    monkeypatch.setattr(BiasByDistance, "table", lambda *given: made.append(given) or usual(*given))
    text = [x.cpu() for x in tokens(PROMPT + 6)]
    cache = whorl.KVCache(encoding=whorl.Kerple(heads=HEADS), capacity=ROOM)
    cache.attend(*(x[:, :, :PROMPT] for x in text))
    for at in range(PROMPT, PROMPT + 6):
        cache.attend(*(x[:, :, at : at + 1] for x in text), length=at, scale=0.1 * at)
    assert len(made) == 1


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


@pytest.mark.parametrize("name", ["rope", "rerope"])
def test_steps_on_a_small_card(name, split, monkeypatch):
    """With less memory a tile has fewer keys; ``tests/kernels/test_shared_memory.py`` compiles them."""
    monkeypatch.setattr(decode_triton, "shared_memory", lambda device: 4 * 1024)
    assert tile_of(16, DIM, DIM, torch.float32, 4 * 1024).keys == 16
    assert compared(encoding_of(name), tokens(PROMPT + STEPS)) < 4e-6


def test_queries_that_do_not_fit_are_left_to_torch(monkeypatch):
    monkeypatch.setattr(decode_triton, "shared_memory", lambda device: 1024)
    with pytest.raises(whorl.WhorlError, match="no room for keys"):
        compared(encoding_of("rope"), tokens(PROMPT + STEPS))


def test_every_multiprocessor_has_work():
    assert parts_of(64, 2048, 132) * 64 >= 132
    assert parts_of(1024, 2048, 132) == 1
    assert parts_of(1, 64, 132) == 1


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")  # the one whose capture raises
@pytest.mark.parametrize("name", ["rope", "t5", "alibi", "window", "fire", "rerope", "xpos", "shaw", "cope", "deberta"])
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
