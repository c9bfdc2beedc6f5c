"""``whorl doctor``: what can run on this machine, and why the rest cannot."""

from __future__ import annotations

import platform
from importlib import import_module
from typing import Annotated, Any

import typer

from whorl import __version__
from whorl.cli.output import say_json, say_table, suggest
from whorl.errors import WhorlError

TORCH = (2, 11)  # the oldest release whorl is made for
OPERATIONS = ("rotate",)  # what has an impl= to choose


def doctor(as_json: Annotated[bool, typer.Option("--json", help="JSON on stdout.")] = False) -> None:
    """What can run here, and why the rest cannot. Exits 1 where torch is missing or too old."""
    rows = examine()
    if as_json:
        say_json(rows)
    else:
        words = {True: "yes", False: "no"}
        say_table(("what", "usable", "detail"), [(row["what"], words[row["usable"]], row["detail"]) for row in rows])
        suggest("whorl bench tables")
    if not all(row["usable"] for row in rows if row["required"]):
        raise typer.Exit(1)


def examine() -> list[dict[str, Any]]:
    """One row for each thing that runs or does not: what, usable, detail, required."""
    rows = [_row("whorl", True, f"{__version__}, Python {platform.python_version()} on {platform.platform()}")]
    rows += [_torch(), _cuda()]
    rows += [_package("triton", "triton"), _package("numba", "cpu")]
    rows += [_impl(operation, impl) for operation in OPERATIONS for impl in _impls()]
    return rows


def _row(what: str, usable: bool, detail: str, required: bool = False) -> dict[str, Any]:
    return {"what": what, "usable": usable, "detail": detail, "required": required}


def _torch() -> dict[str, Any]:
    try:
        import torch
    except ImportError as error:
        return _row("torch", False, f"{error}. Run: pip install torch", required=True)
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if version < TORCH:
        return _row(
            "torch", False, f"{torch.__version__}, older than {TORCH[0]}.{TORCH[1]}. Upgrade it.", required=True
        )
    capability = torch.backends.cpu.get_cpu_capability()
    return _row("torch", True, f"{torch.__version__}, {torch.get_num_threads()} threads, {capability}", required=True)


def _cuda() -> dict[str, Any]:
    try:
        import torch
    except ImportError:
        return _row("CUDA", False, "needs torch")
    if torch.cuda.is_available():
        return _row("CUDA", True, ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())))
    built = f"torch is built for CUDA {torch.version.cuda}" if torch.version.cuda else "torch is built without CUDA"
    return _row("CUDA", False, f"no CUDA device; {built}")


def _package(name: str, extra: str) -> dict[str, Any]:
    try:
        module = import_module(name)
    except ImportError as error:
        return _row(name, False, f'{error}. Run: pip install "whorl[{extra}]"')
    return _row(name, True, str(getattr(module, "__version__", "installed")))


def _impls() -> tuple[str, ...]:
    from whorl.kernels.choose import IMPLS

    return IMPLS


def _impl(operation: str, impl: Any) -> dict[str, Any]:
    from whorl.kernels.choose import choose

    try:
        chosen = choose(impl, operation)
    except WhorlError as error:
        return _row(f"{operation} impl={impl}", False, str(error))
    return _row(f"{operation} impl={impl}", True, f"runs {chosen}" if chosen != impl else "")
