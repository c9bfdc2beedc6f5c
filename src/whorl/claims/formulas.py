"""The formulas: the numbers of every encoding and every scaling against those of its paper.

What they are held against, ``golden.json``, is computed by the oracles of the tests: the papers in plain float64 loops
or with 50 digits, which import nothing of whorl. So a changed formula turns the ledger red, whatever it leaves true.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Iterator
from importlib.resources import files
from typing import Any, TypeVar

import torch
from torch import Tensor

import whorl
from whorl.claims.ledger import FLAGS, Both, Claim, Finding, all_within, decide
from whorl.claims.probes import doubles, largest
from whorl.encodings.axial_rope import CONVENTIONS
from whorl.encodings.mrope import ARRANGEMENTS, shares
from whorl.encodings.rotary import Rotary
from whorl.encodings.sinusoidal import shift_matrix
from whorl.rotary.rotation import LAYOUTS
from whorl.rotary.scalings.base import Scaling

BOUND = 1e-5  # biases are float32, and none here is larger than 100
HEADS, DIM, TOKENS = 2, 8, 6

Case = Callable[[], Tensor]
E = TypeVar("E", bound=whorl.Encoding)

# Near and far, before and after the query, and past every window, bucket and clip below.
ROWS = torch.tensor([0, 5, 9, 40])
COLUMNS = torch.tensor([0, 3, 9, 11, 90])
ROUNDED = torch.tensor([67, 163, 227, 267])
EVERY = torch.arange(10)
FAR = torch.tensor([0, 1, 600, 300_000])
IN_ORDER = torch.tensor([0, 1, 4, 9, 10, 30])
PLANES = torch.tensor([[0, 1, 7, 30], [2, 0, 11, 5], [4, 6, 0, 9]])  # time, row, column


def wave(*shape: int, seed: int = 0) -> Tensor:
    """Numbers between -1 and 1 that anybody can compute: sin((1.1 + seed) n + 0.5)."""
    count = int(torch.tensor(shape).prod())
    return torch.sin((1.1 + seed) * torch.arange(count, dtype=torch.float64) + 0.5).reshape(shape)


def queries_keys_values() -> tuple[Tensor, Tensor, Tensor]:
    """Of a few tokens, (1, heads, tokens, dimensions), float64."""
    q, k, v = (wave(1, HEADS, TOKENS, DIM, seed=seed) for seed in (1, 2, 3))
    return q, k, v


def filled(encoding: E) -> E:
    """The encoding in float64, its learned numbers a wave."""
    encoding = encoding.double()
    for seed, parameter in enumerate(encoding.parameters()):
        parameter.data.copy_(wave(*parameter.shape, seed=seed) / 2)
    return encoding


# -- what is read of an encoding --------------------------------------------------------------------------------------


def biases(encoding: whorl.Encoding) -> Tensor:
    """What is added to the scores of rows and columns."""
    bias = encoding.score_bias(ROWS, COLUMNS)
    assert bias is not None
    return bias


def folded(encoding: whorl.Encoding) -> Tensor:
    """The same as products of the further dimensions of queries and keys."""
    queries, keys = encoding.fold(ROWS, COLUMNS, torch.float64, 1.0)
    return queries @ keys.mT


def rotated(encoding: Rotary, positions: Tensor, length: int | None = None) -> Tensor:
    """A vector of unlike numbers at each position, turned."""
    x = wave(encoding.config.head_dim)
    return encoding.rotate(x.expand(1, HEADS, positions.shape[-1], -1), positions, length)[0, -1]


def moved_keys(layout: Any) -> Tensor:
    """Rotated keys moved to another base, without the raw ones."""
    old, new = (whorl.Rope(head_dim=8, base=base, layout=layout) for base in (500.0, 10_000.0))
    return _moved(old, new)


def _moved(old: whorl.Rope, new: whorl.Rope) -> Tensor:
    ids = ROWS[None]  # of a batch
    keys = old.rotate(wave(8).expand(1, 1, len(ROWS), -1), ids)
    return whorl.rerotate(keys, old, new, ids)[0, 0]


def scores(encoding: whorl.Encoding) -> Tensor:
    """The scores of all pairs of tokens, before softmax and mask."""
    q, k, _ = queries_keys_values()
    placed_q, placed_k = encoding.transform_qk(q, k, IN_ORDER, IN_ORDER)
    scale = encoding.softmax_scale(DIM)
    return encoding.adjust_scores(scale * placed_q @ placed_k.mT, q, k, IN_ORDER, IN_ORDER, scale=scale)[0]


def attended(encoding: whorl.Encoding, *, causal: bool = True) -> Tensor:
    """Outputs and weights of softmax attention, one after the other."""
    given = queries_keys_values()
    out, weights = whorl.attention(*given, encoding=encoding, positions=IN_ORDER, causal=causal, return_weights=True)
    return torch.cat((out, weights), dim=-1)[0]


def regions(encoding: whorl.Encoding) -> Tensor:
    """The pairs of positions that each branch is for, 1 or 0: no pair has two."""
    branches = encoding.branches(EVERY, EVERY)
    assert branches is not None
    return torch.stack([branch.allowed for branch in branches]).double()


def gated() -> Tensor:
    """What the gates of some tokens leave of each pair."""
    encoding = filled(whorl.ForgettingGate(heads=HEADS, width=DIM))
    (q, k, _), scale = queries_keys_values(), encoding.softmax_scale(DIM)
    kept = encoding.remember(wave(1, TOKENS, DIM, seed=4))
    scores = scale * q @ k.mT
    return (encoding.adjust_scores(scores, q, k, IN_ORDER, IN_ORDER, kept, scale=scale) - scores)[0]


def directions(encoding: whorl.MixedRope) -> Tensor:
    """Of the two pairs that start from one drawn direction: their squared sizes, their product, the area they span."""
    (u, u_after), (v, v_after) = (of_axis.unbind(-2) for of_axis in encoding.frequencies().unflatten(-1, (2, -1)))
    return torch.stack((u * u + v * v, u_after**2 + v_after**2, u * u_after + v * v_after, v * u_after - u * v_after))


def disentangled(span: int = 8, max_distance: int | None = 24, **settings: Any) -> whorl.Deberta:
    """DeBERTa of a few positions."""
    sizes = {"heads": HEADS, "head_dim": DIM, "width": 5}
    return filled(whorl.Deberta(**sizes, span=span, max_distance=max_distance, **settings))


def extended(mode: str) -> Tensor:
    """A learned table of 4 rows made 7 long."""
    return filled(whorl.Learned(width=3, length=4)).extend(7, mode).table  # pyright: ignore[reportArgumentType]


def frequencies(scaling: Scaling, *lengths: int | None, dim: int = 16) -> Tensor:
    """The logarithms of the frequencies, which differ by many powers of ten, and the factors; 0 stays 0."""
    rope = whorl.Rope(head_dim=dim, scaling=scaling)
    rows = []
    for length in lengths or (None,):
        w = rope.frequencies(length)
        factors = doubles([rope.attention_factor(length), rope.softmax_scale(dim, length) * dim**0.5])
        rows.append(torch.cat((torch.where(w == 0, 0.0, w.clamp(min=1e-30).log()), factors)))
    return torch.stack(rows)


# -- the cases --------------------------------------------------------------------------------------------------------

CASES: dict[str, dict[str, Case]] = {
    "sinusoidal": {
        "codes": lambda: whorl.Sinusoidal(width=7, scale=2.0).add_to_input(torch.zeros(4, 7).double(), FAR),
        "codes, sines first": lambda: whorl.Sinusoidal(width=7, order="concatenated").codes(FAR, dtype=torch.float64),
        "shift": lambda: shift_matrix(6, 3),
        "shift, sines first": lambda: shift_matrix(6, 3, order="concatenated"),
    },
    "learned": {
        "rows": lambda: filled(whorl.Learned(width=3, length=64)).add_to_input(torch.ones(4, 3).double(), ROWS),
        "linear extension": lambda: extended("linear"),
        "tiled extension": lambda: extended("tile"),
        "one row": lambda: filled(whorl.Learned(width=3, length=1)).extend(1).table,
    },
    "rope": {
        "half": lambda: rotated(whorl.Rope(head_dim=8), FAR),
        "interleaved": lambda: rotated(whorl.Rope(head_dim=8, layout="interleaved"), FAR),
        "interleaved to half": lambda: rotated(whorl.Rope(head_dim=8, layout="interleaved_to_half"), FAR),
        "trailing part": lambda: rotated(whorl.Rope(head_dim=8, rotary_dim=6, slice="trailing"), FAR),
        "inner part": lambda: rotated(whorl.Rope(head_dim=8, rotary_dim=4, slice=2, layout="interleaved"), FAR),
        "learned scale": lambda: rotated(filled(whorl.Rope(head_dim=8, learnable=True)), ROWS),
        "negative and fractional positions": lambda: rotated(whorl.Rope(head_dim=8), doubles([-7.0, 0.5, 2.25])),
        "far negative positions": lambda: rotated(whorl.Rope(head_dim=8), torch.tensor([-300_000, -3])),
        "moved to three axes": lambda: _moved(whorl.Rope(head_dim=8), whorl.MRope(head_dim=8)),
        **{f"moved from one base to another, {name}": lambda name=name: moved_keys(name) for name in LAYOUTS},
        "many positions": lambda: rotated(whorl.Rope(head_dim=4), torch.arange(200, 1300))[::150],
    },
    "axial_rope": {
        name: lambda name=name: rotated(whorl.AxialRope(head_dim=8, convention=name), PLANES[1:])
        for name in CONVENTIONS
    },
    "mixed_rope": {
        "learned": lambda: rotated(filled(whorl.MixedRope(head_dim=8, heads=HEADS)), PLANES[1:]),
        "sizes and right angles at the start": lambda: directions(whorl.MixedRope(head_dim=8, heads=HEADS)),
    },
    "mrope": {
        **{
            # one of them is of rows and columns alone
            name: lambda name=name: rotated(
                whorl.MRope(head_dim=32, arrangement=name), PLANES[-len(shares(64, name)) :]
            )
            for name in ARRANGEMENTS
        },
        "shares of 64 pairs": lambda: doubles([size for name in ARRANGEMENTS for size in shares(64, name)]),
    },
    "xpos": {
        "scores": lambda: scores(whorl.XPos(head_dim=DIM, scale_base=16.0)).tril(),
        "interleaved": lambda: scores(whorl.XPos(head_dim=DIM, scale_base=16.0, layout="interleaved")).tril(),
    },
    "rerope": {
        "causal": lambda: attended(whorl.ReRope(head_dim=DIM, window=4)),
        "both sides": lambda: attended(whorl.ReRope(head_dim=DIM, window=4, bidirectional=True), causal=False),
        "where each branch acts": lambda: regions(whorl.ReRope(head_dim=DIM, window=4, bidirectional=True)),
    },
    "leaky_rerope": {"causal": lambda: attended(whorl.LeakyReRope(head_dim=DIM, window=4, factor=3.0))},
    "self_extend": {
        "causal": lambda: attended(whorl.SelfExtend(head_dim=DIM, window=5, group=3)),
        "where each branch acts": lambda: regions(whorl.SelfExtend(head_dim=DIM, window=5, group=3)),
    },
    "log_n": {"scores": lambda: scores(whorl.LogN(trained_length=4))},
    "ssmax": {"scores": lambda: scores(filled(whorl.SSMax(heads=HEADS, bias=True)))},
    "llama4_temperature": {
        f"in steps of {step}": lambda step=step: scores(whorl.Llama4Temperature(floor_scale=step, attn_scale=0.3))
        for step in (2, 3, 5)  # a step begins at one of the positions, before one and after one
    },
    "alibi": {
        "causal": lambda: biases(whorl.Alibi(heads=6)),
        "geometric slopes": lambda: biases(whorl.Alibi(heads=6, slopes="geometric")),
        "symmetric": lambda: biases(whorl.Alibi(heads=2, form="symmetric")),
        "split": lambda: biases(whorl.Alibi(heads=6, form="split")).nan_to_num(neginf=-99.0),
        "offset": lambda: biases(whorl.Alibi(heads=2, form="offset", offset=0.5, scale=0.5)),
        "as BLOOM rounds it": lambda: biases(whorl.Alibi(heads=6, rounding="hf_bf16")),
        "as Falcon rounds it": lambda: biases(whorl.Alibi(heads=6, rounding="hf_falcon", scale=0.5)),
        # of 12 heads the last four have slopes that bfloat16 rounds, which shows at these positions
        "as Falcon rounds it, 12 heads": lambda: whorl.Alibi(heads=12, rounding="hf_falcon").key_bias(ROUNDED),
        "folded into products": lambda: folded(whorl.Alibi(heads=6)),
        "by key": lambda: whorl.Alibi(heads=6, slopes="geometric").key_bias(COLUMNS),
    },
    "t5": {
        "causal": lambda: biases(filled(whorl.T5(heads=2, buckets=8, max_distance=32))),
        "both sides": lambda: biases(filled(whorl.T5(heads=2, buckets=8, max_distance=32, bidirectional=True))),
        "scores": lambda: scores(filled(whorl.T5(heads=2, buckets=8, max_distance=32))),
        "scaled scores": lambda: scores(filled(whorl.T5(heads=2, buckets=8, max_distance=32, scaled=True))),
    },
    "kerple": {
        name: lambda name=name: biases(_positive(whorl.Kerple(heads=2, variant=name))) for name in ("log", "power")
    },
    "fire": {
        "learned": lambda: biases(filled(whorl.Fire(heads=2, length=20, hidden=4))),
        "one head by its formula": lambda: filled(whorl.Fire(heads=2, length=20, hidden=4)).bias_at(
            torch.tensor(1), ROWS[:, None], COLUMNS
        ),
    },
    "sandwich": {
        "bias": lambda: biases(whorl.Sandwich(heads=2, code_width=6)),
        "folded into products": lambda: folded(whorl.Sandwich(heads=2, code_width=6)),
    },
    "shaw": {"learned": lambda: attended(filled(whorl.Shaw(head_dim=DIM, clip=4)))},
    "transformer_xl": {
        "learned": lambda: scores(filled(whorl.TransformerXL(heads=HEADS, head_dim=DIM, width=7))),
        "clamped": lambda: scores(filled(whorl.TransformerXL(heads=HEADS, head_dim=DIM, width=6, clamp=5))),
    },
    "deberta": {
        "code": lambda: scores(disentangled(position_to_content="code")),
        "paper": lambda: scores(disentangled(position_to_content="paper")),
        "without buckets": lambda: scores(disentangled(span=5, max_distance=None)),
        "one exact bucket": lambda: scores(disentangled(span=2)),
    },
    "cope": {
        "causal": lambda: scores(filled(whorl.Cope(head_dim=DIM, max_position=3))).tril(),
        "both sides": lambda: scores(filled(whorl.Cope(head_dim=DIM, max_position=3, causal=False))),
    },
    "forgetting_gate": {"learned": gated},
    "window": {
        "causal": lambda: whorl.Window(size=4).mask(EVERY, EVERY).double(),
        "symmetric": lambda: whorl.Window(size=4, symmetric=True).mask(EVERY, EVERY).double(),
    },
    "sinks": {"causal": lambda: whorl.Sinks(size=4, count=3).mask(EVERY, EVERY).double()},
    "rope+linear": {"factor": lambda: frequencies(whorl.Linear(factor=4.0))},
    "rope+ntk": {
        "base": lambda: frequencies(whorl.Ntk(factor=4.0)),
        "fixed": lambda: frequencies(whorl.Ntk(factor=4.0, variant="fixed")),
        "mixed": lambda: frequencies(whorl.Ntk(factor=4.0, variant="mixed", exponent=0.625)),
    },
    "rope+dynamic_ntk": {
        "lengths": lambda: frequencies(whorl.DynamicNtk(factor=2.0, original_length=64), None, 64, 65, 300),
        "in doubled steps": lambda: frequencies(
            whorl.DynamicNtk(factor=2.0, original_length=64, doubling=True), *(64, 65, 128, 129, 300)
        ),
    },
    "rope+ntk_by_parts": {
        "paper": lambda: frequencies(whorl.NtkByParts(factor=4.0, original_length=2048)),
        "first": lambda: frequencies(whorl.NtkByParts(factor=4.0, original_length=2048, variant="v1"), dim=64),
    },
    "rope+llama3": {
        "bands": lambda: frequencies(whorl.Llama3(factor=8.0, original_length=2048), dim=32),
        "no band between": lambda: frequencies(
            whorl.Llama3(factor=8.0, original_length=2048, low_freq_factor=2.0, high_freq_factor=2.0)
        ),
        "a pair at the edge where there is no band": lambda: (
            whorl.Rope(
                head_dim=8,
                frequencies=(2 * math.pi / 512, 2 * math.pi / 1024, 2 * math.pi / 2048, 0.0),
                scaling=whorl.Llama3(factor=8.0, original_length=2048, low_freq_factor=2.0, high_freq_factor=2.0),
            ).frequencies()
            * 1000
        ),
    },
    "rope+longrope": {
        "lengths": lambda: frequencies(
            whorl.LongRope(
                short_factor=(1.0, 1.5, 2.0, 2.5), long_factor=(1.0, 3.0, 9.0, 27.0), original_length=64, factor=4.0
            ),
            *(None, 64, 65),
            dim=8,
        )
    },
    "rope+yarn": {
        "ramp": lambda: frequencies(whorl.Yarn(factor=8.0, original_length=2048), dim=64),
        "fractions of pairs": lambda: frequencies(
            whorl.Yarn(factor=8.0, original_length=2048, truncate=False, extrapolation_factor=0.5), dim=64
        ),
        "float32 angles": lambda: rotated(
            whorl.Rope(head_dim=8, angles="float32", scaling=whorl.Yarn(factor=8.0, original_length=64)), ROWS
        ),
        "both temperatures": lambda: frequencies(
            whorl.Yarn(factor=8.0, original_length=2048, mscale=0.7, mscale_all_dim=1.5, scale_softmax=True)
        ),
    },
    "rope+resonance": {
        "plain": lambda: frequencies(whorl.Resonance()),
        "over YaRN": lambda: frequencies(whorl.Resonance(inner=whorl.Yarn(factor=8.0, original_length=2048))),
        "of pairs faster than a position, and still ones": lambda: whorl.Rope(
            head_dim=8, frequencies=(40.0, 5.0, 2.0, 0.0), scaling=whorl.Resonance()
        ).frequencies(),
    },
    "rope+proportional": {
        "quarter": lambda: frequencies(whorl.Proportional(fraction=0.25)),
        "with a factor": lambda: frequencies(whorl.Proportional(fraction=0.7, factor=4.0)),
    },
}


def _positive(encoding: whorl.Kerple) -> whorl.Kerple:
    for parameter in filled(encoding).parameters():
        parameter.data.abs_()
    return encoding


# -- the claims -------------------------------------------------------------------------------------------------------


@functools.cache
def golden() -> dict[str, dict[str, list[Any]]]:
    """The numbers of the papers, by name and case, as lists of lists."""
    return json.loads((files("whorl.claims") / "golden.json").read_text())


def claims() -> Iterator[Claim]:
    """One claim for each encoding and each scaling: its numbers are those of its formula."""
    for name, cases in CASES.items():
        encoding, _, scaling = name.partition("+")
        yield Claim(
            id=f"{name}.formula",
            english=f"{name}: its numbers are those of the formula that its page names.",
            chinese=f"{name}：算出的数就是其文档页所写公式的数。",
            says=f"whorl {whorl.__version__}, docs/{'rotary' if scaling else f'encodings/{encoding}'}.md",
            how=f"By its hooks, against the paper in plain loops that import nothing of whorl, to {BOUND:g}: "
            f"{', '.join(cases)}.",
            how_zh=f"经由其接口，与按论文写成、不引用 whorl 的朴素循环比较，共 {len(cases)} 种情形，容差 {BOUND:g}。",
            expected="holds within",
            test=lambda name=name: against_golden(name),
            about=(encoding,),
            topic=FLAGS,
        )


def against_golden(name: str) -> Finding:
    """How far the numbers of each case are from those of the paper."""
    off = {}
    for label, case in CASES[name].items():
        found, paper = case().detach().double(), doubles(golden()[name][label])
        if found.shape != paper.shape:
            is_, should = tuple(found.shape), tuple(paper.shape)
            shapes = Both(f"{label}: shape {is_} in the place of {should}", f"{label}：形状为 {is_}，应为 {should}")
            return decide(False, off, shapes)
        off[f"off by, {label}"] = largest(found - paper)
    return all_within(off, BOUND)
