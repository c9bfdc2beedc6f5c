"""The run folder, which is the contract between everything that makes runs and everything that reads them.

    OUT/runs/<id>/config.json              the RunConfig; its hash is the id
                  environment.json         the machine and the versions
                  metrics.jsonl            one object per logged step
                  checkpoint.safetensors   weights, optimizer, random state; its step in the metadata
                  result.json              written last: where it is, the run is finished
                  lock                     held while a process works on the run
Every file is written beside its place and moved there when it is safe on disk, so whatever is there is whole.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from whorl import Config, WhorlError
from whorl.dialects.documents import kind_of, open_at_once, parse_json, read_whole, size_of, value_of
from whorl.errors import dtype_name, is_finite_number, printable, shown
from whorl.lab.settings import RunConfig
from whorl.machine import load, machine_facts
from whorl.result_shapes import Has, misfit
from whorl.results import LARGEST, RunResult

CONFIG, ENVIRONMENT, METRICS = "config.json", "environment.json", "metrics.jsonl"
CHECKPOINT, RESULT, LOCK = "checkpoint.safetensors", "result.json", "lock"
MAKE_ANEW = "Delete it, and repeat the command that made it."
ANOTHER_OUT = "Choose another --out."
BEGIN_ANEW = "Delete it, and the run begins anew."
NOTHING = torch.empty(0)
STATE = ("step", "exp_avg", "exp_avg_sq")  # what AdamW keeps for a parameter
ROW = ("step", "stage", "tokens", "loss", "accuracy")  # the numbers that every row of metrics has


class BusyError(WhorlError):
    """Another process works on the run."""


@dataclass(frozen=True)
class Checkpoint:
    """Where a run stands: the update it has done, its weights, its optimizer's state and seconds spent so far.

    ``pending`` are the losses of updates that no row of metrics holds yet.
    """

    step: int
    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    random: Tensor
    pending: Tensor
    seconds: float


def check_output(out: Path, needed_bytes: int) -> None:
    """Raises a WhorlError where runs cannot be kept under ``out``; writes nothing."""
    out = Path(out)
    there = _nearest(out)
    places = (there, out / "runs", out / "corpus")
    files = [place for place in places if kind_of(place, "lab", ANOTHER_OUT) not in (None, "folder")]
    if files:
        raise WhorlError(f"lab: {files[0]} is a file, and runs are kept in a folder. Choose another --out.")
    if not os.access(there, os.W_OK | os.X_OK) or os.statvfs(there).f_flag & os.ST_RDONLY:
        raise WhorlError(f"lab: cannot write to {there}. Choose another --out.")
    free = shutil.disk_usage(there).free
    if free < needed_bytes:
        raise WhorlError(
            f"lab: {there} has {free / 2**20:,.0f} MiB free and the runs need about {needed_bytes / 2**20:,.0f}. "
            "Free some space, or choose another --out."
        )


def _nearest(out: Path) -> Path:
    """The path, or the nearest folder above it that exists."""
    while kind_of(out, "lab", ANOTHER_OUT) is None and out != out.parent:
        if out.is_symlink():
            raise WhorlError(f"lab: {out} is a link that leads nowhere. Choose another --out.")
        out = out.parent
    return out


def space_needed(config: RunConfig) -> int:
    """About how many bytes the folder of a run takes at its fullest: two checkpoints with the optimizer, fine-tuned
    models, and logs.
    """
    weights = config.layers * 12 * config.width**2 + 2 * config.vocab * config.width
    tuned = 1 + len(config.repairs) if config.fine_tune_steps else 0  # kept until all are scored
    return (2 * 3 + tuned) * 4 * weights + 2**20


@contextlib.contextmanager
def locked(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Holds the run for this process; raises BusyError where another holds it, unless told to wait."""
    import fcntl  # which Windows does not have

    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = open(folder / LOCK, "a", encoding="utf-8", opener=open_at_once)  # noqa: SIM115  # closed below
    except OSError as error:
        raise WhorlError(f"lab: cannot write to {folder}: {error.strerror}. Choose another --out.") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise BusyError(f"lab: another process works on {folder}. Wait for it, or choose another --out.") from None
        yield  # the system lets go of it when the process ends, however it ends


def make_once(
    folder: Path, config: Config, make: Callable[[], dict[str, Any]], *, device: str = "cpu", wait: bool = False
) -> None:
    """Makes the result of a run and writes it, unless it is there; one process at a time does (``locked``)."""
    if is_there(folder / RESULT):
        return
    with locked(folder, wait=wait):
        if not is_there(folder / RESULT):  # another process may have finished it while this one waited
            begin(folder, config, device)
            write_json(folder / RESULT, make())


