"""The other collectives on real MPI: every algorithm, root, count and engine; MPI's buffer rules."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import mpicoll

from .support import ENGINES, WORLD, Guarded, answer, equal, values, world

SIZE, RANK = WORLD.size, WORLD.rank
both_engines = pytest.mark.parametrize("engine", ENGINES)
COUNTS = sorted({0, 1, SIZE - 1, SIZE, SIZE + 1, 2 * SIZE + 1, 700})


def cases(count: int) -> list[tuple[int, int]]:
    """Channels and depth: one pair for each count in turn (unit tests run every count with every pair)."""
    return [((1, 1), (3, 2))[COUNTS.index(count) % 2]]


def every(collective: str, ordered: bool | None = None) -> Any:
    names = [a.name for a in mpicoll.catalogue(collective) if ordered in (None, a.ordered)]
    return pytest.mark.parametrize("algorithm", names)


def roots() -> list[int]:
    return sorted({0, SIZE // 2, SIZE - 1})


def skip_unsupported(collective: str, algorithm: str) -> None:
    entry = mpicoll.get(collective, algorithm)
    params = {"nodes": (0,) * SIZE} if entry.hierarchical else {}
    if reason := entry.refusal(SIZE, params):
        pytest.skip(f"{algorithm} refuses {SIZE} ranks: {reason}")


def rows(count: int, dtype: str = "f") -> np.ndarray:
    """The inputs of all ranks, one row each."""
    return np.array([values(r, count, dtype) for r in range(SIZE)]).reshape(SIZE, count)


@both_engines
@every("bcast")
def test_bcast(algorithm: str, engine: str) -> None:
    skip_unsupported("bcast", algorithm)
    comm = world(engine)
    for count in COUNTS:
        for root in roots():
            for channels, depth in cases(count):
                buffer = Guarded(values(RANK, count) if root == RANK else np.full(count, 77, "f"))
                comm.Bcast(buffer.array, root, algorithm=algorithm, channels=channels, depth=depth)
                equal(buffer.array, values(root, count))
                buffer.check()


@both_engines
@every("reduce")
def test_reduce(algorithm: str, engine: str) -> None:
    skip_unsupported("reduce", algorithm)
    comm = world(engine)
    for count in COUNTS:
        for root in roots():
            for channels, depth in cases(count):
                source, result = Guarded(values(RANK, count)), Guarded(np.full(count, 77, "f"))
                options = {"algorithm": algorithm, "channels": channels, "depth": depth}
                target = result.array if root == RANK else None
                comm.Reduce(source.array, target, root=root, **options)
                expected = answer(SIZE, count) if root == RANK else np.full(count, 77, "f")
                equal(result.array, expected)
                equal(source.array, values(RANK, count))
                if root == RANK:
                    comm.Reduce(MPI.IN_PLACE, source.array, root=root, **options)
                    equal(source.array, answer(SIZE, count))
                else:
                    comm.Reduce(source.array, None, root=root, **options)
                    equal(source.array, values(RANK, count))
                source.check()
                result.check()


@both_engines
@every("allgather")
def test_allgather(algorithm: str, engine: str) -> None:
    skip_unsupported("allgather", algorithm)
    comm = world(engine)
    for count in COUNTS:
        for channels, depth in cases(count):
            options = {"algorithm": algorithm, "channels": channels, "depth": depth}
            result = Guarded(np.full(SIZE * count, 77, "f"))
            comm.Allgather(values(RANK, count), result.array, **options)
            equal(result.array.reshape(SIZE, count), rows(count))
            result.array[...] = 77
            result.array[RANK * count : (RANK + 1) * count] = values(RANK, count)
            comm.Allgather(MPI.IN_PLACE, result.array, **options)
            equal(result.array.reshape(SIZE, count), rows(count))
            result.check()


def uneven() -> tuple[list[int], list[int]]:
    """Counts with zeros, and displacements with gaps, not in rank order."""
    counts = [(r * 5 + 2) % 7 for r in range(SIZE)]
    displacements = [0] * SIZE
    at = 2
    for rank in reversed(range(SIZE)):
        displacements[rank] = at
        at += counts[rank] + 1
    return counts, displacements


@both_engines
@every("allgather")
def test_allgatherv_with_gaps_and_empty_parts(algorithm: str, engine: str) -> None:
    skip_unsupported("allgather", algorithm)
    comm = world(engine)
    counts, displacements = uneven()
    total = 2 + sum(counts) + SIZE
    expected = np.full(total, 77, "d")
    for rank in range(SIZE):
        expected[displacements[rank] : displacements[rank] + counts[rank]] = values(rank, counts[rank], "d")
    result = Guarded(np.full(total, 77, "d"))
    target = [result.array, (counts, displacements), MPI.DOUBLE]
    comm.Allgatherv(values(RANK, counts[RANK], "d"), target, algorithm=algorithm, channels=2)
    equal(result.array, expected)
    result.array[...] = 77
    mine = slice(displacements[RANK], displacements[RANK] + counts[RANK])
    result.array[mine] = values(RANK, counts[RANK], "d")
    comm.Allgatherv(MPI.IN_PLACE, target, algorithm=algorithm)
    equal(result.array, expected)
    result.check()


@both_engines
@every("reduce_scatter")
def test_reduce_scatter_block(algorithm: str, engine: str) -> None:
    skip_unsupported("reduce_scatter", algorithm)
    comm = world(engine)
    for count in COUNTS:
        total = answer(SIZE, SIZE * count)
        mine = total[RANK * count : (RANK + 1) * count]
        for channels, depth in cases(count):
            options = {"algorithm": algorithm, "channels": channels, "depth": depth}
            source = Guarded(values(RANK, SIZE * count))
            result = Guarded(np.full(count, 77, "f"))
            comm.Reduce_scatter_block(source.array, result.array, **options)
            equal(result.array, mine)
            equal(source.array, values(RANK, SIZE * count))
            comm.Reduce_scatter_block(MPI.IN_PLACE, source.array, **options)
            equal(source.array[:count], mine)
            tail = values(RANK, SIZE * count)[count:]
            equal(source.array[count:], tail, "the tail must be untouched")
            source.check()
            result.check()


@both_engines
@every("reduce_scatter")
def test_reduce_scatter_of_unequal_parts(algorithm: str, engine: str) -> None:
    skip_unsupported("reduce_scatter", algorithm)
    comm = world(engine)
    counts = uneven()[0]
    offset = sum(counts[:RANK])
    mine = answer(SIZE, sum(counts), "d")[offset : offset + counts[RANK]]
    for given in (counts, None):
        result = Guarded(np.full(counts[RANK], 77, "d"))
        comm.Reduce_scatter(values(RANK, sum(counts), "d"), result.array, given, algorithm=algorithm)
        equal(result.array, mine)
        result.check()
    buffer = Guarded(values(RANK, sum(counts), "d"))
    comm.Reduce_scatter(MPI.IN_PLACE, buffer.array, counts, algorithm=algorithm)
    equal(buffer.array[: counts[RANK]], mine)
    buffer.check()


def exchanged(count: int) -> tuple[np.ndarray, np.ndarray]:
    """All-to-all's input and output of this rank."""
    table = np.arange(SIZE * SIZE * count, dtype="d").reshape(SIZE, SIZE, count)
    return table[RANK].reshape(-1).copy(), table[:, RANK].reshape(-1).copy()


