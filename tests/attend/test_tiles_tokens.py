"""``attention`` by tiles with what tokens bring along: gates, given positions, and numbers that dropout draws."""

import math

import numpy as np
import pytest
import torch

import whorl
from helpers import draw
from oracles import forgetting, softmax_attention

pytest.importorskip("triton")

pytestmark = pytest.mark.usefixtures("small_tiles")
HEADS, DIM, WIDTH = 4, 16, 12


def gated():
    torch.manual_seed(1)
    gate = whorl.ForgettingGate(heads=HEADS, width=WIDTH, bias=1.0)
    torch.nn.init.normal_(gate.gate.weight, std=0.5)
    return gate


def attended(inputs, encoding, weight, **options):
    """Output, log-sum-exp, and the gradients of inputs, hidden states and everything learned."""
    given = [x.detach().clone().requires_grad_() for x in inputs]
    learned = [p for p in encoding.parameters() if p.requires_grad]
    if len(given) == 4:
        options["hidden"] = given[3]
    out, lse = whorl.attention(*given[:3], encoding=encoding, return_lse=True, **options)
    loss = (out * weight).sum() + lse.masked_fill(lse == -math.inf, 0.0).square().sum()
    return [out.detach(), lse.detach(), *torch.autograd.grad(loss, [*given, *learned])]


def agree(encoding, shape, device, dtype=torch.float32, close=3e-6, **options):
    """One call of (batch, heads, key heads, queries, keys, value dim) against formed scores in float64."""
    batch, heads, key_heads, queries, keys, value_dim = shape
    encoding = encoding.to(device)
    inputs = [draw(batch, heads, queries, DIM, device=device, dtype=dtype)]
    inputs += [draw(batch, key_heads, keys, n, device=device, dtype=dtype, seed=n) for n in (DIM, value_dim)]
    if encoding.reads_hidden:
        inputs.append(draw(batch, keys, WIDTH, device=device, seed=4))
    weight = draw(batch, heads, queries, value_dim, device=device, dtype=dtype, seed=5)
    got = attended(inputs, encoding, weight, impl="triton", **options)
    wide = [x.double() for x in inputs]
    expected = attended(wide, encoding.double(), weight.double(), impl="torch", **options)
    encoding.float()
    for place, (found, wanted) in enumerate(zip(got, expected, strict=True)):
        found, blind = found.double(), wanted == -math.inf
        assert bool((found[blind] == -math.inf).all()) and not bool(found[~blind].isnan().any())
        error, size = (found - wanted)[~blind].norm(), wanted[~blind].norm()
        assert float(error) <= max(close * float(size), 1e-6), (place, float(error))  # one key has no gradient


