"""Claims about R_m itself: what it is, what it keeps, how it is undone, moved and laid out."""

from __future__ import annotations

import math
from itertools import product

import torch
from torch import Tensor

from whorl import DynamicNtk, Rope, Yarn, rerotate
from whorl.claims.ledger import About, Both, Finding, all_within, close, decide, shared, within
from whorl.claims.probes import doubles, ladder, largest, normal, turned
from whorl.kernels.choose import Impl
from whorl.rotary.rotation import Layout

SU = "Su et al. 2021, RoFormer"
LAYOUTS: tuple[Layout, ...] = ("half", "interleaved")
# Heads and bases. Odd numbers of pairs among them: a reflection of each pair would have determinant -1 there, and with
# an even number it would hide.
HEADS = ((6, 10_000.0), (10, 100.0), (64, 10_000.0), (126, 500_000.0))
SIZES = "6, 10, 64 and 126 dimensions (bases 10,000, 100, 10,000 and 500,000), half and interleaved"
SIZES_ZH = "6、10、64、126 维（底数 10000、100、10000、500000；半分与交错排列）"
PLACES = (0, 1, 2, 17, 511, 4096, 1_000_003)
EXACT = 1e-9  # what float64 leaves of angles of a million radians, and a thousand times less than float32
about_rope = About("rope")


@shared
def plain(dim: int, layout: Layout = "interleaved") -> Rope:
    """RoPE with base 10,000."""
    return Rope(head_dim=dim, layout=layout)


@shared
def ropes() -> tuple[Rope, ...]:
    """The heads and bases of HEADS, in both layouts."""
    return tuple(Rope(head_dim=dim, base=base, layout=layout) for dim, base in HEADS for layout in LAYOUTS)


def vectors(rope: Rope, count: int = 100, seed: int = 0) -> Tensor:
    """Random vectors of the head's size."""
    return normal(count, rope.config.head_dim, seed=seed)


def at(rope: Rope, x: Tensor, position: float, impl: Impl = "auto") -> Tensor:
    """Every vector of x (…, dim) turned to one position."""
    flat = x.reshape(-1, x.shape[-1])
    whole = float(position).is_integer()
    ids = torch.full((len(flat),), int(position) if whole else position, dtype=torch.int64 if whole else torch.float64)
    return rope.rotate(flat, ids, impl=impl).view(x.shape)


def score_at(rope: Rope, q: Tensor, k: Tensor, m: int, n: int) -> Tensor:
    """The scores of queries at m and keys at n, vector by vector."""
    return (at(rope, q, m) * at(rope, k, n)).sum(-1)


def matrix(rope: Rope, position: float) -> Tensor:
    """R_m, read off the unit vectors."""
    return at(rope, torch.eye(rope.config.head_dim, dtype=torch.float64), position).mT


