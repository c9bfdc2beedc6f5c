"""Parts: one record for each place where an encoding enters attention, which everything else reads.

A part names the encoding that it belongs to, whose hook computes its tensors and whose module holds its learned
numbers, and what is known of that hook without calling it: that a rotation is a rotation, that a bias is a product, how
far a mask lets a query see. Attention, caches, kernels and claims ask for parts and never for a class.

What is known holds as long as the hook is the one that was declared. ``settled`` drops it where a class below the
declaring one has written the hook over, so that the new hook is called and not passed by. Methods that only tell
kernels what the hook computes cannot be written over without it.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, TypeVar, dataclass_transform

import torch
from torch import Tensor, nn

from whorl.errors import WhorlError, invalid

if TYPE_CHECKING:
    from whorl.encodings.base import Encoding
    from whorl.encodings.rotary import Rotary

Kind = TypeVar("Kind", bound="Part")


class Reach(NamedTuple):
    """How far a query can see: ``before`` positions back, ``after`` ahead if limited, and the ``first`` of a text."""

    before: int
    after: int | None = None
    first: int = 0


@dataclass_transform(frozen_default=True, eq_default=False)
@dataclass(frozen=True, eq=False)
class Part:
    """One place where an encoding enters attention.

    encoding   the module whose hook computes it
    hook       the public method that does
    known      by the name of a method: the fields that say nothing any more once a subclass has written it over
    restated   by the name of a method that tells kernels what the hook computes: the field that says it does
    shared     whether two encodings may both have such a part
    """

    encoding: Encoding
    hook: ClassVar[str]
    known: ClassVar[Mapping[str, tuple[str, ...]]] = MappingProxyType({})
    restated: ClassVar[Mapping[str, str]] = MappingProxyType({})
    shared: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, eq=False)(cls)

    @property
    def name(self) -> str:
        """The name of the encoding's class, for messages."""
        return type(self.encoding).__name__

    @property
    def axes(self) -> int:
        return self.encoding.axes

    @property
    def causal_only(self) -> bool:
        return self.encoding.causal_only

    @property
    def length_dependent(self) -> bool:
        return self.encoding.length_dependent

    @property
    def heads(self) -> int | None:
        """How many heads have numbers of their own, or None for any."""
        return getattr(self.encoding.config, "heads", None)

    @property
    def static(self) -> tuple[Hashable, ...]:
        """All that tells this part from another but for learned numbers: a key of caches, a constant in graphs."""
        facts = (getattr(self, field.name) for field in fields(self))
        # an encoding is known by what it was built from; its learned numbers are read at every call
        return (type(self), *((type(fact), fact.config) if isinstance(fact, nn.Module) else fact for fact in facts))

    def without(self, written_over: set[str]) -> Part:
        """The part with what it still knows after these methods were written over.

        Raises a WhorlError where kernels would be told something else than the hook computes.
        """
        dropped = {field for method, known in self.known.items() if method in written_over for field in known}
        default = {field.name: field.default for field in fields(self)}
        part = replace(self, **{field: default[field] for field in dropped}) if dropped else self
        for method, field in self.restated.items():
            if method in written_over and getattr(part, field) != default[field]:
                raise WhorlError(
                    f"{self.name}: {method} tells kernels what {self.hook} computes, which is not written over. "
                    f"Write that or what it is made of over too, or say in declare() what holds of {self.name}."
                )
        return part


def numbers_of(call: str, bias: object) -> Tensor:
    """What a formula of a bias gave, in a floating dtype, or a WhorlError."""
    if not isinstance(bias, Tensor) or bias.dtype == torch.bool or bias.is_complex():
        remedy = "What hides keys is a mask; -inf hides them too."
        raise invalid(call, "the bias", "a tensor of numbers to add to scores", bias, remedy)
    return bias if bias.is_floating_point() else bias.float()


class Input(Part):
    """What is added to token embeddings."""

    hook = "add_to_input"


class QueryScale(Part):
    """Numbers that multiply queries, before any placement or branch: it stands beside every other part.

    ``by_position`` says that ``query_factor`` has them, of positions and heads, and nothing else is done.
    """

    hook = "transform_qk"
    known = MappingProxyType({"transform_qk": ("by_position",)})
    shared = True
    by_position: bool = False


class Placement(Part):
    """Where queries and keys are put. ``rotary`` turns them, where they are turned and nothing else but faded."""

    hook = "transform_qk"
    known = dict.fromkeys(("transform_qk", "linear_qk", "rotate", "turn"), ("rotary",))
    rotary: Rotary | None = None


