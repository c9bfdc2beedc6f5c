"""Configs of transformers models as plain dicts, and what they mean: what several test files read."""

from whorl import Llama3, LongRope, MRope, Ntk, Rope, Yarn

LLAMA = {"model_type": "llama", "hidden_size": 512, "num_attention_heads": 8, "max_position_embeddings": 4096}
OPEN = LLAMA | {"model_type": "internlm2"}  # whose code is not in transformers, so that fields count by any name
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
DEEPSEEK_YARN = {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0, "type": "yarn"}
LISTS = {"short_factor": [1.0 + i / 10 for i in range(48)], "long_factor": [2.0 + i for i in range(48)]}

# --- config files of released checkpoints, their rotary fields as published

RELEASED = {
    "llama 1, which has no rotary field": (LLAMA, Rope(head_dim=64)),
    "llama 3.1": (
        {
            **{"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32},
            **{
                "max_position_embeddings": 131072,
                "rope_theta": 500000.0,
                "rope_scaling": LLAMA3 | {"rope_type": "llama3"},
            },
        },
        Rope(head_dim=128, base=500000.0, scaling=Llama3(factor=8.0, original_length=8192)),
    ),
    "pythia": (
        {
            **{"model_type": "gpt_neox", "hidden_size": 2048, "num_attention_heads": 8},
            **{"rotary_pct": 0.25, "rotary_emb_base": 10000},
        },
        Rope(head_dim=256, rotary_dim=64),
    ),
    "gpt-j": (
        {"model_type": "gptj", "n_embd": 4096, "n_head": 16, "rotary_dim": 64, "n_positions": 2048},
        Rope(head_dim=256, rotary_dim=64, layout="interleaved"),
    ),
    "gpt-j without rotary_dim": (
        {"model_type": "gptj", "n_embd": 4096, "n_head": 16, "rotary_dim": None},
        Rope(head_dim=256, layout="interleaved"),
    ),
    "phi-3 mini 128k": (
        {
            **{"model_type": "phi3", "hidden_size": 3072, "num_attention_heads": 32, "max_position_embeddings": 131072},
            **{
                "original_max_position_embeddings": 4096,
                "rope_scaling": {"type": "su", **LISTS},
                "rope_theta": 10000.0,
            },
        },
        Rope(head_dim=96, scaling=LongRope(**LISTS, original_length=4096, factor=32.0)),
    ),
    "phi-3 when it still said yarn": (
        {
            **{"model_type": "phi3", "head_dim": 96, "max_position_embeddings": 131072},
            **{"original_max_position_embeddings": 4096, "rope_scaling": {"type": "yarn", **LISTS}},
        },
        Rope(head_dim=96, scaling=LongRope(**LISTS, original_length=4096, factor=32.0)),
    ),
    "phi-4 mini": (
        {
            **{"model_type": "phi3", "hidden_size": 3072, "num_attention_heads": 24, "max_position_embeddings": 131072},
            **{"original_max_position_embeddings": 4096, "partial_rotary_factor": 0.75},
            **{"rope_scaling": {"type": "longrope", **LISTS}},
        },
        Rope(head_dim=128, rotary_dim=96, scaling=LongRope(**LISTS, original_length=4096, factor=32.0)),
    ),
    "phi-3.5 moe": (
        {
            **{"model_type": "phimoe", "head_dim": 96, "max_position_embeddings": 131072, "rope_theta": 10000.0},
            "rope_scaling": {
                **{"type": "longrope", **LISTS, "original_max_position_embeddings": 4096},
                **{"short_mscale": 1.243163121016122, "long_mscale": 1.243163121016122},
            },
        },
        Rope(head_dim=96, scaling=LongRope(**LISTS, original_length=4096, attention_factor=1.243163121016122)),
    ),
    "qwen2.5 with yarn": (
        {
            **{"model_type": "qwen2", "hidden_size": 3584, "num_attention_heads": 28, "max_position_embeddings": 32768},
            **{"rope_theta": 1000000.0},
            "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
        },
        Rope(head_dim=128, base=1000000.0, scaling=Yarn(factor=4.0, original_length=32768)),
    ),
    "qwen2-vl": (
        {
            **{"model_type": "qwen2_vl", "hidden_size": 3584, "num_attention_heads": 28, "rope_theta": 1000000.0},
            "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
        },
        MRope(head_dim=128, base=1000000.0, sections=(16, 24, 24)),
    ),
    "qwen2-vl as transformers 4 saved it": (
        {
            **{"model_type": "qwen2_vl", "hidden_size": 3584, "num_attention_heads": 28, "rope_theta": 1000000.0},
            "rope_scaling": {"type": "mrope", "rope_type": "default", "mrope_section": [16, 24, 24]},
        },
        MRope(head_dim=128, base=1000000.0, sections=(16, 24, 24)),
    ),
    "qwen3-omni": (
        {
            "model_type": "qwen3_omni_moe",
            "thinker_config": {
                "model_type": "qwen3_omni_moe_thinker",
                "text_config": {
                    **{"model_type": "qwen3_omni_moe_text", "head_dim": 128, "rope_theta": 1000000},
                    "rope_scaling": {"interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default"},
                },
            },
        },
        MRope(head_dim=128, base=1000000.0, sections=(24, 20, 20), arrangement="interleaved"),
    ),
    "ernie 4.5 vl": (
        {"model_type": "ernie4_5_vl_moe", "hidden_size": 2560, "num_attention_heads": 20, "rope_theta": 500000},
        MRope(head_dim=128, base=500000.0, layout="interleaved", sections=(22, 22, 20), arrangement="ernie"),
    ),
    "deepseek v3": (
        {
            **{"model_type": "deepseek_v3", "hidden_size": 7168, "num_attention_heads": 128, "qk_nope_head_dim": 128},
            **{"qk_rope_head_dim": 64, "max_position_embeddings": 163840, "rope_theta": 10000},
            "rope_scaling": DEEPSEEK_YARN | {"original_max_position_embeddings": 4096},
        },
        Rope(
            head_dim=64,
            layout="interleaved_to_half",
            scaling=Yarn(factor=40, original_length=4096, mscale=1.0, mscale_all_dim=1.0, scale_softmax=True),
        ),
    ),
    "gpt-oss": (
        {
            **{"model_type": "gpt_oss", "head_dim": 64, "max_position_embeddings": 131072, "rope_theta": 150000},
            "rope_scaling": {
                **{"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096},
                **{"rope_type": "yarn", "truncate": False},
            },
        },
        Rope(head_dim=64, base=150000.0, scaling=Yarn(factor=32.0, original_length=4096, truncate=False)),
    ),
    "llama 4": (
        {
            "model_type": "llama4",
            "text_config": {
                **{"model_type": "llama4_text", "head_dim": 128, "rope_theta": 500000.0, "no_rope_layers": []},
                "rope_scaling": LLAMA3 | {"factor": 16.0, "high_freq_factor": 1.0, "rope_type": "llama3"},
            },
        },
        Rope(
            head_dim=128,
            base=500000.0,
            layout="interleaved",
            scaling=Llama3(factor=16.0, original_length=8192, high_freq_factor=1.0),
        ),
    ),
    "command r7b": (
        {
            **{"model_type": "cohere2", "head_dim": 128, "rope_theta": 50000, "rotary_pct": 1.0},
            **{"position_embedding_type": "rope_gptj", "rope_scaling": None},
        },
        Rope(head_dim=128, base=50000.0, layout="interleaved"),
    ),
    "hunyuan 7b": (
        {
            **{"model_type": "hunyuan_v1_dense", "head_dim": 128, "rope_theta": 10000.0},
            "rope_scaling": {
                **{"alpha": 1000.0, "beta_fast": 32, "beta_slow": 1, "factor": 1.0, "mscale": 1.0},
                **{"mscale_all_dim": 1.0, "type": "dynamic"},
            },
        },
        Rope(head_dim=128, scaling=Ntk(factor=1000.0)),
    ),
    "minimax m2": (
        {"model_type": "minimax_m2", "head_dim": 128, "rotary_dim": 64, "rope_theta": 5000000},
        Rope(head_dim=128, rotary_dim=64, base=5000000.0),
    ),
    "falcon": (
        {"model_type": "falcon", "hidden_size": 4544, "num_attention_heads": 71, "alibi": False},
        Rope(head_dim=64),
    ),
    "granite 4 hybrid": (
        {"model_type": "granitemoehybrid", "head_dim": 64, "position_embedding_type": "rope", "rope_theta": 10000},
        Rope(head_dim=64),
    ),
    "esm 2": (
        {"model_type": "esm", "hidden_size": 1280, "num_attention_heads": 20, "position_embedding_type": "rotary"},
        Rope(head_dim=64),
    ),
    "roformer": (
        {"model_type": "roformer", "hidden_size": 768, "num_attention_heads": 12, "rotary_value": False},
        Rope(head_dim=64, layout="interleaved"),
    ),
    "dbrx, whose base is in attn_config": (
        {
            **{"model_type": "dbrx", "d_model": 6144, "n_heads": 48, "max_seq_len": 32768, "rope_parameters": None},
            "attn_config": {"clip_qkv": 8, "kv_n_heads": 8, "rope_theta": 500000},
        },
        Rope(head_dim=128, base=500000.0),
    ),
    "an old yarn llama": (
        {
            **LLAMA,
            "rope_scaling": {
                **{"factor": 16.0, "original_max_position_embeddings": 4096, "type": "yarn", "finetuned": True},
            },
        },
        Rope(head_dim=64, scaling=Yarn(factor=16.0, original_length=4096)),
    ),
}

GEMMA3_4B = {
    "model_type": "gemma3",
    "text_config": {
        **{"model_type": "gemma3_text", "head_dim": 256, "rope_local_base_freq": 10000.0, "rope_theta": 1000000.0},
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    },
}

NESTED = LLAMA | {
    "layer_types": ["full_attention", "sliding_attention", "other_attention"],
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1000000.0},
        "sliding_attention": {"rope_theta": 20000.0},
        "other_attention": None,
    },
}


