"""Sinusoidal code (Vaswani et al. 2017): one position, one row."""

import math

import numpy as np


def code(position, width, base=10000, order="interleaved"):
    """The code of one position, shape (width,): sin and cos of position * w_k, w_k = base^(-2k / width).

    interleaved: sin cos sin cos ...; an odd width drops the last cosine.
    concatenated: all sines, then all cosines; an odd width has (width - 1) / 2 of each and ends with a zero
    (tensor2tensor's padding). The exponent always divides by the width asked for, odd or not.
    """
    out = np.zeros(width)
    for k in range((width + 1) // 2):
        angle = position * float(base) ** (-2 * k / width)
        if order == "interleaved":
            out[2 * k] = math.sin(angle)
            if 2 * k + 1 < width:
                out[2 * k + 1] = math.cos(angle)
        elif order == "concatenated":
            half = width // 2
            if k < half:
                out[k] = math.sin(angle)
                out[half + k] = math.cos(angle)
        else:
            raise ValueError(order)
    return out
