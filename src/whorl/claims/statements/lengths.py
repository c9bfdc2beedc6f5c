"""Statements of the notes about lengths that were not trained on, and about trained models: the lab decides."""

from __future__ import annotations

from itertools import pairwise

import torch

from whorl import Learned, Rope
from whorl.claims import evidence
from whorl.claims.ledger import About, Both, Finding, decide, depends, inconclusive, needs_training
from whorl.claims.probes import refusal
from whorl.claims.statements.frequencies import NOTES

# A fall of R^2 that counts as fading.
FADED = 0.1


@About("rope", "learned", says=NOTES).fails(
    "note.rope-any-length",
    "RoPE extrapolates to any length, because a longer input runs without an error.",
    "RoPE 可以外推到任意长度，因为更长的输入运行时不会报错。",
    how="Whether tables of 8,192 positions are finite; and the mean rise of the loss of the same last bytes at the "
    f"farthest length of each comparison of the lab, where at most {evidence.HELD:g} bits per byte count as held. A "
    "learned table of 512 beside it, which raises at position 512.",
    how_zh="8192 个位置的表是否有限；以及实验室各次比较中，同样的末尾字节的损失在最远长度处的平均上升："
    f"不超过 {evidence.HELD:g} 比特每字节算保持。并对照长 512 的可学习表，它在位置 512 处报错。",
    trained=True,
)
def rope_any_length() -> Finding:
    ran = bool(torch.stack(Rope(head_dim=64).tables(torch.arange(16 * 512))).isfinite().all())
    learned = Learned(width=8, length=512)
    raised = bool(refusal(lambda: learned.add_to_input(torch.zeros(1, 1, 8), torch.tensor([512]))))
    numbers = {"ran": float(ran), "a learned table raises": float(raised)}
    farthest = [(loss, max(loss.by_ratio)) for loss in evidence.losses("rope") if loss.rise(1.0) is not None]
    if not farthest:
        return needs_training(evidence.command_for("rope"), numbers)
    ratios = {loss.source: ratio for loss, ratio in farthest}
    rises = {loss.source: loss.by_ratio[ratio] - loss.by_ratio[1.0] for loss, ratio in farthest}
    numbers |= {
        f"rise of the loss at {ratios[source]:g}x, bits per byte, {evidence.short_name(source)}": rise
        for source, rise in rises.items()
    }
    said = " and ".join(f"{rise:+.2f} at {ratios[source]:g} times" for source, rise in rises.items())
    said_zh = "、".join(f"{ratios[source]:g} 倍处 {rise:+.2f}" for source, rise in rises.items())
    text = Both(
        f"it runs, and the loss rises by {said} the trained length, in bits per byte: computable there, and not good",
        f"能运行，但损失在训练长度的 {said_zh}（比特每字节）：可以计算，质量并不保持",
    )
    largest = evidence.largest(rises)
    assert largest is not None  # there is one for each comparison
    return decide(ran and largest.held, numbers, text, largest.source, instead=ran and raised)


@About("rope", says=NOTES).fails(
    "note.rope-twice",
    "At twice the trained length RoPE is slightly worse.",
    "在训练长度的两倍处，RoPE 只是略差。",
    how="The mean rise of the loss of the same last bytes, which at twice the trained length all lie past it, in each "
    f"comparison of the lab, of small models: slightly worse is at most {evidence.HELD:g} bits per byte, what counts "
    "as held. Over whole texts, whose first half lies within that length, it rises less. Means decide; beside them "
    "stand the intervals of each report, corrected for all that it judges at that length, whose lower ends are below "
    "that, and the rise of the smaller models of the lab's ablations, trained less.",
    how_zh="实验室各次比较（小模型）中，同样的末尾字节（在训练长度的两倍处全部位于训练长度之后）的损失的平均上升：不"
    f"超过算作保持的 {evidence.HELD:g} 比特每字节为略差。对整段文本（前一半在训练长度以内）上升较少。由均值判定；并列出"
    "各报告的区间（按其在该长度上判定的全部差别修正，下端低于此值），以及实验室消融中训练更少的更小模型的上升。",
    trained=True,
)
def rope_twice() -> Finding:
    rises, largest = evidence.rises("rope", 2.0), evidence.largest_rise("rope", 2.0)
    if largest is None:
        return needs_training(evidence.command_for("rope"))
    names = {source: f"rise at 2x of the last bytes, {evidence.short_name(source)}" for source in rises}
    numbers = {names[source]: rise for source, rise in rises.items()}
    gaps = evidence.rise_gaps(("rope", evidence.AS_TRAINED), 2.0)
    numbers |= {f"low, {evidence.short_name(gap.source)}": gap.low for gap in gaps}
    numbers |= {f"high, {evidence.short_name(gap.source)}": gap.high for gap in gaps}
    least = evidence.rise_in_ablations("base", "10000")
    numbers |= {} if least is None else {"rise at 2x of the last bytes, ablations": least}
    said = " and ".join(f"{rise:+.2f}" for rise in rises.values())
    said_zh = "、".join(f"{rise:+.2f}" for rise in rises.values())
    text = Both(
        f"the loss of the same last bytes rises by {said} bits per byte in the mean over seeds",
        f"同样的末尾字节的损失（对种子取均值）上升 {said_zh} 比特每字节",
    )
    return decide(largest.held, numbers, text, largest.source)


