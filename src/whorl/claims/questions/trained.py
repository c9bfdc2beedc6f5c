"""The questions the study notes ask that the lab answers, or leaves open with the reason."""

from __future__ import annotations

from whorl.claims import evidence
from whorl.claims.ledger import BETWEEN, About, Both, Finding, decide, inconclusive, needs_training
from whorl.claims.questions.measured import ASKED

about_rope = About("rope", says=ASKED)
about_rope_and_sinusoidal = About("rope", "sinusoidal", says=ASKED)


@about_rope.inconclusive(
    "question.slow-pairs-hurt",
    "Slow change in the late dimensions hurts at the trained length.",
    "在训练长度处，靠后维度变化缓慢会损害模型。",
    how="Bits per byte of texts of 64, over all bytes and over the last 16 of each, by models of 2 layers and width 64 "
    "after 300 updates, RoPE with its slowest quarter made fast less plain RoPE, five seeds, paired: slowness hurts "
    "where Student's 95 % interval lies below zero in both; it does not where both lie above zero or within "
    f"{evidence.TIE:g} of it. Beside it the last bytes at 256, four times the trained length, and that quarter "
    "standing still, which is hardly another encoding.",
    how_zh="2 层、宽 64 的模型训练 300 步后，长度 64 的文本的比特每字节，取全部字节与每段最后 16 个字节两种：把最慢的"
    "四分之一改为快的 RoPE 减去普通 RoPE，五个种子配对：两种的 Student 95% 区间都在零以下才算慢有害；两种都在零以上、"
    f"或在零的 {evidence.TIE:g} 以内，则无害。并列出训练长度四倍处（256）末尾字节的差，以及这四分之一不旋转的情形，它"
    "几乎不算另一种编码。",
    trained=True,
)
def slow_pairs_hurt() -> Finding:
    found = evidence.answer("slow-pairs")
    if not found:
        return needs_training(evidence.answer_command("slow-pairs"))
    still, fast = (evidence.difference_of(row, 64) for row in found["rows"][1:])
    far, whole = evidence.difference_of(found["rows"][2], 256), evidence.difference_of(found["rows"][2], 64, whole=True)
    numbers = {"fast less plain, last bytes": fast.mean, "low": fast.low, "high": fast.high}
    numbers |= {"fast less plain, all bytes": whole.mean, "low, all bytes": whole.low, "high, all bytes": whole.high}
    numbers |= {"fast less plain at 256, last bytes": far.mean, "still less plain, last bytes": still.mean}
    text = Both(
        f"made fast, those pairs change the loss at 64 by {whole} bits per byte over all bytes and by {fast} over the "
        f"last 16 of each text, of which by {far} at 256, four times the trained length; standing still by {still} at "
        f"64",
        f"这些对改为快的，在 64 处全部字节的损失变化 {whole} 比特每字节，每段最后 16 个字节的变化 {fast}，后者在训练长"
        f"度四倍的 256 处变化 {far}；不旋转则在 64 处变化 {still}",
    )
    if max(fast.high, whole.high) < 0:
        return decide(True, numbers, text, evidence.QUESTIONS)
    if not all(one.tied or one.low > 0 for one in (fast, whole)):
        return inconclusive(numbers, text, evidence.QUESTIONS)
    return decide(False, numbers, text, evidence.QUESTIONS)


