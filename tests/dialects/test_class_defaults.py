"""The table of class defaults: what transformers fills in, as its classes say today."""

import json
import runpy
from pathlib import Path

import pytest

import whorl
from optional import DEVELOPED_ON, optional
from whorl import WhorlError
from whorl.dialects.class_defaults import class_defaults, filled, period, version

TOOL = Path(__file__).parent.parent.parent / "tools" / "make_class_defaults.py"


@pytest.mark.slow
def test_the_table_is_what_the_classes_of_transformers_say():
    transformers = optional("transformers", only=DEVELOPED_ON)
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


# --- silent files

# classes whose number of layers is no default of theirs: a silent file does not say how many there are
UNCOUNTED = ("efficientloftr", "hrm_text", "nemotron_h")
SIZED = {"hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 8, "num_hidden_layers": 12}


def by_layer(config):
    """What is read of every layer, or None where the config is refused."""
    try:
        groups = whorl.read(config).groups
        return {
            index: (group.kind, group.encoding.config, group.unsupported, group.layers.attention)
            for group in groups
            for index in (["all"] if group.indices is None else group.indices)
        }
    except WhorlError:
        return None


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of classes that warn of their own defaults, and of unknown families
@pytest.mark.parametrize("sizes", [{}, SIZED], ids=["bare", "sized"])
def test_a_silent_file_is_read_as_the_one_that_its_class_writes(sizes):
    transformers = optional("transformers", only=DEVELOPED_ON)
    compared = 0
    for name in sorted(transformers.models.auto.configuration_auto.CONFIG_MAPPING_NAMES):
        try:
            made = transformers.CONFIG_MAPPING[name](**sizes)
        except Exception:  # sizes that the class does not take, each in its own way
            continue
        full = json.loads(made.to_json_string(use_diff=False))
        if name in UNCOUNTED or made.sub_configs or any(full.get(key) != value for key, value in sizes.items()):
            continue
        expected = by_layer(full)
        if expected is not None:
            assert by_layer({"model_type": name, **sizes}) == expected, name
            compared += 1
    assert compared >= 180


def test_a_model_of_several_whose_text_model_is_missing_is_refused():
    for name in ("gemma3n", "mistral3", "sam3"):
        with pytest.raises(
            WhorlError, match=f"model_type '{name}' holds its text model under text_config, which is missing"
        ):
            whorl.read({"model_type": name})
