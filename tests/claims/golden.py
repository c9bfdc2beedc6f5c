"""The numbers of the papers for the cases of ``whorl.claims.formulas``, by the oracles; run, it writes golden.json.

    PYTHONPATH=src:tests python tests/claims/golden.py

Of whorl it takes the inputs alone: positions, tokens, and what stands in the place of learned numbers.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np

from oracles import (
    alibi,
    axes,
    cope,
    deberta,
    fire,
    forgetting,
    kerple,
    learned,
    masks,
    remaps,
    resonance,
    rotary_frequencies,
    rotation,
    sandwich,
    score_scaling,
    shaw,
    sinusoidal,
    t5,
    transformer_xl,
    xpos,
)
from whorl.claims import formulas
from whorl.claims.formulas import DIM, HEADS, TOKENS

LAYOUTS = ("half", "interleaved", "interleaved_to_half")
FILE = Path(formulas.__file__).with_name("golden.json")

ROWS, COLUMNS, ROUNDED, FAR, IN_ORDER = (
    ids.tolist() for ids in (formulas.ROWS, formulas.COLUMNS, formulas.ROUNDED, formulas.FAR, formulas.IN_ORDER)
)
PLANES = formulas.PLANES.tolist()
Q, K, V = (x[0].numpy() for x in formulas.queries_keys_values())
PLAIN_SCORES = Q @ K.transpose(0, 2, 1) / math.sqrt(DIM)


def wave(*shape, seed=0):
    """What stands in the place of a learned number."""
    return formulas.wave(*shape, seed=seed).numpy() / 2


def ladder(dim, base=10000):
    return [float(w) for w in rotary_frequencies.plain(dim, base)]


def unlike(dim):
    """The vector that is turned: no two of its numbers are equal, so that a mixed-up pair shows."""
    return formulas.wave(dim).numpy()


def turned(positions, frequencies, layout="half", dim=8, start=0):
    """A vector at each position, turned by position * frequency, exactly."""
    rows = [
        [float(rotary_frequencies.mp.mpf(m) * w % (2 * rotary_frequencies.mp.pi)) for w in frequencies]
        for m in positions
    ]
    return [rotation.rotate(unlike(dim), row, layout, start) for row in rows]


def turned_by_axes(found, planes, layout, dim):
    frequencies, axis = found
    angles = [[planes[a][t] * float(w) for w, a in zip(frequencies, axis, strict=True)] for t in range(len(planes[0]))]
    return [rotation.rotate(unlike(dim), row, layout) for row in angles]


def in_blocks(found, planes, dim):
    """apex: each axis turns its own half of the head, in the half layout of that half."""
    frequencies, _ = found
    half, out = dim // 2, []
    for t in range(len(planes[0])):
        angles = [[planes[a][t] * float(w) for w in frequencies[a * half // 2 : (a + 1) * half // 2]] for a in (0, 1)]
        blocks = unlike(dim)[:half], unlike(dim)[half:]
        parts = [rotation.rotate(block, row, "half") for block, row in zip(blocks, angles, strict=True)]
        out.append(np.concatenate(parts))
    return out


def remapped(relative, causal=True):
    _, weights, out = remaps.attention(Q, K, V, ladder(DIM), relative, IN_ORDER, IN_ORDER, causal)
    return np.concatenate((out, weights), axis=-1)


def regions(*of_distance):
    return [[[float(here(i - j)) for j in range(10)] for i in range(10)] for here in of_distance]


def scaled_queries(factor):
    """Scores of queries that are multiplied by factor(head, position)."""
    by = np.array([[factor(h, m) for m in IN_ORDER] for h in range(HEADS)])
    return PLAIN_SCORES * by[..., None]


def of_scaling(*rows):
    """Logarithms of frequencies, then the factor of the tables and that of the softmax; one row for each length."""
    return [[*(math.log(w) if w else 0.0 for w in map(float, found)), float(a), float(s)] for found, a, s in rows]


def plain_scaling(frequencies):
    return of_scaling((frequencies, 1, 1))


def shift(order):
    """The matrix that takes the code of m to that of m + 3, from the sines and cosines of the sum."""
    out, half = np.zeros((6, 6)), 3
    for i, w in enumerate(ladder(6)):
        sine, cosine = (2 * i, 2 * i + 1) if order == "interleaved" else (i, half + i)
        out[sine, sine] = out[cosine, cosine] = math.cos(3 * w)
        out[sine, cosine], out[cosine, sine] = math.sin(3 * w), -math.sin(3 * w)
    return out


def bfloat16(x):
    """The nearest number of 8 binary digits, ties to even."""
    if x == 0:
        return 0.0
    unit = 2.0 ** (math.frexp(x)[1] - 8)
    return round(x / unit) * unit  # Python rounds ties to even


def by_key(bias):
    """A bias of heads and keys, the same for every query."""
    return np.broadcast_to(np.array(bias)[:, None, :], (len(bias), len(ROWS), len(COLUMNS)))


def mixed_rope():
    """Angles row * u + column * v of the last head, interleaved."""
    u, v = wave(2, HEADS, 4)[:, -1].astype(np.float32).astype(np.float64)
    _, rows, columns = PLANES
    angles = [[r * a + c * b for a, b in zip(u, v, strict=True)] for r, c in zip(rows, columns, strict=True)]
    return [rotation.rotate(unlike(8), row, "interleaved") for row in angles]


def mixed_start():
    squares = np.array([w * w for w in ladder(4, 10)])
    one = np.broadcast_to(squares, (HEADS, 2))
    return [one, one, 0 * one, one]


def disentangled(rows, span=8, max_distance=24):
    """DeBERTa's scores: a table of rows of width 5, and its projections to keys and to queries."""
    relative, out = wave(2 * span, 5), HEADS * DIM
    to_keys, to_queries = ((wave(out, 5, seed=seed), wave(out, seed=seed + 1)) for seed in (1, 3))
    kr, qr = (
        (relative @ weight.T + bias).reshape(2 * span, HEADS, DIM).transpose(1, 0, 2)
        for weight, bias in (to_keys, to_queries)
    )
    buckets = None if max_distance is None else span
    return deberta.scores(Q, K, kr, qr, IN_ORDER, IN_ORDER, span, buckets, max_distance, rows)


