"""The decoder: any encoding, one model; cached steps, padding, packing and generation are those of a plain pass."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

import whorl
from whorl.models import Decoder

VOCAB, LENGTH = 40, 128
SIZES = {"heads": 4, "head_dim": 8, "width": 32}

# What whole passes and cached steps in float32 may differ by, logits being up to 5: Sandwich adds 64 to scores.
CLOSE = {"rtol": 0.0, "atol": 5e-5}


def encoding(name: str) -> whorl.Encoding:
    return whorl.build_for(name, **SIZES, length=LENGTH)


def lively(model: nn.Module, seed: int = 0) -> nn.Module:
    """The model with weights large enough that attention is far from uniform and no bias is zero."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.startswith("plan."):
                weight += 0.05 * torch.randn(weight.shape, generator=draw)
            elif weight.ndim > 1:
                weight.copy_(0.25 * torch.randn(weight.shape, generator=draw))
            else:
                weight += 0.1 * torch.randn(weight.shape, generator=draw)
    return model.eval()


def build(name: str | whorl.Encoding | whorl.LayerPlan, **settings) -> Decoder:
    given = encoding(name) if isinstance(name, str) else name
    model = lively(Decoder(VOCAB, 2, SIZES["width"], SIZES["heads"], given, **settings))
    assert isinstance(model, Decoder)
    return model


def tokens(batch: int, length: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(VOCAB, (batch, length), generator=torch.Generator().manual_seed(seed))


def decode(model: Decoder, given: torch.Tensor, chunks: list[int], length: int | None = None) -> torch.Tensor:
    """Logits of all tokens, some at a time."""
    caches, out, start = model.caches(length=length), [], 0
    for count in chunks:
        positions = whorl.positions(count, offset=start)
        out.append(model.step(given[:, start : start + count], caches, positions=positions))
        start += count
    assert start == given.shape[1]
    return torch.cat(out, dim=1)


# --- every encoding of the registry


@pytest.mark.parametrize("name", whorl.names())
def test_steps_go_on_by_themselves(name):
    """Without positions a step is what it is with those that follow, padding on the left included."""
    model, given = build(name), tokens(2, 9)
    real = torch.tensor([[False, False, True, True], [True, True, True, True]])
    theirs, own = model.caches(), model.caches()
    for start, stop in ((0, 4), (4, 5), (5, 8), (8, 9)):
        mask = real if start == 0 else None
        positions = (
            (real.cumsum(-1) - 1).clamp(min=0) if start == 0 else torch.arange(start, stop) - (~real).sum(-1)[:, None]
        )
        one = model.step(given[:, start:stop], theirs, positions=positions, key_mask=mask)
        other = model.step(given[:, start:stop], own, key_mask=mask)
        torch.testing.assert_close(other[:, -1], one[:, -1], rtol=0, atol=1e-5)


@pytest.mark.parametrize("batch", [1, 2])  # as many rows as an image has axes: they must not be taken for each other
@pytest.mark.parametrize("name", whorl.names())
def test_cached_steps_equal_full_passes(name, batch):
    model, given = build(name), tokens(batch, 12)
    steps = decode(model, given, [5, 1, 1, 3, 1, 1])
    with torch.no_grad():
        passes = torch.cat([model(given[:, : end + 1])[:, -1:] for end in range(12)], dim=1)
    torch.testing.assert_close(steps, passes, **CLOSE)


@pytest.mark.parametrize("name", whorl.names())
def test_left_padding_changes_nothing(name):
    model, given = build(name), tokens(2, 9)
    real = torch.ones(2, 9, dtype=torch.bool)
    real[0, :4] = False
    with torch.no_grad():
        padded, alone = model(given, key_mask=real), model(given[:1, 4:])
    torch.testing.assert_close(padded[:1, 4:], alone, **CLOSE)
    torch.testing.assert_close(padded[1:], model(given[1:]).detach(), **CLOSE)


@pytest.mark.parametrize("name", whorl.names())
def test_packed_documents_equal_single_ones(name):
    model, given, lengths = build(name), tokens(2, 12), [5, 1, 6]
    with torch.no_grad():
        packed = model(given, documents=whorl.documents(lengths))
        alone = torch.cat([model(part) for part in given.split(lengths, dim=1)], dim=1)
    torch.testing.assert_close(packed, alone, **CLOSE)


@pytest.mark.parametrize("name", whorl.names())
def test_greedy_generation_follows_the_full_pass(name):
    model, prompt = build(name), tokens(2, 6)
    real = torch.tensor([[False, False, True, True, True, True], [True] * 6])
    out = model.generate(prompt, 6, key_mask=real)
    assert out.shape == (2, 12) and torch.equal(out[:, :6], prompt)
    with torch.no_grad():
        for row, start in ((0, 2), (1, 0)):
            said = model(out[row : row + 1, start:])[0, :, :]
            assert torch.equal(said[5 - start : -1].argmax(-1), out[row, 6:])


@pytest.mark.parametrize("name", whorl.names())
def test_every_parameter_learns(name):
    model, given = build(name), tokens(2, 10)
    nn.functional.cross_entropy(model(given[:, :-1]).flatten(0, 1), given[:, 1:].flatten()).backward()
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), parameter_name
        assert parameter_name.endswith("attention.k.bias") or parameter.grad.abs().max() > 0, parameter_name


