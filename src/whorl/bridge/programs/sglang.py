"""SGLang: what its shared rotary code makes of a config that transformers 5 has read.

The code of a single family may differ from the shared one; that of DeepSeek-V2 and V3 was read too.
"""

from __future__ import annotations

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
    mixed,
    number,
    reading_of,
    rope_type,
)
from whorl.bridge.text_part import SCHEMAS, by_kind, filled_fields, text_fields, with_text_fields
from whorl.dialects.families import family_name, family_of
from whorl.dialects.names import LENGTHS, ORIGINAL
from whorl.dialects.reading import Described, Reading
from whorl.dialects.values import whole_number
from whorl.errors import WhorlError
from whorl.rotary.scalings.temperature import temperature

# The field that says the length: the first of these. Classes give n_positions the name before it, too.
SGLANG_LENGTHS = (
    *("max_sequence_length", "seq_length", "max_seq_len", "model_max_length", "max_position_embeddings"),
    "n_positions",
)
WRITE_INSIDE = ("phi3", "phi4_multimodal")  # whose classes have the original length for a field


def _read(config: dict[str, Any], length: int | None, assume: str | None) -> Reading:
    view = as_version_5(_loaded(config))
    view.check_read("SGLang")
    for rope in view.ropes.values():
        if rope_type(rope) == "telechat3-yarn":
            raise WhorlError("read: rope_type 'telechat3-yarn' is not known to SGLang. Its YaRN has other factors.")
    reading = reading_of(view, "SGLang", assume, lambda scaling, rope: _scaling(scaling, rope, view))
    return claiming(reading, _claimed(view), "multiplied by factor")


def _loaded(config: dict[str, Any]) -> dict[str, Any]:
    """The config without an original length beside the rope dict, where the class does not write it into the dict."""
    fields = text_fields(config)
    ropes = [rope for name in SCHEMAS if isinstance(fields.get(name), dict) for rope in by_kind(fields[name]).values()]
    inside = any(rope.get(ORIGINAL) is not None for rope in ropes)
    if family_name(filled_fields(config)) in WRITE_INSIDE and not inside:
        return config
    return with_text_fields(config, {name: value for name, value in fields.items() if name != ORIGINAL})


def _scaling(scaling: Described, rope: Mapping[str, Any], view: Seen) -> Described:
    factor = scaling.value("factor")
    if scaling.name == "yarn":
        return mixed(latent_yarn(scaling, rope) if view.latent else _yarn(scaling, rope), rope)
    if scaling.name == "dynamic_ntk":  # tables for factor times the length, whatever is served
        return changed(Described(name="ntk"), factor=factor * factor - (factor - 1))
    if scaling.name == "longrope":
        return changed(scaling, ("factor",), attention_factor=_on_tables(scaling, rope, view))
    if scaling.name == "proportional":
        return changed(scaling, factor=1.0)
    return scaling


def _yarn(scaling: Described, rope: Mapping[str, Any]) -> Described:
    factor, above, below = scaling.value("factor"), rope.get("mscale"), rope.get("mscale_all_dim")
    own = temperature(factor)
    if above is not None and below is not None:
        own = temperature(factor, number(rope, "mscale", 1.0)) / temperature(
            factor, number(rope, "mscale_all_dim", 0.0)
        )
    on_tables = own * number(rope, "attn_factor", 1.0)
    return changed(scaling, ("mscale", "mscale_all_dim", "scale_softmax"), attention_factor=on_tables)


def _on_tables(scaling: Described, rope: Mapping[str, Any], view: Seen) -> float:
    original, length = scaling.value("original_length"), whole_number(view.fields, LENGTHS)
    stretch = 1.0 if length is None else length / original
    usual = 1.0 if stretch <= 1 else math.sqrt(1 + math.log(stretch) / math.log(original))
    return number(rope, "long_mscale", usual)


def _claimed(view: Seen) -> float | None:
    """The length that SGLang serves by itself, and at most."""
    length = whole_number(view.fields, SGLANG_LENGTHS)
    rope = view.ropes.get("", {})
    split = bool(family_of(view.fields).layers)  # whose class makes a dict for each kind, in which no factor stands
    original = ORIGINAL in rope or rope_type(rope) in ("yarn", "llama3", "longrope", "su")  # where the class puts one
    kept = split or original
    return None if length is None else length * (1.0 if kept else number(rope, "factor", 1.0))


_FOLDER = "python/sglang/srt/layers/rotary_embedding"

SGLANG = Program(
    name="sglang",
    title="SGLang",
    version="cce0a12 (23 August 2026)",
    repository="sgl-project/sglang",
    read=_read,
    facts=(
        Fact(
            "rope_theta, rope_scaling, rope_parameters",
            "as transformers 5",
            "python/sglang/srt/utils/hf_transformers/common.py",
        ),
        Fact(
            "attention_factor",
            "not read: YaRN has 0.1 ln(factor) + 1, times attn_factor, on cos and sin",
            f"{_FOLDER}/yarn.py",
        ),
        Fact("mscale, mscale_all_dim", "their quotient on cos and sin where both are there", f"{_FOLDER}/yarn.py"),
        Fact(
            "mscale, mscale_all_dim of DeepSeek",
            "1 and 0 where absent; the square of the second on the softmax scale",
            f"{_FOLDER}/rope_variant.py; python/sglang/srt/configs/model_config.py",
        ),
        Fact("truncate, extrapolation_factor", "read for YaRN", f"{_FOLDER}/factory.py"),
        Fact(
            "original_max_position_embeddings",
            "the one inside the rope dict, where Phi-3's class puts the one beside it; else max_position_embeddings",
            f"{_FOLDER}/factory.py",
        ),
        Fact(
            "several fields that say a length",
            "max_sequence_length, seq_length, max_seq_len, model_max_length, max_position_embeddings: the first",
            "python/sglang/srt/utils/hf_transformers/common.py",
        ),
        Fact(
            "factor of dynamic",
            "one base for all lengths, that of factor times max_position_embeddings",
            f"{_FOLDER}/rope_variant.py",
        ),
        Fact("factor of proportional", "not read", f"{_FOLDER}/rope_variant.py"),
        Fact(
            "short_factor, long_factor",
            "the long list for a batch with any position beyond the original length",
            f"{_FOLDER}/rope_variant.py",
        ),
        Fact("factor, attention_factor of longrope", "not read: the two lengths make it", f"{_FOLDER}/rope_variant.py"),
        Fact("rope_type telechat3-yarn", "refused", f"{_FOLDER}/factory.py"),
        Fact(
            "max_position_embeddings",
            "claimed as it stands for yarn, llama3 and longrope, beside an original length in the rope dict, and where "
            "kinds of layers have dicts of their own (Gemma 3); else multiplied by factor",
            "python/sglang/srt/utils/hf_transformers/common.py",
        ),
    ),
)
