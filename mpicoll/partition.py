"""Cutting vectors: balanced blocks, segments and channels, in exact integers of any width."""

from __future__ import annotations

from itertools import accumulate

from .errors import ArgumentError


def block_offset(count: int, blocks: int, block: int) -> int:
    """First element of `block` when `count` elements are cut in `blocks` balanced blocks.

    The first ``count % blocks`` blocks are one element longer than the others, so lengths differ by
    at most one and blocks may be empty. ``block == blocks`` gives `count`.

    >>> [block_offset(7, 3, b) for b in range(4)]
    [0, 3, 5, 7]
    """
    base, longer = divmod(count, blocks)
    return block * base + min(block, longer)


def block_length(count: int, blocks: int, block: int) -> int:
    """Number of elements of `block`, see `block_offset`."""
    base, longer = divmod(count, blocks)
    return base + (block < longer)


def offsets(count: int, blocks: int) -> list[int]:
    """All ``blocks + 1`` offsets of a balanced cut.

    >>> offsets(2, 4)
    [0, 1, 2, 2, 2]
    """
    if count < 0 or blocks < 1:
        raise ArgumentError(f"cannot cut {count} elements in {blocks} blocks")
    base, longer = divmod(count, blocks)
    return list(accumulate((base + 1 if b < longer else base for b in range(blocks)), initial=0))


def segments_for(nbytes: int, segment_bytes: int, most: int = 1 << 16) -> int:
    """How many segments of about `segment_bytes` a message of `nbytes` is cut in (at least one)."""
    return max(1, min(most, -(-nbytes // segment_bytes)))
