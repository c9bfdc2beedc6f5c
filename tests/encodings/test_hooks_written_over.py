"""A hook that a user's class writes over is never skipped: every path gives what the hooks one by one give."""

import pytest
import torch

import whorl
from dense_flow import normal
from whorl.encodings import parts

HEADS, DIM, LENGTH = 4, 16, 600


class SteeperAt(whorl.Alibi):
    def bias_at(self, head, i, j):
        return 3 * super().bias_at(head, i, j)


class SteeperBias(whorl.Alibi):
    def score_bias(self, q_positions, k_positions, length=None):
        return 3 * super().score_bias(q_positions, k_positions, length)


class SteeperSlopes(whorl.Alibi):
    def slopes(self, device=None):
        return 3 * super().slopes(device)


class SandwichAt(whorl.Sandwich):
    def bias_at(self, head, i, j):
        return 0.1 * super().bias_at(head, i, j)


class SandwichBias(whorl.Sandwich):
    def score_bias(self, q_positions, k_positions, length=None):
        return 0.1 * super().score_bias(q_positions, k_positions, length)


class FireAt(whorl.Fire):
    def bias_at(self, head, i, j):
        return 3 * super().bias_at(head, i, j)


class Nearer(whorl.ReRope):
    """Far from a distance of 2 on, whatever the window."""

    def branches(self, q_positions, k_positions):
        near, far = super().branches(q_positions, k_positions)
        distance = q_positions[..., :, None] - k_positions[..., None, :]
        return near._replace(allowed=distance < 2), far._replace(allowed=distance >= 2)


class Louder(whorl.ReRope):
    def transform_branch(self, q, k, q_positions, k_positions, length=None):
        q, k = super().transform_branch(q, k, q_positions, k_positions, length)
        return 2 * q, k


class Thirds(whorl.Combined):
    def mask(self, q_positions, k_positions):
        return (q_positions[..., :, None] - k_positions[..., None, :]) % 3 == 0


class Sloped(whorl.Combined):
    def score_bias(self, q_positions, k_positions, length=None):
        distance = q_positions[..., :, None] - k_positions[..., None, :]
        return -distance.double().abs().expand(HEADS, -1, -1)


class Doubled(whorl.Combined):
    def adjust_scores(self, scores, *given, **named):
        return 2 * scores


class Far(whorl.Combined):
    def branches(self, q_positions, k_positions):
        return whorl.ReRope(head_dim=DIM, window=3).branches(q_positions, k_positions)


class Faster(whorl.Combined):
    def transform_qk(self, q, k, q_positions, k_positions, length=None):
        return super().transform_qk(q, k, 2 * q_positions, 2 * k_positions, length)


def rope():
    return whorl.Rope(head_dim=DIM)


CASES = {
    "alibi at": lambda: SteeperAt(heads=HEADS),
    "alibi bias": lambda: SteeperBias(heads=HEADS),
    "alibi slopes": lambda: SteeperSlopes(heads=HEADS),
    "sandwich at": lambda: SandwichAt(heads=HEADS),
    "sandwich bias": lambda: SandwichBias(heads=HEADS),
    "fire at": lambda: FireAt(heads=HEADS, length=8),
    "rerope branches": lambda: Nearer(head_dim=DIM, window=1000),
    "rerope placed": lambda: Louder(head_dim=DIM, window=1000),
    "mask": lambda: Thirds(rope(), whorl.LogN(trained_length=8)),
    "mask beside alibi": lambda: Thirds(rope(), whorl.Alibi(heads=HEADS)),
    "bias": lambda: Sloped(rope(), whorl.LogN(trained_length=8)),
    "bias over alibi": lambda: Sloped(rope(), whorl.Alibi(heads=HEADS)),
    "bias in a window": lambda: Sloped(whorl.Window(size=5), whorl.NoPE()),
    "scores": lambda: Doubled(rope(), whorl.LogN(trained_length=8)),
    "branches": lambda: Far(rope(), whorl.Window(size=50)),
    "placed": lambda: Faster(rope(), whorl.LogN(trained_length=8)),
}


