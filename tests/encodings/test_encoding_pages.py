"""The pages of the encodings say what the code and the ledger say today."""

import runpy
from pathlib import Path

from whorl import registry

DOCS = Path(__file__).parents[2] / "docs"


def test_pages_are_up_to_date():
    made = runpy.run_path(str(DOCS / "make_encoding_pages.py"))["pages"]()
    there = {path.name: path.read_text(encoding="utf-8") for path in (DOCS / "encodings").glob("*.md")}
    assert set(there) == {"README.md", *(f"{name}.md" for name in registry.names())}
    for name, text in made.items():
        assert there[name] == text, f"docs/encodings/{name} is old. Run make docs."
