"""Families that do not rotate, against the tables and waves that the models of transformers hold."""

import json
import re

import pytest
import torch

import whorl
from optional import optional
from whorl.dialects.families import LEARNED, SINUSOIDAL, T5, UNROTATED

# rows of a table that no token has: positions that count from 2
UNUSED = dict.fromkeys(("opt", "biogpt", "bart", "mbart", "roberta", "xlm-roberta", "camembert", "xlm-roberta-xl"), 2)
POSITIONS = r"(position_embeddings?|embed_positions|positions_embed|wpe|relative_attention_bias)\.weight"


def of_kind(kind):
    return [name for name, has in UNROTATED.items() if has == kind]


def built(name, device):
    """The default model of a family, and its config as its file would have it."""
    transformers = optional("transformers", exact=True)
    config = transformers.CONFIG_MAPPING["clip_text_model" if name == "clip" else name]()
    with torch.device(device):
        model = transformers.AutoModel.from_config(config)
    return model, json.loads(config.to_json_string(use_diff=False))


def tables(model):
    return [value for key, value in model.named_parameters() if re.search(POSITIONS, key)]


@pytest.mark.parametrize("name", of_kind(LEARNED))
def test_a_learned_table_has_the_width_and_rows_that_are_read(name):
    model, config = built(name, "meta")
    (group, *_) = whorl.read(config).groups
    learned = next(one for one in group.encoding.modules() if isinstance(one, whorl.Learned)).config
    for table in tables(model):
        assert tuple(table.shape) == (learned.length + UNUSED.get(name, 0), learned.width)
    assert tables(model)


@pytest.mark.parametrize("name", of_kind(SINUSOIDAL))
def test_waves_are_those_of_the_model(name):
    model, config = built(name, "cpu")
    (group,) = whorl.read(config).groups
    for table in tables(model):
        ours = group.encoding.add_to_input(torch.zeros_like(table), torch.arange(len(table)))
        assert float((ours - table).abs().max()) <= 1e-5
    assert tables(model)


@pytest.mark.parametrize("name", of_kind(T5))
def test_buckets_have_the_sizes_that_are_read(name):
    model, config = built(name, "meta")
    groups = {group.kind: group.encoding.config for group in whorl.read(config).groups}
    assert set(groups) == {"encoder", "decoder"}
    for key, table in model.named_parameters():
        if "relative_attention_bias" in key:
            one = groups[key.partition(".")[0]]
            assert tuple(table.shape) == (one.buckets, one.heads)


def test_the_window_of_gpt_neo_is_that_of_its_mask():
    modeling = optional("transformers.models.gpt_neo.modeling_gpt_neo")
    sizes = {"hidden_size": 8, "num_heads": 2, "num_layers": 2, "attention_types": [[["global", "local"], 1]]}
    config = modeling.GPTNeoConfig(**sizes, window_size=3, max_position_embeddings=8)
    local = modeling.GPTNeoSelfAttention(config, attention_type="local", layer_id=1).bias[0, 0]
    group = next(one for one in whorl.read(config.to_dict()).groups if one.kind == "local")
    window = next(one for one in group.encoding.modules() if isinstance(one, whorl.Window))
    positions = torch.arange(8)
    seen = (positions[:, None] - positions < window.config.size) & (positions[:, None] >= positions)
    assert torch.equal(local, seen)
