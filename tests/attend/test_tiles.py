"""``attention`` by tiles: what is read off an encoding's parts, with gradients, against the reference in float64."""

import pytest
import torch

import whorl
from helpers import draw, planned
from whorl.attend import softmax
from whorl.attend.tiles import why_not_tiles
from whorl.encodings.bias import DistanceBias
from whorl.registry import build_for

pytest.importorskip("triton")


pytestmark = pytest.mark.usefixtures("small_tiles")
HEADS, DIM = 4, 16


class Mine(DistanceBias):
    """A user's bias: a learned wave of the distance, and no word of any kernel."""

    Config = whorl.Kerple.Config
    claims = whorl.Kerple.claims

    def __init__(self, **settings):
        super().__init__(**settings)
        self.size = torch.nn.Parameter(torch.linspace(0.5, 2.0, HEADS))

    def bias_of(self, head, distance):
        return self.size[head] * torch.cos(0.3 * distance.to(self.size.dtype))


def encodings():
    sizes = {"heads": HEADS, "head_dim": DIM, "width": HEADS * DIM, "length": 256}
    rope = whorl.Rope(head_dim=DIM)
    made = {name: build_for(name, **sizes) for name in ("alibi", "t5", "kerple", "sandwich", "fire")}
    return (
        made
        | {
            "window": whorl.Combined(rope, whorl.Window(size=9)),
            "sinks": whorl.Combined(rope, whorl.Sinks(size=7, count=3)),
            "kerple power": whorl.Kerple(heads=HEADS, variant="power"),
            "symmetric alibi": whorl.Alibi(heads=HEADS, form="symmetric"),
            "a user's": Mine(heads=HEADS),
            "rope and t5 in a window": whorl.Combined(rope, whorl.T5(heads=HEADS), whorl.Window(size=20)),
        }
        | branches()
    )


def branches():
    rerope = whorl.ReRope(head_dim=DIM, window=9)
    return {
        "rerope": rerope,
        "leaky rerope": whorl.LeakyReRope(head_dim=DIM, window=9, factor=4.0),
        "self-extend": whorl.SelfExtend(head_dim=DIM, window=16, group=4),
        "rerope and log-n": whorl.Combined(rerope, whorl.LogN(trained_length=12)),
        "rerope for encoders": whorl.ReRope(head_dim=DIM, window=9, bidirectional=True),
    }


def attended(inputs, encoding, weight, **options):
    """Output, and the gradients of inputs and of everything learned."""
    given = [x.detach().clone().requires_grad_() for x in inputs]
    encoding.zero_grad()
    out = whorl.attention(*given, encoding=encoding, **options)
    (out * weight).sum().backward()
    learned = [None if p.grad is None else p.grad.clone() for p in encoding.parameters()]
    return [out.detach(), *(x.grad for x in given), *learned]


SOFTCAPS = ("t5", "sandwich", "window", "kerple power", "a user's", "rerope", "self-extend", "rerope for encoders")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        pytest.param(name, options, id=f"{name}-{kind}", marks=() if usual else pytest.mark.large)
        for name in encodings()
        for kind, options, usual in (
            ("plain", {}, name not in SOFTCAPS),
            ("softcap", {"softcap": 2.0}, name in SOFTCAPS),
        )
    ],
)
def test_values_and_gradients_are_those_of_the_reference(name, options, device):
    encoding = encodings()[name].to(device)
    torch.manual_seed(0)
    inputs = [torch.randn(1, heads, 45, DIM, device=device) for heads in (HEADS, 2, 2)]
    weight = torch.randn(1, HEADS, 45, DIM, device=device)
    assert whorl.explain_attention(*inputs, encoding=encoding, impl="triton", **options) == "tiles: asked for"
    got = attended(inputs, encoding, weight, impl="triton", **options)
    wide = [x.double() for x in inputs]
    expected = attended(wide, encoding.double(), weight.double(), impl="torch", **options)
    for found, wanted in zip(got, expected, strict=True):
        if wanted.norm() < 1e-12:  # what is added to all scores of a head alike changes nothing
            assert float(found.abs().max()) < 1e-5
        else:
            # FIRE's learned numbers are sums over all pairs that nearly cancel
            assert float((found.double() - wanted).norm() / wanted.norm()) < 5e-5


