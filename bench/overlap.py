"""`mpicoll overlap`: how much gradient communication hides behind a training step, and at what bucket size.

A real data-parallel step of a small network, in these modes, interleaved:

- ``per tensor``: a blocking all-reduce for each gradient;
- ``bucketed``: gradients in buckets, each all-reduced at once when it is full;
- ``overlapped``: the same, while the backward pass goes on;
- ``compute only``, and ``communication only`` at every bucket size.

What a step takes beyond computing alone is *exposed* communication; ``1 - exposed / communication`` is
hidden; computing alone over the step is the utilisation. NumPy's BLAS is held to one thread a rank
(`mpicoll.bench` says so in the environment before NumPy is imported).
"""

from __future__ import annotations

import argparse
import random
import time
from pathlib import Path
from typing import Any

import numpy as np

from mpicoll.bench.contenders import own_algorithms
from mpicoll.bench.overlap_modes import COMMUNICATE, COMPUTE, EVERY, TRAINS, Mode, make_modes
from mpicoll.bench.overlap_record import Record
from mpicoll.bench.sizes import parse_bytes, parse_sizes
from mpicoll.bench.spec import THREAD_LEVELS
from mpicoll.bench.timing import clock, no_garbage_collection
from mpicoll.bench.training import Network, Shape, draw_data, draw_parameters
from mpicoll.bench.world import StopSignals, World, start
from mpicoll.errors import ArgumentError

_TRIAL_BATCH = 64
_TRIALS = 5


def add_parser(verbs: Any) -> None:
    """Add the verb `overlap`."""
    parser = verbs.add_parser(
        "overlap", help="how much gradient communication hides behind a training step (under mpirun)"
    )
    add = parser.add_argument
    add("--layers", type=int, default=8, help="of the network (8)")
    add("--width", type=int, default=768, help="of every layer (768)")
    add("--batch", type=int, help="rows of a batch on each rank (so many that --compute-ratio is met)")
    add("--compute-ratio", type=float, default=2.0, help="computing / communicating, each alone (2)")
    add("--buckets", metavar="SIZES", default="64K:16M:4", help="bucket sizes to try (64K:16M:4)")
    add("--bucket", metavar="SIZE", help="that of the blocking mode (the middle one of --buckets)")
    add("--iterations", type=int, default=20, help="timed steps of every mode (20)")
    add("--warmup", type=int, default=3, help="steps of every mode before those (3)")
    add("--algorithm", default="auto", help="of the all-reduces (auto)")
    add("--progress", choices=("thread", "test"), default="thread",
        help="who moves messages: a thread, or every call of ready (thread)")  # fmt: skip
    add("--policy", metavar="SPINS,SHORTEST,LONGEST,PATIENCE",
        help="of the thread: looks before it sleeps, bounds of its sleep [ns], and the part of the time "
        "waited that it sleeps")  # fmt: skip
    add("--thread-level", choices=THREAD_LEVELS, default="serialized", help="asked of MPI (serialized)")
    add("--seed", type=int, default=1, help="of data and order (1)")
    add("-o", "--output", type=Path, metavar="DIR", help="write samples, traces and conditions there")
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Measure, record and say what it means; status 1 if ranks ended with different parameters."""
    sizes = sorted(parse_sizes(args.buckets))
    middle = parse_bytes(args.bucket) if args.bucket else sizes[len(sizes) // 2]
    _check(args, sizes[0], middle)
    world = start(args.thread_level)
    with world.together():
        policy = _policy(args)
        known = ("auto", *own_algorithms("allreduce"))
        if args.algorithm not in known:
            raise ArgumentError(f"unknown algorithm {args.algorithm!r}; known: {', '.join(known)}")
    options = {"algorithm": args.algorithm, "background": args.progress == "thread"}
    record = Record(world, args, policy)
    with record.ended(), StopSignals() as stop:
        with world.together():  # what the algorithm cannot do is refused here, on all ranks
            batch = args.batch or _balanced_batch(world, args, middle, options, stop)
            shape = Shape(args.layers, args.width, batch)
            bench = Bench(world, shape, sizes, middle, options, args.seed, stop)
        rows = bench.measure(args.warmup, args.iterations)
        wrong = bench.check()
        record.write(shape, bench, rows, wrong)
        bench.free()
    return int(wrong is not None)


def _check(args: argparse.Namespace, *sizes: int) -> None:
    """Raise `ArgumentError` for a number that cannot be."""
    least = {"layers": 1, "width": 1, "batch": 1, "iterations": 1, "warmup": 0, "seed": 0}
    for name, number in least.items():
        if getattr(args, name) is not None and getattr(args, name) < number:
            raise ArgumentError(f"--{name} must be at least {number}")
    if args.warmup + args.iterations < 2:
        raise ArgumentError("--iterations 1 needs --warmup 1: in a single step no loss falls")
    if not 0 < args.compute_ratio < float("inf"):
        raise ArgumentError(f"--compute-ratio {args.compute_ratio:g}: needs a number above 0")
    if min(sizes) < 1:
        raise ArgumentError("--buckets and --bucket need at least one byte")


def _policy(args: argparse.Namespace) -> tuple[int, ...] | None:
    """Set and return the background thread's policy. Raises `ArgumentError` for one that is none."""
    if args.policy is None:
        return None
    from mpicoll import _runner

    try:
        spins, shortest, longest, patience = (int(text) for text in args.policy.split(","))
        _runner.background_policy(spins, shortest, longest, patience)
    except ValueError as error:
        raise ArgumentError(f"--policy {args.policy}: four whole numbers are needed ({error})") from None
    return spins, shortest, longest, patience


