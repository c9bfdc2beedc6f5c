"""Claims about biases and terms on the scores: ALiBi, T5, KERPLE, FIRE, Sandwich, Shaw and others, masks, and none."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from whorl.attend.softmax import attention
from whorl.claims import evidence
from whorl.claims.ledger import Finding, Verdict, claim, decide, depends, needs_training, shared, within
from whorl.claims.probes import largest, normal
from whorl.encodings import deberta
from whorl.encodings.alibi import Alibi
from whorl.encodings.bias import Bias
from whorl.encodings.cope import Cope
from whorl.encodings.fire import Fire, progress
from whorl.encodings.forgetting_gate import ForgettingGate
from whorl.encodings.kerple import Kerple
from whorl.encodings.masks import Sinks, Window
from whorl.encodings.none import NoPE
from whorl.encodings.sandwich import Sandwich
from whorl.encodings.shaw import Shaw
from whorl.encodings.t5 import T5
from whorl.encodings.transformer_xl import TransformerXL

PRESS = "Press et al. 2021, ALiBi"
RAFFEL = "Raffel et al. 2019, T5"


def bias(encoding: Bias, distances: Tensor, head: int = 0) -> Tensor:
    """The bias of one head for keys these distances before a query, float64."""
    last = int(distances.max()) + 1000
    return encoding.score_bias(torch.tensor([last]), last - distances)[head, 0].double()


@claim(
    "alibi.slopes",
    "ALiBi's slopes are 2^-1 … 2^-8 for 8 heads, 2^-0.5 … 2^-8 for 16, and for 12 those of 8 and four between.",
    "ALiBi 的斜率：8 头为 2^-1 … 2^-8，16 头为 2^-0.5 … 2^-8，12 头为 8 头的斜率再加四个中间值。",
    says=f"{PRESS}, the authors' code; N5",
    how="Base-2 logarithms of Alibi(heads).slopes() against known ones for 1, 3, 6, 8, 12 and 16 heads.",
    expected="holds within",
    about=("alibi",),
    rows=("N5",),
)
def slopes() -> Finding:
    known = {
        1: [-8],
        3: [-4, -8, -2],
        6: [-2, -4, -6, -8, -1, -3],
        8: list(range(-1, -9, -1)),
        12: [*range(-1, -9, -1), -0.5, -1.5, -2.5, -3.5],
        16: [-0.5 * h for h in range(1, 17)],
    }
    numbers = {
        f"{heads} heads": largest(Alibi(heads=heads).slopes().double().log2() - torch.tensor(own, dtype=torch.float64))
        for heads, own in known.items()
    }
    return within(max(numbers.values()), 1e-6, numbers)


@claim(
    "alibi.slope-rules",
    "The rule of the paper's sentence, 2^(-8h/n) for any n, gives the slopes of the authors' code.",
    "论文正文的规则（任意 n 都用 2^(-8h/n)）与作者代码的斜率一致。",
    says="attention-gym and mlx, by using it",
    how='slopes="geometric" against slopes="press" for 8 and for 12 heads.',
    expected="depends on",
    about=("alibi",),
    rows=("N5",),
)
def slope_rules() -> Finding:
    apart = {
        heads: largest(Alibi(heads=heads, slopes="geometric").slopes() - Alibi(heads=heads).slopes())
        for heads in (8, 12)
    }
    numbers = {f"largest difference, {heads} heads": value for heads, value in apart.items()}
    text = f"with 12 heads a slope differs by {apart[12]:.3f}"
    return depends("the number of heads", apart[8] == 0, apart[12] == 0, numbers, text)


@claim(
    "alibi.linear",
    "ALiBi takes slope times distance off the score of each key before the query.",
    "ALiBi 从每个先前的键的分数中减去“斜率×距离”。",
    says=f"{PRESS}; N5",
    how="Biases of 8 heads at distances 0, 1, 2, 100 and 5,000 against -m d.",
    expected="holds",
    about=("alibi",),
    rows=("N5",),
)
def alibi_linear() -> Finding:
    distances, alibi = torch.tensor([0, 1, 2, 100, 5000]), Alibi(heads=8)
    good = sum(torch.equal(bias(alibi, distances, h), -(2.0 ** -(h + 1)) * distances) for h in range(8))
    return decide(good == 8, {"heads that agree, of 8": float(good)}, f"head 0 has {bias(alibi, distances).tolist()}")


@claim(
    "alibi.bias-unscaled",
    "ALiBi adds its bias to scores that are divided by sqrt(d); the bias itself is not.",
    "ALiBi 的偏置加在已除以 √d 的分数上；偏置本身不除以 √d。",
    says=f"{PRESS}, footnote 10; N5",
    how="Attention weights of 12 tokens against softmax(q k / sqrt(d) - m d).",
    expected="holds within",
    about=("alibi",),
    rows=("N5",),
)
def bias_unscaled() -> Finding:
    own, scaled, _, _ = alibi_weights()
    worst = largest(own - scaled)
    return within(worst, 1e-6, {"largest difference": worst})


@shared
def alibi_weights() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """ALiBi's weights by whorl, then by hand: scores divided by sqrt(d), nothing divided, both divided."""
    q, k, v = normal(3, 1, 8, 12, 64)
    _, weights = attention(q, k, v, encoding=Alibi(heads=8), return_weights=True)
    ids = torch.arange(12)
    line = -(2.0 ** -torch.arange(1, 9, dtype=torch.float64))[:, None, None] * (ids[:, None] - ids)
    hidden = (ids[:, None] < ids).expand(8, 12, 12)

    def by_hand(scores: Tensor) -> Tensor:
        return scores[0].masked_fill(hidden, -torch.inf).softmax(-1)

    products = q @ k.mT
    return weights[0], by_hand(products / 8 + line), by_hand(products + line), by_hand((products + line) / 8)


