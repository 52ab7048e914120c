"""Golden values of the patterns and trees that algorithms are made of, and what must hold of them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest

from mpicoll.algorithms.patterns import (
    base_blocks,
    ceil_log2,
    circulant_receive_row,
    circulant_skips,
    floor_log2,
    fold_ranks,
    swing_blocks,
    swing_offsets,
    swing_peer,
)
from mpicoll.algorithms.trees import (
    Place,
    bine_peers,
    heap_tree,
    in_order_tree,
    search_tree,
    second_root,
    second_tree,
)
from mpicoll.schedule import blocks_of

# -- golden values --


@pytest.mark.parametrize(
    ("size", "skips"),
    [(5, [5, 3, 2, 1]), (7, [7, 4, 2, 1]), (12, [12, 6, 3, 2, 1]), (17, [17, 9, 5, 3, 2, 1])],
)
def test_circulant_skips(size: int, skips: list[int]):
    assert circulant_skips(size) == skips


def test_fold_keeps_the_odd_rank_of_each_pair():
    assert fold_ranks(6, 4) == (1, 3, 4, 5)
    assert fold_ranks(7, 4) == (1, 3, 5, 6)


def test_swing_matchings_of_eight():
    assert [[swing_peer(rank, t, 8) for rank in range(8)] for t in range(3)] == [
        [1, 0, 3, 2, 5, 4, 7, 6],
        [7, 2, 1, 4, 3, 6, 5, 0],
        [3, 6, 5, 0, 7, 2, 1, 4],
    ]


def kept_blocks(rank: int, size: int, far_first: bool, steps_done: int) -> set[int]:
    """What `rank` still works on after some steps of the Swing reduce-scatter (a power of two)."""
    order = range(ceil_log2(size))
    steps = list(reversed(order) if far_first else order)[:steps_done]
    kept = set(range(size))
    for step in steps:
        kept -= set(blocks_of(swing_blocks(rank, step, size, far_first), size))
    return kept


def test_swing_block_sets_of_eight():
    assert kept_blocks(0, 8, False, 1) == {0, 3, 4, 7}
    assert kept_blocks(0, 8, False, 2) == {0, 3}
    assert kept_blocks(0, 8, True, 1) == {0, 1, 6, 7}
    assert kept_blocks(3, 8, True, 1) == {2, 3, 4, 5}


@pytest.mark.parametrize("size", [2, 4, 8, 16, 32, 64, 128])
def test_bine_sends_one_circular_window_at_powers_of_two(size: int):
    for rank, step in product(range(size), range(ceil_log2(size))):
        assert len(swing_blocks(rank, step, size, far_first=True)) == 1


@pytest.mark.parametrize(
    ("size", "far_first", "first"),
    [
        (6, False, [0, 0, 2, 1, 1]),
        (6, True, [0, 1, 2, 2, 1]),
        (10, False, [1, 2, 2, 1, 3, 1, 0, 0, 1]),
        (12, False, [0, 0, 2, 2, 0, 0, 3, 1, 0, 0, 1]),
    ],
)
def test_swing_step_in_which_each_relative_rank_hands_on(size: int, far_first: bool, first: list[int]):
    offsets = swing_offsets(size, far_first)
    step_of = {rank: step for step, ranks in enumerate(offsets) for rank in ranks}
    assert [step_of[rank] for rank in range(1, size)] == first


@pytest.mark.parametrize("far_first", [False, True])
def test_swing_reaches_every_rank_once_for_every_even_size(far_first: bool):
    for size in range(2, 514, 2):
        joined = sorted(rank for ranks in swing_offsets(size, far_first) for rank in ranks)
        assert joined == list(range(1, size))


def test_rows_of_the_pipelined_broadcast():
    assert base_blocks(5) == (3, 0, 1, 2, 0)
    rows = [list(circulant_receive_row(rank, 5)) for rank in range(5)]
    assert rows == [[-3, -1, -2], [0, -1, -2], [-3, 1, -1], [-2, -3, 2], [-1, -2, 0]]
    skips = circulant_skips(5)[:0:-1]
    assert [[rows[(rank + s) % 5][k] for k, s in enumerate(skips)] for rank in range(5)] == [
        [0, 1, 2],
        [-3, -3, 0],
        [-2, -2, -2],
        [-1, -1, -2],
        [-3, -1, -1],
    ]
    assert [list(circulant_receive_row(rank, 6)) for rank in range(6)] == [
        [-2, -3, -1],
        [0, -2, -1],
        [-3, 1, -1],
        [-2, -3, 2],
        [-1, -2, 0],
        [-3, -1, 1],
    ]


def children_of(tree: Callable[[int, int], Place], size: int) -> dict[int, set[int]]:
    return {r: set(tree(r, size).children) for r in range(size) if tree(r, size).children}


def test_double_tree_of_six():
    assert children_of(in_order_tree, 6) == {0: {4}, 4: {2, 5}, 2: {1, 3}}
    assert children_of(second_tree, 6) == {5: {1}, 1: {3, 0}, 3: {4, 2}}


def test_double_tree_of_seven_keeps_rank_order_where_the_shifted_one_does_not():
    first = children_of(in_order_tree, 7)
    assert first == {0: {4}, 4: {2, 6}, 2: {1, 3}, 6: {5}}
    shifted = {(r + 1) % 7: {(c + 1) % 7 for c in children} for r, children in first.items()}
    assert shifted == {1: {5}, 5: {3, 0}, 3: {2, 4}, 0: {6}}  # rank 0 under 5, and 6 under 0
    assert children_of(second_tree, 7) == {1: {5, 0}, 5: {3, 6}, 3: {2, 4}}


# -- trees --


def rooted_at(root: int) -> Callable[[int, int], Place]:
    return lambda rank, size: search_tree(rank, size, min(root, size - 1))


TREES = [
    pytest.param(heap_tree, 0, id="heap"),
    pytest.param(in_order_tree, 0, id="in_order"),
    pytest.param(second_tree, None, id="second"),
    *(pytest.param(rooted_at(root), root, id=f"search{root}") for root in (0, 1, 5, 30)),
]


@pytest.mark.parametrize(("tree", "root"), TREES)
def test_tree_agrees_on_its_edges(tree: Callable[[int, int], Place], root: int | None):
    for size in range(1, 101):
        places = [tree(rank, size) for rank in range(size)]
        top = second_root(size) if root is None else min(root, size - 1)
        assert [rank for rank in range(size) if places[rank].parent < 0] == [top]
        for rank, place in enumerate(places):
            assert all(places[child].parent == rank for child in place.children)
            if rank != top:
                assert rank in places[place.parent].children
                assert place.depth == places[place.parent].depth + 1
        assert max(place.depth for place in places) <= ceil_log2(size)


@pytest.mark.parametrize("tree", [in_order_tree, second_tree, rooted_at(0), rooted_at(7)])
def test_subtrees_are_runs_of_ranks(tree: Callable[[int, int], Place]):
    def subtree(rank: int, size: int) -> list[int]:
        below = [r for child in tree(rank, size).children for r in subtree(child, size)]
        return sorted([rank, *below])

    for size in range(1, 41):
        for rank in range(size):
            ranks = subtree(rank, size)
            assert ranks == list(range(ranks[0], ranks[-1] + 1))


def test_no_rank_is_an_inner_node_of_both_trees():
    for size in range(2, 101):
        for rank in range(size):
            assert not (in_order_tree(rank, size).children and second_tree(rank, size).children)


def test_balanced_search_tree_is_as_flat_as_can_be():
    for size in range(1, 101):
        height = max(search_tree(rank, size, size // 2).depth for rank in range(size))
        assert height == floor_log2(size)


def test_bine_partners_agree():
    for size in (2, 4, 8, 16, 32, 64, 1024):
        peers = [bine_peers(rank, size)[1] for rank in range(size)]
        for step in range(floor_log2(size)):
            assert all(peers[peers[rank][step]][step] == rank for rank in range(size))
