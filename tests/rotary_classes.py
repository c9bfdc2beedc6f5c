"""Rotary classes of transformers, each with a config of the class it is made for: what several test files compare."""

import importlib
import inspect
from pathlib import Path

import transformers

from whorl.dialects.class_defaults import all_defaults, version
from whorl.dialects.families import FAMILIES

MODELS = Path(transformers.__file__).parent / "models"

# settings for config classes whose defaults make no valid model, or one without rotation
COMPASS = {"full_attention": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [24, 20, 20]}}
VALID = {
    "CohereCompassTextConfig": {"rope_parameters": COMPASS, "layer_types": ["full_attention"], "num_hidden_layers": 1},
    "Glm4MoeConfig": {"head_dim": 128},
    "Glm4vMoeTextConfig": {"head_dim": 128},
    "Glm4vTextConfig": {"partial_rotary_factor": 0.5},
    "GlmImageTextConfig": {"partial_rotary_factor": 0.5},
    "Qwen3OmniMoeTextConfig": {"head_dim": 128},
    "Qwen3OmniMoeTalkerTextConfig": {"head_dim": 128},
    "Qwen4ExpTextConfig": {"partial_rotary_factor": 0.25},
    "EsmConfig": {"position_embedding_type": "rotary"},
    "GraniteMoeHybridConfig": {"position_embedding_type": "rope"},
    "Zamba2Config": {"use_mem_rope": True},
}
# the configs of rotary classes that are annotated with that of the whole model, or of another part
PART = {
    "BltRotaryEmbedding": "BltGlobalTransformerConfig",
    "DeepseekOcr2VisionRotaryEmbedding": "DeepseekOcr2VisionEncoderConfig",
    "Nemotron3DiarizationRotaryEmbedding": "Nemotron3DiarizationAudioConfig",
    "Qwen3OmniMoeRotaryEmbedding": "Qwen3OmniMoeTalkerCodePredictorConfig",
    "Qwen3OmniMoeTalkerRotaryEmbedding": "Qwen3OmniMoeTalkerTextConfig",
}
# rotary classes that cannot be compared here, and why
APART = {
    "EsmFold2RotaryEmbedding": "turns by the coordinates of atoms",
    "HunYuanVLRotaryEmbedding": "turns images by what is no rotation: see test_from_hf.py",
    "Llama4VisionRotaryEmbedding": "turns images",
    "MusicFlamingoRotaryEmbedding": "turns audio; the text model beside it is Qwen2",
    "MiniMaxM3VLRotaryEmbedding": "passes over rotary_dim: see test_from_hf.py",
    "MistralLarge4TextRotaryEmbedding": "has frequencies in the weights: see test_from_hf.py",
    "Qwen2_5OmniDiTRotaryEmbedding": "turns one head only: see test_from_hf.py",
}
# rotary classes whose config names no model type, so that it is read as Llama with a warning
NAMELESS = ("EvollaSaProtRotaryEmbedding",)


def rotary_modules(first_letters):
    """(module, rotary class) of every rotary class in the model files whose names begin with these letters."""
    for path in sorted(MODELS.glob("*/modeling_*.py")):
        if path.parent.name[0] not in first_letters or "RotaryEmbedding(" not in path.read_text():
            continue
        module = importlib.import_module(f"transformers.models.{path.parent.name}.{path.stem}")
        for name, cls in vars(module).items():
            if name.endswith("RotaryEmbedding") and inspect.isclass(cls) and cls.__module__ == module.__name__:
                yield module, cls


def config_for(cls):
    """A config object of the class a rotary module is annotated with, or of its text part."""
    part = getattr(transformers, PART.get(cls.__name__, ""), None)
    config = (part or inspect.signature(cls.__init__).parameters["config"].annotation)()
    if "Text" in cls.__name__ or getattr(config, "rope_parameters", None) is None:
        config = config.get_text_config()
    valid = VALID.get(type(config).__name__)
    return type(config)(**valid) if valid else config


def is_new(config):
    """Whether the family of a config object came to transformers after the version that whorl's tables are made from.

    Such a family is unknown to whorl, which says so; in the version of the tables, none may be.
    """
    known = config.model_type in ("", *all_defaults(), *FAMILIES)
    return transformers.__version__ != version() and not known
