"""Collectives on device memory over MPI, with a fake device that does everything as late as it may.

The caller's kernels that write the input are still queued when a collective begins, and its results are read
in the order of the caller's stream. That no wait can be spared is shown in tests/unit/test_staging.py; here
the engine, the requests and the real waits of MPI are put to work. With MPICOLL_TEST_DEVICE=real the same
tests run on a real device (tests/gpu).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import mpicoll
from devices import fake_device
from mpicoll.probe import _remembered, aware

from .support import WORLD, answer, values

pytestmark = pytest.mark.ranks(2, 3)  # the programs are proved for more in tests/unit/test_staging.py
RANKS = WORLD.size
COUNT = 1003
STAGINGS = ["none", "host", "device"]
every_staging = pytest.mark.parametrize("staging", STAGINGS)


@pytest.fixture(autouse=True)
def cupy(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Any]:
    if os.environ.get("MPICOLL_TEST_DEVICE") == "real":
        proved = bool(aware().aware)
        if not proved and _params(request).get("staging", "none") == "none":
            pytest.skip(f"MPI is given no device memory: {aware().how}")
        yield pytest.importorskip("cupy")
        return
    monkeypatch.setenv("MPICOLL_GPU_AWARE", "1")
    with fake_device() as module:
        yield module


def _params(request: pytest.FixtureRequest) -> dict[str, Any]:
    return request.node.callspec.params if hasattr(request.node, "callspec") else {}


@functools.cache
def world(engine: str) -> mpicoll.Comm:
    """Made while device memory in messages counts as proved, and once."""
    return mpicoll.Comm(WORLD, engine=engine)


def slowly(cupy: Any, content: Any) -> Any:
    """A device array whose content is there only when somebody waits for it."""
    made = cupy.empty(content.shape, content.dtype)
    source = cupy.asarray(content)
    busy = cupy.zeros(1 << 16, "f")
    for _ in range(3 if cupy.__version__ == "fake" else 300):
        cupy.add(busy, busy, out=busy)
    made[...] = source
    return made


@every_staging
@pytest.mark.parametrize(
    ("algorithm", "dtype"), [("ring", "f"), ("circulant", "d"), ("recursive_doubling", "e"), ("ring", "q")]
)
def test_allreduce(cupy: Any, staging: str, algorithm: str, dtype: str) -> None:
    comm = world("python")
    x, y = slowly(cupy, values(WORLD.rank, COUNT, dtype)), cupy.empty(COUNT, dtype)
    plan = comm.Allreduce_init(x, y, algorithm=algorithm, channels=3, depth=2, staging=staging)
    assert (plan.engine, plan.staging) == ("python", staging)
    assert plan.buffer == ("cupy" if staging == "none" else "cupy_staged")
    results = []
    for factor in (1, 2):  # the second run begins while what the first one left is still queued
        x[...] = cupy.asarray(values(WORLD.rank, COUNT, dtype) * np.dtype(dtype).type(factor))
        plan()
        results.append(y.copy())
        y.fill(-1)
    for factor, result in zip((1, 2), results, strict=True):
        np.testing.assert_array_equal(result.get(), answer(RANKS, COUNT, dtype) * factor)
    plan.Free()


@every_staging
@pytest.mark.parametrize("op", ["max", "prod", "land", "bxor"])
def test_operations(cupy: Any, staging: str, op: str) -> None:
    comm = world("python")
    x, y = slowly(cupy, values(WORLD.rank, COUNT, "i", op)), cupy.empty(COUNT, "i")
    comm.Allreduce(x, y, getattr(MPI, op.upper()), algorithm="ring", staging=staging)
    np.testing.assert_array_equal(y.get(), answer(RANKS, COUNT, "i", op))
    comm.Allreduce(MPI.IN_PLACE, x, getattr(MPI, op.upper()), staging=staging)
    np.testing.assert_array_equal(x.get(), answer(RANKS, COUNT, "i", op))


@every_staging
def test_all_other_collectives(cupy: Any, staging: str) -> None:
    comm, rank, root, n = world("python"), WORLD.rank, RANKS - 1, 37
    everyone = [values(r, n) for r in range(RANKS)]

    def out(count: int) -> Any:
        return cupy.empty(count, "f")

    x, many = slowly(cupy, everyone[rank]), slowly(cupy, np.concatenate(everyone) + rank)
    y, whole = out(n), out(n * RANKS)
    comm.Reduce(x, y if rank == root else None, MPI.SUM, root, staging=staging)
    if rank == root:
        np.testing.assert_array_equal(y.get(), answer(RANKS, n))
    comm.Allgather(x, whole, staging=staging)
    np.testing.assert_array_equal(whole.get(), np.concatenate(everyone))
    part = out(n)
    comm.Reduce_scatter_block(many, part, staging=staging)
    np.testing.assert_array_equal(part.get(), everyone[rank] * RANKS + sum(range(RANKS)))
    swapped = out(n * RANKS)
    comm.Alltoall(many, swapped, staging=staging)
    np.testing.assert_array_equal(swapped.get(), np.concatenate([everyone[rank] + r for r in range(RANKS)]))
    data = slowly(cupy, everyone[rank])
    comm.Bcast(data, root, staging=staging)
    np.testing.assert_array_equal(data.get(), everyone[root])
    gathered = out(n * RANKS)
    comm.Gather(x, gathered if rank == root else None, root, staging=staging)
    if rank == root:
        np.testing.assert_array_equal(gathered.get(), np.concatenate(everyone))
    comm.Scatter(many if rank == root else None, part, root, staging=staging)
    np.testing.assert_array_equal(part.get(), everyone[rank] + root)


@every_staging
def test_nonblocking_does_not_wait_for_the_callers_kernels(cupy: Any, staging: str) -> None:
    comm = world("python")
    x, y = slowly(cupy, values(WORLD.rank, COUNT)), cupy.empty(COUNT, "f")
    request = comm.Iallreduce(x, y, algorithm="ring", staging=staging)
    later = cupy.asarray(np.arange(5))  # queued behind it on the same stream
    request.Wait()
    np.testing.assert_array_equal(y.get(), answer(RANKS, COUNT))
    np.testing.assert_array_equal(later.get(), np.arange(5))


@every_staging
def test_streams_change_between_runs(cupy: Any, staging: str) -> None:
    """Scratch is not overwritten under the kernels of the run before, on another stream."""
    comm = world("python")
    x, y = cupy.empty(COUNT, "f"), cupy.empty(COUNT, "f")
    plan = comm.Allreduce_init(x, y, algorithm="ring", staging=staging)
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    copies = []
    for number, stream in enumerate(streams):
        with stream:
            x[...] = cupy.asarray(values(WORLD.rank, COUNT) + number)
            plan.Start()
        plan.Wait()  # while another stream is the current one: the results are on the run's
        with stream:
            copies.append(y.copy())
            event = cupy.cuda.Event()
            event.record()
        streams[1].wait_event(event)  # the buffers are the caller's, the scratch is not
    for stream, number, copy in zip(streams, (0, 1), copies, strict=True):
        with stream:
            np.testing.assert_array_equal(copy.get(), answer(RANKS, COUNT) + number * RANKS)
    plan.Free()


def test_what_the_device_cannot_compute_is_reduced_on_the_host(cupy: Any) -> None:
    comm = world("python")
    last = MPI.Op.Create(lambda a, b, t: np.copyto(np.frombuffer(b, "f"), np.frombuffer(a, "f")))
    x, y = slowly(cupy, values(WORLD.rank, COUNT)), cupy.empty(COUNT, "f")
    plan = comm.Allreduce_init(x, y, last, algorithm="recursive_doubling")
    assert (plan.buffer, plan.staging) == ("cupy_staged", "host")
    plan()
    np.testing.assert_array_equal(y.get(), values(0, COUNT))
    with pytest.raises(mpicoll.ArgumentError, match="use 'host'"):
        comm.Allreduce(x, y, last, algorithm="recursive_doubling", staging="device")
    plan.Free()
    last.Free()


def test_unproved_libraries_get_no_device_memory(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPICOLL_GPU_AWARE", "0")
    comm = mpicoll.Comm(WORLD, engine="python")
    x, y = slowly(cupy, values(WORLD.rank, 64)), cupy.empty(64, "f")
    plan = comm.Allreduce_init(x, y)
    assert plan.buffer == "cupy_staged"
    plan.Free()
    with pytest.raises(mpicoll.ArgumentError, match="MPICOLL_GPU_AWARE=0"):
        comm.Allreduce(x, y, staging="none")
    with pytest.raises(mpicoll.ArgumentError, match="need engine='python'"):
        comm.Allreduce(x, y, engine="native")
    with pytest.raises(mpicoll.ArgumentError, match="sendbuf is in device memory, recvbuf in host memory"):
        comm.Allreduce(x, np.empty(64, "f"))
    with pytest.raises(mpicoll.ArgumentError, match="staging is for device buffers"):
        comm.Allreduce(np.empty(64, "f"), np.empty(64, "f"), staging="host")
    comm.Free()


@pytest.mark.parametrize("lacking", range(RANKS))
def test_a_proof_counts_where_every_rank_has_it(
    cupy: Any, monkeypatch: pytest.MonkeyPatch, lacking: int, tmp_path: Path
) -> None:
    """Where one rank's cache knows nothing, none gives MPI device memory, and all reduce in one place."""
    if lacking == WORLD.rank:
        monkeypatch.delenv("MPICOLL_GPU_AWARE")
        monkeypatch.setenv("MPICOLL_CACHE", str(tmp_path))
        _remembered.cache_clear()
    comm = mpicoll.Comm(WORLD, engine="python")
    x, y = slowly(cupy, values(WORLD.rank, COUNT)), cupy.empty(COUNT, "f")
    for _ in range(2):
        comm.Allreduce(x, y, algorithm="ring")  # whose kind is not compared again
        np.testing.assert_array_equal(y.get(), answer(RANKS, COUNT))
        y.fill(0)
    comm.Iallreduce(x, y, algorithm="ring").Wait()  # nor ever
    np.testing.assert_array_equal(y.get(), answer(RANKS, COUNT))
    where = "" if lacking == WORLD.rank else f"on rank {lacking}: "
    with pytest.raises(mpicoll.ArgumentError, match=f"{where}not proved on this machine"):
        comm.Allreduce(x, y, staging="none")
    comm.Free()
    _remembered.cache_clear()


