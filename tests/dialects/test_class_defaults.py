"""The table of class defaults: what transformers fills in, as its classes say today."""

import runpy
from pathlib import Path

import pytest

from optional import optional
from whorl.dialects.class_defaults import class_defaults, filled, period, version

TOOL = Path(__file__).parent.parent.parent / "tools" / "make_class_defaults.py"


@pytest.mark.slow
def test_the_table_is_what_the_classes_of_transformers_say():
    transformers = optional("transformers", exact=True)
    assert version() == transformers.__version__
    made = runpy.run_path(str(TOOL))
    for name in (
        "llama",
        "gemma3",
        "gemma3_text",
        "gpt2",
        "qwen2_vl_vision",
        "deepseek_v4",
        "albert",
        "t5",
        "sam2_video",
    ):
        assert class_defaults(name) == made["defaults_of"](name), f"{name} is old. Run tools/make_class_defaults.py."


def test_only_what_a_file_lacks_is_filled_in():
    config, added = filled({"model_type": "llama", "hidden_size": 512})
    assert config["hidden_size"] == 512 and "hidden_size" not in added
    assert config["num_attention_heads"] == 32 and "num_attention_heads" in added


def test_a_size_under_another_name_is_there():
    config, added = filled({"model_type": "falcon", "n_head": 8, "n_layer": 2})
    assert not {"num_attention_heads", "num_hidden_layers"} & set(config)
    assert "hidden_size" in added


def test_null_is_what_the_file_says():
    assert filled({"model_type": "gptj", "rotary_dim": None})[0]["rotary_dim"] is None


def test_a_class_that_transformers_does_not_have_fills_in_nothing():
    assert filled({"model_type": "new"}) == ({"model_type": "new"}, frozenset())
    assert filled({}) == ({}, frozenset())


def test_a_list_without_a_period_is_kept_whole():
    assert period([1, 1, 2]) == [1, 1, 2]
