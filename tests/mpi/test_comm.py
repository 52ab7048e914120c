"""Comm and Plan: refusals on all ranks, life cycle, caching, sub-communicators."""

from __future__ import annotations

import gc
import re
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

import mpicoll
from mpicoll import common
from mpicoll.cost import uniform

from .support import ENGINES, WORLD, answer, values, world

SIZE, RANK = WORLD.size, WORLD.rank
both_engines = pytest.mark.parametrize("engine", ENGINES)
some_ranks = pytest.mark.ranks(1, 2, 3)  # what this proves does not depend on their number, and it takes time

BAD_CALLS = {
    "counts": ((np.zeros(5), np.zeros(4)), "must agree"),
    "types": ((np.zeros(4), np.zeros(4, "f")), "must agree"),
    "strided": ((np.zeros(8)[::2], np.zeros(4)), "not contiguous"),
    "big-endian": ((np.zeros(4, ">f8"), np.zeros(4)), "byte order"),
    "no buffer": ((3.5, np.zeros(4)), "not a buffer"),
    "too long": (([np.zeros(4), 9, MPI.DOUBLE], np.zeros(9)), "asked for"),
    "negative": (([np.zeros(4), -1], np.zeros(4)), "negative"),
    "no operation": ((np.zeros(4), np.zeros(4), MPI.OP_NULL), "OP_NULL"),
    "bool sum": ((np.zeros(4, "?"), np.zeros(4, "?"), MPI.SUM), "LAND"),
    "float bits": ((np.zeros(4), np.zeros(4), MPI.BAND), "SUM"),
    "nowhere": ((MPI.IN_PLACE, MPI.IN_PLACE), "recvbuf: MPI.IN_PLACE"),
    "no length": ((MPI.BOTTOM, np.zeros(4)), "sendbuf: MPI.BOTTOM"),
    "packed pair": ((np.zeros(4, "f8,i4"), np.zeros(4, "f8,i4"), MPI.MAXLOC), "align=True"),
}


def read_only() -> np.ndarray:
    array = np.zeros(4)
    array.flags.writeable = False
    return array


@both_engines
@pytest.mark.parametrize("only_one_rank", [False, True])
@pytest.mark.parametrize("persistent", [False, True])
def test_bad_input_is_refused_on_all_ranks(only_one_rank: bool, persistent: bool, engine: str) -> None:
    comm = mpicoll.Comm(WORLD, engine=engine)
    call = comm.Allreduce_init if persistent else comm.Allreduce
    cases = {**BAD_CALLS, "read-only": ((np.zeros(4), read_only()), "read-only")}
    for number, (name, (arguments, reason)) in enumerate(cases.items()):
        victim = number % SIZE
        good = (np.zeros(40 + number), np.zeros(40 + number))  # a kind of call not yet agreed on
        mine = good if only_one_rank and victim != RANK else arguments
        with pytest.raises(mpicoll.MpicollError, match=reason):
            call(*mine)
        assert name
    x = np.ones(3)
    comm.Allreduce(MPI.IN_PLACE, x)  # and the communicator still works
    np.testing.assert_array_equal(x, SIZE)
    comm.Free()


@both_engines
def test_wrong_names_and_parameters_list_the_valid_ones(engine: str) -> None:
    comm, x, y = world(engine), np.zeros(4), np.zeros(4)
    with pytest.raises(mpicoll.ArgumentError, match="recursive_doubling"):
        comm.Allreduce(x, y, algorithm="rign")
    with pytest.raises(mpicoll.ArgumentError, match="no parameter"):
        comm.Allreduce(x, y, algorithm="ring", radix=3)
    with pytest.raises(mpicoll.ArgumentError, match="native, python"):
        comm.Allreduce(x, y, engine="turbo")
    with pytest.raises(mpicoll.ArgumentError, match="channels"):
        comm.Allreduce(x, y, channels=0)
    with pytest.raises(mpicoll.ArgumentError, match="overlap"):
        comm.Allreduce(x[:3], x[1:])
    with pytest.raises(mpicoll.ArgumentError, match=r"no algorithm \['ring'\]"):
        comm.Allreduce(x, y, algorithm=["ring"])
    with pytest.raises(mpicoll.ArgumentError, match=r"nodes names the node of each rank.*not 3"):
        comm.Allreduce(x, y, algorithm="two_level", nodes=3)
    with pytest.raises(mpicoll.Unsupported, match="whole number of at least 1, not True"):
        comm.Allreduce(x, y, algorithm="segmented_ring", segments=True)
    comm.Allreduce(x, y, algorithm="segmented_ring", segments=np.int64(2))
    with pytest.raises(mpicoll.Unsupported, match="group='a' must divide"):
        comm.Allgather(x, np.zeros(4 * SIZE), algorithm="k_ring", group="a")
    with pytest.raises(mpicoll.ArgumentError, match=r"calibration names a file.*not 3"):
        mpicoll.Comm(WORLD, calibration=3)
    for call in (lambda: comm.Bcast(MPI.IN_PLACE), lambda: comm.Allgather(np.ones(0, "u1"), MPI.IN_PLACE)):
        with pytest.raises(mpicoll.ArgumentError, match=r"buf: MPI.IN_PLACE cannot stand here"):
            call()


