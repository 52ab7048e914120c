"""Gather: the root ends with the parts of all ranks."""

from __future__ import annotations

from ..registry import algorithm
from ..schedule import Schedule
from . import scatter
from .common import one_per_rank
from .compose import mirror


@algorithm("gather", blocks=one_per_rank)
def binomial(rank: int, size: int, *, root: int = 0) -> Schedule:
    """Double what is held in every round, up a binomial tree: the binomial scatter run backwards.

    Works for any P.
    Rounds: ⌈log2 P⌉.
    Bytes per rank: up to n/2; the root receives (P−1)/P·n.
    Reference: Thakur, Rabenseifner, Gropp, Int. J. High Perform. Comput. Appl., 2005.
    """
    return mirror(scatter.binomial(rank, size, root=root), side=None)


@algorithm("gather", blocks=one_per_rank)
def linear(rank: int, size: int, *, root: int = 0) -> Schedule:
    """Every rank sends its part to the root, all at once.

    Works for any P.
    Rounds: 1, with P−1 messages at the root.
    Bytes per rank: n/P; the root receives (P−1)/P·n.
    Reference: none; the definition, taken literally.
    """
    return mirror(scatter.linear(rank, size, root=root), side=None)
