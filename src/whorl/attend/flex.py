"""The FlexAttention path: bias and masks are formulas inside the fused kernel, so nothing of length x length is stored.

The function is compiled once for each kind of call. Positions and learned tables are tensors that its formulas read,
so neither another step nor another length compiles anew. Where the blocks of keys that a block of queries sees are
known without reading positions on a device, the kernel visits those alone.
"""

from __future__ import annotations

from functools import cache
from itertools import count
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from whorl.attend.call import Call
from whorl.attend.fused import once_differentiable
from whorl.attend.visibility import Causal
from whorl.encodings.base import Encoding
from whorl.encodings.parts import Bias, Branches, OutputTerm, ScoreTerm, Visibility, every, first
from whorl.plans import PLANS, kind
from whorl.tracing import in_mode, making_graph

# Queries and keys of a block that is visited or not.
BLOCK = 128

# Pairs looked at together to find out which blocks are seen.
MOST_PAIRS = 2**24

_NUMBERS = count()  # of compiled kinds of calls


def why_not_flex(call: Call) -> str | None:
    """What keeps FlexAttention from computing this call, or None."""
    encoding, name = call.encoding, type(call.encoding).__name__
    term, bias = first(encoding, ScoreTerm, OutputTerm), first(encoding, Bias)
    if term:
        return f"{name} uses {term.hook}, which is no function of one score"
    if bias and not bias.formula:
        return f"{name} has no bias formula for one head and two positions"
    if encoding.axes > 1 and first(encoding, Bias, Visibility, Branches):
        return "a bias reads positions of one axis"
    if call.wants_weights:
        return "it never forms the weights"
    if call.dropout:
        return "it has no dropout"
    visible = call.visible
    if visible.mask is not None or visible.key_mask is not None:
        return "masks given as tensors are not supported there"
    return _why_not_on_cuda(call) if call.q.device.type == "cuda" else _why_not_elsewhere(call)


def _why_not_on_cuda(call: Call) -> str | None:
    bias = first(call.encoding, Bias)
    if bias and bias.not_in_flex:
        return bias.not_in_flex
    if call.q.dtype == torch.float64:
        return "FlexAttention adds up in float32"
    if min(call.q.shape[-1], call.v.shape[-1]) < 16:
        return "FlexAttention has heads of 16 dimensions and more on CUDA devices"
    if not call.q.numel() or not call.v.numel():
        return "FlexAttention has no empty tensors"
    return None


def _why_not_elsewhere(call: Call) -> str | None:
    learned = (call.q, call.k, call.v, *call.encoding.parameters())
    if torch.is_grad_enabled() and any(t.requires_grad for t in learned):
        return "FlexAttention has no backward on the CPU"
    if call.q.dtype == torch.float64:
        return "FlexAttention has no float64 on the CPU"
    if call.wants_lse or first(call.encoding, Branches):
        return "FlexAttention does not return the log-sum-exp on the CPU"
    if call.visible.queries == 1 or call.visible.queries != call.visible.keys:
        return "FlexAttention on the CPU takes several queries, of the same tokens as the keys, in torch 2.13"
    if call.q.device.type == "cpu" and call.k.shape[2] % 16 == 8:
        return "FlexAttention on the CPU reads past the last 8 of 16 n + 8 keys in torch 2.13"
    return None if call.q.device.type == "cpu" else f"no FlexAttention for {call.q.device.type}"


def flex_attention_of(call: Call, q: Tensor, k: Tensor, *, branch: int | None = None) -> Any:
    """The call by FlexAttention, q and k being placed; with the log-sum-exp where it is asked for.

    With ``branch`` only the pairs of that branch count, and the log-sum-exp comes with them.
    """
    visible, encoding = call.visible, call.encoding
    bias, masks, branches = first(encoding, Bias), every(encoding, Visibility), first(encoding, Branches)
    causal = False if visible.everything else visible.causal
    allowed = None
    if masks and q.device.type == "cpu":  # its compiler has no shapes for one pair, which their formulas take
        allowed, masks, causal = visible.rows(), [], False
    places = None  # of queries among keys, where they are not the same tokens
    if causal is True and visible.queries != visible.keys:
        places = torch.arange(visible.keys - visible.queries, visible.keys, device=q.device)
    blocks = _blocks_of(call, branch)
    wants_lse = call.wants_lse or branch is not None
    formulas = (bias and bias.static, tuple(part.static for part in masks), branches and branches.static, branch)
    absent = (visible.q_documents is None, places is None, blocks is None)
    kind = (bias.name if bias else "", formulas, causal, absent, call.softcap, wants_lse)
    run = _flex if making_graph() else _compiled(kind)
    return run(
        *once_differentiable(q.contiguous(), k.contiguous(), call.v.contiguous()),
        bias and bias.encoding,
        tuple(part.encoding for part in masks),
        None if branch is None or branches is None else (branches.encoding, branch),
        call.q_positions,
        call.k_positions,
        visible.q_documents,
        visible.k_documents,
        causal,
        places,
        allowed,
        blocks,
        call.softcap,
        call.scale,
        wants_lse,
    )


@cache
def _compiled(kind: tuple[Any, ...]) -> Any:
    """The compiled function for one kind of call.

    The compiler counts how often one code object is compiled, stops at a few, and remembers by its name which sizes
    have changed, so that each kind gets its own code and name.
    """
    own = FunctionType(_flex.__code__.replace(co_name=f"_flex_{kind[0]}_{next(_NUMBERS)}"), globals())
    return torch.compile(own, fullgraph=True)


