"""Configs that break each rule of the lint, what is said of them, and the nearest that keep it."""

from hf_configs import LISTS

LLAMA = {"model_type": "llama", "hidden_size": 512, "num_attention_heads": 8, "num_hidden_layers": 4}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LONG = {"model_type": "phi3", "hidden_size": 3072, "num_attention_heads": 32, "num_hidden_layers": 4}
LONG |= {"max_position_embeddings": 131072, "original_max_position_embeddings": 4096}
QWEN_VL = {"model_type": "qwen2_vl", "head_dim": 128, "num_hidden_layers": 4, "rope_theta": 1e6}

GEMMA3 = {"model_type": "gemma3_text", "head_dim": 256, "num_hidden_layers": 6}


def v4(**rope):
    return LLAMA | {"rope_theta": 1e6, "max_position_embeddings": 32768, "rope_scaling": YARN | rope}


def without(config, *names):
    return {key: value for key, value in config.items() if key not in names}


def scaled(**rope):
    return LLAMA | {"rope_theta": 1e6, "max_position_embeddings": 32768, "rope_scaling": rope}


def v5(**rope):
    return LLAMA | {"max_position_embeddings": 32768, "rope_parameters": {"rope_theta": 1e6} | rope}


CLEAN = LLAMA | {"max_position_embeddings": 2048, "rope_theta": 5e5}

