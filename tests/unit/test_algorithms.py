"""The algorithms beyond their proof: closed forms of rounds and bytes, refusals, defaults, the catalogue."""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import product
from math import prod
from typing import Any

import pytest

import mpicoll.algorithms
from mpicoll.algorithms.patterns import (
    base_factors,
    ceil_log2,
    floor_log2,
    powers,
)
from mpicoll.algorithms.trees import (
    in_order_tree,
    search_tree,
    second_tree,
)
from mpicoll.errors import ArgumentError, Unsupported
from mpicoll.registry import Algorithm, algorithms, get
from mpicoll.schedule import window_count
from mpicoll.traffic import Traffic, peer_bytes, traffic
from mpicoll.verify import verify

ALL = [pytest.param(a, id=str(a)) for a in algorithms()]
SOME_SIZES = [*range(1, 10), 12, 15, 16, 17, 24, 31, 32, 33, 40]
LARGER_SIZES = [57, 64]


# -- closed forms of rounds and bytes, exactly --


def share(size: int) -> Fraction:
    return Fraction(size - 1, size)


def power_below(size: int) -> int:
    return 1 << floor_log2(size)


def folds(size: int, radix: int = 2) -> int:
    """1 where some ranks must be folded away, else 0."""
    return int(prod(base_factors(size, radix)) < size)


def log_ceil(size: int, radix: int) -> int:
    return len(powers(radix, size))


Forms = tuple[Any, Any, Any]  # critical rounds, most sent, most reduced; None where there is no simple one

