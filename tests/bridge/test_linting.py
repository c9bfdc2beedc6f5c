"""The lint: every rule finds what it is for, and keeps quiet where all is well."""

import json
import re
import subprocess
import sys

import pytest

import whorl
from lint_cases import CASES, CLEAN, LLAMA, v4
from whorl import WhorlError
from whorl.bridge.linting import ORDER, Finding, examine, lint
from whorl.bridge.rules import RULES


def test_there_are_enough_rules_and_each_has_a_case():
    assert len(RULES) >= 30
    assert {rule.id for rule in RULES} == set(CASES)
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
