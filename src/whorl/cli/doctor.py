"""``whorl doctor``: what can run on this machine, and why the rest cannot."""

import platform
from importlib import import_module
from typing import Any

import typer

from whorl import __version__
from whorl.cli.options import Json
from whorl.cli.output import say_json, say_table, suggest

TORCH = (2, 11)  # the oldest release whorl is made for

# The operations that take impl=, with their kernels beside torch.
OPERATIONS = {
    "rotate": ("triton", "numba"),
    "norm_rotate_qk": ("triton",),
    "rotate_append": ("triton",),
    "attention": ("triton",),
    "linear_attention": ("triton",),
}


def doctor(as_json: Json = False) -> None:
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
    return rows + _kernels()


def _row(what: str, usable: bool, detail: str, required: bool = False) -> dict[str, Any]:
    return {"what": what, "usable": usable, "detail": detail, "required": required}


def _torch() -> dict[str, Any]:
    try:
        import torch
    except ImportError as error:
        return _row("torch", False, f"{error}. Run: pip install torch", required=True)
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if version < TORCH:
        detail = f"{torch.__version__}, older than {TORCH[0]}.{TORCH[1]}. Upgrade it."
        return _row("torch", False, detail, required=True)
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


def _kernels() -> list[dict[str, Any]]:
    """One row for each operation and each value of ``impl=``: where it runs, or why it does not."""
    try:
        import torch

        from whorl.kernels.refusals import AUTO, why_not_here
    except ImportError as error:
        return [_row("kernels", False, f"need torch: {error}")]
    devices = ("cuda", "cpu") if torch.cuda.is_available() else ("cpu",)
    rows = []
    for operation, kernels in OPERATIONS.items():
        for kernel in kernels:
            reasons = {device: why_not_here(kernel, device) for device in devices}
            usual = [device for device in devices if reasons[device] is None and AUTO.get(device) == kernel]
            able = [device for device in devices if reasons[device] is None]
            detail = next(iter(reasons.values())) or f"runs on {' and '.join(able)}"
            if usual:
                detail = f"runs on {' and '.join(able)}, what impl='auto' takes there"
            rows.append(_row(f"{operation} impl={kernel}", bool(able), detail))
        rows.append(_row(f"{operation} impl=torch", True, "runs everywhere"))
    return rows