@claim(
    "alibi.receptive-field",
    "An ALiBi head sees ln(100) / m positions: 99 % of the weight of like keys lies there, however long the text.",
    "ALiBi 每个头的视野约为 ln(100)/m 个位置：内容相同时 99% 的权重在其中，与文本长度无关。",
    says="Chi et al. 2022, on receptive fields",
    how="Weights of keys that are all alike at 4,096 and 16,384 keys: the keys that hold 99 % of them, for 8 heads.",
    expected="holds",
    about=("alibi",),
    rows=("N5",),
)
def receptive_field() -> Finding:
    alibi, numbers, good = Alibi(heads=8), {}, True
    for keys in (4096, 16_384):
        weights = alibi.score_bias(torch.tensor([keys - 1]), torch.arange(keys))[:, 0].double().softmax(-1).flip(-1)
        reach = ((weights.cumsum(-1) < 0.99).sum(-1) + 1).tolist()
        # the geometric series: 1 - e^(-m n) = 0.99
        wanted = [math.ceil(math.log(100) * 2 ** (h + 1)) for h in range(8)]
        good &= reach == wanted
        numbers |= {f"head {h}, {keys:,} keys": float(reach[h]) for h in (0, 7)}
    return decide(good, numbers, "a head sees another number of keys")


@claim(
    "alibi.key-form",
    "Slope times key position gives the same weights as slope times distance: a softmax drops what a row shares.",
    "“斜率×键位置”与“斜率×距离”给出相同权重：softmax 会消去一行共有的常数。",
    says=f"{PRESS}, the authors' code",
    how="Softmax of key_bias against that of score_bias, 8 heads, 600 keys.",
    expected="holds within",
    about=("alibi",),
    rows=("N5",),
)
def key_form() -> Finding:
    alibi, ids = Alibi(heads=8), torch.arange(600)
    scores = normal(8, 600)
    by_key = (scores + alibi.key_bias(ids).double()).softmax(-1)
    by_distance = (scores + alibi.score_bias(ids[-1:], ids)[:, 0].double()).softmax(-1)
    worst = largest(by_key - by_distance)
    return within(worst, 1e-6, {"largest difference": worst})


