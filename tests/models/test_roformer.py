"""RoFormer: transformers' outputs with its weights, and any other encoding in RoPE's place."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn
from transformers import RoFormerConfig, RoFormerForMaskedLM, RoFormerForSequenceClassification
from transformers import RoFormerModel as TheirEncoder

import whorl
from helpers import lively
from whorl.models import RoFormer, RoFormerClassifier, RoFormerMaskedLM, load_roformer

VOCAB, LENGTH = 40, 24
CLOSE = {"rtol": 0.0, "atol": 1e-5}

HEADS = {
    TheirEncoder: RoFormer,
    RoFormerForMaskedLM: RoFormerMaskedLM,
    RoFormerForSequenceClassification: RoFormerClassifier,
}


def theirs(cls: type = TheirEncoder, **changes):
    settings = {
        **{"vocab_size": VOCAB, "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "num_labels": 3},
        **{"intermediate_size": 80, "max_position_embeddings": 64, "pad_token_id": None, "type_vocab_size": 3},
    }
    return lively(cls(RoFormerConfig(**settings | changes)))


def ours(encoding=None, **settings) -> RoFormer:
    model = lively(RoFormer(VOCAB, 2, 32, 4, encoding, **settings))
    assert isinstance(model, RoFormer)
    return model


def tokens(batch: int = 2, length: int = LENGTH, high: int = VOCAB, seed: int = 0) -> torch.Tensor:
    return torch.randint(high, (batch, length), generator=torch.Generator().manual_seed(seed))


# --- transformers


@pytest.mark.parametrize("rotary_value", [False, True])
@pytest.mark.parametrize("cls", HEADS)
def test_outputs_are_those_of_transformers(cls, rotary_value):
    their_model = theirs(cls, rotary_value=rotary_value)
    model = load_roformer(their_model.state_dict(), their_model.config.to_dict())
    assert type(model) is HEADS[cls]
    given, types, real = tokens(), tokens(high=3, seed=1), torch.ones(2, LENGTH, dtype=torch.bool)
    real[0, 17:] = False
    with torch.no_grad():
        expected = their_model(given, attention_mask=real.long(), token_type_ids=types)[0]
        got = model(given, types=types, key_mask=real)
        if got.ndim == 3:  # what padding itself says is nobody's business
            expected, got = expected[real], got[real]
        torch.testing.assert_close(got, expected, **CLOSE)
        torch.testing.assert_close(model(given), their_model(given)[0], **CLOSE)


@pytest.mark.parametrize(
    "changes",
    [{"embedding_size": 24}, {"hidden_act": "relu"}, {"hidden_act": "gelu_new"}, {"layer_norm_eps": 1e-3}],
    ids=str,
)
def test_other_settings_too(changes):
    their_model = theirs(RoFormerForMaskedLM, **changes)
    model = load_roformer(their_model.state_dict(), their_model.config.to_dict())
    with torch.no_grad():
        torch.testing.assert_close(model(tokens()), their_model(tokens())[0], **CLOSE)


def test_angles_in_float32_are_near():
    their_model = theirs()
    model = load_roformer(their_model.state_dict(), their_model.config.to_dict(), angles="float32")
    assert model.plan[0].config == whorl.Rope(head_dim=12, layout="interleaved", angles="float32").config
    with torch.no_grad():
        torch.testing.assert_close(model(tokens()), their_model(tokens())[0], **CLOSE)


def test_texts_longer_than_their_table_are_no_matter():
    short, long = theirs(max_position_embeddings=8), theirs(max_position_embeddings=64)
    model = load_roformer(short.state_dict(), short.config.to_dict())
    with torch.no_grad():
        torch.testing.assert_close(model(tokens()), long(tokens())[0], **CLOSE)


# --- where position enters


def test_without_position_order_is_unknown():
    order = torch.randperm(LENGTH, generator=torch.Generator().manual_seed(3))
    none, rope, given = ours(whorl.NoPE()), ours(), tokens()
    with torch.no_grad():
        torch.testing.assert_close(none(given[:, order]), none(given)[:, order], **CLOSE)
        assert not torch.allclose(rope(given[:, order]), rope(given)[:, order], atol=1e-2)


def test_only_rotated_values_know_where_a_text_begins():
    plain, rotated, given = ours(), ours(rotary_value=True), tokens()
    moved = whorl.positions(LENGTH, offset=7)
    with torch.no_grad():
        torch.testing.assert_close(plain(given, positions=moved), plain(given), **CLOSE)
        assert not torch.allclose(rotated(given, positions=moved), rotated(given), atol=1e-2)


def test_rope_is_interleaved_unless_another_is_given():
    assert ours().plan[0].config == whorl.Rope(head_dim=8, layout="interleaved").config
    half = ours(whorl.Rope(head_dim=8))
    assert not torch.allclose(half(tokens()), ours()(tokens()), atol=1e-2)


# Encodings that see both sides, and as such can stand in RoPE's place.
CONTROLS = {
    "none": lambda: whorl.NoPE(),
    "rope": lambda: whorl.Rope(head_dim=8, layout="interleaved"),
    "learned": lambda: whorl.Learned(width=32, length=64),
    "sinusoidal": lambda: whorl.Sinusoidal(width=32),
    "shaw": lambda: whorl.Shaw(head_dim=8),
    "t5": lambda: whorl.T5(heads=4, bidirectional=True),
    "alibi": lambda: whorl.Alibi(heads=4, form="split"),
    "deberta": lambda: whorl.Deberta(heads=4, head_dim=8),
    "transformer_xl": lambda: whorl.TransformerXL(heads=4, head_dim=8),
    "window": lambda: whorl.Window(size=4, symmetric=True),
    "combined": lambda: whorl.Combined(whorl.Rope(head_dim=8), whorl.T5(heads=4, bidirectional=True)),
    "plan": lambda: whorl.LayerPlan([whorl.NoPE(), whorl.Shaw(head_dim=8)]),
}


@pytest.mark.parametrize("name", CONTROLS)
def test_padding_on_either_side_changes_nothing(name):
    model, given = ours(CONTROLS[name]()), tokens()
    left, right = torch.ones(2, LENGTH, dtype=torch.bool), torch.ones(2, LENGTH, dtype=torch.bool)
    left[0, :5] = False
    right[0, -5:] = False
    with torch.no_grad():
        torch.testing.assert_close(model(given, key_mask=left)[0, 5:], model(given[:1, 5:])[0], **CLOSE)
        torch.testing.assert_close(model(given, key_mask=right)[0, :-5], model(given[:1, :-5])[0], **CLOSE)


@pytest.mark.parametrize("name", CONTROLS)
def test_packed_documents_equal_single_ones(name):
    model, given, lengths = ours(CONTROLS[name]()), tokens(), [9, 1, 14]
    with torch.no_grad():
        packed = model(given, documents=whorl.documents(lengths))
        alone = torch.cat([model(part) for part in given.split(lengths, dim=1)], dim=1)
    torch.testing.assert_close(packed, alone, **CLOSE)


@pytest.mark.parametrize("name", CONTROLS)
def test_every_parameter_learns(name):
    model = RoFormerMaskedLM(ours(CONTROLS[name]()))
    given, types = tokens(), tokens(high=2, seed=1)
    nn.functional.cross_entropy(model(given, types=types).flatten(0, 1), given.flatten()).backward()
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), parameter_name
        assert parameter_name.endswith("attention.k.bias") or parameter.grad.abs().max() > 0, parameter_name


def test_a_name_takes_the_sizes_of_the_model():
    model = ours("learned", length=64, embedding=16)  # positions are added to the embeddings, before they are widened
    assert model.plan[0].config == whorl.Learned(width=16, length=64).config
    assert model(tokens()).shape == (2, LENGTH, 32)


@pytest.mark.parametrize("head", [lambda e: e, RoFormerMaskedLM, lambda e: RoFormerClassifier(e, 3)])
def test_the_state_dict_holds_all_there_is(head):
    one = lively(head(ours(embedding=16, rotary_value=True)))
    with torch.device("meta"):
        other = head(RoFormer(VOCAB, 2, 32, 4, embedding=16, rotary_value=True)).eval()
    other.load_state_dict(one.state_dict(), assign=True)
    assert torch.equal(one(tokens()), other(tokens()))


def test_dropout_acts_in_training_only():
    model = RoFormerClassifier(ours(dropout=0.3), labels=3).eval()
    assert torch.equal(model(tokens()), model(tokens()))
    model.train()
    assert not torch.equal(model(tokens()), model(tokens()))


def test_it_learns_what_stands_in_a_gap():
    draw = torch.Generator().manual_seed(0)
    model = lively(RoFormerMaskedLM(RoFormer(12, 2, 32, 4)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(150):
        text = (torch.randint(11, (32, 1), generator=draw) + torch.arange(9)) % 11
        gaps = torch.rand(text.shape, generator=draw) < 0.3
        said = model(text.masked_fill(gaps, 11))
        optimizer.zero_grad()
        nn.functional.cross_entropy(said.flatten(0, 1), text.flatten()).backward()
        optimizer.step()
    assert (said.argmax(-1) == text)[gaps].float().mean() > 0.9  # one of eleven by chance


# --- bad input


def make(**changes):
    return RoFormer(**{"vocab": 9, "layers": 2, "width": 32, "heads": 4} | changes)


MAKING = [
    ({"types": 0}, "RoFormer: types must be a positive integer, got 0."),
    ({"embedding": 0}, "RoFormer: embedding must be a positive integer, got 0."),
    ({"hidden": -1}, "RoFormer: hidden must be a positive integer, got -1."),
    ({"heads": 5}, "RoFormer: width must be a multiple of heads=5, got 32."),
    ({"activation": "tanh"}, "RoFormer: unknown activation 'tanh'."),
    ({"dropout": -0.1}, "RoFormer: dropout must be at least 0 and below 1, got -0.1."),
    ({"encoding": "learned"}, "RoFormer: encoding='learned' needs the length it is trained on. Pass length=…."),
    ({"length": 8}, "RoFormer: length would be ignored, the encoding is built. Pass its name, or leave length out."),
    (
        {"encoding": whorl.NoPE(), "rotary_value": True},
        "RoFormer: rotary_value=True needs a rotary encoding in every layer. Use whorl.Rope.",
    ),
    (
        {"encoding": whorl.Learned(width=32, length=8), "embedding": 16},
        "RoFormer: Learned has width=32 and the model width=16. Build the encoding with width=16.",
    ),
]


@pytest.mark.parametrize(("changes", "message"), MAKING)
def test_a_model_that_cannot_be_says_why(changes, message):
    with pytest.raises(whorl.WhorlError, match=f"^{re.escape(message)}"):
        make(**changes)


def test_tokens_that_are_none_are_refused():
    with pytest.raises(whorl.WhorlError, match=r"^RoFormer: tokens must be between 0 and 8, got \[3, 9\]\.$"):
        make()(torch.tensor([[3, 9]]))
    with pytest.raises(whorl.WhorlError, match=r"^RoFormer: key_mask must be of shape \(1, 2\), got"):
        make()(torch.tensor([[3, 4]]), key_mask=torch.ones(2, dtype=torch.bool))
    with pytest.raises(whorl.WhorlError, match=r"^RoFormer: types must be between 0 and 1, got \[0, 2\]\.$"):
        make()(torch.tensor([[3, 4]]), types=torch.tensor([[0, 2]]))
    with pytest.raises(whorl.WhorlError, match=r"^RoFormer: types must be of the shape of tokens, one for each, got"):
        make()(torch.tensor([[3, 4], [5, 6]]), types=torch.tensor([[0, 1]]))
