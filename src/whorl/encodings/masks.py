"""Window and sink masks: queries see the last keys, and with sinks the first ones too.

    window    key j is seen from query i where i - j < size, or |i - j| < size when symmetric
    sinks     the same, and every key j < count
Beltagy, Peters, Cohan 2020, "Longformer: The Long-Document Transformer"; Xiao, Tian, Chen, Han, Lewis 2023,
"Efficient Streaming Language Models with Attention Sinks"; Han et al. 2023, "LM-Infinite".
Both of the last also move the first tokens (StreamingLLM counts positions within its cache, LM-Infinite caps their
distance); these masks leave positions as they are.
The query's own key counts: a window of 1 is the token itself. Keys after the query are the causal mask's matter.
Position enters in every layer, as a mask by position ids. No parameters. A window as long as the training text keeps
the loss of the lab's RoPE models flat at every length tried, and forgets all that lies outside: the baseline every
claim of extrapolation has to beat. Models that learned to rest on their first tokens need the sinks as well.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from whorl.config import Config, config
from whorl.encodings import parts
from whorl.encodings.base import Claims, Encoding
from whorl.encodings.pairs import distances


@config
class WindowConfig(Config):
    """Everything that makes one window differ from another.

    size           how many positions are seen, the query's own included
    symmetric      whether keys after the query are limited as well, for encoders
    """

    name: ClassVar[str] = "window"
    size: int = 1024
    symmetric: bool = False

    def check(self) -> None:
        self.must(self.size > 0, "size", "positive", remedy="A window of 1 is the token itself.")


@config
class SinksConfig(WindowConfig):
    """Everything that makes one window with sinks differ from another.

    count          how many first positions every query sees; StreamingLLM has 4
    """

    name: ClassVar[str] = "sinks"
    count: int = 4

    def check(self) -> None:
        super().check()
        self.must(self.count > 0, "count", "positive", remedy="Without sinks use Window.")


def within(distance: Tensor, size: int, symmetric: bool) -> Tensor:
    """Whether query minus key lies in the window."""
    return (distance.abs() if symmetric else distance) < size


def window_reach(window: WindowConfig, first: int = 0) -> parts.Reach:
    """How far a window lets a query see, and how many first positions beside it."""
    before = window.size - 1
    return parts.Reach(before, before if window.symmetric else None, first)


class Window(Encoding):
    """A mask that hides keys ``size`` positions before the query and further; Combined joins it with other encodings.

    >>> import torch, whorl
    >>> whorl.Window(size=2).mask(whorl.positions(3), whorl.positions(3)).int().tolist()
    [[1, 1, 1], [1, 1, 1], [0, 1, 1]]
    """

    Config = WindowConfig
    config: WindowConfig
    claims = Claims(relative=True, norm_preserving=True, linear_attention=False, decays=False, extrapolates=True)

    def declare(self) -> tuple[parts.Part, ...]:
        return (parts.Visibility(self, window_reach(self.config), whole=True),)

    def mask(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """Which keys a query may see: (queries, keys), with a batch axis in front where positions have one."""
        distance = distances(type(self).__name__, q_positions, k_positions)
        return within(distance, self.config.size, self.config.symmetric)


class Sinks(Window):
    """A window, and the first ``count`` positions for every query.

    >>> import torch, whorl
    >>> whorl.Sinks(size=1, count=1).mask(whorl.positions(3), whorl.positions(3)).int().tolist()
    [[1, 1, 1], [1, 1, 1], [1, 0, 1]]
    """

    Config = SinksConfig
    config: SinksConfig
    claims = Claims(relative=False, norm_preserving=True, linear_attention=False, decays=False, extrapolates=True)

    def declare(self) -> tuple[parts.Part, ...]:
        return (parts.Visibility(self, window_reach(self.config, first=self.config.count), whole=True),)

    def mask(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """Which keys a query may see: (queries, keys), with a batch axis in front where positions have one."""
        return super().mask(q_positions, k_positions) | (k_positions < self.config.count)[..., None, :]
