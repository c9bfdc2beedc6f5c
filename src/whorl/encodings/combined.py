"""Combined: several encodings as one, where position enters at different places.

RoPE with ALiBi, RoPE with a learned bias, ReRoPE with log-n, any of them within a window: rotate, then add,
then mask. Its parts are those of the encodings, one after the other. Encodings that want the same place are refused,
because their order would be a guess. Two joins are no guess: masks intersect, and a scheme that only scales queries
commutes with a rotation. Joining is flat: what is joined already counts as the encodings it was made of.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any, ClassVar, Self

from torch import nn

from whorl.config import Config, config
from whorl.encodings.base import HOOKS, Claims, Encoding, sets_scale
from whorl.encodings.parts import Part, QueryScale, Visibility
from whorl.errors import WhorlError, invalid


@config
class CombinedConfig(Config):
    """The configs of what is joined, in order; those of a combined one stand in its place."""

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
        return cls(*(registry.encoding_class(each.name).from_config(each) for each in config.parts))

    def _restore(self) -> None:
        self.encodings = nn.ModuleList(_flat(self.joined))  # whorl 0.1 kept what was joined already as one
        self.config = CombinedConfig(parts=tuple(encoding.config for encoding in self.joined))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *more: Any, **named: Any) -> None:
        with_tensors = [i for i, encoding in enumerate(self.joined) if encoding.state_dict()]
        _flatten_names(state_dict, f"{prefix}encodings.", with_tensors)
        super()._load_from_state_dict(state_dict, prefix, *more, **named)

    @property
    def joined(self) -> list[Encoding]:
        return list(self.encodings)  # pyright: ignore[reportReturnType]

    def declare(self) -> tuple[Part, ...]:
        return tuple(part for encoding in self.joined for part in encoding.parts)

    def enters(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]  # by its parts, not its class
        """The hooks that what is joined uses, and those that a user's own subclass writes over."""
        used = {part.hook for part in self.parts}
        return tuple(hook for hook in HOOKS if hook in used)

    @property
    def claims(self) -> Claims:
        """The join of all claims: relative if all are, decaying if one is and no other favours a distance."""
        claims = [encoding.claims for encoding in self.joined]
        neutral = (
            all(isinstance(part, (QueryScale, Visibility)) for part in encoding.parts) for encoding in self.joined
        )
        return Claims(
            relative=all(each.relative for each in claims),
            norm_preserving=all(each.norm_preserving for each in claims),
            linear_attention=all(each.linear_attention for each in claims),
            decays=any(each.decays for each in claims)
            and all(each.decays or level for each, level in zip(claims, neutral, strict=True)),
            extrapolates=all(each.extrapolates for each in claims),
        )


def _flat(encodings: Iterable[Encoding]) -> tuple[Encoding, ...]:
    """The encodings, with those that a combined one joins in its place; a user's own subclass stays whole."""
    return tuple(each for given in encodings for each in (given.joined if type(given) is Combined else (given,)))


def _flatten_names(state_dict: dict[str, Any], prefix: str, places: list[int]) -> None:
    """Renames what whorl 0.1 called <prefix>0.encodings.1.table: its encodings come in the order of ``places``."""
    keys: dict[tuple[int, ...], list[tuple[str, str]]] = {}
    for key in state_dict:
        found = re.match(rf"{re.escape(prefix)}(\d+\.(?:encodings\.\d+\.)*)(.*)", key)
        if found:
            keys.setdefault(tuple(map(int, re.findall(r"\d+", found[1]))), []).append((key, found[2]))
    if all(len(path) == 1 for path in keys) or len(keys) != len(places):
        return
    moved = [(place, *name) for place, path in zip(places, sorted(keys), strict=True) for name in keys[path]]
    state_dict |= {f"{prefix}{place}.{name}": state_dict.pop(key) for place, key, name in moved}


def _check_places(encodings: tuple[Encoding, ...]) -> None:
    """Raises a WhorlError where two encodings want the same place."""
    wanted = Counter(part.hook for encoding in encodings for part in encoding.parts if not part.shared)
    for hook, count in wanted.items():
        if count > 1:
            names = " and ".join(type(each).__name__ for each in encodings if any(p.hook == hook for p in each.parts))
            raise WhorlError(
                f"Combined: {names} both use {hook}, and which acts first is not defined. "
                "Use one of them, or give layers different encodings with LayerPlan."
            )
    axes = {type(encoding).__name__: encoding.axes for encoding in encodings if encoding.parts}
    if len(set(axes.values())) > 1:
        counts = ", ".join(f"{name} reads {count}" for name, count in axes.items())
        raise WhorlError(
            f"Combined: positions have one number of axes, but {counts}. Use parts that agree, or a LayerPlan."
        )
    scaled = [type(encoding).__name__ for encoding in encodings if sets_scale(encoding)]
    if len(scaled) > 1:
        raise WhorlError(f"Combined: {' and '.join(scaled)} both set the softmax scale. Use one of them.")
