"""Who talks to whom: the neighbour patterns that algorithms are made of. Pure integer functions."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from functools import lru_cache
from itertools import pairwise

from ..schedule import Side, Window, Windows


def ceil_log2(n: int) -> int:
    """⌈log2 n⌉, exactly.

    >>> [ceil_log2(n) for n in (1, 2, 3, 4, 5, 8, 9)]
    [0, 1, 2, 2, 3, 3, 4]
    """
    return (n - 1).bit_length()


def floor_log2(n: int) -> int:
    """⌊log2 n⌋, exactly.

    >>> [floor_log2(n) for n in (1, 2, 3, 4, 7, 8)]
    [0, 1, 1, 2, 2, 3]
    """
    return n.bit_length() - 1


def powers(radix: int, limit: int) -> list[int]:
    """The powers of `radix` below `limit`, from 1 up: ⌈log_radix(limit)⌉ of them.

    >>> powers(3, 9), powers(3, 10), powers(2, 1)
    ([1, 3], [1, 3, 9], [])
    """
    result, power = [], 1
    while power < limit:
        result.append(power)
        power *= radix
    return result


def side_of(peer: int, rank: int) -> Side:
    """The side on which `rank` takes an operand of `peer`, so that lower ranks stand left."""
    return Side.LEFT if peer < rank else Side.RIGHT


@lru_cache(maxsize=16)
def rotated(size: int, root: int) -> tuple[int, ...]:
    """The ranks from `root` on, around the circle: entry v is the real rank of virtual rank v.

    >>> rotated(4, 3)
    (3, 0, 1, 2)
    """
    return (*range(root, size), *range(root))


def circular_windows(blocks: Iterable[int], total: int) -> Windows:
    """The fewest circular windows over `total` blocks that hold exactly these blocks.

    >>> circular_windows([5, 0, 1, 3], 6)
    (Window(start=3, length=1), Window(start=5, length=3))
    """
    runs: list[list[int]] = []
    for block in sorted(blocks):
        if runs and runs[-1][0] + runs[-1][1] == block:
            runs[-1][1] += 1
        else:
            runs.append([block, 1])
    if len(runs) > 1 and runs[0][0] == 0 and sum(runs[-1]) == total:
        runs[-1][1] += runs.pop(0)[1]
    return tuple(Window(start, length) for start, length in runs)


# -- groups of a convenient size, and the fold onto them --


def smooth_factors(n: int, radix: int) -> list[int] | None:
    """Factors of `n`, each in 2..radix and each as large as possible, or None if there are none.

    >>> smooth_factors(24, 4), smooth_factors(12, 2), smooth_factors(1, 2)
    ([4, 3, 2], None, [])
    """
    factors: list[int] = []
    while n > 1:
        factor = next((f for f in range(min(radix, n), 1, -1) if n % f == 0), None)
        if factor is None:
            return None
        factors.append(factor)
        n //= factor
    return factors


@lru_cache(maxsize=256)
def base_factors(size: int, radix: int) -> tuple[int, ...]:
    """Factors up to `radix` of the largest number up to `size` that has such factors.

    The powers of two are among these numbers, so that it is always more than half of `size`.

    >>> base_factors(13, 4), base_factors(13, 2)
    ((4, 3), (2, 2, 2))
    """
    for n in range(size, 0, -1):
        factors = smooth_factors(n, radix)
        if factors is not None:
            return tuple(factors)
    raise AssertionError("1 has no factors")  # the loop ends at n = 1 at the latest


@lru_cache(maxsize=64)
def fold_ranks(size: int, base: int, keep: int = -1) -> tuple[int, ...]:
    """The real ranks of the `base` virtual ranks that stay when the others are folded away.

    The first ``size - base`` pairs (2i, 2i+1) fold into one rank each, the odd one unless `keep` is
    the even one; all other ranks stay. Virtual order is real order, so a fold keeps rank order.

    >>> fold_ranks(6, 4), fold_ranks(7, 4), fold_ranks(6, 4, keep=2)
    ((1, 3, 4, 5), (1, 3, 5, 6), (1, 2, 4, 5))
    """
    folded = size - base
    pairs = (2 * i if 2 * i == keep else 2 * i + 1 for i in range(folded))
    return (*pairs, *range(2 * folded, size))


def fold_index(rank: int, folded: int) -> int:
    """The virtual rank that `rank` belongs to when `folded` pairs are folded.

    >>> [fold_index(rank, 2) for rank in range(6)]
    [0, 0, 1, 1, 2, 3]
    """
    return rank // 2 if rank < 2 * folded else rank - folded


# -- circulant graphs --


def circulant_skips(size: int, radix: int = 2) -> list[int]:
    """P, ⌈P/radix⌉, ⌈P/radix²⌉, …, 1: the distances of the circulant algorithms.

    >>> circulant_skips(12), circulant_skips(1), circulant_skips(10, 3)
    ([12, 6, 3, 2, 1], [1], [10, 4, 2, 1])
    """
    skips = [size]
    while skips[-1] > 1:
        skips.append(-(-skips[-1] // radix))
    return skips


@lru_cache(maxsize=64)
def base_blocks(size: int) -> tuple[int, ...]:
    """For each rank the index of the last skip on the greedy way to it from rank 0.

    >>> base_blocks(5)
    (3, 0, 1, 2, 0)
    """
    skips = circulant_skips(size)[::-1]
    blocks = [len(skips) - 1]
    for k, (low, high) in enumerate(pairwise(skips)):
        blocks += [k, *blocks[1 : high - low]]
    return tuple(blocks)


@lru_cache(maxsize=64)
def _ranks_of_base_block(size: int) -> tuple[list[int], ...]:
    places: tuple[list[int], ...] = tuple([] for _ in circulant_skips(size))
    for rank, block in enumerate(base_blocks(size)):
        places[block].append(rank)
    return places


@lru_cache(maxsize=4096)
def circulant_receive_row(rank: int, size: int) -> tuple[int, ...]:
    """Which block `rank` receives in each round of the first phase of the pipelined broadcast.

    Negative numbers mean blocks of the phase before, none in the first one.

    >>> [circulant_receive_row(rank, 5) for rank in range(2)]
    [(-3, -1, -2), (0, -1, -2)]
    """
    skips = circulant_skips(size)[::-1]
    own, places = base_blocks(size)[rank], _ranks_of_base_block(size)
    free = [block for block in range(len(skips) - 1, -1, -1) if block != own]
    row = []
    for low, high in pairwise(skips):
        first = (rank - high + 1) % size
        # The largest free block that some rank at distance low..high-1 behind me begins with.
        block = next((b for b in free if _any_between(places[b], first, high - low, size)), None)
        if block is None:
            block = base_blocks(size)[(rank - high) % size]
        free.remove(block)
        row.append(own if block == len(skips) - 1 else block - len(skips) + 1)
    return tuple(row)


def _any_between(places: list[int], first: int, length: int, size: int) -> bool:
    """Whether a sorted list has an entry in the circular range of `length` from `first` on."""
    at = bisect_left(places, first)
    if at < len(places):
        return places[at] < first + length
    return bool(places) and places[0] + size < first + length


# -- Swing and Bine --


def swing_distance(step: int) -> int:
    """1, -1, 3, -5, 11, …: (1-(-2)^(step+1))/3.

    >>> [swing_distance(t) for t in range(7)]
    [1, -1, 3, -5, 11, -21, 43]
    """
    power: int = (-2) ** (step + 1)
    return (1 - power) // 3


def swing_peer(rank: int, step: int, size: int) -> int:
    """The partner in one step: even ranks swing one way, odd ranks the other. `size` is even.

    >>> [swing_peer(rank, 1, 8) for rank in range(8)]
    [7, 2, 1, 4, 3, 6, 5, 0]
    """
    distance = swing_distance(step)
    return (rank + distance if rank % 2 == 0 else rank - distance) % size


@lru_cache(maxsize=64)
def swing_offsets(size: int, far_first: bool) -> tuple[tuple[int, ...], ...]:
    """For each step the relative ranks that hand a block on in that step of the reduce-scatter.

    Seen from block 0's owner, rank x joins the tree of an all-gather in one step, and leaves that
    of a reduce-scatter in the same step; every rank but the owner does so exactly once.

    >>> swing_offsets(6, far_first=False)
    ((1, 2), (4, 5), (3,))
    """
    steps = range(ceil_log2(size))
    joined, offsets = {0}, [()] * len(steps)  # type: tuple[set[int], list[tuple[int, ...]]]
    for step in steps if far_first else reversed(steps):
        new = {swing_peer(rank, step, size) for rank in joined} - joined
        offsets[step] = tuple(sorted(new))
        joined |= new
    return tuple(offsets)


def swing_blocks(rank: int, step: int, size: int, far_first: bool) -> Windows:
    """The blocks that `rank` hands on in one step of the reduce-scatter.

    Even blocks see relative ranks forwards, odd blocks backwards, as even and odd ranks do.

    >>> swing_blocks(0, 2, 8, far_first=True)
    (Window(start=2, length=4),)
    """
    blocks = (
        (rank - x if (rank - x) % 2 == 0 else rank + x) % size for x in swing_offsets(size, far_first)[step]
    )
    return circular_windows(blocks, size)