class Fade(Part):
    """Rates at which products of queries and keys fade with the distance, by dimension: ``linear_decay``.

    ``rates`` are those of each pair, as logarithms by position, by which ``transform_qk`` fades too, around the middle
    of the queries; None where that is not known.
    """

    hook = "linear_decay"
    known = dict.fromkeys(("linear_decay", "transform_qk"), ("rates",))
    rates: tuple[float, ...] | None = None


class Bias(Part):
    """A number added to each score, of the head and the two positions.

    formula      whether ``bias_at`` gives the number of one head, query and key
    fold_dims    how many further dimensions of queries and keys ``fold`` makes of it in float32; 0 if it is no product
    slopes       by head, where the number is slope * (key - query); ``line`` has it in any dtype
    not_in_flex  why FlexAttention's CUDA kernel cannot hold the formula, or None
    """

    hook = "score_bias"
    known = MappingProxyType(
        dict.fromkeys(("bias_at", "bias_of", "slopes"), ("fold_dims", "slopes"))
        | {"score_bias": ("formula", "fold_dims", "slopes")}
    )
    restated = MappingProxyType({"fold": "fold_dims", "fold_fits": "fold_dims", "line": "slopes"})
    formula: bool = False
    fold_dims: int = 0
    slopes: tuple[float, ...] | None = None
    not_in_flex: str | None = None


class BiasByPair(Bias):
    """A bias of the head and both positions.

    lines        how many straight lines it is made of, in x = log2(1 + c distance) r, c being a number of all pairs and
                 r one of the query: ``line_numbers`` has all of them; 0 for any other
    """

    known = MappingProxyType(
        {**Bias.known} | {method: (*Bias.known[method], "lines") for method in ("bias_at", "score_bias")}
    )
    restated = MappingProxyType({**Bias.restated, **dict.fromkeys(("line_numbers", "formed_lines"), "lines")})
    lines: int = 0


