"""Whatever is done to a config, reading it ends in a result or in a WhorlError: seeded mutations, no raw exception."""

from __future__ import annotations

import functools
import random
import re
import warnings
from typing import Any

import pytest
import torch

import registry_cases as cases
import whorl
from hf_configs import GEMMA3_4B, LLAMA, NESTED, RELEASED, TYPES, draw_parameters
from mutations import NUMBERS, hostile, mutated
from optional import optional
from whorl import Rope, WhorlError
from whorl.dialects.checks import READ
from whorl.dialects.families import FAMILIES
from whorl.dialects.names import LENGTHS, ORIGINAL, PARTS
from whorl.dialects.sizes import HEAD_DIMS, HEADS, WIDTHS
from whorl.dialects.transformers import ALPHA, EVERYWHERE, PASSED_OVER, PHIMOE, ROPE_TYPES
from whorl.errors import shown
from whorl.models import load_decoder, load_roformer

POSITIONS = torch.arange(3)
pytestmark = [  # mutations make many
    pytest.mark.filterwarnings("ignore::whorl.dialects.families.UnknownFamily"),
    pytest.mark.filterwarnings("ignore::whorl.dialects.beside.IncompleteRotation"),
]


def ends_well(what: str, call: Any, *arguments: Any, **settings: Any) -> Any:
    """What a call returns; None where it ends in a WhorlError. Any other error names the case and fails."""
    try:
        return call(*arguments, **settings)
    except WhorlError as error:
        assert str(error)
        return None
    except Exception as error:
        raise AssertionError(f"{what} ended in {type(error).__name__}: {error}") from error


# --- transformers configs


@functools.cache
def transformers_configs() -> list[dict[str, Any]]:
    """Every config the tests know, each family flat, nested and inside a multimodal one, and random rope dicts."""
    found = [config for config, _ in RELEASED.values()] + [GEMMA3_4B, NESTED]
    found += [LLAMA | {"layer_types": ["a", "b"], key: [0, 20000.0]} for key in ("layer_rope_theta", "rope_theta")]
    found += [LLAMA | {"layer_types": ["a", "b"], "partial_rotary_factors": [0.5, 1.0]}]
    found += [LLAMA | {"rope_scaling_layers": [0, 1], "num_hidden_layers": 2}]
    per_layer = {"per_layer_config": {"01": {"head_dim": 128}}, "layer_types": ["sliding_attention", "full_attention"]}
    found += [{"model_type": "gemma4_text", "head_dim": 256, "rope_parameters": NESTED["rope_parameters"]} | per_layer]
    latent = {
        "model_type": "deepseek_v3",
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "partial_rotary_factor": 1.0,
    }
    found += [latent, latent | {"rope_interleave": False, "head_dim": 192}]
    pick = random.Random(5)
    for name in sorted(FAMILIES):
        kind = pick.choice(TYPES)
        parameters, _ = draw_parameters(pick, kind, 128, True, 8192)
        flat = {"model_type": name, "hidden_size": 512, "num_attention_heads": 4, "max_position_embeddings": 8192}
        flat["rope_parameters"] = parameters
        found += [flat, {"model_type": name, "text_config": flat | {"layer_types": ["full_attention"]}}]
        found += [flat | {"rope_parameters": {"full_attention": parameters, "sliding_attention": {}}}]
    return found


@functools.cache
def readable_configs() -> list[tuple[dict[str, Any], str | None]]:
    """The configs, each with a layer type by which it can be read, if there is one."""
    kinds = (None, "full_attention", "compress", "a")

    def reads(config: dict[str, Any], kind: str | None) -> bool:
        return ends_well("a config as it is", Rope.from_hf, config, kind) is not None

    configs = transformers_configs()
    return [(config, next((kind for kind in kinds if reads(config, kind)), None)) for config in configs]


HF_NAMES = tuple(
    sorted(
        {*READ, *LENGTHS, ORIGINAL, *PARTS, *HEAD_DIMS, *HEADS, *WIDTHS, *EVERYWHERE, *PASSED_OVER}
        | {
            key
            for rule in (*ROPE_TYPES.values(), ALPHA, PHIMOE)
            for key in (*rule.needs, *rule.takes, *rule.passes_over)
        }
        | {"model_type", "layer_types", "per_layer_config", "rope_scaling_layers", "num_hidden_layers", "attn_config"}
        | {"qk_nope_head_dim", "global_head_dim", "sliding_window", "position_embedding_type", "alibi", "mrope_section"}
    )
)
LAYER_TYPES = (None, "full_attention", "sliding_attention", "main", "linear_attention")


