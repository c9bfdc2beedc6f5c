"""Progress of a comparison: a live table on a terminal, plain lines elsewhere, with the time that is left.

with Progress() as progress:
    whorl.lab.compare(["rope", "alibi"], tell=progress)
"""

from __future__ import annotations

import sys
import time
from typing import Any, TextIO

from whorl.errors import printable
from whorl.lab.cost import cost_of
from whorl.lab.settings import RunConfig, label_of

EVERY = 10.0  # seconds between two lines on a run


class Run:
    """How far one run is."""

    def __init__(self, config: RunConfig) -> None:
        self.label = label_of(config.encoding, **config.sizes) + (f" seed {config.seed}" if config.seed else "")
        self.evaluations = len(config.lengths) * (2 + len(config.repairs)) * (2 if config.fine_tune_steps else 1)
        self.training = cost_of(config).training_share
        self.evaluated = 0
        self.share = 0.0  # done
        self.began: tuple[float, float] | None = None  # when it was first heard of, and its share then
        self.text = "waits"
        self.said = 0.0
        self.over = False

    def hear(self, event: dict[str, Any], now: float) -> None:
        kind = event["kind"]
        if kind == "train":
            self.share = self.training * event["step"] / event["steps"]
            speed = f"{event['tokens_per_second']:,.0f} tokens/s"
            self.text = f"step {event['step']}/{event['steps']}, loss {event['loss']:.3f}, {speed}"
        elif kind == "evaluate":
            self.evaluated += 1
            self.share = self.training + (1 - self.training) * min(0.99, self.evaluated / self.evaluations)
            bits = event["bits_per_byte"]
            said = "no positions so far" if bits is None else f"{bits:.3f} bits per byte"
            self.text = f"{event['variant']} at {event['length']}: {said}"
        else:
            self.share, self.over = 1.0, True
            said = {"done": "done", **{bad: f"{bad}: {event.get('message', '')}" for bad in ("diverged", "failed")}}
            self.text = said.get(kind, "finished before")
        if self.began is None:
            self.began = (now, self.share)

    def left(self, now: float) -> float | None:
        """Seconds until it is done, from its own speed so far."""
        if self.began is None or self.over or self.share <= self.began[1]:
            return None
        return (now - self.began[0]) * (1 - self.share) / (self.share - self.began[1])


class Progress:
    """Hears what happens to the runs of a sweep and shows it; call it with a run's config and an event."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stderr
        self.live = self.stream.isatty()
        self.runs: dict[str, Run] = {}
        self.begun: float | None = None
        self._display: Any = None

    def __enter__(self) -> Progress:
        if self.live:
            from rich.console import Console
            from rich.live import Live

            self._display = Live(
                console=Console(file=self.stream), get_renderable=self._table, refresh_per_second=2, transient=False
            )
            self._display.__enter__()
        return self

    def __exit__(self, *what: Any) -> None:
        if self._display is not None:
            self._display.__exit__(*what)

    def __call__(self, config: RunConfig, event: dict[str, Any]) -> None:
        now = time.perf_counter()
        run = self.runs.setdefault(config.id, Run(config))
        if event["kind"] == "planned":
            if event["finished"]:
                run.hear({"kind": "finished"}, now)
            return
        if self.begun is None:
            self.begun = now
        run.hear(event, now)
        if not self.live and (run.over or now - run.said >= EVERY):
            run.said = now
            done = sum(run.over for run in self.runs.values())
            left = "" if run.over else f", {_time(run.left(now))} left"
            whole = f"{done} of {len(self.runs)} runs done, {_time(self.left(now))} left"
            print(printable(f"{run.label}: {run.text}{left}; {whole}"), file=self.stream, flush=True)

    def left(self, now: float) -> float | None:
        """Seconds until all runs are done, from the share done since this sweep began."""
        began = {key: run.began[1] for key, run in self.runs.items() if run.began}
        done = sum(self.runs[key].share - share for key, share in began.items())
        if self.begun is None or done <= 0:
            return None
        to_do = sum(1 - run.share for run in self.runs.values())
        return (now - self.begun) * to_do / done

    def _table(self) -> Any:
        from rich import box
        from rich.table import Table
        from rich.text import Text

        now = time.perf_counter()
        done = sum(run.over for run in self.runs.values())
        title = f"{done} of {len(self.runs)} runs done, {_time(self.left(now))} left"
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left")
        for name in ("run", "done", "left", "now"):
            table.add_column(name, justify="right" if name in ("done", "left") else "left", no_wrap=name != "now")
        for run in self.runs.values():
            left = "" if run.over or run.began is None else _time(run.left(now))
            table.add_row(Text(printable(run.label)), f"{100 * run.share:.0f} %", left, Text(printable(run.text)))
        return table


def _time(seconds: float | None) -> str:
    """A span of time in words.

    >>> _time(75), _time(4000), _time(None)
    ('1 min 15 s', '1 h 6 min', 'some time')
    """
    if seconds is None:
        return "some time"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"
