"""Other JSON files of a model's folder: they say nothing of positions, and are refused by what they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from whorl.dialects.parts import SIZES
from whorl.errors import WhorlError, shown

# A key that only such files have, and what they are.
KINDS = {
    "peft_type": "the config of an adapter, whose positions are those of its base model",
    "weight_map": "an index of weight files",
    "tokenizer_class": "the config of a tokenizer",
    "image_processor_type": "the config of an image processor",
    "feature_extractor_type": "the config of a feature extractor",
    "processor_class": "the config of a processor",
    "medusa_num_heads": "the config of Medusa heads, whose positions are those of their base model",
}


def check_is_model(config: Mapping[str, Any]) -> None:
    """Raises a WhorlError for a file that is known to be no config of a model."""
    if config.get("model_type") is not None or any(key in config for key in SIZES):
        return
    kind = next((said for key, said in KINDS.items() if key in config), None)
    if kind is not None:
        base = config.get("base_model_name_or_path")
        of = f"that model, {shown(base)}" if isinstance(base, str) and base else "the model"
        raise WhorlError(f"read: this is {kind}. Pass the config.json of {of}.")
