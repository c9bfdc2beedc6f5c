"""YaRN's temperature of attention: g(s, m) = 0.1 m ln(s) + 1.

Peng et al. 2023, "YaRN: Efficient Context Window Extension of Large Language Models". In a file without torch, since
readers of configs need it too: families that state one of its weights alone fix the other factor by it.
"""

from __future__ import annotations

import math


def temperature(factor: float, weight: float = 1.0) -> float:
    """g(s, m) = 0.1 m ln(s) + 1, and 1 where nothing is stretched."""
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0
