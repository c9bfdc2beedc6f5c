"""Statements of the notes about attention and about models in use."""

from __future__ import annotations

import torch

from whorl.attend.softmax import attention
from whorl.claims.biases.alibi import alibi_weights
from whorl.claims.biases.masks import shuffled
from whorl.claims.ledger import About, Finding, decide, depends, needs_training
from whorl.claims.probes import doubles, generator, largest, normal, turned
from whorl.claims.rotation.turning import at, gradient_ratio, plain
from whorl.claims.statements.frequencies import NOTES
from whorl.encodings.learned import Learned
from whorl.encodings.sinusoidal import Sinusoidal
from whorl.encodings.t5 import T5

about_rope = About("rope", rows=("N6",))


@About("alibi", rows=("N5",), says=NOTES).fails(
    "note.alibi-unscaled",
    "ALiBi's attention is not scaled by sqrt(d).",
    "ALiBi 的注意力不除以 √d。",
    how="Weights by whorl against softmax(q k - m d), and against both divided by sqrt(d).",
)
def alibi_unscaled() -> Finding:
    own, *by_hand = alibi_weights()
    scaled, unscaled, both = (largest(own - weights) for weights in by_hand)
    numbers = {"scores scaled, bias not": scaled, "nothing scaled": unscaled, "both scaled": both}
    text = f"without the scale a weight differs by {unscaled:.2f}: the scores are scaled, the bias is not"
    return decide(unscaled < 1e-6, numbers, text)


@About("t5", rows=("N4",), says=NOTES).fails(
    "note.t5-stores-length",
    "T5 stores O(L) biases.",
    "T5 要存储 O(L) 个偏置。",
    how="Parameters of T5's bias, and distinct biases of 64, 1,024 and 16,384 keys.",
)
def t5_stores_length() -> Finding:
    t5 = T5(heads=8)
    numbers = {"parameters a head": t5.table.numel() / 8}
    for keys in (64, 1024, 16_384):
        numbers[f"biases, {keys:,} keys"] = len(t5.score_bias(torch.tensor([keys - 1]), torch.arange(keys))[0].unique())
    text = f"{numbers['parameters a head']:.0f} numbers a head, whatever the length"
    return decide(numbers["biases, 16,384 keys"] > 1000, numbers, text)


@About("sinusoidal", "learned", rows=("N1",), says=NOTES).fails(
    "note.bert-sinusoidal",
    "BERT uses sinusoidal positions.",
    "BERT 使用正弦位置编码。",
    how="BERT-base has 109,482,240 parameters; its sizes make so many only with a learned table of 512 x 768.",
)
def bert_sinusoidal() -> Finding:
    width, layers, inner, vocab = 768, 12, 3072, 30_522
    norm, dense = 2 * width, width * width + width
    layer = 4 * dense + norm + (width * inner + inner) + (inner * width + width) + norm
    rest = (vocab + 2) * width + norm + layers * layer + dense
    encodings = Learned(width=width, length=512), Sinusoidal(width=width)
    table, waves = (rest + sum(p.numel() for p in encoding.parameters()) for encoding in encodings)
    numbers = {"published": 109_482_240, "with a learned table": table, "with sinusoids": waves}
    text = f"with sinusoids it would have {waves:,} parameters; it has {table:,}"
    return decide(waves == 109_482_240, numbers, f"{text}, a learned row for each of 512 positions")


@about_rope.fails(
    "note.llama-simplified",
    "LLaMA uses a simplified RoPE.",
    "LLaMA 使用的是简化版 RoPE。",
    says=NOTES,
    how="Its complex products, as released, against RoFormer's rotation of the same vectors.",
)
def llama_simplified() -> Finding:
    x, ids = normal(1, 1, 64, 128), torch.arange(64) * 31
    as_released = turned(x, torch.outer(ids.double(), 1.0 / 10_000.0 ** (torch.arange(0, 128, 2).double() / 128)))
    worst = largest(as_released - plain(128).rotate(x, ids))
    text = f"multiplying by e^(i m w) is the same rotation, to {worst:.0e}"
    return decide(worst > 1e-6, {"largest difference": worst}, text)


@about_rope.depends(
    "note.layouts-equal",
    "The half-split code and the interleaved formula both compute RoPE, so one can stand for the other.",
    "半分写法与交错公式都是 RoPE，可以互换。",
    says=f"{NOTES}, code and formula side by side",
    how="Both on q = (1, 2, 3, 4) at position 2, and on vectors whose dimensions are permuted to fit.",
)
def layouts_equal() -> Finding:
    q = doubles([1, 2, 3, 4])
    half, inter = at(plain(4, "half"), q, 2), at(plain(4), q, 2)
    fit = torch.tensor([0, 2, 1, 3])  # half pairs (0, 2) and (1, 3); interleaved wants them side by side
    apart, permuted = largest(half - inter), largest(half[fit] - at(plain(4), q[fit], 2))
    shown = " and ".join(str([round(float(x), 4) for x in vector]) for vector in (half, inter))
    numbers, text = {"as they are": apart, "permuted": permuted}, f"q = (1, 2, 3, 4) at 2 becomes {shown}"
    return depends("a permutation of dimensions", permuted < 1e-12, apart < 1e-12, numbers, text)


@About("none", rows=("N18",), says=NOTES).fails(
    "note.permutation-invariant",
    "Attention is permutation-invariant.",
    "注意力具有置换不变性。",
    how="Outputs of 16 tokens against those of the same tokens shuffled: as they are, shuffled back, and causal.",
)
def permutation_invariant() -> Finding:
    q, k, v = normal(3, 1, 2, 16, 8)
    order = torch.randperm(16, generator=generator(3))
    moved = largest(attention(q, k, v, causal=False) - attention(*(x[:, :, order] for x in (q, k, v)), causal=False))
    numbers = {
        "invariant would be": moved,
        "equivariant would be": largest(shuffled(causal=False)),
        "equivariant under a causal mask would be": largest(shuffled(causal=True)),
    }
    text = "outputs move with their tokens: it is equivariant, and under a causal mask not even that"
    return decide(moved < 1e-9, numbers, text)


@About("rope", rows=("N26",), says=NOTES).fails(
    "note.turns-vanish",
    "Many turns make gradients vanish.",
    "转很多圈会使梯度消失。",
    how=(
        "Gradient norms through the rotation at positions 1, 10,000 and a million, where the fastest pair made "
        "159,154 turns."
    ),
)
def turns_vanish() -> Finding:
    numbers = {f"norm kept at {place:,}": gradient_ratio(place).mean() for place in (1, 10_000, 1_000_000)}
    text = "a rotation keeps the norm of every gradient, after any number of turns"
    return decide(min(numbers.values()) < 0.5, numbers, text)


@About("rope", "sinusoidal", "learned", rows=("N32",)).depends(
    "note.ablation-tables",
    "The notes' tables of ablations and of GLUE show what they are quoted for.",
    "笔记所引用的消融表与 GLUE 表确实支持其结论。",
    says=f"{NOTES}, without code; N32",
    how=(
        "The same in kind: bases 10^2 … 10^5, q/k norms, short-text classification, three seeds each, in the lab. "
        "experiments/ablations.md has small models, in which nearly all of it is a tie."
    ),
    trained=True,
)
def ablation_tables() -> Finding:
    return needs_training("whorl lab ablate base, then norm, and whorl lab classify, on models trained to the end")
