"""The numba rotation equals the torch path bit for bit, and a plain loop within one rounding, wherever tensors lie."""

from __future__ import annotations

import mmap
import os
import platform
import subprocess
import sys
import threading
from array import array
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import ROUNDING
from oracles import rotation_loops

pytest.importorskip("numba")

from whorl.kernels import numba_threads, rotate_numba
from whorl.kernels.numba_threads import Compiled, share
from whorl.kernels.rotate_numba import SUPPORTED, ready, why_not
from whorl.rotary.rotation import Order, Rotation, inverse_tables, turn_pairs

ENDS = ("half", "interleaved")
NAN = float("nan")


def turn(x, cos, sin, out, rows, rotation):
    """One tensor turned into out by a kernel made ready for it."""
    ready((x,), cos, sin, (out,), rows, rotation)((x,), cos, sin, (out,), rows)


@dataclass(repr=False)
class Case:
    """One call of turn."""

    x: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor
    out: torch.Tensor
    rows: torch.Tensor | None = None
    order: Order = "bhld"
    reads: str = "half"
    writes: str = "half"
    start: int = 0
    blocks: int = 1
    conjugate: bool = False
    divide: bool = False

    def __repr__(self) -> str:
        tensors = (
            f"{name}: {tuple(t.shape)} by {t.stride()}"
            for name in ("x", "cos", "sin", "out")
            for t in [getattr(self, name)]
        )
        rest = (f"{name}={getattr(self, name)}" for name in list(self.__dataclass_fields__)[4:])
        return f"{self.x.dtype}, {', '.join(tensors)}, {', '.join(rest)}"

    @property
    def rotation(self) -> Rotation:
        return Rotation(self.order, self.reads, self.writes, self.start, self.blocks, self.conjugate, self.divide)

    def run(self) -> torch.Tensor:
        """Out, after the kernel has written it."""
        turn(self.x, self.cos, self.sin, self.out, self.rows, self.rotation)
        return self.out

    def torch_path(self) -> torch.Tensor:
        """What the torch formula gives, table rows gathered first, NaN for those that are not there."""
        cos, sin = self.cos, self.sin
        if self.rows is not None:
            known = (self.rows >= 0) & (self.rows < cos.shape[-2])
            ids = torch.where(known, self.rows, 0).long()
            if self.x.ndim < 4 and ids.ndim == 2:
                ids, known = ids[0], known[0]
            cos, sin = (_gathered(table, ids, known, self.x, self.order) for table in (cos, sin))
        if self.divide:
            cos, sin = inverse_tables(cos, sin)
            sin = -sin
        if self.conjugate:
            sin = -sin
        cos, sin = (_aligned(table, self.order) for table in (cos, sin))
        return turn_pairs(self.x, cos, sin, self.reads, self.writes, start=self.start, blocks=self.blocks)

    def by_loops(self) -> torch.Tensor:
        """What plain fp64 loops give."""
        x, cos, sin = (t.double().numpy() for t in (self.x, self.cos, self.sin))
        rows = None if self.rows is None else self.rows.numpy()
        return torch.from_numpy(rotation_loops.rotate(x, cos, sin, rows, *self.rotation))


def _gathered(table, ids, known, x, order):
    """The table rows of each token, in a table with a batch axis where ids have one."""
    if ids.ndim == 1:
        table, known = table[..., ids, :], known[:, None]
    else:
        batch = x.shape[0]
        ids, known = ids.expand(batch, -1), known.expand(batch, -1)[:, None, :, None]
        table = table[None, None] if table.ndim == 2 else table[:, None] if table.ndim == 3 else table
        table = table.expand(batch, *table.shape[1:])
        table = torch.stack([table[i][:, ids[i]] for i in range(batch)])
    return torch.where(known, table, NAN)


def _aligned(table, order):
    if table.ndim == 2:
        return table if order == "bhld" else table[:, None]
    if table.ndim == 3:
        return table[:, None] if order == "bhld" else table[:, :, None]
    return table if order == "bhld" else table.transpose(1, 2)


