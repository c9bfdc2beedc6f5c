"""Cached steps equal the last rows of a full pass, for every encoding and scaling, however the tokens come in."""

import sys

import numpy as np
import pytest
import torch

import whorl
from registry_cases import NAMES, WIDTH, build, hidden_for, scaled_ropes, tokens
from tokens_so_far import Tokens
from whorl.attend import cache as cache_module
from whorl.attend import changed_encoding, decoding_kinds, kept_positions, slots
from whorl.attend.together import together
from whorl.encodings.base import Encoding

every_encoding = pytest.mark.parametrize("name", NAMES)
CLOSE = {"rtol": 0, "atol": 5e-6}
ROPE = whorl.Rope(head_dim=16)
ONE = tokens(1)


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


@pytest.mark.parametrize("batch", [2, 3])
def test_text_goes_on_with_images(batch):
    """Positions of one axis serve every axis, and a batch of as many rows as axes is no axis."""
    mrope = whorl.MRope(head_dim=16, sections=(2, 3, 3))
    inputs, mask = tokens(9, batch=batch), torch.ones(batch, 9, dtype=torch.bool)
    mask[1, :2] = False
    cache = whorl.KVCache(encoding=whorl.Rope(head_dim=16))
    steps(cache, [t[:, :, :6] for t in inputs], (6,), key_mask=mask[:, :6])
    cache.change_encoding(mrope)
    got = steps(cache, [t[:, :, 6:] for t in inputs], (1, 2), key_mask=mask[:, 6:])
    for row, first in enumerate([0, 2, 0][:batch]):
        alone = whorl.attention(*(t[row : row + 1, :, first:] for t in inputs), encoding=mrope)
        torch.testing.assert_close(got[row], alone[0, :, -3:], **CLOSE)
    with pytest.raises(whorl.WhorlError, match="positions of 3 axes do not tell those on 1"):
        cache.change_encoding(whorl.Rope(head_dim=16))
    cache.change_encoding(whorl.NoPE(), positions=torch.arange(9))
    assert cache.encoding.axes == 1


def test_a_gate_is_never_served_by_the_gates_of_another():
    inputs, first, second = tokens(6), build("forgetting_gate"), whorl.ForgettingGate(heads=4, width=WIDTH, bias=0.0)
    hidden = hidden_for(first, 6)["hidden"]
    cache = whorl.KVCache(encoding=first)
    cache.attend(*(t[:, :, :4] for t in inputs), hidden=hidden[:, :4])
    for new in (second, whorl.Combined(whorl.Rope(head_dim=16), second)):
        with pytest.raises(whorl.WhorlError, match="ForgettingGate reads hidden states of the tokens so far"):
            cache.change_encoding(new)
    beside = whorl.Combined(whorl.Rope(head_dim=16), first)
    cache.change_encoding(beside)
    got = cache.attend(*(t[:, :, 4:5] for t in inputs), hidden=hidden[:, 4:5])
    expected = whorl.attention(*inputs, encoding=beside, hidden=hidden)
    torch.testing.assert_close(got, expected[:, :, 4:5], **CLOSE)
    cache.change_encoding(whorl.NoPE())  # which remembers nothing more
    got = cache.attend(*(t[:, :, 5:] for t in inputs))
    torch.testing.assert_close(got, whorl.attention(*inputs, encoding=whorl.NoPE())[:, :, 5:], **CLOSE)
    with pytest.raises(whorl.WhorlError, match="reads hidden states of the tokens so far"):
        cache.change_encoding(first)
    cache.reset()
    cache.change_encoding(second)
    got = cache.attend(*inputs, hidden=hidden)
    torch.testing.assert_close(got, whorl.attention(*inputs, encoding=second, hidden=hidden), **CLOSE)


