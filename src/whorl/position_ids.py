"""Position ids: the integers an encoding is asked about, for plain, packed, padded and gridded tokens.

Ids are int64. Ids of several axes have the axis first, (axes, length) or (axes, batch, length), in the order
time, row, column. Images and video inside text are in ``multimodal_ids.py``, context parallel in
``whorl.shards``.

``device=None`` means the device of the first tensor that is given, and the CPU where none is; torch's default
device and dtype are never asked. Values on a device are never read, because that would wait for the device:
sizes are checked always, values only in host memory (lists, and CPU tensors outside torch.compile).
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable, Sequence
from typing import TypeGuard

import torch
from torch.nn.functional import pad

from whorl.config import MOST_TOKENS
from whorl.errors import WhorlError, invalid
from whorl.tracing import making_graph

Device = torch.device | str | None
Integers = Sequence[int] | torch.Tensor
LAST = 2**63 - 1  # the largest id

# Whole positions reach so far from 0: their distances, and what follows them, are int64 as well.
FARTHEST = 2**61


def positions(length: int, *, offset: int | Integers = 0, device: Device = None) -> torch.Tensor:
    """Returns the ids offset, offset + 1, …: (length,), or (rows, length) where each row has its own offset.

    An offset is the number of tokens that a cache already holds: an int, one integer per row, or a tensor
    without axes (its value may change between replays of a CUDA graph). It may be negative; relative
    encodings are defined there.

    >>> positions(4, offset=2).tolist()
    [2, 3, 4, 5]
    >>> positions(3, offset=[0, 7]).tolist()
    [[0, 1, 2], [7, 8, 9]]
    """
    length = whole_number("positions", "length", length)
    check_room("positions", "length", length)
    where = place_of("positions", device, offset)
    if isinstance(offset, torch.Tensor):
        if offset.ndim > 1 or not _counts(offset.dtype):
            remedy = "Pass an integer tensor of shape () or (rows,)."
            raise invalid("positions", "offset", "an integer or one integer per row", offset, remedy)
        starts = offset.to(where, torch.int64)
    elif _listed(offset):
        given = whole_numbers("positions", "offset", offset, least=None)
        check_room("positions", "length times rows", length * len(given))
        check_last("positions", given, length)
        starts = _tensor(given, where)
    else:
        start = whole_number("positions", "offset", offset, least=None)
        check_last("positions", [start], length)
        return torch.arange(start, start + length, dtype=torch.int64, device=where)
    return starts.unsqueeze(-1) + torch.arange(length, dtype=torch.int64, device=where)


def difference(i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
    """i - j of positions that broadcast, exact wherever int64 or float64 can hold them.

    int32 would overflow from a distance of 2^31 on, and torch rounds whole numbers to float32 beside float32.

    >>> difference(torch.tensor([2**31 - 1], dtype=torch.int32), torch.tensor([-1], dtype=torch.int32)).tolist()
    [2147483648]
    """
    if i.is_floating_point() != j.is_floating_point():
        return i.double() - j.double()
    return i - j if i.is_floating_point() else i.long() - j.long()


def within_reach(positions: torch.Tensor) -> torch.Tensor:
    """Whole positions whose differences are int64: those beyond 2^61 stand there."""
    return positions.clamp(-FARTHEST, FARTHEST) if positions.dtype == torch.int64 else positions


def wide(positions: torch.Tensor) -> torch.Tensor:
    """Positions as int64 where they are whole numbers, else as float64: differences of these are exact."""
    return positions.double() if positions.is_floating_point() else positions.long()


def from_last_key(q_positions: torch.Tensor, k_positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Positions of queries and keys counted from the last key of each row, int64 or float64.

    What depends on distances alone loses nothing by it, and what is computed from the numbers themselves
    is as precise at any position as at the first ones.

    >>> queries, keys = from_last_key(torch.tensor([2**53 + 1]), torch.tensor([2**53 - 1, 2**53 + 1]))
    >>> queries.tolist(), keys.tolist()
    ([0], [-2, 0])
    """
    whole = not (q_positions.is_floating_point() or k_positions.is_floating_point())
    dtype = torch.int64 if whole else torch.float64
    queries, keys = q_positions.to(dtype), k_positions.to(dtype)
    if not keys.numel():
        return queries, keys
    # a position that is no number must not be the last one: no difference from it would be a number
    known = keys if whole else torch.where(keys.isfinite(), keys, torch.finfo(dtype).min)
    last = known.amax(-1, keepdim=True)
    return queries - last, keys - last