@About("rope", says="study notes").fails(
    "question.learned-frequencies",
    "Frequencies that may be learned, w_i e^(a_i) from a_i = 0, hardly move in training.",
    "可学习的频率 w_i e^(a_i)（a_i 从 0 开始）在训练中几乎不动。",
    how="The largest of the eight |a_i|, which both layers share, of models of 2 layers and width 64 after 300 "
    "updates, five seeds: Student's 95 % interval below 0.1, a tenth of a frequency, counts as hardly. Beside it what "
    "they gained over plain RoPE on the last 16 bytes of texts of 64, paired.",
    how_zh="2 层、宽 64 的模型（两层共用八个 a_i）训练 300 步后最大的 |a_i|，五个种子：Student 95% 区间在 0.1（频率的"
    "十分之一）以下算几乎不动。并列出长度 64 的文本最后 16 个字节上相对普通 RoPE 的收益，逐种子配对。",
    trained=True,
)
def learned_frequencies() -> Finding:
    found = evidence.answer("learned-frequencies")
    if not found:
        return needs_training(evidence.answer_command("learned-frequencies"))
    moved_by, gap = found["largest |a_i|"], evidence.difference_of(found["rows"][1], 64)
    numbers = {"largest |a_i|": moved_by["mean"], "low": moved_by["low"], "high": moved_by["high"]}
    numbers |= {"learned less fixed, bits per byte of the last 16 bytes": gap.mean}
    span = f"{moved_by['mean']:.2f} [{moved_by['low']:.2f}, {moved_by['high']:.2f}]"
    text = Both(
        f"the largest of eight |a_i| is {span} after 300 updates, and the loss differs by {gap} bits per byte",
        f"300 步后八个 |a_i| 中最大的为 {span}，损失之差 {gap} 比特每字节",
    )
    if moved_by["low"] <= 0.1 <= moved_by["high"]:
        return inconclusive(numbers, text, evidence.QUESTIONS)
    gained = Both("gain nothing that shows", "但看不出收益")
    if gap.apart:
        gained = Both("gain", "并有收益") if gap.high < 0 else Both("lose", "反而有损")
    text = Both(f"{text.en}: some move, and {gained.en}", f"{text.zh}：部分频率确实移动了，{gained.zh}")
    return decide(moved_by["high"] < 0.1, numbers, text, evidence.QUESTIONS)


@About("rope", "alibi", "kerple", "t5", "rerope", "window", says=ASKED).fails(
    "question.decay-good",
    "Decay is what keeps the quality past the trained length.",
    "衰减才是在训练长度之外保持质量的原因。",
    how="Mean rise of the loss of the same last bytes at 4 times the trained length, the largest of the lab's "
    "comparisons: encodings that decay (ALiBi, KERPLE), RoPE, and those that need not decay: T5, whose bias is "
    f"learned, and ReRoPE, which turns all keys past its window alike. At most {evidence.HELD:g} bits per byte count "
    "as held; it is so where those that decay hold and no other does. A window on RoPE is shown beside them and "
    "decides nothing: it cuts far keys off.",
    how_zh="同样的末尾字节的损失在训练长度的 4 倍处的平均上升（取实验室各次比较中最大的）：会衰减的编码（ALiBi、KERPLE"
    f"）、RoPE，以及不必衰减的：T5（偏置是学来的）、ReRoPE（窗口外的键转角都相同）。不超过 {evidence.HELD:g} 比特每字节"
    "算保持；只有会衰减的保持而其余都不保持时才成立。RoPE 加窗口只作参照，不参与判定：它把远处的键截去。",
    trained=True,
)
def decay_good() -> Finding:
    rises = {name: evidence.largest_rise(name) for name in ("alibi", "kerple", "rope", "t5", "rerope", "window")}
    known = {name: rise for name, rise in rises.items() if rise is not None}
    groups = ("alibi", "kerple"), ("t5", "rerope")
    decaying, flat = ([name for name in group if name in known] for group in groups)
    if "rope" not in known or not decaying or not flat:
        return needs_training("whorl compare alibi kerple rope t5 --repairs rerope,window --preset laptop --seeds 3")
    numbers = {f"{name}: rise at 4x, bits per byte": rise.mean for name, rise in known.items()}
    held = [name for name in ("rope", *flat) if known[name].held]
    lost = [name for name in decaying if not known[name].held]
    found = (
        (held, "hold and need not decay", "保持质量，而不必衰减"),
        (lost, "decay and do not hold", "会衰减，却没有保持"),
    )
    text = Both(
        "; ".join(f"{', '.join(which)} {what}" for which, what, _ in found if which),
        "；".join(f"{'、'.join(which)} {what}" for which, _, what in found if which),
    )
    sources = dict.fromkeys(source for rise in known.values() for source in rise.sources)
    return decide(not held and not lost, numbers, text, BETWEEN.join(sources))


