"""Position ids against plain loops, and every refusal by its message."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from whorl.errors import WhorlError
from whorl.position_ids import (
    documents,
    from_mask,
    grid,
    left_padded,
    normalized_grid,
    packed,
    pad_rows,
    positions,
)

quick = settings(max_examples=60, deadline=None)
some_lengths = st.lists(st.integers(0, 7), max_size=6)


def packed_loop(lengths, offsets, total):
    """One token after another: (id, document) pairs, the rest of the row being one more document."""
    out = []
    for document, (length, offset) in enumerate(zip(lengths, offsets, strict=True)):
        out += [(offset + i, document) for i in range(length)]
    return out + [(i, len(lengths)) for i in range(total - len(out))]


def same(tensor, values):
    assert tensor.dtype == torch.int64
    assert tensor.device.type == "cpu"
    assert tensor.tolist() == values


# positions


def test_positions_count_from_offset():
    same(positions(0), [])
    same(positions(4), [0, 1, 2, 3])
    same(positions(3, offset=5), [5, 6, 7])
    same(positions(3, offset=-1), [-1, 0, 1])
    same(positions(np.int32(2), offset=np.int64(9)), [9, 10])


@pytest.mark.parametrize("make", [list, tuple, np.array, torch.tensor, lambda v: torch.tensor(v, dtype=torch.int32)])
def test_positions_with_an_offset_per_row(make):
    same(positions(3, offset=make([0, 7, -2])), [[0, 1, 2], [7, 8, 9], [-2, -1, 0]])


def test_positions_with_an_offset_tensor_without_axes():
    same(positions(2, offset=torch.tensor(4, dtype=torch.int32)), [4, 5])


# packed and documents


@quick
@given(some_lengths, st.integers(0, 4), st.randoms(use_true_random=False))
def test_packed_and_documents_equal_the_loop(lengths, spare, random):
    offsets = [random.randint(-5, 50) for _ in lengths]
    total = sum(lengths) + spare
    sums = [0]
    for length in lengths:
        sums.append(sums[-1] + length)
    ids, owners = (
        (list(part) for part in zip(*packed_loop(lengths, offsets, total), strict=True)) if total else ([], [])
    )
    plain = [i for i, _ in packed_loop(lengths, [0] * len(lengths), total)]
    for given_as in ({"lengths": lengths}, {"cu_seqlens": sums}, {"cu_seqlens": torch.tensor(sums, dtype=torch.int32)}):
        same(packed(**given_as, total=total), plain)
        same(packed(**given_as, total=total, offsets=offsets), ids)
        same(packed(**given_as, total=total, offsets=torch.tensor(offsets, dtype=torch.int64)), ids)
        same(documents(**given_as, total=total), owners)
        assert packed(**given_as).shape == (sum(lengths),)


def test_packed_by_hand():
    same(packed([3, 2]), [0, 1, 2, 0, 1])
    same(packed(torch.tensor([3, 2])), [0, 1, 2, 0, 1])
    same(packed([]), [])
    same(packed([], total=2), [0, 1])
    same(packed(cu_seqlens=[0, 0, 2, 2]), [0, 1])
    same(documents(cu_seqlens=[0, 0, 2, 2], total=3), [1, 1, 3])


def test_packed_equals_single_documents():
    singles = [positions(n, offset=o) for n, o in ((4, 0), (1, 8), (6, 2))]
    assert torch.equal(packed([4, 1, 6], offsets=[0, 8, 2]), torch.cat(singles))


# padding


@quick
@given(some_lengths, st.integers(0, 3))
def test_left_padded_equals_the_loop_and_the_mask(lengths, spare):
    total = max(lengths, default=0) + spare
    rows = [[0] * (total - n) + list(range(n)) for n in lengths]
    same(left_padded(lengths, total=total), rows)
    same(left_padded(torch.tensor(lengths, dtype=torch.int32), total=total), rows)
    mask = torch.tensor([[0] * (total - n) + [1] * n for n in lengths], dtype=torch.int64).reshape(len(lengths), total)
    same(from_mask(mask), rows)
    same(from_mask(mask.bool()), rows)


def test_left_padded_takes_the_longest_row():
    same(left_padded([1, 3]), [[0, 0, 0], [0, 1, 2]])


@quick
@given(st.lists(st.lists(st.booleans(), min_size=5, max_size=5), min_size=1, max_size=4))
def test_from_mask_equals_the_loop(rows):
    expected = []
    for row in rows:
        seen, ids = 0, []
        for real in row:
            seen += real
            ids.append(max(seen - 1, 0))
        expected.append(ids)
    same(from_mask(torch.tensor(rows)), expected)
    same(from_mask(torch.tensor(rows[0]).to(torch.int8)), expected[0])


def test_from_mask_counts_past_127_in_int8():
    assert from_mask(torch.ones(300, dtype=torch.int8))[-1] == 299


@pytest.mark.parametrize("side", ["left", "right"])
def test_pad_rows(side):
    rows = [positions(2, offset=5), positions(3)]
    zeros_left = [[0, 5, 6], [0, 1, 2]]
    same(pad_rows(rows, side=side), zeros_left if side == "left" else [[5, 6, 0], [0, 1, 2]])
    wide = pad_rows([row.expand(3, -1) for row in rows], side=side, total=4)
    assert wide.shape == (3, 2, 4)
    assert torch.equal(wide[2], pad_rows(rows, side=side, total=4))


# grids


@quick
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_grid_equals_counting_with_carry(sizes):
    cell, cells = [0] * len(sizes), []
    while True:
        cells.append(list(cell))
        axis = len(sizes) - 1
        while axis >= 0 and cell[axis] == sizes[axis] - 1:
            cell[axis] = 0
            axis -= 1
        if axis < 0:
            break
        cell[axis] += 1
    expected = [[c[axis] for c in cells] for axis in range(len(sizes))]
    same(grid(*sizes), expected)
    same(grid(*sizes, offset=3), [[i + 3 for i in row] for row in expected])
    starts = [10 * axis - 5 for axis in range(len(sizes))]
    for offset in (starts, torch.tensor(starts)):
        same(grid(*sizes, offset=offset), [[i + s for i in row] for row, s in zip(expected, starts, strict=True)])


def test_grid_axes_are_time_row_column():
    time, row, column = grid(2, 3, 5)
    token = (1 * 3 + 2) * 5 + 4
    assert (time[token], row[token], column[token]) == (1, 2, 4)


def test_normalized_grid_is_the_dinov3_formula():
    found = normalized_grid(3, 7)
    assert found.dtype == torch.float64
    expected = [[2 * ((i + 0.5) / n) - 1 for i, n in ((r, 3), (c, 7))] for r in range(3) for c in range(7)]
    torch.testing.assert_close(found.T, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=3e-16)
    assert torch.equal(found, -found.flip(-1))


# devices, dtypes, graphs


def test_defaults_of_torch_are_not_asked():
    with torch.device("meta"):
        found = [
            positions(2),
            positions(2, offset=[1]),
            packed([1, 2], offsets=[0, 1]),
            documents([1]),
            left_padded([1]),
            grid(2, 2),
            normalized_grid(2, 2),
        ]
    assert {tensor.device.type for tensor in found} == {"cpu"}
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float16)
    try:
        assert normalized_grid(2, 2).dtype == torch.float64
    finally:
        torch.set_default_dtype(before)


def test_device_is_used():
    for tensor in (
        positions(2, device="meta"),
        positions(2, offset=[1], device="meta"),
        packed([1], device="meta"),
        documents([1], device="meta"),
        left_padded([1], device="meta"),
        grid(2, device="meta"),
        normalized_grid(2, device="meta"),
        packed([1], offsets=[2], device="meta"),
    ):
        assert tensor.device.type == "meta"


def test_values_on_a_device_are_never_read():
    """A meta tensor has no values, so reading one raises: the same code cannot wait for a CUDA device."""
    row = torch.empty(3, dtype=torch.int32, device="meta")
    for tensor, shape in (
        (positions(4, offset=row), (3, 4)),
        (positions(4, offset=row[0]), (4,)),
        (packed(row, total=9), (9,)),
        (packed(cu_seqlens=row, total=9, offsets=row[1:]), (9,)),
        (documents(cu_seqlens=row, total=9), (9,)),
        (left_padded(row, total=5), (3, 5)),
        (from_mask(row), (3,)),
        (grid(2, 2, 2, offset=row), (3, 8)),
    ):
        assert tensor.device.type == "meta"
        assert tensor.dtype == torch.int64
        assert tensor.shape == shape


def test_compiles_to_one_graph_for_all_lengths():
    def ids(x, sums, starts):
        length = x.shape[0]
        return (
            packed(cu_seqlens=sums, total=length, offsets=starts),
            documents(cu_seqlens=sums, total=length),
            positions(length, offset=starts),
            left_padded(starts, total=length),
            grid(2, length),
        )

    torch._dynamo.reset()
    graphs = []

    def keep(graph, _):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(ids, fullgraph=True, dynamic=True, backend=keep)
    for length in (8, 11, 30):
        given = torch.zeros(length), torch.tensor([0, 3, length], dtype=torch.int32), torch.tensor([1, 2])
        for mine, plain in zip(compiled(*given), ids(*given), strict=True):
            assert torch.equal(mine, plain)
    assert len(graphs) == 1


# refusals

meta = torch.empty(2, dtype=torch.int64, device="meta")
REFUSALS = [
    (lambda: positions(-1), "positions: length must be 0 or more, got -1."),
    (lambda: positions(2.0), "positions: length must be an integer, got 2.0."),
    (lambda: positions(True), "positions: length must be an integer, got True."),
    (lambda: positions("3"), "positions: length must be an integer, got '3'."),
    (lambda: positions(3, offset=0.5), "positions: offset must be an integer, got 0.5."),
    (lambda: positions(3, offset=[1, 2.5]), "positions: offset[1] must be an integer, got 2.5."),
    (
        lambda: positions(3, offset=torch.ones(2)),
        "positions: offset must be an integer or one integer per row, got torch.float32 of shape (2,). "
        "Pass an integer tensor of shape () or (rows,).",
    ),
    (
        lambda: positions(3, offset=torch.ones(2, 2, dtype=torch.int64)),
        "positions: offset must be an integer or one integer per row, got torch.int64 of shape (2, 2). "
        "Pass an integer tensor of shape () or (rows,).",
    ),
    (
        lambda: packed(),
        "packed: one of lengths and cu_seqlens must be given, got neither. "
        "Write packed([300, 724]) or packed(cu_seqlens=[0, 300, 1024]).",
    ),
    (
        lambda: packed([1], cu_seqlens=[0, 1]),
        "packed: one of lengths and cu_seqlens must be given, got both. "
        "Write packed([300, 724]) or packed(cu_seqlens=[0, 300, 1024]).",
    ),
    (lambda: packed(5), "packed: lengths must be a list of integers, got 5. For a single one pass lengths=[…]."),
    (lambda: packed([3, -1]), "packed: lengths[1] must be 0 or more, got -1."),
    (lambda: packed([3, True]), "packed: lengths[1] must be an integer, got True."),
    (lambda: packed(torch.tensor([3, -1])), "packed: lengths[1] must be 0 or more, got -1."),
    (
        lambda: packed(torch.tensor([True])),
        "packed: lengths must be integers in one row, got torch.bool of shape (1,). "
        "Pass an integer tensor of shape (n,).",
    ),
    (
        lambda: packed(torch.zeros(2, 2, dtype=torch.int64)),
        "packed: lengths must be integers in one row, got torch.int64 of shape (2, 2). "
        "Pass an integer tensor of shape (n,).",
    ),
    (
        lambda: packed(cu_seqlens=[1, 4]),
        "packed: cu_seqlens must be a running sum that starts at 0, got [1, 4]. Put a 0 in front.",
    ),
    (
        lambda: packed(cu_seqlens=torch.tensor([0, 4, 2], dtype=torch.int32)),
        "packed: cu_seqlens must be a running sum, which never falls, got [0, 4, 2]. "
        "It falls to 2 at index 2; if these are lengths, pass lengths=….",
    ),
    (
        lambda: packed(cu_seqlens=[]),
        "packed: cu_seqlens must be a running sum that starts at 0, got []. Without documents it is [0].",
    ),
    (lambda: packed([3, 4], total=6), "packed: total must be 7 or more, the sum of the lengths, got 6."),
    (lambda: packed(cu_seqlens=[0, 7], total=6), "packed: total must be 7 or more, the last of cu_seqlens, got 6."),
    (lambda: packed([3, 4], offsets=[1]), "packed: offsets must be 2 integers, one per document, got [1]."),
    (
        lambda: packed(cu_seqlens=meta),
        "packed: total must be given for values on a device or in a graph, got None. "
        "Reading them would wait for the device; pass total=…, the last of cu_seqlens.",
    ),
    (
        lambda: documents(meta),
        "documents: total must be given for values on a device or in a graph, got None. "
        "Reading them would wait for the device; pass total=…, the sum of the lengths.",
    ),
    (lambda: documents([2], total=-1), "documents: total must be 0 or more, got -1."),
    (lambda: left_padded([2, 5], total=4), "left_padded: total must be 5 or more, the longest length, got 4."),
    (
        lambda: left_padded(3),
        "left_padded: lengths must be a list of integers, got 3. For a single one pass lengths=[…].",
    ),
    (
        lambda: left_padded(meta),
        "left_padded: total must be given for values on a device or in a graph, got None. "
        "Reading them would wait for the device; pass total=…, the longest length.",
    ),
    (
        lambda: from_mask(torch.zeros(1, 1, 4, 4)),
        "from_mask: mask must be bools or integers of shape (length,) or (batch, length), got torch.float32 of shape "
        "(1, 1, 4, 4). Pass the tokenizer's mask (1 real, 0 padding) as a tensor, not a bias for the scores.",
    ),
    (
        lambda: from_mask([1, 1]),
        "from_mask: mask must be bools or integers of shape (length,) or (batch, length), got [1, 1]. "
        "Pass the tokenizer's mask (1 real, 0 padding) as a tensor, not a bias for the scores.",
    ),
    (lambda: pad_rows([]), "pad_rows: rows must be a list of tensors (length,) or (axes, length), got []."),
    (lambda: pad_rows([positions(2)], side="up"), "pad_rows: side must be 'left' or 'right', got 'up'."),
    (lambda: pad_rows([positions(2)], total=1), "pad_rows: total must be 2 or more, the longest row, got 1."),
    (
        lambda: pad_rows([grid(2, 2), positions(2)]),
        "pad_rows: rows must be alike in axes, as the first of shape (2, 4), got torch.int64 of shape (2,).",
    ),
    (lambda: grid(), "grid: at least one size must be given, got none. Write grid(height, width)."),
    (lambda: grid(4, 0), "grid: size of axis 1 must be 1 or more, got 0."),
    (lambda: grid(4, 2.0), "grid: size of axis 1 must be an integer, got 2.0."),
    (lambda: grid(4, 4, offset=[1]), "grid: offset must be one integer or 2, one per axis, got [1]."),
    (lambda: normalized_grid(-2, 3), "normalized_grid: size of axis 0 must be 1 or more, got -2."),
]


@pytest.mark.parametrize(("request_", "message"), REFUSALS, ids=[message[:60] for _, message in REFUSALS])
def test_refusals(request_, message):
    with pytest.raises(WhorlError) as caught:
        request_()
    assert str(caught.value) == message
