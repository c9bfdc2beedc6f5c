"""Results of the lab, and the claims that they decide."""

import json
from collections.abc import Iterator
from itertools import permutations
from typing import Any

import pytest

from whorl.claims import every, evidence, find, ledger

FLAT, STEEP = {1.0: 2.3, 2.0: 2.3, 4.0: 2.4}, {1.0: 2.3, 2.0: 2.9, 4.0: 3.5}


def comparison(**rows: dict[float, float]) -> dict[str, Any]:
    """A comparison as the lab writes it, with one row of losses by ratio for each label or label__variant."""
    return {
        "schema": "whorl-lab-comparison/1",
        "train_length": 64,
        "rows": [
            {
                "label": key_of(key)[0],
                "variant": key_of(key)[1],
                "by_length": [
                    {"length": int(64 * ratio), "ratio": ratio, "bits_per_byte": {"same_last": {"mean": loss, "n": 3}}}
                    for ratio, loss in losses.items()
                ],
            }
            for key, losses in rows.items()
        ],
        "differences": [made for one, other in permutations(rows, 2) for made in differences(one, other, rows, 0.001)],
    }


def differences(one: str, other: str, rows: dict[str, dict[float, float]], p: float) -> Iterator[dict[str, Any]]:
    """The differences of two rows as the lab judged them, with this p: twice as wide as they are for p = 0.2."""
    for ratio in rows[one].keys() & rows[other].keys():
        mean, length = rows[one][ratio] - rows[other][ratio], int(64 * ratio)
        half = abs(mean) * (2.0 if p > 0.05 else 0.5)
        yield {
            "kind": "encoding", "measure": "same_last", "row": key_of(one), "other": key_of(other), "length": length,
            "from_length": length, "mean": mean, "low": mean - half, "high": mean + half, "p": p, "least": None,
            "seeds": 3, "samples": 100, "scored_bytes": 1000,
        }  # fmt: skip


def key_of(name: str) -> list[str]:
    label, _, variant = name.partition("__")
    return [label, variant.replace("_", " ") or "as trained"]


@pytest.fixture
def experiments(tmp_path, monkeypatch):
    """Puts comparisons where the ledger looks for them."""
    monkeypatch.setattr(evidence, "folder", lambda: tmp_path)

    def put(name: str, data: Any) -> None:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(data if isinstance(data, str) else json.dumps(data))

    return put


def lab(*ids: str) -> dict[str, Any]:
    return {row.id: row for row in ledger.run(find(id) for id in ids)}


def test_without_results_a_trained_claim_needs_training(experiments):
    rows = lab("alibi.flag.extrapolates", "question.decay-good", "ideal.generalises")
    assert all(row.verdict.kind == "needs training" and row.as_expected for row in rows.values())


def test_results_decide_and_are_named(experiments):
    found = comparison(
        alibi=FLAT, rope=STEEP, sinusoidal={1.0: 2.4, 2.0: 3.5, 4.0: 4.4}, rope__rerope=FLAT,
        rope__pi={4.0: 3.9}, rope__ntk={4.0: 3.0}, t5=FLAT,
    )  # fmt: skip
    experiments("demo/comparison.json", found)
    experiments("notes.json", "not json at all")
    experiments("other.json", {"schema": "another/1"})
    rows = lab(
        "alibi.flag.extrapolates", "rope.flag.extrapolates", "rerope.flag.extrapolates", "t5.flag.extrapolates",
        "question.decay-good", "question.converges-faster", "question.rope-generalises", "question.extrapolation-limit",
        "extension.pi-untrained", "extension.ntk-untrained", "ideal.generalises",
    )  # fmt: skip
    # what the committed comparisons cannot tell, this one does
    assert [id for id, row in rows.items() if not row.as_expected] == ["extension.pi-untrained"]
    assert rows["t5.flag.extrapolates"].verdict.kind == "holds"
    assert all(row.finding.source == "experiments/demo/comparison.json" for row in rows.values())
    assert rows["extension.pi-untrained"].verdict.kind == "fails"
    assert "-0.40 [-0.60, -0.20], p 0.001" in rows["extension.pi-untrained"].finding.counterexample
    assert rows["question.converges-faster"].numbers == {
        "loss at 1x, sinusoidal less rope, bits per byte, demo": pytest.approx(0.1),
        "low, demo": pytest.approx(0.05),
        "high, demo": pytest.approx(0.15),
        "p, demo": 0.001,
    }