@both_engines
@every("alltoall")
def test_alltoall(algorithm: str, engine: str) -> None:
    skip_unsupported("alltoall", algorithm)
    comm = world(engine)
    for count in COUNTS:
        for channels, depth in cases(count):
            options = {"algorithm": algorithm, "channels": channels, "depth": depth}
            source, expected = exchanged(count)
            result = Guarded(np.full(SIZE * count, 77.0))
            comm.Alltoall(source, result.array, **options)
            equal(result.array, expected)
            result.array[...] = source
            comm.Alltoall(MPI.IN_PLACE, result.array, **options)
            equal(result.array, expected)
            result.check()


@both_engines
@pytest.mark.parametrize("algorithm", ["auto", "linear", "pairwise"])
def test_alltoallv_with_gaps_and_empty_parts(algorithm: str, engine: str) -> None:
    comm = world(engine)
    counts = [[(s * 3 + d * 5 + 1) % 6 for d in range(SIZE)] for s in range(SIZE)]
    send_counts, recv_counts = counts[RANK], [counts[s][RANK] for s in range(SIZE)]
    send_at = [sum(send_counts[:d]) + d for d in range(SIZE)]
    recv_at = [sum(recv_counts[s + 1 :]) for s in range(SIZE)]
    source = np.full(sum(send_counts) + SIZE, -1, "i")
    for d in range(SIZE):
        source[send_at[d] : send_at[d] + send_counts[d]] = 100 * RANK + 10 * d
    result = Guarded(np.full(sum(recv_counts), -1, "i"))
    comm.Alltoallv(
        [source, (send_counts, send_at), MPI.INT],
        [result.array, (recv_counts, recv_at), MPI.INT],
        algorithm=algorithm,
    )
    for s in range(SIZE):
        part = result.array[recv_at[s] : recv_at[s] + recv_counts[s]]
        equal(part, 100 * s + 10 * RANK)
    result.check()