@claim(
    "alibi.symmetric",
    "The symmetric form for encoders, -m |i - j|, tells left from right.",
    "编码器用的对称形式 -m |i - j| 能区分左右。",
    says="ofirpress#5 asks; N5",
    how="Biases of keys before and after the query: symmetric, and split heads.",
    expected="fails",
    about=("alibi",),
    rows=("N5",),
)
def symmetric() -> Finding:
    ids = torch.arange(9)
    both, split = (Alibi(heads=8, form=form).score_bias(ids[4:5], ids)[:, 0] for form in ("symmetric", "split"))
    numbers = {
        "symmetric: left against right": largest(both[:, :4].flip(-1) - both[:, 5:]),
        "split: heads that see only one side": float(
            (split[:, :4].isinf().all(-1) ^ split[:, 5:].isinf().all(-1)).sum()
        ),
    }
    text = "a key 3 before the query and one 3 after it have the same bias; split heads see one side each"
    return decide(numbers["symmetric: left against right"] > 0, numbers, text)


@claim(
    "alibi.slopes-robust",
    "ALiBi's slopes make no difference: random ones in (0, 1) give the loss of the usual ones.",
    "ALiBi 的斜率怎么取都一样：在 (0, 1) 内随机取，损失与默认斜率相同。",
    says="the notes, who call slopes robust; N32",
    how="Loss of three draws of slopes less that of the usual ones, seed by seed, in an ablation of the lab.",
    expected="fails",
    about=("alibi",),
    rows=("N32",),
    trained=True,
)
def slopes_robust() -> Finding:
    found = evidence.differences("slopes")
    if not found:
        return needs_training("whorl lab ablate slopes --seeds 3")
    numbers = {f"{one.setting}, bits per byte": one.mean for one in found}
    apart = [one for one in found if one.low > 0 or one.high < 0]
    text = "; ".join(
        f"{one.setting} differs by {one.mean:+.2f} bits per byte, {one.low:+.2f} to {one.high:+.2f}" for one in apart
    )
    return Finding(
        verdict=Verdict("fails" if apart else "holds"),
        numbers=numbers,
        counterexample=f"{text}, in small models that are little trained" if apart else "",
        source="experiments/ablations.json",
    )


# -- T5 ---------------------------------------------------------------------------------------------------------------


def buckets(t5: T5, distances: Tensor) -> Tensor:
    """The bucket of keys these distances before a query; negative ones come after it."""
    return t5.bucket(torch.tensor([5000]), 5000 - distances)


@claim(
    "t5.edges",
    "T5's logarithmic buckets begin at 16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99 and 113.",
    "T5 的对数桶起点为 16、19、21、24、27、31、35、40、46、52、59、67、77、87、99、113。",
    says=f"{RAFFEL}; known values",
    how="Buckets of distances 0 … 1,000 for 32 buckets up to 128, causal; and of both sides for encoders.",
    expected="holds",
    about=("t5",),
    rows=("N4",),
)
def t5_edges() -> Finding:
    own = buckets(T5(heads=1), torch.arange(1001))
    starts = (own.diff() != 0).nonzero().flatten() + 1
    known = [*range(1, 17), 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113]
    sides = T5(heads=1, bidirectional=True)
    past = (buckets(sides, torch.arange(200)).diff() != 0).nonzero().flatten() + 1
    both = past.tolist() == [*range(1, 9), 12, 16, 23, 32, 46, 64, 91]
    after = buckets(sides, -torch.arange(1, 200)) - buckets(sides, torch.arange(1, 200))
    good = (
        starts.tolist() == known and both and bool((after == 16).all()) and int(buckets(sides, torch.tensor([0]))) == 0
    )
    numbers = {
        "buckets": float(own.max() + 1),
        "last begins at": float(starts[-1]),
        "last of a side begins at": float(past[-1]),
    }
    return decide(good, numbers, f"they begin at {starts.tolist()}")


