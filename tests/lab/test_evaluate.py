"""Evaluation by length against the same numbers computed one token at a time, and repairs against their formulas."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from torch import nn

import whorl
from lab_runs import LENGTHS, lasting, tiny
from whorl.encodings.layer_plan import LayerPlan
from whorl.encodings.masks import Window
from whorl.errors import WhorlError
from whorl.lab import evaluate, fine_tune, run_one
from whorl.lab.batches import TextBatches
from whorl.lab.corpus import read_corpus
from whorl.lab.evaluate import Evaluation, reach, score, serving, windows
from whorl.lab.fine_tune import fine_tuned
from whorl.lab.language import language_loss
from whorl.lab.load import make_model
from whorl.lab.repairs import repaired, serves
from whorl.lab.settings import RunConfig, cautions
from whorl.lab.train import train

WAYS = ("non_overlapping", "sliding", "same_last")


@pytest.fixture(scope="module")
def trained(texts):
    """A run of a few steps: its config, model and text."""
    config = tiny(texts, steps=40, learning_rate=2e-2, layers=2)
    model, corpus = make_model(config), read_corpus(str(texts))
    train(model, config, language_loss(model, config, TextBatches(corpus, config)))
    return config, model, corpus


def by_length(found, way="same_last"):
    return {row["length"]: row["bits_per_byte"][way] for row in found["by_length"]}


# -- the three ways ---------------------------------------------------------------------------------------------------


def test_bits_per_byte_are_those_of_tokens_one_by_one(trained):
    config, model, corpus = trained
    found = Evaluation(model, config, corpus).variant()
    samples = corpus.samples(64, math.ceil(512 / 64))
    assert len(samples) == 8
    for row in found["by_length"]:
        length = row["length"]
        sums = dict.fromkeys(WAYS, 0.0)
        counts = dict.fromkeys(WAYS, 0)
        for sample in samples.tolist():
            for start in range(0, 64, length):
                window = torch.tensor([sample[start : start + length]])
                logs = model(window)[0].detach().double().log_softmax(-1)
                for place in range(length):
                    bits = -float(logs[place, sample[start + place + 1]]) / math.log(2)
                    last = start + length == 64 and place >= length - config.last
                    for way, counted in zip(WAYS, (True, place >= length * 3 // 4, last), strict=True):
                        sums[way] += bits * counted
                        counts[way] += counted
        assert row["tokens_scored"] == counts
        for way in WAYS:
            assert row["bits_per_byte"][way] == pytest.approx(sums[way] / counts[way], rel=1e-5), (length, way)
        assert row["ratio"] == length / 16


def test_lengths_that_do_not_divide_the_longest_are_served(trained):
    config, model, corpus = trained
    odd = config.replace(lengths=(10, 24, 50))
    found = Evaluation(model, odd, corpus).variant()
    assert [row["tokens_scored"]["non_overlapping"] for row in found["by_length"]] == [11 * 50, 11 * 48, 11 * 50]
    assert windows(50, 24, 4)["same_last"] == [(26, 4)]


def test_standard_errors_are_over_samples(trained):
    config, model, corpus = trained
    evaluation = Evaluation(model, config, corpus)
    row = evaluation.variant()["by_length"][-1]
    nats, _ = score(model.eval(), evaluation.samples, config)
    means = nats.double().mean(1) / math.log(2)
    assert row["stderr"]["non_overlapping"] == pytest.approx(float(means.std() / math.sqrt(8)), rel=1e-5)


def test_loss_by_position_is_that_of_the_longest_windows(trained):
    config, model, corpus = trained
    evaluation = Evaluation(model, config, corpus)
    found = evaluation.variant()["per_position"]
    nats, _ = score(model.eval(), evaluation.samples, config)
    expected = (nats.double().mean(0) / math.log(2)).view(32, 2).mean(1)
    assert found["positions"] == list(range(0, 65, 2))
    assert found["bits_per_byte"] == pytest.approx(expected.tolist(), rel=1e-5)


@pytest.mark.parametrize(("longest", "last"), [(64, 20), (64, 32), (100, 30)])
def test_windows_that_slide_score_the_same_last_tokens_with_most_of_a_length_before_them(longest, last):
    for length in (8, 15, 16, 32, longest):
        places = windows(longest, length, last, slide=True)["same_last"]
        targets = [start + length - n + i for start, n in places for i in range(n)]
        assert targets == list(range(longest - last, longest)) and min(start for start, _ in places) >= 0
        if last <= longest - length:
            assert max(n for _, n in places) <= max(1, length // 4)


def test_more_last_tokens_than_the_shortest_length_are_the_same_at_every_length(trained):
    config, model, corpus = trained
    config = config.replace(last=24)
    evaluation = Evaluation(model, config, corpus)
    rows = evaluation.variant()["by_length"]
    assert [row["tokens_scored"]["same_last"] for row in rows] == [8 * 24] * 4
    bits = [[] for _ in range(8)]
    for row, sample in zip(bits, evaluation.samples, strict=True):
        for end in range(64 - 24 + 2, 65, 2):  # the windows of 8 tokens, each with its last 2 scored
            nats, _ = score(model.eval(), sample[None, end - 8 : end + 1], config)
            row += (nats[0, -2:] / math.log(2)).tolist()
    assert rows[0]["samples"]["same_last"] == pytest.approx([sum(row) / 24 for row in bits], rel=1e-5)
    with pytest.raises(WhorlError, match=r"last must be at most 56 for a length of 8, got 62"):
        config.replace(lengths=(8, 60, 64), last=62)


def test_every_sample_and_probe_is_kept_in_the_order_of_the_text(trained):
    config, model, corpus = trained
    evaluation = Evaluation(model, config, corpus)
    row = evaluation.variant()["by_length"][-1]
    nats, _ = score(model.eval(), evaluation.samples, config)
    expected = nats[:, -config.last :].double().mean(1) / math.log(2)
    assert row["samples"]["same_last"] == pytest.approx(expected.tolist(), rel=1e-5)
    assert row["scored_bytes"] == {"same_last": 8, "sliding": 16, "non_overlapping": 64}
    for name, measure in (("retrieval", "retrieval_accuracy"), ("repeated", "repeated_text_accuracy")):
        assert len(row[name]["right"]) == 8 and sum(row[name]["right"]) / 8 == pytest.approx(row[measure])
    assert row["retrieval"]["depth"][0] == 0 and row["retrieval"]["depth"][-1] == 1


def test_one_way_of_scoring_alone_gives_the_same_numbers_and_leaves_the_others_out(trained):
    config, model, corpus = trained
    whole = Evaluation(model, config, corpus).variant()
    alone = Evaluation(model, config.replace(protocols=["same_last"]), corpus).variant()
    assert by_length(alone) == pytest.approx(by_length(whole), rel=1e-5)
    assert alone["per_position"]["bits_per_byte"] == pytest.approx(whole["per_position"]["bits_per_byte"], rel=1e-5)
    for row in alone["by_length"]:
        assert row["bits_per_byte"]["sliding"] is None and row["tokens_scored"]["non_overlapping"] == 0
        assert 0 <= row["accuracy"] <= 1
    for wrong in ([], ["sliding"], ["same_last", "same_last"]):
        with pytest.raises(WhorlError, match="protocols must be same_last and others, each once"):
            config.replace(protocols=wrong)


# -- whether far text is used -----------------------------------------------------------------------------------------


class Recalls(nn.Module):
    """Says the token that followed the last time the last ``memory`` tokens stood there, within reach; else a space."""

    def __init__(self, config: RunConfig, reach: int = 10**9, memory: int = 6) -> None:
        super().__init__()
        self.plan = LayerPlan.shared(whorl.NoPE(), layers=1)
        self.vocab, self.reach, self.memory = config.vocab, reach, memory
        self.blocks = []

    def forward(self, tokens, length=None):
        logits = torch.zeros(*tokens.shape, self.vocab)
        for row, said in enumerate(tokens.tolist()):
            for i in range(len(said)):
                key = said[max(0, i - self.memory + 1) : i + 1]
                places = range(max(len(key) - 1, i - self.reach), i)
                found = [j for j in places if said[j - len(key) + 1 : j + 1] == key]
                logits[row, i, said[found[-1] + 1] if found else 32] = 20.0
        return logits


def test_a_model_that_recalls_everything_scores_full_and_one_that_sees_little_does_not(texts):
    config = tiny(texts, "none", lengths=(64, 128), stages=((32, 4, 1),))
    corpus = read_corpus(str(texts))
    scores = {}
    for reach_ in (10**9, 32, 24):  # 32 is what a window of the trained length lets a model recall
        rows = Evaluation(Recalls(config, reach_), config, corpus).variant()["by_length"]  # pyright: ignore[reportArgumentType]
        scores[reach_] = [(row["repeated_text_accuracy"], row["retrieval_accuracy"]) for row in rows]
    for repeated, retrieval in scores[10**9]:
        assert repeated > 0.8 and retrieval == 1.0  # where the text begins again it has to find its place
    for reach_ in (32, 24):
        assert scores[reach_][0][0] < 0.5 and scores[reach_][1][0] < 0.5  # the text was said 33 tokens ago
        assert scores[reach_][1][1] < 0.5  # a key anywhere in 128 tokens


def test_only_the_letters_of_the_value_count(texts):
    config = tiny(texts, "none", lengths=(64,), stages=((32, 4, 1),))
    model = Recalls(config)
    model.forward = lambda tokens, length=None: torch.eye(256)[torch.full(tokens.shape, 10)]  # a new line, always
    (row,) = Evaluation(model, config, read_corpus(str(texts))).variant()["by_length"]  # pyright: ignore[reportArgumentType]
    assert row["retrieval_accuracy"] == 0.0


def test_short_lengths_have_no_room_for_the_scores_of_far_use(trained):
    config, model, corpus = trained
    rows = Evaluation(model, config, corpus).variant()["by_length"]
    assert [row["retrieval_accuracy"] is None for row in rows] == [True, True, True, False]
    assert [row["repeated_text_accuracy"] is None for row in rows] == [True, False, False, False]


# -- what cannot be served, and in how much memory --------------------------------------------------------------------


def test_learned_positions_end_where_their_table_does(texts):
    config = tiny(texts, "learned")
    found = Evaluation(make_model(config), config, read_corpus(str(texts))).variant()
    values = by_length(found)
    assert all(math.isfinite(values[length]) for length in (8, 16)) and values[32] is values[64] is None
    assert found["by_length"][-1]["tokens_scored"]["same_last"] == 0 and found["per_position"] is None
    assert reach(whorl.Combined(whorl.Learned(width=8, length=5), whorl.LogN())) == 5
    assert reach(whorl.Rope(head_dim=8)) == math.inf


@pytest.mark.parametrize("name", ["rope", "alibi", "kerple", "forgetting_gate"])
def test_a_window_over_long_text_is_made_some_queries_at_a_time(texts, monkeypatch, name):
    config = tiny(texts, name, layers=2)
    model = make_model(config).eval()
    tokens = torch.randint(256, (2, 65))
    shapes = []
    real = Window.mask
    monkeypatch.setattr(
        Window, "mask", lambda self, q, k: shapes.append((q.shape[-1], k.shape[-1])) or real(self, q, k)
    )
    with serving(model, repaired("window", model.plan[0], trained=16, length=64)):
        whole, _ = score(model, tokens, config)
        assert max(shapes) == (64, 64)
        shapes.clear()
        monkeypatch.setattr(evaluate, "QUERIES_AT_ONCE", 8)
        parts, _ = score(model, tokens, config)
    assert max(queries for queries, _ in shapes) == 8
    assert torch.allclose(whole, parts, atol=1e-5)


def test_rows_go_through_a_few_at_a_time(trained, monkeypatch):
    config, model, corpus = trained
    whole = Evaluation(model, config, corpus).variant()
    monkeypatch.setitem(evaluate.TOKENS_AT_ONCE, "cpu", 100)
    sizes = []
    hook = model.embed.register_forward_hook(lambda module, args, out: sizes.append(args[0].numel()))
    parts = Evaluation(model, config, corpus).variant()
    hook.remove()
    assert max(sizes) <= 100
    assert by_length(parts) == pytest.approx(by_length(whole), rel=1e-5)


# -- repairs ----------------------------------------------------------------------------------------------------------

ROPE = whorl.Rope(head_dim=16)
Q, K = torch.randn(1, 2, 64, 16).double(), torch.randn(1, 2, 64, 16).double()


def scores_of(encoding, length=64):
    """Scores of every query and key where the encoding puts them, before any bias."""
    return encoding_scores(encoding, whorl.positions(64), length)


def encoding_scores(encoding, positions, length):
    q, k = encoding.transform_qk(Q, K, positions, positions, length)
    return q @ k.mT


def turned(frequencies):
    """Scores of Q and K rotated with these frequencies, from the definition."""
    angles = torch.arange(64).double()[:, None] * torch.as_tensor(frequencies).double()
    turn = torch.polar(torch.ones_like(angles), angles)
    halves = [torch.complex(x[..., :8], x[..., 8:]) * turn for x in (Q, K)]
    return torch.einsum("bhid,bhjd->bhij", halves[0], halves[1].conj()).real


PLAIN = [10_000 ** (-2 * i / 16) for i in range(8)]
BASE_4 = 10_000 * 4 ** (16 / 14)
BASE_7 = 10_000 * 7 ** (16 / 14)


@pytest.mark.parametrize(
    ("name", "frequencies"),
    [
        ("pi", [w / 4 for w in PLAIN]),
        ("ntk", [BASE_4 ** (-2 * i / 16) for i in range(8)]),
        ("dynamic-ntk", [BASE_7 ** (-2 * i / 16) for i in range(8)]),  # 2 * 4 - 1
    ],
)
def test_frequencies_of_a_repair_at_4_times_the_length(name, frequencies):
    found = repaired(name, ROPE, trained=16, length=64)
    assert torch.allclose(scores_of(found), turned(frequencies), atol=1e-5)


@pytest.mark.parametrize(("name", "fast"), [("yarn", 32.0), ("yarn-beta4", 4.0)])
def test_yarn_takes_its_betas_and_its_factor(name, fast):
    scaling = repaired(name, ROPE, trained=16, length=64).config.scaling
    assert (scaling.factor, scaling.original_length, scaling.beta_fast, scaling.beta_slow) == (4.0, 16, fast, 1.0)


@pytest.mark.parametrize(("name", "far"), [("rerope", lambda d: 8), ("leaky-rerope", lambda d: 8 + (d - 8) / 7)])
def test_distances_past_the_window_are_brought_back(name, far):
    found = repaired(name, ROPE, trained=16, length=64)
    near, beyond = found.branches(whorl.positions(64), whorl.positions(64))
    for i, j in ((40, 39), (40, 33), (40, 32), (63, 0)):
        distance = i - j
        branch = near if distance < 8 else beyond
        assert branch.allowed[i, j] and not (beyond if distance < 8 else near).allowed[i, j]
        expected = distance if distance < 8 else far(distance)
        assert float(branch.q_positions[i] - branch.k_positions[j]) == pytest.approx(expected)
    assert far(64) == 8 or far(64) == 16  # the farthest of 64 stands at the trained length


def test_log_n_grows_with_the_query_and_the_window_hides():
    found = repaired("rerope+logn", ROPE, trained=16, length=64)
    scaled = found.scale_queries(Q, whorl.positions(64))
    growth = torch.tensor([max(1.0, math.log(i + 1) / math.log(16)) for i in range(64)]).double()
    assert torch.allclose(scaled, Q * growth[:, None])
    seen = repaired("window", ROPE, trained=16, length=64).mask(whorl.positions(64), whorl.positions(64))
    assert seen[40].nonzero().flatten().tolist()[0] == 25


@pytest.mark.parametrize(
    "name", ["pi", "ntk", "dynamic-ntk", "yarn-beta4", "leaky-rerope", "logn", "window", "ntk+logn"]
)
def test_up_to_the_trained_length_nothing_changes(name):
    assert repaired(name, ROPE, trained=16, length=16) is ROPE
    assert repaired(name, ROPE, trained=16, length=17) is not ROPE


def test_learned_frequencies_go_with_the_repair():
    rope = whorl.Rope(head_dim=16, learnable=True)
    with torch.no_grad():
        rope.log_scale.fill_(math.log(2))
    found = repaired("pi", rope, trained=16, length=64)
    assert torch.allclose(found.frequencies(), torch.tensor(PLAIN).double() / 2)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("ntkk", "unknown repair 'ntkk'. Did you mean 'ntk'?"),
        ("yarn-betax", "unknown repair"),
        ("pi+ntk", "pi and ntk both place queries and keys"),
        ("logn+logn", "a part stands there twice"),
    ],
)
def test_a_wrong_repair_is_an_error(texts, name, said):
    with pytest.raises(WhorlError, match=said.replace("?", r"\?")):
        tiny(texts, repairs=(name,))


def test_repairs_of_rope_are_refused_elsewhere_and_the_added_ones_are_not(texts):
    with pytest.raises(WhorlError, match="takes the place of plain rope, not of alibi"):
        tiny(texts, "alibi", repairs=("ntk",))
    with pytest.raises(WhorlError, match="not of Alibi"):
        repaired("ntk", whorl.Alibi(heads=2), trained=16, length=32)
    assert serves("logn+window", {"name": "alibi"}) and not serves("rerope+logn", {"name": "alibi"})
    assert not serves("ntk", {"name": "rope", "scaling": {"name": "yarn"}})


def test_a_repair_is_what_is_evaluated_and_the_model_gets_its_own_back(trained):
    config, model, corpus = trained
    own = model.plan
    evaluation = Evaluation(model, config, corpus)
    plain, ntk, window = (evaluation.variant(name) for name in ("as trained", "ntk", "window"))
    assert model.plan is own
    assert [ntk["by_length"][i] is plain["by_length"][i] for i in range(4)] == [True, True, False, False]
    assert ntk["settings"]["scaling"]["factor"] == 4.0
    with serving(model, whorl.Rope(head_dim=8, scaling=whorl.Ntk(factor=4.0))):
        nats, _ = score(model, evaluation.samples, config)
    expected = float(nats.double()[:, -config.last :].mean()) / math.log(2)
    assert by_length(ntk)[64] == pytest.approx(expected, rel=1e-6)
    assert by_length(window)[64] != by_length(plain)[64]


def test_with_one_layer_a_window_is_blind_to_what_lies_before_it(texts):
    config = tiny(texts, last=4)
    found = Evaluation(make_model(config), config, read_corpus(str(texts))).variant("window")
    values = by_length(found)
    assert values[32] == pytest.approx(values[64], rel=1e-6) and values[16] != pytest.approx(values[64], rel=1e-6)


def test_fine_tuning_lowers_the_loss_of_a_copy(trained):
    config, model, corpus = trained
    config = config.replace(fine_tune_steps=12)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    evaluation = Evaluation(model, config, corpus)
    plain = by_length(evaluation.variant("pi"), "non_overlapping")
    tuned = fine_tuned(model, config, evaluation, "pi", corpus)
    assert tuned["fine_tuned_steps"] == 12 and tuned["variant"] == "pi"
    assert by_length(tuned, "non_overlapping")[64] < plain[64]
    assert tuned["settings"]["scaling"] == {"name": "linear", "factor": 4.0}
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_fine_tune_that_was_stopped_goes_on(texts, tmp_path, monkeypatch):
    config = tiny(texts, repairs=("pi",), fine_tune_steps=6)
    whole = run_one(config, tmp_path / "whole")
    steps = []

    class Stop(Exception):  # noqa: N818
        pass

    def batches(corpus, gentle):
        made = TextBatches(corpus, gentle)

        def at(step):
            steps.append(step)
            if len(steps) == 10:  # four steps into the second of two fine-tunes
                raise Stop
            return made(step)

        return at

    monkeypatch.setattr(fine_tune, "TextBatches", batches)
    monkeypatch.setattr(fine_tune, "train", partial(train, save_seconds=0.0))
    folder = tmp_path / "stopped"
    with pytest.raises(Stop):
        run_one(config, folder)
    assert sorted(path.name for path in (folder / fine_tune.TUNED).iterdir()) == ["as-trained", "pi"]
    result = run_one(config, folder)
    assert steps == [*range(6), *range(4), 3, 4, 5] and lasting(result) == lasting(whole)
    assert not (folder / fine_tune.TUNED).exists()


# -- settings known to mislead ----------------------------------------------------------------------------------------


def test_far_buckets_and_ramps_that_mislead_are_named(texts):
    t5 = {"name": "t5", "buckets": 8}
    assert cautions(tiny(texts, {**t5, "max_distance": 8})) == []
    (said,) = cautions(tiny(texts, {**t5, "max_distance": 9}))
    assert said.startswith("t5: max_distance 9 > half the trained length 16") and "Use max_distance=8" in said
    (said,) = cautions(tiny(texts, repairs=("yarn", "yarn-beta2")))
    assert said.startswith("yarn: at trained length 16 the fastest pair turns 3 times")
    assert "every pair but the first is slowed" in said
    (said,) = cautions(tiny(texts, repairs=("yarn-beta8+logn", "ntk+logn")))
    assert said.startswith("yarn-beta8+logn: at trained length 16") and "less than beta_fast 8," in said
    (said,) = cautions(tiny(texts, {"name": "sinusoidal"}, width=64))
    assert "Use scale=0.125" in said


@pytest.mark.parametrize("head_dim", [16, 64, 128])
@pytest.mark.parametrize("trained", [16, 64, 200])
def test_yarn_slows_every_pair_but_the_first_where_the_fastest_turns_too_little(head_dim, trained):
    scaled = whorl.Rope(head_dim=head_dim, scaling=whorl.Yarn(factor=4.0, original_length=trained)).frequencies()
    left = scaled / whorl.Rope(head_dim=head_dim).frequencies()
    assert float(left[0]) == 1.0 and bool((left[1:] < 0.999).all())


def test_lengths_are_a_quarter_to_16_times_unless_given():
    config = RunConfig(encoding={"name": "rope"}, stages=((64, 2, 1),))
    assert config.lengths == (16, 32, 64, 128, 256, 512, 1024) and config.last == 16
    assert RunConfig(encoding={"name": "rope"}, stages=((512, 2, 1),)).last == 64
    assert tuple(LENGTHS) == (8, 16, 32, 64)
