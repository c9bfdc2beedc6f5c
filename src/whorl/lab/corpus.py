"""Corpora: bytes of text, split by document into a part to train on and a part to test on, memory-mapped.

"stdlib" is the source of Python's standard library without its tests: real text on every machine. "site-packages" is
the Python source installed beside it. Any other name is a file, a folder of text files, or a pattern like
``texts/**/*.txt``. Documents are split by what they contain, so no text is on both sides, not even under two names.

    source ─► documents ─► split by content ─► STORE/<digest>/{train.bin, test.bin, corpus.json} ─► memory maps
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from whorl.dialects.documents import kind_of, named, read_bytes, size_of
from whorl.errors import WhorlError, invalid
from whorl.lab.storage import MAKE_ANEW, is_there, read_json, whole_folder

MOST_BYTES = 128 * 2**20  # of a folder or file; files are taken in the order of a hash of their path
TEST_SHARE = 0.1
LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
MARKS = "*?["  # of a pattern
SNIFF, FIRST = 2**13, 2**17  # bytes that tell a binary file, and those read before it is known to be text
FACTS = "corpus.json"


@dataclass(frozen=True, eq=False)
class Corpus:
    """Text to train on, documents to test on, and what they hash to."""

    name: str
    digest: str
    train: np.ndarray  # uint8, all documents one after another
    test: np.ndarray
    test_documents: tuple[tuple[int, int], ...]  # [start, stop) of each in ``test``
    documents: int  # on both sides
    left_out_bytes: int = 0  # text past MOST_BYTES
    test_sizes: np.ndarray | None = None  # bytes of each token of ``test``, where they are no bytes
    bytes_per_token: float = 1.0

    def facts(self) -> dict[str, Any]:
        """What a report says of the text."""
        return {
            "name": self.name,
            "digest": self.digest,
            "train_bytes": len(self.train),
            "test_bytes": len(self.test),
            "documents": self.documents,
            "left_out_bytes": self.left_out_bytes,
        }

    def fitting(self, length: int) -> int:
        """How many samples of a length the test text has."""
        return sum((stop - start) // (length + 1) for start, stop in self.test_documents)

    def samples(self, length: int, count: int, *, sizes: bool = False) -> np.ndarray:
        """(n, length + 1) bytes of test text, n at most ``count``: pieces of documents that are as long, never of two.

        The same for every run on this text. Documents take turns, so that a long one does not outweigh the others.
        Where the text is tokens, these are, and with ``sizes`` the bytes of each.
        """
        span = length + 1
        fitting = [(start, stop) for start, stop in self.test_documents if stop - start >= span]
        if not fitting:
            longest = max(stop - start for start, stop in self.test_documents)
            raise invalid(
                "lab",
                "lengths",
                f"below {longest}, the longest test document of {self.name}",
                length,
                f"Evaluate at {longest - 1} at most, or give text with longer documents.",
            )
        order = np.random.default_rng(0)
        starts: list[list[int]] = []
        for start, stop in (fitting[i] for i in order.permutation(len(fitting))):
            pieces = (stop - start) // span
            shift = int(order.integers(stop - start - pieces * span + 1))
            starts.append([start + shift + int(i) * span for i in order.permutation(pieces)])
        turns = [pieces[turn] for turn in range(max(map(len, starts))) for pieces in starts if turn < len(pieces)]
        read = self.test if not sizes else np.ones_like(self.test) if self.test_sizes is None else self.test_sizes
        return np.stack([read[start : start + span] for start in turns[:count]])


def open_corpus(source: str, store: Path, digest: str = "") -> Corpus:
    """The corpus of that name, packed under ``store`` for all runs to share; ``digest`` is what it must hash to.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> corpus = open_corpus("stdlib", Path(folder.name))
    >>> len(corpus.train) > 5 * len(corpus.test) > 0, corpus.train.dtype
    (True, dtype('uint8'))
    >>> del corpus; folder.cleanup()
    """
    if digest and is_there(store / digest / FACTS):
        return _mapped(store / digest)
    corpus = read_corpus(source)
    if digest and corpus.digest != digest:
        raise WhorlError(
            f"lab: the text of {source} has changed: its digest is {corpus.digest}, the run has {digest}. Run it anew."
        )
    return pack(corpus, store)


def read_corpus(source: str) -> Corpus:
    """The corpus of that name, in memory; nothing is written."""
    documents, left_out = read_documents(source)
    train, test = split(documents)
    ends = np.cumsum([len(text) for text in test]).tolist()
    return Corpus(
        name=source,
        digest=_digest(train, test),
        train=np.frombuffer(b"".join(train), dtype=np.uint8),
        test=np.frombuffer(b"".join(test), dtype=np.uint8),
        test_documents=tuple(zip([0, *ends[:-1]], ends, strict=True)),
        documents=len(documents),
        left_out_bytes=left_out,
    )


def pack(corpus: Corpus, store: Path) -> Corpus:
    """The same corpus, memory-mapped from files under ``store``, which are written unless they are there."""
    place = store / corpus.digest
    if not is_there(place / FACTS):
        with whole_folder(place, "the text", FACTS) as made:
            corpus.train.tofile(made / "train.bin")
            corpus.test.tofile(made / "test.bin")
            facts = corpus.facts() | {"test_documents": corpus.test_documents}
            (made / FACTS).write_text(json.dumps(facts), encoding="utf-8")
    return _mapped(place)


def read_documents(source: str) -> tuple[list[bytes], int]:
    """The texts a corpus name stands for, each once, and how many bytes beyond MOST_BYTES were left out."""
    if not isinstance(source, str) or not source:
        raise invalid("lab", "corpus", "'stdlib', 'site-packages', a file or a folder", source)
    if source in ("stdlib", "site-packages"):
        path = Path(sysconfig.get_paths()["stdlib" if source == "stdlib" else "purelib"])
        files = _files(path, LEFT_OUT if source == "stdlib" else {"__pycache__"}, ".py")
    elif any(mark in source for mark in MARKS) and not os.path.exists(Path(source).expanduser()):
        files = _matching(source)
    else:
        path = Path(source).expanduser()
        if not os.path.exists(path):  # which no name is too long for
            raise WhorlError(
                f"lab: no corpus at {named(source)}. Give a file or a folder of text, or leave --corpus out."
            )
        if kind_of(path, "lab") != "folder":
            return _one_file(path)
        files = _files(path, {"__pycache__"}, "")
    texts, left_out = _read(files)
    if not texts:
        raise WhorlError(f"lab: no text in {named(source)}. Give a file or a folder with files of text.")
    return texts, left_out


def split(documents: list[bytes]) -> tuple[list[bytes], list[bytes]]:
    """Documents to train on and to test on: about a tenth of the bytes by the order of their hashes; one is cut."""
    if len(documents) == 1:
        cut = int(len(documents[0]) * (1 - TEST_SHARE))
        return [documents[0][:cut]], [documents[0][cut:]]
    ordered = sorted(documents, key=lambda text: hashlib.sha256(text).digest())
    wanted = TEST_SHARE * sum(map(len, ordered))
    test: list[bytes] = []
    taken: set[int] = set()
    for i, text in enumerate(ordered):
        if sum(map(len, test)) + len(text) <= 1.5 * wanted and len(taken) < len(ordered) - 1:
            test.append(text)
            taken.add(i)
        if sum(map(len, test)) >= wanted:
            break
    if not test:  # every document is larger than the share: the smallest serves
        i = min(range(len(ordered)), key=lambda i: len(ordered[i]))
        test, taken = [ordered[i]], {i}
    return [text for i, text in enumerate(ordered) if i not in taken], test


def _files(folder: Path, left_out: set[str], ending: str) -> Iterator[str]:
    for home in _folders(str(folder), left_out):
        yield from (
            entry.path
            for entry in _entries(home)
            if entry.name.endswith(ending) and entry.name[0] != "." and not _is_folder(entry)
        )


def _matching(pattern: str) -> Iterator[str]:
    """What a pattern names: ``*``, ``?`` and ``[]`` inside a name, ``**`` for any folders between."""
    parts = Path(pattern).parts
    fixed = next((place for place, part in enumerate(parts) if any(mark in part for mark in MARKS)), len(parts))
    homes = [str(Path(*parts[:fixed]))]
    for part in (*parts[fixed:], *(["*"] if parts[-1] == "**" else [])):
        if part == "**":
            homes = list(dict.fromkeys(below for home in homes for below in _folders(home, set())))
        else:
            homes = [
                entry.path
                for home in homes
                for entry in _entries(home)
                if fnmatchcase(entry.name, part) and (entry.name[0] != "." or part[0] == ".")
            ]
    return iter(homes)


def _folders(home: str, left_out: set[str]) -> Iterator[str]:
    """A folder and those below it. Links are not followed: two that lead back up would never end."""
    todo = [home]
    while todo:
        folder = todo.pop()
        yield folder
        todo += [
            entry.path
            for entry in _entries(folder)
            if entry.name not in left_out and entry.name[0] != "." and _is_folder(entry) and not entry.is_symlink()
        ]


def _entries(folder: str) -> list[os.DirEntry[str]]:
    """What lies in a folder; nothing where it is none, or not ours to look into."""
    with contextlib.suppress(OSError, ValueError), os.scandir(folder) as found:
        return list(found)
    return []


def _is_folder(entry: os.DirEntry[str]) -> bool:
    with contextlib.suppress(OSError):  # links in a circle
        return entry.is_dir()
    return False


def _read(files: Iterator[str]) -> tuple[list[bytes], int]:
    """The texts among files, each content once, until MOST_BYTES are read; in an order that no folder decides."""
    texts: dict[bytes, bytes] = {}
    size = left_out = 0
    for name in sorted(files, key=lambda name: hashlib.sha256(os.fsencode(name)).digest()):
        try:
            own = size_of(name, "lab")
            if size + own > MOST_BYTES:
                left_out += own
                continue
            # no more than it says to have: files that the system makes up as they are read say 0, and some never end
            text = read_bytes(name, at_most=min(FIRST, own), call="lab")
            if not text[:SNIFF].strip() or is_binary(text[:SNIFF]):
                continue
            if own > FIRST:
                text += read_bytes(name, at_most=own - FIRST, start=FIRST, call="lab")
        except WhorlError:  # gone, not ours to read, or no file but a pipe
            continue
        if not is_binary(text):
            texts.setdefault(hashlib.sha256(text).digest(), text)
            size += len(text)
    return list(texts.values()), left_out


def _one_file(path: Path) -> tuple[list[bytes], int]:
    remedy = "Give a file of text, or a folder of them."
    own = size_of(path, "lab", remedy)
    text = read_bytes(path, at_most=min(own, MOST_BYTES), call="lab", remedy=remedy)
    if is_binary(text):
        raise WhorlError(f"lab: {path} is a binary file. {remedy}")
    if not text.strip():
        raise WhorlError(f"lab: {path} is empty. Give a file with text.")
    return [text], own - len(text)


def is_binary(data: bytes) -> bool:
    """Whether bytes hold a zero, or more control characters than text has."""
    if b"\0" in data:
        return True
    values = np.frombuffer(data, dtype=np.uint8)
    control = (values < 32) & ~np.isin(values, (9, 10, 12, 13, 27))
    return int(control.sum()) > 0.01 * len(data)


def _digest(train: list[bytes], test: list[bytes]) -> str:
    found = hashlib.sha256()
    for side in (train, test):
        found.update(len(side).to_bytes(8, "little"))
        for text in side:
            found.update(hashlib.sha256(text).digest())
    return found.hexdigest()[:16]


def packed_facts(source: str, store: Path, digest: str) -> dict[str, Any]:
    """What is known of a text packed under ``store``: of a folder that was moved without it, its facts are enough."""
    if not is_there(store / digest / FACTS):
        return open_corpus(source, store, digest).facts()
    facts = _read_facts(store / digest)
    return {key: value for key, value in facts.items() if key != "test_documents"}


def _read_facts(folder: Path) -> dict[str, Any]:
    try:
        facts = read_json(folder / FACTS)
    except WhorlError:
        raise _damaged(folder) from None
    if not _are_facts(facts):
        raise _damaged(folder)
    return facts


def _are_facts(facts: Any) -> bool:
    """Whether this is what ``pack`` wrote: names, counts of bytes, and where each test document starts and stops."""
    if not isinstance(facts, dict) or not all(isinstance(facts.get(name), str) for name in ("name", "digest")):
        return False
    counts = [facts.get(name) for name in ("train_bytes", "test_bytes", "documents", "left_out_bytes")]
    spans = facts.get("test_documents")
    if not isinstance(spans, list) or not spans or not all(isinstance(span, list) and len(span) == 2 for span in spans):
        return False
    if not all(type(number) is int and number >= 0 for number in (*counts, *(end for span in spans for end in span))):
        return False
    return all(start <= stop <= facts["test_bytes"] for start, stop in spans)


def _damaged(folder: Path) -> WhorlError:
    return WhorlError(f"lab: the text in {folder} is damaged. {MAKE_ANEW}")


def _mapped(folder: Path) -> Corpus:
    facts = _read_facts(folder)
    found = Corpus(
        name=facts["name"],
        digest=facts["digest"],
        train=_map(folder / "train.bin"),
        test=_map(folder / "test.bin"),
        test_documents=tuple((start, stop) for start, stop in facts["test_documents"]),
        documents=facts["documents"],
        left_out_bytes=facts["left_out_bytes"],
    )
    if (len(found.train), len(found.test)) != (facts["train_bytes"], facts["test_bytes"]):
        raise _damaged(folder)
    return found


def _map(path: Path) -> np.ndarray:
    if kind_of(path, "lab") != "file":
        raise _damaged(path.parent)
    if not path.stat().st_size:
        return np.empty(0, dtype=np.uint8)
    try:
        return np.memmap(path, dtype=np.uint8, mode="r")
    except OSError:  # not ours to read
        raise _damaged(path.parent) from None
