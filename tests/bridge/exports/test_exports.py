"""Exports: every config of the tests read back as its target has it, and the cases that people have met."""

import json
import math
import warnings

import pytest

import whorl
from gguf_files import write_gguf
from hf_configs import LISTS, RELEASED
from literal_configs import literal_configs
from model_cases import CASES
from whorl.bridge import InexpressibleError
from whorl.bridge.difference import compare
from whorl.bridge.exports import TARGETS, origin_of
from whorl.bridge.programs import program_of
from whorl.dialects.families import FAMILIES, UNROTATED
from whorl.errors import WhorlError

CONFIGS = {name: given for name, (given, _) in RELEASED.items()} | {name: case.config for name, case in CASES.items()}
SIZES = {"hidden_size": 512, "num_attention_heads": 8, "num_hidden_layers": 2}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
# The field or the setting that a refusal has to name, one of them at least.
NAMES = (
    *("model_type", "rope_parameters", "rope_scaling", "attention_factor", "scaling", "window", "layers", "rotation"),
    *("beside the rotation", "cosines", "on cos and sin", "head_dim", "rope_type", "axial_rope"),
)


def config(family="llama", **fields):
    return {"model_type": family, **SIZES, "max_position_embeddings": 32768, **fields}


# --- round trips


@pytest.mark.filterwarnings("ignore::whorl.dialects.families.UnknownFamily")
@pytest.mark.parametrize("target", ["hf-v4", "hf-v5", "hf-both"])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_is_the_same_in_every_schema(name, target):
    written = json.loads(whorl.export(CONFIGS[name], target).text)
    assert compare(whorl.read(CONFIGS[name]).reading, whorl.read(written).reading).equal
    given = written
    while part := next((given[one] for one in ("text_config", "thinker_config", "llm_cfg") if one in given), None):
        given = part
    assert target != "hf-v4" or given.get("rope_parameters") is None or "rope_parameters" in str(CONFIGS[name])
    assert target != "hf-v5" or given.get("rope_scaling") is None or "rope_scaling" in str(CONFIGS[name])


SCALED = (
    {},
    {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 4.0}},
    {"rope_theta": 5e5, "rope_scaling": YARN | {"attention_factor": 1.1}},
    {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3}},
    {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 5e5, "factor": 2.0}},
)
SCHEMAS = ("hf-v4", "hf-v5", "hf-both")


def round_trips(configs, target):
    """(how many configs come back from a target as they were, how many it refuses by name), of those that are read."""
    same = refused = 0
    for given in configs:
        try:
            reading = whorl.read(given).checked().reading
        except WhorlError:
            continue
        if not reading.dialect.startswith("transformers"):
            continue
        try:
            draft = whorl.export(given, target)
        except WhorlError as error:
            assert any(word in str(error) for word in NAMES), (given, error)
            refused += 1
            continue
        found = draft.readings["llama.cpp"] if target == "gguf" else whorl.read(json.loads(draft.text)).reading
        assert compare(reading, found, layouts=target != "gguf").equal, given
        same += 1
    return same, refused


@pytest.mark.large
@pytest.mark.filterwarnings("ignore::whorl.dialects.families.UnknownFamily")
@pytest.mark.parametrize("scaling", range(len(SCALED)))
def test_a_config_of_every_family_comes_back_or_is_refused_by_name(scaling):
    sizes = {**SIZES, "max_position_embeddings": 32768, **SCALED[scaling]}
    configs = [{"model_type": name, **sizes} for name in (*FAMILIES, *UNROTATED)]
    for target in (*SCHEMAS, "gguf"):
        same, refused = round_trips(configs, target)
        assert same > (4 if target == "gguf" else 130) and (target == "gguf" or refused < 20), target


@pytest.mark.large
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("target", [*SCHEMAS, "gguf"])
def test_every_config_in_the_text_of_the_tests_comes_back_or_is_refused_by_name(target):
    same, refused = round_trips(literal_configs(), target)
    assert same > (40 if target == "gguf" else 100) and (target == "gguf" or refused < 10)


