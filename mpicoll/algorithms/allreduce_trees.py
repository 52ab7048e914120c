"""All-reduce by trees: reduce, then broadcast, segment after segment."""

from __future__ import annotations

from itertools import chain as chained

from ..registry import algorithm
from ..schedule import Recv, Schedule, Send, Side, Window
from . import bcast, reduce
from .common import at_least, one_per_segment
from .compose import Timed, downward, in_time, upward
from .patterns import ceil_log2, floor_log2
from .trees import binomial_bits, in_order_tree, search_tree, second_tree
from .tuning import pipeline


def _binomial_messages(rank: int, size: int, segments: int) -> list[Timed]:
    """One segment in ⌈log2 P⌉ time steps up, and in as many down, while the next one comes up."""
    period = ceil_log2(size)
    own, bits = binomial_bits(rank, size)
    messages: list[Timed] = []
    for s in range(segments):
        start, window = s * period, (Window(s),)
        down = start + 2 * period - 1  # the time of bit 0
        for bit in bits:
            child = rank + (1 << bit)
            messages.append((start + bit, Recv(child, window, Side.RIGHT)))
            messages.append((down - bit, Send(child, window)))
        if rank:
            parent = rank - (1 << own)
            messages.append((start + own, Send(parent, window)))
            messages.append((down - own, Recv(parent, window)))
    return messages


@algorithm(
    "allreduce",
    blocks=one_per_segment,
    ordered=True,
    requires=at_least(segments=1),
    tune={"segments": pipeline(lambda size: 1)},
)
def binomial_tree(rank: int, size: int, *, segments: int = 1) -> Schedule:
    """Reduce up a binomial tree, then broadcast down it; one segment goes down while the next comes up.

    Works for any P.
    Rounds: ⌈log2 P⌉(S+1) with S segments.
    Bytes per rank: ⌈log2 P⌉·n at the root.
    Ordered: a rank takes its children's runs of ranks one after the other.
    Reference: Thakur, Rabenseifner, Gropp, Int. J. High Perform. Comput. Appl., 2005.
    """
    return in_time(_binomial_messages(rank, size, segments))


@algorithm(
    "allreduce",
    blocks=one_per_segment,
    ordered=True,
    requires=at_least(segments=1),
    tune={"segments": pipeline(lambda size: 2 * floor_log2(size) - 1, share=3)},
)
def binary_tree(rank: int, size: int, *, segments: int = 1) -> Schedule:
    """Reduce up a balanced binary search tree, then broadcast down it, segment after segment.

    Works for any P.
    Rounds: 2⌊log2 P⌋−1+S with S segments, in each of which a rank receives two from below and one from
    above, and sends as many.
    Bytes per rank: up to 3n; 2n at the root.
    Ordered: every subtree is a run of ranks.
    Reference: Pješivac-Grbović et al., Cluster Computing, 2007 (pipelined trees).
    """
    tree = search_tree(rank, size, root=size // 2)
    up, down = upward(rank, tree, range(segments)), downward(tree, range(segments), start=-1)
    return in_time(chained(up, down))


@algorithm(
    "allreduce",
    blocks=one_per_segment,
    ordered=True,
    requires=at_least(segments=1),
    tune={"segments": lambda size, n: 2 * pipeline(lambda p: 2 * ceil_log2(p) - 1, share=2)(size, n)},
)
def double_binary_tree(rank: int, size: int, *, segments: int = 2) -> Schedule:
    """Reduce and broadcast even segments in one tree, odd ones in another; no rank sends on in both.

    Works for any P.
    Rounds: about 2⌈log2 P⌉−1+⌈S/2⌉ with S segments.
    Bytes per rank: up to (1+2⌈S/2⌉/S)·n.
    Ordered: every subtree of both is a run of ranks.
    Reference: Sanders, Speck, Träff, Parallel Computing, 2009.
    """
    messages: list[Timed] = []
    for parity, tree in enumerate((in_order_tree(rank, size), second_tree(rank, size))):
        own = range(parity, segments, 2)
        messages += [*upward(rank, tree, own), *downward(tree, own, start=-1)]
    return in_time(messages)


@algorithm(
    "allreduce",
    blocks=one_per_segment,
    requires=at_least(segments=1),
    tune={"segments": pipeline(lambda size: ceil_log2(size) - 1)},
)
def circulant_pipelined(rank: int, size: int, *, segments: int = 1) -> Schedule:
    """Reduce to rank 0, then broadcast, one segment in and one out in every round, on a circulant graph.

    Works for any P.
    Rounds: 2(S−1+⌈log2 P⌉) with S segments.
    Bytes per rank: about 2n(1+(⌈log2 P⌉−1)/S).
    Not ordered: every segment has a tree of its own.
    Reference: Träff, IEEE CLUSTER, 2022.
    """
    yield from reduce.circulant_pipelined(rank, size, segments=segments)
    yield from bcast.circulant_pipelined(rank, size, segments=segments)
