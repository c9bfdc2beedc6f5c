"""The lint: every rule finds what it is for, and keeps quiet where all is well."""

import importlib
import json
import re
import subprocess
import sys

import pytest
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import whorl
from lint_cases import CASES, CLEAN, LLAMA, v4
from whorl import WhorlError
from whorl.bridge.linting import ORDER, Finding, examine, lint
from whorl.bridge.rules import RULES
from whorl.bridge.rules.schema import BY_LAYER_TYPE


def test_there_are_enough_rules_and_each_has_a_case():
    assert len(RULES) >= 30
    assert {rule.id for rule in RULES} == {*CASES, "two-files-differ"}  # which needs a folder: test_folders.py
    assert len({rule.id for rule in RULES}) == len(RULES)


@pytest.mark.parametrize("rule", CASES)
def test_a_rule_finds_what_it_is_for(rule):
    config, said, _ = CASES[rule]
    found = [one for one in lint(config) if one.rule == rule]
    assert any(said in one.what for one in found), found


@pytest.mark.parametrize("rule", CASES)
def test_a_rule_is_quiet_where_it_is_kept(rule):
    assert rule not in {one.rule for one in lint(CASES[rule][2])}


def test_a_clean_file_has_no_findings():
    assert lint(CLEAN) == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_no_rule_advises_to_drop_a_field(rule):
    assert not re.search(r"\b(drop|remove|delete|leave out)\b", rule.remedy, re.IGNORECASE)
    assert rule.remedy.endswith(".") and rule.severity in ORDER


def test_healthy_official_files_are_not_warned_of():
    qwen2_vl = {"model_type": "qwen2_vl", "hidden_size": 3584, "num_attention_heads": 28, "rope_theta": 1e6}
    qwen2_vl["rope_scaling"] = {"type": "mrope", "mrope_section": [16, 24, 24]}
    kimi_linear = {"model_type": "kimi_linear", "num_hidden_layers": 4, "qk_rope_head_dim": 64}
    for config in (qwen2_vl, kimi_linear):
        assert not [one for one in lint(config) if one.severity != "note"]


def test_findings_come_with_the_worst_first():
    found = lint(v4(attn_factor=1.0) | {"max_position_embeddings": 32786})
    ranks = [ORDER.index(one.severity) for one in found]
    assert ranks == sorted(ranks) and len(set(ranks)) == 3


def test_rules_look_into_the_text_model_of_a_composite():
    assert "odd-length" in {
        one.rule for one in lint({"model_type": "llava", "text_config": LLAMA | {"max_position_embeddings": 32786}})
    }


def test_the_word_of_the_user_takes_an_error_from_an_unknown_family():
    config = CLEAN | {"model_type": "new"}
    assert "unknown-family" in {one.rule for one in lint(config)}
    assert "unknown-family" not in {one.rule for one in lint(config, assume="llama")}


def test_an_unreadable_config_is_linted_all_the_same():
    findings, reading, error = examine(v4(attn_factor=1.0))
    assert reading is None and isinstance(error, WhorlError)
    assert "attn-factor" in {one.rule for one in findings}


def test_a_finding_is_plain_data():
    (one,) = [found for found in lint(v4(factor=8.0)) if found.rule == "factor-mismatch"]
    assert Finding(**json.loads(json.dumps(one.to_dict()))) == one


def test_lint_imports_neither_torch_nor_numpy():
    code = (
        "import sys\n"
        "from whorl.bridge import lint\n"
        f"found = lint({CLEAN | {'model_type': 'new'}!r})\n"
        "print([one.rule for one in found], sorted({'torch', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['unknown-family'] []"


def test_lint_is_reached_from_the_package():
    assert whorl.bridge.lint(CLEAN) == []


# --- fields that a family's class in transformers passes over


def class_config(config):
    """What the class of transformers makes of a config."""
    return CONFIG_MAPPING[config["model_type"]].from_dict(dict(config))


def whole_heads(config):
    """Whether the rotary class of Llama or Phi-3 turns all dimensions of a head."""
    name = {"llama": "Llama", "phi3": "Phi3"}[config["model_type"]]
    module = importlib.import_module(f"transformers.models.{config['model_type']}.modeling_{config['model_type']}")
    rotary = getattr(module, f"{name}RotaryEmbedding")(class_config(config))
    return 2 * len(rotary.inv_freq) == config["hidden_size"] // config["num_attention_heads"]


@pytest.mark.parametrize("family, found", [("llama", True), ("phi3", False)])
def test_a_share_that_the_class_passes_over_is_found(family, found):
    config = LLAMA | {"model_type": family, "pad_token_id": 0, "partial_rotary_factor": 0.5}
    assert whole_heads(config) == found
    assert ("name-not-read" in {one.rule for one in lint(config)}) == found


@pytest.mark.parametrize("name, value", [("rotary_emb_base", 5e5), ("rotary_pct", 0.5), ("rotary_emb_fraction", 0.5)])
def test_names_of_other_families_are_found(name, value):
    config = LLAMA | {name: value}
    assert class_config(config).rope_parameters == class_config(LLAMA).rope_parameters
    (found,) = [one for one in lint(config) if one.rule == "name-not-read"]
    assert found.what == f"{name}={value:g} does nothing: llama's class never reads it in transformers 5.22.2"


@pytest.mark.parametrize("family", ["nomic_bert", "qwen"])
def test_names_that_the_code_of_a_checkpoint_reads_are_not_found(family):
    config = LLAMA | {"model_type": family, "rotary_emb_base": 500.0, "rotary_pct": 1.0}
    assert "name-not-read" not in {one.rule for one in lint(config)}


@pytest.mark.parametrize("family", BY_LAYER_TYPE)
def test_a_scaling_without_rope_type_vanishes_by_layer_type(family):
    kind = "gemma3_text" if family == "gemma3" else "gemma3n_text" if family == "gemma3n" else family
    kind = "t5gemma2_text" if family == "t5gemma2" else kind
    config = {"model_type": kind, "rope_scaling": {"type": "linear", "factor": 4.0}}
    assert class_config(config).rope_parameters["full_attention"]["rope_type"] == "default"
    assert "not-by-layer-type" in {one.rule for one in lint(config)}
    named = config | {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}
    assert class_config(named).rope_parameters["full_attention"]["rope_type"] == "linear"
    assert "not-by-layer-type" not in {one.rule for one in lint(named)}
