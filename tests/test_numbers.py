"""Measured numbers of README, docs and experiments: written from committed files, and none beside them.

A numeral counts as measured where it has a unit of measurement, is a decimal or has an exponent, and stands in a
sentence or a table. Code, formulas, headings and links are left out; whatever else is no measurement (a bar, a version,
a level of confidence) is named in ALLOWED.
"""

from __future__ import annotations

import doctest
import json
import re
from pathlib import Path

import pytest

import experiment_tables
import lab_tables
import make_numbers
import make_report_picture
import measured
import speed_tables
from whorl.lab.report import write_json, write_report
from whorl.results import ComparisonResult

ROOT = Path(__file__).parent.parent
PAGES = list(make_numbers.pages())
WHOLE = {"docs/families.md", "docs/programs.md"}  # made from the code as a whole, by generators of their own

# What is left out of a page before numerals are looked for, each replaced by blanks.
APART = [
    r"<!--table .*?<!--/table-->",
    r"<!--n .*?<!--/n-->",
    r"^## The claims\n.*",  # made by docs/make_encoding_pages.py
    r"```.*?```",
    r"`[^`\n]+(?:\n[^`\n]+)?`",
    r"\]\([^)]*\)",
    r"^(?:#| {4}).*?$",
]
UNIT = r"(?:%|µs|ms|s|×(?! ?\d)|times(?!\s+the\b)|MiB|GiB|GB|bits?|nats|points?|tokens/s|M parameters)(?!\w)"
NUMERAL = r"\d[\d,]*(?:\.\d+)?"
MEASURED = re.compile(
    rf"(?<![\w.^−]){NUMERAL}\s?{UNIT}|(?<![\w.])\d+\.\d+(?:e-?\d+)?|(?<![\w.])\d+e-\d+|\b\d+ of (?:the )?\d+"
)

# Numerals that are no measurements, by page, with the words that tell what they are.
ALLOWED = {
    "README.md": ["Apache-2.0", "a decoder of 25 M parameters"],
    "docs/claims.md": [
        "a mean rise of at most 0.15 bits per byte",
        "rises by at most 0.15 bits per byte",
        "against a full pass, to 1e-6",
        "are others; to 1e-6",
        "to 0.001, which its row says",
        "changes a vector, to 1e-9",
        "to 1e-7; no row where none",
    ],
    "docs/concepts.md": [
        "99 % of the weight",
        "18 of 64",
        "up to 8.2e-8 radian per position",
        "off by at most 3.1e-8, which is float32's rounding of numbers just below 1, 3.0e-8, and 1e-9 for the angles",
    ],
    "docs/lab.md": [
        "comes 30 s after the one before",
        "at most 0.5 bits above",
        "Ten differences at 95 %",
        "keeps it at 5 %",
        "Where it is 0.2 bits",
        "at most 0.15 bits",
        "the lower end is above 0.5",
        "a rate of 5 % is known",
        "most differences of 0.05 bits",
        "false calls is above 5 %",
        "Runs of 0.1.0",
        "At most 128 MiB",
        "AdamW (0.9, 0.95) with weight decay 0.1",
        "a cosine to 10 %",
    ],
    "docs/learning-path.md": ["24 and 8 bits", "section 3.5", "sections 3.2 and 3.4"],
    "docs/performance.md": [
        "at the speed of a copy, and 3 µs",
        "(bar 1.4), and no encoding may take more than 1.3 times",
        "torch 2.11 (CUDA 13), triton 3.6",
        "bar 93 %",
        "its bar of 96 %",
        "tables take 16 MiB",
        "than the 4 MiB that run",
        "The bars are 0.60 and 2.5 ms",
        "torch 2.13, AMD EPYC",
        "The bars are 1.3 into given memory and 1.4 out of place",
        "results of 32 MiB and more",
        "The bar of 8 µs",
        "a decoder of 25 M parameters",
        "too little (bar 0.97)",
        "(bars 1.5 and 1.4)",
    ],
    "experiments/ablations.md": ["Student's 95 % interval", "two above 0.75"],
    "experiments/matching.md": [
        "by 1.5 points on its test part",
        "0.11 M parameters",
        "Student's 95 % interval over 3 seeds; chance is 50 %",
        "the 1.5 points of the paper",
    ],
    "experiments/trained-questions.md": ["Student's 95 % intervals"],
}


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def bare(text: str, allowed: list[str]) -> list[str]:
    """The measured numerals of a page that no generator wrote, each with the words around it."""
    for pattern in APART:
        text = re.sub(pattern, lambda found: re.sub(r"\S", " ", found[0]), text, flags=re.DOTALL | re.MULTILINE)
    for words in allowed:
        text = re.sub(r"\s+".join(map(re.escape, words.split())), " ", text)
    return [text[max(0, found.start() - 40) : found.end() + 20].strip() for found in MEASURED.finditer(text)]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_numbers_are_those_of_the_files(page):
    text = page.read_text(encoding="utf-8")
    assert make_numbers.filled(text) == text, f"{name_of(page)} is old. Run make docs."


