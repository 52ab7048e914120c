"""`mpirun … mpicoll calibrate`: what a message, a byte and combining a byte cost here, for `mpicoll model`.

Rank 0 exchanges messages with one other rank, the first of its node, or of another with ``--level net``; the
others sleep. What is timed are plans like those of collectives, on the engine that is calibrated: schedules
with a few and with many rounds of one pattern, whose difference gives the cost of a round, and whose
remainder that of a call. Patterns: one way (to and fro), both ways at once, both ways with combining (for
each type and operation), and several messages in a round. Curves are fitted in pieces, robustly, and
residuals kept: a protocol switch is a piece.
"""

from __future__ import annotations

import argparse
import csv
import io
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from mpicoll.bench import machine
from mpicoll.bench.cases import dtype_of
from mpicoll.bench.data import FOLDS, undefined
from mpicoll.bench.fit import fit_curve
from mpicoll.bench.records import replace_file, write_json
from mpicoll.bench.sizes import format_bytes, format_seconds, parse_sizes
from mpicoll.bench.store import explained
from mpicoll.bench.timing import measure, no_garbage_collection, orders
from mpicoll.bench.world import Refused, World, launcher_problem, start
from mpicoll.cost import Machine, straight
from mpicoll.errors import ArgumentError
from mpicoll.registry import Params, algorithm, unregister
from mpicoll.schedule import Recv, Round, Schedule, Send, Side, Window

_FEW, _MANY = 2, 6
_BUDGET = 0.12  # seconds for each pattern and size
_PATTERNS = ("one_way", "exchange", "combine", "burst")
_BURST = 5  # messages in a round

Row = dict[str, Any]
Pair = tuple[str, str]  # a NumPy type and an operation
_BYTES: Pair = ("uint8", "sum")


