"""Families of transformers models: what each fixes in its code and leaves out of its config files.

One row per family whose rotary code differs from Llama's (half layout, whole head, base 10,000). A family without a
row is known if transformers has a config class with rope parameters for it, which then rotates as Llama does; any
other is unknown, and read as Llama with a warning. Families are named by ``model_type``, without the ``_text`` of the
text part of a multimodal model. Checked against the sources of transformers 5.22.2; the rows of ``ELSEWHERE``, whose
code is not in transformers, in other programs or in public copies of the code that their checkpoints carry, as
``read_in`` says; the checkpoints themselves were not opened.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from whorl.dialects.class_defaults import class_defaults
from whorl.dialects.reading import Standing

if TYPE_CHECKING:
    from whorl.rotary.rotation import Layout

FULL, SLIDING, CROSS = "full_attention", "sliding_attention", "cross_attention"


@dataclass(frozen=True, kw_only=True)
class LayerDefaults:
    """Defaults of one layer type in a family whose layers differ, for flat configs of version 4."""

    base: float
    base_key: str = "rope_theta"  # empty where no field beside the rope dict changes the base
    scaled: bool = True  # whether rope_scaling is meant for these layers
    attention_factor: float | None = None  # taken for yarn where the config gives none


@dataclass(frozen=True, kw_only=True)
class Family:
    """Rotation of a model family, as its code fixes it.

    layout            which two dimensions make a pair
    base, partial     the base, and the share of the head that is rotated, where the config names none
    slice             where the rotated dimensions lie
    scale_softmax     whether g(factor, mscale_all_dim)^2 multiplies the softmax scale
    sections          the M-RoPE sections where the config names none, in the family's ``arrangement``; where axes
                      alternate, they have equal shares of what is rotated, and nothing names them
    layers            how the flat fields of version 4 split over layer types
    unrotated         layer types without rotation
    head_widths       how many times hidden_size its heads are together, where the config does not state their size
    full_head_dim     the head size of full-attention layers where the config names none
    rotated_heads     the heads that are rotated; None for all
    learnable         whether the weights hold a log scale per pair
    backwards         whether pairs turn the other way
    needs_parameters  whether the code fills in a scaling of its own where the config has no rope dict
    theta_beside      whether a rope_theta in the file takes the place of the base in that scaling
    refusal           why the rotation cannot be built, where it cannot
    still             why queries and keys are not turned, in a family whose configs look as if they were
    mscale            m of YaRN's factor on cos and sin, 0.1 m ln(factor) + 1, where the config states none
    rope_kinds        what the rope dict calls the layers of a kind, where it does not call them by their kind
    base_key          the field that holds the base, beside the names that many families have
    ratio_key         the field that multiplies the base
    reads             rotary fields that only this family has
    other_names       the names its class has for fields that it never reads under the names of most families
    fixed             whether the code has base and scaling as constants, so that no field changes them
    unsupported       what the attention does with positions beside the rotation that has no encoding here
    states_base       whether a file has to state the base, since classes of this name have had several defaults
    read_in           where the code was read, where that is not transformers
    """

    layout: Layout = "half"
    base: float = 10_000.0
    partial: float = 1.0
    slice: Literal["leading", "trailing"] = "leading"
    scale_softmax: bool = False
    sections: tuple[int, ...] | None = None
    arrangement: Literal["chunked", "interleaved", "ernie", "alternating"] = "chunked"
    layers: Mapping[str, LayerDefaults] = field(default_factory=lambda: MappingProxyType({}))
    unrotated: tuple[str, ...] = ()
    head_widths: int = 1
    full_head_dim: int | None = None
    rotated_heads: tuple[int, ...] | None = None
    learnable: bool = False
    backwards: bool = False
    needs_parameters: bool = False
    theta_beside: bool = False
    refusal: str = ""
    still: str = ""
    mscale: float = 1.0
    rope_kinds: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    base_key: str = ""
    ratio_key: str = ""
    reads: tuple[str, ...] = ()
    other_names: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    fixed: bool = False
    unsupported: tuple[str, ...] = ()
    states_base: bool = False
    read_in: str = ""


class UnknownFamily(UserWarning):
    """A config of a family that is in no table, so that it was read by the conventions of another one."""


def family_of(config: Mapping[str, Any]) -> Family:
    """The family of a config: its row, else what its class in transformers says, else Llama's conventions."""
    name = family_name(config)
    if config.get("use_mla") is False and name == "deepseek_v2":
        return Family()  # DeepSeek-VL2-tiny: Llama's attention under the name of a model with latent attention
    if name == "mimo_v2_flash" and config.get("hybrid_layer_pattern") is not None:
        return _MIMO_V2_OWN
    if name in FAMILIES:
        return FAMILIES[name]
    filled = class_rope(config)
    if filled.get("rope_type", "default") != "default" or any(isinstance(one, dict) for one in filled.values()):
        return Family(needs_parameters=True)
    return Family(base=filled.get("rope_theta", 10_000.0), partial=filled.get("partial_rotary_factor", 1.0))