def packed(
    lengths: Integers | None = None,
    *,
    cu_seqlens: Integers | None = None,
    total: int | None = None,
    offsets: Integers | None = None,
    device: Device = None,
) -> torch.Tensor:
    """Returns ids of shape (total,) that restart at every document of a packed row.

    The documents are given by their lengths, or by ``cu_seqlens``, the running sum that starts at 0
    (FlashAttention's varlen convention). ``offsets`` adds one number per document: the tokens of it that a
    cache already holds.

    ``total`` is the length of the row, the sum of the lengths where it is left out. It may be larger: the
    tokens after the last document count as one more document. Lengths or cu_seqlens on a device need it, and
    then nothing here waits for the device.

    >>> packed([2, 3]).tolist()
    [0, 1, 0, 1, 2]
    >>> packed(cu_seqlens=[0, 2, 5], offsets=[0, 10], total=6).tolist()
    [0, 1, 10, 11, 12, 0]
    """
    where = place_of("packed", device, lengths, cu_seqlens, offsets)
    bounds, total = _bounds("packed", lengths, cu_seqlens, total, where)
    tokens, document = _document_of(bounds, total)
    ids = tokens - bounds[document]
    if offsets is None:
        return ids
    given = whole_numbers("packed", "offsets", offsets, least=None)
    check_last("packed", given, total, "offsets")
    added = _tensor(given, where)
    if added.shape[0] != bounds.shape[0] - 1:
        raise invalid("packed", "offsets", f"{bounds.shape[0] - 1} integers, one per document", offsets)
    return ids + pad(added, (0, 1))[document]  # the tokens after the last document get the 0


def documents(
    lengths: Integers | None = None,
    *,
    cu_seqlens: Integers | None = None,
    total: int | None = None,
    device: Device = None,
) -> torch.Tensor:
    """Returns the document index of every token of a packed row, shape (total,); arguments as in ``packed``.

    Tokens may attend to each other where it is equal. Tokens after the last document get the next index.

    >>> documents([2, 0, 3], total=6).tolist()
    [0, 0, 2, 2, 2, 3]
    """
    bounds, total = _bounds("documents", lengths, cu_seqlens, total, place_of("documents", device, lengths, cu_seqlens))
    return _document_of(bounds, total)[1]


def left_padded(lengths: Integers, *, total: int | None = None, device: Device = None) -> torch.Tensor:
    """Returns ids (batch, total) for rows padded on the left: real tokens count from 0, padding gets 0.

    ``total`` is the longest length where it is left out; lengths on a device need it.

    >>> left_padded([1, 3], total=4).tolist()
    [[0, 0, 0, 0], [0, 0, 1, 2]]
    """
    where = place_of("left_padded", device, lengths)
    lengths = whole_numbers("left_padded", "lengths", lengths)
    longest = max(lengths, default=0) if isinstance(lengths, list) else None
    total = _total("left_padded", total, longest, "the longest length")
    check_room("left_padded", "total times rows", total * len(lengths))
    padding = total - _tensor(lengths, where)
    return (torch.arange(total, dtype=torch.int64, device=where) - padding.unsqueeze(-1)).clamp(min=0)


def from_mask(mask: torch.Tensor) -> torch.Tensor:
    """Returns ids of the shape of a mask, on its device, that count the real (nonzero) tokens of a row.

    Padding on the left gets 0. Padding elsewhere repeats the id of the real token before it, so that no id
    passes the last real one (the Hugging Face convention: running sum minus 1, never below 0).

    >>> from_mask(torch.tensor([[0, 0, 1, 1], [1, 1, 1, 0]])).tolist()
    [[0, 0, 0, 1], [0, 1, 2, 2]]
    """
    is_mask = isinstance(mask, torch.Tensor) and (_counts(mask.dtype) or mask.dtype == torch.bool)
    if not is_mask or mask.ndim not in (1, 2):
        remedy = "Pass the tokenizer's mask (1 real, 0 padding) as a tensor, not a bias for the scores."
        raise invalid("from_mask", "mask", "bools or integers of shape (length,) or (batch, length)", mask, remedy)
    return (mask.ne(0).cumsum(-1, dtype=torch.int64) - 1).clamp(min=0)


