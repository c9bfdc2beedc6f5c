"""Writes docs/encodings, a page for every registered encoding, and the list of claims at the end of docs/claims.md.

Pages are made from an encoding's docstring, its config, the ledger of claims and the committed comparisons.

    python docs/make_encoding_pages.py

A page holds verdicts and bounds, which are the same on every machine; the numbers behind them differ in their last
digits, and ``whorl verify NAME`` computes them.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from collections.abc import Callable
from itertools import groupby
from pathlib import Path

from whorl import claims, registry
from whorl.claims import evidence, overview
from whorl.claims.evidence import short_name
from whorl.claims.ledger import BETWEEN, COMPUTED, FLAGS
from whorl.claims.redirects import REDIRECTS
from whorl.claims.report import TITLES
from whorl.cli import examples, listing
from whorl.config import Config
from whorl.result_rows import AS_TRAINED

# A line of a config's docstring that explains a setting: its name, a gap, what it is.
NAMED = r"^\w+ {2,}\S"

FOLDER = Path(__file__).parent / "encodings"
CLAIMS = Path(__file__).parent / "claims.md"
LIST = "## The claims\n"  # where the part of docs/claims.md begins that is made here


def pages(rows: list[claims.Row] | None = None) -> dict[str, str]:
    """The text of every page, the index among them, by its file's name."""
    rows = claims.verify() if rows is None else rows
    out = {f"{name}.md": page(name, [row for row in rows if name in row.claim.about]) for name in registry.names()}
    return {"README.md": index()} | out


def index() -> str:
    """All encodings side by side, each family by itself."""
    encodings = {name: registry.build_for(name, **registry.MODEL) for name in registry.names()}
    rows = sorted((overview.row(name, one) for name, one in encodings.items()), key=lambda row: row["family"])
    lines = ["# Encodings", ""]
    for family, members in groupby(rows, key=lambda row: row.pop("family")):
        members = [{**row, "encoding": f"[{row['encoding']}]({row['encoding']}.md)"} for row in members]
        lines += [f"## {family[0].upper()}{family[1:]}", "", *overview.table(members), ""]
    lines += [f"Parameters are those of {overview.sizes()}. {overview.HOW_TO_READ}", ""]
    return (
        "\n".join([*lines, "`whorl list --table` adds times on your machine. These pages are made by `make docs`."])
        + "\n"
    )


def page(name: str, rows: list[claims.Row]) -> str:
    """The page of one encoding: what it is, how it is made, its facts, its losses by length, its claims."""
    encoding, filled = examples.build(name)
    cls = type(encoding)
    facts = listing.facts(encoding)
    title, _, text = listing.description(cls).partition("\n")
    given = ", ".join(f"{key}={value!r}" for key, value in filled.items())
    lines = [f"# {cls.__name__}", "", *prose(title), "", *prose(text.strip("\n")), "", *shared_text(cls)]
    lines += ["```python", "import whorl", "", f"encoding = whorl.{cls.__name__}({given})", "```", ""]
    lines += [
        "| | |",
        "|---|---|",
        f"| name | `{name}` |",
        f"| position enters | {listing.enters(facts)} |",
        f"| parameters, made as above | {listing.parameters(facts['parameters'])} |",
        f"| a KV cache keeps | {'raw keys' if encoding.key_policy == 'raw' else 'keys as they are used'} |",
        f"| for, made as above | {'causal' if encoding.causal_only else 'causal and bidirectional'} attention |",
        f"| depends on the length served | {'yes' if facts['length_dependent'] else 'no'} |",
        "",
        *settings(cls.Config),
        *losses(name),
        *ledger(name, rows),
    ]
    return "\n".join(lines).rstrip() + "\n"


def shared_text(cls: type) -> list[str]:
    """Formulas and papers of an encoding whose file holds others as well: what the file says of all of them."""
    text = inspect.cleandoc(sys.modules[cls.__module__].__doc__ or "")
    return [] if listing.description(cls) == text else [*prose(text), ""]


def prose(text: str) -> list[str]:
    """Paragraphs as they are; formulas, which are indented, and examples between fences."""
    out: list[str] = []
    fence = ""
    for line in text.splitlines():
        kind = (
            "pycon" if line.startswith(">>> ") or (fence == "pycon" and line) else "text" if line[:4] == "    " else ""
        )
        if kind != fence:
            out += ["```", ""] if fence else []
            out += ["", f"```{kind}"] if kind else []
            fence = kind
        out.append(line.removeprefix("    ") if fence else line.replace("``", "`"))
    return [*out, "```"] if fence else out


def settings(config: type[Config]) -> list[str]:
    """The settings of a config with their defaults, and what its docstring says of them."""
    texts = [inspect.cleandoc(cls.__dict__.get("__doc__") or "") for cls in config.__mro__ if issubclass(cls, Config)]
    said = [
        text.partition("\n")[2].strip("\n").replace("``", "") for text in texts if re.search(NAMED, text, re.MULTILINE)
    ]
    lines = ["## Settings", "", "| setting | default |", "|---|---|"]
    for field in dataclasses.fields(config):
        default = "must be given" if field.name in config.required() else f"`{field.default!r}`"
        lines.append(f"| `{field.name}` | {default} |")
    if len(lines) == 4:
        return ["## Settings", "", "None.", ""]
    return [*lines, "", *(line for text in said for line in ("```text", text, "```", ""))]


