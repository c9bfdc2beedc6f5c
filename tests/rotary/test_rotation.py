"""The rotation against its oracle: layouts, slices, orders, heads, precision, direction, gradients."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import whorl
from helpers import LAYOUTS, ROUNDING, SCALINGS
from oracles import rotary_frequencies, rotation
from whorl import reference
from whorl.kernels.rotate_checks import checked_rotation
from whorl.kernels.rotate_torch import turn_by_torch

layouts = pytest.mark.parametrize("layout", LAYOUTS)


def angles_at(position, dim, base=1e4):
    return [position * frequency for frequency in rotary_frequencies.plain(dim, base)]


def random(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def test_golden_values():
    x, at = torch.tensor([[1.0, 2.0, 3.0, 4.0]], dtype=torch.float64), torch.tensor([2])
    interleaved = [-2.234742, 0.077004, 2.919405, 4.059196]
    half = [-3.144039, 1.919605, -0.339143, 4.039197]
    for layout, expected in (("interleaved", interleaved), ("half", half)):
        got = whorl.Rope(head_dim=4, layout=layout).rotate(x, at)
        assert got[0].tolist() == pytest.approx(expected, abs=1e-6)
        assert reference.rope(x.numpy(), at.numpy(), layout=layout)[0].tolist() == pytest.approx(expected, abs=1e-6)


@layouts
@pytest.mark.parametrize(
    ("rotary_dim", "slice_"), [(None, "leading"), (8, "leading"), (8, "trailing"), (6, 3), (2, 14), (16, "trailing")]
)
@pytest.mark.parametrize("scaling", ["none", "yarn_mscale"])
def test_rotation_is_the_matrix_form(layout, rotary_dim, slice_, scaling):
    scaling = SCALINGS[scaling]
    rope = whorl.Rope(head_dim=16, rotary_dim=rotary_dim, slice=slice_, layout=layout, scaling=scaling)
    x, positions = random(3, 16), [0, 7, 1000]
    got = rope.rotate(x, torch.tensor(positions))
    frequencies = rope.frequencies().tolist()
    for row, position in enumerate(positions):
        angles = [position * frequency for frequency in frequencies]
        expected = rotation.rotate(
            x[row].numpy(), angles, layout, start=rope.config.start, factor=rope.attention_factor()
        )
        np.testing.assert_allclose(got[row].numpy(), expected, rtol=0, atol=1e-12)


def test_the_complex_form_agrees():
    x, rope = random(1, 32), whorl.Rope(head_dim=32, layout="interleaved")
    expected = rotation.rotate_complex(x[0].numpy(), angles_at(11, 32))
    np.testing.assert_allclose(rope.rotate(x, torch.tensor([11]))[0].numpy(), expected, rtol=0, atol=1e-13)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([2, 8, 24]), st.sampled_from(LAYOUTS[:2]), st.integers(0, 99))
def test_the_numpy_reference_agrees(position, dim, layout, seed):
    x = random(1, dim, seed=seed)
    got = whorl.Rope(head_dim=dim, layout=layout).rotate(x, torch.tensor([position]))
    np.testing.assert_allclose(got.numpy(), reference.rope(x, [position], layout=layout), rtol=0, atol=1e-11)


@layouts
def test_orders_hold_the_same_rotation(layout):
    rope, x = whorl.Rope(head_dim=16, rotary_dim=12, layout=layout), random(2, 3, 5, 16)
    positions = torch.tensor([[0, 1, 2, 3, 4], [9, 7, 5, 3, 1]])
    bhld = rope.rotate(x, positions)
    blhd = rope.rotate(x.transpose(1, 2), positions, order="blhd")
    thd = rope.rotate(x.transpose(1, 2).reshape(10, 3, 16), positions.flatten(), order="thd")
    assert torch.equal(bhld, blhd.transpose(1, 2))
    assert torch.equal(bhld, thd.view(2, 5, 3, 16).transpose(1, 2))
    one_row = rope.rotate(x[:1], positions[0])
    assert torch.equal(one_row, bhld[:1])
    assert torch.equal(rope.rotate(x[0], positions[0]), bhld[0])  # without a batch
    per_head = [t.unsqueeze(1).expand(-1, 3, -1, -1) for t in rope.tables(positions, dtype=torch.float64)]
    for order, turned in (("bhld", x), ("blhd", x.transpose(1, 2))):
        got = whorl.rotate(turned, *per_head, layout, order=order)
        assert torch.equal(got if order == "bhld" else got.transpose(1, 2), bhld)


def test_queries_and_keys_may_differ_in_heads_and_positions():
    rope, q, k = whorl.Rope(head_dim=16), random(2, 8, 3, 16), random(2, 2, 7, 16, seed=1)
    q_positions, k_positions = torch.arange(4, 7), torch.arange(7)
    got_q, got_k = rope.transform_qk(q, k, q_positions, k_positions)
    assert torch.equal(got_q, rope.rotate(q, q_positions))
    assert torch.equal(got_k, rope.rotate(k, k_positions))


def test_only_the_named_heads_turn():
    x, positions = random(2, 4, 5, 16), torch.arange(1, 6)
    whole = whorl.Rope(head_dim=16).rotate(x, positions)
    got = whorl.Rope(head_dim=16, rotated_heads=(0, 2)).rotate(x, positions)
    assert torch.equal(got[:, [0, 2]], whole[:, [0, 2]])
    assert torch.equal(got[:, [1, 3]], x[:, [1, 3]])
    other = whorl.Rope(head_dim=16, rotated_heads=(0, 2)).rotate(x.transpose(1, 2), positions, order="blhd")
    assert torch.equal(other.transpose(1, 2), got)


def test_blocks_are_heads_side_by_side():
    x, positions = random(2, 5, 32), torch.arange(5)
    cos, sin = whorl.Rope(head_dim=32).tables(positions)
    got = whorl.rotate(x, cos, sin, "half", blocks=2)
    expected = [
        whorl.rotate(part, c, s, "half")
        for part, c, s in zip(x.chunk(2, -1), cos.chunk(2, -1), sin.chunk(2, -1), strict=True)
    ]
    assert torch.equal(got, torch.cat(expected, -1))


@layouts
@pytest.mark.parametrize("name", SCALINGS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_rotating_back_undoes_it(layout, name, dtype):
    rope = whorl.Rope(head_dim=80, rotary_dim=64, slice=8, layout=layout, scaling=SCALINGS[name])
    x, positions = random(2, 2, 9, 80, dtype=dtype), torch.arange(9) * 1001
    back = rope.rotate(rope.rotate(x, positions, 5000), positions, 5000, inverse=True)
    torch.testing.assert_close(back, x, rtol=0, atol=8 * ROUNDING[dtype])


def test_layouts_agree_under_permutation():
    x, positions = random(2, 3, 7, 32), torch.arange(7)
    to_half = torch.arange(32).view(16, 2).T.flatten()  # dimension 2i goes to i, 2i + 1 to i + 16
    half = whorl.Rope(head_dim=32, layout="half").rotate(x[..., to_half], positions)
    interleaved = whorl.Rope(head_dim=32, layout="interleaved").rotate(x, positions)
    mixed = whorl.Rope(head_dim=32, layout="interleaved_to_half").rotate(x, positions)
    assert torch.equal(interleaved[..., to_half], half)
    assert torch.equal(mixed, half)


@layouts
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_rounded_once(layout, dtype):
    """Input in half precision gets the float32 result, rounded: neither tables nor products lose more."""
    rope, x = whorl.Rope(head_dim=64, layout=layout), random(2, 4, 33, 64, dtype=dtype)
    positions = torch.arange(33) + 100_000
    got, wide = rope.rotate(x, positions), rope.rotate(x.float(), positions)
    assert got.dtype == dtype
    assert torch.equal(got, wide.to(dtype))
    exact = rope.rotate(x.double(), positions)
    assert bool(((got.double() - exact).abs() <= ROUNDING[dtype] * exact.abs() + 1e-6).all())


@layouts
def test_any_strides(layout):
    rope, positions = whorl.Rope(head_dim=16, layout=layout), torch.arange(6)
    packed = random(2, 6, 3, 4, 16)  # (batch, length, q or k or v, heads, dim)
    q = packed[:, :, 0]
    assert not q.is_contiguous()
    assert torch.equal(rope.rotate(q, positions, order="blhd"), rope.rotate(q.contiguous(), positions, order="blhd"))
    strided = random(2, 3, 6, 32)[..., ::2]
    assert torch.equal(rope.rotate(strided, positions), rope.rotate(strided.contiguous(), positions))


def test_empty_batches_and_lengths():
    rope = whorl.Rope(head_dim=16)
    assert rope.rotate(torch.empty(0, 4, 5, 16), torch.arange(5)).shape == (0, 4, 5, 16)
    assert rope.rotate(torch.empty(2, 4, 0, 16), torch.arange(0)).shape == (2, 4, 0, 16)


@layouts
@pytest.mark.parametrize("inverse", [False, True])
def test_gradients(layout, inverse):
    rope = whorl.Rope(head_dim=12, rotary_dim=8, slice=2, layout=layout, scaling=SCALINGS["yarn_mscale"])
    x, positions = random(2, 3, 4, 12).requires_grad_(), torch.tensor([[0, 1, 2, 3], [7, 5, 3, 2]])

    def turn(x):
        return rope.rotate(x, positions, inverse=inverse)

    assert torch.autograd.gradcheck(turn, (x,), check_forward_ad=True, check_batched_grad=True)


def test_gradient_is_the_rotation_back():
    """The vector-Jacobian product of an orthogonal map is its inverse: norms of gradients are kept."""
    rope, x = whorl.Rope(head_dim=64), random(2, 4, 50, 64).requires_grad_()
    positions, upstream = torch.arange(50) * 97, random(2, 4, 50, 64, seed=5)
    rope.rotate(x, positions).backward(upstream)
    assert x.grad is not None
    torch.testing.assert_close(x.grad, rope.rotate(upstream, positions, inverse=True), rtol=0, atol=1e-13)
    torch.testing.assert_close(x.grad.norm(dim=-1), upstream.norm(dim=-1), rtol=1e-14, atol=0)


@layouts
@pytest.mark.parametrize("inverse", [False, True])
def test_the_transposed_record_is_the_adjoint(layout, inverse):
    """<R x, y> = <x, R' y>, whatever factor is inside the tables, and the adjoint of the adjoint is the rotation."""
    turned = checked_rotation("rotate", layout, inverse, 1, 2, "bhld")
    x, y, cos, sin = random(2, 5, 16), random(2, 5, 16, seed=1), random(5, 6, seed=2), random(5, 6, seed=3)
    there = (turn_by_torch(x, cos, sin, None, turned) * y).sum()
    back = (x * turn_by_torch(y, cos, sin, None, turned.transposed())).sum()
    assert float(there) == pytest.approx(float(back), rel=1e-12)
    assert turned.transposed() != turned and turned.transposed().transposed() == turned