def begin(folder: Path, config: Config, device: str = "cpu") -> None:
    """Makes a locked folder ready for a run: leftovers cleared, its config and the machine written down."""
    for left in folder.glob(".*"):  # what a killed process was writing when it died, safetensors' own files among it
        if kind_of(left, "lab") != "folder":  # which is somebody else's, as .ipynb_checkpoints
            remove(left)
    write_json(folder / CONFIG, config.to_dict())
    write_json(folder / ENVIRONMENT, environment(device))


def remove(path: Path) -> None:
    """Deletes a file, where there is one."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise WhorlError(f"lab: cannot delete {path}: {error.strerror}. Delete it, and repeat the command.") from None


def write_atomic(path: Path, data: bytes) -> None:
    """Writes a file whole or not at all."""
    _replace(path, lambda made: made.write_bytes(data))


def write_json(path: Path, data: Any) -> None:
    """Writes JSON whole or not at all."""
    text = json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False)
    write_atomic(path, (printable(text, lines=True) + "\n").encode())


def is_there(path: Path) -> bool:
    """Whether a path names anything; a WhorlError where that cannot be told."""
    return kind_of(path, "lab") is not None


def read_json(path: Path) -> Any:
    """What a JSON file of the lab holds; one that is damaged raises a WhorlError."""

    def refuse(why: str) -> NoReturn:
        raise WhorlError(f"lab: {path} is damaged: {why}. {MAKE_ANEW}")

    return value_of(read_whole(path, "the lab", at_most=LARGEST, call="lab", remedy=MAKE_ANEW), refuse)


def read_made(folder: Path, shape: Has) -> dict[str, Any]:
    """The result that ``make_once`` left in a folder; a WhorlError where it has not this shape."""
    data = read_json(folder / RESULT)
    why = misfit(data, shape, "it")
    if why is not None:
        raise WhorlError(f"lab: {folder / RESULT} is no result of a run: {why}. {MAKE_ANEW}")
    return data


def read_config(folder: Path) -> RunConfig:
    """The config of the run in a folder."""
    data = read_json(folder / CONFIG)
    try:
        return RunConfig.from_dict(data)
    except (TypeError, ValueError) as error:
        raise WhorlError(f"lab: {folder / CONFIG} is no config of a run: {error} {MAKE_ANEW}") from None


def read_result(folder: Path) -> RunResult:
    """The result of the finished run in a folder."""
    data = read_json(folder / RESULT)
    try:
        found = RunResult.of(data)
        # all of its config but what may be of an encoding that is not at hand
        RunConfig.from_dict({**found.config, "encoding": {"name": "none"}, "repairs": ()})
        return found
    except (WhorlError, TypeError, ValueError) as error:
        raise WhorlError(f"lab: {folder / RESULT} is no result of a run: {error} {MAKE_ANEW}") from None


def forget_diverged(folder: Path) -> None:
    """Clears a run whose loss was no number, so that it is made anew; any other is left as it is."""
    if is_there(folder / RESULT) and read_result(folder).stopped_early is not None:
        with locked(folder):
            for name in (RESULT, CHECKPOINT, METRICS):
                remove(folder / name)


def replace_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Writes a file beside its place and moves it there once it is safe on disk; an OSError is passed on."""
    made = path.with_name(f".{path.name}-{secrets.token_hex(6)}")
    try:
        made.touch()
        mode = made.stat().st_mode
        write(made)
        made.chmod(mode)  # safetensors leaves its files to their owner alone
        with made.open("rb") as file:
            os.fsync(file.fileno())
        made.replace(path)
        home = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(home)
        finally:
            os.close(home)
    finally:
        with contextlib.suppress(OSError):  # moved away, or the reason is told already
            made.unlink()


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    try:
        replace_whole(path, write)
    except OSError as error:
        raise WhorlError(
            f"lab: cannot write {path}: {error.strerror or error}. "
            "What was saved before it is whole: once it can be written, the same command goes on from there."
        ) from error


@contextlib.contextmanager
def whole_folder(place: Path, what: str, proof: str = "") -> Iterator[Path]:
    """A temporary folder to write ``what`` into, which is moved to ``place`` at the end.

    An OSError is passed over where ``proof`` exists by then, a file in ``place`` or the folder itself: another process
    has written the same bytes before.
    """
    made = None
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))
        yield made
        made.rename(place)
    except OSError as error:
        if not is_there(place / proof):
            raise WhorlError(
                f"lab: cannot write {what} to {place.parent}: {error.strerror or error}. "
                "Free some space, or choose another --out."
            ) from error
    finally:
        if made is not None:
            shutil.rmtree(made, ignore_errors=True)


