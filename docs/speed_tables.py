"""Tables of committed benchmarks, as lines of Markdown."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from measured import document, groups, named, source, table, written
from whorl.benchmarks import decode_bars
from whorl.benchmarks.decode import titles

SHAPES = ("4x8192", "1x32768", "8x4096")  # of the benchmark of the rotation, batch x length
PEERS = ("torch.compile", "liger-kernel", "transformers")
PARTS = {"64": "first 64", "32": "first 32", "mla": "last 64"}  # what is turned, by the name of the file


def span(values: Iterable[float], form: str = ".2f") -> str:
    """The smallest and the largest value, once where they are written alike.

    >>> span([1.102, 1.166]), span([0.5])
    ('1.10–1.17', '0.50')
    """
    low, *rest = sorted(values)
    return "–".join(dict.fromkeys(f"{value:{form}}" for value in (low, *rest[-1:])))


def speed(time: float) -> str:
    """A time over the yardstick's as a share of its speed."""
    return f"{100 / time:.0f} %"


def decoding(*names: str) -> list[str]:
    """A decoding step with each encoding in µs: called, with padded rows, in a graph, and that over the bound."""
    rows: dict[str, list[str]] = {}
    for name in names:
        called, padded = _called(name)
        replayed = {step.name: step for step in decode_bars.steps(groups(name)) if not step.padded}
        for label in list(called)[1:]:
            cells = [f"{1e6 * one[label]['seconds']:.0f}" for one in (called, padded)]
            if label in replayed:
                step = replayed[label]
                cells += [f"{1e6 * step.device:.1f}", f"{step.figures()['over the bound']:.2f}"]
            rows.setdefault(named(label), []).append(" / ".join(cells))
    lengths = (f"{document(name)['settings']['kept']:,} keys" for name in names)
    return table(["a step with", *lengths], ([label, *row] for label, row in rows.items()))


def decoding_bars(*names: str) -> list[str]:
    """What a decoding step takes beside the device's time, in µs; and on the device, over the bound and over RoPE."""
    rows: dict[str, list[str]] = {}
    for name in names:
        for step in decode_bars.steps(groups(name)):
            beside, *ratios = step.figures().values()
            rows.setdefault(named(step.label), []).extend([f"{1e6 * beside:.0f}", *(f"{one:.2f}" for one in ratios)])
    lengths = [f"{document(name)['settings']['kept']:,} keys" for name in names]
    heads = (f"{length}: {what}" for length in lengths for what in decode_bars.BARS)
    return table(["a step with", *heads], ([label, *row] for label, row in rows.items()))


def decoding_runs(*names: str) -> list[str]:
    """For every run what steps took beside the device, torch's kernel as called, the highest ratios, what missed."""
    rows = []
    for name in names:
        held = [step for step in decode_bars.steps(groups(name)) if step.name in decode_bars.BARRED]
        beside = {
            padded: span((1e6 * step.figures()["beside the device"] for step in held if step.padded == padded), ".0f")
            for padded in (False, True)
        }
        yardsticks = (next(iter(steps.values())) for steps in _called(name))
        torchs = " / ".join(f"{1e6 * row['seconds']:.0f}" for row in yardsticks)
        worst = [max(step.figures()[what] for step in held) for what in ("over the bound", "over RoPE")]
        missed = [named(step.label) for step in held if step.missed()]
        link = f"[{source(name).stem[:10]}](../benchmarks/results/{source(name).name})"
        kept = f"{document(name)['settings']['kept']:,}"
        ratios = [f"{one:.2f}" for one in worst]
        rows.append([link, kept, *beside.values(), torchs, *ratios, "; ".join(missed)])
    heads = ("keys", "beside the device, µs", "padded rows", "torch, called", "most over the bound", "over RoPE")
    return table(["run", *heads, "a bar missed with"], rows)


def _called(name: str) -> list[dict[str, dict[str, Any]]]:
    """Steps called from Python, without padding and with it."""
    own = groups(name)
    return [own[titles(padded=padded)[0]] for padded in (False, True)]


def cpu_decoding(name: str) -> list[str]:
    """A decoding step on a CPU with each encoding: its time, and that over torch's kernel alone."""
    called, padded = _called(name)
    rows = []
    for label, row in called.items():
        cells = (f"{1e6 * one['seconds']:.0f} µs, {one['ratio']:.2f}" for one in (row, padded[label]))
        rows.append([named(label), *cells, "" if row["bar"] is None else f"≤ {row['bar']:g}"])
    return table(["a step with", "time, over torch's kernel", "with padded rows", "bar"], rows)


def training(name: str) -> list[str]:
    """Tokens per second of training with each encoding, over those of the first."""
    own = groups(name)["a training step"]
    rows = ([named(label), f"{1e3 * row['seconds']:.1f} ms", f"{1 / row['ratio']:.2f}"] for label, row in own.items())
    return table(["", "a step", "tokens per second over NoPE"], rows)


def generation(name: str) -> list[str]:
    """Whole calls of a Llama, beside transformers."""
    rows = []
    for what, own in groups(name).items():
        times = [f"{1e3 * row['seconds']:,.0f} ms" for row in own.values()]
        ours = list(own.values())[-1]
        rows.append([what, times[0], times[1] if len(times) > 2 else "", times[-1], f"{1 / ours['ratio']:.1f}"])
    return table(["", "transformers", "whorl, single steps", "whorl", "times as fast"], rows)