def check_rope(what: str, rope: Any) -> None:
    """The numbers of a rotation that could be built are finite, or a WhorlError says why there are none."""
    for length in (None, 10**6):
        numbers = ends_well(what, lambda: [*rope.tables(POSITIONS, length), rope.frequencies(length)])  # noqa: B023
        factors = ends_well(what, lambda: [rope.attention_factor(length), rope.softmax_factor(length)])  # noqa: B023
        found = [*(numbers or []), torch.tensor(factors or [], dtype=torch.float64)]
        assert all(bool(one.isfinite().all()) for one in found), f"{what} has numbers that are not finite"


def read_mutations(seeds: range) -> int:
    """Reads as many mutated configs; returns how many of them could be read."""
    configs, read = readable_configs(), 0
    for seed in seeds:
        pick = random.Random(seed)
        config, layer_type = pick.choice(configs)
        config = mutated(config, HF_NAMES, pick)
        if pick.random() < 0.1:
            layer_type = hostile(pick) if pick.random() < 0.3 else pick.choice(LAYER_TYPES)
        cls = pick.choice((Rope, Rope, whorl.ReRope, whorl.MRope))
        rope = ends_well(f"mutation {seed}", cls.from_hf, config, layer_type)
        if rope is not None:
            check_rope(f"mutation {seed}", rope)
            read += 1
    return read


def test_a_mutated_transformers_config_is_read_or_refused():
    assert 150 < read_mutations(range(1200)) < 1000


@pytest.mark.large
@pytest.mark.parametrize("start", range(10_000, 30_000, 2_000))
def test_many_mutated_transformers_configs_are_read_or_refused(start):
    read_mutations(range(start, start + 2_000))


# --- whorl's own configs, as dicts and as classes


@functools.cache
def own_configs() -> list[dict[str, Any]]:
    """The dicts of every encoding, of RoPE with every scaling, and of joined ones."""
    found = [cases.build(name).config.to_dict() for name in cases.NAMES]
    found += [rope.config.to_dict() for rope in cases.scaled_ropes().values()]
    found += [whorl.Rope(head_dim=4, frequencies=(1.0, 0.5)).config.to_dict()]
    rope, window, alibi = whorl.Rope(head_dim=16), whorl.Window(size=4), whorl.Alibi(heads=4, slopes=(1, 2, 3, 4))
    found += [whorl.Combined(rope, window).config.to_dict(), whorl.Combined(alibi, whorl.LogN()).config.to_dict()]
    return found


@functools.cache
def own_names() -> tuple[str, ...]:
    return tuple(sorted({key for config in own_configs() for key in config} | {"parts", "scaling", "inner"}))


def use(what: str, encoding: whorl.Encoding) -> None:
    """Attends with an encoding, which may answer that its sizes do not fit."""
    q, k, v = cases.tokens(5)
    hidden = cases.hidden_for(encoding, 5)
    ends_well(what, whorl.attention, q, k, v, encoding=encoding, causal=True, **hidden)
    ends_well(what, lambda: encoding.claims)


def build_mutations(seeds: range) -> int:
    """Builds encodings of as many mutated dicts; returns how many could be built."""
    configs, built = own_configs(), 0
    for seed in seeds:
        pick = random.Random(seed)
        config = pick.choice(configs)
        data = mutated(config, own_names(), pick)
        if pick.random() < 0.9:
            data["name"] = config["name"]
        with torch.device("meta"), warnings.catch_warnings():  # a table of any size; T5 warns of odd distances
            warnings.simplefilter("ignore", UserWarning)
            encoding = ends_well(f"dict {seed}", whorl.from_dict, data)
        if encoding is None:
            continue
        built += 1
        if not list(encoding.parameters()):
            use(f"dict {seed}", encoding)
        again = ends_well(f"dict {seed}", lambda: encoding.config.to_dict())  # noqa: B023
        assert again is not None and encoding.Config.from_dict(again) == encoding.config
    return built


def test_a_mutated_dict_is_built_or_refused():
    assert 40 < build_mutations(range(600)) < 560


@pytest.mark.large
@pytest.mark.parametrize("start", range(10_000, 20_000, 2_000))
def test_many_mutated_dicts_are_built_or_refused(start):
    build_mutations(range(start, start + 2_000))


