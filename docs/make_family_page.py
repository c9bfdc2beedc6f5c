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

How each family of models handles positions, as `whorl.read` and `whorl inspect` take it. Layout, rotated part, base and
scaling are those of a file that does not state them; what a file states wins, under a name that the family's class
reads: any other field counts for nothing, and the lint names it. All families of transformers {version()} that rotate
are here. A family that is not here is unknown, and is read as Llama's only with a warning, which is an error for
`whorl inspect`.

- *rotated* is the part of a head that is turned: all, a share at its start (leading) or end (trailing), or the fastest
  share of its pairs. In latent attention (DeepSeek-V2 and later) it is counted in the `qk_rope_head_dim` dimensions.
- *beside* is what else the family's code does, or what a field of the file changes. Windows and softcaps are left out:
  `whorl inspect` shows those of a file.
- *read in* is where that was read: in a version of transformers, in vLLM or copies of the model's own code, or nowhere:
  names that were only reported to be another family's were not opened.

{markdown()}

`whorl families` prints this table. The page is made by `make docs`.
"""


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE}")
