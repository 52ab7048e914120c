"""`mpicoll overlap`: how much gradient communication hides behind a training step, and at what bucket size.

A real data-parallel step of a small network, in these modes, interleaved:

- ``per tensor``: a blocking all-reduce for each gradient;
- ``bucketed``: gradients in buckets, each all-reduced at once when it is full;
- ``overlapped``: the same, while the backward pass goes on;
- ``compute only``, and, at every bucket size, ``communication only`` and ``communication asleep``, in which
  the program sleeps, so that the CPU time is that of moving messages.

What a step takes beyond computing alone is *exposed* communication; ``1 - exposed / communication`` is
hidden; computing alone over the step is the utilisation. NumPy's BLAS is held to one thread a rank
(`mpicoll.bench` says so in the environment before NumPy is imported).
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mpicoll import device
from mpicoll.bench.contenders import own_algorithms
from mpicoll.bench.device_contenders import use_own_device
from mpicoll.bench.overlap_bench import Bench
from mpicoll.bench.overlap_file import Row
from mpicoll.bench.overlap_modes import COMMUNICATE, COMPUTE
from mpicoll.bench.overlap_record import Record
from mpicoll.bench.places import BUFFERS, Host, make_place
from mpicoll.bench.sizes import parse_bytes, parse_sizes
from mpicoll.bench.spec import THREAD_LEVELS
from mpicoll.bench.training import Shape
from mpicoll.bench.world import Refused, Stopped, StopSignals, World, start
from mpicoll.errors import ArgumentError

_TRIAL_BATCH = 64
_TRIALS = 5
_MOST = {"layers": 10_000, "width": 1 << 20, "batch": 1 << 30}


def add_parser(verbs: Any) -> None:
    """Add the verb `overlap`."""
    parser = verbs.add_parser("overlap")
    add = parser.add_argument
    add("--layers", type=int, default=8, help="of the network (8)")
    add("--width", type=int, default=768, help="of every layer (768)")
    add("--batch", type=int, help="rows of a batch on each rank (so many that --compute-ratio is met)")
    add("--compute-ratio", type=float, default=2.0, help="computing / communicating, each alone (2)")
    add("--buffer", choices=BUFFERS, default="numpy",
        help="memory of the network: numpy, or cupy: a device's (numpy); see docs/gpu.md")  # fmt: skip
    add("--buckets", metavar="SIZES", default="64K:16M:4", help="bucket sizes to try (64K:16M:4)")
    add("--bucket", metavar="SIZE", help="that of the blocking mode (the middle one of --buckets)")
    add("--iterations", type=int, default=20, help="timed steps of every mode (20)")
    add("--warmup", type=int, default=3, help="steps of every mode before those (3)")
    add("--algorithm", default="auto", help="of the all-reduces (auto)")
    add("--progress", choices=("thread", "test"),
        help="who moves messages: a thread, or every call of ready (thread; for cupy test)")  # fmt: skip
    add("--policy", metavar="SPINS,SHORTEST,LONGEST,PATIENCE,LOOKS",
        help="of the thread: looks before it sleeps; bounds of its sleep [ns]; it sleeps 1/PATIENCE of the "
        "time waited, or 1/LOOKS of what a bucket took before if that is longer (LOOKS 0: never) "
        "(0,20000,1500000,8,16)")  # fmt: skip
    add("--thread-level", choices=THREAD_LEVELS, default="serialized", help="asked of MPI (serialized)")
    add("--seed", type=int, default=1, help="of data and order (1)")
    add("-o", "--output", type=Path, metavar="DIR", help="write samples, traces and conditions there")
    add("--resume", action="store_true",
        help="continue the result in DIR: steps that are recorded in it are not measured again")  # fmt: skip
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Measure, record and say what it means; status 1 if ranks ended with different parameters."""
    sizes = sorted(parse_sizes(args.buckets))
    middle = parse_bytes(args.bucket) if args.bucket else sizes[len(sizes) // 2]
    _check(args, sizes[0], middle)
    args.progress = args.progress or ("test" if args.buffer == "cupy" else "thread")
    world = start(args.thread_level)
    with world.together():
        policy = _policy(args)
        known = ("auto", *own_algorithms("allreduce"))
        if args.algorithm not in known:
            raise ArgumentError(f"unknown algorithm {args.algorithm!r}; known: {', '.join(known)}")
        if args.progress == "thread" and world.thread_level in ("single", "funneled"):
            raise ArgumentError(
                f"a thread moves no messages at thread level {world.thread_level}: "
                "--thread-level serialized, or --progress test"
            )
        if args.buffer == "cupy":
            use_own_device(world)
    record = Record(world, args, policy)
    try:
        with record.ended(), StopSignals() as stop:
            bench = _measure(world, args, (sizes, middle), record, stop)
            record.finish(bench)
            wrong = record.wrong()
            if bench is not None:
                bench.free()
    except Stopped as error:
        if args.output is None:
            raise
        raise Refused(f"{error}; what was measured is recorded, continue with\n  {record.again()}",
                      error.status) from None  # fmt: skip
    return int(wrong is not None)


def _measure(
    world: World, args: argparse.Namespace, buckets: tuple[list[int], int], record: Record, stop: StopSignals
) -> Bench | None:
    """Measure what the record lacks; None if that is nothing. Collective."""
    if record.done >= args.iterations:
        return None
    place = make_place(args.buffer)
    options = {"algorithm": args.algorithm, "background": args.progress == "thread"}
    with world.together():  # what the algorithm cannot do is refused here, on all ranks
        batch = args.batch or record.batch
        _check_memory(world, args, buckets[0], batch or _TRIAL_BATCH)
        if not batch:
            batch = _balanced_batch(world, args, place, buckets[1], options, stop)
            _check_memory(world, args, buckets[0], batch)
        shape = Shape(args.layers, args.width, batch)
        bench = Bench(world, shape, place, buckets, options, args.seed, stop)
    bench.measure(
        args.warmup,
        range(record.done, args.iterations),
        lambda rows, wrong: record.add(shape, bench, rows, wrong),
    )
    return bench


def _check(args: argparse.Namespace, *sizes: int) -> None:
    """Raise `ArgumentError` for a number that cannot be."""
    least = {"layers": 1, "width": 1, "batch": 1, "iterations": 1, "warmup": 0, "seed": 0}
    for name, number in least.items():
        value, most = getattr(args, name), _MOST.get(name, 1 << 40)
        if value is not None and not number <= value <= most:
            limit = f"at least {number}" if value < number else f"at most {most}"
            raise ArgumentError(f"--{name} must be {limit}")
    if args.warmup + args.iterations < 2:
        raise ArgumentError("--iterations 1 needs --warmup 1: in a single step no loss falls")
    if not 0 < args.compute_ratio < float("inf"):
        raise ArgumentError(f"--compute-ratio {args.compute_ratio:g}: needs a number above 0")
    if min(sizes) < 1:
        raise ArgumentError("--buckets and --bucket need at least one byte")
    if args.resume and args.output is None:
        raise ArgumentError("--resume needs the result to continue: -o DIR")
    if args.buffer == "cupy" and (args.progress == "thread" or args.policy):
        raise ArgumentError("--buffer cupy: a thread knows no streams; leave --progress and --policy out")


def _check_memory(world: World, args: argparse.Namespace, sizes: list[int], batch: int) -> None:
    """Raise `ArgumentError` where the networks of all modes cannot fit: the kernel would kill a rank."""
    shape = Shape(args.layers, args.width, batch)
    networks = 3 + 3 * len(sizes)
    rows = shape.batch * shape.width * np.dtype(shape.dtype).itemsize
    each = 3 * shape.nbytes + (shape.layers + 4) * rows  # parameters, gradients, buckets; layers
    limit, where = _room(world, args.buffer)
    if limit is not None and networks * each > limit:
        raise ArgumentError(
            f"{networks} networks of {shape.layers} layers of {shape.width} and {batch} rows need "
            f"{networks * each / 2**30:.1f} GiB a rank, and {where} has {limit / 2**30:.1f} for each; "
            "take a smaller --width, --batch or --compute-ratio, fewer --layers or fewer --buckets"
        )


def _room(world: World, buffer: str) -> tuple[float | None, str]:
    """Bytes of memory for each rank, if they are known, and of what."""
    if buffer == "cupy":
        devices = device.describe()
        return devices[0]["memory_bytes"] / -(-world.ppn // len(devices)), "the device"
    memory = world.machine.get("memory_bytes")
    most = max(map(len, world.topology.machines))
    return (memory / most if memory else None), "the machine"


def _policy(args: argparse.Namespace) -> tuple[int, ...] | None:
    """Set and return the background thread's policy. Raises `ArgumentError` for one that is none."""
    if args.policy is None:
        return None
    try:
        from mpicoll import _runner

        spins, shortest, longest, patience, looks = (int(text) for text in args.policy.split(","))
        _runner.background_policy(spins, shortest, longest, patience, looks)
    except ImportError as error:
        raise ArgumentError(
            f"--policy is of the native engine's thread, which is not here ({error})"
        ) from None
    except (ValueError, OverflowError) as error:
        raise ArgumentError(f"--policy {args.policy}: five whole numbers are needed ({error})") from None
    return spins, shortest, longest, patience, looks


def _collect(rows: list[Row], found: list[Row], wrong: str | None) -> None:
    rows += found


def _balanced_batch(
    world: World,
    args: argparse.Namespace,
    place: Host,
    nbytes: int,
    options: dict[str, Any],
    stop: StopSignals,
) -> int:
    """So many rows that computing takes `--compute-ratio` times as long as communicating.

    Found in two trials: small products of matrices take more than their share.
    """
    batch = _TRIAL_BATCH
    for _ in range(2):
        shape = Shape(args.layers, args.width, batch)
        rows: list[Row] = []
        bench = Bench(
            world, shape, place, ([nbytes], nbytes), options, args.seed, stop, only=(COMPUTE, COMMUNICATE)
        )
        bench.measure(1, range(_TRIALS), partial(_collect, rows))
        compute, communicate = (
            np.median([row["seconds"] for row in rows if row["mode"] == mode and not row["warmup"]])
            for mode in (COMPUTE, COMMUNICATE)
        )
        bench.free()
        batch = max(8, round(args.compute_ratio * communicate / compute * batch / 8) * 8)
        batch = int(world.control.bcast(min(batch, _MOST["batch"]), root=0))
    return batch
