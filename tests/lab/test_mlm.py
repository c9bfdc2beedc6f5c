"""Masked-language-model pre-training: what is hidden, the stages, and gradient norms that say where there is none."""

from __future__ import annotations

import json
import math

import pytest
import torch

import whorl
from whorl.lab import mlm
from whorl.lab.encoder_runs import EncoderConfig
from whorl.lab.mlm import MASK, PretrainConfig, mask_tokens, part_of, pretrain, staged
from whorl.lab.monitor import GROUPS, gradient_norms
from whorl.models import RoFormerMaskedLM

TEXT = b"def f(x):\n    return x + 1\n" * 40
TINY = {"layers": 1, "width": 16, "heads": 2}


def test_tokens_are_hidden_in_the_shares_of_bert():
    tokens = torch.randint(256, (200, 500), generator=torch.Generator().manual_seed(0))
    given, chosen = mask_tokens(tokens, torch.Generator().manual_seed(1))
    count = int(chosen.sum())
    assert abs(count / tokens.numel() - 0.15) < 0.005
    assert torch.equal(given[~chosen], tokens[~chosen])
    masked = (given == MASK).sum() / count
    kept = (given == tokens)[chosen].float().mean()  # left as they are, and 1 in 256 of those drawn
    assert abs(masked - 0.8) < 0.015 and abs(kept - 0.1) < 0.015
    drawn = given[chosen & (given != MASK) & (given != tokens)]
    assert len(drawn) / count == pytest.approx(0.1, abs=0.015) and len(drawn.unique()) > 200


def test_one_token_at_least_is_hidden():
    for seed in range(200):
        _, chosen = mask_tokens(torch.zeros(1, 2, dtype=torch.long), torch.Generator().manual_seed(seed))
        assert chosen.any()


def test_stages_are_roformers_divided():
    assert staged(1, length=1, batch=1) == (
        (512, 256, 200_000),
        (1536, 256, 12_500),
        (256, 256, 120_000),
        (128, 512, 80_000),
        (1536, 256, 10_000),
        (512, 512, 30_000),
    )
    assert staged(500, length=4, batch=64)[1] == (384, 4, 25)
    assert min(staged(10**9)[0]) == 1
    with pytest.raises(whorl.WhorlError, match="factor"):
        staged(0)


def test_each_stage_is_reported_and_the_loss_falls():
    settings = PretrainConfig(**TINY, stages=[(16, 4, 3), (32, 2, 40), (8, 8, 20)], learning_rate=1e-2)
    heard = []
    done = pretrain(settings, TEXT, tell=heard.append)
    assert tuple(heard) == done.stages
    assert [(one.length, one.batch, one.steps) for one in done.stages] == [tuple(stage) for stage in settings.stages]
    first, _, last = done.stages
    assert first.loss > 3.5 > 2.9 > last.loss > 0 and last.accuracy > 0.15
    assert all(one.seconds > 0 for one in done.stages)
    json.dumps(done.to_dict(), allow_nan=False)


def test_loss_and_accuracy_are_those_of_the_last_quarter_of_a_stage(monkeypatch):
    seen: list[float] = []
    whole = mlm.cross_entropy

    def watched(logits, wanted):
        seen.append(whole(logits, wanted).item())
        return whole(logits, wanted)

    monkeypatch.setattr(mlm, "cross_entropy", watched)
    done = pretrain(PretrainConfig(**TINY, stages=[(16, 2, 8), (8, 2, 3)]), TEXT)
    assert done.stages[0].loss == pytest.approx(sum(seen[6:8]) / 2)
    assert done.stages[1].loss == pytest.approx(seen[10])


def test_an_encoding_without_parameters_is_said_to_have_none():
    rope, learned = (
        pretrain(PretrainConfig(**TINY, encoding=name, stages=[(8, 2, 2)]), TEXT) for name in ("rope", "learned")
    )
    assert rope.stages[0].gradient_norms["encoding"] is None
    assert rope.notes[0].startswith("rope has no parameters")
    assert learned.notes == () and learned.stages[0].gradient_norms["encoding"] > 0


def test_gradient_norms_make_up_the_whole():
    model = RoFormerMaskedLM(EncoderConfig(encoding="learned", **TINY, seed=0).encoder(30, 8))
    assert gradient_norms(model, part_of) == {}
    model(torch.randint(30, (2, 8))).square().mean().backward()
    norms = gradient_norms(model, part_of)
    whole = math.sqrt(sum(float(one.grad.square().sum()) for one in model.parameters() if one.grad is not None))
    assert math.sqrt(sum(norm**2 for norm in norms.values())) == pytest.approx(whole, rel=1e-5)
    assert tuple(norms) == GROUPS


def test_a_seed_decides_everything(monkeypatch):
    rows: list[torch.Tensor] = []
    whole = mlm.mask_tokens
    monkeypatch.setattr(mlm, "mask_tokens", lambda tokens, draw: rows.append(tokens) or whole(tokens, draw))
    runs = [pretrain(PretrainConfig(**TINY, stages=[(8, 2, 3)], seed=seed), TEXT) for seed in (0, 0, 1)]
    weights = [list(run.model.parameters()) for run in runs]
    assert all(torch.equal(one, other) for one, other in zip(weights[0], weights[1], strict=True))
    assert runs[0].stages[0].loss == runs[1].stages[0].loss != runs[2].stages[0].loss
    assert torch.equal(rows[0], rows[3]) and not torch.equal(rows[0], rows[6]) and not torch.equal(rows[0], rows[1])


def test_bad_settings_are_refused():
    with pytest.raises(whorl.WhorlError, match="has 27 bytes and the longest stage 64"):
        pretrain(PretrainConfig(stages=[(64, 2, 1)]), TEXT[:27])
    with pytest.raises(whorl.WhorlError, match="stages must be"):
        PretrainConfig(stages=[(64, 2)])
    with pytest.raises(whorl.WhorlError, match="width must be positive"):
        PretrainConfig(width=0)
