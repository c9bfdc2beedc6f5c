"""Meta's params.json: what Llama's own code needs. Read in llama-models a9c89c4."""

from __future__ import annotations

from typing import Any

from whorl.bridge.exports.draft import Draft, Origin, json_text
from whorl.bridge.inexpressible import InexpressibleError
from whorl.dialects import meta_params
from whorl.dialects.names import HEADS, WIDTHS
from whorl.dialects.values import whole_number

ROWS = (
    "the weights have to be those of Meta, which pair neighbours: the rows of q and k of a transformers checkpoint move"
)
REMEDY = "Meta's code has Llama 3's scaling alone, with its numbers as constants."


def file(origin: Origin) -> Draft:
    """params.json for the code of Llama 2 and 3."""
    rotations = origin.rotations
    heads, width = whole_number(origin.fields, HEADS), whole_number(origin.fields, WIDTHS)
    count = sum(len(group.indices or ()) for group in origin.reading.layers)
    if not rotations or heads is None or width is None or not count:
        what = "no layer rotates" if not rotations else "the sizes of the model are not stated"
        raise InexpressibleError(f"export: params cannot say this: {what}.")
    head_dim = rotations[0].value("head_dim")
    if width != heads * head_dim:
        raise InexpressibleError(
            f"export: params cannot say this: head_dim is {head_dim}, and Llama's code takes dim / n_heads = "
            f"{width} / {heads}. {REMEDY}"
        )
    written: dict[str, Any] = {
        "dim": width,
        "n_layers": count,
        "n_heads": heads,
        "n_kv_heads": whole_number(origin.fields, ("num_key_value_heads",)) or heads,
        "norm_eps": origin.fields.get("rms_norm_eps", 1e-5),
        "vocab_size": whole_number(origin.fields, ("vocab_size",), least=-1) or -1,
        "multiple_of": 256,
        "rope_theta": float(rotations[0].value("base")),
        "use_scaled_rope": any(one.scaling is not None and one.scaling.name == "llama3" for one in rotations),
    }
    if origin.length is not None:
        written["max_seq_len"] = origin.length
    return Draft(
        target="params",
        text=json_text(written),
        data=written,
        notes=(*origin.notes, ROWS),
        readings={"Llama's code": meta_params.read(written)},
        moves_rows=True,
        remedy=REMEDY,
    )
