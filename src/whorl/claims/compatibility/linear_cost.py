"""Claims about linear attention: what it costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from whorl import Encoding, Rope, XPos, attention, linear_attention
from whorl.attend.features import feature_map
from whorl.claims.compatibility.caches import COUNT, DIM, tokens
from whorl.claims.ledger import About, Both, Finding, decide
from whorl.claims.probes import doubles, largest, normal

LONG = 2048  # where a product of all chunks with all would show; at 256 it is lost beside the rest
LINEAR = 2.2  # work that grows by less when the length doubles counts as linear
about_rope = About("rope")
about_rope_and_xpos = About("rope", "xpos")


@about_rope.fails(
    "note.decay-not-linear",
    "phi(q) phi(k) e^(-lambda |i - j|) is not linear: it needs the whole matrix.",
    "φ(q)φ(k)e^(-λ|i-j|) 不是线性的：需要完整的矩阵。",
    says="study notes",
    how="256 tokens, 2 heads of 16, lambda = 0.02 and 2, with a causal mask and without: the linear form against the "
    "matrix, to 1e-6; and multiplications of matrix products, lambda = 0.02, chunks of 32, at 512 tokens over those at "
    "256 and at 4,096 over those at 2,048, with the mask and without, and entries of the largest product: 2.2 or "
    "more would not be linear, and 1.8 or less no doubling.",
    how_zh="256 个词、2 个 16 维的头，λ = 0.02 与 2，有因果掩码与没有：线性形式与完整矩阵比较（容差 1e-6）；以及分块 "
    "32、λ = 0.02 时 512 个词与 256 个词、4096 个词与 2048 个词的矩阵乘积中的乘法次数之比（有掩码与没有），以及最大"
    "乘积的元素数之比：达到 2.2 才算不是线性，不超过 1.8 则不算加倍。",
)
def decay_not_linear() -> Finding:
    (q, k, v), ids, apart = tokens(), torch.arange(COUNT), []
    weights = feature_map(q, "elu+1") @ feature_map(k, "elu+1").mT
    for rate in (0.02, 2.0):
        faded = weights * torch.exp(-rate * (ids[:, None] - ids).abs().double())
        for causal in (True, False):
            plain = faded.tril() if causal else faded
            quadratic = plain @ v / plain.sum(-1, keepdim=True)
            own = linear_attention(q, k, v, form="decay", decay=rate, chunk=16, eps=0.0, causal=causal)
            apart.append(largest(own - quadratic))
    runs = [_linear(None, decay=0.02, causal=causal) for causal in (True, False)]
    growths = [_growth(run, count) for run in runs for count in (COUNT, LONG)]
    worst, growth = largest(doubles(apart)), max(growths)
    text = f"the sums are the same to {worst:.0e}, and work doubles with the length"
    numbers = {"largest difference": worst, "largest growth of the work at twice the length": growth}
    but = Both(
        f"for j before i, e^(-lambda (i-j)) = e^(-lambda i) e^(lambda j), and the other way round after it: {text}",
        f"j 在 i 之前时 e^(-λ(i-j)) = e^(-λi) e^(λj)，之后则相反：两者只差 {worst:.0e}，计算量随长度加倍",
    )
    return decide(worst > 1e-6 or growth >= LINEAR, numbers, but, instead=min(growths) > 1.8)


class Multiplications(TorchFunctionMode):
    """Counts the multiplications of matrix products, and keeps the entries of the largest product.

    Torch's own counter would import a compiler to do it.
    """

    PRODUCTS = (torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.Tensor.__rmatmul__)

    def __init__(self) -> None:
        super().__init__()
        self.count = self.largest = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func in self.PRODUCTS:
            self.count += out.numel() * args[0].shape[-1]
        if func in (*self.PRODUCTS, torch.einsum, torch.bmm, torch.baddbmm):
            self.largest = max(self.largest, out.numel())
        return out


def _growth(call: Callable[[Tensor, Tensor, Tensor], Any], count: int = COUNT) -> float:
    """The growth of the multiplications or of the largest product, when the length doubles from this one."""
    found = []
    for length in (count, 2 * count):
        with Multiplications() as counter:
            call(*normal(3, 1, 1, length, DIM))
        found.append((counter.count, counter.largest))
    return max(twice / once for once, twice in zip(*found, strict=True))


def _linear(
    encoding: Encoding | None, decay: float | None = None, causal: bool = True
) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    form = "decay" if decay else "numerator"
    return lambda *qkv: linear_attention(*qkv, encoding=encoding, form=form, decay=decay, causal=causal, chunk=32)


def _softmax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attention(q, k, v, encoding=Rope(head_dim=DIM), return_weights=True)[0]


@about_rope_and_xpos.holds(
    "linear.cost",
    "Linear attention with RoPE and with xPos is linear: twice the tokens are twice the multiplications, softmax four "
    "times.",
    "带 RoPE 或 xPos 的线性注意力是线性的：词数加倍，乘法加倍；softmax 则为四倍。",
    says="whorl 0.2, docs/performance.md; the study notes say that xPos costs O(L^2)",
    how="Multiplications of matrix products, counted at 256 and at 512 tokens of 16 dimensions, chunks of 32: between "
    "1.8 and 2.2 times as many with RoPE and with xPos, also from 2,048 to 4,096 tokens, and between 3.5 and 4.5 times "
    "as many in a softmax; and so the entries of the largest product.",
    how_zh="16 维、分块 32，统计 256 与 512 个词时矩阵乘积的乘法次数：RoPE 与 xPos 的为 1.8 到 2.2 倍（从 2048 到 4096 "
    "个词也是），softmax 的为 3.5 到 4.5 倍；最大乘积的元素数也如此。",
)
def cost() -> Finding:
    encodings = {"RoPE": Rope(head_dim=DIM), "xPos": XPos(head_dim=DIM)}
    numbers = {
        f"{name}, {2 * count:,} tokens over {count:,}": _growth(_linear(encoding), count)
        for name, encoding in encodings.items()
        for count in (COUNT, LONG)
    }
    least, most, softmax = min(numbers.values()), max(numbers.values()), _growth(_softmax)
    text = Both(
        f"at twice the length the work grows to {least:.2f} … {most:.2f} times, in a softmax to {softmax:.2f}",
        f"长度加倍时计算量增至 {least:.2f} … {most:.2f} 倍，softmax 增至 {softmax:.2f} 倍",
    )
    so = least > 1.8 and most < LINEAR and 3.5 < softmax < 4.5
    return decide(so, numbers | {"softmax with RoPE": softmax}, text)
