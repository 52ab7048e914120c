"""The verifier accepts right schedules, and refuses wrong ones for the right reason."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest

import mpicoll.algorithms  # noqa: F401  (importing registers them)
from mpicoll.cases import cases, node_maps
from mpicoll.collectives import collective
from mpicoll.errors import ArgumentError, ScheduleError, Unsupported
from mpicoll.mutants import messages, mutants, refuse_mutants
from mpicoll.registry import Algorithm, algorithms
from mpicoll.schedule import Recv, Round, Schedule, Send, Side, Window, exchange, recv, send
from mpicoll.verify import verify, verify_schedules

LEFT, RIGHT = Side.LEFT, Side.RIGHT
B0, B1, BOTH = (Window(0),), (Window(1),), (Window(0, 2),)
ALGORITHMS = [pytest.param(a, id=str(a)) for a in algorithms()]


def refused(kind: str, rounds: list, message: str, blocks: int = 1, **more: object) -> None:
    """Assert that a schedule is refused with `message` in the error."""
    with pytest.raises(ScheduleError, match=re.escape(message)):
        verify_schedules(kind, rounds, blocks, **more)


# -- right by hand -------------------------------------------------------------------------------------


def test_exchange_of_two_ranks_is_proved_and_ordered():
    proof = verify_schedules("allreduce", [[exchange(1, B0, B0, RIGHT)], [exchange(0, B0, B0, LEFT)]], 1)
    assert (proof.rounds, proof.messages, proof.blocks_moved, proof.expressions) == (1, 2, 2, 1)
    assert proof.ordered


def test_one_rank_needs_no_round():
    for kind in ("allreduce", "allgather", "bcast", "alltoall", "barrier", "reduce_scatter"):
        assert verify_schedules(kind, [[]], 1).rounds == 0


def test_left_fold_of_several_receives_is_in_the_stated_order():
    ends = [[send(2, Window(0))], [send(2, Window(0))], None, [send(2, Window(0))], [send(2, Window(0))]]
    ends[2] = [Round(recvs=tuple(Recv(p, B0, LEFT if p < 2 else RIGHT) for p in (0, 1, 3, 4)))]
    assert verify_schedules("reduce", ends, 1, root=2, ordered=True).ordered
    ends[2] = [Round(recvs=tuple(Recv(p, B0, LEFT if p < 2 else RIGHT) for p in (1, 0, 3, 4)))]
    assert not verify_schedules("reduce", ends, 1, root=2).ordered
    refused("reduce", ends, "puts rank 1 left of rank 0", root=2, ordered=True)


def test_fold_may_list_right_before_left():
    """Sides decide, not the place in the list: lefts, mine, rights."""
    middle = [Round(recvs=(Recv(2, B0, RIGHT), Recv(0, B0, LEFT)))]
    rounds = [[send(1, Window(0))], middle, [send(1, Window(0))]]
    assert verify_schedules("reduce", rounds, 1, root=1, ordered=True).ordered


def test_windows_wrap_around_the_end():
    """Blocks 3 and 0 as one circular window, named the other way at the receiver."""
    rounds = [
        [send(1, Window(3, 2), Window(1, 2))],
        [recv(0, Window(3), Window(0), Window(1, 2))],
    ]
    assert verify_schedules("bcast", rounds, 4).blocks_moved == 4


def test_kth_send_meets_kth_receive_across_rounds():
    """The two messages from 0 to 1 are sent in one round and received in two."""
    rounds = [
        [Round(sends=(Send(1, B0), Send(1, B1)))],
        [recv(0, Window(0)), recv(0, Window(1))],
    ]
    assert verify_schedules("bcast", rounds, 2).rounds == 2


def test_schedules_may_be_generators():
    def ends(rank: int) -> Schedule:
        yield exchange(1 - rank, B0, B0, LEFT if rank else RIGHT)

    assert verify_schedules("allreduce", [ends(0), ends(1)], 1).messages == 2


def test_reading_a_send_before_the_round_is_what_a_rank_had():
    """Both swap a block in one round (copy of another block than the sent one): no overlap, right data."""
    rounds = [[exchange(1, B0, B1)], [exchange(0, B1, B0)]]
    assert verify_schedules("allgather", rounds, 2).rounds == 1


def test_barrier_of_three_by_dissemination():
    rounds = [[exchange((r + d) % 3, (), (), source=(r - d) % 3) for d in (1, 2)] for r in range(3)]
    assert verify_schedules("barrier", rounds, 1).messages == 6


# -- wrong by hand -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["allreduce", "allgather", "bcast", "reduce", "reduce_scatter", "alltoall"])
@pytest.mark.parametrize("size", [2, 3, 5])
def test_empty_schedule_does_nothing(kind: str, size: int):
    with pytest.raises(ScheduleError, match=r"lacks the contribution|holds nothing"):
        verify_schedules(kind, [[] for _ in range(size)], size * size)


def test_empty_barrier_synchronises_nobody():
    refused("barrier", [[], [], []], "rank 0 leaves the barrier without knowing that ranks 1..2 began")


def test_barrier_through_rank_0_without_the_way_back_is_refused():
    rounds = [[Round(recvs=(Recv(1, ()), Recv(2, ())))], [send(0)], [send(0)]]
    refused("barrier", rounds, "rank 1 leaves the barrier without knowing that ranks 0, 2 began")


def test_barrier_carries_no_data():
    refused("barrier", [[send(1, Window(0))], [recv(0, Window(0))]], "a barrier has none, only tokens")


def test_different_expressions_are_refused_although_contributors_are_equal():
    """x⊕y and y⊕x: complete on both ranks, yet not bitwise equal for every operation."""
    rounds = [[exchange(1, B0, B0, LEFT)], [exchange(0, B0, B0, LEFT)]]
    refused("allreduce", rounds, "ranks 0 and 1 evaluate different expressions for block 0")


def test_different_bracketing_is_refused_although_the_order_is_equal():
    """Rank 0 folds (0⊕1)⊕2 and hands it to rank 1; rank 2 evaluates 0⊕(1⊕2)."""
    rounds = [
        [Round((Send(2, B0),), (Recv(1, B0, RIGHT), Recv(2, B0, RIGHT))), send(1, *B0)],
        [Round((Send(0, B0), Send(2, B0))), recv(0, *B0)],
        [exchange(0, B0, B0, LEFT, source=1), recv(0, *B0, side=LEFT)],
    ]
    message = "different expressions for block 0, so their results may differ in the last bit: "
    refused("allreduce", rounds, message + "((0⊕1)⊕2) and (0⊕(1⊕2))", ordered=True)
    rounds[2] = [Round((Send(0, B0),), (Recv(0, B0, LEFT), Recv(1, B0, LEFT)))]
    assert verify_schedules("allreduce", rounds, 1, ordered=True).expressions == 2


def test_counting_twice_is_refused():
    twice = [[exchange(1, B0, B0, RIGHT)] * 2, [exchange(0, B0, B0, LEFT)] * 2]
    refused("allreduce", twice, "counts the contribution of ranks 0..1 twice")


def test_sends_facing_each_other_deadlock():
    rounds = [
        [send(1, Window(0)), recv(1, Window(0), side=RIGHT)],
        [send(0, Window(0)), recv(0, Window(0), side=LEFT)],
    ]
    refused(
        "allreduce",
        rounds,
        "deadlock, each waits for the next: rank 0 in round 0 sends block 0 to rank 1; "
        "rank 1 in round 0 sends block 0 to rank 0",
    )


def test_cyclic_wait_names_the_cycle_and_not_who_waits_on_it():
    around = [[recv((r - 1) % 3, Window(0)), send((r + 1) % 3, Window(0))] for r in range(3)]
    rounds = [*around, [recv(0, Window(0))]]
    rounds[0].append(send(3, Window(0)))
    refused("bcast", rounds, "rank 0 in round 0 awaits block 0 from rank 2; rank 2 in round 0 awaits", root=3)
    with pytest.raises(ScheduleError) as caught:
        verify_schedules("bcast", rounds, 1, root=3)
    assert "rank 3" not in str(caught.value)


def test_sends_need_a_posted_receive_even_if_one_comes_later():
    """Rank 0 sends to 1 then 2; rank 2 hears of it only through 1, which waits for 2 first."""
    rounds = [
        [send(1, Window(0)), send(2, Window(0))],
        [recv(2, Window(0)), recv(0, Window(0))],
        [recv(0, Window(0)), send(1, Window(0))],
    ]
    refused("bcast", rounds, "deadlock")


def test_message_that_nobody_receives_is_named():
    refused("bcast", [[send(1, *B0)], []], "sends block 0 to rank 1, which has ended after 0 rounds")
    late = [[send(1, *B0)], [recv(0, *B0), recv(0, *B0)]]
    refused("bcast", late, "rank 1, round 1: it awaits block 0 from rank 0, which has ended after 1 rounds")


def test_copy_overlapping_a_send_of_its_round_is_refused():
    rounds = [[exchange(1, B0, B0)], [exchange(0, B0, B0, LEFT)]]
    refused("allreduce", rounds, "rank 0, round 0: the copy of block 0 from rank 1 overlaps what is sent to")


@pytest.mark.parametrize("side", [None, LEFT])
def test_copy_overlapping_another_receive_of_its_round_is_refused(side: Side | None):
    two = [Round(recvs=(Recv(0, BOTH), Recv(1, B1, side)))]
    rounds = [[send(2, Window(0, 2))], [send(2, Window(1))], two]
    message = "rank 2, round 0: the copy of block 1 from rank 0 overlaps what is received from rank 1"
    refused("allreduce", rounds, message, blocks=2)


def test_same_receive_object_listed_twice_is_an_overlap():
    """Schedules may reuse message objects: being the same object is not being the same message."""
    into = Recv(0, B0)
    rounds = [[Round((Send(1, B0), Send(1, B0)))], [Round(recvs=(into, into))]]
    refused("bcast", rounds, "overlaps what is received from rank 0")


def test_sending_a_block_not_held_is_refused():
    refused(
        "bcast", [[recv(1, *B0)], [send(0, *B0)]], "rank 1, round 0: it sends block 0 to rank 0, which it"
    )


def test_combining_is_refused_where_nothing_is_reduced():
    rounds = [[send(1, *B0), recv(1, *B1)], [recv(0, *B0, side=LEFT), send(0, *B1)]]
    refused(
        "allgather", rounds, "rank 1, round 0: it combines block 0 from rank 0, but all-gather reduces", 2
    )


def test_combining_with_a_block_not_held_is_refused():
    """In a collective of which only rank 0 holds anything at the beginning."""
    kind = replace(collective("reduce"), before=lambda rank, size, root: range(rank == 0))
    rounds = [[send(1, *B0)], [recv(0, *B0, side=LEFT)]]
    with pytest.raises(
        ScheduleError, match="combines block 0 from rank 0 with its own block, which it does not"
    ):
        verify_schedules(kind, rounds, 1)


def test_ends_must_name_the_same_blocks():
    message = "it expects block 1 from rank 0, which in its round 0 sends block 0"
    refused("bcast", [[send(1, *B0)], [recv(0, *B1)]], message, blocks=2)
    message = "it expects blocks 0..1 from rank 0, which in its round 0 sends block 0"
    refused("bcast", [[send(1, *B0)], [recv(0, *BOTH)]], message, blocks=2)


def test_order_of_blocks_within_a_message_counts():
    rounds = [[send(1, *BOTH)], [recv(0, Window(1), Window(0))]]
    refused("bcast", rounds, "expects blocks 1, 0 from rank 0", blocks=2)


def test_one_message_may_not_name_a_block_twice():
    refused("bcast", [[send(1, *BOTH, *B1)], []], "one message carries block 1 more than once", blocks=2)


def test_empty_window_is_not_a_token():
    refused("bcast", [[send(1, Window(0, 0))], [recv(0, Window(0, 0))]], "an empty window")


@pytest.mark.parametrize(
    ("peer", "message"),
    [
        (0, "rank 0, round 0: it sends to itself"),
        (2, "which is not in 0..1"),
        (-1, "rank -1, which is not in 0..1"),
    ],
)
def test_peers_are_other_ranks(peer: int, message: str):
    refused("bcast", [[send(peer, *B0)], [recv(0, *B0)]], message)


def test_result_must_be_the_origins_data():
    rounds = [[send(1, *B0), recv(1, *B1)], [recv(0, *B0), send(0, *B1)]]
    assert verify_schedules("allgather", rounds, 2).rounds == 2
    message = "at the end rank 0 holds nothing in block 1, and not rank 1's"
    refused("allgather", [rounds[0][:1], rounds[1][:1]], message, blocks=2)
    late = [[send(1, *B0)], [recv(0, *B0)]]
    refused("reduce", late, "at the end block 0 of rank 1 lacks the contribution of rank 1", root=1)


def test_blocks_must_cut_the_parts_equally():
    refused("allgather", [[], []], "3 blocks cannot cut 2 parts equally", blocks=3)
    refused("allgather", [[], []], "0 blocks cannot cut 2 parts equally", blocks=0)


@pytest.mark.parametrize("busy", [False, True])
def test_endless_schedule_is_refused(busy: bool):
    def forever(rank: int) -> Iterator[Round]:
        mine, theirs = (B0, B1) if rank == 0 else (B1, B0)
        while True:
            yield exchange(1 - rank, mine, theirs) if busy else Round()

    refused("allgather", [forever(0), forever(1)], "does not end", blocks=2)


def test_reading_by_name_and_unknown_names():
    assert str(verify("allreduce/ring", 3)) == "allreduce/ring P=3"
    with pytest.raises(ArgumentError, match=r"it has: .*ring"):
        verify("allreduce/nonsense", 3)


# -- the registered algorithms ----------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("size", [1, 2, 5, 8])
def test_algorithm_is_proved_in_some_cases(algorithm: Algorithm, size: int):
    """At few ranks; `make test-proof` does it in every case, up to 64 ranks, with mutants."""
    chosen = list(cases(algorithm, size))[:12]
    for params in chosen:
        assert verify(algorithm, size, params).size == size
    if not chosen:
        params = {"nodes": node_maps(size)[0]} if algorithm.hierarchical else {}
        with pytest.raises(Unsupported):
            verify(algorithm, size, params)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_mutant_is_refused(algorithm: Algorithm):
    made = 0
    for size in (4, 5):
        for params in list(cases(algorithm, size))[:1]:
            made += refuse_mutants(algorithm, size, params)
    assert made > 5


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("size", [1, 4, 5])
def test_array_state_proves_the_same(algorithm: Algorithm, size: int, monkeypatch: pytest.MonkeyPatch):
    """What `verify_large` finds at thousands of ranks, found at few: as the other, and mutants refused."""
    for params in list(cases(algorithm, size))[:3]:
        monkeypatch.setattr("mpicoll.verify.LARGE", 1 << 19)
        exact = verify(algorithm, size, params)
        monkeypatch.setattr("mpicoll.verify.LARGE", 0)
        expressions = exact.expressions if algorithm.collective.name == "barrier" else None
        assert verify(algorithm, size, params) == replace(exact, expressions=expressions)
    if size == 5 and algorithm.refusal(size, params := next(cases(algorithm, size), {})) is None:
        assert refuse_mutants(algorithm, size, params) > 5


@pytest.mark.parametrize("algorithm", [a for a in algorithms() if a.ordered], ids=str)
def test_ordered_algorithm_has_a_side_mutant(algorithm: Algorithm):
    """The mutants of an ordered algorithm include a swapped side, which only the order can refuse."""
    params = next(cases(algorithm, 4))
    rounds = [list(algorithm.schedule(rank, 4, params)) for rank in range(4)]
    blocks = algorithm.blocks(4, params)
    changes = [m.change for m in mutants(rounds, blocks, algorithm.collective, ordered=True)]
    assert any("swapped side" in change for change in changes)


def test_mutants_never_equal_the_original():
    """A window of all blocks, shifted all the way round, is the same window: not a mutant."""
    rounds = [[exchange(1, BOTH, BOTH, RIGHT)], [exchange(0, BOTH, BOTH, LEFT)]]
    made = list(mutants(rounds, 2, collective("allreduce")))
    assert all(mutant.rounds != rounds for mutant in made)
    assert not any("shifted" in mutant.change for mutant in made)
    assert any("swapped side" in mutant.change for mutant in made)


def test_message_that_repeats_another_is_not_lost():
    """The root gets back what it has: right without it, so losing it makes no mutant."""
    rounds = [[send(1, *B0), recv(1, *B0)], [recv(0, *B0), send(0, *B0)]]
    verify_schedules("bcast", rounds, 1)
    made = [m.change for m in mutants(rounds, 1, collective("bcast")) if "lost" in m.change]
    assert made == ["a lost message: message from rank 0 (round 0) to rank 1 (round 0)"]


def test_one_rank_has_no_mutants():
    assert list(mutants([[]], 1, collective("allreduce"))) == []


def test_messages_pairs_ends_in_order():
    rounds = [[Round((Send(1, B0), Send(1, B1)))], [recv(0, Window(0)), recv(0, Window(1))]]
    assert [tuple(spot) for spot in messages(rounds)] == [(0, 0, 0, 1, 0, 0), (0, 0, 1, 1, 1, 0)]


def test_accepting_a_mutant_is_an_error(monkeypatch: pytest.MonkeyPatch):
    """`refuse_mutants` itself can fail: with a verifier that accepts everything it does."""
    monkeypatch.setattr("mpicoll.mutants.verify_schedules", lambda *args, **more: None)
    with pytest.raises(ScheduleError, match="a wrong schedule was accepted: an empty schedule"):
        refuse_mutants(algorithms("allreduce")[0], 3)


def test_declared_order_is_proved_and_not_trusted():
    """A ring declared ordered is refused, and names who stands where."""
    ring = replace(next(a for a in algorithms("allreduce") if a.name == "ring"), ordered=True)
    with pytest.raises(ScheduleError, match="out of rank order, though declared ordered"):
        verify(ring, 3)


def test_node_maps_cover_the_shapes():
    maps = node_maps(8)
    assert (0, 0, 1, 1, 2, 2, 3, 3) in maps  # in blocks
    assert (0, 1, 2, 3, 0, 1, 2, 3) in maps  # cyclic
    assert (0, 0, 0, 1, 2, 2, 2, 3) in maps  # unequal
    assert (0,) * 8 in maps
    assert tuple(range(8)) in maps
    assert all(len(nodes) == 8 for nodes in maps)
    assert len(set(maps)) == len(maps)
