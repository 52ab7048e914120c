"""From calls to plans: agreement of all ranks, choice of algorithm, compilation, caching.

One `Planner` serves one communicator. It owns a duplicate of it, on which all of mpicoll's messages
travel, so that they never meet the user's.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from mpi4py import MPI

from .agree import Agreement
from .cache import Cache
from .calls import Call
from .cost import Machine
from .errors import ArgumentError, RevokedError, Unsupported
from .memory import leave_to_mpi
from .native import native_status
from .ops import name_of
from .plan import compile_program
from .probe import Verdict, aware
from .registry import Algorithm, Params, get
from .registry import algorithms as registered
from .requests import LANES, Request
from .runner import Plan, check_background, check_engine
from .schedule import blocks_of
from .select import TAGS_PER_PLAN, calibration, check_channels, choose, default_channels
from .staging import choose_staging, device_channels, staged
from .topology import Topology
from .watch import Environment

Maker = Callable[..., Call]


@dataclass(slots=True)
class Chosen:
    """How a call will be carried out; equal on all ranks."""

    algorithm: Algorithm
    params: Params
    engine: str
    channels: int
    depth: int
    background: bool | None = None
    stages: bool = False
    staging: str | None = None  # of device buffers; see `staging`


def _timeout() -> float | None:
    text = os.environ.get("MPICOLL_TIMEOUT")
    try:
        return float(text) if text else None
    except ValueError:
        raise ArgumentError(f"MPICOLL_TIMEOUT is a number of seconds, not {text!r}") from None


def _run(plan: Plan, call: Call) -> None:
    """Run a plan that does not keep the caller's buffers."""
    try:
        plan.run()
    except BaseException:
        leave_to_mpi(call.send, call.recv)
        raise


