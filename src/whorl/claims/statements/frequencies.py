"""Statements of the notes about frequencies and sines."""

from __future__ import annotations

import math
from itertools import product

import torch

from whorl import Rope
from whorl.claims.ledger import NOTHING, About, Both, Finding, decide, depends, within
from whorl.claims.probes import doubles, frequencies, ladder, largest
from whorl.claims.sinusoidal.codes import codes
from whorl.rotary.frequencies import wavelengths

NOTES = "study notes"
about_rope = About("rope", says=NOTES)
about_sinusoidal = About("sinusoidal", says=NOTES)


@About("rope", "sinusoidal").fails(
    "note.squared-exponent",
    "theta = 10000 ** (-2 * arange(0, d, 2) / d) gives RoPE's frequencies.",
    "theta = 10000 ** (-2 * arange(0, d, 2) / d) 给出 RoPE 的频率。",
    says=f"{NOTES}, code",
    how="This line against the frequencies of a RoPE of 512 dimensions, to 1e-9; they are those of the right line, and "
    "it gives their squares, to 1e-9.",
    how_zh="该行代码与 512 维 RoPE 的频率比较，容差 1e-9；频率须等于正确写法的结果，该行的结果须为其平方（容差 "
    "1e-9）。",
)
def squared_exponent() -> Finding:
    wrong = 10_000.0 ** (-2 * torch.arange(0, 512, 2, dtype=torch.float64) / 512)
    own = frequencies(512)
    off, so = largest(wrong / own - 1), largest((own / ladder(512) - 1, wrong / own**2 - 1))
    numbers = {"theta_1 by this line": wrong[1], "theta_1": own[1], "last by this line": wrong[-1], "last": own[-1]}
    text = "arange(0, d, 2) holds 2i already, so the line squares every frequency"
    but = Both(
        f"{text}; right is 10000 ** (-arange(0, d, 2) / d)",
        "arange(0, d, 2) 已经是 2i，因此该行把每个频率都平方了；正确写法是 10000 ** (-arange(0, d, 2) / d)",
    )
    numbers |= {"largest relative difference": off, "off the right line, or the squares, by": so}
    return decide(off < 1e-9, numbers, but, instead=so < 1e-9)


@About("rope").holds_within(
    "rope.frequencies",
    "w_i = base^(-2i/d) for i = 0 … d/2 - 1: w falls from 1 by equal ratios, and w_1 is 0.9647 at d = 512 and base "
    "10,000.",
    "w_i = base^(-2i/d)，i = 0 … d/2 - 1：频率从 1 开始按等比下降，d = 512、底数 10000 时 w_1 = 0.9647。",
    says="Su et al. 2021, RoFormer, section 3.2.2, where i counts from 1 and the base is 10,000; w_1 by arithmetic",
    how="Frequencies of heads of 8, 128 and 512 dimensions, bases 100, 10,000, 500,000 and 10 million, d/2 of each, "
    "against the definition, and w_1 against its four decimals.",
    how_zh="8、128、512 维，底数 100、10000、500000、一千万的频率（各 d/2 个）与定义比较，w_1 与其四位小数比较。",
)
def right_frequencies() -> Finding:
    found = [(frequencies(d, base), ladder(d, base)) for d, base in product((8, 128, 512), (1e2, 1e4, 5e5, 1e7))]
    short = sum(len(own) != len(right) for own, right in found)
    worst = largest(own / right[: len(own)] - 1 for own, right in found if len(own) <= len(right))
    first, count = float(frequencies(512)[1]), len(frequencies(512))
    numbers = {"w_1 at d = 512": first, "frequencies at d = 512": count, "largest relative difference": worst}
    told = not short and abs(first - 0.9647) < 5e-5
    text = "there are more or fewer than d/2 of them, or w_1 is another"
    return within(
        worst if told else math.inf, 1e-12, numbers, NOTHING if told else Both(text, "不是 d/2 个，或 w_1 不同")
    )


@About("rope", says=NOTES).fails(
    "note.theta-one",
    "theta_1 at d = 512 is 0.99.",
    "d = 512 时 θ_1 = 0.99。",
    how="The second frequency of a RoPE of 512 dimensions, to two decimals. It is 10000^(-2/512), to 1e-9.",
    how_zh="512 维 RoPE 的第二个频率，精确到两位小数。它须为 10000^(-2/512)（容差 1e-9）。",
)
def theta_one() -> Finding:
    own, right = float(frequencies(512)[1]), 10_000 ** (-2 / 512)
    but = Both(f"10000^(-2/512) = {right:.4f}", f"实际为 10000^(-2/512) = {right:.4f}")
    return decide(abs(own - 0.99) < 0.005, {"theta_1": own}, but, instead=abs(own - right) < 1e-9)


