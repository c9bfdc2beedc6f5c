"""One run over many processes: data parallel with torch's DistributedDataParallel, started by torchrun.

    torchrun --nproc-per-node 2 -m whorl.lab.distributed CONFIG.json OUT

CONFIG.json is the config of a run, as in a run folder; the run comes to lie in OUT/runs/<id> as any other. Every
process makes the same batches and computes its share of their rows, so that the losses are those of one process up to
rounding, whatever their number. The first process alone writes; it evaluates alone at the end.

    batch ─► own rows ─► own share of the mean loss ─► gradients averaged by DDP ─► the same update everywhere
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from whorl.errors import WhorlError, invalid
from whorl.lab.batches import TaskRows, TextBatches
from whorl.lab.corpus import Corpus, open_corpus, read_corpus
from whorl.lab.load import make_model
from whorl.lab.monitor import gradient_norms
from whorl.lab.run_one import run_one
from whorl.lab.settings import RunConfig
from whorl.lab.storage import (
    CHECKPOINT,
    CONFIG,
    RESULT,
    check_output,
    clear_leftovers,
    locked,
    space_needed,
    write_checkpoint,
    write_json,
)
from whorl.lab.train import (
    SAVE_SECONDS,
    Batches,
    Log,
    Tell,
    Trained,
    autocast,
    entropy_of,
    is_watched,
    make_optimizer,
    metrics_row,
    nan_message,
    resume,
    set_rate,
)
from whorl.models.decoder import Decoder


def run_distributed(
    config: RunConfig,
    out: str | Path,
    *,
    tell: Tell | None = None,
    save_seconds: float = SAVE_SECONDS,
) -> dict[str, Any] | None:
    """The result of a run made by all processes of the default group together; None but for the first of them.

    Every process calls it with the same config. The run is OUT/runs/ID: finished it is only read, stopped it goes on
    from its last checkpoint, with as many processes as there are now. The group is used for training and left as it
    is.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    _check(config, world)
    out = Path(out)
    folder = out / "runs" / config.id
    finished = _from_first((folder / RESULT).exists())
    if not finished:
        with contextlib.ExitStack() as held:
            if rank == 0:
                check_output(out, space_needed(config))
                held.enter_context(locked(folder))
                clear_leftovers(folder)
                write_json(folder / CONFIG, config.to_dict())
            if rank > 0:  # the first packs the text, which the others may then find there
                dist.barrier()
            corpus = _corpus(config, out)
            if rank == 0:
                dist.barrier()
            batches = TaskRows(config) if corpus is None else TextBatches(corpus, config)
            train_together(make_model(config), config, batches, folder, tell=tell, save_seconds=save_seconds)
    return run_one(config, folder, tell=tell) if rank == 0 else None  # what is trained is only evaluated


def train_together(
    model: Decoder,
    config: RunConfig,
    batches: Batches,
    folder: Path,
    *,
    tell: Tell | None = None,
    save_seconds: float = SAVE_SECONDS,
) -> None:
    """Trains a model in place, in all processes alike, up to the checkpoint of the trained model in the folder.

    Metrics and checkpoints are those of ``whorl.lab.train``, which goes on from them as this does from its. A loss that
    is no number raises a WhorlError in every process; the last checkpoint stays what it was.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    optimizer = make_optimizer(model, config)
    done = _resume_together(model, optimizer, config, folder)
    if done.step >= config.steps:
        return
    ids = [torch.cuda.current_device()] if config.device == "cuda" else None
    spread = DistributedDataParallel(model, device_ids=ids, broadcast_buffers=False)
    if config.compile:
        torch.compiler.reset()  # as in a run of one process
    run = torch.compile(spread) if config.compile else spread
    home = folder if rank == 0 else None
    with Log(home, done.metrics, False) as log:
        sums: list[Tensor] = []  # of each step: the own share of the mean loss, and of the accuracy
        begun = saved = logged = time.perf_counter()
        before, tokens_logged = done.seconds, 0
        model.train()
        for step in range(done.step, config.steps):
            rate = set_rate(optimizer, step, config)
            inputs, targets = batches(step)
            sums.append(_backward(run, spread, optimizer, config, inputs, targets, rank, world))
            watched = is_watched(step, config)
            groups = gradient_norms(model) if watched else {}
            norm = nn.utils.clip_grad_norm_(model.parameters(), config.clip)
            optimizer.step()
            tokens_logged += inputs.numel()
            if not watched:
                continue
            values = torch.stack(sums)
            dist.all_reduce(values)
            losses = values[:, 0].tolist()
            now = time.perf_counter()
            wrong = nan_message(config, step, losses, done.metrics)
            if wrong is not None:
                raise WhorlError(f"lab: {wrong}")
            seconds = before + now - begun
            row = metrics_row(
                config,
                step,
                losses=losses,
                accuracy=float(values[-1, 1]),
                rate=rate,
                norm=float(norm),
                norms=groups,
                entropy=entropy_of(model, config, inputs.to(config.device)) if rank == 0 else None,
                speed=tokens_logged / (now - logged),
            ) | {"processes": world}
            log.write(row)
            done.metrics.append(row)
            if tell is not None and rank == 0:
                tell({"kind": "train", "steps": config.steps, "seconds": seconds, **row})
            sums, tokens_logged = [], 0
            if home is not None and time.perf_counter() - saved >= save_seconds and step + 1 < config.steps:
                write_checkpoint(home, step + 1, model, optimizer, seconds)
                saved = time.perf_counter()
            done.step, done.seconds = step + 1, seconds
            logged = time.perf_counter()
    if home is not None:
        write_checkpoint(home, config.steps, model, None, done.seconds)
    dist.barrier()


def _backward(
    run: Any,
    spread: DistributedDataParallel,
    optimizer: torch.optim.Optimizer,
    config: RunConfig,
    inputs: Tensor,
    targets: Tensor,
    rank: int,
    world: int,
) -> Tensor:
    """Leaves the gradients of the whole batch in the model; the own shares of its mean loss and of its accuracy.

    A share is the sum over the own rows by the targets that count in all rows, so that every target weighs the same
    whichever process has it. DDP averages gradients, so the loss is multiplied by the number of processes.
    """
    optimizer.zero_grad(set_to_none=True)
    counted = max(1, int((targets != -100).sum()))
    own = [part.tensor_split(world)[rank].to(config.device, non_blocking=True) for part in (inputs, targets)]
    parts = list(zip(*(part.tensor_split(config.accumulate) for part in own), strict=True))
    total = torch.zeros(2, device=config.device)
    for number, (tokens, wanted) in enumerate(parts):
        waits = number < len(parts) - 1
        with spread.no_sync() if waits else contextlib.nullcontext():
            with autocast(config):
                logits = run(tokens)
                loss = cross_entropy(logits.flatten(0, 1).float(), wanted.flatten(), reduction="sum") / counted
            (loss * world).backward()
        right = (logits.detach().argmax(-1) == wanted).sum() / counted
        total += torch.stack((loss.detach(), right))
    return total


def _resume_together(model: Decoder, optimizer: torch.optim.Optimizer, config: RunConfig, folder: Path) -> Trained:
    """Where the first process's checkpoint stands, with the model and optimizer of every process brought there."""
    saved = folder / CHECKPOINT
    if dist.get_rank() == 0:
        _from_first(saved.read_bytes() if saved.exists() else None)
        return resume(model, optimizer, config, folder)
    data = _from_first(None)
    with tempfile.TemporaryDirectory() as own:  # the folder may be on another machine
        if data is not None:
            (Path(own) / CHECKPOINT).write_bytes(data)
        done = resume(model, optimizer, config, Path(own))
    for parameter, state in optimizer.state.items():
        optimizer.state[parameter] = {key: value.to(parameter.device) for key, value in state.items()}
    return done


