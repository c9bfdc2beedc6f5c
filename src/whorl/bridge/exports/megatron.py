"""Megatron-LM: the arguments of a training script. Read in Megatron-LM d98e8a6, training/arguments.py."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from whorl.bridge.exports.draft import Draft, Origin
from whorl.bridge.inexpressible import InexpressibleError
from whorl.bridge.model import Group
from whorl.dialects import megatron
from whorl.dialects.names import HEADS, WIDTHS
from whorl.dialects.reading import Described
from whorl.dialects.values import whole_number
from whorl.encodings.rope import Rope

REMEDY = "Megatron-LM has no argument for the rest."


def arguments(origin: Origin) -> Draft:
    """The arguments that make Megatron-LM train with these positions, as words and as the dict that they make."""
    turning = [group for group in origin.reading.layers if any(one in group.encodings for one in origin.rotations)]
    if not turning or any(group.indices is None for group in origin.reading.layers):
        what = "no layer rotates" if not turning else "num_hidden_layers is not stated"
        raise InexpressibleError(f"export: megatron cannot say this: {what}.")
    rotation = next(one for one in turning[0].encodings if one in origin.rotations)
    rope = next(one for one in Group(turning[0]).encoding.modules() if isinstance(one, Rope))
    named = _sizes(origin, rotation) | _latent(rotation, rope, origin) | _rotation(rotation, rope, origin)
    named |= _layers(origin)
    return Draft(
        target="megatron",
        text=" \\\n".join(_words(named)),
        data=named,
        notes=origin.notes,
        readings={"Megatron-LM": megatron.read(named)},
        moves_rows=bool(origin.notes),
        remedy=REMEDY,
    )


def _words(named: Mapping[str, Any]) -> list[str]:
    words = []
    for name, value in named.items():
        flag = f"--{name.replace('_', '-')}"
        if value is False:
            words.append(f"--no-{name.replace('_', '-')}")
        elif value is True:
            words.append(flag)
        elif isinstance(value, list):
            listed = ",".join(map(str, value))
            words.append(f"{flag} {listed}" if name == "window_size" else f'{flag} "[{listed}]"')
        else:
            words.append(f"{flag} {value}")
    return words


def _is_latent(origin: Origin) -> bool:
    return bool(whole_number(origin.fields, ("qk_rope_head_dim",), least=0))


def _sizes(origin: Origin, rotation: Described) -> dict[str, Any]:
    heads = whole_number(origin.fields, HEADS)
    width = whole_number(origin.fields, WIDTHS)
    if heads is None or width is None:
        raise InexpressibleError("export: megatron needs num_attention_heads and hidden_size, which the file lacks.")
    count = sum(len(group.indices or ()) for group in origin.reading.layers)
    sizes = {"num_layers": count, "hidden_size": width, "num_attention_heads": heads}
    if not _is_latent(origin):
        sizes["kv_channels"] = rotation.value("head_dim")
    if origin.length is not None:
        trained = origin.reading.trained_length
        sizes |= {"seq_length": origin.length if trained is None else trained.value}
        sizes["max_position_embeddings"] = origin.length
    return sizes


def _rotation(rotation: Described, rope: Rope, origin: Origin) -> dict[str, Any]:
    base = rotation.value("base")
    if base != int(base):
        raise InexpressibleError(f"export: megatron has --rotary-base as a whole number, and the base is {base}.")
    if _is_latent(origin):
        return {"rotary_base": int(base)}
    named: dict[str, Any] = {"position_embedding_type": "rope", "rotary_base": int(base)}
    if rotation.value("layout") == "interleaved":
        named["rotary_interleaved"] = True
    dim, head = rotation.value("rotary_dim"), rotation.value("head_dim")
    if dim is not None and dim != head:
        named["rotary_percent"] = dim / head
    if rotation.value("sections") is not None:
        named |= {"position_embedding_type": "mrope", "mrope_section": list(rotation.value("sections"))}
    scaling = rotation.scaling
    if scaling is None:
        return named
    factor = scaling.value("factor")
    if scaling.name == "linear" and factor == int(factor):
        named["rotary_seq_len_interpolation_factor"] = int(factor)
    elif scaling.name == "llama3":
        named |= {"use_rope_scaling": True, "rope_scaling_factor": factor}
    elif scaling.name == "yarn":
        named |= {"position_embedding_type": "yarn", **_yarn(scaling, rope, "yarn_")}
    return named


def _yarn(scaling: Described, rope: Rope, prefix: str) -> dict[str, Any]:
    factor = scaling.value("factor")
    # the weight m with 0.1 m ln(factor) + 1 on cos and sin, the other weight being 0
    weight = round((float(rope.attention_factor()) - 1) / (0.1 * math.log(factor)), 12) if factor > 1 else 1.0
    return {
        "rotary_scaling_factor": factor,
        f"{prefix}original_max_position_embeddings": scaling.value("original_length"),
        f"{prefix}beta_fast": scaling.value("beta_fast", 32.0),
        f"{prefix}beta_slow": scaling.value("beta_slow", 1.0),
        **({f"{prefix}correction_range_round_to_int": scaling.value("truncate", True)} if prefix else {}),
        "mscale": weight,
        "mscale_all_dim": 0.0,
    }


def _latent(rotation: Described, rope: Rope, origin: Origin) -> dict[str, Any]:
    if not _is_latent(origin):
        return {}
    named: dict[str, Any] = {"multi_latent_attention": True, "qk_pos_emb_head_dim": rotation.value("head_dim")}
    scaling = rotation.scaling
    if scaling is None:
        return named | {"rope_type": "rope"}
    if scaling.name != "yarn":
        return named | {"rope_type": "yarn"}
    all_dim = scaling.value("mscale_all_dim") or 0.0
    above = scaling.value("mscale") or 1.0
    return named | {"rope_type": "yarn", **_yarn(scaling, rope, ""), "mscale": above, "mscale_all_dim": all_dim}


def _layers(origin: Origin) -> dict[str, Any]:
    """Which layers do not rotate, and which have a window."""
    layers = origin.reading.layers
    count = sum(len(group.indices or ()) for group in layers)
    still, local = [0] * count, [0] * count
    size = 0
    for group in layers:
        window = next((one.value("size") for one in group.encodings if one.name == "window"), None)
        for index in group.indices or ():
            still[index] = int(not any(one in group.encodings for one in origin.rotations))
            local[index] = int(window is not None)
        size = window or size
    named: dict[str, Any] = {"no_rope_freq": still} if any(still) else {}
    if any(local):
        named |= {"window_size": [size - 1, 0], "window_attn_skip_freq": local}
    return named
