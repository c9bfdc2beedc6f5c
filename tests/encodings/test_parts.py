"""Parts: what encodings declare, what follows from it, and that one file is enough for a new bias by distance."""

import copy
import pickle

import pytest
import torch

import whorl
from dense_flow import normal
from registry_cases import build
from whorl.config import Config, config
from whorl.encodings import parts
from whorl.encodings.base import HOOKS, Claims
from whorl.encodings.bias import DistanceBias

HEADS, DIM, LENGTH = 4, 16, 40


@config
class RootConfig(Config):
    name = "root"
    heads: int


class Root(DistanceBias):
    """A learned bias that falls with the square root of the distance: one file, one line of the registry."""

    Config = RootConfig

    def __init__(self, **settings):
        super().__init__(**settings)
        self.slope = torch.nn.Parameter(torch.linspace(0.1, 1.0, self.config.heads))

    @property
    def claims(self):
        return Claims(relative=True, norm_preserving=True, linear_attention=False, decays=True, extrapolates=True)

    def bias_of(self, head, distance):
        return -self.slope[head] * distance.abs().to(self.slope.dtype).sqrt()


def formed(q, k, v, encoding, slope):
    """Causal attention with the bias written out."""
    i, j = torch.arange(q.shape[2]), torch.arange(k.shape[2])
    bias = -slope[:, None, None] * (i[:, None] - j).abs().to(q.dtype).sqrt()
    placed = encoding.transform_qk(q, k, i, j)
    scores = placed[0] @ placed[1].mT * DIM**-0.5 + bias
    return scores.masked_fill(j > i[:, None], -torch.inf).softmax(-1) @ v


@pytest.mark.parametrize("partner", [None, "rope"])
def test_a_new_bias_by_distance_gets_every_path(partner):
    root = Root(heads=HEADS)
    encoding = root if partner is None else whorl.Combined(whorl.Rope(head_dim=DIM), root)
    assert type(parts.first(encoding, parts.Bias)) is parts.BiasByDistance
    q, k, v = (normal(2, HEADS, LENGTH, DIM, seed=seed).requires_grad_() for seed in range(3))
    expected = formed(q, k, v, encoding, root.slope)
    wanted = torch.autograd.grad(expected.square().sum(), (q, k, v, root.slope))
    taken = set()
    for impl in ("auto", "torch"):
        with torch.no_grad():
            taken.add(whorl.explain_attention(q, k, v, encoding=encoding, impl=impl).split(":")[0])
            got = whorl.attention(q, k, v, encoding=encoding, impl=impl)
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-6)
        out = whorl.attention(q, k, v, encoding=encoding, impl=impl)
        for one, other in zip(torch.autograd.grad(out.square().sum(), (q, k, v, root.slope)), wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    assert taken == {"masked", "dense"}
    cache = whorl.KVCache(encoding=encoding)
    with torch.no_grad():
        steps = [cache.attend(*(x[:, :, i : i + 8] for x in (q, k, v))) for i in range(0, LENGTH, 8)]
    torch.testing.assert_close(torch.cat(steps, 2), expected, rtol=0, atol=1e-6)


@torch.no_grad()
def test_a_new_bias_by_distance_is_a_formula_of_flex():
    x, root = normal(1, HEADS, 64, DIM).float(), Root(heads=HEADS)
    expected = formed(x, x, x, root, root.slope)
    torch.testing.assert_close(whorl.attention(x, x, x, encoding=root, impl="flex"), expected, rtol=0, atol=1e-5)


def test_a_new_bias_compiles_in_one_graph():
    x, root = normal(1, HEADS, 12, DIM), Root(heads=HEADS)
    attend = torch.compile(lambda q: whorl.attention(q, q, q, encoding=root), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(attend(x), whorl.attention(x, x, x, encoding=root))


@pytest.mark.filterwarnings("ignore:T5:UserWarning")
@pytest.mark.parametrize("name", whorl.names())
def test_every_hook_of_an_encoding_is_a_part(name):
    encoding = build(name)
    assert {part.hook for part in encoding.parts} & set(HOOKS) == set(encoding.enters())
    assert all(part.encoding is encoding for part in encoding.parts)
    again = type(encoding).from_config(encoding.config)
    assert [part.static for part in again.parts] == [part.static for part in encoding.parts]
    assert len({part.static for part in encoding.parts}) == len(encoding.parts)  # hashable, and all apart


@pytest.mark.parametrize("name", whorl.names())
def test_parts_of_a_copy_are_of_the_copy(name):
    for other in (copy.deepcopy(build(name)), copy.copy(build(name)), pickle.loads(pickle.dumps(build(name)))):
        assert all(part.encoding is other for part in other.parts)
        assert "_parts" not in other.__getstate__()


def test_parts_of_a_join_are_those_of_the_encodings_in_order():
    rope, alibi, window = whorl.Rope(head_dim=DIM), whorl.Alibi(heads=HEADS), whorl.Window(size=9)
    both = whorl.Combined(rope, whorl.Combined(window, alibi))
    assert both.parts == (*rope.parts, *window.parts, *alibi.parts)


def test_a_formula_of_both_positions_is_no_longer_one_of_the_distance():
    class Placed(whorl.Kerple):
        def bias_at(self, head, i, j):
            return super().bias_at(head, i, j) + 0.1 * i

    (part,) = Placed(heads=HEADS).parts
    assert type(part) is parts.BiasByPair and part.formula and not part.fold_dims


def test_settings_tell_parts_apart():
    assert parts.first(whorl.Window(size=9), parts.Visibility).static != whorl.Window(size=8).parts[0].static
    exact, rounded, split = (
        whorl.Alibi(heads=HEADS, **more).parts[0] for more in ({}, {"rounding": "hf_bf16"}, {"form": "split"})
    )
    assert (exact.fold_dims, rounded.fold_dims, split.fold_dims) == (3, 0, 0)
    assert isinstance(rounded, parts.BiasByPair) and isinstance(split, parts.BiasByDistance) and split.slopes is None


def test_what_follows_from_parts():
    rope, xpos = whorl.Rope(head_dim=DIM), whorl.XPos(head_dim=DIM)
    shaw, rerope = whorl.Shaw(head_dim=DIM), whorl.ReRope(head_dim=DIM, window=8)
    assert [each.key_policy for each in (rope, shaw, xpos, rerope)] == ["transformed", "transformed", "raw", "raw"]
    assert whorl.Combined(rope, shaw).key_policy == "raw"  # its terms are of raw keys
    assert rerope.one_branch(8) and not rerope.one_branch(9) and not rope.one_branch(1)
    assert whorl.Combined(rope, whorl.Window(size=9), whorl.Window(size=5)).reach == parts.Reach(4)


class Own(whorl.Encoding):
    """A hook and nothing declared."""

    Config = RootConfig

    def mask(self, q_positions, k_positions):
        seen = super().mask(q_positions, k_positions)
        assert seen is None  # nothing is joined in it
        return (q_positions[:, None] - k_positions) % 2 == 0


def test_a_hook_that_is_not_declared_is_a_part():
    (part,) = Own(heads=HEADS).parts
    assert type(part) is parts.Visibility and part.reach is None and part.heads == HEADS
    x = normal(1, HEADS, 6, DIM)
    with pytest.raises(whorl.WhorlError, match="Own has heads=4, q has 2"):
        whorl.attention(*[x[:, :2]] * 3, encoding=Own(heads=HEADS))
