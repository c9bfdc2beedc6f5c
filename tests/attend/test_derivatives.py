"""Derivatives of attention beyond the first gradient: forward, second, and through torch.func."""

import pytest
import torch
from torch.autograd.forward_ad import dual_level, make_dual, unpack_dual
from torch.func import grad, jacrev, jvp, vmap

import whorl
from dense_flow import normal
from registry_cases import NAMES, build, hidden_for
from whorl.attend import blocks

ENCODINGS = {
    "none": whorl.NoPE,
    "rope": lambda: whorl.Rope(head_dim=8),
    "learnable": lambda: whorl.Rope(head_dim=8, learnable=True),
    "folded": lambda: whorl.Alibi(heads=2),
    "masked": lambda: whorl.Kerple(heads=2).requires_grad_(False),
    "window": lambda: whorl.Combined(whorl.Rope(head_dim=8), whorl.Window(size=3)),
}


def attend(encoding, impl="auto"):
    return lambda x: whorl.attention(x, x.roll(1, -1), x.roll(2, -1), encoding=encoding, impl=impl)


@pytest.mark.parametrize("name", ENCODINGS)
def test_forward_derivatives_are_the_differences(name):
    run, x, v = attend(ENCODINGS[name]()), normal(1, 2, 9, 8), normal(1, 2, 9, 8, seed=1)
    step = 1e-6
    true = (run(x + step * v) - run(x - step * v)).detach() / (2 * step)
    _, tangent = jvp(run, (x,), (v,))
    torch.testing.assert_close(tangent.detach(), true, rtol=1e-6, atol=1e-7)
    with dual_level():
        torch.testing.assert_close(unpack_dual(run(make_dual(x, v))).tangent.detach(), true, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ENCODINGS)
def test_second_gradients_are_refused_in_words_and_computed_by_torch(name):
    encoding, x = ENCODINGS[name](), normal(1, 2, 9, 8, grad=True)
    first, _ = torch.autograd.grad(attend(encoding)(x).sin().sum(), (x, x), create_graph=True)
    with pytest.raises(whorl.WhorlError, match=r"attention: .*gradient of its gradient\. Pass impl='torch'"):
        torch.autograd.grad(first.sum(), x)
    assert torch.autograd.gradgradcheck(attend(encoding, "torch"), (normal(1, 2, 4, 8, grad=True),))
    twice = grad(lambda y: grad(lambda z: attend(encoding)(z).sin().sum())(y).sin().sum())(x.detach())
    (again,) = torch.autograd.grad(attend(encoding, "torch")(x).sin().sum(), x, create_graph=True)
    (expected,) = torch.autograd.grad(again.sin().sum(), x)
    torch.testing.assert_close(twice, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", ENCODINGS)
def test_first_gradients_of_each_sample_and_output(name):
    run, x = attend(ENCODINGS[name]()), normal(3, 1, 2, 5, 8)
    got = vmap(grad(lambda one: run(one).sin().sum()))(x)
    true = torch.stack([torch.autograd.functional.vjp(lambda y: run(y).sin().sum(), one)[1] for one in x])
    torch.testing.assert_close(got, true, rtol=1e-9, atol=1e-9)
    jacobian = torch.autograd.functional.jacobian(run, x[0])
    torch.testing.assert_close(jacrev(run)(x[0]).detach(), jacobian, rtol=1e-9, atol=1e-9)


def test_a_first_gradient_leaves_no_hook_behind():
    x = normal(1, 2, 9, 8, grad=True)
    attend(whorl.NoPE())(x).sum().backward()
    assert not x._backward_hooks


@pytest.mark.parametrize("name", NAMES)
def test_torch_means_formed_scores(name):
    encoding = build(name)
    x = normal(1, 4, 6, 16, dtype=torch.float32)
    said = whorl.explain_attention(x, x, x, encoding=encoding, impl="torch", **hidden_for(encoding, 6, batch=1))
    assert said.startswith("dense: asked for")


def test_second_gradients_of_many_blocks(monkeypatch):
    """Blocks are made again on the way back, and that has derivatives too."""
    whole = torch.autograd.functional.hvp
    run, x, v = attend(whorl.Alibi(heads=2), "torch"), normal(1, 2, 9, 8), normal(1, 2, 9, 8, seed=1)
    expected = whole(lambda y: run(y).sin().sum(), x, v)[1]
    monkeypatch.setitem(blocks.MOST_SCORES, "cpu", 2 * 9 * 2)
    torch.testing.assert_close(whole(lambda y: run(y).sin().sum(), x, v)[1], expected, rtol=1e-9, atol=1e-9)
