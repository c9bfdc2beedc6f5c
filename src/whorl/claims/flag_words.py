"""What flags say in words, how each is measured, and the tolerances that are named there."""

from __future__ import annotations

from whorl.claims import evidence
from whorl.claims.ledger import Both

EQUAL = 1e-6  # weights that differ by no more count as equal: biases are float32
SEEN = 1e-4  # weights that differ by more count as different
KEPT = 1e-9  # norms that differ by no more count as equal: they are float64
TURNED = 1e-3  # weights, where angles are float32: at 16,500 those are off by half a unit of the last place, 2^-10
TABLED = 1e-7  # norms, where cos and sin are float32
FOLD = 1e-4  # folded products are summed in float64 from a float32 bias of up to 64
RATIO = 4.0

SAID = {
    ("relative", True): (
        "{}: scores depend on the distance of query and key only.",
        "{}：注意力分数只取决于查询与键的距离。",
    ),
    ("relative", False): (
        "{}: scores depend on more than the distance of query and key: on the place, or on the tokens between.",
        "{}：注意力分数不只取决于查询与键的距离，还取决于所在位置或两者之间的词。",
    ),
    ("norm_preserving", True): ("{}: vectors keep their length.", "{}：向量的范数保持不变。"),
    ("norm_preserving", False): ("{}: vectors change their length.", "{}：向量的范数会改变。"),
    ("linear_attention", True): (
        "{}: works in linear attention, without the score matrix.",
        "{}：可用于线性注意力，不必构造分数矩阵。",
    ),
    ("linear_attention", False): (
        "{}: linear attention does not take it.",
        "{}：线性注意力不接受它。",
    ),
    ("decays", True): (
        "{}: by construction, a farther key weighs less than a nearer one that is alike.",
        "{}：由构造保证，内容相同的键越远权重越小。",
    ),
    ("decays", False): (
        "{}: a farther key may weigh as much as a nearer one that is alike, or more.",
        "{}：内容相同时，远处的键可能不比近处的键权重小。",
    ),
    ("extrapolates", True): (
        f"{{}}: quality holds at {RATIO:g} times the trained length.",
        f"{{}}：在训练长度的 {RATIO:g} 倍处质量仍能保持。",
    ),
    ("extrapolates", False): (
        f"{{}}: quality does not hold at {RATIO:g} times the trained length.",
        f"{{}}：在训练长度的 {RATIO:g} 倍处质量不能保持。",
    ),
}

# What is said of a rotation whose angles, and cos and sin of them, are computed in float32.
ROUNDED = {
    "relative": Both(
        "{}: scores depend on the distance of query and key only, but for the rounding of angles to float32.",
        "{}：除角度舍入到 float32 的误差外，注意力分数只取决于查询与键的距离。",
    ),
    "norm_preserving": Both(
        "{}: vectors keep their length, but for the rounding of cos and sin to float32.",
        "{}：除 cos 与 sin 舍入到 float32 的误差外，向量的范数保持不变。",
    ),
}

# What is said of one whose frequencies change with the length that is served.
SERVED = Both(
    "{}: for any one length that is served, scores depend on the distance of query and key only.",
    "{}：在任一服务长度下，注意力分数只取决于查询与键的距离。",
)

# What an encoding is whose codes are a table.
ENDED = Both(
    "{}: quality does not hold past the trained length: its table has no code there.",
    "{}：超过训练长度后质量不能保持：编码表中没有那里的编码。",
)

# What an encoding is whose bias folds: scores are products after all, of longer queries and keys.
FOLDED = Both(
    "{}: linear attention does not take it as it is; its scores are products of queries and keys of {} more "
    "dimensions.",
    "{}：线性注意力不直接接受它；但其分数是多加 {} 维的查询与键的内积。",
)

# What an encoding is whose term is a number of the query less one of the key.
GATED = Both(
    "{}: linear attention does not take it as it is; its term is a number of the query less one of the key, so a "
    "gated, softmax-free form exists at the cost of one number per token and head.",
    "{}：线性注意力不直接接受它；但其项是查询的一个数减去键的一个数，因此以每个词、每个头一个数为代价，存在带门的、"
    "不含 softmax 的形式。",
)

