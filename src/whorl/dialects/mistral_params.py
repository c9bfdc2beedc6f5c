"""Mistral's params.json: what its own code does with positions.

Read in mistral-inference 2557e12, and for ``yarn``, ``llama_4_scaling`` and latent attention, which that code does not
have, in vLLM's reader of such files. The weights pair neighbours (interleaved).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from whorl.dialects.reading import ASSUMED, FAMILY_CODE, FILE, Described, Layers, Reading, Value
from whorl.dialects.stated import Stated, in_groups, layer_indices
from whorl.errors import WhorlError, invalid
from whorl.rotary.scalings.temperature import temperature

SIZES = {"dim", "n_layers", "n_heads", "head_dim", "hidden_dim"}
MAMBA = {"dim", "n_layers", "n_groups"}
YARN = {"factor", "original_max_position_embeddings", "beta", "alpha", "apply_scale"}


def recognises(config: Mapping[str, Any]) -> bool:
    """Whether a dict is a params.json of Mistral."""
    kind = config.get("model_type", "transformer")
    needed = {"mamba": MAMBA, "transformer": SIZES}.get(kind) if isinstance(kind, str) else None
    return needed is not None and config.keys() >= needed


def read(config: dict[str, Any], assume: str | None = None) -> Reading:
    """The reading of a params.json, given as its dict."""
    stated = Stated(config)
    indices = layer_indices(stated.needed("n_layers"))
    claimed = stated.whole("max_position_embeddings", "max_seq_len")
    if config.get("model_type") == "mamba":
        layers = (Layers(kind="no_attention", indices=indices, attention=False),)
        return Reading(dialect="mistral params.json", family="mamba2", layers=layers, config=config)
    windows, notes = _windows(stated), []
    rotation = _rotation(stated, windows, notes)
    groups = in_groups(indices, lambda index: windows[index % len(windows)], alone=None)
    scaled = rotation.scaling is not None
    trained = rotation.scaling.settings["original_length"] if rotation.scaling is not None else None
    return Reading(
        dialect="mistral params.json",
        family="mistral",
        layers=tuple(_layers(stated, rotation, size, places, len(groups) > 1) for size, places in groups.items()),
        trained_length=trained
        if scaled
        else claimed and Value(value=claimed.value, source=ASSUMED, field=claimed.field),
        claimed_length=claimed,
        config=config,
        notes=tuple(notes),
    )


def _windows(stated: Stated) -> tuple[int | None, ...]:
    """The window of each layer, a pattern that repeats; None for a layer that sees everything."""
    name = "sliding_window" if stated.given("sliding_window") is not None else "_sliding_window"
    given = stated.given(name)
    if not isinstance(given, list):
        size = stated.whole(name)
        return (None if size is None else size.value,)
    if not given or len(given) > 2**14:
        raise invalid("read", name, "a window for each layer of a pattern", given)
    return tuple(None if one is None else Stated({name: one}).whole(name).value for one in given)


def _rotation(stated: Stated, windows: tuple[int | None, ...], notes: list[str]) -> Described:
    head_dim = stated.whole("qk_rope_head_dim") or stated.needed("head_dim")
    base = stated.number("rope_theta")
    if base is None:  # Mistral 7B v0.1, the one model with a window and no base, was trained with 10,000
        first = windows[0] is not None
        base = Value(value=10_000.0 if first else 1_000_000.0, source=FAMILY_CODE)
        if first:
            notes.append("rope_theta is absent: base 10,000 as in Mistral 7B v0.1; newer code would take 1,000,000")
    settings = {"head_dim": head_dim, "base": base, "layout": Value(value="interleaved", source=FAMILY_CODE)}
    yarn = stated.part("yarn")
    return Described(name="rope", settings=settings, scaling=yarn and _yarn(yarn, head_dim.field == "qk_rope_head_dim"))


def _yarn(yarn: Stated, latent: bool) -> Described:
    unread = yarn.config.keys() - YARN
    if unread:
        raise WhorlError(
            f"read: cannot place {sorted(unread)[0]!r} in yarn. Understood are: {', '.join(sorted(YARN))}."
        )
    factor = yarn.number("factor")
    if factor is None:
        raise WhorlError("read: yarn.factor is missing. Pass the whole params.json.")
    applied = yarn.switch("apply_scale", otherwise=True)
    on_tables = temperature(factor.value) if applied.value and not latent else 1.0
    settings = {
        "factor": factor,
        "original_length": yarn.needed("original_max_position_embeddings"),
        "beta_fast": yarn.number("beta", otherwise=32.0),
        "beta_slow": yarn.number("alpha", otherwise=1.0),
        "attention_factor": Value(value=on_tables, source=applied.source, field=applied.field),
    }
    if latent:  # as DeepSeek-V3, whose attention this is
        settings["mscale_all_dim"] = Value(value=1.0, source=FAMILY_CODE)
        settings["scale_softmax"] = Value(value=True, source=FAMILY_CODE)
    return Described(name="yarn", settings=settings)


def _layers(
    stated: Stated, rotation: Described, size: int | None, places: tuple[int, ...] | None, differ: bool
) -> Layers:
    encodings = [rotation]
    if size is not None:
        window = Value(value=size, source=FILE, field="sliding_window")
        encodings.append(Described(name="window", settings={"size": window}))
    grown = stated.part("llama_4_scaling")
    if grown is not None:
        beta, length = grown.number("beta"), grown.whole("original_max_position_embeddings")
        if beta is None or length is None:
            raise WhorlError("read: llama_4_scaling needs beta and original_max_position_embeddings. Mend the file.")
        first = Value(value=0, source=FAMILY_CODE)
        settings = {"floor_scale": length, "attn_scale": beta, "first": first}
        encodings.append(Described(name="llama4_temperature", settings=settings))
    kind = "all" if not differ else "full_attention" if size is None else "sliding_attention"
    return Layers(kind=kind, indices=places, encodings=tuple(encodings))
