"""Repairs: ways to serve a trained rotary model past its length without training it again.

A repair is another encoding put in place of the one the model was trained with, for the length that is served.
With s = length / trained length, at least 1, and L the trained length:
    pi             every frequency divided by s                                    (Chen et al. 2023)
    ntk            the base raised so that the slowest pair is s times slower      (bloc97 2023)
    dynamic-ntk    the same by 2 s - 1, in the form of transformers with factor 2  (emozilla 2023)
    yarn           by parts, beta_fast 32 and beta_slow 1, with its temperature    (Peng et al. 2023)
    yarn-betaN     the same with beta_fast N: a short L needs a small one, as pairs turn L / 2π times at most
    rerope         distances past w = L / 2 stand at w                             (Su 2023)
    leaky-rerope   distances past w grow k times slower, k so that the farthest is at L
    logn           queries past L grow by ln(i + 1) / ln(L)                        (Su 2021)
    window         keys L positions back and further are hidden
Joined with ``+``, as in rerope+logn; logn and window serve any encoding. Up to L, all but rerope change nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from whorl import Combined, DynamicNtk, Encoding, LayerPlan, LeakyReRope, Linear, LogN, Ntk, ReRope, Rope, Window, Yarn
from whorl.errors import WhorlError, unknown
from whorl.result_rows import AS_TRAINED

ADDED = ("logn", "window")  # which join any encoding
YARN = "yarn-beta"
YARN_FAST = 32.0  # the beta_fast of plain yarn


def _scaled(scaling: Callable[[float, int], Any]) -> Callable[[Rope, int, int], Encoding]:
    def build(rope: Rope, trained: int, length: int) -> Encoding:
        return Rope.from_config(rope.config.replace(scaling=scaling(length / trained, trained)))

    return build


def _yarn(fast: float) -> Callable[[Rope, int, int], Encoding]:
    return _scaled(lambda factor, trained: Yarn(factor=factor, original_length=trained, beta_fast=fast))


def _leaky(rope: Rope, trained: int, length: int) -> Encoding:
    near = _near(trained)
    return LeakyReRope(**_settings(rope), window=near, factor=(length - near) / (trained - near))


def _near(trained: int) -> int:
    return max(1, trained // 2)


def _settings(rope: Rope) -> dict[str, Any]:
    return {key: getattr(rope.config, key) for key in rope.config.fields()}


ROTARY: dict[str, Callable[[Rope, int, int], Encoding]] = {
    "pi": _scaled(lambda factor, trained: Linear(factor=factor)),
    "ntk": _scaled(lambda factor, trained: Ntk(factor=factor)),
    "dynamic-ntk": _scaled(lambda factor, trained: DynamicNtk(factor=2.0, original_length=trained)),
    "yarn": _yarn(YARN_FAST),
    "rerope": lambda rope, trained, length: ReRope(**_settings(rope), window=_near(trained)),
    "leaky-rerope": _leaky,
}


def names() -> list[str]:
    """Every repair by itself; joined ones and yarn-betaN are made of these."""
    return [*ROTARY, *ADDED]


def check(name: str) -> None:
    """Raises a WhorlError for a name that stands for no repair."""
    parts = name.split("+")
    rotary = [part for part in parts if part not in ADDED]
    for part in rotary:
        if part not in ROTARY and beta_fast(part) is None:
            raise unknown("repair", part, [*names(), f"{YARN}8"])
    if len(rotary) > 1:
        raise WhorlError(f"repair {name}: {' and '.join(rotary)} both place queries and keys. Use one of them.")
    if len(set(parts)) < len(parts):
        raise WhorlError(f"repair {name}: a part stands there twice. Name each once.")


def serves(name: str, encoding: dict[str, Any]) -> bool:
    """Whether a repair can take the place of an encoding, given by its settings, or of some layers of a plan."""
    if "layers" in encoding:
        return any(serves(name, layer) for layer in encoding["layers"])
    return all(part in ADDED for part in name.split("+")) or (
        encoding["name"] == "rope" and encoding.get("scaling") is None
    )


def repaired_plan(name: str, plan: LayerPlan, *, trained: int, length: int) -> LayerPlan:
    """The plan that serves ``length``: every layer repaired that the repair serves, the others as they are.

    >>> import whorl
    >>> plan = whorl.LayerPlan.every(2, whorl.NoPE(), whorl.Rope(head_dim=8), layers=2)
    >>> [layer["name"] for layer in repaired_plan("rerope", plan, trained=16, length=64).to_list()]
    ['rerope', 'none']
    """
    if name == AS_TRAINED:
        return plan
    check(name)
    made = {
        encoding: repaired(name, encoding, trained=trained, length=length)
        for encoding in (plan[plan.order.index(place)] for place in range(len(plan.unique)))
        if serves(name, encoding.config.to_dict())
    }
    return LayerPlan([made.get(plan[layer], plan[layer]) for layer in range(len(plan))])


def repaired(name: str, encoding: Encoding, *, trained: int, length: int) -> Encoding:
    """The encoding that serves ``length`` in place of the trained one; the very same where nothing changes.

    AS_TRAINED is the name of leaving it as it is.

    >>> import whorl
    >>> repaired("ntk", whorl.Rope(head_dim=8), trained=64, length=256).config.scaling
    Ntk(factor=4.0, variant='base', exponent=None)
    """
    if name == AS_TRAINED:
        return encoding
    check(name)
    placed, joined = encoding, []
    for part in name.split("+"):
        if part == "logn":
            joined += [LogN(trained_length=trained)] * (length > trained)
        elif part == "window":
            joined += [Window(size=trained)] * (length > trained)
        else:
            placed = _replaced(part, encoding, trained, length)
    return Combined(placed, *joined) if joined else placed


def _replaced(name: str, encoding: Encoding, trained: int, length: int) -> Encoding:
    if type(encoding) is not Rope or encoding.config.scaling is not None:
        raise WhorlError(f"repair {name}: it takes the place of plain rope, not of {type(encoding).__name__}.")
    unchanged = length <= _near(trained) if name == "rerope" else length <= trained
    if unchanged:
        return encoding
    fast = beta_fast(name)
    build = ROTARY[name] if fast is None else _yarn(fast)
    found = build(encoding, trained, length)
    found.load_state_dict(encoding.state_dict())  # learned frequencies, where it has them
    return found.to(next(encoding.parameters()).device) if encoding.config.learnable else found


def beta_fast(name: str) -> float | None:
    """The beta_fast of a YaRN among the repairs that stand alone, None for the others.

    >>> beta_fast("yarn"), beta_fast("yarn-beta8"), beta_fast("ntk")
    (32.0, 8.0, None)
    """
    if name == "yarn":
        return YARN_FAST
    try:
        beta = float(name.removeprefix(YARN)) if name.startswith(YARN) else 0.0
    except ValueError:
        return None
    return beta if 1.0 < beta < float("inf") else None
