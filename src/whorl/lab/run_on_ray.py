"""The runs of a sweep on Ray: one task per run with its CPUs or GPU, wherever the cluster has room.

A task whose worker dies is started again by Ray and goes on from the run's last checkpoint. Folders of runs are the
contract here too: OUT and plugins are paths that every node reaches, and whorl is installed on every node. What happens
in a run is told to one small actor, which the caller listens to.

configs ─► one task each ─► run_one in its folder ─► events ─► actor ─► tell
"""

from __future__ import annotations

import os
import socket
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from whorl import WhorlError
from whorl.lab.run_many import Event, Tell, attempt, plugins_of
from whorl.lab.settings import RunConfig
from whorl.lab.storage import RESULT, is_there
from whorl.machine import cores
from whorl.plugins import load_plugin

RETRIES = 3  # of a run whose worker dies
LISTEN_SECONDS = 0.5
STORE_BYTES = 80 * 2**20  # of the object store of a cluster of our own: runs are in folders, not in it


def run_on_ray(
    configs: Sequence[RunConfig],
    out: Path,
    *,
    tell: Tell,
    workers: int | None = None,
    address: str | None = None,
    **options: Any,
) -> dict[str, str]:
    """Makes the runs that are not finished on a Ray cluster and returns why some failed, by id.

    ``address`` is that of a running cluster, "auto" for the one of this machine; without one, and without RAY_ADDRESS,
    a cluster of this machine is started and stopped again. A run takes one CPU, or with ``workers`` the cluster's CPUs
    by so many, and a GPU where it is on CUDA. ``options`` are those of ``run_one``.
    """
    todo = [config for config in configs if not is_there(out / "runs" / config.id / RESULT)]
    with cluster(address) as ray:
        there = max(1, int(ray.cluster_resources().get("CPU", 1)))
        cpus = max(1, there // min(workers, len(todo))) if workers else 1
        return _Sweep(ray, out, tell, cpus, options).run(todo)


@contextmanager
def cluster(address: str | None = None) -> Iterator[Any]:
    """Ray, connected: to a cluster that runs, or to one of this machine that ends with the block."""
    try:
        import ray
    except ImportError:
        raise WhorlError("lab: on='ray' cannot run here: Ray is not installed. Run: pip install 'ray>=2.40'.") from None
    if ray.is_initialized():  # the caller's own, and left to it
        yield ray
        return
    address = address or os.environ.get("RAY_ADDRESS")
    _check_address(address)
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        if address:
            ray.init(address=address, **quiet)
        else:
            ray.init(
                address="local", num_cpus=cores(), include_dashboard=False, object_store_memory=STORE_BYTES, **quiet
            )
    except (ConnectionError, ValueError, RuntimeError) as error:
        where = f"join the Ray cluster at {address}" if address else "start a Ray cluster on this machine"
        raise WhorlError(f"lab: cannot {where}: {error}") from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_address(address: str | None) -> None:
    """Raises a WhorlError where nothing answers, which Ray itself would take minutes to say."""
    host, colon, port = (address or "").removeprefix("ray://").rpartition(":")
    if not colon:
        return
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except (OSError, ValueError) as error:
        raise WhorlError(f"lab: no Ray cluster at {address}: {error}. Start one with: ray start --head.") from None


class _Sweep:
    """Tasks on their way, and what is heard of them."""

    def __init__(self, ray: Any, out: Path, tell: Tell, cpus: int, options: dict[str, Any]) -> None:
        self.ray, self.out, self.tell, self.cpus, self.options = ray, out.absolute(), tell, cpus, options
        self.mailbox = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(_Mailbox).remote()
        self.task = ray.remote(max_retries=RETRIES)(_make)
        self.tasks: dict[Any, RunConfig] = {}
        self.failed: dict[str, str] = {}

    def run(self, todo: Sequence[RunConfig]) -> dict[str, str]:
        configs = {config.id: config for config in todo}
        for config in todo:
            self._start(config, wait=False)
        try:
            while self.tasks:
                done, _ = self.ray.wait(list(self.tasks), timeout=LISTEN_SECONDS)
                for run, event in self.ray.get(self.mailbox.take.remote()):
                    self.tell(configs[run], event)
                for one in done:
                    self._end(one, self.tasks.pop(one))
        finally:
            for one in self.tasks:  # where the caller was interrupted
                self.ray.cancel(one, force=True)
            self.ray.kill(self.mailbox)
        return self.failed

    def _start(self, config: RunConfig, *, wait: bool) -> None:
        task = self.task.options(num_cpus=self.cpus, num_gpus=1 if config.device == "cuda" else 0)
        folder = str(self.out / "runs" / config.id)
        options = {**self.options, "wait": wait}
        job = task.remote(config.to_dict(), plugins_of(config), folder, options, self.cpus, self.mailbox)
        self.tasks[job] = config

    def _end(self, job: Any, config: RunConfig) -> None:
        try:
            end: Event = self.ray.get(job)
        except self.ray.exceptions.RayError as error:
            end = {"kind": "failed", "message": f"its worker died {RETRIES + 1} times. {error}"}
        if end["kind"] == "busy":  # another sweep has it: after everything else, its end is waited for
            self._start(config, wait=True)
            return
        if end["kind"] == "failed":
            self.failed[config.id] = end["message"]
        self.tell(config, end)


def _make(
    config: dict[str, Any], plugins: list[str], folder: str, options: dict[str, Any], cpus: int, mailbox: Any
) -> Event:
    """Makes one run, in a worker of Ray; how it ended."""
    import torch

    torch.set_num_threads(cpus)
    where = {"host": socket.gethostname(), "process": os.getpid()}
    for file in plugins:
        load_plugin(file)
    found = RunConfig.from_dict(config)
    last = 0.0

    def tell(event: Event) -> None:
        nonlocal last
        if event["kind"] != "train" or event["step"] == event["steps"] or time.monotonic() - last >= LISTEN_SECONDS:
            mailbox.put.remote(found.id, {**event, **where})
            last = time.monotonic()

    try:
        return attempt(found, folder, tell=tell, **options) | where
    except Exception:
        return {"kind": "failed", "message": traceback.format_exc()}


class _Mailbox:
    """Events of runs, kept until the sweep takes them."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Event]] = []

    def put(self, run: str, event: Event) -> None:
        self.events.append((run, event))

    def take(self) -> list[tuple[str, Event]]:
        events, self.events = self.events, []
        return events
