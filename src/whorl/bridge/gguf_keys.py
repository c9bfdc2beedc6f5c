"""GGUF keys: a model's positions as the metadata and the rope tensors that llama.cpp reads.

Architectures and what they load were read in llama.cpp b21e4de: ``conversion/`` for the names, ``src/models/`` for the
rope tensors. ``scaling_keys`` writes a scaling so that llama.cpp computes it; what no key can say is left out, and
reading the keys back shows by how much they miss it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from whorl.analysis.scaling_changes import changes
from whorl.bridge.inexpressible import InexpressibleError
from whorl.bridge.model import Group
from whorl.dialects import gguf
from whorl.dialects.gguf_architectures import ARCHITECTURES, Architecture
from whorl.dialects.gguf_architectures import architecture_of as row_of
from whorl.dialects.gguf_file import GgufFile
from whorl.dialects.gguf_rotation import FREQUENCIES, LONG, SHORT
from whorl.dialects.names import HEADS, WIDTHS
from whorl.dialects.reading import Described, Layers, Reading
from whorl.dialects.values import whole_number
from whorl.encodings.rope import Rope
from whorl.rotary.scalings.ntk import ntk_base
from whorl.rotary.scalings.temperature import temperature

# The architecture that the converter gives a family; the families that are called as their architecture are left out.
ARCHITECTURE_OF: Mapping[str, str] = {
    **{"mistral": "llama", "mixtral": "llama", "qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe", "phi": "phi2"},
    **{"gpt_neox": "gptneox", "cohere": "command-r", "olmo3": "olmo2", "glm4_moe": "glm4moe", "glm": "chatglm"},
    **{"deepseek_v2": "deepseek2", "deepseek_v3": "deepseek2", "deepseek_v32": "deepseek32", "gpt_oss": "gpt-oss"},
    **{"hunyuan_v1_dense": "hunyuan-dense", "hunyuan_v1_moe": "hunyuan-moe", "ernie4_5_moe": "ernie4_5-moe"},
    **{"ministral3": "mistral3", "modernbert": "modern-bert", "qwen2_vl": "qwen2vl", "qwen2_5_vl": "qwen2vl"},
    **{"qwen3_vl": "qwen3vl", "qwen3_vl_moe": "qwen3vlmoe", "qwen3_next": "qwen3next", "falcon_h1": "falcon-h1"},
}
SAME_NAME = (
    *("llama", "qwen2", "qwen3", "phi3", "phimoe", "gemma", "gemma2", "gemma3", "stablelm", "starcoder2", "falcon"),
    *("cohere2", "olmo", "olmo2", "olmoe", "granite", "granitemoe", "glm4", "smollm3", "seed_oss", "apertus", "arcee"),
    *("bitnet", "nemotron", "ernie4_5", "dots1", "exaone4", "minicpm3", "chatglm", "internlm2", "minicpm", "llama4"),
)
# Architectures whose graphs take a divisor for each pair, and those that take a short and a long list of them.
WITH_DIVISORS = (
    *("llama", "apertus", "arcee", "deci", "exaone", "exaone4", "exaone-moe", "falcon-h1", "gemma4", "granite"),
    *("granitemoe", "granitehybrid", "llada", "llama4", "minicpm", "mistral3", "nanbeige", "pangu-embedded"),
)
WITH_LISTS = (
    *("llama", "apertus", "deci", "granite", "granitemoe", "minicpm", "minicpm3", "mistral3", "pangu-embedded"),
    *("phi3", "phimoe"),
)


@dataclass(frozen=True, kw_only=True)
class GgufKeys:
    """Metadata by key, the name of the architecture before each, and rope tensors as lists of numbers."""

    architecture: str
    metadata: Mapping[str, Any]
    tensors: Mapping[str, list[float]] = field(default_factory=dict)

    def reading(self) -> Reading:
        """What llama.cpp does with a file that holds these keys."""
        held = _Held(
            path=Path("these keys"), order="<", metadata=dict(self.metadata), tensors={}, lists=dict(self.tensors)
        )
        return gguf.reading_of(held)


@dataclass(frozen=True, kw_only=True)
class _Held(GgufFile):
    """A file that is not written yet."""

    lists: Mapping[str, list[float]]

    def floats(self, name: str, most: int = 0) -> tuple[float, ...] | None:
        return tuple(self.lists[name]) if name in self.lists else None


ScalingKeys = Callable[[Described, str, Rope], tuple[dict[str, Any], dict[str, list[float]]]]


REMEDIES = {"export": "Use --for hf-both.", "read": "Leave llama.cpp out."}  # by what was called


def architecture_of(family: str, call: str) -> str:
    """The architecture of a family in GGUF files, or an InexpressibleError where it is not known here."""
    name = ARCHITECTURE_OF.get(family, family if family in SAME_NAME else "")
    if not name:
        raise InexpressibleError(
            f"{call}: the GGUF architecture of model_type {family!r} is not known here. {REMEDIES[call]}"
        )
    return name


def family_of_architecture(name: str) -> str | None:
    """A family that the converter gives this architecture; None where none is known here."""
    if name in SAME_NAME:
        return name
    return next((family for family, one in ARCHITECTURE_OF.items() if one == name), None)


def keys_of(reading: Reading, fields: Mapping[str, Any], scaling_of: ScalingKeys, call: str = "export") -> GgufKeys:
    """The keys of a reading; ``fields`` are those of its config, of which the sizes are taken."""
    named = reading.dialect == "gguf" and reading.family in ARCHITECTURES  # a GGUF file says its architecture itself
    name = reading.family if named else architecture_of(reading.family, call)
    count = sum(len(one.indices or ()) for one in reading.layers)
    row = row_of(name, count) or ARCHITECTURES[name]
    attending = [one for one in reading.layers if one.attention]
    turning = {one.kind: one for one in attending if _rotation(one) is not None}
    if not turning or any(one.indices is None for one in reading.layers):
        what = "no layer rotates" if not turning else "the config does not say how many layers there are"
        raise InexpressibleError(
            f"{call}: {what}, so a GGUF file of model_type {reading.family!r} has no rope keys. {REMEDIES[call]}"
        )
    local = turning.get("sliding_attention") or turning.get("chunked_attention")
    main = next((one for one in turning.values() if one is not local), local)
    assert main is not None
    rotation = _rotation(main)
    assert rotation is not None
    sizes = _sizes(reading, fields, rotation)
    keys = {
        **sizes,
        **_rotation_keys(rotation),
        **_window_keys(reading, local, row),
        **_local_base(local, row),
        **_temperature(fields, row),
    }
    scaling, tensors = {}, {}
    if rotation.scaling is not None:
        rope = next(one for one in Group(main).encoding.modules() if isinstance(one, Rope))
        scaling, tensors = scaling_of(rotation.scaling, name, rope)
    metadata = {"general.architecture": name} | {f"{name}.{key}": value for key, value in {**keys, **scaling}.items()}
    return GgufKeys(architecture=name, metadata=metadata, tensors=tensors)


def _rotation(layers: Layers) -> Described | None:
    return next((one for one in layers.encodings if one.name in ("rope", "mrope")), None)


def _sizes(reading: Reading, fields: Mapping[str, Any], rotation: Described) -> dict[str, Any]:
    count = sum(len(one.indices or ()) for one in reading.layers)
    head_dim, heads = rotation.value("head_dim"), whole_number(fields, HEADS)
    width = whole_number(fields, WIDTHS) or (None if heads is None else heads * head_dim)
    keys: dict[str, Any] = {"block_count": count, "attention.key_length": head_dim}
    if heads is not None and width is not None:
        keys |= {"attention.head_count": heads, "embedding_length": width}
    if reading.claimed_length is not None:
        keys["context_length"] = reading.claimed_length.value
    rank = whole_number(fields, ("kv_lora_rank",), least=0)
    if rank and whole_number(fields, ("qk_rope_head_dim",), least=0):
        keys |= {"attention.kv_lora_rank": rank, "attention.key_length": rank + head_dim}
    return keys


def _rotation_keys(rotation: Described) -> dict[str, Any]:
    keys = {
        "rope.dimension_count": rotation.value("rotary_dim") or rotation.value("head_dim"),
        "rope.freq_base": float(rotation.value("base")),
    }
    sections = rotation.value("sections")
    if sections is not None:
        keys["rope.dimension_sections"] = [*sections, *[0] * (4 - len(sections))]
    return keys


def _window_keys(reading: Reading, local: Layers | None, row: Architecture) -> dict[str, Any]:
    """The window of an architecture whose layers differ, and which layers have it where the file lists them."""
    if row.sliding is None or row.sliding.fixed:
        return {}
    sized = [one for one in reading.layers if any(part.name == "window" for part in one.encodings)]
    size = next((part.value("size") for one in sized for part in one.encodings if part.name == "window"), 0)
    if size and row.sliding.kind == "symmetric":  # counted on both sides together
        size = 2 * (size - 1)
    keys: dict[str, Any] = {"attention.sliding_window": size}
    places = {index for one in (*sized, *([local] if local else [])) for index in one.indices or ()}
    count = sum(len(one.indices or ()) for one in reading.layers)
    return keys | {"attention.sliding_window_pattern": [index in places for index in range(count)]}


def _local_base(local: Layers | None, row: Architecture) -> dict[str, float]:
    rotation = None if local is None or row.sliding is None else _rotation(local)
    return {} if rotation is None else {"rope.freq_base_swa": float(rotation.value("base"))}


def _temperature(fields: Mapping[str, Any], row: Architecture) -> dict[str, float]:
    """The temperature by position of Ministral 3, as the converter copies it."""
    rope = fields.get("rope_parameters") or fields.get("rope_scaling")
    beta = rope.get("llama_4_scaling_beta") if isinstance(rope, dict) else None
    return {"attention.temperature_scale": float(beta)} if beta and row.temperature == "file" else {}


# --- scalings


def scaling_keys(scaling: Described, name: str, rope: Rope) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """The keys and tensors that make llama.cpp compute a scaling, as near as they can."""
    row = ARCHITECTURES[name]
    if scaling.name == "linear":
        return {"rope.scaling.type": "linear", "rope.scaling.factor": float(scaling.value("factor"))}, {}
    if scaling.name == "longrope" and name in WITH_LISTS:
        return _lists(scaling, rope)
    if scaling.name == "yarn" and not (name in WITH_DIVISORS and _unusual(scaling, row)):
        return _yarn(scaling, row, rope), {}
    if scaling.name == "ntk":  # the NTK-aware base for a fixed factor, as the converter writes HunYuan's
        assert rope.config.base is not None
        base = ntk_base(rope.config.base, scaling.value("factor"), 2 * len(rope.frequencies()))
        return {"rope.freq_base": float(base)}, {}
    static = scaling.name in ("llama3", "yarn", "ntk_by_parts", "proportional")
    if static and name in WITH_DIVISORS and float(rope.frequencies().min()) > 0:
        return _divisors(rope)
    return {}, {}


def _unusual(scaling: Described, row: Architecture) -> bool:
    """Whether a YaRN has settings for which llama.cpp has numbers of its own."""
    betas = (scaling.value("beta_fast", 32.0), scaling.value("beta_slow", 1.0))
    own = betas != (32.0, 1.0) and "betas" not in row.reads
    return not row.scales_softmax and (own or not scaling.value("truncate", True))


def _yarn(scaling: Described, row: Architecture, rope: Rope) -> dict[str, Any]:
    factor, prefix = float(scaling.value("factor")), "rope.scaling."
    keys: dict[str, Any] = {
        f"{prefix}type": "yarn",
        f"{prefix}factor": factor,
        f"{prefix}original_context_length": scaling.value("original_length"),
    }
    if "betas" in row.reads:
        keys |= {f"{prefix}yarn_{one}": float(scaling.value(one, usual)) for one, usual in _BETAS.items()}
    if row.scales_softmax:
        keys[f"{prefix}yarn_log_multiplier"] = row.log_unit * (scaling.value("mscale_all_dim") or 0.0)
        return keys
    times = float(rope.attention_factor()) / temperature(factor)
    if abs(times - 1) > 1e-9:  # a weight of its own, since attention_factor is not read
        keys[f"{prefix}attn_factor"] = times
    return keys


_BETAS = {"beta_fast": 32.0, "beta_slow": 1.0}


def _lists(scaling: Described, rope: Rope) -> tuple[dict[str, Any], dict[str, list[float]]]:
    keys = {
        "rope.scaling.type": "longrope",
        "rope.scaling.original_context_length": scaling.value("original_length"),
        "rope.scaling.attn_factor": float(rope.attention_factor()),
    }
    return keys, {
        LONG: [float(one) for one in scaling.value("long_factor")],
        SHORT: [float(one) for one in scaling.value("short_factor")],
    }


def _divisors(rope: Rope) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """The frequencies before over those after, which is what Llama 3's scaling comes as."""
    divisors = (1 / changes(rope).kept).tolist()
    factor = float(rope.attention_factor())
    return {} if factor == 1 else {"rope.scaling.attn_factor": factor}, {FREQUENCIES: divisors}
