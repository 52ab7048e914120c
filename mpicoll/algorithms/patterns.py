"""Who talks to whom: the neighbour patterns that algorithms are made of. Pure integer functions."""

from __future__ import annotations


def ceil_log2(n: int) -> int:
    """⌈log2 n⌉, exactly.

    >>> [ceil_log2(n) for n in (1, 2, 3, 4, 5, 8, 9)]
    [0, 1, 2, 2, 3, 3, 4]
    """
    return (n - 1).bit_length()


def floor_log2(n: int) -> int:
    """⌊log2 n⌋, exactly."""
    return n.bit_length() - 1
