"""What version 0.1.0 wrote is read: settings, parameters, pickles, and run folders, which go on where they stood.

The files are in ``files_of_0_1``, made there by the code of that version (``make.py`` says how).
"""

import json
import shutil
from pathlib import Path

import pytest
import torch

import whorl
import whorl.lab
from files_of_0_1.make import attended
from whorl.lab.storage import read_config, read_result

HOME = Path(__file__).parent / "files_of_0_1"
CONFIGS = json.loads((HOME / "configs.json").read_text())
RUNS = json.loads((HOME / "runs.json").read_text())

# T5's far buckets are past the trained length, as they were then.
pytestmark = pytest.mark.filterwarnings("ignore:T5:UserWarning")


def kept(name):
    return torch.load(HOME / name, weights_only=name != "modules.pt")


def same(found, wanted):
    torch.testing.assert_close(found, wanted, rtol=0, atol=2e-6)


def test_every_encoding_of_that_version_is_here():
    assert len(CONFIGS) == 31 and set(CONFIGS) - set(whorl.names()) == {
        *("rope linear", "rope yarn", "rope longrope", "rope llama3", "rope+alibi"),
    }


@pytest.mark.parametrize("name", CONFIGS)
def test_settings_and_parameters_give_the_same_numbers(name):
    encoding = whorl.from_dict(CONFIGS[name])
    encoding.load_state_dict(kept("parameters.pt")[name])
    same(attended(encoding), kept("outputs.pt")[name])
    now = encoding.config.to_dict()
    assert {key: now[key] for key in CONFIGS[name]} == CONFIGS[name]


def test_pickles_give_the_same_numbers():
    outputs, modules = kept("outputs.pt"), kept("modules.pt")
    assert list(modules) == list(CONFIGS)
    for name, encoding in modules.items():
        same(attended(encoding), outputs[name])
        assert encoding.config == whorl.from_dict(CONFIGS[name]).config


@pytest.fixture
def runs(tmp_path):
    """The run folders, copied."""
    return shutil.copytree(HOME / "lab", tmp_path / "lab") / "runs"


def test_a_finished_run_is_read_and_not_made_again(runs):
    folder = runs / RUNS["finished"]
    config = read_config(folder)
    assert config.id == folder.name  # the same run under the same name
    before = (folder / "result.json").read_bytes()
    found = whorl.lab.run_one(config, folder)
    assert found["id"] == config.id and found == read_result(folder).to_dict()
    assert (folder / "result.json").read_bytes() == before
    same(whorl.lab.load(folder).model(torch.arange(12)[None] + 97).detach(), kept("logits.pt"))


def test_a_run_that_was_broken_off_goes_on(runs):
    folder = runs / RUNS["begun"]
    config, heard = read_config(folder), []
    assert config.id == folder.name
    found = whorl.lab.run_one(config, folder, tell=heard.append)
    assert [event["step"] for event in heard if event["kind"] == "train"] == [4, 5, 6]
    assert found["final_train_loss"] == pytest.approx(RUNS["final_train_loss"], abs=1e-5)
