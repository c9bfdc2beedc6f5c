"""Random programs of a KVCache: whatever came before, every step equals a full pass over the tokens so far.

A program takes steps of any size with padding anywhere and positions given or not, crops, reorders, resets, changes the
encoding, and tries what must be refused, with errors raised inside hooks and where memory is made. A refusal is
foretold here from the rules, and not from the cache.
"""

from __future__ import annotations

import random
import warnings

import pytest
import torch

import whorl
from tokens_so_far import Tokens, parts, reader
from whorl.attend import cache as cache_module
from whorl.attend import slots as slots_module

HEADS, HEAD_DIM, WIDTH = 4, 16, 8

# Settings small enough that a few tokens pass every window, clip and trained length.
SETTINGS = {
    "cope": {"max_position": 5},
    "fire": {"length": 4},
    "leaky_rerope": {"window": 3, "factor": 4.0},
    "llama4_temperature": {"floor_scale": 3},
    "log_n": {"trained_length": 3},
    "mrope": {"sections": (2, 3, 3)},
    "rerope": {"window": 3},
    "self_extend": {"window": 4, "group": 2},
    "shaw": {"clip": 3},
    "sinks": {"size": 3, "count": 2},
    "t5": {"buckets": 8, "max_distance": 12},
    "window": {"size": 4},
    "xpos": {"scale_base": 16.0},
}


def build(name: str) -> whorl.Encoding:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # T5 warns where max_distance passes the trained length
        return whorl.build_for(
            name, **{"heads": HEADS, "head_dim": HEAD_DIM, "width": WIDTH, "length": 16} | SETTINGS.get(name, {})
        )


def rope(**settings) -> whorl.Rope:
    return whorl.Rope(head_dim=HEAD_DIM, **settings)


def joined(*names: str):
    return lambda: whorl.Combined(*map(build, names))


LONG = whorl.LongRope(short_factor=[1.0] * 8, long_factor=[2.0 + i for i in range(8)], original_length=8, factor=4.0)

ENCODINGS = {name: lambda name=name: build(name) for name in whorl.names()} | {
    "yarn": lambda: rope(scaling=whorl.Yarn(factor=4.0, original_length=8)),
    "dynamic_ntk": lambda: rope(scaling=whorl.DynamicNtk(factor=4.0, original_length=8)),
    "longrope": lambda: rope(scaling=LONG),
    "interleaved": lambda: rope(layout="interleaved"),
    "deepseek": lambda: rope(layout="interleaved_to_half", rotary_dim=8, slice="trailing"),
    "partial": lambda: rope(rotary_dim=8),
    "learnable": lambda: rope(learnable=True),
    "some heads": lambda: rope(rotated_heads=(1,)),
    "float32 angles": lambda: rope(angles="float32"),
    "ernie": lambda: whorl.MRope(head_dim=HEAD_DIM, sections=(3, 3, 2), arrangement="ernie"),
    "apex": lambda: whorl.AxialRope(head_dim=HEAD_DIM, convention="apex"),
    "split alibi": lambda: whorl.Combined(whorl.Alibi(heads=HEADS), build("window")),
    "rope + alibi": joined("rope", "alibi"),
    "rope + t5 + window": joined("rope", "t5", "window"),
    "rope + log_n + sinks": joined("rope", "log_n", "sinks"),
    "rerope + log_n": joined("rerope", "log_n"),
    "self_extend + ssmax + window": joined("self_extend", "ssmax", "window"),
    "xpos + window": joined("xpos", "window"),
    "rope + shaw": joined("rope", "shaw"),
    "rope + gate": joined("rope", "forgetting_gate"),
    "alibi + gate": joined("alibi", "forgetting_gate"),
    "rope + cope": joined("rope", "cope"),
    "kerple + ssmax": joined("kerple", "ssmax"),
    "mrope + none": joined("mrope", "none"),
    "sinusoidal + rope": joined("sinusoidal", "rope"),
}  # fmt: skip

WHOLE_ONLY = (whorl.Shaw, whorl.Deberta)  # their positions are indices into a table


def trained(encoding: whorl.Encoding, seed: int) -> whorl.Encoding:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in encoding.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
    return encoding


def whole_only(encoding: whorl.Encoding) -> bool:
    return any(isinstance(part, WHOLE_ONLY) for part in parts(encoding))