@pytest.mark.filterwarnings("ignore::whorl.dialects.families.UnknownFamily")
@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_is_the_same_in_gguf_keys_or_refused_by_name(name, tmp_path):
    try:
        draft = whorl.export(CONFIGS[name], "gguf")
    except WhorlError as error:
        assert any(word in str(error) for word in NAMES), error
        return
    architecture = draft.data["metadata"]["general.architecture"]
    prefix = f"{architecture}."
    fields = {key.removeprefix(prefix): one for key, one in draft.data["metadata"].items() if key.startswith(prefix)}
    path = write_gguf(tmp_path / "model.gguf", architecture, fields, draft.data["tensors"])
    assert compare(whorl.read(CONFIGS[name]).reading, whorl.read(path).reading).equal


def test_enough_configs_are_expressed():
    def expressed(target):
        good = 0
        for given in CONFIGS.values():
            try:
                whorl.export(given, target)
                good += 1
            except WhorlError:
                pass
        return good

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        counts = {target: expressed(target) for target in ("gguf", "vllm", "megatron", "params")}
    assert counts["gguf"] >= 26 and counts["vllm"] >= 74 and counts["megatron"] >= 30 and counts["params"] >= 15


@pytest.mark.filterwarnings("ignore::whorl.dialects.families.UnknownFamily")
@pytest.mark.parametrize("target", [*TARGETS])
@pytest.mark.parametrize("name", ["llama 3.1", "qwen2.5 with yarn", "deepseek v3", "gpt-oss", "phi-4 mini"])
def test_every_target_gives_what_it_was_given_or_refuses_with_numbers(name, target):
    try:
        draft = whorl.export(CONFIGS[name], target)
    except InexpressibleError as error:
        assert error.difference is None or error.difference.to_dict()["equal"] is False
        assert any(word in str(error) for word in NAMES)
        return
    origin = origin_of(CONFIGS[name], None, None)
    for found in draft.readings.values():
        assert compare(origin.reading, found, layouts=not draft.moves_rows).equal
    assert draft.text and json.loads(json.dumps(draft.data))


# --- cases that people have met


def test_neox_has_both_schemas_with_a_scaling():
    given = config("gpt_neox", rotary_emb_base=5e5, rope_scaling={"type": "linear", "factor": 4.0})
    both = whorl.export(given, "hf-both").data
    assert both["rotary_emb_base"] == both["rope_parameters"]["rope_theta"] == 5e5
    assert whorl.diff(given, both).equal
    with pytest.raises(WhorlError, match="both given and differ"):
        whorl.read(both | {"rotary_emb_base": 1e4})


def test_a_form_that_version_4_cannot_read_is_refused_and_not_unread():
    given = config("phi3", rope_theta=1e4, rope_scaling={"type": "linear", "factor": 4.0})
    with pytest.raises(InexpressibleError, match=r"hf-v4 cannot say this.*type 'linear' has no short_factor"):
        whorl.export(given, "hf-v4")
    given = config(rope_parameters={"rope_type": "proportional", "rope_theta": 1e4})
    with pytest.raises(InexpressibleError, match="rope_type 'proportional' is not known to transformers 4"):
        whorl.export(given, "hf-both")


def test_what_version_5_works_out_is_written_for_version_4():
    beside = config(rope_theta=1e4, original_max_position_embeddings=8192, rope_scaling={"type": "yarn", "factor": 4.0})
    for target in ("hf-v4", "hf-both"):
        written = whorl.export(beside, target).data
        assert written["rope_scaling"]["original_max_position_embeddings"] == 8192
    written = whorl.export(config(rope_theta=1e4, rope_scaling={**YARN, "factor": None}), "hf-v4").data
    assert written["rope_scaling"]["factor"] == 4.0  # 32,768 / 8,192


