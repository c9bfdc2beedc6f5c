"""What is drawn, read back from the artists and compared with papers written out."""

from __future__ import annotations

import cmath
import math

import numpy as np
import pytest

pytest.importorskip("matplotlib")
from matplotlib import pyplot

import whorl
import whorl.plot
from oracles import alibi, rotary_frequencies, sinusoidal, t5, xpos
from plot.picture_cases import LENGTHS, biases, comparison
from whorl.analysis.precision import sampled_octaves
from whorl.analysis.similarity import Projection
from whorl.errors import WhorlError
from whorl.plot import style

plot = whorl.plot


@pytest.fixture(autouse=True)
def close():
    yield
    pyplot.close("all")


def lines(ax):
    """The lines of an Axes by their label, in the order drawn; those without a label under numbers."""
    return {str(line.get_label()): line for line in ax.lines}


def points(line):
    return np.asarray(line.get_xdata(), float), np.asarray(line.get_ydata(), float)


def frequency(pair, dim, base=1e4):
    return base ** (-2 * pair / dim)


def code_rows(length, width):
    return np.array([sinusoidal.code(t, width) for t in range(length)])


def test_waves_are_columns_0_32_64_of_128():
    ax = plot.waves()
    assert len(ax.child_axes) == 3
    for panel, column, turn in zip(ax.child_axes, (0, 32, 64), ("6.283", "62.83", "628.3"), strict=True):
        x, y = points(panel.lines[0])
        assert x.tolist() == list(range(512))
        np.testing.assert_allclose(y, [math.sin(t * frequency(column // 2, 128)) for t in range(512)], atol=1e-12)
        assert panel.get_title(loc="left") == f"column {column}: sin, one turn in {turn} positions"


def test_waves_name_the_wave_of_either_order():
    def titles(order, columns):
        drawn = plot.waves(whorl.Sinusoidal(width=9, order=order), columns, length=8)
        return [panel.get_title(loc="left").split(",")[0] for panel in drawn.child_axes]

    assert titles("interleaved", (2, 3, 8)) == ["column 2: sin", "column 3: cos", "column 8: sin"]
    assert titles("concatenated", (1, 5, 8)) == ["column 1: sin", "column 5: cos", "column 8: always 0"]
    assert "7 positions" not in titles("concatenated", (5,))[0]


def test_codes_are_the_table_of_eight_columns_in_colour_and_in_numbers():
    ax = plot.codes()
    expected = code_rows(8, 8)
    np.testing.assert_allclose(ax.images[0].get_array(), expected, atol=1e-12)
    assert ax.images[0].get_clim() == (-1.0, 1.0)
    numbers = [float(text.get_text().replace("−", "-")) for text in ax.texts]
    np.testing.assert_allclose(numbers, expected.ravel(), atol=5.1e-4)
    assert [text.get_position() for text in ax.texts[:9]] == [*((column, 0) for column in range(8)), (0, 1)]
    assert not plot.codes(whorl.Sinusoidal(width=64), 40).texts


def test_frequencies_of_eight_dimensions_are_labelled_with_their_wavelengths():
    ax = plot.frequencies()
    x, y = points(lines(ax)["rope"])
    assert x.tolist() == [0, 1, 2, 3] and ax.get_yscale() == "log"
    np.testing.assert_allclose(y, [2 * math.pi / frequency(i, 8) for i in range(4)])
    assert [text.get_text() for text in ax.texts] == ["6.283", "62.83", "628.3", "6,283.2"]
    assert "6.283 to 6,283.2" in ax.get_title(loc="left")
    (right,) = ax.child_axes
    assert right.get_ylabel() == "frequency (radians per position)"
    ax.figure.canvas.draw()
    assert sorted(right.get_ylim()) == pytest.approx(sorted(2 * math.pi / end for end in ax.get_ylim()))
    heights = [right.transData.transform((0, w))[1] for w in (1.0, 0.001)]
    assert heights == pytest.approx([ax.transData.transform((0, 2 * math.pi / w))[1] for w in (1.0, 0.001)])


def test_frequencies_of_several_encodings_are_scaled_for_the_length():
    rope = whorl.Rope(head_dim=8, scaling=whorl.DynamicNtk(factor=2.0, original_length=64))
    drawn = lines(plot.frequencies([whorl.Rope(head_dim=8), rope], length=128))
    assert points(drawn["rope + dynamic_ntk"])[1][-1] == pytest.approx(2 * math.pi * 1000 * 3)


def test_similarity_is_the_gram_matrix_between_plus_and_minus_half_the_width():
    image = plot.similarity().images[0]
    codes = code_rows(100, 64)
    np.testing.assert_allclose(image.get_array(), codes @ codes.T, atol=1e-9)
    assert image.get_clim() == (-32.0, 32.0)


def test_positions_are_their_codes_along_the_two_widest_directions():
    ax = plot.positions()
    drawn = np.asarray(ax.collections[0].get_offsets())
    codes = code_rows(100, 64)
    centred = codes - codes.mean(0)
    values, vectors = np.linalg.eigh(centred.T @ centred)
    for component in (0, 1):
        projected = centred @ vectors[:, -1 - component]
        sign = np.sign(projected[0] * drawn[0, component])
        np.testing.assert_allclose(drawn[:, component], sign * projected, atol=1e-8)
    assert ax.collections[0].get_array().tolist() == list(range(100))
    held = 100 * values[-2:].sum() / values.sum()
    assert f"hold {held:.0f} % of the variance" in ax.get_title(loc="left")


def test_positions_by_tsne_say_so(monkeypatch):
    def found(codes, perplexity):
        assert codes.shape == (30, 64) and perplexity == pytest.approx(29 / 3)
        return Projection(np.arange(60.0).reshape(30, 2), None)

    monkeypatch.setattr("whorl.plot.position_cloud.tsne", found)
    ax = plot.positions(length=30, method="tsne")
    assert np.asarray(ax.collections[0].get_offsets())[29].tolist() == [58.0, 59.0]
    assert "t-SNE" in ax.get_title(loc="left")
    assert "%" not in ax.get_xlabel()


def test_decay_has_the_numbers_of_the_notes():
    ax = plot.decay()
    found = lines(ax)
    plain, bound = (points(found[label]) for label in (r"$\Sigma_i\,\cos(w_i k)$", r"mean$_j\;|S_j|$"))
    at = [0, 1, 2, 4, 8, 16, 32, 64, 128, 256]
    assert plain[0].tolist() == bound[0].tolist() == list(range(257))
    assert bound[1][at].round(4).tolist() == [
        *(32.5, 31.5382, 28.956, 22.604, 19.8174),
        *(15.775, 13.3843, 10.0899, 9.2729, 6.5431),
    ]
    assert plain[1][[0, 1, 2, 8, 64, 256]].round(4).tolist() == [64.0, 62.0937, 57.3819, 45.7205, 30.5201, 20.5248]
    assert "115 of 256 steps" in ax.get_title(loc="left").replace("\n", " ")


def test_decay_of_several_encodings_draws_each_one_twice():
    ropes = [whorl.Rope(head_dim=16, base=base) for base in (100.0, 1e4)]
    found = lines(plot.decay(ropes, 9))
    for base, text in ((100.0, "100"), (1e4, "10,000")):
        expected = [math.fsum(math.cos(k * frequency(i, 16, base)) for i in range(8)) for k in range(10)]
        np.testing.assert_allclose(
            points(found[rf"rope, base {text}: $\Sigma_i\,\cos(w_i k)$"])[1], expected, atol=1e-12
        )


def test_clocks_point_where_each_position_turns_its_pair():
    ax = plot.clocks()
    dials = [panel for panel in ax.child_axes if panel.get_title()]
    assert [panel.get_title().split("\n")[0] for panel in dials] == ["pair 0", "pair 1", "pair 2", "pair 3"]
    assert dials[1].get_title().endswith("turns in 62.83 positions")
    for pair, panel in enumerate(dials):
        hands = [line for line in panel.lines if len(line.get_xdata()) == 2]
        assert len(hands) == 8
        for position, hand in enumerate(hands):
            (x0, x), (y0, y) = hand.get_data()
            assert (x0, y0) == (0, 0) and 0 < math.hypot(x, y) <= 1
            expected = cmath.exp(1j * position * frequency(pair, 8))
            assert complex(x, y) / math.hypot(x, y) == pytest.approx(expected)


def test_clocks_of_many_pairs_are_spread_from_the_first_to_the_last():
    dials = [panel.get_title().split("\n")[0] for panel in plot.clocks(whorl.Rope(head_dim=64)).child_axes]
    assert [title for title in dials if title][::7] == ["pair 0", "pair 31"]
    still = plot.clocks(whorl.Rope(head_dim=8, scaling=whorl.Proportional(fraction=0.5)), pairs=[3])
    assert "does not turn" in still.child_axes[0].get_title()


def test_bias_maps_are_those_of_each_head_and_hide_keys_to_come():
    drawn = biases()
    panels = [panel for panel in plot.bias(drawn, length=20).child_axes if panel.images]
    titles = [panel.get_title() for panel in panels]
    assert titles == ["head 0", "head 2", "head 5", "head 7"] * 3
    lower = np.tri(20, dtype=bool)
    p, a = (x.detach().double().clamp(min=0.01).tolist() for x in (drawn[2].p, drawn[2].a))
    expected = [
        alibi.bias(range(20), range(20), alibi.slopes(8)),
        t5.bias(drawn[1].table.detach().tolist(), range(20), range(20)),
        np.array(
            [[[-p[h] * math.log(1 + a[h] * max(i - j, 0)) for j in range(20)] for i in range(20)] for h in range(8)]
        ),
    ]
    for number, panel in enumerate(panels):
        seen = np.ma.filled(panel.images[0].get_array().astype(float), np.nan)
        assert np.isnan(seen[~lower]).all()
        np.testing.assert_allclose(seen[lower], expected[number // 4][(0, 2, 5, 7)[number % 4]][lower], atol=1e-6)
    assert len({panel.images[0].get_clim() for panel in panels[:4]}) == 1
    assert panels[0].images[0].get_clim() == (-9.5, 0.0)
    longer = plot.bias(whorl.Alibi(heads=8), length=64).child_axes[0]
    assert longer.images[0].get_clim() == (-10.0, 0.0)  # -31.5 is cut off


def test_scores_are_less_that_at_distance_zero():
    ax = plot.scores(length=64)
    found = lines(ax)
    rope = [2 * math.fsum(math.cos(k * frequency(i, 64)) - 1 for i in range(32)) / 8 for k in range(65)]
    np.testing.assert_allclose(points(found["rope"])[1], rope, atol=1e-5)
    ones = np.ones(64)
    fading = [(xpos.score(ones, ones, 64, 64 - k) - 64) / 8 for k in (0, 9, 64)]
    np.testing.assert_allclose(points(found["xpos"])[1][[0, 9, 64]], fading, atol=1e-5)
    fan = [points(line)[1] for line in ax.lines if line.get_color() == found["alibi, heads 0, 2, 5, 7"].get_color()]
    for drawn, head in zip(fan, (0, 2, 5, 7), strict=True):
        np.testing.assert_allclose(drawn, [-alibi.slopes(8)[head] * k for k in range(65)], atol=1e-5)
    assert ax.get_ylim()[0] == pytest.approx(-20 - 0.05 * 20) and "below −20" in ax.get_title(loc="left").replace(
        "\n", " "
    )


def test_scores_leave_out_what_a_window_hides():
    drawn = lines(plot.scores([whorl.Window(size=5), whorl.NoPE()], length=10))
    assert np.isnan(points(drawn["window"])[1]).tolist() == [False] * 5 + [True] * 6
    assert not points(drawn["none"])[1].any()


def test_scaling_draws_what_each_pair_keeps():
    ax = plot.scaling()
    found = lines(ax)
    plain = np.array(rotary_frequencies.plain(128, 10_000), dtype=float)
    ntk = np.array(rotary_frequencies.ntk_base(128, 10_000, 4), dtype=float)
    np.testing.assert_allclose(points(found["ntk"])[1], ntk / plain, rtol=1e-12)
    np.testing.assert_allclose(points(found["linear"])[1], 0.25, rtol=1e-12)
    for label in ("yarn", "llama3"):
        kept = points(found[label])[1]
        assert kept[0] == 1 and kept[-1] == pytest.approx(0.25) and (np.diff(kept) <= 1e-12).all()
    turns = 4096 * plain / (2 * math.pi)
    mark = found["one turn in 4,096 positions"].get_xdata()[0]
    assert turns[math.floor(mark)] >= 1 > turns[math.ceil(mark)]
    assert "63 of 64 pairs are slowed down" in plot.scaling(
        whorl.Rope(head_dim=128, scaling=whorl.Ntk(factor=4.0))
    ).get_title(loc="left")


def test_context_marks_what_training_finished():
    ax = plot.context()
    found = lines(ax)
    before = [2 * math.pi / frequency(i, 128) for i in range(64)]
    np.testing.assert_allclose(points(found["before"])[1], before)
    np.testing.assert_allclose(points(found["after yarn"])[1][[0, 63]], [before[0], 4 * before[63]])
    assert found["trained length, 4,096"].get_ydata()[0] == 4096
    assert found["length to serve, 16,384"].get_ydata()[0] == 16_384
    unfinished = sum(turn > 4096 for turn in before)
    assert f"{unfinished} of 64 pairs" in ax.get_title(loc="left").replace("\n", " ")
    (span,) = ax.patches
    assert span.get_label() == "turns finished in training" and span.get_y() + span.get_height() == 4096
    plain = lines(plot.context(whorl.Rope(head_dim=64), trained=512))
    assert "wavelength" in plain and not any(label.startswith("length to serve") for label in plain)


def test_precision_draws_the_largest_error_of_each_octave():
    found = lines(plot.precision(whorl.Rope(head_dim=8), 2**12 - 1))
    x, y = points(found["frequencies in bfloat16"])
    assert x.tolist() == [2 ** (k + 1) - 1 for k in range(12)]
    rounded = {1.0: 1.0, 0.1: 0.10009765625, 0.01: 0.010009765625, 0.001: 0.00099945068359375}
    for at in (0, 5, 11):
        ids = sampled_octaves(2**12 - 1)[at].tolist()
        worst = max(
            abs(wave(m * w) - wave(m * near))
            for m in ids
            for w, near in rounded.items()
            for wave in (math.cos, math.sin)
        )
        assert y[at] == pytest.approx(worst, abs=1e-12)
    assert points(found["positions in bfloat16"])[0].tolist() == [511, 1023, 2047, 4095]
    assert points(found["angles in float64 (whorl)"])[1].max() < 3e-8
    assert found["a cosine in bfloat16"].get_ydata()[0] == 2**-9
    near, far = (plot.precision(length=length).get_title(loc="left").replace("\n", " ") for length in (2**12, 2**20))
    assert "stay within bfloat16 rounding" in near and "pass bfloat16 rounding near position" in far


def test_losses_draw_every_row_with_its_interval():
    made = comparison()
    ax = plot.losses(made)
    found = lines(ax)
    assert list(found)[:3] == ["rope", "alibi", "kerple"] and "rope, rerope+logn" in found
    assert found["trained length, 64"].get_xdata()[0] == 64
    for row, line in zip(made["rows"], ax.lines, strict=False):
        x, y = points(line)
        assert x.tolist() == list(LENGTHS)
        assert y.tolist() == [at["bits_per_byte"]["same_last"]["mean"] for at in row["by_length"]]
    band = ax.collections[0].get_paths()[0].vertices
    assert band[:, 1].min() == pytest.approx(2.1) and band[:, 1].max() == pytest.approx(2.4)
    assert [label.get_text() for label in ax.get_xticklabels()] == [str(length) for length in LENGTHS]


def test_losses_have_the_colours_of_the_report_and_the_title_and_size_that_are_asked_for():
    made = comparison()
    ax = plot.losses(made, title="", size=(5.0, 3.0))
    assert ax.get_title(loc="left") == "" and tuple(ax.figure.get_size_inches()) == (5.0, 3.0)
    assert plot.losses(made, title="mine").get_title(loc="left") == "mine"
    looks = style.looks((row["label"], row["variant"]) for row in made["rows"])
    drawn = lines(ax)
    for (label, variant), look in looks.items():
        line = drawn[label if variant == "as trained" else f"{label}, {variant}"]
        assert line.get_color() == style.COLOURS[look.colour]
        assert (line.get_markerfacecolor() == "none") == look.hollow
    with pytest.raises(WhorlError, match="size would be ignored"):
        plot.losses(made, size=(5.0, 3.0), ax=ax)
