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
    assert calls.count("aten.cos.default") == 1
    assert not any("lift_fresh" in call for call in calls)  # frequencies are the graph's own: nothing copies them


def test_encodings_of_one_graph_keep_their_own_numbers():
    layers = two_layers(whorl.Rope(head_dim=64), whorl.Rope(head_dim=64, base=5e5, scaling=SCALINGS["yarn"]))
    results = []
    for run in (torch.compile(layers, fullgraph=True), layers):
        x = inputs(12, grad=True)[0]
        out = run(x)
        results.append((out, *torch.autograd.grad(out.sin().sum(), x)))
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=2e-6)


H = 4


def different():
    """Encodings with constants of their own, several settings of each."""
    return [
        *(whorl.T5(heads=H, **more) for more in ({}, {"buckets": 16, "max_distance": 40}, {"bidirectional": True})),
        *(whorl.Alibi(heads=H, **more) for more in ({}, {"slopes": "geometric", "scale": 0.5}, {"form": "symmetric"})),
        *(whorl.Alibi(heads=H, **more) for more in ({"form": "split"}, {"rounding": "hf_bf16"}, {"slopes": [1.0] * H})),
        *(whorl.Sandwich(heads=H, code_width=width) for width in (16, 32)),
        *(whorl.Kerple(heads=H, variant=variant) for variant in ("log", "power")),
        *(whorl.Deberta(heads=H, head_dim=64, span=span, max_distance=40) for span in (8, 16)),
        *(whorl.TransformerXL(heads=H, head_dim=64, width=width) for width in (16, 32)),
        *(whorl.Rope(head_dim=64, base=base) for base in (1e4, 1e5)),
        *(whorl.XPos(head_dim=64, gamma=gamma) for gamma in (0.4, 0.8)),
        *(whorl.MRope(head_dim=64, base=base) for base in (1e4, 1e5)),
    ]


@pytest.mark.parametrize("impl", ["auto", "torch"])
@pytest.mark.parametrize("whole", [True, False], ids=["one graph", "graph breaks"])
def test_every_two_encodings_in_one_function(whole, impl):
    encodings = different()

    def run(x, breaks):
        outs = []
        for encoding in encodings:
            outs.append(whorl.attention(x, x, x, encoding=encoding, impl=impl))
            if breaks:
                torch._dynamo.graph_break()
        return outs

    x = inputs(12)[0]
    with torch.no_grad():
        got = torch.compile(run, fullgraph=whole, backend="aot_eager")(x, not whole)
        torch.testing.assert_close(got, run(x, False), rtol=0, atol=1e-5)


def test_encodings_of_other_heads_in_one_graph():
    def run(x):
        narrow = whorl.attention(*[x[:, :4]] * 3, encoding=four, impl="torch")
        return narrow, whorl.attention(x, x, x, encoding=eight, impl="torch")

    four, eight, x = whorl.Alibi(heads=4), whorl.Alibi(heads=8), inputs(12, heads=(8, 8))[0]
    got = torch.compile(run, fullgraph=True, backend="aot_eager")(x)
    torch.testing.assert_close(got, run(x), rtol=0, atol=1e-5)


def test_inputs_of_several_sines_in_one_graph():
    codes = [
        whorl.Sinusoidal(width=64, base=base, order=o) for base in (1e4, 1e3) for o in ("interleaved", "concatenated")
    ]

    def run(x, positions):
        return [encoding.add_to_input(x, positions) for encoding in codes]

    x, _, positions = inputs(12)
    got = torch.compile(run, fullgraph=True, backend="aot_eager")(x, positions)
    torch.testing.assert_close(got, run(x, positions), rtol=0, atol=1e-6)


@pytest.mark.large
def test_formulas_of_flex_in_one_graph():
    encodings = different()[:9]

    def run(x):
        return [whorl.attention(x, x, x, encoding=encoding, impl="flex") for encoding in encodings]

    x = inputs(32)[0]
    with torch.no_grad():
        got = torch.compile(run, fullgraph=True)(x)
        true = [whorl.attention(x, x, x, encoding=encoding, impl="torch") for encoding in encodings]
    torch.testing.assert_close(got, true, rtol=0, atol=1e-5)


def test_a_decoder_whose_layers_have_buckets_of_their_own():
    plan = whorl.LayerPlan([whorl.T5(heads=4), whorl.T5(heads=4, buckets=8, max_distance=16), whorl.Alibi(heads=4)])
    torch.manual_seed(0)
    model = whorl.models.Decoder(vocab=20, layers=3, width=64, heads=4, encoding=plan)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for length in (9, 17):
        ids = torch.arange(2 * length).view(2, length) % 20
        got, true = (
            torch.autograd.grad((out := run(ids)).sin().sum(), tuple(model.parameters())) + (out,)
            for run in (compiled, model)
        )
        torch.testing.assert_close(got, true, rtol=1e-4, atol=1e-4)


def test_an_encoder_and_a_decoder_of_t5_in_one_graph():
    both_ways, causal = whorl.T5(heads=4, bidirectional=True), whorl.T5(heads=4)

    def run(source, target):
        memory = whorl.attention(source, source, source, encoding=both_ways, causal=False)
        own = whorl.attention(target, target, target, encoding=causal)
        return whorl.attention(own, memory, memory, causal=False)

    source, target = inputs(20)[0], inputs(12)[0]
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(source, target), run(source, target), rtol=0, atol=1e-5)


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


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty:UserWarning")
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")  # torch's advice on products in float32
@pytest.mark.parametrize("impl", ["auto", "torch"])
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_constants_of_several_encodings_are_on_the_gpu_once(mode, impl):
    encodings = [one.cuda() for one in different() if not isinstance(one, whorl.Sandwich)]

    def run(x):
        for encoding in encodings:
            x = whorl.attention(x, x, x, encoding=encoding, impl=impl)
        return x

    compiled = torch.compile(run, fullgraph=True, mode=mode)
    with torch.no_grad():
        for seed in range(4):
            x = torch.randn(2, 4, 24, 64, generator=torch.Generator().manual_seed(seed)).cuda()
            torch.compiler.cudagraph_mark_step_begin()
            torch.cuda.set_sync_debug_mode("error" if seed > 2 else "default")  # a copy of numbers there would wait
            try:
                got = compiled(x)
            finally:
                torch.cuda.set_sync_debug_mode("default")
            torch.testing.assert_close(got.clone(), run(x), rtol=1e-4, atol=1e-4)


def step(run, x):
    """The output, in memory that no replay writes, and the gradient."""
    torch.compiler.cudagraph_mark_step_begin()
    out = run(x)
    return out.detach().clone(), torch.autograd.grad(out.sin().sum(), x)[0].clone()
