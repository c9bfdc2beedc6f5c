"""Tokens in place of bytes: a text read with a file of the tokenizers library, each token with its share of the bytes.

    Corpus of bytes ─► tokenizer ─► Corpus of tokens ─► STORE/<digest of text>-<digest of file>/*.npy ─► memory maps

A token counts the bytes from the end of the token before it to its own end, so that the tokens of a text add up to it,
whatever is dropped between them, and losses stay bits per byte.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from whorl import WhorlError
from whorl.dialects.documents import kind_of, read_whole
from whorl.errors import invalid
from whorl.lab.corpus import Corpus
from whorl.lab.probes import Letters
from whorl.lab.settings import RunConfig
from whorl.lab.storage import MAKE_ANEW, is_there, whole_folder

LARGEST = 2**28  # bytes of a tokenizer's file
CHUNK = 2**16  # bytes encoded at a time, up to the end of a line
ARRAYS = ("train", "test", "test_sizes", "test_documents")


class Tokenizer:
    """A file of the tokenizers library, as ``Tokenizer.save`` writes it.

    ``digest`` is what it must hash to, where a run was made with it.
    """

    def __init__(self, file: str | Path, digest: str = "") -> None:
        try:
            from tokenizers import Tokenizer as Real
        except ImportError:
            raise WhorlError("lab: a tokenizer needs the tokenizers library. Run: pip install tokenizers.") from None
        path = Path(file).expanduser()
        data = read_whole(path, "a tokenizer", at_most=LARGEST, call="lab", remedy="Pass a tokenizer.json.")
        self.digest = hashlib.sha256(data).hexdigest()[:16]
        if digest not in ("", self.digest):
            raise WhorlError(
                f"lab: the tokenizer {file} has changed: its digest is {self.digest}, the run has {digest}. "
                "Bring the old file back, or run it anew."
            )
        try:
            self._real: Any = Real.from_str(data.decode())
        except Exception as error:  # whatever the library raises for what is none
            raise WhorlError(f"lab: {file} is no tokenizer: {error}. Pass a tokenizer.json.") from None

    @property
    def vocab(self) -> int:
        """How many tokens there are."""
        return self._real.get_vocab_size()

    def encode(self, text: bytes) -> tuple[np.ndarray, np.ndarray]:
        """The tokens of a text, and how many of its bytes each counts; what is no UTF-8 reads as U+FFFD."""
        ids, sizes = [np.empty(0, np.uint32)], [np.empty(0, np.uint32)]
        before = 0  # bytes that no token has yet
        for start, stop in _chunks(text):
            letters = text[start:stop].decode(errors="replace")
            found = self._real.encode(letters, add_special_tokens=False)
            at = np.concatenate(([0], np.cumsum([len(letter.encode()) for letter in letters])))  # of each letter
            if not found.ids:
                before += int(at[-1])
                continue
            ends = np.maximum.accumulate([0, *(end for _, end in found.offsets)])
            ends[-1] = len(letters)
            own = np.diff(at[ends]).astype(np.uint32)
            own[0] += before
            before = 0
            ids.append(np.array(found.ids, dtype=np.uint32))
            sizes.append(own)
        if before and sizes[-1].size:
            sizes[-1][-1] += before
        return np.concatenate(ids), np.concatenate(sizes)

    def decode(self, ids: list[int]) -> str:
        """The text of tokens."""
        return self._real.decode(ids, skip_special_tokens=False)

    @cached_property
    def letters(self) -> Letters | None:
        """The tokens of single letters, a new line and a space, which probes are written in; None without them."""
        found = [self._real.encode(one, add_special_tokens=False).ids for one in (*map(chr, range(97, 123)), "\n", " ")]
        if any(len(ids) != 1 for ids in found) or len({ids[0] for ids in found}) < len(found):
            return None
        *letters, line, space = (ids[0] for ids in found)
        return Letters(tuple(letters), line, space)


def _chunks(text: bytes) -> list[tuple[int, int]]:
    """Where a text may be cut for encoding: behind the end of a line, about every CHUNK bytes."""
    cuts = [0]
    while cuts[-1] < len(text):
        end = text.find(b"\n", cuts[-1] + CHUNK)
        cuts.append(len(text) if end < 0 else end + 1)
    return list(itertools.pairwise(cuts))


def tokenized(corpus: Corpus, tokenizer: Tokenizer) -> Corpus:
    """A corpus of tokens, made of one of bytes; documents stay what they are."""
    train, _ = tokenizer.encode(corpus.train.tobytes())
    parts = [tokenizer.encode(corpus.test[start:stop].tobytes()) for start, stop in corpus.test_documents]
    ends = np.cumsum([len(ids) for ids, _ in parts]).tolist()
    return dataclasses.replace(
        corpus,
        train=train,
        test=np.concatenate([ids for ids, _ in parts]),
        test_sizes=np.concatenate([sizes for _, sizes in parts]),
        test_documents=tuple(zip([0, *ends[:-1]], ends, strict=True)),
        bytes_per_token=len(corpus.train) / max(1, len(train)),
    )


def open_tokens(corpus: Corpus, config: RunConfig, store: Path, *, made: Corpus | None = None) -> Corpus:
    """The corpus as a run reads it: bytes, or tokens, which are kept under ``store`` for all runs to share.

    ``made`` are the tokens where the caller has them already.
    """
    if not config.tokenizer:
        return corpus
    place = store / f"{corpus.digest}-{config.tokenizer_digest}"
    if not is_there(place):
        made = made or tokenized(corpus, Tokenizer(config.tokenizer, config.tokenizer_digest))
        with whole_folder(place, "the tokens") as folder:
            for name in ARRAYS:
                np.save(folder / f"{name}.npy", np.asarray(getattr(made, name)))
    found = {name: _array(place / f"{name}.npy") for name in ARRAYS}
    spans, size = found.pop("test_documents"), len(found["test"])
    ordered = (spans[:, 0] >= 0) & (spans[:, 0] <= spans[:, 1]) & (spans[:, 1] <= size)
    if size != len(found["test_sizes"]) or not ordered.all():
        raise _damaged(place)
    documents = tuple((int(start), int(stop)) for start, stop in spans)
    ratio = len(corpus.train) / max(1, len(found["train"]))
    return dataclasses.replace(corpus, **found, test_documents=documents, bytes_per_token=ratio)


def _array(path: Path) -> np.ndarray:
    if kind_of(path, "lab") != "file":
        raise _damaged(path.parent)
    try:
        found = np.load(path, mmap_mode="r")
    except (OSError, ValueError, EOFError):  # not ours to read, cut short, or no array
        raise _damaged(path.parent) from None
    axes = found.shape[1:] == (2,) if path.stem == "test_documents" else found.ndim == 1
    if found.dtype.kind not in "iu" or not axes:
        raise _damaged(path.parent)
    return found


def _damaged(folder: Path) -> WhorlError:
    return WhorlError(f"lab: the tokens in {folder} are damaged. {MAKE_ANEW}")


def text_of(config: RunConfig, tokens: list[int]) -> str:
    """The text of tokens of a run; bytes that are no UTF-8 become U+FFFD."""
    if config.tokenizer:
        return Tokenizer(config.tokenizer, config.tokenizer_digest).decode(tokens)
    return bytes(tokens).decode(errors="replace")


def tokens_of(config: RunConfig, text: str) -> list[int]:
    """The tokens of a text, as a run reads it; bytes that a command line could not decode are bytes again."""
    try:
        data = text.encode(errors="surrogateescape")
    except (AttributeError, UnicodeEncodeError):  # no text, or halves of letters
        raise invalid("generate", "prompt", "a text that UTF-8 can hold", text) from None
    if config.tokenizer:
        return Tokenizer(config.tokenizer, config.tokenizer_digest).encode(data)[0].tolist()
    return list(data)
