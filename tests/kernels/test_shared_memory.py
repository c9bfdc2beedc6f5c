"""Kernels fit the shared memory of smaller cards: compiled with 48, 99 and 227 KB, no kernel takes more."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from whorl.kernels import decode_triton

PROGRAM = Path(__file__).parent / "compiled_sizes.py"
MEMORIES = 48, 99, 227


@pytest.fixture(scope="module")
def taken():
    """Bytes that each kernel takes, by kind and by kilobytes that there are."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    ran = subprocess.run(
        [sys.executable, PROGRAM, *map(str, MEMORIES)], capture_output=True, text=True, env=environment, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


@pytest.mark.parametrize("memory", MEMORIES)
def test_decoding_steps_fit(memory, taken):
    sizes = taken["decode"][str(memory)]
    assert len(sizes) == 9
    assert {name: size for name, size in sizes.items() if size > memory * 1024} == {}


@pytest.mark.parametrize("memory", MEMORIES)
def test_tiles_fit(memory, taken):
    sizes = taken["tiles"][str(memory)]
    assert len(sizes) == 2
    assert {name: size for name, size in sizes.items() if size > memory * 1024} == {}


@pytest.mark.parametrize(
    ("rows", "dim", "dtype", "memory", "refused"),
    [
        (128, 256, torch.float32, 99, True),
        (128, 256, torch.bfloat16, 99, False),
        (128, 128, torch.bfloat16, 48, False),
        (128, 256, torch.bfloat16, 48, True),
        (16, 256, torch.bfloat16, 48, False),
    ],
)
def test_queries_that_leave_no_room_for_keys(rows, dim, dtype, memory, refused):
    assert decode_triton.too_large(rows, dim, dim, dtype, memory * 1024) == refused
