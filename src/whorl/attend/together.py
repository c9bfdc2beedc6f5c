"""Caches that go on all or none, as the layers of a model do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from whorl.attend.cache import KVCache
from whorl.attend.slots import State


@contextmanager
def together(caches: Sequence[KVCache]) -> Iterator[None]:
    """A context after which each cache is as it was before where something raises."""
    before = [cache._state for cache in caches]
    try:
        yield
    except BaseException:
        for cache, state in zip(caches, before, strict=True):
            cache._state = state if cache._state is state else _as_before(state)
        raise


def _as_before(state: State) -> State:
    """The state that steps were taken from, which may have written other positions than follow behind its slots."""
    return state if state.slots is None else state._replace(slots=state.slots._replace(follows=False))
