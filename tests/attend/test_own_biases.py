"""Biases and masks of a user's own, as people write them: whole numbers, no number for the future, the wrong kind."""

from __future__ import annotations

import math

import pytest
import torch

import whorl
from whorl import WhorlError
from whorl.encodings.bias import Bias, DistanceBias

HEADS, LENGTH, DIM = 2, 12, 8
SEEN = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
DISTANCE = torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)


class Own(DistanceBias):
    """A bias by the formula that a test gives it."""

    Config, claims = whorl.Kerple.Config, whorl.Kerple.claims

    def __init__(self, formula, **settings):
        super().__init__(heads=HEADS, **settings)
        self.formula = formula

    def bias_of(self, head, distance):
        return self.formula(head, distance)


class Learned(Own):
    """A bias with one number to learn for each head."""

    def __init__(self, formula):
        super().__init__(formula)
        self.amount = torch.nn.Parameter(torch.tensor([0.7, 1.3]))

    def bias_of(self, head, distance):
        return -self.amount[head] * self.formula(distance.double())


def tokens():
    return torch.randn(3, 1, HEADS, LENGTH, DIM, generator=torch.Generator().manual_seed(0))


def softmax_attention(q, k, v, bias, seen=SEEN):
    """From its definition, in float64."""
    scores = q.double() @ k.double().mT / math.sqrt(DIM) + bias
    return scores.masked_fill(~seen, -math.inf).softmax(-1) @ v.double()


