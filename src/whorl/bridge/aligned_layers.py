"""Layers of two models side by side: those that are compared with each other."""

from __future__ import annotations

from whorl.bridge.model import Group, Model
from whorl.dialects.reading import Described
from whorl.errors import WhorlError

TURNING = ("rope", "mrope")

Aligned = tuple[str, tuple[int, ...] | None, Group, Group]  # what layers are called, which they are, and both groups


def aligned(a: Model, b: Model) -> list[Aligned]:
    """Groups of layers that are alike in both."""
    if any(group.indices is None for model in (a, b) for group in model.groups):
        pairs = list(zip(a.groups, b.groups, strict=False))
        if len(a.groups) != len(b.groups):
            raise WhorlError(
                f"diff: {len(a.groups)} kinds of layers against {len(b.groups)}, and a file does not say how many "
                "layers of each there are. Add num_hidden_layers."
            )
        return [(one.kind, None, one, other) for one, other in pairs]
    layers = [{index: group for group in model.groups for index in group.indices or ()} for model in (a, b)]
    if len(layers[0]) != len(layers[1]):
        return _by_kind(a, b)
    groups: dict[tuple[int, int], list[int]] = {}
    for index in sorted(layers[0]):
        key = (a.groups.index(layers[0][index]), b.groups.index(layers[1][index]))
        groups.setdefault(key, []).append(index)
    return [
        (a.groups[one].kind, tuple(places), a.groups[one], b.groups[other]) for (one, other), places in groups.items()
    ]


def _by_kind(a: Model, b: Model) -> list[Aligned]:
    """Groups of one kind, of which those that rotate are compared with each other, and those that do not.

    Drafts and targets have as many layers as they have, so places say nothing. Where no kind rotates in both, the first
    layers that rotate are compared whatever they are called.
    """
    kinds: list[dict[tuple[str, bool], list[Group]]] = [{}, {}]
    for model, of_kind in zip((a, b), kinds, strict=True):
        for group in model.groups:
            of_kind.setdefault((group.kind, rotation_of(group) is not None), []).append(group)
    pairs: list[Aligned] = [
        (kind[0], None, *pair)
        for kind in kinds[0]
        for pair in zip(kinds[0][kind], kinds[1].get(kind, ()), strict=False)
    ]
    first, second = (min(model.groups, key=lambda group: rotation_of(group) is None) for model in (a, b))
    rotates = rotation_of(first) is not None or rotation_of(second) is not None
    if not pairs or (rotates and all(rotation_of(group) is None for *_, group, _ in pairs)):
        pairs.insert(0, (first.kind, None, first, second))
    return pairs


def rotation_of(group: Group) -> Described | None:
    """The rotation of these layers, where they have one."""
    return next((one for one in group.layers.encodings if one.name in TURNING), None)
