"""GGUF models: what llama.cpp does with positions in each layer of a file, from its metadata and its rope tensors.

The values are those that llama.cpp computes with, which are not always those of the model that was converted: it
always rounds the ends of YaRN's ramp, reads its betas for two architectures alone, and has no window for Phi-3.
``gguf_architectures.py`` says where that was read.
"""

from __future__ import annotations

from pathlib import Path

from whorl.dialects.gguf_architectures import ARCHITECTURES, Architecture, architecture_of
from whorl.dialects.gguf_file import MAGIC, GgufFile, read_gguf
from whorl.dialects.gguf_model import GgufModel
from whorl.dialects.gguf_rotation import notes_of, rotation_of
from whorl.dialects.reading import ASSUMED, FAMILY_CODE, Described, Layers, Reading, Value
from whorl.dialects.stated import Stated, layer_indices, table_sizes
from whorl.errors import WhorlError, shown, unknown


def recognises(head: bytes) -> bool:
    """Whether a file that begins so is a GGUF file."""
    return head.startswith(MAGIC)


def read(path: Path, assume: str | None = None) -> Reading:
    """The reading of a GGUF file."""
    return reading_of(read_gguf(path), assume)


def reading_of(file: GgufFile, assume: str | None = None) -> Reading:
    """The reading of what stands before the weights of a GGUF file."""
    name = file.metadata.get("general.architecture")
    if not isinstance(name, str):
        raise WhorlError(
            f"read: {shown(str(file.path))} has no general.architecture. Of a model in several files, pass the first."
        )
    stated = Stated(file.metadata, prefix=f"{name}.")
    count = stated.whole("block_count")
    row = architecture_of(name, None if count is None else count.value)
    known = row is not None
    if row is None:
        row = Architecture() if assume is None else _assumed(assume)
    if row.refusal:
        raise WhorlError(f"read: the GGUF architecture {name!r} cannot be read: {row.refusal}.")
    model = GgufModel(file=file, stated=stated, row=row, name=name, code=FAMILY_CODE if known else ASSUMED)
    layers = _instead(model) if row.instead else _rotated(model)
    return Reading(
        dialect="gguf",
        family=name,
        standing="known" if known else "unknown",
        layers=layers,
        trained_length=_trained(model, layers),
        claimed_length=stated.whole("context_length"),
        config={key: value for key, value in file.metadata.items() if not key.startswith("tokenizer.")},
        notes=tuple(notes_of(model, layers)),
    )


def _assumed(family: str) -> Architecture:
    if family not in ARCHITECTURES:
        raise unknown("GGUF architecture to assume", family, ARCHITECTURES)
    return ARCHITECTURES[family]


# --- layers that rotate


def _rotated(model: GgufModel) -> tuple[Layers, ...]:
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


def _layers(model: GgufModel, kind: str, indices: tuple[int, ...], rotates: bool) -> Layers:
    if kind == "no attention":
        return Layers(kind="no_attention", indices=indices, attention=False)
    local = kind in ("sliding_attention", "chunked_attention")
    encodings, unsupported = [], []
    if rotates:
        encodings.append(rotation_of(model, local, unsupported))
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


def _windowed(model: GgufModel, count: int) -> list[bool]:
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


def _window_size(model: GgufModel) -> Value | None:
    sliding = model.row.sliding
    assert sliding is not None
    stated = model.stated.whole("attention.sliding_window", least=0)
    if stated is not None and stated.value == 0:
        return None
    if stated is None or sliding.fixed:
        return None if sliding.size is None else model.settled(sliding.size)
    return stated


def _still(model: GgufModel, count: int) -> list[bool]:
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


def _attention(model: GgufModel, count: int) -> list[bool]:
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


def _per_layer(model: GgufModel, name: str, listed: tuple[float, ...], count: int) -> tuple[float, ...]:
    if len(listed) < count:
        raise WhorlError(f"read: {model.name}.{name} has {len(listed)} entries for {count} layers. Mend the file.")
    return listed[:count]


