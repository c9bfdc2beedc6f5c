"""Copies that pickle makes, in this process and in another one, give the same numbers, with classes of users too."""

import copy
import importlib
import io
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import registry_cases as cases
import whorl

# A module of a user: a scaling, a rotation of its own under the name of whorl's, and an encoding of another kind.
MODULE = """
from typing import ClassVar

import torch

import whorl
from whorl.config import Config, config
from whorl.encodings.rope import RopeConfig
from whorl.rotary.scalings.base import Scaling


@config
class Halved(Scaling):
    name: ClassVar[str] = "halved"
    factor: float = 2.0

    def frequencies(self, ladder, length=None):
        return ladder.frequencies() / self.factor


@config
class ShiftedConfig(RopeConfig):
    def scaled_frequencies(self, length=None):
        return super().scaled_frequencies(length) + 0.5


class Shifted(whorl.Rope):
    Config = ShiftedConfig


@config
class SlopeConfig(Config):
    slope: float = 0.25


class Slope(whorl.Encoding):
    Config = SlopeConfig

    def score_bias(self, q_positions, k_positions, length=None):
        return -self.config.slope * (q_positions[:, None] - k_positions).abs().float()
"""

# Loads what was saved, in a process that has built no encoding, and says what it makes of the same tokens.
PROGRAM = """
import pickle, sys
import torch
import registry_cases as cases
import whorl

with open(sys.argv[1], "rb") as file:
    kept = pickle.load(file)
module = torch.load(sys.argv[2], weights_only=False)
torch.save(([cases.attended(one) for one in kept], cases.attended(module["layer"])), sys.argv[3])
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """The user's module, imported from the disk."""
    (tmp_path / "users_module.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("users_module")
    del sys.modules["users_module"]


def users_encodings(mine):
    """Encodings with a user's classes in every place."""
    scaled = whorl.Rope(head_dim=cases.HEAD_DIM, scaling=mine.Halved())
    return [
        scaled,
        whorl.Rope(head_dim=cases.HEAD_DIM, scaling=whorl.Resonance(inner=mine.Halved())),
        whorl.ReRope(head_dim=cases.HEAD_DIM, scaling=mine.Halved(factor=3.0), window=4),
        whorl.XPos(head_dim=cases.HEAD_DIM, scaling=mine.Halved()),
        mine.Shifted(head_dim=cases.HEAD_DIM),
        mine.Shifted(head_dim=cases.HEAD_DIM, learnable=True),
        mine.Slope(slope=0.5),
        whorl.Combined(scaled, mine.Slope()),
    ]


def in_another_process(tmp_path, encodings, module):
    """What a new process makes of the encodings' pickles and of a module that torch saved."""
    pickled, saved, out = (str(tmp_path / name) for name in ("pickled", "saved", "out"))
    Path(pickled).write_bytes(pickle.dumps(encodings))
    torch.save(module, saved)
    here = [tmp_path, Path(__file__).parents[1], Path(whorl.__file__).parent.parent]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, pickled, saved, out],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, here))},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return torch.load(out)


def test_another_process_gets_the_same_numbers(tmp_path, mine):
    encodings = [cases.build(name) for name in cases.NAMES] + users_encodings(mine)
    module = torch.nn.ModuleDict({"layer": whorl.Rope(head_dim=cases.HEAD_DIM, scaling=mine.Halved())})
    outs, out = in_another_process(tmp_path, encodings, module)
    for encoding, found in zip(encodings, outs, strict=True):
        assert torch.equal(found, cases.attended(encoding)), encoding
    assert torch.equal(out, cases.attended(module["layer"]))


def test_copies_in_this_process_keep_the_class_and_the_numbers(mine):
    for encoding in users_encodings(mine):
        buffer = io.BytesIO()
        torch.save(encoding, buffer)
        buffer.seek(0)
        loaded = torch.load(buffer, weights_only=False)
        for again in (copy.copy(encoding), copy.deepcopy(encoding), pickle.loads(pickle.dumps(encoding)), loaded):
            assert type(again) is type(encoding) and again.config == encoding.config
            assert torch.equal(cases.attended(again), cases.attended(encoding))


def test_scalings_of_one_name_and_one_setting_do_not_share_frequencies(mine):
    """Their configs look the same as text; the one built last gave its frequencies to both."""

    class Quartered(mine.Halved):
        def frequencies(self, ladder, length=None):
            return ladder.frequencies() / self.factor**2

    Quartered.__qualname__ = Quartered.__name__ = "Halved"
    first, second = (whorl.Rope(head_dim=8, scaling=one()) for one in (mine.Halved, Quartered))
    plain = whorl.Rope(head_dim=8).frequencies()
    for _ in range(2):
        assert torch.equal(first.frequencies(), plain / 2) and torch.equal(second.frequencies(), plain / 4)
        first, second = copy.deepcopy(first), copy.deepcopy(second)


def test_a_rotation_under_the_name_of_rope_does_not_give_it_its_frequencies(mine):
    rope, shifted = whorl.Rope(head_dim=8), mine.Shifted(head_dim=8)
    assert torch.equal(shifted.frequencies(), rope.frequencies() + 0.5)


def test_compiled_rotations_of_one_name_stay_apart(mine):
    x, positions = torch.randn(1, 2, 5, 8), torch.arange(5)
    rope, shifted = whorl.Rope(head_dim=8), mine.Shifted(head_dim=8)
    turned = torch.compile(lambda one: one.rotate(x, positions, impl="torch"), backend="eager", fullgraph=True)
    for one in (rope, shifted):
        assert torch.allclose(turned(one), one.rotate(x, positions, impl="torch"))