# for each rule: a config that breaks it, what is said of it, and the nearest config that does not
CASES = {
    "unknown-family": (CLEAN | {"model_type": "new"}, "model_type 'new' is in no table", CLEAN),
    "alias-family": (
        CLEAN | {"model_type": "nv_esm", "position_embedding_type": "rotary"},
        "model_type 'nv_esm' runs the code of 'esm'",
        CLEAN | {"model_type": "esm", "position_embedding_type": "rotary"},
    ),
    "only-version-5": (v5(), "the only word of the base 1e+06: elsewhere it falls to 10,000", v5(rope_theta=10000.0)),
    "only-version-4": (v4(), "rope_scaling stands there without rope_parameters", CLEAN),
    "schemas-differ": (
        v4() | {"rope_parameters": YARN | {"factor": 8.0}},
        "rope_parameters and rope_scaling differ in factor",
        v4() | {"rope_parameters": YARN},
    ),
    "theta-in-rope-scaling": (
        without(v4(rope_theta=1e6), "rope_theta"),
        "rope_theta=1000000.0 stands inside rope_scaling alone",
        v4(),
    ),
    "theta-beside": (
        LLAMA | {"rope_theta": 1e6, "rope_parameters": {"rope_type": "default"}},
        "rope_theta stands beside rope_parameters, and rope_parameters has none",
        v5(),
    ),
    "theta-inside": (
        LLAMA | {"model_type": "dbrx", "attn_config": {"rope_theta": 500000}},
        "attn_config has the only word of the base 500000: elsewhere it falls to 10,000",
        LLAMA | {"model_type": "dbrx", "attn_config": {"rope_theta": 500000}, "rope_theta": 500000},
    ),
    "name-not-read": (
        CLEAN | {"model_type": "gpt_neox", "rotary_emb_base": 10000},
        "rope_theta=500000 does nothing: gpt_neox reads rotary_emb_base",
        CLEAN | {"model_type": "gpt_neox", "rotary_emb_base": 500000},
    ),
    "not-by-layer-type": (
        GEMMA3 | {"rope_parameters": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}},
        "rope_parameters is one for all layers: gemma3's class",
        GEMMA3 | {"rope_theta": 1e6, "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
    ),
    "two-types": (v4(type="linear"), "rope_scaling has rope_type 'yarn' and type 'linear'", v4(type="yarn")),
    "scaling-without-type": (
        scaled(factor=4.0),
        "rope_scaling has factor=4 and no type that uses it: nothing is scaled",
        v4(),
    ),
    "vendor-type": (
        LONG | {"rope_scaling": {"type": "su", **LISTS}},
        "rope_scaling says 'su', which transformers knows as 'longrope'",
        LONG | {"rope_scaling": {"type": "longrope", **LISTS}},
    ),
    "vendor-key": (
        v4(scaling_factor=4.0),
        "rope_scaling has 'scaling_factor', which transformers calls 'factor'",
        v4(),
    ),
    "attn-factor": (v4(attn_factor=1.0), "rope_scaling has attn_factor=1.0", v4(attention_factor=1.0)),
    "ext-factor": (v4(ext_factor=4.0), "rope_scaling has ext_factor=4, the size of a factor", v4()),
    "attention-factor-dropped": (v4(attention_factor=1.0), "rope_scaling states attention_factor=1.0", v4()),
    "not-a-dict": (LLAMA | {"rope_scaling": "yarn"}, "rope_scaling is str", v4()),
    "shares-differ": (
        CLEAN | {"rotary_pct": 0.5, "partial_rotary_factor": 0.25},
        "partial_rotary_factor=0.25, rotary_pct=0.5",
        CLEAN | {"rotary_pct": 0.5, "partial_rotary_factor": 0.5},
    ),
    "odd-length": (
        v4() | {"max_position_embeddings": 32786},
        "max_position_embeddings=32786 is nearly 32768",
        v4() | {"max_position_embeddings": 32770},
    ),
    "no-original-length": (
        scaled(rope_type="yarn", factor=4.0),
        "rope_scaling of type 'yarn' has no original length beside a maximum of 32768",
        v4(),
    ),
    "original-above-claimed": (
        v4(original_max_position_embeddings=65536),
        "original length 65536 is above the maximum 32768",
        v4(),
    ),
    "factor-mismatch": (v4(factor=8.0), "factor 8, but the maximum is 4 times the original length", v4()),
    "factor-twice": (
        v4() | {"max_position_embeddings": 131072},
        "the maximum is 16 = 4^2 times the original length",
        v4(),
    ),
    "factor-below-one": (scaled(rope_type="linear", factor=0.5), "rope_scaling has factor=0.5", v4()),
    "factor-one": (scaled(rope_type="linear", factor=1), "rope_scaling of type 'linear' has factor=1", v4()),
    "beta-order": (v4(beta_fast=1, beta_slow=32), "beta_fast=1 is below beta_slow=32", v4(beta_fast=32, beta_slow=1)),
    "betas-equal": (v4(beta_fast=1, beta_slow=1), "beta_fast and beta_slow are both 1", v4()),
    "beta-zero": (v4(beta_fast=0), "rope_scaling has beta_fast=0", v4(beta_fast=32)),
    "mscale-all-dim-zero": (
        v4(mscale=1.0, mscale_all_dim=0),
        "rope_scaling has mscale_all_dim=0",
        v4(mscale=1.0, mscale_all_dim=1.0),
    ),
    "mscale-alone": (v4(mscale=1.0), "rope_scaling has mscale alone", v4(mscale=1.0, mscale_all_dim=1.0)),
    "low-high-order": (
        scaled(**LLAMA3 | {"low_freq_factor": 8.0}),
        "low_freq_factor=8 is above high_freq_factor=4",
        scaled(**LLAMA3),
    ),
    "low-high-equal": (
        scaled(**LLAMA3 | {"high_freq_factor": 1.0}),
        "low_freq_factor and high_freq_factor are both 1",
        scaled(**LLAMA3),
    ),
    "dynamic-original": (
        scaled(type="dynamic", factor=2.0, original_max_position_embeddings=8192),
        "of type 'dynamic' states an original length of 8192, the maximum is 32768",
        scaled(type="dynamic", factor=2.0),
    ),
    "dynamic-served": (scaled(type="dynamic", factor=2.0), "rope_scaling is dynamic NTK", v4()),
    "base-not-a-number": (LLAMA | {"rope_theta": "1e6"}, "rope_theta is '1e6'", CLEAN),
    "base-below-bound": (
        LLAMA | {"rope_theta": 10000.0, "max_position_embeddings": 131072},
        "base 10000 for 131072 positions, the bound is 9.1e+06",
        CLEAN,
    ),
    "list-length": (
        LONG | {"rope_scaling": {"type": "longrope", **LISTS, "long_factor": [1.0, 2.0]}},
        "long_factor has 2 numbers for 48 pairs",
        LONG | {"rope_scaling": {"type": "longrope", **LISTS}},
    ),
    "sections-sum": (
        QWEN_VL | {"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 8]}},
        "mrope_section [16, 24, 8] sums to 48 for 64 pairs",
        QWEN_VL | {"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}},
    ),
    "precision": (CLEAN | {"max_position_embeddings": 1048576}, "1048576 positions are claimed", CLEAN),
    "dead-rope-fields": (
        {"model_type": "nemotron_h", "hybrid_override_pattern": "M*", "rope_theta": 10000},
        "rope_theta on a model that does not rotate",
        {"model_type": "nemotron_h", "hybrid_override_pattern": "M*"},
    ),
    "fixed-rotation": (
        {"model_type": "gptj", "n_embd": 1024, "n_head": 16, "rotary_dim": 64, "rope_theta": 500000.0},
        "rope_theta on a model whose base is always 10,000",
        {"model_type": "gptj", "n_embd": 1024, "n_head": 16, "rotary_dim": 64},
    ),
    "layers-without-rotation": (
        LLAMA | {"model_type": "cohere2", "sliding_window": 4096},
        "1 layers of kind 'full_attention' have attention without rotation",
        CLEAN,
    ),
    "not-supported": (
        CLEAN | {"model_type": "qwen2", "dual_chunk_attention_config": {"chunk_size": 8192}},
        "dual chunk attention (dual_chunk_attention_config)",
        CLEAN | {"model_type": "qwen2"},
    ),
    "list-per-layer": (
        CLEAN | {"model_type": "qwen3", "layer_types": ["full_attention"] * 3},
        "layer_types has 3 entries for 4 layers",
        CLEAN | {"model_type": "qwen3", "layer_types": ["full_attention"] * 4},
    ),
    "window-unused": (
        CLEAN | {"model_type": "qwen2", "use_sliding_window": False, "sliding_window": 4096},
        "sliding_window=4096 beside use_sliding_window=false",
        CLEAN | {"model_type": "qwen2", "use_sliding_window": False, "sliding_window": None},
    ),
    "window-above-length": (
        CLEAN | {"model_type": "mistral", "sliding_window": 4096},
        "sliding_window=4096 for at most 2048 positions",
        CLEAN | {"model_type": "mistral", "sliding_window": 1024},
    ),
    "alibi-and-rope": (
        CLEAN | {"model_type": "falcon", "alibi": True},
        "alibi is true, and there are rope fields",
        CLEAN | {"model_type": "falcon", "alibi": False},
    ),
    "filled-in": (
        {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", "num_hidden_layers": 2}},
        "head_dim=256",
        CLEAN,
    ),
    "yarn-with-sections": (
        QWEN_VL | {"rope_scaling": YARN | {"mrope_section": [16, 24, 24]}},
        "YaRN beside mrope_section",
        QWEN_VL | {"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}},
    ),
    "truncate-by-layer": (
        CLEAN | {"layer_types": ["a"] * 4, "rope_parameters": {"a": YARN | {"truncate": False}}},
        "rope_parameters.a has truncate=false",
        v4(truncate=False),
    ),
    "rotated-part": (
        CLEAN | {"model_type": "phi3", "partial_rotary_factor": 0.5},
        "the leading 32 of 64 dimensions are rotated",
        CLEAN,
    ),
}