def pad_rows(rows: Sequence[torch.Tensor], *, side: str = "left", total: int | None = None) -> torch.Tensor:
    """Returns one batch of ids from rows of different lengths, padded with 0 on the left or right.

    Rows (length,) become (batch, total), rows (axes, length) become (axes, batch, total).

    >>> pad_rows([positions(1), positions(3)]).tolist()
    [[0, 0, 0], [0, 1, 2]]
    """
    if side not in ("left", "right"):
        raise invalid("pad_rows", "side", "'left' or 'right'", side)
    rows = list(rows)
    if not rows or not all(isinstance(row, torch.Tensor) and row.ndim in (1, 2) for row in rows):
        raise invalid("pad_rows", "rows", "a list of tensors (length,) or (axes, length)", rows)
    odd = next((row for row in rows if row.shape[:-1] != rows[0].shape[:-1]), None)
    if odd is not None:
        raise invalid("pad_rows", "rows", f"alike in axes, as the first of shape {tuple(rows[0].shape)}", odd)
    total = _total("pad_rows", total, max(row.shape[-1] for row in rows), "the longest row")
    check_room("pad_rows", "total times rows", total * len(rows))
    gaps = [total - row.shape[-1] for row in rows]
    padded = [pad(row, (gap, 0) if side == "left" else (0, gap)) for row, gap in zip(rows, gaps, strict=True)]
    return torch.stack(padded, dim=-2)


def grid(*sizes: int, offset: int | Integers = 0, device: Device = None) -> torch.Tensor:
    """Returns the coordinates of the cells of a grid, shape (axes, cells), the last axis running fastest.

    ``grid(height, width)`` gives the rows and columns of an image, ``grid(time, height, width)`` adds the
    time of a video. ``offset`` is added to every axis, or axis by axis where it is a list.

    >>> grid(2, 3).tolist()
    [[0, 0, 0, 1, 1, 1], [0, 1, 2, 0, 1, 2]]
    """
    _check_sizes("grid", sizes)
    where = place_of("grid", device, offset)
    starts = whole_numbers("grid", "offset", offset if _listed(offset) else [offset] * len(sizes), least=None)
    if len(starts) != len(sizes):
        raise invalid("grid", "offset", f"one integer or {len(sizes)}, one per axis", offset)
    check_last("grid", starts, max(sizes))
    return _cells([positions(size, device=where) for size in sizes]) + _tensor(starts, where).unsqueeze(-1)


def normalized_grid(*sizes: int, device: Device = None) -> torch.Tensor:
    """Returns cell centres in -1 to 1, fp64, shape (axes, cells): 2 (i + 1/2) / n - 1 per axis (DINOv3).

    The same picture at another resolution covers the same range, so nothing has to extrapolate.

    >>> normalized_grid(1, 4).tolist()
    [[0.0, 0.0, 0.0, 0.0], [-0.75, -0.25, 0.25, 0.75]]
    """
    _check_sizes("normalized_grid", sizes)
    # (2 i + 1 - n) / n is the same number, but rounded once and exactly odd about the middle.
    centres = [(2 * positions(size, device=device) + (1 - size)).to(torch.float64) / size for size in sizes]
    return _cells(centres)


def whole_number(call: str, name: str, value: object, *, least: int | None = 0) -> int:
    """The value as an int, or the error that says what it must be; symbolic sizes stay symbolic."""
    if isinstance(value, bool) or not isinstance(value, (int, torch.SymInt, numbers.Integral)):
        raise invalid(call, name, "an integer", value)
    number = value if isinstance(value, (int, torch.SymInt)) else int(value)
    if least is not None and number < least:
        raise invalid(call, name, f"{least} or more", value)
    if isinstance(number, int) and not -(2**63) <= number < 2**63:
        raise invalid(call, name, "between -2^63 and 2^63 - 1", value, "Positions are integers of 64 bits.")
    return number  # pyright: ignore[reportReturnType]  # a SymInt is an int to whoever calculates with it


def whole_numbers(call: str, name: str, values: object, *, least: int | None = 0) -> list[int] | torch.Tensor:
    """The values as checked ints, or the tensor itself where reading it would wait for a device."""
    if isinstance(values, torch.Tensor):
        if values.ndim != 1 or not _counts(values.dtype):
            raise invalid(call, name, "integers in one row", values, "Pass an integer tensor of shape (n,).")
        if values.device.type != "cpu" or making_graph():
            return values
        values = values.tolist()
    if not _listed(values):
        raise invalid(call, name, "a list of integers", values, f"For a single one pass {name}=[…].")
    return [whole_number(call, f"{name}[{i}]", value, least=least) for i, value in enumerate(values)]


def check_room(call: str, what: str, count: int) -> None:
    """Raises a WhorlError for more ids than any row of tokens has; a graph, which serves every size, asks nothing."""
    if not making_graph() and count > MOST_TOKENS:
        raise invalid(call, what, f"at most {MOST_TOKENS:,}", count)


def check_last(call: str, starts: Iterable[int] | torch.Tensor, count: int, name: str = "offset") -> None:
    """Raises a WhorlError where so many ids from one of the starts pass the largest integer; tensors are not read."""
    for start in () if isinstance(starts, torch.Tensor) or making_graph() else starts:
        if start > LAST - count:
            raise invalid(call, name, f"at most {LAST - count}, so that the last id has 64 bits", start)