def test_a_wrong_override_is_refused_on_all_ranks(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if WORLD.rank == 0:
        monkeypatch.setenv("MPICOLL_GPU_AWARE", "yes")
    with pytest.raises(mpicoll.ArgumentError, match="MPICOLL_GPU_AWARE is 0 or 1"):
        mpicoll.Comm(WORLD)


def test_ranks_must_reduce_in_the_same_place(cupy: Any) -> None:
    comm = world("python")
    x, y = slowly(cupy, values(WORLD.rank, 64)), cupy.empty(64, "f")
    staging = "host" if WORLD.rank else "device"
    if RANKS > 1:
        with pytest.raises(mpicoll.MismatchError):
            comm.Allreduce_init(x, y, staging=staging)  # (persistent calls are always compared)


def test_ranks_may_stage_messages_as_each_has_to(cupy: Any) -> None:
    """One rank's memory is managed: its messages pass through the host, and all reduce on the device."""
    comm = world("python")
    managed = cupy.cuda.MemoryPointer(cupy.cuda.ManagedMemory(4 * COUNT), 0)
    x = cupy.ndarray((COUNT,), "f", managed if WORLD.rank == 0 else None)
    y = cupy.empty(COUNT, "f")
    x[...] = cupy.asarray(values(WORLD.rank, COUNT))
    plan = comm.Allreduce_init(x, y, algorithm="ring")
    assert plan.staging == ("none" if WORLD.rank else "device")
    plan()
    np.testing.assert_array_equal(y.get(), answer(RANKS, COUNT))
    plan.Free()