# --- what acts beside a rotation, and what takes its place


def _window(model: GgufModel, unsupported: list[str]) -> list[Described]:
    sliding, size = model.row.sliding, _window_size(model)
    assert sliding is not None and size is not None
    if sliding.kind == "chunked":
        unsupported.append(f"chunked attention: a query sees its own chunk of {size.value} keys alone")
        return []
    symmetric = sliding.kind == "symmetric"
    if symmetric:  # half of it on each side, beside the query itself
        size = Value(value=size.value // 2 + 1, source=size.source, field=size.field)
    return [Described(name="window", settings={"size": size, "symmetric": model.settled(symmetric)})]


def _temperatures(model: GgufModel, rotates: bool, unsupported: list[str]) -> list[Described]:
    if model.row.temperature == "still" and not rotates:
        settings = {"floor_scale": model.settled(8192), "attn_scale": model.settled(0.1)}
        return [Described(name="llama4_temperature", settings=settings)]
    scale = model.stated.number("attention.temperature_scale", otherwise=0.0)
    if model.row.temperature == "file" and scale.value:
        length = model.stated.whole("attention.temperature_length") or model.original_length()
        settings = {"floor_scale": length, "attn_scale": scale, "first": model.settled(0)}
        return [Described(name="llama4_temperature", settings=settings)]
    if model.name == "grok" and model.stated.given("attention.temperature_length"):
        unsupported.append("temperature by position (grok.attention.temperature_length)")
    return []


def _instead(model: GgufModel) -> tuple[Layers, ...]:
    """The layers of an architecture that does not rotate."""
    kind, stated, indices = model.row.instead, model.stated, layer_indices(model.layer_count())
    if kind == "t5":
        return _t5(model)
    if kind == "alibi":
        bias = stated.number("attention.max_alibi_bias", otherwise=8.0 if model.name not in ("mpt", "jais") else 0.0)
        if bias.value == 8:
            return (Layers(indices=indices, encodings=(Described(name="alibi", settings={"heads": model.heads()}),)),)
        if bias.value:
            what = f"ALiBi with {bias.field} = {bias.value:g}: other slopes than Press's, which have 8"
            return (Layers(indices=indices, unsupported=(what,)),)
        kind = "learned"  # MPT without ALiBi
    if kind == "learned":
        settings = table_sizes(stated.needed("embedding_length"), stated.needed("context_length"))
        return (Layers(indices=indices, encodings=(Described(name="learned", settings=settings),)),)
    if kind == "no attention":
        return (Layers(kind="no_attention", indices=indices, attention=False),)
    if indices is None:
        return (Layers(),)
    attention = _attention(model, len(indices))
    parts = {True: [i for i in indices if attention[i]], False: [i for i in indices if not attention[i]]}
    return tuple(
        Layers(kind="full_attention" if has else "no_attention", indices=tuple(places), attention=has)
        for has, places in parts.items()
        if places
    )


def _t5(model: GgufModel) -> tuple[Layers, ...]:
    def side(kind: str, bidirectional: bool) -> Layers:
        settings = {
            "heads": model.heads(),
            "buckets": model.stated.needed("attention.relative_buckets_count"),
            "max_distance": model.settled(128),
            "bidirectional": model.settled(bidirectional),
        }
        return Layers(kind=kind, encodings=(Described(name="t5", settings=settings),))

    return (side("encoder", True), *(() if model.name == "t5encoder" else (side("decoder", False),)))


def _trained(model: GgufModel, layers: tuple[Layers, ...]) -> Value | None:
    """The length before any extension, None where the file has an extension and does not say from where."""
    original = model.stated.whole("rope.scaling.original_context_length")
    scaled = any(one.scaling is not None for group in layers for one in group.encodings)
    if original is not None or scaled:
        return original
    claimed = model.stated.whole("context_length")
    return claimed and Value(value=claimed.value, source=ASSUMED, field=claimed.field)
