"""``attention``: softmax attention with any encoding, by the cheapest path that computes it exactly.

sdpa     no bias: rotated queries and keys on torch's fused kernel
alibi    ALiBi on a GPU, without gradients: a kernel of its own that leaves out keys too far to weigh anything
folded   a separable bias: a few more dimensions of queries and keys, on torch's fused kernel
masked   a bias that is not learned from on the CPU: formed, and added inside torch's fused kernel
flex     any bias written element by element, inside FlexAttention's kernel, and several placements of queries and keys
dense    everything: the reference, a block of queries at a time
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from whorl.attend.branches import attend_branches
from whorl.attend.call import Call, checked
from whorl.attend.flex import bias_of, flex_attention_of, why_not_flex
from whorl.attend.reference import Attended, reference, repeat_heads
from whorl.attend.visibility import Causal, closed_keys
from whorl.encodings.alibi import Alibi, slope_numbers
from whorl.encodings.base import Encoding
from whorl.errors import WhorlError, unknown
from whorl.kernels.alibi_ops import KERNEL, alibi_attention, why_not_alibi
from whorl.kernels.choose import IMPLS, Impl
from whorl.rotary.tables import is_traced, wants_grad

Path = Literal["sdpa", "alibi", "folded", "masked", "flex", "dense"]

# Scores held at a time by the dense path, and biases by the masked one, in elements: 64 MiB of float32, half a GiB on a
# GPU.
DENSE_SCORES = {"cpu": 2**24, "cuda": 2**27}

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
    last key; ``"positions"`` goes by positions, for shards of a sequence. ``mask`` is True where a key may be
    seen and broadcasts against (batch, heads, queries, keys), ``key_mask`` (batch, keys) leaves out padding, and
    tokens see their own document only where ``documents`` (length,) or (batch, length) are given. ``hidden``
    are the hidden states of the keys' tokens, for encodings that read them. A query that may see nothing
    gets zeros.

    >>> import torch, whorl
    >>> q, k, v = torch.randn(1, 8, 5, 64), torch.randn(1, 2, 5, 64), torch.randn(1, 2, 5, 64)
    >>> whorl.attention(q, k, v, encoding=whorl.Rope(head_dim=64)).shape
    torch.Size([1, 8, 5, 64])
    """
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
    return run(call, impl, consecutive=positions is None and key_positions is None)


def run(call: Call, impl: Impl = "auto", *, consecutive: bool = False) -> Any:
    """What ``attention`` returns for a checked call, computed in the dtype of its input, autocast or not.

    ``consecutive`` says that positions are known to be 0, 1, 2, … of the keys; values on a device are never read.
    """
    device = call.q.device.type
    if device in ("cpu", "cuda") and torch.is_autocast_enabled(device):
        # autocast would round positions inside the kernel; queries and keys come from layers it has cast already
        with torch.autocast(device, enabled=False):
            return run(call, impl, consecutive=consecutive)
    path, _ = choose_path(call, impl, consecutive=consecutive)
    if path == "dense":
        found = _dense(call)
        extra = [found.lse] * call.wants_lse + [found.weights] * call.wants_weights
        return (found.out, *extra) if extra else found.out
    if path == "flex" and "branches" in call.encoding.enters():
        return attend_branches(call, consecutive=consecutive)
    if path == "flex":
        return flex_attention_of(call, *call.placed_qk(), consecutive=consecutive)
    if path == "alibi":
        return alibi_attention(*call.placed_qk(), call.v, _slopes(call), call.scale)
    return _masked(call) if path == "masked" else _fused(call, folded=path == "folded")


def explain_attention(q: Tensor, k: Tensor, v: Tensor, *, impl: Impl = "auto", **options: Any) -> str:
    """Which path the same call of ``attention`` takes, and why.

    >>> import torch, whorl
    >>> x = torch.randn(1, 2, 5, 8)
    >>> whorl.explain_attention(x, x, x, encoding=whorl.Rope(head_dim=8))
    'sdpa: nothing is added to the scores'
    """
    consecutive = options.get("positions") is None and options.get("key_positions") is None
    path, reason = choose_path(checked(q, k, v, **options), impl, consecutive=consecutive)
    return f"{path}: {reason}"


