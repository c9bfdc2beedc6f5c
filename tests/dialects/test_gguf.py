"""GGUF files, written by llama.cpp's own package: read as llama.cpp computes, or refused with the reason."""

import math
import re
import struct
from dataclasses import dataclass, field
from typing import Any

import pytest

import whorl
from gguf_files import SIZES, write_gguf
from optional import optional
from whorl import (
    T5,
    Alibi,
    Combined,
    Learned,
    Linear,
    Llama3,
    Llama4Temperature,
    LongRope,
    MRope,
    NoPE,
    Ntk,
    Rope,
    WhorlError,
    Window,
    Yarn,
)
from whorl.dialects.families import UnknownFamily
from whorl.dialects.gguf_architectures import ARCHITECTURES
from whorl.dialects.gguf_file import read_gguf

NO_ATTENTION = "no attention"
SHORT, LONG = [1.0 + i / 64 for i in range(48)], [1.0 + i for i in range(48)]
YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 1024}
LATENT = {
    **{"attention.kv_lora_rank": 512, "attention.key_length": 576, "rope.dimension_count": 64},
    **{"rope.scaling.type": "yarn", "rope.scaling.factor": 40.0, "rope.scaling.original_context_length": 4096},
}


@dataclass
class Case:
    """An architecture, fields and tensors, and what is to be read of each kind of layer."""

    architecture: str
    fields: dict[str, Any]
    layers: dict[str, tuple[Any, Any]]
    tensors: dict[str, Any] = field(default_factory=dict)
    lengths: tuple[int | None, int | None] = (4096, 4096)
    unsupported: list[str] = field(default_factory=list)


def every(encoding):
    return {"all": (range(4), encoding)}


def rope(**settings):
    return Rope(**{"head_dim": 128} | settings)


def read(path, fields, architecture="llama", tensors=None, **options):
    return whorl.read(write_gguf(path / "m.gguf", architecture, SIZES | fields, tensors), **options)


def g(factor, weight=1.0):
    return 0.1 * weight * math.log(factor) + 1