def tiles(*names: str) -> list[str]:
    """The share of torch's plain speed, forward and with the backward pass, by encoding and length, and its bars."""
    heads, columns = [""], []
    labels = document(names[0])["settings"]["encodings"].split(",")
    for name in names:
        ways, length = groups(name).values(), f"{document(name)['settings']['length']:,} tokens"
        rows = [[way[label] for way in ways] for label in labels]
        heads.append(length)
        columns.append([" / ".join(f"{1 / row['ratio']:.2f}" for row in both) for both in rows])
        if any(row["bar"] for both in rows for row in both):
            heads.append("bars")
            columns.append([_bars(*both) for both in rows])
    firsts = (" + ".join(named(part) for part in label.split("+")) for label in labels)
    return table(heads, zip(firsts, *columns, strict=True))


def _bars(*rows: dict[str, Any]) -> str:
    if not any(row["bar"] for row in rows):
        return ""
    return " / ".join("–" if row["bar"] is None else f"{1 / row['bar']:.3g}" for row in rows)


def results(name: str, group: str) -> dict[str, dict[str, Any]]:
    """The rows of a group of a benchmark by name, without those that were wrong and not timed."""
    return {label: row for label, row in groups(name)[group].items() if row["seconds"] is not None}


def rotation() -> list[str]:
    """The rotation as a share of the speed of a copy, by shape and order, with peers."""
    rows = []
    for shape in SHAPES:
        name = f"rotary-{shape}-peers-h200"
        for order in ("bhld", "blhd"):
            ways = [results(name, f"{way}, {order}, bfloat16") for way in ("forward", "backward")]
            ours = [
                " / ".join(speed(way[f"whorl, {layout}"]["ratio"]) for layout in ("half", "interleaved"))
                for way in ways
            ]
            peers = [speed(ways[0][peer]["ratio"]) if peer in ways[0] else "" for peer in PEERS]
            rows.append([f"{size(name)}, {order}", *ours, *peers])
    return table(["batch, length, heads / key heads, dim", "forward, half / interleaved", "backward", *PEERS], rows)


def size(name: str) -> str:
    """The shape that a benchmark of the rotation had."""
    one = document(name)["settings"]
    return f"({one['batch']}, {one['length']}, {one['heads']}/{one['kv_heads']}, {one['head_dim']})"


def partial() -> list[str]:
    """Partial rotation, the slower of the two layouts."""
    rows = []
    for part, turned in PARTS.items():
        name = f"rotary-partial-{part}-h200"
        cells, in_place = [], []
        for order in ("bhld", "blhd"):
            ways = [results(name, f"{way}, {order}, bfloat16") for way in ("forward", "backward")]
            slowest = [max(way[f"whorl, {layout}"]["ratio"] for layout in ("half", "interleaved")) for way in ways]
            cells.append(" / ".join(map(speed, slowest)))
            in_place += [row["ratio"] for label, row in ways[0].items() if label.endswith("in place")]
        rows.append([size(name), turned, *cells, f"{max(in_place):.2f}"])
    header = ["shape", "turned", "bhld, forward / backward", "blhd", "q alone in place, time over copying q and k"]
    return table(header, rows, left=2)


def steps() -> list[str]:
    """The rotation of one token in µs, replayed in a graph and called from Python, beside its peers."""
    rows = []
    for shape in ("4x8192", "8x4096"):  # heads of 128 and of 64
        name = f"rotary-{shape}-peers-h200"
        for way, calls in {"in a graph": 100, "called": 1}.items():
            own = results(name, f"decoding, {way}, bfloat16")
            times = (1e6 * own[path]["seconds"] / calls for path in ("copy", "whorl", *PEERS))
            rows.append([f"{one_token(name)}, {way}", *(f"{one:.2f}" if one < 10 else f"{one:.0f}" for one in times)])
    return table(["µs a call", "copy", "whorl", *PEERS], rows)


def one_token(name: str) -> str:
    one = document(name)["settings"]
    return f"(128, 1, {one['heads']}/{one['kv_heads']}, {one['head_dim']})"


def precision(name: str) -> list[str]:
    """The largest error of cos and sin near each far position, by library."""
    by_position = groups(name)
    paths = next(iter(by_position.values()))
    rows = ([path, *(written(own[path]["error"], ".1e") for own in by_position.values())] for path in paths)
    return table(["", *by_position], rows)


def linear(name: str) -> list[str]:
    """Linear attention in ms, and a peer without rotation and denominator."""
    rows = []
    for way in ("forward", "forward and backward"):
        own = results(name, way)
        rows.append(
            [way, *(f"{1e3 * own[path]['seconds']:.2f} ms" for path in ("whorl, triton", "flash-linear-attention"))]
        )
    return table(["dim 64", "whorl", "flash-linear-attention, no RoPE, no denominator"], rows)


def rotary_cpu(name: str) -> list[str]:
    """The rotation on a CPU over a copy, by type; ranges are over layouts and strides."""
    kinds = ("float32", "bfloat16", "float16")
    rows = []
    for way, yardstick in {"into given memory": "copy_", "out of place": "clone"}.items():
        by_kind = [results(name, f"{way}, {kind}") for kind in kinds]
        ours = [[row["ratio"] for path, row in own.items() if path.startswith("whorl")] for own in by_kind]
        rows.append([f"whorl, {way}, over `{yardstick}`", *map(span, ours)])
        for peer in ("torch.compile", "transformers", "rotary-embedding-torch"):
            if peer in by_kind[0]:
                cells = [f"{own[peer]['ratio']:.1f}" if peer in own else "wrong" for own in by_kind]
                rows.append([f"{peer}, {way}, over `{yardstick}`", *cells])
    return table(["", *kinds], rows)