def expected(x, encoding):
    """The hooks, one by one, over the whole square."""
    at = torch.arange(x.shape[2])
    branches, scale = encoding.branches(at, at), encoding.softmax_scale(DIM)
    if branches is None:
        q, k = encoding.transform_qk(x, x, at, at)
        scores = q @ k.mT * scale
    else:
        q, scores = encoding.scale_queries(x, at), torch.zeros(())
        for branch in branches:
            turned, k = encoding.transform_branch(q, x, branch.q_positions, branch.k_positions)
            scores = torch.where(branch.allowed, turned @ k.mT * scale, scores)
    scores = encoding.adjust_scores(scores, x, x, at, at, scale=scale)
    if isinstance(encoding, (whorl.Fire, whorl.Sandwich)) and not isinstance(encoding, SandwichBias):
        bias = encoding.bias_at(torch.arange(HEADS)[:, None, None], at[:, None], at)
    else:
        bias = encoding.score_bias(at, at)
    scores, allowed, own = scores if bias is None else scores + bias, at[:, None] >= at, encoding.mask(at, at)
    allowed = allowed if own is None else allowed & own
    return scores.masked_fill(~allowed, -torch.inf).softmax(-1) @ x


@pytest.mark.parametrize("joined", [False, True], ids=["alone", "joined"])
@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_every_path_asks_the_class(name, joined):
    encoding, x = CASES[name](), normal(1, HEADS, LENGTH, DIM)
    encoding = whorl.Combined(encoding, whorl.Window(size=10**6)) if joined else encoding
    tolerance = {"rtol": 0, "atol": 2e-5 if "fire" in name or "sandwich" in name else 1e-6}
    true = expected(x, CASES[name]() if not list(encoding.parameters()) else encoding_of(encoding))
    for impl in ("auto", "torch"):
        torch.testing.assert_close(whorl.attention(x, x, x, encoding=encoding, impl=impl), true, **tolerance)
    cache = whorl.KVCache(encoding=encoding)
    steps = [cache.attend(*[x[:, :, i : i + 200]] * 3) for i in range(0, LENGTH, 200)]
    torch.testing.assert_close(torch.cat(steps, 2), true, **tolerance)


def encoding_of(encoding):
    """The first part of a joined encoding."""
    return encoding.encodings[0] if type(encoding) is whorl.Combined else encoding


@pytest.mark.parametrize("name", ["alibi bias", "sandwich bias", "bias", "bias over alibi"])
def test_a_bias_of_ones_own_has_no_formula_for_flex(name):
    assert not parts.first(CASES[name](), parts.Bias).formula
    assert not CASES[name]().folds


@torch.no_grad()
def test_blocks_that_flex_visits_are_those_of_the_class():
    class AndSevenths(whorl.Window):
        def mask(self, q_positions, k_positions):
            return super().mask(q_positions, k_positions) | (k_positions % 7 == 0)[..., None, :]

    x = normal(1, 2, 512, DIM, dtype=torch.float32)
    for encoding in (whorl.Window(size=4), AndSevenths(size=4)):  # of one config
        got, true = (whorl.attention(x, x, x, encoding=encoding, impl=impl) for impl in ("flex", "torch"))
        torch.testing.assert_close(got, true, rtol=0, atol=1e-5)


@torch.no_grad()
def test_parts_do_not_tell_how_a_class_turns():
    x, encoding = normal(1, HEADS, 12, DIM), Faster(rope(), whorl.NoPE())
    twice = 2 * torch.arange(12)
    got, true = (
        whorl.linear_attention(x, x, x, encoding=one, positions=at) for one, at in ((encoding, None), (rope(), twice))
    )
    torch.testing.assert_close(got, true, rtol=0, atol=1e-12)
    cache = whorl.KVCache(encoding=encoding)
    cache.attend(x, x, x)
    with pytest.raises(whorl.WhorlError, match="what Faster did to the kept keys cannot be undone"):
        cache.change_encoding(whorl.Rope(head_dim=DIM, base=77.0))


@pytest.mark.parametrize("first", ["own", "plain"])
@torch.no_grad()
def test_tables_of_ones_own_are_not_shared_with_the_class_above(first):
    class Mine(whorl.Rope):
        def tables(self, positions, length=None, **more):
            return super().tables(2 * positions, length, **more)

    base = 301.0 if first == "own" else 302.0  # no other test has filled the cache for it
    x, at = normal(1, HEADS, 12, DIM), torch.arange(12)
    mine, plain = Mine(head_dim=DIM, base=base), whorl.Rope(head_dim=DIM, base=base)
    order = (mine, plain) if first == "own" else (plain, mine)
    got = {type(one): whorl.attention(x, x, x, encoding=one) for one in order}
    for cls, turned in {Mine: plain.rotate(x, 2 * at), whorl.Rope: plain.rotate(x, at)}.items():
        torch.testing.assert_close(got[cls], whorl.attention(turned, turned, x), rtol=0, atol=1e-9)
