"""What runs cost is known before they begin: the tokens that really go through their models."""

from __future__ import annotations

import pytest

from lab_runs import tiny
from whorl.lab.corpus import pack, read_corpus
from whorl.lab.cost import cost_of
from whorl.lab.evaluate import Evaluation
from whorl.lab.load import make_model


@pytest.mark.parametrize("settings", [{}, {"last": 24, "protocols": ("same_last",)}, {"recall": 0.5}])
def test_the_tokens_that_are_scored_are_those_that_go_through_the_model(texts, tmp_path, settings):
    config = tiny(texts, stages=((32, 4, 6),), lengths=(32, 64, 128), repairs=("ntk",), eval_bytes=1024, **settings)
    model = make_model(config)
    evaluation = Evaluation(model, config, read_corpus(str(texts)))
    seen = []
    model.embed.register_forward_hook(lambda module, args, out: seen.append(args[0].numel()))
    rows = evaluation.variant()["by_length"]
    for name in ("ntk", "window"):
        evaluation.variant(name)
    cost = cost_of(config)
    probed = 0 if settings.get("recall") else 8 * 32  # at 32 a key has no room, which the estimate does not mind
    assert cost.evaluated - probed == sum(seen)
    assert cost.trained == 6 * 4 * 32 and cost.scored == rows[0]["tokens_scored"]["same_last"]
    assert 0 < cost.training_share < 1
    pack(read_corpus(str(texts)), tmp_path / "corpus")
    assert cost_of(config, out=tmp_path) == cost
    short = config.replace(eval_bytes=2**20)  # which the text has not
    scored = Evaluation(model, short, read_corpus(str(texts))).variant()["by_length"][0]["tokens_scored"]["same_last"]
    assert cost_of(short, out=tmp_path).scored == scored < cost_of(short).scored
    both = cost_of(config, config.replace(seed=1))
    assert both.evaluated == 2 * cost.evaluated and "2 runs: " in str(both) and "to score them" in str(both)