ENDLESS: dict[str, Any] = {"name": "resonance"}
ENDLESS["inner"] = ENDLESS


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"name": ["rope"], "head_dim": 8}, "unknown encoding ['rope']. Expected one of: "),
        ({"name": "rope", "head_dim": 8, 7: 1}, "Rope: unknown setting 7. Expected one of: "),
        ({"name": "rope", "head_dim": 8, "scaling": {"name": {}}}, "unknown scaling {}. Expected one of: "),
        ({"name": "rope", "head_dim": 8, "scaling": {"name": "linear", 7: 1}}, "Linear: unknown setting 7."),
        (
            {"name": "rope", "head_dim": 8, "scaling": ENDLESS},
            "from_dict: the dict holds others more than 16 levels deep.",
        ),
        ({"name": "combined", "parts": 3}, "Combined.from_dict: parts must be a list of dicts, got 3."),
        ({"name": "combined", "parts": [3]}, "Combined.from_dict: every part must be a dict with a name, got 3."),
        ([10**5000], "from_dict: a dict with the encoding's name needed, got an object of type list."),
    ],
)
def test_a_dict_that_describes_no_encoding_says_what_is_wrong(data, message):
    with pytest.raises(WhorlError, match=re.escape(message)):
        whorl.from_dict(data)


@pytest.mark.parametrize("value", NUMBERS, ids=lambda value: shown(value)[:12])
def test_every_setting_takes_a_number_or_says_why_not(value):
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for config in own_configs():
            for key in config.keys() - {"name"}:
                ends_well(f"{config['name']} with {key}", whorl.from_dict, config | {key: value})
                ends_well(f"{config['name']} with [{key}]", whorl.from_dict, config | {key: [value]})


@pytest.mark.parametrize(
    "build",
    [
        lambda: Rope(head_dim=10**400),
        lambda: Rope(head_dim=8, base=10**400),
        lambda: Rope(head_dim=8, base=float("nan")),
        lambda: Rope(head_dim=10**5000),
        lambda: Rope(head_dim=2**40),
        lambda: whorl.Yarn(factor=10**400, original_length=4096),
        lambda: whorl.Yarn(factor=4.0, original_length=10**400),
        lambda: whorl.Yarn(factor=4.0, original_length=64, mscale=1e308, mscale_all_dim=1e308, scale_softmax=True),
        lambda: whorl.Alibi(heads=1, slopes=[10**400]),
        lambda: whorl.Alibi(heads=10**400),
        lambda: whorl.Alibi(heads=2**62),
        lambda: whorl.LongRope(short_factor=10**400, long_factor=[1], original_length=2, factor=1),
        lambda: whorl.LongRope(short_factor=torch.tensor(1.0), long_factor=[1], original_length=2, factor=1),
        lambda: whorl.Learned(width=2**62, length=2**62),
    ],
)
def test_numbers_beyond_every_float_and_integer_are_refused(build):
    with pytest.raises(WhorlError, match=r"must be|beyond every float"):
        build()


# --- models of transformers


