"""``attention``: softmax attention with any encoding, by the cheapest path that computes it exactly.

sdpa     no bias: rotated queries and keys on torch's fused kernel
tiles    a bias by distance, FIRE, a forgetting gate, a window, documents, padding, two placements, a softcap or the
         log-sum-exp on a GPU: kernels that compute the bias, and leave out keys that are hidden or too far to weigh
         anything
folded   a separable bias: a few more dimensions of queries and keys, on torch's fused kernel
masked   a bias that is not learned from on the CPU: formed, and added inside torch's fused kernel
flex     where it is asked for: any bias written element by element, and several placements, by FlexAttention's kernel
dense    everything: the reference, a block of queries at a time
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from whorl.attend.blocks import in_blocks, seen, taken
from whorl.attend.branches import attend_branches
from whorl.attend.call import NO_ENCODING, Call, checked
from whorl.attend.flex import flex_attention_of, why_not_flex
from whorl.attend.fused import HALF, fused, rows_are_few, same_width, torch_kernel
from whorl.attend.ordering import in_order
from whorl.attend.ready import keep, kind_of
from whorl.attend.reference import Attended, pair_bias, reference, repeat_heads
from whorl.attend.tiles import FEWEST_QUERIES, attend_by_tiles, why_not_tiles, why_slow
from whorl.attend.visibility import Causal, closed_keys
from whorl.autocast import without_autocast
from whorl.encodings.base import Encoding
from whorl.encodings.parts import Bias, Branches, OutputTerm, RowLessColumn, ScoreTerm, Visibility, every, first
from whorl.errors import WhorlError
from whorl.kernels.choose import Impl, check_impl
from whorl.plans import PLANS
from whorl.tracing import is_symbol, making_graph, takes_derivatives, takes_further_derivatives

Path = Literal["sdpa", "tiles", "folded", "masked", "flex", "dense"]

# Further dimensions a separable bias may take in float32.
MOST_FOLDED = 16


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    encoding: Encoding | None = None,
    causal: Causal = True,
    positions: Tensor | None = None,
    key_positions: Tensor | None = None,
    mask: Tensor | None = None,
    key_mask: Tensor | None = None,
    documents: Tensor | None = None,
    key_documents: Tensor | None = None,
    dropout: float = 0.0,
    scale: float | None = None,
    softcap: float | None = None,
    hidden: Tensor | None = None,
    length: int | None = None,
    return_lse: bool = False,
    return_weights: bool = False,
    impl: Impl = "auto",
) -> Any:
    """The attention output (batch, heads, queries, value dim); with ``return_lse`` or ``return_weights`` a tuple.

    q is (batch, heads, queries, dim), k and v have as many heads or fewer that divide them. Positions are
    0, 1, 2, … of the keys unless given, and those of the queries the last of them, so that the next tokens
    of a cached text need none. ``causal=True`` goes by the order of tokens, the last query standing at the
    last key; ``"positions"`` goes by positions, for shards of a sequence: encodings that count tokens count them
    in that order then, and queries are among the keys. ``mask`` is True where a key may be
    seen and broadcasts against (batch, heads, queries, keys), ``key_mask`` (batch, keys) leaves out padding, whose
    positions may be anything, and tokens see their own document only where ``documents`` (length,) or (batch, length)
    are given. ``hidden`` are the hidden states of the keys' tokens, for encodings that read them. A query that may see
    nothing gets zeros.

    >>> import torch, whorl
    >>> q, k, v = torch.randn(1, 8, 5, 64), torch.randn(1, 2, 5, 64), torch.randn(1, 2, 5, 64)
    >>> whorl.attention(q, k, v, encoding=whorl.Rope(head_dim=64)).shape
    torch.Size([1, 8, 5, 64])
    """
    key = None
    plain = causal is True and return_lse is False and return_weights is False and type(dropout) in (float, int)
    encoding = NO_ENCODING if encoding is None else encoding
    if plain and not dropout and isinstance(impl, str) and impl == "auto" and isinstance(encoding, Encoding):
        options = (positions, key_positions, mask, key_mask, documents, key_documents, softcap)
        if scale is not True and length is not True and all(option is None for option in options):
            key = kind_of(encoding, q, k, v, hidden, scale, length)
            plan = PLANS.get(key)
            if plan is not None:
                return plan(q, k, v, hidden)
    call = checked(
        q,
        k,
        v,
        encoding=encoding,
        causal=causal,
        positions=positions,
        key_positions=key_positions,
        mask=mask,
        key_mask=key_mask,
        documents=documents,
        key_documents=key_documents,
        dropout=dropout,
        scale=scale,
        softcap=softcap,
        hidden=hidden,
        length=length,
        return_lse=return_lse,
        return_weights=return_weights,
    )
    if causal == "positions" and call.encoding.counts_tokens:
        given = positions is not None and key_positions is not None and positions is not key_positions
        ordered, put_back = in_order(call, same_tokens=q.shape[2] == k.shape[2] and not given)
        return put_back(run(ordered, impl))
    path, _ = choose_path(call, impl)
    out = _run_by(path, call)
    if key is not None:
        keep(key, call, path)
    return out


def run(call: Call, impl: Impl = "auto") -> Any:
    """What ``attention`` returns for a checked call, computed in the dtype of its input, autocast or not."""
    return _run_by(choose_path(call, impl)[0], call)


def _run_by(path: Path, call: Call) -> Any:
    # autocast would round positions inside the kernel; queries and keys come from layers it has cast already
    with without_autocast(call.q.device.type):
        return _by_path(path, call)


def _by_path(path: Path, call: Call) -> Any:
    if path == "dense":
        found = _dense(call)
        extra = [found.lse] * call.wants_lse + [found.weights] * call.wants_weights
        return (found.out, *extra) if extra else found.out
    if path == "flex" and first(call.encoding, Branches):
        return attend_branches(call)
    if path == "flex":
        return flex_attention_of(call, *call.placed_qk())
    if path == "tiles":
        return attend_by_tiles(call)
    return _masked(call) if path == "masked" else fused(call, folded=path == "folded")


def explain_attention(q: Tensor, k: Tensor, v: Tensor, *, impl: Impl = "auto", **options: Any) -> str:
    """Which path the same call of ``attention`` takes, and why.

    >>> import torch, whorl
    >>> x = torch.randn(1, 2, 5, 8)
    >>> whorl.explain_attention(x, x, x, encoding=whorl.Rope(head_dim=8))
    'sdpa: nothing is added to the scores'
    """
    path, reason = choose_path(checked(q, k, v, **options), impl)
    return f"{path}: {reason}"


def choose_path(call: Call, impl: Impl) -> tuple[Path, str]:
    """The path a call takes and the reason; a request that cannot be met raises."""
    check_impl(impl, "attention")
    name, cuda = type(call.encoding).__name__, call.q.device.type == "cuda"
    if impl in ("triton", "numba"):
        reason = why_not_tiles(call) if impl == "triton" else "attention has no numba kernel"
        if reason is None:
            return "tiles", "asked for"
        raise WhorlError(f"impl={impl!r} cannot run here: {reason}. Use impl='auto' or 'torch'.")
    if impl == "flex":
        refusal = why_not_flex(call)
        if refusal:
            raise WhorlError(f"impl='flex' cannot run here: {refusal}. Use impl='torch'.")
        return "flex", "asked for"
    if impl == "torch":
        return "dense", "asked for: scores formed by torch's own operations, differentiable in every way"
    if takes_further_derivatives():
        return "dense", "torch's kernels have no forward derivatives and no second gradients"
    terms, bias = every(call.encoding, ScoreTerm, OutputTerm), first(call.encoding, Bias)
    gate = first(call.encoding, RowLessColumn)
    if terms and (terms != [gate] or not cuda):
        return "dense", f"{name} uses {terms[0].hook}"
    limit = call.encoding.query_limit(call.q.dtype)
    if limit is not None and call.q.shape[2] > limit:
        return "dense", f"{name} places at most {limit} queries at a time in {call.q.dtype}"
    if call.wants_weights:
        return "dense", "return_weights is asked for"
    branches = first(call.encoding, Branches) and not (call.consecutive and _one_branch(call))
    plain = bias is None and gate is None and call.softcap is None and not call.wants_lse
    # torch's kernel would take a mask of all pairs for these
    hides = first(call.encoding, Visibility) or (call.visible.causal is True and call.visible.given)
    bare = plain and not branches and not hides and call.visible.q_documents is None
    unfit = why_not_tiles(call) or why_slow(call) if cuda and not bare else "it is for CUDA devices"
    if unfit is None and call.q.shape[2] >= FEWEST_QUERIES:
        return "tiles", "its kernels add the bias, and leave out keys that are hidden or too far to weigh anything"
    instead = f", and {unfit or 'tiles are for more queries'}" if cuda else ""
    for reason, holds in (
        (f"{name} uses branches", branches),
        (f"{name} uses adjust_scores", gate),
        ("softcap is asked for", call.softcap is not None),
        ("return_lse is asked for", call.wants_lse),
    ):
        if holds:
            return "dense", reason + instead
    if bias is None:
        return "sdpa", "nothing is added to the scores"
    # on the CPU many further dimensions lose in float32 what the bias itself keeps, and cost more than it does
    half = call.q.dtype in HALF
    # numbers of a line grow with the distance from the last key: consecutive positions alone keep them small
    small = bias.slopes is None or call.consecutive
    fits = bias.fold_dims and small and call.encoding.fold_fits(call.q.dtype, call.scale)
    if fits and (half or cuda or bias.fold_dims <= MOST_FOLDED):
        return "folded", f"the bias of {name} is separable{instead}"
    learned = takes_derivatives(*call.encoding.parameters())
    if call.q.device.type == "cpu" and not half and not learned:
        return "masked", f"the bias of {name} is a mask of torch's kernel where nobody learns from it"
    return "dense", f"{name} has a bias for each pair of positions{instead}"


def _one_branch(call: Call) -> bool:
    """Whether the first branch has all pairs of consecutive positions, for every length that a program is made for."""
    keys = call.k.shape[2]
    return not (is_symbol(keys) and torch.compiler.is_exporting()) and call.encoding.one_branch(keys)


def _dense(call: Call) -> Attended:
    """The reference, a block of queries at a time."""
    parts: list[Attended] = in_blocks(call, _rows)
    if len(parts) == 1:
        return parts[0]
    weights = torch.cat([part.weights for part in parts], dim=2) if call.wants_weights else parts[0].weights
    lse = torch.cat([part.lse for part in parts if part.lse is not None], dim=2) if call.wants_lse else None
    return Attended(torch.cat([part.out for part in parts], dim=2), weights, lse)


def _masked(call: Call) -> Tensor:
    """torch's own kernel with the bias as its mask, a block of queries at a time."""
    (q, k), v, heads = call.placed_qk(), call.v, call.q.shape[1]
    if making_graph() or not rows_are_few(q, k):
        k, v = repeat_heads(k, heads), repeat_heads(v, heads)
    return torch.cat(in_blocks(call, _masked_rows, *same_width(q, k, v)), dim=2)[..., : call.v.shape[-1]]


