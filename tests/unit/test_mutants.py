"""What a right schedule can do without is not taken from it to make a wrong one."""

from __future__ import annotations

import pytest

import mpicoll.algorithms  # noqa: F401  (importing registers them)
from mpicoll.cases import cases
from mpicoll.collectives import collective
from mpicoll.holdings import Holdings
from mpicoll.mutants import Rounds, _useful, messages, mutants
from mpicoll.registry import Algorithm, algorithms
from mpicoll.schedule import Side, Window, blocks_of, exchange, recv, send
from mpicoll.verify import verify_schedules

B0, B1, BOTH = (Window(0),), (Window(1),), (Window(0, 2),)
SCATTER = collective("reduce_scatter")


def useful(rounds: Rounds, blocks: int, kind=SCATTER, root: int = 0) -> set[tuple[int, int, int, int]]:
    held = Holdings(kind, rounds, blocks, root)
    held.run()
    return _useful(rounds, messages(rounds), held.promised, blocks)


def test_a_combination_that_nobody_uses_is_not_useful():
    rounds = [[exchange(1, BOTH, B0, Side.RIGHT)], [exchange(0, B0, BOTH, Side.LEFT)]]
    verify_schedules(SCATTER, rounds, 2)
    assert useful(rounds, 2) == {(0, 0, 0, 0), (1, 0, 0, 1)}  # and not rank 1's block 0


def test_a_block_that_is_sent_on_in_vain_is_not_useful():
    """Rank 1 combines block 0 and sends it on to rank 2, which has no use for it."""
    first = [exchange(1, BOTH, B0, Side.RIGHT)], [exchange(0, B0, BOTH, Side.LEFT)], []
    second = [], [send(2, *B0)], [recv(1, *B0, side=Side.RIGHT)]
    rounds = [[*a, *b] for a, b in zip(first, second, strict=True)]
    assert useful(rounds, 3) == {(0, 0, 0, 0), (1, 0, 0, 1)}


def test_a_message_of_no_use_is_neither_lost_nor_shifted():
    rounds = [
        [exchange(1, B1, B0, Side.RIGHT), send(1, *B0)],
        [exchange(0, B0, B1, Side.LEFT), recv(0, *B0)],
    ]
    verify_schedules(SCATTER, rounds, 2)
    found = [m.change for m in mutants(rounds, 2, SCATTER)]
    last = "message from rank 0 (round 1) to rank 1 (round 1)"
    assert f"a wrong peer: {last}" in found
    assert f"a lost message: {last}" not in found
    assert f"a shifted window at both ends: {last}" not in found
    assert sum(change.startswith("a lost message") for change in found) == 2


@pytest.mark.parametrize("chosen", [pytest.param(a, id=str(a)) for a in algorithms()])
def test_algorithms_carry_nothing_in_vain(chosen: Algorithm):
    """All but one, which is as published; see there."""
    vain = 0
    for size in (4, 5, 8):
        for params in list(cases(chosen, size))[:2]:
            rounds = [list(chosen.schedule(rank, size, params)) for rank in range(size)]
            blocks, root = chosen.blocks(size, params), chosen.resolve(size, params).get("root", 0)
            received = sum(
                len(list(blocks_of(m.windows, blocks))) for steps in rounds for s in steps for m in s.recvs
            )
            vain += received - len(useful(rounds, blocks, chosen.collective, root))
    assert (vain > 0) == (str(chosen) == "reduce_scatter/recursive_doubling")
