"""Claims about masks, and about attention without an encoding."""

from __future__ import annotations

import torch
from torch import Tensor

from whorl import Encoding, NoPE, Rope, Sinks, Window, attention
from whorl.claims.ledger import About, Both, Finding, close, decide, within
from whorl.claims.probes import doubles, largest, normal
from whorl.claims.rotation.turning import EXACT

about_none = About("none")


@About("window", "sinks").holds(
    "window.reach",
    "Under a causal mask, with one key at each position, a window of w shows a query w keys at most, its own among "
    "them; without a mask a symmetric window shows 2w - 1 at most; sinks show the keys at the first positions as well.",
    "在因果掩码下，若每个位置只有一个键，窗口 w 让查询最多看到 w 个键（含自身）；没有掩码时，对称窗口最多 2w - 1 个；"
    "sinks 还让它看到最前几个位置上的键。",
    says="Jiang et al. 2023, Mistral 7B, figure 1; Xiao et al. 2023, StreamingLLM; for the symmetric one whorl 0.2, "
    "docs/encodings/window.md",
    how="Keys that have a weight in attention of 100 tokens, for each query: with windows 1, 16 and 40, and the same "
    "with 4 sinks, causal, and with symmetric windows, not causal; which ones, and how many the query at 50 has with "
    "window 16. Outputs of the path that attention takes by itself, of 600 tokens and of one after 1,000, must be "
    "those of a softmax over these keys, to 1e-9.",
    how_zh="100 个词的注意力中有权重的键，对每个查询：窗口 1、16、40，以及再加 4 个 sinks（因果），和对称窗口（非因"
    "果）；看是哪些键，以及窗口 16 时位置 50 的查询有几个。attention 自行选择的路径的输出（600 个词，以及 1000 个键之后"
    "的一个查询），须与只在这些键上的 softmax 相同，容差 1e-9。",
)
def window_reach() -> Finding:
    i = torch.arange(100)[:, None]
    j, (q, k, v) = i.mT, normal(3, 1, 1, 100, 8)

    def seen(encoding: Encoding, causal: bool = True) -> Tensor:
        return attention(q, k, v, encoding=encoding, causal=causal, return_weights=True)[1][0, 0] > 0

    numbers, good = {}, True
    for w in (1, 40, 16):  # the numbers of the last are shown
        near = (j <= i) & (j > i - w)
        cases = {
            f"window {w}": (seen(Window(size=w)), near),
            f"symmetric {w}": (seen(Window(size=w, symmetric=True), causal=False), (i - j).abs() < w),
            f"sinks 4, window {w}": (seen(Sinks(size=w, count=4)), near | ((j < 4) & (j <= i))),
        }
        good = good and all(torch.equal(own, wanted) for own, wanted in cases.values())
        numbers = {f"keys of the query at 50, {name}": int(own[50].sum()) for name, (own, _) in cases.items()}
    off = largest(_off_softmax(queries, keys, w) for queries, keys in ((600, 600), (1, 1001)))
    counts, numbers = list(numbers.values()), numbers | {"outputs off a softmax over these keys by": off}
    but = Both(f"the query at 50 sees {counts}, or others", f"位置 50 的查询看到 {counts} 个，或是别的键")
    return decide(good and counts == [16, 31, 20] and off < EXACT, numbers, but)


def _off_softmax(queries: int, keys: int, size: int) -> Tensor:
    """Causal outputs with a window, and with 4 sinks, less those of a softmax over the keys that each shows."""
    i, j = torch.arange(keys - queries, keys), torch.arange(keys)
    q, k, v = normal(1, 1, queries, 8), *normal(2, 1, 1, keys, 8, seed=1)
    near = (j <= i[:, None]) & (j > i[:, None] - size)
    wanted = {Window(size=size): near, Sinks(size=size, count=4): near | ((j < 4) & (j <= i[:, None]))}
    off = []
    for encoding, seen in wanted.items():
        weights = (q @ k.mT / 8**0.5).masked_fill(~seen, -torch.inf).softmax(-1)
        own = attention(q, k, v, encoding=encoding, causal=True)
        off.append(own - weights @ v)
    return torch.stack(off)


@about_none.holds_within(
    "none.equivariant",
    (
        "Without a mask and without an encoding attention is permutation-equivariant: shuffled tokens give shuffled "
        "outputs."
    ),
    "没有掩码也没有位置编码时，注意力是置换等变的：打乱输入，输出同样打乱。",
    says="Lee et al. 2019, Set Transformer; the study notes say invariant",
    how="16 tokens, 2 heads of 8, and a random order, float64.",
    how_zh="16 个词、2 个 8 维的头与一个随机次序，float64。",
)
def equivariant() -> Finding:
    return close(shuffled(causal=False), 1e-12)


