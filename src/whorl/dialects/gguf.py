"""GGUF models: what llama.cpp does with positions in each layer of a file, from its metadata and its rope tensors.

The values are those that llama.cpp computes with, which are not always those of the model that was converted: it has
no list without truncation for YaRN, reads YaRN's betas for two architectures alone, and knows no window for Phi-3.
``gguf_architectures.py`` says where that was read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whorl.dialects.gguf_architectures import ARCHITECTURES, ROTATION, Architecture, architecture_of
from whorl.dialects.gguf_file import MAGIC, GgufFile, read_gguf
from whorl.dialects.reading import ASSUMED, CLASS_DEFAULT, FAMILY_CODE, FILE, Described, Layers, Reading, Source, Value
from whorl.dialects.stated import Stated, head_size, layer_indices, table_sizes
from whorl.errors import WhorlError, shown, unknown
from whorl.rotary.scalings.temperature import temperature

FREQUENCIES, LONG, SHORT = "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"


def recognises(head: bytes) -> bool:
    """Whether a file that begins so is a GGUF file."""
    return head.startswith(MAGIC)


def read(path: Path, assume: str | None = None) -> Reading:
    """The reading of a GGUF file."""
    file = read_gguf(path)
    name = file.metadata.get("general.architecture")
    if not isinstance(name, str):
        raise WhorlError(
            f"read: {shown(str(path))} has no general.architecture. Of a model in several files, pass the first."
        )
    stated = Stated(file.metadata, prefix=f"{name}.")
    count = stated.whole("block_count")
    row = architecture_of(name, None if count is None else count.value)
    known = row is not None
    if row is None:
        row = Architecture() if assume is None else _assumed(assume)
    if row.refusal:
        raise WhorlError(f"read: the GGUF architecture {name!r} cannot be read: {row.refusal}.")
    model = _Model(file=file, stated=stated, row=row, name=name, code=FAMILY_CODE if known else ASSUMED)
    layers = _instead(model) if row.instead else _rotated(model)
    return Reading(
        dialect="gguf",
        family=name,
        standing="known" if known else "unknown",
        layers=layers,
        trained_length=_trained(model, layers),
        claimed_length=stated.whole("context_length"),
        config={key: value for key, value in file.metadata.items() if not key.startswith("tokenizer.")},
        notes=tuple(_notes(model, layers)),
    )


def _assumed(family: str) -> Architecture:
    if family not in ARCHITECTURES:
        raise unknown("GGUF architecture to assume", family, ARCHITECTURES)
    return ARCHITECTURES[family]


@dataclass(frozen=True, kw_only=True)
class _Model:
    """A file, its fields, its architecture, and who settles what the file leaves open."""

    file: GgufFile
    stated: Stated
    row: Architecture
    name: str
    code: Source

    def settled(self, value: Any) -> Value:
        return Value(value=value, source=self.code)

    def layer_count(self) -> Value | None:
        """The layers of the model itself: those that predict further tokens stand after them."""
        count = self.stated.whole("block_count")
        further = self.stated.whole("nextn_predict_layers", least=0)
        if count is None or further is None or not 0 < further.value < count.value:
            return count
        return Value(value=count.value - further.value, source=FILE, field=count.field)


# --- layers that rotate


def _rotated(model: _Model) -> tuple[Layers, ...]:
    groups: dict[tuple[str, bool], list[int]] = {}
    indices = layer_indices(model.layer_count())
    if indices is None:
        raise WhorlError(f"read: {model.name}.block_count is missing. The file is not whole; download it again.")
    windows, still = _windowed(model, len(indices)), _still(model, len(indices))
    attention = _attention(model, len(indices))
    for index in indices:
        kind = "sliding_attention" if windows[index] else "full_attention"
        if model.row.sliding is not None and model.row.sliding.kind == "chunked" and windows[index]:
            kind = "chunked_attention"
        groups.setdefault((kind if attention[index] else "no attention", not still[index]), []).append(index)
    alike = len(groups) == 1
    return tuple(
        _layers(model, "all" if alike and kind == "full_attention" else kind, tuple(places), rotates)
        for (kind, rotates), places in groups.items()
    )


def _layers(model: _Model, kind: str, indices: tuple[int, ...], rotates: bool) -> Layers:
    if kind == "no attention":
        return Layers(kind="no_attention", indices=indices, attention=False)
    local = kind in ("sliding_attention", "chunked_attention")
    encodings, unsupported = [], []
    if rotates:
        encodings.append(_rotation(model, local, unsupported))
    if local:
        encodings += _window(model, unsupported)
    encodings += _temperatures(model, rotates, unsupported)
    cap = model.stated.number("attn_logit_softcapping", otherwise=model.row.softcap)
    return Layers(
        kind=kind,
        indices=indices,
        encodings=tuple(encodings),
        softcap=cap if model.row.softcap is not None else None,
        unsupported=tuple(unsupported),
    )


def _windowed(model: _Model, count: int) -> list[bool]:
    """Which layers see a window."""
    sliding = model.row.sliding
    if sliding is None or _window_size(model) is None:
        return [False] * count
    listed = model.stated.listed("attention.sliding_window_pattern")
    if listed is not None:
        return [bool(one) for one in _per_layer(model, "attention.sliding_window_pattern", listed, count)]
    period = model.stated.whole("attention.sliding_window_pattern", least=0)
    if period is None and sliding.period == 0:
        raise WhorlError(f"read: {model.name}.attention.sliding_window_pattern is missing. Download the file again.")
    every = sliding.period if period is None else period.value
    last = 0 if sliding.full_first else every - 1
    return [every == 0 or index % every != last for index in range(count)]


def _window_size(model: _Model) -> Value | None:
    sliding = model.row.sliding
    assert sliding is not None
    stated = model.stated.whole("attention.sliding_window", least=0)
    if stated is not None and stated.value == 0:
        return None
    if stated is None or sliding.fixed:
        return None if sliding.size is None else model.settled(sliding.size)
    return stated


def _still(model: _Model, count: int) -> list[bool]:
    """Which layers do not rotate."""
    row, windows = model.row, _windowed(model, count)
    if row.optional:
        rotates = model.stated.switch("rope.scaling.finetuned", otherwise=True)
        return [not rotates.value] * count
    if row.sliding is not None and row.sliding.fixed and not any(windows):
        return [False] * count
    if row.still == "full":
        return [any(windows) and not one for one in windows]
    if row.still == "":
        return [False] * count
    ahead = 1 if row.still == "fourth" else 0
    return [(index + ahead) % 4 == 0 for index in range(count)]


def _attention(model: _Model, count: int) -> list[bool]:
    """Which layers have attention: the others have no heads, or a recurrence."""
    for name in ("attention.head_count_kv", "attention.head_count"):
        heads = model.stated.listed(name)
        if heads is not None and not all(heads):
            return [bool(one) for one in _per_layer(model, name, heads, count)]
    recurrent = model.stated.listed("attention.recurrent_layers")
    if recurrent is not None:
        return [not one for one in _per_layer(model, "attention.recurrent_layers", recurrent, count)]
    every = model.stated.whole("full_attention_interval", otherwise=model.row.full_every)
    if not model.row.full_every or every is None:
        return [True] * count
    return [(index + 1) % every.value == 0 for index in range(count)]


def _per_layer(model: _Model, name: str, listed: tuple[float, ...], count: int) -> tuple[float, ...]:
    if len(listed) < count:
        raise WhorlError(f"read: {model.name}.{name} has {len(listed)} entries for {count} layers. Mend the file.")
    return listed[:count]


# --- the rotation of one kind of layer


def _rotation(model: _Model, local: bool, unsupported: list[str]) -> Described:
    stated, sliding = model.stated, model.row.sliding
    head_dim, rotary_dim = _sizes(model, local)
    base = stated.number("rope.freq_base", otherwise=10_000.0)
    if local and sliding is not None:
        own = stated.number("rope.freq_base_swa")
        base = own or (Value(value=10_000.0, source=CLASS_DEFAULT) if sliding.own_base else base)
    settings = {
        "head_dim": head_dim,
        "rotary_dim": rotary_dim,
        "base": base,
        "layout": model.settled(ROTATION[model.row.pairs]),
    }
    sections = _sections(model, rotary_dim.value)
    if sections is not None:
        arrangement = "interleaved" if model.row.pairs == "imrope" else "chunked"
        settings |= {
            "layout": model.settled("half"),
            "sections": sections,
            "arrangement": model.settled(arrangement),
        }
    scaled = not local or sliding is None or sliding.scaled
    scaling = _scaling(model, rotary_dim.value // 2, unsupported) if scaled else None
    return Described(name="rope" if sections is None else "mrope", settings=settings, scaling=scaling)


def _sizes(model: _Model, local: bool) -> tuple[Value, Value]:
    """The dimensions of the tensor that is rotated, and how many of them are."""
    stated, ending = model.stated, ("_swa", "") if local else ("",)
    head_dim = stated.whole(*(f"attention.key_length{one}" for one in ending))
    head_dim = head_dim or head_size(stated.needed("embedding_length"), _heads(model))
    rotary_dim = stated.whole(*(f"rope.dimension_count{one}" for one in ending)) or head_dim
    if stated.whole("attention.kv_lora_rank", least=0, otherwise=0).value:
        return rotary_dim, rotary_dim  # latent attention turns a tensor of its own
    return head_dim, rotary_dim


def _heads(model: _Model) -> Value:
    """The number of heads, that of the first layer with any where a file lists them."""
    listed, field = model.stated.listed("attention.head_count"), f"{model.name}.attention.head_count"
    if listed is None:
        return model.stated.needed("attention.head_count")
    return Stated({field: next((one for one in listed if one), None)}).needed(field)


def _sections(model: _Model, rotary_dim: int) -> Value | None:
    """The sections of an M-RoPE, three of the four that a file has; None for a rotation by one position."""
    name = "rope.dimension_sections"
    listed, needed = model.stated.listed(name), model.row.pairs in ("mrope", "imrope")
    if listed is None:
        if needed:
            raise WhorlError(f"read: {model.name}.{name} is missing, and {model.name} has sections. Mend the file.")
        return None
    if not needed and not (model.name in ("glm4", "glm4moe") and all(listed[:2]) and len(listed) > 1):
        return None  # llama.cpp reads them and turns by one position
    sizes = tuple(int(one) for one in listed)
    while sizes and sizes[-1] == 0:
        sizes = sizes[:-1]
    if sum(sizes) != rotary_dim // 2 or min(sizes) < 1:
        raise WhorlError(
            f"read: {model.name}.{name} is {list(sizes)}, and {rotary_dim // 2} pairs are to be shared. Mend the file."
        )
    return Value(value=sizes, source=FILE, field=f"{model.name}.{name}")


def _notes(model: _Model, layers: tuple[Layers, ...]) -> list[str]:
    """Where llama.cpp turns pairs of an interleaved M-RoPE otherwise than the models that have one."""
    rotations = [one for group in layers for one in group.encodings if "sections" in one.settings]
    if model.row.pairs != "imrope" or not rotations:
        return []
    sizes = rotations[0].value("sections")
    fourth = [j for j in range(sum(sizes)) if len(sizes) == 3 and j >= 3 * sizes[j % 3]]
    return [
        f"llama.cpp turns the pairs {', '.join(map(str, fourth))} by a fourth position, which is 0 in text; "
        "the model's own code turns them by time, and so does this reading"
    ] * bool(fourth)


# --- scalings


def _scaling(model: _Model, pairs: int, unsupported: list[str]) -> Described | None:
    stated = model.stated
    kind = stated.word("rope.scaling.type", otherwise="linear")
    if kind.value not in ("none", "linear", "yarn", "longrope"):
        raise unknown(f"{kind.field} of read:", kind.value, ("none", "linear", "yarn", "longrope"))
    factor = stated.number("rope.scaling.factor", "rope.scale_linear", otherwise=1.0)
    if factor.value == 0 or kind.value == "none":
        factor = Value(value=1.0, source=factor.source, field=factor.field)
    lists = _lists(model, pairs)
    if kind.value == "yarn":
        if lists:
            unsupported.append(f"{', '.join(lists)}: a divisor for each pair beside YaRN")
        return _yarn(model, factor, unsupported)
    on_tables = stated.number("rope.scaling.attn_factor", otherwise=1.0)
    if lists:
        return _by_pair(model, lists, factor.value, on_tables)
    if on_tables.value != 1:
        unsupported.append(f"{on_tables.field} = {on_tables.value:g}: multiplies cos and sin without a scaling")
    return None if factor.value == 1 else Described(name="linear", settings={"factor": factor})


def _lists(model: _Model, pairs: int) -> dict[str, tuple[float, ...]]:
    """The divisors of the frequencies that the file has as tensors, by name."""
    found = {}
    for name in (FREQUENCIES, LONG, SHORT):
        values = model.file.floats(name)
        if values is None:
            continue
        if len(values) < pairs or min(values) <= 0:
            raise WhorlError(
                f"read: the tensor {name} has {len(values)} numbers, the least {min(values):g}, and {pairs} pairs are "
                "to be divided by positive ones. Mend the file."
            )
        found[name] = values[:pairs]
    if (LONG in found) != (SHORT in found):
        raise WhorlError(f"read: of {LONG} and {SHORT} the file has one alone. Download it again.")
    return {FREQUENCIES: found[FREQUENCIES]} if FREQUENCIES in found else found


def _by_pair(model: _Model, lists: Mapping[str, tuple[float, ...]], factor: float, on_tables: Value) -> Described:
    """Divisors per pair; those of Llama 3's scaling come written out, the same for every length."""
    names = (
        {"short_factor": SHORT, "long_factor": LONG}
        if LONG in lists
        else dict.fromkeys(("short_factor", "long_factor"), FREQUENCIES)
    )
    settings = {
        setting: Value(value=tuple(one * factor for one in lists[name]), source=FILE, field=name)
        for setting, name in names.items()
    }
    return Described(
        name="longrope",
        settings={**settings, "original_length": _original(model), "attention_factor": on_tables},
    )