def _balanced_batch(
    world: World, args: argparse.Namespace, nbytes: int, options: dict[str, Any], stop: StopSignals
) -> int:
    """So many rows that computing takes `--compute-ratio` times as long as communicating.

    Found in two trials: small products of matrices take more than their share.
    """
    batch = _TRIAL_BATCH
    for _ in range(2):
        bench = Bench(
            world, Shape(args.layers, args.width, batch), [nbytes], nbytes, options, args.seed, stop,
            only=(COMPUTE, COMMUNICATE),
        )  # fmt: skip
        rows = [row for row in bench.measure(1, _TRIALS) if not row["warmup"]]
        compute, communicate = (
            np.median([row["seconds"] for row in rows if row["mode"] == mode])
            for mode in (COMPUTE, COMMUNICATE)
        )
        bench.free()
        batch = max(8, round(args.compute_ratio * communicate / compute * batch / 8) * 8)
        batch = int(world.control.bcast(batch, root=0))
    return batch


class Bench:
    """All modes on one communicator, and their measurement. Everything is collective."""

    def __init__(
        self,
        world: World,
        shape: Shape,
        sizes: list[int],
        middle: int,
        options: dict[str, Any],
        seed: int,
        stop: StopSignals,
        only: tuple[str, ...] = EVERY,
    ) -> None:
        import mpicoll

        self.world, self.shape, self.middle, self.seed, self.stop = world, shape, middle, seed, stop
        self.comm = mpicoll.Comm(world.control)
        parameters, data = draw_parameters(shape, seed), draw_data(shape, seed, world.rank)
        self.modes = make_modes(
            lambda: Network(shape, parameters, data), self.comm, sizes, middle, options, only
        )
        self.barrier = self.comm.Barrier_init()
        self.first_loss = float("nan")
        self.ready: dict[str, float] = {}
        self.seen: dict[tuple[str, int], tuple[float, list[Any], list[Any]]] = {}  # what happened when

    @property
    def engine(self) -> str:
        """The engine that runs the all-reduces."""
        return self.comm.engine

    def measure(self, warmup: int, iterations: int) -> list[dict[str, Any]]:
        """Tidy rows: one for each step of each mode, in the order in which they ran."""
        rng = random.Random(self.seed)
        took: list[tuple[int, int, Mode, float, float, float]] = []
        with no_garbage_collection():
            for iteration in range(-warmup, iterations):
                self.stop.check(self.world)
                for order, number in enumerate(rng.sample(range(len(self.modes)), len(self.modes))):
                    took.append((iteration, order, self.modes[number], *self._timed(number, iteration)))
        # All begin with the same parameters; communication alone computes no loss.
        first = next(one[5] for one in took if one[2].name != COMMUNICATE)
        self.first_loss = self.world.control.allreduce(first) / self.world.size
        self._note_readiness(iterations)
        return self._rows(took)

    def _timed(self, number: int, iteration: int) -> tuple[float, float, float]:
        mode = self.modes[number]
        self.barrier.run()
        cpu, begin = time.process_time(), clock()
        mode.step()
        seconds = clock() - begin
        cpu = time.process_time() - cpu
        if iteration >= 0:
            self.seen[mode.key, iteration] = begin, list(mode.spans), list(mode.flights)
        return seconds, cpu, mode.network.loss

    def _rows(self, took: list[Any]) -> list[dict[str, Any]]:
        seconds, cpu, loss = (np.array([one[k] for one in took]) for k in (3, 4, 5))
        everyone = np.array(self.world.control.allgather(seconds))
        cpu_all = np.sum(self.world.control.allgather(cpu), axis=0)
        loss_all = np.mean(self.world.control.allgather(loss), axis=0)
        return [
            {
                "iteration": iteration, "order": order, "warmup": iteration < 0, "mode": mode.name,
                "bucket_bytes": mode.bucket_bytes, "buckets": len(mode.buckets) or None,
                "seconds": float(of_ranks.max()), "seconds_min": float(of_ranks.min()),
                "slowest_rank": int(of_ranks.argmax()), "cpu_seconds": float(cpu_all[k]),
                "loss": float(loss_all[k]) if mode.name in TRAINS else None,
            }
            for k, ((iteration, order, mode, *_), of_ranks) in enumerate(zip(took, everyone.T, strict=True))
        ]  # fmt: skip

    def _note_readiness(self, iterations: int) -> None:
        """When each gradient is there in a step that only computes: median over steps, latest rank [s]."""
        times: dict[str, list[float]] = {}
        for iteration in range(iterations):
            begin, spans, _ = self.seen[COMPUTE, iteration]
            for span in spans:
                kind, _, layer = span.name.partition(" ")
                for name in (f"w{layer}", f"b{layer}") if kind == "ready" else [""] * (kind == "wait"):
                    times.setdefault(name, []).append(span.begin - begin)
        mine = {name: float(np.median(values)) for name, values in times.items()}
        everyone = self.world.control.allgather(mine)
        self.ready = {name: max(one[name] for one in everyone) for name in mine}

    def check(self) -> str | None:
        """What is wrong with the results, on all ranks: parameters that differ, a loss that does not fall."""
        for mode in self.modes:
            if mode.name not in TRAINS:
                continue
            digests = self.world.control.allgather(
                b"".join(p.tobytes() for p in mode.network.parameters.values())
            )
            different = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
            if different:
                return f"{mode.key}: ranks {different} have other parameters than rank 0"
            last = self.world.control.allreduce(mode.network.loss) / self.world.size
            if not last < self.first_loss:
                return f"{mode.key}: the loss went from {self.first_loss:g} to {last:g}"
        return None

    def free(self) -> None:
        """Free all plans and communicators."""
        for mode in self.modes:
            mode.free()
        self.barrier.Free()
        self.comm.Free()
