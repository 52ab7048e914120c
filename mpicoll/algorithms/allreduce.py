"""All-reduce: every rank ends with the combination of all ranks' vectors."""

from __future__ import annotations

from ..registry import algorithm
from ..schedule import Schedule, Side, Window, exchange


@algorithm("allreduce", blocks=lambda size, p: size)
def ring(rank: int, size: int) -> Schedule:
    """Reduce-scatter, then all-gather, each once around a ring of all ranks.

    Works for any P. Rounds: 2(P−1). Bytes per rank: 2(P−1)/P·n. Not ordered: block b is combined in
    the rotated order b+1, b+2, …, b.
    Reference: Patarasuk, Yuan, J. Parallel Distrib. Comput., 2009.
    """
    right, left = (rank + 1) % size, (rank - 1) % size
    for t in range(size - 1):
        # Block b starts at rank b+1 and gathers one contribution per hop, so that after round t
        # rank r holds t+2 contributions to block r-t-2, and at the end all of block r.
        mine, theirs = Window((rank - t - 1) % size), Window((rank - t - 2) % size)
        yield exchange(right, (mine,), (theirs,), Side.LEFT, source=left)
    for t in range(size - 1):
        yield exchange(
            right, (Window((rank - t) % size),), (Window((rank - t - 1) % size),), source=left
        )
