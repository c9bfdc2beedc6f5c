"""Compare: train every encoding alike, test each at lengths it never saw, and say in one report how they fare."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whorl.errors import WhorlError, unknown
from whorl.lab.aggregate import aggregate, corpus_facts, labels_of
from whorl.lab.cost import cost_of
from whorl.lab.differences import check_baseline
from whorl.lab.fairness import check_fair
from whorl.lab.plan import plan
from whorl.lab.report import write_all
from whorl.lab.report.words import LANGUAGES
from whorl.lab.run_many import PLACES, Tell, check_workers, run_many
from whorl.lab.settings import RunConfig, label_of
from whorl.plugins import load_plugin
from whorl.results import ComparisonResult


@dataclass(frozen=True)
class Comparison:
    """What came out: the result, the report's path, and why some runs failed or diverged, by id."""

    result: ComparisonResult
    out: Path
    report: Path
    failed: dict[str, str]

    @property
    def data(self) -> dict[str, Any]:
        """What comparison.json holds."""
        return dict(self.result.data)

    def table(self, way: str = "same_last") -> dict[str, dict[int, float | None]]:
        """Bits per byte by row and length, one of the three ways."""
        rows = (row for row in self.result.rows if not row.beside)
        return {row.name: {length: row.at(way, length) for length in row.lengths} for row in rows}


def compare(
    names: Sequence[str | dict[str, Any]] | None = None,
    *,
    corpus: str | None = None,
    train_length: int | None = None,
    lengths: Sequence[int] | None = None,
    steps: int | None = None,
    seeds: int | Sequence[int] = 1,
    preset: str | None = None,
    out: str | Path | None = None,
    repairs: Sequence[str] | None = None,
    on: str = "here",
    lang: str = "en",
    tell: Tell | None = None,
    announce: Callable[[str], object] | None = None,
    workers: int | None = None,
    retry: bool = False,
    plugins: Sequence[str | Path] = (),
    command: str = "",
    baseline: str | None = None,
    options: dict[str, Any] | None = None,
    **run: Any,
) -> Comparison:
    """The comparison of encodings by name, trained alike and tested by length; its report is written to ``out``.

    What is not given is the preset's, or else a laptop's: the standard library's sources, trained at 256 and tested
    from a quarter to 8 times that. ``run`` are further settings of a run, as layers, width, batch, learning_rate;
    ``options`` those of ``run_one`` or of Ray. Run again with the same ``out``, it goes on where it was stopped; with
    ``retry``, runs whose loss was no number are made anew. ``plugins`` are files that register encodings.
    ``tell`` hears what happens to the runs, ``announce`` what they cost before the first one begins.
    ``baseline`` is the encoding that differences are taken to; the best at the trained length unless given.
    """
    for file in plugins:
        load_plugin(file)
    check_asked(on, lang, workers)
    out = Path(out) if out is not None else Path("whorl-lab")
    configs = plan(
        names,
        out=out,
        on=on,
        preset_name=preset,
        corpus=corpus,
        train_length=train_length,
        lengths=lengths,
        steps=steps,
        seeds=seeds,
        repairs=repairs,
        **run,
    )
    told: dict[str, Any] = {"tell": tell, "announce": announce, "command": command, "baseline": baseline}
    return conclude(configs, out, on=on, lang=lang, workers=workers, retry=retry, **told, **(options or {}))


def check_asked(on: str, lang: str, workers: int | None = None) -> None:
    """Raises a WhorlError for a place, a language or a count that makes no sense, before anything is trained."""
    check_workers(workers)
    if on not in PLACES:
        raise unknown("place to run", on, PLACES, call="lab")
    if lang not in LANGUAGES:
        raise unknown("lang", lang, LANGUAGES, call="lab")


def conclude(
    configs: Sequence[RunConfig],
    out: str | Path,
    *,
    on: str = "here",
    lang: str = "en",
    tell: Tell | None = None,
    announce: Callable[[str], object] | None = None,
    workers: int | None = None,
    retry: bool = False,
    title: str = "",
    command: str = "",
    baseline: str | None = None,
    factors: Sequence[str] = (),
    **options: Any,
) -> Comparison:
    """Makes the runs, joins their results, and writes comparison.json and the report to ``out``.

    Runs that would make no fair comparison, and a baseline that is none of them, are refused before any is made.
    """
    out = Path(out)
    check_fair([config.to_dict() for config in configs], factors)
    alone = {config.replace(seed=0).id: config for config in configs}.values()
    check_baseline(baseline, labels_of([(label_of(one.encoding, **one.sizes), one.to_dict(), one.id) for one in alone]))
    if announce is not None:
        announce(str(cost_of(*{config.id: config for config in configs}.values(), out=out)))
    results, failed = run_many(configs, out, on=on, tell=tell, workers=workers, retry=retry, **options)
    if not results:
        raise WhorlError(f"lab: no run finished. The first failed with: {next(iter(failed.values()))}")
    failed |= {
        one.id: f"it diverged: {one.stopped_early} With --retry it is made anew."
        for one in results
        if one.stopped_early is not None
    }
    found = aggregate(
        results,
        corpus=corpus_facts(out, [config.to_dict() for config in configs]),
        title=title,
        command=command,
        baseline=baseline,
        factors=factors,
    )
    return write_out(found, out, lang, failed)


def write_out(found: ComparisonResult, out: Path, lang: str = "en", failed: dict[str, str] | None = None) -> Comparison:
    """Writes comparison.json, comparison.csv and report.html to ``out``; the result then has the verdict in words.

    What was there is kept, in a folder under ``out`` that has its date.
    """
    written, page = write_all(found, out, lang)
    return Comparison(written, out, page, failed or {})
