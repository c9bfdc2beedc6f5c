"""The forgetting gate of the Forgetting Transformer: each token says how much of what came before is kept.

Lin, Nikishin, He, Courville 2025, "Forgetting Transformer: Softmax Attention with a Forget Gate".
    log f_t = log sigmoid(w_h . x_t + b_h),   F = cumsum(log f)
    score_ij += F_i - F_j        the sum of log f over the tokens after j, up to i
A constant gate is ALiBi with slope -log f. Position enters in every layer, on the scores, and depends on no position
ids: tokens are counted in the order of the keys, the last query standing at the last key, each document by itself.
heads * (width + 1) parameters; one number per token and head to keep beside the keys, one addition per pair.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, logsigmoid

from whorl.autocast import without_autocast
from whorl.config import Config, config
from whorl.encodings import parts
from whorl.encodings.base import Claims
from whorl.encodings.content import ContentTerms, Pairs
from whorl.errors import WhorlError, invalid


@config
class ForgettingGateConfig(Config):
    """Everything that makes one forgetting gate differ from another.

    heads          how many heads, each with its own gate
    width          dimensions of the hidden states that the gates read
    bias           what the bias starts from; 5 keeps nearly all, 0.9933 per token
    """

    name: ClassVar[str] = "forgetting_gate"
    heads: int
    width: int
    bias: float = 5.0

    def check(self) -> None:
        self.check_positive("heads", "width")
        self.check_magnitude("bias")


def forgotten(log_gates: Tensor, queries: int, dtype: torch.dtype | None = None) -> Tensor:
    """F_i - F_j of the last ``queries`` tokens against all, from log f (…, tokens) to (…, queries, tokens)."""
    total, *rest = summed(log_gates, dtype or log_gates.dtype)
    found = _differences(total, queries)
    return found + _differences(rest[0], queries) if rest else found


def summed(log_gates: Tensor, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """F in float64, or in float32 as two of them, which add up to it.

    The running sum grows with the text and its differences do not, so it is kept in float64 and subtracted in two
    float32 pieces: near pairs are exact at any length, and nothing of the size of the scores is float64. Gradients
    go by the second piece alone.
    """
    total = log_gates.cumsum(-1, dtype=torch.float64)
    if dtype == torch.float64:
        return (total,)
    high = total.detach().float()
    return high, (total - high).float()  # in float64, as one of them is


def by_document(log_gates: Tensor, documents: Tensor) -> Tensor:
    """What log f (batch, heads, tokens) must be for a running sum to be over tokens of one document, float64.

    F is summed where each document's tokens lie together, and put back; what it grows by from token to token is found
    from that. Differences of F mean nothing between two documents, whose tokens do not see each other.
    """
    order = torch.atleast_2d(documents).argsort(dim=-1, stable=True)
    together, back = (index[:, None].expand_as(log_gates) for index in (order, order.argsort(dim=-1)))
    total = log_gates.gather(-1, together).cumsum(-1, dtype=torch.float64).gather(-1, back)
    return total.diff(dim=-1, prepend=total.new_zeros(*total.shape[:-1], 1))


def _differences(total: Tensor, queries: int) -> Tensor:
    return total[..., total.shape[-1] - queries :, None] - total[..., None, :]


class ForgettingGate(ContentTerms):
    """A bias that each token's gate decides, the same for all keys before it.

    ``remember(hidden)`` gives the logarithms of the gates of tokens, (batch, heads, tokens) in float32; they are kept
    beside the keys and passed to ``adjust_scores`` for all of them. ``gate`` starts with weights of standard
    deviation 0.02 and the bias of the config. Only causal attention has a meaning: keys after the query would gain.

    >>> import torch, whorl
    >>> fox, x = whorl.ForgettingGate(heads=2, width=128), torch.randn(1, 2, 5, 64)
    >>> kept, positions = fox.remember(torch.randn(1, 5, 128)), whorl.positions(5)
    >>> kept.shape
    torch.Size([1, 2, 5])
    >>> fox.adjust_scores(x @ x.mT / 8, x, x, positions, positions, kept, scale=1 / 8).shape
    torch.Size([1, 2, 5, 5])
    """

    Config = ForgettingGateConfig
    config: ForgettingGateConfig
    # not relative: the gates of the tokens between count, and not the distance
    claims = Claims(relative=False, norm_preserving=True, linear_attention=False, decays=True, extrapolates=True)

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.gate = nn.Linear(self.config.width, self.config.heads)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the weights anew and sets the bias, as after loading through the meta device."""
        nn.init.normal_(self.gate.weight, std=0.02)
        nn.init.constant_(self.gate.bias, self.config.bias)

    @property
    def causal_only(self) -> bool:
        return True

    def declare(self) -> tuple[parts.Part, ...]:
        return (parts.RowLessColumn(self, form="sums"),)

    def remember(self, hidden: Tensor) -> Tensor:
        if not isinstance(hidden, Tensor) or hidden.ndim != 3 or hidden.shape[-1] != self.config.width:
            raise invalid(
                "ForgettingGate",
                "hidden",
                f"of shape (batch, length, width={self.config.width})",
                hidden,
                "Pass the hidden states that queries and keys are made of.",
            )
        wide = torch.promote_types(hidden.dtype, torch.float32)
        with without_autocast(hidden.device.type):  # half precision cannot tell gates near 1 apart
            logits = linear(hidden.to(wide), self.gate.weight.to(wide), self.gate.bias.to(wide))
        return logsigmoid(logits).mT

    def within_documents(self, kept: Tensor, documents: Tensor) -> Tensor:
        """What was kept of tokens of these documents (tokens,) or (batch, tokens), so that each is summed by itself."""
        return by_document(kept, documents)

    def running_sums(self, kept: Tensor) -> Tensor:
        """What kernels make the terms of, (batch * heads, 2 * tokens) in float32: F, and what it was rounded by."""
        return torch.cat(summed(kept, torch.float32), dim=-1).flatten(0, 1)

    def add_terms(self, pairs: Pairs) -> Tensor:
        scores, hidden = pairs.scores, pairs.hidden
        heads, (queries, keys) = self.config.heads, scores.shape[-2:]
        if not isinstance(hidden, Tensor):
            raise invalid("ForgettingGate", "hidden", "what remember() kept of all keys", hidden)
        if hidden.ndim < 2 or hidden.shape[-2:] != (heads, keys) or scores.shape[-3] != heads:
            raise WhorlError(
                f"ForgettingGate: scores of {scores.shape[-3]} heads and {keys} keys need gates of shape "
                f"(batch, heads={heads}, {keys}), got {tuple(hidden.shape)}. Keep what remember() gives of each token."
            )
        if queries > keys:
            raise WhorlError(
                f"ForgettingGate: {queries} queries cannot be the last of {keys} keys. "
                "Gates lie between tokens of one text; attention to other tokens has none."
            )
        return scores + forgotten(hidden, queries, scores.dtype)
