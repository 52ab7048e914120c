"""Barrier: no rank leaves before every rank has come. Messages are tokens, without data."""

from __future__ import annotations

from ..registry import algorithm
from ..schedule import Recv, Round, Schedule, Send
from .patterns import powers
from .tuning import at_least


@algorithm("barrier", blocks=lambda size, p: 1, requires=at_least(k=2))
def dissemination(rank: int, size: int, *, k: int = 2) -> Schedule:
    """Tell ranks ahead at growing distances all that I know, and hear as much from those behind.

    Works for any P. Rounds: ⌈log_k P⌉, with k−1 tokens each. Bytes per rank: none.
    Reference: Hensgen, Finkel, Manber, Int. J. Parallel Program., 1988.
    """
    for known in powers(k, size):
        # Before: I know that ranks r-known+1…r have come.
        jumps = [j * known for j in range(1, k) if j * known < size]
        yield Round(
            tuple(Send((rank + jump) % size, ()) for jump in jumps),
            tuple(Recv((rank - jump) % size, ()) for jump in jumps),
        )
