"""Runs groups of the probe on the whorl that PYTHONPATH names, and writes what they found into a folder."""

from __future__ import annotations

import argparse
import time
import warnings
from importlib import import_module
from pathlib import Path

import torch

from probe.recording import Probe, ProbeFault


def main() -> None:
    parser = argparse.ArgumentParser(prog="probe")
    parser.add_argument("--source", type=Path, required=True, help="the folder whorl must come from")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--exchange", type=Path, required=True)
    parser.add_argument("--writes", action="store_true")
    parser.add_argument("--tests", type=Path, action="append", default=[])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("groups", nargs="+")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True, warn_only=True)

    import whorl

    if not Path(whorl.__file__).is_relative_to(given.source):
        raise ProbeFault(f"whorl was imported from {whorl.__file__}, and not from {given.source}")
    if given.device == "cuda" and not torch.cuda.is_available():
        raise ProbeFault("there is no CUDA device here")
    probe = Probe(given.folder, given.exchange, given.writes, given.tests, given.device)
    seconds = {}
    for group in given.groups:
        start, probe.group = time.perf_counter(), group
        import_module(f"probe.{group}").run(probe)
        seconds[group] = time.perf_counter() - start
    probe.close(seconds)


main()
