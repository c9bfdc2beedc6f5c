"""Several placements of queries and keys (ReRoPE, Self-Extend) in memory that grows with the length, not its square.

Each branch is one attention over its own pairs. Outputs o_b with log-sum-exps z_b are merged as the softmax over all
pairs would have weighed them:   out = sum_b exp(z_b - z) o_b,   z = log sum_b exp(z_b)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from whorl.attend.call import Call
from whorl.attend.flex import flex_attention_of
from whorl.encodings.base import Encoding


def attend_branches(call: Call) -> Any:
    """The call by FlexAttention, once for each branch; with the log-sum-exp where it is asked for."""
    parts = [flex_attention_of(call, *placed, branch=branch) for branch, placed in enumerate(placed_by_branch(call))]
    out, lse = merged([part[0] for part in parts], [part[1] for part in parts])
    return (out, lse) if call.wants_lse else out


def placed_by_branch(call: Call) -> Iterator[tuple[Tensor, Tensor]]:
    """Queries and keys where each branch puts them."""
    encoding = call.encoding
    q = encoding.scale_queries(call.q, call.q_positions, call.length)
    for places in places_by_branch(encoding, call.q_positions, call.k_positions):
        yield encoding.transform_branch(q, call.k, *places, call.length)


def places_by_branch(encoding: Encoding, q_positions: Tensor, k_positions: Tensor) -> list[tuple[Tensor, Tensor]]:
    """The positions of queries and keys in each branch.

    A query is put somewhere whatever key it meets, so one key is enough to ask, and the masks that come along are of
    one row or one column.
    """
    by_query = encoding.branches(q_positions, k_positions[..., :1])
    by_key = encoding.branches(q_positions[..., :1], k_positions)
    assert by_query is not None and by_key is not None
    return [(one.q_positions, two.k_positions) for one, two in zip(by_query, by_key, strict=True)]


def merged(outs: Sequence[Tensor], lses: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """The output over all pairs and its log-sum-exp; zeros and minus infinity for a query that sees nothing.

    >>> import torch
    >>> near, far = torch.ones(1, 1, 1, 2), torch.full((1, 1, 1, 2), 4.0)
    >>> merged([near, far], [torch.zeros(1, 1, 1), torch.full((1, 1, 1), 2.0).log()])[0]
    tensor([[[[3., 3.]]]])
    """
    z = torch.stack(list(lses))
    nothing = (z == -torch.inf).all(0)
    z = z.masked_fill(nothing, 0.0)  # keeps NaN out of gradients
    weights = z.softmax(0).unsqueeze(-1)
    out = sum(weight * part for weight, part in zip(weights, outs, strict=True))
    assert isinstance(out, Tensor)
    return out.to(outs[0].dtype), z.logsumexp(0).masked_fill(nothing, -torch.inf)
