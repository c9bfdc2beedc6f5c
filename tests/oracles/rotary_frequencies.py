"""Rotary frequencies of every scaling, one pair at a time, with 50 digits.

Numbers are taken exactly as given (the float 0.1 is the binary double). Each function returns a list of mpf,
one frequency per pair, unless it says otherwise; `dim` is the rotary dimension, so there are dim / 2 pairs.
"""

from mpmath import mp, mpf

fifty_digits = mp.workdps(50)


def clamp(x, low, high):
    return min(max(x, low), high)


@fifty_digits
def plain(dim, base):
    """base^(-2i / dim): RoFormer (Su et al. 2021)."""
    return [mpf(base) ** (mpf(-2 * i) / dim) for i in range(dim // 2)]


@fifty_digits
def linear(dim, base, factor):
    """Every frequency divided by factor: position interpolation (Chen et al. 2023)."""
    return [w / mpf(factor) for w in plain(dim, base)]


# --- NTK-aware: three ways to spread the factor over the pairs


@fifty_digits
def ntk_base(dim, base, factor):
    """A larger base, so that the first pair keeps its frequency and the last one is divided by factor."""
    return plain(dim, mpf(base) * mpf(factor) ** (mpf(dim) / (dim - 2)))


@fifty_digits
def ntk_fixed(dim, base, factor):
    """vLLM `ntk`: base * factor, then all divided by factor^(2 / dim); pair i loses factor^(2(i+1) / dim)."""
    s = mpf(factor)
    return [w / s ** (mpf(2) / dim) for w in plain(dim, mpf(base) * s)]


@fifty_digits
def ntk_mixed(dim, base, factor, b):
    """vLLM `ntk` with mixed_b: pair i divided by exp(a (i+1)^b), a such that the last one loses factor."""
    a = mp.log(mpf(factor)) / (mpf(dim) / 2) ** mpf(b)
    return [w / mp.exp(a * mpf(i + 1) ** mpf(b)) for i, w in enumerate(plain(dim, base))]


@fifty_digits
def dynamic_ntk(dim, base, factor, original_length, length):
    """The NTK base for the length in use; up to original_length (or None) nothing changes."""
    if length is None or length <= original_length:
        return plain(dim, base)
    s = mpf(factor)
    return ntk_base(dim, base, s * mpf(length) / mpf(original_length) - (s - 1))


# --- NTK-by-parts and YaRN: fast pairs stay, slow pairs are interpolated


@fifty_digits
def ntk_by_parts(dim, base, factor, original_length, alpha=1, beta=32):
    """NTK-by-parts of the YaRN paper: the ramp runs over r, the turns a pair makes in original_length."""
    out = []
    for w in plain(dim, base):
        wavelength = 2 * mp.pi / w
        r = mpf(original_length) / wavelength
        gamma = clamp((r - mpf(alpha)) / (mpf(beta) - mpf(alpha)), mpf(0), mpf(1))
        out.append((1 - gamma) * w / mpf(factor) + gamma * w)
    return out


@fifty_digits
def correction_range(dim, base, original_length, fast, slow, truncate=True):
    """(low, high): the pair indices, not whole without truncate, that make `fast` and `slow` turns."""

    def pair_making(turns):
        return dim * mp.log(mpf(original_length) / (2 * mp.pi * mpf(turns))) / (2 * mp.log(mpf(base)))

    low, high = pair_making(fast), pair_making(slow)
    if truncate:
        low, high = mp.floor(low), mp.ceil(high)
    low, high = max(low, mpf(0)), min(high, mpf(dim - 1))
    if low == high:
        high += mpf("0.001")
    return low, high


@fifty_digits
def ramp(dim, low, high):
    """0 up to pair `low`, 1 from pair `high` on, straight between."""
    return [clamp((i - low) / (high - low), mpf(0), mpf(1)) for i in range(dim // 2)]


@fifty_digits
def ntk_by_parts_v1(dim, base, factor, original_length):
    """The first NTK-by-parts (YaRN authors' code before the paper): three ladders, blended twice."""
    unscaled, stretched, ntk = plain(dim, base), linear(dim, base, factor), ntk_base(dim, base, factor)
    inner = ramp(dim, *correction_range(dim, base, original_length, mpf("1.25"), mpf("0.75")))
    outer = ramp(dim, *correction_range(dim, base, original_length, 16, 2))
    out = []
    for i in range(dim // 2):
        slow = stretched[i] * inner[i] + ntk[i] * (1 - inner[i])
        out.append(slow * outer[i] + unscaled[i] * (1 - outer[i]))
    return out


@fifty_digits
def yarn(dim, base, factor, original_length, beta_fast=32, beta_slow=1, truncate=True, extrapolation_factor=1):
    """YaRN (Peng et al. 2023) as its code and frameworks compute it: the ramp runs over the pair index."""
    low, high = correction_range(dim, base, original_length, beta_fast, beta_slow, truncate)
    out = []
    for w, t in zip(plain(dim, base), ramp(dim, low, high), strict=True):
        kept = (1 - t) * mpf(extrapolation_factor)
        out.append(w / mpf(factor) * (1 - kept) + w * kept)
    return out


@fifty_digits
def magnitude(factor, scale):
    """g(s, m) = 0.1 m ln s + 1, and 1 when s <= 1. One mpf."""
    if factor <= 1:
        return mpf(1)
    return mpf("0.1") * mpf(scale) * mp.log(mpf(factor)) + 1


@fifty_digits
def yarn_attention_factor(factor, attention_factor=None, mscale=None, mscale_all_dim=None):
    """What multiplies cos and sin, by transformers' rule: the given value, a ratio, or g(s, 1). One mpf."""
    if attention_factor is not None:
        return mpf(attention_factor)
    if mscale and mscale_all_dim:
        return magnitude(factor, mscale) / magnitude(factor, mscale_all_dim)
    return magnitude(factor, 1)


@fifty_digits
def yarn_softmax_factor(factor, mscale_all_dim):
    """What multiplies the softmax scale (DeepSeek): g(s, mscale_all_dim)^2; None or 0 gives 1. One mpf."""
    return magnitude(factor, mscale_all_dim or 0) ** 2


# --- LongRoPE, Llama 3, proportional


@fifty_digits
def longrope(dim, base, short, long, original_length, length):
    """Pair i divided by its own factor, from `long` beyond original_length, else (or None) from `short`."""
    divisors = long if length is not None and length > original_length else short
    return [w / mpf(f) for w, f in zip(plain(dim, base), divisors, strict=True)]


@fifty_digits
def longrope_attention_factor(factor, original_length):
    """sqrt(1 + ln s / ln L), and 1 when s <= 1. One mpf."""
    if factor <= 1:
        return mpf(1)
    return mp.sqrt(1 + mp.log(mpf(factor)) / mp.log(mpf(original_length)))


@fifty_digits
def llama3(dim, base, factor, low, high, original_length):
    """Llama 3.1: by wavelength against L / high and L / low. With low == high the border is interpolated."""
    s, length = mpf(factor), mpf(original_length)
    out = []
    for w in plain(dim, base):
        wavelength = 2 * mp.pi / w
        if wavelength < length / mpf(high):
            out.append(w)
        elif wavelength > length / mpf(low) or low == high:
            out.append(w / s)
        else:
            smooth = (length / wavelength - mpf(low)) / (mpf(high) - mpf(low))
            out.append((1 - smooth) * w / s + smooth * w)
    return out


@fifty_digits
def proportional(head_dim, base, fraction, factor=1):
    """p-RoPE (Gemma 4): the plain ladder of the whole head, its slow end set to 0.

    The number of turning pairs is rounded in doubles, not exactly: 0.7 * 20 has to be 14.
    """
    turning = int(fraction * head_dim // 2)
    ladder = linear(head_dim, base, factor)
    return [w if i < turning else mpf(0) for i, w in enumerate(ladder)]
