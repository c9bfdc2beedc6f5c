"""Settings for an encoding or scaling that was asked for by name alone.

Only settings that must be given are filled in, and what was filled in is returned, so that a command
can say which numbers are the user's and which are an example. The model's sizes serve every encoding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from whorl import registry
from whorl.config import Config
from whorl.errors import WhorlError, unknown

if TYPE_CHECKING:
    from whorl.encodings.base import Encoding
    from whorl.rotary.scalings.base import Scaling

Settings = Mapping[str, Any]

FACTOR = 4.0
ORIGINAL_LENGTH = 4096


# The largest position on each axis of encodings for images.
CONTEXTS = {"axial_rope": 64, "mixed_rope": 64}


def _longrope(given: Settings, pairs: int) -> Settings:
    """Factors that rise from 1 to ``factor``. Real ones come from a search, one list per checkpoint."""
    out: dict[str, Any] = {} if "attention_factor" in given else {"factor": FACTOR}
    top = {**out, **given}.get("factor") or FACTOR
    out["short_factor"] = (1.0,) * pairs
    out["long_factor"] = tuple(top ** (i / max(1, pairs - 1)) for i in range(pairs))
    return out


SCALINGS: dict[str, Callable[[Settings, int], Settings]] = {
    "longrope": _longrope,
    "proportional": lambda given, pairs: {"fraction": 0.25},
}


def build(name: str, given: Settings | None = None, scaling: Settings | None = None) -> tuple[Encoding, dict[str, Any]]:
    """The encoding of that name with the settings given, and the settings that were filled in.

    ``scaling`` is the scaling's settings, its name under ``"name"``. Filled-in settings of a scaling are
    called ``scaling.factor`` and so on.

    >>> rope, filled = build("rope", scaling={"name": "yarn", "factor": 8.0})
    >>> rope.config.scaling.factor, filled
    (8.0, {'head_dim': 128, 'scaling.original_length': 4096})
    """
    cls = registry.encoding_class(name)
    settings = dict(given or {})
    filled = _missing(
        cls.Config, {size: value for size, value in registry.MODEL.items() if size in cls.Config.required()}, settings
    )
    settings |= filled
    if scaling is None:
        return cls(**settings), filled
    plain = cls(**settings)
    settings["scaling"], added = build_scaling(dict(scaling), getattr(plain.config, "pairs", 0))
    return cls(**settings), filled | {f"scaling.{key}": value for key, value in added.items()}


def build_scaling(given: dict[str, Any], pairs: int) -> tuple[Scaling, dict[str, Any]]:
    """The scaling with the settings given, for a head of so many pairs, and the settings that were filled in."""
    if "name" not in given:
        raise WhorlError(f"show: no scaling is named to have {', '.join(given)}. Pass --scaling yarn, say.")
    name = given.pop("name")
    if not isinstance(name, str):
        raise unknown("scaling", name, registry.SCALINGS)
    cls = registry.scaling_class(name)
    example = {"factor": FACTOR, "original_length": ORIGINAL_LENGTH}
    filled = _missing(cls, {key: value for key, value in example.items() if key in cls.required()}, given)
    if name in SCALINGS:
        filled |= _missing(cls, SCALINGS[name](given, pairs), given)
    return cls(**given, **filled), filled


def _missing(cls: type[Config], example: Settings, given: Settings) -> dict[str, Any]:
    return {key: value for key, value in example.items() if key not in given and key in cls.fields()}
