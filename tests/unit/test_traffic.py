"""Counts off the schedules reproduce the seed table and the closed forms, for every P up to 64."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import pytest

import mpicoll.algorithms  # noqa: F401  (importing registers them)
from mpicoll.cases import cases
from mpicoll.collectives import collective
from mpicoll.partition import offsets
from mpicoll.registry import Algorithm, algorithms
from mpicoll.schedule import Recv, Round, Send, Side, Window, exchange, recv, send
from mpicoll.traffic import block_lengths, critical_rounds, peer_bytes, traffic, traffic_of

W = Window(0)


@pytest.mark.parametrize("size", range(1, 65))
def test_ring_is_the_seed_tables_first_row(size: int):
    counts = traffic("allreduce/ring", size)
    share = Fraction(size - 1, size)
    assert counts.rounds == counts.critical_rounds == 2 * (size - 1)
    assert set(counts.sent_of) == set(counts.received_of) == {2 * share}
    assert set(counts.reduced_of) == {share}
    assert counts.messages == 2 * (size - 1) * size


@pytest.mark.parametrize("size", range(1, 65))
def test_recursive_halving_doubling_is_the_second_row(size: int):
    counts = traffic("allreduce/recursive_halving_doubling", size)
    base = 1 << (size.bit_length() - 1)
    rounds, share = 2 * (base.bit_length() - 1), Fraction(base - 1, base)
    if size == base:
        assert counts.rounds == counts.critical_rounds == rounds
        assert set(counts.sent_of) == set(counts.received_of) == {2 * share}
        assert set(counts.reduced_of) == {share}
        return
    # The fold: an extra sends its vector and gets the result; its proxy does so in addition to its own part.
    extras = size - base
    assert counts.rounds == counts.critical_rounds == rounds + 2
    assert sorted(counts.sent_of) == sorted(
        [Fraction(1)] * extras + [2 * share + 1] * extras + [2 * share] * (base - extras)
    )
    assert counts.reduced == share + 1


@pytest.mark.parametrize("size", range(1, 65))
@pytest.mark.parametrize(("name", "children"), [("binary_tree", 2), ("binomial_tree", 6)])
def test_trees_are_the_third_row(name: str, children: int, size: int):
    """A reduction up and a broadcast down a tree, unsegmented: every link carries n up and n down.

    So at the root of a binary tree, 2n cross each of its (at most two) links, and 4n go through it. The
    last leaf has waited for twice the height: ⌊log2 P⌋ of our balanced in-order binary tree, ⌈log2 P⌉ of
    the binomial tree.
    """
    counts = traffic(f"allreduce/{name}", size, {"segments": 1})
    height = size.bit_length() - 1 if name == "binary_tree" else (size - 1).bit_length()
    assert counts.critical_rounds == 2 * height
    matrix = peer_bytes(f"allreduce/{name}", size, 10, 1, {"segments": 1})
    links = [(a, b) for a in range(size) for b in range(a) if matrix[a][b] or matrix[b][a]]
    assert len(links) == size - 1
    assert all(matrix[a][b] == matrix[b][a] == 10 for a, b in links)
    assert counts.sent <= children + 1
    assert counts.total == 2 * (size - 1)


@pytest.mark.parametrize("algorithm", [pytest.param(a, id=str(a)) for a in algorithms()])
@pytest.mark.parametrize("size", [2, 3, 4, 7, 8])
def test_what_is_sent_is_received(algorithm: Algorithm, size: int):
    for params in list(cases(algorithm, size))[:4]:
        counts = traffic(algorithm, size, params)
        assert sum(counts.sent_of) == sum(counts.received_of) == counts.total
        assert counts.critical_rounds >= 1
        assert counts.rounds == max(counts.rounds_of)
        matrix = peer_bytes(algorithm, size, 60 * size, 8, params)
        assert all(matrix[rank][rank] == 0 for rank in range(size))


def test_lengths_are_exact_for_uneven_counts():
    """Each rank's bytes, from the definition: every block but one in each phase of a ring."""
    size, count, itemsize = 5, 13, 8
    cut = offsets(count, size)
    lengths = [b - a for a, b in pairwise(cut)]
    matrix = peer_bytes("allreduce/ring", size, count, itemsize)
    for rank, row in enumerate(matrix):
        # the reduce-scatter never sends block `rank`, the all-gather never block `rank + 1`
        expected = 2 * count - lengths[rank] - lengths[(rank + 1) % size]
        assert row == [expected * itemsize if peer == (rank + 1) % size else 0 for peer in range(size)]


def test_empty_blocks_cost_nothing():
    assert sum(map(sum, peer_bytes("allreduce/ring", 8, 0, 4))) == 0
    assert sum(map(sum, peer_bytes("allreduce/ring", 8, 1, 4))) == 2 * 7 * 4


def test_offsets_beyond_32_bits_are_exact():
    count = 2**33 + 1
    assert sum(block_lengths(collective("allreduce"), 3, 7, count)) == count
    assert sum(map(sum, peer_bytes("allreduce/ring", 2, count, 8))) == 2 * count * 8


def test_all_to_all_counts_what_one_rank_has():
    """n is one rank's data: a block for each peer is 1/P of it."""
    size = 3
    rounds = [
        [
            Round(
                tuple(Send(peer, (Window(rank * size + peer),)) for peer in range(size) if peer != rank),
                tuple(Recv(peer, (Window(peer * size + rank),)) for peer in range(size) if peer != rank),
            )
        ]
        for rank in range(size)
    ]
    assert traffic_of(rounds, size * size, unit=size).sent == Fraction(2, 3)


def test_idle_rounds_are_not_counted():
    rounds = [[Round(), send(1, W), Round()], [Round(), recv(0, W)]]
    counts = traffic_of(rounds, 1)
    assert (counts.rounds, counts.rounds_of, counts.critical_rounds) == (1, (1, 1), 1)


def test_critical_rounds_follow_the_chain_through_ranks():
    """A chain of four: each rank has at most two rounds, the last one waits for three."""
    chain = [
        [send(1, W)],
        [recv(0, W), send(2, W)],
        [recv(1, W), send(3, W)],
        [recv(2, W)],
    ]
    counts = traffic_of(chain, 1)
    assert (counts.rounds, counts.critical_rounds) == (2, 3)


def test_critical_rounds_of_a_flat_tree_are_the_roots():
    """One receive after another: the root's own rounds are the chain."""
    flat = [[recv(peer, W, side=Side.RIGHT) for peer in (1, 2, 3)], *([send(0, W)] for _ in range(3))]
    assert critical_rounds(flat, 1) == 3
    at_once = [[Round(recvs=tuple(Recv(p, (W,), Side.RIGHT) for p in (1, 2, 3)))], *flat[1:]]
    assert critical_rounds(at_once, 1) == 1


def test_receives_in_flight_together_take_one_round():
    both = [[exchange(1, (W,), (W,), Side.RIGHT)], [exchange(0, (W,), (W,), Side.LEFT)]]
    counts = traffic_of(both, 1)
    assert (counts.critical_rounds, counts.sent, counts.reduced, counts.total) == (1, 1, 1, 2)
