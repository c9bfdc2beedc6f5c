"""The verdict in words: one paragraph, and what to read with care."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from whorl.lab.report.published import RAMP_LENGTH, Check, fair
from whorl.lab.report.verdict import FAILED, SOLVED, Against, Findings, Rank, Recall, Repairs, Standing, Task
from whorl.lab.report.words import Words, number, percent, plain, ratio, short_count, signed
from whorl.results import Row

UNTRAINED = 4.0  # bits per byte; the frequencies of bytes alone give some 4.5 to 5 on text


class Sentences:
    """What one comparison says in one language."""

    def __init__(self, findings: Findings, words: Words) -> None:
        self.findings, self.result, self.words = findings, findings.result, words

    def paragraph(self) -> list[str]:
        """The verdict, a sentence each."""
        tasks = (said for task in self.findings.tasks for said in self._task(task))
        return [*self._best(), *self._beyond(), *self._repairs(), *self._context(), *tasks]

    def notes(self) -> list[str]:
        """What keeps the verdict honest: noise, baselines, recall, published orders, scale."""
        return [*self._ties(), *self._window(), *self._recalls(), *self._flattered(), *self._orders(), *self._limits()]

    # -- the paragraph ---------------------------------------------------------------------------------------------

    def _best(self) -> Iterable[str]:
        best, trained = self.findings.best, self.result.trained
        if best:
            key = "best" if best.length == trained else "best_near"
            yield self.words(key, trained=trained, **self._ranked(best))

    def _beyond(self) -> Iterable[str]:
        found = self.findings
        if found.measure is None:
            return
        far = found.far
        if far is None:
            yield self.words("no_length_beyond")
            return
        protocol = self.words(f"{found.measure}_in")
        holding = sorted(found.trained("holds"), key=lambda s: s.start + s.rises[far])
        key = "holds" if holding else "holds_none"
        names = self._names(s.row for s in holding)
        yield self.words(key, names=names, protocol=protocol, limit=plain(found.hold), far=far, ratio=self._ratio(far))
        yield from self._further(holding)
        if found.breaking:
            yield self.words("breaks", items=[self._break(s) for s in found.breaking], limit=plain(found.limit))
        drifting = [self._with(s.row, signed(s.rises[far])) for s in found.trained("drifts")]
        if drifting:
            yield self.words("drifts", items=drifting)
        for standing in found.trained("ends"):
            end = standing.row.ends_at()
            key = "ends_unknown" if end is None else "ends"
            yield self.words(key, name=self._name(standing.row), length=end)

    def _further(self, holding: Sequence[Standing]) -> Iterable[str]:
        longest = self.findings.longest
        if not holding or longest is None or longest == self.findings.far:
            return
        still = [s for s in holding if s.reach >= longest]
        key = "further" if still else "further_none"
        if len(still) == len(holding) > 1:
            key = "further_all"
        yield self.words(key, names=self._names(s.row for s in still), **self._at(longest))

    def _break(self, standing: Standing) -> str:
        at = standing.breaks_at
        assert at is not None
        rise = ""
        if at not in standing.rises:
            rise = self.words("breaks_not_finite")
        elif standing.last:
            rise = self.words("breaks_rise", rise=signed(standing.last[0]), length=standing.last[1])
        return self.words("breaks_item", name=self._name(standing.row), rise=rise, **self._at(at))

    def _repairs(self) -> Iterable[str]:
        for repairs in self.findings.repairs:
            parts = self.words("semicolon").join(self._parts(repairs))
            name, base = self.words.name(repairs.label), number(repairs.base)
            yield self.words("repairs", name=name, base=base, parts=parts, **self._at(repairs.length))

    def _parts(self, repairs: Repairs) -> Iterable[str]:
        if not repairs.helps:
            yield self.words("repairs_none_helps")
        for key, scored in (("helps", repairs.helps), ("harms", repairs.harms), ("same", repairs.same)):
            if scored:
                items = [self._beside(self.words.variant(row.variant), number(value)) for row, value in scored]
                yield self.words(f"repairs_{key}", items=items)
        assert self.findings.far is not None  # repairs are compared beyond the trained length
        key = "repairs_holds" if repairs.holding else "repairs_none_holds"
        names = [self.words.variant(row.variant) for row in repairs.holding]
        yield self.words(key, names=names, ratio=self._ratio(self.findings.far))

    def _context(self) -> Iterable[str]:
        found = self.findings
        if found.measure != "same_last" or found.far is None:
            return
        using, hints = ([self._fall(s) for s in found.context(kind)] for kind in ("uses", "hint"))
        yield self.words("uses" if using else "uses_none", items=using, noise=plain(self.result.noise))
        if hints:
            yield self.words("uses_hint", items=hints)
        resting = self._names(s.row for s in found.standings if s.state == "holds" and s.context == "none")
        if resting and using:
            yield self.words("only_holds", names=resting)

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

    def _ties(self) -> Iterable[str]:
        found, seeds = self.findings, self.result.seeds
        if found.measure is None:
            return
        source = self.words("note_ties_seeds", n=seeds) if self.result.interval == "seeds" and seeds > 1 else ""
        said = [self.words("note_ties", noise=plain(self.result.noise), source=source)]
        if found.best_far:
            said.append(self.words("note_best_far", **self._ranked(found.best_far)))
        yield self.words("space").join(said)
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
        key = "note_window_below" if found.below_window else "note_window_none"
        items = self._against(found.below_window, number)
        name = self.words.name(row.label)
        yield self.words(key, name=name, value=number(value), items=items, ratio=self._ratio(found.far))

    def _recalls(self) -> Iterable[str]:
        for recall in self.findings.recalls:
            yield self._recall(recall)
        if not self.findings.recalls and self.findings.far is not None:
            yield self.words("note_no_recall")

    def _recall(self, recall: Recall) -> str:
        fields = {"measure": self.words.capital(recall.measure), **self._at(recall.length)}
        if not recall.compared:
            row, value = recall.best
            return self.words("note_recall_plain", name=self._name(row), value=percent(value), **fields)
        reaching, others = (self._against(pairs, percent) for pairs in (recall.reaching, recall.not_reaching))
        parts = [self.words("note_recall_reaching" if reaching else "note_recall_nobody", items=reaching)]
        if others:
            parts.append(self.words("note_recall_not", items=others))
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
            otherwise=self.words("note_otherwise") if check.otherwise else "",
        )

    def _limits(self) -> Iterable[str]:
        result, best = self.result, self.findings.best
        if best and best.value > UNTRAINED:
            yield self.words("note_untrained", value=number(best.value))
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
        return f"{name}{self.words('open')}{said}{self.words('close')}"

    def _against(self, pairs: Iterable[Against], shown: Callable[[float], str]) -> list[str]:
        return [
            self._with(pair.row, self.words("against", value=shown(pair.value), window=shown(pair.window)))
            for pair in pairs
        ]

    def _fall(self, standing: Standing) -> str:
        fall, length = standing.falls
        return self.words("uses_item", name=self._name(standing.row), fall=signed(-fall, 3), length=length)

    def _ranked(self, rank: Rank) -> dict[str, object]:
        ties = self.words("best_ties", names=self._names(rank.ties)) if rank.ties else ""
        return {"name": self._name(rank.best), "value": number(rank.value), "ties": ties, **self._at(rank.length)}

    def _at(self, length: int) -> dict[str, object]:
        return {"length": length, "ratio": self._ratio(length)}

    def _ratio(self, length: int) -> str:
        return ratio(length, self.result.trained)
