"""Names under which configs have the sizes of a model: the first of a list that is there counts."""

HEAD_DIMS = ("head_dim", "attention_head_dim", "kv_channels", "attention_head_size", "size_per_head")
WIDTHS = ("hidden_size", "n_embd", "d_model", "n_embed", "model_dim")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_num_attention_heads")
BASES = ("rope_theta", "rotary_emb_base")
SHARES = ("partial_rotary_factor", "rotary_pct", "rotary_emb_fraction")
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers", "num_transformer_layers")
LENGTHS = (
    *("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "model_max_length", "n_ctx"),
    *("seq_length", "max_context_length"),
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
