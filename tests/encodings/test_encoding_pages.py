"""The pages of the encodings say what the code and the ledger say today."""

import re
import runpy
from pathlib import Path

import pytest

from whorl import claims, registry

DOCS = Path(__file__).parents[2] / "docs"


def test_pages_are_up_to_date():
    made = runpy.run_path(str(DOCS / "make_encoding_pages.py"))["pages"]()
    there = {path.name: path.read_text(encoding="utf-8") for path in (DOCS / "encodings").glob("*.md")}
    assert set(there) == {"README.md", *(f"{name}.md" for name in registry.names())}
    for name, text in made.items():
        assert there[name] == text, f"docs/encodings/{name} is old. Run make docs."


def test_the_list_of_claims_is_up_to_date():
    made = runpy.run_path(str(DOCS / "make_encoding_pages.py"))["claims_page"](claims.verify())
    assert (DOCS / "claims.md").read_text(encoding="utf-8") == made, "docs/claims.md is old. Run make docs."


@pytest.mark.parametrize("name", registry.names())
def test_every_page_has_a_paper_a_formula_settings_losses_and_claims_with_anchors(name):
    page = (DOCS / "encodings" / f"{name}.md").read_text(encoding="utf-8")
    about, _, rest = page.partition("```python")
    assert re.search(r"\b(19|20)\d\d\b", about), "no paper"
    assert "```text" in about, "no formula"
    for heading in ("## Settings", "## Past the trained length", "## Claims"):
        assert heading in rest, heading
    assert f'<a id="{name}.flag.relative"></a>' in rest
