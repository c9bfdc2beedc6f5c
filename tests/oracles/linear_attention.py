"""Linear attention by its definition, every query against every key. The recurrence must come to the same."""

import math

import numpy as np

from . import rotation

FORMS = ("numerator", "both", "one_plus_cosine", "decay", "unnormalised")


def feature(x, name):
    """One of elu+1, relu, squared_relu, identity of one number."""
    if name == "elu+1":
        return x + 1 if x > 0 else math.exp(x)
    return {"relu": max(x, 0.0), "squared_relu": max(x, 0.0) ** 2, "identity": x}[name]


def features(x, name):
    """The feature of every entry of a (heads, length, dim) array."""
    return np.array([[[feature(float(e), name) for e in row] for row in head] for head in x])


def turned(x, angles):
    """Row t of every head rotated by angles[t] (pairs,), half layout: a new array. angles None changes nothing."""
    if angles is None:
        return x
    return np.array([[rotation.rotate(row, angles[t], "half") for t, row in enumerate(head)] for head in x])


def unit(x):
    """Every row divided by its length; a zero row stays zero."""
    return np.array([[row / (np.linalg.norm(row) or 1.0) for row in head] for head in x])


def attention(
    q,
    k,
    v,
    q_positions,
    k_positions,
    q_angles=None,
    k_angles=None,
    form="numerator",
    feature="elu+1",
    causal=True,
    eps=0.0,
    decay=None,
):
    """out_i = sum_j n_ij v_j / (sum_j d_ij + eps), shape (heads, queries, dim of v).

    q, k, v (heads, length, dim); angles (length, pairs) or None for no rotation, half layout; f is the feature, R the
    rotation, applied after it. causal keeps the keys with position j <= i. A query that sees no key has output 0.

    numerator        n = (R_i f(q_i)) . (R_j f(k_j)), d = f(q_i) . f(k_j)          (RoFormer, equation 19)
    both             n = d = (R_i f(q_i)) . (R_j f(k_j))
    one_plus_cosine  n = d = 1 + (R_i q^) . (R_j k^), q^ = f(q) / |f(q)|           (Su's form has feature="identity")
    decay            as numerator, with `decay` required; without angles n = d
    unnormalised     n = (R_i f(q_i)) . (R_j f(k_j)), no denominator and no eps    (rms_norm comes after it)

    `decay`, one rate per head, multiplies n and d by e^(-decay |i - j|) in every form; None is no decay.
    """
    assert form in FORMS, form
    assert form != "decay" or decay is not None, "form='decay' needs rates"
    fq, fk = features(q, feature), features(k, feature)
    if form == "one_plus_cosine":
        fq, fk = unit(fq), unit(fk)
    rq, rk = turned(fq, q_angles), turned(fk, k_angles)
    out = np.zeros((len(q), len(q_positions), np.shape(v)[2]))
    for h in range(len(q)):
        for a, i in enumerate(q_positions):
            top, bottom, seen = np.zeros(np.shape(v)[2]), 0.0, False
            for b, j in enumerate(k_positions):
                if causal and j > i:
                    continue
                seen = True
                n, d = np.dot(rq[h, a], rk[h, b]), np.dot(fq[h, a], fk[h, b])
                if form == "one_plus_cosine":
                    n = d = 1 + n
                elif form == "both":
                    d = n
                fade = 1.0 if decay is None else math.exp(-decay[h] * abs(int(i) - int(j)))
                top += fade * n * np.asarray(v[h][b], dtype=np.float64)
                bottom += fade * d
            if seen:
                out[h, a] = top if form == "unnormalised" else top / (bottom + eps)
    return out


def rms_norm(x, eps=1e-6, weight=None):
    """Every row of (heads, length, dim) divided by sqrt(mean of squares + eps), times weight (dim,) if given."""
    out = np.array([[row / math.sqrt(np.mean(row**2) + eps) for row in head] for head in np.asarray(x, np.float64)])
    return out if weight is None else out * np.asarray(weight, dtype=np.float64)
