"""Clock: how many slots of a cache are filled, counted where a CUDA graph can read it."""

from __future__ import annotations

import torch


class Clock:
    """How many slots are filled, counted on the device of a cache, or of all caches of a model.

    ``next`` (1,) int64 is the slot of the next token. A CUDA graph that holds a step and ``advance`` serves a text that
    grows.
    """

    def __init__(self, filled: int, device: torch.device) -> None:
        with torch.inference_mode(False):
            self.next = torch.full((1,), filled, dtype=torch.int64, device=device)

    def advance(self, count: int = 1) -> None:
        """Goes on by so many tokens."""
        self.next += count
