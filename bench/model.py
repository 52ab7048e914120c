"""The verb `model`: predicted times, what dominates them, who wins where, on machines that need not exist."""

from __future__ import annotations

import argparse
import csv
import io
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import mpicoll.algorithms  # noqa: F401  (importing registers them)
from mpicoll.bench.arguments import chosen, parse_ranks, usage
from mpicoll.bench.export import goal, msccl
from mpicoll.bench.loading import add_load, load
from mpicoll.bench.quantities import parse_rate, parse_time
from mpicoll.bench.records import write_named
from mpicoll.bench.sizes import format_bytes, format_seconds, parse_sizes
from mpicoll.bounds import bound
from mpicoll.cost import NOMINAL, Cost, Machine, cost, faster, uniform
from mpicoll.curves import straight
from mpicoll.errors import ArgumentError, Unsupported
from mpicoll.fabric import FABRICS, cost_on, make_fabric
from mpicoll.registry import Algorithm

Row = dict[str, Any]
CHARTS = (".svg", ".png", ".html")


def add_parser(verbs: Any) -> None:
    """Add the verb `model`."""
    verb = verbs.add_parser(
        "model",
        description="Predict from schedules; no MPI needed. Sizes are nccl-tests' (all parts), in "
        "binary units (1M = 2^20); rates are decimal (25GB/s = 25e9 bytes per second).",
    )
    add = verb.add_argument
    add("collective")
    add("algorithms", nargs="*", metavar="ALGORITHM", help="all that serve the case, by default")
    add("--ranks", metavar="P", help="as 64, or 2,64,4096 (64, or nodes times ppn)")
    add("--bytes", default="8:1G:16", metavar="SIZES", help="min:max:factor, or a list (8:1G:16)")
    add("--machine", type=Path, metavar="FILE", help="machine.json of `mpicoll calibrate`")
    add("--alpha", metavar="TIME", help="latency of a message, as 5us")
    add("--beta", metavar="RATE", help="bandwidth of a port, as 25GB/s")
    add("--gamma", metavar="RATE", help="rate of combining, as 30GB/s, or inf")
    add("--copy", metavar="RATE", help="of a rank's own part within its memory, as 10GB/s, or inf")
    add("--gap", metavar="TIME", help="for every further message of a round (a fifth of alpha)")
    add("--ports", type=float, metavar="K", help="messages that one rank can send at once (1)")
    add("--topology", choices=FABRICS, help="what lies between ranks (flat; levels with --nic)")
    add("--nodes", type=int, metavar="N", help="nodes")
    add("--ppn", type=int, default=1, metavar="Q", help="ranks per node (1)")
    add("--nic", metavar="RATE", help="what the ranks of a node share, as 25GB/s (a port's bandwidth)")
    add("--taper", type=float, default=2.0, help="of a fat tree (2)")
    add(
        "--group", type=int, default=8, help="nodes per switch of a fat tree, or per group of a dragonfly (8)"
    )
    add("--map", action="store_true", help="only the best algorithm for each number of ranks and size")
    add("--csv", type=Path, metavar="FILE", help="also write all predictions as CSV")
    add("--chart", type=Path, metavar="FILE", help="also draw them, as .svg, .png or .html")
    add("--goal", type=Path, metavar="FILE", help="write the schedule of one algorithm for LogGOPSim")
    add("--msccl", type=Path, metavar="FILE", help="write the schedule of an all-reduce as MSCCL XML")
    add_load(verb)
    verb.set_defaults(func=run)


