"""cos and sin of position * frequency with 50 digits. Ints and floats are taken exactly as given."""

from mpmath import mp, mpf


@mp.workdps(50)
def cos_sin(position, frequency):
    """(cos, sin) of one angle, two mpf. The product is exact, so a large position costs no digits."""
    angle = mp.fmul(mpf(position), mpf(frequency), exact=True)
    return mp.cos(angle), mp.sin(angle)


def table(positions, frequencies):
    """(cos, sin), each a list of rows, one row per position, one entry per frequency."""
    cos, sin = [], []
    for position in positions:
        row = [cos_sin(position, w) for w in frequencies]
        cos.append([c for c, _ in row])
        sin.append([s for _, s in row])
    return cos, sin
