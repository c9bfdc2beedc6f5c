"""whorl inspect: what it prints, its JSON, its exit codes, and that the lint needs no torch."""

import io
import json
import os
import subprocess
import sys

import pytest

import whorl
from whorl.bridge import inspect
from whorl.cli.app import run

LLAMA = {"model_type": "llama", "hidden_size": 512, "num_attention_heads": 8, "num_hidden_layers": 4}
LLAMA |= {"max_position_embeddings": 4096, "rope_theta": 5e5}
GEMMA = {
    "model_type": "gemma3",
    "text_config": {
        **{"model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 7, "sliding_window": 1024},
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    },
}


@pytest.fixture
def write(tmp_path):
    def file(config, name="config.json"):
        path = tmp_path / name
        path.write_text(json.dumps(config), encoding="utf-8")
        return str(path)

    return file


def test_the_json_has_the_keys_that_are_documented(write, capsys):
    assert run(["inspect", write(GEMMA), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {
        *("dialect", "family", "standing", "trained_length", "claimed_length", "groups", "notes", "findings"),
    }
    sliding, full = found["groups"]
    assert set(full) == {"kind", "layers", "attention", "encodings", "softcap", "unsupported", "numbers"}
    assert set(full["numbers"]) == {
        *("length", "pairs", "inverse_frequencies", "attention_factor", "softmax_factor"),
        *("unturned_pairs", "float32_error"),
    }
    assert (full["kind"], full["layers"], sliding["layers"]) == ("full_attention", [5], [0, 1, 2, 3, 4, 6])
    assert full["encodings"][0]["settings"]["base"] == {"value": 1e6, "source": "class default", "field": ""}
    scaling = full["encodings"][0]["scaling"]
    assert scaling["name"] == "linear" and scaling["settings"]["factor"]["field"] == "rope_scaling.factor"
    assert {"rule", "severity", "what", "remedy"} == set(found["findings"][0])


def test_numbers_are_those_of_the_encoding():
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
    found = inspect(LLAMA | {"max_position_embeddings": 16384, "rope_scaling": yarn})
    (group,), numbers = found["groups"], found["groups"][0]["numbers"]
    rope = whorl.Rope(head_dim=64, base=5e5, scaling=whorl.Yarn(factor=4.0, original_length=4096))
    assert numbers["inverse_frequencies"] == rope.frequencies().tolist()
    assert (numbers["attention_factor"], numbers["softmax_factor"]) == (rope.attention_factor(), 1.0)
    turned = rope.frequencies() * 4096 / (2 * 3.141592653589793)
    assert numbers["unturned_pairs"] == int((turned < 1).sum()) > 0
    assert 0 < numbers["float32_error"] < 1e-2
    assert (found["trained_length"]["value"], found["claimed_length"]["value"]) == (4096, 16384)
    assert group["layers"] == [0, 1, 2, 3]


def test_dynamic_schemes_are_shown_for_the_claimed_length():
    lists = {"short_factor": [1.0] * 32, "long_factor": [2.0] * 32}
    rope = {"rope_type": "longrope", **lists, "original_max_position_embeddings": 2048}
    numbers = inspect(LLAMA | {"rope_scaling": rope})["groups"][0]["numbers"]
    assert numbers["length"] == 4096 and numbers["inverse_frequencies"][0] == 0.5


def test_the_table_names_layers_base_and_scaling(write, capsys):
    assert run(["inspect", write(GEMMA)]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0] == "gemma3 (known), transformers 4"
    assert "1 full_attention" in out and "rope, window 1024" in out and "linear 8" in out
    assert "rope, class default: head_dim=256, base=1000000.0" in out
    assert "note: head_dim=256 [filled-in]" in out


def test_layers_without_attention_or_positions_are_results(write, capsys):
    config = {"model_type": "nemotron_h", "hybrid_override_pattern": "M*-", "rope_theta": 10000}
    assert run(["inspect", write(config)]) == 0
    out = capsys.readouterr().out
    assert "1 linear_attention  no attention" in out
    assert "1 full_attention    none" in out
    assert "rope_theta on a model that does not rotate [dead-rope-fields]" in out


@pytest.mark.parametrize(
    ("config", "arguments", "code"),
    [
        (LLAMA, [], 0),
        (LLAMA, ["--lint"], 0),
        (LLAMA | {"model_type": "new"}, [], 1),
        (LLAMA | {"model_type": "new"}, ["--lint"], 1),
        (LLAMA | {"model_type": "new"}, ["--assume", "llama"], 0),
        (LLAMA | {"rope_scaling": {"type": "linear", "factor": 0.5}}, ["--lint"], 1),
        (LLAMA | {"rope_scaling": {"type": "linear", "factor": 0.5}}, ["--json"], 1),
        (LLAMA | {"rope_scaling": {"type": "linear", "factor": 2.0, "new": 1}}, [], 2),
        (LLAMA | {"rope_scaling": {"type": "linear", "factor": 2.0, "new": 1}}, ["--lint", "--json"], 2),
        (LLAMA | {"model_type": "new"}, ["--assume", "lama"], 2),
        ([1, 2], [], 2),
    ],
    ids=str,
)
def test_exit_codes_tell_clean_from_wrong_from_unreadable(config, arguments, code, write, capsys):
    assert run(["inspect", write(config), *arguments]) == code
    assert (code == 2) == bool(capsys.readouterr().err.strip())


def test_settings_that_no_encoding_takes_are_an_error(write, capsys):
    config = {"model_type": "qwen2_vl", "head_dim": 64, "num_hidden_layers": 2, "rope_theta": 1e6}
    assert run(["inspect", write(config), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["groups"][0]["numbers"] is None
    (what,) = (one["what"] for one in found["findings"] if one["rule"] == "cannot-build")
    assert what.startswith("MRope: sections must sum to")


def test_a_base_that_is_a_word_is_shown_as_it_stands(write, capsys):
    assert run(["inspect", write(LLAMA | {"rope_theta": "1e6"})]) == 1
    out = capsys.readouterr().out
    assert "'1e6'" in out
    assert "rope_theta is '1e6' [" in out


def test_what_a_file_switches_off_is_shown(write, capsys):
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024, "truncate": False}
    assert run(["inspect", write(LLAMA | {"rope_scaling": yarn})]) == 0
    assert "scaling.truncate=False" in capsys.readouterr().out


def test_what_is_not_supported_is_not_called_none(write, capsys):
    config = {
        "model_type": "bert",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "position_embedding_type": "relative_key",
    }
    assert run(["inspect", write(config)]) == 0
    assert "2 all   unsupported" in capsys.readouterr().out


def test_a_file_that_cannot_be_read_is_not_called_clean(write, capsys):
    assert run(["inspect", write({"model_type": "vit", "hidden_size": 64})]) == 2
    assert "nothing found" not in capsys.readouterr().out


def test_a_folder_and_a_file_and_a_pipe_are_the_same(write, tmp_path, capsys, monkeypatch):
    path, outs = write(GEMMA), []
    for given in (path, str(tmp_path), "-"):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(json.dumps(GEMMA).encode())))
        assert run(["inspect", given, "--json"]) == 0
        outs.append(capsys.readouterr().out)
    assert outs[0] == outs[1] == outs[2]


def test_a_binary_file_in_a_pipe_is_told_from_broken_text(capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"GGUF" + bytes(60))))
    assert run(["inspect", "-"]) == 2
    assert "the pipe holds a gguf file, of which only parts are read. Pass its path." in capsys.readouterr().err


