"""Readers of foreign configs: a plain dict in, plain settings out, without torch."""