@claim(
    "t5.saturation",
    "T5 tells distances apart up to its max_distance of 128.",
    "T5 能区分直到 max_distance = 128 的距离。",
    says="the name of the setting",
    how="The distance from which all keys share a bucket.",
    expected="fails",
    about=("t5",),
    rows=("N4",),
)
def t5_saturation() -> Finding:
    own = buckets(T5(heads=1), torch.arange(10_000))
    first = int((own == own[-1]).nonzero()[0])
    return decide(first >= 128, {"all alike from": float(first)}, f"from {first} on all keys share the last bucket")


@claim(
    "t5.unscaled",
    "T5 does not divide scores by sqrt(d).",
    "T5 不把分数除以 √d。",
    says=f"{RAFFEL}",
    how="Attention weights of 9 tokens against softmax(q k + bias).",
    expected="holds within",
    about=("t5",),
    rows=("N4",),
)
def t5_unscaled() -> Finding:
    t5 = T5(heads=2).double()
    q, k, v = normal(3, 1, 2, 9, 16)
    _, weights = attention(q, k, v, encoding=t5, return_weights=True)
    ids = torch.arange(9)
    table = t5.table[(ids[:, None] - ids).clamp(min=0)].permute(2, 0, 1)  # nine distances: a bucket each
    wanted = (q @ k.mT + table).masked_fill(ids[:, None] < ids, -torch.inf).softmax(-1)
    worst = largest(weights - wanted)
    return within(worst, 1e-9, {"largest difference": worst})


@claim(
    "t5.untrained-buckets",
    "Past the trained length T5 reads only numbers that were trained.",
    "超过训练长度后，T5 读取的都是训练过的数。",
    says='behind "T5 extrapolates"',
    how="Buckets that 64 positions reach against those that 256 reach, with max_distance 32 and 128.",
    expected="depends on",
    about=("t5",),
    rows=("N4",),
)
def untrained_buckets() -> Finding:
    fresh = {}
    for reach in (32, 128):
        t5 = T5(heads=1, max_distance=reach)
        fresh[reach] = len(set(buckets(t5, torch.arange(256)).tolist()) - set(buckets(t5, torch.arange(64)).tolist()))
    numbers = {f"buckets never trained, max_distance {reach}": float(value) for reach, value in fresh.items()}
    text = (
        f"trained on 64 positions with max_distance 128, {fresh[128]} of 32 buckets are read at 256 that were never "
        "trained"
    )
    return depends("max_distance", fresh[32] == 0, fresh[128] == 0, numbers, text)


# -- learned kernels --------------------------------------------------------------------------------------------------


@claim(
    "kerple.alibi",
    "KERPLE's power kernel with p = 1 is ALiBi.",
    "p = 1 的 KERPLE 幂核就是 ALiBi。",
    says="Chi et al. 2022, KERPLE; N8",
    how="Biases with p = 1 and a = ALiBi's slopes at distances 0 … 1,000.",
    expected="holds",
    about=("kerple",),
    rows=("N8",),
)
def kerple_alibi() -> Finding:
    kerple, alibi, distances = Kerple(heads=8, variant="power"), Alibi(heads=8), torch.arange(1001)
    kerple.p.fill_(1.0)
    kerple.a.copy_(alibi.slopes().clamp(min=0.01))
    heads = range(6)  # slopes below 0.01 are held at 0.01
    good = sum(torch.equal(bias(kerple, distances, h), bias(alibi, distances, h)) for h in heads)
    return decide(good == 6, {"heads that agree, of 6": float(good)}, "a bias differs")


