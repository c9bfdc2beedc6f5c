"""``linear_attention``: attention without a softmax, in time and memory linear in the length.

Katharopoulos, Vyas, Pappas, Fleuret 2020, "Transformers are RNNs"; with RoPE: Su et al. 2021, "RoFormer", section 3.3.
    f is the feature map, R the encoding's rotation, taken after it; sums go over the keys j that query i sees
    numerator        sum (R_i f(q_i)) . (R_j f(k_j)) v_j / (sum f(q_i) . f(k_j) + eps)     RoFormer, equation 19
    both             the same with the rotated products in the denominator too
    one_plus_cosine  weights 1 + (R_i q^) . (R_j k^), q^ = f(q) / |f(q)|; Su's form has feature="identity"
    decay            as numerator, weights of both sums times e^(-decay |i - j|)
    unnormalised     the numerator alone, divided by the root of its mean square + eps (RMSNorm)
A rotated product of positive features may be negative: weights of ``numerator`` have both signs and need not sum to
1, and a denominator of ``both`` may vanish. ``one_plus_cosine`` stays a probability with an encoding that keeps norms,
unless every key that is seen is opposite to the query, but is never sharper than 2 : 1 against an orthogonal key.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from whorl.attend.features import Feature, Form, position_axes
from whorl.attend.inputs import check_key_mask, check_shapes, row_numbers, stopped_rows
from whorl.attend.linear_checks import Decay, Rule, chunk_of, fading, place
from whorl.attend.linear_forms import Fade, State, all_keys, go_on, negative_share, past_keys, sums_of_weights
from whorl.attend.linear_kernel import keep, run_triton, why_not_triton
from whorl.attend.linear_terms import Terms, make_terms
from whorl.autocast import without_autocast
from whorl.encodings.base import Encoding
from whorl.errors import WhorlError, check_flags, invalid
from whorl.kernels.choose import Impl, check_impl, choose
from whorl.plans import PLANS, kind
from whorl.position_ids import positions as make_positions
from whorl.position_ids import wide

# A denominator is near zero when all but this share of it cancelled.
NEAR_ZERO = 1e-3


class LinearStats(NamedTuple):
    """What the weights of a call are like, detached; rows that see no key are left out of the last three numbers.

    negative_share   the share of negative weights, counted in at most 1024 rows, evenly spaced in blocks
    row_sums         (batch, heads, queries): what the weights of a query sum to
    denominators     (batch, heads, queries), without eps; None for ``unnormalised``, as the next two
    min_denominator  the smallest absolute value among them
    near_zero        how many are below 1/1000 of |a_i| sum_j |b_j|, the most they could be
    """

    negative_share: Tensor
    row_sums: Tensor
    denominators: Tensor | None
    min_denominator: Tensor | None
    near_zero: Tensor | None


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    encoding: Encoding | None = None,
    feature: Feature = "elu+1",
    form: Form = "numerator",
    causal: bool = True,
    positions: Tensor | None = None,
    key_positions: Tensor | None = None,
    key_mask: Tensor | None = None,
    decay: Decay = None,
    chunk: int | None = None,
    eps: float = 1e-6,
    length: int | None = None,
    impl: Impl = "auto",
    return_stats: bool = False,
) -> Any:
    """The linear attention output (batch, heads, queries, value dim); with ``return_stats`` also a LinearStats.

    q is (batch, heads, queries, dim), k and v have as many heads or fewer that divide them. ``causal`` goes by the
    order of tokens, which are the same for queries and keys then. ``key_mask`` (batch, keys) is False for
    padding; a query that sees no key gets zeros. ``decay`` is one rate of at least 0 for all heads or one for
    each; it fades numerator and denominator of every form with the distance of positions, which must not
    decrease then. An encoding that fades by itself (xPos) is causal, and fades only where it rotates. Packed
    documents are not told apart: pass them as rows of a batch.

    Sums are float32, float64 for float64 input. ``chunk`` tokens (64 unless given) are worked on at a time; a
    chunk as long as the input is the parallel form, which is quadratic. ``LinearState`` goes on token by token.
    ``impl="triton"`` is fused kernels for causal rows on a CUDA device, which ``"auto"`` takes there where it can.

    >>> import torch, whorl
    >>> q, k, v = torch.randn(1, 8, 300, 64), torch.randn(1, 2, 300, 64), torch.randn(1, 2, 300, 32)
    >>> linear_attention(q, k, v, encoding=whorl.Rope(head_dim=64)).shape
    torch.Size([1, 8, 300, 32])
    """
    key, options = None, (positions, key_positions, key_mask, decay, chunk)
    plain = causal is True and return_stats is False and all(option is None for option in options)
    if plain and isinstance(impl, str) and impl == "auto" and isinstance(q, Tensor) and q.is_cuda:
        key = kind(("linear attention", id(encoding), feature, form, eps, length), q, k, v)
        plan = PLANS.get(key)
        if plan is not None:
            return plan(q, k, v)
    rule = Rule("linear_attention", encoding, feature, form, decay, chunk, eps, length)
    check_shapes(rule.call, q, k, v)
    check_key_mask(rule.call, key_mask, k)
    check_flags(rule.call, return_stats=return_stats)
    if not isinstance(causal, bool):
        raise invalid(rule.call, "causal", "True or False", causal, "The order is that of the tokens.")
    places = place(rule, q, k, causal, positions, key_positions, key_mask)
    check_impl(impl, rule.call)
    reason = "it is for CUDA devices"
    if impl == "triton" or (impl == "auto" and q.is_cuda):
        reason = why_not_triton(rule, q, v, causal=causal, positions=places[0], return_stats=return_stats)
    if choose(impl, rule.call, {"triton": reason}) == "triton":
        out = run_triton(rule, q, k, v, places[0], key_mask)
        keep(key, rule, q)
        return out
    fade = fading(rule, q, k, causal, places, consecutive=positions is None)
    size = chunk_of(rule, fade)
    with without_autocast(q.device.type):  # it would round the sums
        terms = make_terms(rule, q, k, v, places, key_mask, ones=return_stats)
        given = (terms.a, terms.b, terms.values, fade, size)
        sums = past_keys(*given)[0] if causal else all_keys(*given)
        bottom = None
        if terms.plain is not None:
            bottom = sums_of_weights(*terms.plain, Fade.by_head(fade), causal, size)
        elif form != "unnormalised":
            bottom = sums[..., -1]
        seen = None
        if key_mask is not None:
            seen = key_mask.cumsum(-1) > 0 if causal else key_mask.any(-1, keepdim=True)
        out = _finish(rule, sums[..., : v.shape[-1]], bottom, seen).to(v.dtype)
        if not return_stats:
            return out
        with torch.no_grad():
            return out, _stats(rule, terms, sums[..., -1], bottom, seen, key_mask, fade, causal, size)


class LinearState:
    """Causal linear attention that goes on from call to call: all it keeps of the past is one matrix per head.

    ``step(q, k, v)`` takes the next tokens, one or many, and returns for them what ``linear_attention`` over all tokens
    so far returns. ``sums`` holds that matrix of dim x value dim numbers (S), ``plain`` the same of a separate
    denominator (z), ``position`` what the next token gets, for each row or for all.

    >>> import torch, whorl
    >>> state = LinearState(encoding=whorl.Rope(head_dim=64))
    >>> prompt, token = torch.randn(3, 1, 8, 100, 64), torch.randn(3, 1, 8, 1, 64)
    >>> state.step(*prompt).shape, state.step(*token).shape, int(state.position)
    (torch.Size([1, 8, 100, 64]), torch.Size([1, 8, 1, 64]), 101)
    """

    def __init__(
        self,
        *,
        encoding: Encoding | None = None,
        feature: Feature = "elu+1",
        form: Form = "numerator",
        decay: Decay = None,
        chunk: int | None = None,
        eps: float = 1e-6,
        length: int | None = None,
    ) -> None:
        self._rule = Rule("LinearState", encoding, feature, form, decay, chunk, eps, length)
        self._shapes: tuple[tuple[int, ...], ...] | None = None  # of q, k and v, known from the first step on
        self._seen: Tensor | None = None  # (batch,): which rows have seen a key; None for all
        self.sums: State | None = None
        self.plain: State | None = None
        self._origin: Tensor | None = None  # (1 or batch, 1): the first position, from which weights that fade count
        self.position: Tensor | None = None  # (1 or batch,); None before the first step, and after several axes

    def step(
        self, q: Tensor, k: Tensor, v: Tensor, *, positions: Tensor | None = None, key_mask: Tensor | None = None
    ) -> Tensor:
        """The output (batch, heads, length, value dim) for the next tokens, which the state takes in."""
        rule, consecutive = self._rule, positions is None
        check_shapes(rule.call, q, k, v)
        check_key_mask(rule.call, key_mask, k)
        shapes = tuple((*x.shape[:2], x.shape[-1]) for x in (q, k, v))
        if self._shapes is not None and self._shapes != shapes:
            raise WhorlError(
                f"{rule.call}: batch, heads and dim of q, k and v must stay {self._shapes}, got {shapes}. "
                "Make a new LinearState for another batch."
            )
        if positions is None and self._shapes is not None:
            positions = self._next(q.shape[2])
        places = place(rule, q, k, True, positions, None, key_mask)
        if not q.shape[2]:
            return v.new_zeros(*q.shape[:3], v.shape[-1])
        origin = wide(torch.atleast_2d(places[0])[:, :1]) if self._origin is None else self._origin
        after = None if self.sums is None else self.sums.at
        fade = fading(rule, q, k, True, places, consecutive, after=after, origin=origin)
        size = chunk_of(rule, fade)
        plain = self.plain
        with without_autocast(q.device.type):  # it would round the sums
            terms = make_terms(rule, q, k, v, places, key_mask, ones=False)
            sums, kept = go_on(terms.a, terms.b, terms.values, fade, size, self.sums)
            bottom = None if rule.form == "unnormalised" else sums[..., -1]
            if terms.plain is not None:
                one = torch.ones_like(terms.values[..., :1])
                below, plain = go_on(*terms.plain, one, Fade.by_head(fade), size, plain)
                bottom = below[..., 0]
            seen = self._see(key_mask)
            out = _finish(rule, sums[..., : v.shape[-1]], bottom, seen).to(v.dtype)
        several = position_axes(rule.encoding) > 1 and places[0].ndim > 1
        position = None if several else torch.atleast_2d(places[0])[:, -1] + 1
        last = None if seen is None else seen[:, -1]
        # all at once and last: a step that fails leaves the state as it was
        self._shapes, self._origin = shapes, None if fade is None else origin
        self.sums, self.plain, self.position, self._seen = kept, plain, position, last
        return out

    def reorder(self, rows: Tensor) -> None:
        """Lets row i go on from where row ``rows[i]`` was, for beam search."""
        batch = 0 if self._shapes is None else self._shapes[0][0]
        if not isinstance(rows, Tensor) or tuple(rows.shape) != (batch,):
            raise invalid("LinearState.reorder", "rows", f"a tensor of {batch} row indices", rows)
        index = rows if self.sums is None else row_numbers("LinearState.reorder", rows, batch).to(self.sums.sums.device)

        def moved(x: Tensor | None) -> Tensor | None:
            return x if x is None or x.shape[0] == 1 else x.index_select(0, index)  # one for all rows stays

        with stopped_rows("LinearState.reorder", rows, batch):
            sums, plain = (
                None if state is None else State(state.sums.index_select(0, index), moved(state.at))
                for state in (self.sums, self.plain)
            )
        self.sums, self.plain, self.position = sums, plain, moved(self.position)
        self._seen, self._origin = moved(self._seen), moved(self._origin)

    def _next(self, length: int) -> Tensor:
        if self.position is None:
            raise WhorlError("LinearState: positions of several axes do not tell the next ones. Pass positions=….")
        ids = self.position[:, None] + make_positions(length, device=self.position.device)
        return ids[0] if ids.shape[0] == 1 else ids

    def _see(self, key_mask: Tensor | None) -> Tensor | None:
        """Which of these queries see a key: all but those of rows that begin with padding."""
        if key_mask is None:
            return None
        before = key_mask.new_full(key_mask.shape[:1], self._shapes is not None) if self._seen is None else self._seen
        return (key_mask.cumsum(-1) > 0) | before[:, None]


def _finish(rule: Rule, top: Tensor, bottom: Tensor | None, seen: Tensor | None) -> Tensor:
    """The output from the sums: a quotient, or the RMSNorm of the numerator; (batch, heads, queries, value dim)."""
    if bottom is None:
        square = top.square().mean(-1, keepdim=True) + float(rule.eps)
        if seen is not None:
            square = square.masked_fill(~seen[:, None, None, :, None], 1.0)  # its numerator is 0
        return (top * square.rsqrt()).flatten(1, 2)
    bottom = bottom + float(rule.eps)
    if seen is not None:
        bottom = bottom.masked_fill(~seen[:, None, None], 1.0)  # its numerator is 0
    return (top / bottom[..., None]).flatten(1, 2)


def _stats(
    rule: Rule,
    terms: Terms,
    weight_sums: Tensor,
    bottom: Tensor | None,
    seen: Tensor | None,
    key_mask: Tensor | None,
    fade: Fade | None,
    causal: bool,
    chunk: int,
) -> LinearStats:
    if not terms.a.numel() or not terms.b.numel():
        raise WhorlError(f"{rule.call}: return_stats=True needs at least one query, one key and one dimension.")
    share = negative_share(terms.a, terms.b, fade, key_mask, causal, chunk)
    if bottom is None:
        return LinearStats(share, weight_sums.flatten(1, 2), None, None, None)
    a, b = (terms.a, terms.b) if terms.plain is None else terms.plain
    a, b = a.norm(dim=-1, keepdim=True), b.norm(dim=-1, keepdim=True)
    most = sums_of_weights(a, b, Fade.by_head(fade), causal, chunk)
    size = bottom.abs()
    if seen is not None:
        size = size.masked_fill(~seen[:, None, None], torch.inf)
    return LinearStats(
        share,
        _finish(rule, weight_sums[..., None], bottom, seen)[..., 0],
        bottom.flatten(1, 2),
        size.amin(),
        ((size < NEAR_ZERO * most) | (size == 0)).sum(),
    )
