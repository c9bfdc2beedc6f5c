"""The questions the study notes ask, each measured, or open with the reason (N30)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from whorl.attend.softmax import attention
from whorl.claims import evidence
from whorl.claims.ledger import About, Finding, close, decide, depends, needs_training, within
from whorl.claims.probes import build, generator, ladder, largest, moved, normal, tokens, weights_at
from whorl.claims.rotation.turning import matrix, plain, score_at
from whorl.claims.sinusoidal.codes import codes
from whorl.claims.sinusoidal.ideal import recovered
from whorl.encodings.none import NoPE
from whorl.encodings.rope import Rope
from whorl.encodings.sinusoidal import Sinusoidal

ASKED = "the notes ask; N30"
about_sinusoidal = About("sinusoidal", rows=("N30",), says=ASKED)
about_rope = About("rope", rows=("N30",), says=ASKED)
about_rope_and_sinusoidal = About("rope", "sinusoidal", rows=("N30",), says=ASKED)


@about_sinusoidal.fails(
    "question.one-frequency",
    "One sine and cosine with a large period would do in place of many frequencies.",
    "用一个周期很大的 sin/cos 对就能代替许多频率。",
    how="512 positions under noise of 0.5 in each of 64 entries: the ladder, and one frequency of period 512 as often.",
)
def one_frequency() -> Finding:
    many, single = recovered(64), recovered(64, "one")
    numbers = {"found, ladder of 32 frequencies": many, "found, one frequency 32 times": single}
    shares = f"{single:.0%} of the positions with one frequency and {many:.0%} with many"
    return decide(single >= many, numbers, f"the same dimensions find {shares}: neighbours are too alike")


@about_rope.fails(
    "question.slow-pairs-still",
    "Within the context the slowest pairs do not move, so they carry no position.",
    "在上下文范围内最慢的几对不动，因此不携带位置信息。",
    how="What cos and sin of the slowest of 64 pairs do over 512 positions, against a step of bfloat16 and of float32.",
)
def slow_pairs_still() -> Finding:
    cos, sin = (table[:, -1] for table in Rope(head_dim=128).tables(torch.arange(512), dtype=torch.float64))
    cos_moves, sin_moves = (float(table.max() - table.min()) for table in (cos, sin))
    sines, cosines = (len(table.bfloat16().unique()) for table in (sin, cos))
    numbers = {"cos moves by": cos_moves, "sin moves by": sin_moves}
    numbers |= {"values of sin in bfloat16": sines, "values of cos in bfloat16": cosines}
    text = (
        f"cos moves by {cos_moves:.4f} and is one number in bfloat16, but sin grows in proportion to the position: by "
        f"{sin_moves:.3f} over 512, {sines} values"
    )
    return decide(sines < 10, numbers, text)


@about_rope.fails(
    "question.slow-pairs-hurt",
    "Slow change in the late dimensions hurts.",
    "靠后维度变化缓慢会损害模型。",
    how=(
        "RoPE with its slowest quarter standing still (proportional) against plain RoPE, in the lab: only training "
        "tells."
    ),
    trained=True,
)
def slow_pairs_hurt() -> Finding:
    return needs_training("whorl lab sweep FILE.toml over rope with scaling proportional, fraction 0.5, 0.75 and 1")


@about_rope.holds_within(
    "question.order",
    "The order of the frequencies does not matter: it is a permutation of dimensions, which projections take up.",
    "频率的次序无关紧要：它只是维度的置换，可由投影矩阵吸收。",
    how="Scores of 20 q, k with frequencies in random order on permuted pairs, against those of the ladder.",
)
def order() -> Finding:
    q, k = normal(2, 20, 64)
    mixed = torch.randperm(32, generator=generator(30))
    other = Rope(head_dim=64, layout="interleaved", frequencies=tuple(ladder(64)[mixed].tolist()))
    pairs = torch.stack((2 * mixed, 2 * mixed + 1), -1).flatten()
    differences = [
        score_at(plain(64), q, k, m, n) - score_at(other, q[:, pairs], k[:, pairs], m, n)
        for m, n in ((0, 0), (5, 3), (4000, 17))
    ]
    return close(differences, 1e-9)


@about_sinusoidal.depends(
    "question.proportional",
    "A model senses the absolute difference of two codes, not the proportional one.",
    "模型感知的是两个编码的绝对差，而不是相对差。",
    how="Attention weights of x + p at twice its size, with and without the LayerNorm that comes in between.",
)
def proportional() -> Finding:
    placed = Sinusoidal(width=64).add_to_input(normal(1, 12, 64), torch.arange(12))
    projections = normal(2, 64, 64, seed=1) / 8

    def weights(x: Tensor) -> Tensor:
        q, k = (x @ projection for projection in projections)
        return attention(q[None], k[None], k[None], encoding=NoPE(), return_weights=True)[1]

    numbers = {
        "without a norm: change of a weight": largest(weights(2 * placed) - weights(placed)),
        "with LayerNorm: change of a weight": largest(
            weights(layer_norm(2 * placed, (64,))) - weights(layer_norm(placed, (64,)))
        ),
    }
    bare, normed = (change > 1e-2 for change in numbers.values())
    text = "scores are bilinear, so sizes count; a LayerNorm in between leaves proportions only"
    return depends("the norm between", bare, normed, numbers, text)


@about_rope_and_sinusoidal.holds_within(
    "question.rope-inherits-decay",
    "RoPE inherits the decay of sinusoidal codes: equal q and k of ones score 2 <p_m, p_n>.",
    "RoPE 继承了正弦编码的衰减：q = k = 1 时分数恰为 2<p_m, p_n>。",
    how="RoPE scores of ones at distances 0 … 2,000 against products of sinusoidal codes.",
)
def inherits_decay() -> Finding:
    ids, ones = torch.arange(2001), torch.ones(2001, 128, dtype=torch.float64)
    scores = plain(128).rotate(ones, ids) @ plain(128).rotate(ones[:1], ids[:1])[0]
    return close(scores - 2 * codes(ids) @ codes(ids[:1])[0], 1e-9)


@About("rope", "alibi", "kerple", rows=("N30",), says=ASKED).holds(
    "question.decay-good",
    "Decay is good: encodings that decay keep their quality past the trained length better than RoPE.",
    "衰减是好事：会衰减的编码在训练长度之外比 RoPE 更能保持质量。",
    how=(
        "Rise of the loss at 4 times the trained length, ALiBi and KERPLE against RoPE, from the lab. Retrieval is "
        "another matter."
    ),
    trained=True,
)
def decay_good() -> Finding:
    findings = [_less(name, "rope", rise=True) for name in ("alibi", "kerple")]
    decided = [finding for finding in findings if finding.verdict.kind != "needs training"]
    if not decided:
        return needs_training("whorl compare alibi kerple rope --preset laptop --seeds 3")
    return min(decided, key=lambda finding: next(iter(finding.numbers.values())))


@about_rope.holds_within(
    "question.dense-exponential",
    "The whole vector could be turned by a dense e^(mA): the same properties, at d^2 multiplications in place of 2 d.",
    "也可以用稠密的 e^(mA) 旋转整个向量：性质相同，但乘法从 2d 次变为 d² 次。",
    how=(
        "U R_m U^T with a random orthogonal U, from whorl's own R_m: relative scores, norms, the group law; and its "
        "cost."
    ),
)
def dense_exponential() -> Finding:
    dim = 16
    basis, _ = torch.linalg.qr(normal(dim, dim, seed=31))
    turn = {m: basis @ matrix(plain(dim), m) @ basis.mT for m in (0, 3, 8, 11, 103, 108)}
    q, k = normal(2, dim, seed=32)
    numbers = {
        "change of a score": abs(float((turn[3] @ q) @ (turn[8] @ k) - (turn[103] @ q) @ (turn[108] @ k))),
        "change of a norm": abs(float((turn[103] @ q).norm() - q.norm())),
        "group law": largest(turn[3] @ turn[8] - turn[11]),
        "start": largest(turn[0] - torch.eye(dim, dtype=torch.float64)),
    }
    dense, pairs = (int((turned.abs() > 1e-6).sum()) for turned in (turn[3], matrix(plain(dim), 3)))
    counts = {"multiplications, dense": dense, "multiplications, pairs": pairs}
    return within(max(numbers.values()), 1e-9, numbers | counts)


@about_rope_and_sinusoidal.fails(
    "question.absolute-in-form",
    "Sinusoidal codes and RoPE are both absolute in form, so their scores are both relative or both not.",
    "正弦编码与 RoPE 形式上都是绝对编码，因此两者的分数要么都是相对的，要么都不是。",
    how="Weights of 12 random tokens at positions from 0 and from 1,000, with each.",
)
def absolute_in_form() -> Finding:
    numbers = {}
    for name in ("rope", "sinusoidal"):
        encoding, ids = moved(build(name)), torch.arange(12)
        numbers[f"{name}: change of a weight"] = largest(weights_at(encoding, ids) - weights_at(encoding, ids + 1000))
    rope, added = (value < 1e-6 for value in numbers.values())
    text = "a product of rotations holds the distance alone; a sum keeps <q, p_n> and <p_m, k>, which know the place"
    return decide(rope == added, numbers, text)


@about_rope_and_sinusoidal.holds(
    "question.every-layer",
    "RoPE leaves no trace of position in the values: equal tokens come out equal. A sinusoidal code stays in them.",
    "RoPE 不在值向量中留下位置痕迹：相同的词输出也相同。正弦编码则一直留在其中。",
    how="Attention outputs of 12 tokens that are all alike: how far they differ between positions.",
)
def every_layer() -> Finding:
    numbers = {}
    for name in ("rope", "sinusoidal"):
        encoding, ids = moved(build(name)), torch.arange(12)
        given = tokens(encoding, ids, alike=True)
        out = attention(*given[:3], encoding=encoding, positions=ids)
        numbers[f"{name}: outputs differ by"] = largest(out - out[:, :, :1])
    rope, added = numbers.values()
    return decide(rope < 1e-9 and added > 0.1, numbers, f"with RoPE outputs of equal tokens differ by {rope:.3g}")


@About("rope", rows=("N9", "N30")).holds(
    "question.learned-frequencies",
    "Frequencies that may be learned, w_i e^(a_i) from a_i = 0, hardly move in training.",
    "可学习的频率 w_i e^(a_i)（a_i 从 0 开始）在训练中几乎不动。",
    says="the notes; N9",
    how="Rope(learnable=True) in the lab: the largest |a_i| after training, and what it gained.",
    trained=True,
)
def learned_frequencies() -> Finding:
    return needs_training("whorl lab sweep FILE.toml over rope with learnable false and true; read log_scale")


@about_rope_and_sinusoidal.holds(
    "question.converges-faster",
    "RoPE reaches a lower loss than sinusoidal codes in the same number of steps.",
    "同样步数下，RoPE 的损失低于正弦编码。",
    says="Su et al. 2021, figure 3; N30",
    how="Bits per byte at the trained length after the same steps, from the lab.",
    trained=True,
)
def converges_faster() -> Finding:
    return _less("rope", "sinusoidal", rise=False)


@about_rope_and_sinusoidal.holds(
    "question.rope-generalises",
    "RoPE generalises past the trained length better than sinusoidal codes.",
    "在训练长度之外，RoPE 比正弦编码泛化得更好。",
    says="Press et al. 2021, table; N30",
    how="Rise of the loss at 4 times the trained length, from the lab.",
    trained=True,
)
def rope_generalises() -> Finding:
    return _less("rope", "sinusoidal", rise=True)


@about_rope.fails(
    "question.extrapolation-limit",
    "A RoPE model holds to four times the length it was trained on.",
    "RoPE 模型能保持到训练长度的四倍。",
    says="N30 asks where the limit lies",
    how="Rise of the loss at 4 times the trained length, from the lab: at most 0.2 bits per byte.",
    trained=True,
)
def extrapolation_limit() -> Finding:
    largest_rise = evidence.largest_rise("rope")
    if largest_rise is None:
        return needs_training(evidence.command_for("rope"))
    source, rise = largest_rise
    name = "rise of the loss at 4x, bits per byte"
    return decide(rise <= 0.2, {name: rise}, f"{name}: {rise:.2f}", source)


def _less(name: str, other: str, rise: bool) -> Finding:
    """Whether an encoding's loss, or its rise at 4 times the trained length, is below another's in every result."""
    losses = evidence.losses(other), evidence.losses(name)
    least = evidence.least_gap(*losses, lambda loss: loss.rise(4.0) if rise else loss.by_ratio.get(1.0))
    if least is None:
        return needs_training(f"whorl compare {name} {other} --preset laptop --seeds 3")
    source, gap = least
    what = f"{'rise at 4x' if rise else 'loss at 1x'}, {other} less {name}, bits per byte"
    return decide(gap > 0, {what: gap}, f"{what}: {gap:.2f}", source)
