"""Curves of loss by length, from comparisons written out."""

import pytest

import whorl
from whorl.analysis import losses


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
