"""What every picture keeps to: an Axes in and out, labels, nothing clipped or overlapping, nothing shown."""

from __future__ import annotations

import itertools
import sys
from typing import NamedTuple

import numpy as np
import pytest

pytest.importorskip("matplotlib")
import matplotlib
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import RendererAgg

import whorl
import whorl.plot
from plot.picture_cases import CASES, every_axes, figure_axes, written
from whorl.plot import style


def refuse(*_, **__):
    raise AssertionError("a plot was shown")


@pytest.fixture(autouse=True)
def close():
    yield
    pyplot.close("all")


class Picture(NamedTuple):
    ax: Axes
    renderer: RendererAgg
    size: tuple[int, int]


@pytest.fixture(scope="module", params=CASES)
def picture(request):
    """A picture at its default size, drawn once for all that is asked of it."""
    before = dict(matplotlib.rcParams)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pyplot, "show", refuse)
        ax = CASES[request.param]()
    assert dict(matplotlib.rcParams) == before, "a setting of matplotlib was changed"
    ax.figure.canvas.draw()
    made = Picture(ax, ax.figure.canvas.get_renderer(), ax.figure.canvas.get_width_height())
    pyplot.close(ax.figure)
    return made


def test_no_text_is_clipped_or_overlaps_another(picture):
    ax, renderer, (width, height) = picture
    found = [(text.get_text(), text.get_window_extent(renderer)) for text in written(ax)]
    outside = [text for text, box in found if box.x0 < 0 or box.y0 < 0 or box.x1 > width or box.y1 > height]
    assert outside == []
    touching = [
        (one, two)
        for (one, a), (two, b) in itertools.combinations(found, 2)
        if min(a.x1, b.x1) - max(a.x0, b.x0) > 0.5 and min(a.y1, b.y1) - max(a.y0, b.y0) > 0.5
    ]
    assert touching == []


def test_every_axis_says_what_it_shows(picture):
    ax = picture.ax
    assert len(ax.get_title(loc="left")) > 20
    shown = [each for each in figure_axes(ax) if each.axison]
    assert shown and any(each.get_ylabel() for each in shown)
    for each in shown:
        bar = hasattr(each, "_colorbar")
        # in rows and columns of panels the outer ones speak for all
        assert each.get_ylabel() or not each.yaxis.get_tick_params()["labelleft"]
        assert bar or each.get_xlabel() or not each.xaxis.get_tick_params()["labelbottom"] or each is not ax
    dials = [each for each in every_axes(ax)[1:] if not each.axison and each.lines]
    assert all(dial.get_title().startswith("pair ") for dial in dials)


def test_a_legend_names_every_line_and_hides_none(picture):
    for each in (each for each in every_axes(picture.ax) if each.axison):
        named = [line for line in each.lines if not line.get_label().startswith("_child")]
        legend = each.get_legend()
        if legend is None:
            assert len(named) <= 1
            continue
        said = [text.get_text() for text in legend.get_texts()]
        assert {line.get_label() for line in named} - {"_"} <= set(said)
        box = legend.get_window_extent(picture.renderer)
        for line in each.lines:
            points = each.transData.transform(np.column_stack(line.get_data()).astype(float))
            points = points[np.isfinite(points).all(-1)]
            assert not any(box.contains(*point) and each.bbox.contains(*point) for point in points)


@pytest.mark.parametrize("case", whorl.plot.KINDS)
def test_an_axes_that_is_given_is_drawn_into_and_comes_back(case):
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(12, 4))
    assert CASES[case](ax=right) is right
    assert not left.has_data() and pyplot.get_fignums() == [figure.number]
    assert right.get_title(loc="left") and (right.has_data() or right.child_axes)


def test_a_call_without_axes_makes_one_figure_that_pyplot_knows():
    ax = whorl.plot.decay()
    assert pyplot.get_fignums() == [ax.figure.number] and isinstance(ax, Axes)


