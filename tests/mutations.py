"""Seeded mutations of plain configs: wrong types, huge numbers, dropped, renamed and added keys, wrong shapes."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import torch

NAN, INF = float("nan"), float("inf")
# 10**5000 has more digits than Python writes; 5e-324 is the smallest number that is not 0
NUMBERS: tuple[Any, ...] = (
    *(0, 1, -1, 2, 3, 7, 0.5, -0.5, 1.0, 64.0, 64.5, True, False, NAN, INF, -INF, 5e-324, 1e-300, 1e308, -1e308),
    *(2**31, 2**53 + 1, 2**62, 2**63, 2**64, -(2**63), 10**15, 10**18, 10**25, 10**400, -(10**400), 10**5000),
    *(1j, Fraction(1, 3), Fraction(10**400), Decimal("1e999"), Decimal(2)),
    *(np.float32(2), np.int64(4), np.float64(NAN), np.bool_(True)),
)
WORDS: tuple[Any, ...] = ("", "abc", "64", "default", "yarn", "full_attention", b"rope", "x" * 5000)


def hostile(pick: random.Random, depth: int = 0) -> Any:
    """A value that a config should not have in most places."""
    kind = pick.randrange(10 if depth < 3 else 5)
    if kind < 3:
        return pick.choice(NUMBERS)
    if kind == 3:
        return pick.choice(WORDS)
    if kind == 4:
        return pick.choice((None, [], {}, (), set(), object(), object, len, range(3), torch.ones(2), torch.tensor(4)))
    if kind < 8:
        return [hostile(pick, depth + 1) for _ in range(pick.randrange(4))]
    keys = ("full_attention", "sliding_attention", "head_dim", "rope_theta", "name", "factor", "0", 0, None, ("a",))
    return {pick.choice(keys): hostile(pick, depth + 1) for _ in range(pick.randrange(1, 3))}


def mutated(config: dict[str, Any], names: tuple[str, ...], pick: random.Random) -> dict[str, Any]:
    """The config with one to three things changed; ``names`` are keys that may be added."""
    made = copy.deepcopy(config)
    for _ in range(pick.choice((1, 1, 1, 2, 3))):
        pick.choice(CHANGES)(made, names, pick)
    return made


def _containers(value: Any) -> list[Any]:
    """The dicts and lists of a config that have something in them."""
    inside = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    own = [value] if isinstance(value, (dict, list)) and value else []
    return own + [found for one in inside for found in _containers(one)]


def _place(config: dict[str, Any], pick: random.Random) -> tuple[Any, Any] | None:
    """A container of the config and a key or index of it, the outermost dict as likely as all the others together."""
    containers = _containers(config)
    if not containers:
        return None
    found = containers[0] if pick.random() < 0.5 else pick.choice(containers)
    return found, pick.choice(list(found)) if isinstance(found, dict) else pick.randrange(len(found))


def _replace(config: dict[str, Any], names: tuple[str, ...], pick: random.Random) -> None:
    place = _place(config, pick)
    if place is not None:
        place[0][place[1]] = hostile(pick)


def _rescale(config: dict[str, Any], names: tuple[str, ...], pick: random.Random) -> None:
    """Another number in the place of a number, which most readers take."""
    places = [(one, key) for one in _containers(config) for key in (one if isinstance(one, dict) else range(len(one)))]
    numbers = [(one, key) for one, key in places if type(one[key]) in (int, float)]
    if numbers:
        one, key = pick.choice(numbers)
        one[key] = pick.choice((2 * one[key], one[key] // 2, one[key] + 1, *NUMBERS))


def _drop(config: dict[str, Any], names: tuple[str, ...], pick: random.Random) -> None:
    place = _place(config, pick)
    if place is not None:
        del place[0][place[1]]


def _add(config: dict[str, Any], names: tuple[str, ...], pick: random.Random) -> None:
    dicts = [one for one in _containers(config) if isinstance(one, dict)] or [config]
    odd = (0, None, 1.5, ("a", "b"), b"rope_theta", True, "rope_new", "x" * 200)
    key = pick.choice(odd) if pick.random() < 0.1 else pick.choice(names)
    pick.choice((config, pick.choice(dicts)))[key] = hostile(pick)


def _rename(config: dict[str, Any], names: tuple[str, ...], pick: random.Random) -> None:
    place = _place(config, pick)
    if place is not None and isinstance(place[0], dict):
        place[0][pick.choice(names)] = place[0].pop(place[1])


def _wrap(config: dict[str, Any], names: tuple[str, ...], pick: random.Random) -> None:
    place = _place(config, pick)
    if place is not None:
        value = place[0][place[1]]
        wrapped = ([value], [value, value], {pick.choice(names): value}, {"full_attention": value})
        place[0][place[1]] = pick.choice(wrapped)


def _swap(config: dict[str, Any], names: tuple[str, ...], pick: random.Random) -> None:
    places = _place(config, pick), _place(config, pick)
    if places[0] is not None and places[1] is not None:
        (a, i), (b, j) = places[0], places[1]
        a[i], b[j] = copy.deepcopy(b[j]), copy.deepcopy(a[i])


def _double(config: dict[str, Any], names: tuple[str, ...], pick: random.Random) -> None:
    """A copy of the whole config inside itself."""
    config[pick.choice(("text_config", "thinker_config", "rope_parameters", "attn_config"))] = copy.deepcopy(config)


Change = Callable[[dict[str, Any], tuple[str, ...], random.Random], None]
CHANGES: tuple[Change, ...] = (
    _replace,
    _replace,
    _replace,
    _replace,
    _drop,
    _add,
    _add,
    _rename,
    _wrap,
    _swap,
    _double,
)