def machine_of(args: argparse.Namespace) -> Machine:
    """The machine that the flags describe: a file's or the nominal one, with what else was said."""
    machine = NOMINAL
    if args.machine is not None:
        machine = Machine.read(args.machine)
    if args.alpha or args.beta:
        alpha, beta = machine.exchange.pieces[0][1:]
        alpha = parse_time(args.alpha) if args.alpha else alpha
        beta = 1 / parse_rate(args.beta) if args.beta else beta
        machine = uniform(alpha, beta, name="given", call=machine.call)
        machine = faster(machine, combine=NOMINAL.combine)
    if args.gamma:
        slope = 0.0 if args.gamma == "inf" else 1 / parse_rate(args.gamma)
        machine = faster(machine, combine=straight(0.0, slope))
    if args.copy:
        slope = 0.0 if args.copy == "inf" else 1 / parse_rate(args.copy)
        machine = faster(machine, copy=straight(0.0, slope))
    if args.gap:
        machine = faster(machine, gap=parse_time(args.gap))
    if args.ports is not None:
        if args.ports < 1:
            raise ArgumentError(f"--ports {args.ports}: at least 1")
        machine = faster(machine, ports=args.ports)
    return machine


def _sizes(args: argparse.Namespace) -> list[int]:
    if args.ppn < 1 or (args.nodes is not None and args.nodes < 1):
        raise ArgumentError("--nodes and --ppn begin at 1")
    if args.nodes is not None and args.ranks:
        raise ArgumentError("give --ranks, or --nodes and --ppn, not both")
    return [args.nodes * args.ppn] if args.nodes else parse_ranks(args.ranks or "64")


def _topology(args: argparse.Namespace) -> str:
    topology = str(args.topology or ("levels" if args.nic else "flat"))
    if args.nic and topology in ("flat", "ring", "torus"):
        raise ArgumentError(f"--nic is what the ranks of a node share: there are no nodes in {topology!r}")
    return topology


