"""The rotation on the CPU, compiled by numba: one pass over memory, as fast as a copy.

The loops over heads and tokens are Python for numba; what happens inside a row is written as LLVM vectors, because
plain array code was eight times slower. Each piece of work first lays the table rows it needs into a few KiB of its
stack, with the sign, the division and the order that the vectors want, then uses them for every head.
"""

# pyright: reportAttributeAccessIssue=false, reportPossiblyUnboundVariable=false, reportPrivateImportUsage=false
# pyright: reportUnnecessaryTypeIgnoreComment=false
# numba says little of its own types.
from __future__ import annotations

import functools
import importlib.util
import inspect
import sys
import threading
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

import torch
from torch import Tensor

from whorl.forks import uncut
from whorl.kernels.axes import row_strides, sizes_of, strides_of, table_strides
from whorl.kernels.numba_threads import Compiled, share
from whorl.rotary.rotation import Rotation

Tensors = tuple[Tensor, ...]

SUPPORTED = (torch.float32, torch.float64, torch.bfloat16, torch.float16)

# The forms that are compiled, each on its own: dtype, layout that is read, layout that is written.
_FORMS = tuple(product(SUPPORTED, ("half", "interleaved"), ("half", "interleaved")))

# Pairs in one vector step, then in the steps for what is left of a row.
_WIDTHS = (16, 4, 1)

# Bytes of stack for laid table rows: half of a small second-level cache would still hold them.
_ROOM = 32 * 1024

# Elements of x in one piece of work: small enough to share evenly, large enough that taking it costs nothing.
_PIECE = 1 << 18

# Heads turned side by side when the tokens of one head lie together: they reuse a table row while it is in the
# first-level cache, and more of them would be more streams than the prefetcher follows.
_BAND = 4

# Bytes of out from which it is written past the caches, as memcpy does: reading what will be overwritten, as a cache
# must, is a third of the traffic.
_STREAM = 32 << 20

# Elements that are worth waking a thread for.
_SHARE = 1 << 17


@functools.cache
def why_not(dtype: torch.dtype | None = None) -> str | None:
    """Why this kernel cannot run here, or cannot take the dtype; None if it can.

    >>> why_not(torch.int64)
    'it takes float32, float64, bfloat16 and float16, not int64'
    """
    if dtype not in (None, *SUPPORTED):
        return f"it takes float32, float64, bfloat16 and float16, not {str(dtype).removeprefix('torch.')}"
    if importlib.util.find_spec("numba") is None:
        return "numba is not installed"
    try:
        from numba.core import config
        from numba.core.registry import cpu_target
    except ImportError as error:
        return f"numba cannot be imported: {error}"
    if config.DISABLE_JIT:
        return "NUMBA_DISABLE_JIT is set"
    if sys.byteorder != "little":
        return "it is written for little-endian machines"
    triple, _, features = cpu_target.target_context.codegen().magic_tuple()[:3]
    converts = triple.startswith(("aarch64", "arm64")) or "+f16c" in features
    if dtype == torch.float16 and not converts:
        return "this CPU has no instruction that converts float16"
    return None


def ready(
    xs: Tensors, cos: Tensor, sin: Tensor, outs: Tensors, rows: Tensor | None, rotation: Rotation
) -> Callable[..., None]:
    """The function of (xs, cos, sin, outs, rows) that turns tensors of these shapes, strides and dtypes.

    It writes each of ``xs`` into its ``outs``, with dimensions [start, start + 2 * pairs) rotated and the rest as it
    is; everything is as ``rotate`` has checked it. ``outs`` have any strides, and may be ``xs`` where the rotation
    writes as it reads. ``rows`` names the table row of each token, (length,) or (batch, length); a row that the tables
    do not have gives NaN.
    """
    if cos.stride(-1) != 1 or sin.stride(-1) != 1:
        packed = ready(xs, _packed(cos), _packed(sin), outs, rows, rotation)
        return lambda xs, cos, sin, outs, rows: packed(xs, _packed(cos), _packed(sin), outs, rows)
    runs = [_ready_one(i, xs[i], cos, sin, outs[i], rows, rotation) for i in range(len(xs))]
    if len(runs) == 1:
        return runs[0]

    def run(xs: Tensors, cos: Tensor, sin: Tensor, outs: Tensors, rows: Tensor | None) -> None:
        for each in runs:
            each(xs, cos, sin, outs, rows)

    return run


