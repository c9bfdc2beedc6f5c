"""Claims about the derivation of RoPE: what its axioms fix, and what a norm after the rotation leaves of them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import layer_norm, rms_norm

from whorl.claims.ledger import About, Both, Finding, all_within, decide
from whorl.claims.probes import doubles, largest, normal
from whorl.claims.rotation.turning import EXACT, PLACES, SIZES, SIZES_ZH, at, by_hand, matrix, plain, ropes, vectors

about_rope = About("rope")


@about_rope.fails(
    "rope.axioms-unique",
    "In more than two dimensions the axioms of the derivation (one f for queries and keys, a product that depends on "
    "n - m, f(q, 0) = q) leave RoPE as the only solution.",
    "维数大于二时，推导所用的公理（查询与键共用一个 f、内积只依赖 n - m、f(q, 0) = q）唯一确定 RoPE。",
    says="study notes, the derivation after Su et al. 2021, RoFormer, section 3.4.1, which is of two dimensions",
    how="A dense e^(mA) of 8 dimensions, A skew-symmetric, put to the same tests to 1e-9 (a score at positions 3 and 7 "
    "against 103 and 107, which RoPE must pass too; position 0); its distance from R_7, which whorl's must be to 1e-9; "
    "and its largest entry outside the 2 x 2 blocks, where RoPE, interleaved, has 0 whatever its frequencies. In "
    "another basis it is a RoPE of other frequencies: question.dense-exponential.",
    how_zh="对 8 维的稠密 e^(mA)（A 反对称）做同样的检验（容差 1e-9：位置 3、7 与 103、107 的分数，RoPE 也须通过；位"
    "置 0）；并看它与 R_7（whorl 的须与之相同，容差 1e-9）的差别，以及 2 x 2 对角块之外的最大元素（无论频率如何，交错"
    "排列的 RoPE 在那里都是 0）。换一组基，它就是另一些频率的 RoPE：见 question.dense-exponential。",
)
def axioms_unique() -> Finding:
    skew = normal(8, 8)
    skew = (skew - skew.mT) / 8
    turn = {m: torch.matrix_exp(m * skew) for m in (0, 3, 7, 103, 107)}
    q, k = normal(2, 8, seed=1)
    moved = abs(float((turn[3] @ q) @ (turn[7] @ k) - (turn[103] @ q) @ (turn[107] @ k)))
    start, apart = largest(turn[0] @ q - q), largest(turn[7] - matrix(plain(8), 7))
    off = largest(matrix(plain(8), 7) - by_hand(7, 8))
    blocks = torch.block_diag(*torch.ones(4, 2, 2, dtype=torch.float64))
    outside, own_outside = (largest(turned * (1 - blocks)) for turned in (turn[7], matrix(plain(8), 7)))
    own = abs(float(at(plain(8), q, 3) @ at(plain(8), k, 7) - at(plain(8), q, 103) @ at(plain(8), k, 107)))
    numbers = {
        "dense e^(mA): change of a score": moved,
        "dense e^(mA): f(q, 0) - q": start,
        "dense e^(mA): distance from RoPE": apart,
        "dense e^(mA): largest entry outside the blocks": outside,
        "RoPE: change of a score": own,
        "RoPE: largest entry outside the blocks": own_outside,
        "RoPE: R_7 less that of the definition": off,
    }
    solves = max(moved, start, own, own_outside, off) < EXACT
    text = Both(
        "e^(mA) with a dense skew-symmetric A is relative and starts from the identity, differs from R_7 by "
        f"{apart:.2g} in an entry, and has entries up to {outside:.2g} where interleaved RoPE of any frequencies has 0",
        f"A 为稠密反对称矩阵的 e^(mA) 同样是相对的且从恒等出发，却有元素与 R_7 相差 {apart:.2g}，在任何频率的交错排列的"
        f" RoPE 都为 0 的地方有大至 {outside:.2g} 的元素",
    )
    return decide(min(apart, outside) < EXACT, numbers, text, instead=solves)


@about_rope.holds(
    "rope.layernorm-after",
    "LayerNorm after the rotation breaks relative scores.",
    "旋转之后做 LayerNorm 会破坏相对性。",
    says="whorl 0.2, experiments/ablations.md",
    how=f"100 q, k of {SIZES}, turned, then normed without a gain: for each head the score at distance 5 must change "
    "by more than 1e-3 between places from 0 to a million, and by less than 1e-8 without the norm.",
    how_zh=f"100 组 {SIZES_ZH}的 q、k 先旋转再做不带增益的归一化：对每种头，距离 5 处的分数在 0 到一百万的位置之间须"
    "变化超过 1e-3；不归一化时不到 1e-8。",
)
def layernorm_after() -> Finding:
    moved, bare = float(_normed(lambda x: layer_norm(x, x.shape[-1:])).min()), float(_normed(lambda x: x).max())
    numbers = {"largest change of a score, the least of all heads": moved, "largest without the norm": bare}
    text = Both(f"a score moves by {moved:.3g} only between places", f"分数在不同位置之间只变化 {moved:.3g}")
    return decide(moved > 1e-3 and bare < 1e-8, numbers, text)


@about_rope.holds_within(
    "rope.rmsnorm-after",
    "RMSNorm without a gain after the rotation keeps scores relative: it divides by a length that the rotation keeps.",
    "旋转之后做不带增益的 RMSNorm 仍保持相对性：它所除的长度在旋转下不变。",
    says="whorl 0.2, experiments/ablations.md",
    how=f"100 q, k of {SIZES}, turned, then normed without a gain: the change of the score at distance 5 between "
    "places from 0 to a million, and by what share the rotation changes a length there.",
    how_zh=f"100 组 {SIZES_ZH}的 q、k 先旋转再做不带增益的归一化：距离 5 处的分数在 0 到一百万的位置之间的变化，以及"
    "旋转使长度改变的比例。",
)
def rmsnorm_after() -> Finding:
    moved = _normed(lambda x: rms_norm(x, x.shape[-1:]))
    lengths = [
        largest(at(rope, q, m).norm(dim=-1) / q.norm(dim=-1) - 1)
        for rope in ropes()
        for q in (vectors(rope), vectors(rope, seed=1))
        for m in PLACES
    ]
    return all_within({"largest change of a score": largest(moved), "change of a length": max(lengths)}, 1e-8)


def _normed(norm: Callable[[Tensor], Tensor]) -> Tensor:
    """The change of scores at one distance between places, of vectors that are turned and then normed, by head."""
    changes = []
    for rope in ropes():
        q, k = vectors(rope), vectors(rope, seed=1)
        scores = torch.stack([(norm(at(rope, q, m)) * norm(at(rope, k, m + 5))).sum(-1) for m in PLACES])
        changes.append(largest(scores - scores[0]))
    return doubles(changes)