CASES = {
    "llama, whose rows are permuted": Case(
        "llama", {"rope.freq_base": 500000.0, "rope.dimension_count": 128}, every(rope(base=5e5, layout="interleaved"))
    ),
    "qwen2": Case("qwen2", {"rope.freq_base": 1e6}, every(rope(base=1e6))),
    "phi-2, which rotates a part": Case("phi2", {"rope.dimension_count": 32}, every(rope(rotary_dim=32))),
    "a head that is not width / heads": Case("gemma", {"attention.key_length": 256}, every(rope(head_dim=256))),
    "linear by the default type": Case(
        "llama",
        {"rope.scaling.factor": 2.0},
        every(rope(layout="interleaved", scaling=Linear(factor=2.0))),
        lengths=(None, 4096),
    ),
    "linear by its old name": Case(
        "llama",
        {"rope.scale_linear": 2.0},
        every(rope(layout="interleaved", scaling=Linear(factor=2.0))),
        lengths=(None, 4096),
    ),
    "a factor that the type switches off": Case(
        "qwen2", {"rope.scaling.type": "none", "rope.scaling.factor": 2.0}, every(rope())
    ),
    "yarn": Case(
        "qwen3",
        YARN,
        every(rope(scaling=Yarn(factor=4.0, original_length=1024, attention_factor=g(4)))),
        lengths=(1024, 4096),
    ),
    "yarn, whose betas are read for few architectures": Case(
        "qwen3",
        YARN | {"rope.scaling.yarn_beta_fast": 16.0},
        every(rope(scaling=Yarn(factor=4.0, original_length=1024, attention_factor=g(4)))),
        lengths=(1024, 4096),
    ),
    "yarn with a factor on cos and sin": Case(
        "qwen3",
        YARN | {"rope.scaling.attn_factor": 0.5},
        every(rope(scaling=Yarn(factor=4.0, original_length=1024, attention_factor=g(4) / 2))),
        lengths=(1024, 4096),
    ),
    "ministral 3": Case(
        "mistral3",
        YARN
        | {"rope.scaling.yarn_beta_fast": 16.0, "rope.scaling.yarn_log_multiplier": 1.0}
        | {"attention.temperature_scale": 0.125},
        every(
            Combined(
                rope(
                    layout="interleaved",
                    scaling=Yarn(factor=4.0, original_length=1024, beta_fast=16.0, attention_factor=1.0),
                ),
                Llama4Temperature(floor_scale=1024, attn_scale=0.125, first=0),
            )
        ),
        lengths=(1024, 4096),
    ),
    "deepseek v3": Case(
        "deepseek2",
        LATENT | {"rope.scaling.yarn_log_multiplier": 0.1},
        every(
            Rope(
                head_dim=64,
                layout="interleaved",
                scaling=Yarn(
                    factor=40.0, original_length=4096, attention_factor=1.0, mscale_all_dim=1.0, scale_softmax=True
                ),
            )
        ),
        lengths=(4096, 4096),
    ),
    "deepseek v2, whose two weights are 0.707": Case(
        "deepseek2",
        LATENT | {"rope.scaling.yarn_log_multiplier": 0.0707},
        every(
            Rope(
                head_dim=64,
                layout="interleaved",
                scaling=Yarn(
                    factor=40.0, original_length=4096, attention_factor=1.0, mscale_all_dim=0.707, scale_softmax=True
                ),
            )
        ),
    ),
    "phi-3, with two lists and no window": Case(
        "phi3",
        {
            **{"embedding_length": 3072, "context_length": 131072, "attention.sliding_window": 262144},
            **{"rope.scaling.original_context_length": 4096, "rope.scaling.attn_factor": 1.1902381},
        },
        every(
            Rope(
                head_dim=96,
                scaling=LongRope(
                    short_factor=SHORT, long_factor=LONG, original_length=4096, attention_factor=1.1902381
                ),
            )
        ),
        tensors={"rope_factors_long.weight": LONG, "rope_factors_short.weight": SHORT},
        lengths=(4096, 131072),
    ),
    "hunyuan, whose base has a factor": Case(
        "hunyuan-dense",
        {"rope.scaling.alpha": 1000.0},
        every(rope(scaling=Ntk(factor=1000.0))),
        lengths=(None, 4096),
    ),
    "qwen2-vl": Case(
        "qwen2vl",
        {"rope.dimension_sections": [16, 24, 24, 0]},
        every(MRope(head_dim=128, sections=(16, 24, 24))),
    ),
    "qwen3-vl": Case(
        "qwen3vl",
        {"rope.dimension_sections": [24, 20, 20, 0]},
        every(MRope(head_dim=128, sections=(24, 20, 20), arrangement="interleaved")),
    ),
    "glm-4 without sections": Case(
        "glm4", {"rope.dimension_count": 64}, every(rope(rotary_dim=64, layout="interleaved"))
    ),
    "glm-4.1v, with sections": Case(
        "glm4",
        {"rope.dimension_count": 64, "rope.dimension_sections": [8, 12, 12, 0]},
        every(MRope(head_dim=128, rotary_dim=64, sections=(8, 12, 12))),
    ),
    "gemma 2": Case(
        "gemma2",
        {"attention.sliding_window": 512},
        {
            "sliding_attention": ([0, 2], Combined(rope(), Window(size=512))),
            "full_attention": ([1, 3], rope()),
        },
    ),
    "gemma 3": Case(
        "gemma3",
        {**{"block_count": 7, "attention.sliding_window": 512, "rope.freq_base": 1e6}, "rope.scaling.factor": 8.0},
        {
            "sliding_attention": ([0, 1, 2, 3, 4, 6], Combined(rope(), Window(size=512))),
            "full_attention": ([5], rope(base=1e6, scaling=Linear(factor=8.0))),
        },
        lengths=(None, 4096),
    ),
    "gpt-oss, whose yarn is truncated here": Case(
        "gpt-oss",
        YARN | {"attention.sliding_window": 128},
        {
            "sliding_attention": (
                [0, 2],
                Combined(rope(scaling=Yarn(factor=4.0, original_length=1024, attention_factor=g(4))), Window(size=128)),
            ),
            "full_attention": ([1, 3], rope(scaling=Yarn(factor=4.0, original_length=1024, attention_factor=g(4)))),
        },
        lengths=(1024, 4096),
    ),
    "a list of layers with a window": Case(
        "gemma4",
        {
            **{"attention.sliding_window": 512, "attention.sliding_window_pattern": [True, True, False, True]},
            **{"attention.key_length_swa": 64, "rope.dimension_count_swa": 64, "rope.freq_base": 1e6},
        },
        {
            "sliding_attention": ([0, 1, 3], Combined(Rope(head_dim=64), Window(size=512))),
            "full_attention": ([2], rope(base=1e6)),
        },
    ),
    "command r7b": Case(
        "cohere2",
        {"attention.sliding_window": 4096},
        {
            "sliding_attention": ([0, 1, 2], Combined(rope(layout="interleaved"), Window(size=4096))),
            "full_attention": ([3], NoPE()),
        },
    ),
    "modernbert": Case(
        "modern-bert",
        {"attention.sliding_window": 128, "rope.freq_base": 160000.0},
        {
            "full_attention": ([0, 3], rope(base=160000.0)),
            "sliding_attention": ([1, 2], Combined(rope(), Window(size=65, symmetric=True))),
        },
    ),
    "llama 4": Case(
        "llama4",
        {"rope.freq_base": 500000.0},
        {
            "chunked_attention": ([0, 1, 2], rope(base=5e5, layout="interleaved")),
            "full_attention": ([3], Llama4Temperature()),
        },
        unsupported=["chunked attention: a query sees its own chunk of 8192 keys alone"],
    ),
    "granite that does not rotate": Case("granite", {"rope.scaling.finetuned": False}, every(NoPE())),
    "granite that does": Case("granite", {}, every(rope(layout="interleaved"))),
    "lfm2, whose convolutions have no heads": Case(
        "lfm2",
        {"attention.head_count_kv": [0, 0, 8, 0]},
        {"no_attention": ([0, 1, 3], NO_ATTENTION), "full_attention": ([2], rope())},
    ),
    "nemotron 51b, some of whose layers have no attention": Case(
        "deci",
        {"attention.head_count": [0, 32, 32, 0]},
        {"no_attention": ([0, 3], NO_ATTENTION), "full_attention": ([1, 2], rope(layout="interleaved"))},
    ),
    "qwen3-next": Case(
        "qwen3next",
        {"attention.key_length": 256, "rope.dimension_count": 64},
        {"no_attention": ([0, 1, 2], NO_ATTENTION), "full_attention": ([3], Rope(head_dim=256, rotary_dim=64))},
    ),
    "layers that predict further tokens": Case(
        "glm4moe", {"block_count": 5, "nextn_predict_layers": 1, "rope.dimension_count": 64}, every(rope(rotary_dim=64))
    ),
    # --- positions that do not rotate
    "bloom": Case("bloom", {}, every(Alibi(heads=32))),
    "mpt": Case("mpt", {"attention.max_alibi_bias": 8.0}, every(Alibi(heads=32))),
    "mpt with a table": Case("mpt", {}, every(Learned(width=4096, length=4096))),
    "mpt with other slopes": Case(
        "mpt",
        {"attention.max_alibi_bias": 4.0},
        every(NoPE()),
        unsupported=["ALiBi with mpt.attention.max_alibi_bias = 4"],
    ),
    "baichuan-13b": Case("baichuan", {"block_count": 40}, {"all": (range(40), Alibi(heads=32))}),
    "gpt-2": Case("gpt2", {}, every(Learned(width=4096, length=4096))),
    "starcoder, which llama.cpp lists among those that rotate": Case(
        "starcoder", {}, every(Learned(width=4096, length=4096))
    ),
    "t5": Case(
        "t5",
        {"attention.relative_buckets_count": 32},
        {"encoder": (None, T5(heads=32, bidirectional=True)), "decoder": (None, T5(heads=32))},
    ),
    "jamba": Case(
        "jamba",
        {"attention.head_count_kv": [0, 8, 0, 0]},
        {"full_attention": ([1], NoPE()), "no_attention": ([0, 2, 3], NO_ATTENTION)},
    ),
    "mamba": Case("mamba", {"attention.head_count": 0}, {"no_attention": (range(4), NO_ATTENTION)}),
}


