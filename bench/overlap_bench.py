"""All ways to take a training step, on one communicator, and their interleaved measurement."""

from __future__ import annotations

import math
import random
import time
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from mpicoll import device
from mpicoll.bench.overlap_file import Row
from mpicoll.bench.overlap_modes import COMPUTE, EVERY, TRAINS, Mode, make_modes
from mpicoll.bench.places import Host, Span
from mpicoll.bench.timing import clock, no_garbage_collection
from mpicoll.bench.training import Network, Shape, draw_data, draw_parameters
from mpicoll.bench.world import Stopped, StopSignals, World

_EVERY_SECONDS = 1.0  # rows are checked and written: so much a kill loses at most, or one iteration
_KEPT = 100  # iterations of a launch from which traces are taken

Keep = Callable[[list[Row], "str | None"], Any]


class Step(NamedTuple):
    """What happened in one step of a mode on this rank; times in seconds of `time.perf_counter`."""

    begin: float
    seconds: float
    spans: list[Span]  # what the program did
    kernels: list[Span]  # what the device did, if there is one
    flights: list[Any]  # of the buckets


class _Took(NamedTuple):
    iteration: int
    order: int
    mode: Mode
    seconds: float
    cpu: float
    loss: float


class Bench:
    """All modes on one communicator, and their measurement. Everything is collective."""

    def __init__(
        self,
        world: World,
        shape: Shape,
        place: Host,
        buckets: tuple[list[int], int],
        options: dict[str, Any],
        seed: int,
        stop: StopSignals,
        only: tuple[str, ...] = EVERY,
    ) -> None:
        import mpicoll

        sizes, self.middle = buckets
        self.world, self.shape, self.seed, self.stop = world, shape, seed, stop
        self.comm = mpicoll.Comm(world.control)
        parameters, data = draw_parameters(shape, seed), draw_data(shape, seed, world.rank)
        self.modes = make_modes(
            lambda: Network(shape, parameters, data, place), self.comm, sizes, self.middle, options, only
        )
        self.barrier = self.comm.Barrier_init()
        self.first_loss = float("nan")
        self.steps = 0  # of each mode so far
        self.ready: dict[str, float] = {}
        self._ready_at: dict[str, list[float]] = {}  # on this rank
        self.seen: dict[str, list[Step]] = {}
        self._took: list[_Took] = []
        self._written = time.monotonic()

    @property
    def engine(self) -> str:
        """The engine that runs the all-reduces."""
        return next((plan.engine for mode in self.modes for plan in mode.plans), self.comm.engine)

    @property
    def buffer(self) -> str:
        """Where messages come from: "host", "cupy", "cupy_staged"."""
        return next((plan.buffer for mode in self.modes for plan in mode.plans), "host")

    def measure(self, warmup: int, iterations: range, keep: Keep) -> None:
        """Take a step of each mode in each iteration, in shuffled order, after `warmup` untimed ones.

        `keep` gets the rows of finished iterations now and then, once their results were checked, and what is
        wrong with them; after a wrong result nothing more is measured. A signal ends it, as `Stopped`.
        """
        rng = random.Random(self.seed + 1_000_003 * iterations.start)
        with no_garbage_collection():
            for iteration in [*range(-warmup, 0), *iterations]:
                try:
                    self.stop.check(self.world)
                except Stopped:
                    self._hand_over(keep)
                    raise
                for order, number in enumerate(rng.sample(range(len(self.modes)), len(self.modes))):
                    self._took.append(_Took(iteration, order, *self._timed(number, iteration)))
                self.steps += 1
                if self._due(last=iteration == iterations[-1]) and self._hand_over(keep):
                    return

    def _timed(self, number: int, iteration: int) -> tuple[Mode, float, float, float]:
        mode = self.modes[number]
        self.barrier.run()
        cpu, begin = time.process_time(), clock()
        mode.step()
        seconds = clock() - begin
        cpu = time.process_time() - cpu
        if iteration >= 0:
            step = Step(begin, seconds, list(mode.spans), list(mode.kernels), list(mode.flights))
            if mode.name == COMPUTE:
                self._note_readiness(step)
            seen = self.seen.setdefault(mode.key, [])
            if len(seen) < _KEPT:
                seen.append(step)
        return mode, seconds, cpu, mode.network.loss

    def _due(self, *, last: bool) -> bool:
        """Whether rows are to be written now, as rank 0 decides."""
        due = last or time.monotonic() - self._written > _EVERY_SECONDS
        return bool(self.world.control.bcast(due, root=0))

    def _hand_over(self, keep: Keep) -> str | None:
        """Check what was done since the last time, and give its rows to `keep`; what is wrong with it."""
        if not self._took:
            return None
        if math.isnan(self.first_loss):
            # All begin with the same parameters; communication alone computes no loss.
            first = next(one.loss for one in self._took if one.mode.name in (COMPUTE, *TRAINS))
            self.first_loss = self.world.control.allreduce(first) / self.world.size
        wrong = self.check()
        mine = {name: float(np.median(values)) for name, values in self._ready_at.items()}
        everyone = self.world.control.allgather(mine)
        self.ready = {name: max(one[name] for one in everyone) for name in mine}
        keep(self._rows(), wrong)
        self._took, self._written = [], time.monotonic()
        return wrong

    def _rows(self) -> list[Row]:
        took, control = self._took, self.world.control
        everyone = np.array(control.allgather([one.seconds for one in took]))
        cpu_all = np.sum(control.allgather([one.cpu for one in took]), axis=0)
        loss_all = np.mean(control.allgather([one.loss for one in took]), axis=0)
        return [
            {
                "iteration": one.iteration, "order": one.order, "warmup": one.iteration < 0,
                "mode": one.mode.name, "bucket_bytes": one.mode.bucket_bytes,
                "buckets": len(one.mode.buckets) or None,
                "seconds": float(of_ranks.max()), "seconds_min": float(of_ranks.min()),
                "slowest_rank": int(of_ranks.argmax()), "cpu_seconds": float(cpu_all[k]),
                "loss": float(loss_all[k]) if one.mode.name in TRAINS else None,
            }
            for k, (one, of_ranks) in enumerate(zip(took, everyone.T, strict=True))
        ]  # fmt: skip

    def _note_readiness(self, step: Step) -> None:
        """When each gradient is there in a step that only computes, from its beginning [s].

        On a device, when its kernels are done.
        """
        for span in step.kernels or step.spans:
            kind, _, name = span.name.partition(" ")
            if kind in ("ready", "wait"):
                self._ready_at.setdefault(name, []).append(span.begin - step.begin)

    def nearest(self, key: str, seconds: float) -> Step:
        """The step of a mode whose time on rank 0 is nearest to a given one. Collective."""
        steps = self.seen[key]
        chosen = min(range(len(steps)), key=lambda k: abs(steps[k].seconds - seconds))
        return steps[self.world.control.bcast(chosen, root=0)]

    def check(self) -> str | None:
        """What is wrong with the results, on all ranks: parameters that differ, a loss that does not fall."""
        for mode in self.modes:
            if mode.name not in TRAINS:
                continue
            mine = 0
            for parameter in mode.network.parameters.values():
                mine = zlib.crc32(device.to_host(parameter).tobytes(), mine)
            digests = self.world.control.allgather(mine)
            different = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
            if different:
                return f"{mode.key}: ranks {different} have other parameters than rank 0"
            last = self.world.control.allreduce(mode.network.loss) / self.world.size
            if self.steps > 1 and not last < self.first_loss:
                return f"{mode.key}: the loss went from {self.first_loss:g} to {last:g}"
        return None

    def free(self) -> None:
        """Free all plans and communicators."""
        for mode in self.modes:
            mode.free()
        self.barrier.Free()
        self.comm.Free()