def write_checkpoint(
    folder: Path,
    step: int,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None,
    seconds: float,
    pending: Sequence[Tensor] = (),
) -> None:
    """Saves where a run stands. Without an optimizer it is the trained model, from which no training goes on."""
    tensors = {f"model.{name}": value.detach().contiguous() for name, value in model.state_dict().items()}
    if optimizer is not None:
        for name, parameter in model.named_parameters():
            state = optimizer.state.get(parameter, {})
            tensors |= {f"optimizer.{name}.{key}": value.contiguous() for key, value in state.items()}
    tensors["random"] = torch.get_rng_state()
    if pending:
        tensors["pending"] = torch.stack(list(pending))
    metadata = {"step": str(step), "seconds": repr(seconds)}
    _replace(folder / CHECKPOINT, lambda made: _save_tensors(made, tensors, metadata))


def _save_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file(tensors, path, metadata=metadata)
    except SafetensorError as error:  # which is what a full disk is to it
        raise OSError(str(error)) from error


def read_checkpoint(folder: Path, *, device: str = "cpu") -> Checkpoint:
    """What ``write_checkpoint`` saved; a file that is damaged raises a WhorlError."""
    from safetensors import SafetensorError, safe_open

    size_of(folder / CHECKPOINT, "lab", BEGIN_ANEW)  # which refuses what is no file
    parts: dict[str, dict[str, Tensor]] = {"model": {}, "optimizer": {}, "random": {}, "pending": {}}
    try:
        with safe_open(folder / CHECKPOINT, framework="pt", device=device) as file:
            metadata = file.metadata()
            for name in file.keys():  # noqa: SIM118  # it is no dict
                part, _, rest = name.partition(".")
                parts[part][rest] = file.get_tensor(name)
        step, seconds, pending = int(metadata["step"]), float(metadata["seconds"]), parts["pending"].get("", NOTHING)
        if step < 0 or not 0 <= seconds < math.inf or pending.ndim != 1 or not pending.is_floating_point():
            raise ValueError("its step, its seconds or its pending losses are none")
        random = parts["random"][""].cpu()
        torch.Generator().set_state(random)  # raises for what is no state
        return Checkpoint(step, parts["model"], parts["optimizer"], random, pending, seconds)
    except (SafetensorError, OSError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise WhorlError(f"lab: {folder / CHECKPOINT} is damaged: {error}. {BEGIN_ANEW}") from error


def check_weights(folder: Path, wanted: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> None:
    """Raises a WhorlError unless the weights of a checkpoint are those that its config asks for, each of its shape."""
    for name in sorted(wanted.keys() | saved.keys()):
        own, found = (tuple(one[name].shape) if name in one else None for one in (wanted, saved))
        if own != found or not saved[name].is_floating_point():
            raise WhorlError(
                f"lab: {folder / CHECKPOINT} does not belong to the config beside it. {shown(name)} is "
                f"{'missing' if found is None else f'{dtype_name(saved[name].dtype)} of shape {found}'} in it, where "
                f"the config asks for {'no such weight' if own is None else f'floating numbers of shape {own}'}. "
                f"{BEGIN_ANEW}"
            )


def check_optimizer(folder: Path, parameters: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> None:
    """Raises a WhorlError unless the optimizer's state in a checkpoint is that of AdamW for these parameters."""
    wanted = {}
    for key in saved:
        name, _, part = key.rpartition(".")
        if name in parameters and part in STATE:
            wanted |= {f"{name}.{one}": parameters[name] if one != "step" else NOTHING.sum() for one in STATE}
    check_weights(folder, wanted, saved)


def read_metrics(folder: Path, *, until: int | None = None) -> list[dict[str, Any]]:
    """The logged steps of a run, up to ``until``; a line that a dying process left unfinished is no row."""
    path = folder / METRICS
    rows = []
    data = read_whole(path, "the lab", at_most=LARGEST, call="lab", remedy=BEGIN_ANEW) if is_there(path) else b""
    for line in data.splitlines():
        try:
            row = parse_json(line, METRICS)
        except WhorlError:
            break
        if not all(is_finite_number(row.get(name)) for name in ROW) or (until is not None and row["step"] > until):
            break
        rows.append(row)
    return rows


def environment(device: str = "cpu") -> dict[str, Any]:
    """What numbers depend on beside the config; a graphics card only where the run is on one."""
    facts = machine_facts()
    return {**facts, "gpu": facts["gpu"] if device == "cuda" else None, "load": load()}


class PeakMemory:
    """The most memory in use since it was made: of the process on the CPU, of the allocator on a CUDA device."""

    def __init__(self, device: str) -> None:
        self.device = device
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        else:
            with contextlib.suppress(OSError):  # Linux alone can forget an old peak
                Path("/proc/self/clear_refs").write_text("5")

    def bytes(self) -> int:
        """The peak so far."""
        if self.device == "cuda":
            return torch.cuda.max_memory_allocated()
        status = Path("/proc/self/status")
        for line in status.read_text().splitlines() if status.exists() else []:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
