"""All-reduce: every rank ends with the combination of all ranks' vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isqrt, prod

from ..registry import Params, algorithm
from ..schedule import Recv, Round, Schedule, Send, Window, exchange
from . import allgather, reduce_scatter
from .common import at_least, even_size, one, one_per_rank
from .compose import folded, mirror, whole
from .patterns import base_factors, side_of
from .reduce_scatter import halving, multiplying
from .tuning import BYTES_PER_START, MOST_SEGMENTS, radix


def _folded_vector(
    rank: int, size: int, factors: Sequence[int], blocks: int, core: Callable[[int], Schedule]
) -> Schedule:
    """Run `core` on ∏factors ranks; the others hand in a whole vector and get one back."""
    vector = whole(blocks)
    return folded(
        rank, size, prod(factors), core, hand_in=lambda extra: vector, hand_out=lambda extra: vector
    )


# -- for small vectors: few rounds, every message a whole vector --


@algorithm("allreduce", blocks=one, ordered=True)
def allgather_reduce(rank: int, size: int) -> Schedule:
    """Every rank sends its vector to all others, and combines all of them.

    Works for any P.
    Rounds: 1, with P−1 messages; scratch for P−1 vectors.
    Bytes per rank: (P−1)·n.
    Ordered: every rank combines in rank order.
    Reference: Open MPI 6, coll/base allreduce_intra_allgather_reduce.
    """
    if size > 1:
        others = [peer for peer in range(size) if peer != rank]
        yield Round(
            tuple(Send(peer, (Window(0),)) for peer in others),
            tuple(Recv(peer, (Window(0),), side_of(peer, rank)) for peer in others),
        )


@algorithm("allreduce", blocks=one, ordered=True)
def recursive_doubling(rank: int, size: int) -> Schedule:
    """Exchange whole vectors with a partner, at double the distance in every round.

    Works for any P; others than powers of two are folded.
    Rounds: log2 P (+2).
    Bytes per rank: log2 P·n (+n).
    Ordered: only neighbouring runs of ranks are combined.
    Reference: Thakur, Rabenseifner, Gropp, Int. J. High Perform. Comput. Appl., 2005.
    """
    factors = base_factors(size, 2)
    return _folded_vector(rank, size, factors, 1, lambda v: multiplying(v, factors, 1))


@algorithm("allreduce", blocks=one, ordered=True, requires=at_least(k=2), tune={"k": radix})
def recursive_multiplying(rank: int, size: int, *, k: int = 4) -> Schedule:
    """Exchange whole vectors in groups of up to k, that many times farther apart in every round.

    Works for any P; what has no factors up to k is folded.
    Rounds: about log_k P (+2), with up to k−1 messages each.
    Bytes per rank: (f−1)·n for every factor f (+n).
    Ordered: only neighbouring runs of ranks are combined.
    Reference: Wilkins et al., IEEE CLUSTER, 2023.
    """
    factors = base_factors(size, k)
    return _folded_vector(rank, size, factors, 1, lambda v: multiplying(v, factors, 1))


# -- for large vectors: reduce-scatter, then all-gather --


@algorithm("allreduce", blocks=one_per_rank)
def ring(rank: int, size: int) -> Schedule:
    """Reduce-scatter, then all-gather, each once around a ring of all ranks.

    Works for any P.
    Rounds: 2(P−1).
    Bytes per rank: 2(P−1)/P·n.
    Not ordered: block b is combined in the rotated order b+1, b+2, …, b.
    Reference: Patarasuk, Yuan, J. Parallel Distrib. Comput., 2009.
    """
    yield from reduce_scatter.ring(rank, size)
    yield from allgather.ring(rank, size)


def _ring_segments(size: int, nbytes: int) -> int:
    """Where a segment more costs 2(P−1)α, and saves what combining the last one costs (about nβ/PS)."""
    best = isqrt(nbytes // (max(1, size * (size - 1)) * BYTES_PER_START))
    return max(1, min(best, MOST_SEGMENTS))


@algorithm(
    "allreduce",
    blocks=lambda size, p: size * int(p["segments"]),
    requires=at_least(segments=1),
    tune={"segments": _ring_segments},
)
def segmented_ring(rank: int, size: int, *, segments: int = 2) -> Schedule:
    """The ring, with every block cut in segments: one is combined while the next is on its way.

    Works for any P.
    Rounds: 2(P−1)S with S segments.
    Bytes per rank: 2(P−1)/P·n.
    Not ordered: as the ring.
    Reference: Pješivac-Grbović et al., Cluster Computing, 2007.
    """
    for step in ring(rank, size):
        (out,), (into,) = step.sends, step.recvs
        for s in range(segments):
            mine = Window(out.windows[0].start * segments + s)
            theirs = Window(into.windows[0].start * segments + s)
            yield exchange(out.peer, (mine,), (theirs,), into.side, source=into.peer)


@algorithm("allreduce", blocks=one_per_rank)
def circulant(rank: int, size: int) -> Schedule:
    """Reduce-scatter, then all-gather, on a circulant graph.

    Works for any P.
    Rounds: 2⌈log2 P⌉.
    Bytes per rank: 2(P−1)/P·n; both are optimal for every P.
    Not ordered: contributions arrive in rotated order.
    Reference: Träff, arXiv 2410.14234, 2024.
    """
    yield from reduce_scatter.circulant(rank, size)
    yield from allgather.circulant(rank, size)


def _halving_doubling(rank: int, size: int, k: int, far_first: bool) -> Schedule:
    factors = base_factors(size, k)

    def core(v: int) -> Schedule:
        yield from halving(v, factors, far_first)
        yield from mirror(halving(v, factors, far_first), side=None)

    return _folded_vector(rank, size, factors, prod(factors), core)


def _base_blocks(size: int, params: Params) -> int:
    return prod(base_factors(size, params.get("k", 2)))


@algorithm("allreduce", blocks=_base_blocks, ordered=True)
def recursive_halving_doubling(rank: int, size: int) -> Schedule:
    """Reduce-scatter by recursive halving, the nearest first, then all-gather by recursive doubling.

    Works for any P; others than powers of two are folded.
    Rounds: 2log2 P (+2).
    Bytes per rank: 2(P−1)/P·n (+n).
    Ordered: only neighbouring runs of ranks are combined.
    Reference: Rabenseifner, ICCS, 2004.
    """
    return _halving_doubling(rank, size, 2, far_first=False)


@algorithm("allreduce", blocks=_base_blocks)
def recursive_halving_doubling_far(rank: int, size: int) -> Schedule:
    """Reduce-scatter by recursive halving, the farthest first, then all-gather by recursive doubling.

    Works for any P; others than powers of two are folded.
    Rounds: 2log2 P (+2).
    Bytes per rank: 2(P−1)/P·n (+n), most of them over the longest distances.
    Not ordered: the farthest partner comes first.
    Reference: Thakur, Rabenseifner, Gropp, Int. J. High Perform. Comput. Appl., 2005.
    """
    return _halving_doubling(rank, size, 2, far_first=True)


@algorithm("allreduce", blocks=_base_blocks, ordered=True, requires=at_least(k=2))
def k_reduce_scatter_allgather(rank: int, size: int, *, k: int = 4) -> Schedule:
    """Reduce-scatter in groups of up to k neighbours, that many times farther apart in every round, and back.

    Works for any P; what has no factors up to k is folded.
    Rounds: about 2log_k P (+2), with up to k−1 messages each.
    Bytes per rank: 2(P−1)/P·n (+n).
    Ordered: only neighbouring runs of ranks are combined.
    Reference: Wilkins et al., IEEE CLUSTER, 2023.
    """
    return _halving_doubling(rank, size, k, far_first=False)


@algorithm("allreduce", blocks=one_per_rank, requires=even_size)
def swing(rank: int, size: int) -> Schedule:
    """Reduce-scatter with partners that swing to and fro, the nearest first, then all-gather backwards.

    Works for even P, and P = 1.
    Rounds: 2⌈log2 P⌉.
    Bytes per rank: 2(P−1)/P·n, in messages of scattered blocks; most of them travel short distances.
    Not ordered: partners lie on both sides.
    Reference: De Sensi, Bonato, Saam, Hoefler, NSDI, 2024.
    """
    yield from reduce_scatter.swing(rank, size)
    yield from allgather.swing(rank, size)


@algorithm("allreduce", blocks=one_per_rank, requires=even_size)
def bine(rank: int, size: int) -> Schedule:
    """Reduce-scatter with the partners of Swing, the farthest first, then all-gather backwards.

    Works for even P, and P = 1.
    Rounds: 2⌈log2 P⌉.
    Bytes per rank: 2(P−1)/P·n; if P is a power of two, every message is one circular window.
    Not ordered: partners lie on both sides.
    Reference: De Sensi et al., SC, 2025.
    """
    yield from reduce_scatter.bine(rank, size)
    yield from allgather.bine(rank, size)
