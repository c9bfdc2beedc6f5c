"""``whorl list``: every encoding and scaling, those of users too."""

from __future__ import annotations

import math
from typing import ClassVar

import pytest

import whorl
from whorl import registry
from whorl.cli import listing, output
from whorl.config import Config, config
from whorl.encodings.base import Claims, Encoding


def test_list_answers_for_the_whole_registry(answer):
    listed = answer("list")
    assert [one["name"] for one in listed["encodings"]] == whorl.names()
    assert {one["name"] for one in listed["scalings"]} == set(registry.SCALINGS)
    rope = next(one for one in listed["encodings"] if one["name"] == "rope")
    assert rope["summary"] == "RoPE, the rotary position embedding"
    assert rope["enters"] == ["transform_qk"] and rope["parameters"] == {}
    assert rope["claims"]["relative"] and not rope["claims"]["decays"]
    mixed = next(one for one in listed["encodings"] if one["name"] == "mixed_rope")
    assert mixed["parameters"] == {"frequencies_2d": [2, 8, 64]}
    dependent = {one["name"] for one in listed["scalings"] if one["length_dependent"]}
    assert dependent == {"dynamic_ntk", "longrope"}


def test_the_table_has_a_row_for_each_encoding(answer, call, monkeypatch):
    from whorl.claims import overview

    monkeypatch.setattr(overview, "ROUNDS", 1)
    assert [one["encoding"] for one in answer("list", "--table")] == whorl.names()
    code, out, _ = call("list", "--table")
    assert code == 0 and len([line for line in out.splitlines() if line.startswith("| ")]) == len(whorl.names()) + 1


def test_list_and_table_count_parameters_of_one_model_and_say_which(answer, call, monkeypatch):
    from whorl.claims import overview

    monkeypatch.setattr(overview, "ROUNDS", 1)
    listed = {
        one["name"]: sum(math.prod(shape) for shape in one["parameters"].values())
        for one in answer("list")["encodings"]
    }
    assert {one["encoding"]: one["parameters"] for one in answer("list", "--table")} == listed
    for command in (["list"], ["list", "--table"]):
        assert (
            "parameters: of a model with 8 heads of 128 dimensions, width 1,024 and length 4,096" in call(*command)[1]
        )


@pytest.fixture
def terminal(monkeypatch):
    """A terminal of 100 columns without colours."""
    for module in (output, listing):
        monkeypatch.setattr(module, "on_terminal", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")


def test_the_list_fits_one_screen_in_a_pipe(call):
    lines = call("list")[1].splitlines()
    assert len(lines) <= 40 and max(map(len, lines)) <= 100


def test_the_list_fits_one_screen_on_a_terminal(call, terminal):
    lines = call("list")[1].splitlines()
    assert "─" in lines[1] and len(lines) <= 40 and max(map(len, lines)) <= 100


def test_on_a_terminal_the_comparison_is_a_table_of_one_line_each(call, terminal, monkeypatch):
    from whorl.claims import overview

    monkeypatch.setattr(overview, "ROUNDS", 1)
    code, out, _ = call("list", "--table")
    table = out.partition("\n\n")[0].splitlines()
    assert code == 0 and "|" not in out and max(map(len, table)) <= 100
    rule = next(i for i, line in enumerate(table) if "─" in line)
    assert [line.split()[0] for line in table[rule + 1 :]] == whorl.names()


@pytest.fixture
def toy():
    """An encoding of a user's own, that rotates nothing."""

    @config
    class ToyConfig(Config):
        name: ClassVar[str] = "toy"
        heads: int
        slope: float = 1.0

    class Toy(Encoding):
        """A bias that falls with the distance.

        slope * distance
        """

        Config = ToyConfig

        @property
        def claims(self):
            return Claims(relative=True, norm_preserving=True, linear_attention=False, decays=True, extrapolates=True)

        def score_bias(self, q_positions, k_positions, length=None):
            return None

    whorl.register(Toy)
    yield Toy
    del registry.ENCODINGS["toy"]


def test_an_encoding_of_the_users_own_is_listed_and_shown(toy, call, answer):
    listed = next(one for one in answer("list")["encodings"] if one["name"] == "toy")
    assert listed["summary"] == "A bias that falls with the distance" and listed["enters"] == ["score_bias"]
    code, out, err = call("show", "toy", "--set", "slope=0.5")
    assert code == 0 and "slope=0.5" in out and "score bias" in out and "wavelength" not in out
    assert "heads=8" in err
    code, out, err = call("show", "toy", "--length", "8")
    assert code == 2 and out == "" and "--length would be ignored" in err


def test_an_encoding_that_must_be_told_more_is_listed_all_the_same(toy, call, answer, monkeypatch):
    @config
    class HungryConfig(toy.Config):
        name: ClassVar[str] = "hungry"
        taste: str

    class Hungry(toy):
        """Needs to be told."""

        Config = HungryConfig

    monkeypatch.setitem(registry.ENCODINGS, "hungry", Hungry)
    listed = next(one for one in answer("list")["encodings"] if one["name"] == "hungry")
    assert listed["claims"] is None and listed["enters"] == ["score_bias"]
    line = next(line for line in call("list")[1].splitlines() if line.startswith("hungry"))
    assert line.split()[-2:] == ["?", "?"]
    assert call("show", "hungry")[2] == "Hungry: taste missing. Pass taste=….\n"
    assert answer("show", "hungry", "--set", "taste=salt")["config"]["taste"] == "salt"
