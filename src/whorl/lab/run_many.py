"""Many runs: on this machine, several side by side, or on Ray.

Finished runs are not made again, and stopped ones go on from their last checkpoint. Two sweeps on one folder share the
work: a run that the other one has is left to it, and waited for at the end.
"""

from __future__ import annotations

import contextlib
import json
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from whorl import registry
from whorl.errors import WhorlError, check_counts
from whorl.lab.run_one import run_one
from whorl.lab.settings import RunConfig, leaves
from whorl.lab.storage import RESULT, BusyError, check_output, forget_diverged, is_there, read_result, space_needed
from whorl.machine import cores
from whorl.plugins import file_of
from whorl.results import RunResult

Event = dict[str, Any]
Tell = Callable[[RunConfig, Event], None]  # hears of a run: planned, train, evaluate, done, diverged, failed

# Where runs are made, and by what: (configs, out, tell=…, workers=…, **options) -> {id: why it failed}
PLACES = {"here": "whorl.lab.run_many:run_here", "ray": "whorl.lab.run_on_ray:run_on_ray"}


SAVED_WITHIN = 60.0  # seconds that interrupted workers have to save where their runs stand


def run_many(
    configs: Sequence[RunConfig],
    out: str | Path,
    *,
    on: str = "here",
    tell: Tell | None = None,
    workers: int | None = None,
    retry: bool = False,
    **options: Any,
) -> tuple[list[RunResult], dict[str, str]]:
    """The results of runs, in their order, and what kept others from finishing, by id.

    Finished ones are not run again, with ``retry`` those that diverged are; stopped ones go on. ``workers`` runs go
    side by side, one for each core unless given; 1 stays in this process. ``options`` are those of ``run_one``, or of
    Ray with ``on="ray"``.
    """
    check_workers(workers)
    out = Path(out)
    configs = list({config.id: config for config in configs}.values())
    for config in configs if retry else ():
        forget_diverged(out / "runs" / config.id)
    todo = [config for config in configs if not is_there(out / "runs" / config.id / RESULT)]
    check_output(out, sum(space_needed(config) for config in todo))
    for config in configs:
        if config not in todo:
            read_result(out / "runs" / config.id)  # a damaged one is found before others are made
    failed: dict[str, str] = {}
    tell = tell or (lambda config, event: None)
    for config in configs:
        tell(config, {"kind": "planned", "finished": config not in todo})
    if todo:
        more = {} if workers is None else {"workers": workers}
        failed = _runner(on)(configs, out, tell=tell, **more, **options)
    folders = [out / "runs" / config.id for config in configs]
    return [read_result(folder) for folder in folders if is_there(folder / RESULT)], failed


def check_workers(workers: int | None) -> None:
    """Raises a WhorlError for what is no count of runs side by side."""
    if workers is not None:
        check_counts("lab", workers=workers)


def _runner(on: str) -> Callable[..., dict[str, str]]:
    module, name = PLACES[on].split(":")
    try:
        return getattr(import_module(module), name)
    except ImportError as error:
        raise WhorlError(f"lab: on={on!r} cannot run here: {error}. Use --on here.") from None


