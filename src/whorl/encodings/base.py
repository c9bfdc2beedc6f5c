"""Encoding: one class with a hook for each place where position can enter a transformer.

Every hook does nothing by default, so an encoding overrides exactly the places it uses. What else is known of them it
declares as parts (``encodings/parts.py``), and everything that follows from parts is derived here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Self

import torch
from torch import Tensor, nn

from whorl.config import Config
from whorl.encodings.parts import (
    Bias,
    Branches,
    Fade,
    Part,
    Placement,
    QueryScale,
    Reach,
    ScoreTerm,
    Visibility,
    every,
    first,
    settled,
)
from whorl.errors import WhorlError
from whorl.graphs import Function

HOOKS = ("add_to_input", "transform_qk", "score_bias", "adjust_scores", "adjust_output", "branches", "mask")


class Branch(NamedTuple):
    """One way to place queries and keys, for the pairs of them where ``allowed`` holds."""

    q_positions: Tensor
    k_positions: Tensor
    allowed: Tensor  # (queries, keys) or (batch, queries, keys)


@dataclass(frozen=True, kw_only=True)
class Claims:
    """What an encoding says of itself; the ledger measures each."""

    relative: bool  # scores depend on the distance of query and key only
    norm_preserving: bool  # every vector that it changes keeps its length
    linear_attention: bool  # works without forming the score matrix
    decays: bool  # distant keys weigh less, by construction and not as a trend
    extrapolates: bool  # quality holds at 4 times the trained length


def follows_from(*sources: str) -> Callable[[Function], Function]:
    """Marks a method that no subclass can write over: others decide it, and some paths ask those."""

    def mark(function: Function) -> Function:
        function._follows_from = sources  # pyright: ignore[reportFunctionMemberAccess]
        return function

    return mark


def _check_written_over(cls: type, name: str) -> None:
    """Raises a WhorlError where a class writes over what follows from other methods."""
    for base in cls.__mro__[1:]:
        given = base.__dict__.get(name)
        sources = getattr(getattr(given, "fget", given), "_follows_from", None)
        if sources:
            raise WhorlError(
                f"{cls.__name__}: {name} follows from {' and '.join(sources)}, and some paths would not ask for one of "
                f"its own. Write {' or '.join(sources)} over."
            )


class EncodingType(type):
    """Settles the parts of an encoding once it is built: graphs and steps find them ready."""

    def __call__(cls, *args: Any, **settings: Any):
        encoding = super().__call__(*args, **settings)
        encoding._parts = settled(encoding)
        return encoding


class Encoding(nn.Module, metaclass=EncodingType):
    """A position encoding, built from keyword settings that its ``config`` records."""

    Config: ClassVar[type[Config]]
    claims: Claims  # of the class, or a property where they depend on settings
    _parts: tuple[Part, ...] | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in cls.__dict__:
            _check_written_over(cls, name)
        if "Config" in cls.__dict__:
            cls.__signature__ = inspect.signature(cls.Config)  # so that help() shows the settings

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.config = self.Config(**settings)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_parts"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._restore()
        self._parts = settled(self)

    def _restore(self) -> None:
        """Makes anew what a pickle of another process or an older version has otherwise."""

    @classmethod
    def from_config(cls, config: Config) -> Self:
        """The encoding with this config."""
        return cls(**{name: getattr(config, name) for name in config.fields()})

    def declare(self) -> tuple[Part, ...]:
        """What is known of the places where position enters; a hook that is not declared is a part all the same."""
        return ()

    @property
    def parts(self) -> tuple[Part, ...]:
        """One record for each place where position enters, which attention, caches and kernels read."""
        if self._parts is None:  # a subclass asks while it is being built
            return settled(self)
        return self._parts

    @property
    def joined(self) -> Iterable[Encoding]:
        """The encodings that act together in this one; none but for ``Combined``."""
        return ()

    @property
    def length_dependent(self) -> bool:
        """Whether the encoding of a position changes with the ``length`` that is served."""
        return any(encoding.length_dependent for encoding in self.joined)

    @property
    def axes(self) -> int:
        """How many axes a position has."""
        return max([1, *[encoding.axes for encoding in self.joined]])

    @property
    def causal_only(self) -> bool:
        """Whether the encoding has a meaning for keys up to the query only."""
        return any(encoding.causal_only for encoding in self.joined)

    @property
    @follows_from("declare")
    def counts_tokens(self) -> bool:
        """Whether scores depend on the order in which keys are given, which is that of the text."""
        return any(term.counts_tokens for term in every(self, ScoreTerm))

    @property
    @follows_from("declare")
    def scales_queries_only(self) -> bool:
        """Whether ``transform_qk`` only multiplies queries by numbers, so that it commutes with a rotation."""
        return first(self, QueryScale) is not None and not self.joined

    @property
    @follows_from("remember")
    def reads_hidden(self) -> bool:
        """Whether ``adjust_scores`` needs something of the hidden states."""
        return type(self).remember is not Encoding.remember or any(encoding.reads_hidden for encoding in self.joined)

    @property
    def key_policy(self) -> Literal["transformed", "raw"]:
        """What a cache keeps: keys after ``transform_qk``, or before it where a later call needs them so."""
        again = first(self, Branches, Fade) or (first(self, ScoreTerm) and first(self, Placement, QueryScale))
        raw = again or self.length_dependent or any(encoding.key_policy == "raw" for encoding in self.joined)
        return "raw" if raw else "transformed"

    @classmethod
    def enters(cls) -> tuple[str, ...]:
        """The hooks this encoding uses: where position enters."""
        return tuple(hook for hook in HOOKS if getattr(cls, hook) is not getattr(Encoding, hook))

    def query_limit(self, dtype: torch.dtype) -> int | None:
        """How many queries ``transform_qk`` can place at a time in this dtype, or None for any number."""
        limits = [limit for limit in [encoding.query_limit(dtype) for encoding in self.joined] if limit is not None]
        return min(limits) if limits else None

    def add_to_input(self, x: Tensor, positions: Tensor) -> Tensor:
        """Token embeddings with position added."""
        for encoding in self.joined:
            x = encoding.add_to_input(x, positions)
        return x

    def transform_qk(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor, length: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Queries and keys, rotated or scaled by position."""
        for encoding in self.joined:
            q, k = encoding.transform_qk(q, k, q_positions, k_positions, length)
        return q, k

    def linear_qk(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor, length: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Queries and keys as linear attention takes them: without what ``linear_decay`` fades."""
        if not self.joined or type(self).transform_qk is not Encoding.transform_qk:
            return self.transform_qk(q, k, q_positions, k_positions, length)
        for encoding in self.joined:
            q, k = encoding.linear_qk(q, k, q_positions, k_positions, length)
        return q, k

    def linear_decay(self) -> tuple[float, ...] | None:
        """The logarithm of what each dimension's product of query and key is multiplied by per position, or None."""
        logs = [log for log in (encoding.linear_decay() for encoding in self.joined) if log is not None]
        return tuple(map(sum, zip(*logs, strict=True))) if logs else None

    def score_bias(self, q_positions: Tensor, k_positions: Tensor, length: int | None = None) -> Tensor | None:
        """A bias per head that depends on positions only, or None."""
        biases = (encoding.score_bias(q_positions, k_positions, length) for encoding in self.joined)
        return next((bias for bias in biases if bias is not None), None)

    @property
    @follows_from("declare")
    def folds(self) -> bool:
        """Whether the bias is separable, so that ``fold`` can put it into further dimensions of queries and keys."""
        return self.fold_dims > 0

    @property
    @follows_from("declare")
    def fold_dims(self) -> int:
        """How many further dimensions ``fold`` adds in float32."""
        bias = first(self, Bias)
        return 0 if bias is None else bias.fold_dims

    def fold_fits(self, dtype: torch.dtype, scale: float) -> bool:
        """Whether ``fold`` has numbers of this dtype at this scale."""
        return all(encoding.fold_fits(dtype, scale) for encoding in self.joined)

    def fold(self, q_positions: Tensor, k_positions: Tensor, dtype: torch.dtype, scale: float) -> tuple[Tensor, Tensor]:
        """Further dimensions whose inner product, times ``scale``, is the bias, up to a constant per query.

        The first broadcasts against (batch, heads, queries, e), the second against (batch, heads, keys, e).
        """
        for encoding in self.joined:
            if encoding.folds:
                return encoding.fold(q_positions, k_positions, dtype, scale)
        raise NotImplementedError

    def adjust_scores(
        self,
        scores: Tensor,
        q: Tensor,
        k: Tensor,
        q_positions: Tensor,
        k_positions: Tensor,
        hidden: Tensor | None = None,
        *,
        scale: float,
    ) -> Tensor:
        """Scores with content-dependent terms, before any bias.

        ``scores`` (batch, heads, queries, keys) are scaled already; a term made of q and k is multiplied by
        ``scale`` here. Scores of keys that a query may not see are minus infinity already. q and k come before
        ``transform_qk``, k with as many heads as q. ``hidden`` is what ``remember`` kept of the keys' tokens, 0 for
        padding.
        """
        for encoding in self.joined:
            scores = encoding.adjust_scores(scores, q, k, q_positions, k_positions, hidden, scale=scale)
        return scores

    def adjust_output(
        self, out: Tensor, weights: Tensor, v: Tensor, q_positions: Tensor, k_positions: Tensor
    ) -> Tensor:
        """The attention output with terms on the values."""
        for encoding in self.joined:
            out = encoding.adjust_output(out, weights, v, q_positions, k_positions)
        return out

    def branches(self, q_positions: Tensor, k_positions: Tensor) -> tuple[Branch, ...] | None:
        """Several placements with disjoint masks, one score each; None where ``transform_qk`` has one for all."""
        found = (encoding.branches(q_positions, k_positions) for encoding in self.joined)
        return next((branches for branches in found if branches is not None), None)

    @follows_from("declare")
    def one_branch(self, keys: int) -> bool:
        """Whether the first branch, placed by ``transform_qk``, holds every pair of ``keys`` consecutive positions."""
        branches = first(self, Branches)
        return branches is not None and keys <= branches.near

    def transform_branch(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor, length: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Queries and keys at the positions of a branch."""
        if not self.joined:
            return self.transform_qk(q, k, q_positions, k_positions, length)
        for encoding in self.joined:
            if not encoding.scales_queries_only:
                q, k = encoding.transform_branch(q, k, q_positions, k_positions, length)
        return q, k

    def scale_queries(self, q: Tensor, q_positions: Tensor, length: int | None = None) -> Tensor:
        """Queries before any branch places them, at their own positions."""
        for encoding in self.joined:
            if encoding.scales_queries_only:
                q, _ = encoding.transform_qk(q, q, q_positions, q_positions, length)
            else:
                q = encoding.scale_queries(q, q_positions, length)
        return q

    def remember(self, hidden: Tensor) -> Tensor | None:
        """What ``adjust_scores`` needs of hidden states (batch, length, width), tokens on the last axis; or None."""
        kept = (encoding.remember(hidden) for encoding in self.joined)
        return next((memory for memory in kept if memory is not None), None)

    def softmax_scale(self, head_dim: int, length: int | None = None) -> float:
        """What multiplies the scores before the softmax."""
        for encoding in self.joined:
            if sets_scale(encoding):
                return encoding.softmax_scale(head_dim, length)
        return head_dim**-0.5

    def mask(self, q_positions: Tensor, k_positions: Tensor) -> Tensor | None:
        """Which keys a query may see, or None for all."""
        allowed: Tensor | None = None
        for encoding in self.joined:
            seen = encoding.mask(q_positions, k_positions)
            if seen is not None:
                allowed = seen if allowed is None else allowed & seen
        return allowed

    @property
    @follows_from("declare")
    def reach(self) -> Reach | None:
        """How far ``mask`` lets a query see, so that keys beyond are not looked at; None where it is not known."""
        known = [part.reach for part in every(self, Visibility) if part.reach is not None]
        return min(known, key=lambda reach: reach.before) if known else None  # a key must be seen by all

    def extra_repr(self) -> str:
        fields = self.config.fields()
        given = {name: getattr(self.config, name) for name in fields}
        return ", ".join(f"{name}={value!r}" for name, value in given.items() if value != fields[name].default)


def sets_scale(encoding: Encoding) -> bool:
    """Whether an encoding changes the softmax scale with these settings."""
    return encoding.softmax_scale(64) != 64**-0.5