def place_of(call: str, device: Device, *values: object) -> torch.device | str:
    """The device asked for, or that of the first tensor, or the CPU; a WhorlError for one that is not there."""
    if device is None:
        return next((value.device for value in values if isinstance(value, torch.Tensor)), "cpu")
    if making_graph() or torch.cuda.is_initialized():  # where it is, there is one, and asking takes time
        return device
    try:
        kind = device.type if isinstance(device, torch.device) else torch.device(device).type
    except (RuntimeError, TypeError):
        raise invalid(call, "device", "a device of torch, as 'cpu' or 'cuda'", device) from None
    if kind == "cuda" and not torch.cuda.is_available():
        raise WhorlError(f"{call}: device={str(device)!r} is not here: no CUDA device. Use device='cpu'.")
    return device


def _bounds(
    call: str, lengths: object, cu_seqlens: object, total: int | None, where: torch.device | str
) -> tuple[torch.Tensor, int]:
    """The starts of the documents and the end of the last one, (documents + 1,), and the length of the row."""
    if (lengths is None) == (cu_seqlens is None):
        given = "neither" if lengths is None else "both"
        raise WhorlError(
            f"{call}: one of lengths and cu_seqlens must be given, got {given}. "
            f"Write {call}([300, 724]) or {call}(cu_seqlens=[0, 300, 1024])."
        )
    if lengths is not None:
        sizes = whole_numbers(call, "lengths", lengths)
        known = sum(sizes) if isinstance(sizes, list) else None
        bounds = pad(_tensor(sizes, where).cumsum(0), (1, 0))
        return bounds, _total(call, total, known, "the sum of the lengths")
    ends = whole_numbers(call, "cu_seqlens", cu_seqlens)
    if len(ends) == 0:
        raise invalid(call, "cu_seqlens", "a running sum that starts at 0", cu_seqlens, "Without documents it is [0].")
    known = _check_running_sum(call, ends) if isinstance(ends, list) else None
    return _tensor(ends, where), _total(call, total, known, "the last of cu_seqlens")


def _check_running_sum(call: str, ends: list[int]) -> int:
    if ends[0] != 0:
        raise invalid(call, "cu_seqlens", "a running sum that starts at 0", ends, "Put a 0 in front.")
    fall = next((i for i in range(1, len(ends)) if ends[i] < ends[i - 1]), None)
    if fall is not None:
        remedy = f"It falls to {ends[fall]} at index {fall}; if these are lengths, pass lengths=…."
        raise invalid(call, "cu_seqlens", "a running sum, which never falls", ends, remedy)
    return ends[-1]


def _document_of(bounds: torch.Tensor, total: int) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.arange(total, dtype=torch.int64, device=bounds.device)
    # A token's document is the number of documents that ended at or before it, empty ones among them.
    return tokens, torch.searchsorted(bounds[1:], tokens, right=True)


def _total(call: str, total: int | None, known: int | None, what: str) -> int:
    """The length of the row: as asked, and at least what the host knows to be needed."""
    if total is None:
        if known is None:
            raise WhorlError(
                f"{call}: total must be given for values on a device or in a graph, got None. "
                f"Reading them would wait for the device; pass total=…, {what}."
            )
        check_room(call, what, known)
        return known
    total = whole_number(call, "total", total)
    if known is not None and total < known:
        raise invalid(call, "total", f"{known} or more, {what}", total)
    check_room(call, "total", total)
    return total


def _cells(axes: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack([axis.flatten() for axis in torch.meshgrid(*axes, indexing="ij")])


def _check_sizes(call: str, sizes: tuple[int, ...]) -> None:
    if not sizes:
        raise WhorlError(f"{call}: at least one size must be given, got none. Write {call}(height, width).")
    for axis, size in enumerate(sizes):
        whole_number(call, f"size of axis {axis}", size, least=1)
    check_room(call, "the product of the sizes", math.prod(sizes))


def _tensor(values: list[int] | torch.Tensor, where: torch.device | str) -> torch.Tensor:
    if isinstance(values, torch.Tensor):
        return values.to(where, torch.int64)
    return torch.tensor(values, dtype=torch.int64, device=where)


def _listed(values: object) -> TypeGuard[Iterable[object]]:
    return isinstance(values, Iterable) and not isinstance(values, (str, bytes))


def _counts(dtype: torch.dtype) -> bool:
    return not (dtype.is_floating_point or dtype.is_complex or dtype == torch.bool)