def run_here(
    configs: Sequence[RunConfig],
    out: Path,
    *,
    tell: Tell,
    workers: int | None = None,
    **options: Any,
) -> dict[str, str]:
    """Makes the runs on this machine, some side by side, and returns why some failed, by id."""
    if workers is None:
        workers = 1 if any(config.device == "cuda" for config in configs) else min(cores(), len(configs))
    # of all runs, finished or not, so that a sweep that is taken up again computes as it did before
    threads = max(1, cores() // min(workers, len(configs)))
    todo = [config for config in configs if not is_there(out / "runs" / config.id / RESULT)]
    todo.sort(key=lambda config: -len(config.repairs))  # the longest first, so that none is left alone at the end
    if workers == 1 or any(_registered_here(config.encoding) for config in todo):
        return _in_turn(todo, out, tell, options)
    return _Workers(out, tell, threads, options).run(todo, workers)


def _registered_here(encoding: dict[str, Any]) -> bool:
    """Whether an encoding is known to this process alone, so that no worker could build it."""
    names = [one["name"] for one in leaves(encoding)]
    return any(isinstance(registry.ENCODINGS.get(name), type) and file_of(name) is None for name in names)


def plugins_of(config: RunConfig) -> list[str]:
    """The files that another process must load to build the encoding of a run."""
    files = (file_of(one["name"]) for one in leaves(config.encoding))
    return list(dict.fromkeys(str(file) for file in files if file is not None))


def _in_turn(todo: Sequence[RunConfig], out: Path, tell: Tell, options: dict[str, Any]) -> dict[str, str]:
    failed: dict[str, str] = {}
    busy: list[RunConfig] = []
    for wait, runs in ((False, todo), (True, busy)):  # those that another sweep has come last, and are waited for
        for config in runs:
            end = attempt(config, out / "runs" / config.id, tell=partial(tell, config), wait=wait, **options)
            if end["kind"] == "busy":
                busy.append(config)
                continue
            if end["kind"] == "failed":
                failed[config.id] = end["message"]
            tell(config, end)
    return failed


def attempt(config: RunConfig, folder: str | Path, **options: Any) -> Event:
    """How making a run ended: done, busy where another process has it, diverged or failed with a message."""
    try:
        result = run_one(config, folder, **options)
    except BusyError:
        return {"kind": "busy"}
    except WhorlError as error:
        return {"kind": "failed", "message": str(error)}
    stopped = result["stopped_early"]
    return {"kind": "done"} if stopped is None else {"kind": "diverged", "message": stopped}


class _Workers:
    """Processes that take runs from one list until it is empty."""

    def __init__(self, out: Path, tell: Tell, threads: int, options: dict[str, Any]) -> None:
        self.out, self.tell, self.threads, self.options = out, tell, threads, options
        self.jobs: queue.Queue[tuple[RunConfig, bool, int]] = queue.Queue()  # the run, whether to wait, tries left
        self.heard: queue.Queue[tuple[RunConfig, Event] | None] = queue.Queue()
        self.failed: dict[str, str] = {}
        self.processes: list[subprocess.Popen[str]] = []
        self.stopping = False

    def run(self, todo: Sequence[RunConfig], workers: int) -> dict[str, str]:
        for config in todo:
            self.jobs.put((config, False, 2))
        threads = [threading.Thread(target=self._serve, daemon=True) for _ in range(min(workers, len(todo)))]
        for thread in threads:
            thread.start()
        left = len(threads)
        try:
            while left:
                item = self.heard.get()
                if item is None:
                    left -= 1
                else:
                    self.tell(*item)
        except KeyboardInterrupt:
            self._interrupt()
            raise
        finally:
            self.stopping = True
            for process in list(self.processes):
                _end(process)
        return self.failed

    def _interrupt(self) -> None:
        """Hands Ctrl-C on to the workers and waits until each has saved where its run stands."""
        self.stopping = True
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGINT)
        until = time.monotonic() + SAVED_WITHIN
        for process in self.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))

    def _serve(self) -> None:
        """One worker's life, in a thread of the sweep."""
        process = None
        with tempfile.TemporaryFile("w+") as complaints:
            while not self.stopping:
                try:
                    config, wait, tries = self.jobs.get_nowait()
                except queue.Empty:
                    break
                if process is not None and process.poll() is not None:
                    _end(process)
                    process = None
                if process is None:
                    process = self._start(complaints)
                end = self._make(process, config, wait)
                if self.stopping:
                    break
                if end["kind"] == "busy":
                    self.jobs.put((config, True, tries))
                    continue
                if end["kind"] == "died" and tries > 1:  # it goes on where it had saved
                    self.jobs.put((config, wait, tries - 1))
                    continue
                if end["kind"] == "died":
                    complaints.seek(0)
                    end = {"kind": "failed", "message": f"its process died. {complaints.read()[-2000:]}".strip()}
                if end["kind"] == "failed":
                    self.failed[config.id] = end["message"]
                self.heard.put((config, end))
            if process is not None:
                _end(process)
        self.heard.put(None)

    def _start(self, complaints: Any) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "whorl.lab.run_worker", str(self.threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
            text=True,
            start_new_session=True,  # an interrupt is for the sweep, which then ends its workers
        )
        self.processes.append(process)
        return process

    def _make(self, process: subprocess.Popen[str], config: RunConfig, wait: bool) -> Event:
        """How a run ended: done, busy, diverged, failed, or died with its process."""
        folder = str(self.out / "runs" / config.id)
        job = {"config": config.to_dict(), "folder": folder, "options": {**self.options, "wait": wait}}
        job["plugins"] = plugins_of(config)
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(json.dumps(job) + "\n")
            process.stdin.flush()
            for line in process.stdout:
                said = json.loads(line)
                if said["kind"] != "event":
                    return said
                self.heard.put((config, said["event"]))
        except (BrokenPipeError, ValueError):
            pass
        process.wait()
        return {"kind": "died"}


def _end(process: subprocess.Popen[str]) -> None:
    """Ends a worker and closes what led to it."""
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):  # a job that it never read
                pipe.close()
