"""Combined: joining is flat, so how encodings are nested makes no difference."""

import copy
import math
import pickle
import random

import pytest
import torch

import whorl
from dense_flow import normal

HEADS, DIM = 2, 8

# What can be joined with what, one of each group at most, None for none of it.
PLACEMENTS = (
    lambda: whorl.Rope(head_dim=DIM),
    lambda: whorl.ReRope(head_dim=DIM, window=2),
    lambda: whorl.LeakyReRope(head_dim=DIM, window=3, factor=4.0),
    lambda: whorl.SelfExtend(head_dim=DIM, window=4, group=2),
    lambda: whorl.Rope(head_dim=DIM, learnable=True),
    None,
)
BIASES = (lambda: whorl.Alibi(heads=HEADS), lambda: whorl.T5(heads=HEADS), lambda: whorl.Kerple(heads=HEADS), None)
SCALES = (
    lambda: whorl.LogN(trained_length=3),
    lambda: whorl.SSMax(heads=HEADS),
    lambda: whorl.Llama4Temperature(floor_scale=4),
    None,
)
MASKS = (lambda: whorl.Window(size=5), lambda: whorl.Sinks(size=3, count=2), None)


def drawn(rng):
    """Encodings that may be joined, in any order."""
    while True:
        found = [rng.choice(group) for group in (PLACEMENTS, BIASES, SCALES, SCALES, MASKS, MASKS)]
        built = [make() for make in found if make is not None]
        if len(built) > 2:
            rng.shuffle(built)
            return built


def nested(rng, encodings):
    """The encodings joined in some nesting, in their order."""
    if len(encodings) == 1:
        return encodings[0]
    cuts = sorted(rng.sample(range(1, len(encodings)), rng.randint(1, len(encodings) - 1)))
    groups = [encodings[a:b] for a, b in zip((0, *cuts), (*cuts, len(encodings)), strict=True)]
    return whorl.Combined(*(nested(rng, group) for group in groups))


def check_nestings(seed, count):
    rng = random.Random(seed)
    for _ in range(count):
        encodings = drawn(rng)
        flat, other = whorl.Combined(*encodings), nested(rng, encodings)
        q, k, v = (normal(1, heads, 17, DIM, seed=rng.randrange(99)) for heads in (HEADS, 1, 1))
        expected = whorl.attention(q, k, v, encoding=flat)
        assert other.config == flat.config, flat.config
        assert torch.equal(whorl.attention(q, k, v, encoding=other), expected), flat.config


def test_nesting_makes_no_difference():
    check_nestings(0, 150)


@pytest.mark.large
def test_nesting_makes_no_difference_in_any_of_many():
    check_nestings(1, 5000)


def parts():
    return whorl.ReRope(head_dim=DIM, window=2), whorl.LogN(trained_length=3), whorl.Window(size=5)


def test_query_scaling_acts_beside_branches_in_every_nesting():
    """Against the definition: scores of ReRoPE, times log-n's number for the query, within the window."""
    rerope, log_n, window = parts()
    q, k, v = (normal(1, HEADS, 12, DIM, seed=seed) for seed in (1, 2, 3))
    positions = whorl.positions(12)
    distance = positions[:, None] - positions
    near, far = whorl.Rope(head_dim=DIM), distance.clamp(max=2)
    cos, sin = (t.double() for t in near.tables(torch.arange(13), dtype=torch.float64))
    scores = torch.zeros(1, HEADS, 12, 12, dtype=torch.float64)
    for i in range(12):
        for j in range(i + 1):
            turned = whorl.rotate(q[:, :, i : i + 1], *(t[far[i, j] : far[i, j] + 1] for t in (cos, sin)), impl="torch")
            scores[:, :, i, j] = (turned[:, :, 0] * k[:, :, j]).sum(-1)
    scores = scores * DIM**-0.5 * torch.log1p(positions.double()).div(math.log(3)).clamp(min=1)[:, None]
    allowed = (distance >= 0) & (distance < 5)
    expected = scores.masked_fill(~allowed, -torch.inf).softmax(-1) @ v
    for encoding in (
        whorl.Combined(whorl.Combined(rerope, log_n), window),
        whorl.Combined(rerope, whorl.Combined(log_n, window)),
        whorl.Combined(rerope, log_n, window),
    ):
        torch.testing.assert_close(whorl.attention(q, k, v, encoding=encoding), expected, rtol=0, atol=1e-12)


def test_a_subclass_of_the_users_own_stays_whole():
    class Louder(whorl.Combined):
        def softmax_scale(self, head_dim, length=None):
            return 1.0

    rerope, log_n, window = parts()
    whole = whorl.Combined(Louder(rerope, log_n), window)
    q = normal(1, HEADS, 12, DIM)
    expected = whorl.attention(q, q, q, encoding=whorl.Combined(rerope, log_n, window), scale=1.0)
    torch.testing.assert_close(whorl.attention(q, q, q, encoding=whole), expected, rtol=0, atol=1e-12)


def learned():
    return whorl.Rope(head_dim=DIM, learnable=True), whorl.T5(heads=HEADS), whorl.SSMax(heads=HEADS)


def test_state_dicts_of_nested_ones_load():
    """Names as whorl 0.1 had them: a combined part kept its own list."""
    rope, t5, ssmax = learned()
    for old, names in (
        ((("0.encodings.0.log_scale", rope.log_scale), ("0.encodings.1.table", t5.table)), "1.scale"),
        ((("0.log_scale", rope.log_scale), ("1.encodings.0.table", t5.table)), "1.encodings.2.scale"),
    ):
        wanted = {f"encodings.{name}": torch.randn_like(tensor) for name, tensor in old}
        scale = next(name for name, _ in ssmax.named_parameters())
        wanted[f"encodings.{names.replace('scale', scale)}"] = torch.randn_like(ssmax.get_parameter(scale))
        joined = whorl.Combined(*learned(), whorl.Window(size=3))
        joined.load_state_dict(wanted)
        for got, expected in zip(joined.state_dict().values(), wanted.values(), strict=True):
            assert torch.equal(got, expected)


def test_pickles_of_nested_ones_load():
    rerope, log_n, window = parts()
    flat = whorl.Combined(rerope, log_n, window)
    old = copy.copy(flat)  # laid out as whorl 0.1 kept it
    inner = whorl.Combined(rerope, log_n)
    state = {**flat.__dict__, "_modules": {"encodings": torch.nn.ModuleList((inner, window))}}
    state["config"] = object.__new__(type(flat.config))
    object.__setattr__(state["config"], "parts", (inner.config, window.config))
    old.__dict__ = state
    again = pickle.loads(pickle.dumps(old))
    assert again.config == flat.config and len(again.encodings) == 3
    q = normal(1, HEADS, 12, DIM)
    assert torch.equal(whorl.attention(q, q, q, encoding=again), whorl.attention(q, q, q, encoding=flat))