def test_a_version_5_file_of_llama_3_1_for_version_4():
    given = config(rope_parameters={"rope_type": "llama3", "rope_theta": 500000.0, **LLAMA3})
    old = whorl.export(given, "hf-v4").data
    assert old["rope_theta"] == 500000.0 and old["rope_scaling"]["factor"] == 8.0 and "rope_parameters" not in old
    both = whorl.export(given, "hf-both").data
    assert both["rope_parameters"]["rope_theta"] == both["rope_theta"] == 500000.0
    assert [one.severity for one in whorl.bridge.lint(both)] == []
    for program in ("transformers4", "transformers5", "vllm", "sglang", "llama.cpp", "mlx"):
        assert whorl.diff(given, both, programs=("transformers5", program)).equal, program


def test_an_attention_factor_reaches_the_servers():
    given = config("qwen2", rope_theta=1e6, rope_scaling={**YARN, "factor": 64.0, "attention_factor": 1.0})
    factor = 1 / (0.1 * math.log(64) + 1)
    for target in ("vllm", "sglang"):
        draft = whorl.export(given, target)
        assert draft.data["overrides"]["rope_parameters"]["attn_factor"] == pytest.approx(factor)
        assert draft.data["overrides"]["rope_parameters"]["rope_theta"] == 1e6  # an override replaces the whole dict
    assert "--max-model-len 32768 --hf-overrides '{" in whorl.export(given, "vllm").text
    flags = whorl.export(given, "llama.cpp").data["arguments"]
    assert f"qwen2.rope.scaling.attn_factor=float:{factor:.9g}" in flags
    assert whorl.export(given, "gguf").data["metadata"]["qwen2.rope.scaling.attn_factor"] == pytest.approx(factor)


def test_overrides_are_nested_where_the_text_model_is():
    text = config("qwen2", rope_theta=1e6, rope_scaling={**YARN, "attention_factor": 1.0})
    draft = whorl.export({"model_type": "mine", "text_config": text}, "vllm")
    at = draft.data["arguments"].index("--hf-overrides") + 1
    assert list(json.loads(draft.data["arguments"][at])) == ["text_config"]


def test_a_file_that_a_server_reads_as_it_is_needs_a_length_alone():
    given = config(rope_theta=1e4)
    assert whorl.export(given, "vllm").text == "vllm serve MODEL --max-model-len 32768"
    assert whorl.export(given, "sglang", length=4096).text.endswith("--context-length 4096")
    draft = whorl.export(given, "llama.cpp")
    assert draft.text == "llama-server --model MODEL.gguf --ctx-size 32768"
    assert "PARAMETER num_ctx 32768" in draft.notes[-1]


def test_phi_4_mini_in_version_5_form_to_gguf():
    rope = {"rope_type": "longrope", **LISTS, "rope_theta": 10000.0, "partial_rotary_factor": 0.75}
    rope["original_max_position_embeddings"] = 4096
    given = {"model_type": "phi3", "hidden_size": 3072, "num_attention_heads": 24, "num_hidden_layers": 32}
    given |= {"max_position_embeddings": 131072, "sliding_window": 262144, "rope_parameters": rope}
    draft = whorl.export(given, "gguf")
    assert {name: len(one) for name, one in draft.data["tensors"].items()} == {
        "rope_factors_long.weight": 48,
        "rope_factors_short.weight": 48,
    }
    assert draft.data["metadata"]["phi3.rope.scaling.attn_factor"] == pytest.approx(1.1902, abs=5e-5)
    with pytest.raises(InexpressibleError, match=r"vllm cannot say this.* cosines up to .* within 4096 positions"):
        whorl.export(given, "vllm")
    assert whorl.export(given, "vllm", length=4096).text == "vllm serve MODEL --max-model-len 4096"
    old = whorl.export(given, "hf-v4").data
    assert set(old["rope_scaling"]) == {"type", "short_factor", "long_factor"}  # all that its class accepts
    assert old["original_max_position_embeddings"] == 4096 and old["partial_rotary_factor"] == 0.75


