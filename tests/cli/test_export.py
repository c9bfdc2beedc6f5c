"""``whorl export``: what it prints and writes, and its exit codes."""

import json

import pytest

from optional import optional

GIVEN = {"model_type": "qwen2", "hidden_size": 512, "num_attention_heads": 8, "num_hidden_layers": 2}
GIVEN |= {"max_position_embeddings": 64, "rope_theta": 1e6}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(GIVEN | {"rope_scaling": YARN}))
    return str(file)


def test_a_config_goes_to_stdout_or_a_file(call, path, tmp_path):
    code, out, err = call("export", path, "--for", "hf-v5")
    assert code == 0 and err == "" and json.loads(out)["rope_parameters"]["rope_theta"] == 1e6
    new = tmp_path / "new.json"
    assert call("export", path, "--for", "hf-v5", "--out", str(new)) == (0, "", "")
    assert json.loads(new.read_text()) == json.loads(out)
    assert call("export", path, "--for", "hf-v5", "--out", str(new))[0] == 2


def test_flags_and_json(call, path, tmp_path):
    for given in (path, str(tmp_path)):  # a server is given the folder
        assert call("export", given, "--for", "vllm")[1] == f"vllm serve {tmp_path} --max-model-len 64\n"
    found = json.loads(call("export", path, "--for", "llama.cpp", "--json")[1])
    assert found["target"] == "llama.cpp" and "num_ctx" in found["notes"][-1]
    assert "note: Ollama" in call("export", path, "--for", "llama.cpp")[2]


def test_exit_codes(call, path, tmp_path):
    code, out, err = call("export", path, "--for", "params")
    assert (code, out) == (1, "") and "cannot say this" in err
    assert call("export", path, "--for", "nowhere")[0] == 2
    assert call("export", str(tmp_path / "none.json"), "--for", "vllm")[0] == 2


@pytest.mark.parametrize("target", ["gguf", "llama.cpp", "megatron", "params"])
@pytest.mark.parametrize(
    "given",
    [GIVEN | {"model_type": "bloom", "n_head": 8, "n_layer": 2}, GIVEN | {"model_type": "falcon", "alibi": True}],
)
def test_a_model_that_a_target_has_no_words_for_is_refused_and_not_unread(call, tmp_path, target, given):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(given))
    code, out, err = call("export", str(file), "--for", target)
    assert (code, out) == (1, "") and err.startswith("export: ") and err.count("\n") == 1


def test_an_unknown_family_is_said_in_one_line(call, tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(GIVEN | {"model_type": "mine"}))
    code, _, err = call("export", str(file), "--for", "vllm")
    assert code == 0 and err.startswith("read: model_type 'mine' is of an unknown family") and err.count("\n") == 1


def test_onnx_is_a_file(call, path, tmp_path):
    optional("onnx")
    assert "--out" in call("export", path, "--for", "onnx")[2]
    file = tmp_path / "rotary.onnx"
    assert call("export", path, "--for", "onnx", "--out", str(file))[0] == 0
    assert file.stat().st_size > 64 * 32 * 4 * 2
