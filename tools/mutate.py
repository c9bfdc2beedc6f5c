#!/usr/bin/env python3
"""Changes formulas by one small step each, and records which test and which claim of the ledger notices.

    tools/mutate.py [--count 400] [--seed 19] [--jobs 2] [--again] [--only TEXT]

Small and ours: mutmut and cosmic-ray start a process for each mutant, and importing torch alone would take them hours.
Here everything is imported and collected once. Each mutant is a fork in which the code of one function is another; it
runs the tests that reach the changed line, fastest first, up to the first that fails, and a second fork runs the
claims that reach it, up to the first that turns red. Rotations are made by torch, whose formulas are those that change.

The record is experiments/mutations.json. What it holds is not run again; ``--again`` runs what survived or left the
ledger green, for tests and claims that have become stronger. The reason of a survivor is written by hand, into the
record, and is kept.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from functools import _lru_cache_wrapper, cache
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "src")]
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest  # noqa: E402
from _pytest.runner import runtestprotocol  # noqa: E402
from mutants import SOURCES, Mutant, code_of, sample  # noqa: E402

RECORD = ROOT / "experiments" / "mutations.json"
REACHED = ROOT / "out" / "mutations-reached.json"  # which test and claim reaches which line, for these sources:
TRACED = (
    "src/whorl/encodings", "src/whorl/rotary", "src/whorl/claims", "tests/encodings", "tests/rotary", "tests/attend",
)  # fmt: skip

# What covers the formulas: their tests and their examples, but for those that take seconds to compile or to start; and
# the tests of kernels that read numbers made for them.
KERNELS = tuple(f"tests/attend/test_{name}.py" for name in ("tiles", "tiles_tokens", "decoding"))
TESTS = ("tests/encodings", "tests/rotary", *KERNELS, "src/whorl/encodings", "src/whorl/rotary")
LEFT_OUT = ("compile", "flex", "graph", "up_to_date", "another_process")
SLOWEST = 2.0  # seconds of a test that is still worth its time here
MEMOS = ("whorl.encodings", "whorl.rotary", "whorl.graphs")  # where results of formulas are kept
LIMIT = 6.0  # seconds after which a test or a claim is one that does not end
ENOUGH = 4.0  # seconds of all tests, or of all claims, of one mutant

RESULTS = ("killed_by", "tests", "tests_run", "red", "claims", "claims_run", "seconds")

Lines = dict[str, list[int]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--seed", type=int, default=19)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--again", action="store_true", help="run again what no test or no claim noticed")
    parser.add_argument("--only", default="", metavar="TEXT", help="mutants whose key has this text")
    given = parser.parse_args()
    os.chdir(ROOT)
    named = " and ".join(f"not {name}" for name in LEFT_OUT)
    options = ["-q", "-m", "not gpu and not large", "-k", named, "--no-header", *TESTS]
    run = Mutations(given.count, given.seed, given.jobs, given.again, given.only)
    if failed := pytest.main(options, plugins=[run]):
        return int(failed)
    found = json.loads(RECORD.read_text())["summary"]
    print(*(f"{name}: {value}" for name, value in found.items()), sep="\n")
    return 0


class Mutations:
    """In the place of pytest's loop over tests: one fork for each mutant."""

    def __init__(self, count: int, seed: int, jobs: int, again: bool, only: str) -> None:
        self.count, self.seed, self.jobs, self.again, self.only = count, seed, jobs, again, only

    def pytest_configure(self, config: pytest.Config) -> None:
        import hypothesis  # not before pytest, which rewrites its assertions

        # an example that fails needs no smaller one, and every run is to draw the same
        quick = [hypothesis.Phase.explicit, hypothesis.Phase.generate]
        hypothesis.settings.register_profile("mutants", phases=quick, derandomize=True, database=None, deadline=None)
        hypothesis.settings.load_profile("mutants")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        from whorl.claims import ledger
        from whorl.kernels import refusals
        from whorl.plans import PLANS

        refusals.AUTO = {}
        PLANS.cache_clear()
        self.items = {item.nodeid: item for item in session.items}
        self.claims, self.run_ledger = {claim.id: claim for claim in ledger.every()}, ledger.run
        _held()
        gc.freeze()  # nothing that forks share is looked through again in each
        chosen = sample(self.count, self.seed)
        before = json.loads(RECORD.read_text())["mutants"] if RECORD.exists() else []
        known = {one["key"]: one for one in before}
        rows = {one.key: {**_facts(one), **_kept(known.get(one.key, {}))} for one in chosen}
        waiting = [one for one in chosen if self.only in one.key and self._open(rows[one.key])]
        self.reached = self._reached() if waiting else {}
        waiting.sort(key=lambda one: len(self._reaching(one, self.items)))  # the quick ones first
        for number, (mutant, found) in enumerate(_forked(self._try, waiting, self.jobs), 1):
            rows[mutant.key] |= found
            print(f"{number}/{len(waiting)}", found["killed_by"], "|", found["red"], "|", mutant.key, flush=True)
            _write(rows, self.seed)
        _write(rows, self.seed)
        return True

    def _open(self, row: dict[str, Any]) -> bool:
        missed = row.get("killed_by") is None or (row["claims"] and row["red"] is None)
        return "killed_by" not in row or (self.again and missed)

    # -- which test and which claim reaches a line ---------------------------------------------------------------------

    def _reached(self) -> dict[str, dict[str, Any]]:
        """Seconds and lines of each test and claim, from a run of all that are new."""
        digest = hashlib.sha256()
        for path in sorted(path for folder in TRACED for path in (ROOT / folder).rglob("*.*") if path.suffix != ".pyc"):
            digest.update(path.read_bytes())
        kept = json.loads(REACHED.read_text()) if REACHED.exists() else {}
        known = kept["reached"] if kept.get("sources") == digest.hexdigest() else {}
        missing = [id for id in (*self.items, *self.claims) if id not in known]
        if missing:
            print(f"which lines {len(missing)} tests and claims reach …", flush=True)
            ((_, found),) = _forked(self._trace, [missing], 1)
            REACHED.parent.mkdir(exist_ok=True)
            REACHED.write_text(json.dumps({"sources": digest.hexdigest(), "reached": (known := known | found)}))
        return known

    def _trace(self, ids: list[str]) -> dict[str, Any]:
        from whorl.rotary.cache import current_table_cache

        found = {}
        for id in ids:
            _forget()  # what another one computed is not read
            current_table_cache().clear()
            begun = time.process_time()
            passed, lines = _traced(lambda id=id: self._passes(id))
            if len(found) % 200 == 0:
                print(f"  {len(found)} of {len(ids)}", flush=True)
            # one that fails as it is, where every step is traced, can tell nothing
            found[id] = {"seconds": round(time.process_time() - begun, 4), "lines": lines if passed else {}}
        return found

    def _passes(self, id: str) -> bool:
        if id in self.items:
            return not any(report.failed for report in runtestprotocol(self.items[id], nextitem=None, log=False))
        return all(row.as_expected for row in self.run_ledger([self.claims[id]]))

    def _reaching(self, mutant: Mutant, known: Iterable[str]) -> list[str]:
        """The tests, or claims, that reach the changed line, fastest first."""

        def reaches(id: str) -> bool:
            return not {mutant.line, mutant.statement}.isdisjoint(self.reached[id]["lines"].get(mutant.file, ()))

        quick = [id for id in known if self.reached[id]["seconds"] < SLOWEST and reaches(id)]
        return sorted(quick, key=lambda id: self.reached[id]["seconds"])

    # -- one mutant ----------------------------------------------------------------------------------------------------

    def _try(self, mutant: Mutant) -> dict[str, Any]:
        begun, code = time.monotonic(), code_of(mutant)
        tests, claims = self._reaching(mutant, self.items), self._reaching(mutant, self.claims)
        (killed_by, tests_run), (red, claims_run) = (self._first(mutant, code, ids) for ids in (tests, claims))
        found = {"killed_by": killed_by, "tests": len(tests), "tests_run": tests_run}
        found |= {"red": red, "claims": len(claims), "claims_run": claims_run}
        return found | {"seconds": round(time.monotonic() - begun, 1)}

    def _first(self, mutant: Mutant, code: CodeType, ids: list[str]) -> tuple[str | None, int]:
        """The first of these that notices the mutant, and how many were run, in a fork."""

        def found(send: Callable[[str], object]) -> None:
            put_in(mutant, code)
            until = time.process_time() + ENOUGH
            for id in ids:
                if time.process_time() > until:
                    return
                send(f"?{id}")
                signal.setitimer(signal.ITIMER_PROF, LIMIT)  # ends the fork
                if not self._passes(id):
                    send(f"!{id}")
                    return

        ended, last = _last_line(found) if ids else (True, "")
        run = ids.index(last[1:]) + 1 if last else 0
        if last.startswith("!"):
            return last[1:], run
        return None if ended else f"{last[1:]} (which does not end)", run


