"""whorl families: the table of the code, printed and in the documentation."""

import json
import runpy
from pathlib import Path

import pytest

import whorl
from whorl.bridge.family_table import HEADER, families
from whorl.cli.app import run
from whorl.dialects.class_defaults import all_defaults
from whorl.dialects.families import ALIASES, ALIASES_BY_POSITIONS, FAMILIES, UNROTATED
from whorl.dialects.images import TOWERS
from whorl.encodings.rope import RopeConfig
from whorl.errors import WhorlError

DOCS = Path(__file__).parent.parent.parent / "docs"


def test_every_family_of_the_tables_has_one_row():
    names = [row["family"] for row in families()]
    by_positions = {name for name, _ in ALIASES_BY_POSITIONS}
    towers = {name.removesuffix("_model") for name in TOWERS}
    assert {*FAMILIES, *UNROTATED, *ALIASES, *towers, *by_positions} <= set(names)
    assert len(set(names)) == len(names)


def test_every_class_of_transformers_that_rotates_has_a_row():
    names = {row["family"] for row in families()}
    rotating = [name for name, one in all_defaults().items() if one.get("rope_parameters")]
    assert len(rotating) > 200
    assert not [name for name in rotating if name.removesuffix("_model").removesuffix("_text") not in names]


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
    assert rows["mlcd_vision"]["positions"] == rows["qwen2_vl_vision"]["positions"] == "axial RoPE, qwen_vision"
    assert rows["sam3_vit"]["beside"] == "windows in most layers"
    assert rows["llama4"]["layers without rotation"] == "one in 4, or by no_rope_layers"
    assert rows["granite"]["positions"] == rows["olmo2"]["positions"] == "RoPE"
    assert rows["zamba2"]["beside"] == "no positions without use_mem_rope"
    assert rows["mpt"]["beside"].startswith("where alibi is false a learned table in llm-foundry's code")
    assert rows["musicflamingo"]["positions"] == "those of its text_config"
    assert rows["new"]["beside"] == "as gte where position_embedding_type is rope"
    assert rows["neomme"]["positions"] == "M-RoPE, alternating"
    assert rows["nanochat"]["beside"] == "pairs turn backwards"
    assert rows["nemotron_h"]["positions"] == "its attention has no position encoding"
    assert rows["llama"]["read in"] == "transformers 5.22.2"
    assert rows["telechat3"]["read in"] == "vLLM's telechat3_scaling_rope"
    assert rows["kimi_k2"]["read in"] == "reported, not opened"
    assert rows["exaone4_5"]["read in"] == "transformers 5.22.2"


def silent_file(name: str) -> dict[str, str] | None:
    """A file of a family that states nothing but its name, where transformers has a class with all the sizes."""
    classes = [f"{name}{end}" for end in ("", "_text", "_model", "_text_model")]
    rotating = [one for one in classes if {"rope_parameters", "rotary_dim"} & all_defaults().get(one, {}).keys()]
    return {"model_type": rotating[0]} if rotating else None


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_table_says_what_the_reader_makes_of_a_silent_file():
    compared = 0
    for row in families():
        given = silent_file(row["family"]) if row["positions"].startswith(("RoPE", "M-RoPE")) else None
        try:
            encodings = [group.encoding for group in whorl.read(given).groups] if given else []
        except WhorlError:  # sizes that the class does not have, or that contradict each other
            continue
        parts = [one.config for encoding in encodings for one in getattr(encoding, "encodings", [encoding]) if one]
        for config in (one for one in parts if isinstance(one, RopeConfig)):
            assert f"{config.base:g}" in row["base"], row
            assert config.layout == row["layout"], row
            assert turned(config, row["rotated"]), row
            compared += 1
    assert compared > 180


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_table_names_layers_without_rotation_and_queries_that_grow():
    """Of every family that a silent file can be read of, no row is silent where the reader has something to say."""
    found = {"still": 0, "grow": 0}
    for row in families():
        given = silent_file(row["family"]) if row["positions"].startswith(("RoPE", "M-RoPE")) else None
        try:
            groups = [group.layers for group in whorl.read(given).groups if group.layers.attention] if given else []
        except WhorlError:
            continue
        names = [[one.name for one in layers.encodings] for layers in groups]
        still = [
            layers.kind for layers, own in zip(groups, names, strict=True) if not any("rope" in one for one in own)
        ]
        said = row["layers without rotation"]
        if row["family"] != "zamba2":  # whose layers all rotate or none does, as its row says
            assert bool(still) == bool(said) and (set(still) <= {said} or "one in 4" in said), row
        grow = any("llama4_temperature" in own for own in names)
        grow |= any("queries that grow" in one for layers in groups for one in layers.unsupported)
        assert grow == ("grow with their position" in row["beside"]), row
        found["still"] += bool(still)
        found["grow"] += grow
    assert found["still"] >= 12 and found["grow"] >= 4


def turned(config: RopeConfig, said: str) -> bool:
    """Whether one of the parts of a head that a row says are rotated is this one's."""
    for one in (part.partition(" (")[0].split() for part in said.split(", ")):
        if one[-1] == "dimensions":
            share = float(one[1])
        elif one[0] in ("all", "fastest"):  # of all pairs some stand still
            share = config.head_dim
        else:
            share = float(one[1]) * config.head_dim
        if abs(share - config.rotary_dim) < 2:  # pairs are whole
            return True
    return False


def test_the_command_prints_the_table(capsys):
    assert run(["families", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == families()
    assert run(["families"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert len(out) == len(families()) + 1 and all(name in out[0] for name in HEADER)


def test_the_page_is_up_to_date():
    made = runpy.run_path(str(DOCS / "make_family_page.py"))["page"]()
    assert (DOCS / "families.md").read_text(encoding="utf-8") == made, "docs/families.md is old. Run make docs."
