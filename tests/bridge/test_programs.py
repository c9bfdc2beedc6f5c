"""What each program makes of a config: by hand from the sources that the facts name."""

import math
import runpy
from pathlib import Path

import pytest

from hf_configs import LISTS
from optional import optional
from whorl import Rope
from whorl.bridge.model import Model
from whorl.bridge.programs import HEADER, PROGRAMS, facts, markdown, read_as, versions_markdown
from whorl.bridge.programs.transformers import FIRST_IN_5
from whorl.dialects.families import FAMILIES
from whorl.errors import WhorlError

SIZES = {"hidden_size": 512, "num_attention_heads": 8, "num_hidden_layers": 2}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}
LONG = {"model_type": "phi3", "head_dim": 96, **SIZES, "max_position_embeddings": 131072, "rope_theta": 1e4}


def config(family="llama", **fields):
    return {"model_type": family, **SIZES, "max_position_embeddings": 32768, **fields}


def rope_of(given, program, **kwargs):
    return next(
        one for one in Model(read_as(given, program, **kwargs)).groups[0].encoding.modules() if isinstance(one, Rope)
    )


def claimed(given, program):
    length = read_as(given, program).claimed_length
    return None if length is None else length.value


def test_a_version_5_file_loses_base_and_scaling_under_version_4():
    given = config(rope_parameters={"rope_type": "llama3", "rope_theta": 500000.0, **LLAMA3})
    new, old = rope_of(given, "transformers5"), rope_of(given, "transformers4")
    assert (new.config.base, new.config.scaling.name) == (500000.0, "llama3")
    assert (old.config.base, old.config.scaling) == (10000.0, None)
    assert rope_of(given, "mlx").config.base == 10000.0


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("transformers4", 1.0),
        ("transformers5", 1.0),
        *((name, 1.4159) for name in ("vllm", "sglang", "llama.cpp", "mlx")),
    ],
)
def test_an_attention_factor_is_dropped_by_who_does_not_read_it(program, expected):
    yarn = {**YARN, "factor": 64.0, "attention_factor": 1.0}
    rope = rope_of(config("qwen2", rope_theta=1e6, rope_scaling=yarn), program)
    assert rope.attention_factor() == pytest.approx(expected, abs=5e-5)


def test_attn_factor_multiplies_where_it_is_read():
    given = config(rope_theta=1e4, rope_scaling={**YARN, "attn_factor": 0.5})
    own = 0.1 * math.log(4) + 1
    for program, expected in {"transformers5": own, "vllm": own / 2, "sglang": own / 2, "mlx": own}.items():
        assert rope_of(given, program).attention_factor() == pytest.approx(expected)


def test_vllm_leaves_yarns_factor_out_where_the_file_says_so():
    yarn = {**YARN, "apply_yarn_scaling": False}
    assert rope_of(config(rope_theta=1e4, rope_scaling={**yarn, "attn_factor": 0.5}), "vllm").attention_factor() == 0.5
    mixed = config("qwen2", rope_theta=1e4, rope_scaling={**yarn, "mrope_section": [8, 12, 12]})
    assert rope_of(mixed, "vllm").attention_factor() == pytest.approx(0.1 * math.log(4) + 1)


def test_rope_scaling_comes_before_rope_parameters_in_version_5():
    both = config(rope_scaling=YARN, rope_parameters={**YARN, "factor": 2.0, "rope_theta": 5e5})
    rope = rope_of(both, "transformers5")
    assert (rope.config.scaling.factor, rope.config.base) == (4.0, 10000.0)  # and the base inside the other is gone


def test_mscales_count_by_program():
    given = config(rope_theta=1e4, rope_scaling={**YARN, "mscale": 2.0, "mscale_all_dim": 1.0})
    g = [0.1 * weight * math.log(4) + 1 for weight in (1, 2)]
    expected = {"transformers5": g[1] / g[0], "vllm": g[0], "sglang": g[1] / g[0], "mlx": g[1] / g[0]}
    for program, factor in expected.items():
        assert rope_of(given, program).attention_factor() == pytest.approx(factor)


def test_one_mscale_alone_counts_in_mlx_alone():
    given = config(rope_theta=1e4, rope_scaling={**YARN, "mscale_all_dim": 1.0})
    own = 0.1 * math.log(4) + 1
    factors = {name: rope_of(given, name).attention_factor() for name in ("transformers5", "vllm", "sglang", "mlx")}
    assert factors == pytest.approx({"transformers5": own, "vllm": own, "sglang": own, "mlx": 1.0})


def test_deepseek_scales_the_softmax_in_vllm_and_sglang():
    yarn = {
        "type": "yarn",
        "factor": 40,
        "original_max_position_embeddings": 4096,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    }
    given = {"model_type": "deepseek_v3", **SIZES, "qk_rope_head_dim": 64, "max_position_embeddings": 163840}
    given |= {"rope_theta": 1e4, "rope_scaling": yarn}
    for program in ("transformers5", "vllm", "sglang", "mlx", "llama.cpp"):
        rope = rope_of(given, program)
        assert rope.attention_factor() == pytest.approx(1.0)
        assert rope.softmax_factor() == pytest.approx((0.1 * math.log(40) + 1) ** 2), program
    yarn["apply_yarn_scaling"] = False
    assert rope_of(given, "vllm").softmax_factor() == 1.0


