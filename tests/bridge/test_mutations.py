"""Whatever is done to a config, reading and linting it end in a result or in a WhorlError, and within a second."""

from __future__ import annotations

import functools
import json
import random
import time
from typing import Any

import pytest
import torch

import whorl
from lint_cases import CASES as LINTED
from model_cases import CASES
from mutations import mutated
from whorl import WhorlError
from whorl.bridge.linting import Finding, lint
from whorl.dialects.layer_kinds import RULES
from whorl.dialects.names import BASES, HEAD_DIMS, HEADS, LAYERS, LENGTHS, ORIGINAL, PARTS, SHARES, WIDTHS

pytestmark = pytest.mark.filterwarnings("ignore::whorl.dialects.families.UnknownFamily")  # mutations make many

NAMES = (
    *(*BASES, *HEAD_DIMS, *HEADS, *LAYERS, *LENGTHS, ORIGINAL, *PARTS, *SHARES, *WIDTHS),
    *(*RULES, "layer_types", "layers_block_type", "no_rope_layers", "no_rope_layer_interval"),
    *("hybrid_override_pattern", "compress_ratios", "backbone_config", "image_size", "patch_size", "window_size"),
    *("global_attn_indexes", "fullatt_block_indexes", "use_logn_attn", "dual_chunk_attention_config"),
    *("model_type", "rope_parameters", "rope_scaling", "rope_type", "type", "factor", "attn_factor", "mrope_section"),
    *("sliding_window", "local_attention", "attn_logit_softcapping", "alibi", "attn_config", "per_layer_config"),
    *("layer_rope_theta", "partial_rotary_factors", "rope_ratio", "use_mla", "qk_rope_head_dim", "floor_scale"),
)


# towers of images with windows, and an inference config
OTHERS: list[dict[str, Any]] = [
    {
        "model_type": "sam3_vit_model",
        "image_size": 1008,
        "patch_size": 14,
        "global_attn_indexes": [7, 15],
        "window_size": 24,
    },
    {"model_type": "sam3_vision_model", "backbone_config": {"hidden_size": 1024, "num_attention_heads": 16}},
    {
        "model_type": "muse_glimmer_vision",
        "num_hidden_layers": 2,
        "layer_types": ["window_attention", "full_attention"],
    },
    {
        "dim": 4096,
        "n_layers": 3,
        "n_heads": 64,
        "compress_ratios": [0, 4, 128, 0],
        "original_seq_len": 65536,
        "hc_mult": 4,
    },
]


@functools.cache
def configs() -> list[dict[str, Any]]:
    return [case.config for case in CASES.values()] + [broken for broken, _, _ in LINTED.values()] + OTHERS


def mutate(seeds: range) -> int:
    """Reads and lints as many mutated configs; returns how many could be read."""
    read = 0
    for seed in seeds:
        pick = random.Random(seed)
        config = mutated(pick.choice(configs()), NAMES, pick)
        start = time.thread_time()  # of this thread alone, so that a busy machine fails nothing
        read += ends_well(f"mutation {seed}", config)
        assert time.thread_time() - start < 1, f"mutation {seed} took too long"
    return read


def ends_well(what: str, config: dict[str, Any]) -> bool:
    """Whether a config could be read; any error but a WhorlError names the case and fails."""
    try:
        assert all(isinstance(one, Finding) for one in lint(config))
        for group in whorl.read(config).groups:
            assert isinstance(group.encoding, whorl.Encoding)
    except WhorlError as error:
        assert str(error)
        return False
    except Exception as error:
        raise AssertionError(f"{what} ended in {type(error).__name__}: {error}") from error
    return True


def test_a_mutated_config_is_read_or_refused():
    assert 200 < mutate(range(1000)) < 900


@pytest.mark.large
@pytest.mark.parametrize("start", range(10_000, 30_000, 2_000))
def test_many_mutated_configs_are_read_or_refused(start):
    mutate(range(start, start + 2_000))


LLAMA = {"model_type": "llama", "hidden_size": 512, "num_attention_heads": 8, "num_hidden_layers": 2}
TWO = torch.ones(2)  # has no truth value, and equals nothing


@pytest.mark.parametrize(
    "config",
    [
        LLAMA | {"dual_chunk_attention_config": TWO},
        LLAMA | {"model_type": "qwen2", "layer_types": TWO},
        LLAMA | {"model_type": "smollm3", "no_rope_layers": TWO},
        LLAMA | {"model_type": "gemma3_text", "sliding_window_pattern": TWO},
        LLAMA | {"use_mrope": TWO},
        LLAMA | {"rope_parameters": {}, "rope_scaling": TWO},
        LLAMA | {"rope_theta": -(10**400), "max_position_embeddings": 4096},
        {"model_type": "falcon", "alibi": True, "hidden_size": 4, "num_attention_heads": 8},
        {"model_type": "mpt", "attn_config": {"alibi_bias_max": TWO}},
        {"model_type": "gptj", "rotary_dim": TWO},
    ],
    ids=lambda config: ", ".join(config),
)
def test_values_without_a_truth_value_and_sizes_that_do_not_divide_are_refused(config):
    assert not ends_well("a config", config)


def test_the_short_form_refuses_a_size_that_reading_the_whole_model_never_asks_for():
    config = {"model_type": "glm5_next", "qk_rope_head_dim": TWO}
    assert ends_well("a family without positions", config)
    with pytest.raises(WhorlError, match="qk_rope_head_dim must be an integer from 0, got torch"):
        whorl.Rope.from_hf(config)


def test_files_cut_short_are_read_or_refused(tmp_path):
    text = json.dumps(CASES["kimi k2.5, which is deepseek v3"].config)
    for end in range(0, len(text), 7):
        path = tmp_path / "config.json"
        path.write_text(text[:end])
        with pytest.raises(WhorlError):
            whorl.read(path)
