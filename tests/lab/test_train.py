"""The training loop: its schedule, what it watches, and that a run taken up again is the run undisturbed."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from lab_runs import lasting, tiny
from whorl.errors import WhorlError
from whorl.lab import storage, train
from whorl.lab.batches import TextBatches
from whorl.lab.corpus import read_corpus
from whorl.lab.language import backward, language_loss
from whorl.lab.load import make_model, parameters
from whorl.lab.monitor import GROUPS, attention_entropy, gradient_norms
from whorl.lab.recipe import learning_rate, make_optimizer
from whorl.lab.storage import CHECKPOINT, METRICS, read_checkpoint, read_metrics


def parts(config):
    return make_model(config), TextBatches(read_corpus(config.corpus), config)


def fit(model, config, batches, *args, **options):
    """Training on batches of text."""
    return train.train(model, config, language_loss(model, config, batches), *args, **options)


class Stop(Exception):  # noqa: N818
    """What a test ends a run with."""


def stop_at(step: int):
    def tell(event):
        if event["step"] >= step:
            raise Stop

    return tell


# -- the schedule -----------------------------------------------------------------------------------------------------


def test_the_rate_climbs_on_a_line_and_falls_on_a_cosine(texts):
    config = tiny(texts, steps=40, warmup=10, learning_rate=2.0, final=0.1)
    rates = [learning_rate(step, config) for step in range(40)]
    assert rates[:10] == pytest.approx([2.0 * (i + 1) / 10 for i in range(10)])
    for step in range(10, 40):
        expected = 0.2 + 1.8 * (1 + math.cos(math.pi * (step - 10) / 29)) / 2
        assert rates[step] == pytest.approx(expected)
    assert rates[-1] == pytest.approx(0.2)


def test_weights_decay_and_nothing_else_does(texts):
    model = make_model(tiny(texts, {"name": "t5", "buckets": 4, "max_distance": 8}))
    optimizer = make_optimizer(model, tiny(texts, weight_decay=0.3))
    decay = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    by_name = {name: decay[id(p)] for name, p in model.named_parameters()}
    assert len(by_name) == len(decay)
    decayed = {name for name, value in by_name.items() if value == 0.3}
    assert "embed.weight" in decayed and "blocks.0.attention.q.weight" in decayed
    for name in ("norm.weight", "blocks.0.norm_1.bias", "blocks.0.attention.q.bias", "plan.unique.0.table"):
        assert by_name[name] == 0.0, name


def test_the_first_updates_are_those_of_plain_adamw(texts):
    """Three steps written out by hand: rate, clip, decay and order of things."""
    config = tiny(texts, steps=3, warmup=2, clip=0.5, learning_rate=1e-2)
    model, batches = parts(config)
    fit(model, config, batches)
    own, _ = parts(config)
    moments = {name: (torch.zeros_like(p), torch.zeros_like(p)) for name, p in own.named_parameters()}
    rates = [5e-3, 1e-2, 1e-2]
    for step, rate in enumerate(rates):
        inputs, targets = batches(step)
        loss = cross_entropy(own(inputs).flatten(0, 1), targets.flatten())
        grads = dict(zip(moments, torch.autograd.grad(loss, list(own.parameters())), strict=True))
        norm = torch.sqrt(sum((g.double() ** 2).sum() for g in grads.values()))
        with torch.no_grad():
            for name, p in own.named_parameters():
                g = grads[name] * min(1.0, 0.5 / float(norm))
                first, second = moments[name]
                first.mul_(0.9).add_(0.1 * g)
                second.mul_(0.95).add_(0.05 * g * g)
                if p.ndim >= 2:
                    p.mul_(1 - rate * 0.1)
                corrected = (second / (1 - 0.95 ** (step + 1))).sqrt() + 1e-8
                p.sub_(rate * first / (1 - 0.9 ** (step + 1)) / corrected)
    for (name, p), q in zip(own.named_parameters(), model.parameters(), strict=True):
        # where a gradient is all rounding, as that of a key's bias, Adam makes a whole step of it
        assert name.endswith("attention.k.bias") or torch.allclose(p, q, atol=2e-5), name


def test_parts_of_a_batch_add_up_to_the_batch(texts):
    whole, split = tiny(texts), tiny(texts, accumulate=4)
    model, batches = parts(whole)
    inputs, targets = batches(0)
    targets = targets.clone()
    targets[0, 3:] = -100  # a part with fewer targets weighs less
    found = {}
    for config in (whole, split):
        model.zero_grad()
        loss, _ = backward(model, config, inputs, targets)
        found[config.accumulate] = (loss, [p.grad.clone() for p in model.parameters()])
    assert torch.allclose(found[1][0], found[4][0])
    for a, b in zip(found[1][1], found[4][1], strict=True):
        assert torch.allclose(a, b, atol=1e-6)


def test_training_learns_and_all_encodings_start_from_the_same_weights(texts):
    config = tiny(texts, steps=60, learning_rate=1e-2)
    model, batches = parts(config)
    done = fit(model, config, batches)
    assert done.metrics[0]["loss"] > 5.4 and done.metrics[-1]["loss"] < 4.0
    assert done.step == 60 and done.metrics[-1]["tokens"] == 60 * 64 and done.stopped_early is None
    others = [make_model(tiny(texts, name)) for name in ("alibi", "kerple", {"name": "learned"})]
    for other in others:
        assert torch.equal(other.blocks[0].attention.q.weight, make_model(config).blocks[0].attention.q.weight)
    assert parameters(others[2]) == {"all": parameters(others[0])["all"] + 256, "encoding": 256}


def test_stages_follow_one_another_and_no_row_mixes_two(texts, monkeypatch):
    monkeypatch.setattr(train, "ROWS", 4)
    config = tiny(texts, stages=((16, 4, 7), (8, 2, 5)))
    model, batches = parts(config)
    rows = fit(model, config, batches).metrics
    assert [(row["step"], row["stage"]) for row in rows] == [(3, 0), (6, 0), (7, 0), (9, 1), (12, 1)]
    assert rows[-1]["tokens"] == 7 * 64 + 5 * 16


def test_autocast_and_compile_are_used_where_asked(texts, monkeypatch):
    config = tiny(texts, steps=3, precision="bfloat16", compile=True)
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda model: compiled.append(model) or model)
    model, batches = parts(config)
    seen = []
    model.norm.register_forward_hook(lambda module, args, out: seen.append(torch.is_autocast_enabled("cpu")))
    fit(model, config, batches)
    assert compiled == [model] and all(seen) and len(seen) >= 3


# -- what is watched --------------------------------------------------------------------------------------------------


def test_gradient_norms_by_part_are_those_of_their_parameters(texts):
    config = tiny(texts, {"name": "learned"})
    model, batches = parts(config)
    inputs, targets = batches(0)
    cross_entropy(model(inputs).flatten(0, 1), targets.flatten()).backward()
    norms = gradient_norms(model)
    assert tuple(norms) == tuple(group for group in GROUPS if group != "head")  # logits are read off the embeddings
    total = math.sqrt(sum(norm**2 for norm in norms.values()))
    assert total == pytest.approx(math.sqrt(sum(float((p.grad**2).sum()) for p in model.parameters())), rel=1e-5)
    assert norms["embeddings"] == pytest.approx(float(model.embed.weight.grad.norm()), rel=1e-5)
    assert norms["encoding"] == pytest.approx(float(model.plan[0].table.grad.norm()), rel=1e-5)
    norm_parts = [p.grad for name, p in model.named_parameters() if "norm" in name]
    assert len(norm_parts) == 6
    assert norms["norm"] == pytest.approx(math.sqrt(sum(float((g**2).sum()) for g in norm_parts)), rel=1e-5)


def test_entropy_of_even_attention_is_the_mean_log_of_what_is_seen(texts):
    model = make_model(tiny(texts, "none", layers=2))
    with torch.no_grad():
        for block in model.blocks:
            block.attention.q.weight.zero_()
            block.attention.q.bias.zero_()
    tokens = torch.randint(256, (4, 16))
    expected = sum(math.log(n) for n in range(1, 17)) / 16
    assert attention_entropy(model, tokens) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", ["rope", "alibi", "forgetting_gate", "rerope"])
def test_watching_draws_nothing_and_leaves_no_hook(texts, name):
    model = make_model(tiny(texts, name if name != "rerope" else {"name": "rerope", "window": 8}))
    tokens = torch.randint(256, (4, 16))
    state, logits = torch.get_rng_state(), model(tokens)
    entropy = attention_entropy(model, tokens)
    assert 0 < entropy < math.log(16)
    assert torch.equal(torch.get_rng_state(), state) and torch.equal(model(tokens), logits)
    assert not model.blocks[0].attention._forward_pre_hooks


def test_metrics_have_every_column_and_events_hold_the_same(texts, tmp_path):
    config = tiny(texts, steps=4)
    model, batches = parts(config)
    heard = []
    fit(model, config, batches, tmp_path, tell=heard.append, tensorboard=True)
    rows = [json.loads(line) for line in (tmp_path / METRICS).read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3, 4] == [event["step"] for event in heard]
    for row in rows:
        assert row["bits_per_byte"] == pytest.approx(row["loss"] / math.log(2))
        assert row["gradient_norm"] == pytest.approx(
            math.sqrt(sum(n**2 for n in row["gradient_norms"].values())), rel=1e-4
        )
        assert set(row) == {
            "step", "stage", "tokens", "loss", "bits_per_byte", "accuracy", "learning_rate", "gradient_norm",
            "gradient_norms", "attention_entropy", "tokens_per_second",
        }  # fmt: skip
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "events"))
    events.Reload()
    assert [e.value for e in events.Scalars("loss")] == pytest.approx([row["loss"] for row in rows])
    assert "gradient_norms/attention" in events.Tags()["scalars"]


# -- stopping and going on --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["rope", {"name": "t5", "buckets": 4, "max_distance": 8}])
@pytest.mark.parametrize("stopped", [1, 5, 11])
def test_a_run_taken_up_again_is_bit_for_bit_the_run_undisturbed(texts, tmp_path, encoding, stopped):
    config = tiny(texts, encoding, steps=12, stages=((16, 4, 7), (8, 4, 5)))
    model, batches = parts(config)
    whole = fit(model, config, batches, _folder(tmp_path / "whole"))
    folder = _folder(tmp_path / "stopped")
    with pytest.raises(Stop):
        fit(*_new(config), folder, save_seconds=0.0, tell=stop_at(stopped + 1))
    assert (folder / CHECKPOINT).exists() and read_checkpoint(folder).step == stopped
    assert read_metrics(folder)[-1]["step"] == stopped + 1  # logged, but not saved: to be done again
    torch.manual_seed(99)  # whatever else has been drawn in the meantime
    again, config, batches = _new(config)
    done = fit(again, config, batches, folder)
    for (name, p), q in zip(model.named_parameters(), again.named_parameters(), strict=True):
        assert torch.equal(p, q[1]), name
    assert lasting(done.metrics) == lasting(whole.metrics) == lasting(read_metrics(folder))


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


def _new(config):
    model, batches = parts(config)
    return model, config, batches


def test_a_finished_training_is_not_done_again(texts, tmp_path):
    config = tiny(texts)
    model, batches = parts(config)
    fit(model, config, batches, tmp_path)
    again, _ = parts(config)
    done = fit(again, config, lambda step: pytest.fail("trained again"), tmp_path)
    assert done.step == config.steps and torch.equal(again.embed.weight, model.embed.weight)


def test_a_loss_that_is_no_number_stops_the_run_and_spares_the_checkpoint(texts, tmp_path):
    config = tiny(texts, steps=10)
    model, batches = parts(config)

    def broken(step):
        if step == 6:
            with torch.no_grad():
                model.embed.weight[0, 0] = math.nan
        return batches(step)

    done = fit(model, config, broken, tmp_path, save_seconds=0.0)
    assert done.stopped_early.startswith("the loss is nan at step 7, after 5.")
    assert done.stopped_early.endswith("the step before. Lower learning_rate or lengthen warmup.")
    assert done.step == 6 and done.metrics[-1]["step"] == 6
    saved = read_checkpoint(tmp_path)
    assert saved.step == 6 and all(torch.isfinite(value).all() for value in saved.model.values())


@pytest.mark.parametrize("at", ["save", "replace", "fsync"])
def test_a_write_that_fails_leaves_the_last_checkpoint_whole(texts, tmp_path, monkeypatch, at):
    config = tiny(texts, steps=10)
    calls = {"count": 0}

    def failing(real):
        def call(*args, **kwargs):
            calls["count"] += 1
            if calls["count"] > 3:
                raise OSError(28, "No space left on device")
            return real(*args, **kwargs)

        return call

    import safetensors.torch

    if at == "save":
        monkeypatch.setattr(safetensors.torch, "save_file", failing(safetensors.torch.save_file))
    elif at == "replace":
        monkeypatch.setattr(Path, "replace", failing(Path.replace))
    else:
        monkeypatch.setattr(storage.os, "fsync", failing(storage.os.fsync))
    with pytest.raises(WhorlError, match=r"cannot write .*No space left on device"):
        fit(*_new(config), tmp_path, save_seconds=0.0)
    monkeypatch.undo()
    saved = read_checkpoint(tmp_path)
    assert saved.step == (2 if at == "fsync" else 3)  # a save has two, of the file and then of its folder
    assert not list(tmp_path.glob(".*"))
    model, _, batches = _new(config)
    done = fit(model, config, batches, tmp_path)
    undisturbed, _, _ = _new(config)
    fit(undisturbed, config, batches)
    assert done.step == 10 and torch.equal(undisturbed.embed.weight, model.embed.weight)