def test_results_against_a_claim_turn_it_red(experiments):
    experiments("one.json", comparison(alibi=FLAT, rope=STEEP))
    experiments("two.json", comparison(alibi=STEEP, rope=FLAT))
    rows = lab("alibi.flag.extrapolates", "rope.flag.extrapolates")
    assert not rows["alibi.flag.extrapolates"].as_expected and rows["rope.flag.extrapolates"].as_expected
    assert rows["alibi.flag.extrapolates"].finding.source == "experiments/one.json; experiments/two.json"
    said = rows["alibi.flag.extrapolates"].finding.counterexample
    assert said.startswith("experiments/two.json: ") and "rises by 1.20 bits per byte" in said


@pytest.mark.parametrize(
    "id",
    [
        *("note.rope-any-length", "note.rope-twice", "question.extrapolation-limit", "question.decay-good"),
        *("question.converges-faster", "question.rope-generalises", "rope.flag.extrapolates", "ideal.generalises"),
    ],
)
def test_every_result_that_was_read_is_named(id, experiments):
    waves = {1.0: 2.4, 2.0: 3.5, 4.0: 4.4}
    for name in ("one", "two"):
        experiments(f"{name}.json", comparison(alibi=FLAT, rope=STEEP, t5=FLAT, sinusoidal=waves))
    assert lab(id)[id].finding.source == "experiments/one.json; experiments/two.json"


@pytest.mark.parametrize(
    ("run", "kind"), [({}, "fails"), ({"test_triples": 0}, "inconclusive"), ({"answers_b": 1.0}, "inconclusive")]
)
def test_a_task_whose_runs_are_not_of_triples_shows_nothing(run, kind, experiments):
    triples = {"train_triples": 400, "test_triples": 240, "answers_b": 0.5}
    experiments("matching.json", {"runs": [triples, triples | run]})
    assert lab("note.cail-pairs")["note.cail-pairs"].verdict.kind == kind


def test_held_is_one_number_in_ledger_and_reports():
    """What a claim calls held and what a report says holds."""
    from whorl.lab.report.verdict import HOLD

    assert evidence.HELD == HOLD
    said = [claim for claim in every() if "counts as held" in claim.how or "count as held" in claim.how]
    assert len(said) > 20 and all(f"{HOLD:g}" in claim.how and f"{HOLD:g}" in claim.how_zh for claim in said)


@pytest.mark.parametrize(("rise", "kind"), [(0.14, "holds"), (0.16, "fails")])
@pytest.mark.parametrize("id", ["question.extrapolation-limit", "ideal.generalises", "note.rope-twice"])
def test_a_rise_has_held_up_to_that_number(id, rise, kind, experiments):
    losses = {1.0: 2.0, 2.0: 2.0 + rise, 4.0: 2.0 + rise}
    experiments("one.json", comparison(rope=losses, sinusoidal=losses))
    assert lab(id)[id].verdict.kind == kind


def test_a_flag_that_says_no_turns_red_where_every_result_holds(experiments):
    experiments("one.json", comparison(rope=FLAT, sinusoidal=FLAT, none=STEEP))
    experiments("two.json", comparison(rope=FLAT, sinusoidal=STEEP))
    rows = lab("rope.flag.extrapolates", "sinusoidal.flag.extrapolates", "none.flag.extrapolates")
    assert [row.id for row in rows.values() if not row.as_expected] == ["rope.flag.extrapolates"]


def test_that_decay_is_what_helps_is_red_where_nothing_else_holds(experiments):
    experiments("one.json", comparison(alibi=FLAT, rope=STEEP, t5=STEEP))
    assert not lab("question.decay-good")["question.decay-good"].as_expected
    experiments("two.json", comparison(alibi=FLAT, rope=STEEP, rope__window=FLAT))  # shown, and decides nothing
    assert not lab("question.decay-good")["question.decay-good"].as_expected
    experiments("two.json", comparison(alibi=FLAT, rope=STEEP, rope__rerope=FLAT))
    row = lab("question.decay-good")["question.decay-good"]
    assert row.as_expected and row.finding.counterexample == "rerope hold and need not decay"


