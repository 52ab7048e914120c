"""Nonblocking collectives: right results in any order of completion, with and without a thread."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Iterator

import numpy as np
import pytest
from mpi4py import MPI

import mpicoll
from mpicoll.requests import LANES, Request, background_held

from .support import ENGINES, WORLD, answer, values

SIZE, RANK = WORLD.size, WORLD.rank
MODES = [("python", "test"), *([("native", "test"), ("native", "thread")] if len(ENGINES) == 2 else [])]
some_ranks = pytest.mark.ranks(1, 2, 3)  # what this proves does not depend on their number, and it takes time
modes = pytest.mark.parametrize(("engine", "progress"), MODES, ids=lambda v: v)
with_thread = pytest.mark.skipif(
    len(ENGINES) < 2 or MPI.Query_thread() < MPI.THREAD_MULTIPLE, reason="needs the background thread"
)


@pytest.fixture
def comm(engine: str, progress: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[mpicoll.Comm]:
    monkeypatch.setenv("MPICOLL_PROGRESS", progress)
    made = mpicoll.Comm(WORLD, engine=engine)
    yield made
    made.free_plans()


@modes
def test_every_collective(comm: mpicoll.Comm, progress: str, engine: str) -> None:
    n, root = 5, SIZE - 1
    x, parts = values(RANK, n, "d"), values(RANK, n * SIZE, "d")
    one, all_, data = np.zeros(n), np.zeros(n * SIZE), np.zeros(n)
    table = np.array([values(r, n * SIZE, "d") for r in range(SIZE)]).reshape(SIZE, SIZE, n)
    rows = np.array([values(r, n, "d") for r in range(SIZE)]).reshape(-1)
    mine = answer(SIZE, n * SIZE, "d")[RANK * n : (RANK + 1) * n]
    column, at_root = table[:, RANK].reshape(-1), root == RANK
    calls = [
        (lambda: comm.Iallreduce(x, one), one, answer(SIZE, n, "d")),
        (lambda: comm.Ibcast(data, root), data, values(root, n, "d")),
        (lambda: comm.Ireduce(x, one, root=root), one, answer(SIZE, n, "d") if at_root else 77),
        (lambda: comm.Iallgather(x, all_), all_, rows),
        (lambda: comm.Iallgatherv(x, all_), all_, rows),
        (lambda: comm.Ireduce_scatter(parts, one, [n] * SIZE), one, mine),
        (lambda: comm.Ireduce_scatter_block(parts, one), one, mine),
        (lambda: comm.Ialltoall(parts, all_), all_, column),
        (lambda: comm.Ialltoallv(parts, all_), all_, column),
        (lambda: comm.Igather(x, all_, root), all_, rows if at_root else 77),
        (lambda: comm.Iscatter(parts, one, root), one, table[root, RANK]),
        (lambda: comm.Ibarrier(), one, 77),
    ]
    for turn in range(3):
        for call, result, expected in calls:
            one[:], all_[:], data[:] = 77, 77, x if at_root else 77
            request = call()
            if turn:
                assert request.Wait()
            else:
                while not request.Test():
                    pass
            np.testing.assert_array_equal(result, expected)
            assert request.Test()
            assert request.plan.background == (progress == "thread")


@some_ranks
@modes
def test_many_at_once_complete_in_any_order(comm: mpicoll.Comm) -> None:
    """More calls than lanes, of many sizes, waited for in another order on every rank."""
    lengths = [1, 3000, 17, 0, 40_000, 256, 5, 1000] * 3
    assert len(lengths) > 2 * LANES
    x = [values(RANK, n, "d") for n in lengths]
    for _ in range(2):
        y = [np.zeros(n) for n in lengths]
        requests = [comm.Iallreduce(a, b) for a, b in zip(x, y, strict=True)]
        order = np.random.default_rng(RANK).permutation(len(requests))
        for i in order:
            requests[i].Wait()
            np.testing.assert_array_equal(y[i], answer(SIZE, lengths[i], "d"))
    gc.collect()


@modes
def test_same_buffers_again_before_the_first_is_waited_for(comm: mpicoll.Comm) -> None:
    x, y = np.ones(100), np.zeros((3 * LANES, 100))
    requests = [comm.Iallreduce(x, row) for row in y]
    requests += [comm.Iallreduce(x, row) for row in y[:0]]
    Request.Waitall(requests)
    assert Request.Testall(requests)
    assert (y == SIZE).all()


@some_ranks
@modes
def test_free_completes_what_was_begun(comm: mpicoll.Comm) -> None:
    x, y = values(RANK, 50, "d"), np.zeros((LANES + 2, 50))
    requests = [comm.Iallreduce(x, row) for row in y[2:]]
    idle, started = (comm.Allreduce_init(x, row) for row in y[:2])
    if RANK == 0:
        requests[-1].Wait()
    else:
        started.Start()
    if SIZE > 1:
        with pytest.raises(mpicoll.ArgumentError, match="is running; Wait for it before Free"):
            comm.Free()  # on all ranks alike
    if RANK == 0:
        started.Start()
    started.Wait()
    run = idle.run
    comm.Free()
    np.testing.assert_array_equal(y[1:], [answer(SIZE, 50, "d")] * (LANES + 1))
    assert Request.Waitall(requests)
    for use in (idle.Start, idle, started.Start):
        with pytest.raises(mpicoll.MpicollError, match="communicator of this plan was freed"):
            use()
    with pytest.raises(mpicoll.MpicollError, match="was freed"):
        run()
    with pytest.raises(mpicoll.MpicollError, match="was freed"):
        comm.Allreduce(x, y[0])
    idle.Free()
    comm.Free()


@modes
def test_blocking_calls_in_between(comm: mpicoll.Comm) -> None:
    """Ranks wait at different moments: one inside a blocking call serves what it began before."""
    x, y, z = values(RANK, 20_000, "d"), np.zeros(20_000), np.zeros(3)
    for turn in range(4):
        y[:] = 0
        request = comm.Iallreduce(x, y)
        if turn % 2 == RANK % 2:
            request.Wait()
            comm.Allreduce(np.ones(3), z)
        else:
            comm.Allreduce(np.ones(3), z)
            request.Wait()
        np.testing.assert_array_equal(y, answer(SIZE, 20_000, "d"))
        np.testing.assert_array_equal(z, SIZE)


@pytest.mark.skipif(len(ENGINES) < 2, reason="the native engine is not built")
def test_the_thread_completes_while_python_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    """With no call into mpicoll or MPI at all the result appears."""
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        pytest.skip("MPI was not started at MPI_THREAD_MULTIPLE")
    monkeypatch.setenv("MPICOLL_PROGRESS", "thread")
    comm = mpicoll.Comm(WORLD, engine="native")
    x, y = values(RANK, 5000, "d"), np.zeros(5000)
    request = comm.Iallreduce(x, y, algorithm="ring")
    expected, deadline = answer(SIZE, 5000, "d"), time.monotonic() + 30
    while not np.array_equal(y, expected) and time.monotonic() < deadline:
        time.sleep(0.001)
    np.testing.assert_array_equal(y, expected)
    request.Wait()


@with_thread
@pytest.mark.ranks(2, 3)
def test_what_runs_in_the_background_is_decided_by_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two ranks it decides on the algorithm as well, whether it was asked for or is the default."""
    x, y = np.ones(1 << 18), np.zeros(1 << 18)
    for last, background in (("thread", True), ("test", False)):
        monkeypatch.setenv("MPICOLL_PROGRESS", last if RANK == SIZE - 1 else "thread")
        comm = mpicoll.Comm(WORLD, engine="native")
        request = comm.Iallreduce(x, y)
        assert request.plan.background == background
        assert request.plan.algorithm == ("recursive_doubling" if background and SIZE == 2 else "ring")
        request.Wait()
        assert (y == SIZE).all()
        comm.Allreduce(x, y)  # is no such call
        with pytest.raises(mpicoll.MismatchError, match="'background'"):
            comm.Allreduce_init(x, y, algorithm="ring", background=RANK == 0)
        comm.Free()


