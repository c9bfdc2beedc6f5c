"""Graphs with free sizes: compiled once for many batches and lengths, exported for all, and the same numbers."""

import pytest
import torch
import torch._dynamo
from torch._dynamo.exc import Unsupported

import whorl
from helpers import SCALINGS
from registry_cases import HEADS, NAMES, WIDTH, build, hidden_for, tokens
from whorl.attend import blocks

ANY_HEADS = ("axial_rope", "none", "rerope", "rope", "self_extend", "window", "xpos")
LENGTHS = (100, 200, 256, 257, 300, 777, 1000, 1300, 2000, 3000, 4000, 4001)


def registry(*small):
    """Every encoding by name; those that are not named here take part in ``make test-all`` only."""
    return [pytest.param(name, marks=() if name in small else pytest.mark.large) for name in NAMES]


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Compiled:
    """A function compiled whole, and how many graphs that took."""

    def __init__(self, function, **options):
        self.graphs = 0
        self.run = torch.compile(function, fullgraph=True, backend=self._count, **options)

    def _count(self, graph, example_inputs):
        self.graphs += 1
        return graph.forward

    def __call__(self, *given, **options):
        return self.run(*given, **options)


def close(got, expected):
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_one_graph_of_attention_for_all_batches_and_lengths(name):
    e = build(name)

    def attend(q, hidden):
        return whorl.attention(q, q, q, encoding=e, **hidden)

    compiled = Compiled(attend, dynamic=True)
    with torch.no_grad():
        for batch, length in ((3, 7), (5, 24), (6, 33), (2, 40)):  # not as many as heads, which would be taken for one
            q, hidden = tokens(length, batch=batch)[0], hidden_for(e, length, batch=batch)
            close(compiled(q, hidden), attend(q, hidden))
    assert compiled.graphs == 1


@pytest.mark.parametrize("name", registry("alibi"))
def test_gradients_of_a_graph_with_free_sizes(name):
    e = build(name)

    def attend(q, hidden):
        return whorl.attention(q, q, q, encoding=e, **hidden)

    compiled = torch.compile(attend, fullgraph=True, dynamic=True, backend="aot_eager")
    for batch, length in ((3, 7), (5, 24)):
        q, hidden = tokens(length, batch=batch, grad=True)[0], hidden_for(e, length, batch=batch)
        wanted = (q, *e.parameters())
        got, expected = (
            torch.autograd.grad(one(q, hidden).sin().sum(), wanted, allow_unused=True, materialize_grads=True)
            for one in (compiled, attend)
        )
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.large
@pytest.mark.parametrize("name", ["alibi", "rope", "t5"])
def test_the_default_compiler_has_free_sizes(name):
    e = build(name)

    def attend(q, k, v):
        return whorl.attention(q, k, v, encoding=e)

    compiled = torch.compile(attend, fullgraph=True, dynamic=True)
    with torch.no_grad():
        for batch, length in ((3, 7), (5, 24)):
            given = tokens(length, batch=batch, kv_heads=2)
            close(compiled(*given), attend(*given))


@pytest.mark.parametrize(
    "options",
    [
        {"causal": False, "scale": 0.3},
        {"causal": "positions", "return_lse": True, "softcap": 5.0},
    ],
    ids=str,
)
def test_options_of_attention_with_free_sizes(options):
    e = whorl.Rope(head_dim=16)

    def attend(q, k, v):
        out = whorl.attention(q, k, v, encoding=e, **options)
        return out if isinstance(out, tuple) else (out,)

    compiled = Compiled(attend, dynamic=True)
    with torch.no_grad():
        for batch, length in ((3, 7), (5, 24), (6, 33)):
            given = tokens(length, batch=batch, kv_heads=2)
            for got, expected in zip(compiled(*given), attend(*given), strict=True):
                close(got, expected)
    assert compiled.graphs == 1