def test_what_speaks_against_decay_is_what_was_found(experiments):
    experiments("one.json", comparison(alibi=STEEP, rope=FLAT, t5=STEEP))
    row = lab("question.decay-good")["question.decay-good"]
    assert row.finding.counterexample == "rope hold and need not decay; alibi decay and do not hold"
    assert row.finding.counterexample_zh == "rope 保持质量，而不必衰减；alibi 会衰减，却没有保持"


def judged(p: float, sinusoidal: float) -> dict[str, Any]:
    """A comparison of sinusoidal codes and RoPE at the trained length, whose difference has this p."""
    rows = {"rope": {1.0: 2.3}, "sinusoidal": {1.0: sinusoidal}}
    return comparison(**rows) | {"differences": list(differences("sinusoidal", "rope", rows, p))}


def test_a_difference_inside_its_interval_decides_nothing(experiments):
    experiments("one.json", judged(0.2, sinusoidal=2.35))
    row = lab("question.converges-faster")["question.converges-faster"]
    assert row.verdict.kind == "inconclusive" and not row.as_expected
    assert "+0.05 [-0.05, +0.15], p 0.2" in row.finding.counterexample
    experiments("two.json", judged(0.001, sinusoidal=2.35))
    assert lab("question.converges-faster")["question.converges-faster"].verdict.kind == "holds"
    experiments("three.json", judged(0.001, sinusoidal=2.2))
    assert lab("question.converges-faster")["question.converges-faster"].verdict.kind == "fails"


def test_comparisons_are_judged_together(experiments):
    """One of two that is barely beyond its interval shows nothing: either could have been."""
    experiments("one.json", judged(0.04, sinusoidal=2.2))
    assert lab("question.converges-faster")["question.converges-faster"].verdict.kind == "fails"
    experiments("two.json", judged(0.2, sinusoidal=2.2))
    row = lab("question.converges-faster")["question.converges-faster"]
    assert row.verdict.kind == "inconclusive" and row.numbers["p, one"] == pytest.approx(0.08)


def test_differences_are_those_of_the_report():
    """On the committed comparisons the ledger has the report's intervals, the other way round where it asks so."""
    with ledger.fresh():
        found = {source: result for source, result in evidence.comparisons().items() if "comparison/" in source}
        gaps = evidence.gaps(("rope", "as trained"), ("rope", "pi"), 4.0)
        rises = evidence.gaps(("sinusoidal", "as trained"), ("rope", "as trained"), 4.0, rise=True)
    assert [gap.source for gap in gaps] == list(found) and len(found) == 2
    for gap, result in zip(gaps, found.values(), strict=True):
        row = next(row for row in result.rows if (row.label, row.variant) == ("rope", "pi"))
        own = result.difference("repair", row, 4 * result.trained, "same_last")
        assert own is not None and own.low is not None and own.high is not None
        assert gap == (gap.source, -own.mean, -own.high, -own.low, own.p)
    (rise,) = rises
    losses = {one.source: one for one in evidence.losses("sinusoidal")}[rise.source]
    plain = {one.source: one for one in evidence.losses("rope")}[rise.source]
    assert rise.mean == pytest.approx((losses.rise(4.0) or 0.0) - (plain.rise(4.0) or 0.0)) and rise.p is None


def answers(**differences: tuple[float, float]) -> dict[str, Any]:
    """Answers of small runs as the experiment writes them, each with the interval of its paired difference."""
    made = {}
    for question, (low, high) in differences.items():
        gap = {"mean": (low + high) / 2, "low": low, "high": high, "n": 5}
        row = {
            "setting": "of the data",
            "difference": gap,
            "by_length": {length: {"difference": gap, "all tokens": {"difference": gap}} for length in ("64", "256")},
        }
        rows = [{"setting": "usual", "difference": None}, *[row] * (2 if question == "slow_pairs" else 1)]
        more = {"stages": [], "longest less those beside": gap}
        made[question.replace("_", "-")] = {"rows": rows, "largest |a_i|": gap, **more}
    return {"schema": "whorl-trained-questions/1", "questions": made}


