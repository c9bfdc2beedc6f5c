"""Prints the shared memory that kernels take once compiled for a GPU, on a machine that may have none.

    python tests/kernels/compiled_sizes.py <kilobytes of shared memory> …

Launches compile where they would run, and everything before them is as on a device with so much memory. It is a program
of its own because Triton's interpreter, in which other tests run kernels, compiles nothing.
"""

from __future__ import annotations

import json
import sys
import warnings

import torch
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

from whorl.kernels import decode_triton
from whorl.kernels.decode import Kept, Rules
from whorl.kernels.tiles import launch, op, sizes
from whorl.kernels.triton_launch import Launch
from whorl.plans import PLANS
from whorl.rotary.rotation import Rotation

POINTERS = {
    torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.float32: "*fp32", torch.int64: "*i64", torch.int32: "*i32",
    torch.bool: "*i1",
}  # fmt: skip
BATCH, HEADS, KV_HEADS, ROOM = 8, 32, 8, 2048
TAKEN: dict[str, int] = {}
NAME = ""


def _type_of(value: object) -> object:
    """The type that a kernel is compiled for: of a pointer as it is named, of a number, or of each in a tuple."""
    if isinstance(value, tuple):
        return tuple(_type_of(each) for each in value)
    return value if isinstance(value, str) else "fp32" if isinstance(value, float) else "i32"


def compiled(self: Launch, *pointers: Tensor) -> None:
    """Compiles for compute capability 9.0 what a launch would run, and notes the most that one name takes."""
    function = self._function
    values = [*[POINTERS[x.dtype] for x in pointers], *self._more]
    signature, constants = {}, {}
    for name, value, parameter in zip(function.arg_names, values, function.params, strict=True):
        if parameter.is_constexpr:
            signature[name], constants[name] = "constexpr", value
        else:
            signature[name] = _type_of(value)
    aligned = {(i,): [["tt.divisibility", 16]] for i in range(len(pointers))}
    source = ASTSource(function, signature, constants, aligned)
    made = compile(source, target=GPUTarget("cuda", 90, 32), options=dict(self._options))
    TAKEN[NAME] = max(TAKEN.get(NAME, 0), made.metadata.shared)


def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def decode(
    name: str, *, dtype: torch.dtype = torch.bfloat16, dim: int = 128, queries: int = 1, **given: object
) -> None:
    """Compiles a step; what is given are fields of ``Kept`` and ``Rules``."""
    global NAME
    NAME = name
    kept = {field: value for field, value in given.items() if field in Kept._fields}
    rules = {field: value for field, value in given.items() if field in Rules._fields}
    keys, q = empty(BATCH, KV_HEADS, ROOM, dim, dtype=dtype), empty(BATCH, HEADS, queries, dim, dtype=dtype)
    all_kept = Kept(keys, keys, empty(queries, dtype=torch.int64), **kept)  # pyright: ignore[reportArgumentType]
    if decode_triton.too_large(HEADS // KV_HEADS * queries, dim, dim, dtype, decode_triton.shared_memory(q.device)):
        return
    step = decode_triton.ready(q, all_kept, Rules(0.1, **rules))  # pyright: ignore[reportArgumentType]
    step(q, all_kept, q, *step.memory(q.device))


def decode_all() -> None:
    tables, rotation = {"cos": empty(2, 2, ROOM, 64), "sin": empty(2, 2, ROOM, 64)}, Rotation("bhld", "half", "half")
    one = {name: table[:1] for name, table in tables.items()}
    decode("no bias")
    decode("heads of 256", dim=256)
    decode("float32", dtype=torch.float32)
    decode("16 queries", queries=16)
    decode("raw keys", by_place=True, rotation=rotation, fades=empty(64), **one)
    decode("two placements", by_place=True, rotation=rotation, near=512, **tables)
    decode(
        "values by distance", by_place=True, rows=empty(8, 32, 1, 17), value_rows=empty(17, 128, dtype=torch.bfloat16)
    )
    decode("keys by distance", by_place=True, key_rows=empty(32, 512, 128))
    decode("gates", sums="gates", rows=empty(8, 32, 1, 64))


def tiles_all() -> None:
    global NAME
    for kind, numbers in (("none", None), ("table", empty(16, 4096))):
        NAME = kind
        asked = op.Settings(kind=kind, scale=0.1)
        q, k, v, grad = (empty(1, heads, 4096, 128, dtype=torch.bfloat16) for heads in (16, 4, 4, 16))
        given = launch.Given(numbers=numbers)
        results = launch.forward(q, k, v, *given, *asked)
        learned = numbers is not None
        gradients = *(torch.empty_like(x) for x in (q, k, v)), empty(0) if numbers is None else numbers
        launch.run_all(launch.kernels_of_gradients(gradients, grad, None, q, k, v, given, results, asked, learned))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    Launch.__call__ = compiled
    Launch.is_new = lambda self: False  # nothing is compiled for a device that is here
    decode_triton.multiprocessors = lambda device: 132
    found: dict[str, dict[str, dict[str, int]]] = {"decode": {}, "tiles": {}}
    for kilobytes in sys.argv[1:]:
        memory = int(kilobytes) * 1024
        decode_triton.shared_memory = sizes.shared_memory = lambda device, memory=memory: memory
        for kind, compile_all in (("decode", decode_all), ("tiles", tiles_all)):
            PLANS.cache_clear()
            TAKEN.clear()
            compile_all()
            found[kind][kilobytes] = dict(TAKEN)
    print(json.dumps(found))