@pytest.mark.parametrize("name", whorl.names())
def test_the_state_dict_holds_all_there_is(name):
    one, given = build(name), tokens(2, 8)
    with torch.device("meta"):
        other = Decoder(VOCAB, 2, 32, 4, encoding(name)).eval()
    other.load_state_dict(one.state_dict(), assign=True)
    assert torch.equal(one(given), other(given))


@pytest.mark.parametrize("name", whorl.names())
def test_a_name_takes_the_sizes_of_the_model(name):
    model = Decoder(VOCAB, 2, 32, 4, name, length=LENGTH)
    assert model.plan[0].config == encoding(name).config and model.plan[0] is model.plan[1]


@pytest.mark.parametrize("name", whorl.names())
def test_half_precision_stays_near(name):
    model, given = build(name), tokens(2, 12)
    with torch.no_grad():
        expected = model(given)
        got = model.to(torch.bfloat16)(given)
    assert got.dtype == torch.bfloat16
    assert (got.float() - expected).abs().mean() < 0.05 * expected.abs().mean()


# --- forms of the model

FORMS = {
    "llama": {"norm": "rms", "activation": "swiglu", "bias": False, "kv_heads": 2, "tied": False},
    "gpt2": {"activation": "gelu_tanh"},
    "bloom": {"embedding_norm": True, "eps": 1e-6},
    "post": {"norm_position": "post", "activation": "relu", "hidden": 48},
    "wide": {"head_dim": 16, "kv_heads": 1, "activation": "geglu", "attention_bias": False},
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_decodes_as_it_passes(form):
    settings = FORMS[form]
    head_dim = settings.get("head_dim", 8)
    model, given = build(whorl.Rope(head_dim=head_dim), **settings), tokens(2, 10)
    torch.testing.assert_close(decode(model, given, [4, 1, 5]), model(given).detach(), **CLOSE)


def test_settings_make_the_parameters_they_say():
    plain, llama = build("none"), build("none", **FORMS["llama"])
    assert not any(name.endswith("bias") for name, _ in llama.named_parameters())
    assert llama.blocks[0].attention.k.weight.shape == (16, 32) and llama.head.weight.shape == (VOCAB, 32)
    assert plain.head is None and plain.embed_norm is None and plain.blocks[0].feed_forward.up.weight.shape == (128, 32)
    mixed = build("none", attention_bias=False)
    assert mixed.blocks[0].attention.out.bias is None and mixed.blocks[0].feed_forward.down.bias is not None
    assert build("none", norm_position="post").norm is None


def test_layers_may_have_encodings_of_their_own():
    plan = whorl.LayerPlan([whorl.Rope(head_dim=8), whorl.Alibi(heads=4)])
    model, given = build(plan), tokens(2, 10)
    torch.testing.assert_close(decode(model, given, [6, 1, 3]), model(given).detach(), **CLOSE)
    for other in (plan[0], plan[1]):
        swapped = build(other)
        assert not torch.allclose(swapped(given), model(given), atol=1e-3)


def test_layers_share_one_instance_and_own_many():
    shared, own = whorl.T5(heads=4), whorl.LayerPlan.own(lambda: whorl.T5(heads=4), layers=2)
    count = {name: sum(p.numel() for p in build(e).parameters()) for name, e in (("shared", shared), ("own", own))}
    assert count["own"] - count["shared"] == 4 * 32


def test_combined_encodings_work_together():
    both = whorl.Combined(whorl.Rope(head_dim=8), whorl.Alibi(heads=4))
    model, given = build(both), tokens(2, 10)
    torch.testing.assert_close(decode(model, given, [6, 1, 3]), model(given).detach(), **CLOSE)


class Listener(whorl.ForgettingGate):
    """Writes down the hidden states it is given."""

    def remember(self, hidden):
        self.heard = hidden
        return super().remember(hidden)


def test_encodings_that_read_hidden_states_read_those_that_queries_are_made_of():
    model, given = build(Listener(heads=4, width=32)), tokens(2, 6)
    read = []
    model.blocks[1].attention.q.register_forward_hook(lambda part, inputs, out: read.append(inputs[0]))
    model(given)
    assert torch.equal(model.plan[0].heard, read[0])


def test_a_length_dependent_scheme_serves_the_length_it_is_told():
    rope = whorl.Rope(head_dim=8, scaling=whorl.DynamicNtk(factor=4.0, original_length=8))
    model, given = build(rope), tokens(2, 16)
    with torch.no_grad():
        expected = model(given, length=64)
    torch.testing.assert_close(decode(model, given, [10, 1, 5], length=64), expected, **CLOSE)
    assert not torch.allclose(model(given), expected, atol=1e-3)
    out = model.generate(given, 4, length=64)
    assert torch.equal(model(out, length=64)[:, 15:-1].argmax(-1), out[:, 16:])


def test_an_image_has_positions_of_several_axes():
    model, given = build("axial_rope"), tokens(2, 6)
    rows, columns = whorl.grid(2, 3)
    grid = torch.stack((rows, columns)).unsqueeze(1).expand(2, 2, 6)
    with torch.no_grad():
        image = model(given, positions=grid)
        assert not torch.allclose(image, model(given), atol=1e-3)
        caches = model.caches()
        steps = [model.step(given[:, i : i + 1], caches, positions=grid[..., i : i + 1]) for i in range(6)]
    torch.testing.assert_close(torch.cat(steps, dim=1), image, **CLOSE)


def test_positions_of_axes_without_a_batch_name_the_remedy():
    model, given = build("mrope"), tokens(1, 5)
    places = whorl.multimodal([whorl.Text(1), whorl.Image(4, 4)], rule="qwen2_vl")
    for call in (lambda: model(given, positions=places), lambda: model.step(given, model.caches(), positions=places)):
        with pytest.raises(whorl.WhorlError, match=r"positions\[:, None\]"):
            call()
    assert model(given, positions=places[:, None]).isfinite().all()


@pytest.mark.skipif(torch.cuda.is_available(), reason="a graph can be captured there")
@pytest.mark.parametrize("count", [1, 2, 6])
def test_a_graph_that_cannot_be_is_refused_however_few_the_tokens(count):
    with pytest.raises(whorl.WhorlError, match="graph=True cannot be"):
        build("rope").generate(tokens(1, 5), count, graph=True)


@pytest.mark.parametrize("name", ["rope", "alibi"])
def test_it_compiles_in_one_graph(name):
    torch.compiler.reset()
    model, given = build(name), tokens(2, 10)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    documents = whorl.documents([4, 6])
    assert torch.equal(compiled(given, documents=documents), model(given, documents=documents))
    torch.compiler.reset()


# --- positions of tokens


class Recorder(whorl.NoPE):
    """Writes down the positions a model asks for."""

    def add_to_input(self, x, positions):
        self.seen = positions
        return x


def seen(given: torch.Tensor, **options) -> list:
    recorder = Recorder()
    build(recorder)(given, **options)
    return recorder.seen.tolist()


def test_positions_count_real_tokens_within_documents():
    given = tokens(2, 6)
    real = torch.tensor([[False, False, True, True, True, True], [True, True, True, True, False, False]])
    documents = torch.tensor([[0, 0, 0, 0, 1, 1], [0, 0, 1, 1, 1, 1]])
    assert seen(given) == [0, 1, 2, 3, 4, 5]
    assert seen(given, key_mask=real) == [[0, 0, 0, 1, 2, 3], [0, 1, 2, 3, 3, 3]] == whorl.from_mask(real).tolist()
    assert seen(given, documents=documents) == [[0, 1, 2, 3, 0, 1], [0, 1, 0, 1, 2, 3]]
    assert seen(given, documents=whorl.documents([2, 4])) == whorl.packed([2, 4]).tolist()
    assert seen(given, documents=documents, key_mask=real) == [[0, 0, 0, 1, 0, 1], [0, 1, 0, 1, 1, 1]]
    assert seen(given, positions=torch.arange(6) + 3, documents=documents) == [3, 4, 5, 6, 7, 8]


def test_positions_given_are_the_positions_used():
    model, given = build("rope"), tokens(2, 8)
    with torch.no_grad():
        plain, moved = model(given), model(given, positions=whorl.positions(8, offset=[5, 1000]))
        torch.testing.assert_close(moved, plain, **CLOSE)  # rope knows distances only
        assert not torch.allclose(model(given, positions=2 * whorl.positions(8)), plain, atol=1e-3)


# --- generation


def test_drawing_is_reproducible_and_keeps_to_the_likeliest():
    model, prompt = build("rope"), tokens(4, 5)

    def drawn(seed, **options):
        return model.generate(prompt, 20, generator=torch.Generator().manual_seed(seed), **options)

    assert torch.equal(drawn(1, temperature=1.0), drawn(1, temperature=1.0))
    assert not torch.equal(drawn(1, temperature=1.0), drawn(2, temperature=1.0))
    greedy = model.generate(prompt, 20)
    assert torch.equal(drawn(1, temperature=1.0, top_k=1), greedy)
    assert torch.equal(drawn(1, temperature=1e-4), greedy)
    out = drawn(3, temperature=2.0, top_k=3)
    best = model(out)[:, 4:-1].topk(3).indices
    assert (best == out[:, 5:, None]).any(-1).all()


def test_tokens_are_drawn_as_often_as_the_temperature_says():
    model, prompt = build("none"), tokens(1, 3).expand(4000, -1)
    out = model.generate(prompt, 1, temperature=2.0, generator=torch.Generator().manual_seed(0))[:, -1]
    expected = (model(prompt[:1])[0, -1] / 2).softmax(-1)
    assert (torch.bincount(out, minlength=VOCAB) / 4000 - expected).abs().max() < 4 * (0.25 / 4000) ** 0.5


def test_nothing_more_is_asked_for_nothing_more_is_given():
    model, prompt = build("rope"), tokens(2, 5).int()
    none = model.generate(prompt, 0)
    assert torch.equal(none, prompt) and none.data_ptr() != prompt.data_ptr()
    assert model.generate(prompt, 2).dtype == torch.int32


def test_generation_leaves_no_gradients_and_reserves_what_it_needs():
    model = build("rope")
    assert not model.generate(tokens(1, 4), 3).requires_grad
    caches = model.caches(capacity=4)
    model.step(tokens(1, 4), caches, positions=whorl.positions(4))
    with pytest.raises(whorl.WhorlError, match="5 tokens do not fit capacity=4"):
        model.step(tokens(1, 1), caches, positions=whorl.positions(1, offset=4))


# --- training


def test_dropout_acts_in_training_only():
    model, given = build("rope", dropout=0.5), tokens(2, 8)
    assert torch.equal(model(given), model(given))
    model.train()
    assert not torch.equal(model(given), model(given))


def test_it_learns_to_count():
    torch.manual_seed(0)
    model = Decoder(12, 2, 32, 4, whorl.Rope(head_dim=8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(60):
        given = (torch.randint(12, (16, 1)) + torch.arange(13)) % 12
        loss = nn.functional.cross_entropy(model(given[:, :-1]).flatten(0, 1), given[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert model.generate(torch.tensor([[3, 4, 5]]), 10).tolist() == [[i % 12 for i in range(3, 16)]]


def test_weights_start_small_and_encodings_are_left_alone():
    torch.manual_seed(0)
    table = whorl.T5(heads=4)
    before = table.table.detach().clone()
    model = Decoder(VOCAB, 8, 128, 4, table)
    assert torch.equal(table.table, before)
    assert model.embed.weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert model.blocks[3].attention.q.weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert model.blocks[3].feed_forward.down.weight.std().item() == pytest.approx(0.02 / 4, rel=0.1)
    assert not model.blocks[3].attention.q.bias.any()


# --- bad input


def make(**changes):
    settings = {"vocab": 9, "layers": 2, "width": 32, "heads": 4, "encoding": whorl.NoPE()} | changes
    return Decoder(**settings)


MAKING = [
    ({"layers": 0}, "Decoder: layers must be a positive integer, got 0."),
    ({"vocab": 9.0}, "Decoder: vocab must be a positive integer, got 9.0."),
    ({"heads": True}, "Decoder: heads must be a positive integer, got True."),
    ({"width": 30}, "Decoder: width must be a multiple of heads=4, got 30."),
    ({"kv_heads": 3}, "Decoder: kv_heads must be a divisor of heads=4, got 3."),
    ({"norm": "root"}, "Decoder: unknown norm 'root'. Expected one of: layer, rms."),
    ({"norm_position": "past"}, "Decoder: unknown norm_position 'past'. Did you mean 'post'?"),
    ({"activation": "swigl"}, "Decoder: unknown activation 'swigl'. Did you mean 'swiglu'?"),
    ({"width": None}, "Decoder: width must be a positive integer, got None."),
    ({"head_dim": 0}, "Decoder: head_dim must be a positive integer, got 0."),
    ({"hidden": ()}, "Decoder: hidden must be a positive integer, got ()."),
    ({"norm": []}, "Decoder: unknown norm []. Expected one of: layer, rms."),
    ({"norm_position": {}}, "Decoder: unknown norm_position {}. Expected one of: post, pre."),
    ({"eps": float("nan")}, "Decoder: eps must be a number from 0, got nan."),
    ({"eps": None}, "Decoder: eps must be a number from 0, got None."),
    ({"tied": "no"}, "Decoder: tied must be True or False, got 'no'."),
    ({"attention_bias": 1}, "Decoder: attention_bias must be True or False, got 1."),
    ({"dropout": "0.1"}, "Decoder: dropout must be at least 0 and below 1, got '0.1'."),
    ({"encoding": "rope", "length": -1}, "Decoder: length must be a positive integer, got -1."),
    ({"dropout": 1.0}, "Decoder: dropout must be at least 0 and below 1, got 1.0."),
    ({"encoding": "rope"}, "Decoder: encoding='rope' needs the length it is trained on. Pass length=…."),
    ({"encoding": "ropes", "length": 8}, "unknown encoding 'ropes'. Did you mean 'rope'?"),
    ({"length": 8}, "Decoder: length would be ignored, the encoding is built. Pass its name, or leave length out."),
    ({"encoding": None}, "Decoder: encoding must be an encoding, its name, or a LayerPlan of 2 layers, got None."),
    (
        {"encoding": whorl.Rope(head_dim=16)},
        "Decoder: Rope has head_dim=16 and the model head_dim=8. Build the encoding with head_dim=8.",
    ),
    (
        {"encoding": whorl.Combined(whorl.Rope(head_dim=8), whorl.Alibi(heads=8))},
        "Decoder: Alibi has heads=8 and the model heads=4. Build the encoding with heads=4.",
    ),
    (
        {"encoding": whorl.Learned(width=64, length=8)},
        "Decoder: Learned has width=64 and the model width=32. Build the encoding with width=32.",
    ),
]


@pytest.mark.parametrize(("changes", "message"), MAKING)
def test_a_model_that_cannot_be_says_why(changes, message):
    with pytest.raises(whorl.WhorlError, match=f"^{re.escape(message)}$"):
        make(**changes)


def test_a_plan_of_other_layers_is_refused():
    with pytest.raises(whorl.WhorlError, match="encoding must be an encoding, its name, or a LayerPlan of 2 layers"):
        make(encoding=whorl.LayerPlan.shared(whorl.NoPE(), layers=3))


GIVEN = torch.zeros(2, 5, dtype=torch.long)
ASKING = [
    (lambda m: m(GIVEN.float()), "Decoder: tokens must be int32 or int64 of shape (batch, length), got torch.float32"),
    (lambda m: m(GIVEN[0]), "Decoder: tokens must be int32 or int64 of shape (batch, length), got torch.int64"),
    (lambda m: m(GIVEN + 9), "Decoder: tokens must be between 0 and 8, got [9]."),
    (lambda m: m(GIVEN - 1), "Decoder: tokens must be between 0 and 8, got [-1]."),
    (lambda m: m(GIVEN, key_mask=torch.ones(2, 4, dtype=torch.bool)), "Decoder: key_mask must be of shape (2, 5), got"),
    (lambda m: m(GIVEN, key_mask=GIVEN), "attention: key_mask must be a bool tensor"),
    (lambda m: m(GIVEN, documents=torch.zeros(4)), "Decoder: documents must be of shape (2, 5) or (5,), got"),
    (
        lambda m: m(GIVEN, positions=whorl.positions(4)),
        "Decoder: positions must be of shape (length,), (batch, length)",
    ),
    (lambda m: m.generate(GIVEN, -1), "Decoder.generate: count must be 0 or more, got -1."),
    (lambda m: m.generate(GIVEN, 2.0), "Decoder.generate: count must be 0 or more, got 2.0."),
    (lambda m: m.generate(GIVEN, 1, temperature=-1.0), "Decoder.generate: temperature must be 0 or more, got -1.0."),
    (
        lambda m: m.generate(GIVEN, 1, temperature=float("nan")),
        "Decoder.generate: temperature must be 0 or more, got nan",
    ),
    (
        lambda m: m.generate(GIVEN, 1, top_k=3),
        "Decoder.generate: top_k and generator would be ignored, nothing is drawn.",
    ),
    (lambda m: m.generate(GIVEN, 1, temperature=1.0, top_k=0), "Decoder.generate: top_k must be a positive integer"),
    (
        lambda m: m.generate(GIVEN, 1, key_mask=torch.tensor([[True] * 4 + [False]] * 2)),
        "Decoder.generate: the last token of every row must be real. Pad prompts on the left, not on the right.",
    ),
    (
        lambda m: m(GIVEN, documents=GIVEN.to("meta")),
        "Decoder: documents must be on the device of tokens, cpu, got meta. Move it with .to().",
    ),
    (
        lambda m: m(GIVEN, key_mask=torch.ones(2, 5, dtype=torch.bool).to_sparse()),
        "Decoder: key_mask must be of shape (2, 5), stored densely; it is sparse_coo. Pass key_mask.to_dense().",
    ),
    (lambda m: m.generate(GIVEN, 1, temperature=True), "Decoder.generate: temperature must be 0 or more, got True."),
    (lambda m: m.generate(GIVEN, 1, temperature="1"), "Decoder.generate: temperature must be 0 or more, got '1'."),
    (
        lambda m: m.generate(GIVEN, 1, temperature=1.0, generator=7),
        "Decoder.generate: generator must be a torch.Generator or None, got 7.",
    ),
    (lambda m: m.generate(GIVEN, 1, graph=1), "Decoder.generate: graph must be True, False or None, got 1."),
    (lambda m: m.step(GIVEN, None), "Decoder.step: caches must be a list of one KVCache per layer, got None. Use"),
    (
        lambda m: m.step(GIVEN, m.caches()[:1] * 2),
        "Decoder.step: some layers have one and the same cache. Use caches(), which makes one for each.",
    ),
    (
        lambda m: m.step(GIVEN, m.caches()[:1], positions=whorl.positions(5)),
        "Decoder.step: caches must be 2, one per layer, got 1. Use caches().",
    ),
    (
        lambda m: m.train().step(GIVEN, m.caches(), positions=whorl.positions(5)),
        "Decoder: dropout would change what a step says. Call model.eval() first.",
    ),
]


@pytest.mark.parametrize(("ask", "message"), ASKING)
def test_a_call_that_cannot_be_met_says_why(ask, message):
    with pytest.raises(whorl.WhorlError, match=f"^{re.escape(message)}"):
        ask(make(dropout=0.1).eval())


def test_a_step_that_a_later_layer_refuses_leaves_every_cache_as_it_was():
    """The first layer takes fractions and the second does not: none of them may keep the tokens."""
    plan = whorl.LayerPlan([whorl.Rope(head_dim=16), whorl.Shaw(head_dim=16)])
    torch.manual_seed(0)
    model = Decoder(vocab=50, layers=2, width=32, heads=2, encoding=plan)
    tokens = torch.randint(50, (2, 9), generator=torch.Generator().manual_seed(1))
    caches, expected = model.caches(), model(tokens)
    model.step(tokens[:, :5], caches, positions=torch.arange(5))
    with pytest.raises(whorl.WhorlError, match="Shaw: positions must be int32 or int64"):
        model.step(tokens[:, 5:], caches, positions=torch.arange(5, 9) + 0.5)
    assert [len(cache) for cache in caches] == [5, 5]
    got = model.step(tokens[:, 5:], caches, positions=torch.arange(5, 9))
    torch.testing.assert_close(got, expected[:, 5:], rtol=0, atol=1e-5)


def test_caches_that_do_not_hold_the_same_tokens_are_refused():
    """Each would count positions of its own."""
    model, given = build("rope"), tokens(2, 9)
    caches, expected = model.caches(), model(given)
    model.step(given[:, :5], caches)
    caches[1].crop(4)
    with pytest.raises(whorl.WhorlError, match=r"Decoder\.step: some layers' caches hold 4 tokens and some 5"):
        model.step(given[:, 5:], caches)
    caches[0].crop(4)
    torch.testing.assert_close(model.step(given[:, 4:], caches), expected[:, 4:], **CLOSE)


def test_a_step_with_a_layer_in_training_is_refused():
    model = build("rope", dropout=0.5)
    model.blocks[1].train()
    with pytest.raises(whorl.WhorlError, match=re.escape("dropout would change what a step says. Call model.eval()")):
        model.step(tokens(2, 5), model.caches())


def test_caches_may_be_served_with_an_encoding_that_reads_no_hidden_states():
    model, given = build("forgetting_gate"), tokens(2, 9)
    plain, caches = build("none"), model.caches()
    plain.load_state_dict({name: value for name, value in model.state_dict().items() if not name.startswith("plan.")})
    for cache in caches:
        cache.change_encoding(whorl.NoPE())
    steps = [model.step(given[:, i : i + 1], caches) for i in range(9)]
    torch.testing.assert_close(torch.cat(steps, dim=1), plain(given).detach(), **CLOSE)


@pytest.mark.parametrize("temperature", [1e-30, 1e-45, 1e-300, 5e-324])
def test_the_lowest_temperatures_draw_the_likeliest(temperature):
    model, prompt = build("rope"), tokens(4, 5)
    assert torch.equal(model.generate(prompt, 6, temperature=temperature), model.generate(prompt, 6))


@pytest.mark.parametrize("temperature", [10**30, 1e300])
def test_at_the_highest_temperatures_every_token_is_as_likely(temperature):
    model, prompt = build("none"), tokens(1, 3).expand(4000, -1)
    seed = torch.Generator().manual_seed(0)
    out = model.generate(prompt, 1, temperature=temperature, generator=seed)[:, -1]
    assert (torch.bincount(out, minlength=VOCAB) / 4000 - 1 / VOCAB).abs().max() < 0.015


class Limited(whorl.Rope):
    """A rotation of one's own that refuses far positions."""

    def transform_qk(self, q, k, q_positions, k_positions, length=None):
        if int(q_positions.max()) > 70 or q.shape[2] == 2:
            raise RuntimeError("too far, or two tokens")
        return super().transform_qk(q, k, q_positions, k_positions, length)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("refused", ["positions", "key_mask"])
def test_a_step_that_a_later_layer_refuses_leaves_the_positions_to_come(padded, refused):
    """The first layer has written other positions, or padding, where those of the next tokens lay ready."""
    plan = whorl.LayerPlan([whorl.Rope(head_dim=16), Limited(head_dim=16)])
    torch.manual_seed(0)
    model = Decoder(vocab=50, layers=2, width=32, heads=2, encoding=plan)
    tokens = torch.randint(50, (2, 9), generator=torch.Generator().manual_seed(1))
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[0, :2] = not padded
    caches, expected = model.caches(), model(tokens, key_mask=mask)
    model.step(tokens[:, :5], caches, key_mask=mask[:, :5])
    model.step(tokens[:, 5:6], caches)
    other = {"positions": torch.tensor([77, 78]), "key_mask": torch.tensor([[False, True], [True, True]])}
    with pytest.raises(RuntimeError, match="too far"):
        model.step(tokens[:, 6:8], caches, **{refused: other[refused]})
    got = torch.cat([model.step(tokens[:, i : i + 1], caches) for i in (6, 7, 8)], dim=1)
    torch.testing.assert_close(got, expected[:, 6:], rtol=0, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"temperature": 1.0}, {"temperature": 1.0, "top_k": 3}])
@pytest.mark.parametrize("wrong", [{5: torch.nan}, {5: torch.inf}, dict.fromkeys(range(VOCAB), -torch.inf)])
def test_logits_that_are_no_numbers_choose_no_token(wrong, options):
    model = build("rope")
    model.head = torch.nn.Linear(model.embed.weight.shape[1], VOCAB)
    with torch.no_grad():
        for token, number in wrong.items():
            model.head.bias[token] = number
    with pytest.raises(whorl.WhorlError, match=r"Decoder\.generate: the model gives NaN or infinity for a logit"):
        model.generate(tokens(1, 4).clamp(max=4), 3, **options)