def test_dynamic_scaling_has_three_meanings():
    given = config(rope_theta=1e4, rope_scaling={"rope_type": "dynamic", "factor": 4.0})
    assert rope_of(given, "transformers5").config.scaling.name == "dynamic_ntk"
    assert rope_of(given, "vllm").config.scaling is None
    assert rope_of(given, "sglang").config.scaling.factor == 4 * 4 - 3
    trained = config(
        rope_theta=1e4, rope_scaling={"rope_type": "dynamic", "factor": 4.0, "max_trained_positions": 8192}
    )
    assert rope_of(trained, "vllm").config.scaling.factor == 4 * 4 - 3


def test_longrope_lists_by_program():
    given = LONG | {"original_max_position_embeddings": 4096, "rope_scaling": {"type": "longrope", **LISTS}}
    short, long = (1 / value for value in (LISTS["short_factor"][0], LISTS["long_factor"][0]))

    def first(program, served, **kwargs):
        return float(rope_of(given, program, **kwargs).frequencies(served)[0])

    assert [first("transformers5", one) for one in (4096, 4097)] == [short, long]
    assert [first("sglang", one) for one in (4096, 4097)] == [short, long]
    assert [first("vllm", one) for one in (4096, 4097)] == [short, long]  # where 4096 are served, none is longer
    assert [first("vllm", one, length=131072) for one in (4096, 4097)] == [long, long]
    assert [first("mlx", one) for one in (4096, 4097)] == [long, long]
    for program in PROGRAMS:
        assert rope_of(given, program).attention_factor() == pytest.approx(1.1902, abs=5e-5)
    assert "serves 4096 positions" in read_as(given, "vllm").notes[-1]


def test_version_4_looks_for_the_original_length_in_one_place():
    inside = {"rope_type": "longrope", **LISTS, "original_max_position_embeddings": 8192, "factor": 16.0}
    given = {**LONG, "model_type": "llama", "rope_scaling": inside}
    assert rope_of(given, "transformers5").config.scaling.original_length == 8192
    assert rope_of(given, "transformers4").config.scaling.original_length == 131072
    yarn = config(
        rope_theta=1e4, rope_scaling={"rope_type": "yarn", "factor": 4.0}, original_max_position_embeddings=8192
    )
    assert rope_of(yarn, "transformers5").config.scaling.original_length == 8192
    assert rope_of(yarn, "transformers4").config.scaling.original_length == 32768


def test_lengths_that_programs_claim():
    telechat = {"type": "telechat3-yarn", "factor": 4.0, "original_max_position_embeddings": 8192}
    given = config("telechat3", rope_theta=1e6, rope_scaling=telechat)
    assert claimed(given, "transformers5") == 32768
    assert claimed(given, "vllm") == 131072  # which takes the factor for one more
    assert claimed(config(rope_theta=1e4, rope_scaling=YARN), "vllm") == 32768
    twice = config(rope_theta=1e4, rope_scaling={**YARN, "original_max_position_embeddings": 32768})
    assert [claimed(twice, name) for name in PROGRAMS] == [32768, 32768, 131072, 32768, 32768, None]
    linear = config(rope_theta=1e4, rope_scaling={"rope_type": "linear", "factor": 4.0})
    assert [claimed(linear, name) for name in ("transformers5", "vllm", "sglang")] == [32768, 131072, 131072]


def test_truncate_and_extrapolation():
    given = config(rope_theta=1e4, rope_scaling={**YARN, "truncate": False, "extrapolation_factor": 0.5})
    for program, expected in {"transformers5": (False, 1.0), "vllm": (False, 0.5), "mlx": (True, 1.0)}.items():
        scaling = rope_of(given, program).config.scaling
        assert (scaling.truncate, scaling.extrapolation_factor) == expected


def test_models_of_mlx_that_read_no_scaling():
    assert rope_of(config("qwen3_moe", rope_theta=1e6, rope_scaling=YARN), "mlx").config.scaling is None


def test_layers_of_gemma_3_keep_their_bases():
    given = config("gemma3_text", head_dim=256, num_hidden_layers=6, sliding_window=512, rope_theta=1e6)
    for program in ("transformers4", "transformers5", "vllm", "sglang", "mlx", "llama.cpp"):
        groups = {group.kind: group for group in Model(read_as(given, program)).groups}
        bases = {kind: group.layers.encodings[0].value("base") for kind, group in groups.items()}
        assert bases == {"sliding_attention": 10000.0, "full_attention": 1000000.0}, program


