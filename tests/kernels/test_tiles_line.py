"""Attention by tiles with ALiBi's line against the definition: values, views, what it skips, and what it refuses."""

import math

import numpy as np
import pytest
import torch

import whorl
from helpers import draw, qkv
from whorl.errors import WhorlError
from whorl.plans import PLANS

pytest.importorskip("triton")

from whorl.kernels.tiles.biases import line
from whorl.kernels.tiles.op import tiles_attention

pytestmark = pytest.mark.usefixtures("small_tiles")

# Relative to the rms of the values; the interpreter cuts bfloat16 off where a GPU rounds.
CLOSE = {torch.float32: 1e-6, torch.bfloat16: 8e-3, torch.float16: 6e-4}
CLOSE_ON_GPU = {torch.float32: 5e-6, torch.bfloat16: 2.5e-3, torch.float16: 4e-4}


def alibi_attention(q, k, v, slopes, scale):
    """The output with a slope for each head, those with the gentlest one first."""
    numbers = torch.tensor(slopes, dtype=torch.float32, device=q.device)[:, None]
    order = torch.argsort(numbers[:, 0]).int()
    return tiles_attention(q, k, v, scale=scale, kind="line", numbers=numbers, order=order)[0]


def by_definition(q, k, v, slopes, scale):
    """softmax over keys up to the query of scale q.k - m (i - j), in float64, head by head."""
    q, k, v = (t.detach().double().cpu().numpy() for t in (q, k, v))
    out = np.zeros((*q.shape[:3], v.shape[3]))
    first = k.shape[2] - q.shape[2]
    for b, h in np.ndindex(q.shape[:2]):
        kv = h // (q.shape[1] // k.shape[1])
        for i in range(q.shape[2]):
            seen = first + i + 1
            scores = scale * (k[b, kv, :seen] @ q[b, h, i]) - slopes[h] * np.arange(seen - 1, -1, -1)
            weights = np.exp(scores - scores.max())
            out[b, h, i] = weights @ v[b, kv, :seen] / weights.sum()
    return torch.from_numpy(out)


def slopes_of(heads):
    return tuple(whorl.Alibi(heads=heads).slopes().tolist())


def check(got, expected, v):
    assert got.dtype == v.dtype and not bool(got.isnan().any())
    close = (CLOSE_ON_GPU if got.is_cuda else CLOSE)[got.dtype]
    error = (got.double().cpu() - expected).pow(2).mean().sqrt() / expected.pow(2).mean().sqrt()
    assert float(error) <= close, float(error)
    # the rms of all says nothing of one row
    assert float((got.double().cpu() - expected).abs().max()) <= 16 * close * float(v.abs().max())


SHAPES = [  # batch, heads, key heads, queries, keys, dim, value dim
    (2, 4, 2, 33, 33, 16, 16),
    (1, 3, 1, 50, 50, 24, 40),
    (1, 4, 4, 20, 61, 33, 16),
    (1, 2, 2, 1, 45, 64, 64),
    (2, 2, 1, 5, 90, 80, 128),
    (1, 1, 1, 1, 1, 16, 16),
    (1, 2, 2, 64, 64, 32, 8),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_it_is_the_definition(shape, device, poisoned):
    q, k, v = qkv(*shape, device=device)
    slopes = slopes_of(shape[1])
    got = alibi_attention(q, k, v, slopes, 0.3)
    check(got, by_definition(q, k, v, slopes, 0.3), v)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[4]], ids=str)
def test_half_precision(shape, dtype, device, poisoned):
    q, k, v = qkv(*shape, dtype=dtype, device=device)
    slopes = slopes_of(shape[1])
    check(alibi_attention(q, k, v, slopes, 0.3), by_definition(q, k, v, slopes, 0.3), v)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("norm", [1.0, 3.0])
def test_long_inputs_on_a_gpu(dtype, dim, norm):
    q, k, v = qkv(1, 4, 2, 1500, 2111, dim, dim, dtype=dtype, device="cuda")
    slopes = slopes_of(4)
    rows = slice(1400, None)
    expected = by_definition(q[:, :, rows] * norm, k * norm, v, slopes, dim**-0.5)
    check(alibi_attention(q * norm, k * norm, v, slopes, dim**-0.5)[:, :, rows], expected, v)


def in_nan(x, shape, index):
    """x inside a larger tensor that is NaN everywhere else."""
    around = torch.full(shape, math.nan, dtype=x.dtype, device=x.device)
    around[index] = x
    return around[index]