# --- random rope dicts

TYPES = ("default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional")


def draw_parameters(pick, kind, head_dim, partial, length):
    """A random rope dict of this type, and how many dimensions it turns; ``pick`` is a seeded random.Random."""
    p = {"rope_type": kind, "rope_theta": draw_base(pick)}
    dim = head_dim
    if kind == "proportional":
        p["partial_rotary_factor"] = pick.choice((0.25, 0.3, 0.5, 0.75, 1.0))
    elif partial:
        p["partial_rotary_factor"] = pick.choice((0.25, 0.5, 0.75, 1.0))
        dim = int(head_dim * p["partial_rotary_factor"])
    if kind in ("linear", "dynamic", "llama3", "yarn") or (kind == "proportional" and pick.random() < 0.5):
        p["factor"] = pick.choice((1.0, 2.0, 4, 8.0, 2.7, 32.0, round(pick.uniform(1, 64), 3)))
    if kind in ("yarn", "longrope", "llama3"):
        p["original_max_position_embeddings"] = length // pick.choice((1, 2, 4, 8))
    p |= {"yarn": draw_yarn, "longrope": draw_longrope, "llama3": draw_llama3}.get(kind, lambda *_: {})(pick, dim)
    return p, dim


def draw_base(pick):
    odd = round(10 ** pick.uniform(2, 7), pick.choice((0, 1, 3)))
    return pick.choice((10000, 10000.0, 500000.0, 1000000.0, 1e7, 150000.0, 11158840.0, odd, odd))


