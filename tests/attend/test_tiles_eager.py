"""Calls by tiles that nobody traces: kernels run past the dispatcher, and numbers of a bias by few operations."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import whorl
from helpers import draw, planned
from whorl.attend.call import checked
from whorl.attend.tiles import why_slow
from whorl.encodings.made_of import MadeOf

pytest.importorskip("triton")

pytestmark = pytest.mark.usefixtures("small_tiles")
HEADS, DIM, WIDTH, LENGTH = 2, 16, 12, 40


def encodings():
    return {
        "alibi": whorl.Alibi(heads=HEADS),
        "t5": whorl.T5(heads=HEADS, max_distance=30),
        "fire": whorl.Fire(heads=HEADS, length=16),
        "gate": whorl.ForgettingGate(heads=HEADS, width=WIDTH),
        "rerope": whorl.ReRope(head_dim=DIM, window=9),
    }


class Seen(TorchDispatchMode):
    """The operators that are called."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        self.names.append(str(operator))
        return operator(*args, **(kwargs or {}))


def found(encoding, device):
    """The output, and gradients of queries, keys, values and what is learned."""
    q, k, v = (draw(1, HEADS, LENGTH, DIM, seed=seed, device=device).requires_grad_() for seed in range(3))
    options = {"hidden": draw(1, LENGTH, WIDTH, seed=4, device=device)} if encoding.reads_hidden else {}
    out = whorl.attention(q, k, v, encoding=encoding, impl="triton", **options)
    weight = draw(*out.shape, seed=5, device=device)
    return out, *torch.autograd.grad(out, (q, k, v, *encoding.parameters()), weight)


@pytest.mark.parametrize("name", encodings())
def test_operators_are_for_those_who_see_them(name, device):
    encoding = encodings()[name].to(device)
    direct = found(encoding, device)
    with Seen() as seen:
        by_operators = found(encoding, device)
    assert sum(name.endswith(("s_forward.default", "s_backward.default")) for name in seen.names) == 2
    assert "Direct" in str(direct[0].grad_fn) and "Direct" not in str(by_operators[0].grad_fn)
    for one, other in zip(direct, by_operators, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_a_second_gradient_is_refused_and_a_graph_of_the_first_is_not(device):
    q = draw(1, HEADS, LENGTH, DIM, device=device).requires_grad_()
    out = whorl.attention(q, q, q, encoding=whorl.Alibi(heads=HEADS), impl="triton")
    (grad,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
    with pytest.raises(whorl.WhorlError, match="no gradient of its gradient"):
        grad.sum().backward()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_fires_lines_have_the_gradient_of_their_formula(dtype):
    torch.manual_seed(0)
    fire = whorl.Fire(heads=HEADS, length=20).to(dtype)
    with torch.no_grad():
        fire.c.fill_(-0.13)
        fire.multiplier.fill_(-1.0)  # position 20 is where both are the same
        fire.w1[3] = 0.0
    learned, positions = tuple(fire.parameters()), torch.arange(50)
    once, formula = fire.line_numbers(positions, 128), fire.formed_lines(positions, 128)[0]
    assert torch.equal(once, formula)
    weight = draw(*once.shape)
    for one, other in zip(
        torch.autograd.grad(once, learned, weight), torch.autograd.grad(formula, learned, weight), strict=True
    ):
        assert one.dtype == other.dtype and one.shape == other.shape
        torch.testing.assert_close(one, other, rtol=3e-6, atol=1e-6)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_t5_reads_many_distances_as_one_by_one(bidirectional):
    t5 = whorl.T5(heads=HEADS, bidirectional=bidirectional)
    distances = torch.arange(-200, 201)
    part = t5.parts[0]
    many, single = part.table_between(-200, 200, torch.device("cpu")), part.table(distances)
    assert part.bucketed and torch.equal(many, single)
    weight = draw(*many.shape)
    (one,), (other,) = (torch.autograd.grad(x, t5.table, weight) for x in (many, single))
    torch.testing.assert_close(one, other)


def test_a_bucket_of_its_own_is_not_passed_by():
    class Mine(whorl.T5):
        def bias_of(self, head, distance):
            return super().bias_of(head, distance) + 1.0

    part = Mine(heads=HEADS).parts[0]
    assert not part.bucketed
    assert torch.equal(part.table_between(0, 9, torch.device("cpu")), part.table(torch.arange(10)))


def test_a_learned_table_at_given_positions_forms_scores_where_it_learns():
    x = draw(1, HEADS, LENGTH, DIM)
    t5, positions = whorl.T5(heads=HEADS), torch.arange(LENGTH) % 9
    assert "pair by pair" in why_slow(checked(x, x, x, encoding=t5, positions=positions))
    assert why_slow(checked(x, x, x, encoding=t5)) is None
    assert why_slow(checked(x, x, x, encoding=whorl.Kerple(heads=HEADS), positions=positions)) is None
    with torch.no_grad():
        assert why_slow(checked(x, x, x, encoding=t5, positions=positions)) is None


def test_what_is_kept_knows_whether_learned_numbers_ask_for_gradients():
    t5 = whorl.T5(heads=HEADS)
    made = MadeOf(t5, lambda own: own.table.float())
    assert made.takes_gradients()
    t5.requires_grad_(False)
    assert not made.takes_gradients()
    assert not MadeOf(whorl.Alibi(heads=HEADS), lambda own: torch.ones(1)).takes_gradients()


@pytest.mark.gpu
@pytest.mark.parametrize("name", encodings())
def test_kept_calls_give_what_the_first_gave(name):
    encoding = encodings()[name].to("cuda")
    q, k, v = (draw(1, HEADS, LENGTH, DIM, seed=seed, device="cuda").requires_grad_() for seed in range(3))
    options = {"hidden": draw(1, LENGTH, WIDTH, seed=4, device="cuda")} if encoding.reads_hidden else {}
    learned = tuple(encoding.parameters())

    def call():
        out = whorl.attention(q, k, v, encoding=encoding, **options)
        return out, *torch.autograd.grad(out.square().sum(), (q, k, v, *learned))

    first = call()
    assert planned(encoding)
    for one, other in zip(first, call(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        for parameter in learned:  # the next call sees what is learned
            parameter.mul_(1.5)  # a number added to all would change no weight
    changed = call()
    assert not learned or not torch.allclose(changed[0], first[0], rtol=0, atol=1e-4)
    encoding.requires_grad_(False)
    again = whorl.attention(q, k, v, encoding=encoding, **options)
    torch.testing.assert_close(again, changed[0], rtol=1e-4, atol=1e-5)