FORMULAS = {
    "whole numbers": lambda head, distance: -(distance // 4) * (head + 1),
    "the same for every head": lambda head, distance: -0.1 * distance.double(),
    "one number": lambda head, distance: torch.tensor(-2),
}


@pytest.mark.parametrize("impl", ["auto", "torch"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", FORMULAS)
def test_a_formula_of_numbers_is_a_bias(name, causal, impl):
    (q, k, v), encoding = tokens(), Own(FORMULAS[name])
    bias = FORMULAS[name](torch.arange(HEADS)[:, None, None], DISTANCE).double()
    wanted = softmax_attention(q, k, v, bias, SEEN if causal else torch.ones_like(SEEN))
    for dtype in (torch.float32, torch.float64):
        got = whorl.attention(*(x.to(dtype) for x in (q, k, v)), encoding=encoding, causal=causal, impl=impl)
        torch.testing.assert_close(got.double(), wanted, atol=2e-6 if dtype == torch.float32 else 1e-13, rtol=0)
    if causal:
        cache = whorl.KVCache(encoding=encoding)
        parts = [cache.attend(*(x[:, :, at] for x in (q, k, v))) for at in (slice(0, 9), slice(9, 10), slice(10, 12))]
        torch.testing.assert_close(torch.cat(parts, dim=2).double(), wanted, atol=2e-6, rtol=0)


@pytest.mark.parametrize("impl", ["auto", "torch"])
@pytest.mark.parametrize(
    ("formula", "shown"),
    [
        (lambda head, distance: (distance < 4) & (head >= 0), "got torch.bool of shape"),
        (lambda head, distance: -1.0, "got -1.0"),
        (lambda head, distance: distance * 1j, "got torch.complex64 of shape"),
    ],
)
def test_a_formula_of_anything_else_is_refused(formula, shown, impl):
    message = rf"Own\.bias_of: the bias must be a tensor of numbers to add to scores, {shown}"
    with pytest.raises(WhorlError, match=message):
        whorl.attention(*tokens(), encoding=Own(formula), impl=impl)
    with pytest.raises(WhorlError, match=message):
        whorl.attention(*tokens(), encoding=Own(formula), impl="triton")

    class ByPlace(Bias):
        Config, claims = whorl.Kerple.Config, whorl.Kerple.claims

        def bias_at(self, head, i, j):
            return formula(head, i - j)

    with pytest.raises(WhorlError, match=r"ByPlace\.bias_at: the bias must be a tensor of numbers"):
        whorl.attention(*tokens(), encoding=ByPlace(heads=HEADS), impl=impl)


UNDEFINED = {"sqrt": torch.sqrt, "log1p": torch.log1p, "power": lambda distance: distance**1.5}


PLAIN = ("plain", "softcap", "padding", "documents")


@pytest.mark.parametrize(
    ("impl", "options"),
    # a formula without an end is none for kernels at given positions
    [(impl, options) for impl in ("auto", "torch", "triton") for options in (*PLAIN, "placed")][:-1],
)
@pytest.mark.parametrize("name", UNDEFINED)
def test_gradients_reach_what_a_formula_learned_where_it_has_no_number_for_the_future(name, options, impl):
    seen, more, at = SEEN, {}, torch.arange(LENGTH)
    if options == "softcap":
        more = {"softcap": 3.0}
    elif options == "padding":
        real = at >= 2
        seen, more = SEEN & real, {"key_mask": real[None]}
    elif options == "documents":
        text = at // 5
        seen, more = SEEN & (text[:, None] == text), {"documents": text}
    elif options == "placed":
        at = at * 3
        more = {"positions": at}
    (q, k, v), encoding = tokens(), Learned(UNDEFINED[name])
    out = whorl.attention(q, k, v, encoding=encoding, impl=impl, **more)
    (gradient,) = torch.autograd.grad(out.square().sum(), encoding.amount)

    amount = torch.tensor([0.7, 1.3], dtype=torch.float64, requires_grad=True)
    distance = (at[:, None] - at).clamp(min=0).double()
    scores = q.double() @ k.double().mT / math.sqrt(DIM) - amount[:, None, None] * UNDEFINED[name](distance)
    scores = 3.0 * (scores / 3.0).tanh() if options == "softcap" else scores
    scores = scores.masked_fill(~seen, -math.inf)
    blind = ~seen.any(-1)[:, None]
    wanted = scores.masked_fill(blind, 0.0).softmax(-1).masked_fill(blind, 0.0) @ v.double()
    (expected,) = torch.autograd.grad(wanted.square().sum(), amount)
    torch.testing.assert_close(out.double(), wanted.detach(), atol=2e-5, rtol=0, check_dtype=False)
    torch.testing.assert_close(gradient.double(), expected, atol=0, rtol=2e-5)


AT = torch.arange(LENGTH)
PAIRS = {  # options, and by row of the batch which pairs are seen and how far apart they are
    "far keys, some hidden": (
        {"causal": False, "positions": AT + 100, "key_positions": AT, "key_mask": (AT >= 3).expand(2, -1)},
        (AT >= 3).expand(2, LENGTH, -1),
        (AT[:, None] + 100 - AT).expand(2, -1, -1),
    ),
    "far keys, a mask by head": (
        {"causal": False, "positions": AT + 100, "key_positions": AT, "mask": torch.stack((SEEN, SEEN.flip(0)))},
        torch.stack((SEEN, SEEN.flip(0))).expand(2, -1, -1, -1),
        (AT[:, None] + 100 - AT).expand(2, -1, -1),
    ),
    "rows in two orders": (
        {"causal": "positions", "positions": torch.stack((3 * AT, 3 * AT.flip(0)))},
        torch.stack((SEEN, SEEN.T)),
        3 * torch.stack((DISTANCE, -DISTANCE)),
    ),
    "rows in two orders, padding": (
        {"causal": "positions", "positions": torch.stack((AT, AT.flip(0))) * 0.5, "key_mask": (AT < 9).expand(2, -1)},
        torch.stack((SEEN, SEEN.T)) & (AT < 9),
        0.5 * torch.stack((DISTANCE, -DISTANCE)),
    ),
}


@pytest.mark.parametrize("impl", ["auto", "torch"])
@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("formula", [lambda distance: distance.sqrt(), lambda distance: (distance + 1).log()])
def test_pairs_that_are_hidden_in_every_other_way_leave_gradients_alone(formula, name, impl):
    options, seen, distance = PAIRS[name]
    if name.startswith("far"):  # where nothing is at its own place
        formula = torch.log
    (q, k, v), encoding = tokens().double().expand(-1, 2, -1, -1, -1), Learned(formula).double()
    out = whorl.attention(q, k, v, encoding=encoding, impl=impl, **options)
    (gradient,) = torch.autograd.grad(out.square().sum(), encoding.amount)

    amount = encoding.amount.detach().clone().requires_grad_()
    seen = seen if seen.ndim == 4 else seen[:, None]
    bias = amount[:, None, None] * formula(torch.where(seen, distance[:, None].double(), 7.0))
    blind = ~seen.any(-1, keepdim=True)
    scores = (q @ k.mT / math.sqrt(DIM) - bias).masked_fill(~seen & ~blind, -math.inf)
    wanted = scores.softmax(-1).masked_fill(blind, 0.0) @ v
    (expected,) = torch.autograd.grad(wanted.square().sum(), amount)
    torch.testing.assert_close(out, wanted.detach(), atol=1e-12, rtol=0)
    torch.testing.assert_close(gradient, expected, atol=1e-12, rtol=1e-10)


def test_a_bias_that_has_its_own_way_of_being_made_keeps_it(monkeypatch):
    """Sandwich makes one product of matrices of it, and beside learned angles too: it learns nothing itself."""
    formula = whorl.Sandwich.bias_of
    asked = []
    monkeypatch.setattr(whorl.Sandwich, "bias_of", lambda *given: asked.append(given) or formula(*given))
    both = whorl.Combined(whorl.Rope(head_dim=DIM, learnable=True), whorl.Sandwich(heads=HEADS))
    whorl.attention(*tokens(), encoding=both, impl="torch")
    assert not asked


@pytest.mark.parametrize("impl", ["auto", "torch"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.float32])
def test_a_mask_that_is_none_is_refused(dtype, impl):
    class Odd(whorl.NoPE):
        def mask(self, q_positions, k_positions):
            return (q_positions[:, None] >= k_positions).to(dtype)

    with pytest.raises(WhorlError, match=r"Odd\.mask: what it returns must be a bool tensor, True where a key may be"):
        whorl.attention(*tokens(), encoding=Odd(), impl=impl)


@pytest.mark.parametrize(("slopes", "scale"), [((1.0, 0.1), 0.002), ((300.0, 0.1), None)])
def test_slopes_too_steep_for_further_dimensions_in_half_are_a_bias_of_pairs(slopes, scale):
    q, k, v = tokens().half()
    got = whorl.attention(q, k, v, encoding=whorl.Alibi(heads=HEADS, slopes=slopes), scale=scale)
    factor = 1 if scale is None else scale * math.sqrt(DIM)
    bias = -torch.tensor(slopes, dtype=torch.float64)[:, None, None] * DISTANCE
    torch.testing.assert_close(got.double(), softmax_attention(factor * q, k, v, bias), atol=2e-3, rtol=0)


@pytest.mark.parametrize(
    "encoding",
    [
        whorl.Rope(head_dim=DIM, rotated_heads=(0, 1)),
        whorl.Rope(head_dim=DIM, rotated_heads=(2, 3)),
        whorl.ReRope(head_dim=DIM, window=3, rotated_heads=(0,)),
        whorl.XPos(head_dim=DIM, rotated_heads=(0,)),
        whorl.MRope(head_dim=DIM, sections=(2, 1, 1), rotated_heads=(0,)),
        whorl.Combined(whorl.Rope(head_dim=DIM, rotated_heads=(0, 1)), whorl.Alibi(heads=4)),
    ],
    ids=lambda encoding: f"{type(encoding).__name__}",
)
def test_heads_that_turn_alone_share_no_keys(encoding):
    """A query that turns would meet a key that does not."""
    q, k = torch.randn(1, 4, LENGTH, DIM), torch.randn(1, 2, LENGTH, DIM)
    places = {"positions": torch.arange(LENGTH).expand(3, -1)} if encoding.axes > 1 else {}
    for call in (whorl.attention, whorl.linear_attention):
        if call is whorl.linear_attention and not encoding.claims.linear_attention:
            continue
        with pytest.raises(WhorlError, match=r"rotated_heads=.* got 4 query heads and 2 key heads\. Repeat keys"):
            call(q, k, k, encoding=encoding, **places)
    with pytest.raises(WhorlError, match=r"rotated_heads=.* got 4 query heads and 2 key heads\. Repeat keys"):
        whorl.KVCache(encoding=encoding).attend(q, k, k)
    repeated = k.repeat_interleave(2, dim=1)
    assert whorl.attention(q, repeated, repeated, encoding=encoding, **places).isfinite().all()
