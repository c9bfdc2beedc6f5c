"""Differences of a comparison: paired by seed and sample, at each length, with what runs of any version support."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest
from scipy import stats

from lab_runs import tiny
from whorl.errors import WhorlError
from whorl.lab import run_one
from whorl.lab.aggregate import aggregate, collect, corpus_facts
from whorl.lab.compare import write_out
from whorl.lab.report.verdict import Findings
from whorl.results import ComparisonResult, RunResult

LENGTHS = (8, 16, 32, 64)
SAMPLES = 40


@pytest.fixture(scope="module")
def made(texts, tmp_path_factory):
    """A real result, of which others are made."""
    return run_one(tiny(texts), tmp_path_factory.mktemp("run"))


def results(made, losses, *, seeds=3, samples=SAMPLES, noise=0.05, shared=0.5):
    """Results of models whose loss is ``losses[name](length)``, with noise of each seed, and of samples that all share.

    Without samples they are as version 0.1.0 wrote them.
    """
    random, out = np.random.default_rng(0), []
    hard = random.normal(0, shared, SAMPLES)
    for name, loss in losses.items():
        for seed in range(seeds):
            one = copy.deepcopy(made)
            one |= {"id": f"{name}{seed}", "label": name, "seed": seed, "window_baseline": None}
            one["encoding"] = one["config"]["encoding"] = {"name": name}
            one["config"] |= {"seed": seed}
            luck = random.normal(0, 0.01)
            for cell in one["evaluations"][0]["by_length"]:
                own = loss(cell["length"]) + luck + hard + random.normal(0, noise, SAMPLES)
                cell["bits_per_byte"]["same_last"] = float(own.mean())
                if samples:
                    cell |= {"samples": {"same_last": own.tolist()}, "scored_bytes": {"same_last": 16}}
                else:
                    for key in ("samples", "scored_bytes", "retrieval", "repeated"):
                        del cell[key]
            out.append(RunResult.of(one))
    return out


def told(found: ComparisonResult, kind="encoding", measure="same_last"):
    return {(d.row[0], d.length): d for d in found.differences if (d.kind, d.measure) == (kind, measure)}


def test_differences_are_paired_by_sample(made):
    """What makes a sample hard for all cancels: an unpaired interval was three times as wide."""
    found = aggregate(results(made, {"none": lambda n: 3.0, "alibi": lambda n: 3.1}))
    own = told(found)
    assert found.baseline == "none" and set(own) == {("alibi", length) for length in LENGTHS}
    for one in own.values():
        assert one.sign == 1 and one.mean == pytest.approx(0.1, abs=0.05)
        assert (one.seeds, one.samples, one.scored_bytes) == (3, SAMPLES, 16 * SAMPLES)
        assert one.high - one.low < 0.15  # type: ignore[operator]
    row = found.rows[0].cells["same_last"][16]
    unpaired = 2 * 0.5 / SAMPLES**0.5  # of the mean of a row over the samples, twice
    assert unpaired > 2 * (own["alibi", 16].high - own["alibi", 16].low) / 2 and row.n == 3  # type: ignore[operator]


def test_every_length_has_noise_of_its_own(made):
    """Noise was pooled over the lengths up to the trained one and held for those beyond it, where seeds scatter."""
    runs = results(made, {"none": lambda n: 3.0, "alibi": lambda n: 3.0, "kerple": lambda n: 3.0})
    random = np.random.default_rng(1)
    for run in runs:
        for cell in run.evaluations[0]["by_length"]:
            if cell["length"] > 16:
                wild = random.normal(0, 0.2)
                cell["bits_per_byte"]["same_last"] += wild
                cell["samples"]["same_last"] = [bits + wild for bits in cell["samples"]["same_last"]]
    own = told(aggregate(runs))
    half = {length: max(d.high - d.low for (_, n), d in own.items() if n == length) / 2 for length in LENGTHS}
    least = {length: max(d.least for (_, n), d in own.items() if n == length) for length in LENGTHS}
    assert min(half[32], half[64]) > 4 * max(half[8], half[16])
    assert least[64] > 4 * least[16] and not any(d.sign for d in own.values())


def test_one_seed_tells_the_trained_models_apart_by_text_alone(made):
    runs = results(made, {"none": lambda n: 3.0, "alibi": lambda n: 3.1}, seeds=1)
    one = told(aggregate(runs))["alibi", 16]
    bits = [run.evaluations[0]["by_length"][1]["samples"]["same_last"] for run in runs]
    low, high = stats.ttest_rel(bits[1], bits[0]).confidence_interval()
    assert (one.low, one.high) == pytest.approx((low, high)) and one.seeds == 1


def test_folders_of_0_1_0_are_read_with_what_they_support(made, tmp_path):
    """They have no losses by sample: with seeds, intervals over seeds; with one, none, and no order."""
    losses = {"none": lambda n: 3.0, "alibi": lambda n: 3.3}
    old = results(made, losses, samples=0)
    for run in old:
        folder = tmp_path / "runs" / run.id
        folder.mkdir(parents=True)
        (folder / "result.json").write_text(json.dumps(run.to_dict()))
    one = told(aggregate(collect(tmp_path)))["alibi", 16]
    means = [run.evaluations[0]["by_length"][1]["bits_per_byte"]["same_last"] for run in old]
    assert one.sign == 1 and one.samples == 0 and one.p == pytest.approx(stats.ttest_rel(means[3:], means[:3]).pvalue)
    found = write_out(aggregate(collect(tmp_path)), tmp_path).result
    said = found.data["verdict"]["en"]
    assert "lowest loss at the trained length (16) is that of NoPE" in said["verdict"][0]
    assert any("losses by sample were not kept" in note for note in said["notes"])
    alone = write_out(aggregate(results(made, losses, samples=0, seeds=1)), tmp_path / "one").result
    assert all(one.low is None for one in alone.differences)
    assert "no order is called" in alone.data["verdict"]["en"]["verdict"][0]


def test_a_broken_model_lends_its_scatter_to_nobody(made):
    losses = {"none": lambda n: 3.0, "alibi": lambda n: 3.1, "rope": lambda n: 3.0 if n <= 16 else 5.0}
    runs = results(made, losses, seeds=4)
    for run in runs[8:]:
        for cell in run.evaluations[0]["by_length"][2:]:
            wild = np.random.default_rng(run.seed).normal(0, 1)
            cell["bits_per_byte"]["same_last"] += wild
            cell["samples"]["same_last"] = [bits + wild for bits in cell["samples"]["same_last"]]
    found = aggregate(runs, baseline="none")
    own = told(found)
    assert own["alibi", 64].sign == 1 and own["alibi", 64].high - own["alibi", 64].low < 0.2  # type: ignore[operator]
    assert own["rope", 64].high - own["rope", 64].low > 1  # type: ignore[operator]


def test_a_baseline_that_was_chosen_costs_more_than_one_that_was_named(made):
    """The best of six is the luckiest of six: all pairs are judged, where a named one has five."""
    losses = {name: (lambda n: 3.0) for name in ("none", "alibi", "kerple", "rope", "t5", "sinusoidal")}
    runs = results(made, losses)
    chosen = aggregate(runs)
    named = aggregate(runs, baseline=chosen.baseline)
    assert chosen.baseline == named.baseline and named.named and not chosen.named
    wide, narrow = (max(d.least for d in told(found).values()) for found in (chosen, named))
    assert wide > 1.1 * narrow


def test_an_unknown_baseline_names_those_there_are(made):
    with pytest.raises(WhorlError, match=r"unknown baseline 'alibbi'\. Did you mean 'alibi'"):
        aggregate(results(made, {"none": lambda n: 3.0, "alibi": lambda n: 3.0}), baseline="alibbi")


def test_models_are_held_against_themselves_at_the_trained_length(made):
    found = aggregate(results(made, {"none": lambda n: 3.0 - 0.002 * (n - 16), "alibi": lambda n: 3.0}))
    own = told(found, "length")
    assert own["none", 64].sign == -1 and own["none", 64].mean == pytest.approx(-0.096, abs=0.03)
    assert own["alibi", 64].sign == 0 and own["none", 64].from_length == 16 and ("none", 8) not in own
    assert found.data["differences"] == json.loads(json.dumps(found.data["differences"]))


def test_runs_that_are_not_alike_are_refused_or_said_to_be(made):
    runs = results(made, {"none": lambda n: 3.0, "alibi": lambda n: 3.0}, seeds=1)
    runs[1].config["layers"] = 2
    with pytest.raises(WhorlError, match="not equal in all but the encoding: layers 1 and 2"):
        aggregate(runs)
    assert aggregate(runs, unequal=True).unequal == {"layers": [1, 2]}
    factor = aggregate(runs, factors=["layers"])
    assert factor.unequal == {} and [row.settings for row in factor.rows] == [{"layers": 1}, {"layers": 2}]


def test_a_seed_that_diverged_is_none_that_numbers_are_of(made):
    runs = results(made, {"none": lambda n: 3.0, "alibi": lambda n: 3.1}, seeds=2)
    lost = {"stopped_early": "the loss is nan at step 3", "evaluations": [], "window_baseline": None}
    found = aggregate([*runs[:3], RunResult.of(runs[3].to_dict() | lost)])
    assert [row.seeds for row in found.rows] == [(0, 1), (0,)] and found.seeds == 1 and found.interval == "documents"
    assert told(found)["alibi", 16].seeds == 1


@pytest.mark.parametrize(
    ("setting", "value", "factor"), [("corpus_digest", "another", "corpus"), ("recall", 0.5, "recall")]
)
def test_samples_of_different_texts_are_no_pairs(made, setting, value, factor):
    """Two texts in one folder were told apart by samples that had nothing to do with each other."""
    losses = {"none": lambda n: 3.0, "alibi": lambda n: 3.1}
    for seeds in (1, 3):
        runs = results(made, losses, seeds=seeds)
        assert told(aggregate(runs))["alibi", 16].samples == SAMPLES
        for one in runs[seeds:]:
            one.config[setting] = value
        for found in (aggregate(runs, factors=[factor]), aggregate(runs, unequal=True)):
            one = told(found)["alibi", 16]
            assert (one.seeds, one.samples, one.scored_bytes) == (seeds, 0, 0)
            assert (one.low is None) == (seeds == 1)


def test_a_comparison_of_two_texts_is_headed_by_both(made, tmp_path):
    runs = [one.config for one in results(made, {"none": lambda n: 3.0}, seeds=2)]
    runs[1] |= {"corpus": "/texts/other.txt", "corpus_digest": "other"}
    assert corpus_facts(tmp_path, runs) == {"name": f"{runs[0]['corpus']}, /texts/other.txt"}


def test_marks_are_held_against_the_chance_of_marks(made, tmp_path):
    """One of ten is right by chance, and 18 of 100 were told from the 1 in 26 of letters."""
    runs = results(made, {"none": lambda n: 3.0, "alibi": lambda n: 3.0}, seeds=1)
    for share, above in ((0.18, False), (0.6, True)):
        right = [1.0] * int(100 * share) + [0.0] * (100 - int(100 * share))
        for one in runs:
            for cell in one.evaluations[0]["by_length"]:
                probes = {"right": right, "depth": [i / 99 for i in range(100)], "chance": 0.1}
                cell |= {"retrieval_accuracy": share, "retrieval": probes, "repeated_text_accuracy": None}
        found = write_out(aggregate(runs), tmp_path).result
        assert found.rows[0].cells["retrieval_accuracy"][16].chance == 0.1
        (recall,) = Findings(found).recalls
        assert recall.above_chance == above
        told_nothing = any("Retrieval tells nothing" in note for note in found.data["verdict"]["en"]["notes"])
        assert told_nothing != above


def test_retrieval_is_held_against_the_window_probe_by_probe(made):
    runs = results(made, {"none": lambda n: 3.0}, seeds=1)
    table = runs[0].evaluations[0]["by_length"]
    window = copy.deepcopy(table)
    right, chance = [1.0] * 80 + [0.0] * 20, [0.0] * 96 + [1.0] * 4
    for cells, probes in ((table, right), (window, chance)):
        depth = [i / 99 for i in range(100)]
        cells[-1] |= {"retrieval_accuracy": float(np.mean(probes)), "retrieval": {"right": probes, "depth": depth}}
    one = RunResult.of(runs[0].to_dict() | {"window_baseline": {"by_length": window}})
    found = aggregate([one])
    reach = told(found, "window", "retrieval_accuracy")["none", 64]
    assert reach.sign == 1 and reach.mean == pytest.approx(0.76) and reach.samples == 100
    row = found.rows[0]
    cell = row.cells["retrieval_accuracy"][64]
    exact = stats.binomtest(80, 100).proportion_ci(method="exact")
    assert (cell.low, cell.high, cell.trials) == pytest.approx((exact.low, exact.high, 100))
    assert [share for _, _, share in row.by_depth[64]] == [1.0, 1.0, 1.0, 1.0, 0.0]


def test_repairs_of_a_task_are_held_against_the_model_item_by_item(made, tmp_path):
    random = np.random.default_rng(2)
    runs = []
    for one in results(made, {"rope": lambda n: 3.0}, seeds=2):
        scores = []
        for share in (0.3, 0.8):
            right = (random.random(256) < share).astype(int).tolist()
            entry = {"length": 32, "items": 256, "exact_match": float(np.mean(right)), "token_accuracy": 0.9}
            scores.append({"name": "copy", "by_length": [{**entry, "samples": {"exact_match": right}}]})
        tried = [
            {"variant": name, "settings": {}, "fine_tuned_steps": 0, "by_length": [], "task": own}
            for name, own in zip(("as trained", "ntk"), scores, strict=True)
        ]
        runs.append(RunResult.of(one.to_dict() | {"evaluations": tried, "task": scores[0]}))
    found = aggregate(runs)
    (one,) = (d for d in found.differences if d.kind == "repair")
    assert one.row == ("rope", "ntk") and one.sign == 1 and one.samples == 256
    assert [row.at("exact_match", 32) is None for row in found.rows] == [False, False]
    page = write_out(found, tmp_path).report.read_text()
    assert "exact match of each repair less that of the model it repairs" in page
