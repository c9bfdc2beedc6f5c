"""Bad input to the encodings with terms on scores, scales, masks and remaps: one clear WhorlError each."""

import math

import pytest
import torch

import whorl
from whorl import WhorlError

Q = torch.zeros(1, 2, 5, 8)
P = torch.arange(5)
S = torch.zeros(1, 2, 5, 5)


def make(cls, **settings):
    sizes = {"heads": 2, "head_dim": 8, "width": 6}
    own = {name: value for name, value in sizes.items() if name in cls.Config.fields()}
    return lambda: cls(**own | settings)


def adjust(cls, scores=S, q=Q, k=Q, i=P, j=P, hidden=None, settings=None):
    return lambda: make(cls, **(settings or {}))().adjust_scores(scores, q, k, i, j, hidden, scale=1.0)


def output(out=Q, weights=S, i=P, j=P):
    return lambda: make(whorl.Shaw)().adjust_output(out, weights, Q, i, j)


def scale(cls, q=Q, i=P):
    return lambda: make(cls)().transform_qk(q, Q, i, P)


def xpos(q=Q, k=Q, i=P, j=P, **settings):
    return lambda: make(whorl.XPos, **settings)().transform_qk(q, k, i, j)


GATES = torch.zeros(1, 2, 5)

CASES = {
    # settings
    "shaw without head_dim": (lambda: whorl.Shaw(), "Shaw: head_dim missing. Pass head_dim=…."),
    "clip zero": (make(whorl.Shaw, clip=0), "Shaw: clip must be positive, got 0."),
    "clip fractional": (make(whorl.Shaw, clip=1.5), "Shaw: clip must be an integer, got 1.5."),
    "values as number": (make(whorl.Shaw, values=1), "Shaw: values must be True or False, got 1."),
    "unknown setting": (make(whorl.Shaw, heads=8), "Shaw: unknown setting 'heads'. Did you mean 'head_dim'?"),
    "xl heads": (make(whorl.TransformerXL, heads=0), "TransformerXL: heads must be positive, got 0."),
    "xl clamp": (make(whorl.TransformerXL, clamp=-1), "TransformerXL: clamp must be positive, got -1."),
    "xl width": (make(whorl.TransformerXL, width=1), "TransformerXL: width must be at least 2, got 1. A code has a"),
    "xl base": (make(whorl.TransformerXL, base=1), "TransformerXL: base must be larger than 1, got 1.0. Transformer-"),
    "xl NaN base": (make(whorl.TransformerXL, base=math.nan), "TransformerXL: base must be finite, got nan."),
    "deberta span": (make(whorl.Deberta, span=1), "Deberta: span must be at least 2, got 1. DeBERTa version 1 has 512"),
    "deberta distance": (
        make(whorl.Deberta, span=64, max_distance=33),
        "Deberta: max_distance must be larger than span / 2 + 1 = 33, got 33. The logarithmic buckets lie between",
    ),
    "deberta no position": (
        make(whorl.Deberta, content_to_position=False, position_to_content=None),
        "Deberta: content_to_position=False and position_to_content=None leave no position. Switch one of them on.",
    ),
    "deberta unknown form": (
        make(whorl.Deberta, position_to_content="papper"),
        "Deberta: unknown position_to_content 'papper'. Did you mean 'paper'?",
    ),
    "cope positions": (make(whorl.Cope, max_position=1), "Cope: max_position must be at least 2, got 1. One position"),
    "cope head": (make(whorl.Cope, head_dim=0), "Cope: head_dim must be positive, got 0."),
    "gate width": (make(whorl.ForgettingGate, width=0), "ForgettingGate: width must be positive, got 0."),
    "gate bias": (make(whorl.ForgettingGate, bias=math.inf), "ForgettingGate: bias must be finite, got inf."),
    "xpos base": (make(whorl.XPos, scale_base=0), "XPos: scale_base must be positive, got 0.0. The paper uses 512."),
    "xpos gamma": (make(whorl.XPos, gamma=-0.4), "XPos: gamma must be positive, got -0.4. The paper uses 0.4."),
    "xpos odd head": (make(whorl.XPos, head_dim=7), "XPos: head_dim must be even, got 7. Rotary pairs dimensions"),
    "log-n length": (make(whorl.LogN, trained_length=1), "LogN: trained_length must be at least 2, got 1. The factor"),
    "ssmax heads": (make(whorl.SSMax, heads=-1), "SSMax: heads must be positive, got -1."),
    "llama4 floor": (make(whorl.Llama4Temperature, floor_scale=0), "floor_scale must be positive, got 0."),
    "window size": (make(whorl.Window, size=0), "Window: size must be positive, got 0. A window of 1 is the token"),
    "sinks size": (make(whorl.Sinks, size=-3), "Sinks: size must be positive, got -3."),
    "sinks count": (make(whorl.Sinks, count=0), "Sinks: count must be positive, got 0. Without sinks use Window."),
    "rerope window": (make(whorl.ReRope, window=0), "ReRope: window must be positive, got 0. A quarter to a half"),
    "rerope odd head": (make(whorl.ReRope, head_dim=7), "ReRope: head_dim must be even, got 7."),
    "leaky factor": (
        make(whorl.LeakyReRope, factor=0.5),
        "LeakyReRope: factor must be at least 1, got 0.5. With 1 it is RoPE, without bound ReRoPE.",
    ),
    "group": (make(whorl.SelfExtend, group=0), "SelfExtend: group must be positive, got 0. The paper uses 1024 and 4"),
    "group has no other side": (
        make(whorl.SelfExtend, bidirectional=True),
        "SelfExtend: unknown setting 'bidirectional'.",
    ),
    # positions
    "fractional positions to a table": (
        adjust(whorl.Shaw, i=P.double()),
        "Shaw: positions must be int32 or int64 of shape (length,) or (batch, length), got torch.float64 of shape (5",
    ),
    "fractional positions to buckets": (adjust(whorl.Deberta, j=P.float()), "Deberta: positions must be int32 or int6"),
    "fractional positions to a clamp": (
        adjust(whorl.TransformerXL, i=P.float(), settings={"clamp": 3}),
        "TransformerXL: positions must be int32 or int64 of shape (length,) or (batch, length)",
    ),
    "positions as a list": (adjust(whorl.Shaw, i=[0, 1, 2, 3, 4]), "got [0, 1, 2, 3, 4]. Make them with whorl.positi"),
    "positions in bf16": (
        lambda: whorl.Window().mask(P.bfloat16(), P),
        "Window: positions must be int32, int64, float32 or float64 of shape (length,) or (batch, length), got",
    ),
    "positions of rank 3": (lambda: make(whorl.ReRope)().branches(P[None, None], P), "ReRope: positions must be int32"),
    "one position too few": (
        adjust(whorl.Shaw, i=P[:4]),
        "Shaw: positions are for 4 queries, there are 5. Pass one position per token.",
    ),
    "one key position too many": (adjust(whorl.Deberta, j=torch.arange(6)), "positions are for 6 keys, there are 5."),
    "output positions": (output(j=P[:3]), "Shaw: positions are for 3 keys, there are 5."),
    "query positions": (scale(whorl.LogN, i=P[:4]), "LogN: positions are for 4 queries, there are 5."),
    "positions to scale": (
        scale(whorl.Llama4Temperature, i=P.bool()),
        "Llama4Temperature: positions must be int32, int64, float32 or float64",
    ),
    "xpos positions": (xpos(i=P.half()), "XPos: positions must be int32, int64, float32 or float64, got torch.float16"),
    "xpos too many positions": (xpos(i=torch.arange(6)), "rotate: tables are for 6 positions, x has 5"),
    # tensors
    "another head size": (adjust(whorl.Shaw, q=Q[..., :4]), "Shaw: head_dim is 8, got a tensor with 4 dimensions per"),
    "another value size": (
        output(out=Q[..., :4]),
        "the table of the values has head_dim=8 columns, the values have 4.",
    ),
    "another number of heads": (
        adjust(whorl.TransformerXL, k=Q[:, :1]),
        "TransformerXL: heads is 2, got a tensor with 1 heads. Build TransformerXL with the heads of the queries, and",
    ),
    "deberta heads": (
        adjust(whorl.Deberta, q=torch.zeros(1, 3, 5, 8)),
        "Deberta: heads is 2, got a tensor with 3 heads",
    ),
    "xl head size": (
        adjust(whorl.TransformerXL, k=Q[..., :6]),
        "TransformerXL: head_dim is 8, got a tensor with 6 dim",
    ),
    "cope head size": (
        adjust(whorl.Cope, q=Q[..., :2]),
        "Cope: head_dim is 8, got a tensor with 2 dimensions per head.",
    ),
    "ssmax heads of q": (
        scale(whorl.SSMax, q=Q[:, :1]),
        "SSMax: q must be a floating tensor of shape (batch, heads=2, length, head_dim),",
    ),
    "integers to scale": (
        scale(whorl.LogN, q=Q.long()),
        "LogN: q must be a floating tensor of shape (batch, heads, len",
    ),
    "flat q to scale": (
        scale(whorl.SSMax, q=Q[0, 0]),
        "SSMax: q must be a floating tensor of shape (batch, heads, leng",
    ),
    "xpos integers": (xpos(q=Q.long()), "XPos: x must be a floating tensor, got torch.int64 of shape (1, 2, 5, 8)."),
    "xpos head size": (xpos(k=Q[..., :4]), "XPos: head_dim is 8, got a tensor with 4 dimensions per head."),
    "cope across": (
        adjust(whorl.Cope, scores=S[..., :3], k=Q[:, :, :3], j=P[:3]),
        "Cope: 5 queries cannot be the last of 3 keys, and gates are counted up to the query. Use causal=False for",
    ),
    # what the forgetting gate keeps
    "no gates": (
        adjust(whorl.ForgettingGate),
        "ForgettingGate: hidden must be what remember() kept of all keys, got No",
    ),
    "gates of too few tokens": (
        adjust(whorl.ForgettingGate, hidden=GATES[..., :4]),
        "scores of 2 heads and 5 keys need gates of shape (batch, heads=2, 5), got (1, 2, 4). Keep what remember() giv",
    ),
    "gates of other heads": (
        adjust(whorl.ForgettingGate, hidden=GATES[:, :1]),
        "need gates of shape (batch, heads=2, ",
    ),
    "gates across": (
        adjust(whorl.ForgettingGate, scores=S[..., :3], hidden=GATES[..., :3]),
        "ForgettingGate: 5 queries cannot be the last of 3 keys. Gates lie between tokens of one text",
    ),
    "hidden of another width": (
        lambda: make(whorl.ForgettingGate)().remember(torch.zeros(1, 5, 7)),
        "ForgettingGate: hidden must be of shape (batch, length, width=6), got torch.float32 of shape (1, 5, 7). Pass",
    ),
    "hidden by head": (
        lambda: make(whorl.ForgettingGate)().remember(Q),
        "hidden must be of shape (batch, length, width",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_named(case):
    call, message = CASES[case]
    with pytest.raises(WhorlError) as caught:
        call()
    assert message in str(caught.value), str(caught.value)
    assert "\n" not in str(caught.value)


def test_there_are_enough_cases():
    assert len(CASES) >= 60
