"""The claims of every registered encoding: its five flags and its KV cache, measured through its hooks alone.

They are made from what the encoding says of itself, so an encoding that a user registers has them too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from whorl import registry
from whorl.attend.cache import KVCache
from whorl.attend.features import feature_map
from whorl.attend.linear import linear_attention
from whorl.attend.softmax import attention
from whorl.claims import evidence
from whorl.claims.ledger import Claim, Finding, Kind, all_within, decide, needs_training, within
from whorl.claims.probes import (
    LENGTH,
    build,
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
from whorl.encodings.alibi import Alibi
from whorl.encodings.base import Encoding
from whorl.encodings.combined import Combined
from whorl.encodings.parts import Fade, Input, QueryScale, first
from whorl.encodings.rope import Rope
from whorl.errors import WhorlError
from whorl.rotary.scalings.dynamic_ntk import DynamicNtk
from whorl.rotary.scalings.yarn import Yarn

Make = Callable[[], Encoding]

EQUAL = 1e-6  # weights that differ by no more count as equal: biases are float32
SEEN = 1e-4  # weights that differ by more count as different
KEPT = 1e-9  # norms that differ by no more count as equal: they are float64
RISE = 0.2  # bits per byte that a loss may rise by 4 times the trained length and still count as held
RATIO = 4.0
DRAWS = 6

# Settings that change what an encoding claims.
VARIANTS: dict[str, Make] = {
    "rope+yarn": lambda: Rope(head_dim=16, scaling=Yarn(factor=4.0, original_length=64)),
    "rope+dynamic_ntk": lambda: Rope(head_dim=16, scaling=DynamicNtk(factor=2.0, original_length=64)),
    "rope+alibi": lambda: Combined(Rope(head_dim=16), Alibi(heads=4)),
    "alibi+hf_bf16": lambda: Alibi(heads=4, rounding="hf_bf16"),
}

SAID = {
    ("relative", True): (
        "{}: scores depend on the distance of query and key only.",
        "{}：注意力分数只取决于查询与键的距离。",
    ),
    ("relative", False): (
        "{}: scores depend on more than the distance of query and key.",
        "{}：注意力分数不只取决于查询与键的距离。",
    ),
    ("norm_preserving", True): ("{}: vectors keep their length.", "{}：向量的范数保持不变。"),
    ("norm_preserving", False): ("{}: vectors change their length.", "{}：向量的范数会改变。"),
    ("linear_attention", True): (
        "{}: works in linear attention, without the score matrix.",
        "{}：可用于线性注意力，不必构造分数矩阵。",
    ),
    ("linear_attention", False): (
        "{}: has no linear form, a weight is no product of a placed query and a placed key.",
        "{}：没有线性形式，权重不是“放好位置的查询”与“放好位置的键”的内积。",
    ),
    ("decays", True): (
        "{}: by construction, a farther key weighs less than a nearer one that is alike.",
        "{}：由构造保证，内容相同的键越远权重越小。",
    ),
    ("decays", False): (
        "{}: a farther key may weigh as much as a nearer one that is alike, or more.",
        "{}：内容相同时，远处的键可能不比近处的键权重小。",
    ),
    ("extrapolates", True): ("{}: quality holds past the trained length.", "{}：超过训练长度后质量仍能保持。"),
    ("extrapolates", False): ("{}: quality does not hold past the trained length.", "{}：超过训练长度后质量不能保持。"),
}

HOW = {
    "relative": "Attention weights of random tokens, near and far apart, before and after all positions are shifted.",
    "norm_preserving": "Norms before and after every hook that changes a vector, at positions near and far.",
    "linear_attention": "Weights against those of placed queries and keys, and the linear form against the quadratic.",
    "decays": "Rows of weights of tokens that are all alike, for several tokens and several learned numbers.",
    "extrapolates": f"Bits per byte of the same last tokens at {RATIO:g} times the trained length, from the lab.",
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
        "extrapolates": lambda encoding, value: extrapolates(encoding, value, name),
    }
    about = tuple(dict.fromkeys(part for part in name.split("+") if part in registry.ENCODINGS)) or (name,)
    for flag, test in tests.items():
        value = getattr(stated, flag)
        english, chinese = SAID[flag, value]
        yield Claim(
            id=f"{name}.flag.{flag.replace('_', '-')}",
            english=english.format(name),
            chinese=chinese.format(name),
            says=f"the encoding's own claims: {flag}={value}",
            how=HOW[flag],
            expected=expected(flag, value),
            test=lambda test=test, value=value: test(make(), value),
            about=about,
            trained=flag == "extrapolates" and last_position(encoding) is None,
            topic="flags",
        )
    yield Claim(
        id=f"{name}.cache",
        english=f"{name}: suits a KV cache, each decoding step equals the last row of a full pass.",
        chinese=f"{name}：适用于 KV 缓存，每个解码步都等于整段计算的最后一行。",
        says="N19; the notes say that relative encodings do not",
        how=(
            "Twelve tokens, near and far apart, fed to KVCache in pieces of 5, 1, 1, 5 against attention over all, "
            "float64."
        ),
        expected="holds within",
        test=lambda: cached(make()),
        about=about,
        rows=("N19",),
        topic="flags",
    )


def expected(flag: str, stated: bool) -> Kind:
    """The verdict that a flag has where it is right."""
    return "holds within" if stated and flag in ("relative", "norm_preserving", "linear_attention") else "holds"


# -- the five flags ---------------------------------------------------------------------------------------------------


def relative(encoding: Encoding, stated: bool) -> Finding:
    """Whether weights stay when all positions are shifted."""
    encoding = moved(encoding)
    farthest = reach(encoding)
    shifts = (1, 37, 5000) if farthest > LENGTH else (1, farthest // 2)
    worst, where = 0.0, (0, 0)
    for stride in (1, max(1, farthest // 11)) if farthest > LENGTH else (1,):
        count = 12 if farthest > LENGTH else farthest // 2
        positions = spread(encoding, count, stride * (count - 1))
        here = weights_at(encoding, positions)
        for shift in shifts:
            moved_by = largest(weights_at(encoding, positions + shift) - here)
            if moved_by > worst:
                worst, where = moved_by, (stride, shift)
    numbers = {"largest change of a weight": worst, "tolerance": EQUAL if stated else SEEN}
    if stated:
        text = f"tokens {where[0]} apart, all shifted by {where[1]}: a weight changes by {worst:.3g}"
        return within(worst, EQUAL, numbers, text)
    return decide(worst > SEEN, numbers, "no shift that was tried changes a weight")


def norm_preserving(encoding: Encoding, stated: bool) -> Finding:
    """Whether every hook that changes a vector keeps its length."""
    encoding = moved(encoding)
    farthest = reach(encoding)
    changed = [pair for far in {11, farthest} for pair in _changed(encoding, spread(encoding, 12, far))]
    worst = largest(after.norm(dim=-1) / before.norm(dim=-1) - 1 for before, after in changed)
    numbers = {"largest relative change of a norm": worst, "tolerance": KEPT if stated else SEEN}
    if stated:
        return within(worst, KEPT, numbers, f"a norm changes by {worst:.3g} of itself")
    return decide(worst > SEEN, numbers, "no norm changes")


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


def linear(encoding: Encoding, stated: bool) -> Finding:
    """Whether weights are products of placed queries and keys, and the linear form computes them."""
    encoding = moved(encoding)
    positions = spread(encoding, 12, reach(encoding))
    given = tokens(encoding, positions)
    apart = largest(weights_at(encoding, positions) - _weights_of_products(encoding, given.q, given.k, positions))
    numbers = {"weights against products of placed vectors": apart}
    if not stated:
        refused = refusal(lambda: linear_attention(*given[:3], encoding=encoding, positions=positions))
        return _no_linear_form(encoding, numbers) if refused else decide(False, numbers, "linear attention takes it")
    a, b = feature_map(given.q, "elu+1"), feature_map(given.k, "elu+1")
    quadratic = _quadratic(encoding, a, b, given.v, positions)
    worst = largest(linear_attention(*given[:3], encoding=encoding, positions=positions, chunk=4, eps=0.0) - quadratic)
    text = f"weights are no products, off by {apart:.3g}" if apart > EQUAL else f"the linear form is off by {worst:.3g}"
    return within(max(apart, worst), EQUAL, numbers | {"linear against quadratic": worst}, text)


def _no_linear_form(encoding: Encoding, numbers: dict[str, float]) -> Finding:
    """Whether linear attention is right to refuse the encoding."""
    if first(encoding, QueryScale):  # weights are products then, but normalising takes the factor away
        left = _after_normalising(encoding)
        numbers = numbers | {"left of the factor after normalising": left}
        return decide(left < KEPT, numbers, "its factor stays after normalising")
    uneven = first(encoding, Fade) is not None  # refused because it leaves heads out, not because it has no linear form
    (apart,) = numbers.values()
    return decide(apart > SEEN or uneven, numbers, "weights are products of placed queries and keys")


def _weights_of_products(encoding: Encoding, q: Tensor, k: Tensor, positions: Tensor) -> Tensor:
    """Causal softmax weights of queries and keys placed by ``transform_qk`` alone."""
    q, k = encoding.transform_qk(q, k, positions, positions)
    scores = q @ k.mT * encoding.softmax_scale(q.shape[-1])
    hidden = torch.ones_like(scores, dtype=torch.bool).triu(1)
    return scores.masked_fill(hidden, -torch.inf).softmax(-1)[0]


def _quadratic(encoding: Encoding, a: Tensor, b: Tensor, v: Tensor, positions: Tensor) -> Tensor:
    """RoFormer's equation 19 with the whole matrix of weights: placed features above, plain ones below."""
    placed_a, placed_b = encoding.transform_qk(a, b, positions, positions)
    top, bottom = (placed_a @ placed_b.mT).tril(), (a @ b.mT).tril()
    return top @ v / bottom.sum(-1, keepdim=True)


