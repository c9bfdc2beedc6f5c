"""The FlexAttention path: the bias formula runs inside the fused kernel, so nothing of length x length is stored.

The function is compiled once for each kind of encoding. Positions and learned tables are tensors that its
score function reads, so neither another step nor another length compiles anew.
"""

from __future__ import annotations

from functools import cache
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from whorl.attend.call import Call
from whorl.encodings.bias import Bias


def why_not_flex(call: Call) -> str | None:
    """What keeps FlexAttention from computing this call, or None."""
    uses = call.encoding.enters()
    for hook in ("adjust_scores", "adjust_output", "branches"):
        if hook in uses:
            return f"{type(call.encoding).__name__} uses {hook}, which is no function of one score"
    if "score_bias" in uses and bias_of(call.encoding) is None:
        return f"{type(call.encoding).__name__} has no bias formula for one head and two positions"
    if bias_of(call.encoding) is not None and call.encoding.axes > 1:
        return "a bias reads positions of one axis"
    if call.wants_weights:
        return "it never forms the weights"
    if call.dropout:
        return "it has no dropout"
    if call.q.device.type != "cuda":
        learned = (call.q, call.k, call.v, *call.encoding.parameters())
        if torch.is_grad_enabled() and any(t.requires_grad for t in learned):
            return "FlexAttention has no backward on the CPU"
        if call.q.dtype == torch.float64:
            return "FlexAttention has no float64 on the CPU"
        if call.wants_lse:
            return "FlexAttention does not return the log-sum-exp on the CPU"
        if call.q.device.type != "cpu":
            return f"no FlexAttention for {call.q.device.type}"
    visible = call.visible
    if visible.mask is not None or visible.key_mask is not None:
        return "masks given as tensors are not supported there"
    return None


def bias_of(encoding: Any) -> Bias | None:
    """The part of an encoding that has a bias formula."""
    if isinstance(encoding, Bias):
        return encoding
    parts = [part for part in getattr(encoding, "encodings", ()) if "score_bias" in part.enters()]
    return parts[0] if len(parts) == 1 and isinstance(parts[0], Bias) else None


def flex_attention_of(call: Call, q: Tensor, k: Tensor) -> Any:
    """The call by FlexAttention, q and k being placed; with the log-sum-exp where it is asked for."""
    allowed = None if call.visible.everything or call.visible.only_causal else call.visible.rows()
    kind = (type(bias_of(call.encoding)), allowed is None, call.visible.only_causal, call.softcap, call.wants_lse)
    return _compiled(kind)(
        q.contiguous(),
        k.contiguous(),
        call.v.contiguous(),
        bias_of(call.encoding),
        call.q_positions,
        call.k_positions,
        allowed,
        call.visible.only_causal,
        call.softcap,
        call.scale,
        call.wants_lse,
    )


@cache
def _compiled(kind: tuple[Any, ...]) -> Any:
    """The compiled function for one kind of call.

    The compiler counts how often one code object is compiled and stops at a few, so that each kind gets its own.
    """
    own = FunctionType(_flex.__code__.replace(co_name=f"_flex_{kind[0].__name__}"), globals())
    return torch.compile(own, fullgraph=True)


def _flex(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Bias | None,
    q_positions: Tensor,
    k_positions: Tensor,
    allowed: Tensor | None,
    causal: bool,
    softcap: float | None,
    scale: float,
    wants_lse: bool,
) -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    rows = torch.atleast_2d(q_positions).expand(q.shape[0], -1)
    columns = torch.atleast_2d(k_positions).expand(q.shape[0], -1)
    if allowed is not None:
        allowed = allowed.expand(q.shape[0], q.shape[1], q.shape[2], k.shape[2])

    bias_at = None
    if bias is not None:
        bias_at = bias.prepared() if q.device.type == "cuda" else bias.bias_at

    def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        if bias_at is not None:
            score = score + bias_at(h, rows[b, i], columns[b, j])
        if softcap is not None:
            score = torch.where(score == -float("inf"), score, softcap * torch.tanh(score / softcap))
        if causal:
            score = torch.where(i >= j, score, -float("inf"))
        if allowed is not None:
            score = torch.where(allowed[b, h, i, j], score, -float("inf"))
        return score

    return flex_attention(
        q, k, v, score_mod=score_mod, scale=scale, enable_gqa=q.shape[1] != k.shape[1], return_lse=wants_lse
    )
