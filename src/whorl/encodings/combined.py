"""Combined: several encodings as one, where position enters at different places.

RoPE with ALiBi, RoPE with a learned bias, ReRoPE with log-n, any of them within a window: rotate, then add,
then mask. Encodings that want the same place are refused, because their order would be a guess. Two joins
are no guess: masks intersect, and a scheme that only scales queries commutes with a rotation. Joining is flat: what
is joined already counts as its parts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any, ClassVar, Self

from torch import Tensor, nn

from whorl.config import Config, config
from whorl.encodings.base import HOOKS, Branch, Claims, Encoding, Reach, has_one_branch, reach_of, says
from whorl.errors import WhorlError, invalid


@config
class CombinedConfig(Config):
    """The configs of the parts, in order; those of a combined part stand in its place."""

    name: ClassVar[str] = "combined"
    parts: tuple[Config, ...]

    def check(self) -> None:
        flat = [one for part in self.parts for one in (part.parts if isinstance(part, CombinedConfig) else (part,))]
        object.__setattr__(self, "parts", tuple(flat))

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "parts": [part.to_dict() for part in self.parts]}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        from whorl import registry  # it names this class; imported late, as in Config.from_dict

        cls.check_names({key: value for key, value in data.items() if key != "name"})
        if not isinstance(data["parts"], (list, tuple)):
            raise invalid("Combined.from_dict", "parts", "a list of dicts", data["parts"], "Pass what to_dict() gave.")
        for part in data["parts"]:
            if not isinstance(part, dict) or "name" not in part:
                raise invalid(
                    "Combined.from_dict", "every part", "a dict with a name", part, "Pass what to_dict() gave."
                )
        parts = [registry.encoding_class(part["name"]).Config.from_dict(part) for part in data["parts"]]
        return cls(parts=tuple(parts))


class Combined(Encoding):
    """Several encodings that act together.

    >>> import whorl
    >>> both = whorl.Combined(whorl.Rope(head_dim=64), whorl.Alibi(heads=8))
    >>> both.enters()
    ('transform_qk', 'score_bias')
    """

    Config = CombinedConfig
    config: CombinedConfig

    def __init__(self, *encodings: Encoding) -> None:
        for encoding in encodings:
            if not isinstance(encoding, Encoding):
                raise invalid("Combined", "every part", "an encoding", encoding, "Build parts by name: whorl.build(…).")
        if len(encodings) < 2:
            raise invalid("Combined", "encodings", "at least 2", len(encodings), "One encoding needs no joining.")
        encodings = _flat(encodings)
        _check_places(encodings)
        super().__init__(parts=[encoding.config for encoding in encodings])
        self.encodings = nn.ModuleList(encodings)

    @classmethod
    def from_config(cls, config: Config) -> Self:
        from whorl import registry

        assert isinstance(config, CombinedConfig)
        return cls(*(registry.encoding_class(part.name).from_config(part) for part in config.parts))

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.encodings = nn.ModuleList(_flat(self._parts))  # whorl 0.1 kept what was joined already as one part
        self.config = CombinedConfig(parts=tuple(part.config for part in self._parts))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *more: Any, **named: Any) -> None:
        _flatten_names(
            state_dict, f"{prefix}encodings.", [i for i, part in enumerate(self._parts) if part.state_dict()]
        )
        super()._load_from_state_dict(state_dict, prefix, *more, **named)

    @property
    def claims(self) -> Claims:
        """The join of what the parts claim: relative if all are, decaying if one is and no other favours a distance."""
        own = [part.claims for part in self._parts]
        return Claims(
            relative=all(one.relative for one in own),
            norm_preserving=all(one.norm_preserving for one in own),
            linear_attention=all(one.linear_attention for one in own),
            decays=any(one.decays for one in own)
            and all(p.claims.decays or p.scales_queries_only or set(p.enters()) <= {"mask"} for p in self._parts),
            extrapolates=all(one.extrapolates for one in own),
        )

    @property
    def length_dependent(self) -> bool:
        return any(part.length_dependent for part in self._parts)

    @property
    def axes(self) -> int:
        return max(part.axes for part in self._parts)

    @property
    def causal_only(self) -> bool:
        return any(part.causal_only for part in self._parts)

    @property
    def counts_tokens(self) -> bool:
        return any(part.counts_tokens for part in self._parts)

    @property
    def reads_hidden(self) -> bool:
        return any(part.reads_hidden for part in self._parts)

    @property
    def key_policy(self) -> Any:
        return "raw" if any(part.key_policy == "raw" for part in self._parts) else super().key_policy

    def query_limit(self, dtype: Any) -> int | None:
        found: int | None = None
        for part in self._parts:
            limit = part.query_limit(dtype)
            if limit is not None:
                found = limit if found is None else min(found, limit)
        return found

    def enters(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]  # by its parts, not its class
        """The hooks its parts use, and those that a user's own subclass writes over."""
        used = {hook for part in self._parts for hook in part.enters()}
        return tuple(hook for hook in HOOKS if hook in used or self.writes_over(hook))

    def writes_over(self, hook: str) -> bool:
        """Whether a subclass has a hook of its own, so that the parts do not tell what it does."""
        return getattr(type(self), hook) is not getattr(Combined, hook)

    @property
    def folds(self) -> bool:
        """Whether the bias among the parts is separable."""
        return any(part.folds for part in self._parts) and says(self, "fold", "score_bias")

    @property
    def fold_dims(self) -> int:
        """How many further dimensions that takes in float32."""
        return max(part.fold_dims for part in self._parts)

    def fold(self, q_positions: Tensor, k_positions: Tensor, dtype: Any, scale: float) -> tuple[Tensor, Tensor]:
        """The further dimensions of the part that has a separable bias."""
        part = next(part for part in self._parts if part.folds)
        return part.fold(q_positions, k_positions, dtype, scale)

    def add_to_input(self, x: Tensor, positions: Tensor) -> Tensor:
        for part in self._parts:
            x = part.add_to_input(x, positions)
        return x

    def transform_qk(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor, length: int | None = None
    ) -> tuple[Tensor, Tensor]:
        for part in self._parts:
            q, k = part.transform_qk(q, k, q_positions, k_positions, length)
        return q, k

    def scale_queries(self, q: Tensor, q_positions: Tensor, length: int | None = None) -> Tensor:
        for part in self._parts:
            if part.scales_queries_only:
                q, _ = part.transform_qk(q, q, q_positions, q_positions, length)
            else:
                q = part.scale_queries(q, q_positions, length)
        return q

    def transform_branch(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor, length: int | None = None
    ) -> tuple[Tensor, Tensor]:
        for part in self._parts:
            if not part.scales_queries_only:
                q, k = part.transform_branch(q, k, q_positions, k_positions, length)
        return q, k

    def score_bias(self, q_positions: Tensor, k_positions: Tensor, length: int | None = None) -> Tensor | None:
        for part in self._parts:
            bias = part.score_bias(q_positions, k_positions, length)
            if bias is not None:
                return bias
        return None

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
        for part in self._parts:
            scores = part.adjust_scores(scores, q, k, q_positions, k_positions, hidden, scale=scale)
        return scores

    def adjust_output(
        self, out: Tensor, weights: Tensor, v: Tensor, q_positions: Tensor, k_positions: Tensor
    ) -> Tensor:
        for part in self._parts:
            out = part.adjust_output(out, weights, v, q_positions, k_positions)
        return out

    def branches(self, q_positions: Tensor, k_positions: Tensor) -> tuple[Branch, ...] | None:
        for part in self._parts:
            found = part.branches(q_positions, k_positions)
            if found is not None:
                return found
        return None

    def one_branch(self, keys: int) -> bool:
        return any(has_one_branch(part, keys) for part in self._parts)

    def remember(self, hidden: Tensor) -> Tensor | None:
        for part in self._parts:
            kept = part.remember(hidden)
            if kept is not None:
                return kept
        return None

    @property
    def reach(self) -> Reach | None:
        """That of the part that sees least far: a key must be seen by all."""
        found = [reach for reach in (reach_of(part) for part in self._parts) if reach is not None]
        return min(found, key=lambda reach: reach.before, default=None)

    def softmax_scale(self, head_dim: int, length: int | None = None) -> float:
        for part in self._parts:
            if _sets_scale(part):
                return part.softmax_scale(head_dim, length)
        return super().softmax_scale(head_dim, length)

    def mask(self, q_positions: Tensor, k_positions: Tensor) -> Tensor | None:
        allowed: Tensor | None = None
        for part in self._parts:
            own = part.mask(q_positions, k_positions)
            if own is not None:
                allowed = own if allowed is None else allowed & own
        return allowed

    @property
    def _parts(self) -> list[Encoding]:
        return list(self.encodings)  # pyright: ignore[reportReturnType]


