"""The claims that an encoding makes of itself, of encodings that a user registers."""

import re

import pytest
import torch

import whorl
from own_encodings import write_plugin
from whorl import registry
from whorl.claims import Row, every, verify
from whorl.config import Config, config
from whorl.encodings.base import Claims, Encoding
from whorl.plugins import load_plugin


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


# -- encodings with settings of their own -----------------------------------------------------------------------------

SETTINGS = [
    lambda: whorl.Rope(head_dim=16, scaling=whorl.Yarn(factor=8.0, original_length=64)),
    lambda: whorl.Rope(head_dim=16, scaling=whorl.Linear(factor=4.0)),
    lambda: whorl.Alibi(heads=4, rounding="hf_falcon"),
    lambda: whorl.Learned(width=64, length=20_000),
    lambda: whorl.Learned(width=64, length=16),
    lambda: whorl.XPos(head_dim=16, rotated_heads=(0, 1)),
    lambda: whorl.Combined(whorl.Rope(head_dim=16), whorl.LogN()),
    lambda: whorl.Combined(whorl.ReRope(head_dim=16), whorl.SSMax(heads=4)),
    lambda: whorl.Combined(whorl.Alibi(heads=4), whorl.LogN()),
    lambda: whorl.Rope(head_dim=16, angles="float32"),
    lambda: whorl.Rope(head_dim=128, base=100.0, layout="interleaved", angles="float32"),
    lambda: whorl.AxialRope(head_dim=16, angles="float32"),
    lambda: whorl.ReRope(head_dim=16, angles="float32"),
    lambda: whorl.Combined(whorl.Rope(head_dim=16, angles="float32"), whorl.Alibi(heads=4)),
    lambda: whorl.Rope(head_dim=16, scaling=whorl.DynamicNtk(factor=8.0, original_length=256)),
]


@pytest.mark.parametrize("make", SETTINGS)
def test_every_flag_of_other_settings_is_judged_by_those_settings(make):
    assert [(row.id, row.finding.counterexample) for row in verify(make()) if not row.as_expected] == []


@pytest.mark.parametrize(
    ("encoding", "command"),
    [
        (SETTINGS[0](), "whorl compare rope --repairs yarn --preset laptop --seeds 3"),
        (SETTINGS[2](), "whorl.lab.compare([{'name': 'alibi', 'rounding': 'hf_falcon'}], preset='laptop', seeds=3)"),
        (SETTINGS[6](), "whorl compare rope+log_n --preset laptop --seeds 3"),
        (
            whorl.Combined(whorl.Rope(head_dim=16, base=500.0), whorl.Window()),
            "whorl.lab.compare([{'name': 'combined', 'parts': [{'name': 'rope', 'base': 500.0}, {'name': 'window'}]}], "
            "preset='laptop', seeds=3)",
        ),
    ],
)
def test_results_of_an_encoding_with_other_settings_say_nothing_of_it(encoding, command):
    (row,) = (row for row in verify(encoding) if row.id.endswith(".flag.extrapolates"))
    assert (row.verdict.kind, row.finding.command) == ("needs training", command)


def test_sizes_are_the_models_and_change_nothing():
    (row,) = (row for row in verify(whorl.Alibi(heads=12)) if row.id == "alibi.flag.extrapolates")
    assert row.verdict.kind == "holds" and row.finding.source.startswith("experiments/")


# -- flags that are not true ------------------------------------------------------------------------------------------


def red(encoding: Encoding) -> list[str]:
    """What is not as expected, by what was measured and not by a test that broke."""
    rows = [row for row in verify(encoding) if not row.as_expected]
    assert not any(row.raised for row in rows)
    return [row.id.partition(".")[2] for row in rows]


class OnValues(Encoding):
    """A number by distance on the values, which needs the weights."""

    claims = Claims(relative=True, norm_preserving=False, linear_attention=False, decays=False, extrapolates=False)
    Config = RootConfig

    def adjust_output(self, out, weights, v, q_positions, k_positions):
        apart = (q_positions[..., :, None] - k_positions[..., None, :]).double()
        return out + (weights * apart.sin()).sum(-1, keepdim=True)


def with_claims(cls: type[Encoding], **flags: bool) -> type[Encoding]:
    return type(cls.__name__, (cls,), {"claims": Claims(**({**OnValues.claims.__dict__} | flags))})


def test_a_term_on_the_values_has_no_linear_form():
    assert red(OnValues()) == []
    assert red(with_claims(OnValues, linear_attention=True)()) == ["flag.linear-attention"]


def test_what_fades_alike_in_all_heads_has_a_linear_form():
    liar = with_claims(whorl.XPos, linear_attention=False)
    assert red(liar(head_dim=16)) == ["flag.linear-attention"]
    assert red(liar(head_dim=16, rotated_heads=(0, 1))) == []


def test_a_factor_that_normalising_takes_away_has_no_linear_form():
    liar = with_claims(whorl.LogN, relative=False, linear_attention=True)
    assert red(liar()) == ["flag.linear-attention"]


def test_each_axis_is_shifted_by_itself():
    """A bias of where a key lies off the diagonal stays when rows and columns are shifted alike."""

    class Skewed(whorl.AxialRope):
        def score_bias(self, q_positions, k_positions, length=None):
            place = k_positions if k_positions.ndim > 1 else k_positions.expand(2, -1)
            return -0.1 * (place[0] - place[1]).abs().double()[..., None, None, :]

    liar = with_claims(Skewed, norm_preserving=True)
    (row,) = (row for row in verify(liar(head_dim=16)) if row.id.endswith(".flag.relative"))
    assert not row.as_expected and "shifted by 5000 on axis" in row.finding.counterexample


