"""Broadcast: every rank ends with the root's vector."""

from __future__ import annotations

from itertools import chain as chained

from ..registry import algorithm
from ..schedule import Recv, Round, Schedule, Send, Window, exchange, recv, send
from . import allgather, scatter
from .common import at_least, one, one_per_rank, one_per_segment, power_of_two
from .compose import downward, embed, in_time, only_new
from .patterns import (
    ceil_log2,
    circulant_receive_row,
    circulant_skips,
    floor_log2,
    powers,
    rotated,
)
from .trees import (
    Place,
    bine_peers,
    binomial_bits,
    binomial_subtree,
    chain_tree,
    heap_tree,
    in_order_tree,
    second_root,
    second_tree,
)
from .tuning import pipeline, radix


@algorithm("bcast", blocks=one)
def linear(rank: int, size: int, *, root: int = 0) -> Schedule:
    """The root sends the vector to every rank, all at once.

    Works for any P.
    Rounds: 1, with P−1 messages at the root.
    Bytes per rank: (P−1)·n at the root.
    Reference: none; the definition, taken literally.
    """
    if rank != root:
        yield recv(root, Window(0))
    elif size > 1:
        yield Round(sends=tuple(Send(peer, (Window(0),)) for peer in range(size) if peer != root))


@algorithm("bcast", blocks=one)
def binomial(rank: int, size: int, *, root: int = 0) -> Schedule:
    """Every rank that has the vector sends it to one more in every round.

    Works for any P.
    Rounds: ⌈log2 P⌉.
    Bytes per rank: ⌈log2 P⌉·n at the root.
    Reference: Thakur, Rabenseifner, Gropp, Int. J. High Perform. Comput. Appl., 2005.
    """
    # In round ⌈log2 P⌉-1-t the vector comes over bit t; the largest subtrees are served first.
    virtual = (rank - root) % size
    own, bits = binomial_bits(virtual, size)
    if virtual:
        yield recv((rank - (1 << own)) % size, Window(0))
    for bit in reversed(bits):
        yield send((rank + (1 << bit)) % size, Window(0))


@algorithm("bcast", blocks=one, requires=at_least(k=2), tune={"k": radix})
def k_nomial(rank: int, size: int, *, k: int = 4, root: int = 0) -> Schedule:
    """Every rank that has the vector sends it to k−1 more in every round.

    Works for any P.
    Rounds: ⌈log_k P⌉, with k−1 messages each.
    Bytes per rank: up to (k−1)⌈log_k P⌉·n at the root.
    Reference: Wilkins et al., IEEE CLUSTER, 2023.
    """
    virtual = (rank - root) % size
    for stride in reversed(powers(k, size)):
        # Before: the multiples of k·stride (virtual) have the vector; after, those of stride.
        place = virtual % (k * stride)
        if place == 0:
            children = [j * stride for j in range(1, k) if virtual + j * stride < size]
            if children:
                yield Round(sends=tuple(Send((rank + far) % size, (Window(0),)) for far in children))
        elif place % stride == 0:
            yield recv((rank - place) % size, Window(0))


@algorithm("bcast", blocks=one, requires=power_of_two)
def bine_tree(rank: int, size: int, *, root: int = 0) -> Schedule:
    """A binomial tree over negabinary digits, whose edges are a third shorter.

    Works for powers of two.
    Rounds: log2 P.
    Bytes per rank: log2 P·n at the root.
    Reference: De Sensi et al., SC, 2025.
    """
    virtual = (rank - root) % size
    reached, peers = bine_peers(virtual, size)
    if virtual:
        yield recv((peers[reached] + root) % size, Window(0))
    for step in reversed(range(reached)):
        yield send((peers[step] + root) % size, Window(0))


