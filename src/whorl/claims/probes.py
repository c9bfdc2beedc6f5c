"""Probes of encodings, for claims: small encodings, tokens to attend to, the weights they get."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from whorl import Encoding, Rope, WhorlError, attention, registry
from whorl.encodings.parts import Input, first

HEADS, HEAD_DIM, WIDTH, LENGTH = 4, 16, 64, 64

# Far enough for every window, group and step of the registry's defaults to act.
FARTHEST = 16_500


def generator(seed: int = 0) -> torch.Generator:
    """A new source of random numbers, so that a claim's numbers depend on nothing else."""
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Standard normal numbers, float64."""
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


def doubles(values: Any) -> Tensor:
    """The numbers as a float64 tensor."""
    return torch.tensor(values, dtype=torch.float64)


def ladder(dim: int, base: float = 10_000.0) -> Tensor:
    """base^(-2i/d), from the definition, float64."""
    return base ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)


def frequencies(dim: int = 128, base: float = 10_000.0) -> Tensor:
    """w_i of a RoPE, by whorl."""
    return Rope(head_dim=dim, base=base).frequencies()


def turned(x: Tensor, angles: Tensor) -> Tensor:
    """Pairs of neighbouring entries times e^(i angle), in complex numbers."""
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2)


def refusal(call: Callable[[], object]) -> str:
    """The text of the WhorlError that a call raises; empty where it raises none."""
    try:
        call()
    except WhorlError as error:
        return str(error)
    return ""


def build(encoding: str | type[Encoding]) -> Encoding:
    """The encoding of that name or class, for a small model."""
    cls = registry.encoding_class(encoding) if isinstance(encoding, str) else encoding
    sizes = {"heads": HEADS, "head_dim": HEAD_DIM, "width": WIDTH, "length": LENGTH}
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        warnings.simplefilter("ignore", UserWarning)  # T5 warns where its buckets pass the trained length
        return cls(**{name: value for name, value in sizes.items() if name in cls.Config.fields()})


def moved(encoding: Encoding, amount: float = 0.1, seed: int = 7) -> Encoding:
    """A float64 copy of the encoding on the CPU, with learned numbers moved from where they are."""
    out, source = copy.deepcopy(encoding).to("cpu", torch.float64), generator(seed)
    for parameter in out.parameters():
        noise = torch.randn(parameter.shape, generator=source, dtype=torch.float64)
        parameter.data += (amount * noise).to(parameter.dtype)
    return out


class Sizes(NamedTuple):
    """The sizes of a model that an encoding fits."""

    heads: int
    head_dim: int
    width: int


def sizes_of(encoding: Encoding) -> Sizes:
    """The sizes an encoding was built for, and small ones where it was built for none."""
    configs = [each.config for each in encoding.joined or (encoding,)]

    def given(name: str, default: int) -> int:
        sizes = (getattr(config, name, None) for config in configs)
        return next((size for size in sizes if isinstance(size, int)), default)

    rotated = (getattr(config, "rotated_heads", None) or (0,) for config in configs)
    heads = max(given("heads", HEADS), *(1 + max(each) for each in rotated))
    width = given("width", WIDTH) if encoding.reads_hidden or first(encoding, Input) else WIDTH
    return Sizes(heads, given("head_dim", HEAD_DIM), width)


class Tokens(NamedTuple):
    """Queries, keys and values of some tokens, and their hidden states where the encoding reads them."""

    q: Tensor
    k: Tensor
    v: Tensor
    hidden: Tensor | None

    def options(self) -> dict[str, Any]:
        """The keyword arguments of attention beside q, k and v."""
        return {} if self.hidden is None else {"hidden": self.hidden}

    def part(self, start: int, stop: int) -> Tokens:
        """The tokens from start to stop."""
        hidden = None if self.hidden is None else self.hidden[:, start:stop]
        q, k, v = (t[:, :, start:stop] for t in self[:3])
        return Tokens(q, k, v, hidden)


def tokens(encoding: Encoding, positions: Tensor, *, seed: int = 0, alike: bool = False) -> Tokens:
    """Random tokens at these positions, through what the encoding adds to its input and fixed projections, float64.

    ``alike=True`` makes all tokens the same but for their positions.
    """
    heads, head_dim, width = sizes_of(encoding)
    count = positions.shape[-1]
    x = normal(1, 1 if alike else count, width, seed=seed).expand(1, count, width)
    x = encoding.add_to_input(x, positions)
    weights = normal(3, width, heads * head_dim, seed=seed + 1) / width**0.5
    q, k, v = ((x @ weight).unflatten(-1, (heads, head_dim)).transpose(1, 2) for weight in weights)
    return Tokens(q, k, v, x if encoding.reads_hidden else None)


def weights_at(
    encoding: Encoding,
    positions: Tensor,
    *,
    seed: int = 0,
    alike: bool = False,
    causal: bool = True,
    length: int | None = None,
) -> Tensor:
    """The attention weights (heads, queries, keys) of random tokens at these positions."""
    given = tokens(encoding, positions, seed=seed, alike=alike)
    options = {"encoding": encoding, "positions": positions, "causal": causal, "length": length, **given.options()}
    _, weights = attention(*given[:3], return_weights=True, **options)
    return weights[0]


def reach(encoding: Encoding) -> int:
    """The largest position, of those tried, that the encoding has an answer for."""
    for farthest in (FARTHEST, LENGTH - 1, 15):
        if not refusal(lambda last=farthest: weights_at(encoding, torch.tensor([0, last]))):
            return farthest
    raise WhorlError(
        f"verify: {type(encoding).__name__} has no answer for position 15, so nothing of it can be measured. "
        "Give it at least 16 positions."
    )


def spread(encoding: Encoding, count: int, farthest: int) -> Tensor:
    """Positions from 0 to the farthest, at random on each axis where a position has several."""
    if encoding.axes == 1:
        return torch.arange(count) * (farthest // (count - 1))
    return torch.randint(0, farthest + 1, (encoding.axes, count), generator=generator(5))


def largest(x: Tensor | Iterable[Tensor]) -> float:
    """The largest absolute value of one tensor or of several, and 0 of nothing."""
    if isinstance(x, Tensor):
        return float(x.abs().max()) if x.numel() else 0.0
    return float(torch.tensor([largest(part) for part in x], dtype=torch.float64).max())  # NaN, where one is