def _original(model: _Model) -> Value:
    found = model.stated.whole("rope.scaling.original_context_length", "context_length")
    if found is None:
        raise WhorlError(f"read: {model.name}.context_length is missing. Download the file again.")
    return found


def _yarn(model: _Model, factor: Value, unsupported: list[str]) -> Described:
    """YaRN as llama.cpp has it: always truncated, its factors on cos and sin and on the softmax made of one number."""
    stated, row, name = model.stated, model.row, "rope.scaling.yarn_"
    log = stated.number(f"{name}log_multiplier", otherwise=0.0) if "log" in row.reads else model.settled(0.0)
    steps = round(log.value / row.log_unit, 9)
    # llama.cpp takes mscale for 1, but for DeepSeek-V2, where it takes it for mscale_all_dim
    both = model.name == "deepseek2" and steps not in (0.0, 1.0)
    on_tables = 1.0 if both else temperature(factor.value) / (temperature(factor.value, steps) if steps else 1.0)
    times = stated.number("rope.scaling.attn_factor", otherwise=1.0).value
    settings = {
        "factor": factor,
        "original_length": _original(model),
        "truncate": model.settled(True),
        "attention_factor": Value(value=on_tables * times, source=log.source, field=log.field),
    }
    for setting, key in (("beta_fast", "beta_fast"), ("beta_slow", "beta_slow")):
        otherwise = 32.0 if setting == "beta_fast" else 1.0
        read_it = "betas" in row.reads
        settings[setting] = stated.number(name + key, otherwise=otherwise) if read_it else model.settled(otherwise)
    if "extrapolation" in row.reads:
        settings["extrapolation_factor"] = stated.number(f"{name}ext_factor", otherwise=1.0)
    if row.scales_softmax:
        settings["mscale_all_dim"] = Value(value=steps if both else 1.0, source=log.source, field=log.field)
        settings["scale_softmax"] = model.settled(True)
        if times != 1:
            unsupported.append(f"{model.name}.rope.scaling.attn_factor = {times:g}: multiplies the softmax scale too")
    return Described(name="yarn", settings=settings)


