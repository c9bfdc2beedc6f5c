"""What a program has no form for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from whorl.errors import WhorlError

if TYPE_CHECKING:
    from whorl.bridge.difference import Difference


class InexpressibleError(WhorlError):
    """A target that has no form for the positions of a model; ``difference`` is what its nearest form misses."""

    def __init__(self, text: str, difference: Difference | None = None) -> None:
        super().__init__(text)
        self.difference = difference