def test_both_sides_and_the_log_sum_exp(device):
    encoding = build_for("t5", heads=HEADS, head_dim=DIM, width=HEADS * DIM, length=256, bidirectional=True).to(device)
    inputs = [torch.randn(1, HEADS, 45, DIM, device=device) for _ in range(3)]
    for options in ({"causal": False}, {"causal": False, "return_lse": True}, {"return_lse": True}):
        got = whorl.attention(*inputs, encoding=encoding, impl="triton", **options)
        torch.testing.assert_close(
            got, whorl.attention(*inputs, encoding=encoding, impl="torch", **options), atol=1e-5, rtol=0
        )


@pytest.mark.parametrize("name", [name for name in encodings() if name != "rerope for encoders"])
def test_a_prompt_through_a_cache_in_two_parts(name, device, monkeypatch):
    encoding = encodings()[name].to(device)
    whole = [draw(2, heads, 45, DIM, device=device, seed=i) for i, heads in enumerate((HEADS, 2, 2))]
    cache, expected = whorl.KVCache(encoding=encoding), whorl.attention(*whole, encoding=encoding, impl="torch")
    # on a GPU it is chosen by itself
    monkeypatch.setattr(softmax, "choose_path", lambda call, impl: ("tiles", why_not_tiles(call)))
    for part in (slice(0, 20), slice(20, 45)):
        got = cache.attend(*(x[:, :, part] for x in whole))
        torch.testing.assert_close(got, expected[:, :, part], atol=2e-5, rtol=0)


def apart(device):
    """Documents in order and in none, padding in front and behind, a row that is padding alone; and all of it."""
    order = torch.tensor([0] * 14 + [7] * 9 + [-3] * 17, device=device)
    none = torch.tensor([4, 0, 0, 9, 4] * 8, device=device)
    real = torch.ones(2, 40, dtype=torch.bool, device=device)
    real[0, :9], real[1, -6:] = False, False
    nothing = real.clone()
    nothing[1] = False
    restarted = torch.cat([torch.arange(n, device=device) for n in (14, 9, 17)])
    return {
        "documents": ("t5 alibi fire sinks", {"documents": order}),
        "documents by row": ("rope kerple", {"documents": torch.stack([order, none])}),
        "padding": ("t5 alibi rope", {"key_mask": real}),
        "only padding": ("kerple", {"key_mask": nothing}),
        "both": ("t5 sinks", {"documents": torch.stack([order, none]), "key_mask": real}),
        "encoder": ("t5 rope", {"documents": order, "key_mask": real, "causal": False}),
        "restarted positions": ("rope", {"documents": order, "positions": restarted}),
    }


@pytest.mark.parametrize("name", apart("cpu"))
def test_documents_and_padding(name, device):
    names, options = apart(device)[name]
    sizes = {"heads": 2, "head_dim": DIM, "width": 2 * DIM, "length": 256}
    for each in names.split():
        encoding = whorl.Sinks(size=9, count=3) if each == "sinks" else build_for(each, **sizes).to(device)
        inputs = [draw(2, heads, 40, DIM, device=device, seed=i) for i, heads in enumerate((2, 1, 1))]
        weight = draw(2, 2, 40, DIM, device=device, seed=3)
        got = attended(inputs, encoding, weight, impl="triton", **options)
        expected = attended([x.double() for x in inputs], encoding.double(), weight.double(), impl="torch", **options)
        for found, wanted in zip(got, expected, strict=True):
            torch.testing.assert_close(found.double(), wanted, rtol=2e-5, atol=2e-5, msg=each)