def test_float32_angles_have_a_tolerance_that_the_row_names_and_no_more():
    class Drifting(whorl.Rope):
        """Queries grow by a part in a million at each position."""

        def transform_qk(self, q, k, q_positions, k_positions, length=None):
            q, k = super().transform_qk(q, k, q_positions, k_positions, length)
            return q * (1 + 1e-6 * q_positions)[..., :, None], k

    def rows(encoding: Encoding) -> list[Row]:
        found = [row for row in verify(encoding) if row.id in ("rope.flag.relative", "rope.flag.norm-preserving")]
        assert len(found) == 2
        return found

    for row in rows(whorl.Rope(head_dim=16, angles="float32")):
        assert row.as_expected and "rounding" in row.statement
        assert f"({row.numbers['tolerance']:g} where" in row.claim.how
        assert str(row.verdict) == f"holds within {row.numbers['tolerance']:g}"
    assert not any(row.as_expected for row in rows(Drifting(head_dim=16, angles="float32")))


def test_scores_are_relative_for_each_length_that_is_served():
    class Late(whorl.Rope):
        """Knows the place once it serves more than it was trained on."""

        def score_bias(self, q_positions, k_positions, length=None):
            return k_positions.double().sin()[..., None, None, :] * (length is not None)

    scaling = whorl.DynamicNtk(factor=2.0, original_length=64)
    rows = {row.id: row for row in verify(Late(head_dim=16, scaling=scaling))}
    assert "served for 16,501 tokens" in rows["rope.flag.relative"].finding.counterexample
    assert "any one length" in rows["rope.flag.relative"].statement


def test_keys_after_the_query_are_shifted_too():
    class Leaning(Root):
        def score_bias(self, q_positions, k_positions, length=None):
            ahead = k_positions[..., None, None, :] > q_positions[..., None, :, None]
            place = 1e-3 * k_positions[..., None, None, :]
            return super().score_bias(q_positions, k_positions, length) - torch.where(ahead, place, 0.0)

    assert red(Leaning()) == ["flag.relative"]


def test_what_has_no_meaning_after_the_query_is_judged_before_it():
    class Logarithm(Root):
        def score_bias(self, q_positions, k_positions, length=None):
            return -(q_positions[..., None, :, None] - k_positions[..., None, None, :]).double().log1p()

    assert red(Logarithm()) == []


def test_a_bucket_between_near_and_far_is_seen():
    class Bump(Root):
        claims = Claims(relative=True, norm_preserving=True, linear_attention=False, decays=False, extrapolates=False)

        def score_bias(self, q_positions, k_positions, length=None):
            i, j = q_positions[..., None, :, None], k_positions[..., None, None, :]
            return torch.where((i - j > 40) & (i - j < 700) & (j > 100), 0.3, 0.0)

    assert red(Bump()) == ["flag.relative"]


def test_weights_that_are_not_numbers_do_not_decay():
    class Broken(Root):
        def score_bias(self, q_positions, k_positions, length=None):
            return super().score_bias(q_positions, k_positions, length) * float("nan")

    rows = {row.id: row for row in verify(Broken())}
    assert not rows["root.flag.decays"].as_expected


# -- encodings of a user's own ----------------------------------------------------------------------------------------


def test_a_trained_length_is_no_table():
    """Codes at the input that know the trained length, and have an answer past it: only training decides."""

    @config
    class PacedConfig(Config):
        name = "paced"
        width: int
        length: int

    class Paced(Encoding):
        Config = PacedConfig
        config: PacedConfig
        claims = Claims(relative=False, norm_preserving=False, linear_attention=True, decays=False, extrapolates=False)

        def add_to_input(self, x, positions):
            return x + (positions / self.config.length)[..., None]

    rows = {row.id: row for row in verify(Paced(width=64, length=64))}
    assert all(row.as_expected for row in rows.values())
    assert rows["paced.flag.extrapolates"].verdict.kind == "needs training"


def test_a_class_that_goes_by_the_name_of_another_is_not_that_one():
    class Mine(whorl.Rope):
        pass

    rows = verify(Mine(head_dim=16))
    assert {row.id.split(".")[1] for row in rows} == {"flag", "cache"} and all(row.as_expected for row in rows)
    assert {row.id for row in verify(Mine)} == {row.id for row in rows}
    says = {row.claim.says for row in rows if row.id == "rope.flag.relative"}
    assert says == {"Mine.claims.relative = True"}  # whorl does not say it
    extrapolates = next(row for row in rows if row.id.endswith("extrapolates"))
    assert extrapolates.verdict.kind == "needs training"


def test_the_command_that_would_train_an_encoding_of_ones_own(own_registry, tmp_path):
    whorl.register(Root)
    command = {row.id: row.finding.command for row in verify("root")}["root.flag.extrapolates"]
    assert command == "whorl.lab.compare(['root'], preset='laptop', seeds=3)"
    file = write_plugin(tmp_path / "mine own.py", "paced_by")
    (name,) = load_plugin(file)
    command = {row.id: row.finding.command for row in verify(name)}[f"{name}.flag.extrapolates"]
    assert command == f"whorl compare '{file}' --preset laptop --seeds 3"