@pytest.mark.parametrize("policy", ["auto", "transformed", "raw"])
def test_a_gate_cannot_begin_in_the_middle(policy):
    cache, gate = whorl.KVCache(encoding=ROPE, policy=policy), build("forgetting_gate")
    cache.attend(*ONE)
    with pytest.raises(whorl.WhorlError, match="Reset the cache, change the encoding, and attend to the tokens again"):
        cache.change_encoding(gate)
    cache.crop(0)
    cache.change_encoding(gate)
    assert cache.attend(*ONE, **hidden_for(gate, 1)).shape == ONE[0].shape


class Shifted(whorl.Rope):
    """A Rope with a transform of its own, which tables know nothing of."""

    def transform_qk(self, q, k, q_positions, k_positions, length=None, **options):
        return super().transform_qk(q, k, q_positions + 3, k_positions, length, **options)


class Doubled(Encoding):
    """Keys times a number: a placement that is no rotation."""

    Config = whorl.NoPE.Config

    def transform_qk(self, q, k, q_positions, k_positions, length=None):
        return q, k * (2 + k_positions[:, None, :, None].to(k.dtype))


@pytest.mark.parametrize("mine", [Shifted(head_dim=16), Doubled()], ids=lambda each: type(each).__name__)
def test_the_transform_of_a_users_class_is_done_and_never_guessed_back(mine):
    inputs = tokens(6)
    cache = whorl.KVCache(encoding=ROPE)
    cache.attend(*(t[:, :, :4] for t in inputs))
    cache.change_encoding(mine)
    got = cache.attend(*(t[:, :, 4:] for t in inputs))
    positions = torch.arange(6).expand(2, -1)
    expected = whorl.attention(*inputs, encoding=mine, positions=positions)
    torch.testing.assert_close(got, expected[:, :, 4:], **CLOSE)
    with pytest.raises(whorl.WhorlError, match="did to the kept keys cannot be undone"):
        cache.change_encoding(ROPE)
    cache.change_encoding(mine, length=7)  # the same again asks for nothing
    assert cache.encoding is mine


@pytest.mark.parametrize("new", [whorl.NoPE(), whorl.ReRope(head_dim=16, window=3), build("alibi")], ids=repr)
def test_a_rotation_is_undone_where_the_next_encoding_has_none(new):
    inputs = tokens(9)
    cache = whorl.KVCache(encoding=whorl.Rope(head_dim=16, scaling=whorl.Yarn(factor=4.0, original_length=64)))
    steps(cache, [t[:, :, :6] for t in inputs], (6,))
    cache.change_encoding(new)
    got = steps(cache, [t[:, :, 6:] for t in inputs], (1, 2))
    torch.testing.assert_close(got, whorl.attention(*inputs, encoding=new)[:, :, 6:], **CLOSE)


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


@pytest.mark.parametrize("name", ["rope", "alibi"])
def test_caches_that_go_on_together_take_padding_back(name):
    """A layer that had kept padded tokens when a later one failed had written over what follows the tokens before."""
    inputs, mask = tokens(8), torch.tensor([[True, True], [False, True]])
    cache = whorl.KVCache(encoding=build(name))
    before = torch.tensor([[True] * 4, [False, True, True, True]])
    cache.attend(*(t[:, :, :4] for t in inputs), key_mask=before)
    with pytest.raises(KeyError), together([cache]):
        cache.attend(*(t[:, :, 4:6] for t in inputs), key_mask=mask)
        raise KeyError
    twin = whorl.KVCache(encoding=cache.encoding)
    twin.attend(*(t[:, :, :4] for t in inputs), key_mask=before)
    got, expected = (steps(each, [t[:, :, 4:] for t in inputs], (1,) * 4) for each in (cache, twin))
    torch.testing.assert_close(got, expected, **CLOSE)


@pytest.mark.parametrize("policy", ["raw", "auto"])
@pytest.mark.parametrize("name", ["rope", "t5"])
def test_what_padding_holds_is_not_kept(name, policy):
    encoding, (q, k, v) = build(name), tokens(7)
    mask = torch.arange(5) >= torch.tensor([[0], [3]])
    outs = []
    for held in (0.0, torch.nan):
        cache = whorl.KVCache(encoding=encoding, policy=policy)
        prompt = [q[:, :, :5], *(x[:, :, :5].masked_fill(~mask[:, None, :, None], held) for x in (k, v))]
        first = cache.attend(*prompt, key_mask=mask)
        outs.append((first, cache.attend(*(x[:, :, 5:] for x in (q, k, v)))))
    for one, other in zip(*outs, strict=True):
        assert torch.equal(one, other)