def test_the_call_of_the_readme():
    rope = whorl.Rope(head_dim=128)
    ax = whorl.plot.decay([rope, whorl.build("alibi", heads=8)], length=8192)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["rope", "alibi, heads 0, 2, 5, 7"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: whorl.plot.waves(columns=(128,)), "waves: columns must be from 0 to 127, got 128"),
        (lambda: whorl.plot.clocks(pairs=[4]), r"clocks: pairs must be indices from 0 to 3, got \[4\]"),
        (lambda: whorl.plot.bias(heads=[8]), r"bias: heads must be indices from 0 to 7, got \[8\]"),
        (lambda: whorl.plot.bias(whorl.NoPE()), "bias_map: none adds no bias"),
        (lambda: whorl.plot.positions(method="umap"), "positions: unknown method 'umap'"),
        (lambda: whorl.plot.decay(length=0), "decay: length must be at least 1, got 0"),
        (lambda: whorl.plot.waves(length=0), "waves: length must be at least 1, got 0"),
        (lambda: whorl.plot.bias(length=0), "bias: length must be at least 1, got 0"),
        (lambda: whorl.plot.precision(length=0), "precision: length must be at least 1, got 0"),
        (lambda: whorl.plot.similarity(length=1), "products: codes must be a matrix of at least 2 rows"),
        (lambda: whorl.plot.decay([]), "decay: encodings must be at least one encoding"),
        (
            lambda: whorl.plot.decay(["rope"]),
            "decay: every encoding must be an encoding, got 'rope'. Build one by name",
        ),
        (lambda: whorl.plot.scaling(whorl.Rope(head_dim=8)), "scaling: rope has no scaling. Pass one"),
        (lambda: whorl.plot.context(trained=0), "context: trained must be positive, got 0"),
        (lambda: whorl.plot.losses({"schema": "other"}), "losses: a comparison of the lab needed"),
    ],
)
def test_what_cannot_be_drawn_says_why_and_leaves_no_figure(call, message):
    pyplot.close("all")  # those that other tests left open
    with pytest.raises(whorl.WhorlError, match=message):
        call()
    assert pyplot.get_fignums() == []


def test_an_unknown_plot_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"module 'whorl\.plot' has no attribute 'pie'"):
        whorl.plot.pie  # noqa: B018
    assert {"decay", "save"} <= set(dir(whorl.plot))


def test_without_matplotlib_a_plot_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(whorl.WhorlError, match=r'plot: matplotlib is not installed\. Run: pip install "whorl\[plot\]"'):
        whorl.plot.decay()


# -- style -------------------------------------------------------------------------------------------------------------


def test_labels_tell_encodings_of_one_name_apart():
    scaled = [whorl.Rope(head_dim=64, scaling=whorl.Linear(factor=f)) for f in (2.0, 4.0)]
    assert style.labels(scaled) == ["rope + linear, scaling factor 2", "rope + linear, scaling factor 4"]
    joined = whorl.Combined(whorl.Rope(head_dim=64), whorl.Alibi(heads=8))
    assert style.labels([joined, whorl.NoPE()]) == ["rope + alibi", "none"]
    assert style.labels([whorl.Rope(head_dim=64, learnable=learn) for learn in (True, False)]) == [
        "rope, learnable True",
        "rope, learnable False",
    ]


def test_no_two_of_the_first_lines_look_alike():
    looks = [tuple(map(str, style.line_style(index).values())) for index in range(28)]
    assert len(set(looks)) == 28


def test_titles_are_wrapped_to_the_width_of_their_axes():
    figure, (narrow, wide) = pyplot.subplots(1, 2, figsize=(12, 3), width_ratios=(1, 5))
    words = "a title of many short words that say what is seen"
    for ax, most in ((narrow, 30), (wide, 200)):
        style.set_title(ax, words)
        lines = ax.get_title(loc="left").split("\n")
        assert " ".join(lines) == words and max(map(len, lines)) <= most
        assert max(map(len, lines)) - min(map(len, lines)) <= 12
    assert figure is narrow.figure


@pytest.mark.parametrize("colours", [*itertools.combinations(style.COLOURS, 2)])
def test_colours_differ_for_a_reader_without_green_receptors(colours):
    """Viénot et al. 1999: deuteranopia as a projection of linear RGB; and for every reader."""
    seen = []
    for colour in colours:
        rgb = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
        linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
        red_green = 0.29275 * linear[0] + 0.70725 * linear[1]
        blue = -0.02234 * linear[0] + 0.02234 * linear[1] + linear[2]
        projected = np.clip([red_green, red_green, blue], 0, 1)
        seen.append(np.where(projected <= 0.0031308, 12.92 * projected, 1.055 * projected ** (1 / 2.4) - 0.055))
    assert np.linalg.norm(seen[0] - seen[1]) > 0.12
