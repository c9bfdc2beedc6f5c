"""Whatever is done to a header or to the config of another program, reading ends in a result or a WhorlError, soon."""

import json
import random
import struct
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

import whorl
from dialects import (
    test_deepseek_inference,
    test_diffusers,
    test_gguf,
    test_megatron,
    test_meta_params,
    test_mistral_params,
    test_safetensors,
    test_tensorrt_llm,
)
from gguf_files import SIZES, write_gguf
from mutations import mutated
from whorl import WhorlError
from whorl.dialects.documents import MOST_COMMAS
from whorl.dialects.safetensors import LARGEST_HEADER

SAMPLE, ALL, LIMIT = 1_000, 20_000, 1.0
NUMBERS = (0, 1, 2**7, 2**8 - 1, 2**15, 2**16, 2**31 - 1, 2**32 - 1, 2**40, 2**62, 2**63, 2**64 - 1)


def gguf_files(folder: Path) -> list[bytes]:
    """Every file that the tests of GGUF read, and one with a vocabulary."""
    path, found = folder / "written.gguf", []
    for case in test_gguf.CASES.values():
        found.append(write_gguf(path, case.architecture, SIZES | case.fields, case.tensors).read_bytes())
    words = {"tokenizer.tokens": [f"token{i}" for i in range(300)], "tokenizer.scores": [0.5] * 5000}
    return [*found, write_gguf(path, "llama", SIZES | words).read_bytes()]


def safetensors_files() -> list[bytes]:
    """Headers with the shapes that the tests of safetensors read."""
    headers = [test_safetensors.records(one) for one in (test_safetensors.QWEN3, test_safetensors.LLAMA)]
    texts = [json.dumps(one | {"__metadata__": {"format": "pt"}}).encode() for one in headers]
    return [struct.pack("<Q", len(text)) + text for text in texts]


def configs() -> list[dict]:
    """Every JSON config of a dialect of its own that the tests read."""
    meta = (test_meta_params.LLAMA_2, test_meta_params.LLAMA_3 | {"use_scaled_rope": True}, test_meta_params.LLAMA_4)
    mistral = [config for config, _ in test_mistral_params.CASES.values()]
    others = (test_meta_params.QWEN3_IN_EXECUTORCH, test_deepseek_inference.V3, test_diffusers.FLUX_2)
    many = [config for module in (test_megatron, test_tensorrt_llm) for config, _ in module.CASES.values()]
    return [*meta, *mistral, *others, *many]


def changed(data: bytes, pick: random.Random) -> bytes:
    """The bytes of a file with one to three things changed; the first ones, which say what it is, stay."""
    made = bytearray(data)
    for _ in range(pick.choice((1, 1, 2, 3))):
        at = pick.randrange(4, max(5, len(made)))
        kind = pick.randrange(6)
        if kind == 0:
            made = made[:at]
        elif kind == 1 and at < len(made):
            made[at] ^= 1 << pick.randrange(8)
        elif kind == 2:
            number = struct.pack("<Q", pick.choice(NUMBERS))
            made[at : at + 8] = number[: pick.choice((1, 2, 4, 8))]
        elif kind == 3:
            made[at:at] = bytes(made[at : at + pick.randrange(64)])
        elif kind == 4:
            del made[at : at + pick.randrange(1, 16)]
        else:
            made[at : at + 4] = pick.choice((b"\xff\xff\xff\xff", b"\0\0\0\0", b"\0\0\xc0\x7f", b'"}],', b"1e99"))
    return bytes(made)


def read_one(what: str, source) -> bool:
    """Whether this could be read and built; fails on any error but a WhorlError, and on a long time."""
    begun = time.thread_time()  # threads that other tests have started may be busy
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", whorl.dialects.families.UnknownFamily)
            groups = whorl.read(source).groups
            # a table of gigabytes can be meant, and takes long to fill
            built = [
                group.encoding for group in groups if "learned" not in [one.name for one in group.layers.encodings]
            ]
    except WhorlError as error:
        assert str(error)
        built = None
    except Exception as error:
        raise AssertionError(f"{what} ended in {type(error).__name__}: {error}") from error
    assert time.thread_time() - begun < LIMIT, f"{what} took longer than {LIMIT} s"
    return built is not None


