"""Claims about rotations in two dimensions: side by side, and no Kronecker product."""

from __future__ import annotations

import torch
from torch import Tensor

from whorl import AxialRope
from whorl.claims.ledger import About, Both, Finding, close, decide
from whorl.claims.probes import largest
from whorl.claims.rotation.turning import EXACT, by_hand

# Heads and bases, and rows and columns, beside the usual ones.
HEADS = ((8, 100.0), (12, 10_000.0), (64, 100.0))
PATCHES = ((0, 0), (3, 5), (13, 0), (0, 13), (511, 700))
about_axial_rope = About("axial_rope")


@about_axial_rope.holds_within(
    "axial.one-axis-per-block",
    "Axial two-dimensional RoPE is one rotation per axis, each on dimensions of its own: in RoPE-ViT's code on two "
    "blocks, the column's first.",
    "轴向的二维 RoPE 是每个轴各自在自己的维度上做旋转：在 RoPE-ViT 的代码中是两块维度，列在前。",
    says="Heo et al. 2024, Rotary Position Embedding for Vision Transformer, of its axial form; the blocks by its code",
    how="Matrices of AxialRope in RoPE-ViT's convention, columns first, of 8, 12 and 64 dimensions (bases 100, 10,000 "
    "and 100) at five patches up to row 511, column 700, against the rotations by column and by row of half as many "
    "dimensions side by side.",
    how_zh="RoPE-ViT 约定（列在前）的 8、12、64 维 AxialRope（底数 100、10000、100）在五个图像块（直到第 511 行第 700 "
    "列）处的矩阵，与并排的、各占一半维数的按列与按行的旋转比较。",
)
def one_axis_per_block() -> Finding:
    differences = []
    for dim, base in HEADS:
        for row, column in PATCHES:
            side_by_side = torch.block_diag(*(by_hand(at, dim // 2, base) for at in (column, row)))
            differences.append(_axial(dim, base, row, column) - side_by_side)
    return close(differences, EXACT)


@about_axial_rope.fails(
    "note.kronecker",
    "Two-dimensional RoPE, as in use, one axis per block, is the Kronecker product of the two rotations.",
    "二维 RoPE（实际使用的形式，每个轴占一块维度）是两个旋转矩阵的 Kronecker 积。",
    says="study notes",
    how="The matrix of AxialRope in RoPE-ViT's convention, of 16 dimensions, base 100, at row 3, column 5 against "
    "Kronecker products of R_5 and R_3, of 4 and 4, 2 and 8, and 8 and 2 dimensions, by their traces, which any change "
    "of basis keeps, to 1e-9; it must be R_5 and R_3 of 8 dimensions side by side.",
    how_zh="RoPE-ViT 约定、16 维、底数 100 的 AxialRope 在第 3 行第 5 列处的矩阵，与 R_5、R_3 的 Kronecker 积（维数为 "
    "4 与 4、2 与 8、8 与 2）比较迹（换基不变），容差 1e-9；它须为并排的 8 维的 R_5 与 R_3。",
)
def kronecker() -> Finding:
    axial = _axial(16, 100.0, 3, 5)
    own = float(axial.trace())
    products = {
        f"trace of the Kronecker product, {one} and {16 // one}": float(
            torch.kron(by_hand(5, one, 100.0), by_hand(3, 16 // one, 100.0)).trace()
        )
        for one in (4, 2, 8)
    }
    but = Both(
        "at row 3, column 5 the traces differ, so no change of basis makes them equal; the two rotations stand side "
        "by side",
        "在第 3 行第 5 列处两者的迹不同，任何换基都不能使之相等；两个旋转是并排的",
    )
    same = any(abs(own - trace) < EXACT for trace in products.values())
    apart = largest(axial - torch.block_diag(by_hand(5, 8, 100.0), by_hand(3, 8, 100.0)))
    numbers = {"trace of AxialRope": own} | products | {"AxialRope less the two side by side": apart}
    return decide(same, numbers, but, instead=apart < EXACT)


def _axial(dim: int, base: float, row: int, column: int) -> Tensor:
    """The matrix of AxialRope in RoPE-ViT's convention, read off the unit vectors."""
    rope = AxialRope(head_dim=dim, convention="rope_vit", base=base)
    patch = torch.tensor([[row], [column]]).expand(2, dim)
    return rope.rotate(torch.eye(dim, dtype=torch.float64), patch).mT
