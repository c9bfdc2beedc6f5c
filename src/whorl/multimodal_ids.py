"""Multimodal ids: text, images and video in one sequence, on the axes time, row and column that M-RoPE reads.

Papers: Qwen2-VL (arXiv 2409.12191); Qwen2.5-VL (arXiv 2502.13923), which ties time to seconds; Qwen3-VL
(arXiv 2511.21631), which writes the time as text between frames. With c the first id of a segment:

    Text    time = row = column = c, c + 1, …
    Image   time = c, row = c + i, column = c + j, with i and j counted after merging patches
    Video   as an Image, but frame k has time
              c + k                                                     qwen2_vl
              c + floor(k · tokens_per_second · seconds_per_frame)      qwen2_5_vl
            and under qwen3_vl every frame is a segment of its own
    next    c = 1 + the largest id so far on any axis

Ids are laid out on the host and copied to the device once: many short segments would be many small kernels.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

import torch

from whorl.config import as_float
from whorl.errors import WhorlError, invalid, shown, unknown
from whorl.position_ids import (
    LAST,
    Device,
    Integers,
    check_room,
    grid,
    place_of,
    positions,
    whole_number,
    whole_numbers,
)

Rule = Literal["qwen2_vl", "qwen2_5_vl", "qwen3_vl"]
RULES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
MOST_FRAMES = 2**20  # of a video, six days at 2 a second
LONGEST = 10**9  # seconds of a frame and ids of a second: 32 years, and their product fits an id


@dataclass(frozen=True)
class Text:
    """A run of text tokens, the markers around images and videos among them."""

    length: int

    def __post_init__(self) -> None:
        whole_number("Text", "length", self.length)

    def tokens(self, merge: int = 2) -> int:
        """The number of tokens; text is not merged."""
        return self.length


@dataclass(frozen=True)
class Image:
    """An image of height x width patches, counted before merging."""

    height: int
    width: int

    def __post_init__(self) -> None:
        for name in ("height", "width"):
            whole_number("Image", name, getattr(self, name), least=1)

    def tokens(self, merge: int = 2) -> int:
        """The number of tokens once every merge x merge patches are one."""
        return math.prod(_merged("Image.tokens", self, merge))


@dataclass(frozen=True)
class Video:
    """A video of frames x height x width patches, counted before merging.

    A frame is one step of the patch grid. Where a model puts two pictures into one patch, it has half as many
    frames as pictures, and ``seconds_per_frame`` is 2 / fps: what Hugging Face calls second_per_grid_ts.
    """

    frames: int
    height: int
    width: int
    seconds_per_frame: float | Fraction | None = None

    def __post_init__(self) -> None:
        for name in ("frames", "height", "width"):
            whole_number("Video", name, getattr(self, name), least=1)
        if self.frames > MOST_FRAMES:
            raise invalid("Video", "frames", f"at most {MOST_FRAMES:,}", self.frames)
        if self.seconds_per_frame is not None:
            _fraction("Video", "seconds_per_frame", self.seconds_per_frame)

    def tokens(self, merge: int = 2) -> int:
        """The number of tokens once every merge x merge patches are one."""
        return self.frames * math.prod(_merged("Video.tokens", self, merge))


Segment = Text | Image | Video


def multimodal(
    segments: Iterable[Segment],
    *,
    rule: Rule,
    merge: int = 2,
    tokens_per_second: float | Fraction | None = None,
    offset: int = 0,
    device: Device = None,
) -> torch.Tensor:
    """Returns ids (3, length) of time, row, column for text, images and video, by the rules stated above.

    ``merge`` is the model's spatial_merge_size. ``tokens_per_second`` is in the vision config of models with
    rule="qwen2_5_vl" and belongs to that rule alone. ``offset`` is the first id.

    >>> multimodal([Text(2), Image(4, 4), Text(1)], rule="qwen2_vl").tolist()
    [[0, 1, 2, 2, 2, 2, 4], [0, 1, 2, 2, 3, 3, 4], [0, 1, 2, 3, 2, 3, 4]]
    """
    segments = list(segments)
    for segment in segments:
        if not isinstance(segment, Segment):
            raise invalid("multimodal", "segments", "a list of Text, Image and Video", segment)
    merge = whole_number("multimodal", "merge", merge, least=1)
    start = whole_number("multimodal", "offset", offset, least=None)
    check_rule("multimodal", rule)
    rate = _rate(segments, rule, tokens_per_second)
    where = place_of("multimodal", device)
    check_room("multimodal", "the number of tokens", sum(_tokens(segment, merge) for segment in segments))
    blocks = [torch.zeros(3, 0, dtype=torch.int64, device="cpu")]
    for segment in frames_apart(segments) if rule == "qwen3_vl" else segments:
        if isinstance(segment, Text):
            blocks.append(positions(segment.length, offset=start, device="cpu").expand(3, -1))
            start += segment.length
        else:
            rows, columns = _merged("multimodal", segment, merge)
            times = _times(segment, rate)
            ids = max(times[-1] + 1, rows, columns)
            if start + ids > LAST:
                raise invalid("multimodal", "every id", "an integer of 64 bits", start + ids, "Pass a smaller offset.")
            block = grid(len(times), rows, columns, device="cpu")
            block[0] = torch.tensor(times, dtype=torch.int64, device="cpu")[block[0]]
            blocks.append(block + start)
            start += ids
    return torch.cat(blocks, dim=1).to(where)


def timestamped(video: Video, *, before: int | Sequence[int], after: int = 0) -> list[Segment]:
    """Returns the segments of a video with text around every frame, as the prompts of Qwen3-VL have it.

    ``before`` counts the tokens in front of a frame (timestamp and start marker), once for all frames or
    frame by frame; ``after`` those behind each frame (end marker).

    >>> timestamped(Video(2, 4, 4), before=[6, 7], after=1)[:2]
    [Text(length=6), Video(frames=1, height=4, width=4, seconds_per_frame=None)]
    """
    if not isinstance(video, Video):
        raise invalid("timestamped", "video", "a Video", video)
    each = [before] * video.frames if isinstance(before, numbers.Integral) else before
    counts = [int(count) for count in whole_numbers("timestamped", "before", each)]
    if len(counts) != video.frames:
        raise invalid("timestamped", "before", f"one integer or {video.frames}, one per frame", before)
    behind = Text(whole_number("timestamped", "after", after))
    frames = frames_apart([video])
    return [part for i, frame in enumerate(frames) for part in (Text(counts[i]), frame, behind)]


def decode_offset(ids: torch.Tensor, *, lengths: Integers | None = None) -> torch.Tensor:
    """Returns what to add to the index of a decoded token to get its id: largest id + 1 - length (rope delta).

    From ids (axes, length) comes a tensor without axes, from (axes, batch, length) one of shape (batch,).
    Where rows are padded (with 0), ``lengths`` counts the real tokens of each. Nothing waits for the device.

    >>> ids = multimodal([Text(2), Image(4, 4), Text(1)], rule="qwen2_vl")
    >>> decode_offset(ids).item()                       # 7 tokens, the largest id is 4
    -2
    >>> positions(2, offset=7 + decode_offset(ids)).expand(3, -1).tolist()
    [[5, 6], [5, 6], [5, 6]]
    """
    sized = isinstance(ids, torch.Tensor) and ids.ndim in (2, 3) and ids.shape[0] > 0
    if not sized or ids.dtype != torch.int64:
        raise invalid("decode_offset", "ids", "int64 of shape (axes, length) or (axes, batch, length)", ids)
    length: int | torch.Tensor = ids.shape[-1]
    largest = ids.amax(dim=(0, -1)) if length else ids.new_full(ids.shape[1:-1], -1)
    if lengths is not None:
        counts = whole_numbers("decode_offset", "lengths", lengths)
        if ids.ndim != 3 or len(counts) != ids.shape[1]:
            remedy = f"Rows are the second axis of (axes, batch, length); ids have {tuple(ids.shape)}."
            raise invalid("decode_offset", "lengths", "one integer per row of ids", lengths, remedy)
        length = torch.as_tensor(counts, dtype=torch.int64, device=ids.device)
    return largest + 1 - length


def check_rule(call: str, rule: object) -> None:
    """Raises a WhorlError for a rule that does not exist."""
    if not isinstance(rule, str) or rule not in RULES:
        raise unknown("rule", rule, RULES, call=call)


def _fraction(call: str, name: str, value: object) -> Fraction:
    """The ratio a float stands for: in floats 49 frames of 2/49 s are below 2 s, and floor loses an id."""
    number = as_float(call, name, value)
    if not 0 < number < math.inf:
        raise invalid(call, name, "finite and above 0", value)
    if number > LONGEST:
        raise invalid(call, name, f"at most {LONGEST:,}", value)
    return value if isinstance(value, Fraction) else Fraction(number).limit_denominator(1_000_000)


def _rate(segments: list[Segment], rule: Rule, tokens_per_second: float | Fraction | None) -> Fraction | None:
    """Ids per second of video, or None where frames are counted; refuses settings that would be ignored."""
    videos = [segment for segment in segments if isinstance(segment, Video)]
    if rule != "qwen2_5_vl":
        timed = [video.seconds_per_frame for video in videos if video.seconds_per_frame is not None]
        given = {"tokens_per_second": tokens_per_second, "seconds_per_frame": timed[0] if timed else None}
        for name, value in given.items():
            if value is not None:
                raise WhorlError(
                    f"multimodal: {name} must be left out for rule={rule!r}, got {shown(value)}. "
                    "That rule does not look at seconds; rule='qwen2_5_vl' does."
                )
        return None
    call, what = "multimodal", "given for a Video with rule='qwen2_5_vl'"
    if any(video.seconds_per_frame is None for video in videos):
        remedy = "It is temporal_patch_size / fps, or the processor's second_per_grid_ts."
        raise invalid(call, "seconds_per_frame", what, None, remedy)
    if videos and tokens_per_second is None:
        raise invalid(call, "tokens_per_second", what, None, "It is in the checkpoint's vision_config.")
    if tokens_per_second is None:
        return None
    return _fraction("multimodal", "tokens_per_second", tokens_per_second)


def _times(segment: Image | Video, rate: Fraction | None) -> list[int]:
    """The time ids of the frames, from 0; rounded down after multiplying, so that no drift builds up."""
    if isinstance(segment, Image):
        return [0]
    if rate is None or segment.seconds_per_frame is None:
        return list(range(segment.frames))
    step = rate * _fraction("Video", "seconds_per_frame", segment.seconds_per_frame)
    return [math.floor(frame * step) for frame in range(segment.frames)]


def _tokens(segment: Segment, merge: int) -> int:
    if isinstance(segment, Text):
        return segment.length
    frames = segment.frames if isinstance(segment, Video) else 1
    return frames * math.prod(_merged("multimodal", segment, merge))


def _merged(call: str, segment: Image | Video, merge: int) -> tuple[int, int]:
    """Rows and columns of tokens."""
    merge = whole_number(call, "merge", merge, least=1)
    if segment.height % merge or segment.width % merge:
        size = (segment.height, segment.width)
        remedy = "They count patches before merging; resize, or pass the model's spatial_merge_size."
        raise invalid(call, "height and width", f"multiples of merge={merge}", size, remedy)
    return segment.height // merge, segment.width // merge


def frames_apart(segments: Iterable[Segment]) -> list[Segment]:
    """Every frame of every video as a segment of its own."""
    parts: list[Segment] = []
    for segment in segments:
        parts += [replace(segment, frames=1)] * segment.frames if isinstance(segment, Video) else [segment]
    return parts