def _ready_one(
    i: int, x: Tensor, cos: Tensor, sin: Tensor, out: Tensor, rows: Tensor | None, rotation: Rotation
) -> Callable[..., None]:
    """The function of (xs, cos, sin, outs, rows) that turns tensor i of them."""
    numbers = _numbers(x, cos, sin, out, rows, rotation)
    sizes, shares = numbers.buffer_info()[0], x.numel() // _SHARE
    kernel, spare_size = _kernel(x, rotation), _spare_size(cos)

    def run(xs: Tensors, cos: Tensor, sin: Tensor, outs: Tensors, rows: Tensor | None) -> None:
        x, out = xs[i], outs[i]
        spare = torch.empty(spare_size, dtype=torch.float64) if spare_size else None
        shared = shares > 1 and spare is None and (threads := min(shares, torch.get_num_threads())) > 1
        call = array(
            "q",
            (
                0, 0, shared, sizes, x.data_ptr(), out.data_ptr(), cos.data_ptr(), sin.data_ptr(),
                0 if rows is None else rows.data_ptr(), 0 if spare is None else spare.data_ptr(),
            ),
        )  # fmt: skip
        if shared:
            share(kernel, call, numbers, [x, cos, sin, out, rows], threads)
        else:
            kernel.run(call.buffer_info()[0])

    return run


def ready_append(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, rows: Tensor, keys: Tensor, rotation: Rotation
) -> Callable[[Tensor, Tensor, Tensor, Tensor, int], Tensor]:
    """The function of (q, k, rows, keys, slot) that returns a token's queries turned, its keys turned into their slot.

    Tensors are (batch, heads, tokens, dim), of the shapes, strides and dtypes given; ``rows`` (batch, slots) says which
    row of the tables a slot takes. Addresses are counted: to make views of one slot takes longer than to turn a token.
    """
    here = cos, sin, rows[:, :1]
    turn, put = _ready_at(q, torch.empty_like(q), *here, rotation), _ready_at(k, keys[:, :, :1], *here, rotation)
    step, id_step = keys.stride(2) * keys.element_size(), rows.stride(1) * rows.element_size()

    def append(q: Tensor, k: Tensor, rows: Tensor, keys: Tensor, slot: int) -> Tensor:
        out, row = torch.empty_like(q), rows.data_ptr() + slot * id_step
        turn(q.data_ptr(), out.data_ptr(), row)
        put(k.data_ptr(), keys.data_ptr() + slot * step, row)
        return out

    return append


def _ready_at(
    x: Tensor, out: Tensor, cos: Tensor, sin: Tensor, rows: Tensor, rotation: Rotation
) -> Callable[[int, int, int], None]:
    """The function of the addresses of (x, out, rows) that turns tensors like these, in this thread."""
    numbers, run, spare_size = _numbers(x, cos, sin, out, rows, rotation), _kernel(x, rotation).run, _spare_size(cos)

    def turn(x: int, out: int, rows: int) -> None:
        spare = torch.empty(spare_size, dtype=torch.float64) if spare_size else None
        sizes, room = numbers.buffer_info()[0], 0 if spare is None else spare.data_ptr()
        call = array("q", (0, 0, 0, sizes, x, out, cos.data_ptr(), sin.data_ptr(), rows, room))
        run(call.buffer_info()[0])

    return turn


def _kernel(x: Tensor, rotation: Rotation) -> Compiled:
    form = (x.dtype, rotation.reads, rotation.writes)
    return _KERNELS.get(form) or _compiled(*form)


def _spare_size(cos: Tensor) -> int:
    """A row of tables that is larger than the room on the stack gets room of its own, and one thread."""
    pairs = cos.shape[-1]
    return 4 * pairs if 32 * pairs > _ROOM else 0