def draw_yarn(pick, dim):
    p = {}
    if pick.random() < 0.2:
        p["factor"] = None  # for the ratio of the two lengths
    if pick.random() < 0.5:
        p |= {"beta_fast": pick.choice((32, 16.0, 48.5, 0)), "beta_slow": pick.choice((1, 2.0, 0.75, None))}
    if pick.random() < 0.5:
        p["truncate"] = pick.choice((True, False))
    temperatures = ({}, {"attention_factor": 1.3}, {"mscale": 0.707, "mscale_all_dim": 0.707})
    more = ({"mscale": 1.0, "mscale_all_dim": 0.5}, {"mscale": 0.8}, {"mscale": 1, "mscale_all_dim": 0})
    return p | pick.choice(temperatures + more)


def draw_longrope(pick, dim):
    p = {
        name: [round(pick.uniform(1, top), 4) for _ in range(dim // 2)]
        for name, top in (("short_factor", 3), ("long_factor", 60))
    }
    return p | pick.choice(({}, {"factor": 16.0}, {"attention_factor": 1.25}, {"factor": None}))


def draw_llama3(pick, dim):
    low, high = pick.choice(((1.0, 4.0), (1, 4), (1.0, 1.0), (0.125, 0.5), (1.0, 2.0), (2.0, 8.0)))
    return {"low_freq_factor": low, "high_freq_factor": high}
