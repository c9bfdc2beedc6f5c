"""Whatever is done to a config, diff, export and advise end in a result or in a WhorlError."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

import whorl
from hf_configs import RELEASED
from model_cases import CASES
from mutations import mutated
from whorl import WhorlError
from whorl.bridge.exports import TARGETS
from whorl.bridge.programs import PROGRAMS
from whorl.dialects.names import LENGTHS, ORIGINAL

pytestmark = pytest.mark.filterwarnings("ignore::whorl.dialects.families.UnknownFamily")  # mutations make many

CONFIGS = [given for given, _ in RELEASED.values()] + [case.config for case in CASES.values()]
NAMES = (
    *("rope_theta", "rope_scaling", "rope_parameters", "rope_type", "factor", "attn_factor", "attention_factor"),
    *("mscale", "mscale_all_dim", "extrapolation_factor", "max_trained_positions", "long_mscale", ORIGINAL, *LENGTHS),
)


def answered(seeds: Iterable[int]) -> int:
    """Asks as many mutated configs for a difference, an export and an advice; returns how many were answered."""
    count = 0
    for seed in seeds:
        pick = random.Random(seed)
        config = mutated(pick.choice(CONFIGS), NAMES, pick)
        programs, target, length = pick.sample(list(PROGRAMS), 2), pick.choice(list(TARGETS)), pick.choice((64, 2**20))
        for ask in (
            lambda: whorl.diff(config, programs=programs),  # noqa: B023
            lambda: whorl.export(config, target),  # noqa: B023
            lambda: whorl.advise(config, length=length),  # noqa: B023
        ):
            try:
                ask()
                count += 1
            except WhorlError as error:
                assert str(error)
            except Exception as error:
                raise AssertionError(f"mutation {seed}: {config}") from error
    return count


def test_mutated_configs_end_well():
    # the last two have failed: a list for a second length, a tensor for a rope dict
    assert answered([*range(120), 986, 2215]) > 30


@pytest.mark.large
@pytest.mark.parametrize("start", range(0, 4000, 400))
def test_many_mutated_configs_end_well(start):
    assert answered(range(start, start + 400)) > 100
