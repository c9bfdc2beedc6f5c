"""Claims about the derivation of RoPE: what its axioms fix, and what a norm after the rotation leaves of them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import layer_norm, rms_norm

from whorl.claims.ledger import About, Both, Finding, all_within, decide
from whorl.claims.probes import largest, normal
from whorl.claims.rotation.turning import EXACT, PLACES, at, matrix, plain

about_rope = About("rope")


@about_rope.fails(
    "rope.axioms-unique",
    "The axioms of the derivation (one f for queries and keys, a product that depends on n - m, f(q, 0) = q) leave "
    "RoPE as the only solution.",
    "推导所用的公理（查询与键共用一个 f、内积只依赖 n - m、f(q, 0) = q）唯一确定 RoPE。",
    says="study notes, the derivation after Su et al. 2021, RoFormer, section 3.4.1",
    how="A dense e^(mA) with A skew-symmetric put to the same tests, and its distance from whorl's own R_m.",
    how_zh="对稠密的 e^(mA)（A 反对称）做同样的检验，并比较它与 whorl 的 R_m 的差别。",
)
def axioms_unique() -> Finding:
    skew = normal(8, 8)
    skew = (skew - skew.mT) / 8
    turn = {m: torch.matrix_exp(m * skew) for m in (0, 3, 7, 103, 107)}
    q, k = normal(2, 8, seed=1)
    moved = abs(float((turn[3] @ q) @ (turn[7] @ k) - (turn[103] @ q) @ (turn[107] @ k)))
    start, apart = largest(turn[0] @ q - q), largest(turn[7] - matrix(plain(8), 7))
    own = abs(float(at(plain(8), q, 3) @ at(plain(8), k, 7) - at(plain(8), q, 103) @ at(plain(8), k, 107)))
    numbers = {
        "dense e^(mA): change of a score": moved,
        "dense e^(mA): f(q, 0) - q": start,
        "dense e^(mA): distance from RoPE": apart,
        "RoPE: change of a score": own,
    }
    solves = max(moved, start, own) < EXACT
    text = Both(
        "e^(mA) with a dense skew-symmetric A is relative and starts from the identity, and differs from R_7 by "
        f"{apart:.2g}",
        f"A 为稠密反对称矩阵的 e^(mA) 同样是相对的且从恒等出发，却与 R_7 相差 {apart:.2g}",
    )
    return decide(not solves or apart < EXACT, numbers, text)


@about_rope.holds(
    "rope.layernorm-after",
    "LayerNorm after the rotation breaks relative scores.",
    "旋转之后做 LayerNorm 会破坏相对性。",
    says="whorl 0.2, experiments/ablations.md",
    how="Scores of turned and then normalised vectors at one distance and several places; without the norm beside "
    "them.",
    how_zh="先旋转再归一化的向量，在同一距离、不同位置处的分数；并与不归一化时比较。",
)
def layernorm_after() -> Finding:
    moved, bare = _normed(lambda x: layer_norm(x, x.shape[-1:])), _normed(lambda x: x)
    numbers = {"largest change of a score": moved, "without the norm": bare}
    text = Both(f"a score moves by {moved:.3g} only between places", f"分数在不同位置之间只变化 {moved:.3g}")
    return decide(moved > 1e-3 and bare < 1e-8, numbers, text)


@about_rope.holds_within(
    "rope.rmsnorm-after",
    "RMSNorm without a gain after the rotation keeps scores relative: it divides by a length that the rotation keeps.",
    "旋转之后做不带增益的 RMSNorm 仍保持相对性：它所除的长度在旋转下不变。",
    says="whorl 0.2, experiments/ablations.md",
    how="The same with RMSNorm.",
    how_zh="同样的检验，换成 RMSNorm。",
)
def rmsnorm_after() -> Finding:
    moved = _normed(lambda x: rms_norm(x, x.shape[-1:]))
    return all_within({"largest change of a score": moved}, 1e-8)


def _normed(norm: Callable[[Tensor], Tensor]) -> float:
    """The change of scores at one distance between places, of vectors that are turned and then normed."""
    q, k = normal(2, 100, 64)
    scores = torch.stack([(norm(at(plain(64), q, m)) * norm(at(plain(64), k, m + 5))).sum(-1) for m in PLACES])
    return largest(scores - scores[0])