def test_positions_go_on_below_zero():
    rope, inputs = whorl.Rope(head_dim=16), tokens(7)
    cache = whorl.KVCache(encoding=rope)
    cache.attend(*(t[:, :, :4] for t in inputs), positions=torch.arange(-6, -2))
    mask = torch.tensor([[False, True, True], [True, True, True]])
    got = cache.attend(*(t[:, :, 4:] for t in inputs), key_mask=mask)
    wanted = torch.arange(-6, 1)
    expected = whorl.attention(*(t[1:] for t in inputs), encoding=rope, positions=wanted)
    torch.testing.assert_close(got[1:], expected[:, :, 4:], **CLOSE)
    kept = [0, 1, 2, 3, 5, 6]
    alone = whorl.attention(*(t[:1, :, kept] for t in inputs), encoding=rope, positions=wanted[:6])
    torch.testing.assert_close(got[:1, :, 1:], alone[:, :, 4:], **CLOSE)


def test_a_row_of_padding_alone_begins_at_zero():
    """Another row's positions are below 0: nothing of that is said of this one."""
    alibi, inputs = build("alibi"), tokens(4)
    cache = whorl.KVCache(encoding=alibi)
    mask = torch.tensor([[True, True], [False, False]])
    cache.attend(*(t[:, :, :2] for t in inputs), positions=torch.tensor([-9, -8]), key_mask=mask)
    scaled = build("ssmax")  # which looks at where a query is, and not at distances
    cache.change_encoding(scaled)
    got = cache.attend(*(t[:, :, 2:] for t in inputs))
    expected = whorl.attention(*(t[1:, :, 2:] for t in inputs), encoding=scaled)
    torch.testing.assert_close(got[1:], expected, **CLOSE)


@pytest.mark.parametrize("start", [2**24 + 1, 2**31 + 1])
def test_fractions_round_no_position_that_was_kept(start):
    rope, inputs = whorl.Rope(head_dim=16), tokens(6)
    cache = whorl.KVCache(encoding=rope, policy="raw")
    cache.attend(*(t[:, :, :4] for t in inputs), positions=torch.arange(4) + start)
    got = cache.attend(*(t[:, :, 4:5] for t in inputs), positions=torch.tensor([float(start + 7)], dtype=torch.float32))
    at = int(torch.tensor(float(start + 7), dtype=torch.float32))  # what the user's float32 says
    so_far = Tokens(batch=2, axes=1)
    ids = [*range(start, start + 4), at]
    so_far.add(*(t[:, :, :5] for t in inputs), torch.zeros(2, 5, 1), [[ids, ids]], [[True] * 5] * 2)
    for row, _, wanted in so_far.expected(rope, 1):
        torch.testing.assert_close(got[row].double(), wanted, **CLOSE)
    after = cache.attend(*(t[:, :, 5:] for t in inputs))  # goes on from the largest
    so_far.add(*(t[:, :, 5:] for t in inputs), torch.zeros(2, 1, 1), [[[max(ids) + 1]] * 2], [[True]] * 2)
    for row, _, wanted in so_far.expected(rope, 1):
        torch.testing.assert_close(after[row].double(), wanted, **CLOSE)


def test_whole_positions_that_float64_would_round_do_not_mix_with_fractions():
    inputs = tokens(2)
    for first, second in (
        (torch.tensor([2**53 + 1]), torch.tensor([0.5])),
        (torch.tensor([0.5]), torch.tensor([2**53 + 1])),
    ):
        cache = whorl.KVCache(encoding=ROPE)
        cache.attend(*(t[:, :, :1] for t in inputs), positions=first)
        with pytest.raises(whorl.WhorlError, match=r"beyond 2\^53 and fractional ones have no exact form together"):
            cache.attend(*(t[:, :, 1:] for t in inputs), positions=second)
        assert len(cache) == 1
        cache.attend(*(t[:, :, 1:] for t in inputs), positions=first + 1)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float32, torch.float64])