def by_hand(position: float, dim: int, base: float = 10_000.0) -> Tensor:
    """R_m from its definition: 2 x 2 rotations by m base^(-2i/d) along the diagonal."""
    angles = [position * base ** (-2 * i / dim) for i in range(dim // 2)]
    turns = (doubles([[math.cos(a), -math.sin(a)], [math.sin(a), math.cos(a)]]) for a in angles)
    return torch.block_diag(*turns)


def phases(positions: Tensor, frequencies: Tensor) -> Tensor:
    """e^(i m w) of every position m and frequency w from the definition, complex: (positions, frequencies)."""
    angles = positions.double()[:, None] * frequencies
    return torch.complex(angles.cos(), angles.sin())


@about_rope.holds(
    "rope.identity-at-zero",
    "At position 0 nothing is turned: f(q, 0) = q, without scaling and in layouts that keep the order.",
    "在位置 0 不旋转：f(q, 0) = q（不加缩放，且排列不改变次序）。",
    says=f"{SU}, the initial condition of section 3.4.1",
    how="Five random float32 vectors of 64 dimensions at position 0, in the half and the interleaved layout, "
    "compared bit for bit.",
    how_zh="位置 0 处的五个 64 维随机 float32 向量，半分与交错两种排列，逐位比较。",
)
def identity_at_zero() -> Finding:
    x = normal(5, 64).float()
    same = [torch.equal(at(plain(64, layout), x, 0), x) for layout in ("half", "interleaved")]
    but = Both("a vector at position 0 is changed", "位置 0 处的向量被改变")
    return decide(all(same), {"layouts that keep every bit": sum(same)}, but)


@About("rope").holds_within(
    "rope.golden",
    "With base 10,000, q = (1, 2, 3, 4) at position 2 becomes (-2.234742, 0.077004, 2.919405, 4.059196) in the "
    "interleaved layout and (-3.144039, 1.919605, -0.339143, 4.039197) in the half layout.",
    "底数为 10000 时，q = (1, 2, 3, 4) 在位置 2 处，交错排列下变为 (-2.234742, 0.077004, 2.919405, 4.059196)，半分排列"
    "下变为 (-3.144039, 1.919605, -0.339143, 4.039197)。",
    says="study notes, a worked example",
    how="Rope(head_dim=4) against these six decimals.",
    how_zh="Rope(head_dim=4) 与这六位小数比较。",
)
def golden() -> Finding:
    interleaved, half = (at(plain(4, layout), doubles([1, 2, 3, 4]), 2) for layout in ("interleaved", "half"))
    numbers = {
        "largest difference, interleaved": largest(interleaved - doubles([-2.234742, 0.077004, 2.919405, 4.059196])),
        "largest difference, half": largest(half - doubles([-3.144039, 1.919605, -0.339143, 4.039197])),
    }
    return all_within(numbers, 5.1e-7)


@about_rope.holds_within(
    "rope.orthogonal",
    "R_m is orthogonal: its transpose undoes it.",
    "R_m 是正交矩阵：转置就是逆。",
    says=f"{SU}, section 3.2.2",
    how=f"R_m of {SIZES}, read off the unit vectors at positions up to a million, times its transpose.",
    how_zh=f"{SIZES_ZH}的 R_m（由单位向量读出，位置直到一百万）乘以其转置。",
)
def orthogonal() -> Finding:
    turns = (matrix(rope, m) for rope in ropes() for m in PLACES)
    return close((r @ r.mT - torch.eye(len(r), dtype=r.dtype) for r in turns), EXACT, "largest entry of R R^T - I")


@about_rope.holds_within(
    "rope.group-law",
    "Rotations add up: R_m R_n = R_(m+n).",
    "旋转可加：R_m R_n = R_(m+n)。",
    says=f"{SU}, equation 16, by R_m^T R_n = R_(n-m)",
    how=f"Products of R_m and R_n of {SIZES}, against R_(m+n), for five pairs of positions up to a million.",
    how_zh=f"{SIZES_ZH}、五对位置（直到一百万）：R_m 与 R_n 的乘积与 R_(m+n) 比较。",
)
def group_law() -> Finding:
    pairs = [(1, 1), (3, 14), (511, 1), (-7, 7), (4096, 1_000_003)]
    products = (matrix(rope, m) @ matrix(rope, n) - matrix(rope, m + n) for rope in ropes() for m, n in pairs)
    return close(products, EXACT, "largest entry of R_m R_n - R_(m+n)")


@about_rope.holds_within(
    "rope.relative",
    "The score of q at m and k at n depends on n - m only.",
    "位置 m 的 q 与位置 n 的 k 的分数只取决于 n - m。",
    says=f"{SU}, equation 16",
    how=f"100 random q, k of {SIZES}; keys 4,000, 7 and 1 before the query, at its own position, 5 and 300 after it, "
    "with queries at places from 0 to a million, float64.",
    how_zh=f"100 组 {SIZES_ZH}的随机 q、k；键在查询之前 4000、7、1 处，同一处，之后 5、300 处，查询从 0 到一百万，"
    "float64。",
)
def relative() -> Finding:
    found = [_by_place(rope, n_less_m) for rope in ropes() for n_less_m in (-4000, -7, -1, 0, 5, 300)]
    worst, most = largest(scores - scores[0] for scores in found), largest(found)
    return within(worst, 1e-8, {"largest change of a score": worst, "largest score": most})


def _by_place(rope: Rope, n_less_m: int) -> Tensor:
    """The scores of 100 q and k at one distance, a row for each place of q."""
    q, k = vectors(rope), vectors(rope, seed=1)
    return torch.stack([score_at(rope, q, k, m, m + n_less_m) for m in PLACES])


@about_rope.holds_within(
    "rope.norm",
    "Turning keeps the length of a vector.",
    "旋转不改变向量的长度。",
    says=f"{SU}, section 3.2.2, which calls R_m orthogonal",
    how=f"Norms of 100 random vectors of {SIZES}, before and after, at positions up to a million.",
    how_zh=f"100 个 {SIZES_ZH}的随机向量旋转前后的范数，位置直到一百万。",
)
def norm() -> Finding:
    given = [(rope, vectors(rope)) for rope in ropes()]
    ratios = (at(rope, x, m).norm(dim=-1) / x.norm(dim=-1) for rope, x in given for m in PLACES)
    return close((ratio - 1 for ratio in ratios), 1e-12, "largest relative change")


@about_rope.holds_within(
    "rope.gradient-norm",
    "Gradients keep their length on the way back through the rotation: many turns do not make them vanish.",
    "梯度反向穿过旋转时长度不变：转很多圈不会使梯度消失。",
    says="study notes, which also say in another place that many turns make gradients vanish",
    how=f"Vector-Jacobian products of 100 random gradients of {SIZES}, at positions up to a million, by autograd: "
    "their lengths, and each against R_m^T times the gradient, to 1e-9.",
    how_zh=f"100 个 {SIZES_ZH}的随机梯度的向量-雅可比积（自动求导），位置直到一百万：比较其长度，并逐一与 R_m^T 乘以该"
    "梯度比较，容差 1e-9。",
)
def gradient_norm() -> Finding:
    lengths, off = [], []
    for rope, m in product(ropes(), PLACES):
        x, given = vectors(rope), vectors(rope, seed=1)
        back = gradient(rope, m, x, given)
        lengths.append(back.norm(dim=-1) / given.norm(dim=-1) - 1)
        off.append(back - given @ matrix(rope, m))  # R_m^T g, row by row
    numbers = {"largest relative change": largest(lengths), "off R_m^T g by": largest(off)}
    if not numbers["off R_m^T g by"] < EXACT:
        return decide(False, numbers, Both("the gradient is not R_m^T times it", "梯度不等于 R_m^T 乘以它"))
    return within(numbers["largest relative change"], 1e-12, numbers)


def gradient(rope: Rope, position: int, x: Tensor, given: Tensor) -> Tensor:
    """The gradient at vectors that are turned to this position, of that given of the turned ones."""
    with torch.enable_grad():
        x = x.clone().requires_grad_()
        # a sum, as passing the gradient itself would have torch import a whole algebra system
        (back,) = torch.autograd.grad((at(rope, x, position) * given).sum(), x)
    return back


@about_rope.holds_within(
    "rope.determinant",
    "R_m has determinant 1: it turns and never mirrors.",
    "R_m 的行列式为 1：只旋转，不镜像。",
    says="study notes",
    how=f"Determinants of R_m of {SIZES}; three of these have an odd number of pairs, where mirrored pairs would show; "
    "positions up to a million.",
    how_zh=f"{SIZES_ZH}的 R_m 的行列式，其中三种有奇数对，使镜像能显现；位置直到一百万。",
)
def determinant() -> Finding:
    turns = (matrix(rope, m) for rope in ropes() for m in PLACES)
    return close((torch.linalg.det(r) - 1 for r in turns), EXACT, "largest |det - 1|")


@About("rope").holds_within(
    "rope.three-forms",
    "The matrix form, the complex form and the elementwise form of RoPE are the same.",
    "RoPE 的矩阵形式、复数形式与逐元素形式是同一个变换。",
    says=f"{SU}, equations 12, 15 and 34",
    how="The rotation by whorl, interleaved, by the kernel it takes here and by torch's operations, of ten vectors of "
    "6, 10, 64 and 126 dimensions (bases 10,000, 100, 10,000 and 500,000) against products with the block matrix and "
    "with e^(i m w), positions up to 4,096, float64.",
    how_zh="6、10、64、126 维（底数 10000、100、10000、500000）各十个向量、位置直到 4096、float64：whorl 的交错旋转（此"
    "处所用的内核与 torch 运算两种实现）与分块矩阵乘积、与 e^(i m w) 乘积比较。",
)
def three_forms() -> Finding:
    by_matrix, by_complex = [], []
    for dim, base in HEADS:
        rope, x = Rope(head_dim=dim, base=base, layout="interleaved"), normal(10, dim)
        for m in PLACES[:-1]:
            for out in (at(rope, x, m), at(rope, x, m, "torch")):
                by_matrix.append(out - x @ by_hand(m, dim, base).mT)
                by_complex.append(out - turned(x, m * ladder(dim, base)))
    numbers = {"elementwise against matrix": largest(by_matrix), "elementwise against complex": largest(by_complex)}
    return all_within(numbers, EXACT)


@about_rope.holds_within(
    "rope.inverse",
    "The inverse rotation undoes the rotation, an attention factor included.",
    "逆旋转可还原旋转，包括注意力缩放因子。",
    says="whorl 0.2, docs/rotary.md",
    how="rotate and rotate(inverse=True) in float64 of four heads of nine vectors of 64 dimensions up to position "
    "8,000: plain and with Yarn(8) in three layouts, the last half of the head alone, two of the four heads alone, and "
    "DynamicNtk(2) of 64 tokens at length 500.",
    how_zh="四个头、各九个 64 维向量、位置直到 8000，float64：rotate 与 rotate(inverse=True)；普通与带 Yarn(8) 各三种排"
    "列，只旋转后一半维度，只旋转四个头中的两个，以及 64 个词的 DynamicNtk(2) 在长度 500 处。",
)
def inverse() -> Finding:
    x, ids = normal(4, 9, 64), torch.arange(9) * 1000
    yarn = Yarn(factor=8.0, original_length=1024)
    ropes = [
        Rope(head_dim=64, layout=layout, scaling=scaling)
        for scaling in (None, yarn)
        for layout in ("half", "interleaved", "interleaved_to_half")
    ]
    ropes += [Rope(head_dim=64, rotary_dim=32, slice="trailing", scaling=yarn), Rope(head_dim=64, rotated_heads=(0, 2))]
    ropes += [Rope(head_dim=64, scaling=DynamicNtk(factor=2.0, original_length=64))]
    turned = [rope.rotate(x, ids, length=500) for rope in ropes]
    undone = [rope.rotate(y, ids, inverse=True, length=500) for rope, y in zip(ropes, turned, strict=True)]
    return close((y - x for y in undone), 1e-12)


@About("rope").holds_within(
    "rope.layouts-permute",
    "The half and the interleaved layout are the same rotation up to one fixed permutation of dimensions, and from 4 "
    "dimensions on not without it.",
    "半分排列与交错排列只差一个固定的维度置换；从 4 维起，不做置换则不相同。",
    says="whorl 0.2, docs/rotary.md; the study notes show code of one and formulas of the other as if they were equal",
    how="Interleaved rotation of permuted vectors of 6, 10, 64 and 126 dimensions (bases 10,000, 100, 10,000 and "
    "500,000) at nine positions up to 800 against the permuted half rotation, and the scores of both; the rotation "
    "from interleaved to half against the half one; and q = (1, 2, 3, 4) at position 2 as it is, where the two must "
    "differ by more than 0.1.",
    how_zh="6、10、64、126 维（底数 10000、100、10000、500000）的向量在直到 800 的九个位置处置换后做交错旋转，与半分旋"
    "转后再置换比较，并比较两者的分数；由交错到半分的旋转与半分旋转比较；另取 q = (1, 2, 3, 4) 在位置 2 处不作置换，两"
    "者之差须大于 0.1。",
)
def layouts_permute() -> Finding:
    ids, found = torch.arange(9) * 100, []
    for dim, base in HEADS:
        x = normal(2, 9, dim)
        pairs = torch.arange(dim).view(2, -1).mT.flatten()  # (0, d/2, 1, …): what half calls a pair, side by side
        half, inter, moved = (
            Rope(head_dim=dim, base=base, layout=layout).rotate(given, ids)
            for layout, given in (("half", x), ("interleaved", x[..., pairs]), ("interleaved_to_half", x[..., pairs]))
        )
        found.append((half[..., pairs] - inter, half[0] @ half[1].mT - inter[0] @ inter[1].mT, half - moved))
    names = "vectors", "scores", "vectors, interleaved to half"
    numbers = {name: largest(off) for name, off in zip(names, zip(*found, strict=True), strict=True)}
    q = doubles([1, 2, 3, 4])
    unmoved = largest(at(plain(4, "half"), q, 2) - at(plain(4), q, 2))
    worst, shown = largest(doubles(list(numbers.values()))), numbers | {"without the permutation": unmoved}
    if not unmoved > 0.1:
        text = f"without the permutation they differ by {unmoved:.3g} only"
        return decide(False, shown, Both(text, f"不做置换也只相差 {unmoved:.3g}"))
    return within(worst, 1e-11, shown, Both(f"permuted they differ by {worst:.3g}", f"置换后相差 {worst:.3g}"))


@About("rope").holds(
    "rope.partial",
    "With a partial rotary head the other dimensions pass through untouched.",
    "部分旋转时，其余维度原样通过。",
    says="Black et al. 2022, GPT-NeoX-20B, section 2.1.1",
    how="rotary_dim=16 and 26 of 64, at either end, half and interleaved, by rotate() and as queries and as keys by "
    "transform_qk(): the other dimensions bit for bit, those that turn against a head of their size.",
    how_zh="64 维中取 rotary_dim=16 与 26，分别在两端，半分与交错，用 rotate()，以及作为查询与键用 transform_qk()：其余"
    "维度逐位比较，旋转的维度与同样大小的头比较。",
)
def partial() -> Finding:
    x, ids, agree = normal(9, 64), torch.arange(9) * 100, []
    for dim, layout in product((16, 26), LAYOUTS):
        whole = Rope(head_dim=dim, layout=layout)
        for slice_, own in (("leading", slice(0, dim)), ("trailing", slice(64 - dim, 64))):
            rope = Rope(head_dim=64, rotary_dim=dim, slice=slice_, layout=layout)
            q, k = rope.transform_qk(x[None, None], x[None, None], ids, ids)
            rest = torch.ones(64, dtype=torch.bool)
            rest[own] = False
            for out in (rope.rotate(x, ids), q[0, 0], k[0, 0]):
                agree.append(torch.equal(out[:, rest], x[:, rest]))
                agree.append(torch.equal(out[:, own], whole.rotate(x[:, own].contiguous(), ids)))
    but = Both(
        "dimensions outside the slice changed, or those in it turn otherwise",
        "切片之外的维度被改变，或其中的维度旋转不同",
    )
    return decide(all(agree), {"comparisons": len(agree), "that agree": sum(agree)}, but)


@about_rope.holds_within(
    "rope.rerotate",
    "A rotated key whose position is known can be moved to another position or another base without the key as it "
    "was before the rotation.",
    "位置已知的已旋转的键可以移到别的位置或换成别的底数，无需保留旋转之前的键。",
    says="whorl 0.2, docs/rotary.md",
    how="rerotate of nine rotated keys of 64 dimensions against rotating the keys themselves, float64, half and "
    "interleaved: moved by 5,000 positions and more, each by another number; to base 500,000 where they are; and both "
    "at once, from plain to that base with YaRN, and keys that were rotated with that YaRN to plain.",
    how_zh="九个 64 维的已旋转的键，float64，半分与交错：rerotate 与直接旋转原键比较：各移动 5000 个以上、互不相同的位"
    "置数；原处换成底数 500000；两者同时进行：从普通 RoPE 换成该底数并加 YaRN，以及把用该 YaRN 旋转的键换成普通 RoPE。",
)
def moves() -> Finding:
    k, old, new = normal(1, 1, 9, 64), torch.arange(9), 37 * torch.arange(9) + 5000
    off: dict[str, list[Tensor]] = {}
    for layout in LAYOUTS:
        here, there = Rope(head_dim=64, layout=layout), Rope(head_dim=64, base=500_000.0, layout=layout)
        scaling = Yarn(factor=4.0, original_length=2048)
        yarn = Rope(head_dim=64, base=500_000.0, layout=layout, scaling=scaling)
        cases = {
            "another position": (here, here, new),
            "another base": (here, there, old),
            "both, to YaRN": (here, yarn, new),
            "both, from YaRN": (yarn, here, new),
        }
        for name, (one, other, to) in cases.items():
            got = rerotate(one.rotate(k, old), one, other, old, new_positions=to)
            off.setdefault(f"largest difference, {name}", []).append(got - other.rotate(k, to))
    return all_within({name: largest(each) for name, each in off.items()}, 1e-11)
