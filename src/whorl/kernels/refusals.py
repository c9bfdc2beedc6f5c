"""Refusals: what keeps a kernel from a call, and which implementation of a rotation is left."""

from __future__ import annotations

import torch
from torch import Tensor

from whorl.forks import uncut
from whorl.graphs import constant_in_graphs
from whorl.kernels.choose import EXTRAS, Impl, check_impl, choose, why_not_installed
from whorl.tracing import is_transformed, making_graph, takes_gradients

# What "auto" stands for in a rotation, by the kind of device; torch elsewhere.
AUTO = {"cuda": "triton", "cpu": "numba"}

# What the kernels of the rotation read and write.
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@constant_in_graphs
def why_not_here(kernel: str, device: str, dtype: torch.dtype | None = None) -> str | None:
    """What keeps a kernel from running on a kind of device, or with a dtype, or None."""
    missing = why_not_installed(kernel)
    if missing is not None:
        return missing
    with uncut:  # imports
        if kernel == "numba":
            from whorl.kernels.rotate_numba import why_not as why_not_numba

            return why_not_numba(dtype) if device == "cpu" else f"it runs on the CPU, the tensors are on {device}"
        from whorl.kernels.triton_launch import why_not_triton

        return why_not_triton(device)


def why_not_memory(name: str, x: Tensor) -> str | None:
    """What keeps a kernel from the memory of a tensor, or None: a subclass may keep its numbers elsewhere."""
    if type(x) is Tensor or type(x) is torch.nn.Parameter or making_graph():
        return None
    return f"{name} is a {type(x).__name__}, whose memory a kernel cannot read"


def why_not_transformed() -> str | None:
    """What keeps a kernel from a call inside torch.func or forward-mode differentiation, or None."""
    if is_transformed():
        return "torch.func transforms and forward-mode derivatives see through torch's own operations only"
    return None


def why_not_rotate(kernel: str, x: Tensor, cos: Tensor, sin: Tensor) -> str | None:
    """What keeps a kernel from the rotation of x by these tables, or None."""
    reason = why_not_here(kernel, x.device.type, x.dtype) or why_not_memory("x", x)
    if reason is not None:
        return reason
    if x.dtype not in DTYPES:
        return f"it has no {x.dtype}"
    if x.ndim > 4:
        return "x has more than four axes"
    if takes_gradients(cos, sin):
        return "the tables need gradients"
    return why_not_transformed()


def choose_rotate(impl: Impl, x: Tensor, cos: Tensor, sin: Tensor) -> str:
    """The implementation that rotates x by these tables."""
    check_impl(impl, "rotate")
    if impl == "torch":
        return "torch"
    if impl == "auto":
        kernel = AUTO.get(x.device.type)
        return "torch" if kernel is None or why_not_rotate(kernel, x, cos, sin) else kernel
    return choose(impl, "rotate", {impl: why_not_rotate(impl, x, cos, sin)} if impl in EXTRAS else None)


def choose_fused(impl: Impl, call: str, q: Tensor, cos: Tensor, sin: Tensor, refusal: str | None = None) -> str:
    """The implementation of a rotation fused with other work, which has a Triton kernel and no other.

    ``refusal`` is one more reason against that kernel.
    """
    if impl == "torch" or (impl == "auto" and q.device.type != "cuda"):
        return "torch"
    return choose(impl, call, {"triton": why_not_rotate("triton", q, cos, sin) or refusal})