def test_telechat3_keeps_its_length():
    rope = {"type": "telechat3-yarn", "factor": 4.0, "original_max_position_embeddings": 8192}
    given = config("telechat3", rope_theta=1e6, rope_scaling=rope)
    assert whorl.export(given, "vllm").text == "vllm serve MODEL --max-model-len 32768"


def test_ext_factor_is_never_written_as_factor():
    written = whorl.export(config("qwen2", rope_theta=1e6, rope_scaling=YARN), "gguf").data["metadata"]
    assert written["qwen2.rope.scaling.factor"] == 4.0
    assert not [key for key in written if "ext_factor" in key]


def test_betas_that_llama_cpp_does_not_read_are_written_as_divisors_or_refused():
    yarn = {**YARN, "beta_fast": 16.0, "truncate": False}
    draft = whorl.export(config("llama", rope_theta=1e6, rope_scaling=yarn), "gguf")
    assert list(draft.data["tensors"]) == ["rope_freqs.weight"]
    with pytest.raises(InexpressibleError, match=r"scaling.beta_fast 32.0 against 16.0.*cosines up to"):
        whorl.export(config("qwen2", rope_theta=1e6, rope_scaling=yarn), "gguf")
    with pytest.raises(InexpressibleError, match="No flag sets a tensor"):
        whorl.export(config("llama", rope_theta=1e6, rope_scaling=yarn), "llama.cpp")


def test_what_no_key_can_say_is_not_promised_of_a_file():
    given = config("mistral", sliding_window=4096, rope_theta=1e4)
    for target in ("llama.cpp", "gguf"):
        with pytest.raises(InexpressibleError, match=r"window none against size 4096. llama.cpp has no key"):
            whorl.export(given, target)


def test_gemma_3_has_a_base_for_each_kind_in_both_schemas():
    given = config("gemma3_text", head_dim=256, num_hidden_layers=6, sliding_window=512, rope_theta=1e6)
    given["rope_scaling"] = {"rope_type": "linear", "factor": 8.0}
    new = whorl.export(given, "hf-v5").data["rope_parameters"]
    assert {kind: one["rope_theta"] for kind, one in new.items()} == {"full_attention": 1e6, "sliding_attention": 1e4}
    both = whorl.export(given, "hf-both").data
    assert both["rope_local_base_freq"] == 1e4 and both["rope_scaling"]["factor"] == 8.0


def test_rope_by_layer_type_has_no_form_in_version_4():
    kinds = {"full_attention": {"rope_type": "default", "rope_theta": 1e6}}
    kinds["sliding_attention"] = {"rope_type": "default", "rope_theta": 1e4}
    given = config("laguna", head_dim=64, layer_types=["full_attention", "sliding_attention"], rope_parameters=kinds)
    with pytest.raises(InexpressibleError, match="rope_parameters differs by layer type"):
        whorl.export(given, "hf-v4")


def test_megatron_arguments_are_words():
    yarn = {**YARN, "attention_factor": 1.2, "truncate": False}
    draft = whorl.export(config("qwen2", rope_theta=1e6, rope_scaling=yarn), "megatron")
    assert "--position-embedding-type yarn" in draft.text
    assert "--no-yarn-correction-range-round-to-int" in draft.text
    assert draft.data["mscale"] == pytest.approx(0.2 / (0.1 * math.log(4)))
    assert "--mscale 1.0 \\\n" in whorl.export(config("qwen2", rope_theta=1e6, rope_scaling=YARN), "megatron").text
    llama3 = whorl.export(config(rope_theta=5e5, rope_scaling={"rope_type": "llama3", **LLAMA3}), "megatron")
    assert "--use-rope-scaling \\\n--rope-scaling-factor 8.0" in llama3.text


def test_params_of_meta():
    draft = whorl.export(config(rope_theta=5e5, rope_scaling={"rope_type": "llama3", **LLAMA3}), "params")
    assert draft.data["use_scaled_rope"] is True and draft.data["rope_theta"] == 500000.0
    assert "pair neighbours" in draft.notes[-1]
    with pytest.raises(InexpressibleError, match=r"scaling none against yarn"):
        whorl.export(config(rope_theta=5e5, rope_scaling=YARN), "params")


