"""Writes the report of a committed comparison anew, and docs/report.svg, README's picture: its first chart as a file.

The numbers stay what the runs gave; the verdict in the comparison's JSON and the page are in the words of today's code.

python docs/make_report_picture.py
"""

from __future__ import annotations

import re
from pathlib import Path

from whorl.lab.report import PAGE, write_json, write_report
from whorl.results import ComparisonResult

ROOT = Path(__file__).resolve().parent.parent
COMPARISON = ROOT / "experiments" / "demo-comparison" / "comparison.json"
REPORT = COMPARISON.with_name(PAGE)
PICTURE = ROOT / "docs" / "report.svg"

RULE = re.compile(r"([^{}]+){([^{}]*)}")
MEDIA = re.compile(r"@media[^{]*{(?:[^{}]*{[^{}]*})*[^{}]*}")
DRAWN = re.compile(r"\.(panel [.t]|axis|trained line|line|bar|band|tie|mark|ref|s\d)")


def picture(html: str) -> str:
    """The first wide chart of a report with its share of the style, in the colours of a light page."""
    style = html[html.index("<style>") + 7 : html.index("</style>")]
    start = html.index('<svg class="panel wide"')
    chart = html[start : html.index("</svg>", start) + 6]
    style = MEDIA.sub("", re.sub(r"/\*.*?\*/", "", style, flags=re.DOTALL))
    rules = [(selector.strip(), body) for selector, body in RULE.findall(style)]
    colours = dict(
        pair for selector, body in rules if selector == ":root" for pair in re.findall(r"(--\w+): ([^;]+)", body)
    )
    kept = [f"{selector} {{{body}}}" for selector, body in rules if DRAWN.match(selector)]  # not the panel's own place
    resolved = re.sub(r"var\((--\w+)\)", lambda name: colours[name[1]], "\n".join(kept))
    paper = f'<rect width="100%" height="100%" fill="{colours["--paper"]}"/>'
    head = chart[: chart.index(">") + 1]
    width, height = re.findall(r"viewBox=.0 0 (\S+) (\S+?)\"", head)[0]
    opened = head.replace("<svg ", f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" ')
    return f"{opened}\n<style>\n{resolved}\n</style>\n{paper}\n{chart.removeprefix(head)}\n"


if __name__ == "__main__":
    result = ComparisonResult.read(write_json(ComparisonResult.read(COMPARISON), COMPARISON))
    PICTURE.write_text(picture(write_report(result, REPORT).read_text(encoding="utf-8")), encoding="utf-8")
    print(REPORT, PICTURE, sep="\n")
