"""Claims about what encodings work with: KV caches, and linear attention in all its forms."""
