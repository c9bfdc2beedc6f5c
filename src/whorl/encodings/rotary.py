"""Rotary: what every encoding that rotates queries and keys shares, whatever its angles are made of."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, ClassVar, Self
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from whorl.encodings import parts
from whorl.encodings.base import Claims, Encoding, follows_from
from whorl.encodings.pairs import check_head
from whorl.encodings.rotary_config import RotaryConfig
from whorl.errors import WhorlError, invalid
from whorl.graphs import held, value_of, with_text
from whorl.kernels.axes import HEADS_AXIS, length_of
from whorl.kernels.choose import Impl
from whorl.kernels.refusals import why_not_rotate
from whorl.kernels.rotate import ready_turn, rotate, rotate_qk
from whorl.kernels.rotate_checks import check_input, check_pair, checked_rotation
from whorl.kernels.rotate_torch import wide_dtype
from whorl.kernels.tables import exact_tables
from whorl.plans import PLANS, kind
from whorl.position_checks import check_positions, first_of_consecutive
from whorl.rotary import tables as table
from whorl.rotary.cache import current_table_cache
from whorl.rotary.rotation import Layout, Order, Rotation, layout_ends
from whorl.tracing import is_symbol, kept_in_graphs, may_keep_tensors


class Rotary(Encoding):
    """Base of the rotary encodings: one frequency and one position axis per pair of dimensions.

    ``frequencies`` make ``tables``, by which ``turn`` turns, as ``rotate`` and ``transform_qk`` have it do. A class
    that writes one of them over decides for all that follow.
    """

    config: RotaryConfig
    _own_frequencies: ClassVar[bool] = False  # whether a class has written ``frequencies`` over
    _own_rotation: ClassVar[bool] = False  # whether a class has written ``turn`` or ``rotate`` over

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._own_frequencies = cls.frequencies is not Rotary.frequencies
        cls._own_rotation = cls.turn is not Rotary.turn or cls.rotate is not Rotary.rotate

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.config, self._text = with_text(self.config)

    def _restore(self) -> None:
        self.config, self._text = with_text(self.config)  # the text of another process may mean something else here

    def declare(self) -> tuple[parts.Part, ...]:
        return parts.Placement(self, rotary=self), parts.SoftmaxScale(self)

    @property
    def layout(self) -> Layout:
        """Which two dimensions make a pair."""
        raise NotImplementedError

    @property
    @follows_from("config.axes")
    def axes(self) -> int:
        return self.config.axes

    @property
    def claims(self) -> Claims:
        keeps, scaling = self.attention_factor() == 1.0, getattr(self.config, "scaling", None)
        holds = scaling is not None and scaling.extrapolates
        return Claims(relative=True, norm_preserving=keeps, linear_attention=True, decays=False, extrapolates=holds)

    def frequencies(self, length: int | None = None) -> Tensor:
        """w_i of each pair after scaling for this length, float64, shape (pairs,)."""
        return self._frequencies(length).double() * self.config.unit  # a new tensor: who asks may write into it

    def attention_factor(self, length: int | None = None) -> float:
        """What multiplies cos and sin."""
        return self.config.factors(check_length(length, type(self).__name__)).attention

    def softmax_factor(self, length: int | None = None) -> float:
        """What multiplies the softmax scale."""
        return self.config.factors(check_length(length, type(self).__name__)).softmax

    def softmax_scale(self, head_dim: int, length: int | None = None) -> float:
        return super().softmax_scale(head_dim) * self.softmax_factor(length)

    def tables(
        self, positions: Tensor, length: int | None = None, *, dtype: torch.dtype = torch.float32
    ) -> table.Tables:
        """cos and sin for these positions, the attention factor included, shape (…, pairs)."""
        axes_first = check_positions(type(self).__name__, positions, self.axes)
        if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
            raise invalid(type(self).__name__, "dtype", "a floating dtype", dtype, "Use torch.float32.")
        frequencies, factor = self._table_frequencies(length, positions.device), self.attention_factor(length)

        def build(ids: Tensor, pairs: slice | list[int]) -> table.Tables:
            if self.config.angles == "float32":
                cos, sin = table.float32(ids, frequencies[pairs], factor)
                return cos.to(dtype), sin.to(dtype)
            return exact_tables(ids, frequencies[pairs], factor, dtype)

        return by_axis(axes_first, self.config.axis_of_pair, build)

    def rotate(
        self,
        x: Tensor,
        positions: Tensor,
        length: int | None = None,
        *,
        inverse: bool = False,
        order: Order = "bhld",
        impl: Impl = "auto",
    ) -> Tensor:
        """One tensor, queries or keys, rotated to its positions, or back with ``inverse=True``."""
        self._check_head("x", x, positions, order)
        tables = self._shared_tables(positions, length, wide_dtype(x))
        return self.turn(x, tables, inverse=inverse, order=order, impl=impl)

    def transform_qk(
        self,
        q: Tensor,
        k: Tensor,
        q_positions: Tensor,
        k_positions: Tensor,
        length: int | None = None,
        *,
        order: Order = "bhld",
        impl: Impl = "auto",
    ) -> tuple[Tensor, Tensor]:
        """Queries and keys rotated to their positions; their numbers of heads may differ."""
        if q_positions is k_positions and isinstance(q, Tensor) and q.is_cuda:
            turn = self._ready_turn(q, k, q_positions, length, order, impl)
            if turn is not by_tables:
                return turn(q, k, q_positions)
        self._check_head("q", q, q_positions, order)
        self._check_head("k", k, k_positions, order)
        check_heads(type(self).__name__, self.config.rotated_heads, q, k, order)
        if self._own_rotation:
            turned_q = self.rotate(q, q_positions, length, order=order, impl=impl)
            return turned_q, self.rotate(k, k_positions, length, order=order, impl=impl)
        if may_keep_tensors() and not (q.numel() or k.numel()):  # a cache asks whether its tokens would be refused
            check_positions(type(self).__name__, q_positions, self.axes)
            return q, k
        q_tables = self._shared_tables(q_positions, length, wide_dtype(q))
        apart = k_positions is not q_positions or k.dtype != q.dtype or self.config.rotated_heads is not None
        if apart or q.ndim < q_tables[0].ndim:
            k_tables = self._shared_tables(k_positions, length, wide_dtype(k))
            return self.turn(q, q_tables, order=order, impl=impl), self.turn(k, k_tables, order=order, impl=impl)
        start, blocks = self.config.start, self.config.blocks
        return rotate_qk(q, k, *q_tables, self.layout, start=start, blocks=blocks, order=order, impl=impl)

    def _ready_turn(
        self, q: Tensor, k: Tensor, positions: Tensor, length: int | None, order: Order, impl: Impl
    ) -> Callable[..., Any]:
        """The function of (q, k, positions) for calls of this kind on a GPU, checked before; or ``by_tables``."""
        key = kind(("transform_qk", type(self), self._text, length, order, impl), positions, q, k)
        turn = PLANS.get(key)
        if key is None or turn is not None:
            return turn or by_tables
        self._check_head("q", q, positions, order)
        self._check_head("k", k, positions, order)
        check_positions(type(self).__name__, positions, self.axes)
        learned = next(self.parameters(), None) is not None
        own = type(self).tables is not Rotary.tables or self._own_rotation or learned
        plain = not own and self.config.angles == "exact" and self.axes == 1 and not positions.requires_grad
        plain = plain and self.config.rotated_heads is None and impl in ("auto", "triton")
        if not plain or q.dtype == torch.float64 or why_not_rotate("triton", q, positions, positions):
            return PLANS.keep(key, by_tables)
        rotation = checked_rotation("transform_qk", self.layout, False, self.config.start, self.config.blocks, order)
        frequencies, factor = self._table_frequencies(length, q.device), self.attention_factor(length)
        check_pair("transform_qk", q, k, *exact_tables(positions, frequencies, factor), None, rotation)
        return PLANS.keep(key, ready_turn(q, k, positions, frequencies, factor, rotation))

    def _shared_tables(self, positions: Tensor, length: int | None, dtype: torch.dtype) -> table.Tables:
        """The tables through the cache that all layers share."""
        if self._parameters or self._modules:  # what is trained changes from step to step: nothing to keep
            return self.tables(positions, length, dtype=dtype)
        axes_first = check_positions(type(self).__name__, positions, self.axes)
        served = self._served(length)
        kept = current_table_cache().prefix(
            (type(self), self.config, served, dtype),  # a subclass may have tables of its own
            axes_first,
            2 * self.config.pairs * dtype.itemsize,
            lambda ids: self.tables(ids, length, dtype=dtype),
            served,
        )
        if kept is None:
            return self.tables(positions, length, dtype=dtype)

        def look_up(ids: Tensor, pairs: slice | list[int]) -> table.Tables:
            first = first_of_consecutive(ids)
            rows = ids if first is None else slice(first, first + ids.numel())  # a slice copies nothing
            cos, sin = (t[rows][..., pairs] for t in kept)
            return cos, sin

        return by_axis(axes_first, self.config.axis_of_pair, look_up)

    @follows_from("layout")
    def rotation(self) -> Rotation:
        """What is done to tensors (batch, heads, length, dim), but for the angles."""
        return Rotation("bhld", *layout_ends(self.layout), self.config.start, self.config.blocks)

    @follows_from("tables")
    def counted_tables(self, count: int, length: int | None, device: torch.device) -> Counted | None:
        """The float32 tables of positions 0, 1, 2, …, at least ``count`` of them, the same on every axis.

        They are shared by all layers as long as one of them holds them. None where angles are learned or differ by
        head: then they are made for each call.
        """
        if self.config.rotated_heads is not None or next(self.parameters(), None) is not None:
            return None
        key = type(self), self._text, self._served(length), device  # a subclass may have tables of its own
        kept = COUNTED.get(key)
        if kept is None or kept.cos.shape[0] < count:
            rows = 1 << (count - 1).bit_length()  # few tables for all lengths
            # a text that outgrows its memory waits for the further rows alone; a device makes all as fast
            first = kept.cos.shape[0] if kept is not None and device.type == "cpu" else 0
            ids = torch.arange(first, rows, device=device)
            with torch.inference_mode(False), torch.no_grad():
                made = self.tables(ids if self.axes == 1 else ids.expand(self.axes, -1), length)
                if kept is not None and first:
                    made = torch.cat((kept.cos, made[0])), torch.cat((kept.sin, made[1]))
                kept = COUNTED[key] = Counted(*(table.contiguous() for table in made))
        return kept

    def _table_frequencies(self, length: int | None, device: torch.device) -> Tensor:
        if not self._own_frequencies:
            return self._frequencies(length, device)
        return (self.frequencies(length) / self.config.unit).to(device, self.config.dtype)

    def _frequencies(self, length: int | None, device: torch.device | None = None) -> Tensor:
        """The frequencies before the unit, in the precision of tables; where they are kept unless a device is given."""
        return self._constants(length, device or torch.device("cpu"))

    def _constants(self, length: int | None, device: torch.device) -> Tensor:
        served = self._served(length)
        if is_symbol(served):  # a graph for every length computes them; nothing is kept under a symbol
            return self.config.scaled_frequencies(served).to(device)
        if served is not None and device.type == "cpu" and may_keep_tensors():
            return finite_frequencies(self.config, served)  # as a text grows, each length is asked for once
        return _frequencies_on(self._text, served, self.config.dtype, device)

    def _served(self, length: int | None) -> int | None:
        """The length, where it makes a difference."""
        length = check_length(length, type(self).__name__)
        return self.config.served(length) if self.length_dependent else None

    def turn(
        self, x: Tensor, tables: table.Tables, *, inverse: bool = False, order: Order = "bhld", impl: Impl = "auto"
    ) -> Tensor:
        """x turned by tables already made, in this encoding's layout and slice."""
        if x.ndim == 3 and tables[0].ndim == 4:  # tables by head have a batch axis, so x gets one
            whole: Order = "bhld" if order == "bhld" else "blhd"
            return self.turn(x.unsqueeze(0), tables, inverse=inverse, order=whole, impl=impl).squeeze(0)
        return rotate(
            x,
            *tables,
            self.layout,
            inverse=inverse,
            start=self.config.start,
            blocks=self.config.blocks,
            heads=self.config.rotated_heads,
            order=order,
            impl=impl,
        )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # rounded to bfloat16, a frequency of 1 is off by a fifth of a radian at position 100: only the device is taken
        def at_least_float32(tensor: Tensor) -> Tensor:
            out = fn(tensor)
            return tensor.to(out.device) if out.dtype in (torch.float16, torch.bfloat16) else out

        return super()._apply(at_least_float32, recurse)

    def _check_head(self, name: str, x: Tensor, positions: Tensor, order: Order) -> None:
        call = type(self).__name__
        check_input(x, order, call, name)
        check_head(call, x, self.config.head_dim)
        if isinstance(positions, Tensor) and positions.device != x.device:
            raise WhorlError(
                f"{call}: positions are on {positions.device} and the tensor on {x.device}. "
                f"Make them there: whorl.positions({length_of(x, order)}, device={str(x.device)!r})."
            )