@some_ranks
@pytest.mark.skipif(len(ENGINES) < 2, reason="the native engine is not built")
def test_persistent_plans_in_the_background() -> None:
    comm = mpicoll.Comm(WORLD, engine="native")
    x, y = values(RANK, 3000, "d"), np.zeros(3000)
    plan = comm.Allreduce_init(x, y, background=True)
    for turn in range(20):
        y[:] = 0
        plan.Start()
        if turn % 2:
            while not plan.Test():
                pass
        plan.Wait()
        np.testing.assert_array_equal(y, answer(SIZE, 3000, "d"))
    plan.Free()
    with pytest.raises(mpicoll.ArgumentError, match="native"):
        comm.Allreduce_init(x, y, background=True, engine="python")


@pytest.mark.parametrize("engine", ENGINES)
def test_started_plans_may_be_waited_for_in_different_orders(engine: str) -> None:
    """A rank that waits for one serves the others: without a thread, nobody else would."""
    comm = mpicoll.Comm(WORLD, engine=engine)
    x, y = values(RANK, 4000, "d"), np.zeros((4, 4000))
    plans = [comm.Allreduce_init(x, row, algorithm="circulant") for row in y]
    for turn in range(3):
        y[:] = 0
        mine = np.random.default_rng((turn, RANK)).permutation(4)
        for i in mine:
            plans[i].Start()
        for i in reversed(mine):
            plans[i].Wait()
        for row in y:
            np.testing.assert_array_equal(row, answer(SIZE, 4000, "d"))
    for plan in plans:
        plan.Free()