ALL = slice(None)
VIEWS = {
    "heads after length": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "a slice of dimensions": lambda x: in_nan(x, (*x.shape[:3], x.shape[3] + 7), (..., slice(3, -4))),
    "every other row": lambda x: in_nan(x, (*x.shape[:2], 2 * x.shape[2], x.shape[3]), (..., slice(1, None, 2), ALL)),
    "every other dimension": lambda x: in_nan(x, (*x.shape[:3], 2 * x.shape[3]), (..., slice(1, None, 2))),
    "dimensions first": lambda x: x.permute(3, 0, 1, 2).contiguous().permute(1, 2, 3, 0),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views(name, device, poisoned):
    inputs = qkv(2, 2, 1, 19, 40, 24, 16, device=device)
    viewed = [VIEWS[name](x) for x in inputs]
    assert all(torch.equal(one, other) for one, other in zip(viewed, inputs, strict=True))
    expected = alibi_attention(*inputs, slopes_of(2), 0.25)
    torch.testing.assert_close(alibi_attention(*viewed, slopes_of(2), 0.25), expected, rtol=0, atol=5e-6)


def test_one_batch_of_keys_for_all(device):
    q, k, v = qkv(3, 2, 2, 9, 21, 16, 16, device=device)
    k, v = k[:1].expand(3, -1, -1, -1), v[:1].expand(3, -1, -1, -1)
    check(alibi_attention(q, k, v, (0.5, 0.1), 0.25), by_definition(q, k, v, (0.5, 0.1), 0.25), v)


@pytest.mark.gpu
def test_offsets_past_32_bits():
    """Keys, values and queries further apart than 2^31 elements, by row and by batch."""
    memory = torch.empty(2**31 + 2**20, dtype=torch.bfloat16, device="cuda")
    small = qkv(2, 2, 2, 40, 40, 64, 64, dtype=torch.bfloat16, device="cuda")
    expected = by_definition(*small, (0.3, 0.01), 0.125)
    for strides in ((2**31, 64 * 40, 64, 1), (64, 128, 2**31 // 39 // 8 * 8 + 8, 1)):
        for place in range(3):
            given = list(small)
            given[place] = memory.as_strided(small[place].shape, strides).copy_(small[place])
            check(alibi_attention(*given, (0.3, 0.01), 0.125), expected, small[2])


def test_keys_that_cannot_weigh_anything_are_not_read(device):
    """Values that are NaN would show: they are not in the bound, so only skipping keeps them out."""
    q, k, v = qkv(1, 2, 1, 16, 200, 16, 16, device=device)
    slopes = (1.0, 0.9)
    expected = by_definition(q, k, v, slopes, 0.25)
    far = v.clone()
    far[:, :, :96] = math.nan
    check(alibi_attention(q, k, far, slopes, 0.25), expected, v)
    # long keys and queries could weigh anything, wherever they are
    assert bool(alibi_attention(6 * q, 6 * k, far, slopes, 0.25).isnan().all())


def test_a_gentle_slope_reads_what_a_steep_one_skips(device):
    q, k, v = qkv(1, 2, 2, 16, 200, 16, 16, device=device)
    v[:, :, :96] = math.nan
    seen = alibi_attention(q, k, v, (0.05, 1.0), 0.25).isnan()
    assert bool(seen[:, 0].all()) and not bool(seen[:, 1].any())


@pytest.mark.parametrize("place", [(0, 0), (1, 1)], ids=str)
def test_a_far_key_that_outweighs_its_distance_counts(place, device):
    """One key of one batch row and head is long enough to beat any bias: where it is, and nowhere else."""
    q, k, v = qkv(2, 4, 2, 40, 150, 16, 16, device=device)
    slopes = (0.5, 1.0, 0.5, 1.0)
    k[place][3] = 300 * q[place[0], 2 * place[1], -1] / q[place[0], 2 * place[1], -1].norm()
    expected = by_definition(q, k, v, slopes, 0.25)
    got = alibi_attention(q, k, v, slopes, 0.25)
    check(got, expected, v)
    reached = got[place[0], 2 * place[1], -1]
    torch.testing.assert_close(reached, v[place][3], rtol=0, atol=1e-5)


@pytest.mark.parametrize("norm", [1.0, 5.0, 40.0])
def test_skipping_changes_nothing(norm, device, monkeypatch):
    q, k, v = qkv(1, 3, 1, 40, 113, 16, 16, device=device)
    slopes = (0.9, 0.2, 0.01)
    got = alibi_attention(norm * q, norm * k, v, slopes, 0.25)
    monkeypatch.setattr(line, "MARGIN", 1e9)
    PLANS.cache_clear()
    torch.testing.assert_close(got, alibi_attention(norm * q, norm * k, v, slopes, 0.25), rtol=0, atol=1e-6)


def reach_of(bound, counts, slope, keys):
    """What the kernel's function finds for rows with these numbers, natural ones made powers of two."""
    import triton
    import triton.language as tl

    @triton.jit(do_not_specialize=["keys", "slope"])
    def ask(p_in, p_out, keys, slope, count: tl.constexpr, margin: tl.constexpr):
        o_row = tl.arange(0, count)
        tl.store(
            p_out, line_reach(tl.load(p_in + o_row), tl.load(p_in + count + o_row), slope, o_row >= 0, keys, margin)
        )

    given, found = torch.tensor([bound, counts], dtype=torch.float32) / math.log(2), torch.zeros(1, dtype=torch.int32)
    ask[(1,)](given, found, keys, slope / math.log(2), len(bound), line.MARGIN)
    return int(found)


line_reach = line.reach_of


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled here")
@pytest.mark.parametrize("slope", [2.0, 0.7, 2**-4, 2**-8])
@pytest.mark.parametrize("bound", [0.0, 17.0, 120.0])
def test_what_is_beyond_reach_weighs_what_the_margin_allows(slope, bound):
    keys, counts = 60_000, -1.5
    reach = reach_of([bound] * 2, [counts] * 2, slope, keys)

    def weight_from(distance):
        return np.exp(bound - counts - slope * np.arange(distance, keys)).sum()

    assert 0 < reach < keys
    assert weight_from(reach + 1) <= math.exp(-24)
    # and not much more is read than that: a few keys less would have been too few
    assert weight_from(max(0, reach - 3 - int(1 / slope))) > math.exp(-24)


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled here")
def test_the_reach_of_rows_is_that_of_the_row_that_needs_most():
    alone = [reach_of([bound] * 2, [counts] * 2, 0.1, 10_000) for bound, counts in ((9.0, 3.0), (30.0, 1.0))]
    assert alone[0] < alone[1] == reach_of([9.0, 30.0], [3.0, 1.0], 0.1, 10_000)


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled here")
@pytest.mark.parametrize("bound", [math.nan, math.inf, 1e30])
def test_a_bound_that_says_nothing_skips_nothing(bound):
    assert reach_of([1.0, bound], [0.0, 0.0], 0.5, 10_000) >= 10_000


def test_a_slope_of_zero_is_plain_causal_attention(device):
    q, k, v = qkv(1, 2, 2, 40, 40, 16, 16, device=device)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.25)
    torch.testing.assert_close(alibi_attention(q, k, v, (0.0, 0.0), 0.25), expected, rtol=0, atol=1e-5)


def test_the_steepest_slope_is_the_token_itself(device):
    q, k, v = qkv(1, 1, 1, 40, 40, 16, 16, device=device)
    torch.testing.assert_close(alibi_attention(q, k, v, (256.0,), 0.25), v, rtol=0, atol=1e-6)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, in the interpreter
def test_nan_is_not_skipped(device):
    """A key that is not a number reaches every later query, however far; a query that is not, itself alone."""
    q, k, v = qkv(1, 1, 1, 40, 100, 16, 16, device=device)
    bad_k, bad_q = k.clone(), q.clone()
    bad_k[0, 0, 2, 5] = math.nan
    bad_q[0, 0, 7, 5] = math.nan
    assert bool(alibi_attention(q, bad_k, v, (1.0,), 0.25).isnan().all())
    rows = alibi_attention(bad_q, k, v, (1.0,), 0.25).isnan().all(-1)[0, 0]
    assert rows.nonzero().flatten().tolist() == [7]


@pytest.mark.parametrize("shape", [(0, 2, 2, 5, 5, 16, 16), (1, 2, 2, 0, 5, 16, 16)], ids=str)
def test_nothing_to_attend(shape, device):
    q, k, v = qkv(*shape, device=device)
    assert alibi_attention(q, k, v, (0.5, 0.1), 0.25).shape == q.shape


def test_attention_takes_it_when_asked(device):
    alibi = whorl.Alibi(heads=4, scale=0.5)
    both = whorl.Combined(whorl.Rope(head_dim=16), alibi)
    q, k, v = qkv(2, 4, 2, 21, 45, 16, 16, device=device)
    for encoding in (alibi, both):
        got = whorl.attention(q, k, v, encoding=encoding, impl="triton")
        torch.testing.assert_close(got, whorl.attention(q, k, v, encoding=encoding, impl="torch"), rtol=0, atol=1e-5)
    assert whorl.explain_attention(q, k, v, encoding=alibi, impl="triton") == "tiles: asked for"
    chosen = whorl.explain_attention(q, k, v, encoding=alibi)
    assert chosen.startswith("tiles: " if device == "cuda" else "folded: ")


def test_it_compiles_in_one_graph(device):
    both = whorl.Combined(whorl.Rope(head_dim=16), whorl.Alibi(heads=2))
    compiled = torch.compile(
        lambda q, k, v: whorl.attention(q, k, v, encoding=both, impl="triton"), fullgraph=True, backend="aot_eager"
    )
    for keys in (20, 33):
        inputs = qkv(1, 2, 2, keys, keys, 16, 16, device=device)
        expected = whorl.attention(*inputs, encoding=both, impl="torch")
        torch.testing.assert_close(compiled(*inputs), expected, rtol=0, atol=1e-5)


@pytest.mark.gpu
def test_a_graph_replays_it_and_nothing_waits():
    inputs = qkv(1, 4, 2, 300, 300, 64, 64, dtype=torch.bfloat16, device="cuda")
    alibi = whorl.Alibi(heads=4)
    expected = whorl.attention(*inputs, encoding=alibi)
    torch.cuda.set_sync_debug_mode("error")
    try:
        whorl.attention(*inputs, encoding=alibi)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = whorl.attention(*inputs, encoding=alibi)
    out.fill_(math.nan)
    graph.replay()
    assert torch.equal(out, expected)


ALIBI = whorl.Alibi(heads=2)
X = draw(1, 2, 5, 16)
REFUSED = {
    "a bias by pair": (
        {"encoding": whorl.Fire(heads=2, hidden=64)},
        "Fire has a bias that is not of the distance alone",
    ),
    "by positions": ({"causal": "positions"}, "attention by tiles counts positions 0, 1, 2, … itself"),
    "positions that are no whole numbers": ({"positions": torch.rand(5)}, "has positions that are whole numbers"),
    "positions of a window": (
        {"encoding": whorl.Window(size=3), "positions": torch.arange(5)},
        "attention by tiles counts positions 0, 1, 2, … itself",
    ),
    "positions of a bias by pair": (
        {"encoding": whorl.Fire(heads=2), "positions": torch.arange(5)},
        "has given positions for a bias by distance only",
    ),
    "positions of a table": (
        {"encoding": whorl.build("sandwich", heads=2, code_width=16), "positions": torch.arange(5)},
        "does not know how long a table Sandwich needs for given positions",
    ),
    "a mask": ({"mask": torch.ones(5, 5, dtype=torch.bool)}, "has documents and padding, and no other mask"),
    "documents": ({"documents": torch.zeros(5)}, "has documents that are whole numbers"),
    "two windows": (
        {"encoding": whorl.Combined(whorl.Window(size=3), whorl.Window(size=2))},
        "has one causal window and no other mask",
    ),
    "a window on both sides": (
        {"encoding": whorl.Window(size=3), "causal": False},
        "has one causal window and no other mask",
    ),
    "dropout": (
        {"encoding": whorl.ReRope(head_dim=16), "dropout": 0.1},
        "has no bias, window, padding, documents or dropout beside branches",
    ),
    "a bias and gates": (
        {
            "encoding": whorl.Combined(ALIBI, whorl.ForgettingGate(heads=2, width=8)),
            "hidden": torch.zeros(1, 5, 8),
        },
        "has a bias or gates, and not both",
    ),
    "weights": ({"return_weights": True}, "attention by tiles has no return_weights"),
    "branches": (
        {"encoding": whorl.Combined(ALIBI, whorl.ReRope(head_dim=16))},
        "has no bias, window, padding, documents or dropout beside branches",
    ),
    "score terms": (
        {"encoding": whorl.build_for("shaw", heads=2, head_dim=16, width=32, length=8)},
        "Shaw uses adjust_scores",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_it_cannot_do_raises_with_the_reason(name):
    options, reason = REFUSED[name]
    with pytest.raises(WhorlError, match=r"^impl='triton' cannot run here: ") as error:
        whorl.attention(X, X, X, **{"encoding": ALIBI, **options}, impl="triton")
    assert reason in str(error.value)


@pytest.mark.parametrize(
    ("q", "reason"),
    [
        (X.double(), "attention by tiles has no torch.float64"),
        (draw(1, 2, 5, 264), "attention by tiles has heads of up to 256 dimensions"),
    ],
    ids=["dtype", "dimensions"],
)
def test_tensors_it_cannot_take_raise_with_the_reason(q, reason):
    with pytest.raises(WhorlError, match=reason):
        whorl.attention(q, q, q, encoding=ALIBI, impl="triton")


def test_transforms_see_through_torch_only():
    with pytest.raises(WhorlError, match=r"torch.func transforms see through"):
        torch.func.vmap(lambda q: whorl.attention(q, X, X, encoding=ALIBI, impl="triton"))(X[None])
