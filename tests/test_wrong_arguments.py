"""Wrong arguments of public calls get a WhorlError or a right answer, never another exception."""

import math
import random
import warnings
from functools import cache

import numpy as np
import pytest
import torch

import whorl
import whorl.models
from whorl import WhorlError

BATCH, HEADS, KEY_HEADS, LENGTH, DIM = 2, 4, 2, 3, 8


class Sub(torch.Tensor):
    """A subclass that does nothing of its own."""


def draw(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def nested(layout=torch.strided):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls them a prototype
        return torch.nested.nested_tensor([draw(LENGTH, DIM), draw(2, DIM)], layout=layout)


def quantised(x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch is about to drop them
        return torch.quantize_per_tensor(x, 0.1, 0, torch.quint8)


def sparse_rows(x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls them a beta
        return x.to_sparse_csr()


def odd_values():
    """What is given in place of every argument, one by one."""
    x, table, ids, weight = (
        draw(BATCH, HEADS, LENGTH, DIM),
        torch.ones(LENGTH, DIM // 2),
        torch.arange(LENGTH),
        draw(DIM),
    )
    plain = [
        None,
        3,
        0,
        -1,
        1.5,
        True,
        False,
        10**30,
        10**400,
        float("nan"),
        "abc",
        [0, 1, 2],
        (),
        (0,),
        (9,),
        {},
        object(),
    ]
    plain += [
        torch.float32,
        torch.int32,
        np.ones((LENGTH, DIM // 2)),
        np.arange(LENGTH),
        np.int64(2),
        x.numpy(),
        np.float32(0.5),
        np.bool_(True),
    ]
    plain += ["half", "interleaved_to_half", "thd", "blhd", "torch", "numba", "triton", "flex"]
    queries = [x, x[0], x[0, 0], x[0, 0, 0], x[None], x.long(), x > 0, torch.complex(x, x), x.half(), x.double()]
    queries += [x.to("meta"), x.to_sparse(), sparse_rows(x[0, 0]), nested(), nested(torch.jagged), x.to_mkldnn()]
    queries += [x.as_subclass(Sub), quantised(x), x.to(torch.float8_e4m3fn), x[:0], x[..., :0], torch.tensor(1.0)]
    queries += [x[:1, :1].expand(x.shape), x.clone().requires_grad_(), torch.nn.Parameter(x.clone())]
    tables = [table, table.long(), table > 0, table.to(torch.complex64), table.to("meta"), table.to_sparse()]
    tables += [table.repeat(3, 1), table.repeat(1, 2), table[:, :0], table[:0], table.half(), table.as_subclass(Sub)]
    tables += [table.expand(n, LENGTH, DIM // 2) for n in (1, BATCH, 3)]
    tables += [table.expand(BATCH, n, LENGTH, DIM // 2) for n in (1, KEY_HEADS, 3, HEADS)]
    tables += [table.expand(1, BATCH, HEADS, LENGTH, DIM // 2), quantised(table), weight, weight.to("meta")]
    rows = [ids, ids.float(), ids > 0, ids.to("meta"), ids[:2], ids.expand(BATCH, LENGTH), ids.expand(3, LENGTH)]
    rows += [ids.int(), ids.short(), ids.to(torch.uint8), ids.to_sparse(), ids[0], ids.as_subclass(Sub), ids + 100]
    return plain + queries + tables + rows


def arguments(call, *names, encoding=None, **more):
    """Good arguments by name, ``more`` of them in place of the usual ones."""
    cos, sin = whorl.Rope(head_dim=DIM).tables(torch.arange(LENGTH))
    good = {
        "x": draw(BATCH, HEADS, LENGTH, DIM),
        "q": draw(BATCH, HEADS, LENGTH, DIM),
        "k": draw(BATCH, KEY_HEADS, LENGTH, DIM),
        "v": draw(BATCH, KEY_HEADS, LENGTH, DIM),
        "keys": torch.zeros(BATCH, KEY_HEADS, 6, DIM),
        "values": torch.zeros(BATCH, KEY_HEADS, 6, DIM),
        "slots": torch.arange(LENGTH),
        "q_weight": torch.ones(DIM),
        "k_weight": torch.ones(DIM),
        **{"cos": cos, "sin": sin, "rows": None, "out": None, "heads": None, "layout": "half", "inverse": False},
        **{"start": 0, "blocks": 1, "order": "bhld", "impl": "auto", "eps": 1e-6, "length": None},
        **{"dtype": torch.float32, "positions": torch.arange(LENGTH), "q_positions": torch.arange(LENGTH)},
        "k_positions": torch.arange(LENGTH),
        **dict.fromkeys(("key_positions", "mask", "key_mask", "documents", "key_documents", "scale", "softcap")),
        **{"encoding": encoding, "causal": True, "dropout": 0.0, "hidden": None, "decay": None, "chunk": None},
        **{"return_lse": False, "return_weights": False, "return_stats": False, "feature": "elu+1"},
        **{"form": "numerator", "capacity": None, "policy": "auto", "count": 2, "tokens": torch.zeros(BATCH, LENGTH)},
        **more,
    }
    return call, {name: good[name] for name in names}


def cached(name):
    """A method of a cache that has attended to a few tokens, which a call that fails leaves as it was."""

    def call(**given):
        cache = whorl.KVCache(encoding=whorl.Rope(head_dim=DIM))
        text = draw(BATCH, HEADS, LENGTH, DIM), *(draw(BATCH, KEY_HEADS, LENGTH, DIM) for _ in range(2))
        for part in (slice(2), slice(2, LENGTH)):
            cache.attend(*(x[:, :, part] for x in text), scale=1.0)  # the last makes a kind of step ready
        try:
            return getattr(cache, name)(**given)
        except Exception:
            assert len(cache) == LENGTH
            cache.attend(*(x[:, :, :1] for x in text), scale=1.0)
            raise

    return call


@cache
def model(cls=whorl.models.Decoder, encoding="rope"):
    return cls(9, 2, HEADS * DIM, HEADS, encoding, length=8).eval()


OWN = object()  # stands for the caches of the decoder that is stepped


def stepped(*, caches=None, **given):
    """A step of a decoder whose caches hold a few tokens, which a step that fails leaves as they were."""
    decoder, text = model(), torch.arange(2 * LENGTH).view(BATCH, LENGTH)
    own = decoder.caches()
    for part in (slice(2), slice(2, LENGTH)):
        decoder.step(text[:, part], own)
    try:
        return decoder.step(caches=own if caches is OWN else caches, **given)
    except Exception:
        assert [len(cache) for cache in own] == [LENGTH, LENGTH]
        decoder.step(text[:, :1], own)
        raise


TURN = ("cos", "sin", "layout", "start", "blocks", "order", "rows", "impl")
ENCODINGS = {
    "rope": lambda: whorl.Rope(head_dim=DIM),
    "some_heads": lambda: whorl.Rope(head_dim=DIM, rotated_heads=(1,)),
    "mrope": lambda: whorl.MRope(head_dim=DIM, sections=(2, 1, 1)),
}
CALLS = {
    "rotate": lambda: arguments(whorl.rotate, "x", *TURN, "inverse", "heads", "out"),
    "rotate_qk": lambda: arguments(whorl.rotate_qk, "q", "k", *TURN, "inverse"),
    "rotate_append": lambda: arguments(whorl.rotate_append, "q", "k", "v", *TURN, "keys", "values", "slots"),
    "norm_rotate_qk": lambda: arguments(whorl.norm_rotate_qk, "q", "k", *TURN, "q_weight", "k_weight", "eps"),
    "explain_rotate": lambda: arguments(whorl.explain_rotate, "x", "cos", "sin", "impl"),
}
ATTENTION = ("q", "k", "v", "causal", "positions", "key_mask", "length", "impl")
SOFTMAX = (*ATTENTION, "scale", "softcap", "hidden")
ASKED = ("key_positions", "mask", "documents", "key_documents", "dropout", "return_lse", "return_weights")
LINEAR = ("encoding", "feature", "form", "decay", "chunk", "eps", "length")
CALLS |= {
    "attention": lambda: arguments(whorl.attention, "encoding", *SOFTMAX, *ASKED, encoding=whorl.Rope(head_dim=DIM)),
    "attention, a bias": lambda: arguments(
        whorl.attention, "encoding", *SOFTMAX, *ASKED, encoding=whorl.Alibi(heads=HEADS)
    ),
    "linear_attention": lambda: arguments(
        whorl.linear_attention, *ATTENTION, *LINEAR[:-1], "key_positions", "return_stats"
    ),
    "LinearState": lambda: arguments(whorl.LinearState, *LINEAR),
    "KVCache": lambda: arguments(
        whorl.KVCache, "encoding", "capacity", "policy", "length", encoding=whorl.Rope(head_dim=DIM)
    ),
    "KVCache.attend": lambda: arguments(cached("attend"), *SOFTMAX),
    "KVCache.reorder": lambda: arguments(cached("reorder"), "rows", rows=[1, 0]),
    "KVCache.crop": lambda: arguments(cached("crop"), "count"),
    "KVCache.positions_to_come": lambda: arguments(cached("positions_to_come"), "tokens", "key_mask"),
    "KVCache.change_encoding": lambda: arguments(
        cached("change_encoding"), "encoding", "positions", "length", encoding=whorl.Rope(head_dim=DIM, base=500.0)
    ),
}
OF_ANY_SIZE = {"Decoder", "RoFormer", "Decoder.generate"}  # as far as there is memory, which is torch's to say
IDS = {"tokens": torch.zeros(BATCH, LENGTH, dtype=torch.long), "positions": None, "documents": None, "types": None}
SIZES = {"vocab": 9, "layers": 2, "width": HEADS * DIM, "heads": HEADS, "hidden": None, "head_dim": None}
FORM = {"encoding": "rope", "length": 8, "eps": 1e-5, "activation": "gelu", "dropout": 0.1}
DECODER = {"kv_heads": None, "norm": "rms", "norm_position": "pre", "bias": True, "attention_bias": None}
DRAWN = {"temperature": 1.0, "top_k": 2, "generator": None, "graph": None}
CALLS |= {
    "Decoder": lambda: (whorl.models.Decoder, SIZES | FORM | DECODER | {"tied": True, "embedding_norm": False}),
    "RoFormer": lambda: (
        whorl.models.RoFormer,
        {name: value for name, value in SIZES.items() if name != "head_dim"}
        | FORM
        | {"embedding": None, "types": 2, "rotary_value": False},
    ),
    "Decoder.forward": lambda: arguments(model(), "tokens", "positions", "documents", "key_mask", "length", **IDS),
    "RoFormer.forward": lambda: arguments(
        model(whorl.models.RoFormer), "tokens", "types", "positions", "documents", "key_mask", "length", **IDS
    ),
    "Decoder.step": lambda: arguments(stepped, "tokens", "caches", "positions", "key_mask", caches=OWN, **IDS),
    "Decoder.generate": lambda: arguments(
        model().generate, "tokens", "count", "key_mask", "length", *DRAWN, **IDS, **DRAWN
    ),
    "Decoder.caches": lambda: arguments(model().caches, "capacity", "length"),
}
for _name, _make in ENCODINGS.items():
    CALLS[f"{_name}.tables"] = lambda make=_make: arguments(make().tables, "positions", "length", "dtype")
    CALLS[f"{_name}.rotate"] = lambda make=_make: arguments(
        make().rotate, "x", "positions", "length", "inverse", "order", "impl"
    )
    _heads = HEADS if _name == "some_heads" else KEY_HEADS
    CALLS[f"{_name}.transform_qk"] = lambda make=_make, heads=_heads: arguments(
        make().transform_qk, "q", "k", "q_positions", "k_positions", "length", "order", "impl",
        k=draw(BATCH, heads, LENGTH, DIM),
    )  # fmt: skip


def attempt(name, changes):
    """Whether the call was refused; any other exception than a WhorlError is raised with what was changed."""
    call, given = CALLS[name]()
    if name in OF_ANY_SIZE and any(isinstance(value, int) and value > 2**62 for value in changes.values()):
        return False
    try:
        call(**{**given, **changes})
    except WhorlError as error:
        assert str(error)[-1] in ".?", f"{name}: no sentence: {error}"
        return True
    except Exception as error:
        what = {key: f"{type(value).__name__} {getattr(value, 'dtype', value)!r}" for key, value in changes.items()}
        raise AssertionError(f"{name} with {what}: {type(error).__name__}: {error}") from error
    return False


@pytest.mark.parametrize("name", CALLS)
def test_one_wrong_argument(name):
    assert not attempt(name, {})  # and from now on a call of the kind is kept ready
    values = odd_values()
    keys = CALLS[name]()[1]
    refused = sum(attempt(name, {key: value}) for key in keys for value in values)
    assert refused > len(values) * len(keys) / 2


def check_several(count, seed):
    rng, values = random.Random(seed), odd_values()
    for _ in range(count):
        name = rng.choice(list(CALLS))
        keys = list(CALLS[name]()[1])
        attempt(name, {key: rng.choice(values) for key in rng.sample(keys, min(len(keys), rng.choice((2, 3))))})


def test_several_wrong_arguments():
    check_several(800, seed=0)


@pytest.mark.large
def test_several_wrong_arguments_many_times():
    check_several(60_000, seed=1)


def test_tables_of_another_number_of_heads_are_refused(kernel):
    """A kernel would read past them."""
    name, device = kernel
    q, k = draw(2, 4, 3, 8).to(device), draw(2, 2, 3, 8).to(device)
    for heads in (2, 3, 8):
        table = torch.ones(2, heads, 3, 4, device=device)
        for impl in (name, "torch"):
            with pytest.raises(WhorlError, match=f"rotate: tables are for {heads} heads, x has 4. Pass tables of"):
                whorl.rotate(q, table, table, impl=impl)
    table = torch.ones(2, 4, 3, 4, device=device)
    with pytest.raises(WhorlError, match="rotate_qk: tables are for 4 heads, k has 2"):
        whorl.rotate_qk(q, k, table, table, impl=name)
    whorl.rotate_qk(q, k, table[:, :1], table[:, :1], impl=name)


def test_one_table_elsewhere_is_refused(kernel):
    """Its address is not one of this device."""
    name, device = kernel
    x, cos, sin = draw(2, 4, 3, 8).to(device), torch.ones(3, 4, device=device), torch.ones(3, 4, device="meta")
    for impl in (name, "torch", "auto"):
        for tables in ((cos, sin), (sin, cos)):
            with pytest.raises(WhorlError, match="rotate: tables are on meta and x on"):
                whorl.rotate(x, *tables, impl=impl)


@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_attention_of_what_is_not_dense(name):
    given = dict.fromkeys("qkv", draw(2, 4, 3, 8))
    for value in (draw(2, 4, 3, 8).to_sparse(), nested(), nested(torch.jagged), draw(2, 4, 3, 8).to_mkldnn()):
        with pytest.raises(WhorlError, match=f"attention: {name} must be .*stored densely; it is "):
            whorl.attention(**{**given, name: value}, encoding=whorl.Rope(head_dim=8))


def test_some_heads_of_a_tensor_without_heads():
    rope = whorl.Rope(head_dim=8, rotated_heads=(0,))
    with pytest.raises(
        WhorlError, match=r"x must be a tensor with an axis of heads .* Pass x of shape \(1, length, dim"
    ):
        rope.rotate(draw(3, 8), torch.arange(3))
    cos, sin = rope.tables(torch.arange(3))
    with pytest.raises(WhorlError, match="x must be a tensor with an axis of heads"):
        whorl.rotate(draw(3, 8), cos, sin, heads=(0,))


def test_heads_as_a_tensor_are_refused():
    """Their numbers would be looked up by identity, and none would turn."""
    cos, sin = whorl.Rope(head_dim=8).tables(torch.arange(3))
    x = draw(2, 4, 3, 8)
    with pytest.raises(WhorlError, match="rotate: heads must be a sequence of head indices, got"):
        whorl.rotate(x, cos, sin, heads=torch.tensor([0, 1]))
    turned = whorl.rotate(x, cos, sin, heads=np.array([0, 1]))
    assert torch.equal(turned[:, 2:], x[:, 2:]) and not torch.equal(turned[:, :2], x[:, :2])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cos": None}, "rotate: cos must be a floating tensor, got None. Take both from one call of tables()."),
        ({"sin": np.ones((3, 4))}, "rotate: sin must be a floating tensor, got numpy.float64 of shape (3, 4). Take"),
        ({"cos": torch.ones(3, 4).long()}, "rotate: cos must be a floating tensor, got torch.int64 of shape (3, 4)."),
        ({"rows": [0, 1, 2]}, "rotate: rows must be integers of shape (3,) or (batch, 3), got [0, 1, 2]. One row of"),
        ({"rows": torch.ones(3)}, "rotate: rows must be integers of shape (3,) or (batch, 3), got torch.float32"),
        ({"rows": torch.arange(3, device="meta")}, "rotate: rows are on meta and x on cpu. Make them there."),
        ({"out": 3}, "rotate: out must be of shape (2, 4, 3, 8), torch.float32 on cpu, got 3. Use empty_like(x)."),
        ({"out": np.zeros((2, 4, 3, 8))}, "rotate: out must be of shape (2, 4, 3, 8), torch.float32 on cpu, got"),
        ({"x": draw(2, 4, 3, 8).to_sparse()}, "rotate: x must be a floating tensor, stored densely; it is sparse_coo."),
        ({"x": nested()}, "rotate: x must be a floating tensor, stored densely; it is nested. Pass to_padded_tensor"),
        ({"x": quantised(draw(2, 4, 3, 8))}, "rotate: x must be a floating tensor, got torch.quint8 of shape"),
        ({"start": 1.0}, "rotate: start must be an integer, got 1.0."),
        ({"inverse": "no"}, "rotate: inverse must be True or False, got 'no'."),
    ],
)
def test_what_is_wrong_is_said(changes, message):
    call, given = CALLS["rotate"]()
    with pytest.raises(WhorlError) as error:
        call(**{**given, **changes})
    assert message in str(error.value)


def test_a_bool_is_no_number_where_a_step_of_its_kind_is_ready():
    """True equals 1.0, and a kind of step is looked up by what is equal."""
    cache, x = whorl.KVCache(encoding=whorl.Rope(head_dim=DIM)), draw(1, 2, 4, DIM)
    for _ in range(3):
        cache.attend(x[:, :, :1], x[:, :, :1], x[:, :, :1], scale=1.0)
    for name in ("scale", "softcap", "length"):
        with pytest.raises(WhorlError, match=f"attention: {name} must be a positive .*, got True"):
            cache.attend(x[:, :, :1], x[:, :, :1], x[:, :, :1], **{"scale": 1.0, name: True})


def test_what_is_returned_is_asked_for_by_bools():
    x = draw(1, 2, 3, DIM)
    for name in ("return_lse", "return_weights"):
        with pytest.raises(WhorlError, match=f"attention: {name} must be True or False, got 2"):
            whorl.attention(x, x, x, **{name: 2})
    with pytest.raises(WhorlError, match="linear_attention: return_stats must be True or False, got 1"):
        whorl.linear_attention(x, x, x, return_stats=1)


def test_numbers_that_no_float_holds_are_refused():
    x = draw(1, 2, 3, DIM)
    for name in ("scale", "softcap"):
        with pytest.raises(WhorlError, match=f"attention: {name} must be a positive number"):
            whorl.attention(x, x, x, **{name: 10**400})
    expected = whorl.attention(x, x, x, softcap=1e30)
    assert torch.equal(whorl.attention(x, x, x, softcap=10**30), expected)


@pytest.mark.parametrize("wrong", [{"start": 0.0}, {"start": False}, {"blocks": 1.0}, {"blocks": True}])
def test_what_only_equals_a_setting_is_refused_behind_a_good_call_too(wrong):
    call, given = CALLS["rotate"]()
    x, out = given["x"], torch.empty_like(given["x"])
    for options in ({}, {"out": out}, {"out": x}):
        call(**{**given, **options})
        with pytest.raises(WhorlError, match=r"rotate: (start|blocks) must be an integer, got"):
            call(**{**given, **options, **wrong})


@pytest.mark.parametrize("scaled", [whorl.LogN(trained_length=8), whorl.SSMax(heads=2), whorl.Llama4Temperature()])
def test_what_is_no_tensor_is_named_by_query_scales(scaled):
    x, at = draw(1, 2, 3, DIM), torch.arange(3)
    for wrong, text in ((x.numpy(), r"numpy\.float32 of shape"), (None, "None"), ([1.0], r"\[1\.0\]")):
        with pytest.raises(WhorlError, match=rf"{type(scaled).__name__}: q must be a floating tensor .*, got {text}"):
            scaled.transform_qk(wrong, x, at, at)


def test_a_cache_of_more_slots_than_there_are_is_refused():
    for far in (2**40 + 1, 10**30):
        expected = rf"KVCache: capacity must be a positive integer up to 2\^40, or None, got {far}"
        with pytest.raises(WhorlError, match=expected):
            whorl.KVCache(encoding=whorl.NoPE(), capacity=far)
    whorl.KVCache(encoding=whorl.NoPE(), capacity=2**40)


def test_positions_that_leave_no_room_for_those_that_follow_are_refused():
    cache, x = whorl.KVCache(encoding=whorl.Window(size=3)), draw(1, 1, 1, DIM)
    for far in (2**61 + 1, -(2**61) - 1, 2**63 - 1, -(2**63)):
        with pytest.raises(WhorlError, match=rf"KVCache: positions must be between -2\^61 and 2\^61, got {far}\."):
            cache.attend(x, x, x, positions=torch.tensor([far]))
    cache.attend(x, x, 0 * x, positions=torch.tensor([-(2**61)]))
    assert torch.equal(cache.attend(x, x, x, positions=torch.tensor([2**61])), x)  # the first is 2^62 away
    assert int(cache.positions_to_come(torch.zeros(1, 1))) == 2**61 + 1


@pytest.mark.parametrize("name", ["none", "rope", "rerope", "shaw", "cope"])
def test_no_heads_give_no_output(name):
    encoding = whorl.build_for(name, heads=2, head_dim=DIM, width=2 * DIM, length=LENGTH)
    keys = draw(BATCH, 2, LENGTH, DIM)
    for impl in ("auto", "torch"):
        out = whorl.attention(keys[:, :0], keys, keys, encoding=encoding, impl=impl)
        assert out.shape == (BATCH, 0, LENGTH, DIM)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("form", ["numerator", "both", "one_plus_cosine", "unnormalised"])
def test_values_of_no_dimensions_give_no_numbers(form, causal):
    x = draw(BATCH, 2, LENGTH, DIM)
    for encoding in (None, whorl.Rope(head_dim=DIM)):
        options = {"encoding": encoding, "form": form, "causal": causal}
        out, stats = whorl.linear_attention(x, x, x[..., :0], **options, return_stats=True)
        assert out.shape == whorl.linear_attention(x, x, x[..., :0], **options).shape == (BATCH, 2, LENGTH, 0)
        _, expected = whorl.linear_attention(x, x, x, **options, return_stats=True)
        torch.testing.assert_close(stats.row_sums, expected.row_sums, rtol=0, atol=0)


@pytest.mark.parametrize("form", ["numerator", "both", "unnormalised"])
def test_queries_of_no_dimensions_weigh_nothing_in_linear_attention(form):
    x = draw(BATCH, 2, LENGTH, DIM)
    assert not whorl.linear_attention(x[..., :0], x[..., :0], x, form=form).any()
    with pytest.raises(WhorlError, match=r"linear_attention: form='one_plus_cosine' compares directions, .* another"):
        whorl.linear_attention(x[..., :0], x[..., :0], x, form="one_plus_cosine")
    with pytest.raises(WhorlError, match="needs at least one query, one key and one dimension"):
        whorl.linear_attention(x[..., :0], x[..., :0], x, form=form, return_stats=True)


def test_queries_of_no_dimensions_attend_by_their_bias_where_a_scale_is_given():
    v, alibi = draw(BATCH, 2, LENGTH, DIM), whorl.Alibi(heads=2)
    q = v[..., :0]
    with pytest.raises(WhorlError, match=r"queries without dimensions have no usual scale\. Pass scale="):
        whorl.attention(q, q, v, encoding=alibi)
    positions = torch.arange(LENGTH)
    hidden = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
    weights = alibi.score_bias(positions, positions).double().masked_fill(hidden, -math.inf).softmax(-1)
    got = whorl.attention(q, q, v, encoding=alibi, scale=1.0)
    torch.testing.assert_close(got, (weights @ v.double()).float(), rtol=0, atol=1e-6)
    cache = whorl.KVCache(encoding=alibi)
    torch.testing.assert_close(cache.attend(q, q, v, scale=1.0), got, rtol=0, atol=1e-6)


def test_heads_that_no_encoding_can_have_are_not_advised():
    x = draw(BATCH, 2, LENGTH, DIM)
    with pytest.raises(WhorlError, match=r"Alibi has heads=2, q has 0\. Pass queries of 2 heads"):
        whorl.attention(x[:, :0], x, x, encoding=whorl.Alibi(heads=2))