class BiasByDistance(Bias):
    """A bias of the head and the distance alone: ``bias_of``.

    curve        "log", -p ln(1 + a distance), or "power", -a distance^p, of the two numbers that ``curve_numbers`` has
                 for each head, (heads, 2); None for any other
    flat_beyond  the distance from which the bias stays what it is, on either side; None where it never does
    bucketed     whether it is a learned number of the distance's bucket, which ``bias_between`` reads for many at once
    """

    known = MappingProxyType(
        {**Bias.known}
        | {
            method: (*Bias.known.get(method, ()), "curve", "flat_beyond", "bucketed")
            for method in ("bias_of", "bias_at", "score_bias")
        }
    )
    restated = MappingProxyType({**Bias.restated, "curve_numbers": "curve", "bias_between": "bucketed"})
    curve: str | None = None
    flat_beyond: int | None = None
    bucketed: bool = False

    def table(self, distances: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """The bias (heads, distances) in a dtype, with gradients to what is learned."""
        source: Any = self.encoding  # a DistanceBias, or whatever else declares such a bias
        heads = torch.arange(source.heads, device=distances.device)
        bias = numbers_of(f"{self.name}.bias_of", source.bias_of(heads[:, None], distances[None, :]))
        return bias.to(dtype).expand(source.heads, distances.shape[0])  # also where it is the same for every head

    def table_between(self, lowest: int, highest: int, device: torch.device) -> Tensor:
        """As ``table``, of all distances from one to another."""
        source: Any = self.encoding
        if self.bucketed:
            return source.bias_between(lowest, highest, device)
        return self.table(torch.arange(lowest, highest + 1, device=device))

    def without(self, written_over: set[str]) -> Part:
        part = super().without(written_over)
        if not written_over & {"score_bias", "bias_at"}:
            return part
        return BiasByPair(**{field.name: getattr(part, field.name) for field in fields(Bias)})


def bias_by_distance(encoding: Encoding) -> BiasByDistance:
    """That part of an encoding which has one."""
    part = first(encoding, BiasByDistance)
    assert part is not None
    return part


class ScoreTerm(Part):
    """Terms of raw queries and keys on the scores. ``whole_row``: each needs the scores of all keys of a query.

    form         what they are made of, where that is known:
                 "rows", rows of tables that raw queries and keys meet, by distance: ``rows_by_distance``;
                 "counts", rows that queries meet, by how many gates sigmoid(score) are open from the key to the query:
                 ``rows_by_count``;
                 "sums", what ``remember`` keeps, summed over the tokens after the key up to the query
    """

    hook = "adjust_scores"
    known = MappingProxyType({"adjust_scores": ("whole_row", "form"), "add_terms": ("form",)})
    restated = dict.fromkeys(("rows_by_distance", "rows_by_count", "running_sums", "within_documents"), "form")
    whole_row: bool = False
    form: Literal["rows", "counts", "sums"] | None = None

    @property
    def counts_tokens(self) -> bool:
        """Whether they depend on the order in which keys are given, which is that of the text."""
        return self.whole_row or self.counts_to_query

    @property
    def counts_to_query(self) -> bool:
        """Whether they depend on how many keys follow up to the query, the last one standing at the last key."""
        return self.encoding.reads_hidden or self.causal_only


class RowLessColumn(ScoreTerm):
    """A number of the query less one of the key: running sums of what was remembered of tokens (``running_sums``).

    Where tokens are of several documents, ``within_documents`` of it is summed, the tokens between being of any.
    """

    def without(self, written_over: set[str]) -> Part:
        part = super().without(written_over)
        return ScoreTerm(self.encoding) if written_over & {"adjust_scores", "add_terms"} else part


class OutputTerm(Part):
    """Terms on the values, which need the weights. ``form`` "rows": rows by distance, of ``rows_by_distance``."""

    hook = "adjust_output"
    known = MappingProxyType({"adjust_output": ("form",)})
    restated = MappingProxyType({"rows_by_distance": "form"})
    form: Literal["rows"] | None = None


class Branches(Part):
    """Several placements, each for a region of pairs.

    ``near`` is the distance of consecutive tokens up to which pairs are in the first one, and from which on keys before
    the query are in the second; 0 where that is not known.
    """

    hook = "branches"
    known = dict.fromkeys(("branches", "transform_branch", "scale_queries"), ("near",))
    near: int = 0


class Visibility(Part):
    """Which keys a query sees, and how far they can be; ``reach`` is None where that is not known.

    ``whole`` says that a query sees every key within reach, so that nobody need ask for the mask.
    """

    hook = "mask"
    known = MappingProxyType({"mask": ("reach", "whole")})
    shared = True
    reach: Reach | None = None
    whole: bool = False


class SoftmaxScale(Part):
    """What multiplies scores before the softmax, in place of 1 / sqrt(head_dim) or times it."""

    hook = "softmax_scale"
    shared = True  # with most settings it is the usual number; ``Combined`` looks


# What a hook means of which nothing is known but that a class has it, in the order in which position enters.
OF_HOOK: dict[str, type[Part]] = {
    kind.hook: kind
    for kind in (Input, Placement, BiasByPair, ScoreTerm, OutputTerm, Branches, Visibility, SoftmaxScale, Fade)
}


def settled(encoding: Encoding) -> tuple[Part, ...]:
    """The parts that an encoding declares, less what classes below the declaring one have written over.

    >>> import whorl
    >>> class Mine(whorl.Window):
    ...     def mask(self, q_positions, k_positions):
    ...         return super().mask(q_positions, k_positions) | (k_positions % 7 == 0)
    >>> first(whorl.Window(size=9), Visibility).reach, first(Mine(size=9), Visibility).reach
    (Reach(before=8, after=None, first=0), None)
    """
    classes = type(encoding).__mro__
    declare = [i for i, cls in enumerate(classes) if "declare" in cls.__dict__]  # the last is Encoding
    written_over = {name for cls in classes[: declare[0]] for name in cls.__dict__}
    used = {hook for hook in OF_HOOK if getattr(classes[0], hook) is not getattr(classes[declare[-1]], hook)}
    kept = [
        part.without(written_over)
        for part in encoding.declare()
        # a hook of its own stands for those of the encodings that are joined in it
        if (part.hook in used if part.encoding is encoding else part.hook not in written_over)
    ]
    hooks = {part.hook for part in kept}
    return (*kept, *(OF_HOOK[hook](encoding) for hook in OF_HOOK if hook in used & written_over - hooks))


def first(encoding: Encoding, *kinds: type[Kind]) -> Kind | None:
    """The first part of these kinds, or None.

    >>> import whorl
    >>> first(whorl.Combined(whorl.Rope(head_dim=8), whorl.Alibi(heads=4)), Bias).slopes
    (0.25, 0.0625, 0.015625, 0.00390625)
    """
    for part in encoding.parts:
        if isinstance(part, kinds):
            return part
    return None


def every(encoding: Encoding, *kinds: type[Kind]) -> list[Kind]:
    """All parts of these kinds, in order."""
    return [part for part in encoding.parts if isinstance(part, kinds)]


def lone_rotation(encoding: Encoding) -> Rotary | None:
    """The rotation that places queries and keys, or None where something else does, too or instead."""
    places = every(encoding, Placement, QueryScale, Fade)
    only = places[0] if len(places) == 1 else None
    return only.rotary if isinstance(only, Placement) else None


def hides_by_reach(encoding: Encoding) -> bool:
    """Whether a query sees every key within the encoding's ``reach``, so that nobody need ask for its mask."""
    masks = every(encoding, Visibility)
    return len(masks) <= 1 and all(mask.whole for mask in masks)
