"""A child of fork returns from its first call, whatever the other threads of its parent were doing."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from whorl.forks import Uncut

pytest.importorskip("numba")
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")

# A process of its own, so that what hangs can be ended and other tests' threads are not forked. Its arguments: what a
# thread does again and again, how many children, and after how many seconds a child counts as hanging.
PROGRAM = """
import faulthandler, os, sys, threading, time
import torch, whorl

doing, children, patience = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
torch.set_num_threads(1)
x = torch.randn(1, 2, 8, 64)
# what torch prepares for itself when an operation is first called is not waited for
torch.arange(8), torch.empty_like(x), torch.aminmax(x), torch.cat((x * x, x - x)).chunk(2), x.double()
torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)
rope = whorl.Rope(head_dim=64)
others = [whorl.TableCache("full") for _ in range(3)]  # locks of caches that nobody has put to use

def build_tables(i):
    whorl.Rope(head_dim=64, base=100.0 + i).rotate(torch.zeros(1, 1, 2048, 64), torch.arange(2048))

def build_own_tables(i):
    for cache in others:
        cache.prefix(i, torch.arange(4096), 8, lambda ids: rope.tables(ids))
        cache.clear()

def load_kernels(i):
    from whorl.kernels import rotate_numba
    from whorl.plans import PLANS
    rotate_numba._KERNELS.clear()
    PLANS.cache_clear()
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        whorl.rotate(x.to(dtype), *rope.tables(torch.arange(8)))

def compile_something_else(i):
    import numba
    numba.njit(lambda n: n + 1)(i)

def first_calls(i):  # imports numba, and the modules behind public names
    if not i:
        whorl.rotate(x, *rope.tables(torch.arange(8)))
        whorl.attention(x, x, x, encoding=rope)
        whorl.models.Decoder

def again_and_again():
    i = 0
    while not done:
        globals()[doing](i)
        i += 1

if doing != "first_calls":
    whorl.rotate(x, *rope.tables(torch.arange(8)))
    whorl.attention(x, x, x, encoding=rope)

def child():
    if doing == "build_own_tables":
        whorl.use_table_cache(others[1])
        others[0].clear()
        assert others[2].bytes >= 0
    dtype = torch.float64 if doing in ("load_kernels", "compile_something_else") else torch.float32
    other = whorl.Rope(head_dim=64, base=50.0)  # whose tables nobody has built
    cos, sin = other.tables(torch.arange(8))
    turned = other.rotate(x.to(dtype), torch.arange(8))
    assert torch.allclose(turned.float(), whorl.rotate(x, cos, sin, impl="torch"), atol=1e-5)
    whorl.attention(x, x, x, encoding=rope)

def born():
    pid = os.fork()
    if pid:
        return pid, time.monotonic() + patience
    try:
        faulthandler.dump_traceback_later(patience / 2)
        child()
        os._exit(0)
    except BaseException:
        import traceback
        traceback.print_exc()
        os._exit(1)

done = False
busy = threading.Thread(target=again_and_again)
busy.start()
hanging, failed = 0, 0
alive = []
for i in range(children):
    time.sleep(0.005 * (i % 7))
    alive.append(born())
    while alive and (len(alive) > 3 or i == children - 1):
        pid, end = alive[0]
        if not (gone := os.waitpid(pid, os.WNOHANG))[0]:
            if time.monotonic() < end:
                time.sleep(0.002)
                continue
            os.kill(pid, 9)
            gone = os.waitpid(pid, 0)
            hanging += 1
        elif gone[1]:
            failed += 1
        alive.pop(0)
done = True
busy.join()
print(children, "children,", hanging, "hang,", failed, "failed")
"""


def fork_while(doing, children, patience=60.0):
    source = Path(__file__).parent.parent / "src"
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM, doing, str(children), str(patience)],
        env={**os.environ, "PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        timeout=(children / 4 + 2) * patience,
    )
    assert process.returncode == 0, process.stderr[-2000:]
    assert process.stdout.strip() == f"{children} children, 0 hang, 0 failed", process.stderr[-2000:]


DOING = ("build_tables", "build_own_tables", "load_kernels", "compile_something_else", "first_calls")


@pytest.mark.parametrize("doing", DOING)
def test_children_return(doing):
    fork_while(doing, 6)


@pytest.mark.large
@pytest.mark.parametrize("doing", DOING)
def test_many_children_return(doing):
    fork_while(doing, 200)


def test_a_fork_waits_for_who_is_inside_and_for_nobody_else():
    uncut, entered, go, seen = Uncut(), threading.Event(), threading.Event(), []

    def inside():
        with uncut, uncut:
            entered.set()
            go.wait(10)
            seen.append("left")

    thread = threading.Thread(target=inside)
    thread.start()
    assert entered.wait(10)
    threading.Timer(0.2, go.set).start()
    uncut.before_fork()
    seen.append("forks")
    uncut.after_fork()
    thread.join(10)
    assert seen == ["left", "forks"]
    with uncut:  # from inside: not waited for
        uncut.before_fork()
        uncut.after_fork()


def test_threads_inside_do_not_wait_for_each_other_nor_for_a_waiting_fork():
    uncut, first, second, forked = Uncut(), threading.Event(), threading.Event(), threading.Event()

    def one():
        with uncut:
            first.set()
            second.wait(10)

    def fork():
        uncut.before_fork()
        uncut.after_fork()
        forked.set()

    threads = [threading.Thread(target=one), threading.Thread(target=fork)]
    threads[0].start()
    assert first.wait(10)
    threads[1].start()
    time.sleep(0.1)
    assert not forked.is_set()
    with uncut:  # entered while the fork waits for the first
        second.set()
    assert forked.wait(10)
    for thread in threads:
        thread.join(10)


def test_a_lock_of_another_library_is_held_while_forking():
    uncut, lock, took = Uncut(), threading.RLock(), []
    uncut.hold(lock)
    uncut.hold(lock)
    uncut.before_fork()
    thread = threading.Thread(target=lambda: took.append(lock.acquire(blocking=False)))
    thread.start()
    thread.join(10)
    uncut.after_fork()
    assert took == [False] and lock.acquire(blocking=False)
    lock.release()
