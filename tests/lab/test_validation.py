"""What a result shows beside its scores: the loss on test text while it trained, text it wrote, where a head looks."""

from __future__ import annotations

import math

import pytest
import torch

from lab_runs import tiny
from whorl.lab import load, run_one
from whorl.lab.corpus import read_corpus
from whorl.lab.evaluate import score
from whorl.lab.load import make_model
from whorl.lab.monitor import attention_by_distance
from whorl.lab.storage import read_metrics
from whorl.lab.validation import generated_texts, validation


@pytest.fixture(scope="module")
def run(texts, tmp_path_factory):
    config = tiny(texts, steps=12, learning_rate=1e-2)
    folder = tmp_path_factory.mktemp("run")
    return config, folder, run_one(config, folder)


def test_the_loss_on_test_text_is_in_every_fifth_row_and_the_last(run, texts):
    config, folder, result = run
    assert [row["step"] for row in result["validation"]] == [5, 10, 12]
    model = load(folder).model
    tokens = torch.from_numpy(read_corpus(str(texts)).samples(16, 128).astype("int64"))
    nats, _ = score(model, tokens, config)
    assert result["validation"][-1]["bits_per_byte"] == pytest.approx(float(nats.mean()) / math.log(2), rel=1e-4)
    assert result["validation"][0]["bits_per_byte"] > result["validation"][-1]["bits_per_byte"]
    assert ["validation_bits_per_byte" in row for row in read_metrics(folder)] == [
        n in (5, 10, 12) for n in range(1, 13)
    ]


def test_validating_leaves_training_as_it_was(texts):
    config = tiny(texts)
    model = make_model(config).train()
    state = torch.get_rng_state()
    bits = validation(model, config, read_corpus(str(texts)))()
    assert 6 < bits < 10 and model.training and torch.equal(torch.get_rng_state(), state)


def test_the_model_goes_on_with_a_text_to_once_and_4_times_its_length(run, texts):
    _, folder, result = run
    assert [one["length"] for one in result["generated"]] == [16, 64]
    sample = bytes(read_corpus(str(texts)).samples(64, 1)[0].tolist()).decode()
    assert result["generated"][0]["prompt"] == sample[:8] and result["generated"][1]["prompt"] == sample[:32]
    model = load(folder).model
    more = model.generate(torch.tensor([list(sample[:32].encode())]), 32)[0, 32:]
    assert result["generated"][1]["text"] == bytes(more.tolist()).decode(errors="replace")
    learned = tiny(texts, "learned")
    found = generated_texts(make_model(learned), learned, read_corpus(str(texts)))
    assert [one["length"] for one in found] == [16]  # its table ends there


def test_even_attention_is_even_at_every_distance(texts):
    model = make_model(tiny(texts, "none", layers=2))
    with torch.no_grad():
        for block in model.blocks:
            block.attention.q.weight.zero_()
            block.attention.q.bias.zero_()
    found = attention_by_distance(model, torch.randint(256, (2, 16)))
    even = sum(1 / n for n in range(9, 17)) / 8  # the queries of the second half see 9 to 16 keys
    assert found["distance"] == [0, 1, 2, 4] and found["weight"] == pytest.approx([even] * 4, rel=1e-5)


def test_the_head_that_looks_farthest_is_told(run, texts):
    _, _, result = run
    found = result["attention_by_distance"]
    assert found["length"] == 64 and found["distance"] == [0, 1, 2, 4, 8, 16]
    sizes = [1, 1, 2, 4, 8, 16]
    assert 0.5 < sum(n * weight for n, weight in zip(sizes, found["weight"], strict=True)) <= 1 + 1e-5
    model = make_model(tiny(texts, "alibi"))  # of two heads the second has the flatter slope
    assert attention_by_distance(model, torch.randint(256, (2, 64)))["head"] == [0, 1]
