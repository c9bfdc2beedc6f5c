"""The script that answers what only training decides: every question runs, and keeps what its claims read."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from lab_runs import write_texts
from whorl.claims import evidence, ledger

ROOT = Path(__file__).parents[2]


@pytest.fixture
def script(monkeypatch, tmp_path):
    """The script with runs so small that they take a moment, and a file of its own."""
    spec = importlib.util.spec_from_file_location("trained_questions", ROOT / "experiments" / "trained_questions.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    corpus = str(write_texts(tmp_path / "texts", files=20, size=4000))
    small = {**module.SMALL, "stages": ((64, 2, 2),), "width": 32, "heads": 2, "eval_bytes": 512, "corpus": corpus}
    monkeypatch.setattr(module, "SMALL", small)
    monkeypatch.setattr(module, "SEEDS", (0, 1))
    monkeypatch.setattr(module, "FILE", tmp_path / "trained-questions.json")
    monkeypatch.setattr(
        module, "staged", lambda steps: ((16, 2, 2), (32, 2, 1), (8, 2, 1), (8, 2, 1), (32, 2, 1), (16, 2, 1))
    )
    return module


def names() -> list[str]:
    return list(json.loads((ROOT / evidence.QUESTIONS).read_text(encoding="utf-8"))["questions"])


@pytest.mark.parametrize("question", names())
def test_a_question_is_answered_with_what_its_record_has(question, script, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", ["trained_questions.py", question, "--runs", str(tmp_path / "runs")])
    script.main()
    made = json.loads(script.FILE.read_text(encoding="utf-8"))["questions"][question]
    recorded = evidence.answer(question)
    assert list(made) == list(recorded) and list(made["settings"]) == list(recorded["settings"])
    assert made["seeds"] == [0, 1]


def test_every_question_has_its_record_and_a_claim_that_asks_for_it(script, monkeypatch):
    assert sorted(script.QUESTIONS) == sorted(names())
    monkeypatch.setattr(evidence, "folder", lambda: None)  # as installed, where claims name what would decide them
    asked = {row.finding.command for row in ledger.run(claim for claim in ledger.written() if claim.trained)}
    assert {evidence.answer_command(name) for name in script.QUESTIONS} <= asked
