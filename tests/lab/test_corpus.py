"""Corpora and batches: what is read, how it is split, and that a batch is a function of seed and step."""

from __future__ import annotations

import itertools
import json
import sysconfig
from pathlib import Path

import numpy as np
import pytest

from lab_runs import tiny, write_texts
from whorl.errors import WhorlError
from whorl.lab import corpus as corpora
from whorl.lab.batches import TextBatches
from whorl.lab.corpus import Corpus, is_binary, open_corpus, pack, read_corpus, read_documents, split


def numbers(size: int) -> np.ndarray:
    """A text in which every place can be told from every other by 4 bytes."""
    return np.arange(size, dtype=np.uint32).view(np.uint8)


def made_of(test: list[bytes], train: bytes = b"x" * 1000) -> Corpus:
    ends = np.cumsum([len(text) for text in test]).tolist()
    spans = tuple(zip([0, *ends[:-1]], ends, strict=True))
    sides = (np.frombuffer(side, dtype=np.uint8) for side in (train, b"".join(test)))
    return Corpus("made", "", *sides, spans, len(test) + 1)


# -- what is read -----------------------------------------------------------------------------------------------------


def test_the_standard_library_is_sources_without_tests(tmp_path):
    documents, left_out = read_documents("stdlib")
    home = Path(sysconfig.get_paths()["stdlib"])
    assert left_out == 0 and (home / "inspect.py").read_bytes() in documents
    assert sum(map(len, documents)) > 5e6 and max(map(len, documents)) > 3e5
    assert len(set(documents)) == len(documents)
    for package in ("test", "unittest/test", "tkinter/test", "site-packages"):
        for path in list((home / package).glob("*.py"))[:20] if (home / package).is_dir() else ():
            text = path.read_bytes()
            assert len(text) < 200 or text not in documents, path


def test_a_folder_is_its_texts_each_once_whatever_their_order(tmp_path):
    for folder, names in (("a", "abc"), ("b", "cba")):
        (tmp_path / folder / "deep").mkdir(parents=True)
        for name in names:
            (tmp_path / folder / "deep" / name).write_text(f"the text of {name} " * 20)
        (tmp_path / folder / "again").write_text("the text of a " * 20)
        (tmp_path / folder / "binary").write_bytes(bytes(range(256)) * 10)
        (tmp_path / folder / "late").write_bytes(b"text " * 5000 + b"\0")
        (tmp_path / folder / "empty").write_text(" \n")
        (tmp_path / folder / ".hidden").write_text("not this " * 20)
        (tmp_path / folder / "__pycache__").mkdir()
        (tmp_path / folder / "__pycache__" / "x").write_text("nor this " * 20)
    documents, _ = read_documents(str(tmp_path / "a"))
    assert sorted(documents) == [(f"the text of {name} " * 20).encode() for name in "abc"]
    assert read_corpus(str(tmp_path / "a")).digest == read_corpus(str(tmp_path / "b")).digest


def test_a_pattern_names_files(tmp_path):
    write_texts(tmp_path / "deep", files=3)
    (tmp_path / "deep" / "x.md").write_text("left out")
    documents, _ = read_documents(str(tmp_path / "**" / "*.txt"))
    assert len(documents) == 3 and b"left out" not in documents


def test_a_name_that_is_there_is_no_pattern(tmp_path):
    (tmp_path / "a[1].txt").write_text("in a file " * 20)
    assert read_documents(str(tmp_path / "a[1].txt"))[0] == [b"in a file " * 20]
    (tmp_path / "a1.txt").write_text("by a pattern " * 20)
    assert read_documents(str(tmp_path / "a[12].txt"))[0] == [b"by a pattern " * 20]
    write_texts(tmp_path / "[x]", files=3)
    assert len(read_documents(str(tmp_path / "[x]"))[0]) == 3


def test_more_text_than_fits_is_left_out_and_said(tmp_path, monkeypatch):
    write_texts(tmp_path, files=10, size=1000)
    monkeypatch.setattr(corpora, "MOST_BYTES", 4500)
    documents, left_out = read_documents(str(tmp_path))
    assert len(documents) == 4 and left_out == 6000
    assert read_corpus(str(tmp_path)).facts()["left_out_bytes"] == 6000


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: path / "nowhere", "no corpus at"),
        (lambda path: path, "no text in"),
        (lambda path: _written(path / "x", b"\x7fELF\0\0"), "is a binary file"),
        (lambda path: _written(path / "x", bytes(range(1, 9)) * 100), "is a binary file"),
        (lambda path: _written(path / "x", b""), "is empty"),
    ],
)
def test_what_is_no_text_is_an_error(tmp_path, make, said):
    with pytest.raises(WhorlError, match=said):
        read_corpus(str(make(tmp_path)))


def _written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_text_of_any_language_is_text():
    assert not is_binary("旋转位置编码\r\n\tрусский \x1b[0m".encode())
    assert not is_binary("编码".encode("gbk") * 50)


# -- how it is split --------------------------------------------------------------------------------------------------


def test_about_a_tenth_is_for_testing_and_no_document_is_on_both_sides(tmp_path):
    write_texts(tmp_path, files=40)
    documents, _ = read_documents(str(tmp_path))
    train, test = split(documents)
    assert sorted(train + test) == sorted(documents) and not set(train) & set(test)
    assert 0.05 < sum(map(len, test)) / sum(map(len, documents)) < 0.2
    assert split(documents[::-1]) == (train, test)