# --- what acts beside a rotation, and what takes its place


def _window(model: _Model, unsupported: list[str]) -> list[Described]:
    sliding, size = model.row.sliding, _window_size(model)
    assert sliding is not None and size is not None
    if sliding.kind == "chunked":
        unsupported.append(f"chunked attention: a query sees its own chunk of {size.value} keys alone")
        return []
    symmetric = sliding.kind == "symmetric"
    if symmetric:  # half of it on each side, beside the query itself
        size = Value(value=size.value // 2 + 1, source=size.source, field=size.field)
    return [Described(name="window", settings={"size": size, "symmetric": model.settled(symmetric)})]


def _temperatures(model: _Model, rotates: bool, unsupported: list[str]) -> list[Described]:
    if model.row.temperature == "still" and not rotates:
        settings = {"floor_scale": model.settled(8192), "attn_scale": model.settled(0.1)}
        return [Described(name="llama4_temperature", settings=settings)]
    scale = model.stated.number("attention.temperature_scale", otherwise=0.0)
    if model.row.temperature == "file" and scale.value:
        length = model.stated.whole("attention.temperature_length") or _original(model)
        unsupported.append(
            f"temperature by position ({scale.field}): q *= 1 + {scale.value:g} ln(1 + floor(i / {length.value}))"
        )
    if model.name == "grok" and model.stated.given("attention.temperature_length"):
        unsupported.append("temperature by position (grok.attention.temperature_length)")
    return []


def _instead(model: _Model) -> tuple[Layers, ...]:
    """The layers of an architecture that does not rotate."""
    kind, stated, indices = model.row.instead, model.stated, layer_indices(model.layer_count())
    if kind == "t5":
        return _t5(model)
    if kind == "alibi":
        bias = stated.number("attention.max_alibi_bias", otherwise=8.0 if model.name not in ("mpt", "jais") else 0.0)
        if bias.value == 8:
            return (Layers(indices=indices, encodings=(Described(name="alibi", settings={"heads": _heads(model)}),)),)
        if bias.value:
            what = f"ALiBi with {bias.field} = {bias.value:g}: other slopes than Press's, which have 8"
            return (Layers(indices=indices, unsupported=(what,)),)
        kind = "learned"  # MPT without ALiBi
    if kind == "learned":
        settings = table_sizes(stated.needed("embedding_length"), stated.needed("context_length"))
        return (Layers(indices=indices, encodings=(Described(name="learned", settings=settings),)),)
    if kind == "no attention" or indices is None:
        return (Layers(kind="no_attention", indices=indices, attention=kind != "no attention"),)
    attention = _attention(model, len(indices))
    parts = {True: [i for i in indices if attention[i]], False: [i for i in indices if not attention[i]]}
    return tuple(
        Layers(kind="full_attention" if has else "no_attention", indices=tuple(places), attention=has)
        for has, places in parts.items()
        if places
    )


def _t5(model: _Model) -> tuple[Layers, ...]:
    def side(kind: str, bidirectional: bool) -> Layers:
        settings = {
            "heads": _heads(model),
            "buckets": model.stated.needed("attention.relative_buckets_count"),
            "max_distance": model.settled(128),
            "bidirectional": model.settled(bidirectional),
        }
        return Layers(kind=kind, encodings=(Described(name="t5", settings=settings),))

    return (side("encoder", True), *(() if model.name == "t5encoder" else (side("decoder", False),)))


def _trained(model: _Model, layers: tuple[Layers, ...]) -> Value | None:
    """The length before any extension, None where the file has an extension and does not say from where."""
    original = model.stated.whole("rope.scaling.original_context_length")
    scaled = any(one.scaling is not None for group in layers for one in group.encodings)
    if original is not None or scaled:
        return original
    claimed = model.stated.whole("context_length")
    return claimed and Value(value=claimed.value, source=ASSUMED, field=claimed.field)
