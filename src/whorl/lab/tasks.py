"""Synthetic tasks: items made from a seed, batches made from a seed and a step, and exact-match scores by length.

An item is a prompt and the one right answer behind it. Sizes are in the task's own unit:
    copy                 BOS x SEP x                             symbols of x
    reverse              BOS x SEP x backwards                   symbols of x
    sort                 BOS x SEP x in order                    symbols of x
    counting             BOS s s … s SEP s s … s END             how often s stands there; the END makes it count
    associative_recall   BOS k v k v … SEP k ─► v                pairs, their keys distinct
    passkey              BOS … KEY d d d d d … SEP ─► d d d d d  tokens of the whole item; the rest is random filler
    multikey_retrieval   BOS … KEY k v … SEP k ─► v              tokens of the whole item, four keys in the filler
Keys lie anywhere with equal chance. The first four are made for lengths drawn from 1 to the trained one (Kazemnejad et
al. 2023, "The Impact of Positional Encoding on Length Generalization in Transformers"), the others for one length.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from whorl.errors import invalid, unknown
from whorl.position_ids import whole_number

PAD, BOS, SEP, END, KEY, FIRST = range(6)  # the marks, and the first token that is none

SYMBOLS = 100  # of the copying tasks
PAIRS = 64  # keys of associative recall, and as many values
DIGITS, DIGITS_IN_KEY = 10, 5
KEYS, KEYS_IN_TEXT = 16, 4
SMALL_VOCAB = 64  # of the tasks with filler

TOKENS_AT_ONCE = 2**15  # scored in one pass, so that long items take no more memory than short ones

Made = tuple[Tensor, Tensor]  # prompts and answers, (count, tokens) each


class Items(NamedTuple):
    """Tokens (count, length) int64, and which of them are the answer."""

    tokens: Tensor
    answer: Tensor


@dataclass(frozen=True, kw_only=True)
class Task:
    """One task: what an item is, and the sizes that it has.

    >>> task("copy").items(3, count=2).tokens.shape
    torch.Size([2, 8])
    """

    name: str
    unit: str  # what a length counts
    vocab: int
    least: int  # the smallest length there is
    most: int | None  # the largest, or None
    varied: bool  # trained on all lengths from the smallest on, or on one
    make: Callable[[torch.Generator, int, int], Made]

    def items(self, length: int, count: int, *, seed: int = 0) -> Items:
        """``count`` items of one length, the same for the same seed; ``TaskBatches`` draws from another stream."""
        whole_number(f"task {self.name}", "count", count, least=1)
        return self._drawn(generator_of("test", self.name, seed, length), length, count)

    def total(self, length: int) -> int:
        """How many tokens an item of this length has."""
        return self._drawn(torch.Generator().manual_seed(0), length, 1).tokens.shape[1]

    def _drawn(self, draw: torch.Generator, length: int, count: int) -> Items:
        self.check(length)
        prompt, answer = self.make(draw, length, count)
        tokens = torch.cat((prompt, answer), dim=1)
        return Items(tokens, (torch.arange(tokens.shape[1]) >= prompt.shape[1]).expand(tokens.shape))

    def check(self, length: int) -> None:
        """Raises a WhorlError for a length that no item can have."""
        call = f"task {self.name}"
        whole_number(call, "length", length, least=1)
        if length < self.least or length > (self.most or length):
            bounds = f"at least {self.least}" + ("" if self.most is None else f" and at most {self.most}")
            raise invalid(call, "length", f"{bounds} {self.unit}", length)


def _symbols(draw: torch.Generator, length: int, count: int) -> Tensor:
    return torch.randint(FIRST, FIRST + SYMBOLS, (count, length), generator=draw)


def _between(first: int, middle: Tensor, last: int) -> Tensor:
    return pad(pad(middle, (1, 0), value=first), (0, 1), value=last)


def _of_symbols(answer: Callable[[Tensor], Tensor]) -> Callable[[torch.Generator, int, int], Made]:
    """Makes items of random symbols x between marks, and what the answer makes of x."""

    def make(draw: torch.Generator, length: int, count: int) -> Made:
        x = _symbols(draw, length, count)
        return _between(BOS, x, SEP), answer(x)

    return make


def _counting(draw: torch.Generator, length: int, count: int) -> Made:
    x = _symbols(draw, 1, count).expand(count, length)
    return _between(BOS, x, SEP), pad(x, (0, 1), value=END)


def _distinct(draw: torch.Generator, among: int, chosen: int, count: int) -> Tensor:
    """``chosen`` different numbers below ``among`` for each of ``count`` items, in any order."""
    return torch.rand(count, among, generator=draw).argsort(dim=1)[:, :chosen]


def _pick(draw: torch.Generator, pairs: Tensor) -> Made:
    """One of the pairs (count, pairs, 2): its first number and its second."""
    one = torch.randint(pairs.shape[1], (len(pairs), 1, 1), generator=draw).expand(-1, -1, 2)
    key, value = pairs.gather(1, one).squeeze(1).split(1, dim=1)
    return key, value


def _associative_recall(draw: torch.Generator, length: int, count: int) -> Made:
    keys = FIRST + _distinct(draw, PAIRS, length, count)
    values = torch.randint(FIRST + PAIRS, FIRST + 2 * PAIRS, (count, length), generator=draw)
    pairs = torch.stack((keys, values), dim=2)
    key, value = _pick(draw, pairs)
    return torch.cat((_between(BOS, pairs.flatten(1), SEP), key), dim=1), value


def _hide(draw: torch.Generator, blocks: Tensor, length: int, filler: int) -> Tensor:
    """``length`` random tokens from ``filler`` on, with blocks (count, blocks, tokens) anywhere, in their order."""
    count, number, tokens = blocks.shape
    text = torch.randint(filler, SMALL_VOCAB, (count, length), generator=draw)
    slots = _distinct(draw, length - number * (tokens - 1), number, count).sort(dim=1).values
    starts = slots + (tokens - 1) * torch.arange(number)  # the blocks before take more than their slot
    places = starts[..., None] + torch.arange(tokens)
    return text.scatter(1, places.flatten(1), blocks.flatten(1))


def _passkey(draw: torch.Generator, length: int, count: int) -> Made:
    digits = torch.randint(FIRST, FIRST + DIGITS, (count, DIGITS_IN_KEY), generator=draw)
    block = pad(digits, (1, 0), value=KEY).unsqueeze(1)
    text = _hide(draw, block, length - DIGITS_IN_KEY - 2, FIRST + DIGITS)
    return _between(BOS, text, SEP), digits


def _multikey_retrieval(draw: torch.Generator, length: int, count: int) -> Made:
    keys = FIRST + _distinct(draw, KEYS, KEYS_IN_TEXT, count)
    values = torch.randint(FIRST + KEYS, FIRST + 2 * KEYS, keys.shape, generator=draw)
    pairs = torch.stack((keys, values), dim=2)
    text = _hide(draw, pad(pairs, (1, 0), value=KEY), length - 4, FIRST + 2 * KEYS)
    key, value = _pick(draw, pairs)
    return torch.cat((_between(BOS, text, SEP), key), dim=1), value


def _task(name: str, make: Callable[[torch.Generator, int, int], Made], **settings: Any) -> Task:
    usual = {"unit": "symbols", "vocab": FIRST + SYMBOLS, "least": 1, "most": None, "varied": True}
    return Task(name=name, make=make, **usual | settings)


_hidden = {"unit": "tokens", "vocab": SMALL_VOCAB, "varied": False}
TASKS: dict[str, Task] = {
    one.name: one
    for one in (
        _task("copy", _of_symbols(lambda x: x)),
        _task("reverse", _of_symbols(lambda x: x.flip(1))),
        _task("sort", _of_symbols(lambda x: x.sort(dim=1).values)),
        _task("counting", _counting),
        _task(
            "associative_recall",
            _associative_recall,
            unit="pairs",
            vocab=FIRST + 2 * PAIRS,
            most=PAIRS,
            varied=False,
        ),
        _task("passkey", _passkey, **_hidden, least=2 * DIGITS_IN_KEY + 3),
        _task("multikey_retrieval", _multikey_retrieval, **_hidden, least=3 * KEYS_IN_TEXT + 4),
    )
}


def task(name: str) -> Task:
    """The task of that name.

    >>> task("passkey").vocab
    64
    """
    if name not in TASKS:
        raise unknown("task", name, TASKS)
    return TASKS[name]


class TaskBatches:
    """Batches of a task for training: batch ``step`` is a function of the seed and the step, so a run resumes anywhere.

    ``lengths`` is the longest length, from which the usual training follows (all lengths up to it with equal chance, or
    that one alone), or a pair of the shortest and the longest. Shorter items are padded behind the answer.

    >>> batches = TaskBatches("copy", 20, batch=64, seed=0)
    >>> tokens, wanted = batches.at(0)
    >>> tokens.shape, wanted.shape
    (torch.Size([64, 42]), torch.Size([64, 41]))
    """

    def __init__(self, name: str, lengths: int | tuple[int, int], *, batch: int, seed: int = 0) -> None:
        self.task, self.batch, self.seed = task(name), whole_number("TaskBatches", "batch", batch, least=1), seed
        if isinstance(lengths, int):
            lengths = (self.task.least if self.task.varied else lengths, lengths)
        self.shortest, self.longest = lengths
        self.task.check(self.longest)
        self.task.check(self.shortest)
        if self.shortest > self.longest:
            raise invalid("TaskBatches", "lengths", "(shortest, longest)", tuple(lengths))
        self.total = self.task.total(self.longest)

    def at(self, step: int) -> tuple[Tensor, Tensor]:
        """Tokens (batch, longest + 1) of this step, and which of those from the second on count in the loss."""
        draw = generator_of("train", self.task.name, self.seed, whole_number("TaskBatches", "step", step))
        lengths = torch.randint(self.shortest, self.longest + 1, (self.batch,), generator=draw)
        tokens = torch.full((self.batch, self.total), PAD)
        wanted = torch.zeros(self.batch, self.total, dtype=torch.bool)
        for length in lengths.unique().tolist():  # the items of one length are made together
            rows = (lengths == length).nonzero().flatten()
            made = self.task._drawn(draw, length, len(rows))
            tokens[rows, : made.tokens.shape[1]] = made.tokens
            wanted[rows, : made.tokens.shape[1]] = made.answer
        return tokens, wanted[:, 1:]


def score(
    model: nn.Module, name: str, *, length: int, items: int = 256, seed: int = 0, served: int | None = None
) -> dict[str, Any]:
    """How a causal model does on items of one length: {"length", "exact_match", "token_accuracy", "items", "samples"}.

    "exact_match" is the share of whole answers that are right, "token_accuracy" that of their tokens; "samples" say of
    each item whether it is right. The answer is read in one pass with the right tokens before each of its tokens. It is
    right as a whole exactly when greedy decoding finds it: up to its first mistake a greedy decoder has seen the same
    tokens. ``served`` is the tokens that length-dependent encodings serve.
    """
    options = {} if served is None else {"length": served}
    made = task(name).items(length, items, seed=seed)
    size = made.tokens.shape[1]
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    right: list[Tensor] = []
    with torch.no_grad():
        for tokens in made.tokens.split(max(1, TOKENS_AT_ONCE // size)):
            tokens = tokens.to(device)
            right.append((model(tokens[:, :-1], **options).argmax(-1) == tokens[:, 1:]).cpu())
    model.train(was_training)
    answer = made.answer[:, 1:]
    hits = torch.cat(right)
    exact = (hits | ~answer).all(dim=1)
    return {
        "length": length,
        "exact_match": float(exact.double().mean()),
        "token_accuracy": float(hits[answer].double().mean()),
        "items": items,
        "samples": {"exact_match": exact.int().tolist()},
    }


def generator_of(*parts: object) -> torch.Generator:
    """A random generator that is a function of these parts: no two of them share a stream."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
