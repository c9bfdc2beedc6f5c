"""Claims about serving a trained RoPE past its length: the factor to choose, and what helps without training."""

from __future__ import annotations

from whorl.claims import evidence
from whorl.claims.ledger import About, Finding, decide, needs_training
from whorl.rotary.scalings.base import factor_for

about_rope = About("rope", rows=("N16",))


@about_rope.holds(
    "extension.factor-from-data",
    (
        "With a window of 4,096 filled to 3,072, serving 8,192 needs a factor of 8/3 for no position to leave what "
        "was seen."
    ),
    "窗口 4096 而数据只到 3072 时，要服务 8192，因子须为 8/3 才能让所有位置都落在见过的范围内。",
    says='the notes\' "reverse extrapolation"; N16',
    how="factor_for, and the largest position it leaves after interpolation.",
)
def factor_from_data() -> Finding:
    factor = factor_for(8192, trained_length=3072)
    numbers = {"factor": factor, "last position becomes": 8191 / factor, "with a factor of 2": 8191 / 2}
    good = abs(factor - 8 / 3) < 1e-12 and 8191 / factor < 3072 <= 8191 / 2
    return decide(good, numbers, "positions leave what was seen")


@about_rope.holds(
    "extension.factor-from-data-helps",
    "Such a factor serves better than one taken from the window.",
    "这样取的因子比按窗口取的效果更好。",
    says="the notes, who call it unproven; N16",
    how="Two factors for one model whose texts end at three quarters of its window, in the lab.",
    trained=True,
)
def factor_from_data_helps() -> Finding:
    what = "train on 3,072 of a window of 4,096, then Linear 8/3 against Linear 2 at 8,192"
    return needs_training(f"whorl lab sweep FILE.toml: {what}")


@About("rope", rows=("N13",)).fails(
    "extension.pi-untrained",
    "Interpolation (PI) repairs a RoPE model past its trained length without any training.",
    "无需训练，线性插值（PI）就能修复 RoPE 模型在训练长度之外的表现。",
    says="how PI is often read; the paper fine-tunes",
    how="Bits per byte at 4 times the trained length with PI against nothing, from the lab.",
    trained=True,
)
def pi_untrained() -> Finding:
    return _repair("pi")


@About("rope", rows=("N14",)).holds(
    "extension.ntk-untrained",
    "NTK-aware scaling repairs part of it without any training.",
    "无需训练，NTK-aware 缩放就能部分修复。",
    says="bloc97 2023; N14",
    how="The same with NTK.",
    trained=True,
)
def ntk_untrained() -> Finding:
    return _repair("ntk")


def _repair(variant: str) -> Finding:
    """Whether a repair of a trained RoPE is better than nothing at 4 times its length, in every lab result."""
    bare, repaired = (evidence.losses("rope", what) for what in (evidence.AS_TRAINED, variant))
    least = evidence.least_gap(bare, repaired, lambda loss: loss.by_ratio.get(4.0))
    if least is None:
        return needs_training(evidence.command_for("rope"))
    source, gain = least
    text = f"at 4 times the trained length it is {-gain:.2f} bits per byte worse than nothing"
    return decide(gain > 0, {"loss taken off at 4x, bits per byte": gain}, text, source)
