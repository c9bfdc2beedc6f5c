"""Whole models against transformers: every rotary class at its default config, text models and towers of images."""

import importlib
import inspect
import json
import re

import pytest
import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import whorl
from rotary_classes import MODELS, PART, is_new
from whorl import AxialRope, Rope, WhorlError

# classes whose configs rotate only where they say so, and what they must say
SAYING_SO = {
    "EsmRotaryEmbedding": {"position_embedding_type": "rotary"},
    "GraniteMoeHybridRotaryEmbedding": {"position_embedding_type": "rope", "layer_types": ["full_attention"] * 32},
    "Zamba2RotaryEmbedding": {"use_mem_rope": True},
}
# classes that cannot be compared by their frequencies, and why
APART = {
    "ClvpRotaryPositionalEmbedding": "has no config of its own",
    "CohereCompassRotaryEmbedding": "its default config makes no valid model",
    "EsmFold2RotaryEmbedding": "turns by the coordinates of atoms",
    "EvollaSaProtRotaryEmbedding": "its config names no model type, so that it is read as Llama with a warning",
    "MiniMaxM3VLRotaryEmbedding": "passes over rotary_dim: see test_from_hf.py",
    "MusicFlamingoRotaryEmbedding": "turns audio; the text model beside it is Qwen2",
    "SeamlessM4TConformerRotaryPositionalEmbedding": "has no config of its own",
    "Wav2Vec2BertRotaryPositionalEmbedding": "has no config of its own",
    "Wav2Vec2ConformerRotaryPositionalEmbedding": "has no config of its own",
}
# default sizes that no pair fits
REFUSED = {
    "Glm4MoeRotaryEmbedding": "rotary pairs them",
    "Glm4vMoeTextRotaryEmbedding": "rotary pairs them",
    "Glm4vTextRotaryEmbedding": "sections must sum",
    "GlmImageTextRotaryEmbedding": "sections must sum",
    "Qwen3OmniMoeThinkerTextRotaryEmbedding": "rotary pairs them",
    "Qwen4ExpTextRotaryEmbedding": "sections must sum",
}
# what the rope dict of DeepSeek-V4 calls its kinds of layers
ROPE_KINDS = {
    "main": ("sliding_attention",),
    "compress": ("compressed_sparse_attention", "heavily_compressed_attention"),
}


def rotary_classes(first_letters):
    """Every class of transformers that keeps inverse frequencies of a rotation, by the folder's first letter."""
    for path in sorted(MODELS.glob("*/modeling_*.py")):
        if path.parent.name[0] not in first_letters or "inv_freq" not in path.read_text():
            continue
        module = importlib.import_module(f"transformers.models.{path.parent.name}.{path.stem}")
        for name, cls in vars(module).items():
            own = inspect.isclass(cls) and cls.__module__ == module.__name__ and issubclass(cls, torch.nn.Module)
            if own and re.search("Rotary|Rope", name) and "inv_freq" in inspect.getsource(cls):
                yield cls


def config_for(cls):
    """The default config of the class's model or part."""
    part = getattr(transformers, PART.get(cls.__name__, ""), None)
    config = (part or inspect.signature(cls.__init__).parameters["config"].annotation)()
    if "Vision" not in cls.__name__ and ("Text" in cls.__name__ or getattr(config, "rope_parameters", None) is None):
        config = config.get_text_config()
    said = SAYING_SO.get(cls.__name__)
    return type(config)(**said) if said else config


def frequencies_of(rotary):
    """The inverse frequencies of a module and their attention factors, by the kind of layer, "" for all."""
    names = [name for name, _ in rotary.named_buffers() if re.fullmatch(r"(\w+_)?inv_freq", name)]
    names = [name for name in names if "original" not in name and "long" not in name]
    assert names
    for name in names:
        factor = getattr(rotary, name.replace("inv_freq", "attention_scaling"), 1.0)
        yield name.removesuffix("inv_freq").rstrip("_"), getattr(rotary, name), factor


