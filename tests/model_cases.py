"""Configs of models that other programs misread, built by hand, and what positions do in each of their layers."""

import math
from dataclasses import dataclass, field
from typing import Any

from hf_configs import LISTS
from whorl import (
    T5,
    Alibi,
    Combined,
    DynamicNtk,
    Learned,
    Linear,
    Llama3,
    Llama4Temperature,
    LogN,
    LongRope,
    MRope,
    NoPE,
    Ntk,
    Rope,
    Sinusoidal,
    Window,
    Yarn,
)

SIZES = {"hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 4}
NO_ATTENTION = "no attention"
LLAMA3 = {"factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
LLAMA3_SCALING = Llama3(factor=16.0, low_freq_factor=1.0, high_freq_factor=4.0, original_length=8192)
V4_YARN = {"rope_type": "yarn", "factor": 16, "original_max_position_embeddings": 65536}
V4 = {"head_dim": 512, "rotary_dim": 64, "slice": "trailing", "layout": "interleaved"}
V4_SCALING = Yarn(factor=16, original_length=65536, attention_factor=1.0)
KIMI_YARN = {"factor": 64.0, "beta_fast": 1.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "type": "yarn"}
QWEN_STEPS = DynamicNtk(factor=2.0, original_length=8192, doubling=True)
KIMI_SCALING = {key: value for key, value in KIMI_YARN.items() if key != "type"}


@dataclass
class Case:
    """A config, and what is to be read: for each kind of layer which layers, and an encoding or NO_ATTENTION."""

    config: dict[str, Any]
    layers: dict[str, tuple[Any, Any]]
    standing: str = "known"
    lengths: tuple[int | None, int | None] = (None, None)
    unsupported: list[str] = field(default_factory=list)
    planned: bool = True  # whether a LayerPlan can hold the layers


def rotated(**settings):
    return {"all": (range(4), Rope(**{"head_dim": 128} | settings))}


CASES = {
    # --- read wrongly, and in silence, by those who take every config for Llama's
    "nemotron-3, whose rope_theta is dead": Case(
        {"model_type": "nemotron_h", **SIZES, "hybrid_override_pattern": "M-*E", "head_dim": 128, "rope_theta": 10000},
        {
            "linear_attention": ([0], NO_ATTENTION),
            "mlp": ([1], NO_ATTENTION),
            "full_attention": ([2], NoPE()),
            "moe": ([3], NO_ATTENTION),
        },
    ),
    "kimi k2.5, which is deepseek v3": Case(
        {
            "model_type": "kimi_k25",
            "text_config": {
                **{"model_type": "kimi_k2", **SIZES, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128},
                **{"max_position_embeddings": 262144, "rope_theta": 50000.0},
                "rope_scaling": KIMI_YARN | {"original_max_position_embeddings": 4096},
            },
        },
        {
            "all": (
                range(4),
                Rope(
                    head_dim=64,
                    base=50000.0,
                    layout="interleaved_to_half",
                    scaling=Yarn(original_length=4096, scale_softmax=True, **KIMI_SCALING),
                ),
            )
        },
        standing="alias",
        lengths=(4096, 262144),
    ),
    "exaone 4.5, without positions in full attention": Case(
        {
            "model_type": "exaone4_5",
            "text_config": {
                **{"model_type": "exaone4_5_text", **SIZES, "head_dim": 128, "sliding_window": 4096},
                **{"sliding_window_pattern": "LLLG", "max_position_embeddings": 131072, "rope_theta": 1000000},
                "rope_scaling": LLAMA3 | {"rope_type": "llama3"},
            },
        },
        {
            "sliding_attention": (
                [0, 1, 2],
                Combined(
                    Rope(head_dim=128, base=1000000.0, scaling=Llama3(factor=16.0, original_length=8192)),
                    Window(size=4096),
                ),
            ),
            "full_attention": ([3], NoPE()),
        },
        standing="alias",
        lengths=(8192, 131072),
    ),
    "deepseek v4 under the name of its reference code": Case(
        {
            **{"model_type": "deepseek_ref", "head_dim": 512, "qk_rope_head_dim": 64, "num_hidden_layers": 4},
            **{"compress_ratios": [0, 4, 128, 4], "rope_theta": 10000.0, "compress_rope_theta": 160000.0},
            **{"max_position_embeddings": 1048576, "rope_scaling": V4_YARN, "sliding_window": 128},
        },
        {
            "sliding_attention": ([0], Combined(Rope(**V4), Window(size=128))),
            "compressed_sparse_attention": ([1, 3], Rope(**V4, base=160000.0, scaling=V4_SCALING)),
            "heavily_compressed_attention": ([2], Rope(**V4, base=160000.0, scaling=V4_SCALING)),
        },
        standing="alias",
        lengths=(65536, 1048576),
        unsupported=["values turned", "compressed, and of those the most alike", "keys beyond a window compressed"],
    ),
    "qwen-1, with dynamic NTK and log-n past its length": Case(
        {
            **{"model_type": "qwen", **SIZES, "kv_channels": 128, "rotary_pct": 1.0, "rotary_emb_base": 10000},
            **{"seq_length": 8192, "max_position_embeddings": 32768, "use_dynamic_ntk": True, "use_logn_attn": True},
        },
        {"all": (range(4), Combined(Rope(head_dim=128, scaling=QWEN_STEPS), LogN(trained_length=8192)))},
        lengths=(8192, 32768),
    ),
    "lfm2-vl, with convolutions": Case(
        {
            "model_type": "lfm2_vl",
            "text_config": {
                **{"model_type": "lfm2", **SIZES, "layer_types": ["conv", "conv", "full_attention", "conv"]},
                **{"rope_theta": 1000000.0, "max_position_embeddings": 128000},
            },
        },
        {"conv": ([0, 1, 3], NO_ATTENTION), "full_attention": ([2], Rope(head_dim=128, base=1000000.0))},
        lengths=(128000, 128000),
    ),
    "lfm2 of version 4, which counts its attention": Case(
        {"model_type": "lfm2", **SIZES, "full_attn_idxs": [2], "rope_theta": 1000000.0},
        {"conv": ([0, 1, 3], NO_ATTENTION), "full_attention": ([2], Rope(head_dim=128, base=1000000.0))},
    ),
    "qwen2.5-1m, with dual chunks": Case(
        {
            **{"model_type": "qwen2", **SIZES, "max_position_embeddings": 1010000, "rope_theta": 1e7},
            **{"dual_chunk_attention_config": {"chunk_size": 262144, "local_size": 8192}},
        },
        {"full_attention": (range(4), Rope(head_dim=128, base=1e7))},
        lengths=(1010000, 1010000),
        unsupported=["dual chunk attention (dual_chunk_attention_config)"],
    ),
    "ministral 3, with a temperature by position": Case(
        {
            **{"model_type": "ministral3", **SIZES, "head_dim": 128, "max_position_embeddings": 262144},
            "rope_parameters": {
                **{"rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "original_max_position_embeddings": 16384},
                **{"llama_4_scaling_beta": 0.1, "mscale": 1.0, "mscale_all_dim": 1.0},
            },
        },
        {
            "all": (
                range(4),
                Combined(
                    Rope(
                        head_dim=128,
                        base=1e6,
                        scaling=Yarn(factor=16.0, original_length=16384, mscale=1.0, mscale_all_dim=1.0),
                    ),
                    Llama4Temperature(floor_scale=16384, attn_scale=0.1, first=0),
                ),
            )
        },
        lengths=(16384, 262144),
    ),
    "a family of which it is not known whether it has the temperature": Case(
        {
            **{"model_type": "llama", **SIZES, "head_dim": 128, "max_position_embeddings": 4096},
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "llama_4_scaling_beta": 0.1},
        },
        rotated(base=1e6),
        lengths=(4096, 4096),
        unsupported=["temperature by position (llama_4_scaling_beta=0.1)"],
    ),
    "minimax-text-01, which lists its attention by numbers": Case(
        {
            **{"model_type": "minimax_text_01", **SIZES, "head_dim": 128, "rotary_dim": 64, "rope_theta": 10000000},
            **{"attn_type_list": [0, 0, 0, 1], "max_position_embeddings": 10240000},
        },
        {
            "linear_attention": ([0, 1, 2], NO_ATTENTION),
            "full_attention": ([3], Rope(head_dim=128, rotary_dim=64, base=1e7)),
        },
        standing="alias",
        lengths=(10240000, 10240000),
    ),
    "jina-embeddings-v3, whose files say xlm-roberta": Case(
        {
            **{"model_type": "xlm-roberta", **SIZES, "position_embedding_type": "rotary"},
            **{"rotary_emb_base": 20000.0, "max_position_embeddings": 8194},
        },
        rotated(base=20000.0),
        standing="alias",
        lengths=(8194, 8194),
    ),
    "nomic-embed, stretched past its trained length": Case(
        {
            **{"model_type": "nomic_bert", "n_embd": 768, "n_head": 12, "n_layer": 4, "n_positions": 8192},
            **{"rotary_emb_base": 1000, "rotary_scaling_factor": 2, "max_trained_positions": 1024},
        },
        rotated(head_dim=64, base=1000, scaling=DynamicNtk(factor=2.0, original_length=1024)),
        lengths=(1024, 8192),
    ),
    "beam, whose queries grow where nothing turns": Case(
        {
            **{"model_type": "beam", **SIZES, "head_dim": 128, "layer_types": ["full_attention"] * 4},
            **{"rope_parameters": {"full_attention": None}, "max_position_embeddings": 4096},
        },
        {"full_attention": (range(4), NoPE())},
        lengths=(4096, 4096),
        unsupported=["queries that grow with their position (family code): q *= (1 + (i + 1) / 2048)^0.1"],
    ),
    # --- turned in ways of their own
    "nanochat, which turns backwards": Case(
        {"model_type": "nanochat", **SIZES, "max_position_embeddings": 2048, "rope_parameters": {"rope_theta": 1e5}},
        rotated(base=1e5, backwards=True),
        lengths=(2048, 2048),
    ),
    "neomme, with two axes in turn": Case(
        {
            **{"model_type": "neomme", "num_hidden_layers": 4, "head_dim": 64, "sliding_window": 256},
            **{"layer_types": ["sliding_attention"] * 3 + ["full_attention"], "max_position_embeddings": 16384},
            "per_layer_config": {"03": {"sliding_window": None}},
            "rope_parameters": {
                "full_attention": {"rope_theta": 1e6, "partial_rotary_factor": 0.25},
                "sliding_attention": {"rope_theta": 1e4, "partial_rotary_factor": 1.0},
            },
        },
        {
            "sliding_attention": (range(3), MRope(head_dim=64, sections=(16, 16), arrangement="alternating")),
            "full_attention": (
                [3],
                MRope(head_dim=64, rotary_dim=16, base=1e6, sections=(4, 4), arrangement="alternating"),
            ),
        },
        lengths=(16384, 16384),
        unsupported=[
            "a window beside an M-RoPE (sliding_window): a query sees 257 tokens to each side, itself counted"
        ],
    ),
    "hunyuan-ocr, whose sections have a name of their own": Case(
        {
            **{"model_type": "hunyuan_vl", **SIZES, "head_dim": 128, "rope_theta": 10000.0},
            "rope_scaling": {
                **{"alpha": 1000.0, "beta_fast": 32, "beta_slow": 1, "factor": 1.0, "mscale": 1.0},
                **{"mscale_all_dim": 1.0, "type": "xdrope", "xdrope_section": [16, 16, 16, 16]},
            },
        },
        {"all": (range(4), MRope(head_dim=128, sections=(16, 16, 16, 16), scaling=Ntk(factor=1000.0)))},
    ),
    # --- refused by those who take every field for one that they must know
    "qwen2.5, which says that it has no m-rope": Case(
        {
            **{"model_type": "qwen2", **SIZES, "use_mrope": False, "use_sliding_window": False},
            **{"sliding_window": 32768, "max_window_layers": 2, "rope_theta": 1e6, "max_position_embeddings": 32768},
        },
        {"full_attention": (range(4), Rope(head_dim=128, base=1e6))},
        lengths=(32768, 32768),
    ),
    "glm-5, whose indexer turns in its own way": Case(
        {
            **{"model_type": "glm_moe_dsa", **SIZES, "qk_rope_head_dim": 64, "qk_nope_head_dim": 192},
            **{"indexer_rope_interleave": True, "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}},
        },
        {"indexed_attention": (range(4), Rope(head_dim=64, base=1e6, layout="interleaved_to_half"))},
    ),
    "gpt-j, which says that it rotates": Case(
        {
            **{"model_type": "gptj", "n_embd": 4096, "n_head": 16, "n_layer": 4, "n_positions": 2048},
            **{"rotary": True, "rotary_dim": 64},
        },
        {"all": (range(4), Rope(head_dim=256, rotary_dim=64, layout="interleaved"))},
        lengths=(2048, 2048),
    ),
    "dbrx, whose base is in attn_config": Case(
        {
            **{"model_type": "dbrx", "d_model": 6144, "n_heads": 48, "n_layers": 4, "max_seq_len": 32768},
            "attn_config": {"clip_qkv": 8, "kv_n_heads": 8, "rope_theta": 500000},
        },
        rotated(base=500000.0),
        lengths=(32768, 32768),
    ),
    "gemma-3-4b-it, whose text model is saved as differences": Case(
        {
            "model_type": "gemma3",
            "text_config": {
                **{"model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 7, "sliding_window": 1024},
                "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            },
        },
        {
            "sliding_attention": ([0, 1, 2, 3, 4, 6], Combined(Rope(head_dim=256), Window(size=1024))),
            "full_attention": ([5], Rope(head_dim=256, base=1e6, scaling=Linear(factor=8.0))),
        },
        lengths=(None, 131072),
    ),
    "llava-1.5, whose text model is saved as differences": Case(
        {"model_type": "llava", "text_config": {"model_type": "llama", "max_position_embeddings": 4096}},
        {"all": (range(32), Rope(head_dim=128))},
        lengths=(4096, 4096),
    ),
    "a text model inside that does not name its type": Case(
        {"model_type": "gemma3", "text_config": {"num_hidden_layers": 6}},
        {
            "sliding_attention": ([0, 1, 2, 3, 4], Combined(Rope(head_dim=256), Window(size=4096))),
            "full_attention": ([5], Rope(head_dim=256, base=1e6)),
        },
        lengths=(131072, 131072),
    ),
    "chatglm3": Case(
        {
            **{"model_type": "chatglm", "hidden_size": 4096, "num_attention_heads": 32, "kv_channels": 128},
            **{"num_layers": 4, "original_rope": True, "seq_length": 8192},
        },
        rotated(rotary_dim=64, layout="interleaved"),
        lengths=(8192, 8192),
    ),
    "glm-4-9b, whose base has a ratio": Case(
        {
            **{"model_type": "chatglm", "hidden_size": 4096, "num_attention_heads": 32, "kv_channels": 128},
            **{"num_layers": 4, "original_rope": True, "rope_ratio": 500, "seq_length": 131072},
        },
        rotated(rotary_dim=64, layout="interleaved", base=5e6),
        lengths=(131072, 131072),
    ),
    "deepseek-vl2-tiny, without latent attention": Case(
        {
            "model_type": "deepseek_vl_v2",
            "language_config": {
                **{"model_type": "deepseek_v2", "hidden_size": 1280, "num_attention_heads": 10, "use_mla": False},
                **{"num_hidden_layers": 4, "qk_rope_head_dim": 0, "qk_nope_head_dim": 0},
                "max_position_embeddings": 4096,
            },
        },
        rotated(),
        lengths=(4096, 4096),
    ),
    "telechat3, with a temperature of 0.07": Case(
        {
            **{"model_type": "telechat3", **SIZES, "rope_theta": 1e6, "max_position_embeddings": 32768},
            "rope_scaling": {"type": "telechat3-yarn", "factor": 4.0, "original_max_position_embeddings": 8192},
        },
        rotated(base=1e6, scaling=Yarn(factor=4.0, original_length=8192, attention_factor=0.1 * 0.7 * math.log(4) + 1)),
        lengths=(8192, 32768),
    ),
    "openelm": Case(
        {
            **{"model_type": "openelm", "head_dim": 64, "model_dim": 1280, "num_transformer_layers": 4},
            **{"rope_freq_constant": 20000, "rope_max_length": 4096, "max_context_length": 2048},
        },
        rotated(head_dim=64, base=20000.0),
        lengths=(2048, 2048),
    ),
    "phi-3-small": Case(
        {
            **{"model_type": "phi3small", **SIZES, "rope_embedding_base": 2000000, "rope_position_scale": 1.0},
            **{"blocksparse_block_size": 64, "dense_attention_every_n_layers": 2},
        },
        rotated(base=2e6),
        unsupported=["block-sparse attention (blocksparse_block_size)"],
    ),
    "qwen3-moe, with one window": Case(
        {"model_type": "qwen3_moe", **SIZES, "head_dim": 128, "use_sliding_window": True, "sliding_window": 512},
        {"all": (range(4), Combined(Rope(head_dim=128), Window(size=512)))},
    ),
    "recurrentgemma, with a window": Case(
        {
            **{"model_type": "recurrent_gemma", **SIZES, "block_types": ["recurrent", "recurrent", "attention"]},
            "attention_window_size": 2048,
        },
        {
            "recurrent": ([0, 1, 3], NO_ATTENTION),
            "full_attention": ([2], Combined(Rope(head_dim=128, rotary_dim=64), Window(size=2048))),
        },
    ),
    "a family of which it is not known where its window acts": Case(
        {"model_type": "moshi", **SIZES, "head_dim": 128, "sliding_window": 3000},
        rotated(),
        unsupported=["sliding_window=3000: where this family uses it is not known here"],
    ),
    "vila": Case(
        {"model_type": "llava_llama", "llm_cfg": {"model_type": "llama", **SIZES, "rope_theta": 500000.0}},
        rotated(base=500000.0),
        lengths=(2048, 2048),
    ),
    "nv_esm": Case({"model_type": "nv_esm", **SIZES, "position_embedding_type": "rotary"}, rotated(), standing="alias"),
    "baichuan-7b": Case(
        {"model_type": "baichuan", **SIZES, "max_position_embeddings": 4096}, rotated(), lengths=(4096, 4096)
    ),
    # --- layers that differ
    "llama 4, with NoPE, temperature and chunks": Case(
        {"model_type": "llama4_text", **SIZES, "head_dim": 128, "rope_theta": 500000.0, "no_rope_layers": []},
        {
            "chunked_attention": ([0, 1, 2], Rope(head_dim=128, base=500000.0, layout="interleaved")),
            "full_attention": ([3], Llama4Temperature()),
        },
        lengths=(131072, 131072),
        unsupported=["chunked attention (attention_chunk_size): a query sees its own chunk of 8192 keys"],
    ),
    "command r7b": Case(
        {"model_type": "cohere2", **SIZES, "sliding_window": 4096, "sliding_window_pattern": 2, "rope_theta": 50000},
        {
            "sliding_attention": (
                [0, 2],
                Combined(Rope(head_dim=128, base=50000.0, layout="interleaved"), Window(size=4096)),
            ),
            "full_attention": ([1, 3], NoPE()),
        },
        lengths=(8192, 8192),
    ),
    "qwen2 with a window in its upper layers": Case(
        {"model_type": "qwen2", **SIZES, "use_sliding_window": True, "sliding_window": 512, "max_window_layers": 3},
        {
            "full_attention": ([0, 1, 2], Rope(head_dim=128)),
            "sliding_attention": ([3], Combined(Rope(head_dim=128), Window(size=512))),
        },
        lengths=(32768, 32768),
    ),
    "qwen3-next": Case(
        {"model_type": "qwen3_next", **SIZES, "head_dim": 256, "full_attention_interval": 4, "rope_theta": 1e7},
        {
            "linear_attention": ([0, 1, 2], NO_ATTENTION),
            "full_attention": ([3], Rope(head_dim=256, rotary_dim=64, base=1e7)),
        },
        lengths=(32768, 32768),
    ),
    "modernbert": Case(
        {
            **{"model_type": "modernbert", "hidden_size": 768, "num_attention_heads": 12, "num_hidden_layers": 4},
            **{"global_attn_every_n_layers": 3, "global_rope_theta": 160000.0, "local_rope_theta": 10000.0},
            "local_attention": 128,
        },
        {
            "full_attention": ([0, 3], Rope(head_dim=64, base=160000.0)),
            "sliding_attention": ([1, 2], Combined(Rope(head_dim=64), Window(size=65, symmetric=True))),
        },
        lengths=(8192, 8192),
    ),
    "a list of bases": Case(
        {"model_type": "muse_glimmer_text", **SIZES, "head_dim": 128, "layer_rope_theta": [1e4, 1e4, 1e4, 0]},
        {
            "sliding_attention": ([0, 1, 2], Combined(Rope(head_dim=128), Window(size=2048))),
            "full_attention": ([3], NoPE()),
        },
        lengths=(131072, 131072),
    ),
    "granite 4 hybrid without positions": Case(
        {
            **{"model_type": "granitemoehybrid", **SIZES, "layer_types": ["mamba", "mamba", "attention", "mamba"]},
            **{"position_embedding_type": "nope", "rope_theta": 10000},
        },
        {"linear_attention": ([0, 1, 3], NO_ATTENTION), "full_attention": ([2], NoPE())},
        lengths=(2048, 2048),
    ),
    "phi-3 mini 128k": Case(
        {
            **{"model_type": "phi3", "hidden_size": 3072, "num_attention_heads": 32, "num_hidden_layers": 4},
            **{"max_position_embeddings": 131072, "original_max_position_embeddings": 4096, "sliding_window": 262144},
            "rope_scaling": {"type": "su", **LISTS},
        },
        {
            "all": (
                range(4),
                Combined(
                    Rope(head_dim=96, scaling=LongRope(**LISTS, original_length=4096, factor=32.0)),
                    Window(size=262144),
                ),
            )
        },
        lengths=(4096, 131072),
    ),
    # --- positions that do not rotate
    "bloom": Case(
        {"model_type": "bloom", "hidden_size": 4096, "n_head": 32, "n_layer": 4}, {"all": (range(4), Alibi(heads=32))}
    ),
    "kimi linear, which counts its layers from 1": Case(
        {
            **{"model_type": "kimi_linear", **SIZES},
            "linear_attn_config": {"full_attn_layers": [3, 4], "kda_layers": [1, 2], "head_dim": 128},
        },
        {"linear_attention": ([0, 1], NO_ATTENTION), "full_attention": ([2, 3], NoPE())},
    ),
    "llama 3.2 vision, which turns nothing where it looks at an image": Case(
        {"model_type": "mllama_text_model", **SIZES, "cross_attention_layers": [1], "rope_theta": 5e5},
        {"full_attention": ([0, 2, 3], Rope(head_dim=128, base=5e5)), "cross_attention": ([1], NoPE())},
    ),
    "gpt-j, whose base no field changes": Case(
        {
            **{"model_type": "gptj", "n_embd": 4096, "n_head": 16, "n_layer": 4, "rotary": True, "rotary_dim": 64},
            **{"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}},
        },
        rotated(head_dim=256, rotary_dim=64, layout="interleaved"),
    ),
    "step 3.5, whose bases are a list and whose windows are not scaled": Case(
        {
            **{"model_type": "step3p5", **SIZES, "head_dim": 128},
            **{"layer_types": ["full_attention"] + ["sliding_attention"] * 3, "rope_theta": [5e6, 1e4, 1e4, 1e4]},
            **{"partial_rotary_factors": [0.5, 1.0, 1.0, 1.0], "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
        },
        {
            "full_attention": ([0], Rope(head_dim=128, rotary_dim=64, base=5e6, scaling=LLAMA3_SCALING)),
            "sliding_attention": ([1, 2, 3], Rope(head_dim=128)),
        },
    ),
    "the first falcon": Case(
        {"model_type": "RefinedWebModel", "hidden_size": 4544, "n_head": 71, "n_layer": 4, "alibi": False},
        rotated(head_dim=64),
        standing="alias",
    ),
    "nomic-embed, which says that it does not interleave": Case(
        {
            **{"model_type": "nomic_bert", "n_embd": 768, "n_head": 12, "n_layer": 4, "n_positions": 8192},
            **{"rotary_emb_base": 1000, "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False},
            **{"rotary_emb_scale_base": None, "rotary_scaling_factor": None},
        },
        rotated(head_dim=64, base=1000),
    ),
    "modernbert, whose files say absolute": Case(
        {
            **{"model_type": "modernbert", "hidden_size": 768, "num_attention_heads": 12, "num_hidden_layers": 1},
            **{"global_rope_theta": 160000.0, "position_embedding_type": "absolute"},
        },
        {"full_attention": ([0], Rope(head_dim=64, base=160000.0))},
    ),
    "jina-embeddings-v2, whose files say bert": Case(
        {"model_type": "bert", **SIZES, "position_embedding_type": "alibi"},
        {"all": (range(4), NoPE())},
        unsupported=["ALiBi by the distance to both sides"],
    ),
    "mpt that rotates": Case(
        {"model_type": "mpt", "n_layers": 4, "attn_config": {"alibi": False, "rope": True}},
        {"all": (range(4), NoPE())},
        unsupported=["attn_config.rope"],
    ),
    "mpt without positions": Case(
        {"model_type": "mpt", "n_layers": 4, "attn_config": {"alibi": False}, "learned_pos_emb": False},
        {"all": (range(4), NoPE())},
    ),
    "mpt": Case(
        {"model_type": "mpt", "d_model": 4096, "n_heads": 32, "n_layers": 4, "attn_config": {"alibi": True}},
        {"all": (range(4), Alibi(heads=32))},
        lengths=(2048, 2048),
    ),
    "baichuan-13b": Case(
        {"model_type": "baichuan", "hidden_size": 5120, "num_attention_heads": 40, "num_hidden_layers": 4},
        {"all": (range(4), Alibi(heads=40))},
    ),
    "falcon-rw": Case(
        {"model_type": "falcon", "hidden_size": 2048, "num_attention_heads": 32, "num_hidden_layers": 4, "alibi": True},
        {"all": (range(4), Alibi(heads=32, scale=0.125))},
        lengths=(2048, 2048),
    ),
    "gpt-2": Case(
        {"model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 4, "n_positions": 1024},
        {"all": (range(4), Learned(width=768, length=1024))},
        lengths=(1024, 1024),
    ),
    "roberta, whose first two rows are not used": Case(
        {"model_type": "roberta", "hidden_size": 768, "num_hidden_layers": 4, "max_position_embeddings": 514},
        {"all": (range(4), Learned(width=768, length=512))},
        lengths=(514, 514),
    ),
    "albert, which adds positions before it widens": Case(
        {"model_type": "albert", "embedding_size": 128, "hidden_size": 768, "num_hidden_layers": 4},
        {"all": (range(4), Learned(width=128, length=512))},
        lengths=(512, 512),
    ),
    "gpt-neo, with a window in every other layer": Case(
        {"model_type": "gpt_neo", "hidden_size": 64, "num_layers": 4, "attention_types": [[["global", "local"], 2]]},
        {
            "global": ([0, 2], Learned(width=64, length=2048)),
            "local": ([1, 3], Combined(Learned(width=64, length=2048), Window(size=256))),
        },
        lengths=(2048, 2048),
        planned=False,
    ),
    "longt5, whose encoder sees blocks": Case(
        {"model_type": "longt5", "num_heads": 8, "d_model": 512, "local_radius": 127},
        {"encoder": (None, T5(heads=8, bidirectional=True)), "decoder": (None, T5(heads=8))},
        unsupported=["encoder_attention_type 'local': a query sees its own block"],
    ),
    "marian": Case(
        {"model_type": "marian", "d_model": 512, "num_hidden_layers": 4, "max_position_embeddings": 512},
        {"all": (range(4), Sinusoidal(width=512, order="concatenated"))},
        lengths=(512, 512),
    ),
    "t5": Case(
        {"model_type": "t5", "num_heads": 8, "d_model": 512, "num_layers": 6},
        {"encoder": (None, T5(heads=8, bidirectional=True)), "decoder": (None, T5(heads=8))},
    ),
    "jamba": Case(
        {"model_type": "jamba", **SIZES, "attn_layer_period": 4, "attn_layer_offset": 1},
        {"linear_attention": ([0, 2, 3], NO_ATTENTION), "full_attention": ([1], NoPE())},
        lengths=(262144, 262144),
    ),
}