def test_a_few_large_documents_still_have_one_to_test_on():
    train, test = split([b"a" * 900, b"b" * 1000, b"c" * 1100])
    assert test == [b"a" * 900] and len(train) == 2


def test_one_file_is_cut_in_two(tmp_path):
    path = _written(tmp_path / "one.txt", b"0123456789" * 100)
    corpus = read_corpus(str(path))
    assert corpus.train.tobytes() + corpus.test.tobytes() == path.read_bytes()
    assert len(corpus.test) == 100 and corpus.test_documents == ((0, 100),)


# -- how it is kept ---------------------------------------------------------------------------------------------------


def test_a_packed_corpus_is_the_same_and_mapped(tmp_path):
    write_texts(tmp_path / "texts")
    corpus = read_corpus(str(tmp_path / "texts"))
    packed = pack(corpus, tmp_path / "store")
    assert isinstance(packed.train, np.memmap) and packed.facts() == corpus.facts()
    assert (packed.train == corpus.train).all() and (packed.test == corpus.test).all()
    assert packed.test_documents == corpus.test_documents
    again = open_corpus("gone", tmp_path / "store", corpus.digest)  # the text itself is not needed any more
    assert (again.train == corpus.train).all()
    assert [path.name for path in (tmp_path / "store").iterdir()] == [corpus.digest]


def test_another_text_has_another_digest_and_does_not_pass_for_the_first(tmp_path):
    texts = write_texts(tmp_path / "texts")
    digest = read_corpus(str(texts)).digest
    (texts / "0.txt").write_text((texts / "0.txt").read_text() + "!")
    assert read_corpus(str(texts)).digest != digest
    with pytest.raises(WhorlError, match=f"has changed: its digest is .*, the run has {digest}"):
        open_corpus(str(texts), tmp_path / "store", digest)


# -- samples to test on -----------------------------------------------------------------------------------------------


def test_a_sample_is_of_one_document_and_documents_take_turns():
    test = [bytes([65 + i]) * 100 for i in range(5)] + [b"z" * 10]
    corpus = made_of(test)
    samples = corpus.samples(30, 12)
    assert samples.shape == (12, 31)
    assert all(len(set(row)) == 1 for row in samples.tolist())
    assert sorted(row[0] for row in samples[:5].tolist()) == [65, 66, 67, 68, 69]
    assert (corpus.samples(30, 12) == samples).all()
    assert corpus.samples(30, 1000).shape == (15, 31)  # all there are


def test_samples_of_a_document_do_not_overlap():
    corpus = made_of([numbers(400).tobytes()])
    samples = corpus.samples(99, 100)
    assert len(samples) == 16
    starts = sorted(corpus.test.tobytes().index(row.tobytes()) for row in samples)
    assert all(b - a >= 100 for a, b in itertools.pairwise(starts))


def test_lengths_beyond_the_documents_are_an_error_that_says_which_fits():
    with pytest.raises(WhorlError, match=r"below 100, the longest test document of made, got 100.*Evaluate at 99"):
        made_of([b"a" * 100]).samples(100, 1)
    assert made_of([b"a" * 100]).samples(99, 1).shape == (1, 100)


# -- batches ----------------------------------------------------------------------------------------------------------


def test_every_piece_comes_once_before_any_comes_again(tmp_path):
    texts = write_texts(tmp_path)
    config = tiny(texts, steps=1000)
    text = numbers(4 * 1000)
    corpus = Corpus("numbers", "", text, text, ((0, len(text)),), 1)
    batches = TextBatches(corpus, config)
    pieces = (len(text) - 1) // 16 - 1
    seen = [row for step in range(pieces // 4) for row in _places(text, batches(step)[0])]
    assert len(set(seen)) == len(seen)
    assert len({place % 16 for place in seen}) == 1  # the cuts of one round
    later = _places(text, batches(pieces // 4 * 3)[0])
    assert {place % 16 for place in later} != {place % 16 for place in seen}


def _places(text: np.ndarray, inputs) -> list[int]:
    whole = text.tobytes()
    return [whole.index(bytes(row)) for row in inputs.tolist()]


def test_a_batch_is_a_function_of_seed_and_step(tmp_path):
    texts = write_texts(tmp_path)
    corpus, config = read_corpus(str(texts)), tiny(texts, steps=50)
    first, again = TextBatches(corpus, config), TextBatches(corpus, config)
    for step in (0, 7, 7, 49):
        inputs, targets = first(step)
        assert (inputs == again(step)[0]).all() and (targets[:, :-1] == inputs[:, 1:]).all()
        assert not (inputs == TextBatches(corpus, config.replace(seed=1))(step)[0]).all()
    assert not (first(0)[0] == first(1)[0]).all()


def test_stages_have_their_own_lengths_and_batches(tmp_path):
    texts = write_texts(tmp_path)
    config = tiny(texts, stages=((16, 4, 2), (8, 6, 3)))
    batches = TextBatches(read_corpus(str(texts)), config)
    assert [tuple(batches(step)[0].shape) for step in range(5)] == [(4, 16)] * 2 + [(6, 8)] * 3


def test_a_text_smaller_than_a_batch_is_an_error(tmp_path):
    path = _written(tmp_path / "x", b"word " * 10)
    with pytest.raises(WhorlError, match="45 bytes to train on, less than one batch of 4 rows of 17"):
        TextBatches(read_corpus(str(path)), tiny(path))


def test_the_facts_of_a_corpus_are_json(tmp_path):
    facts = read_corpus(str(write_texts(tmp_path))).facts()
    assert json.loads(json.dumps(facts)) == facts and facts["documents"] == 12