@pytest.mark.parametrize("name", CASES)
def test_every_layer_is_read_as_llama_cpp_has_it(name, tmp_path):
    case = CASES[name]
    model = whorl.read(write_gguf(tmp_path / "m.gguf", case.architecture, SIZES | case.fields, case.tensors))
    found = {
        group.kind: (
            None if group.indices is None else list(group.indices),
            group.encoding.config.to_dict() if group.layers.attention else NO_ATTENTION,
        )
        for group in model.groups
    }
    expected = {
        kind: (None if places is None else list(places), one if one == NO_ATTENTION else one.config.to_dict())
        for kind, (places, one) in case.layers.items()
    }
    assert found == expected
    assert (model.dialect, model.family, model.standing) == ("gguf", case.architecture, "known")
    assert (model.trained_length, model.claimed_length) == case.lengths
    assert len(model.unsupported) == len(case.unsupported)
    assert all(any(said in what for what in model.unsupported) for said in case.unsupported)


def test_layers_of_one_kind_that_do_not_all_rotate_are_apart(tmp_path):
    model = read(tmp_path, {"block_count": 8}, "smollm3")
    assert [(group.indices, type(group.encoding).__name__) for group in model.groups] == [
        ((0, 1, 2, 4, 5, 6), "Rope"),
        ((3, 7), "NoPE"),
    ]


