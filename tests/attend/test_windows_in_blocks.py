"""Windows look at their own keys alone: blocks of queries give what formed scores under the whole mask give."""

import pytest
import torch

import whorl
from dense_flow import normal
from whorl.attend import blocks
from whorl.attend.visibility import Visibility

HEADS, DIM = 4, 16

CASES = {
    "window": lambda: whorl.Combined(whorl.Rope(head_dim=DIM), whorl.Window(size=40)),
    "sinks": lambda: whorl.Combined(whorl.Rope(head_dim=DIM), whorl.Sinks(size=33, count=5)),
    "symmetric": lambda: whorl.Combined(whorl.Rope(head_dim=DIM), whorl.Window(size=40, symmetric=True)),
    "two": lambda: whorl.Combined(whorl.Window(size=7), whorl.Sinks(size=33, count=3)),
    "many sinks": lambda: whorl.Combined(
        whorl.Rope(head_dim=DIM), whorl.Sinks(size=3, count=300, symmetric=True), whorl.Window(size=9)
    ),
    "folded": lambda: whorl.Combined(whorl.Alibi(heads=HEADS), whorl.Sinks(size=33)),
    "masked": lambda: whorl.Combined(whorl.Kerple(heads=HEADS).requires_grad_(False), whorl.Window(size=40)),
    "learned": lambda: whorl.Combined(whorl.T5(heads=HEADS), whorl.Sinks(size=33)),
    "scores": lambda: whorl.Combined(whorl.Cope(head_dim=DIM), whorl.Sinks(size=33)),
}


def expected(q, k, v, encoding, causal, key_mask):
    """The definition, over the whole square: hooks one by one."""
    queries, keys = q.shape[2], k.shape[2]
    positions = torch.arange(keys)
    rows = positions[keys - queries :]
    k, v = (x.repeat_interleave(HEADS // x.shape[1], 1) for x in (k, v))
    scale = encoding.softmax_scale(DIM)
    turned = encoding.transform_qk(q, k, rows, positions)
    allowed = encoding.mask(rows, positions) & key_mask[:, None, None]
    if causal:
        allowed = allowed & (rows[:, None] >= positions)
    scores = (turned[0] @ turned[1].mT * scale).masked_fill(~allowed, -torch.inf)
    scores = encoding.adjust_scores(scores, q, k, rows, positions, scale=scale)
    bias = encoding.score_bias(rows, positions)
    scores = scores if bias is None else scores + bias
    weights = scores.masked_fill(~allowed, -torch.inf).softmax(-1).nan_to_num(0.0)
    return weights @ v


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("queries", [230, 171])
@pytest.mark.parametrize(
    ("name", "causal"), [(name, causal) for name in CASES for causal in (True, False) if causal or name != "scores"]
)
def test_blocks_of_a_window_are_the_whole(name, causal, queries, padded, monkeypatch):
    """Without padding, blocks that see as many keys are one batch."""
    monkeypatch.setattr(blocks, "WINDOW_ROWS", range(16, 2049))
    encoding, keys = CASES[name]().double(), 230
    q = normal(2, HEADS, queries, DIM, grad=True)
    k, v = normal(2, 2, keys, DIM, seed=1, grad=True), normal(2, 2, keys, 8, seed=2, grad=True)
    key_mask = torch.rand(2, keys, generator=torch.Generator().manual_seed(0)) > 0.1 * padded
    wanted = [q, k, v, *(p for p in encoding.parameters() if p.requires_grad)]
    more = {"key_mask": key_mask} if padded else {}
    got = whorl.attention(q, k, v, encoding=encoding, causal=causal, **more)
    true = expected(q, k, v, encoding, causal, key_mask)
    torch.testing.assert_close(got, true, rtol=0, atol=1e-10)
    for one, other in zip(*(torch.autograd.grad(out.sin().sum(), wanted) for out in (got, true)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["window", "sinks", "folded", "masked", "learned"])
def test_keys_out_of_a_window_are_not_looked_at(name, monkeypatch):
    """No block of scores, and no mask, is as wide as the text."""
    widths = []
    taken = blocks.taken

    def spy(x, runs, axis=2):
        found = taken(x, runs, axis)
        widths.append(found.shape[axis])
        return found

    for module in ("blocks", "fused", "softmax"):
        monkeypatch.setattr(f"whorl.attend.{module}.taken", spy, raising=False)
    q = normal(1, HEADS, 2000, DIM, dtype=torch.float32)
    whorl.attention(q, q, q, encoding=CASES[name]())
    assert widths and max(widths) <= blocks.WINDOW_ROWS.start + 40


def test_a_mask_of_ones_own_is_not_cut_by_the_window_below():
    """A subclass that lets more be seen says nothing of how far: all keys are looked at."""

    class Odd(whorl.Window):
        def mask(self, q_positions, k_positions):
            return super().mask(q_positions, k_positions) | (k_positions % 2 == 1)[..., None, :]

    q = normal(1, 2, 900, DIM)
    positions = torch.arange(900)
    allowed = ((positions[:, None] - positions < 5) | (positions % 2 == 1)) & (positions[:, None] >= positions)
    true = (q @ q.mT * DIM**-0.5).masked_fill(~allowed, -torch.inf).softmax(-1) @ q
    for encoding in (Odd(size=5), whorl.Combined(Odd(size=5), whorl.NoPE())):
        torch.testing.assert_close(whorl.attention(q, q, q, encoding=encoding), true, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kept", [0, 300])
def test_a_cache_takes_the_same_blocks(name, kept):
    """A prompt, and one that comes in two parts: bit for bit what ``attention`` gives, so by the same way."""
    encoding = CASES[name]()
    causal = not any(getattr(part.config, "symmetric", False) for part in encoding.encodings)
    q, k, v = normal(1, HEADS, 600, DIM, seed=1), normal(1, 2, 600, DIM, seed=2), normal(1, 2, 600, DIM, seed=3)
    cache = whorl.KVCache(encoding=encoding)
    with torch.no_grad():
        if kept:
            cache.attend(q[:, :, :kept], k[:, :, :kept], v[:, :, :kept], causal=causal)
        found = cache.attend(q[:, :, kept:], k[:, :, kept:], v[:, :, kept:], causal=causal)
        assert torch.equal(found, whorl.attention(q[:, :, kept:], k, v, encoding=encoding, causal=causal))


@pytest.mark.parametrize("grad", [False, True])
def test_a_mask_of_all_pairs_is_formed_for_few_queries_at_a_time(grad, monkeypatch):
    """Rows of unequal length within a window: positions differ by row, and so does what is seen."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, heads, 40, 16, requires_grad=grad) for heads in (4, 2, 2))
    mask = torch.arange(40) >= torch.tensor([[0], [7]])
    given = {"positions": (mask.cumsum(-1) - 1).clamp(min=0), "key_mask": mask, "encoding": whorl.Window(size=6)}
    wanted = whorl.attention(q, k, v, **given, impl="torch")
    formed, rows = [], Visibility.rows

    def watched(self, *args):
        found = rows(self, *args)
        formed.append(found.shape[-2])
        return found

    monkeypatch.setattr(Visibility, "rows", watched)
    monkeypatch.setitem(blocks.MOST_SCORES, "cpu", 2 * 40 * 16)
    got = whorl.attention(q, k, v, **given)
    assert formed == [16, 16, 8]
    torch.testing.assert_close(got, wanted, rtol=0, atol=2e-6)
    if grad:
        found, expected = (torch.autograd.grad(out.sin().sum(), (q, k, v)) for out in (got, wanted))
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-6)
