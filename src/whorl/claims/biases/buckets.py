"""Claims about T5: its buckets, and which of them are trained."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from whorl import T5, attention
from whorl.claims.ledger import About, Both, Finding, close, decide
from whorl.claims.probes import normal

RAFFEL = "Raffel et al. 2019, T5"
about_t5 = About("t5")


def buckets(t5: T5, distances: Tensor) -> Tensor:
    """The bucket of keys these distances before a query; negative ones come after it."""
    return t5.bucket(torch.tensor([5000]), 5000 - distances)


@about_t5.holds(
    "t5.edges",
    "Of T5's 32 causal buckets with max_distance 128 the logarithmic ones begin at 16, 19, 21, 24, 27, 31, 35, 40, 46, "
    "52, 59, 67, 77, 87, 99 and 113, and of an encoder's, 16 for each side, at 8, 12, 16, 23, 32, 46, 64 and 91.",
    "T5 的 32 个因果桶（max_distance = 128）中，对数桶的起点为 16、19、21、24、27、31、35、40、46、52、59、67、77、87、"
    "99、113；编码器每侧 16 个桶中为 8、12、16、23、32、46、64、91。",
    says=f"{RAFFEL}, the released code",
    how="Buckets of distances 0 … 1,000 for 32 buckets up to 128, causal: each is the one before it or the next, "
    "from 0 to 31. For encoders distances up to 199, from 0 to 15 before the query, and 16 more after it.",
    how_zh="32 个桶、最大 128、因果：距离 0 … 1000 的桶逐一相同或加一，从 0 到 31。编码器：距离到 199，查询之前从 0 "
    "到 15，之后再加 16。",
)
def t5_edges() -> Finding:
    own, sides = buckets(T5(heads=1), torch.arange(1001)), T5(heads=1, bidirectional=True)
    before, after = buckets(sides, torch.arange(200)), buckets(sides, -torch.arange(200))
    starts, past = ((found.diff() != 0).nonzero().flatten() + 1 for found in (own, before))
    known = [*range(1, 17), 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113]
    good = starts.tolist() == known and past.tolist() == [*range(1, 9), 12, 16, 23, 32, 46, 64, 91]
    good = good and all(int(found[0]) == 0 and set(found.diff().tolist()) == {0, 1} for found in (own, before))
    good = good and bool((after - before == 16)[1:].all())
    numbers = {"buckets": own.max() + 1, "last begins at": starts[-1], "last of a side begins at": past[-1]}
    found = f"{starts.tolist()}; {past.tolist()}"
    but = Both(f"they begin at {found}, or are numbered otherwise", f"实际起点为 {found}，或编号不同")
    return decide(good, numbers, but)


@about_t5.fails(
    "t5.saturation",
    "T5's last bucket does not begin before max_distance, 128.",
    "T5 的最后一个桶不会在 max_distance = 128 之前开始。",
    says=f"{RAFFEL}, section 2.1, read so: ranges that grow up to an offset of 128, beyond which all offsets are alike",
    how="The distance from which all keys up to 9,999 share a bucket, 32 buckets, causal: it would have to be 128 or "
    "more. By the formula it is 16 x 8^(15/16), rounded up.",
    how_zh="32 个桶、因果：从哪个距离开始，直到 9999 的所有键落入同一个桶；须不小于 128 才算。按公式为 16 × 8^(15/16) "
    "向上取整。",
)
def t5_saturation() -> Finding:
    own = buckets(T5(heads=1), torch.arange(10_000))
    first = int((own != own[-1]).nonzero()[-1]) + 1
    but = Both(f"from {first} on all keys share the last causal bucket", f"从 {first} 开始所有键都在最后一个因果桶中")
    right = math.ceil(16 * 8 ** (15 / 16))  # 16 buckets from 16 to 128 by equal ratios: where the last of them begins
    return decide(first >= 128, {"causal: all alike from": first}, but, instead=first == right and int(own[-1]) == 31)


@about_t5.holds_within(
    "t5.unscaled",
    "T5 does not divide scores by sqrt(d).",
    "T5 不把分数除以 √d。",
    says=f"{RAFFEL}, the released code",
    how="Attention weights of 9 tokens, 2 heads of 16, against softmax(q k + bias).",
    how_zh="9 个词、2 个 16 维的头的注意力权重与 softmax(q k + 偏置) 比较。",
)
def t5_unscaled() -> Finding:
    t5 = T5(heads=2).double()
    q, k, v = normal(3, 1, 2, 9, 16)
    _, weights = attention(q, k, v, encoding=t5, return_weights=True)
    ids = torch.arange(9)
    table = t5.table[(ids[:, None] - ids).clamp(min=0)].permute(2, 0, 1)  # nine distances: a bucket each
    wanted = (q @ k.mT + table).masked_fill(ids[:, None] < ids, -torch.inf).softmax(-1)
    return close(weights - wanted, 1e-9)


@about_t5.holds(
    "t5.untrained-buckets",
    "With 32 causal buckets T5 reads no number past its trained length that was never trained where max_distance is "
    "below that length; where it is twice a trained length of up to half a million, it does.",
    "32 个因果桶时，若 max_distance 小于训练长度，T5 在该长度之外不会读到从未训练过的数；若为训练长度（不超过五十万）的"
    "两倍，则会读到。",
    says="whorl 0.2, docs/encodings/t5.md, of where the last bucket begins; the lengths by this ledger",
    how="Buckets that a text of the trained length reaches against those of the first 3,000 distances and of 3,000 "
    "evenly spaced ones up to five times the length: trained lengths 18, 24, 64, 65, 512, 5,000 and 500,000, each with "
    "every max_distance from 17 to one less, or 20 of them evenly spaced, and with twice the length. Equal is not "
    "enough: 24 with 24 is shown, as is a million with two million, where no bucket is new.",
    how_zh="训练长度的文本用到的桶，与前 3000 个距离以及直到五倍长度的均匀的 3000 个距离的桶比较：训练长度 18、24、64、"
    "65、512、5000、500000，max_distance 从 17 到长度减一（全部，或均匀取 20 个），以及长度的两倍。相等还不够：列出长度"
    " 24 取 24 的结果；也列出一百万取两百万的结果，此时没有新的桶。",
)
def untrained_buckets() -> Finding:
    def new(length: int, reach: int) -> int:
        every = torch.cat((torch.arange(3000), torch.linspace(0, 5 * length, 3000).long(), torch.tensor([length - 1])))
        found = buckets(T5(heads=1, max_distance=reach), every)
        return len(set(found.tolist()) - set(found[every < length].tolist()))

    lengths = (18, 24, 64, 65, 512, 5000, 500_000)
    below = {length: torch.linspace(17, length - 1, min(20, length - 17)).long().tolist() for length in lengths}
    near = max(new(length, reach) for length in lengths for reach in below[length])
    far = {length: new(length, 2 * length) for length in lengths}
    numbers = {"buckets never trained, max_distance below the length, at most": near}
    numbers |= {f"buckets never trained, length {length}, max_distance {2 * length}": far[length] for length in lengths}
    numbers |= {"buckets never trained, length 24, max_distance 24": new(24, 24)}
    numbers |= {"buckets never trained, a million, max_distance two million": new(10**6, 2 * 10**6)}
    least = min(far.values())
    but = Both(f"{near} buckets are new below, {least} at twice", f"小于时新的桶有 {near} 个，两倍时有 {least} 个")
    return decide(near == 0 < least, numbers, but)
