"""What goes wrong stays visible and local: failures, reuse, memory, freed operations and types."""

from __future__ import annotations

import contextlib
import gc
import re
import sys
import time
import weakref
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

import mpicoll
from mpicoll.planner import Planner
from mpicoll.requests import LANES, Request

from .support import ENGINES, WORLD, world

SIZE, RANK = WORLD.size, WORLD.rank
both_engines = pytest.mark.parametrize("engine", ENGINES)
several = pytest.mark.skipif(SIZE == 1, reason="needs another rank")
# What these prove does not depend on the number of ranks, and their waits take time.
pytestmark = pytest.mark.ranks(1, 2, 3)


def resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20


@both_engines
def test_nonblocking_calls_use_their_plans_again(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    built = []
    build = Planner._build
    monkeypatch.setattr(Planner, "_build", lambda *a, **k: built.append(1) or build(*a, **k))
    comm = mpicoll.Comm(WORLD, engine=engine)
    x, y = np.ones(20), np.zeros(20)
    for _ in range(5 * LANES):
        comm.Iallreduce(x, y).Wait()
    assert len(built) == LANES
    comm.free_plans()


@several
@both_engines
def test_a_failed_plan_never_runs_again_and_the_others_hear(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MPICOLL_TIMEOUT", "0.5")
    comm = mpicoll.Comm(WORLD, engine=engine)
    x, y = np.ones(50), np.zeros(50)
    comm.Allreduce(x, y, algorithm="ring")
    if RANK == SIZE - 1:
        WORLD.Barrier()  # comes when the others have given up
        with pytest.raises(mpicoll.RevokedError, match="gave up"):
            comm.Allreduce(np.full(50, 100.0), y, algorithm="ring")
    else:
        with pytest.raises((mpicoll.TimeoutExpired, mpicoll.RevokedError)):
            comm.Allreduce(x, y, algorithm="ring")
        with pytest.raises(mpicoll.RevokedError):
            comm.Allreduce(x, y, algorithm="ring")
        WORLD.Barrier()


@several
@both_engines
@pytest.mark.parametrize("kind", ["blocking", "persistent", "nonblocking"])
def test_memory_of_a_failed_call_stays_while_mpi_may_write_there(
    engine: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MPICOLL_TIMEOUT", "0.3")
    comm = mpicoll.Comm(WORLD, engine=engine)
    x, y = np.ones(50), np.zeros(50)
    plan = comm.Allreduce_init(x, y, algorithm="ring") if kind == "persistent" else None

    def run() -> None:
        if plan is not None:
            plan()
        elif kind == "blocking":
            comm.Allreduce(x, y, algorithm="ring")
        else:
            comm.Iallreduce(x, y, algorithm="ring").Wait()

    run()
    if RANK == SIZE - 1:
        WORLD.Barrier()  # comes when the others have given up
    with contextlib.suppress(mpicoll.MpicollError):
        run()
    if RANK < SIZE - 1:
        alive = weakref.ref(y)
        del x, y, plan, run
        comm.free_plans()
        gc.collect()
        assert alive() is not None
        WORLD.Barrier()


@several
@both_engines
def test_short_waits_do_not_add_up_to_a_timeout(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPICOLL_TIMEOUT", "3")
    comm = mpicoll.Comm(WORLD, engine=engine)
    x, y = np.ones(5), np.zeros(5)
    for turn in range(5):
        time.sleep(0.7 + 0.1 * (turn % SIZE == RANK))
        comm.Allreduce(x, y, algorithm="ring")
    comm.Free()


@pytest.mark.parametrize("progress", ["test", "thread"])
def test_hundreds_outstanding(progress: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPICOLL_PROGRESS", progress)
    comm = mpicoll.Comm(WORLD)
    x, y = np.ones(4), np.zeros((300, 4))
    requests = [comm.Iallreduce(x, row) for row in y]
    comm.free_plans()  # in use: they stay
    Request.Waitall(requests[::-1])
    assert (y == SIZE).all()
    comm.free_plans()


@several
@both_engines
def test_a_refused_nonblocking_call_ends_whatever_the_others_wait_in(engine: str) -> None:
    comm = mpicoll.Comm(WORLD, engine=engine)
    x, y = np.ones(50), np.zeros(50)
    if RANK == 0:
        with pytest.raises(mpicoll.ArgumentError):
            comm.Iallreduce(x, y[:3])
    else:
        comm.Iallreduce(x, y)
        with pytest.raises(mpicoll.RevokedError):
            comm.Barrier()  # a new kind of call
    WORLD.Barrier()


@several
@both_engines
def test_a_known_and_a_new_kind_of_call_at_once_end(engine: str) -> None:
    comm = mpicoll.Comm(WORLD, engine=engine)
    known, new = np.ones(40), np.ones(41)
    comm.Allreduce(known, np.zeros(40), algorithm="ring")
    mine = known if RANK == 0 else new
    with pytest.raises(mpicoll.MpicollError, match=r"another call|given up"):
        comm.Allreduce(mine, np.zeros(len(mine)), algorithm="ring")
    WORLD.Barrier()


@several
@both_engines
def test_a_refusal_that_nobody_waits_for_ends(engine: str) -> None:
    comm = mpicoll.Comm(WORLD, engine=engine)
    x = np.ones(5)
    comm.Bcast(x, 0, algorithm="binomial")
    if RANK == SIZE - 1:
        x.flags.writeable = False
        with pytest.raises(mpicoll.ArgumentError, match="read-only"):
            comm.Bcast(x, 0, algorithm="binomial")
    else:
        # Where sends are synchronous, somebody waits after all, and hears of it.
        with contextlib.suppress(mpicoll.RevokedError):
            comm.Bcast(x, 0, algorithm="binomial")
    WORLD.Barrier()


@several
@both_engines
def test_a_message_that_does_not_fit_is_named(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ignored: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)
    comm = mpicoll.Comm(WORLD, engine=engine)
    counts = [2 if rank == RANK else 3 for rank in range(SIZE)]
    with pytest.raises(mpicoll.MpicollError) as caught:
        comm.Alltoallv([np.ones(3 * SIZE, "f"), counts], [np.ones(2 * SIZE, "f"), 2])
    text = r"rank (\d) of .*message from rank (\d) (has 12 bytes|is longer), this rank expects 8"
    found = re.search(text, str(caught.value))
    assert found, caught.value
    assert found[1] != found[2]
    comm.free_plans()
    del comm, caught
    gc.collect()
    assert not ignored
    WORLD.Barrier()


@several
@both_engines
@pytest.mark.parametrize("check", [False, True], ids=["cached", "checked"])
def test_ranks_that_differ_in_a_known_call(engine: str, check: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """All hear of it at the next call; with MPICOLL_CHECK at this one, before anything is sent."""
    if check:
        monkeypatch.setenv("MPICOLL_CHECK", "1")
    comm = mpicoll.Comm(WORLD, engine=engine)
    x, y = np.ones(10), np.zeros(10)
    for n in (10, 5):
        comm.Allreduce(x[:n], y[:n], algorithm="ring")
    n = 10 if RANK else 5
    if check:
        with pytest.raises(mpicoll.MismatchError, match=r"different calls: rank 0: .*5.*; rank.* 1.*: .*10"):
            comm.Allreduce(x[:n], y[:n], algorithm="ring")
        np.testing.assert_array_equal(y, SIZE)
        comm.Free()
        return
    with contextlib.suppress(mpicoll.MpicollError):
        comm.Allreduce(x[:n], y[:n], algorithm="ring")
    with pytest.raises(mpicoll.RevokedError, match=r"rank \d gave up: .*message from rank \d .*expects \d+"):
        comm.Allreduce(x, y, algorithm="ring")
    WORLD.Barrier()


@both_engines
def test_operations_and_types_made_anew(engine: str) -> None:
    """The library may give a new operation or type the handle of one that was freed."""
    comm = world(engine)
    x, y = np.ones(8), np.zeros(8)
    for factor in (1.0, 2.0, 3.0):

        def combine(
            left: MPI.buffer, right: MPI.buffer, datatype: MPI.Datatype, factor: float = factor
        ) -> None:
            a, b = np.frombuffer(left), np.frombuffer(right)
            b[...] = factor * (a + b) if len(b) else b

        op, pair = MPI.Op.Create(combine, commute=True), MPI.DOUBLE.Create_contiguous(2).Commit()
        comm.Allreduce([x, pair], [y, pair], op, algorithm="recursive_doubling")
        assert SIZE == 1 or y[0] >= 2 * factor
        op.Free()
        pair.Free()


@both_engines
def test_memory_of_a_plan_can_neither_move_nor_go(engine: str) -> None:
    comm = world(engine)
    x, raw = np.ones(4), bytearray(32)
    plan = comm.Allreduce_init(x, [raw, MPI.DOUBLE])
    with pytest.raises(BufferError):
        raw.extend(bytes(1 << 20))
    del x
    gc.collect()
    plan()
    np.testing.assert_array_equal(np.frombuffer(raw), SIZE)
    plan.Free()


@both_engines
def test_cached_plans_do_not_keep_arrays_alive(engine: str) -> None:
    comm = mpicoll.Comm(WORLD, engine=engine)
    y = np.zeros(1 << 17)
    for _ in range(10):
        comm.Allreduce(np.ones(1 << 17), y)
    before = resident_mib()
    for _ in range(100):
        comm.Allreduce(np.ones(1 << 17), y)
    assert resident_mib() - before < 40  # a hundred arrays would be 100 MiB
    comm.Free()
    with pytest.raises(mpicoll.MpicollError, match="freed"):
        comm.Allreduce(y, y.copy())


@both_engines
def test_a_running_plan_is_not_started_again(engine: str) -> None:
    comm = world(engine)
    plan = comm.Allreduce_init(np.ones(9), np.zeros(9))
    plan.Start()
    if plan.active:
        with pytest.raises(mpicoll.MpicollError, match="before it was over"):
            plan()
        with pytest.raises(mpicoll.MpicollError, match="before it was over"):
            plan.Start()
    plan.Wait()
    run = plan.run
    plan.Free()
    with pytest.raises(mpicoll.MpicollError, match="freed"):
        run()


@both_engines
def test_arrays_that_change_in_place_are_looked_at_again(engine: str) -> None:
    comm = world(engine)
    x, y = np.ones(6), np.zeros(6)
    comm.Allreduce(x, y)
    x.dtype = y.dtype = np.int64
    x[:], y[:] = 3, 0
    comm.Allreduce(x, y)
    np.testing.assert_array_equal(y, 3 * SIZE)
    y.flags.writeable = False
    with pytest.raises(mpicoll.ArgumentError, match="read-only"):
        comm.Allreduce(x, y)


@both_engines
def test_arguments_of_every_integer_type(engine: str) -> None:
    comm = world(engine)
    x = np.full(3, float(RANK))
    comm.Bcast(x, np.int64(SIZE - 1), channels=np.int64(1))
    np.testing.assert_array_equal(x, SIZE - 1)
    with pytest.raises(mpicoll.ArgumentError, match="recvcounts"):
        comm.Reduce_scatter(x, x.copy(), 5)
    if SIZE == 1:
        return
    with pytest.raises(mpicoll.Unsupported, match="node map"):
        comm.Allreduce(x, x.copy(), algorithm="leader", nodes=[0])
    counts, at = [2] + [0] * (SIZE - 1), [0] * SIZE
    y = np.arange(2.0) if RANK == 0 else np.zeros(2)
    comm.Allgatherv([y, (2 if RANK == 0 else 0, 0), MPI.DOUBLE], [y, (counts, at), MPI.DOUBLE])
    np.testing.assert_array_equal(y, [0, 1])