@pytest.mark.parametrize(
    ("given", "program", "said"),
    [
        (config("qwen3", rope_parameters={"rope_theta": 1e6}), "mlx", "without rope_theta"),
        (config("gptj"), "mlx", "has not been read"),
        (config(rope_scaling={"type": "telechat3-yarn", "factor": 2.0}), "sglang", "telechat3-yarn"),
        (config(rope_scaling={"rope_type": "proportional"}), "transformers4", "proportional"),
        (config(rope_scaling={**YARN, "factor": None}), "vllm", "without a factor"),
        (config(), "ollama", "unknown program"),
        ({"dim": 64, "n_layers": 2, "n_heads": 2, "norm_eps": 1e-5, "multiple_of": 8}, "vllm", "meta params.json"),
        (config(rope_scaling={**YARN, "attn_factor": "x"}), "vllm", "attn_factor"),
    ],
)
def test_refusals_name_what_is_wrong(given, program, said):
    with pytest.raises(WhorlError, match=said):
        read_as(given, program)


def test_every_fact_says_where_it_was_read():
    rows = facts()
    assert {row["program"].split()[0] for row in rows} == {one.title for one in PROGRAMS.values()}
    assert all(row[name] for row in rows for name in HEADER)
    assert markdown().count("\n") == len(rows) + 1
    assert all(f"{one.version} | {one.repository}" in versions_markdown() for one in PROGRAMS.values())


def test_the_page_of_programs_is_new():
    docs = Path(__file__).parents[2] / "docs"
    made = runpy.run_path(str(docs / "make_program_page.py"))["page"]()
    assert (docs / "programs.md").read_text(encoding="utf-8") == made, "docs/programs.md is old. Run make docs."


def test_sglang_multiplies_by_no_factor_that_stands_in_a_dict_of_a_kind():
    linear = {"rope_type": "linear", "factor": 8.0}
    given = config("gemma3_text", head_dim=256, num_hidden_layers=6, sliding_window=512, rope_theta=1e6)
    assert claimed(given | {"rope_scaling": linear}, "sglang") == 32768  # its class makes a dict for each kind
    stated = {**linear, "original_max_position_embeddings": 4096}
    assert [claimed(config(rope_theta=1e4, rope_scaling=one), "sglang") for one in (linear, stated)] == [262144, 32768]


def test_an_original_length_beside_the_rope_dict_is_lost_in_sglang():
    yarn = config(rope_theta=1e4, original_max_position_embeddings=8192)
    inside = {**YARN, "original_max_position_embeddings": 4096}
    for scaling, expected in (({"rope_type": "yarn", "factor": 4.0}, (8192, 32768)), (inside, (8192, 4096))):
        found = [rope_of(yarn | {"rope_scaling": scaling}, name) for name in ("transformers5", "sglang")]
        assert tuple(one.config.scaling.original_length for one in found) == expected
    phi = LONG | {"original_max_position_embeddings": 4096, "rope_scaling": {"type": "longrope", **LISTS}}
    assert rope_of(phi, "sglang").config.scaling.original_length == 4096


def test_which_of_several_lengths_a_server_takes():
    command_r = config("cohere", max_position_embeddings=8192, model_max_length=131072)
    assert [claimed(command_r, name) for name in ("transformers5", "vllm", "sglang")] == [8192, 131072, 131072]
    gpt2 = {"model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 1024}
    assert [claimed(gpt2, name) for name in ("transformers5", "vllm", "sglang")] == [1024] * 3
    qwen = config(seq_length=8192)
    assert [claimed(qwen, name) for name in ("transformers5", "vllm", "sglang")] == [32768, 8192, 8192]


def test_version_4_finds_the_original_length_of_phi_where_its_classes_put_it():
    lists = {"type": "longrope", **LISTS, "original_max_position_embeddings": 8192}
    moe = LONG | {"model_type": "phimoe", "rope_scaling": {**lists, "short_mscale": 1.2, "long_mscale": 1.2}}
    assert rope_of(moe, "transformers4").config.scaling.original_length == 8192
    for family in ("phi3", "phi4_multimodal"):
        given = LONG | {"model_type": family, "rope_scaling": {"type": "longrope", **LISTS}}
        assert rope_of(given, "transformers4").config.scaling.original_length == 4096, family


def test_version_4_has_no_class_for_families_of_version_5():
    new, old = config("minimax_m2", rope_theta=1e4), config("qwen3", rope_theta=1e4)
    assert "4.57.6 has no model_type 'minimax_m2'" in read_as(new, "transformers4").notes[-1]
    assert not read_as(old, "transformers4").notes and not read_as(new, "transformers5").notes
    assert FAMILIES.keys() >= FIRST_IN_5


def test_classes_of_transformers_do_what_the_servers_are_said_to_see():
    """The facts on SGLang rest on what a config class of version 5 makes of flat fields."""
    transformers = optional("transformers")
    linear = {"rope_type": "linear", "factor": 8.0}
    assert "factor" not in transformers.Gemma3TextConfig(rope_scaling=linear).rope_scaling
    lost = transformers.LlamaConfig(
        rope_scaling={"rope_type": "yarn", "factor": 4.0}, original_max_position_embeddings=9
    )
    assert lost.rope_scaling["original_max_position_embeddings"] == lost.max_position_embeddings
    assert set(transformers.CONFIG_MAPPING) >= FIRST_IN_5
