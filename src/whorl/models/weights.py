"""Weights that transformers wrote: a state dict of which every key must find a place in our models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from whorl.errors import WhorlError, invalid, unknown

Angles = Literal["exact", "float32"]


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
