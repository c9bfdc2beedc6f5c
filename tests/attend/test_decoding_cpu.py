"""Steps of a cache on the CPU: equal to the reference, and past torch's operators only where that is safe."""

import copy
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import whorl
from whorl.attend.decoding_cpu import AHEAD
from whorl.registry import build_for

SETTINGS = {
    "fire": {"length": 16},
    "log_n": {"trained_length": 8},
    "deberta": {"span": 4, "max_distance": 9},
    "shaw": {"clip": 3},
    "sinks": {"size": 12, "count": 2},
    "window": {"size": 5},
}
NAMES = (
    "none", "rope", "alibi", "t5", "kerple", "sandwich", "fire", "window", "sinks", "mrope", "learned", "log_n",
    "rope + t5 + window", "alibi + window", "shaw", "deberta", "transformer_xl", "transformer_xl + kerple",
    "shaw + window", "deberta + alibi + window",
)  # fmt: skip
REFUSED = ("fire", "sinks")
WITH_ROWS = ("shaw", "deberta", "transformer_xl")  # which are made in float32
PROMPT, STEPS, ROOM = 37, 3, 80
HEADS, DIM, BATCH, WIDTH = 4, 16, 2, 24


def encoding_of(name):
    torch.manual_seed(1)
    sizes = {"heads": HEADS, "head_dim": DIM, "width": WIDTH, "length": 64}
    parts = [build_for(part, **sizes | SETTINGS.get(part, {})) for part in name.split(" + ")]
    encoding = parts[0] if len(parts) == 1 else whorl.Combined(*parts)
    with torch.no_grad():
        for learned in encoding.parameters():  # some of which start at 0
            learned.add_(0.3 * torch.randn_like(learned))
    return encoding


def refused(name, dtype):
    return name in REFUSED or (dtype == torch.float64 and any(part in name for part in WITH_ROWS))