def test_llama_3s_factors_give_its_frequencies(tmp_path):
    """The converter writes Llama 3's scaling out, one divisor for each pair."""
    scaled = Rope(head_dim=128, base=500000.0, scaling=Llama3(factor=8.0, original_length=8192))
    divisors = (Rope(head_dim=128, base=500000.0).frequencies() / scaled.frequencies()).tolist()
    fields = {"context_length": 131072, "rope.freq_base": 500000.0}
    (group,) = read(tmp_path, fields, tensors={"rope_freqs.weight": divisors}).groups
    for length in (None, 131072):
        assert group.encoding.frequencies(length).tolist() == pytest.approx(scaled.frequencies().tolist(), rel=1e-6)
    assert group.encoding.attention_factor() == 1


def test_the_scaling_of_a_file_acts_on_top_of_its_factors(tmp_path):
    (group,) = read(tmp_path, {"rope.scaling.factor": 2.0}, tensors={"rope_freqs.weight": [4.0] * 64}).groups
    assert group.encoding.frequencies().tolist() == pytest.approx((Rope(head_dim=128).frequencies() / 8).tolist())


def test_deepseek_scales_its_softmax_by_the_square_of_its_temperature(tmp_path):
    (group,) = read(tmp_path, LATENT | {"rope.scaling.yarn_log_multiplier": 0.1}, "deepseek2").groups
    assert (group.encoding.attention_factor(), group.encoding.softmax_factor()) == (1.0, pytest.approx(g(40) ** 2))
    (group,) = read(tmp_path, LATENT, "deepseek2").groups
    assert group.encoding.attention_factor() == pytest.approx(g(40))
    assert group.encoding.softmax_factor() == pytest.approx(g(40) ** 2)


def test_pairs_that_llama_cpp_leaves_to_a_fourth_position_are_noted(tmp_path):
    """ggml_mrope_cache_init: pair 61 is of no axis where rows have 20 pairs, at 1, 4 … 58."""
    fields = {"rope.dimension_sections": [24, 20, 20, 0]}
    (note,) = read(tmp_path, fields, "qwen3vl").reading.notes
    assert note.startswith("llama.cpp turns the pairs 61, 62 by a fourth position, which is 0 in text")
    assert read(tmp_path, fields, "qwen2vl").reading.notes == ()


def test_gemma_2_caps_its_scores(tmp_path):
    caps = [
        read(tmp_path, fields, "gemma2").groups[0].layers.softcap for fields in ({}, {"attn_logit_softcapping": 30.0})
    ]
    assert [(cap.value, cap.source) for cap in caps] == [(50.0, "class default"), (30.0, "file")]
    assert read(tmp_path, {"attn_logit_softcapping": 30.0}, "llama").groups[0].layers.softcap is None


def test_every_setting_says_where_it_comes_from(tmp_path):
    (group,) = read(tmp_path, {"rope.freq_base": 500000.0}).groups
    said = {name: (value.source, value.field) for name, value in group.layers.encodings[0].settings.items()}
    assert said == {
        "head_dim": ("file", "llama.embedding_length / llama.attention.head_count"),
        "rotary_dim": ("file", "llama.embedding_length / llama.attention.head_count"),
        "base": ("file", "llama.rope.freq_base"),
        "layout": ("family code", ""),
    }


def test_an_unknown_architecture_warns_and_can_be_assumed(tmp_path):
    said = "the GGUF architecture 'frobnicator' is of an unknown family.*assume='qwen2' \\(half\\)"
    with pytest.warns(UnknownFamily, match=said):
        model = read(tmp_path, {}, "frobnicator")
    assert (model.standing, model.groups[0].encoding.config.layout) == ("unknown", "half")
    assert model.groups[0].layers.encodings[0].settings["layout"].source == "assumed"
    model = read(tmp_path, {}, "frobnicator", assume="llama")
    assert (model.standing, model.groups[0].encoding.config.layout) == ("unknown", "interleaved")
    with pytest.raises(WhorlError, match=r"unknown GGUF architecture to assume 'lama'\. Did you mean 'llama'"):
        read(tmp_path, {}, "frobnicator", assume="lama")