def test_positions_of_every_dtype_and_shape(dtype):
    inputs, mrope = tokens(6), whorl.MRope(head_dim=16, sections=(2, 3, 3))
    ids = torch.tensor([3, 4, 10, 11, 12, 40], dtype=dtype)
    expected = whorl.attention(*inputs, encoding=ROPE, positions=ids)
    for given in (ids, ids[None], ids.expand(2, -1)):
        got = steps(whorl.KVCache(encoding=ROPE), inputs, (2, 1, 3), positions=given)
        torch.testing.assert_close(got, expected, **CLOSE)
        cache = whorl.KVCache(encoding=ROPE)
        steps(cache, [t[:, :, :4] for t in inputs], (3, 1), positions=given[..., :4])
        one = cache.attend(*(t[:, :, 4:5] for t in inputs))  # goes on at 12, as given
        torch.testing.assert_close(one, expected[:, :, 4:5], **CLOSE)
    axes = torch.stack((ids, ids * 2, ids + 5))
    expected = whorl.attention(*inputs, encoding=mrope, positions=axes)
    for given in (axes, axes[:, None], axes[:, None].expand(-1, 2, -1)):
        got = steps(whorl.KVCache(encoding=mrope), inputs, (2, 1, 3), positions=given)
        torch.testing.assert_close(got, expected, **CLOSE)


@every_encoding
def test_no_tokens_give_no_output_and_change_nothing(name):
    encoding, inputs = build(name), tokens(0)
    cache, more = whorl.KVCache(encoding=encoding), hidden_for(encoding, 0)
    assert cache.attend(*inputs, **more).shape == (2, 4, 0, 16)
    assert (len(cache), cache.bytes) == (0, 0)
    cache.attend(*tokens(3), **hidden_for(encoding, 3))
    assert cache.attend(*inputs, positions=torch.zeros(0), **more).shape == (2, 4, 0, 16)
    assert len(cache) == 3
    cache.attend(*tokens(1), **hidden_for(encoding, 1))


@pytest.mark.parametrize("name", ["rope", "forgetting_gate", "rerope"])
@pytest.mark.parametrize("inside", [True, False])
def test_a_cache_goes_into_inference_mode_and_out_of_it(name, inside, monkeypatch):
    monkeypatch.setattr(slots, "FIRST_CAPACITY", 2)  # so that it grows on both sides
    encoding, inputs = build(name), tokens(12)
    more = hidden_for(encoding, 12)
    cache, out, start = whorl.KVCache(encoding=encoding), [], 0
    for size in (2, 1, 4, 1, 4):
        part = slice(start, start + size)
        with torch.inference_mode(inside):
            given = [t[:, :, part].clone() for t in inputs]
            mask = torch.ones(2, size, dtype=torch.bool) if size == 1 else None
            out.append(cache.attend(*given, key_mask=mask, **{key: value[:, part] for key, value in more.items()}))
            cache.reorder([1, 0])
            cache.reorder(torch.tensor([1, 0]))
            cache.change_encoding(encoding, positions=torch.arange(len(cache)))
        start, inside = start + size, not inside
    expected = whorl.attention(*inputs, encoding=encoding, **more)
    torch.testing.assert_close(torch.cat(out, dim=2), expected, **CLOSE)


def test_a_refused_step_does_not_poison_the_cache():
    shaw, inputs = build("shaw"), tokens(5)
    cache = whorl.KVCache(encoding=shaw)
    cache.attend(*(t[:, :, :4] for t in inputs))
    with pytest.raises(whorl.WhorlError, match="Shaw: positions must be int32 or int64"):
        cache.attend(*(t[:, :, 4:] for t in inputs), positions=torch.tensor([4.0]))
    got = cache.attend(*(t[:, :, 4:] for t in inputs))
    torch.testing.assert_close(got, whorl.attention(*inputs, encoding=shaw)[:, :, 4:], **CLOSE)


