"""The verdict in words: at most three sentences, each carried by an interval, and what to read with care."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from whorl.lab.report.published import RAMP_LENGTH, Check, fair
from whorl.lab.report.verdict import FAILED, HOLD, SOLVED, Findings, Order, Recall, Repair, Standing, Task
from whorl.lab.report.words import Words, count, number, percent, plain, ratio, short_count, signed
from whorl.result_rows import WHOLE, Row
from whorl.results import Difference

UNTRAINED = 4.0  # bits per byte; the frequencies of bytes alone give some 4.5 to 5 on text
MOST = 3  # sentences of a verdict
WIDE = 0.1  # an interval in bits that is wider is worth two decimals


class Sentences:
    """What one comparison says in one language."""

    def __init__(self, findings: Findings, words: Words) -> None:
        self.findings, self.result, self.words = findings, findings.result, words

    def unequal(self) -> str:
        """That the runs are not alike, and in what; empty where they are."""
        items = [
            self.words("unequal_item", setting=key, values=[str(value) for value in values])
            for key, values in self.result.unequal.items()
        ]
        return self.words("unequal", items=items) if items else ""

    def paragraph(self) -> list[str]:
        """The verdict, a sentence each."""
        return self._said()[:MOST]

    def notes(self) -> list[str]:
        """What keeps the verdict honest: how it was judged, baselines, recall, published orders, scale."""
        return [
            *self._said()[MOST:],
            *self._judged(),
            *self._window(),
            *self._recalls(),
            *self._flattered(),
            *self._orders(),
            *self._limits(),
        ]

    def _said(self) -> list[str]:
        """Everything that is concluded, what matters most first."""
        tasks = (said for task in self.findings.tasks for said in self._task(task))
        return [*self._best(), *self._beyond(), *self._repairs(), *self._context(), *tasks]

    # -- the verdict -----------------------------------------------------------------------------------------------

    def _best(self) -> Iterable[str]:
        order = self.findings.order
        if order is None:
            return
        key = "at_trained" if order.length == self.result.trained else "at_near"
        where = self.words(key, length=order.length, trained=self.result.trained)
        fields = {"where": where, "name": self._name(order.baseline), "value": number(order.value)}
        if order.unknown and not (order.lower or order.higher or order.alike):
            yield self.words("best_unknown", **fields)
        elif self.result.named:
            yield self.words("against_baseline", parts=self.words("semicolon").join(self._held(order)), **fields)
        else:
            parts = "".join(self._ranked(order))
            yield self.words("best", parts=parts, **fields)

    def _ranked(self, order: Order) -> Iterable[str]:
        """Who is not told from the best, and who comes next."""
        if order.alike:
            yield self.words("best_alike", names=self._names(order.alike))
        if order.higher:
            row, more = order.higher[0]
            yield self.words("best_next", name=self._name(row), by=self._by(more))

    def _held(self, order: Order) -> Iterable[str]:
        for key, pairs in (("baseline_lower", order.lower), ("baseline_higher", order.higher)):
            if pairs:
                yield self.words(key, items=[self._with(row, self._by(by)) for row, by in pairs])
        if order.alike:
            yield self.words("baseline_alike", names=self._names(order.alike))

    def _beyond(self) -> Iterable[str]:
        found, far = self.findings, self.findings.far
        if found.measure is None:
            return
        if far is None:
            yield self.words("no_length_beyond")
            return
        if not any(s.rises or s.state in ("breaks", "ends") for s in found.standings):
            yield self.words("beyond_unknown")
            return
        protocol = self.words(f"{found.measure}_in")
        parts = self.words("semicolon").join(self._states(far))
        yield self.words("beyond", ratio=self._ratio(far), far=far, protocol=protocol, parts=parts)

    def _states(self, far: int) -> Iterable[str]:
        found = self.findings
        holding = sorted(found.trained("holds"), key=lambda s: s.start + s.rises[far].mean)
        if holding:
            highs = [high for s in holding if (high := s.rises[far].high) is not None]
            yield self.words("holds", names=self._names(s.row for s in holding), limit=signed(max(highs), 3))
        else:
            yield self.words("holds_none", limit=plain(HOLD))
        breaking = [s for s in found.breaking if s.breaks_at is not None and s.breaks_at <= far]
        if breaking:
            yield self.words("breaks", items=[self._break(s) for s in breaking], limit=plain(WHOLE))
        drifting = [self._with(s.row, self._by(s.rises[far])) for s in found.trained("drifts")]
        if drifting:
            yield self.words("drifts", items=drifting)
        open_ = [self._with(s.row, self._by(s.rises[far])) for s in found.trained("open") if far in s.rises]
        if open_:
            yield self.words("open", items=open_)
        for standing in found.trained("ends"):
            end = standing.row.ends_at()
            key = "ends_unknown" if end is None else "ends"
            yield self.words(key, name=self._name(standing.row), length=end)

    def _break(self, standing: Standing) -> str:
        at = standing.breaks_at
        assert at is not None
        if at in standing.rises and standing.last:
            rise = self.words("breaks_rise", rise=self._by(standing.last), length=standing.last.length)
        else:
            rise = self.words("breaks_not_finite")
        return self.words("breaks_item", name=self._name(standing.row), rise=rise, **self._at(at))

    def _repairs(self) -> Iterable[str]:
        repairs = self.findings.repairs
        if not repairs:
            return
        labels = list(dict.fromkeys(repair.row.label for repair in repairs))
        alone = len(labels) == 1
        always = {"repairs_help": [r for r in repairs if not (r.harms or r.alike)]}
        always["repairs_harm"] = [r for r in repairs if not (r.helps or r.alike)]
        parts = [
            self.words(key, items=[self._repair_with(r, (r.helps or r.harms)[-1], alone=alone) for r in own])
            for key, own in always.items()
            if own
        ]
        parts += [self._repair(r, alone=alone) for r in repairs if not any(r in own for own in always.values())]
        names = [self.words.name(label) for label in labels]
        yield self.words("repairs", names=names, parts=self.words("semicolon").join(parts))

    def _repair_with(self, repair: Repair, by: Difference, *, alone: bool) -> str:
        said = self.words("repair_by", by=self._by(by), length=by.length)
        return self._beside(self._repair_name(repair, alone=alone), said)

    def _repair_name(self, repair: Repair, *, alone: bool) -> str:
        row = repair.row
        return self.words.variant(row.variant) if alone else self.words.name(row.label, row.variant)

    def _repair(self, repair: Repair, *, alone: bool) -> str:
        """What one repair does, length by length, with the interval of the farthest."""
        said = [
            self.words(key, lengths=[str(one.length) for one in found], by=self._by(found[-1]))
            for key, found in (("repair_helps", repair.helps), ("repair_harms", repair.harms))
            if found
        ]
        if repair.alike:
            key = "repair_alike" if said else "repair_nothing"
            said.append(self.words(key, lengths=[str(one.length) for one in repair.alike]))
        return self.words("repair", name=self._repair_name(repair, alone=alone), said=said)

    def _context(self) -> Iterable[str]:
        found = self.findings
        if found.measure != "same_last" or found.far is None or not any(s.rises for s in found.standings):
            return
        using = [self._fall(s.row, s.uses) for s in found.using if s.uses]
        resting = self._names(s.row for s in found.standings if s.state == "holds" and not s.uses)
        rest = self.words("only_holds", names=resting) if resting and using else ""
        yield self.words("uses" if using else "uses_none", items=using, rest=rest)

    def _task(self, task: Task) -> Iterable[str]:
        said = []
        for length in dict.fromkeys(length for _, length in task.reaches):
            names = self._names(row for row, reach in task.reaches if reach == length)
            said.append(self.words("task_item", names=names, length=length))
        key = "task_solved" if said else "task_nobody"
        yield self.words(key, task=task.name, items=self.words("semicolon").join(said), solved=percent(SOLVED))
        if task.unsolved and said:
            scored = [self._with(row, percent(value)) for row, value in task.unsolved]
            yield self.words("task_unsolved", items=scored, task=task.name)
        if task.fails:
            failing = [self.words("task_fails_item", name=self._name(row), length=length) for row, length in task.fails]
            yield self.words("task_fails", items=failing, failed=percent(FAILED))

    # -- with care -------------------------------------------------------------------------------------------------

    def _judged(self) -> Iterable[str]:
        """How differences were judged, and what could have been found."""
        found, result = self.findings, self.result
        if found.measure is not None and found.measure != "same_last":
            yield self.words("note_not_same_last", protocol=self.words(f"{found.measure}_in"))
        if not found.told:
            if found.measure is not None or found.tasks:
                yield self.words("note_no_intervals")
            return
        one = next(one for one in result.differences if one.low is not None)
        yield self.words(f"note_judged_{source_of(one)}", **self.counts(one))
        least = [
            self.words("note_least_item", least=number(value, 3), length=length)
            for length in (found.reference, *found.beyond)
            if (value := found.least("encoding", length))
        ]
        if least:
            yield self.words("note_least", items=least)

    def counts(self, one: Difference) -> dict[str, object]:
        """Of how many seeds, samples and bytes a difference is."""
        return {"seeds": one.seeds, "samples": count(one.samples), "bytes": count(one.scored_bytes)}

    def _window(self) -> Iterable[str]:
        found = self.findings
        if found.far is None:
            return
        if found.window is None:
            yield self.words("note_no_window")
            return
        row, value = found.window
        key = "note_window_below" if found.below_window else "note_window_none"
        items = [self._with(own, self._by(less)) for own, less in found.below_window]
        name = self.words.name(row.label)
        yield self.words(key, name=name, value=number(value), items=items, ratio=self._ratio(found.far))

    def _recalls(self) -> Iterable[str]:
        for recall in self.findings.recalls:
            yield self._recall(recall)
        if not self.findings.recalls and self.findings.far is not None:
            yield self.words("note_no_recall")

    def _recall(self, recall: Recall) -> str:
        fields = {"measure": self.words.capital(recall.measure), **self._at(recall.length)}
        if not recall.above_chance:
            return self.words("note_recall_chance", **fields)
        if not recall.compared:
            row, value = recall.best
            return self.words("note_recall_plain", name=self._name(row), value=percent(value), **fields)
        reaching = [self._with(row, self._by(more, self._points)) for row, more in recall.reaching]
        parts = [self.words("note_recall_reaching" if reaching else "note_recall_nobody", items=reaching)]
        if recall.not_reaching:
            parts.append(self.words("note_recall_not", items=self._names(recall.not_reaching)))
        return self.words("note_recall", parts=self.words("semicolon").join(parts), **fields)

    def _flattered(self) -> Iterable[str]:
        if self.findings.flattered and self.findings.far:
            row, hidden, shown = self.findings.flattered
            rises = {"hidden": number(hidden), "shown": number(shown)}
            yield self.words("note_flattered", name=self._name(row), ratio=self._ratio(self.findings.far), **rises)

    def _orders(self) -> Iterable[str]:
        checks = self.findings.checks
        if not checks:
            return
        reproduced = sum(check.outcome == "reproduced" for check in checks)
        sources = list(dict.fromkeys(check.source for check in checks))
        key = "note_orders_all" if reproduced == len(checks) else "note_orders_some"
        yield self.words(key, n=len(checks), reproduced=reproduced, sources=sources)
        for outcome in ("reversed", "tied"):
            yield from (self._check(check) for check in checks if check.outcome == outcome)

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
        )

    def _limits(self) -> Iterable[str]:
        result, order = self.result, self.findings.order
        if order and order.value > UNTRAINED:
            yield self.words("note_untrained", value=number(order.value))
        for row in result.text_rows:
            if row.as_trained and not fair(row, result.trained):
                far = row.encoding["max_distance"]
                yield self.words("note_t5", name=self._name(row), distance=far, trained=result.trained)
        if result.trained < RAMP_LENGTH and any(row.variant == "yarn" for row in result.rows):
            yield self.words("note_yarn", length=RAMP_LENGTH)
        if result.seeds == 1:
            yield self.words("note_one_seed")
        sizes = [row.facts["parameters"] for row in result.rows if "parameters" in row.facts]
        steps = [row.curve[-1][0] for row in result.rows if row.curve]
        if sizes and steps:
            yield self.words("note_scale", parameters=short_count(max(sizes)), steps=f"{max(steps):.0f}")

    # -- pieces ----------------------------------------------------------------------------------------------------

    def _name(self, row: Row) -> str:
        """The row's name, a repair's alone where only one model is repaired and nothing else is called so."""
        repaired = {other.label for other in self.result.text_rows if not other.as_trained}
        taken = any(other.label == row.variant for other in self.result.rows)
        if row.as_trained or row.is_window or taken or len(repaired) > 1:
            return self.words.name(row.label, row.variant)
        return self.words.variant(row.variant)

    def _names(self, rows: Iterable[Row]) -> list[str]:
        return [self._name(row) for row in rows]

    def _with(self, row: Row, said: str) -> str:
        return self._beside(self._name(row), said)

    def _beside(self, name: str, said: str) -> str:
        return f"{name}{self.words('open_bracket')}{said}{self.words('close_bracket')}"

    def _by(self, found: Difference, shown: Callable[[float], str] | None = None) -> str:
        """A difference and its interval, with no more digits than it is worth."""
        wide = found.low is not None and found.high is not None and found.high - found.low > WIDE
        shown = shown or (lambda value: signed(value, 2 if wide else 3))
        if found.low is None or found.high is None:
            return shown(found.mean)
        return self.words("by", mean=shown(found.mean), low=shown(found.low), high=shown(found.high))

    def _points(self, share: float) -> str:
        return self.words("points", value=signed(100 * share, 0))

    def _fall(self, row: Row, fall: Difference) -> str:
        return self.words("uses_item", name=self._name(row), fall=self._by(fall), length=fall.length)

    def _at(self, length: int) -> dict[str, object]:
        return {"length": length, "ratio": self._ratio(length)}

    def _ratio(self, length: int) -> str:
        return ratio(length, self.result.trained)


def source_of(one: Difference) -> str:
    """What an interval knows of: "both" seeds and text, or one of them alone."""
    if one.seeds > 1:
        return "both" if one.samples else "seeds"
    return "text"