@pytest.mark.skipif(SIZE == 1, reason="needs ranks that differ")
@both_engines
def test_ranks_that_differ_are_told_so(engine: str) -> None:
    comm = mpicoll.Comm(WORLD, engine=engine)
    n = 6 + (RANK == SIZE - 1)
    with pytest.raises(mpicoll.MismatchError, match=r"different calls.*6.*7"):
        comm.Allreduce(np.zeros(n), np.zeros(n))
    with pytest.raises(mpicoll.MismatchError, match=r"ring"):
        comm.Allreduce(np.zeros(5), np.zeros(5), algorithm="ring" if RANK else "recursive_doubling")
    comm.Free()


@pytest.mark.skipif(SIZE == 1, reason="needs another rank")
@both_engines
def test_a_rank_that_refuses_a_settled_call_releases_the_others(engine: str) -> None:
    comm = mpicoll.Comm(WORLD, engine=engine)
    x, y = np.ones(1000), np.zeros(1000)
    comm.Allreduce(x, y, algorithm="ring")  # from now on nobody checks this kind of call
    with pytest.raises(mpicoll.MpicollError) as caught:
        comm.Allreduce(x, y[:7] if RANK == SIZE - 1 else y, algorithm="ring")
    assert "must agree" in str(caught.value)
    assert isinstance(caught.value, mpicoll.ArgumentError if RANK == SIZE - 1 else mpicoll.RevokedError)
    with pytest.raises(mpicoll.RevokedError):
        comm.Allreduce(x, y, algorithm="ring")
    again = mpicoll.Comm(WORLD, engine=engine)
    again.Allreduce(x, y, algorithm="ring")
    np.testing.assert_array_equal(y, SIZE)