@about_rope_and_sinusoidal.holds(
    "question.converges-faster",
    "A small RoPE model reaches a lower loss than one with sinusoidal codes in the same number of steps.",
    "同样步数下，小模型用 RoPE 的损失低于用正弦编码的。",
    says="Su et al. 2021, RoFormer, figure 3, of BERT's size, whose positions it takes for sinusoidal; Press et al. "
    "2021, ALiBi, have the two alike, perplexity 20.07 and 20.05, at 247 million parameters",
    how="Bits per byte at the trained length after the same steps, sinusoidal less RoPE, in each comparison of the "
    f"lab, of small models, the codes divided by the root of the width. {evidence.JUDGED.en}",
    how_zh="实验室各次比较（小模型，正弦编码除以宽度的平方根）中，同样步数之后在训练长度处的比特每字节，正弦编码减 "
    f"RoPE。{evidence.JUDGED.zh}",
    trained=True,
)
def converges_faster() -> Finding:
    return _less("rope", "sinusoidal", rise=False)


@about_rope_and_sinusoidal.holds(
    "question.rope-generalises",
    "From the trained length to four times it the loss of a small model rises less with RoPE than with sinusoidal "
    "codes.",
    "从训练长度到其四倍，小模型的损失用 RoPE 时上升得比用正弦编码时少。",
    says="Press et al. 2021, ALiBi, section 2.2, of larger models; four times is the lab's length",
    how="Rise of the loss of the same last bytes at 4 times the trained length, sinusoidal less RoPE, in each "
    "comparison of the lab: their difference there less that at the trained length, each paired over seeds and samples "
    "of text as in the lab's report, with the widths of both intervals added. It is so where one lies above zero and "
    "none below.",
    how_zh="实验室各次比较中，同样的末尾字节的损失在训练长度的 4 倍处的上升，正弦编码减 RoPE：该处之差减去训练长度处之"
    "差，二者都按种子与文本样本配对，与实验室报告相同，区间宽度相加。有区间在零以上、且没有在零以下的，才算成立。",
    trained=True,
)
def rope_generalises() -> Finding:
    return _less("rope", "sinusoidal", rise=True)


@about_rope.fails(
    "question.extrapolation-limit",
    "A RoPE model, used as it was trained, holds to four times the length it was trained on.",
    "RoPE 模型不作任何改动，能保持到训练长度的四倍。",
    how="Mean rise of the loss of the same last bytes at 4 times the trained length, nothing changed after training, "
    f"the largest of the lab's comparisons: at most {evidence.HELD:g} bits per byte count as held.",
    how_zh="训练后不作改动，同样的末尾字节的损失在训练长度的 4 倍处的平均上升（取实验室各次比较中最大的）：不超过 "
    f"{evidence.HELD:g} 比特每字节算保持。",
    trained=True,
)
def extrapolation_limit() -> Finding:
    rise = evidence.largest_rise("rope")
    if rise is None:
        return needs_training(evidence.command_for("rope"))
    text = Both(f"the loss rises by {rise.mean:.2f} bits per byte", f"损失上升 {rise.mean:.2f} 比特每字节")
    return decide(rise.held, {"rise of the loss at 4x, bits per byte": rise.mean}, text, rise.source)


def _less(name: str, other: str, rise: bool) -> Finding:
    """Whether an encoding's loss, or its rise at 4 times the trained length, is below another's."""
    what, chinese = ("rise at 4x", "4 倍处的上升") if rise else ("loss at 1x", "1 倍处的损失")
    first, second = ((label, evidence.AS_TRAINED) for label in (other, name))
    found = evidence.gaps(first, second, 4.0 if rise else 1.0, rise=rise)
    command = f"whorl compare {name} {other} --preset laptop --seeds 3"
    names = f"{what}, {other} less {name}, bits per byte"
    return evidence.judge(names, f"{chinese}，{other} 减 {name}（比特每字节）", found, command)