SHAPES = [(2, 4, 2, 45, 45, 24), (1, 4, 4, 7, 50, 16), (1, 4, 1, 1, 1, 8), (2, 4, 4, 33, 64, 16)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_gate_is_the_reference(shape, device, poisoned):
    """Under deterministic algorithms, which its gradients are fit for."""
    agree(gated(), shape, device)


def gates():
    documents = torch.tensor([0] * 14 + [7] * 9 + [-3] * 22)
    real = torch.ones(2, 45, dtype=torch.bool)
    real[0, :9], real[1] = False, False
    rope = whorl.Rope(head_dim=DIM)
    return {
        "softcap": (gated(), {"softcap": 2.0}),
        "rope in a window": (whorl.Combined(rope, gated(), whorl.Window(size=9)), {}),
        "sinks": (whorl.Combined(gated(), whorl.Sinks(size=9, count=3)), {}),
        "documents": (gated(), {"documents": documents}),
        "padding": (gated(), {"key_mask": real}),
        "rope at given positions": (whorl.Combined(rope, gated()), {"positions": torch.arange(45) * 3 + 5}),
    }


@pytest.mark.parametrize("name", gates())
def test_a_gate_beside_others(name, device):
    encoding, options = gates()[name]
    options = {key: x.to(device) if isinstance(x, torch.Tensor) else x for key, x in options.items()}
    agree(encoding, SHAPES[0], device, **options)


def test_a_gate_is_the_papers_sum(device):
    encoding = gated().to(device)
    q, k, v = (draw(1, HEADS, 20, DIM, device=device, seed=i) for i in range(3))
    hidden = draw(1, 20, WIDTH, device=device, seed=4)
    out = whorl.attention(q, k, v, encoding=encoding, hidden=hidden, impl="triton").detach().double().cpu().numpy()
    at = np.arange(20)
    with torch.no_grad():
        log_gates = torch.nn.functional.logsigmoid(encoding.double().gate(hidden.double()))[0].T.cpu().numpy()
    q, k, v = (x[0].double().cpu().numpy() for x in (q, k, v))
    scores = q @ k.swapaxes(1, 2) / math.sqrt(DIM) + forgetting.bias(log_gates, at, at)
    expected, _, _ = softmax_attention.attention(scores, v, at[:, None] >= at)
    np.testing.assert_allclose(out[0], expected, rtol=0, atol=2e-6)


def test_gates_of_a_long_text_are_told_apart(device):
    """The running sum is -1e6 at the end: float32 alone would be off by 0.06 in every score."""
    gate = gated().to(device)
    kept = torch.full((1, HEADS, 60), -0.5, device=device)
    kept[..., 0] = -1e6
    q, k, v = (draw(1, HEADS, 60, DIM, device=device, seed=i) for i in range(3))
    from whorl.kernels.tiles.op import tiles_attention

    out, _ = tiles_attention(q, k, v, scale=0.25, kind="gate", numbers=gate.running_sums(kept))
    alibi = whorl.Alibi(heads=HEADS, slopes=(0.5,) * HEADS)  # a constant gate is ALiBi
    expected = whorl.attention(*(x.double() for x in (q, k, v)), encoding=alibi, impl="torch", scale=0.25)
    # all but the first key, which the first gate has closed
    torch.testing.assert_close(out[:, :, :1].double(), expected[:, :, :1], rtol=0, atol=1e-6)
    torch.testing.assert_close(out[:, :, 40:].double(), expected[:, :, 40:], rtol=0, atol=2e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_gate_in_half_precision(dtype, device, poisoned):
    agree(gated(), SHAPES[0], device, dtype, close=1.5e-2 if dtype == torch.bfloat16 else 1.5e-3)


def test_a_gate_written_over_is_called_and_not_passed_by(device):
    class Louder(whorl.ForgettingGate):
        def add_terms(self, pairs):
            return 2.0 * super().add_terms(pairs)

    q, k, v = (draw(1, HEADS, 20, DIM, device=device, seed=i) for i in range(3))
    louder, hidden = Louder(heads=HEADS, width=WIDTH).to(device), draw(1, 20, WIDTH, device=device)
    with pytest.raises(whorl.WhorlError, match="Louder uses adjust_scores"):
        whorl.attention(q, k, v, encoding=louder, hidden=hidden, impl="triton")


PLACES = {
    "packed": [*range(14), *range(31)],
    "shifted and by row": [range(10**6, 10**6 + 45), range(0, 90, 2)],
    "far out": [range(2**60, 2**60 + 45), range(-22, 23)],
    "in no order": [*range(0, 20), *range(44, 19, -1)],
}


def biases():
    return {
        "alibi": whorl.Alibi(heads=HEADS),
        "kerple": whorl.Kerple(heads=HEADS),
        "power": whorl.Kerple(heads=HEADS, variant="power"),
        "t5": whorl.T5(heads=HEADS, buckets=8, max_distance=20),
        "t5 of both sides": whorl.T5(heads=HEADS, buckets=8, max_distance=20, bidirectional=True),
        "rope and t5": whorl.Combined(whorl.Rope(head_dim=DIM), whorl.T5(heads=HEADS, buckets=8, max_distance=20)),
    }


# Every bias at two kinds of places, and every kind of places with a formula and with a table; ``make test-all`` has the
# rest. float64 has no angles of a rotation at 2^60, where distances are still exact.
USUAL_PLACES = {
    "alibi": ("far out", "in no order"),
    "kerple": ("packed", "far out"),
    "power": ("shifted and by row", "in no order"),
    "t5": ("far out", "in no order"),
    "t5 of both sides": ("shifted and by row",),
    "rope and t5": ("packed",),
}
PLACED = [
    pytest.param(name, places, marks=() if places in USUAL_PLACES[name] else pytest.mark.large)
    for name in biases()
    for places in PLACES
    if (name, places) != ("rope and t5", "far out")
]


@pytest.mark.parametrize(("name", "places"), PLACED)
def test_a_bias_at_given_positions(name, places, device):
    positions = torch.tensor([list(x) if isinstance(x, range) else x for x in PLACES[places]], device=device)
    agree(biases()[name], SHAPES[0], device, close=1e-5, positions=positions)


def test_given_positions_of_an_encoder_with_documents(device):
    positions = torch.tensor(PLACES["packed"], dtype=torch.int32, device=device)
    documents = torch.tensor([0] * 14 + [1] * 31, device=device)
    agree(
        biases()["t5 of both sides"], SHAPES[0], device,
        close=1e-5, positions=positions, documents=documents, causal=False,
    )  # fmt: skip


def test_given_positions_of_fewer_queries(device):
    places = torch.arange(50, device=device) * 2 + 7
    agree(biases()["kerple"], SHAPES[1], device, positions=places[-7:], key_positions=places)


def test_dropout_is_drawn_by_torchs_generator(device):
    q, k, v = (draw(1, 2, 20, DIM, device=device, seed=i) for i in range(3))
    found, alibi = [], whorl.Alibi(heads=2)
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        drawn = [whorl.attention(q, k, v, encoding=alibi, dropout=0.4, impl="triton") for _ in range(2)]
        assert not torch.equal(*drawn)
        found.append(drawn[0])
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])


