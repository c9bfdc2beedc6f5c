"""What the processes of torch's default group tell one another while they train one model."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch.distributed as dist

from whorl.dialects.documents import kind_of
from whorl.lab.storage import CHECKPOINT


def from_first(value: Any) -> Any:
    """What the first process passed, in every process."""
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


@contextlib.contextmanager
def folder_of_first(folder: Path) -> Iterator[Path]:
    """The folder in the first process; in each other one a folder with a copy of its checkpoint, for a while."""
    if dist.get_rank() == 0:
        saved = folder / CHECKPOINT
        from_first(saved.read_bytes() if kind_of(saved, "lab") == "file" else None)
        yield folder
        return
    data = from_first(None)
    with tempfile.TemporaryDirectory() as own:  # the folder may be on another machine
        if data is not None:
            (Path(own) / CHECKPOINT).write_bytes(data)
        yield Path(own)
