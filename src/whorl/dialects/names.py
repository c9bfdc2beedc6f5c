"""Names under which configs have the sizes of a model: the first of a list that is there counts."""

HEAD_DIMS = ("head_dim", "attention_head_dim", "kv_channels", "attention_head_size", "size_per_head")
WIDTHS = ("hidden_size", "n_embd", "d_model", "n_embed", "model_dim")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_num_attention_heads")
BASES = ("rope_theta", "rotary_emb_base")
SHARES = ("partial_rotary_factor", "rotary_pct", "rotary_emb_fraction", "rope_pct")
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers", "num_transformer_layers")
LENGTHS = (
    *("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "model_max_length", "n_ctx"),
    *("seq_length", "max_context_length", "max_position_embedding"),
)
ORIGINAL = "original_max_position_embeddings"
PARTS = (
    "text_config",
    "llm_config",
    "language_config",
    "thinker_config",
    "vlm_config",
    "llm_cfg",
)  # text models inside

# Fields that change a reading and that most classes of transformers never read: ``class_defaults.json`` says which do.
POSITIONAL = frozenset(
    (
        *("rotary_dim", *SHARES, "partial_rotary_factors", "rotary_value", "rope_interleave", "qk_rope_head_dim"),
        *("rotary_emb_base", "rope_local_base_freq", "global_rope_theta", "local_rope_theta", "swa_rope_theta"),
        *("compress_rope_theta", "layer_rope_theta", "use_mem_rope", "no_rope_layers", "no_rope_layer_interval"),
        *("alibi", "position_embedding_type", "attn_logit_softcapping", "use_sliding_window", "layer_types"),
        *("sliding_window_pattern", "_sliding_window_pattern", "hybrid_override_pattern", "hybrid_layer_pattern"),
        "compress_ratios",
        *("layers_block_type", "block_types", "cross_attention_layers", "linear_attn_config", "full_attn_idxs"),
        *("attn_layer_indices", "attn_type_list", "attn_layer_period", "full_attention_interval"),
        *("global_attn_every_n_layers", "global_head_dim", "per_layer_config", *HEAD_DIMS[1:]),
    )
)
