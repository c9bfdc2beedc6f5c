"""Attention that takes any encoding."""