@some_ranks
@pytest.mark.skipif(SIZE == 1, reason="needs another rank")
@both_engines
def test_a_rank_that_never_comes_is_named(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPICOLL_TIMEOUT", "1.5")
    comm = mpicoll.Comm(WORLD, engine=engine)
    plan = comm.Allreduce_init(np.zeros(50), np.zeros(50), algorithm="ring")
    if RANK == 0:
        WORLD.Barrier()
        return
    # The first rank to lose patience tells the others, so that all end at about the same time.
    with pytest.raises((mpicoll.TimeoutExpired, mpicoll.RevokedError)) as caught:
        plan()
    assert re.search(r"rank \d of \d, round \d+ of .*receives from", str(caught.value))
    with pytest.raises(mpicoll.MpicollError, match="failed before"):
        plan()
    WORLD.Barrier()


@both_engines
def test_plan_is_used_like_a_persistent_request(engine: str) -> None:
    comm = world(engine)
    x, y = values(RANK, 300, "d"), np.zeros(300)
    plan = comm.Allreduce_init(x, y, algorithm="ring", channels=3, depth=2)
    for _ in range(3):
        y[:] = 0
        plan.Start()
        while not plan.Test():
            pass
        np.testing.assert_array_equal(y, answer(SIZE, 300, "d"))
        y[:] = 0
        plan.Start()
        plan.Wait()
        np.testing.assert_array_equal(y, answer(SIZE, 300, "d"))
    assert plan.algorithm == "ring"
    assert plan.engine == engine
    plan.Free()
    plan.Free()
    with pytest.raises(mpicoll.MpicollError, match="freed"):
        plan()
    with pytest.raises(mpicoll.MpicollError, match="freed"):
        plan.Start()


@both_engines
def test_two_plans_in_flight_do_not_mix(engine: str) -> None:
    comm = world(engine)
    x = [values(RANK, n, "d") for n in (4000, 4001)]
    y = [np.zeros(len(a)) for a in x]
    plans = [comm.Allreduce_init(a, b, algorithm="ring") for a, b in zip(x, y, strict=True)]
    for order in ((0, 1), (1, 0)):
        for plan in plans:
            plan.Start()
        for i in order:
            plans[i].Wait()
            np.testing.assert_array_equal(y[i], answer(SIZE, len(x[i]), "d"))
    for plan in plans:
        plan.Free()


@some_ranks
@both_engines
def test_plans_are_cached_bounded_and_freed(engine: str) -> None:
    comm = mpicoll.Comm(WORLD, engine=engine)
    x, y = np.ones(8), np.zeros(8)
    comm.Allreduce(x, y)
    comm.Allreduce(x, y)
    assert len(comm._planner.cache.plans) == 1
    many = [np.ones(8) for _ in range(140)]
    for array in many:
        comm.Allreduce(array, y)
    assert len(comm._planner.cache.plans) == 128
    np.testing.assert_array_equal(y, SIZE)
    plan = next(iter(comm._planner.cache.plans.values()))
    comm.Free()
    with pytest.raises(mpicoll.MpicollError, match="freed"):
        plan()
    del comm, plan
    gc.collect()


@both_engines
def test_subcommunicators_of_any_order_and_size(engine: str) -> None:
    backwards = mpicoll.Comm(WORLD.Split(0, SIZE - RANK), engine=engine)
    assert backwards.rank == SIZE - 1 - RANK
    for algorithm in ("ring", "recursive_doubling", "circulant"):
        y = np.zeros(9, "d")
        backwards.Allreduce(values(RANK, 9, "d"), y, algorithm=algorithm)
        np.testing.assert_array_equal(y, answer(SIZE, 9, "d"))
    group = mpicoll.Comm(WORLD.Split(RANK % 2, RANK), engine=engine)
    y = np.zeros(5, "i")
    group.Allreduce(np.full(5, RANK, "i"), y, algorithm="ring")
    np.testing.assert_array_equal(y, sum(r for r in range(SIZE) if r % 2 == RANK % 2))
    alone = mpicoll.Comm(MPI.COMM_SELF, engine=engine)
    alone.Allreduce(np.arange(5, dtype="i"), y, algorithm="ring")
    np.testing.assert_array_equal(y, range(5))
    for comm in (backwards, group, alone):
        comm.free_plans()


def test_it_is_an_mpi_communicator() -> None:
    comm = world(ENGINES[0])
    assert isinstance(comm, MPI.Intracomm)
    assert comm.bcast(RANK, root=SIZE - 1) == SIZE - 1
    assert (comm.size, comm.rank, len(comm.nodes)) == (SIZE, RANK, SIZE)
    with pytest.raises(mpicoll.ArgumentError, match="intra-communicator"):
        mpicoll.Comm(MPI.COMM_NULL)


@pytest.mark.ranks(2, 3)
def test_calibration_chooses_and_is_agreed_upon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with slow messages takes fewer of them; ranks that disagree, or cannot read it, all raise."""
    slow, fast = (uniform(alpha, 1e-12, 1e-11, gap=0.0) for alpha in (1.0, 1e-12))
    data = np.zeros(64)  # without a calibration by doubling
    for machine, expected in ((slow, "recursive_doubling"), (fast, "ring")):
        file = tmp_path / f"{expected}.json"  # every rank has a directory of its own
        file.write_text(machine.to_json())
        comm = mpicoll.Comm(WORLD, calibration=str(file))
        monkeypatch.setenv("MPICOLL_CALIBRATION", str(file))
        for one in (comm, comm.Dup(), mpicoll.Comm(WORLD)):
            plan = one.Allreduce_init(MPI.IN_PLACE, data)
            assert plan.algorithm == expected
            plan.free()
            one.Free()
    if RANK == SIZE - 1:
        monkeypatch.setenv("MPICOLL_CALIBRATION", str(tmp_path / "recursive_doubling.json"))
    with pytest.raises(mpicoll.MismatchError, match="calibration"):
        mpicoll.Comm(WORLD)
    if RANK == SIZE - 1:
        (tmp_path / "recursive_doubling.json").write_text("{}")
    with pytest.raises(mpicoll.ArgumentError, match="is not a machine as `mpicoll calibrate` writes it"):
        mpicoll.Comm(WORLD)


@pytest.mark.ranks(2, 3)
def test_whatever_a_calibration_meets_on_one_rank_is_heard_on_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`Path.is_dir` raises for what it may not look at, or cannot; and an error may be of any kind."""
    if RANK == SIZE - 1:
        monkeypatch.setenv("MPICOLL_CALIBRATION", "a" * 5000)
    with pytest.raises(mpicoll.ArgumentError, match=r"cannot read aaa.*: File name too long"):
        mpicoll.Comm(WORLD)

    def broken(given: object) -> None:
        raise KeyError("of a kind that nobody expects")

    if RANK == SIZE - 1:
        monkeypatch.setattr(common, "calibration", broken)
    with pytest.raises(KeyError if RANK == SIZE - 1 else mpicoll.ArgumentError, match="nobody expects"):
        mpicoll.Comm(WORLD)
