"""Megatron-LM arguments: what they make its models do with positions.

Read in Megatron-LM d98e8a6: training/arguments.py for the defaults, core/models and core/transformer for what is done.
The arguments are those of ``args`` in a checkpoint or of a training script, as a dict: ``rotary_base``, ``rotary-base``
and ``--rotary-base`` are one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from whorl.dialects.reading import FAMILY_CODE, FILE, Described, Layers, Reading, Value
from whorl.dialects.stated import Stated, head_size, in_groups, layer_indices, table_sizes
from whorl.errors import WhorlError, invalid, unknown
from whorl.rotary.scalings.temperature import temperature

SIZES = {"num_layers", "hidden_size", "num_attention_heads"}
PECULIAR = {
    *("rotary_percent", "rotary_interleaved", "use_rotary_position_embeddings", "rotary_seq_len_interpolation_factor"),
    *("use_rope_scaling", "rope_scaling_factor", "no_rope_freq", "tensor_model_parallel_size", "rotary_base"),
    *("rotary_scaling_factor", "yarn_original_max_position_embeddings", "window_attn_skip_freq", "kv_channels"),
}
KINDS = ("learned_absolute", "rope", "yarn", "mrope", "relative", "none")
LLAMA_3_LENGTH = 8192


def recognises(config: Mapping[str, Any]) -> bool:
    """Whether a dict holds arguments of Megatron-LM."""
    names = _renamed(config).keys()
    return not names & {"model_type", "architectures", "architecture"} and names >= SIZES and bool(names & PECULIAR)


def read(config: dict[str, Any], assume: str | None = None) -> Reading:
    """The reading of arguments, given as a dict."""
    stated, notes = Stated(_renamed(config)), []
    kind = stated.word("position_embedding_type", otherwise="learned_absolute")
    if kind.value not in KINDS:
        raise unknown("position_embedding_type of read:", kind.value, KINDS)
    if stated.switch("use_rotary_position_embeddings", otherwise=False).value:
        kind = Value(value="rope", source=FILE, field="use_rotary_position_embeddings")
    encodings, unsupported = _positions(stated, kind.value, notes)
    still, local = _still(stated), _local(stated)
    groups = in_groups(
        layer_indices(stated.needed("num_layers")), lambda index: (still(index), local(index)), alone=(False, False)
    )
    window, beyond = _window(stated)
    layers = tuple(
        Layers(
            kind="all" if len(groups) == 1 else "sliding_attention" if windowed else "full_attention",
            indices=places,
            encodings=(*(() if unturned else encodings), *(window if windowed else ())),
            unsupported=(*unsupported, *(beyond if windowed else ())),
        )
        for (unturned, windowed), places in groups.items()
    )
    scaling = encodings[0].scaling if encodings else None
    original = None if scaling is None else scaling.settings.get("original_length")
    return Reading(
        dialect="megatron arguments",
        family="megatron",
        layers=layers,
        trained_length=original or stated.whole("seq_length"),
        claimed_length=stated.whole("max_position_embeddings", "seq_length"),
        config=config,
        notes=tuple(notes),
    )


def _renamed(config: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments by the names that Python gives them."""
    return {name.removeprefix("--").replace("-", "_"): one for name, one in config.items() if isinstance(name, str)}


# --- positions


def _positions(stated: Stated, kind: str, notes: list[str]) -> tuple[tuple[Described, ...], tuple[str, ...]]:
    if stated.switch("multi_latent_attention", otherwise=False).value:
        return _latent(stated, notes)
    if kind == "learned_absolute":
        settings = table_sizes(stated.needed("hidden_size"), stated.needed("max_position_embeddings"))
        return (Described(name="learned", settings=settings),), ()
    if kind == "none":
        return (), ()
    if kind == "relative":
        return (), ("T5's buckets (position_embedding_type relative), in an encoder and a decoder",)
    head_dim = _head_dim(stated)
    settings = {"head_dim": head_dim, "base": stated.number("rotary_base", otherwise=10_000.0)}
    if kind == "yarn":  # which asserts that pairs are halves, and turns the whole head
        settings["layout"] = Value(value="half", source=FAMILY_CODE)
        return (Described(name="rope", settings=settings, scaling=_yarn(stated, "yarn_", 1.0)),), ()
    interleaved = stated.switch("rotary_interleaved", otherwise=False)
    layout = "interleaved" if interleaved.value else "half"
    settings["layout"] = Value(value=layout, source=interleaved.source, field=interleaved.field)
    settings |= _partial(stated, head_dim)
    if kind == "mrope":
        sections = stated.listed("mrope_section")
        if sections is None:
            raise WhorlError("read: mrope_section is missing, and position_embedding_type is mrope. Add it.")
        settings["sections"] = Value(value=tuple(int(one) for one in sections), source=FILE, field="mrope_section")
    scaling, unsupported = _scaling(stated, llama3=kind == "rope")
    return (Described(name=kind, settings=settings, scaling=scaling),), unsupported


def _head_dim(stated: Stated) -> Value:
    given = stated.whole("kv_channels")
    return given or head_size(stated.needed("hidden_size"), stated.needed("num_attention_heads"))


def _partial(stated: Stated, head_dim: Value) -> dict[str, Value]:
    share = stated.number("rotary_percent")
    if share is None or share.value >= 1:
        return {}
    return {"rotary_dim": Value(value=int(head_dim.value * share.value), source=FILE, field="rotary_percent")}