@pytest.mark.parametrize("page", [page for page in PAGES if name_of(page) not in WHOLE], ids=name_of)
def test_no_measured_number_stands_beside_them(page):
    found = bare(page.read_text(encoding="utf-8"), ALLOWED.get(name_of(page), []))
    assert found == [], "Name the file that holds each (docs/measured.py), or what else it is, in ALLOWED."


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_marks_leave_markdown_as_it_is(page):
    """A line that begins with a mark would be HTML, its words not set; a bar in a mark would end a cell of a table."""
    text = page.read_text(encoding="utf-8")
    assert re.findall(r"^ *<!--n .*", text, flags=re.MULTILINE) == []
    rows = re.findall(r"^\|.*", text, flags=re.MULTILINE)
    assert [mark for row in rows for mark in re.findall(r"<!--.*?-->", row) if "|" in mark] == []


@pytest.mark.parametrize(("name", "phrase"), [(name, phrase) for name, own in ALLOWED.items() for phrase in own])
def test_what_is_allowed_is_there(name, phrase):
    assert phrase in " ".join((ROOT / name).read_text(encoding="utf-8").split()), "Gone: take it out of ALLOWED."


@pytest.mark.parametrize(
    "sentence",
    [
        "It runs at 94 % of a copy.",
        "A step takes 19 µs, or 0.3 ms.",
        "It is 2.8 times as fast.",
        "8× as slow",
        "The loss rises by 1.4 bits.",
        "| RoPE | 0.995 | 2.85 |",
        "an error of 3e-8",
        "It finds 64 of 100.",
        "takes 156 MiB, 552 GB and 30 s",
        "10.8 M parameters",
    ],
)
def test_a_measured_number_is_seen(sentence):
    assert bare(sentence, [])


@pytest.mark.parametrize(
    "sentence",
    [
        "trained at 512 bytes and tested to 8,192",
        "`whorl bench tables` takes `--set base=0.5`",
        "(1, 32, 4096, 128) and 1,048,576 × 64 entries",
        "| N3 | w_i = 10000^(−2i/d) | 24 heads |",
        "[a report](2.5-x.html) at 4 times the trained length",
        "takes <!--n gpu-decoding: steps/2048/rope/graph_us as .1f-->26.4<!--/n--> µs",
        "```\n1.5 s\n```",
    ],
)
def test_a_definition_is_none(sentence):
    assert bare(sentence, []) == []


def test_a_number_that_was_changed_by_hand_is_written_anew():
    page = "takes <!--n gpu-decoding: steps/2048/rope/graph_us as .1f-->9.9<!--/n--> µs"
    steps = measured.document("gpu-decoding")["steps"]
    (value,) = [one["graph_us"] for one in steps if one["keys"] == 2048 and one["encoding"] == "rope"]
    assert make_numbers.filled(page) == page.replace("9.9", f"{value:.1f}")


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("no-such-file: a as .1f", "no committed result is called 'no-such-file'"),
        ("matching: gaps as .1f", "matching: 'gaps' leads to no number"),
        ("gpu-decoding: steps/2048/nope/graph_us as .1f", "gpu-decoding has no 'nope' on the way"),
    ],
)
def test_a_number_that_is_in_no_file_is_an_error(said, message):
    with pytest.raises(LookupError, match=message):
        measured.number(said)


