"""Config: the frozen, keyword-only, hashable identity of an encoding or a scaling.

A subclass is declared with the ``@config`` decorator and plain annotated fields. Values are checked
and brought to one spelling (an int for a float field becomes a float, a list becomes a tuple), so
that configs that mean the same compare and hash the same. Rules between fields go into ``check``.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import numbers
import types
from typing import (
    Any,
    ClassVar,
    Literal,
    Self,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from whorl.errors import WhorlError, invalid, unknown

C = TypeVar("C", bound="type[Config]")

# The largest value of settings that decide how many numbers or rows are made: a typing error, or a file that someone
# else wrote, must end in a message, not in a machine without memory.
MOST = {
    **dict.fromkeys(("heads", "head_dim", "rotary_dim", "width", "code_width", "hidden", "axes", "buckets"), 2**20),
    **dict.fromkeys(("length", "span", "clip", "max_position"), 2**40),
    "layers": 2**12,
    "vocab": 2**28,
}
MOST_TOKENS = 2**32  # made in one call: ids, or tokens that a model goes on with

# The largest number that may multiply tables, scores or positions: float32, in which they are, has its square and its
# product with every position, and room for what queries and keys bring.
LARGEST = 1e12


@dataclass_transform(frozen_default=True, kw_only_default=True)
def config(cls: C) -> C:
    """Class decorator: a frozen keyword-only dataclass whose constructor answers bad names with a WhorlError."""
    made = dataclasses.dataclass(frozen=True, kw_only=True)(cls)
    plain_init = made.__init__

    @functools.wraps(plain_init)
    def checked_init(self: Config, *args: object, **settings: Any) -> None:
        if args:
            raise WhorlError(
                f"{made.call()}: settings are keyword-only, got {args[0]!r} without a name. "
                f"Name it, as in {made.call()}({next(iter(made.fields()), 'setting')}=…)."
            )
        made.check_names(settings)
        plain_init(self, **settings)

    made.__init__ = checked_init
    return made


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Base of every config; see the module's docstring."""

    name: ClassVar[str] = ""  # the registry name, written into to_dict()
    later: ClassVar[tuple[str, ...]] = ()  # fields that came after runs had been named by what to_dict() gives

    def __post_init__(self) -> None:
        hints = _hints(type(self))
        for field in dataclasses.fields(self):
            value = _coerce(self.call(), field.name, hints[field.name], getattr(self, field.name))
            check_most(self.call(), **{field.name: value})
            object.__setattr__(self, field.name, value)
        self.check()

    def check(self) -> None:
        """Raises a WhorlError where fields contradict each other; every field already has its type."""

    def check_positive(self, *names: str) -> None:
        """Raises a WhorlError unless these fields, where they are given, are above zero."""
        for name in names:
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise invalid(self.call(), name, "positive", value)

    def check_magnitude(self, *names: str) -> None:
        """Raises a WhorlError where what these fields multiply would be beyond the numbers that float32 has."""
        for name in names:
            value = getattr(self, name)
            if value is not None and abs(value) > LARGEST:
                raise invalid(self.call(), name, f"between -{LARGEST:g} and {LARGEST:g}", value)

    def must(self, holds: object, name: str, expected: str, got: object = None, remedy: str = "") -> None:
        """Raises a WhorlError unless a rule of a field holds; ``got`` is shown where that is not the field."""
        if not holds:
            raise invalid(self.call(), name, expected, getattr(self, name) if got is None else got, remedy)

    @classmethod
    def call(cls) -> str:
        """The public name in front of error messages: ``Rope`` for RopeConfig, ``Yarn`` for Yarn."""
        return cls.__name__.removesuffix("Config")

    @classmethod
    def fields(cls) -> dict[str, dataclasses.Field[Any]]:
        """The settings by name."""
        return {field.name: field for field in dataclasses.fields(cls)}

    @classmethod
    def required(cls) -> list[str]:
        """The settings without a default."""
        missing = dataclasses.MISSING
        return [name for name, field in cls.fields().items() if missing is field.default is field.default_factory]

    @classmethod
    def check_names(cls, settings: dict[str, Any]) -> None:
        """Raises a WhorlError for a setting that does not exist or a required one that is missing."""
        fields = cls.fields()
        for given in settings:
            if given not in fields:
                raise unknown("setting", given, fields, call=cls.call())
        missing = [name for name in cls.required() if name not in settings]
        if missing:
            names = ", ".join(missing)
            raise WhorlError(f"{cls.call()}: {names} missing. Pass {', '.join(f'{name}=…' for name in missing)}.")

    def to_dict(self) -> dict[str, Any]:
        """The config as JSON-ready data; ``whorl.from_dict`` builds it again.

        A field of ``later`` stands in it where it is not the usual one, so that runs keep the names they have.
        """
        out: dict[str, Any] = {"name": self.name}
        for key, field in self.fields().items():
            value = getattr(self, key)
            if key in self.later and value == field.default:
                continue
            out[key] = value.to_dict() if isinstance(value, Config) else _plain(value)
        return out

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """The config that ``to_dict`` described; unknown keys raise."""
        from whorl import registry  # the registry names config classes; imported late to keep imports pointing down

        if not isinstance(data, dict):
            raise invalid(f"{cls.call()}.from_dict", "data", "a dict", data, "Pass what to_dict() gave.")
        settings = dict(data)
        given = settings.pop("name", cls.name)
        if given != cls.name:
            remedy = "Use whorl.from_dict to build by name."
            raise invalid(f"{cls.call()}.from_dict", "name", repr(cls.name), given, remedy)
        cls.check_names(settings)
        for key, value in settings.items():
            if isinstance(value, dict):
                settings[key] = registry.scaling_from_dict(value)
        return cls(**settings)

    def replace(self, **changes: Any) -> Self:
        """A copy with some settings changed, checked like a new one."""
        return type(self)(**{**{key: getattr(self, key) for key in self.fields()}, **changes})