@claim(
    "kerple.held",
    "Whatever is learned, KERPLE falls with the distance: p and a count as 0.01 at least.",
    "无论学到什么，KERPLE 都随距离下降：p 与 a 至少按 0.01 计。",
    says="Chi et al. 2022, the authors' code; N8",
    how="Both kernels with p and a from -5 to 5: the largest step of the bias up to distance 200.",
    expected="holds",
    about=("kerple",),
    rows=("N8", "N27"),
)
def kerple_held() -> Finding:
    worst = -math.inf
    for variant in ("log", "power"):
        kerple = Kerple(heads=9, variant=variant)
        kerple.p.copy_(torch.linspace(-5, 5, 9))
        kerple.a.copy_(torch.linspace(5, -5, 9))
        for head in range(9):
            worst = max(worst, float(bias(kerple, torch.arange(201), head).diff().max()))
    return decide(worst < 0, {"largest step": worst}, f"a farther key gains {worst:.3g}")


@claim(
    "fire.progress",
    "FIRE's argument is ln(c d + 1) / ln(c max(i, L) + 1): 0.0241, 0.60628, 0.02065, 0.85194, 1.0 at five pairs.",
    "FIRE 的自变量为 ln(c d + 1)/ln(c max(i, L) + 1)：五组 (i, j) 处为 0.0241、0.60628、0.02065、0.85194、1.0。",
    says="Li et al. 2023; known values",
    how="(100, 99), (100, 0), (1000, 999), (1000, 500), (1000, 0) with c = 0.1 and L = 512.",
    expected="holds within",
    about=("fire",),
    rows=("N3",),
)
def fire_progress() -> Finding:
    i, j = torch.tensor([[100, 99], [100, 0], [1000, 999], [1000, 500], [1000, 0]]).mT
    own = progress(i, j, torch.tensor(0.1, dtype=torch.float64), torch.tensor(512.0, dtype=torch.float64))
    known = torch.tensor([0.0241, 0.60628, 0.02065, 0.85194, 1.0], dtype=torch.float64)
    worst = largest(own - known)
    return within(
        worst, 5.1e-5, {f"({a}, {b})": float(x) for a, b, x in zip(i, j, own, strict=True)} | {"off by": worst}
    )


@claim(
    "fire.relative",
    "FIRE's bias depends on the distance only.",
    "FIRE 的偏置只取决于距离。",
    says="its family name, relative encodings",
    how="The bias at distance 5 for queries up to L = 64, and beyond it.",
    expected="depends on",
    about=("fire",),
    rows=("N3",),
)
def fire_relative() -> Finding:
    fire = Fire(heads=4, length=64)
    for name, parameter in fire.named_parameters():
        if name in ("w1", "b1", "w2"):
            parameter += normal(*parameter.shape, seed=9).float()

    def moves(places: tuple[int, ...]) -> float:
        found = torch.stack([fire.score_bias(torch.tensor([i]), torch.tensor([i - 5])).flatten() for i in places])
        return largest(found - found[0])

    numbers = {
        "change for queries at 5 … 64": moves((5, 20, 64)),
        "change for queries at 64 … 4,096": moves((64, 500, 4096)),
    }
    text = "past L the denominator knows where the query is, so equal distances have other biases"
    within_l, beyond = numbers.values()
    return depends("the place of the query", within_l < 1e-6, beyond < 1e-3, numbers, text)


@claim(
    "sandwich.products",
    (
        "Sandwich is H / (8h) times the product of sinusoidal codes: 64, 62.0937, 45.7205, 30.5201, 14.0432 at 0, 1, "
        "8, 64, 512."
    ),
    "Sandwich 等于 H/(8h) 乘以正弦编码的内积：距离 0、1、8、64、512 处为 64、62.0937、45.7205、30.5201、14.0432。",
    says="Chi et al. 2022, Sandwich; known values",
    how="Biases of the first and the last of 8 heads against four decimals.",
    expected="holds within",
    about=("sandwich",),
    rows=("N25",),
)
def sandwich_products() -> Finding:
    sandwich, distances = Sandwich(heads=8), torch.tensor([0, 1, 8, 64, 512])
    known = torch.tensor([64, 62.0937, 45.7205, 30.5201, 14.0432], dtype=torch.float64)
    numbers = {
        "first head": largest(bias(sandwich, distances) - known),
        "last head": largest(bias(sandwich, distances, 7) - known / 8),
    }
    return within(max(numbers.values()), 6e-5, numbers)