def test_a_table_that_nobody_makes_is_an_error():
    with pytest.raises(LookupError, match="no table is called 'nope'"):
        make_numbers.filled("<!--table nope gpu-tiles-->\n<!--/table-->")


def test_of_several_dates_the_newest_counts(tmp_path, monkeypatch):
    results = tmp_path / "benchmarks" / "results"
    results.mkdir(parents=True)
    for date in ("2026-01-01", "2026-02-01"):
        (results / f"{date}-tables-x.json").write_text("{}")
    monkeypatch.setattr(measured, "ROOT", tmp_path)
    assert measured.source.__wrapped__("tables-x").name == "2026-02-01-tables-x.json"


def test_the_picture_of_the_report_is_that_of_the_comparison():
    pytest.importorskip("jinja2")
    made = make_report_picture.picture(make_report_picture.REPORT.read_text(encoding="utf-8"))
    assert make_report_picture.PICTURE.read_text(encoding="utf-8") == made, "docs/report.svg is old. Run make docs."
    assert "var(" not in made and "@media" not in made


def test_the_committed_report_is_in_the_words_of_the_code(tmp_path):
    pytest.importorskip("jinja2")
    kept, report = make_report_picture.COMPARISON, make_report_picture.REPORT
    result = ComparisonResult.read(write_json(ComparisonResult.read(kept), tmp_path / "comparison.json"))
    page = write_report(result, tmp_path / "report.html").read_text(encoding="utf-8")
    assert json.loads(kept.read_text(encoding="utf-8"))["verdict"] == result.data["verdict"], "Run make docs."
    assert report.read_text(encoding="utf-8") == page, f"{report.name} is old. Run make docs."


def test_a_cell_of_a_comparison_is_rounded_once():
    """NTK at 1,024 is 1.5646 in the first recorded comparison: 1.56, where 1.565 rounded again would be 1.57."""
    data = json.loads((ROOT / "experiments" / "gpu-comparison" / "comparison.json").read_text(encoding="utf-8"))
    header, _, *rows = lab_tables.losses("gpu-comparison")
    (column,) = [i for i, name in enumerate(cells(header)) if name == "1,024"]
    shown = {cells(row)[0]: cells(row)[column] for row in rows}
    names = {("rope", "as trained"): "RoPE", ("rope", "ntk"): "RoPE + NTK", ("t5", "as trained"): "T5"}
    for key, name in names.items():
        (row,) = [one for one in data["rows"] if (one["label"], one["variant"]) == key]
        (cell,) = [one for one in row["by_length"] if one["length"] == 1024]
        assert shown[name] == f"{cell['bits_per_byte']['same_last']['mean']:.2f}"


def test_a_speed_is_the_inverse_of_the_recorded_ratio():
    (row,) = [cells(row) for row in speed_tables.rotation() if "(1, 32768, 32/8, 128), bhld" in row]
    file = max((ROOT / "benchmarks" / "results").glob("*-rotary-1x32768-peers-h200.json"))
    group = json.loads(file.read_text(encoding="utf-8"))["groups"][0]
    ratios = {one["name"]: one["ratio"] for one in group["results"]}
    assert group["name"] == "forward, bhld, bfloat16"
    assert row[1] == f"{100 / ratios['whorl, half']:.0f} % / {100 / ratios['whorl, interleaved']:.0f} %"
    assert row[3] == f"{100 / ratios['torch.compile']:.0f} %"


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


@pytest.mark.parametrize("module", [measured, lab_tables, experiment_tables, speed_tables])
def test_examples_of_the_generators_run(module):
    assert doctest.testmod(module).failed == 0