def test_the_lint_command_imports_no_torch(write):
    code = (
        "import sys\n"
        "from whorl.cli.app import run\n"
        "code = run(['inspect', sys.argv[1], '--lint'])\n"
        "print(code, sorted({'torch', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, write(GEMMA)], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    assert done.stdout.splitlines()[-1] == "0 []"


# --- folders that transformers writes

SMALL = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 4, "vocab_size": 32}
IDS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
SAVED = {
    "LlamaConfig": ({}, ["rope"] * 4),
    "Qwen2Config": ({"num_key_value_heads": 4}, ["rope"] * 4),
    "MistralConfig": ({"sliding_window": 16}, ["rope window"] * 4),
    "Gemma3TextConfig": ({"sliding_window": 8}, ["rope window"] * 4),
    "Cohere2Config": ({"num_key_value_heads": 4, "sliding_window": 8}, ["rope window"] * 3 + ["none"]),
    "GPTNeoXConfig": ({}, ["rope"] * 4),
    "Phi3Config": ({"num_key_value_heads": 4}, ["rope"] * 4),
    "SmolLM3Config": ({"num_key_value_heads": 4}, ["rope"] * 3 + ["none"]),
    "Lfm2Config": ({"layer_types": ["conv", "conv", "full_attention", "conv"]}, ["-", "-", "rope", "-"]),
    "GptOssConfig": ({"head_dim": 16, "num_key_value_heads": 4}, ["rope window", "rope"] * 2),
    "BloomConfig": ({"n_layer": 4, "n_head": 4}, ["alibi"] * 4),
    "GPT2Config": ({"n_layer": 4, "n_head": 4, "n_embd": 64}, ["learned"] * 4),
    "LlavaConfig": (None, ["rope"] * 32),
}


@pytest.mark.parametrize("name", SAVED)
def test_folders_that_transformers_saves_are_read(name, tmp_path, capsys):
    transformers = pytest.importorskip("transformers", reason="missing package: transformers is not installed")
    settings, expected = SAVED[name]
    own = {} if settings is None else SMALL | IDS | settings
    getattr(transformers, name)(**own).save_pretrained(tmp_path)
    model = whorl.read(tmp_path)
    by_layer = {}
    for group in model.groups:
        names = " ".join(one.name for one in group.layers.encodings) or "none"
        by_layer |= dict.fromkeys(group.indices, names if group.layers.attention else "-")
    assert [by_layer[i] for i in sorted(by_layer)] == expected
    assert model.standing == "known"
    assert run(["inspect", str(tmp_path)]) == 0
    assert run(["inspect", str(tmp_path), "--lint", "--json"]) == 0
    capsys.readouterr()
