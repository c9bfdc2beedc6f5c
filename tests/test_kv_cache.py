"""Cached steps equal the last rows of a full pass, for every encoding and scaling, however the tokens come in."""

import pytest
import torch

import whorl
from registry_cases import NAMES, WIDTH, build, hidden_for, scaled_ropes, tokens

every_encoding = pytest.mark.parametrize("name", NAMES)
CLOSE = {"rtol": 0, "atol": 5e-6}


def steps(cache, inputs, sizes, hidden=None, **options):
    """The outputs of feeding the tokens in pieces of these sizes."""
    out, start = [], 0
    for size in sizes:
        part = slice(start, start + size)
        own = {} if hidden is None else {"hidden": hidden[:, part]}
        for key in ("positions", "key_mask"):
            if key in options:
                own[key] = options[key][..., part]
        more = {key: value for key, value in options.items() if key not in ("positions", "key_mask")}
        out.append(cache.attend(*(t[:, :, part] for t in inputs), **own, **more))
        start += size
    return torch.cat(out, dim=2)


@every_encoding
@pytest.mark.parametrize("sizes", [(1,) * 12, (5, 1, 1, 5), (12,)], ids=str)
def test_steps_equal_a_full_pass(name, sizes):
    encoding = build(name)
    inputs, more = tokens(12), hidden_for(encoding, 12)
    expected = whorl.attention(*inputs, encoding=encoding, **more)
    got = steps(whorl.KVCache(encoding=encoding), inputs, sizes, **more)
    torch.testing.assert_close(got, expected, **CLOSE)


@pytest.mark.parametrize("name", scaled_ropes())
@pytest.mark.parametrize("policy", ["auto", "raw"])
def test_every_scaling_equals_a_full_pass_at_the_same_length(name, policy):
    rope = scaled_ropes()[name]
    inputs = tokens(12, dim=64)
    for length in (None, 5000):
        expected = whorl.attention(*inputs, encoding=rope, length=length)
        got = steps(whorl.KVCache(encoding=rope, policy=policy, length=length), inputs, (7, 1, 4))
        torch.testing.assert_close(got, expected, **CLOSE)


@pytest.mark.parametrize("name", ["dynamic_ntk", "longrope"])
def test_a_growing_length_places_old_keys_anew(name):
    """Each step equals the last row of a full pass at that step's length: the case where rotated keys go stale."""
    rope = scaled_ropes()[name]
    inputs = tokens(6, dim=64)
    cache = whorl.KVCache(encoding=rope)
    for i in range(6):
        length = 250 + 3 * i  # passes the trained 256 on the way
        got = cache.attend(*(t[:, :, i : i + 1] for t in inputs), length=length)
        whole = whorl.attention(*(t[:, :, : i + 1] for t in inputs), encoding=rope, length=length)
        torch.testing.assert_close(got, whole[:, :, -1:], **CLOSE)


@every_encoding
def test_left_padded_rows_equal_unpadded_ones(name):
    encoding = build(name)
    inputs, more = tokens(10), hidden_for(encoding, 10)
    mask = torch.ones(2, 10, dtype=torch.bool)
    mask[1, :4] = False
    got = steps(whorl.KVCache(encoding=encoding), inputs, (6, 1, 1, 2), key_mask=mask, **more)
    own = {key: value[1:, 4:] for key, value in more.items()}
    alone = whorl.attention(*(t[1:, :, 4:] for t in inputs), encoding=encoding, **own)
    torch.testing.assert_close(got[1:, :, 4:], alone, **CLOSE)
    whole = whorl.attention(
        *(t[:1] for t in inputs), encoding=encoding, **{key: value[:1] for key, value in more.items()}
    )
    torch.testing.assert_close(got[:1], whole, **CLOSE)