@About("rope", says="study notes, of the CAIL2019-SCM table").fails(
    "note.roformer-1024",
    "That RoFormer gains from 1,024 tokens over 512 shows that it extrapolates past 512.",
    "RoFormer 用 1024 个词优于 512 个词，说明它能外推到 512 之外。",
    how="Accuracy at 512 and at 1,024 tokens of encoders that were trained at each, three seeds, with the evidence "
    "past token 512: a gain in every seed where nothing is extrapolated. RoFormer itself was pre-trained in "
    "stages of up to 1,536 tokens.",
    how_zh="分别以 512 与 1024 个词训练的编码器（三个种子）、证据位于第 512 个词之后时的准确率：没有外推，每个种"
    "子也都有提升。RoFormer 的预训练本就有 1536 的阶段。",
    trained=True,
)
def roformer_1024() -> Finding:
    runs = [run for run in evidence.document("matching.json").get("runs", []) if run["evidence"] == "late"]
    short, long = (
        [run["accuracy"] for run in runs if (run["encoding"], run["length"]) == ("rope", n)] for n in (512, 1024)
    )
    if not short or not long:
        return needs_training("whorl lab match --seeds 3 --steps 30")
    means = [sum(found) / len(found) for found in (short, long)]
    numbers = {"accuracy, trained at 512": means[0], "accuracy, trained at 1,024": means[1], "seeds": len(long)}
    text = Both(
        f"trained at 1,024 it is right in {means[1]:.0%} and at 512 in {means[0]:.0%}: the gain is use of long text",
        f"以 1024 训练时正确率 {means[1]:.0%}，以 512 训练时 {means[0]:.0%}：提升来自利用长文本，而非外推",
    )
    return decide(min(long) <= max(short), numbers, text, "experiments/matching.json")


@About("rope", says=f"{NOTES}; Su et al. 2021, RoFormer, section 4.5.2").inconclusive(
    "note.longer-stages",
    "Stages of pre-training on longer texts raise the accuracy of masked tokens.",
    "预训练中文本较长的阶段会提高掩码预测的准确率。",
    how="Accuracy by stage of RoFormer's six stages, steps divided by 1,000, batches by 32 and lengths by 8, a model "
    "of 2 layers and width 64 on bytes, five seeds: the two stages of the longest texts, each less the mean of the "
    "stages before and after it, seed by seed; Student's 95 % interval must lie above zero. An accuracy is that of a "
    "stage's last quarter, which is 3 and 2 batches in the longest.",
    how_zh="RoFormer 的六个阶段，步数除以 1000、批量除以 32、长度除以 8，2 层、宽 64 的字节模型，五个种子：文本最长的两"
    "个阶段的准确率各减去其前后两阶段的均值，逐种子计算；Student 95% 区间须在零以上。准确率取各阶段最后四分之一的批次，"
    "最长的两个阶段为 3 批与 2 批。",
    trained=True,
)
def longer_stages() -> Finding:
    found = evidence.answer("longer-stages")
    if not found:
        return needs_training(evidence.answer_command("longer-stages"))
    numbers = {
        f"accuracy, stage {number} of length {stage['length']}": stage["accuracy"]["mean"]
        for number, stage in enumerate(found["stages"], start=1)
    }
    gap = found["longest less those beside"]
    numbers |= {"longest less those beside": gap["mean"], "low": gap["low"], "high": gap["high"]}
    span = f"{gap['mean']:+.3f} [{gap['low']:+.3f}, {gap['high']:+.3f}]"
    text = Both(
        f"the stages of the longest texts less those beside them: {span}",
        f"文本最长的阶段减去其前后阶段：{span}",
    )
    if gap["low"] <= 0 <= gap["high"]:
        return inconclusive(numbers, text, evidence.QUESTIONS)
    return decide(gap["low"] > 0, numbers, text, evidence.QUESTIONS)


