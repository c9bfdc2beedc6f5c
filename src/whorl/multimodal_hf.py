"""Multimodal ids from what Hugging Face processors return: token types and grids, in place of get_rope_index."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from fractions import Fraction

import torch

from whorl.errors import WhorlError, invalid
from whorl.multimodal_ids import (
    Image,
    Rule,
    Segment,
    Text,
    Video,
    check_rule,
    decode_offset,
    frames_apart,
    multimodal,
)
from whorl.position_ids import Device, whole_number

TEXT, IMAGE, VIDEO = 0, 1, 2  # the token types of Hugging Face processors
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
    call = "segments_from_hf"
    check_rule(call, rule)
    merge = whole_number(call, "merge", merge, least=1)
    if token_types is None:
        raise invalid(call, "token_types", "integers of shape (batch, length)", token_types)
    types = _table(call, "token_types", token_types)
    real = torch.ones_like(types)
    if attention_mask is not None:
        real = _table(call, "attention_mask", attention_mask)
    if real.shape != types.shape:
        raise invalid(call, "attention_mask", f"of the shape of token_types, {tuple(types.shape)}", real)
    images = _images(call, _table(call, "image_grid_thw", image_grid_thw, columns=3))
    videos = _videos(call, _table(call, "video_grid_thw", video_grid_thw, columns=3), second_per_grid_ts)
    _check_frames(call, videos, types)
    waiting = {IMAGE: iter(images), VIDEO: iter(frames_apart(videos) if rule == "qwen3_vl" else videos)}
    found: list[list[Segment]] = []
    for i in range(types.shape[0]):
        runs = _runs(call, types[i][real[i].ne(0)])
        found.append([part for kind, length in runs for part in _take(waiting, kind, length, merge, row=i)])
    for kind, name in ((IMAGE, "image_grid_thw"), (VIDEO, "video_grid_thw")):
        left = len(list(waiting[kind]))
        if left:
            raise WhorlError(
                f"{call}: {name} must match the token types, got {left} without tokens. "
                "Pass the grids of this batch alone, and the token types of the whole prompt."
            )
    return found


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
        found = multimodal(row, rule=rule, merge=merge, tokens_per_second=tokens_per_second)
        ids[:, i, real[i].ne(0)] = found
        offsets[i] = decode_offset(found)
    home = token_types.device if isinstance(token_types, torch.Tensor) else "cpu"
    where = home if device is None else device
    return ids.to(where), offsets.to(where)


def _table(call: str, name: str, values: Table | None, *, columns: int | None = None) -> torch.Tensor:
    """Rows of integers on the host; a mask may have bools."""
    if values is None:
        return torch.zeros(0, columns or 0, dtype=torch.int64, device="cpu")
    expected = f"rows of {columns} integers" if columns else "integers of shape (batch, length)"
    try:
        table = torch.as_tensor(values, device="cpu")
    except (TypeError, ValueError, RuntimeError, OverflowError):  # rows of different lengths, or no such numbers
        raise invalid(call, name, expected, values) from None
    counted = not (table.is_floating_point() or table.is_complex()) and (
        table.dtype != torch.bool or name == "attention_mask"
    )
    if table.ndim != 2 or not counted or table.shape[1] != (columns or table.shape[1]):
        raise invalid(call, name, expected, values)
    return table


def _images(call: str, sizes: torch.Tensor) -> list[Segment]:
    for size in sizes.tolist():
        if size[0] != 1:
            raise invalid(
                call,
                "image_grid_thw",
                "rows of 1, height, width",
                size,
                "Grids with more than one time step belong in video_grid_thw.",
            )
    return [Image(height, width) for _, height, width in sizes.tolist()]


def _videos(call: str, sizes: torch.Tensor, seconds: torch.Tensor | Sequence[float] | None) -> list[Segment]:
    count = sizes.shape[0]
    each = [None] * count if seconds is None else seconds
    each = each.tolist() if isinstance(each, torch.Tensor) else each
    if not isinstance(each, Sequence) or len(each) != count:
        raise invalid(call, "second_per_grid_ts", f"{count} numbers, one per row of video_grid_thw", seconds)
    return [Video(*size, seconds_per_frame=each[i]) for i, size in enumerate(sizes.tolist())]


def _check_frames(call: str, videos: list[Segment], types: torch.Tensor) -> None:
    """Raises a WhorlError for a video of more frames than there are tokens, before its frames are counted out."""
    most = types.numel()
    long = next((video for video in videos if isinstance(video, Video) and video.frames > most), None)
    if long is not None:
        raise WhorlError(
            f"{call}: video_grid_thw must match the token types, got {long.frames} frames for {most} tokens. "
            "Pass the grids of this batch alone, as frames, height, width."
        )


def _runs(call: str, types: torch.Tensor) -> list[tuple[int, int]]:
    """Token types in a row as (type, how often)."""
    kinds = types.tolist()
    odd = next((kind for kind in kinds if kind not in (TEXT, IMAGE, VIDEO)), None)
    if odd is not None:
        raise invalid(
            call,
            "token_types",
            "0 (text), 1 (image) or 2 (video)",
            odd,
            "Pass the processor's mm_token_type_ids, not input_ids.",
        )
    return [(kind, len(list(run))) for kind, run in itertools.groupby(kinds)]


def _take(waiting: dict[int, Iterator[Segment]], kind: int, length: int, merge: int, *, row: int) -> list[Segment]:
    """The next images or videos of the batch, as many as fill a run of tokens."""
    if kind == TEXT:
        return [Text(length)]
    what = "image" if kind == IMAGE else "video"
    wrong = f"segments_from_hf: {what}_grid_thw must match the token types"
    taken: list[Segment] = []
    filled = 0
    while filled < length:
        segment = next(waiting[kind], None)
        if segment is None:
            raise WhorlError(
                f"{wrong}, got too few: {length - filled} of {length} {what} tokens "
                f"in row {row} have no grid. Pass one grid per {what}."
            )
        taken.append(segment)
        filled += segment.tokens(merge)
    if filled != length:
        raise WhorlError(
            f"{wrong}, got grids of {filled} tokens for a run of {length} in row {row}. "
            "Pass the model's spatial_merge_size as merge=…, and prompts that are not cut off."
        )
    return taken