@pytest.mark.gpu
def test_documents_and_padding_are_left_to_tiles_on_a_gpu():
    inputs = [torch.randn(2, HEADS, 64, DIM, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    documents, real = torch.arange(64, device="cuda") // 20, torch.ones(2, 64, dtype=torch.bool, device="cuda")
    rope, positions = whorl.Rope(head_dim=DIM), torch.arange(64, device="cuda") % 20
    for options in ({"documents": documents, "positions": positions}, {"key_mask": real}):
        assert whorl.explain_attention(*inputs, encoding=rope, **options).startswith("tiles: ")
    assert not whorl.explain_attention(*inputs, encoding=rope, key_mask=real, causal=False).startswith("tiles: ")


def test_other_masks_are_refused(device):
    inputs = [draw(1, HEADS, 12, DIM, device=device, seed=i) for i in range(3)]
    for options, reason in (
        ({"mask": torch.ones(12, 12, dtype=torch.bool, device=device)}, "no other mask"),
        ({"documents": torch.zeros(12, device=device)}, "whole numbers"),
        ({"positions": torch.arange(12, device=device), "encoding": whorl.Window(size=3)}, "counts positions"),
        ({"documents": torch.arange(12, device=device), "encoding": branches()["rerope"]}, "beside branches"),
    ):
        with pytest.raises(whorl.WhorlError, match=reason):
            whorl.attention(*inputs, impl="triton", **options)


def fires():
    plain, negative, none, many = (whorl.Fire(heads=2, length=16, hidden=n) for n in (32, 32, 32, 63))
    with torch.no_grad():
        negative.c.neg_()
        none.c.zero_()
        many.w1[3] = 0.0
        many.b1.copy_(-torch.linspace(0.01, 1.0, 63) * many.w1)  # all of its knots between 0 and 1
    return {
        "both sides": (plain, {"causal": False}),
        "negative c": (negative, {}),
        "c of 0": (none, {"softcap": 2.0}),
        "many knots": (many, {"softcap": 2.0}),
        "in a window": (whorl.Combined(whorl.Rope(head_dim=DIM), plain, whorl.Window(size=9)), {}),
    }


@pytest.mark.parametrize("name", fires())
def test_fire_of_all_kinds(name, device):
    torch.manual_seed(0)
    encoding, options = fires()[name]
    inputs = [draw(1, 2, 40, DIM, device=device, seed=i) for i in range(3)]
    weight = draw(1, 2, 40, DIM, device=device, seed=3)
    got = attended(inputs, encoding.to(device), weight, impl="triton", **options)
    expected = attended([x.double() for x in inputs], encoding.double(), weight.double(), impl="torch", **options)
    for found, wanted in zip(got, expected, strict=True):
        torch.testing.assert_close(found.double(), wanted, rtol=5e-5, atol=5e-5)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        # one kernel takes what every encoding placed: the long texts are for two of them, several heads of two rows
        pytest.param(name, sizes, id=f"{name}-{sizes}", marks=() if usual else pytest.mark.large)
        for name in branches()
        for sizes, usual in (
            ((7, 45), name == "leaky rerope"),
            ((45, 45), name == "rerope"),
            ((3, 10), True),
            ((5, 9), True),
            ((1, 1), name in ("rerope", "self-extend")),
        )
    ],
)
def test_near_and_far_keys_are_of_one_softmax(name, sizes, device, poisoned):
    """With the log-sum-exp, queries that are the last of the keys, and texts with few far keys or none."""
    queries, keys = sizes
    encoding = branches()[name]
    inputs = [draw(2, *shape, device=device, seed=i) for i, shape in enumerate(((4, queries, DIM), (2, keys, DIM)))]
    inputs.append(draw(2, 2, keys, 24, device=device, seed=2))
    weight, found = draw(2, 4, queries, 24, device=device, seed=3), {}
    for impl, dtype in (("triton", torch.float32), ("torch", torch.float64)):
        given = [x.to(dtype).requires_grad_() for x in inputs]
        out, lse = whorl.attention(*given, encoding=encoding, impl=impl, return_lse=True, softcap=3.0)
        loss = (out * weight).sum() + lse.square().sum()
        found[impl] = [out.detach(), lse.detach(), *torch.autograd.grad(loss, given)]
    for one, other in zip(found["triton"], found["torch"], strict=True):
        torch.testing.assert_close(one.double(), other, rtol=2e-5, atol=2e-5)


def test_two_placements_compile_in_one_graph_for_all_lengths(device):
    encoding = branches()["leaky rerope"]

    @torch.compile(fullgraph=True, backend="aot_eager", dynamic=True)
    def compiled(q, k, v):
        return whorl.attention(q, k, v, encoding=encoding, impl="triton")

    for keys in (20, 33):
        inputs = [draw(1, 2, keys, DIM, device=device, seed=i).requires_grad_() for i in range(3)]
        outs = [compiled(*inputs), whorl.attention(*inputs, encoding=encoding, impl="triton")]
        torch.testing.assert_close(*outs, rtol=0, atol=1e-5)
        for one, other in zip(*(torch.autograd.grad(out.square().sum(), inputs) for out in outs), strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=5e-5)


def test_the_operators_of_two_placements_are_registered_right(device):
    q, far_q = (draw(1, 2, 5, 16, device=device, seed=i).requires_grad_() for i in (0, 1))
    k, far_k, v = (draw(1, 1, 9, 16, device=device, seed=i).requires_grad_() for i in (2, 3, 4))
    torch.library.opcheck(torch.ops.whorl.branches_forward.default, (q, k, far_q, far_k, v, 0.25, 0.0, 3))


