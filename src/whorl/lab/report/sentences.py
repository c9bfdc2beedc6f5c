"""The verdict in words: one paragraph, and what to read with care."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from whorl.lab.report.numbers import number, percent, plain, ratio, short_count, signed
from whorl.lab.report.published import RAMP_LENGTH, Check, fair
from whorl.lab.report.reading import Reading, Row
from whorl.lab.report.verdict import (
    BREAK,
    FAILED,
    HOLD,
    SOLVED,
    Against,
    Findings,
    Rank,
    Recall,
    Repairs,
    Standing,
    Task,
)
from whorl.lab.report.words import Words

UNTRAINED = 4.0  # bits per byte; the frequencies of bytes alone give some 4.5 to 5 on text


class Sentences:
    """What one comparison says in one language."""

    def __init__(self, reading: Reading, findings: Findings, words: Words) -> None:
        self.reading = reading
        self.findings = findings
        self.words = words

    def paragraph(self) -> list[str]:
        """The verdict, a sentence each."""
        return [*self._best(), *self._beyond(), *self._repairs(), *self._context(), *self._tasks()]

    def notes(self) -> list[str]:
        """What keeps the verdict honest: noise, baselines, recall, published orders, scale."""
        return [*self._ties(), *self._window(), *self._recalls(), *self._flattered(), *self._orders(), *self._limits()]

    # -- the paragraph ---------------------------------------------------------------------------------------------

    def _best(self) -> Iterable[str]:
        best = self.findings.best
        if best:
            fields = {"length": best.length, "value": number(best.value), **self._ranked(best)}
            if best.length == self.reading.trained:
                yield self.words("best", **fields)
            else:
                yield self.words("best_near", trained=self.reading.trained, **fields)

    def _beyond(self) -> Iterable[str]:
        found = self.findings
        if found.measure is None:
            return
        far = found.far
        if far is None or found.longest is None:
            yield self.words("no_length_beyond")
            return
        fields = {
            "ratio": self._ratio(far),
            "far": far,
            "protocol": self.words(f"{found.measure}_in"),
            "limit": plain(max(HOLD, self.reading.noise)),
        }
        holding = sorted(found.trained("holds"), key=lambda s: s.start + s.rises[far])
        if holding:
            names = self.words.list([self._name(s.row) for s in holding])
            yield self.words.counted("holds", len(holding), names=names, **fields)
        else:
            yield self.words("holds_none", **fields)
        yield from self._further(holding, found.longest)
        breaking = found.breaking
        if breaking:
            items = self.words.list([self._break(s) for s in breaking])
            yield self.words.counted("breaks", len(breaking), items=items, limit=plain(max(BREAK, self.reading.noise)))
        drifting = found.trained("drifts")
        if drifting:
            items = [self._with(s.row, signed(s.rises[far])) for s in drifting]
            yield self.words.counted("drifts", len(drifting), items=self.words.list(items))
        for standing in found.trained("ends"):
            end = standing.row.ends_at()
            key = "ends_unknown" if end is None else "ends"
            yield self.words(key, name=self._name(standing.row), length=end)

    def _further(self, holding: Sequence[Standing], longest: int) -> Iterable[str]:
        if not holding or longest == self.findings.far:
            return
        still = [s for s in holding if s.reach >= longest]
        fields = {"ratio": self._ratio(longest), "length": longest}
        if len(still) == len(holding) > 1:
            yield self.words("further_all", **fields)
        elif still:
            names = self.words.list([self._name(s.row) for s in still])
            yield self.words.counted("further", len(still), names=names, **fields)
        else:
            yield self.words("further_none", **fields)

    def _break(self, standing: Standing) -> str:
        at = standing.breaks_at
        assert at is not None
        rise = ""
        if at not in standing.rises:
            rise = self.words("breaks_not_finite")
        elif standing.last:
            rise = self.words("breaks_rise", rise=signed(standing.last[0]), length=standing.last[1])
        return self.words("breaks_item", name=self._name(standing.row), length=at, ratio=self._ratio(at), rise=rise)

    def _repairs(self) -> Iterable[str]:
        for repairs in self.findings.repairs:
            yield self.words(
                "repairs",
                name=self.words.name(repairs.label),
                ratio=self._ratio(repairs.length),
                length=repairs.length,
                base=number(repairs.base),
                parts=self.words("semicolon").join(self._parts(repairs)),
            )

    def _parts(self, repairs: Repairs) -> Iterable[str]:
        if not repairs.helps:
            yield self.words("repairs_none_helps")
        for key, scored in (("helps", repairs.helps), ("harms", repairs.harms), ("same", repairs.same)):
            if scored:
                items = [self._with(row, number(value), short=True) for row, value in scored]
                yield self.words.counted(f"repairs_{key}", len(items), items=self.words.list(items))
        assert self.findings.far is not None  # repairs are compared beyond the trained length
        far = self._ratio(self.findings.far)
        if repairs.holding:
            names = [self.words.variant(row.variant) for row in repairs.holding]
            yield self.words.counted("repairs_holds", len(names), names=self.words.list(names), ratio=far)
        else:
            yield self.words("repairs_none_holds", ratio=far)

    def _context(self) -> Iterable[str]:
        found = self.findings
        if found.measure != "same_last" or found.far is None:
            return
        using = found.context("uses")
        if not using:
            yield self.words("uses_none", noise=plain(self.reading.noise))
        else:
            items = self.words.list([self._fall(s) for s in using])
            yield self.words.counted("uses", len(using), items=items)
        hints = found.context("hint")
        if hints:
            items = self.words.list([self._fall(s) for s in hints])
            yield self.words.counted("uses_hint", len(hints), items=items)
        resting = [s for s in found.standings if s.state == "holds" and s.context == "none"]
        if resting and using:
            names = self.words.list([self._name(s.row) for s in resting])
            yield self.words.counted("only_holds", len(resting), names=names)

    def _tasks(self) -> Iterable[str]:
        for task in self.findings.tasks:
            yield from self._task(task)

    def _task(self, task: Task) -> Iterable[str]:
        solved = percent(SOLVED)
        lengths = list(dict.fromkeys(length for _, length in task.reaches))
        items = []
        for length in lengths:
            names = [self._name(row) for row, reach in task.reaches if reach == length]
            items.append(self.words("task_item", names=self.words.list(names), length=length))
        if items:
            said = self.words("semicolon").join(items)
            yield self.words("task_solved", task=task.name, items=said, solved=solved)
        else:
            yield self.words("task_nobody", task=task.name, solved=solved)
        if task.unsolved and items:
            scored = [self._with(row, percent(value)) for row, value in task.unsolved]
            yield self.words.counted("task_unsolved", len(scored), items=self.words.list(scored), task=task.name)
        if task.fails:
            failing = [self.words("task_fails_item", name=self._name(row), length=length) for row, length in task.fails]
            items = self.words.list(failing)
            yield self.words.counted("task_fails", len(failing), items=items, failed=percent(FAILED))

    # -- with care -------------------------------------------------------------------------------------------------

    def _ties(self) -> Iterable[str]:
        found = self.findings
        if found.measure is None:
            return
        seeds = self.reading.seeds
        source = self.words("note_ties_seeds", n=seeds) if self.reading.interval == "seeds" and seeds > 1 else ""
        said = self.words("note_ties", noise=plain(self.reading.noise), source=source)
        best = found.best_far
        if best:
            at = {"ratio": self._ratio(best.length), "length": best.length, "value": number(best.value)}
            said += self.words("space") + self.words("note_best_far", **at, **self._ranked(best))
        yield said
        if found.measure != "same_last":
            yield self.words("note_not_same_last", protocol=self.words(f"{found.measure}_in"))

    def _window(self) -> Iterable[str]:
        found = self.findings
        if found.far is None:
            return
        if found.window is None:
            yield self.words("note_no_window")
            return
        row, value = found.window
        fields = {"name": self.words.name(row.label), "value": number(value), "ratio": self._ratio(found.far)}
        if found.below_window:
            yield self.words("note_window_below", items=self._against(found.below_window, number), **fields)
        else:
            yield self.words("note_window_none", **fields)

    def _recalls(self) -> Iterable[str]:
        for recall in self.findings.recalls:
            yield self._recall(recall)
        if not self.findings.recalls and self.findings.far is not None:
            yield self.words("note_no_recall")

    def _recall(self, recall: Recall) -> str:
        measure = self.words(recall.measure)
        fields = {
            "measure": measure[0].upper() + measure[1:],
            "ratio": self._ratio(recall.length),
            "length": recall.length,
        }
        if not recall.compared:
            row, value = recall.best
            return self.words("note_recall_plain", name=self._name(row), value=percent(value), **fields)
        parts = []
        for key, scored in (("reaching", recall.reaching), ("not", recall.not_reaching)):
            if scored:
                one = "_one" if len(scored) == 1 else ""
                parts.append(self.words(f"note_recall_{key}{one}", items=self._against(scored, percent)))
            elif key == "reaching":
                parts.append(self.words("note_recall_nobody"))
        said = self.words("semicolon").join(parts)
        return self.words("note_recall", parts=said, **fields)

    def _flattered(self) -> Iterable[str]:
        if self.findings.flattered and self.findings.far:
            row, hidden, shown = self.findings.flattered
            at = self._ratio(self.findings.far)
            yield self.words(
                "note_flattered", ratio=at, name=self._name(row), hidden=number(hidden), shown=number(shown)
            )

    def _orders(self) -> Iterable[str]:
        checks = self.findings.checks
        if not checks:
            return
        reproduced = sum(check.outcome == "reproduced" for check in checks)
        sources = self.words.list(list(dict.fromkeys(check.source for check in checks)))
        if reproduced == len(checks):
            key = "note_orders_one" if len(checks) == 1 else "note_orders_all"
            yield self.words(key, n=len(checks), sources=sources)
            return
        yield self.words("note_orders_some", n=len(checks), reproduced=reproduced)
        for outcome in ("reversed", "tied"):
            for check in checks:
                if check.outcome == outcome:
                    yield self._check(check)

    def _check(self, check: Check) -> str:
        if check.length is None:
            where, shown = self.words("note_where_task", task=check.task), percent
        else:
            where, shown = self.words("note_where_length", ratio=self._ratio(check.length)), number
        return self.words(
            f"note_{check.outcome}",
            better=self._name(check.better),
            worse=self._name(check.worse),
            source=check.source,
            where=where,
            low=shown(check.values[0]),
            high=shown(check.values[1]),
            otherwise=self.words("note_otherwise") if check.otherwise else "",
        )

    def _limits(self) -> Iterable[str]:
        reading, best = self.reading, self.findings.best
        if best and best.value > UNTRAINED:
            yield self.words("note_untrained", value=number(best.value))
        for row in reading.text_rows:
            if row.as_trained and not fair(row, reading.trained):
                far = row.encoding["max_distance"]
                yield self.words("note_t5", name=self._name(row), distance=far, trained=reading.trained)
        if reading.trained < RAMP_LENGTH and any(row.variant == "yarn" for row in reading.rows):
            yield self.words("note_yarn", length=RAMP_LENGTH)
        if reading.seeds == 1:
            yield self.words("note_one_seed")
        sizes = [row.facts["parameters"] for row in reading.rows if "parameters" in row.facts]
        steps = [row.curve[-1][0] for row in reading.rows if row.curve]
        if sizes and steps:
            yield self.words("note_scale", parameters=short_count(max(sizes)), steps=f"{max(steps):.0f}")

    # -- pieces ----------------------------------------------------------------------------------------------------

    def _name(self, row: Row) -> str:
        """The row's name, a repair's alone where only one model is repaired and nothing else is called so."""
        repaired = {other.label for other in self.reading.text_rows if not other.as_trained}
        taken = any(other.label == row.variant for other in self.reading.rows)
        if row.as_trained or row.is_window or taken or len(repaired) > 1:
            return self.words.name(row.label, row.variant)
        return self.words.variant(row.variant)

    def _with(self, row: Row, text: str, short: bool = False) -> str:
        name = self.words.variant(row.variant) if short else self._name(row)
        return f"{name}{self.words('open')}{text}{self.words('close')}"

    def _against(self, pairs: Iterable[Against], shown: Callable[[float], str]) -> str:
        items = []
        for pair in pairs:
            said = self.words("against", value=shown(pair.value), window=shown(pair.window))
            items.append(self._with(pair.row, said))
        return self.words.list(items)

    def _fall(self, standing: Standing) -> str:
        fall, length = standing.falls
        return self.words("uses_item", name=self._name(standing.row), fall=signed(-fall, 3), length=length)

    def _ranked(self, rank: Rank) -> dict[str, str]:
        names = self.words.list([self._name(row) for row in rank.ties])
        ties = self.words.counted("best_ties", len(rank.ties), names=names) if rank.ties else ""
        return {"name": self._name(rank.best), "ties": ties}

    def _ratio(self, length: int) -> str:
        return ratio(length, self.reading.trained)