def _flex(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Any,
    masks: tuple[Encoding, ...],
    placed: tuple[Encoding, int] | None,
    q_positions: Tensor,
    k_positions: Tensor,
    q_documents: Tensor | None,
    k_documents: Tensor | None,
    causal: Causal,
    places: Tensor | None,
    allowed: Tensor | None,
    blocks: tuple[Tensor, ...] | None,
    softcap: float | None,
    scale: float,
    wants_lse: bool,
) -> Any:
    from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention

    def by_row(ids: Tensor) -> Tensor:
        return torch.atleast_2d(ids).expand(q.shape[0], -1)

    rows = columns = q_texts = k_texts = bias_at = None
    if bias is not None or masks or placed is not None or causal == "positions":
        rows, columns = by_row(q_positions), by_row(k_positions)
    if q_documents is not None and k_documents is not None:
        q_texts, k_texts = by_row(q_documents), by_row(k_documents)
    if allowed is not None:
        allowed = allowed.expand(*q.shape[:3], k.shape[2])
    if bias is not None:
        bias_at = bias.bias_at

    def sees(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        seen = j >= 0
        if causal is True:
            seen = (i if places is None else places[i]) >= j
        if causal == "positions" and rows is not None and columns is not None:
            seen = rows[b, i] >= columns[b, j]
        if allowed is not None:
            seen = allowed[b, h, i, j]
        if q_texts is not None and k_texts is not None:
            seen = seen & (q_texts[b, i] == k_texts[b, j])
        if rows is not None and columns is not None:
            pair = rows[b, i].reshape(1), columns[b, j].reshape(1)
            for part in masks:
                own = part.mask(*pair)
                assert own is not None
                seen = seen & own.reshape(())
            if placed is not None:
                found = placed[0].branches(*pair)
                assert found is not None
                seen = seen & found[placed[1]].allowed.reshape(())
        return seen

    masked = causal is not False or bool(masks) or placed is not None or not (allowed is None and q_texts is None)

    def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        if bias_at is not None and rows is not None and columns is not None:
            score = score + bias_at(h, rows[b, i], columns[b, j])
        if softcap is not None:
            score = torch.where(score == -float("inf"), score, softcap * torch.tanh(score / softcap))
        if masked and blocks is None:
            score = torch.where(sees(b, h, i, j), score, -float("inf"))
        return score

    visited = None
    if blocks is not None:
        lengths = (q.shape[2], k.shape[2])
        visited = BlockMask.from_kv_blocks(*blocks, BLOCK_SIZE=BLOCK, mask_mod=sees, seq_lengths=lengths)
    found: Any = flex_attention(
        q,
        k,
        v,
        score_mod=score_mod,
        block_mask=visited,
        scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
        return_aux=AuxRequest(lse=True) if wants_lse else None,
    )
    return (found[0], found[1].lse) if wants_lse else found


def _blocks_of(call: Call, branch: int | None) -> tuple[Tensor, ...] | None:
    """What ``BlockMask.from_kv_blocks`` takes, or None where positions or documents on a device decide."""
    visible = call.visible
    parts = every(call.encoding, Visibility, Branches)
    by_position = branch is not None or first(call.encoding, Visibility) or visible.causal == "positions"
    if (by_position and not call.consecutive) or visible.q_documents is not None or visible.queries < BLOCK:
        return None
    if visible.everything and branch is None:
        return None
    if making_graph() or in_mode():
        return None  # tensors made here are kept, and must be real ones
    formulas = tuple(part.static for part in parts)
    key = kind(("flex blocks", formulas, branch, visible.queries, visible.keys, visible.causal, call.q.device))
    blocks: Any = PLANS.get(key)
    if blocks is None:
        with torch.inference_mode(False), torch.no_grad():
            blocks = _visit(call, branch)
        PLANS.keep(key, blocks, call.encoding, sum(x.nbytes for x in blocks))
    return blocks


def _visit(call: Call, branch: int | None) -> tuple[Tensor, ...]:
    """For each block of queries the number and the list of blocks of keys seen in part, then of those seen whole."""
    visible, seen, whole = call.visible, [], []
    rows = max(1, MOST_PAIRS // visible.keys // BLOCK) * BLOCK
    for start in range(0, visible.queries, rows):
        stop = min(start + rows, visible.queries)
        allowed = visible.rows(start, stop)
        if branch is not None:
            found = call.encoding.branches(call.q_positions[start:stop], call.k_positions)
            assert found is not None
            allowed = found[branch].allowed if allowed is None else allowed & found[branch].allowed
        assert allowed is not None
        # blocks at the ends count as seen in part
        allowed = pad(allowed, (0, -visible.keys % BLOCK, 0, -(stop - start) % BLOCK))
        tiles = allowed.unflatten(1, (-1, BLOCK)).unflatten(0, (-1, BLOCK)).transpose(1, 2)
        seen.append(tiles.any(-1).any(-1))
        whole.append(tiles.all(-1).all(-1))
    full = torch.cat(whole)
    return (*_listed(torch.cat(seen) & ~full), *_listed(full))


def _listed(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """How many blocks of each row are set, and their numbers before those of the others."""
    order = torch.argsort(blocks.to(torch.int8), dim=-1, descending=True, stable=True)
    return blocks.sum(-1, dtype=torch.int32)[None, None], order.to(torch.int32)[None, None]
