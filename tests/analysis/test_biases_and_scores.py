"""What biases and encodings do to scores, against the papers written out and the attention of the library."""

import math

import numpy as np
import pytest
import torch

import registry_cases
import whorl
from oracles import alibi, kerple, t5, xpos
from whorl.analysis import bias_maps, losses, scores


def test_a_bias_map_hides_keys_after_the_query():
    found = bias_maps.bias_map(whorl.Alibi(heads=6), 7)
    expected = alibi.bias(range(7), range(7), alibi.slopes(6))
    lower = np.tri(7, dtype=bool)
    assert np.isnan(found[:, ~lower]).all()
    np.testing.assert_allclose(found[:, lower], expected[:, lower], atol=1e-7)


def test_a_bias_map_of_both_sides():
    encoding = whorl.T5(heads=3, bidirectional=True)
    found = bias_maps.bias_map(encoding, 40, causal=False)
    table = encoding.table.detach().tolist()
    np.testing.assert_allclose(found, t5.bias(table, range(40), range(40), bidirectional=True), atol=1e-7)


def test_bias_by_distance_reads_back_from_the_last_query():
    encoding = whorl.Kerple(heads=2)
    distances = [0, 3, 100]
    p, a = (x.detach().clamp(min=0.01).tolist() for x in (encoding.p, encoding.a))
    expected = kerple.log_bias(p, a, [100], [100 - d for d in distances])[:, 0]
    np.testing.assert_allclose(bias_maps.bias_by_distance(encoding, distances), expected, atol=1e-6)


def test_the_receptive_field_of_alibi_is_that_of_a_geometric_series():
    found = bias_maps.receptive_field(bias_maps.bias_by_distance(whorl.Alibi(heads=8), range(4096)))
    for field, m in zip(found, alibi.slopes(8), strict=True):
        whole = math.fsum(math.exp(-m * d) for d in range(4096))
        held = [math.fsum(math.exp(-m * d) for d in range(n)) / whole for n in (field - 1, field)]
        assert held[0] < 0.99 <= held[1]
    assert bias_maps.receptive_field(np.zeros(100), 0.5).tolist() == [50]


# -- scores ------------------------------------------------------------------------------------------------------------


def test_scores_of_rope_are_the_sum_of_cosines():
    found = scores.scores_by_distance(whorl.Rope(head_dim=16), 50, heads=1)
    expected = [2 * math.fsum(math.cos(k * 1e4 ** (-2 * i / 16)) for i in range(8)) / 4 for k in range(51)]
    np.testing.assert_allclose(found, [expected], atol=1e-6)


def test_scores_of_xpos_with_content_of_the_users_own():
    generator = np.random.default_rng(0)
    q, k = generator.standard_normal((2, 8))
    found = scores.scores_by_distance(whorl.XPos(head_dim=8, layout="interleaved"), 30, query=q, key=k)
    expected = [xpos.score(q, k, 30, 30 - d) / math.sqrt(8) for d in range(31)]
    np.testing.assert_allclose(found[0], expected, atol=1e-6)


def test_scores_of_an_input_encoding_have_all_four_terms():
    found = scores.scores_by_distance(whorl.Sinusoidal(width=12), 20)
    codes = 1 + whorl.reference.sinusoidal(np.arange(21), 12)
    np.testing.assert_allclose(found[0], codes[20] @ codes[::-1].T / math.sqrt(12), atol=1e-5)


def test_scores_of_a_join_take_their_sizes_from_its_parts():
    both = whorl.Combined(whorl.Rope(head_dim=16), whorl.Alibi(heads=2), whorl.Window(size=4))
    found = scores.scores_by_distance(both, 9)
    rope = scores.scores_by_distance(whorl.Rope(head_dim=16), 9, heads=1)[0]
    for h, m in enumerate(alibi.slopes(2)):
        np.testing.assert_allclose(found[h, :4], (rope - m * np.arange(10))[:4], atol=1e-6)
        assert (found[h, 4:] == -math.inf).all()


