"""Claims about the derivation of RoPE: what its axioms fix, and what a norm after the rotation leaves of them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import layer_norm, rms_norm

from whorl.claims.ledger import About, Finding, all_within, decide
from whorl.claims.probes import largest, normal
from whorl.claims.rotation.turning import EXACT, PLACES, at, matrix, plain
from whorl.encodings.xpos import XPos

about_rope = About("rope", rows=("N26", "N32"))


@About("rope", "xpos", rows=("N26",)).fails(
    "rope.axioms-unique",
    "The three axioms of the derivation (relative scores, f(q, 0) = q, lengths kept) leave RoPE as the only solution.",
    "推导所用的三条公理（分数只依赖相对位置、f(q, 0) = q、保范数）唯一确定 RoPE。",
    says="the notes' derivation; N26",
    how="A dense e^(mA) with A skew-symmetric put to the same three tests; and xPos, which gives up only the third.",
)
def axioms_unique() -> Finding:
    skew = normal(8, 8)
    skew = (skew - skew.mT) / 8
    turn = {m: torch.matrix_exp(m * skew) for m in (0, 3, 7, 103, 107)}
    q, k = normal(2, 8, seed=1)
    dense = float((turn[3] @ q) @ (turn[7] @ k) - (turn[103] @ q) @ (turn[107] @ k))
    lengths = largest((turn[103] @ q).norm() - q.norm())
    apart = largest(turn[7] - matrix(plain(8), 7))
    x, ids = normal(2, 1, 1, 2, 8, seed=2), torch.tensor([3, 7])
    by_rope = at(plain(8, "half"), x[0, 0, 0, 1], 7) @ at(plain(8, "half"), x[1, 0, 0, 0], 3)

    def by_xpos(shift: int) -> float:
        a, b = XPos(head_dim=8).transform_qk(x[0], x[1], ids + shift, ids + shift)
        return float(a[0, 0, 1] @ b[0, 0, 0])

    numbers = {
        "dense e^(mA): change of a score": abs(dense),
        "dense e^(mA): change of a length": lengths,
        "dense e^(mA): distance from RoPE": apart,
        "xPos: change of a score": abs(by_xpos(0) - by_xpos(100)),
        "xPos: distance from RoPE": abs(by_xpos(0) - float(by_rope)),
    }
    solves = abs(dense) < EXACT and lengths < EXACT
    what = "is relative, starts from the identity and keeps lengths, and is not RoPE"
    return decide(not solves or apart < EXACT, numbers, f"e^(mA) with a dense skew-symmetric A {what}")


@about_rope.fails(
    "rope.layernorm-after",
    "LayerNorm after the rotation keeps scores relative.",
    "旋转之后做 LayerNorm 仍保持相对性。",
    says="N32 asks; some codes do it",
    how="Scores of turned and then normalised vectors at one distance and several places.",
)
def layernorm_after() -> Finding:
    moved = _normed(lambda x: layer_norm(x, x.shape[-1:]))
    text = f"the score of one pair at distance 5 moves by {moved:.3g} between places"
    reason = "the mean of turned entries depends on the place"
    return decide(moved < EXACT, {"largest change of a score": moved}, f"{text}: {reason}")


@about_rope.holds_within(
    "rope.rmsnorm-after",
    "RMSNorm without a gain after the rotation keeps scores relative: it divides by a length that the rotation keeps.",
    "旋转之后做不带增益的 RMSNorm 仍保持相对性：它所除的长度在旋转下不变。",
    says="N32",
    how="The same with RMSNorm.",
)
def rmsnorm_after() -> Finding:
    moved = _normed(lambda x: rms_norm(x, x.shape[-1:]))
    return all_within({"largest change of a score": moved}, 1e-8)


def _normed(norm: Callable[[Tensor], Tensor]) -> float:
    """The change of scores at one distance between places, of vectors that are turned and then normed."""
    q, k = normal(2, 100, 64)
    scores = torch.stack([(norm(at(plain(64), q, m)) * norm(at(plain(64), k, m + 5))).sum(-1) for m in PLACES])
    return largest(scores - scores[0])