def kept_pairs(q, k, encoding, share, **options):
    """Weights that are seen, as values that are rows of the identity show them."""
    keys = k.shape[2]
    eye = torch.eye(keys, device=q.device).expand(q.shape[0], k.shape[1], keys, keys)
    return whorl.attention(q, k, eye, encoding=encoding, dropout=share, impl="triton", **options)


@pytest.mark.parametrize("share", [0.1, 0.6])
def test_dropout_keeps_its_share_and_scales_the_rest(share, device):
    """Of all pairs, of the pairs of each head and batch row, and of neighbours together."""
    q, k = (draw(2, 2, 128, DIM, device=device, seed=i) for i in range(2))
    encoding = whorl.Kerple(heads=2).to(device)
    with torch.no_grad():
        torch.manual_seed(0)
        got = kept_pairs(q, k, encoding, share, causal=False)
        whole = kept_pairs(q, k, encoding, 0.0, causal=False)
    kept = got != 0
    torch.testing.assert_close(got[kept], whole[kept] / (1 - share), rtol=1e-5, atol=0)
    for draws in (kept.flatten(), *kept.flatten(0, 1).flatten(1)):
        spread = math.sqrt(share * (1 - share) / draws.numel())
        assert abs(float(draws.double().mean()) - (1 - share)) < 5 * spread
    for one, other in ((kept[..., 1:], kept[..., :-1]), (kept[..., 1:, :], kept[..., :-1, :]), (kept[0], kept[1])):
        together = (one & other).double()
        spread = math.sqrt((1 - share) ** 2 * (1 - (1 - share) ** 2) / together.numel())
        assert abs(float(together.mean()) - (1 - share) ** 2) < 5 * spread