class Program:
    """One random program: what it did is in ``log``, for the message of a failure."""

    def __init__(self, first: str, seed: int) -> None:
        self.random = random.Random(f"{first} {seed}")
        self.generator = torch.Generator().manual_seed(self.random.randrange(2**31))
        self.dtype = self.random.choice((torch.float64, torch.float64, torch.float32))
        self.encodings = self._pool(first)
        by_head = any(_by_head(part) for each in self.encodings for part in parts(each))
        self.kv_heads = HEADS if by_head else self.random.choice((HEADS, 2))
        self.asked = self.random.choice(("auto", "auto", "raw", "transformed"))
        if self.asked == "transformed" and self.encodings[0].key_policy == "raw":
            self.asked = "auto"
        self.capacity = self.random.choice((None, None, 12))
        self.encoding, self.length = self.encodings[0], self.random.choice((None, 5, 40))
        self.cache = whorl.KVCache(
            encoding=self.encoding, policy=self.asked, capacity=self.capacity, length=self.length
        )
        self.tokens = Tokens(batch=self.random.choice((1, 2, 3)), axes=self.encoding.axes)
        self.log: list[str] = [f"{first} {seed}: {self.dtype}, {self.asked}, {self.capacity}, {self.length}"]

    def _pool(self, first: str) -> list[whorl.Encoding]:
        names = [first, *self.random.choices(sorted(ENCODINGS), k=3)]
        found = [trained(ENCODINGS[name](), seed).to(self.dtype) for seed, name in enumerate(names)]
        gates = [part for part in map(reader, found) if part is not None]
        if gates:  # the same gate beside another encoding, which may follow, and another gate, which may not
            free = reader(found[0]) is None and not _scored(found[0])
            found.append(whorl.Combined(found[0] if free else rope(), gates[0]))
            found.append(trained(build("forgetting_gate"), 9).to(self.dtype))
        return found

    def run(self, ops: int = 9) -> None:
        weights = {"step": 50, "refused": 14, "crop": 8, "reorder": 8, "change": 14, "reset": 3, "nothing": 3}
        self.step()
        for op in self.random.choices(list(weights), list(weights.values()), k=ops):
            getattr(self, op)()
        self.step()

    # steps

    def step(self) -> None:
        room = 4 if self.capacity is None else min(4, self.capacity - len(self.tokens))
        if room < 1:
            self.crop()
            room = min(4, self.capacity - len(self.tokens))
            if room < 1:
                return
        count = self.random.randint(1, room)
        real = self._padding(count)
        floating, given = self._positions(count, real)
        causal = self.random.random() < 0.9 or self.encoding.causal_only
        q, k, v, hidden = self._new(count)
        options = self._options(count, real, given, floating, hidden) | {"causal": causal}
        self.log.append(f"step {count} real={real} positions={given} floating={floating} causal={causal}")
        if floating and whole_only(self.encoding):
            self._is_refused(whorl.WhorlError, lambda: self.cache.attend(q, k, v, **options))
            return
        out = self.cache.attend(q, k, v, **options)
        self.tokens.fractions = floating or self.tokens.fractions
        self.tokens.add(q, k, v, hidden, self.tokens.default_positions(real) if given is None else given, real)
        self._compare(out, count, causal)

    def nothing(self) -> None:
        q, k, v, hidden = self._new(0)
        self.log.append("nothing")
        own = {"hidden": hidden} if reader(self.encoding) is not None else {}
        assert self.cache.attend(q, k, v, **own).shape == (self.tokens.batch, HEADS, 0, HEAD_DIM)
        assert len(self.cache) == len(self.tokens)

    def _new(self, count: int) -> list[torch.Tensor]:
        shapes = [(HEADS, count, HEAD_DIM), (self.kv_heads, count, HEAD_DIM), (self.kv_heads, count, HEAD_DIM)]
        return [
            torch.randn(self.tokens.batch, *shape, generator=self.generator, dtype=torch.float64).to(self.dtype)
            for shape in (*shapes, (count, WIDTH))
        ]

    def _padding(self, count: int) -> list[list[bool]]:
        kind = self.random.choice(("none", "none", "left", "right", "anywhere"))
        rows = []
        for _ in range(self.tokens.batch):
            padding = self.random.randint(0, count)
            if kind == "none":
                rows.append([True] * count)
            elif kind == "anywhere":
                rows.append([self.random.random() < 0.7 for _ in range(count)])
            else:
                marks = [False] * padding + [True] * (count - padding)
                rows.append(marks if kind == "left" else marks[::-1])
        return rows

    def _positions(self, count: int, real: list[list[bool]]) -> tuple[bool, list[list[list[float]]] | None]:
        """Whether they are passed as floats, and positions[axis][row]; None for those that come by default."""
        kinds = ["default", "default", "gaps", "negative", "fractions", "whole floats", "alike"]
        kind = self.random.choice([*kinds, "far"] if self.dtype == torch.float64 else kinds)
        if kind == "default":
            return False, None
        unit = 0.5 if kind == "fractions" else 1.0 if kind == "whole floats" else 1
        falls = not any(isinstance(part, whorl.XPos) for part in parts(self.encoding))

        def row(start: float) -> list[float]:
            numbers = []
            for _ in range(count):
                start += unit * self.random.randint(0, 3)
                numbers.append(start)
            return numbers

        def start(of: int) -> float:
            after = self.tokens.next_position(of)
            if kind == "negative" and not len(self.tokens):
                return -self.random.randint(1, 20)
            if kind == "far" and not len(self.tokens):  # where float32 has no odd numbers
                return 2**25 + 1
            return after + unit * self.random.randint(-3 if falls else 0, 4)

        axes, batch = len(self.tokens.positions), self.tokens.batch
        if kind == "alike":
            highest = max(self.tokens.next_position(of) for of in range(batch))
            found = [[row(highest)] * batch for _ in range(axes)]
        else:
            found = [[row(start(of)) for of in range(batch)] for _ in range(axes)]
        floating = any(isinstance(p, float) for axis in found for own in axis for p in own)
        if floating:
            found = [[[float(p) for p in own] for own in axis] for axis in found]
        return floating, found

    def _options(self, count, real, given, floating, hidden) -> dict:
        options: dict = {"length": self.length} if self.random.random() < 0.2 else {}
        if not all(map(all, real)) or self.random.random() < 0.2:
            options["key_mask"] = torch.tensor(real).view(self.tokens.batch, count)
        if given is not None:
            options["positions"] = self._tensor(given, floating)
        if reader(self.encoding) is not None:
            options["hidden"] = hidden
        return options

    def _tensor(self, given: list[list[list[float]]], floating: bool) -> torch.Tensor:
        """Positions as a user may pass them, in one of the shapes and dtypes that hold them."""
        narrow, wide = (torch.float32, torch.float64) if floating else (torch.int32, torch.int64)
        exact = torch.tensor(given, dtype=wide)
        ids = exact.to(self.random.choice((narrow, wide)))
        ids = ids if torch.equal(ids.to(wide), exact) else exact
        if all(own == axis[0] for axis in given for own in axis) and self.random.random() < 0.7:
            ids = ids[:, :1] if self.random.random() < 0.5 else ids[:, 0]
        return ids[0] if len(given) == 1 else ids

    def _compare(self, out: torch.Tensor, count: int, causal: bool) -> None:
        assert len(self.cache) == len(self.tokens)
        assert out.dtype == self.dtype and torch.isfinite(out).all()
        close = {"rtol": 0, "atol": 1e-8 if self.dtype == torch.float64 else 5e-5}
        expected = self.tokens.expected(self.encoding, count, length=self.length, causal=causal)
        for row, slots, wanted in expected:
            torch.testing.assert_close(out[row][:, slots].double(), wanted, **close)

    # what must be refused

    def refused(self) -> None:
        kinds = [self._bad_call, self._interrupted]
        if len(self.tokens):
            kinds.append(self._other_tokens)
        self.random.choice(kinds)()

    def _bad_call(self) -> None:
        q, k, v, hidden = self._new(1)
        own = {"hidden": hidden} if reader(self.encoding) is not None else {}
        bad = [
            {"scale": -1.0},
            {"softcap": 0},
            {"length": 0},
            {"impl": "cuda"},
            {"causal": "always"},
            {"positions": torch.zeros(1, dtype=torch.float16)},
            {"positions": torch.zeros(2, dtype=torch.int64)},
            {"positions": torch.zeros(5, 1, dtype=torch.int64)},
            {"positions": [0]},
            {"key_mask": torch.ones(self.tokens.batch, 2, dtype=torch.bool)},
            {"hidden": None if own else hidden},
        ]
        if whole_only(self.encoding):
            bad.append({"positions": torch.tensor([2.0**24 + 1.5])})
        change = self.random.choice(bad)
        self.log.append(f"bad call {change}")
        self._is_refused(whorl.WhorlError, lambda: self.cache.attend(q, k, v, **own | change))

    def _other_tokens(self) -> None:
        q, k, v, hidden = self._new(1)
        own = {"hidden": hidden} if reader(self.encoding) is not None else {}
        other = {
            "dtype": lambda x: x.to(torch.float16),
            "batch": lambda x: x.repeat(2, *[1] * (x.ndim - 1)),
            "dim": lambda x: x[..., :8],
        }
        kind = self.random.choice(sorted(other))
        self.log.append(f"other {kind}")
        q, k, v = (other[kind](x) for x in (q, k, v))
        own = {name: other[kind](x) if kind == "batch" else x for name, x in own.items()}
        self._is_refused(whorl.WhorlError, lambda: self.cache.attend(q, k, v, **own))

    def _interrupted(self) -> None:
        """An error of a hook, of a module the encoding is made of, or where memory is made."""
        count = self.random.randint(1, 3)
        if self.capacity is not None and len(self.tokens) + count > self.capacity:
            return
        q, k, v, hidden = self._new(count)
        options = {"hidden": hidden} if reader(self.encoding) is not None else {}
        kind = self.random.choice((RuntimeError, KeyboardInterrupt, torch.OutOfMemoryError))
        left = self.random.randint(0, 1)

        def raises(*args, **more):
            raise kind("stop")

        hooks = [hook for hook in (*self.encoding.enters(), "softmax_scale") if hook != "add_to_input"]
        target, name = self.random.choice([(self.encoding, hook) for hook in hooks] + [(cache_module, "run")])
        if kind is torch.OutOfMemoryError:
            target, name = slots_module, "_memory"
        before = getattr(target, name)

        def maybe(*args, **more):
            nonlocal left
            left -= 1
            return raises() if left < 0 else before(*args, **more)

        self.log.append(f"interrupted by {kind.__name__} in {name} after {left}")
        state = (len(self.cache), self.cache.bytes, self.cache.policy, self.cache.encoding, self.cache.length)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(target, name, maybe)
            try:
                out = self.cache.attend(q, k, v, **options)
            except kind:
                out = None
        if out is not None:  # it was not called so often
            real = [[True] * count] * self.tokens.batch
            self.tokens.add(q, k, v, hidden, self.tokens.default_positions(real), real)
            self._compare(out, count, causal=True)
        else:
            after = (len(self.cache), self.cache.bytes, self.cache.policy, self.cache.encoding, self.cache.length)
            assert after == state

    def _is_refused(self, kind: type[BaseException], call) -> None:
        state = (len(self.cache), self.cache.bytes, self.cache.policy, self.cache.encoding, self.cache.length)
        with pytest.raises(kind):
            call()
        assert (len(self.cache), self.cache.bytes, self.cache.policy, self.cache.encoding, self.cache.length) == state

    # what moves tokens

    def crop(self) -> None:
        if not len(self.tokens):
            return
        count = self.random.randint(0, len(self.tokens))
        self.log.append(f"crop {count}")
        self.cache.crop(count)
        self.tokens.crop(count)

    def reset(self) -> None:
        self.log.append("reset")
        self.cache.reset()
        self.tokens = Tokens(batch=self.random.choice((1, 2, 3)), axes=self.encoding.axes)
        assert (len(self.cache), self.cache.bytes) == (0, 0)

    def reorder(self) -> None:
        batch = self.tokens.batch
        if self.tokens.given is None:
            self._is_refused(whorl.WhorlError, lambda: self.cache.reorder([0]))
            return
        rows = [self.random.randrange(batch) for _ in range(self.random.randint(1, 3))]
        bad = [
            [batch],
            [-1],
            torch.tensor([0, batch]),
            torch.tensor([-1]),
            [],
            torch.tensor([0.0]),
            ["a"],
            [[0]],
            [2**70],
        ]
        self._is_refused(whorl.WhorlError, lambda: self.cache.reorder(self.random.choice(bad)))
        self.log.append(f"reorder {rows}")
        self.cache.reorder(torch.tensor(rows) if self.random.random() < 0.5 else rows)
        self.tokens.reorder(rows)

    def change(self) -> None:
        new, tokens = self.random.choice(self.encodings), self.tokens
        given = floating = None
        if self.random.random() < 0.4 and len(tokens):
            floating = self.random.random() < 0.3
            given = [
                [
                    [self.random.randint(-9, 9) * (1.5 if floating else 1) for _ in range(len(tokens))]
                    for _ in tokens.real
                ]
                for _ in range(new.axes)
            ]
            if any(isinstance(part, whorl.XPos) for part in parts(new)):
                given = [[sorted(own) for own in axis] for axis in given]
        length = self.random.choice((None, 6, 50))
        options = {} if given is None else {"positions": self._tensor(given, bool(floating))}
        fractions = tokens.fractions if given is None else bool(floating)
        self.log.append(f"change to {new} positions={given} length={length}")
        if self._refuses(new, given is not None, fractions):
            self._is_refused(whorl.WhorlError, lambda: self.cache.change_encoding(new, length=length, **options))
            return
        self.cache.change_encoding(new, length=length, **options)
        assert self.cache.encoding is new
        if not len(tokens):
            self.tokens = Tokens(batch=tokens.batch, axes=new.axes)
        elif given is not None:
            tokens.positions, tokens.fractions = given, fractions
        elif new.axes != self.encoding.axes:
            tokens.positions = [list(tokens.positions[0]) for _ in range(new.axes)]
        self.encoding, self.length = new, self.length if length is None else length

    def _refuses(self, new: whorl.Encoding, given: bool, fractions: bool) -> bool:
        """Whether the rules refuse this change: see ``KVCache.change_encoding``."""
        if self.asked == "transformed" and new.key_policy == "raw" and self.cache.policy != "raw":
            return True
        if not len(self.tokens):
            return False
        if not given and self.encoding.axes not in (1, new.axes):
            return True
        if reader(new) is not None and reader(new) is not reader(self.encoding):
            return True
        return fractions and whole_only(new)