@both_engines
@every("gather")
def test_gather(algorithm: str, engine: str) -> None:
    skip_unsupported("gather", algorithm)
    comm = world(engine)
    for count in COUNTS:
        for root in roots():
            result = Guarded(np.full(SIZE * count, 77, "f"))
            target = result.array if root == RANK else None
            comm.Gather(values(RANK, count), target, root, algorithm=algorithm, channels=2)
            if root == RANK:
                equal(result.array.reshape(SIZE, count), rows(count))
                result.array[...] = 77
                result.array[root * count : (root + 1) * count] = values(RANK, count)
            source = MPI.IN_PLACE if root == RANK else values(RANK, count)
            comm.Gather(source, target, root, algorithm=algorithm)
            if root == RANK:
                equal(result.array.reshape(SIZE, count), rows(count))
            result.check()


@both_engines
@every("scatter")
def test_scatter(algorithm: str, engine: str) -> None:
    skip_unsupported("scatter", algorithm)
    comm = world(engine)
    for count in COUNTS:
        for root in roots():
            source = rows(count).reshape(-1) if root == RANK else None
            result = Guarded(np.full(count, 77, "f"))
            comm.Scatter(source, result.array, root, algorithm=algorithm, channels=2)
            equal(result.array, values(RANK, count))
            result.array[...] = 77
            target = MPI.IN_PLACE if root == RANK else result.array
            comm.Scatter(source, target, root, algorithm=algorithm)
            if root != RANK:
                equal(result.array, values(RANK, count))
            result.check()


@both_engines
@every("barrier")
def test_barrier_waits_for_the_last(algorithm: str, engine: str) -> None:
    """On one machine all ranks read the same monotonic clock: nobody leaves before the last has come."""
    skip_unsupported("barrier", algorithm)
    comm = world(engine)
    for turn in range(4):
        if turn % SIZE == RANK:
            time.sleep(0.02)
        came = time.monotonic()
        comm.Barrier(algorithm=algorithm)
        left = time.monotonic()
        assert max(WORLD.allgather(came)) <= min(WORLD.allgather(left))


@both_engines
@pytest.mark.parametrize("collective", ["reduce", "reduce_scatter"])
def test_operation_that_does_not_commute(collective: str, engine: str) -> None:
    """Left projection a∘b = a: the result is rank 0's data if, and only if, order is kept."""

    def first(left: MPI.buffer, right: MPI.buffer, datatype: MPI.Datatype) -> None:
        right[:] = bytes(left)

    comm, op = world(engine), MPI.Op.Create(first, commute=False)
    for entry in mpicoll.catalogue(collective):
        source = np.arange(SIZE * 3, dtype="d") + 100 * RANK
        expected = np.arange(SIZE * 3, dtype="d")
        for root in roots():
            result = np.zeros(3 if collective == "reduce_scatter" else SIZE * 3)

            def call(name: str, result: Any = result, source: Any = source, root: int = root) -> None:
                if collective == "reduce":
                    comm.Reduce(source, result, op, root, algorithm=name)
                else:
                    comm.Reduce_scatter_block(source, result, op, algorithm=name)

            nodes = {"nodes": (0,) * SIZE} if entry.hierarchical else {}
            if not entry.ordered or entry.refusal(SIZE, nodes):
                with pytest.raises(mpicoll.Unsupported):
                    call(entry.name)
                continue
            call(entry.name)
            if collective == "reduce_scatter":
                equal(result, expected[RANK * 3 : RANK * 3 + 3], entry.name)
            elif root == RANK:
                equal(result, expected, entry.name)
    comm.free_plans()
    op.Free()


