"""Reduce-scatter: rank r ends with the combination of all ranks' parts r."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import lru_cache
from math import prod

from ..registry import algorithm
from ..schedule import Recv, Round, Schedule, Send, Side, Window, Windows, exchange
from .common import even_size, one_per_rank
from .compose import embed, folded, whole
from .patterns import (
    ceil_log2,
    circulant_skips,
    floor_log2,
    side_of,
    swing_blocks,
    swing_peer,
)


@algorithm("reduce_scatter", blocks=one_per_rank)
def ring(rank: int, size: int) -> Schedule:
    """Every part travels once around a ring of all ranks and collects a contribution at each.

    Works for any P.
    Rounds: P−1.
    Bytes per rank: (P−1)/P·n.
    Not ordered: block b is combined in the rotated order b+1, b+2, …, b.
    Reference: Patarasuk, Yuan, J. Parallel Distrib. Comput., 2009.
    """
    right, left = (rank + 1) % size, (rank - 1) % size
    for t in range(size - 1):
        # Block b starts at rank b+1, so that after round t rank r holds t+2 contributions to block
        # r-t-2, and at the end all of block r.
        mine, theirs = Window((rank - t - 1) % size), Window((rank - t - 2) % size)
        yield exchange(right, (mine,), (theirs,), Side.LEFT, source=left)


@algorithm("reduce_scatter", blocks=one_per_rank)
def pairwise(rank: int, size: int) -> Schedule:
    """Every rank sends each part straight to its owner, one partner after the other.

    Works for any P.
    Rounds: P−1.
    Bytes per rank: (P−1)/P·n.
    Not ordered: rank r combines in the order r, r−1, r−2, ….
    Reference: Thakur, Rabenseifner, Gropp, Int. J. High Perform. Comput. Appl., 2005.
    """
    for t in range(1, size):
        # What I send is untouched: I only ever combine into my own block.
        to, source = (rank + t) % size, (rank - t) % size
        yield exchange(to, (Window(to),), (Window(rank),), Side.RIGHT, source=source)


@algorithm("reduce_scatter", blocks=one_per_rank, ordered=True)
def linear(rank: int, size: int) -> Schedule:
    """Every rank sends each part straight to its owner, all at once.

    Works for any P.
    Rounds: 1, with P−1 messages; scratch for P−1 parts.
    Bytes per rank: (P−1)/P·n.
    Ordered: an owner combines the parts in rank order.
    Reference: none; the definition, taken literally.
    """
    if size > 1:
        others = [peer for peer in range(size) if peer != rank]
        yield Round(
            tuple(Send(peer, (Window(peer),)) for peer in others),
            tuple(Recv(peer, (Window(rank),), side_of(peer, rank)) for peer in others),
        )


@algorithm("reduce_scatter", blocks=one_per_rank)
def circulant(rank: int, size: int) -> Schedule:
    """Halve the number of parts that still matter in every round, on a circulant graph.

    Works for any P.
    Rounds: ⌈log2 P⌉.
    Bytes per rank: (P−1)/P·n; both are optimal for every P.
    Not ordered: contributions arrive in rotated order.
    Reference: Träff, arXiv 2410.14234, 2024.
    """
    skips = circulant_skips(size)
    for high, low in itertools.pairwise(skips):
        # Before: I hold partial results of blocks r…r+high-1 and need them only up to r+low-1. The
        # rest are for the rank `low` further, of whose blocks 0…high-low-1 they are.
        mine, theirs = Window((rank + low) % size, high - low), Window(rank, high - low)
        yield exchange((rank + low) % size, (mine,), (theirs,), Side.RIGHT, source=(rank - low) % size)


def halving(rank: int, factors: Sequence[int], far_first: bool = False) -> Schedule:
    """Rounds of recursive halving, one per factor, on ∏factors ranks and as many blocks.

    In a round the members of a group cut the blocks that they all hold, and each combines one cut.
    Far first, rank r ends with block r. Near first, groups are runs of neighbours, so that operands
    stay in rank order; rank ``near_first_owners(factors)[b]`` ends with block b.
    """
    window, stride = Window(0, prod(factors)), 1
    for factor in factors:
        length = window.length // factor
        if far_first:
            stride = length
        digit = rank // stride % factor
        cuts = [Window(window.start + j * length, length) for j in range(factor)]
        peers = [(j, rank + (j - digit) * stride) for j in range(factor) if j != digit]
        # After: I hold cuts[digit] only, combined over all ranks that I have met so far.
        yield Round(
            tuple(Send(peer, (cuts[j],)) for j, peer in peers),
            tuple(Recv(peer, (cuts[digit],), side_of(peer, rank)) for j, peer in peers),
        )
        window, stride = cuts[digit], stride * factor


@lru_cache(maxsize=64)
def near_first_owners(factors: Sequence[int]) -> tuple[int, ...]:
    """For each block the rank that ends with it in near-first `halving`: its digits reversed.

    >>> near_first_owners((2, 2, 2)), near_first_owners((3, 2))
    ((0, 4, 2, 6, 1, 5, 3, 7), (0, 3, 1, 4, 2, 5))
    """
    owners, stride = [0], prod(factors)
    for factor in reversed(factors):
        stride //= factor
        owners = [digit * stride + owner for digit in range(factor) for owner in owners]
    return tuple(owners)


@lru_cache(maxsize=64)
def parts_of_proxies(size: int, base: int) -> tuple[Windows, ...]:
    """For each virtual rank of a fold the parts that it stands for: its own and its extra's.

    >>> parts_of_proxies(3, 2)
    ((Window(start=0, length=2),), (Window(start=2, length=1),))
    """
    folds = size - base
    return tuple((Window(2 * v, 2),) if v < folds else (Window(v + folds),) for v in range(base))


@lru_cache(maxsize=2)
def windows_of_proxies(size: int, near: bool) -> dict[Windows, Windows]:
    """A memory of what windows of virtual blocks stand for, shared by all ranks of such a fold.

    Written by `embed`, which bounds it, and kept for the last number of ranks, far and near.
    """
    return {}


@algorithm("reduce_scatter", blocks=one_per_rank)
def recursive_halving(rank: int, size: int) -> Schedule:
    """Exchange half of what still matters with a partner, the farthest first.

    Works for any P; others than powers of two are folded.
    Rounds: log2 P (+2).
    Bytes per rank: (P−1)/P·n (folded: up to n more for an extra).
    Not ordered: the farthest partner comes first.
    Reference: Thakur, Rabenseifner, Gropp, Int. J. High Perform. Comput. Appl., 2005.
    """
    base = 1 << floor_log2(size)
    parts, factors = parts_of_proxies(size, base), (2,) * floor_log2(size)
    known = windows_of_proxies(size, near=False)
    yield from folded(
        rank,
        size,
        base,
        lambda v: embed(halving(v, factors, far_first=True), range(base), base, lambda b: parts[b], known),
        hand_in=lambda extra: whole(size),
        hand_out=lambda extra: (Window(extra),),
    )


@algorithm("reduce_scatter", blocks=one_per_rank, ordered=True)
def recursive_halving_near(rank: int, size: int) -> Schedule:
    """Exchange half of what still matters with a partner, the nearest first.

    Works for any P; others than powers of two are folded.
    Rounds: log2 P (+2).
    Bytes per rank: (P−1)/P·n (folded: up to n more for an extra), in messages of scattered blocks.
    Ordered: only neighbouring runs of ranks are combined.
    Reference: Träff, EuroPVM/MPI, 2005.
    """
    base = 1 << floor_log2(size)
    parts, factors = parts_of_proxies(size, base), (2,) * floor_log2(size)
    owners, known = near_first_owners(factors), windows_of_proxies(size, near=True)
    yield from folded(
        rank,
        size,
        base,
        lambda v: embed(halving(v, factors), range(base), base, lambda b: parts[owners[b]], known),
        hand_in=lambda extra: whole(size),
        hand_out=lambda extra: (Window(extra),),
    )


@algorithm("reduce_scatter", blocks=one_per_rank, ordered=True)
def recursive_doubling(rank: int, size: int) -> Schedule:
    """Exchange all that others still need with a partner, at double the distance in every round.

    Works for any P; others than powers of two are folded.
    Rounds: log2 P (+2).
    Bytes per rank: (log2 P−(P−1)/P)·n (folded: up to n more); `recursive_halving_near` sends less in as
    many rounds, for here all of a run combine what one of them will need.
    Ordered: only neighbouring runs of ranks are combined.
    Reference: Thakur, Rabenseifner, Gropp, Int. J. High Perform. Comput. Appl., 2005.
    """
    base = 1 << floor_log2(size)
    yield from folded(
        rank,
        size,
        base,
        lambda v: _doubling(v, base, size),
        hand_in=lambda extra: whole(size),
        hand_out=lambda extra: (Window(extra),),
    )


def _doubling(rank: int, base: int, size: int) -> Schedule:
    """Rounds of recursive doubling on `base` virtual ranks, with `size` parts."""

    def beyond(run: int, length: int) -> Windows:
        """All parts but those of an aligned run of virtual ranks, which keeps its own."""
        first, last = (2 * v if v < size - base else v + size - base for v in (run, run + length))
        return (Window(last % size, size - (last - first)),)

    stride = 1
    while stride < base:
        peer, run = rank ^ stride, rank & -stride
        # After: every rank of my aligned run of 2·stride ranks holds the run's combination of the parts
        # that are not the run's own; of those each holds what its part of the run needs.
        yield exchange(peer, beyond(run, stride), beyond(run ^ stride, stride), side_of(peer, rank))
        stride *= 2


def multiplying(rank: int, factors: Sequence[int], blocks: int) -> Schedule:
    """Rounds of recursive multiplying: all members of a group exchange all blocks.

    Groups are runs of neighbours, and every member combines them in rank order.
    """
    stride = 1
    for factor in factors:
        digit = rank // stride % factor
        peers = [rank + (j - digit) * stride for j in range(factor) if j != digit]
        # After: every rank of an aligned run of stride·factor ranks holds the run's combination.
        yield Round(
            tuple(Send(peer, whole(blocks)) for peer in peers),
            tuple(Recv(peer, whole(blocks), side_of(peer, rank)) for peer in peers),
        )
        stride *= factor


def _swinging(rank: int, size: int, far_first: bool) -> Schedule:
    steps = range(ceil_log2(size))
    for step in reversed(steps) if far_first else steps:
        peer = swing_peer(rank, step, size)
        # For each block there is one tree; a rank hands its partial result on in one step only.
        mine = swing_blocks(rank, step, size, far_first)
        theirs = swing_blocks(peer, step, size, far_first)
        if mine or theirs:
            yield Round(
                (Send(peer, mine),) if mine else (),
                (Recv(peer, theirs, Side.RIGHT),) if theirs else (),
            )


@algorithm("reduce_scatter", blocks=one_per_rank, requires=even_size)
def swing(rank: int, size: int) -> Schedule:
    """Exchange with partners that swing to and fro at short distances, the nearest first.

    Works for even P, and P = 1.
    Rounds: ⌈log2 P⌉.
    Bytes per rank: (P−1)/P·n, in messages of scattered blocks; most of them travel short distances.
    Not ordered: partners lie on both sides.
    Reference: De Sensi, Bonato, Saam, Hoefler, NSDI, 2024.
    """
    return _swinging(rank, size, far_first=False)


@algorithm("reduce_scatter", blocks=one_per_rank, requires=even_size)
def bine(rank: int, size: int) -> Schedule:
    """Exchange with the partners of Swing, the farthest first.

    Works for even P, and P = 1.
    Rounds: ⌈log2 P⌉.
    Bytes per rank: (P−1)/P·n; if P is a power of two, every message is one circular window.
    Not ordered: partners lie on both sides.
    Reference: De Sensi et al., SC, 2025.
    """
    return _swinging(rank, size, far_first=True)