def _masked_rows(call: Call, q: Tensor, k: Tensor, v: Tensor, start: int, stop: int) -> Tensor:
    allowed, keys = seen(call, start, stop)
    k_positions = taken(call.k_positions, keys, -1)
    bias = pair_bias(call.encoding, call.q_positions[..., start:stop], k_positions, call.length, q.dtype)
    if bias is None:  # which the hook of a user's encoding may give: no bias here
        bias = q.new_zeros(1, stop - start, k_positions.shape[-1])
    closed, sees = (None, None) if allowed is None else closed_keys(allowed)
    bias = bias.to(q.dtype)
    if closed is not None:
        bias = bias.masked_fill(closed, -torch.inf)
    bias = bias if bias.ndim == 4 else bias.unsqueeze(0)
    together = k.shape[1] != q.shape[1]
    out = torch_kernel(call, q[:, :, start:stop], taken(k, keys), taken(v, keys), bias, together=together)
    return out if sees is None else out * sees


def _rows(call: Call, start: int, stop: int) -> Attended:
    """Queries [start, stop)."""
    allowed, keys = seen(call, start, stop)
    found = reference(
        call.q[:, :, start:stop],
        taken(call.k, keys),
        taken(call.v, keys),
        call.encoding,
        call.q_positions[..., start:stop],
        taken(call.k_positions, keys, -1),
        scale=call.scale,
        allowed=allowed,
        softcap=call.softcap,
        dropout=call.dropout,
        hidden=None if call.hidden is None else taken(call.hidden, keys, -1),
        length=call.length,
        placed=call.placed,
        wants_lse=call.wants_lse,
    )
    if not call.wants_weights:  # those of all blocks together are as many as the scores
        return found._replace(weights=found.weights.new_empty(0))
    unseen = call.k.shape[2] - keys[-1].stop  # the keys are one run from the first
    return found._replace(weights=pad(found.weights, (0, unseen))) if unseen else found
