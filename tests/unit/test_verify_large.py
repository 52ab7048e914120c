"""The array state of the verifier, for thousands of ranks: the same rules, seen at the end."""

from __future__ import annotations

import re

import pytest

import mpicoll.algorithms  # noqa: F401  (importing registers them)
from mpicoll.errors import ArgumentError, ScheduleError
from mpicoll.schedule import Recv, Round, Send, Side, Window, exchange, recv, send
from mpicoll.verify import verify, verify_schedules

LEFT, RIGHT = Side.LEFT, Side.RIGHT
B0, B1, BOTH = (Window(0),), (Window(1),), (Window(0, 2),)

WRONG = {
    "counted twice": (
        "allreduce",
        [[exchange(1, B0, B0, RIGHT)] * 2, [exchange(0, B0, B0, LEFT)] * 2],
        {},
        "at the end block 0 of rank 0 counts the contribution of ranks 0..1 twice",
    ),
    "counted very often": (
        "allreduce",
        [[exchange(1, B0, B0, RIGHT)] * 100, [exchange(0, B0, B0, LEFT)] * 100],
        {},
        "counts the contribution of ranks 0..1 twice",
    ),
    "incomplete": (
        "reduce",
        [[recv(1, *B0, side=RIGHT)], [send(0, *B0)], []],
        {},
        "at the end block 0 of rank 0 lacks the contribution of rank 2",
    ),
    "two orders": (
        "allreduce",
        [[exchange(1, B0, B0, LEFT)], [exchange(0, B0, B0, LEFT)]],
        {},
        "ranks 0 and 1 evaluate different expressions for block 0",
    ),
    "out of order": (
        "reduce",
        [[recv(1, *B0, side=LEFT)], [send(0, *B0)]],
        {"ordered": True},
        "block 0 of rank 0 has rank 1 left of rank 0: out of rank order, though declared ordered",
    ),
    "combined where nothing is": (
        "allgather",
        [[send(1, *B0), recv(1, *B1)], [recv(0, *B0, side=LEFT), send(0, *B1)]],
        {},
        "it combines block 0 from rank 0, but all-gather reduces nothing",
    ),
    "not held": (
        "bcast",
        [[recv(1, *B0)], [send(0, *B0)]],
        {},
        "rank 1, round 0: it sends block 0 to rank 0, which it does not hold",
    ),
    "wrong data": (
        "allgather",
        [[], []],
        {},
        "at the end rank 0 holds nothing in block 1, and not rank 1's",
    ),
    "two brackets": (
        "allreduce",
        [
            [Round((Send(2, B0),), (Recv(1, B0, RIGHT), Recv(2, B0, RIGHT))), send(1, *B0)],
            [Round((Send(0, B0), Send(2, B0))), recv(0, *B0)],
            [exchange(0, B0, B0, LEFT, source=1), recv(0, *B0, side=LEFT)],
        ],
        {"ordered": True},
        "ranks 0 and 2 evaluate different expressions for block 0",
    ),
}


@pytest.fixture(autouse=True)
def _arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mpicoll.verify.LARGE", 0)


@pytest.mark.parametrize("case", WRONG)
def test_wrong_schedule_is_refused(case: str):
    kind, rounds, more, message = WRONG[case]
    with pytest.raises(ScheduleError, match=re.escape(message)):
        verify_schedules(kind, rounds, 2 if kind == "allgather" else 1, **more)


def test_equal_expressions_formed_apart_are_the_same():
    """Both ranks of an exchange form the same expression, under numbers of their own."""
    rounds = [[exchange(1, BOTH, BOTH, RIGHT)], [exchange(0, BOTH, BOTH, LEFT)]]
    proof = verify_schedules("allreduce", rounds, 2, ordered=True)
    assert (proof.ordered, proof.expressions, proof.blocks_moved) == (True, None, 4)


def test_left_fold_of_overlapping_receives():
    ends = [[send(2, *BOTH)], [send(2, *B1), send(2, *B0)], None, [send(2, *BOTH)]]
    ends[2] = [Round(recvs=(Recv(0, BOTH, LEFT), Recv(1, B1, LEFT), Recv(1, B0, LEFT), Recv(3, BOTH, RIGHT)))]
    ends[1] = [Round((Send(2, B1), Send(2, B0)))]
    assert verify_schedules("reduce", ends, 2, root=2, ordered=True).ordered


def test_windows_in_many_pieces():
    pieces = tuple(Window(b) for b in range(18, -1, -2))
    rounds = [[send(1, *pieces), send(1, Window(19), *(Window(b) for b in range(1, 19, 2)))]]
    rounds.append([recv(0, *pieces), recv(0, Window(19), *(Window(b) for b in range(1, 19, 2)))])
    assert verify_schedules("bcast", rounds, 20).blocks_moved == 20


def test_too_many_cells_are_refused_before_they_are_made():
    with pytest.raises(ArgumentError, match="are too many to prove"):
        verify_schedules("bcast", [[], []], 1 << 31)


@pytest.mark.parametrize("name", ["allreduce/circulant", "bcast/binomial", "barrier/dissemination"])
def test_a_thousand_ranks(name: str):
    proof = verify(name, 1000)
    assert proof.size == 1000
    assert proof.rounds == (20 if name == "allreduce/circulant" else 10)