class Planner:
    """Makes and keeps the plans of one communicator. Construction is collective."""

    def __init__(self, comm: MPI.Intracomm, engine: str | None, calibrated: str | None = None) -> None:
        self.comm = comm.Dup()
        self.rank, self.size = comm.rank, comm.size
        self.topology = Topology.of(self.comm)
        # What shares the cores may be hidden, such as the ranks of other virtual nodes.
        polite = self.topology.crowded[self.rank] or bool(os.environ.get("MPICOLL_YIELD"))
        top = self.comm.Get_attr(MPI.TAG_UB)
        self.tag_top = 32767 if top is None else int(top)
        self.agreement = Agreement(self.comm, self.tag_top, polite, Request.advance_open)
        timeout, verdict = self.settle(lambda: (_timeout(), aware()), "environment")
        self.environment = Environment(
            self.comm,
            polite,
            self._idle,
            self.agreement.revoke,
            sync_sends=bool(os.environ.get("MPICOLL_SYNC_SENDS")),
            trace=bool(os.environ.get("MPICOLL_TRACE")),
            timeout=timeout,
        )
        self.aware = self._agree_on_aware(verdict)
        self.agreement.timeout = self.environment.timeout
        self.machine: Machine | None = None
        self.engine = self._agree_on_engine(engine, calibrated)
        self.check_always = bool(os.environ.get("MPICOLL_CHECK"))
        self.cache = Cache()
        self.direct: dict[Hashable, bool] = {}
        self.sequence = self.later_calls = 0
        self.lanes: list[Request | None] = [None] * LANES
        self.given: weakref.WeakSet[Plan] = weakref.WeakSet()  # persistent plans, which are their makers'

    def _agree_on_engine(self, engine: str | None, calibrated: str | None) -> str:
        """The engine of all; and the calibration, which must say the same on all ranks, as it chooses."""
        chosen, error = "", None
        try:
            self.machine = calibration(calibrated)
            chosen = check_engine("python" if self.environment.trace and engine is None else engine)
            if self.environment.trace and chosen == "native":
                raise ArgumentError("MPICOLL_TRACE needs engine='python': the native engine prints nothing")
        except ArgumentError as caught:
            error = caught
        # A rank without the extension makes all use the reference engine: results must not differ.
        everywhere = self.comm.allreduce(native_status()[0], MPI.MIN)
        if chosen == "native" and not everywhere and not (engine or os.environ.get("MPICOLL_ENGINE")):
            chosen = "python"
        digest = self.machine.digest if self.machine else "none"
        self.agreement.settle(("engine", chosen, "calibration", digest), error)
        return chosen

    def _agree_on_aware(self, mine: Verdict) -> Verdict:
        """Whether MPI may be given device memory: if every rank has the proof, as all reduce in one place."""
        lacking = np.array([self.size if mine.aware else self.rank, -bool(mine.aware)], np.int64)
        self.comm.Allreduce(MPI.IN_PLACE, lacking, MPI.MIN)
        first, some = int(lacking[0]), bool(lacking[1])
        if first == self.size or not some:
            return mine
        how: str = self.comm.bcast(mine.how, root=first)
        return mine if first == self.rank else Verdict(False, f"on rank {first}: {how}")

    def _idle(self) -> bool:
        """Called now and then during long waits; whether it should be called again soon."""
        self.agreement.listen()
        return Request.advance_open()

    # -- calls -----------------------------------------------------------------------------------

    def run(self, make: Maker, send: Any, recv: Any, others: tuple[Any, ...], options: Any) -> None:
        """A blocking call: run its plan, found by the identity of its arguments if possible."""
        agreement = self.agreement
        if agreement.revoked is not None or agreement.notices or self.check_always:
            self.run_anew(make, send, recv, others, options)
            return
        agreement.calls += 1
        known = self.cache.recall(make, send, recv, others, options)
        if known is None:
            self._run_plan(make, send, recv, others, options, remember=True)
            return
        try:
            known.run()
        except BaseException:
            leave_to_mpi(send, recv)
            raise

    def run_anew(
        self, make: Maker, send: Any, recv: Any, others: tuple[Any, ...], options: Mapping[str, Any]
    ) -> None:
        """A blocking call whose arguments' identity says nothing, such as a list of counts."""
        self.agreement.begin()
        self._run_plan(make, send, recv, others, options, remember=False)

    def _run_plan(
        self,
        make: Maker,
        send: Any,
        recv: Any,
        others: tuple[Any, ...],
        options: Any,
        *,
        remember: bool,
    ) -> None:
        call, chosen, signature = self._prepare(make, (send, recv, *others), options)
        if not call.reusable:
            plan = self._build(call, chosen, tag=0)
            _run(plan, call)
            plan.Free()
            return
        where = self._key(call, chosen, signature)
        cached = self.cache.plans.get(where)
        if cached is None:
            cached = self._build(call, chosen, tag=0)
            self.cache.keep(where, cached)
        if remember:
            self.cache.remember(make, (send, recv), others, options, cached)
        _run(cached, call)

    def persistent(self, make: Maker, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> Plan:
        """The plan of a persistent call. All ranks make these in the same order: so tags agree."""
        self.agreement.begin()
        call, chosen, _ = self._prepare(make, arguments, options, persistent=True)
        # Tag block 0 belongs to blocking calls, then come the lanes; the topmost are notices of failure.
        first = 1 + LANES
        places = (self.tag_top - 2) // TAGS_PER_PLAN - first
        plan = self._build(call, chosen, tag=TAGS_PER_PLAN * (first + self.sequence % places), keep=True)
        self.sequence += 1
        self.given.add(plan)
        return plan

    def later(self, make: Maker, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> Request:
        """A nonblocking call. Local: it neither waits for other ranks nor compares calls with theirs.

        (With MPICOLL_CHECK they are compared.) A refusal is told to the others, whose waits then fail.
        """
        self.agreement.begin()
        lane = self.later_calls % LANES
        self.later_calls += 1
        send, recv, *others = arguments
        known = self.cache.recall((lane, make), send, recv, others, options)
        if known is not None and not known.plan.users and not self.check_always:
            return self._request(known.plan, lane, (send, recv))
        try:
            call = make(self.comm, *arguments)
            chosen = self._choose(call, **options)
            chosen.background = check_background(chosen.engine, chosen.background)
            signature = self._signature(call, chosen)
            hash(signature)
        except Exception as error:
            if self.check_always:
                self.agreement.settle(None, error)
            self.agreement.refuse(error)
            raise
        if self.check_always:
            self.agreement.settle(signature)
        key = self._key(call, chosen, signature), lane, chosen.background
        plan = self.cache.plans.get(key) if call.reusable else None
        if plan is None or plan.users:  # (the plan of an unfinished call cannot be started again)
            plan = self._build(call, chosen, tag=TAGS_PER_PLAN * (1 + lane))
            if call.reusable:
                self.cache.keep(key, plan)
        if call.reusable and not any(isinstance(o, list | tuple) for o in others):
            self.cache.remember((lane, make), (send, recv), others, options, plan)
        return self._request(plan, lane, (call.send, call.recv))

    def _request(self, plan: Plan, lane: int, owners: object) -> Request:
        request = self.lanes[lane] = Request(plan, self.lanes[lane], owners)
        return request

    @staticmethod
    def _key(call: Call, chosen: Chosen, signature: Hashable) -> Hashable:
        """What a plan can be used for again."""
        send, recv, operation = call.send, call.recv, call.operation
        return (
            signature,
            send and send.address,
            recv and recv.address,
            operation and operation.op.handle,
            call.local,
            chosen.staging,
        )

    def _prepare(
        self,
        make: Maker,
        arguments: tuple[Any, ...],
        options: Mapping[str, Any],
        *,
        persistent: bool = False,
    ) -> tuple[Call, Chosen, Hashable]:
        """Make the call and have all ranks agree on it (if it is persistent or of a new kind)."""
        try:
            call = make(self.comm, *arguments)
            chosen = self._choose(call, **options)
            if chosen.background and not persistent:
                raise ArgumentError("background is for persistent and nonblocking calls")
            chosen.background = check_background(chosen.engine, bool(chosen.background))
            signature = self._signature(call, chosen)
            known = signature in self.agreement.settled
        except Exception as error:
            self.agreement.settle(None, error)
            raise AssertionError("an error was not settled") from error
        if persistent or self.check_always or not known:
            self.agreement.settle(signature)
        return call, chosen, signature

    def settle(self, make: Callable[[], Any], what: str) -> Any:
        """Something that may fail on a rank and must not before a collective step: all or none."""
        self.agreement.begin()
        result, error = None, None
        try:
            result = make()
        except Exception as caught:
            error = caught
        self.agreement.settle((what,), error)
        return result

    # -- choices ---------------------------------------------------------------------------------

    def _choose(
        self,
        call: Call,
        algorithm: str = "auto",
        engine: str | None = None,
        channels: Any = None,
        depth: Any = None,
        background: bool | None = None,
        stages: bool = False,
        staging: str | None = None,
        **params: Any,
    ) -> Chosen:
        """Settle algorithm, parameters, engine and channels of a call, from what all ranks know."""
        ordered = call.operation is not None and not call.operation.commutative
        if algorithm == "auto":
            algorithm = choose(
                call.collective,
                self.size,
                call.nbytes,
                nodes=len(self.topology.nodes),
                ordered=ordered,
                direct=call.direct_only,
                machine=self.machine,
            )
        entry = get(call.collective, algorithm)
        if ordered and not entry.ordered:
            able = ", ".join(a.name for a in registered(call.collective) if a.ordered) or "none"
            raise Unsupported(
                f"{entry} does not combine in rank order, which this non-commutative operation needs; "
                f"these do: {able}"
            )
        if entry.hierarchical and params.get("nodes") is None:
            params["nodes"] = self.topology.node_of
        if call.root is not None:
            params["root"] = call.root
        resolved = entry.resolve(self.size, params, call.nbytes)
        if reason := entry.refusal(self.size, resolved):
            raise Unsupported(f"{entry} with P={self.size}: {reason}")
        if call.direct_only and not self._is_direct(entry, resolved):
            raise Unsupported(
                f"{entry} forwards parts of other ranks, whose lengths this rank does not know; "
                "use linear or pairwise"
            )
        staging = self._staging(call, staging)
        if staging is not None and engine == "native":
            raise ArgumentError("device buffers need engine='python': the native engine reduces on the host")
        engine = "python" if staging is not None else self.engine if engine is None else check_engine(engine)
        between = entry.hierarchical and len(set(resolved["nodes"])) > 1
        automatic = (
            default_channels(call.collective, call.nbytes, self.size, between_nodes=between)
            if staging is None
            else device_channels(staging, call.nbytes)
        )
        channels = automatic[0] if channels is None else channels
        depth = automatic[1] if depth is None else depth
        check_channels(channels=channels, depth=depth)
        depth = min(depth, channels)
        return Chosen(entry, resolved, engine, channels, depth, background, bool(stages), staging)

    def _staging(self, call: Call, wanted: str | None) -> str | None:
        """How a call's device buffers travel; None for buffers in host memory."""
        if not call.device:
            if wanted is not None:
                raise ArgumentError("staging is for device buffers; these are in host memory")
            return None
        host_only = call.operation is not None and call.operation.ufunc is None
        return choose_staging(
            call.collective,
            self.size,
            wanted,
            aware=bool(self.aware.aware),
            how=self.aware.how,
            unfit=call.unfit,
            host_only=host_only,
        )

    def _is_direct(self, entry: Algorithm, params: Params) -> bool:
        """Whether every part goes straight from its source to its target."""
        case = entry.name, tuple(sorted(params.items()))
        if case not in self.direct:
            self.direct[case] = self._goes_direct(entry, params)
        return self.direct[case]

    def _goes_direct(self, entry: Algorithm, params: Params) -> bool:
        blocks = entry.blocks(self.size, params)
        per_part = blocks // entry.collective.parts(self.size)
        for step in entry.schedule(self.rank, self.size, params):
            for windows in [m.windows for m in step.sends] + [m.windows for m in step.recvs]:
                for block in blocks_of(windows, blocks):
                    if self.rank not in divmod(block // per_part, self.size):
                        return False
        return True

    def _signature(self, call: Call, chosen: Chosen) -> Hashable:
        """What all ranks must agree on."""
        operation = call.operation
        return (
            call.collective,
            call.shape,
            (name_of(operation.op), operation.commutative) if operation else (),
            chosen.algorithm.name,
            tuple(sorted(chosen.params.items())),
            (chosen.engine, chosen.channels, chosen.depth, chosen.stages),
            # Where reductions happen; whether messages pass through the host is each rank's own affair.
            chosen.staging and ("host" if chosen.staging == "host" else "device"),
        )

    def _build(self, call: Call, chosen: Chosen, tag: int, *, keep: bool = False) -> Plan:
        try:
            program = compile_program(
                chosen.algorithm,
                self.rank,
                self.size,
                chosen.params,
                call.layout,
                call.extent,
                channels=chosen.channels,
                depth=chosen.depth,
                timed=chosen.stages,
            )
            if chosen.staging is not None:
                program = staged(program, chosen.staging)
            facts = {
                "buffer": {None: "host", "none": "cupy"}.get(chosen.staging, "cupy_staged"),
                "staging": chosen.staging,
                "algorithm": chosen.algorithm.name,
                "collective": call.collective,
                "params": chosen.params,
                "channels": chosen.channels,
                "depth": chosen.depth,
                "background": bool(chosen.background),
            }
            buffers = call.send, call.recv
            engine, operation = chosen.engine, call.operation
            return Plan(program, self.environment, buffers, operation, engine, tag, facts, keep=keep)
        except Exception as error:
            # The others have agreed to the call and may be waiting for this rank.
            self.agreement.revoke(f"rank {self.rank} could not build its plan: {error}")
            raise

    # -- the end ---------------------------------------------------------------------------------

    def free_plans(self) -> None:
        """Free the cached plans of blocking calls."""
        self.cache.clear()

    def free(self) -> None:
        """Complete nonblocking calls, then free all plans and the private communicator. Collective.

        Raises `ArgumentError` while a persistent plan runs, and `MismatchError` where ranks have begun
        different numbers of nonblocking calls: on all ranks alike, and nothing is freed.
        """
        if self.agreement.revoked is None:
            with suppress(RevokedError):  # then it is given up here as well
                self.settle(self._refuse_running, f"Free after {self.later_calls} nonblocking calls")
                for request in self.lanes:
                    if request is not None:
                        request.Wait()
        for plan in list(self.given):
            if plan.active:  # its communicator was given up
                plan.abandon()
            else:
                plan.close("the communicator of this plan was freed")
        self.free_plans()
        self.agreement.forget()
        if self.comm != MPI.COMM_NULL and self.agreement.revoked is None:
            self.comm.Free()
        self.agreement.revoked = self.agreement.revoked or "it was freed"

    def _refuse_running(self) -> None:
        for plan in list(self.given):
            if plan.active:
                raise ArgumentError(f"{plan.describe()} is running; Wait for it before Free")
