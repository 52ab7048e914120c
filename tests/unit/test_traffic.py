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