@About("rope", "sinusoidal").fails(
    "note.small-i-low-frequency",
    "Small i is low frequency.",
    "i 小对应低频。",
    says=f"{NOTES}, in at least five places",
    how="The first frequency of a RoPE of 128 dimensions against the last, which would have to be higher. All are "
    "those of the definition, to 1e-12, and so are the sines of a sinusoidal code of that width at position 1.",
    how_zh="128 维的 RoPE 的第一个频率与最后一个：后者更高才算。频率都须与定义相符（容差 1e-12）；同宽的正弦编码在位置 "
    "1 处的正弦亦然。",
)
def small_i() -> Finding:
    own = frequencies(128)
    numbers = {"w_0": own[0], "w_63": own[-1], "wavelength of pair 0": 2 * math.pi / float(own[0])}
    text = f"w_0 = {float(own[0]):g} is the highest, w_63 = {float(own[-1]):.2e} the lowest: small i turns fastest"
    but = Both(text, f"w_0 = {float(own[0]):g} 最高，w_63 = {float(own[-1]):.2e} 最低：i 小的转得最快")
    sines = codes(torch.tensor([1]), 128)[0, 0::2]
    off = largest([own / ladder(128) - 1, sines / ladder(128).sin() - 1])  # NaN where either is
    return decide(bool(own[0] < own[-1]), numbers, but, instead=off < 1e-12)


@about_rope.depends(
    "note.large-base-no-high-frequency",
    "A base that is too large lacks high frequencies.",
    "底数过大会缺少高频。",
    how="For bases 10^2, 10^4 and 10^8: how many of 64 pairs have a wavelength below 64, a number that falls; and "
    "the fastest frequency, which would have to fall below 0.99. All are those of the definition, to 1e-9.",
    how_zh="底数取 10²、10⁴、10⁸：64 对中波长小于 64 的对数，逐次减少；以及最快的频率，须低于 0.99 才算。频率都须与"
    "定义相符（容差 1e-9）。",
)
def large_base() -> Finding:
    bases = (1e2, 1e4, 1e8)
    tops = [float(frequencies(128, base)[0]) for base in bases]
    fast = [int((wavelengths(frequencies(128, base)) < 64).sum()) for base in bases]
    off = largest(frequencies(128, base) / ladder(128, base) - 1 for base in bases)
    numbers = {f"w_0 at base {base:.0e}": w for base, w in zip(bases, tops, strict=True)}
    numbers |= {f"pairs with a wavelength below 64 at base {base:.0e}": n for base, n in zip(bases, fast, strict=True)}
    text = Both(
        f"w_0 = 1 for every base, but at bases 10^2, 10^4 and 10^8 {fast[0]}, {fast[1]} and {fast[2]} of 64 pairs have "
        "a wavelength below 64",
        f"任何底数都有 w_0 = 1，但底数为 10²、10⁴、10⁸ 时，64 对中波长小于 64 的分别有 {fast[0]}、{fast[1]}、{fast[2]} "
        "对",
    )
    on = Both("whether their number or the fastest one is meant", "指的是高频的个数还是最高的频率")
    numbers["largest relative difference from the definition"] = off
    fewer = fast[0] > fast[1] > fast[2] and off < 1e-9
    return depends(on, fewer, min(tops) < 0.99, numbers, text)


@about_rope.fails(
    "note.index-256",
    "At d = 512 the index i of w_i, counted from 0, runs to 256.",
    "d = 512 时，w_i 从 0 数起的下标 i 可取到 256。",
    says=f"{NOTES}, an example with i = 256",
    how="The number of frequencies of 512 dimensions: more than 256, or else it must be 256, one for each pair.",
    how_zh="512 维的频率个数：须超过 256 才算，否则须为每对一个，即 256。",
)
def index_256() -> Finding:
    count = len(frequencies(512))
    text = f"there are {count} pairs, so the last index is {count - 1}"
    but = Both(text, f"共有 {count} 对，最后的下标是 {count - 1}")
    return decide(count > 256, {"frequencies": count, "last index": count - 1}, but, instead=count == 256)