def tokens(count, dtype=torch.float32):
    torch.manual_seed(0)
    return [torch.randn(BATCH, heads, count, DIM, dtype=dtype) for heads in (HEADS, HEADS // 2, HEADS // 2)]


@pytest.mark.filterwarnings("ignore:T5. the last bucket")
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", NAMES)
def test_a_step_equals_the_reference(name, dtype, padded):
    encoding, text = encoding_of(name).to(dtype), [x.requires_grad_() for x in tokens(PROMPT + STEPS, dtype)]
    close = 4e-6 if dtype == torch.float32 else 1e-12
    mask = torch.arange(PROMPT) >= torch.tensor([[0], [5]]) if padded else None
    fast, slow = (whorl.KVCache(encoding=encoding, capacity=ROOM) for _ in range(2))
    for cache in (fast, slow):
        cache.attend(*(x[:, :, :PROMPT] for x in text), key_mask=mask)
    for at in range(PROMPT, PROMPT + STEPS):
        step = [x[:, :, at : at + 1] for x in text]
        got, wanted = fast.attend(*step), slow.attend(*step, impl="torch")
        torch.testing.assert_close(got, wanted, atol=close, rtol=0)
        assert not got.requires_grad
    assert (not fast._working) == refused(name, dtype)


class Text:
    """Padded rows that a cache is given in pieces, each of which is compared with attention to the whole text."""

    def __init__(self, encoding, dtype=torch.float32, capacity=None):
        self.cache = whorl.KVCache(encoding=encoding, capacity=capacity)
        self.tokens, self.real = [x.to(dtype) for x in tokens(0)], torch.ones(BATCH, 0, dtype=torch.bool)
        self.close = {"atol": 0.08 if dtype == torch.bfloat16 else 4e-6, "rtol": 0}

    def add(self, mask):
        """New tokens, one for each column: False is padding."""
        self._give(mask, key_mask=mask)

    def step(self, count=1):
        """Plain steps of one token each."""
        for _ in range(count):
            self._give(torch.ones(BATCH, 1, dtype=torch.bool))

    def _give(self, mask, **options):
        new = [torch.randn(*x.shape[:2], mask.shape[1], DIM).to(x.dtype) for x in self.tokens]
        out = self.cache.attend(*new, **options)
        self.tokens = [torch.cat(pair, 2) for pair in zip(self.tokens, new, strict=True)]
        self.real, encoding = torch.cat((self.real, mask), 1), self.cache.encoding
        positions = (self.real.cumsum(1) - 1).clamp(min=0)
        positions = positions if encoding.axes == 1 else positions.expand(encoding.axes, -1, -1)
        exact = [x if x.dtype != torch.bfloat16 else x.double() for x in self.tokens]
        whole = whorl.attention(*exact, encoding=encoding, positions=positions, key_mask=self.real, impl="torch")
        whole, seen = whole[:, :, -mask.shape[1] :], mask[:, None, :, None]
        torch.testing.assert_close(out * seen, (whole * seen).to(out.dtype), **self.close)

    def crop(self, fewer):
        count = max(0, self.real.shape[1] - fewer)
        self.cache.crop(count)
        self.tokens, self.real = [x[:, :, :count] for x in self.tokens], self.real[:, :count]

    def reorder(self, rows):
        self.cache.reorder(rows)
        self.tokens, self.real = [x[list(rows)] for x in self.tokens], self.real[list(rows)]

    def learn(self):
        with torch.no_grad():
            for learned in self.cache.encoding.parameters():
                learned.add_(0.1)


def padding(*where):
    """A prompt with padding there, in the second row unless (row, where)."""
    mask = torch.ones(BATCH, PROMPT, dtype=torch.bool)
    for each in where:
        row, slots = each if isinstance(each, tuple) else (1, each)
        mask[row, slots] = False
    return mask


LAYOUTS = {
    "left": padding(slice(5)),
    "right": padding(slice(-5, None)),
    "middle": padding(slice(7, 12)),
    "everywhere": padding(slice(3), slice(7, 12), slice(20, 21), slice(-2, None)),
    "left and right": padding((0, slice(6)), slice(-9, None)),
    "a whole row": padding(slice(None)),
    "all rows": padding((0, slice(None)), slice(None)),
}


@pytest.mark.filterwarnings("ignore:T5. the last bucket")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", NAMES)
def test_padded_rows_of_every_layout(name, layout, dtype):
    text = Text(encoding_of(name), dtype)
    text.add(LAYOUTS[layout])
    text.step()
    assert (not text.cache._working) == refused(name, dtype)
    text.step(29)  # past the window, and more than the first memory has room for
    assert len(text.cache) > 64 and (not text.cache._working) == refused(name, dtype)


columns = st.lists(st.lists(st.booleans(), min_size=BATCH, max_size=BATCH), min_size=1, max_size=9)
masks = columns.map(lambda drawn: torch.tensor(drawn).mT)
changes = st.one_of(
    st.tuples(st.just("add"), masks),
    st.tuples(st.just("crop"), st.integers(0, 12)),
    st.tuples(st.just("reorder"), st.tuples(*[st.integers(0, BATCH - 1)] * BATCH)),
    st.tuples(st.just("learn")),
)


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from(["rope", "alibi", "kerple", "window", "alibi + window", *WITH_ROWS]), prompt=masks,
       program=st.lists(st.tuples(changes, st.integers(0, 3)), max_size=6))  # fmt: skip
def test_padding_that_changes_between_steps(name, prompt, program):
    text = Text(encoding_of(name), capacity=128)
    text.add(prompt)
    text.step(2)
    for (change, *values), count in program:
        if change != "reorder" or len(text.cache):
            getattr(text, change)(*values)
        text.step(count)
    text.step(2)
    assert text.cache._working


@pytest.mark.parametrize("copied", [lambda cache: cache, copy.deepcopy])
def test_padding_that_changes_in_inference_mode(copied):
    """Memory that is made there counts nowhere how often it was written into."""
    text = Text(encoding_of("alibi"), capacity=ROOM)
    text.add(LAYOUTS["left"])
    text.step(2)
    with torch.inference_mode():
        text.cache = copied(text.cache)
        for layout in ("right", "middle"):
            text.step(2)
            text.add(LAYOUTS[layout][:, ::3])
            text.step(2)
    assert text.cache._working


def test_a_negative_view_is_read_with_its_sign():
    """torch marks it, and turns the sign as its operators read; a kernel that reads the memory would miss it."""
    text = tokens(PROMPT)
    step = [torch.randn(BATCH, heads, 1, DIM, dtype=torch.complex64) for heads in (HEADS, HEADS // 2, HEADS // 2)]
    negative = [x.conj().imag for x in step]
    assert all(x.is_neg() for x in negative)
    outs = []
    for marked in (True, False):
        cache = whorl.KVCache(encoding=whorl.Rope(head_dim=DIM), capacity=ROOM)
        cache.attend(*text)
        cache.attend(*(x.imag for x in step))  # of the same kind but for the sign
        assert cache._working
        outs.append(cache.attend(*(x if marked else x.resolve_neg() for x in negative)))
    torch.testing.assert_close(*outs, atol=4e-6, rtol=0)


def test_a_step_of_what_is_learned_keeps_no_gradient():
    encoding, text = whorl.Rope(head_dim=DIM, learnable=True), tokens(PROMPT + 1)
    cache = whorl.KVCache(encoding=encoding, capacity=ROOM)
    cache.attend(*(x[:, :, :PROMPT] for x in text))
    out = cache.attend(*(x[:, :, PROMPT:] for x in text))
    assert cache._working and any(learned.requires_grad for learned in encoding.parameters())
    slots = cache._state.slots
    assert slots is not None and not out.requires_grad and not slots.keys.requires_grad


def test_what_is_learned_meanwhile_is_seen():
    encoding, text = encoding_of("kerple"), tokens(PROMPT + 3)
    cache = whorl.KVCache(encoding=encoding, capacity=ROOM)
    cache.attend(*(x[:, :, :PROMPT] for x in text))
    for at in (PROMPT, PROMPT + 1, PROMPT + 2):
        got = cache.attend(*(x[:, :, at : at + 1] for x in text))
        whole = whorl.attention(*(x[:, :, : at + 1] for x in text), encoding=encoding, impl="torch")
        torch.testing.assert_close(got, whole[:, :, -1:], atol=4e-6, rtol=0)
        with torch.no_grad():
            for learned in encoding.parameters():
                learned.add_(0.5)
    assert cache._working


def _optimizer(encoding):
    for learned in encoding.parameters():
        learned.grad = learned.detach().clone()
    torch.optim.SGD(encoding.parameters(), lr=0.5).step()


def _data_in_place(encoding):
    for learned in encoding.parameters():
        learned.data.mul_(3)


def _vector(encoding):
    numbers = torch.nn.utils.parameters_to_vector(encoding.parameters())
    torch.nn.utils.vector_to_parameters(3 * numbers.detach(), encoding.parameters())


def _state(encoding):
    encoding.load_state_dict({name: 3 * value for name, value in encoding.state_dict().items()}, assign=True)


def _rounded(encoding):
    encoding.to(torch.bfloat16)


def ready_cache(name):
    """A cache whose next plain step, of the last token, is ready to run."""
    encoding, text = encoding_of(name), tokens(PROMPT + 3)
    cache = whorl.KVCache(encoding=encoding, capacity=ROOM)
    for part in (slice(PROMPT), slice(PROMPT, PROMPT + 1), slice(PROMPT + 1, PROMPT + 2)):
        cache.attend(*(x[:, :, part] for x in text))
    assert cache._working
    return cache, text


def assert_next_step_is_exact(cache, text):
    whole = whorl.attention(*text, encoding=cache.encoding, impl="torch")[:, :, -1:]
    got = cache.attend(*(x[:, :, -1:] for x in text))
    torch.testing.assert_close(got, whole, atol=4e-6, rtol=0)


@pytest.mark.filterwarnings("ignore:T5. the last bucket")
@pytest.mark.parametrize("change", [_optimizer, _data_in_place, _vector, _state, _rounded])
@pytest.mark.parametrize("name", ["t5", "kerple", *WITH_ROWS])
def test_numbers_are_seen_however_they_are_written(name, change):
    cache, text = ready_cache(name)
    change(cache.encoding)
    assert_next_step_is_exact(cache, text)


@pytest.mark.filterwarnings("ignore:T5. the last bucket")
@pytest.mark.parametrize("name", ["rope", "t5", "ssmax", *WITH_ROWS])
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda cache: pickle.loads(pickle.dumps(cache))])
def test_a_copy_reads_its_own_encoding(name, copied):
    cache, text = ready_cache(name)
    twin = copied(cache)
    _data_in_place(twin.encoding)
    for each in (twin, cache):
        assert_next_step_is_exact(each, text)


@pytest.mark.parametrize("policy", ["transformed", "raw"])
def test_a_shallow_copy_fills_slots_of_its_own(policy):
    """As beams that part: both go on from the same text, with the same encoding."""
    encoding, text = whorl.Rope(head_dim=DIM), tokens(5)
    cache = whorl.KVCache(encoding=encoding, policy=policy)
    cache.attend(*(x[:, :, :3] for x in text))
    other = [text[0], *(x.clone() for x in text[1:])]
    for x in other[1:]:
        x[:, :, 3] *= 3
    twin = copy.copy(cache)
    assert twin.encoding is encoding and len(twin) == 3
    for each, own in ((twin, other), (cache, text)):
        each.attend(*(x[:, :, 3:4] for x in own))
    for each, own in ((twin, other), (cache, text)):
        got, whole = each.attend(*(x[:, :, 4:] for x in own)), whorl.attention(*own, encoding=encoding)
        torch.testing.assert_close(got, whole[:, :, 4:], atol=4e-6, rtol=0)


ROWS = {
    "no values": lambda: whorl.Shaw(head_dim=DIM, clip=5, values=False),
    "more rows than keys": lambda: whorl.Shaw(head_dim=DIM, clip=200),
    "clipped": lambda: whorl.Deberta(heads=HEADS, head_dim=DIM, span=5, max_distance=None, position_to_content="paper"),
    "keys alone": lambda: whorl.Deberta(heads=HEADS, head_dim=DIM, span=6, max_distance=40, content_to_position=False),
    "queries alone": lambda: whorl.Deberta(heads=HEADS, head_dim=DIM, span=6, position_to_content=None),
    "clamped": lambda: whorl.TransformerXL(heads=HEADS, head_dim=DIM, clamp=7, width=9),
    "clamped far": lambda: whorl.TransformerXL(heads=HEADS, head_dim=DIM, clamp=1000),
}


@pytest.mark.parametrize("layout", ["none", "left", "everywhere"])
@pytest.mark.parametrize("form", ROWS)
def test_rows_of_every_form(form, layout):
    """Fewer rows than keys and more, and texts that outgrow the rows which were made."""
    encoding = ROWS[form]()
    with torch.no_grad():
        for learned in encoding.parameters():
            learned.add_(0.3 * torch.randn_like(learned))
    text = Text(encoding, capacity=256)
    text.add(LAYOUTS.get(layout, padding()))
    text.step(3)
    text.learn()
    text.step(30)
    assert text.cache._working


@pytest.mark.parametrize("name", WITH_ROWS)
def test_rows_are_made_once_for_the_text_and_not_for_all_the_room(name, monkeypatch):
    encoding, made = encoding_of(name), []
    own = encoding.rows_by_distance

    def watched(count, first=0):
        made.extend(range(first, first + count))
        return own(count, first)

    monkeypatch.setattr(encoding, "rows_by_distance", watched)
    caches, text = [whorl.KVCache(encoding=encoding, capacity=2**20) for _ in range(2)], tokens(90)  # of two layers
    for at in (slice(PROMPT), *(slice(at, at + 1) for at in range(PROMPT, 90))):
        for cache in caches:
            cache.attend(*(x[:, :, at] for x in text))
    assert made == list(range(len(made))) and len(made) <= 90 + AHEAD


@pytest.mark.parametrize("count", [12, 5])
def test_rows_of_a_clip_are_no_more_than_are_asked_for(count):
    """A room for few tokens needs no row for each distance that the clip tells apart."""
    for encoding in (
        whorl.Shaw(head_dim=4, clip=9),
        whorl.TransformerXL(heads=1, head_dim=4, clamp=9),
        whorl.Deberta(heads=1, head_dim=4, span=9, max_distance=None),
    ):
        rows = encoding.rows_by_distance(count)
        assert rows.query.shape[-2] == min(10, count)
        parts = [encoding.rows_by_distance(3, first).query for first in range(0, count, 3)]
        torch.testing.assert_close(torch.cat(parts, -2)[..., :count, :], rows.query)


def test_a_large_bias_is_not_rounded_to_half_precision():
    """Those of Sandwich are large, and differ between neighbours by less than bfloat16 can tell."""
    encoding = whorl.Sandwich(heads=HEADS)
    text = [x.bfloat16() for x in tokens(2000)]
    cache = whorl.KVCache(encoding=encoding, capacity=2000)
    for part in (slice(1998), slice(1998, 1999)):
        cache.attend(*(x[:, :, part] for x in text))
    assert cache._working
    got = cache.attend(*(x[:, :, -1:] for x in text))
    whole = whorl.attention(*(x.double() for x in text), encoding=encoding, impl="torch")[:, :, -1:]
    torch.testing.assert_close(got.double(), whole, atol=6e-3, rtol=0)


def test_heads_larger_than_the_stack_has_room_for():
    dim = 2112
    cache, text = whorl.KVCache(encoding=whorl.Rope(head_dim=dim), capacity=4), torch.randn(3, 1, 2, 3, dim)
    cache.attend(*text[..., :1, :])
    for at in (1, 2):
        got = cache.attend(*text[..., at : at + 1, :])
        whole = whorl.attention(*text[..., : at + 1, :], encoding=cache.encoding)
        torch.testing.assert_close(got, whole[:, :, -1:], atol=4e-6, rtol=0)
    assert cache._working


@pytest.mark.filterwarnings("ignore:T5. the last bucket")
@pytest.mark.parametrize("name", NAMES)
def test_steps_of_no_rows(name):
    encoding, text = encoding_of(name), [x[:0] for x in tokens(5)]
    mask = torch.ones(0, 2, dtype=torch.bool)
    for options in ({}, {"key_mask": mask}):
        cache = whorl.KVCache(encoding=encoding)
        cache.attend(*(x[:, :, :2] for x in text), **options)
        for at in (2, 3, 4):
            assert cache.attend(*(x[:, :, at : at + 1] for x in text)).shape == (0, HEADS, 1, DIM)
        assert len(cache) == 5