@pytest.mark.parametrize(
    ("id", "question", "interval", "kind"),
    [
        ("question.slow-pairs-hurt", "slow_pairs", (-0.001, 0.001), "fails"),
        ("question.slow-pairs-hurt", "slow_pairs", (-0.3, 0.1), "inconclusive"),
        ("question.slow-pairs-hurt", "slow_pairs", (-0.3, -0.1), "holds"),
        ("extension.factor-from-data-helps", "factor_from_data", (-0.1, 0.1), "inconclusive"),
        ("extension.factor-from-data-helps", "factor_from_data", (-0.2, -0.1), "holds"),
        ("extension.factor-from-data-helps", "factor_from_data", (0.1, 0.2), "fails"),
        ("question.learned-frequencies", "learned_frequencies", (0.01, 0.02), "holds"),
        ("question.learned-frequencies", "learned_frequencies", (0.01, 0.2), "inconclusive"),
        ("question.learned-frequencies", "learned_frequencies", (0.2, 0.3), "fails"),
        ("note.longer-stages", "longer_stages", (0.01, 0.02), "holds"),
        ("note.longer-stages", "longer_stages", (-0.01, 0.02), "inconclusive"),
        ("note.longer-stages", "longer_stages", (-0.02, -0.01), "fails"),
    ],
)
def test_small_runs_decide_a_question(id, question, interval, kind, experiments):
    assert lab(id)[id].verdict.kind == "needs training"
    experiments("trained-questions.json", answers(**{question: interval}))
    row = lab(id)[id]
    assert row.verdict.kind == kind and row.finding.source == "experiments/trained-questions.json"
    assert row.as_expected == (kind == row.claim.expected)


@pytest.mark.parametrize("all_bytes", [(-0.1, 0.1), (0.1, 0.3)])
def test_slow_pairs_are_judged_by_the_last_bytes_and_by_all(all_bytes, experiments):
    found = answers(slow_pairs=(-0.3, -0.1))
    low, high = all_bytes
    for row in found["questions"]["slow-pairs"]["rows"][1:]:
        row["by_length"]["64"]["all tokens"] = {
            "difference": {"mean": (low + high) / 2, "low": low, "high": high, "n": 5}
        }
    experiments("trained-questions.json", found)
    (row,) = lab("question.slow-pairs-hurt").values()
    assert row.verdict.kind == "inconclusive"


@pytest.mark.parametrize(
    ("interval", "words"),
    [
        ((-0.3, -0.2), "some move, and gain"),
        ((0.2, 0.3), "some move, and lose"),
        ((-0.1, 0.1), "gain nothing that shows"),
    ],
)
def test_what_learned_frequencies_gain_is_read_off_the_loss(interval, words, experiments):
    made = answers(learned_frequencies=interval)
    made["questions"]["learned-frequencies"]["largest |a_i|"] = {"mean": 0.2, "low": 0.15, "high": 0.25}
    experiments("trained-questions.json", made)
    row = lab("question.learned-frequencies")["question.learned-frequencies"]
    assert row.as_expected and row.finding.counterexample.endswith(words)


@pytest.mark.parametrize(
    ("means", "interval", "kind"),
    [
        ((2.0, 2.5, 3.0), (0.9, 1.1), "holds"),
        ((2.0, 3.5, 3.0), (0.9, 1.1), "fails"),  # it falls from 128 to 256
        ((3.0, 2.5, 2.0), (-1.1, -0.9), "fails"),
        ((2.0, 2.5, 3.0), (-0.1, 2.1), "inconclusive"),
    ],
)
def test_entropies_decide_whether_attention_spreads(means, interval, kind, experiments):
    low, high = interval
    change = {"mean": means[-1] - means[0], "low": low, "high": high}
    by_length = {length: {"mean": mean} for length, mean in zip(("64", "128", "256"), means, strict=True)}
    rows = [{"encoding": name, "by_length": by_length, "last less first": change} for name in ("rope", "alibi")]
    experiments("trained-questions.json", {"questions": {"entropy-by-length": {"rows": rows}}})
    row = lab("note.entropy-grows")["note.entropy-grows"]
    assert row.verdict.kind == kind and row.as_expected == (kind == "holds")


def ablation(**draws: tuple[float, float]) -> dict[str, Any]:
    """An ablation of slopes as the lab writes it, with the interval of each draw's difference from the usual ones."""
    rows: list[dict[str, Any]] = [{"setting": "press", "by_length": [{"length": 64, "difference": None}]}]
    for setting, (low, high) in draws.items():
        cell = {"mean": (low + high) / 2, "low": low, "high": high, "n": 3}
        difference = {"same_last": cell, "non_overlapping": cell}
        rows.append({"setting": setting, "by_length": [{"length": 64, "difference": difference}]})
    return {"slopes": {"schema": "whorl-lab-ablate/1", "rows": rows}}