@algorithm(
    "bcast",
    blocks=one_per_segment,
    requires=at_least(segments=1),
    tune={"segments": pipeline(lambda size: size - 2)},
)
def chain(rank: int, size: int, *, segments: int = 1, root: int = 0) -> Schedule:
    """Pass segment after segment along a chain of all ranks.

    Works for any P.
    Rounds: P−2+S with S segments.
    Bytes per rank: n.
    Reference: Pješivac-Grbović et al., Cluster Computing, 2007.
    """
    tree = chain_tree((rank - root) % size, size)
    return embed(in_time(downward(tree, range(segments))), rotated(size, root))


@algorithm(
    "bcast",
    blocks=one_per_segment,
    requires=at_least(segments=1),
    tune={"segments": pipeline(lambda size: floor_log2(size) - 1, share=2)},
)
def binary_tree(rank: int, size: int, *, segments: int = 1, root: int = 0) -> Schedule:
    """Pass segment after segment down a complete binary tree.

    Works for any P.
    Rounds: ⌊log2 P⌋−1+S with S segments, in each of which a rank receives one segment and sends the one
    before to two children.
    Bytes per rank: up to 2n.
    Reference: Pješivac-Grbović et al., Cluster Computing, 2007.
    """
    tree = heap_tree((rank - root) % size, size)
    return embed(in_time(downward(tree, range(segments))), rotated(size, root))


def _half_tree(virtual: int, size: int) -> Place:
    """The place of a rank that is not the root: ranks 1…P//2 are the left tree, the others the right one."""
    left = size // 2
    first, ranks = (1, left) if virtual <= left else (1 + left, size - 1 - left)
    parent, children, depth = heap_tree(virtual - first, ranks)
    return Place(parent + first if depth else 0, tuple(child + first for child in children), depth + 1)


@algorithm(
    "bcast",
    blocks=one_per_segment,
    requires=at_least(segments=2),
    tune={"segments": lambda size, nbytes: 2 * pipeline(lambda p: floor_log2(p) - 1)(size, nbytes)},
)
def split_binary_tree(rank: int, size: int, *, segments: int = 2, root: int = 0) -> Schedule:
    """Pass half of the segments down either half of a binary tree, then exchange halves in pairs.

    Works for any P.
    Rounds: ⌊log2 P⌋+⌈S/2⌉ with S segments.
    Bytes per rank: up to 3⌈S/2⌉/S·n.
    Reference: Pješivac-Grbović et al., Cluster Computing, 2007.
    """
    virtual, left, half = (rank - root) % size, size // 2, -(-segments // 2)
    ranks, halves = rotated(size, root), (range(half), range(half, segments))
    first, second = Window(0, half), Window(half, segments - half)
    alone = 0 if size % 2 else left  # the rank of the left tree that has no partner, if there is one
    if virtual == 0:
        tops = zip((1, left + 1), halves, strict=True)
        trees = (downward(Place(-1, (top,), 0), some) for top, some in tops if top < size)
        yield from embed(in_time(chained.from_iterable(trees)), ranks)
        if alone:
            yield send(ranks[alone], second)
        return
    own = halves[virtual > left]
    yield from embed(in_time(downward(_half_tree(virtual, size), own)), ranks)
    if virtual == alone:
        yield recv(root, second)
    elif virtual <= left:
        yield exchange(ranks[virtual + left], (first,), (second,))
    else:
        yield exchange(ranks[virtual - left], (second,), (first,))


def _hung_from_zero(rank: int, size: int) -> Place:
    """The second tree with rank 0, a leaf of it, put above its root."""
    parent, children, depth = second_tree(rank, size)
    top = second_root(size)
    if rank == 0:
        return Place(-1, (top,), 0)
    children = tuple(child for child in children if child)
    return Place(0 if rank == top else parent, children, depth + 1)


