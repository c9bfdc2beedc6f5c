"""What the tests of the ledger share."""

import time
from typing import NamedTuple

import pytest

from whorl.claims import Row, verify


class Run(NamedTuple):
    """The rows of the whole ledger, and the seconds of one core that they took."""

    rows: list[Row]
    seconds: float


@pytest.fixture(scope="session")
def ledger_run() -> Run:
    start = time.process_time()
    return Run(verify(), time.process_time() - start)


@pytest.fixture(scope="session")
def whole_ledger(ledger_run: Run) -> list[Row]:
    return ledger_run.rows