def put_in(mutant: Mutant, code: CodeType) -> None:
    """Gives every function made of the mutant's code the changed one, and forgets what was computed before."""
    functions, _ = _held()
    for function in functions[str(SOURCES / mutant.file), code.co_name, code.co_firstlineno]:
        function.__code__ = code
    _forget()


def _forget() -> None:
    """Empties the memos of formulas; not those of kernels, which would be compiled again."""
    _, memos = _held()
    for memo in memos:
        memo.cache_clear()


@cache
def _held() -> tuple[dict[tuple[str, str, int], list[FunctionType]], list[Any]]:
    """Every function there is, by where its code stands, and every memo of formulas; looked for once, before forks."""
    functions: dict[tuple[str, str, int], list[FunctionType]] = {}
    memos = []
    gc.unfreeze()  # tests set aside what is there before the first of them, and it would not be seen
    for thing in gc.get_objects():  # by type and not by isinstance, which asks proxies that warn
        if type(thing) is FunctionType and thing.__code__.co_filename.startswith(str(SOURCES)):
            code = thing.__code__
            functions.setdefault((code.co_filename, code.co_name, code.co_firstlineno), []).append(thing)
        elif type(thing) is _lru_cache_wrapper and str(getattr(thing, "__module__", "")).startswith(MEMOS):
            memos.append(thing)
    return functions, memos


