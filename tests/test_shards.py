"""Shards of a sequence: every token on one rank, in the order the scheme promises, and back again."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from whorl.errors import WhorlError
from whorl.position_ids import grid, packed, positions
from whorl.shards import shard, unshard


def owner(token, length, world, scheme):
    """The rank of a token, from its index alone."""
    if scheme == "contiguous":
        return token * world // length
    chunk = token * 2 * world // length
    return min(chunk, 2 * world - 1 - chunk)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5), st.integers(1, 4), st.sampled_from(["contiguous", "zigzag"]))
def test_every_token_is_on_its_rank_in_order(world, size, scheme):
    length = 2 * world * size
    parts = [shard(positions(length), rank=rank, world=world, scheme=scheme) for rank in range(world)]
    for rank, part in enumerate(parts):
        assert part.tolist() == [token for token in range(length) if owner(token, length, world, scheme) == rank]
    assert torch.equal(unshard(parts, scheme=scheme), positions(length))


@pytest.mark.parametrize("scheme", ["contiguous", "zigzag"])
@pytest.mark.parametrize("dim", [0, 1, -1, -2])
def test_any_tensor_along_any_axis(scheme, dim):
    x = torch.randn(8, 12, 4)[:, :8]
    parts = [shard(x, rank=rank, world=2, scheme=scheme, dim=dim) for rank in range(2)]
    assert torch.equal(unshard(parts, scheme=scheme, dim=dim), x)
    moved = x.movedim(dim, 0)
    for rank, part in enumerate(parts):
        rows = [i for i in range(moved.shape[0]) if owner(i, moved.shape[0], 2, scheme) == rank]
        assert torch.equal(part, moved[rows].movedim(0, dim))


def test_zigzag_gives_equal_causal_work():
    length, world = 48, 4
    work = [int((shard(positions(length), rank=r, world=world, scheme="zigzag") + 1).sum()) for r in range(world)]
    assert len(set(work)) == 1


def test_positions_follow_their_tokens():
    ids = packed([3, 5])
    tokens = torch.arange(8) * 10
    for rank in range(2):
        kept = shard(tokens, rank=rank, world=2, scheme="zigzag") // 10
        assert torch.equal(shard(ids, rank=rank, world=2, scheme="zigzag"), ids[kept])
    assert shard(grid(2, 4), rank=1, world=2).tolist() == [[1, 1, 1, 1], [0, 1, 2, 3]]


REFUSALS = [
    (
        lambda: shard(positions(10), rank=0, world=4),
        "shard: length must be a multiple of 4 for contiguous over 4 ranks, got 10. Pad to 12.",
    ),
    (
        lambda: shard(positions(12), rank=0, world=4, scheme="zigzag"),
        "shard: length must be a multiple of 8 for zigzag over 4 ranks, got 12. Pad to 16.",
    ),
    (
        lambda: shard(positions(8), rank=4, world=4),
        "shard: rank must be below world=4, got 4. Ranks count from 0 to 3.",
    ),
    (lambda: shard(positions(8), rank=-1, world=4), "shard: rank must be 0 or more, got -1."),
    (lambda: shard(positions(8), rank=True, world=4), "shard: rank must be an integer, got True."),
    (lambda: shard(positions(8), rank=0, world=0), "shard: world must be 1 or more, got 0."),
    (
        lambda: shard(positions(8), rank=0, world=2, scheme="zig_zag"),
        "shard: unknown scheme 'zig_zag'. Did you mean 'zigzag'?",
    ),
    (lambda: shard(positions(8), rank=0, world=2, dim=1), "shard: dim must be between -1 and 0 for shape (8,), got 1."),
    (
        lambda: shard(torch.tensor(3), rank=0, world=1),
        "shard: x must be a tensor with at least one axis, got torch.int64 of shape ().",
    ),
    (lambda: shard([1, 2], rank=0, world=2), "shard: x must be a tensor with at least one axis, got [1, 2]."),
    (lambda: unshard([]), "unshard: parts must be a list of tensors, one per rank, got []."),
    (
        lambda: unshard([positions(4), positions(6)]),
        "unshard: parts must be of one shape, (4,) as the first, got torch.int64 of shape (6,).",
    ),
    (
        lambda: unshard([positions(3), positions(3)], scheme="zigzag"),
        "unshard: length of a part must be even for zigzag, got 3. It is two chunks of one size.",
    ),
    (
        lambda: unshard([positions(4)], scheme="ring"),
        "unshard: unknown scheme 'ring'. Expected one of: contiguous, zigzag.",
    ),
]


@pytest.mark.parametrize(("request_", "message"), REFUSALS, ids=[message[:60] for _, message in REFUSALS])
def test_refusals(request_, message):
    with pytest.raises(WhorlError) as caught:
        request_()
    assert str(caught.value) == message