@about_rope.fails(
    "note.frequencies-rise",
    "Past the trained length the frequencies rise.",
    "超过训练长度后频率会升高。",
    how="The angle one position adds to each of 8 pairs, at positions 0, 512, 100,000 and ten million: for one of them "
    "it would have to grow by more than 1e-6. Everywhere it is w_i, to 1e-6.",
    how_zh="位置 0、512、100000、一千万处，每前进一个位置，8 对各自增加的角度：须有一对增大超过 1e-6 才算。各处都须为 "
    "w_i（容差 1e-6）。",
)
def frequencies_rise() -> Finding:
    rope, numbers, steps = Rope(head_dim=16), {}, []
    for place in (0, 512, 100_000, 10_000_000):
        cos, sin = rope.tables(torch.tensor([place, place + 1]), dtype=torch.float64)
        steps.append(torch.atan2(sin[1] * cos[0] - cos[1] * sin[0], cos[1] * cos[0] + sin[1] * sin[0]))
        numbers[f"fastest pair turns by, at {place:,}"] = steps[-1][0]
    most = max(float((step - steps[0]).max()) for step in steps)
    text = "a pair turns by the same angle at every position; frequencies know nothing of it"
    but = Both(text, "每一对在任何位置转过的角度都相同；频率与位置无关")
    off = largest(step - ladder(16) for step in steps)
    numbers |= {"a pair turns by more than at 0, at most": most, "angles off w_i by": off}
    return decide(most > 1e-6, numbers, but, instead=off < 1e-6)


@about_sinusoidal.fails(
    "note.sine-difference",
    "sin(0.1001) - sin(0.1000) is about 3e-7.",
    "sin(0.1001) - sin(0.1000) 约为 3e-7。",
    how="The sines of codes of width 2, whose frequency is 1, at the positions 0.1 and 0.1001: about is within a half. "
    "The difference is 0.0001 cos(0.1), to 1e-3 of itself.",
    how_zh="宽度 2（频率为 1）的编码在位置 0.1 与 0.1001 处的正弦：相差不到一半算约为。差须为 0.0001·cos(0.1)，相差不到"
    "自身的 1e-3。",
)
def sine_difference() -> Finding:
    own = float(codes(doubles([0.1, 0.1001]), 2)[:, 0].diff())
    text, right = (
        Both(f"it is {own:.3g}: 0.0001 cos(0.1)", f"实际为 {own:.3g}，即 0.0001·cos(0.1)"),
        1e-4 * math.cos(0.1),
    )
    return decide(abs(own / 3e-7 - 1) < 0.5, {"difference": own}, text, instead=abs(own / right - 1) < 1e-3)


@about_sinusoidal.fails(
    "note.codes-change-less",
    "Codes change ever less as the position grows.",
    "位置越大，编码的变化越小。",
    how="|p_(t+1) - p_t| at t = 0, 100, 10,000 and a million, d = 128: the last would have to be below 0.99 of the "
    "first. All are those of the definition, to 1e-6.",
    how_zh="d = 128，t = 0、100、10000、一百万处的 |p_(t+1) - p_t|：最后一个须小于第一个的 0.99 才算。都须与定义相"
    "符（容差 1e-6）。",
)
def codes_change_less() -> Finding:
    numbers = {}
    for t in (0, 100, 10_000, 1_000_000):
        one, two = codes(torch.tensor([t, t + 1]))
        numbers[f"step at {t:,}"] = float((two - one).norm())
    values = list(numbers.values())
    right = math.sqrt(float((2 - 2 * ladder(128).cos()).sum()))
    off = largest(doubles(values) - right)
    text = f"every step is {values[0]:.4f} long: |p_(t+1) - p_t| does not depend on t"
    but = Both(text, f"每一步的长度都是 {values[0]:.4f}：|p_(t+1) - p_t| 与 t 无关")
    return decide(values[-1] < 0.99 * values[0], numbers | {"off the definition by": off}, but, instead=off < 1e-6)


@about_sinusoidal.fails(
    "note.sine-sensitive",
    "sin is sensitive near pi / 2.",
    "sin 在 π/2 附近很敏感。",
    how="What a change of 0.01 of the position does to the sine of a code of frequency 1, at pi / 2 and at 0: it is "
    "sensitive where it moves by more than at 0. It moves by 1 - cos(0.01) and by sin(0.01), to 1e-9.",
    how_zh="频率为 1 的编码：位置在 π/2 与 0 处各变化 0.01 时，正弦变化多少：比在 0 处变化更大才算敏感。须各为 "
    "1 - cos(0.01) 与 sin(0.01)（容差 1e-9）。",
)
def sine_sensitive() -> Finding:
    places = doubles([math.pi / 2, math.pi / 2 + 0.01, 0.0, 0.01])
    sines = codes(places, 2)[:, 0]
    numbers = {"at pi / 2": abs(float(sines[1] - sines[0])), "at 0": abs(float(sines[3] - sines[2]))}
    text = Both(
        f"its derivative cos is 0 there: a change of 0.01 moves it by {numbers['at pi / 2']:.0e}, at 0 by 0.01",
        f"该处导数 cos 为 0：变化 0.01 只使它移动 {numbers['at pi / 2']:.0e}，在 0 处则移动 0.01",
    )
    flat, steep = numbers.values()
    off = largest(doubles([flat - (1 - math.cos(0.01)), steep - math.sin(0.01)]))
    return decide(flat > steep, numbers | {"off by": off}, text, instead=off < 1e-9)
