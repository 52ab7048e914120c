"""From calls to plans: agreement of all ranks, compilation, caching.

One `Planner` serves one communicator. It owns a duplicate of it, on which all of mpicoll's messages
travel, so that they never meet the user's.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from typing import Any

from mpi4py import MPI

from .agree import Agreement
from .cache import Cache
from .calls import Call
from .choice import Choice, Chosen
from .common import agree_on_aware, agree_on_engine, agree_on_threads, timeout
from .errors import ArgumentError, RevokedError
from .memory import leave_to_mpi
from .plan import compile_program
from .probe import aware
from .requests import LANES, Request
from .runner import Plan
from .select import TAGS_PER_PLAN
from .staging import staged
from .topology import Topology
from .watch import Environment

Maker = Callable[..., Call]


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
        seconds, verdict = self.settle(lambda: (timeout(), aware()), "environment")
        self.environment = Environment(
            self.comm,
            polite,
            self._idle,
            self.agreement.revoke,
            sync_sends=bool(os.environ.get("MPICOLL_SYNC_SENDS")),
            trace=bool(os.environ.get("MPICOLL_TRACE")),
            timeout=seconds,
        )
        self.aware = agree_on_aware(self.comm, verdict)
        self.agreement.timeout = seconds
        self.engine, machine = agree_on_engine(
            self.comm, self.agreement, engine, calibrated, trace=self.environment.trace
        )
        self.choice = Choice(
            self.rank, self.size, self.topology, self.engine, machine, self.aware, agree_on_threads(self.comm)
        )
        self.check_always = bool(os.environ.get("MPICOLL_CHECK"))
        self.cache = Cache()
        self.sequence = self.later_calls = 0
        self.lanes: list[Request | None] = [None] * LANES
        self.given: weakref.WeakSet[Plan] = weakref.WeakSet()  # persistent plans, which are their makers'

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
        where = chosen.key(call, signature)
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
            chosen = self.choice.of(call, **options)
            signature = chosen.signature(call)
            hash(signature)
        except Exception as error:
            if self.check_always:
                self.agreement.settle(None, error)
            self.agreement.refuse(error)
            raise
        if self.check_always:
            self.agreement.settle(signature)
        key = chosen.key(call, signature), lane
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
            background = bool(options.get("background"))
            if background and not persistent:
                raise ArgumentError("background is for persistent and nonblocking calls")
            chosen = self.choice.of(call, **{**options, "background": background})
            signature = chosen.signature(call)
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
                "background": chosen.background,
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