def _traced(run: Callable[[], bool]) -> tuple[bool, Lines]:
    """Whether a run passes, and the lines of formulas that it reaches."""
    lines: dict[str, set[int]] = {}

    def local(frame: FrameType, event: str, value: Any) -> Any:
        own.add(frame.f_lineno) if (own := lines.get(frame.f_code.co_filename)) is not None else None
        return local

    def called(frame: FrameType, event: str, value: Any) -> Any:
        file = frame.f_code.co_filename
        if file.startswith(str(SOURCES)) and ("/encodings/" in file or "/rotary/" in file):
            lines.setdefault(file, set()).add(frame.f_lineno)
            return local
        return None

    sys.settrace(called)
    try:
        passed = run()
    finally:
        sys.settrace(None)
    return passed, {str(Path(file).relative_to(SOURCES)): sorted(own) for file, own in lines.items()}


# -- forks ------------------------------------------------------------------------------------------------------------


def _forked(work: Callable[[Any], Any], things: list[Any], jobs: int) -> Iterator[tuple[Any, Any]]:
    """Each thing with what the work on it returns as JSON, so many forks at a time, in the order they end."""
    waiting, running = list(things), {}
    while waiting or running:
        while waiting and len(running) < jobs:
            thing = waiting.pop(0)
            end, begin = os.pipe()
            if os.fork() == 0:
                os.close(end)
                _end_with(lambda thing=thing, begin=begin: _send(begin, work(thing)))
            os.close(begin)
            running[end] = (thing, b"")
        for end in select.select(list(running), [], [])[0]:
            thing, text = running[end]
            if more := os.read(end, 1 << 16):
                running[end] = (thing, text + more)
                continue
            del running[end]
            os.close(end)
            os.wait()
            yield thing, json.loads(text)


def _send(pipe: int, result: Any) -> None:
    with os.fdopen(pipe, "w") as file:
        json.dump(result, file)


def _last_line(work: Callable[[Callable[[str], object]], None]) -> tuple[bool, str]:
    """Whether the work ended by itself, in a fork that says nothing else, and the last line that it sent."""
    end, begin = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(end)
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        _end_with(lambda: work(lambda line: os.write(begin, line.encode() + b"\n")))
    os.close(begin)
    with os.fdopen(end) as file:
        lines = file.read().splitlines()
    status = os.waitpid(child, 0)[1]
    return status == 0, lines[-1] if lines else ""


def _end_with(work: Callable[[], object]) -> None:
    """Does the last work of a fork, and leaves without what Python does at its end."""
    try:
        work()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


# -- the record -------------------------------------------------------------------------------------------------------


def _facts(mutant: Mutant) -> dict[str, Any]:
    own = {name: getattr(mutant, name) for name in ("file", "function", "line", "text", "kind", "old", "new")}
    return {"key": mutant.key, **own}


def _kept(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in (*RESULTS, "reason") if name in row}


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """How many mutants the tests kill and the ledger shows, of those that were run."""
    run = [row for row in rows if "killed_by" in row]
    killed = [row for row in run if row["killed_by"] is not None]
    survived = [row for row in run if row["killed_by"] is None]
    subject = [row for row in killed if row["claims"]]
    red = [row for row in subject if row["red"] is not None]
    return {
        "mutants": len(run),
        "killed by tests": len(killed),
        "survived": len(survived),
        "survivors with a reason": sum(bool(row.get("reason")) for row in survived),
        "killed, and on a line that a claim reaches": len(subject),
        "of these the ledger turns red": len(red),
        "minutes of one process": round(sum(row["seconds"] for row in run) / 60, 1),
    }


def _write(rows: dict[str, dict[str, Any]], seed: int) -> None:
    ordered = sorted(rows.values(), key=lambda row: (row["file"], row["line"], row["key"]))
    for row in ordered:
        if row.get("killed_by") is not None:
            row.pop("reason", None)
    made = {"seed": seed, "summary": summary(ordered), "mutants": ordered}
    text = json.dumps(made, indent=1, ensure_ascii=False)
    unfinished = RECORD.with_suffix(".part")
    unfinished.write_text(text + "\n")
    unfinished.replace(RECORD)


if __name__ == "__main__":
    raise SystemExit(main())
