"""The claims of every registered encoding: its five flags and its KV cache, measured through its hooks alone.

They are made from what the encoding says of itself, so an encoding that a user registers has them too.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

import whorl
from whorl import Alibi, Combined, DynamicNtk, Encoding, KVCache, Rope, WhorlError, Yarn, attention, registry
from whorl.claims import evidence
from whorl.claims.flag_linear import linear
from whorl.claims.flag_words import (
    CACHED,
    ENDED,
    ENDS,
    EQUAL,
    FOLDED,
    GATED,
    HOW,
    KEPT,
    RATIO,
    ROUNDED,
    SAID,
    SEEN,
    SERVED,
    TABLED,
    TURNED,
)
from whorl.claims.ledger import FLAGS, NOTHING, Both, Claim, Finding, Kind, all_within, decide, needs_training, within
from whorl.claims.probes import (
    LENGTH,
    Tokens,
    build,
    doubles,
    largest,
    moved,
    normal,
    reach,
    refusal,
    sizes_of,
    spread,
    tokens,
    weights_at,
)
from whorl.claims.trained_names import command_for, command_of, name_of
from whorl.encodings.parts import Input, RowLessColumn, first

Make = Callable[[], Encoding]

# The hooks that change vectors; an encoding with none of them has no norms to keep.
VECTORS = ("add_to_input", "transform_qk", "branches", "adjust_output")

DRAWS = 6
FAR_SHIFT = 5000

# Settings that change what an encoding claims.
VARIANTS: dict[str, Make] = {
    "rope+yarn": lambda: Rope(head_dim=16, scaling=Yarn(factor=4.0, original_length=64)),
    "rope+dynamic_ntk": lambda: Rope(head_dim=16, scaling=DynamicNtk(factor=2.0, original_length=64)),
    "rope+alibi": lambda: Combined(Rope(head_dim=16), Alibi(heads=4)),
    "alibi+hf_bf16": lambda: Alibi(heads=4, rounding="hf_bf16"),
}


def of_registry() -> Iterator[Claim]:
    """The claims of every registered encoding with its own defaults, and of settings that change them."""
    for name in registry.names():
        yield from of_encoding(name, lambda name=name: build(name))
    for name, make in VARIANTS.items():
        yield from of_encoding(name, make)


def of_encoding(name: str, make: Make) -> Iterator[Claim]:
    """One claim for each flag of the encoding and one for its cache."""
    try:
        encoding = make()
        stated = encoding.claims
    except WhorlError as error:
        raise WhorlError(
            f"verify: {name} cannot be built from a model's sizes alone ({error}) "
            "Pass the encoding itself: whorl.claims.verify(encoding)."
        ) from None
    tests: dict[str, Callable[[Encoding, bool], Finding]] = {
        "relative": relative,
        "norm_preserving": norm_preserving,
        "linear_attention": linear,
        "decays": decays,
        "extrapolates": lambda encoding, value: extrapolates(encoding, value, name if name in VARIANTS else None),
    }
    if not set(VECTORS) & set(encoding.enters()) and stated.norm_preserving:
        del tests["norm_preserving"]  # it touches no vector, so that there is nothing to keep and nothing to claim
    last = last_position(encoding)
    who = f"whorl {whorl.__version__}, " if type(encoding).__module__.startswith("whorl.") else ""  # or a user's own
    about = tuple(dict.fromkeys(part for part in name.split("+") if part in registry.ENCODINGS)) or (name,)
    for flag, test in tests.items():
        value = getattr(stated, flag)
        how = ENDS if flag == "extrapolates" and last is not None else HOW[flag]
        english, chinese = ENDED if how is ENDS and not value else SAID[flag, value]
        if flag == "relative" and value and encoding.length_dependent:
            english, chinese = SERVED
        if flag in ROUNDED and value and rounded(encoding):
            english, chinese = ROUNDED[flag]
        if flag == "linear_attention" and not value:
            if encoding.folds:
                english, chinese = (text.format("{}", encoding.fold_dims) for text in FOLDED)
            elif first(encoding, RowLessColumn):
                english, chinese = GATED
        yield Claim(
            id=f"{name}.flag.{flag.replace('_', '-')}",
            english=english.format(name),
            chinese=chinese.format(name),
            says=f"{who}{type(encoding).__name__}.claims.{flag} = {value}",
            how=how.en,
            how_zh=how.zh,
            expected=expected(flag, value),
            test=lambda test=test, value=value: test(make(), value),
            about=about,
            trained=flag == "extrapolates" and last is None,
            topic=FLAGS,
        )
    yield Claim(
        id=f"{name}.cache",
        english=f"{name}: suits a KV cache, each decoding step equals the last row of a full pass.",
        chinese=f"{name}：适用于 KV 缓存，每个解码步都等于整段计算的最后一行。",
        says=f"whorl {whorl.__version__}, docs/where-it-lives.md",
        how=CACHED.en,
        how_zh=CACHED.zh,
        expected="holds within",
        test=lambda: cached(make()),
        about=about,
        topic=FLAGS,
    )


def rounded(encoding: Encoding) -> bool:
    """Whether a rotation of the encoding computes its angles, and cos and sin of them, in float32."""
    return any(getattr(each.config, "angles", "exact") == "float32" for each in encoding.joined or (encoding,))


def expected(flag: str, stated: bool) -> Kind:
    """The verdict that a flag has where it is right."""
    return "holds within" if stated and flag in ("relative", "norm_preserving", "linear_attention") else "holds"


# -- the five flags ---------------------------------------------------------------------------------------------------


def relative(encoding: Encoding, stated: bool) -> Finding:
    """Whether weights stay when all positions are shifted, and a pair's score when the tokens between change."""
    encoding = moved(encoding)
    moves, equal = _moves(encoding), TURNED if rounded(encoding) else EQUAL
    worst, where = largest(doubles(list(moves.values()))), max(moves, key=moves.__getitem__)
    between = _other_tokens_between(encoding)
    numbers = {"largest change of a weight": worst, "change by the tokens between": between}
    numbers |= {"tolerance": equal if stated else SEEN}
    if not stated:
        text = Both("no shift changes a weight, nor do tokens between", "任何平移都不改变权重，两者之间的词也不影响")
        return decide(largest(doubles([worst, between])) > SEEN, numbers, text)
    if between > worst:
        text = Both(
            f"other tokens between query and key change their score by {between:.3g}",
            f"改变查询与键之间的词，分数变化 {between:.3g}",
        )
    else:
        text = Both(f"{where.en}: a weight changes by {worst:.3g}", f"{where.zh}：某个权重变化 {worst:.3g}")
    return within(largest(doubles([worst, between])), equal, numbers, text)


