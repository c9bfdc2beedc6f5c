"""Steps of generation: one token for each row at a time, as one CUDA graph that replays while the text grows.

The first step runs as it is, which makes the caches' kernels ready. Where all of them decode by kernels, the next one
is captured: it reads the token, its position and the number of filled slots from memory that it moves on itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from whorl import KVCache, WhorlError

if TYPE_CHECKING:
    from whorl.models.decoder import Decoder

# Capturing takes as long as a few steps.
FEWEST = 4


class Steps:
    """The next logits of a text, token by token; ``graph`` as in ``Decoder.generate``."""

    def __init__(self, model: Decoder, caches: list[KVCache], positions: Tensor, *, graph: bool | None) -> None:
        self._model, self._caches, self._positions, self._wanted = model, caches, positions.clone(), graph
        self._graph: torch.cuda.CUDAGraph | None = None
        self._warm = False

    def __call__(self, tokens: Tensor, *, more: int) -> Tensor:
        """Logits (batch, vocab) of the tokens (batch, 1), with so many steps to come."""
        if self._graph is not None:
            self._tokens.copy_(tokens)
            self._graph.replay()
            return self._logits
        if self._warm and self._wanted is not False and (self._wanted or more >= FEWEST):
            reason = why_not_captured(tokens, self._caches)
            if reason is None:
                self._capture(tokens)
                return self(tokens, more=more)
            if self._wanted:
                raise cannot_be(reason)
            self._wanted = False
        logits = self._model.next_logits(tokens, self._caches, self._positions)
        self._positions += 1
        self._warm = True
        return logits

    def _capture(self, tokens: Tensor) -> None:
        clock = self._caches[0].count_on_device()
        for cache in self._caches[1:]:
            cache.count_on_device(clock)
        self._tokens, graph = tokens.clone(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._logits = self._model.next_logits(self._tokens, self._caches, self._positions)
            clock.advance()
            self._positions += 1
        self._graph = graph


def cannot_be(reason: str) -> WhorlError:
    """The error for a graph that was asked for."""
    return WhorlError(f"Decoder.generate: graph=True cannot be: {reason}. Use graph=None.")


def why_not_captured(tokens: Tensor, caches: Sequence[KVCache]) -> str | None:
    """What keeps a step from being captured, or None."""
    if not tokens.is_cuda:
        return f"graphs are for CUDA devices, the tokens are on {tokens.device}"
    if torch.cuda.is_current_stream_capturing():
        return "another graph is being captured"
    return next((reason for reason in (cache.why_not_kernels() for cache in caches) if reason is not None), None)
