"""Whatever model and length advise is asked for: every change that it prints, read back, serves that length alike."""

from __future__ import annotations

import json
import random
import shlex

import pytest

import whorl
from hf_configs import RELEASED
from model_cases import CASES
from whorl import WhorlError
from whorl.bridge.difference import compare
from whorl.bridge.gguf_keys import GgufKeys
from whorl.bridge.programs import read_as
from whorl.dialects import megatron, meta_params
from whorl.dialects.families import FAMILIES
from whorl.dialects.names import PARTS

pytestmark = pytest.mark.filterwarnings("ignore::whorl.dialects.families.UnknownFamily")

SIZES = {"hidden_size": 512, "num_attention_heads": 8, "num_hidden_layers": 4}
ROPES = (
    {},
    {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}},
    {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.0}},
    {"rope_scaling": {"type": "linear", "factor": 2.0}},
    {
        "rope_parameters": {
            **{"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0},
            **{"high_freq_factor": 4.0, "original_max_position_embeddings": 4096},
        }
    },
    {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
    {"sliding_window": 1024},
    {"model_max_length": 65536},
)
PUBLISHED = [given for given, _ in RELEASED.values()] + [case.config for case in CASES.values()]


def asked(pick: random.Random):
    """A config, and what to ask of it."""
    length = pick.choice((2048, 4096, 8192, 32768, 131072, 10_000))
    given = {
        "model_type": pick.choice(list(FAMILIES)),
        **SIZES,
        "max_position_embeddings": length,
        **pick.choice(ROPES),
    }
    if pick.random() < 0.3:
        given = pick.choice(PUBLISHED)
    elif pick.random() < 0.2:
        given = {"model_type": "mine", "text_config": given}
    wanted = pick.choice((1, 1000, length - 1, length, length + 1, 2 * length, 3 * length + 7, 10**6, 10**9))
    data = pick.choice((None, None, None, 1, 1000, 4096, length))
    return given, {"length": wanted, "data_length": data, "fine_tune": pick.random() < 0.3}


def overridden(given, overrides):
    """A config as a server has it after overrides, which replace the fields of the same name."""
    inner = [name for name in overrides if name in PARTS]
    if inner:
        return given | {inner[0]: overridden(given[inner[0]], overrides[inner[0]])}
    gone = ("rope_scaling", "rope_theta") if "rope_parameters" in overrides else ()
    return {key: value for key, value in given.items() if key not in gone} | overrides


def served(text, flag, option):
    """(the length, the overrides) of a server's command."""
    words = shlex.split(text)
    overrides = json.loads(words[words.index(option) + 1]) if option in words else {}
    return int(words[words.index(flag) + 1]), overrides


def arguments(text):
    """The dict that the arguments of Megatron-LM make."""
    words = shlex.split(text.replace("\\\n", " "))
    named, at = {}, 0
    while at < len(words):
        name, given = words[at][2:].replace("-", "_"), words[at + 1 : at + 2]
        if given and not given[0].startswith("--"):
            named[name], at = given[0] if name == "position_embedding_type" else _value(name, given[0]), at + 2
        else:
            named[name.removeprefix("no_")], at = not words[at].startswith("--no-"), at + 1
    return named


def _value(name, word):
    try:
        return json.loads(f"[{word}]" if name == "window_size" else word)
    except json.JSONDecodeError:
        return word


def readings(given, advice):
    """(program, reading, whether it has the rows of the file) of every change, and the length that a command has."""
    for name, text in advice.changes.items():
        if name in ("hf-both", "hf-v5"):
            versions = ("transformers4", "transformers5") if name == "hf-both" else ("transformers5",)
            yield from ((f"{name} {one}", read_as(json.loads(text), one), True) for one in versions)
        elif name == "vllm":
            length, overrides = served(text, "--max-model-len", "--hf-overrides")
            assert length == advice.length
            yield name, read_as(overridden(given, overrides), name, length=length), True
        elif name == "sglang":
            length, overrides = served(text, "--context-length", "--json-model-override-args")
            assert length == advice.length
            yield name, read_as(overridden(given, overrides), name), True
        elif name == "gguf":
            keys = json.loads(text)
            made = GgufKeys(architecture=keys["metadata"]["general.architecture"], **keys)
            yield name, made.reading(), False
        elif name == "megatron":
            yield name, megatron.read(arguments(text)), True
        elif name == "params":
            yield name, meta_params.read(json.loads(text)), False
        else:
            assert f"--ctx-size {advice.length}" in text, name


def read_back(seeds: range) -> int:
    """Asks for as many advices, and checks every change that they have; returns how many changes there were."""
    count = 0
    for seed in seeds:
        given, kwargs = asked(random.Random(seed))
        try:
            advice = whorl.advise(given, **kwargs)
        except WhorlError:
            continue
        wanted = whorl.read(given if advice.config is None else advice.config).reading
        for name, found, rows in readings(given, advice):
            claimed = found.claimed_length
            where = (seed, name, given, kwargs)
            assert claimed is not None, where
            if advice.scheme == "nothing":
                assert claimed.value >= advice.length, where
            else:
                assert claimed.value == advice.length, where
            apart = compare(wanted, found, length=advice.length, layouts=rows)
            assert all(group.equal for group in apart.groups), (where, apart.to_dict())
            count += 1
    return count


def test_every_change_serves_the_length_that_was_asked_for():
    assert read_back(range(60)) > 60


@pytest.mark.large
@pytest.mark.parametrize("start", range(100, 1700, 200))
def test_every_change_of_many_advices_serves_the_length_that_was_asked_for(start):
    assert read_back(range(start, start + 200)) > 200
