"""Trees: the place of one rank in each of them. Pure integer functions."""

from __future__ import annotations

from typing import NamedTuple

from .patterns import floor_log2


class Place(NamedTuple):
    """Where a rank sits in a tree: its parent (-1 at the root), its children, its depth."""

    parent: int
    children: tuple[int, ...]
    depth: int


def heap_tree(rank: int, size: int) -> Place:
    """The complete binary tree, numbered level by level, with root 0. Height ⌊log2 P⌋.

    >>> heap_tree(1, 5)
    Place(parent=0, children=(3, 4), depth=1)
    """
    children = tuple(c for c in (2 * rank + 1, 2 * rank + 2) if c < size)
    return Place((rank - 1) // 2, children, floor_log2(rank + 1))


def chain_tree(rank: int, size: int) -> Place:
    """A tree without branches, 0 → 1 → … → P−1.

    >>> chain_tree(0, 3), chain_tree(2, 3)
    (Place(parent=-1, children=(1,), depth=0), Place(parent=1, children=(), depth=2))
    """
    return Place(rank - 1, (rank + 1,) if rank + 1 < size else (), rank)


def search_tree(rank: int, size: int, root: int) -> Place:
    """The binary search tree over all ranks with a given root: every subtree is a range of ranks.

    Each half beside the root is balanced, so that the height is at most ⌊log2(P−1)⌋+1, and
    ⌊log2 P⌋ if the root is P//2. A reduction in it combines in rank order.

    >>> [search_tree(rank, 6, 3).parent for rank in range(6)]
    [1, 3, 1, -1, 5, 3]
    """
    low, high, parent, depth, middle = 0, size, -1, 0, root
    while middle != rank:
        low, high = (low, middle) if rank < middle else (middle + 1, high)
        parent, depth, middle = middle, depth + 1, (low + high) // 2
    halves = ((low, rank), (rank + 1, high))
    return Place(parent, tuple((a + b) // 2 for a, b in halves if a < b), depth)


def in_order_tree(rank: int, size: int) -> Place:
    """The tree of lowest set bits: root 0 with one child, odd ranks are leaves, subtrees are ranges.

    >>> in_order_tree(4, 6)
    Place(parent=0, children=(2, 5), depth=1)
    """
    children = []
    if rank == 0:
        step = 1 << floor_log2(size - 1) if size > 1 else 0
    else:
        step = (rank & -rank) >> 1
        children = [rank - step] if step else []
    while step and rank + step >= size:
        step >>= 1
    if step:
        children.append(rank + step)
    depth, above = 0, rank
    while above:
        depth, above = depth + 1, _in_order_parent(above, size)
    return Place(_in_order_parent(rank, size) if rank else -1, tuple(children), depth)


def _in_order_parent(rank: int, size: int) -> int:
    bit = rank & -rank
    parent = (rank - bit) | (bit << 1)
    return parent if parent < size else rank - bit


def second_tree(rank: int, size: int) -> Place:
    """A tree of which every subtree is a range, and no inner node is one of `in_order_tree`.

    Its inner nodes are odd ranks. P even: the first tree seen in a mirror, with root P−1. P odd: the
    first tree of ranks 1…P−1, with root 1, and rank 0 as one more leaf of that root. (Shifting the first
    tree of P ranks by one, as is usual for odd P, would put rank 0 behind rank P−1 and make it an inner
    node of both trees.)

    >>> second_tree(1, 6), second_tree(1, 7)
    (Place(parent=5, children=(3, 0), depth=1), Place(parent=-1, children=(5, 0), depth=0))
    """
    if size % 2 == 0:
        parent, children, depth = in_order_tree(size - 1 - rank, size)
        mirrored = tuple(size - 1 - child for child in children)
        return Place(size - 1 - parent if parent >= 0 else -1, mirrored, depth)
    if rank == 0:
        return Place(1, (), 1) if size > 1 else Place(-1, (), 0)
    parent, children, depth = in_order_tree(rank - 1, size - 1)
    shifted = tuple(child + 1 for child in children)
    if rank == 1:
        return Place(-1, (*shifted, 0), 0)
    return Place(parent + 1, shifted, depth)


def second_root(size: int) -> int:
    """The root of `second_tree`."""
    return size - 1 if size % 2 == 0 else min(1, size - 1)


def binomial_bits(rank: int, size: int) -> tuple[int, list[int]]:
    """The bit that leads from `rank` to its parent, and the bits that lead to its children.

    Root 0 has no parent: its bit is ⌈log2 P⌉.

    >>> binomial_bits(4, 8), binomial_bits(0, 5)
    ((2, [0, 1]), (3, [0, 1, 2]))
    """
    own = floor_log2(rank & -rank) if rank else (size - 1).bit_length()
    return own, [bit for bit in range(own) if rank + (1 << bit) < size]


def binomial_subtree(rank: int, size: int) -> int:
    """The number of ranks in the binomial subtree of `rank`, which are `rank` and those after it.

    >>> [binomial_subtree(rank, 6) for rank in range(6)]
    [6, 1, 2, 1, 2, 1]
    """
    return min(rank & -rank, size - rank) if rank else size


_ALTERNATING = 0xAAAAAAAA


def to_negabinary(n: int) -> int:
    """The digits of `n` in base −2, as a bit pattern (32 bits).

    >>> [to_negabinary(n) for n in (0, 1, 2, 3, -1)]
    [0, 1, 6, 7, 3]
    """
    return ((n + _ALTERNATING) ^ _ALTERNATING) & 0xFFFFFFFF


def from_negabinary(digits: int) -> int:
    """The number with these digits in base −2.

    >>> [from_negabinary(to_negabinary(n)) for n in (5, -7)]
    [5, -7]
    """
    n = ((digits ^ _ALTERNATING) - _ALTERNATING) & 0xFFFFFFFF
    return n - (1 << 32) if n >> 31 else n


def bine_peers(rank: int, size: int) -> tuple[int, list[int]]:
    """Steps of the Bine tree: the partner in each, and the step in which `rank` is reached.

    `size` is a power of two; steps count down from log2 P − 1 to 0 and root 0 is reached before the
    first. Returns (step reached, [partner in step 0, 1, …]).

    >>> bine_peers(0, 8), bine_peers(3, 8)
    ((3, [1, 7, 3]), (2, [2, 4, 0]))
    """
    steps = floor_log2(size)
    # A rank and its code stand for each other modulo P only, so that P low digits are enough.
    code = to_negabinary(rank)
    peers = [from_negabinary(code ^ ((2 << t) - 1)) % size for t in range(steps)]
    if rank == 0:
        return steps, peers
    reached = next(t for t in range(steps - 1, -1, -1) if code & ((2 << t) - 1) in (0, (2 << t) - 1))
    return reached, peers
