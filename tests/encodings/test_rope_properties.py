"""What must hold for every scaling, layout, slice and dtype: the laws of rotation and of a pure module."""

import copy
import pickle
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import whorl
from helpers import LAYOUTS, ROUNDING, SCALINGS

PLACES = [(64, "leading"), (64, "trailing"), (64, 8)]
HEAD = 80
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


@st.composite
def ropes(draw, **fixed):
    rotary_dim, place = draw(st.sampled_from(PLACES))
    settings = {
        "head_dim": HEAD,
        "rotary_dim": rotary_dim,
        "slice": place,
        "layout": draw(st.sampled_from(LAYOUTS)),
        "scaling": SCALINGS[draw(st.sampled_from(sorted(SCALINGS)))],
        "base": draw(st.sampled_from([100.0, 1e4, 5e5])),
        "backwards": draw(st.booleans()),
    }
    return whorl.Rope(**{**settings, **fixed})


def random(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


quick = settings(max_examples=60, deadline=None)
LENGTHS = st.sampled_from([None, 100, 256, 257, 5000])


def score(rope, q, k, q_position, k_position, length=None):
    """The inner product of a query and a key."""
    q, k = rope.transform_qk(q[None], k[None], torch.tensor([q_position]), torch.tensor([k_position]), length)
    return float((q * k).sum())


@quick
@given(ropes(), st.integers(0, 5000), st.integers(0, 5000), st.integers(1, 1_000_000), LENGTHS, st.integers(0, 99))
def test_scores_depend_on_the_distance_only(rope, m, n, shift, length, seed):
    q, k = random(HEAD, seed=seed), random(HEAD, seed=seed + 1000)
    assert rope.claims.relative
    here, there = (score(rope, q, k, m + s, n + s, length) for s in (0, shift))
    assert here == pytest.approx(there, abs=1e-7)


@quick
@given(ropes(backwards=False), st.integers(-5000, 5000), LENGTHS)
def test_a_turn_backwards_is_the_turn_of_the_negated_position(rope, position, length):
    x, backwards = random(1, 2, 1, HEAD), whorl.Rope.from_config(rope.config.replace(backwards=True))
    got, expected = (
        one.rotate(x, torch.tensor([at]), length) for one, at in ((backwards, position), (rope, -position))
    )
    assert torch.equal(got, expected)


@quick
@given(ropes(), st.integers(-5000, 5000), LENGTHS, st.sampled_from(DTYPES))
def test_norms_are_kept_where_claimed(rope, position, length, dtype):
    x, positions = random(1, 2, 1, HEAD, dtype=dtype), torch.tensor([position])
    got = rope.rotate(x, positions, length).double().norm(dim=-1)
    if rope.claims.norm_preserving:
        torch.testing.assert_close(got, x.double().norm(dim=-1), rtol=4 * ROUNDING[dtype], atol=0)
    else:
        inside = slice(rope.config.start, rope.config.start + 64)
        ratio = rope.rotate(x, positions, length)[..., inside].double().norm() / x[..., inside].double().norm()
        assert float(ratio) == pytest.approx(rope.attention_factor(length), rel=4 * ROUNDING[dtype])


@quick
@given(ropes(scaling=None), st.integers(0, 3000), st.integers(0, 3000))
def test_rotations_form_a_group(rope, m, n):
    """R_m R_n = R_(m+n), and R_0 is the identity: one dimension of a layout that keeps its place."""
    if rope.layout == "interleaved_to_half":
        rope = whorl.Rope.from_config(rope.config.replace(layout="half"))
    x = random(1, HEAD)
    both = rope.rotate(rope.rotate(x, torch.tensor([m])), torch.tensor([n]))
    torch.testing.assert_close(both, rope.rotate(x, torch.tensor([m + n])), rtol=0, atol=1e-6)
    assert torch.equal(rope.rotate(x, torch.tensor([0])), x)


@quick
@given(ropes(), LENGTHS, st.sampled_from(DTYPES))
def test_a_prefix_of_long_equals_short(rope, length, dtype):
    """At the same served length, for every scheme; where nothing depends on the length, at any length."""
    x = random(1, 2, 300, HEAD, dtype=dtype)
    long = rope.rotate(x, torch.arange(300), length)
    assert torch.equal(long[:, :, :70], rope.rotate(x[:, :, :70], torch.arange(70), length))
    if not rope.length_dependent:
        assert torch.equal(long, rope.rotate(x, torch.arange(300)))


@quick
@given(ropes(), LENGTHS, st.lists(st.integers(1, 40), min_size=1, max_size=5), st.sampled_from(DTYPES))
def test_packed_equals_singles(rope, length, lengths, dtype):
    total = sum(lengths)
    x = random(total, 2, HEAD, dtype=dtype)
    packed = rope.rotate(x, whorl.packed(lengths), length, order="thd")
    start = 0
    for count in lengths:
        own = rope.rotate(x[start : start + count], whorl.positions(count), length, order="thd")
        assert torch.equal(packed[start : start + count], own)
        start += count


@quick
@given(ropes(), LENGTHS, st.sampled_from(DTYPES))
def test_one_token_at_a_time_equals_the_whole(rope, length, dtype):
    x = random(1, 2, 6, HEAD, dtype=dtype)
    whole = rope.rotate(x, torch.arange(6) + 250, length)
    steps = [rope.rotate(x[:, :, i : i + 1], torch.tensor([250 + i]), length) for i in range(6)]
    assert torch.equal(torch.cat(steps, dim=2), whole)


@quick
@given(ropes(), ropes())
def test_two_configs_never_share_a_table(one, other):
    """Equal configs hash alike and give equal tables; different ones are different keys."""
    assert (one.config == other.config) == (hash(one.config) == hash(other.config))
    if one.config == other.config:
        assert torch.equal(one.tables(torch.arange(9))[0], other.tables(torch.arange(9))[0])


@quick
@given(ropes())
def test_config_survives_a_dict(rope):
    again = whorl.from_dict(rope.config.to_dict())
    assert again.config == rope.config
    assert hash(again.config) == hash(rope.config)
    assert type(again) is whorl.Rope


def test_a_whole_head_stays_whole_when_its_size_changes():
    assert whorl.Rope(head_dim=64).config.replace(head_dim=128).rotary_dim == 128
    assert whorl.Rope(head_dim=64, rotary_dim=32).config.replace(head_dim=128).rotary_dim == 32


def bits(rope, dtype=torch.float32):
    x, positions = random(1, 2, 300, 64, dtype=dtype), torch.arange(300)
    return rope.rotate(x, positions, 1000), *rope.tables(positions, 1000)


def same(left, right):
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize("name", SCALINGS)
@pytest.mark.parametrize("angles", ["exact", "float32"])
def test_life_of_a_module_changes_no_bit(name, angles):
    """Casting, meta loading, call order, autocast, copies: what a table depends on is its config."""
    make = {"head_dim": 64, "scaling": SCALINGS[name], "angles": angles}
    expected = bits(whorl.Rope(**make))
    assert not list(whorl.Rope(**make).state_dict())
    assert not list(whorl.Rope(**make).buffers())

    assert same(bits(whorl.Rope(**make).to(torch.bfloat16)), expected)
    assert same(bits(whorl.Rope(**make).half().double()), expected)
    with torch.device("meta"):
        loaded = whorl.Rope(**make)
    assert same(bits(loaded.to_empty(device="cpu")), expected)

    rope = whorl.Rope(**make)
    rope.rotate(random(1, 1, 5000, 64), torch.arange(5000), 5000)
    rope.rotate(random(1, 1, 3, 64), torch.arange(3))
    assert same(bits(rope), expected)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert same(bits(whorl.Rope(**make)), expected)
    with torch.inference_mode():
        assert same(bits(whorl.Rope(**make)), expected)
    for copied in (copy.deepcopy(rope), pickle.loads(pickle.dumps(rope))):
        assert copied.config == rope.config
        assert same(bits(copied), expected)
    assert pickle.loads(pickle.dumps(rope.config)) == copy.deepcopy(rope.config) == rope.config


@pytest.mark.parametrize("policy", ["full", "on_the_fly", "hybrid"])
@pytest.mark.parametrize("name", ["none", "yarn", "dynamic_ntk"])
def test_the_cache_policy_changes_no_bit(policy, name):
    rope = whorl.Rope(head_dim=64, scaling=SCALINGS[name])
    expected = bits(rope)
    before = whorl.use_table_cache(whorl.TableCache(policy, length=128))
    try:
        assert same(bits(rope), expected)
        assert same(bits(rope), expected)
    finally:
        whorl.use_table_cache(before)


def test_learnable_frequencies_start_as_the_fixed_ones_and_train():
    plain, learned = whorl.Rope(head_dim=16), whorl.Rope(head_dim=16, learnable=True)
    x, positions = random(1, 2, 20, 16, dtype=torch.float32), torch.arange(20)
    torch.testing.assert_close(learned.rotate(x, positions), plain.rotate(x, positions), rtol=0, atol=1e-6)
    assert [name for name, _ in learned.named_parameters()] == ["log_scale"]
    learned.rotate(x, positions).cos().sum().backward()
    assert learned.log_scale.grad is not None
    assert bool((learned.log_scale.grad != 0).all())
    with torch.no_grad():
        learned.log_scale += 0.5
    torch.testing.assert_close(learned.frequencies(), plain.frequencies() * torch.tensor(0.5).double().exp())
    again = whorl.from_dict(learned.config.to_dict())
    again.load_state_dict(learned.state_dict())
    assert torch.equal(again.rotate(x, positions), learned.rotate(x, positions))


def test_learnable_frequencies_have_right_gradients():
    rope = whorl.Rope(head_dim=8, learnable=True, scaling=SCALINGS["linear"]).double()
    x, positions = random(1, 1, 5, 8), torch.arange(5)

    def turn(log_scale):
        return torch.func.functional_call(rope, {"log_scale": log_scale}, (x, positions))

    rope.forward = rope.rotate
    start = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(turn, (start,))


def test_learnable_frequencies_survive_the_meta_device():
    with torch.device("meta"):
        rope = whorl.Rope(head_dim=8, learnable=True)
    rope.to_empty(device="cpu")
    rope.reset_parameters()
    assert torch.equal(rope.log_scale, torch.zeros(4))


SIZED = {
    "rope": lambda dim, **more: whorl.Rope(head_dim=dim, **more),
    "ntk": lambda dim, **more: whorl.Rope(head_dim=dim, scaling=whorl.Ntk(factor=2.0), **more),
    "xpos": lambda dim, **more: whorl.XPos(head_dim=dim, **more),
    "self_extend": lambda dim, **more: whorl.SelfExtend(head_dim=dim, **more),
    **{
        f"mrope {arrangement}": lambda dim, arrangement=arrangement, **more: whorl.MRope(
            head_dim=dim, arrangement=arrangement, **more
        )
        for arrangement in ("chunked", "interleaved", "ernie", "alternating")
    },
    "mrope of given sections": lambda dim, **more: whorl.MRope(head_dim=dim, sections=(1, 1, 1), **more),
    **{
        f"axial {convention} {axes}": lambda dim, convention=convention, axes=axes: whorl.AxialRope(
            head_dim=dim, convention=convention, axes=axes
        )
        for convention, axes in (("rope_vit", 2), ("rope_vit", 3), ("minimax_vision", 2), ("minimax_vision", 3))
    },
    "mixed": lambda dim: whorl.MixedRope(head_dim=dim, heads=2),
}


@pytest.mark.parametrize("name", SIZED)
def test_the_sizes_that_a_refusal_names_work_and_are_the_nearest(name):
    made = SIZED[name]

    def works(dim, **more):
        try:
            return bool(made(dim, **more))
        except whorl.WhorlError:
            return False

    working = [dim for dim in range(1, 80) if works(dim)]
    for dim in sorted(set(range(1, 65)) - set(working)):
        with pytest.raises(whorl.WhorlError) as error:
            made(dim)
        named = {setting: int(size) for setting, size in re.findall(r"(head_dim|rotary_dim)=(\d+)\b", str(error.value))}
        if named.get("rotary_dim") == dim:  # what was given, and a rule instead of a size
            named, rule = {}, re.search(r"(at least|divisible by) (\d+)", str(error.value))
            assert rule and min(working) == int(rule[2])
            assert all((dim >= int(rule[2])) if rule[1] == "at least" else not dim % int(rule[2]) for dim in working)
        if "head_dim" in named:
            assert named["head_dim"] == min(size for size in working if size > dim)
        if "rotary_dim" in named:
            smaller = [size for size in range(1, dim) if works(dim, rotary_dim=size)]
            assert named["rotary_dim"] == max(smaller)
