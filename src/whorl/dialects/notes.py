"""Notes on transformers configs: what a person must know to trust a reading, and no field of the file says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from whorl.dialects.families import LEARNED, NOTHING, family_name, unrotated_kind
from whorl.dialects.parts import inner_part, other_parts
from whorl.dialects.values import whole_number

CHATGLM2_32K = (
    "rope_ratio multiplies the base, as in ChatGLM3 and GLM-4. ChatGLM2-6B-32k, which has the same model_type, divides "
    "positions by it instead: for that one build whorl.Rope with Linear(factor=rope_ratio)."
)
HUNYUAN_VL = (
    "Sections are of pairs, as in HunYuan's own code, vLLM and mlx-vlm. transformers 5.22.2 splits dimensions by them, "
    "so that the two of a pair turn by different positions, which is no rotation: there images are turned otherwise, "
    "and text is turned as here."
)
MPT = (
    "This is what MPT's own code (llm-foundry) has where alibi is false. transformers 5.22.2 never reads that "
    "field and has ALiBi all the same."
)
# Models that turn something before it reaches the text model that is read.
BEFORE_THE_TEXT = {
    "musicflamingo": (
        "This is the text model. MusicFlamingo also turns the embeddings of audio before they enter it, by window, "
        "frame and seconds (rope_parameters beside text_config), which has no encoding here."
    ),
}


def notes_on(whole: Mapping[str, Any], text: Mapping[str, Any]) -> tuple[str, ...]:
    """The notes on a config, of which ``text`` is the part that was read."""
    found = []
    if family_name(text) == "chatglm" and whole_number(text, ("rope_ratio",)) not in (None, 1):
        found.append(CHATGLM2_32K)
    if family_name(text) == "mpt" and unrotated_kind(text) in (LEARNED, NOTHING):
        found.append(MPT)
    if family_name(text) == "hunyuan_vl":
        found.append(HUNYUAN_VL)
    if text is not whole and family_name(whole) in BEFORE_THE_TEXT:
        found.append(BEFORE_THE_TEXT[family_name(whole)])
    others = other_parts(whole)
    if others:
        which = "This is the text model. " if inner_part(whole) else ""
        found.append(f"{which}The config holds other models too, to be read apart: {', '.join(others)}.")
    return tuple(found)
