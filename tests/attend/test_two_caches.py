"""Two users of one encoding: caches of different sizes, threads and graphs, stepped in turn."""

import gc
import random
import threading
import weakref

import pytest
import torch

import whorl
from attend.test_decoding import BATCH, DEVICE, DIM, ENCODINGS, HEADS, PROMPT, encoding_of, states
from whorl.encodings import made_of

ROOMS = (48, 200)  # each with tables of its own size
pytestmark = pytest.mark.filterwarnings("ignore:T5. the last bucket")


def joined(*names):
    return whorl.Combined(*map(encoding_of, names)).to(DEVICE)


CASES = {name: lambda name=name: encoding_of(name) for name in ENCODINGS} | {
    "rope+alibi": lambda: joined("rope", "alibi"),
    "rerope+t5": lambda: joined("rerope", "t5"),
    "xpos+kerple": lambda: joined("xpos", "kerple"),
    "rope+shaw": lambda: joined("rope", "shaw"),
}


class User:
    """A cache by kernels or on the CPU, beside one that forms all scores: the same steps, compared."""

    def __init__(self, encoding, room, seed, impl):
        self.encoding, self.impl, self.at = encoding, impl, PROMPT
        torch.manual_seed(seed)
        sizes = (HEADS, HEADS // 2, HEADS // 2)
        self.text = [torch.randn(BATCH, heads, PROMPT + 12, DIM, device=DEVICE) for heads in sizes]
        self.fast, self.slow = (whorl.KVCache(encoding=encoding, capacity=room) for _ in range(2))
        for cache in (self.fast, self.slow):
            cache.attend(*(x[:, :, :PROMPT] for x in self.text), **states(encoding, slice(0, PROMPT)))

    def step(self):
        """The largest error of the next step, with this cache's own positions and memory."""
        at = slice(self.at, self.at + 1)
        given = [x[:, :, at] for x in self.text]
        got = self.fast.attend(*given, impl=self.impl, **states(self.encoding, at))
        wanted = self.slow.attend(*given, impl="torch", **states(self.encoding, at))
        self.at += 1
        return (got - wanted).abs().max().item()


@pytest.mark.parametrize("impl", ["triton", "auto"])
@pytest.mark.parametrize("name", CASES)
def test_caches_of_two_sizes_step_in_turn(name, impl):
    encoding = CASES[name]()
    for rooms in (ROOMS, ROOMS[::-1]):
        users = [User(encoding, room, seed, impl) for seed, room in enumerate(rooms)]
        for _ in range(3):
            assert max(user.step() for user in users) < 4e-6


@pytest.mark.parametrize("name", ["alibi", "t5", "fire", "rerope", "shaw", "cope", "transformer_xl", "rope+alibi"])
def test_caches_and_learned_numbers_in_any_order(name):
    encoding, order = CASES[name](), random.Random(name)
    users = [User(encoding, room, seed, "triton") for seed, room in enumerate((48, 200, 64, 48))]
    for _ in range(10):
        if order.random() < 0.3:
            with torch.no_grad():
                for learned in encoding.parameters():
                    learned.mul_(0.9)
        assert order.choice(users).step() < 4e-6


@pytest.mark.parametrize("name", ["alibi", "t5", "rerope", "shaw"])
def test_a_parameter_that_is_replaced_keeps_its_numbers(name):
    """Tables follow the new parameter in memory of their own, and not in that of the old one."""
    encoding = CASES[name]()
    users = [User(encoding, room, seed, "triton") for seed, room in enumerate(ROOMS)]
    assert max(user.step() for user in users) < 4e-6
    old = dict(encoding.named_parameters())
    before = {key: learned.detach().clone() for key, learned in old.items()}
    for key, learned in old.items():
        owner, _, last = key.rpartition(".")
        setattr(encoding.get_submodule(owner), last, torch.nn.Parameter(2.0 * learned.detach()))
    assert max(user.step() for user in users) < 4e-6
    assert all(torch.equal(old[key], before[key]) for key in old)


@pytest.mark.parametrize("name", ["alibi", "kerple", "rope+alibi"])
def test_threads_with_caches_of_their_own(name):
    encoding, worst = CASES[name](), {}

    def run(seed, room):
        user = User(encoding, room, seed, "auto")  # kernels on a GPU: Triton's interpreter has one thread
        worst[seed] = max(user.step() for _ in range(6))

    threads = [threading.Thread(target=run, args=(seed, room)) for seed, room in enumerate((48, 200, 90, 130))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(worst) == 4 and max(worst.values()) < 4e-6


@pytest.mark.parametrize("impl", ["triton", "auto"])
@pytest.mark.parametrize("name", ["alibi", "t5", "fire", "rerope", "shaw", "log_n"])
def test_tables_live_as_long_as_a_cache_and_its_encoding(name, impl):
    gc.collect()
    before, encoding = len(made_of._TABLES), CASES[name]()
    small, large = (User(encoding, room, seed, impl) for seed, room in enumerate(ROOMS))
    small.step()
    kept = [weakref.ref(tables) for tables in made_of._TABLES.values() if tables.is_of(encoding)]
    large.step()
    gc.collect()
    assert all(tables() is not None for tables in kept)  # the small cache reads them still
    assert small.step() < 4e-6
    gone = weakref.ref(encoding)
    del small, large, encoding
    gc.collect()
    assert gone() is None and len(made_of._TABLES) <= before


def test_layers_share_their_tables():
    for name in ("rerope", "t5", "alibi"):
        encoding = encoding_of(name)
        counts = []
        for layer in [User(encoding, ROOMS[0], seed, "triton") for seed in range(3)]:
            layer.step()
            counts.append(sum(tables.is_of(encoding) for tables in made_of._TABLES.values()))
        assert counts == [1, 1, 1]


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_captured_graphs_of_two_sizes(name):
    """Graphs of several kinds of step, replayed in turn behind a step that makes other tables."""
    encoding = CASES[name]()
    users = [User(encoding, room, seed, "triton") for seed, room in enumerate(ROOMS)]
    for user in users:
        user.step()
    graphs = []
    for user in users:
        clock, graph = user.fast.count_on_device(), torch.cuda.CUDAGraph()
        given = [x[:, :, :1].clone() for x in user.text]
        hidden = {key: x.clone() for key, x in states(encoding, slice(0, 1)).items()}
        user.fast.attend(*given, impl="triton", **hidden)
        with torch.cuda.graph(graph):
            out = user.fast.attend(*given, impl="triton", **hidden)
            clock.advance()
        graphs.append((given, hidden, graph, out))
    for turn in range(4):
        for user, (given, hidden, graph, out) in zip(users, graphs, strict=True):
            at = slice(user.at, user.at + 1)
            here = [x[:, :, at] for x in user.text]
            for x, new in zip(given, here, strict=True):
                x.copy_(new)
            for key, x in states(encoding, at).items():
                hidden[key].copy_(x)
            graph.replay()
            wanted = user.slow.attend(*here, impl="torch", **states(encoding, at))
            torch.testing.assert_close(out, wanted, atol=4e-6, rtol=0)
            user.at += 1
        if turn == 1:  # others take the memory that was let go
            other = User(encoding, 90, 7, "triton")
            other.step()
            del other
            gc.collect()
            [torch.full((2**18,), torch.nan, device=DEVICE) for _ in range(8)]