def _scaling(stated: Stated, llama3: bool) -> tuple[Described | None, tuple[str, ...]]:
    """Llama 3's scaling, or positions divided by a factor; both together have no form here."""
    divided = stated.number("rotary_seq_len_interpolation_factor")
    scaled = llama3 and stated.switch("use_rope_scaling", otherwise=False).value
    linear = None if divided is None else Described(name="linear", settings={"factor": divided})
    if not scaled:
        return linear, ()
    settings = {
        "factor": stated.number("rope_scaling_factor", otherwise=8.0),
        "original_length": Value(value=LLAMA_3_LENGTH, source=FAMILY_CODE),
        "low_freq_factor": Value(value=1.0, source=FAMILY_CODE),
        "high_freq_factor": Value(value=4.0, source=FAMILY_CODE),
    }
    said = () if divided is None else (f"positions divided by {divided.field} = {divided.value:g} beside Llama 3's",)
    return Described(name="llama3", settings=settings), said


def _yarn(stated: Stated, prefix: str, factor: float) -> Described:
    stretch = stated.number("rotary_scaling_factor", otherwise=factor)
    weights = [stated.number(name, otherwise=one) for name, one in (("mscale", 1.0), ("mscale_all_dim", 0.0))]
    above, below = (temperature(stretch.value, one.value) for one in weights)
    if not above > 0 or not below > 0:
        raise invalid(
            "read", "mscale and mscale_all_dim", "such that 0.1 m ln(factor) + 1 is positive", weights[0].value
        )
    rounded = stated.switch("yarn_correction_range_round_to_int", otherwise=True)
    return Described(
        name="yarn",
        settings={
            "factor": stretch,
            "original_length": stated.whole(f"{prefix}original_max_position_embeddings", otherwise=4096),
            "beta_fast": stated.number(f"{prefix}beta_fast", otherwise=32.0),
            "beta_slow": stated.number(f"{prefix}beta_slow", otherwise=1.0),
            "truncate": rounded if prefix else Value(value=True, source=FAMILY_CODE),
            "attention_factor": Value(value=above / below, source=weights[0].source, field=weights[0].field),
        },
    )


def _latent(stated: Stated, notes: list[str]) -> tuple[tuple[Described, ...], tuple[str, ...]]:
    """Multi-latent attention: DeepSeek-V3's, YaRN unless rope_type says otherwise."""
    settings = {
        "head_dim": stated.whole("qk_pos_emb_head_dim", otherwise=64),
        "base": stated.number("rotary_base", otherwise=10_000.0),
        "layout": Value(value="interleaved_to_half", source=FAMILY_CODE),
    }
    kind = stated.word("rope_type", otherwise="yarn")
    if kind.value not in ("rope", "yarn"):
        raise unknown("rope_type of read:", kind.value, ("rope", "yarn"))
    weight = stated.number("mscale_all_dim", otherwise=0.0)
    factor = stated.number("rotary_scaling_factor")
    if factor is None:
        notes.append("rotary_scaling_factor is absent: the arguments take 1, MLATransformerConfig by itself 40")
    if kind.value == "rope":
        grown = bool(weight.value) and factor is not None and factor.value > 1
        said = ("the softmax scale multiplied by mscale_all_dim without YaRN",) if grown else ()
        return (Described(name="rope", settings=settings | _partial(stated, settings["head_dim"])),), said
    yarn = _yarn(stated, "", 1.0)
    if weight.value > 0:
        softmax = {"mscale_all_dim": weight, "scale_softmax": Value(value=True, source=FAMILY_CODE)}
        yarn = Described(name="yarn", settings={**yarn.settings, **softmax})
    return (Described(name="rope", settings=settings, scaling=yarn),), ()


# --- layers


def _pattern(stated: Stated, name: str) -> tuple[int, tuple[float, ...] | None]:
    """A period, 0 where there is none, or a number for each layer."""
    if isinstance(stated.given(name), str):
        raise invalid("read", name, "a number or a list", stated.given(name), "Write out the list that it stands for.")
    listed = stated.listed(name)
    if listed is None:
        period = stated.whole(name)
        return (0 if period is None else period.value), None
    count = stated.needed("num_layers").value
    if len(listed) != count:
        raise WhorlError(f"read: {name} has {len(listed)} entries for {count} layers. Name each.")
    return 0, listed


def _still(stated: Stated) -> Any:
    period, listed = _pattern(stated, "no_rope_freq")
    return lambda index: bool(listed[index]) if listed is not None else bool(period) and (index + 1) % period == 0


def _local(stated: Stated) -> Any:
    if stated.given("window_size") is None:
        return lambda index: False
    period, listed = _pattern(stated, "window_attn_skip_freq")
    return lambda index: bool(listed[index]) if listed is not None else not period or (index + 1) % period != 0


def _window(stated: Stated) -> tuple[tuple[Described, ...], tuple[str, ...]]:
    """The window: as many keys before the query as it says, and the query itself."""
    if stated.given("window_size") is None:
        return (), ()
    sides = stated.listed("window_size")
    if sides is None or len(sides) != 2 or sides[0] < 0 or sides[0] % 1:
        raise invalid("read", "window_size", "two numbers, keys before and after", stated.given("window_size"))
    size = Value(value=int(sides[0]) + 1, source=FILE, field="window_size")
    beyond = () if sides[1] == 0 else (f"a window that sees {sides[1]:g} keys after the query",)
    return (Described(name="window", settings={"size": size}),), beyond
