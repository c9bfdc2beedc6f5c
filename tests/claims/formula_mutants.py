"""Formulas with one word of theirs changed, each for the claim that must turn red; and what turns claims that fail.

A claim that is known to be wrong turns red where a mutant makes it right.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from typing import Any

import torch

from claims.mutants import MUTANTS, Mutant, Patch, everywhere, mutant, with_codes, with_ladder
from whorl.attend.softmax import attention
from whorl.dialects.families import ALIBI, SINUSOIDAL, UNROTATED
from whorl.encodings import (
    alibi,
    axial_rope,
    cope,
    deberta,
    fire,
    forgetting_gate,
    kerple,
    learned,
    masks,
    mixed_rope,
    mrope,
    position_remaps,
    sandwich,
    score_scaling,
    shaw,
    sinusoidal,
    t5,
    transformer_xl,
    xpos,
)
from whorl.encodings.axial_rope import AxialRope
from whorl.encodings.rope import Rope
from whorl.encodings.rotary import Rotary
from whorl.rotary import rotation
from whorl.rotary.frequencies import Ladder
from whorl.rotary.scalings import (
    dynamic_ntk,
    linear,
    llama3,
    longrope,
    ntk,
    ntk_by_parts,
    proportional,
    ramp,
    resonance,
    temperature,
)


def reworded(patch: Patch, function: Callable[..., Any], old: str, new: str) -> None:
    """Changes one text in a function, wherever it is already imported."""
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(old) == 1, f"{function.__qualname__} is another by now: choose another text to change"
    made: dict[str, Any] = {}
    exec(f"from __future__ import annotations\n{source.replace(old, new)}", function.__globals__, made)
    patch.setattr(function, "__code__", made[function.__name__].__code__)


# What is wrong, the claim, the function, its text and what takes its place.
REWORDED: tuple[tuple[str, str, Callable[..., Any], str, str], ...] = (
    ("sines and cosines swapped", "sinusoidal", sinusoidal.sinusoidal, "stack((sin, cos)", "stack((cos, sin)"),
    ("the step of a learned extension", "learned", learned.interpolate, "max(new_length - 1, 1)", "max(new_length, 1)"),
    ("a tile without its last row", "learned", learned.tile, "% table.shape[0]", "% (table.shape[0] - 1)"),
    ("half a pair turned the other way", "rope", rotation._turn, "b * cos + a * sin", "b * cos - a * sin"),
    (
        "pixtral's axes swapped", "axial_rope", axial_rope.axial_frequencies,
        "(whole[0::2], whole[1::2])", "(whole[1::2], whole[0::2])",
    ),
    (
        "columns that turn back", "mixed_rope", mixed_rope.mixed_angles,
        "row * of_rows + column", "row * of_rows - column",
    ),
    ("sections of M-RoPE in another order", "mrope", mrope.chunked, "enumerate(sections)", "enumerate(sections[::-1])"),
    ("rows and columns swapped in Ernie's order", "mrope", mrope.ernie, "(ROW, COLUMN)", "(COLUMN, ROW)"),
    ("xpos with another gamma", "xpos", xpos.log_zeta, "+ gamma)", "+ gamma + 0.1)"),
    ("rerope a step short", "rerope", position_remaps.rerope_far, "q_positions, window)", "q_positions, window - 1)"),
    ("leaky steps from zero", "leaky_rerope", position_remaps.leaky_far, "(window - window / factor)", "window"),
    (
        "groups without the window's own", "self_extend", position_remaps.self_extend_far,
        "window - window // group", "window",
    ),
    ("log n of the last key", "log_n", score_scaling._log_keys, "+ 1.0", "+ 2.0"),
    ("ssmax of another logarithm", "ssmax", score_scaling._log_keys, "torch.log(", "torch.log2("),
    (
        "a temperature one step early", "llama4_temperature", score_scaling.llama4_temperature,
        "(min=0.0) + first", "(min=0.0) + first + 1",
    ),
    ("alibi with the sign of its offset changed", "alibi", alibi.offset_bias, "distance + offset", "distance - offset"),
    (
        "falcon's slopes not rounded", "alibi", alibi.key_form,
        "round_to_bfloat16(slope), round_to_bfloat16(position)", "slope, round_to_bfloat16(position)",
    ),
    ("t5 sides alike", "t5", t5.buckets_of, "(signed < 0)", "(signed > 0)"),
    ("kerple's product a sum", "kerple", kerple.log_kernel, "a * distance", "a + distance"),
    ("fire with the smaller reach", "fire", fire.progress, "torch.maximum", "torch.minimum"),
    ("sandwich without its first wave", "sandwich", sandwich.Sandwich.weights, "+ 1)", "+ 2)"),
    (
        "shaw's value table mirrored", "shaw", shaw.Shaw.adjust_output,
        "value_term(weights, self.value_table, index)", "value_term(weights, self.value_table.flip(0), index)",
    ),
    (
        "transformer xl without its second bias", "transformer_xl", transformer_xl.TransformerXL.add_terms,
        "q.to(wide) + v[:, None]", "q.to(wide)",
    ),
    ("deberta's row one too high", "deberta", deberta.row_index, "place + span", "place + span - 1"),
    ("position to content swapped", "deberta", deberta.Deberta.add_terms, '== "code"', '== "paper"'),
    ("cope at whole positions", "cope", cope.interpolated, "(positions - low)", "0 * (positions - low)"),
    (
        "gates the other way", "forgetting_gate", forgetting_gate._differences,
        "total[..., None, :]", "2 * total[..., None, :]",
    ),
    ("a window one wider", "window", masks.within, "< size", "<= size"),
    ("a sink's window one wider", "sinks", masks.within, "< size", "<= size"),
    ("interpolation by more", "rope+linear", linear.Linear.frequencies, "/ self.factor", "/ (self.factor + 1)"),
    ("ntk with another exponent", "rope+ntk", ntk.ntk_base, "(dim - 2)", "dim"),
    (
        "dynamic ntk that starts from one", "rope+dynamic_ntk", dynamic_ntk.DynamicNtk.frequencies,
        "- (self.factor - 1)", "- self.factor + 2",
    ),
    (
        "a ramp of turns from zero", "rope+ntk_by_parts", ntk_by_parts.NtkByParts.frequencies,
        "/ (beta - alpha)", "/ beta",
    ),
    (
        "the first ramp upside down", "rope+ntk_by_parts", ntk_by_parts.NtkByParts._blend,
        "slow * (1 - keep) + fast * keep", "slow * keep + fast * (1 - keep)",
    ),
    (
        "a doubled step too far", "rope+dynamic_ntk", dynamic_ntk.DynamicNtk.served,
        "while step < length", "while step <= length",
    ),
    (
        "a pair at the edge kept", "rope+llama3", llama3.Llama3.frequencies,
        "return torch.where(between, plain / self.factor, scaled)", "return scaled",
    ),
    ("llama3's band from elsewhere", "rope+llama3", llama3.Llama3.frequencies, "/ turn - self", "/ turn + self"),
    ("longrope's factor without one", "rope+longrope", longrope.LongRope.factors, "1 + math.log", "math.log"),
    ("a ramp a pair late", "rope+yarn", ramp.ramp, "- low) / width", "- low - 1) / width"),
    ("another temperature", "rope+yarn", temperature.temperature, "0.1 *", "0.2 *"),
    ("resonance that rounds down", "rope+resonance", resonance.whole_wavelengths, ".round()", ".floor()"),
    (
        "a pair more that turns", "rope+proportional", proportional.Proportional.frequencies,
        "ladder.dim // 2)\n", "ladder.dim // 2) + 1\n",
    ),
)  # fmt: skip

for name, claim, function, old, new in REWORDED:
    MUTANTS[name] = Mutant(
        name, lambda patch, given=(function, old, new): reworded(patch, *given), (f"{claim}.formula",)
    )


@mutant("transformer-xl.term", "transformer_xl.formula")
def transformer_xl_terms_that_are_not_scaled(patch: Patch) -> None:
    reworded(patch, transformer_xl.TransformerXL.add_terms, "scale * (content + position)", "(content + position)")


@mutant("forgetting.alibi", "forgetting_gate.formula")
def gates_that_are_scaled(patch: Patch) -> None:
    own = forgetting_gate.ForgettingGate.add_terms
    reworded(patch, own, "scores + forgotten(", "scores + pairs.scale * forgotten(")


# -- claims that fail, and depend -------------------------------------------------------------------------------------


@mutant("note.kronecker")
def an_axial_rotation_that_is_a_product(patch: Patch) -> None:
    def rotate(self: Any, x: Any, positions: Any, *given: Any, **options: Any) -> Any:
        one = Rope(head_dim=4, base=100.0, layout="interleaved")
        turn = [one.rotate(torch.eye(4, dtype=x.dtype), ids[:1].expand(4)).mT for ids in positions]
        return x @ torch.kron(turn[1], turn[0]).mT

    patch.setattr(AxialRope, "rotate", rotate)


@mutant("note.abel-reindexing", "note.bound-constant")
def rotations_that_leave_nothing(patch: Patch) -> None:
    own = Rotary.rotate
    patch.setattr(Rotary, "rotate", lambda self, x, *given, **options: 0 * own(self, x, *given, **options))


@mutant("decay.any-ladder")
def given_frequencies_that_are_ignored(patch: Patch) -> None:
    patch.setattr(Ladder, "frequencies", lambda self, base=None: (base or self.base or 1e4) ** -self.exponents())


@mutant("ideal.index", "ideal.cosine-sum")
def codes_that_are_the_index(patch: Patch) -> None:
    def change(own: Any, positions: Any, *given: Any, **options: Any) -> Any:
        return torch.zeros_like(own(positions, *given, **options)) + positions[..., None] + 1

    with_codes(patch, change)


@mutant("ideal.fraction")
def an_extension_that_tiles_from_the_second_row(patch: Patch) -> None:
    patch.setattr(learned, "interpolate", lambda table, count: table[(torch.arange(count) + 1) % len(table)])


@mutant("ideal.bits")
def one_code_for_two_positions(patch: Patch) -> None:
    with_codes(patch, lambda own, positions, *given, **options: own(positions // 2, *given, **options))


@mutant("note.longest-62832", "rope.frequencies")
def a_ladder_that_reaches_its_base(patch: Patch) -> None:
    with_ladder(patch, lambda w: w ** (len(w) / (len(w) - 1)))


@mutant("aliasing.ambiguous", "aliasing.wavelengths")
def codes_that_repeat_after_64_positions(patch: Patch) -> None:
    with_ladder(patch, lambda w: 2 * torch.pi / 2.0 ** (1 + torch.arange(len(w), dtype=w.dtype) % 6))


@mutant("note.theta-one")
def a_base_of_thirteen(patch: Patch) -> None:
    with_ladder(patch, lambda w: w**0.2785)  # 13 is 10,000^0.2785, about


@mutant("note.index-256")
def a_pair_too_many(patch: Patch) -> None:
    with_ladder(patch, lambda w: torch.cat((w, w[-1:])))


@mutant("alibi.slope-rules")
def one_rule_of_slopes(patch: Patch) -> None:
    patch.setattr(alibi, "press_slopes", alibi.geometric_slopes)


@mutant("t5.saturation", "t5.edges")
def t5_buckets_of_twice_the_reach(patch: Patch) -> None:
    own = t5.bucket_edges
    patch.setattr(t5, "bucket_edges", lambda buckets, reach: own(buckets, 2 * reach))


@mutant("cache.rotated-keys-stay")
def dynamic_ntk_that_never_stretches(patch: Patch) -> None:
    patch.setattr(dynamic_ntk.DynamicNtk, "length_dependent", False)
    patch.setattr(dynamic_ntk.DynamicNtk, "served", lambda self, length: None)


@mutant("note.sine-difference")
def codes_far_too_small(patch: Patch) -> None:
    with_codes(patch, lambda own, *given, **options: 0.003 * own(*given, **options))


@mutant("note.codes-change-less")
def codes_of_logarithms(patch: Patch) -> None:
    with_codes(patch, lambda own, positions, *given, **options: own(positions.double().log1p(), *given, **options))


@mutant("note.bert-sinusoidal", "note.gpt2-sinusoidal", "note.moss-alibi")
def families_read_otherwise(patch: Patch) -> None:
    for family, what in (("bert", SINUSOIDAL), ("gpt2", SINUSOIDAL), ("moss", ALIBI)):
        patch.setitem(UNROTATED, family, what)


@mutant("note.permutation-invariant")
def attention_that_sees_all_alike(patch: Patch) -> None:
    def mean(q: Any, k: Any, v: Any, **options: Any) -> Any:
        return v.mean(-2, keepdim=True).expand_as(v)

    everywhere(patch, attention, mean)


@mutant("rope.formula", "axial_rope.formula", "mrope.formula", "rope+yarn.formula")
def the_two_of_a_pair_swapped_in_halves(patch: Patch) -> None:
    own = Rotary.rotate

    def rotate(self: Any, x: Any, *given: Any, **options: Any) -> Any:
        return own(self, x.roll(x.shape[-1] // 2, -1) if self.layout == "half" else x, *given, **options)

    patch.setattr(Rotary, "rotate", rotate)