def test_an_ablation_decides_whether_slopes_matter(experiments):
    assert lab("alibi.slopes-robust")["alibi.slopes-robust"].verdict.kind == "needs training"
    experiments("ablations.json", ablation(one=(-0.2, -0.1), two=(-0.1, 0.01)))
    row = lab("alibi.slopes-robust")["alibi.slopes-robust"]
    assert row.as_expected and row.finding.source == "experiments/ablations.json"
    experiments("ablations.json", ablation(one=(0.1, 0.2), two=(-0.1, 0.1)))
    row = lab("alibi.slopes-robust")["alibi.slopes-robust"]
    assert not row.as_expected and row.verdict.kind == "fails"
    assert "one differs by +0.15" in row.finding.counterexample and "two" not in row.finding.counterexample
    experiments("ablations.json", ablation(one=(-0.2, 0.1), two=(-0.1, 0.1)))
    assert lab("alibi.slopes-robust")["alibi.slopes-robust"].verdict.kind == "inconclusive"


@pytest.mark.parametrize(
    ("base", "norm", "kind"),
    [((-0.2, 0.1), (0.1, 0.2), "inconclusive"), ((0.1, 0.2), (0.1, 0.2), "holds")]
    + [((-0.01, 0.01), (0.1, 0.2), "fails")],
)
def test_ablations_decide_whether_base_norm_and_encoding_matter(base, norm, kind, experiments):
    (row,) = lab("note.ablation-tables").values()
    assert row.verdict.kind == "needs training"
    accuracies = {"rope": (50.0, 51.0, 52.0), "learned": (60.0, 61.0, 62.0)}
    classified = [{"dataset": "source", "encoding": name, "accuracies": own} for name, own in accuracies.items()]
    tables = {name: ablation(one=interval)["slopes"] for name, interval in (("base", base), ("norm", norm))}
    experiments("ablations.json", {**tables, "classify": {"rows": classified}})
    (row,) = lab("note.ablation-tables").values()
    assert row.verdict.kind == kind and row.as_expected == (kind == "inconclusive")


@pytest.mark.parametrize(
    ("times", "memory", "folded", "kind"),
    [((1.1, 0.8, 0.4), 0.3, 0.9, "depends on"), ((0.9, 0.8, 0.4), 0.3, 0.9, "holds")]
    + [((1.1, 1.2, 1.3), 0.3, 0.9, "fails"), ((0.9, 0.8, 0.4), 1.2, 0.9, "fails")]
    + [((0.9, 0.8, 0.4), 0.3, 1.9, "depends on")],
)
def test_benchmarks_decide_which_is_faster(times, memory, folded, kind, monkeypatch, tmp_path):
    monkeypatch.setattr(evidence, "folder", lambda: tmp_path / "experiments")
    (row,) = lab("note.alibi-faster").values()
    assert row.verdict.kind == "needs training"
    for path, time in zip(evidence.BENCHMARKS.values(), times, strict=True):
        results = [{"name": "rope", "seconds": 1.0, "peak_memory": 1.0}]
        results.append({"name": "alibi", "seconds": time, "peak_memory": memory})
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(json.dumps({"groups": [{"results": results}, {"results": []}]}))
    (row,) = lab("note.alibi-faster").values()
    assert row.verdict.kind == "needs training"
    alone = {"groups": [{"results": [{"name": "whorl, folded", "seconds": folded, "peak_memory": folded}]}]}
    (tmp_path / evidence.FOLDED).write_text(json.dumps(alone))
    (row,) = lab("note.alibi-faster").values()
    assert row.verdict.kind == kind and row.finding.source.count("benchmarks/") == 4


def test_what_would_train_an_encoding_can_be_run():
    from whorl.lab import repairs
    from whorl.lab.plan import read_name

    for claim in every():
        if claim.id.endswith(".flag.extrapolates"):
            name = claim.id.removesuffix(".flag.extrapolates")
            words = evidence.command_for(name).split()
            read_name(words[2])
            if name in evidence.REPAIRS:
                assert words[2:4] == ["rope", "--repairs"]
                repairs.check(words[4])


