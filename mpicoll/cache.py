"""Plans kept for calls that come again, and the arguments by which such calls are recognised."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
from mpi4py import MPI

from .runner import Plan

PLAN_CACHE = 128  # plans kept per communicator; each holds requests, and scratch:
SCRATCH_CACHE = 256 << 20  # bytes of it in all


class Known:
    """A call whose very arguments were used before, and may be recognised by their identity.

    While the arrays live, their ids are theirs (a weak reference removes the entry when one dies); while
    the entry lives, so do its other arguments. `seen` tells whether the arrays are still what they were.
    """

    __slots__ = ("others", "plan", "references", "run", "seen")

    def __init__(self, plan: Plan, buffers: tuple[Any, ...], others: Any, forget: Any) -> None:
        self.plan, self.run, self.others = plan, plan.run, others
        arrays = [b for b in buffers if type(b) is np.ndarray]
        self.seen = [
            (b.nbytes, b.dtype, b.flags.writeable) if type(b) is np.ndarray else None for b in buffers
        ]
        self.references = [weakref.ref(array, forget) for array in arrays]


class Cache:
    """The plans of one communicator, by what they do, and the newest calls, by their arguments' identity."""

    def __init__(self) -> None:
        self.plans: OrderedDict[Hashable, Plan] = OrderedDict()
        self.scratch_bytes = 0  # of all of them
        self.known: dict[Hashable, Known] = {}

    def recall(
        self, what: Hashable, send: Any, recv: Any, others: Any, options: Mapping[str, Any]
    ) -> Known | None:
        """What is known of a call with these very arguments."""
        try:
            known = self.known.get((what, id(send), id(recv), *map(id, others), *options.items()))
        except TypeError:  # an option that cannot be hashed, such as a list
            return None
        if known is None:
            return None
        # An array can be resized, given another type, or made read-only.
        was, came = known.seen
        if was is not None and not (
            send.nbytes == was[0] and send.dtype is was[1] and send.flags.writeable == was[2]
        ):
            return None
        if came is not None and not (
            recv.nbytes == came[0] and recv.dtype is came[1] and recv.flags.writeable == came[2]
        ):
            return None
        return known

    def remember(
        self, what: Hashable, buffers: tuple[Any, Any], others: Any, options: Mapping[str, Any], plan: Plan
    ) -> None:
        """Note a call whose buffers are arrays (or none), whose identity can be trusted."""
        if not all(b is None or b is MPI.IN_PLACE or type(b) is np.ndarray for b in buffers):
            return
        key = (what, *map(id, buffers), *map(id, others), *options.items())
        try:
            hash(key)
        except TypeError:
            return
        if len(self.known) >= 4 * PLAN_CACHE:
            self.known.clear()
        known = self.known

        def forget(_: Any) -> None:
            known.pop(key, None)

        known[key] = Known(plan, buffers, others, forget)

    def keep(self, key: Hashable, plan: Plan) -> None:
        """Put a plan into the cache; the oldest ones have to go when it is full."""
        old = self.plans.pop(key, None)
        self.plans[key] = plan
        self.scratch_bytes += plan.scratch_bytes
        leaving = [old] if old is not None else []
        self.scratch_bytes -= sum(p.scratch_bytes for p in leaving)
        while len(self.plans) > PLAN_CACHE or (len(self.plans) > 1 and self.scratch_bytes > SCRATCH_CACHE):
            leaving.append(self.plans.popitem(last=False)[1])
            self.scratch_bytes -= leaving[-1].scratch_bytes
        for plan in leaving:
            for known in [k for k, v in self.known.items() if v.plan is plan]:
                del self.known[known]
            if not plan.users:  # else its request keeps it until it is over
                plan.Free()

    def clear(self) -> None:
        """Free all plans but those of unfinished requests."""
        self.known.clear()
        for plan in self.plans.values():
            if not plan.users:
                plan.Free()
        self.plans.clear()
        self.scratch_bytes = 0