@pytest.mark.parametrize(
    ("encoding", "options", "reason"),
    [
        (whorl.Combined(whorl.ReRope(head_dim=DIM, window=5), whorl.Alibi(heads=HEADS)), {}, "beside branches"),
        (whorl.Combined(whorl.ReRope(head_dim=DIM, window=5), whorl.Window(size=7)), {}, "beside branches"),
        (whorl.ReRope(head_dim=DIM, window=5, bidirectional=True), {"causal": False}, "two branches"),
    ],
    ids=["bias", "window", "both sides"],
)
def test_other_branches_are_refused(encoding, options, reason, device):
    inputs = [draw(1, HEADS, 12, DIM, device=device, seed=i) for i in range(3)]
    with pytest.raises(whorl.WhorlError, match=reason):
        whorl.attention(*inputs, encoding=encoding, impl="triton", **options)


def test_a_bias_written_over_is_called_and_not_passed_by(device):
    class Louder(whorl.Kerple):
        def bias_of(self, head, distance):
            return 2.0 * super().bias_of(head, distance)

    encoding = Louder(heads=HEADS).to(device)
    inputs = [torch.randn(1, HEADS, 40, DIM, device=device) for _ in range(3)]
    got = whorl.attention(*inputs, encoding=encoding, impl="triton")
    torch.testing.assert_close(got, whorl.attention(*inputs, encoding=encoding, impl="torch"), atol=1e-5, rtol=0)


class Holes(Mine):
    """A bias that hides keys: some distances, and in the first head all that are far."""

    def bias_of(self, head, distance):
        hidden = (distance % 7 == 3) | ((head == 0) & (distance > 11))
        return torch.where(hidden, -torch.inf, super().bias_of(head, distance))


@pytest.mark.parametrize("options", [{}, {"softcap": 2.0}, {"softcap": 2.0, "causal": False}], ids=str)
@pytest.mark.parametrize("name", ["split", "holes", "t5"])
def test_no_softcap_opens_a_key_that_a_bias_hides(name, options, device):
    encoding = {"split": whorl.Alibi(heads=HEADS, form="split"), "holes": Holes(heads=HEADS)}.get(name)
    if encoding is None:  # far tiles, which have one number
        encoding = whorl.T5(heads=HEADS, buckets=8, max_distance=8)
        with torch.no_grad():
            encoding.table[-1] = -torch.inf
    encoding = encoding.to(device)
    inputs = [draw(1, heads, 45, DIM, device=device, seed=i) for i, heads in enumerate((HEADS, 2, 2))]
    weight = draw(1, HEADS, 45, DIM, device=device, seed=3)
    got = attended(inputs, encoding, weight, impl="triton", **options)
    expected = attended([x.double() for x in inputs], encoding.double(), weight.double(), impl="torch", **options)
    for found, wanted in zip(got, expected, strict=True):
        torch.testing.assert_close(found.double(), wanted, rtol=5e-5, atol=2e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("name", encodings())
def test_it_is_chosen_on_a_gpu(name):
    encoding = encodings()[name].to("cuda")
    inputs = [draw(4, HEADS, 100, DIM, device="cuda", seed=i).bfloat16() for i in range(3)]
    assert whorl.explain_attention(*inputs, encoding=encoding).startswith("tiles: ")
    with torch.no_grad():
        expected = whorl.attention(*(x.double() for x in inputs), encoding=encoding, impl="torch")
        errors = {
            impl: (whorl.attention(*inputs, encoding=encoding, impl=impl).double() - expected).norm() / expected.norm()
            for impl in ("auto", "torch")
        }
    assert errors["auto"] < max(2.2e-3, 1.15 * errors["torch"])  # both round queries and keys once they are turned


@pytest.mark.gpu
@pytest.mark.parametrize("name", encodings())
def test_a_call_seen_before_is_the_same_and_learns(name):
    encoding = encodings()[name].to("cuda")
    inputs = [torch.randn(1, HEADS, 100, DIM, device="cuda") for _ in range(3)]
    with torch.no_grad():
        for _ in range(2):
            first, again = (whorl.attention(*inputs, encoding=encoding) for _ in range(2))
            assert planned(encoding)
            torch.testing.assert_close(first, again, atol=5e-6, rtol=0)  # tables are made, or looked up
            for learned in encoding.parameters():
                learned.mul_(0.5)
        expected = whorl.attention(*inputs, encoding=encoding, impl="torch")
        torch.testing.assert_close(whorl.attention(*inputs, encoding=encoding), expected, atol=1e-4, rtol=0)
    attended(inputs, encoding, torch.ones_like(inputs[0]))
    assert all(learned.grad is not None for learned in encoding.parameters())