def add_parser(verbs: Any) -> None:
    """Add the verb `calibrate`."""
    verb = verbs.add_parser("calibrate")
    add = verb.add_argument
    add("-o", "--output", type=Path, default=Path("calibration"), metavar="DIR", help="(calibration)")
    add("--level", choices=("node", "net"), help="peer on the same or another node (net, if there are nodes)")
    add("--sizes", default="8:16M:4", help="bytes of a message (8:16M:4)")
    add("--dtypes", default="float32", metavar="NAMES", help="what is combined, a comma list (float32)")
    add("--ops", default="sum", metavar="NAMES", help="how, a comma list, each with each type (sum)")
    add("--engine", choices=("native", "python"), help="(native, if it is there)")
    add("--thread-level", choices=("single", "funneled", "serialized", "multiple"), default="funneled")
    verb.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Measure, fit, and write machine.json, calibration.json and calibration.csv."""
    sizes = [n for n in parse_sizes(args.sizes) if n]
    _check(sizes)
    pairs = pairs_of(args.dtypes.split(","), args.ops.split(","), sizes)
    world = start(args.thread_level)
    if problem := launcher_problem(world.size):
        raise Refused(problem)
    with world.together(), explained(args.output):
        if world.first:  # better now than when all is measured
            args.output.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=args.output).close()
    peer = _peer(world, args.level)
    pair = world.control.Split(0 if world.rank in (0, peer) else 1, world.rank)
    rows = []
    if world.rank in (0, peer):
        rows = _measure(pair, sizes, pairs, args.engine)
    done = world.control.Ibarrier()
    while not done.Test():  # the others must not take the cores of those that measure
        time.sleep(0.005)
    if world.first:
        _report(world, rows, peer, args)
    pair.Free()
    return 0


def _check(sizes: list[int]) -> None:
    """Raise `ArgumentError` for what cannot be measured."""
    if not sizes:
        raise ArgumentError("--sizes: messages need at least one byte")
    memory = machine.memory_bytes()
    if memory is not None and 8 * sizes[-1] > memory:  # two ranks, and two plans of two blocks
        raise ArgumentError(f"--sizes: there is no memory for messages of {format_bytes(sizes[-1])}")


def pairs_of(dtypes: list[str], ops: list[str], sizes: list[int]) -> list[Pair]:
    """Each type with each operation that MPI defines for it.

    Raises `ArgumentError` for an unknown name, for a type or an operation that no other goes with, and for a
    type of which fewer than two sizes are whole elements.
    """
    types = [dtype_of(name) for name in dtypes]
    if unknown := [op for op in ops if op not in FOLDS]:
        raise ArgumentError(f"unknown operation {unknown[0]!r}; known: {', '.join(FOLDS)}")
    pairs = [(str(dtype), op) for dtype in types for op in ops if undefined(op, dtype) is None]
    for dtype in types:
        if not any(str(dtype) == one for one, _ in pairs):
            raise ArgumentError(f"MPI defines none of {', '.join(ops)} on {dtype}")
    for op in ops:
        if not any(op == one for _, one in pairs):
            raise ArgumentError(f"MPI defines {op} on none of {', '.join(dtypes)}")
    for dtype in types:
        if sum(n % dtype.itemsize == 0 for n in sizes) < 2:
            raise ArgumentError(f"--sizes must have two multiples of the {dtype.itemsize} bytes of {dtype}")
    return list(dict.fromkeys(pairs))


def _peer(world: World, level: str | None) -> int:
    """The rank that rank 0 talks to."""
    near = [rank for rank in range(1, world.size) if world.nodes[rank] == world.nodes[0]]
    far = [rank for rank in range(1, world.size) if world.nodes[rank] != world.nodes[0]]
    found = {"node": near, "net": far, None: far or near}[level]
    if not found:
        raise Refused(f"no rank for --level {level}: {world.size} ranks on {world.node_count} nodes")
    return found[0]


# -- patterns ----------------------------------------------------------------------------------------------


def _rounds(pattern: str, rank: int, count: int) -> Schedule:
    """So many rounds of a pattern between ranks 0 and 1, on one block (one per message in a burst)."""
    peer, block = 1 - rank, (Window(0),)
    for turn in range(count):
        if pattern == "one_way":
            sends = turn % 2 == rank
            yield Round((Send(peer, block),), ()) if sends else Round((), (Recv(peer, block),))
        elif pattern == "combine":
            side = Side.LEFT if peer < rank else Side.RIGHT
            yield Round((Send(peer, block),), (Recv(peer, block, side),))
        else:
            messages = range(1 if pattern == "exchange" else _BURST)
            yield Round(
                tuple(Send(peer, (Window(2 * m + rank),)) for m in messages),
                tuple(Recv(peer, (Window(2 * m + peer),)) for m in messages),
            )


@contextmanager
def _registered() -> Iterator[None]:
    """The patterns as algorithms, for measurement only."""
    names = []
    for pattern in _PATTERNS:
        for count in (_FEW, _MANY):

            def generate(rank: int, size: int, pattern: str = pattern, count: int = count) -> Schedule:
                """A pattern of messages, again and again."""
                return _rounds(pattern, rank, count)

            def count_blocks(size: int, params: Params, pattern: str = pattern) -> int:
                return {"exchange": 2, "burst": 2 * _BURST}.get(pattern, 1)

            names.append(f"calibration_{pattern}_{count}")
            algorithm("allreduce", blocks=count_blocks, name=names[-1])(generate)
    try:
        yield
    finally:
        for name in names:
            unregister("allreduce", name)


def _measure(pair: Any, sizes: list[int], pairs: list[Pair], engine: str | None) -> list[Row]:
    """Rows (pattern, type, operation, bytes of a message, seconds of a round, and of the rest), on both."""
    from mpi4py import MPI

    import mpicoll

    own: Any = mpicoll.Comm(pair)
    barrier = own.Barrier_init(engine=engine)
    kinds = [(pattern, *_BYTES) for pattern in _PATTERNS]  # what is not combined is bytes
    kinds[2:3] = [("combine", dtype, op) for dtype, op in pairs]
    rows = []
    with _registered(), no_garbage_collection():
        for pattern, dtype, op in kinds:
            blocks = {"exchange": 2, "burst": 2 * _BURST}.get(pattern, 1)
            unit = np.dtype(dtype).itemsize
            for nbytes in [8] if pattern == "burst" else [n for n in sizes if n % unit == 0]:
                data = np.zeros(nbytes // unit * blocks, dtype)
                plans = [
                    own.Allreduce_init(
                        MPI.IN_PLACE, data, getattr(MPI, op.upper()), engine=engine, channels=1,
                        algorithm=f"calibration_{pattern}_{rounds}",
                    )
                    for rounds in (_FEW, _MANY)
                ]  # fmt: skip
                few, many, samples = _times(pair, [plan.run for plan in plans], barrier.run)
                each = (many - few) / (_MANY - _FEW)
                rows.append(
                    {"pattern": pattern, "dtype": dtype, "op": op, "bytes": nbytes, "round": each,
                     "call": few - _FEW * each, "engine": plans[0].engine, "samples": samples}
                )  # fmt: skip
                for plan in plans:
                    plan.free()
    barrier.free()
    own.Free()
    return rows


def _times(pair: Any, calls: list[Callable[[], Any]], barrier: Callable[[], Any]) -> tuple[float, float, int]:
    """Median seconds of each call, slowest rank."""
    from mpi4py import MPI

    begun = time.perf_counter()
    measure([calls], barrier, orders(2, 3, 0), prime=False)
    each = pair.allreduce((time.perf_counter() - begun) / 3, op=MPI.MAX)
    iterations = max(7, min(400, int(_BUDGET / each)))
    mine = measure([calls], barrier, orders(2, iterations, 1), prime=False).seconds
    slowest = np.empty_like(mine)
    pair.Allreduce(mine, slowest, op=MPI.MAX)
    few, many = (statistics.median(column) for column in slowest.T.tolist())
    return few, many, iterations


# -- from rows to a machine --------------------------------------------------------------------------------


def machine_from(rows: list[Row], name: str, host: str = "", cpu: str = "") -> tuple[Machine, list[Row]]:
    """The machine that the rows say, and the rows with what it says of them; `host` and `cpu`: its.

    Raises `ArgumentError` if a pattern is missing.
    """

    def points(pattern: str) -> list[tuple[float, float]]:
        return [(r["bytes"], max(r["round"], 1e-9)) for r in rows if r["pattern"] == pattern]

    both = dict(points("exchange"))
    curves = {pattern: fit_curve(points(pattern)) for pattern in ("one_way", "exchange")}
    extra: dict[str, list[tuple[float, float]]] = {}
    for row in (row for row in rows if row["pattern"] == "combine"):
        seconds = max(max(row["round"], 1e-9) - both[row["bytes"]], 1e-10)
        extra.setdefault(f"{row['dtype']} {row['op']}", []).append((row["bytes"], seconds))
    combines = {pair: fit_curve(known, through_zero=True) for pair, known in extra.items()}
    burst = next(t for _, t in points("burst"))
    gap = max(0.0, (burst - curves["exchange"](8)) / (_BURST - 1))
    call = statistics.median([max(0.0, r["call"]) for r in rows if r["bytes"] <= 4096])
    machine = Machine(
        curves["one_way"], curves["exchange"], next(iter(combines.values())), gap, call,
        overlap=False, name=name, combines=tuple(combines.items()), host=host, cpu=cpu,
    )  # fmt: skip

    def model(row: Row) -> float:
        combined = combines[f"{row['dtype']} {row['op']}"] if row["pattern"] == "combine" else straight(0, 0)
        return curves.get(row["pattern"], curves["exchange"])(row["bytes"]) + combined(row["bytes"])

    told = [{**row, "model": None, "residual": None} for row in rows]
    for row in (row for row in told if row["pattern"] != "burst"):
        row.update(model=model(row), residual=model(row) / max(row["round"], 1e-9) - 1)
    return machine, told


def _report(world: World, rows: list[Row], peer: int, args: argparse.Namespace) -> None:
    link = "same node" if world.nodes[peer] == world.nodes[0] else "another node"
    name = f"{world.vendor}, {link}, {rows[0]['engine']} engine"
    cpu = world.machine.get("cpu_model") or ""
    found, told = machine_from(rows, name, host=world.hosts[0], cpu=cpu)
    replace_file(args.output / "machine.json", found.to_json() + "\n")
    facts: Row = {"mpi": world.library, "machine": world.machine, "hosts": world.hosts}
    facts |= {"oversubscribed": world.oversubscribed, "thread_level": world.thread_level}
    write_json(args.output / "calibration.json", facts)
    text = io.StringIO()
    writer = csv.DictWriter(text, told[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(told)
    replace_file(args.output / "calibration.csv", text.getvalue())
    print(describe(found))
    worst = sorted(abs(row["residual"]) for row in told if row["residual"] is not None)
    print(f"residuals: median {statistics.median(worst):.1%}, largest {worst[-1]:.1%}")
    print(f"in {args.output}; next: mpicoll model allreduce --machine {args.output / 'machine.json'}")


def describe(machine: Machine) -> str:
    """The numbers of a machine, in words."""
    lines = [machine.name]
    combines = machine.combines or (("combine", machine.combine),)
    for what, curve in (("one_way", machine.one_way), ("exchange", machine.exchange), *combines):
        for begin, seconds, slope in curve.pieces:
            rate = f"{1e-9 / slope:.3g} GB/s" if slope > 0 else "no time per byte"
            start = format_bytes(int(begin))
            lines.append(f"  {what:<14} from {start:<8} {format_seconds(seconds)} + {rate}")
    return "\n".join([*lines, f"  gap {format_seconds(machine.gap)}, call {format_seconds(machine.call)}"])
