"""Families that do not rotate: learned tables, sinusoids, ALiBi, T5's buckets, and attention without positions.

One reader per kind of position, and the families that have it. Tables, waves and windows are compared with the models
of transformers 5.22.2 in the tests; that Baichuan-13B has ALiBi was read in vLLM's baichuan.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from whorl.dialects.checks import BAICHUAN_7B, position_type
from whorl.dialects.families import (
    ALIBI,
    LEARNED,
    MPT_ROPE,
    NO_ATTENTION,
    SINUSOIDAL,
    T5,
    UNROTATED,
    family_name,
    family_of,
    unrotated_kind,
)
from whorl.dialects.names import HEADS, LENGTHS, WIDTHS
from whorl.dialects.reading import ASSUMED, CLASS_DEFAULT, FAMILY_CODE, FILE, Described, Layers, Source, Value
from whorl.dialects.values import layer_types, switch, whole_number
from whorl.errors import WhorlError, invalid, shown

Config = Mapping[str, Any]
MOST_LAYERS = 4096


@dataclass(frozen=True, kw_only=True)
class Found:
    """Config of a model that does not rotate, and the names of the fields its class filled in."""

    config: Config
    added: frozenset[str]

    def value(self, *names: str, otherwise: int | None = None, less: int = 0) -> Value:
        """The first of these sizes, or the constant of the code."""
        size = whole_number(self.config, names)
        if size is None and otherwise is None:
            raise WhorlError(f"read: {names[0]} is missing in the config. Pass all of config.json.")
        if size is None:
            return Value(value=otherwise, source=CLASS_DEFAULT)
        name = next(name for name in names if self.config.get(name) is not None)
        source: Source = CLASS_DEFAULT if name in self.added else FILE
        return Value(value=size - less, source=source, field=name)


Answer = tuple[Layers, ...]


def layers_without_rotation(config: Config, added: frozenset[str]) -> Answer | None:
    """What positions do in a model that does not rotate; None for one that does, or may."""
    name, found = family_name(config), Found(config=config, added=added)
    if family_of(config).still or _switched_off(name, config):
        return (Layers(),)
    if switch(config, "alibi"):
        return _falcon(found)
    if name == "baichuan":
        return None if found.value(*WIDTHS).value == BAICHUAN_7B else _alibi(found)
    if name in UNROTATED:
        return (OWN[name] if name in OWN else KINDS[UNROTATED[name]])(found)
    if name == "esm" and position_type(config) in (None, "absolute"):
        return _learned(found)
    return None


def _switched_off(name: str, config: Config) -> bool:
    """Whether a field takes the rotation from a family that has one."""
    if name == "zamba2":
        return not switch(config, "use_mem_rope")
    if name == "granitemoehybrid":
        return position_type(config) != "rope"
    if name == "olmo_hybrid":  # its released checkpoints have a null there
        return "rope_parameters" in config and config["rope_parameters"] is None
    return name in ("gptj", "codegen") and whole_number(config, ("rotary_dim",), least=0) == 0


# --- kinds of position


def _all(*encodings: Described, unsupported: tuple[str, ...] = ()) -> Answer:
    return (Layers(encodings=encodings, unsupported=unsupported),)


def _learned(found: Found, less: int = 0) -> Answer:
    kind = position_type(found.config)
    if kind == "alibi":  # JinaBERT, whose files say bert
        return _all(unsupported=("position_embedding_type 'alibi': ALiBi by the distance to both sides",))
    if kind not in (None, "absolute", "relative_key", "relative_key_query"):
        raise invalid(
            "read",
            "position_embedding_type",
            "absolute, relative_key or relative_key_query",
            kind,
            "What another means stands in the code that comes with the checkpoint.",
        )
    if kind not in (None, "absolute"):
        return _all(unsupported=(f"position_embedding_type {kind!r}: numbers learned by distance, as Shaw's",))
    # ALBERT and ELECTRA add positions before they widen the embedding; DistilBERT calls its width dim
    width = found.value("embedding_size", *WIDTHS, "dim")
    settings = {"width": width, "length": found.value(*LENGTHS, less=less)}
    return _all(Described(name="learned", settings=settings))


def _gpt_neo(found: Found) -> Answer:
    """GPT-Neo has a window in the layers that its list calls local."""
    (everywhere,) = _learned(found)
    kinds = _gpt_neo_kinds(found.config)
    size = found.value("window_size", otherwise=256)
    window = Described(name="window", settings={"size": size})
    groups = {kind: tuple(i for i, one in enumerate(kinds) if one == kind) for kind in dict.fromkeys(kinds)}
    return tuple(
        Layers(kind=kind, indices=places, encodings=everywhere.encodings + ((window,) if kind == "local" else ()))
        for kind, places in groups.items()
    )


def _gpt_neo_kinds(config: Config) -> tuple[str, ...]:
    """The kind of each layer, "global" or "local": listed, or as pairs of a few kinds and how often they repeat."""
    kinds = layer_types(config, "attention_layers")
    pairs = config.get("attention_types", [[["global", "local"], 12]])
    if not kinds:
        plain = isinstance(pairs, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in pairs)
        for pair in pairs if plain else ():
            times = whole_number({"attention_types": pair[1]}, ("attention_types",))
            kinds += layer_types({"attention_types": pair[0]}, "attention_types") * min(times or 0, MOST_LAYERS)
    if not kinds or set(kinds) - {"global", "local"} or len(kinds) > MOST_LAYERS:
        raise invalid("read", "attention_types", "pairs of kinds and how often they repeat", pairs)
    return kinds


def _from_padding(found: Found) -> Answer:
    """RoBERTa counts positions from padding_idx + 1 = 2, so that the first two rows of its table are not used."""
    return _learned(found, less=2)


def _sinusoidal(found: Found) -> Answer:
    order = Value(value="concatenated", source=FAMILY_CODE)
    return _all(Described(name="sinusoidal", settings={"width": found.value(*WIDTHS), "order": order}))


def _alibi(found: Found) -> Answer:
    return _all(Described(name="alibi", settings={"heads": found.value(*HEADS)}))


def _falcon(found: Found) -> Answer:
    """Falcon divides the bias by sqrt(head_dim) with the scores."""
    heads, width = found.value(*HEADS), found.value(*WIDTHS)
    if family_name(found.config) != "falcon":
        source = ASSUMED  # what other families do with their flag is not known
        return _all(Described(name="alibi", settings={"heads": heads, "scale": Value(value=1.0, source=source)}))
    if width.value < heads.value:
        raise WhorlError(
            f"read: {width.field}={width.value} has no dimension for each of {heads.value} heads. "
            "Pass all of config.json."
        )
    scale = Value(value=(width.value // heads.value) ** -0.5, source=FAMILY_CODE)
    return _all(Described(name="alibi", settings={"heads": heads, "scale": scale}))


def _mpt(found: Found) -> Answer:
    inside = found.config.get("attn_config")
    inside = inside if isinstance(inside, dict) else {}
    for part, name in ((inside, "rope"), (inside, "alibi"), (found.config, "learned_pos_emb")):
        switch(part, name)  # raises for what is no switch
    kind = unrotated_kind(found.config)
    if kind == MPT_ROPE:
        return _all(unsupported=(kind,))
    if kind != ALIBI:
        return _learned(found) if kind == LEARNED else (Layers(),)
    most = whole_number(inside, ("alibi_bias_max",))
    if most not in (None, 8):
        return _all(unsupported=(f"ALiBi with alibi_bias_max={most}: other slopes than Press's",))
    return _alibi(found)


def _t5(found: Found) -> Answer:
    def side(kind: str, bidirectional: bool) -> Layers:
        settings = {
            "heads": found.value("num_heads", *HEADS),
            "buckets": found.value("relative_attention_num_buckets", otherwise=32),
            "max_distance": found.value("relative_attention_max_distance", otherwise=128),
            "bidirectional": Value(value=bidirectional, source=FAMILY_CODE),
        }
        return Layers(kind=kind, encodings=(Described(name="t5", settings=settings),))

    return (side("encoder", True), side("decoder", False))


def _longt5(found: Found) -> Answer:
    """LongT5's encoder sees a neighbourhood, or it and a summary of the rest; its decoder is T5's."""
    encoder, decoder = _t5(found)
    kind, radius = found.config.get("encoder_attention_type", "local"), found.value("local_radius", otherwise=127).value
    what = (
        f"encoder_attention_type {shown(kind)}: a query sees its own block and the next ones, of {radius + 1} keys each"
    )
    return dataclasses.replace(encoder, unsupported=(what,)), decoder


def _inkling(found: Found) -> Answer:
    return _all(unsupported=("Inkling's relative logits: a bias by distance from 16 numbers per head of each query",))


def _siglip2_vision(found: Found) -> Answer:
    """SigLIP 2 with NaFlex: a square of learned numbers, stretched to the rows and columns of each image."""
    rows = found.value("num_patches", otherwise=256).value
    return _all(unsupported=(f"a learned grid of {rows} patches (num_patches), resized to those of each image",))


def _whisper(found: Found) -> Answer:
    """Whisper's encoder has waves from 1 to 1/10,000, both ends reached, and its decoder a learned table."""
    width = found.value("d_model", otherwise=384)
    if width.value < 4:
        raise invalid("read", "d_model", "4 or more", width.value)
    half = width.value // 2
    waves = {
        "width": width,
        "order": Value(value="concatenated", source=FAMILY_CODE),
        "base": Value(value=10_000.0 ** (half / (half - 1)), source=FAMILY_CODE),
    }
    table = {"width": width, "length": found.value("max_target_positions", otherwise=448)}
    encoder, decoder = Described(name="sinusoidal", settings=waves), Described(name="learned", settings=table)
    return (Layers(kind="encoder", encodings=(encoder,)), Layers(kind="decoder", encodings=(decoder,)))


def _no_attention(found: Found) -> Answer:
    return (Layers(attention=False),)


Reader = Callable[[Found], Answer]

KINDS: dict[str, Reader] = {
    **{ALIBI: _alibi, LEARNED: _learned, SINUSOIDAL: _sinusoidal, T5: _t5, NO_ATTENTION: _no_attention},
}
# Families that have something of their own beside the kind.
OWN: dict[str, Reader] = {
    "gpt_neo": _gpt_neo,
    "longt5": _longt5,
    "mpt": _mpt,
    "inkling": _inkling,
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert", "xlm-roberta-xl", "roberta-prelayernorm"), _from_padding),
    "siglip2_vision": _siglip2_vision,
    "whisper": _whisper,
}
