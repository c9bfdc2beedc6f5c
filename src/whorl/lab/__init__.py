"""The lab: train short, test long, compare, report.

corpus ─► batches ─► model(encoding) ─► train ─► run folder ─► evaluate by length ─► result ─► comparison ─► report

>>> import whorl.lab
>>> whorl.lab.RunConfig(encoding={"name": "rope"}).train_length
64
"""

from __future__ import annotations

# Some functions are called as their files are; imported here, the names of the package are the functions.
from whorl.lab.compare import Comparison, compare
from whorl.lab.generate import generate
from whorl.lab.load import LabRun, load
from whorl.lab.migrate import migrate
from whorl.lab.report import write_csv, write_json, write_report
from whorl.lab.run_one import run_one
from whorl.lab.settings import RunConfig
from whorl.lab.sweep import sweep

__all__ = [
    "Comparison",
    "LabRun",
    "RunConfig",
    "compare",
    "generate",
    "load",
    "migrate",
    "run_one",
    "sweep",
    "write_csv",
    "write_json",
    "write_report",
]