@every_encoding
def test_rows_of_unequal_length_go_on_by_themselves(name):
    """Padding in the middle: row 0 pauses for two tokens, and neither row notices."""
    encoding = build(name)
    inputs, more = tokens(9), hidden_for(encoding, 9)
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[0, 4:6] = False
    got = steps(whorl.KVCache(encoding=encoding), inputs, (4, 2, 3), key_mask=mask, **more)
    kept = [0, 1, 2, 3, 6, 7, 8]
    own = {key: value[:1, kept] for key, value in more.items()}
    alone = whorl.attention(*(t[:1, :, kept] for t in inputs), encoding=encoding, **own)
    torch.testing.assert_close(got[:1, :, kept], alone, **CLOSE)
    other = {key: value[1:] for key, value in more.items()}
    whole = whorl.attention(*(t[1:] for t in inputs), encoding=encoding, **other)
    torch.testing.assert_close(got[1:], whole, **CLOSE)


@every_encoding
def test_cropping_takes_tokens_back(name):
    encoding = build(name)
    inputs, more = tokens(8), hidden_for(encoding, 8)
    cache = whorl.KVCache(encoding=encoding)
    steps(cache, [t[:, :, :6] for t in inputs], (6,), **{key: value[:, :6] for key, value in more.items()})
    cache.crop(3)
    assert len(cache) == 3
    rest = {key: value[:, 3:] for key, value in more.items()}
    got = steps(cache, [t[:, :, 3:] for t in inputs], (2, 3), **rest)
    expected = whorl.attention(*inputs, encoding=encoding, **more)
    torch.testing.assert_close(got, expected[:, :, 3:], **CLOSE)


@pytest.mark.parametrize("name", ["rope", "forgetting_gate", "rerope"])
def test_reordering_moves_whole_rows(name):
    encoding = build(name)
    inputs, more = tokens(7), hidden_for(encoding, 7)
    cache = whorl.KVCache(encoding=encoding)
    steps(cache, [t[:, :, :5] for t in inputs], (5,), **{key: value[:, :5] for key, value in more.items()})
    cache.reorder([1, 0, 1])
    order = [1, 0, 1]
    got = steps(
        cache, [t[order, :, 5:] for t in inputs], (1, 1), **{key: value[order, 5:] for key, value in more.items()}
    )
    expected = whorl.attention(*inputs, encoding=encoding, **more)[order]
    torch.testing.assert_close(got, expected[:, :, 5:], **CLOSE)


def test_reset_forgets():
    rope, inputs = whorl.Rope(head_dim=16), tokens(5)
    cache = whorl.KVCache(encoding=rope)
    first = steps(cache, inputs, (5,))
    cache.reset()
    assert (len(cache), cache.bytes) == (0, 0)
    assert torch.equal(steps(cache, inputs, (5,)), first)


def test_memory_is_reserved_once_or_doubles():
    rope, inputs = whorl.Rope(head_dim=16), tokens(40)
    fixed, free = whorl.KVCache(encoding=rope, capacity=40), whorl.KVCache(encoding=rope)
    sizes = set()
    for i in range(40):
        part = [t[:, :, i : i + 1] for t in inputs]
        fixed.attend(*part)
        free.attend(*part)
        sizes.add(fixed.bytes)
    per_slot = 2 * (2 * 4 * 16 * 4 + 8 + 1)  # keys and values in float32, a position, a mark, for both rows
    assert sizes == {40 * per_slot}
    assert free.bytes == 64 * per_slot


@pytest.mark.parametrize("policy", ["transformed", "raw"])
def test_changing_the_encoding_moves_the_keys(policy):
    old, new = whorl.Rope(head_dim=16), whorl.Rope(head_dim=16, scaling=whorl.Yarn(factor=4.0, original_length=64))
    inputs = tokens(9)
    cache = whorl.KVCache(encoding=old, policy=policy)
    steps(cache, [t[:, :, :6] for t in inputs], (6,))
    cache.change_encoding(new)
    got = steps(cache, [t[:, :, 6:] for t in inputs], (1, 2))
    expected = whorl.attention(*inputs, encoding=new)
    torch.testing.assert_close(got, expected[:, :, 6:], **CLOSE)


def test_changing_positions_moves_the_keys():
    """Dropping a prefix: the tokens that stay move down by four, as evicting from a full cache needs."""
    rope, inputs = whorl.Rope(head_dim=16), tokens(9)
    cache = whorl.KVCache(encoding=rope)
    steps(cache, [t[:, :, 4:8] for t in inputs], (4,), positions=torch.arange(4, 8))
    cache.change_encoding(rope, positions=torch.arange(4).expand(2, -1))
    got = cache.attend(*(t[:, :, 8:] for t in inputs))
    expected = whorl.attention(*(t[:, :, 4:] for t in inputs), encoding=rope)
    torch.testing.assert_close(got, expected[:, :, -1:], **CLOSE)


