"""Advice: what to set for a longer context, why, what it costs at the old length, and the change for each program.

Without further training: YaRN by length / trained length (Peng et al. 2023), which leaves the pairs that turn often
within the trained length as they were and slows down those that never completed a turn in it. With fine-tuning at the
new length: a larger base alone (Xiong et al. 2023, "Effective Long-Context Scaling of Foundation Models"), the
NTK-aware one, which every program reads alike. A model that is scaled already keeps its scheme and gets a larger
factor. Layers with a window turn by no angle beyond it: they are stretched where one scaling is for all layers, and a
model that rotates in no others needs a new length alone.

Nothing is recommended that a program would serve at another length: every change is read back as that program.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whorl.analysis.wavelengths import turns
from whorl.bridge.difference import Difference, compare
from whorl.bridge.exports import TARGETS, write
from whorl.bridge.exports.draft import Origin, origin_of, serving
from whorl.bridge.exports.hf import has_fields, whole_rope, without_rope
from whorl.bridge.inexpressible import InexpressibleError
from whorl.bridge.model import Group, Model
from whorl.bridge.programs.program import rope_type
from whorl.bridge.text_part import by_kind, joined, text_fields, with_text_fields
from whorl.dialects.detect import read_document
from whorl.dialects.families import FULL, family_of
from whorl.dialects.names import LENGTHS, ORIGINAL
from whorl.dialects.reading import Layers
from whorl.dialects.values import whole_number
from whorl.encodings.rope import Rope
from whorl.errors import WhorlError, check_counts
from whorl.rotary.scalings.base import factor_for
from whorl.rotary.scalings.ntk import ntk_base

PROGRAMS = ("hf-both", "vllm", "sglang", "llama.cpp", "gguf", "megatron", "params")
CHUNKED = "chunked_attention"
KEPT = ("rope_theta", "partial_rotary_factor", "mrope_section", "mrope_interleaved")  # of a rope dict, in a new scaling
MOST_FACTOR = 32  # the largest that the YaRN paper has measured


@dataclass(frozen=True, kw_only=True)
class Advice:
    """What to set for ``length`` positions.

    trained_length  what was trained on, from which the factor is counted; None where nothing says and has to
    scheme          "nothing", "length" (a new length alone), "yarn", "llama3", "linear" or "base"
    factor          how far the context is stretched
    reasons, cost   sentences: why, and what changes for texts of the trained length
    config          the whole config with the change, None where nothing has to change
    changes         what to write or type for each program
    refusals        why a program has no form for it
    """

    length: int
    trained_length: int | None
    scheme: str
    factor: float
    reasons: tuple[str, ...]
    cost: tuple[str, ...]
    config: dict[str, Any] | None
    changes: Mapping[str, str]
    refusals: Mapping[str, str]

    def to_dict(self) -> dict[str, Any]:
        """The advice as JSON-ready data."""
        return dataclasses.asdict(self)


def advise(
    source: str | Path | Mapping[str, Any],
    *,
    length: int,
    data_length: int | None = None,
    fine_tune: bool = False,
    assume: str | None = None,
) -> Advice:
    """What to set so that a model serves ``length`` positions.

    ``data_length`` is the longest text that the model was really trained on, where that is less than the file says;
    ``fine_tune`` whether training at the new length follows.

    >>> config = {"model_type": "qwen2", "head_dim": 64, "num_hidden_layers": 2, "max_position_embeddings": 32768}
    >>> advice = advise({**config, "rope_theta": 1e6}, length=131072)
    >>> advice.scheme, advice.factor
    ('yarn', 4.0)
    """
    given = {"length": length, "data_length": data_length}
    check_counts("advise", **{name: value for name, value in given.items() if value is not None})
    origin = origin_of(source, None, assume)
    if not has_fields(origin):
        why = "no layer rotates"
        if origin.rotations:
            why = "code that comes with the checkpoint, lists by layer or constants settle the rotation"
        raise WhorlError(f"advise: {why} in model_type {origin.reading.family!r}, so no field is known to stretch it.")
    _check_data_length(origin, data_length)
    claimed = origin.length
    if claimed is not None and length <= min(claimed, data_length or claimed):
        return _nothing(origin, length, claimed)
    trained = _trained(origin, data_length)
    beyond = _beyond(origin, trained, length)
    rope = whole_rope(origin, text_fields(origin.config))
    scheme = _scheme(rope, fine_tune) if beyond else "length"
    factor = _factor(length, trained) if beyond else 1.0
    changed = _changed(origin, rope, scheme, factor, trained, length, beyond)
    wanted = Origin(
        name=origin.name,
        config=origin.config,
        wanted=changed,
        reading=read_document(changed, assume),
        length=length,
        assume=assume,
        notes=origin.notes,
    )
    changes, refusals = _for_programs(wanted)
    cost = compare(origin.reading, wanted.reading, length=trained)
    return Advice(
        length=length,
        trained_length=trained,
        scheme=scheme,
        factor=factor,
        reasons=_reasons(origin, scheme, factor, trained, length, data_length),
        cost=_cost(cost, trained),
        config=changed,
        changes=changes,
        refusals=refusals,
    )


# --- what to choose


def _check_data_length(origin: Origin, data_length: int | None) -> None:
    """Raises a WhorlError for texts longer than the file says, from which a factor would be counted that it has."""
    stated = origin.reading.trained_length
    most = origin.length if stated is None else stated.value
    if data_length is not None and most is not None and data_length > most:
        raise WhorlError(
            f"advise: data_length is for texts shorter than the {most} that the file says, got {data_length}. "
            "Leave it out, or write the length that was trained into the file."
        )


def _trained(origin: Origin, data_length: int | None) -> int:
    stated = origin.reading.trained_length
    if data_length is not None:
        return data_length
    if stated is None:
        raise WhorlError("advise: the file does not say what length it was trained on. Pass --data-length N.")
    return stated.value


def _beyond(origin: Origin, trained: int, length: int) -> set[str]:
    """The kinds of layers that rotate and see farther than was trained; a window keeps the others within it."""
    turning = [group for group in origin.reading.layers if any(one in group.encodings for one in origin.rotations)]
    return {group.kind for group in turning if min(_reach(origin, group), length) > trained}


def _reach(origin: Origin, layers: Layers) -> float:
    """How far back a query of these layers sees."""
    if layers.kind == CHUNKED:  # which whorl names and has no encoding for
        return whole_number(origin.fields, ("attention_chunk_size",)) or math.inf
    return min((one.value("size") for one in layers.encodings if one.name == "window"), default=math.inf)


def _factor(length: int, trained: int) -> float:
    """The factor for a length, and not a hair less: programs work the length out again and round it down."""
    factor = factor_for(length, trained_length=trained)
    return factor if int(trained * factor) == length else math.nextafter(factor, math.inf)


def _scheme(rope: Mapping[str, Any], fine_tune: bool) -> str:
    types = {rope_type(one) for kind, one in by_kind(rope).items()}
    scaled = sorted(types - {"default"})
    if len(scaled) > 1 or scaled == ["proportional"]:
        raise WhorlError(f"advise: layers have the scalings {', '.join(scaled)}, and no rule extends them together.")
    if scaled == ["longrope"]:
        raise WhorlError(
            "advise: LongRoPE's lists were searched for the length that the file claims, and no rule extends them. "
            "Search new ones, or fine-tune from the model before LongRoPE."
        )
    if scaled == ["dynamic"]:
        raise WhorlError(
            "advise: dynamic NTK adapts to any length in transformers, and vLLM and SGLang read it otherwise. "
            "Take the scaling out of the file and ask again."
        )
    if scaled:
        return scaled[0]
    return "base" if fine_tune else "yarn"


def _changed(
    origin: Origin,
    rope: Mapping[str, Any],
    scheme: str,
    factor: float,
    trained: int,
    length: int,
    beyond: set[str],
) -> dict[str, Any]:
    """The config with the new length, and with the scaling for the kinds of layers that see beyond what was trained."""
    names = family_of(origin.fields).rope_kinds
    stretched = {"", *(names.get(kind, kind) for kind in beyond)} if beyond else set()
    new = {
        kind: _stretched(origin, one, scheme, factor, trained) if kind in stretched else _kept(origin, one)
        for kind, one in by_kind(rope).items()
    }
    fields = text_fields(origin.config)
    stated = [name for name in LENGTHS if fields.get(name) is not None] or [LENGTHS[0]]
    kept = {key: value for key, value in without_rope(origin, fields).items() if key != ORIGINAL}
    kept |= {**dict.fromkeys(stated, length), "rope_parameters": joined(new, rope)}
    return with_text_fields(origin.config, kept)


def _stretched(origin: Origin, rope: Mapping[str, Any], scheme: str, factor: float, trained: int) -> dict[str, Any]:
    if scheme == "base":
        turned = origin.rotations[0]
        dim = turned.value("rotary_dim") or turned.value("head_dim")
        return {**rope, "rope_theta": _two_digits(float(ntk_base(rope["rope_theta"], factor, dim)))}
    if scheme == "yarn":
        old = dict(rope) if rope_type(rope) == "yarn" else {key: rope[key] for key in KEPT if key in rope}
        return {**old, "rope_type": "yarn", "factor": factor, ORIGINAL: trained}
    if scheme == "llama3":  # counted from its own original length, whose pairs were kept
        return {**rope, "factor": max(rope["factor"], factor)}
    return {**rope, "factor": factor}


def _kept(origin: Origin, rope: Mapping[str, Any]) -> dict[str, Any]:
    """A rope dict as it is, with the original length that a new maximum would otherwise change."""
    missing = rope_type(rope) in ("yarn", "longrope", "llama3") and rope.get(ORIGINAL) is None
    original = origin.fields.get(ORIGINAL) or whole_number(origin.fields, LENGTHS)
    return {**rope, ORIGINAL: original} if missing else dict(rope)


def _two_digits(base: float) -> float:
    """The base rounded up to two digits, as published models have theirs."""
    unit = 10 ** (math.floor(math.log10(base)) - 1)
    return float(math.ceil(base / unit - 1e-9) * unit)


# --- what to say


def _nothing(origin: Origin, length: int, claimed: int) -> Advice:
    stated = origin.reading.trained_length
    served = serving(origin, length)
    changes, refusals = _for_programs(
        served, tuple(name for name in PROGRAMS if name in ("vllm", "sglang", "llama.cpp"))
    )
    return Advice(
        length=length,
        trained_length=None if stated is None else stated.value,
        scheme="nothing",
        factor=1.0,
        reasons=(f"the file claims {claimed} positions already: nothing has to be set but the length",),
        cost=(),
        config=None,
        changes=changes,
        refusals=refusals,
    )


def _for_programs(origin: Origin, names: tuple[str, ...] = PROGRAMS) -> tuple[dict[str, str], dict[str, str]]:
    """The change for each program, and why one has none; each is read back as the program before it is said."""
    changes, refusals = {}, {}
    for name in names:
        assert name in TARGETS
        try:
            changes[name] = write(origin, name).text
        except WhorlError as error:
            refusals[name] = str(error)
    if "hf-both" in refusals:  # where one of the two schemas has no form
        try:
            changes["hf-v5"] = write(origin, "hf-v5").text
        except InexpressibleError as error:
            refusals["hf-v5"] = str(error)
    return changes, refusals


def _reasons(
    origin: Origin, scheme: str, factor: float, trained: int, length: int, data_length: int | None
) -> tuple[str, ...]:
    said = [f"trained on {trained} positions" + (" of data" if data_length is not None else "")]
    if scheme == "length":
        said.append("no layer that rotates sees farther than that, whatever the length: its angles were all trained")
        return tuple(said)
    rope = _first_rope(origin)
    frequencies = rope.frequencies(trained).detach().numpy()
    unturned = int((turns(frequencies, trained) < 1).sum())
    said.append(
        f"{unturned} of {len(frequencies)} pairs complete no turn within them: beyond, they reach angles never trained"
    )
    if scheme == "base":
        said.append("fine-tuning follows: a larger base alone, which every program reads alike")
    elif scheme == "yarn":
        said.append(f"YaRN by {factor:g} slows those pairs down and keeps the ones that turn often")
    elif scheme == "llama3":
        said.append(f"the file has Llama 3's scaling, which is kept with a factor of {factor:g}; it wants fine-tuning")
    else:
        said.append(f"the file divides positions already: by {factor:g} now; it wants fine-tuning")
    if factor > MOST_FACTOR and scheme == "yarn":
        said.append(f"a factor of {factor:g} is beyond the {MOST_FACTOR} that the YaRN paper measured: fine-tune")
    if length % trained and scheme == "yarn":
        said.append(f"{length} is no multiple of {trained}: a round length makes a factor that files state exactly")
    return tuple(said)


def _first_rope(origin: Origin) -> Rope:
    groups: list[Group] = sorted(Model(origin.reading).groups, key=lambda group: group.kind != FULL)
    return next(one for group in groups for one in group.encoding.modules() if isinstance(one, Rope))


def _cost(found: Difference, trained: int) -> tuple[str, ...]:
    said = []
    for group in found.groups:
        for turned in group.rotations:
            if turned.equal:
                continue
            where = "" if len(found.groups) == 1 else f"{group.kind}: "
            first = "no pair" if turned.first_pair is None else f"pairs from {turned.first_pair} on"
            largest = turned.cosines[-1][1]
            said.append(
                f"{where}within {trained} positions {first} of {min(turned.pairs)} turn otherwise, cosines up to "
                f"{largest:.2g} apart; cos and sin times {turned.attention_factor[1]:.6g}, before "
                f"{turned.attention_factor[0]:.6g}"
            )
    return tuple(said)
