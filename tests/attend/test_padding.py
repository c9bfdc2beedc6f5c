"""What padding has for positions is anything: real tokens never see a difference, in outputs and in gradients."""

import math

import pytest
import torch

import whorl
from dense_flow import normal
from registry_cases import HEAD_DIM, HEADS, NAMES, build, hidden_for, tokens
from whorl.attend.padding import in_order, near_real, tamed

LENGTH = 10
WHOLE = [-(2**63), 2**63 - 1, 2**53, -(2**53), 2**31, 10**6, -1]
BROKEN = [math.nan, math.inf, -math.inf, 1e300, -1e17, 2.5]
WHERE = {
    "before": [[0, 0, 0, 1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]],
    "behind": [[1, 1, 1, 1, 1, 1, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0]],
    "between": [[1, 0, 1, 1, 0, 1, 1, 1, 0, 1], [0, 1, 1, 1, 1, 1, 0, 1, 1, 0]],
}
CASES = {
    **{name: lambda name=name: build(name) for name in NAMES},
    "rope with alibi": lambda: whorl.Combined(whorl.Rope(head_dim=HEAD_DIM), whorl.Alibi(heads=HEADS)),
    "split alibi": lambda: whorl.Alibi(heads=HEADS, form="split"),
    "t5 on both sides": lambda: whorl.T5(heads=HEADS, bidirectional=True),
    "power kerple": lambda: whorl.Kerple(heads=HEADS, variant="power"),
    "clamped transformer_xl": lambda: whorl.TransformerXL(heads=HEADS, head_dim=HEAD_DIM, clamp=3),
}
WHOLE_ONLY = {"deberta", "shaw", "clamped transformer_xl"}  # their positions are indices of tables


def padded(where, axes):
    """A mask, and positions that count its real tokens."""
    real = torch.tensor(WHERE[where], dtype=torch.bool)
    positions = whorl.from_mask(real)
    return real, positions if axes == 1 else positions.expand(axes, -1, -1)


def sentinels(name):
    """Positions of padding, in the dtype that real ones have beside them."""
    whole = [(torch.int64, number) for number in WHOLE] + [(torch.int32, -(2**31)), (torch.int32, 2**31 - 1)]
    return whole + ([] if name in WHOLE_ONLY else [(torch.float64, number) for number in BROKEN])


