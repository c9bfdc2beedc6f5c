"""``whorl diff``: what it prints, and its exit codes."""

import io
import json

import pytest

from optional import optional

GIVEN = {"model_type": "qwen2", "hidden_size": 512, "num_attention_heads": 8, "num_hidden_layers": 2}
GIVEN |= {"max_position_embeddings": 32768, "rope_theta": 1e6}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}


@pytest.fixture
def written(tmp_path):
    def written(name, **fields):
        path = tmp_path / name
        path.write_text(json.dumps(GIVEN | fields))
        return str(path)

    return written


def test_exit_codes(call, written):
    plain, other = written("a.json"), written("b.json", rope_theta=1e4)
    assert call("diff", plain, plain)[0] == 0
    code, out, _ = call("diff", plain, other)
    assert code == 1 and "base: 1e+06 against 10000" in out
    code, _, err = call("diff", plain, written("c.json", rope_scaling={"rope_type": "x"}))
    assert code == 2 and "rope_type" in err


def test_programs_against_the_first(call, written):
    path = written("a.json", rope_scaling={**YARN, "attention_factor": 1.0})
    code, out, _ = call("diff", path, "--as", "transformers5,vllm,transformers4")
    assert code == 1
    assert "as transformers5 against" in out and out.count("factor on cos and sin: 1 against 1.13863") == 1
    assert call("diff", path, path, "--as", "vllm")[0] == 0
    assert call("diff", path, path, "--as", "vllm,transformers5")[0] == 1


def test_a_program_that_refuses_does_not_silence_the_others(call, written):
    path = written("a.json", rope_scaling={**YARN, "factor": None})
    code, out, err = call("diff", path, "--as", "transformers5,vllm,transformers4")
    assert code == 2 and "without a factor" in err and "as transformers4" in out


def test_misuse(call, written):
    path = written("a.json")
    assert call("diff", path)[0] == 2
    assert "two programs" in call("diff", path, "--as", "vllm")[2]
    assert "3 programs" in call("diff", path, path, "--as", "vllm,mlx,sglang")[2]


def test_json_and_picture(call, written, tmp_path):
    optional("matplotlib")
    path = written("a.json", rope_scaling=YARN)
    picture = tmp_path / "apart.svg"
    code, out, _ = call("diff", path, written("b.json"), "--json", "--picture", str(picture))
    found = json.loads(out)
    assert code == 1 and found["equal"] is False
    assert found["differences"][0]["groups"][0]["rotations"][0]["pairs"] == [32, 32]
    assert "<svg" in picture.read_text()


def test_a_pipe_is_read_once_for_all_programs(call, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(json.dumps(GIVEN).encode())))
    code, out, err = call("diff", "-", "--as", "transformers5,vllm,sglang")
    assert (code, err) == (0, "") and out.count("equal\n") == 4 and "a as transformers5 against a as sglang" in out


def test_json_calls_nothing_equal_that_could_not_be_read(call, written):
    path = written("a.json")
    code, out, err = call("diff", path, "--as", "transformers5,vlm", "--json")
    assert code == 2 and json.loads(out) == {"equal": None, "differences": [], "refused": [err.strip()]}
    code, out, _ = call("diff", path, written("b.json", rope_theta=1e4), "--json")
    assert code == 1 and json.loads(out)["equal"] is False and json.loads(out)["refused"] == []


def test_one_refusal_of_many_programs_is_said_once(call, written):
    code, out, err = call("diff", written("a.json", head_dim=63), "--as", "transformers5,vllm,sglang")
    assert (code, out) == (2, "") and err.count("\n") == 1


def test_a_picture_that_cannot_be_drawn_is_refused_before_anything_is_said(call, written):
    path = written("a.json")
    assert call("diff", path, path, "--picture", "apart.txt")[:2] == (2, "")


def test_an_unknown_family_is_said_in_one_line(call, written):
    path = written("a.json", model_type="mine")
    code, _, err = call("diff", path, "--as", "transformers5,vllm,sglang")
    assert code == 0 and err.startswith("read: model_type 'mine' is of an unknown family") and err.count("\n") == 1
    assert call("diff", path, "--as", "transformers5,vllm", "--assume", "llama")[2] == ""


def test_settings_are_words(call, written):
    window = written("a.json", model_type="mistral", sliding_window=4096)
    assert (
        "window: size 4096 against none"
        in call("diff", window, written("b.json", model_type="mistral", sliding_window=None))[1]
    )
