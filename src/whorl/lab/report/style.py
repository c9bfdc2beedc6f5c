"""The style sheet: light and dark, phone and A4, the colours of Okabe and Ito."""

from __future__ import annotations

COLOURS = 7  # of Okabe and Ito's eight, all but the yellow, which a white page swallows: --c0, --c1 …

CSS = """
:root {
  color-scheme: light dark;
  --paper: #ffffff; --ink: #1c1d20; --muted: #5d6168; --rule: #d9dbe0; --soft: #f4f5f7; --grid: #e8eaee;
  --ref: #85888f; --warn: #8a4b00; --warn-soft: #fff4e3; --accent: #0b5c93;
  --c0: #0072b2; --c1: #d55e00; --c2: #009e73; --c3: #cc79a7; --c4: #1c1d20; --c5: #e69f00; --c6: #56b4e9;
  --sans: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Noto Sans", "Noto Sans CJK SC",
    "PingFang SC", "Hiragino Sans GB", "Microsoft YaHei", "Source Han Sans SC", "WenQuanYi Micro Hei", sans-serif;
  --mono: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", "Noto Sans Mono CJK SC", monospace;
}
@media screen and (prefers-color-scheme: dark) {
  :root {
    --paper: #15171b; --ink: #e8e9ec; --muted: #a3a8b1; --rule: #373b43; --soft: #1e2126; --grid: #2a2e35;
    --ref: #8d929b; --warn: #f0b45c; --warn-soft: #2e2618; --accent: #74b9ea;
    --c0: #3f9fdb; --c1: #ee7a2c; --c2: #1fbd90; --c3: #dd93bb; --c4: #f2f3f5; --c5: #f0b429; --c6: #9ad4f7;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.6 var(--sans); }
main { max-width: 1080px; margin: 0 auto; padding: 28px 20px 56px; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 6px; letter-spacing: -0.01em; overflow-wrap: anywhere; }
h2 { font-size: 1.25rem; margin: 46px 0 14px; padding-top: 14px; border-top: 1px solid var(--rule); }
h3 { font-size: 1rem; margin: 0 0 8px; }
p { margin: 0 0 10px; }
.facts { color: var(--muted); margin-bottom: 22px; }
.facts span + span::before { content: "·"; margin: 0 8px; }
.verdict { background: var(--soft); border-left: 4px solid var(--accent); padding: 18px 22px 16px; }
.verdict h2 { margin: 0 0 8px; padding: 0; border: 0; }
.verdict h3 { margin: 16px 0 4px; font-size: .92rem; color: var(--muted); }
.verdict .said { font-size: 1.06rem; line-height: 1.65; max-width: 84ch; margin: 0; }
.verdict ul { margin: 0; padding-left: 1.15em; max-width: 94ch; font-size: .94rem; }
.verdict li { margin: 3px 0; }
figure { margin: 0 0 34px; }
figcaption, .under { color: var(--muted); font-size: .86rem; line-height: 1.5; max-width: 90ch; margin: 8px 0 0; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 2px 18px; margin: 0 0 8px; padding: 0; }
.legend { font-size: .9rem; }
.legend li { white-space: nowrap; }
.swatch { width: 32px; height: 12px; margin-right: 7px; vertical-align: -1px; overflow: visible; flex: none; }
.panels { display: grid; gap: 14px 22px; margin-bottom: 14px; }
.pair { grid-template-columns: repeat(2, minmax(0, 1fr)); }
.one { max-width: 780px; }
.small { grid-template-columns: repeat(3, minmax(0, 1fr)); }
.panel { display: block; width: 100%; height: auto; }
.panel text { font: 12px var(--sans); fill: var(--muted); }
.panel .name { font-weight: 600; fill: var(--ink); font-size: 13px; }
.panel .unit { font-weight: 400; fill: var(--muted); }
.panel .labels text { fill: var(--ink); }
.panel .inside text { fill: var(--ink); paint-order: stroke; stroke: var(--paper); stroke-width: 4px; }
.panel .times { fill-opacity: .8; }
.axis line { stroke: var(--muted); stroke-width: 1; }
.axis .grid { stroke: var(--grid); }
.trained line { stroke: var(--ink); stroke-width: 1; stroke-dasharray: 3 3; stroke-opacity: .55; }
.panel .trained text { font-style: italic; }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.line.ref { stroke-width: 2.4; stroke-linecap: round; }
.bar { fill: none; stroke-width: 1.3; stroke-opacity: .5; }
.band { stroke-width: 0; fill-opacity: .14; }
.tie { fill: none; stroke-width: .8; stroke-opacity: .55; }
.mark { stroke-width: 1.3; }
.mark.hollow { fill: var(--paper) !important; }
COLOURS
.table { margin: 0 0 28px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .92rem; font-variant-numeric: tabular-nums; min-width: 100%; }
caption { text-align: left; font-weight: 600; padding: 0 0 6px; }
th, td { padding: 5px 10px; text-align: right; vertical-align: top; border-bottom: 1px solid var(--grid); }
thead th { border-bottom: 1px solid var(--muted); font-weight: 600; }
th small, td small { font-weight: 400; color: var(--muted); font-size: .78em; line-height: 1.25; margin-left: 5px; }
thead small { display: block; margin: 0; }
td { white-space: nowrap; }
th:first-child { text-align: left; white-space: nowrap; position: sticky; left: 0; background: var(--paper); }
tbody th { font-weight: 500; }
td.trained, th.trained { background: var(--soft); }
td b { font-weight: 750; }
td .near { color: var(--muted); font-size: .85em; margin-right: 2px; }
td.gap { color: var(--muted); }
tr.window { color: var(--muted); }
.foot { display: block; }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(300px, 1fr)); gap: 16px; }
.card { border: 1px solid var(--rule); border-radius: 6px; padding: 14px 16px; font-size: .92rem; min-width: 0; }
dl { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: 3px 14px; margin: 0; }
dt { color: var(--muted); }
dd { margin: 0; overflow-wrap: anywhere; }
dd ul { list-style: none; margin: 0; padding: 0; }
code { font: .86em/1.5 var(--mono); }
.claims { list-style: none; display: flex; flex-wrap: wrap; gap: 2px 12px; margin: 8px 0 0; padding: 0; }
.config { margin: 6px 0 0; line-height: 1.4; overflow-wrap: anywhere; color: var(--muted); }
.claims .no { color: var(--muted); }
.warnings { margin-top: 10px; padding: 8px 12px; background: var(--warn-soft); border-radius: 4px; font-size: .9em; }
.warnings p { margin: 0; font-weight: 600; color: var(--warn); }
.warnings ul { margin: 0; padding-left: 1.1em; overflow-wrap: anywhere; }
pre { background: var(--soft); padding: 10px 14px; white-space: pre-wrap; overflow-wrap: anywhere; margin: 0; }
.runs { color: var(--muted); overflow-wrap: anywhere; }
.about > dt { padding-top: 8px; }
.about > dd { padding-top: 8px; }
.machine { gap: 0 14px; }
@media (max-width: 720px) {
  main { padding: 18px 14px 40px; }
  h1 { font-size: 1.5rem; }
  .verdict { padding: 14px 15px; }
  .verdict .said { font-size: 1rem; }
  .pair, .small { grid-template-columns: minmax(0, 1fr); }
  .panel.wide text { font-size: 15px; }
  .panel.wide .name { font-size: 16px; }
  .about { grid-template-columns: minmax(0, 1fr); }
  .about > dd { padding-top: 0; }
  th, td { padding: 5px 7px; }
  td small { display: block; margin: 0; }
  th:first-child { white-space: normal; max-width: 38vw; }
}
@media print {
  @page { size: A4; margin: 14mm 13mm; }
  body { font-size: 10pt; line-height: 1.45; }
  main { max-width: none; padding: 0; }
  h2 { margin-top: 22px; break-after: avoid; }
  h3 { break-after: avoid; }
  .verdict, .band, .bar, .trained, .warnings, pre { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  .small { grid-template-columns: repeat(3, minmax(0, 1fr)); }
  .panel text { font-size: 14px; }
  .panel.wide text { font-size: 15px; }
  .panel .name { font-size: 15px; }
  .panel.wide .name { font-size: 16px; }
  .scroll { overflow: visible; }
  table { font-size: 8.5pt; }
  th, td { padding: 3px 5px; }
  th:first-child { position: static; }
  .card, .panels, .table { break-inside: avoid; }
  .top { break-inside: avoid; }
  figcaption { break-before: avoid; }
  .one { max-width: 140mm; }
  .cards { grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 10px; }
  .card { font-size: 8.5pt; padding: 10px 12px; }
}
""".replace(
    "COLOURS",
    "\n".join(
        f".{name} {{ stroke: var({value}); }} .mark.{name}, .band.{name} {{ fill: var({value}); }}"
        for name, value in [*((f"s{i}", f"--c{i}") for i in range(COLOURS)), ("ref", "--ref")]
    ),
).strip()