def same(name, got, expected, causal=True):
    # padding that lies near moves the centre of xPos, and its place where tokens are sorted: sums are rounded otherwise
    moved = name == "xpos" or (causal == "positions" and name in ("cope", "forgetting_gate"))
    torch.testing.assert_close(got, expected, rtol=0, atol=2e-5 if moved else 0)


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("name", CASES)
def test_positions_of_padding_count_nowhere(name, where):
    encoding, found = CASES[name](), {}
    real, positions = padded(where, encoding.axes)
    q, k, v = tokens(LENGTH)
    options = {"encoding": encoding, "key_mask": real, **hidden_for(encoding, LENGTH)}
    orders = [True] + [False] * (not encoding.causal_only) + ["positions"] * (encoding.axes == 1)

    def run(ids, causal):
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        out = whorl.attention(*leaves, positions=ids, causal=causal, **options).transpose(1, 2)[real]
        return torch.cat((out.flatten(), *(x.flatten() for x in torch.autograd.grad(out.square().sum(), leaves))))

    for dtype, number in sentinels(name):
        for causal in orders:
            if (dtype, causal) not in found:
                found[dtype, causal] = run(positions.to(dtype), causal)
            ids = torch.where(real, positions.to(dtype), torch.tensor(number, dtype=dtype))
            same(name, run(ids, causal), found[dtype, causal], causal)


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("name", CASES)
def test_positions_of_padding_count_nowhere_in_a_cache(name, where):
    encoding, found = CASES[name](), {}
    real, positions = padded(where, encoding.axes)
    x, hidden = tokens(LENGTH), hidden_for(encoding, LENGTH)

    def run(ids):
        cache, outs = whorl.KVCache(encoding=encoding), []
        for cut in (slice(0, 4), slice(4, 5), slice(5, LENGTH)):
            kept = {name: states[:, cut] for name, states in hidden.items()}
            given = {"positions": ids[..., cut], "key_mask": real[:, cut], **kept}
            outs.append(cache.attend(*(each[:, :, cut] for each in x), **given))
        kept = {name: states[:, :1] for name, states in hidden.items()}
        more = [cache.attend(*(each[:, :, :1] for each in x), **kept) for _ in range(2)]  # positions go on from there
        cache.change_encoding(encoding)  # tries the next step
        return torch.cat([torch.cat(outs, dim=2).transpose(1, 2)[real].flatten(), *(out.flatten() for out in more)])

    for dtype, number in sentinels(name):
        if dtype == torch.int32:  # kept as int64
            continue
        if dtype not in found:
            found[dtype] = run(positions.to(dtype))
        ids = torch.where(real, positions.to(dtype), torch.tensor(number, dtype=dtype))
        same(name, run(ids), found[dtype])


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("learned", "sinusoidal")])
def test_queries_that_are_hidden_as_keys_keep_their_own_positions(name):
    """Rows that a mask calls padding get what the formula says all the same, with positions given or not."""
    encoding, real = build(name), torch.tensor(WHERE["between"], dtype=torch.bool)
    q, k, v = tokens(LENGTH)
    options = {"encoding": encoding, "key_mask": real, **hidden_for(encoding, LENGTH)}
    positions = torch.arange(LENGTH) if encoding.axes == 1 else torch.arange(LENGTH).expand(encoding.axes, -1)
    for causal in [True] + [False] * (not encoding.causal_only):
        expected = whorl.attention(q, k, v, causal=causal, **options)
        for given in ({}, {"key_positions": positions.clone()}):
            got = whorl.attention(q, k, v, positions=positions, causal=causal, **given, **options)
            torch.testing.assert_close(got, expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("number", [-(2**63), 2**63 - 1, 2**53, -5])
def test_positions_of_padding_count_nowhere_in_linear_attention(number, where):
    real, positions = padded(where, 1)
    x = [normal(2, 2, LENGTH, 8, seed=seed) for seed in range(3)]
    ids = torch.where(real, positions, number)
    for options in (
        {"form": "decay", "decay": [0.1, 0.02]},
        {"encoding": whorl.XPos(head_dim=8)},
        {"encoding": whorl.Rope(head_dim=8)},
    ):

        def run(ids, options=options):
            whole = whorl.linear_attention(*x, positions=ids, key_mask=real, chunk=4, **options)
            state = whorl.LinearState(chunk=4, **options).step(*x, positions=ids, key_mask=real)
            return torch.cat((whole, state)).transpose(1, 2)[real.repeat(2, 1)]

        torch.testing.assert_close(run(ids), run(positions), rtol=0, atol=1e-12)


def test_padding_is_brought_near_and_no_further_than_it_must():
    real = torch.tensor([[0, 1, 1, 0, 1, 0], [0, 0, 0, 0, 0, 0]], dtype=torch.bool)
    ids = torch.tensor([[-50, 3, 4, 2**62, 9, 11], [7, 2**60, 7, 7, 7, -3]])
    assert near_real(ids, real, 20).tolist() == [[3, 3, 4, 4, 9, 11], [0] * 6]
    assert near_real(ids, real, 6).tolist() == [[3, 3, 4, 4, 9, 9], [0] * 6]  # 3 to 9, and no room beside them
    assert near_real(ids[0], real[0], -1).tolist() == [3, 3, 4, 4, 9, 9]
    assert in_order(ids, real).tolist() == [[-3, 3, 4, 9, 9, 11], ids[1].tolist()]
    assert tamed(torch.tensor([math.nan, math.nan, 1e16]), torch.tensor([True, False, False])).tolist()[1:] == [
        0.0,
        0.0,
    ]
