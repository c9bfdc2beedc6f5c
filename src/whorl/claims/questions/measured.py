"""The questions the study notes ask that a computation answers."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from whorl import NoPE, Rope, Sinusoidal, attention
from whorl.claims.ledger import About, Both, Finding, close, decide, depends, within
from whorl.claims.probes import build, doubles, generator, ladder, largest, moved, normal, tokens, weights_at
from whorl.claims.rotation.turning import EXACT, matrix, phases, plain, score_at
from whorl.claims.sinusoidal.codes import codes, defined
from whorl.claims.sinusoidal.ideal import one_slow, recovered

ASKED = "study notes, a question"
about_sinusoidal = About("sinusoidal", says=ASKED)
about_rope = About("rope", says=ASKED)
about_rope_and_sinusoidal = About("rope", "sinusoidal", says=ASKED)


@about_sinusoidal.fails(
    "question.one-frequency",
    "Under noise of 0.5 in each entry, one sine and cosine with a period of 512 would tell as many of 512 positions "
    "apart as 32 frequencies.",
    "每个分量有 0.5 的噪声时，周期 512 的一个 sin/cos 对也能像 32 个频率那样区分 512 个位置。",
    how="512 positions under normal noise of deviation 0.5 in each of 64 entries, four draws: how many the nearest "
    "code finds again with the ladder of 32 frequencies, and with one sine and cosine of period 512, repeated 32 "
    "times. The latter would do if it found as many. Neighbours of its codes must be nearer to each other than 0.5 and "
    "those of the ladder farther apart; the ladder's codes must be sines and cosines of t / 10,000^(2i/64), to 1e-9.",
    how_zh="512 个位置，64 个分量各加标准差为 0.5 的正态噪声，抽样四次，用最近的编码找回位置：32 个频率的阶梯找回多少，"
    "周期 512 的一个 sin/cos 对重复 32 次找回多少。后者找回的不少于前者才算可行。后者的相邻编码须近于 0.5，前者的须远于"
    " 0.5；阶梯的编码须为 t / 10000^(2i/64) 的正弦与余弦，容差 1e-9。",
)
def one_frequency() -> Finding:
    many, single = recovered(64), recovered(64, "one")
    t = torch.arange(512)
    own, right = codes(t, 64), defined(t, 64)
    near, far = float(one_slow(64).diff(dim=0).norm(dim=-1).max()), float(own.diff(dim=0).norm(dim=-1).min())
    numbers = {"found, ladder of 32 frequencies": many, "found, one frequency 32 times": single}
    numbers |= {"neighbours apart, ladder": far, "neighbours apart, one frequency": near}
    numbers |= {"ladder off the definition by": largest(own - right)}
    shares = f"{single:.0%} of the positions with one frequency and {many:.0%} with many"
    but = Both(
        f"the same dimensions find {shares}: neighbours are too alike",
        f"同样的维数，单一频率只找回 {single:.0%} 的位置，多个频率找回 {many:.0%}：相邻位置过于相似",
    )
    told = near < 0.5 < far and largest(own - right) < EXACT
    return decide(single >= many, numbers, but, instead=told)


@about_rope.depends(
    "question.slow-pairs-still",
    "Within 512 positions the slowest of 64 pairs does not move in bfloat16, so it carries no position.",
    "512 个位置内，64 对中最慢的一对在 bfloat16 下不动，因此不携带位置信息。",
    how="(1, 1) turned in bfloat16 by the slowest of 64 pairs at positions 0 … 511, base 10,000 and base 500,000: it "
    "would have to take one value. At base 10,000 the table's cos is to take one in bfloat16, sin to be in proportion "
    "to the position to a thousandth, and both to be those of 10,000^(-63/64) times the position, to 1e-9.",
    how_zh="64 对中最慢的一对，底数 10000 与 500000：(1, 1) 在位置 0 … 511 处以 bfloat16 旋转，须只有一个值才算不动。底"
    "数 10000 时，表中的 cos 在 bfloat16 下应只有一个值，sin 应与位置成正比（相对容差千分之一），两者都应为 "
    "10000^(-63/64) 乘以位置的余弦与正弦，容差 1e-9。",
)
def slow_pairs_still() -> Finding:
    ids = torch.arange(512)
    cos, sin = (table[:, -1] for table in Rope(head_dim=128).tables(ids, dtype=torch.float64))
    cos_moves, sin_moves = (float(table.max() - table.min()) for table in (cos, sin))
    moved, still = _places_of_the_slowest_pair(10_000.0), _places_of_the_slowest_pair(500_000.0)
    numbers = {"values at base 10,000": moved, "values at base 500,000": still}
    numbers |= {"cos moves by": cos_moves, "sin moves by": sin_moves, "values of cos": len(cos.bfloat16().unique())}
    off = largest(torch.complex(cos, sin) - phases(ids, doubles([10_000.0 ** (-63 / 64)]))[:, 0])
    bent = largest(sin[1:] / (ids[1:] * sin[1]) - 1)
    right = numbers["values of cos"] == 1 and bent < 0.001 and off < EXACT
    numbers |= {"sin off a straight line by": bent, "off the definition by": off}
    but = Both(
        f"at base 10,000 cos moves by {cos_moves:.4f} and is one number in bfloat16, but sin grows in proportion to "
        f"the position, by {sin_moves:.3f} over 512, and (1, 1) takes {moved} values; at base 500,000 it takes {still}",
        f"底数 10000 时，cos 只变化 {cos_moves:.4f}，在 bfloat16 下是同一个数；但 sin 与位置成正比，512 个位置变化 "
        f"{sin_moves:.3f}，(1, 1) 有 {moved} 个不同的值；底数 500000 时有 {still} 个",
    )
    return depends(Both("the base", "底数"), still == 1, moved == 1, numbers, but, instead=right)


def _places_of_the_slowest_pair(base: float) -> int:
    """How many different results there are of turning (1, 1) by the slowest of 64 pairs at positions 0 … 511."""
    rope = Rope(head_dim=128, base=base, layout="interleaved")
    turned = rope.rotate(torch.ones(512, 128, dtype=torch.bfloat16), torch.arange(512))
    return len(turned[:, -2:].unique(dim=0))


@about_rope.holds_within(
    "question.order",
    "The order of the frequencies does not matter: it is a permutation of dimensions, which projections take up.",
    "频率的次序无关紧要：它只是维度的置换，可由投影矩阵吸收。",
    how="Scores of 20 q, k of 64 dimensions with frequencies in random order on permuted pairs, against those of the "
    "ladder, at three pairs of positions; without the permutation of pairs they must differ by more than 1.",
    how_zh="20 组 64 维 q、k，三对位置：频率随机排列、维度相应置换的分数，与阶梯的分数比较；维度不作置换时须相差超过 1"
    "。",
)
def order() -> Finding:
    q, k = normal(2, 20, 64)
    mixed = torch.randperm(32, generator=generator(30))
    other = Rope(head_dim=64, layout="interleaved", frequencies=tuple(ladder(64)[mixed].tolist()))
    pairs = torch.stack((2 * mixed, 2 * mixed + 1), -1).flatten()
    own, permuted, unmoved = (
        torch.stack([score_at(rope, *given, m, n) for m, n in ((0, 0), (5, 3), (4000, 17))])
        for rope, given in ((plain(64), (q, k)), (other, (q[:, pairs], k[:, pairs])), (other, (q, k)))
    )
    numbers = {"largest difference": largest(own - permuted), "without the permutation": largest(own - unmoved)}
    if not numbers["without the permutation"] > 1:
        return decide(False, numbers, Both("the order of the frequencies changes nothing", "频率的次序不起作用"))
    return within(numbers["largest difference"], 1e-9, numbers)


@about_sinusoidal.depends(
    "question.proportional",
    "Attention senses the size of tokens with their codes, x + p, and not only the proportions in them.",
    "注意力感知词与编码之和 x + p 的大小，而不只是其中的比例。",
    how="Attention weights of 12 tokens x + p of width 64 at twice their size, with and without the LayerNorm that "
    "comes in between: a change above 0.01 counts. Without it they must be those of four times the scores, to 1e-9, "
    "with it the same to 1e-4; p must be the code of the definition, to 1e-6.",
    how_zh="12 个宽 64 的词 x + p 放大两倍时的注意力权重，中间有与没有 LayerNorm：变化超过 0.01 才算。没有时须为分数的"
    "四倍所给的权重（容差 1e-9），有时须不变（容差 1e-4）；p 须为定义所给的编码（容差 1e-6）。",
)
def proportional() -> Finding:
    x, ids = normal(1, 12, 64), torch.arange(12)
    placed = Sinusoidal(width=64).add_to_input(x, ids)
    projections = normal(2, 64, 64, seed=1) / 8

    def weights(x: Tensor) -> Tensor:
        q, k = (x @ projection for projection in projections)
        return attention(q[None], k[None], k[None], encoding=NoPE(), return_weights=True)[1]

    before, after = weights(placed), weights(2 * placed)
    normed = largest(weights(layer_norm(2 * placed, (64,))) - weights(layer_norm(placed, (64,))))
    numbers = {
        "without a norm: change of a weight": largest(after - before),
        "with LayerNorm: change of a weight": normed,
        "without a norm: off four times the scores by": largest(after - (4 * before.log()).softmax(-1)),
        "p off the definition by": largest(placed - x - defined(ids, 64)),
    }
    bare, normed, fourfold, off = numbers.values()
    text = "scores are bilinear, so sizes count; a LayerNorm in between leaves proportions only"
    but = Both(text, "分数是双线性的，大小有影响；中间的 LayerNorm 只留下比例")
    told = fourfold < 1e-9 and normed < 1e-4 and off < 1e-6
    on = Both("the norm between", "中间是否归一化")
    return depends(on, bare > 1e-2, normed > 1e-2, numbers, but, instead=told)


@about_rope_and_sinusoidal.holds_within(
    "question.rope-inherits-decay",
    "For q and k of ones RoPE inherits the decay of sinusoidal codes of the head's width and the same base: before any "
    "scaling they score 2 <p_m, p_n>.",
    "q、k 为全 1 向量时，RoPE 继承了宽度等于头维数、底数相同的正弦编码的衰减：未缩放的分数恰为 2<p_m, p_n>。",
    how="RoPE scores of ones of 128 and of 20 dimensions, base 10,000, at positions 0 … 2,000 with ones at 0 and at "
    "700 against products of sinusoidal codes. Of other q and k: decay.any-content.",
    how_zh="128 维与 20 维的全 1 向量，底数 10000，在位置 0 … 2000 处与位置 0、700 处的 RoPE 分数，与正弦编码的内积比较"
    "。其他 q、k 见 decay.any-content。",
)
def inherits_decay() -> Finding:
    ids, there, differences = torch.arange(2001), torch.tensor([0, 700]), []
    for dim in (128, 20):
        ones = torch.ones(2001, dim, dtype=torch.float64)
        scores = plain(dim).rotate(ones, ids) @ plain(dim).rotate(ones[:2], there).mT
        differences.append(scores - 2 * codes(ids, dim) @ codes(there, dim).mT)
    return close(differences, 1e-9)


@about_rope.holds_within(
    "question.dense-exponential",
    "The whole vector could be turned by a dense e^(mA): the same properties, at d^2 multiplications in place of 2 d.",
    "也可以用稠密的 e^(mA) 旋转整个向量：性质相同，但乘法从 2d 次变为 d² 次。",
    how="U R_m U^T of 16 and of 40 dimensions with a random orthogonal U, from whorl's own R_m, m = 0, 3, 8, 11, 103, "
    "108: relative scores, norms, the group law, the start; and the numbers above 1e-6 in size in the matrices of m = "
    "3, d^2 and 2 d.",
    how_zh="由 whorl 的 16 维与 40 维的 R_m（m = 0、3、8、11、103、108）与随机正交矩阵 U 构成 U R_m U^T：相对分数、范"
    "数、群律、起点；以及 m = 3 的矩阵中绝对值大于 1e-6 的数，d² 与 2d 个。",
)
def dense_exponential() -> Finding:
    numbers, good = {}, True
    for dim in (16, 40):
        basis, _ = torch.linalg.qr(normal(dim, dim, seed=31))
        turn = {m: basis @ matrix(plain(dim), m) @ basis.mT for m in (0, 3, 8, 11, 103, 108)}
        q, k = normal(2, 20, dim, seed=32)
        near, far = ((q @ turn[m].mT * (k @ turn[m + 5].mT)).sum(-1) for m in (3, 103))
        apart = {
            "change of a score": near - far,
            "change of a norm": (q @ turn[103].mT).norm(dim=-1) - q.norm(dim=-1),
            "group law": turn[3] @ turn[8] - turn[11],
            "start": turn[0] - torch.eye(dim, dtype=torch.float64),
        }
        numbers |= {f"{name}, d = {dim}": largest(each) for name, each in apart.items()}
        dense, pairs = (int((turned.abs() > 1e-6).sum()) for turned in (turn[3], matrix(plain(dim), 3)))
        good = good and (dense, pairs) == (dim * dim, 2 * dim)
        counts = {f"multiplications, dense, d = {dim}": dense, f"multiplications, pairs, d = {dim}": pairs}
        numbers |= counts
    worst = largest(doubles([x for name, x in numbers.items() if not name.startswith("multiplications")]))
    return within(worst if good else float("inf"), 1e-9, numbers)


@about_rope_and_sinusoidal.fails(
    "question.absolute-in-form",
    "Sinusoidal codes and RoPE are both absolute in form, so their scores are both relative or both not.",
    "正弦编码与 RoPE 形式上都是绝对编码，因此两者的分数要么都是相对的，要么都不是。",
    how="Weights of 12 random tokens, 4 heads of 16, at positions from 0 and from 1,000, with each: equal to 1e-6 "
    "counts as relative. Positions three apart must change those of both by more than 0.01.",
    how_zh="12 个随机词、4 个 16 维的头，位置从 0 与从 1000 开始，两种编码各自的权重：相差不到 1e-6 算相对的。位置间隔"
    "为三时，两者的权重变化都须超过 0.01。",
)
def absolute_in_form() -> Finding:
    numbers, spread, ids = {}, {}, torch.arange(12)
    for name in ("rope", "sinusoidal"):
        encoding = moved(build(name))
        here, there, apart = (weights_at(encoding, at) for at in (ids, ids + 1000, 3 * ids))
        numbers[f"{name}: change of a weight"] = largest(here - there)
        spread[f"{name}: change of a weight, positions three apart"] = largest(here - apart)
    rope, added = (value < 1e-6 for value in numbers.values())
    text = (
        "a product of rotations holds the distance alone; a sum keeps terms that know the place, as <q, p_n> and "
        "<p_m, k> do"
    )
    but = Both(text, "旋转的内积只含距离；相加则保留知道位置的 <q, p_n> 与 <p_m, k>")
    seen = min(spread.values()) > 0.01
    return decide(rope == added, numbers | spread, but, instead=rope and not added and seen)


@about_rope_and_sinusoidal.holds(
    "question.every-layer",
    "RoPE leaves no trace of position in the values: where all tokens are equal, so are all outputs. A sinusoidal code "
    "stays in them.",
    "RoPE 不在值向量中留下位置痕迹：所有词都相同时，各处输出也相同。正弦编码则留在其中。",
    how="Attention outputs of 12 tokens that are all alike, 4 heads of 16: with RoPE equal at all positions to 1e-9, "
    "with sinusoidal codes different by more than 0.1. Those of random tokens with RoPE must change by more than 0.1 "
    "where positions are three times as far apart.",
    how_zh="12 个相同的词、4 个 16 维的头的注意力输出：用 RoPE 时各位置相同（容差 1e-9），用正弦编码时相差超过 0.1。随"
    "机的词用 RoPE 时，位置间隔为三倍则输出变化须超过 0.1。",
)
def every_layer() -> Finding:
    numbers = {}
    for name in ("rope", "sinusoidal"):
        encoding, ids = moved(build(name)), torch.arange(12)
        given = tokens(encoding, ids, alike=True)
        out = attention(*given[:3], encoding=encoding, positions=ids)
        numbers[f"{name}: outputs differ by"] = largest(out - out[:, :, :1])
    rope, added = numbers.values()
    encoding = build("rope")
    given = tokens(encoding, torch.arange(12))
    here, apart = (attention(*given[:3], encoding=encoding, positions=step * torch.arange(12)) for step in (1, 3))
    numbers["rope: random tokens, three times as far apart, change by"] = acts = largest(here - apart)
    but = Both(
        f"outputs of equal tokens differ by {rope:.3g} with RoPE and by {added:.3g} with sinusoidal codes",
        f"相同的词的输出，用 RoPE 时相差 {rope:.3g}，用正弦编码时相差 {added:.3g}",
    )
    return decide(rope < 1e-9 and min(added, acts) > 0.1, numbers, but)
