"""`mpirun … mpicoll calibrate`: what messages, bytes, combining and copying cost here, for `mpicoll model`.

Rank 0 exchanges messages with one other rank, the first of its node, or of another with ``--level net``; the
others sleep. What is timed is in `patterns`. Curves are fitted in pieces, robustly, and residuals kept: a
protocol switch is a piece.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mpicoll.bench import machine
from mpicoll.bench.cases import dtype_of
from mpicoll.bench.data import FOLDS, undefined
from mpicoll.bench.fit import fit_curve, rates
from mpicoll.bench.patterns import BURST, MESSAGES, Bench, Pair, Row, middle
from mpicoll.bench.records import replace_file, write_json
from mpicoll.bench.sizes import format_bytes, format_seconds, parse_sizes
from mpicoll.bench.store import explained
from mpicoll.bench.world import Refused, World, launcher_problem, start
from mpicoll.cost import Machine
from mpicoll.errors import ArgumentError


def add_parser(verbs: Any) -> None:
    """Add the verb `calibrate`."""
    verb = verbs.add_parser("calibrate")
    add = verb.add_argument
    add("-o", "--output", type=Path, default=Path("calibration"), metavar="DIR", help="(calibration)")
    add("--level", choices=("node", "net"), help="peer on the same or another node (net, if there are nodes)")
    add("--sizes", default="8:16M:2", help="bytes of a message (8:16M:2)")
    add("--dtypes", default="float32", metavar="NAMES", help="what is combined, a comma list (float32)")
    add("--ops", default="sum", metavar="NAMES", help="how, a comma list, each with each type (sum)")
    add("--merge", nargs="+", type=Path, metavar="DIR", help="no MPI: medians of these calibrations")
    add("--engine", choices=("native", "python"), help="(native, if it is there)")
    add("--thread-level", choices=("single", "funneled", "serialized", "multiple"), default="funneled")
    verb.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Measure, fit, and write machine.json, calibration.json and calibration.csv."""
    if args.merge:
        return _merge(args.merge, args.output)
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
        rows = Bench(pair, args.engine).run(sizes, pairs)
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


# -- from rows to a machine --------------------------------------------------------------------------------


def machine_from(rows: list[Row], name: str, host: str = "", cpu: str = "") -> tuple[Machine, list[Row]]:
    """The machine that the rows say, and the rows with what it says of them; `host` and `cpu`: its.

    Raises `ArgumentError` if a pattern is missing.
    """
    points: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        seconds = max(row["round"], 1e-9 if row["pattern"] in MESSAGES else 1e-10)
        points.setdefault(_which(row), []).append((row["bytes"], seconds))
    ((_, burst),) = points.pop("burst", [(0, None)])
    if burst is None or not points.keys() >= {*MESSAGES, "copy"}:
        raise ArgumentError(f"a calibration needs burst, copy, {', '.join(MESSAGES)}, not {list(points)}")
    curves = {k: fit_curve(known) if k in MESSAGES else rates(known) for k, known in points.items()}
    combines = {which: curve for which, curve in curves.items() if which not in (*MESSAGES, "copy")}
    calls = [max(0.0, row["call"]) for row in rows if row["pattern"] in MESSAGES and row["bytes"] <= 4096]
    machine = Machine(
        curves["one_way"], curves["exchange"], next(iter(combines.values())),
        gap=max(0.0, (burst - curves["exchange"](8)) / (BURST - 1)), call=statistics.median(calls),
        overlap=False, name=name, combines=tuple(combines.items()), host=host, cpu=cpu, copy=curves["copy"],
        one_way_relayed=curves["one_way_relayed"], exchange_relayed=curves["exchange_relayed"],
    )  # fmt: skip
    told = [{**row, "model": None, "residual": None} for row in rows]
    for row in (row for row in told if row["pattern"] != "burst"):
        model = curves[_which(row)](row["bytes"])
        row.update(model=model, residual=model / max(row["round"], 1e-10) - 1)
    return machine, told


def _which(row: Row) -> str:
    """The curve that a row is a point of."""
    return f"{row['dtype']} {row['op']}" if row["pattern"] == "combine" else str(row["pattern"])