def _from_first(value: Any) -> Any:
    """What the first process passed, in every process."""
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def _corpus(config: RunConfig, out: Path) -> Corpus | None:
    return open_corpus(config.corpus, out / "corpus", config.corpus_digest) if config.text else None


def _check(config: RunConfig, world: int) -> None:
    least = min(batch for _, batch, _ in config.stages)
    if least // world < config.accumulate:
        raise invalid(
            "lab",
            "every stage's batch",
            f"at least {world * config.accumulate} rows, {config.accumulate} for each of {world} processes",
            least,
            "Use fewer processes.",
        )


@contextlib.contextmanager
def group_of_torchrun(device: str) -> Iterator[None]:
    """The default group of the processes that torchrun started, gloo on CPUs and NCCL on CUDA devices."""
    if "RANK" not in os.environ:
        raise WhorlError(
            "lab: no torchrun started this process. Run: torchrun --nproc-per-node 2 -m whorl.lab.distributed …"
        )
    if device == "cuda":
        if not torch.cuda.is_available():
            raise WhorlError("lab: device='cuda' cannot run here: no CUDA device. Use device cpu.")
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    try:
        yield
    finally:
        dist.destroy_process_group()


def read_config(path: str | Path) -> RunConfig:
    """The config of a run from a JSON file, with the digest of its text filled in."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise WhorlError(f"lab: cannot read {path}: {error.strerror}.") from None
    except ValueError as error:
        raise WhorlError(f"lab: {path} is no JSON: {error}.") from None
    if not isinstance(data, dict):
        raise invalid(f"lab {path}", "the config", "a JSON object", data)
    config = RunConfig.from_dict(data)
    if config.text and not config.corpus_digest:
        config = config.replace(corpus_digest=read_corpus(config.corpus).digest)
    return config


def main(arguments: Sequence[str] | None = None) -> int:
    """Makes the run of CONFIG.json under OUT together with the other processes; the exit status."""
    parser = argparse.ArgumentParser(
        prog="torchrun -m whorl.lab.distributed", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("config", help="the config of a run, as config.json of a run folder")
    parser.add_argument("out", help="the folder that runs are kept in")
    asked = parser.parse_args(arguments)
    try:
        config = read_config(asked.config)
        with group_of_torchrun(config.device):
            result = run_distributed(config, asked.out, tell=_say)
    except WhorlError as error:
        if os.environ.get("RANK", "0") == "0":
            print(error, file=sys.stderr)
        return 2
    if result is not None:
        print(Path(asked.out) / "runs" / config.id)
    return 0


def _say(event: dict[str, Any]) -> None:
    if event["kind"] == "train":
        speed = f"{event['tokens_per_second']:,.0f} tokens/s"
        print(f"step {event['step']}/{event['steps']}, loss {event['loss']:.3f}, {speed}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
