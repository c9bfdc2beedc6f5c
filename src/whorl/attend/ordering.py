"""Tokens in the order of their positions, for encodings that count them (CoPE, the forgetting gate).

Such encodings count keys in the order they are given, the last query standing at the last key. With
``causal="positions"`` tokens may come in any order, as zig-zag shards do: here they are sorted, by document where there
are several and by position within it, and what is found is put back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor

from whorl.attend.call import Call
from whorl.errors import WhorlError


def in_order(call: Call, *, same_tokens: bool) -> tuple[Call, Callable[[Any], Any]]:
    """The call with its tokens in order, and a function that puts what ``run`` finds back where they came from.

    ``same_tokens`` says that queries and keys are the same tokens. Where they are not, queries must be among the keys.
    """
    if call.hidden is not None and not same_tokens:
        for name, asked in (("return_lse", call.wants_lse), ("softcap", call.softcap is not None)):
            if asked:
                raise WhorlError(
                    f"attention: {type(call.encoding).__name__} does not know with causal='positions' which keys its "
                    f"queries are, and {name} depends on it. Pass a query for every key, or tokens in order and "
                    "causal=True."
                )
    visible = call.visible
    rows = _order(visible.q_positions, visible.q_documents)
    columns = _order(visible.k_positions, visible.k_documents)
    mask = visible.mask
    if mask is not None:
        mask = mask.reshape(*(1,) * (4 - mask.ndim), *mask.shape)
        mask = mask if mask.shape[2] == 1 else _taken(mask, rows, 2)
        mask = mask if mask.shape[3] == 1 else _taken(mask, columns, 3)
    ordered = replace(
        call,
        q=_taken(call.q, rows, 2),
        k=_taken(call.k, columns, 2),
        v=_taken(call.v, columns, 2),
        hidden=None if call.hidden is None else _taken(call.hidden, columns, call.hidden.ndim - 1),
        visible=replace(
            visible,
            q_positions=_ids(visible.q_positions, rows),
            k_positions=_ids(visible.k_positions, columns),
            mask=mask,
            key_mask=None if visible.key_mask is None else _taken(visible.key_mask, columns, 1),
            q_documents=None if visible.q_documents is None else _ids(visible.q_documents, rows),
            k_documents=None if visible.k_documents is None else _ids(visible.k_documents, columns),
        ),
    )

    def put_back(found: Any) -> Any:
        to_rows, to_columns = rows.argsort(-1), columns.argsort(-1)
        if isinstance(found, Tensor):
            return _taken(found, to_rows, 2)
        parts = [_taken(part, to_rows, 2) for part in found]
        if call.wants_weights:  # they come last, and have an axis of keys
            parts[-1] = _taken(parts[-1], to_columns, 3)
        return tuple(parts)

    return ordered, put_back


def _order(positions: Tensor, documents: Tensor | None) -> Tensor:
    """The places of tokens in order, (tokens,) or (batch, tokens)."""
    order = positions.argsort(dim=-1, stable=True)
    if documents is not None:
        rows = max(positions, documents, key=Tensor.dim).shape
        order = order.expand(rows)
        order = order.gather(-1, documents.expand(rows).gather(-1, order).argsort(dim=-1, stable=True))
    return order[0] if order.ndim == 2 and len(order) == 1 else order


def _taken(x: Tensor, order: Tensor, dim: int) -> Tensor:
    """x (batch, …) in an order of one axis, the same for all rows or one for each."""
    if order.ndim == 1:
        return x.index_select(dim, order)
    shape = [len(order), *x.shape[1:]]
    index = order.reshape(len(order), *(1,) * (dim - 1), -1, *(1,) * (x.ndim - dim - 1)).expand(shape)
    return x.expand(shape).gather(dim, index)


def _ids(ids: Tensor, order: Tensor) -> Tensor:
    """Ids (tokens,) or (batch, tokens) in order."""
    return ids[..., order] if order.ndim == 1 else ids.expand_as(order).gather(-1, order)