def _report(world: World, rows: list[Row], peer: int, args: argparse.Namespace) -> None:
    link = "same node" if world.nodes[peer] == world.nodes[0] else "another node"
    name = f"{world.vendor}, {link}, {rows[0]['engine']} engine"
    facts: Row = {"mpi": world.library, "machine": world.machine, "hosts": world.hosts}
    facts |= {"oversubscribed": world.oversubscribed, "thread_level": world.thread_level}
    _write(rows, args.output, name, world.hosts[0], world.machine.get("cpu_model") or "", facts)


def _write(rows: list[Row], output: Path, name: str, host: str, cpu: str, facts: Row) -> None:
    """Fit, write and print."""
    found, told = machine_from(rows, name, host=host, cpu=cpu)
    replace_file(output / "machine.json", found.to_json() + "\n")
    write_json(output / "calibration.json", facts)
    text = io.StringIO()
    writer = csv.DictWriter(text, told[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(told)
    replace_file(output / "calibration.csv", text.getvalue())
    print(describe(found))
    worst = sorted(abs(row["residual"]) for row in told if row["pattern"] in MESSAGES)
    print(f"residuals of messages: median {statistics.median(worst):.1%}, largest {worst[-1]:.1%}")
    print(f"in {output}; next: mpicoll model allreduce --machine {output / 'machine.json'}")


def _merge(folders: list[Path], output: Path) -> int:
    """The medians of several launches, which may differ by half where ranks or their memory lie otherwise.

    Raises `ArgumentError` if they are not of one library, link, host, CPU and engine, or measured other
    things, and for a file that is missing or not as `mpicoll calibrate` writes it.
    """
    machines = [Machine.read(folder) for folder in folders]
    if len({(one.name, one.host, one.cpu) for one in machines}) > 1:
        told = "; ".join(f"{one.name} on {one.host} with {one.cpu or 'no CPU named'}" for one in machines)
        raise ArgumentError(f"--merge: {told}")
    launches = [_rows_of(folder / "calibration.csv") for folder in folders]
    facts = _facts_of(folders[0] / "calibration.json")
    kinds = [[(_which(row), row["bytes"]) for row in rows] for rows in launches]
    if any(kind != kinds[0] for kind in kinds):
        raise ArgumentError("--merge: these calibrations measured different sizes, types or operations")
    output.mkdir(parents=True, exist_ok=True)
    rows = [middle(points) for points in zip(*launches, strict=True)]
    first = machines[0]
    _write(rows, output, first.name, first.host, first.cpu, {**facts, "launches": len(folders)})
    return 0


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """What is wrong with a file of a calibration that is read is an `ArgumentError` that names it."""
    try:
        yield
    except OSError as error:
        raise ArgumentError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, TypeError, KeyError) as error:
        problem = f"there is no {error}" if isinstance(error, KeyError) else error
        raise ArgumentError(f"{path} is not as `mpicoll calibrate` writes it: {problem}") from None


def _facts_of(path: Path) -> Row:
    with _named(path):
        facts: Row = {**json.loads(path.read_text(encoding="utf-8"))}
    return facts


def _rows_of(path: Path) -> list[Row]:
    kinds: dict[str, Callable[[str], Any]] = {
        "pattern": str, "dtype": str, "op": str, "bytes": int, "round": float, "call": float, "engine": str,
        "samples": int,
    }  # fmt: skip
    with _named(path), path.open(newline="", encoding="utf-8") as file:
        rows = [{key: kind(row[key]) for key, kind in kinds.items()} for row in csv.DictReader(file)]
    return rows


def describe(machine: Machine) -> str:
    """The numbers of a machine, in words."""
    lines = [machine.name]
    curves = {key: getattr(machine, key) for key in (*MESSAGES, "copy")}
    curves |= dict(machine.combines or (("combine", machine.combine),))
    for what, curve in curves.items():
        for begin, seconds, slope in curve.pieces if curve is not None else ():
            rate = f"{1e-9 / slope:.3g} GB/s" if slope > 0 else "no time per byte"
            start = format_bytes(int(begin))
            lines.append(f"  {what:<17} from {start:<8} {format_seconds(seconds)} + {rate}")
    return "\n".join([*lines, f"  gap {format_seconds(machine.gap)}, call {format_seconds(machine.call)}"])
