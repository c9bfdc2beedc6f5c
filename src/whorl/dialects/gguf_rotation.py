"""Rotations of GGUF files: what llama.cpp turns queries and keys by, from the metadata and the rope tensors.

YaRN's two factors are made of one number there (llama-context.cpp): with s the factor and l the log multiplier,
    on cos and sin     g(s, 1) / g(s, l), times rope.scaling.attn_factor
    on the softmax     g(s, 1)^2 in latent attention; g(s, l)^2 and nothing on cos and sin for DeepSeek-V2's l of 0.707
and the ends of the ramp are always rounded. ``rope_freqs`` divides each frequency: Llama 3's scaling, written out.
"""

from __future__ import annotations

from collections.abc import Mapping

from whorl.dialects.gguf_architectures import ROTATION
from whorl.dialects.gguf_model import GgufModel
from whorl.dialects.reading import CLASS_DEFAULT, FILE, Described, Layers, Value
from whorl.dialects.stated import head_size
from whorl.errors import WhorlError, invalid, unknown
from whorl.rotary.scalings.temperature import temperature

FREQUENCIES, LONG, SHORT = "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"


def rotation_of(model: GgufModel, local: bool, unsupported: list[str]) -> Described:
    """The rotation of layers that see a window (``local``) or everything; what has no form here is added."""
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


def _sizes(model: GgufModel, local: bool) -> tuple[Value, Value]:
    """The dimensions of the tensor that is rotated, and how many of them are."""
    stated, ending = model.stated, ("_swa", "") if local else ("",)
    head_dim = stated.whole(*(f"attention.key_length{one}" for one in ending))
    head_dim = head_dim or head_size(stated.needed("embedding_length"), model.heads())
    rotary_dim = stated.whole(*(f"rope.dimension_count{one}" for one in ending)) or head_dim
    if stated.whole("attention.kv_lora_rank", least=0, otherwise=0).value:
        return rotary_dim, rotary_dim  # latent attention turns a tensor of its own
    return head_dim, rotary_dim


def _sections(model: GgufModel, rotary_dim: int) -> Value | None:
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


def notes_of(model: GgufModel, layers: tuple[Layers, ...]) -> list[str]:
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


def _scaling(model: GgufModel, pairs: int, unsupported: list[str]) -> Described | None:
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
    alpha = stated.number("rope.scaling.alpha", otherwise=0.0)
    if model.name == "hunyuan-dense" and alpha.value > 0 and factor.value == 1:
        return Described(name="ntk", settings={"factor": alpha})
    return None if factor.value == 1 else Described(name="linear", settings={"factor": factor})


def _lists(model: GgufModel, pairs: int) -> dict[str, tuple[float, ...]]:
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


def _by_pair(model: GgufModel, lists: Mapping[str, tuple[float, ...]], factor: float, on_tables: Value) -> Described:
    """Divisors per pair; those of Llama 3's scaling come written out, the same for every length."""
    names = (
        {"short_factor": SHORT, "long_factor": LONG}
        if LONG in lists
        else dict.fromkeys(("short_factor", "long_factor"), FREQUENCIES)
    )
    settings = {
        setting: Value(value=[one * factor for one in lists[name]], source=FILE, field=name)
        for setting, name in names.items()
    }
    return Described(
        name="longrope",
        settings={**settings, "original_length": model.original_length(), "attention_factor": on_tables},
    )


def _yarn(model: GgufModel, factor: Value, unsupported: list[str]) -> Described:
    """YaRN as llama.cpp has it: always truncated, its factors on cos and sin and on the softmax made of one number."""
    stated, row, name = model.stated, model.row, "rope.scaling.yarn_"
    log = stated.number(f"{name}log_multiplier", otherwise=0.0) if "log" in row.reads else model.settled(0.0)
    steps = round(log.value / row.log_unit, 9)
    # llama.cpp takes mscale for 1, but for DeepSeek-V2, where it takes it for mscale_all_dim
    both = model.name == "deepseek2" and steps not in (0.0, 1.0)
    below = temperature(factor.value, steps)
    if below <= 0:
        raise invalid("read", log.field, "such that 0.1 m ln(factor) + 1 is positive", log.value)
    on_tables = 1.0 if both else temperature(factor.value) / below
    times = stated.number("rope.scaling.attn_factor", otherwise=1.0).value
    settings = {
        "factor": factor,
        "original_length": model.original_length(),
        "truncate": model.settled(True),
        "attention_factor": Value(value=on_tables * times, source=log.source, field=log.field),
    }
    for beta, usual in (("beta_fast", 32.0), ("beta_slow", 1.0)):
        read = "betas" in row.reads
        settings[beta] = stated.number(name + beta, otherwise=usual) if read else model.settled(usual)
    if "extrapolation" in row.reads:
        settings["extrapolation_factor"] = stated.number(f"{name}ext_factor", otherwise=1.0)
    if row.scales_softmax:
        settings["mscale_all_dim"] = Value(value=steps if both else 1.0, source=log.source, field=log.field)
        settings["scale_softmax"] = model.settled(True)
        if times != 1:
            unsupported.append(f"{model.name}.rope.scaling.attn_factor = {times:g}: multiplies the softmax scale too")
    return Described(name="yarn", settings=settings)
