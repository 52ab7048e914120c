"""`Comm`: an MPI communicator whose collectives are mpicoll's own.

Each collective exists in mpi4py's forms, with mpi4py's arguments: blocking (``Bcast``), persistent
(``Bcast_init``, which gives a `Plan`) and nonblocking (``Ibcast``, which gives a `Request`). All take these
keywords besides:

- ``algorithm``: a name from ``mpicoll list``, or "auto" (`select`);
- ``engine``: "native" or "python"; ``channels``, ``depth``: see `plan`;
- ``staging``, for buffers in device memory: whether messages pass through the host, see `staging`;
- ``background`` (persistent and nonblocking): complete it in a thread while Python computes. Left open, it is
  so for nonblocking calls of the native engine if all ranks have MPI_THREAD_MULTIPLE;
- ``stages`` (for plans): note when a composition goes over from one of its parts to the next, for
  `Plan.stage_seconds`;
- parameters of the algorithm, such as ``segments=8``.

What a call is asked for is compared between ranks when it is of a new kind (collective, counts, type,
operation, algorithm), and always for persistent ones. Then all ranks alike raise, before any message of the
collective is sent, `ArgumentError` (buffers, operation, root, parameters), `Unsupported` (the algorithm
cannot serve the case) or `MismatchError` (ranks made different calls), and the communicator goes on working.
A rank that refuses a later call of a known kind, or a nonblocking one, raises the same; the others, which had
no reason to ask, get `RevokedError` where they wait for it, and the communicator is given up.
MPICOLL_TIMEOUT=SECONDS ends a wait without progress with `TimeoutExpired`, which names the round and the
peers.

Calls of a known kind are not compared. If ranks then make different ones, a rank that gets a longer message
than it expects raises `MpicollError`, which names the sender, and gives the communicator up; the others may
return with wrong results, and get `RevokedError` with the same reason when they next wait for another rank.
MPICOLL_CHECK=1 has every call compared, for one small all-reduce each: all ranks raise `MismatchError` at
once.

Buffers are memory, as in mpi4py: a C-ordered and a Fortran-ordered array are both taken as they lie, so that
in a mixture of them elements meet that have different indices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpi4py import MPI

from . import algorithms as algorithms  # registers them
from . import calls
from .buffers import parse
from .errors import ArgumentError
from .planner import Planner
from .requests import Request
from .runner import Plan
from .topology import Topology


class Comm(MPI.Intracomm):
    """An intra-communicator with hand-written collectives.

    ``Comm(MPI.COMM_WORLD)`` is collective, as it duplicates the communicator for its own messages.
    Every other method of `MPI.Intracomm` goes on working. `Dup`, `Clone`, `Split`, `Split_type`, `Create` and
    `Create_group` give a `Comm`; what else makes communicators gives mpi4py's.
    `engine` is "native", "python" or None for the best that *all* ranks have. `calibration` names a file of
    `mpicoll calibrate`, by which ``algorithm="auto"`` ranks algorithms (None: MPICOLL_CALIBRATION, if that is
    set; else a nominal machine). It must say the same on all ranks.

    Raises `ArgumentError` on an inter-communicator, for an engine that cannot run or a calibration that
    cannot be read, and `MismatchError` if ranks have different calibrations; on all ranks alike.
    """

    _planner: Planner
    _owned: bool

    def __new__(
        cls, comm: MPI.Comm | None = None, *, engine: str | None = None, calibration: str | None = None
    ) -> Comm:
        """Wrap a communicator."""
        if comm is None:
            comm = MPI.COMM_WORLD
        if comm == MPI.COMM_NULL or not isinstance(comm, MPI.Intracomm):
            raise ArgumentError(f"mpicoll needs an intra-communicator, got {type(comm).__name__}")
        return super().__new__(cls, comm)

    def __init__(
        self, comm: MPI.Comm | None = None, *, engine: str | None = None, calibration: str | None = None
    ) -> None:
        self._planner = Planner(MPI.Intracomm(self), engine, calibration)
        self._owned = False  # Free leaves a communicator alone that somebody else made
        self._asked = {"engine": engine, "calibration": calibration}

    @property
    def nodes(self) -> tuple[int, ...]:
        """The node of each rank."""
        return self._planner.topology.node_of

    @property
    def node_topology(self) -> Topology:
        """Where its ranks run: nodes, sockets, NUMA domains (`topology` is MPI's, of grids and graphs)."""
        return self._planner.topology

    @property
    def engine(self) -> str:
        """The engine that runs plans unless told otherwise."""
        return self._planner.engine

    # -- collectives -----------------------------------------------------------------------------

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM, **options: Any) -> None:
        """Combine all ranks' `sendbuf` into every rank's `recvbuf`.

        ``MPI.IN_PLACE`` (or the same memory twice) takes the input from `recvbuf`.
        """
        self._planner.run(calls.allreduce, sendbuf, recvbuf, (op,), options)

    def Bcast(self, buf: Any, root: int = 0, **options: Any) -> None:
        """Send the root's `buf` to all ranks."""
        self._planner.run(calls.bcast, buf, None, (root,), options)

    def Reduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM, root: int = 0, **options: Any) -> None:
        """Combine all ranks' `sendbuf` into the root's `recvbuf` (ignored elsewhere)."""
        self._planner.run(calls.reduce, sendbuf, recvbuf, (op, root), options)

    def Allgather(self, sendbuf: Any, recvbuf: Any, **options: Any) -> None:
        """Collect all ranks' `sendbuf` in every rank's `recvbuf`, in rank order."""
        self._planner.run(calls.allgather, sendbuf, recvbuf, (), options)

    def Allgatherv(self, sendbuf: Any, recvbuf: Any, **options: Any) -> None:
        """`Allgather` with parts of unequal length: ``recvbuf = [buf, (counts, displacements), type]``."""
        self._planner.run(calls.allgatherv, sendbuf, recvbuf, (), options)

    def Reduce_scatter(
        self,
        sendbuf: Any,
        recvbuf: Any,
        recvcounts: Sequence[int] | None = None,
        op: MPI.Op = MPI.SUM,
        **options: Any,
    ) -> None:
        """Combine all ranks' `sendbuf`; rank r gets the r-th part, of ``recvcounts[r]`` elements."""
        counts = self._counts(sendbuf, recvbuf, recvcounts)
        self._planner.run_anew(calls.reduce_scatter, sendbuf, recvbuf, (counts, op), options)

    def Reduce_scatter_block(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM, **options: Any) -> None:
        """`Reduce_scatter` with equal parts."""
        self._planner.run(calls.reduce_scatter_block, sendbuf, recvbuf, (op,), options)

    def Alltoall(self, sendbuf: Any, recvbuf: Any, **options: Any) -> None:
        """Send the d-th part of `sendbuf` to rank d, and receive the s-th of `recvbuf` from rank s."""
        self._planner.run(calls.alltoall, sendbuf, recvbuf, (), options)

    def Alltoallv(self, sendbuf: Any, recvbuf: Any, **options: Any) -> None:
        """`Alltoall` with parts of unequal length: ``[buf, (counts, displacements), type]``."""
        self._planner.run(calls.alltoallv, sendbuf, recvbuf, (), options)

    def Gather(self, sendbuf: Any, recvbuf: Any, root: int = 0, **options: Any) -> None:
        """Collect all ranks' `sendbuf` in the root's `recvbuf` (ignored elsewhere)."""
        self._planner.run(calls.gather, sendbuf, recvbuf, (root,), options)

    def Scatter(self, sendbuf: Any, recvbuf: Any, root: int = 0, **options: Any) -> None:
        """Send the r-th part of the root's `sendbuf` (ignored elsewhere) to rank r."""
        self._planner.run(calls.scatter, sendbuf, recvbuf, (root,), options)

    def Barrier(self, **options: Any) -> None:
        """Wait until all ranks are here."""
        self._planner.run(calls.barrier, None, None, (), options)

    # -- persistent collectives: planned once, run often -----------------------------------------

    # Each gives a `Plan`, which is used like an MPI.Prequest but is none; hence the ignores.

    def Allreduce_init(  # type: ignore[override]
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: MPI.Op = MPI.SUM,
        info: MPI.Info = MPI.INFO_NULL,
        **options: Any,
    ) -> Plan:
        """Plan an `Allreduce`."""
        return self._planner.persistent(calls.allreduce, (sendbuf, recvbuf, op), options)

    def Bcast_init(  # type: ignore[override]
        self, buf: Any, root: int = 0, info: MPI.Info = MPI.INFO_NULL, **options: Any
    ) -> Plan:
        """Plan a `Bcast`."""
        return self._planner.persistent(calls.bcast, (buf, None, root), options)

    def Reduce_init(  # type: ignore[override]
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: MPI.Op = MPI.SUM,
        root: int = 0,
        info: MPI.Info = MPI.INFO_NULL,
        **options: Any,
    ) -> Plan:
        """Plan a `Reduce`."""
        return self._planner.persistent(calls.reduce, (sendbuf, recvbuf, op, root), options)

    def Allgather_init(  # type: ignore[override]
        self, sendbuf: Any, recvbuf: Any, info: MPI.Info = MPI.INFO_NULL, **options: Any
    ) -> Plan:
        """Plan an `Allgather`."""
        return self._planner.persistent(calls.allgather, (sendbuf, recvbuf), options)

    def Allgatherv_init(  # type: ignore[override]
        self, sendbuf: Any, recvbuf: Any, info: MPI.Info = MPI.INFO_NULL, **options: Any
    ) -> Plan:
        """Plan an `Allgatherv`."""
        return self._planner.persistent(calls.allgatherv, (sendbuf, recvbuf), options)

    def Reduce_scatter_init(  # type: ignore[override]
        self,
        sendbuf: Any,
        recvbuf: Any,
        recvcounts: Sequence[int] | None = None,
        op: MPI.Op = MPI.SUM,
        info: MPI.Info = MPI.INFO_NULL,
        **options: Any,
    ) -> Plan:
        """Plan a `Reduce_scatter`."""
        counts = self._counts(sendbuf, recvbuf, recvcounts)
        return self._planner.persistent(calls.reduce_scatter, (sendbuf, recvbuf, counts, op), options)

    def Reduce_scatter_block_init(  # type: ignore[override]
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: MPI.Op = MPI.SUM,
        info: MPI.Info = MPI.INFO_NULL,
        **options: Any,
    ) -> Plan:
        """Plan a `Reduce_scatter_block`."""
        return self._planner.persistent(calls.reduce_scatter_block, (sendbuf, recvbuf, op), options)

    def Alltoall_init(  # type: ignore[override]
        self, sendbuf: Any, recvbuf: Any, info: MPI.Info = MPI.INFO_NULL, **options: Any
    ) -> Plan:
        """Plan an `Alltoall`."""
        return self._planner.persistent(calls.alltoall, (sendbuf, recvbuf), options)

    def Alltoallv_init(  # type: ignore[override]
        self, sendbuf: Any, recvbuf: Any, info: MPI.Info = MPI.INFO_NULL, **options: Any
    ) -> Plan:
        """Plan an `Alltoallv`."""
        return self._planner.persistent(calls.alltoallv, (sendbuf, recvbuf), options)

    def Gather_init(  # type: ignore[override]
        self, sendbuf: Any, recvbuf: Any, root: int = 0, info: MPI.Info = MPI.INFO_NULL, **options: Any
    ) -> Plan:
        """Plan a `Gather`."""
        return self._planner.persistent(calls.gather, (sendbuf, recvbuf, root), options)

    def Scatter_init(  # type: ignore[override]
        self, sendbuf: Any, recvbuf: Any, root: int = 0, info: MPI.Info = MPI.INFO_NULL, **options: Any
    ) -> Plan:
        """Plan a `Scatter`."""
        return self._planner.persistent(calls.scatter, (sendbuf, recvbuf, root), options)

    def Barrier_init(  # type: ignore[override]
        self, info: MPI.Info = MPI.INFO_NULL, **options: Any
    ) -> Plan:
        """Plan a `Barrier`."""
        return self._planner.persistent(calls.barrier, (None, None), options)

    # -- nonblocking collectives: progress while Python computes, see `requests` ------------------

    # Each gives a `requests.Request`, which is used like an MPI.Request but is none; hence the ignores.

    def Iallreduce(  # type: ignore[override]
        self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM, **options: Any
    ) -> Request:
        """Begin an `Allreduce`."""
        return self._planner.later(calls.allreduce, (sendbuf, recvbuf, op), options)

    def Ibcast(self, buf: Any, root: int = 0, **options: Any) -> Request:  # type: ignore[override]
        """Begin a `Bcast`."""
        return self._planner.later(calls.bcast, (buf, None, root), options)

    def Ireduce(  # type: ignore[override]
        self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM, root: int = 0, **options: Any
    ) -> Request:
        """Begin a `Reduce`."""
        return self._planner.later(calls.reduce, (sendbuf, recvbuf, op, root), options)

    def Iallgather(self, sendbuf: Any, recvbuf: Any, **options: Any) -> Request:  # type: ignore[override]
        """Begin an `Allgather`."""
        return self._planner.later(calls.allgather, (sendbuf, recvbuf), options)

    def Iallgatherv(self, sendbuf: Any, recvbuf: Any, **options: Any) -> Request:  # type: ignore[override]
        """Begin an `Allgatherv`."""
        return self._planner.later(calls.allgatherv, (sendbuf, recvbuf), options)

    def Ireduce_scatter(  # type: ignore[override]
        self,
        sendbuf: Any,
        recvbuf: Any,
        recvcounts: Sequence[int] | None = None,
        op: MPI.Op = MPI.SUM,
        **options: Any,
    ) -> Request:
        """Begin a `Reduce_scatter`. Without `recvcounts` the ranks first tell each other theirs."""
        counts = self._counts(sendbuf, recvbuf, recvcounts)
        return self._planner.later(calls.reduce_scatter, (sendbuf, recvbuf, counts, op), options)

    def Ireduce_scatter_block(  # type: ignore[override]
        self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM, **options: Any
    ) -> Request:
        """Begin a `Reduce_scatter_block`."""
        return self._planner.later(calls.reduce_scatter_block, (sendbuf, recvbuf, op), options)

    def Ialltoall(self, sendbuf: Any, recvbuf: Any, **options: Any) -> Request:  # type: ignore[override]
        """Begin an `Alltoall`."""
        return self._planner.later(calls.alltoall, (sendbuf, recvbuf), options)

    def Ialltoallv(self, sendbuf: Any, recvbuf: Any, **options: Any) -> Request:  # type: ignore[override]
        """Begin an `Alltoallv`."""
        return self._planner.later(calls.alltoallv, (sendbuf, recvbuf), options)

    def Igather(  # type: ignore[override]
        self, sendbuf: Any, recvbuf: Any, root: int = 0, **options: Any
    ) -> Request:
        """Begin a `Gather`."""
        return self._planner.later(calls.gather, (sendbuf, recvbuf, root), options)

    def Iscatter(  # type: ignore[override]
        self, sendbuf: Any, recvbuf: Any, root: int = 0, **options: Any
    ) -> Request:
        """Begin a `Scatter`."""
        return self._planner.later(calls.scatter, (sendbuf, recvbuf, root), options)

    def Ibarrier(self, **options: Any) -> Request:  # type: ignore[override]
        """Begin a `Barrier`."""
        return self._planner.later(calls.barrier, (None, None), options)

    def _counts(self, sendbuf: Any, recvbuf: Any, recvcounts: Any) -> Any:
        """The counts of a reduce-scatter; without them, every rank's own, as in mpi4py."""
        if recvcounts is not None:
            return recvcounts
        if sendbuf is MPI.IN_PLACE:
            return []  # refused by the call, on all ranks

        def mine() -> int:
            return parse(recvbuf, "recvbuf", writable=True).count

        return self._planner.comm.allgather(self._planner.settle(mine, "counts of a reduce-scatter"))

    # -- communicators -----------------------------------------------------------------------------

    def free_plans(self) -> None:
        """Free the cached plans of blocking calls; persistent plans belong to whoever made them."""
        self._planner.free_plans()

    def Free(self) -> None:
        """Free the plans and the private duplicate; and the communicator itself, if it was made here.

        Nonblocking calls are completed first. Persistent plans cannot run any more; while one is running
        `ArgumentError` is raised, on all ranks, and nothing is freed.
        ``Comm(MPI.COMM_WORLD).Free()`` leaves MPI.COMM_WORLD alone; ``comm.Split(...).Free()`` does not
        leave the new communicator. Collective.
        """
        self._planner.free()
        if self._owned:
            super().Free()

    def _adopt(self, comm: MPI.Comm) -> Comm:
        """A `Comm` that owns a communicator just made; MPI.COMM_NULL stays what it is."""
        if comm == MPI.COMM_NULL:
            return comm  # type: ignore[return-value]  # mpi4py, too, returns a null communicator here
        adopted = Comm(comm, **self._asked)
        adopted._owned = True
        return adopted

    def Dup(self, info: MPI.Info | None = None) -> Comm:
        """Duplicate; the result is a `Comm`."""
        return self._adopt(MPI.Intracomm(self).Dup(info))

    Clone = Dup

    def Dup_with_info(self, info: MPI.Info) -> Comm:
        """Duplicate with hints; the result is a `Comm`."""
        return self._adopt(MPI.Intracomm(self).Dup_with_info(info))

    def Idup(  # type: ignore[override]
        self, info: MPI.Info | None = None
    ) -> tuple[MPI.Intracomm, MPI.Request]:
        """Duplicate without waiting; the result is mpi4py's: wrap it in a `Comm` when it is there."""
        return MPI.Intracomm(self).Idup(info)

    def Split(self, color: int = 0, key: int = 0) -> Comm:
        """Split by color, ordered by key; the result is a `Comm`."""
        return self._adopt(MPI.Intracomm(self).Split(color, key))

    def Split_type(self, split_type: int, key: int = 0, info: MPI.Info = MPI.INFO_NULL) -> Comm:
        """Split by what ranks share, such as a node; the result is a `Comm`."""
        return self._adopt(MPI.Intracomm(self).Split_type(split_type, key, info))

    def Create(self, group: MPI.Group) -> Comm:
        """A `Comm` of the ranks of a group; MPI.COMM_NULL on the others."""
        return self._adopt(MPI.Intracomm(self).Create(group))

    def Create_group(self, group: MPI.Group, tag: int = 0) -> Comm:
        """A `Comm` of the ranks of a group, collective over these only."""
        return self._adopt(MPI.Intracomm(self).Create_group(group, tag))
