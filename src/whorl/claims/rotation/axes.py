"""Claims about rotations in two dimensions: side by side, and no Kronecker product."""

from __future__ import annotations

import torch
from torch import Tensor

from whorl import AxialRope
from whorl.claims.ledger import About, Both, Finding, close, decide
from whorl.claims.rotation.turning import EXACT, by_hand

about_axial_rope = About("axial_rope")


@about_axial_rope.holds_within(
    "axial.one-axis-per-block",
    "Two-dimensional RoPE is one rotation per axis, each on its own block of dimensions.",
    "二维 RoPE 是每个轴各自在一块维度上做旋转。",
    says="Heo et al. 2024, Rotary Position Embedding for Vision Transformer, of its axial form",
    how="The matrix of AxialRope of 16 dimensions in RoPE-ViT's convention, base 100, at row 3, column 5 against R_5 "
    "and R_3 of 8 dimensions side by side.",
    how_zh="16 维 AxialRope（RoPE-ViT 约定，底数 100）在第 3 行第 5 列处的矩阵，与并排的 8 维 R_5、R_3 比较。",
)
def one_axis_per_block() -> Finding:
    own, direct, _ = _axial()
    return close(own - direct, EXACT)


@about_axial_rope.fails(
    "note.kronecker",
    "Two-dimensional RoPE is the Kronecker product of the two rotations.",
    "二维 RoPE 是两个旋转矩阵的 Kronecker 积。",
    says="study notes",
    how="The matrix of AxialRope of 16 dimensions, base 100, at row 3, column 5 against the Kronecker product of R_5 "
    "and R_3 of 4 dimensions each, by their traces, which any change of basis keeps, to 1e-9.",
    how_zh="16 维、底数 100 的 AxialRope 在第 3 行第 5 列处的矩阵，与各 4 维的 R_5、R_3 的 Kronecker 积比较迹（换基不变"
    "），容差 1e-9。",
)
def kronecker() -> Finding:
    own, _, kron = (matrix.trace() for matrix in _axial())
    numbers = {"trace of AxialRope": own, "trace of the Kronecker product": kron}
    text = "at row 3, column 5 the traces differ, so no change of basis makes them equal"
    but = Both(
        f"{text}: angles would add, not stand side by side",
        "在第 3 行第 5 列处两者的迹不同，任何换基都不能使之相等：角度会相加，而不是并排",
    )
    return decide((own - kron).abs() < EXACT, numbers, but)


def _axial() -> tuple[Tensor, Tensor, Tensor]:
    """AxialRope of 16 dimensions at row 3 and column 5, the two rotations side by side, and their Kronecker product."""
    rope = AxialRope(head_dim=16, convention="rope_vit")
    row, column, base = 3, 5, 100.0
    own = rope.rotate(torch.eye(16, dtype=torch.float64), torch.tensor([[row], [column]]).expand(2, 16)).mT
    side_by_side = torch.block_diag(by_hand(column, 8, base), by_hand(row, 8, base))
    return own, side_by_side, torch.kron(by_hand(column, 4, base), by_hand(row, 4, base))
