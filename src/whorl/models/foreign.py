"""Reading what transformers wrote: the fields of a config, and a state dict of which every key must find a place."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from whorl.errors import WhorlError, invalid, unknown

Angles = Literal["exact", "float32"]


# The most that a size of a model may be, so that a file someone else wrote does not ask for more than there is.
MOST = 2**20
MOST_ROWS = 2**31  # of the tables of tokens and positions
TABLES = ("vocab_size", "n_positions", "max_position_embeddings")


class Fields:
    """The fields of a transformers config, each of the type it should have; null counts as absent."""

    def __init__(self, call: str, config: dict[str, Any]) -> None:
        self.call, self.config = call, config

    def size(self, *names: str) -> int:
        """The first of these fields that is there, a positive integer."""
        found = self.size_if_given(*names)
        if found is None:
            raise WhorlError(
                f"{self.call}: {names[0]} missing in the config. Pass all of config.json or config.to_dict()."
            )
        return found

    def size_if_given(self, *names: str) -> int | None:
        """The first of these fields that is there, a positive integer; None if none is."""
        for name in names:
            value = self.config.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise invalid(self.call, name, "a positive integer", value)
            most = MOST_ROWS if name in TABLES else MOST
            if value > most:
                raise invalid(self.call, name, f"at most {most:,}", value)
            return value
        return None

    @property
    def heads(self) -> int:
        return self.size("num_attention_heads", "n_head")

    @property
    def layers(self) -> int:
        return self.size("num_hidden_layers", "n_layer")

    def common(self, eps: str, otherwise: float, *, tied: bool) -> dict[str, Any]:
        """The settings that every decoder has under the same names."""
        return {
            "vocab": self.size("vocab_size"),
            "layers": self.layers,
            "heads": self.heads,
            "eps": self.number(eps, otherwise),
            "tied": self.switch("tie_word_embeddings", tied),
        }

    def number(self, name: str, otherwise: float) -> float:
        """The field as a number from 0, or what transformers takes where it is absent."""
        value = self.config.get(name)
        if value is None:
            return otherwise
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
            raise invalid(self.call, name, "a number from 0", value)
        if value > sys.float_info.max:  # an integer beyond every float
            raise invalid(self.call, name, "finite", value)
        return float(value)

    def switch(self, name: str, otherwise: bool) -> bool:
        """The field as true or false, or what transformers takes where it is absent."""
        value = self.config.get(name)
        if value is not None and not isinstance(value, bool):
            raise invalid(self.call, name, "true, false or null", value)
        return otherwise if value is None else value

    def activation(self, name: str, otherwise: str, known: dict[str, str]) -> Any:
        """Our name of the activation."""
        value = self.config.get(name)
        value = otherwise if value is None else value
        if not isinstance(value, str) or value not in known:
            raise unknown(name, value, known, call=self.call)
        return known[value]

    def require(self, **values: bool) -> None:
        """Raises a WhorlError where a switch is set to what our models do not do."""
        for name, value in values.items():
            if self.switch(name, value) != value:
                raise invalid(self.call, name, str(value), not value, "The models here have no other form.")


class Weights:
    """A state dict by its names without the prefix of the base model, and which of them have found a place."""

    def __init__(self, call: str, state_dict: Mapping[str, Tensor], prefix: str) -> None:
        self.call, self.placed = call, set[str]()
        self.keys = {key.removeprefix(prefix): key for key in state_dict}
        self.tensors = {name: state_dict[key] for name, key in self.keys.items()}
        double = next((key for key in state_dict if self.keys[key.removeprefix(prefix)] != key), None)
        if double is not None:
            raise WhorlError(f"{call}: {double!r} is there with and without {prefix!r} in front. Keep one of them.")

    def check_layers(self, count: int, theirs: str, names: Mapping[str, str]) -> None:
        """Raises a WhorlError where the state dict lacks the last layer, before so many are built."""
        self.take(f"{theirs}.{count - 1}.{next(iter(names.values()))}.weight")

    def has(self, start: str) -> bool:
        return any(name.startswith(start) for name in self.tensors)

    def take(self, name: str, *, axes: int | None = None) -> Tensor:
        """The tensor of that name, which counts as placed from now on; not empty and with so many axes, if given."""
        if name not in self.tensors:
            raise WhorlError(f"{self.call}: the state dict lacks {name!r}. Pass one that belongs to the config.")
        self.placed.add(name)
        tensor = self.tensors[name]
        if not tensor.is_floating_point():
            raise invalid(self.call, repr(self.keys[name]), "floating", tensor, "Quantised weights cannot be loaded.")
        if axes is not None and (tensor.ndim != axes or not tensor.numel()):
            raise invalid(self.call, repr(self.keys[name]), f"a tensor of {axes} axes that is not empty", tensor)
        return tensor

    def check(self, name: str, wrong: Callable[[Tensor], str | None]) -> None:
        """Raises a WhorlError for what is wrong with a tensor that is there and is not loaded."""
        if name in self.tensors:
            self.placed.add(name)
            why = wrong(self.tensors[name])
            if why is not None:
                raise WhorlError(f"{self.call}: {self.keys[name]!r} {why}. Pass weights that belong to the config.")

    def check_same(self, name: str, other: str) -> None:
        """Checks a tensor that is to be the same as another one, if both are there."""
        if name in self.tensors:
            differs = f"differs from {self.keys[name]!r}, to which the config ties it"
            own = self.tensors[name]
            self.check(
                other, lambda tensor: None if tensor.dtype == own.dtype and torch.equal(tensor, own) else differs
            )

    def finish(self) -> None:
        """Raises a WhorlError that names what has found no place."""
        left = [key for name, key in self.keys.items() if name not in self.placed]
        if left:
            raise WhorlError(
                f"{self.call}: no place for {', '.join(map(repr, left))} of the state dict. "
                "Remove what the config does not ask for."
            )


def check_given(call: str, state_dict: object, config: object, angles: object) -> None:
    """Raises a WhorlError unless these are a state dict, a config and a precision of angles."""
    if not isinstance(state_dict, Mapping) or not all(
        isinstance(key, str) and isinstance(value, Tensor) for key, value in state_dict.items()
    ):
        raise invalid(call, "state_dict", "a dict of tensors", type(state_dict).__name__, "Pass model.state_dict().")
    if not isinstance(config, dict):
        raise invalid(call, "config", "a dict", config, "Pass json.load of config.json, or config.to_dict().")
    if not isinstance(angles, str) or angles not in get_args(Angles):
        raise unknown("angles", angles, get_args(Angles), call=call)


def in_layers(count: int, theirs: str, names: Mapping[str, str]) -> dict[str, str]:
    """The names of parts in every layer."""
    return {f"blocks.{i}.{own}": f"{theirs}.{i}.{name}" for i in range(count) for own, name in names.items()}


def as_is(part: str, tensor: Tensor, heads: int) -> Tensor:
    return tensor


def filled(
    model: Any,
    weights: Weights,
    names: Mapping[str, str],
    cut: Callable[[str, Tensor, int], Tensor] = as_is,
    heads: int = 0,
) -> Any:
    """The model, on the meta device until now, with a value for every parameter and nothing left over."""
    values: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        part, _, leaf = name.rpartition(".")
        theirs = names[name] if name in names else f"{names[part]}.{leaf}"
        whole = weights.take(theirs)
        try:
            value = cut(part.split(".", 2)[-1], whole, heads)  # by its name inside the layer
        except (RuntimeError, IndexError):  # of a size that cannot be cut
            value = whole
        if value.shape != parameter.shape:
            raise WhorlError(
                f"{weights.call}: {weights.keys[theirs]!r} of shape {tuple(whole.shape)} does not fit the config, "
                f"by which our {name} is of shape {tuple(parameter.shape)}."
            )
        values[name] = value.detach().clone(memory_format=torch.contiguous_format)
    weights.finish()
    model.load_state_dict(values, assign=True)
    return model


def differs(given: Tensor, own: Tensor) -> str | None:
    """What is wrong with a tensor that is to be ours but for the rounding of its dtype."""
    if given.shape != own.shape or not given.is_floating_point():
        return f"must be floating of shape {tuple(own.shape)}, got {given.dtype} of shape {tuple(given.shape)}"
    if not given.numel():
        return "is empty"
    eps = max(torch.finfo(given.dtype).eps, torch.finfo(torch.float32).eps)
    far = (given.float().cpu() - own).abs().max().item()
    return None if far <= eps else f"is off by {far:.1e} from what whorl computes"