def _numbers(x: Tensor, cos: Tensor, sin: Tensor, out: Tensor, rows: Tensor | None, rotation: Rotation) -> array:
    """The sizes and strides of a call, in the order in which the compiled loops read them."""
    order, _, _, start, blocks, conjugate, divide = rotation
    *_, count, pairs = cos.shape
    out_strides, size = strides_of(out, order), x.element_size()
    aligned = all(step * size % 16 == 0 for step in (*out_strides[:3], start, pairs // blocks))
    return array(
        "q",
        (
            *sizes_of(x, order), start, pairs, blocks, count, 0 if rows is None else rows.element_size(), conjugate,
            divide, *strides_of(x, order), *out_strides, *table_strides(cos), *table_strides(sin), *row_strides(rows),
            aligned and x.numel() * size >= _STREAM,
        ),
    )  # fmt: skip


def _packed(table: Tensor) -> Tensor:
    """A copy of the table with its pairs side by side."""
    return torch.empty(table.shape, dtype=table.dtype).copy_(table)


_KERNELS: dict[tuple[torch.dtype, str, str], Compiled] = {}
_COMPILING = threading.Lock()


def _compiled(dtype: torch.dtype, reads: str, writes: str) -> Compiled:
    """The machine code of one form, made once, or found in numba's cache on disk."""
    with uncut, _COMPILING:
        if (dtype, reads, writes) not in _KERNELS:
            _KERNELS[dtype, reads, writes] = _compile(dtype, reads, writes)
        return _KERNELS[dtype, reads, writes]


def _compile(dtype: torch.dtype, reads: str, writes: str) -> Compiled:
    from numba import njit, types

    _hold_locks()
    _register_intrinsics()
    function = _rows(_FORMS.index((dtype, reads, writes)))
    for cache in (True, False):
        try:
            made = njit(types.int64(types.int64), cache=cache, nogil=True, error_model="numpy")(function)
            break
        except Exception:  # nowhere to keep it, or a damaged file there: this process compiles for itself
            if not cache:
                raise
    result = next(iter(made.overloads.values()))
    # The entry point itself: the dispatcher around it would look at the type of the argument first.
    return Compiled(result.entry_point, result.library.get_pointer_to_function(result.fndesc.llvm_cfunc_wrapper_name))


def _hold_locks() -> None:
    """Makes forks wait for numba's locks too: other threads take them to compile code, and to free it."""
    from llvmlite.binding import ffi
    from numba.core.compiler_lock import global_compiler_lock

    for lock in (global_compiler_lock, getattr(ffi.lib, "_lock", None)):
        if lock is not None:
            uncut.hold(lock)


def _rows(form: int) -> Callable[[int], int]:
    """The loops over pieces, heads and tokens of one form, for numba to compile.

    Only integers are enclosed: numba finds its cached code by their values.
    """
    dtype = _FORMS[form][0]
    size = dtype.itemsize
    real = _real(dtype).itemsize
    laid = real * (2 if _laid(form) == "doubled" else 1)
    room, piece, abreast = _ROOM, _PIECE, _BAND

    def rows(call):
        shared, sizes = _get(call, 2), _get(call, 3)
        x, out, cos, sin = _get(call, 4), _get(call, 5), _get(call, 6), _get(call, 7)
        ids, spare = _get(call, 8), _get(call, 9)
        batch, length, heads, dim = _get(sizes, 0), _get(sizes, 1), _get(sizes, 2), _get(sizes, 3)
        start, pairs, blocks, count = _get(sizes, 4), _get(sizes, 5), _get(sizes, 6), _get(sizes, 7)
        id_size, conjugate, divide = _get(sizes, 8), _get(sizes, 9), _get(sizes, 10)
        x_batch, x_token, x_head, x_dim = _get(sizes, 11), _get(sizes, 12), _get(sizes, 13), _get(sizes, 14)
        out_batch, out_token, out_head, out_dim = _get(sizes, 15), _get(sizes, 16), _get(sizes, 17), _get(sizes, 18)
        cos_batch, cos_row, cos_head = _get(sizes, 19), _get(sizes, 20), _get(sizes, 21)
        sin_batch, sin_row, sin_head = _get(sizes, 22), _get(sizes, 23), _get(sizes, 24)
        id_batch, id_token, large = _get(sizes, 25), _get(sizes, 26), _get(sizes, 27)
        inner = pairs // blocks
        row_size = pairs * laid
        unit = x_dim == 1 and out_dim == 1
        stream = unit and large and out != x and out % 16 == 0
        copies = out != x and 2 * pairs < dim
        one_table = cos_head == 0 and sin_head == 0
        across = x_head < x_token
        # A piece is a tile of tokens by a group of heads. All heads of a token lie together if they go ``across``.
        tables = spare if spare else _stack(room)
        tile = 1 if spare else min(length, room // max(1, 2 * row_size))
        if across:
            tile = min(tile, max(1, piece // max(1, heads * dim)))
        group = min(heads, max(1, piece // max(1, tile * dim)))
        band = group if across else abreast
        tiles = -(-length // max(1, tile))
        groups = -(-heads // max(1, group))
        total = batch * groups * tiles
        finished = 0
        i_piece = _add(call, 1) if shared else 0
        while i_piece < total:
            i_batch = i_piece // (groups * tiles)
            first_head = i_piece // tiles % groups * group
            first_token = i_piece % tiles * tile
            last_head = min(first_head + group, heads)
            n_tokens = min(tile, length - first_token)
            for i in range(-(-(last_head - first_head) // band) * n_tokens):
                i_tile, low = i % n_tokens, first_head + i // n_tokens * band
                i_token = first_token + i_tile
                i_row = i_token
                if ids:
                    i_row = _index(_at(ids, id_size, i_batch, id_batch, 0, 0, i_token, id_token), id_size)
                p_cos = tables + i_tile * 2 * row_size
                p_sin = p_cos + row_size
                for i_head in range(low, min(low + band, last_head)):
                    p_x = _at(x, size, i_batch, x_batch, i_head, x_head, i_token, x_token)
                    p_out = _at(out, size, i_batch, out_batch, i_head, out_head, i_token, out_token)
                    if copies:
                        if unit:
                            _copy(p_x, p_out, 1, 1, dim, start, pairs, form, 1)
                        else:
                            _copy(p_x, p_out, x_dim, out_dim, dim, start, pairs, form, 0)
                    p_x += start * x_dim * size
                    p_out += start * out_dim * size
                    if i_row < 0 or i_row >= count:
                        _blank(p_out, out_dim, 2 * pairs, form)
                        continue
                    if i_head == first_head or not one_table:
                        p_c = _at(cos, real, i_batch, cos_batch, i_head, cos_head, i_row, cos_row)
                        p_s = _at(sin, real, i_batch, sin_batch, i_head, sin_head, i_row, sin_row)
                        _lay(p_c, p_s, p_cos, p_sin, inner, blocks, conjugate, divide, form)
                    if stream:
                        _turn(p_x, p_out, p_cos, p_sin, 1, 1, inner, blocks, form, 2)
                    elif unit:
                        _turn(p_x, p_out, p_cos, p_sin, 1, 1, inner, blocks, form, 1)
                    else:
                        _turn(p_x, p_out, p_cos, p_sin, x_dim, out_dim, inner, blocks, form, 0)
            finished += 1
            i_piece = _add(call, 1) if shared else i_piece + 1
        # Whether all is done now: true in one of the threads that share the work.
        return 1 if finished and _add(call + 8, finished) + finished == total else 0

    return rows


def _laid(form: int) -> str:
    """How the table rows of a form are laid for its vectors.

    doubled  every cos twice, and -sin, sin: the row is then x * cos + swapped(x) * sin
    woven    of each 16, the even ones, then the odd ones: two bfloat16 are the halves of one 32-bit lane
    plain    as they are
    """
    dtype, reads, writes = _FORMS[form]
    if reads != writes or (reads == "half") != (dtype == torch.bfloat16):
        return "plain"
    return "woven" if dtype == torch.bfloat16 else "doubled"


class _Intrinsic:
    """An intrinsic of the loops above: ``emit(llvm, *values)`` writes its LLVM code where numba meets a call of it.

    Addresses and sizes are in bytes, steps in elements. A parameter named in CONSTANTS is a number when the code is
    made, every other one an int64 of LLVM.
    """

    CONSTANTS = ("form", "unit", "room")

    def __init__(self, emit: Callable[..., Any]) -> None:
        self.emit = emit
        self.signature = inspect.Signature(list(inspect.signature(emit).parameters.values())[1:])
        self.apart = "form" in self.signature.parameters
        self.constant = [name in self.CONSTANTS for name in self.signature.parameters]

    def __call__(self, *values: int) -> int:
        raise TypeError("an intrinsic of compiled code was called from Python")

    def function(self, module: Any, name: str, count: int, known: list[int]) -> Any:
        """An LLVM function for the intrinsic: inlined, its loops would share their counters with those around."""
        from llvmlite import ir

        i64 = ir.IntType(64)
        function = ir.Function(module, ir.FunctionType(i64, [i64] * count), name)
        function.linkage = "internal"
        function.attributes.add("noinline")
        function.attributes.add("optsize")
        builder = ir.IRBuilder(function.append_basic_block())
        self.emit(_Llvm(builder), *function.args, *known)
        builder.ret(i64(0))
        return function

    def register(self) -> None:
        """Makes the intrinsic known to numba."""
        from numba import types
        from numba.core import typing
        from numba.extending import lower_builtin, type_callable

        constant, literal = self.constant, types.IntegerLiteral

        @type_callable(self)
        def typed(_context: Any) -> Callable:
            def typer(*given: Any) -> Any:
                if all(isinstance(kind, literal) for kind, known in zip(given, constant, strict=True) if known):
                    kinds = (kind if known else types.int64 for kind, known in zip(given, constant, strict=True))
                    return typing.signature(types.int64, *kinds)
                return None

            typer.__signature__ = self.signature  # pyright: ignore[reportFunctionMemberAccess]
            return typer

        @lower_builtin(self, *(literal if known else types.int64 for known in constant))
        def lowered(_context: Any, builder: Any, signature: Any, values: Any) -> Any:
            known = [kind.literal_value for kind, fixed in zip(signature.args, constant, strict=True) if fixed]
            values = [value for value, fixed in zip(values, constant, strict=True) if not fixed]
            if not self.apart:
                return self.emit(_Llvm(builder), *values, *known)
            name = "_".join(map(str, (self.emit.__name__, *known)))
            function = builder.module.globals.get(name) or self.function(builder.module, name, len(values), known)
            return builder.call(function, values)


@functools.cache
def _register_intrinsics() -> None:
    for intrinsic in (_stack, _get, _add, _at, _index, _copy, _blank, _lay, _turn):
        intrinsic.register()


class _Llvm:
    """Short forms of llvmlite for the intrinsics below. Addresses need no alignment."""

    def __init__(self, builder: Any) -> None:
        from llvmlite import ir

        self.ir, self.b = ir, builder
        self.i16, self.i32, self.i64 = (ir.IntType(bits) for bits in (16, 32, 64))
        self.float = ir.FloatType()
        self.kinds = {torch.float32: self.float, torch.float64: ir.DoubleType()}
        self.kinds |= {torch.float16: ir.HalfType(), torch.bfloat16: self.i16}

    def number(self, value: int) -> Any:
        return self.ir.Constant(self.i64, value)

    def moved(self, address: Any, index: Any, size: int, step: Any = None) -> Any:
        """The address of an element; elements of ``size`` bytes are ``step`` apart, or side by side."""
        offset = self.b.mul(index, self.number(size))
        return self.b.add(address, offset if step is None else self.b.mul(offset, step))

    def load(self, address: Any, kind: Any, width: int) -> Any:
        return self.b.load(self.b.inttoptr(address, self.ir.VectorType(kind, width).as_pointer()), align=1)

    def store(self, vector: Any, address: Any, stream: bool = False) -> None:
        """Writes a vector; past the caches to ``stream`` it, where the address is a multiple of 16."""
        stored = self.b.store(vector, self.b.inttoptr(address, vector.type.as_pointer()), align=16 if stream else 1)
        if stream:
            stored.set_metadata("nontemporal", self.b.module.add_metadata([self.i32(1)]))

    def splat(self, like: Any, value: float) -> Any:
        return self.ir.Constant(like.type, [value] * like.type.count)

    def cast(self, how: Callable[[Any, Any], Any], vector: Any, kind: Any) -> Any:
        return how(vector, self.ir.VectorType(kind, vector.type.count))

    def pick(self, vector: Any, places: Iterable[int], other: Any = None) -> Any:
        """The lanes at these places of a vector, and of another one behind it."""
        other = self.ir.Constant(vector.type, self.ir.Undefined) if other is None else other
        places = list(places)
        return self.b.shuffle_vector(vector, other, self.ir.Constant(self.ir.VectorType(self.i32, len(places)), places))

    @contextmanager
    def loop(self, count: Any) -> Iterator[Any]:
        """A loop over the body of the with statement, which is given the index."""
        from numba.core import cgutils

        with cgutils.for_range(self.b, count) as loop:
            yield loop.index

    def steps(self, count: Any, widths: tuple[int, ...], emit: Callable[[Any, int], None]) -> None:
        """Loops that call emit(index, width) from 0 to count, the widest steps first."""
        done = self.number(0)
        for width in widths:
            times = self.b.sdiv(self.b.sub(count, done), self.number(width))
            with self.loop(times) as i:
                emit(self.b.add(done, self.b.mul(i, self.number(width))), width)
            done = self.b.add(done, self.b.mul(times, self.number(width)))

    def halves(self, lanes: Any) -> tuple[Any, Any]:
        """The two bfloat16 of each 32-bit lane as float32, of which they are the upper bits."""
        low, high = self.b.shl(lanes, self.splat(lanes, 16)), self.b.and_(lanes, self.splat(lanes, 0xFFFF0000))
        return self.cast(self.b.bitcast, low, self.float), self.cast(self.b.bitcast, high, self.float)

    def rounded(self, vector: Any) -> Any:
        """float32 rounded to nearest even in the upper 16 bits of each lane.

        A NaN stays one: its lower bits are zero, as x has none and ``_lay`` clears those of the tables.
        """
        bits = self.cast(self.b.bitcast, vector, self.i32)
        odd = self.b.and_(self.b.lshr(bits, self.splat(bits, 16)), self.splat(bits, 1))
        return self.b.add(self.b.add(bits, self.splat(bits, 0x7FFF)), odd)

    def joined(self, low: Any, high: Any) -> Any:
        """Two vectors of float32 as the bfloat16 halves of 32-bit lanes."""
        low, high = self.rounded(low), self.rounded(high)
        return self.b.or_(self.b.lshr(low, self.splat(low, 16)), self.b.and_(high, self.splat(high, 0xFFFF0000)))

    def read(self, address: Any, dtype: torch.dtype, width: int) -> Any:
        """Elements in the dtype that the rotation runs in."""
        vector = self.load(address, self.kinds[dtype], width)
        if dtype == torch.bfloat16:
            return self.halves(self.cast(self.b.zext, vector, self.i32))[0]
        return self.cast(self.b.fpext, vector, self.float) if dtype == torch.float16 else vector

    def write(self, vector: Any, address: Any, dtype: torch.dtype, stream: bool = False) -> None:
        if dtype == torch.bfloat16:
            bits = self.rounded(vector)
            vector = self.cast(self.b.trunc, self.b.lshr(bits, self.splat(bits, 16)), self.i16)
        elif dtype == torch.float16:
            vector = self.cast(self.b.fptrunc, vector, self.kinds[dtype])
        self.store(vector, address, stream)

    def rotated(self, a: Any, b: Any, cos: Any, sin: Any) -> tuple[Any, Any]:
        fmul = self.b.fmul
        return self.b.fsub(fmul(a, cos), fmul(b, sin)), self.b.fadd(fmul(b, cos), fmul(a, sin))


@_Intrinsic
def _stack(llvm, room):
    """The address of ``room`` bytes that live until the function returns."""
    with llvm.b.goto_entry_block():
        memory = llvm.b.alloca(llvm.ir.ArrayType(llvm.ir.IntType(8), room))
    memory.align = 64
    return llvm.b.ptrtoint(memory, llvm.i64)


@_Intrinsic
def _get(llvm, address, index):
    """The int64 at an index of an array."""
    return llvm.b.load(llvm.b.inttoptr(llvm.moved(address, index, 8), llvm.i64.as_pointer()))


@_Intrinsic
def _add(llvm, address, amount):
    """Adds ``amount`` to the number at an address, atomically; the number before."""
    return llvm.b.atomic_rmw("add", llvm.b.inttoptr(address, llvm.i64.as_pointer()), amount, "seq_cst")


@_Intrinsic
def _at(llvm, address, size, i_batch, batch, i_head, head, i_row, row):
    """The address of a row; the steps of batches, heads and rows are in elements of ``size`` bytes."""
    mul, add = llvm.b.mul, llvm.b.add
    return add(address, mul(size, add(add(mul(i_batch, batch), mul(i_head, head)), mul(i_row, row))))


@_Intrinsic
def _index(llvm, address, size):
    """The integer of 4 or 8 bytes at an address."""
    with llvm.b.goto_entry_block():
        result = llvm.b.alloca(llvm.i64)
    with llvm.b.if_else(llvm.b.icmp_signed("==", size, llvm.number(8))) as (long, short):
        with long:
            llvm.b.store(llvm.b.load(llvm.b.inttoptr(address, llvm.i64.as_pointer())), result)
        with short:
            value = llvm.b.load(llvm.b.inttoptr(address, llvm.i32.as_pointer()))
            llvm.b.store(llvm.b.sext(value, llvm.i64), result)
    return llvm.b.load(result)


@_Intrinsic
def _copy(llvm, x, out, x_step, out_step, dim, start, pairs, form, unit):
    """Copies what lies before and after the rotated dimensions of a row."""
    dtype = _FORMS[form][0]
    end = llvm.b.add(start, llvm.b.mul(pairs, llvm.number(2)))

    def emit(first: Any, i: Any, width: int) -> None:
        i = llvm.b.add(first, i)
        vector = llvm.load(llvm.moved(x, i, dtype.itemsize, x_step), llvm.kinds[dtype], width)
        llvm.store(vector, llvm.moved(out, i, dtype.itemsize, out_step))

    for first, last in ((llvm.number(0), start), (end, dim)):
        llvm.steps(llvm.b.sub(last, first), _WIDTHS if unit else (1,), functools.partial(emit, first))


@_Intrinsic
def _blank(llvm, out, out_step, count, form):
    """Writes NaN into ``count`` elements of a row."""
    dtype = _FORMS[form][0]
    nan = llvm.ir.Constant(llvm.ir.VectorType(llvm.kinds[_real(dtype)], 1), [float("nan")])
    llvm.steps(count, (1,), lambda i, _: llvm.write(nan, llvm.moved(out, i, dtype.itemsize, out_step), dtype))


@_Intrinsic
def _lay(llvm, cos, sin, to_cos, to_sin, pairs, blocks, conjugate, divide, form):
    """Lays a row of tables as ``_laid`` says, sin negated to conjugate, both divided by cos² + sin² to divide."""
    dtype, order, b = _FORMS[form][0], _laid(form), llvm.b
    kind, size = llvm.kinds[_real(dtype)], _real(dtype).itemsize
    sign = b.select(b.icmp_signed("!=", conjugate, llvm.number(0)), kind(-1.0), kind(1.0))

    def emit(divides: bool, first: Any, i: Any, width: int) -> None:
        i = b.add(first, i)
        c, s = (llvm.load(llvm.moved(table, i, size), kind, width) for table in (cos, sin))
        if divides:
            scale = b.fadd(b.fmul(c, c), b.fmul(s, s))
            c, s = b.fdiv(c, scale), b.fdiv(s, scale)
        s = b.fmul(s, llvm.pick(b.insert_element(s, sign, llvm.i32(0)), [0] * width))
        if dtype == torch.bfloat16:
            c, s = (b.select(b.fcmp_unordered("uno", v, v), llvm.splat(v, float("nan")), v) for v in (c, s))
        if order == "doubled":
            c = llvm.pick(c, [k // 2 for k in range(2 * width)])
            s = llvm.pick(b.fneg(s), [k // 2 + k % 2 * width for k in range(2 * width)], s)
        elif order == "woven" and width == _WIDTHS[0]:
            c, s = (llvm.pick(v, [*range(0, width, 2), *range(1, width, 2)]) for v in (c, s))
        for vector, to in ((c, to_cos), (s, to_sin)):
            llvm.store(vector, llvm.moved(to, i, size * (2 if order == "doubled" else 1)))

    with b.if_else(b.icmp_signed("!=", divide, llvm.number(0))) as branches:
        for branch, divides in zip(branches, (True, False), strict=True):
            with branch, llvm.loop(blocks) as i_block:
                llvm.steps(pairs, _WIDTHS, functools.partial(emit, divides, b.mul(i_block, pairs)))


@_Intrinsic
def _turn(llvm, x, out, cos, sin, x_step, out_step, pairs, blocks, form, unit):
    """Rotates the pairs of a row by laid tables. ``unit`` promises that both steps are 1, as 2 it streams as well."""
    (dtype, reads, writes), order, b = _FORMS[form], _laid(form), llvm.b
    size, real = dtype.itemsize, _real(dtype)

    def ends(address: Any, first: Any, i: Any, step: Any, layout: str) -> tuple[Any, Any]:
        """Where pair i of the block that begins with pair ``first`` has its two elements."""
        if layout == "half":
            i, gap = b.add(b.add(first, first), i), pairs
        else:
            i, gap = b.add(b.add(first, first), b.add(i, i)), llvm.number(1)
        return llvm.moved(address, i, size, step), llvm.moved(address, b.add(i, gap), size, step)

    def woven(i: Any) -> Any:
        """Where ``_lay`` has put pair i: the bits of i below 16 turned by one, but for the last pairs."""
        group, full = b.and_(i, llvm.number(-16)), b.and_(pairs, llvm.number(-16))
        place = b.or_(b.shl(b.and_(i, llvm.number(1)), llvm.number(3)), b.lshr(b.sub(i, group), llvm.number(1)))
        return b.select(b.icmp_signed("<", i, full), b.or_(group, place), i)

    def emit(first: Any, i: Any, width: int) -> None:
        from_first, from_second = ends(x, first, i, x_step, reads)
        to_first, to_second = ends(out, first, i, out_step, writes)
        stream = unit == 2 and width == _WIDTHS[0]
        i = b.add(first, woven(i) if order == "woven" and not unit else i)
        wide = 2 * width if order == "doubled" else width
        c, s = (llvm.load(llvm.moved(t, i, real.itemsize * wide // width), llvm.kinds[real], wide) for t in (cos, sin))
        if order == "doubled" and width > 1:
            row = llvm.read(from_first, dtype, wide)
            swapped = llvm.pick(row, [k ^ 1 for k in range(wide)])
            return llvm.write(b.fadd(b.fmul(row, c), b.fmul(swapped, s)), to_first, dtype, stream)
        if order == "doubled":
            c, s = llvm.pick(c, [0]), llvm.pick(s, [1])
        if order == "woven" and width == _WIDTHS[0]:
            evens, odds = range(width // 2), range(width // 2, width)
            a, z = (llvm.halves(llvm.load(address, llvm.i32, width // 2)) for address in (from_first, from_second))
            even = llvm.rotated(a[0], z[0], llvm.pick(c, evens), llvm.pick(s, evens))
            odd = llvm.rotated(a[1], z[1], llvm.pick(c, odds), llvm.pick(s, odds))
            llvm.store(llvm.joined(even[0], odd[0]), to_first, stream)
            return llvm.store(llvm.joined(even[1], odd[1]), to_second, stream)
        if reads == "half" or width == 1:
            a, z = llvm.read(from_first, dtype, width), llvm.read(from_second, dtype, width)
        elif dtype == torch.bfloat16:
            a, z = llvm.halves(llvm.load(from_first, llvm.i32, width))
        else:
            row = llvm.read(from_first, dtype, 2 * width)
            a, z = llvm.pick(row, range(0, 2 * width, 2)), llvm.pick(row, range(1, 2 * width, 2))
        first, second = llvm.rotated(a, z, c, s)
        if writes == "half" or width == 1:
            llvm.write(first, to_first, dtype, stream)
            llvm.write(second, to_second, dtype, stream)
        elif dtype == torch.bfloat16:
            llvm.store(llvm.joined(first, second), to_first, stream)
        else:
            row = llvm.pick(first, [k // 2 + k % 2 * width for k in range(2 * width)], second)
            llvm.write(row, to_first, dtype, stream)
        return None

    with llvm.loop(blocks) as i_block:
        llvm.steps(pairs, _WIDTHS if unit else (1,), functools.partial(emit, b.mul(i_block, pairs)))


def _real(dtype: torch.dtype) -> torch.dtype:
    """The dtype that a rotation runs in."""
    return torch.float64 if dtype == torch.float64 else torch.float32
