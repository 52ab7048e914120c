"""Reduce: the root ends with the combination of all ranks' vectors."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain as chained

from ..registry import algorithm
from ..schedule import Recv, Schedule, Send, Window, recv, send
from . import bcast, gather, reduce_scatter
from .common import at_least, one, one_per_rank, one_per_segment, power_of_two
from .compose import Timed, folded, in_time, mirror, upward, whole
from .patterns import ceil_log2, floor_log2, fold_index, side_of
from .reduce_scatter import halving
from .trees import in_order_tree, search_tree, second_root, second_tree
from .tuning import pipeline, radix


@algorithm("reduce", blocks=one, ordered=True)
def linear(rank: int, size: int, *, root: int = 0) -> Schedule:
    """The root takes the vectors of the others one by one.

    Works for any P.
    Rounds: P−1.
    Bytes per rank: n; the root receives (P−1)·n.
    Ordered: the root goes down from its own rank, then up.
    Reference: none; the definition, taken literally.
    """
    if rank != root:
        yield send(root, Window(0))
        return
    for peer in [*range(root - 1, -1, -1), *range(root + 1, size)]:
        yield recv(peer, Window(0), side=side_of(peer, root))


@algorithm("reduce", blocks=one)
def binomial(rank: int, size: int, *, root: int = 0) -> Schedule:
    """Half of the ranks that are left hand in their vectors in every round: the broadcast run backwards.

    Works for any P.
    Rounds: ⌈log2 P⌉.
    Bytes per rank: n; the root receives ⌈log2 P⌉·n.
    Not ordered: ranks below the root come after those above it (root 0 is in order).
    Reference: Thakur, Rabenseifner, Gropp, Int. J. High Perform. Comput. Appl., 2005.
    """
    return mirror(bcast.binomial(rank, size, root=root))


@algorithm("reduce", blocks=one, requires=at_least(k=2), tune={"k": radix})
def k_nomial(rank: int, size: int, *, k: int = 4, root: int = 0) -> Schedule:
    """Of every k ranks that are left, k−1 hand in their vectors in every round.

    Works for any P.
    Rounds: ⌈log_k P⌉, with k−1 messages each.
    Bytes per rank: n; the root receives (k−1)⌈log_k P⌉·n.
    Not ordered: ranks below the root come after those above it (root 0 is in order).
    Reference: Wilkins et al., IEEE CLUSTER, 2023.
    """
    return mirror(bcast.k_nomial(rank, size, k=k, root=root))


@algorithm("reduce", blocks=one, requires=power_of_two)
def bine_tree(rank: int, size: int, *, root: int = 0) -> Schedule:
    """A binomial tree over negabinary digits, whose edges are a third shorter: the broadcast run backwards.

    Works for powers of two.
    Rounds: log2 P.
    Bytes per rank: n; the root receives log2 P·n.
    Not ordered: children lie on both sides.
    Reference: De Sensi et al., SC, 2025.
    """
    return mirror(bcast.bine_tree(rank, size, root=root))


@algorithm(
    "reduce",
    blocks=one_per_segment,
    requires=at_least(segments=1),
    tune={"segments": pipeline(lambda size: size - 2)},
)
def chain(rank: int, size: int, *, segments: int = 1, root: int = 0) -> Schedule:
    """Combine segment after segment along a chain of all ranks: the broadcast run backwards.

    Works for any P.
    Rounds: P−2+S with S segments.
    Bytes per rank: n.
    Not ordered: ranks below the root come after those above it (root 0 is in order).
    Reference: Pješivac-Grbović et al., Cluster Computing, 2007.
    """
    return mirror(bcast.chain(rank, size, segments=segments, root=root))


@algorithm(
    "reduce",
    blocks=one_per_segment,
    ordered=True,
    requires=at_least(segments=1),
    tune={"segments": pipeline(lambda size: floor_log2(size) - 1, share=2)},
)
def binary_tree(rank: int, size: int, *, segments: int = 1, root: int = 0) -> Schedule:
    """Combine segment after segment up a binary search tree with the given root.

    Works for any P.
    Rounds: ⌊log2 max(root, P−1−root)⌋+S with S segments, in each of which a rank receives two and sends
    one.
    Bytes per rank: n; an inner rank receives 2n.
    Ordered: every subtree is a run of ranks.
    Reference: Pješivac-Grbović et al., Cluster Computing, 2007 (pipelined trees).
    """
    return in_time(upward(rank, search_tree(rank, size, root), range(segments)))


def _delivered(rank: int, holder: int, root: int, segments: Sequence[int]) -> list[Timed]:
    """The messages that bring finished segments from the root of a tree to the root of the reduce.

    The i-th segment is finished after time i-1, see `upward`.
    """
    if holder == root or rank not in (holder, root):
        return []
    if rank == holder:
        return [(time, Send(root, (Window(s),))) for time, s in enumerate(segments)]
    return [(time, Recv(holder, (Window(s),))) for time, s in enumerate(segments)]


@algorithm(
    "reduce",
    blocks=one_per_segment,
    ordered=True,
    requires=at_least(segments=1),
    tune={"segments": lambda size, nbytes: 2 * pipeline(ceil_log2)(size, nbytes)},
)
def double_binary_tree(rank: int, size: int, *, segments: int = 2, root: int = 0) -> Schedule:
    """Combine even segments up one tree and odd ones up another; no rank is an inner node of both.

    Works for any P.
    Rounds: at most ⌈log2 P⌉+⌈S/2⌉ with S segments, in each of which a rank receives two segments and sends
    two.
    Bytes per rank: n; a rank receives up to (1+2⌈S/2⌉/S)·n.
    Ordered: every subtree of both is a run of ranks.
    Reference: Sanders, Speck, Träff, Parallel Computing, 2009.
    """
    even, odd = range(0, segments, 2), range(1, segments, 2)
    return in_time(
        chained(
            upward(rank, in_order_tree(rank, size), even),
            upward(rank, second_tree(rank, size), odd),
            _delivered(rank, 0, root, even),
            _delivered(rank, second_root(size), root, odd),
        )
    )


@algorithm(
    "reduce",
    blocks=one_per_segment,
    requires=at_least(segments=1),
    tune={"segments": pipeline(lambda size: ceil_log2(size) - 1)},
)
def circulant_pipelined(rank: int, size: int, *, segments: int = 1, root: int = 0) -> Schedule:
    """Every rank sends one segment and receives one in every round: the broadcast run backwards.

    Works for any P.
    Rounds: S−1+⌈log2 P⌉ with S segments.
    Bytes per rank: n; the root receives n(1+(⌈log2 P⌉−1)/S).
    Not ordered: every segment has a tree of its own.
    Reference: Träff, IEEE CLUSTER, 2022.
    """
    return mirror(bcast.circulant_pipelined(rank, size, segments=segments, root=root))


@algorithm("reduce", blocks=one_per_rank)
def circulant(rank: int, size: int, *, root: int = 0) -> Schedule:
    """Reduce-scatter on a circulant graph, then gather up a binomial tree.

    Works for any P.
    Rounds: 2⌈log2 P⌉.
    Bytes per rank: up to 3/2·n; combined: (P−1)/P·n.
    Not ordered: contributions arrive in rotated order.
    Reference: Träff, arXiv 2410.14234, 2024.
    """
    yield from reduce_scatter.circulant(rank, size)
    yield from gather.binomial(rank, size, root=root)


@algorithm("reduce", blocks=lambda size, p: 1 << floor_log2(size), ordered=True)
def rabenseifner(rank: int, size: int, *, root: int = 0) -> Schedule:
    """Reduce-scatter by recursive halving, the nearest first, then gather along the same edges.

    Works for any P; others than powers of two are folded.
    Rounds: 2log2 P (+1).
    Bytes per rank: up to 2n (+n); combined: (P−1)/P·n (+n).
    Ordered: only neighbouring runs of ranks are combined.
    Reference: Rabenseifner, ICCS, 2004.
    """
    bits = floor_log2(size)
    base = 1 << bits
    top = fold_index(root, size - base)

    def core(v: int) -> Schedule:
        steps = list(halving(v, [2] * bits))
        yield from steps
        # Relative to the root, a rank takes the halves over bits above its highest one, then hands
        # all that it has in over that one.
        for bit in range(bits - 1, -1, -1):
            if (v ^ top) >> bit == 1:
                yield send(v ^ (1 << bit), *steps[bit].recvs[0].windows)
            elif (v ^ top) >> bit == 0:
                yield recv(v ^ (1 << bit), *steps[bit].sends[0].windows)

    yield from folded(
        rank, size, base, core, hand_in=lambda extra: whole(base), hand_out=lambda extra: (), keep=root
    )
