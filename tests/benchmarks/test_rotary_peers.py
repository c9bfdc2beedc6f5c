"""Rotary code of other libraries, as their users call it."""

from __future__ import annotations

import torch

from whorl.benchmarks.rotary_peers import heads_side_by_side


def test_liger_is_given_the_memory_that_it_reads():
    for length in (1, 3):
        x = torch.randn(2, 4, length, 8)
        given = heads_side_by_side(x)
        assert torch.equal(given, x) and given.transpose(1, 2).stride() == (length * 32, 32, 8, 1)
