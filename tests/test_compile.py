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


def two_layers(first, second):
    """Attention twice, with an encoding each."""

    def run(x):
        return whorl.attention(*[whorl.attention(x, x, x, encoding=first)] * 3, encoding=second)

    return run


@pytest.mark.parametrize("name", ["rope", "xpos", "rerope"])
@pytest.mark.parametrize("dynamic", [None, True])
def test_layers_of_one_graph_make_their_tables_once(name, dynamic):
    from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
    from torch._dynamo.backends.common import aot_autograd

    graphs = []

    def keep(graph, example_inputs):
        graphs.append(graph)
        return make_boxed_func(graph)

    backend = aot_autograd(fw_compiler=keep, bw_compiler=keep, partition_fn=min_cut_rematerialization_partition)
    encoding = whorl.build_for(name, heads=4, head_dim=64, width=256, length=40)
    layers, (x, *_) = two_layers(encoding, encoding), inputs(12, grad=True)
    out = torch.compile(layers, fullgraph=True, backend=backend, dynamic=dynamic)(x)
    torch.testing.assert_close(out, layers(x), rtol=0, atol=1e-6)
    out.sum().backward()
    calls = [str(node.target) for graph in graphs for node in graph.graph.nodes]
    assert calls.count("whorl.numbers.default") == calls.count("aten.cos.default") == 1


def test_encodings_of_one_graph_keep_their_own_numbers():
    layers = two_layers(whorl.Rope(head_dim=64), whorl.Rope(head_dim=64, base=5e5, scaling=SCALINGS["yarn"]))
    results = []
    for run in (torch.compile(layers, fullgraph=True), layers):
        x = inputs(12, grad=True)[0]
        out = run(x)
        results.append((out, *torch.autograd.grad(out.sin().sum(), x)))
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("strict", [False, True])
def test_a_program_to_export_has_plain_numbers(strict):
    rope = whorl.Rope(head_dim=64)

    class Layers(torch.nn.Module):
        def forward(self, x):
            return rope.rotate(x, torch.arange(x.shape[-2]), impl="torch")

    x = inputs(12, grad=True)[0]
    program = torch.export.export(Layers(), (x,), strict=strict)
    assert not any("whorl" in str(node.target) for node in program.graph.nodes)
    torch.testing.assert_close(program.module()(x), Layers()(x), rtol=0, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty:UserWarning")  # torch captures one before it captures ours
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_layers_share_tables_in_cuda_graphs_too(mode):
    layers = two_layers(whorl.Rope(head_dim=64), whorl.Rope(head_dim=64, base=5e5))
    compiled = torch.compile(layers, fullgraph=True, mode=mode)
    for seed in range(4):  # warmed up, captured, and replayed
        x = torch.randn(2, 4, 24, 64, generator=torch.Generator().manual_seed(seed)).cuda().requires_grad_()
        for got, expected in zip(*[step(run, x) for run in (compiled, layers)], strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def step(run, x):
    """The output, in memory that no replay writes, and the gradient."""
    torch.compiler.cudagraph_mark_step_begin()
    out = run(x)
    return out.detach().clone(), torch.autograd.grad(out.sin().sum(), x)[0].clone()