@both_engines
def test_every_collective_refuses_bad_input_on_all_ranks(engine: str) -> None:
    comm = world(engine)
    x, y = np.zeros(SIZE * 2), np.zeros(SIZE * 2)
    odd = np.zeros(SIZE * 2 + 1)
    bad = [
        (lambda: comm.Bcast(x, SIZE), "root"),
        (lambda: comm.Bcast(x, -1), "root"),
        (lambda: comm.Reduce(x, y[1:], root=RANK * 0), "must agree"),
        (lambda: comm.Allgather(x, y[:1]), "cannot be cut|expects" if SIZE > 1 else "expects"),
        (lambda: comm.Allgatherv(x, [y, [1] * (SIZE + 1), MPI.DOUBLE]), "expected"),
        (lambda: comm.Allgatherv(x[:1], [y, ([1] * SIZE, [99] * SIZE), MPI.DOUBLE]), "outside"),
        (lambda: comm.Reduce_scatter_block(x, y), "must agree" if SIZE > 1 else "x"),
        (lambda: comm.Reduce_scatter(x, y, [2] * (SIZE + 1)), "recvcounts"),
        (lambda: comm.Reduce_scatter(MPI.IN_PLACE, y), "recvcounts"),
        (lambda: comm.Alltoall(x, x), "overlap"),
        (lambda: comm.Alltoall(odd, odd.copy()), "cannot be cut" if SIZE > 1 else "x"),
        (lambda: comm.Gather(x, y[:1], 0), "cannot be cut|expects|refused"),
        (lambda: comm.Scatter(x, y, 0), "must agree|refused" if SIZE > 1 else "x"),
    ]
    for number, (call, reason) in enumerate(bad):
        if reason == "x":
            continue  # legal with a single rank
        with pytest.raises(mpicoll.MpicollError, match=reason):
            call()
        comm.Barrier()
        assert number >= 0


@both_engines
def test_persistent_forms_run_again_and_again(engine: str) -> None:
    comm, n = world(engine), 3
    x, parts = values(RANK, n, "d"), values(RANK, n * SIZE, "d")
    one, all_, root = np.zeros(n), np.zeros(n * SIZE), SIZE - 1
    data = np.zeros(n)
    plans = {
        "bcast": comm.Bcast_init(data, root),
        "reduce": comm.Reduce_init(x, one, root=root),
        "allgather": comm.Allgather_init(x, all_),
        "allgatherv": comm.Allgatherv_init(x, all_),
        "reduce_scatter": comm.Reduce_scatter_init(parts, one, [n] * SIZE),
        "reduce_scatter_block": comm.Reduce_scatter_block_init(parts, one),
        "alltoall": comm.Alltoall_init(parts, all_),
        "alltoallv": comm.Alltoallv_init(parts, all_),
        "gather": comm.Gather_init(x, all_, root),
        "scatter": comm.Scatter_init(parts, one, root),
        "barrier": comm.Barrier_init(),
    }
    total = answer(SIZE, n * SIZE, "d")[RANK * n : (RANK + 1) * n]
    table = np.array([values(r, n * SIZE, "d") for r in range(SIZE)]).reshape(SIZE, SIZE, n)
    for _ in range(3):
        for name, plan in plans.items():
            one[:], all_[:], data[:] = 77, 77, 77 if root != RANK else x
            plan.Start()
            plan.Wait()
            at_root = root == RANK
            checks = {
                "bcast": lambda: (data, values(root, n, "d")),
                "reduce": lambda at=at_root: (one, answer(SIZE, n, "d") if at else 77),
                "allgather": lambda: (all_, rows(n, "d").reshape(-1)),
                "allgatherv": lambda: (all_, rows(n, "d").reshape(-1)),
                "reduce_scatter": lambda: (one, total),
                "reduce_scatter_block": lambda: (one, total),
                "alltoall": lambda: (all_, table[:, RANK].reshape(-1)),
                "alltoallv": lambda: (all_, table[:, RANK].reshape(-1)),
                "gather": lambda at=at_root: (all_, rows(n, "d").reshape(-1) if at else 77),
                "scatter": lambda: (one, table[root, RANK]),
                "barrier": lambda: (one, 77),
            }
            found, expected = checks[name]()
            equal(found, expected, name)
    for plan in plans.values():
        plan.Free()


@both_engines
def test_stage_times_add_up_to_the_whole_call(engine: str) -> None:
    comm, count = world(engine), 40_000
    x, y = values(RANK, count), np.empty(count, "f")
    nodes = tuple(rank % 2 for rank in range(SIZE))
    plan = comm.Allreduce_init(x, y, algorithm="two_level", nodes=nodes, channels=3, depth=2, stages=True)
    for _ in range(2):
        began = time.monotonic_ns()
        plan.run()
        whole = (time.monotonic_ns() - began) * 1e-9
        seconds = plan.stage_seconds()
        assert all(took > 0 for took in seconds.values())
        assert sum(seconds.values()) <= whole
    assert set(seconds) == {step.stage or "all" for step in _rounds("two_level", nodes)}
    plan.Free()
    plan = comm.Allreduce_init(x, y, algorithm="two_level", nodes=nodes)
    plan.run()
    assert plan.stage_seconds() == {}
    plan.Free()


def _rounds(name: str, nodes: tuple[int, ...]) -> list[mpicoll.Round]:
    """The rounds of this rank; where it has none, one without messages."""
    return [*mpicoll.get("allreduce", name).schedule(RANK, SIZE, {"nodes": nodes})] or [mpicoll.Round()]
