"""Encodings of a user's own, as files that a test writes."""

from __future__ import annotations

from pathlib import Path

from whorl import registry

ENCODING = """
import whorl
from whorl.config import Config, config
from whorl.encodings.base import Claims
from whorl.encodings.bias import DistanceBias


@config
class {title}Config(Config):
    name = "{name}"
    heads: int
    amount: float = 0.01


class {title}(DistanceBias):
    \"\"\"Discounts a key by its distance times a number.\"\"\"

    Config = {title}Config

    @property
    def claims(self):
        return Claims(relative=True, norm_preserving=True, linear_attention=False, decays=True, extrapolates=True)

    def bias_of(self, head, distance):
        return -self.config.amount * distance


whorl.register({title})
"""


def write_plugin(path: Path, *names: str) -> Path:
    """A file that registers encodings of these names."""
    path.write_text("".join(ENCODING.format(name=name, title=name.title()) for name in names))
    return path


def forget(*names: str) -> None:
    """Makes encodings that a test registered unknown again."""
    for name in names:
        registry.ENCODINGS.pop(name, None)
