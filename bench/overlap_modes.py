"""The ways in which a training step can communicate, all of the same network on the same data."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cached_property
from typing import Any

from mpicoll.bench.places import Span
from mpicoll.bench.training import Network

PER_TENSOR, BLOCKING, OVERLAPPED, COMPUTE, COMMUNICATE, ASLEEP = (
    "per tensor", "bucketed", "overlapped", "compute only", "communication only", "communication asleep",
)  # fmt: skip
EVERY = (COMPUTE, PER_TENSOR, BLOCKING, OVERLAPPED, COMMUNICATE, ASLEEP)
TRAINS = (PER_TENSOR, BLOCKING, OVERLAPPED)  # these end each step with the same parameters on all ranks
_NAP = 1e-3  # seconds between two looks of a program that sleeps


def _nothing(_name: str, *, rows: slice | None = None) -> None:
    """Announce nothing."""


class Mode:
    """One way to take a step. `step` is what is timed; `flights` and `spans` are of the last one."""

    bucket_bytes: int | None = None
    buckets: tuple[tuple[int, str], ...] = ()  # bytes, and the parameter that fills it last

    def __init__(self, name: str, network: Network) -> None:
        self.name, self.network = name, network
        xp, place = network.place.xp, network.place
        with place.stream():
            self.gradients = {
                key: xp.zeros(array.shape, array.dtype) for key, array in network.parameters.items()
            }
            place.finish()
        self.flights: list[Any] = []

    @property
    def key(self) -> str:
        """The name, and the bucket size where it has one."""
        return self.name if self.bucket_bytes is None else f"{self.name} {self.bucket_bytes}"

    @property
    def spans(self) -> list[Span]:
        """What the program did in the last step."""
        return self.network.spans

    @property
    def kernels(self) -> list[Span]:
        """What the device did in the last step, if there is one."""
        return self.network.kernels

    @property
    def plans(self) -> list[Any]:
        """Of its buckets."""
        return []

    @property
    def algorithms(self) -> list[str]:
        """Of its all-reduces, as they were really chosen."""
        return sorted({plan.algorithm for plan in self.plans})

    def step(self) -> None:
        """Compute only."""
        self.network.step(self.gradients, _nothing)

    def free(self) -> None:
        """Let go of what was made for it. Collective."""


class PerTensor(Mode):
    """One blocking all-reduce for each gradient, when it is there."""

    def __init__(self, network: Network, comm: Any, options: dict[str, Any]) -> None:
        super().__init__(PER_TENSOR, network)
        self._comm, self._options = comm, options
        self.buckets = tuple((array.nbytes, name) for name, array in self.gradients.items())

    @cached_property
    def algorithms(self) -> list[str]:
        """What a blocking call takes for such gradients."""
        from mpi4py import MPI

        from mpicoll.calls import allreduce

        choice = self._comm._planner.choice
        calls = [allreduce(self._comm, MPI.IN_PLACE, one, MPI.SUM) for one in self.gradients.values()]
        found = [choice.of(call, background=False, **self._options) for call in calls]
        return sorted({one.algorithm.name for one in found})

    def step(self) -> None:
        """Compute, and communicate in between."""
        self.network.step(self.gradients, self._average)

    def _average(self, name: str, *, rows: slice | None = None) -> None:
        from mpi4py import MPI

        gradient = self.gradients[name]
        if rows is not None and rows.stop < gradient.shape[0]:
            return
        self._comm.Allreduce(MPI.IN_PLACE, gradient, **self._options)
        gradient /= self._comm.size


class Bucketed(Mode):
    """Gradients in buckets, views of which the backward pass writes; `name` says when they travel."""

    def __init__(
        self, name: str, network: Network, comm: Any, bucket_bytes: int, options: dict[str, Any]
    ) -> None:
        import mpicoll

        super().__init__(name, network)
        self.bucket_bytes = bucket_bytes
        if name == BLOCKING:
            options = {**options, "overlap": False, "background": False}
        self.reducer = mpicoll.GradientReducer(
            comm, self.gradients, bucket_bytes=bucket_bytes, views=True, **options
        )
        self.gradients = self.reducer.gradients
        names = list(self.gradients)
        last = [(bucket.nbytes, bucket.pieces[-1]) for bucket in self.reducer.buckets]
        self.buckets = tuple((n, network.filled(names[p.parameter], p.stop)) for n, p in last)
        self.free = self.reducer.free  # type: ignore[method-assign]
        steps = {COMMUNICATE: self._communicate, ASLEEP: self._sleep}
        self.step = steps.get(name, self._train)  # type: ignore[method-assign]

    @property
    def plans(self) -> list[Any]:
        """Of its buckets."""
        return list(self.reducer._plans)

    def _train(self) -> None:
        self.network.step(self.gradients, self.reducer.ready, self.reducer.arriving)
        self.flights = self.reducer.flights

    def _communicate(self) -> None:
        """Launch all buckets, and wait for them as a step does."""
        place = self.network.place
        with place.stream():
            marks = [place.mark("")]
            for name in self.reducer.order:
                self.reducer.ready(name)
            marks.append(place.mark("ready"))
            self.reducer.wait()
            marks.append(place.mark("wait"))
            self.network.finish(marks)
        self.flights = self.reducer.flights

    def _sleep(self) -> None:
        """Launch all buckets, and sleep while the background thread moves them.

        A program that waits looks for messages all the time; what the process computes here, moving takes.
        """
        for name in self.reducer.order:
            self.reducer.ready(name)
        while not all([plan.Test() for plan in self.plans]):  # asks the thread, not MPI
            time.sleep(_NAP)
        self.reducer.wait()


def make_modes(
    make_network: Callable[[], Network],
    comm: Any,
    sizes: list[int],
    middle: int,
    options: dict[str, Any],
    only: tuple[str, ...] = EVERY,
) -> list[Mode]:
    """Modes by their names: overlapped ones at every size, the blocking one at `middle`. Collective.

    Without a background thread nothing moves while a program sleeps, and there is no such mode.
    """
    plain = {key: value for key, value in options.items() if key != "background"}
    makers: dict[str, Callable[[], list[Mode]]] = {
        COMPUTE: lambda: [Mode(COMPUTE, make_network())],
        PER_TENSOR: lambda: [PerTensor(make_network(), comm, plain)],
        BLOCKING: lambda: [Bucketed(BLOCKING, make_network(), comm, middle, options)],
        OVERLAPPED: lambda: [Bucketed(OVERLAPPED, make_network(), comm, n, options) for n in sizes],
        COMMUNICATE: lambda: [Bucketed(COMMUNICATE, make_network(), comm, n, options) for n in sizes],
        ASLEEP: lambda: [Bucketed(ASLEEP, make_network(), comm, n, options) for n in sizes],
    }
    names = [name for name in only if name != ASLEEP or options.get("background")]
    return [mode for name in names for mode in makers[name]()]
