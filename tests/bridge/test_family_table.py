"""whorl families: the table of the code, printed and in the documentation."""

import json
import runpy
from pathlib import Path

from whorl.bridge.family_table import HEADER, families
from whorl.cli.app import run
from whorl.dialects.families import ALIASES, FAMILIES, UNROTATED

DOCS = Path(__file__).parent.parent.parent / "docs"


def test_every_family_of_the_tables_has_one_row():
    names = [row["family"] for row in families()]
    assert sorted(names) == sorted([*FAMILIES, *UNROTATED, *ALIASES])
    assert len(set(names)) == len(names)


def test_a_row_says_what_a_silent_file_means():
    rows = {row["family"]: row for row in families()}
    assert rows["gptj"]["layout"] == "interleaved"
    assert rows["deepseek_v4"]["rotated"] == "trailing 0.125"
    assert rows["gemma3"]["base"] == "1e+06 (full_attention), 10000 (sliding_attention)"
    assert rows["cohere2"]["layers without rotation"] == "full_attention"
    assert rows["kimi_k2"]["positions"] == "as deepseek_v3"
    assert rows["bloom"]["positions"] == "ALiBi"
    assert rows["dinov3_vit"]["positions"] == "axial RoPE, dinov3" and rows["dinov3_vit"]["base"] == "100"
    assert rows["llama4_vision"]["positions"] == "axial RoPE, llama4_vision"
    assert rows["neomme"]["positions"] == "M-RoPE, alternating"
    assert rows["nanochat"]["beside"] == "pairs turn backwards"
    assert rows["nemotron_h"]["positions"] == "its attention has no position encoding"
    assert rows["llama"]["read in"] == "transformers 5.22.2"
    assert rows["telechat3"]["read in"] == "vLLM or copies"
    assert rows["kimi_k2"]["read in"] == "reported, not opened"
    assert rows["exaone4_5"]["read in"] == "transformers 5.22.2"


def test_the_command_prints_the_table(capsys):
    assert run(["families", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == families()
    assert run(["families"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert len(out) == len(families()) + 1 and all(name in out[0] for name in HEADER)


def test_the_page_is_up_to_date():
    made = runpy.run_path(str(DOCS / "make_family_page.py"))["page"]()
    assert (DOCS / "families.md").read_text(encoding="utf-8") == made, "docs/families.md is old. Run make docs."
