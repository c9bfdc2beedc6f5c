"""Claims about terms that look at the content: Shaw, Transformer-XL, DeBERTa, CoPE, the forgetting gate."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from whorl import Cope, Deberta, ForgettingGate, Shaw, TransformerXL
from whorl.claims.ledger import About, Both, Finding, close, decide, within
from whorl.claims.probes import doubles, ladder, largest, normal
from whorl.encodings import deberta


@About("shaw").holds(
    "shaw.clip",
    "Shaw's distances are clipped: beyond k all keys are alike, on each side by itself.",
    "Shaw 的距离被截断：超过 k 后所有键一视同仁，左右两侧各自截断。",
    says="Shaw et al. 2018, section 3.2",
    how="The term of one query of 16 dimensions, scaled by 1/4, for 20 keys on either side with k = 8: equal beyond, "
    "different by more than 1e-6 from key to key within, and a quarter of the product with the learned table, to 1e-6; "
    "and what a weight of 1 on each key adds to the output: the row of the values' table, to 1e-6.",
    how_zh="k = 8，一个 16 维查询对两侧各 20 个键的项（乘以 1/4）：超出后相等，之内逐键相差超过 1e-6，且等于与可学习表"
    "的乘积的四分之一（容差 1e-6）；以及对每个键取权重 1 时输出增加的量，须为值的表中相应的行（容差 1e-6）。",
)
def shaw_clip() -> Finding:
    shaw, q, k = Shaw(head_dim=16, clip=8), normal(1, 1, 1, 16), normal(1, 1, 41, 16)
    ids = torch.arange(41)
    zeros, one_hot = torch.zeros(1, 1, 41, 41, dtype=torch.float64), torch.eye(41, dtype=torch.float64)[None, None]
    term = shaw.adjust_scores(zeros[:, :, :1], q, k, ids[20:21], ids, scale=0.25).flatten()
    added = shaw.adjust_output(zeros[..., :16], one_hot, k, torch.full((41,), 20), ids)[0, 0]  # key by key
    before, after = largest(term[:13] - term[0]), largest(term[28:] - term[-1])  # 8 and more from the query
    inside = float(term[12:29].diff().abs().min())
    order = largest(term[12:29] - 0.25 * q.flatten() @ shaw.key_table.double().mT)
    assert shaw.value_table is not None
    values = largest(added - shaw.value_table.double()[(ids - 20).clamp(-8, 8) + 8])
    numbers = {"spread beyond 8, before": before, "spread beyond 8, after": after}
    numbers |= {"least step within": inside, "off the table by": order, "values off theirs by": values}
    but = Both("the clip is elsewhere", "截断在别处")
    return decide(before == after == 0 and inside > 1e-6 > max(order, values), numbers, but)


@About("transformer_xl").holds_within(
    "transformer-xl.term",
    "Transformer-XL's score is (q + u) . k + (q + v) . W r_(i-j), where r is the sinusoidal code of the distance.",
    "Transformer-XL 的分数是 (q + u)·k + (q + v)·W r_(i-j)，其中 r 是距离的正弦编码。",
    says="Dai et al. 2019, Transformer-XL, section 3.3",
    how="adjust_scores against the formula, both divided by sqrt(8), pair by pair, 2 heads of 8, bases 10,000 and 100, "
    "positions 0, 1, 5, 30 and 31, keys before and after the query.",
    how_zh="2 个 8 维的头，底数 10000 与 100，位置 0、1、5、30、31：adjust_scores 与公式（都除以 √8）逐对比较，键在查询"
    "之前与之后都取。",
)
def transformer_xl_term() -> Finding:
    return close((_off_transformer_xl(base) for base in (10_000.0, 100.0)), 1e-9)


def _off_transformer_xl(base: float) -> Tensor:
    """Scores less those of the formula."""
    xl = TransformerXL(heads=2, head_dim=8, base=base).double()
    for seed, parameter in enumerate(xl.parameters(), start=11):  # u and v have one shape, and must not be alike
        parameter.copy_(normal(*parameter.shape, seed=seed))
    q, k, ids = normal(1, 2, 5, 8), normal(1, 2, 5, 8, seed=1), torch.tensor([0, 1, 5, 30, 31])
    scale = 8**-0.5  # not 1: every term must be scaled as q . k is
    own = xl.adjust_scores(scale * q @ k.mT, q, k, ids, ids, scale=scale)
    t = (ids[:, None] - ids).double()[..., None] * ladder(16, base)
    code = torch.cat((t.sin(), t.cos()), -1)
    place = torch.einsum("hqd,hdw,qkw->hqk", (q + xl.position_bias[:, None])[0], xl.projection, code)
    wanted = (q + xl.content_bias[:, None]) @ k.mT + place
    return own - scale * wanted


@About("deberta").holds(
    "deberta.buckets",
    "With 256 buckets up to distance 512, DeBERTa puts distances 128, 150, 200, 256 and 511 into buckets 128, 143, "
    "169, 192 and 255, and 512 into 256.",
    "DeBERTa（256 桶，最大 512）：距离 128、150、200、256、511 落入桶 128、143、169、192、255，512 落入 256。",
    says="He et al. 2020, DeBERTa, the code of version 2 as released in January 2021, and transformers 5.22; the code "
    "of DeBERTaV3, of March 2023, clamps distances to 511 first, which puts 512 into 255",
    how="bucket() of these distances, of 0 and 1, and of their negatives; and of every distance below 512 against "
    "r up to 128 and 128 + ceil(127 ln(r / 128) / ln(511 / 128)) beyond. And which row of its table a query of Deberta "
    "reads for each from -600 to 600: that of its bucket, up to 255, the last there is.",
    how_zh="这些距离、0 与 1 及其相反数的 bucket()；以及 512 以内的每个距离：到 128 为止为 r，之后为 "
    "128 + ⌈127 ln(r / 128) / ln(511 / 128)⌉。再看 -600 到 600 的每个距离，Deberta 的查询读取表中哪一行：须为其桶所对应"
    "的，直到最后的 255。",
)
def deberta_buckets() -> Finding:
    distances = torch.tensor([0, 1, 128, 150, 200, 256, 511, 512])
    known = [0, 1, 128, 143, 169, 192, 255, 256]
    starts = deberta.bucket_starts(256, 512)
    own, mirrored = (deberta.bucket(sign * distances, 256, starts).tolist() for sign in (1, -1))
    numbers = {f"bucket of {d}": b for d, b in zip(distances.tolist(), own, strict=True)}
    every, ratio = torch.arange(512), math.log(511 / 128)
    right = [r if r <= 128 else 128 + math.ceil(127 * math.log(r / 128) / ratio) for r in every.tolist()]
    agree = int((deberta.bucket(every, 256, starts) == torch.tensor(right)).sum())
    numbers |= {"distances that agree with the formula, of 512": agree}
    last = torch.tensor([*right, *[256] * 89])  # of distances 0 … 600
    numbers["rows off their buckets by"] = off = _rows_off(torch.cat((-last.flip(0), last[1:])).clamp(max=255))
    but = Both(f"they are {own}, or others are not the formula's", f"实际为 {own}，或其余的与公式不符")
    return decide(own == known and mirrored == [-b for b in known] and agree == 512 and off == 0, numbers, but)


def _rows_off(buckets: Tensor) -> float:
    """How far the row that a query reads at distances -600 … 600 is from these, in a table of its own row numbers."""
    one = Deberta(heads=1, head_dim=1, position_to_content=None)
    assert one.position_key is not None
    one.relative.copy_(torch.arange(-256.0, 256.0)[:, None])
    one.position_key.weight.fill_(1.0)
    one.position_key.bias.zero_()
    q, scores = torch.ones(1, 1, 1, 1), torch.zeros(1, 1, 1, 1201)
    keys = torch.ones(1, 1, 1201, 1)
    read = one.adjust_scores(scores, q, keys, torch.tensor([600]), 600 - torch.arange(-600, 601), scale=1.0)
    return largest(read[0, 0, 0] - buckets)


@About("cope").holds_within(
    "cope.counts",
    "CoPE counts open gates: with all gates open a key's position is its distance plus one, up to the last there is.",
    "CoPE 数的是打开的门：门全开时，键的位置等于距离加一，直到上限为止。",
    says="Golovneva et al. 2024, CoPE",
    how="A table that holds its own index, 12 keys, 8 positions, scores scaled by 1/2: with all gates open what is "
    "added against the distance plus one, and with those of keys 1, 4, 7 and 10 shut against the number of open gates "
    "from the key to the query.",
    how_zh="表中存放自己的下标，12 个键、8 个位置，分数乘以 1/2：门全开时，增加的量与距离加一比较；第 1、4、7、10 个键"
    "的门关闭时，与从该键到查询之间打开的门数比较。",
)
def cope_counts() -> Finding:
    cope = Cope(head_dim=4, max_position=8).double()
    cope.table.zero_()
    cope.table[:, 0] = torch.arange(8, dtype=torch.float64)
    q = torch.tensor([1.0, 30.0, 0, 0], dtype=torch.float64).expand(1, 1, 12, 4)
    ids, numbers = torch.arange(12), {}
    for name, opened in (("all open", torch.ones(12)), ("four shut", (ids % 3 != 1).double())):
        k = torch.zeros(1, 1, 12, 4, dtype=torch.float64)
        k[..., 1] = 8 * opened - 4  # a gate of sigmoid(60) or sigmoid(-60)
        scores = q @ k.mT / 2
        own = (cope.adjust_scores(scores, q, k, ids, ids, scale=0.5) - scores)[0, 0].tril()
        before = torch.cat((torch.zeros(1), opened.cumsum(0))).double()  # open gates of the keys before each
        wanted = (before[1:, None] - before[:-1]).clamp(max=7).tril()
        numbers |= {f"largest difference, {name}": largest(own - wanted), f"farthest position, {name}": own.max()}
    worst = max(numbers["largest difference, all open"], numbers["largest difference, four shut"])
    return within(float(worst), 1e-9, numbers)


@About("forgetting_gate").holds_within(
    "forgetting.alibi",
    "A forgetting gate that is the same for every token is ALiBi with slope -ln f.",
    "对每个词都相同的遗忘门就是斜率为 -ln f 的 ALiBi。",
    says="Lin et al. 2025, Forgetting Transformer",
    how="Weights 0 and biases -1, 0.5 and 5 of three heads: what adjust_scores takes off scores that are scaled by 1/2 "
    "against -ln(sigmoid(bias)) times the distance, not scaled, 60 tokens.",
    how_zh="权重为 0，三个头的偏置为 -1、0.5、5，60 个词：adjust_scores 从乘以 1/2 的分数中减去的量，与 -ln(sigmoid(偏"
    "置)) 乘距离（不缩放）比较。",
)
def forgetting_alibi() -> Finding:
    gate, biases = ForgettingGate(heads=3, width=8).double(), (-1.0, 0.5, 5.0)
    gate.gate.weight.zero_()
    gate.gate.bias.copy_(doubles(biases))
    kept, ids = gate.remember(normal(1, 60, 8)), torch.arange(60)
    x = normal(1, 3, 60, 4)
    scores = x @ x.mT / 2
    own = (gate.adjust_scores(scores, x, x, ids, ids, kept, scale=0.5) - scores)[0].tril()
    slopes = doubles([-math.log(1 / (1 + math.exp(-each))) for each in biases])
    worst = largest(own + slopes[:, None, None] * (ids[:, None] - ids).double().tril())
    numbers = {f"slope of bias {each:g}": slope for each, slope in zip(biases, slopes, strict=True)}
    return within(worst, 1e-9, {"largest difference": worst} | numbers)
