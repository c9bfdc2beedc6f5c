"""Other JSON files of a model's folder: refused by what they are, never with advice to make a model of them."""

import json

import pytest

import whorl
from whorl import WhorlError

FILES = {
    "an adapter": ({"peft_type": "LORA", "base_model_name_or_path": "org/base", "r": 8}, "of that model, 'org/base'"),
    "Medusa heads": ({"medusa_num_heads": 3, "base_model_name_or_path": "org/base"}, "of that model, 'org/base'"),
    "an index": ({"metadata": {}, "weight_map": {"a": "b.safetensors"}}, "an index of weight files"),
    "a tokenizer": ({"tokenizer_class": "LlamaTokenizer", "model_max_length": 4096}, "the config of a tokenizer"),
    "images": ({"image_processor_type": "CLIPImageProcessor"}, "the config of an image processor"),
    "generation": ({"bos_token_id": 1, "max_length": 20}, "no field here describes a model"),
    "nothing": ({}, "no field here describes a model"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_no_model_is_named(name):
    config, said = FILES[name]
    with pytest.raises(WhorlError) as found:
        whorl.read(config)
    assert said in str(found.value) and "Pass the config.json of" in str(found.value)
    assert "rope_theta" not in str(found.value)


def test_the_folder_of_an_adapter_names_its_base_model(tmp_path):
    (tmp_path / "adapter_config.json").write_text(json.dumps(FILES["an adapter"][0]))
    (tmp_path / "adapter_model.safetensors").write_bytes(b"")
    with pytest.raises(WhorlError, match=r"whose positions are those of its base model.*'org/base'"):
        whorl.read(tmp_path)


def test_a_model_that_names_its_tokenizer_is_read():
    config = {"tokenizer_class": "T", "hidden_size": 512, "num_attention_heads": 8, "rope_theta": 1e4}
    assert whorl.read(config, assume="llama").groups[0].kind == "all"


@pytest.mark.parametrize("name", ["model.gguf", "model.safetensors"])
def test_a_pointer_of_git_lfs_is_named(tmp_path, name):
    (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 123\n")
    with pytest.raises(WhorlError, match=r"is a pointer of Git LFS and not the file\. Fetch it"):
        whorl.read(tmp_path / name)
