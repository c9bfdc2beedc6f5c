"""Which axis of a position each rotary pair reads: M-RoPE, and the 2-D conventions of vision models.

M-RoPE axes are (t, h, w) = (0, 1, 2) and the frequencies stay the plain ladder. A 2-D convention returns
(frequencies, axes), one entry per pair, with axes row (h, y) = 0 and column (w, x) = 1. The angle of pair j
is position[axes[j]] * frequencies[j]; where pair j lies in the head is the layout, named in each docstring.
"""

from mpmath import mp

from .rotary_frequencies import fifty_digits, plain

ROW, COLUMN = 0, 1
T, H, W = 0, 1, 2


def mrope_chunked(sections):
    """Qwen2-VL: the first sections[0] pairs read axis 0, the next sections[1] read axis 1, and so on."""
    return [axis for axis, size in enumerate(sections) for _ in range(size)]


def mrope_interleaved(sections):
    """Qwen3-VL: t h w t h w ... until h and w have their sections, t for the rest.

    The rule as it stands: an h or w section too large for the ladder comes out short, and t gets the rest.
    """
    out = []
    for j in range(sum(sections)):
        if j % 3 == 1 and j < 3 * sections[H]:
            out.append(H)
        elif j % 3 == 2 and j < 3 * sections[W]:
            out.append(W)
        else:
            out.append(T)
    return out


def mrope_ernie(sections):
    """Ernie 4.5 VL, sections in the order (h, w, t) with h == w: h w h w ..., then t. Interleaved layout."""
    h, w, t = sections
    assert h == w, "Ernie alternates h and w, so they have equal sections"
    return [H, W] * h + [T] * t


def mrope_alternating(sections):
    """NeoMME, sections in the order (h, w) with h == w: h w h w ... Half layout."""
    h, w = sections
    assert h == w, "NeoMME alternates h and w, so they have equal sections"
    return [0, 1] * h


def one_ladder_per_axis(head_dim, base, order):
    """Each axis has the plain ladder of half the head: base^(-4j / head_dim), j < head_dim / 4."""
    ladder = plain(head_dim // 2, base)
    return ladder + ladder, [order[0]] * len(ladder) + [order[1]] * len(ladder)


def rope_vit(head_dim, base=100):
    """RoPE-ViT axial (Heo et al. 2024): columns first. Interleaved layout."""
    return one_ladder_per_axis(head_dim, base, (COLUMN, ROW))


def qwen_vision(head_dim, base=10000):
    """Qwen2-VL's vision tower: rows first. Half layout over the whole head."""
    return one_ladder_per_axis(head_dim, base, (ROW, COLUMN))


def llama4_vision(head_dim, base=10000):
    """Llama 4's vision tower: columns first, positions from 1, class token unturned. Interleaved layout."""
    return one_ladder_per_axis(head_dim, base, (COLUMN, ROW))


def apex(head_dim, base=10000):
    """NVIDIA apex 2-D: rows turn the first half of the head, columns the second, each in its own half layout.

    The first head_dim / 4 pairs belong to the row block (start=0), the others to the column block
    (start=head_dim / 2). apex takes tables, not a base: the ladder is the usual one for a block of that size.
    """
    return one_ladder_per_axis(head_dim, base, (ROW, COLUMN))


def in_turn(head_dim, base, order):
    """As above, but the two axes lie side by side at each frequency."""
    ladder = plain(head_dim // 2, base)
    return [w for w in ladder for _ in order], list(order) * len(ladder)


def kimi_vision(head_dim, base=10000):
    """Kimi-K2.5's vision tower: column and row in turn. Half layout over the whole head."""
    return in_turn(head_dim, base, (COLUMN, ROW))


def loftr(head_dim, base=10000):
    """EfficientLoFTR: row and column in turn, positions from 1. Interleaved layout."""
    return in_turn(head_dim, base, (ROW, COLUMN))


def minimax_vision(head_dim, base=10000, axes=2):
    """MiniMax-M3's vision tower: axes in order, 2 * ((head_dim / axes) // 2) dimensions each. Half layout."""
    ladder = plain(2 * (head_dim // axes // 2), base)
    return ladder * axes, [axis for axis in range(axes) for _ in ladder]


def pixtral(head_dim, base=10000):
    """Pixtral: the ladder of the whole head, even entries to rows, odd ones to columns, rows first.

    Half layout in transformers (Mistral's own weights: interleaved).
    """
    ladder = plain(head_dim, base)
    rows, columns = ladder[0::2], ladder[1::2]
    return rows + columns, [ROW] * len(rows) + [COLUMN] * len(columns)


@fifty_digits
def dinov3(head_dim, base=100):
    """DINOv3: rows first, positions in [-1, 1] times 2 pi, kept in the frequency. Half layout, whole head."""
    frequencies, axes = one_ladder_per_axis(head_dim, base, (ROW, COLUMN))
    return [2 * mp.pi * w for w in frequencies], axes
