"""Bad input gets one clear WhorlError each: what is wrong, what was given, what to do."""

import math

import pytest
import torch

import whorl
from whorl import Linear, Llama3, LongRope, Ntk, NtkByParts, Proportional, Rope, TableCache, WhorlError, Yarn
from whorl.errors import invalid, shown, unknown

X = torch.zeros(2, 3, 5, 64)
P = torch.arange(5)


def rope(**settings):
    return lambda: Rope(**{"head_dim": 64, **settings})


def yarn(**settings):
    return lambda: Yarn(**{"factor": 4.0, "original_length": 4096, **settings})


def turn(x=X, positions=P, length=None, settings=None, **options):
    return lambda: Rope(head_dim=64, **(settings or {})).rotate(x, positions, length, **options)


def table_rotate(**options):
    tables = {"cos": torch.ones(5, 32), "sin": torch.zeros(5, 32)}
    return lambda: whorl.rotate(X, **{**tables, **options})


LISTS = {"short_factor": [1.0] * 32, "long_factor": [2.0] * 32, "original_length": 256}

CASES = {
    # sizes of the head
    "odd head": (rope(head_dim=33), "Rope: head_dim must be even, got 33. Rotary pairs dimensions; use head_dim=34 or"),
    "no head": (rope(head_dim=0), "Rope: head_dim must be positive, got 0."),
    "negative head": (rope(head_dim=-64), "Rope: head_dim must be positive, got -64."),
    "fractional head": (rope(head_dim=64.0), "Rope: head_dim must be an integer, got 64.0."),
    "head as bool": (rope(head_dim=True), "Rope: head_dim must be an integer, got True."),
    "head as text": (rope(head_dim="64"), "Rope: head_dim must be an integer, got '64'."),
    "head missing": (lambda: Rope(), "Rope: head_dim missing. Pass head_dim=…."),
    "head of one": (rope(head_dim=1), "Rope: head_dim must be even, got 1. Rotary pairs dimensions; use head_dim=2."),
    "odd rotary_dim": (rope(rotary_dim=33), "Rope: rotary_dim must be even and positive, got 33."),
    "no rotary_dim": (rope(rotary_dim=0), "Rope: rotary_dim must be even and positive, got 0."),
    "rotary_dim too large": (rope(rotary_dim=66), "Rope: rotary_dim=66 from dimension 0 does not fit head_dim=64."),
    "slice past the end": (rope(rotary_dim=32, slice=40), "rotary_dim=32 from dimension 40 does not fit head_dim=64"),
    "negative slice": (rope(rotary_dim=32, slice=-1), "slice must be 'leading', 'trailing' or an index from 0, got -1"),
    "unknown slice": (rope(slice="front"), "Rope: slice must be an integer, got 'front'"),
    "no rotated heads": (rope(rotated_heads=()), "rotated_heads must be distinct head indices from 0, got ()"),
    "repeated heads": (rope(rotated_heads=(1, 1)), "rotated_heads must be distinct head indices from 0, got (1, 1)"),
    "negative heads": (rope(rotated_heads=(-1,)), "rotated_heads must be distinct head indices from 0, got (-1,)"),
    # base and frequencies
    "NaN base": (rope(base=math.nan), "Rope: base must be finite, got nan."),
    "infinite base": (rope(base=math.inf), "Rope: base must be finite, got inf."),
    "base of one": (rope(base=1.0), "Rope: base must be larger than 1, got 1.0. RoFormer uses 10,000."),
    "negative base": (rope(base=-5.0), "Rope: base must be larger than 1, got -5.0."),
    "base as text": (rope(base="1e4"), "Rope: base must be a number, got '1e4'."),
    "base ignored": (
        rope(base=1e4, frequencies=[1.0] * 32),
        "base would be ignored, frequencies are given. Pass base=",
    ),
    "too few frequencies": (rope(frequencies=[1.0]), "frequencies must have rotary_dim / 2 = 32 numbers, got 1."),
    "NaN frequency": (rope(frequencies=[math.nan] * 32), "Rope: frequencies[0] must be finite, got nan."),
    "frequencies as text": (rope(frequencies="fast"), "Rope: frequencies must be a list of numbers, got 'fast'."),
    "base missing for NTK": (
        rope(frequencies=[1.0] * 32, scaling=Ntk(factor=2)),
        "Ntk: cannot scale frequencies given",
    ),
    "learnable in float32": (rope(learnable=True, angles="float32"), "learnable frequencies have no float32 mode"),
    # names
    "unknown setting": (rope(heads=8), "Rope: unknown setting 'heads'. Did you mean 'head_dim'?"),
    "unknown layout": (rope(layout="neox"), "Rope: unknown layout 'neox'. Expected one of: half, interleaved"),
    "misspelt layout": (rope(layout="interleave"), "Rope: unknown layout 'interleave'. Did you mean 'interleaved'?"),
    "unknown angles": (rope(angles="float64"), "Rope: unknown angles 'float64'. Did you mean 'float32'?"),
    "unknown encoding": (lambda: whorl.build("roep", head_dim=64), "unknown encoding 'roep'. Did you mean 'rope'?"),
    "unknown scaling": (
        lambda: whorl.from_dict({"name": "rope", "head_dim": 64, "scaling": {"name": "yran"}}),
        "unknown scaling 'yran'. Did you mean 'yarn'?",
    ),
    "unknown key in a dict": (
        lambda: whorl.from_dict({"name": "rope", "head_dim": 64, "theta": 1e4}),
        "Rope: unknown setting 'theta'.",
    ),
    "dict without a name": (lambda: whorl.from_dict({"head_dim": 64}), "a dict with the encoding's name needed"),
    "dict of another": (lambda: Yarn.from_dict({"name": "linear", "factor": 2}), "name must be 'yarn', got 'linear'"),
    "no name for a setting": (lambda: Linear(4.0), "Linear: settings are keyword-only, got 4.0 without a name."),
    "scaling by name": (rope(scaling="yarn"), "Rope: scaling must be a Scaling, got 'yarn'."),
    # scalings
    "factor below one": (
        lambda: Linear(factor=0.5),
        "Linear: factor must be at least 1, got 0.5. A factor of 4 serves",
    ),
    "negative factor": (lambda: Ntk(factor=-2), "Ntk: factor must be at least 1, got -2.0."),
    "NaN factor": (lambda: Linear(factor=math.nan), "Linear: factor must be finite, got nan."),
    "infinite factor": (yarn(factor=math.inf), "Yarn: factor must be finite, got inf."),
    "factor as bool": (lambda: Linear(factor=True), "Linear: factor must be a number, got True."),
    "factor missing": (lambda: Linear(), "Linear: factor missing. Pass factor=…."),
    "two missing": (lambda: Yarn(), "Yarn: factor, original_length missing. Pass factor=…, original_length=…."),
    "length zero": (yarn(original_length=0), "Yarn: original_length must be positive, got 0."),
    "fractional length": (yarn(original_length=4096.5), "Yarn: original_length must be an integer, got 4096.5."),
    "betas the wrong way": (
        yarn(beta_fast=1, beta_slow=32),
        "Yarn: beta_fast must be larger than beta_slow=32, got 1.0.",
    ),
    "beta zero": (yarn(beta_slow=0), "Yarn: beta_slow must be positive, got 0.0."),
    "truncate as number": (yarn(truncate=1), "Yarn: truncate must be True or False, got 1."),
    "extrapolation above one": (yarn(extrapolation_factor=2), "extrapolation_factor must be between 0 and 1, got 2.0."),
    "mscale alone": (yarn(mscale=1.0), "Yarn: mscale and mscale_all_dim come together; transformers ignores one alone"),
    "mscale ignored": (yarn(mscale=1.0, attention_factor=1.0), "attention_factor replaces mscale, so mscale would be"),
    "all_dim ignored": (
        yarn(mscale_all_dim=1.0, attention_factor=1.0),
        "attention_factor replaces mscale_all_dim unless",
    ),
    "softmax without all_dim": (yarn(scale_softmax=True), "Yarn: scale_softmax=True needs mscale_all_dim."),
    "negative attention factor": (yarn(attention_factor=-1), "Yarn: attention_factor must be positive, got -1.0."),
    "attention factor that float32 cannot square": (
        lambda: LongRope(**LISTS, attention_factor=1e30),
        "LongRope: the attention factor must be from 1e-12 to 1e+12, got 1e+30. It multiplies cos and sin",
    ),
    "attention factor that nothing divides by": (
        yarn(attention_factor=1e-30),
        "Yarn: the attention factor must be from 1e-12 to 1e+12, got 1e-30.",
    ),
    "weights of temperatures far apart": (
        yarn(mscale=1e30, mscale_all_dim=1.0),
        "Yarn: the attention factor must be from 1e-12 to 1e+12, got 1.2",
    ),
    "weights of temperatures beyond every float": (
        yarn(mscale=1.7e308, mscale_all_dim=1.7e308, factor=1e30),
        "Yarn: the attention factor must be from 1e-12 to 1e+12, got nan.",
    ),
    "softmax factor that float32 has not": (
        yarn(mscale=1e20, mscale_all_dim=1e20, scale_softmax=True),
        "Yarn: the softmax factor must be from 1e-24 to 1e+24, got 1.92",
    ),
    "both factors": (
        yarn(attention_factor=1e8, mscale_all_dim=1e5, scale_softmax=True),
        "Yarn: the softmax factor must be from 1e-08 to 1e+08, got 192",
    ),
    "factors inside resonance": (
        lambda: whorl.Resonance(inner=Yarn(factor=2, original_length=8, attention_factor=1e20)),
        "Yarn: the attention factor must be from",
    ),
    "powers that float32 has not": (
        lambda: Ntk(factor=2, variant="mixed", exponent=1e6),
        "Ntk: exponent must be at most 8, got 1000000.0.",
    ),
    "angles that float64 has not": (
        turn(settings={"frequencies": [1e300] * 32}),
        "Rope: angles are not finite with the frequencies of these settings",
    ),
    "angles that float32 has not": (
        turn(settings={"frequencies": [1e20] * 32, "angles": "float32"}),
        "Rope: angles are not finite with the frequencies of these settings",
    ),
    "a base that float32 has not": (
        rope(base=1e39, angles="float32"),
        "Rope: base must be at most 3.4e+38, got 1e+39. Use angles='exact'",
    ),
    "an axial base that float32 has not": (
        lambda: whorl.AxialRope(head_dim=64, base=1e39, angles="float32"),
        "AxialRope: base must be at most 3.4e+38, got 1e+39.",
    ),
    "nothing to interpolate": (
        rope(base=2.0, scaling=Yarn(factor=4, original_length=10**9)),
        "Yarn: every pair of base 2 makes more than 32 turns within original_length=1000000000",
    ),
    "exponent ignored": (lambda: Ntk(factor=2, exponent=0.6), "exponent belongs to variant='mixed' and only there"),
    "exponent missing": (lambda: Ntk(factor=2, variant="mixed"), "Pass variant='mixed', exponent=0.625"),
    "one pair for NTK": (
        lambda: Rope(head_dim=2, scaling=Ntk(factor=2)),
        "Ntk: rotary_dim must be at least 4, got 2. The base is raised to dim / (dim - 2)",
    ),
    "one pair for dynamic NTK": (
        lambda: Rope(head_dim=2, scaling=whorl.DynamicNtk(factor=2, original_length=8)),
        "DynamicNtk: rotary_dim must be at least 4, got 2.",
    ),
    "alpha above beta": (
        lambda: NtkByParts(factor=2, original_length=8, alpha=32, beta=1),
        "NtkByParts: beta must be larger than alpha=32.0, got 1.0.",
    ),
    "turns of the first form": (
        lambda: NtkByParts(factor=2, original_length=8, alpha=2, variant="v1"),
        "NtkByParts: variant='v1' has fixed turn counts. Leave alpha and beta out.",
    ),
    "longrope list too short": (
        rope(scaling=LongRope(**{**LISTS, "long_factor": [2.0] * 16}, factor=4)),
        "LongRope: long_factor must have rotary_dim / 2 = 32 numbers, got 16.",
    ),
    "longrope factor not positive": (
        lambda: LongRope(**{**LISTS, "short_factor": [1.0, 0.0]}, factor=4),
        "LongRope: short_factor[1] must be positive, got 0.0.",
    ),
    "longrope NaN": (
        lambda: LongRope(**{**LISTS, "short_factor": [math.nan]}, factor=4),
        "LongRope: short_factor[0] must be finite, got nan.",
    ),
    "longrope without factor": (lambda: LongRope(**LISTS), "exactly one of factor and attention_factor sets what"),
    "longrope with both": (lambda: LongRope(**LISTS, factor=2, attention_factor=1), "exactly one of factor and"),
    "llama3 the wrong way": (
        lambda: Llama3(factor=8, original_length=8192, low_freq_factor=4, high_freq_factor=1),
        "Llama3: high_freq_factor must be at least low_freq_factor=4, got 1.0.",
    ),
    "fraction above one": (lambda: Proportional(fraction=1.5), "fraction must be between 0 and 1, got 1.5."),
    "reverse factor": (lambda: whorl.factor_for(0, trained_length=8), "factor_for: length must be a positive integer"),
    # calls
    "negative served length": (turn(length=-1), "Rope: length must be a positive integer or None, got -1."),
    "fractional served length": (turn(length=4096.0), "Rope: length must be a positive integer or None, got 4096.0."),
    "positions as a list": (
        turn(positions=[0, 1, 2, 3, 4]),
        "positions must be a tensor, got [0, 1, 2, 3, 4]. Make one",
    ),
    "positions in bf16": (
        turn(positions=P.bfloat16()),
        "Rope: positions must be int32, int64, float32 or float64, got torch.bfloat16 of shape (5,). Half precision",
    ),
    "positions as bools": (turn(positions=P > 2), "positions must be int32, int64, float32 or float64, got torch.bool"),
    "one position too few": (turn(positions=P[:4]), "rotate: tables are for 4 positions, x has 5 in order 'bhld'."),
    "positions of another batch": (
        turn(positions=P.expand(3, 5)),
        "rotate: tables are for a batch of 3, x has shape (2, 3, 5, 64).",
    ),
    "positions of rank 3": (turn(positions=P.view(1, 1, 5)), "positions must be of shape (length,) or (batch, length)"),
    "positions of rank 0": (turn(positions=torch.tensor(3)), "positions must be of shape (length,) or (batch, length)"),
    "positions elsewhere": (
        turn(positions=P.to("meta")),
        "positions are on meta and the tensor on cpu. Make them there",
    ),
    "another head size": (turn(x=X[..., :32]), "Rope: head_dim is 64, got a tensor with 32 dimensions per head."),
    "integers to rotate": (
        turn(x=X.long()),
        "Rope: x must be a floating tensor, got torch.int64 of shape (2, 3, 5, 64).",
    ),
    "unknown order": (turn(order="bldh"), "Rope: unknown order 'bldh'. Did you mean 'blhd'?"),
    "rank against order": (turn(order="thd"), "x must be of shape (tokens, heads, head_dim) for order='thd'"),
    "order mistaken": (turn(order="blhd"), "rotate: tables are for 5 positions, x has 3 in order 'blhd'."),
    "heads that are not there": (
        turn(settings={"rotated_heads": (3,)}),
        "rotate: heads must be between 0 and 2, got (3,)",
    ),
    "unknown layout to rotate": (table_rotate(layout="neox"), "rotate: unknown layout 'neox'."),
    "tables of two shapes": (
        table_rotate(sin=torch.zeros(5, 16)),
        "cos and sin must have one shape (…, length, pairs)",
    ),
    "tables too wide": (table_rotate(start=2), "tables of 32 pairs from dimension 2 need 66 dimensions, x has 64."),
    "uneven blocks": (table_rotate(blocks=3), "rotate: blocks must be a divisor of the 32 pairs, got 3."),
    "tables elsewhere": (
        table_rotate(cos=torch.ones(5, 32, device="meta"), sin=torch.ones(5, 32, device="meta")),
        "rotate: tables are on meta and x on cpu. Make the positions on the device of x.",
    ),
    # caches
    "unknown policy": (
        lambda: TableCache("lazy"),
        "TableCache: unknown policy 'lazy'. Expected one of: full, hybrid",
    ),
    "negative cache": (lambda: TableCache(max_bytes=-1), "TableCache: max_bytes must be a positive integer, got -1."),
    "cache length": (lambda: TableCache(length=1.5), "TableCache: length must be a positive integer, got 1.5."),
    "no cache": (lambda: whorl.use_table_cache(None), "use_table_cache: cache must be a TableCache, got None."),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_named(case):
    call, message = CASES[case]
    with pytest.raises(WhorlError) as caught:
        call()
    assert message in str(caught.value)


def test_there_are_enough_cases():
    assert len(CASES) >= 60


def test_a_whorl_error_is_a_value_error():
    assert issubclass(WhorlError, ValueError)


def test_words_of_a_message():
    assert str(invalid("Rope", "base", "positive", -1)) == "Rope: base must be positive, got -1."
    assert str(invalid("Rope", "base", "positive", -1, "Try 2.")) == "Rope: base must be positive, got -1. Try 2."
    assert str(unknown("encoding", "alibbi", ["alibi", "rope"])) == "unknown encoding 'alibbi'. Did you mean 'alibi'?"
    assert str(unknown("encoding", "x", ["b", "a"])) == "unknown encoding 'x'. Expected one of: a, b."
    assert shown(torch.zeros(2, 3)) == "torch.float32 of shape (2, 3)"
    assert len(shown("x" * 500)) == 80


def test_nothing_is_left_half_made():
    """A config that fails is not registered, cached or changed."""
    before = Rope(head_dim=64)
    with pytest.raises(WhorlError):
        before.config.replace(base=math.nan)
    assert before.config == Rope(head_dim=64).config
    with pytest.raises(AttributeError):
        before.config.base = 5.0
