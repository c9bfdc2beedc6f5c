"""Statements of the study notes that are wrong or half true, each with what is right."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from whorl.attend.softmax import attention
from whorl.claims.biases import alibi_weights, shuffled
from whorl.claims.ledger import Finding, claim, decide, depends, needs_training, within
from whorl.claims.probes import largest, normal
from whorl.claims.rotation import at, gradient_ratio, plain
from whorl.claims.sinusoidal import codes
from whorl.encodings.alibi import Alibi
from whorl.encodings.learned import Learned
from whorl.encodings.rope import Rope
from whorl.encodings.sinusoidal import Sinusoidal
from whorl.encodings.t5 import T5
from whorl.errors import WhorlError

NOTES = "the notes"


def frequencies(dim: int, base: float = 10_000.0) -> Tensor:
    """w_i of a RoPE."""
    return Rope(head_dim=dim, base=base).frequencies()


# -- frequencies ------------------------------------------------------------------------------------------------------


@claim(
    "note.squared-exponent",
    "theta = 10000 ** (-2 * arange(0, d, 2) / d) gives RoPE's frequencies.",
    "theta = 10000 ** (-2 * arange(0, d, 2) / d) 给出 RoPE 的频率。",
    says=f"{NOTES}, code",
    how="This line against the frequencies of a RoPE of 512 dimensions.",
    expected="fails",
    about=("rope", "sinusoidal"),
    rows=("N26",),
)
def squared_exponent() -> Finding:
    wrong = 10_000.0 ** (-2 * torch.arange(0, 512, 2, dtype=torch.float64) / 512)
    own = frequencies(512)
    numbers = {
        "theta_1 by this line": float(wrong[1]),
        "theta_1": float(own[1]),
        "last by this line": float(wrong[-1]),
        "last": float(own[-1]),
    }
    return decide(
        largest(wrong / own - 1) < 1e-9,
        numbers,
        (
            "arange(0, d, 2) holds 2i already, so the line squares every frequency; right is 10000 ** (-arange(0, d, "
            "2) / d)"
        ),
    )


@claim(
    "rope.frequencies",
    "w_i = base^(-2i/d): theta_1 is 0.9647 at d = 512, and w falls from 1 by equal ratios.",
    "w_i = base^(-2i/d)：d = 512 时 θ_1 = 0.9647，频率从 1 开始按等比下降。",
    says="Su et al. 2021, section 3.2.2; N26",
    how="Frequencies of heads of 8, 128 and 512 dimensions against the definition.",
    expected="holds within",
    about=("rope",),
    rows=("N26",),
)
def right_frequencies() -> Finding:
    worst = max(
        abs(float(w) / 10_000.0 ** (-2 * i / d) - 1) for d in (8, 128, 512) for i, w in enumerate(frequencies(d))
    )
    first = float(frequencies(512)[1])
    numbers = {"theta_1 at d = 512": first, "largest relative difference": worst}
    return within(max(worst, 0.0 if abs(first - 0.9647) < 5e-5 else 1.0), 1e-12, numbers)


@claim(
    "note.theta-one",
    "theta_1 at d = 512 is 0.99.",
    "d = 512 时 θ_1 = 0.99。",
    says=NOTES,
    how="The second frequency of a RoPE of 512 dimensions.",
    expected="fails",
    about=("rope",),
    rows=("N26",),
)
def theta_one() -> Finding:
    own = float(frequencies(512)[1])
    return decide(abs(own - 0.99) < 0.005, {"theta_1": own}, f"10000^(-2/512) = {own:.4f}")


@claim(
    "note.small-i-low-frequency",
    "Small i is low frequency.",
    "i 小对应低频。",
    says=f"{NOTES}, in five places",
    how="Frequencies of 128 dimensions from the first to the last pair.",
    expected="fails",
    about=("rope", "sinusoidal"),
    rows=("N29",),
)
def small_i() -> Finding:
    own = frequencies(128)
    numbers = {"w_0": float(own[0]), "w_63": float(own[-1]), "wavelength of pair 0": 2 * math.pi / float(own[0])}
    return decide(
        bool(own[0] < own[-1]),
        numbers,
        f"w_0 = {float(own[0]):g} is the highest, w_63 = {float(own[-1]):.2e} the lowest: small i turns fastest",
    )


@claim(
    "note.large-base-no-high-frequency",
    "A base that is too large lacks high frequencies.",
    "底数过大会缺少高频。",
    says=NOTES,
    how="The fastest frequency for bases from 100 to 10^8.",
    expected="fails",
    about=("rope",),
    rows=("N29",),
)
def large_base() -> Finding:
    numbers = {f"w_0 at base {base:.0e}": float(frequencies(128, base)[0]) for base in (1e2, 1e4, 1e6, 1e8)}
    return decide(min(numbers.values()) < 0.99, numbers, "w_0 = 1 for every base; only the slow end moves")


@claim(
    "note.index-256",
    "At d = 512 the index i runs to 256.",
    "d = 512 时下标 i 可取到 256。",
    says=f"{NOTES}, an example with i = 256",
    how="The number of frequencies of 512 dimensions.",
    expected="fails",
    about=("rope",),
    rows=("N29",),
)
def index_256() -> Finding:
    count = len(frequencies(512))
    return decide(
        count > 256,
        {"frequencies": float(count), "last index": float(count - 1)},
        f"there are {count} pairs, so the last index is {count - 1}",
    )


@claim(
    "note.frequencies-rise",
    "Past the trained length the frequencies rise.",
    "超过训练长度后频率会升高。",
    says=NOTES,
    how="The angle one position adds, at positions from 0 to ten million.",
    expected="fails",
    about=("rope",),
    rows=("N29",),
)
def frequencies_rise() -> Finding:
    rope, numbers = Rope(head_dim=16), {}
    for place in (0, 512, 100_000, 10_000_000):
        cos, sin = rope.tables(torch.tensor([place, place + 1]), dtype=torch.float64)
        step = torch.atan2(sin[1] * cos[0] - cos[1] * sin[0], cos[1] * cos[0] + sin[1] * sin[0])
        numbers[f"fastest pair turns by, at {place:,}"] = float(step[0])
    values = list(numbers.values())
    return decide(
        values[-1] > values[0] + 1e-6,
        numbers,
        "a pair turns by the same angle at every position; frequencies know nothing of it",
    )


# -- sines ------------------------------------------------------------------------------------------------------------


@claim(
    "note.sine-difference",
    "sin(0.1001) - sin(0.1000) is about 3e-7.",
    "sin(0.1001) - sin(0.1000) 约为 3e-7。",
    says=NOTES,
    how="The difference in float64.",
    expected="fails",
    about=("sinusoidal",),
    rows=("N28",),
)
def sine_difference() -> Finding:
    own = math.sin(0.1001) - math.sin(0.1)
    return decide(abs(own / 3e-7 - 1) < 0.5, {"difference": own}, f"it is {own:.3g}: 0.0001 cos(0.1)")


@claim(
    "note.codes-change-less",
    "Codes change ever less as the position grows.",
    "位置越大，编码的变化越小。",
    says=NOTES,
    how="|p_(t+1) - p_t| at t = 0, 100, 10,000 and a million, d = 128.",
    expected="fails",
    about=("sinusoidal",),
    rows=("N28",),
)
def codes_change_less() -> Finding:
    numbers = {}
    for t in (0, 100, 10_000, 1_000_000):
        one, two = codes(torch.tensor([t, t + 1]))
        numbers[f"step at {t:,}"] = float((two - one).norm())
    values = list(numbers.values())
    return decide(
        values[-1] < 0.99 * values[0],
        numbers,
        f"every step is {values[0]:.4f} long: |p_(t+1) - p_t| does not depend on t",
    )


@claim(
    "note.sine-sensitive",
    "sin is sensitive near pi / 2.",
    "sin 在 π/2 附近很敏感。",
    says=NOTES,
    how="What a change of 0.01 does to sin at pi / 2 and at 0.",
    expected="fails",
    about=("sinusoidal",),
    rows=("N28",),
)
def sine_sensitive() -> Finding:
    numbers = {"at pi / 2": abs(math.sin(math.pi / 2 + 0.01) - 1), "at 0": math.sin(0.01)}
    return decide(
        numbers["at pi / 2"] > numbers["at 0"],
        numbers,
        "its derivative cos is 0 there: a change of 0.01 moves it by 5e-5, at 0 by 0.01",
    )


# -- length -----------------------------------------------------------------------------------------------------------

TRAINED = 256


def fit_errors(name: str) -> dict[str, float]:
    """How well a score fitted to -0.05 d on distances below 256 does there, and up to twice and four times as far.

    Least squares with a ridge that keeps the weights small, as those of a trained head are.
    """
    distance = torch.arange(4 * TRAINED)
    target = -0.05 * distance.double()
    if name == "rope":  # what q and k can make of a distance: a sum of its cosines and sines
        features = torch.cat(Rope(head_dim=64).tables(distance, dtype=torch.float64), dim=-1)
    else:
        features = Alibi(heads=1, slopes=(1.0,)).score_bias(torch.tensor([0]), -distance)[:, 0].double().mT
    inside = features[:TRAINED]
    gram = inside.mT @ inside + 1e-3 * torch.eye(inside.shape[1], dtype=torch.float64)
    weights = torch.linalg.solve(gram, inside.mT @ target[:TRAINED])
    off = (features @ weights - target).abs()
    return {
        f"{name}: error below {TRAINED}": float(off[:TRAINED].max()),
        f"{name}: at {TRAINED}-{2 * TRAINED - 1}": float(off[TRAINED : 2 * TRAINED].max()),
        f"{name}: at {2 * TRAINED}-{4 * TRAINED - 1}": float(off[2 * TRAINED :].max()),
        f"{name}: size of the weights": float(weights.norm()),
    }


@claim(
    "note.rope-any-length",
    "RoPE extrapolates to any length.",
    "RoPE 可以外推到任意长度。",
    says=f"{NOTES}",
    how=(
        "The score that q and k can make with RoPE, fitted to -0.05 d for d < 256, read at up to 1,023; ALiBi beside "
        "it."
    ),
    expected="fails",
    about=("rope", "alibi"),
    rows=("N30",),
)
def rope_any_length() -> Finding:
    numbers = fit_errors("rope") | fit_errors("alibi")
    values = list(numbers.values())
    text = (
        f"a score fitted to {values[0]:.1g} nats on 256 distances is off by {values[1]:.3g} at up to 511 and by "
        f"{values[2]:.3g} "
        "at up to 1,023: computable, and wrong. Slow pairs meet angles that they were not fitted on"
    )
    return decide(values[2] < 10 * max(values[0], 0.01), numbers, text)


@claim(
    "note.ran-so-extrapolates",
    "A longer input ran without an error, so the encoding extrapolates.",
    "更长的输入没有报错，所以该编码能外推。",
    says=f"{NOTES}, a test script",
    how="The same fitted RoPE at 1,023: whether it runs, and whether it is right; and a learned table, which raises.",
    expected="fails",
    about=("rope", "learned"),
    rows=("N30",),
)
def ran_so_extrapolates() -> Finding:
    ran = bool(torch.cat(Rope(head_dim=64).tables(torch.arange(4 * TRAINED))).isfinite().all())
    off = list(fit_errors("rope").values())
    try:
        Learned(width=8, length=TRAINED).add_to_input(torch.zeros(1, 1, 8), torch.tensor([TRAINED]))
        raised = 0.0
    except WhorlError:
        raised = 1.0
    numbers = {
        "ran": float(ran),
        "error at its end": off[2],
        "error below the trained length": off[0],
        "a learned table raises": raised,
    }
    return decide(
        not ran or off[2] < 10 * max(off[0], 0.01),
        numbers,
        f"it ran to {4 * TRAINED} with finite numbers, and is off by {off[2]:.3g} where it was right to {off[0]:.1g}",
    )


@claim(
    "note.roformer-1024",
    "RoFormer at 1,024 tokens shows extrapolation past 512.",
    "RoFormer 用 1024 长度的结果说明它能外推到 512 之外。",
    says=f"{NOTES}, of the CAIL2019-SCM table",
    how="The stages of its pre-training as the paper lists them: (length, batch, thousand steps).",
    expected="fails",
    about=("rope",),
    rows=("N23", "N33"),
)
def roformer_1024() -> Finding:
    stages = (
        (512, 256, 200.0),
        (1536, 256, 12.5),
        (256, 256, 120.0),
        (128, 512, 80.0),
        (1536, 256, 10.0),
        (512, 512, 30.0),
    )
    longest = max(length for length, _, _ in stages)
    long_steps = sum(steps for length, _, steps in stages if length > 1024)
    numbers = {"longest stage": float(longest), "thousand steps past 1,024": long_steps}
    return decide(
        longest < 1024,
        numbers,
        (
            f"it was pre-trained on {longest} tokens for {long_steps:g} thousand steps: it shows use of long text, "
            "not extrapolation"
        ),
    )


# -- attention and models ---------------------------------------------------------------------------------------------


@claim(
    "note.alibi-unscaled",
    "ALiBi's attention is not scaled by sqrt(d).",
    "ALiBi 的注意力不除以 √d。",
    says=NOTES,
    how="Weights by whorl against softmax(q k - m d), and against both divided by sqrt(d).",
    expected="fails",
    about=("alibi",),
    rows=("N5",),
)
def alibi_unscaled() -> Finding:
    own, scaled, unscaled, both = alibi_weights()
    numbers = {
        "scores scaled, bias not": largest(own - scaled),
        "nothing scaled": largest(own - unscaled),
        "both scaled": largest(own - both),
    }
    return decide(
        numbers["nothing scaled"] < 1e-6,
        numbers,
        (
            f"without the scale a weight differs by {numbers['nothing scaled']:.2f}: the scores are scaled, the bias "
            "is not"
        ),
    )


@claim(
    "note.t5-stores-length",
    "T5 stores O(L) biases.",
    "T5 要存储 O(L) 个偏置。",
    says=NOTES,
    how="Parameters of T5's bias, and distinct biases of 64, 1,024 and 16,384 keys.",
    expected="fails",
    about=("t5",),
    rows=("N4",),
)
def t5_stores_length() -> Finding:
    t5 = T5(heads=8)
    numbers = {"parameters a head": t5.table.numel() / 8}
    for keys in (64, 1024, 16_384):
        numbers[f"biases, {keys:,} keys"] = float(
            len(t5.score_bias(torch.tensor([keys - 1]), torch.arange(keys))[0].unique())
        )
    return decide(
        numbers["biases, 16,384 keys"] > 1000,
        numbers,
        f"{numbers['parameters a head']:.0f} numbers a head, whatever the length",
    )


@claim(
    "note.bert-sinusoidal",
    "BERT uses sinusoidal positions.",
    "BERT 使用正弦位置编码。",
    says=NOTES,
    how="BERT-base has 109,482,240 parameters; its sizes make so many only with a learned table of 512 x 768.",
    expected="fails",
    about=("sinusoidal", "learned"),
    rows=("N1",),
)
def bert_sinusoidal() -> Finding:
    width, layers, inner, vocab = 768, 12, 3072, 30_522
    norm, dense = 2 * width, width * width + width
    layer = 4 * dense + norm + (width * inner + inner) + (inner * width + width) + norm
    rest = (vocab + 2) * width + norm + layers * layer + dense
    table = sum(p.numel() for p in Learned(width=width, length=512).parameters())
    waves = sum(p.numel() for p in Sinusoidal(width=width).parameters())
    numbers = {
        "published": 109_482_240.0,
        "with a learned table": float(rest + table),
        "with sinusoids": float(rest + waves),
    }
    return decide(
        rest + waves == 109_482_240,
        numbers,
        (
            f"with sinusoids it would have {rest + waves:,} parameters; it has {rest + table:,}, a learned row for "
            "each of 512 positions"
        ),
    )


@claim(
    "note.llama-simplified",
    "LLaMA uses a simplified RoPE.",
    "LLaMA 使用的是简化版 RoPE。",
    says=NOTES,
    how="Its complex products, as released, against RoFormer's rotation of the same vectors.",
    expected="fails",
    about=("rope",),
    rows=("N6",),
)
def llama_simplified() -> Finding:
    x, ids = normal(1, 1, 64, 128), torch.arange(64) * 31
    turn = torch.polar(
        torch.ones(64, 64, dtype=torch.float64),
        torch.outer(ids.double(), 1.0 / 10_000.0 ** (torch.arange(0, 128, 2).double() / 128)),
    )
    as_released = torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * turn).flatten(-2)
    worst = largest(as_released - plain(128).rotate(x, ids))
    return decide(
        worst > 1e-6, {"largest difference": worst}, f"multiplying by e^(i m w) is the same rotation, to {worst:.0e}"
    )


@claim(
    "note.layouts-equal",
    "The half-split code and the interleaved formula both compute RoPE, so one can stand for the other.",
    "半分写法与交错公式都是 RoPE，可以互换。",
    says=f"{NOTES}, code and formula side by side",
    how="Both on q = (1, 2, 3, 4) at position 2, and on vectors whose dimensions are permuted to fit.",
    expected="depends on",
    about=("rope",),
    rows=("N6",),
)
def layouts_equal() -> Finding:
    q = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    half, inter = at(plain(4, "half"), q, 2), at(plain(4), q, 2)
    fit = torch.tensor([0, 2, 1, 3])  # half pairs (0, 2) and (1, 3); interleaved wants them side by side
    numbers = {"as they are": largest(half - inter), "permuted": largest(half[fit] - at(plain(4), q[fit], 2))}
    text = (
        f"q = (1, 2, 3, 4) at 2 becomes {[round(float(x), 4) for x in half]} and {[round(float(x), 4) for x in inter]}"
    )
    return depends(
        "a permutation of dimensions", numbers["permuted"] < 1e-12, numbers["as they are"] < 1e-12, numbers, text
    )


@claim(
    "note.permutation-invariant",
    "Attention is permutation-invariant.",
    "注意力具有置换不变性。",
    says=NOTES,
    how="Outputs of 16 tokens against those of the same tokens shuffled: as they are, shuffled back, and causal.",
    expected="fails",
    about=("none",),
    rows=("N18",),
)
def permutation_invariant() -> Finding:
    q, k, v = normal(3, 1, 2, 16, 8)
    order = torch.randperm(16, generator=torch.Generator().manual_seed(3))
    moved = attention(q, k, v, causal=False) - attention(*(x[:, :, order] for x in (q, k, v)), causal=False)
    numbers = {
        "invariant would be": largest(moved),
        "equivariant would be": largest(shuffled(causal=False)),
        "equivariant under a causal mask would be": largest(shuffled(causal=True)),
    }
    text = "outputs move with their tokens: it is equivariant, and under a causal mask not even that"
    return decide(numbers["invariant would be"] < 1e-9, numbers, text)


@claim(
    "note.turns-vanish",
    "Many turns make gradients vanish.",
    "转很多圈会使梯度消失。",
    says=NOTES,
    how=(
        "Gradient norms through the rotation at positions 1, 10,000 and a million, where the fastest pair made "
        "159,154 turns."
    ),
    expected="fails",
    about=("rope",),
    rows=("N26",),
)
def turns_vanish() -> Finding:
    numbers = {f"norm kept at {place:,}": float(gradient_ratio(place).mean()) for place in (1, 10_000, 1_000_000)}
    return decide(
        min(numbers.values()) < 0.5, numbers, "a rotation keeps the norm of every gradient, after any number of turns"
    )


@claim(
    "note.ablation-tables",
    "The notes' tables of ablations and of GLUE show what they are quoted for.",
    "笔记所引用的消融表与 GLUE 表确实支持其结论。",
    says=f"{NOTES}, without code; N32",
    how=(
        "The same in kind: bases 10^2 … 10^5, q/k norms, short-text classification, three seeds each, in the lab. "
        "experiments/ablations.md has small models, in which nearly all of it is a tie."
    ),
    expected="depends on",
    about=("rope", "sinusoidal", "learned"),
    rows=("N32",),
    trained=True,
)
def ablation_tables() -> Finding:
    return needs_training("whorl lab ablate base, then norm, and whorl lab classify, on models trained to the end")