def agrees(encoding, theirs, factor):
    """Whether an encoding has the frequencies of a module to 1e-6; Ernie and Pixtral keep theirs in another order."""
    way = -1 if getattr(encoding.config, "backwards", False) else 1  # nanochat turns so where it applies them
    ours = (way * encoding.frequencies()).float().sort().values
    if isinstance(encoding, AxialRope):
        if len(theirs) < len(ours):  # one ladder, which every axis climbs
            theirs = theirs.repeat(encoding.config.axes)
        theirs = theirs * (2 * torch.pi if encoding.config.convention == "dinov3" else 1)
    theirs = theirs.float().sort().values
    same = ours.shape == theirs.shape and torch.allclose(ours, theirs, rtol=1e-6, atol=0)
    return same and abs(encoding.attention_factor() - factor) <= 1e-6


def check(cls):
    """How a class went: "agrees", "refused", "new", or "apart"."""
    if cls.__name__ in APART:
        return "apart"
    config = config_for(cls)
    if is_new(config):
        return "new"
    rotary = cls(config)
    try:
        model = whorl.read(json.loads(config.to_json_string(use_diff=False)))
        groups = [(group.kind, group.encoding) for group in model.groups if group.layers.attention]
    except WhorlError as error:
        assert re.search(REFUSED[cls.__name__], str(error)), (cls.__name__, str(error))
        return "refused"
    assert model.standing == "known", cls.__name__
    found = [
        (kind, one) for kind, encoding in groups for one in encoding.modules() if isinstance(one, (Rope, AxialRope))
    ]
    compared = [
        agrees(one, theirs, factor)
        for kind, theirs, factor in frequencies_of(rotary)
        for name, one in found
        if kind in ("", name) or name in ROPE_KINDS.get(kind, ())
    ]
    assert compared and all(compared), cls.__name__
    return "agrees"


@pytest.mark.slow
@pytest.mark.parametrize(("letters", "least"), [("abcd", 32), ("efg", 49), ("hijklm", 49), ("nopqrstuvwxyz", 73)])
def test_every_rotary_class_is_read_as_it_computes(letters, least):
    results = [check(cls) for cls in rotary_classes(letters)]
    print(f"\n{letters}: {results.count('agrees')} of {len(results)} classes with inverse frequencies are read so")
    assert results.count("agrees") >= least


@pytest.mark.parametrize("name", ["EsmConfig", "GraniteMoeHybridConfig", "Zamba2Config"])
def test_a_model_that_does_not_rotate_by_default_is_read_so(name):
    model = whorl.read(json.loads(getattr(transformers, name)().to_json_string(use_diff=False)))
    assert not [one for group in model.groups for one in group.encoding.modules() if isinstance(one, Rope)]


# --- towers, with queries turned


def towers():
    """(module, rotary class) of every class that says its rotation is axial."""
    for path in sorted(MODELS.glob("*/modeling_*.py")):
        if "compute_axial_rope_parameters" not in path.read_text():
            continue
        module = importlib.import_module(f"transformers.models.{path.parent.name}.{path.stem}")
        for cls in vars(module).values():
            own = inspect.isclass(cls) and cls.__module__ == module.__name__
            if own and "compute_axial_rope_parameters" in vars(cls):
                yield module, cls