def written(text: str) -> Any:
    """A value as it is written on a command line: what it says as JSON, or else the text itself.

    >>> written("4"), written("half"), written("[" * 99_999)[:2]
    (4, 'half', '[[')
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def check_most(call: str, **sizes: object) -> None:
    """Raises a WhorlError for a size past the largest that a setting of its name may have."""
    for name, value in sizes.items():
        if isinstance(value, int) and value > MOST.get(name, value):
            raise invalid(call, name, f"at most {MOST[name]:,}", value)


def _plain(value: Any) -> Any:
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


def _coerce(call: str, name: str, hint: Any, value: Any) -> Any:
    """The value in its field's type, or a WhorlError that says what the field takes."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _coerce_union(call, name, args, value)
    if origin is Literal:
        if not any(type(value) is type(choice) and value == choice for choice in args):
            raise unknown(name, value, (str(choice) for choice in args), call=call)
        return value
    if origin is tuple:
        return tuple(
            _coerce(call, f"{name}[{i}]", args[0], item) for i, item in enumerate(_items(call, name, args[0], value))
        )
    if hint is float:
        return _number(call, name, value)
    if hint is int:
        return _integer(call, name, value)
    if not isinstance(value, hint):
        raise invalid(call, name, _noun(hint), value)
    return value


def _coerce_union(call: str, name: str, choices: tuple[Any, ...], value: Any) -> Any:
    if value is None and type(None) in choices:
        return None
    rest = [choice for choice in choices if choice is not type(None)]
    for choice in rest[:-1]:
        try:
            return _coerce(call, name, choice, value)
        except WhorlError:
            continue
    return _coerce(call, name, rest[-1], value)


def _items(call: str, name: str, hint: Any, value: Any) -> list[Any]:
    try:
        if not isinstance(value, (str, bytes, dict)):
            return list(value)
    except TypeError:  # not iterable, or a tensor without axes
        pass
    raise invalid(call, name, f"a list of {_noun(hint)}", value)


def _integer(call: str, name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise invalid(call, name, "an integer", value)
    number = int(value)
    if not -(2**63) <= number < 2**63:
        raise invalid(call, name, "between -2^63 and 2^63 - 1", value, "Sizes and positions are integers of 64 bits.")
    return number


def as_float(call: str, name: str, value: Any) -> float:
    """The value as a float, infinity where it is beyond every float; a WhorlError where it is no number."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise invalid(call, name, "a number", value)
    try:
        return float(value)
    except OverflowError:  # an integer or a fraction
        return math.inf


def _number(call: str, name: str, value: Any) -> float:
    number = as_float(call, name, value)
    if not math.isfinite(number):
        raise invalid(call, name, "finite", value)
    return number


def _noun(hint: Any) -> str:
    return {float: "numbers", int: "integers", bool: "True or False", str: "a string"}.get(
        hint, f"a {getattr(hint, '__name__', hint)}"
    )