@pytest.mark.parametrize("name", registry_cases.NAMES)
def test_scores_are_those_the_attention_of_the_library_weighs(name):
    encoding, length = registry_cases.build(name), 12
    found = scores.scores_by_distance(encoding, length, head_dim=16, heads=4)
    assert found.shape[1] == length + 1
    heads, head_dim = found.shape[0], (64 if "add_to_input" in encoding.enters() else 16)
    positions = torch.arange(length + 1)
    x = torch.ones(1, heads, length + 1, head_dim, dtype=torch.float64)
    if "add_to_input" in encoding.enters():
        x = encoding.add_to_input(x, positions)
    hidden = {"hidden": torch.zeros(1, length + 1, 64)} if encoding.reads_hidden else {}
    settings = {"encoding": encoding, "causal": True, "return_weights": True, "impl": "torch", **hidden}
    with torch.no_grad():
        _, weights = whorl.attention(x, x, torch.zeros_like(x), **settings)
    expected = weights[0, :, -1].flip(-1).double().numpy()
    softened = np.exp(found - found.max(-1, keepdims=True))
    np.testing.assert_allclose(softened / softened.sum(-1, keepdims=True), expected, atol=2e-6)


# -- losses ------------------------------------------------------------------------------------------------------------


def comparison(**rows):
    def at(length, value):
        return {"length": length, "bits_per_byte": {"same_last": None if value is None else value, "sliding": None}}

    made = [{"label": label, "by_length": [at(*each) for each in by.items()]} for label, by in rows.items()]
    return {"schema": "whorl-lab-comparison/1", "train_length": 64, "rows": made}


def test_curves_are_read_in_order_of_length_and_gaps_are_left_out():
    def value(mean):
        return {"mean": mean, "low": mean - 0.1, "high": None, "n": 1}

    found = comparison(rope={128: value(3.0), 64: value(2.0), 256: None}, none={64: None})
    found["rows"][0]["variant"] = "ntk"
    (curve,) = losses.loss_curves(found)
    assert curve.label == "rope, ntk" and curve.lengths.tolist() == [64, 128] and curve.mean.tolist() == [2.0, 3.0]
    assert curve.low.tolist() == pytest.approx([1.9, 2.9]) and curve.high.tolist() == [2.0, 3.0]


def test_what_is_no_comparison_says_so(tmp_path):
    page = tmp_path / "page.json"
    for text, message in (("{", "is no JSON"), ("[]", "got schema None"), ('{"schema": "x/1"}', "got schema 'x/1'")):
        page.write_text(text)
        with pytest.raises(whorl.WhorlError, match=message):
            losses.read_comparison(page)
    with pytest.raises(whorl.WhorlError, match=r"cannot read .*nowhere\.json: No such file"):
        losses.read_comparison(tmp_path / "nowhere.json")
    with pytest.raises(whorl.WhorlError, match=r"unknown metric 'slding'\. Did you mean 'sliding'"):
        losses.loss_curves(comparison(), "slding")
    with pytest.raises(whorl.WhorlError, match="no row of the comparison has sliding"):
        losses.loss_curves(comparison(rope={64: {"mean": 1.0}}), "sliding")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bias_maps.bias_map(whorl.Rope(head_dim=8), 4), "bias_map: rope adds no bias to the scores"),
        (lambda: bias_maps.receptive_field([0.0], 1.0), "share must be between 0 and 1, got 1.0"),
        (lambda: scores.scores_by_distance(whorl.NoPE(), 0), "length must be at least 1, got 0"),
        (lambda: scores.scores_by_distance(whorl.NoPE(), 4, query=[1.0]), r"query must be of shape \(64,\)"),
    ],
)
def test_what_cannot_be_scored_says_why(call, message):
    with pytest.raises(whorl.WhorlError, match=message):
        call()