def turned_by(module, rotary, q, positions):
    """Queries (1, heads, patches, head_dim) as the module's own functions turn them, for positions (patches, 2)."""
    if module.__name__.endswith("gemma4"):
        cos, sin = rotary(torch.zeros(1), positions[None])
        halves = zip(q.chunk(2, -1), cos.chunk(2, -1), sin.chunk(2, -1), strict=True)
        return torch.cat([module.apply_rotary_pos_emb(x, c, s) for x, c, s in halves], dim=-1)
    cos, sin = rotary(torch.zeros(1), positions)
    if module.__name__.endswith("minimax_m3_vl"):  # tokens before heads, and a batch
        return module.apply_rotary_pos_emb_vision(q.transpose(1, 2), q.transpose(1, 2), cos, sin)[0].transpose(1, 2)
    names = ("apply_rotary_pos_emb_vision", "apply_rotary_pos_emb_2d", "apply_rotary_pos_emb_2d_self_attn")
    apply = next((getattr(module, name) for name in names if hasattr(module, name)), None)
    if apply is None:
        return module.apply_rotary_pos_emb(q, q, cos[None], sin[None])[0]
    if "2d" in apply.__name__:
        return apply(q, q, cos, sin)[0]
    try:  # those of Qwen have tokens before heads
        return apply(q[0].transpose(0, 1), q[0].transpose(0, 1), cos, sin)[0].transpose(0, 1)[None]
    except (RuntimeError, IndexError, ValueError):
        return apply(q, q, cos[None], sin[None])[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt_oss", "openai_privacy_filter", "pixtral", "qwen2_5_vl_vision", "step3p5"])
def test_a_base_beside_the_scaling_that_a_class_fills_in_counts(name):
    made = transformers.CONFIG_MAPPING[name](rope_theta=12345.0).rope_parameters
    assert made.get("full_attention", made)["rope_theta"] == 12345.0
    for group in whorl.read({"model_type": name, "rope_theta": 12345.0}).groups:
        base = group.layers.encodings[0].settings["base"]
        assert (base.value, base.source) == (12345.0, "file")


def test_towers_turn_their_patches_as_they_are_read():
    generator, compared = torch.Generator().manual_seed(0), 0
    for module, cls in towers():
        config = inspect.signature(cls.__init__).parameters["config"].annotation()
        if is_new(config):
            continue
        model = whorl.read(json.loads(config.to_json_string(use_diff=False)))
        encoding = model.groups[0].encoding
        assert isinstance(encoding, AxialRope), cls.__name__
        encoding = AxialRope.from_config(encoding.config.replace(angles="float32"))
        positions = torch.randint(0, 50, (encoding.config.axes, 7), generator=generator)
        q = torch.randn(1, 3, 7, encoding.config.head_dim, generator=generator)
        # SAM and Step 3.7 are given the row first and turn by the column first; 5.22.2 had the row first in Step 3.7
        step = cls.__name__ == "Step3p7VisionRotaryEmbedding" and transformers.__version__ != "5.22.2"
        theirs = positions.flip(0) if encoding.config.convention == "rope_vit" or step else positions
        expected = turned_by(module, cls(config), q, theirs.T)
        assert float((encoding.rotate(q, positions) - expected).abs().max()) <= 1e-5, cls.__name__
        compared += 1
    assert compared >= 29


# --- what files in the wild do


@pytest.mark.parametrize("family", ["gpt_neox", "gpt_neox_japanese"])
@pytest.mark.parametrize("fields", [{"rope_theta": 5e5}, {"rope_theta": 5e5, "rotary_emb_base": 2e4}], ids=str)
def test_neox_reads_base_and_share_by_its_own_names(family, fields):
    config = {
        "model_type": family,
        "hidden_size": 512,
        "num_attention_heads": 8,
        **fields,
        "partial_rotary_factor": 0.5,
    }
    rope = CONFIG_MAPPING[family].from_dict(dict(config)).rope_parameters
    settings = whorl.read(config).groups[0].layers.encodings[0].settings
    assert settings["base"].value == rope["rope_theta"] == fields.get("rotary_emb_base", 10_000.0)
    assert settings["base"].field == ("rotary_emb_base" if "rotary_emb_base" in fields else "")
    assert (settings["rotary_dim"].value or 64) == int(64 * rope["partial_rotary_factor"])


def test_a_layer_type_that_the_rope_dict_lacks_has_what_the_class_fills_in():
    full = {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}
    config = {"model_type": "gemma3_text", "num_hidden_layers": 6, "rope_parameters": {"full_attention": full}}
    filled = CONFIG_MAPPING["gemma3_text"].from_dict(json.loads(json.dumps(config))).rope_parameters
    sliding = whorl.read(config).groups[0]
    assert sliding.kind == "sliding_attention"
    assert sliding.layers.encodings[0].value("base") == filled["sliding_attention"]["rope_theta"]
    assert sliding.layers.encodings[0].scaling is None and filled["sliding_attention"]["rope_type"] == "default"


def test_read_does_not_ask_for_an_argument_that_it_lacks():
    ropes = {kind: {"rope_theta": base} for kind, base in (("full_attention", 1e6), ("sliding_attention", 1e4))}
    with pytest.raises(WhorlError, match="Say which each layer is in layer_types") as found:
        whorl.read({"model_type": "llama", "rope_parameters": ropes})
    assert "layer_type=" not in str(found.value)


def test_sizes_of_the_attention_are_no_other_model():
    linear = {"full_attn_layers": [4], "kda_layers": [1, 2, 3], "head_dim": 128, "num_heads": 32}
    config = {"model_type": "kimi_linear", "num_hidden_layers": 4, "linear_attn_config": linear}
    assert whorl.read(config).reading.notes == ()
    dbrx = {
        "model_type": "dbrx",
        "attn_config": {"model_type": "", "rope_theta": 5e5},
        "ffn_config": {"model_type": ""},
    }
    assert whorl.read(dbrx).reading.notes == ()


def test_a_model_of_images_is_not_called_the_text_model():
    config = {"model_type": "sam2_video", "vision_config": {"model_type": "sam2_vision_model"}}
    (note,) = whorl.read(config).reading.notes
    assert note == "The config holds other models too, to be read apart: vision_config."


def test_zamba2_with_its_switch_for_long_texts_claims_what_its_class_makes_of_it():
    config = {"model_type": "zamba2", "use_mem_rope": True, "use_long_context": True, "max_position_embeddings": 4096}
    claimed = whorl.read(config).reading.claimed_length
    assert claimed is not None
    assert claimed.value == CONFIG_MAPPING["zamba2"].from_dict(dict(config)).max_position_embeddings == 16384


def test_a_family_to_assume_that_nobody_knows_is_refused_for_known_models_too():
    with pytest.raises(WhorlError, match="unknown family to assume"):
        whorl.read({"model_type": "llama", "rope_theta": 1e4}, assume="banana")


@pytest.mark.parametrize(
    ("inside", "nested", "value", "field"),
    [
        (4096, False, 8192, "original_max_position_embeddings"),
        (8192, False, 8192, "rope_parameters.original_max_position_embeddings"),
        (None, False, 8192, "original_max_position_embeddings"),
        (None, True, 65536, "max_position_embeddings"),
        (4096, True, 4096, "rope_parameters['full_attention'].original_max_position_embeddings"),
    ],
)
def test_an_original_length_names_the_field_it_was_read_in(inside, nested, value, field):
    """The one beside the rope dict wins, and does not reach into layer types, as in transformers."""
    yarn = {"rope_type": "yarn", "rope_theta": 5e5, "factor": 8.0}
    yarn |= {} if inside is None else {"original_max_position_embeddings": inside}
    config = {"hidden_size": 512, "num_attention_heads": 8, "num_hidden_layers": 2, "max_position_embeddings": 65536}
    config |= {"original_max_position_embeddings": 8192, "model_type": "olmo3" if nested else "llama"}
    if nested:
        config |= {"layer_types": ["full_attention"] * 2, "sliding_window": 64}
    found = whorl.read(config | {"rope_parameters": {"full_attention": yarn} if nested else yarn})
    (rotation,) = (one for one in found.groups[0].layers.encodings if one.name == "rope")
    assert rotation.scaling is not None
    original = rotation.scaling.settings["original_length"]
    assert (original.value, original.field) == (value, field)