def test_masks_documents_and_positions_with_free_sizes():
    e = whorl.Alibi(heads=HEADS)

    def attend(q, k, v, options):
        return whorl.attention(q[:, :, 2:], k, v, encoding=e, **options)

    compiled = Compiled(attend, dynamic=True)
    kinds = (
        lambda batch, length: {},
        lambda batch, length: {"key_mask": torch.arange(length).expand(batch, -1) > torch.arange(batch)[:, None]},
        lambda batch, length: {"mask": torch.ones(batch, 1, length - 2, length, dtype=torch.bool).tril(1)},
        lambda batch, length: {
            "documents": torch.arange(2, length) // 4,
            "key_documents": (torch.arange(length) // 4).repeat(batch, 1),
        },
        lambda batch, length: {
            "positions": torch.arange(7, length + 5).repeat(batch, 1),
            "key_positions": torch.arange(5, length + 5).repeat(batch, 1),
        },
    )
    with torch.no_grad():
        for options in kinds:
            for batch, length in ((3, 9), (5, 24)):
                q, k, v = tokens(length, batch=batch)
                given = options(batch, length)
                close(compiled(q, k, v, given), attend(q, k, v, given))
    assert compiled.graphs == len(kinds)


@pytest.mark.parametrize("name", [one for one in registry("rope") if one.values[0] in ANY_HEADS])
def test_head_counts_that_vary(name):
    encoding = build(name)

    def attend(q, k, v):
        return whorl.attention(q, k, v, encoding=encoding)

    compiled = Compiled(attend)
    with torch.no_grad():
        for heads, kv_heads, length in ((4, 4, 9), (8, 8, 10), (6, 6, 11), (6, 3, 12), (12, 4, 14)):
            given = tokens(length, batch=5, heads=heads, kv_heads=kv_heads)
            close(compiled(*given), attend(*given))
    assert compiled.graphs <= 4


def test_encodings_with_different_heads_in_one_function():
    def attend(q, encoding):
        return whorl.attention(q, q, q, encoding=encoding)

    compiled = Compiled(attend)
    with torch.no_grad():
        for heads in (4, 8, 6):
            q, encoding = tokens(9, heads=heads)[0], whorl.Alibi(heads=heads)
            close(compiled(q, encoding), attend(q, encoding))
    with pytest.raises(Unsupported, match="Alibi has heads=4, q has 6"):
        compiled(tokens(9, heads=6)[0], whorl.Alibi(heads=4))


@pytest.mark.parametrize("name", registry("alibi"))
def test_a_decoder_at_two_lengths_then_with_padding_then_with_documents(name):
    torch.manual_seed(0)
    model = whorl.models.Decoder(vocab=50, layers=1, width=WIDTH, heads=HEADS, encoding=build(name)).eval()
    compiled = Compiled(model)
    with torch.no_grad():
        for length in (8, 12, 15):
            ids = torch.randint(50, (2, length))
            close(compiled(ids), model(ids))
        assert compiled.graphs == 2
        key_mask = torch.arange(15).expand(2, -1) >= torch.tensor([[0], [4]])
        close(compiled(ids, key_mask=key_mask), model(ids, key_mask=key_mask))
        documents = torch.arange(15) // 6
        close(compiled(ids, documents=documents), model(ids, documents=documents))
    assert compiled.graphs == 4


@pytest.mark.parametrize("dynamic", [True, None])
@pytest.mark.parametrize(
    "name", ["dynamic_ntk", "longrope", pytest.param("resonance_dynamic", marks=pytest.mark.large)]
)
def test_the_length_to_serve_grows_and_the_graphs_do_not(name, dynamic):
    scaling = whorl.Resonance(inner=SCALINGS["dynamic_ntk"]) if name == "resonance_dynamic" else SCALINGS[name]
    rope = whorl.Rope(head_dim=64, scaling=scaling)

    def attend(q, length):
        return whorl.attention(q, q, q, encoding=rope, length=length)

    compiled = Compiled(attend, dynamic=dynamic)
    with torch.no_grad():
        for length in LENGTHS:
            q = tokens(9, dim=64, batch=3, seed=length)[0]
            close(compiled(q, length), attend(q, length))
    assert compiled.graphs <= (2 if dynamic else 3)


@pytest.mark.parametrize("angles", ["exact", pytest.param("float32", marks=pytest.mark.large)])
def test_the_default_compiler_has_a_free_length(angles):
    rope, positions = whorl.Rope(head_dim=64, scaling=SCALINGS["dynamic_ntk"], angles=angles), torch.arange(5000)

    def cosines(positions, length):
        return rope.tables(positions, length)[0]

    compiled = torch.compile(cosines, fullgraph=True, dynamic=True)
    for length in (5000, 6000):
        atol = 1e-6 if angles == "exact" else 2e-3  # in float32 one unit of a frequency's last place, times 5000
        torch.testing.assert_close(compiled(positions, length), cosines(positions, length), rtol=0, atol=atol)


def test_scores_in_blocks_take_few_graphs(monkeypatch):
    monkeypatch.setitem(blocks.MOST_SCORES, "graph on the cpu", 2**11)
    e = build("t5")

    def attend(q):
        return whorl.attention(q, q, q, encoding=e)

    compiled = Compiled(attend, dynamic=True)
    with torch.no_grad():
        for length in (10, 11, 12, 15, 16, 17, 18):  # one block to 13, then two
            q = tokens(length, batch=3)[0]
            close(compiled(q), attend(q))
    assert compiled.graphs == 2


@pytest.mark.parametrize("name", registry("rope"))
def test_steps_of_a_cache_take_few_graphs(name):
    e = build(name)
    q, k, v = tokens(16, batch=3)
    hidden = hidden_for(e, 16, batch=3)

    def step(cache, i):
        here = slice(i, i + 1)
        now = {"hidden": hidden["hidden"][:, here]} if hidden else {}
        return cache.attend(q[:, :, here], k[:, :, here], v[:, :, here], **now)

    compiled, cache, other = Compiled(step), *(whorl.KVCache(encoding=e, capacity=32) for _ in range(2))
    for i in range(16):
        close(compiled(cache, i), step(other, i))
    assert compiled.graphs <= 3


@pytest.mark.parametrize("causal", [False, pytest.param(True, marks=pytest.mark.large)])
def test_linear_attention_with_free_sizes(causal):
    rope = whorl.Rope(head_dim=16)

    def attend(q, k, v):
        return whorl.linear_attention(q, k, v, encoding=rope, causal=causal)

    compiled = Compiled(attend, dynamic=True)
    with torch.no_grad():
        for batch, length in ((3, 70), (5, 100), (6, 130), (7, 200)):
            given = tokens(length, batch=batch, kv_heads=2)
            close(compiled(*given), attend(*given))
    assert compiled.graphs <= 2


class Attend(torch.nn.Module):
    def __init__(self, encoding):
        super().__init__()
        self.encoding = encoding

    def forward(self, q, hidden):
        return whorl.attention(q, q, q, encoding=self.encoding, **hidden)


@pytest.mark.parametrize("name", registry("alibi", "forgetting_gate", "rerope"))
def test_exported_attention_has_a_free_batch_and_length(name):
    e = build(name)
    layer, batch, length = Attend(e), torch.export.Dim("batch", max=64), torch.export.Dim("length", min=2, max=2048)
    free = {"q": {0: batch, 2: length}, "hidden": {"hidden": {0: batch, 1: length}} if e.reads_hidden else {}}
    with torch.no_grad():
        given = tokens(12, batch=3)[0], hidden_for(e, 12, batch=3)
        program = torch.export.export(layer, given, dynamic_shapes=free).module()
        for size in ((2, 7), (5, 40), (1, 600)):
            given = tokens(size[1], batch=size[0])[0], hidden_for(e, size[1], batch=size[0])
            close(program(*given), layer(*given))


@pytest.mark.parametrize("strict", [False, pytest.param(True, marks=pytest.mark.large)])
@pytest.mark.parametrize("name", registry("mrope"))
def test_an_exported_decoder_has_a_free_batch_and_length(name, strict):
    torch.manual_seed(0)
    model = whorl.models.Decoder(vocab=50, layers=1, width=WIDTH, heads=HEADS, encoding=build(name)).eval()
    batch, length = torch.export.Dim("batch", max=64), torch.export.Dim("length", min=2, max=2048)

    def given(batch, length):
        real = torch.arange(length).expand(batch, -1) >= torch.arange(batch)[:, None] % length
        return (torch.randint(50, (batch, length)),), {"key_mask": real}

    free = {"tokens": {0: batch, 1: length}, "key_mask": {0: batch, 1: length}}
    with torch.no_grad():
        ids, options = given(3, 12)
        program = torch.export.export(model, ids, options, dynamic_shapes=free, strict=strict).module()
        for size in ((2, 7), (5, 40)):
            ids, options = given(*size)
            close(program(*ids, **options), model(*ids, **options))


@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_rotation_serves_every_length(strict):
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.rope = whorl.Rope(head_dim=64, scaling=SCALINGS["dynamic_ntk"])

        def forward(self, q):
            positions = whorl.positions(q.shape[2])
            return self.rope.transform_qk(q, q, positions, positions, q.shape[2])[0]

    layer, length = Layer(), torch.export.Dim("length", min=257, max=8192)
    program = torch.export.export(layer, (tokens(300, dim=64)[0],), dynamic_shapes=({2: length},), strict=strict)
    for count in (257, 1000):
        q = tokens(count, dim=64)[0]
        torch.testing.assert_close(program.module()(q), layer(q), rtol=0, atol=2e-6)