TRANSFORMS = {
    "vmap": lambda attend, x: torch.vmap(attend)(x[None].repeat(3, 1, 1, 1, 1)),
    "grad": lambda attend, x: torch.func.grad(lambda x: attend(x).sum())(x),
    "jacrev": lambda attend, x: torch.func.jacrev(attend)(x),
}


@pytest.mark.parametrize("text", [0, 2, 3])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_no_transform_of_torch_goes_through_a_cache(name, text):
    """What it keeps would be tensors of the transform, which nobody can use after it."""
    rope, inputs = build("rope"), tokens(5)
    cache = whorl.KVCache(encoding=rope)
    for i in range(text):
        cache.attend(*(x[:, :, i : i + 1] for x in inputs))
    with pytest.raises(whorl.WhorlError, match=r"torch.func and forward-mode derivatives cannot .* Use attention for"):
        TRANSFORMS[name](lambda x: cache.attend(x, x, x), inputs[0][:, :, :1])
    assert len(cache) == text
    got = cache.attend(*(x[:, :, text:] for x in inputs))
    torch.testing.assert_close(got, whorl.attention(*inputs, encoding=rope)[:, :, text:], **CLOSE)


SOURCES = tuple(each.__file__ for each in (cache_module, slots, changed_encoding, kept_positions, decoding_kinds))


def stopped_at(line, call):
    """Whether the call was stopped by an interrupt at that line, counted as they run, of the cache's own code."""
    left, before = line, sys.gettrace()

    def trace(frame, event, _):
        nonlocal left
        if frame.f_code.co_filename not in SOURCES:
            return None
        if event == "line":
            left -= 1
            if left < 0:
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


OTHER = whorl.Rope(head_dim=16, base=500.0)
CALLS = {
    "attend": lambda cache, inputs: cache.attend(*inputs),
    "attend with padding": lambda cache, inputs: cache.attend(
        *inputs, key_mask=torch.tensor([[True, False], [True, True]])
    ),
    "attend at fractions": lambda cache, inputs: cache.attend(*inputs, positions=torch.tensor([7.5, 8.5])),
    "crop": lambda cache, inputs: cache.crop(1),
    "reset": lambda cache, inputs: cache.reset(),
    "reorder": lambda cache, inputs: cache.reorder([1, 1]),
    "change": lambda cache, inputs: cache.change_encoding(OTHER, length=9),
    "change to raw": lambda cache, inputs: cache.change_encoding(build("rerope"), positions=torch.arange(3) * 9),
}


@pytest.mark.parametrize("name", CALLS)
def test_an_interrupt_at_any_line_leaves_a_cache_as_before_or_as_after(name, monkeypatch):
    monkeypatch.setattr(slots, "FIRST_CAPACITY", 2)
    inputs = tokens(6)

    def fresh():
        cache = whorl.KVCache(encoding=ROPE)
        cache.attend(*(t[:, :, :3] for t in inputs))
        return cache

    def told(cache):
        found = (len(cache), cache.policy, cache.length, cache.bytes)
        return *found, cache.attend(*(t[:, :, 5:] for t in inputs)).tolist()

    def call(cache):
        CALLS[name](cache, [t[:, :, 3:5] for t in inputs])

    before, after = told(fresh()), fresh()
    call(after)
    after = told(after)
    assert before != after
    found, line = [], 0
    while True:
        cache = fresh()
        if not stopped_at(line, lambda cache=cache: call(cache)):
            assert told(cache) == after
            break
        found.append(told(cache))
        line += 1
    assert line > 0
    done = [one == after for one in found]
    assert all(one in (before, after) for one in found)
    assert not any(done[:-1])  # the last line gives back what was computed


