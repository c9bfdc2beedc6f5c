"""Claims about serving a trained RoPE past its length: the factor to choose, and what helps without training."""

from __future__ import annotations

from whorl import Linear, Rope, factor_for
from whorl.claims import evidence
from whorl.claims.ledger import BETWEEN, About, Both, Finding, decide, inconclusive, needs_training

about_rope = About("rope")


@about_rope.holds(
    "extension.factor-from-data",
    "For texts that end at 3,072 of a window of 4,096, served to 8,192, a factor of 8/3 keeps every position below "
    "3,072; that none passes 3,071, the last one seen, takes 8191/3071; 2 is not enough.",
    "窗口 4096 而文本只到 3072，要服务 8192：因子 8/3 使位置都小于 3072；要不超过见过的最后位置 3071 则需 8191/3071；"
    "因子 2 不够。",
    says="study notes, as reverse extrapolation, with 8/3",
    how="factor_for against 8/3, to 1e-12, and the last position that Linear of each factor leaves, read off the "
    "slowest of 32 pairs' angle, that of 8191/3071 to 1e-6.",
    how_zh="factor_for 的结果与 8/3 比较（容差 1e-12），以及各因子的 Linear 之后最后一个位置（由 32 对中最慢一对"
    "的角度读出），8191/3071 的容差为 1e-6。",
)
def factor_from_data() -> Finding:
    own = factor_for(8192, trained_length=3072)
    strict = 8191 / 3071
    numbers = {"factor": own, "8191 / 3071": strict}
    last = {name: _last_position(factor) for name, factor in (("8/3", own), ("8191/3071", strict), ("2", 2.0))}
    numbers |= {f"last position with {name}": place for name, place in last.items()}
    good = abs(own - 8 / 3) < 1e-12 and 3071 < last["8/3"] < 3072 < last["2"] and abs(last["8191/3071"] - 3071) < 1e-6
    return decide(good, numbers, Both("positions leave what was seen", "位置超出了见过的范围"))


def _last_position(factor: float) -> float:
    """Where position 8,191 stands after interpolation, in positions of the plain RoPE."""
    plain, squeezed = (Rope(head_dim=64, scaling=scaling) for scaling in (None, Linear(factor=factor)))
    return float(8191 * squeezed.frequencies()[-1] / plain.frequencies()[-1])


@about_rope.inconclusive(
    "extension.factor-from-data-helps",
    "A factor taken from the length that the data had serves better than one taken from the window.",
    "按数据实际长度取的因子比按窗口取的效果更好。",
    says="study notes, which call it unproven",
    how="Bits per byte of the last 16 of 128 bytes, by models of 2 layers and width 64 after 300 updates on 48 of a "
    "window of 64 and none after scaling: Linear(8/3) less Linear(2), five seeds, paired; Student's 95 % interval must "
    "lie below zero.",
    how_zh="2 层、宽 64 的模型，窗口 64、训练到 48、300 步，缩放后不再训练：128 个字节中最后 16 个的比特每字节，"
    "Linear(8/3) 减去 Linear(2)，五个种子配对；Student 95% 区间须在零以下。",
    trained=True,
)
def factor_from_data_helps() -> Finding:
    found = evidence.answer("factor-from-data")
    if not found:
        return needs_training(evidence.answer_command("factor-from-data"))
    row = next(row for row in found["rows"] if row["setting"] == "of the data")
    gap = evidence.difference_of(row)
    numbers = {"difference, bits per byte": gap.mean, "low": gap.low, "high": gap.high}
    text = Both(
        f"the factor of the data less that of the window: {gap} bits per byte over {row['difference']['n']} seeds",
        f"按数据取的因子减去按窗口取的因子：{gap} 比特每字节（{row['difference']['n']} 个种子）",
    )
    if not gap.apart:
        return inconclusive(numbers, text, evidence.QUESTIONS)
    return decide(gap.high < 0, numbers, text, evidence.QUESTIONS)


