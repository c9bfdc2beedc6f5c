"""``attention`` by tiles: what is read off an encoding's parts, with gradients, against the reference in float64."""

import pytest
import torch

import whorl
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
    made = {name: build_for(name, **sizes) for name in ("alibi", "t5", "kerple", "sandwich")}
    return made | {
        "window": whorl.Combined(rope, whorl.Window(size=9)),
        "sinks": whorl.Combined(rope, whorl.Sinks(size=7, count=3)),
        "kerple power": whorl.Kerple(heads=HEADS, variant="power"),
        "symmetric alibi": whorl.Alibi(heads=HEADS, form="symmetric"),
        "a user's": Mine(heads=HEADS),
        "rope and t5 in a window": whorl.Combined(rope, whorl.T5(heads=HEADS), whorl.Window(size=20)),
    }


def attended(inputs, encoding, weight, **options):
    """Output, and the gradients of inputs and of everything learned."""
    given = [x.detach().clone().requires_grad_() for x in inputs]
    encoding.zero_grad()
    out = whorl.attention(*given, encoding=encoding, **options)
    (out * weight).sum().backward()
    learned = [None if p.grad is None else p.grad.clone() for p in encoding.parameters()]
    return [out.detach(), *(x.grad for x in given), *learned]


@pytest.mark.parametrize("options", [{}, {"softcap": 2.0}], ids=["plain", "softcap"])
@pytest.mark.parametrize("name", encodings())
def test_values_and_gradients_are_those_of_the_reference(name, options, device):
    encoding = encodings()[name].to(device)
    torch.manual_seed(0)
    inputs = [torch.randn(2, heads, 45, DIM, device=device) for heads in (HEADS, 2, 2)]
    weight = torch.randn(2, HEADS, 45, DIM, device=device)
    assert whorl.explain_attention(*inputs, encoding=encoding, impl="triton", **options) == "tiles: asked for"
    got = attended(inputs, encoding, weight, impl="triton", **options)
    wide = [x.double() for x in inputs]
    expected = attended(wide, encoding.double(), weight.double(), impl="torch", **options)
    for found, wanted in zip(got, expected, strict=True):
        error = (found.double() - wanted).norm() / wanted.norm().clamp(min=1e-12)
        assert error < 3e-5


def test_both_sides_and_the_log_sum_exp(device):
    encoding = build_for("t5", heads=HEADS, head_dim=DIM, width=HEADS * DIM, length=256, bidirectional=True).to(device)
    inputs = [torch.randn(1, HEADS, 45, DIM, device=device) for _ in range(3)]
    for options in ({"causal": False}, {"causal": False, "return_lse": True}, {"return_lse": True}):
        got = whorl.attention(*inputs, encoding=encoding, impl="triton", **options)
        torch.testing.assert_close(
            got, whorl.attention(*inputs, encoding=encoding, impl="torch", **options), atol=1e-5, rtol=0
        )


def test_a_bias_written_over_is_called_and_not_passed_by(device):
    class Louder(whorl.Kerple):
        def bias_of(self, head, distance):
            return 2.0 * super().bias_of(head, distance)

    encoding = Louder(heads=HEADS).to(device)
    inputs = [torch.randn(1, HEADS, 40, DIM, device=device) for _ in range(3)]
    got = whorl.attention(*inputs, encoding=encoding, impl="triton")
    torch.testing.assert_close(got, whorl.attention(*inputs, encoding=encoding, impl="torch"), atol=1e-5, rtol=0)


@pytest.mark.gpu
@pytest.mark.parametrize("name", encodings())
def test_it_is_chosen_on_a_gpu(name):
    encoding = encodings()[name].to("cuda")
    inputs = [torch.randn(1, HEADS, 100, DIM, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    assert whorl.explain_attention(*inputs, encoding=encoding).startswith("tiles: ")
    with torch.no_grad():
        expected = whorl.attention(*(x.double() for x in inputs), encoding=encoding, impl="torch")
        errors = {
            impl: (whorl.attention(*inputs, encoding=encoding, impl=impl).double() - expected).norm() / expected.norm()
            for impl in ("auto", "torch")
        }
    assert errors["auto"] < max(2.2e-3, 1.1 * errors["torch"])  # both round queries and keys once they are turned


@pytest.mark.gpu
@pytest.mark.parametrize("name", encodings())
def test_a_call_seen_before_is_the_same_and_learns(name):
    encoding = encodings()[name].to("cuda")
    inputs = [torch.randn(1, HEADS, 100, DIM, device="cuda") for _ in range(3)]
    with torch.no_grad():
        for _ in range(2):
            first, again = (whorl.attention(*inputs, encoding=encoding) for _ in range(2))
            assert encoding._calls
            torch.testing.assert_close(first, again, atol=5e-6, rtol=0)  # tables are made, or looked up
            for learned in encoding.parameters():
                learned.mul_(0.5)
        expected = whorl.attention(*inputs, encoding=encoding, impl="torch")
        torch.testing.assert_close(whorl.attention(*inputs, encoding=encoding), expected, atol=1e-4, rtol=0)
    attended(inputs, encoding, torch.ones_like(inputs[0]))
    assert all(learned.grad is not None for learned in encoding.parameters())