def read_headers(seeds: range, folder: Path) -> int:
    files, path, read = {"gguf": gguf_files(folder), "safetensors": safetensors_files()}, folder / "mutated", 0
    for seed in seeds:
        pick = random.Random(seed)
        path.write_bytes(changed(pick.choice(files[pick.choice(("gguf", "gguf", "safetensors"))]), pick))
        read += read_one(f"header {seed}", path)
    return read


def read_configs(seeds: range) -> int:
    known, read = configs(), 0
    names = tuple(sorted({name for config in known for name in config} | {"model_type", "rope_factor", "yarn"}))
    for seed in seeds:
        pick = random.Random(seed)
        read += read_one(f"config {seed}", mutated(pick.choice(known), names, pick))
    return read


def test_mutated_headers_end_in_a_reading_or_a_clear_error(tmp_path):
    assert SAMPLE / 20 < read_headers(range(SAMPLE), tmp_path) < SAMPLE


def test_mutated_configs_of_other_programs_end_in_a_reading_or_a_clear_error():
    assert SAMPLE / 20 < read_configs(range(SAMPLE)) < SAMPLE


@pytest.mark.large
def test_all_mutated_headers_end_in_a_reading_or_a_clear_error(tmp_path):
    assert ALL / 20 < read_headers(range(SAMPLE, SAMPLE + ALL), tmp_path) < ALL


@pytest.mark.large
def test_all_mutated_configs_of_other_programs_end_in_a_reading_or_a_clear_error():
    assert ALL / 20 < read_configs(range(SAMPLE, SAMPLE + ALL)) < ALL


# --- headers that claim more than they hold


def header(pairs: int = 0, tensors: int = 0, rest: bytes = b"") -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, pairs) + rest


def text(value: bytes, claimed: int | None = None) -> bytes:
    return struct.pack("<Q", len(value) if claimed is None else claimed) + value


def array(kind: int, count: int, rest: bytes = b"") -> bytes:
    return text(b"key") + struct.pack("<IIQ", 9, kind, count) + rest


TENSOR = text(b"t") + struct.pack("<IQIQ", 1, 4, 0, 0)

LYING = {
    "no more than the magic": (b"GGUF", "it ends within its metadata"),
    "the first version": (b"GGUF" + struct.pack("<I", 1), "version 1 of the format is none of (2, 3)"),
    "a version to come": (b"GGUF" + struct.pack("<I", 4), "version 4 of the format"),
    "2^63 pairs": (header(pairs=2**63), f"it claims 0 tensors and {2**63} metadata pairs"),
    "2^63 tensors": (header(tensors=2**63), f"it claims {2**63} tensors and 0 metadata pairs"),
    "pairs that are not there": (header(pairs=1), "it ends within its metadata"),
    "a key of 2^40 bytes": (header(1, 0, text(b"", 2**40)), f"it has a string of {2**40} bytes"),
    "a key that is no text": (header(1, 0, text(b"\xff")), "it has a string that is not UTF-8 text"),
    "a text of 2^63 bytes": (
        header(1, 0, text(b"key") + struct.pack("<IQ", 8, 2**63)),
        f"it has a string of {2**63} bytes",
    ),
    "a type that is none": (header(1, 0, text(b"key") + struct.pack("<I", 13)), "a value of the unknown type 13"),
    "2^62 numbers": (header(1, 0, array(4, 2**62)), "its metadata takes more than"),
    "2^63 strings": (header(1, 0, array(8, 2**63)), "strings in arrays"),
    "strings that are not there": (header(1, 0, array(8, 2**20)), "it ends within its metadata"),
    "a string that ends beyond all": (header(1, 0, array(8, 2, text(b"", 2**63))), "its metadata takes more than"),
    "arrays of arrays": (header(1, 0, array(9, 1)), "it has an array of type 9"),
    "a key twice": (header(2, 0, (text(b"key") + struct.pack("<IB", 0, 1)) * 2), "the key 'key' stands there twice"),
    "a tensor twice": (header(0, 2, TENSOR * 2), "the tensor 't' stands there twice"),
    "a tensor of 5 dimensions": (header(0, 1, text(b"t") + struct.pack("<I", 5)), "the tensor 't' has 5 dimensions"),
    "a tensor at 2^63": (
        header(0, 1, text(b"t") + struct.pack("<IIQ", 0, 0, 2**63)),
        f"the tensor 't' begins at byte {2**63}",
    ),
    "an alignment of 3": (
        header(1, 0, text(b"general.alignment") + struct.pack("<II", 4, 3)),
        "general.alignment is 3 and no power of two up to 65536",
    ),
}


