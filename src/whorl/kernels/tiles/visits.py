"""Which tiles are visited, which of them need a mask, and where their tokens are.

Positions are those of keys, and the last query stands at the last key. A row of tiles has at most three parts that need
a mask, where some pairs are seen and others not: the first keys of a text that every query sees, the far end of a
window, and the diagonal or the end of the text. Between the last two all pairs are seen, unless tokens see their own
document only: then every tile needs a mask, and those are visited whose queries and keys may be of one document.
``text`` is the number of keys, how many positions back a query sees, how many first keys it sees beside, and pointers
to the documents and to the given positions of queries and of keys, at position 0. Parts are given as:
    sinks      tiles from 0 on that hold the first keys
    left       where the second part begins, and how many tiles it has
    right      where the third part begins, and how many tiles it has
"""

# pyright: reportArgumentType=false, reportOperatorIssue=false, reportAttributeAccessIssue=false

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def text_of(keys, before, first, p_q_tokens, p_k_tokens, i_b, batch, queries, CASE: tl.constexpr):
    """The text of a batch row; documents lie in front of positions where there are both."""
    p_q = p_q_tokens + i_b * queries - (keys - queries)
    p_k = p_k_tokens + i_b * keys
    behind = batch.to(tl.int64) if CASE.documents else 0
    return keys, before, first, p_q, p_k, p_q + behind * queries, p_k + behind * keys


@triton.jit
def keys_of(start, text, CASE: tl.constexpr):
    """For the queries from ``start`` on: tiles of first keys, the left and the right part, and the keys all see."""
    keys, before, first, _, _, _, _ = text
    ROWS: tl.constexpr = CASE.rows
    KEYS: tl.constexpr = CASE.keys
    end = tl.maximum(tl.minimum(start + ROWS, keys), 0) if CASE.causal else keys
    full_end = tl.maximum(tl.minimum(start + 1, keys), 0) // KEYS * KEYS if CASE.causal else keys // KEYS * KEYS
    sinks, left, full_start = 0, 0, 0
    if CASE.window:
        left = tl.maximum(start - before, 0) // KEYS * KEYS
        full_start = tl.minimum(tl.cdiv(tl.maximum(start + ROWS - 1 - before, 0), KEYS) * KEYS, full_end)
        full_start = tl.maximum(full_start, left)
        full_end = tl.maximum(full_end, full_start)
        sinks = tl.minimum(tl.cdiv(first, KEYS), left // KEYS)
    if CASE.documents:
        full_end = full_start
    lefts = (full_start - left) // KEYS
    rights = tl.cdiv(tl.maximum(end - full_end, 0), KEYS)
    return sinks, left, lefts, full_end, rights, full_start, full_end


@triton.jit
def queries_of(start, queries, text, CASE: tl.constexpr):
    """For the keys from ``start`` on: the left and the right part of the queries, and those that see all of them."""
    keys, before, first, _, _, _, _ = text
    ROWS: tl.constexpr = CASE.rows
    KEYS: tl.constexpr = CASE.keys
    shift = keys - queries
    left, full_start, end, full_end = 0, 0, queries, queries // ROWS * ROWS
    if CASE.causal:
        left = tl.minimum(tl.maximum(start - shift, 0), queries) // ROWS * ROWS
        full_start = tl.cdiv(tl.maximum(start + KEYS - 1 - shift, 0), ROWS) * ROWS
    if CASE.window:
        sink = start < first  # which all queries see, those outside the window a part of the tile only
        end = tl.where(sink, queries, tl.maximum(tl.minimum(queries, start + KEYS + before - shift), 0))
        within = tl.maximum(start + before + 1 - shift, 0) // ROWS * ROWS
        full_end = tl.where(sink, 0, tl.minimum(full_end, within))
    full_start = tl.minimum(full_start, tl.cdiv(end, ROWS) * ROWS)
    full_start = tl.maximum(full_start, left)
    full_end = full_start if CASE.documents else tl.maximum(full_end, full_start)
    lefts = (full_start - left) // ROWS
    rights = tl.cdiv(tl.maximum(end - full_end, 0), ROWS)
    return left, lefts, full_end, rights, full_start, full_end


@triton.jit
def edge_at(t, sinks, left, lefts, right, STEP: tl.constexpr):
    """Where the t-th tile that needs a mask begins."""
    n = tl.where(t < sinks + lefts, left + (t - sinks) * STEP, right + (t - sinks - lefts) * STEP)
    return tl.where(t < sinks, t * STEP, n)


@triton.jit
def seen(o_i, o_j, text, CASE: tl.constexpr):
    """Which pairs of a tile are seen; no query stands behind the last key."""
    keys, before, first, p_q_documents, p_k_documents, _, _ = text
    m_seen = (o_j < keys) & (o_i < keys)
    if CASE.causal:
        m_seen = m_seen & (o_i >= o_j)
    if CASE.window:
        m_seen = m_seen & ((o_i - o_j <= before) | (o_j < first))
    if CASE.documents:
        b_q = tl.load(p_q_documents + o_i, mask=o_i < keys, other=0)
        m_seen = m_seen & (b_q == tl.load(p_k_documents + o_j, mask=o_j < keys, other=0))
    return m_seen


@triton.jit
def may_meet(start, n, text, CASE: tl.constexpr):
    """Whether queries from ``start`` on and keys from n on can be of one document, by the least and the greatest."""
    keys, _, _, p_q_documents, p_k_documents, _, _ = text
    # what is beyond the end stands for the last one
    b_q = tl.load(p_q_documents + tl.minimum(start + tl.arange(0, CASE.rows), keys - 1))
    b_k = tl.load(p_k_documents + tl.minimum(n + tl.arange(0, CASE.keys), keys - 1))
    return (tl.min(b_q, 0) <= tl.max(b_k, 0)) & (tl.min(b_k, 0) <= tl.max(b_q, 0))


@triton.jit
def places_of(o_i, o_j, text, CASE: tl.constexpr):
    """The positions of queries at o_i and keys at o_j that a bias goes by: those given, or the places themselves."""
    keys, _, _, _, _, p_q_positions, p_k_positions = text
    if CASE.placed:
        o_i = tl.load(p_q_positions + tl.minimum(o_i, keys - 1))
        o_j = tl.load(p_k_positions + tl.minimum(o_j, keys - 1))
    return o_i, o_j