def _after_normalising(encoding: Encoding) -> float:
    """The change that a factor on queries makes to weights that are divided by their sum."""
    heads, head_dim, _ = sizes_of(encoding)
    positions = spread(encoding, 12, 16_500)
    q, k = feature_map(normal(2, 1, heads, 12, head_dim), "elu+1")

    def weights(a: Tensor, b: Tensor) -> Tensor:
        products = (a @ b.mT).tril()[..., 1:, :]  # the first query sees one key
        return products / products.sum(-1, keepdim=True)

    return largest(weights(*encoding.transform_qk(q, k, positions, positions)) - weights(q, k))


def decays(encoding: Encoding, stated: bool) -> Finding:
    """Whether keys that are all alike weigh less the farther they are, whatever is learned."""
    farthest = reach(encoding)
    rises, rows, worst = 0, 0, ""
    for draw in range(DRAWS):
        learned = moved(encoding, amount=0.0 if not draw else 1.0, seed=draw)
        for start, stride in ((0, 1), (0, 8), (0, 50), (5000, 1)) if farthest > LENGTH else ((0, 1),):
            count = 24 if farthest > LENGTH else farthest + 1
            ids = start + torch.arange(count) * stride
            weights = weights_at(learned, ids, seed=10 + draw, alike=True)[:, -1]
            # from far to near; a weight too small for float64 shows nothing
            up = (weights[:, :-1] >= weights[:, 1:]) & (weights[:, 1:] > 0)
            rows += weights.shape[0]
            rises += int(up.any(-1).sum())
            if not worst and bool(up.any()):
                head, key = (int(i) for i in up.nonzero()[-1])
                farther, nearer = (float(weights[head, i]) for i in (key, key + 1))
                worst = (
                    f"head {head}: the key {stride * (count - 1 - key)} before the query weighs {farther:.4g}, "
                    f"the one {stride * (count - 2 - key)} before it {nearer:.4g}"
                )
    numbers = {"rows of weights": rows, "rows where a farther key weighs as much or more": rises}
    return decide(rises == 0, numbers, worst) if stated else decide(rises > 0, numbers, "every row falls")


