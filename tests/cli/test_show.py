"""``whorl show``: every name, every setting, and which pairs are shown."""

from __future__ import annotations

import math

import pytest

import whorl
from whorl import registry
from whorl.cli.show import worth_showing
from whorl.encodings.rotary import Rotary


@pytest.mark.parametrize("name", [*registry.ENCODINGS, *registry.SCALINGS])
def test_show_works_for_every_name_without_options(name, call, answer):
    shown = answer("show", name)
    built = whorl.from_dict(shown["config"])
    assert built.config.to_dict() == shown["config"]
    code, out, err = call("show", name)
    assert code == 0
    if name in registry.SCALINGS:
        assert shown["config"]["scaling"]["name"] == name
        assert out.startswith(shown["scaling"]["summary"])
    else:
        assert out.startswith(shown["summary"])
    for key in shown["filled_in"]:
        assert f"{key}=" in err
    if isinstance(built, Rotary):
        frequencies = built.frequencies().detach().flatten().tolist()
        assert frequencies and [row["frequency"] for row in shown["pairs"]] == frequencies
        assert all(row["turns"] >= 0 for row in shown["pairs"])
        assert "wavelength" in out


def test_show_rope_has_the_numbers_of_the_paper(answer):
    shown = answer("show", "rope", "--head-dim", "64", "--base", "500", "--length", "1000")
    assert shown["config"]["head_dim"] == 64 and shown["config"]["base"] == 500.0
    assert shown["attention_factor"] == shown["softmax_factor"] == 1.0 and shown["context"] == 1000
    assert any("base^(-2i/d)" in line for line in shown["formula"])
    assert len(shown["pairs"]) == 32
    for i, row in enumerate(shown["pairs"]):
        wavelength = 2 * math.pi * 500 ** (2 * i / 64)
        assert row["pair"] == i and row["axis"] == 0
        assert math.isclose(row["wavelength"], wavelength, rel_tol=1e-12)
        assert math.isclose(row["turns"], 1000 / wavelength, rel_tol=1e-12)


def test_show_a_scaling_is_a_rope_with_it(answer):
    shown = answer("show", "yarn")
    assert shown["config"]["name"] == "rope"
    assert shown["config"]["scaling"]["factor"] == 4.0 and shown["config"]["scaling"]["original_length"] == 4096
    assert math.isclose(shown["attention_factor"], 0.1 * math.log(4) + 1)
    assert shown["context"] == 4096 and shown["context_is"] == "the original length"
    assert shown["pairs"][0]["slower"] == 1.0 and math.isclose(shown["pairs"][-1]["slower"], 4.0)
    same = answer("show", "rope", "--scaling", "yarn", "--factor", "4", "--original-length", "4096")
    assert same["config"] == shown["config"] and same["filled_in"] == {"head_dim": 128}


def test_what_does_not_turn_has_no_wavelength_in_json(answer):
    last = answer("show", "proportional")["pairs"][-1]
    assert last["frequency"] == 0.0 and last["wavelength"] is None and last["slower"] is None and last["turns"] == 0.0


def test_frequencies_follow_the_length_served(answer, call):
    at_rest = answer("show", "dynamic_ntk")["pairs"][-1]["slower"]
    served = answer("show", "dynamic_ntk", "--length", "8192")
    assert at_rest == 1.0 and served["context"] == 8192
    assert math.isclose(served["pairs"][-1]["slower"], 4 * 8192 / 4096 - 3)
    assert "depend on the length" in call("show", "dynamic_ntk")[2]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["rope", "--set", "layout=interleaved"], {"layout": "interleaved"}),
        (["rope", "--set", "rotary_dim=64", "--set", "slice=32"], {"rotary_dim": 64, "slice": 32}),
        (["rope", "--set", "slice=trailing", "--set", "rotary_dim=2"], {"slice": "trailing"}),
        (["rope", "--set", "learnable=true"], {"learnable": True}),
        (["rope", "--set", "scaling=null"], {"scaling": None}),
        (["rope", "--head-dim", "4", "--set", "frequencies=[1, 0.5]"], {"frequencies": [1.0, 0.5], "base": None}),
        (["mrope", "--set", "sections=[20, 20, 24]"], {"sections": [20, 20, 24]}),
        (["mrope", "--set", "arrangement=interleaved"], {"sections": [24, 20, 20]}),
        (["mrope", "--set", "arrangement=ernie"], {"sections": [22, 22, 20]}),
        (["mrope", "--set", "rotary_dim=64"], {"sections": [8, 12, 12]}),
        (["axial_rope", "--set", "convention=pixtral"], {"convention": "pixtral", "base": 10_000.0}),
        (["mixed_rope", "--set", "heads=2", "--head-dim", "8"], {"heads": 2, "head_dim": 8}),
    ],
)
def test_every_setting_can_be_set(arguments, expected, answer):
    given = answer("show", *arguments)["config"]
    assert {key: given[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["yarn", "--set", "scaling.beta_fast=16"], {"beta_fast": 16.0, "beta_slow": 1.0}),
        (["yarn", "--set", "scaling.truncate=false"], {"truncate": False}),
        (["rope", "--scaling", "linear", "--factor", "2.5"], {"name": "linear", "factor": 2.5}),
        (["rope", "--set", "scaling=llama3"], {"name": "llama3", "factor": 4.0}),
        (["rope", "--set", 'scaling={"name": "ntk", "factor": 8}'], {"name": "ntk", "factor": 8.0}),
        (["longrope", "--head-dim", "4"], {"short_factor": [1.0, 1.0], "long_factor": [1.0, 4.0], "factor": 4.0}),
        (["longrope", "--head-dim", "4", "--factor", "9"], {"long_factor": [1.0, 9.0], "factor": 9.0}),
        (["longrope", "--set", "scaling.attention_factor=1.5"], {"attention_factor": 1.5, "factor": None}),
        (["proportional", "--factor", "2"], {"fraction": 0.25, "factor": 2.0}),
        (["mrope", "--scaling", "yarn", "--factor", "2"], {"name": "yarn", "factor": 2.0}),
    ],
)
def test_every_setting_of_a_scaling_can_be_set(arguments, expected, answer):
    given = answer("show", *arguments)["config"]["scaling"]
    assert {key: given[key] for key in expected} == expected


def test_show_leaves_out_the_middle_and_all_brings_it_back(call):
    few, every = call("show", "rope")[1], call("show", "rope", "--all")[1]
    pairs = [line.split()[0] for line in few.splitlines() if line[:4].strip().isdigit()]
    assert pairs == ["0", "1", "2", "45", "46", "61", "62", "63"]  # 45 turns once within 4096 positions, 46 does not
    assert "18 of 64 pairs do not make one turn within 4,096 positions." in few
    assert sum(line[:4].strip().isdigit() for line in every.splitlines()) == 64 and "…" not in every


def test_rows_worth_showing_are_chosen_by_axis_and_of_the_first_head():
    turns = [9.0, 5.0, 2.0, 0.5, 0.4, 0.3, 0.2, 0.1]
    rows = [
        {"axis": axis, "head": head, "pair": pair, "turns": turn}
        for axis in (0, 1)
        for head in (0, 1)
        for pair, turn in enumerate(turns)
    ]
    chosen = [(rows[i]["axis"], rows[i]["head"], rows[i]["pair"]) for i in worth_showing(rows)]
    assert chosen == [(axis, 0, pair) for axis in (0, 1) for pair in (0, 1, 2, 3, 5, 6, 7)]