def class_rope(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The rope dict that the config's class in transformers fills in, empty where there is none."""
    name, given = _stripped(config), config.get("model_type")
    types = (given, name, f"{name}_text")
    return next((rope for one in types if (rope := class_defaults(one).get("rope_parameters"))), {})


def class_reads(config: Mapping[str, Any]) -> Collection[str] | None:
    """The positional fields that the config's class in transformers reads; None where its code is not that class's.

    Code that comes with some checkpoints reads more than the class of their name: ``Family.reads`` has that.
    """
    if _by_positions(config):
        return None
    given = config.get("model_type")
    types = (given, f"{_stripped(config)}_text")
    reads = next((reads for one in types if (reads := class_defaults(one).get("reads")) is not None), None)
    return reads if reads is None else (*reads, *CHECKPOINT_CODE_READS.get(_stripped(config), ()))


def family_name(config: Mapping[str, Any]) -> str:
    """The family by which a config is read, without what marks the text part of a model; empty if nothing says."""
    name = _stripped(config)
    return _by_positions(config) or ALIASES.get(name, name)


def _by_positions(config: Mapping[str, Any]) -> str | None:
    kind = config.get("position_embedding_type")
    return ALIASES_BY_POSITIONS.get((_stripped(config), kind)) if isinstance(kind, str) else None


def standing_of(config: Mapping[str, Any]) -> Standing:
    """Whether a config's family is known, another name for a known one, or unknown."""
    name = _stripped(config)
    if name in ALIASES or _by_positions(config):
        return "alias"
    return "known" if name in FAMILIES or name in UNROTATED or class_rope(config) else "unknown"


def unknown_family(name: str, call: str, remedy: str) -> str:
    """What is said of a file whose family is unknown."""
    return f"{call}: {name} is of an unknown family, read by the conventions of Llama (half layout). {remedy}"


def _stripped(config: Mapping[str, Any]) -> str:
    given = config.get("model_type")  # which may be anything in a config that is only linted
    return given.removesuffix("_model").removesuffix("_text") if isinstance(given, str) else ""


def _global_and_local(global_base: float, local_base: float, **keys: Any) -> dict[str, LayerDefaults]:
    """Full attention with one base and the scaling, sliding attention with another base and none."""
    return {
        FULL: LayerDefaults(base=global_base, base_key=keys.get("global_key", "rope_theta")),
        SLIDING: LayerDefaults(
            base=local_base,
            base_key=keys.get("local_key", "rope_local_base_freq"),
            scaled=keys.get("both_scaled", False),
        ),
    }


_GEMMA3 = Family(layers=_global_and_local(1_000_000.0, 10_000.0))
_GEMMA4 = Family(full_head_dim=512, needs_parameters=True)
_MODERNBERT = Family(
    layers=_global_and_local(
        160_000.0, 10_000.0, global_key="global_rope_theta", local_key="local_rope_theta", both_scaled=True
    )
)
_DEEPSEEK_V3 = Family(layout="interleaved_to_half", scale_softmax=True)
_INTERLEAVED = Family(layout="interleaved")
_SINUSOIDS = Family(layout="interleaved", fixed=True)  # sin and cos from a table of base 10,000
_QWEN2_VL = Family(base=1_000_000.0, sections=(16, 24, 24))
_QWEN3_VL = Family(base=500_000.0, sections=(24, 20, 20), arrangement="interleaved")
_QWEN3_5 = Family(partial=0.25, sections=(11, 11, 10), arrangement="interleaved")
_GLM4V = Family(layout="interleaved", sections=(8, 12, 12))
_OWN_SCALING = Family(needs_parameters=True)
_FULL_UNROTATED = Family(unrotated=(FULL,))

_OF_NEOX = MappingProxyType({"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"})
# MiMo-V2: as its class in transformers, and as the code that its checkpoints carry, for files with a pattern of layers
_MIMO_V2 = Family(
    partial=0.334,
    layers=_global_and_local(5_000_000.0, 10_000.0, global_key="", local_key=""),
    other_names=MappingProxyType(
        dict.fromkeys(("rope_theta", "swa_rope_theta", "partial_rotary_factor", "rope_scaling"), "rope_parameters")
    ),
)
_MIMO_V2_OWN = Family(
    partial=0.334,
    layers=_global_and_local(5_000_000.0, 10_000.0, local_key="swa_rope_theta"),
    reads=("hybrid_layer_pattern", "swa_rope_theta", "partial_rotary_factor"),
    read_in="vLLM's mimo_v2",
)
_OF_FLASH = ("rotary_emb_base", "rotary_emb_fraction")  # as published, with code of their own
_NO_POSITIONS = "its attention has no position encoding. Use the encoding 'none'"
TURNED_VALUES = "values turned as the keys they share a tensor with, and the output turned back at the query's position"

# Families that run the code of another one under a name of their own.
ALIASES: dict[str, str] = {
    # said of published files; their code was not opened here
    "deepseek_ref": "deepseek_v4",
    "kimi_k2": "deepseek_v3",
    "deepseek_mtp": "deepseek_v3",  # what vLLM calls the heads that predict ahead, of the same layers: its deepseek_mtp
    "minimax_text_01": "minimax",
    "minimax_m1": "minimax",
    "nv_esm": "esm",
    "exaone4_5": "exaone4",  # transformers renames it so itself
    **dict.fromkeys(("RefinedWeb", "RefinedWebModel"), "falcon"),  # what Falcon's first files said
}

# Families under a name that others have too, told by what they say of their positions: the code that comes with GTE
# v1.5 calls its model "new", and jina-embeddings-v3's files are named after the model it began as.
ALIASES_BY_POSITIONS: dict[tuple[str, str], str] = {
    ("new", "rope"): "gte",
    ("xlm-roberta", "rotary"): "jina_embeddings_v3",
}

# What code that comes with checkpoints reads of a family that transformers has too: llm-foundry's of MPT.
CHECKPOINT_CODE_READS: dict[str, tuple[str, ...]] = {"mpt": ("alibi",)}

# Families that do not rotate, by what they have instead; ``unrotated.py`` reads it.
ALIBI, LEARNED, T5, SINUSOIDAL, NOTHING = "ALiBi", "a learned table", "T5's buckets", "sinusoids", "none"
NO_ATTENTION = "none, for it has no attention"
MPT_ROPE = "a rotation (attn_config.rope) that llm-foundry has for MPT and transformers has not"
UNROTATED: dict[str, str] = {
    **dict.fromkeys(("bloom", "mpt"), ALIBI),
    **dict.fromkeys(("t5", "mt5", "umt5", "longt5", "switch_transformers"), T5),
    **dict.fromkeys(("marian", "pegasus"), SINUSOIDAL),
    **dict.fromkeys(("gpt2", "gpt_bigcode", "gpt_neo", "gpt-sw3", "openai-gpt", "opt", "biogpt"), LEARNED),
    **dict.fromkeys(("bert", "albert", "electra", "distilbert", "ernie", "bart", "mbart", "clip"), LEARNED),
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert", "xlm-roberta-xl", "roberta-prelayernorm"), LEARNED),
    **dict.fromkeys(("blenderbot", "blenderbot-small", "megatron-bert", "plbart", "siglip", "siglip2"), LEARNED),
    **dict.fromkeys(("mamba", "mamba2", "falcon_mamba", "rwkv"), NO_ATTENTION),
    "inkling": "relative logits",
    "siglip2_vision": "a learned grid, resized to the patches of each image",
    "whisper": "sinusoids in the encoder, a learned table in the decoder",
}


def unrotated_kind(config: Mapping[str, Any]) -> str | None:
    """What a family of ``UNROTATED`` has instead of a rotation that is read here; None for any other.

    MPT's own code has a learned table where ALiBi is switched off, and no positions where that is switched off as well.
    """
    name, inside = family_name(config), config.get("attn_config")
    inside = inside if isinstance(inside, dict) else {}
    if name == "mpt" and inside.get("rope"):
        return MPT_ROPE
    if name == "mpt" and inside.get("alibi", config.get("alibi")) in (False, 0):
        return LEARNED if config.get("learned_pos_emb") in (None, True, 1) else NOTHING
    return UNROTATED.get(name)


# Families whose code is not in transformers; ``read_in`` says where it was read.
ELSEWHERE: dict[str, Family] = {
    # Ling and Ring, versions 1 and 2
    **dict.fromkeys(("bailing_moe", "bailing_moe_v2"), Family(states_base=True, read_in="vLLM's bailing_moe, a copy")),
    # Baichuan-7B; its larger sister has ALiBi (``unrotated.py``)
    "baichuan": Family(read_in="vLLM's baichuan"),
    # ChatGLM3, GLM-4-9B, ChatGLM2 without a ratio: the first half of the head, base 10,000 times rope_ratio
    "chatglm": Family(
        layout="interleaved",
        partial=0.5,
        ratio_key="rope_ratio",
        reads=("rope_ratio", "original_rope"),
        read_in="copies",
    ),
    "exaone": Family(read_in="vLLM's exaone, llama.cpp's exaone"),  # EXAONE 3, 3.5 and Deep
    "internlm2": Family(read_in="vLLM's internlm2, a copy"),
    "internlm3": Family(read_in="vLLM (as its llama), llama.cpp's internlm"),
    "minicpm": Family(read_in="vLLM's minicpm, copies"),  # MiniCPM 1, 2 and 4
    "openelm": Family(base_key="rope_freq_constant", reads=("rope_freq_constant", "rope_max_length"), read_in="copies"),
    "orion": Family(read_in="vLLM's orion"),
    # Phi-3-small
    "phi3small": Family(
        base=1_000_000.0,
        base_key="rope_embedding_base",
        reads=("rope_embedding_base", "rope_position_scale"),
        read_in="vLLM's phi3_small",
    ),
    "qwen": Family(read_in="copies"),  # Qwen-1
    "stablelm_epoch": Family(partial=0.25, read_in="mlx-examples' stablelm, copies"),  # StableLM before it was renamed
    "step3": Family(base=500_000.0, read_in="vLLM's step3_text"),
    # TeleChat3, which has 0.07 for YaRN's 0.1
    "telechat3": Family(mscale=0.7, read_in="vLLM's telechat3_scaling_rope"),
    "Yi": Family(base=5_000_000.0, read_in="vLLM's yi, lightllm's yi"),  # before its files said llama
}

FAMILIES: dict[str, Family] = {
    "afmoe": _FULL_UNROTATED,
    "apertus": Family(base=12_000_000.0, needs_parameters=True),
    "axk1": _DEEPSEEK_V3,
    "axk2": _DEEPSEEK_V3,
    "bailing_hybrid": Family(layout="interleaved_to_half", scale_softmax=True, base=6_000_000.0),
    "bamba": Family(partial=0.5),
    "beam": _OWN_SCALING,
    "bitnet": Family(base=500_000.0),
    "blt": Family(layout="interleaved", base=500_000.0),
    "blt_global_transformer": Family(layout="interleaved", base=500_000.0),
    "blt_local_decoder": Family(layout="interleaved", base=500_000.0),
    "blt_local_encoder": Family(layout="interleaved", base=500_000.0),
    "blt_patcher": _INTERLEAVED,
    "codegen": _SINUSOIDS,
    "cohere": Family(layout="interleaved", base=500_000.0),
    "cohere2": Family(layout="interleaved", unrotated=(FULL,)),
    "cohere2_moe": Family(layout="interleaved", unrotated=(FULL,)),
    "cohere_compass": Family(sections=(24, 20, 20), arrangement="interleaved", needs_parameters=True),
    "cosmos3_edge": Family(base=100_000_000.0, sections=(24, 20, 20), arrangement="interleaved", needs_parameters=True),
    "csm": Family(base=500_000.0),
    "csm_depth_decoder": Family(base=500_000.0),
    "cwm": Family(base=1_000_000.0, needs_parameters=True),
    "deepseek_v2": Family(layout="interleaved", scale_softmax=True),
    "deepseek_v3": _DEEPSEEK_V3,
    "deepseek_v32": _DEEPSEEK_V3,
    "deepseek_v4": Family(
        layout="interleaved",
        slice="trailing",
        partial=0.125,
        layers={
            "main": LayerDefaults(base=10_000.0, scaled=False),
            # the family's own code leaves cos and sin unscaled
            "compress": LayerDefaults(base=160_000.0, base_key="compress_rope_theta", attention_factor=1.0),
        },
        rope_kinds={
            SLIDING: "main",
            "compressed_sparse_attention": "compress",
            "heavily_compressed_attention": "compress",
        },
        unsupported=(TURNED_VALUES,),
    ),
    "diffusion_gemma": _GEMMA4,
    "embedding_gemma2": _GEMMA4,
    "emu3": Family(base=1_000_000.0),
    "ernie4_5": Family(layout="interleaved", base=500_000.0),
    "ernie4_5_moe": Family(layout="interleaved", base=500_000.0),
    "ernie4_5_vl_moe": Family(layout="interleaved", base=500_000.0, sections=(22, 22, 20), arrangement="ernie"),
    "esm": Family(),
    "evolla": Family(base=500_000.0),
    "exaone4": _FULL_UNROTATED,
    "exaone_moe": _FULL_UNROTATED,
    "falcon": Family(),
    "flex_olmo": Family(base=500_000.0),
    "flint": _FULL_UNROTATED,
    "gemma": Family(),
    "gemma2": Family(),
    "gemma3": _GEMMA3,
    "gemma3n": _GEMMA3,
    "gemma4": _GEMMA4,
    "gemma4_unified": _GEMMA4,
    "glm": Family(layout="interleaved", partial=0.5),
    "glm4": Family(layout="interleaved", partial=0.5),
    "glm4_moe": Family(partial=0.5),
    "glm4_moe_lite": _DEEPSEEK_V3,
    "glm4v": _GLM4V,
    "glm4v_moe": Family(partial=0.5, sections=(8, 12, 12)),
    "glm5_next": Family(still=_NO_POSITIONS),
    "glm_image": Family(sections=(8, 12, 12)),
    "glm_moe_dsa": _DEEPSEEK_V3,
    "glm_ocr": _GLM4V,
    "glmasr_encoder": Family(partial=0.5),
    "gpt_neox": Family(partial=0.25, other_names=_OF_NEOX),
    "gpt_neox_japanese": Family(other_names=_OF_NEOX),
    "gpt_oss": Family(base=150_000.0, needs_parameters=True, theta_beside=True),
    "gptj": _SINUSOIDS,
    "gte": Family(base=160_000.0),
    "helium": Family(layout="interleaved", base=100_000.0),
    "higgs_audio_v2": _OWN_SCALING,
    # as HunYuan's own code, vLLM and mlx-vlm have it; transformers 5.22.2 turns images otherwise (``notes.py``)
    "hunyuan_vl": Family(),
    "hy_v3": Family(base=11_158_840.0),
    "hy_v4": Family(scale_softmax=True),
    "jina_embeddings_v3": Family(base=20_000.0, reads=_OF_FLASH),
    "jamba": Family(still=_NO_POSITIONS),
    "kimi_linear": Family(still=_NO_POSITIONS),
    "kolibri1": _FULL_UNROTATED,
    "laguna": _OWN_SCALING,
    "lfm2": Family(base=1_000_000.0),
    "lfm2_moe": Family(base=1_000_000.0),
    "lightglue": Family(
        refusal="it turns keypoints by frequencies that are learned for each pair, w (x, y), and stand in its weights"
    ),
    "llama": Family(),
    "llama4": Family(layout="interleaved", base=500_000.0),
    "longcat_flash": Family(layout="interleaved_to_half", scale_softmax=True, base=10_000_000.0),
    "mellum": _OWN_SCALING,
    "mimo_v2_flash": _MIMO_V2,
    "minicpm3": Family(scale_softmax=True),
    "minimax": Family(base=1_000_000.0),
    "minimax_m2": Family(base=5_000_000.0),
    "minimax_m3_vl": Family(base=5_000_000.0, reads=("rotary_dim",)),
    "ministral3": _OWN_SCALING,
    "mistral": Family(),
    "mistral4": Family(layout="interleaved_to_half", scale_softmax=True, needs_parameters=True),
    "mistral_large4": Family(layout="interleaved_to_half", scale_softmax=True, needs_parameters=True, learnable=True),
    "mixtral": Family(base=1_000_000.0),
    "mllama": Family(base=500_000.0, unrotated=(CROSS,)),
    "modernbert": _MODERNBERT,
    "modernbert-decoder": _MODERNBERT,
    "moonshine": Family(layout="interleaved", partial=0.9),
    "moonshine_streaming": Family(layout="interleaved", needs_parameters=True),
    "muse_spark": Family(base=500_000.0, needs_parameters=True),
    "muse_glimmer_assistant": Family(base=500_000.0),
    "nanochat": Family(backwards=True),
    "nemotron": Family(partial=0.5),
    "nemotron_h": Family(still=_NO_POSITIONS),
    "nemotron3_5_transcribe_asr_audio": Family(partial=0.5, needs_parameters=True),
    "nemotron3_5_transcribe_word_timestamp": Family(partial=0.5, needs_parameters=True),
    "neomme": Family(arrangement="alternating", needs_parameters=True, theta_beside=True),
    "nomic_bert": Family(base=1_000.0, reads=("rotary_scaling_factor", *_OF_FLASH)),
    # its class gives rope_theta to the layers of full attention alone
    "olmo3": Family(
        layers={FULL: LayerDefaults(base=500_000.0), SLIDING: LayerDefaults(base=500_000.0, base_key="", scaled=False)}
    ),
    "openai_privacy_filter": Family(layout="interleaved", base=150_000.0, needs_parameters=True, theta_beside=True),
    "paddleocr_vl": Family(base=500_000.0, sections=(16, 24, 24)),
    "pe_audio_encoder": Family(layout="interleaved", base=20_000.0),
    "pe_audio_video_encoder": Family(layout="interleaved", base=20_000.0),
    "pe_video_encoder": Family(layout="interleaved", base=20_000.0),
    "persimmon": Family(partial=0.5),
    "phi": Family(partial=0.5),
    "phi3": Family(),
    "phi4_multimodal": Family(),
    "phimoe": Family(base=1_000_000.0),
    "qwen2": Family(),
    "qwen2_5_omni": _QWEN2_VL,
    "qwen2_5_omni_dit": Family(layout="interleaved_to_half", rotated_heads=(0,)),
    "qwen2_5_omni_talker": _QWEN2_VL,
    "qwen2_5_vl": _QWEN2_VL,
    "qwen2_vl": _QWEN2_VL,
    "qwen3": Family(),
    "qwen3_5": _QWEN3_5,
    "qwen3_5_moe": _QWEN3_5,
    "qwen3_next": Family(partial=0.25),
    "qwen3_omni_moe": Family(base=1_000_000.0, sections=(24, 20, 20), arrangement="interleaved"),
    "qwen3_omni_moe_talker": Family(sections=(24, 20, 20), arrangement="interleaved"),
    "qwen3_vl": _QWEN3_VL,
    "qwen3_vl_moe": _QWEN3_VL,
    "qwen4_exp": Family(sections=(11, 11, 10), arrangement="interleaved"),
    "recurrent_gemma": Family(partial=0.5),
    "roformer": _SINUSOIDS,
    "smollm3": Family(base=2_000_000.0),
    "solar_open": Family(base=1_000_000.0),
    "stablelm": Family(partial=0.25),
    "step3p5": Family(
        layers={FULL: LayerDefaults(base=10_000.0), SLIDING: LayerDefaults(base=10_000.0, scaled=False)},
        other_names=MappingProxyType({"partial_rotary_factor": "partial_rotary_factors"}),
    ),
    "t5gemma2": _GEMMA3,
    "t5gemma2_decoder": _GEMMA3,
    "ultrabert": _OWN_SCALING,
    "youtu": _DEEPSEEK_V3,
    "zamba": Family(still=_NO_POSITIONS),
    "zamba2": Family(head_widths=2),
    "zaya": _OWN_SCALING,
    **ELSEWHERE,
}
