"""What the tests of the lab share."""

from pathlib import Path

import pytest

from lab_runs import write_texts
from optional import optional


@pytest.fixture(scope="module")
def texts(tmp_path_factory) -> Path:
    """Small texts to train and to test on."""
    return write_texts(tmp_path_factory.mktemp("texts"))


@pytest.fixture
def call(capsys):
    """Runs a command in this process: (exit status, stdout, stderr)."""
    run = optional("whorl.cli.app:run")

    def call(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run([str(one) for one in arguments])
        return code, *capsys.readouterr()

    return call
