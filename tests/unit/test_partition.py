"""Cuts are balanced, complete and exact at any size."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpicoll.errors import ArgumentError
from mpicoll.partition import block_length, block_offset, offsets, segments_for

counts = st.integers(0, 2**40)
cuts = st.integers(1, 300)


@given(counts, cuts)
def test_offsets_cover_the_vector_in_balanced_blocks(count: int, blocks: int):
    cut = offsets(count, blocks)
    lengths = [b - a for a, b in pairwise(cut)]
    assert (cut[0], cut[-1], len(cut)) == (0, count, blocks + 1)
    assert max(lengths) - min(lengths) <= 1
    assert lengths == sorted(lengths, reverse=True)


@given(counts, cuts)
def test_single_offsets_and_lengths_agree_with_the_whole_cut(count: int, blocks: int):
    cut = offsets(count, blocks)
    assert [block_offset(count, blocks, b) for b in range(blocks + 1)] == cut
    assert [block_length(count, blocks, b) for b in range(blocks)] == [
        cut[b + 1] - cut[b] for b in range(blocks)
    ]


@pytest.mark.parametrize("blocks", [1, 2, 7, 8])
def test_counts_around_the_number_of_blocks(blocks: int):
    for count in (0, 1, blocks - 1, blocks, blocks + 1, 2 * blocks + 1):
        lengths = [block_length(count, blocks, b) for b in range(blocks)]
        assert sum(lengths) == count
        assert sum(length == 0 for length in lengths) == max(0, blocks - count)


def test_no_overflow_at_two_to_the_33():
    count = 2**33 + 5
    assert offsets(count, 8)[-1] == count
    assert block_offset(count, 8, 8) == count
    assert block_offset(count, 8, 5) == 5 * 2**30 + 5


@pytest.mark.parametrize(("count", "blocks"), [(-1, 1), (1, 0), (1, -2)])
def test_impossible_cuts_are_refused(count: int, blocks: int):
    with pytest.raises(ArgumentError, match=f"cannot cut {count} elements in {blocks} blocks"):
        offsets(count, blocks)


def test_segments_are_at_least_one_and_at_most_the_limit():
    assert [segments_for(n, 1024) for n in (0, 1, 1024, 1025, 4096)] == [1, 1, 1, 2, 4]
    assert segments_for(10**9, 1, most=100) == 100