def _random(shape, dtype, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def _placed(values, axes, steps, offset):
    """(tensor equal to values in memory of its own strides, that memory, which of it the tensor covers); gaps are NaN.

    ``axes`` is the order of the axes in memory, outermost first, ``steps`` how many elements each leaves out.
    """
    strides, step = [0] * values.ndim, 1
    for axis in reversed(axes):
        strides[axis] = step * (1 + steps[axis])
        step = strides[axis] * max(1, values.shape[axis])
    memory = torch.full((offset + step + 64,), NAN, dtype=values.dtype)
    tensor = memory.as_strided(values.shape, strides, offset)
    covered = torch.zeros(memory.shape, dtype=torch.bool)
    covered.as_strided(values.shape, strides, offset).fill_(True)
    return tensor.copy_(values), memory, covered


def assert_same(got, expected):
    """Equal bits, except that one NaN is as good as another."""
    assert got.dtype == expected.dtype and got.shape == expected.shape
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[got.element_size()]
    got, expected = got.contiguous(), expected.contiguous()
    different = (got.view(integer) != expected.view(integer)) & ~(got.isnan() & expected.isnan())
    assert not different.any(), (got[different][:5], expected[different][:5])


def assert_close(case):
    """Out is the plain loops' result, rounded."""
    expected = case.by_loops()
    pairs = case.cos.shape[-1]
    assert torch.equal(case.out.isnan(), expected.isnan())
    size = case.x.double().abs().amax() * 2 * (case.cos.abs().amax() + case.sin.abs().amax()).double()
    if case.divide:
        size = size / (case.cos.double() ** 2 + case.sin.double() ** 2).amin()
    bound = 4 * ROUNDING[torch.float32 if case.x.dtype != torch.float64 else torch.float64] * size if pairs else 0.0
    error = (case.out.double() - expected).abs().nan_to_num()
    assert (error <= bound + ROUNDING[case.x.dtype] * expected.abs().nan_to_num()).all()


@st.composite
def cases(draw):
    """A call with everything drawn: order, sizes, strides, gaps, table axes, rows, part, blocks, layouts, dtype."""
    number = st.integers
    dtype = draw(st.sampled_from(SUPPORTED))
    order, ndim = draw(st.sampled_from([("bhld", 2), ("bhld", 3), ("bhld", 4), ("bhld", 4), ("blhd", 4), ("thd", 3)]))
    batch, heads, length = draw(number(1, 3)), draw(number(1, 5)), draw(number(1, 9))
    if order != "bhld" or ndim == 4:
        batch = batch if ndim == 4 else 1
    else:
        batch, heads = 1, heads if ndim == 3 else 1
    blocks = draw(number(1, 3))
    pairs = blocks * draw(st.sampled_from([1, 2, 3, 5, 8, 16, 17, 23, 40]))
    start, after = draw(number(0, 5)), draw(number(0, 20)) if draw(st.booleans()) else 0
    dim = start + 2 * pairs + after
    whole = {"bhld": (batch, heads, length, dim), "blhd": (batch, length, heads, dim), "thd": (length, heads, dim)}
    shape = whole[order][-ndim:]
    seed = draw(number(0, 1000))

    def placed(values):
        unit = draw(st.booleans())
        axes = draw(st.permutations(range(values.ndim)))
        axes = [*(axis for axis in axes if axis != values.ndim - 1), values.ndim - 1] if unit else axes
        steps = [draw(number(0, 2)) for _ in axes[:-1]] + [0 if unit else draw(number(0, 2))]
        return _placed(values, axes, steps, draw(number(0, 7)))

    rows, count = None, length
    if draw(st.booleans()):
        count = draw(number(1, 6))
        rows_shape = (length,) if draw(st.booleans()) else (draw(st.sampled_from([1, batch])), length)
        kind = draw(st.sampled_from([torch.int64, torch.int32]))
        rows = torch.randint(-2, count + 2, rows_shape, generator=torch.Generator().manual_seed(seed), dtype=kind)
        rows = rows if draw(st.booleans()) else rows.repeat_interleave(2, -1)[..., ::2]
    table_shape = [count, pairs]
    if ndim == 4 and draw(st.booleans()):
        table_shape = [draw(st.sampled_from([1, batch])), *table_shape]
        if draw(st.booleans()):
            table_shape.insert(1, draw(st.sampled_from([1, heads])))
    kind = torch.float64 if dtype == torch.float64 else torch.float32
    cos, sin = (placed(_random(table_shape, kind, seed + i))[0] for i in (1, 2))
    if draw(st.booleans()):
        cos, sin = cos[..., :1, :].expand(cos.shape), sin  # every row the same, with stride 0
    x = placed(_random(shape, dtype, seed))[0]
    out, memory, covered = placed(torch.full(shape, NAN, dtype=dtype))
    reads, writes = draw(st.sampled_from(ENDS)), draw(st.sampled_from(ENDS))
    flags = draw(st.booleans()), draw(st.booleans())
    return Case(x, cos, sin, out, rows, order, reads, writes, start, blocks, *flags), memory, covered


@settings(max_examples=250, deadline=None, derandomize=True)
@given(cases())
def test_equals_torch_and_loops_wherever_tensors_lie(drawn):
    case, memory, covered = drawn
    before = case.x.clone()
    assert_same(case.run(), case.torch_path())
    assert memory[~covered].isnan().all(), "wrote between the elements of out"
    assert_same(case.x, before)
    if case.x.numel() <= 1500:
        assert_close(case)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(cases())
def test_in_place(drawn):
    case, _, _ = drawn
    case.writes = case.reads
    expected = case.torch_path()
    case.out = case.x
    assert_same(case.run(), expected)


def plain_case(shape=(2, 3, 8, 32), dtype=torch.float32, **how):
    """A call on contiguous tensors."""
    *_, length, dim = shape
    kind = torch.float64 if dtype == torch.float64 else torch.float32
    cos, sin = (_random((length, dim // 2), kind, seed) for seed in (1, 2))
    x = _random(shape, dtype, 0)
    return Case(x, cos, sin, torch.full_like(x, NAN), **how)


@pytest.mark.parametrize("rows", [None, torch.int32, torch.int64])
def test_ready_serves_other_tensors_of_the_same_shapes(rows):
    case = plain_case()
    if rows is not None:
        case.rows = torch.tensor([5, 0, 7, 7, 1, 2, 3, 8], dtype=rows)
    run = ready((case.x,), case.cos, case.sin, (case.out,), case.rows, case.rotation)
    case.x, case.cos, case.sin = (
        _random(t.shape, t.dtype, seed) for seed, t in enumerate((case.x, case.cos, case.sin))
    )
    case.rows = None if case.rows is None else case.rows.flip(0)
    run((case.x,), case.cos, case.sin, (case.out,), case.rows)
    assert_same(case.out, case.torch_path())


def test_rows_far_outside_are_not_read():
    case = plain_case((1, 2, 4, 8))
    case.rows = torch.tensor([2**62, -(2**62), 2**31, 3])
    got = case.run()
    assert got[:, :, :3].isnan().all() and not got[:, :, 3].isnan().any()


@pytest.mark.parametrize("shape", [(0, 2, 3, 8), (2, 0, 3, 8), (2, 2, 0, 8), (2, 2, 3, 0), (0, 8), (3, 0)])
def test_axes_without_elements(shape):
    case = plain_case(shape)
    assert_same(case.run(), case.x)


def test_tables_without_pairs_copy():
    case = plain_case()
    case.cos, case.sin = case.cos[:, :0], case.sin[:, :0]
    assert_same(case.run(), case.x)


@pytest.mark.parametrize(("dtype", "ends"), [(torch.float64, "interleaved"), (torch.float32, "half")])
def test_rows_larger_than_the_stack_holds(dtype, ends):
    case = plain_case((2, 2, 3, 2 * 1500), dtype, reads=ends, writes=ends)
    assert_same(case.run(), case.torch_path())


@pytest.mark.skipif(sys.platform != "linux", reason="needs memory that is mapped without being reserved")
def test_offsets_beyond_32_bits():
    """Strides of more than 2**31 elements, in memory that is mapped and not touched."""
    far, no_reserve = 2**31 + 6, 0x4000
    with mmap.mmap(-1, 2 * (3 * far + 64), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve) as mapped:
        memory = torch.frombuffer(mapped, dtype=torch.bfloat16)
        x = memory.as_strided((1, 2, 2, 16), (0, far, 2 * far, 1)).copy_(_random((1, 2, 2, 16), torch.bfloat16, 0))
        out = memory.as_strided((1, 2, 2, 16), (0, far, 2 * far, 1), 32)
        words = memory[: memory.numel() // 2 * 2].view(torch.float32)
        cos = words.as_strided((3, 8), (far // 2, 1), 24).copy_(_random((3, 8), torch.float32, 1))
        case = Case(x, cos, _random((3, 8), torch.float32, 2), out, rows=torch.tensor([2, 1]))
        assert_same(case.run(), case.torch_path())
        del memory, x, out, words, cos, case


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("ends", ENDS)
def test_every_half_precision_number_is_read_and_written(dtype, ends):
    """Turned by nothing, all 65,536 of them come back."""
    values = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    pairs = values.view(1024, 64)
    x = torch.zeros(1024, 128, dtype=dtype)
    x[:, _first_ends(64, ends)] = pairs
    case = Case(x, torch.ones(1024, 64), torch.zeros(1024, 64), torch.full_like(x, NAN), reads=ends, writes=ends)
    assert_same(case.run()[:, _first_ends(64, ends)], pairs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("reads", ENDS)
@pytest.mark.parametrize("writes", ENDS)
def test_rounding_is_to_nearest_even(dtype, reads, writes):
    """1 * cos is cos: between all neighbours, at the midpoint, beside it, at NaN of any payload, at overflow."""
    numbers = torch.arange(2**16, dtype=torch.int32)
    low = 16 if dtype == torch.bfloat16 else 13
    bits = numbers[:, None] << 16 if dtype == torch.bfloat16 else _float_bits(numbers)[:, None]
    beside = torch.tensor([0, 1, 2 ** (low - 1) - 1, 2 ** (low - 1), 2 ** (low - 1) + 1, 2**low - 1], dtype=torch.int32)
    tiny = torch.randint(0, 0x39000000, (2**16,), dtype=torch.int32, generator=torch.Generator().manual_seed(0))
    values = torch.cat(
        ((bits + beside).flatten(), tiny, tiny | -(2**31), torch.tensor([-1, 2**31 - 1], dtype=torch.int32))
    )
    values = torch.cat((values, torch.zeros(-len(values) % 23, dtype=torch.int32))).view(torch.float32)
    cos = values.view(-1, 23)  # 16 + 4 + 3: every width of the vectors
    x = torch.zeros(len(cos), 46, dtype=dtype)
    x[:, _first_ends(23, reads)] = 1.0
    case = Case(x, cos, torch.zeros_like(cos), torch.full_like(x, 7.0), reads=reads, writes=writes)
    assert_same(case.run()[:, _first_ends(23, writes)], cos.to(dtype))


def _first_ends(pairs, ends):
    """Where the first elements of the pairs are."""
    return slice(0, pairs) if ends == "half" else slice(0, 2 * pairs, 2)


def _float_bits(halves):
    """The bits of the float32 that equal float16 of the given bits."""
    return halves.to(torch.int16).view(torch.float16).float().view(torch.int32)


@pytest.mark.parametrize("dtype", SUPPORTED)
def test_what_is_not_finite_goes_where_torch_puts_it(dtype):
    special = torch.tensor([0.0, -0.0, 1.0, float("inf"), -float("inf"), NAN, 1e-40, -2.5], dtype=torch.float64)
    a, b = (t.flatten() for t in torch.meshgrid(special, special, indexing="ij"))
    x = torch.cat((a, b)).to(dtype).expand(8, 128).contiguous()
    kind = torch.float64 if dtype == torch.float64 else torch.float32
    cos = special[:, None].expand(8, 64).to(kind)
    for sin in (cos.flip(0), cos.roll(1, 0)):
        for divide in (False, True):
            case = Case(x, cos, sin, torch.full_like(x, 7.0), conjugate=divide, divide=divide)
            assert_same(case.run(), case.torch_path())


@pytest.fixture(params=["torch's threads", "helpers"])
def three_threads(request, monkeypatch):
    """Three threads for tensors of any size: those of torch's OpenMP, or those that help without it."""
    if request.param == "helpers":
        monkeypatch.setattr(numba_threads, "_openmp", None)
    elif numba_threads._openmp is None:
        pytest.skip("torch has no GNU OpenMP here")
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    monkeypatch.setattr(rotate_numba, "_SHARE", 64)
    yield
    torch.set_num_threads(threads)


def many_pieces(seed, dtype=torch.float32, order="bhld"):
    """A call of at least 48 pieces of work."""
    shape = (4, 3, 192, 256) if order == "bhld" else (4, 192, 3, 256)
    cos, sin = (_random((4, 192, 128), torch.float32, seed + i) for i in (1, 2))
    x = _random(shape, dtype, seed)
    return Case(x, cos, sin, torch.full_like(x, NAN), order=order)


@pytest.mark.usefixtures("three_threads")
@pytest.mark.parametrize("order", ["bhld", "blhd"])
def test_shared_work_is_all_done(order):
    for seed in range(5):
        case = many_pieces(seed, order=order)
        assert_same(case.run(), case.torch_path())


@pytest.mark.usefixtures("three_threads")
def test_eight_python_threads_at_once():
    cases = [many_pieces(seed) for seed in range(8)]
    expected = [case.torch_path() for case in cases]
    failures = []

    def work(case, result):
        try:
            for _ in range(20):
                case.out.fill_(NAN)
                assert_same(case.run(), result)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work, args=pair) for pair in zip(cases, expected, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures and not any(thread.is_alive() for thread in threads)


@pytest.mark.usefixtures("three_threads")
def test_beside_torch_threads():
    case, matrix = many_pieces(0), torch.randn(300, 300, dtype=torch.float64)
    product, expected = matrix @ matrix, case.torch_path()
    for _ in range(20):
        assert torch.allclose(matrix @ matrix, product)
        assert_same(case.run(), expected)


@pytest.fixture
def one_helper(monkeypatch):
    """share() of a Python function with one helper, as a function of it and what to keep."""
    monkeypatch.setattr(numba_threads, "_openmp", None)
    return lambda function, keep: share(Compiled(function, 0), array("q", [0]), array("q", [0]), keep, 2)


def is_helper():
    return threading.current_thread().name == "whorl-helper"


def test_a_failure_in_a_helper_reaches_the_caller(one_helper):
    def function(call):
        if is_helper():
            raise MemoryError("no room")
        return 0

    with pytest.raises(MemoryError, match="no room"):
        one_helper(function, [])
    one_helper(lambda call: is_helper(), [])  # the helper goes on, and the caller waits for it


def test_what_was_kept_for_helpers_is_let_go(one_helper):
    keep = [object()]
    one_helper(lambda call: not is_helper(), keep)
    assert keep == []


def run_python(code, **environment):
    """What a fresh interpreter prints; it must end well and write nothing to stderr."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


# Torch's own threads hang in a child, so that what is not ours is done by numpy there.
FORK = """
import os, sys, numpy, torch
from whorl.kernels import rotate_numba
from whorl.rotary.rotation import Rotation
assert "numba" not in sys.modules, "numba is imported before it is used"
torch.set_num_threads(3)
x, cos, sin = torch.randn(1, 8, 2048, 64), torch.randn(2048, 32), torch.randn(2048, 32)
out = torch.empty_like(x)

def result():
    out.numpy().fill(numpy.nan)
    given = (x,), cos, sin, (out,), None
    rotate_numba.ready(*given, Rotation("bhld", "half", "half"))(*given)
    return out.numpy().copy()

expected = result()
for generation in range(3):
    assert all(numpy.array_equal(result(), expected) for _ in range(5))
    child = os.fork() if generation < 2 else 0
    if child:
        assert os.waitpid(child, 0)[1] == 0
        break
print(generation, flush=True)
if generation:
    os._exit(0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_children_of_fork_have_helpers_of_their_own_and_exit_is_clean():
    assert run_python(FORK).split() == ["2", "1", "0"]


ELSEWHERE = """
import torch
from whorl.kernels.rotate_numba import ready, why_not
from whorl.rotary.rotation import Rotation
print(why_not(), why_not(torch.bfloat16), why_not(torch.float16), sep="; ")
x, cos, sin = torch.randn(4, 64).bfloat16(), torch.ones(4, 32), torch.zeros(4, 32)
out = torch.empty_like(x)
given = (x,), cos, sin, (out,), None
ready(*given, Rotation("bhld", "half", "half"))(*given)
assert torch.equal(out, x)
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names a processor of this kind")
def test_a_processor_without_float16_and_a_disk_without_cache(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    given = {"NUMBA_CPU_NAME": "x86-64", "NUMBA_CPU_FEATURES": "", "NUMBA_CACHE_DIR": str(blocked / "cache")}
    printed = run_python(ELSEWHERE, **given)
    assert printed == "None; None; this CPU has no instruction that converts float16\n"


def test_reasons(monkeypatch):
    assert why_not() is None
    assert why_not(torch.int64) == "it takes float32, float64, bfloat16 and float16, not int64"
    from numba.core import config

    monkeypatch.setattr(config, "DISABLE_JIT", 1)
    assert why_not.__wrapped__() == "NUMBA_DISABLE_JIT is set"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert why_not.__wrapped__() == "numba is not installed"
