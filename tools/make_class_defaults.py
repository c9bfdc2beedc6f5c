"""Writes dialects/class_defaults.json: what the config classes of transformers fill in where a file is silent.

    python tools/make_class_defaults.py

Of every config class, the declared defaults of the fields that readers of positions look at. A default that the class
computes from other fields (head_dim from hidden_size) is no constant and is left out, but for two: ``rope_parameters``,
which depends on no size, and ``layer_types``, of which the shortest period is kept. ``parts`` names the classes of the
configs inside a config, which are saved as differences from their defaults. ``reads`` names the fields of
``POSITIONAL`` that the code of the family mentions, in its config class or its model: all others do nothing there. The
code of one folder counts as one, with that of the folders it imports from.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES

from whorl.dialects.class_defaults import DATA, period
from whorl.dialects.names import HEAD_DIMS, HEADS, LAYERS, LENGTHS, ORIGINAL, PARTS, POSITIONAL, SHARES, WIDTHS

KEPT = {
    *(*HEAD_DIMS, *WIDTHS, *HEADS, *LAYERS, *LENGTHS, ORIGINAL, *SHARES, "rotary_dim"),
    *("qk_rope_head_dim", "qk_nope_head_dim", "global_head_dim", "rope_interleave"),
    *("sliding_window", "use_sliding_window", "max_window_layers", "sliding_window_pattern", "attention_chunk_size"),
    *("no_rope_layer_interval", "attn_temperature_tuning", "floor_scale", "attn_scale", "attn_logit_softcapping"),
    *("position_embedding_type", "alibi", "relative_attention_num_buckets", "relative_attention_max_distance"),
    *(
        "embedding_size",
        "dim",
        "window_size",
        "local_radius",
        "attention_window_size",
        "rope_theta",
        "embed_dim",
        "depth",
        "memory_attention_hidden_size",
        "memory_attention_downsample_rate",
    ),
    *("memory_attention_num_attention_heads", "local_attention", "attn_layer_period", "attn_layer_offset"),
}


def main() -> None:
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    made = {name: defaults for name in sorted(CONFIG_MAPPING_NAMES) if (defaults := defaults_of(name))}
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(defaults, sort_keys=True)}" for name, defaults in made.items())
    version = json.dumps(transformers.__version__)
    DATA.write_text(f'{{"transformers": {version}, "classes": {{\n{lines}\n}}}}\n', encoding="utf-8")
    print(f"{len(made)} classes of transformers {transformers.__version__} in {Path(DATA).name}")


def defaults_of(model_type: str) -> dict[str, Any]:
    """The defaults that are kept of one class, empty for a class that has none or that makes no valid model."""
    try:
        config = CONFIG_MAPPING[model_type]()
    except Exception:  # each class fails in its own way
        return {"reads": reads_of(model_type)}
    data = config.to_dict()
    declared = {field.name: field.default for field in dataclasses.fields(config)}
    kept = {
        key: data[key]
        for key in KEPT & declared.keys() & data.keys()
        if plain(data[key]) and data[key] == declared[key]
    }
    if data.get("rope_parameters"):
        kept["rope_parameters"] = data["rope_parameters"]
    if data.get("layer_types") and "num_hidden_layers" in data:
        kept["layer_types"] = period(data["layer_types"])
    parts = {name: data[name]["model_type"] for name in PARTS if isinstance(data.get(name), dict)}
    return kept | ({"parts": parts} if parts else {}) | {"reads": reads_of(model_type)}


def reads_of(model_type: str) -> list[str]:
    """The positional fields that the code of a model type mentions."""
    return sorted(mentioned(Path(inspect.getfile(CONFIG_MAPPING[model_type])).parent) & POSITIONAL)


@cache
def mentioned(folder: Path) -> set[str]:
    """The names that are read as attributes, or stand as strings, in the code of a folder and of those it imports."""
    found: set[str] = set()
    for path in (*folder.glob("modeling_*.py"), *folder.glob("configuration_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                found.add(node.attr)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
            elif isinstance(node, ast.ImportFrom) and node.level == 2 and node.module:
                other = folder.parent / node.module.partition(".")[0]
                found |= mentioned(other) if other != folder and other.is_dir() and other.name != "auto" else set()
    return found


def plain(value: Any) -> bool:
    return isinstance(value, (bool, int, float, str))


if __name__ == "__main__":
    main()