def choose_path(call: Call, impl: Impl, *, consecutive: bool = False) -> tuple[Path, str]:
    """The path a call takes and the reason; a request that cannot be met raises."""
    if impl not in IMPLS:
        raise unknown("impl", impl, IMPLS, call="attention")
    name, cuda = type(call.encoding).__name__, call.q.device.type == "cuda"
    if impl in ("triton", "numba"):
        reason = _why_not_alibi(call, consecutive) if impl == "triton" else "attention has no numba kernel"
        if reason is None:
            return "alibi", "asked for"
        raise WhorlError(f"impl={impl!r} cannot run here: {reason}. Use impl='auto' or 'torch'.")
    refusal = why_not_flex(call)
    if impl == "flex":
        if refusal:
            raise WhorlError(f"impl='flex' cannot run here: {refusal}. Use impl='torch'.")
        return "flex", "asked for"
    uses = call.encoding.enters()
    for hook in ("adjust_scores", "adjust_output"):
        if hook in uses:
            return "dense", f"{name} uses {hook}"
    limit = call.encoding.query_limit(call.q.dtype)
    if limit is not None and call.q.shape[2] > limit:
        return "dense", f"{name} places at most {limit} queries at a time in {call.q.dtype}"
    if call.wants_weights:
        return "dense", "return_weights is asked for"
    branches = "branches" in uses and not (consecutive and call.encoding.one_branch(call.k.shape[2]))
    several: Path = "flex" if impl == "auto" and cuda and refusal is None else "dense"
    for reason, holds in (
        (f"{name} uses branches", branches),
        ("softcap is asked for", call.softcap is not None),
        ("return_lse is asked for", call.wants_lse),
    ):
        if holds:  # one row of scores is small, and needs no compiling
            return several if call.q.shape[2] > 1 else "dense", reason
    if "score_bias" not in uses:
        return "sdpa", "nothing is added to the scores"
    separable = f"the bias of {name} is separable"
    if impl == "auto" and cuda and call.encoding.folds:
        unfit = _why_not_alibi(call, consecutive)
        if unfit is None:
            return "alibi", "its kernel adds the bias and leaves out keys too far to weigh anything"
        separable += f", and {unfit}"
    # on the CPU many further dimensions lose in float32 what the bias itself keeps, and cost more than it does
    half = call.q.dtype in (torch.bfloat16, torch.float16)
    if call.encoding.folds and (half or cuda or call.encoding.fold_dims <= MOST_FOLDED):
        return "folded", separable
    learned = wants_grad(*call.encoding.parameters())
    if call.q.device.type == "cpu" and not half and not learned:
        return "masked", f"the bias of {name} is a mask of torch's kernel where nobody learns from it"
    scores = call.q[..., 0].numel() * call.k.shape[2]
    if several == "flex" and learned and scores <= DENSE_SCORES["cuda"]:
        return "dense", f"the few parameters of {name} gather their gradients faster from scores that are formed"
    return several, f"{name} has a bias for each pair of positions"


def _why_not_alibi(call: Call, consecutive: bool) -> str | None:
    """What keeps the kernel of ALiBi from computing this call, or None."""
    encoding, visible, uses = call.encoding, call.visible, call.encoding.enters()
    if not isinstance(bias_of(encoding), Alibi) or not encoding.folds:
        return f"attention has no triton kernel for {type(encoding).__name__}, only for the exact causal ALiBi"
    if visible.causal is not True:
        return f"{KERNEL} has causal=True only, got causal={visible.causal!r}"
    if not consecutive:
        return f"{KERNEL} counts positions 0, 1, 2, … itself, and positions were given"
    rules = (visible.mask, visible.key_mask, visible.q_documents)
    if "mask" in uses or any(rule is not None for rule in rules):
        return f"{KERNEL} has no mask beside the causal one"
    for name, asked in (
        ("dropout", call.dropout),
        ("softcap", call.softcap),
        ("return_lse", call.wants_lse),
        ("return_weights", call.wants_weights),
    ):
        if asked:
            return f"{KERNEL} has no {name}"
    for hook in ("adjust_scores", "adjust_output", "branches"):
        if hook in uses:
            return f"{type(encoding).__name__} uses {hook}"
    if wants_grad(call.q, call.k, call.v, *encoding.parameters()):
        return f"{KERNEL} has no gradients"
    if is_traced() and not torch.compiler.is_compiling():
        return "torch.func transforms see through torch's own operations only"
    return why_not_alibi(call.q, call.v, _slopes(call))


def _slopes(call: Call) -> tuple[float, ...]:
    alibi = bias_of(call.encoding)
    assert isinstance(alibi, Alibi)
    own = alibi.config  # its values one by one: a compiler takes those as constants, and not a whole config
    return slope_numbers(own.sloped, own.slopes, own.rounding, own.scale)


def _dense(call: Call) -> Attended:
    """The reference, a block of queries at a time."""
    parts: list[Attended] = _in_blocks(call, _rows)
    if len(parts) == 1:
        return parts[0]
    weights = torch.cat([part.weights for part in parts], dim=2) if call.wants_weights else parts[0].weights
    lse = torch.cat([part.lse for part in parts if part.lse is not None], dim=2) if call.wants_lse else None
    return Attended(torch.cat([part.out for part in parts], dim=2), weights, lse)


def _masked(call: Call) -> Tensor:
    """torch's own kernel with the bias as its mask, a block of queries at a time."""
    (q, k), heads = call.placed_qk(), call.q.shape[1]
    k, v = repeat_heads(k, heads), repeat_heads(call.v, heads)
    return torch.cat(_in_blocks(call, _masked_rows, *_same_width(q, k, v)), dim=2)[..., : call.v.shape[-1]]


