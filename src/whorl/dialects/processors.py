"""Token types and grids that Hugging Face processors return, as runs of text, images and videos.

A run of image or video tokens is filled by the next grids of the batch; token types and grids that do not fit raise.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar

from whorl.errors import WhorlError, invalid

CALL = "segments_from_hf"
TEXT, IMAGE, VIDEO = 0, 1, 2  # the token types of Hugging Face processors
NAMES = {IMAGE: "image", VIDEO: "video"}


class Grid(Protocol):
    """An image or a video, which knows how many tokens it has."""

    def tokens(self, merge: int = 2) -> int: ...


G = TypeVar("G", bound=Grid)


def check_image_grids(grids: list[list[int]]) -> None:
    """Raises a WhorlError unless every grid of an image, (time, height, width), has one time step."""
    for grid in grids:
        if grid[0] != 1:
            raise invalid(
                CALL,
                "image_grid_thw",
                "rows of 1, height, width",
                grid,
                "Grids with more than one time step belong in video_grid_thw.",
            )


def check_frames(frames: list[int], tokens: int) -> None:
    """Raises a WhorlError for a video of more frames than there are tokens, before its frames are counted out."""
    long = next((count for count in frames if count > tokens), None)
    if long is not None:
        raise WhorlError(
            f"{CALL}: video_grid_thw must match the token types, got {long} frames for {tokens} tokens. "
            "Pass the grids of this batch alone, as frames, height, width."
        )


def fill_runs(types: Sequence[int], waiting: dict[int, Iterator[G]], merge: int, *, row: int) -> list[int | G]:
    """Lengths of the runs of text in a row of token types, and between them the grids that fill the other runs.

    ``waiting`` holds the grids of the batch by token type, of which those that fit are taken.
    """
    filled: list[int | G] = []
    for kind, length in _runs(types):
        filled += [length] if kind == TEXT else _take(waiting, kind, length, merge, row=row)
    return filled


def check_none_left(waiting: dict[int, Iterator[G]]) -> None:
    """Raises a WhorlError for grids that no run of tokens has taken."""
    for kind, name in NAMES.items():
        left = len(list(waiting[kind]))
        if left:
            raise WhorlError(
                f"{CALL}: {name}_grid_thw must match the token types, got {left} without tokens. "
                "Pass the grids of this batch alone, and the token types of the whole prompt."
            )


def _runs(types: Sequence[int]) -> list[tuple[int, int]]:
    """Token types in a row as (type, how often)."""
    odd = next((kind for kind in types if kind not in (TEXT, IMAGE, VIDEO)), None)
    if odd is not None:
        raise invalid(
            CALL,
            "token_types",
            "0 (text), 1 (image) or 2 (video)",
            odd,
            "Pass the processor's mm_token_type_ids, not input_ids.",
        )
    return [(kind, len(list(run))) for kind, run in itertools.groupby(types)]


def _take(waiting: dict[int, Iterator[G]], kind: int, length: int, merge: int, *, row: int) -> list[G]:
    """The next images or videos of the batch, as many as fill a run of tokens."""
    name = NAMES[kind]
    wrong = f"{CALL}: {name}_grid_thw must match the token types"
    taken: list[G] = []
    filled = 0
    while filled < length:
        grid = next(waiting[kind], None)
        if grid is None:
            raise WhorlError(
                f"{wrong}, got too few: {length - filled} of {length} {name} tokens "
                f"in row {row} have no grid. Pass one grid per {name}."
            )
        taken.append(grid)
        filled += grid.tokens(merge)
    if filled != length:
        raise WhorlError(
            f"{wrong}, got grids of {filled} tokens for a run of {length} in row {row}. "
            "Pass the model's spatial_merge_size as merge=…, and prompts that are not cut off."
        )
    return taken
