"""`Comm`: an MPI communicator whose collectives are mpicoll's own."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any

from mpi4py import MPI

from . import algorithms as algorithms  # registers them
from .agree import Agreement
from .buffers import Buffer, parse
from .errors import ArgumentError, Unsupported
from .ops import Operation, name_of, resolve
from .plan import Layout, compile_program, vector_layout
from .registry import Algorithm, Params, get
from .registry import algorithms as registered
from .runner import Environment, Plan, check_engine, native_status
from .select import choose_allreduce, default_channels
from .topology import node_map

PLAN_CACHE = 128  # plans kept per communicator; each holds scratch and requests
TAGS_PER_PLAN = 16  # the deepest channel rotation


class Call:
    """One collective call, as far as a rank knows it: what is asked, of which buffers."""

    __slots__ = ("algorithm", "channels", "collective", "depth", "engine", "layout", "operation", "params",
                 "recv", "root", "send")  # fmt: skip

    def __init__(self, collective: str, send: Buffer | None, recv: Buffer | None, layout: Layout) -> None:
        self.collective, self.send, self.recv, self.layout = collective, send, recv, layout
        self.root: int | None = None
        self.operation: Operation | None = None
        self.algorithm: Algorithm
        self.params: Params = {}
        self.engine = ""
        self.channels = self.depth = 1


class Comm(MPI.Intracomm):
    """An intra-communicator with hand-written collectives.

    ``Comm(MPI.COMM_WORLD)`` is collective, as it duplicates the communicator for its own messages.
    Every other method of `MPI.Intracomm` goes on working. `engine` is "native", "python" or None for
    the best that *all* ranks have.

    Raises `ArgumentError` on an inter-communicator or for an engine that cannot run.
    """

    def __new__(cls, comm: MPI.Comm | None = None, *, engine: str | None = None) -> Comm:
        """Wrap a communicator."""
        if comm is None:
            comm = MPI.COMM_WORLD
        if comm == MPI.COMM_NULL or not isinstance(comm, MPI.Intracomm):
            raise ArgumentError(f"mpicoll needs an intra-communicator, got {type(comm).__name__}")
        return super().__new__(cls, comm)

    def __init__(self, comm: MPI.Comm | None = None, *, engine: str | None = None) -> None:
        private = self._private = MPI.Intracomm(self).Dup()
        self._owned = False  # Free leaves a communicator alone that somebody else made
        self.nodes: tuple[int, ...] = node_map(private)
        mine = self.nodes.count(self.nodes[self.rank])
        polite = mine > len(os.sched_getaffinity(0))
        top = private.Get_attr(MPI.TAG_UB)
        self._tag_top = 32767 if top is None else int(top)
        self._agreement = Agreement(private, self._tag_top, polite)
        self._environment = Environment(
            private,
            polite,
            self._agreement.listen,
            sync_sends=bool(os.environ.get("MPICOLL_SYNC_SENDS")),
            trace=bool(os.environ.get("MPICOLL_TRACE")),
            timeout=float(os.environ["MPICOLL_TIMEOUT"]) if os.environ.get("MPICOLL_TIMEOUT") else None,
        )
        self._asked_engine = engine
        self.engine = self._agree_on_engine(engine)
        self._plans: OrderedDict[Hashable, Plan] = OrderedDict()
        self._sequence = 0
        self._check_always = bool(os.environ.get("MPICOLL_CHECK"))

    def _agree_on_engine(self, engine: str | None) -> str:
        error: Exception | None = None
        try:
            chosen = check_engine("python" if self._environment.trace and engine is None else engine)
        except ArgumentError as caught:
            chosen, error = "", caught
        # A rank without the extension makes all use the reference engine: results must not differ.
        everywhere = self._private.allreduce(native_status()[0], MPI.MIN)
        if chosen == "native" and not everywhere and not (engine or os.environ.get("MPICOLL_ENGINE")):
            chosen = "python"
        self._agreement.settle(("engine", chosen), error)
        return chosen

    # -- all-reduce ------------------------------------------------------------------------------

    def Allreduce(
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: MPI.Op = MPI.SUM,
        *,
        algorithm: str = "auto",
        engine: str | None = None,
        channels: int | None = None,
        depth: int | None = None,
        **params: Any,
    ) -> None:
        """Combine all ranks' `sendbuf` into every rank's `recvbuf`.

        Buffers are mpi4py's buffer specifications; ``MPI.IN_PLACE`` (or the same memory twice) as
        `sendbuf` takes the input from `recvbuf`. `algorithm` is a name from ``mpicoll list``, "auto" the
        choice of `select`; `channels` stripes the vector and `depth` stripes are in flight together;
        other keywords are the algorithm's parameters.

        Raises, on all ranks alike, `ArgumentError` (buffers, operation, parameters), `Unsupported` (the
        algorithm cannot serve the case) or `MismatchError` (ranks differ in count, type, operation or
        algorithm), before any message of the collective is sent.
        """
        options = (algorithm, engine, channels, depth, params)
        self._cached(self._allreduce_call, (sendbuf, recvbuf, op, options)).run()

    def Allreduce_init(  # type: ignore[override]  # a Plan is used like a Prequest, but is none
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: MPI.Op = MPI.SUM,
        info: MPI.Info = MPI.INFO_NULL,
        *,
        algorithm: str = "auto",
        engine: str | None = None,
        channels: int | None = None,
        depth: int | None = None,
        **params: Any,
    ) -> Plan:
        """Plan an all-reduce once, to be run many times (arguments and errors as `Allreduce`)."""
        options = (algorithm, engine, channels, depth, params)
        return self._planned(self._allreduce_call, (sendbuf, recvbuf, op, options))

    def _allreduce_call(self, sendbuf: Any, recvbuf: Any, op: MPI.Op, options: Any) -> Call:
        recv = parse(recvbuf, "recvbuf", writable=True)
        send = self._input(sendbuf, recv)
        call = Call("allreduce", send, recv, vector_layout(recv.count, in_place=send is None))
        call.operation = resolve(op, recv)
        self._choose(call, recv.nbytes, options)
        return call

    # -- barrier ---------------------------------------------------------------------------------

    def Barrier_init(  # type: ignore[override]  # see Allreduce_init
        self, info: MPI.Info = MPI.INFO_NULL, *, algorithm: str = "dissemination", engine: str | None = None
    ) -> Plan:
        """Plan a barrier of our own."""
        return self._planned(self._barrier_call, ((algorithm, engine, 1, 1, {}),))

    def _barrier_call(self, options: Any) -> Call:
        call = Call("barrier", None, None, Layout(lambda part: 0, lambda part: None, lambda part: None))
        self._choose(call, 0, options)
        return call

    # -- what all collectives share ----------------------------------------------------------------

    def _input(self, sendbuf: Any, recv: Buffer) -> Buffer | None:
        """The parsed input, or None where it is the receive buffer itself."""
        if sendbuf is MPI.IN_PLACE:
            return None
        send = parse(sendbuf, "sendbuf", writable=False)
        if send.type_key != recv.type_key:
            raise ArgumentError(f"sendbuf holds {send.type_key}, recvbuf {recv.type_key}: they must agree")
        if send.count != recv.count:
            raise ArgumentError(f"sendbuf has {send.count} elements, recvbuf {recv.count}: they must agree")
        if send.address == recv.address:
            return None
        if send.overlaps(recv):
            raise ArgumentError("sendbuf and recvbuf overlap without being the same; use MPI.IN_PLACE")
        return send

    def _choose(self, call: Call, nbytes: int, options: Any) -> None:
        """Settle algorithm, parameters, engine and channels of a call."""
        name, engine, channels, depth, params = options
        ordered = call.operation is not None and not call.operation.commutative
        if name == "auto":
            name = choose_allreduce(self.size, nbytes, ordered=ordered)
        algorithm = get(call.collective, name)
        if ordered and not algorithm.ordered:
            able = ", ".join(a.name for a in registered(call.collective) if a.ordered) or "none"
            raise Unsupported(
                f"{algorithm} does not combine in rank order, which this non-commutative operation needs; "
                f"these do: {able}"
            )
        if algorithm.hierarchical and params.get("nodes") is None:
            params = {**params, "nodes": self.nodes}
        call.params = algorithm.resolve(self.size, params, nbytes)
        if reason := algorithm.refusal(self.size, call.params):
            raise Unsupported(f"{algorithm} with P={self.size}: {reason}")
        call.algorithm = algorithm
        call.engine = self.engine if engine is None else check_engine(engine)
        default = default_channels(nbytes, self.size, 2 * self.size)
        call.channels = default[0] if channels is None else channels
        call.depth = min(default[1] if depth is None else depth, call.channels)
        for what, value in (("channels", call.channels), ("depth", call.depth)):
            if not isinstance(value, int) or value < 1:
                raise ArgumentError(f"{what} must be a positive integer, not {value!r}")
        if call.depth > TAGS_PER_PLAN:
            raise ArgumentError(f"depth must be at most {TAGS_PER_PLAN}, not {call.depth}")

    def _signature(self, call: Call) -> Hashable:
        """What all ranks must agree on."""
        buffer = call.recv or call.send
        operation = call.operation
        return (
            call.collective,
            buffer.count if buffer else 0,
            buffer.type_key if buffer else "",
            name_of(operation.op) if operation else "",
            operation.commutative if operation else True,
            call.algorithm.name,
            tuple(sorted(call.params.items())),
            call.engine,
            call.channels,
            call.depth,
        )

    def _prepare(self, make: Any, arguments: tuple[Any, ...], *, always: bool) -> tuple[Call, Hashable]:
        """Make the call object and have all ranks agree on it (always, or if it is of a new kind)."""
        self._agreement.check()
        try:
            call: Call = make(*arguments)
            signature = self._signature(call)
        except Exception as error:
            self._agreement.settle(None, error)
            raise AssertionError("an error was not settled") from error
        if always or self._check_always or signature not in self._agreement.settled:
            self._agreement.settle(signature)
        return call, signature

    def _cached(self, make: Any, arguments: tuple[Any, ...]) -> Plan:
        """The plan of a blocking call, from the cache if these buffers were used like this before."""
        call, signature = self._prepare(make, arguments, always=False)
        key = (
            signature,
            call.send and call.send.address,
            call.recv and call.recv.address,
            call.operation and call.operation.op.handle,
        )
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = self._build(call, tag=0)
            if len(self._plans) > PLAN_CACHE:
                self._plans.popitem(last=False)[1].Free()
        else:
            self._plans.move_to_end(key)
        return plan

    def _planned(self, make: Any, arguments: tuple[Any, ...]) -> Plan:
        """The plan of a persistent call. All ranks make these in the same order: so tags agree."""
        call, _ = self._prepare(make, arguments, always=True)
        # Tag block 0 belongs to blocking calls; the topmost tags to notices of failure.
        places = (self._tag_top - 2) // TAGS_PER_PLAN - 1
        plan = self._build(call, tag=TAGS_PER_PLAN * (1 + self._sequence % places))
        self._sequence += 1
        return plan

    def _build(self, call: Call, tag: int) -> Plan:
        try:
            some = call.recv or call.send
            program = compile_program(
                call.algorithm,
                self.rank,
                self.size,
                call.params,
                call.layout,
                some.extent if some else 1,
                channels=call.channels,
                depth=call.depth,
            )
            facts = {
                "algorithm": call.algorithm.name,
                "collective": call.collective,
                "params": call.params,
                "channels": call.channels,
                "depth": call.depth,
            }
            return Plan(
                program, self._environment, (call.send, call.recv), call.operation, call.engine, tag, facts
            )
        except Exception as error:
            # The others have agreed to the call and may be waiting for this rank.
            self._agreement.revoke(f"rank {self.rank} could not build its plan: {error}")
            raise

    def free_plans(self) -> None:
        """Free the cached plans of blocking calls. (Persistent plans belong to whoever made them.)"""
        for plan in self._plans.values():
            plan.Free()
        self._plans.clear()

    # -- communicators -----------------------------------------------------------------------------

    def Free(self) -> None:
        """Free the plans and the private duplicate; and the communicator itself, if it was made here.

        ``Comm(MPI.COMM_WORLD).Free()`` leaves MPI.COMM_WORLD alone; ``comm.Split(...).Free()`` does not
        leave the new communicator. Collective.
        """
        self.free_plans()
        self._agreement.forget()
        if self._private != MPI.COMM_NULL and self._agreement.revoked is None:
            self._private.Free()
        if self._owned:
            super().Free()

    def _adopt(self, comm: MPI.Comm) -> Comm:
        """A `Comm` that owns a communicator just made; MPI.COMM_NULL stays what it is."""
        if comm == MPI.COMM_NULL:
            return comm  # type: ignore[return-value]  # mpi4py, too, returns a null communicator here
        adopted = Comm(comm, engine=self._asked_engine)
        adopted._owned = True
        return adopted

    def Dup(self, info: MPI.Info | None = None) -> Comm:
        """Duplicate; the result is a `Comm`."""
        return self._adopt(MPI.Intracomm(self).Dup(info))

    Clone = Dup

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
