"""What a probe writes down: tensors as bytes, everything else as text, each under a name of its own."""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

RESULTS, VALUES = "results.json", "values.bin"

# What is another at every run, and is not compared: addresses of objects, and folders of this run.
ADDRESS = re.compile(r"0x[0-9a-fA-F]{6,}")


class ProbeFault(BaseException):
    """A mistake of the probe itself, which no guard around a call takes for an answer of whorl."""


@dataclass
class Probe:
    """Where one side of a comparison runs, and what it found so far."""

    folder: Path  # of this side: results and values
    exchange: Path  # of both sides: what the old one writes and both read
    writes: bool  # whether this is the old side
    tests: list[Path]  # folders of tests, of which the first that there is has the configs
    device: str = "cpu"
    group: str = ""
    results: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._values = (self.folder / VALUES).open("wb")

    def add(self, name: str, value: Any) -> None:
        """Keeps a value under this name; the parts of tuples, lists and dicts under names behind it."""
        if isinstance(value, Tensor):
            self._add_tensor(name, value)
        elif isinstance(value, Mapping) and value:
            for key, part in value.items():
                self.add(f"{name}/{key}", part)
        elif isinstance(value, (tuple, list)) and value and any(isinstance(part, (Tensor, tuple)) for part in value):
            for key, part in enumerate(value):
                self.add(f"{name}/{key}", part)
        else:
            self._add_text(name, "text", value if isinstance(value, str) else repr(value))

    @contextmanager
    def guarded(self, name: str) -> Iterator[None]:
        """A context in which randomness starts from the name, and an exception is what comes back under it."""
        torch.manual_seed(seed_of(name))
        try:
            yield
        except Exception as error:
            refused = type(error).__name__ == "WhorlError"
            self._add_text(name, "refusal" if refused else "error", f"{type(error).__name__}: {error}")

    def ask(self, name: str, call: Callable[[], Any]) -> Any:
        """Keeps and returns what a call returns, or keeps its exception and returns None."""
        with self.guarded(name):
            value = call()
            self.add(name, value)
            return value
        return None

    def _add_tensor(self, name: str, value: Tensor) -> None:
        value = value.detach().cpu().contiguous()
        data = value.view(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b""
        place = self._values.tell()
        self._values.write(data)
        kind = {"kind": "tensor", "dtype": str(value.dtype).removeprefix("torch."), "shape": list(value.shape)}
        self._keep(name, kind | {"digest": digest(data), "place": place, "bytes": len(data)})

    def _add_text(self, name: str, kind: str, text: str) -> None:
        for folder in (self.exchange, self.folder):
            text = text.replace(str(folder), "FOLDER")
        text = ADDRESS.sub("ADDRESS", text)
        self._keep(name, {"kind": kind, "text": text, "digest": digest(text.encode())})

    def _keep(self, name: str, result: dict[str, Any]) -> None:
        name = f"{self.group}/{name}"
        if name in self.results or any(mark in name for mark in "*?[:\n"):
            raise ProbeFault(f"{name!r} is taken, or has a mark that files of expected differences give a meaning")
        self.results[name] = result

    def close(self, seconds: dict[str, float]) -> None:
        """Writes the index last, so that a probe that broke off has none."""
        self._values.close()
        (self.folder / RESULTS).write_text(json.dumps({"results": self.results, "seconds": seconds}))


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def seed_of(name: str) -> int:
    """A seed that is the name's own, so that cases left out or added change no other."""
    return zlib.crc32(name.encode())