@claim(
    "sandwich.falls",
    "Sandwich falls with every step of distance.",
    "Sandwich 的偏置随距离逐步下降。",
    says='"decaying bias"',
    how="Steps of the bias from distance 0 to 256.",
    expected="fails",
    about=("sandwich",),
    rows=("N27",),
)
def sandwich_falls() -> Finding:
    steps = bias(Sandwich(heads=8), torch.arange(257)).diff()
    rises = (steps > 0).nonzero().flatten()
    numbers = {"steps that rise, of 256": float(len(rises)), "first": float(rises[0])}
    return decide(
        not len(rises),
        numbers,
        f"{len(rises)} of 256 steps rise, the first from {int(rises[0])} to {int(rises[0]) + 1}",
    )


# -- terms that look at the content -----------------------------------------------------------------------------------


@claim(
    "shaw.clip",
    "Shaw's distances are clipped: beyond k all keys are alike, on each side by itself.",
    "Shaw 的距离被截断：超过 k 后所有键一视同仁，左右两侧各自截断。",
    says="Shaw et al. 2018; N3",
    how="The term of one query for 40 keys with k = 8, at both ends.",
    expected="holds",
    about=("shaw",),
    rows=("N3",),
)
def shaw_clip() -> Finding:
    shaw, q, k = Shaw(head_dim=16, clip=8), normal(1, 1, 1, 16), normal(1, 1, 41, 16)
    ids = torch.arange(41)
    term = shaw.adjust_scores(torch.zeros(1, 1, 1, 41, dtype=torch.float64), q, k, ids[20:21], ids, scale=1.0).flatten()
    alike = [largest(term[:13] - term[0]), largest(term[28:] - term[-1])]  # 8 and more before the query, and after it
    inside = term[12:29].diff().abs().min()
    numbers = {
        "spread beyond 8, before": alike[0],
        "spread beyond 8, after": alike[1],
        "least step within": float(inside),
    }
    wanted = q.flatten() @ shaw.key_table.double().mT
    order = largest(term[12:29] - wanted)
    return decide(
        max(alike) == 0 and float(inside) > 1e-6 and order < 1e-6,
        numbers | {"off the table by": order},
        "the clip is elsewhere",
    )


@claim(
    "transformer-xl.term",
    "Transformer-XL's position term is (q + v) . W r_(i-j), the sinusoidal code of the distance.",
    "Transformer-XL 的位置项是 (q + v)·W r_(i-j)，其中 r 是距离的正弦编码。",
    says="Dai et al. 2019",
    how="adjust_scores against the formula, pair by pair, for keys before and after the query.",
    expected="holds within",
    about=("transformer_xl",),
    rows=("N3",),
)
def transformer_xl_term() -> Finding:
    xl = TransformerXL(heads=2, head_dim=8).double()
    for parameter in xl.parameters():
        parameter.copy_(normal(*parameter.shape, seed=11))
    q, k, ids = normal(1, 2, 5, 8), normal(1, 2, 5, 8, seed=1), torch.tensor([0, 1, 5, 30, 31])
    own = xl.adjust_scores(q @ k.mT, q, k, ids, ids, scale=1.0)
    t = (ids[:, None] - ids).double()[..., None] * 10_000.0 ** (-torch.arange(0, 16, 2, dtype=torch.float64) / 16)
    code = torch.cat((t.sin(), t.cos()), -1)
    place = torch.einsum("hqd,hdw,qkw->hqk", (q + xl.position_bias[:, None])[0], xl.projection, code)
    wanted = (q + xl.content_bias[:, None]) @ k.mT + place
    worst = largest(own - wanted)
    return within(worst, 1e-9, {"largest difference": worst})