@algorithm(
    "bcast",
    blocks=one_per_segment,
    requires=at_least(segments=1),
    tune={"segments": lambda size, nbytes: 2 * pipeline(ceil_log2)(size, nbytes)},
)
def double_binary_tree(rank: int, size: int, *, segments: int = 2, root: int = 0) -> Schedule:
    """Pass even segments down one tree and odd ones down another; no rank sends on in both.

    Works for any P.
    Rounds: ⌈log2 P⌉−1+⌈S/2⌉ at least, and one more at most, with S segments; in each a rank receives two
    segments and sends two.
    Bytes per rank: up to 2⌈S/2⌉/S·n; n at the root.
    Reference: Sanders, Speck, Träff, Parallel Computing, 2009.
    """
    virtual = (rank - root) % size
    if size > 1:
        first, second = in_order_tree(virtual, size), _hung_from_zero(virtual, size)
        messages = chained(downward(first, range(0, segments, 2)), downward(second, range(1, segments, 2)))
        yield from embed(in_time(messages), rotated(size, root))


@algorithm(
    "bcast",
    blocks=one_per_segment,
    requires=at_least(segments=1),
    tune={"segments": pipeline(lambda size: ceil_log2(size) - 1)},
)
def circulant_pipelined(rank: int, size: int, *, segments: int = 1, root: int = 0) -> Schedule:
    """Every rank sends one segment and receives one in every round, on a circulant graph.

    Works for any P.
    Rounds: S−1+⌈log2 P⌉ with S segments, which is optimal.
    Bytes per rank: n(1+(⌈log2 P⌉−1)/S).
    Reference: Träff, IEEE CLUSTER, 2022.
    """
    virtual, phase = (rank - root) % size, ceil_log2(size)
    skips = circulant_skips(size)[:0:-1]
    receive_row = circulant_receive_row(virtual, size)
    send_row = [circulant_receive_row((virtual + s) % size, size)[k] for k, s in enumerate(skips)]
    # Rounds come in phases of ⌈log2 P⌉; the last must end with the last segment. In every phase each
    # rank receives ⌈log2 P⌉ segments, which are new to it: segment numbers grow with the phases.
    first = -(segments - 1) % phase if phase else 0
    for i in range(first, first + (segments - 1 + phase if phase else 0)):
        k, shift = i % phase, i // phase * phase - first
        outgoing = min(send_row[k] + shift, segments - 1)
        incoming = min(receive_row[k] + shift, segments - 1)
        to, source = (rank + skips[k]) % size, (rank - skips[k]) % size
        sends = (Send(to, (Window(outgoing),)),) if outgoing >= 0 and to != root else ()
        recvs = (Recv(source, (Window(incoming),)),) if incoming >= 0 and rank != root else ()
        if sends or recvs:
            yield Round(sends, recvs)


def _completed(rounds: Schedule, rank: int, size: int, root: int) -> Schedule:
    """An all-gather after a binomial scatter, which left every rank with the parts of its subtree."""

    def held(receiver: int, part: int) -> bool:
        return (part - receiver) % size < binomial_subtree((receiver - root) % size, size)

    return only_new(rounds, rank, size, held)


@algorithm("bcast", blocks=one_per_rank)
def scatter_allgather(rank: int, size: int, *, root: int = 0) -> Schedule:
    """Scatter down a binomial tree, then all-gather on a circulant graph what a rank does not have yet.

    Works for any P.
    Rounds: 2⌈log2 P⌉.
    Bytes per rank: up to 2(P−1)/P·n at the root.
    Reference: Barnett, Shuler, van de Geijn, Gupta, Payne, Watts, SHPCC, 1994; Träff, arXiv 2410.14234, 2024.
    """
    yield from scatter.binomial(rank, size, root=root)
    yield from _completed(allgather.circulant(rank, size), rank, size, root)


@algorithm("bcast", blocks=one_per_rank)
def scatter_allgather_ring(rank: int, size: int, *, root: int = 0) -> Schedule:
    """Scatter down a binomial tree, then all-gather on a ring what a rank does not have yet.

    Works for any P.
    Rounds: ⌈log2 P⌉+P−1.
    Bytes per rank: up to 2(P−1)/P·n at the root.
    Reference: Barnett, Shuler, van de Geijn, Gupta, Payne, Watts, SHPCC, 1994.
    """
    yield from scatter.binomial(rank, size, root=root)
    yield from _completed(allgather.ring(rank, size), rank, size, root)
