"""What the tests of the lab share: a small text, and runs so small that they take a fraction of a second."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from whorl.lab.corpus import read_corpus
from whorl.lab.settings import RunConfig
from whorl.results import RunResult

SIZES: dict[str, Any] = {"layers": 1, "width": 16, "heads": 2, "eval_bytes": 512}
LENGTHS = (8, 16, 32, 64)

# Settings of a result that depend on the machine and the moment.
OF_THE_MOMENT = {
    "environment",
    "evaluate_seconds",
    "peak_memory_bytes",
    "seconds",
    "tokens_per_second",
    "train_seconds",
}


def write_texts(folder: Path, *, files: int = 12, size: int = 2000, seed: int = 0) -> Path:
    """A folder of files of made-up words."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(seed)
    words = ["".join(draw.choices("abcdefgh", k=draw.randint(2, 6))) for _ in range(40)]
    for number in range(files):
        text = " ".join(draw.choices(words, k=size // 4))[:size]
        (folder / f"{number}.txt").write_text(text)
    return folder


def tiny(texts: Path, encoding: dict[str, Any] | str = "rope", *, steps: int = 6, **settings: Any) -> RunConfig:
    """The config of a tiny run on those texts."""
    known = {
        **SIZES,
        "encoding": {"name": encoding} if isinstance(encoding, str) else encoding,
        "corpus": str(texts),
        "corpus_digest": read_corpus(str(texts)).digest,
        "stages": ((16, 4, steps),),
        "lengths": LENGTHS,
    }
    return RunConfig(**known | settings)


def lasting(result: Any) -> Any:
    """A result without what depends on the machine and the moment."""
    if isinstance(result, RunResult):
        return lasting(result.to_dict())
    if isinstance(result, dict):
        return {key: lasting(value) for key, value in result.items() if key not in OF_THE_MOMENT}
    return [lasting(one) for one in result] if isinstance(result, list) else result


def run_group(words: list[Any], environment: dict[str, str], *, timeout: float) -> subprocess.CompletedProcess[str]:
    """What Python said to these words; neither it nor what it started outlives the call."""
    with subprocess.Popen(
        [sys.executable, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)
