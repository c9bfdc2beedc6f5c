"""Ablations: which norms of queries and keys keep scores relative, and rows made of the lab's own runs."""

from __future__ import annotations

import json

import pytest
import torch

import whorl
from lab_runs import write_texts
from whorl.lab.ablations import (
    NORMS,
    NormedRope,
    base_ablation,
    norm_ablation,
    random_slopes,
    registered,
    relativity_error,
    slope_ablation,
)

TINY = {"layers": 1, "width": 16, "heads": 2, "stages": ((16, 2, 3),), "lengths": (16, 32), "eval_bytes": 128}


def random_gains(encoding: NormedRope) -> NormedRope:
    if encoding.gains is not None:
        torch.nn.init.normal_(encoding.gains, 1.0, 0.3, generator=torch.Generator().manual_seed(0))
    return encoding


@pytest.mark.parametrize("norm", [*NORMS, {"norm": "layer", "gain": True}], ids=str)
def test_scores_are_relative_where_claimed_and_only_there(norm):
    encoding = random_gains(NormedRope(head_dim=16, **norm))
    error = relativity_error(encoding)
    assert error < 1e-12 if encoding.claims.relative else error > 0.01


def test_the_claims_are_those_of_the_notes():
    relative = {str(norm): NormedRope(head_dim=8, **norm).claims.relative for norm in NORMS}
    broken = [norm for norm, keeps in relative.items() if not keeps]
    assert broken == [str({"norm": "layer", "place": "after"}), str({"norm": "rms", "place": "after", "gain": True})]


def test_rms_without_gain_is_the_same_before_and_after_and_none_is_rope():
    q, k = torch.randn(2, 1, 2, 7, 16, dtype=torch.float64)
    at = whorl.positions(7, offset=5)
    before, after = (NormedRope(head_dim=16, place=place).transform_qk(q, k, at, at) for place in ("before", "after"))
    torch.testing.assert_close(before, after, rtol=0, atol=1e-12)
    plain = NormedRope(head_dim=16, norm="none", base=500.0).transform_qk(q, k, at, at)
    torch.testing.assert_close(plain, whorl.Rope(head_dim=16, base=500.0).transform_qk(q, k, at, at), rtol=0, atol=0)


@pytest.mark.parametrize("place", ["before", "after"])
def test_norms_by_hand(place):
    q, k = torch.randn(2, 1, 1, 3, 8, dtype=torch.float64)
    at = whorl.positions(3)
    encoding = random_gains(NormedRope(head_dim=8, norm="layer", place=place, gain=True)).double()
    gains = encoding.gains
    assert gains is not None

    def normed(x, gain):
        centred = x - x.mean(-1, keepdim=True)
        return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * gain

    rope = whorl.Rope(head_dim=8)
    if place == "before":
        expected = rope.transform_qk(normed(q, gains[0]), normed(k, gains[1]), at, at)
    else:
        turned = rope.transform_qk(q, k, at, at)
        expected = normed(turned[0], gains[0]), normed(turned[1], gains[1])
    torch.testing.assert_close(encoding.transform_qk(q, k, at, at), expected)


def test_settings_that_would_be_ignored_are_refused():
    with pytest.raises(whorl.WhorlError, match="place and gain"):
        NormedRope(head_dim=8, norm="none", place="after")


def test_registered_for_a_while():
    with registered():
        assert whorl.build("normed_rope", head_dim=8).config.norm == "rms"
    assert "normed_rope" not in whorl.names()


def test_random_slopes_lie_between_0_and_1():
    draws = [random_slopes(8, draw) for draw in range(3)]
    assert all(0 < slope < 1 for slopes in draws for slope in slopes)
    assert draws[0] == random_slopes(8, 0) != draws[1]


def test_rows_of_every_ablation(tmp_path):
    settings = {"seeds": (0, 1), "corpus": str(write_texts(tmp_path / "texts")), **TINY}
    out = tmp_path / "out"
    bases = base_ablation(out, bases=(1e2, 1e4), **settings)
    norms = norm_ablation(out, norms=NORMS[3:5], **settings)
    slopes = slope_ablation(out, draws=1, **settings)
    assert [row["setting"] for row in bases] == ["100", "10000"]
    assert [row["encoding"]["base"] for row in bases] == [1e2, 1e4]
    assert [row["setting"] for row in norms] == ["layer after", "rms after"]
    assert norms[0]["relativity_error"] > 0.01 > 1e-12 > norms[1]["relativity_error"]
    assert [row["encoding"]["slopes"] for row in slopes] == ["press", random_slopes(2, 0)]
    by_setting = {row["setting"]: row for row in (*bases, *norms, *slopes)}
    assert [rows[0]["usual"] for rows in (bases, norms, slopes)] == ["10000", "layer after", "press"]
    for row in by_setting.values():
        assert row["seeds"] == [0, 1] and row["final_train_loss"]["n"] == 2
        assert [one["length"] for one in row["by_length"]] == [16, 32]
        low, mean, high = (row["by_length"][0]["same_last"][key] for key in ("low", "mean", "high"))
        assert low < mean < high
        for cell, usual in zip(row["by_length"], by_setting[row["usual"]]["by_length"], strict=True):
            if row["setting"] == row["usual"]:
                assert cell["difference"] is None
            else:
                apart = cell["same_last"]["mean"] - usual["same_last"]["mean"]
                assert cell["difference"]["same_last"]["mean"] == pytest.approx(apart)
                assert cell["difference"]["same_last"]["n"] == 2
    json.dumps([bases, norms, slopes], allow_nan=False)
    assert bases == base_ablation(out, bases=(1e2, 1e4), **settings)  # read from the finished runs
