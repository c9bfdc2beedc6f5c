"""LayerPlan: one encoding per layer, for models whose layers differ.

Local and global bases (Gemma 3), layers without position (SmolLM3, Cohere 2, Llama 4's iRoPE), windows on all but
some layers: a list of encodings, not flags on one. Layers given the same instance share its parameters, as
T5 shares its table; layers given instances of their own do not, as Shaw and FIRE need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from whorl.config import check_most
from whorl.encodings.base import Encoding
from whorl.encodings.parts import Input, first
from whorl.errors import WhorlError, invalid


class LayerPlan(nn.Module):
    """The encoding of each layer.

    >>> import whorl
    >>> rope = whorl.Rope(head_dim=64)
    >>> plan = whorl.LayerPlan.every(4, whorl.NoPE(), rope, layers=8)      # layers 4 and 8 have no position
    >>> [type(plan[layer]).__name__ for layer in range(8)]
    ['Rope', 'Rope', 'Rope', 'NoPE', 'Rope', 'Rope', 'Rope', 'NoPE']
    """

    def __init__(self, encodings: Iterable[Encoding]) -> None:
        super().__init__()
        if not isinstance(encodings, Iterable):
            raise invalid("LayerPlan", "encodings", "a list with one per layer", encodings)
        encodings = list(encodings)
        if not encodings:
            raise invalid("LayerPlan", "encodings", "one per layer", encodings)
        for layer, encoding in enumerate(encodings):
            if not isinstance(encoding, Encoding):
                raise invalid("LayerPlan", f"layer {layer}", "an encoding", encoding, "Use whorl.NoPE() for none.")
        self.unique = nn.ModuleList(dict.fromkeys(encodings))
        places = {id(encoding): place for place, encoding in enumerate(self.unique)}
        self.order = tuple(places[id(encoding)] for encoding in encodings)
        _check_inputs(self)

    @classmethod
    def shared(cls, encoding: Encoding, *, layers: int) -> LayerPlan:
        """One instance for all layers."""
        return cls([encoding] * _layers("shared", layers))

    @classmethod
    def own(cls, build: Callable[[], Encoding], *, layers: int) -> LayerPlan:
        """A new instance for each layer, so that each has parameters of its own."""
        return cls([build() for _ in range(_layers("own", layers))])

    @classmethod
    def every(cls, step: int, special: Encoding, usual: Encoding, *, layers: int) -> LayerPlan:
        """``special`` in layers step, 2 * step, … counted from 1, and ``usual`` in the others."""
        _count("every", step)
        return cls([special if (layer + 1) % step == 0 else usual for layer in range(_layers("every", layers))])

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, layer: int) -> Encoding:
        found = self.unique[self.order[layer]]
        assert isinstance(found, Encoding)
        return found

    def to_list(self) -> list[dict[str, Any]]:
        """The config of each layer as JSON-ready data."""
        return [self[layer].config.to_dict() for layer in range(len(self))]


def _count(call: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise invalid(
            f"LayerPlan.{call}", "layers" if call != "every" else "step and layers", "positive integers", value
        )
    return value


def _layers(call: str, value: int) -> int:
    check_most(f"LayerPlan.{call}", layers=_count(call, value))
    return value


def _check_inputs(plan: LayerPlan) -> None:
    """What is added to the input is added once, before the first layer: all layers must agree on it."""
    adding = {place for place in range(len(plan.unique)) if first(plan[plan.order.index(place)], Input)}
    if adding and (len(adding) > 1 or set(plan.order) != adding):
        raise WhorlError(
            "LayerPlan: an encoding that adds to the input acts once, before all layers, so every layer must have the "
            "same one. Use LayerPlan.shared, or Combined for what the layers add to it."
        )
