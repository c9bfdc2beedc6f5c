"""Attention by tiles on a GPU (``kernels/tiles``): which calls it takes, and what it is told of an encoding's parts.

A bias of the distance is a line (ALiBi), a curve of two numbers (KERPLE) or a table with a number for each distance,
made by the encoding's own ``bias_of``: gradients reach what it learned through the table. A bias of both positions is
made of straight lines (FIRE). A forgetting gate is a number of the query less one of the key. A window is tiles that
are not visited. Two placements, near and far, are two such attentions. Memory is that of queries, keys and values.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor

from whorl.attend.branches import placed_by_branch
from whorl.attend.call import Call
from whorl.encodings.base import Encoding
from whorl.encodings.parts import (
    Bias,
    BiasByDistance,
    BiasByPair,
    Branches,
    OutputTerm,
    RowLessColumn,
    ScoreTerm,
    Visibility,
    bias_by_distance,
    every,
    first,
    hides_by_reach,
)
from whorl.kernels.refusals import why_not_here, why_not_memory
from whorl.kernels.tiles.op import branches_attention, tiles_attention
from whorl.position_checks import INTEGERS
from whorl.tracing import in_functorch, kept_in_graphs, making_graph, takes_gradients

KERNEL = "attention by tiles"  # in reasons why it does not run

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
LARGEST_DIM = 256

NO_DOCUMENT = torch.iinfo(torch.int64).min  # of padding

MOST_LINES = 64  # of a bias by pair
MOST_ROWS = 128  # of queries in a tile: numbers of queries are read for all of them

NUMBERED = (BiasByDistance, BiasByPair, RowLessColumn)  # parts whose numbers kernels are given

# Of fewer queries a tile is mostly empty: it runs where it is asked for.
FEWEST_QUERIES = 16


class Tiles(NamedTuple):
    """What kernels are told of a call: what ``tiles_attention`` takes, and a function that makes the bias's numbers.

    It is given the encoding that they are of (``source_of``), and what was remembered of tokens, for gates.
    """

    options: dict[str, Any]
    numbers: Callable[[Any, Any], Tensor] | None = None

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, numbers: Tensor | None) -> tuple[Tensor, Tensor]:
        """Output and log-sum-exp of placed queries and keys."""
        return tiles_attention(q, k, v, numbers=numbers, **self.options)


def attend_by_tiles(call: Call) -> Any:
    """The output, and the log-sum-exp where it is asked for."""
    branches = first(call.encoding, Branches)
    if branches is not None:
        near, far = islice(placed_by_branch(call), 2)  # a third one has keys after the query
        out, lse = branches_attention(*near, *far, call.v, **branch_settings(call, branches))
    else:
        tiles = tiles_of(call)
        numbers = None if tiles.numbers is None else tiles.numbers(source_of(call.encoding), call.hidden)
        out, lse = tiles(*call.placed_qk(), call.v, numbers)
    return (out, lse) if call.wants_lse else out


def branch_settings(call: Call, branches: Branches) -> dict[str, Any]:
    """What ``branches_attention`` takes beside tensors."""
    return {"scale": call.scale, "near": branches.near, "cap": call.softcap or 0.0}


def why_not_tiles(call: Call) -> str | None:
    """What keeps the kernels from this call, or None."""
    q, v, visible, encoding = call.q, call.v, call.visible, call.encoding
    reason = why_not_here("triton", q.device.type) or why_not_memory("q", q)
    if reason is not None:
        return reason
    if q.dtype not in DTYPES:
        return f"{KERNEL} has no {q.dtype}"
    if max(q.shape[-1], v.shape[-1]) > LARGEST_DIM:
        return f"{KERNEL} has heads of up to {LARGEST_DIM} dimensions"
    if not call.scale > 0:  # an encoding may have one of its own
        return f"{KERNEL} has a positive scale"
    if visible.causal == "positions" or (not call.consecutive and first(encoding, Branches, Visibility)):
        return f"{KERNEL} counts positions 0, 1, 2, … itself"
    if visible.mask is not None:
        return f"{KERNEL} has documents and padding, and no other mask"
    if visible.q_documents is not None and visible.q_documents.dtype not in INTEGERS:
        return f"{KERNEL} has documents that are whole numbers"
    if call.wants_weights:
        return f"{KERNEL} has no return_weights"
    name, branches, gate = type(encoding).__name__, first(encoding, Branches), first(encoding, RowLessColumn)
    terms = [term for term in every(encoding, ScoreTerm, OutputTerm) if term is not gate]
    if terms:
        return f"{name} uses {terms[0].hook}"
    if branches and not (branches.near and visible.causal is True):
        return f"{KERNEL} has two branches, of near keys and of far ones before the query"
    if branches and (visible.given or call.dropout or first(encoding, Bias, RowLessColumn, Visibility)):
        return f"{KERNEL} has no bias, window, padding, documents or dropout beside branches"
    if not hides_by_reach(encoding) or (encoding.reach is not None and visible.causal is not True):
        return f"{KERNEL} has one causal window and no other mask"
    bias = first(encoding, Bias)
    if bias and gate:
        return f"{KERNEL} has a bias or gates, and not both"
    if bias and not call.consecutive:
        reason = _why_not_positions(call, bias)
        if reason is not None:
            return reason
    if isinstance(bias, BiasByPair) and not 0 < bias.lines <= MOST_LINES:
        return f"{name} has a bias that is not of the distance alone, nor of up to {MOST_LINES} straight lines"
    if isinstance(bias, BiasByDistance) and not bias.formula:
        return f"{name} has a bias without a formula of the distance"
    if bias is not None and torch.are_deterministic_algorithms_enabled() and takes_gradients(*encoding.parameters()):
        return "sums of a learned bias are not taken in one order, which deterministic algorithms ask for"
    if not making_graph() and in_functorch():
        return "torch.func transforms see through torch's own operations only"
    return None


def _why_not_positions(call: Call, bias: Bias) -> str | None:
    """What keeps the kernels from a bias at given positions, or None."""
    if not isinstance(bias, BiasByDistance):
        return f"{KERNEL} has given positions for a bias by distance only"
    if call.q_positions.dtype not in INTEGERS:
        return f"{KERNEL} has positions that are whole numbers"
    if bias.slopes is None and bias.curve is None and bias.flat_beyond is None:
        return f"{KERNEL} does not know how long a table {bias.name} needs for given positions"
    return None


def why_slow(call: Call) -> str | None:
    """What makes the kernels slower than forming the scores, or None."""
    bias = first(call.encoding, BiasByDistance)
    if bias is None or call.consecutive or bias.slopes is not None or bias.curve is not None:
        return None
    if takes_gradients(*bias.encoding.parameters()):
        return f"{KERNEL} adds gradients of a learned table pair by pair where positions are given"
    return None


def tiles_of(call: Call) -> Tiles:
    """What the kernels are told of a call that ``why_not_tiles`` has let pass."""
    reach, causal, device = call.encoding.reach, call.visible.causal is True, call.q.device
    told: dict[str, Any] = {"scale": call.scale, "cap": call.softcap or 0.0, "causal": causal}
    if reach is not None:
        told |= {"before": min(reach.before, 2**30), "first": min(reach.first, 2**30)}
    told["documents"] = _documents(call)
    if call.dropout:  # a number of torch's generator on the device, which a graph draws anew at every call
        seed = torch.randint(2**63 - 1, (1,), device=device)
        told |= {"dropout": call.dropout, "seed": seed}
    bias = first(call.encoding, *NUMBERED)
    if bias is None:
        return Tiles(told)
    if isinstance(bias, RowLessColumn):
        return Tiles(told | {"kind": "gate"}, lambda source, memory: source.running_sums(memory))
    if isinstance(bias, BiasByPair):
        # not ``call`` itself, whose tensors a function that is kept would keep; a cache has positions for each row of
        # the batch, and consecutive ones are the same in all
        room, positions = -(-call.q.shape[2] // MOST_ROWS) * MOST_ROWS, call.q_positions.flatten()[: call.q.shape[2]]
        return Tiles(
            told | {"kind": "broken", "lowest": bias.lines}, lambda source, _: source.line_numbers(positions, room)
        )
    if not call.consecutive:
        rows = (call.q.shape[0], -1)
        told["positions"] = tuple(x.long().expand(*rows).contiguous() for x in (call.q_positions, call.k_positions))
    if bias.slopes is not None:
        slopes = _slopes_on(bias.slopes, device)
        return Tiles(told | {"kind": "line", "order": _order_on(bias.slopes, device)}, lambda *_: slopes)
    if bias.curve is not None:
        return Tiles(told | {"kind": bias.curve}, lambda source, _: source.curve_numbers())
    one_sided = causal and call.consecutive
    lowest, highest = 0 if one_sided else 1 - call.q.shape[2], call.k.shape[2] - 1
    if bias.flat_beyond is not None:  # its ends stand for all beyond them
        lowest, highest = 0 if one_sided else -bias.flat_beyond, bias.flat_beyond
    return Tiles(
        told | {"kind": "table", "lowest": lowest},
        lambda source, _: bias_by_distance(source).table_between(lowest, highest, device),
    )


def source_of(encoding: Encoding) -> Encoding | None:
    """The encoding whose numbers a bias or a gate is made of, or None where there is none."""
    part = first(encoding, *NUMBERED)
    return None if part is None else part.encoding


def _documents(call: Call) -> tuple[Tensor, Tensor] | None:
    """The documents of queries and keys; padding is keys of a document that no query is of."""
    visible, batch = call.visible, call.q.shape[0]
    if visible.q_documents is None and visible.key_mask is None:
        return None
    found = []
    for ids, count in ((visible.q_documents, visible.queries), (visible.k_documents, visible.keys)):
        ids = call.q.new_zeros((), dtype=torch.int64) if ids is None else ids.long().clamp(min=NO_DOCUMENT + 1)
        found.append(ids.expand(batch, count).contiguous())
    if visible.key_mask is not None:
        found[1] = found[1].masked_fill(~visible.key_mask, NO_DOCUMENT)
    return found[0], found[1]


@kept_in_graphs  # on the device: copying them there would wait for it at every call
def _slopes_on(slopes: tuple[float, ...], device: torch.device) -> Tensor:
    return torch.tensor(slopes, dtype=torch.float32, device=device)[:, None]


@kept_in_graphs
def _order_on(slopes: tuple[float, ...], device: torch.device) -> Tensor:
    """The heads, those with the gentlest slope first."""
    order = sorted(range(len(slopes)), key=slopes.__getitem__)
    return torch.tensor(order, dtype=torch.int32, device=device)
