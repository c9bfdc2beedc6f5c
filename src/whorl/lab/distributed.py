"""One run over many processes, started by torchrun: data parallel with torch's DistributedDataParallel, or context
parallel, where every process has a share of the tokens of each text.

    torchrun --nproc-per-node 2 -m whorl.lab.distributed CONFIG.json OUT [--parallel context]

CONFIG.json is the config of a run, as ``whorl lab plan`` prints it and a run folder has it; the run comes to lie in
OUT/runs/<id> as any other. Every process makes the same batches and computes its share of them, so that the losses are
those of one process up to rounding, whatever their number. The first process alone writes; it evaluates alone at the
end.

    batch ─► own rows or tokens ─► own share of the mean loss ─► gradients of all ─► the same update everywhere
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
import torch.distributed.nn  # before there is a group: its functions' defaults would keep one, and gloo's threads
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from whorl.dialects.documents import LARGEST_JSON, read_whole, value_of
from whorl.errors import WhorlError, invalid, unknown
from whorl.lab.batches import open_batches
from whorl.lab.context_parallel import own_share, sum_gradients
from whorl.lab.corpus import read_corpus
from whorl.lab.language import Batches, compiled, metrics_of
from whorl.lab.load import make_model
from whorl.lab.processes import from_first
from whorl.lab.recipe import autocast
from whorl.lab.run_one import run_one
from whorl.lab.settings import RunConfig
from whorl.lab.storage import RESULT, begin, check_output, is_there, locked, space_needed
from whorl.lab.train import SAVE_SECONDS, Loss, Pass, Tell, train
from whorl.lab.validation import loss_options
from whorl.models.decoder import Decoder
from whorl.plugins import load_plugin

# Leaves the gradients of an update in the model: the own share of its loss and of its right tokens, and its inputs.
Share = Callable[[int], tuple[Tensor, Tensor]]


def run_distributed(
    config: RunConfig,
    out: str | Path,
    *,
    parallel: str = "data",
    tell: Tell | None = None,
    save_seconds: float = SAVE_SECONDS,
) -> dict[str, Any] | None:
    """The result of a run made by all processes of the default group together; None but for the first of them.

    Every process calls it with the same config. ``parallel`` is "data", each process with its share of the rows, or
    "context", each with its share of the tokens of every text. The run is OUT/runs/ID: finished it is only read,
    stopped it goes on from its last checkpoint, with as many processes as there are now. The group is used for training
    and left as it is.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    _check(config, world, parallel)
    out = Path(out)
    folder = out / "runs" / config.id
    finished = from_first(is_there(folder / RESULT))
    if not finished:
        with contextlib.ExitStack() as held:
            if rank == 0:
                check_output(out, space_needed(config))
                held.enter_context(locked(folder))
                begin(folder, config, config.device)
            if rank > 0:  # the first packs the text, which the others may then find there
                dist.barrier()
            batches, corpus = open_batches(config, out)
            if rank == 0:
                dist.barrier()
            model = make_model(config)
            watch = loss_options(model, config, corpus) if rank == 0 and corpus is not None else {}
            share = PARALLEL[parallel](model, config, batches, rank, world)
            loss = shared_loss(share, model, config, rank, world, watch)
            options: dict[str, Any] = {"tell": tell, "save_seconds": save_seconds}
            trained = train(model, config, loss, folder, rank=rank, world=world, **options)
            if trained.stopped_early is not None:
                raise WhorlError(f"lab: {trained.stopped_early}")
    return run_one(config, folder, tell=tell) if rank == 0 else None  # what is trained is only evaluated


def shared_loss(share: Share, model: Decoder, config: RunConfig, rank: int, world: int, watch: dict[str, Any]) -> Loss:
    """The loss that processes have in shares; the first of them also measures the model.

    ``watch`` is what ``loss_options`` gives.
    """

    def at(step: int) -> Pass:
        total, inputs = share(step)

        def found(mean: float) -> dict[str, Any]:
            own = metrics_of(model, config, step, inputs.to(config.device), **watch)(mean) if rank == 0 else {}
            return {**own, "processes": world}

        return Pass(total[0], lambda: total[1], inputs.numel(), found)

    return at


def data_parallel(model: Decoder, config: RunConfig, batches: Batches, rank: int, world: int) -> Share:
    """The loss of the own rows of every batch, with gradients averaged over the processes.

    A share is the sum over the own rows by the targets that count in all rows, so that every target weighs the same
    whichever process has it. DDP averages gradients, so the loss is multiplied by the number of processes.
    """
    ids = [torch.cuda.current_device()] if config.device == "cuda" else None
    spread = DistributedDataParallel(model, device_ids=ids, broadcast_buffers=False)
    run = compiled(spread, config)

    def at(step: int) -> tuple[Tensor, Tensor]:
        inputs, targets = batches(step)
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
        return total, inputs

    return at


def context_parallel(model: Decoder, config: RunConfig, batches: Batches, rank: int, world: int) -> Share:
    """The loss of the own tokens of every text, with gradients added up over the processes."""

    def at(step: int) -> tuple[Tensor, Tensor]:
        inputs, targets = (part.to(config.device, non_blocking=True) for part in batches(step))
        counted = (targets != -100).sum().clamp(min=1)
        total = torch.zeros(2, device=config.device)
        for tokens, wanted in zip(inputs.chunk(config.accumulate), targets.chunk(config.accumulate), strict=True):
            weight = (wanted != -100).sum() / counted
            with autocast(config):
                loss, right = own_share(model, tokens, wanted)
            (loss * weight).backward()
            total += torch.stack((loss.detach(), right)) * weight
        sum_gradients(model)
        return total, inputs

    return at


# How the work of an update is divided among processes.
PARALLEL = {"data": data_parallel, "context": context_parallel}


def _check(config: RunConfig, world: int, parallel: str = "data") -> None:
    if parallel not in PARALLEL:
        raise unknown("parallel", parallel, PARALLEL, call="lab")
    if parallel == "context":
        lengths = [length for length, _, _ in config.stages]
        odd = next((length for length in lengths if length % (2 * world)), None)
        if odd is not None or not config.text:
            what = "the tokens of a task" if odd is None else odd
            raise invalid("lab", "every stage's length", f"a multiple of {2 * world} in context parallel", what)
        if config.compile:
            raise WhorlError("lab: compile would be ignored in context parallel. Leave it out.")
        return
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

    def refuse(why: str) -> NoReturn:
        raise WhorlError(f"lab: {path} is no JSON: {why}. Pass the config of a run, as whorl lab plan prints it.")

    data = value_of(read_whole(path, "a config", at_most=LARGEST_JSON, call="lab"), refuse)
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
    parser.add_argument("config", help="the config of a run, as whorl lab plan prints it and a run folder has it")
    parser.add_argument("out", help="the folder that runs are kept in")
    parser.add_argument("--parallel", choices=PARALLEL, default="data", help="what processes share: rows, or tokens")
    parser.add_argument("--plugin", action="append", default=[], help="a file that registers encodings of your own")
    asked = parser.parse_args(arguments)
    try:
        for file in asked.plugin:
            load_plugin(file)
        config = read_config(asked.config)
        with group_of_torchrun(config.device):
            result = run_distributed(config, asked.out, parallel=asked.parallel, tell=_say)
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
