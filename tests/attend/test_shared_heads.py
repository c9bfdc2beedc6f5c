"""Heads that share keys: few queries of them are rows of one head, with every kind of mask, and nothing is copied."""

import pytest
import torch

import whorl
from dense_flow import normal

HEADS, SHARED, DIM, KEYS, BATCH = 6, 2, 8, 11, 2

MASKS = {
    "none": lambda queries: {},
    "padding": lambda queries: {"key_mask": torch.arange(KEYS) < torch.tensor([[KEYS], [4]])},
    "rows": lambda queries: {"mask": torch.rand(queries, KEYS) < 0.7},
    "by head": lambda queries: {"mask": torch.rand(BATCH, HEADS, queries, KEYS) < 0.7},
    "by head, one row": lambda queries: {"mask": torch.rand(BATCH, HEADS, 1, KEYS) < 0.7},
    "one row": lambda queries: {"mask": torch.rand(BATCH, 1, 1, KEYS) < 0.7},
    "documents": lambda queries: {
        "documents": torch.arange(queries) // 2, "key_documents": torch.arange(KEYS) // 4
    },
}  # fmt: skip
ENCODINGS = {
    "none": lambda: None,
    "rope": lambda: whorl.Rope(head_dim=DIM),
    "alibi": lambda: whorl.Alibi(heads=HEADS),
    "t5": lambda: whorl.T5(heads=HEADS, bidirectional=True),
    "window": lambda: whorl.Window(size=4),
}


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("queries", [1, 3, 5])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", ENCODINGS)
def test_few_queries_equal_formed_scores(name, mask, queries, causal):
    torch.manual_seed(0)
    q, k, v = (normal(BATCH, heads, count, DIM) for heads, count in ((HEADS, queries), (SHARED, KEYS), (SHARED, KEYS)))
    options = {"encoding": ENCODINGS[name](), "causal": causal, **MASKS[mask](queries)}
    with torch.no_grad():
        got = whorl.attention(q, k, v, **options)
        torch.testing.assert_close(got, whorl.attention(q, k, v, impl="torch", **options), rtol=0, atol=1e-6)