@claim(
    "deberta.buckets",
    "DeBERTa's buckets of 256 up to 512: 128, 150, 200, 256, 511, 512 fall into 128, 143, 169, 192, 255, 256.",
    "DeBERTa（256 桶，最大 512）：距离 128、150、200、256、511、512 落入桶 128、143、169、192、255、256。",
    says="He et al. 2021, the released code; known values",
    how="bucket() of these distances and of their negatives.",
    expected="holds",
    about=("deberta",),
    rows=("N3",),
)
def deberta_buckets() -> Finding:
    distances = torch.tensor([0, 1, 128, 150, 200, 256, 511, 512])
    known = [0, 1, 128, 143, 169, 192, 255, 256]
    starts = deberta.bucket_starts(256, 512)
    own, mirrored = (deberta.bucket(sign * distances, 256, starts).tolist() for sign in (1, -1))
    numbers = {f"bucket of {d}": float(b) for d, b in zip(distances.tolist(), own, strict=True)}
    return decide(own == known and mirrored == [-b for b in known], numbers, f"they are {own}")


@claim(
    "cope.counts",
    "CoPE counts open gates: with all gates open a key's position is its distance plus one, up to the last there is.",
    "CoPE 数的是打开的门：门全开时，键的位置等于距离加一，直到上限为止。",
    says="Golovneva et al. 2024",
    how="A table that holds its own index, q that opens every gate, 12 keys, 8 positions.",
    expected="holds within",
    about=("cope",),
    rows=("N3",),
)
def cope_counts() -> Finding:
    cope = Cope(head_dim=4, max_position=8).double()
    cope.table.zero_()
    cope.table[:, 0] = torch.arange(8, dtype=torch.float64)
    q = torch.tensor([1.0, 30.0, 0, 0], dtype=torch.float64).expand(1, 1, 12, 4)
    k = torch.tensor([0, 2.0, 0, 0], dtype=torch.float64).expand(1, 1, 12, 4)
    ids, scores = torch.arange(12), q @ k.mT
    own = (cope.adjust_scores(scores, q, k, ids, ids, scale=1.0) - scores)[0, 0].tril()
    wanted = (ids[:, None] - ids + 1).clamp(max=7).double().tril()
    worst = largest(own - wanted)
    return within(worst, 1e-9, {"largest difference": worst, "farthest position": float(own.max())})


@claim(
    "forgetting.alibi",
    "A forgetting gate that is the same for every token is ALiBi with slope -ln f.",
    "对每个词都相同的遗忘门就是斜率为 -ln f 的 ALiBi。",
    says="Lin et al. 2025",
    how="Weights 0 and bias 2: adjust_scores against -ln(sigmoid(2)) times the distance, 60 tokens.",
    expected="holds within",
    about=("forgetting_gate",),
    rows=("N3",),
)
def forgetting_alibi() -> Finding:
    gate = ForgettingGate(heads=1, width=8, bias=2.0).double()
    gate.gate.weight.zero_()
    kept, ids = gate.remember(normal(1, 60, 8)), torch.arange(60)
    zeros, x = torch.zeros(1, 1, 60, 60, dtype=torch.float64), normal(1, 1, 60, 4)
    own = gate.adjust_scores(zeros, x, x, ids, ids, kept, scale=1.0)[0, 0].tril()
    slope = -math.log(1 / (1 + math.exp(-2)))
    worst = largest(own + slope * (ids[:, None] - ids).double().tril())
    return within(worst, 1e-9, {"largest difference": worst, "slope": slope})


# -- masks and none ---------------------------------------------------------------------------------------------------