def losses(name: str) -> list[str]:
    """Bits per byte by length in every committed comparison that trained the encoding, or repaired a RoPE with it."""
    served = evidence.variants(name) if name == "rope" else [evidence.REPAIRS[name]] if name in evidence.REPAIRS else []
    found = [(name, AS_TRAINED, one) for one in evidence.losses(name)]
    found += [("rope", variant, one) for variant in served for one in evidence.losses("rope", variant)]
    if not found:
        return ["## Past the trained length", "", "Not trained here yet.", ""]
    ratios = sorted({ratio for _, _, one in found for ratio in one.by_ratio})
    lines = [
        "## Past the trained length",
        "",
        "The loss in bits per byte, always on the same last bytes of a text; a column is how much of the text the "
        "model sees, as a multiple of the length it was trained on. *found again* is the share of values hidden in a "
        "text that the model retrieves, at the longest length.",
        "",
    ]
    lines += [
        f"| | {' | '.join(f'{ratio:g}×' for ratio in ratios)} | found again | from |",
        f"|---|{'---:|' * (len(ratios) + 1)}---|",
    ]
    for label, variant, one in found:
        cells = [f"{one.by_ratio[ratio]:.3f}" if ratio in one.by_ratio else "" for ratio in ratios]
        said = label if variant == AS_TRAINED else f"{label}, served with {variant}"
        lines.append(
            f"| {said} | {' | '.join(cells)} | {found_again(one.source, label, variant)} | {report(one.source)} |"
        )
    return [*lines, ""]


def found_again(source: str, label: str, variant: str) -> str:
    """The share of hidden values that a row of a comparison finds at its longest length."""
    comparison = evidence.comparisons()[source]
    (row,) = [row for row in comparison.rows if (row.label, row.variant, row.beside) == (label, variant, False)]
    share = row.at("retrieval_accuracy", comparison.lengths[-1])
    return "" if share is None else f"{100 * share:.0f} %"


def ledger(name: str, rows: list[claims.Row]) -> list[str]:
    """The verdict of every claim about the encoding, those it makes of itself first."""
    lines = ["## Claims", "", f"By `whorl verify {name}`, which gives the numbers and how each is tested.", ""]
    lines += ["| claim | verdict | statement |", "|---|---|---|"]
    for row in sorted(rows, key=lambda row: not row.id.startswith(f"{name}.flag.")):
        statement = row.statement.replace("|", "\\|")
        where = read_from(row, report)
        lines.append(f"| {anchor(row.id)}`{row.id}` | {row.verdict}{where} | {statement} |")
    return lines


def read_from(row: claims.Row, link: Callable[[str], str]) -> str:
    """The committed results that a verdict was read from, as links; nothing for one that was computed."""
    sources = row.finding.source.split(BETWEEN)
    return "" if sources == [COMPUTED] else f", by {' and '.join(map(link, sources))}"


def anchor(id: str) -> str:
    """What a link to a claim leads to; it stays as long as the id does."""
    return f'<a id="{id}"></a>'


def claims_page(rows: list[claims.Row]) -> str:
    """docs/claims.md with its list of claims made anew."""
    text, _, _ = CLAIMS.read_text(encoding="utf-8").partition(LIST)
    written = [row for row in rows if row.claim.topic != FLAGS]
    lines = [
        LIST,
        f"{len(written)} written claims; the {len(rows) - len(written)} flag checks are on the pages of the "
        "[encodings](encodings/README.md). `make docs` writes this list; a link such as `claims.md#rope.relative` "
        "stays.",
    ]
    for topic, members in groupby(written, key=lambda row: row.claim.topic):
        lines += [
            "",
            f"### {TITLES[topic][0]}",
            "",
            "| claim | verdict | statement | who says it |",
            "|---|---|---|---|",
        ]
        for row in members:
            where = read_from(row, lambda source: f"[{short_name(source)}](../{source})")
            said = [text.replace("|", "\\|") for text in (row.statement, row.claim.says)]
            lines.append(f"| {anchor(row.id)}`{row.id}` | {row.verdict}{where} | {said[0]} | {said[1]} |")
    lines += [
        "",
        "### Ids of before",
        "",
        "Joined with another claim, or dropped for it.",
        "",
        "| id | now |",
        "|---|---|",
    ]
    lines += [f"| {anchor(old)}`{old}` | [{new}](#{new}) |" for old, new in REDIRECTS.items()]
    return text + "\n".join(lines) + "\n"


def report(source: str) -> str:
    """A link to the report of a committed comparison, or to the page beside another result."""
    path = Path(source)
    if path.name == "comparison.json":
        return f"[{path.parent.name}](../../{path.parent}/report.html)"
    page = path.with_suffix(".md")
    return f"[{path.stem}](../../{page if (FOLDER.parent.parent / page).is_file() else path})"


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    rows = claims.verify()
    made = pages(rows)
    for old in FOLDER.glob("*.md"):
        if old.name not in made:
            old.unlink()
    for name, text in made.items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    CLAIMS.write_text(claims_page(rows), encoding="utf-8")
    print(f"{len(made)} pages in {FOLDER}, and the claims in {CLAIMS.name}")


if __name__ == "__main__":
    main()