@About("rope", says="study notes, of the CAIL2019-SCM table").fails(
    "note.cail-pairs",
    "CAIL2019-SCM is classification of pairs: 8,964 / 1,120 / 1,343 of them.",
    "CAIL2019-SCM 是句对分类：8964 / 1120 / 1343 对。",
    how="The data are not in this repository: the verdict is by Xiao et al. 2019, who publish them and count 8,964 "
    "triples. The test itself only sees to it that the lab's stand-in for the task is made of triples in every "
    "committed run, with both B and C among the answers.",
    how_zh="数据不在本仓库中：判定依据是发布该数据的 Xiao 等 2019，共 8964 个三元组。检验本身只确认：实验室的替代数据在"
    "每次已提交的运行中都由三元组构成，答案中 B 与 C 都有。",
    trained=True,
)
def cail_pairs() -> Finding:
    runs = evidence.document("matching.json").get("runs", [])
    if not runs:
        return needs_training("whorl lab match --seeds 3 --steps 30")
    triples = all(run.get("train_triples") and run.get("test_triples") and 0 < run["answers_b"] < 1 for run in runs)
    numbers = {"runs": len(runs), "answers that are B": runs[0]["answers_b"], "pairs the statement counts": 11_427}
    text = Both(
        "Xiao et al. 2019: 8,964 triples of cases in all, not 11,427 pairs; asked for is which of B and C is nearer "
        "to A",
        "Xiao 等 2019：共 8964 个案例三元组，而非 11427 对；所问的是 B、C 谁更接近 A",
    )
    return decide(False, numbers, text, "experiments/matching.json", instead=triples)


# -- what the small runs of experiments/trained_questions.py say ------------------------------------------------------


@About("learned", "sinusoidal", "rope", says=NOTES).depends(
    "note.learned-inside",
    "Inside the trained length learned positions are better than sinusoidal codes and RoPE.",
    "在训练长度以内，可学习的位置优于正弦编码与 RoPE。",
    how="Bits per byte of texts of the trained length, 64, over all bytes and over the last 16 of each, by models of 2 "
    "layers and width 64 after 300 updates: sinusoidal (times 1/8) and RoPE less learned, five seeds, paired; "
    "Student's 95 % intervals must leave zero out, and both ways of counting lie on the same side. How much it gains "
    "over sinusoidal codes is a matter of their size: codes times 0.03 stand beside.",
    how_zh="2 层、宽 64 的模型训练 300 步后，训练长度 64 的文本的比特每字节，取全部字节与每段最后 16 个字节两种：正弦"
    "编码（乘以 1/8）、RoPE 减去可学习位置，五个种子配对；Student 95% 区间须不含零，且两种算法在同一侧。相对正弦编码的"
    "差距取决于编码的大小：并列出乘以 0.03 的编码。",
    trained=True,
)
def learned_inside() -> Finding:
    found = evidence.answer("within-the-length")
    if not found:
        return needs_training(evidence.answer_command("within-the-length"))
    codes, rope, small = (evidence.difference_of(row, 64) for row in found["rows"][1:])
    all_codes, all_rope, all_small = (evidence.difference_of(row, 64, whole=True) for row in found["rows"][1:])
    numbers = {f"{one.setting} less learned, last bytes": one.mean for one in (codes, rope, small)}
    numbers |= {f"{one.setting} less learned, all bytes": one.mean for one in (all_codes, all_rope, all_small)}
    said = "; ".join(f"{one.setting} less learned: {one}" for one in (codes, rope, small))
    said_zh = "；".join(f"{one.setting} 减 learned：{one}" for one in (codes, rope, small))
    text = Both(
        f"{said} bits per byte of the last 16 bytes; over all bytes {all_codes}, {all_rope} and {all_small}",
        f"与可学习位置之差（最后 16 个字节的比特每字节）：{said_zh}；全部字节：{all_codes}、{all_rope}、{all_small}",
    )
    both = all(one.apart for one in (codes, rope, all_codes, all_rope))
    if not both or (codes.low > 0) != (all_codes.low > 0) or (rope.low > 0) != (all_rope.low > 0):
        return inconclusive(numbers, text, evidence.QUESTIONS)
    on = Both("what they are compared with", "与哪种编码比较")
    return depends(on, codes.low > 0, rope.low > 0, numbers, text, evidence.QUESTIONS)


