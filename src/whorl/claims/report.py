"""The ledger for people: short numbers for a table, and a Markdown page with every claim, in English or in Chinese."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Literal

from whorl.claims.ledger import KINDS, Kind

Lang = Literal["en", "zh"]

TITLES: dict[str, tuple[str, str]] = {
    "rotation": ("The rotation", "旋转"),
    "decay": ("Decay with the distance", "随距离的衰减"),
    "sinusoidal": ("Sinusoidal codes, and what an ideal encoding does", "正弦编码，以及理想编码应有的性质"),
    "precision": ("Precision", "精度"),
    "aliasing": ("Wavelengths, aliasing, and the base", "波长、混叠与底数"),
    "extension": ("Longer contexts", "更长的上下文"),
    "biases": ("Biases, masks, and none", "偏置、掩码与无编码"),
    "compatibility": ("Caches and linear attention", "缓存与线性注意力"),
    "statements": ("Statements of the study notes", "学习笔记中的说法"),
    "questions": ("Questions of the study notes", "学习笔记中的问题"),
    "flags": ("What each encoding claims of itself", "各编码对自身的声明"),
}

# A kind of verdict by itself, in Chinese.
KINDS_ZH: dict[Kind, str] = {
    "holds": "成立",
    "holds within": "在误差内成立",
    "fails": "不成立",
    "depends on": "视情形而定",
    "inconclusive": "尚无定论",
    "needs training": "需要训练",
}

# Words of the page, in both languages.
WORDS: dict[str, tuple[str, str]] = {
    "title": ("The ledger of claims", "论断账本"),
    "made": ("Computed in {:.1f} s by whorl {} with torch {}.", "由 whorl {1}、torch {2} 计算，用时 {0:.1f} 秒。"),
    "claims": ("claims", "条论断"),
    "flags": ("flag checks", "项声明检查"),
    "as expected": ("all as expected", "全部符合预期"),
    "red": ("{} not as expected: {}", "{} 项不符合预期：{}"),
    "expected": ("expected", "预期"),
    "says": ("said by", "出处"),
    "how": ("tested", "检验"),
    "numbers": ("measured", "测得"),
    "counterexample": ("but", "反例或说明"),
    "command": ("to decide it", "判定所需命令"),
    "source": ("source", "来源"),
    "claim": ("claim", "论断"),
    "verdict": ("verdict", "判定"),
    "values": ("numbers", "数值"),
    "statement": ("statement", "陈述"),
}


def word(key: str, lang: Lang) -> str:
    """A word of the page."""
    return WORDS[key][lang == "zh"]


def short(value: float | None) -> str:
    """A number in a few characters.

    >>> short(62.0937104), short(1707.0), short(2.2e-16), short(None)
    ('62.09', '1707', '2.2e-16', 'not finite')
    """
    if value is None:
        return "not finite"
    if value == int(value) and abs(value) < 1e9:
        return str(int(value))
    return f"{value:.2g}" if abs(value) < 1e-3 else f"{value:.4g}"


def numbers_in_short(numbers: Mapping[str, float | None], most: int = 3) -> str:
    """The first of the numbers with their names."""
    shown = [f"{name}: {short(value)}" for name, value in list(numbers.items())[:most]]
    return "; ".join(shown) + (" …" if len(numbers) > most else "")


def rows_of(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The claims of a document, then the checks of flags."""
    return [*document["claims"], *document["flags"]]


def verdict_of(claim: Mapping[str, Any], lang: Lang = "en") -> str:
    """The verdict of a row of a document, and what was expected where that differs."""
    own = claim["verdict"][lang]
    if claim["as_expected"]:
        return own
    return f"{own} ({word('expected', lang)}: {_kind(claim['expected'], lang)})"


def _kind(kind: Kind, lang: Lang) -> str:
    return kind if lang == "en" else KINDS_ZH[kind]


def summary(document: Mapping[str, Any], lang: Lang = "en") -> str:
    """The number of claims and of flag checks of each verdict, and the ids that are not as expected."""
    red = document["unexpected"]
    rest = word("as expected", lang) if not red else word("red", lang).format(len(red), ", ".join(red))
    return "; ".join([*_counted(document, lang), rest]) + ("." if lang == "en" else "。")


def _counted(document: Mapping[str, Any], lang: Lang) -> Iterator[str]:
    for group in ("claims", "flags"):
        if document[group]:
            counts = document["counts"][group]
            said = ", ".join(f"{counts[kind]} {_kind(kind, lang)}" for kind in KINDS if counts[kind])
            yield f"{len(document[group])} {word(group, lang)}: {said}"


def markdown(document: Mapping[str, Any], lang: Lang = "en") -> str:
    """The whole document as a page; in English the statements stand in Chinese as well."""
    made = word("made", lang).format(document["seconds"], document["whorl"], document["torch"])
    lines = [f"# {word('title', lang)}", "", summary(document, lang), made]
    for topic, claims in groupby(rows_of(document), key=lambda claim: claim["topic"]):
        lines += ["", f"## {TITLES[topic][lang == 'zh'] if topic in TITLES else topic}"]
        for claim in claims:
            lines += ["", *_section(claim, lang)]
    return "\n".join(lines) + "\n"


def _section(claim: Mapping[str, Any], lang: Lang) -> Sequence[str]:
    lines = [f"### {claim['id']}: {verdict_of(claim, lang)}", "", claim["statement"][lang], ""]
    if lang == "en":
        lines += [claim["statement"]["zh"], ""]
    lines += [f"- {word('says', lang)}: {claim['says']}", f"- {word('how', lang)}: {claim['how'][lang]}"]
    if claim["numbers"]:
        lines.append(f"- {word('numbers', lang)}: {numbers_in_short(claim['numbers'], most=99)}")
    if claim["counterexample"]:
        lines.append(f"- {word('counterexample', lang)}: {claim['counterexample'][lang]}")
    if claim["command"]:
        lines.append(f"- {word('command', lang)}: {claim['command']}")
    if claim["source"] != "computed":
        lines.append(f"- {word('source', lang)}: {claim['source']}")
    return lines
