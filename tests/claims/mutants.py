"""Encodings broken in known ways. Each mutant names the claims that must turn red for it, all of them."""

from __future__ import annotations

import copy
import dataclasses
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

from whorl import position_checks
from whorl.attend import cache, decoding_kinds, linear, linear_checks, linear_forms, linear_terms
from whorl.attend.features import feature_map
from whorl.attend.softmax import attention
from whorl.claims.flags import of_registry
from whorl.claims.probes import build
from whorl.claims.rotation import turning
from whorl.dialects.families import ALIBI, UNROTATED
from whorl.encodings import (
    alibi,
    cope,
    deberta,
    fire,
    forgetting_gate,
    kerple,
    learned,
    masks,
    position_remaps,
    rotary,
    sandwich,
    score_scaling,
    shaw,
    sinusoidal,
    t5,
    transformer_xl,
    xpos,
)
from whorl.encodings.axial_rope import AxialRopeConfig
from whorl.encodings.base import HOOKS, Encoding
from whorl.encodings.learned import Learned
from whorl.encodings.mixed_rope import MixedRope
from whorl.encodings.none import NoPE
from whorl.encodings.rope import Rope, RopeConfig
from whorl.encodings.rotary import Rotary
from whorl.registry import encoding_class, names
from whorl.rotary import rotation, tables
from whorl.rotary.frequencies import Ladder
from whorl.rotary.scalings import dynamic_ntk, llama3, longrope, ntk, proportional, resonance, yarn
from whorl.rotary.scalings import linear as linear_scaling
from whorl.rotary.scalings.base import Factors, factor_for

