"""Cached keys move exactly: between positions, configs, served lengths and layouts."""

import pytest
import torch

import whorl
from helpers import LAYOUTS, SCALINGS

KEYS = torch.randn(2, 3, 40, 64, generator=torch.Generator().manual_seed(0))
POSITIONS = torch.arange(40) * 1009
# two float32 rotations in a row, each with errors of 3 roundings on values up to 5
CLOSE = {"rtol": 0, "atol": 2e-6}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", SCALINGS)
def test_keys_move_to_another_scaling(layout, name):
    old = whorl.Rope(head_dim=64, layout=layout)
    new = whorl.Rope(head_dim=64, layout=layout, scaling=SCALINGS[name])
    there = whorl.rerotate(old.rotate(KEYS, POSITIONS), old, new, POSITIONS)
    torch.testing.assert_close(there, new.rotate(KEYS, POSITIONS), **CLOSE)
    back = whorl.rerotate(there, new, old, POSITIONS)
    torch.testing.assert_close(back, old.rotate(KEYS, POSITIONS), **CLOSE)


@pytest.mark.parametrize("name", ["dynamic_ntk", "longrope"])
def test_keys_move_to_another_served_length(name):
    """What transformers leaves wrong in its cache: keys rotated when the text was shorter."""
    rope = whorl.Rope(head_dim=64, scaling=SCALINGS[name])
    cached = rope.rotate(KEYS, POSITIONS, length=200)
    wanted = rope.rotate(KEYS, POSITIONS, length=60_000)
    assert float((cached - wanted).abs().max()) > 1
    moved = whorl.rerotate(cached, rope, rope, POSITIONS, old_length=200, new_length=60_000)
    torch.testing.assert_close(moved, wanted, **CLOSE)


def test_keys_move_to_other_positions():
    rope, moved_to = whorl.Rope(head_dim=64), POSITIONS.flip(0) + 16_000_000
    moved = whorl.rerotate(rope.rotate(KEYS, POSITIONS), rope, rope, POSITIONS, new_positions=moved_to)
    torch.testing.assert_close(moved, rope.rotate(KEYS, moved_to), **CLOSE)


@pytest.mark.parametrize(
    "new",
    [
        whorl.Rope(head_dim=64, layout="interleaved"),
        whorl.Rope(head_dim=64, rotary_dim=32, slice="trailing"),
        whorl.Rope(head_dim=64, rotated_heads=(1,)),
        whorl.Rope(head_dim=64, layout="interleaved_to_half", base=5e5),
    ],
    ids=repr,
)
def test_keys_move_to_another_layout_or_slice(new):
    old = whorl.Rope(head_dim=64)
    moved = whorl.rerotate(old.rotate(KEYS, POSITIONS), old, new, POSITIONS)
    torch.testing.assert_close(moved, new.rotate(KEYS, POSITIONS), **CLOSE)


def test_framework_keys_become_exact_ones():
    """Keys rotated by float32 tables are undone by those tables, so their angle error goes too."""
    old, new = whorl.Rope(head_dim=64, angles="float32"), whorl.Rope(head_dim=64)
    positions = POSITIONS + 10_000_000
    rotated = old.rotate(KEYS, positions)
    assert float((rotated - new.rotate(KEYS, positions)).abs().max()) > 0.1
    torch.testing.assert_close(whorl.rerotate(rotated, old, new, positions), new.rotate(KEYS, positions), **CLOSE)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_keys_are_rounded_once_more(dtype):
    old, new = whorl.Rope(head_dim=64), whorl.Rope(head_dim=64, base=5e5)
    cached = old.rotate(KEYS.to(dtype), POSITIONS)
    moved = whorl.rerotate(cached, old, new, POSITIONS)
    assert moved.dtype == dtype
    assert torch.equal(moved, whorl.rerotate(cached.float(), old, new, POSITIONS).to(dtype))


def test_rows_orders_and_gradients():
    old, new = whorl.Rope(head_dim=64), whorl.Rope(head_dim=64, base=5e5)
    rows = torch.stack((POSITIONS, POSITIONS + 5))
    expected = whorl.rerotate(KEYS, old, new, rows)
    other = whorl.rerotate(KEYS.transpose(1, 2), old, new, rows, order="blhd")
    assert torch.equal(other.transpose(1, 2), expected)
    small, other = whorl.Rope(head_dim=8), whorl.Rope(head_dim=8, base=5e5)
    x = KEYS[:1, :2, :3, :8].double().requires_grad_()
    assert torch.autograd.gradcheck(lambda keys: whorl.rerotate(keys, small, other, POSITIONS[:3]), (x,))


def test_only_rotary_encodings_move_keys():
    with pytest.raises(whorl.WhorlError, match="rerotate: old must be a rotary encoding, got 'rope'"):
        whorl.rerotate(KEYS, "rope", whorl.Rope(head_dim=64), POSITIONS)


@pytest.mark.parametrize("batch", [2, 3])
def test_rows_of_a_batch_are_no_axes(batch):
    old, new = whorl.Rope(head_dim=64), whorl.MRope(head_dim=64)
    keys, rows = KEYS[:1].expand(batch, -1, -1, -1), torch.arange(batch)[:, None] * 7 + POSITIONS
    moved = whorl.rerotate(old.rotate(keys, rows), old, new, rows)
    torch.testing.assert_close(moved, new.rotate(keys, rows.expand(3, -1, -1)), **CLOSE)
    back = whorl.rerotate(moved, new, old, rows.expand(3, -1, -1), new_positions=rows)
    torch.testing.assert_close(back, old.rotate(keys, rows), **CLOSE)
    text = whorl.rerotate(new.rotate(KEYS, POSITIONS), new, old, POSITIONS)  # one number for all axes
    torch.testing.assert_close(text, old.rotate(KEYS, POSITIONS), **CLOSE)
    with pytest.raises(whorl.WhorlError, match="rerotate: positions of 3 axes do not tell those on 1"):
        whorl.rerotate(moved, new, old, rows.expand(3, -1, -1))


@pytest.mark.parametrize("batch", [None, 1, 3])
def test_angles_by_head_meet_those_of_a_batch(batch):
    """Three rows and three heads: a table of rows must not be read as one of heads."""
    by_head, axial = whorl.MixedRope(head_dim=64, heads=3), whorl.AxialRope(head_dim=64)
    keys, ids = KEYS[:1].expand(batch or 2, -1, -1, -1), whorl.grid(5, 8)
    if batch is not None:
        ids = ids[:, None] + torch.arange(batch)[:, None]
    for old, new in ((by_head, axial), (axial, by_head)):
        moved = whorl.rerotate(old.rotate(keys, ids), old, new, ids)
        torch.testing.assert_close(moved, new.rotate(keys, ids), **CLOSE)
