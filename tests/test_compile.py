"""Traced graphs: one graph, few compilations, exportable, and the same numbers."""

import pytest
import torch
import torch._dynamo

import whorl
from helpers import LAYOUTS, SCALINGS

LENGTHS = (7, 12, 33, 40, 64, 100)


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def inputs(length, heads=(4, 2), grad=False):
    generator = torch.Generator().manual_seed(length)
    q, k = (torch.randn(2, h, length, 64, generator=generator).requires_grad_(grad) for h in heads)
    return q, k, torch.arange(length)


def counting_backend(compiled):
    def backend(graph, example_inputs):
        compiled.append(graph)
        return graph.forward

    return backend


@pytest.mark.parametrize("name", SCALINGS)
def test_at_most_two_compilations_over_six_lengths(name):
    rope, compiled = whorl.Rope(head_dim=64, scaling=SCALINGS[name]), []

    @torch.compile(fullgraph=True, backend=counting_backend(compiled))
    def transform(q, k, positions):
        return rope.transform_qk(q, k, positions, positions, 1000)

    for length in LENGTHS:
        q, k, positions = inputs(length)
        for got, expected in zip(
            transform(q, k, positions), rope.transform_qk(q, k, positions, positions, 1000), strict=True
        ):
            torch.testing.assert_close(got, expected, rtol=0, atol=1e-6)
    assert len(compiled) <= 2


@pytest.mark.parametrize(
    "settings",
    [
        *({"layout": layout} for layout in LAYOUTS),
        {"rotary_dim": 32, "slice": "trailing", "scaling": SCALINGS["yarn"]},
        {"learnable": True},
        {"angles": "float32"},
        {"rotated_heads": (0,)},
    ],
    ids=str,
)
def test_compiled_code_gives_the_same_values_and_gradients(settings):
    rope, positions = whorl.Rope(head_dim=64, **settings), torch.arange(20) + 1000
    q, k, _ = inputs(20, heads=(4, 4), grad=True)
    compiled = torch.compile(rope.transform_qk, fullgraph=True)
    results = []
    for transform in (compiled, rope.transform_qk):
        out = transform(q, k, positions, positions)
        wanted = (q, k, *rope.parameters())
        grads = torch.autograd.grad(sum(t.sin().sum() for t in out), wanted)
        results.append([*out, *grads])
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("name", ["none", "yarn", "dynamic_ntk"])
@pytest.mark.parametrize("strict", [False, True])
def test_exports_with_a_free_length(name, strict):
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.rope = whorl.Rope(head_dim=64, scaling=SCALINGS[name])

        def forward(self, q, k, positions):
            return self.rope.transform_qk(q, k, positions, positions, 1000)

    layer, free = Layer(), torch.export.Dim("length", min=2, max=4096)
    program = torch.export.export(layer, inputs(16), dynamic_shapes=({2: free}, {2: free}, {0: free}), strict=strict)
    for length in (5, 100):
        got, expected = program.module()(*inputs(length)), layer(*inputs(length))
        for one, other in zip(got, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-6)
    # tracing left nothing behind in the memo of frequencies
    assert type(layer.rope.frequencies(1000)) is torch.Tensor


def test_under_a_fake_tensor_mode_first():
    from torch._subclasses.fake_tensor import FakeTensorMode

    rope = whorl.Rope(head_dim=64, base=123456.0)
    with FakeTensorMode() as mode:
        q, k, positions = (mode.from_tensor(t) for t in inputs(8))
        out, _ = rope.transform_qk(q, k, positions, positions)
        assert out.shape == (2, 4, 8, 64)
    expected = whorl.Rope(head_dim=64, base=123456.0, angles="float32").frequencies()
    torch.testing.assert_close(rope.frequencies(), expected, rtol=1e-6, atol=0)


def test_rerotation_compiles():
    old, new = whorl.Rope(head_dim=64), whorl.Rope(head_dim=64, base=5e5)
    _, k, positions = inputs(12)
    compiled = torch.compile(lambda k: whorl.rerotate(k, old, new, positions), fullgraph=True)
    torch.testing.assert_close(compiled(k), whorl.rerotate(k, old, new, positions), rtol=0, atol=1e-6)