def _flat(encodings: Iterable[Encoding]) -> tuple[Encoding, ...]:
    """The encodings, with the parts of one that joins several in its place; a user's own subclass stays whole."""
    return tuple(one for part in encodings for one in (part._parts if type(part) is Combined else (part,)))


def _flatten_names(state_dict: dict[str, Any], prefix: str, places: list[int]) -> None:
    """Renames what whorl 0.1 called <prefix>0.encodings.1.table: its parts come in the order of ``places``."""
    keys: dict[tuple[int, ...], list[tuple[str, str]]] = {}
    for key in state_dict:
        found = re.match(rf"{re.escape(prefix)}(\d+\.(?:encodings\.\d+\.)*)(.*)", key)
        if found:
            keys.setdefault(tuple(int(one) for one in re.findall(r"\d+", found[1])), []).append((key, found[2]))
    if all(len(path) == 1 for path in keys) or len(keys) != len(places):
        return
    owned = [(place, *name) for place, path in zip(places, sorted(keys), strict=True) for name in keys[path]]
    state_dict |= {f"{prefix}{place}.{own}": state_dict.pop(key) for place, key, own in owned}


def _sets_scale(part: Encoding) -> bool:
    """Whether a part changes the softmax scale with these settings."""
    return part.softmax_scale(64) != 64**-0.5


def _check_places(encodings: tuple[Encoding, ...]) -> None:
    """Raises a WhorlError where two parts want the same place."""
    wanted = Counter(
        hook
        for part in encodings
        for hook in part.enters()
        if hook != "mask" and not (hook == "transform_qk" and part.scales_queries_only)
    )
    for hook, count in wanted.items():
        if count > 1:
            names = " and ".join(type(part).__name__ for part in encodings if hook in part.enters())
            raise WhorlError(
                f"Combined: {names} both use {hook}, and which acts first is not defined. "
                "Use one of them, or give layers different encodings with LayerPlan."
            )
    axes = {type(part).__name__: part.axes for part in encodings if part.enters()}
    if len(set(axes.values())) > 1:
        counts = ", ".join(f"{name} reads {count}" for name, count in axes.items())
        raise WhorlError(
            f"Combined: positions have one number of axes, but {counts}. Use parts that agree, or a LayerPlan."
        )
    scaled = [type(part).__name__ for part in encodings if _sets_scale(part)]
    if len(scaled) > 1:
        raise WhorlError(f"Combined: {' and '.join(scaled)} both set the softmax scale. Use one of them.")
