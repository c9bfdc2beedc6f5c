"""Which key position j a query position i may see: bools."""


def window(i, j, size):
    """The last `size` positions, the query's own included: i - size < j <= i."""
    return i - size < j <= i


def sinks(i, j, size, count):
    """The window, and the first `count` positions. Never a key after the query."""
    return window(i, j, size) or (j < count and j <= i)
