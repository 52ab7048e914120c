"""All-gather: every rank ends with the parts of all ranks."""

from __future__ import annotations

from itertools import pairwise
from math import isqrt
from typing import Any

from ..registry import Params, algorithm
from ..schedule import Recv, Round, Schedule, Send, Window, exchange
from . import reduce_scatter
from .common import at_least, even_size, one_per_rank
from .compose import embed, folded, mirror
from .patterns import ceil_log2, circulant_skips, circular_windows, floor_log2, powers
from .reduce_scatter import halving, parts_of_proxies, windows_of_proxies
from .tuning import radix


@algorithm("allgather", blocks=one_per_rank)
def ring(rank: int, size: int) -> Schedule:
    """Every part travels once around a ring of all ranks.

    Works for any P.
    Rounds: P−1.
    Bytes per rank: (P−1)/P·n.
    Reference: Thakur, Rabenseifner, Gropp, Int. J. High Perform. Comput. Appl., 2005.
    """
    right, left = (rank + 1) % size, (rank - 1) % size
    for t in range(size - 1):
        # After round t rank r holds the parts of ranks r-t-1…r.
        mine, theirs = Window((rank - t) % size), Window((rank - t - 1) % size)
        yield exchange(right, (mine,), (theirs,), source=left)


@algorithm("allgather", blocks=one_per_rank)
def linear(rank: int, size: int) -> Schedule:
    """Every rank sends its part to all others, all at once.

    Works for any P.
    Rounds: 1, with P−1 messages.
    Bytes per rank: (P−1)/P·n.
    Reference: none; the definition, taken literally.
    """
    if size > 1:
        others = [(rank + t) % size for t in range(1, size)]
        yield Round(
            tuple(Send(peer, (Window(rank),)) for peer in others),
            tuple(Recv(peer, (Window(peer),)) for peer in reversed(others)),
        )


@algorithm("allgather", blocks=one_per_rank)
def recursive_doubling(rank: int, size: int) -> Schedule:
    """Exchange all that is held with a partner, at double the distance in every round.

    Works for any P; others than powers of two are folded.
    Rounds: log2 P (+2).
    Bytes per rank: (P−1)/P·n (folded: up to 7n/3 for a proxy).
    Reference: Thakur, Rabenseifner, Gropp, Int. J. High Perform. Comput. Appl., 2005.
    """
    base = 1 << floor_log2(size)
    parts, factors = parts_of_proxies(size, base), (2,) * floor_log2(size)
    known = windows_of_proxies(size, near=False)

    def core(v: int) -> Schedule:
        # Halving, the farthest first, run backwards: windows stay aligned and double.
        rounds = mirror(halving(v, factors, far_first=True), side=None)
        return embed(rounds, range(base), base, lambda b: parts[b], known)

    yield from folded(
        rank,
        size,
        base,
        core,
        hand_in=lambda extra: (Window(extra),),
        hand_out=lambda extra: (Window((extra + 1) % size, size - 1),),
        reduces=False,
    )


@algorithm("allgather", blocks=one_per_rank, requires=at_least(k=2), tune={"k": radix})
def bruck(rank: int, size: int, *, k: int = 2) -> Schedule:
    """Multiply what is held by k in every round, with ranks ahead at growing distances.

    Works for any P.
    Rounds: ⌈log_k P⌉, with up to k−1 messages each.
    Bytes per rank: (P−1)/P·n.
    Reference: Bruck, Ho, Kipnis, Upfal, Weathersby, IEEE Trans. Parallel Distrib. Syst., 1997.
    """
    for held in powers(k, size):
        # Before: I hold the parts of ranks r…r+held-1. Named absolutely, they need no rotation.
        cuts = [(j * held, min(held, size - j * held)) for j in range(1, k) if j * held < size]
        yield Round(
            tuple(Send((rank - far) % size, (Window(rank, count),)) for far, count in cuts),
            tuple(Recv((rank + far) % size, (Window((rank + far) % size, count),)) for far, count in cuts),
        )


@algorithm("allgather", blocks=one_per_rank)
def circulant(rank: int, size: int) -> Schedule:
    """Double what is held in every round, on a circulant graph.

    Works for any P.
    Rounds: ⌈log2 P⌉.
    Bytes per rank: (P−1)/P·n; both are optimal for every P.
    Reference: Träff, arXiv 2410.14234, 2024.
    """
    skips = circulant_skips(size)[::-1]
    for low, high in pairwise(skips):
        # Before: I hold the parts of ranks r…r+low-1; after, up to r+high-1.
        mine, theirs = Window(rank, high - low), Window((rank + low) % size, high - low)
        yield exchange((rank - low) % size, (mine,), (theirs,), source=(rank + low) % size)