@About("sinusoidal", says=NOTES).fails(
    "note.position-fades",
    "Positions that are added at the input fade in deep layers.",
    "在输入处加入的位置信息在深层会逐渐消失。",
    how="How much of the position a linear map reads off hidden states (R^2 on other texts), from the input to the "
    "last of six layers of width 64 after 300 updates with sinusoidal codes times 1/8 and times 1, five seeds: a fall "
    f"by more than {FADED:g} counts as fading, and Student's 95 % interval of the last less the first must lie on one "
    "side of that.",
    how_zh="六层、宽 64、以乘以 1/8 与乘以 1 的正弦编码训练 300 步的模型：用线性映射从隐藏状态读出位置的 R²（在另外的文"
    f"本上），从输入到最后一层，五个种子：下降超过 {FADED:g} 才算消失，末减首的 Student 95% 区间须整个在其一侧。",
    trained=True,
)
def position_fades() -> Finding:
    found = evidence.answer("position-by-depth")
    if not found:
        return needs_training(evidence.answer_command("position-by-depth"))
    numbers, said, faded, stayed = {}, [], [], []
    for row in found["rows"]:
        first, last, change = row["layers"][0]["mean"], row["layers"][-1]["mean"], row["last less first"]
        numbers |= {
            f"R^2 at the input, codes times {row['scale']:g}": first,
            f"after six layers, {row['scale']:g}": last,
        }
        said.append(f"{first:.3f}, {last:.3f}, {change['mean']:+.4f} [{change['low']:+.4f}, {change['high']:+.4f}]")
        faded.append(change["high"] < -FADED)
        stayed.append(change["low"] > -FADED)
    text = Both(
        f"R^2 at the input, after six layers, and the difference, with codes times 1/8: {said[0]}; times 1: {said[1]}",
        f"输入处与六层之后的 R² 及其差，编码乘以 1/8：{said[0]}；乘以 1：{said[1]}",
    )
    if not all(faded) and not all(stayed):
        return inconclusive(numbers, text, evidence.QUESTIONS)
    return decide(all(faded), numbers, text, evidence.QUESTIONS)


@About("rope", "alibi", says=NOTES).holds(
    "note.entropy-grows",
    "The entropy of attention, a mean over heads and layers, grows with the length of the text, here from 64 to 256 "
    "tokens with RoPE and ALiBi.",
    "注意力的熵（对各头、各层取平均）随文本长度增大（此处为 RoPE 与 ALiBi，从 64 到 256 个词）。",
    how="Entropy of the last token's attention, mean over 64 texts, 4 heads and 2 layers, at 256 positions less that "
    "at 64, in models of width 64 after 300 updates at 64, five seeds, RoPE and ALiBi: both Student's 95 % intervals "
    "must lie above zero, and the mean at 128 between the two. Single heads are not asked: a steep slope of ALiBi is "
    "a window, whose entropy need not grow.",
    how_zh="2 层、4 个头、宽 64、以 64 训练 300 步的模型，最后一个词的注意力熵（对 64 段文本、各头、各层取平均）在长度 "
    "256 处减去 64 处，五个种子，RoPE 与 ALiBi：两个 Student 95% 区间都须在零以上，且 128 处的均值在两者之间。不论单个"
    "的头：ALiBi 的陡斜率相当于窗口，其熵不必增大。",
    trained=True,
)
def entropy_grows() -> Finding:
    found = evidence.answer("entropy-by-length")
    if not found:
        return needs_training(evidence.answer_command("entropy-by-length"))
    changes = {row["encoding"]: row["last less first"] for row in found["rows"]}
    numbers = {f"{name}: nats from 64 to 256, mean over heads": change["mean"] for name, change in changes.items()}
    said = "; ".join(
        f"{name}: {c['mean']:+.2f} [{c['low']:+.2f}, {c['high']:+.2f}] nats" for name, c in changes.items()
    )
    text = Both(said, said.replace("nats", "奈特"))
    if any(change["low"] <= 0 <= change["high"] for change in changes.values()):
        return inconclusive(numbers, text, evidence.QUESTIONS)
    means = [[row["by_length"][length]["mean"] for length in ("64", "128", "256")] for row in found["rows"]]
    rises = all(later > earlier for own in means for earlier, later in pairwise(own))
    above = all(change["low"] > 0 for change in changes.values())
    return decide(rises and above, numbers, text, evidence.QUESTIONS)