# --- other dialects, and bad calls


def test_a_gguf_file_becomes_a_config(tmp_path):
    keys = {"context_length": 131072, "embedding_length": 4096, "block_count": 4, "attention.head_count": 32}
    keys |= {"rope.freq_base": 1e6, "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}
    keys |= {"rope.scaling.original_context_length": 32768}
    path = write_gguf(tmp_path / "model.gguf", "qwen2", keys)
    written = whorl.export(path, "hf-v5").data
    assert written["rope_parameters"]["factor"] == 4.0 and written["model_type"] == "qwen2"
    assert whorl.diff(path, written).equal


GGUF_SIZES = {"embedding_length": 4096, "attention.head_count": 32, "context_length": 131072}
GGUF_YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 32.0, "rope.scaling.original_context_length": 4096}


@pytest.mark.parametrize(
    ("architecture", "keys"),
    [
        ("gpt-oss", {"block_count": 4, "attention.sliding_window": 128, "rope.freq_base": 150000.0, **GGUF_YARN}),
        ("gemma3", {"block_count": 4, "attention.sliding_window": 1024, "rope.freq_base": 1e6}),  # windows alone
        ("gemma3", {"block_count": 12, "attention.sliding_window": 1024, "rope.freq_base": 1e6}),
        ("qwen2", {"block_count": 4, "rope.freq_base": 1e6, **GGUF_YARN}),
    ],
)
@pytest.mark.parametrize("target", ["hf-v5", "hf-both", "vllm", "gguf"])
def test_a_gguf_file_becomes_what_other_programs_read(architecture, keys, target, tmp_path):
    path = write_gguf(tmp_path / "model.gguf", architecture, {**GGUF_SIZES, "attention.key_length": 64, **keys})
    draft = whorl.export(path, target)
    for found in draft.readings.values():
        assert compare(whorl.read(path).reading, found, layouts=False).equal
    if target == "gguf":
        assert draft.data["metadata"]["general.architecture"] == architecture


def test_params_of_meta_become_a_config():
    given = {"dim": 4096, "n_layers": 2, "n_heads": 32, "norm_eps": 1e-5, "vocab_size": 128256, "multiple_of": 1024}
    given |= {"rope_theta": 500000.0, "use_scaled_rope": True, "max_seq_len": 131072}
    written = whorl.export(given, "hf-both").data
    assert written["rope_scaling"]["rope_type"] == "llama3" and written["head_dim"] == 128


@pytest.mark.parametrize(
    ("kwargs", "said"),
    [
        ({"target": "ollama"}, "unknown target of export"),
        ({"target": "onnx"}, "export_onnx"),
        ({"target": "vllm", "length": 0}, "length must be a positive integer"),
        ({"target": "vllm", "length": 65536}, "whorl advise --length 65536"),
        ({"target": "hf-v5", "length": 4096}, "for programs that serve"),
    ],
)
def test_bad_calls(kwargs, said):
    with pytest.raises(WhorlError, match=said):
        whorl.export(config(rope_theta=1e4), **kwargs)


def test_schemas_that_agree_are_read_and_others_refused():
    given = whorl.export(config(rope_theta=1e6, rope_scaling=YARN), "hf-both").data
    assert whorl.read(given).groups[0].encoding.config.scaling.factor == 4.0
    for wrong in ({"rope_theta": 1e4}, {"rope_scaling": {**YARN, "factor": 2.0}}, {"rope_theta": None}):
        with pytest.raises(WhorlError, match="both given and differ"):
            whorl.read(given | wrong)


def test_programs_read_their_own_exports():
    given = config("qwen2", rope_theta=1e6, rope_scaling={**YARN, "attention_factor": 1.1})
    overrides = whorl.export(given, "sglang").data["overrides"]
    served = {key: one for key, one in given.items() if key not in ("rope_scaling", "rope_theta")} | overrides
    assert compare(whorl.read(given).reading, program_of("sglang").read(served, None, None)).equal
