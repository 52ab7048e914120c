"""Scatter: rank r ends with part r of the root's data."""

from __future__ import annotations

from ..registry import algorithm
from ..schedule import Round, Schedule, Send, Window, recv, send
from .common import one_per_rank
from .trees import binomial_bits, binomial_subtree


@algorithm("scatter", blocks=one_per_rank)
def binomial(rank: int, size: int, *, root: int = 0) -> Schedule:
    """Hand the parts of half of the ranks on in every round, down a binomial tree.

    Works for any P.
    Rounds: ⌈log2 P⌉.
    Bytes per rank: (P−1)/P·n at the root.
    Reference: Thakur, Rabenseifner, Gropp, Int. J. High Perform. Comput. Appl., 2005.
    """
    virtual = (rank - root) % size
    own, bits = binomial_bits(virtual, size)
    if virtual:
        # A subtree is a circular run of ranks, and so are its parts.
        yield recv((rank - (1 << own)) % size, Window(rank, binomial_subtree(virtual, size)))
    for bit in reversed(bits):
        child = (rank + (1 << bit)) % size
        yield send(child, Window(child, binomial_subtree(virtual + (1 << bit), size)))


@algorithm("scatter", blocks=one_per_rank)
def linear(rank: int, size: int, *, root: int = 0) -> Schedule:
    """The root sends every rank its part, all at once.

    Works for any P.
    Rounds: 1, with P−1 messages at the root.
    Bytes per rank: (P−1)/P·n at the root.
    Reference: none; the definition, taken literally.
    """
    if rank != root:
        yield recv(root, Window(rank))
    elif size > 1:
        yield Round(sends=tuple(Send(peer, (Window(peer),)) for peer in range(size) if peer != root))
