"""``whorl advise``: what it prints, and its exit codes."""

import json

import pytest

GIVEN = {"model_type": "qwen2", "hidden_size": 512, "num_attention_heads": 8, "num_hidden_layers": 2}
GIVEN |= {"max_position_embeddings": 32768, "rope_theta": 1e6}


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(GIVEN))
    return str(file)


def test_the_change_for_one_program(call, path):
    code, out, err = call("advise", path, "--length", "131072", "--for", "llama.cpp")
    assert code == 0 and err == ""
    assert out.startswith("for 131072 positions: yarn by 4\n")
    assert out.rstrip().endswith("--ctx-size 131072 --rope-scaling yarn --rope-scale 4 --yarn-orig-ctx 32768")
    assert "hf-overrides" not in out


def test_exit_codes(call, path):
    assert call("advise", path, "--length", "131072")[0] == 0
    assert call("advise", path, "--length", "131072", "--for", "params")[0] == 1
    assert call("advise", path, "--length", "131072", "--for", "nobody")[0] == 2
    assert call("advise", path, "--length", "0")[0] == 2


def test_json(answer, path):
    found = answer("advise", path, "--length", "65536", "--data-length", "16384")
    assert found["factor"] == 4.0 and found["scheme"] == "yarn" and "params" in found["refusals"]
