"""Benchmarks that run on a user's machine: one registry, one runner, one file per benchmark."""
