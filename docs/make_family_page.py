"""Writes docs/families.md: how each family of models handles positions, from the table in the code.

python docs/make_family_page.py
"""

from __future__ import annotations

from pathlib import Path

from whorl.bridge.family_table import markdown
from whorl.dialects.class_defaults import version

PAGE = Path(__file__).parent / "families.md"


def page() -> str:
    """The text of the page."""
    return f"""# Families

How each family of models handles positions, as `whorl.read` and `whorl inspect` take it. Layout, rotated part and base
are those of a file that is silent about them; what a file states goes before, by a name that the family's class reads:
any other field counts for nothing, and the lint names it. All families of transformers {version()} that rotate are
here. A family that is not here is unknown, and read as Llama's only with a warning.

Queries and keys are where the family's code has them: the rotated part is counted in the head that it rotates, which
for latent attention (DeepSeek-V2 and later) is the `qk_rope_head_dim` dimensions beside the others.

{markdown()}

`whorl families` prints this table. The page is made by `make docs`.
"""


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE}")