def test_every_architecture_is_read_or_refused_by_name(tmp_path):
    enough = {
        **{"attention.sliding_window": 512, "attention.sliding_window_pattern": [True, False, True, False]},
        **{"rope.dimension_sections": [24, 20, 20, 0], "attention.relative_buckets_count": 32},
    }
    for name, row in ARCHITECTURES.items():
        if row.refusal:
            with pytest.raises(WhorlError, match=re.escape(f"GGUF architecture {name!r} cannot be read: ")):
                read(tmp_path, enough, name)
        else:
            assert [group.encoding for group in read(tmp_path, enough, name).groups]


def test_the_table_has_every_architecture_that_the_package_can_write():
    written = set(optional("gguf").MODEL_ARCH_NAMES.values()) - {"mmproj"}
    assert written <= set(ARCHITECTURES)


def test_a_file_for_the_other_order_of_bytes_says_the_same(tmp_path):
    gguf, fields = optional("gguf"), SIZES | {"rope.freq_base": 500000.0, "rope.scaling.factor": 0.1}
    tensors = {"rope_freqs.weight": [1.5] * 64}
    little = write_gguf(tmp_path / "little.gguf", "llama", fields, tensors)
    big = write_gguf(tmp_path / "big.gguf", "llama", fields, tensors, endianess=gguf.GGUFEndian.BIG)
    found = [read_gguf(path) for path in (little, big)]
    assert found[0].metadata == found[1].metadata and found[0].metadata["llama.rope.scaling.factor"] == 0.1
    assert [one.floats("rope_freqs.weight") for one in found] == [(1.5,) * 64] * 2


def test_vocabularies_are_stepped_over(tmp_path):
    fields = {"tokenizer.tokens": [f"token{i}" for i in range(20000)], "tokenizer.types": [1] * 20000, **SIZES}
    metadata = read_gguf(write_gguf(tmp_path / "m.gguf", "llama", fields)).metadata
    assert metadata == {"general.architecture": "llama", **{f"llama.{name}": value for name, value in SIZES.items()}}


def test_a_folder_with_a_gguf_file_alone_is_read(tmp_path):
    write_gguf(tmp_path / "model.gguf", "qwen2", SIZES)
    assert whorl.read(tmp_path).family == "qwen2"


# --- what is refused


@pytest.mark.parametrize(
    ("architecture", "fields", "tensors", "why"),
    [
        ("llama", {"rope.scaling.type": "ntk"}, {}, "unknown llama.rope.scaling.type of read: 'ntk'"),
        ("llama", {"block_count": "4"}, {}, "read: llama.block_count must be a positive integer below 2^63, got '4'."),
        ("llama", {"block_count": 10**6}, {}, "read: llama.block_count must be at most 16384 layers, got 1000000."),
        ("llama", {"attention.head_count": 0}, {}, "read: llama.attention.head_count must be a positive integer"),
        ("qwen2vl", {}, {}, "read: qwen2vl.rope.dimension_sections is missing"),
        ("qwen2vl", {"rope.dimension_sections": [1, 2, 3, 0]}, {}, "is [1, 2, 3], and 64 pairs are to be shared"),
        ("gemma4", {"attention.sliding_window": 512}, {}, "read: gemma4.attention.sliding_window_pattern is missing"),
        ("lfm2", {"attention.head_count_kv": [0, 8]}, {}, "attention.head_count_kv has 2 entries for 4 layers"),
        ("llama", {}, {"rope_freqs.weight": [1.0] * 63}, "has 63 numbers, the least 1, and 64 pairs"),
        ("llama", {}, {"rope_freqs.weight": [0.0] * 64}, "has 64 numbers, the least 0, and 64 pairs"),
        ("llama", {}, {"rope_freqs.weight": [math.nan] * 64}, "holds numbers that are not finite"),
        ("llama", {}, {"rope_factors_long.weight": [1.0] * 64}, "the file has one alone"),
        ("gpt2", {"context_length": 2**31}, {}, "read: a table of gpt2.context_length = 2147483648 rows of gpt2.embed"),
        ("llama", {"rope.freq_base": math.inf}, {}, "it has the number inf"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_the_reason(architecture, fields, tensors, why, tmp_path):
    with pytest.raises(WhorlError, match=re.escape(why)):
        read(tmp_path, fields, architecture, tensors)


def test_a_later_file_of_a_split_model_names_the_first(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 0))
    with pytest.raises(WhorlError, match=r"has no general.architecture\. Of a model in several files, pass the first"):
        whorl.read(path)