def test_forward_mode_and_vmap():
    rope, x, tangent = whorl.Rope(head_dim=16), random(3, 2, 5, 16), random(3, 2, 5, 16, seed=1)
    positions = torch.arange(5)
    value, change = torch.func.jvp(lambda x: rope.rotate(x, positions), (x,), (tangent,))
    assert torch.equal(value, rope.rotate(x, positions))
    assert torch.equal(change, rope.rotate(tangent, positions))  # linear in x
    mapped = torch.vmap(lambda row: rope.rotate(row, positions))(x)
    assert torch.equal(mapped, rope.rotate(x, positions))
    rows = torch.tensor([[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [2, 2, 2, 2, 2]])
    by_row = torch.vmap(rope.rotate)(x, rows)
    torch.testing.assert_close(by_row, rope.rotate(x, rows), rtol=0, atol=1e-13)
    slope = torch.func.grad(lambda x: rope.rotate(x, positions).pow(2).sum())(x)
    torch.testing.assert_close(slope, 2 * x, rtol=0, atol=1e-13)


def test_an_implementation_that_cannot_run_raises():
    rope = whorl.Rope(head_dim=16)
    with pytest.raises(whorl.WhorlError, match="impl='flex' cannot run here: rotate has no flex kernel"):
        rope.rotate(random(1, 1, 3, 16), torch.arange(3), impl="flex")
    with pytest.raises(whorl.WhorlError, match="Did you mean 'torch'"):
        rope.rotate(random(1, 1, 3, 16), torch.arange(3), impl="troch")