Patch = pytest.MonkeyPatch


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One way to be wrong, and the claims that say so."""

    name: str
    apply: Callable[[Patch], None]
    kills: tuple[str, ...]


MUTANTS: dict[str, Mutant] = {}
FLAGS = {claim.id for claim in of_registry()}


def mutant(*kills: str) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
    def add(apply: Callable[[Patch], None]) -> Callable[[Patch], None]:
        name = apply.__name__.replace("_", " ")
        MUTANTS[name] = Mutant(name, apply, kills)
        return apply

    return add


@contextmanager
def broken(one: Mutant) -> Iterator[None]:
    """whorl with this mutant in it, and nothing remembered from before or left behind."""
    forget()
    with pytest.MonkeyPatch.context() as patch:
        one.apply(patch)
        forget()
        yield
    forget()


def forget() -> None:
    """Empties every memo of whorl."""
    for module in [module for name, module in sys.modules.items() if name.startswith("whorl.")]:
        for value in list(vars(module).values()):
            if callable(getattr(value, "cache_clear", None)) and not isinstance(value, type):
                value.cache_clear()


def everywhere(patch: Patch, old: Any, new: Any) -> None:
    """Puts ``new`` in the place of ``old`` in every module that has it, under whatever name."""
    for name, module in list(sys.modules.items()):
        if name.startswith("whorl."):
            for key, value in list(vars(module).items()):
                if value is old:
                    patch.setattr(module, key, new)


def flagged(flag: str, value: bool, *but: str) -> tuple[str, ...]:
    """The ids of this flag for every encoding that states it so; one that touches no vector has none of its norms."""
    stated = [name for name in names() if getattr(build(name).claims, flag) is value and name not in but]
    ids = (f"{name}.flag.{flag.replace('_', '-')}" for name in stated)
    return tuple(id for id in ids if id in FLAGS)


def classes() -> list[type[Encoding]]:
    return [encoding_class(name) for name in names()]


# -- the rotation -----------------------------------------------------------------------------------------------------


def with_tables(patch: Patch, change: Callable[..., Any], *, before: bool = False) -> None:
    """Changes the tables of every rotary encoding, or the positions they are made for."""
    for cls in (Rotary, MixedRope, *(c for c in classes() if "tables" in vars(c) and issubclass(c, Rotary))):
        own = vars(cls)["tables"]

        def made(self: Any, positions: Any, length: Any = None, *, own: Any = own, dtype: Any = torch.float32) -> Any:
            if before:
                return own(self, change(positions), length, dtype=dtype)
            return change(*own(self, positions, length, dtype=dtype), positions)

        patch.setattr(cls, "tables", made)


@mutant(
    "rope.identity-at-zero", "rope.golden", "rope.group-law", "rope.three-forms", "precision.exact-tables",
    "question.slow-pairs-still",
)  # fmt: skip
def sin_and_cos_swapped(patch: Patch) -> None:
    with_tables(patch, lambda cos, sin, positions: (sin, cos))


@mutant(
    "rope.golden", "rope.three-forms", "precision.half-input", "extension.rerope-far", "rope.axioms-unique",
    "note.abel-reindexing",
)  # fmt: skip
def turned_the_other_way(patch: Patch) -> None:
    with_tables(patch, lambda cos, sin, positions: (cos, -sin))


@mutant(
    "rope.identity-at-zero", "rope.golden", "rope.group-law", "rope.three-forms", "question.dense-exponential",
    "decay.bound", "note.bound-constant", "decay.any-content",
)  # fmt: skip
def positions_off_by_one(patch: Patch) -> None:
    with_tables(patch, lambda positions: positions + 1, before=True)


@mutant(
    "rope.relative", "rope.rmsnorm-after", "rope.group-law", "question.dense-exponential", "linear.relative",
    "rope.flag.relative", "axial_rope.flag.relative", "mrope.flag.relative", "mixed_rope.flag.relative",
    "xpos.flag.relative", "rope+yarn.flag.relative", "rope+dynamic_ntk.flag.relative", "rope+alibi.flag.relative",
    "aliasing.longest-wavelength", "note.frequencies-rise", "rope.axioms-unique",
)  # fmt: skip
def angles_that_are_not_linear(patch: Patch) -> None:
    with_tables(patch, lambda positions: positions.double() * (1 + positions.double() / 3000), before=True)


@mutant("note.frequencies-rise", "rope.relative")
def slow_pairs_that_speed_up_past_512(patch: Patch) -> None:
    def faster(cos: Any, sin: Any, positions: Any) -> Any:
        more = 1e-3 * (positions.double() - 512).clamp(min=0).unsqueeze(-1)
        more = (more * (torch.arange(cos.shape[-1]) > 0)).to(cos.dtype)
        return cos * more.cos() - sin * more.sin(), sin * more.cos() + cos * more.sin()

    with_tables(patch, faster)


@mutant("note.frequencies-rise", "rope.relative")
def pairs_that_slow_down_past_512(patch: Patch) -> None:
    with_tables(patch, lambda positions: positions.double() - (positions.double() - 512).clamp(min=0) / 2, before=True)


@mutant(
    "rope.layernorm-after", "linear.rotate-before", "decay.bound-inner-differences",
    "rope.orthogonal", "rope.norm", "rope.gradient-norm", "rope.relative", "rope.determinant", "decay.bound",
    "decay.abel-identity", "rope.flag.norm-preserving", "rope+dynamic_ntk.flag.norm-preserving",
    "rope+alibi.flag.norm-preserving",
)  # fmt: skip
def lengths_that_grow(patch: Patch) -> None:
    def grow(cos: Any, sin: Any, positions: Any) -> Any:
        by = (1 + 1e-3 * positions.to(cos.dtype)).reshape(*positions.shape[-1:], 1)
        return cos * by, sin * by

    with_tables(patch, grow)


@mutant("rope.determinant", "rope.golden", "rope.identity-at-zero", "rope.group-law")
def a_mirror_in_every_pair(patch: Patch) -> None:
    own = Rotary.rotate

    def rotate(self: Any, x: Any, *given: Any, **options: Any) -> Any:
        out = own(self, x, *given, **options)
        sign = torch.tensor([-1.0, 1.0], dtype=out.dtype).repeat(out.shape[-1] // 2)
        return out * sign

    patch.setattr(Rotary, "rotate", rotate)


@mutant("rope.golden", "rope.layouts-permute")
def layouts_mixed_up(patch: Patch) -> None:
    patch.setattr(Rope, "layout", property(lambda self: "interleaved"))


@mutant("rope.partial")
def the_slice_at_the_wrong_end(patch: Patch) -> None:
    patch.setattr(RopeConfig, "start", property(lambda self: 0))


@mutant("rope.relative", "rope.group-law")
def positions_below_zero_taken_for_zero(patch: Patch) -> None:
    with_tables(patch, lambda positions: positions.clamp(min=0), before=True)


@mutant("aliasing.untrained-pairs", "rope.relative", "rope.group-law")
def positions_that_start_over_after_4096(patch: Patch) -> None:
    with_tables(patch, lambda positions: positions % 4096, before=True)


@mutant("rope.partial")
def a_slice_with_the_frequencies_of_the_whole_head(patch: Patch) -> None:
    own = RopeConfig.ladder

    def ladder(self: Any) -> Any:
        one = own(self)
        return dataclasses.replace(one, base=one.base ** (one.dim / self.head_dim)) if one.base else one

    patch.setattr(RopeConfig, "ladder", ladder)


@mutant("rope.partial")
def an_interleaved_slice_that_turns_as_halves(patch: Patch) -> None:
    def layout(self: Any) -> Any:
        return "half" if self.config.rotary_dim < self.config.head_dim else self.config.layout

    patch.setattr(Rope, "layout", property(layout))


@mutant("rope.inverse", "rope.rerotate")
def an_inverse_that_forgets_the_factor(patch: Patch) -> None:
    everywhere(patch, rotation.inverse_tables, lambda cos, sin: (cos, -sin))


@mutant("kerple.alibi")
def kerple_without_the_scale(patch: Patch) -> None:
    patch.setattr(kerple.Kerple, "softmax_scale", lambda self, head_dim, length=None: 1.0)


@mutant("precision.half-input")
def queries_and_keys_rotated_in_bfloat16(patch: Patch) -> None:
    own = rotary.rotate_qk

    def rotate_qk(q: Any, k: Any, cos: Any, sin: Any, *given: Any, **options: Any) -> Any:
        half = q.dtype in (torch.bfloat16, torch.float16)
        cos, sin = (x.to(q.dtype).to(x.dtype) if half else x for x in (cos, sin))
        return own(q, k, cos, sin, *given, **options)

    patch.setattr(rotary, "rotate_qk", rotate_qk)


@mutant("aliasing.wavelengths")
def tables_that_turn_three_times_as_fast(patch: Patch) -> None:
    with_tables(patch, lambda positions: 3 * positions, before=True)


@mutant("forgetting.alibi", "forgetting_gate.formula")
def a_gate_that_forgets_the_scores(patch: Patch) -> None:
    own = forgetting_gate.ForgettingGate.add_terms
    patch.setattr(forgetting_gate.ForgettingGate, "add_terms", lambda self, pairs: own(self, pairs) - pairs.scores)


@mutant("linear.relative")
def keys_out_of_order_without_a_mask(patch: Patch) -> None:
    own = linear_forms.all_keys
    everywhere(patch, own, lambda a, b, *given, **options: own(a, b.roll(1, -1), *given, **options))


@mutant("note.decay-not-linear")
def decay_by_the_whole_matrix(patch: Patch) -> None:
    own = linear_forms.past_keys

    def past_keys(a: Any, b: Any, *given: Any, **options: Any) -> Any:
        torch.einsum("...id,...jd->...ij", a, b)
        return own(a, b, *given, **options)

    everywhere(patch, own, past_keys)


@mutant("precision.cast")
def mixed_rope_that_is_cast(patch: Patch) -> None:
    patch.setattr(MixedRope, "_apply", nn.Module._apply)


@mutant("question.every-layer", "question.order")
def queries_and_keys_that_stay(patch: Patch) -> None:
    patch.setattr(Rotary, "rotate", lambda self, x, *given, **options: x)
    patch.setattr(Rotary, "transform_qk", lambda self, q, k, *given, **options: (q, k))


@mutant("rope.partial")
def queries_and_keys_turned_in_their_first_dimensions(patch: Patch) -> None:
    own = rotary.rotate_qk
    patch.setattr(rotary, "rotate_qk", lambda *given, start=0, **options: own(*given, start=0, **options))


@mutant("ideal.equal-offset")
def codes_that_stand_still_far_out(patch: Patch) -> None:
    with_codes(patch, lambda own, positions, *given, **options: own(positions.clamp(max=65_536), *given, **options))


@mutant("rope.rerotate")
def keys_that_all_move_as_the_first_does(patch: Patch) -> None:
    def moved_alike(keys: Any, one: Any, other: Any, positions: Any, *, new_positions: Any, **options: Any) -> Any:
        alike = positions + (new_positions - positions)[..., :1]
        return own(keys, one, other, positions, new_positions=alike, **options)

    own = turning.rerotate
    patch.setattr(turning, "rerotate", moved_alike)


@mutant("alibi.bias-unscaled")
def alibi_that_is_folded_without_the_scale(patch: Patch) -> None:
    own = alibi.Alibi.fold
    patch.setattr(alibi.Alibi, "fold", lambda self, q, k, dtype=torch.float32, scale=1.0: own(self, q, k, dtype, 1.0))


@mutant("linear.cost")
def denominators_by_the_whole_matrix(patch: Patch) -> None:
    own = linear_forms.sums_of_weights

    def sums_of_weights(a: Any, b: Any, *given: Any, **options: Any) -> Any:
        torch.einsum("...id,...jd->...ij", a, b.expand_as(a))
        return own(a, b, *given, **options)

    everywhere(patch, own, sums_of_weights)


@mutant("cache.growing-length")
def dynamic_ntk_that_never_grows(patch: Patch) -> None:
    patch.setattr(dynamic_ntk.DynamicNtk, "frequencies", lambda self, ladder, length=None: ladder.frequencies())


@mutant("ideal.unique")
def positions_of_codes_in_bfloat16(patch: Patch) -> None:
    with_codes(patch, lambda own, positions, *given, **options: own(positions.bfloat16().long(), *given, **options))


@mutant("transformer-xl.term")
def transformer_xl_of_one_base(patch: Patch) -> None:
    own = transformer_xl.frequencies_on
    everywhere(patch, own, lambda width, base, *given: own(width, 1e4, *given))


@mutant("deberta.buckets")
def deberta_that_clips_and_has_no_buckets(patch: Patch) -> None:
    own = deberta.Deberta.add_terms

    def add_terms(self: Any, pairs: Any) -> Any:
        kept, self._starts = self._starts, None
        out = own(self, pairs)
        self._starts = kept
        return out

    patch.setattr(deberta.Deberta, "add_terms", add_terms)


@mutant("note.only-rope-linear")
def xpos_that_fades_all_pairs_alike(patch: Patch) -> None:
    patch.setattr(xpos, "log_zeta", lambda pairs, gamma: [-0.1] * pairs)


@mutant("linear.one-plus-cosine")
def one_plus_cosine_without_the_rotation(patch: Patch) -> None:
    own = linear.make_terms

    def make_terms(rule: Any, *given: Any, **options: Any) -> Any:
        plain = dataclasses.replace(rule, encoding=None) if rule.form == "one_plus_cosine" else rule
        return own(plain, *given, **options)

    patch.setattr(linear, "make_terms", make_terms)


@mutant("rope.inverse")
def an_inverse_of_the_first_dimensions(patch: Patch) -> None:
    own = rotary.rotate

    def rotate(*given: Any, inverse: bool = False, start: int = 0, **options: Any) -> Any:
        return own(*given, inverse=inverse, start=0 if inverse else start, **options)

    patch.setattr(rotary, "rotate", rotate)


@mutant("axial.one-axis-per-block", "note.kronecker")
def rows_in_the_place_of_columns(patch: Patch) -> None:
    own = AxialRopeConfig.axis_of_pair
    patch.setattr(AxialRopeConfig, "axis_of_pair", property(lambda self: tuple(0 * a for a in own.fget(self))))


@mutant("axial.one-axis-per-block")
def rows_and_columns_swapped(patch: Patch) -> None:
    own = AxialRopeConfig.axis_of_pair
    patch.setattr(AxialRopeConfig, "axis_of_pair", property(lambda self: tuple(1 - a for a in own.fget(self))))


@mutant("question.every-layer")
def rope_on_the_values_too(patch: Patch) -> None:
    def adjust_output(self: Any, out: Any, weights: Any, v: Any, q_positions: Any, k_positions: Any) -> Any:
        return self.rotate(out, q_positions)

    patch.setattr(Rope, "adjust_output", adjust_output)


# -- frequencies ------------------------------------------------------------------------------------------------------


def with_ladder(patch: Patch, change: Callable[..., Any]) -> None:
    """Changes the frequencies that are made from a base."""
    own = Ladder.reduced_wavelengths

    def reduced_wavelengths(self: Any, base: Any = None) -> Any:
        found = own(self, base)
        return found if self.given is not None else 1 / change(1 / found)

    patch.setattr(Ladder, "reduced_wavelengths", reduced_wavelengths)


@mutant(
    "base.dimension", "base.gaps", "linear.both-safe", "linear.numerator-probability", "extension.yarn-short",
    "rope.golden", "rope.three-forms", "rope.frequencies", "decay.values", "sinusoidal.golden",
    "sinusoidal.products", "sinusoidal.first-negative", "aliasing.wavelengths", "aliasing.first-turn",
    "aliasing.untrained-pairs", "aliasing.critical-dimension", "base.lower-bound", "question.order",
    "precision.exact-tables", "ideal.neighbours-close", "note.squared-exponent",
)  # fmt: skip
def squared_exponent(patch: Patch) -> None:
    with_ladder(patch, lambda w: w * w)


@mutant(
    "decay.trend", "ideal.unique", "ideal.noise", "ideal.cosine-vector", "ideal.neighbours-close", "rope.golden",
    "aliasing.ambiguous", "decay.any-content", "decay.monotone", "decay.square-root",
    "note.large-base-no-high-frequency", "note.llama-simplified", "precision.bfloat16-frequencies",
    "precision.float32-angles", "question.one-frequency", "sandwich.falls",
)  # fmt: skip
def one_frequency_for_all(patch: Patch) -> None:
    with_ladder(patch, torch.ones_like)


@mutant(
    "rope.golden", "question.order", "rope.frequencies", "aliasing.first-turn", "note.small-i-low-frequency",
    "note.longest-62832", "aliasing.ambiguous", "question.slow-pairs-still",
)  # fmt: skip
def frequencies_in_reverse(patch: Patch) -> None:
    with_ladder(patch, lambda w: w.flip(0))


@mutant(
    "question.rope-inherits-decay", "rope.golden", "rope.frequencies", "rope.axioms-unique", "decay.monotone",
    "note.abel-reindexing", "decay.any-content", "decay.square-root", "precision.bfloat16-positions",
    "precision.bfloat16-frequencies", "precision.distinguishable-codes", "aliasing.ambiguous", "note.longest-62832",
    "question.slow-pairs-still", "note.squared-exponent", "note.large-base-no-high-frequency",
    "note.small-i-low-frequency", "note.theta-one",
)  # fmt: skip
def another_base_in_rope(patch: Patch) -> None:
    own = RopeConfig.ladder
    patch.setattr(
        RopeConfig,
        "ladder",
        lambda self: dataclasses.replace(one, base=2 * one.base) if (one := own(self)).base else one,
    )


@mutant("decay.any-ladder", "precision.bfloat16-frequencies")
def given_frequencies_halved(patch: Patch) -> None:
    own = Ladder.frequencies
    patch.setattr(Ladder, "frequencies", lambda self, *base: own(self, *base) / (1 if self.given is None else 2))


@mutant("rope.frequencies", "note.index-256")
def a_ladder_without_its_last_pair(patch: Patch) -> None:
    patch.setattr(Ladder, "exponents", lambda self: self.arange(0, self.dim - 2, 2) / self.dim)


@mutant("rope.frequencies", "note.index-256")
def a_ladder_of_half_its_pairs(patch: Patch) -> None:
    patch.setattr(Ladder, "exponents", lambda self: self.arange(0, self.dim // 2, 2) / self.dim)


@mutant("aliasing.first-turn", "rope.golden")
def positions_doubled(patch: Patch) -> None:
    with_tables(patch, lambda positions: 2 * positions, before=True)


@mutant("rope.golden")
def tables_with_a_wrong_seventh_digit(patch: Patch) -> None:
    with_tables(patch, lambda cos, sin, positions: (cos * (1 + 1.5e-7), sin * (1 + 1.5e-7)))


@mutant("aliasing.longest-wavelength", "rope.frequencies")
def a_middle_pair_that_is_its_neighbour(patch: Patch) -> None:
    with_ladder(patch, lambda w: torch.where(torch.arange(len(w)) == 32, w.roll(1), w))


# -- precision --------------------------------------------------------------------------------------------------------


@mutant(
    "precision.exact-tables", "rope.relative", "rope.group-law", "precision.half-input",
    "precision.bfloat16-positions", "precision.distinguishable-codes",
)  # fmt: skip
def bfloat16_positions(patch: Patch) -> None:
    with_tables(patch, lambda positions: positions.to(torch.bfloat16).to(torch.float64), before=True)


@mutant("precision.half-positions-refused")
def half_positions_taken(patch: Patch) -> None:
    own = position_checks.check_positions
    everywhere(patch, own, lambda call, positions, axes: own(call, positions.float(), axes))


@mutant("precision.half-positions-refused")
def half_positions_taken_where_no_table_is_made(patch: Patch) -> None:
    everywhere(patch, position_checks.check_precision, lambda call, name, positions: None)


@mutant("precision.float32-angles")
def float32_angles_that_are_exact_angles_of_rounded_frequencies(patch: Patch) -> None:
    def made(positions: Any, frequencies: Any, factor: float = 1.0) -> Any:
        angles = positions.unsqueeze(-1).double() * frequencies
        return tuple(factor * table.float() for table in (angles.cos(), angles.sin()))

    everywhere(patch, tables.float32, made)


@mutant("precision.exact-tables")
def blocks_joined_in_float32(patch: Patch) -> None:
    own = tables._join_blocks

    def joined(out: Any, first: int, coarse: Any, fine: Any) -> None:
        own(out, first, coarse.float().double(), fine.float().double())

    patch.setattr(tables, "_join_blocks", joined)


@mutant("ideal.deterministic")
def coarse_rows_computed_directly_where_they_are_few(patch: Patch) -> None:
    own = tables._fill

    def fill(out: Any, ids: Any, unit: int, frequencies: Any, factor: float) -> None:
        if unit > 1 and ids.numel() < tables.BLOCK:
            out.copy_(factor * tables._waves(ids, unit, frequencies))
        else:
            own(out, ids, unit, frequencies, factor)

    patch.setattr(tables, "_fill", fill)


@mutant("precision.float32-grows")
def float32_angles_of_frequencies_a_little_fast(patch: Patch) -> None:
    def made(positions: Any, frequencies: Any, factor: float = 1.0) -> Any:
        angles = (positions.unsqueeze(-1).double() * frequencies.double() * (1 + 3e-8)).float()
        return factor * angles.cos(), factor * angles.sin()

    everywhere(patch, tables.float32, made)


@mutant("precision.exact-tables", "rope.relative")
def float32_angles(patch: Patch) -> None:
    own = Rotary.tables

    def made(self: Any, positions: Any, length: Any = None, *, dtype: Any = torch.float32) -> Any:
        if self.config.angles == "float32" or self.axes > 1:
            return own(self, positions, length, dtype=dtype)
        found = tables.float32(positions, self.frequencies(length).float(), self.attention_factor(length))
        return tuple(t.to(dtype) for t in found)

    patch.setattr(Rotary, "tables", made)


@mutant("precision.exact-tables", "precision.float32-grows", "rope.three-forms", "rope.frequencies")
def bfloat16_frequencies(patch: Patch) -> None:
    with_ladder(patch, lambda w: w.to(torch.bfloat16).to(w.dtype))


@mutant("precision.exact-tables", "precision.half-input", "rope.orthogonal", "rope.norm")
def bfloat16_tables(patch: Patch) -> None:
    with_tables(patch, lambda cos, sin, positions: (cos.bfloat16().to(cos.dtype), sin.bfloat16().to(sin.dtype)))


@mutant("precision.cast")
def a_cast_that_rounds_frequencies(patch: Patch) -> None:
    patch.setattr(Rotary, "_apply", nn.Module._apply)


# -- sinusoidal codes -------------------------------------------------------------------------------------------------


def with_codes(patch: Patch, change: Callable[..., Any]) -> None:
    own = sinusoidal.sinusoidal
    everywhere(patch, own, lambda positions, *given, **options: change(own, positions, *given, **options))


@mutant("sinusoidal.shift-matrix")
def a_shift_the_other_way(patch: Patch) -> None:
    own = sinusoidal.shift_matrix
    everywhere(patch, own, lambda *given, **options: own(*given, **options).mT)


@mutant("sinusoidal.shift-matrix")
def a_shift_of_one_base(patch: Patch) -> None:
    own = sinusoidal.shift_matrix
    everywhere(patch, own, lambda width, k, base, order: own(width, k, 10_000.0, order))


@mutant("sinusoidal.shift-matrix")
def a_shift_of_one_order(patch: Patch) -> None:
    own = sinusoidal.shift_matrix
    everywhere(patch, own, lambda width, k, base=10_000.0, order="interleaved": own(width, k, base))


@mutant("sinusoidal.products", "sinusoidal.shift-matrix")
def codes_of_one_base(patch: Patch) -> None:
    with_codes(
        patch, lambda own, positions, width, base, *given, **options: own(positions, width, 1e4, *given, **options)
    )


@mutant("sinusoidal.orders", "sinusoidal.shift-matrix")
def codes_of_one_base_where_sines_come_first(patch: Patch) -> None:
    def change(
        own: Any, positions: Any, width: Any, base: Any, order: Any = "interleaved", *more: Any, **options: Any
    ) -> Any:
        return own(positions, width, 1e4 if order == "concatenated" else base, order, *more, **options)

    with_codes(patch, change)


@mutant(
    "sinusoidal.golden", "sinusoidal.norm", "sinusoidal.products", "ideal.bounded", "question.rope-inherits-decay",
    "question.one-frequency", "question.proportional", "note.sine-sensitive", "ideal.generalises", "ideal.bits",
    "ideal.index",
)  # fmt: skip
def codes_a_little_long(patch: Patch) -> None:
    with_codes(patch, lambda own, *given, **options: 1.01 * own(*given, **options))


@mutant(
    "sinusoidal.direction", "note.k-channel", "note.taylor-cross-term", "ideal.cosine-sum", "note.codes-change-less",
    "sandwich.falls", "sandwich.products",
)  # fmt: skip
def codes_of_another_base(patch: Patch) -> None:
    with_ladder(patch, lambda w: w**1.1)  # the matrix of a shift with them


@mutant("sinusoidal.golden")
def codes_of_six_decimals(patch: Patch) -> None:
    with_codes(patch, lambda own, *given, **options: own(*given, **options).mul(1e6).round() / 1e6)


@mutant("ideal.bounded")
def codes_that_are_smaller_past_the_first(patch: Patch) -> None:
    def change(own: Any, positions: Any, *given: Any, **options: Any) -> Any:
        return own(positions, *given, **options) * torch.where(positions > 0, 0.9, 1.0).unsqueeze(-1)

    with_codes(patch, change)


@mutant("sinusoidal.norm", "sinusoidal.products", "ideal.equal-offset", "ideal.bounded")
def codes_that_grow_where_sines_come_first(patch: Patch) -> None:
    def change(
        own: Any, positions: Any, width: Any, base: Any, order: Any = "interleaved", *more: Any, **options: Any
    ) -> Any:
        out = own(positions, width, base, order, *more, **options)
        return out * (1 + 1e-8 * positions.double().unsqueeze(-1)) if order == "concatenated" else out

    with_codes(patch, change)


@mutant("sinusoidal.golden", "sinusoidal.orders")
def cosines_first(patch: Patch) -> None:
    def change(
        own: Any, positions: Any, width: Any, base: Any, order: Any = "interleaved", *more: Any, **options: Any
    ) -> Any:
        out = own(positions, width, base, order, *more, **options)
        return out if order == "concatenated" else out.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)

    with_codes(patch, change)


@mutant("sinusoidal.orders")
def cosines_before_sines_in_both_orders(patch: Patch) -> None:
    def change(
        own: Any, positions: Any, width: Any, base: Any, order: Any = "interleaved", *more: Any, **options: Any
    ) -> Any:
        out = own(positions, width, base, order, *more, **options)
        dims = (-1, 2) if order == "interleaved" else (2, -1)
        return out.unflatten(-1, dims).flip(-1 if order == "interleaved" else -2).flatten(-2)

    with_codes(patch, change)


@mutant("base.lower-bound")
def bases_a_two_hundredth_larger(patch: Patch) -> None:
    with_ladder(patch, lambda w: w * 1.005 ** (-torch.arange(len(w), dtype=w.dtype) / len(w)))


@mutant("ideal.deterministic", "ideal.equal-offset", "sinusoidal.shift-matrix")
def codes_with_noise(patch: Patch) -> None:
    def change(own: Any, *given: Any, **options: Any) -> Any:
        out = own(*given, **options)
        return out + 1e-3 * torch.randn_like(out)

    with_codes(patch, change)


@mutant(
    "additive.four-terms", "note.additive-when-content-small", "ideal.equal-offset", "sinusoidal.products",
    "sinusoidal.shift-matrix", "note.k-channel", "note.sine-sensitive", "note.taylor-cross-term",
    "sinusoidal.direction",
)  # fmt: skip
def codes_of_squared_positions(patch: Patch) -> None:
    with_codes(patch, lambda own, positions, *given, **options: own(positions.double() ** 2, *given, **options))


@mutant("question.proportional")
def codes_that_are_not_added(patch: Patch) -> None:
    patch.setattr(sinusoidal.Sinusoidal, "add_to_input", lambda self, x, positions: x)


# -- scalings ---------------------------------------------------------------------------------------------------------


@mutant("extension.yarn-temperature", "extension.longrope-factor", "rope+yarn.flag.norm-preserving")
def the_attention_factor_left_out(patch: Patch) -> None:
    patch.setattr(Rotary, "attention_factor", lambda self, length=None: 1.0)


@mutant("extension.pi-divides")
def interpolation_that_multiplies(patch: Patch) -> None:
    patch.setattr(
        linear_scaling.Linear, "frequencies", lambda self, ladder, length=None: ladder.frequencies() * self.factor
    )


@mutant("extension.factor-one", "extension.pi-divides")
def a_factor_counted_from_zero(patch: Patch) -> None:
    patch.setattr(
        linear_scaling.Linear, "frequencies", lambda self, ladder, length=None: ladder.frequencies() / (self.factor + 1)
    )


@mutant("extension.ntk-ends", "extension.dynamic-within", "cache.rotated-keys-stay")
def ntk_without_its_exponent(patch: Patch) -> None:
    everywhere(patch, ntk.ntk_base, lambda base, factor, dim: base * factor)


@mutant("extension.ntk-ends")
def two_pairs_that_ntk_slows_alike(patch: Patch) -> None:
    own = ntk.Ntk.frequencies

    def frequencies(self: Any, ladder: Any, length: Any = None) -> Any:
        plain, scaled = ladder.frequencies(), own(self, ladder, length).clone()
        scaled[31] = plain[31] * scaled[30] / plain[30]
        return scaled

    patch.setattr(ntk.Ntk, "frequencies", frequencies)


@mutant("extension.dynamic-within", "extension.factor-one")
def dynamic_ntk_at_any_length(patch: Patch) -> None:
    def frequencies(self: Any, ladder: Any, length: Any = None) -> Any:
        stretch = self.factor * (length or 1) / self.original_length + 1
        return ladder.frequencies(ntk.ntk_base(ladder.base, stretch, ladder.dim))

    patch.setattr(dynamic_ntk.DynamicNtk, "frequencies", frequencies)


@mutant("extension.yarn-ramp")
def a_ramp_of_fractions(patch: Patch) -> None:
    own = yarn.pair_range
    patch.setattr(
        yarn,
        "pair_range",
        lambda call, fast, slow, ladder, length, truncate=True: own(call, fast, slow, ladder, length, False),
    )


@mutant("extension.yarn-ramp")
def a_ramp_upside_down(patch: Patch) -> None:
    own = yarn.ramp
    patch.setattr(yarn, "ramp", lambda *given: 1 - own(*given))


@mutant("extension.yarn-ramp")
def fast_pairs_that_yarn_speeds_up(patch: Patch) -> None:
    own = yarn.Yarn.frequencies

    def frequencies(self: Any, ladder: Any, length: Any = None) -> Any:
        found = own(self, ladder, length).clone()
        found[:10] *= 2
        return found

    patch.setattr(yarn.Yarn, "frequencies", frequencies)


@mutant("extension.yarn-temperature")
def a_temperature_in_the_softmax_as_well(patch: Patch) -> None:
    own = yarn.Yarn.factors

    def factors(self: Any, *given: Any) -> Any:
        found = own(self, *given)
        return found._replace(softmax=found.attention**2)

    patch.setattr(yarn.Yarn, "factors", factors)


@mutant("extension.yarn-temperature")
def a_temperature_for_sixteen_times(patch: Patch) -> None:
    own = yarn.temperature
    patch.setattr(yarn, "temperature", lambda factor, *given: own(16.0, *given))


@mutant("extension.dynamic-within")
def dynamic_ntk_trained_on_4096(patch: Patch) -> None:
    own = dynamic_ntk.DynamicNtk.frequencies

    def frequencies(self: Any, ladder: Any, length: Any = None) -> Any:
        return own(self.replace(original_length=4096), ladder, length)

    patch.setattr(dynamic_ntk.DynamicNtk, "frequencies", frequencies)


@mutant("extension.longrope-factor")
def longrope_with_the_root_of_one_model(patch: Patch) -> None:
    own = longrope.LongRope.factors
    fixed = {"factor": 32.0, "original_length": 4096}

    def factors(self, length=None):
        other = self.factor is not None and (self.factor, self.original_length) != tuple(fixed.values())
        return own(self.replace(**fixed) if other else self, length)  # a config asks for its factors to check them

    patch.setattr(longrope.LongRope, "factors", factors)


@mutant("extension.longrope-factor")
def longrope_with_its_root_whatever_is_given(patch: Patch) -> None:
    own = longrope.LongRope.factors

    def factors(self, length=None):
        return own(self if self.factor else self.replace(factor=4.0, attention_factor=None), length)

    patch.setattr(longrope.LongRope, "factors", factors)


@mutant("extension.longrope-factor")
def longrope_that_never_switches(patch: Patch) -> None:
    own = longrope.LongRope.frequencies
    patch.setattr(longrope.LongRope, "frequencies", lambda self, ladder, length=None: own(self, ladder, None))


@mutant("extension.llama3-bands")
def llama3_with_its_bands_swapped(patch: Patch) -> None:
    own = llama3.Llama3.frequencies

    def frequencies(self: Any, ladder: Any, length: Any = None) -> Any:
        return own(
            self.replace(low_freq_factor=self.high_freq_factor, high_freq_factor=4 * self.high_freq_factor), ladder
        )

    patch.setattr(llama3.Llama3, "frequencies", frequencies)


@mutant("extension.llama3-bands")
def llama3_of_one_model(patch: Patch) -> None:
    own = llama3.Llama3.frequencies
    fixed = {"factor": 8.0, "original_length": 8192}  # as in Meta's code
    patch.setattr(llama3.Llama3, "frequencies", lambda self, ladder, length=None: own(self.replace(**fixed), ladder))


@mutant("extension.longrope-factor")
def longrope_without_its_short_factors(patch: Patch) -> None:
    own = longrope.LongRope.frequencies

    def frequencies(self: Any, ladder: Any, length: Any = None) -> Any:
        return own(self.replace(short_factor=(1.0,) * len(self.short_factor)), ladder, length)

    patch.setattr(longrope.LongRope, "frequencies", frequencies)


@mutant("extension.longrope-factor")
def longrope_whose_root_begins_past_its_length(patch: Patch) -> None:
    own = longrope.LongRope.factors

    def factors(self: Any, length: Any = None) -> Any:
        return own(self, length) if (length or 0) > self.original_length else Factors()

    patch.setattr(longrope.LongRope, "factors", factors)


@mutant("extension.pi-divides")
def interpolation_of_whole_positions(patch: Patch) -> None:
    own = Rotary.tables

    def made(self: Any, positions: Any, length: Any = None, **given: Any) -> Any:
        scaling = self.config.scaling if isinstance(self, Rope) else None
        if not isinstance(scaling, linear_scaling.Linear):
            return own(self, positions, length, **given)
        plain = Rope(head_dim=self.config.head_dim, layout=self.config.layout)
        return own(plain, (positions / scaling.factor).floor(), length, **given)

    patch.setattr(Rotary, "tables", made)


@mutant("extension.ntk-ends")
def ntk_for_heads_of_128(patch: Patch) -> None:
    own = ntk.ntk_base
    everywhere(patch, own, lambda base, factor, dim: own(base, factor, 128))


@mutant(
    "aliasing.critical-dimension", "rope.frequencies", "rope.three-forms", "axial.one-axis-per-block",
    "extension.factor-one", "extension.resonance", "precision.exact-tables", "precision.float32-grows",
)  # fmt: skip
def every_base_ten_thousand(patch: Patch) -> None:
    own = Ladder.frequencies
    patch.setattr(Ladder, "frequencies", lambda self, *given: own(dataclasses.replace(self, base=10_000.0), *given))


@mutant("extension.resonance")
def resonance_that_rounds_down(patch: Patch) -> None:
    patch.setattr(resonance, "whole_wavelengths", lambda frequencies: 2 * math.pi / (2 * math.pi / frequencies).floor())


@mutant("extension.resonance")
def resonance_that_does_not_round(patch: Patch) -> None:
    patch.setattr(resonance, "whole_wavelengths", lambda frequencies: frequencies)


@mutant("base.still-half")
def proportional_that_turns_all(patch: Patch) -> None:
    patch.setattr(proportional.Proportional, "frequencies", lambda self, ladder, length=None: ladder.frequencies())


@mutant("base.still-half")
def proportional_that_turns_a_pair_more(patch: Patch) -> None:
    own = proportional.Proportional.frequencies

    def frequencies(self: Any, ladder: Any, length: Any = None) -> Any:
        return own(self.replace(fraction=self.fraction + 2 / ladder.dim), ladder, length)

    patch.setattr(proportional.Proportional, "frequencies", frequencies)


@mutant("extension.factor-from-data")
def the_factor_of_the_window(patch: Patch) -> None:
    everywhere(patch, factor_for, lambda length, *, trained_length: length / 4096)


# -- remaps, scaled queries, xPos -------------------------------------------------------------------------------------


@mutant("extension.rerope-far")
def rerope_one_too_far(patch: Patch) -> None:
    own = position_remaps.rerope_far
    patch.setattr(position_remaps, "rerope_far", lambda q, k, window: own(q, k, window + 1))


@mutant("extension.rerope-near", "extension.rerope-far")
def rerope_with_half_its_window(patch: Patch) -> None:
    own = position_remaps.ReRope.branches

    def branches(self: Any, q_positions: Any, k_positions: Any) -> Any:
        narrow = type(self)(**{**vars(self.config), "window": self.config.window // 2})
        return own(narrow, q_positions, k_positions)

    patch.setattr(position_remaps.ReRope, "branches", branches)


@mutant("extension.rerope-far")
def leaky_rerope_of_whole_steps_at_the_window(patch: Patch) -> None:
    def far(q: Any, k: Any, window: int, factor: float) -> Any:
        return q.double() / factor + (window - window // factor), k.double() / factor

    patch.setattr(position_remaps, "leaky_far", far)


@mutant("extension.rerope-near")
def near_pairs_that_move_where_there_are_far_ones(patch: Patch) -> None:
    own = position_remaps.SelfExtend.branches

    def branches(self: Any, q_positions: Any, k_positions: Any) -> Any:
        near, far = own(self, q_positions, k_positions)
        shifted = near._replace(q_positions=near.q_positions + int(far.allowed.any()))
        return shifted, far

    patch.setattr(position_remaps.SelfExtend, "branches", branches)


@mutant("extension.self-extend-far")
def self_extend_without_its_shift(patch: Patch) -> None:
    patch.setattr(position_remaps, "self_extend_far", lambda q, k, window, group: (q // group, k // group))


@mutant("extension.self-extend-far")
def self_extend_that_begins_one_late(patch: Patch) -> None:
    own = position_remaps.SelfExtend.branches

    def branches(self: Any, q_positions: Any, k_positions: Any) -> Any:
        near, far = own(self, q_positions, k_positions)
        late = q_positions[..., None] - k_positions[..., None, :] > self.config.window
        return near, far._replace(allowed=late)

    patch.setattr(position_remaps.SelfExtend, "branches", branches)


@mutant("extension.log-n")
def log_n_below_the_trained_length(patch: Patch) -> None:
    patch.setattr(
        score_scaling, "log_n", lambda positions, length: torch.log(positions.double() + 1) / math.log(length)
    )


@mutant("extension.log-n")
def log_n_trained_on_512(patch: Patch) -> None:
    own = score_scaling.log_n
    patch.setattr(score_scaling, "log_n", lambda positions, length: own(positions, 512))


@mutant("extension.llama4-temperature")
def llama4_steps_one_position_late(patch: Patch) -> None:
    own = score_scaling.llama4_temperature
    patch.setattr(score_scaling, "llama4_temperature", lambda *args: own(*args[:3], first=0))


@mutant("extension.log-n", "extension.llama4-temperature", "log_n.formula", "llama4_temperature.formula")
def query_scales_on_keys(patch: Patch) -> None:
    own = score_scaling.QueryScale.transform_qk
    patch.setattr(score_scaling.QueryScale, "transform_qk", lambda self, q, k, i, j: (q, own(self, k, k, j, j)[0]))


@mutant("xpos.causal-only", "xpos.factor", "decay.xpos-envelope")
def xpos_that_grows(patch: Patch) -> None:
    own = xpos.log_zeta
    patch.setattr(xpos, "log_zeta", lambda pairs, gamma: [-each for each in own(pairs, gamma)])


@mutant("xpos.factor", "xpos.centre")
def xpos_queries_that_do_not_fade(patch: Patch) -> None:
    def from_centre(queries: Any, keys: Any, *given: Any) -> Any:
        before, *others = own(queries, keys, *given)
        return 0 * before, *others

    own = xpos.from_centre
    patch.setattr(xpos, "from_centre", from_centre)


@mutant("xpos.factor")
def xpos_for_heads_of_64(patch: Patch) -> None:
    own = xpos.log_zeta
    patch.setattr(xpos, "log_zeta", lambda pairs, gamma: own(32, gamma)[:pairs])


@mutant("note.only-rope-linear", "xpos.factor")
def xpos_that_does_not_fade(patch: Patch) -> None:
    patch.setattr(xpos, "log_zeta", lambda pairs, gamma: [0.0] * pairs)


@mutant("xpos.causal-only")
def slow_pairs_that_do_not_fade(patch: Patch) -> None:
    own = xpos.log_zeta
    patch.setattr(
        xpos, "log_zeta", lambda pairs, gamma: [*own(pairs, gamma)[: pairs // 2], *([0.0] * (pairs - pairs // 2))]
    )


@mutant("xpos.centre", "xpos.cache")
def xpos_with_two_centres(patch: Patch) -> None:
    own = xpos.XPos.transform_qk

    def transform_qk(self: Any, q: Any, k: Any, q_positions: Any, k_positions: Any, length: Any = None) -> Any:
        a, _ = own(self, q, k, q_positions, k_positions, length)
        _, b = own(self, k, k, k_positions, k_positions, length)  # keys around their own middle
        return a, b

    patch.setattr(xpos.XPos, "transform_qk", transform_qk)


@mutant("xpos.overflow")
def xpos_without_a_limit(patch: Patch) -> None:
    patch.setattr(xpos.XPos, "_check_range", lambda self, q, k, span: 10**9)


@mutant("xpos.overflow")
def xpos_centred_far_away(patch: Patch) -> None:
    own = xpos.from_centre

    def moved(q_positions: Any, k_positions: Any) -> Any:
        before, after, span = own(q_positions, k_positions)
        return before + 40_000, after - 40_000, span

    patch.setattr(xpos, "from_centre", moved)


# -- biases -----------------------------------------------------------------------------------------------------------


@mutant(
    "alibi.linear", "alibi.bias-unscaled", "alibi.receptive-field", "precision.alibi-relative-form",
    "alibi.flag.decays", "alibi.key-form", "kerple.alibi",
)  # fmt: skip
def alibi_with_the_other_sign(patch: Patch) -> None:
    patch.setattr(alibi, "linear_bias", lambda slope, distance: -slope * distance)


@mutant(
    "alibi.slopes", "alibi.linear", "alibi.bias-unscaled", "alibi.receptive-field", "precision.alibi-relative-form",
    "alibi.slope-rules",
)  # fmt: skip
def slopes_off_by_one(patch: Patch) -> None:
    patch.setattr(alibi, "geometric_slopes", lambda heads: [2.0 ** (-8 * head / heads) for head in range(heads)])


@mutant("alibi.bias-unscaled", "alibi.linear", "alibi.receptive-field")
def alibi_divided_by_the_root_of_d(patch: Patch) -> None:
    patch.setattr(alibi, "linear_bias", lambda slope, distance: slope * distance / 8)


@mutant("alibi.bias-unscaled")
def alibi_on_scores_that_are_not_scaled(patch: Patch) -> None:
    patch.setattr(alibi.Alibi, "softmax_scale", lambda self, head_dim, length=None: 1.0)


@mutant("alibi.bias-unscaled")
def alibi_on_scores_scaled_for_heads_of_64(patch: Patch) -> None:
    patch.setattr(alibi.Alibi, "softmax_scale", lambda self, head_dim, length=None: 0.125)


@mutant("alibi.linear")
def alibi_by_the_distance_from_the_last_query(patch: Patch) -> None:
    own = alibi.Alibi.bias_at
    patch.setattr(alibi.Alibi, "bias_at", lambda self, head, i, j: own(self, head, i.max() + 0 * i, j))


@mutant("alibi.symmetric")
def a_symmetric_form_that_leans(patch: Patch) -> None:
    own = alibi.Alibi.bias_at
    patch.setattr(alibi.Alibi, "bias_at", lambda self, head, i, j: own(self, head, i, j) - 0.1 * (j > i))


@mutant("alibi.symmetric")
def a_symmetric_form_half_as_steep(patch: Patch) -> None:
    own = alibi.offset_bias
    patch.setattr(alibi, "offset_bias", lambda slope, distance, offset: own(slope, distance, offset) / 2)


@mutant("alibi.symmetric")
def split_heads_that_look_the_other_way(patch: Patch) -> None:
    own = alibi.split_bias
    patch.setattr(alibi, "split_bias", lambda slope, distance, right: own(slope, distance, ~right))


@mutant("alibi.key-form")
def a_key_form_with_rounded_slopes(patch: Patch) -> None:
    own = alibi.key_form  # powers of two are not changed by it
    patch.setattr(alibi, "key_form", lambda slope, *given: own(alibi.round_to_bfloat16(slope), *given))


@mutant("alibi.key-form")
def a_key_form_that_rounds(patch: Patch) -> None:
    own = alibi.key_form
    patch.setattr(alibi, "key_form", lambda slope, position, rounding: own(slope, position, "hf_bf16"))


@mutant("precision.alibi-key-form")
def a_key_form_of_half_the_slope(patch: Patch) -> None:
    own = alibi.key_form

    def halved(slope: Any, position: Any, rounding: str) -> Any:
        return own(slope if rounding == "exact" else slope / 2, position, rounding)

    patch.setattr(alibi, "key_form", halved)


@mutant("precision.alibi-key-form")
def falcon_without_its_rounding(patch: Patch) -> None:
    own = alibi.key_form

    def exact(slope: Any, position: Any, rounding: str) -> Any:
        return own(slope, position, "exact" if rounding == "hf_falcon" else rounding)

    patch.setattr(alibi, "key_form", exact)


@mutant("precision.alibi-relative-form", "precision.alibi-key-form")
def a_bias_from_rounded_positions(patch: Patch) -> None:
    own = alibi.Alibi.bias_at
    patch.setattr(
        alibi.Alibi, "bias_at", lambda self, head, i, j: own(self, head, i.bfloat16().long(), j.bfloat16().long())
    )


@mutant("t5.edges", "t5.untrained-buckets", "t5.saturation")
def t5_edges_off_by_one(patch: Patch) -> None:
    own = t5.bucket_edges
    patch.setattr(
        t5, "bucket_edges", lambda buckets, reach: [e if e <= buckets // 2 else e + 1 for e in own(buckets, reach)]
    )


@mutant("t5.untrained-buckets")
def t5_buckets_of_another_reach(patch: Patch) -> None:
    own = t5.bucket_edges
    patch.setattr(t5, "bucket_edges", lambda buckets, reach: own(buckets, 128))


@mutant("t5.edges")
def t5_sides_swapped(patch: Patch) -> None:
    own = t5.T5.bucket
    patch.setattr(t5.T5, "bucket", lambda self, i, j: own(self, j, i) if self.config.bidirectional else own(self, i, j))


@mutant("t5.unscaled")
def t5_scaled(patch: Patch) -> None:
    patch.setattr(t5.T5, "softmax_scale", Encoding.softmax_scale)


@mutant("kerple.held", "kerple.flag.decays")
def kerple_held_where_it_rises(patch: Patch) -> None:
    patch.setattr(kerple, "LOWEST", -0.00005)  # further below, the logarithm is no number far away


@mutant("kerple.held")
def kerple_with_lower_bounds(patch: Patch) -> None:
    patch.setattr(kerple, "LOWEST", 0.001)


@mutant("kerple.held", "kerple.flag.decays", "kerple.alibi", "precision.kerple-exact")
def kerple_with_the_other_sign(patch: Patch) -> None:
    for name in ("log_kernel", "power_kernel"):
        own = getattr(kerple, name)
        patch.setattr(kerple, name, lambda *given, own=own: -own(*given))


@mutant("note.kerple-exponential", "kerple.held")
def kerple_with_its_two_numbers_swapped(patch: Patch) -> None:
    for name in ("log_kernel", "power_kernel"):
        own = getattr(kerple, name)
        patch.setattr(kerple, name, lambda distance, p, a, own=own: own(distance, a, p))


@mutant("kerple.held")
def kerple_that_is_flat_past_a_thousand(patch: Patch) -> None:
    own = kerple.Kerple.bias_of
    patch.setattr(kerple.Kerple, "bias_of", lambda self, head, distance: own(self, head, distance.clamp(max=1000)))


@mutant("precision.kerple-exact")
def kerple_of_bfloat16_distances(patch: Patch) -> None:
    own = kerple.Kerple.bias_at
    patch.setattr(
        kerple.Kerple, "bias_at", lambda self, head, i, j: own(self, head, (i - j).bfloat16().float(), torch.zeros(1))
    )


@mutant("precision.kerple-exact")
def kerple_heads_with_the_numbers_of_the_first(patch: Patch) -> None:
    own = kerple.Kerple.bias_of
    patch.setattr(kerple.Kerple, "bias_of", lambda self, head, distance: own(self, 0 * head, distance))


@mutant("fire.progress", "fire.flag.relative", "fire.relative")
def fire_without_its_denominator(patch: Patch) -> None:
    own = fire.progress
    everywhere(
        patch,
        own,
        lambda i, j, c, threshold: own(torch.zeros_like(i) + (i - j).abs(), torch.zeros_like(j), c, threshold),
    )


@mutant("fire.progress")
def fire_with_one_c_for_all(patch: Patch) -> None:
    own = fire.progress
    everywhere(patch, own, lambda i, j, c, threshold: own(i, j, torch.full_like(c, 0.1), threshold))


@mutant("fire.relative", "fire.progress")
def fire_by_the_place_of_the_key(patch: Patch) -> None:
    own = fire.progress

    def progress(i: Any, j: Any, c: Any, threshold: Any) -> Any:
        reach = torch.maximum(j.to(c.dtype), threshold)
        return own(i, j, c, threshold) * torch.log1p(c * torch.maximum(i, threshold)) / torch.log1p(c * reach)

    everywhere(patch, own, progress)


@mutant("fire.relative")
def fire_by_the_place_of_every_query(patch: Patch) -> None:
    own = fire.progress
    everywhere(patch, own, lambda i, j, c, threshold: own(i, j, c, 0 * threshold))


@mutant("sandwich.falls")
def sandwich_that_is_flat_past_a_thousand(patch: Patch) -> None:
    own = sandwich.code_product
    patch.setattr(sandwich, "code_product", lambda distance, *given: own(distance.clamp(max=1000), *given))
    patch.setattr(sandwich.Sandwich, "score_bias", sandwich.DistanceBias.score_bias)


@mutant("sandwich.products", "sandwich.falls")
def sandwich_heads_off_by_one(patch: Patch) -> None:
    own = sandwich.Sandwich.weights
    patch.setattr(sandwich.Sandwich, "weights", lambda self, head: own(self, head + 1))


@mutant("sandwich.products")
def sandwich_whose_heads_are_geometric(patch: Patch) -> None:
    def weights(self: Any, head: Any) -> Any:
        heads = self.config.heads
        return heads / 8 * float(heads) ** (-head.double() / (heads - 1))  # the first and the last as they were

    patch.setattr(sandwich.Sandwich, "weights", weights)


@mutant("sandwich.products")
def sandwich_that_does_not_count_its_heads(patch: Patch) -> None:
    patch.setattr(sandwich.Sandwich, "weights", lambda self, head: 1 / (head.double() + 1))


@mutant("shaw.clip")
def shaw_without_the_scale(patch: Patch) -> None:
    own = shaw.Shaw.add_terms
    patch.setattr(shaw.Shaw, "add_terms", lambda self, pairs: own(self, pairs._replace(scale=1.0)))


@mutant("shaw.clip")
def shaw_with_values_mirrored(patch: Patch) -> None:
    own = shaw.value_term
    patch.setattr(shaw, "value_term", lambda weights, table, index: own(weights, table.flip(0), index))


@mutant("shaw.clip")
def shaw_clipped_one_late(patch: Patch) -> None:
    patch.setattr(shaw, "clipped_index", lambda distance, clip: (clip - distance.clamp(1 - clip, clip - 1)).long())


@mutant("shaw.clip")
def shaw_with_its_table_reversed(patch: Patch) -> None:
    own = shaw.clipped_index
    patch.setattr(shaw, "clipped_index", lambda distance, clip: own(-distance, clip))


@mutant("transformer-xl.term")
def transformer_xl_with_the_other_sign(patch: Patch) -> None:
    own = transformer_xl.position_term
    patch.setattr(transformer_xl, "position_term", lambda q, weight, i, j, base: own(q, weight, -i, -j, base))


@mutant("transformer-xl.term")
def transformer_xl_with_its_two_biases_swapped(patch: Patch) -> None:
    own = transformer_xl.TransformerXL.add_terms

    def add_terms(self: Any, pairs: Any) -> Any:
        swapped = copy.copy(self)
        swapped._parameters = {
            **self._parameters, "content_bias": self.position_bias, "position_bias": self.content_bias,
        }  # fmt: skip
        return own(swapped, pairs)

    patch.setattr(transformer_xl.TransformerXL, "add_terms", add_terms)


@mutant("deberta.buckets")
def deberta_buckets_that_begin_late(patch: Patch) -> None:
    own = deberta.bucket_starts
    patch.setattr(deberta, "bucket_starts", lambda span, reach: tuple(start + 1 for start in own(span, reach)))


@mutant("deberta.buckets")
def a_deberta_bucket_that_begins_late(patch: Patch) -> None:
    own = deberta.bucket_starts
    patch.setattr(deberta, "bucket_starts", lambda *sizes: tuple(s + (i == 100) for i, s in enumerate(own(*sizes))))


@mutant("cope.counts")
def cope_without_the_querys_own_gate(patch: Patch) -> None:
    def counted(logits: Any, max_position: Any, causal: Any) -> Any:
        gates = logits.sigmoid().tril(logits.shape[-1] - logits.shape[-2] - 1)
        return gates.flip(-1).cumsum(-1).flip(-1).clamp(max=max_position - 1)

    patch.setattr(cope, "contextual_positions", counted)


@mutant("cope.counts")
def cope_that_counts_shut_gates_too(patch: Patch) -> None:
    own = cope.contextual_positions
    patch.setattr(cope, "contextual_positions", lambda logits, *given: own(logits.abs() + 60, *given))


@mutant("forgetting.alibi", "forgetting_gate.flag.decays")
def a_gate_that_remembers_more(patch: Patch) -> None:
    own = forgetting_gate.forgotten
    patch.setattr(forgetting_gate, "forgotten", lambda gates, *given: -own(gates, *given))


@mutant("forgetting.alibi")
def a_gate_too_many(patch: Patch) -> None:
    own = forgetting_gate.forgotten
    patch.setattr(forgetting_gate, "forgotten", lambda gates, *given: own(gates, *given) + gates[..., None, :])


@mutant("forgetting.alibi")
def one_gate_for_all_heads(patch: Patch) -> None:
    own = forgetting_gate.forgotten
    patch.setattr(forgetting_gate, "forgotten", lambda gates, *given: own(gates[:, :1].expand_as(gates), *given))


@mutant("window.reach")
def a_window_one_too_wide(patch: Patch) -> None:
    patch.setattr(
        masks, "within", lambda distance, size, symmetric: (distance.abs() if symmetric else distance) <= size
    )


@mutant("window.reach")
def a_window_whose_keys_are_left_out_one_too_early(patch: Patch) -> None:
    def window_reach(*given: Any, **options: Any) -> Any:
        found = own(*given, **options)
        return found._replace(before=found.before - 1)

    own = masks.window_reach
    everywhere(patch, own, window_reach)


@mutant("window.reach")
def a_window_that_hides_the_query_itself(patch: Patch) -> None:
    def shifted(distance: Any, size: Any, symmetric: Any) -> Any:
        return distance.abs() < size if symmetric else (distance > 0) & (distance <= size)

    patch.setattr(masks, "within", shifted)


@mutant("window.reach", "sinks.flag.relative")
def sinks_forgotten(patch: Patch) -> None:
    patch.setattr(masks.Sinks, "mask", masks.Window.mask)


@mutant(
    "none.equivariant", "none.uniform", "none.flag.decays", "none.flag.linear-attention", "note.permutation-invariant",
)  # fmt: skip
def a_bias_where_there_is_none(patch: Patch) -> None:
    def score_bias(self: Any, q_positions: Any, k_positions: Any, length: Any = None) -> Any:
        return -0.3 * (q_positions[..., None, :, None] - k_positions[..., None, None, :]).abs().double()

    patch.setattr(NoPE, "score_bias", score_bias)


@mutant("none.uniform", "linear.relative")
def rotations_that_turn_nothing(patch: Patch) -> None:
    with_tables(patch, lambda cos, sin, positions: (torch.ones_like(cos), torch.zeros_like(sin)))


@mutant("learned.flag.extrapolates")
def a_learned_table_that_wraps(patch: Patch) -> None:
    own = Learned.add_to_input
    patch.setattr(Learned, "add_to_input", lambda self, x, positions: own(self, x, positions % self.config.length))


@mutant("ideal.fraction")
def an_extension_that_repeats_rows(patch: Patch) -> None:
    def stretched(table: Any, count: int) -> Any:
        return table[torch.arange(count) * (len(table) - 1) // (count - 1)]

    patch.setattr(learned, "interpolate", stretched)


@mutant("note.bert-sinusoidal", "note.gpt2-sinusoidal")
def learned_tables_read_as_alibi(patch: Patch) -> None:
    for family in ("bert", "gpt2"):
        patch.setitem(UNROTATED, family, ALIBI)


# -- attention, caches, linear attention ------------------------------------------------------------------------------


@mutant("linear.both-safe")
def elu_without_the_one(patch: Patch) -> None:
    everywhere(patch, feature_map, lambda x, feature: torch.nn.functional.elu(x))


@mutant("none.causal-order", "note.permutation-invariant")
def a_causal_mask_that_is_ignored(patch: Patch) -> None:
    everywhere(patch, attention, lambda *given, causal=True, **options: attention(*given, causal=False, **options))


@mutant("cache.growing-length", "rerope.cache", "leaky_rerope.cache", "self_extend.cache")
def rotated_keys_kept_for_ever(patch: Patch) -> None:
    for cls in (Encoding, xpos.XPos):
        patch.setattr(cls, "key_policy", property(lambda self: "transformed"))


@mutant("rope.cache", "alibi.cache", "t5.cache", "xpos.cache", "rope+yarn.cache", "rope+alibi.cache")
def a_cache_off_by_one(patch: Patch) -> None:
    own = cache.KVCache._new_positions

    def placed(self: Any, k: Any, positions: Any, key_mask: Any) -> Any:
        found = own(self, k, positions, key_mask)
        return found._replace(new=found.new + (1 if len(self) else 0))

    patch.setattr(cache.KVCache, "_new_positions", placed)
    patch.setattr(decoding_kinds, "why_not_step", lambda *_: "steps that count by themselves are left out")


def every_cache() -> tuple[str, ...]:
    return tuple(f"{name}.cache" for name in names())


@mutant(
    *every_cache(), "cache.growing-length", "rope+yarn.cache", "rope+dynamic_ntk.cache", "rope+alibi.cache",
    "alibi+hf_bf16.cache", "note.relative-no-cache",
)  # fmt: skip
def a_cache_that_loses_a_value(patch: Patch) -> None:
    own = cache.appended

    def appended(slots: Any, k: Any, v: Any, *given: Any) -> Any:
        kept = v.clone()
        kept[:, :, -1] = 0
        return own(slots, k, kept, *given)

    patch.setattr(cache, "appended", appended)


@mutant(
    *flagged("linear_attention", True), "linear.forms-agree", "rope+yarn.flag.linear-attention",
    "rope+dynamic_ntk.flag.linear-attention", "note.decay-not-linear",
)  # fmt: skip
def linear_sums_a_token_late(patch: Patch) -> None:
    own = linear.past_keys

    def late(*given: Any) -> Any:
        sums, state = own(*given)
        return torch.cat((sums[..., :1, :], sums[..., :-1, :]), dim=-2), state

    patch.setattr(linear, "past_keys", late)


@mutant("linear.forms-agree")
def a_state_that_fades(patch: Patch) -> None:
    own = linear.go_on

    def fading(*given: Any) -> Any:
        sums, state = own(*given)
        return sums, state._replace(sums=0.99 * state.sums)

    patch.setattr(linear, "go_on", fading)


@mutant("linear.one-plus-cosine-sharp", "linear.one-plus-cosine")
def cosines_of_vectors_that_are_not_of_length_one(patch: Patch) -> None:
    own = linear_terms.unit
    patch.setattr(linear_terms, "unit", lambda x: 2 * own(x))


@mutant("linear.one-plus-cosine")
def cosines_a_little_too_large(patch: Patch) -> None:
    own = linear_terms.unit
    patch.setattr(linear_terms, "unit", lambda x: 1.2 * own(x))  # features above zero are seldom far apart


@mutant("linear.cost", "note.decay-not-linear")
def fading_sums_that_mix_all_chunks(patch: Patch) -> None:
    patch.setattr(linear_forms, "SEGMENT_CHUNKS", 2**20)


@mutant("note.decay-not-linear")
def a_query_that_counts_itself_on_both_sides(patch: Patch) -> None:
    own = linear_forms.past_keys
    patch.setattr(linear_forms, "past_keys", lambda *given, strict=False: own(*given))


@mutant("linear.cost")
def linear_attention_in_one_chunk(patch: Patch) -> None:
    everywhere(patch, linear_checks.chunk_of, lambda rule, fade: 2**20)


# -- every encoding at once -------------------------------------------------------------------------------------------


@mutant(
    *flagged("decays", False), *flagged("linear_attention", True), "rope+yarn.flag.decays",
    "rope+dynamic_ntk.flag.decays", "note.kerple-exponential", "note.only-rope-linear", "note.t5-stores-length",
    "question.absolute-in-form", "question.proportional",
)  # fmt: skip
def a_bias_towards_near_keys_in_every_encoding(patch: Patch) -> None:
    for cls in classes():
        own = cls.score_bias

        def score_bias(self: Any, q_positions: Any, k_positions: Any, length: Any = None, *, own: Any = own) -> Any:
            found = own(self, q_positions, k_positions, length)
            q, k = (x if self.axes == 1 or x.ndim < 2 else x[0] for x in (q_positions, k_positions))
            near = -1000.0 * (q[..., None, :, None] - k[..., None, None, :]).abs().double()
            return near if found is None else found + near

        patch.setattr(cls, "score_bias", score_bias)


@mutant(
    *flagged("relative", True), *flagged("norm_preserving", True), "log_n.flag.linear-attention",
    "llama4_temperature.flag.linear-attention", "ssmax.flag.linear-attention",
)  # fmt: skip
def keys_that_grow_in_every_encoding(patch: Patch) -> None:
    for cls in classes():
        own = cls.transform_qk

        def transform_qk(
            self: Any, q: Any, k: Any, q_positions: Any, k_positions: Any, length: Any = None, *, own: Any = own
        ) -> Any:
            q, k = own(self, q, k, q_positions, k_positions, length)
            place = k_positions if self.axes == 1 or k_positions.ndim < 2 else k_positions[0]
            return q, k * (1 + 0.01 * place.double()).unsqueeze(-1)

        patch.setattr(cls, "transform_qk", transform_qk)


@mutant(
    *flagged("relative", False), *flagged("norm_preserving", False), "rope+yarn.flag.norm-preserving",
    *flagged("linear_attention", False, "log_n", "llama4_temperature", "ssmax"),
    "alibi+hf_bf16.flag.relative", "rope+alibi.flag.linear-attention", "alibi+hf_bf16.flag.linear-attention",
)  # fmt: skip
def encodings_that_do_nothing(patch: Patch) -> None:
    for cls in classes():
        for hook in HOOKS:
            patch.setattr(cls, hook, getattr(Encoding, hook))


@mutant("alibi+hf_bf16.flag.decays")
def alibi_that_forgets_to_round(patch: Patch) -> None:
    own = alibi.key_form
    patch.setattr(alibi, "key_form", lambda slope, position, rounding: own(slope, position, "exact"))


@mutant("rope+alibi.flag.decays")
def a_rotation_that_does_not_turn(patch: Patch) -> None:
    patch.setattr(Rotary, "transform_qk", lambda self, q, k, *rest, **options: (q, k))