@claim(
    "window.reach",
    "A window of w shows a query w keys, its own among them, and sinks show it the first ones as well.",
    "窗口 w 让查询看到 w 个键（含自身），sinks 还让它看到最前面的几个。",
    says="Beltagy et al. 2020; Xiao et al. 2023",
    how="Keys that the last of 100 queries sees: window 16, symmetric window 16, sinks 4 and window 16.",
    expected="holds",
    about=("window", "sinks"),
    rows=("N18",),
)
def window_reach() -> Finding:
    ids = torch.arange(100)
    numbers = {
        "window 16": float(Window(size=16).mask(ids, ids)[-1].sum()),
        "symmetric 16, in the middle": float(Window(size=16, symmetric=True).mask(ids, ids)[50].sum()),
        "sinks 4, window 16": float(Sinks(size=16, count=4).mask(ids, ids)[-1].sum()),
        "first key, sinks": float(Sinks(size=16, count=4).mask(ids, ids)[-1, 0]),
    }
    return decide(list(numbers.values()) == [16, 31, 20, 1], numbers, f"it sees {list(numbers.values())}")


@claim(
    "none.equivariant",
    (
        "Without a mask and without an encoding attention is permutation-equivariant: shuffled tokens give shuffled "
        "outputs."
    ),
    "没有掩码也没有位置编码时，注意力是置换等变的：打乱输入，输出同样打乱。",
    says="N18",
    how="16 tokens and a random order, float64.",
    expected="holds within",
    about=("none",),
    rows=("N12", "N18"),
)
def equivariant() -> Finding:
    worst = largest(shuffled(causal=False))
    return within(worst, 1e-12, {"largest difference": worst})


def shuffled(causal: bool) -> Tensor:
    """Outputs of shuffled tokens less the shuffled outputs."""
    q, k, v = normal(3, 1, 2, 16, 8)
    order = torch.randperm(16, generator=torch.Generator().manual_seed(3))
    here = attention(q, k, v, encoding=NoPE(), causal=causal)[:, :, order]
    return attention(*(x[:, :, order] for x in (q, k, v)), encoding=NoPE(), causal=causal) - here


@claim(
    "none.causal-order",
    "A causal mask alone tells the order: with it, shuffled tokens do not give shuffled outputs.",
    "仅有因果掩码也能体现顺序：此时打乱输入，输出并非同样打乱。",
    says="Haviv et al. 2022",
    how="The same with a causal mask.",
    expected="holds",
    about=("none",),
    rows=("N12", "N18"),
)
def causal_order() -> Finding:
    apart, without = largest(shuffled(causal=True)), largest(shuffled(causal=False))
    numbers = {"largest difference, causal": apart, "without a mask": without}
    return decide(apart > 0.1 and without < 1e-12, numbers, "order leaves no trace")


@claim(
    "none.uniform",
    "Without an encoding, tokens that are alike get exactly equal weights, and queries and keys no gradient.",
    "没有位置编码时，相同的词得到完全相等的权重，查询和键没有梯度。",
    says="DroPE, proposition 3.2",
    how="12 equal tokens under a causal mask: each row against 1/n, and gradients of a random loss.",
    expected="holds within",
    about=("none",),
    rows=("N12", "N18"),
)
def uniform() -> Finding:
    one = normal(3, 1, 1, 1, 8).expand(3, 1, 1, 12, 8)
    with torch.enable_grad():
        q, k = (x.clone().requires_grad_() for x in one[:2])
        out, weights = attention(q, k, one[2], encoding=NoPE(), return_weights=True)
        grads = torch.autograd.grad((out * normal(*out.shape, seed=5)).sum(), (q, k))
    wanted = (1 / torch.arange(1, 13, dtype=torch.float64))[:, None].expand(12, 12).tril()
    numbers = {
        "rows against 1/n": largest(weights.detach()[0, 0] - wanted),
        "largest gradient": max(map(largest, grads)),
    }
    return within(max(numbers.values()), 1e-12, numbers)