@modes
def test_refusal_on_one_rank_reaches_the_others(comm: mpicoll.Comm) -> None:
    x, y = np.ones(50), np.zeros(50)
    if SIZE == 1:
        with pytest.raises(mpicoll.ArgumentError):
            comm.Iallreduce(x, y[:3])
        return
    if RANK == 0:
        with pytest.raises(mpicoll.ArgumentError):
            comm.Iallreduce(x, y[:3])
    else:
        request = comm.Iallreduce(x, y, algorithm="ring")
        with pytest.raises(mpicoll.RevokedError, match="rank 0 refused"):
            request.Wait()
    WORLD.Barrier()


@with_thread
@pytest.mark.ranks(2)
def test_who_waits_can_keep_the_thread_out_of_mpi() -> None:
    """As a finalizer does that the garbage collector runs in the middle of a wait."""
    comm = mpicoll.Comm(WORLD, engine="native")
    plan = comm.Allreduce_init(np.ones(9), np.zeros(9), background=True)
    listen, held = comm._planner.agreement.listen, []

    def hold_and_listen() -> None:
        with background_held():
            if RANK == 0 and not held:
                WORLD.send("waits", 1)
            held.append(1)
        listen()

    comm._planner.agreement.listen = hold_and_listen
    if RANK == 1:
        assert WORLD.recv(source=0) == "waits"
    plan.Start()
    plan.Wait()
    plan.Free()
    comm.Free()


@with_thread
@pytest.mark.ranks(2)
def test_another_thread_can_come_in_while_one_waits() -> None:
    """What one waits for may need what the other has to tell."""
    comm = mpicoll.Comm(WORLD, engine="native")
    plan = comm.Allreduce_init(np.ones(9), np.zeros(9), background=True)

    def tell() -> None:
        time.sleep(0.1)
        with background_held():
            WORLD.send("go on", 1)

    if RANK == 0:
        teller = threading.Thread(target=tell)
        teller.start()
    else:
        assert WORLD.recv(source=0) == "go on"
    plan.Start()
    plan.Wait()
    if RANK == 0:
        teller.join()
    plan.Free()
    comm.Free()


@with_thread
@pytest.mark.ranks(2)
def test_memory_stays_while_the_thread_works_on_it() -> None:
    """Even if nobody is left who could wait for the plan."""
    comm = mpicoll.Comm(WORLD, engine="native")
    x, y = np.ones(9), np.zeros(9)
    plan = comm.Allreduce_init(x, y, background=True)
    if RANK == 0:
        plan.Start()
        alive = weakref.ref(y)
        del plan, x, y
        gc.collect()
        assert alive() is not None
        WORLD.Barrier()
    else:
        WORLD.Barrier()
        plan()
        assert (y == 2).all()
    WORLD.Barrier()


@with_thread
@pytest.mark.ranks(2)
def test_a_launch_wakes_the_sleeping_thread() -> None:
    """Which would sleep for an hour: another program waits for a message that does not come before."""
    from mpicoll import _runner

    comm = mpicoll.Comm(WORLD, engine="native")
    x, y = np.ones(9), np.zeros((2, 9))
    first, second = (comm.Allreduce_init(x, row, background=True) for row in y)
    hour = 3600 * 10**9
    policy = _runner.background_policy(0, hour, hour, 1, 0)
    try:
        if RANK == 0:
            for plan in (first, second):
                plan.Start()
                deadline = time.monotonic() + 30
                while not plan.flight[0]:  # then it was looked at, has to wait, and the thread goes to sleep
                    assert time.monotonic() < deadline, "the thread slept on"
                    time.sleep(0.001)
                time.sleep(0.05)
        WORLD.Barrier()
        if RANK == 1:
            first.Start()
            second.Start()
        for plan, row in ((second, y[1]), (first, y[0])):
            plan.Wait()
            assert (row == 2).all()
    finally:
        _runner.background_policy(*policy)
    for plan in (first, second):
        plan.Free()
    comm.Free()
