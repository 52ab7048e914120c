"""Barrier: no rank leaves before every rank has come. Messages are tokens, without data."""

from __future__ import annotations

from itertools import pairwise

from ..registry import algorithm
from ..schedule import Recv, Round, Schedule, Send
from .common import at_least
from .patterns import circulant_skips


@algorithm("barrier", blocks=lambda size, p: 1, requires=at_least(k=2))
def dissemination(rank: int, size: int, *, k: int = 2) -> Schedule:
    """Tell ranks ahead at growing distances all that I know, and hear as much from those behind.

    Works for any P.
    Rounds: ⌈log_k P⌉, with up to k−1 tokens each.
    Bytes per rank: none.
    Reference: Hensgen, Finkel, Manber, Int. J. Parallel Program., 1988 (there with distances k^t; these,
    P/k^t, are shorter, and there is no token from which nobody learns anything).
    """
    for known, after in pairwise(circulant_skips(size, k)[::-1]):
        # Before: I know that ranks r-known+1…r have come; after, r-after+1…r.
        jumps = range(known, after, known)
        yield Round(
            tuple(Send((rank + jump) % size, ()) for jump in jumps),
            tuple(Recv((rank - jump) % size, ()) for jump in jumps),
        )