@pytest.mark.parametrize("name", ["alibi", "kerple", "t5", "gate", "window"])
def test_gradients_are_those_of_the_pairs_that_were_kept(name, device, request):
    if name != "t5":
        request.getfixturevalue("poisoned")
    encoding = gated() if name == "gate" else whorl.Window(size=9) if name == "window" else biases()[name]
    encoding, share = encoding.to(device), 0.3
    q, k, v = (draw(2, heads, 45, DIM, device=device, seed=i) for i, heads in enumerate((HEADS, 2, 2)))
    weight, options = draw(2, HEADS, 45, DIM, device=device, seed=5), {}
    if name == "gate":
        options["hidden"] = draw(2, 45, WIDTH, device=device, seed=4)
    if name == "kerple" and torch.are_deterministic_algorithms_enabled():
        torch.use_deterministic_algorithms(False)
    with torch.no_grad():
        torch.manual_seed(7)
        kept = kept_pairs(q, k, encoding, share, **options) != 0
    torch.manual_seed(7)
    given, learned = [x.requires_grad_() for x in (q, k, v)], list(encoding.parameters())
    out = whorl.attention(*given, encoding=encoding, dropout=share, impl="triton", **options)
    got = [out.detach(), *torch.autograd.grad((out * weight).sum(), [*given, *learned])]
    wide, encoding = [x.detach().double().requires_grad_() for x in given], encoding.double()
    eye = torch.eye(45, device=device, dtype=torch.float64).expand(2, 2, -1, -1)
    options = {key: x.double() for key, x in options.items()}
    weights = whorl.attention(*wide[:2], eye, encoding=encoding, impl="torch", **options)
    out = (weights * kept / (1 - share)) @ wide[2].repeat_interleave(2, 1)
    expected = [out.detach(), *torch.autograd.grad((out * weight.double()).sum(), [*wide, *encoding.parameters()])]
    for place, (found, wanted) in enumerate(zip(got, expected, strict=True)):
        assert float((found.double() - wanted).norm() / wanted.norm()) < 1e-5, place


def test_dropout_and_gates_compile_in_one_graph(device):
    encoding = gated().to(device)

    @torch.compile(fullgraph=True, backend="aot_eager", dynamic=True)
    def compiled(q, k, v, hidden):
        return whorl.attention(q, k, v, encoding=encoding, hidden=hidden, dropout=0.5, impl="triton")

    for keys in (20, 33):
        q, k, v = (draw(1, HEADS, keys, DIM, device=device, seed=i).requires_grad_() for i in range(3))
        hidden = draw(1, keys, WIDTH, device=device, seed=4)
        outs = []
        for attend in (compiled, lambda *x: whorl.attention(*x[:3], encoding=encoding, hidden=x[3], dropout=0.5,
                                                           impl="triton")):  # fmt: skip
            torch.manual_seed(2)
            out = attend(q, k, v, hidden)
            outs.append([out, *torch.autograd.grad(out.square().sum(), [q, k, v, *encoding.parameters()])])
        for one, other in zip(*outs, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-5)
        torch.manual_seed(2)
        first, second = compiled(q, k, v, hidden), compiled(q, k, v, hidden)
        assert not torch.equal(first, second)  # the graph draws anew


@pytest.mark.gpu
def test_they_are_chosen_on_a_gpu():
    x = torch.randn(1, HEADS, 100, DIM, device="cuda", dtype=torch.bfloat16)
    for encoding, options in (
        (gated().to("cuda"), {"hidden": torch.randn(1, 100, WIDTH, device="cuda")}),
        (whorl.Kerple(heads=HEADS).to("cuda"), {"positions": torch.arange(100, device="cuda") % 30}),
        (whorl.Kerple(heads=HEADS).to("cuda"), {"dropout": 0.1}),
    ):
        assert whorl.explain_attention(x, x, x, encoding=encoding, **options).startswith("tiles: ")
        whorl.attention(x, x, x, encoding=encoding, **options)


@pytest.mark.gpu
def test_a_table_at_given_positions_is_for_those_who_do_not_learn():
    x, t5 = torch.randn(1, HEADS, 100, DIM, device="cuda"), whorl.T5(heads=HEADS).to("cuda")
    positions = torch.arange(100, device="cuda") % 30
    learning = whorl.explain_attention(x, x, x, encoding=t5, positions=positions)
    assert learning.startswith("dense: ") and learning.endswith("pair by pair where positions are given")
    with torch.no_grad():
        assert whorl.explain_attention(x, x, x, encoding=t5, positions=positions).startswith("tiles: ")