FORMS: dict[str, Callable[[int], Forms]] = {
    "allreduce/ring": lambda p: (2 * (p - 1), 2 * share(p), share(p)),
    "allreduce/circulant": lambda p: (2 * ceil_log2(p), 2 * share(p), share(p)),
    "allreduce/swing": lambda p: (2 * ceil_log2(p), 2 * share(p), share(p)),
    "allreduce/bine": lambda p: (2 * ceil_log2(p), 2 * share(p), share(p)),
    "allreduce/segmented_ring segments=2": lambda p: (4 * (p - 1), 2 * share(p), share(p)),
    "allreduce/recursive_doubling": lambda p: (
        floor_log2(p) + 2 * folds(p),
        floor_log2(p) + folds(p),
        floor_log2(p) + folds(p),
    ),
    "allreduce/recursive_halving_doubling": lambda p: (
        2 * floor_log2(p) + 2 * folds(p),
        2 * share(power_below(p)) + folds(p),
        share(power_below(p)) + folds(p),
    ),
    "allreduce/recursive_halving_doubling_far": lambda p: FORMS["allreduce/recursive_halving_doubling"](p),
    "allreduce/recursive_multiplying k=3": lambda p: (
        len(base_factors(p, 3)) + 2 * folds(p, 3),
        sum(f - 1 for f in base_factors(p, 3)) + folds(p, 3),
        sum(f - 1 for f in base_factors(p, 3)) + folds(p, 3),
    ),
    "allreduce/k_reduce_scatter_allgather k=4": lambda p: (
        2 * len(base_factors(p, 4)) + 2 * folds(p, 4),
        2 * share(prod(base_factors(p, 4))) + folds(p, 4),
        share(prod(base_factors(p, 4))) + folds(p, 4),
    ),
    "allreduce/allgather_reduce": lambda p: (min(1, p - 1), p - 1, p - 1),
    "allreduce/binomial_tree": lambda p: (2 * ceil_log2(p), ceil_log2(p), ceil_log2(p)),
    "allreduce/binomial_tree segments=3": lambda p: (4 * ceil_log2(p), ceil_log2(p), ceil_log2(p)),
    "allreduce/binary_tree": lambda p: (2 * floor_log2(p), None, min(2, p - 1)),
    "allreduce/binary_tree segments=5": lambda p: (
        2 * floor_log2(p) + 4 if p > 1 else 0,
        None,
        min(2, p - 1),
    ),
    "allreduce/circulant_pipelined segments=5": lambda p: (
        2 * (4 + ceil_log2(p)) if p > 1 else 0,
        None,
        None,
    ),
    "reduce_scatter/ring": lambda p: (p - 1, share(p), share(p)),
    "reduce_scatter/pairwise": lambda p: (p - 1, share(p), share(p)),
    "reduce_scatter/linear": lambda p: (min(1, p - 1), share(p), share(p)),
    "reduce_scatter/circulant": lambda p: (ceil_log2(p), share(p), share(p)),
    "reduce_scatter/swing": lambda p: (ceil_log2(p), share(p), share(p)),
    "reduce_scatter/bine": lambda p: (ceil_log2(p), share(p), share(p)),
    "reduce_scatter/recursive_halving": lambda p: (
        floor_log2(p) + 2 * folds(p),
        None if folds(p) else share(p),
        None if folds(p) else share(p),
    ),
    "reduce_scatter/recursive_halving_near": lambda p: FORMS["reduce_scatter/recursive_halving"](p),
    "reduce_scatter/recursive_doubling": lambda p: (
        floor_log2(p) + 2 * folds(p),
        None if folds(p) else floor_log2(p) - share(p),
        None if folds(p) else floor_log2(p) - share(p),
    ),
    "allgather/ring": lambda p: (p - 1, share(p), 0),
    "allgather/linear": lambda p: (min(1, p - 1), share(p), 0),
    "allgather/circulant": lambda p: (ceil_log2(p), share(p), 0),
    "allgather/bruck": lambda p: (ceil_log2(p), share(p), 0),
    "allgather/bruck k=3": lambda p: (log_ceil(p, 3), share(p), 0),
    "allgather/sparse_halving": lambda p: (ceil_log2(p), share(p), 0),
    "allgather/neighbor_exchange": lambda p: (p // 2, share(p), 0),
    "allgather/swing": lambda p: (ceil_log2(p), share(p), 0),
    "allgather/bine": lambda p: (ceil_log2(p), share(p), 0),
    "allgather/k_ring": lambda p: (p - 1, share(p), 0),
    "allgather/recursive_doubling": lambda p: (
        floor_log2(p) + 2 * folds(p),
        None if folds(p) else share(p),
        0,
    ),
    "bcast/linear": lambda p: (min(1, p - 1), p - 1, 0),
    "bcast/binomial": lambda p: (ceil_log2(p), ceil_log2(p), 0),
    "bcast/bine_tree": lambda p: (ceil_log2(p), ceil_log2(p), 0),
    "bcast/k_nomial k=3": lambda p: (log_ceil(p, 3), None, 0),
    "bcast/chain segments=4": lambda p: (p + 2 if p > 1 else 0, min(1, p - 1), 0),
    "bcast/binary_tree segments=4": lambda p: (floor_log2(p) + 3 if p > 1 else 0, min(2, p - 1), 0),
    "bcast/split_binary_tree segments=4": lambda p: (floor_log2(p) + 2 if p > 1 else 0, None, 0),
    "bcast/circulant_pipelined segments=4": lambda p: (
        3 + ceil_log2(p) if p > 1 else 0,
        1 + Fraction(ceil_log2(p) - 1, 4) if p > 1 else 0,
        0,
    ),
    "reduce/linear": lambda p: (p - 1, min(1, p - 1), p - 1),
    "reduce/binomial": lambda p: (ceil_log2(p), min(1, p - 1), ceil_log2(p)),
    "reduce/bine_tree": lambda p: (ceil_log2(p), min(1, p - 1), ceil_log2(p)),
    "reduce/k_nomial k=3": lambda p: (log_ceil(p, 3), min(1, p - 1), None),
    "reduce/chain segments=4": lambda p: (p + 2 if p > 1 else 0, min(1, p - 1), min(1, p - 1)),
    "reduce/circulant_pipelined segments=4": lambda p: (
        3 + ceil_log2(p) if p > 1 else 0,
        min(1, p - 1),
        1 + Fraction(ceil_log2(p) - 1, 4) if p > 1 else 0,
    ),
    "reduce/circulant": lambda p: (2 * ceil_log2(p), None, share(p)),
    "reduce/rabenseifner": lambda p: (
        2 * floor_log2(p) + folds(p),
        None,
        share(power_below(p)) + folds(p),
    ),
    "alltoall/pairwise": lambda p: (p - 1, share(p), 0),
    "alltoall/linear throttle=3": lambda p: (-(-(p - 1) // 3), share(p), 0),
    "alltoall/in_place": lambda p: (None, share(p), 0),
    "alltoall/bruck": lambda p: (ceil_log2(p), bruck_volume(p), 0),
    "alltoall/bruck k=4": lambda p: (log_ceil(p, 4), None, 0),
    "gather/binomial": lambda p: (ceil_log2(p), None, 0),
    "gather/linear": lambda p: (min(1, p - 1), Fraction(min(1, p - 1), p), 0),
    "scatter/binomial": lambda p: (ceil_log2(p), share(p), 0),
    "scatter/linear": lambda p: (min(1, p - 1), share(p), 0),
    "barrier/dissemination": lambda p: (ceil_log2(p), 0, 0),
    "barrier/dissemination k=3": lambda p: (log_ceil(p, 3), 0, 0),
}


def bruck_volume(size: int) -> Fraction:
    """Blocks sent in all rounds, of the `size` that a rank has."""
    blocks = sum((size >> (e + 1) << e) + max(0, size % (2 << e) - (1 << e)) for e in range(ceil_log2(size)))
    return Fraction(blocks, size)


def counted(case: str, size: int) -> Traffic | None:
    """Traffic of "collective/name parameter=value …", or None where it is not served."""
    name, *given = case.split()
    params = {key: int(value) for key, value in (text.split("=") for text in given)}
    if get(*name.split("/")).refusal(size, params) is not None:
        return None
    return traffic(name, size, params)


def check_closed_forms(case: str, size: int) -> None:
    counts = counted(case, size)
    if counts is None:
        return
    rounds, sent, reduced = FORMS[case](size)
    found = (counts.critical_rounds, counts.sent, counts.reduced)
    expected = tuple(
        actual if form is None else form for form, actual in zip((rounds, sent, reduced), found, strict=True)
    )
    assert found == expected, f"{case} P={size}"


@pytest.mark.parametrize("case", FORMS)
def test_closed_forms(case: str):
    for size in SOME_SIZES + LARGER_SIZES:
        check_closed_forms(case, size)


def test_every_flat_algorithm_with_a_closed_form_is_in_the_table():
    without = {"double_binary_tree", "scatter_allgather", "scatter_allgather_ring"}
    without |= {"two_level", "leader", "node_aware", "by_node"}
    listed = {case.split()[0] for case in FORMS}
    # The search tree of a reduce has the root's place in its height: see the test of its own.
    missing = {str(a) for a in algorithms() if a.name not in without} - listed - {"reduce/binary_tree"}
    assert missing == set()


@pytest.mark.parametrize("size", SOME_SIZES)
def test_volume_is_the_same_on_every_rank_of_symmetric_algorithms(size: int):
    for name in ("ring", "circulant", "swing", "bine"):
        if get("allreduce", name).refusal(size) is None:
            counts = traffic(f"allreduce/{name}", size)
            assert set(counts.sent_of) == set(counts.received_of) == {2 * share(size)}
            assert set(counts.reduced_of) == {share(size)}


@pytest.mark.parametrize("size", SOME_SIZES)
@pytest.mark.parametrize(
    "name", ["binomial_tree", "binary_tree", "double_binary_tree", "circulant_pipelined"]
)
def test_trees_move_the_vector_once_up_and_once_down_per_rank(name: str, size: int):
    assert traffic(f"allreduce/{name}", size, {"segments": 4}).total == 2 * (size - 1)


@pytest.mark.parametrize("size", [2, 3, 4, 7, 8, 16, 31])
def test_root_links_of_the_binary_tree_carry_two_vectors(size: int):
    """The seed table's third row: n up and n down on each link of the root, at most three vectors a rank."""
    counts = traffic("allreduce/binary_tree", size, {"segments": 4})
    root = size // 2
    links = len(search_tree(root, size, root).children)
    assert counts.sent_of[root] == counts.received_of[root] == links
    assert max(counts.sent_of) <= 3


@pytest.mark.parametrize("size", SOME_SIZES[1:])
def test_double_tree_halves_the_load_of_inner_nodes(size: int):
    counts = traffic("allreduce/double_binary_tree", size, {"segments": 8})
    assert counts.sent <= 2
    height = max(max(in_order_tree(r, size).depth, second_tree(r, size).depth) for r in range(size))
    assert counts.critical_rounds == 2 * height + 3


@pytest.mark.parametrize("size", SOME_SIZES[1:])
def test_search_tree_of_a_reduce_is_as_high_as_its_larger_half(size: int):
    for root in {0, size // 2, size - 1}:
        counts = traffic("reduce/binary_tree", size, {"root": root, "segments": 4})
        assert counts.critical_rounds == floor_log2(max(root, size - 1 - root)) + 4


@pytest.mark.parametrize("size", SOME_SIZES)
def test_broadcast_by_scatter_and_allgather_is_within_its_formula(size: int):
    counts = traffic("bcast/scatter_allgather", size)
    assert counts.critical_rounds <= 2 * ceil_log2(size)
    assert counts.sent <= 2 * share(size)
    ring = traffic("bcast/scatter_allgather_ring", size)
    assert ring.critical_rounds <= ceil_log2(size) + size - 1
    assert ring.sent <= 2 * share(size)


def test_near_first_exchanges_the_largest_messages_with_neighbours():
    def first_peer(name: str) -> tuple[int, int]:
        step = next(get("allreduce", name).schedule(0, 16))
        return step.sends[0].peer, window_count(step.sends[0].windows)

    assert first_peer("recursive_halving_doubling") == (1, 8)
    assert first_peer("recursive_halving_doubling_far") == (8, 8)


# -- over nodes --


@pytest.mark.parametrize(("nodes", "per_node"), [(4, 8), (2, 2), (8, 4), (3, 5)])
def test_two_level_allreduce_is_the_sum_of_its_parts(nodes: int, per_node: int):
    size = nodes * per_node
    node_of = tuple(rank // per_node for rank in range(size))
    counts = traffic("allreduce/two_level", size, {"nodes": node_of})
    assert counts.critical_rounds == 2 * ceil_log2(per_node) + 2 * ceil_log2(nodes)
    assert set(counts.sent_of) == {2 * share(per_node) + 2 * share(nodes) / per_node}
    assert set(counts.reduced_of) == {share(size)}


@pytest.mark.parametrize(("nodes", "per_node"), [(4, 8), (2, 2), (8, 4), (3, 5)])
def test_node_aware_all_to_all(nodes: int, per_node: int):
    size = nodes * per_node
    node_of = tuple(rank % nodes for rank in range(size))
    counts = traffic("alltoall/node_aware", size, {"nodes": node_of})
    assert counts.critical_rounds == (per_node - 1) + (nodes - 1)
    assert set(counts.sent_of) == {Fraction((per_node - 1) * nodes + (nodes - 1) * per_node, size)}


OVER_NODES = [p for p in ALL if p.values[0].hierarchical]


@pytest.mark.parametrize("algorithm", [p for p in OVER_NODES if p.values[0].name != "by_node"])
def test_only_the_outer_part_leaves_the_nodes(algorithm: Algorithm):
    """In messages between nodes each of 4 ranks speaks (two_level, node_aware), or only one (leader)."""
    nodes = tuple(rank // 4 for rank in range(12))
    speakers = {
        rank
        for rank in range(12)
        for step in algorithm.schedule(rank, 12, {"nodes": nodes})
        for message in step.sends
        if nodes[message.peer] != nodes[rank]
    }
    places = {rank % 4 for rank in speakers}
    if algorithm.name == "leader":
        assert places == {0}
    elif algorithm.collective.name == "bcast":
        assert places == {0, 1, 2, 3}
    else:
        assert len(speakers) >= 8


@pytest.mark.parametrize(
    "nodes", [(0, 0, 1, 1, 1, 2), (5, 1, 5, 1, 1, 5), (2, 2, 2, 2, 2, 0), (1, 0, 2, 0, 1, 2)]
)
def test_inner_algorithms_with_many_blocks_fit_any_node_map(nodes: tuple[int, ...]):
    for inter in ("ring", "recursive_halving_doubling", "circulant", "segmented_ring", "double_binary_tree"):
        verify("allreduce/leader", 6, {"nodes": nodes, "inter": inter, "intra": "double_binary_tree"})
        verify("allreduce/two_level", 6, {"nodes": nodes, "inter": inter, "intra": "ring"})


def between_nodes(name: str, nodes: Sequence[int], count: int, **params: Any) -> list[list[int]]:
    """Bytes from each node to each, for parts of `count` bytes."""
    found = [[0] * (max(nodes) + 1) for _ in range(max(nodes) + 1)]
    for source, row in zip(
        nodes, peer_bytes(name, len(nodes), count, 1, {"nodes": nodes, **params}), strict=True
    ):
        for target, sent in zip(nodes, row, strict=True):
            found[source][target] += sent * (source != target)
    return found


@pytest.mark.parametrize(
    "nodes", [(0, 0, 1, 1, 2, 2, 3, 3), (0, 1, 2, 3, 0, 1, 2, 3), (3, 0, 1, 1, 2, 3, 0, 2)]
)
def test_what_leaves_a_node_does_not_depend_on_its_ranks(nodes: tuple[int, ...]):
    """2(N−1)/N·n: the least for an all-reduce of N nodes, however many ranks are in them and wherever."""
    for name in ("leader", "two_level"):
        for inter in ("ring", "circulant", "recursive_halving_doubling"):
            crossing = between_nodes(f"allreduce/{name}", nodes, 1600, inter=inter)
            assert [sum(row) for row in crossing] == [2 * 3 * 1600 // 4] * 4
    assert sum(between_nodes("alltoall/node_aware", nodes, 10)[0]) == 2 * 6 * 10
    assert sum(between_nodes("allgather/two_level", nodes, 10)[0]) == 2 * 3 * 10


@pytest.mark.parametrize("leaders", [1, 2, 3, 4])
def test_each_of_several_leaders_speaks_for_its_shard(leaders: int):
    nodes = tuple(rank % 3 for rank in range(12))
    counts = between_nodes("allreduce/leader", nodes, 1200, leaders=leaders, inter="ring")
    assert [sum(row) for row in counts] == [2 * 2 * 1200 // 3] * 3
    speakers = {
        rank
        for rank in range(12)
        for step in get("allreduce", "leader").schedule(rank, 12, {"nodes": nodes, "leaders": leaders})
        if any(nodes[m.peer] != nodes[rank] for m in step.sends)
    }
    assert len(speakers) == 3 * leaders


@pytest.mark.parametrize("kind", ["allreduce", "allgather", "reduce_scatter"])
def test_a_ring_by_node_crosses_each_link_once(kind: str):
    cyclic = (0, 1, 2, 3, 0, 1, 2, 3)
    flat = [[0] * 4 for _ in range(4)]
    for rank, row in enumerate(peer_bytes(f"{kind}/ring", 8, 800, 1)):
        flat[cyclic[rank]][cyclic[(rank + 1) % 8]] += sum(row)
    by_node = between_nodes(f"{kind}/by_node", cyclic, 800)
    for node, row in enumerate(by_node):
        assert row[(node + 1) % 4] == sum(row) == sum(flat[node]) // 2
    for flat_name in ("circulant", "swing"):
        verify(f"{kind}/by_node", 8, {"nodes": cyclic, "flat": flat_name})


def test_near_partners_are_of_the_same_node_where_ranks_are_taken_by_node():
    """Halving by near partners then sends over links what any all-reduce must: half of what it did."""
    nodes = (0, 1, 2, 3, 0, 1, 2, 3)
    flat = peer_bytes("allreduce/recursive_halving_doubling", 8, 800, 1)
    crossing = sum(sent for r, row in enumerate(flat) for d, sent in enumerate(row) if nodes[r] != nodes[d])
    by_node = between_nodes("allreduce/by_node", nodes, 800, flat="recursive_halving_doubling")
    assert 2 * sum(map(sum, by_node)) == crossing == 8 * 1200


@pytest.mark.parametrize("nodes", [(0, 0, 0, 1), (0, 1, 0, 0), (2, 0, 1, 1, 0, 1, 2, 1, 1)])
def test_unequal_nodes_send_each_part_over_a_link_once(nodes: tuple[int, ...]):
    size, number = len(nodes), max(nodes) + 1
    of = [nodes.count(node) for node in range(number)]
    crossing = between_nodes("alltoall/node_aware", nodes, 10)
    assert crossing == [[10 * of[s] * of[d] * (s != d) for d in range(number)] for s in range(number)]
    gathered = between_nodes("allgather/two_level", nodes, 10, inter="linear")
    assert gathered == [[10 * of[s] * (s != d) for d in range(number)] for s in range(number)]
    scattered = between_nodes("reduce_scatter/two_level", nodes, 10, inter="linear")
    assert scattered == [[10 * of[d] * (s != d) for d in range(number)] for s in range(number)]
    for name in ("alltoall/node_aware", "allgather/two_level", "reduce_scatter/two_level"):
        verify(name, size, {"nodes": nodes})


@pytest.mark.parametrize("algorithm", OVER_NODES)
def test_rounds_say_which_stage_they_are(algorithm: Algorithm):
    nodes = (0, 0, 0, 1, 1, 2, 2, 2)
    for rank, node in enumerate(nodes):
        for step in algorithm.schedule(rank, 8, {"nodes": nodes}):
            places = {nodes[m.peer] == node for m in (*step.sends, *step.recvs)}
            where = {"intra": {True}, "hand": {True}, "inter": {False}}.get(step.stage.split()[0])
            assert where in (places, None)
            assert step.stage
            assert where is not None or algorithm.name == "by_node"


def test_blocks_of_a_composition_stay_few():
    """Inner algorithms of 3, 5, 7 and 11 ranks would need 1155 blocks to be cut without remainder."""
    nodes = tuple(node for node, ranks in enumerate((3, 5, 7, 11)) for _ in range(ranks))
    params = {"nodes": nodes, "intra": "circulant", "inter": "circulant"}
    leader = get("reduce", "leader")
    assert leader.blocks(26, params) == 8 * 11
    verify(leader, 26, params)


# -- refusals and defaults --


@pytest.mark.parametrize("name", ["allreduce/swing", "allreduce/bine", "allgather/neighbor_exchange"])
def test_odd_sizes_are_refused_with_the_reason(name: str):
    with pytest.raises(Unsupported, match=f"{name} with P=7: .*P must be even"):
        get(*name.split("/")).schedule(0, 7)


def test_bine_tree_refuses_other_than_powers_of_two():
    with pytest.raises(Unsupported, match="power of two"):
        get("bcast", "bine_tree").schedule(0, 6)


@pytest.mark.parametrize(
    ("name", "params", "reason"),
    [
        ("allreduce/binary_tree", {"segments": 0}, "segments must be a whole number of at least 1, not 0"),
        ("bcast/chain", {"segments": 1.5}, "segments must be a whole number of at least 1, not 1.5"),
        ("allgather/bruck", {"k": 1}, "k must be a whole number of at least 2, not 1"),
        ("allgather/k_ring", {"group": 4}, "group=4 must divide P"),
        ("alltoall/linear", {"throttle": 0}, "throttle must be"),
        ("allreduce/leader", {}, "it needs a node map"),
        ("allreduce/leader", {"nodes": (0, 0)}, "2 entries for 6 ranks"),
        ("allreduce/leader", {"nodes": (0, 1, 2, 2, 2, 2), "inter": "swing"}, "allreduce/swing of 3 ranks"),
        (
            "allreduce/leader",
            {"nodes": (0, 0, 1, 1, 1, 1), "leaders": 3},
            "leaders must be 1 to 2, the ranks of",
        ),
        (
            "allreduce/leader",
            {"nodes": (0, 0, 1, 1, 1, 1), "leaders": 0},
            "leaders must be 1 to 2, the ranks of",
        ),
        ("allreduce/by_node", {"nodes": (0, 0, 1, 1, 1, 1), "flat": "leader"}, "it needs a node map"),
    ],
)
def test_what_cannot_be_served_is_refused_with_the_reason(name: str, params: dict[str, Any], reason: str):
    with pytest.raises(Unsupported) as caught:
        get(*name.split("/")).schedule(0, 6, params)
    assert reason in str(caught.value)


def test_unknown_inner_algorithm_names_those_that_exist():
    params = {"nodes": (0, 0, 1, 1), "inter": "fastest"}
    with pytest.raises(ArgumentError, match=r"no algorithm 'fastest'; it has: .*ring"):
        get("allreduce", "leader").schedule(0, 4, params)


def test_a_composition_does_not_nest_compositions_without_a_map():
    params = {"nodes": (0, 0, 1, 1), "inter": "leader"}
    assert "needs a node map" in (get("allreduce", "leader").refusal(4, params) or "")


@pytest.mark.parametrize("group", [1, 2, 3, 4, 6, 12])
def test_k_ring_with_any_group(group: int):
    verify("allgather/k_ring", 12, {"group": group})


@pytest.mark.parametrize("algorithm", ALL)
def test_tuned_defaults_are_served(algorithm: Algorithm):
    for size, nbytes in product((1, 2, 3, 8), (0, 1, 4096, 1 << 20, 1 << 33)):
        params = dict(algorithm.resolve(size, None, nbytes))
        if algorithm.hierarchical:
            params["nodes"] = (0,) * size
        refusal = algorithm.refusal(size, params)
        assert refusal is None or "segments" not in refusal
        for parameter in algorithm.tune:
            names = {a.name for a in algorithms(algorithm.collective.name) if not a.hierarchical}
            assert isinstance(params[parameter], int) or params[parameter] in names


@pytest.mark.parametrize("algorithm", [p for p in ALL if "segments" in p.values[0].tune])
def test_longer_vectors_get_more_segments(algorithm: Algorithm):
    few, many = (algorithm.resolve(8, None, nbytes)["segments"] for nbytes in (64, 1 << 30))
    assert few <= 2 < many <= 2048


# -- the catalogue as a whole --


def test_every_module_is_registered_on_import():
    package = mpicoll.algorithms
    names = {module.name for module in pkgutil.iter_modules(package.__path__)}
    registered = {inspect.unwrap(a.generate).__module__.rpartition(".")[2] for a in algorithms()}
    helpers = {"common", "compose", "nodes", "patterns", "trees", "tuning"}
    assert names == registered | helpers


@pytest.mark.parametrize("algorithm", ALL)
def test_docstring_says_what_a_reader_wants_to_know(algorithm: Algorithm):
    text = inspect.getdoc(algorithm.generate) or ""
    assert algorithm.summary.endswith(".")
    assert "Works for" in text
    assert "ounds" in text
    assert "ytes per rank" in text
    assert "\nReference: " in text
    if algorithm.collective.reduces:
        assert ("\nOrdered: " in text) == algorithm.ordered
        assert ("\nNot ordered: " in text) != algorithm.ordered


def test_names_that_the_project_promises():
    promised = {
        "allreduce": "ring recursive_doubling recursive_halving_doubling binary_tree binomial_tree circulant "
        "recursive_multiplying leader two_level swing bine double_binary_tree segmented_ring "
        "circulant_pipelined allgather_reduce k_reduce_scatter_allgather",
        "reduce_scatter": "ring recursive_halving circulant pairwise recursive_doubling swing bine",
        "allgather": "ring recursive_doubling bruck circulant neighbor_exchange sparse_halving k_ring linear",
        "bcast": "binomial k_nomial binary_tree chain double_binary_tree scatter_allgather "
        "scatter_allgather_ring circulant_pipelined bine_tree linear split_binary_tree",
        "reduce": "binomial k_nomial binary_tree chain double_binary_tree rabenseifner circulant "
        "circulant_pipelined bine_tree linear",
        "alltoall": "linear pairwise bruck node_aware in_place",
        "gather": "binomial linear",
        "scatter": "binomial linear",
        "barrier": "dissemination",
    }
    for collective, names in promised.items():
        assert set(names.split()) <= {a.name for a in algorithms(collective)}
    for collective in promised:
        assert any(a.hierarchical for a in algorithms(collective)), collective
