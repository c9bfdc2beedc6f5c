"""ONNX: tables of cos and sin and a ``RotaryEmbedding`` node of opset 23, as a model of its own.

    x (batch, heads, length, head_dim), position_ids (batch, length) ─► y, turned

The operator (ONNX 1.18, opset 23) has cos and sin as tables of (positions, rotary_dim / 2), the attribute
``interleaved``, and ``rotary_embedding_dim`` for a part of the head, which are the leading dimensions. The factor on
cos and sin is in the tables; a factor on the softmax scale belongs to attention and is not in this model.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whorl.bridge.exports.draft import origin_of
from whorl.bridge.inexpressible import InexpressibleError
from whorl.bridge.model import Group
from whorl.dialects.reading import Layers
from whorl.encodings.rope import Rope
from whorl.errors import WhorlError, invalid
from whorl.position_ids import positions

if TYPE_CHECKING:
    import onnx

OPSET = 23
MOST_POSITIONS = 2**20  # 2^20 rows of 64 pairs in both tables are 512 MiB
LAYOUTS = {"half": 0, "interleaved": 1}


def export_onnx(
    source: str | Path | Mapping[str, Any],
    *,
    length: int | None = None,
    kind: str | None = None,
    assume: str | None = None,
) -> onnx.ModelProto:
    """A model that turns queries or keys as this one does, for up to ``length`` positions, or those that it claims.

    ``kind`` names the layers where they differ. Frequencies that depend on the length are those for ``length``.
    """
    try:
        import onnx
        from onnx import TensorProto, helper, numpy_helper
    except ImportError:
        raise WhorlError("export: onnx is not installed. Install whorl[onnx].") from None
    origin = origin_of(source, length, assume)
    if origin.length is None or origin.length > MOST_POSITIONS:
        raise invalid("export", "length", f"stated, up to {MOST_POSITIONS}", origin.length, "Pass --length N.")
    rope = _rope(origin.reading.layers, kind)
    config = rope.config
    if config.layout not in LAYOUTS or config.slice != "leading" or config.rotated_heads is not None:
        said = f"layout {config.layout!r}, slice {config.slice!r}"
        raise InexpressibleError(
            f"export: RotaryEmbedding of ONNX turns leading dimensions, half or interleaved, of every head; this has "
            f"{said}. A rotation of reordered rows can be written: see whorl.rotate."
        )
    cos, sin = (table.detach().numpy() for table in rope.tables(positions(origin.length), length=origin.length))
    dim = 2 * cos.shape[-1]
    node = helper.make_node(
        "RotaryEmbedding",
        ["x", "cos", "sin", "position_ids"],
        ["y"],
        interleaved=LAYOUTS[config.layout],
        rotary_embedding_dim=0 if dim == config.head_dim else dim,
    )
    shape = ["batch", "heads", "length", config.head_dim]
    graph = helper.make_graph(
        [node],
        "rotary",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, shape),
            helper.make_tensor_value_info("position_ids", TensorProto.INT64, ["batch", "length"]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(cos, "cos"), numpy_helper.from_array(sin, "sin")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
    onnx.checker.check_model(model)
    return model


def _rope(layers: tuple[Layers, ...], kind: str | None) -> Rope:
    """The one rotation of these layers."""
    found: dict[str, Rope] = {}
    for group in layers:
        if kind in (None, group.kind):
            rope = next((one for one in Group(group).encoding.modules() if isinstance(one, Rope)), None)
            found |= {} if rope is None else {group.kind: rope}
    if not found:
        raise InexpressibleError(f"export: no layer{'' if kind is None else f' of kind {kind!r}'} rotates.")
    if len({one.config for one in found.values()}) > 1:
        raise InexpressibleError(
            f"export: rotations differ by kind of layer ({', '.join(found)}), and a node has one pair of tables. "
            "Pass kind=…, once for each."
        )
    rope = next(iter(found.values()))
    if getattr(rope.config, "sections", None) is not None:
        raise InexpressibleError("export: RotaryEmbedding of ONNX has one position per token, and M-RoPE several.")
    return rope