def _moves(encoding: Encoding) -> dict[Both, float]:
    """The largest change of a weight by each shift of all positions, an axis at a time, in words."""
    farthest, moves = reach(encoding), {}
    far = farthest > LENGTH
    count, shifts = (12, (1, 37, FAR_SHIFT)) if far else (farthest // 2, (1, farthest // 2))
    # the middle ones for buckets and windows, which see neighbours alike and those far away alike
    strides = (1, 17, 150, (farthest - FAR_SHIFT) // (count - 1)) if far else (1,)
    lengths = (None, farthest + 1) if encoding.length_dependent else (None,)
    for stride, causal, length in itertools.product(strides, (True, False), lengths):
        if encoding.causal_only and not causal:
            continue
        positions = spread(encoding, count, stride * (count - 1))
        here = weights_at(encoding, positions, causal=causal, length=length)
        if not causal and bool(here.isnan().any()):
            continue  # it has no meaning for keys after the query
        apart = f"tokens {stride} apart" if encoding.axes == 1 else f"tokens up to {stride * (count - 1)} apart"
        apart_zh = f"相隔 {stride} 的词" if encoding.axes == 1 else f"相隔至多 {stride * (count - 1)} 的词"
        for shift, axis in itertools.product(shifts, range(encoding.axes)):
            by = torch.zeros(encoding.axes, 1, dtype=torch.int64)
            by[axis] = shift
            moved_on = positions + (by if encoding.axes > 1 else shift)
            there = weights_at(encoding, moved_on, causal=causal, length=length)
            on, on_zh = (f" on axis {axis}", f"沿第 {axis} 轴") if encoding.axes > 1 else ("", "")
            seen, seen_zh = ("", "") if causal else (", without a causal mask", "（无因果掩码）")
            if length is not None:
                seen, seen_zh = f"{seen}, served for {length:,} tokens", f"{seen_zh}（服务长度 {length}）"
            where = Both(f"{apart}, all shifted by {shift}{on}{seen}", f"{apart_zh}{on_zh}整体平移 {shift}{seen_zh}")
            moves[where] = largest(there - here)
    return moves


def _other_tokens_between(encoding: Encoding) -> float:
    """The change of the last token's score with the first, less that with itself, when tokens between are others."""
    positions = spread(encoding, 8, 7)
    here, other = tokens(encoding, positions), tokens(encoding, positions, seed=50)
    mixed = [
        None if own is None or new is None else torch.cat((own[..., :1, :], new[..., 1:-1, :], own[..., -1:, :]), -2)
        for own, new in zip(here, other, strict=True)
    ]
    scores = []
    for each in (here, Tokens(*mixed)):  # pyright: ignore[reportArgumentType]
        _, weights = attention(*each[:3], encoding=encoding, positions=positions, return_weights=True, **each.options())
        scores.append(weights[0, :, -1, 0].log() - weights[0, :, -1, -1].log())
    hidden = scores[0].isneginf() & scores[1].isneginf()  # the first token, both times
    return largest((scores[1] - scores[0]).masked_fill(hidden, 0.0))


def norm_preserving(encoding: Encoding, stated: bool) -> Finding:
    """Whether every hook that changes a vector keeps its length."""
    encoding = moved(encoding)
    farthest = reach(encoding)
    changed = [pair for far in {11, farthest} for pair in _changed(encoding, spread(encoding, 12, far))]
    worst = largest(after.norm(dim=-1) / before.norm(dim=-1) - 1 for before, after in changed)
    kept = TABLED if rounded(encoding) else KEPT
    numbers = {"largest relative change of a norm": worst, "tolerance": kept if stated else SEEN}
    if stated:
        text = Both(f"a norm changes by {worst:.3g} of itself", f"某个范数相对变化 {worst:.3g}")
        return within(worst, kept, numbers, text)
    return decide(worst > SEEN, numbers, Both("no norm changes", "没有范数改变"))


def _changed(encoding: Encoding, positions: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Vectors before and after each hook that may change them."""
    heads, head_dim, width = sizes_of(encoding)
    x = normal(1, positions.shape[-1], width, seed=3)
    yield x, encoding.add_to_input(x, positions)
    q, k = normal(2, 1, heads, positions.shape[-1], head_dim, seed=4)
    yield from zip((q, k), encoding.transform_qk(q, k, positions, positions), strict=True)
    for branch in encoding.branches(positions, positions) or ():
        placed = encoding.transform_branch(q, k, branch.q_positions, branch.k_positions)
        yield from zip((q, k), placed, strict=True)
    if "adjust_output" in encoding.enters():
        own = torch.eye(positions.shape[-1], dtype=torch.float64)  # each token sees itself alone, then the first alone
        for seen in (own, torch.zeros_like(own).index_fill(1, torch.tensor(0), 1.0)):
            weights = seen.expand(1, heads, -1, -1)
            yield weights @ k, encoding.adjust_output(weights @ k, weights, k, positions, positions)


def decays(encoding: Encoding, stated: bool) -> Finding:
    """Whether keys that are all alike weigh less the farther they are, whatever is learned."""
    farthest = reach(encoding)
    rises, rows, worst = 0.0, 0, NOTHING
    for draw in range(DRAWS):
        learned = moved(encoding, amount=0.0 if not draw else 1.0, seed=draw)
        for start, stride in ((0, 1), (0, 8), (0, 50), (0, 700), (5000, 1)) if farthest > LENGTH else ((0, 1),):
            count = 24 if farthest > LENGTH else farthest + 1
            ids = start + torch.arange(count) * stride
            weights = weights_at(learned, ids, seed=10 + draw, alike=True)[:, -1]
            # from far to near; a weight too small for float64 shows nothing
            up = (weights[:, :-1] >= weights[:, 1:]) & (weights[:, 1:] > 0)
            rows += weights.shape[0]
            rises += int(up.any(-1).sum()) + 0 * largest(weights)  # not a number where a weight is none
            if not worst.en and bool(up.any()):
                head, key = (int(i) for i in up.nonzero()[-1])
                farther, nearer = (float(weights[head, i]) for i in (key, key + 1))
                far, near = (stride * (count - 1 - i) for i in (key, key + 1))
                worst = Both(
                    f"head {head}: the key {far} before the query weighs {farther:.4g}, the one {near} before it "
                    f"{nearer:.4g}",
                    f"第 {head} 个头：查询之前 {far} 处的键权重为 {farther:.4g}，之前 {near} 处为 {nearer:.4g}",
                )
    numbers = {"rows of weights": rows, "rows where a farther key weighs as much or more": rises}
    if stated:
        return decide(rises == 0, numbers, worst)
    return decide(rises > 0, numbers, Both("every row falls", "每一行都下降"))


def extrapolates(encoding: Encoding, stated: bool, variant: str | None = None) -> Finding:
    """The verdict of lab results on the loss past the trained length, where there are any with these settings."""
    last = last_position(encoding)
    if last is not None:
        return _ends(encoding, last, stated)
    name = variant or name_of(encoding)
    rise = None if name is None else evidence.largest_rise(name, RATIO)
    if rise is None:
        return needs_training(command_for(variant) if variant else command_of(encoding))
    numbers = {f"rise of the loss at {RATIO:g}x, bits per byte": rise.mean, "comparisons": len(rise.sources)}
    text = Both(
        f"{rise.worst}: the loss rises by {rise.mean:.2f} bits per byte at {RATIO:g} times the trained length",
        f"{rise.worst}：在训练长度的 {RATIO:g} 倍处损失上升 {rise.mean:.2f} 比特每字节",
    )
    return decide(rise.held == stated, numbers, text, rise.source)


def last_position(encoding: Encoding) -> int | None:
    """The last position of an encoding whose codes are a table, a row for each; None for all others."""
    length = getattr(encoding.config, "length", None)
    rows = {parameter.shape[0] for parameter in encoding.parameters() if parameter.ndim}
    return length - 1 if first(encoding, Input) and isinstance(length, int) and length in rows else None


def _ends(encoding: Encoding, last: int, stated: bool) -> Finding:
    """Whether an encoding has codes up to its last position and none after it."""
    encoding = moved(encoding, amount=0.0)
    tokens(encoding, torch.tensor([0, last]))
    refused = refusal(lambda: tokens(encoding, torch.tensor([0, last + 1])))
    text = Both(
        refused or f"there is a code past position {last}", f"位置 {last} 之后{'没有' if refused else '仍有'}编码"
    )
    return decide(stated != bool(refused), {"positions it has": last + 1}, text)


# -- the cache --------------------------------------------------------------------------------------------------------


def cached(encoding: Encoding) -> Finding:
    """The difference between steps with a cache and a full pass, from position 0 and from far positions."""
    encoding = moved(encoding)
    numbers: dict[str, float] = {}
    farthest = reach(encoding)
    # in steps of 150 windows and buckets tell some tokens from others, which neighbours and those far away are not
    for start, stride in ((0, 1), (5000, 1), (0, 150), (0, 1500)) if farthest > LENGTH else ((0, 1), (3, 1)):
        positions = start + torch.arange(12) * stride
        numbers[f"off by, from {start} in steps of {stride}"] = largest(_off_in_steps(encoding, positions))
    if encoding.axes > 1:
        numbers["off by, at random on each axis"] = largest(_off_in_steps(encoding, spread(encoding, 12, farthest)))
    if encoding.length_dependent:
        steps = _off_in_steps(encoding, spread(encoding, 12, farthest), length=farthest + 1)
        numbers[f"off by, served for {farthest + 1} tokens"] = largest(steps)
    return all_within(numbers, EQUAL)


def _off_in_steps(encoding: Encoding, positions: Tensor, length: int | None = None) -> Tensor:
    """Outputs of attention by a cache that is fed in pieces, less those of all tokens at once."""
    given = tokens(encoding, positions)
    whole = attention(*given[:3], encoding=encoding, positions=positions, length=length, **given.options())
    cache, parts, at = KVCache(encoding=encoding), [], 0
    counted = torch.equal(positions, torch.arange(12))  # which the cache does by itself
    for size in (5, 1, 1, 5):
        own = given.part(at, at + size)
        ids = None if counted else positions[..., at : at + size]
        parts.append(cache.attend(*own[:3], positions=ids, length=length, **own.options()))
        at += size
    return torch.cat(parts, dim=2) - whole
