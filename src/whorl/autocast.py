"""A guard against autocast, for sums and gates that half precision would round."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

# Kinds of devices that have it; asked once, since a graph cannot ask.
KINDS = frozenset(kind for kind in ("cpu", "cuda", "mps", "xpu") if torch.amp.is_autocast_available(kind))


def without_autocast(kind: str) -> AbstractContextManager[object]:
    """A context in which tensors of this kind of device keep their dtype; nothing where autocast is off already.

    >>> with torch.autocast("cpu", dtype=torch.bfloat16), without_autocast("cpu"):
    ...     (torch.ones(1, 1) @ torch.ones(1, 1)).dtype
    torch.float32
    """
    if kind in KINDS and torch.is_autocast_enabled(kind):
        return torch.autocast(kind, enabled=False)
    return nullcontext()