def _in_blocks(call: Call, attend: Callable[..., Any], *given: Tensor) -> list[Any]:
    """attend(call, *given, start, stop) of every block of queries; with gradients, made again on the way back."""
    rows, queries = _rows_at_once(call), call.q.shape[2]
    if rows >= queries:
        return [attend(call, *given, 0, queries)]
    if torch.is_grad_enabled():
        attend = partial(checkpoint, attend, use_reentrant=False)
    return [attend(call, *given, start, min(start + rows, queries)) for start in range(0, queries, rows)]


def _masked_rows(call: Call, q: Tensor, k: Tensor, v: Tensor, start: int, stop: int) -> Tensor:
    allowed, last = _seen(call, start, stop)
    bias = call.encoding.score_bias(call.q_positions[..., start:stop], call.k_positions[..., :last], call.length)
    assert bias is not None
    closed, sees = (None, None) if allowed is None else closed_keys(allowed)
    if closed is not None:
        bias = bias.masked_fill(closed, -torch.inf)
    bias = bias.to(q.dtype) if bias.ndim == 4 else bias.to(q.dtype).unsqueeze(0)
    given = q[:, :, start:stop], k[:, :, :last], v[:, :, :last]
    out = scaled_dot_product_attention(*given, attn_mask=bias, dropout_p=call.dropout, scale=call.scale)
    return out if sees is None else out * sees


def _same_width(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Padded with zeros to one size, which the CPU's fused kernel takes for all three."""
    room = max(q.shape[-1], v.shape[-1])
    q, k, v = (t if t.shape[-1] == room else pad(t, (0, room - t.shape[-1])) for t in (q, k, v))
    return q, k, v


def _seen(call: Call, start: int, stop: int) -> tuple[Tensor | None, int]:
    """What queries [start, stop) may see, and how many keys: up to the last of them where tokens go by order."""
    keys = call.k.shape[2]
    last = keys - call.q.shape[2] + stop if call.visible.causal is True else keys
    allowed = call.visible.rows(start, stop)
    return None if allowed is None else allowed[..., :last], last


def _rows_at_once(call: Call) -> int:
    batch, heads, queries, _ = call.q.shape
    counts = call.encoding.reads_hidden or ("adjust_scores" in call.encoding.enters() and call.encoding.causal_only)
    if counts and call.visible.causal is not True:
        return queries  # such encodings count back from the last key, and only causal blocks end there
    fits = DENSE_SCORES.get(call.q.device.type, DENSE_SCORES["cpu"]) // max(1, batch * heads * call.k.shape[2])
    return max(1, min(queries, fits, call.encoding.query_limit(call.q.dtype) or queries))


def _rows(call: Call, start: int, stop: int) -> Attended:
    """Queries [start, stop)."""
    keys = call.k.shape[2]
    allowed, last = _seen(call, start, stop)
    found = reference(
        call.q[:, :, start:stop],
        call.k[:, :, :last],
        call.v[:, :, :last],
        call.encoding,
        call.q_positions[..., start:stop],
        call.k_positions[..., :last],
        scale=call.scale,
        allowed=allowed,
        softcap=call.softcap,
        dropout=call.dropout,
        hidden=None if call.hidden is None else call.hidden[..., :last],
        length=call.length,
        placed=call.placed,
        wants_lse=call.wants_lse,
    )
    if call.wants_weights and last < keys:
        return found._replace(weights=pad(found.weights, (0, keys - last)))
    return found


def _fused(call: Call, folded: bool) -> Tensor:
    """torch's own kernel on rotated queries and keys, with the bias as further dimensions where it is separable."""
    heads = call.q.shape[1]
    (q, k), v = call.placed_qk(), call.v
    if folded:
        k = repeat_heads(k, heads)
        extra_q, extra_k = call.encoding.fold(call.q_positions, call.k_positions, q.dtype, call.scale)
        # in front of the content: summed first, the large terms of the bias cancel before anything small is added
        q = torch.cat((_like(extra_q, q), q), dim=-1)
        k = torch.cat((_like(extra_k, k), k), dim=-1)
    grouped = v.shape[1] != heads
    if grouped and (folded or q.device.type == "cpu"):
        k, v, grouped = repeat_heads(k, heads), repeat_heads(v, heads), False
    width = v.shape[-1]
    if q.device.type == "cpu":
        q, k, v = _same_width(q, k, v)
    allowed = None if call.visible.only_causal else call.visible.rows()
    closed, sees = (None, None) if allowed is None else closed_keys(allowed)
    out = scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=None if closed is None else ~closed,
        is_causal=call.visible.only_causal,
        dropout_p=call.dropout,
        scale=call.scale,
        enable_gqa=grouped,
    )[..., :width]
    return out if sees is None else out * sees


def _like(extra: Tensor, x: Tensor) -> Tensor:
    """Further dimensions in x's dtype, for every batch row and head of x."""
    return extra.to(x.dtype).expand(*x.shape[:-1], extra.shape[-1])
