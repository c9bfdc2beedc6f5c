"""Factors on the query at a position (from 0), so that attention stays sharp over many keys. Floats."""

import math


def log_n(position, trained_length):
    """max(1, ln(position + 1) / ln(trained_length)): Su 2021, applied at test time."""
    return max(1.0, math.log(position + 1) / math.log(trained_length))


def ssmax(position, s, b=0.0):
    """s ln(position + 1) + b: scalable softmax (Nakanishi 2025), with its optional bias."""
    return s * math.log(position + 1) + b


def llama4(position, floor_scale=8192, attn_scale=0.1):
    """1 + attn_scale ln(1 + floor((position + 1) / floor_scale)): the temperature of Llama 4's layers without RoPE."""
    return 1 + attn_scale * math.log(1 + (position + 1) // floor_scale)
