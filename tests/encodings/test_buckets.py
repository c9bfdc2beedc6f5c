"""Where widening buckets begin, by whole numbers alone; and that the list of them goes with its encoding."""

import copy
import decimal
import gc
import pickle
import weakref
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

import whorl
from whorl.constants import WholeNumbers
from whorl.encodings.buckets import reached, widening
from whorl.encodings.deberta import bucket_starts
from whorl.encodings.t5 import bucket_edges


def side(number, near, far, power):
    """-1, 0 or 1: a whole number against near (far / near)^power, by powers of whole numbers."""
    up, down = power.as_integer_ratio()
    ours, other = number**down * near**up, far**up * near**down
    return (ours > other) - (ours < other)


def by_bisection(near, far, power, at_least):
    """The smallest whole number that is near (far / near)^power, or above it: as it was found before, number by number.

    ``at_least`` is 0 where the number itself counts, and 1 where only those above do.
    """
    low, high = near, 2 * far * far
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if side(middle, near, far, power) >= at_least else (middle + 1, high)
    return low


def edges(buckets, max_distance):
    near = buckets // 2
    found = (by_bisection(near, max_distance, Fraction(i, buckets - near), 0) for i in range(1, buckets - near))
    return [*range(1, near + 1), *found]


def starts(span, max_distance):
    mid = span // 2
    powers = (Fraction(i, mid - 1) for i in range(span - mid)) if mid > 1 else ()
    found = (by_bisection(mid, max_distance - 1, power, 1) for power in powers)
    return tuple(min(start, 2**63 - 1) for start in found)


# Ratios that have whole roots, so that edges fall on whole numbers, and others; small and far.
ROOTS = [root**power for root in (2, 3, 10) for power in (2, 4, 7, 15)]
SIZES = [
    (buckets, max_distance)
    for buckets in (2, 3, 4, 5, 8, 16, 31, 32, 64)
    for near in [buckets // 2]
    for max_distance in sorted({near + 2, 128, 1000, 10**6 + 1, *(near * ratio for ratio in ROOTS)})
]


@pytest.mark.parametrize("buckets, max_distance", SIZES)
def test_every_bucket_begins_where_whole_numbers_say(buckets, max_distance):
    assert bucket_edges(buckets, max_distance) == edges(buckets, max_distance)
    assert bucket_starts(buckets, max_distance) == starts(buckets, max_distance)


@settings(max_examples=100, deadline=None)
@given(st.integers(2, 70), st.integers(2, 10**12))
def test_any_size(buckets, further):
    max_distance = buckets // 2 + further
    assert bucket_edges(buckets, max_distance) == edges(buckets, max_distance)
    assert bucket_starts(buckets, max_distance) == starts(buckets, max_distance)


@pytest.mark.parametrize("far", [8192, 2048 * 3**5 + 1, 2**43, 2**63 - 1])
def test_thousands_of_buckets(far):
    """In a moment: powers of so many digits for each of them would take minutes."""
    found = widening(2048, far, 2048, 2048)
    assert [below for below, _ in found] == sorted(below for below, _ in found)
    for step in (0, 1, 64, 777, 1024, 2047):
        (below, whole), power = found[step], Fraction(step, 2048)
        assert side(below, 2048, far, power) == (0 if whole else -1) and side(below + 1, 2048, far, power) == 1
    whorl.T5(heads=1, buckets=4096, max_distance=far)
    whorl.Deberta(heads=1, head_dim=2, span=4096, max_distance=far)


def test_a_context_of_the_user_changes_nothing():
    with decimal.localcontext(decimal.Context(prec=3, traps=[decimal.Inexact])):
        assert bucket_edges(32, 128) == edges(32, 128)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 40])
def test_one_distance_at_a_time_has_reached_as_many(count):
    starts = torch.arange(1, 3 * count, 3)
    distances = torch.arange(3 * count + 2)
    every = reached(distances, starts)
    assert every.tolist() == [sum(start <= d for start in starts.tolist()) for d in distances.tolist()]
    assert torch.equal(torch.stack([reached(each, starts) for each in distances]), every)


def test_distances_in_any_order_in_memory():
    turned = torch.arange(12).view(3, 4).mT
    assert torch.equal(reached(turned, torch.tensor([2, 7])), reached(turned.contiguous(), torch.tensor([2, 7])))
    for encoding in (whorl.T5(heads=2, bidirectional=True), whorl.Deberta(heads=2, head_dim=4)):
        positions = torch.arange(40).view(8, 5).mT
        q, k = torch.randn(5, 2, 8, 4), torch.randn(5, 2, 8, 4)
        one, two = (
            whorl.attention(q, k, k, encoding=encoding, positions=ids) for ids in (positions, positions.contiguous())
        )
        torch.testing.assert_close(one, two)


def used(encoding):
    """The encoding after it was asked for its numbers in every way."""
    ids, q = torch.tensor([0, 3, 10**7]), torch.randn(1, 2, 3, 4)
    whorl.attention(q, q, q, encoding=encoding, positions=ids)
    if isinstance(encoding, whorl.T5):
        encoding.score_bias(ids, ids)
        encoding.bias_between(-9, 9, torch.device("cpu"))
    return encoding


def kept_bytes():
    gc.collect()
    tensors = [thing for thing in gc.get_objects() if type(thing) in (torch.Tensor, torch.nn.Parameter)]
    return sum(each.untyped_storage().nbytes() for each in tensors)


@pytest.mark.parametrize(
    "make",
    [
        lambda i: whorl.T5(heads=2, max_distance=1_000_000 + i),
        lambda i: whorl.T5(heads=2, max_distance=1_000_000 + i, bidirectional=True),
        lambda i: whorl.T5(heads=2, buckets=4096, max_distance=8192 + i),
        lambda i: whorl.Deberta(heads=2, head_dim=4, span=1024, max_distance=8192 + i),
    ],
)
def test_memory_goes_with_the_encoding(make):
    used(make(500))
    before = kept_bytes()
    for i in range(120):
        used(make(i))
    assert kept_bytes() - before < 2**14


@pytest.mark.parametrize("make", [lambda: whorl.T5(heads=2), lambda: whorl.Deberta(heads=2, head_dim=4)])
def test_an_encoding_makes_its_list_once_and_a_copy_its_own(make):
    encoding = used(make())
    held = next(thing for thing in vars(encoding).values() if isinstance(thing, WholeNumbers))
    on_device = held.on(torch.device("cpu"))
    assert held.on(torch.device("cpu")) is on_device
    for other in (copy.deepcopy(encoding), pickle.loads(pickle.dumps(encoding)), copy.copy(held)):
        own = next((thing for thing in vars(other).values() if isinstance(thing, WholeNumbers)), other)
        assert own.numbers == held.numbers and own.on(torch.device("cpu")) is not on_device
    gone = weakref.ref(on_device)
    del encoding, held, on_device, other, own
    gc.collect()
    assert gone() is None


def test_a_list_is_made_outside_of_modes():
    with torch.inference_mode():
        numbers = WholeNumbers([3, 5])
        assert not numbers.on(torch.device("cpu")).is_inference()
    with FakeTensorMode():
        numbers = WholeNumbers([3, 5])
        assert isinstance(numbers.on(torch.device("cpu")), FakeTensor)
    assert numbers.on(torch.device("cpu")).tolist() == [3, 5]
