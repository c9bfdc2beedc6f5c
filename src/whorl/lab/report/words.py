"""Words and numbers as a reader wants them: the texts of en.toml and zh.toml filled in, numbers with fixed places.

What comes out is plain text: the template escapes it.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from whorl.errors import unknown
from whorl.result_rows import AS_TRAINED, WINDOW

LANGUAGES = ("en", "zh")

# Names as people write them. A label that is not here stands as it is.
NAMES = {
    "alibi": "ALiBi",
    "cope": "CoPE",
    "deberta": "DeBERTa",
    "fire": "FIRE",
    "forgetting_gate": "forgetting gate",
    "kerple": "KERPLE",
    "none": "NoPE",  # "none holds" would say the opposite
    "rope": "RoPE",
    "sandwich": "Sandwich",
    "shaw": "Shaw",
    "t5": "T5",
    "transformer_xl": "Transformer-XL",
    "xpos": "xPos",
    "dynamic-ntk": "dynamic NTK",
    "leaky-rerope": "leaky ReRoPE",
    "logn": "log-n",
    "ntk": "NTK",
    "pi": "PI",
    "rerope": "ReRoPE",
    "rerope+logn": "ReRoPE + log-n",
    "yarn": "YaRN",
    "yarn-beta4": "YaRN β4",
    "yarn-beta8": "YaRN β8",
}
VARIANTS = {AS_TRAINED: "as_trained", WINDOW: "window_short"}
LOOSE = re.compile(r" *([，。、；：（）]) *|(?<=[一-鿿]) +(?=[一-鿿])")  # spaces that joining names left in Chinese
FRACTIONS = {0.125: "⅛×", 0.25: "¼×", 0.5: "½×", 0.75: "¾×"}


@cache
def texts(lang: str) -> dict[str, str | list[str]]:
    """Every text of a language; a list has two forms, for one and for many."""
    return tomllib.loads(Path(__file__).with_name(f"{lang}.toml").read_text(encoding="utf-8"))


class Words:
    """The words of one language: ``words("best", name=…)`` fills in a sentence.

    >>> Words("en")("foot_table", length=64), Words("zh").list(["RoPE", "T5", "ALiBi"])
    ('past its table of 64 positions', 'RoPE、T5 和 ALiBi')
    >>> Words("en")("baseline_lower", items=["ALiBi"]), Words("en")("baseline_lower", items=["ALiBi", "T5"])
    ('ALiBi is lower', 'ALiBi and T5 are lower')
    """

    def __init__(self, lang: str, call: str = "write_report") -> None:
        if lang not in LANGUAGES:
            raise unknown("lang", lang, LANGUAGES, call=call)
        self._lang, self._texts = lang, texts(lang)

    def __call__(self, key: str, /, **fields: Any) -> str:
        """The text filled in; a list among the fields is joined, and its length, or else ``n``, chooses the form."""
        count = fields.get("n")
        for name, value in fields.items():
            if isinstance(value, list):
                count = len(value) if count is None else count
                fields[name] = self.list(value)
        found = self._texts[key]
        form = found if isinstance(found, str) else found[count != 1]
        return self._tidy(form.format(**fields))

    def _tidy(self, said: str) -> str:
        return LOOSE.sub(lambda found: found[1] or "", said) if self._lang == "zh" else said

    def __contains__(self, key: str) -> bool:
        return key in self._texts

    def list(self, items: Sequence[str]) -> str:
        """The items as a list in a sentence."""
        if len(items) < 2:
            return "".join(items)
        return self._tidy(self("comma").join(items[:-1]) + self("and") + items[-1])

    def capital(self, key: str) -> str:
        """The text with a capital in front."""
        said = self(key)
        return said[0].upper() + said[1:]

    def name(self, label: str, variant: str = AS_TRAINED) -> str:
        """What a row is called; a window and a repair carry the name of the model they belong to."""
        first, space, rest = label.partition(" ")  # labels of a sweep carry settings after the name
        own = NAMES.get(first, first) + space + rest
        if variant == AS_TRAINED:
            return own
        if variant == WINDOW:
            return self("window_name", name=own)
        return self._tidy(f"{own} + {self.variant(variant)}")

    def variant(self, variant: str) -> str:
        """What a repair is called where the model it belongs to is known."""
        repair, tuned, steps = variant.partition(", tuned ")
        name = self(VARIANTS[repair]) if repair in VARIANTS else NAMES.get(repair, repair)
        return self("tuned", name=name, steps=steps.removesuffix(" steps")) if tuned else name


def number(value: float, places: int = 2) -> str:
    """The value with this many decimals and a true minus sign, never ``-0.00``.

    >>> number(1.2345), number(-0.001), number(-3.14159, 1)
    ('1.23', '0.00', '−3.1')
    """
    text = f"{value:.{places}f}"
    if float(text) == 0:
        text = text.lstrip("-")
    return text.replace("-", "−")


def signed(value: float, places: int = 2) -> str:
    """The value with its sign in front, for differences.

    >>> signed(0.5), signed(-0.5), signed(0.0)
    ('+0.50', '−0.50', '0.00')
    """
    text = number(value, places)
    return text if text.startswith("−") or float(text) == 0 else f"+{text}"


def percent(value: float) -> str:
    """A share as per cent.

    >>> percent(0.494), percent(1.0), percent(0.9996)
    ('49.4%', '100%', '100.0%')
    """
    scaled = 100 * value
    return f"{scaled:.0f}%" if scaled == round(scaled) else f"{scaled:.1f}%"


def plain(value: float) -> str:
    """A limit with no more digits than it needs, three decimals at most.

    >>> plain(0.5), plain(0.07), plain(0.0312345)
    ('0.5', '0.07', '0.031')
    """
    return f"{round(value, 3):g}".replace("-", "−")


def count(value: float) -> str:
    """A whole number with thin spaces between thousands.

    >>> count(613376)
    '613\\u202f376'
    """
    return f"{value:,.0f}".replace(",", "\u202f")


def short_count(value: float) -> str:
    """A whole number in three digits and a letter.

    >>> short_count(613376), short_count(10_800_000), short_count(950)
    ('613 k', '10.8 M', '950')
    """
    return _in_units(value, {" G": 1e9, " M": 1e6, " k": 1e3}, "")


def size(value: float) -> str:
    """Bytes in binary units.

    >>> size(123456789), size(512)
    ('118 MiB', '512 B')
    """
    return _in_units(value, {" GiB": 2**30, " MiB": 2**20, " KiB": 2**10}, " B")


def _in_units(value: float, units: dict[str, float], least: str) -> str:
    unit = next((unit for unit, step in units.items() if value >= step), None)
    return f"{value:.0f}{least}" if unit is None else f"{value / units[unit]:.3g}{unit}"


def ratio(length: int, trained: int) -> str:
    """A length as a multiple of the trained one.

    >>> ratio(512, 64), ratio(16, 64), ratio(22, 20)
    ('8×', '¼×', '1.1×')
    """
    value = length / trained
    return FRACTIONS.get(value) or f"{value:.3g}×"