def check_heads(call: str, chosen: tuple[int, ...] | None, q: Tensor, k: Tensor, order: Order = "bhld") -> None:
    """Raises a WhorlError where some heads alone turn, and queries would meet keys that do not turn with them."""
    axis = HEADS_AXIS[order]
    if chosen is not None and q.ndim > 2 and k.ndim > 2 and q.shape[axis] != k.shape[axis]:
        raise WhorlError(
            f"{call}: rotated_heads={chosen} turns these heads of queries and of keys, got {q.shape[axis]} query heads "
            f"and {k.shape[axis]} key heads. Repeat keys that several heads share."
        )


def by_tables(*_: Any) -> Any:
    """Stands for the calls that look their tables up."""
    raise NotImplementedError


class Counted:
    """Tables of the first positions; plans hold them."""

    def __init__(self, cos: Tensor, sin: Tensor) -> None:
        self.cos, self.sin = cos, sin
        self.bytes = cos.nbytes + sin.nbytes


COUNTED: WeakValueDictionary[Hashable, Counted] = WeakValueDictionary()


def by_axis(
    positions: Tensor, axis_of_pair: tuple[int, ...], build: Callable[[Tensor, slice | list[int]], table.Tables]
) -> table.Tables:
    """Tables whose pair j is turned by positions[axis_of_pair[j]]; ``build`` makes those of one axis.

    One vector of axes expresses every multi-axis rotary there is: axial images, chunked, interleaved
    and Ernie's M-RoPE, any number of axes.
    """
    used = sorted(set(axis_of_pair))
    if len(used) == 1:
        return build(positions[used[0]], slice(None))
    pairs_of_axis = [[j for j, axis in enumerate(axis_of_pair) if axis == turning] for turning in used]
    parts = [build(positions[axis], pairs) for axis, pairs in zip(used, pairs_of_axis, strict=True)]
    joined = [j for pairs in pairs_of_axis for j in pairs]
    back = sorted(range(len(joined)), key=joined.__getitem__)
    cos, sin = (torch.cat([part[k] for part in parts], dim=-1)[..., back] for k in (0, 1))
    return cos, sin