def test_given_positions_are_obeyed():
    rope, inputs = whorl.Rope(head_dim=16), tokens(6)
    positions = torch.tensor([3, 4, 10, 11, 12, 40])
    got = steps(whorl.KVCache(encoding=rope), inputs, (2, 1, 3), positions=positions)
    torch.testing.assert_close(got, whorl.attention(*inputs, encoding=rope, positions=positions), **CLOSE)


def test_positions_of_several_axes():
    rope = whorl.MRope(head_dim=16, sections=(2, 3, 3))
    ids = whorl.multimodal([whorl.Text(2), whorl.Image(4, 4), whorl.Text(3)], rule="qwen2_vl")
    inputs = tokens(9)
    expected = whorl.attention(*inputs, encoding=rope, positions=ids)
    got = steps(whorl.KVCache(encoding=rope), inputs, (6, 1, 2), positions=ids[:, None].expand(-1, 2, -1))
    torch.testing.assert_close(got, expected, **CLOSE)


def test_positions_go_on_from_those_that_were_given():
    alibi, inputs = build("alibi"), tokens(8)
    cache = whorl.KVCache(encoding=alibi)
    cache.attend(*(t[:, :, :5] for t in inputs), positions=torch.arange(5) + 100)
    got = cache.attend(*(t[:, :, 5:] for t in inputs))
    expected = whorl.attention(*inputs, encoding=alibi, positions=torch.arange(8) + 100)
    torch.testing.assert_close(got, expected[:, :, 5:], **CLOSE)


def test_fractions_may_follow_whole_numbers():
    rerope, inputs = whorl.ReRope(head_dim=16, window=4), tokens(80)
    positions = torch.cat((torch.arange(5).double(), torch.arange(75) + 5.5))
    cache = whorl.KVCache(encoding=rerope)
    cache.attend(*(t[:, :, :5] for t in inputs), positions=torch.arange(5))
    cache.attend(*(t[:, :, 5:10] for t in inputs), positions=positions[5:10])
    got = cache.attend(*(t[:, :, 10:] for t in inputs), positions=positions[10:])
    expected = whorl.attention(*inputs, encoding=rerope, positions=positions)
    torch.testing.assert_close(got, expected[:, :, 10:], **CLOSE)


def test_an_empty_cache_takes_the_policy_of_a_new_encoding():
    rerope, inputs = whorl.ReRope(head_dim=16, window=3), tokens(10)
    cache = whorl.KVCache(encoding=whorl.Rope(head_dim=16), length=7)
    cache.change_encoding(rerope)
    assert (cache.policy, cache.length) == ("raw", 7)
    got = steps(cache, inputs, (5, 5))
    torch.testing.assert_close(got, whorl.attention(*inputs, encoding=rerope), **CLOSE)


def test_text_positions_serve_every_axis():
    rope, inputs = whorl.MRope(head_dim=16, sections=(2, 3, 3)), tokens(6)
    got = steps(whorl.KVCache(encoding=rope), inputs, (4, 2), positions=torch.arange(6))
    torch.testing.assert_close(got, whorl.attention(*inputs, encoding=rope), **CLOSE)


def test_a_step_that_fails_leaves_the_cache_as_it_was():
    rope, inputs = whorl.Rope(head_dim=16), tokens(5)
    cache = whorl.KVCache(encoding=rope)
    steps(cache, [t[:, :, :4] for t in inputs], (4,))
    with pytest.raises(whorl.WhorlError):
        cache.attend(*(t[:, :, 4:] for t in inputs), scale=-1.0)
    assert len(cache) == 4
    got = cache.attend(*(t[:, :, 4:] for t in inputs))
    torch.testing.assert_close(got, whorl.attention(*inputs, encoding=rope)[:, :, 4:], **CLOSE)


