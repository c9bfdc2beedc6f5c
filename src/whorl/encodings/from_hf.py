"""Rotary encodings of transformers configs: built here of the plain settings that ``dialects/`` reads."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeVar, cast

from whorl.dialects.beside import IncompleteRotation, beside_rotation
from whorl.dialects.detect import TRANSFORMERS, dialect_of
from whorl.dialects.families import UnknownFamily, unknown_family
from whorl.dialects.reading import named
from whorl.dialects.transformers import fields_for, rotation_of
from whorl.encodings.mrope import MRope
from whorl.encodings.rope import Rope, RopeConfig
from whorl.errors import WhorlError, shown
from whorl.registry import scaling_class
from whorl.rotary.scalings.base import Scaling

CHANGE = "Change it in the config, or afterwards with encoding.from_config(encoding.config.replace(…))."
WHOLE = "whorl.read gives all that acts on positions, layer by layer."
NOTHING: Mapping[str, Any] = MappingProxyType({})

R = TypeVar("R", bound=Rope)


def rope_from_hf(
    config: dict[str, Any], layer_type: str | None = None, cls: type[R] = Rope, settings: Mapping[str, Any] = NOTHING
) -> R:
    """The rotation of a transformers config as an encoding of this class; ``layer_type`` where its layers differ.

    Where the model has an M-RoPE, Rope stands for MRope. ``settings`` are those that no config holds. A config of an
    unknown family is read by the conventions of Llama, with a warning; another warning names what acts on positions
    beside the rotation. A config of another program than transformers is refused: ``whorl.read`` reads those.

    >>> config = {"model_type": "llama", "head_dim": 64, "rope_parameters": {"rope_type": "linear", "factor": 2.0}}
    >>> rope_from_hf(config).config.scaling
    Linear(factor=2.0)
    """
    call = f"{cls.__name__}.from_hf"
    _check_dialect(call, config)
    fields = fields_for(config, layer_type)
    if fields.standing == "unknown":
        remedy = "Check that, and set model_type to 'llama' if it is so."
        warnings.warn(unknown_family(named(fields.config), call, remedy), UnknownFamily, stacklevel=3)
    beside = beside_rotation(fields)
    if beside:
        said = f"{call}: this is the rotation alone. The model also has: {'; '.join(beside)}. {WHOLE}"
        warnings.warn(said, IncompleteRotation, stacklevel=3)
    read = rotation_of(fields)
    if read["scaling"] is not None:
        read["scaling"] = _scaling(**read["scaling"])
    if issubclass(cls, MRope) and "sections" not in {**read, **settings}:
        raise WhorlError(
            f"{call}: the config has no mrope_section, its tokens have one position. "
            "Use Rope.from_hf, or pass sections=…."
        )
    if cls is Rope and "sections" in read:
        return cast(R, _built(MRope, read, settings))
    return _built(cls, read, settings)


def _check_dialect(call: str, config: Any) -> None:
    """Raises a WhorlError for the config of another program, whose fields have other names and meanings."""
    plain = isinstance(config, dict) and all(isinstance(key, str) for key in config)
    dialect = dialect_of(config) if plain else TRANSFORMERS
    if dialect != TRANSFORMERS:
        raise WhorlError(f"{call}: config must be one of transformers, got {dialect}. Pass it to whorl.read.")


def _scaling(name: str, replaces: Mapping[str, Any] = NOTHING, **settings: Any) -> Scaling:
    """The scaling of that name; the settings of the config that its own replace are checked as well."""
    if replaces:
        scaling_class(name)(**{**settings, **replaces})
    return scaling_class(name)(**settings)


def _built(cls: type[R], read: dict[str, Any], settings: Mapping[str, Any]) -> R:
    """The encoding of this class with what was read and what was given beside it, or a WhorlError that says why not."""
    _check_settings(cls, read, settings)
    given = {name: value for name, value in read.items() if name in cls.Config.fields()} | dict(settings)
    try:
        inspect.signature(cls.__init__).bind(None, **given)
    except TypeError as error:  # a user's class with a constructor of its own
        raise WhorlError(
            f"{cls.__name__}.from_hf: {cls.__name__}.__init__ does not take the settings of its config: {error}. "
            f"Take **settings there, or build it from Rope.from_hf(…).config."
        ) from None
    return cls(**given)


def _check_settings(cls: type[Rope], read: dict[str, Any], settings: Mapping[str, Any]) -> None:
    """Raises a WhorlError for a setting that is given beside the config too, or that this class does not have."""
    call, known = f"{cls.__name__}.from_hf", cls.Config.fields()
    for name, value in read.items():
        if name in settings:
            raise WhorlError(
                f"{call}: {name} is read from the config, got {name}={shown(settings[name])} beside it. {CHANGE}"
            )
        if name not in known and (name not in RopeConfig.fields() or value != RopeConfig.fields()[name].default):
            raise WhorlError(
                f"{call}: the config has {name}={shown(value)}, for which {cls.__name__} has no setting. "
                "Use Rope.from_hf."
            )
