"""What acts on queries beside the rotation in transformers configs: temperatures, log-n, and what has no encoding here.

Windows and other masks are ``transformers_model.py``'s: they hide keys and leave the numbers of a score as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from whorl.dialects.families import family_name, family_of
from whorl.dialects.fields import Fields
from whorl.dialects.names import ORIGINAL
from whorl.dialects.reading import CLASS_DEFAULT, FAMILY_CODE, FILE, Described, Value
from whorl.dialects.values import CALL, switch, whole_number
from whorl.errors import WhorlError, invalid, shown

MOST_BETA = 2**63


class IncompleteRotation(UserWarning):
    """A config whose rotation was asked for, of a model in which more than that acts on positions."""


# Families whose queries grow by llama_4_scaling_beta.
GROWING = ("ministral3", "mistral4")


def query_scales(config: Mapping[str, Any], added: frozenset[str], fields: Fields | None) -> list[Described]:
    """What multiplies queries in layers with these rotary fields, or None for layers that do not rotate."""
    name = family_name(config)
    if name == "llama4" and fields is None and switch(config, "attn_temperature_tuning"):
        settings = {
            "floor_scale": stated(config, added, "floor_scale", whole_number(config, ("floor_scale",)) or 8192),
            "attn_scale": stated(config, added, "attn_scale", config.get("attn_scale", 0.1)),
        }
        return [Described(name="llama4_temperature", settings=settings)]
    if name in GROWING and fields is not None and fields.parameters.get("llama_4_scaling_beta"):
        return [_temperature(fields, fields.parameters["llama_4_scaling_beta"])]
    if name == "qwen" and switch(config, "use_logn_attn"):
        length = whole_number(config, ("seq_length",))
        if length is None:
            raise WhorlError(f"{CALL}: use_logn_attn needs seq_length, which the config lacks. Add it to the config.")
        return [Described(name="log_n", settings={"trained_length": stated(config, added, "seq_length", length)})]
    return []


def _temperature(fields: Fields, beta: Any) -> Described:
    """Ministral 3 and Mistral 4: queries grow with each original length that lies behind them."""
    name = f"{fields.parameters_name}.llama_4_scaling_beta"
    if isinstance(beta, bool) or not isinstance(beta, (int, float)) or not abs(beta) < MOST_BETA:
        raise invalid(CALL, name, "a number", beta)
    length = whole_number(fields.parameters, (ORIGINAL,))
    if length is None:
        raise WhorlError(f"{CALL}: {name} needs {ORIGINAL} beside it. Add it to the config.")
    source = CLASS_DEFAULT if fields.parameters_name in fields.added else FILE
    settings = {
        "floor_scale": Value(value=length, source=source, field=f"{fields.parameters_name}.{ORIGINAL}"),
        "attn_scale": Value(value=float(beta), source=source, field=name),
        "first": Value(value=0, source=FAMILY_CODE),
    }
    return Described(name="llama4_temperature", settings=settings)


def stated(config: Mapping[str, Any], added: frozenset[str], name: str, value: Any) -> Value:
    """A value that stands under this name in the config, or that its class filled in there."""
    return Value(value=value, source=CLASS_DEFAULT if name in added else FILE, field=name)


def unsupported_beside(config: Mapping[str, Any], fields: Fields | None) -> list[str]:
    """What else changes scores or values by position and has no encoding here, each a name and what it does."""
    found = list(family_of(config).unsupported)
    chunks = config.get("dual_chunk_attention_config")
    if chunks is not None and not isinstance(chunks, dict):
        raise invalid(CALL, "dual_chunk_attention_config", "a dict or null", chunks)
    if chunks:
        found.append("dual chunk attention (dual_chunk_attention_config): positions folded into chunks past its length")
    beta = fields.parameters.get("llama_4_scaling_beta") if fields is not None else None
    if beta and family_name(config) not in GROWING:
        found.append(
            f"temperature by position (llama_4_scaling_beta={shown(beta)}): whether this family has it is not known"
        )
    if family_name(config) != "qwen" and switch(config, "use_logn_attn"):
        found.append("queries scaled by log n (use_logn_attn), as Qwen-1 has it: whether this family does is not known")
    if family_name(config) == "gte" and switch(config, "logn_attention_scale"):
        found.append("queries scaled by the logarithm of the length (logn_attention_scale)")
    if family_name(config) == "beam" and fields is None:
        found.append("queries that grow with their position (family code): q *= (1 + (i + 1) / 2048)^0.1")
    return found


def beside_rotation(fields: Fields) -> list[str]:
    """What a rotation alone leaves out in layers with these rotary fields, in words; empty where it is everything."""
    scales = query_scales(fields.config, fields.added, fields)
    return [*(_said(one) for one in scales), *unsupported_beside(fields.config, fields)]


def _said(scale: Described) -> str:
    if scale.name == "log_n":
        return "queries that grow by log n past seq_length (use_logn_attn)"
    return f"queries that grow with their position ({scale.settings['attn_scale'].field})"