def test_the_policy_follows_the_encoding():
    expected = {"rope": "transformed", "alibi": "transformed", "none": "transformed", "rerope": "raw", "xpos": "raw"}
    for name, policy in expected.items():
        assert whorl.KVCache(encoding=build(name)).policy == policy
    for name in ("dynamic_ntk", "longrope"):
        assert whorl.KVCache(encoding=scaled_ropes()[name]).policy == "raw"


ROPE = whorl.Rope(head_dim=16)
ONE = tokens(1)


def filled(**settings):
    cache = whorl.KVCache(encoding=ROPE, **settings)
    cache.attend(*ONE)
    return cache


CASES = {
    "encoding": (lambda: whorl.KVCache(encoding="rope"), "KVCache: encoding must be an encoding, got 'rope'"),
    "capacity": (
        lambda: whorl.KVCache(encoding=ROPE, capacity=0),
        "capacity must be a positive integer or None, got 0",
    ),
    "policy": (lambda: whorl.KVCache(encoding=ROPE, policy="rotated"), "KVCache: unknown policy 'rotated'"),
    "stale": (
        lambda: whorl.KVCache(encoding=scaled_ropes()["dynamic_ntk"], policy="transformed"),
        "Rope places a key anew at every step, so policy='transformed' would keep a stale one",
    ),
    "full": (lambda: filled(capacity=1).attend(*ONE), "KVCache.attend: 2 tokens do not fit capacity=1. Use crop or"),
    "rows": (
        lambda: filled().attend(*(t[:1] for t in ONE)),
        "the cache holds keys of shape (2, 4, 64, 16), got (1, 4, 1, 16). Batch, heads and dim stay the same",
    ),
    "queries": (
        lambda: filled().attend(ONE[0].repeat(1, 1, 2, 1), *ONE[1:]),
        "positions must be a tensor with 2 on its last axis",
    ),
    "crop": (lambda: filled().crop(2), "KVCache.crop: count must be between 0 and the 1 slots there are, got 2"),
    "negative crop": (lambda: filled().crop(-1), "count must be between 0 and the 1 slots there are, got -1"),
    "reorder empty": (lambda: whorl.KVCache(encoding=ROPE).reorder([0]), "KVCache.reorder: the cache is empty"),
    "reorder by floats": (lambda: filled().reorder([0.5]), "rows must be a list of row numbers, got [0.5]"),
    "values": (
        lambda: filled().attend(*ONE[:2], ONE[2][..., :3]),
        "the cache holds values of shape (2, 4, 64, 16), got (2, 4, 1, 3)",
    ),
    "rank": (lambda: filled().attend(*(t[0] for t in ONE)), "q must be a floating tensor of shape (batch, heads"),
    "key mask": (
        lambda: filled().attend(*ONE, key_mask=[[True], [True]]),
        "key_mask must be a bool tensor of shape (batch, keys) = (2, 1)",
    ),
    "reorder too far": (lambda: filled().reorder([3]), "rows must be between 0 and 1, got [3]"),
    "reorder by a mask": (
        lambda: filled().reorder(torch.tensor([True, False])),
        "rows must be a list of row numbers",
    ),
    "no encoding to change to": (
        lambda: filled().change_encoding("rope"),
        "KVCache.change_encoding: encoding must be an encoding, got 'rope'",
    ),
    "change": (
        lambda: filled().change_encoding(whorl.NoPE()),
        "keys kept after Rope cannot be moved to NoPE. Build the cache with policy='raw' to change encodings freely",
    ),
    "change positions": (
        lambda: filled().change_encoding(ROPE, positions=torch.arange(3)),
        "positions must be of shape (2, 1), got torch.int64 of shape (3,)",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_named(case):
    call, message = CASES[case]
    with pytest.raises(whorl.WhorlError) as caught:
        call()
    assert message in str(caught.value)


def test_hidden_states_are_remembered_not_kept():
    encoding = build("forgetting_gate")
    cache = whorl.KVCache(encoding=encoding, capacity=10)
    cache.attend(*tokens(4), **hidden_for(encoding, 4))
    keys_and_values = 2 * 2 * 4 * 10 * 16 * 4
    assert cache.bytes < keys_and_values + 2 * 10 * WIDTH * 4  # less than the hidden states would take