@functools.cache
def foreign_models() -> list[tuple[Any, dict[str, Any], dict[str, torch.Tensor]]]:
    """The loader, config and state dict of a tiny model of each family that is loaded."""
    transformers = optional("transformers")
    ids = {"vocab_size": 10, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    deep = {"hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2}
    models = [
        (load_decoder, "LlamaForCausalLM", "LlamaConfig", deep | {"num_key_value_heads": 1}),
        (load_decoder, "GPT2LMHeadModel", "GPT2Config", {"n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 16}),
        (load_decoder, "BloomForCausalLM", "BloomConfig", {"hidden_size": 8, "n_layer": 2, "n_head": 2}),
        (load_roformer, "RoFormerForMaskedLM", "RoFormerConfig", deep | {"max_position_embeddings": 8}),
        (load_roformer, "RoFormerForSequenceClassification", "RoFormerConfig", deep | {"max_position_embeddings": 8}),
    ]
    made = [
        (load, getattr(transformers, cls)(getattr(transformers, of)(**ids, **sizes))) for load, cls, of, sizes in models
    ]
    return [(load, model.config.to_dict(), dict(model.state_dict())) for load, model in made]


def spoiled(state: dict[str, torch.Tensor], pick: random.Random) -> dict[Any, Any]:
    """A state dict with one tensor of another shape, type or name, or none."""
    key = pick.choice(list(state))
    tensor = state[key]
    other = (tensor[:0], tensor.flatten(), tensor[None], tensor.sum(), tensor.int(), tensor.bfloat16(), None, 3)
    state = {name: value for name, value in state.items() if name != key}
    if pick.random() < 0.3:
        return state | {pick.choice((key + ".x", "", 0, None, "model." + key)): tensor}
    return state | {key: pick.choice(other)}


def load_mutations(seeds: range) -> int:
    """Loads as many models of mutated configs and spoiled weights; returns how many could be loaded."""
    loaded = 0
    names = ("n_inner", "head_dim", "hidden_act", "rope_parameters", "embedding_size", "mlp_bias", "rotary_value")
    for seed in seeds:
        pick = random.Random(seed)
        load, config, state = pick.choice(foreign_models())
        if pick.random() < 0.3:
            state = spoiled(state, pick)
        else:
            read = {key: value for key, value in config.items() if key in READ_BY_LOADERS or pick.random() < 0.1}
            config = mutated(read, names, pick)
        loaded += ends_well(f"model {seed}", load, state, config) is not None
    return loaded


READ_BY_LOADERS = {
    *("model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *(
        "num_key_value_heads",
        "n_embd",
        "n_layer",
        "n_head",
        "n_positions",
        "rope_parameters",
        "head_dim",
        "rms_norm_eps",
    ),
    *("layer_norm_epsilon", "layer_norm_eps", "tie_word_embeddings", "hidden_act", "activation_function", "mlp_bias"),
    *("attention_bias", "scale_attn_weights", "embedding_size", "type_vocab_size", "rotary_value", "is_decoder"),
}


def test_a_mutated_model_is_loaded_or_refused():
    assert 20 < load_mutations(range(200)) < 180


@pytest.mark.large
@pytest.mark.parametrize("start", range(10_000, 16_000, 2_000))
def test_many_mutated_models_are_loaded_or_refused(start):
    load_mutations(range(start, start + 2_000))


# --- what processors of transformers return


def batches() -> list[dict[str, Any]]:
    """Arguments of multimodal_from_hf that fit each other, as lists."""
    image, film = {"image_grid_thw": [[1, 4, 4]]}, {"video_grid_thw": [[2, 4, 4]]}
    seen, timed = [[0, 1, 1, 1, 1, 0]], {"second_per_grid_ts": [0.5], "tokens_per_second": 2.0}
    filmed, frames = [[0, *[2] * 8, 0]], [[0, 2, 2, 2, 2, 0, 2, 2, 2, 2]]
    return [
        {"rule": "qwen2_vl", "token_types": [[0, 0, 0], [0, 0, 0]], "attention_mask": [[1, 1, 1], [0, 1, 1]]},
        {"rule": "qwen2_vl", "token_types": seen, **image, "merge": 2},
        {"rule": "qwen2_vl", "token_types": filmed, **film},
        {"rule": "qwen2_5_vl", "token_types": filmed, **film, **timed},
        {"rule": "qwen3_vl", "token_types": frames, **film, "attention_mask": [[1] * 10]},
    ]


def place_mutations(seeds: range) -> int:
    """Lays out as many mutated batches; returns how many could be laid out."""
    placed = 0
    names = ("merge", "attention_mask", "second_per_grid_ts", "tokens_per_second", "image_grid_thw", "video_grid_thw")
    for seed in seeds:
        pick = random.Random(seed)
        batch = mutated(pick.choice(batches()), names, pick)
        known = {key: value for key, value in batch.items() if key in names or key == "rule"}
        if pick.random() < 0.3:
            known = {key: as_tensor(value) for key, value in known.items()}
        given = {"rule": "qwen2_vl"} | known
        placed += ends_well(f"batch {seed}", whorl.multimodal_from_hf, batch.get("token_types"), **given) is not None
    return placed


def as_tensor(value: Any) -> Any:
    """A list as the tensor that a processor gives, where it is one."""
    try:
        return torch.as_tensor(value) if isinstance(value, list) else value
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return value


def test_a_mutated_batch_is_laid_out_or_refused():
    assert 80 < place_mutations(range(800)) < 700


@pytest.mark.large
@pytest.mark.parametrize("start", range(10_000, 20_000, 2_000))
def test_many_mutated_batches_are_laid_out_or_refused(start):
    place_mutations(range(start, start + 2_000))
