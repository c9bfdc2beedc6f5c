"""vLLM: what its shared rotary code makes of a config that transformers 5 has read.

The code of a single family may differ from the shared one; that of DeepSeek-V2 and V3 was read too.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from whorl.bridge.programs.program import (
    Fact,
    Program,
    Seen,
    as_version_5,
    changed,
    claiming,
    latent_yarn,
    long_list,
    mixed,
    number,
    reading_of,
    rope_type,
)
from whorl.dialects.names import LENGTHS, ORIGINAL
from whorl.dialects.reading import Described, Reading
from whorl.dialects.values import whole_number
from whorl.errors import WhorlError
from whorl.rotary.scalings.temperature import temperature

TELECHAT = "telechat3-yarn"
APPLY = "apply_yarn_scaling"
HEEDED = ("partial_rotary_factor",)  # read in every family, by the code that all share
# Fields that say a length: the least of these, unless model_max_length is there.
VLLM_LENGTHS = (
    *("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_target_positions"),
    *("max_sequence_length", "max_seq_length", "seq_len"),
)


def _read(config: dict[str, Any], length: int | None, assume: str | None) -> Reading:
    view = as_version_5(config)
    view.check_read("vLLM")
    served = length or _served(view)
    reading = reading_of(view, "vLLM", assume, lambda scaling, rope: _scaling(scaling, rope, view, served), HEEDED)
    if length is None and served != _claimed(view):
        reading = dataclasses.replace(reading, notes=(*reading.notes, _SHORT.format(served)))
    return claiming(reading, _claimed(view), "worked out from factor and original length")


_SHORT = (
    "vLLM serves {} positions unless --max-model-len says more, and then has the long list of LongRoPE at every length"
)


def _scaling(scaling: Described, rope: Mapping[str, Any], view: Seen, served: float | None) -> Described | None:
    if scaling.name == "yarn":
        if rope.get("factor") is None:
            raise WhorlError("read: vLLM cannot read YaRN without a factor. Write factor into the rope dict.")
        return mixed(_latent(scaling, rope) if view.latent else _yarn(scaling, rope, view), rope)
    if scaling.name == "longrope":
        return _longrope(scaling, rope, view, served)
    if scaling.name == "dynamic_ntk":
        return _dynamic(scaling, rope, view)
    if scaling.name == "proportional":
        return changed(scaling, factor=1.0)
    return scaling


def _latent(scaling: Described, rope: Mapping[str, Any]) -> Described:
    found = latent_yarn(scaling, rope)
    return found if rope.get(APPLY, True) else changed(found, ("mscale_all_dim", "scale_softmax"))


def _yarn(scaling: Described, rope: Mapping[str, Any], view: Seen) -> Described:
    factor, times = scaling.value("factor"), number(rope, "attn_factor", 1.0)
    weight = 1.0
    if rope_type(rope) == TELECHAT:  # which takes the two lengths for its factor
        factor, weight = _length(view) / scaling.value("original_length"), 0.7
    own = temperature(factor, weight) if rope.get(APPLY, True) or "mrope_section" in rope else 1.0
    settings = {"factor": factor, "attention_factor": own * times}
    return changed(scaling, ("mscale", "mscale_all_dim", "scale_softmax"), **settings)


def _longrope(scaling: Described, rope: Mapping[str, Any], view: Seen, served: float | None) -> Described:
    original = scaling.value("original_length")
    stretch = _length(view) / original
    usual = 1.0 if stretch <= 1 else math.sqrt(1 + math.log(stretch) / math.log(original))
    long = served is not None and served > original  # one list for every length, so that no cached key is moved
    on_tables = number(rope, "long_mscale" if long else "short_mscale", usual)
    fixed = changed(scaling, ("factor",), attention_factor=on_tables)
    return long_list(fixed) if long else fixed


def _dynamic(scaling: Described, rope: Mapping[str, Any], view: Seen) -> Described | None:
    """Dynamic NTK at the one length that tables are made for: without max_trained_positions nothing is stretched."""
    trained, factor = number(rope, "max_trained_positions", 0.0), scaling.value("factor")
    if not trained:
        return None
    stretch = factor * _length(view) / trained - (factor - 1)
    return changed(Described(name="ntk"), factor=stretch)


def _length(view: Seen) -> int:
    length = whole_number(view.fields, LENGTHS)
    if length is None:
        raise WhorlError("read: vLLM needs max_position_embeddings here, which the config lacks. Add it.")
    return length


def _claimed(view: Seen) -> float | None:
    """The longest length that vLLM accepts as --max-model-len."""
    stated = whole_number(view.fields, ("model_max_length",)) or _shortest(view)
    if stated is None or "gemma3" in str(view.fields.get("model_type")):
        return stated
    factor, length = 1.0, stated
    for rope in view.ropes.values():
        kind = rope_type(rope)
        if kind in ("su", "longrope", "llama3"):
            continue
        factor = number(rope, "factor", 1.0) if "factor" in rope else factor
        if kind == "yarn":
            length = _original(view, rope) or length
    return length * factor


def _shortest(view: Seen) -> int | None:
    lengths = (whole_number(view.fields, (name,)) for name in VLLM_LENGTHS)
    return min((one for one in lengths if one is not None), default=None)


def _original(view: Seen, rope: Mapping[str, Any]) -> int | None:
    return whole_number(view.fields, (ORIGINAL,)) or whole_number(rope, (ORIGINAL,))


def _served(view: Seen) -> float | None:
    """The length that vLLM serves where --max-model-len is not given."""
    if any(rope_type(rope) in ("su", "longrope") for rope in view.ropes.values()):
        return whole_number(view.fields, (ORIGINAL,)) or _claimed(view)
    return _claimed(view)


_FOLDER = "vllm/model_executor/layers/rotary_embedding"
_LENGTH = "vllm/config/model.py"

VLLM = Program(
    name="vllm",
    title="vLLM",
    version="a014e35 (22 August 2026)",
    repository="vllm-project/vllm",
    read=_read,
    facts=(
        Fact("rope_theta, rope_scaling, rope_parameters", "as transformers 5", "vllm/transformers_utils/config.py"),
        Fact(
            "attention_factor",
            "not read: YaRN has 0.1 ln(factor) + 1, times attn_factor, on cos and sin",
            f"{_FOLDER}/yarn_scaling_rope.py",
        ),
        Fact(
            "apply_yarn_scaling",
            "false: attn_factor alone on cos and sin, but with M-RoPE not read; of DeepSeek nothing on the softmax "
            "scale",
            f"{_FOLDER}/__init__.py, yarn_scaling_rope.py; vllm/model_executor/models/deepseek_v2.py",
        ),
        Fact(
            "mscale, mscale_all_dim",
            "not read outside DeepSeek; there their quotient on cos and sin, 1 and 0 where absent, and the square of "
            "the second on the softmax scale",
            f"{_FOLDER}/__init__.py, deepseek_scaling_rope.py; vllm/model_executor/models/deepseek_v2.py",
        ),
        Fact("truncate", "read for YaRN, not for DeepSeek's", f"{_FOLDER}/__init__.py"),
        Fact("extrapolation_factor", "multiplies YaRN's ramp", f"{_FOLDER}/yarn_scaling_rope.py"),
        Fact(
            "factor of dynamic",
            "the base is that of max_position_embeddings at every length: unscaled, unless max_trained_positions says "
            "less",
            f"{_FOLDER}/dynamic_ntk_scaling_rope.py",
        ),
        Fact("partial_rotary_factor", "read in every family", f"{_FOLDER}/__init__.py"),
        Fact("factor of proportional", "not read", f"{_FOLDER}/gemma4_rope.py"),
        Fact(
            "short_factor, long_factor",
            "one list for all texts: the long one where --max-model-len is beyond the original length",
            f"{_FOLDER}/phi3_long_rope_scaled_rope.py",
        ),
        Fact(
            "factor, attention_factor of longrope",
            "not read: the two lengths make the factor; short_mscale and long_mscale replace it",
            f"{_FOLDER}/phi3_long_rope_scaled_rope.py",
        ),
        Fact(
            "factor of telechat3-yarn",
            "max_position_embeddings / original_max_position_embeddings in its place",
            f"{_FOLDER}/__init__.py",
        ),
        Fact(
            "several fields that say a length",
            "model_max_length (Command R), else the least of max_position_embeddings, n_positions, max_seq_len, "
            "seq_length, max_target_positions, max_sequence_length, max_seq_length and seq_len",
            "vllm/transformers_utils/model_arch_config_convertor.py",
        ),
        Fact(
            "max_position_embeddings",
            "yarn: original length times factor is claimed; longrope, llama3: as it stands, of longrope the original "
            "length alone without --max-model-len; every other type: multiplied by factor; Gemma 3: as it stands",
            _LENGTH,
        ),
    ),
)
