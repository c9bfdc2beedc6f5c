"""Resonance RoPE (Wang et al. 2024): wavelengths rounded to whole numbers of tokens."""

import math


def frequencies(frequencies):
    """2 pi / round(2 pi / w) for each frequency, a list of floats. A frequency of 0 stays 0."""
    return [2 * math.pi / round(2 * math.pi / float(w)) if w else 0.0 for w in frequencies]
