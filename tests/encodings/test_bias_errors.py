"""Bad input to input and bias encodings gets one clear WhorlError each, as in test_errors.py."""

import math

import pytest
import torch

import whorl
from whorl import T5, Alibi, Fire, Kerple, Learned, NoPE, Sandwich, Sinusoidal, WhorlError
from whorl.encodings.sinusoidal import shift_matrix

P = torch.arange(5)
X = torch.zeros(2, 5, 8)


def alibi(**settings):
    return lambda: Alibi(**{"heads": 8, **settings})


def t5(**settings):
    return lambda: T5(**{"heads": 8, **settings})


def sinusoidal(**settings):
    return lambda: Sinusoidal(**{"width": 8, **settings})


def added(x=X, positions=P, encoding=None):
    return lambda: (encoding or Learned(width=8, length=64)).add_to_input(x, positions)


def bias(q_positions=P, k_positions=P, encoding=None):
    return lambda: (encoding or Alibi(heads=2)).score_bias(q_positions, k_positions)


def fold(dtype=torch.float32, scale=1.0, **settings):
    return lambda: Alibi(**{"heads": 2, **settings}).fold(P, P, dtype, scale)


SHAPES = "positions must be int32, int64, float32 or float64 of shape (length,) or (batch, length)"

CASES = {
    # nothing to set
    "a setting for NoPE": (lambda: NoPE(heads=8), "NoPE: unknown setting 'heads'."),
    # learned
    "no width": (lambda: Learned(width=0, length=8), "Learned: width must be positive, got 0."),
    "negative length": (lambda: Learned(width=8, length=-1), "Learned: length must be positive, got -1."),
    "length missing": (lambda: Learned(width=8), "Learned: length missing. Pass length=…."),
    "past the table": (
        added(positions=P + 60),
        "Learned: positions must be between 0 and 63, got 64. A longer table is extend(65).",
    ),
    "before the table": (
        added(positions=P - 1),
        "Learned: positions must be between 0 and 63, got -1. Shift padded positions to 0.",
    ),
    "row of a fraction": (
        added(positions=P.float()),
        "Learned: positions must be int32 or int64, got torch.float32 of shape (5,). A table has a row for whole",
    ),
    "another width": (
        added(x=X[..., :6]),
        "Learned: width is 8, got embeddings of 6 dimensions. Build Learned with width=6,",
    ),
    "whole numbers to add to": (
        added(x=X.long()),
        "Learned: x must be a floating tensor of shape (…, length, width), got torch.int64",
    ),
    "one vector": (added(x=X[0, 0]), "x must be a floating tensor of shape (…, length, width), got torch.float32"),
    "a position too few": (
        added(positions=P[:4]),
        "positions must be of shape (length,) or (batch, length) for x of shape (2, 5, 8), got (4,). Each token needs",
    ),
    "positions of rank 3": (
        added(positions=P.view(1, 1, 5)),
        "positions must be of shape (length,) or (batch, length) for x of shape (2, 5, 8), got (1, 1, 5).",
    ),
    "positions of another batch": (
        added(positions=P.expand(3, 5)),
        "Learned: positions are for a batch of 3, x has shape (2, 5, 8). Pass x as (batch, length, width)",
    ),
    "positions as a list": (added(positions=[0, 1]), "Learned: positions must be a tensor, got [0, 1]. Make one with"),
    "positions elsewhere": (
        added(positions=P.to("meta")),
        "Learned: positions are on meta and x on cpu. Make them there: whorl.positions(5, device='cpu').",
    ),
    "a shorter extension": (
        lambda: Learned(width=8, length=64).extend(32),
        "Learned.extend: new_length must be an integer of at least length=64, got 32.",
    ),
    "a fractional extension": (
        lambda: Learned(width=8, length=64).extend(128.0),
        "Learned.extend: new_length must be an integer of at least length=64, got 128.0.",
    ),
    "unknown extension": (
        lambda: Learned(width=8, length=64).extend(128, mode="liner"),
        "Learned.extend: unknown mode 'liner'. Did you mean 'linear'?",
    ),
    # sinusoidal
    "no width of a code": (sinusoidal(width=0), "Sinusoidal: width must be positive, got 0."),
    "base of one": (sinusoidal(base=1), "Sinusoidal: base must be larger than 1, got 1.0. The paper uses 10,000."),
    "NaN base": (sinusoidal(base=math.nan), "Sinusoidal: base must be finite, got nan."),
    "unknown order": (
        sinusoidal(order="interleave"),
        "Sinusoidal: unknown order 'interleave'. Did you mean 'interleav",
    ),
    "code times zero": (sinusoidal(scale=0), "Sinusoidal: scale must be other than 0, got 0.0. For no position at all"),
    "infinite scale": (sinusoidal(scale=math.inf), "Sinusoidal: scale must be finite, got inf."),
    "codes of another width": (
        added(encoding=Sinusoidal(width=6)),
        "Sinusoidal: width is 6, got embeddings of 8 dimensions.",
    ),
    "code of half-precision positions": (
        added(positions=P.bfloat16(), encoding=Sinusoidal(width=8)),
        "Sinusoidal: positions must be int32, int64, float32 or float64, got torch.bfloat16 of shape (5,).",
    ),
    "odd shift": (
        lambda: shift_matrix(7, 1),
        "shift_matrix: width must be even and positive, got 7. A sine without its",
    ),
    "shift in an unknown order": (lambda: shift_matrix(8, 1, order="half"), "shift_matrix: unknown order 'half'."),
    # ALiBi
    "no heads": (alibi(heads=0), "Alibi: heads must be positive, got 0."),
    "heads missing": (lambda: Alibi(), "Alibi: heads missing. Pass heads=…."),
    "heads as text": (alibi(heads="8"), "Alibi: heads must be an integer, got '8'."),
    "misspelt slopes": (alibi(slopes="pres"), "Alibi: unknown slopes 'pres'. Did you mean 'press'?"),
    "slopes too few": (alibi(slopes=[1.0, 0.5]), "Alibi: slopes must have heads = 8 numbers, got 2."),
    "slopes too many for halves": (
        alibi(slopes=[1.0] * 8, form="split"),
        "Alibi: slopes must have heads / 2 = 4 numbers, got 8.",
    ),
    "negative slope": (alibi(heads=2, slopes=[1, -1]), "Alibi: slopes must be zero or positive, got (1.0, -1.0)."),
    "NaN slope": (alibi(heads=1, slopes=[math.nan]), "Alibi: slopes[0] must be finite, got nan."),
    "one slope for all": (alibi(slopes=0.5), "Alibi: slopes must be a list of numbers, got 0.5."),
    "unknown form": (alibi(form="symetric"), "Alibi: unknown form 'symetric'. Did you mean 'symmetric'?"),
    "odd heads to split": (alibi(heads=7, form="split"), "Alibi: heads must be even for form='split', got 7. Half of"),
    "offset ignored": (
        alibi(offset=1.0),
        "Alibi: offset belongs to form='offset' and only there, got form='causal' and offset=1.0.",
    ),
    "offset missing": (alibi(form="offset"), "offset belongs to form='offset' and only there, got form='offset' and"),
    "scale of zero": (alibi(scale=0), "Alibi: scale must be positive, got 0.0."),
    "unknown rounding": (alibi(rounding="bf16"), "Alibi: unknown rounding 'bf16'. Did you mean 'hf_bf16'?"),
    "rounding of another form": (
        alibi(rounding="hf_bf16", form="symmetric"),
        "rounding='hf_bf16' is what transformers computes, with form='causal' and slopes='press', got form='symmetric'",
    ),
    "rounding of other slopes": (alibi(rounding="hf_falcon", slopes="geometric"), "Use rounding='exact'."),
    "a bias per key that is none": (
        lambda: Alibi(heads=2, form="symmetric").key_bias(P),
        "Alibi.key_bias: form must be 'causal', got 'symmetric'. A bias per key knows nothing of the query.",
    ),
    "folding a form": (
        fold(form="split"),
        "Alibi.fold: only the exact causal bias is a product, got form='split' and rounding='exact'. Use score_bias.",
    ),
    "folding into integers": (
        fold(dtype=torch.int64),
        "Alibi.fold: dtype must be float64, float32, bfloat16 or float16, got torch.int64.",
    ),
    "folding what float16 cannot hold": (
        fold(dtype=torch.float16, scale=0.125, slopes=[1.0, 40.0]),
        "Alibi.fold: 256 slope / scale is 81920, past torch.float16. Use bfloat16, or score_bias.",
    ),
    # T5
    "one bucket": (t5(buckets=1), "T5: buckets must be at least 2, got 1."),
    "odd buckets for two sides": (
        t5(buckets=31, bidirectional=True),
        "T5: buckets must be even and at least 4, got 31. Each side has half of them.",
    ),
    "two buckets for two sides": (t5(buckets=2, bidirectional=True), "T5: buckets must be even and at least 4, got 2."),
    "no room for a logarithm": (
        t5(max_distance=16),
        "T5: max_distance must be larger than 16, got 16. So many distances have a bucket of their own",
    ),
    "length of zero": (t5(length=0), "T5: length must be positive or None, got 0."),
    "fractional distance": (t5(max_distance=128.5), "T5: max_distance must be an integer, got 128.5."),
    "scaled as a number": (t5(scaled=1), "T5: scaled must be True or False, got 1."),
    # KERPLE, FIRE, Sandwich
    "unknown kernel": (
        lambda: Kerple(heads=2, variant="logg"),
        "Kerple: unknown variant 'logg'. Did you mean 'log'?",
    ),
    "no heads for a kernel": (lambda: Kerple(heads=-1), "Kerple: heads must be positive, got -1."),
    "no units": (lambda: Fire(heads=2, hidden=0), "Fire: hidden must be positive, got 0."),
    "no threshold": (lambda: Fire(heads=2, length=0), "Fire: length must be positive, got 0."),
    "odd codes": (lambda: Sandwich(heads=2, code_width=7), "Sandwich: code_width must be even and positive, got 7."),
    "width of the model": (
        lambda: Sandwich(heads=2, width=8),
        "Sandwich: unknown setting 'width'. Did you mean 'code_w",
    ),
    "base below one": (lambda: Sandwich(heads=2, base=0.5), "Sandwich: base must be larger than 1, got 0.5."),
    # positions of a bias
    "positions of a grid": (bias(q_positions=P.view(1, 1, 5)), f"Alibi: {SHAPES}, got torch.int64 of shape (1, 1, 5)."),
    "keys in half precision": (
        bias(k_positions=P.half()),
        f"Alibi: {SHAPES}, got torch.float16 of shape (5,). Half precision",
    ),
    "keys as a number": (bias(k_positions=5), f"Alibi: {SHAPES}, got 5. Make them with whorl.positions(length)."),
    "queries of FIRE as bools": (bias(q_positions=P > 2, encoding=Fire(heads=2)), f"Fire: {SHAPES}, got torch.bool"),
    "keys of Sandwich as a list": (bias(k_positions=[1], encoding=Sandwich(heads=2)), f"Sandwich: {SHAPES}, got [1]."),
    "key form of a list": (lambda: Alibi(heads=2).key_bias([1]), f"Alibi.key_bias: {SHAPES}, got [1]."),
    # names
    "misspelt name": (lambda: whorl.build("alibbi", heads=2), "unknown encoding 'alibbi'. Did you mean 'alibi'?"),
    "unknown key in a dict": (
        lambda: whorl.from_dict({"name": "kerple", "heads": 2, "kernel": "log"}),
        "Kerple: unknown setting 'kernel'.",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_named(case):
    call, message = CASES[case]
    with pytest.raises(WhorlError) as caught:
        call()
    assert message in str(caught.value)


def test_there_are_enough_cases():
    assert len(CASES) >= 60