@algorithm("allgather", blocks=one_per_rank, requires=even_size)
def neighbor_exchange(rank: int, size: int) -> Schedule:
    """Exchange pairs of parts with the two neighbours in turn.

    Works for even P, and P = 1.
    Rounds: P/2.
    Bytes per rank: (P−1)/P·n, between neighbours only.
    Reference: Chen, Zhang, Zhang, Yuan, HPC Asia, 2005.
    """
    if size == 1:
        return
    yield exchange(rank ^ 1, (Window(rank),), (Window(rank ^ 1),))
    first = rank & ~1
    mine = Window(first, 2)
    for t in range(1, size // 2):
        # Pairs travel outwards on both sides: in rounds t = 2i-1 and 2i those of distance i arrive.
        direction = 1 if (rank + t) % 2 == 0 else -1
        theirs = Window((first + direction * 2 * ((t + 1) // 2)) % size, 2)
        yield exchange((rank + direction) % size, (mine,), (theirs,))
        mine = theirs


@algorithm("allgather", blocks=one_per_rank)
def sparse_halving(rank: int, size: int) -> Schedule:
    """Send to the farthest ranks first, when there is least to send.

    Works for any P.
    Rounds: ⌈log2 P⌉.
    Bytes per rank: (P−1)/P·n, in messages of scattered blocks; most of them travel short distances.
    Reference: Loch, Koslovski, SBAC-PAD, 2021.
    """
    behind = [0]  # I hold the parts of the ranks this far behind me
    for t in reversed(range(ceil_log2(size))):
        far = 1 << t
        new = [b + far for b in behind if b + far < size]
        yield exchange(
            (rank + far) % size,
            circular_windows(((rank + far - b) % size for b in new), size),
            circular_windows(((rank - b) % size for b in new), size),
            source=(rank - far) % size,
        )
        behind += new


def _group_size(size: int, params: Params) -> int:
    """The parameter `group`, or the largest divisor of P up to √P."""
    group: int | None = params["group"]
    if group is not None:
        return group
    return next(g for g in range(isqrt(size), 0, -1) if size % g == 0)


def _group_divides(size: int, params: Params) -> str | None:
    group: Any = _group_size(size, params)
    if type(group) is not int or group < 1 or size % group:
        return f"group={group!r} must divide P"
    return None


@algorithm("allgather", blocks=one_per_rank, requires=_group_divides)
def k_ring(rank: int, size: int, *, group: int | None = None) -> Schedule:
    """A ring in every group of neighbours, fed by a ring between the groups.

    Works for any P that `group` divides (by default its largest divisor up to √P).
    Rounds: P−1, of which P/group−1 between groups.
    Bytes per rank: (P−1)/P·n, of which (P/group−1)/P·n leave the group.
    Reference: Wilkins et al., IEEE CLUSTER, 2023.
    """
    g = _group_size(size, {"group": group})
    first = rank - rank % g
    right, left = first + (rank + 1) % g, first + (rank - 1) % g
    for t in range(size // g):
        # Before phase t every rank holds its own place's part of the group t groups back.
        back = (first - t * g) % size
        for s in range(g - 1):
            mine, theirs = Window(back + (rank - s) % g), Window(back + (rank - s - 1) % g)
            yield exchange(right, (mine,), (theirs,), source=left)
        if t < size // g - 1:
            mine, theirs = Window(back + rank % g), Window((back - g) % size + rank % g)
            yield exchange((rank + g) % size, (mine,), (theirs,), source=(rank - g) % size)


@algorithm("allgather", blocks=one_per_rank, requires=even_size)
def swing(rank: int, size: int) -> Schedule:
    """Exchange with partners that swing to and fro at short distances, the farthest first.

    Works for even P, and P = 1.
    Rounds: ⌈log2 P⌉.
    Bytes per rank: (P−1)/P·n, in messages of scattered blocks; most of them travel short distances.
    Reference: De Sensi, Bonato, Saam, Hoefler, NSDI, 2024.
    """
    return mirror(reduce_scatter.swing(rank, size), side=None)


@algorithm("allgather", blocks=one_per_rank, requires=even_size)
def bine(rank: int, size: int) -> Schedule:
    """Exchange with the partners of Swing, the nearest first.

    Works for even P, and P = 1.
    Rounds: ⌈log2 P⌉.
    Bytes per rank: (P−1)/P·n; if P is a power of two, every message is one circular window.
    Reference: De Sensi et al., SC, 2025.
    """
    return mirror(reduce_scatter.bine(rank, size), side=None)