@about_rope.inconclusive(
    "extension.pi-untrained",
    "Without any training, interpolation (PI) is better than nothing at four times the trained length, on the last "
    "tokens of a text, in small models as well.",
    "不经训练，线性插值（PI）在训练长度的四倍处，对文本末尾的词也优于不作处理，小模型也如此。",
    says="Chen et al. 2023, PI, of step 0 of its fine-tuning",
    how="Bits per byte at 4 times the trained length with nothing less those with PI of factor 4, in each comparison "
    f"of the lab, of small models. {evidence.JUDGED.en}",
    how_zh=f"实验室各次比较（小模型）中，训练长度的 4 倍处不处理与用因子为 4 的 PI 的比特每字节之差。"
    f"{evidence.JUDGED.zh}",
    trained=True,
)
def pi_untrained() -> Finding:
    return _repair("pi")


@about_rope.holds(
    "extension.ntk-untrained",
    "Without any training, NTK-aware scaling is better than nothing at four times the trained length, in small models "
    "as well.",
    "不经训练，NTK-aware 缩放在训练长度的四倍处优于不作处理，小模型也如此。",
    says="bloc97 2023, r/LocalLLaMA 14lz7j5, whose title says more: extension.ntk-minimal",
    how="Bits per byte at 4 times the trained length with nothing less those with NTK of factor 4, in each comparison "
    f"of the lab, of small models. {evidence.JUDGED.en}",
    how_zh="实验室各次比较（小模型）中，训练长度的 4 倍处不处理与用因子为 4 的 NTK 的比特每字节之差。"
    f"{evidence.JUDGED.zh}",
    trained=True,
)
def ntk_untrained() -> Finding:
    return _repair("ntk")


@about_rope.fails(
    "extension.ntk-minimal",
    "Without any training, NTK-aware scaling serves four times the trained length with minimal degradation, in small "
    "models as well.",
    "不经训练，NTK-aware 缩放即可用于训练长度的四倍，性能几乎不下降，小模型也如此。",
    says="bloc97 2023, r/LocalLLaMA 14lz7j5, the title, of LLaMA: 8k and more of 2,048, minimal perplexity "
    "degradation; here asked of small models",
    how="Bits per byte of the same last bytes with NTK of factor 4 at 4 times the trained length less those of the "
    "same model, unscaled, at the trained length, in each comparison of the lab, of small models: it fails where the "
    f"whole interval of one lies above what counts as held, {evidence.HELD:g}, and holds where all lie below. Other "
    "factors are not asked: the post's own code has 8.",
    how_zh="实验室各次比较（小模型）中，因子为 4 的 NTK 在训练长度 4 倍处、同样的末尾字节的比特每字节，减去同一模型未"
    f"缩放时在训练长度处的：若某次比较的整个区间都高于算作保持的 {evidence.HELD:g}，则不成立；全部低于它才成立。未检验"
    "其他因子：原帖的代码取 8。",
    trained=True,
)
def ntk_minimal() -> Finding:
    found = evidence.rise_gaps(("rope", "ntk"), 4.0)
    if not found:
        return needs_training(evidence.command_for("rope"))
    numbers: dict[str, float] = {}
    for gap in found:
        name = evidence.short_name(gap.source)
        numbers |= {f"rise at 4x with NTK, bits per byte, {name}": gap.mean}
        numbers |= {f"low, {name}": gap.low, f"high, {name}": gap.high}
    said = "; ".join(f"{evidence.short_name(gap.source)}: {gap}" for gap in found)
    text = Both(
        f"with a factor of 4 the loss rises by, in bits per byte, {said}",
        f"因子为 4 时损失上升（比特每字节）：{said}",
    )
    source = BETWEEN.join(gap.source for gap in found)
    lost, held = (gap.low > evidence.HELD for gap in found), (gap.high <= evidence.HELD for gap in found)
    if any(lost):
        return decide(False, numbers, text, source)
    return decide(True, numbers, text, source) if all(held) else inconclusive(numbers, text, source)


def _repair(variant: str) -> Finding:
    """Whether a repair of a trained RoPE is better than nothing at 4 times its length."""
    bare, repaired = (("rope", what) for what in (evidence.AS_TRAINED, variant))
    what = f"loss of the last bytes that {variant} takes off at 4x, bits per byte"
    chinese = f"{variant} 在 4 倍长度处使末尾字节减少的损失（比特每字节）"
    return evidence.judge(what, chinese, evidence.gaps(bare, repaired, 4.0), evidence.command_for("rope"))