def test_what_a_command_trains_is_found_under_the_label_that_the_lab_gives_it(experiments):
    from whorl.lab.plan import read_name
    from whorl.lab.settings import label_of, resolve

    sizes = {"heads": 4, "head_dim": 32, "width": 128, "length": 64}
    labels = {name: label_of(resolve(read_name(text), **sizes), **sizes) for name, text in evidence.SPELLED.items()}
    ids = {name: f"{name}.flag.extrapolates" for name in labels}
    assert {row.verdict.kind for row in lab(*ids.values()).values()} == {"needs training"}
    experiments("one.json", comparison(**dict.fromkeys(labels.values(), STEEP)))
    rows = lab(*ids.values())
    held = {name: rows[id].verdict.kind == "fails" for name, id in ids.items()}  # by those that claim to hold
    assert held == {"alibi+hf_bf16": False, "llama4_temperature": False, "self_extend": True, "sinks": True}


def test_an_installed_whorl_has_no_experiments(monkeypatch, tmp_path):
    monkeypatch.setattr(evidence, "__file__", str(tmp_path / "site-packages" / "whorl" / "claims" / "evidence.py"))
    with ledger.fresh():
        assert evidence.folder() is None and evidence.comparisons() == {}


def test_answers_are_kept_with_the_settings_of_their_own_runs():
    """The settings that claims state are those that the file records."""
    depth, data, stages = (evidence.answer(name) for name in ("position-by-depth", "factor-from-data", "longer-stages"))
    assert depth["settings"]["layers"] == 6 and [row["scale"] for row in depth["rows"]] == [0.125, 1.0]
    assert {(len(row["layers"]), layer["n"]) for row in depth["rows"] for layer in row["layers"]} == {(7, 5)}
    assert data["settings"]["stages"] == [[data["trained"], 16, 300]] and data["served"] in data["settings"]["lengths"]
    assert [length for length, _, _ in stages["settings"]["stages"]] == [stage["length"] for stage in stages["stages"]]
    for name in ("slow-pairs", "learned-frequencies", "within-the-length", "entropy-by-length"):
        found = evidence.answer(name)
        assert found["settings"]["layers"] == 2 and found["seeds"] == [0, 1, 2, 3, 4], name
        assert all(list(map(str, found["settings"]["lengths"])) == list(row["by_length"]) for row in found["rows"]), (
            name
        )


@pytest.mark.parametrize(
    ("interval", "verdict"),
    [((0.2, 0.9), "fails"), ((0.1, 0.9), "inconclusive"), ((0.0, 0.15), "holds"), ((-0.3, -0.1), "holds")],
)
def test_a_rise_counts_as_degradation_where_its_whole_interval_lies_above_what_is_held(experiments, interval, verdict):
    low, high = interval
    found = comparison(rope=STEEP, rope__ntk=FLAT)
    at = {"measure": "same_last", "other": ["rope", "ntk"], "p": 0.01, "least": None, "seeds": 3, "samples": 100}
    at |= {"kind": "length", "scored_bytes": 1000, "mean": (low + high) / 2, "low": low, "high": high}
    found["differences"] += [
        at | {"row": ["rope", "ntk"], "length": 256, "from_length": 64},
        # those of another row, length or start say nothing of it
        at | {"row": ["rope", "as trained"], "length": 256, "from_length": 64, "low": 0.8, "high": 0.9},
        at | {"row": ["rope", "ntk"], "length": 128, "from_length": 64, "low": 0.8, "high": 0.9},
        at | {"row": ["rope", "ntk"], "length": 256, "from_length": 128, "low": 0.8, "high": 0.9},
    ]
    experiments("demo/comparison.json", found)
    row = lab("extension.ntk-minimal")["extension.ntk-minimal"]
    assert row.verdict.kind == verdict and row.as_expected is (verdict == "fails")
    assert row.numbers == {
        "rise at 4x with NTK, bits per byte, demo": (low + high) / 2, "low, demo": low, "high, demo": high,
    }  # fmt: skip
    experiments("other/comparison.json", comparison(rope=STEEP))
    assert lab("extension.ntk-minimal")["extension.ntk-minimal"].verdict.kind == verdict