def shuffled(causal: bool) -> Tensor:
    """Outputs of shuffled tokens less the shuffled outputs."""
    q, k, v = normal(3, 1, 2, 16, 8)
    order = torch.randperm(16, generator=torch.Generator().manual_seed(3))
    here = attention(q, k, v, encoding=NoPE(), causal=causal)[:, :, order]
    return attention(*(x[:, :, order] for x in (q, k, v)), encoding=NoPE(), causal=causal) - here


@about_none.holds(
    "none.causal-order",
    "A causal mask tells the order: with it, shuffled tokens do not give shuffled outputs. What one layer gives a "
    "token does not depend on the order of those before it; what two give does.",
    "因果掩码能体现顺序：此时打乱输入，输出并非同样打乱。单层给一个词的输出与它之前各词的次序无关，两层的则有关。",
    says="Haviv et al. 2022, on models without position encodings; of one layer and two Irie 2025, arXiv 2501.00659",
    how="16 tokens, 2 heads of 8, and a random order: outputs of shuffled tokens less shuffled outputs reach more "
    "than 0.1 with a causal mask, and stay below 1e-12 without. With the mask, and the 15 first tokens shuffled, the "
    "last output moves by less than 1e-12 after one attention, and by more than 0.1 after a second one whose queries, "
    "keys and values are what the first one gave.",
    how_zh="16 个词、2 个 8 维的头与一个随机次序：打乱后的输出与打乱的输出之差，在因果掩码下超过 0.1，没有掩码时小于 "
    "1e-12。有掩码且只打乱前 15 个词时，最后一个输出在一次注意力后变化不到 1e-12，再以其输出为查询、键、值作第二次注意"
    "力后变化超过 0.1。",
)
def causal_order() -> Finding:
    apart, without = largest(shuffled(causal=True)), largest(shuffled(causal=False))
    one, two = _moved_by_those_before()
    numbers = {"largest difference, causal": apart, "without a mask": without}
    numbers |= {"last output, those before it shuffled": one, "after two layers": two}
    but = Both("order leaves no trace, or one already in one layer", "次序没有留下痕迹，或在单层中已留下")
    return decide(min(apart, two) > 0.1 and max(without, one) < 1e-12, numbers, but)


def _moved_by_those_before() -> tuple[float, float]:
    """How far the last output of one attention, and of two, moves where the tokens before it are shuffled."""
    given = normal(3, 1, 2, 16, 8)
    order = torch.cat((torch.randperm(15, generator=torch.Generator().manual_seed(3)), torch.tensor([15])))
    one, other = (attention(*x, encoding=NoPE(), causal=True) for x in (given, given[:, :, :, order]))
    two, others = (attention(x, x, x, encoding=NoPE(), causal=True) for x in (one, other))
    return largest((one - other)[:, :, -1]), largest((two - others)[:, :, -1])


@about_none.holds_within(
    "none.uniform",
    "Without an encoding, a text of equal tokens gets exactly equal weights in every row, and its queries and keys no "
    "gradient.",
    "没有位置编码时，全部由相同的词组成的文本每行权重完全相等，其查询和键没有梯度。",
    says="Gelberg et al. 2025, DroPE, arXiv 2512.12167",
    how="12 equal tokens of 8 dimensions under a causal mask: each row against 1/n, n the keys that it sees, and "
    "gradients of a random loss. Beside it RoPE, whose rows must be off by more than 0.01; its gradients vanish as "
    "well, since equal values give one output whatever the weights.",
    how_zh="因果掩码下 12 个相同的 8 维词：每行与 1/n 比较（n 为该行看到的键数），并看随机损失的梯度。对照 RoPE：其各行"
    "须与 1/n 相差超过 0.01；它的梯度同样为零，因为值都相同时输出与权重无关。",
)
def uniform() -> Finding:
    (off, gradient), (turned, beside) = (_equal_tokens(encoding) for encoding in (NoPE(), Rope(head_dim=8)))
    numbers = {"rows against 1/n": off, "largest gradient": gradient}
    numbers |= {"RoPE: rows against 1/n": turned, "RoPE: largest gradient": beside}
    if not turned > 0.01:
        text = f"rows of RoPE are off 1/n by {turned:.3g} only, so equal rows would show nothing"
        return decide(False, numbers, Both(text, f"RoPE 的各行与 1/n 也只差 {turned:.3g}，各行相等说明不了什么"))
    return within(largest(doubles([off, gradient])), 1e-12, numbers)


def _equal_tokens(encoding: Encoding) -> tuple[float, float]:
    """How far the rows of 12 equal tokens are off equal weights, and the largest gradient of a query or key."""
    one = normal(3, 1, 1, 1, 8).expand(3, 1, 1, 12, 8)
    with torch.enable_grad():
        q, k = (x.clone().requires_grad_() for x in one[:2])
        out, weights = attention(q, k, one[2], encoding=encoding, return_weights=True)
        grads = torch.autograd.grad((out * normal(*out.shape, seed=5)).sum(), (q, k))
    wanted = (1 / torch.arange(1, 13, dtype=torch.float64))[:, None].expand(12, 12).tril()
    return largest(weights.detach()[0, 0] - wanted), largest(grads)
