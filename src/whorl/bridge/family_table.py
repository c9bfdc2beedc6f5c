"""Families: the table of how each family of models handles positions, as rows."""

from __future__ import annotations

from typing import Any

from whorl.dialects.class_defaults import class_defaults, version
from whorl.dialects.families import ALIASES, ELSEWHERE, FAMILIES, UNROTATED, Family
from whorl.dialects.images import TOWERS

HEADER = ("family", "positions", "layout", "rotated", "base", "layers without rotation", "beside", "read in")


def families() -> list[dict[str, Any]]:
    """One row per family that differs from Llama, per alias, and per family that does not rotate, by name.

    layout, rotated and base are those of a file that is silent. Every other family that transformers has rotates as
    its row ``llama`` says, with the base of its config class.

    >>> next(row for row in families() if row["family"] == "gptj")["layout"]
    'interleaved'
    """
    rows = [_row(name, family) for name, family in FAMILIES.items()]
    rows += [_empty(name) | {"positions": kind} for name, kind in UNROTATED.items()]
    rows += [_empty(name) | {"positions": f"as {target}", "read in": _where(name)} for name, target in ALIASES.items()]
    return sorted(rows, key=lambda row: row["family"])


def _row(name: str, family: Family) -> dict[str, Any]:
    tower = TOWERS.get(name) or TOWERS.get(f"{name}_model")
    if tower is not None:
        return _empty(name) | {"positions": f"axial RoPE, {tower.convention}", "base": f"{tower.base:g}"}
    if family.still or family.refusal:
        return _empty(name) | {"positions": (family.still or family.refusal).partition(".")[0]}
    several = family.sections is not None or family.arrangement != "chunked"
    layers = {kind: layer.base for kind, layer in family.layers.items()}
    beside = [*family.unsupported]
    beside += ["softmax scaled by mscale_all_dim"] * family.scale_softmax
    beside += ["a scaling of its own where the file has none"] * family.needs_parameters
    beside += ["a log scale per pair in the weights"] * family.learnable
    beside += ["pairs turn backwards"] * family.backwards
    beside += [f"head {head} alone" for head in family.rotated_heads or ()]
    return {
        "family": name,
        "positions": f"M-RoPE, {family.arrangement}" if several else "RoPE",
        "layout": family.layout,
        "rotated": "all" if family.partial == 1 else f"{family.slice} {family.partial:g}",
        "base": ", ".join(f"{value:g} ({kind})" for kind, value in layers.items()) or f"{family.base:g}",
        "layers without rotation": ", ".join(family.unrotated),
        "beside": "; ".join(beside),
        "read in": _where(name),
    }


def _empty(name: str) -> dict[str, Any]:
    return dict.fromkeys(HEADER, "") | {"family": name, "read in": _where(name)}


def _where(name: str) -> str:
    """Where the code of a family was read: a version of transformers, vLLM or a copy, or not at all."""
    if name in ELSEWHERE:
        return "vLLM or copies"
    reported = name in ALIASES and not class_defaults(name)
    return "reported, not opened" if reported else f"transformers {version()}"


def markdown() -> str:
    """The table as Markdown, for the documentation."""
    lines = [f"| {' | '.join(HEADER)} |", f"|{'---|' * len(HEADER)}"]
    return "\n".join([*lines, *(f"| {' | '.join(str(row[name]) for name in HEADER)} |" for row in families())])
