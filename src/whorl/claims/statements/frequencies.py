"""Statements of the notes about frequencies and sines."""

from __future__ import annotations

import math

import torch

from whorl.claims.ledger import About, Finding, decide, within
from whorl.claims.probes import frequencies, largest
from whorl.claims.sinusoidal.codes import codes
from whorl.encodings.rope import Rope

NOTES = "the notes"
about_rope = About("rope", rows=("N29",), says=NOTES)
about_sinusoidal = About("sinusoidal", rows=("N28",), says=NOTES)


@About("rope", "sinusoidal", rows=("N26",)).fails(
    "note.squared-exponent",
    "theta = 10000 ** (-2 * arange(0, d, 2) / d) gives RoPE's frequencies.",
    "theta = 10000 ** (-2 * arange(0, d, 2) / d) 给出 RoPE 的频率。",
    says=f"{NOTES}, code",
    how="This line against the frequencies of a RoPE of 512 dimensions.",
)
def squared_exponent() -> Finding:
    wrong = 10_000.0 ** (-2 * torch.arange(0, 512, 2, dtype=torch.float64) / 512)
    own = frequencies(512)
    numbers = {"theta_1 by this line": wrong[1], "theta_1": own[1], "last by this line": wrong[-1], "last": own[-1]}
    text = "arange(0, d, 2) holds 2i already, so the line squares every frequency"
    return decide(largest(wrong / own - 1) < 1e-9, numbers, f"{text}; right is 10000 ** (-arange(0, d, 2) / d)")


@About("rope", rows=("N26",)).holds_within(
    "rope.frequencies",
    "w_i = base^(-2i/d): theta_1 is 0.9647 at d = 512, and w falls from 1 by equal ratios.",
    "w_i = base^(-2i/d)：d = 512 时 θ_1 = 0.9647，频率从 1 开始按等比下降。",
    says="Su et al. 2021, section 3.2.2; N26",
    how="Frequencies of heads of 8, 128 and 512 dimensions against the definition.",
)
def right_frequencies() -> Finding:
    pairs = [(d, i, float(w)) for d in (8, 128, 512) for i, w in enumerate(frequencies(d))]
    worst = max(abs(w / 10_000.0 ** (-2 * i / d) - 1) for d, i, w in pairs)
    first = float(frequencies(512)[1])
    numbers = {"theta_1 at d = 512": first, "largest relative difference": worst}
    return within(max(worst, 0.0 if abs(first - 0.9647) < 5e-5 else 1.0), 1e-12, numbers)


@About("rope", rows=("N26",), says=NOTES).fails(
    "note.theta-one",
    "theta_1 at d = 512 is 0.99.",
    "d = 512 时 θ_1 = 0.99。",
    how="The second frequency of a RoPE of 512 dimensions.",
)
def theta_one() -> Finding:
    own = float(frequencies(512)[1])
    return decide(abs(own - 0.99) < 0.005, {"theta_1": own}, f"10000^(-2/512) = {own:.4f}")


@About("rope", "sinusoidal", rows=("N29",)).fails(
    "note.small-i-low-frequency",
    "Small i is low frequency.",
    "i 小对应低频。",
    says=f"{NOTES}, in five places",
    how="Frequencies of 128 dimensions from the first to the last pair.",
)
def small_i() -> Finding:
    own = frequencies(128)
    numbers = {"w_0": own[0], "w_63": own[-1], "wavelength of pair 0": 2 * math.pi / float(own[0])}
    text = f"w_0 = {float(own[0]):g} is the highest, w_63 = {float(own[-1]):.2e} the lowest: small i turns fastest"
    return decide(bool(own[0] < own[-1]), numbers, text)


@about_rope.fails(
    "note.large-base-no-high-frequency",
    "A base that is too large lacks high frequencies.",
    "底数过大会缺少高频。",
    how="The fastest frequency for bases from 100 to 10^8.",
)
def large_base() -> Finding:
    numbers = {f"w_0 at base {base:.0e}": frequencies(128, base)[0] for base in (1e2, 1e4, 1e6, 1e8)}
    return decide(min(numbers.values()) < 0.99, numbers, "w_0 = 1 for every base; only the slow end moves")


@about_rope.fails(
    "note.index-256",
    "At d = 512 the index i runs to 256.",
    "d = 512 时下标 i 可取到 256。",
    says=f"{NOTES}, an example with i = 256",
    how="The number of frequencies of 512 dimensions.",
)
def index_256() -> Finding:
    count = len(frequencies(512))
    text = f"there are {count} pairs, so the last index is {count - 1}"
    return decide(count > 256, {"frequencies": count, "last index": count - 1}, text)


@about_rope.fails(
    "note.frequencies-rise",
    "Past the trained length the frequencies rise.",
    "超过训练长度后频率会升高。",
    how="The angle one position adds, at positions from 0 to ten million.",
)
def frequencies_rise() -> Finding:
    rope, numbers = Rope(head_dim=16), {}
    for place in (0, 512, 100_000, 10_000_000):
        cos, sin = rope.tables(torch.tensor([place, place + 1]), dtype=torch.float64)
        step = torch.atan2(sin[1] * cos[0] - cos[1] * sin[0], cos[1] * cos[0] + sin[1] * sin[0])
        numbers[f"fastest pair turns by, at {place:,}"] = step[0]
    values = list(numbers.values())
    text = "a pair turns by the same angle at every position; frequencies know nothing of it"
    return decide(values[-1] > values[0] + 1e-6, numbers, text)


@about_sinusoidal.fails(
    "note.sine-difference",
    "sin(0.1001) - sin(0.1000) is about 3e-7.",
    "sin(0.1001) - sin(0.1000) 约为 3e-7。",
    how="The difference in float64.",
)
def sine_difference() -> Finding:
    own = math.sin(0.1001) - math.sin(0.1)
    return decide(abs(own / 3e-7 - 1) < 0.5, {"difference": own}, f"it is {own:.3g}: 0.0001 cos(0.1)")


@about_sinusoidal.fails(
    "note.codes-change-less",
    "Codes change ever less as the position grows.",
    "位置越大，编码的变化越小。",
    how="|p_(t+1) - p_t| at t = 0, 100, 10,000 and a million, d = 128.",
)
def codes_change_less() -> Finding:
    numbers = {}
    for t in (0, 100, 10_000, 1_000_000):
        one, two = codes(torch.tensor([t, t + 1]))
        numbers[f"step at {t:,}"] = (two - one).norm()
    values = list(numbers.values())
    text = f"every step is {values[0]:.4f} long: |p_(t+1) - p_t| does not depend on t"
    return decide(values[-1] < 0.99 * values[0], numbers, text)


@about_sinusoidal.fails(
    "note.sine-sensitive",
    "sin is sensitive near pi / 2.",
    "sin 在 π/2 附近很敏感。",
    how="What a change of 0.01 does to sin at pi / 2 and at 0.",
)
def sine_sensitive() -> Finding:
    numbers = {"at pi / 2": abs(math.sin(math.pi / 2 + 0.01) - 1), "at 0": math.sin(0.01)}
    text = "its derivative cos is 0 there: a change of 0.01 moves it by 5e-5, at 0 by 0.01"
    return decide(numbers["at pi / 2"] > numbers["at 0"], numbers, text)