def extrapolates(encoding: Encoding, stated: bool, name: str) -> Finding:
    """The verdict of lab results on the loss past the trained length, where there are any."""
    command = evidence.command_for(name)
    last = last_position(encoding)
    if last is not None:
        return _ends(encoding, last, stated)
    largest_rise = evidence.largest_rise(name, RATIO)
    if largest_rise is None:
        return needs_training(command)
    # one run that rises settles it either way; that no run does settles only the claim that none will
    source, rise = largest_rise
    numbers = {f"rise of the loss at {RATIO:g}x, bits per byte": rise, "lab results": len(evidence.rises(name, RATIO))}
    held = rise <= RISE
    if held and not stated:
        return needs_training(command, numbers)
    text = f"{source}: the loss rises by {rise:.2f} bits per byte at {RATIO:g} times the trained length"
    return decide(held == stated, numbers, text, source)


def last_position(encoding: Encoding) -> int | None:
    """The last position of an encoding whose codes are a table, or None for all others."""
    length = getattr(encoding.config, "length", None)
    return length - 1 if first(encoding, Input) and isinstance(length, int) else None


def _ends(encoding: Encoding, last: int, stated: bool) -> Finding:
    """Whether an encoding has codes up to its last position and none after it."""
    encoding = moved(encoding, amount=0.0)
    tokens(encoding, torch.tensor([0, last]))
    refused = refusal(lambda: tokens(encoding, torch.tensor([0, last + 1])))
    text = refused or f"there is a code past position {last}"
    return decide(stated != bool(refused), {"positions it has": last + 1}, text)


# -- the cache --------------------------------------------------------------------------------------------------------


def cached(encoding: Encoding) -> Finding:
    """The difference between steps with a cache and a full pass, from position 0 and from far positions."""
    encoding = moved(encoding)
    numbers: dict[str, float] = {}
    far = reach(encoding) > LENGTH
    for start, stride in ((0, 1), (5000, 1), (0, 1500)) if far else ((0, 1), (3, 1)):
        positions = start + torch.arange(12) * stride
        given = tokens(encoding, positions)
        whole = attention(*given[:3], encoding=encoding, positions=positions, **given.options())
        cache, parts, at = KVCache(encoding=encoding), [], 0
        for size in (5, 1, 1, 5):
            own = given.part(at, at + size)
            ids = None if (start, stride) == (0, 1) else positions[at : at + size]
            parts.append(cache.attend(*own[:3], positions=ids, **own.options()))
            at += size
        numbers[f"off by, from {start} in steps of {stride}"] = largest(torch.cat(parts, dim=2) - whole)
    return all_within(numbers, EQUAL)