def check_length(length: int | None, call: str) -> int | None:
    """The length to serve, or a WhorlError unless it is a positive integer or None."""
    if length is not None and (isinstance(length, bool) or not isinstance(length, (int, torch.SymInt)) or length <= 0):
        raise invalid(call, "length", "a positive integer or None", length)
    return length


@held
def frequency_numbers(config_text: str, length: int | None) -> tuple[float, ...]:
    """The frequencies of a config for a length."""
    return tuple(finite_frequencies(value_of(config_text), length).tolist())


def finite_frequencies(settings: RotaryConfig, length: int | None) -> Tensor:
    """The same as a tensor on the CPU, or a WhorlError unless angles are finite."""
    found = settings.scaled_frequencies(length)
    largest = torch.finfo(settings.dtype).max / 2**63  # an angle is a frequency times any position
    if not bool((found.abs() <= largest).all()):  # which NaN is not either
        raise WhorlError(
            f"{settings.call()}: angles are not finite with the frequencies of these settings: {settings!r}. "
            "Use a base and factors nearer to those of trained models."
        )
    return found


@kept_in_graphs  # on the device: copying them there would wait for it at every call
def _frequencies_on(config_text: str, length: int | None, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor(frequency_numbers(config_text, length), dtype=dtype, device=device)
