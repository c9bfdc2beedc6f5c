"""Multimodal ids from the tensors of Hugging Face processors: token types and grids, in place of get_rope_index."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

import torch

from whorl.dialects.processors import CALL, IMAGE, VIDEO, check_frames, check_image_grids, check_none_left, fill_runs
from whorl.errors import invalid
from whorl.multimodal_ids import Image, Rule, Segment, Text, Video, check_rule, decode_offset, frames_apart, multimodal
from whorl.position_ids import Device, place_of, whole_number

Table = torch.Tensor | Sequence[Sequence[int]]


def segments_from_hf(
    token_types: Table,
    *,
    rule: Rule,
    image_grid_thw: Table | None = None,
    video_grid_thw: Table | None = None,
    second_per_grid_ts: torch.Tensor | Sequence[float] | None = None,
    attention_mask: Table | None = None,
    merge: int = 2,
) -> list[list[Segment]]:
    """Returns the segments of every row of a batch that a Hugging Face processor made.

    ``token_types`` (batch, length) is its mm_token_type_ids: 0 text, 1 image, 2 video. Grids are taken in
    order over the whole batch and must fill the runs of image and video tokens exactly; a run may hold
    several images. Tokens with 0 in ``attention_mask`` are left out. Tensors on a device are copied to the
    host, which waits for it.

    >>> segments_from_hf([[0, 1, 0]], rule="qwen2_vl", image_grid_thw=[[1, 2, 2]])
    [[Text(length=1), Image(height=2, width=2), Text(length=1)]]
    """
    check_rule(CALL, rule)
    merge = whole_number(CALL, "merge", merge, least=1)
    if token_types is None:
        raise invalid(CALL, "token_types", "integers of shape (batch, length)", token_types)
    types = _table("token_types", token_types)
    real = torch.ones_like(types) if attention_mask is None else _table("attention_mask", attention_mask)
    if real.shape != types.shape:
        raise invalid(CALL, "attention_mask", f"of the shape of token_types, {tuple(types.shape)}", real)
    images = _images(_table("image_grid_thw", image_grid_thw, columns=3).tolist())
    videos = _videos(_table("video_grid_thw", video_grid_thw, columns=3).tolist(), second_per_grid_ts)
    check_frames([video.frames for video in videos], types.numel())
    waiting: dict[int, Iterator[Segment]] = {
        IMAGE: iter(images),
        VIDEO: iter(frames_apart(videos) if rule == "qwen3_vl" else videos),
    }
    rows = [fill_runs(types[i][real[i].ne(0)].tolist(), waiting, merge, row=i) for i in range(types.shape[0])]
    check_none_left(waiting)
    return [[Text(part) if isinstance(part, int) else part for part in row] for row in rows]


def multimodal_from_hf(
    token_types: Table,
    *,
    rule: Rule,
    image_grid_thw: Table | None = None,
    video_grid_thw: Table | None = None,
    second_per_grid_ts: torch.Tensor | Sequence[float] | None = None,
    attention_mask: Table | None = None,
    merge: int = 2,
    tokens_per_second: float | Fraction | None = None,
    device: Device = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns ids (3, batch, length) and decode offsets (batch,), in place of transformers' get_rope_index.

    Arguments as in ``segments_from_hf`` and ``multimodal``; masked tokens get the id 0. Text after a video
    starts behind the last id of the video, as the models were trained: get_rope_index of transformers 5
    differs there once a video has more frames than rows and columns.

    >>> ids, offsets = multimodal_from_hf([[0, 1, 0]], rule="qwen2_vl", image_grid_thw=[[1, 2, 2]])
    >>> ids[:, 0].tolist(), offsets.tolist()
    ([[0, 1, 2], [0, 1, 2], [0, 1, 2]], [0])
    """
    rows = segments_from_hf(
        token_types,
        rule=rule,
        image_grid_thw=image_grid_thw,
        video_grid_thw=video_grid_thw,
        second_per_grid_ts=second_per_grid_ts,
        attention_mask=attention_mask,
        merge=merge,
    )
    types = torch.as_tensor(token_types, device="cpu")
    real = torch.ones_like(types) if attention_mask is None else torch.as_tensor(attention_mask, device="cpu")
    ids = torch.zeros(3, *types.shape, dtype=torch.int64, device="cpu")
    offsets = torch.zeros(len(rows), dtype=torch.int64, device="cpu")
    for i, row in enumerate(rows):
        row_ids = multimodal(row, rule=rule, merge=merge, tokens_per_second=tokens_per_second)
        ids[:, i, real[i].ne(0)] = row_ids
        offsets[i] = decode_offset(row_ids)
    home = token_types.device if isinstance(token_types, torch.Tensor) else "cpu"
    where = home if device is None else place_of(CALL, device)
    return ids.to(where), offsets.to(where)


def _table(name: str, values: Table | None, *, columns: int | None = None) -> torch.Tensor:
    """Rows of integers on the host; a mask may have bools."""
    if values is None:
        return torch.zeros(0, columns or 0, dtype=torch.int64, device="cpu")
    expected = f"rows of {columns} integers" if columns else "integers of shape (batch, length)"
    try:
        table = torch.as_tensor(values, device="cpu")
    except (TypeError, ValueError, RuntimeError, OverflowError):  # rows of different lengths, or no such numbers
        raise invalid(CALL, name, expected, values) from None
    counted = not (table.is_floating_point() or table.is_complex()) and (
        table.dtype != torch.bool or name == "attention_mask"
    )
    if table.ndim != 2 or not counted or table.shape[1] != (columns or table.shape[1]):
        raise invalid(CALL, name, expected, values)
    return table


def _images(grids: list[list[int]]) -> list[Image]:
    check_image_grids(grids)
    return [Image(height, width) for _, height, width in grids]


def _videos(grids: list[list[int]], seconds: torch.Tensor | Sequence[float] | None) -> list[Video]:
    each = [None] * len(grids) if seconds is None else seconds
    each = each.tolist() if isinstance(each, torch.Tensor) else each
    if not isinstance(each, Sequence) or len(each) != len(grids):
        raise invalid(CALL, "second_per_grid_ts", f"{len(grids)} numbers, one per row of video_grid_thw", seconds)
    return [Video(*grid, seconds_per_frame=each[i]) for i, grid in enumerate(grids)]
