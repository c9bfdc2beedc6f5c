"""One text over two processes: loss and gradients are those of the whole text in one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
import torch

from whorl.errors import WhorlError
from whorl.lab.context_parallel import gathered_attention
from whorl.models import Decoder
from whorl.position_ids import positions
from whorl.registry import names

# Prints, for every encoding, how far loss and gradients are from those of one process on the whole text.
PROGRAM = """
import json, sys
import torch, torch.distributed as dist
from torch.nn.functional import cross_entropy
from whorl.errors import WhorlError
from whorl.lab.context_parallel import context_parallel_loss, sum_gradients
from whorl.models import Decoder

torch.set_num_threads(1)
rank, place, names = int(sys.argv[1]), sys.argv[2], sys.argv[3].split(",")
dist.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=2)
torch.manual_seed(0)
inputs = torch.randint(256, (2, 16))
targets = torch.cat((inputs[:, 1:], torch.full((2, 1), -100)), dim=1)
targets[0, :5] = -100  # the processes have unequally many that count
found = {}
for name in names:
    torch.manual_seed(1)
    model = Decoder(256, 2, 16, 2, name, length=16, kv_heads=1 if name == "rope" else None)
    for parameter in model.parameters():  # weights of 0.02 would leave attention all but uniform
        parameter.data += 0.3 * torch.randn_like(parameter)
    logits = model(inputs)
    whole = cross_entropy(logits.flatten(0, 1), targets.flatten())
    whole.backward()
    wanted = [one.grad for one in model.parameters()]
    model.zero_grad()
    loss = context_parallel_loss(model, inputs, targets)
    loss.backward()
    partial = max(float((a.grad - b).abs().max()) for a, b in zip(model.parameters(), wanted) if a.grad is not None)
    sum_gradients(model)
    apart = max(float((a.grad - b).abs().max()) for a, b in zip(model.parameters(), wanted))
    assert torch.equal(model(inputs), logits), "the model is not what it was"
    found[name] = abs(loss.item() - whole.item()), apart, partial
try:
    context_parallel_loss(model, inputs[:, :14], targets[:, :14])
except WhorlError as error:
    found["error"] = str(error)
print(json.dumps(found))
dist.destroy_process_group()
"""

SEVERAL_AXES = {"axial_rope", "mixed_rope", "mrope"}
NAMES = [name for name in names() if name not in SEVERAL_AXES]


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> list[dict]:
    """What each of two processes printed."""
    place = tmp_path_factory.mktemp("group") / "store"
    (place.parent / "program.py").write_text(PROGRAM)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, str(place.parent / "program.py"), str(rank), str(place), ",".join(NAMES)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in range(2)
    ]
    try:
        said = [process.communicate(timeout=120) for process in started]
    finally:
        for process in started:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.communicate()
    assert [process.returncode for process in started] == [0, 0], said[0][1] + said[1][1]
    return [json.loads(out) for out, _ in said]


@pytest.mark.parametrize("name", NAMES)
def test_loss_and_gradients_are_those_of_the_whole_text(found, name):
    for one in found:
        loss, gradients, partial = one[name]
        assert loss <= 1e-5 and gradients <= 1e-5
        assert partial > 1e-4  # before they are summed they are of one shard


def test_a_length_that_has_no_equal_shards_is_an_error(found):
    assert "length must be a multiple of 4 for zigzag over 2 ranks, got 14" in found[0]["error"]


def test_what_cannot_be_sharded_is_refused():
    model = Decoder(256, 1, 16, 2, "rope", length=16)
    tokens = torch.zeros(1, 8, dtype=torch.long)
    with gathered_attention(model, positions(8)), pytest.raises(WhorlError, match="key_mask cannot be sharded"):
        model(tokens, key_mask=torch.ones(1, 8, dtype=torch.bool))
    assert "forward" not in vars(model.blocks[0].attention)
    axial = Decoder(256, 1, 16, 2, "axial_rope", length=16)
    with pytest.raises(WhorlError, match="positions of 2 axes"), gathered_attention(axial, positions(8)):
        pass
