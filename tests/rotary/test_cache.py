"""Which tables are kept: by the whole config, within a bound, shared by all layers, safe between threads."""

import threading

import pytest
import torch

import whorl
from helpers import SCALINGS
from whorl.rotary.cache import current_table_cache

X = torch.randn(1, 2, 40, 64, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def use():
    """Installs a cache for one test."""
    before = current_table_cache()

    def install(*args, **settings):
        cache = whorl.TableCache(*args, **settings)
        whorl.use_table_cache(cache)
        return cache

    yield install
    whorl.use_table_cache(before)


@pytest.fixture
def builds(monkeypatch):
    """The positions for which tables were computed, call by call."""
    seen, plain = [], whorl.Rope.tables

    def watched(self, positions, length=None, **options):
        seen.append((self.config, tuple(positions.shape), length))
        return plain(self, positions, length, **options)

    monkeypatch.setattr(whorl.Rope, "tables", watched)
    return seen


def test_layers_share_one_table(use, builds):
    cache = use("full")
    layers = [whorl.Rope(head_dim=64) for _ in range(4)]
    for layer in layers:
        layer.transform_qk(X, X, torch.arange(40), torch.arange(40))
    assert len(builds) == 1
    assert cache.bytes == 64 * 32 * 2 * 4  # 64 rows, the power of two above 40


def test_a_growing_text_builds_few_tables(use, builds):
    use("full")
    rope = whorl.Rope(head_dim=64)
    for position in range(1000):
        rope.rotate(X[:, :, :1], torch.tensor([position]))
    assert len(builds) == 11  # one for each power of two up to 1024


def test_on_the_fly_keeps_nothing(use, builds):
    cache = use("on_the_fly")
    rope = whorl.Rope(head_dim=64)
    for _ in range(3):
        rope.rotate(X, torch.arange(40))
    assert len(builds) == 3
    assert cache.bytes == 0


def test_hybrid_keeps_the_usual_length_and_computes_beyond(use, builds):
    cache = use("hybrid", length=100)
    rope = whorl.Rope(head_dim=64)
    rope.rotate(X, torch.arange(40))
    rope.rotate(X, torch.arange(60, 100))
    kept = cache.bytes
    assert kept == 100 * 32 * 2 * 4
    assert len(builds) == 2  # to 64, then to 100
    for _ in range(2):
        rope.rotate(X, torch.arange(61, 101))
    assert len(builds) == 4
    assert cache.bytes == kept


@pytest.mark.parametrize("positions", [torch.arange(-1, 39), torch.arange(40.0), torch.arange(40.0).double()])
def test_what_a_table_of_whole_numbers_cannot_serve_is_computed(use, builds, positions):
    cache = use("full")
    rope = whorl.Rope(head_dim=64)
    rope.rotate(X, positions)
    assert [shape for _, shape, _ in builds] == [(40,)]
    assert cache.bytes == 0


def test_configs_and_lengths_have_tables_of_their_own(use):
    cache = use("full")
    one_table = 64 * 32 * 2 * 4
    for base in (1e4, 5e5):
        for angles in ("exact", "float32"):
            whorl.Rope(head_dim=64, base=base, angles=angles).rotate(X, torch.arange(40))
    assert cache.bytes == 4 * one_table
    cache.clear()
    dynamic, plain = (whorl.Rope(head_dim=64, scaling=SCALINGS[name]) for name in ("dynamic_ntk", "yarn"))
    for length in (None, 300, 400):
        dynamic.rotate(X, torch.arange(40), length)
        plain.rotate(X, torch.arange(40), length)
    assert cache.bytes == 4 * one_table  # three lengths of the first, one table of the second


def test_memory_is_bounded_and_the_least_recent_goes_first(use, builds):
    one_table = 64 * 32 * 2 * 4
    cache = use("full", max_bytes=2 * one_table)
    first, second, third = (whorl.Rope(head_dim=64, base=base) for base in (1e2, 1e3, 1e4))
    for rope in (first, second, first, third, first):
        rope.rotate(X, torch.arange(40))
        assert cache.bytes <= 2 * one_table
    assert len(builds) == 3
    second.rotate(X, torch.arange(40))
    assert len(builds) == 4


def test_full_refuses_what_does_not_fit_and_hybrid_computes_it(use):
    use("full", max_bytes=2**20)
    rope = whorl.Rope(head_dim=64)
    with pytest.raises(whorl.WhorlError, match=r"full table to position 10000 takes 2 MiB, over max_bytes = 1 MiB"):
        rope.rotate(X[:, :, :1], torch.tensor([10_000]))
    cache = use("hybrid", length=100_000, max_bytes=2**20)
    expected = rope.turn(X[:, :, :1], rope.tables(torch.tensor([10_000])))
    assert torch.equal(rope.rotate(X[:, :, :1], torch.tensor([10_000])), expected)
    assert cache.bytes == 0


def test_threads_get_right_tables(use):
    cache = use("full", max_bytes=3 * 512 * 32 * 2 * 4)  # too small for all: threads also evict each other's tables
    ropes = [whorl.Rope(head_dim=64, base=100.0 * (i + 2)) for i in range(6)]
    expected = [rope.turn(X, rope.tables(torch.arange(40) + 300)) for rope in ropes]
    wrong = []

    def work(seed):
        order = torch.randperm(6, generator=torch.Generator().manual_seed(seed)).tolist()
        for i in order * 8:
            ropes[i].rotate(X[:, :, :3], torch.arange(3))
            if not torch.equal(ropes[i].rotate(X, torch.arange(40) + 300), expected[i]):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert 0 < cache.bytes <= cache.max_bytes


def test_the_cache_holds_copies_of_nothing_the_caller_can_change(use):
    use("full")
    rope = whorl.Rope(head_dim=64)
    before = rope.rotate(X, torch.arange(40))
    cos, sin = rope.tables(torch.arange(40))
    cos.zero_()
    sin.zero_()
    assert torch.equal(rope.rotate(X, torch.arange(40)), before)


def test_a_length_that_grows_with_its_text_makes_one_row_for_one_row(use, builds):
    cache = use("hybrid")
    rope = whorl.Rope(head_dim=64, scaling=SCALINGS["dynamic_ntk"])
    for length in range(600, 700):
        rope.rotate(X[:, :, :1], torch.tensor([length - 1]), length)
    assert [shape for _, shape, _ in builds] == [(1,)] * 100
    assert cache.bytes == 0


@pytest.mark.parametrize("name", [None, "dynamic_ntk"])
def test_many_layers_share_the_table_of_a_length(use, builds, name):
    """Calls that ask for single rows have the table made once they are many; a prompt has it made at once."""
    use("hybrid")
    rope = whorl.Rope(head_dim=64, scaling=name and SCALINGS[name])
    expected = rope.turn(X[:, :, :1], rope.tables(torch.tensor([639]), 640))
    builds.clear()
    for _ in range(120):
        assert torch.equal(rope.rotate(X[:, :, :1], torch.tensor([639]), 640), expected)
    rows = [shape[0] for _, shape, _ in builds]
    assert rows == ([1024] if name is None else [1] * 79 + [640])
    builds.clear()
    for _ in range(2):
        rope.rotate(torch.zeros(1, 1, 700, 64), torch.arange(700), 700)
    assert [shape[0] for _, shape, _ in builds] == ([] if name is None else [700])


def test_small_tables_are_bounded_by_their_number(use, monkeypatch):
    monkeypatch.setattr(whorl.rotary.cache, "MOST_TABLES", 8)
    cache = use("full")
    for base in range(20):
        whorl.Rope(head_dim=2, base=100.0 + base).rotate(torch.zeros(1, 1, 3, 2), torch.arange(3))
    assert len(cache._kept) == 8 and cache.bytes == 8 * 4 * 2 * 4


@pytest.mark.parametrize("high", [3, 511, 512, 5000, 262_143, 262_144, 300_000, 5_000_000])
def test_a_few_positions_have_the_rows_of_many(high):
    """Few positions go another way through the arithmetic; no bit may tell."""
    ids = torch.arange(max(0, high - 600), high + 1)
    for scaling in (None, SCALINGS["yarn"]):
        rope = whorl.Rope(head_dim=64, scaling=scaling)
        together = rope.tables(ids)
        for few in (ids[-1:], ids[-3:], ids[[0, -1]], -ids[-2:]):
            sign = torch.where(few < 0, -1.0, 1.0)[:, None]
            for table, whole, turned in zip(rope.tables(few), together, (1.0, sign), strict=True):
                assert torch.equal(table, whole[few.abs() - int(ids[0])] * turned)