def test_the_policy_follows_the_encoding():
    expected = {"rope": "transformed", "alibi": "transformed", "none": "transformed", "rerope": "raw", "xpos": "raw"}
    for name, policy in expected.items():
        assert whorl.KVCache(encoding=build(name)).policy == policy
    for name in ("dynamic_ntk", "longrope"):
        assert whorl.KVCache(encoding=scaled_ropes()[name]).policy == "raw"


def filled(**settings):
    cache = whorl.KVCache(encoding=ROPE, **settings)
    cache.attend(*ONE)
    return cache


class Sub(torch.Tensor):
    """A subclass that does nothing of its own."""


CASES = {
    "encoding": (lambda: whorl.KVCache(encoding="rope"), "KVCache: encoding must be an encoding, got 'rope'"),
    "capacity": (
        lambda: whorl.KVCache(encoding=ROPE, capacity=0),
        "capacity must be a positive integer up to 2^40, or None, got 0",
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
    "reorder too far by a tensor": (
        lambda: filled().reorder(torch.tensor([5])),
        "KVCache.reorder: rows must be between 0 and 1, got [5]",
    ),
    "reorder by negative rows": (
        lambda: filled().reorder(torch.tensor([0, -1])),
        "KVCache.reorder: rows must be between 0 and 1, got [0, -1]",
    ),
    "reorder too far by rows of another class": (
        lambda: filled().reorder(torch.tensor([5, 0]).as_subclass(Sub)),
        "KVCache.reorder: rows must be between 0 and 1, got torch.int64 of shape (2,)",
    ),
    "reorder by words": (lambda: filled().reorder(["one"]), "rows must be a list of row numbers, got ['one']"),
    "reorder by too large a number": (lambda: filled().reorder([2**70]), "rows must be a list of row numbers"),
    "reorder to nothing": (lambda: filled().reorder([]), "rows must be a list of row numbers, got []"),
    "other dtype": (
        lambda: filled().attend(*(t.double() for t in ONE)),
        "the cache holds keys in torch.float32 on cpu, got torch.float64 on cpu. Move them with .to(), or reset",
    ),
    "positions of another batch": (
        lambda: filled().attend(*ONE, positions=torch.zeros(3, 1)),
        "KVCache.attend: positions must be int32, int64, float32 or float64 of shape (1,) or (2, 1), got torch.float32",
    ),
    "positions in half precision": (
        lambda: filled().attend(*ONE, positions=torch.zeros(1, dtype=torch.bfloat16)),
        "positions must be int32, int64, float32 or float64, got torch.bfloat16 of shape (1,). Half precision",
    ),
    "positions of rows for axes": (
        lambda: whorl.KVCache(encoding=whorl.MRope(head_dim=16)).attend(*ONE, positions=torch.zeros(2, 1)),
        "of shape (1,) or (3, 2, 1), got torch.float32 of shape (2, 1)",
    ),
    "length": (lambda: whorl.KVCache(encoding=ROPE, length=0), "KVCache: length must be a positive integer or None"),
    "length to change to": (
        lambda: filled().change_encoding(ROPE, length=-1),
        "KVCache.change_encoding: length must be a positive integer or None, got -1",
    ),
    "change to other heads": (
        lambda: filled().change_encoding(whorl.Alibi(heads=8)),
        "KVCache.change_encoding: the tokens so far do not fit Alibi. attention: Alibi has heads=8, q has 4",
    ),
    "change to another head_dim": (
        lambda: filled().change_encoding(whorl.Shaw(head_dim=32)),
        "the tokens so far do not fit Shaw. Shaw: head_dim is 32, got a tensor with 16 dimensions per head",
    ),
    "change to a stale policy": (
        lambda: filled(policy="transformed").change_encoding(build("rerope")),
        "ReRope places a key anew at every step, so policy='transformed' would keep a stale one",
    ),
    "reorder by a mask": (
        lambda: filled().reorder(torch.tensor([True, False])),
        "rows must be a list of row numbers",
    ),
    "no encoding to change to": (
        lambda: filled().change_encoding("rope"),
        "KVCache.change_encoding: encoding must be an encoding, got 'rope'",
    ),
    "positions that are no numbers": (
        lambda: filled().attend(*ONE, positions=torch.tensor([float("nan")])),
        "KVCache: positions must be finite, got",
    ),
    "new positions that are no numbers": (
        lambda: filled().change_encoding(ROPE, positions=torch.tensor([float("inf")])),
        "KVCache: positions must be finite, got",
    ),
    "change positions": (
        lambda: filled().change_encoding(ROPE, positions=torch.arange(3)),
        "positions must be int32, int64, float32 or float64 of shape (1,) or (2, 1), got torch.int64 of shape (3,)",
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


def test_a_cache_knows_the_order_of_its_tokens():
    cache = whorl.KVCache(encoding=whorl.NoPE())
    with pytest.raises(whorl.WhorlError, match=r"KVCache.attend: causal must be True or False, got 'positions'\."):
        cache.attend(*tokens(3), causal="positions")
    assert len(cache) == 0


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [("length", 4, 4.0), ("length", 1, True), ("scale", 1.0, True), ("softcap", 1.0, True)]
    + [(name, good, np.array([1.0, 2.0])) for name, good in (("length", 4), ("scale", 1.0), ("softcap", 1.0))],
)
def test_what_equals_a_number_and_is_none_is_refused_after_steps_with_that_number_too(name, good, bad):
    cache, step = whorl.KVCache(encoding=whorl.Rope(head_dim=16)), tokens(1)
    for _ in range(3):  # the second makes a step ready, the third takes it
        cache.attend(*step, **{name: good})
    with pytest.raises(whorl.WhorlError, match=name):
        cache.attend(*step, **{name: bad})
    assert len(cache) == 3


def test_positions_of_padding_may_be_no_numbers():
    """Nobody reads them, and none goes on from them."""
    encoding, (q, k, v) = build("t5"), tokens(5)
    places = torch.tensor([[torch.nan, torch.inf, 0.0, 1.0]] * q.shape[0])
    real = torch.tensor([[False, False, True, True]] * q.shape[0])
    cache = whorl.KVCache(encoding=encoding)
    cache.attend(*(x[:, :, :4] for x in (q, k, v)), positions=places, key_mask=real)
    got = cache.attend(*(x[:, :, 4:] for x in (q, k, v)))
    wanted = whorl.attention(*(x[:, :, 2:] for x in (q, k, v)), encoding=encoding)[:, :, -1:]
    torch.testing.assert_close(got, wanted, atol=2e-6, rtol=0)


@pytest.mark.parametrize("strides", [(40, 1, 2, 1), (1, 16, 0, 1), (0, 0, 0, 0), (4, 1, 1, 1)], ids=str)
@pytest.mark.parametrize("name", ["none", "rope", "alibi", "window", "shaw"])
def test_views_whose_elements_share_memory_are_read_as_what_they_are(name, strides):
    """Steps that are ready too: those of one token take queries as they are given."""
    encoding = build(name).requires_grad_(False)
    view = torch.randn(1000, generator=torch.Generator().manual_seed(0)).as_strided((2, 4, 9, 16), strides)
    copy = view.clone(memory_format=torch.contiguous_format)
    sizes = (3, 1, 1, 1, 2, 1)
    got = steps(whorl.KVCache(encoding=encoding), (view, copy, view), sizes)
    torch.testing.assert_close(got, steps(whorl.KVCache(encoding=encoding), (copy,) * 3, sizes), **CLOSE)
    shared = whorl.KVCache(encoding=encoding)
    for x in (copy, view, copy):  # a step of another kind between those that are ready
        out = shared.attend(x[:, :, :1], copy[:, :, :1], copy[:, :, :1])
    expected = whorl.attention(*(copy[:, :, :1].repeat(1, 1, 3, 1),) * 3, encoding=encoding)
    torch.testing.assert_close(out, expected[:, :, 2:], **CLOSE)