def forgotten():
    hidden = formulas.wave(TOKENS, DIM, seed=4).numpy()
    logits = hidden @ wave(HEADS, DIM).T + wave(HEADS, seed=1)
    return forgetting.bias([[-math.log1p(math.exp(-x)) for x in row] for row in logits.T], range(TOKENS), range(TOKENS))


def relative_attention():
    _, weights, out = shaw.attention(Q, K, V, wave(9, DIM), wave(9, DIM, seed=1), IN_ORDER, IN_ORDER, 4, True)
    return np.concatenate((out, weights), axis=-1)


def transformer_xl_scores(width, clamp=None):
    given = wave(HEADS, DIM), wave(HEADS, DIM, seed=1), wave(HEADS, DIM, width, seed=2)
    return transformer_xl.scores(Q, K, *given, IN_ORDER, IN_ORDER, clamp)


def fire_bias():
    c, multiplier = wave(1)[0], wave(1, seed=1)[0]
    return fire.bias(
        c, abs(multiplier * 20), wave(4, seed=2), wave(4, seed=3), wave(2, 4, seed=4), wave(2, seed=5), ROWS, COLUMNS
    )


def papers():
    """Every case of every formula."""
    f, by_axes = rotary_frequencies, (lambda name: getattr(axes, name)(8))
    p, a = (np.abs(wave(2, seed=seed)) for seed in (0, 1))
    plain16, mrope = f.plain(16, 10000), f.plain(32, 10000)
    sections = {"chunked": (4, 6, 6), "interleaved": (6, 5, 5), "ernie": (5, 5, 6), "alternating": (8, 8)}
    layouts = {"rope_vit": "interleaved", "qwen_vision": "half", "pixtral": "half", "llama4_vision": "interleaved"}
    layouts |= {"dinov3": "half", "apex": "its own", "kimi_vision": "half", "loftr": "interleaved"}
    layouts["minimax_vision"] = "half"
    yarn_2048 = f.yarn(16, 10000, 8, 2048)
    short, long = (1, 1.5, 2, 2.5), (1, 3, 9, 27)
    longrope_factor = f.longrope_attention_factor(4, 64)
    return {
        "sinusoidal": {
            "codes": [2 * sinusoidal.code(m, 7) for m in FAR],
            "codes, sines first": [sinusoidal.code(m, 7, order="concatenated") for m in FAR],
            "shift": shift("interleaved"),
            "shift, sines first": shift("concatenated"),
        },
        "learned": {
            "rows": 1 + wave(64, 3)[ROWS],
            "linear extension": learned.interpolate(wave(4, 3).astype(np.float32), 7),
            "tiled extension": [wave(4, 3)[t % 4] for t in range(7)],
            "one row": wave(1, 3),
        },
        "rope": {
            "half": turned(FAR, f.plain(8, 10000)),
            "interleaved": turned(FAR, f.plain(8, 10000), "interleaved"),
            "interleaved to half": turned(FAR, f.plain(8, 10000), "interleaved_to_half"),
            "trailing part": turned(FAR, f.plain(6, 10000), start=2),
            "inner part": turned(FAR, f.plain(4, 10000), "interleaved", start=2),
            "learned scale": turned(ROWS, [w * math.exp(s) for w, s in zip(ladder(8), wave(4), strict=True)]),
            "negative and fractional positions": turned([-7, 0.5, 2.25], f.plain(8, 10000)),
            "far negative positions": turned([-300_000, -3], f.plain(8, 10000)),
            "moved to three axes": turned(ROWS, f.plain(8, 10000)),
            **{f"moved from one base to another, {name}": turned(ROWS, f.plain(8, 10000), name) for name in LAYOUTS},
            "many positions": turned(range(200, 1300, 150), f.plain(4, 10000), dim=4),
        },
        "axial_rope": {
            name: in_blocks(axes.apex(8), PLANES[1:], 8)
            if name == "apex"
            else turned_by_axes(by_axes(name), PLANES[1:], layout, 8)
            for name, layout in layouts.items()
        },
        "mixed_rope": {"learned": mixed_rope(), "sizes and right angles at the start": mixed_start()},
        "mrope": {
            **{
                name: turned_by_axes((mrope, getattr(axes, f"mrope_{name}")(sizes)), PLANES[-len(sizes) :], "half", 32)
                for name, sizes in sections.items()
            },
            # Qwen2-VL, Qwen3-VL, Ernie 4.5 VL, NeoMME
            "shares of 64 pairs": [16, 24, 24, 24, 20, 20, 22, 22, 20, 32, 32],
        },
        "xpos": {
            label: np.tril(xpos.scores(Q, K, IN_ORDER, IN_ORDER, scale_base=16, layout=layout)) / math.sqrt(DIM)
            for label, layout in (("scores", "half"), ("interleaved", "interleaved"))
        },
        "rerope": {
            "causal": remapped(lambda i, j: remaps.rerope(i - j, 4)),
            "both sides": remapped(lambda i, j: remaps.rerope(i - j, 4), causal=False),
            "where each branch acts": regions(lambda d: abs(d) < 4, lambda d: d >= 4, lambda d: d <= -4),
        },
        "leaky_rerope": {"causal": remapped(lambda i, j: remaps.leaky(i - j, 4, 3))},
        "self_extend": {
            "causal": remapped(lambda i, j: remaps.self_extend(i, j, 3, 5)),
            "where each branch acts": regions(lambda d: d < 5, lambda d: d >= 5),
        },
        "log_n": {"scores": scaled_queries(lambda h, m: score_scaling.log_n(m, 4))},
        "ssmax": {
            "scores": scaled_queries(lambda h, m: score_scaling.ssmax(m, wave(HEADS)[h], wave(HEADS, seed=1)[h]))
        },
        "llama4_temperature": {
            f"in steps of {step}": scaled_queries(lambda h, m, step=step: score_scaling.llama4(m, step, 0.3))
            for step in (2, 3, 5)
        },
        "alibi": {
            "causal": alibi.bias(ROWS, COLUMNS, alibi.slopes(6)),
            "geometric slopes": alibi.bias(ROWS, COLUMNS, alibi.slopes(6, "geometric")),
            "symmetric": alibi.bias(ROWS, COLUMNS, alibi.slopes(2), "symmetric"),
            "split": np.nan_to_num(alibi.split(ROWS, COLUMNS, alibi.slopes(3)), neginf=-99.0),
            "offset": 0.5 * alibi.offset(ROWS, COLUMNS, alibi.slopes(2), 0.5),
            "as BLOOM rounds it": by_key([[bfloat16(m * j) for j in COLUMNS] for m in alibi.slopes(6)]),
            "as Falcon rounds it": by_key(
                [[0.5 * bfloat16(m * bfloat16(j)) for j in COLUMNS] for m in alibi.slopes(6)]
            ),
            "as Falcon rounds it, 12 heads": [
                [bfloat16(bfloat16(m) * bfloat16(j)) for j in ROUNDED] for m in alibi.slopes(12)
            ],
            "folded into products": alibi.bias(ROWS, COLUMNS, alibi.slopes(6)),
            "by key": [[m * j for j in COLUMNS] for m in alibi.slopes(6, "geometric")],
        },
        "t5": {
            "causal": t5.bias(wave(8, 2), ROWS, COLUMNS, 8, 32),
            "both sides": t5.bias(wave(8, 2), ROWS, COLUMNS, 8, 32, bidirectional=True),
            "scores": PLAIN_SCORES * math.sqrt(DIM),  # nothing is scaled; the bias is added elsewhere
            "scaled scores": PLAIN_SCORES,
        },
        "kerple": {
            "log": kerple.log_bias(p, a, ROWS, COLUMNS),
            "power": kerple.power_bias(a, p, ROWS, COLUMNS),
        },
        "fire": {"learned": fire_bias(), "one head by its formula": fire_bias()[1]},
        "sandwich": {
            "bias": sandwich.bias(2, ROWS, COLUMNS, 6),
            "folded into products": sandwich.bias(2, ROWS, COLUMNS, 6),
        },
        "shaw": {"learned": relative_attention()},
        "transformer_xl": {"learned": transformer_xl_scores(7), "clamped": transformer_xl_scores(6, clamp=5)},
        "deberta": {
            "code": disentangled("code"),
            "paper": disentangled("paper"),
            "without buckets": disentangled("code", 5, None),
            "one exact bucket": disentangled("code", 2),
        },
        "cope": {
            "causal": np.tril(np.nan_to_num(cope.attention_scores(Q, K, wave(3, DIM)), neginf=0.0)),
            "both sides": cope.attention_scores(Q, K, wave(3, DIM), causal=False),
        },
        "forgetting_gate": {"learned": forgotten()},
        "window": {
            "causal": [[float(masks.window(i, j, 4) or j > i) for j in range(10)] for i in range(10)],
            "symmetric": [[float(masks.window(max(i, j), min(i, j), 4)) for j in range(10)] for i in range(10)],
        },
        "sinks": {"causal": [[float(masks.sinks(i, j, 4, 3) or j > i) for j in range(10)] for i in range(10)]},
        "rope+linear": {"factor": plain_scaling(f.linear(16, 10000, 4))},
        "rope+ntk": {
            "base": plain_scaling(f.ntk_base(16, 10000, 4)),
            "fixed": plain_scaling(f.ntk_fixed(16, 10000, 4)),
            "mixed": plain_scaling(f.ntk_mixed(16, 10000, 4, 0.625)),
        },
        "rope+dynamic_ntk": {
            "lengths": of_scaling(*((f.dynamic_ntk(16, 10000, 2, 64, n), 1, 1) for n in (None, 64, 65, 300))),
            # Qwen-1: the next doubling of 64 stands for each
            "in doubled steps": of_scaling(
                *((f.dynamic_ntk(16, 10000, 2, 64, n), 1, 1) for n in (64, 128, 128, 256, 512))
            ),
        },
        "rope+ntk_by_parts": {
            "paper": plain_scaling(f.ntk_by_parts(16, 10000, 4, 2048)),
            "first": plain_scaling(f.ntk_by_parts_v1(64, 10000, 4, 2048)),
        },
        "rope+llama3": {
            "bands": plain_scaling(f.llama3(32, 10000, 8, 1, 4, 2048)),
            "no band between": plain_scaling(f.llama3(16, 10000, 8, 2, 2, 2048)),
            # four turns are kept; two and fewer divided by 8, as in transformers' code
            "a pair at the edge where there is no band": [
                1000 * 2 * math.pi * w for w in (1 / 512, 1 / 1024 / 8, 1 / 2048 / 8, 0)
            ],
        },
        "rope+longrope": {
            "lengths": of_scaling(
                *((f.longrope(8, 10000, short, long, 64, n), longrope_factor, 1) for n in (None, 64, 65))
            )
        },
        "rope+yarn": {
            "ramp": of_scaling((f.yarn(64, 10000, 8, 2048), f.yarn_attention_factor(8), 1)),
            "fractions of pairs": of_scaling(
                (
                    f.yarn(64, 10000, 8, 2048, truncate=False, extrapolation_factor=0.5),
                    f.yarn_attention_factor(8),
                    1,
                )
            ),
            "float32 angles": float(f.yarn_attention_factor(8)) * np.array(turned(ROWS, f.yarn(8, 10000, 8, 64))),
            "both temperatures": of_scaling(
                (
                    yarn_2048,
                    f.yarn_attention_factor(8, mscale=0.7, mscale_all_dim=1.5),
                    f.yarn_softmax_factor(8, 1.5),
                )
            ),
        },
        "rope+resonance": {
            "plain": plain_scaling(resonance.frequencies([float(w) for w in plain16])),
            "over YaRN": of_scaling(
                (resonance.frequencies([float(w) for w in yarn_2048]), f.yarn_attention_factor(8), 1)
            ),
            "of pairs faster than a position, and still ones": [2 * math.pi, 2 * math.pi, 2 * math.pi / 3, 0],
        },
        "rope+proportional": {
            "quarter": plain_scaling(f.proportional(16, 10000, 0.25)),
            "with a factor": plain_scaling(f.proportional(16, 10000, 0.7, 4)),
        },
    }


def numbers():
    """The same as lists of lists, of 12 digits."""
    return {
        name: {label: rounded(np.asarray(found, dtype=float).tolist()) for label, found in cases.items()}
        for name, cases in papers().items()
    }


def rounded(found):
    return [rounded(each) for each in found] if isinstance(found, list) else float(f"{found:.12g}")


def written(found):
    """The text of the file: a line for each case."""
    names = []
    for name, cases in found.items():
        lines = [f"  {json.dumps(label)}: {json.dumps(given)}" for label, given in cases.items()]
        names.append(f"{json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n }")
    return "{\n " + ",\n ".join(names) + "\n}\n"


if __name__ == "__main__":
    FILE.write_text(written(numbers()))
