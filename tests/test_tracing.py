"""Who stands between the code and plain tensors: every answer in every situation."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from whorl import tracing

QUESTIONS = (
    "making_graph",
    "in_mode",
    "in_functorch",
    "is_transformed",
    "values_are_hidden",
    "operators_are_watched",
    "may_keep_tensors",
    "takes_further_derivatives",
)


def answers() -> set[str]:
    """The questions that are answered with yes."""
    return {name for name in QUESTIONS if getattr(tracing, name)()}


def seen(run) -> set[str]:
    found: list[set[str]] = []

    def function(x):
        found.append(answers())
        return x * 2

    run(function)
    assert found and all(one == found[0] for one in found)
    return found[0]


def in_forward_mode(function):
    with torch.autograd.forward_ad.dual_level():
        function(torch.ones(3))


def in_a_mode(function):
    class Looking(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    with Looking():
        function(torch.ones(3))


X = torch.ones(3)
WATCHED = "operators_are_watched"
FUNCTORCH = {"in_functorch", "is_transformed", "values_are_hidden", WATCHED}


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (lambda f: f(X), {"may_keep_tensors"}),
        (in_a_mode, {"in_mode", WATCHED}),
        (in_forward_mode, {"is_transformed", WATCHED, "may_keep_tensors", "takes_further_derivatives"}),
        (lambda f: torch.jit.trace(f, X, check_trace=False), {WATCHED, "may_keep_tensors"}),
        (lambda f: torch.vmap(f)(X), FUNCTORCH),
        (lambda f: torch.func.grad(lambda x: f(x).sum())(X), FUNCTORCH),
        (
            lambda f: torch.func.grad(lambda x: torch.func.grad(f)(x) + x)(X[0]),
            FUNCTORCH | {"takes_further_derivatives"},
        ),
        (lambda f: torch.func.jvp(f, (X,), (X,)), FUNCTORCH | {"takes_further_derivatives"}),
    ],
    ids=["plainly", "mode", "forward mode", "jit", "vmap", "grad", "grad of grad", "jvp"],
)
def test_every_answer(run, expected):
    assert seen(run) == expected
    assert answers() == {"may_keep_tensors"}


def test_in_a_compiled_graph():
    names = ("making_graph", "values_are_hidden", "operators_are_watched", "may_keep_tensors", "is_transformed")

    def function(x):
        yes = [getattr(tracing, name)() for name in names]
        return x * 2, yes, tracing.may_read_values(x), tracing.takes_gradients(x)

    compiled = torch.compile(function, fullgraph=True, backend="eager")
    assert compiled(X)[1:] == ([True, True, True, False, False], False, False)
    assert compiled(X.clone().requires_grad_())[3] is True


def test_which_values_memory_and_addresses_may_be_read():
    class Other(torch.Tensor):
        pass

    other, parameter = X.as_subclass(Other), torch.nn.Parameter(torch.ones(3))
    negative = torch.ones(3, dtype=torch.complex64).conj().imag
    assert negative.is_neg()
    for x, values, memory, address in (
        (X, True, True, True),
        (negative, True, False, True),
        (parameter, False, False, True),
        (other, False, False, False),
        (X.to("meta"), False, True, True),
    ):
        assert tracing.may_read_values(x) == values
        assert tracing.may_read_memory(x) == memory
        assert tracing.may_read_addresses(X, None, x) == address
    read: list[bool] = []

    def function(x):
        read.extend((tracing.may_read_values(x), tracing.may_read_addresses(x)))
        return x

    torch.vmap(function)(X)
    assert read == [False, False]


def test_gradients_of_many_losses_at_once_are_many_tensors_in_one():
    read: list[bool] = []
    x = torch.ones(3, requires_grad=True)
    y = x * 1
    y.register_hook(lambda gradient: read.append(tracing.may_read_memory(gradient)))
    torch.autograd.grad(y * 2, x, torch.eye(3), is_grads_batched=True)
    assert read == [False]


def test_which_derivatives_are_taken():
    x, learned = torch.ones(3), torch.ones(3, requires_grad=True)
    assert not tracing.takes_gradients(x, None) and tracing.takes_gradients(x, None, learned)
    with torch.no_grad():
        assert not tracing.takes_gradients(learned) and not tracing.takes_derivatives(learned)
        with torch.autograd.forward_ad.dual_level():
            assert tracing.takes_derivatives(x) and not tracing.takes_gradients(x)
