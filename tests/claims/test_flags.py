"""The claims that an encoding makes of itself, of encodings that a user registers."""

import re

import pytest
import torch

import whorl
from whorl import registry
from whorl.claims import every, verify
from whorl.config import Config, config
from whorl.encodings.base import Claims, Encoding


@pytest.fixture
def own_registry(monkeypatch):
    monkeypatch.setattr(registry, "ENCODINGS", dict(registry.ENCODINGS))


class RootConfig(Config):
    name = "root"


class Root(Encoding):
    """Minus the square root of the distance."""

    Config = RootConfig
    claims = Claims(relative=True, norm_preserving=True, linear_attention=False, decays=True, extrapolates=False)

    def score_bias(self, q_positions, k_positions, length=None):
        return -(q_positions[..., None, :, None] - k_positions[..., None, None, :]).abs().sqrt()


def lying(**flags: bool) -> type[Encoding]:
    stated = {
        "relative": True,
        "norm_preserving": True,
        "linear_attention": False,
        "decays": True,
        "extrapolates": False,
    }
    return type("Root", (Root,), {"claims": Claims(**(stated | flags))})


def test_an_honest_encoding_is_as_expected(own_registry):
    whorl.register(Root)
    rows = verify("root")
    assert [row.id for row in rows] == [f"root.{rest}" for rest in (
        "flag.relative", "flag.linear-attention", "flag.decays", "flag.extrapolates", "cache",
    )]  # fmt: skip
    assert all(row.as_expected for row in rows)
    assert [row.id for row in verify(Root)] == [row.id for row in rows]  # the class needs no registering
    assert {row.id for row in rows} <= {claim.id for claim in every()}


@pytest.mark.parametrize(
    ("flag", "value"), [("relative", False), ("norm_preserving", False), ("linear_attention", True), ("decays", False)]
)
def test_a_flag_that_is_not_true_is_red(flag, value, own_registry):
    rows = verify(lying(**{flag: value}))
    assert [row.id for row in rows if not row.as_expected] == [f"root.flag.{flag.replace('_', '-')}"]


def test_a_bias_that_does_not_follow_is_told_as_it_is(own_registry):
    """Half the distance for keys after the first ten: it knows where it is, it rises, and the flags say otherwise."""

    class Wrong(Root):
        def score_bias(self, q_positions, k_positions, length=None):
            early = k_positions[..., None, None, :] < 10
            return torch.where(early, 0.0, super().score_bias(q_positions, k_positions, length))

    rows = {row.id: row for row in verify(Wrong())}
    assert {id for id, row in rows.items() if not row.as_expected} == {"root.flag.relative", "root.flag.decays"}
    assert "all shifted by" in rows["root.flag.relative"].finding.counterexample
    assert re.search(r"the key \d+ before the query weighs", rows["root.flag.decays"].finding.counterexample)


def test_an_encoding_that_breaks_is_red_with_its_error(own_registry):
    class Broken(Root):
        def score_bias(self, q_positions, k_positions, length=None):
            raise TypeError("no such thing")

    rows = verify(Broken())
    assert all(not row.as_expected for row in rows if "weights" in row.claim.how.lower() or row.id == "root.cache")
    assert any("raised TypeError: no such thing" in row.finding.counterexample for row in rows)


def test_an_encoding_that_needs_more_than_sizes_is_asked_for_itself(own_registry):
    @config
    class PickyConfig(Config):
        name = "picky"
        colour: str

    class Picky(Root):
        Config = PickyConfig

    whorl.register(Picky)
    with pytest.raises(
        whorl.WhorlError, match=r"picky cannot be built from a model's sizes alone .* Pass the encoding itself"
    ):
        verify("picky")
    assert all(row.as_expected for row in verify(Picky(colour="red")))
