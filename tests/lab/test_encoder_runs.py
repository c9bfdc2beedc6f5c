"""Runs of encoders: stopped at any step they go on as if nothing had been, and finished ones are not made again."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from lab_runs import OF_THE_MOMENT
from whorl.errors import WhorlError
from whorl.lab import encoder_runs
from whorl.lab.classify import ClassifyConfig, classify
from whorl.lab.matching import MatchingConfig, match
from whorl.lab.matching_data import Triple
from whorl.lab.mlm import PretrainConfig, pretrain
from whorl.lab.storage import locked, read_checkpoint

SIZES = {"layers": 1, "width": 16}
TRIPLES = [Triple(f"a{i} one two", f"b{i} one two", f"c{i} six", "B" if i % 2 else "C") for i in range(6)]


def matched(**options):
    return match(MatchingConfig(encoding="learned", length=8, steps=7, batch=2, **SIZES), TRIPLES, TRIPLES, **options)


def classified(**options):
    sizes = {"length": 8, "steps": 7, "batch": 2, "train": 12, "test": 8, **SIZES}
    return classify(ClassifyConfig(encoding="shaw", **sizes), **options)


def pretrained(**options):
    settings = PretrainConfig(encoding="learned", stages=[(16, 2, 4), (8, 4, 3)], **SIZES)
    return pretrain(settings, bytes(range(97, 123)) * 8, **options).to_dict()


MAKERS = {"matching": matched, "classify": classified, "pretrain": pretrained}


def lasting(result):
    """A result without what depends on the moment."""
    if isinstance(result, dict):
        moment = {*OF_THE_MOMENT, "test_seconds"}
        return {key: lasting(value) for key, value in result.items() if key not in moment}
    return [lasting(one) for one in result] if isinstance(result, list) else result


class Stop(Exception):  # noqa: N818
    """What a test ends a run with."""


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("stopped", [1, 5])
def test_a_run_taken_up_again_ends_as_the_run_undisturbed(tmp_path, monkeypatch, kind, stopped):
    make = MAKERS[kind]
    whole = make()
    train = encoder_runs.train
    steps: list[int] = []

    def watched(*args, tell=None, **options):
        def hear(event):
            steps.append(event["step"])
            if tell is not None:
                tell(event)
            if steps == list(range(1, stopped + 2)):
                raise Stop

        return train(*args, tell=hear, save_seconds=0.0, **options)

    monkeypatch.setattr(encoder_runs, "train", watched)
    with pytest.raises(Stop):
        make(out=tmp_path)
    (folder,) = (tmp_path / kind).iterdir()
    assert read_checkpoint(folder).step == stopped and not (folder / "result.json").exists()
    torch.manual_seed(99)  # whatever else has been drawn in the meantime
    assert lasting(make(out=tmp_path)) == lasting(whole)
    assert steps == [*range(1, stopped + 2), *range(stopped + 1, 8)]
    assert lasting(make(out=tmp_path)) == lasting(whole) and len(steps) == stopped + 1 + 7 - stopped
    assert list((tmp_path / kind).iterdir()) == [folder]


def test_a_stage_is_told_whole_where_it_was_stopped_in_the_middle(tmp_path, monkeypatch):
    heard, tell = [], []
    train = encoder_runs.train

    def stopping(*args, tell=None, **options):
        def hear(event):
            tell(event)
            if event["step"] == 3:
                raise Stop

        return train(*args, tell=hear, save_seconds=0.0, **options)

    with monkeypatch.context() as patch, pytest.raises(Stop):
        patch.setattr(encoder_runs, "train", stopping)
        pretrained(out=tmp_path, tell=heard.append)
    assert heard == []
    pretrained(out=tmp_path, tell=heard.append)
    pretrained(tell=tell.append)
    assert [(one.loss, one.accuracy, one.gradient_norms) for one in heard] == [
        (one.loss, one.accuracy, one.gradient_norms) for one in tell
    ]


def test_other_data_are_another_run_and_a_run_is_one_process_s(tmp_path):
    settings = MatchingConfig(length=8, steps=1, batch=2, **SIZES)
    make = partial(match, settings, out=tmp_path)
    make(TRIPLES, TRIPLES)
    make(TRIPLES[1:], TRIPLES)
    folders = list((tmp_path / "matching").iterdir())
    assert len(folders) == 2
    for folder in folders:
        (folder / "result.json").unlink()
    with locked(folders[0]), locked(folders[1]), pytest.raises(WhorlError, match="another process works on"):
        make(TRIPLES, TRIPLES)
