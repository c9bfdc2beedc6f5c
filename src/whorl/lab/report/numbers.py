"""Numbers as a reader wants them: fixed places, true minus signs, lengths as multiples of the trained one."""

from __future__ import annotations

FRACTIONS = {0.125: "⅛×", 0.25: "¼×", 0.5: "½×", 0.75: "¾×"}


def number(value: float, places: int = 2) -> str:
    """The value with this many decimals, never ``-0.00``.

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
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g} {letter}"
    return f"{value:.0f}"


def size(value: float) -> str:
    """Bytes in binary units.

    >>> size(123456789), size(512)
    ('118 MiB', '512 B')
    """
    for step, unit in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if value >= step:
            return f"{value / step:.3g} {unit}"
    return f"{value:.0f} B"


def ratio(length: int, trained: int) -> str:
    """A length as a multiple of the trained one.

    >>> ratio(512, 64), ratio(16, 64), ratio(22, 20)
    ('8×', '¼×', '1.1×')
    """
    value = length / trained
    return FRACTIONS.get(value) or f"{value:.3g}×"
