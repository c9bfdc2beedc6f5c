"""Tensors made of learned numbers: made anew when one of those is another, and only then."""

import pytest
import torch
from torch import nn

from whorl.encodings.made_of import MANY, MadeOf

SIZES = [(3, 4), (MANY // 64, 64), (3 * MANY // 64 + 1, 64)]  # small ones and large ones are compared in two ways


class Counted(nn.Module):
    """A parameter, and how often something was made of it."""

    def __init__(self, start):
        super().__init__()
        self.learned, self.times = nn.Parameter(start), 0
        self.made = MadeOf(self, Counted.make)

    def make(self):
        self.times += 1
        return self.learned.detach().double() * 2

    def now(self):
        """What is made of the numbers now."""
        found = self.made()
        assert torch.equal(found.nan_to_num(7.0), (self.learned.detach().double() * 2).nan_to_num(7.0))
        return self.times


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", SIZES)
def test_one_number_anywhere_is_seen(size, dtype):
    module = Counted(torch.randn(size).to(dtype))
    assert module.now() == module.now() == 1
    for times, at in enumerate((0, 1, size[0] * size[1] // 2, -1), start=2):
        module.learned.data.view(-1)[at] += 1  # torch counts no such change
        assert module.now() == module.now() == times


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "start",
    [
        lambda size: torch.randn(size[::-1]).mT,
        lambda size: torch.randn(*size, 2)[..., 0],
        lambda size: torch.randn(size, dtype=torch.complex64).conj().imag,
        lambda size: torch.randn(1, size[1]).expand(size),
    ],
)
def test_numbers_in_any_order_in_memory(start, size):
    module = Counted(start(size))
    assert module.now() == module.now() == 1
    module.learned.data = module.learned.data + 1
    assert module.now() == module.now() == 2


@pytest.mark.parametrize("size", SIZES[1:])
def test_large_ones_that_are_no_numbers_stay_what_they_are(size):
    module = Counted(torch.full(size, torch.nan))
    assert module.now() == module.now() == 1
    module.learned.data[0, 0] = 0.0
    assert module.now() == 2
    module.learned.data[0, 0] = -0.0  # of which one may be made that is infinite the other way
    assert module.now() == 3


def test_another_parameter_dtype_or_shape_is_seen():
    module = Counted(torch.randn(MANY))
    changes = (nn.Module.double, nn.Module.half, lambda one: setattr(one, "learned", nn.Parameter(torch.ones(MANY))))
    for times, change in enumerate(changes, start=1):
        assert module.now() == times
        change(module)
    assert module.now() == 4
    module.learned.data = torch.ones(2 * MANY)
    assert module.now() == 5
