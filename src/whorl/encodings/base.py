"""Encoding: one class with a hook for each place where position can enter a transformer.

Every hook does nothing by default, so an encoding overrides exactly the places it uses.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Self

import torch
from torch import Tensor, nn

from whorl.config import Config

HOOKS = ("add_to_input", "transform_qk", "score_bias", "adjust_scores", "adjust_output", "branches", "mask")


class Branch(NamedTuple):
    """One way to place queries and keys, for the pairs of them where ``allowed`` holds."""

    q_positions: Tensor
    k_positions: Tensor
    allowed: Tensor  # (queries, keys) or (batch, queries, keys)


class Reach(NamedTuple):
    """How far a query can see: ``before`` positions back, ``after`` ahead if limited, and the ``first`` of a text."""

    before: int
    after: int | None = None
    first: int = 0


@dataclass(frozen=True, kw_only=True)
class Claims:
    """What an encoding says of itself; the ledger measures each."""

    relative: bool  # scores depend on the distance of query and key only
    norm_preserving: bool  # queries and keys keep their length
    linear_attention: bool  # works without forming the score matrix
    decays: bool  # distant keys weigh less, by construction and not as a trend
    extrapolates: bool  # quality holds past the trained length


class Encoding(nn.Module):
    """A position encoding, built from keyword settings that its ``config`` records."""

    Config: ClassVar[type[Config]]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "Config" in cls.__dict__:
            cls.__signature__ = inspect.signature(cls.Config)  # so that help() shows the settings

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.config = self.Config(**settings)

    @classmethod
    def from_config(cls, config: Config) -> Self:
        """The encoding with this config."""
        return cls(**{name: getattr(config, name) for name in config.fields()})

    @property
    def claims(self) -> Claims:
        """What this encoding claims with these settings."""
        raise NotImplementedError

    @property
    def length_dependent(self) -> bool:
        """Whether the encoding of a position changes with the ``length`` that is served."""
        return False

    @property
    def axes(self) -> int:
        """How many axes a position has."""
        return 1

    @property
    def causal_only(self) -> bool:
        """Whether the encoding has a meaning for keys up to the query only."""
        return False

    @property
    def counts_tokens(self) -> bool:
        """Whether scores depend on the order in which keys are given, which is that of the text."""
        return self.reads_hidden or ("adjust_scores" in self.enters() and self.causal_only)

    @property
    def scales_queries_only(self) -> bool:
        """Whether ``transform_qk`` only multiplies queries by numbers, so that it commutes with a rotation."""
        return False

    @property
    def reads_hidden(self) -> bool:
        """Whether ``adjust_scores`` needs something of the hidden states."""
        return type(self).remember is not Encoding.remember

    @property
    def key_policy(self) -> Literal["transformed", "raw"]:
        """What a cache keeps: keys after ``transform_qk``, or before it where a later call needs them so."""
        uses = self.enters()
        again = "branches" in uses or ("adjust_scores" in uses and "transform_qk" in uses)
        return "raw" if again or self.length_dependent else "transformed"

    @classmethod
    def enters(cls) -> tuple[str, ...]:
        """The hooks this encoding uses: where position enters."""
        return tuple(hook for hook in HOOKS if getattr(cls, hook) is not getattr(Encoding, hook))

    def query_limit(self, dtype: torch.dtype) -> int | None:
        """How many queries ``transform_qk`` can place at a time in this dtype, or None for any number."""
        return None

    def add_to_input(self, x: Tensor, positions: Tensor) -> Tensor:
        """Token embeddings with position added."""
        return x

    def transform_qk(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor, length: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Queries and keys, rotated or scaled by position."""
        return q, k

    def score_bias(self, q_positions: Tensor, k_positions: Tensor, length: int | None = None) -> Tensor | None:
        """A bias per head that depends on positions only, or None."""
        return None

    @property
    def folds(self) -> bool:
        """Whether the bias is separable, so that ``fold`` can put it into further dimensions of queries and keys."""
        return False

    @property
    def fold_dims(self) -> int:
        """How many further dimensions ``fold`` adds in float32."""
        return 0

    def fold(self, q_positions: Tensor, k_positions: Tensor, dtype: torch.dtype, scale: float) -> tuple[Tensor, Tensor]:
        """Further dimensions whose inner product, times ``scale``, is the bias, up to a constant per query.

        The first broadcasts against (batch, heads, queries, e), the second against (batch, heads, keys, e).
        """
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
        return scores

    def adjust_output(
        self, out: Tensor, weights: Tensor, v: Tensor, q_positions: Tensor, k_positions: Tensor
    ) -> Tensor:
        """The attention output with terms on the values."""
        return out

    def branches(self, q_positions: Tensor, k_positions: Tensor) -> tuple[Branch, ...] | None:
        """Several placements with disjoint masks, one score each; None where ``transform_qk`` has one for all."""
        return None

    def one_branch(self, keys: int) -> bool:
        """Whether the first branch, placed by ``transform_qk``, holds every pair of ``keys`` consecutive positions."""
        return False

    def transform_branch(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor, length: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Queries and keys at the positions of a branch."""
        return self.transform_qk(q, k, q_positions, k_positions, length)

    def scale_queries(self, q: Tensor, q_positions: Tensor, length: int | None = None) -> Tensor:
        """Queries before any branch places them, at their own positions."""
        return q

    def remember(self, hidden: Tensor) -> Tensor | None:
        """What ``adjust_scores`` needs of hidden states (batch, length, width), tokens on the last axis; or None."""
        return None

    def softmax_scale(self, head_dim: int, length: int | None = None) -> float:
        """What multiplies the scores before the softmax."""
        return head_dim**-0.5

    def mask(self, q_positions: Tensor, k_positions: Tensor) -> Tensor | None:
        """Which keys a query may see, or None for all."""
        return None

    @property
    def reach(self) -> Reach | None:
        """How far ``mask`` lets a query see, so that keys beyond are not looked at; None where it says nothing."""
        return None

    def extra_repr(self) -> str:
        fields = self.config.fields()
        given = {name: getattr(self.config, name) for name in fields}
        return ", ".join(f"{name}={value!r}" for name, value in given.items() if value != fields[name].default)


def says(encoding: Encoding, short: str, *hooks: str) -> bool:
    """Whether what an encoding says in short still tells of its hooks: none was written over below the class that said.

    >>> import whorl
    >>> class Mine(whorl.Window):
    ...     def mask(self, q_positions, k_positions):
    ...         return super().mask(q_positions, k_positions) | (k_positions % 7 == 0)
    >>> says(whorl.Window(), "reach", "mask"), says(Mine(), "reach", "mask")
    (True, False)
    """
    said, *below = (
        next(i for i, cls in enumerate(type(encoding).__mro__) if name in cls.__dict__) for name in (short, *hooks)
    )
    return said <= min(below)


def reach_of(encoding: Encoding) -> Reach | None:
    """How far an encoding's mask lets a query see; None for one whose ``mask`` was written over what it says."""
    return encoding.reach if says(encoding, "reach", "mask") else None


def has_one_branch(encoding: Encoding, keys: int) -> bool:
    """Whether all pairs of so many consecutive positions are in the first branch, unless it was written over."""
    hooks = ("branches", "transform_branch", "scale_queries")
    return says(encoding, "one_branch", *hooks) and encoding.one_branch(keys)
