"""The benchmarks by name: settings, groups, and every path checked and right."""

from __future__ import annotations

import pytest

import whorl
from whorl.benchmarks import registry, runner
from whorl.benchmarks.tables import tables


@pytest.mark.parametrize("name", registry.BENCHMARKS)
def test_every_registered_benchmark_builds_its_groups_from_defaults(name):
    settings = registry.complete_settings(name, {})
    assert settings and all(type(value) in (int, float, str) for value in settings.values())
    assert callable(registry.benchmark(name))


def test_settings_are_checked_by_name_and_kind():
    assert registry.complete_settings("tables", {"base": 500})["base"] == 500.0
    with pytest.raises(whorl.WhorlError, match=r"unknown benchmark 'tabels'\. Did you mean 'tables'\?"):
        registry.benchmark("tabels")
    with pytest.raises(whorl.WhorlError, match=r"length must be like 131072, got 1\.5"):
        registry.complete_settings("tables", {"length": 1.5})
    with pytest.raises(whorl.WhorlError, match="far must be at least length=4096, got 8"):
        tables(length=4096, far=8)
    with pytest.raises(whorl.WhorlError, match="batch must be positive, got 0"):
        registry.complete_settings("tables", {"batch": 0})
    assert registry.complete_settings("rotary", {"start": 0})["start"] == 0
    with pytest.raises(whorl.WhorlError, match="repeats must be a positive integer, got 0"):
        runner.run("tables", repeats=0)


MODEL = {"layers": 1, "width": 32, "heads": 2, "device": "cpu"}
SMALL = {
    "rotary": {"length": 8, "heads": 2, "kv_heads": 1, "head_dim": 8, "dtype": "bfloat16", "device": "cpu"},
    "decode": {"batch": 2, "kept": 130, "heads": 2, "kv_heads": 1, "head_dim": 16, "device": "cpu"},
    "bias": {"length": 32, "heads": 2, "head_dim": 16, "dtype": "float32", "device": "cpu"},
    "linear": {"length": 32, "heads": 2, "head_dim": 16, "device": "cpu"},
    "precision": {"rows": 16, "head_dim": 16},
    "attention": {"length": 32, "heads": 2, "head_dim": 16, "device": "cpu", "encodings": "none,rope,alibi"},
    "generation": {"prompt": 5, "tokens": 3, "prefill": 9, **MODEL, "kv_heads": 1, "vocab": 11},
    "training": {"batch": 2, "length": 70, **MODEL, "encodings": "none,rope,kerple"},
}


@pytest.mark.parametrize("name", SMALL)
def test_every_path_of_every_benchmark_is_checked_and_right(name):
    for group in registry.benchmark(name)(**registry.complete_settings(name, SMALL[name])):
        for case in group.cases:
            if "torch.compile" in case.name or "flex" in case.name:
                continue  # compiled when it is timed
            check = case.check()
            assert check.ok and check.text, (group.name, case.name, check)
