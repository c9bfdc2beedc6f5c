"""Probes of far use: what they say, where, and that enough of them are asked."""

from __future__ import annotations

import torch

from whorl.lab.probes import KEY, REPEATED, RETRIEVALS, VALUE, repeated, retrieval

SAMPLES = torch.randint(256, (128, 513), generator=torch.Generator().manual_seed(0))


def test_a_key_lies_at_every_depth_and_is_said_again_with_its_value_asked_for():
    for length in (64, 256):
        probe = retrieval(SAMPLES, length)
        assert probe is not None and probe.tokens.shape == (RETRIEVALS, length + 1) and RETRIEVALS == 100
        targets = probe.tokens[:, 1:][:, probe.asked :]
        assert targets.shape[1] == VALUE
        room = length + 1 - 2 * (KEY + VALUE + 3)
        for row, depth, value in zip(probe.tokens, probe.depth, targets, strict=True):
            at = round(depth * room)
            said = row[at : at + KEY + VALUE + 3]
            assert said[[0, KEY + 1, -1]].tolist() == [10, 32, 10]
            assert torch.equal(said[KEY + 2 : -1], value) and torch.equal(row[-len(said) + 1 :], said[:-1])
        assert probe.depth[0] == 0 and probe.depth[-1] == 1 and probe.depth == sorted(probe.depth)
    assert retrieval(SAMPLES, 56) is None


def test_a_text_said_again_is_longer_than_the_window_that_would_see_it():
    probe = repeated(SAMPLES, 256, 64)
    assert probe is not None and probe.tokens.shape == (REPEATED, 257) and probe.asked == 64
    assert torch.equal(probe.tokens[:, 65:130], probe.tokens[:, :65])
    assert torch.equal(probe.tokens[:, :65], SAMPLES[:REPEATED, -65:])
    assert repeated(SAMPLES, 12, 64) is None