@pytest.mark.parametrize("name", LYING)
def test_a_header_that_claims_more_than_it_holds_is_refused(name, tmp_path):
    data, why = LYING[name]
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    begun = time.thread_time()  # threads that other tests have started may be busy
    with pytest.raises(WhorlError) as error:
        whorl.read(path)
    assert why in str(error.value) and time.thread_time() - begun < LIMIT


def test_every_beginning_of_a_file_is_refused(tmp_path):
    """But the last, from which only padding and weights are missing."""
    whole = write_gguf(tmp_path / "whole.gguf", "llama", SIZES, {"rope_freqs.weight": [1.0] * 64}).read_bytes()
    path = tmp_path / "cut.gguf"
    for end in range(8, len(whole)):
        path.write_bytes(whole[:end])
        with pytest.raises(WhorlError, match="it ends within"):
            whorl.read(path)
    for text_end in range(9, len(start := safetensors_files()[0])):
        path.write_bytes(start[:text_end])
        with pytest.raises(WhorlError, match="it ends within its header"):
            whorl.read(path)


def tensors(count: int) -> bytes:
    return b"".join(text(b"%06d" % i) + struct.pack("<IIQ", 0, 0, 0) for i in range(count))


def safetensors(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + data


LARGE = {
    "the most strings": lambda: header(1, 0, array(8, 2**21, bytes(8 * 2**21))),
    "the most tensors": lambda: header(0, 2**15, tensors(2**15)),
    "the most numbers": lambda: header(
        2**10, 0, b"".join(text(b"%04d" % i) + struct.pack("<IIQ", 9, 6, 2**12) + bytes(2**14) for i in range(2**10))
    ),
    "the most empty dicts": lambda: safetensors(b'{"a":[' + b"{}," * MOST_COMMAS + b"{}]}"),
    "the most names": lambda: safetensors(b"{" + b",".join(b'"%d":{}' % i for i in range(MOST_COMMAS)) + b"}"),
    "more than the most": lambda: safetensors(b'{"a":[' + b"1," * (LARGEST_HEADER // 2 - 5) + b"1]}"),
}


# Reads a file in a process of its own, where no garbage of other tests is collected meanwhile; prints how long it took.
TIMED = """
import sys, time
from pathlib import Path
from whorl.dialects.detect import read_document
from whorl.errors import WhorlError
begun = time.process_time()
try:
    read_document(Path(sys.argv[1]))
except WhorlError:
    print(time.process_time() - begun)
"""


@pytest.mark.parametrize("name", LARGE)
def test_the_most_that_is_allowed_takes_less_than_the_limit(name, tmp_path):
    path = tmp_path / "large"
    path.write_bytes(LARGE[name]())
    done = subprocess.run([sys.executable, "-c", TIMED, str(path)], capture_output=True, text=True, check=True)
    assert float(done.stdout) < LIMIT