HOW = {
    "relative": Both(
        "Attention weights of 12 random tokens, 1 to 1,045 apart, before and after all positions are shifted by 1, 37 "
        "and 5,000 (of a short table: of half its positions, shifted by 1 and by half), one axis at a time, causal "
        "and, where keys after the query have a meaning, not causal, and where the length served counts, also for "
        "16,501; and a pair's score when the tokens between change: equal to "
        f"{EQUAL:g} ({TURNED:g} where angles are float32) is relative, a change above {SEEN:g} is not.",
        "12 个随机词（相隔 1 到 1045）在所有位置逐轴平移 1、37、5000 前后（短表则取一半的位置，平移 1 与一半）的注意力"
        "权重，带因果掩码，查询之后的键有意义时也不带，与服务长度有关时另取 16501；以及改变两词之间的词后该对的分数："
        f"相差不到 {EQUAL:g}（角度为 float32 时 {TURNED:g}）为相对，变化超过 {SEEN:g} 则不是。",
    ),
    "norm_preserving": Both(
        "Norms before and after every hook that changes a vector, at 12 positions up to 11 and 12 up to 16,500, or to "
        f"the end of a table: equal to {KEPT:g} of themselves ({TABLED:g} where cos and sin are float32) are kept, a "
        f"change above {SEEN:g} is one.",
        "每个改变向量的环节前后的范数，取到 11 为止与到 16500（或表的末尾）为止的各 12 个位置："
        f"相对差不到 {KEPT:g}（cos 与 sin 为 float32 时 {TABLED:g}）为保持，变化超过 {SEEN:g} 为改变。",
    ),
    "linear_attention": Both(
        "12 tokens at positions up to 11, 1,650 and 16,500, or to the end of a table: causal attention against that of "
        "placed queries and keys, and the linear form "
        f"against the quadratic, to {EQUAL:g}. Where it is refused, attention differs from that by more than {SEEN:g}, "
        f"or normalising takes away a factor on queries, to {KEPT:g}, or heads do not fade alike, by more than "
        f"{SEEN:g}; what folds equals its bias but for a number per query, to {FOLD:g}, and a gate's term is a number "
        f"of the query less one of the key, to {EQUAL:g}.",
        "位置到 11、1650、16500（或表的末尾）为止的 12 个词："
        f"因果注意力与放好位置的查询、键所给出的比较，线性形式与平方形式比较，容差 {EQUAL:g}。"
        f"被拒绝时，注意力与之相差须超过 {SEEN:g}，或查询上的因子经归一化后消失（容差 {KEPT:g}），"
        f"或各头衰减不一（超过 {SEEN:g}）；折入后的内积与偏置只差每个查询一个数（容差 {FOLD:g}），"
        f"门控项是查询的一个数减去键的一个数（容差 {EQUAL:g}）。",
    ),
    "decays": Both(
        "Causal weights of the last of 24 tokens that are all alike, 1 to 700 apart (of a short table: of all its "
        "positions), for six tokens, each with its own learned numbers: it decays where no key weighs as much as the "
        "next nearer one, or more.",
        "24 个内容全部相同的词（相隔 1 到 700；短表则取其全部位置）中最后一个词的因果权重，取六种词，各配一组可学习的"
        "数："
        "每个键的权重都小于下一个更近的键才算衰减。",
    ),
    "extrapolates": Both(
        f"Bits per byte of the same last tokens at {RATIO:g} times the trained length, from the lab, with the same "
        "settings but for those of lengths, which fit the model; what serves a trained RoPE model is tried on one. A "
        f"mean rise of at most {evidence.HELD:g} in every comparison counts as held.",
        f"训练长度的 {RATIO:g} 倍处同一批末尾词的比特每字节（取自实验室，设置相同，与长度有关者取合乎模型的数；"
        "用于已训练 RoPE 模型的，就在这种模型上试）："
        f"各次比较中平均上升都不超过 {evidence.HELD:g} 算保持。",
    ),
}

# How it is told of an encoding whose codes are a table.
ENDS = Both(
    "The position after the last row of its table is asked for, and refused.",
    "请求编码表最后一行之后的位置，应被拒绝。",
)
CACHED = Both(
    "Twelve tokens, 1, 150 and 1,500 apart (1 in a short table), fed to KVCache in pieces of 5, 1, 1, 5 against "
    f"attention over all, float64, to {EQUAL:g}.",
    "十二个词（相隔 1、150、1500；短表则为 1）按 5、1、1、5 分批送入 KVCache，与整段注意力比较，float64，容差 "
    f"{EQUAL:g}。",
)