def _predict(entry: Algorithm, size: int, nbytes: int, machine: Machine, args: argparse.Namespace) -> Cost:
    params = {"nodes": tuple(rank // args.ppn for rank in range(size))} if entry.hierarchical else {}
    topology = _topology(args)
    if topology == "flat":
        return cost(entry, size, nbytes, machine, params)
    fabric = make_fabric(topology, size, args.ppn, taper=args.taper, group=args.group)
    if args.nic:
        fabric = replace(fabric, rate=parse_rate(args.nic))
    return cost_on(fabric, entry, size, nbytes, machine, params)


def predictions(args: argparse.Namespace, machine: Machine) -> Iterator[Row]:
    """A row for each number of ranks, size and algorithm; one without a time where there is none."""
    wanted = [chosen(args.collective, name)[0] for name in args.algorithms] or chosen(args.collective)
    for size in _sizes(args):
        for nbytes in parse_sizes(args.bytes):
            least = bound(args.collective, size, nbytes, machine).seconds
            for entry in wanted:
                row: Row = {
                    "collective": args.collective,
                    "algorithm": entry.name,
                    "ranks": size,
                    "bytes": nbytes,
                }
                row |= {"bound_seconds": least, "seconds": None, "dominating": None, "reason": None}
                try:
                    found = _predict(entry, size, nbytes, machine, args)
                    row |= {"seconds": found.seconds, "dominating": found.dominating, **found._asdict()}
                except Unsupported as refusal:
                    row["reason"] = str(refusal)
                yield row


@usage
def run(args: argparse.Namespace) -> int:
    """Predict, print, and write."""
    load(args.load)
    if args.chart is not None and args.chart.suffix not in CHARTS:
        raise ArgumentError(f"--chart {args.chart}: its name must end in {', '.join(CHARTS)}")
    machine = machine_of(args)
    rows = list(predictions(args, machine))
    timed = [row for row in rows if row["seconds"] is not None]
    for reason in dict.fromkeys(row["reason"] for row in rows if row["reason"] and args.algorithms):
        print(f"mpicoll: {reason}", file=sys.stderr)
    if not timed:
        return 1
    print(best_map(timed) if args.map else table(timed))
    for line in crossovers(timed):
        print(line)
    _export(args)
    if args.csv:
        _write(args.csv, rows)
    if args.chart:
        _draw(args.chart, timed)
    return 0


def table(rows: Sequence[Row]) -> str:
    """Per number of ranks and size the algorithms, fastest first."""
    lines = []
    for size, nbytes in dict.fromkeys((row["ranks"], row["bytes"]) for row in rows):
        here = sorted(_cell(rows, size, nbytes), key=lambda row: row["seconds"])
        lines.append(
            f"P={size}, {format_bytes(nbytes)}: no algorithm beats {format_seconds(here[0]['bound_seconds'])}"
        )
        lines += [
            f"  {row['algorithm']:<32} {format_seconds(row['seconds']):>9}  latency "
            f"{format_seconds(row['latency'])}, bandwidth {format_seconds(row['bandwidth'])}, reduction "
            f"{format_seconds(row['reduction'])}{_copy(row)}: mostly {row['dominating']}"
            for row in here
        ]
    return "\n".join(lines)


def _copy(row: Row) -> str:
    return f", copy {format_seconds(row['copy'])}" if row["copy"] else ""


def _cell(rows: Sequence[Row], size: int, nbytes: int) -> list[Row]:
    return [row for row in rows if (row["ranks"], row["bytes"]) == (size, nbytes)]


def winner(rows: Sequence[Row]) -> Row:
    """The fastest row."""
    return min(rows, key=lambda row: row["seconds"])


def best_map(rows: Sequence[Row]) -> str:
    """The best algorithm for each number of ranks (line) and size (column)."""
    ranks, sizes = (list(dict.fromkeys(row[key] for row in rows)) for key in ("ranks", "bytes"))
    cells = [["P", *map(format_bytes, sizes)]]
    for size in ranks:
        cells.append([str(size), *(winner(_cell(rows, size, n))["algorithm"] for n in sizes)])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in cells
    )


def crossovers(rows: Sequence[Row]) -> Iterator[str]:
    """Between which sizes the best algorithm changes, for each number of ranks."""
    sizes = sorted({row["bytes"] for row in rows})
    for size in dict.fromkeys(row["ranks"] for row in rows):
        best = [(n, winner(_cell(rows, size, n))["algorithm"]) for n in sizes]
        for (below, first), (above, second) in pairwise(best):
            if first != second:
                yield f"P={size}: {first} up to {format_bytes(below)}, {second} from {format_bytes(above)} on"


def _export(args: argparse.Namespace) -> None:
    """The schedule of the one algorithm for the first case, in other programs' formats."""
    if args.goal is None and args.msccl is None:
        return
    if len(args.algorithms) != 1:
        raise ArgumentError("--goal and --msccl need one ALGORITHM")
    entry, size = chosen(args.collective, args.algorithms[0])[0], _sizes(args)[0]
    params = {"nodes": tuple(rank // args.ppn for rank in range(size))} if entry.hierarchical else {}
    if args.goal is not None:
        part = parse_sizes(args.bytes)[0] // entry.collective.parts_in_total(size)
        write_named(args.goal, goal(entry, size, part, params))
    if args.msccl is not None:
        write_named(args.msccl, msccl(entry, size, params))


def _write(path: Path, rows: Sequence[Row]) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(name for row in rows for name in row)))
    writer.writeheader()
    writer.writerows(rows)
    write_named(path, text.getvalue())


def _draw(path: Path, rows: Sequence[Row]) -> None:
    """Time by size, a panel for each number of ranks, the bound dashed."""
    import altair as alt
    import pandas as pd

    frame = pd.DataFrame(rows)
    base = alt.Chart(frame[frame["bytes"] > 0]).encode(alt.X("bytes:Q").scale(type="log", base=2))
    lines = base.mark_line(point=True).encode(alt.Y("seconds:Q").scale(type="log"), color="algorithm:N")
    least = base.mark_line(strokeDash=[4, 3], color="#000").encode(alt.Y("bound_seconds:Q"))
    drawing: Any = io.BytesIO() if path.suffix == ".png" else io.StringIO()
    alt.layer(lines, least).facet("ranks:O", columns=2).save(drawing, format=path.suffix[1:])
    write_named(path, drawing.getvalue())