def _by_head(part: whorl.Encoding) -> bool:
    """Whether heads of keys are told apart, so that groups of queries cannot share them."""
    return isinstance(part, whorl.MixedRope) or getattr(part.config, "rotated_heads", None) is not None


def _scored(encoding: whorl.Encoding) -> bool:
    return "adjust_scores" in encoding.enters() or encoding.axes > 1


def check_pairs(old_name: str, new_names: list[str]) -> None:
    """A change from one encoding to each other in the middle of a padded batch of as many rows as some have axes."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(3, HEADS, 6, HEAD_DIM, generator=generator, dtype=torch.float64) for _ in range(3))
    hidden = torch.randn(3, 6, WIDTH, generator=generator, dtype=torch.float64)
    real = [[True] * 6, [False, False] + [True] * 4, [True, True, False] + [True] * 3]
    mask, old = torch.tensor(real), trained(ENCODINGS[old_name](), 1).double()
    for new in (trained(ENCODINGS[name](), 2).double() for name in new_names):
        cache, tokens = whorl.KVCache(encoding=old), Tokens(batch=3, axes=old.axes)

        def attend(encoding, part, cache=cache, tokens=tokens):
            given = [x[:, :, part] for x in (q, k, v)]
            own = {"hidden": hidden[:, part]} if reader(encoding) is not None else {}
            marks = [row[part] for row in real]
            out = cache.attend(*given, key_mask=mask[:, part], **own)
            tokens.add(*given, hidden[:, part], tokens.default_positions(marks), marks)
            for row, slots, wanted in tokens.expected(encoding, len(marks[0])):
                torch.testing.assert_close(out[row][:, slots], wanted, rtol=0, atol=1e-9)

        attend(old, slice(0, 4))
        if old.axes not in (1, new.axes) or reader(new) is not None:
            with pytest.raises(whorl.WhorlError, match=r"KVCache\.change_encoding: "):
                cache.change_encoding(new)
            assert cache.encoding is old
            attend(old, slice(4, 6))
            continue
        cache.change_encoding(new)
        if new.axes != old.axes:
            tokens.positions = [list(tokens.positions[0]) for _ in range(new.axes)]
        attend(new, slice(4, 6))


@pytest.mark.parametrize("old", whorl.names())
def test_every_change_of_encoding_is_exact_or_refused(old):
    check_pairs(old, whorl.names())


@pytest.mark.large
@pytest.mark.parametrize("old", ENCODINGS)
def test_every_change_of_encoding_is_exact_or_refused_at_large(old):
    check_pairs(old, sorted(ENCODINGS))


def run_programs(first: str, seeds: range, monkeypatch) -> None:
    for seed in seeds:
        program = Program(first, seed)
        monkeypatch.setattr(
            slots_module, "FIRST_CAPACITY", program.random.choice((1, 4, 64))
        )  # so that few tokens grow it
        try:
            program.run()
        except (Exception, KeyboardInterrupt) as error:
            raise AssertionError("\n".join(program.log)) from error


@pytest.mark.parametrize("first", ENCODINGS)
def test_random_programs_equal_full_passes(first, monkeypatch):
    run_programs(first, range(2), monkeypatch)


@pytest.mark.large
@pytest.mark.parametrize("first", ENCODINGS)
def test_random_programs_equal_full_passes_at_large(first, monkeypatch):
    run_programs(first, range(100, 100 + 60), monkeypatch)
